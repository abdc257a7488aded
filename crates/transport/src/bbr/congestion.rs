//! What losses say: how much in flight is too much (section 5.5.10), and which losses say nothing.
//!
//! The draft takes more than 2 % lost in a round trip for a full queue, and any loss between probes for a path that has become
//! slower. A radio link that loses 3 % at random looks full to it for ever. With `learns_loss` the share is learnt that the path
//! loses where there is no queue: in round trips in which no more is sent than arrives, or ever more arrives, and whose mean is
//! near the least. Only what is lost beyond that share, and beyond what chance adds to it (three standard deviations), counts. Where
//! packets are lost in runs chance adds more: how long runs are is learnt, too.
//!
//! A queue that is too short to be seen in round trips loses what is sent beyond what the path carries, and that looks alike. So it is
//! compared with what is lost after each probe, while a tenth less is sent: the path's own loss stays the same then, and congestion's
//! does not. What is learnt is no more than that, and what chance may have taken from it (two standard deviations).
//! Beside many other flows a tenth of one changes nothing, and is no evidence; so what is learnt has a limit.
//!
//! Some others answer no losses: BBR's first version, which is the kernel's, keeps two products in flight, and where the queue does not hold the
//! second one all on the path lose packets all the time. A sender that goes by the draft beside them has a tenth to a half of its
//! share (`experiments/gather-fairness`). They are told by what is lost between probes while the queue lasts and others have their part of the
//! path: flows of Cubic, and senders like this one, would leave it within some round trips, and then 0.04 to 0.9 % are lost; beside the
//! kernel's BBR 1.2 to 15. What is lost so is excused up to a limit, and others which take all that there is have no more left to them than
//! the draft leaves, [`HEADROOM`] of what losses bind. They probe every eight round trips, and lose much of what all have in flight then: one
//! round trip says little, so a large part of it is excused between probes.
//! Of several senders that count as one party each excuses its part only: else three would have three parties' share.

use super::delivery::{Pressure, Sample, Sent};
use super::{COMPANY_HEADROOM, HEADROOM};
use anabranch_units::Duration;

/// The share of packets that may be lost in a round trip while the rate is probed (LossThresh).
const LOSS_MAX: f64 = 0.02;
/// What a rate and a window are cut to at most in a round trip with losses (Beta).
const BETA: f64 = 0.7;
/// Runs of lost packets in a round trip that end the start (BBRStartupFullLossCnt, section 5.3.1.3).
const STARTUP_RUNS: u32 = 6;
/// How far a round trip may be above the least one without a queue: such a part of it, and so much at least, though no more than the
/// least one itself: in a data centre a full queue takes less than a millisecond.
const CALM_PART: u64 = 16;
const CALM_LEAST: Duration = Duration::from_ms(1);
const CALM_MOST: Duration = Duration::from_ms(5);
/// So many times as far above it, and what acknowledgements that come together take, others keep a queue; and until it is no longer so far above
/// without the latter. Where all of the queue had to be gone, of two senders that are like this one the first to see others left them nearly half of
/// the path for as long as the other one filled it: 32 and 17 Mbit/s, 19 and 30 (emulated; 27 and 23, 25 and 24, 21 and 29 with this).
const COMPANY_CALMS: u64 = 2;
/// A queue that lasts for so many round trips between probes, while [`HEADROOM`] of the path is left free, is taken for others': this flow's own
/// mostly drains in one or two.
const COMPANY_ROUNDS: u32 = 4;
/// Others answer no losses where so much more than the path's own share is lost beside them, of so many packets at least.
///
/// The draft's version accepts 2 % in a probe, and beside four of its flows behind half a product 0.5 to 1.5 % are lost. A sender that is once of that
/// mind proves it to itself, as what it excuses is lost, 2 to 4.6 % then: three have up to 3.9 times their party's share there, in some seeds. With 0.025
/// they have 1.7 at the most, but one server and three beside one flow of the kernel's BBR behind one product then have 0.27 to 0.42 of their share
/// in three of four trials, for 0.58 to 0.92 (emulated). To believe it from 0.015 on, and for as long as 0.03 are lost, mends one, but not three.
/// To forget it from time to time, as it may prove itself, has servers beside flows of the kernel's BBR forget it, too: 0.4 to 0.6 for 0.7 to 0.8 (simulated).
const DEAF_LOSS: f64 = 0.015;
const DEAF_PACKETS: u64 = 128;
/// The most of it that is excused, and the most of one round trip, by all senders of a party together.
///
/// Beside one and four flows of the kernel's BBR, behind a half and one product of rate and round trip, a pull from one server has 0.7 to 1.4 of
/// its share with these, and one from three 0.65 to 1.43 (simulated, four and six seeds, at b9b2db7). Where each sender excused 5 %, and of a round trip
/// what chance adds to that, they had 0.49 to 0.90 and 0.85 to 1.92, and one server 0.42 and 0.39 behind half a product, emulated. With 0.2 of a
/// round trip one server beside one flow has 0.65 behind half a product where it has 0.98 with this; with 0.09 of all one beside four has 1.72 where it has 1.50 (ten seeds).
const DEAF_LOSS_MAX: f64 = 0.08;
const DEAF_ROUND_MAX: f64 = 0.4;
/// Packets over which a path's loss is learnt: then both sums are halved.
const LEARN_PACKETS: u64 = 4_096;
/// The most that counts as a path's own loss.
pub const PATH_LOSS_MAX: f64 = 0.15;
/// The share from which on a path counts as lossy.
const LOSSY: f64 = 0.001;
/// The fewest packets, sent more slowly than they arrive, that are evidence; and standard deviations that chance may take from them.
const EVIDENCE_PACKETS: f64 = 64.0;
const EVIDENCE_DEVIATIONS: f64 = 2.0;
/// The longest run of lost packets, in the mean, that is taken for the path's.
const RUN_MAX: f64 = 16.0;
/// Standard deviations that chance may add.
const DEVIATIONS: f64 = 3.0;

/// By how much more the number of lost packets varies where they are lost in runs of so many in the mean: of lengths that are
/// geometric, as of Gilbert's channel.
fn scatter(run: f64) -> f64 {
    (2.0 * run - 1.0).max(1.0)
}

/// Losses, and the bounds that follow from them.
#[derive(Clone, Debug)]
pub(super) struct Congestion {
    /// All bytes that were lost.
    lost: u64,
    pub(super) loss_round_start: bool,
    loss_round_delivered: u64,
    is_loss_in_round: bool,
    runs_in_round: u32,
    /// Bytes that were lost and that arrived since the last round of losses began.
    round_lost: u64,
    round_delivered: u64,
    /// The highest rate and the most that was delivered in a round trip.
    rate_latest: f64,
    inflight_latest: u64,
    /// Bounds: of this cycle, and for longer. Infinite where there is none.
    pub(super) rate_shortterm: f64,
    pub(super) inflight_shortterm: u64,
    pub(super) inflight_longterm: u64,
    /// The last round trip has shown no queue.
    pub(super) is_calm: bool,
    /// The last round trip has shown a queue that is longer than acknowledgements which come together explain.
    pub(super) has_queue: bool,
    /// Round trips between probes since others keep a queue: the first has shown one, and none since has shown one that is too short for that.
    company_rounds: u32,
    /// Others that keep a queue answer no losses.
    pub(super) is_company_deaf: bool,
    /// This sender's part of what its party excuses beside them.
    deaf_part: f64,
    learnt: Learnt,
}

/// What is learnt of a path's own loss.
#[derive(Clone, Debug, Default)]
struct Learnt {
    /// In round trips without a queue, of what was sent as fast as it arrived.
    even: Share,
    /// The same of what was sent more slowly.
    below: Share,
    /// Of what was sent as fast as it arrived while there was no queue, or while others that keep one had their part of the path.
    beside: Share,
    /// In the present round trip, with the sum of its samples.
    round_even: Share,
    round_below: Share,
    rtt_sum: Duration,
    rtts: u64,
    /// What follows from them, and how many packets are lost together.
    share: f64,
    run: f64,
}

/// Bytes that were lost, and all.
#[derive(Copy, Clone, Debug, Default)]
struct Share {
    lost: f64,
    all: f64,
    /// Runs of packets that were lost one after the other; in the start each packet counts as one.
    runs: f64,
}

impl Share {
    fn share(self) -> f64 {
        if self.all > 0.0 { self.lost / self.all } else { 0.0 }
    }
    /// Adds a round trip's; of more than `most` bytes the older ones count half.
    fn add(&mut self, round: Self, most: f64) {
        (self.lost, self.all) = (self.lost + round.lost, self.all + round.all);
        self.runs += round.runs;
        if self.all > most {
            (self.lost, self.all, self.runs) = (self.lost / 2.0, self.all / 2.0, self.runs / 2.0);
        }
    }
    /// Packets of a run in the mean.
    fn run(self, packet_bytes: u64) -> f64 {
        if self.runs > 0.0 { (self.lost / packet_bytes as f64 / self.runs).clamp(1.0, RUN_MAX) } else { 1.0 }
    }
}

impl Learnt {
    /// The round trip's account of what was sent so.
    const fn of(&mut self, pressure: Pressure) -> Option<&mut Share> {
        match pressure {
            Pressure::Even => Some(&mut self.round_even),
            Pressure::Below => Some(&mut self.round_below),
            Pressure::Above => None,
        }
    }
    /// The path's own loss, by both accounts.
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
    /// Nothing is known; so many senders, this one among them, are one party.
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
            company_rounds: 0,
            is_company_deaf: false,
            deaf_part: 1.0 / f64::from(senders.max(1)),
            learnt: Learnt::default(),
        }
    }

    pub(super) const fn lost(&self) -> u64 {
        self.lost
    }
    /// Bytes that were lost since a packet left (RS.lost).
    pub(super) const fn lost_since(&self, sent: &Sent) -> u64 {
        self.lost - sent.lost
    }
    pub(super) const fn path_loss(&self) -> f64 {
        self.learnt.share
    }
    /// Whether the path is taken to lose packets by itself.
    pub(super) fn is_lossy(&self) -> bool {
        self.learnt.share > LOSSY
    }

    /// `bytes` were lost in so many `runs`; `learnt_runs` are those that may tell how the path loses.
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

    /// A round trip is over, all of it between probes if it `is_cruise`; what comes together may take as long as `together` to arrive.
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
        self.has_queue = queues(COMPANY_CALMS, together);
        let lasts = self.company_rounds > 0 && queues(COMPANY_CALMS, Duration::ZERO);
        let has_company = lasts || is_cruise && self.has_queue;
        self.company_rounds =
            if has_company { self.company_rounds.saturating_add(is_cruise.into()) } else { 0 };
        if self.is_calm {
            learnt.even.add(even, most);
        }
        if self.is_calm || is_cruise && self.company_rounds > COMPANY_ROUNDS {
            learnt.beside.add(even, most);
        }
        // What was sent more slowly may meet the rest of a queue, and is evidence nevertheless.
        learnt.below.add(below, most);
        learnt.run = learnt.even.run(packet_bytes);
        learnt.share = learnt.reckon(packet_bytes);
        let beside = learnt.beside.share();
        self.is_company_deaf =
            beside > learnt.share + DEAF_LOSS && learnt.beside.all > (DEAF_PACKETS * packet_bytes) as f64;
        let excused = beside.min(DEAF_LOSS_MAX * self.deaf_part);
        if self.is_company_deaf && excused > learnt.share {
            learnt.share = excused;
            learnt.run = learnt.beside.run(packet_bytes);
        }
    }

    /// Whether others are there that keep a queue and would leave it. A queue that has just begun may be this flow's own.
    pub(super) const fn has_company(&self) -> bool {
        self.company_rounds >= COMPANY_ROUNDS && !self.is_company_deaf
    }
    /// The share of what the path holds that is left to others which keep a queue; none where there is none, or where they would not leave it.
    pub(super) const fn left_to_company(&self) -> Option<f64> {
        match self.company_rounds {
            0 => None,
            _ if self.is_company_deaf => None,
            _ if self.has_company() => Some(COMPANY_HEADROOM),
            _ => Some(HEADROOM),
        }
    }

    /// What a path loses of `bytes` by itself, and what chance may add to that.
    fn excused(&self, bytes: u64, packet_bytes: u64) -> f64 {
        let loss = self.path_loss();
        let packets = bytes as f64 / packet_bytes as f64;
        // A run that the round trip cuts in two may be longer than what falls into it by chance.
        let by_chance = DEVIATIONS * (loss * packets * scatter(self.learnt.run)).sqrt();
        let edge = if self.is_lossy() { self.learnt.run - 1.0 } else { 0.0 };
        loss * bytes as f64 + (by_chance + edge) * packet_bytes as f64
    }

    /// Whether so much is lost of what was in flight that it was too much.
    ///
    /// Source: section 5.5.10.2, IsInflightTooHigh.
    pub(super) fn is_too_high(&self, lost: u64, inflight: u64, packet_bytes: u64) -> bool {
        lost as f64 > LOSS_MAX * inflight as f64 + self.excused(inflight, packet_bytes)
    }

    /// At which amount in flight losses became too many.
    ///
    /// Source: section 5.5.10.2, InflightAtLoss.
    pub(super) fn inflight_at_loss(&self, lost: u64, sent: &Sent, bytes: u64) -> u64 {
        let most = LOSS_MAX + self.path_loss();
        let before = sent.inflight.saturating_sub(bytes) as f64;
        let lost_before = lost.saturating_sub(bytes) as f64;
        let prefix = (most * before - lost_before) / (1.0 - most);
        (before + prefix).max(0.0) as u64
    }

    /// Whether the start is over by losses.
    ///
    /// Source: section 5.3.1.3. Since the first loss of a round a round trip has passed when the next begins.
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

    /// A round trip is over in which something may have been lost; `max_rate` and `window` are what bounds begin from, and
    /// without them nothing is bound.
    ///
    /// Source: section 5.5.10.3, AdaptLowerBoundsFromCongestion, InitLowerBounds and LossLowerBounds.
    pub(super) fn end_round(&mut self, bounds: Option<(f64, u64)>, packet_bytes: u64) {
        let all = self.round_lost + self.round_delivered;
        let beside = if self.is_company_deaf { DEAF_ROUND_MAX * self.deaf_part } else { 0.0 };
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

    /// What was too much is looked for anew.
    pub(super) const fn forget_bounds(&mut self) {
        self.reset_shortterm();
        self.inflight_longterm = u64::MAX;
    }

    /// More in flight than `target` was too much: no more than that from now on.
    pub(super) fn bound_longterm(&mut self, inflight: u64, target: u64) {
        self.inflight_longterm = inflight.max((BETA * target as f64) as u64);
    }
}
