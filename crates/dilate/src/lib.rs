//! Time dilation of programs: its arithmetic, the variables that enable it, and the check whether a
//! program supports it.
//!
//! Under a factor of 20, one second of a program takes 20 seconds of the machine. A network that is
//! emulated at a twentieth of its rates then appears to the program as fast as the real network.
//! The crate `preload-dilate` is the library to preload; this crate is for the launcher.
//!
//! ```no_run
//! # // no_run: it starts a program under a library that is built apart.
//! use anabranch_dilate::{LIBRARY, ProgramTime, check_program};
//!
//! let time = ProgramTime::now(anabranch_units::Dilation::try_from(20)?);
//! check_program("curl".as_ref())?;
//! let mut command = std::process::Command::new("curl");
//! command.envs(time.variables()).env("LD_PRELOAD", format!("/usr/lib/anabranch/{LIBRARY}"));
//! command.spawn()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Source: Gupta and others, *To Infinity and Beyond: Time-Warped Network Emulation* (NSDI 2006),
//! section 2. Leaves out: dilation of the kernel's timers (docs/circuit.md). Read [`ProgramTime`].

#![cfg(target_os = "linux")]
#![allow(clippy::disallowed_methods, reason = "a driver: it reads clocks, files and the environment")]

mod clocks;
mod elf;
mod program;
mod program_time;

pub use clocks::{Bases, Clock};
pub use program::{ProgramError, check_program};
pub use program_time::{BASE_VARIABLE, EnvironmentError, FACTOR_VARIABLE, ProgramTime};

/// File name of the library to preload.
pub const LIBRARY: &str = "libanabranch_preload_dilate.so";

/// Exercise for the fuzz target: reads bytes as a program's file. Returns true if the library can
/// stretch the program's time.
#[doc(hidden)]
pub fn exercise_elf(bytes: &[u8]) -> bool {
    elf::exercise(bytes)
}
