//! Sums of products over long runs of bytes, with the fastest instructions of the machine.
//!
//! [`gf_dot`] computes one output from several inputs, and [`gf_dot_many`] several outputs, which
//! share each read of an input. [`gf_mul_add`] adds to an output, and [`xor`] is the case of all
//! coefficients 1. Each function is also a method of [`Kernel`], for tests and measurements of a
//! given kernel.
//!
//! A call is split into passes of at most eight inputs and four outputs, each with a specialised
//! loop. If several passes are needed, the bytes are split into chunks that stay in the
//! second-level cache between passes. With a single output, coefficients 0 and 1 are special:
//! inputs with 0 are not read, inputs with 1 are added without multiplication.
//!
//! [`XorSum`] and [`Arena`] are for codes with many sums of short blocks. An `XorSum` takes terms
//! one by one; an `Arena` takes terms by number, and checks lengths once.
//!
//! Leaves out: threads. A call uses one core; chunks of a file are independent, so callers can
//! distribute them. Read [`Kernel`] and [`gf_dot`] first; the loop itself is in `lanes.rs`.

mod arena;
#[cfg(test)]
mod emulated;
mod lanes;
#[cfg(target_arch = "aarch64")]
mod neon;
mod plain;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod x86;

pub(crate) use arena::{Arena, XorSum};
use lanes::{PASS_INPUTS, PASS_OUTPUTS, Pass, TALL_INPUTS, TALL_OUTPUTS, TallPass};
use std::fmt;
use std::sync::OnceLock;

/// Maximum number of inputs of a pass that multiplies for several outputs. The factors of more
/// inputs do not fit into registers; a walk then reads factors from memory.
const PASS_INPUTS_SHARED: usize = 4;
/// Total bytes of inputs and outputs in a chunk shared by several passes: most of a 256 KiB
/// second-level cache. Chunks for the first-level cache (24 KiB) were a quarter slower at 8 inputs
/// of 1 MiB, because they are too short to prefetch.
const CHUNK_BYTES_ALL: usize = 192 * 1024;
/// Granularity of chunks in bytes: the widest vector, so that outputs stay aligned.
const CHUNK_STEP: usize = 64;

/// An implementation, named by the instructions that it needs. All kernels give the same bytes.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Kernel {
    /// x86-64 with GFNI, AVX-512F and AVX-512BW: 64 bytes at a time.
    Gfni512,
    /// x86-64 with GFNI and AVX2: 32 bytes at a time.
    Gfni256,
    /// x86-64 with AVX2: 32 bytes at a time, by byte shuffles.
    Avx2,
    /// x86-64 with SSSE3: 16 bytes at a time, by byte shuffles.
    Ssse3,
    /// AArch64 with NEON: 16 bytes at a time, by table look-ups.
    Neon,
    /// Any machine: one byte at a time, by tables.
    Plain,
}

impl Kernel {
    /// All kernels, in order of decreasing speed on a machine that has several.
    pub const ALL: [Self; 6] =
        [Self::Gfni512, Self::Gfni256, Self::Avx2, Self::Ssse3, Self::Neon, Self::Plain];

    /// The kernels available on this machine, in order of decreasing speed; [`Kernel::Plain`] is
    /// always the last.
    pub fn available() -> Vec<Self> {
        Self::ALL.into_iter().filter(|kernel| kernel.is_available()).collect()
    }
    /// Returns true if this machine can run the kernel.
    pub fn is_available(self) -> bool {
        self.engine().is_some()
    }
    /// Short name for reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Gfni512 => "gfni-avx512",
            Self::Gfni256 => "gfni-avx2",
            Self::Avx2 => "avx2",
            Self::Ssse3 => "ssse3",
            Self::Neon => "neon",
            Self::Plain => "plain",
        }
    }
    /// [`gf_dot`] on this kernel.
    ///
    /// Panics: as [`gf_dot`], and if this machine cannot run the kernel.
    pub fn gf_dot(self, coefficients: &[u8], inputs: &[&[u8]], output: &mut [u8]) {
        self.engine_or_panic().gf_dot(coefficients, inputs, output);
    }
    /// [`gf_dot_many`] on this kernel.
    ///
    /// Panics: as [`gf_dot_many`], and if this machine cannot run the kernel.
    pub fn gf_dot_many(self, coefficients: &[&[u8]], inputs: &[&[u8]], outputs: &mut [&mut [u8]]) {
        self.engine_or_panic().gf_dot_many(coefficients, inputs, outputs);
    }
    /// [`gf_mul_add`] on this kernel.
    ///
    /// Panics: as [`gf_mul_add`], and if this machine cannot run the kernel.
    pub fn gf_mul_add(self, coefficients: &[u8], inputs: &[&[u8]], output: &mut [u8]) {
        self.engine_or_panic().gf_mul_add(coefficients, inputs, output);
    }
    /// [`xor`] on this kernel.
    ///
    /// Panics: as [`xor`], and if this machine cannot run the kernel.
    pub fn xor(self, inputs: &[&[u8]], output: &mut [u8]) {
        self.engine_or_panic().xor(inputs, output, false);
    }
    /// [`xor_add`] on this kernel.
    ///
    /// Panics: as [`xor_add`], and if this machine cannot run the kernel.
    pub fn xor_add(self, inputs: &[&[u8]], output: &mut [u8]) {
        self.engine_or_panic().xor(inputs, output, true);
    }

    fn engine(self) -> Option<Engine> {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Gfni512 => x86::Gfni512::detect().map(Engine::Gfni512),
            #[cfg(target_arch = "x86_64")]
            Self::Gfni256 => x86::Gfni256::detect().map(Engine::Gfni256),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => x86::Avx2::detect().map(Engine::Avx2),
            #[cfg(target_arch = "x86_64")]
            Self::Ssse3 => x86::Ssse3::detect().map(Engine::Ssse3),
            #[cfg(target_arch = "aarch64")]
            Self::Neon => neon::Neon::detect().map(Engine::Neon),
            Self::Plain => Some(Engine::Plain),
            #[allow(unreachable_patterns, reason = "reachable where an architecture lacks one of them")]
            _ => None,
        }
    }
    fn engine_or_panic(self) -> Engine {
        self.engine().unwrap_or_else(|| panic!("this machine cannot run the {self} kernel"))
    }
}

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The kernel used by [`gf_dot`] and its siblings on this machine.
pub fn kernel_in_use() -> Kernel {
    fastest().0
}

/// Writes the sum of `coefficients[i] * inputs[i]` to `output`.
///
/// Shape: as many coefficients as inputs, all inputs as long as the output. Without inputs the sum
/// is zero.
/// Panics: if the shapes differ.
/// Cost: with up to eight inputs, reads each input with a coefficient other than 0 once. A
/// coefficient of 1 is cheaper than others.
///
/// ```
/// let (a, b) = (vec![3; 100], vec![5; 100]);
/// let mut sum = vec![0; 100];
/// anabranch_codes::gf_dot(&[1, 2], &[&a, &b], &mut sum);
/// assert_eq!(sum, [3 ^ (5 << 1); 100]);
/// ```
pub fn gf_dot(coefficients: &[u8], inputs: &[&[u8]], output: &mut [u8]) {
    fastest().1.gf_dot(coefficients, inputs, output);
}

/// Does the same as [`gf_dot`] for several outputs: `outputs[o]` becomes the sum of
/// `coefficients[o][i] * inputs[i]`.
///
/// Shape: one row of coefficients for each output, with one coefficient for each input; all inputs
/// and outputs of one length.
/// Panics: if the shapes differ.
/// Cost: up to four outputs share each load of an input.
pub fn gf_dot_many(coefficients: &[&[u8]], inputs: &[&[u8]], outputs: &mut [&mut [u8]]) {
    fastest().1.gf_dot_many(coefficients, inputs, outputs);
}

/// Does the same as [`gf_dot_many`]; `row` returns the row of coefficients of an output.
pub(crate) fn gf_dot_rows<'a>(row: impl Fn(usize) -> &'a [u8], inputs: &[&[u8]], outputs: &mut [&mut [u8]]) {
    fastest().1.gf_dot_rows(row, inputs, outputs);
}

/// Does the same as [`gf_dot`], but adds to the content of `output`.
///
/// Shape: as many coefficients as inputs, all inputs as long as the output.
/// Panics: if the shapes differ.
pub fn gf_mul_add(coefficients: &[u8], inputs: &[&[u8]], output: &mut [u8]) {
    fastest().1.gf_mul_add(coefficients, inputs, output);
}

/// Does the same as [`gf_dot`], and returns a new vector of `len` bytes that is written only once.
///
/// Panics: if there are not as many coefficients as inputs, or an input's length is not `len`.
pub fn gf_dot_to_vec(coefficients: &[u8], inputs: &[&[u8]], len: usize) -> Vec<u8> {
    check_shape(coefficients, inputs, len);
    let mut output = Vec::with_capacity(len);
    // SAFETY: the vector owns `len` bytes, to which there is no other reference; all inputs are
    // `len` bytes long; without `accumulate` every byte is written and none is read.
    unsafe {
        fastest().1.sum(coefficients, inputs, 0, output.as_mut_ptr(), len, false);
        output.set_len(len);
    }
    output
}

/// Writes the sum of the inputs (their exclusive or) to `output`.
///
/// Shape: all inputs as long as the output. Without inputs the sum is zero; with one input it is a
/// copy.
/// Panics: if the lengths differ.
pub fn xor(inputs: &[&[u8]], output: &mut [u8]) {
    fastest().1.xor(inputs, output, false);
}

/// Does the same as [`xor`], but adds to the content of `output`.
///
/// Shape: all inputs as long as the output. Without inputs the output is unchanged.
/// Panics: if the lengths differ.
pub fn xor_add(inputs: &[&[u8]], output: &mut [u8]) {
    fastest().1.xor(inputs, output, true);
}

fn fastest() -> (Kernel, Engine) {
    static FASTEST: OnceLock<(Kernel, Engine)> = OnceLock::new();
    *FASTEST.get_or_init(|| {
        let found = Kernel::ALL.into_iter().find_map(|kernel| Some((kernel, kernel.engine()?)));
        found.expect("the plain kernel runs everywhere")
    })
}

/// A kernel with the proof that the machine can run it.
#[derive(Copy, Clone)]
enum Engine {
    #[cfg(target_arch = "x86_64")]
    Gfni512(x86::Gfni512),
    #[cfg(target_arch = "x86_64")]
    Gfni256(x86::Gfni256),
    #[cfg(target_arch = "x86_64")]
    Avx2(x86::Avx2),
    #[cfg(target_arch = "x86_64")]
    Ssse3(x86::Ssse3),
    #[cfg(target_arch = "aarch64")]
    Neon(neon::Neon),
    Plain,
    #[cfg(test)]
    Emulated512,
    #[cfg(test)]
    Emulated256,
}

fn check_shape(coefficients: &[u8], inputs: &[&[u8]], len: usize) {
    check_count(coefficients, inputs);
    check_lengths(inputs, len);
}
fn check_count(coefficients: &[u8], inputs: &[&[u8]]) {
    assert!(
        coefficients.len() == inputs.len(),
        "{} coefficients for {} inputs: must be as many",
        coefficients.len(),
        inputs.len()
    );
}
fn check_lengths(inputs: &[&[u8]], len: usize) {
    for (index, input) in inputs.iter().enumerate() {
        assert!(
            input.len() == len,
            "input {index} has {} bytes: must have {len}, as the output",
            input.len()
        );
    }
}

/// Terms collected for one pass with one output.
struct Terms {
    coefficients: [u8; PASS_INPUTS],
    inputs: [*const u8; PASS_INPUTS],
    inputs_len: usize,
    ones: [*const u8; PASS_INPUTS],
    ones_len: usize,
}

impl Terms {
    const NONE: Self = Self {
        coefficients: [0; PASS_INPUTS],
        inputs: [std::ptr::null(); PASS_INPUTS],
        inputs_len: 0,
        ones: [std::ptr::null(); PASS_INPUTS],
        ones_len: 0,
    };
}

/// Size in bytes of a chunk. All passes of a call run over one chunk before the next.
fn chunk_bytes(buffers: usize) -> usize {
    (CHUNK_BYTES_ALL / buffers / CHUNK_STEP * CHUNK_STEP).max(1024)
}

impl Engine {
    fn gf_dot(self, coefficients: &[u8], inputs: &[&[u8]], output: &mut [u8]) {
        check_shape(coefficients, inputs, output.len());
        // SAFETY: the inputs are as long as the output; the output is a unique borrow, so no input
        // overlaps it.
        unsafe { self.sum(coefficients, inputs, 0, output.as_mut_ptr(), output.len(), false) };
    }
    fn gf_mul_add(self, coefficients: &[u8], inputs: &[&[u8]], output: &mut [u8]) {
        check_shape(coefficients, inputs, output.len());
        // SAFETY: the inputs are as long as the output; the output is an initialised unique borrow,
        // so no input overlaps it.
        unsafe { self.sum(coefficients, inputs, 0, output.as_mut_ptr(), output.len(), true) };
    }
    fn xor(self, inputs: &[&[u8]], output: &mut [u8], accumulate: bool) {
        check_lengths(inputs, output.len());
        let len = output.len();
        let output = output.as_mut_ptr();
        if inputs.is_empty() && !accumulate {
            // SAFETY: the output has `len` bytes.
            unsafe { output.write_bytes(0, len) };
        }
        if inputs.len() > PASS_INPUTS && len >= CHUNK_STEP && !matches!(self, Self::Plain) {
            // SAFETY: the inputs are as long as the output, which is initialised. The output is a
            // unique borrow, so it overlaps no input.
            return unsafe { self.xor_many(inputs, output, len, accumulate) };
        }
        let chunk = if inputs.len() <= PASS_INPUTS { len } else { chunk_bytes(inputs.len() + 1) };
        let mut pass = Pass {
            coefficients: [[0; PASS_INPUTS]; PASS_OUTPUTS],
            inputs: [std::ptr::null(); PASS_INPUTS],
            inputs_len: 0,
            ones: &[],
            outputs: [std::ptr::null_mut(); PASS_OUTPUTS],
            outputs_len: 1,
            accumulate,
            len,
        };
        let mut at = 0;
        while at < len {
            pass.len = chunk.min(len - at);
            pass.accumulate = accumulate;
            pass.outputs[0] = output.wrapping_add(at);
            for group in inputs.chunks(PASS_INPUTS) {
                pass.inputs_len = group.len();
                for (pointer, input) in pass.inputs.iter_mut().zip(group) {
                    *pointer = input.as_ptr().wrapping_add(at);
                }
                // SAFETY: the `pass.len` bytes from `at` on are inside the inputs and the output,
                // which is initialised. The output is a unique borrow, so it overlaps no input.
                unsafe { self.run(&pass, true) };
                pass.accumulate = true;
            }
            at += pass.len;
        }
    }

    /// Computes the sum of many inputs without coefficients.
    ///
    /// # Safety
    /// All inputs must have `len` bytes, at least the widest vector's. At `output`, `len` bytes
    /// must be writable and initialised, and overlap no input.
    unsafe fn xor_many(self, inputs: &[&[u8]], output: *mut u8, len: usize, accumulate: bool) {
        let group = inputs.len().div_ceil(inputs.len().div_ceil(TALL_INPUTS));
        let chunk = if inputs.len() <= TALL_INPUTS { len } else { chunk_bytes(inputs.len() + 1) };
        let mut pointers = [std::ptr::null(); TALL_INPUTS];
        let mut at = 0;
        while at < len {
            // The last chunk has at least the length of a vector.
            let chunk = if len - at < 2 * chunk { len - at } else { chunk };
            for (number, group) in inputs.chunks(group).enumerate() {
                for (pointer, input) in pointers.iter_mut().zip(group) {
                    *pointer = input.as_ptr().wrapping_add(at);
                }
                let mut tall = TallPass {
                    rows: [&[1; TALL_INPUTS]; TALL_OUTPUTS],
                    first: 0,
                    inputs: &pointers[..group.len()],
                    outputs: [std::ptr::null_mut(); TALL_OUTPUTS],
                    outputs_len: 1,
                    accumulate: accumulate || number > 0,
                    len: chunk,
                };
                tall.outputs[0] = output.wrapping_add(at);
                // SAFETY: the `chunk` bytes from `at` on, at least a vector's, are inside the
                // inputs and the output; the caller upholds the other invariants.
                unsafe { self.walk(&tall) };
            }
            at += chunk;
        }
    }

    /// Computes one output: inputs with coefficient 0 are dropped, inputs with 1 only added.
    ///
    /// # Safety
    /// All inputs must have `len` bytes from `start` on. At `output`, `len` bytes must be writable
    /// and overlap no input; they must be initialised if `accumulate` is set. There must be as many
    /// coefficients as inputs.
    unsafe fn sum(
        self,
        coefficients: &[u8],
        inputs: &[&[u8]],
        start: usize,
        output: *mut u8,
        len: usize,
        accumulate: bool,
    ) {
        let count = coefficients.iter().filter(|&&c| c != 0).count();
        if count == 0 {
            if !accumulate {
                // SAFETY: the caller ensures that `len` bytes are writable.
                unsafe { output.write_bytes(0, len) };
            }
            return;
        }
        let chunk = if count <= PASS_INPUTS { len } else { chunk_bytes(count + 1) };
        let mut at = 0;
        while at < len {
            let chunk = chunk.min(len - at);
            let mut accumulate = accumulate;
            let mut left = count;
            let mut terms = Terms::NONE;
            for (&coefficient, input) in coefficients.iter().zip(inputs).filter(|&(&c, _)| c != 0) {
                let input = input.as_ptr().wrapping_add(start + at);
                if coefficient == 1 {
                    terms.ones[terms.ones_len] = input;
                    terms.ones_len += 1;
                } else {
                    terms.coefficients[terms.inputs_len] = coefficient;
                    terms.inputs[terms.inputs_len] = input;
                    terms.inputs_len += 1;
                }
                left -= 1;
                if left == 0 || terms.inputs_len + terms.ones_len == PASS_INPUTS {
                    // SAFETY: the `chunk` bytes from `at` on are inside the inputs and the output.
                    // The first of several passes initialises the output; the caller upholds the
                    // other invariants.
                    unsafe { self.pass_of_terms(&terms, output.add(at), chunk, accumulate) };
                    accumulate = true;
                    terms = Terms::NONE;
                }
            }
            at += chunk;
        }
    }

    /// Runs one pass with one output.
    ///
    /// # Safety
    /// `len` bytes must be readable at each of the terms and writable at `output`; the output must
    /// overlap no term. The output must be initialised if `accumulate` is set.
    unsafe fn pass_of_terms(self, terms: &Terms, output: *mut u8, len: usize, accumulate: bool) {
        let xor = terms.inputs_len == 0;
        let ones = &terms.ones[..terms.ones_len];
        let pass = Pass {
            coefficients: [terms.coefficients, [0; PASS_INPUTS], [0; PASS_INPUTS], [0; PASS_INPUTS]],
            inputs: if xor { terms.ones } else { terms.inputs },
            inputs_len: if xor { terms.ones_len } else { terms.inputs_len },
            ones: if xor { &[] } else { ones },
            outputs: [output, std::ptr::null_mut(), std::ptr::null_mut(), std::ptr::null_mut()],
            outputs_len: 1,
            accumulate,
            len,
        };
        // SAFETY: the caller's contract contains the pass's invariants.
        unsafe { self.run(&pass, xor) };
    }

    fn gf_dot_many(self, coefficients: &[&[u8]], inputs: &[&[u8]], outputs: &mut [&mut [u8]]) {
        assert!(
            coefficients.len() == outputs.len(),
            "{} rows of coefficients for {} outputs: must be as many",
            coefficients.len(),
            outputs.len()
        );
        self.gf_dot_rows(|output| coefficients[output], inputs, outputs);
    }

    fn gf_dot_rows<'a>(self, row: impl Fn(usize) -> &'a [u8], inputs: &[&[u8]], outputs: &mut [&mut [u8]]) {
        let Some(len) = outputs.first().map(|output| output.len()) else { return };
        for (index, output) in outputs.iter().enumerate() {
            assert!(
                output.len() == len,
                "output {index} has {} bytes: must have {len}, as output 0",
                output.len()
            );
            check_count(row(index), inputs);
        }
        check_lengths(inputs, len);
        let has_walks = len >= CHUNK_STEP && !matches!(self, Self::Plain);
        if has_walks && outputs.len() > 1 && inputs.len() > PASS_INPUTS_SHARED {
            return self.walk_all(row, inputs, outputs, len);
        }
        let one_pass = outputs.len() <= PASS_OUTPUTS && inputs.len() <= PASS_INPUTS_SHARED;
        let chunk = if one_pass { len } else { chunk_bytes(inputs.len() + outputs.len()) };
        // Groups are as even as possible: five outputs are three and two, not four and one.
        let group = outputs.len().div_ceil(outputs.len().div_ceil(PASS_OUTPUTS));
        let mut at = 0;
        while at < len {
            let chunk = chunk.min(len - at);
            for (number, outputs) in outputs.chunks_mut(group).enumerate() {
                let row = |output: usize| row(number * group + output);
                if let [output] = &mut *outputs {
                    let output = output[at..at + chunk].as_mut_ptr();
                    // SAFETY: all inputs and the output have `chunk` bytes from `at` on, and the
                    // output as a unique borrow overlaps no input.
                    unsafe { self.sum(row(0), inputs, at, output, chunk, false) };
                } else {
                    self.sum_shared(row, inputs, outputs, at, chunk);
                }
            }
            at += chunk;
        }
    }

    /// Computes several outputs of `len` bytes each (at least the widest vector) from more inputs
    /// than one pass has.
    fn walk_all<'a>(
        self,
        row: impl Fn(usize) -> &'a [u8],
        inputs: &[&[u8]],
        outputs: &mut [&mut [u8]],
        len: usize,
    ) {
        // Groups are as even as possible: seven outputs are four and three, not six and one.
        let even = |count: usize, most: usize| count.div_ceil(count.div_ceil(most));
        let (outputs_group, inputs_group) =
            (even(outputs.len(), TALL_OUTPUTS), even(inputs.len(), TALL_INPUTS));
        let one_walk = outputs.len() <= TALL_OUTPUTS && inputs.len() <= TALL_INPUTS;
        let chunk = if one_walk { len } else { chunk_bytes(inputs.len() + outputs.len()) };
        let mut at = 0;
        while at < len {
            // The last chunk has at least the length of a vector.
            let chunk = if len - at < 2 * chunk { len - at } else { chunk };
            for (number, outputs) in outputs.chunks_mut(outputs_group).enumerate() {
                let row = |output: usize| row(number * outputs_group + output);
                if let [output] = &mut *outputs {
                    let output = output[at..at + chunk].as_mut_ptr();
                    // SAFETY: all inputs and the output have `chunk` bytes from `at` on, and the
                    // output as a unique borrow overlaps no input.
                    unsafe { self.sum(row(0), inputs, at, output, chunk, false) };
                    continue;
                }
                let mut pointers = [std::ptr::null(); TALL_INPUTS];
                let mut tall = TallPass {
                    rows: [&[]; TALL_OUTPUTS],
                    first: 0,
                    inputs: &[],
                    outputs: [std::ptr::null_mut(); TALL_OUTPUTS],
                    outputs_len: outputs.len(),
                    accumulate: false,
                    len: chunk,
                };
                for (index, output) in outputs.iter_mut().enumerate() {
                    (tall.rows[index], tall.outputs[index]) =
                        (row(index), output[at..at + chunk].as_mut_ptr());
                }
                for (number, group) in inputs.chunks(inputs_group).enumerate() {
                    (tall.first, tall.accumulate) = (number * inputs_group, number > 0);
                    for (pointer, input) in pointers.iter_mut().zip(group) {
                        *pointer = input[at..at + chunk].as_ptr();
                    }
                    let tall = TallPass { inputs: &pointers[..group.len()], ..tall };
                    // SAFETY: slicing has checked that every input and output has `chunk` bytes
                    // from `at` on, at least a vector's; the outputs are unique borrows, so they
                    // overlap neither each other nor an input; the first walk initialises outputs
                    // that later walks accumulate to.
                    unsafe { self.walk(&tall) };
                }
            }
            at += chunk;
        }
    }

    /// Computes two to four outputs, for `len` bytes from `start` on. Inputs with only zero
    /// coefficients are dropped.
    fn sum_shared<'a>(
        self,
        row: impl Fn(usize) -> &'a [u8],
        inputs: &[&[u8]],
        outputs: &mut [&mut [u8]],
        start: usize,
        len: usize,
    ) {
        let count = outputs.len();
        let wanted = |index: &usize| (0..count).any(|output| row(output)[*index] != 0);
        let count = (0..inputs.len()).filter(wanted).count();
        if count == 0 {
            for output in outputs {
                output[start..start + len].fill(0);
            }
            return;
        }
        let mut pass = Pass {
            coefficients: [[0; PASS_INPUTS]; PASS_OUTPUTS],
            inputs: [std::ptr::null(); PASS_INPUTS],
            inputs_len: 0,
            ones: &[],
            outputs: [std::ptr::null_mut(); PASS_OUTPUTS],
            outputs_len: outputs.len(),
            accumulate: false,
            len,
        };
        for (pointer, output) in pass.outputs.iter_mut().zip(outputs) {
            *pointer = output[start..start + len].as_mut_ptr();
        }
        let group = count.div_ceil(count.div_ceil(PASS_INPUTS_SHARED));
        let mut left = count;
        for index in (0..inputs.len()).filter(wanted) {
            for (output, cells) in pass.coefficients.iter_mut().enumerate().take(pass.outputs_len) {
                cells[pass.inputs_len] = row(output)[index];
            }
            pass.inputs[pass.inputs_len] = inputs[index][start..start + len].as_ptr();
            pass.inputs_len += 1;
            left -= 1;
            if left == 0 || pass.inputs_len == group {
                // SAFETY: slicing has checked that every input and output has `len` bytes from
                // `start` on; the outputs are unique borrows, so they overlap neither each other
                // nor an input; the first pass initialises outputs that later passes accumulate to.
                unsafe { self.run(&pass, false) };
                pass.inputs_len = 0;
                pass.accumulate = true;
            }
        }
    }

    /// # Safety
    /// The walk's invariants must hold.
    unsafe fn walk(self, tall: &TallPass<'_>) {
        // SAFETY: the caller upholds the same contract.
        unsafe {
            match self {
                #[cfg(target_arch = "x86_64")]
                Self::Gfni512(lanes) => x86::tall_gfni512(lanes, tall),
                #[cfg(target_arch = "x86_64")]
                Self::Gfni256(lanes) => x86::tall_gfni256(lanes, tall),
                #[cfg(target_arch = "x86_64")]
                Self::Avx2(lanes) => x86::tall_avx2(lanes, tall),
                #[cfg(target_arch = "x86_64")]
                Self::Ssse3(lanes) => x86::tall_ssse3(lanes, tall),
                #[cfg(target_arch = "aarch64")]
                Self::Neon(lanes) => neon::tall_neon(lanes, tall),
                Self::Plain => unreachable!("the plain kernel makes one output at a time"),
                #[cfg(test)]
                Self::Emulated512 => emulated::tall_emulated::<64>(tall),
                #[cfg(test)]
                Self::Emulated256 => emulated::tall_emulated::<32>(tall),
            }
        }
    }

    /// # Safety
    /// The pass's invariants must hold.
    unsafe fn run(self, pass: &Pass<'_>, xor: bool) {
        // SAFETY: the caller upholds the same contract.
        unsafe {
            match self {
                #[cfg(target_arch = "x86_64")]
                Self::Gfni512(lanes) => x86::run_gfni512(lanes, pass, xor),
                #[cfg(target_arch = "x86_64")]
                Self::Gfni256(lanes) => x86::run_gfni256(lanes, pass, xor),
                #[cfg(target_arch = "x86_64")]
                Self::Avx2(lanes) => x86::run_avx2(lanes, pass, xor),
                #[cfg(target_arch = "x86_64")]
                Self::Ssse3(lanes) => x86::run_ssse3(lanes, pass, xor),
                #[cfg(target_arch = "aarch64")]
                Self::Neon(lanes) => neon::run_neon(lanes, pass, xor),
                Self::Plain => plain::run(pass, xor),
                #[cfg(test)]
                Self::Emulated512 => emulated::run_emulated::<64>(pass, xor),
                #[cfg(test)]
                Self::Emulated256 => emulated::run_emulated::<32>(pass, xor),
            }
        }
    }
}
