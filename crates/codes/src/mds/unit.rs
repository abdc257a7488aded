//! Units of packets: a fixed number of blocks and of parities, which are all encoded and recovered
//! at once.
//!
//! Tables that do not depend on the data are computed in advance. Lost blocks are sums of the
//! received blocks and of as many parities as there are lost blocks. The submatrix to invert is a
//! Cauchy matrix with scaled columns, whose inverse is a formula.
//!
//! Source: Schechter, *On the Inversion of Certain Matrices* (1959), for the inverse. Leaves out:
//! packets that arrive one by one, and an unlimited number of parities
//! ([`Elimination`](super::Elimination)).

use super::{BLOCKS_MAX, Code, Elimination, FIELD};
use crate::fixed::{FixedRate, SizeError};
use crate::kernel::gf_dot_rows;
use crate::{Gf, Symbol, gf_mul_add, xor};
use std::fmt;

/// Granularity of coefficient rows in bytes: the widest vector.
const ROW_STEP: usize = 64;

/// Numbers of blocks and parities that a unit does not support.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnitError {
    /// Number of blocks.
    pub blocks: usize,
    /// Number of parities.
    pub parities: usize,
}

impl fmt::Display for UnitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { blocks, parities } = self;
        write!(
            f,
            "{blocks} blocks and {parities} parities: must be {FIELD} at most together, with a block at least"
        )
    }
}
impl std::error::Error for UnitError {}

/// More blocks are lost than parities were received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TooManyErasures {
    /// Number of lost blocks.
    pub lost: usize,
    /// Number of received parities.
    pub parities: usize,
}

impl fmt::Display for TooManyErasures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} blocks are lost: must be {} at most, as there are parities", self.lost, self.parities)
    }
}
impl std::error::Error for TooManyErasures {}

/// The code [`Code`] for a fixed number of blocks and parities.
///
/// Cost: construction takes one byte operation per block and parity; a unit should be reused.
///
/// ```
/// use anabranch_codes::mds::Unit;
/// let unit = Unit::new(3, 2)?;
/// let (mut first, mut second) = ([0; 4], [0; 4]);
/// unit.encode(&[b"some", b"more", b"end."], &mut [&mut first, &mut second]);
/// let mut lost = [0; 4];
/// unit.recover(&[Some(b"some"), None, Some(b"end."), None, Some(&second)], &mut [&mut lost])?;
/// assert_eq!(&lost, b"more");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Unit {
    code: Code,
    parities: usize,
    /// Coefficients of each parity, one per block, padded with zeros to [`Unit::stride`].
    rows: Vec<u8>,
}

impl Unit {
    /// Creates the unit of `blocks` blocks and `parities` parities.
    ///
    /// Errors: 0 blocks; more blocks and parities together than the field has elements.
    pub fn new(blocks: usize, parities: usize) -> Result<Self, UnitError> {
        let error = UnitError { blocks, parities };
        let code = Code::new(blocks).map_err(|_| error.clone())?;
        if blocks + parities > FIELD {
            return Err(error);
        }
        let mut rows = Vec::new();
        for parity in 0..parities {
            rows.extend(code.coefficients((blocks + parity) as u32));
            rows.resize((parity + 1) * blocks.next_multiple_of(ROW_STEP), 0);
        }
        Ok(Self { code, parities, rows })
    }
    /// Number of blocks.
    pub const fn blocks(&self) -> usize {
        self.code.blocks()
    }
    /// Number of parities.
    pub const fn parities(&self) -> usize {
        self.parities
    }
    fn stride(&self) -> usize {
        self.blocks().next_multiple_of(ROW_STEP)
    }
    fn padded(&self, parity: usize) -> &[u8] {
        &self.rows[parity * self.stride()..][..self.stride()]
    }

    /// Encodes all parities of these blocks.
    ///
    /// Shape: `blocks` has the unit's number of blocks, each at most as long as the parities and
    /// padded with zeros. `parities` has the unit's number of parities, all of one length.
    /// Panics: if a number is wrong, or a block is longer than the parities.
    /// Cost: each block is read once for every six parities.
    pub fn encode(&self, blocks: &[&[u8]], parities: &mut [&mut [u8]]) {
        assert_eq!(blocks.len(), self.blocks(), "as many blocks as the unit has");
        assert_eq!(parities.len(), self.parities, "as many parities as the unit has");
        if let [parity] = &mut *parities
            && blocks.iter().all(|block| block.len() == parity.len())
        {
            // The first parity is plain XOR.
            return xor(blocks, parity);
        }
        sums(|parity| &self.padded(parity)[..blocks.len()], blocks, parities);
    }

    /// Recovers the lost blocks, in order.
    ///
    /// Shape: `packets` has an entry for each block and parity, by id; `None` if it is lost or not
    /// yet received. All have one length, except that blocks may be shorter and count as padded
    /// with zeros. `lost` has an output of that length for each lost block.
    /// Errors: more blocks are lost than parities were received.
    /// Panics: if the number of packets or outputs, or a length, is wrong.
    /// Cost: encoding as many parities as blocks are lost, and m^2 operations on bytes for m lost
    /// blocks.
    pub fn recover(&self, packets: &[Option<&[u8]>], lost: &mut [&mut [u8]]) -> Result<(), TooManyErasures> {
        let blocks = self.blocks();
        assert_eq!(
            packets.len(),
            blocks + self.parities,
            "as many packets as blocks and parities, lost or not"
        );
        let count = packets[..blocks].iter().filter(|block| block.is_none()).count();
        assert_eq!(lost.len(), count, "as many outputs as lost blocks");
        let there = packets[blocks..].iter().flatten().count();
        if there < count {
            return Err(TooManyErasures { lost: count, parities: there });
        }
        let Some(len) = lost.first().map(|output| output.len()) else { return Ok(()) };
        // In the inputs, the parity used for a lost block takes the block's position.
        let mut taken = (blocks..packets.len()).filter(|id| packets[*id].is_some());
        let mut places = Vec::with_capacity(count);
        let mut inputs: Vec<&[u8]> = Vec::with_capacity(blocks);
        for (block, packet) in packets[..blocks].iter().enumerate() {
            inputs.push(packet.unwrap_or_else(|| {
                let id = taken.next().expect("there are as many parities as lost blocks");
                places.push((block, id));
                packets[id].expect("it is there")
            }));
        }
        if let ([(_, id)], [output]) = (&places[..], &mut *lost)
            && *id == blocks
            && inputs.iter().all(|input| input.len() == len)
        {
            xor(&inputs, output);
            return Ok(());
        }
        let rows = self.rows_of_lost(&places);
        sums(|output| &rows[output * self.stride()..][..blocks], &inputs, lost);
        Ok(())
    }

    /// Coefficients for each lost block: one for each received block, and one for each parity at
    /// the position of the block that it replaces. `places` has the lost blocks with their
    /// parities.
    fn rows_of_lost(&self, places: &[(usize, usize)]) -> Vec<u8> {
        let (count, stride) = (places.len(), self.stride());
        let inverse = inverse(self.blocks(), places);
        let of_parities: Vec<&[u8]> = places.iter().map(|(_, id)| self.padded(id - self.blocks())).collect();
        let mut rows = vec![0; count * stride];
        let mut outputs: Vec<&mut [u8]> = rows.chunks_mut(stride).collect();
        let factors = |lost: usize| &inverse[lost * count..][..count];
        gf_dot_rows(factors, &of_parities, &mut outputs);
        for (lost, row) in outputs.iter_mut().enumerate() {
            for ((block, _), factor) in places.iter().zip(factors(lost)) {
                row[*block] = *factor;
            }
        }
        rows
    }
}

impl FixedRate for Unit {
    type Decoder<S: Symbol> = Elimination<S>;

    fn new(blocks: usize, parities: usize) -> Result<Self, SizeError> {
        Self::new(blocks, parities).map_err(|_| SizeError { blocks, parities, most: BLOCKS_MAX })
    }
    fn encode<S: Symbol>(&self, blocks: &[S], len: usize) -> Vec<S> {
        let ids = self.blocks()..self.blocks() + self.parities;
        ids.map(|id| self.code.encode(blocks, id as u32, len)).collect()
    }
    fn decoder<S: Symbol>(&self, len: usize) -> Elimination<S> {
        Elimination::new(self.code, len)
    }
}

/// Inverse of the matrix of these parities' coefficients for these blocks: a row for each block,
/// with one cell for each parity.
fn inverse(blocks: usize, places: &[(usize, usize)]) -> Vec<u8> {
    let count = places.len();
    let log = |a: usize, b: usize| Gf((a ^ b) as u8).log();
    let of_others = |of: &dyn Fn(usize) -> usize, at: usize| -> u32 {
        (0..count).filter(|other| *other != at).map(|other| log(of(at), of(other))).sum()
    };
    let (x, y) = (&|at: usize| places[at].1, &|at: usize| places[at].0);
    // Logarithm of the factor that a column, or a row, has in common.
    let shared = |at: usize, is_row: bool| {
        let all: u32 =
            (0..count).map(|other| if is_row { log(x(other), y(at)) } else { log(x(at), y(other)) }).sum();
        let less = if is_row { of_others(y, at) + log(blocks, y(at)) } else { of_others(x, at) };
        i64::from(all) - i64::from(less)
    };
    let of_columns: Vec<i64> = (0..count).map(|at| shared(at, false)).collect();
    let mut cells = Vec::with_capacity(count * count);
    for row in 0..count {
        let of_row = shared(row, true);
        cells.extend(
            (0..count)
                .map(|column| Gf::exp(of_row + of_columns[column] - i64::from(log(x(column), y(row)))).0),
        );
    }
    cells
}

/// Writes sums of the inputs to the outputs; inputs may be shorter than the outputs. `row` returns
/// the row of coefficients of an output.
fn sums<'a>(row: impl Fn(usize) -> &'a [u8], inputs: &[&[u8]], outputs: &mut [&mut [u8]]) {
    let Some(len) = outputs.first().map(|output| output.len()) else { return };
    let is_whole = |input: &[u8]| input.len() == len;
    if inputs.iter().all(|input| is_whole(input)) {
        return gf_dot_rows(row, inputs, outputs);
    }
    let whole: Vec<&[u8]> = inputs.iter().copied().filter(|input| is_whole(input)).collect();
    let of_whole = |output: usize| {
        let factors = row(output).iter().zip(inputs).filter(|(_, input)| is_whole(input));
        factors.map(|(factor, _)| *factor).collect()
    };
    let rows: Vec<Vec<u8>> = (0..outputs.len()).map(of_whole).collect();
    gf_dot_rows(|output| &rows[output], &whole, outputs);
    for (at, input) in inputs.iter().enumerate().filter(|(_, input)| !is_whole(input)) {
        assert!(
            input.len() < len,
            "a block has {} bytes: must have at most {len}, as the parities",
            input.len()
        );
        for (number, output) in outputs.iter_mut().enumerate() {
            gf_mul_add(&[row(number)[at]], &[input], &mut output[..input.len()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Matrix;
    use crate::lt::Bits;
    use proptest::prelude::*;

    fn drawn(random: &mut Bits, count: usize, len: usize) -> Vec<Vec<u8>> {
        (0..count).map(|_| (0..len).map(|_| random.below(256) as u8).collect()).collect()
    }
    fn slices(blocks: &[Vec<u8>]) -> Vec<&[u8]> {
        blocks.iter().map(Vec::as_slice).collect()
    }

    proptest! {
        #[test]
        fn any_parities_recover_as_many_lost_blocks(
            blocks in 1usize..=60, parities in 0usize..=20, len in 0usize..200, seed: u32,
        ) {
            let mut random = Bits::new(seed);
            let unit = Unit::new(blocks, parities).expect("few");
            let mut data = drawn(&mut random, blocks, len);
            // Some blocks are shorter.
            if random.below(2) == 0 {
                data.iter_mut().for_each(|block| block.truncate(len - random.below(len as u32 + 1) as usize));
            }
            let mut made = vec![vec![7; len]; parities];
            unit.encode(&slices(&data), &mut made.iter_mut().map(Vec::as_mut_slice).collect::<Vec<_>>());
            for (parity, made) in made.iter().enumerate() {
                let mut same = vec![9; len];
                unit.code.encode_into(&data, (blocks + parity) as u32, &mut same);
                prop_assert_eq!(made, &same);
            }
            let mut packets: Vec<Option<&[u8]>> = slices(&data).into_iter().chain(slices(&made)).map(Some).collect();
            for _ in 0..parities {
                packets[random.below((blocks + parities) as u32) as usize] = None;
            }
            let lost: Vec<usize> = (0..blocks).filter(|block| packets[*block].is_none()).collect();
            let mut outputs = vec![vec![3; len]; lost.len()];
            let found = unit.recover(&packets, &mut outputs.iter_mut().map(Vec::as_mut_slice).collect::<Vec<_>>());
            prop_assert_eq!(found, Ok(()));
            for (block, output) in lost.iter().zip(&outputs) {
                let mut whole = data[*block].clone();
                whole.resize(len, 0);
                prop_assert_eq!(output, &whole);
            }
        }

        #[test]
        fn inverse_formula_matches_elimination(blocks in 1usize..=128, count in 1usize..=30, seed: u32) {
            let mut random = Bits::new(seed);
            let count = count.min(blocks);
            let mut draw = |first: usize, end: usize| {
                let mut all: Vec<usize> = (first..end).collect();
                (0..count).for_each(|at| {
                    let other = at + random.below((all.len() - at) as u32) as usize;
                    all.swap(at, other);
                });
                all.truncate(count);
                all.sort_unstable();
                all
            };
            let places: Vec<(usize, usize)> = draw(0, blocks).into_iter().zip(draw(blocks, FIELD)).collect();
            let code = Code::new(blocks).expect("few");
            let rows: Vec<Vec<u8>> = places
                .iter()
                .map(|(_, id)| {
                    let row = code.coefficients(*id as u32);
                    places.iter().map(|(block, _)| row[*block]).collect()
                })
                .collect();
            let matrix = Matrix::from_rows(&rows).expect("a square one").inverse().expect("the code is MDS");
            let cells = (0..count).flat_map(|row| (0..count).map(move |column| (row, column)));
            prop_assert_eq!(inverse(blocks, &places), cells.map(|at| matrix[at].0).collect::<Vec<u8>>());
        }
    }

    #[test]
    fn code_sizes_out_of_range_are_refused() {
        assert!(Unit::new(250, 6).is_ok());
        let error = Unit::new(250, 7).expect_err("one too many");
        assert_eq!(
            error.to_string(),
            "250 blocks and 7 parities: must be 256 at most together, with a block at least"
        );
        assert!(Unit::new(0, 1).is_err());
        let unit = Unit::new(2, 1).expect("few");
        let error = unit.recover(&[None, None, Some(b"x")], &mut [&mut [0], &mut [0]]);
        let error = error.expect_err("two are lost");
        assert_eq!(error.to_string(), "2 blocks are lost: must be 1 at most, as there are parities");
    }

    #[test]
    fn unit_without_parities_or_losses_writes_no_output() {
        let unit = Unit::new(2, 0).expect("few");
        unit.encode(&[b"a", b"b"], &mut []);
        assert_eq!(unit.recover(&[Some(b"a"), Some(b"b")], &mut []), Ok(()));
    }
}
