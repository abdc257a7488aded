//! Counts of viewers by place and bitrate, and by the network in use: step 2 of the decision
//! protocol, *gather*, from players' requests.
//!
//! A player sends one request per time to live of an answer, so the requests in one time to live
//! count the viewers. Only counts are kept, no viewer is remembered. Counts of a window take at
//! most [`WINDOW_BYTES_MAX`]. Above this limit, the places and bitrates with the fewest requests
//! are forgotten until half of the memory is free. Leaves out: answers to players (`steering`).
//! Read [`RequestCounter`] first.

use crate::broker::{Decision, PlaceDemand};
use crate::messages::Clients;
use anabranch_media::steering::Viewer;
use anabranch_units::{BitRate, Duration, Instant, PeerId};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Maximum bytes of the counts of one window; there are two windows. Anybody can invent a place, so
/// at the limit the places and bitrates with the fewest requests are forgotten. An invented place
/// has one request and displaces no real place.
pub const WINDOW_BYTES_MAX: usize = 32 << 20;
/// Maximum number of places in a round; the places with the most viewers are kept.
pub const PLACES_MAX: usize = 50_000;
/// Maximum bytes of the names of a round's places. Calls, decisions and the store hold some ten
/// copies of the names at once.
pub const NAMES_BYTES_MAX: usize = 4 << 20;
/// Bytes of a place besides its names: map entries and half-empty heap blocks.
const PLACE_BYTES: usize = 256;
/// Bytes of one bitrate of a place, including the group of viewers that a round makes of it.
const KIND_BYTES: usize = 128;
/// Bitrates within this factor count as one bitrate, because a player's measured throughput never
/// repeats exactly.
const ALIKE: f64 = 1.25;

/// For each place: number of requests by bitrate.
type Kinds = BTreeMap<(String, String), BTreeMap<u64, u32>>;

/// Bytes of a place without its bitrates.
const fn place_bytes(location: &str, isp: &str) -> usize {
    PLACE_BYTES + location.len() + isp.len()
}

/// Requests of one window.
#[derive(Debug, Default)]
struct WindowCounts {
    kinds: Kinds,
    /// Bytes of the counts.
    bytes: usize,
    /// Number of players using each network.
    playing: BTreeMap<PeerId, u64>,
    all: u64,
}

impl WindowCounts {
    /// Counts requests of a place and bitrate that may be new. Returns the number of requests
    /// forgotten to make room.
    fn insert(&mut self, location: &str, isp: &str, bitrate: BitRate, sessions: u32) -> u64 {
        let key = (location.to_owned(), isp.to_owned());
        if !self.kinds.contains_key(&key) {
            self.bytes += place_bytes(location, isp);
        }
        let bitrates = self.kinds.entry(key).or_default();
        let before = bitrates.len();
        let count = bitrates.entry(alike(bitrate)).or_default();
        *count = count.saturating_add(sessions);
        self.bytes += (bitrates.len() - before) * KIND_BYTES;
        let mut forgotten = 0;
        if self.bytes > WINDOW_BYTES_MAX {
            while self.bytes > WINDOW_BYTES_MAX / 2 {
                forgotten += self.thin();
            }
        }
        forgotten
    }

    /// Forgets the half of all bitrates of places that has the fewest requests, at least one.
    /// Returns the number of forgotten requests.
    fn thin(&mut self) -> u64 {
        let mut counts: Vec<u32> = self.kinds.values().flat_map(BTreeMap::values).copied().collect();
        let half = counts.len().div_ceil(2);
        let middle = half.min(counts.len() - 1);
        let (fewer, most, _) = counts.select_nth_unstable(middle);
        let most = *most;
        // Of the bitrates with exactly the median count, only those needed to reach one half are
        // forgotten.
        let mut alike_left = half - fewer.iter().filter(|count| **count < most).count();
        let (mut forgotten, mut freed) = (0, 0);
        self.kinds.retain(|(location, isp), bitrates| {
            bitrates.retain(|_, count| {
                let is_one_of_alike = *count == most && alike_left > 0;
                alike_left -= usize::from(is_one_of_alike);
                let goes = *count < most || is_one_of_alike;
                forgotten += if goes { u64::from(*count) } else { 0 };
                freed += if goes { KIND_BYTES } else { 0 };
                !goes
            });
            freed += if bitrates.is_empty() { place_bytes(location, isp) } else { 0 };
            !bitrates.is_empty()
        });
        self.bytes -= freed;
        forgotten
    }
}

/// Requests of the current and the previous window.
#[derive(Debug)]
pub struct RequestCounter {
    window: Duration,
    began_at: Instant,
    /// Requests of the previous window; `None` before the second window begins.
    before: Option<WindowCounts>,
    /// Requests of the current window.
    now: WindowCounts,
    dropped: u64,
}

/// Representative of the bitrates that count as one with `bitrate`.
fn alike(bitrate: BitRate) -> u64 {
    let step = (bitrate.as_bps().max(1_000) as f64 / 1_000.0).log(ALIKE).round();
    (1_000.0 * ALIKE.powf(step)).round() as u64
}

impl RequestCounter {
    /// Creates counts over `window`, the interval in which each player sends one request.
    pub fn new(now: Instant, window: Duration) -> Self {
        Self { window, began_at: now, before: None, now: WindowCounts::default(), dropped: 0 }
    }

    /// Resumes after a restart: the viewers of a decision count until the first window ends, unless
    /// more requests arrive before its end.
    #[must_use]
    pub fn after(mut self, decision: &Decision) -> Self {
        let mut before = WindowCounts::default();
        for placed in &decision.placed {
            if let Some((location, isp)) = decision.places.get(placed.place as usize) {
                before.insert(location, isp, placed.bitrate, placed.sessions);
                before.all += u64::from(placed.sessions);
            }
        }
        self.before = Some(before);
        self
    }

    /// Counts a player's request, and the network that it currently uses, if any.
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
        self.dropped += self.now.insert(&viewer.location, &viewer.isp, viewer.bitrate, 1);
    }

    /// Number of requests not counted, for lack of memory for their places.
    pub const fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Viewers of the previous window, or of the current window if it is the first or has more
    /// requests.
    ///
    /// Cost: some milliseconds at the maximum number of places.
    pub fn gathered(&mut self, now: Instant) -> Vec<PlaceDemand> {
        let (gathered, left_out) = most_viewed(&self.of_late(now).kinds);
        self.dropped += left_out;
        gathered
    }

    /// Number of players using each network, from the window that [`RequestCounter::gathered`]
    /// uses.
    pub fn playing(&mut self, now: Instant) -> BTreeMap<PeerId, u64> {
        self.of_late(now).playing.clone()
    }

    fn of_late(&mut self, now: Instant) -> &WindowCounts {
        self.turn(now);
        self.before.as_ref().filter(|before| before.all >= self.now.all).unwrap_or(&self.now)
    }

    fn turn(&mut self, now: Instant) {
        let passed = now.saturating_since(self.began_at);
        if passed < self.window {
            return;
        }
        let last = std::mem::take(&mut self.now);
        // If a whole window passed without requests, the previous window has no viewers.
        self.before = Some(if passed < self.window * 2 { last } else { WindowCounts::default() });
        self.began_at = now;
    }
}

/// Approximate bytes of counted places, rounded up.
pub fn bytes(gathered: &[PlaceDemand]) -> usize {
    // The two names are two heap blocks with overhead; a deserialized list may be half empty.
    let of = |of: &PlaceDemand| {
        size_of::<PlaceDemand>()
            + 48
            + of.location.len()
            + of.isp.len()
            + of.clients.len() * 2 * size_of::<Clients>()
    };
    gathered.iter().map(of).sum()
}

/// Sums the counts of several brokers, keeping the places with the most viewers.
pub fn together(all: impl IntoIterator<Item = PlaceDemand>) -> Vec<PlaceDemand> {
    let mut kinds = Kinds::new();
    for PlaceDemand { location, isp, clients } in all {
        let place = kinds.entry((location, isp)).or_default();
        for Clients { bitrate_bps, sessions } in clients {
            let count = place.entry(bitrate_bps).or_default();
            *count = count.saturating_add(sessions);
        }
    }
    most_viewed(&kinds).0
}

/// Returns the places of a round, and the number of viewers of the places left out. If places are
/// left out, the remaining ones are sorted by falling number of viewers.
fn most_viewed(kinds: &Kinds) -> (Vec<PlaceDemand>, u64) {
    type PlaceCounts<'a> = (&'a (String, String), &'a BTreeMap<u64, u32>);
    let viewers = |of: &PlaceCounts<'_>| of.1.values().copied().map(u64::from).sum::<u64>();
    let names = |of: &PlaceCounts<'_>| of.0.0.len() + of.0.1.len();
    let mut places: Vec<PlaceCounts<'_>> = kinds.iter().collect();
    let mut left_out = 0;
    if places.len() > PLACES_MAX || places.iter().map(names).sum::<usize>() > NAMES_BYTES_MAX {
        places.sort_by_cached_key(|of| Reverse(viewers(of)));
        let mut bytes = 0;
        let fits = |of: &PlaceCounts<'_>| {
            bytes += names(of);
            bytes <= NAMES_BYTES_MAX
        };
        let count = places.iter().copied().take(PLACES_MAX).take_while(fits).count();
        left_out = places.drain(count..).map(|of| viewers(&of)).sum();
    }
    let of = |((location, isp), bitrates): PlaceCounts<'_>| PlaceDemand {
        location: location.clone(),
        isp: isp.clone(),
        clients: bitrates.iter().map(|(&bitrate_bps, &sessions)| Clients { bitrate_bps, sessions }).collect(),
    };
    (places.into_iter().map(of).collect(), left_out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::ClientPlacement;
    use proptest::prelude::*;

    fn viewer(location: &str, kbps: u64) -> Viewer {
        Viewer { location: location.into(), isp: "x".into(), bitrate: BitRate::bps(kbps * 1_000), number: 0 }
    }

    fn at(s: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(s)
    }

    fn sessions(gathered: &[PlaceDemand]) -> Vec<(String, u32)> {
        let all = |of: &PlaceDemand| of.clients.iter().map(|some| some.sessions).sum();
        gathered.iter().map(|of| (of.location.clone(), all(of))).collect()
    }

    fn those(expected: &[(&str, u32)]) -> Vec<(String, u32)> {
        expected.iter().map(|(location, sessions)| ((*location).to_owned(), *sessions)).collect()
    }

    #[test]
    fn gathered_viewers_are_the_requests_of_one_window() {
        let mut counting = RequestCounter::new(at(0), Duration::from_secs(10));
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

    /// Invented places displace no real place, in any order of arrival. #48: invented places held
    /// 590 MiB of a broker.
    #[test]
    fn rarest_places_are_forgotten_beyond_the_byte_limit() {
        let mut counting = RequestCounter::new(at(0), Duration::from_secs(10));
        let asked = 300_000;
        for number in 0..asked {
            counting.note(at(0), &viewer(&format!("none {number}"), 3_000), None);
            // The viewers of a real place begin when the byte limit is reached, and then send
            // requests throughout.
            if number > 100_000 && number % 1_000 == 0 {
                counting.note(at(0), &viewer("berlin", 3_000), None);
            }
            assert!(counting.now.bytes <= WINDOW_BYTES_MAX);
        }
        let berlin = asked / 1_000 - 101;
        let places = counting.of_late(at(0)).kinds.len();
        let forgotten = counting.dropped();
        let gathered = counting.gathered(at(0));
        assert_eq!(gathered.len(), places.min(PLACES_MAX));
        let beyond = counting.dropped() - forgotten;
        assert_eq!(beyond, (places - gathered.len()) as u64);
        assert!(sessions(&gathered).contains(&("berlin".to_owned(), berlin)));
        let known =
            gathered.iter().flat_map(|of| &of.clients).map(|some| u64::from(some.sessions)).sum::<u64>();
        assert_eq!(known + counting.dropped(), u64::from(asked + berlin), "no question is lost to sight");
    }

    proptest! {
        /// The byte count matches the places and bitrates held, after any requests and removals.
        #[test]
        fn byte_count_matches_the_held_places_and_bitrates(
            asked in proptest::collection::vec(("[a-c]{1,3}", "[a-b]{1,2}", 0u64..4), 0..200),
            thinned in 0usize..4,
        ) {
            let mut questions = WindowCounts::default();
            let mut all = 0;
            for (location, isp, mbps) in &asked {
                all += 1 + questions.insert(location, isp, BitRate::mbps(*mbps), 1);
            }
            for _ in 0..thinned {
                let kinds = |of: &WindowCounts| of.kinds.values().map(BTreeMap::len).sum::<usize>();
                let before = kinds(&questions);
                if before > 0 {
                    all -= questions.thin();
                    prop_assert_eq!(kinds(&questions), before / 2);
                }
            }
            let held = questions.kinds.iter().map(|((location, isp), of)| {
                PLACE_BYTES + location.len() + isp.len() + of.len() * KIND_BYTES
            });
            prop_assert_eq!(questions.bytes, held.sum::<usize>());
            let left: u64 = questions.kinds.values().flat_map(BTreeMap::values).copied().map(u64::from).sum();
            prop_assert_eq!(left, all);
        }
    }

    /// #48: ten copies of the longest names made up most of the memory that untrusted clients could
    /// fill.
    #[test]
    fn place_names_of_a_round_stay_within_the_limit() {
        let mut counting = RequestCounter::new(at(0), Duration::from_secs(10));
        for number in 0..40_000u32 {
            let name = format!("{number:0>128}");
            counting.note(at(0), &Viewer { isp: name.clone(), ..viewer(&name, 3_000) }, None);
        }
        (0..3).for_each(|_| counting.note(at(0), &viewer("berlin", 3_000), None));
        let gathered = counting.gathered(at(0));
        let names: usize = gathered.iter().map(|of| of.location.len() + of.isp.len()).sum();
        assert!((NAMES_BYTES_MAX - 256..=NAMES_BYTES_MAX).contains(&names), "{names}");
        assert_eq!(sessions(&gathered)[0], ("berlin".to_owned(), 3));
    }

    #[test]
    fn clients_of_the_last_decision_count_for_one_window() {
        let placed =
            |place, sessions| ClientPlacement { place, bitrate: BitRate::mbps(3), sessions, to: None };
        let decision = Decision {
            round: 7,
            places: vec![("berlin".into(), "x".into()), ("paris".into(), "x".into())],
            placed: vec![placed(0, 40), placed(1, 10), placed(0, 2)],
            prices_per_mbps: BTreeMap::new(),
            gap_share: 0.0,
            standings: BTreeMap::new(),
        };
        let mut counting = RequestCounter::new(at(0), Duration::from_secs(10)).after(&decision);
        counting.note(at(1), &viewer("berlin", 3_000), None);
        assert_eq!(sessions(&counting.gathered(at(9))), those(&[("berlin", 42), ("paris", 10)]));
        assert_eq!(sessions(&counting.gathered(at(10))), those(&[("berlin", 1)]));
    }

    #[test]
    fn nearly_equal_bitrates_count_as_one() {
        let mut counting = RequestCounter::new(at(0), Duration::from_secs(10));
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
