//! BBR: a rate and a window from a model of the path, which is how fast data arrives and how long its least round trip is.
//!
//! The sender measures both as data is acknowledged, sends as fast as data arrives, sends faster for some round trips every few
//! seconds to see whether more would arrive, and slower to see how short a round trip is without a queue. A loss is no sign of
//! congestion by itself: the share that is lost is. The data is the user's: this is the control only, to be driven beside a data
//! channel. It serves simulated TCP and `gather`.
//!
//! For each packet that leaves [`Bbr::handle_sent`] gives a [`Sent`], to be kept until the packet is acknowledged or lost. When an
//! acknowledgement comes: [`Bbr::handle_delivered`] and [`Bbr::handle_lost`] for what it says, then [`Bbr::handle_ack`]. What may
//! be in flight is [`Bbr::window_bytes`], how fast it may leave [`Bbr::pacing_bytes_per_s`].
//!
//! Source: Cardwell, Swett and Beshay, *BBR Congestion Control*, draft-ietf-ccwg-bbr-06 (CCWG, work in progress); sections are
//! its own. Differs: a recovery that proves to be spurious is not undone (section 5.5.11), as no user of this finds such; there is
//! no answer to ECN, so that users may not let packets be marked (section 3.7). With [`Config::learns_loss`] the loss that a path has
//! without a queue is told from congestion's (`congestion` says how); the draft gives half its rate away where 3 % are lost at random.
//!
//! Rates are in bytes a second, in `f64`: sums, products, quotients and square roots only, which are the same on every machine.
//! Leaves out: when each packet leaves (the user's pacing), which packets are lost, what is sent again. Read [`Bbr`] first.

mod arrivals;
mod congestion;
mod delivery;
mod first_flight;
mod phases;
mod trains;
mod v1;

pub use arrivals::{Arrivals, Counts};
pub use congestion::PATH_LOSS_MAX;
pub use delivery::Sent;
pub use phases::Phase;
pub use trains::Train;
pub(crate) use v1::Bbr1;

use anabranch_units::{Duration, Instant, RandomStream, Seed};
use congestion::Congestion;
use delivery::{Aggregation, Delivery, MinRtt, Rounds};
use first_flight::FirstFlight;
use phases::Cycle;
use trains::Trains;

/// Pacing stays so much below the rate at which data arrives (PacingMarginPercent, section 2.5).
const PACING_MARGIN: f64 = 0.01;
/// The fewest packets in flight (MinPipeCwnd, section 2.8).
const LEAST_PACKETS: u64 = 4;
/// The round trip that the first rate is reckoned with where none is known (section 5.6.2).
const FIRST_RTT: Duration = Duration::from_ms(1);
/// What leaves together (section 5.6.3): so long a time's, and the most.
const QUANTUM_TIME: Duration = Duration::from_ms(1);
const QUANTUM_MAX_BYTES: u64 = 64 << 10;

/// The share of what may be in flight that is left to others between probes (Headroom, section 2.8).
pub const HEADROOM: f64 = 0.15;
/// The share of what the path holds without a queue that is left to others which keep one.
///
/// Differs: the draft leaves them no more than [`HEADROOM`], and that of an amount which holds what stands in the queue, too. With that, of the
/// path alone, one server of `gather` had up to 2.2 times its share beside four flows of Cubic, and three servers of one pull 3.2 times that
/// pull's (`experiments/gather-fairness`).
const COMPANY_HEADROOM: f64 = 0.45;

/// How a [`Bbr`] is set up.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Bytes of a full packet that count (C.SMSS).
    pub packet_bytes: u64,
    /// Bytes that may be in flight before the first acknowledgement (RFC 6928: ten packets).
    pub initial_window_bytes: u64,
    /// The round trip, where one was measured already.
    pub initial_rtt: Option<Duration>,
    /// Bytes that the other end may let come before it acknowledges them (section 5.5.8).
    pub ack_bytes: u64,
    /// Whether the share that is lost without a queue is learnt, and not taken for congestion.
    pub learns_loss: bool,
    /// The share of the highest amount in flight that is left to others between probes, where losses bound that, as long as round trips
    /// show no queue; where they do others are there, and have the draft's [`HEADROOM`]. Where the queue lasts they have all of it, and
    /// 45 % of the path, unless they answer no losses (`congestion` says how that is told). Without [`Config::learns_loss`] they have the
    /// draft's share always.
    pub headroom: f64,
    /// So many senders to one receiver, this one among them, count as one party: each goes on with its part of what a train
    /// shows, and excuses its part of what is lost beside others that answer no losses. None counts as one.
    pub senders: u16,
    /// Whether what leaves together, and what comes between two acknowledgements, is no more than half a round trip's. The draft counts
    /// with a millisecond's; inside a data centre that is many times what the path holds, and all of it stands in a queue.
    pub fits_rtt: bool,
    /// Whether the start goes on with what came of the first flight, and as fast: see `first_flight`.
    pub heeds_first_flight: bool,
    /// Whether, and how, the start over a far path is shortened by trains.
    pub train: Option<Train>,
    /// Draws when the rate is probed: flows that share a link should not probe together (section 5.3.3.7).
    pub seed: Seed,
}

/// The model of one path, and what may be sent on it.
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
    /// The highest rate that was measured in the present cycle of probes and in the one before (BBR.max_bw_filter).
    rates: [f64; 2],
    /// The rate that the model has for the path now (BBR.bw).
    rate: f64,
    pacing: f64,
    window: u64,
    /// The last window that neither a repair nor a look for the least round trip had cut (BBR.prior_cwnd).
    prior_window: u64,
    first_flight: FirstFlight,
    trains: Trains,
    is_repairing: bool,
    /// What counts as lost since nothing was heard for long may come yet.
    is_silent: bool,
    /// Bytes in flight after the last acknowledgement.
    inflight: u64,
}

/// At how many bytes a second a first flight leaves (section 5.6.2).
fn first_pacing(gain: f64, window: u64, rtt: Option<Duration>) -> f64 {
    let rtt = rtt.unwrap_or(FIRST_RTT).max(Duration::from_us(1));
    gain * window as f64 / rtt.as_secs_f64()
}

impl Bbr {
    /// A path of which nothing is known but what `config` says.
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

    /// Bytes that may be in flight (C.cwnd).
    pub const fn window_bytes(&self) -> u64 {
        self.window
    }
    /// Bytes that may leave in a second (C.pacing_rate).
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

    /// What leaves in [`QUANTUM_TIME`], or in half a round trip where that is shorter.
    fn together_bytes(&self) -> u64 {
        let half = self.min_rtt.least().filter(|_| self.config.fits_rtt);
        let half = half.map_or(QUANTUM_TIME, |least| Duration::from_ps(least.as_ps() / 2));
        (self.pacing * half.min(QUANTUM_TIME).as_secs_f64()) as u64
    }

    /// Packets of another length are sent from now on.
    pub const fn set_packet_bytes(&mut self, bytes: u64) {
        self.config.packet_bytes = bytes;
    }
    /// What it does now.
    pub const fn phase(&self) -> Phase {
        self.cycle.phase
    }
    /// The rate at which data is taken to arrive, in bytes a second; 0 before it was measured.
    pub const fn rate_bytes_per_s(&self) -> f64 {
        self.rate
    }
    /// The least round trip of the last ten seconds.
    pub const fn min_rtt(&self) -> Option<Duration> {
        self.min_rtt.least()
    }
    /// The share of packets that the path loses whatever this sender does: without a queue, or beside others that answer no losses; 0 unless
    /// it is learnt.
    pub fn path_loss(&self) -> f64 {
        self.congestion.path_loss()
    }

    /// Whether the last round trip has shown no queue. It is not told without [`Config::learns_loss`].
    pub const fn is_calm(&self) -> bool {
        self.congestion.is_calm
    }

    /// A packet of `bytes` leaves; `inflight` bytes are in flight with it.
    ///
    /// Source: section 4.1.2.2 and, after idle time, 5.4.1.
    pub fn handle_sent(&mut self, now: Instant, bytes: u64, inflight: u64) -> Sent {
        if inflight <= bytes {
            if self.delivery.is_app_limited() {
                self.handle_restart(now);
            }
            // After a silence nothing seems to be in flight. Of what comes nevertheless, only the time since it left says how fast it came.
            if !self.is_silent {
                self.delivery.handle_idle(now);
            }
        }
        // Less than a packet more would fit: the window is what keeps it back (C.is_cwnd_limited).
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

    /// Less is sent than might be, as there is nothing to send: what arrives now tells nothing of the path's rate.
    ///
    /// Source: section 4.1.2.4, MarkConnectionAppLimited.
    pub fn note_app_limited(&mut self) {
        self.trains.handle_idle();
        self.delivery.mark_app_limited(self.inflight, false);
    }

    /// Less is sent than the model allows, as another limit holds it down: what arrives tells nothing of the path's rate, but
    /// what is lost does. Where the window keeps back more than that limit does, what arrives tells of the path nevertheless.
    ///
    /// Differs: the draft has no such limit. Taken for a lack of data it kept the start going for ever, in which no loss counts, and a
    /// rate for as long that was found before others came.
    pub fn note_held(&mut self) {
        if !self.rounds.has_filled_window() {
            self.delivery.mark_app_limited(self.inflight, true);
        }
    }

    /// An acknowledgement says that `bytes` have arrived; `sent` is the packet among them that was sent last.
    pub fn handle_delivered(&mut self, now: Instant, bytes: u64, sent: &Sent) {
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

    /// The same of packets that nothing is known of any more: they tell nothing of the rate.
    pub const fn handle_late(&mut self, now: Instant, bytes: u64) {
        self.delivery.handle_late(now, bytes);
    }

    /// `bytes` are lost that were sent as `sent`; `runs` of them begin behind a packet that
    /// was not lost.
    ///
    /// Source: section 5.5.10.2, HandleLostPacket.
    pub fn handle_lost(&mut self, now: Instant, bytes: u64, sent: &Sent, runs: u32) {
        // The start drops in runs what a short queue does not take.
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

    /// `bytes` count as lost, as nothing was heard of them for long; [`Bbr::handle_lost`] may follow. Only of the first flight does it
    /// say anything.
    pub fn handle_written_off(&mut self, bytes: u64) {
        let window = self.first_flight.handle_lost(bytes, self.window, self.config.packet_bytes);
        if !self.cycle.has_filled_pipe {
            self.pacing *= window as f64 / self.window as f64;
            self.window = window;
        }
    }

    /// All that an acknowledgement says has been told; `inflight` bytes are left in flight, and the packet that was sent last of
    /// those that it acknowledges took `rtt`.
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

    /// Over a far path the start goes on with what trains have shown.
    ///
    /// Differs: the draft has nothing like it. See `trains`.
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

    /// The path is known to carry more than what was found: its rate is looked for as in the beginning.
    ///
    /// Differs: the draft has nothing like it, as no sender is told.
    pub fn start_anew(&mut self) {
        self.congestion.forget_bounds();
        self.cycle.start_anew();
    }

    /// A loss was found that is to be repaired. Told once for a repair, or not at all.
    ///
    /// Source: section 5.6.4.4, OnEnterFastRecovery.
    pub fn handle_repair(&mut self) {
        self.save_window();
        self.is_repairing = true;
    }

    /// Nothing was heard for so long that all that was in flight counts as lost: one packet more may leave.
    ///
    /// Source: section 5.6.4.4, OnEnterRTO.
    pub fn handle_timeout(&mut self) {
        self.handle_repair();
        self.is_silent = true;
        self.inflight = 0;
        self.window = self.config.packet_bytes;
        self.delivery.mark_app_limited(0, false);
    }

    /// What was lost is repaired: the window is what it was before.
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

    /// BBR.max_bw.
    const fn max_rate(&self) -> f64 {
        self.rates[0].max(self.rates[1])
    }

    /// What has to leave for the model's rate to arrive.
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
        // What is held down to less than the path carries makes no queue that has to drain.
        let margin = if self.delivery.is_held() { 0.0 } else { PACING_MARGIN };
        let rate = gain * self.sending_rate(self.rate) * (1.0 - margin);
        if let (Some(shown), Some(rtt)) = (self.trains.bytes_per_s(), self.min_rtt.least()) {
            // The window leaves in half a round trip, but no faster than it comes.
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
