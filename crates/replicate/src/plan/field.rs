//! GF(2^8) with polynomial 0x11D, and the little linear algebra that code construction needs.
//!
//! Stand-in: to be replaced by the `codes` room's algebra; everything here goes through [`add`], [`mul`], [`inv`] and
//! the four functions on [`Matrix`], so that only this file changes.

/// Rows of equal length.
pub(super) type Matrix = Vec<Vec<u8>>;

const EXP: [u8; 512] = {
    let mut table = [0u8; 512];
    let (mut i, mut x) = (0, 1u16);
    while i < 510 {
        table[i] = x as u8;
        x <<= 1;
        if x & 0x100 != 0 {
            x ^= 0x11D;
        }
        i += 1;
    }
    table
};
const LOG: [u8; 256] = {
    let mut table = [0u8; 256];
    let mut i = 0;
    while i < 255 {
        table[EXP[i] as usize] = i as u8;
        i += 1;
    }
    table
};

pub(super) fn add(a: u8, b: u8) -> u8 {
    a ^ b
}

pub(super) fn mul(a: u8, b: u8) -> u8 {
    if a == 0 || b == 0 { 0 } else { EXP[LOG[a as usize] as usize + LOG[b as usize] as usize] }
}

/// Panics: for 0, which has no inverse.
pub(super) fn inv(a: u8) -> u8 {
    assert_ne!(a, 0, "zero has no inverse");
    EXP[255 - LOG[a as usize] as usize]
}

/// `row += factor * other`.
pub(super) fn add_scaled(row: &mut [u8], factor: u8, other: &[u8]) {
    row.iter_mut().zip(other).for_each(|(r, o)| *r = add(*r, mul(factor, *o)));
}

/// Sum of products.
pub(super) fn dot(a: &[u8], b: &[u8]) -> u8 {
    a.iter().zip(b).fold(0, |sum, (a, b)| add(sum, mul(*a, *b)))
}

/// `a * b`; `columns` is b's number of columns, which an empty `b` does not tell.
pub(super) fn product(a: &Matrix, b: &Matrix, columns: usize) -> Matrix {
    let row = |r: &Vec<u8>| {
        let mut sum = vec![0; columns];
        r.iter().zip(b).for_each(|(factor, row)| add_scaled(&mut sum, *factor, row));
        sum
    };
    a.iter().map(row).collect()
}

/// Number of independent rows.
#[cfg(test)]
pub(super) fn rank(matrix: &Matrix) -> usize {
    let mut m = matrix.clone();
    reduce(&mut m, matrix.first().map_or(0, Vec::len)).len()
}

/// Some `l` with `l * t = e`, if there is one.
pub(super) fn solve_left(t: &Matrix, e: &Matrix) -> Option<Matrix> {
    let (unknowns, equations) = (t.len(), t.first().map_or(0, Vec::len));
    let mut m: Matrix = (0..equations)
        .map(|c| t.iter().map(|row| row[c]).chain(e.iter().map(|row| row[c])).collect())
        .collect();
    let pivots = reduce(&mut m, unknowns);
    if m[pivots.len()..].iter().any(|row| row[unknowns..].iter().any(|v| *v != 0)) {
        return None;
    }
    let mut l = vec![vec![0; unknowns]; e.len()];
    for (row, column) in pivots.into_iter().enumerate() {
        l.iter_mut().enumerate().for_each(|(i, out)| out[column] = m[row][unknowns + i]);
    }
    Some(l)
}

/// Reduced row echelon form over the first `columns` columns; the pivots' columns in the order of their rows.
fn reduce(m: &mut Matrix, columns: usize) -> Vec<usize> {
    let mut pivots = Vec::new();
    for column in 0..columns {
        let top = pivots.len();
        let Some(found) = (top..m.len()).find(|r| m[*r][column] != 0) else { continue };
        m.swap(top, found);
        let scale = inv(m[top][column]);
        m[top].iter_mut().for_each(|v| *v = mul(*v, scale));
        let pivot = m[top].clone();
        for (r, row) in m.iter_mut().enumerate() {
            let factor = row[column];
            if r != top && factor != 0 {
                add_scaled(row, factor, &pivot);
            }
        }
        pivots.push(column);
    }
    pivots
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_element_but_zero_has_an_inverse() {
        for a in 1..=255 {
            assert_eq!(mul(a, inv(a)), 1);
        }
        assert_eq!(mul(0x80, 2), 0x1D, "polynomial 0x11D");
    }

    proptest! {
        #[test]
        fn what_is_solved_multiplies_back(
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
            let unit: Matrix = (0..3).map(|i| (0..3).map(|j| u8::from(i == j)).collect()).collect();
            prop_assert_eq!(solve_left(&t, &unit).is_some(), rank(&t) == 3);
        }
    }
}
