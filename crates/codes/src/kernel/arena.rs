//! Many sums in one allocation, over given symbols and earlier sums; decoders use it.
//!
//! A call of [`xor`](super::xor) checks the length of each input. An arena checks all lengths once,
//! so a sum of about 1 KiB costs little more than the processing of its bytes. The memory is not
//! initialised before the sums are written.

use super::lanes::{PASS_INPUTS, PASS_OUTPUTS, Pass};
use super::{Engine, fastest};
use std::marker::PhantomData;

/// Alignment of slots in bytes: a cache line, and the widest vector.
const ALIGNMENT: usize = 64;

/// Given symbols, and slots for sums.
pub(crate) struct Arena<'a> {
    engine: Engine,
    /// Pointers to `len` readable bytes, by number: symbols first, then slots. Null for an
    /// unwritten slot, which counts as zeros. The pointers are into borrows for `'a` and into
    /// `memory`.
    at: Vec<*const u8>,
    symbols: usize,
    len: usize,
    /// Allocation of the slots, with length 0. It is never moved while pointers into it exist.
    memory: Vec<u8>,
    /// Start of the first slot; slots are `stride` bytes apart.
    first: *mut u8,
    origin: usize,
    stride: usize,
    given: PhantomData<&'a [u8]>,
}

impl<'a> Arena<'a> {
    /// Creates an arena with `places` slots of `len` bytes.
    ///
    /// Panics: if a symbol has another length.
    pub fn new<S: AsRef<[u8]>>(symbols: &'a [S], places: usize, len: usize) -> Self {
        let count = symbols.len();
        let mut at = Vec::with_capacity(count + places);
        for (index, symbol) in symbols.iter().map(AsRef::as_ref).enumerate() {
            assert!(symbol.len() == len, "symbol {index} has {} bytes: must have {len}", symbol.len());
            at.push(symbol.as_ptr());
        }
        at.resize(count + places, std::ptr::null());
        let stride = len.next_multiple_of(ALIGNMENT);
        let mut memory: Vec<u8> = Vec::with_capacity(places * stride + ALIGNMENT - 1);
        let origin = memory.as_ptr().align_offset(ALIGNMENT).min(ALIGNMENT - 1);
        let first = memory.as_mut_ptr().wrapping_add(origin);
        Self {
            engine: fastest().1,
            at,
            symbols: count,
            len,
            memory,
            first,
            origin,
            stride,
            given: PhantomData,
        }
    }

    /// Writes the sum of the terms with these numbers to a slot, or adds the sum to the slot's
    /// content.
    ///
    /// Panics: if a slot or number does not exist, or the slot is a term of the sum.
    pub fn sum(&mut self, place: usize, adds: bool, terms: &[u32]) {
        let own = self.symbols + place;
        let before = self.at[own];
        let output = self.first.wrapping_add(place * self.stride);
        // SAFETY: the slot is inside `memory`, and is initialised if `at` points to it.
        let mut sum = unsafe { XorSum::at(self.engine, output, self.len, adds && !before.is_null()) };
        for term in terms {
            let term = *term as usize;
            assert!(term != own, "a place is a term of its own sum");
            if !self.at[term].is_null() {
                // SAFETY: every pointer in `at` has `len` readable bytes, and the bytes of
                // different numbers do not overlap.
                unsafe { sum.add_at(self.at[term]) };
            }
        }
        sum.finish();
        self.at[own] = output;
    }

    /// Returns the memory, and the start of each slot in it. Unwritten slots are zeros.
    pub fn into_bytes(mut self) -> (Vec<u8>, impl Iterator<Item = usize>) {
        let places = self.at.len() - self.symbols;
        for (place, at) in self.at[self.symbols..].iter().enumerate() {
            let written = if at.is_null() { 0 } else { self.len };
            let rest = self.first.wrapping_add(place * self.stride + written);
            // SAFETY: the bytes from there to the end of the slot are inside the memory.
            unsafe { rest.write_bytes(0, self.stride - written) };
        }
        // SAFETY: the allocation is large enough, and all bytes are initialised. The bytes before
        // the slots are written here, the bytes between slots above, and the slots by the sums.
        unsafe {
            self.memory.as_mut_ptr().write_bytes(0, self.origin);
            self.memory.set_len(self.origin + places * self.stride);
        }
        let (origin, stride) = (self.origin, self.stride);
        (self.memory, (0..places).map(move |place| origin + place * stride))
    }
}

/// A sum under construction. Terms are collected until there are enough for one pass.
pub(crate) struct XorSum<'a, 'b> {
    engine: Engine,
    /// The pass's invariants hold, except that the number of inputs may be 0.
    pass: Pass<'static>,
    borrowed: PhantomData<(&'a [u8], &'b mut [u8])>,
}

impl<'a, 'b> XorSum<'a, 'b> {
    /// Creates a sum that is written to `sum`.
    pub fn new(sum: &'b mut [u8]) -> Self {
        // SAFETY: `sum` is a unique borrow, so no borrow for `'a` overlaps it.
        unsafe { Self::at(fastest().1, sum.as_mut_ptr(), sum.len(), false) }
    }
    /// Creates a sum of `len` bytes that is written to `output`, or added to the bytes there.
    ///
    /// # Safety
    /// For as long as `'b`, `len` bytes must be writable at `output` and overlap no term. If the
    /// sum is added, these bytes must be initialised.
    unsafe fn at(engine: Engine, output: *mut u8, len: usize, accumulate: bool) -> Self {
        let pass = Pass {
            coefficients: [[0; PASS_INPUTS]; PASS_OUTPUTS],
            inputs: [std::ptr::null(); PASS_INPUTS],
            inputs_len: 0,
            ones: &[],
            outputs: [output, std::ptr::null_mut(), std::ptr::null_mut(), std::ptr::null_mut()],
            outputs_len: 1,
            accumulate,
            len,
        };
        Self { engine, pass, borrowed: PhantomData }
    }
    /// Adds a term.
    ///
    /// Panics: if the term's length differs from the sum's.
    #[inline]
    pub fn add(&mut self, term: &'a [u8]) {
        let (want, got) = (self.pass.len, term.len());
        assert!(want == got, "a term has {got} bytes: must have {want}, as the sum");
        // SAFETY: the term is as long as the sum, and its borrow outlives the sum.
        unsafe { self.add_at(term.as_ptr()) };
    }
    /// Adds a term.
    ///
    /// # Safety
    /// At `term`, as many bytes as the sum has must be readable for as long as `'a`, and must not
    /// overlap the sum.
    #[inline]
    unsafe fn add_at(&mut self, term: *const u8) {
        if self.pass.inputs_len == PASS_INPUTS {
            self.flush();
        }
        self.pass.inputs[self.pass.inputs_len] = term;
        self.pass.inputs_len += 1;
    }
    /// Writes the sum. Without terms it writes zeros; in adding mode, the output is unchanged.
    pub fn finish(&mut self) {
        if self.pass.inputs_len > 0 {
            self.flush();
        } else if !self.pass.accumulate {
            // SAFETY: the caller of `at` ensures that `len` bytes are writable.
            unsafe { self.pass.outputs[0].write_bytes(0, self.pass.len) };
        }
    }
    fn flush(&mut self) {
        // SAFETY: the requirements of `at` and `add_at` are the pass's invariants.
        unsafe { self.engine.run(&self.pass, true) };
        (self.pass.inputs_len, self.pass.accumulate) = (0, true);
    }
}
