//! Small dense matrices over GF(2^8), for plans and decoders, by Gauss-Jordan elimination.
//!
//! Sized for network codes (tens of rows); each elimination is O(rows * columns * rank) field
//! operations on bytes. Leaves out: sparse and block methods. Read [`Matrix`] first.

use crate::Gf;
use std::fmt;
use std::ops::{Index, IndexMut};

/// A dense matrix over GF(2^8), stored by rows.
///
/// ```
/// use anabranch_codes::{Gf, Matrix};
/// let a = Matrix::from_rows(&[[1, 1], [1, 2]]).unwrap();
/// let inverse = a.inverse().expect("rank 2");
/// assert_eq!(a.multiply(&inverse).unwrap(), Matrix::identity(2));
/// assert_eq!(Matrix::from_rows(&[[1, 1], [2, 2]]).unwrap().rank(), 1);
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Matrix {
    rows: usize,
    columns: usize,
    cells: Vec<Gf>,
}

/// Reason why two shapes do not match.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ShapeError {
    /// A row is longer or shorter than the first.
    RaggedRow {
        /// Index of the row.
        row: usize,
        /// Cells in the first row.
        need: usize,
        /// Cells in this row.
        got: usize,
    },
    /// The other operand has the wrong number of rows.
    WrongRows {
        /// Required number of rows.
        need: usize,
        /// Actual number of rows.
        got: usize,
    },
    /// The other operand has the wrong number of columns.
    WrongColumns {
        /// Required number of columns.
        need: usize,
        /// Actual number of columns.
        got: usize,
    },
}

impl fmt::Display for ShapeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RaggedRow { row, need, got } => {
                write!(f, "row {row} has {got} cells: must have {need}, as the first row")
            }
            Self::WrongRows { need, got } => write!(f, "matrix of {got} rows: must have {need}"),
            Self::WrongColumns { need, got } => write!(f, "matrix of {got} columns: must have {need}"),
        }
    }
}
impl std::error::Error for ShapeError {}

impl Matrix {
    /// The zero matrix of `rows` by `columns`; either number may be 0.
    pub fn zero(rows: usize, columns: usize) -> Self {
        Self { rows, columns, cells: vec![Gf::ZERO; rows * columns] }
    }
    /// The identity matrix of size `n`.
    pub fn identity(n: usize) -> Self {
        let mut matrix = Self::zero(n, n);
        for i in 0..n {
            matrix[(i, i)] = Gf::ONE;
        }
        matrix
    }
    /// The matrix with these rows of bytes; 0 by 0 without rows.
    ///
    /// Errors: [`ShapeError::RaggedRow`] if the rows' lengths differ.
    pub fn from_rows<R: AsRef<[u8]>>(rows: &[R]) -> Result<Self, ShapeError> {
        let columns = rows.first().map_or(0, |row| row.as_ref().len());
        let mut cells = Vec::with_capacity(rows.len() * columns);
        for (index, row) in rows.iter().enumerate() {
            let row = row.as_ref();
            if row.len() != columns {
                return Err(ShapeError::RaggedRow { row: index, need: columns, got: row.len() });
            }
            cells.extend(row.iter().copied().map(Gf));
        }
        Ok(Self { rows: rows.len(), columns, cells })
    }
    /// The Cauchy matrix with cell `1 / (rows + column + row)`: every square submatrix is
    /// invertible. So any `columns` rows of this matrix and of the identity together are
    /// invertible.
    ///
    /// Errors: `None` if `rows + columns` is above 256, the size of the field.
    /// Source: Blömer and others, *An XOR-Based Erasure-Resilient Coding Scheme* (1995), section 3.
    pub fn cauchy(rows: usize, columns: usize) -> Option<Self> {
        if rows + columns > 256 {
            return None;
        }
        let mut matrix = Self::zero(rows, columns);
        for row in 0..rows {
            for column in 0..columns {
                // The two bytes are distinct, so their difference is not zero.
                let difference = Gf((columns + row) as u8) - Gf(column as u8);
                matrix[(row, column)] = difference.inverse()?;
            }
        }
        Some(matrix)
    }
    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }
    /// Number of columns.
    pub fn columns(&self) -> usize {
        self.columns
    }
    /// The cells of row `row`, left to right.
    ///
    /// Panics: if there is no such row.
    pub fn row(&self, row: usize) -> &[Gf] {
        &self.cells[row * self.columns..][..self.columns]
    }
    /// The rows as bytes, in the form that plans and [`gf_dot_many`](crate::gf_dot_many) need.
    pub fn to_rows(&self) -> Vec<Vec<u8>> {
        (0..self.rows).map(|row| self.row(row).iter().map(|cell| cell.0).collect()).collect()
    }
    /// Appends `row` at the bottom. The first row of an empty matrix sets the number of columns.
    ///
    /// Errors: [`ShapeError::WrongColumns`] if the length of `row` is not the number of columns.
    pub fn push_row(&mut self, row: &[Gf]) -> Result<(), ShapeError> {
        if self.rows == 0 {
            self.columns = row.len();
        }
        if row.len() != self.columns {
            return Err(ShapeError::WrongColumns { need: self.columns, got: row.len() });
        }
        self.cells.extend_from_slice(row);
        self.rows += 1;
        Ok(())
    }
    /// The transpose: rows turned into columns.
    pub fn transpose(&self) -> Self {
        let mut result = Self::zero(self.columns, self.rows);
        for row in 0..self.rows {
            for column in 0..self.columns {
                result[(column, row)] = self[(row, column)];
            }
        }
        result
    }
    /// The product `self * right`.
    ///
    /// Errors: [`ShapeError::WrongRows`] if `right` does not have as many rows as `self` has
    /// columns.
    pub fn multiply(&self, right: &Self) -> Result<Self, ShapeError> {
        if self.columns != right.rows {
            return Err(ShapeError::WrongRows { need: self.columns, got: right.rows });
        }
        let mut result = Self::zero(self.rows, right.columns);
        for row in 0..self.rows {
            for inner in 0..self.columns {
                let factor = self[(row, inner)];
                for column in 0..right.columns {
                    result[(row, column)] += factor * right[(inner, column)];
                }
            }
        }
        Ok(result)
    }
    /// This matrix with the columns of `right` appended.
    ///
    /// Errors: [`ShapeError::WrongRows`] if the numbers of rows differ.
    pub fn beside(&self, right: &Self) -> Result<Self, ShapeError> {
        if self.rows != right.rows {
            return Err(ShapeError::WrongRows { need: self.rows, got: right.rows });
        }
        let mut result = Self::zero(self.rows, self.columns + right.columns);
        for row in 0..self.rows {
            let (left_cells, right_cells) = result.row_mut(row).split_at_mut(self.columns);
            left_cells.copy_from_slice(self.row(row));
            right_cells.copy_from_slice(right.row(row));
        }
        Ok(result)
    }
    /// Brings the matrix into reduced row echelon form, in place. Returns the columns of the
    /// pivots, ascending.
    ///
    /// Cost: O(rows * columns * rank).
    pub fn row_reduce(&mut self) -> Vec<usize> {
        self.reduce_within(self.columns)
    }
    /// The number of linearly independent rows.
    pub fn rank(&self) -> usize {
        self.clone().row_reduce().len()
    }
    /// The inverse; `None` if the matrix is not square or lacks full rank.
    pub fn inverse(&self) -> Option<Self> {
        if self.rows != self.columns {
            return None;
        }
        self.solve(&Self::identity(self.rows)).ok().flatten()
    }
    /// The `x` with `self * x = right`, one solution for each column of `right`. `None` if there is
    /// no solution, or more than one.
    ///
    /// Shape: `self` may have more rows than columns; the system then has a solution if the rows
    /// are consistent.
    /// Errors: [`ShapeError::WrongRows`] if the numbers of rows differ.
    pub fn solve(&self, right: &Self) -> Result<Option<Self>, ShapeError> {
        let mut both = self.beside(right)?;
        let pivots = both.reduce_within(self.columns);
        if pivots.len() < self.columns {
            return Ok(None);
        }
        // Every column has a pivot, so row i of `x` is now the right part of row i.
        let contradicts =
            (self.columns..self.rows).any(|row| both.row(row)[self.columns..].iter().any(|c| !c.is_zero()));
        if contradicts {
            return Ok(None);
        }
        let mut result = Self::zero(self.columns, right.columns);
        for row in 0..self.columns {
            result.row_mut(row).copy_from_slice(&both.row(row)[self.columns..]);
        }
        Ok(Some(result))
    }

    fn row_mut(&mut self, row: usize) -> &mut [Gf] {
        &mut self.cells[row * self.columns..][..self.columns]
    }
    fn swap_rows(&mut self, a: usize, b: usize) {
        if a != b {
            for column in 0..self.columns {
                self.cells.swap(a * self.columns + column, b * self.columns + column);
            }
        }
    }
    /// Reduces rows, and looks for pivots only in the first `width` columns.
    fn reduce_within(&mut self, width: usize) -> Vec<usize> {
        let mut pivots = Vec::new();
        for column in 0..width {
            let top = pivots.len();
            let Some(found) = (top..self.rows).find(|&row| !self[(row, column)].is_zero()) else { continue };
            self.swap_rows(top, found);
            let inverse = self[(top, column)].inverse().expect("the pivot was chosen to be other than zero");
            for cell in self.row_mut(top) {
                *cell *= inverse;
            }
            let pivot_row = self.row(top).to_vec();
            for row in (0..self.rows).filter(|&row| row != top) {
                let factor = self[(row, column)];
                if !factor.is_zero() {
                    for (cell, &pivot) in self.row_mut(row).iter_mut().zip(&pivot_row) {
                        *cell -= factor * pivot;
                    }
                }
            }
            pivots.push(column);
        }
        pivots
    }
}

impl Index<(usize, usize)> for Matrix {
    type Output = Gf;
    fn index(&self, (row, column): (usize, usize)) -> &Gf {
        assert!(column < self.columns, "column {column} of a matrix with {} columns", self.columns);
        &self.cells[row * self.columns + column]
    }
}
impl IndexMut<(usize, usize)> for Matrix {
    fn index_mut(&mut self, (row, column): (usize, usize)) -> &mut Gf {
        assert!(column < self.columns, "column {column} of a matrix with {} columns", self.columns);
        &mut self.cells[row * self.columns + column]
    }
}
impl fmt::Debug for Matrix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} x {}", self.rows, self.columns)?;
        for row in 0..self.rows {
            let cells: Vec<String> = self.row(row).iter().map(Gf::to_string).collect();
            writeln!(f, "[{}]", cells.join(" "))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn any_matrix(rows: usize, columns: usize) -> impl Strategy<Value = Matrix> {
        // Draws small values as often as arbitrary ones, so that dependent rows occur.
        vec(prop_oneof![0u8..3, any::<u8>()], rows * columns).prop_map(move |cells| Matrix {
            rows,
            columns,
            cells: cells.into_iter().map(Gf).collect(),
        })
    }
    fn any_shape() -> impl Strategy<Value = Matrix> {
        (0usize..7, 0usize..7).prop_flat_map(|(rows, columns)| any_matrix(rows, columns))
    }

    /// The determinant by Leibniz's sum over permutations: an oracle without elimination.
    fn oracle_determinant(matrix: &Matrix, used: u32, row: usize) -> Gf {
        if row == matrix.rows() {
            return Gf::ONE;
        }
        (0..matrix.columns())
            .filter(|column| used >> column & 1 == 0)
            .map(|column| matrix[(row, column)] * oracle_determinant(matrix, used | 1 << column, row + 1))
            .sum()
    }

    proptest! {
        #[test]
        fn inverse_times_matrix_is_identity(matrix in (0usize..6).prop_flat_map(|n| any_matrix(n, n))) {
            let n = matrix.rows();
            match matrix.inverse() {
                Some(inverse) => {
                    prop_assert_eq!(matrix.multiply(&inverse).unwrap(), Matrix::identity(n));
                    prop_assert_eq!(inverse.multiply(&matrix).unwrap(), Matrix::identity(n));
                    prop_assert_eq!(matrix.rank(), n);
                }
                None => prop_assert!(matrix.rank() < n),
            }
        }

        #[test]
        fn rank_is_full_if_the_determinant_is_not_zero(matrix in (1usize..6).prop_flat_map(|n| any_matrix(n, n))) {
            prop_assert_eq!(matrix.rank() == matrix.rows(), !oracle_determinant(&matrix, 0, 0).is_zero());
        }

        #[test]
        fn row_rank_equals_column_rank(matrix in any_shape()) {
            prop_assert_eq!(matrix.rank(), matrix.transpose().rank());
        }

        #[test]
        fn solve_recovers_the_multiplied_matrix(
            (a, x) in (1usize..6, 0usize..3, 1usize..4).prop_flat_map(|(n, extra, width)| {
                (any_matrix(n + extra, n), any_matrix(n, width))
            })
        ) {
            let right = a.multiply(&x).unwrap();
            match a.solve(&right).unwrap() {
                Some(found) => prop_assert_eq!(found, x),
                None => prop_assert!(a.rank() < a.columns()),
            }
        }

        #[test]
        fn row_reduction_is_idempotent_and_leaves_unit_columns(matrix in any_shape()) {
            let mut reduced = matrix.clone();
            let pivots = reduced.row_reduce();
            let mut again = reduced.clone();
            prop_assert_eq!(&again.row_reduce(), &pivots);
            prop_assert_eq!(&again, &reduced);
            for (index, &column) in pivots.iter().enumerate() {
                for row in 0..reduced.rows() {
                    prop_assert_eq!(reduced[(row, column)], if row == index { Gf::ONE } else { Gf::ZERO });
                }
            }
        }

        #[test]
        fn square_submatrices_of_a_cauchy_matrix_are_invertible(picks in proptest::sample::subsequence((0..8usize).collect::<Vec<_>>(), 4)) {
            let mut systematic = Matrix::identity(4);
            for row in 0..4 {
                systematic.push_row(Matrix::cauchy(4, 4).unwrap().row(row)).unwrap();
            }
            let mut square = Matrix::zero(0, 4);
            for pick in picks {
                square.push_row(systematic.row(pick)).unwrap();
            }
            prop_assert_eq!(square.rank(), 4);
        }
    }

    #[test]
    fn contradicting_rows_have_no_solution() {
        let a = Matrix::from_rows(&[[1], [1]]).unwrap();
        assert_eq!(a.solve(&Matrix::from_rows(&[[5], [5]]).unwrap()), Ok(Matrix::from_rows(&[[5]]).ok()));
        assert_eq!(a.solve(&Matrix::from_rows(&[[5], [6]]).unwrap()), Ok(None));
    }

    #[test]
    fn mismatched_matrix_shapes_are_refused() {
        let a = Matrix::zero(2, 3);
        assert_eq!(a.multiply(&Matrix::zero(2, 2)), Err(ShapeError::WrongRows { need: 3, got: 2 }));
        assert_eq!(a.solve(&Matrix::zero(3, 1)), Err(ShapeError::WrongRows { need: 2, got: 3 }));
        let ragged = [vec![1], vec![1, 2]];
        assert_eq!(Matrix::from_rows(&ragged), Err(ShapeError::RaggedRow { row: 1, need: 1, got: 2 }));
        assert_eq!(a.inverse(), None);
    }

    #[test]
    fn cauchy_matrix_is_limited_by_the_field_size() {
        assert!(Matrix::cauchy(128, 128).is_some());
        assert!(Matrix::cauchy(128, 129).is_none());
    }
}
