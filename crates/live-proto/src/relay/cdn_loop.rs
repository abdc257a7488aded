//! The `CDN-Loop` header, by which a relay detects requests that have looped back to it.
//!
//! Source: RFC 8586, sections 2 and 3. Leaves out: parameters of a node's own entry.

use std::fmt;

/// Maximum number of relays that a request may have passed.
pub const PASSED_MAX: usize = 16;
/// Longest accepted header, in bytes.
pub const HEADER_BYTES_MAX: usize = 1_024;

/// Maximum number of names in a value that [`joined`] has extended: half of [`PASSED_MAX`], because
/// each further relay adds its name.
pub const JOINED_MAX: usize = 8;

/// Reason why this node must not forward a request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LoopError {
    /// This node has already forwarded the request.
    Loop,
    /// The request has passed too many relays: their number, above [`PASSED_MAX`].
    TooManyPassed(usize),
    /// The header is too long: its length in bytes, above [`HEADER_BYTES_MAX`].
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

/// The `CDN-Loop` value for a request that node `own` forwards, given the `received` values.
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

/// Returns the `CDN-Loop` value of one request that replaces two requests: the names of `other`
/// that `own` lacks, then `own`. The result has at most [`JOINED_MAX`] names. `None` if no name is
/// added.
pub fn joined(own: &str, other: &str) -> Option<String> {
    let name = |entry: &str| entry.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let mut names: Vec<String> = own.split(',').map(name).collect();
    let mut added = String::new();
    for entry in other.split(',').map(str::trim) {
        let name = name(entry);
        if names.len() < JOINED_MAX && !names.contains(&name) {
            added.push_str(entry);
            added.push_str(", ");
            names.push(name);
        }
    }
    let value = format!("{added}{own}");
    (!added.is_empty() && value.len() <= HEADER_BYTES_MAX).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looped_request_is_refused() {
        let first = forwarded([], "edge-1").expect("no relay passed");
        assert_eq!(first, "edge-1");
        let second = forwarded([&*first, "other; v=1"], "edge-2").expect("two relays passed");
        assert_eq!(second, "edge-1, other; v=1, edge-2");
        assert_eq!(forwarded([&*second], "edge-1"), Err(LoopError::Loop));
        assert_eq!(forwarded([&*second], "Other"), Err(LoopError::Loop));
    }

    #[test]
    fn joined_request_has_passed_all_relays() {
        assert_eq!(joined("b", "a; v=1, b").as_deref(), Some("a; v=1, b"));
        assert_eq!(joined("a, b", "B"), None);
        let seven = "1, 2, 3, 4, 5, 6, 7";
        assert_eq!(joined(seven, "8, 9"), Some(format!("8, {seven}")));
        assert_eq!(joined(&format!("8, {seven}"), "9"), None);
        assert_eq!(joined("b", &"x".repeat(HEADER_BYTES_MAX)), None);
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
