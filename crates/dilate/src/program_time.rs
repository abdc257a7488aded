//! A program's time: its arithmetic, and the two environment variables that set it.
//!
//! Times are nanoseconds in 64 bits, which last 292 years, as in the kernel. Larger results
//! saturate. Read [`ProgramTime`].

use crate::clocks::{Bases, Clock};
use anabranch_units::Dilation;

/// Environment variable of the factor: a whole number from 1 to [`Dilation::MAX`].
pub const FACTOR_VARIABLE: &str = "ANABRANCH_DILATION";
/// Environment variable of the base: five times in nanoseconds, separated by commas, in the order
/// of [`Bases`].
pub const BASE_VARIABLE: &str = "ANABRANCH_DILATION_BASE";

/// Time that is stretched by a factor, starting at a base, the same for all programs of an
/// experiment.
///
/// ```
/// use anabranch_dilate::{Bases, Clock, ProgramTime};
/// use anabranch_units::Dilation;
///
/// let time = ProgramTime::new(Dilation::try_from(20)?, Bases { monotonic_ns: 1_000, ..Bases::default() });
/// assert_eq!(time.dilated(Clock::Monotonic, 1_200), 1_010);
/// assert_eq!(time.real(Clock::Monotonic, 1_010), 1_200);
/// let variables = time.variables();
/// assert_eq!(variables[0], ("ANABRANCH_DILATION", "20".to_owned()));
/// let [factor, base] = [&variables[0].1, &variables[1].1];
/// assert_eq!(ProgramTime::read(factor, base)?, time);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct ProgramTime {
    dilation: Dilation,
    bases: Bases,
}

/// Reason why a variable is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum EnvironmentError {
    /// The factor is not a number, or is out of range.
    Factor {
        /// Value of the variable.
        value: String,
    },
    /// The base is not five numbers.
    Base {
        /// Value of the variable.
        value: String,
    },
}

impl std::fmt::Display for EnvironmentError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Factor { value } => {
                write!(f, "{FACTOR_VARIABLE} `{value}`: must be a whole number from 1 to {}", Dilation::MAX)
            }
            Self::Base { value } => write!(
                f,
                "{BASE_VARIABLE} `{value}`: must be five times in nanoseconds between commas, as ProgramTime::now makes them"
            ),
        }
    }
}

impl std::error::Error for EnvironmentError {}

impl ProgramTime {
    /// Stretches time, starting at these times.
    pub fn new(dilation: Dilation, bases: Bases) -> Self {
        Self { dilation, bases }
    }

    /// Stretches time, starting now.
    pub fn now(dilation: Dilation) -> Self {
        Self::new(dilation, Bases::now())
    }

    /// Parses the values of both variables.
    ///
    /// Errors: see [`EnvironmentError`].
    pub fn read(factor: &str, base: &str) -> Result<Self, EnvironmentError> {
        let dilation = Self::read_factor(factor)?;
        let bad = || EnvironmentError::Base { value: base.to_owned() };
        let mut numbers = base.split(',').map(|number| number.parse::<i64>().ok().filter(|ns| *ns >= 0));
        let mut next = || numbers.next().flatten().ok_or_else(bad);
        let bases = Bases {
            monotonic_ns: next()?,
            realtime_ns: next()?,
            boottime_ns: next()?,
            raw_ns: next()?,
            tai_ns: next()?,
        };
        if numbers.next().is_some() {
            return Err(bad());
        }
        Ok(Self { dilation, bases })
    }

    /// Parses the value of [`FACTOR_VARIABLE`].
    ///
    /// Errors: a value that is not a whole number, or is out of range.
    pub fn read_factor(factor: &str) -> Result<Dilation, EnvironmentError> {
        let number = factor.parse::<u32>().ok().and_then(|factor| Dilation::try_from(factor).ok());
        number.ok_or_else(|| EnvironmentError::Factor { value: factor.to_owned() })
    }

    /// Names and values of the variables.
    pub fn variables(&self) -> [(&'static str, String); 2] {
        let Bases { monotonic_ns, realtime_ns, boottime_ns, raw_ns, tai_ns } = self.bases;
        let base = format!("{monotonic_ns},{realtime_ns},{boottime_ns},{raw_ns},{tai_ns}");
        [(FACTOR_VARIABLE, self.dilation.to_string()), (BASE_VARIABLE, base)]
    }

    /// The factor: real seconds for each stretched second.
    pub fn dilation(&self) -> Dilation {
        self.dilation
    }

    /// Times at which stretched and real time are equal.
    pub fn bases(&self) -> Bases {
        self.bases
    }

    fn factor(&self) -> i64 {
        self.dilation.factor().into()
    }

    /// The program's time at the real time `real_ns`, rounded down.
    pub fn dilated(&self, clock: Clock, real_ns: i64) -> i64 {
        let base = self.bases.of(clock);
        base.saturating_add(real_ns.saturating_sub(base).div_euclid(self.factor()))
    }

    /// The first real time at which the program's clock shows `dilated_ns`.
    pub fn real(&self, clock: Clock, dilated_ns: i64) -> i64 {
        let base = self.bases.of(clock);
        base.saturating_add(dilated_ns.saturating_sub(base).saturating_mul(self.factor()))
    }

    /// Real length of a duration in the program's time.
    pub fn stretched(&self, dilated_ns: i64) -> i64 {
        dilated_ns.saturating_mul(self.factor())
    }

    /// Length in the program's time of a real duration, rounded up, so that the remaining time of a
    /// wait does not become zero.
    pub fn shrunk(&self, real_ns: i64) -> i64 {
        let whole = real_ns / self.factor();
        whole + i64::from(real_ns % self.factor() > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CLOCKS: [Clock; 6] =
        [Clock::Monotonic, Clock::Realtime, Clock::Boottime, Clock::Raw, Clock::Tai, Clock::Cpu];

    /// Draws times with bases of up to 146 years.
    fn times() -> impl Strategy<Value = ProgramTime> {
        (1..=Dilation::MAX.factor(), prop::array::uniform5(0..i64::MAX / 2)).prop_map(|(factor, ns)| {
            let [monotonic_ns, realtime_ns, boottime_ns, raw_ns, tai_ns] = ns;
            let dilation = Dilation::try_from(factor).expect("in range");
            ProgramTime::new(dilation, Bases { monotonic_ns, realtime_ns, boottime_ns, raw_ns, tai_ns })
        })
    }

    #[test]
    fn values_out_of_range_are_refused_by_name() {
        let base = "1,2,3,4,5";
        for factor in ["1", "1024"] {
            assert!(ProgramTime::read(factor, base).is_ok(), "{factor}");
        }
        for factor in ["0", "1025", "-1", "2.5", "", "4 "] {
            let error = ProgramTime::read(factor, base).expect_err("out of range").to_string();
            assert!(error.contains(FACTOR_VARIABLE) && error.contains("1 to 1024"), "{error}");
        }
        for base in ["", "1,2,3,4", "1,2,3,4,5,6", "1,2,3,4,x", "-1,2,3,4,5", "99999999999999999999,2,3,4,5"]
        {
            let error = ProgramTime::read("4", base).expect_err("no base").to_string();
            assert!(error.contains(BASE_VARIABLE), "{error}");
        }
    }

    proptest! {
        /// A wait until an instant ends when the clock shows that instant, and not a nanosecond
        /// earlier, up to 53 days from the base.
        #[test]
        fn waits_end_exactly_when_the_clock_shows_their_end(
            time in times(), clock in 0usize..6, after in -(1i64 << 52)..1 << 52,
        ) {
            let clock = CLOCKS[clock];
            let at = time.bases.of(clock) + after;
            let real = time.real(clock, at);
            prop_assert_eq!(time.dilated(clock, real), at);
            prop_assert!(time.dilated(clock, real - 1) < at);
        }

        /// A wait that is too long for the clock ends late, and never early.
        #[test]
        fn waits_beyond_the_maximum_time_never_end_early(time in times(), clock in 0usize..6, at: i64) {
            let clock = CLOCKS[clock];
            let base = time.bases.of(clock);
            prop_assert!(at < base || time.real(clock, at) >= at);
            prop_assert_eq!(time.real(clock, i64::MAX), i64::MAX);
        }

        #[test]
        fn clocks_never_go_back_and_durations_never_wrap(
            time in times(), clock in 0usize..6, a: i64, b: i64,
        ) {
            let clock = CLOCKS[clock];
            let (a, b) = (a.min(b), a.max(b));
            prop_assert!(time.dilated(clock, a) <= time.dilated(clock, b));
            prop_assert!(time.real(clock, a) <= time.real(clock, b));
            prop_assert!(time.stretched(a) <= time.stretched(b));
            prop_assert!(time.stretched(a.max(0)) >= a.max(0));
        }

        #[test]
        fn remaining_time_is_zero_only_if_none_is_left(time in times(), rest in 0..i64::MAX) {
            let shrunk = time.shrunk(rest);
            prop_assert!(time.stretched(shrunk) >= rest);
            prop_assert_eq!(shrunk == 0, rest == 0);
        }

        #[test]
        fn variables_read_back_equal(time in times()) {
            let [(_, factor), (_, base)] = time.variables();
            prop_assert_eq!(ProgramTime::read(&factor, &base), Ok(time));
        }

        #[test]
        fn random_variable_values_never_panic(factor: String, base: String) {
            let _ = ProgramTime::read(&factor, &base);
        }
    }
}
