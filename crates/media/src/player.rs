//! Model of a steered player: which segment it loads next and from which pathway, when it queries
//! the steering server, and how long it stalls.
//!
//! The player has one bitrate, loads one segment at a time and fills its buffer up to a goal. After
//! a segment that is late, the player loads from the next pathway, and does not use the failed
//! pathway until a penalty has expired. If the steering server does not answer, the last steering
//! manifest stays valid, and the player repeats its query after the time to live.
//!
//! Source: Pantos, *HTTP Live Streaming 2nd Edition*, draft-pantos-hls-rfc8216bis, section 7.3;
//! ETSI TS 103 998, *Content Steering for DASH*. Leaves out: transfers of queries and segments,
//! which the caller models; choice of the bitrate. Contract: one mutation, then [`Player::poll`] to
//! `None`, then [`Player::poll_timeout`]. Read [`Player`] and [`Action`] first.

mod playout;

pub use playout::Playout;

use anabranch_units::{Duration, Instant};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Duration for which a failed pathway is not used.
const PENALTY: Duration = Duration::from_secs(30);
/// Pause after the failure of the last pathway without a penalty.
const ALL_FAILED_PAUSE: Duration = Duration::from_secs(1);
/// Longest wait for an answer of the steering server.
const STEERING_TIMEOUT: Duration = Duration::from_secs(4);
/// Longest wait for a segment, in percent of its playing time. A player with a full buffer then
/// survives the failure of a pathway without a stall.
const SEGMENT_TIMEOUT_PERCENT: u64 = 150;
/// Segments in the buffer at which playback starts.
const STARTUP_SEGMENTS: u64 = 2;

/// Settings of a [`Player`].
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct PlayerSettings {
    /// Playing time of a segment.
    pub segment: Duration,
    /// Goal of the buffer, in playing time.
    pub buffer: Duration,
    /// Time between queries to the steering server until a steering manifest sets another time.
    pub ttl: Duration,
}

/// Next action of a player; `P` names pathways.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action<P> {
    /// Query the steering server.
    LoadSteering,
    /// Load the next segment from this pathway.
    LoadSegment(P),
    /// Abort the transfer of a segment from this pathway.
    AbortSegment(P),
}

/// Statistics of one player.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlaybackStats {
    /// Segments that were loaded completely.
    pub segments: u64,
    /// Startup delay: time from opening to the first frame. `None` before playback has started.
    pub began_after: Option<Duration>,
    /// Stalls since playback started.
    pub stalls: u64,
    /// Total time of the stalls.
    pub stalled: Duration,
    /// Changes of the pathway that steering manifests caused.
    pub moves: u64,
    /// Segments that failed or were late.
    pub failures: u64,
    /// Queries that the steering server answered.
    pub answers: u64,
    /// Queries without an answer in time.
    pub unanswered: u64,
}

/// A player; `P` names pathways.
#[derive(Clone, Debug)]
pub struct Player<P> {
    settings: PlayerSettings,
    /// Pathways in order of preference.
    pathways: Vec<P>,
    /// End of the penalty of each pathway that failed.
    penalties: BTreeMap<P, Instant>,
    playout: Playout,
    /// Pathway of the segment in transfer, and the segment's deadline.
    loading: Option<(P, Instant)>,
    /// Earliest time of the next load.
    resumes_at: Instant,
    last_pathway: Option<P>,
    abort: Option<P>,
    asks_at: Instant,
    /// Deadline of the query in progress.
    answer_due: Option<Instant>,
    stats: PlaybackStats,
}

impl<P: Clone + Ord> Player<P> {
    /// Creates a player that is opened at `now`. `pathways` has the order of its manifest.
    pub fn new(now: Instant, settings: PlayerSettings, pathways: Vec<P>) -> Self {
        Self {
            settings,
            pathways,
            penalties: BTreeMap::new(),
            playout: Playout::new(now),
            loading: None,
            resumes_at: now,
            last_pathway: None,
            abort: None,
            asks_at: now,
            answer_due: None,
            stats: PlaybackStats::default(),
        }
    }

    /// Pathway of the segment in transfer, or else of the last segment.
    pub fn pathway(&self) -> Option<&P> {
        self.loading.as_ref().map(|(pathway, _)| pathway).or(self.last_pathway.as_ref())
    }
    /// Statistics up to `now`.
    pub fn stats(&self, now: Instant) -> PlaybackStats {
        let mut playout = self.playout.clone();
        playout.advance(now);
        PlaybackStats {
            began_after: playout.began_after(),
            stalls: playout.stalls(),
            stalled: playout.stalled(),
            ..self.stats
        }
    }

    /// Takes a steering manifest: pathways in order of preference, and the time until the next
    /// query. An empty list keeps the present pathways.
    pub fn handle_steering(&mut self, now: Instant, pathways: Vec<P>, ttl: Duration) {
        self.playout.advance(now);
        self.stats.answers += 1;
        self.answer_due = None;
        self.asks_at = now + ttl;
        if !pathways.is_empty() {
            self.pathways = pathways;
        }
    }

    /// Takes the failure of the query in progress: no answer, or an invalid answer.
    pub fn handle_unanswered(&mut self, now: Instant) {
        self.playout.advance(now);
        if self.answer_due.take().is_some() {
            self.stats.unanswered += 1;
            self.asks_at = now + self.settings.ttl;
        }
    }

    /// Takes the complete segment whose transfer was in progress.
    pub fn handle_segment(&mut self, now: Instant) {
        self.playout.advance(now);
        if let Some((pathway, _)) = self.loading.take() {
            self.penalties.remove(&pathway);
            self.last_pathway = Some(pathway);
            self.stats.segments += 1;
            let needed = if self.playout.began_after().is_none() { STARTUP_SEGMENTS } else { 1 };
            let needed = (self.settings.segment * needed).min(self.settings.buffer);
            self.playout.add(now, self.settings.segment, needed);
        }
    }

    /// Takes the failure of the segment in transfer.
    pub fn handle_failure(&mut self, now: Instant) {
        self.playout.advance(now);
        if let Some((pathway, _)) = self.loading.take() {
            self.penalties.insert(pathway, now + PENALTY);
            self.stats.failures += 1;
            if self.pathways.iter().all(|pathway| self.is_penalised(pathway, now)) {
                self.resumes_at = now + ALL_FAILED_PAUSE;
            }
        }
    }

    /// Handles the deadlines that have passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.playout.advance(now);
        if self.answer_due.is_some_and(|due| due <= now) {
            self.handle_unanswered(now);
        }
        if let Some((pathway, _)) = self.loading.clone().filter(|(_, due)| *due <= now) {
            self.abort = Some(pathway);
            self.handle_failure(now);
        }
    }

    /// The next action. `None` if no further action is due at `now`.
    pub fn poll(&mut self, now: Instant) -> Option<Action<P>> {
        self.playout.advance(now);
        if let Some(pathway) = self.abort.take() {
            return Some(Action::AbortSegment(pathway));
        }
        if self.answer_due.is_none() && self.asks_at <= now {
            self.answer_due = Some(now + STEERING_TIMEOUT);
            return Some(Action::LoadSteering);
        }
        let is_idle = self.loading.is_none() && self.resumes_at <= now;
        if is_idle && self.playout.level() + self.settings.segment <= self.goal() {
            let pathway = self.choose(now)?;
            let timeout = Duration::from_ps(self.settings.segment.as_ps() / 100 * SEGMENT_TIMEOUT_PERCENT);
            self.loading = Some((pathway.clone(), now + timeout));
            let is_new = self.last_pathway.as_ref().is_some_and(|last| *last != pathway);
            let has_failed = self.last_pathway.as_ref().is_some_and(|last| self.penalties.contains_key(last));
            self.stats.moves += u64::from(is_new && !has_failed);
            return Some(Action::LoadSegment(pathway));
        }
        None
    }

    /// Time of the next call of [`Player::handle_timeout`] or [`Player::poll`].
    pub fn poll_timeout(&self) -> Instant {
        let asks = self.answer_due.unwrap_or(self.asks_at);
        let loads = match &self.loading {
            Some((_, due)) => *due,
            None if self.pathways.is_empty() => Instant::MAX,
            // Playback frees buffer space for the next segment.
            None if self.playout.is_playing() => {
                let above = self.playout.level() + self.settings.segment
                    - self.goal().min(self.playout.level() + self.settings.segment);
                self.playout.updated_at() + above
            }
            None => self.playout.updated_at(),
        };
        let loads = if self.loading.is_none() { loads.max(self.resumes_at) } else { loads };
        asks.min(loads)
    }

    /// The buffer's goal, at least the playing time of [`STARTUP_SEGMENTS`].
    fn goal(&self) -> Duration {
        self.settings.buffer.max(self.settings.segment * STARTUP_SEGMENTS)
    }

    /// The first pathway without a penalty; if all have one, the pathway whose penalty ends first.
    fn choose(&self, now: Instant) -> Option<P> {
        let free = self.pathways.iter().find(|pathway| !self.is_penalised(pathway, now));
        let next = || self.pathways.iter().min_by_key(|pathway| self.penalties.get(pathway).copied());
        free.or_else(next).cloned()
    }

    fn is_penalised(&self, pathway: &P, now: Instant) -> bool {
        self.penalties.get(pathway).is_some_and(|until| *until > now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SETTINGS: PlayerSettings = PlayerSettings {
        segment: Duration::from_secs(2),
        buffer: Duration::from_secs(6),
        ttl: Duration::from_secs(10),
    };

    fn at(ms: u64) -> Instant {
        Instant::ZERO + Duration::from_ms(ms)
    }

    /// Runs the player until `until_ms` without answers of a steering server. `takes_ms` returns
    /// the transfer time of a segment from a pathway, or `None` if the segment never arrives.
    /// Returns the pathways in the order of the loads.
    fn run(
        player: &mut Player<char>,
        until_ms: u64,
        takes_ms: impl Fn(char, u64) -> Option<u64>,
    ) -> Vec<char> {
        let (mut now, mut loads, mut arrives_at) = (at(0), Vec::new(), None);
        loop {
            while let Some(action) = player.poll(now) {
                match action {
                    Action::LoadSteering => {}
                    Action::AbortSegment(_) => arrives_at = None,
                    Action::LoadSegment(pathway) => {
                        let ms = now.saturating_since(Instant::ZERO).as_us() / 1_000;
                        arrives_at = takes_ms(pathway, ms).map(|ms| now + Duration::from_ms(ms));
                        loads.push(pathway);
                    }
                }
            }
            let next = player.poll_timeout().min(arrives_at.unwrap_or(Instant::MAX));
            assert!(next >= now);
            if next > at(until_ms) {
                return loads;
            }
            now = next;
            if arrives_at == Some(next) {
                arrives_at = None;
                player.handle_segment(now);
            } else {
                player.handle_timeout(now);
            }
        }
    }

    #[test]
    fn segments_in_time_cause_no_stall() {
        let mut player = Player::new(at(0), SETTINGS, vec!['a', 'b']);
        let loads = run(&mut player, 60_000, |_, _| Some(500));
        let stats = player.stats(at(60_000));
        assert_eq!((stats.stalls, stats.failures, stats.moves), (0, 0, 0));
        assert_eq!(stats.began_after, Some(Duration::from_secs(1)));
        // The segments of one minute, and the segments in the buffer.
        assert!((30..=33).contains(&loads.len()) && loads.iter().all(|pathway| *pathway == 'a'), "{loads:?}");
    }

    #[test]
    fn a_failed_pathway_is_replaced_until_its_penalty_ends() {
        let mut player = Player::new(at(0), SETTINGS, vec!['a', 'b']);
        // Pathway `a` fails for ten seconds.
        let loads = run(&mut player, 60_000, |pathway, ms| {
            (pathway == 'b' || !(10_000..20_000).contains(&ms)).then_some(300)
        });
        let stats = player.stats(at(60_000));
        assert_eq!((stats.failures, stats.stalls), (1, 0), "the buffer bridges it");
        assert!(loads.contains(&'b') && loads.last() == Some(&'a'), "{loads:?}");
    }

    #[test]
    fn player_whose_pathways_all_fail_retries_once_per_second() {
        let mut player = Player::new(at(0), SETTINGS, vec!['a', 'b']);
        let (mut now, mut tries) = (at(0), 0);
        while now < at(10_000) {
            while let Some(action) = player.poll(now) {
                if matches!(action, Action::LoadSegment(_)) {
                    tries += 1;
                    player.handle_failure(now);
                }
            }
            now = player.poll_timeout();
            player.handle_timeout(now);
        }
        assert!((10..=12).contains(&tries), "{tries}");
    }

    #[test]
    fn player_follows_steering_and_survives_steering_server_failure() {
        let mut player = Player::new(at(0), SETTINGS, vec!['a', 'b']);
        assert_eq!(player.poll(at(0)), Some(Action::LoadSteering));
        player.handle_steering(at(10), vec!['b', 'a'], Duration::from_secs(5));
        assert_eq!(player.poll(at(10)), Some(Action::LoadSegment('b')));
        player.handle_segment(at(500));
        assert_eq!(player.poll(at(500)), Some(Action::LoadSegment('b')));
        player.handle_segment(at(1_000));
        player.handle_steering(at(1_100), vec!['a', 'b'], Duration::from_secs(5));
        assert_eq!(player.poll(at(1_100)), Some(Action::LoadSegment('a')));
        player.handle_segment(at(1_500));
        assert_eq!(player.stats(at(1_500)).moves, 1);
        assert_eq!(player.poll(at(6_200)), Some(Action::LoadSteering));
        player.handle_timeout(at(10_300));
        assert_eq!(player.stats(at(10_300)).unanswered, 1);
    }

    proptest! {
        /// The buffer never exceeds its goal, even if segments are late.
        #[test]
        fn all_time_since_startup_is_played_or_stalled(takes in proptest::collection::vec((any::<bool>(), 1u64..5_000), 1..40)) {
            let mut player = Player::new(at(0), SETTINGS, vec!['a', 'b', 'c']);
            let count = std::cell::Cell::new(0);
            run(&mut player, 120_000, |_, _| {
                let (arrives, ms) = takes[count.get() % takes.len()];
                count.set(count.get() + 1);
                arrives.then_some(ms)
            });
            player.handle_timeout(at(120_000));
            let stats = player.stats(at(120_000));
            prop_assert!(player.playout.level() <= SETTINGS.buffer);
            if let Some(began) = stats.began_after {
                let spent = (SETTINGS.segment * stats.segments).as_ps() - player.playout.level().as_ps() + stats.stalled.as_ps();
                prop_assert_eq!(spent, (at(120_000).saturating_since(at(0)) - began).as_ps());
            }
        }
    }
}
