//! x86-64 lanes: GFNI on 64 and on 32 bytes, byte shuffles on 32 and on 16 bytes.

use super::lanes::{Lanes, kept_as_bytes, passes};
use crate::field::{AFFINE, HALF_PRODUCTS};
use std::arch::is_x86_feature_detected as has;
use std::arch::x86_64::*;

/// Lanes of 64 bytes, multiplied by `GF2P8AFFINEQB`, added three at a time by `VPTERNLOG`.
#[derive(Copy, Clone)]
pub(super) struct Gfni512(());
/// Lanes of 32 bytes, multiplied by `GF2P8AFFINEQB` (VEX form: no AVX-512 needed).
#[derive(Copy, Clone)]
pub(super) struct Gfni256(());
/// Lanes of 32 bytes, multiplied by two byte shuffles.
#[derive(Copy, Clone)]
pub(super) struct Avx2(());
/// Lanes of 16 bytes, multiplied by two byte shuffles.
#[derive(Copy, Clone)]
pub(super) struct Ssse3(());

impl Gfni512 {
    /// Returns the lanes if this machine has the instructions.
    pub fn detect() -> Option<Self> {
        (has!("gfni") && has!("avx512f") && has!("avx512bw")).then_some(Self(()))
    }
}
impl Gfni256 {
    /// Returns the lanes if this machine has the instructions.
    pub fn detect() -> Option<Self> {
        (has!("gfni") && has!("avx2")).then_some(Self(()))
    }
}
impl Avx2 {
    /// Returns the lanes if this machine has the instructions.
    pub fn detect() -> Option<Self> {
        has!("avx2").then_some(Self(()))
    }
}
impl Ssse3 {
    /// Returns the lanes if this machine has the instructions.
    pub fn detect() -> Option<Self> {
        has!("ssse3").then_some(Self(()))
    }
}

passes!(run_gfni512, tall_gfni512, Gfni512, "avx512f,avx512bw,gfni", [4, 2, 2, 2, 2, 2]);
passes!(run_gfni256, tall_gfni256, Gfni256, "avx2,gfni", [4, 2, 1, 1, 1, 1]);
passes!(run_avx2, tall_avx2, Avx2, "avx2", [2, 1, 1, 1, 1, 1]);
passes!(run_ssse3, tall_ssse3, Ssse3, "ssse3", [2, 2, 1, 1, 1, 1]);

/// Methods of lanes that multiply by a bit matrix, which is also the compact form of a factor.
macro_rules! packed_as_matrices {
    () => {
        type PackedFactor = u64;

        #[inline(always)]
        fn factor(self, coefficient: u8) -> Self::Factor {
            self.unpack(self.pack(coefficient))
        }
        #[inline(always)]
        fn pack(self, coefficient: u8) -> u64 {
            AFFINE[usize::from(coefficient)]
        }
    };
}

impl Lanes for Gfni512 {
    const WIDTH: usize = 64;
    const XOR3: bool = true;
    type Vector = __m512i;
    type Factor = __m512i;
    packed_as_matrices!();

    #[inline(always)]
    fn zero(self) -> __m512i {
        // SAFETY: `self` proves AVX-512F.
        unsafe { _mm512_setzero_si512() }
    }
    #[inline(always)]
    fn unpack(self, packed: u64) -> __m512i {
        // SAFETY: `self` proves AVX-512F.
        unsafe { _mm512_set1_epi64(packed.cast_signed()) }
    }
    #[inline(always)]
    fn mul(self, factor: __m512i, x: __m512i) -> __m512i {
        // SAFETY: `self` proves GFNI and AVX-512F.
        unsafe { _mm512_gf2p8affine_epi64_epi8::<0>(x, factor) }
    }
    #[inline(always)]
    fn xor(self, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: `self` proves AVX-512F.
        unsafe { _mm512_xor_si512(a, b) }
    }
    #[inline(always)]
    fn xor3(self, a: __m512i, b: __m512i, c: __m512i) -> __m512i {
        // SAFETY: `self` proves AVX-512F. 0x96 is the truth table of a ^ b ^ c.
        unsafe { _mm512_ternarylogic_epi64::<0x96>(a, b, c) }
    }
    #[inline(always)]
    unsafe fn load(self, from: *const u8) -> __m512i {
        // SAFETY: `self` proves AVX-512F; the caller ensures that 64 bytes are readable.
        unsafe { _mm512_loadu_si512(from.cast()) }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut u8, vector: __m512i) {
        // SAFETY: `self` proves AVX-512F; the caller ensures that 64 bytes are writable.
        unsafe { _mm512_storeu_si512(to.cast(), vector) }
    }
}

/// Methods that all lanes of 32 bytes share: all but factors and products.
macro_rules! lanes_of_32_bytes {
    () => {
        const WIDTH: usize = 32;
        type Vector = __m256i;

        #[inline(always)]
        fn zero(self) -> __m256i {
            // SAFETY: `self` proves AVX2.
            unsafe { _mm256_setzero_si256() }
        }
        #[inline(always)]
        fn xor(self, a: __m256i, b: __m256i) -> __m256i {
            // SAFETY: `self` proves AVX2.
            unsafe { _mm256_xor_si256(a, b) }
        }
        #[inline(always)]
        unsafe fn load(self, from: *const u8) -> __m256i {
            // SAFETY: `self` proves AVX2; the caller ensures that 32 bytes are readable.
            unsafe { _mm256_loadu_si256(from.cast()) }
        }
        #[inline(always)]
        unsafe fn store(self, to: *mut u8, vector: __m256i) {
            // SAFETY: `self` proves AVX2; the caller ensures that 32 bytes are writable.
            unsafe { _mm256_storeu_si256(to.cast(), vector) }
        }
    };
}

impl Lanes for Gfni256 {
    lanes_of_32_bytes!();
    type Factor = __m256i;
    packed_as_matrices!();

    #[inline(always)]
    fn unpack(self, packed: u64) -> __m256i {
        // SAFETY: `self` proves AVX2.
        unsafe { _mm256_set1_epi64x(packed.cast_signed()) }
    }
    #[inline(always)]
    fn mul(self, factor: __m256i, x: __m256i) -> __m256i {
        // SAFETY: `self` proves GFNI and AVX2.
        unsafe { _mm256_gf2p8affine_epi64_epi8::<0>(x, factor) }
    }
}

impl Lanes for Avx2 {
    lanes_of_32_bytes!();
    /// Products with low halves, then products with high halves, each in both 16-byte parts.
    type Factor = (__m256i, __m256i);
    kept_as_bytes!();

    #[inline(always)]
    fn factor(self, coefficient: u8) -> (__m256i, __m256i) {
        let halves = &HALF_PRODUCTS[usize::from(coefficient)];
        // SAFETY: `self` proves AVX2; both halves are 16 bytes long.
        unsafe {
            let low = _mm_loadu_si128(halves.low.as_ptr().cast());
            let high = _mm_loadu_si128(halves.high.as_ptr().cast());
            (_mm256_broadcastsi128_si256(low), _mm256_broadcastsi128_si256(high))
        }
    }
    #[inline(always)]
    fn mul(self, (low, high): (__m256i, __m256i), x: __m256i) -> __m256i {
        // SAFETY: `self` proves AVX2.
        unsafe {
            let half = _mm256_set1_epi8(0x0F);
            let low = _mm256_shuffle_epi8(low, _mm256_and_si256(x, half));
            let high = _mm256_shuffle_epi8(high, _mm256_and_si256(_mm256_srli_epi16::<4>(x), half));
            _mm256_xor_si256(low, high)
        }
    }
}

impl Lanes for Ssse3 {
    const WIDTH: usize = 16;
    type Vector = __m128i;
    /// Products with low halves, then products with high halves.
    type Factor = (__m128i, __m128i);
    kept_as_bytes!();

    #[inline(always)]
    fn zero(self) -> __m128i {
        // SAFETY: SSE2 is part of x86-64.
        unsafe { _mm_setzero_si128() }
    }
    #[inline(always)]
    fn factor(self, coefficient: u8) -> (__m128i, __m128i) {
        let halves = &HALF_PRODUCTS[usize::from(coefficient)];
        // SAFETY: SSE2 is part of x86-64; both halves are 16 bytes long.
        unsafe { (_mm_loadu_si128(halves.low.as_ptr().cast()), _mm_loadu_si128(halves.high.as_ptr().cast())) }
    }
    #[inline(always)]
    fn mul(self, (low, high): (__m128i, __m128i), x: __m128i) -> __m128i {
        // SAFETY: `self` proves SSSE3.
        unsafe {
            let half = _mm_set1_epi8(0x0F);
            let low = _mm_shuffle_epi8(low, _mm_and_si128(x, half));
            let high = _mm_shuffle_epi8(high, _mm_and_si128(_mm_srli_epi16::<4>(x), half));
            _mm_xor_si128(low, high)
        }
    }
    #[inline(always)]
    fn xor(self, a: __m128i, b: __m128i) -> __m128i {
        // SAFETY: SSE2 is part of x86-64.
        unsafe { _mm_xor_si128(a, b) }
    }
    #[inline(always)]
    unsafe fn load(self, from: *const u8) -> __m128i {
        // SAFETY: the caller ensures that 16 bytes are readable.
        unsafe { _mm_loadu_si128(from.cast()) }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut u8, vector: __m128i) {
        // SAFETY: the caller ensures that 16 bytes are writable.
        unsafe { _mm_storeu_si128(to.cast(), vector) }
    }
}
