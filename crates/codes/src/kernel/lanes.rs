//! The loop of every vector kernel, written once over [`Lanes`], the required operations of a
//! vector unit.
//!
//! The instruction sets differ in a dozen short functions each. All code that decides *which bytes*
//! are read and written is here. So tests run the loop of AVX-512 on machines without AVX-512, with
//! the emulated lanes.

#![expect(
    clippy::needless_range_loop,
    reason = "vectors, inputs and outputs index several arrays alike; iterators and closures would not take part in the features of the function that the loop is compiled into"
)]

/// A vector unit. A value is proof that this machine has the instructions, so only detection
/// creates values.
///
/// All methods must be `#[inline(always)]`, so that they become part of a function whose target
/// features are enabled.
pub(super) trait Lanes: Copy {
    /// Bytes in a vector, a power of two.
    const WIDTH: usize;
    /// A vector of bytes.
    type Vector: Copy;
    /// A coefficient in the form used for multiplying vectors.
    type Factor: Copy;
    /// A coefficient in compact form, which a single load converts to a factor.
    type PackedFactor: Copy + Default;

    /// A vector of zeros.
    fn zero(self) -> Self::Vector;
    /// Converts `coefficient` to a factor.
    fn factor(self, coefficient: u8) -> Self::Factor;
    /// Converts `coefficient` to the compact form.
    fn pack(self, coefficient: u8) -> Self::PackedFactor;
    /// Converts the compact form to a factor.
    fn unpack(self, packed: Self::PackedFactor) -> Self::Factor;
    /// Multiplies each byte of `x` by the factor's coefficient.
    fn mul(self, factor: Self::Factor, x: Self::Vector) -> Self::Vector;
    /// `a + b`.
    fn xor(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// True if [`Lanes::xor3`] is one instruction, so that inputs are best processed in pairs.
    const XOR3: bool = false;
    /// `a + b + c`.
    #[inline(always)]
    fn xor3(self, a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector {
        self.xor(a, self.xor(b, c))
    }
    /// Loads the [`Lanes::WIDTH`] bytes at `from`.
    ///
    /// # Safety
    /// These bytes must be readable.
    unsafe fn load(self, from: *const u8) -> Self::Vector;
    /// Writes [`Lanes::WIDTH`] bytes to `to`.
    ///
    /// # Safety
    /// These bytes must be writable.
    unsafe fn store(self, to: *mut u8, vector: Self::Vector);
}

/// Maximum number of inputs of a pass.
pub(super) const PASS_INPUTS: usize = 8;
/// Maximum number of outputs of a pass.
pub(super) const PASS_OUTPUTS: usize = 4;

/// One pass over the inputs: `outputs[o] = sum of coefficients[o][i] * inputs[i]`. The inputs in
/// `ones`, and the previous outputs if `accumulate` is set, are added.
///
/// Invariants for the safety of the loops:
///
/// - `len` bytes are readable at each of the first `inputs_len` inputs and at each of `ones`, and
///   writable at each of the first `outputs_len` outputs.
/// - No output overlaps another output or an input.
/// - If `accumulate` is set, the outputs are also initialised.
/// - `ones` is empty unless there is one output.
pub(super) struct Pass<'a> {
    /// Coefficients by output, then by input. Unused by an xor pass.
    pub coefficients: [[u8; PASS_INPUTS]; PASS_OUTPUTS],
    /// Inputs to multiply; an xor pass adds them without multiplication.
    pub inputs: [*const u8; PASS_INPUTS],
    /// Number of inputs in use.
    pub inputs_len: usize,
    /// Inputs with coefficient 1, added without multiplication.
    pub ones: &'a [*const u8],
    /// Output buffers.
    pub outputs: [*mut u8; PASS_OUTPUTS],
    /// Number of outputs in use.
    pub outputs_len: usize,
    /// True to add to the outputs instead of overwriting them.
    pub accumulate: bool,
    /// Bytes in each input and output.
    pub len: usize,
}

/// Maximum number of inputs of a walk, and maximum number of its outputs.
pub(super) const TALL_INPUTS: usize = 32;
pub(super) const TALL_OUTPUTS: usize = 6;

/// One walk over many inputs for up to [`TALL_OUTPUTS`] outputs: the sums stay in registers, and
/// coefficients are read from memory. With one output all coefficients count as 1.
///
/// Invariants for the safety of the loops:
///
/// - There are at most [`TALL_INPUTS`] inputs.
/// - `len` bytes, at least a vector's, are readable at each input and writable at each of the first
///   `outputs_len` outputs.
/// - No output overlaps another output or an input.
/// - If `accumulate` is set, the outputs are also initialised.
pub(super) struct TallPass<'a> {
    /// Coefficients of each output, one per input.
    pub rows: [&'a [u8]; TALL_OUTPUTS],
    /// Index of the first input's coefficient in each row.
    pub first: usize,
    /// Inputs to multiply.
    pub inputs: &'a [*const u8],
    /// Output buffers.
    pub outputs: [*mut u8; TALL_OUTPUTS],
    /// Number of outputs in use.
    pub outputs_len: usize,
    /// True to add to the outputs instead of overwriting them.
    pub accumulate: bool,
    /// Bytes in each input and output.
    pub len: usize,
}

/// Lanes for the xor kernel, on which every coefficient counts as 1.
#[derive(Copy, Clone)]
pub(super) struct XorLanes<L>(pub L);

impl<L: Lanes> Lanes for XorLanes<L> {
    const WIDTH: usize = L::WIDTH;
    const XOR3: bool = L::XOR3;
    type Vector = L::Vector;
    type Factor = ();
    type PackedFactor = ();

    #[inline(always)]
    fn zero(self) -> L::Vector {
        self.0.zero()
    }
    #[inline(always)]
    fn factor(self, _: u8) {}
    #[inline(always)]
    fn pack(self, _: u8) {}
    #[inline(always)]
    fn unpack(self, (): ()) {}
    #[inline(always)]
    fn mul(self, (): (), x: L::Vector) -> L::Vector {
        x
    }
    #[inline(always)]
    fn xor(self, a: L::Vector, b: L::Vector) -> L::Vector {
        self.0.xor(a, b)
    }
    #[inline(always)]
    fn xor3(self, a: L::Vector, b: L::Vector, c: L::Vector) -> L::Vector {
        self.0.xor3(a, b, c)
    }
    #[inline(always)]
    unsafe fn load(self, from: *const u8) -> L::Vector {
        // SAFETY: the caller upholds the contract of `load`, which `self.0` shares.
        unsafe { self.0.load(from) }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut u8, vector: L::Vector) {
        // SAFETY: the caller upholds the contract of `store`, which `self.0` shares.
        unsafe { self.0.store(to, vector) }
    }
}

/// Computes the sums of a pass or walk.
trait Sums<L: Lanes, const M: usize> {
    /// Returns the sums of the `U` vectors from byte `at` on.
    ///
    /// # Safety
    /// `U * WIDTH` bytes from `at` on must be inside the pass.
    unsafe fn vectors<const U: usize>(&self, at: usize) -> [[L::Vector; M]; U];
}

/// A pass with its numbers of inputs and outputs known to the compiler.
struct Sum<'a, L: Lanes, const K: usize, const M: usize, const ONES: bool> {
    lanes: L,
    factors: [[L::Factor; M]; K],
    inputs: [*const u8; K],
    outputs: [*mut u8; M],
    ones: &'a [*const u8],
    accumulate: bool,
}

impl<L: Lanes, const K: usize, const M: usize, const ONES: bool> Sums<L, M> for Sum<'_, L, K, M, ONES> {
    #[inline(always)]
    unsafe fn vectors<const U: usize>(&self, at: usize) -> [[L::Vector; M]; U] {
        let lanes = self.lanes;
        let mut sums = [[lanes.zero(); M]; U];
        // SAFETY: `at + u * WIDTH + WIDTH` is inside every input and, by the pass's invariant,
        // every output that is read, for each u < U.
        unsafe {
            if self.accumulate {
                for o in 0..M {
                    for u in 0..U {
                        sums[u][o] = lanes.load(self.outputs[o].add(at + u * L::WIDTH));
                    }
                }
            }
            if ONES {
                for &one in self.ones {
                    for u in 0..U {
                        sums[u][0] = lanes.xor(sums[u][0], lanes.load(one.add(at + u * L::WIDTH)));
                    }
                }
            }
            let mut i = 0;
            while L::XOR3 && i + 1 < K {
                for u in 0..U {
                    let a = lanes.load(self.inputs[i].add(at + u * L::WIDTH));
                    let b = lanes.load(self.inputs[i + 1].add(at + u * L::WIDTH));
                    for o in 0..M {
                        let (a, b) = (lanes.mul(self.factors[i][o], a), lanes.mul(self.factors[i + 1][o], b));
                        sums[u][o] = lanes.xor3(sums[u][o], a, b);
                    }
                }
                i += 2;
            }
            while i < K {
                let mut vectors = [lanes.zero(); U];
                for u in 0..U {
                    vectors[u] = lanes.load(self.inputs[i].add(at + u * L::WIDTH));
                }
                // The vectors are the inner loop, so that a factor that is not in a register is
                // loaded once for all vectors.
                for o in 0..M {
                    for u in 0..U {
                        sums[u][o] = lanes.xor(sums[u][o], lanes.mul(self.factors[i][o], vectors[u]));
                    }
                }
                i += 1;
            }
        }
        sums
    }
}

/// A walk with its number of outputs known to the compiler.
struct TallSum<'a, L: Lanes, const M: usize> {
    lanes: L,
    factors: [[L::PackedFactor; M]; TALL_INPUTS],
    inputs: &'a [*const u8],
    outputs: [*mut u8; M],
    accumulate: bool,
}

impl<L: Lanes, const M: usize> Sums<L, M> for TallSum<'_, L, M> {
    #[inline(always)]
    unsafe fn vectors<const U: usize>(&self, at: usize) -> [[L::Vector; M]; U] {
        let lanes = self.lanes;
        let mut sums = [[lanes.zero(); M]; U];
        // SAFETY: `at + u * WIDTH + WIDTH` is inside every input and, by the walk's invariant,
        // every output that is read, for each u < U; there are no more inputs than factors.
        unsafe {
            if self.accumulate {
                for o in 0..M {
                    for u in 0..U {
                        sums[u][o] = lanes.load(self.outputs[o].add(at + u * L::WIDTH));
                    }
                }
            }
            let mut i = 0;
            while L::XOR3 && i + 1 < self.inputs.len() {
                let (one, other) = (*self.inputs.get_unchecked(i), *self.inputs.get_unchecked(i + 1));
                let (of_one, of_other) = (self.factors.get_unchecked(i), self.factors.get_unchecked(i + 1));
                let (mut a, mut b) = ([lanes.zero(); U], [lanes.zero(); U]);
                for u in 0..U {
                    a[u] = lanes.load(one.add(at + u * L::WIDTH));
                    b[u] = lanes.load(other.add(at + u * L::WIDTH));
                }
                for o in 0..M {
                    let (one, other) = (lanes.unpack(of_one[o]), lanes.unpack(of_other[o]));
                    for u in 0..U {
                        sums[u][o] = lanes.xor3(sums[u][o], lanes.mul(one, a[u]), lanes.mul(other, b[u]));
                    }
                }
                i += 2;
            }
            while i < self.inputs.len() {
                let (input, factors) = (*self.inputs.get_unchecked(i), self.factors.get_unchecked(i));
                let mut vectors = [lanes.zero(); U];
                for u in 0..U {
                    vectors[u] = lanes.load(input.add(at + u * L::WIDTH));
                }
                for o in 0..M {
                    let factor = lanes.unpack(factors[o]);
                    for u in 0..U {
                        sums[u][o] = lanes.xor(sums[u][o], lanes.mul(factor, vectors[u]));
                    }
                }
                i += 1;
            }
        }
        sums
    }
}

/// Writes `U` vectors of each output at byte `at`.
///
/// # Safety
/// `U * WIDTH` bytes from `at` on must be writable at each output.
#[inline(always)]
unsafe fn store<L: Lanes, const M: usize, const U: usize>(
    lanes: L,
    outputs: &[*mut u8; M],
    at: usize,
    sums: &[[L::Vector; M]; U],
) {
    for o in 0..M {
        for u in 0..U {
            // SAFETY: `at + u * WIDTH + WIDTH` is inside the output.
            unsafe { lanes.store(outputs[o].add(at + u * L::WIDTH), sums[u][o]) };
        }
    }
}

/// Runs a pass of `K` inputs and `M` outputs, `U` vectors per turn. Adds the inputs in the pass's
/// `ones` if `ONES` is set.
///
/// # Safety
/// The pass's invariants must hold, with `K` inputs, `M` outputs and at least one vector's length.
#[inline(always)]
pub(super) unsafe fn run<L: Lanes, const K: usize, const M: usize, const U: usize, const ONES: bool>(
    lanes: L,
    pass: &Pass<'_>,
) {
    debug_assert!(pass.inputs_len == K && pass.outputs_len == M && pass.len >= L::WIDTH);
    debug_assert!(pass.ones.is_empty() != ONES && (M == 1 || !ONES));
    let mut factors = [[lanes.factor(0); M]; K];
    for i in 0..K {
        for o in 0..M {
            factors[i][o] = lanes.factor(pass.coefficients[o][i]);
        }
    }
    let mut inputs = [std::ptr::null(); K];
    inputs.copy_from_slice(&pass.inputs[..K]);
    let mut outputs = [std::ptr::null_mut(); M];
    outputs.copy_from_slice(&pass.outputs[..M]);
    let sum = Sum::<_, K, M, ONES> {
        lanes,
        factors,
        inputs,
        outputs,
        ones: pass.ones,
        accumulate: pass.accumulate,
    };
    // SAFETY: the caller upholds the same contract.
    unsafe { walk::<L, M, U>(lanes, &sum, &outputs, pass.len) }
}

/// Runs a walk with `M` outputs, `U` vectors per turn.
///
/// # Safety
/// The walk's invariants must hold, with `M` outputs.
#[inline(always)]
pub(super) unsafe fn run_tall<L: Lanes, const M: usize, const U: usize>(lanes: L, pass: &TallPass<'_>) {
    debug_assert!(pass.outputs_len == M && pass.len >= L::WIDTH);
    assert!(pass.inputs.len() <= TALL_INPUTS, "a walk has no more inputs than it keeps factors for");
    let mut factors = [[L::PackedFactor::default(); M]; TALL_INPUTS];
    for o in 0..M {
        let row = &pass.rows[o][pass.first..][..pass.inputs.len()];
        for i in 0..row.len() {
            factors[i][o] = lanes.pack(row[i]);
        }
    }
    let mut outputs = [std::ptr::null_mut(); M];
    outputs.copy_from_slice(&pass.outputs[..M]);
    let sum = TallSum::<_, M> { lanes, factors, inputs: pass.inputs, outputs, accumulate: pass.accumulate };
    // SAFETY: the caller upholds the same contract.
    unsafe { walk::<L, M, U>(lanes, &sum, &outputs, pass.len) }
}

/// Writes all sums, `U` vectors per turn.
///
/// The first and the last vector are summed before all others and stored after them. They may
/// overlap other vectors. The overlap repeats one vector's work, which is cheaper than masked or
/// byte-wise ends. Accumulation stays correct, because no byte is read after it was written.
///
/// # Safety
/// `len` bytes, at least a vector's, must be inside the inputs of `sums` and writable at each
/// output.
#[inline(always)]
unsafe fn walk<L: Lanes, const M: usize, const U: usize>(
    lanes: L,
    sums: &impl Sums<L, M>,
    outputs: &[*mut u8; M],
    len: usize,
) {
    let width = L::WIDTH;
    // From this offset on, stores into the first output are aligned.
    let mut at = outputs[0].addr().wrapping_neg() & (width - 1);
    let (head_apart, tail_apart) = (at != 0, (len - at) & (width - 1) != 0);
    let mut ends = [[lanes.zero(); M]; 2];
    // SAFETY: `len` is at least a vector, so the vectors at 0 and at `len - width` are inside the
    // pass. The loops' conditions keep all other vectors inside: `at` is below `width` at first,
    // and never above `len`.
    unsafe {
        if head_apart {
            [ends[0]] = sums.vectors::<1>(0);
        }
        if tail_apart {
            [ends[1]] = sums.vectors::<1>(len - width);
        }
        while U * width <= len - at {
            let vectors = sums.vectors::<U>(at);
            store(lanes, outputs, at, &vectors);
            at += U * width;
        }
        if U > 1 {
            while width <= len - at {
                let vectors = sums.vectors::<1>(at);
                store(lanes, outputs, at, &vectors);
                at += width;
            }
        }
        if head_apart {
            store(lanes, outputs, 0, &[ends[0]]);
        }
        if tail_apart {
            store(lanes, outputs, len - width, &[ends[1]]);
        }
    }
}

/// Methods of lanes that derive a factor from a table row: a coefficient is its own compact form.
macro_rules! kept_as_bytes {
    () => {
        type PackedFactor = u8;

        #[inline(always)]
        fn pack(self, coefficient: u8) -> u8 {
            coefficient
        }
        #[inline(always)]
        fn unpack(self, packed: u8) -> Self::Factor {
            self.factor(packed)
        }
    };
}
pub(super) use kept_as_bytes;

/// Defines two functions of lanes with the target features enabled. `$function(lanes, pass, xor)`
/// runs a pass, and has one copy of the loop for each number of inputs. `$tall(lanes, pass)` runs a
/// walk over many inputs, and has one copy for each number of outputs. `$turn` is the number of
/// vectors per turn for one to six outputs.
macro_rules! passes {
    ($function:ident, $tall:ident, $lanes:ty, $features:literal,
     [$turn1:literal, $turn2:literal, $turn3:literal, $turn4:literal, $turn5:literal, $turn6:literal]) => {
        /// Runs a walk on these lanes.
        ///
        /// # Safety
        /// The walk's invariants must hold.
        pub(super) unsafe fn $tall(lanes: $lanes, pass: &$crate::kernel::lanes::TallPass<'_>) {
            use $crate::kernel::lanes::{XorLanes, TallPass, run_tall};

            #[target_feature(enable = $features)]
            unsafe fn sums<const M: usize, const U: usize>(lanes: $lanes, pass: &TallPass<'_>) {
                // SAFETY: the caller upholds the same contract.
                unsafe { run_tall::<_, M, U>(lanes, pass) }
            }
            #[target_feature(enable = $features)]
            unsafe fn add(lanes: $lanes, pass: &TallPass<'_>) {
                // SAFETY: the caller upholds the same contract.
                unsafe { run_tall::<_, 1, 4>(XorLanes(lanes), pass) }
            }
            // SAFETY: the value `lanes` proves that the machine has the features; the number of
            // outputs equals the arm's; the caller upholds the other invariants.
            unsafe {
                match pass.outputs_len {
                    1 => add(lanes, pass),
                    2 => sums::<2, $turn2>(lanes, pass),
                    3 => sums::<3, $turn3>(lanes, pass),
                    4 => sums::<4, $turn4>(lanes, pass),
                    5 => sums::<5, $turn5>(lanes, pass),
                    6 => sums::<6, $turn6>(lanes, pass),
                    outputs => unreachable!("the planner makes no walk of {outputs} outputs"),
                }
            }
        }


        /// Runs a pass on these lanes; an xor pass takes every coefficient as 1.
        ///
        /// # Safety
        /// The pass's invariants must hold.
        pub(super) unsafe fn $function(lanes: $lanes, pass: &$crate::kernel::lanes::Pass<'_>, xor: bool) {
            use $crate::kernel::lanes::{XorLanes, Pass, run};

            #[target_feature(enable = $features)]
            unsafe fn dot<const K: usize, const M: usize, const U: usize, const ONES: bool>(
                lanes: $lanes,
                pass: &Pass<'_>,
            ) {
                // SAFETY: the caller upholds the same contract.
                unsafe { run::<_, K, M, U, ONES>(lanes, pass) }
            }
            #[target_feature(enable = $features)]
            unsafe fn add<const K: usize>(lanes: $lanes, pass: &Pass<'_>) {
                // SAFETY: the caller upholds the same contract.
                unsafe { run::<_, K, 1, 4, false>(XorLanes(lanes), pass) }
            }
            // A pass shorter than a vector uses the plain kernel.
            if pass.len < <$lanes as $crate::kernel::lanes::Lanes>::WIDTH {
                // SAFETY: the caller upholds the same contract.
                return unsafe { $crate::kernel::plain::run(pass, xor) }; // tidy-allow: circle, expands elsewhere
            }
            // SAFETY: the value `lanes` proves that the machine has the features. The numbers of
            // inputs and outputs equal the arm's, and the length is at least a vector's. The caller
            // upholds the other invariants.
            unsafe {
                match (xor, pass.outputs_len, pass.inputs_len, !pass.ones.is_empty()) {
                    (true, 1, 1, false) => add::<1>(lanes, pass),
                    (true, 1, 2, false) => add::<2>(lanes, pass),
                    (true, 1, 3, false) => add::<3>(lanes, pass),
                    (true, 1, 4, false) => add::<4>(lanes, pass),
                    (true, 1, 5, false) => add::<5>(lanes, pass),
                    (true, 1, 6, false) => add::<6>(lanes, pass),
                    (true, 1, 7, false) => add::<7>(lanes, pass),
                    (true, 1, 8, false) => add::<8>(lanes, pass),
                    (false, 1, 1, false) => dot::<1, 1, $turn1, false>(lanes, pass),
                    (false, 1, 2, false) => dot::<2, 1, $turn1, false>(lanes, pass),
                    (false, 1, 3, false) => dot::<3, 1, $turn1, false>(lanes, pass),
                    (false, 1, 4, false) => dot::<4, 1, $turn1, false>(lanes, pass),
                    (false, 1, 5, false) => dot::<5, 1, $turn1, false>(lanes, pass),
                    (false, 1, 6, false) => dot::<6, 1, $turn1, false>(lanes, pass),
                    (false, 1, 7, false) => dot::<7, 1, $turn1, false>(lanes, pass),
                    (false, 1, 8, false) => dot::<8, 1, $turn1, false>(lanes, pass),
                    (false, 1, 1, true) => dot::<1, 1, $turn1, true>(lanes, pass),
                    (false, 1, 2, true) => dot::<2, 1, $turn1, true>(lanes, pass),
                    (false, 1, 3, true) => dot::<3, 1, $turn1, true>(lanes, pass),
                    (false, 1, 4, true) => dot::<4, 1, $turn1, true>(lanes, pass),
                    (false, 1, 5, true) => dot::<5, 1, $turn1, true>(lanes, pass),
                    (false, 1, 6, true) => dot::<6, 1, $turn1, true>(lanes, pass),
                    (false, 1, 7, true) => dot::<7, 1, $turn1, true>(lanes, pass),
                    (false, 1, 8, true) => dot::<8, 1, $turn1, true>(lanes, pass),
                    (false, 2, 1, false) => dot::<1, 2, $turn2, false>(lanes, pass),
                    (false, 2, 2, false) => dot::<2, 2, $turn2, false>(lanes, pass),
                    (false, 2, 3, false) => dot::<3, 2, $turn2, false>(lanes, pass),
                    (false, 2, 4, false) => dot::<4, 2, $turn2, false>(lanes, pass),
                    (false, 3, 1, false) => dot::<1, 3, $turn3, false>(lanes, pass),
                    (false, 3, 2, false) => dot::<2, 3, $turn3, false>(lanes, pass),
                    (false, 3, 3, false) => dot::<3, 3, $turn3, false>(lanes, pass),
                    (false, 3, 4, false) => dot::<4, 3, $turn3, false>(lanes, pass),
                    (false, 4, 1, false) => dot::<1, 4, $turn4, false>(lanes, pass),
                    (false, 4, 2, false) => dot::<2, 4, $turn4, false>(lanes, pass),
                    (false, 4, 3, false) => dot::<3, 4, $turn4, false>(lanes, pass),
                    (false, 4, 4, false) => dot::<4, 4, $turn4, false>(lanes, pass),
                    (xor, outputs, inputs, ones) => unreachable!(
                        "the planner makes no pass of {inputs} inputs, {outputs} outputs (xor: {xor}, ones: {ones})"
                    ),
                }
            }
        }
    };
}
pub(super) use passes;
