//! Symbols, the operands of a code: bytes on a wire, or only lengths in the simulator.
//!
//! Read [`Symbol`] first, then [`Sums`].

use crate::kernel::Arena;
use crate::{gf_dot_to_vec, gf_mul_add};
use anabranch_endpoint::{Bytes, Len, Payload};

/// A payload that can be combined with payloads of the same type.
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
    /// Returns the sum of the terms, `len` bytes long. A term is a coefficient of GF(2^8) and a
    /// symbol.
    ///
    /// Shape: a symbol shorter than `len` counts as padded with zeros. Without terms the sum is
    /// zero.
    /// Panics: if a symbol is longer than `len`, since its end would be lost.
    /// Cost: one term with coefficient 1 and of length `len` is cloned, not copied.
    fn combine(terms: &[(u8, &Self)], len: usize) -> Self;

    /// Computes the sums over `symbols` in order, and returns the symbol of each slot. All sums are
    /// `len` bytes long.
    ///
    /// Shape: `symbols` has the number of symbols given to [`Sums::new`], each `len` bytes long.
    /// Panics: if the number of symbols is wrong, a symbol is longer than `len`, or a slot is a
    /// term of the sum that it receives.
    /// Cost: over bytes, one allocation for all slots.
    fn run(sums: &Sums, symbols: &[Self], len: usize) -> Vec<Self> {
        check_count(sums, symbols);
        let mut places: Vec<Self> = vec![Self::combine(&[], len); sums.places];
        for (place, adds, terms) in sums.iter() {
            let symbol = |term: &u32| {
                let term = *term as usize;
                (1, symbols.get(term).unwrap_or_else(|| &places[term - symbols.len()]))
            };
            assert!(!terms.contains(&((place + symbols.len()) as u32)), "a place is a term of its own sum");
            let before = adds.then_some((1, &places[place]));
            let terms: Vec<(u8, &Self)> = before.into_iter().chain(terms.iter().map(symbol)).collect();
            places[place] = Self::combine(&terms, len);
        }
        places
    }
}

/// Sums to compute in order, over given symbols and earlier sums.
///
/// A term is a number. The symbols have the first numbers, then the slots of the sums, which are
/// initially zero.
///
/// ```
/// use anabranch_codes::{Sums, Symbol};
/// use anabranch_endpoint::Bytes;
/// let symbols = [Bytes::from_static(b"some"), Bytes::from_static(b"more")];
/// let mut sums = Sums::new(2);
/// sums.set(2, [0, 1]);
/// sums.set(3, [0]);
/// sums.add(3, [2]);
/// assert_eq!(Symbol::run(&sums, &symbols, 4)[1], symbols[1]);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Sums {
    symbols: usize,
    places: usize,
    sums: Vec<PlannedSum>,
    terms: Vec<u32>,
}

#[derive(Copy, Clone, Debug)]
struct PlannedSum {
    place: u32,
    /// True to add to the slot's content, false to replace it.
    adds: bool,
    /// End of the sum's terms in `Sums::terms`.
    end: u32,
}

impl Sums {
    /// Creates an empty list of sums over `symbols` symbols.
    pub const fn new(symbols: usize) -> Self {
        Self { symbols, places: 0, sums: Vec::new(), terms: Vec::new() }
    }
    /// Reserves capacity for further sums and terms.
    pub(crate) fn reserve(&mut self, sums: usize, terms: usize) {
        self.sums.reserve(sums);
        self.terms.reserve(terms);
    }
    /// Sets the slot numbered `place` to the sum of `terms`. Without terms it becomes zero.
    ///
    /// Panics: if `place` is the number of a symbol. If the slot is among the terms, running
    /// the sums panics.
    pub fn set(&mut self, place: u32, terms: impl IntoIterator<Item = u32>) {
        self.terms.extend(terms);
        self.end_sum(place, false);
    }
    /// Does the same as [`Sums::set`], but adds to the slot's content.
    pub fn add(&mut self, place: u32, terms: impl IntoIterator<Item = u32>) {
        self.terms.extend(terms);
        self.end_sum(place, true);
    }
    /// Does the same as [`Sums::set`] with `first` and the marked terms, without a branch for each
    /// term.
    pub(crate) fn set_some(
        &mut self,
        place: u32,
        first: u32,
        terms: impl ExactSizeIterator<Item = (u32, bool)>,
    ) {
        let start = self.terms.len();
        self.terms.resize(start + 1 + terms.len(), first);
        let row = &mut self.terms[start..];
        let mut count = 1;
        for (term, is_one) in terms {
            row[count] = term;
            count += usize::from(is_one);
        }
        self.terms.truncate(start + count);
        self.end_sum(place, false);
    }
    fn end_sum(&mut self, place: u32, adds: bool) {
        let index =
            (place as usize).checked_sub(self.symbols).expect("a place's number comes after the symbols'");
        self.places = self.places.max(index + 1);
        self.sums.push(PlannedSum { place, adds, end: self.terms.len() as u32 });
    }
    /// Total number of terms of all sums.
    pub const fn terms(&self) -> usize {
        self.terms.len()
    }
    /// The sums in order: the index of the slot, true if the sum is added to the slot, and the
    /// terms.
    fn iter(&self) -> impl Iterator<Item = (usize, bool, &[u32])> + '_ {
        let mut start = 0;
        self.sums.iter().map(move |sum| {
            let terms = &self.terms[start..sum.end as usize];
            start = sum.end as usize;
            (sum.place as usize - self.symbols, sum.adds, terms)
        })
    }
}

fn check_count<S>(sums: &Sums, symbols: &[S]) {
    let (want, got) = (sums.symbols, symbols.len());
    assert!(want == got, "{got} symbols: must be {want}, as many as the sums are of");
}

/// Panics if a symbol is too long; the plan of a coder prevents that.
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
    fn run(sums: &Sums, symbols: &[Self], len: usize) -> Vec<Self> {
        check_count(sums, symbols);
        symbols.iter().for_each(|symbol| check_lengths(&[(1, symbol)], len));
        vec![Len(len); sums.places]
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
        // In the usual case all inputs have the full length, and one call suffices. A shorter
        // symbol is added only to the beginning of the sum.
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
    fn run(sums: &Sums, symbols: &[Self], len: usize) -> Vec<Self> {
        check_count(sums, symbols);
        let mut arena = Arena::new(symbols, sums.places, len);
        for (place, adds, terms) in sums.iter() {
            arena.sum(place, adds, terms);
        }
        let (bytes, starts) = arena.into_bytes();
        let bytes = Bytes::from(bytes);
        starts.map(|start| bytes.slice(start..start + len)).collect()
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
        fn short_symbols_combine_as_if_padded_with_zeros(
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
        fn lengths_combine_like_bytes(lens in vec(0usize..50, 0..5)) {
            let bytes: Vec<Bytes> = lens.iter().map(|&n| Bytes::from(vec![1; n])).collect();
            let byte_terms: Vec<(u8, &Bytes)> = bytes.iter().map(|symbol| (3, symbol)).collect();
            let phantoms: Vec<Len> = lens.iter().map(|&n| Len(n)).collect();
            let phantom_terms: Vec<(u8, &Len)> = phantoms.iter().map(|symbol| (3, symbol)).collect();
            prop_assert_eq!(Len::combine(&phantom_terms, 50).len(), Bytes::combine(&byte_terms, 50).len());
        }
    }

    #[test]
    fn single_full_term_with_coefficient_one_is_not_copied() {
        let symbol = Bytes::from(vec![5; 1000]);
        assert_eq!(Bytes::combine(&[(1, &symbol)], 1000).as_ptr(), symbol.as_ptr());
        assert_ne!(Bytes::combine(&[(2, &symbol)], 1000).as_ptr(), symbol.as_ptr());
        assert_eq!(Bytes::combine(&[(1, &symbol)], 1001).len(), 1001);
    }

    #[test]
    fn symbol_longer_than_the_sum_is_refused() {
        fn panics<T>(call: fn() -> T) -> bool {
            std::panic::catch_unwind(call).is_err()
        }
        assert!(panics(|| Bytes::combine(&[(1, &Bytes::from_static(b"abc"))], 2)));
        assert!(panics(|| Len::combine(&[(1, &Len(3))], 2)));
        assert!(!panics(|| Len::combine(&[(1, &Len(2))], 2)));
    }
}
