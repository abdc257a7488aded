//! BBR congestion control: a sending rate and a window from a model of the path. The model consists
//! of the delivery rate and the minimum round-trip time.
//!
//! The sender measures both from acknowledgements and sends at the delivery rate. Every few seconds
//! it sends faster for some round trips to test whether more would arrive. It sends more slowly to
//! measure a round trip without a queue. A single loss is not a sign of congestion; a high loss
//! rate is. The module contains the congestion control only, and is driven beside the user's data
//! channel. Simulated TCP and `gather` use the module.
//!
//! [`Bbr::handle_sent`] returns a [`SendRecord`] for each packet, to be kept until the packet is
//! acknowledged or lost. For each acknowledgement, call [`Bbr::handle_delivered`] and
//! [`Bbr::handle_lost`] for its contents, then [`Bbr::handle_ack`]. [`Bbr::window_bytes`] limits
//! the bytes in flight, [`Bbr::pacing_bytes_per_s`] the rate.
//!
//! Source: Cardwell, Swett and Beshay, *BBR Congestion Control*, draft-ietf-ccwg-bbr-06 (CCWG, work
//! in progress), whose sections are cited. Differs: a spurious recovery is not undone (section
//! 5.5.11), because no user of the module detects one. There is no response to ECN, so users must
//! not send packets as ECN-capable (section 3.7). With [`Config::learns_loss`] the path's own loss
//! is distinguished from congestion's (see `congestion`); the draft gives up half of its rate at 3
//! % random loss.
//!
//! Rates are in bytes per second, in `f64`. Only sums, products, quotients and square roots are
//! used, which are the same on every machine. Leaves out: pacing of single packets (the user's
//! task), loss detection, and retransmission. Read [`Bbr`] first.

mod arrivals;
mod congestion;
mod delivery;
mod first_flight;
mod phases;
mod trains;
mod v1;

pub use arrivals::{ArrivalCounts, Arrivals};
pub use congestion::PATH_LOSS_MAX;
pub use delivery::SendRecord;
pub use phases::Phase;
pub use trains::Train;
pub(crate) use v1::Bbr1;

use anabranch_units::{Duration, Instant, RandomStream, Seed};
use congestion::Congestion;
use delivery::{Aggregation, Delivery, MinRtt, Rounds};
use first_flight::FirstFlight;
use phases::Cycle;
use trains::Trains;

/// Fraction by which the pacing rate stays below the delivery rate (PacingMarginPercent, section
/// 2.5).
const PACING_MARGIN: f64 = 0.01;
/// Minimum number of packets in flight (MinPipeCwnd, section 2.8).
const LEAST_PACKETS: u64 = 4;
/// Round-trip time assumed for the first pacing rate if no round-trip time is known (section
/// 5.6.2).
const FIRST_RTT: Duration = Duration::from_ms(1);
/// Duration of a quantum, whose packets leave together.
const QUANTUM_TIME: Duration = Duration::from_ms(1);
/// Maximum length of a quantum (section 5.6.3).
const QUANTUM_MAX_BYTES: u64 = 64 << 10;

/// Share of the in-flight limit that is left to competing flows between probes (Headroom, section
/// 2.8).
pub const HEADROOM: f64 = 0.15;
/// Share of the path's capacity without a queue that is left to competing flows if they keep a
/// queue.
///
/// Differs: the draft leaves only [`HEADROOM`], of an amount that includes the queue. If only that
/// share of the path was left, one server of `gather` had up to 2.2 times its share beside four
/// Cubic flows, and a pull from three servers 3.2 times its share (`experiments/gather-fairness`).
const HEADROOM_WITH_COMPETITORS: f64 = 0.45;

/// Settings of a [`Bbr`].
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Payload bytes of a full packet (C.SMSS).
    pub packet_bytes: u64,
    /// Bytes allowed in flight before the first acknowledgement (RFC 6928: ten packets).
    pub initial_window_bytes: u64,
    /// Round-trip time, if it was measured before.
    pub initial_rtt: Option<Duration>,
    /// Number of bytes that the peer may receive before it acknowledges them (section 5.5.8).
    pub ack_bytes: u64,
    /// Whether the path's own loss rate is learned, and not taken for congestion.
    pub learns_loss: bool,
    /// Share of the in-flight limit that is left to competing flows between probes, if losses set
    /// that limit and round trips show no queue. If they show a queue, competing flows are present
    /// and are left the draft's [`HEADROOM`]. If the queue persists, they are left the whole queue
    /// and 45 % of the path, unless they are loss-insensitive (see `congestion`). Without
    /// [`Config::learns_loss`] the draft's share always applies.
    pub headroom: f64,
    /// Number of senders to one receiver, this one included, that count as one party. Each sender
    /// uses its part of the rate that a train shows, and tolerates its part of the losses beside
    /// loss-insensitive flows. 0 counts as one sender.
    pub senders: u16,
    /// Whether quanta and aggregated acknowledgements are limited to half a round trip. The draft
    /// uses one millisecond. Inside a data centre a millisecond is many times the path's capacity,
    /// and all of it stands in a queue.
    pub fits_rtt: bool,
    /// Whether the start continues at the arriving rate of the first flight: see `first_flight`.
    pub heeds_first_flight: bool,
    /// Parameters of trains that shorten the start over a long path; `None` for no trains.
    pub train: Option<Train>,
    /// Seed of the random times of probes: flows that share a link should not probe together
    /// (section 5.3.3.7).
    pub seed: Seed,
}

/// Model of one path, with the limits that follow from it.
#[derive(Clone, Debug)]
pub struct Bbr {
    config: Config,
    random: RandomStream,
    delivery: Delivery,
    rounds: Rounds,
    aggregation: Aggregation,
    min_rtt: MinRtt,
    congestion: Congestion,
    cycle: Cycle,
    /// Highest rates measured in the previous cycle of probes and in the current one
    /// (BBR.max_bw_filter).
    rates: [f64; 2],
    /// Current rate of the model (BBR.bw).
    rate: f64,
    pacing: f64,
    window: u64,
    /// Last window before a recovery, or a probe for the round-trip time, reduced the window
    /// (BBR.prior_cwnd).
    prior_window: u64,
    first_flight: FirstFlight,
    trains: Trains,
    is_repairing: bool,
    /// Whether bytes that count as lost since a timeout may still arrive.
    is_silent: bool,
    /// Bytes in flight after the last acknowledgement.
    inflight: u64,
}

/// Pacing rate for a first flight of `window` bytes, in bytes per second (section 5.6.2).
fn first_pacing(gain: f64, window: u64, rtt: Option<Duration>) -> f64 {
    let rtt = rtt.unwrap_or(FIRST_RTT).max(Duration::from_us(1));
    gain * window as f64 / rtt.as_secs_f64()
}

impl Bbr {
    /// Creates the model of an unmeasured path.
    ///
    /// Source: section 5.2.1, OnInit.
    pub fn new(now: Instant, config: Config) -> Self {
        let mut random = config.seed.stream("bbr", 0);
        Self {
            delivery: Delivery::new(now),
            rounds: Rounds::default(),
            aggregation: Aggregation::new(now),
            min_rtt: MinRtt::new(now, config.initial_rtt),
            congestion: Congestion::new(config.senders),
            cycle: Cycle::new(now, &mut random),
            random,
            rates: [0.0; 2],
            rate: 0.0,
            pacing: first_pacing(
                Phase::Startup.pacing_gain(),
                config.initial_window_bytes,
                config.initial_rtt,
            ),
            window: config.initial_window_bytes.max(LEAST_PACKETS * config.packet_bytes),
            prior_window: 0,
            first_flight: FirstFlight::default(),
            trains: Trains::new(&config),
            is_repairing: false,
            is_silent: false,
            inflight: 0,
            config,
        }
    }

    /// Limit of bytes in flight (C.cwnd).
    pub const fn window_bytes(&self) -> u64 {
        self.window
    }
    /// Pacing rate in bytes per second (C.pacing_rate).
    pub const fn pacing_bytes_per_s(&self) -> f64 {
        match self.trains.leaves_at() {
            Some(rate) if rate > self.pacing => rate,
            _ => self.pacing,
        }
    }
    /// Bytes that may leave together (C.send_quantum).
    ///
    /// Source: section 5.6.3.
    ///
    /// Differs: [`Config::fits_rtt`].
    pub fn quantum_bytes(&self) -> u64 {
        self.together_bytes().min(QUANTUM_MAX_BYTES).max(2 * self.config.packet_bytes)
    }

    /// Bytes paced in [`QUANTUM_TIME`], or in half a round trip if that is shorter.
    fn together_bytes(&self) -> u64 {
        let half = self.min_rtt.least().filter(|_| self.config.fits_rtt);
        let half = half.map_or(QUANTUM_TIME, |least| Duration::from_ps(least.as_ps() / 2));
        (self.pacing * half.min(QUANTUM_TIME).as_secs_f64()) as u64
    }

    /// Sets the packet length for packets sent from now on.
    pub const fn set_packet_bytes(&mut self, bytes: u64) {
        self.config.packet_bytes = bytes;
    }
    /// Current phase.
    pub const fn phase(&self) -> Phase {
        self.cycle.phase
    }
    /// Estimated delivery rate, in bytes per second; 0 before the first measurement.
    pub const fn rate_bytes_per_s(&self) -> f64 {
        self.rate
    }
    /// Minimum round-trip time of the last ten seconds.
    pub const fn min_rtt(&self) -> Option<Duration> {
        self.min_rtt.least()
    }
    /// Loss rate of the path that is independent of this sender: without a queue, or beside
    /// loss-insensitive flows. 0 without [`Config::learns_loss`].
    pub fn path_loss(&self) -> f64 {
        self.congestion.path_loss()
    }

    /// Whether the last round trip showed no queue; always false without [`Config::learns_loss`].
    pub const fn is_calm(&self) -> bool {
        self.congestion.is_calm
    }

    /// Handles a sent packet of `bytes`; `inflight` includes it.
    ///
    /// Source: section 4.1.2.2 and, after idle time, 5.4.1.
    pub fn handle_sent(&mut self, now: Instant, bytes: u64, inflight: u64) -> SendRecord {
        if inflight <= bytes {
            if self.delivery.is_app_limited() {
                self.handle_restart(now);
            }
            // After a timeout no packet counts as in flight. If such packets arrive nevertheless,
            // only the time since they left gives a rate.
            if !self.is_silent {
                self.delivery.handle_idle(now);
            }
        }
        // If no further full packet fits, the window limits the sender (C.is_cwnd_limited).
        if inflight + self.config.packet_bytes > self.window {
            self.rounds.is_window_limited = true;
        }
        self.inflight = inflight;
        self.trains.handle_sent(bytes);
        if self.config.heeds_first_flight && self.delivery.delivered() == 0 {
            self.first_flight.handle_sent(bytes);
        }
        self.delivery.sent(now, bytes, inflight, self.congestion.lost(), self.cycle.pressure())
    }

    /// Marks the sender as application-limited: arrivals are then no evidence of the path's rate.
    ///
    /// Source: section 4.1.2.4, MarkConnectionAppLimited.
    pub fn note_app_limited(&mut self) {
        self.trains.handle_idle();
        self.delivery.mark_app_limited(self.inflight, false);
    }

    /// Marks the sender as limited by an external rate. Arrivals are then no evidence of the path's
    /// rate, but losses are. If the window limits the sender more than that rate, arrivals are
    /// evidence nevertheless.
    ///
    /// Differs: the draft has no external rate. If the sender counted as application-limited, the
    /// start would last forever, without response to losses. A rate found before competing flows
    /// began would also stay.
    pub fn note_held(&mut self) {
        if !self.rounds.has_filled_window() {
            self.delivery.mark_app_limited(self.inflight, true);
        }
    }

    /// Handles the delivery of `bytes` bytes; `sent` is the record of the last sent packet among
    /// them.
    pub fn handle_delivered(&mut self, now: Instant, bytes: u64, sent: &SendRecord) {
        let packet_bytes = self.config.packet_bytes;
        if let Some(rate) = self.first_flight.handle_delivered(now, bytes, sent, packet_bytes)
            && !self.cycle.has_filled_pipe
            && !self.trains.is_on()
        {
            self.pacing = self.pacing.min(self.cycle.phase.pacing_gain() * rate);
        }
        self.is_silent = false;
        self.delivery.handle_delivered(now, bytes, sent);
    }

    /// Handles the delivery of `bytes` bytes whose records were dropped. They are no evidence of
    /// the rate.
    pub const fn handle_late(&mut self, now: Instant, bytes: u64) {
        self.delivery.handle_late(now, bytes);
    }

    /// Handles the loss of `bytes` bytes, which is attributed to the packet of the record `sent`.
    /// `runs` is the number of runs of lost packets that begin among them.
    ///
    /// Source: section 5.5.10.2, HandleLostPacket.
    pub fn handle_lost(&mut self, now: Instant, bytes: u64, sent: &SendRecord, runs: u32) {
        // In the start a short queue loses packets in runs, so each lost packet counts as a run.
        let packets = bytes as f64 / self.config.packet_bytes as f64;
        let learnt_runs = if self.cycle.has_filled_pipe { f64::from(runs) } else { packets };
        self.congestion.note_loss(bytes, (runs, learnt_runs), self.delivery.delivered(), sent.pressure);
        self.handle_written_off(bytes);
        if !self.cycle.is_probe_sample {
            return;
        }
        let lost = self.congestion.lost_since(sent);
        if self.congestion.is_too_high(lost, sent.inflight, self.config.packet_bytes) {
            let inflight = self.congestion.inflight_at_loss(lost, sent, bytes);
            self.handle_inflight_too_high(now, inflight, sent.is_app_limited);
        }
    }

    /// Counts `bytes` bytes as lost after a long silence; [`Bbr::handle_lost`] may follow. The
    /// model uses the count for the first flight only.
    pub fn handle_written_off(&mut self, bytes: u64) {
        let window = self.first_flight.handle_lost(bytes, self.window, self.config.packet_bytes);
        if !self.cycle.has_filled_pipe {
            self.pacing *= window as f64 / self.window as f64;
            self.window = window;
        }
    }

    /// Completes an acknowledgement. `inflight` bytes are left in flight, and `rtt` is the
    /// round-trip time of the last sent packet among the acknowledged ones.
    ///
    /// Source: section 5.2.3, UpdateOnACK.
    pub fn handle_ack(&mut self, now: Instant, inflight: u64, rtt: Option<Duration>) {
        self.inflight = inflight;
        let sample = self.delivery.take_sample(rtt);
        self.update_round(&sample);
        self.congestion.update_latest(&sample, self.delivery.delivered());
        if sample.rate > 0.0 && (sample.rate >= self.max_rate() || !sample.is_app_limited) {
            self.rates[1] = self.rates[1].max(sample.rate);
        }
        if self.congestion.loss_round_start {
            self.adapt_to_congestion();
        }
        self.aggregation.update(
            now,
            &sample,
            self.rate,
            self.window,
            self.rounds.count,
            self.cycle.has_filled_pipe,
        );
        self.update_trains(&sample);
        self.check_full_pipe(&sample);
        self.check_startup_done(&sample);
        self.check_drain_done(now);
        self.update_cycle(now, &sample);
        self.min_rtt.update(now, sample.rtt);
        self.check_probe_rtt(now, &sample);
        self.congestion.advance_latest(&sample);
        self.rate = self.max_rate().min(self.congestion.rate_shortterm);
        self.set_pacing(self.cycle.phase.pacing_gain());
        self.set_window(sample.newly_delivered);
    }

    /// On a long path, continues the start with the rate that trains have shown.
    ///
    /// Differs: the draft has no trains. See `trains`.
    fn update_trains(&mut self, sample: &delivery::Sample) {
        if self.cycle.has_filled_pipe {
            return self.trains.end();
        }
        let delivered = self.delivery.delivered();
        if self.trains.ends(self.congestion.lost(), delivered, self.min_rtt.least()) {
            let gain = self.cycle.phase.window_gain();
            self.window =
                self.window.min(self.bdp_bytes(gain, self.rate).max(self.config.initial_window_bytes));
            let first = first_pacing(
                Phase::Startup.pacing_gain(),
                self.config.initial_window_bytes,
                self.min_rtt.least(),
            );
            self.pacing = first.max(self.cycle.phase.pacing_gain() * self.rate);
            return;
        }
        if self.rounds.start {
            self.trains.handle_round(self.window);
        }
        self.trains.handle_ack(sample, delivered);
        if let (Some(rate), Some(rtt)) = (self.trains.bytes_per_s(), self.min_rtt.least()) {
            let most = (rate * rtt.as_secs_f64()) as u64;
            self.window = Trains::grown(self.window, sample.newly_delivered, most);
        }
    }

    /// Restarts the search for the path's rate as at the beginning, because the path is known to
    /// carry more than the model's rate.
    ///
    /// Differs: the draft has no such case, because it assumes no external information.
    pub fn start_anew(&mut self) {
        self.congestion.forget_bounds();
        self.cycle.start_anew();
    }

    /// Starts a recovery after a loss. Called at most once per recovery.
    ///
    /// Source: section 5.6.4.4, OnEnterFastRecovery.
    pub fn handle_repair(&mut self) {
        self.save_window();
        self.is_repairing = true;
    }

    /// Handles a retransmission timeout: all bytes in flight count as lost, and one more packet may
    /// leave.
    ///
    /// Source: section 5.6.4.4, OnEnterRTO.
    pub fn handle_timeout(&mut self) {
        self.handle_repair();
        self.is_silent = true;
        self.inflight = 0;
        self.window = self.config.packet_bytes;
        self.delivery.mark_app_limited(0, false);
    }

    /// Ends a recovery: restores the window from before the recovery.
    ///
    /// Source: section 5.6.4.4, RestoreCwnd.
    pub fn handle_recovered(&mut self) {
        if std::mem::take(&mut self.is_repairing) {
            self.window = self.window.max(self.prior_window);
        }
    }

    /// Source: section 5.6.4.4, SaveCwnd.
    fn save_window(&mut self) {
        let is_cut = self.is_repairing || self.cycle.phase == Phase::ProbeRtt;
        self.prior_window = if is_cut { self.prior_window.max(self.window) } else { self.window };
    }

    /// Maximum rate of the last two cycles of probes (BBR.max_bw).
    const fn max_rate(&self) -> f64 {
        self.rates[0].max(self.rates[1])
    }

    /// Sending rate at which `rate` arrives despite the path's own loss.
    fn sending_rate(&self, rate: f64) -> f64 {
        rate / (1.0 - self.congestion.path_loss())
    }

    /// Source: section 5.5.1.
    fn update_round(&mut self, sample: &delivery::Sample) {
        let begins = self.rounds.update(sample, self.delivery.delivered());
        let learns = begins && self.config.learns_loss;
        self.congestion.note_ack(sample);
        if learns {
            let is_cruise = self.cycle.began_in_cruise && self.cycle.phase == Phase::Cruise;
            let together = self.aggregation.extra() as f64 / self.max_rate().max(1.0);
            let together = Duration::from_ps((together * 1e12) as u64);
            self.congestion.learn(self.min_rtt.least(), together, self.config.packet_bytes, is_cruise);
        }
        if begins {
            self.cycle.rounds_since_probe += 1;
            self.cycle.began_in_cruise = self.cycle.phase == Phase::Cruise;
        }
    }

    /// Source: section 5.6.2.
    fn set_pacing(&mut self, gain: f64) {
        // A sender below the path's rate builds no queue, so no margin is needed to drain one.
        let margin = if self.delivery.is_held() { 0.0 } else { PACING_MARGIN };
        let rate = gain * self.sending_rate(self.rate) * (1.0 - margin);
        if let (Some(shown), Some(rtt)) = (self.trains.bytes_per_s(), self.min_rtt.least()) {
            // The window leaves in half a round trip, but no faster than the path's rate.
            let in_half = 2.0 * self.window as f64 / rtt.as_secs_f64();
            self.pacing = rate.max(shown.min(in_half)).max(self.config.packet_bytes as f64);
        } else if self.cycle.has_filled_pipe || rate > self.pacing {
            self.pacing = rate.max(self.config.packet_bytes as f64);
        }
    }

    /// Source: section 5.6.4.2, BDPMultiple.
    fn bdp_bytes(&self, gain: f64, rate: f64) -> u64 {
        match self.min_rtt.least() {
            None => self.config.initial_window_bytes,
            Some(rtt) => (gain * self.sending_rate(rate) * rtt.as_secs_f64()) as u64,
        }
    }

    /// Source: sections 5.6.4.2, QuantizationBudget, and 5.5.8.
    fn quantized(&self, bytes: u64) -> u64 {
        let acks = self.config.ack_bytes;
        let acks = if self.config.fits_rtt { acks.min(self.together_bytes()) } else { acks };
        let budget = self.quantum_bytes() + acks;
        let bytes = bytes.max(budget).max(LEAST_PACKETS * self.config.packet_bytes);
        bytes + if self.cycle.phase == Phase::Up { 2 * self.config.packet_bytes } else { 0 }
    }

    /// Source: sections 5.6.4.6 and 5.6.4.7.
    fn set_window(&mut self, newly_delivered: u64) {
        let phase = self.cycle.phase;
        let most = self.quantized(self.bdp_bytes(phase.window_gain(), self.rate) + self.aggregation.extra());
        if self.cycle.has_filled_pipe {
            self.window = (self.window + newly_delivered).min(most);
        } else if self.window < most || self.delivery.delivered() < self.config.initial_window_bytes {
            self.window += newly_delivered;
        }
        let least = LEAST_PACKETS * self.config.packet_bytes;
        self.window = self.window.max(least);
        if phase == Phase::ProbeRtt {
            self.window = self.window.min(self.probe_rtt_window());
        }
        let longterm = match phase {
            Phase::Startup | Phase::Drain => u64::MAX,
            Phase::Down | Phase::Refill | Phase::Up => self.congestion.inflight_longterm,
            Phase::Cruise | Phase::ProbeRtt => self.inflight_with_headroom(),
        };
        self.window = self.window.min(longterm.min(self.congestion.inflight_shortterm).max(least));
    }
}

#[cfg(test)]
mod tests;
