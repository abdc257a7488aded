//! Control messages between two agents, over the connection that keys their datagrams, and their
//! wire format.
//!
//! Format, all numbers big-endian: one byte for the kind of message, then its fields.
//!
//! 1. *Hello*: one byte for the version, 2, and the channel of the datagrams, 64 bits. The callee
//!    answers with the same.
//! 2. *Alive*: one byte for readiness (0 for no, 1 for yes, from 2 on the fault of the sender's
//!    host), the longest datagram received recently, 16 bits, and the count of all received
//!    datagrams, 64 bits.
//! 3. *Bye*: no fields.
//!
//! A *probe* is a datagram whose first byte is 0, which no version of [`Datagram`](crate::Datagram)
//! uses, followed by an *alive* or a *bye* and zeros. Probes repeat what the connection carries,
//! because the connection's path may fail alone. Read [`Control`] first.

use crate::kernel::Fault;
use anabranch_endpoint::DecodeError;

/// A control message.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Control {
    /// The first message of either end.
    Hello {
        /// Channel of the datagrams, drawn by the caller.
        channel: u64,
    },
    /// Report of received datagrams.
    Alive {
        /// Readiness of the sender to send packets in datagrams.
        readiness: Readiness,
        /// Length of the longest sealed datagram received recently (the driver's period is 4 s), in
        /// bytes. 0 if none was received.
        longest_bytes: u16,
        /// Number of received datagrams.
        came: u64,
    },
    /// The agent is shutting down.
    Bye,
}

/// Readiness of an end to send packets in datagrams.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// The end does not know yet whether its datagrams arrive.
    Untested,
    /// The end is ready.
    Ready,
    /// The end's host has a fault.
    Faulty(Fault),
}

impl Readiness {
    /// Byte on the wire.
    fn code(self) -> u8 {
        match self {
            Self::Untested => 0,
            Self::Ready => 1,
            Self::Faulty(fault) => FIRST_FAULT + fault as u8,
        }
    }

    /// Returns the readiness of a byte on the wire. An unknown code of a later version also counts
    /// as a fault.
    fn of_code(code: u8) -> Self {
        match code.checked_sub(FIRST_FAULT) {
            None if code == 1 => Self::Ready,
            None => Self::Untested,
            Some(fault) => {
                Fault::ALL.get(usize::from(fault)).map_or(Self::Untested, |fault| Self::Faulty(*fault))
            }
        }
    }
}

/// Code of the first fault.
const FIRST_FAULT: u8 = 2;
const HELLO: u8 = 1;
const ALIVE: u8 = 2;
const BYE: u8 = 3;
const VERSION: u8 = 2;

impl Control {
    /// Appends the message.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Hello { channel } => {
                out.extend([HELLO, VERSION]);
                out.extend(channel.to_be_bytes());
            }
            Self::Alive { readiness, longest_bytes, came } => {
                out.extend([ALIVE, readiness.code()]);
                out.extend(longest_bytes.to_be_bytes());
                out.extend(came.to_be_bytes());
            }
            Self::Bye => out.push(BYE),
        }
    }

    /// Decodes the first message of a stream's bytes. Returns the message and its length, or `None`
    /// while it is incomplete.
    ///
    /// Errors: bytes that start no message.
    pub fn decode(bytes: &[u8]) -> Result<Option<(Self, usize)>, DecodeError> {
        let Some((kind, fields)) = bytes.split_first() else { return Ok(None) };
        let whole = |length: usize| (fields.len() >= length).then(|| &fields[..length]);
        let message = match *kind {
            HELLO => {
                if let Some(version) = fields.first().filter(|version| **version != VERSION) {
                    return Err(DecodeError::UnknownVersion(*version));
                }
                whole(9).map(|fields| (Self::Hello { channel: u64_of(&fields[1..]) }, 10))
            }
            ALIVE => whole(11).map(|fields| {
                let longest_bytes = u16::from_be_bytes([fields[1], fields[2]]);
                let (readiness, came) = (Readiness::of_code(fields[0]), u64_of(&fields[3..]));
                (Self::Alive { readiness, longest_bytes, came }, 12)
            }),
            BYE => Some((Self::Bye, 1)),
            other => return Err(DecodeError::UnknownKind(other)),
        };
        Ok(message)
    }
}

fn u64_of(bytes: &[u8]) -> u64 {
    u64::from_be_bytes(bytes.try_into().expect("eight bytes"))
}

/// Builds a probe with this message, `bytes` long, or of the minimum length if that is longer.
pub fn probe(bytes: usize, says: &Control) -> Vec<u8> {
    let mut probe = vec![0];
    says.encode(&mut probe);
    probe.resize(bytes.max(probe.len()), 0);
    probe
}

/// Returns true if a datagram is a probe.
pub fn is_probe(bytes: &[u8]) -> bool {
    bytes.first() == Some(&0)
}

/// Returns the message of a probe; `None` for a kind that probes do not carry.
pub fn said_by_probe(bytes: &[u8]) -> Option<Control> {
    match Control::decode(bytes.get(1..)?) {
        Ok(Some((says @ (Control::Alive { .. } | Control::Bye), _))) => Some(says),
        _ => None,
    }
}

/// Exercise for fuzz targets: decodes the bytes as a probe and then as messages, and encodes the
/// messages again. Returns true if there is at least one message and no error.
///
/// Panics: if decoding panics, or encoding changes a message.
#[doc(hidden)]
pub fn exercise(bytes: &[u8]) -> bool {
    if let Some(says) = said_by_probe(bytes) {
        assert_eq!(said_by_probe(&probe(bytes.len(), &says)), Some(says));
    }
    let (mut left, mut is_any) = (bytes, false);
    loop {
        match Control::decode(left) {
            Ok(Some((message, length))) => {
                let mut again = Vec::new();
                message.encode(&mut again);
                assert_eq!(Control::decode(&again), Ok(Some((message, again.len()))));
                assert_eq!(again.len(), length);
                (left, is_any) = (&left[length..], true);
            }
            Ok(None) => return is_any,
            Err(_) => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn complete_messages_decode_as_encoded(channel: u64, code in 0..9_u8, longest_bytes: u16, came: u64) {
            let readiness = Readiness::of_code(code);
            prop_assert_eq!(readiness.code(), code);
            let alive = Control::Alive { readiness, longest_bytes, came };
            for message in [Control::Hello { channel }, alive, Control::Bye] {
                let mut bytes = Vec::new();
                message.encode(&mut bytes);
                for part in 0..bytes.len() {
                    prop_assert_eq!(Control::decode(&bytes[..part]), Ok(None));
                }
                let said = Some(message).filter(|said| !matches!(said, Control::Hello { .. }));
                for length in [0, bytes.len() + 1, 1_400] {
                    let probe = probe(length, &message);
                    prop_assert_eq!((is_probe(&probe), said_by_probe(&probe)), (true, said));
                    prop_assert_eq!(probe.len(), length.max(bytes.len() + 1));
                }
                bytes.push(9);
                prop_assert_eq!(Control::decode(&bytes), Ok(Some((message, bytes.len() - 1))));
            }
        }

        #[test]
        fn decoder_never_panics_on_random_bytes(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            exercise(&bytes);
        }
    }
}
