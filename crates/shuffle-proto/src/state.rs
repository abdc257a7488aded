//! An agent's records, written before each change, with which the changes of a killed agent are
//! undone: lines of JSON.
//!
//! Leaves out: the file, and undoing changes. Read [`StateLine`] and [`read`].

use anabranch_units::BitRate;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;

/// A connection that is about to get a limit.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitedConnection {
    /// Local address and port.
    pub local: SocketAddr,
    /// Remote address and port.
    pub remote: SocketAddr,
    /// Socket cookie, unique since boot.
    pub cookie: u64,
    /// Rate limit before the agent's first limit, in bits per second; `None` for no limit.
    pub before_bps: Option<u64>,
}

impl LimitedConnection {
    /// Rate limit before the agent's first limit; `None` for no limit.
    pub fn before(&self) -> Option<BitRate> {
        self.before_bps.map(BitRate::bps)
    }
}

/// One line of the records.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum StateLine {
    /// A connection that is about to get a limit.
    Limited(LimitedConnection),
    /// Value of `net.ipv4.tcp_tso_rtt_log` to restore; `None` if it is restored. The last such line
    /// counts.
    Bursts {
        /// The value.
        tso_rtt_log: Option<u8>,
    },
}

/// State left by a killed agent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeftoverState {
    /// Connections that may have limits, in order.
    pub limited: Vec<LimitedConnection>,
    /// Value of `net.ipv4.tcp_tso_rtt_log` to restore; `None` if there is none.
    pub tso_rtt_log: Option<u8>,
    /// Number of bytes of complete lines. A truncated line belongs to a change that was not made.
    pub whole_bytes: usize,
}

/// Parses the records. Invalid lines are skipped.
pub fn read(text: &[u8]) -> LeftoverState {
    let whole_bytes = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    let mut left = LeftoverState { whole_bytes, ..LeftoverState::default() };
    for line in text[..whole_bytes].split(|byte| *byte == b'\n') {
        match serde_json::from_slice(line) {
            Ok(StateLine::Limited(limited)) => left.limited.push(limited),
            Ok(StateLine::Bursts { tso_rtt_log }) => left.tso_rtt_log = tso_rtt_log,
            Err(_) => {}
        }
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn complete_lines_are_read_and_last_burst_counts() {
        let line = r#"{"local":"10.0.0.1:5","remote":"[fd00::2]:9","cookie":7,"before_bps":null}"#;
        let text = format!("{line}\n{{\"tso_rtt_log\":9}}\nwhat?\n{{\"tso_rtt_log\":3}}\n{line}");
        let left = read(text.as_bytes());
        assert_eq!((left.limited.len(), left.limited[0].cookie, left.tso_rtt_log), (1, 7, Some(3)));
        assert_eq!(&text[left.whole_bytes..], line);
        assert_eq!(read(b""), LeftoverState::default());
    }
}
