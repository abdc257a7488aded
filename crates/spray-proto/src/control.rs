//! What two agents say to each other over the connection that keys their datagrams, and the form of it on a wire.
//!
//! Format, all numbers big-endian: a byte that says which message it is, then its fields. A *hello* (1) has a byte for the version, 2, and the
//! channel of the datagrams, 64 bits; who was called answers with the same. An *alive* (2) has a byte for whether datagrams may come (0 for no, 1 for
//! yes, from 2 on the fault of the sender's host), the longest datagram that came lately, 16 bits, and the count of all that came, 64 bits. A *bye* (3) has nothing. A *probe* is a datagram whose first byte
//! is 0, as no version of [`Datagram`](crate::Datagram) has, then an *alive* or a *bye*, then zeros: what is said over a connection goes by one
//! path, which may die alone. Read [`Control`] first.

use crate::kernel::Fault;
use anabranch_endpoint::DecodeError;

/// A message.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Control {
    /// The first one of either end.
    Hello {
        /// The channel of the datagrams, which the caller has drawn.
        channel: u64,
    },
    /// What came so far.
    Alive {
        /// Whether the sender would send packets in datagrams.
        readiness: Readiness,
        /// Bytes of the longest datagram that came within the last seconds, before it was opened; 0 for none.
        longest_bytes: u16,
        /// Datagrams that came.
        came: u64,
    },
    /// The agent ends.
    Bye,
}

/// Whether an end would send packets in datagrams.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// It does not know that its datagrams come.
    Untested,
    /// It would.
    Ready,
    /// Its host is not in order.
    Faulty(Fault),
}

impl Readiness {
    /// The byte on the wire.
    fn code(self) -> u8 {
        match self {
            Self::Untested => 0,
            Self::Ready => 1,
            Self::Faulty(fault) => FIRST_FAULT + fault as u8,
        }
    }

    /// Faults of later versions are no reason to send.
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
    /// Appends it.
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

    /// The first message of a stream's bytes, and its length; none while it is not whole.
    ///
    /// Errors: bytes that begin no message.
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

/// A datagram of so many bytes, or as few as it takes, that says this and that its length passes.
pub fn probe(bytes: usize, says: &Control) -> Vec<u8> {
    let mut probe = vec![0];
    says.encode(&mut probe);
    probe.resize(bytes.max(probe.len()), 0);
    probe
}

/// Whether a datagram is a probe.
pub fn is_probe(bytes: &[u8]) -> bool {
    bytes.first() == Some(&0)
}

/// What a probe says; none if that is nothing for a probe to say.
pub fn said_by_probe(bytes: &[u8]) -> Option<Control> {
    match Control::decode(bytes.get(1..)?) {
        Ok(Some((says @ (Control::Alive { .. } | Control::Bye), _))) => Some(says),
        _ => None,
    }
}

/// What a fuzzer does with a stream's bytes: reads them as a probe, then all messages, and writes these again. True if there is one and nothing
/// is wrong.
///
/// Panics: where that panics, or gives other messages.
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
        fn what_is_written_is_read_once_it_is_whole(channel: u64, code in 0..9_u8, longest_bytes: u16, came: u64) {
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
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            exercise(&bytes);
        }
    }
}
