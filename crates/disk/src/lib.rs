//! Files on this machine's disks: the folder below which they are served and taken, files that
//! arrive in parts, and trees of files with their index.
//!
//! Leaves out: where the parts come from, and their ranges and hashes (the `pieces` room). Read
//! [`folder::Folder`], [`partial::PartialFile`] and [`tree::Tree`] first.

#![allow(clippy::disallowed_methods, reason = "a driver: opens files")]

pub mod folder;
pub mod partial;
pub mod tree;
