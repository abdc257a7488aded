//! What the last hop carries, where the client is not told, and only as long as several servers overflow it: found by what arrives.
//!
//! Each server finds the rate of its path alone. Where a path loses more than it did before, that is either chance or the sum of what
//! all servers send. The client finds out which by having them send no more than what arrives: if most of the loss is gone then,
//! that was what the link carries, and it stays divided among servers. It is looked for more every few seconds, as BBR does: a
//! quarter more is granted for a round trip, or less where that was too much before.
//!
//! One measure may be of a process that had to wait, or of what came in a burst after that: a rate counts as high as two measures in a
//! row show it, and what one alone shows lowers it by a part only. Where many servers have begun as one processors are busier: a rate
//! counts as high as two means of three measures show it while it is held, and as the middle one of three in a probe.
//!
//! What a path loses anyway is made up for. A rate that is a little too high loses as much by the queue, seems to lose it anyway, and
//! would be made ever higher: of many servers no more is believed than was lost when less was granted, after probes.
//!
//! What is divided so would be held whatever others on the link do, and would leave a flow of Cubic a tenth of its share. So where a link
//! that is divided has to be cut twice within seconds, each server finds its rate alone for some time, as fair to others as its BBR
//! is. Only where servers have hardly a packet in flight each is it divided further: their BBR could not send less.
//!
//! There losses are chance's, too, as long as servers see no queue: of 128 packets a path that loses 5 % in runs of 8 loses none or a fifth.
//! How far measures are from each other is learnt, and only what is far beyond that cuts a rate. With a queue it is others that lose.
//!
//! Before all of this many servers begin as one (`start`).
//!
//! Source: the phases and their lengths are those of BBR's probes (draft-ietf-ccwg-bbr-06 section 5.3.3), of all servers together.
//! Leaves out: who is granted which share (`hop`). Read [`Overflow`] first.

use super::came::{LOSS_FLOOD, Servers, Totals};
use super::start::{Said, Start};
use anabranch_transport::bbr::PATH_LOSS_MAX;
use anabranch_units::{Duration, Instant};

/// A share lost beyond what is usual that is no chance, as BBR has it (section 2.5, LossThresh), and the fewest lost packets.
const LOSS_MORE: f64 = 0.02;
const LOST_MIN: u64 = 8;
/// How long it is measured at least, in round trips, time and packets.
const MEASURE_RTTS: u64 = 2;
const MEASURE_MIN: Duration = Duration::from_ms(20);
const MEASURE_PACKETS: u64 = 128;
/// While the link of many servers is held so many measures count together: where processes wait for processors what comes in 20 ms is from a
/// half to twice what the link carries, and the highest of two in a row was up to 1.5 times that.
const LONG_MEASURES: u32 = 3;
/// What fewer packets say is nothing, however long it is measured.
const LEAST_PACKETS: u64 = 8;
/// A rate shows once so many packets of each server have come.
const EACH_PACKETS: u64 = 2;
/// Where a share of [`LOSS_FLOOD`] is lost the first measure is enough, and may be as short as this where servers have few packets in flight.
const FLOOD_MIN: Duration = Duration::from_ms(5);
const FLOOD_PACKETS: u64 = 64;
/// A start that has filled the link is tested as if so much had been lost: it is, soon.
const LOSS_FULL: f64 = 2.0 * PATH_LOSS_MAX;
/// How long losses that were before a test may be found after its beginning.
const SETTLES: Duration = Duration::from_ms(30);
/// Of many servers the path's own loss is no more than this above what was lost while less was granted; the mean of about so many such
/// times.
const LOSS_DRAINED_MORE: f64 = 0.005;
const DRAINED_PART: f64 = 4.0;
/// What a test, and a link that is divided, keep free of what was seen to arrive: a queue drains by that.
const TEST_SHARE: f64 = 0.95;
const HOLD_SHARE: f64 = 0.99;
/// Where so much is lost in a test the rate may still be too high, and how often it is tested again at a lower one.
const LOSS_DOUBTED: f64 = 0.1;
const TESTS_MORE: u32 = 2;
/// The least that is left of a rate where much is lost; and after a probe for a round trip so much less is granted, beside what the
/// probe granted more.
const CUT_SHARE: f64 = 0.85;
const DRAIN_PART: f64 = 0.6;
/// How long it is not looked for more: at most, or twice the least where that is more; and at least, in round trips, too, where the
/// rate was just found, or cut.
const HOLD_MOST: Duration = Duration::from_secs(2);
const HOLD_LEAST: Duration = Duration::from_ms(200);
const HOLD_RTTS: u64 = 8;
/// With fewer packets in flight a server can hardly send more slowly: BBR keeps four at least.
const FEW_PACKETS: f64 = 8.0;
/// Where servers see no queue a loss is no chance that is beyond the usual by so many times the mean distance of measures from that; and how
/// many measures that is the mean of. With 4, 6 and 8 times as far three servers over 100 Mbit/s and 1 ms have 76, 81 and 83 Mbit/s at 5 % lost
/// in runs of 8 behind a tenth of a product, where every loss that was much cut the rate 54 (simulated, six seeds).
const CHANCE_SPREADS: f64 = 8.0;
const SPREAD_PART: f64 = 8.0;
/// The most that is taken for chance so: what is lost beyond that is an overflow's.
const CHANCE_MOST: f64 = 2.0 * LOSS_FLOOD;
/// A link whose rate has to be cut again within this has others on it.
const CUT_AGAIN: Duration = Duration::from_secs(5);
/// How long it is not divided where others were met: twice as long each time that it held for less than twice that.
const REST_LEAST: Duration = Duration::from_ms(500);
const REST_MOST: Duration = Duration::from_secs(30);
/// How much more is granted to look for more: at first, and at least.
const PROBE_MORE: f64 = 0.25;
const PROBE_MORE_MIN: f64 = 0.05;
/// The most where servers have begun as one. A link is full there of which less than such a share of what is granted comes; and where all
/// but this comes as much is looked for as by others.
const PROBE_MORE_MANY: f64 = 0.125;
const FILLED_SHARE: f64 = 0.9;
const ALL_SHARE: f64 = 0.98;
/// A rate has grown that is higher by this share in two measures in a row, of many servers in two of three. Less than such a share of what
/// came before, while more is granted and little lost, is of something that had to wait; so many measures are tried.
const GROWN: f64 = 0.02;
const WAITED_SHARE: f64 = 0.9;
const PROBE_MEASURES: u32 = 3;
/// Losses that are found late fall by this factor at least from one measure of a test to the next; where they grow by as much, the test
/// has not begun everywhere.
const FALLS: f64 = 0.75;
/// A link is not full whose rate grows by this factor from one measure to the next, as servers begin.
const GROWS: f64 = 1.5;
/// A link that overflows is full: where less than this share comes of what came lately, what was lost was lost before, and servers wait for
/// what is to be made up for.
const FULL_SHARE: f64 = 0.7;
/// With each measure what came before counts so much less.
const CARRIED_FADES: f64 = 0.95;

#[derive(Copy, Clone, Debug, PartialEq)]
enum Phase {
    /// Nothing is granted: each server has its own rate. What the last measure found: whether much was lost, and the rate.
    Free { was_much: bool, bytes_per_s: f64 },
    /// No more than what arrived is granted. So much of it was lost before, and in the last measure of the test; and how many tests there
    /// were before it, at other rates.
    Test { loss: f64, last_loss: f64, tests: u32 },
    /// What the link carries is divided.
    Hold { since: Instant },
    /// More is granted, and was measured so many times.
    Probe { measures: u32 },
    /// So much less is granted, as what the probe left in a queue drains.
    Drain { less: f64 },
}

/// What was measured of one step.
#[derive(Copy, Clone, Debug)]
struct Seen {
    bytes_per_s: f64,
    packets: u64,
    /// Of them, those of servers that see a queue.
    queued: u64,
    lost: u64,
    /// Packets that each server has in flight where as much arrives as ever did, or now if that is more.
    each_packets: f64,
}

impl Seen {
    fn loss(&self) -> f64 {
        self.lost as f64 / (self.lost + self.packets).max(1) as f64
    }

    /// Whether each server has so few packets in flight, where the link is theirs, that its own control cannot send less than it carries. One that
    /// has few as others take the link is not meant: held to that it could never have more.
    fn is_few(&self) -> bool {
        self.each_packets < FEW_PACKETS
    }

    /// Whether that is so, and no queue is seen by most: what is lost is lost by chance, unless the link overflows.
    fn is_calm(&self) -> bool {
        self.is_few() && self.queued * 2 <= self.packets
    }

    /// That much more comes than the link carries, and no server can send less by itself.
    fn is_flood(&self) -> bool {
        self.loss() > LOSS_FLOOD && self.packets >= FLOOD_PACKETS && self.is_few()
    }
}

/// What came in measures that count together, in bytes a second.
#[derive(Copy, Clone, Debug)]
struct Several {
    measures: u32,
    sum: f64,
    /// The mean of [`LONG_MEASURES`] before these.
    last_mean: f64,
    /// The highest of them, and the one below it.
    highest: f64,
    second: f64,
}

impl Several {
    const NONE: Self = Self { measures: 0, sum: 0.0, last_mean: 0.0, highest: 0.0, second: 0.0 };

    fn note(&mut self, bytes_per_s: f64) {
        self.measures += 1;
        self.sum += bytes_per_s;
        self.second = bytes_per_s.min(self.highest).max(self.second);
        self.highest = bytes_per_s.max(self.highest);
    }

    /// The lower one of two means in a row, where there are as many measures; 0 before.
    fn long(&mut self) -> f64 {
        if self.measures < LONG_MEASURES {
            return 0.0;
        }
        let mean = self.sum / f64::from(self.measures);
        mean.min(std::mem::replace(self, Self { last_mean: mean, ..Self::NONE }).last_mean)
    }
}

const FREE: Phase = Phase::Free { was_much: false, bytes_per_s: 0.0 };
const PROBE: Phase = Phase::Probe { measures: 0 };

/// Finds what a link carries that overflows.
#[derive(Clone, Debug)]
pub(super) struct Overflow {
    phase: Phase,
    /// From when on what arrives is of this step, and what had come then; none before.
    measures_from: Instant,
    began: Option<(Instant, Totals)>,
    /// The share that is lost where the link does not overflow.
    path_loss: f64,
    /// How far from it measures are in the mean, while the link is divided and servers see no queue.
    spread: f64,
    /// The share that was lost lately where less was granted than the link carries.
    drained_loss: f64,
    /// The most that arrived since the last probe, and since the one before, in bytes a second; and what did in the last measure.
    rates: [f64; 2],
    last: f64,
    several: Several,
    probe_more: f64,
    /// How long it is not looked for more now.
    wait: Duration,
    /// Since when it is divided; until when it is not, after others were met; and how long that is.
    held_from: Instant,
    /// When its rate was cut last.
    cut_at: Option<Instant>,
    rests_until: Instant,
    rest: Duration,
    servers: usize,
    /// Servers have begun as one; and that start, as long as it lasts.
    has_begun: bool,
    start: Option<Start>,
    /// What came lately of all servers, in bytes a second: the most, and little less with each measure.
    carried: f64,
    /// The most packets that ever came in a second, as two measures in a row show it; and those of the last one.
    most_packets_per_s: f64,
    last_packets_per_s: f64,
}

impl Overflow {
    pub(super) const fn new() -> Self {
        Self {
            phase: FREE,
            measures_from: Instant::ZERO,
            began: None,
            path_loss: 0.0,
            spread: 0.0,
            drained_loss: 0.0,
            rates: [0.0; 2],
            last: 0.0,
            several: Several::NONE,
            probe_more: PROBE_MORE,
            wait: HOLD_LEAST,
            held_from: Instant::ZERO,
            cut_at: None,
            rests_until: Instant::ZERO,
            rest: REST_LEAST,
            servers: 0,
            has_begun: false,
            start: None,
            carried: 0.0,
            most_packets_per_s: 0.0,
            last_packets_per_s: 0.0,
        }
    }

    /// Bytes of datagrams in a second that came lately.
    pub(super) const fn carried_bytes_per_s(&self) -> f64 {
        self.carried
    }

    /// So many servers begin, the farthest of which is `rtt` away, with packets of so many bytes: as one, if need be.
    pub(super) fn begin(&mut self, now: Instant, servers: usize, rtt: Duration, packet_bytes: f64) {
        if let Phase::Free { .. } = self.phase {
            self.start = Start::new(now, servers, rtt, packet_bytes, self.carried);
            if self.start.is_some() {
                (self.has_begun, self.probe_more) = (true, PROBE_MORE_MANY);
            }
        }
    }

    /// Whether they have begun as one, which they do once.
    pub(super) const fn has_begun(&self) -> bool {
        self.has_begun
    }

    /// Whether it is not known yet, or not any more, what the link carries.
    pub(super) const fn is_unsure(&self) -> bool {
        self.start.is_some() || matches!(self.phase, Phase::Test { .. })
    }

    /// Whether what it carries is divided, and no more is looked for now.
    pub(super) const fn is_held(&self) -> bool {
        matches!(self.phase, Phase::Hold { .. })
    }

    /// The share that is lost where the link does not overflow.
    pub(super) const fn path_loss(&self) -> f64 {
        self.path_loss
    }

    /// Whether servers begin as one.
    pub(super) const fn is_starting(&self) -> bool {
        self.start.is_some()
    }

    /// Bytes of datagrams that servers may send in a second, all together; no limit without.
    pub(super) fn allowed_bytes_per_s(&self) -> Option<f64> {
        if let Some(start) = &self.start {
            return Some(start.allowed_bytes_per_s());
        }
        let rate = self.rate();
        let share = match self.phase {
            Phase::Free { .. } => return None,
            Phase::Test { .. } => return Some(TEST_SHARE * rate),
            // Where they wait for processors many servers send some 2 % less than they are granted.
            Phase::Hold { .. } if self.has_begun => 1.0,
            Phase::Hold { .. } => HOLD_SHARE,
            Phase::Probe { .. } => 1.0 + self.probe_more,
            // Nothing is made up for: what is lost then is not lost by a queue.
            Phase::Drain { less } if self.has_begun => return Some((HOLD_SHARE - less) * rate),
            Phase::Drain { less } => HOLD_SHARE - less,
        };
        Some(share * rate / (1.0 - self.path_loss))
    }

    /// What the link was seen to carry.
    const fn rate(&self) -> f64 {
        self.rates[0].max(self.rates[1])
    }

    /// Takes in what has come from these servers. True where another rate is allowed now.
    pub(super) fn observe(&mut self, now: Instant, totals: Totals, from: Servers) -> bool {
        let Servers { asked: servers, rtt, .. } = from;
        let has_more = servers > std::mem::replace(&mut self.servers, servers);
        if let Some(start) = &mut self.start {
            match start.observe(now, totals, from) {
                Said::Nothing => return false,
                Said::Changed => return true,
                Said::Enough => self.enter(now, FREE, rtt),
                Said::Full(rate) => {
                    self.rates = [rate, 0.0];
                    self.enter(now, Phase::Test { loss: LOSS_FULL, last_loss: LOSS_FULL, tests: 0 }, rtt);
                }
            }
            self.start = None;
            return true;
        }
        if has_more && let Phase::Hold { .. } | Phase::Drain { .. } = self.phase {
            // One that has come may have a way of its own.
            self.enter(now, PROBE, rtt);
            return true;
        }
        if now < self.measures_from {
            return false;
        }
        let is_free = matches!(self.phase, Phase::Free { .. });
        let (since, before) = *self.began.get_or_insert((now, totals));
        if is_free && totals.packets == before.packets {
            // Servers have not begun.
            self.began = Some((now, totals));
            return false;
        }
        let time = now.saturating_since(since);
        let packets = totals.packets.saturating_sub(before.packets);
        let (rtts, least) = match self.phase {
            Phase::Free { .. } | Phase::Test { .. } | Phase::Hold { .. } => (MEASURE_RTTS, MEASURE_PACKETS),
            Phase::Probe { .. } | Phase::Drain { .. } => (1, LEAST_PACKETS),
        };
        let least = least.max(EACH_PACKETS * servers as u64);
        let bytes = totals.bytes.saturating_sub(before.bytes);
        let lost = totals.lost.saturating_sub(before.lost);
        let packets_per_s = packets as f64 / time.as_secs_f64();
        let most_packets_per_s = packets_per_s.max(self.most_packets_per_s);
        let each_packets = most_packets_per_s * rtt.as_secs_f64() / servers.max(1) as f64;
        let queued = totals.queued.saturating_sub(before.queued);
        let seen =
            Seen { bytes_per_s: bytes as f64 / time.as_secs_f64(), packets, queued, lost, each_packets };
        let is_flood = is_free && seen.is_flood() && time >= FLOOD_MIN;
        if !is_flood && (time < (rtt * rtts).max(MEASURE_MIN) || packets < least) {
            return false;
        }
        self.began = None;
        let last = std::mem::replace(&mut self.last_packets_per_s, packets_per_s);
        self.most_packets_per_s = self.most_packets_per_s.max(last.min(packets_per_s));
        self.step(now, seen, rtt, servers)
    }

    fn step(&mut self, now: Instant, seen: Seen, rtt: Duration, servers: usize) -> bool {
        // Of many servers what was lost while less was granted is the path's own, whether it was made up for before or not. No more than
        // `LOSS_MORE` is learnt while the link is held, and may be what a probe has lost.
        let is_known = self.has_begun && self.drained_loss > LOSS_MORE;
        let usual = if is_known { self.path_loss.max(self.drained_loss) } else { self.path_loss };
        let is_much = seen.loss() > usual + LOSS_MORE && seen.lost >= LOST_MIN;
        // Less is lost than by chance: what seemed chance was an overflow, which goes on as long as what it loses is made up for.
        let parts = match self.phase {
            Phase::Drain { .. } => 2.0,
            Phase::Free { .. } => 8.0,
            Phase::Test { .. } | Phase::Hold { .. } | Phase::Probe { .. } => f64::INFINITY,
        };
        self.path_loss -= (self.path_loss - seen.loss()).max(0.0) / parts;
        // What came in two measures in a row.
        let last = std::mem::replace(&mut self.last, seen.bytes_per_s);
        let sure = seen.bytes_per_s.min(last);
        self.carried = sure.max(CARRIED_FADES * self.carried);
        match self.phase {
            Phase::Free { bytes_per_s, .. } if self.has_room(bytes_per_s, seen) => {
                // As long as ever more arrives there is no overflow.
                self.phase = Phase::Free { was_much: false, bytes_per_s: seen.bytes_per_s };
                return false;
            }
            // Servers that begin lose much once, and see that themselves.
            Phase::Free { was_much, .. }
                if is_much
                    && servers > 1
                    && now >= self.rests_until
                    && (was_much || seen.loss() > LOSS_FLOOD)
                    && (seen.is_flood() || seen.bytes_per_s >= FULL_SHARE * self.carried) =>
            {
                let rate = match seen.bytes_per_s {
                    // What is too high is found by the test.
                    rate if seen.is_flood() => rate.max(last),
                    rate if rate > GROWS * sure => rate,
                    _ => sure,
                };
                self.rates = [rate, 0.0];
                self.enter(now, Phase::Test { loss: seen.loss(), last_loss: seen.loss(), tests: 0 }, rtt);
            }
            Phase::Free { .. } => {
                self.phase = Phase::Free { was_much: is_much, bytes_per_s: seen.bytes_per_s };
                return false;
            }
            // What was lost before the test is often found only now, and servers that begin in it lose some more.
            Phase::Test { loss, last_loss, tests }
                if is_much && !(FALLS * last_loss..last_loss / FALLS).contains(&seen.loss()) =>
            {
                self.phase = Phase::Test { loss, last_loss: seen.loss(), tests };
                return false;
            }
            // Less, and yet much: the rate that was tested may still be more than the link carries.
            Phase::Test { loss, tests, .. }
                if is_much && (LOSS_DOUBTED..FALLS * loss).contains(&seen.loss()) && tests < TESTS_MORE =>
            {
                self.rates = [seen.bytes_per_s.clamp(CUT_SHARE * self.rate(), self.rate()), 0.0];
                let last_loss = seen.loss();
                self.enter(now, Phase::Test { loss, last_loss, tests: tests + 1 }, rtt);
            }
            Phase::Test { loss, .. } if seen.loss() - self.path_loss < (loss - self.path_loss) / 2.0 => {
                self.path_loss = seen.loss().min(PATH_LOSS_MAX);
                self.drained_loss = self.path_loss;
                self.held_from = now;
                // It was found while servers began, and may be too high or too low.
                let rate = self.rate();
                self.rates = [(seen.bytes_per_s / TEST_SHARE).clamp(CUT_SHARE * rate, rate), 0.0];
                self.enter(now, PROBE, rtt);
            }
            Phase::Test { loss, tests: 0, .. } if seen.bytes_per_s < WAITED_SHARE * self.rate() => {
                // What arrived before may have been a burst.
                self.rates = [seen.bytes_per_s, 0.0];
                self.enter(now, Phase::Test { loss, last_loss: loss, tests: 1 }, rtt);
            }
            Phase::Test { loss, .. } => {
                // Chance has it.
                self.path_loss = loss.min(seen.loss()).min(PATH_LOSS_MAX);
                self.enter(now, FREE, rtt);
            }
            Phase::Hold { since } => {
                let by_chance = if seen.is_calm() { CHANCE_SPREADS * self.spread } else { 0.0 };
                let is_much = is_much && seen.loss() > usual + LOSS_MORE + by_chance.min(CHANCE_MOST);
                if seen.is_calm() {
                    self.spread += ((seen.loss() - self.path_loss).abs() - self.spread) / SPREAD_PART;
                }
                let was_cut = self.cut_at.is_some_and(|at| now < at + CUT_AGAIN);
                if is_much && (!was_cut || seen.is_few()) {
                    self.cut_at = Some(now);
                    // The link carries less than it did, or others have come.
                    let rate = self.rate();
                    self.rates = [seen.bytes_per_s.max(CUT_SHARE * rate).min(rate), 0.0];
                    self.wait = HOLD_LEAST;
                } else if is_much {
                    // The same, and servers can find out by themselves.
                    let lasted = now.saturating_since(self.held_from);
                    self.rest =
                        if lasted > self.rest * 2 { REST_LEAST } else { (self.rest * 2).min(REST_MOST) };
                    self.rests_until = now + self.rest;
                    self.enter(now, FREE, rtt);
                    return true;
                } else {
                    self.path_loss += (seen.loss() - self.path_loss) / 8.0;
                    // What too high a rate loses looks like the path's own, is made up for, and makes the rate higher still.
                    let most = if self.has_begun || seen.is_calm() {
                        self.drained_loss + LOSS_DRAINED_MORE
                    } else {
                        1.0
                    };
                    self.path_loss = self.path_loss.min(most).min(PATH_LOSS_MAX);
                    self.several.note(seen.bytes_per_s);
                    self.rates[1] =
                        self.rates[1].max(if self.has_begun { self.several.long() } else { sure });
                }
                if since + self.wait.max(rtt * HOLD_RTTS) <= now {
                    self.enter(now, PROBE, rtt);
                    return true;
                }
                return is_much;
            }
            Phase::Probe { measures } => {
                let rate = self.rate();
                let grown = rate * (1.0 + GROWN);
                // Neither that it carries no more nor that it does.
                let is_waiting = seen.bytes_per_s < WAITED_SHARE * rate && !is_much;
                // What had to wait comes in a burst: of three measures the middle one is neither.
                self.several.note(seen.bytes_per_s);
                let sure = if self.has_begun { self.several.second } else { sure };
                let has_grown = sure > grown;
                let says_little = seen.bytes_per_s > grown || is_waiting || (self.has_begun && !is_much);
                if says_little && !has_grown && measures + 1 < PROBE_MEASURES {
                    self.phase = Phase::Probe { measures: measures + 1 };
                    return false;
                }
                let more = self.probe_more;
                // Of many servers' probes a short queue takes little; and where less comes than is granted the link is full.
                let granted = (1.0 + more) * rate;
                let (most, is_full, sure) = match self.has_begun {
                    true => (PROBE_MORE_MANY, sure < FILLED_SHARE * granted, sure.min(granted)),
                    false => (PROBE_MORE, false, sure),
                };
                self.probe_more = match (has_grown && !is_full, is_much) {
                    (true, false) if sure < ALL_SHARE * granted => most,
                    (true, false) => PROBE_MORE,
                    (_, true) => (more / 2.0).max(PROBE_MORE_MIN),
                    (false, false) => (more * 2.0).min(most),
                };
                let least = HOLD_LEAST.max(rtt * HOLD_RTTS);
                self.wait =
                    if has_grown { least } else { (self.wait.max(least) * 2).min(HOLD_MOST.max(least * 2)) };
                match (has_grown, is_much || is_full) {
                    (true, false) => {
                        self.rates = [0.0, sure];
                        self.enter(now, PROBE, rtt);
                    }
                    // What comes of more than the link carries is what it carries.
                    (true, true) => {
                        self.rates = [sure, 0.0];
                        let beyond = (granted / sure - 1.0).max(0.0);
                        self.enter(now, Phase::Drain { less: beyond * DRAIN_PART }, rtt);
                    }
                    (false, _) => {
                        // What arrived before the last probe is forgotten.
                        let last = if self.has_begun && measures > 0 { sure } else { seen.bytes_per_s };
                        let shown = self.rates[1].max(last.min(grown));
                        self.rates = [shown.max(CUT_SHARE * rate), 0.0];
                        self.enter(now, Phase::Drain { less: more * DRAIN_PART }, rtt);
                    }
                }
            }
            Phase::Drain { less } => {
                // What a probe has lost may be found still later.
                let loss = seen.loss().min(self.drained_loss + LOSS_MORE);
                self.drained_loss += (loss - self.drained_loss) / DRAINED_PART;
                if is_much {
                    // What a probe has lost is often found only now.
                    self.probe_more = (less / DRAIN_PART / 2.0).max(PROBE_MORE_MIN);
                }
                self.enter(now, Phase::Hold { since: now }, rtt);
            }
        }
        true
    }

    /// Whether so much more arrives than before that the link is not full yet.
    fn has_room(&self, before_bytes_per_s: f64, seen: Seen) -> bool {
        before_bytes_per_s > 0.0
            && seen.bytes_per_s > GROWS * before_bytes_per_s
            && seen.loss() < PATH_LOSS_MAX
    }

    /// What is granted now arrives a round trip later; in a queue it takes longer.
    fn enter(&mut self, now: Instant, phase: Phase, rtt: Duration) {
        let settles = match phase {
            Phase::Test { .. } => (rtt * 2).max(SETTLES),
            // What a probe has lost is found by then.
            Phase::Drain { .. } if self.has_begun => rtt.max(MEASURE_MIN),
            _ => rtt,
        };
        (self.phase, self.began, self.measures_from) = (phase, None, now + settles);
        if let Phase::Hold { .. } | Phase::Probe { .. } = phase {
            (self.last, self.several) = (0.0, Several::NONE);
        }
    }
}

#[cfg(test)]
mod tests;
