//! The messages on a flow's TCP connections: one greeting each, then frames.
//!
//! All integers are big-endian. A connection begins with a [`Hello`] from the sending end and a
//! one-byte [`HelloReply`]. Frames follow, each with a fixed [`FrameHeader`] and, for data, a
//! symbol. This module is stateless.
//!
//! Leaves out: control messages (the `control` module), TLS and sockets (drivers).

use crate::control::{Attempt, Run, TransferId};
use crate::plan::FlowId;
use anabranch_endpoint::DecodeError;
use anabranch_pieces::GenerationHash;

/// Version of this protocol.
pub const VERSION: u8 = 4;
/// Maximum size of a symbol that a peer may announce, in bytes.
pub const SYMBOL_BYTES_MAX: u32 = 1 << 20;

const MAGIC: [u8; 3] = *b"ABR";

/// First bytes on a data connection, which identify its flow.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The attempt.
    pub run: Run,
    /// The flow.
    pub flow: FlowId,
    /// Index of the connection within the flow, from 0.
    pub stripe: u16,
}

impl Hello {
    /// Length of an encoded greeting in bytes.
    pub const LEN: usize = 22;

    /// The greeting as bytes.
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        out[..3].copy_from_slice(&MAGIC);
        out[3] = VERSION;
        out[4..12].copy_from_slice(&self.run.transfer.0.to_be_bytes());
        out[12..16].copy_from_slice(&self.run.attempt.0.to_be_bytes());
        out[16..20].copy_from_slice(&self.flow.0.to_be_bytes());
        out[20..].copy_from_slice(&self.stripe.to_be_bytes());
        out
    }

    /// Reads a greeting.
    ///
    /// Errors: wrong length, wrong first bytes, another version.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let bytes: &[u8; Self::LEN] = exactly(bytes)?;
        if bytes[..3] != MAGIC {
            return Err(DecodeError::UnknownKind(bytes[0]));
        }
        if bytes[3] != VERSION {
            return Err(DecodeError::UnknownVersion(bytes[3]));
        }
        Ok(Self {
            run: Run {
                transfer: TransferId(u64::from_be_bytes(at(bytes, 4))),
                attempt: Attempt(u32::from_be_bytes(at(bytes, 12))),
            },
            flow: FlowId(u32::from_be_bytes(at(bytes, 16))),
            stripe: u16::from_be_bytes(at(bytes, 20)),
        })
    }
}

/// The receiving end's answer to a [`Hello`].
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum HelloReply {
    /// The sender may send.
    Welcome,
    /// The attempt is not installed here (yet): the sender should try again.
    NotInstalled,
    /// The flow does not belong to this peer, or the stripe is already connected.
    Refused,
}

impl HelloReply {
    /// The reply as its byte.
    pub const fn encode(self) -> u8 {
        match self {
            Self::Welcome => 0,
            Self::NotInstalled => 1,
            Self::Refused => 2,
        }
    }
    /// Reads the reply.
    ///
    /// Errors: an unknown byte.
    pub const fn decode(byte: u8) -> Result<Self, DecodeError> {
        match byte {
            0 => Ok(Self::Welcome),
            1 => Ok(Self::NotInstalled),
            2 => Ok(Self::Refused),
            other => Err(DecodeError::UnknownKind(other)),
        }
    }
}

/// The header before every symbol. The header that ends a flow has no symbol.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum FrameHeader {
    /// A symbol of `length` bytes follows.
    Data {
        /// Generation (coded group) or chunk number (routed group).
        generation: u64,
        /// Hash of the generation's or chunk's plain bytes.
        hash: GenerationHash,
        /// Length of the symbol in bytes.
        length: u32,
    },
    /// Padding of `length` bytes follows, which the receiver discards.
    Padding {
        /// Length of the padding in bytes.
        length: u32,
    },
    /// The flow is complete.
    End {
        /// Number of symbols sent on the flow, over all stripes.
        packets: u64,
    },
}

impl FrameHeader {
    /// Length of an encoded header in bytes.
    pub const LEN: usize = 45;

    /// The header as bytes.
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        match self {
            Self::Data { generation, hash, length } => {
                out[0] = 1;
                out[1..9].copy_from_slice(&generation.to_be_bytes());
                out[9..13].copy_from_slice(&length.to_be_bytes());
                out[13..].copy_from_slice(&hash.0);
            }
            Self::End { packets } => {
                out[0] = 2;
                out[1..9].copy_from_slice(&packets.to_be_bytes());
            }
            Self::Padding { length } => {
                out[0] = 3;
                out[9..13].copy_from_slice(&length.to_be_bytes());
            }
        }
        out
    }

    /// Reads a header of a flow whose symbols have at most `symbol_bytes` bytes.
    ///
    /// Errors: wrong length, unknown kind, a symbol or padding above the limit.
    pub fn decode(bytes: &[u8], symbol_bytes: u32) -> Result<Self, DecodeError> {
        let bytes: &[u8; Self::LEN] = exactly(bytes)?;
        let number = u64::from_be_bytes(at(bytes, 1));
        let length = u32::from_be_bytes(at(bytes, 9));
        if matches!(bytes[0], 1 | 3) && length > symbol_bytes {
            return Err(DecodeError::TooLong { limit: symbol_bytes as usize, got: length as usize });
        }
        match bytes[0] {
            1 => Ok(Self::Data { generation: number, hash: GenerationHash(at(bytes, 13)), length }),
            2 => Ok(Self::End { packets: number }),
            3 => Ok(Self::Padding { length }),
            kind => Err(DecodeError::UnknownKind(kind)),
        }
    }
}

fn exactly<const N: usize>(bytes: &[u8]) -> Result<&[u8; N], DecodeError> {
    if bytes.len() > N {
        return Err(DecodeError::Trailing { extra: bytes.len() - N });
    }
    bytes.try_into().map_err(|_| DecodeError::TooShort { need: N, got: bytes.len() })
}

fn at<const N: usize, const M: usize>(bytes: &[u8; M], offset: usize) -> [u8; N] {
    bytes[offset..offset + N].try_into().expect("the slice has N bytes")
}

/// Fuzz target: reads bytes from a peer as a greeting and as a header. Checks that a successful
/// result is written back as the same bytes. Returns true if either reading succeeds. The replay of
/// the corpus also calls this function.
#[doc(hidden)]
pub fn exercise(bytes: &[u8]) -> bool {
    let hello = Hello::decode(bytes).map(|h| assert_eq!(h.encode(), bytes, "a greeting has one encoding"));
    let header = FrameHeader::decode(bytes, SYMBOL_BYTES_MAX);
    if let Ok(header) = header {
        assert_eq!(FrameHeader::decode(&header.encode(), SYMBOL_BYTES_MAX), Ok(header));
    }
    hello.is_ok() || header.is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn greetings_and_headers_read_back_as_written(transfer: u64, attempt: u32, flow: u32, stripe: u16, generation: u64, hash: [u8; 32], length in 0..=SYMBOL_BYTES_MAX) {
            let hello = Hello { run: Run { transfer: TransferId(transfer), attempt: Attempt(attempt) }, flow: FlowId(flow), stripe };
            prop_assert_eq!(Hello::decode(&hello.encode()), Ok(hello));
            let data = FrameHeader::Data { generation, hash: GenerationHash(hash), length };
            for header in [data, FrameHeader::Padding { length }, FrameHeader::End { packets: generation }] {
                prop_assert_eq!(FrameHeader::decode(&header.encode(), SYMBOL_BYTES_MAX), Ok(header));
            }
        }

        #[test]
        fn any_bytes_decode_or_are_refused_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = Hello::decode(&bytes);
            let _ = FrameHeader::decode(&bytes, 1000);
        }
    }

    #[test]
    fn a_symbol_just_above_the_limit_is_refused() {
        let data: fn(u32) -> FrameHeader =
            |length| FrameHeader::Data { generation: 0, hash: GenerationHash::default(), length };
        for header in [data, |length| FrameHeader::Padding { length }] {
            assert!(FrameHeader::decode(&header(1000).encode(), 1000).is_ok());
            assert_eq!(
                FrameHeader::decode(&header(1001).encode(), 1000),
                Err(DecodeError::TooLong { limit: 1000, got: 1001 })
            );
        }
    }
}
