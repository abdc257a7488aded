//! Costs and gains of coding as formulas: parities that a unit needs, probability of decoding
//! without a blocked packet, delay of a window, and the optimal unit.
//!
//! A packet is *blocked* if it waits behind a long flow. The model assumes that each packet takes
//! its own path, so that packets are blocked independently with equal probability.
//!
//! Source: Hu and others, *CAPS: Coding-Based Adaptive Packet Spraying to Reduce Flow Completion
//! Time in Data Center* (2019), section VI, equations 1 to 7. Symbols: a unit has `k` source
//! packets and `r` parities, a window has `w` packets, `p` is the probability of being blocked (the
//! paper's p_B). Leaves out: measuring `p` (`blocking`).

use anabranch_units::{BitRate, ByteCount, Duration};

/// Maximum blocking probability in the equations: above it a unit needs more parities than packets.
pub const BLOCKED_MAX: f64 = 0.5;
/// Maximum parities of a frugal unit, relative to the mean number of blocked packets.
const FRUGAL: f64 = 1.25;
/// Tolerance for rounding errors in a whole number of parities.
const ROUNDING: f64 = 1e-9;

/// Number of parities with which, on average, `k` of a unit's packets arrive unblocked: the minimum
/// `r` with (1 - p)(k + r) >= k.
///
/// Panics: in a debug build, if `p` is outside 0 to [`BLOCKED_MAX`].
/// Source: section VI-B.
pub fn parities(k: u32, p: f64) -> u32 {
    debug_assert!((0.0..=BLOCKED_MAX).contains(&p), "{p}: must be 0 to {BLOCKED_MAX}");
    let more = f64::from(k) * p / (1.0 - p);
    (more - ROUNDING).max(0.0).ceil() as u32
}

/// Probability that exactly `blocked` of `packets` packets are blocked.
///
/// Source: equation 1, with `packets` for k + r.
pub fn blocked_probability(blocked: u32, packets: u32, p: f64) -> f64 {
    binomial(packets, p).nth(blocked as usize).unwrap_or(0.0)
}

/// Probability that a unit decodes from its unblocked packets.
///
/// Source: equation 2. Assumes a code in which any `k` packets decode: see
/// [`anabranch_codes::mds`].
pub fn decoding_probability(k: u32, r: u32, p: f64) -> f64 {
    binomial(k + r, p).take(r as usize + 1).sum::<f64>().min(1.0)
}

/// Probabilities of 0, 1, ... successes in `n` trials, each with probability `p`.
fn binomial(n: u32, p: f64) -> impl Iterator<Item = f64> {
    let odds = p / (1.0 - p);
    let first = (1.0 - p).powf(f64::from(n));
    let next = move |(tries, probability): &(u32, f64)| {
        let left = f64::from(n - tries);
        (*tries < n).then(|| (tries + 1, probability * left / f64::from(tries + 1) * odds))
    };
    std::iter::successors(Some((0, first)), next).map(|(_, probability)| probability)
}

/// The network that a window crosses.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct PathModel {
    /// Rate of the narrowest link.
    pub rate: BitRate,
    /// Packet length on that link.
    pub packet: ByteCount,
    /// Longest round trip of paths without long flows.
    pub rtt_free: Duration,
    /// Longest round trip of paths with long flows.
    pub rtt_blocked: Duration,
}

impl PathModel {
    /// Mean time, in seconds, that a packet waits until its unit is complete.
    ///
    /// Source: equation 3.
    pub fn buffering_delay_s(&self, k: u32) -> f64 {
        f64::from(k.saturating_sub(1)) * self.rate.transmit_time(self.packet).as_secs_f64() / 2.0
    }

    /// Delay of a window of `w` packets, in units of `k` packets and `r` parities, in seconds.
    ///
    /// Source: equation 4, which equation 6 writes out. A window that is not a whole number of
    /// units counts as w / k units, as in the paper.
    pub fn window_delay_s(&self, w: u32, k: u32, r: u32, p: f64) -> f64 {
        let units = f64::from(w) / f64::from(k);
        let free = decoding_probability(k, r, p).powf(units);
        free * (self.rtt_free.as_secs_f64() + self.buffering_delay_s(k))
            + (1.0 - free) * self.rtt_blocked.as_secs_f64()
    }

    /// Delay of a window of `w` packets without coding, in seconds.
    ///
    /// Source: equation 5.
    pub fn uncoded_window_delay_s(&self, w: u32, p: f64) -> f64 {
        let free = (1.0 - p).powf(f64::from(w));
        free * self.rtt_free.as_secs_f64() + (1.0 - free) * self.rtt_blocked.as_secs_f64()
    }

    /// Returns the unit with the shortest delay of a window of `w` packets, and that delay in
    /// seconds. Among equally good units it is the smallest.
    ///
    /// Cost: w^2 operations.
    /// Differs: the paper gives 29, 31, 33 and 40 for 64 packets and p of 0.2, 0.25, 0.3 and 0.35.
    /// Equation 4 with the paper's numbers has its minimum at 61, 64, 61 and 64, and at 64 in all
    /// four cases if r is not rounded (`experiments/spray`).
    pub fn best_unit(&self, w: u32, p: f64) -> (u32, f64) {
        self.best_of(w, p, |_, _| true)
    }

    /// Returns the best unit like [`PathModel::best_unit`], but only among the whole window and the
    /// units whose rounded parities exceed the mean number of blocked packets by at most a quarter.
    ///
    /// Differs: equation 4 has no cost for parities. For few packets its optimum is a unit of one
    /// or two packets with one parity, which sends every packet twice.
    pub fn frugal_unit(&self, w: u32, p: f64) -> (u32, f64) {
        let blocked = p / (1.0 - p);
        self.best_of(w, p, |k, r| k == w || f64::from(r) <= FRUGAL * blocked * f64::from(k))
    }

    fn best_of(&self, w: u32, p: f64, may_be: impl Fn(u32, u32) -> bool) -> (u32, f64) {
        let units = (1..=w.max(1)).map(|k| (k, parities(k, p))).filter(|(k, r)| may_be(*k, *r));
        let delays = units.map(|(k, r)| (k, self.window_delay_s(w, k, r, p)));
        delays.min_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or((1, 0.0))
    }
}

/// Share of parities among all packets, with `long` packets of long flows for each packet of a
/// short flow.
///
/// Source: equation 7, where r is not rounded up.
pub fn overhead(long: f64, p: f64) -> f64 {
    p / (1.0 + long * (1.0 - p))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn is_near(value: f64, want: f64) -> bool {
        (value - want).abs() < 1e-9
    }
    fn paper() -> PathModel {
        PathModel {
            rate: BitRate::gbps(1),
            packet: ByteCount::new(1_500),
            rtt_free: Duration::from_us(100),
            rtt_blocked: Duration::from_ms(3),
        }
    }

    #[test]
    fn parities_equal_the_values_of_section_vi_b() {
        // Computed by hand: 10 / 0.9 - 10 = 1.11, 10 / 0.8 - 10 = 2.5, 20 / 0.75 - 20 = 6.67.
        assert_eq!((parities(10, 0.1), parities(10, 0.2), parities(20, 0.25)), (2, 3, 7));
        // Whole numbers stay whole: 9 / 0.9 - 9 = 1, 30 / 0.75 - 30 = 10.
        assert_eq!((parities(9, 0.1), parities(30, 0.25), parities(1, 0.5)), (1, 10, 1));
        assert_eq!((parities(40, 0.0), parities(0, 0.3)), (0, 0));
        // Section IX-E: units of 10, 12 paths, 1 to 4 long flows: 1, 2, 4 and 5 parities.
        let of: Vec<u32> = (1..=4).map(|long| parities(10, f64::from(long) / 12.0)).collect();
        assert_eq!(of, [1, 2, 4, 5]);
    }

    #[test]
    fn probabilities_equal_values_computed_by_hand() {
        // Section VI-C: 3 packets, 3 parities, half of the paths blocked: 1 - (15 + 6 + 1) / 64.
        assert!(is_near(decoding_probability(3, 3, 0.5), 42.0 / 64.0));
        assert!(is_near(blocked_probability(4, 6, 0.5), 15.0 / 64.0));
        assert!(is_near(blocked_probability(1, 3, 0.2), 3.0 * 0.2 * 0.64));
        assert!(is_near(blocked_probability(4, 3, 0.2), 0.0));
        assert!(is_near(decoding_probability(2, 0, 0.1), 0.81));
        assert!(is_near(decoding_probability(2, 1, 0.1), 0.729 + 3.0 * 0.1 * 0.81));
        // Figure 6(b), 2 long flows on 40 paths, 10 packets and 2 parities: "almost 1".
        assert!((decoding_probability(10, 2, 0.05) - 0.980_431_7).abs() < 1e-6);
    }

    #[test]
    fn delays_and_overhead_equal_values_computed_by_hand() {
        // Equation 3: half the time of 9 packets of 12 us each.
        assert!(is_near(paper().buffering_delay_s(10), 54e-6));
        assert!(is_near(paper().buffering_delay_s(1), 0.0));
        // Equation 5: 100 us with probability 0.9^2, else 3 ms.
        assert!(is_near(paper().uncoded_window_delay_s(2, 0.1), 0.81 * 100e-6 + 0.19 * 3e-3));
        // Equation 4: two units of 2 packets and 1 parity: 106 us with probability 0.972^2, else 3
        // ms.
        let free = 0.972f64.powi(2);
        assert!(is_near(paper().window_delay_s(4, 2, 1, 0.1), free * 106e-6 + (1.0 - free) * 3e-3));
        // Equation 7 with r / k = p / (1 - p) and 9 packets of long flows for one: 0.1 / (1 + 8.1).
        assert!(is_near(overhead(9.0, 0.1), 0.1 / 9.1));
        let (k, r) = (90.0, 10.0);
        assert!(is_near(overhead(9.0, 0.1), r / k / (1.0 + 9.0 + r / k)));
    }

    proptest! {
        #[test]
        fn blocked_probabilities_are_a_distribution(packets in 0u32..200, p in 0.0..=BLOCKED_MAX) {
            let all: f64 = (0..=packets).map(|blocked| blocked_probability(blocked, packets, p)).sum();
            prop_assert!((all - 1.0).abs() < 1e-9, "{}", all);
        }

        #[test]
        fn number_of_parities_is_minimal(k in 1u32..300, p in 0.0..=BLOCKED_MAX) {
            let r = parities(k, p);
            let free = |r: u32| (1.0 - p) * f64::from(k + r);
            prop_assert!(free(r) >= f64::from(k) - 1e-6);
            prop_assert!(r == 0 || free(r - 1) < f64::from(k) + 1e-6);
        }

        #[test]
        fn best_unit_equals_exhaustive_search(
            w in 1u32..100, p in 0.0..=BLOCKED_MAX, free_us in 10u64..1_000, more_us in 0u64..10_000,
        ) {
            let (rtt_free, rtt_blocked) = (Duration::from_us(free_us), Duration::from_us(free_us + more_us));
            let ways = PathModel { rtt_free, rtt_blocked, ..paper() };
            let (unit, delay) = ways.best_unit(w, p);
            for k in 1..=w {
                let other = ways.window_delay_s(w, k, parities(k, p), p);
                prop_assert!(delay <= other, "{} packets: {} s, {} packets: {} s", unit, delay, k, other);
                prop_assert!(k >= unit || other > delay, "a smaller one is as good");
            }
        }

        #[test]
        fn frugal_unit_is_the_best_with_few_parities(w in 1u32..100, p in 0.0..=BLOCKED_MAX) {
            let (unit, delay) = paper().frugal_unit(w, p);
            let is_frugal = |k: u32| k == w || f64::from(parities(k, p)) <= FRUGAL * p / (1.0 - p) * f64::from(k);
            prop_assert!((1..=w).contains(&unit) && is_frugal(unit));
            for k in (1..=w).filter(|k| is_frugal(*k)) {
                prop_assert!(delay <= paper().window_delay_s(w, k, parities(k, p), p));
            }
        }

        #[test]
        fn another_parity_never_lowers_decoding_probability(k in 1u32..100, r in 0u32..50, p in 0.0..=BLOCKED_MAX) {
            prop_assert!(decoding_probability(k, r + 1, p) >= decoding_probability(k, r, p) - 1e-12);
        }
    }

    /// The paper gives 29, 31, 33 and 40 here (section VI-D). Its equation 4 gives other values.
    #[test]
    fn equation_4_has_other_best_units_than_figure_9() {
        let best = |p| paper().best_unit(64, p).0;
        assert_eq!([0.2, 0.25, 0.3, 0.35].map(best), [61, 64, 61, 64]);
    }
}
