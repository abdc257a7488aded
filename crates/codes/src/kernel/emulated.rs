//! Lanes in plain Rust for tests, which run the loop of the vector kernels on machines without
//! their instructions.
//!
//! `N` = 64 represents AVX-512 with GFNI (three-way xor by truth table, bit matrices), `N` = 32
//! represents GFNI on AVX2. The operations are written from the Intel SDM's pseudocode, not from
//! the kernels.

use super::lanes::{Lanes, Pass, TallPass, XorLanes, run, run_tall};
use crate::field::AFFINE;

/// Lanes of `N` bytes with GFNI, emulated.
#[derive(Copy, Clone)]
pub(super) struct EmulatedGfni<const N: usize>;

/// `GF2P8AFFINEQB` on one byte, with the constant zero.
fn affine_byte(matrix: u64, x: u8) -> u8 {
    let rows = matrix.to_le_bytes();
    (0..8).fold(0, |byte, i| byte | u8::from((rows[7 - i] & x).count_ones() % 2 == 1) << i)
}

/// `VPTERNLOGQ` on one byte: each bit of the operands selects a bit of the truth table.
fn ternary_byte(table: u8, a: u8, b: u8, c: u8) -> u8 {
    (0..8).fold(0, |byte, i| {
        let index = (a >> i & 1) << 2 | (b >> i & 1) << 1 | (c >> i & 1);
        byte | (table >> index & 1) << i
    })
}

impl<const N: usize> Lanes for EmulatedGfni<N> {
    const WIDTH: usize = N;
    const XOR3: bool = N == 64;
    type Vector = [u8; N];
    type Factor = u64;
    type PackedFactor = u64;

    fn zero(self) -> [u8; N] {
        [0; N]
    }
    fn factor(self, coefficient: u8) -> u64 {
        AFFINE[usize::from(coefficient)]
    }
    fn pack(self, coefficient: u8) -> u64 {
        self.factor(coefficient)
    }
    fn unpack(self, packed: u64) -> u64 {
        packed
    }
    fn mul(self, factor: u64, x: [u8; N]) -> [u8; N] {
        x.map(|byte| affine_byte(factor, byte))
    }
    fn xor(self, a: [u8; N], b: [u8; N]) -> [u8; N] {
        std::array::from_fn(|i| a[i] ^ b[i])
    }
    fn xor3(self, a: [u8; N], b: [u8; N], c: [u8; N]) -> [u8; N] {
        std::array::from_fn(|i| ternary_byte(0x96, a[i], b[i], c[i]))
    }
    unsafe fn load(self, from: *const u8) -> [u8; N] {
        // SAFETY: the caller ensures that N bytes are readable.
        unsafe { from.cast::<[u8; N]>().read_unaligned() }
    }
    unsafe fn store(self, to: *mut u8, vector: [u8; N]) {
        // SAFETY: the caller ensures that N bytes are writable.
        unsafe { to.cast::<[u8; N]>().write_unaligned(vector) }
    }
}

/// Runs a pass on emulated lanes, with as many vectors per turn as on the real lanes.
///
/// # Safety
/// The pass's invariants must hold.
pub(super) unsafe fn run_emulated<const N: usize>(pass: &Pass<'_>, xor: bool) {
    if pass.len < N {
        // SAFETY: the caller upholds the same contract.
        return unsafe { super::plain::run(pass, xor) };
    }
    macro_rules! by_inputs {
        ($lanes:expr, $outputs:literal, $turn:literal, $ones:literal, [$($inputs:literal)+]) => {
            match pass.inputs_len {
                // SAFETY: the caller upholds the invariants; the numbers of inputs and outputs
                // equal the arm's.
                $($inputs => unsafe { run::<_, $inputs, $outputs, $turn, $ones>($lanes, pass) },)+
                inputs => unreachable!("the planner never makes a pass of {inputs} inputs"),
            }
        };
    }
    let lanes = EmulatedGfni::<N>;
    match (xor, pass.outputs_len, !pass.ones.is_empty()) {
        (true, 1, false) => by_inputs!(XorLanes(lanes), 1, 4, false, [1 2 3 4 5 6 7 8]),
        (false, 1, false) => by_inputs!(lanes, 1, 4, false, [1 2 3 4 5 6 7 8]),
        (false, 1, true) => by_inputs!(lanes, 1, 4, true, [1 2 3 4 5 6 7 8]),
        (false, 2, false) => by_inputs!(lanes, 2, 2, false, [1 2 3 4]),
        (false, 3, false) => by_inputs!(lanes, 3, 2, false, [1 2 3 4]),
        (false, 4, false) => by_inputs!(lanes, 4, 2, false, [1 2 3 4]),
        (xor, outputs, ones) => {
            unreachable!("the planner makes no pass of {outputs} outputs (xor: {xor}, ones: {ones})")
        }
    }
}

/// Runs a walk on emulated lanes.
///
/// # Safety
/// The walk's invariants must hold.
pub(super) unsafe fn tall_emulated<const N: usize>(tall: &TallPass<'_>) {
    macro_rules! by_outputs {
        ([$($outputs:literal)+]) => {
            match tall.outputs_len {
                // SAFETY: the caller upholds the walk's invariants.
                1 => unsafe { run_tall::<_, 1, 4>(XorLanes(EmulatedGfni::<N>), tall) },
                // SAFETY: the caller upholds the walk's invariants; the number of outputs equals
                // the arm's.
                $($outputs => unsafe { run_tall::<_, $outputs, 2>(EmulatedGfni::<N>, tall) },)+
                outputs => unreachable!("the planner makes no walk of {outputs} outputs"),
            }
        };
    }
    by_outputs!([2 3 4 5 6]);
}
