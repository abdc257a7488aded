//! Captures of simulated packets, for Wireshark and similar programs.
//!
//! A [`Capture`] is a pcapng file of one section. It has an interface for each link, and a block
//! for each packet that crossed the link, with its time to the nanosecond. Only the headers of a
//! packet are captured ([`PacketHead`]), because a simulation has no payload bytes. A capture
//! states both the length of a packet and the length of its captured part.
//!
//! Source: the PCAP Next Generation Capture File Format (draft-ietf-opsawg-pcapng), sections 3
//! (blocks, options) and 4.1 to 4.3 (section header, interface description, enhanced packet).
//! Integers are little-endian on every machine, so a run gives the same bytes on all machines.
//! Packets begin with their IP header (LINKTYPE_RAW = 101, draft-ietf-opsawg-pcaplinktype):
//! simulated packets have no Ethernet framing.
//!
//! Times count from the start of the simulation, which readers of captures show as the first of
//! January 1970.
//!
//! Leaves out: reading, several sections, statistics, name resolution. Read [`Capture`] and
//! [`PacketHead`] first.

mod head;

pub use head::{
    Ecn, HEADERS_BYTES_MAX, HeadError, PacketHead, PacketKind, SynOptions, TcpHead, host_address,
};

use anabranch_units::{BitRate, Instant};
use std::io::{self, Write};

/// Maximum length of a name or comment in bytes: the largest multiple of four that fits in the
/// 16-bit length of an option.
pub const TEXT_BYTES_MAX: usize = 65_532;

const LINKTYPE_RAW: u16 = 101;
const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE_DESCRIPTION: u32 = 1;
const ENHANCED_PACKET: u32 = 6;
const BYTE_ORDER_MAGIC: u32 = 0x1a2b_3c4d;

// Options: sections 3.5, 4.1 and 4.2.
const OPT_END: u16 = 0;
const OPT_COMMENT: u16 = 1;
const SHB_USERAPPL: u16 = 4;
const IF_NAME: u16 = 2;
const IF_SPEED: u16 = 8;
const IF_TSRESOL: u16 = 9;

/// An interface of a [`Capture`].
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Interface(u32);

/// Reason why a block was not written.
#[derive(Debug)]
#[non_exhaustive]
pub enum CaptureError {
    /// The writer failed; a part of the block may have been written.
    Io(io::Error),
    /// No headers can describe the packet. Nothing was written.
    Head(HeadError),
    /// A name or a comment is longer than [`TEXT_BYTES_MAX`]. Nothing was written.
    TextTooLong {
        /// Length of the text in bytes.
        got_bytes: usize,
    },
}

impl std::fmt::Display for CaptureError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Io(error) => write!(f, "{error}"),
            Self::Head(error) => write!(f, "{error}"),
            Self::TextTooLong { got_bytes } => {
                write!(f, "a name or comment of {got_bytes} B: must be at most {TEXT_BYTES_MAX} B")
            }
        }
    }
}
impl std::error::Error for CaptureError {}

impl From<io::Error> for CaptureError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}
impl From<HeadError> for CaptureError {
    fn from(error: HeadError) -> Self {
        Self::Head(error)
    }
}

/// A pcapng capture that is written to `out`.
///
/// Cost: one write per block; wrap files in a `BufWriter`.
///
/// ```
/// use anabranch_record::pcapng::{Capture, Ecn, PacketHead, PacketKind};
/// use anabranch_units::{BitRate, Instant};
/// let mut capture = Capture::new(Vec::new(), "anabranch").unwrap();
/// let link = capture.interface("h0 -> s1", BitRate::gbps(1)).unwrap();
/// let head = PacketHead {
///     src: 0,
///     dst: 1,
///     src_port: 5_000,
///     dst_port: 5_001,
///     size_bytes: 1_500,
///     ecn: Ecn::NotEct,
///     kind: PacketKind::Udp,
/// };
/// capture.packet(link, Instant::from_us(12), &head, None).unwrap();
/// capture.packet(link, Instant::from_us(24), &head, Some("dropped: queue full")).unwrap();
/// assert!(capture.into_inner().len() < 400, "only headers are kept");
/// ```
#[derive(Clone, Debug)]
pub struct Capture<W> {
    out: W,
    interfaces: u32,
    /// Buffer for the current block, reused for every block.
    block: Vec<u8>,
}

impl<W: Write> Capture<W> {
    /// Creates a capture without interfaces, with `program` as the name of the writer.
    ///
    /// Errors: errors of `out`; a name longer than [`TEXT_BYTES_MAX`].
    pub fn new(out: W, program: &str) -> Result<Self, CaptureError> {
        let mut new = Self { out, interfaces: 0, block: Vec::new() };
        new.begin(SECTION_HEADER);
        new.block.extend(BYTE_ORDER_MAGIC.to_le_bytes());
        // Version 1.0; the length of the section is unknown.
        new.block.extend([1, 0, 0, 0]);
        new.block.extend((-1i64).to_le_bytes());
        new.text(SHB_USERAPPL, program)?;
        new.option(OPT_END, &[]);
        new.end()?;
        Ok(new)
    }

    /// Adds an interface, at any time before its first packet.
    ///
    /// Errors: errors of `out`; a name longer than [`TEXT_BYTES_MAX`].
    pub fn interface(&mut self, name: &str, speed: BitRate) -> Result<Interface, CaptureError> {
        self.begin(INTERFACE_DESCRIPTION);
        self.block.extend(LINKTYPE_RAW.to_le_bytes());
        self.block.extend([0, 0]);
        self.block.extend((HEADERS_BYTES_MAX as u32).to_le_bytes());
        self.text(IF_NAME, name)?;
        self.option(IF_SPEED, &speed.as_bps().to_le_bytes());
        self.option(IF_TSRESOL, &[9]);
        self.option(OPT_END, &[]);
        self.end()?;
        let id = Interface(self.interfaces);
        self.interfaces += 1;
        Ok(id)
    }

    /// Adds a packet, with an optional comment, for example the reason why it was dropped.
    ///
    /// Units: `at` is rounded down to a nanosecond.
    /// Errors: errors of `out`; invalid headers; a comment longer than [`TEXT_BYTES_MAX`].
    /// Panics: if the interface is of another capture and does not exist in this one.
    pub fn packet(
        &mut self,
        on: Interface,
        at: Instant,
        head: &PacketHead<'_>,
        comment: Option<&str>,
    ) -> Result<(), CaptureError> {
        assert!(on.0 < self.interfaces, "an interface is used in the capture that gave it");
        let headers = head.headers()?;
        self.begin(ENHANCED_PACKET);
        let ns = at.as_ns();
        let captured = headers.as_slice().len() as u32;
        for word in [on.0, (ns >> 32) as u32, ns as u32, captured, head.size_bytes] {
            self.block.extend(word.to_le_bytes());
        }
        self.block.extend(headers.as_slice());
        if let Some(comment) = comment {
            self.text(OPT_COMMENT, comment)?;
            self.option(OPT_END, &[]);
        }
        self.end()
    }

    /// Returns the writer.
    pub fn into_inner(self) -> W {
        self.out
    }

    /// Begins a block (section 3.1): type and length come first; the length is filled in at the
    /// end.
    fn begin(&mut self, block_type: u32) {
        self.block.clear();
        self.block.extend(block_type.to_le_bytes());
        self.block.extend([0; 4]);
    }

    fn text(&mut self, code: u16, text: &str) -> Result<(), CaptureError> {
        if text.len() > TEXT_BYTES_MAX {
            return Err(CaptureError::TextTooLong { got_bytes: text.len() });
        }
        self.option(code, text.as_bytes());
        Ok(())
    }

    /// Appends an option (section 3.5). The length of all bytes before an option is a multiple of
    /// four, and so is the length of an option.
    fn option(&mut self, code: u16, value: &[u8]) {
        self.block.extend(code.to_le_bytes());
        self.block.extend((value.len() as u16).to_le_bytes());
        self.block.extend(value);
        self.block.resize(self.block.len().next_multiple_of(4), 0);
    }

    fn end(&mut self) -> Result<(), CaptureError> {
        let length = (self.block.len() as u32 + 4).to_le_bytes();
        self.block[4..8].copy_from_slice(&length);
        self.block.extend(length);
        Ok(self.out.write_all(&self.block)?)
    }
}

#[cfg(test)]
mod tests;
