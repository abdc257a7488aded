//! A buffer that the ports of a switch share, with a threshold that follows its free space.
//!
//! Source: Choudhury and Hahne, *Dynamic queue length thresholds for shared-memory packet switches*
//! (1998), equation 1: a queue may hold at most alpha times the free space. Leaves out: reserved
//! shares. Read [`SharedBuffer`] first.

use anabranch_units::ByteCount;

/// A shared buffer of a fabric, by index.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct BufferId(pub u16);

/// The buffer of all ports that refer to it. As in a port's own queue, the packet being sent is not
/// in the buffer.
///
/// ```
/// use anabranch_fabric::SharedBuffer;
/// use anabranch_units::ByteCount;
/// // Alpha of 1: a queue alone gets half, as then as much is free as it holds.
/// let buffer = SharedBuffer::new(ByteCount::new(10_000), Some(1_000));
/// assert_eq!(buffer.queue_bytes_max(), 10_000);
/// ```
#[derive(Clone, Debug)]
pub struct SharedBuffer {
    bytes_max: u64,
    bytes: u64,
    alpha_milli: Option<u32>,
}

impl SharedBuffer {
    /// Creates an empty buffer of `bytes_max`. With `alpha_milli` (alpha times 1,000) no queue may
    /// hold more than alpha times the free space. Without it, any queue may use all free space.
    pub const fn new(bytes_max: ByteCount, alpha_milli: Option<u32>) -> Self {
        Self { bytes_max: bytes_max.as_u64(), bytes: 0, alpha_milli }
    }

    /// Current maximum of a queue in bytes.
    pub fn queue_bytes_max(&self) -> u64 {
        let free = self.bytes_max - self.bytes;
        match self.alpha_milli {
            Some(alpha) => (u128::from(free) * u128::from(alpha) / 1_000).min(u128::from(u64::MAX)) as u64,
            None => u64::MAX,
        }
    }
    /// Number of bytes in the buffer.
    pub const fn bytes(&self) -> ByteCount {
        ByteCount::new(self.bytes)
    }

    /// Adds a packet to a queue that holds `queue_bytes`. Returns false, and changes nothing, if
    /// there is no room.
    #[inline]
    pub(crate) fn enter(&mut self, queue_bytes: u64, size_bytes: u32) -> bool {
        let size = u64::from(size_bytes);
        let fits = self.bytes + size <= self.bytes_max && queue_bytes + size <= self.queue_bytes_max();
        self.bytes += if fits { size } else { 0 };
        fits
    }
    #[inline]
    pub(crate) fn leave(&mut self, size_bytes: u32) {
        self.bytes -= u64::from(size_bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn single_queue_gets_alpha_over_one_plus_alpha() {
        for (alpha_milli, share) in [(500, 1.0 / 3.0), (1_000, 0.5), (2_000, 2.0 / 3.0)] {
            let mut buffer = SharedBuffer::new(ByteCount::new(300_000), Some(alpha_milli));
            let mut queue = 0;
            while buffer.enter(queue, 100) {
                queue += 100;
            }
            assert!((queue as f64 / 300_000.0 - share).abs() < 0.001, "{alpha_milli}: {queue}");
        }
    }

    #[test]
    fn without_alpha_one_queue_may_use_the_whole_buffer() {
        let mut buffer = SharedBuffer::new(ByteCount::new(1_000), None);
        assert!(buffer.enter(0, 600) && !buffer.enter(600, 401) && buffer.enter(600, 400));
        buffer.leave(600);
        assert_eq!(buffer.bytes(), ByteCount::new(400));
    }
}
