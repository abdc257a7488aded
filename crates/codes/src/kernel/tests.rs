//! Tests of every kernel, and of the emulated lanes, against sums computed byte by byte in the
//! field.

use super::*;
use crate::Gf;
use proptest::collection::vec;
use proptest::prelude::*;

/// The definition of [`gf_dot`], byte by byte.
fn expected(coefficients: &[u8], inputs: &[&[u8]], start: &[u8]) -> Vec<u8> {
    let sum = |i| coefficients.iter().zip(inputs).map(|(&c, input)| Gf(c) * Gf(input[i])).sum::<Gf>();
    start.iter().enumerate().map(|(i, &byte)| (Gf(byte) + sum(i)).0).collect()
}

/// The engines of this machine and the emulated engines, each with its name.
fn engines() -> Vec<(&'static str, Engine)> {
    let real = Kernel::available().into_iter().filter_map(|kernel| Some((kernel.name(), kernel.engine()?)));
    let emulated =
        [("emulated gfni-avx512", Engine::Emulated512), ("emulated gfni-avx2", Engine::Emulated256)];
    real.chain(emulated).collect()
}

/// Buffers at chosen offsets from a 64-byte boundary, with guard bytes around the outputs.
struct Buffers {
    bytes: Vec<u8>,
    origin: usize,
    stride: usize,
    len: usize,
    offsets: Vec<usize>,
}

const GUARD: u8 = 0xA5;

impl Buffers {
    fn new(len: usize, offsets: &[usize], mut fill: impl FnMut(usize, usize) -> u8) -> Self {
        let stride = (len + 64 + 127) / 64 * 64;
        let mut bytes = vec![GUARD; stride * offsets.len() + 128];
        let origin = bytes.as_ptr().align_offset(64);
        for (index, offset) in offsets.iter().enumerate() {
            for i in 0..len {
                bytes[origin + index * stride + offset + i] = fill(index, i);
            }
        }
        Self { bytes, origin, stride, len, offsets: offsets.to_vec() }
    }
    fn range(&self, index: usize) -> std::ops::Range<usize> {
        let start = self.origin + index * self.stride + self.offsets[index];
        start..start + self.len
    }
    fn slice(&self, index: usize) -> &[u8] {
        &self.bytes[self.range(index)]
    }
    fn slices(&self) -> Vec<&[u8]> {
        (0..self.offsets.len()).map(|index| self.slice(index)).collect()
    }
    fn slices_mut(&mut self) -> Vec<&mut [u8]> {
        let (stride, len) = (self.stride, self.len);
        let parts = self.bytes[self.origin..].chunks_mut(stride).zip(&self.offsets);
        parts.map(|(part, &offset)| &mut part[offset..offset + len]).collect()
    }
    /// Returns true if no byte outside the buffers was written.
    fn guards_stand(&self) -> bool {
        let inside = |i: &usize| (0..self.offsets.len()).any(|index| self.range(index).contains(i));
        (0..self.bytes.len()).filter(|i| !inside(i)).all(|i| self.bytes[i] == GUARD)
    }
}

fn noise(seed: u64) -> impl FnMut(usize, usize) -> u8 {
    let mut state = seed | 1;
    move |_, _| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    }
}

fn any_coefficient() -> impl Strategy<Value = u8> {
    prop_oneof![2 => any::<u8>(), 1 => Just(0u8), 1 => Just(1u8)]
}
/// Short and long lengths; multiples of the widest vector and their neighbours are more frequent
/// than in uniform draws.
fn any_len() -> impl Strategy<Value = usize> {
    prop_oneof![
        0usize..5000,
        0usize..200,
        (0usize..20, 0usize..3).prop_map(|(n, d)| (n * 64 + d).saturating_sub(1))
    ]
}

#[derive(Debug, Clone)]
struct Case {
    len: usize,
    rows: Vec<Vec<u8>>,
    input_offsets: Vec<usize>,
    output_offsets: Vec<usize>,
    seed: u64,
}

fn any_case(outputs: std::ops::RangeInclusive<usize>) -> impl Strategy<Value = Case> {
    (any_len(), 1usize..=10, outputs, any::<u64>()).prop_flat_map(|(len, k, m, seed)| {
        let rows = vec(vec(any_coefficient(), k), m);
        (rows, vec(0usize..64, k), vec(0usize..64, m)).prop_map(
            move |(rows, input_offsets, output_offsets)| Case {
                len,
                rows,
                input_offsets,
                output_offsets,
                seed,
            },
        )
    })
}

proptest! {
    #[test]
    fn every_kernel_computes_one_output_correctly(case in any_case(1..=1)) {
        let inputs = Buffers::new(case.len, &case.input_offsets, noise(case.seed));
        let inputs = inputs.slices();
        let want = expected(&case.rows[0], &inputs, &vec![0; case.len]);
        for (name, engine) in engines() {
            let mut output = Buffers::new(case.len, &case.output_offsets, noise(1));
            engine.gf_dot(&case.rows[0], &inputs, output.slices_mut().remove(0));
            prop_assert!(output.slice(0) == want, "{}", name);
            prop_assert!(output.guards_stand(), "{}", name);
        }
    }

    #[test]
    fn every_kernel_adds_to_the_previous_output(case in any_case(1..=1)) {
        let inputs = Buffers::new(case.len, &case.input_offsets, noise(case.seed));
        let inputs = inputs.slices();
        let before = Buffers::new(case.len, &case.output_offsets, noise(2));
        let want = expected(&case.rows[0], &inputs, before.slice(0));
        for (name, engine) in engines() {
            let mut output = Buffers::new(case.len, &case.output_offsets, noise(2));
            engine.gf_mul_add(&case.rows[0], &inputs, output.slices_mut().remove(0));
            prop_assert!(output.slice(0) == want, "{}", name);
            prop_assert!(output.guards_stand(), "{}", name);
        }
    }

    #[test]
    fn every_kernel_computes_several_outputs_correctly(case in any_case(1..=6)) {
        let inputs = Buffers::new(case.len, &case.input_offsets, noise(case.seed));
        let inputs = inputs.slices();
        let rows: Vec<&[u8]> = case.rows.iter().map(Vec::as_slice).collect();
        for (name, engine) in engines() {
            let mut outputs = Buffers::new(case.len, &case.output_offsets, noise(3));
            engine.gf_dot_many(&rows, &inputs, &mut outputs.slices_mut());
            for (index, row) in rows.iter().enumerate() {
                let want = expected(row, &inputs, &vec![0; case.len]);
                prop_assert!(outputs.slice(index) == want, "{} output {}", name, index);
            }
            prop_assert!(outputs.guards_stand(), "{}", name);
        }
    }

    #[test]
    fn xor_equals_gf_dot_with_coefficients_of_one(case in any_case(1..=1)) {
        let inputs = Buffers::new(case.len, &case.input_offsets, noise(case.seed));
        let inputs = inputs.slices();
        let want = expected(&vec![1; inputs.len()], &inputs, &vec![0; case.len]);
        for (name, engine) in engines() {
            let mut output = Buffers::new(case.len, &case.output_offsets, noise(4));
            engine.xor(&inputs, output.slices_mut().remove(0), false);
            prop_assert!(output.slice(0) == want, "{}", name);
            prop_assert!(output.guards_stand(), "{}", name);
            let want = expected(&vec![1; inputs.len()], &inputs, &want);
            engine.xor(&inputs, output.slices_mut().remove(0), true);
            prop_assert!(output.slice(0) == want, "{}, added", name);
            prop_assert!(output.guards_stand(), "{}, added", name);
        }
    }

    #[test]
    fn gf_dot_to_vec_equals_gf_dot(case in any_case(1..=1)) {
        let inputs = Buffers::new(case.len, &case.input_offsets, noise(case.seed));
        let inputs = inputs.slices();
        let want = expected(&case.rows[0], &inputs, &vec![0; case.len]);
        prop_assert_eq!(gf_dot_to_vec(&case.rows[0], &inputs, case.len), want);
    }
}

#[test]
fn every_kernel_multiplies_every_byte_by_every_coefficient() {
    let input: Vec<u8> = (0..=255).collect();
    for (name, engine) in engines() {
        for c in 0..=255 {
            let mut output = [7; 256];
            engine.gf_dot(&[c], &[&input], &mut output);
            let want: Vec<u8> = (0..=255).map(|x| (Gf(c) * Gf(x)).0).collect();
            assert_eq!(output.as_slice(), want, "{name}, coefficient {c}");
        }
    }
}

#[test]
fn several_passes_sum_many_terms_and_long_inputs() {
    let count = 21;
    let inputs = Buffers::new(70_001, &vec![3; count], noise(5));
    let inputs = inputs.slices();
    let rows: Vec<Vec<u8>> =
        (0..9).map(|o| (0..count).map(|i| ((o * 31 + i * 7) % 256) as u8).collect()).collect();
    let rows: Vec<&[u8]> = rows.iter().map(Vec::as_slice).collect();
    for (name, engine) in engines() {
        let mut outputs = Buffers::new(70_001, &[5; 9], noise(6));
        engine.gf_dot_many(&rows, &inputs, &mut outputs.slices_mut());
        for (index, row) in rows.iter().enumerate() {
            assert!(outputs.slice(index) == expected(row, &inputs, &[0; 70_001]), "{name} output {index}");
        }
        engine.xor(&inputs, outputs.slices_mut().remove(0), false);
        assert!(outputs.slice(0) == expected(&[1; 21], &inputs, &[0; 70_001]), "{name} xor");
        engine.gf_dot(rows[3], &inputs, outputs.slices_mut().remove(1));
        assert!(outputs.slice(1) == outputs.slice(3), "{name} one output");
        assert!(outputs.guards_stand(), "{name}");
    }
}

#[test]
fn several_walks_sum_more_inputs_than_one_holds() {
    let (count, len) = (2 * TALL_INPUTS + 6, 700);
    let inputs = Buffers::new(len, &vec![3; count], noise(7));
    let inputs = inputs.slices();
    let rows: Vec<Vec<u8>> =
        (0..9).map(|o| (0..count).map(|i| ((o * 31 + i * 7) % 256) as u8).collect()).collect();
    let rows: Vec<&[u8]> = rows.iter().map(Vec::as_slice).collect();
    for (name, engine) in engines() {
        let mut outputs = Buffers::new(len, &[5; 9], noise(8));
        engine.gf_dot_many(&rows, &inputs, &mut outputs.slices_mut());
        for (index, row) in rows.iter().enumerate() {
            assert!(outputs.slice(index) == expected(row, &inputs, &vec![0; len]), "{name} output {index}");
        }
        let before = outputs.slice(0).to_vec();
        engine.xor(&inputs, outputs.slices_mut().remove(0), true);
        assert!(outputs.slice(0) == expected(&vec![1; count], &inputs, &before), "{name} xor");
        assert!(outputs.guards_stand(), "{name}");
    }
}

#[test]
fn sum_without_terms_is_zero() {
    for (name, engine) in engines() {
        let input = [9; 100];
        let mut output = [1; 100];
        engine.gf_dot(&[], &[], &mut output);
        assert_eq!(output, [0; 100], "{name}");
        let (mut a, mut b) = ([1; 100], [1; 100]);
        engine.gf_dot_many(&[&[0], &[0]], &[&input], &mut [&mut a, &mut b]);
        assert_eq!((a, b), ([0; 100], [0; 100]), "{name}");
        engine.gf_mul_add(&[0], &[&input], &mut a);
        engine.xor(&[], &mut b, false);
        assert_eq!((a, b), ([0; 100], [0; 100]), "{name}");
        engine.gf_dot_many(&[], &[&input], &mut []);
    }
}

#[test]
fn plain_kernel_is_always_available() {
    let available = Kernel::available();
    assert_eq!(available.last(), Some(&Kernel::Plain));
    assert_eq!(available.first(), Some(&kernel_in_use()));
}

#[test]
fn mismatched_input_shapes_panic_with_the_reason() {
    let message = |call: &(dyn Fn() + std::panic::RefUnwindSafe)| -> String {
        let panic = std::panic::catch_unwind(call).expect_err("the call must panic");
        panic.downcast_ref::<String>().cloned().unwrap_or_default()
    };
    assert_eq!(
        message(&|| gf_dot(&[1, 2], &[&[0; 4]], &mut [0; 4])),
        "2 coefficients for 1 inputs: must be as many"
    );
    assert_eq!(
        message(&|| gf_dot(&[1], &[&[0; 3]], &mut [0; 4])),
        "input 0 has 3 bytes: must have 4, as the output"
    );
    assert_eq!(
        message(&|| gf_dot_many(&[&[1], &[1]], &[&[0; 4]], &mut [&mut [0; 4], &mut [0; 5]])),
        "output 1 has 5 bytes: must have 4, as output 0"
    );
}
