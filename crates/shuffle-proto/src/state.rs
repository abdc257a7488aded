//! An agent's notes before each change, by which the changes of a killed agent can be set back: lines of JSON.
//!
//! Leaves out: the file, and setting back. Read [`Line`] and [`read`].

use anabranch_units::BitRate;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;

/// A connection that is to have a limit.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limited {
    /// This host's end.
    pub local: SocketAddr,
    /// The other end.
    pub remote: SocketAddr,
    /// What tells it from all others of this boot.
    pub cookie: u64,
    /// What it had before, in bits a second.
    pub before_bps: Option<u64>,
}

impl Limited {
    /// What it had before.
    pub fn before(&self) -> Option<BitRate> {
        self.before_bps.map(BitRate::bps)
    }
}

/// A line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Line {
    /// A connection gets a limit.
    Limited(Limited),
    /// What `net.ipv4.tcp_tso_rtt_log` is to be set to again, if anything. The last one counts.
    Bursts {
        /// That.
        tso_rtt_log: Option<u8>,
    },
}

/// What was left.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Left {
    /// Connections that may have limits, in order.
    pub limited: Vec<Limited>,
    /// What is to be set back of bursts.
    pub tso_rtt_log: Option<u8>,
    /// Bytes of whole lines: a line that was cut off is of something that has not been done.
    pub whole_bytes: usize,
}

/// Reads lines; those that say nothing are passed over.
pub fn read(text: &[u8]) -> Left {
    let whole_bytes = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    let mut left = Left { whole_bytes, ..Left::default() };
    for line in text[..whole_bytes].split(|byte| *byte == b'\n') {
        match serde_json::from_slice(line) {
            Ok(Line::Limited(limited)) => left.limited.push(limited),
            Ok(Line::Bursts { tso_rtt_log }) => left.tso_rtt_log = tso_rtt_log,
            Err(_) => {}
        }
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_lines_are_read_and_the_last_word_on_bursts_counts() {
        let line = r#"{"local":"10.0.0.1:5","remote":"[fd00::2]:9","cookie":7,"before_bps":null}"#;
        let text = format!("{line}\n{{\"tso_rtt_log\":9}}\nwhat?\n{{\"tso_rtt_log\":3}}\n{line}");
        let left = read(text.as_bytes());
        assert_eq!((left.limited.len(), left.limited[0].cookie, left.tso_rtt_log), (1, 7, Some(3)));
        assert_eq!(&text[left.whole_bytes..], line);
        assert_eq!(read(b""), Left::default());
    }
}
