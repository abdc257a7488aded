//! Datagrams that only the two ends of a TLS session can write and read.
//!
//! [`channel`] derives keys from an established TLS 1.3 session through its exporter (RFC 8446,
//! section 7.5): a pair for each channel, one key per direction. A [`Sealer`] encrypts and
//! authenticates, an [`Opener`] accepts each datagram at most once. Both work in the caller's
//! buffer and allocate nothing per datagram. There is no mode without authentication.
//!
//! A datagram is a clear header of 12 bytes (channel id, the last four bytes of the packet number;
//! both big-endian), which is authenticated, then the encrypted payload, then a tag of 16 bytes.
//! The full packet number is the one closest to the numbers received so far (as RFC 9000, section
//! 17.1 and appendix A.3). The nonce is the packet number, padded on the left to 12 bytes, xor the
//! direction's own random 12 bytes (as RFC 8446, section 5.3). The AEAD is the TLS session's.
//!
//! Leaves out: key updates. When a key wears out ([`Sealer::packets_left`], after half a terabyte
//! with AES), the ends switch to another channel id, which has fresh keys. Read [`Channel`],
//! [`Sealer::seal`] and [`Opener::open`] first.

mod replay;

use replay::Window;
use ring::aead::{self, Aad, LessSafeKey, Nonce, UnboundKey};
use ring::rand::{SecureRandom as _, SystemRandom};
use rustls::{CipherSuite, ClientConnection, ConnectionCommon, ServerConnection};
use std::fmt;
use tokio_rustls::TlsStream;

pub use replay::WINDOW as REPLAY_WINDOW;

/// Bytes of the packet number in the header.
const NUMBER_BYTES: usize = 4;
/// Bytes before the payload: channel id and packet number.
pub const HEADER_BYTES: usize = 8 + NUMBER_BYTES;
/// Bytes after the payload.
pub const TAG_BYTES: usize = 16;
/// Bytes that sealing adds to a payload.
pub const OVERHEAD_BYTES: usize = HEADER_BYTES + TAG_BYTES;

/// Label of the exporter. Private labels have this prefix (RFC 5705, section 4).
const LABEL: &[u8] = b"EXPERIMENTAL anabranch datagrams 1";
const KEY_BYTES_MAX: usize = 32;
const IV_BYTES: usize = 12;
/// Key and nonce base of one direction; a shorter key leaves its last bytes unused.
const DIRECTION_BYTES: usize = KEY_BYTES_MAX + IV_BYTES;
/// Upper bound that no packet number reaches (as in QUIC: RFC 9000, section 12.3).
const NUMBERS_END: u64 = 1 << 62;
/// Limit of an AES-GCM key: packets times the blocks of the longest packet.
///
/// Source: RFC 9001, appendix B.1.1: 2^28 packets of 2^11 bytes (2^7 blocks), or 2^23 of 2^16 bytes
/// (2^12 blocks).
const AES_BLOCKS_MAX: u64 = 1 << 35;
const BLOCK_BYTES: usize = 16;

/// Number of a channel within a TLS session.
///
/// An id must be used once per session. The same id yields the same keys, and a second [`Sealer`]
/// with them would repeat the packet numbers of the first, which reveals the payloads of both.
/// [`ChannelId::random`] does not repeat.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChannelId(pub u64);

impl ChannelId {
    /// Draws an id from 64 random bits of the system, so that it is unique. The end that did not
    /// draw the id must refuse an id that it has used before.
    ///
    /// Errors: the system provides no random numbers.
    pub fn random() -> Result<Self, SealError> {
        let mut bytes = [0; 8];
        SystemRandom::new().fill(&mut bytes).map_err(|_| SealError::NoRandomness)?;
        Ok(Self(u64::from_be_bytes(bytes)))
    }

    /// The channel that a datagram states; `None` for a datagram too short to be sealed. Only
    /// opening the datagram proves the channel.
    pub fn of(datagram: &[u8]) -> Option<Self> {
        (datagram.len() >= OVERHEAD_BYTES).then(|| Self(u64::from_be_bytes(first(datagram))))
    }
}

impl fmt::Display for ChannelId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// Algorithm of encryption and authentication.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Aead {
    /// AES-128-GCM.
    Aes128Gcm,
    /// AES-256-GCM.
    Aes256Gcm,
    /// ChaCha20-Poly1305.
    ChaCha20Poly1305,
}

impl Aead {
    const fn algorithm(self) -> &'static aead::Algorithm {
        match self {
            Self::Aes128Gcm => &aead::AES_128_GCM,
            Self::Aes256Gcm => &aead::AES_256_GCM,
            Self::ChaCha20Poly1305 => &aead::CHACHA20_POLY1305,
        }
    }

    const fn of(suite: CipherSuite) -> Option<Self> {
        match suite {
            CipherSuite::TLS13_AES_128_GCM_SHA256 => Some(Self::Aes128Gcm),
            CipherSuite::TLS13_AES_256_GCM_SHA384 => Some(Self::Aes256Gcm),
            CipherSuite::TLS13_CHACHA20_POLY1305_SHA256 => Some(Self::ChaCha20Poly1305),
            _ => None,
        }
    }

    /// Maximum number of packets sealed with one key if the longest has this many blocks.
    const fn packets_max(self, blocks_longest: u64) -> u64 {
        match self {
            Self::Aes128Gcm | Self::Aes256Gcm => AES_BLOCKS_MAX / blocks_longest,
            // The limit exceeds the number of packet numbers (RFC 9001, section 6.6).
            Self::ChaCha20Poly1305 => NUMBERS_END,
        }
    }

    /// Maximum number of forgeries refused with one key before it must be replaced.
    ///
    /// Source: RFC 9001, section 6.6.
    const fn forgeries_max(self) -> u64 {
        match self {
            Self::Aes128Gcm | Self::Aes256Gcm => 1 << 52,
            Self::ChaCha20Poly1305 => 1 << 36,
        }
    }
}

impl fmt::Display for Aead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Aes128Gcm => "AES-128-GCM",
            Self::Aes256Gcm => "AES-256-GCM",
            Self::ChaCha20Poly1305 => "ChaCha20-Poly1305",
        })
    }
}

/// Both directions of a channel at one end.
#[derive(Debug)]
pub struct Channel {
    /// Sealer of sent datagrams.
    pub sealer: Sealer,
    /// Opener of received datagrams.
    pub opener: Opener,
}

/// Reason why a channel was not made, or a datagram not sealed.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum SealError {
    /// The session is not TLS 1.3, not established, or has an unsupported cipher suite.
    UnfitSession {
        /// Cipher suite of the session.
        suite: Option<CipherSuite>,
    },
    /// The session exports no keys.
    NoKeys(rustls::Error),
    /// The system provides no random numbers.
    NoRandomness,
    /// The buffer has no room for header and tag.
    TooShort {
        /// Bytes of header and tag.
        need: usize,
        /// Bytes of the buffer.
        got: usize,
    },
    /// The key has sealed its maximum number of datagrams; a new channel is needed.
    WornOut {
        /// The channel.
        channel: ChannelId,
        /// Packets that the key has sealed.
        packets: u64,
    },
}

impl fmt::Display for SealError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnfitSession { suite: Some(suite) } => {
                write!(f, "datagrams cannot be keyed from a TLS session with {suite:?}: TLS 1.3 is needed")
            }
            Self::UnfitSession { suite: None } => {
                write!(f, "datagrams cannot be keyed from a TLS session whose handshake is not done")
            }
            Self::NoKeys(error) => write!(f, "the TLS session gives no keys for datagrams: {error}"),
            Self::NoRandomness => write!(f, "the system has no randomness to give"),
            Self::TooShort { need, got } => {
                write!(f, "buffer of {got} bytes: a sealed datagram has at least {need}")
            }
            Self::WornOut { channel, packets } => {
                write!(f, "channel {channel}: its key has sealed {packets} packets and may seal no more")
            }
        }
    }
}
impl std::error::Error for SealError {}

/// Creates the channel `id` of an established session.
///
/// Both ends call this once with the same `id`; each end then opens what the other end seals. See
/// [`ChannelId`] for the requirements on an id.
///
/// Errors: [`SealError::UnfitSession`], [`SealError::NoKeys`].
pub fn channel<IO>(stream: &TlsStream<IO>, id: ChannelId) -> Result<Channel, SealError> {
    match stream {
        TlsStream::Client(stream) => client_channel(stream.get_ref().1, id),
        TlsStream::Server(stream) => server_channel(stream.get_ref().1, id),
    }
}

/// Does the same as [`channel`] at the client's end.
///
/// Errors: as [`channel`].
pub fn client_channel(connection: &ClientConnection, id: ChannelId) -> Result<Channel, SealError> {
    let (aead, ours, theirs) = export(connection, id)?;
    Ok(Channel { sealer: Sealer::new(aead, id, &ours), opener: Opener::new(aead, id, &theirs) })
}

/// Does the same as [`channel`] at the server's end.
///
/// Errors: as [`channel`].
pub fn server_channel(connection: &ServerConnection, id: ChannelId) -> Result<Channel, SealError> {
    let (aead, theirs, ours) = export(connection, id)?;
    Ok(Channel { sealer: Sealer::new(aead, id, &ours), opener: Opener::new(aead, id, &theirs) })
}

type Direction = [u8; DIRECTION_BYTES];

/// Exports the AEAD, the keys of the client's direction, and the keys of the server's direction.
fn export<D>(
    connection: &ConnectionCommon<D>,
    id: ChannelId,
) -> Result<(Aead, Direction, Direction), SealError> {
    let suite = connection.negotiated_cipher_suite().map(|s| s.suite());
    let unfit = || SealError::UnfitSession { suite };
    if connection.is_handshaking() {
        return Err(SealError::UnfitSession { suite: None });
    }
    let aead = suite.and_then(Aead::of).ok_or_else(unfit)?;
    let mut both = [[0; DIRECTION_BYTES]; 2];
    connection
        .export_keying_material(both.as_flattened_mut(), LABEL, Some(&id.0.to_be_bytes()))
        .map_err(SealError::NoKeys)?;
    let [client, server] = both;
    Ok((aead, client, server))
}

/// Creates the two ends of a channel from fixed keys without TLS, for measurements and tests.
#[doc(hidden)]
pub fn pair_for_measurement(aead: Aead, id: ChannelId) -> (Sealer, Opener) {
    let direction = std::array::from_fn(|i| i as u8);
    (Sealer::new(aead, id, &direction), Opener::new(aead, id, &direction))
}

struct Key {
    key: LessSafeKey,
    iv: [u8; IV_BYTES],
}

impl Key {
    fn new(aead: Aead, direction: &Direction) -> Self {
        let (key, iv) = direction.split_at(KEY_BYTES_MAX);
        let algorithm = aead.algorithm();
        let key =
            UnboundKey::new(algorithm, &key[..algorithm.key_len()]).expect("the slice is as long as the key");
        Self { key: LessSafeKey::new(key), iv: iv.try_into().expect("what is left is as long as a nonce") }
    }

    fn nonce(&self, number: u64) -> Nonce {
        let mut nonce = self.iv;
        for (byte, of_number) in nonce[IV_BYTES - 8..].iter_mut().zip(number.to_be_bytes()) {
            *byte ^= of_number;
        }
        Nonce::assume_unique_for_key(nonce)
    }
}

fn first<const N: usize>(bytes: &[u8]) -> [u8; N] {
    *bytes.first_chunk().expect("what is too short was refused")
}

/// Reconstructs a packet number from its last four bytes: the candidate nearest to `expected`, and
/// the higher one of two equally near.
///
/// Source: RFC 9000, appendix A.3.
const fn whole(truncated: u32, expected: u64) -> u64 {
    const ALL: u64 = 1 << (8 * NUMBER_BYTES);
    let near = expected & !(ALL - 1) | truncated as u64;
    if near + ALL / 2 <= expected {
        near + ALL
    } else if near > expected + ALL / 2 && near >= ALL {
        near - ALL
    } else {
        near
    }
}

/// Seals the datagrams that one end of a channel sends.
///
/// Sealing takes `&mut self`, so that no packet number repeats; parallel threads need separate
/// channels.
pub struct Sealer {
    key: Key,
    aead: Aead,
    id: ChannelId,
    next: u64,
    /// Longest sealed datagram so far, in blocks of the AEAD, including the header.
    longest: u64,
}

impl Sealer {
    fn new(aead: Aead, id: ChannelId, direction: &Direction) -> Self {
        Self { key: Key::new(aead, direction), aead, id, next: 0, longest: 1 }
    }

    /// Channel of the sealer.
    pub fn channel(&self) -> ChannelId {
        self.id
    }

    /// AEAD of the sealer.
    pub fn aead(&self) -> Aead {
        self.aead
    }

    /// Seals `datagram` in place, and returns its packet number. The payload must lie between the
    /// first [`HEADER_BYTES`] and the last [`TAG_BYTES`]. Packet numbers start at 0 and grow by
    /// one.
    ///
    /// Errors: [`SealError::TooShort`], [`SealError::WornOut`]; the payload is then unchanged.
    pub fn seal(&mut self, datagram: &mut [u8]) -> Result<u64, SealError> {
        let got = datagram.len();
        let Some(payload_bytes) = got.checked_sub(OVERHEAD_BYTES) else {
            return Err(SealError::TooShort { need: OVERHEAD_BYTES, got });
        };
        let longest = self.longest.max(blocks(payload_bytes));
        if self.next >= self.aead.packets_max(longest) {
            return Err(SealError::WornOut { channel: self.id, packets: self.next });
        }
        let number = self.next;
        let (header, rest) = datagram.split_at_mut(HEADER_BYTES);
        header[..8].copy_from_slice(&self.id.0.to_be_bytes());
        header[8..].copy_from_slice(&(number as u32).to_be_bytes());
        let (payload, tag) = rest.split_at_mut(payload_bytes);
        let sealed =
            self.key.key.seal_in_place_separate_tag(self.key.nonce(number), Aad::from(header), payload);
        // The AEAD refuses only plaintexts longer than 64 GiB.
        tag.copy_from_slice(sealed.expect("a datagram is far below what the AEAD takes").as_ref());
        (self.next, self.longest) = (number + 1, longest);
        Ok(number)
    }

    /// Number of further datagrams that the key can seal, if none has more than `payload_bytes` or
    /// than the longest so far.
    pub fn packets_left(&self, payload_bytes: usize) -> u64 {
        self.aead.packets_max(self.longest.max(blocks(payload_bytes))).saturating_sub(self.next)
    }
}

impl fmt::Debug for Sealer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sealer").field("id", &self.id).field("next", &self.next).finish_non_exhaustive()
    }
}

/// AEAD blocks of a datagram with a payload of this size, plus one block for the header.
fn blocks(payload_bytes: usize) -> u64 {
    payload_bytes.div_ceil(BLOCK_BYTES) as u64 + 1
}

/// Reason why a datagram was not opened.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OpenError {
    /// The datagram is too short to be sealed, or states a number that no sealer uses.
    Malformed,
    /// The datagram states another channel.
    OtherChannel {
        /// The stated channel.
        channel: ChannelId,
    },
    /// A datagram with this number has been opened.
    Replayed {
        /// Number of the datagram.
        number: u64,
    },
    /// The number is older than the replay window, so a replay cannot be excluded.
    TooOld {
        /// Number of the datagram.
        number: u64,
    },
    /// The other end has not sealed the datagram, or its bytes have changed in transit.
    Forged,
    /// This key has refused the maximum number of forgeries; a new channel is needed.
    WornOut,
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed => write!(f, "not a sealed datagram"),
            Self::OtherChannel { channel } => {
                write!(f, "datagram of channel {channel}, which is another one")
            }
            Self::Replayed { number } => write!(f, "datagram {number} has come before"),
            Self::TooOld { number } => {
                write!(f, "datagram {number} is more than {REPLAY_WINDOW} behind the newest one")
            }
            Self::Forged => write!(f, "datagram that the other end has not sealed"),
            Self::WornOut => write!(f, "too many forged datagrams on this channel"),
        }
    }
}
impl std::error::Error for OpenError {}

/// Counters of an [`Opener`] by result.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct OpenCounters {
    /// Datagrams opened.
    pub opened: u64,
    /// Datagrams refused: [`OpenError::Malformed`].
    pub malformed: u64,
    /// Datagrams refused: [`OpenError::OtherChannel`].
    pub other_channel: u64,
    /// Datagrams refused: [`OpenError::Replayed`].
    pub replayed: u64,
    /// Datagrams refused: [`OpenError::TooOld`].
    pub too_old: u64,
    /// Datagrams refused: [`OpenError::Forged`].
    pub forged: u64,
    /// Datagrams refused: [`OpenError::WornOut`].
    pub worn_out: u64,
}

/// A datagram that the other end has sealed, received for the first time.
#[derive(Debug, PartialEq, Eq)]
pub struct OpenedDatagram<'a> {
    /// Packet number.
    pub number: u64,
    /// The decrypted payload.
    pub payload: &'a mut [u8],
}

/// Opens the datagrams that one end of a channel receives, each at most once.
///
/// The opener remembers in 2 KiB which of the last [`REPLAY_WINDOW`] numbers it has opened.
pub struct Opener {
    key: Key,
    aead: Aead,
    id: ChannelId,
    window: Window,
    counters: OpenCounters,
}

impl Opener {
    fn new(aead: Aead, id: ChannelId, direction: &Direction) -> Self {
        Self {
            key: Key::new(aead, direction),
            aead,
            id,
            window: Window::new(),
            counters: OpenCounters::default(),
        }
    }

    /// Channel of the opener.
    pub fn channel(&self) -> ChannelId {
        self.id
    }

    /// AEAD of the opener.
    pub fn aead(&self) -> Aead {
        self.aead
    }

    /// Opens a datagram in place.
    /// Errors: see [`OpenError`]. The datagram must then not be used; [`OpenError::Forged`] leaves
    /// its bytes changed.
    /// leaves its bytes changed.
    /// Cost: datagrams whose number is replayed or too old are refused before they are decrypted;
    /// no allocation.
    pub fn open<'a>(&mut self, datagram: &'a mut [u8]) -> Result<OpenedDatagram<'a>, OpenError> {
        let opened = self.admit(datagram);
        let counter = match &opened {
            Ok(_) => &mut self.counters.opened,
            Err(OpenError::Malformed) => &mut self.counters.malformed,
            Err(OpenError::OtherChannel { .. }) => &mut self.counters.other_channel,
            Err(OpenError::Replayed { .. }) => &mut self.counters.replayed,
            Err(OpenError::TooOld { .. }) => &mut self.counters.too_old,
            Err(OpenError::Forged) => &mut self.counters.forged,
            Err(OpenError::WornOut) => &mut self.counters.worn_out,
        };
        *counter += 1;
        opened
    }

    fn admit<'a>(&mut self, datagram: &'a mut [u8]) -> Result<OpenedDatagram<'a>, OpenError> {
        let channel = ChannelId::of(datagram).ok_or(OpenError::Malformed)?;
        if channel != self.id {
            return Err(OpenError::OtherChannel { channel });
        }
        let number = whole(u32::from_be_bytes(first(&datagram[8..])), self.window.next());
        if number >= NUMBERS_END {
            return Err(OpenError::Malformed);
        }
        self.window.check(number)?;
        if self.counters.forged >= self.aead.forgeries_max() {
            return Err(OpenError::WornOut);
        }
        let (header, sealed) = datagram.split_at_mut(HEADER_BYTES);
        let payload = self
            .key
            .key
            .open_in_place(self.key.nonce(number), Aad::from(header), sealed)
            .map_err(|_| OpenError::Forged)?;
        // Only authentic datagrams move the window: a forged number must not push out the numbers
        // of datagrams that are still in transit.
        self.window.mark(number);
        Ok(OpenedDatagram { number, payload })
    }

    /// The counters so far.
    pub fn counters(&self) -> OpenCounters {
        self.counters
    }
}

impl fmt::Debug for Opener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Opener")
            .field("id", &self.id)
            .field("counters", &self.counters)
            .finish_non_exhaustive()
    }
}

/// Exercise for fuzzers and the corpus's tests: opens the bytes twice with a fixed key. Returns
/// true if they are a sealed datagram of this key; the second attempt must then be refused as a
/// replay.
#[doc(hidden)]
pub fn exercise(bytes: &[u8]) -> bool {
    let (_, mut opener) = pair_for_measurement(Aead::Aes128Gcm, ChannelId(7));
    let mut first = bytes.to_vec();
    let opened = opener.open(&mut first).map(|o| o.number);
    let again = opener.open(&mut bytes.to_vec()).map(|o| o.number);
    match opened {
        Ok(number) => assert_eq!(again, Err(OpenError::Replayed { number }), "each is opened once"),
        Err(error) => assert_eq!(again, Err(error), "a refusal changes nothing"),
    }
    opened.is_ok()
}

/// Exercise for the fuzz target `net_window` and its corpus's test: seals datagrams with numbers
/// drawn from `bytes`. It opens them in any order, repeated and damaged. Returns true if none was
/// refused.
///
/// Panics: if a datagram is opened twice, if a recent and intact one is refused, or if a damaged
/// one is opened.
#[doc(hidden)]
pub fn exercise_window(bytes: &[u8]) -> bool {
    // ChaCha20-Poly1305 has no limit of packets per key.
    let (mut sealer, mut opener) = pair_for_measurement(Aead::ChaCha20Poly1305, ChannelId(7));
    let mut opened = std::collections::BTreeSet::new();
    let mut sealed: Vec<(u64, Vec<u8>)> = Vec::new();
    let mut is_any_refused = false;
    for act in bytes.chunks_exact(4).take(2_000) {
        let drawn = u64::from(u16::from_be_bytes([act[1], act[2]]));
        let newest = opened.last().copied().unwrap_or(0);
        let number = match act[0] % 8 {
            // A number near the newest one; the next two cases lie near the window's end.
            0 => newest + drawn % 4,
            1 => (newest + 2).saturating_sub(drawn),
            2 => (newest + 4).saturating_sub(replay::WINDOW + drawn % 8),
            3 => (newest + drawn * 64).min(NUMBERS_END - 1),
            // The highest number that can be reconstructed.
            4 => (newest + (1 << 31) - 1 - drawn).min(NUMBERS_END - 1),
            // Opens an earlier datagram again: intact, or damaged.
            _ => u64::MAX,
        };
        let (number, mut datagram) = if number < NUMBERS_END {
            sealer.next = number;
            let mut datagram = vec![act[3]; OVERHEAD_BYTES + usize::from(act[3] % 32)];
            assert_eq!(sealer.seal(&mut datagram), Ok(number));
            sealed.push((number, datagram.clone()));
            (number, datagram)
        } else {
            let Some(old) = sealed.get(drawn as usize % sealed.len().max(1)) else { continue };
            old.clone()
        };
        let is_damaged = act[0] % 8 == 7;
        if is_damaged {
            let at = usize::from(act[3]) % datagram.len();
            datagram[at] ^= 1 << (act[1] % 8);
        }
        let newest = opened.last().copied();
        let is_old = newest.is_some_and(|newest| number + replay::WINDOW <= newest);
        // If a number is more than half of the 2^32 values behind the newest, its last four bytes
        // stand for a newer number.
        let is_untold = newest.is_some_and(|newest| number + (1 << 31) <= newest);
        let result = opener.open(&mut datagram).map(|opened| opened.number);
        is_any_refused |= result.is_err();
        if is_damaged {
            assert!(result.is_err(), "a damaged datagram is opened: {number}");
        } else if is_untold {
            assert!(result.is_err(), "an old datagram is opened: {number}");
        } else if opened.contains(&number) && !is_old {
            assert_eq!(result, Err(OpenError::Replayed { number }));
        } else if is_old {
            assert_eq!(result, Err(OpenError::TooOld { number }));
        } else {
            assert_eq!(result, Ok(number));
            opened.insert(number);
        }
    }
    !is_any_refused
}

#[cfg(test)]
mod tests;
