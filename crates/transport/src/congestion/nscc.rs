//! NSCC: window-based congestion control for a flow whose packets use many paths at once. A mark
//! alone does not change the window, because it concerns one path only: the sender then uses
//! another path. The window follows the delay of all packets.
//!
//! Source: network-signalled congestion control of the Ultra Ethernet Specification 1.0 (2025),
//! which is based on FASTFLOW (Bonato and others, arXiv:2404.01630, 2024). Details are as in the
//! consortium's public simulator (htsim). Constants are for a network with a bandwidth-delay
//! product of [`REFERENCE`] bytes, and scale with the product as they do there. A packet's *delay*
//! is its round trip less the minimum. The *target* delay equals the minimum round trip, as in
//! networks whose switches do not trim packets. An acknowledgement's effect depends on its mark and
//! delay:
//!
//! - unmarked, below the target: the window grows by the missing delay (*proportional increase*),
//!   and by a quarter of the acknowledged bytes once a whole window has arrived without delay
//!   (*fast increase*);
//! - unmarked, above the target: the window grows a little, equally for all flows (*fair
//!   increase*);
//! - marked, below the target: the window does not change;
//! - marked, above the target: the window shrinks by the excess of the mean delay, at most once per
//!   round trip and at most to a half (*multiplicative decrease*).
//!
//! Lost bytes are subtracted from the window. If hardly any bytes arrive, the window is set to the
//! bytes that arrive (*quick adapt*).
//!
//! Differs: the bandwidth-delay product is assumed to be two thirds of the maximum window, which
//! must be set (`cwnd_max`); a network card knows the product. The minimum round trip is measured.
//!
//! Leaves out: the choice of paths (`spray-proto`), and loss detection (`rack`).

use super::properties::RequiredSetting;
use super::{Ack, Algorithm, Properties, Window};
use crate::config::Config;
use anabranch_units::{Duration, Instant};

/// Reason in error messages for each setting that NSCC needs.
const NEEDS: &str = "goes by marks, by when segments left and by the path's product";

/// Bandwidth-delay product of the specification's network in bytes: 100 Gbit/s for 12 us.
const REFERENCE: f64 = 150_000.0;
/// Round-trip time of that network.
const REFERENCE_RTT: Duration = Duration::from_us(12);
/// Delay below which a packet counts as not delayed.
const NO_DELAY: Duration = Duration::from_us(1);
/// Weight of a packet's delay in the moving average.
const DELAY_WEIGHT: f64 = 0.0125;
/// Gain of the multiplicative decrease.
const GAMMA: f64 = 0.8;
/// Quick adapt: if fewer bytes arrive than the maximum window shifted right by this number, hardly
/// anything arrives.
const QUICK_SHIFT: u32 = 3;
/// Quick adapt: multiple of the target above which a delay counts as too long.
const QUICK_TARGETS: u64 = 4;

/// An arrival of data at the peer, as acknowledged.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Arrival {
    /// Newly acknowledged bytes, cumulatively or selectively.
    pub(crate) bytes: u64,
    /// Whether the last received packet was marked.
    pub(crate) is_marked: bool,
    /// Round-trip time of the newest packet, if known.
    pub(crate) rtt: Option<Duration>,
    /// Number of bytes still in flight.
    pub(crate) in_flight: u64,
}

/// The state of NSCC.
#[derive(Clone, Debug, Default)]
pub(crate) struct Nscc {
    base: Option<Duration>,
    /// Moving average of the delay, in picoseconds.
    delay_mean: f64,
    /// Pending growth of the congestion window, in bytes multiplied by the window in bytes.
    growth: f64,
    /// Number of bytes that arrived since the window last grew.
    arrived: u64,
    grown_at: Option<Instant>,
    shrunk_at: Option<Instant>,
    /// Number of consecutive bytes without delay.
    undelayed: u64,
    /// Whether `undelayed` has exceeded the window, and no delay was seen since.
    is_fast: bool,
    quick: QuickAdapt,
}

/// State of quick adapt.
#[derive(Clone, Debug, Default)]
struct QuickAdapt {
    /// Time of the next check.
    at: Option<Instant>,
    /// Number of bytes that arrived since the last check.
    arrived: u64,
    has_lost: bool,
    /// Number of bytes in flight when the window was last set. Their marks and losses do not count.
    ignored: u64,
}

impl Nscc {
    /// Bandwidth-delay product of the path as a multiple of the specification's.
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

    /// Sets the window to the arriving bytes if hardly any bytes arrive. Returns true if the
    /// acknowledgement must have no other effect.
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
        needs: &[
            (RequiredSetting::Ecn(true), NEEDS),
            (RequiredSetting::Rack, NEEDS),
            (RequiredSetting::CwndMax, NEEDS),
        ],
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
        // A delayed packet without a mark shows a draining queue, so a short delay is counted
        // instead.
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

    /// A window whose maximum is 1.5 times the specification's bandwidth-delay product, so that the
    /// constants apply unscaled.
    fn window(cwnd: u64) -> Window {
        Window { cwnd, ssthresh: 0, mss: MSS, cwnd_max: 225_000, abc_limit: MSS }
    }
    fn arrival(rtt_us: u64, is_marked: bool) -> Arrival {
        Arrival { bytes: MSS, is_marked, rtt: Some(Duration::from_us(rtt_us)), in_flight: 100_000 }
    }
    /// Window after this many round trips of 12 us. The first packet has no delay; the following
    /// packets have round trips of `rtt_us`.
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
    fn marks_alone_do_not_change_the_window() {
        let grown = after(0, 100_000, 12, false);
        // The fair increase is a seventh of a packet per round trip.
        assert!(after(5, 100_000, 18, true) - grown <= 5 * 600, "{}", after(5, 100_000, 18, true));
    }

    #[test]
    fn growth_follows_the_distance_to_the_target_delay() {
        let (near, far) = (after(2, 80_000, 22, false), after(2, 80_000, 14, false));
        assert!(80_000 < near && near < far, "{near} {far}");
        // For half of the target delay, the window grows by four packets per round trip of the
        // specification's length.
        let half = after(1, 80_000, 18, false) - 80_000;
        assert!((6_000..12_000).contains(&half), "{half}");
        assert_eq!(after(100, 80_000, 14, false), 225_000);
    }

    #[test]
    fn delayed_marks_shrink_the_window_at_most_by_half() {
        let before = after(0, 200_000, 12, false);
        // The moving average takes some packets to exceed the target.
        let shrunk = after(3, 200_000, 90, true);
        assert!(shrunk < before && shrunk >= before / 8, "{before} {shrunk}");
    }

    #[test]
    fn losses_are_subtracted_and_starved_flows_adapt_quickly() {
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
