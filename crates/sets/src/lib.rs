//! Sets of files as snapshots.
//!
//! A *manifest* is a Merkle tree over the entries of a directory. Equal directories have equal
//! root hashes, and the hash of the root identifies a *snapshot*. Two manifests are compared from
//! their roots down, and only nodes that differ are read.
//!
//! A [`filter::Filter`] decides which entries belong to a set. A [`layout::Layout`] makes one byte
//! stream of the contents that a destination lacks. [`folding::Collisions`] are names that a file
//! system cannot keep apart.
//!
//! Leaves out: the files themselves, their scan and its index (the `disk` room). Read [`Entry`],
//! [`Node`] and [`Builder`] first.

mod builder;
pub mod comparison;
mod cursor;
pub mod deletes;
mod difference;
mod entry;
pub mod filter;
pub mod folding;
pub mod glob;
pub mod layout;
pub mod metadata;
mod node;
pub mod publication;
mod renames;
#[cfg(test)]
mod samples;

pub use builder::{BuildError, Builder};
pub use cursor::{ReadError, Store, TreeError};
pub use difference::{Change, Difference};
pub use entry::{
    AllAttributes, Attributes, DIRECTORY_MODE_BITS, Entry, EntryError, FILE_MODE_BITS, FileTime, Kind,
    LinkPath, NAME_BYTES_MAX, Name, NodeHash, PATH_BYTES_MAX, Target, compare_paths,
};
pub use node::{
    Child, ITEM_BYTES_CUT, ITEMS_MAX, ITEMS_MIN, Items, LEVEL_MAX, NODE_BYTES_MAX, Node, NodeError, Snapshot,
    ends_node, exercise, hash,
};
pub use renames::{NOTED_BYTES_MAX, Pairs, Renames};

/// Maximum number of files that may change at a source while its directory is sent.
pub const UNSETTLED_MAX: usize = 1_000;
/// Maximum depth of nested directories.
pub const DEPTH_MAX: usize = 256;
