//! AArch64 lanes: table look-ups on 16 bytes. Both halves of a byte are valid indices of `TBL`,
//! because they are below 16.

use super::lanes::{Lanes, kept_as_bytes, passes};
use crate::field::HALF_PRODUCTS;
use std::arch::aarch64::*;

/// Lanes of 16 bytes, multiplied by two table look-ups.
#[derive(Copy, Clone)]
pub(super) struct Neon(());

impl Neon {
    /// Returns the lanes if this machine has the instructions.
    pub fn detect() -> Option<Self> {
        std::arch::is_aarch64_feature_detected!("neon").then_some(Self(()))
    }
}

passes!(run_neon, tall_neon, Neon, "neon", [4, 2, 2, 2, 1, 1]);

impl Lanes for Neon {
    const WIDTH: usize = 16;
    type Vector = uint8x16_t;
    /// Products with low halves, then products with high halves.
    type Factor = (uint8x16_t, uint8x16_t);
    kept_as_bytes!();

    #[inline(always)]
    fn zero(self) -> uint8x16_t {
        // SAFETY: `self` proves NEON.
        unsafe { vdupq_n_u8(0) }
    }
    #[inline(always)]
    fn factor(self, coefficient: u8) -> (uint8x16_t, uint8x16_t) {
        let halves = &HALF_PRODUCTS[usize::from(coefficient)];
        // SAFETY: `self` proves NEON; both halves are 16 bytes long.
        unsafe { (vld1q_u8(halves.low.as_ptr()), vld1q_u8(halves.high.as_ptr())) }
    }
    #[inline(always)]
    fn mul(self, (low, high): (uint8x16_t, uint8x16_t), x: uint8x16_t) -> uint8x16_t {
        // SAFETY: `self` proves NEON.
        unsafe {
            let low = vqtbl1q_u8(low, vandq_u8(x, vdupq_n_u8(0x0F)));
            let high = vqtbl1q_u8(high, vshrq_n_u8::<4>(x));
            veorq_u8(low, high)
        }
    }
    #[inline(always)]
    fn xor(self, a: uint8x16_t, b: uint8x16_t) -> uint8x16_t {
        // SAFETY: `self` proves NEON.
        unsafe { veorq_u8(a, b) }
    }
    #[inline(always)]
    unsafe fn load(self, from: *const u8) -> uint8x16_t {
        // SAFETY: `self` proves NEON; the caller ensures that 16 bytes are readable.
        unsafe { vld1q_u8(from) }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut u8, vector: uint8x16_t) {
        // SAFETY: `self` proves NEON; the caller ensures that 16 bytes are writable.
        unsafe { vst1q_u8(to, vector) }
    }
}
