//! Repair packets of a systematic code: the blocks that each packet sums.
//!
//! A receiver uses repair packets once it has most of the blocks, and only a packet's missing
//! blocks count. The degrees of a code for all blocks (the robust soliton's, 5 to 20 on average)
//! are then far too low: one missing block of 64 would be in one packet of ten. Rows of uniform
//! random bits are nearly independent for every set of missing blocks: m blocks take m + 1.6
//! packets on average.
//!
//! Up to [`DENSE_MAX`] blocks, sums of half the blocks are cheap. With more blocks, a receiver that
//! gets to packet n of repair in order has about n missing blocks or more, so smaller degrees
//! suffice. Packet n sums [`SHARE`] k / (n + 1) blocks, so it sums [`SHARE`] missing blocks or
//! more. For every number of missing blocks, these degrees have the order of the ideal soliton's.

use super::Bits;

/// Maximum number of blocks for which each repair packet except the first sums about half of them.
const DENSE_MAX: u32 = 256;
/// Number of missing blocks in a repair packet if as many blocks are missing as packets were sent
/// before. Measured with 500 of 10,000 blocks missing: with 3 instead, 4 more packets are needed;
/// with 2, 25 more.
const SHARE: u32 = 4;
/// Minimum degree of a packet with more than [`DENSE_MAX`] blocks.
const DEGREE_MIN: u32 = 32;

/// Degree of repair packet `number` with `blocks` blocks; `None` for a random half of the blocks.
fn degree(number: u32, blocks: u32) -> Option<u32> {
    let degree = (u64::from(SHARE) * u64::from(blocks) / (u64::from(number) + 1)) as u32;
    (blocks > DENSE_MAX && 2 * degree < blocks).then_some(degree.max(DEGREE_MIN))
}

/// Mean degree of the first `blocks` repair packets.
pub(super) fn degree_mean(blocks: u32) -> f64 {
    let half = f64::from(blocks) / 2.0;
    let of = |number| degree(number, blocks).map_or(half, |degree| f64::from(degree) + 0.5);
    ((1..blocks).map(of).sum::<f64>() + 2.0 * half) / f64::from(blocks)
}

/// Visits the blocks of repair packet `number`. A table of `WORDS` words has a bit for each block.
///
/// Format: the first packet sums all blocks. For a random half, each block has one of the next
/// bits, 32 at a time and the lowest first; set bits select blocks. If no bit is set, new bits are
/// drawn. For a smaller degree, one bit is added to the degree, then 32 bits draw each block;
/// duplicates are drawn again.
pub(super) fn draw<const WORDS: usize>(number: u32, blocks: u32, mut bits: Bits, mut visit: impl FnMut(u32)) {
    if number == 0 {
        return (0..blocks).for_each(visit);
    }
    let Some(degree) = degree(number, blocks) else {
        let mut is_empty = true;
        while is_empty {
            for start in (0..blocks).step_by(32) {
                let mut ones = bits.next() & (u32::MAX >> (32 - (blocks - start).min(32)));
                is_empty &= ones == 0;
                while ones != 0 {
                    visit(start + ones.trailing_zeros());
                    ones &= ones - 1;
                }
            }
        }
        return;
    };
    let mut table = [0; WORDS];
    let mut left = degree + (bits.next() & 1);
    while left > 0 {
        if let Some(block) = bits.below_new(blocks, &mut table) {
            left -= 1;
            visit(block);
        }
    }
}
