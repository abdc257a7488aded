//! Time dilation: an emulated network runs slower than the machine by a whole factor.
//!
//! Source: Gupta et al., *To Infinity and Beyond: Time-Warped Network Emulation*, NSDI 2006,
//! section 2. Leaves out: clocks of programs and of the kernel. Read [`Dilation`] first.

use crate::Duration;
use serde::{Deserialize, Serialize};

/// Real seconds that pass in each second of emulated time: a whole number from 1 to
/// [`Dilation::MAX`].
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub struct Dilation(u32);

/// A dilation out of range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DilationError {
    value: String,
}

impl std::fmt::Display for DilationError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "dilation {}: must be a whole number from 1 to {}", self.value, Dilation::MAX)
    }
}
impl std::error::Error for DilationError {}

impl TryFrom<u32> for Dilation {
    type Error = DilationError;
    fn try_from(value: u32) -> Result<Self, DilationError> {
        let is_possible = (1..=Self::MAX.0).contains(&value);
        is_possible.then_some(Self(value)).ok_or_else(|| DilationError { value: value.to_string() })
    }
}

impl std::str::FromStr for Dilation {
    type Err = DilationError;
    fn from_str(text: &str) -> Result<Self, DilationError> {
        let wrong = || DilationError { value: text.to_owned() };
        text.trim().parse::<u32>().map_err(|_| wrong())?.try_into().map_err(|_| wrong())
    }
}

impl From<Dilation> for u32 {
    fn from(dilation: Dilation) -> Self {
        dilation.0
    }
}

impl std::fmt::Display for Dilation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl Default for Dilation {
    fn default() -> Self {
        Self::NONE
    }
}

impl Dilation {
    /// No dilation: emulated time is real time.
    pub const NONE: Self = Self(1);
    /// The largest dilation: a millisecond of the network takes about a second.
    pub const MAX: Self = Self(1_024);

    /// The factor.
    pub const fn factor(self) -> u32 {
        self.0
    }

    /// Emulated time in `real` time, rounded down.
    pub fn emulated(self, real: std::time::Duration) -> Duration {
        let ps = real.as_nanos() * 1_000 / u128::from(self.0);
        Duration::from_ps(u64::try_from(ps).unwrap_or(u64::MAX))
    }

    /// Real time that `emulated` time takes, rounded up.
    pub fn real(self, emulated: Duration) -> std::time::Duration {
        let ns = (u128::from(emulated.as_ps()) * u128::from(self.0)).div_ceil(1_000);
        std::time::Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX))
    }

    /// Emulated nanoseconds in `real_ns` of real time, rounded down.
    pub const fn emulated_ns(self, real_ns: u64) -> u64 {
        real_ns / self.0 as u64
    }

    /// Real nanoseconds that `emulated_ns` take.
    pub const fn real_ns(self, emulated_ns: u64) -> u64 {
        emulated_ns.saturating_mul(self.0 as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn factors_below_one_and_past_the_limit_are_refused() {
        for wrong in ["0", "0.5", "-1", "1025", "", "two"] {
            let error = wrong.parse::<Dilation>().expect_err(wrong).to_string();
            assert_eq!(error, format!("dilation {wrong}: must be a whole number from 1 to 1024"));
        }
        assert_eq!("1".parse(), Ok(Dilation::NONE));
        assert_eq!("1024".parse(), Ok(Dilation::MAX));
        assert!(serde_json::from_str::<Dilation>("0").is_err());
    }

    proptest! {
        #[test]
        fn emulated_time_survives_conversion_to_real_time(factor in 1..=Dilation::MAX.0, ps in 0u64..1 << 50) {
            let dilation = Dilation(factor);
            let emulated = Duration::from_ps(ps);
            let back = dilation.emulated(dilation.real(emulated));
            // Real time is counted in nanoseconds.
            prop_assert!(back >= emulated && back.as_ps() - ps <= 1_000);
        }
    }
}
