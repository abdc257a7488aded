//! The Linux kernel's interfaces that several rooms use, each implemented once.
//!
//! - [`netlink`]: requests to the kernel; [`rtnetlink`] for links, addresses, routes and rules, and
//!   [`sock_diag`] for TCP connections.
//! - [`tun`]: TUN devices.
//! - [`namespace`]: network namespaces and user namespaces.
//! - [`bpf`]: an assembler, the kernel's types, the system call that loads programs, and congestion
//!   controls made of programs.
//! - [`cgroup`]: the mount point of control groups; [`cpu_limit`]: limits of processor time by
//!   groups.
//! - [`socket_options`]: options that the `rustix` crate lacks.
//! - [`guard`]: a process that undoes the changes of a killed process.
//!
//! Leaves out: traffic control (`pace`), and every decision. Read [`rtnetlink::Rtnetlink`] and
//! [`bpf`] first.

#![cfg(target_os = "linux")]
#![allow(clippy::disallowed_methods, reason = "a driver: it opens sockets and files, and asks the kernel")]

pub mod bpf;
pub mod cgroup;
mod connection;
pub mod cpu_limit;
pub mod guard;
pub mod namespace;
pub mod netlink;
pub mod rtnetlink;
pub mod sock_diag;
pub mod socket_options;
pub mod tun;

pub use connection::Connection;

/// Exercise for the fuzz target: reads bytes as a datagram of the kernel over netlink(7). Returns
/// true if the messages' lengths are valid.
#[doc(hidden)]
pub fn exercise_netlink(bytes: &[u8]) -> bool {
    let routes = netlink::exercise(bytes, |message| rtnetlink::exercise(&message));
    let sockets = netlink::exercise(bytes, sock_diag::exercise);
    routes && sockets
}
