//! The Linux kernel's interfaces that several rooms use, each implemented once.
//!
//! - [`netlink`]: requests to the kernel; [`sock_diag`] lists TCP connections.
//! - [`tun`]: TUN devices.
//! - [`namespace`]: network namespaces.
//! - [`bpf`]: an assembler, the kernel's types, and the system call that loads programs.
//! - [`socket_options`]: options that the `rustix` crate lacks.
//! - [`guard`]: a process that undoes what a killed process has changed.
//!
//! Leaves out: traffic control (`pace`), and every decision. Read [`netlink::Netlink`] and [`bpf`] first.

#![cfg(target_os = "linux")]
#![allow(clippy::disallowed_methods, reason = "a driver: it opens sockets and files, and asks the kernel")]

pub mod bpf;
mod connection;
pub mod guard;
pub mod namespace;
pub mod netlink;
pub mod sock_diag;
pub mod socket_options;
pub mod tun;

pub use connection::Connection;
