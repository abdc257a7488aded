//! Receipts: a client's proof that it has received the packets which it acknowledges.
//!
//! Each packet carries [`NONCE_BITS`] bits that only the server can compute. A report names the
//! packets received among the last [`WINDOW`] numbers, with a digest of their nonces. A client must
//! guess the nonce of a packet that it names but has not received. A guess is detected in seven of
//! eight cases, and `n` guesses in all but one of `8^n` cases. An acknowledgement of a packet that
//! the server has not sent yet is always detected. Nonces do not lengthen packets, because their
//! bits were free in the first byte.
//!
//! Feedback also holds counts, which lost feedback cannot falsify. The server accepts counts only
//! up to a multiple of the proven packets.
//!
//! Source: the nonce sum of RFC 3540. Differs: the sum there covers all packets, and one loss
//! invalidates it; a digest over named packets survives losses. RFC 9000 section 21.4 skips packet
//! numbers at random. A client on a full link sees which numbers arrive, and could inflate its
//! counts without naming a skipped number.

/// Number of latest packet numbers that a receipt covers.
pub const WINDOW: u32 = u32::BITS;
/// Number of random bits per packet.
pub const NONCE_BITS: usize = 3;
/// Maximum number of packets counted as received per proven packet.
///
/// If packets take two paths of different delay, half of the packets arrive without proof, after
/// their numbers have left the window.
pub const CREDIT_FACTOR: u32 = 2;
/// Maximum number of packets counted as received without proof. With bursts of losses, a sample of
/// the latest numbers may show fewer packets than the mean.
const CREDIT_MAX: u64 = 4_096;
/// Number of packets counted as received without proof at the start.
const CREDIT_FIRST: u64 = WINDOW as u64;
/// Number of nonces from one hash.
const BLOCK: u32 = 64;

/// Proof of arrival of the latest packets.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Receipt {
    /// Bitmap of received packets: bit `n` is the packet whose number is `n` below the highest
    /// number.
    pub came: u32,
    /// Digest of the named packets' nonces.
    pub digest: u16,
}

/// Digest of the nonces of received packets; `planes` has a word for each bit of a nonce.
///
/// The digest need not resist a search: a client that does not know a nonce cannot know the digest
/// either.
fn digest(came: u32, planes: [u32; NONCE_BITS]) -> u16 {
    const FACTORS: [u64; NONCE_BITS] = [0x9e37_79b9_7f4a_7c15, 0xbf58_476d_1ce4_e5b9, 0x94d0_49bb_1331_11eb];
    let sum = planes.iter().zip(FACTORS).fold(0u64, |sum, (plane, factor)| {
        (sum ^ u64::from(plane & came)).wrapping_mul(factor).rotate_left(29)
    });
    (sum >> 48) as u16
}

/// The client's side of receipts: the received packets of one pull.
#[derive(Clone, Debug, Default)]
pub struct ReceivedPackets {
    next: u32,
    came: u32,
    planes: [u32; NONCE_BITS],
}

impl ReceivedPackets {
    /// Records a packet; a duplicate has no effect.
    pub fn handle_packet(&mut self, sequence: u32, nonce: u8) {
        if sequence >= self.next {
            let by = sequence - self.next + 1;
            let shift = |word: u32| word.checked_shl(by).unwrap_or(0);
            (self.came, self.planes) = (shift(self.came), self.planes.map(shift));
            self.next = sequence + 1;
        }
        let at = self.next - 1 - sequence;
        if at >= WINDOW || self.came >> at & 1 == 1 {
            return;
        }
        self.came |= 1 << at;
        set(&mut self.planes, at, nonce);
    }

    /// Receipt for the latest packets received.
    pub fn receipt(&self) -> Receipt {
        Receipt { came: self.came, digest: digest(self.came, self.planes) }
    }
}

fn set(planes: &mut [u32; NONCE_BITS], at: u32, nonce: u8) {
    for (bit, plane) in planes.iter_mut().enumerate() {
        *plane |= u32::from(nonce >> bit & 1) << at;
    }
}

/// The server's side of receipts: the nonces of one pull's packets.
#[derive(Clone, Debug)]
pub(crate) struct Nonces {
    key: [u8; 32],
    /// Number of the block of nonces in `block`.
    number: u32,
    block: [u8; BLOCK as usize],
}

impl Nonces {
    /// Nonces derived from `secret`, which the client cannot guess.
    pub fn new(secret: u64) -> Self {
        let key = blake3::derive_key("anabranch gather 2026 nonces of packets", &secret.to_le_bytes());
        Self { key, number: 0, block: block(&key, 0) }
    }

    /// The nonce of a packet.
    pub fn nonce(&mut self, sequence: u32) -> u8 {
        let number = sequence / BLOCK;
        if number != self.number {
            (self.number, self.block) = (number, block(&self.key, number));
        }
        self.block[(sequence % BLOCK) as usize] >> (u8::BITS as usize - NONCE_BITS)
    }

    /// Whether a receipt for packets below `next` is true: its digest matches the nonces of the
    /// packets that it names.
    pub fn is_true(&self, next: u32, receipt: Receipt) -> bool {
        // The highest packet must have arrived, and no packet has a number below 0.
        let above = receipt.came.checked_shr(next).unwrap_or(0);
        if (next > 0) != (receipt.came & 1 == 1) || above > 0 {
            return false;
        }
        let mut nonces = self.clone();
        let mut planes = [0; NONCE_BITS];
        let mut left = receipt.came;
        while left > 0 {
            let at = left.trailing_zeros();
            set(&mut planes, at, nonces.nonce(next - 1 - at));
            left &= left - 1;
        }
        receipt.digest == digest(receipt.came, planes)
    }
}

fn block(key: &[u8; 32], number: u32) -> [u8; BLOCK as usize] {
    let mut bytes = [0; BLOCK as usize];
    blake3::Hasher::new_keyed(key).update(&number.to_le_bytes()).finalize_xof().fill(&mut bytes);
    bytes
}

/// Bound on a client's counts of packets.
///
/// The receipt's window is a sample of the numbers since the last receipt. A client can choose the
/// time of a receipt, but not which packets pass a full link.
#[derive(Clone, Debug)]
pub(crate) struct Credit {
    next: u32,
    came: u32,
    /// Number of packets that may still be counted as received.
    packets: u64,
    /// Number of packets proven by all receipts.
    proven: u64,
    /// Share of received packets among the new numbers in the last receipt that had new numbers.
    share: f64,
}

impl Default for Credit {
    fn default() -> Self {
        Self { next: 0, came: 0, packets: CREDIT_FIRST, proven: 0, share: 1.0 }
    }
}

impl Credit {
    /// Handles a true receipt for packets below `next`. `next` never decreases.
    pub fn handle_receipt(&mut self, next: u32, receipt: Receipt) {
        let passed = next - self.next;
        let window = passed.min(WINDOW);
        let is_new = u32::MAX.checked_shr(WINDOW - window).unwrap_or(0);
        let mut proven = 0;
        if passed > 0 {
            self.share = f64::from((receipt.came & is_new).count_ones()) / f64::from(window);
            proven = (self.share * f64::from(passed)).ceil() as u64;
        }
        // Packets that arrived late are proven, too, unless an earlier receipt named them.
        let before = self.came.checked_shl(passed).unwrap_or(0);
        proven += u64::from((receipt.came & !is_new & !before).count_ones());
        (self.next, self.came) = (next, receipt.came);
        self.proven += proven;
        self.packets = (self.packets + proven * u64::from(CREDIT_FACTOR))
            .min(CREDIT_MAX.max(proven * u64::from(CREDIT_FACTOR)));
    }

    /// Takes credit for `packets` that the client has counted. Returns the number of packets that
    /// count as received.
    pub fn take(&mut self, packets: u32) -> u32 {
        let taken = u64::from(packets).min(self.packets);
        self.packets -= taken;
        taken as u32
    }

    /// Number of packets proven by all receipts.
    pub const fn proven(&self) -> u64 {
        self.proven
    }

    /// Share of received packets among the new numbers in the last receipt that had new numbers.
    pub const fn share(&self) -> f64 {
        self.share
    }
}

#[cfg(test)]
mod tests;
