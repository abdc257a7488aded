//! Quantities and names common to all crates.
//!
//! Points in time and durations are integer picoseconds ([`Instant`], [`Duration`]). Sizes are
//! bytes ([`ByteCount`]), and rates bits per second ([`BitRate`]). There are ids ([`SiteId`],
//! [`LinkId`], [`PeerId`]) and named random streams ([`Seed`]). Prefixes are decimal; powers of two
//! are `Ki`, `Mi`, `Gi`. Text from outside is shown only through [`text::printable`]. A [`Finding`]
//! is a fact about the machine, a [`Histogram`] counts durations, [`stats`] summarises small
//! samples, and [`loss_ppm_max`] limits the loss rate for a burst length.
//!
//! Leaves out: all code that reads a clock or the machine's state. Read [`Instant`] and [`BitRate`]
//! first.

mod dilation;
mod finding;
mod flow;
mod hash;
mod histogram;
mod id;
mod loss;
mod quantity;
mod random;
mod run_instant;
pub mod stats;
pub mod text;
mod text_form;
mod time;

pub use dilation::{Dilation, DilationError};
pub use finding::Finding;
pub use flow::FlowKey;
pub use hash::{fnv1a, mix64};
pub use histogram::Histogram;
pub use id::{LinkId, PeerId, SiteId};
pub use loss::{LOSS_BURST_MAX, loss_ppm_max};
pub use quantity::{BitRate, ByteCount, Serialiser};
pub use random::{RandomStream, Seed};
pub use run_instant::RunInstant;
pub use time::{Duration, Instant, time_in_words};

/// Reason why a text is not a quantity, with the expected form. Long texts are shortened in
/// messages.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ParseQuantityError {
    /// The text does not begin with a number.
    NoNumber {
        /// The refused text.
        text: String,
    },
    /// The text is a number without a unit.
    NoUnit {
        /// The refused text.
        text: String,
        /// The same value with the usual unit.
        example: String,
        /// The supported units.
        known: &'static str,
    },
    /// The unit is unknown.
    UnknownUnit {
        /// The refused text.
        text: String,
        /// The supported units.
        known: &'static str,
    },
    /// The value is out of the quantity's range.
    OutOfRange {
        /// The refused text.
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

/// Parses `12.5 ms` into number and unit, and scales the number by the unit's factor. `usual` is
/// the unit that the error for a number without a unit suggests.
fn parse_scaled(
    text: &str,
    units: &[(&str, f64)],
    usual: &str,
    known: &'static str,
) -> Result<u64, ParseQuantityError> {
    const SHOWN_CHARS_MAX: usize = 60;
    // The beginning of the text, for a message.
    let shown = || match text.char_indices().nth(SHOWN_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    };
    let trimmed = text.trim();
    let split = trimmed.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(split);
    let unit = unit.trim();
    if number.is_empty() || number.parse::<f64>().is_err() {
        return Err(ParseQuantityError::NoNumber { text: shown() });
    }
    if unit.is_empty() {
        let example = format!("{} {usual}", shown().trim());
        return Err(ParseQuantityError::NoUnit { text: shown(), example, known });
    }
    let &(_, factor) = units
        .iter()
        .find(|(name, _)| *name == unit)
        .ok_or_else(|| ParseQuantityError::UnknownUnit { text: shown(), known })?;
    // Whole numbers are exact; only a decimal point needs floating point.
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
        Err(ParseQuantityError::OutOfRange { text: shown() })
    }
}

/// Writes `value` with at most three decimals and no trailing zeros.
fn write_trimmed(f: &mut std::fmt::Formatter<'_>, value: f64, unit: &str) -> std::fmt::Result {
    let text = format!("{value:.3}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    write!(f, "{text} {unit}")
}

/// Exercise for the fuzz target and its corpus's test: reads a text as a quantity and as an unknown
/// name. Returns true if the text is a size, a rate or a time.
///
/// Panics: if a reader panics, if a quantity's text does not read back, or if a message has several
/// lines.
#[doc(hidden)]
pub fn exercise(bytes: &[u8]) -> bool {
    fn reads<Q: std::str::FromStr<Err = ParseQuantityError> + std::fmt::Display>(text: &str) -> bool {
        text.parse::<Q>().is_ok_and(|quantity| {
            // Near the maximum, the rounded text may exceed the range.
            let shown = quantity.to_string();
            let again = shown.parse::<Q>().map(drop);
            assert!(matches!(again, Ok(()) | Err(ParseQuantityError::OutOfRange { .. })), "{text}: {shown}");
            true
        })
    }
    let Ok(text) = std::str::from_utf8(bytes) else { return false };
    let said = text::known(text, text.split(',').take(100));
    assert_eq!(text::printable(&said), said, "it is one line");
    [reads::<ByteCount>(text), reads::<BitRate>(text), reads::<Duration>(text)].contains(&true)
}

#[cfg(test)]
mod tests {
    #[test]
    fn fuzz_corpora_are_accepted_unless_named_bad() {
        assert!(anabranch_testing::replay("quantities", crate::exercise) >= 8);
    }
}
