//! BPF without a compiler: an assembler, the kernel's type information, and bpf(2).
//!
//! Read [`asm::Assembler`], [`btf::Btf`], [`congestion::CongestionControl`], [`retcp`] and [`sys`].

pub mod asm;
pub mod btf;
pub mod congestion;
pub mod retcp;
pub mod sys;
