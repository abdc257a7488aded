//! The importer: converts the playlist and media of another origin into a rendition.
//!
//! Segments and parts keep the origin's boundaries. They are fetched one after another, and their
//! bytes are passed on as they arrive. Segments keep the origin's numbers until the origin
//! restarts. The origin counts as restarted if its numbers fall, or if a listed segment has another
//! file name than before. Segments after a restart are numbered after the last segment, with a
//! discontinuity. A segment without a date is dated from the segments before it in the playlist.
//!
//! Source: draft-pantos-hls-rfc8216bis, sections 6.3.4 (reloading) and 6.3.7 (blocking reload,
//! delta updates). Leaves out: preloading of hinted parts; requests for delta updates, although
//! received delta updates are resolved. Read [`Importer`].

use super::names::Name;
use super::rendition::{Rendition, RenditionConfig, RenditionError};
use super::window::{NewSegment, Predecessor};
use anabranch_media::cmaf::INIT_BYTES_MAX;
use anabranch_media::hls::{
    DateTime, DeliveryDirectives, MediaPlaylist, PLAYLIST_BYTES_MAX, Part, PlaylistError, Resource,
    SegmentHead,
};
use anabranch_units::{Duration, Instant, RandomStream, Seed};
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

/// Maximum number of steps that wait for the origin.
const STEPS_MAX: usize = 1_024;
/// Number of segments before the end of the first playlist at which the import begins.
const BEGIN_BEFORE_END: usize = 3;
/// Maximum number of segments by which a stale copy of the playlist is behind the newest playlist.
const STALE_SEGMENTS_MAX: u64 = 3;
/// Number of target durations for which playlists may be behind, before the origin counts as
/// restarted.
const STALE_TARGETS: u64 = 3;
/// Longest target duration of segments, and longest duration of a segment or part.
const TARGET_MAX: Duration = Duration::from_secs(60);
/// First and longest delay before a failed playlist request is repeated. The actual delay is
/// uniformly random between half of the delay and all of it.
const RETRY_MIN: Duration = Duration::from_ms(500);
const RETRY_MAX: Duration = Duration::from_secs(16);
/// Shortest pause before a blocking reload, if the last answer had nothing new.
const PAUSE_MIN: Duration = Duration::from_ms(20);
/// Number of consecutive segments first listed as complete, after which the origin counts as
/// bursty.
const BURSTS_MAX: u32 = 3;

/// Settings of an importer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImportConfig {
    /// Settings of the rendition.
    pub rendition: RenditionConfig,
    /// Last numbers of the previous source. Used if the origin's numbers are not above them.
    pub predecessor: Option<Predecessor>,
    /// Seed of the jitter of retries.
    pub seed: u64,
}

/// A fetch, by its number.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FetchId(pub u64);

/// Resource that a fetch asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FetchKind {
    /// The origin's playlist, with these directives.
    Playlist(DeliveryDirectives),
    /// A resource that the playlist names.
    Resource(Resource),
}

/// A request to the origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fetch {
    /// Number of the fetch.
    pub id: FetchId,
    /// Resource that it asks for.
    pub kind: FetchKind,
}

/// Reason why an answer of the origin is refused. The import continues with the next request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ImportError {
    /// The playlist cannot be read.
    Playlist(PlaylistError),
    /// A setting of the rendition is out of range.
    Rendition(RenditionError),
    /// A target, segment or part is longer than a minute, or a part target exceeds the segment
    /// target.
    TooLong {
        /// The duration that is too long.
        got: Duration,
    },
    /// An initialisation section larger than [`INIT_BYTES_MAX`].
    InitTooLarge {
        /// Bytes received so far.
        got: usize,
    },
    /// A segment larger than the window.
    SegmentTooLarge {
        /// Bytes received so far.
        got: u64,
    },
}

impl fmt::Display for ImportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Playlist(error) => error.fmt(f),
            Self::Rendition(error) => error.fmt(f),
            Self::TooLong { got } => {
                write!(
                    f,
                    "playlist with a duration of {got}: must be at most {TARGET_MAX}; use shorter segments"
                )
            }
            Self::InitTooLarge { got } => {
                write!(f, "initialisation section of {got} bytes: must be at most {INIT_BYTES_MAX} bytes")
            }
            Self::SegmentTooLarge { got } => {
                write!(
                    f,
                    "segment of {got} bytes: must fit the window; lower the bitrate or enlarge the window"
                )
            }
        }
    }
}

impl std::error::Error for ImportError {}

/// Unit of work on the imported stream, in stream order.
#[derive(Debug)]
enum Step {
    Init(Arc<Resource>),
    Begin { number: u64, date: Option<DateTime>, is_discontinuous: bool, has_parts: bool },
    Media { resource: Resource, duration: Duration, is_independent: bool },
    End,
}

/// The media fetch in progress.
#[derive(Debug)]
enum Job {
    Init { bytes: Vec<u8> },
    Media { duration: Duration, is_independent: bool },
}

/// Position in the origin's numbering.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
struct Position {
    /// Number of the first segment that is not completely planned.
    number: u64,
    /// Number of that segment's parts that are planned.
    parts: usize,
    /// Difference from the origin's numbers to the rendition's, modulo 2^64.
    offset: u64,
}

/// Importer of one rendition.
///
/// Memory: the rendition's window, two playlists, one initialisation section and 1,024 steps.
#[derive(Debug)]
pub struct Importer {
    rendition: Rendition,
    next_id: u64,
    /// The playlist fetch in progress, and its bytes so far.
    playlist: Option<(FetchId, Vec<u8>)>,
    job: Option<(FetchId, Job)>,
    steps: VecDeque<Step>,
    fetches: VecDeque<Fetch>,
    position: Option<Position>,
    predecessor: Option<Predecessor>,
    seen: OriginState,
    /// Initialisation section of the last planned segment.
    map: Option<Arc<Resource>>,
    /// Whether the rest of the current segment is skipped, because a piece of the segment was lost.
    is_segment_lost: bool,
    is_discontinuous: bool,
    /// Time and directives of the next playlist request.
    next_poll: Option<(Instant, DeliveryDirectives)>,
    retry: Retry,
    is_ended: bool,
}

/// State of the origin, derived from its playlists.
#[derive(Debug, Default)]
struct OriginState {
    /// The newest accepted playlist.
    last: Option<MediaPlaylist>,
    /// When a playlist was first behind the position, or had other file names.
    behind_since: Option<Instant>,
    /// Number of consecutive segments first listed as complete, not counting the first playlist.
    bursts: u32,
}

/// Back-off of the playlist's retries.
#[derive(Debug)]
struct Retry {
    delay: Duration,
    jitter: RandomStream,
}

impl Importer {
    /// Creates an importer that asks for the playlist at once.
    ///
    /// Errors: [`ImportError::Rendition`] for a setting out of its range.
    pub fn new(now: Instant, config: ImportConfig) -> Result<Self, ImportError> {
        let mut rendition = Rendition::new(config.rendition).map_err(ImportError::Rendition)?;
        if let Some(predecessor) = config.predecessor {
            rendition.continue_after(predecessor);
        }
        Ok(Self {
            rendition,
            next_id: 0,
            playlist: None,
            job: None,
            steps: VecDeque::new(),
            fetches: VecDeque::new(),
            position: None,
            predecessor: config.predecessor,
            seen: OriginState::default(),
            map: None,
            is_segment_lost: false,
            is_discontinuous: config.predecessor.is_some(),
            next_poll: Some((now, DeliveryDirectives::default())),
            retry: Retry { delay: RETRY_MIN, jitter: Seed::new(config.seed).stream("live-import-retry", 0) },
            is_ended: false,
        })
    }

    /// The rendition, for requests and answers.
    pub fn rendition(&mut self) -> &mut Rendition {
        &mut self.rendition
    }

    /// Whether the origin has ended its stream and the import is complete.
    pub fn is_ended(&self) -> bool {
        self.is_ended && self.job.is_none() && self.steps.is_empty()
    }

    /// Returns the next request to the origin. At most two are in progress: the playlist's and one
    /// for media.
    pub fn poll_fetch(&mut self) -> Option<Fetch> {
        self.fetches.pop_front()
    }

    /// When [`Self::handle_timeout`] must be called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let poll = self.next_poll.map(|(at, _)| at);
        poll.into_iter().chain(self.rendition.poll_timeout()).min()
    }

    /// Asks for the playlist when that is due, and refuses requests that have waited too long.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.rendition.handle_timeout(now);
        if let Some((_, directives)) = self.next_poll.take_if(|(at, _)| *at <= now) {
            let id = self.fetch(FetchKind::Playlist(directives));
            self.playlist = Some((id, Vec::new()));
        }
    }

    /// Takes bytes of an answer with a success status. Bytes of unknown fetches are ignored.
    ///
    /// Errors: [`ImportError`]; the driver then closes the answer, and its fetch counts as failed.
    pub fn handle_bytes(&mut self, now: Instant, id: FetchId, bytes: &[u8]) -> Result<(), ImportError> {
        if let Some((_, playlist)) = self.playlist.as_mut().filter(|(of, _)| *of == id) {
            playlist.extend_from_slice(bytes);
            let got = playlist.len();
            if got > PLAYLIST_BYTES_MAX {
                self.handle_failure(now, id);
                return Err(ImportError::Playlist(PlaylistError::TooLong { got }));
            }
            return Ok(());
        }
        let Some((_, job)) = self.job.as_mut().filter(|(of, _)| *of == id) else { return Ok(()) };
        match job {
            Job::Init { bytes: init } => {
                init.extend_from_slice(bytes);
                let got = init.len();
                if got > INIT_BYTES_MAX {
                    self.handle_failure(now, id);
                    return Err(ImportError::InitTooLarge { got });
                }
            }
            Job::Media { .. } => {
                self.rendition.push_bytes(now, bytes.to_vec());
                if self.rendition.window().is_overfull() {
                    let got = self.rendition.window().bytes().as_u64();
                    self.handle_failure(now, id);
                    return Err(ImportError::SegmentTooLarge { got });
                }
            }
        }
        Ok(())
    }

    /// Takes the end of an answer.
    ///
    /// Errors: [`ImportError::Playlist`] and [`ImportError::TooLong`] for a playlist that cannot be
    /// used. The importer then requests the playlist again.
    pub fn handle_end(&mut self, now: Instant, id: FetchId) -> Result<(), ImportError> {
        if let Some((_, bytes)) = self.playlist.take_if(|(of, _)| *of == id) {
            let read = MediaPlaylist::read(&bytes).map_err(ImportError::Playlist);
            let whole = read.and_then(|playlist| self.resolve(playlist));
            match whole.and_then(|playlist| check_durations(&playlist).map(|()| playlist)) {
                Ok(playlist) => {
                    self.retry.delay = RETRY_MIN;
                    self.take_playlist(now, &playlist);
                    self.seen.last = Some(playlist);
                }
                Err(error) => {
                    self.poll_again(now);
                    return Err(error);
                }
            }
        } else if let Some((_, job)) = self.job.take_if(|(of, _)| *of == id) {
            match job {
                Job::Init { bytes } => self.rendition.begin_init(bytes),
                Job::Media { duration, is_independent } => {
                    self.rendition.end_part(now, duration, is_independent);
                    self.hint_next();
                    self.rendition.advance_all(now);
                }
            }
        }
        self.work(now);
        Ok(())
    }

    /// Takes the failure of a fetch: no connection, an error status, or an answer cut short. After
    /// a failed media fetch the rest of the segment is skipped. A failed playlist is requested
    /// again, with exponential back-off.
    pub fn handle_failure(&mut self, now: Instant, id: FetchId) {
        if self.playlist.take_if(|(of, _)| *of == id).is_some() {
            self.poll_again(now);
        } else if self.job.take_if(|(of, _)| *of == id).is_some() {
            self.is_segment_lost = true;
            self.rendition.end_segment(now);
            self.work(now);
        }
    }

    fn fetch(&mut self, kind: FetchKind) -> FetchId {
        let id = FetchId(self.next_id);
        self.next_id += 1;
        self.fetches.push_back(Fetch { id, kind });
        id
    }

    /// Expands a delta update into the whole playlist. Other playlists are returned unchanged.
    fn resolve(&self, playlist: MediaPlaylist) -> Result<MediaPlaylist, ImportError> {
        let needed = playlist.media_sequence;
        match &self.seen.last {
            _ if playlist.skipped_segments == 0 => Ok(playlist),
            Some(last) => playlist.resolve(last).map_err(ImportError::Playlist),
            None => Err(ImportError::Playlist(PlaylistError::DeltaWithoutBase { needed })),
        }
    }

    fn poll_again(&mut self, now: Instant) {
        let half = self.retry.delay.as_ps() / 2;
        let delay = Duration::from_ps(half + self.retry.jitter.below(half));
        self.next_poll = Some((now + delay, DeliveryDirectives::default()));
        self.retry.delay = (self.retry.delay + self.retry.delay).min(RETRY_MAX);
    }

    /// Plans the steps for the new segments and parts of a playlist.
    fn take_playlist(&mut self, now: Instant, playlist: &MediaPlaylist) {
        let target = playlist.target_duration;
        let has_parts = playlist.part_target.is_some() && playlist.server_control.can_block_reload;
        let Some(mut position) = self.position_in(now, playlist) else {
            self.next_poll = Some((now + target, DeliveryDirectives::default()));
            return;
        };
        let before = self.position.replace(position).filter(|before| before.offset == position.offset);
        let first = playlist.media_sequence;
        let mut dates = SegmentDates::default();
        for (index, segment) in playlist.segments.iter().enumerate() {
            let number = first.saturating_add(index as u64);
            let date = dates.date_of(&segment.head, segment.duration);
            if number < position.number {
                continue;
            }
            let taken = if number == position.number { position.parts } else { 0 };
            let media: &[Part] = if has_parts { &segment.parts } else { &[] };
            let is_in_parts = !media.is_empty();
            if taken == 0 {
                self.seen.bursts = if before.is_some() { self.seen.bursts.saturating_add(1) } else { 0 };
                self.plan_begin(position.offset.wrapping_add(number), date, &segment.head, is_in_parts);
            }
            if segment.is_gap {
            } else if is_in_parts {
                self.plan_parts(media, taken);
            } else if taken == 0 {
                let is_independent = playlist.has_independent_segments;
                let (resource, duration) = (segment.resource.clone(), segment.duration);
                self.steps.push_back(Step::Media { resource, duration, is_independent });
            }
            self.steps.push_back(Step::End);
            position = Position { number: number + 1, parts: 0, ..position };
        }
        if let Some(open) = playlist.open.as_ref().filter(|_| has_parts)
            && position.number == playlist.next_msn()
        {
            if position.parts == 0 && !open.parts.is_empty() {
                self.seen.bursts = 0;
                let date = dates.date_of(&open.head, Duration::ZERO);
                self.plan_begin(position.offset.wrapping_add(position.number), date, &open.head, true);
            }
            self.plan_parts(&open.parts, position.parts);
            position.parts = position.parts.max(open.parts.len());
        }
        if self.steps.len() > STEPS_MAX {
            // The origin lists media faster than it can be fetched: continue at the newest segment.
            self.steps.clear();
            self.is_segment_lost = true;
            self.steps.push_back(Step::End);
            position = Position { number: playlist.next_msn(), parts: 0, ..position };
        }
        self.position = Some(position);
        let offers_parts = has_parts && self.seen.bursts < BURSTS_MAX;
        self.rendition.offer_parts(playlist.part_target.filter(|_| offers_parts));
        self.is_ended = playlist.is_ended;
        self.next_poll = if playlist.is_ended {
            None
        } else if has_parts {
            let part = Some(position.parts as u64);
            // If the answer had nothing new, the origin did not block: pause before the next
            // request.
            let unblocked = playlist.part_target.filter(|_| before == Some(position));
            let pause = unblocked.map_or(Duration::ZERO, |target| target.max(PAUSE_MIN));
            let directives = DeliveryDirectives { msn: Some(position.number), part, skip: None };
            Some((now + pause, directives))
        } else {
            Some((now + Duration::from_ps(target.as_ps() / 2), DeliveryDirectives::default()))
        };
        self.work(now);
    }

    /// The position from which this playlist is imported. `None` for a stale copy.
    fn position_in(&mut self, now: Instant, playlist: &MediaPlaylist) -> Option<Position> {
        let end = playlist.next_msn();
        let begin = end - playlist.segments.len().min(BEGIN_BEFORE_END) as u64;
        let Some(position) = self.position else {
            let newest = self.predecessor.map(|predecessor| predecessor.newest);
            let offset = newest.filter(|newest| begin <= *newest).map_or(0, |newest| newest + 1 - begin);
            // If the origin's numbers are above the predecessor's, the stream continues without a
            // break.
            self.is_discontinuous &= offset != 0;
            return Some(Position { number: begin, parts: 0, offset });
        };
        let is_other = self.seen.last.as_ref().is_some_and(|last| !agree(last, playlist));
        if end >= position.number && !is_other {
            self.seen.behind_since = None;
            return Some(position);
        }
        let since = *self.seen.behind_since.get_or_insert(now);
        let patience = Duration::from_ps(playlist.target_duration.as_ps().saturating_mul(STALE_TARGETS));
        let lag = position.number.saturating_sub(end);
        if lag <= STALE_SEGMENTS_MAX && !is_other && now.saturating_since(since) < patience {
            return None;
        }
        self.seen.behind_since = None;
        self.is_discontinuous = true;
        // Steps already planned are finished before the restart.
        let next = position.offset.wrapping_add(position.number) + u64::from(position.parts > 0);
        if position.parts > 0 {
            self.steps.push_back(Step::End);
        }
        Some(Position { number: begin, parts: 0, offset: next.wrapping_sub(begin) })
    }

    /// Plans the beginning of a segment.
    fn plan_begin(&mut self, number: u64, date: Option<DateTime>, head: &SegmentHead, has_parts: bool) {
        if let Some(map) = &head.map
            && self.map.as_ref() != Some(map)
        {
            let is_same = |last: &Arc<Resource>| file_name(&last.uri) == file_name(&map.uri);
            self.is_discontinuous |= !self.map.as_ref().is_none_or(is_same);
            self.map = Some(Arc::clone(map));
            self.steps.push_back(Step::Init(Arc::clone(map)));
        }
        let is_discontinuous = std::mem::take(&mut self.is_discontinuous) || head.is_discontinuous;
        self.steps.push_back(Step::Begin { number, date, is_discontinuous, has_parts });
    }

    /// Plans the parts of a segment after the first `taken` parts.
    fn plan_parts(&mut self, parts: &[Part], taken: usize) {
        for part in parts.iter().skip(taken) {
            self.steps.push_back(Step::Media {
                resource: part.resource.clone(),
                duration: part.duration,
                is_independent: part.is_independent,
            });
        }
    }

    /// Performs steps until one needs a fetch, and begins that fetch.
    fn work(&mut self, now: Instant) {
        while self.job.is_none() {
            match self.steps.pop_front() {
                Some(Step::Init(map)) => {
                    let id = self.fetch(FetchKind::Resource((*map).clone()));
                    self.job = Some((id, Job::Init { bytes: Vec::new() }));
                }
                Some(Step::Begin { number, date, is_discontinuous, has_parts }) => {
                    let new = NewSegment { number, date, is_discontinuous, has_parts };
                    self.is_segment_lost = !self.rendition.begin_segment(now, new);
                }
                Some(Step::Media { .. }) if self.is_segment_lost => {}
                Some(Step::Media { resource, duration, is_independent }) => {
                    let id = self.fetch(FetchKind::Resource(resource));
                    self.job = Some((id, Job::Media { duration, is_independent }));
                }
                Some(Step::End) => {
                    self.is_segment_lost = false;
                    self.rendition.end_segment(now);
                }
                None => break,
            }
        }
        if self.is_ended() {
            self.rendition.end(now);
        }
    }

    /// Hints at the next part: the first of the next segment, if the current segment is complete.
    fn hint_next(&mut self) {
        let is_last = matches!(self.steps.front(), Some(Step::End));
        let hint = self.rendition.window().open().filter(|open| open.has_parts).map(|open| {
            if is_last {
                Name::Part(open.number + 1, 0)
            } else {
                Name::Part(open.number, open.parts.len() as u64)
            }
        });
        self.rendition.hint(hint);
    }
}

/// Dates of the segments of one playlist. A segment without a date gets one from the last dated
/// segment and the durations since. Dates are not continued over a discontinuity.
#[derive(Debug, Default)]
struct SegmentDates {
    /// Date of the last dated segment, and the duration from its beginning to the next segment.
    base: Option<(DateTime, Duration)>,
}

impl SegmentDates {
    /// Returns the date of the next segment, or `None` if it cannot be derived. Must be called for
    /// all segments in order.
    fn date_of(&mut self, head: &SegmentHead, duration: Duration) -> Option<DateTime> {
        let continued = self.base.filter(|_| !head.is_discontinuous);
        let begin = head.date.map(|date| (date, Duration::ZERO)).or(continued);
        self.base = begin.map(|(date, since)| (date, since + duration));
        begin.and_then(|(date, since)| DateTime::from_unix_ms(date.as_unix_ms() + since.as_us() / 1_000))
    }
}

/// File name of a URI: the last component of its path, without the query. Queries are ignored,
/// because session numbers in them change while the resource does not.
fn file_name(uri: &str) -> &str {
    let path = uri.split(['?', '#']).next().unwrap_or(uri);
    path.rsplit('/').next().unwrap_or(path)
}

/// Whether segments of equal number have equal file names in both playlists. Gaps are ignored.
fn agree(last: &MediaPlaylist, next: &MediaPlaylist) -> bool {
    let numbered = |playlist: &MediaPlaylist| playlist.media_sequence + playlist.skipped_segments;
    let (from, to) = (numbered(last), numbered(next));
    let begin = from.max(to);
    let in_last = last.segments.iter().skip(usize::try_from(begin - from).unwrap_or(usize::MAX));
    let in_next = next.segments.iter().skip(usize::try_from(begin - to).unwrap_or(usize::MAX));
    in_last.zip(in_next).all(|(last, next)| {
        last.is_gap || next.is_gap || file_name(&last.resource.uri) == file_name(&next.resource.uri)
    })
}

/// Refuses durations that exceed [`TARGET_MAX`] or, for the part target, the segment target.
fn check_durations(playlist: &MediaPlaylist) -> Result<(), ImportError> {
    let too_long = |got, max| if got > max { Err(ImportError::TooLong { got }) } else { Ok(()) };
    too_long(playlist.target_duration, TARGET_MAX)?;
    too_long(playlist.part_target.unwrap_or_default(), playlist.target_duration)?;
    let open = playlist.open.iter().flat_map(|open| &open.parts);
    let parts = playlist.segments.iter().flat_map(|segment| &segment.parts).chain(open);
    let mut durations =
        playlist.segments.iter().map(|segment| segment.duration).chain(parts.map(|part| part.duration));
    durations.try_for_each(|duration| too_long(duration, TARGET_MAX))
}
