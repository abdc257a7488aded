//! Which blocks the repair packets of a systematic code sum.
//!
//! A receiver looks at repair once it has most of the blocks, and only the missing ones count. Degrees for all blocks (the
//! robust soliton's, 5 to 20 in the mean) then are far too low: one missing block of 64 would be in one packet of ten. Rows
//! of evenly drawn bits are independent of each other whatever is missing: m blocks take m + 1.6 packets in the mean.
//!
//! Half of all blocks in each packet is cheap up to [`DENSE_MAX`] of them. With more blocks, a receiver that comes to packet n of
//! repair in order misses about n blocks or more, so that fewer will do: packet n sums [`SHARE`] k / (n + 1), which is
//! [`SHARE`] or more missing ones. That is each time the ideal soliton's order of degrees, for every number of missing blocks.

use super::Bits;

/// Up to so many blocks, each repair packet but the first sums about half of them.
const DENSE_MAX: u32 = 256;
/// Missing blocks that a packet of repair sums, where as many are missing as packets came before. Measured: 3 need 4 packets
/// more where 500 of 10,000 blocks are missing; 2 need 25 more.
const SHARE: u32 = 4;
/// The fewest blocks that a packet sums where there are more than [`DENSE_MAX`].
const DEGREE_MIN: u32 = 32;

/// How many blocks repair packet `number` sums of `blocks`; `None` for a random half.
fn degree(number: u32, blocks: u32) -> Option<u32> {
    let degree = (u64::from(SHARE) * u64::from(blocks) / (u64::from(number) + 1)) as u32;
    (blocks > DENSE_MAX && 2 * degree < blocks).then_some(degree.max(DEGREE_MIN))
}

/// How many blocks the first packets of repair sum in the mean, as many packets as blocks.
pub(super) fn degree_mean(blocks: u32) -> f64 {
    let half = f64::from(blocks) / 2.0;
    let of = |number| degree(number, blocks).map_or(half, |degree| f64::from(degree) + 0.5);
    ((1..blocks).map(of).sum::<f64>() + 2.0 * half) / f64::from(blocks)
}

/// Visits the blocks of repair packet `number`. `WORDS` has a bit for each block.
///
/// Format: the first packet sums all. Where half are summed, the blocks are the ones among the next bits, 32 at a time and
/// the lowest first; where there is none, more bits are drawn. Where fewer are, one bit makes the degree odd or even, and
/// 32 draw each block, those that come twice drawn again.
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
