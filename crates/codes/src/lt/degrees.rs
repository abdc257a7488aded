//! Degrees of packets: the robust soliton distribution.
//!
//! Source: LTTP equations 1 to 3 (Luby 2002, definition 11). Encoder and decoder must draw the same
//! degrees on every machine. So the table, including its logarithms, is computed with operations
//! that IEEE 754 defines to the last bit.

use std::fmt;

/// Parameters of a code.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Params {
    /// Factor that scales the number of packets of degree one: c in equation 3, above 0.
    pub c: f64,
    /// Probability that a peeling decoder fails with the theoretical number of packets: delta in
    /// equation 3, above 0 and below 1.
    pub delta: f64,
    /// True if the first packets are the blocks themselves. The degrees of the sums are the same in
    /// both cases, as a peeling decoder needs; [`Code::systematic`](super::Code::systematic) needs
    /// fewer packets.
    pub systematic: bool,
}

impl Params {
    /// LTTP's parameters (section V-B).
    pub const LTTP: Self = Self { c: 0.2, delta: 0.7, systematic: false };

    /// Parameters with low overhead for [`Inactivation`](super::Inactivation). For 64, 128 and 256
    /// blocks, the best of 49 tried pairs: 66.2, 130.2 and 258.3 packets on average, and 73, 136
    /// and 265 at the 99th percentile. A good pair for larger numbers of blocks.
    pub const fn tuned(blocks: usize) -> Self {
        let (c, delta) = match blocks {
            0..=192 => (0.03, 0.001),
            193..=512 => (0.05, 0.001),
            513..=4_096 => (0.03, 0.01),
            _ => (0.01, 0.01),
        };
        Self { c, delta, systematic: false }
    }
}

/// Reason why a code is invalid.
#[derive(Copy, Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum ParamsError {
    /// The number of blocks is out of range.
    Blocks(usize),
    /// The value of c is out of range.
    C(f64),
    /// The value of delta is out of range.
    Delta(f64),
}

impl fmt::Display for ParamsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Blocks(blocks) => write!(f, "{blocks} blocks: must be 1 to {}", super::BLOCKS_MAX),
            Self::C(c) => write!(f, "c {c}: must be above 0 and at most 100"),
            Self::Delta(delta) => write!(f, "delta {delta}: must be above 0 and below 1"),
        }
    }
}
impl std::error::Error for ParamsError {}

/// The distribution as a table for draws.
#[derive(Clone, Debug)]
pub(super) struct Degrees {
    /// `ends[d - 1]` is the probability of a degree of at most d, in units of 2^-32; the last entry
    /// is the maximum of 32 bits.
    ends: Vec<u32>,
    /// Index at which the search in `ends` starts, by the eight highest bits of a draw.
    first: [u32; 256],
    mean: f64,
}

impl Degrees {
    pub(super) fn new(blocks: usize, params: &Params) -> Result<Self, ParamsError> {
        let Params { c, delta, .. } = *params;
        if !(c > 0.0 && c <= 100.0) {
            return Err(ParamsError::C(c));
        }
        if !(delta > 0.0 && delta < 1.0) {
            return Err(ParamsError::Delta(delta));
        }
        let k = blocks as f64;
        let ripple = c * ln(k / delta) * k.sqrt();
        let spike = ((k / ripple).floor() as usize).clamp(1, blocks);
        let weight = |degree: usize| {
            let d = degree as f64;
            let ideal = if degree == 1 { 1.0 / k } else { 1.0 / (d * (d - 1.0)) };
            ideal
                + match degree.cmp(&spike) {
                    std::cmp::Ordering::Less => ripple / (d * k),
                    // If the ripple is below delta, the logarithm is negative.
                    std::cmp::Ordering::Equal => (ripple * ln(ripple / delta) / k).max(0.0),
                    std::cmp::Ordering::Greater => 0.0,
                }
        };
        let weights: Vec<f64> = (1..=blocks).map(weight).collect();
        let sum: f64 = weights.iter().sum();
        let (mut below, mut mean) = (0.0, 0.0);
        let mut ends: Vec<u32> = Vec::with_capacity(blocks);
        for (before, weight) in weights.into_iter().enumerate() {
            let share = weight / sum;
            below += share;
            mean += share * (before + 1) as f64;
            ends.push((below * 4_294_967_296.0).min(4_294_967_295.0) as u32);
        }
        ends[blocks - 1] = u32::MAX;
        let mut first = [0; 256];
        let mut end = 0;
        for (high, first) in first.iter_mut().enumerate() {
            while ends[end] < (high as u32) << 24 {
                end += 1;
            }
            *first = end as u32;
        }
        Ok(Self { ends, first, mean })
    }

    pub(super) const fn mean(&self) -> f64 {
        self.mean
    }

    /// Returns the degree for these random bits.
    pub(super) fn draw(&self, bits: u32) -> usize {
        let from = self.first[(bits >> 24) as usize] as usize;
        from + self.ends[from..].iter().take_while(|end| **end < bits).count() + 1
    }
}

/// The natural logarithm of a number above 0. It uses only sums, products and quotients, so that
/// the result is equal on every machine.
fn ln(x: f64) -> f64 {
    // x = m 2^e with m in [1/sqrt 2, sqrt 2), and ln m = 2 artanh((m - 1) / (m + 1)).
    let bits = x.to_bits();
    let mut exponent = ((bits >> 52) & 0x7ff) as i64 - 1_023;
    let mut m = f64::from_bits((bits & ((1 << 52) - 1)) | (1_023 << 52));
    if m > std::f64::consts::SQRT_2 {
        m /= 2.0;
        exponent += 1;
    }
    let z = (m - 1.0) / (m + 1.0);
    let square = z * z;
    let mut series = 0.0;
    for power in (0..12).rev() {
        series = series * square + 1.0 / f64::from(2 * power + 1);
    }
    exponent as f64 * std::f64::consts::LN_2 + 2.0 * z * series
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logarithm_is_accurate_to_the_last_digits() {
        for x in [1e-9, 0.3, 0.7, 1.0, 1.5, 2.0, 91.4, 1e4, 1.4e6] {
            assert!((ln(x) - x.ln()).abs() <= 4e-15 * x.ln().abs().max(1.0), "{x}: {} and {}", ln(x), x.ln());
        }
    }

    #[test]
    fn degree_table_matches_the_robust_soliton_distribution() {
        let degrees = Degrees::new(64, &Params::LTTP).expect("good parameters");
        // R = 0.2 ln(64 / 0.7) 8 = 7.225, so the spike is at 8.
        let share = |d: usize| {
            let before = if d == 1 { 0 } else { degrees.ends[d - 2] };
            f64::from(degrees.ends[d - 1] - before) / 4_294_967_296.0
        };
        let ripple: f64 = 0.2 * (64.0f64 / 0.7).ln() * 8.0;
        let sum = 1.0
            + (1..8).map(|i| ripple / f64::from(i) / 64.0).sum::<f64>()
            + ripple * (ripple / 0.7).ln() / 64.0;
        // The part of the ideal soliton sums to one.
        assert!((share(1) * sum - (1.0 + ripple) / 64.0).abs() < 1e-8);
        assert!((share(2) * sum - (0.5 + ripple / 128.0)).abs() < 1e-8);
        assert!((share(8) * sum - (1.0 / 56.0 + ripple * (ripple / 0.7).ln() / 64.0)).abs() < 1e-8);
        assert!((share(9) * sum - 1.0 / 72.0).abs() < 1e-8);
        for bits in [0, 1 << 24, 0x8000_0000, 0xffff_ffff, 12_345_678] {
            let degree = degrees.draw(bits);
            assert!(degrees.ends[degree - 1] >= bits && (degree == 1 || degrees.ends[degree - 2] < bits));
        }
    }

    #[test]
    fn smallest_code_works_and_bad_parameters_are_refused() {
        assert_eq!(Degrees::new(1, &Params::LTTP).expect("one block").draw(u32::MAX), 1);
        let with = |c, delta| Degrees::new(8, &Params { c, delta, systematic: false }).map(|_| ());
        assert_eq!(with(0.0, 0.5), Err(ParamsError::C(0.0)));
        assert_eq!(with(0.1, 1.0), Err(ParamsError::Delta(1.0)));
        assert!(with(100.0, 0.999).is_ok());
    }
}
