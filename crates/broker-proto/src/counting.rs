//! How many viewers there are, by place and bitrate, and by which networks they play: step 2 of the decision protocol, *gather*, from the
//! questions that their players ask.
//!
//! A player asks once in each time to live of an answer, so those who have asked in such a time are those who watch. Nothing is kept of any
//! viewer: questions are counted. Leaves out: what is answered (`steering`). Read [`Counting`] first.

use crate::broker::Gathered;
use crate::delivery::Viewer;
use crate::messages::Clients;
use anabranch_units::{BitRate, Duration, Instant, PeerId};
use std::collections::BTreeMap;

/// The most places that are counted, with their bitrates: what comes beyond is counted as dropped. Anybody may name a place that is none.
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

    /// A player has asked for a viewer, and says by which network it plays, if it does.
    pub fn note(&mut self, now: Instant, viewer: &Viewer, plays_by: Option<PeerId>) {
        self.turn(now);
        self.now.all += 1;
        if let Some(network) = plays_by {
            *self.now.playing.entry(network).or_default() += 1;
        }
        let place = self.now.kinds.entry((viewer.location.clone(), viewer.isp.clone())).or_default();
        if let Some(count) = place.get_mut(&alike(viewer.bitrate)) {
            *count = count.saturating_add(1);
        } else if self.kinds < KINDS_MAX {
            self.kinds += 1;
            place.insert(alike(viewer.bitrate), 1);
        } else {
            self.dropped += 1;
        }
    }

    /// Questions that were not counted, as there are too many places.
    pub const fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Who watches: those of the last window that is over, or of this one if it is the first or has more.
    pub fn gathered(&mut self, now: Instant) -> Vec<Gathered> {
        let mut gathered = list(&self.of_late(now).kinds);
        if gathered.len() > PLACES_MAX {
            let viewers = |of: &Gathered| of.clients.iter().map(|some| u64::from(some.sessions)).sum::<u64>();
            gathered.sort_by_key(|of| std::cmp::Reverse(viewers(of)));
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

    fn viewer(location: &str, kbps: u64) -> Viewer {
        Viewer { location: location.into(), isp: "x".into(), bitrate: BitRate::bps(kbps * 1_000), number: 0 }
    }

    fn sessions(gathered: &[Gathered]) -> Vec<(&str, u32)> {
        gathered.iter().map(|of| (&*of.location, of.clients.iter().map(|some| some.sessions).sum())).collect()
    }

    #[test]
    fn those_who_asked_within_a_window_are_there() {
        let at = |s| Instant::ZERO + Duration::from_secs(s);
        let mut counting = Counting::new(at(0), Duration::from_secs(10));
        (0..5).for_each(|s| counting.note(at(s), &viewer("a", 3_000), Some(PeerId(s as u32 % 2))));
        assert_eq!(sessions(&counting.gathered(at(5))), [("a", 5)], "the first window counts while it lasts");
        assert_eq!(counting.playing(at(5)), BTreeMap::from([(PeerId(0), 3), (PeerId(1), 2)]));
        counting.note(at(12), &viewer("b", 3_000), None);
        assert_eq!(sessions(&counting.gathered(at(13))), [("a", 5)]);
        assert_eq!(sessions(&counting.gathered(at(25))), [("b", 1)]);
        assert_eq!(counting.playing(at(25)), BTreeMap::new());
        assert_eq!(sessions(&counting.gathered(at(90))), []);
    }

    /// Whoever makes up places takes no room from those where people are.
    #[test]
    fn of_too_many_places_those_with_the_most_viewers_count() {
        let mut counting = Counting::new(Instant::ZERO, Duration::from_secs(10));
        for number in 0..KINDS_MAX + 10 {
            counting.note(Instant::ZERO, &viewer(&format!("none {number}"), 3_000), None);
            if number < 5 {
                counting.note(Instant::ZERO, &viewer("berlin", 3_000), None);
            }
        }
        let gathered = counting.gathered(Instant::ZERO);
        assert_eq!((gathered.len(), sessions(&gathered)[0]), (PLACES_MAX, ("berlin", 5)));
        assert_eq!(counting.dropped(), (11 + KINDS_MAX - PLACES_MAX) as u64);
    }

    #[test]
    fn bitrates_that_hardly_differ_are_one() {
        let mut counting = Counting::new(Instant::ZERO, Duration::from_secs(10));
        for kbps in [3_000, 3_050, 2_950, 9_000] {
            counting.note(Instant::ZERO, &viewer("a", kbps), None);
        }
        let gathered = counting.gathered(Instant::ZERO);
        let counts: Vec<u32> = gathered[0].clients.iter().map(|some| some.sessions).collect();
        assert_eq!(counts, [3, 1]);
        for some in &gathered[0].clients {
            let ratio = some.bitrate_bps as f64 / if some.sessions == 3 { 3e6 } else { 9e6 };
            assert!((0.85..1.15).contains(&ratio), "{ratio}");
        }
    }
}
