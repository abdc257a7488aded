//! The headers that a simulated packet would have: IPv4, then TCP or UDP.
//!
//! Source: RFC 791 section 3.1 (IPv4), RFC 768 (UDP), RFC 9293 sections 3.1 and 3.2 (TCP, its
//! options), RFC 7323 sections 2.2 and 3.2 and appendix A (window scale, timestamps, their layout),
//! RFC 2018 sections 2 and 3 (SACK), RFC 3168 sections 5 and 6.1 (ECN), RFC 1071 (checksum), RFC
//! 6864 section 4 (no identification without fragments).
//!
//! The simulation determines lengths: the IP packet is as long as the simulated packet, and all of
//! it except the payload is headers. TCP options fill the bytes that the fixed headers leave. If
//! not all options fit,
//!
//! - options of a SYN are included in the order maximum segment size, SACK permitted, window scale;
//! - timestamps are left out if they would leave no room for the first SACK block, which carries
//!   more information;
//! - SACK blocks that do not fit are left out, starting with the last.
//!
//! Remaining bytes are filled with zeros (end of option list). A 40-byte ACK has no option.
//!
//! Checksums are computed for a payload of zeros. Leaves out: fragments, IPv6, Ethernet. Read
//! [`PacketHead`] first.

use std::net::Ipv4Addr;

/// Maximum length of the headers: 20 bytes of IP, 60 of TCP.
pub const HEADERS_BYTES_MAX: usize = 80;

const IP_BYTES: u32 = 20;
const UDP_BYTES: u32 = 8;
const TCP_BYTES: u32 = 20;
const PROTOCOL_TCP: u8 = 6;
const PROTOCOL_UDP: u8 = 17;
const TIME_TO_LIVE: u8 = 64;

// Option kinds: RFC 9293 section 3.2, RFC 7323, RFC 2018.
const NO_OPERATION: u8 = 1;
const MAXIMUM_SEGMENT_SIZE: u8 = 2;
const WINDOW_SCALE: u8 = 3;
const SACK_PERMITTED: u8 = 4;
const SACK: u8 = 5;
const TIMESTAMPS: u8 = 8;
const TIMESTAMPS_BYTES: usize = 12;

/// The properties of a simulated packet that appear in its headers.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct PacketHead<'a> {
    /// Source host; see [`host_address`].
    pub src: u16,
    /// Destination host; see [`host_address`].
    pub dst: u16,
    /// Port of the sender.
    pub src_port: u16,
    /// Port of the receiver.
    pub dst_port: u16,
    /// Length of the IP packet in bytes, headers included.
    pub size_bytes: u32,
    /// ECN field: whether queues may mark the packet, or have marked it.
    pub ecn: Ecn,
    /// The content of the IP packet.
    pub kind: PacketKind<'a>,
}

/// The ECN field (RFC 3168 section 5).
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum Ecn {
    /// Queues drop the packet instead of marking it.
    #[default]
    NotEct = 0,
    /// The packet may be marked.
    Ect0 = 2,
    /// The packet may be marked; the other code point.
    Ect1 = 1,
    /// Congestion was experienced.
    Ce = 3,
}

/// The content of an IP packet.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum PacketKind<'a> {
    /// A TCP segment.
    Tcp(TcpHead<'a>),
    /// A UDP datagram.
    Udp,
}

/// A TCP segment without its payload.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct TcpHead<'a> {
    /// Sequence number of the segment's first byte, modulo 2^32.
    pub seq: u32,
    /// The next expected sequence number; `None` leaves the ACK flag unset.
    pub ack: Option<u32>,
    /// Number of data bytes. The remaining bytes of the packet are headers.
    pub payload_bytes: u32,
    /// Options of a SYN; `None` for other segments.
    pub syn: Option<SynOptions>,
    /// True if the stream ends after this segment's data.
    pub fin: bool,
    /// True if the segment resets the connection.
    pub rst: bool,
    /// True if congestion was experienced; on a SYN, true if ECN is supported (RFC 3168 section
    /// 6.1).
    pub ece: bool,
    /// True if the sender has reduced its window.
    pub cwr: bool,
    /// Window field on the wire, already shifted by the window scale of the connection.
    pub window: u16,
    /// SACK blocks, the most recent first. A block is its first sequence number, and the number
    /// after its last one. At most four blocks fit, and three together with timestamps (RFC 2018
    /// section 3).
    pub sack: &'a [(u32, u32)],
    /// Timestamp value and echo reply.
    pub timestamps: Option<(u32, u32)>,
}

/// Options that only SYN segments have.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct SynOptions {
    /// Maximum segment size.
    pub mss_bytes: Option<u16>,
    /// True if selective acknowledgements are permitted.
    pub sack_permitted: bool,
    /// Window scale in bits; at most 14 (RFC 7323 section 2.3).
    pub window_shift: Option<u8>,
}

/// Reason why a packet has no valid headers.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HeadError {
    /// The packet is longer than the maximum of an IP packet.
    TooLong {
        /// Length of the simulated packet.
        got_bytes: u32,
    },
    /// The packet is shorter than UDP's headers.
    TooShort {
        /// Length of the simulated packet.
        got_bytes: u32,
    },
    /// The length of the packet without TCP's payload is not a valid length of IP and TCP headers.
    HeaderLength {
        /// Length of the packet without its payload; negative if the payload is longer.
        got_bytes: i64,
    },
    /// The window scale is above 14.
    WindowShift {
        /// The window scale.
        got: u8,
    },
}

impl std::fmt::Display for HeadError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::TooLong { got_bytes } => {
                write!(f, "an IP packet of {got_bytes} B: must be at most 65535 B")
            }
            Self::TooShort { got_bytes } => {
                write!(f, "a UDP packet of {got_bytes} B: must be at least {} B", IP_BYTES + UDP_BYTES)
            }
            Self::HeaderLength { got_bytes } => {
                write!(f, "IP and TCP headers of {got_bytes} B: must be 40 B to 80 B, in steps of 4 B")
            }
            Self::WindowShift { got } => write!(f, "a window scale of {got} bits: must be at most 14 bits"),
        }
    }
}
impl std::error::Error for HeadError {}

/// The address of a host by its index: 10.0.0.1 for host 0, 10.1.0.0 for the last host.
pub fn host_address(host: u16) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 0, 0, 1)) + u32::from(host))
}

/// The bytes from the first of the IP header to the last of the TCP or UDP header.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct Headers {
    bytes: [u8; HEADERS_BYTES_MAX],
    len: usize,
}

impl Headers {
    const EMPTY: Self = Self { bytes: [0; HEADERS_BYTES_MAX], len: 0 };

    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
    fn extend(&mut self, bytes: &[u8]) {
        self.bytes[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }
    fn set(&mut self, at: usize, value: u16) {
        self.bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
    }
}

impl PacketHead<'_> {
    /// Encodes the headers.
    ///
    /// Errors: see [`HeadError`].
    pub(super) fn headers(&self) -> Result<Headers, HeadError> {
        let size =
            u16::try_from(self.size_bytes).map_err(|_| HeadError::TooLong { got_bytes: self.size_bytes })?;
        let protocol = match self.kind {
            PacketKind::Tcp(_) => PROTOCOL_TCP,
            PacketKind::Udp => PROTOCOL_UDP,
        };
        let transport_at = IP_BYTES as usize;
        let mut headers = Headers::EMPTY;
        // Version 4 and a header of five words; then a DSCP of 0, and ECN.
        headers.extend(&[0x45, self.ecn as u8]);
        headers.extend(&size.to_be_bytes());
        // An identification of zero, and the flag "don't fragment".
        headers.extend(&[0, 0, 0x40, 0, TIME_TO_LIVE, protocol, 0, 0]);
        headers.extend(&host_address(self.src).octets());
        headers.extend(&host_address(self.dst).octets());
        let ip_checksum = !fold(sum(headers.as_slice()));
        headers.set(10, ip_checksum);

        headers.extend(&self.src_port.to_be_bytes());
        headers.extend(&self.dst_port.to_be_bytes());
        let checksum_at = match &self.kind {
            PacketKind::Tcp(tcp) => {
                self.extend_tcp(&mut headers, tcp)?;
                transport_at + 16
            }
            PacketKind::Udp => {
                if self.size_bytes < IP_BYTES + UDP_BYTES {
                    return Err(HeadError::TooShort { got_bytes: self.size_bytes });
                }
                headers.extend(&(size - IP_BYTES as u16).to_be_bytes());
                headers.extend(&[0, 0]);
                transport_at + 6
            }
        };
        // The pseudo header: addresses, protocol and length.
        let pseudo = sum(&headers.bytes[12..20]) + u32::from(protocol) + (self.size_bytes - IP_BYTES);
        let checksum = !fold(pseudo + sum(&headers.as_slice()[transport_at..]));
        // In UDP, a checksum of zero means that there is none.
        let checksum = if checksum == 0 && protocol == PROTOCOL_UDP { u16::MAX } else { checksum };
        headers.set(checksum_at, checksum);
        Ok(headers)
    }

    /// Appends TCP's header after the ports.
    fn extend_tcp(&self, headers: &mut Headers, tcp: &TcpHead<'_>) -> Result<(), HeadError> {
        let got_bytes = i64::from(self.size_bytes) - i64::from(tcp.payload_bytes);
        let fits = (i64::from(IP_BYTES + TCP_BYTES)..=HEADERS_BYTES_MAX as i64).contains(&got_bytes);
        if !fits || got_bytes % 4 != 0 {
            return Err(HeadError::HeaderLength { got_bytes });
        }
        let end = got_bytes as usize;
        headers.extend(&tcp.seq.to_be_bytes());
        headers.extend(&tcp.ack.unwrap_or(0).to_be_bytes());
        let words = (end - IP_BYTES as usize) / 4;
        let flags = [tcp.fin, tcp.syn.is_some(), tcp.rst, false, tcp.ack.is_some(), false, tcp.ece, tcp.cwr];
        let flags = flags.iter().rev().fold(0, |bits, flag| bits << 1 | u8::from(*flag));
        headers.extend(&[(words as u8) << 4, flags]);
        headers.extend(&tcp.window.to_be_bytes());
        headers.extend(&[0; 4]);

        if let Some(syn) = tcp.syn {
            if let Some(got) = syn.window_shift.filter(|shift| *shift > 14) {
                return Err(HeadError::WindowShift { got });
            }
            let mut add = |option: [u8; 4]| {
                if end - headers.len >= option.len() {
                    headers.extend(&option);
                }
            };
            if let Some(mss_bytes) = syn.mss_bytes {
                let [high, low] = mss_bytes.to_be_bytes();
                add([MAXIMUM_SEGMENT_SIZE, 4, high, low]);
            }
            if syn.sack_permitted {
                add([NO_OPERATION, NO_OPERATION, SACK_PERMITTED, 2]);
            }
            if let Some(shift) = syn.window_shift {
                add([NO_OPERATION, WINDOW_SCALE, 3, shift]);
            }
        }
        // A SACK option takes four bytes with its padding, plus eight per block.
        let blocks_in = |room: usize| room.saturating_sub(4) / 8;
        let room = end - headers.len;
        let beside = room.checked_sub(TIMESTAMPS_BYTES);
        let timestamps =
            tcp.timestamps.filter(|_| beside.is_some_and(|left| tcp.sack.is_empty() || blocks_in(left) > 0));
        if let Some((value, echo)) = timestamps {
            headers.extend(&[NO_OPERATION, NO_OPERATION, TIMESTAMPS, 10]);
            headers.extend(&value.to_be_bytes());
            headers.extend(&echo.to_be_bytes());
        }
        let blocks = tcp.sack.len().min(blocks_in(end - headers.len));
        if blocks > 0 {
            headers.extend(&[NO_OPERATION, NO_OPERATION, SACK, 2 + 8 * blocks as u8]);
            for (start, behind) in &tcp.sack[..blocks] {
                headers.extend(&start.to_be_bytes());
                headers.extend(&behind.to_be_bytes());
            }
        }
        headers.len = end;
        Ok(())
    }
}

/// The sum of the words by RFC 1071, before the carries are added.
fn sum(bytes: &[u8]) -> u32 {
    bytes.chunks(2).map(|word| u32::from(word[0]) << 8 | word.get(1).map_or(0, |low| u32::from(*low))).sum()
}

fn fold(sum: u32) -> u16 {
    let once = (sum & 0xffff) + (sum >> 16);
    ((once & 0xffff) + (once >> 16)) as u16
}
