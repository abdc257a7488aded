//! A library to preload into programs that cannot be changed: it announces their flows to this host's
//! `anabranch shuffle agent`.
//!
//! ```text
//! ANABRANCH_SHUFFLE_SOCKET=/run/shuffle.sock ANABRANCH_COFLOW=job-7 LD_PRELOAD=libanabranch_preload.so curl -T part.bin http://h2/
//! ```
//!
//! Each TCP connection over which the program sends 50 kB or more is announced as part of the one coflow (the flows
//! that something waits for together) that the environment names: with the call by which it passes 50 kB, and again whenever it has
//! a quarter more to move.
//! `sendfile`, `write`, `send` and `sendto` say before they send how much they are about to, so large calls say more than has been
//! sent; `writev` and `sendmsg` say it afterwards. That a connection has ended, the agent sees by itself, and only once all of it
//! has been moved; so `close` says nothing. An agent that is started anew hears of a connection when that has a quarter more to
//! move than was announced last; of a connection whose bytes were all announced, nothing more (rules may catch it).
//!
//! **What the program notices.** Nothing, but for the time that it takes. No call's result and no `errno` changes. Nothing is
//! kept open, locked, allocated or waited for: an announcement is a connection of its own to the agent, made and closed within
//! the call, which sends one line and does not wait for the answer. So threads, `fork`, signal handlers and programs that close all
//! descriptors need no care. Where there is no agent it is looked for once a second at most. Where one of the two variables is
//! missing or cannot be (a coflow's name is 1 to 128 printable ASCII characters without blanks), nothing happens at all, and no message
//! is written, as the program's standard error is its own.
//!
//! Processor time of a call of `write` with 100 bytes (`target/release/examples/cost`, run with the library preloaded and without;
//! the least of twelve runs in turns, on two shared cores of an AMD EPYC; other work ran beside, so the last figures of TCP's are noise):
//!
//! | | to `/dev/null` | TCP over loopback |
//! | --- | --- | --- |
//! | without the library | 204 ns | 906 ns |
//! | with it, an agent there | 216 ns | 891 ns |
//! | with it, no agent there | 218 ns | 998 ns |
//! | with it, no variables set | 211 ns | 926 ns |
//!
//! **What is not seen.** Programs that make system calls past the C library (static ones, Go's); `io_uring`, `splice`, `sendmmsg`
//! and what C's own streams write by `fdopen`; descriptors from [`FDS_MAX`] on. A descriptor that is a duplicate is counted
//! apart, so what two of them send together is announced later, or less of it (the agent sees what the connection sends and takes
//! that). A child that was made by `vfork` shares its parent's counts: a descriptor that the child closes begins at 0 for both.
//! Where a descriptor becomes another one by other functions than these (`fclose`, and then `fcntl`, `socketpair`, or one that
//! another process has sent), the new one's count begins where the old one's ended. A program whose filter of system calls
//! (seccomp) kills it for `socket` must not be run with this library.
//!
//! Leaves out: the agent (docs/shuffle.md). Programs that can be changed use the `announce` room, which can give each
//! flow a coflow of its own. Linux only. Read [`Table`] for what is announced when, and the `sys` module for how.

#![cfg(target_os = "linux")]
#![allow(
    clippy::disallowed_methods,
    reason = "a driver: it stands between a program and its C library, and reads the environment"
)]

mod sys;
mod table;

pub use table::{FDS_MAX, MICE_BELOW_BYTES, Table};

/// The environment's name of the coflow that all that the program sends is of.
pub const COFLOW_VARIABLE: &str = "ANABRANCH_COFLOW";
