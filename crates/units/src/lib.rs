//! Quantities and names that every room shares.
//!
//! Holds points and lengths of time in integer picoseconds ([`Instant`], [`Duration`]), sizes in bytes
//! ([`ByteCount`]), rates in bits per second ([`BitRate`]), ids ([`SiteId`], [`LinkId`], [`PeerId`]) and random
//! streams that are named after what they drive ([`Seed`]). Prefixes are decimal; powers of two say `Ki`, `Mi`, `Gi`.
//! Text from outside is shown by [`text::printable`] alone.
//!
//! Leaves out: anything that reads a clock or the machine. Read [`Instant`] and [`BitRate`] first.

mod id;
mod quantity;
mod random;
pub mod text;
mod time;

pub use id::{LinkId, PeerId, SiteId};
pub use quantity::{BitRate, ByteCount, Serialiser};
pub use random::{RandomStream, Seed};
pub use time::{Duration, Instant};

/// A quantity in text that could not be read, with what was expected of it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ParseQuantityError {
    /// The text does not begin with a number.
    NoNumber {
        /// The whole text.
        text: String,
    },
    /// There is a number and nothing behind it.
    NoUnit {
        /// The whole text.
        text: String,
        /// The same with the unit that a bare number would mean elsewhere.
        example: String,
        /// The units that would have been understood.
        known: &'static str,
    },
    /// The unit is not one of those known.
    UnknownUnit {
        /// The whole text.
        text: String,
        /// The units that would have been understood.
        known: &'static str,
    },
    /// The value does not fit the quantity's range.
    OutOfRange {
        /// The whole text.
        text: String,
    },
}

impl std::fmt::Display for ParseQuantityError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NoNumber { text } => {
                write!(f, "`{text}`: must begin with a number, as in `20 Mbit/s` or `5 ms`")
            }
            Self::NoUnit { text, example, known } => {
                write!(f, "`{text}`: has no unit: write `{example}`, or use another of {known}")
            }
            Self::UnknownUnit { text, known } => {
                write!(f, "`{text}`: unknown unit, use one of {known}")
            }
            Self::OutOfRange { text } => write!(f, "`{text}`: too large or negative for this quantity"),
        }
    }
}
impl std::error::Error for ParseQuantityError {}

/// Splits `12.5 ms` into its number and its unit, and scales the number by the unit's factor. `usual` is the unit that a
/// number without one is told of.
fn parse_scaled(
    text: &str,
    units: &[(&str, f64)],
    usual: &str,
    known: &'static str,
) -> Result<u64, ParseQuantityError> {
    let trimmed = text.trim();
    let split = trimmed.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(split);
    let unit = unit.trim();
    if number.is_empty() || number.parse::<f64>().is_err() {
        return Err(ParseQuantityError::NoNumber { text: text.to_owned() });
    }
    if unit.is_empty() {
        let example = format!("{number} {usual}");
        return Err(ParseQuantityError::NoUnit { text: text.to_owned(), example, known });
    }
    let &(_, factor) = units
        .iter()
        .find(|(name, _)| *name == unit)
        .ok_or_else(|| ParseQuantityError::UnknownUnit { text: text.to_owned(), known })?;
    // Whole numbers stay exact; only a decimal point goes through floating point.
    let exact = number.parse::<u64>().ok().and_then(|n| {
        (factor >= 1.0 && factor.fract() == 0.0).then(|| n.checked_mul(factor as u64)).flatten()
    });
    if let Some(value) = exact {
        return Ok(value);
    }
    let value = number.parse::<f64>().unwrap_or(f64::INFINITY) * factor;
    if (0.0..1.8e19).contains(&value) {
        Ok(value.round() as u64)
    } else {
        Err(ParseQuantityError::OutOfRange { text: text.to_owned() })
    }
}

/// Writes `value` with at most three decimals and no trailing zeros.
fn write_trimmed(f: &mut std::fmt::Formatter<'_>, value: f64, unit: &str) -> std::fmt::Result {
    let text = format!("{value:.3}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    write!(f, "{text} {unit}")
}
