//! The linear algebra for code construction, over the `codes` room's field.
//!
//! Coefficients are plain bytes here, as in plans. Read [`solve_left`] first, which finds an
//! inverse with delay.

use anabranch_codes::Gf;

/// Rows of equal length.
pub(super) type Matrix = Vec<Vec<u8>>;

pub(super) fn add(a: u8, b: u8) -> u8 {
    (Gf(a) + Gf(b)).0
}

pub(super) fn mul(a: u8, b: u8) -> u8 {
    (Gf(a) * Gf(b)).0
}

/// Panics: for 0, which has no inverse.
pub(super) fn inv(a: u8) -> u8 {
    Gf(a).inverse().expect("only a factor that is not 0 is divided by").0
}

/// `row += factor * other`.
pub(super) fn add_scaled(row: &mut [u8], factor: u8, other: &[u8]) {
    row.iter_mut().zip(other).for_each(|(r, o)| *r = add(*r, mul(factor, *o)));
}

/// Sum of products.
pub(super) fn dot(a: &[u8], b: &[u8]) -> u8 {
    a.iter().zip(b).fold(0, |sum, (a, b)| add(sum, mul(*a, *b)))
}

/// `a * b`; `columns` is the number of columns of b, which an empty `b` does not show.
pub(super) fn product(a: &Matrix, b: &Matrix, columns: usize) -> Matrix {
    let row = |r: &Vec<u8>| {
        let mut sum = vec![0; columns];
        r.iter().zip(b).for_each(|(factor, row)| add_scaled(&mut sum, *factor, row));
        sum
    };
    a.iter().map(row).collect()
}

/// A matrix `l` with `l * t = e`, if one exists; `t` need not have full rank.
pub(super) fn solve_left(t: &Matrix, e: &Matrix) -> Option<Matrix> {
    let (unknowns, equations) = (t.len(), t.first().map_or(0, Vec::len));
    let rows: Matrix = (0..equations)
        .map(|c| t.iter().map(|row| row[c]).chain(e.iter().map(|row| row[c])).collect())
        .collect();
    let mut both =
        anabranch_codes::Matrix::from_rows(&rows).expect("every row has a column of t and one of e");
    let pivots = both.row_reduce();
    if pivots.iter().any(|column| *column >= unknowns) {
        return None;
    }
    let mut l = vec![vec![0; unknowns]; e.len()];
    for (row, column) in pivots.into_iter().enumerate() {
        let solved = &both.row(row)[unknowns..];
        l.iter_mut().zip(solved).for_each(|(out, value)| out[column] = value.0);
    }
    Some(l)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn solution_times_the_matrix_is_the_right_side(
            t in proptest::collection::vec(proptest::collection::vec(0u8..4, 4), 5),
            l in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 5), 3),
        ) {
            let e = product(&l, &t, 4);
            let found = solve_left(&t, &e).expect("one solution is known");
            prop_assert_eq!(product(&found, &t, 4), e);
        }

        #[test]
        fn only_a_full_rank_square_has_a_left_inverse(
            t in proptest::collection::vec(proptest::collection::vec(0u8..2, 3), 3),
        ) {
            let full = anabranch_codes::Matrix::from_rows(&t).expect("three rows of three").rank() == 3;
            let unit: Matrix = (0..3).map(|i| (0..3).map(|j| u8::from(i == j)).collect()).collect();
            prop_assert_eq!(solve_left(&t, &unit).is_some(), full);
        }
    }
}
