//! A library to preload into unmodified programs: it announces their flows to this host's
//! `anabranch shuffle agent`.
//!
//! ```text
//! ANABRANCH_SHUFFLE_SOCKET=/run/shuffle.sock ANABRANCH_COFLOW=job-7 LD_PRELOAD=libanabranch_preload.so curl -T part.bin http://h2/
//! ```
//!
//! Each TCP connection that sends 50 kB or more is announced as part of one coflow, which an
//! environment variable names. The announcement is made in the call that passes 50 kB, and again
//! whenever the connection's bytes reach 1.25 times the last announced count. `sendfile`, `write`,
//! `send` and `sendto` announce before they send, so large calls announce more than has been sent;
//! `writev` and `sendmsg` announce afterwards. The agent detects the end of a connection by itself,
//! and only once all of its data has moved; so `close` announces nothing. A restarted agent learns
//! of a connection only from its next announcement. If the remaining bytes cause no further
//! announcement, only the agent's own rules can assign the connection to a coflow.
//!
//! **Effects on the program.** The only effect is the time of the calls. No call's result and no
//! `errno` changes. The library keeps no descriptor open, takes no lock, allocates no memory and
//! does not wait. An announcement is a separate connection to the agent, made and closed within the
//! call, which sends one line and does not wait for the answer. So threads, `fork`, signal handlers
//! and programs that close all descriptors need no care. After a failed connection, the library
//! tries again at most once a second. If one of the two variables is missing or invalid (a coflow's
//! name is 1 to 128 printable ASCII characters without blanks), the library does nothing. It prints
//! no message, because standard error belongs to the program.
//!
//! Processor time of a `write` call with 100 bytes (`target/release/examples/cost`, run with and
//! without the library preloaded; the minimum of twelve alternating runs, on two shared cores of an
//! AMD EPYC with other work running, so TCP's last digits are noise):
//!
//! | | to `/dev/null` | TCP over loopback |
//! | --- | --- | --- |
//! | without the library | 204 ns | 906 ns |
//! | with it, an agent there | 216 ns | 891 ns |
//! | with it, no agent there | 218 ns | 998 ns |
//! | with it, no variables set | 211 ns | 926 ns |
//!
//! **Limits.** The library does not see programs that make system calls without the C library
//! (static programs, Go's); `io_uring`, `splice`, `sendmmsg` and writes of C streams by `fdopen`;
//! descriptors from [`FDS_MAX`] on. A duplicate of a descriptor is counted separately, so the joint
//! data of both is announced late or in part (the agent sees and uses the connection's own count).
//! A child made by `vfork` shares its parent's counts: a descriptor that the child closes starts at
//! 0 for both. A descriptor may be reused through functions that the library does not replace
//! (`fclose`, and then `fcntl`, `socketpair`, or a descriptor sent by another process). Its count
//! then continues from the old one. A program whose system-call filter (seccomp) kills it for
//! `socket` must not run with this library.
//!
//! Leaves out: the agent (docs/shuffle.md). Programs that can be changed use the `announce` crate,
//! which can assign a separate coflow to each flow. Linux only. [`Table`] decides when to announce,
//! and the `sys` module sends announcements.

#![cfg(target_os = "linux")]
#![allow(
    clippy::disallowed_methods,
    reason = "a driver: it stands between a program and its C library, and reads the environment"
)]

mod sys;
mod table;

pub use table::{FDS_MAX, MICE_BELOW_BYTES, Table};

/// Environment variable with the name of the coflow to which all of the program's data belongs.
pub const COFLOW_VARIABLE: &str = "ANABRANCH_COFLOW";
