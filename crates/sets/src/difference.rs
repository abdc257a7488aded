//! The difference of two snapshots.
//!
//! Both manifests are read from their roots down. Two nodes with one hash hold the same entries
//! and are passed unread, and so is a directory whose hash did not change. So for k
//! changed names, a few nodes are read at each level of each directory above these names.
//!
//! Leaves out: renames, which need the whole difference (`crate::renames`); copies of a content
//! that stays where it was, which the destination's index finds. Read [`Difference`] first.

use crate::DEPTH_MAX;
use crate::cursor::{Cursor, Peeked, ReadError, Store, fetch};
use crate::entry::{AllAttributes, Entry, Kind, NodeHash};
use crate::metadata::{Metadata, OwnersThere};
use crate::node::Snapshot;

/// One changed entry. Paths are names joined by slashes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Attributes of the root directory changed; `None` for a snapshot of a single file.
    Root {
        /// The attributes before.
        before: Option<AllAttributes>,
        /// The attributes after.
        after: Option<AllAttributes>,
    },
    /// An entry is new.
    Added {
        /// Path of the entry.
        path: Vec<u8>,
        /// The entry.
        entry: Entry,
    },
    /// An entry is gone. A directory's contents follow it.
    Removed {
        /// Path of the entry.
        path: Vec<u8>,
        /// The entry.
        entry: Entry,
    },
    /// An entry has other content or other attributes. For a directory, only the attributes count.
    Changed {
        /// Path of the entry.
        path: Vec<u8>,
        /// The entry before.
        before: Entry,
        /// The entry after.
        after: Entry,
    },
    /// A file's content has another path.
    Renamed {
        /// The path before.
        from: Vec<u8>,
        /// The path after.
        path: Vec<u8>,
        /// The entry after.
        entry: Entry,
    },
}

impl Change {
    /// Returns true if only attributes changed.
    pub fn is_metadata_only(&self) -> bool {
        match self {
            Self::Root { .. } => true,
            Self::Changed { before, after, .. } => {
                before.kind.tree().is_some() || before.kind.has_content_of(&after.kind)
            }
            Self::Added { .. } | Self::Removed { .. } | Self::Renamed { .. } => false,
        }
    }

    /// Returns true if nothing but owners differs, and the source's owners are at the destination
    /// the accounts that its entries have. The destination's entry is the one before.
    pub fn has_equal_owners(&self, owners: OwnersThere<'_>) -> bool {
        let (before, after) = match self {
            Self::Root { before: Some(before), after: Some(after) } => {
                if before.attributes != after.attributes {
                    return false;
                }
                (&before.metadata, &after.metadata)
            }
            Self::Changed { before, after, .. } => {
                let is_equal = match (&before.kind, &after.kind) {
                    (Kind::Directory { attributes, .. }, Kind::Directory { attributes: theirs, .. }) => {
                        attributes == theirs
                    }
                    (before, after) => before == after,
                };
                if !is_equal {
                    return false;
                }
                (&before.metadata, &after.metadata)
            }
            _ => return false,
        };
        Metadata::is_equal_there(before.as_deref(), after.as_deref(), owners)
    }
}

/// A directory of both snapshots, or of one of them.
#[derive(Debug)]
struct Pair {
    before: Cursor,
    after: Cursor,
    /// Length of the directory's path, with its slash.
    path_bytes: usize,
}

/// Compares two snapshots, one entry at a time, in the order of paths. Where a directory gives way
/// to another kind of entry, the directory's removed contents come before the added entry.
///
/// Cost: memory for the nodes on the way to one entry of each side.
#[derive(Debug)]
pub struct Difference<S> {
    store: S,
    /// Snapshots that were not read yet.
    snapshots: Option<(Option<NodeHash>, NodeHash)>,
    open: Vec<Pair>,
    path: Vec<u8>,
    nodes_read: u64,
}

/// Next step of the comparison.
enum Step {
    SkipBoth,
    OpenBefore,
    OpenAfter,
    Remove,
    Add,
    Compare,
    Leave,
}

impl Pair {
    fn step(&self) -> Step {
        match (self.before.peek(), self.after.peek()) {
            (Peeked::End, Peeked::End) => Step::Leave,
            (Peeked::Unread(a), Peeked::Unread(b)) if a.hash == b.hash => Step::SkipBoth,
            // The higher node is read first, so that its children are compared with the other node.
            (Peeked::Unread(a), Peeked::Unread(b)) if a.level.is_some() => match b.level {
                Some(level) if a.level >= Some(level) => Step::OpenBefore,
                _ => Step::OpenAfter,
            },
            (Peeked::Unread(_), _) => Step::OpenBefore,
            (_, Peeked::Unread(_)) => Step::OpenAfter,
            (Peeked::Entry(_), Peeked::End) => Step::Remove,
            (Peeked::End, Peeked::Entry(_)) => Step::Add,
            (Peeked::Entry(a), Peeked::Entry(b)) => match a.name.cmp(&b.name) {
                std::cmp::Ordering::Less => Step::Remove,
                std::cmp::Ordering::Greater => Step::Add,
                // A directory against another kind: removed entries come before added entries.
                std::cmp::Ordering::Equal if a.kind.tree().is_some() != b.kind.tree().is_some() => {
                    Step::Remove
                }
                std::cmp::Ordering::Equal => Step::Compare,
            },
        }
    }
}

impl<S: Store> Difference<S> {
    /// The difference of the snapshot `after` from `before`; without `before`, all of `after`.
    pub fn new(store: S, before: Option<NodeHash>, after: NodeHash) -> Self {
        let snapshots = (before != Some(after)).then_some((before, after));
        Self { store, snapshots, open: Vec::new(), path: Vec::new(), nodes_read: 0 }
    }

    /// Nodes read until now.
    pub fn nodes_read(&self) -> u64 {
        self.nodes_read
    }

    /// The store, which may be given a missing node.
    pub fn store_mut(&mut self) -> &mut S {
        &mut self.store
    }

    /// The next change; `None` after the last.
    ///
    /// Errors: [`ReadError`]. After [`ReadError::Missing`] a further call continues once the store
    /// has the node.
    pub fn poll(&mut self) -> Result<Option<Change>, ReadError> {
        if let Some((before, after)) = self.snapshots
            && let Some(change) = self.begin(before, after)?
        {
            return Ok(Some(change));
        }
        while let Some(pair) = self.open.last_mut() {
            self.path.truncate(pair.path_bytes);
            match pair.step() {
                Step::Leave => {
                    self.open.pop();
                }
                Step::SkipBoth => {
                    pair.before.skip();
                    pair.after.skip();
                }
                Step::OpenBefore => {
                    pair.before.open(&mut self.store)?;
                    self.nodes_read += 1;
                }
                Step::OpenAfter => {
                    pair.after.open(&mut self.store)?;
                    self.nodes_read += 1;
                }
                Step::Remove => {
                    let entry = pair.before.next_entry().expect("an entry comes next");
                    let path = self.enter(&entry, entry.kind.tree(), None)?;
                    return Ok(Some(Change::Removed { path, entry }));
                }
                Step::Add => {
                    let entry = pair.after.next_entry().expect("an entry comes next");
                    let path = self.enter(&entry, None, entry.kind.tree())?;
                    check_link(&path, &entry)?;
                    return Ok(Some(Change::Added { path, entry }));
                }
                Step::Compare => {
                    let before = pair.before.next_entry().expect("an entry comes next");
                    let after = pair.after.next_entry().expect("an entry comes next");
                    if let Some(change) = self.compare(before, after)? {
                        return Ok(Some(change));
                    }
                }
            }
        }
        Ok(None)
    }

    fn begin(&mut self, before: Option<NodeHash>, after: NodeHash) -> Result<Option<Change>, ReadError> {
        let old = before.map(|id| fetch(&mut self.store, &id, Snapshot::decode)).transpose()?;
        let new = fetch(&mut self.store, &after, Snapshot::decode)?;
        self.nodes_read += 1 + u64::from(old.is_some());
        self.snapshots = None;
        let tree = old.as_ref().map(|old| old.tree);
        if tree != Some(new.tree) {
            self.open.push(Pair {
                before: Cursor::new(tree),
                after: Cursor::new(Some(new.tree)),
                path_bytes: 0,
            });
        }
        let root = old.and_then(|old| old.root);
        Ok((root != new.root).then_some(Change::Root { before: root, after: new.root }))
    }

    /// Opens the two directories of one name, and returns their path.
    fn enter(
        &mut self,
        entry: &Entry,
        before: Option<NodeHash>,
        after: Option<NodeHash>,
    ) -> Result<Vec<u8>, ReadError> {
        self.path.extend_from_slice(entry.name.as_bytes());
        let path = self.path.clone();
        if before != after {
            // `open` also holds the root, which does not count.
            if self.open.len() > DEPTH_MAX {
                return Err(ReadError::TooDeep);
            }
            self.path.push(b'/');
            let path_bytes = self.path.len();
            self.open.push(Pair { before: Cursor::new(before), after: Cursor::new(after), path_bytes });
        }
        Ok(path)
    }

    fn compare(&mut self, before: Entry, after: Entry) -> Result<Option<Change>, ReadError> {
        if before == after {
            return Ok(None);
        }
        let path = self.enter(&after, before.kind.tree(), after.kind.tree())?;
        check_link(&path, &after)?;
        let is_content_only = match (&before.kind, &after.kind) {
            (Kind::Directory { attributes, .. }, Kind::Directory { attributes: theirs, .. }) => {
                attributes == theirs && before.metadata == after.metadata
            }
            _ => false,
        };
        Ok((!is_content_only).then_some(Change::Changed { path, before, after }))
    }
}

/// Checks that a hard link's file is listed before it. Only the whole manifest shows whether the
/// target is a file.
fn check_link(path: &[u8], entry: &Entry) -> Result<(), ReadError> {
    match &entry.kind {
        Kind::HardLink { path: file } if !file.is_before(path) => {
            Err(ReadError::LinkOrder { path: path.to_vec() })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
