//! Files on this machine's disks: the folder below which they are served and taken, and files that
//! arrive in parts.
//!
//! Leaves out: where the parts come from, and their ranges and hashes (the `pieces` room). Read
//! [`folder::Folder`] and [`partial::PartialFile`] first.

#![allow(clippy::disallowed_methods, reason = "a driver: opens files")]

pub mod folder;
pub mod partial;
