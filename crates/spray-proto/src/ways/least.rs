//! The quickest of some: of three ways drawn, the one that was the quickest when last heard of.
//!
//! Source: the power of two choices (Mitzenmacher, 2001), as DRILL has it in switches (Ghorbani and others, 2017), with what echoes say in
//! the place of queues. A way's *excess* is by how much longer its last packet took than the fastest on any way; it counts the less the
//! older it is, and packets that are under way count beside. A way is *shunned* while its excess is more than that fastest round trip
//! (a mark counts as so much), and when a packet did not come by it: until one does. Packets that carry nothing find out when that is, so that
//! none that is waited for is spent on it: a tenth of a second after the last, and by a way by which nothing comes after twice as long each time.
//! A way that loses one packet in some dozens is shunned for as long as it does, unless most ways lose as many.
//! Where a packet is late and nothing came of all that left later, every way may be dead: all are *doubted* until something comes by them, and
//! some are asked by probes at once. Read [`Least`] first.

use super::{Fate, Spreader};
use anabranch_units::{Duration, Instant, RandomStream};

/// How many ways there are, where nobody says.
const WAYS: usize = 128;
/// The time of a packet on a link, where nobody says: 1,500 bytes at 1 Gbit/s.
const PACKET_TIME: Duration = Duration::from_us(12);
/// How many are drawn to choose from.
const DRAWN: usize = 3;
/// Within which time an excess falls to 1/e.
const MEMORY: Duration = Duration::from_ms(100);
/// After so long nothing that was heard of a way keeps it from being taken.
const FORGOTTEN: Duration = Duration::from_secs(10);
/// How often the fastest packet is looked for anew.
const BASE_WINDOW: Duration = Duration::from_secs(10);
/// Excesses below this, or below an eighth of the fastest round trip, are all alike.
const EVEN: Duration = Duration::from_us(20);
/// How often a shunned way is tried, and how often that doubles where nothing comes.
const PROBE: Duration = Duration::from_ms(100);
const DOUBLINGS_MAX: u32 = 6;
/// A way of which nothing was heard for so long is asked when another one dies, as more may be dead, or alive again; and not again for so long.
const STALE: Duration = Duration::from_ms(50);
const ASKED: Duration = Duration::from_secs(1);
/// How often some are asked at the most, and while nothing is heard by any.
const ASK: Duration = Duration::from_ms(100);
const ASK_DARK: Duration = Duration::from_ms(20);
/// How many are asked at once, drawn at random: of so many some are alive.
const ASKED_MAX: usize = 12;
/// A way loses packets above this share. One that does not come adds a sixteenth, one that does takes a 64th of it away: after a single loss that
/// takes some 90 packets.
const LOSSY_PPM: u32 = 1_000_000 / 64;
const LOST_STEP: u32 = 1_000_000 / 16;

/// What is known of one way.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct Way {
    /// The last packet's round trip, and whether it was marked.
    last: Duration,
    is_marked: bool,
    heard_at: Instant,
    /// Packets that left by it and of which nothing is known.
    unheard: u32,
    /// Since when nothing has come although something left.
    waiting_since: Option<Instant>,
    /// Packets that did not come since the last that did.
    missing: u32,
    /// The share of packets that do not come, in millionths: the mean of the last ones, of which those that did not come count more.
    lost_ppm: u32,
    probe_at: Instant,
    /// It is to be tried whether it is shunned or not; and when that last was so.
    is_asked: bool,
    asked_at: Option<Instant>,
    /// Nothing was heard of it since nothing was heard of any.
    is_doubted: bool,
    /// The smoothed round trip.
    pub(super) rtt: Option<Duration>,
    pub(super) marked: u64,
    pub(super) late: u64,
    pub(super) came: u64,
}

/// Why a way is shunned, the worst last: of ways by which nothing comes none is taken while any others are there, though they lose packets.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Badness {
    None,
    Crowded,
    Lossy,
    Doubted,
    Dead,
}

/// All ways of one flow, or to one host.
#[derive(Debug)]
pub(super) struct Least {
    ways: Vec<Way>,
    /// The time of a packet on the narrowest link, for which each one that is under way counts.
    packet_time: Duration,
    jitter: Duration,
    random: RandomStream,
    /// The fastest round trip of this window and of the one before.
    base: [Option<Duration>; 2],
    base_since: Instant,
    /// Ways that lose packets.
    lossy: usize,
    /// Whether [`Least::probe`] is asked: else a way that is doubted would stay so.
    has_probes: bool,
    /// Nothing is heard by any way.
    is_dark: bool,
    /// When some were last asked.
    asked_at: Option<Instant>,
}

impl Least {
    /// One that has no probes, as a flow's alone.
    pub(super) fn new(random: RandomStream) -> Self {
        Self { has_probes: false, ..Self::with_ways(random, WAYS, PACKET_TIME, Duration::ZERO) }
    }

    /// Ways from 0 on, so many, that are asked by probes. Round trips differ by `jitter` for no reason in the network.
    pub(super) fn with_ways(
        random: RandomStream,
        count: usize,
        packet_time: Duration,
        jitter: Duration,
    ) -> Self {
        assert!(count > 0, "there is a way");
        let ways = vec![Way::default(); count];
        Self {
            ways,
            packet_time,
            jitter,
            random,
            base: [None; 2],
            base_since: Instant::ZERO,
            lossy: 0,
            has_probes: true,
            is_dark: false,
            asked_at: None,
        }
    }

    pub(super) fn way(&self, value: u16) -> Option<&Way> {
        self.ways.get(usize::from(value))
    }
    pub(super) fn count(&self) -> usize {
        self.ways.len()
    }
    /// The fastest round trip, once known.
    pub(super) fn base(&self) -> Option<Duration> {
        self.base.into_iter().flatten().min()
    }

    /// Whether a packet did not come by it, and none since.
    pub(super) fn is_dead(&self, value: u16) -> bool {
        self.way(value).is_some_and(|way| way.missing > 0)
    }

    /// Whether it loses packets, and most others do not.
    fn is_lossy(&self, value: u16) -> bool {
        self.lossy * 4 <= self.ways.len() * 3 && self.ways[usize::from(value)].lost_ppm > LOSSY_PPM
    }

    /// Whether it is taken only where no other is found.
    pub(super) fn is_shunned(&self, now: Instant, value: u16) -> bool {
        self.badness(now, value) != Badness::None
    }

    /// How much better any other way would be.
    fn badness(&self, now: Instant, value: u16) -> Badness {
        if self.is_dead(value) {
            Badness::Dead
        } else if self.ways[usize::from(value)].is_doubted {
            Badness::Doubted
        } else if self.is_lossy(value) {
            Badness::Lossy
        } else if self.is_crowded(now, value) {
            Badness::Crowded
        } else {
            Badness::None
        }
    }

    /// Whether packets do not come by it, or too few.
    pub(super) fn is_failing(&self, value: u16) -> bool {
        self.is_dead(value) || self.is_lossy(value)
    }

    /// Whether a flow that fills it had better leave it: nothing has come for two of its own round trips, or it loses packets though no queue
    /// is full. A flow that fills a queue takes longer than others and loses packets there, and would by any other way.
    pub(super) fn is_hopeless(&self, now: Instant, value: u16) -> bool {
        let Some(way) = self.way(value) else { return false };
        let rtt = way.rtt.into_iter().chain(self.base()).max().unwrap_or(self.jitter);
        let longest = (rtt + rtt).max(rtt + self.jitter);
        way.waiting_since.is_some_and(|since| now.saturating_since(since) > longest)
            || (self.is_lossy(value) && !self.is_crowded(now, value))
    }

    fn set_lost(&mut self, value: u16, lost_ppm: u32) {
        let way = &mut self.ways[usize::from(value)];
        self.lossy -= usize::from(way.lost_ppm > LOSSY_PPM);
        way.lost_ppm = lost_ppm;
        self.lossy += usize::from(way.lost_ppm > LOSSY_PPM);
    }

    /// Whether its last packet took so much longer than the fastest on any that others are better.
    pub(super) fn is_crowded(&self, now: Instant, value: u16) -> bool {
        let (Some(way), Some(base)) = (self.way(value), self.base()) else { return false };
        let is_known = way.rtt.is_some() && now.saturating_since(way.heard_at) < FORGOTTEN;
        is_known && Duration::from_ps(way.excess_ps(base)) > base.max(self.jitter)
    }

    /// By how much it is slower than the fastest, as far as is known now; nothing where that is less than counts.
    fn excess(&self, now: Instant, value: u16) -> Duration {
        let (Some(way), Some(base)) = (self.way(value), self.base()) else { return Duration::ZERO };
        let (excess, even) = (way.excess_ps(base), (base.as_ps() / 8).max(EVEN.as_ps()));
        if excess < even {
            return Duration::ZERO;
        }
        let age = now.saturating_since(way.heard_at).as_secs_f64() / MEMORY.as_secs_f64();
        let left = (excess as f64 * (-age).exp()) as u64;
        if left < even { Duration::ZERO } else { Duration::from_ps(left) }
    }

    /// Asks some of the ways of which nothing is known how they are, unless that was done within the pause.
    fn ask(&mut self, now: Instant, pause: Duration, is_due: impl Fn(&Way) -> bool) {
        if self.asked_at.is_some_and(|at| now.saturating_since(at) < pause) {
            return;
        }
        self.asked_at = Some(now);
        let mut due: Vec<usize> = (0..self.ways.len()).filter(|way| is_due(&self.ways[*way])).collect();
        for _ in 0..due.len().min(ASKED_MAX) {
            let way = due.swap_remove(self.random.below(due.len() as u64) as usize);
            (self.ways[way].is_asked, self.ways[way].asked_at) = (true, Some(now));
        }
    }

    /// Whether nothing was heard of any way since packets were late.
    pub(super) const fn is_dark(&self) -> bool {
        self.is_dark
    }

    /// Any way.
    pub(super) fn any(&mut self) -> u16 {
        self.random.below(self.ways.len() as u64) as u16
    }

    /// A way that is to be tried now: one that is shunned, or of which nothing is known since another one died.
    pub(super) fn probe(&mut self, now: Instant) -> Option<u16> {
        let is_due = |value: &u16| {
            let way = &self.ways[usize::from(*value)];
            way.is_asked || (way.probe_at <= now && self.is_shunned(now, *value))
        };
        let value = (0..self.ways.len() as u16).find(is_due)?;
        let way = &mut self.ways[usize::from(value)];
        way.is_asked = false;
        way.probe_at = now + PROBE * (1 << way.missing.saturating_sub(1).min(DOUBLINGS_MAX));
        Some(value)
    }

    /// A way to choose among: one at random that is not shunned, or at least not failing. Where hardly any is, the next one of those that are the
    /// least bad.
    fn draw(&mut self, now: Instant) -> u16 {
        let count = self.ways.len() as u16;
        let (mut value, mut crowded) = (0, None);
        for _ in 0..8 {
            value = self.random.below(count.into()) as u16;
            match self.badness(now, value) {
                Badness::None => return value,
                Badness::Crowded => _ = crowded.get_or_insert(value),
                Badness::Lossy | Badness::Doubted | Badness::Dead => {}
            }
        }
        if let Some(crowded) = crowded {
            return crowded;
        }
        // From the last one on, once round.
        let others = (value..count).chain(0..value);
        others.min_by_key(|value| self.badness(now, *value)).unwrap_or(value)
    }

    /// The quickest of so many that are drawn, by what `busy` says of each beside.
    pub(super) fn quickest(&mut self, now: Instant, drawn: usize, busy: impl Fn(u16) -> u32) -> u16 {
        let mut best: Option<((Badness, u32, Duration), u16)> = None;
        for _ in 0..drawn {
            let value = self.draw(now);
            let under_way = self.packet_time * u64::from(self.ways[usize::from(value)].unheard);
            let this = (self.badness(now, value), busy(value), self.excess(now, value) + under_way);
            // Of two that are alike the first one drawn.
            if best.is_none_or(|(best, _)| this < best) {
                best = Some((this, value));
            }
        }
        best.map_or(0, |(_, value)| value)
    }
}

impl Way {
    /// By how much its last packet took longer than the fastest on any; one that was marked, by so much more.
    fn excess_ps(&self, base: Duration) -> u64 {
        let marked = if self.is_marked { base.as_ps() + 1 } else { 0 };
        self.last.as_ps().saturating_sub(base.as_ps()) + marked
    }
}

impl Spreader for Least {
    fn choose(&mut self, now: Instant, _: usize) -> u16 {
        self.quickest(now, DRAWN, |_| 0)
    }

    fn handle_leaving(&mut self, now: Instant, value: u16) {
        if let Some(way) = self.ways.get_mut(usize::from(value)) {
            way.unheard += 1;
            way.waiting_since.get_or_insert(now);
        }
    }

    fn handle_round_trip(&mut self, now: Instant, value: u16, rtt: Duration) {
        if now.saturating_since(self.base_since) >= BASE_WINDOW {
            self.base = [None, self.base[0]];
            self.base_since = now;
        }
        self.base[0] = Some(self.base[0].map_or(rtt, |base| base.min(rtt)));
        let Some(way) = self.ways.get_mut(usize::from(value)) else { return };
        (way.last, way.is_marked, way.heard_at) = (rtt, false, now);
        way.probe_at = now + PROBE;
        (way.is_doubted, self.is_dark) = (false, false);
        // Of those that left since, something is heard within a round trip of now.
        way.waiting_since = (way.unheard > 1).then_some(now);
        let smoothed = |before: Duration| before.as_ps() - before.as_ps() / 8 + rtt.as_ps() / 8;
        way.rtt = Some(way.rtt.map_or(rtt, |before| Duration::from_ps(smoothed(before))));
    }

    fn handle_fate(&mut self, now: Instant, value: u16, fate: Fate) {
        let Some(way) = self.ways.get_mut(usize::from(value)) else { return };
        way.unheard = way.unheard.saturating_sub(1);
        let lost = way.lost_ppm;
        match fate {
            Fate::Late => {
                way.late += 1;
                let is_first = way.missing == 0;
                if is_first {
                    way.probe_at = now + PROBE;
                }
                way.missing = way.missing.saturating_add(1);
                self.set_lost(value, (lost - lost / 16) + LOST_STEP);
                if is_first && !self.is_dark {
                    // The others may be dead, too, or alive again.
                    let is_old =
                        |at: Option<Instant>, age| at.is_none_or(|at| now.saturating_since(at) > age);
                    self.ask(now, ASK, |way| {
                        let heard_at = way.rtt.map(|_| way.heard_at);
                        way.missing == 0 && is_old(way.asked_at, ASKED) && is_old(heard_at, STALE)
                    });
                }
            }
            Fate::Came | Fate::Marked => {
                way.came += 1;
                way.missing = 0;
                way.is_marked = fate == Fate::Marked;
                way.marked += u64::from(way.is_marked);
                self.set_lost(value, lost - lost / 64);
            }
        }
    }

    fn handle_darkness(&mut self, now: Instant) {
        if !self.has_probes {
            return;
        }
        self.is_dark = true;
        for way in self.ways.iter_mut().filter(|way| !way.is_doubted) {
            (way.is_doubted, way.probe_at) = (true, now + PROBE);
        }
        self.ask(now, ASK_DARK, |_| true);
    }

    /// It is crowded, and not dead.
    fn handle_belated(&mut self, now: Instant, value: u16, rtt: Duration) {
        self.handle_round_trip(now, value, rtt);
        let Some(way) = self.ways.get_mut(usize::from(value)) else { return };
        // It was given up before, so that others are waited for alone.
        way.waiting_since = (way.unheard > 0).then_some(now);
        way.missing = 0;
        let lost = way.lost_ppm;
        self.set_lost(value, lost.saturating_sub(LOST_STEP));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_units::Seed;

    fn at(us: u64) -> Instant {
        Instant::ZERO + Duration::from_us(us)
    }
    fn least(ways: usize) -> Least {
        Least::with_ways(Seed::new(1).stream("ways", 0), ways, PACKET_TIME, Duration::ZERO)
    }
    fn counts(least: &mut Least, now: Instant, packets: usize) -> Vec<usize> {
        let mut counts = vec![0; least.count()];
        (0..packets).for_each(|_| counts[usize::from(least.choose(now, 0))] += 1);
        counts
    }

    /// Three ways of ten are crowded: none of them is taken while others are there, and each is tried ten times a second.
    #[test]
    fn ways_that_are_alike_are_taken_alike_and_crowded_ones_are_tried_by_probes_alone() {
        let mut least = least(10);
        for value in 0..10 {
            let rtt = if value < 3 { 3_000 } else { 200 + u64::from(value) };
            least.handle_round_trip(at(0), value, Duration::from_us(rtt));
            least.handle_fate(at(0), value, Fate::Came);
        }
        let now = counts(&mut least, at(10), 7_000);
        assert!(now[..3].iter().sum::<usize>() == 0, "{now:?}");
        assert!(now[3..].iter().all(|count| (700..1_300).contains(count)), "{now:?}");
        let mut probes = [0; 10];
        for ms in 0..1_000 {
            while let Some(value) = least.probe(at(ms * 1_000)) {
                probes[usize::from(value)] += 1;
                // One is not crowded any more.
                let rtt = if value == 1 { 210 } else { 3_000 };
                least.handle_round_trip(at(ms * 1_000), value, Duration::from_us(rtt));
                least.handle_fate(at(ms * 1_000), value, Fate::Came);
            }
        }
        assert_eq!(probes, [9, 1, 9, 0, 0, 0, 0, 0, 0, 0]);
        assert!(counts(&mut least, at(1_000_000), 1_000)[1] > 50);
        // What nobody has heard of for long says nothing.
        assert!(counts(&mut least, at(12_000_000), 1_000)[0] > 50);
    }

    #[test]
    fn a_way_by_which_nothing_comes_is_tried_half_as_often_each_time_until_something_does() {
        let mut least = least(4);
        least.handle_round_trip(at(0), 1, Duration::from_us(100));
        least.handle_fate(at(0), 2, Fate::Late);
        assert!(least.is_dead(2) && counts(&mut least, at(0), 100)[2] == 0);
        let (mut tried, mut others) = (Vec::new(), Vec::new());
        for ms in 0..20_000 {
            while let Some(value) = least.probe(at(ms * 1_000)) {
                if value == 2 {
                    tried.push(ms);
                    least.handle_fate(at(ms * 1_000), value, Fate::Late);
                } else {
                    others.push((ms, value));
                    least.handle_round_trip(at(ms * 1_000), value, Duration::from_us(100));
                    least.handle_fate(at(ms * 1_000), value, Fate::Came);
                }
            }
        }
        assert_eq!(tried[..6], [100, 200, 400, 800, 1_600, 3_200]);
        assert_eq!(others, [(0, 0), (0, 3)], "those of which nothing was known are asked once");
        least.handle_belated(at(20_000_000), 2, Duration::from_us(110));
        assert!(!least.is_dead(2) && counts(&mut least, at(20_000_000), 100)[2] == 0, "it loses packets");
        (0..400).for_each(|_| least.handle_fate(at(20_000_000), 2, Fate::Came));
        assert!(counts(&mut least, at(20_000_000), 100)[2] > 5, "not any more");
    }

    /// Half of the ways lose one packet in twenty: within some hundred packets hardly any is sent by these, and probes do not bring them back.
    #[test]
    fn ways_that_lose_some_packets_are_shunned_unless_most_do() {
        for (lossy, most) in [(32, 30), (60, 10_000)] {
            let mut least = least(64);
            let mut random = Seed::new(2).stream("loss", 0);
            let mut late = 0;
            for n in 0..20_000 {
                let now = at(n * 500);
                let probe = least.probe(now);
                let value = probe.unwrap_or_else(|| least.choose(now, 0));
                least.handle_leaving(now, value);
                let is_lost = usize::from(value) < lossy && random.chance_ppm(50_000);
                if is_lost {
                    least.handle_fate(now, value, Fate::Late);
                } else {
                    least.handle_round_trip(now, value, Duration::from_us(200));
                    least.handle_fate(now, value, Fate::Came);
                }
                late += usize::from(is_lost && probe.is_none() && n > 3_000);
            }
            assert!(late <= most, "{late} of 17,000 packets were lost with {lossy} of 64 ways");
            assert!(lossy < 48 || late > 100, "where most ways lose packets all are taken: {late}");
        }
    }

    #[test]
    fn where_all_are_dead_one_is_taken_all_the_same() {
        let mut least = least(3);
        (0..3).for_each(|value| least.handle_fate(at(0), value, Fate::Late));
        assert_eq!(counts(&mut least, at(1), 100).iter().sum::<usize>(), 100);
    }
    /// Where ways are dead, and the others lose packets, none goes by the dead ones.
    #[test]
    fn a_way_that_loses_packets_is_better_than_one_by_which_nothing_comes() {
        let mut least = least(64);
        for value in 0..64 {
            least.handle_round_trip(at(0), value, Duration::from_us(100));
            least.handle_fate(at(0), value, Fate::Came);
            least.handle_fate(at(0), value, Fate::Late);
            if value == 7 {
                least.handle_fate(at(0), value, Fate::Came);
            }
        }
        // Where all lose packets it does not matter; then some do not any more.
        for value in (20..60).filter(|value| *value != 7) {
            least.set_lost(value, 0);
        }
        assert!(least.is_lossy(7) && !least.is_dead(7));
        assert_eq!(counts(&mut least, at(10), 100)[7], 100);
    }
}
