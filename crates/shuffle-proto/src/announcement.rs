//! Announcements of flows, from a program to its host's agent: one JSON object on each line, and
//! one line as the answer.
//!
//! `{"flow":{"local":…,"remote":…},"coflow":"…","size_bytes":…}` announces a flow, or more data for
//! a known flow. `{"ended":{"local":…,"remote":…},"coflow":"…"}` states that all data of the flow
//! is written, although the connection stays open. Without `coflow` it applies to the flow's
//! current coflow.
//!
//! Leaves out: transport of lines, permissions, and whether flows exist. Read [`Announcement`].

use crate::control::FlowKey;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Maximum bytes of a line, its line end included.
pub const LINE_BYTES_MAX: usize = 1_024;

/// Content of a line. Addresses are as the program sees them; an IPv4 address may be mapped into
/// IPv6.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Announcement {
    /// A flow exists, or has more data than announced before.
    Flow {
        /// Addresses and ports of the flow.
        flow: FlowKey,
        /// Name of the flow's coflow. Any text; the receiver validates it.
        coflow: String,
        /// Total bytes of the flow for this coflow so far.
        size_bytes: u64,
    },
    /// All data of the flow for its coflow has been written.
    Ended {
        /// Addresses and ports of the flow.
        flow: FlowKey,
        /// Name of the flow's coflow. The announcement is ignored if the flow belongs to another
        /// coflow by now.
        coflow: Option<String>,
    },
}

/// Error of an invalid line.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LineError {
    /// The line is longer than [`LINE_BYTES_MAX`].
    TooLong,
    /// Invalid JSON or unknown fields, with the parser's message in one line.
    Json(String),
    /// Fields that form neither an announcement nor an end.
    Fields,
}

impl fmt::Display for LineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong => write!(f, "a line has at most {LINE_BYTES_MAX} bytes"),
            Self::Json(reason) => f.write_str(reason),
            Self::Fields => f.write_str("write flow, coflow and size_bytes, or ended and coflow"),
        }
    }
}

impl std::error::Error for LineError {}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AnnouncementLine {
    flow: Option<FlowKey>,
    /// Earlier versions of the client libraries send the field as `transfer`.
    #[serde(alias = "transfer")]
    coflow: Option<String>,
    size_bytes: Option<u64>,
    ended: Option<FlowKey>,
}

impl Announcement {
    /// Parses a line, with or without its line end.
    ///
    /// Errors: see [`LineError`].
    pub fn read(line: &[u8]) -> Result<Self, LineError> {
        if line.len() > LINE_BYTES_MAX {
            return Err(LineError::TooLong);
        }
        // The quoted part of the line may contain line ends.
        let reason =
            |error: serde_json::Error| LineError::Json(error.to_string().replace(char::is_control, " "));
        match serde_json::from_slice(line).map_err(reason)? {
            AnnouncementLine {
                flow: Some(flow),
                coflow: Some(coflow),
                size_bytes: Some(size_bytes),
                ended: None,
            } => Ok(Self::Flow { flow, coflow, size_bytes }),
            AnnouncementLine { flow: None, coflow, size_bytes: None, ended: Some(flow) } => {
                Ok(Self::Ended { flow, coflow })
            }
            _ => Err(LineError::Fields),
        }
    }
}

/// Answer to a line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reply {
    /// True if the line was accepted.
    pub ok: bool,
    /// Reason for refusing the line, in one line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLOW: &str = r#"{"local":"10.0.0.1:5","remote":"[fd00::2]:9"}"#;

    fn key() -> FlowKey {
        FlowKey {
            local: "10.0.0.1:5".parse().expect("an address"),
            remote: "[fd00::2]:9".parse().expect("an address"),
        }
    }

    #[test]
    fn line_is_an_announcement_an_end_or_refused() {
        let line = format!(r#"{{"flow":{FLOW},"coflow":"t","size_bytes":7}}"#);
        let flow = Announcement::Flow { flow: key(), coflow: "t".into(), size_bytes: 7 };
        assert_eq!(Announcement::read(line.as_bytes()), Ok(flow.clone()));
        assert_eq!(Announcement::read(format!("{line}\n").as_bytes()), Ok(flow));
        let line = format!(r#"{{"ended":{FLOW}}}"#);
        let ended = |coflow| Ok(Announcement::Ended { flow: key(), coflow });
        assert_eq!(Announcement::read(line.as_bytes()), ended(None));
        let line = format!(r#"{{"ended":{FLOW},"coflow":"t"}}"#);
        assert_eq!(Announcement::read(line.as_bytes()), ended(Some("t".into())));
        let line = format!(r#"{{"ended":{FLOW},"transfer":"t"}}"#);
        assert_eq!(Announcement::read(line.as_bytes()), ended(Some("t".into())), "a library of before");
        for (line, says) in [
            ("{}".to_owned(), "write flow"),
            (format!(r#"{{"flow":{FLOW},"coflow":"t"}}"#), "write flow"),
            (format!(r#"{{"flow":{FLOW},"coflow":"t","size_bytes":7,"ended":{FLOW}}}"#), "write flow"),
            (format!(r#"{{"ended":{FLOW},"size_bytes":7}}"#), "write flow"),
            (format!(r#"{{"flow":{FLOW},"coflow":"t","size_bytes":-1}}"#), "invalid value"),
            (format!(r#"{{"ended":{FLOW},"coflow":"t","transfer":"t"}}"#), "duplicate field `coflow`"),
            (format!(r#"{{"ended":{FLOW},"more":1}}"#), "unknown field"),
            (r#"{"ended":{"lo\ncal":1}}"#.to_owned(), "unknown field `lo cal`"),
            (format!(r#"{{"ended":{FLOW}}}{{"ended":{FLOW}}}"#), "trailing"),
        ] {
            let error = Announcement::read(line.as_bytes()).expect_err(&line).to_string();
            assert!(error.contains(says) && !error.contains('\n'), "{line}: {error}");
        }
    }

    #[test]
    fn lines_above_the_length_limit_are_refused() {
        let line = format!(r#"{{"ended":{FLOW}}}"#);
        let padded = |length: usize| format!("{line}{}", " ".repeat(length - line.len()));
        assert!(Announcement::read(padded(LINE_BYTES_MAX).as_bytes()).is_ok());
        assert_eq!(Announcement::read(padded(LINE_BYTES_MAX + 1).as_bytes()), Err(LineError::TooLong));
    }
}
