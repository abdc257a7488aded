//! GF(2^8) for network codes: the field, small matrices over it, and kernels that use the machine's
//! fastest instructions.
//!
//! The field is GF(2)\[x\] modulo x^8 + x^4 + x^3 + x^2 + 1 (`0x11D`), with generator 2. It is the
//! usual field of storage codes, not the field of AES (`0x11B`). Coding has three steps:
//!
//! 1. a plan decides coefficients with [`Gf`] and [`Matrix`] (small, exact, not optimised);
//! 2. [`gf_dot`], [`gf_dot_many`], [`gf_mul_add`] and [`xor`] apply them to bytes, on the fastest
//!    [`Kernel`] of the machine;
//! 3. a system's state machine that must also run in the simulator codes over any [`Symbol`]: real
//!    [`Bytes`](anabranch_endpoint::Bytes) on a wire, lengths only
//!    ([`Len`](anabranch_endpoint::Len)) in simulation.
//!
//! Invariants: every kernel gives the same bytes. The plain kernel is the definition, and tests
//! compare all other kernels with it. All `unsafe` of the workspace's arithmetic is in the files of
//! the module `kernel`.
//!
//! [`lt`] has fountain codes, whose sums are random. [`mds`] is for a small number of blocks: any
//! packets, as many as blocks, recover the blocks. Two codes have a fixed number of parities
//! ([`fixed`]): [`mds::Unit`], and [`ldpc`], which uses plain XOR. Leaves out: the choice of
//! coefficients (by a plan), and fields above 2^8. Read [`Gf`], [`gf_dot`] and [`Symbol`] first.

mod field;
pub mod fixed;
mod kernel;
pub mod ldpc;
pub mod lt;
mod matrix;
pub mod mds;
mod symbol;

pub use field::Gf;
pub use kernel::{Kernel, gf_dot, gf_dot_many, gf_dot_to_vec, gf_mul_add, kernel_in_use, xor, xor_add};
pub use matrix::{Matrix, ShapeError};
pub use symbol::{Sums, Symbol};
