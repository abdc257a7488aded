//! The messages between client and servers: packets and feedback as datagrams, control messages on a stream.
//!
//! All integers are big-endian. A control message travels behind its length in two bytes ([`Control::encode_framed`]).
//! Encryption and its header are below this ([`SEAL_BYTES`] of each datagram). Leaves out: the effects of messages
//! (`client`, `server`). Read [`Packet`], [`Feedback`] and [`Control`] first.
//!
//! Source: LTTP section III-B and Figure 2. Differs: a packet names its blocks by a seed (its id), where the paper lists them.

use anabranch_endpoint::{Bytes, DecodeError, Message, Payload, Wire};
use anabranch_transport::{bbr, tfrc};
use anabranch_units::{BitRate, Duration, Instant};

use crate::layout::BLOCK_BYTES_MAX;
use crate::mode::{Mode, RateControl};
use crate::receipt::{NONCE_BITS, Receipt};

/// The version of this protocol, in each [`Control::Hello`].
pub const VERSION: u8 = 10;
/// What authentication adds to a datagram: a channel of 8 bytes, a packet number of 4, and a tag of 16.
pub const SEAL_BYTES: u32 = 28;
/// The longest name of an object, in bytes of UTF-8.
pub const NAME_BYTES_MAX: usize = 1_024;
/// The longest text of a refusal, in bytes of UTF-8.
pub const REASON_BYTES_MAX: usize = 512;
/// Generations that may be open at once, at the most.
pub const WINDOW_MAX: u32 = 1_023;
/// The most generations of which a feedback says what they lack, the first ones: of a longer window those behind are told of once these are whole.
pub const LACKS_MAX: usize = 255;
/// The longest control message, its length's bytes not counted.
pub const CONTROL_BYTES_MAX: usize = 2 * NAME_BYTES_MAX + 64;
/// The longest object that is short: [`Control::Inspect`] may bring it whole. In bytes.
pub const SHORT_BYTES_MAX: usize = 32 << 10;
/// The longest [`Control::Short`], its length's bytes not counted. Only servers say it.
pub const SHORT_MESSAGE_BYTES_MAX: usize = CONTROL_BYTES_MAX + SHORT_BYTES_MAX;
/// The bits of a file's mode that travel: who may read, write and run it.
pub const MODE_BITS: u16 = 0o777;

/// Names a pull among those of a client at a server. Of two at once the one that was asked for first has the lower number.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PullId(pub u16);

/// A block, or a sum of blocks, of one generation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet<P> {
    /// Of which pull.
    pub pull: PullId,
    /// Its number among all of the pull, from 0.
    pub sequence: u32,
    /// What [`RateControl::Tfrc`] has receivers know; no packet of another rate control has it.
    pub timing: Option<Timing>,
    /// The server's last round trip has shown a queue on its path; packets of [`RateControl::Tfrc`] do not say.
    pub queued: bool,
    /// [`NONCE_BITS`] random bits, which feedback proves to have come.
    pub nonce: u8,
    /// Of which generation.
    pub generation: u32,
    /// Which blocks it sums: see [`anabranch_codes::lt::Code::neighbours`].
    pub id: u32,
    /// The sum.
    pub payload: P,
}

impl<P> Packet<P> {
    /// Bytes of the longest header.
    pub const HEADER_BYTES_MAX: u32 = Self::header_bytes(RateControl::Tfrc);

    /// Bytes of the header of a packet that is sent by this rate control.
    pub const fn header_bytes(rate_control: RateControl) -> u32 {
        match rate_control {
            // Kind, pull, number, generation and id: the server remembers when it sent what.
            RateControl::Bbr => 1 + 2 + 3 + 2 + 2,
            RateControl::Tfrc => 1 + 2 + 4 + TIMING_BYTES + 4 + 4,
        }
    }
}

/// What packets of a pull can say that is sent by one rate control.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Numbers {
    /// Packets of it.
    pub packets: u32,
    /// Its generations.
    pub generations: u32,
    /// Packets of a generation.
    pub ids: u32,
}

impl Numbers {
    /// Of this rate control.
    pub const fn of(rate_control: RateControl) -> Self {
        match rate_control {
            // Each byte less to a packet brings 0.07 % more where packets have 1,500 bytes.
            RateControl::Bbr => Self { packets: 1 << 24, generations: 1 << 16, ids: 1 << 16 },
            RateControl::Tfrc => Self { packets: u32::MAX, generations: u32::MAX, ids: u32::MAX },
        }
    }

    /// The longest pull whose blocks are so long, and so many to a generation: half of its numbers are for what is lost. In bytes.
    pub fn pull_bytes_max(self, block_bytes: u32, blocks_max: u32) -> u64 {
        let blocks = (u64::from(self.generations) * u64::from(blocks_max)).min(u64::from(self.packets) / 2);
        blocks.saturating_mul(block_bytes.into())
    }
}

/// What TFRC's receiver needs of each packet (RFC 5348 section 3.2.1).
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Timing {
    /// When it was sent, by the server's clock, in whole nanoseconds.
    pub sent_at: Instant,
    /// The server's estimate of the round trip, in whole microseconds; none before it has one.
    pub rtt: Option<Duration>,
}

/// What a client says of a pull's packets, and what the server may do next.
#[derive(Clone, Debug, PartialEq)]
pub struct Feedback {
    /// Of which pull.
    pub pull: PullId,
    /// Behind the highest sequence number that has come.
    pub next: u32,
    /// Proof of the last packets that have come, where there is a report; none travels without.
    pub receipt: Receipt,
    /// What the rate control is to know, if that is due.
    pub report: Option<Report>,
    /// The most that may be sent in a second, in bits of datagrams; no limit without. See [`Request::grant`].
    pub grant: Option<BitRate>,
    /// All generations below this one are complete.
    pub base: u32,
    /// Packets that are lacking of generation `base` and those behind it: 0 of one that is complete. At most [`LACKS_MAX`].
    pub lacks: Vec<u16>,
    /// The client has not heard what the server answered ([`Control::Accepted`]), and hands nothing over as long as it has not.
    pub is_unsaid: bool,
}

impl Feedback {
    /// The most bytes of a feedback.
    pub const BYTES_MAX: u32 = FEEDBACK_BYTES + TFRC_BYTES + 2 * LACKS_MAX as u32;
}

/// What a client tells the rate control at its server.
#[derive(Copy, Clone, Debug, PartialEq)]
pub enum Report {
    /// For [`RateControl::Tfrc`].
    Tfrc(tfrc::Report),
    /// For [`RateControl::Bbr`].
    Arrived(Arrived),
}

/// What has come of a pull.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Arrived {
    /// How long ago the packet came that has the highest number.
    pub delay: Duration,
    /// Packets that have come.
    pub received: u32,
    /// Packets that count as lost.
    pub lost: u32,
    /// Runs of such.
    pub runs: u32,
}

impl Arrived {
    /// What [`bbr::Arrivals`] counted.
    pub(crate) fn new(delay: Duration, counts: bbr::Counts) -> Self {
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
    /// From a server, where [`Feedback::is_unsaid`] asks for it: what it has said on the control channel, which may be held up for many
    /// round trips by a segment that was lost.
    Accepted(Accepted),
}

const TIMED_PACKET: u8 = 1;
const FEEDBACK: u8 = 2;
const PACKET: u8 = 3;
const ACCEPTED: u8 = 4;
/// A packet's kind, where there is a queue on its server's path.
const QUEUED: u8 = 16;
/// The bits of a packet's kind that hold its nonce: the highest ones.
const NONCE_SHIFT: u32 = u8::BITS - NONCE_BITS as u32;
const KIND_MASK: u8 = (1 << NONCE_SHIFT) - 1;
/// Time, round trip.
const TIMING_BYTES: u32 = 8 + 4;
/// A feedback's bytes without its lacks: kind, pull, next, base, grant, how many lacks, and whether there is a report.
const FEEDBACK_BYTES: u32 = 1 + 2 + 4 + 4 + 8 + 1 + 1;
/// A request's kind, where its end may be cut: this bit is set.
const CUT: u8 = 16;
/// The same of a report's kind, where the server's answer has not come.
const UNSAID: u8 = 16;
/// Kind, pull, the object's bytes and the pull's, a block's bytes, and how many to a generation.
const ACCEPTED_BYTES: u32 = 1 + 2 + 8 + 8 + 4 + 4;
/// Of a report: the packets that have come, and the digest of their nonces.
const RECEIPT_BYTES: u32 = 4 + 2;
/// Delay, of at most 18 minutes.
const DELAY_BYTES: u32 = 5;
/// Time, delay, rate, loss event rate, receipt.
const TFRC_BYTES: u32 = 8 + DELAY_BYTES + 8 + 4 + RECEIPT_BYTES;
/// Delay, three counts of packets, receipt.
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

impl Wire for Datagram<Bytes> {
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
                    // 0 is no round trip: one that is known takes at least a microsecond.
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
                    2 => Some(Report::Arrived(Arrived {
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
                // One byte says how many: no more than [`LACKS_MAX`].
                let count = reader.u8()?;
                let lacks = (0..count).map(|_| reader.u16()).collect::<Result<_, _>>()?;
                let is_unsaid = kind & UNSAID > 0;
                Self::Feedback(Feedback { pull, next, receipt, report, grant, base, lacks, is_unsaid })
            }
            ACCEPTED => Self::Accepted(Accepted::decode(&mut reader)?),
            kind => return Err(DecodeError::UnknownKind(kind)),
        };
        reader.end()?;
        Ok(message)
    }
}

/// Writes the low `bytes` bytes of a number, at most eight; a greater number is written as the greatest that fits.
fn put_low(out: &mut Vec<u8>, bytes: usize, number: u64) {
    let most = u64::MAX >> (8 * (8 - bytes));
    out.extend_from_slice(&number.min(most).to_be_bytes()[8 - bytes..]);
}

/// Checks a number that must be 0 to `most`.
fn number(number: f64, most: f64) -> Result<f64, DecodeError> {
    if (0.0..=most).contains(&number) && !(number == 0.0 && number.is_sign_negative()) {
        Ok(number)
    } else {
        Err(DecodeError::TooLong { limit: most as usize, got: number as usize })
    }
}

/// The rest of a packet.
fn block(reader: &mut Reader<'_>) -> Result<Bytes, DecodeError> {
    let (payload, limit) = (reader.rest(), BLOCK_BYTES_MAX as usize);
    if payload.len() > limit {
        return Err(DecodeError::TooLong { limit, got: payload.len() });
    }
    Ok(Bytes::copy_from_slice(payload))
}

/// Which bytes of an object a client wants, and how they are to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// What the client calls this pull.
    pub pull: PullId,
    /// The object's name.
    pub object: String,
    /// The first byte.
    pub start: u64,
    /// How many bytes; up to the object's end without.
    pub length: Option<u64>,
    /// Where the object ends before that, fewer will do: the client does not know how long it is.
    pub is_cut: bool,
    /// Of the protocol's two.
    pub mode: Mode,
    /// In [`Mode::Lttp`] TFRC.
    pub rate_control: RateControl,
    /// The longest block that the client takes in, in bytes.
    pub block_bytes: u32,
    /// The most blocks to a generation.
    pub blocks_max: u32,
    /// Generations that the client keeps open.
    pub window: u32,
    /// What may be sent in a second, from the beginning, in bits of datagrams; without, the rate control's start decides. With
    /// [`RateControl::Bbr`] it is for all pulls of the server together, and the last one that is said counts.
    pub grant: Option<BitRate>,
    /// How long the server waits before its first packet, so that not all come at once.
    pub start_after: Duration,
    /// The round trip as the client has measured it.
    pub rtt: Option<Duration>,
    /// How many servers the client may ask at once: what all send before the first feedback comes over one link.
    pub servers: u16,
}

/// What a server sends: LTTP's decoding parameters.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// The pull.
    pub pull: PullId,
    /// Bytes of the whole object.
    pub object_bytes: u64,
    /// Bytes that this pull brings.
    pub bytes: u64,
    /// Bytes of a block: at most those that were asked for, and at least [`crate::BLOCK_BYTES_MIN`] of them, but for a pull that
    /// has fewer.
    pub block_bytes: u32,
    /// The most blocks to a generation: those that were asked for, but in [`Mode::Lttp`].
    pub blocks_max: u32,
}

impl Accepted {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend(self.pull.0.to_be_bytes());
        out.extend(self.object_bytes.to_be_bytes());
        out.extend(self.bytes.to_be_bytes());
        out.extend(self.block_bytes.to_be_bytes());
        out.extend(self.blocks_max.to_be_bytes());
    }
    fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            pull: PullId(reader.u16()?),
            object_bytes: reader.u64()?,
            bytes: reader.u64()?,
            block_bytes: reader.u32()?,
            blocks_max: reader.u32()?,
        })
    }
}

/// What an object is.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its length.
    pub bytes: u64,
    /// Who may read, write and run it where it lies: [`MODE_BITS`] of a mode of POSIX.
    pub mode: u16,
    /// When it was changed last, in nanoseconds since 1970.
    pub modified_ns: i64,
    /// Its BLAKE3 hash, if that was wanted.
    pub hash: Option<[u8; 32]>,
}

/// A message on the control channel.
///
/// The first ones of a connection are [`Control::Hello`] and [`Control::Welcome`], which drivers speak before there is a
/// [`crate::Client`] or [`crate::Server`]; these two ignore them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Control {
    /// The client's first. Where it takes packets it shows by sending a datagram from there. The server's answer is not waited
    /// for: what the client wants may follow at once.
    Hello {
        /// Names the channel of datagrams, and with it its keys. The client has drawn it; the server refuses one that it knows.
        channel: u64,
    },
    /// The server's first.
    Welcome {
        /// Where it takes feedback, at the address that the stream goes to.
        port: u16,
    },
    /// The client wants to know what an object is.
    Describe {
        /// The object's name.
        object: String,
        /// Whether its hash is wanted, which may take as long as reading it does.
        with_hash: bool,
    },
    /// What it is.
    Described {
        /// The object's name.
        object: String,
        /// What is there, or in one line why nothing is said of it.
        found: Result<Found, String>,
    },
    /// The client wants to know what an object is that may be short ([`SHORT_BYTES_MAX`]). Of a short one the answer has the
    /// hash at once; it is [`Control::Short`] where the content is wanted as well. Of a longer one the answer has no hash;
    /// another with the hash follows where that is wanted.
    Inspect {
        /// The object's name.
        object: String,
        /// Whether the hash of a longer one is wanted.
        with_hash: bool,
        /// Whether a short one is wanted itself.
        with_content: bool,
    },
    /// A short object, whole.
    Short {
        /// The object's name.
        object: String,
        /// What it is, with its hash.
        found: Found,
        /// All of it.
        content: Bytes,
    },
    /// A hash that was asked for is not known yet: the server reads, or others have their turn before. Said again and again.
    Hashing {
        /// The object's name.
        object: String,
        /// Bytes of it that have been read.
        hashed_bytes: u64,
    },
    /// The client wants to know which objects there are.
    List {
        /// What their names begin with.
        prefix: String,
        /// Those behind this one: what [`Control::ListEnd`] said before; empty at first.
        after: String,
    },
    /// One of them.
    Listed {
        /// The object's name.
        object: String,
        /// Its length in bytes.
        bytes: u64,
        /// When it was changed last, in nanoseconds since 1970.
        modified_ns: i64,
    },
    /// Behind the last [`Control::Listed`] of a page.
    ListEnd {
        /// Where the next page begins, if there may be more; or in one line why nothing can be listed.
        next: Result<Option<String>, String>,
    },
    /// The server's next channel of datagrams, as the keys of the last one wear out. The server takes datagrams of both, and
    /// sends by the new one once the client does.
    Channel {
        /// Names it.
        channel: u64,
    },
    /// The client is there still, though it wants nothing now.
    Here,
    /// The server is about to close the connection.
    Goodbye {
        /// Why, in one line.
        reason: String,
    },
    /// The client asks.
    Pull(Request),
    /// The server begins to send.
    Accepted(Accepted),
    /// The server does not; the client may ask another.
    Refused {
        /// The pull.
        pull: PullId,
        /// Why, in one line.
        reason: String,
    },
    /// The client has all that it wants of this pull: LTTP's terminating signal.
    Stop {
        /// The pull.
        pull: PullId,
    },
    /// The server has heard nothing for too long, or cannot read on.
    GaveUp {
        /// The pull.
        pull: PullId,
        /// Why, in one line.
        reason: String,
    },
}

impl Control {
    /// Appends the message behind its length.
    ///
    /// Panics: in a debug build, for a text above its limit, which [`crate::Client`] and [`crate::Server`] do not write.
    pub fn encode_framed(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend([0; 2]);
        match self {
            Self::Pull(request) => {
                out.push(1);
                out.extend(request.pull.0.to_be_bytes());
                let manner = match (request.mode, request.rate_control) {
                    (Mode::Lttp, _) => 0,
                    (Mode::Counted, RateControl::Tfrc) => 1,
                    (Mode::Counted, RateControl::Bbr) => 2,
                };
                out.push(if request.is_cut { CUT | manner } else { manner });
                out.extend(request.start.to_be_bytes());
                // 0 bytes are not asked for: an empty object needs no pull.
                out.extend(request.length.unwrap_or(0).to_be_bytes());
                out.extend(request.block_bytes.to_be_bytes());
                out.extend(request.blocks_max.to_be_bytes());
                out.extend(request.window.to_be_bytes());
                out.extend(request.grant.map_or(0, |grant| grant.as_bps().max(1)).to_be_bytes());
                out.extend(request.start_after.as_ns().to_be_bytes());
                let rtt = request.rtt.map_or(0, |rtt| rtt.as_us().clamp(1, u32::MAX.into()) as u32);
                out.extend(rtt.to_be_bytes());
                out.extend(request.servers.to_be_bytes());
                text(out, &request.object, NAME_BYTES_MAX);
            }
            Self::Accepted(accepted) => {
                out.push(2);
                accepted.encode(out);
            }
            Self::Refused { pull, reason } => {
                out.push(3);
                out.extend(pull.0.to_be_bytes());
                text(out, reason, REASON_BYTES_MAX);
            }
            Self::Stop { pull } => {
                out.push(4);
                out.extend(pull.0.to_be_bytes());
            }
            Self::GaveUp { pull, reason } => {
                out.push(5);
                out.extend(pull.0.to_be_bytes());
                text(out, reason, REASON_BYTES_MAX);
            }
            Self::Hello { channel } => {
                out.extend([6, VERSION]);
                out.extend(channel.to_be_bytes());
            }
            Self::Welcome { port } => {
                out.push(7);
                out.extend(port.to_be_bytes());
            }
            Self::Describe { object, with_hash } => {
                out.extend([8, u8::from(*with_hash)]);
                text(out, object, NAME_BYTES_MAX);
            }
            Self::Described { object, found } => {
                match found {
                    Err(reason) => {
                        out.extend([9, 0]);
                        text(out, reason, REASON_BYTES_MAX);
                    }
                    Ok(found) => {
                        out.extend([9, 1 + u8::from(found.hash.is_some())]);
                        out.extend(found.bytes.to_be_bytes());
                        out.extend(found.mode.to_be_bytes());
                        out.extend(found.modified_ns.to_be_bytes());
                        out.extend(found.hash.iter().flatten());
                    }
                }
                text(out, object, NAME_BYTES_MAX);
            }
            Self::Hashing { object, hashed_bytes } => {
                out.push(10);
                out.extend(hashed_bytes.to_be_bytes());
                text(out, object, NAME_BYTES_MAX);
            }
            Self::List { prefix, after } => {
                out.push(11);
                text(out, prefix, NAME_BYTES_MAX);
                text(out, after, NAME_BYTES_MAX);
            }
            Self::Listed { object, bytes, modified_ns } => {
                out.push(12);
                out.extend(bytes.to_be_bytes());
                out.extend(modified_ns.to_be_bytes());
                text(out, object, NAME_BYTES_MAX);
            }
            Self::ListEnd { next } => {
                let (kind, words, limit) = match next {
                    Err(reason) => (0, reason.as_str(), REASON_BYTES_MAX),
                    Ok(None) => (1, "", 0),
                    Ok(Some(next)) => (2, next.as_str(), NAME_BYTES_MAX),
                };
                out.extend([13, kind]);
                text(out, words, limit);
            }
            Self::Channel { channel } => {
                out.push(14);
                out.extend(channel.to_be_bytes());
            }
            Self::Here => out.push(15),
            Self::Goodbye { reason } => {
                out.push(16);
                text(out, reason, REASON_BYTES_MAX);
            }
            Self::Inspect { object, with_hash, with_content } => {
                out.extend([20, u8::from(*with_hash), u8::from(*with_content)]);
                text(out, object, NAME_BYTES_MAX);
            }
            Self::Short { object, found, content } => {
                debug_assert!(content.len() <= SHORT_BYTES_MAX, "who says it has looked at its length");
                out.push(21);
                out.extend(found.mode.to_be_bytes());
                out.extend(found.modified_ns.to_be_bytes());
                out.extend(found.hash.unwrap_or_default());
                text(out, object, NAME_BYTES_MAX);
                out.extend_from_slice(content);
            }
        }
        let length = (out.len() - start - 2) as u16;
        out[start..start + 2].copy_from_slice(&length.to_be_bytes());
    }

    /// The first message of `bytes` and how long it is with its length; none while it is not whole.
    ///
    /// Errors: see [`DecodeError`]; what stands at the beginning will not become a message.
    pub fn decode_framed(bytes: &[u8]) -> Result<Option<(Self, usize)>, DecodeError> {
        Self::decode_framed_within(bytes, SHORT_MESSAGE_BYTES_MAX)
    }

    /// The same of a message of at most `limit` bytes: [`CONTROL_BYTES_MAX`] for what clients say.
    ///
    /// Errors: as [`Control::decode_framed`]; a longer message.
    pub fn decode_framed_within(bytes: &[u8], limit: usize) -> Result<Option<(Self, usize)>, DecodeError> {
        let Some(length) = bytes.first_chunk() else { return Ok(None) };
        let got = usize::from(u16::from_be_bytes(*length));
        if got > limit {
            return Err(DecodeError::TooLong { limit, got });
        }
        let end = 2 + got;
        bytes.get(2..end).map(|body| Ok((Self::decode(body)?, end))).transpose()
    }

    fn decode(body: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(body);
        let message = match reader.u8()? {
            1 => Self::Pull({
                let pull = PullId(reader.u16()?);
                let manner = reader.u8()?;
                let (mode, rate_control) = match manner & !CUT {
                    0 => (Mode::Lttp, RateControl::Tfrc),
                    1 => (Mode::Counted, RateControl::Tfrc),
                    2 => (Mode::Counted, RateControl::Bbr),
                    _ => return Err(DecodeError::UnknownKind(manner)),
                };
                Request {
                    pull,
                    mode,
                    rate_control,
                    start: reader.u64()?,
                    length: Some(reader.u64()?).filter(|length| *length > 0),
                    is_cut: manner & CUT > 0,
                    block_bytes: reader.u32()?,
                    blocks_max: reader.u32()?,
                    window: reader.u32()?,
                    grant: Some(reader.u64()?).filter(|bps| *bps > 0).map(BitRate::bps),
                    start_after: reader.duration()?,
                    rtt: Some(reader.u32()?).filter(|us| *us > 0).map(|us| Duration::from_us(us.into())),
                    servers: reader.u16()?,
                    object: reader.text(NAME_BYTES_MAX)?,
                }
            }),
            2 => Self::Accepted(Accepted::decode(&mut reader)?),
            3 => Self::Refused { pull: PullId(reader.u16()?), reason: reader.text(REASON_BYTES_MAX)? },
            4 => Self::Stop { pull: PullId(reader.u16()?) },
            5 => Self::GaveUp { pull: PullId(reader.u16()?), reason: reader.text(REASON_BYTES_MAX)? },
            6 => {
                let version = reader.u8()?;
                if version != VERSION {
                    return Err(DecodeError::UnknownVersion(version));
                }
                Self::Hello { channel: reader.u64()? }
            }
            7 => Self::Welcome { port: reader.u16()? },
            8 => Self::Describe { with_hash: reader.flag()?, object: reader.text(NAME_BYTES_MAX)? },
            9 => Self::Described {
                found: match reader.u8()? {
                    0 => Err(reader.text(REASON_BYTES_MAX)?),
                    kind @ (1 | 2) => Ok(Found {
                        bytes: reader.u64()?,
                        mode: reader.mode()?,
                        modified_ns: reader.u64()?.cast_signed(),
                        hash: if kind == 2 { Some(reader.array()?) } else { None },
                    }),
                    other => return Err(DecodeError::UnknownKind(other)),
                },
                object: reader.text(NAME_BYTES_MAX)?,
            },
            10 => Self::Hashing { hashed_bytes: reader.u64()?, object: reader.text(NAME_BYTES_MAX)? },
            11 => Self::List { prefix: reader.text(NAME_BYTES_MAX)?, after: reader.text(NAME_BYTES_MAX)? },
            12 => Self::Listed {
                bytes: reader.u64()?,
                modified_ns: reader.u64()?.cast_signed(),
                object: reader.text(NAME_BYTES_MAX)?,
            },
            13 => Self::ListEnd {
                next: match reader.u8()? {
                    0 => Err(reader.text(REASON_BYTES_MAX)?),
                    1 => {
                        reader.text(0)?;
                        Ok(None)
                    }
                    2 => Ok(Some(reader.text(NAME_BYTES_MAX)?)),
                    other => return Err(DecodeError::UnknownKind(other)),
                },
            },
            14 => Self::Channel { channel: reader.u64()? },
            15 => Self::Here,
            16 => Self::Goodbye { reason: reader.text(REASON_BYTES_MAX)? },
            20 => Self::Inspect {
                with_hash: reader.flag()?,
                with_content: reader.flag()?,
                object: reader.text(NAME_BYTES_MAX)?,
            },
            21 => {
                let (mode, modified_ns) = (reader.mode()?, reader.u64()?.cast_signed());
                let hash = Some(reader.array()?);
                let object = reader.text(NAME_BYTES_MAX)?;
                let content = reader.rest();
                if content.len() > SHORT_BYTES_MAX {
                    return Err(DecodeError::TooLong { limit: SHORT_BYTES_MAX, got: content.len() });
                }
                let content = Bytes::copy_from_slice(content);
                let found = Found { bytes: content.len() as u64, mode, modified_ns, hash };
                Self::Short { object, found, content }
            }
            kind => return Err(DecodeError::UnknownKind(kind)),
        };
        reader.end()?;
        Ok(message)
    }

    /// The pull that it is about, if it is about one.
    pub const fn pull(&self) -> Option<PullId> {
        match self {
            Self::Pull(request) => Some(request.pull),
            Self::Accepted(accepted) => Some(accepted.pull),
            Self::Refused { pull, .. } | Self::Stop { pull } | Self::GaveUp { pull, .. } => Some(*pull),
            Self::Hello { .. }
            | Self::Welcome { .. }
            | Self::Describe { .. }
            | Self::Described { .. }
            | Self::Hashing { .. }
            | Self::List { .. }
            | Self::Listed { .. }
            | Self::ListEnd { .. }
            | Self::Channel { .. }
            | Self::Here
            | Self::Goodbye { .. }
            | Self::Inspect { .. }
            | Self::Short { .. } => None,
        }
    }
}

/// A reason, cut to what a message carries.
pub fn reason(mut reason: String) -> String {
    if reason.len() > REASON_BYTES_MAX {
        let end = (0..=REASON_BYTES_MAX).rev().find(|end| reason.is_char_boundary(*end)).unwrap_or(0);
        reason.truncate(end);
    }
    reason
}

fn text(out: &mut Vec<u8>, text: &str, limit: usize) {
    debug_assert!(text.len() <= limit, "texts are checked where they come from");
    out.extend((text.len() as u16).to_be_bytes());
    out.extend_from_slice(text.as_bytes());
}

/// Reads fields one after the other.
struct Reader<'a> {
    left: &'a [u8],
    all: usize,
}

impl<'a> Reader<'a> {
    const fn new(bytes: &'a [u8]) -> Self {
        Self { left: bytes, all: bytes.len() }
    }
    fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let (head, rest) = self
            .left
            .split_first_chunk()
            .ok_or(DecodeError::TooShort { need: self.all - self.left.len() + N, got: self.all })?;
        self.left = rest;
        Ok(*head)
    }
    fn u8(&mut self) -> Result<u8, DecodeError> {
        self.array().map(u8::from_be_bytes)
    }
    fn u16(&mut self) -> Result<u16, DecodeError> {
        self.array().map(u16::from_be_bytes)
    }
    fn flag(&mut self) -> Result<bool, DecodeError> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(DecodeError::UnknownKind(other)),
        }
    }
    fn mode(&mut self) -> Result<u16, DecodeError> {
        let mode = self.u16()?;
        let limit = MODE_BITS.into();
        if mode > MODE_BITS { Err(DecodeError::TooLong { limit, got: mode.into() }) } else { Ok(mode) }
    }
    fn u32(&mut self) -> Result<u32, DecodeError> {
        self.array().map(u32::from_be_bytes)
    }
    fn u64(&mut self) -> Result<u64, DecodeError> {
        self.array().map(u64::from_be_bytes)
    }
    fn duration(&mut self) -> Result<Duration, DecodeError> {
        // Instants and durations are in picoseconds: 213 days and more are no time of ours.
        let (got, limit) = (self.u64()?, u64::MAX / 1_000);
        if got > limit {
            return Err(DecodeError::TooLong { limit: limit as usize, got: got as usize });
        }
        Ok(Duration::from_ns(got))
    }
    fn instant(&mut self) -> Result<Instant, DecodeError> {
        self.duration().map(|since| Instant::ZERO + since)
    }
    /// A number of `N` bytes, at most eight.
    fn low<const N: usize>(&mut self) -> Result<u64, DecodeError> {
        let bytes: [u8; N] = self.array()?;
        Ok(bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }
    fn text(&mut self, limit: usize) -> Result<String, DecodeError> {
        let got = usize::from(self.u16()?);
        if got > limit {
            return Err(DecodeError::TooLong { limit, got });
        }
        let need = self.all - self.left.len() + got;
        let (head, rest) =
            self.left.split_at_checked(got).ok_or(DecodeError::TooShort { need, got: self.all })?;
        self.left = rest;
        // What is no text is of no kind that is known.
        String::from_utf8(head.to_vec()).map_err(|_| DecodeError::UnknownKind(head[0]))
    }
    const fn rest(&mut self) -> &'a [u8] {
        let rest = self.left;
        self.left = &[];
        rest
    }
    const fn end(&self) -> Result<(), DecodeError> {
        match self.left.len() {
            0 => Ok(()),
            extra => Err(DecodeError::Trailing { extra }),
        }
    }
}

/// What a fuzzer and the corpus's tests do with bytes from a peer: reads them as a datagram and as a control message; what
/// reads must write back the same. True if either reads.
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
