//! How many viewers there are, by place and bitrate, and by which networks they play: step 2 of the decision protocol, *gather*, from the
//! questions that their players ask.
//!
//! A player asks once in each time to live of an answer, so those who have asked in such a time are those who watch. Nothing is kept of any
//! viewer: questions are counted. Memory is bounded whatever is asked: of too many kinds of viewers the half with the fewest questions is forgotten.
//! Leaves out: what is answered (`steering`). Read [`Counting`] first.

use crate::broker::{Decision, Gathered};
use crate::delivery::Viewer;
use crate::messages::Clients;
use anabranch_units::{BitRate, Duration, Instant, PeerId};
use std::collections::BTreeMap;

/// The most places that are counted, with their bitrates. Anybody may name a place that is none: when so many are there, the half with
/// the fewest questions makes room, so that made-up places, of which each is asked for once, keep out none where people are.
pub const KINDS_MAX: usize = 250_000;
/// The most places that a round has: those with the most viewers.
pub const PLACES_MAX: usize = 50_000;
/// Bitrates are counted as one where they differ by less than this factor: a player's throughput is never the same twice.
const ALIKE: f64 = 1.25;

/// Place by place, by bitrate.
type Kinds = BTreeMap<(String, String), BTreeMap<u64, u32>>;

/// The questions of a window.
#[derive(Debug, Default)]
struct Questions {
    kinds: Kinds,
    /// By network: players that say that they play by it.
    playing: BTreeMap<PeerId, u64>,
    all: u64,
}

impl Questions {
    /// Counts so many of a kind that may be new.
    fn insert(&mut self, location: &str, isp: &str, bitrate: BitRate, sessions: u32) {
        let bitrates = self.kinds.entry((location.to_owned(), isp.to_owned())).or_default();
        let count = bitrates.entry(alike(bitrate)).or_default();
        *count = count.saturating_add(sessions);
    }

    /// Forgets the half of all kinds that has the fewest questions. How many kinds, and how many questions these are.
    fn thin(&mut self) -> (usize, u64) {
        let mut counts: Vec<u32> = self.kinds.values().flat_map(BTreeMap::values).copied().collect();
        let half = counts.len() / 2;
        let (fewer, most, _) = counts.select_nth_unstable(half);
        let most = *most;
        // Of those that have just as many as the middle one, as many go as make a half.
        let mut alike_left = half - fewer.iter().filter(|count| **count < most).count();
        let mut forgotten = 0;
        self.kinds.retain(|_, bitrates| {
            bitrates.retain(|_, count| {
                let is_one_of_alike = *count == most && alike_left > 0;
                alike_left -= usize::from(is_one_of_alike);
                let goes = *count < most || is_one_of_alike;
                forgotten += if goes { u64::from(*count) } else { 0 };
                !goes
            });
            !bitrates.is_empty()
        });
        (half, forgotten)
    }
}

/// Questions of late.
#[derive(Debug)]
pub struct Counting {
    window: Duration,
    began_at: Instant,
    /// Of the window before, once one is over, and of this one.
    before: Option<Questions>,
    now: Questions,
    kinds: usize,
    dropped: u64,
}

/// The middle of the bitrates that are counted as one with this one.
fn alike(bitrate: BitRate) -> u64 {
    let step = (bitrate.as_bps().max(1_000) as f64 / 1_000.0).log(ALIKE).round();
    (1_000.0 * ALIKE.powf(step)).round() as u64
}

impl Counting {
    /// Counts over such a time, which is that in which each player asks once.
    pub fn new(now: Instant, window: Duration) -> Self {
        Self { window, began_at: now, before: None, now: Questions::default(), kinds: 0, dropped: 0 }
    }

    /// The same after a restart: those whom a decision has placed are there until a window is over, unless more have asked by then.
    #[must_use]
    pub fn after(mut self, decision: &Decision) -> Self {
        let mut before = Questions::default();
        for placed in &decision.placed {
            if let Some((location, isp)) = decision.places.get(placed.place as usize) {
                before.insert(location, isp, placed.bitrate, placed.sessions);
                before.all += u64::from(placed.sessions);
            }
        }
        self.before = Some(before);
        self
    }

    /// By a clock that begins again, and is `now`: the present window lasts up to twice as long.
    pub const fn begin_anew(&mut self, now: Instant) {
        self.began_at = now;
    }

    /// A player has asked for a viewer, and says by which network it plays, if it does.
    pub fn note(&mut self, now: Instant, viewer: &Viewer, plays_by: Option<PeerId>) {
        self.turn(now);
        self.now.all += 1;
        if let Some(network) = plays_by {
            *self.now.playing.entry(network).or_default() += 1;
        }
        let place = (viewer.location.clone(), viewer.isp.clone());
        let kind = self.now.kinds.get_mut(&place).and_then(|of| of.get_mut(&alike(viewer.bitrate)));
        if let Some(count) = kind {
            *count = count.saturating_add(1);
            return;
        }
        if self.kinds >= KINDS_MAX {
            let (kinds, forgotten) = self.now.thin();
            self.kinds -= kinds;
            self.dropped += forgotten;
        }
        self.kinds += 1;
        self.now.insert(&viewer.location, &viewer.isp, viewer.bitrate, 1);
    }

    /// Questions that were not counted, as there are too many places.
    pub const fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Who watches: those of the last window that is over, or of this one if it is the first or has more.
    ///
    /// Cost: some ms for as many places as there may be.
    pub fn gathered(&mut self, now: Instant) -> Vec<Gathered> {
        let mut gathered = list(&self.of_late(now).kinds);
        if gathered.len() > PLACES_MAX {
            let viewers = |of: &Gathered| of.clients.iter().map(|some| u64::from(some.sessions)).sum::<u64>();
            gathered.sort_by_cached_key(|of| std::cmp::Reverse(viewers(of)));
            self.dropped += gathered.drain(PLACES_MAX..).map(|of| viewers(&of)).sum::<u64>();
        }
        gathered
    }

    /// By network: the players that say that they play by it, of the same window.
    pub fn playing(&mut self, now: Instant) -> BTreeMap<PeerId, u64> {
        self.of_late(now).playing.clone()
    }

    fn of_late(&mut self, now: Instant) -> &Questions {
        self.turn(now);
        self.before.as_ref().filter(|before| before.all >= self.now.all).unwrap_or(&self.now)
    }

    fn turn(&mut self, now: Instant) {
        let passed = now.saturating_since(self.began_at);
        if passed < self.window {
            return;
        }
        let last = std::mem::take(&mut self.now);
        // After a window in which nobody has asked, nobody is there.
        self.before = Some(if passed < self.window * 2 { last } else { Questions::default() });
        (self.began_at, self.kinds) = (now, 0);
    }
}

/// What several have counted, as one.
pub fn together(all: impl IntoIterator<Item = Gathered>) -> Vec<Gathered> {
    let mut kinds = Kinds::new();
    for Gathered { location, isp, clients } in all {
        let place = kinds.entry((location, isp)).or_default();
        for Clients { bitrate_bps, sessions } in clients {
            let count = place.entry(bitrate_bps).or_default();
            *count = count.saturating_add(sessions);
        }
    }
    list(&kinds)
}

fn list(kinds: &Kinds) -> Vec<Gathered> {
    let of = |((location, isp), bitrates): (&(String, String), &BTreeMap<u64, u32>)| Gathered {
        location: location.clone(),
        isp: isp.clone(),
        clients: bitrates.iter().map(|(&bitrate_bps, &sessions)| Clients { bitrate_bps, sessions }).collect(),
    };
    kinds.iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::Placed;

    fn viewer(location: &str, kbps: u64) -> Viewer {
        Viewer { location: location.into(), isp: "x".into(), bitrate: BitRate::bps(kbps * 1_000), number: 0 }
    }

    fn at(s: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(s)
    }

    fn sessions(gathered: &[Gathered]) -> Vec<(String, u32)> {
        let all = |of: &Gathered| of.clients.iter().map(|some| some.sessions).sum();
        gathered.iter().map(|of| (of.location.clone(), all(of))).collect()
    }

    fn those(expected: &[(&str, u32)]) -> Vec<(String, u32)> {
        expected.iter().map(|(location, sessions)| ((*location).to_owned(), *sessions)).collect()
    }

    #[test]
    fn those_who_asked_within_a_window_are_there() {
        let mut counting = Counting::new(at(0), Duration::from_secs(10));
        (0..5).for_each(|s| counting.note(at(s), &viewer("a", 3_000), Some(PeerId(s as u32 % 2))));
        let first = counting.gathered(at(5));
        assert_eq!(sessions(&first), those(&[("a", 5)]), "the first window counts while it lasts");
        assert_eq!(counting.playing(at(5)), BTreeMap::from([(PeerId(0), 3), (PeerId(1), 2)]));
        counting.note(at(12), &viewer("b", 3_000), None);
        assert_eq!(sessions(&counting.gathered(at(13))), those(&[("a", 5)]));
        assert_eq!(sessions(&counting.gathered(at(25))), those(&[("b", 1)]));
        assert_eq!(counting.playing(at(25)), BTreeMap::new());
        assert_eq!(sessions(&counting.gathered(at(90))), []);
    }

    /// Whoever makes up places takes no room from those where people are, whoever comes first, and no memory without end.
    #[test]
    fn of_too_many_places_those_with_the_fewest_questions_are_forgotten() {
        let mut counting = Counting::new(at(0), Duration::from_secs(10));
        let asked = KINDS_MAX * 3;
        for number in 0..asked {
            counting.note(at(0), &viewer(&format!("none {number}"), 3_000), None);
            // Here somebody asks all the time, and begins when all room is taken.
            if number > KINDS_MAX && number % 1_000 == 0 {
                counting.note(at(0), &viewer("berlin", 3_000), None);
            }
            assert!(counting.kinds <= KINDS_MAX);
        }
        let berlin = (asked / 1_000 - KINDS_MAX / 1_000 - 1) as u32;
        let kinds: usize = counting.of_late(at(0)).kinds.values().map(BTreeMap::len).sum();
        assert_eq!(kinds, counting.kinds);
        let forgotten = counting.dropped();
        let gathered = counting.gathered(at(0));
        assert_eq!(gathered.len(), PLACES_MAX);
        let beyond = counting.dropped() - forgotten;
        assert_eq!(beyond, (kinds - PLACES_MAX) as u64);
        assert_eq!(sessions(&gathered)[0], ("berlin".to_owned(), berlin));
        let known =
            gathered.iter().flat_map(|of| &of.clients).map(|some| u64::from(some.sessions)).sum::<u64>();
        assert_eq!(
            known + counting.dropped(),
            asked as u64 + u64::from(berlin),
            "no question is lost to sight"
        );
    }

    #[test]
    fn after_a_restart_those_of_the_last_decision_count_until_a_window_is_over() {
        let placed = |place, sessions| Placed { place, bitrate: BitRate::mbps(3), sessions, to: None };
        let decision = Decision {
            round: 7,
            places: vec![("berlin".into(), "x".into()), ("paris".into(), "x".into())],
            placed: vec![placed(0, 40), placed(1, 10), placed(0, 2)],
            prices_per_mbps: BTreeMap::new(),
            gap_share: 0.0,
            standings: BTreeMap::new(),
        };
        let mut counting = Counting::new(at(0), Duration::from_secs(10)).after(&decision);
        counting.note(at(1), &viewer("berlin", 3_000), None);
        assert_eq!(sessions(&counting.gathered(at(9))), those(&[("berlin", 42), ("paris", 10)]));
        assert_eq!(sessions(&counting.gathered(at(10))), those(&[("berlin", 1)]));
    }

    #[test]
    fn bitrates_that_hardly_differ_are_one() {
        let mut counting = Counting::new(at(0), Duration::from_secs(10));
        for kbps in [3_000, 3_050, 2_950, 9_000] {
            counting.note(at(0), &viewer("a", kbps), None);
        }
        let gathered = counting.gathered(at(0));
        let counts: Vec<u32> = gathered[0].clients.iter().map(|some| some.sessions).collect();
        assert_eq!(counts, [3, 1]);
        for some in &gathered[0].clients {
            let ratio = some.bitrate_bps as f64 / if some.sessions == 3 { 3e6 } else { 9e6 };
            assert!((0.85..1.15).contains(&ratio), "{ratio}");
        }
    }
}
