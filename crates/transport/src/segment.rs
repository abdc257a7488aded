//! Segments, the messages between TCP endpoints.
//!
//! Differs: positions are 64 bits from 0 and never wrap; the window is in bytes without a scale; timestamps are exact
//! instants of the sender's clock; SYN takes no position (FIN takes one, as in RFC 9293).

use anabranch_endpoint::Message;
use anabranch_units::RunInstant;

/// The most blocks that a segment reports: three fit beside timestamps (RFC 2018 section 3).
pub const SACK_BLOCKS_MAX: usize = 3;

/// Blocks that arrived beyond a gap, the one that changed last first (RFC 2018 section 4).
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct SackBlocks {
    count: u8,
    /// First position and the one behind the last.
    blocks: [(u64, u64); SACK_BLOCKS_MAX],
}

impl SackBlocks {
    /// Adds a block behind the others; what does not fit is left out.
    pub fn push(&mut self, start: u64, end: u64) {
        if let Some(free) = self.blocks.get_mut(usize::from(self.count)) {
            *free = (start, end);
            self.count += 1;
        }
    }
    /// The blocks.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> + Clone + '_ {
        self.blocks[..usize::from(self.count)].iter().copied()
    }
    /// True without a block.
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }
}

/// One TCP segment. Lengths only; see the module for what differs from the wire's format.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Position of its first byte.
    pub seq: u64,
    /// Bytes of data.
    pub len: u32,
    /// Bytes of all headers below and with TCP's.
    pub header_bytes: u32,
    /// Asks for a connection.
    pub syn: bool,
    /// The stream ends behind its data. Takes one position.
    pub fin: bool,
    /// The first position that has not arrived, if the segment acknowledges.
    pub ack: Option<u64>,
    /// Bytes that may follow `ack`.
    pub window: u64,
    /// Blocks that arrived beyond `ack`.
    pub sack: SackBlocks,
    /// When it was sent.
    pub sent_at: RunInstant,
    /// `sent_at` of the segment that it answers (RFC 7323 section 4).
    pub echo: Option<RunInstant>,
    /// Congestion was met (RFC 3168: ECE).
    pub ece: bool,
    /// The sender has slowed down (RFC 3168: CWR).
    pub cwr: bool,
    /// Queues may mark it instead of dropping (ECT).
    pub ect: bool,
    /// A queue has marked it (CE). Set by the network.
    pub ce: bool,
    /// A circuit from its receiver to its sender is up or near (Etalon's mark for reTCP). Set by
    /// the network.
    pub circuit: bool,
}

impl Segment {
    /// The position behind its last.
    pub fn end(&self) -> u64 {
        self.seq + u64::from(self.len) + u64::from(self.fin)
    }
}

impl Message for Segment {
    fn wire_len(&self) -> u32 {
        self.header_bytes + self.len
    }
    fn is_ect(&self) -> bool {
        self.ect
    }
    fn mark_ce(&mut self) {
        self.ce = true;
    }
    fn mark_circuit(&mut self) {
        self.circuit = true;
    }
}
