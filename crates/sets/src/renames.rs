//! Renames in a difference: a removed file and an added file with one content.
//!
//! A rename is known once both of its halves were seen, so the difference is read twice: first
//! [`Renames::note`] takes each change, then [`Pairs::apply`] replaces the halves. Read [`Renames`]
//! first.

use crate::difference::Change;
use crate::entry::Kind;
use anabranch_pieces::FileHash;
use std::collections::{BTreeMap, BTreeSet};

/// Maximum bytes of the paths and hashes that are noted. Later files are removed and added, and
/// not renamed.
pub const NOTED_BYTES_MAX: usize = 64 << 20;
/// Bytes counted for a noted path beside its own bytes: its hash and its place in the tables.
const NOTED_BYTES_EACH: usize = 128;

/// Removed and added files by content.
#[derive(Debug, Default)]
pub struct Renames {
    removed: BTreeMap<FileHash, Vec<Vec<u8>>>,
    added: BTreeMap<FileHash, Vec<Vec<u8>>>,
    noted_bytes: usize,
    ignored: u64,
}

/// Renames, by either path.
#[derive(Debug, Default)]
pub struct Pairs {
    /// The path before, by the path after.
    from: BTreeMap<Vec<u8>, Vec<u8>>,
    gone: BTreeSet<Vec<u8>>,
}

impl Renames {
    /// Takes a change of the difference. Empty files are not noted: to rename them saves nothing.
    pub fn note(&mut self, change: &Change) {
        let (table, path, entry) = match change {
            Change::Removed { path, entry } => (&mut self.removed, path, entry),
            Change::Added { path, entry } => (&mut self.added, path, entry),
            _ => return,
        };
        let Kind::File { size_bytes: 1.., content, .. } = &entry.kind else { return };
        let bytes = path.len() + NOTED_BYTES_EACH;
        if self.noted_bytes + bytes > NOTED_BYTES_MAX {
            self.ignored += 1;
            return;
        }
        self.noted_bytes += bytes;
        table.entry(*content).or_default().push(path.clone());
    }

    /// Number of files that were not noted for lack of room.
    pub fn ignored(&self) -> u64 {
        self.ignored
    }

    /// Joins removed and added files of one content, in the order of their paths.
    pub fn pair(mut self) -> Pairs {
        let mut pairs = Pairs::default();
        for (content, added) in self.added {
            let removed = self.removed.remove(&content).unwrap_or_default();
            for (path, from) in added.into_iter().zip(removed) {
                pairs.gone.insert(from.clone());
                pairs.from.insert(path, from);
            }
        }
        pairs
    }
}

impl Pairs {
    /// Number of renamed files.
    pub fn len(&self) -> usize {
        self.from.len()
    }

    /// Returns true if no file was renamed.
    pub fn is_empty(&self) -> bool {
        self.from.is_empty()
    }

    /// The change with its rename, if it is half of one: the added half becomes the rename, the
    /// removed half is dropped.
    pub fn apply(&self, change: Change) -> Option<Change> {
        match change {
            Change::Removed { path, .. } if self.gone.contains(&path) => None,
            Change::Added { path, entry } => Some(match self.from.get(&path) {
                Some(from) => Change::Renamed { from: from.clone(), path, entry },
                None => Change::Added { path, entry },
            }),
            change => Some(change),
        }
    }
}
