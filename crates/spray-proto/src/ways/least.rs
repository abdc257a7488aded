//! The fastest of several: of three random paths, the one with the lowest recent delay.
//!
//! Source: the power of two choices (Mitzenmacher, 2001), as DRILL applies it in switches (Ghorbani
//! and others, 2017), with echoes in place of queue lengths. A path's *excess* is its last packet's
//! delay beyond the fastest on any path. The excess decays with age, and packets in flight add to
//! it.
//!
//! A path is *shunned* while its excess exceeds the fastest round trip (a mark counts as one such
//! excess), and after a loss until a packet arrives again. Probes find out when the path has
//! recovered, so that no data is spent on it. The first probe leaves a tenth of a second after the
//! last packet. The interval doubles while nothing arrives. A path that loses one packet in several
//! dozens is also shunned, unless most paths lose as many.
//!
//! If a packet is late and no later packet has arrived either, every path may be dead. Then each
//! path is *doubted* until a packet arrives over it, and some paths are probed at once. Read
//! [`Least`] first.

use super::{PacketFate, Spreader};
use anabranch_units::{Duration, Instant, RandomStream};

/// Default number of paths.
const WAYS: usize = 128;
/// Default time of a packet on a link: 1,500 bytes at 1 Gbit/s.
const PACKET_TIME: Duration = Duration::from_us(12);
/// Number of random paths compared for each packet.
const DRAWN: usize = 3;
/// Time constant of the excess's exponential decay.
const MEMORY: Duration = Duration::from_ms(100);
/// Age from which an observation no longer keeps a path from being used.
const FORGOTTEN: Duration = Duration::from_secs(10);
/// Length of the window over which the fastest round trip is taken.
const BASE_WINDOW: Duration = Duration::from_secs(10);
/// Excesses below this, or below an eighth of the fastest round trip, count as equal.
const EVEN: Duration = Duration::from_us(20);
/// Interval between two probes of a shunned path. The interval doubles at most `DOUBLINGS_MAX`
/// times while nothing arrives.
const PROBE: Duration = Duration::from_ms(100);
const DOUBLINGS_MAX: u32 = 6;
/// Silence after which a path is also probed when another path dies, and minimum interval between
/// two such probes. A silent path may have died or recovered.
const STALE: Duration = Duration::from_ms(50);
const ASKED: Duration = Duration::from_secs(1);
/// Minimum interval between two rounds of probes, normally and while nothing arrives over any path.
const ASK: Duration = Duration::from_ms(100);
const ASK_DARK: Duration = Duration::from_ms(20);
/// Number of random paths in a round of probes: some of them are likely alive.
const ASKED_MAX: usize = 12;
/// Loss rate above which a path counts as lossy. A loss adds a sixteenth to the estimate, and an
/// arrival takes a 64th of the estimate away, so a single loss fades after some 90 packets.
const LOSSY_PPM: u32 = 1_000_000 / 64;
const LOST_STEP: u32 = 1_000_000 / 16;

/// State of one path.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct PathState {
    /// Last round trip, and whether it was marked.
    last: Duration,
    is_marked: bool,
    heard_at: Instant,
    /// Number of packets sent over the path whose fate is undecided.
    unheard: u32,
    /// Time of the first unanswered packet since the last arrival.
    waiting_since: Option<Instant>,
    /// Number of losses since the last arrival.
    missing: u32,
    /// Estimated loss rate in parts per million: a moving average with more weight on losses.
    lost_ppm: u32,
    probe_at: Instant,
    /// True if the path must be probed even if it is not shunned, and the time of the last such
    /// probe.
    is_asked: bool,
    asked_at: Option<Instant>,
    /// True if nothing arrived over any path, and no packet has arrived over this path since then.
    is_doubted: bool,
    /// Smoothed round trip.
    pub(super) rtt: Option<Duration>,
    pub(super) marked: u64,
    pub(super) late: u64,
    pub(super) came: u64,
}

/// Reason for shunning a path, the mildest first. A dead path is used only if all paths are dead.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum PathDefect {
    None,
    Crowded,
    Lossy,
    Doubted,
    Dead,
}

/// Paths of one flow, or paths to one host.
#[derive(Debug)]
pub(super) struct Least {
    ways: Vec<PathState>,
    /// Transmission time of a packet on the narrowest link. Each packet in flight adds this time to
    /// the excess.
    packet_time: Duration,
    jitter: Duration,
    random: RandomStream,
    /// Fastest round trip of the current window and the previous one.
    base: [Option<Duration>; 2],
    base_since: Instant,
    /// Number of lossy paths.
    lossy: usize,
    /// True if the owner calls [`Least::probe`]; otherwise a doubted path would stay doubted.
    has_probes: bool,
    /// True while nothing arrives over any path.
    is_dark: bool,
    /// Time of the last round of probes.
    asked_at: Option<Instant>,
}

impl Least {
    /// Creates the default number of paths without probes, for a single flow.
    pub(super) fn new(random: RandomStream) -> Self {
        Self { has_probes: false, ..Self::with_ways(random, WAYS, PACKET_TIME, Duration::ZERO) }
    }

    /// Creates `count` paths with probes. Round trips vary by `jitter` without a cause in the
    /// network.
    pub(super) fn with_ways(
        random: RandomStream,
        count: usize,
        packet_time: Duration,
        jitter: Duration,
    ) -> Self {
        assert!(count > 0, "there is a way");
        let ways = vec![PathState::default(); count];
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

    pub(super) fn way(&self, value: u16) -> Option<&PathState> {
        self.ways.get(usize::from(value))
    }
    pub(super) fn count(&self) -> usize {
        self.ways.len()
    }
    /// Fastest round trip, once known.
    pub(super) fn base(&self) -> Option<Duration> {
        self.base.into_iter().flatten().min()
    }

    /// Returns true if a packet was lost on the path, and none has arrived since.
    pub(super) fn is_dead(&self, value: u16) -> bool {
        self.way(value).is_some_and(|way| way.missing > 0)
    }

    /// Returns true if the path is lossy and most other paths are not.
    fn is_lossy(&self, value: u16) -> bool {
        self.lossy * 4 <= self.ways.len() * 3 && self.ways[usize::from(value)].lost_ppm > LOSSY_PPM
    }

    /// Returns true if the path has a defect, so that it is used only for lack of a better one.
    pub(super) fn is_shunned(&self, now: Instant, value: u16) -> bool {
        self.badness(now, value) != PathDefect::None
    }

    /// Reason for shunning the path at present.
    fn badness(&self, now: Instant, value: u16) -> PathDefect {
        if self.is_dead(value) {
            PathDefect::Dead
        } else if self.ways[usize::from(value)].is_doubted {
            PathDefect::Doubted
        } else if self.is_lossy(value) {
            PathDefect::Lossy
        } else if self.is_crowded(now, value) {
            PathDefect::Crowded
        } else {
            PathDefect::None
        }
    }

    /// Returns true if the path is dead or lossy.
    pub(super) fn is_failing(&self, value: u16) -> bool {
        self.is_dead(value) || self.is_lossy(value)
    }

    /// Returns true if a long flow should leave its path: nothing has arrived for two of the path's
    /// round trips, or the path loses packets without a full queue. A flow that fills a queue sees
    /// long delays and losses on any path.
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

    /// Returns true if the path's recent excess, a mark included, exceeds the fastest round trip
    /// and the jitter.
    pub(super) fn is_crowded(&self, now: Instant, value: u16) -> bool {
        let (Some(way), Some(base)) = (self.way(value), self.base()) else { return false };
        let is_known = way.rtt.is_some() && now.saturating_since(way.heard_at) < FORGOTTEN;
        is_known && Duration::from_ps(way.excess_ps(base)) > base.max(self.jitter)
    }

    /// Returns the current excess of a path; 0 if the excess counts as equal (see `EVEN`).
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

    /// Requests probes of some random paths that satisfy `is_due`, unless a round of probes took
    /// place within `pause`.
    fn ask(&mut self, now: Instant, pause: Duration, is_due: impl Fn(&PathState) -> bool) {
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

    /// Returns true if packets were late and nothing has arrived over any path since then.
    pub(super) const fn is_dark(&self) -> bool {
        self.is_dark
    }

    /// Returns a random path.
    pub(super) fn any(&mut self) -> u16 {
        self.random.below(self.ways.len() as u64) as u16
    }

    /// Returns a path to probe now: a shunned path, or a path with stale state after a loss on
    /// another path.
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

    /// Returns a candidate path: a random path that is not shunned, or else a crowded one. If eight
    /// draws find neither, returns the least bad path.
    fn draw(&mut self, now: Instant) -> u16 {
        let count = self.ways.len() as u16;
        let (mut value, mut crowded) = (0, None);
        for _ in 0..8 {
            value = self.random.below(count.into()) as u16;
            match self.badness(now, value) {
                PathDefect::None => return value,
                PathDefect::Crowded => _ = crowded.get_or_insert(value),
                PathDefect::Lossy | PathDefect::Doubted | PathDefect::Dead => {}
            }
        }
        if let Some(crowded) = crowded {
            return crowded;
        }
        // Searches all paths once, from the last draw on.
        let others = (value..count).chain(0..value);
        others.min_by_key(|value| self.badness(now, *value)).unwrap_or(value)
    }

    /// Returns the best of `drawn` random candidates. Among candidates with the same defect, `busy`
    /// decides before the delay.
    pub(super) fn quickest(&mut self, now: Instant, drawn: usize, busy: impl Fn(u16) -> u32) -> u16 {
        let mut best: Option<((PathDefect, u32, Duration), u16)> = None;
        for _ in 0..drawn {
            let value = self.draw(now);
            let under_way = self.packet_time * u64::from(self.ways[usize::from(value)].unheard);
            let this = (self.badness(now, value), busy(value), self.excess(now, value) + under_way);
            // Among equal paths the first one drawn is kept.
            if best.is_none_or(|(best, _)| this < best) {
                best = Some((this, value));
            }
        }
        best.map_or(0, |(_, value)| value)
    }
}

impl PathState {
    /// Delay of the last packet beyond the fastest on any path. A mark adds one fastest round trip.
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
        // One of the packets sent since then should be acknowledged within a round trip.
        way.waiting_since = (way.unheard > 1).then_some(now);
        let smoothed = |before: Duration| before.as_ps() - before.as_ps() / 8 + rtt.as_ps() / 8;
        way.rtt = Some(way.rtt.map_or(rtt, |before| Duration::from_ps(smoothed(before))));
    }

    fn handle_fate(&mut self, now: Instant, value: u16, fate: PacketFate) {
        let Some(way) = self.ways.get_mut(usize::from(value)) else { return };
        way.unheard = way.unheard.saturating_sub(1);
        let lost = way.lost_ppm;
        match fate {
            PacketFate::Late => {
                way.late += 1;
                let is_first = way.missing == 0;
                if is_first {
                    way.probe_at = now + PROBE;
                }
                way.missing = way.missing.saturating_add(1);
                self.set_lost(value, (lost - lost / 16) + LOST_STEP);
                if is_first && !self.is_dark {
                    // Other paths may be dead, too, or may have recovered.
                    let is_old =
                        |at: Option<Instant>, age| at.is_none_or(|at| now.saturating_since(at) > age);
                    self.ask(now, ASK, |way| {
                        let heard_at = way.rtt.map(|_| way.heard_at);
                        way.missing == 0 && is_old(way.asked_at, ASKED) && is_old(heard_at, STALE)
                    });
                }
            }
            PacketFate::Came | PacketFate::Marked => {
                way.came += 1;
                way.missing = 0;
                way.is_marked = fate == PacketFate::Marked;
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

    /// Handles a late arrival: the path is crowded rather than dead.
    fn handle_belated(&mut self, now: Instant, value: u16, rtt: Duration) {
        self.handle_round_trip(now, value, rtt);
        let Some(way) = self.ways.get_mut(usize::from(value)) else { return };
        // The late packet is already deducted from `unheard`, so only other packets are awaited.
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

    /// Three of ten paths are crowded. None of them is used while other paths exist, and each is
    /// probed ten times a second.
    #[test]
    fn equal_paths_are_used_equally_and_crowded_paths_probed() {
        let mut least = least(10);
        for value in 0..10 {
            let rtt = if value < 3 { 3_000 } else { 200 + u64::from(value) };
            least.handle_round_trip(at(0), value, Duration::from_us(rtt));
            least.handle_fate(at(0), value, PacketFate::Came);
        }
        let now = counts(&mut least, at(10), 7_000);
        assert!(now[..3].iter().sum::<usize>() == 0, "{now:?}");
        assert!(now[3..].iter().all(|count| (700..1_300).contains(count)), "{now:?}");
        let mut probes = [0; 10];
        for ms in 0..1_000 {
            while let Some(value) = least.probe(at(ms * 1_000)) {
                probes[usize::from(value)] += 1;
                // Path 1 has recovered.
                let rtt = if value == 1 { 210 } else { 3_000 };
                least.handle_round_trip(at(ms * 1_000), value, Duration::from_us(rtt));
                least.handle_fate(at(ms * 1_000), value, PacketFate::Came);
            }
        }
        assert_eq!(probes, [9, 1, 9, 0, 0, 0, 0, 0, 0, 0]);
        assert!(counts(&mut least, at(1_000_000), 1_000)[1] > 50);
        // Old observations do not count: path 0 is used again.
        assert!(counts(&mut least, at(12_000_000), 1_000)[0] > 50);
    }

    #[test]
    fn probes_of_a_dead_path_back_off_until_answered() {
        let mut least = least(4);
        least.handle_round_trip(at(0), 1, Duration::from_us(100));
        least.handle_fate(at(0), 2, PacketFate::Late);
        assert!(least.is_dead(2) && counts(&mut least, at(0), 100)[2] == 0);
        let (mut tried, mut others) = (Vec::new(), Vec::new());
        for ms in 0..20_000 {
            while let Some(value) = least.probe(at(ms * 1_000)) {
                if value == 2 {
                    tried.push(ms);
                    least.handle_fate(at(ms * 1_000), value, PacketFate::Late);
                } else {
                    others.push((ms, value));
                    least.handle_round_trip(at(ms * 1_000), value, Duration::from_us(100));
                    least.handle_fate(at(ms * 1_000), value, PacketFate::Came);
                }
            }
        }
        assert_eq!(tried[..6], [100, 200, 400, 800, 1_600, 3_200]);
        assert_eq!(others, [(0, 0), (0, 3)], "those of which nothing was known are asked once");
        least.handle_belated(at(20_000_000), 2, Duration::from_us(110));
        assert!(!least.is_dead(2) && counts(&mut least, at(20_000_000), 100)[2] == 0, "it loses packets");
        (0..400).for_each(|_| least.handle_fate(at(20_000_000), 2, PacketFate::Came));
        assert!(counts(&mut least, at(20_000_000), 100)[2] > 5, "not any more");
    }

    /// A share of the paths loses one packet in twenty. After some hundred packets these paths
    /// carry hardly any packets, and probes do not bring them back.
    #[test]
    fn lossy_paths_are_shunned_unless_most_are_lossy() {
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
                    least.handle_fate(now, value, PacketFate::Late);
                } else {
                    least.handle_round_trip(now, value, Duration::from_us(200));
                    least.handle_fate(now, value, PacketFate::Came);
                }
                late += usize::from(is_lost && probe.is_none() && n > 3_000);
            }
            assert!(late <= most, "{late} of 17,000 packets were lost with {lossy} of 64 ways");
            assert!(lossy < 48 || late > 100, "where most ways lose packets all are taken: {late}");
        }
    }

    #[test]
    fn dead_path_is_used_when_all_paths_are_dead() {
        let mut least = least(3);
        (0..3).for_each(|value| least.handle_fate(at(0), value, PacketFate::Late));
        assert_eq!(counts(&mut least, at(1), 100).iter().sum::<usize>(), 100);
    }
    /// With dead paths and lossy paths, no packet takes a dead path.
    #[test]
    fn lossy_path_is_preferred_to_a_dead_path() {
        let mut least = least(64);
        for value in 0..64 {
            least.handle_round_trip(at(0), value, Duration::from_us(100));
            least.handle_fate(at(0), value, PacketFate::Came);
            least.handle_fate(at(0), value, PacketFate::Late);
            if value == 7 {
                least.handle_fate(at(0), value, PacketFate::Came);
            }
        }
        // If all paths are lossy, loss does not matter. Then some of the paths recover.
        for value in (20..60).filter(|value| *value != 7) {
            least.set_lost(value, 0);
        }
        assert!(least.is_lossy(7) && !least.is_dead(7));
        assert_eq!(counts(&mut least, at(10), 100)[7], 100);
    }
}
