//! A player of videos that is steered: what it fetches next and from where, when it asks the broker again, and how long it stands still.
//!
//! It is as simple as players can be that the standards describe: one bitrate, one segment at a time, a buffer that is filled up to a goal. What does
//! not come in time it fetches by the next way, and leaves the way that failed alone for a while (HLS, section 7.3). A broker that does not
//! answer is asked again after the time to live; meanwhile what it said last holds.
//!
//! Leaves out: segments and questions themselves (a driver's, or the simulator's), choice of bitrate. Contract: one mutation, then
//! [`Player::poll`] to `None`, then [`Player::poll_timeout`]. Read [`Player`] and [`Wish`] first.

use anabranch_units::{Duration, Instant};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// How long a way that has failed is left alone.
const PENALTY: Duration = Duration::from_secs(30);
/// How long it rests where all ways have failed.
const REST: Duration = Duration::from_secs(1);
/// How long an answer of the broker may take.
const ANSWERS_WITHIN: Duration = Duration::from_secs(4);
/// How long a segment may take, by what it plays: with a segment more in the buffer than that, a way that is dead is not seen.
const PATIENCE_PERCENT: u64 = 150;
/// Segments that are there before playing begins.
const BEGINS_WITH: u64 = 2;

/// How it plays.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct PlayerSettings {
    /// What a segment plays.
    pub segment: Duration,
    /// What is to be in the buffer.
    pub buffer: Duration,
    /// After how long it asks the broker again where that has not said.
    pub ttl: Duration,
}

/// What it wants next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wish<W> {
    /// Ask the broker.
    Ask,
    /// Fetch the next segment by this way.
    Fetch(W),
    /// Give up what is being fetched by this way.
    GiveUp(W),
}

/// What it has come to.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Played {
    /// Segments that came whole.
    pub segments: u64,
    /// How long it took until it played; none before it does.
    pub began_after: Option<Duration>,
    /// How often and how long it stood still since.
    pub stalls: u64,
    /// See above.
    pub stalled: Duration,
    /// How often it went another way because the broker said so, and because a way failed.
    pub moves: u64,
    /// See above.
    pub failures: u64,
    /// Questions that the broker answered, and that it did not.
    pub answers: u64,
    /// See above.
    pub unanswered: u64,
}

/// A player; `W` names ways.
#[derive(Clone, Debug)]
pub struct Player<W> {
    settings: PlayerSettings,
    opened_at: Instant,
    /// The best first.
    ways: Vec<W>,
    failed: BTreeMap<W, Instant>,
    /// What was in the buffer then; it plays or stands still since.
    buffer: Duration,
    at: Instant,
    plays: bool,
    /// By which way, and until when it may take.
    fetching: Option<(W, Instant)>,
    /// Nothing is fetched before.
    rests_until: Instant,
    last_way: Option<W>,
    gives_up: Option<W>,
    ask_at: Instant,
    asking_until: Option<Instant>,
    played: Played,
}

impl<W: Clone + Ord> Player<W> {
    /// One that is opened now, with the ways that its manifest has.
    pub fn new(now: Instant, settings: PlayerSettings, ways: Vec<W>) -> Self {
        Self {
            settings,
            opened_at: now,
            ways,
            failed: BTreeMap::new(),
            buffer: Duration::ZERO,
            at: now,
            plays: false,
            fetching: None,
            rests_until: now,
            last_way: None,
            gives_up: None,
            ask_at: now,
            asking_until: None,
            played: Played::default(),
        }
    }

    /// The way of the segment that came last, or is being fetched.
    pub fn way(&self) -> Option<&W> {
        self.fetching.as_ref().map(|(way, _)| way).or(self.last_way.as_ref())
    }
    /// What it has come to until then.
    pub fn played(&self, now: Instant) -> Played {
        let mut until = self.clone();
        until.go_on(now);
        until.played
    }

    /// The broker has answered; ask again after `ttl`.
    pub fn handle_steering(&mut self, now: Instant, ways: Vec<W>, ttl: Duration) {
        self.go_on(now);
        self.played.answers += 1;
        self.asking_until = None;
        self.ask_at = now + ttl;
        if !ways.is_empty() {
            self.ways = ways;
        }
    }

    /// The broker cannot be asked, or answers nothing that helps.
    pub fn handle_unanswered(&mut self, now: Instant) {
        self.go_on(now);
        if self.asking_until.take().is_some() {
            self.played.unanswered += 1;
            self.ask_at = now + self.settings.ttl;
        }
    }

    /// The segment has come whole.
    pub fn handle_segment(&mut self, now: Instant) {
        self.go_on(now);
        if let Some((way, _)) = self.fetching.take() {
            self.failed.remove(&way);
            self.last_way = Some(way);
            self.buffer += self.settings.segment;
            self.played.segments += 1;
            let begins_with = if self.played.began_after.is_none() { BEGINS_WITH } else { 1 };
            if !self.plays && self.buffer >= (self.settings.segment * begins_with).min(self.settings.buffer) {
                self.plays = true;
                let after = now.saturating_since(self.opened_at);
                self.played.began_after.get_or_insert(after);
            }
        }
    }

    /// The segment cannot be had by the way that was chosen.
    pub fn handle_failure(&mut self, now: Instant) {
        self.go_on(now);
        if let Some((way, _)) = self.fetching.take() {
            self.failed.insert(way, now + PENALTY);
            self.played.failures += 1;
            if self.ways.iter().all(|way| self.is_left_alone(way, now)) {
                self.rests_until = now + REST;
            }
        }
    }

    /// Time has come.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.go_on(now);
        if self.asking_until.is_some_and(|until| until <= now) {
            self.handle_unanswered(now);
        }
        if let Some((way, _)) = self.fetching.clone().filter(|(_, until)| *until <= now) {
            self.gives_up = Some(way);
            self.handle_failure(now);
        }
    }

    /// What it wants next.
    pub fn poll(&mut self, now: Instant) -> Option<Wish<W>> {
        self.go_on(now);
        if let Some(way) = self.gives_up.take() {
            return Some(Wish::GiveUp(way));
        }
        if self.asking_until.is_none() && self.ask_at <= now {
            self.asking_until = Some(now + ANSWERS_WITHIN);
            return Some(Wish::Ask);
        }
        let is_free = self.fetching.is_none() && self.rests_until <= now;
        if is_free && self.buffer + self.settings.segment <= self.goal() {
            let way = self.choose(now)?;
            let patience = Duration::from_ps(self.settings.segment.as_ps() / 100 * PATIENCE_PERCENT);
            self.fetching = Some((way.clone(), now + patience));
            let has_moved = self.last_way.as_ref().is_some_and(|last| *last != way);
            let has_failed = self.last_way.as_ref().is_some_and(|last| self.failed.contains_key(last));
            self.played.moves += u64::from(has_moved && !has_failed);
            return Some(Wish::Fetch(way));
        }
        None
    }

    /// When [`Player::handle_timeout`] is due, or [`Player::poll`] has something.
    pub fn poll_timeout(&self) -> Instant {
        let asks = self.asking_until.unwrap_or(self.ask_at);
        let fetches = match &self.fetching {
            Some((_, until)) => *until,
            None if self.ways.is_empty() => Instant::MAX,
            // Room for a segment comes as it plays.
            None if self.plays => {
                let above = self.buffer + self.settings.segment
                    - self.goal().min(self.buffer + self.settings.segment);
                self.at + above
            }
            None => self.at,
        };
        let fetches = if self.fetching.is_none() { fetches.max(self.rests_until) } else { fetches };
        asks.min(fetches)
    }

    /// The buffer holds a segment more than it plays at least.
    fn goal(&self) -> Duration {
        self.settings.buffer.max(self.settings.segment * BEGINS_WITH)
    }

    /// The best way that has not failed of late; if all have, the one that is to be tried again first.
    fn choose(&self, now: Instant) -> Option<W> {
        let free = self.ways.iter().find(|way| !self.is_left_alone(way, now));
        free.or_else(|| self.ways.iter().min_by_key(|way| self.failed.get(way).copied())).cloned()
    }

    fn is_left_alone(&self, way: &W, now: Instant) -> bool {
        self.failed.get(way).is_some_and(|until| *until > now)
    }

    /// Plays what there is until now.
    fn go_on(&mut self, now: Instant) {
        let passed = now.saturating_since(self.at);
        self.at = self.at.max(now);
        if self.plays {
            let plays = passed.min(self.buffer);
            self.buffer = self.buffer - plays;
            if passed > plays {
                self.plays = false;
                self.played.stalls += 1;
                self.played.stalled += passed - plays;
            }
        } else if self.played.began_after.is_some() {
            self.played.stalled += passed;
        }
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

    /// Runs until then; a way's segments take so many ms, or never come.
    fn run(
        player: &mut Player<char>,
        until_ms: u64,
        takes_ms: impl Fn(char, u64) -> Option<u64>,
    ) -> Vec<char> {
        let (mut now, mut fetched, mut comes_at) = (at(0), Vec::new(), None);
        loop {
            while let Some(wish) = player.poll(now) {
                match wish {
                    Wish::Ask => {}
                    Wish::GiveUp(_) => comes_at = None,
                    Wish::Fetch(way) => {
                        let ms = now.saturating_since(Instant::ZERO).as_us() / 1_000;
                        comes_at = takes_ms(way, ms).map(|ms| now + Duration::from_ms(ms));
                        fetched.push(way);
                    }
                }
            }
            let next = player.poll_timeout().min(comes_at.unwrap_or(Instant::MAX));
            assert!(next >= now);
            if next > at(until_ms) {
                return fetched;
            }
            now = next;
            if comes_at == Some(next) {
                comes_at = None;
                player.handle_segment(now);
            } else {
                player.handle_timeout(now);
            }
        }
    }

    #[test]
    fn it_plays_without_standing_still_where_segments_come_in_time() {
        let mut player = Player::new(at(0), SETTINGS, vec!['a', 'b']);
        let fetched = run(&mut player, 60_000, |_, _| Some(500));
        let played = player.played(at(60_000));
        assert_eq!((played.stalls, played.failures, played.moves), (0, 0, 0));
        assert_eq!(played.began_after, Some(Duration::from_secs(1)));
        // Half a minute's segments, and what is in the buffer.
        assert!((30..=33).contains(&fetched.len()) && fetched.iter().all(|way| *way == 'a'), "{fetched:?}");
    }

    #[test]
    fn what_fails_is_fetched_by_the_next_way_and_left_alone_for_a_while() {
        let mut player = Player::new(at(0), SETTINGS, vec!['a', 'b']);
        // The first is dead for ten seconds.
        let fetched = run(&mut player, 60_000, |way, ms| {
            (way == 'b' || !(10_000..20_000).contains(&ms)).then_some(300)
        });
        let played = player.played(at(60_000));
        assert_eq!((played.failures, played.stalls), (1, 0), "the buffer bridges it");
        assert!(fetched.contains(&'b') && fetched.last() == Some(&'a'), "{fetched:?}");
    }

    #[test]
    fn where_all_ways_fail_at_once_it_tries_once_a_second() {
        let mut player = Player::new(at(0), SETTINGS, vec!['a', 'b']);
        let (mut now, mut tries) = (at(0), 0);
        while now < at(10_000) {
            while let Some(wish) = player.poll(now) {
                if matches!(wish, Wish::Fetch(_)) {
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
    fn it_goes_where_the_broker_says_and_goes_on_without_it() {
        let mut player = Player::new(at(0), SETTINGS, vec!['a', 'b']);
        assert_eq!(player.poll(at(0)), Some(Wish::Ask));
        player.handle_steering(at(10), vec!['b', 'a'], Duration::from_secs(5));
        assert_eq!(player.poll(at(10)), Some(Wish::Fetch('b')));
        player.handle_segment(at(500));
        assert_eq!(player.poll(at(500)), Some(Wish::Fetch('b')));
        player.handle_segment(at(1_000));
        player.handle_steering(at(1_100), vec!['a', 'b'], Duration::from_secs(5));
        assert_eq!(player.poll(at(1_100)), Some(Wish::Fetch('a')));
        player.handle_segment(at(1_500));
        assert_eq!(player.played(at(1_500)).moves, 1);
        assert_eq!(player.poll(at(6_200)), Some(Wish::Ask));
        player.handle_timeout(at(10_300));
        assert_eq!(player.played(at(10_300)).unanswered, 1);
    }

    proptest! {
        /// Whatever comes or does not, time is played or stood still, and the buffer stays within its goal.
        #[test]
        fn all_time_is_played_or_stood_still(takes in proptest::collection::vec((any::<bool>(), 1u64..5_000), 1..40)) {
            let mut player = Player::new(at(0), SETTINGS, vec!['a', 'b', 'c']);
            let count = std::cell::Cell::new(0);
            run(&mut player, 120_000, |_, _| {
                let (comes, ms) = takes[count.get() % takes.len()];
                count.set(count.get() + 1);
                comes.then_some(ms)
            });
            player.handle_timeout(at(120_000));
            let played = player.played(at(120_000));
            prop_assert!(player.buffer <= SETTINGS.buffer);
            if let Some(began) = played.began_after {
                let spent = (SETTINGS.segment * played.segments).as_ps() - player.buffer.as_ps() + played.stalled.as_ps();
                prop_assert_eq!(spent, (at(120_000).saturating_since(at(0)) - began).as_ps());
            }
        }
    }
}
