//! GF(2^8) for network codes: the field, small matrices over it, and kernels that run at the machine's speed.
//!
//! The field is GF(2)\[x\] modulo x^8 + x^4 + x^3 + x^2 + 1 (`0x11D`), of which 2 is a generator; the usual one of storage
//! codes, not the one of AES (`0x11B`). Coders come in three steps:
//!
//! 1. a plan decides coefficients with [`Gf`] and [`Matrix`] (small, exact, unhurried);
//! 2. [`gf_dot`], [`gf_dot_many`], [`gf_mul_add`] and [`xor`] apply them to bytes, on the fastest [`Kernel`] that this
//!    machine has;
//! 3. a machine of a system that must also run in the simulator codes over any [`Symbol`]: real
//!    [`Bytes`](anabranch_endpoint::Bytes) on a wire, lengths only ([`Len`](anabranch_endpoint::Len)) in simulation.
//!
//! Invariants: every kernel gives the same bytes; the plain one is the definition, and the others are compared with it.
//! All `unsafe` of the workspace's arithmetic is in the files of the module `kernel`.
//!
//! [`lt`] are fountain codes, whose sums are drawn at random; [`mds`] is for few blocks, of which any as many packets give them back.
//! With a fixed number of parities there are two codes ([`fixed`]): [`mds::Unit`], and [`ldpc`], which is plain XOR.
//! Leaves out: which coefficients to use (the plan decides), and fields above 2^8. Read [`Gf`], [`gf_dot`] and [`Symbol`] first.

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
