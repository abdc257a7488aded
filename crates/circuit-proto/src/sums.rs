//! Row sums and column sums of a matrix between racks.
//!
//! Leaves out: the matrix itself. Read [`Sums`] first.

use std::ops::AddAssign;

/// Sums of a matrix: one for each source's row, and one for each destination's column.
pub(crate) struct Sums<T> {
    pub rows: Vec<T>,
    pub columns: Vec<T>,
}

impl<T: Copy + Default + Ord + AddAssign> Sums<T> {
    /// The sums of `entries`, which are ordered by source, then destination.
    pub fn of(racks: usize, entries: impl IntoIterator<Item = T>) -> Self {
        let mut sums = Self { rows: vec![T::default(); racks], columns: vec![T::default(); racks] };
        for (pair, entry) in entries.into_iter().enumerate() {
            sums.rows[pair / racks] += entry;
            sums.columns[pair % racks] += entry;
        }
        sums
    }

    /// The largest sum. Zero without racks.
    pub fn largest(&self) -> T {
        self.rows.iter().chain(&self.columns).copied().max().unwrap_or_default()
    }
}

impl Sums<u64> {
    /// Adds to an entry until its row or its column has the sum `target`; neither sum may exceed
    /// `target` before. Returns the addition.
    ///
    /// Once this was called for each entry, all rows and columns have this sum.
    pub fn stuff(&mut self, row: usize, column: usize, target: u64) -> u64 {
        let more = (target - self.rows[row]).min(target - self.columns[column]);
        self.rows[row] += more;
        self.columns[column] += more;
        more
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn stuffing_in_any_order_fills_all_rows_and_columns(
            (racks, entries, order) in (2usize..7).prop_flat_map(|racks| {
                let pairs: Vec<usize> = (0..racks * racks).collect();
                (Just(racks), prop::collection::vec(0u64..50, racks * racks), Just(pairs).prop_shuffle())
            })
        ) {
            let mut entries = entries;
            let mut sums = Sums::of(racks, entries.iter().copied());
            let target = sums.largest();
            for pair in order {
                entries[pair] += sums.stuff(pair / racks, pair % racks, target);
            }
            let stuffed = Sums::of(racks, entries);
            prop_assert!(stuffed.rows.iter().chain(&stuffed.columns).all(|sum| *sum == target));
        }
    }
}
