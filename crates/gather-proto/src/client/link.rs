//! Estimates the rate of the last hop from arriving packets, if the rate is not configured and
//! several servers overflow the hop.
//!
//! At first each server finds the rate of its path alone. If the loss rate of a path rises, the
//! cause is either random loss or the total rate of all servers. The client tells the two causes
//! apart by a test: it grants the servers only the rate that arrives. If most of the loss
//! disappears, that rate is the link's capacity, and the client keeps dividing it among the
//! servers. Every few seconds the client probes for more, as BBR does: for a round trip it grants a
//! quarter more, or less than that if the last probe was too high.
//!
//! A single measurement may be distorted by a delayed process, or by the burst after the delay. An
//! estimate therefore rises only to the lower of two successive measurements, and a single low
//! measurement reduces the estimate by a limited factor. After a common start of many servers,
//! processors are busier. The estimate then rises to the lower of two means of three measurements
//! while the rate is held, and to the median of three measurements in a probe.
//!
//! Grants compensate for the path's own loss rate. A rate that is slightly too high loses packets
//! at the queue. These losses look like the path's own loss and would raise the rate further. With
//! many servers, the path's own loss rate is therefore capped: the cap is measured after probes,
//! while the servers are granted less than the link's rate.
//!
//! Servers with a divided rate do not yield to competing flows, and would leave a Cubic flow a
//! tenth of its share. If the divided rate must be cut twice within seconds, each server therefore
//! finds its rate alone for a while, and shares the link with competing flows as its BBR does. The
//! rate stays divided only if servers have too few packets in flight for their BBR to send less.
//!
//! If servers have few packets in flight, losses count as random as long as servers see no queue.
//! Out of 128 packets, a path with 5 % loss in runs of 8 loses none or a fifth. The client learns
//! the spread of the measurements, and cuts the rate only at a loss rate far beyond that spread. If
//! servers see a queue, the losses come from competing flows.
//!
//! Before the first of these steps, many servers have a common start (`start`).
//!
//! Source: the phases and their lengths are taken from BBR's probes (draft-ietf-ccwg-bbr-06 section
//! 5.3.3), applied to all servers together. Leaves out: the share granted to each server (`hop`).
//! Read [`OverflowEstimator`] first.

use super::came::{LOSS_FLOOD, Servers, Totals};
use super::start::{Start, StartConclusion};
use anabranch_transport::bbr::PATH_LOSS_MAX;
use anabranch_units::{Duration, Instant};

/// Excess loss rate that counts as an overflow, as in BBR (section 2.5, LossThresh).
const LOSS_MORE: f64 = 0.02;
/// Minimum number of lost packets in a measurement that shows an overflow.
const LOST_MIN: u64 = 8;
/// Minimum length of a measurement, in round trips, in time, and in packets.
const MEASURE_RTTS: u64 = 2;
const MEASURE_MIN: Duration = Duration::from_ms(20);
const MEASURE_PACKETS: u64 = 128;
/// Number of measurements averaged while the link of many servers is held. When processes wait for
/// processors, a measurement of 20 ms shows 0.5 to 2 times the link's rate. The higher of two
/// successive measurements was up to 1.5 times too high.
const LONG_MEASURES: u32 = 3;
/// Minimum number of packets of a measurement in a probe or drain, however long it takes. Fewer
/// packets are no evidence.
const LEAST_PACKETS: u64 = 8;
/// Minimum number of packets per server in a measurement.
const EACH_PACKETS: u64 = 2;
/// Minimum length and packets of the first measurement if the loss rate is at least [`LOSS_FLOOD`]
/// and servers have few packets in flight.
const FLOOD_MIN: Duration = Duration::from_ms(5);
const FLOOD_PACKETS: u64 = 64;
/// Loss rate assumed for the test after a start that has filled the link, because the losses are
/// only detected later.
const LOSS_FULL: f64 = 2.0 * PATH_LOSS_MAX;
/// Time after the beginning of a test in which losses from before the test may still be detected.
const SETTLES: Duration = Duration::from_ms(30);
/// Margin by which the path's loss rate, for many servers, may exceed the rate measured in drains.
const LOSS_DRAINED_MORE: f64 = 0.005;
/// Number of measurements in drains that the moving average covers.
const DRAINED_PART: f64 = 4.0;
/// Share of the arriving rate that is granted in a test, so that a queue drains.
const TEST_SHARE: f64 = 0.95;
/// Share of the arriving rate that is granted while the rate is divided, so that a queue drains.
const HOLD_SHARE: f64 = 0.99;
/// Loss rate in a test above which the tested rate may still be too high.
const LOSS_DOUBTED: f64 = 0.1;
/// Maximum number of further tests at lower rates, if the loss rate in a test exceeds
/// `LOSS_DOUBTED`.
const TESTS_MORE: u32 = 2;
/// Minimum factor of one cut of the rate.
const CUT_SHARE: f64 = 0.85;
/// Part of a probe's excess by which the grant falls for one round trip after the probe.
const DRAIN_PART: f64 = 0.6;
/// Maximum interval between probes, unless twice the minimum is longer. The minimum, the longer of
/// `HOLD_LEAST` and `HOLD_RTTS` round trips, applies after the rate was found or cut.
const HOLD_MOST: Duration = Duration::from_secs(2);
const HOLD_LEAST: Duration = Duration::from_ms(200);
const HOLD_RTTS: u64 = 8;
/// Number of packets in flight per server below which the server's own congestion control can
/// hardly send more slowly: BBR keeps at least four in flight.
const FEW_PACKETS: f64 = 8.0;
/// Multiple of the measurements' mean deviation up to which loss counts as random while servers see
/// no queue. Simulated for three servers over 100 Mbit/s and 1 ms, with 5 % loss in runs of 8 and a
/// queue of a tenth of a bandwidth-delay product (six seeds): multiples of 4, 6 and 8 gave 76, 81
/// and 83 Mbit/s. When every high loss rate cut the rate, the servers had 54 Mbit/s.
const CHANCE_SPREADS: f64 = 8.0;
/// Number of measurements in the moving average of the deviation.
const SPREAD_PART: f64 = 8.0;
/// Maximum loss rate that may count as random; a higher loss rate is evidence of an overflow.
const CHANCE_MOST: f64 = 2.0 * LOSS_FLOOD;
/// Time after one cut within which a second cut means that competing flows share the link.
const CUT_AGAIN: Duration = Duration::from_secs(5);
/// Minimum and maximum time after competing flows were detected in which the rate is not divided.
/// The time doubles if the rate was last divided for at most twice this time.
const REST_LEAST: Duration = Duration::from_ms(500);
const REST_MOST: Duration = Duration::from_secs(30);
/// Initial and minimum excess of a probe, as a share of the rate.
const PROBE_MORE: f64 = 0.25;
const PROBE_MORE_MIN: f64 = 0.05;
/// Maximum excess of a probe after a common start of the servers.
const PROBE_MORE_MANY: f64 = 0.125;
/// Share of the grant below which the arriving rate shows a full link, after a common start.
const FILLED_SHARE: f64 = 0.9;
/// Share of the grant below which the arriving rate keeps the excess at `PROBE_MORE_MANY`.
const ALL_SHARE: f64 = 0.98;
/// Growth of the rate from which a probe succeeds, if two successive measurements show it, or with
/// many servers two of three. A measurement below `WAITED_SHARE` of the earlier rate, with little
/// loss, shows that a process had to wait. A probe makes at most `PROBE_MEASURES` measurements.
const GROWN: f64 = 0.02;
const WAITED_SHARE: f64 = 0.9;
const PROBE_MEASURES: u32 = 3;
/// While late losses are still detected in a test, the loss rate falls below this factor from one
/// measurement to the next. If it grows by more than the inverse, the test has not begun at every
/// server.
const FALLS: f64 = 0.75;
/// Growth between two measurements above which the link is not full, because servers are still
/// starting.
const GROWS: f64 = 1.5;
/// Minimum share of the recent rate that a full link carries. Below this share the losses are
/// older, and servers wait for retransmissions.
const FULL_SHARE: f64 = 0.7;
/// Factor by which the recent maximum rate fades with each measurement.
const CARRIED_FADES: f64 = 0.95;

#[derive(Copy, Clone, Debug, PartialEq)]
enum Phase {
    /// No rate is granted: each server finds its own rate. The fields hold the last measurement:
    /// whether the loss rate was high, and the rate.
    Free { was_much: bool, bytes_per_s: f64 },
    /// Only the arriving rate is granted. `loss` is the loss rate before the test, `last_loss` the
    /// loss rate in its last measurement, and `tests` the number of earlier tests at other rates.
    Test { loss: f64, last_loss: f64, tests: u32 },
    /// The link's rate is divided among the servers.
    Hold { since: Instant },
    /// More than the link's rate is granted. `measures` counts the measurements so far.
    Probe { measures: u32 },
    /// The grant is lowered by the fraction `less` while the queue that a probe left drains.
    Drain { less: f64 },
}

/// One measurement within a phase.
#[derive(Copy, Clone, Debug)]
struct StepMeasurement {
    bytes_per_s: f64,
    packets: u64,
    /// Packets from servers that see a queue.
    queued: u64,
    lost: u64,
    /// Packets in flight per server at the highest packet rate so far.
    each_packets: f64,
}

impl StepMeasurement {
    fn loss(&self) -> f64 {
        self.lost as f64 / (self.lost + self.packets).max(1) as f64
    }

    /// Whether each server, with the link to itself, has too few packets in flight for its own
    /// control to send less. Servers with few packets because of competing flows are not meant: a
    /// grant at that rate would keep them from ever sending more.
    fn is_few(&self) -> bool {
        self.each_packets < FEW_PACKETS
    }

    /// Whether servers have few packets in flight and most packets saw no queue. Losses are then
    /// random unless the link overflows.
    fn is_calm(&self) -> bool {
        self.is_few() && self.queued * 2 <= self.packets
    }

    /// Whether far more arrives at the link than it carries, and no server can send less by itself.
    fn is_flood(&self) -> bool {
        self.loss() > LOSS_FLOOD && self.packets >= FLOOD_PACKETS && self.is_few()
    }
}

/// Measurements that are averaged or ranked together, in bytes per second.
#[derive(Copy, Clone, Debug)]
struct MeasurementGroup {
    measures: u32,
    sum: f64,
    /// Mean of the previous [`LONG_MEASURES`] measurements.
    last_mean: f64,
    /// The highest measurement.
    highest: f64,
    /// The second highest measurement.
    second: f64,
}

impl MeasurementGroup {
    const NONE: Self = Self { measures: 0, sum: 0.0, last_mean: 0.0, highest: 0.0, second: 0.0 };

    fn note(&mut self, bytes_per_s: f64) {
        self.measures += 1;
        self.sum += bytes_per_s;
        self.second = bytes_per_s.min(self.highest).max(self.second);
        self.highest = bytes_per_s.max(self.highest);
    }

    /// The lower of the last two means; 0 while there are too few measurements.
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

/// Estimator of an overflowing link's rate.
#[derive(Clone, Debug)]
pub(super) struct OverflowEstimator {
    phase: Phase,
    /// Start of the measurements of this phase.
    measures_from: Instant,
    /// Start and initial totals of the current measurement.
    began: Option<(Instant, Totals)>,
    /// Loss rate while the link does not overflow.
    path_loss: f64,
    /// Mean deviation of the measured loss rate from `path_loss`, while the link's rate is divided
    /// and servers see no queue.
    spread: f64,
    /// Moving average of the loss rate while the servers are granted less than the link carries.
    drained_loss: f64,
    /// Highest rates in bytes per second: since the last probe, and in the period before that
    /// probe.
    rates: [f64; 2],
    /// Last measured rate in bytes per second.
    last: f64,
    several: MeasurementGroup,
    probe_more: f64,
    /// Current interval between probes.
    wait: Duration,
    /// Time since which the client has divided the link's rate among the servers.
    held_from: Instant,
    /// Time of the last cut of the rate.
    cut_at: Option<Instant>,
    /// End of the pause after competing flows were detected. In this pause, each server finds its
    /// own rate.
    rests_until: Instant,
    /// Length of that pause.
    rest: Duration,
    servers: usize,
    /// Whether the servers had a common start.
    has_begun: bool,
    /// State of the common start while it lasts.
    start: Option<Start>,
    /// Recent maximum of the total rate in bytes per second, which fades with each measurement.
    carried: f64,
    /// Highest packet rate so far that two successive measurements confirmed.
    most_packets_per_s: f64,
    /// Last measured packet rate.
    last_packets_per_s: f64,
}

impl OverflowEstimator {
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
            several: MeasurementGroup::NONE,
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

    /// Recent maximum of the total rate, in datagram bytes per second.
    pub(super) const fn carried_bytes_per_s(&self) -> f64 {
        self.carried
    }

    /// Begins a common start of `servers` servers if necessary. `rtt` is the round-trip time to the
    /// farthest server, and `packet_bytes` the size of the servers' packets.
    pub(super) fn begin(&mut self, now: Instant, servers: usize, rtt: Duration, packet_bytes: f64) {
        if let Phase::Free { .. } = self.phase {
            self.start = Start::new(now, servers, rtt, packet_bytes, self.carried);
            if self.start.is_some() {
                (self.has_begun, self.probe_more) = (true, PROBE_MORE_MANY);
            }
        }
    }

    /// Whether servers have begun as one. A common start happens at most once.
    pub(super) const fn has_begun(&self) -> bool {
        self.has_begun
    }

    /// Whether the link's rate is unknown, or in doubt.
    pub(super) const fn is_unsure(&self) -> bool {
        self.start.is_some() || matches!(self.phase, Phase::Test { .. })
    }

    /// Whether the link's rate is divided, and no probe is under way.
    pub(super) const fn is_held(&self) -> bool {
        matches!(self.phase, Phase::Hold { .. })
    }

    /// Loss rate while the link does not overflow.
    pub(super) const fn path_loss(&self) -> f64 {
        self.path_loss
    }

    /// Whether a common start of the servers is under way.
    pub(super) const fn is_starting(&self) -> bool {
        self.start.is_some()
    }

    /// Total rate allowed to all servers, in datagram bytes per second; `None` for no limit.
    pub(super) fn allowed_bytes_per_s(&self) -> Option<f64> {
        if let Some(start) = &self.start {
            return Some(start.allowed_bytes_per_s());
        }
        let rate = self.rate();
        let share = match self.phase {
            Phase::Free { .. } => return None,
            Phase::Test { .. } => return Some(TEST_SHARE * rate),
            // Many servers that wait for processors send some 2 % less than they are granted.
            Phase::Hold { .. } if self.has_begun => 1.0,
            Phase::Hold { .. } => HOLD_SHARE,
            Phase::Probe { .. } => 1.0 + self.probe_more,
            // No compensation for loss: losses at this low rate are not caused by a queue.
            Phase::Drain { less } if self.has_begun => return Some((HOLD_SHARE - less) * rate),
            Phase::Drain { less } => HOLD_SHARE - less,
        };
        Some(share * rate / (1.0 - self.path_loss))
    }

    /// Estimated rate of the link in bytes per second.
    const fn rate(&self) -> f64 {
        self.rates[0].max(self.rates[1])
    }

    /// Handles the servers' totals at `now`. Returns true if the allowed rate changed.
    pub(super) fn observe(&mut self, now: Instant, totals: Totals, from: Servers) -> bool {
        let Servers { asked: servers, rtt, .. } = from;
        let has_more = servers > std::mem::replace(&mut self.servers, servers);
        if let Some(start) = &mut self.start {
            match start.observe(now, totals, from) {
                StartConclusion::Nothing => return false,
                StartConclusion::Changed => return true,
                StartConclusion::Enough => self.enter(now, FREE, rtt),
                StartConclusion::Full(rate) => {
                    self.rates = [rate, 0.0];
                    self.enter(now, Phase::Test { loss: LOSS_FULL, last_loss: LOSS_FULL, tests: 0 }, rtt);
                }
            }
            self.start = None;
            return true;
        }
        if has_more && let Phase::Hold { .. } | Phase::Drain { .. } = self.phase {
            // A new server may have a path with a bottleneck elsewhere.
            self.enter(now, PROBE, rtt);
            return true;
        }
        if now < self.measures_from {
            return false;
        }
        let is_free = matches!(self.phase, Phase::Free { .. });
        let (since, before) = *self.began.get_or_insert((now, totals));
        if is_free && totals.packets == before.packets {
            // The servers have not begun to send.
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
        let seen = StepMeasurement {
            bytes_per_s: bytes as f64 / time.as_secs_f64(),
            packets,
            queued,
            lost,
            each_packets,
        };
        let is_flood = is_free && seen.is_flood() && time >= FLOOD_MIN;
        if !is_flood && (time < (rtt * rtts).max(MEASURE_MIN) || packets < least) {
            return false;
        }
        self.began = None;
        let last = std::mem::replace(&mut self.last_packets_per_s, packets_per_s);
        self.most_packets_per_s = self.most_packets_per_s.max(last.min(packets_per_s));
        self.step(now, seen, rtt, servers)
    }

    fn step(&mut self, now: Instant, seen: StepMeasurement, rtt: Duration, servers: usize) -> bool {
        // With many servers, the loss rate measured in drains is the path's own, whether or not
        // grants compensated for it. While the link is held, at most `LOSS_MORE` is learned,
        // because the loss may come from a probe.
        let is_known = self.has_begun && self.drained_loss > LOSS_MORE;
        let usual = if is_known { self.path_loss.max(self.drained_loss) } else { self.path_loss };
        let is_much = seen.loss() > usual + LOSS_MORE && seen.lost >= LOST_MIN;
        // Lowers the path's loss rate if the measured loss rate is lower. Loss that seemed random
        // was then an overflow, which lasts as long as grants compensate for it.
        let parts = match self.phase {
            Phase::Drain { .. } => 2.0,
            Phase::Free { .. } => 8.0,
            Phase::Test { .. } | Phase::Hold { .. } | Phase::Probe { .. } => f64::INFINITY,
        };
        self.path_loss -= (self.path_loss - seen.loss()).max(0.0) / parts;
        // The rate that two successive measurements confirm.
        let last = std::mem::replace(&mut self.last, seen.bytes_per_s);
        let sure = seen.bytes_per_s.min(last);
        self.carried = sure.max(CARRIED_FADES * self.carried);
        match self.phase {
            Phase::Free { bytes_per_s, .. } if self.has_room(bytes_per_s, seen) => {
                // There is no overflow while the arriving rate keeps growing.
                self.phase = Phase::Free { was_much: false, bytes_per_s: seen.bytes_per_s };
                return false;
            }
            // Losses of starting servers come in one burst, and the servers react by themselves.
            Phase::Free { was_much, .. }
                if is_much
                    && servers > 1
                    && now >= self.rests_until
                    && (was_much || seen.loss() > LOSS_FLOOD)
                    && (seen.is_flood() || seen.bytes_per_s >= FULL_SHARE * self.carried) =>
            {
                let rate = match seen.bytes_per_s {
                    // The test will correct a rate that is too high.
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
            // Losses from before the test are often detected only now, and servers that begin
            // during the test lose further packets.
            Phase::Test { loss, last_loss, tests }
                if is_much && !(FALLS * last_loss..last_loss / FALLS).contains(&seen.loss()) =>
            {
                self.phase = Phase::Test { loss, last_loss: seen.loss(), tests };
                return false;
            }
            // The loss rate fell but is still high: the tested rate may still exceed the link's.
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
                // The rate was measured while servers were starting, and may be wrong.
                let rate = self.rate();
                self.rates = [(seen.bytes_per_s / TEST_SHARE).clamp(CUT_SHARE * rate, rate), 0.0];
                self.enter(now, PROBE, rtt);
            }
            Phase::Test { loss, tests: 0, .. } if seen.bytes_per_s < WAITED_SHARE * self.rate() => {
                // The rate that arrived before the test may have been a burst.
                self.rates = [seen.bytes_per_s, 0.0];
                self.enter(now, Phase::Test { loss, last_loss: loss, tests: 1 }, rtt);
            }
            Phase::Test { loss, .. } => {
                // The loss is random.
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
                    // The link's rate fell, or competing flows began.
                    let rate = self.rate();
                    self.rates = [seen.bytes_per_s.max(CUT_SHARE * rate).min(rate), 0.0];
                    self.wait = HOLD_LEAST;
                } else if is_much {
                    // Competing flows began, and the servers can adapt to them without a grant.
                    let lasted = now.saturating_since(self.held_from);
                    self.rest =
                        if lasted > self.rest * 2 { REST_LEAST } else { (self.rest * 2).min(REST_MOST) };
                    self.rests_until = now + self.rest;
                    self.enter(now, FREE, rtt);
                    return true;
                } else {
                    self.path_loss += (seen.loss() - self.path_loss) / 8.0;
                    // Losses caused by too high a rate look like the path's own loss. Compensating
                    // for them would raise the rate further.
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
                // A delayed process gives no evidence for or against a higher rate.
                let is_waiting = seen.bytes_per_s < WAITED_SHARE * rate && !is_much;
                // Delayed packets arrive in a burst. The median of three measurements excludes both
                // the delay and the burst.
                self.several.note(seen.bytes_per_s);
                let sure = if self.has_begun { self.several.second } else { sure };
                let has_grown = sure > grown;
                let says_little = seen.bytes_per_s > grown || is_waiting || (self.has_begun && !is_much);
                if says_little && !has_grown && measures + 1 < PROBE_MEASURES {
                    self.phase = Phase::Probe { measures: measures + 1 };
                    return false;
                }
                let more = self.probe_more;
                // A short queue absorbs little of a probe by many servers. The link is full if
                // clearly less arrives than is granted.
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
                    // When more is granted than the link carries, the arriving rate is the link's.
                    (true, true) => {
                        self.rates = [sure, 0.0];
                        let beyond = (granted / sure - 1.0).max(0.0);
                        self.enter(now, Phase::Drain { less: beyond * DRAIN_PART }, rtt);
                    }
                    (false, _) => {
                        // Rates from before the last probe are dropped.
                        let last = if self.has_begun && measures > 0 { sure } else { seen.bytes_per_s };
                        let shown = self.rates[1].max(last.min(grown));
                        self.rates = [shown.max(CUT_SHARE * rate), 0.0];
                        self.enter(now, Phase::Drain { less: more * DRAIN_PART }, rtt);
                    }
                }
            }
            Phase::Drain { less } => {
                // Losses of a probe may be detected even now, so the growth is limited.
                let loss = seen.loss().min(self.drained_loss + LOSS_MORE);
                self.drained_loss += (loss - self.drained_loss) / DRAINED_PART;
                if is_much {
                    // Losses of a probe are often detected only now.
                    self.probe_more = (less / DRAIN_PART / 2.0).max(PROBE_MORE_MIN);
                }
                self.enter(now, Phase::Hold { since: now }, rtt);
            }
        }
        true
    }

    /// Whether the arriving rate grew so much that the link cannot have been full.
    fn has_room(&self, before_bytes_per_s: f64, seen: StepMeasurement) -> bool {
        before_bytes_per_s > 0.0
            && seen.bytes_per_s > GROWS * before_bytes_per_s
            && seen.loss() < PATH_LOSS_MAX
    }

    /// Enters a phase. Its measurements begin a round trip later, when arrivals reflect the new
    /// grant, and later still behind a queue.
    fn enter(&mut self, now: Instant, phase: Phase, rtt: Duration) {
        let settles = match phase {
            Phase::Test { .. } => (rtt * 2).max(SETTLES),
            // By then the losses of a probe have been detected.
            Phase::Drain { .. } if self.has_begun => rtt.max(MEASURE_MIN),
            _ => rtt,
        };
        (self.phase, self.began, self.measures_from) = (phase, None, now + settles);
        if let Phase::Hold { .. } | Phase::Probe { .. } = phase {
            (self.last, self.several) = (0.0, MeasurementGroup::NONE);
        }
    }
}

#[cfg(test)]
mod tests;
