//! Lines as the agent reads them, one JSON object each.
//!
//! Writing a line takes no memory but the caller's, so that a signal handler may do it. Leaves out:
//! how lines travel. Read [`Line`].

pub use anabranch_units::FlowKey;
use serde::Serialize;

/// The most bytes of a line that the agent takes, its end counted.
pub const LINE_BYTES_MAX: usize = 1_024;
/// The most bytes of a coflow's name that the agent takes.
pub const NAME_BYTES_MAX: usize = 128;

/// Content of a line.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Line<'a> {
    said: LineContent<'a>,
}

#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
enum LineContent<'a> {
    Flow { flow: FlowKey, coflow: &'a str, size_bytes: u64 },
    Ended { ended: FlowKey, coflow: &'a str },
}

impl<'a> Line<'a> {
    /// Announces a flow, or more bytes of a known flow.
    pub const fn announce(flow: FlowKey, coflow: &'a str, size_bytes: u64) -> Self {
        Self { said: LineContent::Flow { flow, coflow, size_bytes } }
    }

    /// Reports that all bytes of the flow for this coflow have been written. If the flow belongs to
    /// another coflow by then, nothing changes.
    pub const fn ended(flow: FlowKey, coflow: &'a str) -> Self {
        Self { said: LineContent::Ended { ended: flow, coflow } }
    }

    /// The line with its end; `None` if it is longer than the agent takes.
    pub fn write<'b>(&self, buffer: &'b mut [u8; LINE_BYTES_MAX]) -> Option<&'b [u8]> {
        // The length is checked by hand, because the library allocates its error for a full buffer.
        let coflow_bytes = self.coflow_bytes();
        // Two addresses with scopes, a number and the words are less than 256 bytes; a character
        // may take six.
        const { assert!(6 * NAME_BYTES_MAX + 256 <= LINE_BYTES_MAX, "a line has room for any name") }
        if coflow_bytes > NAME_BYTES_MAX {
            return None;
        }
        let mut rest = &mut buffer[..];
        serde_json::to_writer(&mut rest, &self.said).ok()?;
        let length = LINE_BYTES_MAX - rest.len();
        *buffer.get_mut(length)? = b'\n';
        buffer.get(..=length)
    }

    pub(crate) const fn coflow_bytes(&self) -> usize {
        let (LineContent::Flow { coflow, .. } | LineContent::Ended { coflow, .. }) = self.said;
        coflow.len()
    }
}
