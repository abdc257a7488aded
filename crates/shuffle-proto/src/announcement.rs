//! Announcements of flows, from a program to its host's agent: one JSON object a line, each answered by one.
//!
//! `{"flow":{"local":…,"remote":…},"coflow":"…","size_bytes":…}` announces a flow or that it has more to move,
//! `{"ended":{"local":…,"remote":…},"coflow":"…"}` says that all of that has been written, though the connection stays; without
//! the coflow it is of whichever the flow is then.
//! Leaves out: how lines travel, who may speak of a flow, and whether there is one. Read [`Announcement`].

use crate::control::FlowKey;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The most bytes of a line, its end counted.
pub const LINE_BYTES_MAX: usize = 1_024;

/// What a line says. Addresses are as the program has them; an IPv4 address may be mapped into IPv6.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Announcement {
    /// There is a flow, or it has more to move than was said.
    Flow {
        /// Which.
        flow: FlowKey,
        /// Its coflow's name. Any text: what takes it checks whether it is a name.
        coflow: String,
        /// All that it has had to move so far for that.
        size_bytes: u64,
    },
    /// All that it has for its coflow has been written.
    Ended {
        /// Which.
        flow: FlowKey,
        /// Of which coflow; if the flow is another one's by now, nothing changes.
        coflow: Option<String>,
    },
}

/// Why a line says nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LineError {
    /// More bytes than [`LINE_BYTES_MAX`].
    TooLong,
    /// No JSON, or other fields than a line has: what the parser says, in one line.
    Json(String),
    /// Fields that make neither an announcement nor an end.
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
struct Line {
    flow: Option<FlowKey>,
    /// Programs with libraries of before say `transfer`.
    #[serde(alias = "transfer")]
    coflow: Option<String>,
    size_bytes: Option<u64>,
    ended: Option<FlowKey>,
}

impl Announcement {
    /// What this line says, with its end or without.
    ///
    /// Errors: see [`LineError`].
    pub fn read(line: &[u8]) -> Result<Self, LineError> {
        if line.len() > LINE_BYTES_MAX {
            return Err(LineError::TooLong);
        }
        // What the reason quotes of the line may have line ends in it.
        let reason =
            |error: serde_json::Error| LineError::Json(error.to_string().replace(char::is_control, " "));
        match serde_json::from_slice(line).map_err(reason)? {
            Line { flow: Some(flow), coflow: Some(coflow), size_bytes: Some(size_bytes), ended: None } => {
                Ok(Self::Flow { flow, coflow, size_bytes })
            }
            Line { flow: None, coflow, size_bytes: None, ended: Some(flow) } => {
                Ok(Self::Ended { flow, coflow })
            }
            _ => Err(LineError::Fields),
        }
    }
}

/// What is answered to a line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reply {
    /// Whether it was taken.
    pub ok: bool,
    /// Why not, in one line.
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
    fn a_line_announces_or_ends_and_nothing_else() {
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
    fn a_line_may_be_as_long_as_the_limit_and_no_longer() {
        let line = format!(r#"{{"ended":{FLOW}}}"#);
        let padded = |length: usize| format!("{line}{}", " ".repeat(length - line.len()));
        assert!(Announcement::read(padded(LINE_BYTES_MAX).as_bytes()).is_ok());
        assert_eq!(Announcement::read(padded(LINE_BYTES_MAX + 1).as_bytes()), Err(LineError::TooLong));
    }
}
