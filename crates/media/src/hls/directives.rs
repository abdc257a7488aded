//! Delivery directives: query parameters of playlist requests.
//!
//! Source: draft-pantos-hls-rfc8216bis, sections 6.2.5.1 (`_HLS_skip`) and 6.2.5.2 (`_HLS_msn`,
//! `_HLS_part`). Read [`DeliveryDirectives`].

use std::fmt;

/// Kinds of entries that a delta update may skip (`_HLS_skip`).
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Skip {
    /// Segments (`YES`).
    Segments,
    /// Segments and date ranges (`v2`).
    SegmentsAndDateRanges,
}

/// Delivery directives of a playlist request.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeliveryDirectives {
    /// Number of the segment that the playlist must contain (`_HLS_msn`).
    pub msn: Option<u64>,
    /// Number of the part of segment `msn`. `None` for the complete segment.
    pub part: Option<u64>,
    /// Kinds of entries that the playlist may skip (`_HLS_skip`).
    pub skip: Option<Skip>,
}

/// Reason why the directives of a request are refused. The answer has status 400.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DirectivesError {
    /// A value is not a decimal number below 2^64.
    NotANumber {
        /// Name of the parameter.
        parameter: &'static str,
    },
    /// A parameter is given twice.
    Twice {
        /// Name of the parameter.
        parameter: &'static str,
    },
    /// The query has `_HLS_part` without `_HLS_msn`.
    PartWithoutMsn,
}

impl fmt::Display for DirectivesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotANumber { parameter } => {
                write!(f, "{parameter}: must be a decimal number below 2^64")
            }
            Self::Twice { parameter } => write!(f, "{parameter} twice: must be given once"),
            Self::PartWithoutMsn => {
                write!(f, "_HLS_part without _HLS_msn: give the segment's number as well")
            }
        }
    }
}

impl std::error::Error for DirectivesError {}

impl DeliveryDirectives {
    /// Reads the directives of a query, whose names and values are already decoded. Other
    /// parameters are ignored, and so are values of `_HLS_skip` that the standard does not define.
    ///
    /// Errors: [`DirectivesError`] for an invalid number, a parameter given twice, and a part
    /// without a segment.
    ///
    /// ```
    /// use anabranch_media::hls::DeliveryDirectives;
    /// let pairs = [("_HLS_msn", "17"), ("_HLS_part", "2")];
    /// let asked = DeliveryDirectives::read(pairs).expect("directives");
    /// assert_eq!((asked.msn, asked.part), (Some(17), Some(2)));
    /// assert!(DeliveryDirectives::read([("_HLS_part", "2")]).is_err());
    /// ```
    pub fn read<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<Self, DirectivesError> {
        let mut directives = Self::default();
        for (name, value) in pairs {
            match name {
                "_HLS_msn" => set(&mut directives.msn, "_HLS_msn", value)?,
                "_HLS_part" => set(&mut directives.part, "_HLS_part", value)?,
                "_HLS_skip" if directives.skip.is_some() => {
                    return Err(DirectivesError::Twice { parameter: "_HLS_skip" });
                }
                "_HLS_skip" => {
                    directives.skip = match value {
                        "YES" => Some(Skip::Segments),
                        "v2" => Some(Skip::SegmentsAndDateRanges),
                        _ => None,
                    };
                }
                _ => {}
            }
        }
        if directives.part.is_some() && directives.msn.is_none() {
            return Err(DirectivesError::PartWithoutMsn);
        }
        Ok(directives)
    }

    /// Writes the query of these directives, without the question mark; empty without directives.
    /// Parameters are in alphabetical order, which improves caching (section 6.2.5.4).
    pub fn query(&self) -> String {
        let mut pairs = Vec::new();
        pairs.extend(self.msn.map(|msn| format!("_HLS_msn={msn}")));
        pairs.extend(self.part.map(|part| format!("_HLS_part={part}")));
        pairs.extend(self.skip.map(|skip| match skip {
            Skip::Segments => "_HLS_skip=YES".to_owned(),
            Skip::SegmentsAndDateRanges => "_HLS_skip=v2".to_owned(),
        }));
        pairs.join("&")
    }
}

/// Sets a numeric directive.
fn set(field: &mut Option<u64>, parameter: &'static str, value: &str) -> Result<(), DirectivesError> {
    if field.is_some() {
        return Err(DirectivesError::Twice { parameter });
    }
    let is_decimal = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
    let number = value.parse().ok().filter(|_| is_decimal);
    *field = Some(number.ok_or(DirectivesError::NotANumber { parameter })?);
    Ok(())
}
