//! State machine of a player: its edges, requests and deadlines.

mod media;
mod route;

use super::listing::{Listing, Position};
use super::measurements::{Measurements, PlayCounts};
use super::{
    Action, BUFFER_MAX, Get, PlayFailure, PlayerConfig, PlayerConfigError, PlayerKind, RequestId,
    ResourceKind,
};
use anabranch_media::hls::{
    ByteRange, DeliveryDirectives, MediaPlaylist, MultivariantPlaylist, PLAYLIST_BYTES_MAX, PlaylistError,
    Resource,
};
use anabranch_media::player::Playout;
use anabranch_units::{BitRate, ByteCount, Duration, Instant};
use media::LoadedResource;
use route::Route;
use std::collections::VecDeque;
use std::sync::Arc;

/// Shortest time without a byte after which a request counts as late.
const PATIENCE_MIN: Duration = Duration::from_ms(1_500);
/// Number of part targets without a byte after which a request counts as late. Parts are requested
/// one part early.
const PATIENCE_PARTS: u64 = 3;
/// Delay of the next request after all edges have failed.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// Shortest interval between two playlists without news, and between two segments of a fixed
/// player.
const PAUSE_MIN: Duration = Duration::from_ms(100);
/// Longest pause after a resource that no edge has, in units of [`PAUSE_MIN`]. The pause grows by
/// one unit with each such resource.
const MISSING_PAUSES_MAX: u64 = 10;

/// A request in progress.
#[derive(Debug)]
struct Request {
    id: RequestId,
    kind: ResourceKind,
    /// Index of the edge that is asked.
    edge: usize,
    url: String,
    /// Resource from the playlist. `None` if the request is for a playlist.
    resource: Option<Resource>,
    sent_at: Instant,
    /// Time without a byte after which the request counts as late.
    patience: Duration,
    deadline: Instant,
    has_head: bool,
    /// Bytes received of a playlist.
    body: Vec<u8>,
}

/// State of the DNS query.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum DnsState {
    /// The edges are known.
    Known,
    /// A query is due.
    Wanted,
    /// A query is in progress, with its deadline.
    Asked(Instant),
}

/// Times of the next requests.
#[derive(Debug)]
struct Timers {
    /// Time of the next playlist request. `None` while no playlist is needed.
    reload_at: Option<Instant>,
    /// Earliest time of a further playlist request of a fixed player.
    reload_from: Instant,
    /// Earliest time of any request after all edges have failed.
    resumes_at: Instant,
    /// Time of the next segment of a fixed player.
    segment_at: Instant,
    /// End of playback, once all media of an ended playlist are loaded.
    ends_at: Option<Instant>,
    polled_at: Instant,
}

/// Positions in the stream.
#[derive(Debug)]
struct Positions {
    /// Next position to load. `None` before the first media playlist.
    load: Position,
    /// First position that is played. Earlier media is loaded only to start at a key frame.
    play_from: Position,
    /// First position that was not listed when the player joined.
    made_from: Position,
}

/// A measuring player.
#[derive(Debug)]
pub struct Player {
    config: PlayerConfig,
    opened_at: Instant,
    naming: DnsState,
    route: Route,
    listing: Option<Listing>,
    /// Whether the listing is of the current edge and rendition.
    is_listing_current: bool,
    positions: Option<Positions>,
    map: Option<Arc<Resource>>,
    playlist: Option<Request>,
    media: Option<Request>,
    /// Received media not yet accounted for.
    loaded: Option<LoadedResource>,
    playout: Playout,
    timers: Timers,
    records: media::Records,
    aborts: VecDeque<RequestId>,
    next_id: u64,
}

impl Player {
    /// A player that is opened at `now`.
    ///
    /// Errors: see [`PlayerConfigError`].
    pub fn new(now: Instant, config: PlayerConfig) -> Result<Self, PlayerConfigError> {
        config.check()?;
        let timers = Timers {
            reload_at: Some(now),
            reload_from: now,
            resumes_at: now,
            segment_at: now,
            ends_at: None,
            polled_at: now,
        };
        Ok(Self {
            opened_at: now,
            naming: if config.resolves { DnsState::Wanted } else { DnsState::Known },
            route: Route::new(config.urls.len(), config.rounds_max),
            listing: None,
            is_listing_current: false,
            positions: None,
            map: None,
            playlist: None,
            media: None,
            loaded: None,
            playout: Playout::new(now),
            timers,
            records: media::Records::default(),
            aborts: VecDeque::new(),
            next_id: 0,
            config,
        })
    }

    /// Whether the player has given up, or has played its stream to the end. A player gives up only
    /// before its first video.
    pub fn is_over(&self) -> bool {
        self.route.has_given_up || self.timers.ends_at.is_some_and(|at| at <= self.timers.polled_at)
    }

    /// Number of stalls until the last input.
    pub fn stalls(&self) -> u64 {
        self.playout.stalls()
    }

    /// Total duration of all stalls until the last input.
    pub const fn stalled(&self) -> Duration {
        self.playout.stalled()
    }

    /// Video received, in bytes.
    pub const fn video_bytes(&self) -> ByteCount {
        self.records.measurements.bytes
    }

    /// Declared bitrate of the rendition that is watched; `None` before its first byte.
    pub fn watched(&self) -> Option<BitRate> {
        self.route.bitrate().filter(|_| self.has_joined())
    }

    /// Event counts until the last input.
    pub const fn counts(&self) -> PlayCounts {
        self.records.measurements.counts
    }

    /// Whether video has arrived.
    pub fn has_joined(&self) -> bool {
        self.records.measurements.join.first_byte.is_some()
    }

    /// The measurements at `now`.
    pub fn measurements(&self, now: Instant) -> Measurements {
        let mut playout = self.playout.clone();
        playout.advance(now);
        let mut measurements = self.records.measurements.clone();
        measurements.open = now.saturating_since(self.opened_at);
        measurements.join.playback = playout.began_after();
        measurements.stalls = playout.stalls();
        measurements.stalled = playout.stalled();
        measurements.bitrate = self.route.bitrate();
        measurements
    }

    /// Takes a DNS answer with this number of addresses; 0 for a failed query.
    pub fn handle_resolved(&mut self, now: Instant, addresses: usize) {
        if !matches!(self.naming, DnsState::Asked(_)) {
            return;
        }
        if addresses == 0 {
            self.naming = DnsState::Wanted;
            self.timers.resumes_at = now + RETRY_PAUSE;
            let url = self.config.urls[0].clone();
            self.records.fail(url, PlayFailure::Unresolved);
            self.route.end_round(self.records.has_video());
            return;
        }
        self.naming = DnsState::Known;
        self.route.set_edges(addresses);
        let after = now.saturating_since(self.opened_at);
        self.records.measurements.join.resolved.get_or_insert(after);
    }

    /// Takes the status of an answer whose headers have arrived.
    pub fn handle_head(&mut self, now: Instant, id: RequestId, status: u16) {
        let Some(request) = self.request_mut(id) else { return };
        if matches!(status, 200 | 206) {
            request.has_head = true;
            request.deadline = now + request.patience;
        } else {
            self.aborts.push_back(id);
            self.fail(now, id, PlayFailure::Status(status));
        }
    }

    /// Takes bytes of a body.
    pub fn handle_bytes(&mut self, now: Instant, id: RequestId, bytes: &[u8]) {
        let opened_at = self.opened_at;
        let Some(request) = self.request_mut(id) else { return };
        request.deadline = now + request.patience;
        match request.kind {
            ResourceKind::Playlist => {
                let got = request.body.len() + bytes.len();
                if got > PLAYLIST_BYTES_MAX {
                    self.aborts.push_back(id);
                    self.fail(now, id, PlayFailure::Playlist(PlaylistError::TooLong { got }));
                    return;
                }
                request.body.extend_from_slice(bytes);
            }
            ResourceKind::Map => {}
            ResourceKind::Media => self.records.receive(now, opened_at, bytes.len()),
        }
    }

    /// Takes the end of a body.
    pub fn handle_end(&mut self, now: Instant, id: RequestId) {
        let taken = [&mut self.playlist, &mut self.media]
            .into_iter()
            .find_map(|slot| slot.take_if(|request| request.id == id));
        let Some(request) = taken else { return };
        match request.kind {
            ResourceKind::Playlist => self.end_playlist(now, request),
            ResourceKind::Map => self.map = request.resource.map(Arc::new),
            ResourceKind::Media => self.end_media(now, request),
        }
    }

    /// Takes the failure of a request: no connection, or a broken connection.
    pub fn handle_failure(&mut self, now: Instant, id: RequestId, reason: String) {
        self.fail(now, id, PlayFailure::Broken(reason));
    }

    /// Runs the deadlines that are due.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.playout.advance(now);
        if matches!(self.naming, DnsState::Asked(due) if due <= now) {
            self.handle_resolved(now, 0);
        }
        for late in [&self.playlist, &self.media]
            .map(|slot| slot.as_ref().filter(|request| request.deadline <= now).map(|request| request.id))
        {
            // The failure of the playlist request may already have aborted the media request.
            if let Some(id) = late.filter(|id| self.request_mut(*id).is_some()) {
                self.aborts.push_back(id);
                self.fail(now, id, PlayFailure::TimedOut);
            }
        }
    }

    /// Returns the next action; `None` if there is none.
    pub fn poll(&mut self, now: Instant) -> Option<Action> {
        self.timers.polled_at = now;
        if let Some(id) = self.aborts.pop_front() {
            return Some(Action::Abort(id));
        }
        if self.is_over() || now < self.timers.resumes_at {
            return None;
        }
        match self.naming {
            DnsState::Wanted => {
                self.naming = DnsState::Asked(now + self.config.first_patience);
                return Some(Action::Resolve);
            }
            DnsState::Asked(_) => return None,
            DnsState::Known => {}
        }
        if self.media.is_none()
            && let Some(get) = self.next_media(now)
        {
            return Some(Action::Get(get));
        }
        let is_due = self.timers.reload_at.is_some_and(|at| at <= now);
        (is_due && self.playlist.is_none()).then(|| Action::Get(self.ask_playlist(now)))
    }

    /// When [`Player::handle_timeout`] or [`Player::poll`] is due.
    pub fn poll_timeout(&self) -> Instant {
        if self.is_over() {
            return Instant::MAX;
        }
        let requests = [&self.playlist, &self.media].into_iter().flatten().map(|request| request.deadline);
        let naming = match self.naming {
            DnsState::Asked(due) => Some(due),
            DnsState::Known | DnsState::Wanted => None,
        };
        let reload = self.timers.reload_at.filter(|_| self.playlist.is_none());
        let is_fixed = self.config.kind == PlayerKind::Fixed;
        let media = if is_fixed {
            self.timers.segment_at
        } else {
            // Playback frees room in the buffer, so this is when the next media fit.
            let level = self.playout.level();
            self.playout.updated_at() + (level - BUFFER_MAX.min(level))
        };
        let media = Some(media).filter(|_| self.media.is_none());
        let starts = [reload, media, self.timers.ends_at, Some(self.timers.resumes_at)];
        let starts = starts.into_iter().flatten().map(|at| at.max(self.timers.resumes_at));
        let starts = starts.filter(|at| *at > self.timers.polled_at);
        requests.chain(naming).chain(starts).min().unwrap_or(Instant::MAX)
    }

    fn request_mut(&mut self, id: RequestId) -> Option<&mut Request> {
        [&mut self.playlist, &mut self.media].into_iter().flatten().find(|request| request.id == id)
    }

    /// Time without a byte after which a request is late.
    fn patience(&self) -> Duration {
        let Some(listing) = &self.listing else { return self.config.first_patience };
        let target = listing.target().as_ps();
        // The answer to a segment's request may be delayed by one target.
        let times = if listing.is_low_latency() {
            target.saturating_mul(PATIENCE_PARTS)
        } else {
            target.saturating_add(target / 2)
        };
        Duration::from_ps(times).max(PATIENCE_MIN)
    }

    /// Creates a request to the current edge.
    fn ask(
        &mut self,
        now: Instant,
        (kind, url): (ResourceKind, String),
        resource: Option<Resource>,
    ) -> (Get, Request) {
        let id = RequestId(self.next_id);
        self.next_id += 1;
        let range: Option<ByteRange> = resource.as_ref().and_then(|resource| resource.range);
        let (edge, patience) = (self.route.edge, self.patience());
        let get = Get { id, edge, url: url.clone(), range, kind };
        let (deadline, body) = (now + patience, Vec::new());
        let has_head = false;
        (get, Request { id, kind, edge, url, resource, sent_at: now, patience, deadline, has_head, body })
    }

    fn ask_playlist(&mut self, now: Instant) -> Get {
        let current = self.listing.as_ref().filter(|_| self.is_listing_current);
        let directives = current.and_then(Listing::blocking).unwrap_or_default();
        let mut url = self.route.playlist_url(&self.config);
        if directives != DeliveryDirectives::default() {
            url.push(if url.contains('?') { '&' } else { '?' });
            url.push_str(&directives.query());
        }
        let (get, request) = self.ask(now, (ResourceKind::Playlist, url), None);
        self.timers.reload_at = None;
        self.playlist = Some(request);
        get
    }

    fn end_playlist(&mut self, now: Instant, request: Request) {
        let is_multivariant = |bytes: &[u8]| {
            let mut lines = bytes.split(|byte| *byte == b'\n');
            lines.any(|line| line.starts_with(b"#EXT-X-STREAM-INF"))
        };
        if is_multivariant(&request.body) && !self.route.has_variants() {
            match MultivariantPlaylist::read(&request.body) {
                Ok(playlist) => {
                    self.route.set_variants(playlist.variants);
                    self.timers.reload_at = Some(now);
                }
                Err(error) => self.fail_request(now, request, PlayFailure::Playlist(error)),
            }
            return;
        }
        match MediaPlaylist::read(&request.body) {
            Ok(playlist) => self.list(now, Listing::new(playlist, self.config.kind), request.sent_at),
            Err(error) => self.fail_request(now, request, PlayFailure::Playlist(error)),
        }
    }

    /// Takes a media playlist that was requested at `asked_at`.
    fn list(&mut self, now: Instant, listing: Listing, asked_at: Instant) {
        let has_news = self.listing.as_ref().is_none_or(|former| former.end() != listing.end());
        let target = listing.target();
        let half = Duration::from_ps(target.as_ps() / 2).max(PAUSE_MIN);
        let next = match (listing.blocking().is_some(), has_news) {
            (true, true) => now,
            (false, true) => now.max(asked_at + target.max(PAUSE_MIN)),
            (_, false) => now + half,
        };
        let is_fixed = self.config.kind == PlayerKind::Fixed;
        self.timers.reload_from = next;
        self.timers.reload_at = (!is_fixed && !listing.is_ended()).then_some(next);
        if self.positions.is_none() {
            let (load, play_from) =
                if is_fixed { (listing.newest(), listing.newest()) } else { listing.start() };
            self.positions = Some(Positions { load, play_from, made_from: listing.end() });
        }
        self.listing = Some(listing);
        self.is_listing_current = true;
        self.settle(now);
        self.abort_unlisted();
    }

    /// Counts the failure of request `id`, and selects the next edge, item or variant.
    fn fail(&mut self, now: Instant, id: RequestId, failure: PlayFailure) {
        let taken = [&mut self.playlist, &mut self.media]
            .into_iter()
            .find_map(|slot| slot.take_if(|request| request.id == id));
        if let Some(request) = taken {
            self.fail_request(now, request, failure);
        }
    }

    fn fail_request(&mut self, now: Instant, request: Request, failure: PlayFailure) {
        let is_refusal = matches!(failure, PlayFailure::Status(_));
        let is_missing = request.kind != ResourceKind::Playlist && failure == PlayFailure::Status(404);
        self.records.fail(request.url, failure);
        self.timers.reload_at = Some(now);
        if request.edge != self.route.edge {
            // The player has already left the edge that failed.
            return;
        }
        if self.route.next_edge() {
            self.records.measurements.counts.edge_changes += 1;
            self.leave_edge();
        } else if is_missing {
            self.skip_item();
            self.route.end_round(self.records.has_video());
            self.timers.resumes_at = now + PAUSE_MIN * self.route.rounds().min(MISSING_PAUSES_MAX);
        } else if is_refusal && self.route.next_variant() {
            self.records.measurements.counts.downgrades += 1;
            self.map = None;
            self.loaded = None;
            self.leave_edge();
        } else {
            self.route.end_round(self.records.has_video());
            self.timers.resumes_at = now.max(request.sent_at + RETRY_PAUSE);
            if self.config.resolves {
                self.naming = DnsState::Wanted;
            }
            self.leave_edge();
        }
    }

    /// Aborts the requests whose response headers have not arrived, because the player is leaving
    /// the edge.
    fn leave_edge(&mut self) {
        self.is_listing_current = false;
        for slot in [&mut self.playlist, &mut self.media] {
            let silent = slot.take_if(|request| !request.has_head);
            self.aborts.extend(silent.map(|request| request.id));
        }
    }
}
