//! Receipts: a client's proof that it has received the packets which it acknowledges.
//!
//! Each packet carries [`NONCE_BITS`] bits that only the server can compute. A report names the packets that have come among the last
//! [`WINDOW`] numbers, and has a digest of their nonces. A client that names a packet which it has not received guesses a nonce: it
//! is found out in seven of eight cases, and with `n` such packets in all but one of `8^n`. An acknowledgement of a packet that the server
//! has not sent yet is found out always. A packet is not longer for it: the bits were free in its first byte.
//!
//! Feedback holds counts besides, which loss of feedback cannot spoil. The server bounds what a count is worth by what is proven.
//!
//! Source: the nonce sum of RFC 3540. Differs: the sum there is over all packets, and is lost with one of them; a digest over named
//! packets is not. RFC 9000 section 21.4 skips numbers at random, which leaves a client undetected that learns the numbers from the
//! packets which a full link lets through, and adds to counts.

/// Numbers of packets that a receipt is about: the last ones.
pub const WINDOW: u32 = u32::BITS;
/// Random bits of each packet.
pub const NONCE_BITS: usize = 3;
/// Packets that count as received for each one that is proven, at the most.
///
/// Where packets take two paths of unlike delay, one half arrives after its numbers have left the window, and has no proof.
pub const CREDIT_FACTOR: u32 = 2;
/// Most packets that count as received without proof. Where losses come in bursts, a sample of the last numbers may show less than the mean.
const CREDIT_MAX: u64 = 4_096;
/// Packets that count as received without proof at the start.
const CREDIT_FIRST: u64 = WINDOW as u64;
/// Number of nonces that one hash gives.
const BLOCK: u32 = 64;

/// Proof that the last packets have come.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Receipt {
    /// The packets that have come: bit `n` stands for the packet that is `n` below the highest one.
    pub came: u32,
    /// The digest of their nonces.
    pub digest: u16,
}

/// Digest of the nonces of packets that have come; `planes` has a word for each bit of a nonce.
///
/// It need not resist a search: a client that does not know a nonce cannot know the digest either.
fn digest(came: u32, planes: [u32; NONCE_BITS]) -> u16 {
    const FACTORS: [u64; NONCE_BITS] = [0x9e37_79b9_7f4a_7c15, 0xbf58_476d_1ce4_e5b9, 0x94d0_49bb_1331_11eb];
    let sum = planes.iter().zip(FACTORS).fold(0u64, |sum, (plane, factor)| {
        (sum ^ u64::from(plane & came)).wrapping_mul(factor).rotate_left(29)
    });
    (sum >> 48) as u16
}

/// The client's side: the packets that have come of one pull.
#[derive(Clone, Debug, Default)]
pub struct Received {
    next: u32,
    came: u32,
    planes: [u32; NONCE_BITS],
}

impl Received {
    /// A packet has come; a copy of one changes nothing.
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

    /// Proof of the last packets that have come.
    pub fn receipt(&self) -> Receipt {
        Receipt { came: self.came, digest: digest(self.came, self.planes) }
    }
}

fn set(planes: &mut [u32; NONCE_BITS], at: u32, nonce: u8) {
    for (bit, plane) in planes.iter_mut().enumerate() {
        *plane |= u32::from(nonce >> bit & 1) << at;
    }
}

/// The server's side: the nonces of one pull's packets.
#[derive(Clone, Debug)]
pub(crate) struct Nonces {
    key: [u8; 32],
    /// The last block that was computed.
    number: u32,
    block: [u8; BLOCK as usize],
}

impl Nonces {
    /// The nonces that follow from a number which the client cannot guess.
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

    /// Whether a receipt of packets below `next` is true.
    pub fn is_true(&self, next: u32, receipt: Receipt) -> bool {
        // The highest packet has come, and none has a number below 0.
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
/// Of the numbers since the last receipt those in the window are a sample of all. A client can choose when it gives a receipt, but not
/// which packets a full link lets through.
#[derive(Clone, Debug)]
pub(crate) struct Credit {
    next: u32,
    came: u32,
    /// Packets that may still count.
    packets: u64,
    /// Packets that have come, by all receipts.
    proven: u64,
    /// Share of packets that have come, by the last receipt with new ones.
    share: f64,
}

impl Default for Credit {
    fn default() -> Self {
        Self { next: 0, came: 0, packets: CREDIT_FIRST, proven: 0, share: 1.0 }
    }
}

impl Credit {
    /// Takes in a receipt that is true, of packets below `next`, which is not lower than before.
    pub fn handle_receipt(&mut self, next: u32, receipt: Receipt) {
        let passed = next - self.next;
        let window = passed.min(WINDOW);
        let is_new = u32::MAX.checked_shr(WINDOW - window).unwrap_or(0);
        let mut proven = 0;
        if passed > 0 {
            self.share = f64::from((receipt.came & is_new).count_ones()) / f64::from(window);
            proven = (self.share * f64::from(passed)).ceil() as u64;
        }
        // Late packets, whose numbers an earlier receipt had passed.
        let before = self.came.checked_shl(passed).unwrap_or(0);
        proven += u64::from((receipt.came & !is_new & !before).count_ones());
        (self.next, self.came) = (next, receipt.came);
        self.proven += proven;
        self.packets = (self.packets + proven * u64::from(CREDIT_FACTOR))
            .min(CREDIT_MAX.max(proven * u64::from(CREDIT_FACTOR)));
    }

    /// Packets that count as received, of `packets` that the client counts.
    pub fn take(&mut self, packets: u32) -> u32 {
        let taken = u64::from(packets).min(self.packets);
        self.packets -= taken;
        taken as u32
    }

    /// Packets that have come, by all receipts.
    pub const fn proven(&self) -> u64 {
        self.proven
    }

    /// Share of packets that have come, by the last receipt with new ones.
    pub const fn share(&self) -> f64 {
        self.share
    }
}

#[cfg(test)]
mod tests;
