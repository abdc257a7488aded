//! The plain kernel: no vector instructions, one table row per coefficient. Runs on any machine,
//! and defines the results of all kernels.

use super::lanes::Pass;
use crate::field::PRODUCTS;

/// Runs a pass byte by byte; an xor pass takes every coefficient as 1.
///
/// # Safety
/// The pass's invariants must hold.
pub(super) unsafe fn run(pass: &Pass<'_>, xor: bool) {
    for (&output, coefficients) in pass.outputs.iter().zip(&pass.coefficients).take(pass.outputs_len) {
        // SAFETY: `len` bytes are writable at the output, and no other buffer overlaps them. They
        // are initialised if the pass accumulates; otherwise zeroing initialises them.
        let output = unsafe {
            if !pass.accumulate {
                output.write_bytes(0, pass.len);
            }
            std::slice::from_raw_parts_mut(output, pass.len)
        };
        let inputs = pass.inputs.iter().zip(coefficients).take(pass.inputs_len);
        let inputs = inputs.map(|(&input, &coefficient)| (input, if xor { 1 } else { coefficient }));
        for (input, coefficient) in inputs.chain(pass.ones.iter().map(|&one| (one, 1))) {
            // SAFETY: `len` bytes are readable at every input.
            let input = unsafe { std::slice::from_raw_parts(input, pass.len) };
            if coefficient == 1 {
                for (out, &x) in output.iter_mut().zip(input) {
                    *out ^= x;
                }
            } else {
                let row = &PRODUCTS[usize::from(coefficient)];
                for (out, &x) in output.iter_mut().zip(input) {
                    *out ^= row[usize::from(x)];
                }
            }
        }
    }
}
