//! Datagrams between the layers of two hosts, and their wire format.
//!
//! Format, all numbers big-endian: one byte with the version, 1, in the upper half and the kind in
//! the lower half (0 plain, 1 source, 2 parity, 3 bare, 4 probe); one byte with the count of
//! echoes; the datagram's number, 32 bits; its send time, 48 bits of microseconds of its sender's
//! clock; the flow, 32 bits. A probe's flow is 1 if its sender hears nothing, which asks for an
//! answer at once, and else 0.
//!
//! A source continues with its epoch, 48 bits of microseconds, and its number, 32 bits. A parity
//! continues with its epoch, its unit's first number, and one byte each for the unit's packets and
//! the parity's index. Then follow the echoes: each a datagram's number, one bit for a mark, and 31
//! bits of microseconds since its arrival. The packet or parity takes the remaining bytes. Times
//! are rounded to microseconds. Leaves out: encryption, which also limits a datagram's length. Read
//! [`Datagram`] first.

use anabranch_endpoint::{Bytes, DecodeError, Message, Payload, WireMessage};
use anabranch_units::{Duration, Instant};

/// A flow in both directions, identified by the host at its other end and its number.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FlowId {
    /// Number that the user gives to the host at the other end.
    pub peer: u32,
    /// Number of the flow, the same at both ends.
    pub flow: u32,
}

/// One datagram of the layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Datagram<P> {
    /// Number among the numbered datagrams from one host to another. The numbers start at 0 and
    /// wrap around. 0 in datagrams without a number.
    pub number: u32,
    /// Send time by the sender's clock.
    pub sent_at: Instant,
    /// Number of the flow, the same in both directions of a connection.
    pub flow: u32,
    /// Content of the datagram.
    pub body: Body<P>,
    /// Acknowledgements of datagrams received since the last datagram in the reverse direction, 32
    /// at most.
    pub echoes: Vec<Echo>,
}

/// Maximum number of echoes in a datagram.
pub const ECHOES_MAX: usize = 32;
/// Flow number in probes of a host that receives nothing. The other host answers each such probe at
/// once and separately.
pub const DARK: u32 = 1;

/// Content of a datagram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body<P> {
    /// No content besides echoes.
    Bare,
    /// No content, but an echo is requested: a probe of a path.
    Probe,
    /// A packet to deliver on arrival.
    Plain(P),
    /// A source packet, to deliver in order.
    Source {
        /// Start of the sender's state of the flow, by the sender's clock. Packets are numbered
        /// from this start.
        epoch: Instant,
        /// Number of the packet among the flow's source packets, from 0.
        number: u32,
        /// The packet.
        packet: P,
    },
    /// A parity of a unit.
    Parity {
        /// Start of the sender's state of the flow, as in [`Body::Source`].
        epoch: Instant,
        /// Number of the unit's first packet.
        first: u32,
        /// Number of the unit's packets.
        packets: u8,
        /// Index among the unit's parities, from 0.
        index: u8,
        /// The parity.
        parity: P,
    },
}

/// Acknowledgement of one datagram.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Echo {
    /// Number of the datagram.
    pub number: u32,
    /// Time between the datagram's arrival and the sending of the echo.
    pub ago: Duration,
    /// True if the datagram arrived with a congestion mark (ECN).
    pub is_marked: bool,
}

const VERSION: u8 = 1;
const PLAIN: u8 = 0;
const SOURCE: u8 = 1;
const PARITY: u8 = 2;
const BARE: u8 = 3;
const PROBE: u8 = 4;
/// Bytes of the kind, the count of echoes, the number, the send time and the flow.
const HEAD_BYTES: usize = 1 + 1 + 4 + 6 + 4;
const SOURCE_BYTES: usize = 6 + 4;
const PARITY_BYTES: usize = 6 + 4 + 1 + 1;
/// Bytes of an echo.
pub const ECHO_BYTES: usize = 4 + 4;
/// Bytes before a source packet, without echoes.
pub const SOURCE_HEAD_BYTES: usize = HEAD_BYTES + SOURCE_BYTES;
/// Maximum bytes of a datagram besides the longest packet of a unit, without echoes: a parity's
/// header, and the packet's length that is coded with it.
pub const HEAD_BYTES_MAX: usize = HEAD_BYTES + PARITY_BYTES + 2;
/// Maximum of the 48-bit field in microseconds, 8.9 years. Later times are clamped to it.
const US_MAX: u64 = (1 << 48) - 1;
/// Flag of an echo for a marked datagram.
const MARKED: u32 = 1 << 31;

impl<P> Datagram<P> {
    /// Bytes besides the packet or parity.
    pub const fn header_bytes(&self) -> usize {
        let body = match self.body {
            Body::Bare | Body::Probe | Body::Plain(_) => 0,
            Body::Source { .. } => SOURCE_BYTES,
            Body::Parity { .. } => PARITY_BYTES,
        };
        HEAD_BYTES + body + self.echoes.len() * ECHO_BYTES
    }
    /// Converts the packet or parity, and keeps the other fields.
    pub fn map<Q>(self, change: impl FnOnce(P) -> Q) -> Datagram<Q> {
        let Self { number, sent_at, flow, body, echoes } = self;
        let body = match body {
            Body::Bare => Body::Bare,
            Body::Probe => Body::Probe,
            Body::Plain(packet) => Body::Plain(change(packet)),
            Body::Source { epoch, number, packet } => Body::Source { epoch, number, packet: change(packet) },
            Body::Parity { epoch, first, packets, index, parity } => {
                Body::Parity { epoch, first, packets, index, parity: change(parity) }
            }
        };
        Datagram { number, sent_at, flow, body, echoes }
    }
    pub(crate) const fn carried(&self) -> Option<&P> {
        match &self.body {
            Body::Bare | Body::Probe => None,
            Body::Plain(packet) | Body::Source { packet, .. } | Body::Parity { parity: packet, .. } => {
                Some(packet)
            }
        }
    }
}

impl<P: Payload> Message for Datagram<P> {
    fn wire_len(&self) -> u32 {
        (self.header_bytes() + self.carried().map_or(0, Payload::len)) as u32
    }
}

fn put_instant(out: &mut Vec<u8>, at: Instant) {
    let us = (at.as_ns() / 1_000).min(US_MAX);
    out.extend(&us.to_be_bytes()[2..]);
}

impl WireMessage for Datagram<Bytes> {
    fn encode(&self, out: &mut Vec<u8>) {
        let kind = match self.body {
            Body::Bare => BARE,
            Body::Probe => PROBE,
            Body::Plain(_) => PLAIN,
            Body::Source { .. } => SOURCE,
            Body::Parity { .. } => PARITY,
        };
        debug_assert!(self.echoes.len() <= ECHOES_MAX, "echoes are bounded where they are gathered");
        out.extend([VERSION << 4 | kind, self.echoes.len() as u8]);
        out.extend(self.number.to_be_bytes());
        put_instant(out, self.sent_at);
        out.extend(self.flow.to_be_bytes());
        match &self.body {
            Body::Bare | Body::Probe | Body::Plain(_) => {}
            Body::Source { epoch, number, .. } => {
                put_instant(out, *epoch);
                out.extend(number.to_be_bytes());
            }
            Body::Parity { epoch, first, packets, index, .. } => {
                put_instant(out, *epoch);
                out.extend(first.to_be_bytes());
                out.extend([*packets, *index]);
            }
        }
        for Echo { number, ago, is_marked } in &self.echoes {
            out.extend(number.to_be_bytes());
            let us = ago.as_us().min(u64::from(MARKED - 1)) as u32;
            out.extend((if *is_marked { us | MARKED } else { us }).to_be_bytes());
        }
        out.extend_from_slice(self.carried().map_or(&[][..], |packet| packet));
    }

    fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut fields = Fields { left: bytes, all: bytes.len() };
        let [first, echoes] = fields.array()?;
        if first >> 4 != VERSION {
            return Err(DecodeError::UnknownVersion(first >> 4));
        }
        let echoes = usize::from(echoes);
        if echoes > ECHOES_MAX {
            return Err(DecodeError::TooLong { limit: ECHOES_MAX, got: echoes });
        }
        let (number, sent_at, flow) = (fields.u32()?, fields.instant()?, fields.u32()?);
        // The content follows the echoes.
        let mut body = match first & 0xf {
            PLAIN => Body::Plain(Bytes::new()),
            BARE => Body::Bare,
            PROBE => Body::Probe,
            SOURCE => Body::Source { epoch: fields.instant()?, number: fields.u32()?, packet: Bytes::new() },
            PARITY => {
                let (epoch, first) = (fields.instant()?, fields.u32()?);
                let [packets, index] = fields.array()?;
                Body::Parity { epoch, first, packets, index, parity: Bytes::new() }
            }
            other => return Err(DecodeError::UnknownKind(other)),
        };
        let mut told = Vec::with_capacity(echoes);
        for _ in 0..echoes {
            let (number, word) = (fields.u32()?, fields.u32()?);
            let ago = Duration::from_us((word & !MARKED).into());
            told.push(Echo { number, ago, is_marked: word & MARKED != 0 });
        }
        match &mut body {
            Body::Bare | Body::Probe if !fields.left.is_empty() => {
                return Err(DecodeError::Trailing { extra: fields.left.len() });
            }
            Body::Bare | Body::Probe => {}
            Body::Plain(packet) | Body::Source { packet, .. } | Body::Parity { parity: packet, .. } => {
                *packet = Bytes::copy_from_slice(fields.left);
            }
        }
        Ok(Self { number, sent_at, flow, body, echoes: told })
    }
}

/// Reads fields in sequence.
struct Fields<'a> {
    left: &'a [u8],
    all: usize,
}

impl Fields<'_> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let short = DecodeError::TooShort { need: self.all - self.left.len() + N, got: self.all };
        let (head, rest) = self.left.split_first_chunk().ok_or(short)?;
        self.left = rest;
        Ok(*head)
    }
    fn u32(&mut self) -> Result<u32, DecodeError> {
        self.array().map(u32::from_be_bytes)
    }
    fn instant(&mut self) -> Result<Instant, DecodeError> {
        let [a, b, c, d, e, f] = self.array()?;
        Ok(Instant::from_us(u64::from_be_bytes([0, 0, a, b, c, d, e, f])))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn instants() -> impl Strategy<Value = Instant> {
        (0..=US_MAX).prop_map(Instant::from_us)
    }
    fn echoes() -> impl Strategy<Value = Vec<Echo>> {
        let echo = (any::<u32>(), 0..MARKED, any::<bool>()).prop_map(|(number, us, is_marked)| {
            let ago = Duration::from_us(us.into());
            Echo { number, ago, is_marked }
        });
        prop::collection::vec(echo, 0..=ECHOES_MAX)
    }
    fn bodies() -> impl Strategy<Value = Body<Bytes>> {
        let bytes = || prop::collection::vec(any::<u8>(), 0..100).prop_map(Bytes::from);
        prop_oneof![
            Just(Body::Bare),
            Just(Body::Probe),
            bytes().prop_map(Body::Plain),
            (instants(), any::<u32>(), bytes()).prop_map(|(epoch, number, packet)| Body::Source {
                epoch,
                number,
                packet
            }),
            (instants(), any::<u32>(), any::<u8>(), any::<u8>(), bytes()).prop_map(
                |(epoch, first, packets, index, parity)| Body::Parity {
                    epoch,
                    first,
                    packets,
                    index,
                    parity
                }
            ),
        ]
    }

    proptest! {
        #[test]
        fn datagrams_decode_as_encoded(
            number: u32, flow: u32, sent_at in instants(), body in bodies(), echoes in echoes(),
        ) {
            let datagram = Datagram { number, sent_at, flow, body, echoes };
            let mut bytes = Vec::new();
            datagram.encode(&mut bytes);
            prop_assert_eq!(bytes.len(), datagram.wire_len() as usize);
            prop_assert_eq!(Datagram::decode(&bytes), Ok(datagram));
        }

        #[test]
        fn decoder_never_panics_on_random_bytes(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(datagram) = Datagram::decode(&bytes) {
                let mut again = Vec::new();
                datagram.encode(&mut again);
                prop_assert_eq!(again, bytes);
            }
        }
    }
}
