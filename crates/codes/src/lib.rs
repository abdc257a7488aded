//! GF(2^8) kernels and network-code algebra.

use anabranch_endpoint::{Bytes, Len, Payload};

/// A payload that can be coded.
pub trait Symbol: Payload {
    /// The sum of `coefficient * symbol` over all terms, `len` bytes long; shorter symbols count as padded with zeros.
    fn combine(terms: &[(u8, &Self)], len: usize) -> Self;
}

impl Symbol for Len {
    fn combine(_: &[(u8, &Self)], len: usize) -> Self {
        Self(len)
    }
}

impl Symbol for Bytes {
    fn combine(terms: &[(u8, &Self)], len: usize) -> Self {
        if let [(1, only)] = terms
            && only.len() == len
        {
            return (*only).clone();
        }
        let mut out = vec![0; len];
        for (c, s) in terms {
            for (o, i) in out.iter_mut().zip(s.iter()) {
                *o ^= mul(*c, *i);
            }
        }
        out.into()
    }
}

fn mul(mut a: u8, mut b: u8) -> u8 {
    let mut r = 0;
    while b != 0 {
        if b & 1 != 0 {
            r ^= a;
        }
        a = (a << 1) ^ if a & 0x80 != 0 { 0x1d } else { 0 };
        b >>= 1;
    }
    r
}
