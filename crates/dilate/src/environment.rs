//! The two variables of the environment by which a program's time is set. Read [`Environment`].

use crate::dilation::{Bases, Dilation, FACTOR_MAX};

/// The environment's name of the factor: a whole number from 1 to [`FACTOR_MAX`].
pub const FACTOR_VARIABLE: &str = "ANABRANCH_DILATION";
/// The environment's name of the base: five times in nanoseconds between commas, in the order of [`Bases`].
pub const BASE_VARIABLE: &str = "ANABRANCH_DILATION_BASE";

/// The variables' values, the same for all programs of an experiment.
///
/// ```
/// use anabranch_dilate::Environment;
///
/// let environment = Environment::now(20)?;
/// let variables = environment.variables();
/// assert_eq!(variables[0], ("ANABRANCH_DILATION", "20".to_owned()));
/// let [factor, base] = [&variables[0].1, &variables[1].1];
/// assert_eq!(Environment::read(factor, base)?, environment);
/// # Ok::<(), anabranch_dilate::EnvironmentError>(())
/// ```
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Environment {
    factor: u32,
    bases: Bases,
}

/// Why a variable cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum EnvironmentError {
    /// The factor is no number, or out of range.
    Factor {
        /// The value.
        value: String,
    },
    /// The base is not five numbers.
    Base {
        /// The value.
        value: String,
    },
}

impl std::fmt::Display for EnvironmentError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Factor { value } => {
                write!(f, "{FACTOR_VARIABLE} `{value}`: must be a whole number from 1 to {FACTOR_MAX}")
            }
            Self::Base { value } => write!(
                f,
                "{BASE_VARIABLE} `{value}`: must be five times in nanoseconds between commas, as Environment::now makes them"
            ),
        }
    }
}

impl std::error::Error for EnvironmentError {}

impl Environment {
    /// Stretches time from now on.
    ///
    /// Errors: the factor is out of range.
    pub fn now(factor: u32) -> Result<Self, EnvironmentError> {
        Self::new(&factor.to_string(), Bases::now())
    }

    /// Stretches time from these times on.
    ///
    /// Errors: the factor cannot be used.
    pub fn new(factor: &str, bases: Bases) -> Result<Self, EnvironmentError> {
        Ok(Self { factor: Self::read_factor(factor)?, bases })
    }

    /// Reads the values of both variables.
    ///
    /// Errors: see [`EnvironmentError`].
    pub fn read(factor: &str, base: &str) -> Result<Self, EnvironmentError> {
        let factor = Self::read_factor(factor)?;
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
        Ok(Self { factor, bases })
    }

    fn read_factor(factor: &str) -> Result<u32, EnvironmentError> {
        let number = factor.parse::<u32>().ok().filter(|factor| (1..=FACTOR_MAX).contains(factor));
        number.ok_or_else(|| EnvironmentError::Factor { value: factor.to_owned() })
    }

    /// The variables and their values.
    pub fn variables(&self) -> [(&'static str, String); 2] {
        let Bases { monotonic_ns, realtime_ns, boottime_ns, raw_ns, tai_ns } = self.bases;
        let base = format!("{monotonic_ns},{realtime_ns},{boottime_ns},{raw_ns},{tai_ns}");
        [(FACTOR_VARIABLE, self.factor.to_string()), (BASE_VARIABLE, base)]
    }

    /// Real seconds in a stretched one.
    pub fn factor(&self) -> u32 {
        self.factor
    }

    /// Times at which stretched and real time are the same.
    pub fn bases(&self) -> Bases {
        self.bases
    }

    /// The arithmetic of these variables.
    pub fn dilation(&self) -> Dilation {
        Dilation::new(self.factor, self.bases)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn values_out_of_range_are_refused_by_name() {
        let base = "1,2,3,4,5";
        for factor in ["1", "1024"] {
            assert!(Environment::read(factor, base).is_ok(), "{factor}");
        }
        for factor in ["0", "1025", "-1", "2.5", "", "4 "] {
            let error = Environment::read(factor, base).expect_err("out of range").to_string();
            assert!(error.contains(FACTOR_VARIABLE) && error.contains("1 to 1024"), "{error}");
        }
        for base in ["", "1,2,3,4", "1,2,3,4,5,6", "1,2,3,4,x", "-1,2,3,4,5", "99999999999999999999,2,3,4,5"]
        {
            let error = Environment::read("4", base).expect_err("no base").to_string();
            assert!(error.contains(BASE_VARIABLE), "{error}");
        }
    }

    proptest! {
        #[test]
        fn variables_read_back_are_the_same(factor in 1..=FACTOR_MAX, ns in prop::array::uniform5(0..i64::MAX)) {
            let [monotonic_ns, realtime_ns, boottime_ns, raw_ns, tai_ns] = ns;
            let bases = Bases { monotonic_ns, realtime_ns, boottime_ns, raw_ns, tai_ns };
            let environment = Environment { factor, bases };
            let [(_, factor), (_, base)] = environment.variables();
            prop_assert_eq!(Environment::read(&factor, &base), Ok(environment));
        }

        #[test]
        fn any_text_is_read_or_refused(factor: String, base: String) {
            let _ = Environment::read(&factor, &base);
        }
    }
}
