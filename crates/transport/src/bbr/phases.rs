//! Phases of the sender: the start, the draining of its queue, the cycle of probes, and the probe
//! for the round-trip time (section 5.3).

use super::delivery::{Pressure, Sample};
use super::{Bbr, HEADROOM, LEAST_PACKETS};
use anabranch_units::{Duration, Instant, RandomStream};

/// Growth per round trip below which the rate counts as having reached the path's rate (section
/// 5.3.1.2).
const GROWTH: f64 = 1.25;
/// Number of round trips without such growth after which the path counts as full.
const FULL_ROUNDS: u32 = 3;
/// Threshold in bandwidth-delay products. If losses limit the bytes in flight to less, a probe
/// beside competing flows ends sooner.
const PROBED_BESIDE_PRODUCTS: f64 = 2.0;
/// Maximum number of round trips spent on draining (section 5.3.2).
const DRAIN_ROUNDS: u64 = 3;
/// Minimum interval between probes.
const PROBE_WAIT: Duration = Duration::from_secs(2);
/// Maximum random extension of the interval between probes (section 5.3.3.7.2).
const PROBE_WAIT_MORE: Duration = Duration::from_secs(1);
/// Maximum number of round trips between probes, so that a competing Reno flow gets its share.
const RENO_ROUNDS: u64 = 63;
/// Maximum number of round trips between probes with [`super::Config::learns_loss`], as a multiple
/// of the square root of the number of packets in flight.
///
/// Differs: the draft allows as many round trips as packets in flight. With 63 packets or more,
/// every sender then probes equally often. Each probe of two senders on a link multiplies the
/// sender's share by the same factor, so the shares do not converge. If the sender with the smaller
/// share probes more often, its share catches up (`experiments/gather-fairness` measures the
/// difference of two pulls). Below 16 packets, and beside loss-insensitive flows, the draft's rule
/// applies.
const ROUNDS_PER_ROOT: f64 = 4.0;
/// Time with few bytes in flight during a probe for the round-trip time (ProbeRTTDuration).
const PROBE_RTT_FOR: Duration = Duration::from_ms(200);
/// Maximum number of times that the growth of a bound doubles in one probe.
const SLOPE_MAX: u32 = 30;

/// Phase of the sender.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The rate doubles in each round trip.
    Startup,
    /// The rate is below the arriving rate, until the start's queue has drained.
    Drain,
    /// The rate is a little below the arriving rate, after a probe.
    Down,
    /// The rate is the arriving rate.
    Cruise,
    /// The rate is the arriving rate without the cycle's bounds, before a probe.
    Refill,
    /// The rate is above the arriving rate.
    Up,
    /// Few bytes are in flight, to measure the minimum round-trip time.
    ProbeRtt,
}

impl Phase {
    /// Source: section 5.6.1's table.
    pub(super) const fn pacing_gain(self) -> f64 {
        match self {
            Self::Startup => 2.77,
            Self::Drain => 0.5,
            Self::Down => 0.9,
            Self::Cruise | Self::Refill | Self::ProbeRtt => 1.0,
            Self::Up => 1.25,
        }
    }
    /// Source: section 5.6.1's table.
    pub(super) const fn window_gain(self) -> f64 {
        match self {
            Self::Up => 2.25,
            Self::ProbeRtt => 0.5,
            _ => 2.0,
        }
    }
    const fn is_cycle(self) -> bool {
        matches!(self, Self::Down | Self::Cruise | Self::Refill | Self::Up)
    }
    /// Whether the rate may exceed the arriving rate in this phase (IsProbingBW).
    const fn is_probe(self) -> bool {
        matches!(self, Self::Startup | Self::Refill | Self::Up)
    }
}

/// Kind of packets that current acknowledgements acknowledge (BBR.ack_phase).
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Acks {
    Init,
    Refilling,
    Starting,
    Feedback,
    Stopping,
}

/// State of the phases.
#[derive(Clone, Debug)]
pub(super) struct Cycle {
    pub(super) phase: Phase,
    acks: Acks,
    /// Whether current acknowledgements refer to packets of a probe (BBR.is_bw_probe_sample).
    pub(super) is_probe_sample: bool,
    /// Whether the path's rate was ever reached.
    pub(super) has_filled_pipe: bool,
    /// Whether the rate was reached since the last search began.
    is_full: bool,
    full_rate: f64,
    full_rounds: u32,
    drain_round: u64,
    down_round: u64,
    began_at: Instant,
    wait: Duration,
    pub(super) rounds_since_probe: u64,
    /// Whether the current round trip began between probes.
    pub(super) began_in_cruise: bool,
    /// Bytes acknowledged since the bound last grew.
    up_acked: u64,
    /// Number of acknowledged bytes after which the bound grows next.
    up_acked_per_packet: u64,
    /// Number of round trips of the bound's growth.
    up_rounds: u32,
    was_too_high: bool,
    was_precaution: bool,
    probe_rtt_until: Option<Instant>,
    probe_rtt_round_done: bool,
    is_restart: bool,
}

impl Cycle {
    pub(super) fn new(now: Instant, random: &mut RandomStream) -> Self {
        let mut new = Self {
            phase: Phase::Startup,
            acks: Acks::Init,
            is_probe_sample: false,
            has_filled_pipe: false,
            is_full: false,
            full_rate: 0.0,
            full_rounds: 0,
            drain_round: 0,
            down_round: 0,
            began_at: now,
            wait: Duration::ZERO,
            rounds_since_probe: 0,
            began_in_cruise: false,
            up_acked: 0,
            up_acked_per_packet: u64::MAX,
            up_rounds: 0,
            was_too_high: false,
            was_precaution: false,
            probe_rtt_until: None,
            probe_rtt_round_done: false,
            is_restart: false,
        };
        new.pick_wait(random);
        new
    }

    /// Sending rate relative to the arriving rate. While arrivals grow in the start there is no
    /// queue, so the two rates are even.
    pub(super) fn pressure(&self) -> Pressure {
        match self.phase {
            Phase::Startup if self.full_rounds == 0 => Pressure::Even,
            Phase::Startup | Phase::Up => Pressure::Above,
            Phase::Cruise | Phase::Refill => Pressure::Even,
            Phase::Drain | Phase::Down | Phase::ProbeRtt => Pressure::Below,
        }
    }

    /// Restarts the phases as at the beginning.
    pub(super) const fn start_anew(&mut self) {
        (self.phase, self.acks, self.is_probe_sample) = (Phase::Startup, Acks::Init, false);
        self.has_filled_pipe = false;
        self.look_for_full(0.0);
    }

    /// Source: section 5.3.3.7.3, PickProbeWait.
    fn pick_wait(&mut self, random: &mut RandomStream) {
        self.rounds_since_probe = random.below(2);
        self.wait = PROBE_WAIT + Duration::from_ps(random.below(PROBE_WAIT_MORE.as_ps()));
    }

    /// Source: section 5.3.1.2, ResetFullBW.
    const fn look_for_full(&mut self, rate: f64) {
        (self.is_full, self.full_rate, self.full_rounds) = (false, rate, 0);
    }
}

impl Bbr {
    /// Source: section 5.3.1.2, CheckFullBWReached.
    ///
    /// Differs: under an external rate ([`Bbr::note_held`]) a path with a high loss rate counts as
    /// full. So does a path with a queue, because a limited sender builds none unless the limit is
    /// too high.
    pub(super) fn check_full_pipe(&mut self, sample: &Sample) {
        let packet_bytes = self.config.packet_bytes;
        let loses_held = sample.newest.filter(|_| sample.is_held).is_some_and(|newest| {
            let lost = self.congestion.lost_since(&newest);
            self.congestion.is_too_high(lost, newest.inflight, packet_bytes)
        });
        let queues_held = sample.is_held && self.congestion.has_queue;
        let says_nothing = sample.is_app_limited && !loses_held && !queues_held;
        let cycle = &mut self.cycle;
        if cycle.is_full || !self.rounds.start || says_nothing {
            return;
        }
        if sample.rate >= cycle.full_rate * GROWTH {
            return cycle.look_for_full(sample.rate);
        }
        cycle.full_rounds += 1;
        cycle.is_full = cycle.full_rounds >= FULL_ROUNDS;
        cycle.has_filled_pipe |= cycle.is_full;
    }

    /// Source: section 5.3.1, CheckStartupDone and CheckStartupHighLoss.
    ///
    /// Differs: with [`super::Config::learns_loss`] losses do not end the start while the arriving
    /// rate grows.
    pub(super) fn check_startup_done(&mut self, sample: &Sample) {
        let is_lossy = self.congestion.ends_startup(sample, self.config.packet_bytes);
        if self.cycle.phase != Phase::Startup {
            return;
        }
        let is_growing = self.config.learns_loss && self.cycle.full_rounds == 0;
        if is_lossy && !is_growing && !self.cycle.has_filled_pipe {
            self.cycle.has_filled_pipe = true;
            let bdp = self.bdp_bytes(1.0, self.max_rate());
            self.congestion.inflight_longterm = bdp.max(self.congestion.inflight_latest());
        }
        if self.cycle.has_filled_pipe {
            self.cycle.phase = Phase::Drain;
            self.cycle.drain_round = self.rounds.count;
        }
    }

    /// Source: section 5.3.2, CheckDrainDone.
    pub(super) fn check_drain_done(&mut self, now: Instant) {
        let is_drained = self.inflight <= self.quantized(self.bdp_bytes(1.0, self.rate));
        let is_late = self.rounds.count > self.cycle.drain_round + DRAIN_ROUNDS;
        if self.cycle.phase == Phase::Drain && (is_drained || is_late) {
            self.start_down(now);
        }
    }

    /// Ends a round of losses, and adapts the bounds of the cycle.
    pub(super) fn adapt_to_congestion(&mut self) {
        let bounds = (!self.cycle.phase.is_probe()).then_some((self.max_rate(), self.window));
        self.congestion.end_round(bounds, self.config.packet_bytes);
    }

    /// Source: section 5.5.10.2, HandleInflightTooHigh.
    pub(super) fn handle_inflight_too_high(&mut self, now: Instant, inflight: u64, is_app_limited: bool) {
        self.cycle.was_too_high = true;
        self.cycle.is_probe_sample = false;
        if !is_app_limited {
            self.congestion.bound_longterm(inflight, self.target_inflight());
        }
        if self.cycle.phase == Phase::Up {
            self.start_down(now);
        }
    }

    /// Source: section 5.3.3.7.3, TargetInflight.
    fn target_inflight(&self) -> u64 {
        self.bdp_bytes(1.0, self.rate).min(self.window)
    }

    /// Source: section 5.3.3.8, InflightWithHeadroom.
    ///
    /// Differs: the share left to competing flows depends on a queue, as described at
    /// [`super::Config::headroom`]. If competing flows keep a queue, the limit is below the path's
    /// capacity without a queue, with or without losses. A limit that losses set includes the
    /// queue, and a deep queue loses nothing for a long time.
    pub(super) fn inflight_with_headroom(&self) -> u64 {
        let (longterm, packet) = (self.congestion.inflight_longterm, self.config.packet_bytes);
        let mut most = longterm;
        if longterm < u64::MAX {
            let share = if self.congestion.is_calm { self.config.headroom } else { HEADROOM };
            most -= ((share * longterm as f64) as u64).max(packet).min(longterm);
        }
        if let Some(left) = self.congestion.left_to_company() {
            let path = self.bdp_bytes(1.0 - left, self.max_rate()) + self.aggregation.extra();
            most = most.min(self.quantized(path));
        }
        most.max(LEAST_PACKETS * packet)
    }

    fn start_down(&mut self, now: Instant) {
        self.congestion.reset_signals();
        let cycle = &mut self.cycle;
        cycle.up_acked_per_packet = u64::MAX;
        cycle.pick_wait(&mut self.random);
        (cycle.began_at, cycle.acks, cycle.phase) = (now, Acks::Stopping, Phase::Down);
        cycle.down_round = self.rounds.count;
        self.rounds.begin(self.delivery.delivered());
    }

    fn start_refill(&mut self) {
        self.congestion.reset_shortterm();
        let cycle = &mut self.cycle;
        (cycle.up_rounds, cycle.up_acked, cycle.was_precaution) = (0, 0, false);
        (cycle.acks, cycle.phase) = (Acks::Refilling, Phase::Refill);
        self.rounds.begin(self.delivery.delivered());
    }

    fn start_up(&mut self, sample: &Sample) {
        self.cycle.look_for_full(sample.rate);
        (self.cycle.acks, self.cycle.phase) = (Acks::Starting, Phase::Up);
        self.rounds.begin(self.delivery.delivered());
        self.raise_slope();
    }

    /// Source: section 5.3.3.8, RaiseInflightLongtermSlope.
    fn raise_slope(&mut self) {
        let growth = 1 << self.cycle.up_rounds;
        self.cycle.up_rounds = (self.cycle.up_rounds + 1).min(SLOPE_MAX);
        self.cycle.up_acked_per_packet = (self.window / growth).max(self.config.packet_bytes);
    }

    /// Source: section 5.3.3.8, UpdateProbeBWCyclePhase.
    pub(super) fn update_cycle(&mut self, now: Instant, sample: &Sample) {
        if !self.cycle.has_filled_pipe || self.adapt_longterm(now, sample) {
            return;
        }
        let phase = self.cycle.phase;
        match phase {
            Phase::Down | Phase::Cruise if self.is_time_to_probe(now) => self.start_refill(),
            Phase::Down if self.is_time_to_cruise() => self.cycle.phase = Phase::Cruise,
            Phase::Refill if self.rounds.start => {
                self.cycle.is_probe_sample = true;
                self.start_up(sample);
            }
            Phase::Up if self.is_time_to_go_down(sample) => {
                self.cycle.was_too_high = false;
                self.start_down(now);
            }
            _ => {}
        }
    }

    fn is_time_to_probe(&self, now: Instant) -> bool {
        now > self.cycle.began_at + self.cycle.wait || self.cycle.rounds_since_probe >= self.probe_rounds()
    }

    /// Maximum round trips between probes.
    ///
    /// Source: section 5.3.3.7.3, IsRenoCoexistenceProbeTime.
    ///
    /// Differs: see [`ROUNDS_PER_ROOT`].
    fn probe_rounds(&self) -> u64 {
        let packets = self.target_inflight() / self.config.packet_bytes;
        let most = packets.min(RENO_ROUNDS);
        if self.config.learns_loss && !self.congestion.competitors_ignore_loss {
            most.min((ROUNDS_PER_ROOT * (packets as f64).sqrt()) as u64)
        } else {
            most
        }
    }

    /// Differs: while a loss rate is learned, at least one round trip passes first, because losses
    /// below the path's rate are not caused by congestion.
    fn is_time_to_cruise(&self) -> bool {
        let is_learning = self.congestion.is_lossy() && self.rounds.count <= self.cycle.down_round;
        !is_learning
            && self.inflight <= self.inflight_with_headroom()
            && self.inflight <= self.quantized(self.bdp_bytes(1.0, self.max_rate()))
    }

    /// Differs: beside competing flows that keep a queue, one round trip without growth ends a
    /// probe if losses limit the bytes in flight to less than [`PROBED_BESIDE_PRODUCTS`]. In a
    /// short full queue a probe finds no further capacity, and takes the competing flows' share
    /// while it lasts. In a long queue each of several senders of one party ends its probe after
    /// its part of [`FULL_ROUNDS`]. Otherwise three senders would take that share for three times
    /// as long.
    fn is_time_to_go_down(&mut self, sample: &Sample) -> bool {
        let longterm = self.congestion.inflight_longterm;
        if self.cycle.was_too_high && self.inflight >= longterm {
            self.cycle.was_precaution = true;
            return true;
        }
        if self.rounds.has_filled_window() && self.window >= longterm {
            // The bound limits the growth of the rate, so missing growth is no evidence.
            self.cycle.look_for_full(sample.rate);
            return false;
        }
        let short = self.bdp_bytes(PROBED_BESIDE_PRODUCTS, self.max_rate());
        let rounds =
            if longterm < short { 1 } else { FULL_ROUNDS.div_ceil(self.config.senders.max(1).into()) };
        self.cycle.is_full || self.congestion.has_competitors() && self.cycle.full_rounds >= rounds
    }

    /// Tracks which packets current acknowledgements refer to, and raises the bound. Returns true
    /// if the phase changed.
    ///
    /// Source: section 5.3.3.8, AdaptLongTermModel.
    fn adapt_longterm(&mut self, now: Instant, sample: &Sample) -> bool {
        let is_cycle = self.cycle.phase.is_cycle();
        if self.rounds.start && self.cycle.acks == Acks::Starting {
            self.cycle.acks = Acks::Feedback;
        }
        if self.rounds.start && self.cycle.acks == Acks::Stopping {
            self.cycle.is_probe_sample = false;
            self.cycle.acks = Acks::Init;
            if is_cycle && !sample.is_app_limited {
                // Drops the rate measured in the cycle before the last one (AdvanceMaxBwFilter).
                self.rates = [self.rates[1], 0.0];
            }
            if is_cycle && self.cycle.was_precaution && !self.cycle.was_too_high {
                self.start_refill();
                return true;
            }
        }
        let Some(newest) = sample.newest else { return false };
        let lost = self.congestion.lost_since(&newest);
        if self.congestion.is_too_high(lost, newest.inflight, self.config.packet_bytes) {
            if self.cycle.is_probe_sample {
                self.handle_inflight_too_high(now, newest.inflight, newest.is_app_limited);
                return true;
            }
            return false;
        }
        if self.congestion.inflight_longterm == u64::MAX {
            return false;
        }
        self.congestion.inflight_longterm = self.congestion.inflight_longterm.max(newest.inflight);
        if self.cycle.phase == Phase::Up {
            self.raise_longterm(sample);
        }
        false
    }

    /// Source: section 5.3.3.8, ProbeInflightLongtermUpward.
    fn raise_longterm(&mut self, sample: &Sample) {
        if !self.rounds.has_filled_window() || self.window < self.congestion.inflight_longterm {
            return;
        }
        let cycle = &mut self.cycle;
        cycle.up_acked += sample.newly_delivered;
        if cycle.up_acked >= cycle.up_acked_per_packet {
            let packets = cycle.up_acked / cycle.up_acked_per_packet;
            cycle.up_acked -= packets * cycle.up_acked_per_packet;
            self.congestion.inflight_longterm += packets * self.config.packet_bytes;
        }
        if self.rounds.start {
            self.raise_slope();
        }
    }

    /// Source: section 5.6.4.5, ProbeRTTCwnd.
    pub(super) fn probe_rtt_window(&self) -> u64 {
        let bdp = self.bdp_bytes(Phase::ProbeRtt.window_gain(), self.rate);
        bdp.max(LEAST_PACKETS * self.config.packet_bytes)
    }

    /// Source: section 5.3.4.3, CheckProbeRTT and HandleProbeRTT.
    pub(super) fn check_probe_rtt(&mut self, now: Instant, sample: &Sample) {
        if self.cycle.phase != Phase::ProbeRtt && self.min_rtt.is_expired && !self.cycle.is_restart {
            self.save_window();
            self.cycle.phase = Phase::ProbeRtt;
            self.cycle.probe_rtt_until = None;
            self.cycle.acks = Acks::Stopping;
            self.rounds.begin(self.delivery.delivered());
        }
        if self.cycle.phase == Phase::ProbeRtt {
            // The sending rate limits the arriving rate in this phase.
            self.delivery.mark_app_limited(self.inflight, false);
            if self.cycle.probe_rtt_until.is_some() {
                self.cycle.probe_rtt_round_done |= self.rounds.start;
                if self.cycle.probe_rtt_round_done {
                    self.check_probe_rtt_done(now);
                }
            } else if self.inflight <= self.probe_rtt_window() {
                self.cycle.probe_rtt_until = Some(now + PROBE_RTT_FOR);
                self.cycle.probe_rtt_round_done = false;
                self.rounds.begin(self.delivery.delivered());
            }
        }
        if sample.delivered > 0 {
            self.cycle.is_restart = false;
        }
    }

    fn check_probe_rtt_done(&mut self, now: Instant) {
        if self.cycle.probe_rtt_until.is_none_or(|until| now <= until) {
            return;
        }
        self.min_rtt.note_probed(now);
        self.window = self.window.max(self.prior_window);
        // Source: section 5.3.4.4, ExitProbeRTT.
        self.congestion.reset_shortterm();
        if self.cycle.has_filled_pipe {
            self.start_down(now);
            self.cycle.phase = Phase::Cruise;
        } else {
            self.cycle.phase = Phase::Startup;
        }
    }

    /// Handles the first packet that leaves after idle time.
    ///
    /// Source: section 5.4.1, HandleRestartFromIdle.
    pub(super) fn handle_restart(&mut self, now: Instant) {
        self.cycle.is_restart = true;
        self.aggregation.restart(now);
        if self.cycle.phase.is_cycle() {
            self.set_pacing(1.0);
        } else if self.cycle.phase == Phase::ProbeRtt {
            self.check_probe_rtt_done(now);
        }
    }
}
