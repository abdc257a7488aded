//! Control messages between client and servers, on a stream.
//!
//! Leaves out: datagrams ([`super`]). Read [`Control`] first.

use super::reader::Reader;
use super::{NAME_BYTES_MAX, PullId, REASON_BYTES_MAX, SHORT_BYTES_MAX, SHORT_MESSAGE_BYTES_MAX, VERSION};
use crate::mode::{Mode, RateControl};
use anabranch_endpoint::{Bytes, DecodeError};
use anabranch_units::{BitRate, Duration};

/// Flag in a request's kind: the range may end early, at the object's end.
const CUT: u8 = 16;

/// A request for a range of an object, and how to send it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The client's number for this pull.
    pub pull: PullId,
    /// The object's name.
    pub object: String,
    /// Offset of the first requested byte in the object.
    pub start: u64,
    /// Number of requested bytes; `None` for all bytes up to the object's end.
    pub length: Option<u64>,
    /// Whether the server may return fewer bytes if the object ends earlier: the client does not
    /// know the object's length.
    pub is_cut: bool,
    /// Protocol of the pull.
    pub mode: Mode,
    /// Rate control; always TFRC in [`Mode::Lttp`].
    pub rate_control: RateControl,
    /// Maximum block length in bytes.
    pub block_bytes: u32,
    /// Maximum blocks per generation.
    pub blocks_max: u32,
    /// Number of generations that the client keeps open.
    pub window: u32,
    /// Initial maximum rate in bits of datagrams per second. Without a grant the rate control's
    /// start decides. With [`RateControl::Bbr`] the grant applies to all pulls of the server
    /// together, and the latest grant counts.
    pub grant: Option<BitRate>,
    /// Delay of the server's first packet, so that servers do not start all at once.
    pub start_after: Duration,
    /// Round-trip time measured by the client.
    pub rtt: Option<Duration>,
    /// Number of servers that may send at once. Their first flights share the client's link.
    pub servers: u16,
}

/// Layout of an accepted pull: LTTP's decoding parameters.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct PullAcceptance {
    /// The pull.
    pub pull: PullId,
    /// Length of the whole object in bytes.
    pub object_bytes: u64,
    /// Length of this pull in bytes.
    pub bytes: u64,
    /// Block length in bytes: at most the requested one, and at least [`crate::BLOCK_BYTES_MIN`]
    /// unless the pull is shorter.
    pub block_bytes: u32,
    /// Maximum blocks per generation: the requested number, except in [`Mode::Lttp`].
    pub blocks_max: u32,
}

impl PullAcceptance {
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.extend(self.pull.0.to_be_bytes());
        out.extend(self.object_bytes.to_be_bytes());
        out.extend(self.bytes.to_be_bytes());
        out.extend(self.block_bytes.to_be_bytes());
        out.extend(self.blocks_max.to_be_bytes());
    }
    pub(super) fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            pull: PullId(reader.u16()?),
            object_bytes: reader.u64()?,
            bytes: reader.u64()?,
            block_bytes: reader.u32()?,
            blocks_max: reader.u32()?,
        })
    }
}

/// Description of an object.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct ObjectDescription {
    /// Length in bytes.
    pub bytes: u64,
    /// Permission bits at the server: [`super::MODE_BITS`] of a POSIX mode.
    pub mode: u16,
    /// Time of the last change, in nanoseconds since 1970.
    pub modified_ns: i64,
    /// BLAKE3 hash of the content, if requested.
    pub hash: Option<[u8; 32]>,
}

/// A message on the control channel.
///
/// A connection begins with [`Control::Hello`] and [`Control::Welcome`], which drivers exchange
/// before there is a [`crate::Client`] or [`crate::Server`]; those two ignore them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Control {
    /// The client's first message. The client announces its address for packets by sending a
    /// datagram from that address. Requests may follow at once, before the server's answer.
    Hello {
        /// Id of the datagram channel, which also selects its keys. The client draws the id at
        /// random; the server refuses an id that is in use.
        channel: u64,
    },
    /// The server's first message.
    Welcome {
        /// UDP port for feedback, at the IP address of the stream.
        port: u16,
    },
    /// Request for an object's description.
    Describe {
        /// The object's name.
        object: String,
        /// Whether the hash is requested. The server may have to read the whole object first.
        with_hash: bool,
    },
    /// Description of an object.
    Described {
        /// The object's name.
        object: String,
        /// The description, or the reason for its absence in one line.
        found: Result<ObjectDescription, String>,
    },
    /// Request for the description of an object that may be short ([`SHORT_BYTES_MAX`]). The answer
    /// for a short object includes the hash; the answer is [`Control::Short`] if the content is
    /// requested, too. The answer for a longer object has no hash; a second answer with the hash
    /// follows if requested.
    Inspect {
        /// The object's name.
        object: String,
        /// Whether the hash of a longer object is requested.
        with_hash: bool,
        /// Whether the content of a short object is requested.
        with_content: bool,
    },
    /// A short object with its content.
    Short {
        /// The object's name.
        object: String,
        /// Description with hash.
        found: ObjectDescription,
        /// The whole content.
        content: Bytes,
    },
    /// Progress on a requested hash, repeated while the server reads the object or is busy.
    Hashing {
        /// The object's name.
        object: String,
        /// Bytes read so far.
        hashed_bytes: u64,
    },
    /// Request for a list of objects.
    List {
        /// Prefix of the listed objects' names.
        prefix: String,
        /// Start of the page: the position from [`Control::ListEnd`], or empty for the first page.
        after: String,
    },
    /// One listed object.
    Listed {
        /// The object's name.
        object: String,
        /// Length in bytes.
        bytes: u64,
        /// Time of the last change, in nanoseconds since 1970.
        modified_ns: i64,
    },
    /// Number of objects on a page whose names cannot be listed, if there are any. No client could
    /// request these objects.
    Unlisted {
        /// Number of names that are not UTF-8, too long, or nested too deeply.
        names: u64,
    },
    /// End of a page.
    ListEnd {
        /// Start of the next page, if any. An error is the reason of a failure, in one line.
        next: Result<Option<String>, String>,
    },
    /// The server's next channel of datagrams, sent before the keys of the current channel wear
    /// out. The server accepts datagrams of both channels, and switches to the new channel once the
    /// client has used it.
    Channel {
        /// Id of the channel.
        channel: u64,
    },
    /// Keep-alive of a client without requests.
    Here,
    /// The server is about to close the connection.
    Goodbye {
        /// The reason, in one line.
        reason: String,
    },
    /// Request for a pull.
    Pull(Request),
    /// The server accepts a pull and begins to send.
    Accepted(PullAcceptance),
    /// The server refuses a pull; the client may ask another server.
    Refused {
        /// The pull.
        pull: PullId,
        /// The reason, in one line.
        reason: String,
    },
    /// The client needs no more packets of this pull: LTTP's terminating signal.
    Stop {
        /// The pull.
        pull: PullId,
    },
    /// The server ends a pull because the client is silent or the object cannot be read.
    GaveUp {
        /// The pull.
        pull: PullId,
        /// The reason, in one line.
        reason: String,
    },
}

impl Request {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend(self.pull.0.to_be_bytes());
        let manner = match (self.mode, self.rate_control) {
            (Mode::Lttp, _) => 0,
            (Mode::Counted, RateControl::Tfrc) => 1,
            (Mode::Counted, RateControl::Bbr) => 2,
        };
        out.push(if self.is_cut { CUT | manner } else { manner });
        out.extend(self.start.to_be_bytes());
        // 0 encodes a missing length, because no pull has an empty range.
        out.extend(self.length.unwrap_or(0).to_be_bytes());
        out.extend(self.block_bytes.to_be_bytes());
        out.extend(self.blocks_max.to_be_bytes());
        out.extend(self.window.to_be_bytes());
        out.extend(self.grant.map_or(0, |grant| grant.as_bps().max(1)).to_be_bytes());
        out.extend(self.start_after.as_ns().to_be_bytes());
        let rtt = self.rtt.map_or(0, |rtt| rtt.as_us().clamp(1, u32::MAX.into()) as u32);
        out.extend(rtt.to_be_bytes());
        out.extend(self.servers.to_be_bytes());
        text(out, &self.object, NAME_BYTES_MAX);
    }
}

impl Control {
    /// Appends the length and the message.
    ///
    /// Panics: in a debug build, if a text exceeds its limit, which [`crate::Client`] and
    /// [`crate::Server`] never do.
    pub fn encode_framed(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend([0; 2]);
        match self {
            Self::Pull(request) => {
                out.push(1);
                request.encode(out);
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
                out.push(9);
                encode_found(out, found);
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
            Self::Unlisted { names } => {
                out.push(22);
                out.extend(names.to_be_bytes());
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
                debug_assert!(content.len() <= SHORT_BYTES_MAX, "content of a short object");
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

    /// Decodes the first message of `bytes`. Returns the message with its length, length field
    /// included, or `None` while the message is incomplete.
    ///
    /// Errors: see [`DecodeError`]; the bytes cannot be the start of a valid message.
    pub fn decode_framed(bytes: &[u8]) -> Result<Option<(Self, usize)>, DecodeError> {
        Self::decode_framed_within(bytes, SHORT_MESSAGE_BYTES_MAX)
    }

    /// As [`Control::decode_framed`], with a limit on the message's length in bytes:
    /// [`super::CONTROL_BYTES_MAX`] for clients' messages.
    ///
    /// Errors: as [`Control::decode_framed`]; or the message is longer than `limit`.
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
            2 => Self::Accepted(PullAcceptance::decode(&mut reader)?),
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
                    kind @ (1 | 2) => Ok(ObjectDescription {
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
                let found = ObjectDescription { bytes: content.len() as u64, mode, modified_ns, hash };
                Self::Short { object, found, content }
            }
            22 => Self::Unlisted { names: reader.u64()? },
            kind => return Err(DecodeError::UnknownKind(kind)),
        };
        reader.end()?;
        Ok(message)
    }

    /// The pull that the message concerns, if any.
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
            | Self::Unlisted { .. }
            | Self::ListEnd { .. }
            | Self::Channel { .. }
            | Self::Here
            | Self::Goodbye { .. }
            | Self::Inspect { .. }
            | Self::Short { .. } => None,
        }
    }
}

/// Truncates a reason to [`REASON_BYTES_MAX`] bytes, at a character boundary.
pub fn reason(mut reason: String) -> String {
    if reason.len() > REASON_BYTES_MAX {
        let end = (0..=REASON_BYTES_MAX).rev().find(|end| reason.is_char_boundary(*end)).unwrap_or(0);
        reason.truncate(end);
    }
    reason
}

fn encode_found(out: &mut Vec<u8>, found: &Result<ObjectDescription, String>) {
    match found {
        Err(reason) => {
            out.push(0);
            text(out, reason, REASON_BYTES_MAX);
        }
        Ok(found) => {
            out.push(1 + u8::from(found.hash.is_some()));
            out.extend(found.bytes.to_be_bytes());
            out.extend(found.mode.to_be_bytes());
            out.extend(found.modified_ns.to_be_bytes());
            out.extend(found.hash.iter().flatten());
        }
    }
}

fn text(out: &mut Vec<u8>, text: &str, limit: usize) {
    debug_assert!(text.len() <= limit, "texts are checked where they come from");
    out.extend((text.len() as u16).to_be_bytes());
    out.extend_from_slice(text.as_bytes());
}
