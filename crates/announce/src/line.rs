//! Lines in the agent's format, one JSON object each.
//!
//! Writing a line uses only the caller's memory, so that a signal handler may write lines. Leaves
//! out: the transmission of lines. Read [`Line`] first.

pub use anabranch_units::FlowKey;
use serde::Serialize;

/// Maximum length of a line that the agent accepts, in bytes, including the line's end.
pub const LINE_BYTES_MAX: usize = 1_024;
/// Maximum length of a coflow's name that the agent accepts, in bytes.
pub const NAME_BYTES_MAX: usize = 128;

/// A line to the agent.
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

    /// Reports that all bytes of the flow for this coflow have been written. The report has no
    /// effect if the flow belongs to another coflow by then.
    pub const fn ended(flow: FlowKey, coflow: &'a str) -> Self {
        Self { said: LineContent::Ended { ended: flow, coflow } }
    }

    /// The line with its end; `None` if it is longer than the agent accepts.
    pub fn write<'b>(&self, buffer: &'b mut [u8; LINE_BYTES_MAX]) -> Option<&'b [u8]> {
        // The length is checked explicitly, because the library allocates memory for the error of a
        // full buffer.
        let coflow_bytes = self.coflow_bytes();
        // Two addresses with scopes, a number and the field names need fewer than 256 bytes. A
        // character may need six bytes.
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
