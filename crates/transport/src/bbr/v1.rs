//! BBR's first version, which is mainline Linux's `bbr`: a rate and a window from the delivery
//! rate, whatever the losses.
//!
//! The sender keeps up to two bandwidth-delay products in flight, and sends a quarter faster in one
//! of eight round trips. Every ten seconds it sends almost nothing for a fifth of a second, to
//! measure the minimum round-trip time. A loss reduces the window only during its recovery. The
//! module serves as a competing flow, and for comparison with a kernel; `gather` uses the third
//! version ([`Bbr`](super::Bbr)).
//!
//! Source: Cardwell, Cheng, Gunn, Yeganeh and Jacobson, *BBR: Congestion-Based Congestion Control*,
//! ACM Queue 14(5), 2016; draft-cardwell-iccrg-bbr-congestion-control-00, whose sections are cited
//! here; and Linux 6.18, net/ipv4/tcp_bbr.c, for the policer's rate, aggregation, and all constants
//! that the draft lacks.
//!
//! Differs: the aggregation estimate is kept for ten round trips, where Linux has five to ten.
//! Windows count bytes, and are not rounded to an even number of packets. Leaves out: pacing of
//! single packets (the user's task), loss detection, and retransmission.

use super::delivery::{Aggregation, Delivery, MAX_ROUNDS, RoundMax, Rounds, Sample};
use super::{
    Config, LEAST_PACKETS, PACING_MARGIN, QUANTUM_MAX_BYTES, QUANTUM_TIME, SendRecord, first_pacing,
};
use anabranch_units::{Duration, Instant, RandomStream};

/// Pacing gain of the start: the minimum gain with which the rate doubles in a round trip (2/ln 2,
/// section 4.3.2.1).
const START_GAIN: f64 = 2.885;
/// Window in bandwidth-delay products while rates are probed (section 4.2.3.2).
const WINDOW_GAIN: f64 = 2.0;
/// Pacing gains in eight phases of one minimum round trip each (section 4.3.4.3).
const CYCLE: [f64; 8] = [1.25, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0];
/// Growth per round trip that continues the start.
const GROWTH: f64 = 1.25;
/// Number of round trips without this growth that end the start (section 4.3.2.2).
const FULL_ROUNDS: u32 = 3;
/// Time for which a minimum round-trip time is valid.
const MIN_RTT_FOR: Duration = Duration::from_secs(10);
/// Duration of the measurement of the minimum round-trip time (section 4.3.5).
const PROBE_RTT_FOR: Duration = Duration::from_ms(200);
/// Number of quanta by which the window exceeds the bandwidth-delay product.
const QUANTA: u64 = 3;
/// Maximum addition to the window for aggregation, as seconds at the current rate.
const TOGETHER_MOST_S: f64 = 0.1;
/// Length in round trips of each of the two intervals from which a policer is detected.
const POLICED_ROUNDS: std::ops::RangeInclusive<u32> = 4..=16;
/// Minimum loss rate of both intervals.
const POLICED_LOSS: f64 = 50.0 / 256.0;
/// Maximum difference between the rates of the two intervals, as a fraction.
const POLICED_PART: f64 = 1.0 / 8.0;
/// Alternative maximum difference between these rates, in bytes per second.
const POLICED_BYTES_PER_S: f64 = 500.0;
/// Number of round trips for which the rate of a detected policer is held.
const POLICED_HOLD_ROUNDS: u32 = 48;

/// Mode of the sender.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Mode {
    Startup,
    Drain,
    /// Probing with the gain at this index of [`CYCLE`].
    ProbeBw(usize),
    ProbeRtt,
}

/// Model of one path, with the limits that follow from it.
#[derive(Clone, Debug)]
pub(crate) struct Bbr1 {
    config: Config,
    random: RandomStream,
    delivery: Delivery,
    rounds: Rounds,
    aggregation: Aggregation,
    mode: Mode,
    /// Maximum rate of the last ten round trips.
    rates: RoundMax<f64>,
    /// Minimum round-trip time.
    min_rtt: Option<Duration>,
    /// Time at which the minimum round-trip time was measured.
    min_rtt_at: Instant,
    phase_at: Instant,
    probe_rtt_until: Option<Instant>,
    probe_rtt_round_done: bool,
    is_restart: bool,
    has_filled_pipe: bool,
    full_rate: f64,
    full_rounds: u32,
    pacing: f64,
    window: u64,
    prior_window: u64,
    /// Whether a recovery is under way.
    is_repairing: bool,
    /// Whether no more bytes may leave than arrive: in the first round trip of a recovery.
    conserves: bool,
    begins_repair: bool,
    policed: PolicerState,
    /// Bytes in flight after the last acknowledgement.
    inflight: u64,
    /// Number of bytes found lost since the last acknowledgement.
    newly_lost: u64,
    /// Number of all bytes lost.
    lost: u64,
}

/// Estimated rate of a policer, if a policer is detected.
#[derive(Copy, Clone, Debug)]
struct PolicerState {
    is_sampling: bool,
    rounds: u32,
    rate: f64,
    is_held: bool,
    since: Instant,
    delivered: u64,
    lost: u64,
}

impl Bbr1 {
    /// Creates the model of an unmeasured path. Only the packet length, the initial window, the
    /// round-trip time and the seed of `config` are used.
    pub(crate) fn new(now: Instant, config: Config) -> Self {
        Self {
            random: config.seed.stream("bbr1", 0),
            delivery: Delivery::new(now),
            rounds: Rounds::default(),
            aggregation: Aggregation::new(now),
            mode: Mode::Startup,
            rates: RoundMax::default(),
            min_rtt: config.initial_rtt,
            min_rtt_at: now,
            phase_at: now,
            probe_rtt_until: None,
            probe_rtt_round_done: false,
            is_restart: false,
            has_filled_pipe: false,
            full_rate: 0.0,
            full_rounds: 0,
            pacing: first_pacing(START_GAIN, config.initial_window_bytes, config.initial_rtt),
            window: config.initial_window_bytes.max(LEAST_PACKETS * config.packet_bytes),
            prior_window: 0,
            is_repairing: false,
            conserves: false,
            begins_repair: false,
            policed: PolicerState {
                is_sampling: false,
                rounds: 0,
                rate: 0.0,
                is_held: false,
                since: now,
                delivered: 0,
                lost: 0,
            },
            inflight: 0,
            newly_lost: 0,
            lost: 0,
            config,
        }
    }

    #[cfg(test)]
    pub(crate) const fn is_policed(&self) -> bool {
        self.policed.is_held
    }
    /// Limit of bytes in flight.
    pub(crate) const fn window_bytes(&self) -> u64 {
        self.window
    }
    /// Pacing rate in bytes per second.
    pub(crate) const fn pacing_bytes_per_s(&self) -> f64 {
        self.pacing
    }
    /// Bytes that may leave together.
    pub(crate) fn quantum_bytes(&self) -> u64 {
        let together = (self.pacing * QUANTUM_TIME.as_secs_f64()) as u64;
        together.clamp(2 * self.config.packet_bytes, QUANTUM_MAX_BYTES.max(2 * self.config.packet_bytes))
    }

    /// Handles a sent packet of `bytes`; `inflight` includes it.
    pub(crate) fn handle_sent(&mut self, now: Instant, bytes: u64, inflight: u64) -> SendRecord {
        if inflight <= bytes {
            if self.delivery.is_app_limited() {
                self.handle_restart(now);
            }
            self.delivery.handle_idle(now);
        }
        self.inflight = inflight;
        self.delivery.sent(now, bytes, inflight, self.lost, super::delivery::Pressure::default())
    }
    /// Marks the sender as application-limited.
    pub(crate) fn note_app_limited(&mut self) {
        self.delivery.mark_app_limited(self.inflight, false);
    }
    /// Handles the delivery of `bytes` bytes; `sent` is the record of the last sent packet among
    /// them.
    pub(crate) fn handle_delivered(&mut self, now: Instant, bytes: u64, sent: &SendRecord) {
        self.delivery.handle_delivered(now, bytes, sent);
    }
    /// Handles the delivery of `bytes` bytes whose records were dropped.
    pub(crate) const fn handle_late(&mut self, now: Instant, bytes: u64) {
        self.delivery.handle_late(now, bytes);
    }
    /// Handles the loss of `bytes`.
    pub(crate) const fn handle_lost(&mut self, bytes: u64) {
        self.newly_lost += bytes;
        self.lost += bytes;
    }

    /// Completes an acknowledgement; `inflight` bytes are left in flight.
    ///
    /// Source: section 4.4, Update on ACK.
    pub(crate) fn handle_ack(&mut self, now: Instant, inflight: u64, rtt: Option<Duration>) {
        let before = std::mem::replace(&mut self.inflight, inflight);
        let lost = std::mem::take(&mut self.newly_lost);
        let sample = self.delivery.take_sample(rtt);
        if self.rounds.update(&sample, self.delivery.delivered()) {
            self.conserves = false;
        }
        self.update_policed(now, &sample, lost > 0);
        if sample.rate > 0.0 && (!sample.is_app_limited || sample.rate >= self.max_rate()) {
            self.rates.note(self.rounds.count, sample.rate);
        }
        self.aggregation.update(
            now,
            &sample,
            self.rate(),
            self.window,
            self.rounds.count,
            self.has_filled_pipe,
        );
        self.update_cycle(now, before, lost > 0);
        self.check_full_pipe(&sample);
        self.check_drain(now);
        self.update_min_rtt(now, &sample);
        self.set_pacing();
        self.set_window(sample.newly_delivered, lost);
    }

    /// Starts a recovery after a loss. Called once per recovery, or not at all.
    pub(crate) fn handle_repair(&mut self) {
        self.save_window();
        (self.is_repairing, self.begins_repair) = (true, true);
    }
    /// Handles a retransmission timeout: all bytes in flight count as lost, and one more packet may
    /// leave.
    pub(crate) fn handle_timeout(&mut self) {
        self.save_window();
        (self.is_repairing, self.begins_repair, self.conserves) = (true, false, false);
        self.full_rate = 0.0;
        self.inflight = 0;
        self.window = self.config.packet_bytes;
        self.delivery.mark_app_limited(0, false);
    }
    /// Ends a recovery: restores the window from before the recovery.
    pub(crate) fn handle_recovered(&mut self) {
        if std::mem::take(&mut self.is_repairing) {
            (self.begins_repair, self.conserves) = (false, false);
            self.window = self.window.max(self.prior_window);
        }
    }
    fn save_window(&mut self) {
        let is_cut = self.is_repairing || self.mode == Mode::ProbeRtt;
        self.prior_window = if is_cut { self.prior_window.max(self.window) } else { self.window };
    }

    fn max_rate(&self) -> f64 {
        self.rates.most_since(self.rounds.count.saturating_sub(MAX_ROUNDS - 1))
    }
    /// Current rate of the model, in bytes per second.
    fn rate(&self) -> f64 {
        if self.policed.is_held { self.policed.rate } else { self.max_rate() }
    }
    fn pacing_gain(&self) -> f64 {
        match self.mode {
            Mode::Startup => START_GAIN,
            Mode::Drain => 1.0 / START_GAIN,
            Mode::ProbeBw(_) if self.policed.is_held => 1.0,
            Mode::ProbeBw(phase) => CYCLE[phase],
            Mode::ProbeRtt => 1.0,
        }
    }
    fn bdp_bytes(&self, gain: f64, rate: f64) -> u64 {
        match self.min_rtt {
            None => self.config.initial_window_bytes,
            Some(rtt) => (gain * rate * rtt.as_secs_f64()) as u64,
        }
    }
    /// Adds room for quanta to a window of `bytes` bytes.
    fn quantized(&self, bytes: u64) -> u64 {
        let probe = if self.mode == Mode::ProbeBw(0) { 2 * self.config.packet_bytes } else { 0 };
        bytes + QUANTA * self.quantum_bytes() + probe
    }

    /// Source: section 4.3.4.3, and Linux's `bbr_is_next_cycle_phase`.
    fn update_cycle(&mut self, now: Instant, inflight: u64, has_lost: bool) {
        let Mode::ProbeBw(phase) = self.mode else { return };
        let is_over = self.min_rtt.is_none_or(|rtt| now > self.phase_at + rtt);
        let gain = self.pacing_gain();
        let holds = |gain: f64| self.quantized(self.bdp_bytes(gain, self.max_rate()));
        let goes_on = if gain > 1.0 {
            is_over && (has_lost || inflight >= holds(gain))
        } else if gain < 1.0 {
            is_over || inflight <= holds(1.0)
        } else {
            is_over
        };
        if goes_on {
            self.mode = Mode::ProbeBw((phase + 1) % CYCLE.len());
            self.phase_at = now;
        }
    }
    /// Starts a random phase of the cycle, except the phase with the low gain.
    fn probe_rate(&mut self, now: Instant) {
        let phase = (CYCLE.len() - self.random.below(CYCLE.len() as u64 - 1) as usize) % CYCLE.len();
        (self.mode, self.phase_at) = (Mode::ProbeBw(phase), now);
    }

    /// Source: section 4.3.2.2.
    fn check_full_pipe(&mut self, sample: &Sample) {
        if self.has_filled_pipe || !self.rounds.start || sample.is_app_limited {
            return;
        }
        if self.max_rate() >= self.full_rate * GROWTH {
            (self.full_rate, self.full_rounds) = (self.max_rate(), 0);
            return;
        }
        self.full_rounds += 1;
        self.has_filled_pipe = self.full_rounds >= FULL_ROUNDS;
    }
    /// Source: section 4.3.3.
    fn check_drain(&mut self, now: Instant) {
        if self.mode == Mode::Startup && self.has_filled_pipe {
            self.mode = Mode::Drain;
        }
        if self.mode == Mode::Drain && self.inflight <= self.quantized(self.bdp_bytes(1.0, self.max_rate())) {
            self.probe_rate(now);
        }
    }

    /// Source: section 4.3.5.
    fn update_min_rtt(&mut self, now: Instant, sample: &Sample) {
        let is_expired = now > self.min_rtt_at + MIN_RTT_FOR;
        if let Some(rtt) = sample.rtt
            && (is_expired || self.min_rtt.is_none_or(|least| rtt < least))
        {
            (self.min_rtt, self.min_rtt_at) = (Some(rtt), now);
        }
        if is_expired && !self.is_restart && self.mode != Mode::ProbeRtt {
            self.save_window();
            self.mode = Mode::ProbeRtt;
            self.probe_rtt_until = None;
        }
        if self.mode == Mode::ProbeRtt {
            // The sending rate limits the arriving rate in this mode.
            self.delivery.mark_app_limited(self.inflight, false);
            if self.probe_rtt_until.is_some() {
                self.probe_rtt_round_done |= self.rounds.start;
                if self.probe_rtt_round_done {
                    self.check_probe_rtt_done(now);
                }
            } else if self.inflight <= LEAST_PACKETS * self.config.packet_bytes {
                self.probe_rtt_until = Some(now + PROBE_RTT_FOR);
                self.probe_rtt_round_done = false;
                self.rounds.begin(self.delivery.delivered());
            }
        }
        if sample.delivered > 0 {
            self.is_restart = false;
        }
    }
    fn check_probe_rtt_done(&mut self, now: Instant) {
        if self.probe_rtt_until.is_none_or(|until| now <= until) {
            return;
        }
        self.min_rtt_at = now;
        self.window = self.window.max(self.prior_window);
        if self.has_filled_pipe {
            self.probe_rate(now);
        } else {
            self.mode = Mode::Startup;
        }
    }

    /// Handles the first packet that leaves after idle time.
    fn handle_restart(&mut self, now: Instant) {
        self.is_restart = true;
        self.aggregation.restart(now);
        match self.mode {
            Mode::ProbeBw(_) => self.pacing = self.pacing_by(1.0),
            Mode::ProbeRtt => self.check_probe_rtt_done(now),
            Mode::Startup | Mode::Drain => {}
        }
    }

    /// Source: Linux's `bbr_lt_bw_sampling`.
    fn update_policed(&mut self, now: Instant, sample: &Sample, has_lost: bool) {
        let begins = self.rounds.start;
        if self.policed.is_held {
            self.policed.rounds += u32::from(begins && matches!(self.mode, Mode::ProbeBw(_)));
            if self.policed.rounds >= POLICED_HOLD_ROUNDS {
                self.forget_policed();
                self.probe_rate(now);
            }
            return;
        }
        if !self.policed.is_sampling {
            if !has_lost {
                return;
            }
            self.begin_policed(now);
            self.policed.is_sampling = true;
        }
        if sample.is_app_limited {
            return self.forget_policed();
        }
        self.policed.rounds += u32::from(begins);
        if self.policed.rounds > *POLICED_ROUNDS.end() {
            return self.forget_policed();
        }
        let (delivered, lost) =
            (self.delivery.delivered() - self.policed.delivered, self.lost - self.policed.lost);
        let took = now.saturating_since(self.policed.since);
        let is_much = lost as f64 >= POLICED_LOSS * delivered as f64;
        if self.policed.rounds < *POLICED_ROUNDS.start()
            || !has_lost
            || delivered == 0
            || !is_much
            || took < Duration::from_ms(1)
        {
            return;
        }
        let (rate, last) = (delivered as f64 / took.as_secs_f64(), self.policed.rate);
        let apart = (rate - last).abs();
        if last > 0.0 && (apart <= POLICED_PART * last || apart <= POLICED_BYTES_PER_S) {
            self.policed.rate = f64::midpoint(rate, last);
            (self.policed.is_held, self.policed.rounds) = (true, 0);
        } else {
            self.policed.rate = rate;
            self.begin_policed(now);
        }
    }
    const fn begin_policed(&mut self, now: Instant) {
        let PolicerState { is_sampling, rate, is_held, .. } = self.policed;
        let (delivered, lost) = (self.delivery.delivered(), self.lost);
        self.policed = PolicerState { is_sampling, rounds: 0, rate, is_held, since: now, delivered, lost };
    }
    const fn forget_policed(&mut self) {
        (self.policed.rate, self.policed.is_held, self.policed.is_sampling) = (0.0, false, false);
        self.policed.rounds = 0;
    }

    fn pacing_by(&self, gain: f64) -> f64 {
        (gain * self.rate() * (1.0 - PACING_MARGIN)).max(self.config.packet_bytes as f64)
    }
    /// Source: section 4.2.1.
    fn set_pacing(&mut self) {
        let rate = self.pacing_by(self.pacing_gain());
        if self.has_filled_pipe || rate > self.pacing {
            self.pacing = rate;
        }
    }

    /// Source: section 4.2.3.
    fn set_window(&mut self, arrived: u64, lost: u64) {
        let (packet, least) = (self.config.packet_bytes, LEAST_PACKETS * self.config.packet_bytes);
        if lost > 0 {
            self.window = self.window.saturating_sub(lost).max(packet);
        }
        if std::mem::take(&mut self.begins_repair) {
            self.conserves = true;
            self.rounds.begin(self.delivery.delivered());
            self.window = self.inflight + arrived;
        }
        if self.conserves {
            self.window = self.window.max(self.inflight + arrived);
        } else if arrived > 0 {
            let gain = match self.mode {
                Mode::Startup | Mode::Drain => START_GAIN,
                Mode::ProbeBw(_) => WINDOW_GAIN,
                Mode::ProbeRtt => 1.0,
            };
            let together = if self.has_filled_pipe {
                self.aggregation.extra().min((TOGETHER_MOST_S * self.rate()) as u64)
            } else {
                0
            };
            let most = self.quantized(self.bdp_bytes(gain, self.rate()) + together);
            if self.has_filled_pipe {
                self.window = (self.window + arrived).min(most);
            } else if self.window < most || self.delivery.delivered() < self.config.initial_window_bytes {
                self.window += arrived;
            }
            self.window = self.window.max(least);
        }
        if self.mode == Mode::ProbeRtt {
            self.window = self.window.min(least);
        }
    }
}
