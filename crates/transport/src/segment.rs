//! Segments, the messages between TCP endpoints.
//!
//! Differs: positions have 64 bits, begin at 0 and never wrap. The window is in bytes without a
//! scale. Timestamps are exact instants of the sender's clock. SYN has no position (FIN has one, as
//! in RFC 9293).

use anabranch_endpoint::Message;
use anabranch_units::RunInstant;

/// Maximum number of blocks in a segment: three fit together with timestamps (RFC 2018 section 3).
pub const SACK_BLOCKS_MAX: usize = 3;

/// Ranges that arrived beyond a gap, the last changed one first (RFC 2018 section 4).
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct SackBlocks {
    count: u8,
    /// First position of each block, and the position after its last byte.
    blocks: [(u64, u64); SACK_BLOCKS_MAX],
}

impl SackBlocks {
    /// Appends a block. Blocks beyond the maximum are dropped.
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
    /// Whether the set has no block.
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }
}

/// One TCP segment without its contents. The module lists differences from the wire format.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Position of the first byte.
    pub seq: u64,
    /// Number of bytes of data.
    pub len: u32,
    /// Number of bytes of all headers, TCP's included.
    pub header_bytes: u32,
    /// The segment requests a connection.
    pub syn: bool,
    /// The stream ends after the segment's data. The end has one position.
    pub fin: bool,
    /// First missing position; `None` if the segment acknowledges nothing.
    pub ack: Option<u64>,
    /// Number of bytes accepted from `ack` on.
    pub window: u64,
    /// Blocks that arrived beyond `ack`.
    pub sack: SackBlocks,
    /// Time at which the segment was sent.
    pub sent_at: RunInstant,
    /// `sent_at` of the segment that this segment acknowledges (RFC 7323 section 4).
    pub echo: Option<RunInstant>,
    /// The receiver echoes a congestion mark (RFC 3168: ECE).
    pub ece: bool,
    /// The sender has reduced its window (RFC 3168: CWR).
    pub cwr: bool,
    /// Queues may mark the segment instead of dropping it (ECT).
    pub ect: bool,
    /// A queue has marked the segment (CE). Set by the network.
    pub ce: bool,
    /// A circuit from the receiver to the sender is up or will be up soon (Etalon's mark for
    /// reTCP). Set by the network.
    pub circuit: bool,
}

impl Segment {
    /// Position after the segment's last byte, or after the FIN.
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
