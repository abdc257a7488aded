//! NSCC: the window of a flow whose packets take many ways at once. A mark alone moves no window, as it speaks of one way only: the sender takes
//! another. What moves it is how long all packets wait.
//!
//! Source: network-signalled congestion control of the Ultra Ethernet Specification 1.0 (2025), which comes from FASTFLOW (Bonato and others,
//! arXiv:2404.01630, 2024); details as in the consortium's public simulator (htsim). Constants are those for a network in which a product is
//! [`REFERENCE`] bytes, and scale with it as they do there. A packet's *delay* is its round trip less the least one; the *target* is the
//! least round trip again, as where switches trim nothing. An acknowledgement that is
//!
//! - not marked, below the target: lets the window grow by as much as is missing (*proportional increase*), and by a quarter of what is
//!   acknowledged once a whole window came without delay (*fast increase*);
//! - not marked, above it: lets it grow a little, all flows alike (*fair increase*);
//! - marked, below it: changes nothing;
//! - marked, above it: shrinks it by how far the mean delay is above, once in a round trip and to a half at the most (*multiplicative decrease*).
//!
//! What is lost is taken from the window; where hardly anything arrives any more, the window becomes what did (*quick adapt*).
//!
//! Differs: the product of rate and round trip is two thirds of the largest window, which has to be set (`cwnd_max`), where a card knows it. The
//! least round trip is what was measured.
//!
//! Leaves out: ways (`spray-proto`), which losses are none (`rack`).

use super::properties::Setting;
use super::{Ack, Algorithm, Properties, Window};
use crate::config::Config;
use anabranch_units::{Duration, Instant};

/// Reason that messages give for each setting that NSCC needs.
const NEEDS: &str = "goes by marks, by when segments left and by the path's product";

/// Bytes in flight of the specification's own network: 100 Gbit/s for 12 us.
const REFERENCE: f64 = 150_000.0;
/// That round trip.
const REFERENCE_RTT: Duration = Duration::from_us(12);
/// A delay below this is none.
const NO_DELAY: Duration = Duration::from_us(1);
/// The weight of a packet's delay in the mean.
const DELAY_WEIGHT: f64 = 0.0125;
/// How strongly the window shrinks.
const GAMMA: f64 = 0.8;
/// Quick adapt: an eighth of the largest window is hardly anything.
const QUICK_SHIFT: u32 = 3;
/// And a delay of so many targets is too long.
const QUICK_TARGETS: u64 = 4;

/// What has arrived, and what the acknowledgement that says so says beside.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Arrival {
    /// Bytes that are acknowledged, cumulatively or selectively, and were not before.
    pub(crate) bytes: u64,
    /// Whether the last packet that came was marked.
    pub(crate) is_marked: bool,
    /// The round trip of the newest, where it is known.
    pub(crate) rtt: Option<Duration>,
    /// Bytes that are on their way still.
    pub(crate) in_flight: u64,
}

/// The state of NSCC.
#[derive(Clone, Debug, Default)]
pub(crate) struct Nscc {
    base: Option<Duration>,
    /// The mean delay, in ps.
    delay_mean: f64,
    /// What the window is to grow by, in bytes times its bytes; and what arrived since it last did.
    growth: f64,
    arrived: u64,
    grown_at: Option<Instant>,
    shrunk_at: Option<Instant>,
    /// Bytes in a row that came without delay, and whether they were a window.
    undelayed: u64,
    is_fast: bool,
    quick: Quick,
}

/// What quick adapt goes by.
#[derive(Clone, Debug, Default)]
struct Quick {
    /// When what arrives is looked at next, and what did since.
    at: Option<Instant>,
    arrived: u64,
    has_lost: bool,
    /// Marked or lost bytes that were on their way when the window was set: they say nothing of it.
    ignored: u64,
}

impl Nscc {
    /// The product of rate and round trip over the specification's own.
    fn scale(w: &Window) -> f64 {
        w.cwnd_max as f64 / 1.5 / REFERENCE
    }

    fn grow_fast(&mut self, w: &mut Window, bytes: u64, delay: Duration) -> bool {
        self.undelayed = if delay < NO_DELAY { self.undelayed + bytes } else { 0 };
        self.is_fast = delay < NO_DELAY && (self.is_fast || self.undelayed > w.cwnd);
        if self.is_fast {
            w.grow((bytes as f64 * 0.25 * Self::scale(w)) as u64);
        }
        self.is_fast
    }

    fn shrink(&mut self, now: Instant, w: &mut Window, base: Duration, target: Duration) {
        (self.is_fast, self.undelayed) = (false, 0);
        let above = self.delay_mean - target.as_ps() as f64;
        if above > 0.0 && self.shrunk_at.is_none_or(|at| now.saturating_since(at) > base) {
            let left = (1.0 - GAMMA * above / self.delay_mean).max(0.5);
            w.cwnd = ((w.cwnd as f64 * left) as u64).max(w.mss);
            self.shrunk_at = Some(now);
        }
    }

    /// Sets the window to what arrives where that is hardly anything. True where the acknowledgement is to change nothing else.
    fn adapt_quickly(
        &mut self,
        now: Instant,
        w: &mut Window,
        arrival: &Arrival,
        delay: Duration,
        target: Duration,
    ) -> bool {
        let quick = &mut self.quick;
        if arrival.is_marked && quick.ignored > 0 {
            quick.ignored = quick.ignored.saturating_sub(arrival.bytes);
            (self.growth, self.arrived) = (0.0, 0);
            return true;
        }
        if quick.at.is_some_and(|at| now <= at) {
            return false;
        }
        let is_bad = quick.has_lost || delay > target * QUICK_TARGETS;
        let is_adapting = quick.at.is_some() && is_bad && quick.arrived < w.cwnd_max >> QUICK_SHIFT;
        if is_adapting {
            w.cwnd = quick.arrived.clamp(w.mss, w.cwnd);
            (quick.ignored, quick.has_lost) = (arrival.in_flight, false);
            (self.growth, self.arrived) = (0.0, 0);
        }
        (quick.arrived, quick.at) = (0, Some(now + target + target));
        is_adapting
    }
}

impl Algorithm for Nscc {
    const PROPERTIES: Properties = Properties {
        needs: &[(Setting::Ecn(true), NEEDS), (Setting::Rack, NEEDS), (Setting::CwndMax, NEEDS)],
        has_exact_echo: true,
        ..Properties::DEFAULT
    };

    fn new(_config: &Config) -> Self {
        Self::default()
    }

    fn grows_by_acks(&self) -> bool {
        false
    }

    fn avoid(&mut self, _now: Instant, _w: &mut Window, _ack: &Ack) {}

    fn back_off(&mut self, w: &mut Window, _flight: u64) {
        w.ssthresh = w.cwnd;
    }

    fn takes_marks_for_loss(&self) -> bool {
        false
    }

    fn handle_arrived(&mut self, now: Instant, w: &mut Window, arrival: &Arrival) {
        let Some(rtt) = arrival.rtt else { return };
        let base = self.base.map_or(rtt, |base| base.min(rtt));
        self.base = Some(base);
        let (delay, target) = (Duration::from_ps(rtt.as_ps() - base.as_ps()), base);
        // A delayed packet without a mark: the queue is draining, so a short delay counts.
        let counted = if !arrival.is_marked && delay > target { base.as_ps() / 4 } else { delay.as_ps() };
        self.delay_mean += DELAY_WEIGHT * (counted as f64 - self.delay_mean);
        self.arrived += arrival.bytes;
        self.quick.arrived += arrival.bytes;
        if self.adapt_quickly(now, w, arrival, delay, target) {
            return;
        }
        let (bytes, mss, scale) = (arrival.bytes as f64, w.mss as f64, Self::scale(w));
        match (arrival.is_marked, delay >= target) {
            (false, true) => self.growth += 5.0 * mss * scale * bytes,
            (false, false) => {
                if !self.grow_fast(w, arrival.bytes, delay) {
                    let missing = 1.0 - delay.as_ps() as f64 / target.as_ps() as f64;
                    let slow = target.as_ps() as f64 / REFERENCE_RTT.as_ps() as f64;
                    self.growth += 4.0 * mss * scale * slow * missing * bytes;
                }
            }
            (true, true) => self.shrink(now, w, base, target),
            (true, false) => {}
        }
        let is_due = self.grown_at.is_none_or(|at| now.saturating_since(at) >= base);
        if is_due || self.arrived > 8 * w.mss {
            let steady = if is_due { 0.15 * mss * scale } else { 0.0 };
            w.grow((self.growth / w.cwnd as f64 + steady) as u64);
            (self.growth, self.arrived) = (0.0, 0);
            if is_due {
                self.grown_at = Some(now);
            }
        }
    }

    fn handle_lost(&mut self, w: &mut Window, bytes: u64) {
        self.quick.has_lost = true;
        self.quick.ignored = self.quick.ignored.saturating_sub(bytes);
        w.cwnd = w.cwnd.saturating_sub(bytes).max(w.mss);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MSS: u64 = 4_000;

    /// A full window is 1.5 times the specification's product, so that its constants hold as they are.
    fn window(cwnd: u64) -> Window {
        Window { cwnd, ssthresh: 0, mss: MSS, cwnd_max: 225_000, abc_limit: MSS }
    }
    fn arrival(rtt_us: u64, is_marked: bool) -> Arrival {
        Arrival { bytes: MSS, is_marked, rtt: Some(Duration::from_us(rtt_us)), in_flight: 100_000 }
    }
    /// What the window is after so many round trips of 12 us, a packet each, that take `rtt_us` after the first.
    fn after(rounds: u64, cwnd: u64, rtt_us: u64, is_marked: bool) -> u64 {
        let (mut control, mut w) = (Nscc::default(), window(cwnd));
        control.handle_arrived(Instant::ZERO, &mut w, &arrival(12, false));
        for n in 1..=rounds * (cwnd / MSS) {
            let now = Instant::from_ns(n * 12_000 * MSS / cwnd);
            control.handle_arrived(now, &mut w, &arrival(rtt_us, is_marked));
        }
        w.cwnd
    }

    #[test]
    fn marks_alone_move_nothing() {
        let grown = after(0, 100_000, 12, false);
        // What is steady is a seventh of a packet in a round trip.
        assert!(after(5, 100_000, 18, true) - grown <= 5 * 600, "{}", after(5, 100_000, 18, true));
    }

    #[test]
    fn growth_is_by_what_is_missing_to_the_target_and_never_above_the_most() {
        let (near, far) = (after(2, 80_000, 22, false), after(2, 80_000, 14, false));
        assert!(80_000 < near && near < far, "{near} {far}");
        // Four packets in a round trip of the specification's length, for the half that is missing.
        let half = after(1, 80_000, 18, false) - 80_000;
        assert!((6_000..12_000).contains(&half), "{half}");
        assert_eq!(after(100, 80_000, 14, false), 225_000);
    }

    #[test]
    fn long_delays_and_marks_shrink_it_to_a_half_in_a_round_trip_at_most() {
        let before = after(0, 200_000, 12, false);
        // The mean takes some packets to come above the target.
        let shrunk = after(3, 200_000, 90, true);
        assert!(shrunk < before && shrunk >= before / 8, "{before} {shrunk}");
    }

    #[test]
    fn what_is_lost_is_taken_away_and_a_flow_that_gets_hardly_anything_adapts_at_once() {
        let (mut control, mut w) = (Nscc::default(), window(200_000));
        control.handle_arrived(Instant::ZERO, &mut w, &arrival(12, false));
        let before = w.cwnd;
        control.handle_lost(&mut w, 2 * MSS);
        assert_eq!(w.cwnd, before - 2 * MSS);
        control.handle_arrived(Instant::from_us(30), &mut w, &arrival(100, true));
        assert_eq!(w.cwnd, MSS, "one packet came in two round trips");
        let mut few = window(MSS);
        control.handle_lost(&mut few, 100 * MSS);
        assert_eq!(few.cwnd, MSS, "and one may always leave");
    }
}
