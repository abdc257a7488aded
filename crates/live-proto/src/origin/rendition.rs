//! One rendition of a source: its window of segments, and the requests for them.
//!
//! Source: draft-pantos-hls-rfc8216bis, sections 6.2.5.1 (delta updates), 6.2.5.2 (blocking reload)
//! and 6.2.6 (hints). Read [`Rendition`].

use super::names::Name;
use super::playlist::{RenditionState, playlist, target_duration};
use super::window::{NewSegment, Predecessor, WINDOW_SEGMENTS_MAX, Window};
use anabranch_media::cmaf::CodecInfo;
use anabranch_media::hls::DeliveryDirectives;
use anabranch_units::{BitRate, ByteCount, Duration, Instant};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::Arc;

/// Maximum number of requests that may wait at the same time, whatever the setting.
pub const REQUESTS_MAX: usize = 65_536;
/// Number of target durations after which a blocked request is refused (section 6.2.5.2).
const BLOCKED_TARGETS: u64 = 3;
/// Maximum number of segments by which a request may be ahead of the last complete segment (section
/// 6.2.5.2).
const SEGMENTS_AHEAD_MAX: u64 = 2;
/// Number of target durations for which caches may keep media and blocking playlists.
const MEDIA_FRESH_TARGETS: u64 = 6;

/// Settings of a rendition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RenditionConfig {
    /// Target duration of segments.
    pub segment_target: Duration,
    /// Number of complete segments that a playlist lists, at least 3. The same number of older
    /// segments can still be fetched.
    pub listed_segments: usize,
    /// Maximum size of the live window in bytes. The oldest segments leave the window first.
    pub window_bytes_max: ByteCount,
    /// Maximum number of requests that wait at the same time.
    pub requests_max: usize,
    /// Whether bytes of a part are sent before the part is complete. The standard forbids this
    /// towards players (section 6.2.6), because players would measure the encoder's rate. Between
    /// relays, early sending saves the transmission time of one part at each relay.
    pub sends_unfinished_parts: bool,
}

impl Default for RenditionConfig {
    fn default() -> Self {
        Self {
            segment_target: Duration::from_secs(2),
            listed_segments: 7,
            window_bytes_max: ByteCount::mib(64),
            requests_max: 4_096,
            sends_unfinished_parts: false,
        }
    }
}

/// Reason why a setting of a rendition is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RenditionError {
    /// The number of listed segments is not from 3 to [`WINDOW_SEGMENTS_MAX`].
    ListedSegments(usize),
    /// The window is smaller than 1 MiB.
    WindowBytes(ByteCount),
    /// The number of requests is not from 1 to [`REQUESTS_MAX`].
    Requests(usize),
}

impl fmt::Display for RenditionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ListedSegments(got) => {
                write!(f, "playlist of {got} segments: must be from 3 to {WINDOW_SEGMENTS_MAX} segments")
            }
            Self::WindowBytes(got) => write!(f, "window of {got}: must be at least 1 MiB"),
            Self::Requests(got) => write!(f, "{got} waiting requests: must be from 1 to {REQUESTS_MAX}"),
        }
    }
}

impl std::error::Error for RenditionError {}

/// Number of a request, chosen by the driver. The number may be reused after [`Answer::End`] or
/// [`Answer::Aborted`].
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// Status of an answer.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Status {
    /// The resource follows.
    Ok,
    /// The directives ask for media too far ahead.
    BadRequest,
    /// The resource does not exist, or has left the window.
    NotFound,
    /// The resource was not complete in time, the stream has no media yet, or too many requests
    /// wait.
    Unavailable,
}

impl Status {
    /// Status code of HTTP.
    pub const fn code(self) -> u16 {
        match self {
            Self::Ok => 200,
            Self::BadRequest => 400,
            Self::NotFound => 404,
            Self::Unavailable => 503,
        }
    }
}

/// How long caches may keep an answer.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Freshness {
    /// Caches may not keep the answer (`no-store`).
    NoStore,
    /// Longest time in a cache, counted from when the body was complete (`max-age`).
    MaxAge(Duration),
}

/// Head of an answer.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// Status.
    pub status: Status,
    /// How long caches may keep the answer.
    pub freshness: Freshness,
    /// Time since the body was complete (`Age`). Zero for playlists, which are generated on
    /// request.
    pub age: Duration,
    /// Length of the body. `None` for a body that is not yet complete.
    pub length: Option<ByteCount>,
    /// Value of `Content-Type`.
    pub content_type: &'static str,
}

/// Piece of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The head: the first item of each answer.
    Head(Head),
    /// Bytes of the body.
    Data(Arc<[u8]>),
    /// The body is complete.
    End,
    /// The body cannot be completed: the connection must be closed.
    Aborted,
}

/// A request that waits.
#[derive(Debug)]
struct WaitingRequest {
    name: Name,
    directives: DeliveryDirectives,
    /// Time at which the request is refused. `None` once the response headers have been sent.
    deadline: Option<Instant>,
    /// Number of whole parts sent, and of pieces sent of the part after them.
    parts_sent: usize,
    pieces_sent: usize,
}

/// The playlist as text, whole and as a delta update.
#[derive(Clone, Debug)]
struct PlaylistText {
    /// Revision of the segment window that the text shows.
    revision: u64,
    whole: Arc<[u8]>,
    /// The delta update. `None` if no segment is old enough to be skipped.
    delta: Option<Arc<[u8]>>,
}

/// One rendition of a source.
///
/// Memory: at most [`RenditionConfig::window_bytes_max`] of media and
/// [`RenditionConfig::requests_max`] waiting requests. Answers share the window's bytes.
#[derive(Debug)]
pub struct Rendition {
    config: RenditionConfig,
    window: Window,
    shown: RenditionState,
    waiting: BTreeMap<RequestId, WaitingRequest>,
    answers: VecDeque<(RequestId, Answer)>,
    /// Text of the current playlist. `None` after a change outside the window.
    written: Option<PlaylistText>,
    /// Highest value of [`Window::newest_peak`] so far.
    peak_rate: Option<BitRate>,
}

impl Rendition {
    /// Creates a rendition without media.
    ///
    /// Errors: [`RenditionError`] for a setting out of its range.
    pub fn new(config: RenditionConfig) -> Result<Self, RenditionError> {
        if !(3..=WINDOW_SEGMENTS_MAX).contains(&config.listed_segments) {
            return Err(RenditionError::ListedSegments(config.listed_segments));
        }
        if config.window_bytes_max < ByteCount::mib(1) {
            return Err(RenditionError::WindowBytes(config.window_bytes_max));
        }
        if !(1..=REQUESTS_MAX).contains(&config.requests_max) {
            return Err(RenditionError::Requests(config.requests_max));
        }
        let window = Window::new(config.listed_segments, config.window_bytes_max);
        let shown = RenditionState {
            segment_target: config.segment_target,
            part_target: None,
            hint: None,
            is_ended: false,
        };
        Ok(Self {
            config,
            window,
            shown,
            waiting: BTreeMap::new(),
            answers: VecDeque::new(),
            written: None,
            peak_rate: None,
        })
    }

    /// Takes a request for a resource. Directives apply only to the playlist.
    ///
    /// A playlist without directives is answered at once. While the stream is not offered with low
    /// latency, all playlists are.
    pub fn handle_request(
        &mut self,
        now: Instant,
        id: RequestId,
        name: Name,
        directives: DeliveryDirectives,
    ) {
        let is_full = self.waiting.len() >= self.config.requests_max;
        let deadline = Some(now + self.times_target(BLOCKED_TARGETS));
        let waiting = WaitingRequest { name, directives, deadline, parts_sent: 0, pieces_sent: 0 };
        if let Some(waiting) = self.advance(now, id, waiting) {
            if is_full {
                self.refuse(id, Status::Unavailable);
            } else {
                self.waiting.insert(id, waiting);
            }
        }
    }

    /// Drops a request whose client has disconnected.
    pub fn handle_cancel(&mut self, id: RequestId) {
        self.waiting.remove(&id);
        self.answers.retain(|(of, _)| *of != id);
    }

    /// Refuses requests that have waited too long.
    pub fn handle_timeout(&mut self, now: Instant) {
        let is_late = |waiting: &WaitingRequest| waiting.deadline.is_some_and(|deadline| deadline <= now);
        let late: Vec<RequestId> =
            self.waiting.iter().filter(|(_, waiting)| is_late(waiting)).map(|(id, _)| *id).collect();
        for id in late {
            self.waiting.remove(&id);
            self.refuse(id, Status::Unavailable);
        }
    }

    /// Returns the next piece of an answer.
    pub fn poll_answer(&mut self) -> Option<(RequestId, Answer)> {
        self.answers.pop_front()
    }

    /// When [`Self::handle_timeout`] must be called. `None` without a waiting request.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.waiting.values().filter_map(|waiting| waiting.deadline).min()
    }

    /// Number of requests that wait.
    pub fn requests_waiting(&self) -> usize {
        self.waiting.len()
    }
    /// Bytes of media in the window.
    pub fn window_bytes(&self) -> ByteCount {
        self.window.bytes()
    }
    /// Whether playlists list parts and offer blocking reload.
    pub fn is_low_latency(&self) -> bool {
        self.shown.part_target.is_some()
    }
    /// Peak segment bit rate so far (RFC 8216, section 4.1), for the multivariant playlist. `None`
    /// until complete segments last half the target duration together.
    pub fn peak_rate(&self) -> Option<BitRate> {
        self.peak_rate
    }

    /// Codecs and picture size of the newest segments, for the multivariant playlist. `None` before
    /// the first initialisation section.
    pub fn codecs(&self) -> Option<&CodecInfo> {
        self.window.codecs()
    }

    /// Numbers from which another source can continue. `None` before the first segment.
    pub fn predecessor(&self) -> Option<Predecessor> {
        self.window.predecessor()
    }

    pub(super) fn continue_after(&mut self, predecessor: Predecessor) {
        self.window.continue_after(predecessor);
    }

    pub(super) fn window(&self) -> &Window {
        &self.window
    }

    /// Offers low latency with this part target, or withdraws the offer on `None`.
    pub(super) fn offer_parts(&mut self, part_target: Option<Duration>) {
        if self.shown.part_target != part_target {
            self.shown.part_target = part_target;
            self.written = None;
        }
    }

    /// Sets the hint at the next part.
    pub(super) fn hint(&mut self, hint: Option<Name>) {
        if self.shown.hint != hint {
            self.shown.hint = hint;
            self.written = None;
        }
    }

    pub(super) fn begin_init(&mut self, bytes: Vec<u8>) {
        self.window.begin_init(bytes);
    }

    pub(super) fn begin_segment(&mut self, now: Instant, new: NewSegment) -> bool {
        let has_begun = self.window.begin_segment(now, new);
        self.advance_all(now);
        has_begun
    }

    pub(super) fn push_bytes(&mut self, now: Instant, bytes: Vec<u8>) {
        self.window.push_bytes(now, bytes.into());
        if self.config.sends_unfinished_parts {
            self.advance_all(now);
        }
    }

    pub(super) fn end_part(&mut self, now: Instant, duration: Duration, is_independent: bool) {
        self.window.end_part(now, duration, is_independent);
    }

    pub(super) fn end_segment(&mut self, now: Instant) {
        self.window.end_segment();
        self.peak_rate = self.peak_rate.max(self.window.newest_peak(self.times_target(1)));
        self.advance_all(now);
    }

    /// Ends the stream: no segment follows.
    pub(super) fn end(&mut self, now: Instant) {
        self.window.end_segment();
        self.shown.is_ended = true;
        self.written = None;
        self.advance_all(now);
    }

    /// Continues all waiting requests after the window has changed.
    pub(super) fn advance_all(&mut self, now: Instant) {
        let ids: Vec<RequestId> = self.waiting.keys().copied().collect();
        for id in ids {
            if let Some(waiting) = self.waiting.remove(&id)
                && let Some(waiting) = self.advance(now, id, waiting)
            {
                self.waiting.insert(id, waiting);
            }
        }
    }

    /// Answers a request as far as possible. Returns the request if it must keep waiting.
    fn advance(&mut self, now: Instant, id: RequestId, waiting: WaitingRequest) -> Option<WaitingRequest> {
        match waiting.name {
            Name::Playlist => self.advance_playlist(id, waiting),
            Name::Init(_) => {
                let Some(init) = self.window.init(&waiting.name) else {
                    return self.refuse(id, Status::NotFound);
                };
                let bytes = Arc::clone(&init.bytes);
                let length = Some(ByteCount::new(bytes.len() as u64));
                self.answer_head(id, Duration::ZERO, length);
                self.answers.push_back((id, Answer::Data(bytes)));
                self.answers.push_back((id, Answer::End));
                None
            }
            Name::Segment(_) | Name::Part(..) => self.advance_media(now, id, waiting),
        }
    }

    fn advance_playlist(&mut self, id: RequestId, waiting: WaitingRequest) -> Option<WaitingRequest> {
        let DeliveryDirectives { msn, part, skip } = waiting.directives;
        let blocks = self.is_low_latency() && !self.shown.is_ended;
        if let Some(msn) = msn.filter(|_| blocks) {
            if self.is_too_far(msn, part) {
                return self.refuse(id, Status::BadRequest);
            }
            if !self.has(msn, part) {
                return Some(waiting);
            }
        }
        let Some(PlaylistText { whole, delta, .. }) = self.written() else {
            return self.refuse(id, Status::Unavailable);
        };
        let text = delta.filter(|_| skip.is_some()).unwrap_or(whole);
        let target = self.times_target(1);
        let fresh = if msn.is_some() && blocks {
            self.times_target(MEDIA_FRESH_TARGETS)
        } else {
            Duration::from_ps(target.as_ps() / 2)
        };
        let head = Head {
            status: Status::Ok,
            freshness: Freshness::MaxAge(fresh),
            age: Duration::ZERO,
            length: Some(ByteCount::new(text.len() as u64)),
            content_type: "application/vnd.apple.mpegurl",
        };
        self.answers.extend([(id, Answer::Head(head)), (id, Answer::Data(text)), (id, Answer::End)]);
        None
    }

    /// The current playlist. `None` without media.
    fn written(&mut self) -> Option<PlaylistText> {
        let revision = self.window.revision();
        if self.written.as_ref().is_none_or(|written| written.revision != revision) {
            let playlist = playlist(&self.window, &self.shown)?;
            let delta = playlist.delta().map(|delta| delta.write().into_bytes().into());
            let whole = playlist.write().into_bytes().into();
            self.written = Some(PlaylistText { revision, whole, delta });
        }
        self.written.clone()
    }

    /// Whether a request asks for media farther ahead than the standard allows (section 6.2.5.2).
    fn is_too_far(&self, msn: u64, part: Option<u64>) -> bool {
        let Some(newest) = self.window.newest() else { return false };
        let last = self.window.newest_whole().unwrap_or_else(|| newest.saturating_sub(1));
        if msn > last.saturating_add(SEGMENTS_AHEAD_MAX) {
            return true;
        }
        let (Some(part), Some(target)) = (part, self.shown.part_target) else { return false };
        let limit = (Duration::from_secs(3).as_ps().div_ceil(target.as_ps().max(1))).max(3);
        let has = self.window.segment(msn).map_or(0, |segment| segment.whole_parts() as u64);
        msn > last && part >= has.saturating_add(limit)
    }

    /// Whether the playlist has this segment or part, or a later segment or part (section 6.2.5.2).
    fn has(&self, msn: u64, part: Option<u64>) -> bool {
        let Some(newest) = self.window.newest() else { return true };
        let Some(part) = part else { return self.window.newest_whole() >= Some(msn) };
        if msn > newest {
            return false;
        }
        let Some(segment) = self.window.segment(msn) else { return true };
        if (segment.whole_parts() as u64) > part {
            return true;
        }
        // A part number beyond the last part of its segment means the first part of the next
        // segment.
        segment.is_whole
            && self.window.segment(msn + 1).is_some_and(|next| next.whole_parts() > 0 || next.is_whole)
    }

    /// Sends the available bytes of a segment or part.
    fn advance_media(
        &mut self,
        now: Instant,
        id: RequestId,
        mut waiting: WaitingRequest,
    ) -> Option<WaitingRequest> {
        let (number, only) = match waiting.name {
            Name::Part(number, part) => (number, Some(usize::try_from(part).unwrap_or(usize::MAX))),
            Name::Segment(number) => (number, None),
            Name::Playlist | Name::Init(_) => return None,
        };
        let has_head = waiting.deadline.is_none();
        let is_expected = self.shown.hint == Some(waiting.name);
        let Some(segment) = self.window.segment(number).filter(|segment| !segment.is_gap) else {
            let is_ahead = self.window.newest().is_some_and(|newest| number > newest);
            return if is_ahead && is_expected { Some(waiting) } else { self.fail(id, has_head) };
        };
        let first = only.unwrap_or(0);
        let end = only.map_or(segment.parts.len(), |part| part.saturating_add(1));
        let is_complete = match only {
            Some(part) => segment.parts.get(part).is_some_and(|part| part.duration.is_some()),
            None => segment.is_whole,
        };
        if !is_complete && segment.is_whole {
            return self.fail(id, has_head);
        }
        let mut pieces = Vec::new();
        while let Some(part) = segment.parts.get(first + waiting.parts_sent) {
            let is_whole = part.duration.is_some();
            if first + waiting.parts_sent >= end || !is_whole && !self.config.sends_unfinished_parts {
                break;
            }
            pieces.extend(part.pieces.iter().skip(waiting.pieces_sent).cloned());
            waiting.pieces_sent = part.pieces.len();
            if !is_whole {
                break;
            }
            waiting.parts_sent += 1;
            waiting.pieces_sent = 0;
        }
        let is_begun = first < segment.parts.len() || is_expected || only.is_none();
        let (length, age) = match only {
            Some(part) => segment.parts.get(part).map_or((0, now), |part| (part.size_bytes, part.changed_at)),
            None => (segment.size_bytes(), segment.changed_at()),
        };
        if !is_complete && !is_begun {
            return self.fail(id, has_head);
        }
        if !has_head && (is_complete || !pieces.is_empty()) {
            let length = is_complete.then(|| ByteCount::new(length));
            let age = if is_complete { now.saturating_since(age) } else { Duration::ZERO };
            self.answer_head(id, age, length);
            waiting.deadline = None;
        }
        self.answers.extend(pieces.into_iter().map(|piece| (id, Answer::Data(piece))));
        if is_complete {
            self.answers.push_back((id, Answer::End));
            return None;
        }
        Some(waiting)
    }

    fn answer_head(&mut self, id: RequestId, age: Duration, length: Option<ByteCount>) {
        let freshness = Freshness::MaxAge(self.times_target(MEDIA_FRESH_TARGETS));
        let head = Head { status: Status::Ok, freshness, age, length, content_type: "video/mp4" };
        self.answers.push_back((id, Answer::Head(head)));
    }

    /// Ends an answer whose body cannot be completed. Returns `None`, because the request is
    /// finished.
    fn fail(&mut self, id: RequestId, has_head: bool) -> Option<WaitingRequest> {
        if has_head {
            self.answers.push_back((id, Answer::Aborted));
            return None;
        }
        self.refuse(id, Status::NotFound)
    }

    fn refuse(&mut self, id: RequestId, status: Status) -> Option<WaitingRequest> {
        let freshness = match status {
            Status::NotFound => Freshness::MaxAge(self.times_target(1)),
            _ => Freshness::NoStore,
        };
        let length = Some(ByteCount::ZERO);
        let head = Head { status, freshness, age: Duration::ZERO, length, content_type: "text/plain" };
        self.answers.extend([(id, Answer::Head(head)), (id, Answer::End)]);
        None
    }

    fn times_target(&self, count: u64) -> Duration {
        let target = target_duration(&self.window, self.config.segment_target);
        Duration::from_ps(target.as_ps().saturating_mul(count))
    }
}
