//! Messages between client and servers: datagrams, and control messages on a stream.
//!
//! All integers are big-endian. Each control message is preceded by its length in two bytes
//! ([`Control::encode_framed`]). The layer below encrypts, and adds [`SEAL_BYTES`] to each
//! datagram. Leaves out: the effects of messages (`client`, `server`). Read [`Packet`],
//! [`Feedback`] and [`Control`] first.
//!
//! Source: LTTP section III-B and Figure 2. Differs: a packet names its blocks by a seed (the
//! packet's id), where the paper lists them.

mod control;
mod reader;

use anabranch_endpoint::{Bytes, DecodeError, Message, Payload, WireMessage};
use anabranch_transport::{bbr, tfrc};
use anabranch_units::{BitRate, Duration, Instant};

use crate::layout::BLOCK_BYTES_MAX;
use crate::mode::RateControl;
use crate::receipt::{NONCE_BITS, Receipt};
use reader::Reader;

pub use control::{Control, ObjectDescription, PullAcceptance, Request, reason};

/// Protocol version, sent in each [`Control::Hello`].
pub const VERSION: u8 = 11;
/// Bytes that authentication adds to a datagram: channel id (8), packet number (4), and tag (16).
pub const SEAL_BYTES: u32 = 28;
/// Maximum length of an object's name, in bytes of UTF-8.
pub const NAME_BYTES_MAX: usize = 1_024;
/// Maximum length of an error or refusal text, in bytes of UTF-8.
pub const REASON_BYTES_MAX: usize = 512;
/// Maximum number of generations that a client may keep open.
pub const WINDOW_MAX: u32 = 1_023;
/// Maximum number of generations whose missing packets one feedback counts, from the lowest
/// incomplete one on. In a longer window, later generations are reported once the earlier ones are
/// complete. The longest feedback fits [`crate::MTU_MIN`].
pub const LACKS_MAX: usize = 234;
/// Maximum length of a control message in bytes, without its length field.
pub const CONTROL_BYTES_MAX: usize = 2 * NAME_BYTES_MAX + 64;
/// Maximum length of a short object in bytes. [`Control::Inspect`] may return a short object whole.
pub const SHORT_BYTES_MAX: usize = 32 << 10;
/// Maximum length of a [`Control::Short`] in bytes, without its length field. Only servers send it.
pub const SHORT_MESSAGE_BYTES_MAX: usize = CONTROL_BYTES_MAX + SHORT_BYTES_MAX;
/// The transmitted bits of a file's mode: its permissions.
pub const MODE_BITS: u16 = 0o777;

/// Number of a pull, unique for a client at a server. Of concurrent pulls, older ones have lower
/// numbers.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PullId(pub u16);

/// A block, or a sum of blocks, of one generation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet<P> {
    /// The pull.
    pub pull: PullId,
    /// Sequence number within the pull, from 0.
    pub sequence: u32,
    /// Timing for TFRC's receiver; `None` under any other rate control.
    pub timing: Option<Timing>,
    /// Whether the server saw a queue on its path in the last round trip. Always false with
    /// [`RateControl::Tfrc`].
    pub queued: bool,
    /// [`NONCE_BITS`] random bits; the client's feedback proves with them that the packet arrived.
    pub nonce: u8,
    /// Number of the generation within the pull, from 0.
    pub generation: u32,
    /// Id of the packet within its generation. It determines the summed blocks: see
    /// [`anabranch_codes::lt::Code::neighbours`].
    pub id: u32,
    /// The block, or the sum of blocks.
    pub payload: P,
}

impl<P> Packet<P> {
    /// Length of the longest header in bytes.
    pub const HEADER_BYTES_MAX: u32 = Self::header_bytes(RateControl::Tfrc);

    /// Length of a packet's header in bytes under this rate control.
    pub const fn header_bytes(rate_control: RateControl) -> u32 {
        match rate_control {
            // Kind, pull, number, generation and id. The sending time is known to the server only.
            RateControl::Bbr => 1 + 2 + 3 + 2 + 2,
            RateControl::Tfrc => 1 + 2 + 4 + TIMING_BYTES + 4 + 4,
        }
    }
}

/// Ranges of the numbers within a pull under one rate control.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Numbers {
    /// Number of packets.
    pub packets: u32,
    /// Number of generations.
    pub generations: u32,
    /// Number of packets per generation.
    pub ids: u32,
}

impl Numbers {
    /// Ranges under this rate control.
    pub const fn of(rate_control: RateControl) -> Self {
        match rate_control {
            // Each byte less in the header gains 0.07 % of goodput with packets of 1,500 bytes.
            RateControl::Bbr => Self { packets: 1 << 24, generations: 1 << 16, ids: 1 << 16 },
            RateControl::Tfrc => Self { packets: u32::MAX, generations: u32::MAX, ids: u32::MAX },
        }
    }

    /// Maximum length in bytes of a pull with these blocks and generations. Half of the packet
    /// numbers are reserved for retransmissions.
    pub fn pull_bytes_max(self, block_bytes: u32, blocks_max: u32) -> u64 {
        let blocks = (u64::from(self.generations) * u64::from(blocks_max)).min(u64::from(self.packets) / 2);
        blocks.saturating_mul(block_bytes.into())
    }
}

/// Data of each packet for TFRC's receiver (RFC 5348 section 3.2.1).
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Timing {
    /// Time of sending by the server's clock, in whole nanoseconds.
    pub sent_at: Instant,
    /// The server's estimate of the round-trip time in whole microseconds, if there is one.
    pub rtt: Option<Duration>,
}

/// Feedback of a client on a pull, and its new grant.
#[derive(Clone, Debug, PartialEq)]
pub struct Feedback {
    /// The pull.
    pub pull: PullId,
    /// One more than the highest sequence number received.
    pub next: u32,
    /// Proof of arrival of the last packets; sent only together with a report.
    pub receipt: Receipt,
    /// Report for the rate control, if due.
    pub report: Option<Report>,
    /// Maximum rate in bits of datagrams per second; `None` for no limit. See [`Request::grant`].
    pub grant: Option<BitRate>,
    /// The lowest incomplete generation.
    pub base: u32,
    /// Missing packets of generation `base` and of each following generation; 0 for a complete
    /// generation. At most [`LACKS_MAX`] entries.
    pub lacks: Vec<u16>,
    /// Whether the server's answer ([`Control::Accepted`]) has not arrived. Without the answer the
    /// client cannot deliver any block to its user.
    pub is_unsaid: bool,
}

impl Feedback {
    /// Maximum length of a feedback in bytes.
    pub const BYTES_MAX: u32 = FEEDBACK_BYTES + TFRC_BYTES + 2 * LACKS_MAX as u32;
}

/// Report of a client to the server's rate control.
#[derive(Copy, Clone, Debug, PartialEq)]
pub enum Report {
    /// For [`RateControl::Tfrc`].
    Tfrc(tfrc::Report),
    /// For [`RateControl::Bbr`].
    Arrived(ArrivalReport),
}

/// Counts of a pull's received and lost packets.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct ArrivalReport {
    /// Time since the arrival of the packet with the highest number.
    pub delay: Duration,
    /// Number of packets received.
    pub received: u32,
    /// Number of packets counted as lost.
    pub lost: u32,
    /// Number of runs of consecutive lost packets.
    pub runs: u32,
}

impl ArrivalReport {
    /// Converts the counts of [`bbr::Arrivals`].
    pub(crate) fn new(delay: Duration, counts: bbr::ArrivalCounts) -> Self {
        let count = |of: u64| u32::try_from(of).unwrap_or(u32::MAX);
        Self { delay, received: count(counts.received), lost: count(counts.lost), runs: count(counts.runs) }
    }
}

/// A datagram.
#[derive(Clone, Debug, PartialEq)]
pub enum Datagram<P> {
    /// From a server.
    Packet(Packet<P>),
    /// From a client.
    Feedback(Feedback),
    /// From a server, if [`Feedback::is_unsaid`] requests it: a copy of the server's answer on the
    /// control channel, which a lost TCP segment may delay for many round trips.
    Accepted(PullAcceptance),
}

const TIMED_PACKET: u8 = 1;
const FEEDBACK: u8 = 2;
const PACKET: u8 = 3;
const ACCEPTED: u8 = 4;
/// Flag in a packet's kind: the server sees a queue on its path.
const QUEUED: u8 = 16;
/// Position of the nonce in a packet's kind byte: the highest bits.
const NONCE_SHIFT: u32 = u8::BITS - NONCE_BITS as u32;
const KIND_MASK: u8 = (1 << NONCE_SHIFT) - 1;
/// Length of the sending time and the round-trip time, in bytes.
const TIMING_BYTES: u32 = 8 + 4;
/// Length of a feedback in bytes without its counts of missing packets: kind, pull, next, base,
/// grant, number of counts, and kind of report.
const FEEDBACK_BYTES: u32 = 1 + 2 + 4 + 4 + 8 + 1 + 1;
/// Flag in a report's kind: the server's answer has not arrived.
const UNSAID: u8 = 16;
/// Length of an acceptance in bytes: kind, pull, the lengths of the object and of the pull, block
/// length, and blocks per generation.
const ACCEPTED_BYTES: u32 = 1 + 2 + 8 + 8 + 4 + 4;
/// Length of a receipt in bytes: the bitmap of arrived packets, and the digest of their nonces.
const RECEIPT_BYTES: u32 = 4 + 2;
/// Length of a delay in bytes, enough for 18 minutes.
const DELAY_BYTES: u32 = 5;
/// Length of a TFRC report in bytes: time, delay, rate, loss event rate, receipt.
const TFRC_BYTES: u32 = 8 + DELAY_BYTES + 8 + 4 + RECEIPT_BYTES;
/// Length of an arrival report in bytes: delay, three counts of packets, receipt.
const ARRIVED_BYTES: u32 = DELAY_BYTES + 3 + 3 + 3 + RECEIPT_BYTES;

impl<P: Payload> Message for Packet<P> {
    fn wire_len(&self) -> u32 {
        let rate_control = if self.timing.is_some() { RateControl::Tfrc } else { RateControl::Bbr };
        Self::header_bytes(rate_control) + self.payload.len() as u32
    }
}

impl Message for Feedback {
    fn wire_len(&self) -> u32 {
        let report = match self.report {
            None => 0,
            Some(Report::Tfrc(_)) => TFRC_BYTES,
            Some(Report::Arrived(_)) => ARRIVED_BYTES,
        };
        FEEDBACK_BYTES + report + 2 * self.lacks.len() as u32
    }
}

impl<P: Payload> Message for Datagram<P> {
    fn wire_len(&self) -> u32 {
        match self {
            Self::Packet(packet) => packet.wire_len(),
            Self::Feedback(feedback) => feedback.wire_len(),
            Self::Accepted(_) => ACCEPTED_BYTES,
        }
    }
}

impl WireMessage for Datagram<Bytes> {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Packet(packet) => {
                let kind = match (packet.timing, packet.queued) {
                    (Some(_), _) => TIMED_PACKET,
                    (None, false) => PACKET,
                    (None, true) => PACKET | QUEUED,
                };
                out.push(kind | packet.nonce << NONCE_SHIFT);
                out.extend(packet.pull.0.to_be_bytes());
                if let Some(timing) = packet.timing {
                    out.extend(packet.sequence.to_be_bytes());
                    out.extend(timing.sent_at.as_ns().to_be_bytes());
                    // 0 encodes an unknown round-trip time; a known one is at least 1 us.
                    let rtt = timing.rtt.map_or(0, |rtt| rtt.as_us().clamp(1, u32::MAX.into()) as u32);
                    out.extend(rtt.to_be_bytes());
                    out.extend(packet.generation.to_be_bytes());
                    out.extend(packet.id.to_be_bytes());
                } else {
                    let most = Numbers::of(RateControl::Bbr);
                    debug_assert!(
                        packet.sequence < most.packets && packet.id < most.ids,
                        "numbers are used up"
                    );
                    debug_assert!(packet.generation < most.generations, "a pull has no more");
                    out.extend(&packet.sequence.to_be_bytes()[1..]);
                    out.extend((packet.generation as u16).to_be_bytes());
                    out.extend((packet.id as u16).to_be_bytes());
                }
                out.extend_from_slice(&packet.payload);
            }
            Self::Feedback(feedback) => {
                out.push(FEEDBACK);
                out.extend(feedback.pull.0.to_be_bytes());
                out.extend(feedback.next.to_be_bytes());
                out.extend(feedback.base.to_be_bytes());
                out.extend(feedback.grant.map_or(0, |grant| grant.as_bps().max(1)).to_be_bytes());
                let unsaid = if feedback.is_unsaid { UNSAID } else { 0 };
                match feedback.report {
                    None => out.push(unsaid),
                    Some(Report::Tfrc(report)) => {
                        out.push(1 | unsaid);
                        out.extend(report.sent_at.as_ns().to_be_bytes());
                        put_low(out, 5, report.delay.as_ns());
                        out.extend(report.received_bytes_per_s.to_bits().to_be_bytes());
                        out.extend((report.loss_rate as f32).to_bits().to_be_bytes());
                    }
                    Some(Report::Arrived(arrived)) => {
                        out.push(2 | unsaid);
                        put_low(out, 5, arrived.delay.as_ns());
                        for count in [arrived.received, arrived.lost, arrived.runs] {
                            put_low(out, 3, count.into());
                        }
                    }
                }
                if feedback.report.is_some() {
                    out.extend(feedback.receipt.came.to_be_bytes());
                    out.extend(feedback.receipt.digest.to_be_bytes());
                }
                debug_assert!(feedback.lacks.len() <= LACKS_MAX, "a window's generations");
                out.push(feedback.lacks.len() as u8);
                feedback.lacks.iter().for_each(|lacks| out.extend(lacks.to_be_bytes()));
            }
            Self::Accepted(accepted) => {
                out.push(ACCEPTED);
                accepted.encode(out);
            }
        }
    }

    fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes);
        let message = match reader.u8()? {
            kind if kind & KIND_MASK == TIMED_PACKET => Self::Packet(Packet {
                pull: PullId(reader.u16()?),
                sequence: reader.u32()?,
                timing: Some(Timing {
                    sent_at: reader.instant()?,
                    rtt: Some(reader.u32()?).filter(|us| *us > 0).map(|us| Duration::from_us(us.into())),
                }),
                queued: false,
                nonce: kind >> NONCE_SHIFT,
                generation: reader.u32()?,
                id: reader.u32()?,
                payload: block(&mut reader)?,
            }),
            kind if kind & KIND_MASK & !QUEUED == PACKET => Self::Packet(Packet {
                pull: PullId(reader.u16()?),
                sequence: u32::from(reader.u8()?) << 16 | u32::from(reader.u16()?),
                timing: None,
                queued: kind & QUEUED > 0,
                nonce: kind >> NONCE_SHIFT,
                generation: reader.u16()?.into(),
                id: reader.u16()?.into(),
                payload: block(&mut reader)?,
            }),
            FEEDBACK => {
                let (pull, next) = (PullId(reader.u16()?), reader.u32()?);
                let base = reader.u32()?;
                let grant = Some(reader.u64()?).filter(|bps| *bps > 0).map(BitRate::bps);
                let kind = reader.u8()?;
                let report = match kind & !UNSAID {
                    0 => None,
                    1 => Some(Report::Tfrc(tfrc::Report {
                        sent_at: reader.instant()?,
                        delay: Duration::from_ns(reader.low::<5>()?),
                        received_bytes_per_s: number(f64::from_bits(reader.u64()?), f64::MAX)?,
                        loss_rate: number(f32::from_bits(reader.u32()?).into(), 1.0)?,
                    })),
                    2 => Some(Report::Arrived(ArrivalReport {
                        delay: Duration::from_ns(reader.low::<5>()?),
                        received: reader.low::<3>()? as u32,
                        lost: reader.low::<3>()? as u32,
                        runs: reader.low::<3>()? as u32,
                    })),
                    _ => return Err(DecodeError::UnknownKind(kind)),
                };
                let receipt = match report {
                    Some(_) => Receipt { came: reader.u32()?, digest: reader.u16()? },
                    None => Receipt::default(),
                };
                let count = reader.u8()?;
                if usize::from(count) > LACKS_MAX {
                    return Err(DecodeError::TooLong { limit: LACKS_MAX, got: count.into() });
                }
                let lacks = (0..count).map(|_| reader.u16()).collect::<Result<_, _>>()?;
                let is_unsaid = kind & UNSAID > 0;
                Self::Feedback(Feedback { pull, next, receipt, report, grant, base, lacks, is_unsaid })
            }
            ACCEPTED => Self::Accepted(PullAcceptance::decode(&mut reader)?),
            kind => return Err(DecodeError::UnknownKind(kind)),
        };
        reader.end()?;
        Ok(message)
    }
}

/// Writes the low `bytes` bytes, at most eight, of `number`, or the maximum if it does not fit.
fn put_low(out: &mut Vec<u8>, bytes: usize, number: u64) {
    let most = u64::MAX >> (8 * (8 - bytes));
    out.extend_from_slice(&number.min(most).to_be_bytes()[8 - bytes..]);
}

/// Checks that a number is in 0 to `most`.
fn number(number: f64, most: f64) -> Result<f64, DecodeError> {
    if (0.0..=most).contains(&number) && !(number == 0.0 && number.is_sign_negative()) {
        Ok(number)
    } else {
        Err(DecodeError::TooLong { limit: most as usize, got: number as usize })
    }
}

/// Reads the remaining bytes of a packet as its payload.
fn block(reader: &mut Reader<'_>) -> Result<Bytes, DecodeError> {
    let (payload, limit) = (reader.rest(), BLOCK_BYTES_MAX as usize);
    if payload.len() > limit {
        return Err(DecodeError::TooLong { limit, got: payload.len() });
    }
    Ok(Bytes::copy_from_slice(payload))
}

/// Fuzz target: decodes bytes from a peer as a datagram and as a control message, and checks that
/// encoding reproduces them. Returns true if either decodes.
#[doc(hidden)]
pub fn exercise(bytes: &[u8]) -> bool {
    let datagram = Datagram::decode(bytes).map(|datagram| {
        let mut again = Vec::new();
        datagram.encode(&mut again);
        assert_eq!((again.as_slice(), again.len()), (bytes, datagram.wire_len() as usize));
    });
    let control = Control::decode_framed(bytes);
    if let Ok(Some((control, length))) = &control {
        let mut again = Vec::new();
        control.encode_framed(&mut again);
        assert_eq!(again, bytes[..*length], "a message has one encoding");
    }
    datagram.is_ok() || matches!(control, Ok(Some(_)))
}

#[cfg(test)]
mod tests;
