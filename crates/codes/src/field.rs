//! The field GF(2^8) with polynomial `0x11D`, and the multiplication tables of the kernels.
//!
//! Source: Lidl and Niederreiter, *Finite Fields*, section 2.5 (representation by powers of a
//! generator); Plank, Greenan and Miller, *Screaming Fast Galois Field Arithmetic Using Intel SIMD
//! Instructions* (FAST 2013), section 4 (products by two 16-entry tables); Intel SDM,
//! `GF2P8AFFINEQB` (products by an 8 x 8 bit matrix). Read [`Gf`] first.

use std::fmt;
use std::ops::{Add, AddAssign, Mul, MulAssign, Sub, SubAssign};

/// x^8 + x^4 + x^3 + x^2 + 1, the bit of x^8 included.
const POLYNOMIAL: u16 = 0x11D;

/// An element of GF(2^8) with polynomial `0x11D`: bit `i` of the byte is the coefficient of x^i.
///
/// Addition and subtraction are both exclusive or. The generator is 2.
///
/// ```
/// use anabranch_codes::Gf;
/// let (a, b) = (Gf(0x53), Gf(0xCA));
/// assert_eq!(a + a, Gf::ZERO);
/// assert_eq!((a * b).div(b), Some(a));
/// assert_eq!(Gf(0x80) * Gf(2), Gf(0x1D));
/// ```
#[derive(Copy, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Gf(pub u8);

/// Powers of 2, twice over, so that a sum of two logarithms needs no reduction.
const EXP: [u8; 510] = {
    let mut table = [0; 510];
    let (mut power, mut i) = (1u16, 0);
    while i < 255 {
        table[i] = power as u8;
        table[i + 255] = power as u8;
        power <<= 1;
        if power & 0x100 != 0 {
            power ^= POLYNOMIAL;
        }
        i += 1;
    }
    table
};

/// Logarithms to base 2; the entry of 0, whose logarithm does not exist, is never read.
const LOG: [u8; 256] = {
    let mut table = [0; 256];
    let mut i = 0;
    while i < 255 {
        table[EXP[i] as usize] = i as u8;
        i += 1;
    }
    table
};

const fn product(a: u8, b: u8) -> u8 {
    if a == 0 || b == 0 { 0 } else { EXP[LOG[a as usize] as usize + LOG[b as usize] as usize] }
}

/// All products: row `c` maps a byte to `c` times that byte. 64 KiB; the plain kernel uses one row
/// at a time, which stays in cache.
pub(crate) static PRODUCTS: [[u8; 256]; 256] = {
    let mut table = [[0; 256]; 256];
    let mut c = 1;
    while c < 256 {
        let mut x = 1;
        while x < 256 {
            table[c][x] = EXP[LOG[c] as usize + LOG[x] as usize];
            x += 1;
        }
        c += 1;
    }
    table
};

/// Products of a factor with the sixteen values of a byte's low half, and of its high half. Byte
/// shuffles look them up.
#[derive(Copy, Clone)]
#[repr(C, align(32))]
pub(crate) struct HalfProducts {
    /// `c * x` for `x` in 0..16.
    pub low: [u8; 16],
    /// `c * (x << 4)` for `x` in 0..16.
    pub high: [u8; 16],
}

/// One [`HalfProducts`] for each factor. 8 KiB.
#[cfg_attr(
    not(any(target_arch = "x86_64", target_arch = "aarch64", test)),
    expect(dead_code, reason = "the plain kernel alone has no shuffles")
)]
pub(crate) static HALF_PRODUCTS: [HalfProducts; 256] = {
    let mut table = [HalfProducts { low: [0; 16], high: [0; 16] }; 256];
    let mut c = 0;
    while c < 256 {
        let mut x = 0;
        while x < 16 {
            table[c].low[x] = product(c as u8, x as u8);
            table[c].high[x] = product(c as u8, (x << 4) as u8);
            x += 1;
        }
        c += 1;
    }
    table
};

/// Multiplication by each factor as a matrix of bits, in `GF2P8AFFINEQB`'s order: bit `i` of the
/// result is the parity of the argument and byte `7 - i` of the matrix. 2 KiB.
///
/// `GF2P8MULB` would save the matrix but is fixed to AES's polynomial.
#[cfg_attr(not(any(target_arch = "x86_64", test)), expect(dead_code, reason = "GFNI is x86's"))]
pub(crate) static AFFINE: [u64; 256] = {
    let mut table = [0; 256];
    let mut c = 0;
    while c < 256 {
        let mut j = 0;
        while j < 8 {
            let image = product(c as u8, 1 << j);
            let mut i = 0;
            while i < 8 {
                if image >> i & 1 == 1 {
                    table[c] |= 1u64 << ((7 - i) * 8 + j);
                }
                i += 1;
            }
            j += 1;
        }
        c += 1;
    }
    table
};

impl Gf {
    /// The neutral element of addition.
    pub const ZERO: Self = Self(0);
    /// The neutral element of multiplication.
    pub const ONE: Self = Self(1);
    /// The generator 2, whose powers are all elements but zero.
    pub const GENERATOR: Self = Self(2);

    /// Returns true for zero.
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }
    /// The exponent of [`Self::GENERATOR`] that gives this element, below 255; 0 for zero, which
    /// has no logarithm.
    pub(crate) const fn log(self) -> u32 {
        LOG[self.0 as usize] as u32
    }
    /// [`Self::GENERATOR`] to the power of `power`.
    pub(crate) const fn exp(power: i64) -> Self {
        Self(EXP[power.rem_euclid(255) as usize])
    }
    /// The product of two elements; equals `*`, and can be used in constant expressions.
    pub const fn mul(self, other: Self) -> Self {
        Self(product(self.0, other.0))
    }
    /// The multiplicative inverse; `None` for zero.
    pub const fn inverse(self) -> Option<Self> {
        if self.0 == 0 { None } else { Some(Self(EXP[255 - LOG[self.0 as usize] as usize])) }
    }
    /// This element divided by `divisor`; `None` if `divisor` is zero.
    pub const fn div(self, divisor: Self) -> Option<Self> {
        match divisor.inverse() {
            Some(inverse) => Some(self.mul(inverse)),
            None => None,
        }
    }
    /// This element to the power of `exponent`; the power of 0 is 1, also for zero.
    pub const fn pow(self, exponent: u32) -> Self {
        if exponent == 0 {
            return Self::ONE;
        }
        if self.0 == 0 {
            return Self::ZERO;
        }
        let log = LOG[self.0 as usize] as u64 * exponent as u64 % 255;
        Self(EXP[log as usize])
    }
}

impl fmt::Debug for Gf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#04x}", self.0)
    }
}
impl fmt::Display for Gf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02x}", self.0)
    }
}
impl From<Gf> for u8 {
    fn from(element: Gf) -> Self {
        element.0
    }
}

// In this field addition is exclusive or, and equals subtraction.
#[expect(clippy::suspicious_arithmetic_impl)]
impl Add for Gf {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0 ^ other.0)
    }
}
#[expect(clippy::suspicious_arithmetic_impl)]
impl Sub for Gf {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        Self(self.0 ^ other.0)
    }
}
#[expect(clippy::suspicious_op_assign_impl)]
impl AddAssign for Gf {
    fn add_assign(&mut self, other: Self) {
        self.0 ^= other.0;
    }
}
#[expect(clippy::suspicious_op_assign_impl)]
impl SubAssign for Gf {
    fn sub_assign(&mut self, other: Self) {
        self.0 ^= other.0;
    }
}
impl Mul for Gf {
    type Output = Self;
    fn mul(self, other: Self) -> Self {
        Gf::mul(self, other)
    }
}
impl MulAssign for Gf {
    fn mul_assign(&mut self, other: Self) {
        *self = Gf::mul(*self, other);
    }
}
impl std::iter::Sum for Gf {
    fn sum<I: Iterator<Item = Self>>(elements: I) -> Self {
        elements.fold(Self::ZERO, |a, b| a + b)
    }
}
impl std::iter::Product for Gf {
    fn product<I: Iterator<Item = Self>>(elements: I) -> Self {
        elements.fold(Self::ONE, |a, b| a * b)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Multiplication bit by bit: shift, add, reduce. Independent of the tables.
    fn school_product(a: u8, b: u8) -> u8 {
        let (mut sum, mut shifted) = (0u16, u16::from(a));
        for i in 0..8 {
            if b >> i & 1 == 1 {
                sum ^= shifted;
            }
            shifted <<= 1;
            if shifted & 0x100 != 0 {
                shifted ^= 0x11D;
            }
        }
        sum as u8
    }

    #[test]
    fn table_products_match_bitwise_multiplication() {
        for a in 0..=255u8 {
            for b in 0..=255u8 {
                let expected = school_product(a, b);
                assert_eq!((Gf(a) * Gf(b)).0, expected);
                assert_eq!(PRODUCTS[usize::from(a)][usize::from(b)], expected);
                let halves = &HALF_PRODUCTS[usize::from(a)];
                assert_eq!(halves.low[usize::from(b & 15)] ^ halves.high[usize::from(b >> 4)], expected);
            }
        }
    }

    #[test]
    fn affine_matrices_multiply_as_the_intel_sdm_defines() {
        // The operation from the Intel SDM: dest bit i = parity(src1.byte[7 - i] AND src2 byte).
        for c in 0..=255u8 {
            let rows = AFFINE[usize::from(c)].to_le_bytes();
            for x in 0..=255u8 {
                let bits = (0..8).map(|i| u8::from((rows[7 - i] & x).count_ones() % 2 == 1) << i);
                assert_eq!(bits.fold(0, |a, b| a | b), school_product(c, x), "{c} * {x}");
            }
        }
        assert_eq!(AFFINE[1], 0x0102_0408_1020_4080, "the identity, as the SDM gives it");
    }

    #[test]
    fn powers_of_two_are_all_non_zero_elements() {
        let mut seen: Vec<u8> = (0..255).map(|i| Gf::GENERATOR.pow(i).0).collect();
        seen.sort_unstable();
        assert_eq!(seen, (1..=255).collect::<Vec<_>>());
        assert_eq!(Gf::GENERATOR.pow(255), Gf::ONE);
    }

    #[test]
    fn every_element_except_zero_has_an_inverse() {
        assert_eq!(Gf::ZERO.inverse(), None);
        assert_eq!(Gf::ONE.div(Gf::ZERO), None);
        for a in 1..=255 {
            let inverse = Gf(a).inverse().expect("only zero has none");
            assert_eq!(Gf(a) * inverse, Gf::ONE);
        }
    }

    proptest! {
        #[test]
        fn field_axioms_hold(a: u8, b: u8, c: u8) {
            let (a, b, c) = (Gf(a), Gf(b), Gf(c));
            prop_assert_eq!(a * b, b * a);
            prop_assert_eq!((a * b) * c, a * (b * c));
            prop_assert_eq!(a * (b + c), a * b + a * c);
            prop_assert_eq!(a - b, a + b);
        }

        #[test]
        fn powers_are_repeated_products(a: u8, exponent in 0u32..1000) {
            let product: Gf = (0..exponent).map(|_| Gf(a)).product();
            prop_assert_eq!(Gf(a).pow(exponent), product);
        }
    }
}
