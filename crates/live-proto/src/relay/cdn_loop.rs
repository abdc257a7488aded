//! The `CDN-Loop` header, by which a relay finds requests that came back to it.
//!
//! Source: RFC 8586, sections 2 and 3. Leaves out: parameters of a node's own entry.

use std::fmt;

/// Maximum number of relays that a request has passed.
pub const PASSED_MAX: usize = 16;
/// Maximum length of a received header, in bytes.
pub const HEADER_BYTES_MAX: usize = 1_024;

/// A request that this node must not forward.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LoopError {
    /// This node has forwarded the request before.
    Loop,
    /// Number of relays passed, above [`PASSED_MAX`].
    TooManyPassed(usize),
    /// Length of the header in bytes, above [`HEADER_BYTES_MAX`].
    TooLong(usize),
}

impl fmt::Display for LoopError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Loop => write!(f, "CDN-Loop: this node has forwarded the request before: remove the ring"),
            Self::TooManyPassed(count) => {
                write!(f, "CDN-Loop: {count} relays passed: at most {PASSED_MAX}")
            }
            Self::TooLong(bytes) => write!(f, "CDN-Loop: {bytes} bytes: at most {HEADER_BYTES_MAX}"),
        }
    }
}

impl std::error::Error for LoopError {}

/// The `CDN-Loop` value for a request that the node `own` forwards, from the `received` values.
///
/// Errors: see [`LoopError`].
pub fn forwarded<'a>(received: impl IntoIterator<Item = &'a str>, own: &str) -> Result<String, LoopError> {
    let mut value = String::new();
    let mut passed = 0;
    for entry in received.into_iter().flat_map(|line| line.split(',')).map(str::trim) {
        let name = entry.split(';').next().unwrap_or_default().trim();
        if name.is_empty() {
            continue;
        }
        if name.eq_ignore_ascii_case(own) {
            return Err(LoopError::Loop);
        }
        passed += 1;
        value.push_str(entry);
        value.push_str(", ");
    }
    if passed > PASSED_MAX {
        return Err(LoopError::TooManyPassed(passed));
    }
    if value.len() > HEADER_BYTES_MAX {
        return Err(LoopError::TooLong(value.len()));
    }
    value.push_str(own);
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_that_came_back_is_refused() {
        let first = forwarded([], "edge-1").expect("no relay passed");
        assert_eq!(first, "edge-1");
        let second = forwarded([&*first, "other; v=1"], "edge-2").expect("two relays passed");
        assert_eq!(second, "edge-1, other; v=1, edge-2");
        assert_eq!(forwarded([&*second], "edge-1"), Err(LoopError::Loop));
        assert_eq!(forwarded([&*second], "Other"), Err(LoopError::Loop));
    }

    #[test]
    fn number_of_relays_is_limited() {
        let passed = |count: usize| vec!["relay"; count].join(",");
        assert!(forwarded([&*passed(PASSED_MAX)], "own").is_ok());
        assert_eq!(
            forwarded([&*passed(PASSED_MAX + 1)], "own"),
            Err(LoopError::TooManyPassed(PASSED_MAX + 1))
        );
        let long = "x".repeat(HEADER_BYTES_MAX + 1);
        assert!(matches!(forwarded([&*long], "own"), Err(LoopError::TooLong(_))));
    }
}
