//! Response to losses: the limit of bytes in flight (section 5.5.10), and the losses that are not a
//! sign of congestion.
//!
//! The draft takes a loss rate above 2 % in a round trip for a full queue, and any loss between
//! probes for a slower path. A radio link with 3 % random loss therefore always seems full. With
//! `learns_loss` the model learns the path's own loss rate, which is the loss rate without a queue.
//! It is measured in round trips whose mean is near the minimum, and in which no more is sent than
//! arrives, or both rates still grow. Only losses beyond that rate, and beyond random variation
//! (three standard deviations), count as congestion. Losses in runs vary more, so the run length is
//! learned, too.
//!
//! A queue too short to show in round trips loses every excess over the path's rate, which looks
//! like random loss. The learned rate is therefore compared with the loss rate after each probe,
//! while a tenth less is sent: random loss then stays the same, and loss from congestion
//! disappears. The learned rate is at most that rate, plus its random variation (two standard
//! deviations). Beside many competing flows, a tenth less of one flow changes nothing and is no
//! evidence, so the learned rate has a fixed maximum, too.
//!
//! Some competing flows are insensitive to losses. BBR's first version, the kernel's, keeps two
//! bandwidth-delay products in flight. If the queue does not hold the second product, every flow on
//! the path loses packets all the time. A sender that follows the draft gets a tenth to a half of
//! its share beside such flows (`experiments/gather-fairness`). The model recognises them by the
//! loss rate between probes while the queue persists and competing flows are left their share of
//! the path. Cubic flows, and senders with this model, would let the queue drain within some round
//! trips, with a loss rate of 0.04 to 0.9 %. Beside the kernel's BBR the loss rate is 1.2 to 15 %.
//! These losses are excused up to a limit, and loss-insensitive flows are left only the draft's
//! [`HEADROOM`] of a limit that losses set. Loss-insensitive flows probe every eight round trips,
//! with high losses for every flow. A single round trip is therefore weak evidence, and a large
//! part of its losses is excused between probes. If several senders count as one party, each
//! excuses only its part; otherwise three senders would get three shares.

use super::delivery::{Pressure, Sample, SendRecord};
use super::{HEADROOM, HEADROOM_WITH_COMPETITORS};
use anabranch_units::Duration;

/// Maximum loss rate of a round trip in a probe (LossThresh).
const LOSS_MAX: f64 = 0.02;
/// Minimum factor by which a round trip with losses reduces a rate and a window (Beta).
const BETA: f64 = 0.7;
/// Number of runs of lost packets in a round trip that end the start (BBRStartupFullLossCnt,
/// section 5.3.1.3).
const STARTUP_RUNS: u32 = 6;
/// Maximum excess of a round trip over the minimum that counts as no queue: a `CALM_PART`-th of the
/// minimum, between `CALM_LEAST` and `CALM_MOST`. The excess is never more than the minimum itself,
/// because a full queue in a data centre takes less than a millisecond.
const CALM_PART: u64 = 16;
const CALM_LEAST: Duration = Duration::from_ms(1);
const CALM_MOST: Duration = Duration::from_ms(5);
/// Multiple of that excess above which competing flows keep a queue, in addition to the delay of
/// aggregated acknowledgements. The state ends below the same multiple without that delay. If it
/// ended only at an empty queue, the first of two equal senders to see the other's queue would
/// leave the other nearly half of the path while the queue lasts. That gave 32 and 17 Mbit/s, and
/// 19 and 30 (emulated; with this value 27 and 23, 25 and 24, 21 and 29).
const COMPETITOR_CALMS: u64 = 2;
/// Number of round trips between probes after which a persistent queue is attributed to competing
/// flows, while [`HEADROOM`] of the path is left free. A queue of this flow mostly drains in one or
/// two round trips.
const COMPETITOR_ROUNDS: u32 = 4;
/// Excess loss rate above which competing flows count as loss-insensitive.
///
/// The draft's version accepts 2 % in a probe. Beside four of its flows behind half a
/// bandwidth-delay product, 0.5 to 1.5 % are lost. A higher threshold reduces this flow's share
/// beside one flow of the kernel's BBR; `experiments/gather-fairness` has the trials.
const LOSS_INSENSITIVE_THRESHOLD: f64 = 0.015;
/// Minimum number of packets in a measurement of the excess loss rate.
const LOSS_INSENSITIVE_PACKETS_MIN: u64 = 128;
/// Maximum loss rate that all senders of a party together excuse beside loss-insensitive flows.
///
/// Beside one and four flows of the kernel's BBR, behind a half and one bandwidth-delay product, a
/// pull from one server gets 0.7 to 1.4 of its share. A pull from three servers gets 0.65 to 1.43
/// (simulated, four and six seeds, at b9b2db7). `experiments/gather-fairness` has the trials of
/// other values.
const EXCUSED_LOSS_MAX: f64 = 0.08;
/// Maximum excused loss rate of a single round trip.
const EXCUSED_ROUND_LOSS_MAX: f64 = 0.4;
/// Number of packets over which a path's loss rate is averaged. Beyond it both sums are halved.
const LEARN_PACKETS: u64 = 4_096;
/// Maximum loss rate that counts as a path's own.
pub const PATH_LOSS_MAX: f64 = 0.15;
/// Loss rate from which a path counts as lossy.
const LOSSY: f64 = 0.001;
/// Minimum number of packets, sent more slowly than they arrive, that count as evidence.
const EVIDENCE_PACKETS: f64 = 64.0;
/// Allowance for random variation of that evidence, in standard deviations.
const EVIDENCE_DEVIATIONS: f64 = 2.0;
/// Maximum mean length in packets of a run of losses that counts as the path's own.
const RUN_MAX: f64 = 16.0;
/// Number of standard deviations of random variation that are excused.
const DEVIATIONS: f64 = 3.0;

/// Factor by which the variance of the number of lost packets grows if losses come in runs with
/// mean length `run`. Run lengths are geometric, as in Gilbert's channel.
fn scatter(run: f64) -> f64 {
    (2.0 * run - 1.0).max(1.0)
}

/// Counts of losses, and the bounds that follow from them.
#[derive(Clone, Debug)]
pub(super) struct Congestion {
    /// Number of all bytes lost.
    lost: u64,
    pub(super) loss_round_start: bool,
    loss_round_delivered: u64,
    is_loss_in_round: bool,
    runs_in_round: u32,
    /// Bytes lost since the last round of losses began.
    round_lost: u64,
    /// Bytes delivered since the last round of losses began.
    round_delivered: u64,
    /// Highest rate in the current round of losses.
    rate_latest: f64,
    /// Highest delivery in a round trip, in the current round of losses.
    inflight_latest: u64,
    /// Bounds of this cycle, and the long-term bound of bytes in flight. The maximum of the type
    /// means no bound.
    pub(super) rate_shortterm: f64,
    pub(super) inflight_shortterm: u64,
    pub(super) inflight_longterm: u64,
    /// Whether the last round trip showed no queue.
    pub(super) is_calm: bool,
    /// Whether the last round trip showed a queue longer than aggregated acknowledgements explain.
    pub(super) has_queue: bool,
    /// Number of successive round trips with a queue of competing flows. Only round trips outside
    /// probes (the Cruise phase) are counted, and a round trip without this queue resets the count.
    competitor_rounds: u32,
    /// Whether competing flows that keep a queue are loss-insensitive.
    pub(super) competitors_ignore_loss: bool,
    /// This sender's part of the losses that its party tolerates while it competes with
    /// loss-insensitive flows.
    excused_part: f64,
    learnt: LearnedLoss,
}

/// Learned loss of the path.
#[derive(Clone, Debug, Default)]
struct LearnedLoss {
    /// Losses of packets sent at the arriving rate, in round trips without a queue.
    even: Share,
    /// Losses of packets sent below the arriving rate.
    below: Share,
    /// Losses of packets sent at the arriving rate, without a queue or while competing flows keep a
    /// queue and are left their share of the path.
    beside: Share,
    /// Sums of the current round trip for `even` and `below`.
    round_even: Share,
    round_below: Share,
    /// Sum and number of the round-trip samples of the current round trip.
    rtt_sum: Duration,
    rtts: u64,
    /// Resulting loss rate.
    share: f64,
    /// Resulting mean run length in packets.
    run: f64,
}

/// Bytes lost, and bytes lost or delivered.
#[derive(Copy, Clone, Debug, Default)]
struct Share {
    lost: f64,
    all: f64,
    /// Number of runs of consecutive lost packets. In the start each lost packet counts as a run.
    runs: f64,
}

impl Share {
    fn share(self) -> f64 {
        if self.all > 0.0 { self.lost / self.all } else { 0.0 }
    }
    /// Adds a round trip's sums. Above `most` bytes, all sums are halved.
    fn add(&mut self, round: Self, most: f64) {
        (self.lost, self.all) = (self.lost + round.lost, self.all + round.all);
        self.runs += round.runs;
        if self.all > most {
            (self.lost, self.all, self.runs) = (self.lost / 2.0, self.all / 2.0, self.runs / 2.0);
        }
    }
    /// Mean run length in packets.
    fn run(self, packet_bytes: u64) -> f64 {
        if self.runs > 0.0 { (self.lost / packet_bytes as f64 / self.runs).clamp(1.0, RUN_MAX) } else { 1.0 }
    }
}

impl LearnedLoss {
    /// The current round trip's sums for packets sent at this pressure; `None` above the arriving
    /// rate.
    const fn of(&mut self, pressure: Pressure) -> Option<&mut Share> {
        match pressure {
            Pressure::Even => Some(&mut self.round_even),
            Pressure::Below => Some(&mut self.round_below),
            Pressure::Above => None,
        }
    }
    /// The path's own loss rate in accordance with both measures, `even` and `below`.
    fn reckon(&self, packet_bytes: u64) -> f64 {
        let (even, packets) = (self.even.share(), self.below.all / packet_bytes as f64);
        if packets < EVIDENCE_PACKETS {
            return even.min(PATH_LOSS_MAX);
        }
        let by_chance = EVIDENCE_DEVIATIONS * (even * (1.0 - even) * scatter(self.run) / packets).sqrt();
        even.min(self.below.share() + by_chance).min(PATH_LOSS_MAX)
    }
}

impl Congestion {
    /// State without any measurement. `senders` senders, this one included, count as one party.
    pub(super) fn new(senders: u16) -> Self {
        Self {
            lost: 0,
            loss_round_start: false,
            loss_round_delivered: 0,
            is_loss_in_round: false,
            runs_in_round: 0,
            round_lost: 0,
            round_delivered: 0,
            rate_latest: 0.0,
            inflight_latest: 0,
            rate_shortterm: f64::INFINITY,
            inflight_shortterm: u64::MAX,
            inflight_longterm: u64::MAX,
            is_calm: false,
            has_queue: false,
            competitor_rounds: 0,
            competitors_ignore_loss: false,
            excused_part: 1.0 / f64::from(senders.max(1)),
            learnt: LearnedLoss::default(),
        }
    }

    pub(super) const fn lost(&self) -> u64 {
        self.lost
    }
    /// Number of bytes lost since a packet left (RS.lost).
    pub(super) const fn lost_since(&self, sent: &SendRecord) -> u64 {
        self.lost - sent.lost
    }
    pub(super) const fn path_loss(&self) -> f64 {
        self.learnt.share
    }
    /// Whether the path itself has a loss rate.
    pub(super) fn is_lossy(&self) -> bool {
        self.learnt.share > LOSSY
    }

    /// Records the loss of `bytes` bytes in `runs` runs. `learnt_runs` is the number of runs that
    /// count for the learned run length.
    pub(super) fn note_loss(
        &mut self,
        bytes: u64,
        (runs, learnt_runs): (u32, f64),
        delivered: u64,
        pressure: Pressure,
    ) {
        self.lost += bytes;
        self.round_lost += bytes;
        if let Some(round) = self.learnt.of(pressure) {
            (round.lost, round.all) = (round.lost + bytes as f64, round.all + bytes as f64);
            round.runs += learnt_runs;
        }
        if !self.is_loss_in_round {
            self.loss_round_delivered = delivered;
        }
        self.is_loss_in_round = true;
        self.runs_in_round = self.runs_in_round.saturating_add(runs);
    }
    pub(super) fn note_ack(&mut self, sample: &Sample) {
        self.round_delivered += sample.newly_delivered;
        let pressure = sample.newest.map_or(Pressure::Above, |newest| newest.pressure);
        if let Some(round) = self.learnt.of(pressure) {
            round.all += sample.newly_delivered as f64;
        }
        if let Some(rtt) = sample.rtt {
            self.learnt.rtt_sum += rtt;
            self.learnt.rtts += 1;
        }
    }

    /// Handles the end of a round trip. `is_cruise` is whether all of it was between probes.
    /// Aggregation may delay acknowledgements by `together`.
    pub(super) fn learn(
        &mut self,
        min_rtt: Option<Duration>,
        together: Duration,
        packet_bytes: u64,
        is_cruise: bool,
    ) {
        let learnt = &mut self.learnt;
        let mean = Duration::from_ps(learnt.rtt_sum.as_ps() / learnt.rtts.max(1));
        (learnt.rtt_sum, learnt.rtts) = (Duration::ZERO, 0);
        let (even, below) = (std::mem::take(&mut learnt.round_even), std::mem::take(&mut learnt.round_below));
        let calm = |least: Duration| {
            Duration::from_ps(least.as_ps() / CALM_PART).clamp(CALM_LEAST.min(least), CALM_MOST)
        };
        let most = (LEARN_PACKETS * packet_bytes) as f64;
        let queues = |calms: u64, more: Duration| {
            min_rtt.is_none_or(|least| mean > least + calm(least) * calms + more)
        };
        self.is_calm = !queues(1, Duration::ZERO);
        self.has_queue = queues(COMPETITOR_CALMS, together);
        let lasts = self.competitor_rounds > 0 && queues(COMPETITOR_CALMS, Duration::ZERO);
        let has_competitors = lasts || is_cruise && self.has_queue;
        self.competitor_rounds =
            if has_competitors { self.competitor_rounds.saturating_add(is_cruise.into()) } else { 0 };
        if self.is_calm {
            learnt.even.add(even, most);
        }
        if self.is_calm || is_cruise && self.competitor_rounds > COMPETITOR_ROUNDS {
            learnt.beside.add(even, most);
        }
        // Packets sent more slowly may meet the remainder of a queue, but count as evidence
        // nevertheless.
        learnt.below.add(below, most);
        learnt.run = learnt.even.run(packet_bytes);
        learnt.share = learnt.reckon(packet_bytes);
        let beside = learnt.beside.share();
        self.competitors_ignore_loss = beside > learnt.share + LOSS_INSENSITIVE_THRESHOLD
            && learnt.beside.all > (LOSS_INSENSITIVE_PACKETS_MIN * packet_bytes) as f64;
        let excused = beside.min(EXCUSED_LOSS_MAX * self.excused_part);
        if self.competitors_ignore_loss && excused > learnt.share {
            learnt.share = excused;
            learnt.run = learnt.beside.run(packet_bytes);
        }
    }

    /// Whether competing flows keep a queue and respond to losses. A queue that has just begun may
    /// be this flow's own, and does not count.
    pub(super) const fn has_competitors(&self) -> bool {
        self.competitor_rounds >= COMPETITOR_ROUNDS && !self.competitors_ignore_loss
    }
    /// Share of the path's capacity left to competing flows that keep a queue. `None` if there are
    /// no such flows, or if they are loss-insensitive.
    pub(super) const fn left_to_company(&self) -> Option<f64> {
        match self.competitor_rounds {
            0 => None,
            _ if self.competitors_ignore_loss => None,
            _ if self.has_competitors() => Some(HEADROOM_WITH_COMPETITORS),
            _ => Some(HEADROOM),
        }
    }

    /// Number of bytes among `bytes` whose loss is explained by the path's own loss rate and random
    /// variation.
    fn excused(&self, bytes: u64, packet_bytes: u64) -> f64 {
        let loss = self.path_loss();
        let packets = bytes as f64 / packet_bytes as f64;
        // A run that spans two round trips may exceed this round trip's random variation.
        let by_chance = DEVIATIONS * (loss * packets * scatter(self.learnt.run)).sqrt();
        let edge = if self.is_lossy() { self.learnt.run - 1.0 } else { 0.0 };
        loss * bytes as f64 + (by_chance + edge) * packet_bytes as f64
    }

    /// Whether the losses among the bytes in flight show that too many bytes were in flight.
    ///
    /// Source: section 5.5.10.2, IsInflightTooHigh.
    pub(super) fn is_too_high(&self, lost: u64, inflight: u64, packet_bytes: u64) -> bool {
        lost as f64 > LOSS_MAX * inflight as f64 + self.excused(inflight, packet_bytes)
    }

    /// Number of bytes in flight at which losses exceeded the limit.
    ///
    /// Source: section 5.5.10.2, InflightAtLoss.
    pub(super) fn inflight_at_loss(&self, lost: u64, sent: &SendRecord, bytes: u64) -> u64 {
        let most = LOSS_MAX + self.path_loss();
        let before = sent.inflight.saturating_sub(bytes) as f64;
        let lost_before = lost.saturating_sub(bytes) as f64;
        let prefix = (most * before - lost_before) / (1.0 - most);
        (before + prefix).max(0.0) as u64
    }

    /// Whether losses end the start.
    ///
    /// Source: section 5.3.1.3. A round of losses starts at its first loss, so a round trip has
    /// passed when the next round begins.
    pub(super) fn ends_startup(&mut self, sample: &Sample, packet_bytes: u64) -> bool {
        if !self.loss_round_start {
            return false;
        }
        let runs = std::mem::take(&mut self.runs_in_round);
        sample.newest.is_some_and(|newest| {
            runs >= STARTUP_RUNS && self.is_too_high(self.lost_since(&newest), newest.inflight, packet_bytes)
        })
    }

    /// Source: section 5.5.10.3, UpdateLatestDeliverySignals.
    pub(super) fn update_latest(&mut self, sample: &Sample, delivered: u64) {
        self.rate_latest = self.rate_latest.max(sample.rate);
        self.inflight_latest = self.inflight_latest.max(sample.delivered);
        self.loss_round_start =
            sample.newest.is_some() && sample.prior_delivered >= self.loss_round_delivered;
        if self.loss_round_start {
            self.loss_round_delivered = delivered;
        }
    }
    /// Source: AdvanceLatestDeliverySignals.
    pub(super) const fn advance_latest(&mut self, sample: &Sample) {
        if self.loss_round_start {
            (self.rate_latest, self.inflight_latest) = (sample.rate, sample.delivered);
        }
    }
    pub(super) const fn inflight_latest(&self) -> u64 {
        self.inflight_latest
    }

    /// Ends a round of losses. New bounds start from `bounds`, the maximum rate and the window;
    /// `None` sets no bound.
    ///
    /// Source: section 5.5.10.3, AdaptLowerBoundsFromCongestion, InitLowerBounds and
    /// LossLowerBounds.
    pub(super) fn end_round(&mut self, bounds: Option<(f64, u64)>, packet_bytes: u64) {
        let all = self.round_lost + self.round_delivered;
        let beside =
            if self.competitors_ignore_loss { EXCUSED_ROUND_LOSS_MAX * self.excused_part } else { 0.0 };
        let excused = self.excused(all, packet_bytes).max(beside * all as f64);
        let is_congested = std::mem::take(&mut self.is_loss_in_round) && self.round_lost as f64 > excused;
        (self.round_lost, self.round_delivered) = (0, 0);
        let Some((max_rate, window)) = bounds.filter(|_| is_congested) else { return };
        let rate = self.rate_shortterm.min(max_rate);
        let inflight = if self.inflight_shortterm == u64::MAX { window } else { self.inflight_shortterm };
        self.rate_shortterm = self.rate_latest.max(BETA * rate);
        self.inflight_shortterm = self.inflight_latest.max((BETA * inflight as f64) as u64);
    }

    /// Source: ResetCongestionSignals.
    pub(super) const fn reset_signals(&mut self) {
        (self.is_loss_in_round, self.rate_latest, self.inflight_latest) = (false, 0.0, 0);
    }
    /// Source: ResetShortTermModel.
    pub(super) const fn reset_shortterm(&mut self) {
        (self.rate_shortterm, self.inflight_shortterm) = (f64::INFINITY, u64::MAX);
    }

    /// Removes the short-term and long-term bounds.
    pub(super) const fn forget_bounds(&mut self) {
        self.reset_shortterm();
        self.inflight_longterm = u64::MAX;
    }

    /// Sets the long-term bound after `inflight` bytes in flight were too many. The bound is at
    /// least `BETA` times `target`.
    pub(super) fn bound_longterm(&mut self, inflight: u64, target: u64) {
        self.inflight_longterm = inflight.max((BETA * target as f64) as u64);
    }
}
