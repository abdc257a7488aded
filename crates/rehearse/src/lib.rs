//! Emulated fleets: the real programs of each system in the emulator, and the engines of `demo` and
//! `experiment`.
//!
//! A fleet starts the program that contains it, with the subcommands of `anabranch`. Controllers,
//! agents and clients run as separate processes in the emulation's sites. Leaves out: tables and
//! pages (`cli`), and the emulator (`emu`). Read [`Fleet`] first, then one system's module.
#![allow(
    clippy::disallowed_methods,
    reason = "a driver: processes, files, sockets and clocks are its business"
)]

pub mod broker;
pub mod codedbulk;
pub mod demo;
mod fleet;
pub mod gather;
pub mod live;
pub mod replicate;
pub mod shuffle;
pub mod spray;

pub use fleet::{Fleet, Programs, make_keys, program};
