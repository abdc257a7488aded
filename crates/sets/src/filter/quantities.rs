//! Sizes and ages as rclone's options have them.

/// A text that is not a size or an age, with the expected form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuantityError {
    text: String,
    expected: &'static str,
}

impl std::fmt::Display for QuantityError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "`{}`: must be {}", anabranch_units::text::printable(&self.text), self.expected)
    }
}
impl std::error::Error for QuantityError {}

/// A number without a sign or an exponent, and the rest of the text.
fn number(text: &str) -> Option<(f64, &str)> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, rest) = text.split_at(digits);
    Some((number.parse().ok()?, rest))
}

/// Bytes of a size: a number of KiB, or a number with `B`, `K`, `M`, `G`, `T` or `P`, powers of
/// 1,024.
///
/// ```
/// use anabranch_sets::filter::quantities::size_bytes;
/// assert_eq!(size_bytes("1.5M"), Ok(1_572_864));
/// assert_eq!((size_bytes("2"), size_bytes("100B")), (Ok(2_048), Ok(100)));
/// assert!(size_bytes("1X").is_err() && size_bytes("-1").is_err());
/// ```
pub fn size_bytes(text: &str) -> Result<u64, QuantityError> {
    let expected = "a number of KiB, or a number with B, K, M, G, T or P, as in 100M";
    let wrong = || QuantityError { text: text.to_owned(), expected };
    let (number, suffix) = number(text).ok_or_else(wrong)?;
    let suffix = suffix.to_ascii_lowercase();
    let power = match suffix.strip_suffix("ib").or_else(|| suffix.strip_suffix('i')).unwrap_or(&suffix) {
        "b" => 0,
        "" | "k" => 1,
        "m" => 2,
        "g" => 3,
        "t" => 4,
        "p" => 5,
        _ => return Err(wrong()),
    };
    let bytes = number * 1_024f64.powi(power);
    // The conversion is exact, because sizes above 2^53 bytes are even. Larger values are refused.
    if bytes < 2f64.powi(63) { Ok(bytes as u64) } else { Err(wrong()) }
}

/// Nanoseconds of an age: numbers with `ms`, `s`, `m`, `h`, `d`, `w`, `M` (30 days) or `y` (365
/// days), or a number of seconds.
///
/// ```
/// use anabranch_sets::filter::quantities::age_ns;
/// assert_eq!(age_ns("1h30m"), Ok(5_400_000_000_000));
/// assert_eq!((age_ns("2"), age_ns("1d")), (Ok(2_000_000_000), Ok(86_400_000_000_000)));
/// assert!(age_ns("1x").is_err() && age_ns("").is_err());
/// ```
pub fn age_ns(text: &str) -> Result<u64, QuantityError> {
    let expected = "a number with ms, s, m, h, d, w, M or y, as in 1h30m or 2w";
    let wrong = || QuantityError { text: text.to_owned(), expected };
    let (mut rest, mut seconds) = (text, 0.0);
    loop {
        let (number, after) = number(rest).ok_or_else(wrong)?;
        let end = after.find(|c: char| c.is_ascii_digit()).unwrap_or(after.len());
        let each = match &after[..end] {
            "ms" => 1e-3,
            "" | "s" => 1.0,
            "m" => 60.0,
            "h" => 3_600.0,
            "d" => 86_400.0,
            "w" => 7.0 * 86_400.0,
            "M" => 30.0 * 86_400.0,
            "y" => 365.0 * 86_400.0,
            _ => return Err(wrong()),
        };
        seconds += number * each;
        rest = &after[end..];
        if rest.is_empty() {
            break;
        }
    }
    let nanos = seconds * 1e9;
    if nanos < 2f64.powi(63) { Ok(nanos.round() as u64) } else { Err(wrong()) }
}
