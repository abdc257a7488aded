//! Symbols: what a code mixes, as bytes on a wire or as lengths in the simulator.
//!
//! Read [`Symbol`] first.

use crate::{gf_dot_to_vec, gf_mul_add};
use anabranch_endpoint::{Bytes, Len, Payload};

/// A payload that can be mixed with others of its kind.
///
/// ```
/// use anabranch_codes::Symbol;
/// use anabranch_endpoint::{Bytes, Len};
/// let (a, b) = (Bytes::from_static(b"long"), Bytes::from_static(b"ab"));
/// let sum = Bytes::combine(&[(1, &a), (1, &b)], 4);
/// assert_eq!(sum[..], [b'l' ^ b'a', b'o' ^ b'b', b'n', b'g']);
/// assert_eq!(Len::combine(&[(1, &Len(4)), (1, &Len(2))], 4), Len(4));
/// ```
pub trait Symbol: Payload {
    /// The sum of the terms, each a coefficient of GF(2^8) and a symbol, `len` bytes long.
    ///
    /// Shape: a symbol shorter than `len` counts as padded with zeros. No terms make zeros.
    /// Panics: if a symbol is longer than `len`: its end would be lost.
    /// Cost: one term with coefficient 1 and of length `len` is cloned, not copied.
    fn combine(terms: &[(u8, &Self)], len: usize) -> Self;
}

/// Panics where a symbol is too long, which a coder's plan rules out.
fn check_lengths<S: Payload>(terms: &[(u8, &S)], len: usize) {
    for (index, (_, symbol)) in terms.iter().enumerate() {
        assert!(symbol.len() <= len, "symbol {index} has {} bytes: must have at most {len}", symbol.len());
    }
}

impl Symbol for Len {
    fn combine(terms: &[(u8, &Self)], len: usize) -> Self {
        check_lengths(terms, len);
        Len(len)
    }
}

impl Symbol for Bytes {
    fn combine(terms: &[(u8, &Self)], len: usize) -> Self {
        check_lengths(terms, len);
        if let &[(1, symbol)] = terms
            && symbol.len() == len
        {
            return symbol.clone();
        }
        // The usual case, all of full length, is one call. A shorter symbol ends inside the sum and is added to its
        // beginning.
        let (mut coefficients, mut inputs): (Vec<u8>, Vec<&[u8]>) =
            (Vec::with_capacity(terms.len()), Vec::with_capacity(terms.len()));
        for (coefficient, symbol) in terms.iter().filter(|(_, symbol)| symbol.len() == len) {
            coefficients.push(*coefficient);
            inputs.push(symbol);
        }
        let mut sum = gf_dot_to_vec(&coefficients, &inputs, len);
        for (coefficient, symbol) in terms.iter().filter(|(_, symbol)| symbol.len() < len) {
            gf_mul_add(&[*coefficient], &[symbol], &mut sum[..symbol.len()]);
        }
        Bytes::from(sum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Gf;
    use proptest::collection::vec;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn bytes_combine_as_if_padded_with_zeros(
            terms in vec((any::<u8>(), prop_oneof![vec(any::<u8>(), 0..300), vec(any::<u8>(), 300)]), 0..6)
        ) {
            let symbols: Vec<(u8, Bytes)> = terms.into_iter().map(|(c, bytes)| (c, Bytes::from(bytes))).collect();
            let terms: Vec<(u8, &Bytes)> = symbols.iter().map(|(c, symbol)| (*c, symbol)).collect();
            let sum = Bytes::combine(&terms, 300);
            prop_assert_eq!(sum.len(), 300);
            for (i, &byte) in sum.iter().enumerate() {
                let want: Gf = terms.iter().map(|(c, s)| Gf(*c) * Gf(s.get(i).copied().unwrap_or(0))).sum();
                prop_assert_eq!(Gf(byte), want);
            }
        }

        #[test]
        fn lengths_combine_as_bytes_do(lens in vec(0usize..50, 0..5)) {
            let bytes: Vec<Bytes> = lens.iter().map(|&n| Bytes::from(vec![1; n])).collect();
            let byte_terms: Vec<(u8, &Bytes)> = bytes.iter().map(|symbol| (3, symbol)).collect();
            let phantoms: Vec<Len> = lens.iter().map(|&n| Len(n)).collect();
            let phantom_terms: Vec<(u8, &Len)> = phantoms.iter().map(|symbol| (3, symbol)).collect();
            prop_assert_eq!(Len::combine(&phantom_terms, 50).len(), Bytes::combine(&byte_terms, 50).len());
        }
    }

    #[test]
    fn one_whole_term_with_coefficient_one_is_not_copied() {
        let symbol = Bytes::from(vec![5; 1000]);
        assert_eq!(Bytes::combine(&[(1, &symbol)], 1000).as_ptr(), symbol.as_ptr());
        assert_ne!(Bytes::combine(&[(2, &symbol)], 1000).as_ptr(), symbol.as_ptr());
        assert_eq!(Bytes::combine(&[(1, &symbol)], 1001).len(), 1001);
    }

    #[test]
    fn a_symbol_longer_than_the_sum_is_refused() {
        fn panics<T>(call: fn() -> T) -> bool {
            std::panic::catch_unwind(call).is_err()
        }
        assert!(panics(|| Bytes::combine(&[(1, &Bytes::from_static(b"abc"))], 2)));
        assert!(panics(|| Len::combine(&[(1, &Len(3))], 2)));
        assert!(!panics(|| Len::combine(&[(1, &Len(2))], 2)));
    }
}
