//! The entries that a destination has and its source lacks, and how many of them may be deleted.
//!
//! The decision compares two manifests and needs no file. An entry that the new snapshot has, an
//! entry that the filter excludes, a working file, and a directory that holds one of these are
//! never in the list.
//!
//! Leaves out: entries that another program changed, which only the destination knows (the `disk`
//! room). Read [`Surplus`] and [`MaxDelete`] first.

use crate::cursor::{Both, ReadError, Store};
use crate::difference::{Change, Difference};
use crate::entry::{Entry, Kind, NodeHash};
use crate::filter::Filter;
use anabranch_pieces::name::is_reserved;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Most entries that a transfer may delete at one destination.
///
/// ```
/// use anabranch_sets::deletes::MaxDelete;
/// let tenth: MaxDelete = "10%".parse()?;
/// assert!(tenth.allows(4, 40) && !tenth.allows(5, 40));
/// let three: MaxDelete = "3".parse()?;
/// assert!(three.allows(3, 3) && !three.allows(4, 1_000));
/// # Ok::<(), anabranch_sets::deletes::MaxDeleteError>(())
/// ```
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum MaxDelete {
    /// Percentage of the destination's entries, 0 to 100.
    Percent(u8),
    /// Number of entries.
    Entries(u64),
}

impl Default for MaxDelete {
    fn default() -> Self {
        Self::Percent(10)
    }
}

/// A text that is not a valid [`MaxDelete`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MaxDeleteError {
    text: String,
}

impl std::fmt::Display for MaxDeleteError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = anabranch_units::text::printable(&self.text);
        write!(f, "`{text}`: must be a number of entries, or a percentage from 0% to 100%")
    }
}
impl std::error::Error for MaxDeleteError {}

impl std::str::FromStr for MaxDelete {
    type Err = MaxDeleteError;
    fn from_str(text: &str) -> Result<Self, MaxDeleteError> {
        let wrong = || MaxDeleteError { text: text.chars().take(40).collect() };
        let number = text.strip_suffix('%').unwrap_or(text);
        if number.is_empty() || !number.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(wrong());
        }
        let number: u64 = number.parse().map_err(|_| wrong())?;
        if !text.ends_with('%') {
            return Ok(Self::Entries(number));
        }
        let percent = u8::try_from(number).ok().filter(|percent| *percent <= 100);
        percent.map(Self::Percent).ok_or_else(wrong)
    }
}

impl TryFrom<String> for MaxDelete {
    type Error = MaxDeleteError;
    fn try_from(text: String) -> Result<Self, MaxDeleteError> {
        text.parse()
    }
}

impl From<MaxDelete> for String {
    fn from(max: MaxDelete) -> Self {
        max.to_string()
    }
}

impl std::fmt::Display for MaxDelete {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Percent(percent) => write!(f, "{percent}%"),
            Self::Entries(entries) => write!(f, "{entries}"),
        }
    }
}

impl MaxDelete {
    /// Returns true if `deletes` of `entries` entries may be deleted.
    pub fn allows(self, deletes: u64, entries: u64) -> bool {
        match self {
            Self::Percent(percent) => {
                u128::from(deletes) * 100 <= u128::from(entries) * u128::from(percent.min(100))
            }
            Self::Entries(max) => deletes <= max,
        }
    }
}

/// Why nothing is deleted at a destination.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeleteRefusal {
    /// The source has no entry.
    EmptySource,
    /// More entries than the limit.
    TooMany {
        /// Entries that would be deleted.
        deletes: u64,
        /// Entries of the destination.
        entries: u64,
        /// The limit.
        max: MaxDelete,
    },
}

impl std::fmt::Display for DeleteRefusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::EmptySource => f.write_str(
                "the source has no entry, so nothing is deleted: sync without --delete, or look there",
            ),
            Self::TooMany { deletes, entries, max } => write!(
                f,
                "{deletes} of {entries} entries would be deleted, and --max-delete {max} allows fewer: nothing is \
                 deleted; look at the source, or raise the limit"
            ),
        }
    }
}
impl std::error::Error for DeleteRefusal {}

/// An entry that the source lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SurplusEntry {
    /// Path of the entry.
    pub path: Vec<u8>,
    /// Kind of the entry at the destination.
    pub kind: Kind,
}

/// The entries that a destination has and its source lacks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Surplus {
    entries: Vec<SurplusEntry>,
    /// Paths at which the source has another kind of entry.
    replaced: BTreeSet<Vec<u8>>,
    destination_entries: u64,
    is_source_empty: bool,
}

/// Returns true if an entry is no working file, and the filter includes it and each directory above
/// it.
pub(crate) fn is_in_scope(filter: &Filter, path: &[u8], kind: &Kind) -> bool {
    let is_working = path.split(|byte| *byte == b'/').any(is_reserved);
    let mut slashes = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
    let is_own = match kind {
        Kind::Directory { .. } => filter.includes_directory(path),
        _ => filter.includes_path(path),
    };
    !is_working && is_own && slashes.all(|end| filter.includes_directory(&path[..end]))
}

/// Path of the directory that holds an entry; `None` for an entry of the root.
fn parent(path: &[u8]) -> Option<&[u8]> {
    path.iter().rposition(|byte| *byte == b'/').map(|slash| &path[..slash])
}

impl Surplus {
    /// Compares the manifest of a destination, `before`, with the manifest of its source, `after`.
    ///
    /// Errors: [`ReadError`]: a node of either manifest is missing or wrong.
    /// Cost: memory for the paths of the surplus.
    pub fn between(
        (mut before_nodes, before): (impl Store, NodeHash),
        (mut after_nodes, after): (impl Store, NodeHash),
        filter: &Filter,
    ) -> Result<Self, ReadError> {
        let mut all = Self { is_source_empty: true, ..Self::default() };
        let mut everything = Difference::new(&mut before_nodes, None, before);
        while let Some(change) = everything.poll()? {
            all.destination_entries += u64::from(matches!(change, Change::Added { .. }));
        }
        let mut source = Difference::new(&mut after_nodes, None, after);
        while let Some(change) = source.poll()? {
            if matches!(change, Change::Added { .. }) {
                all.is_source_empty = false;
                break;
            }
        }
        let nodes = Both(&mut before_nodes, &mut after_nodes);
        let mut changes = Difference::new(nodes, Some(before), after);
        // Whether each removed entry may go, in the order of the manifest.
        let mut removed: Vec<(SurplusEntry, bool)> = Vec::new();
        while let Some(change) = changes.poll()? {
            match change {
                Change::Removed { path, entry: Entry { kind, .. } } => {
                    let may_go = is_in_scope(filter, &path, &kind);
                    removed.push((SurplusEntry { path, kind }, may_go));
                }
                // The name now has another kind of entry. The removed contents come before it.
                Change::Added { path, .. } => {
                    let is_below = |entry: &SurplusEntry| {
                        entry.path.strip_prefix(&*path).is_some_and(|rest| rest.starts_with(b"/"))
                    };
                    let last = removed.iter_mut().rev().find(|(entry, _)| !is_below(entry));
                    if let Some((_, may_go)) = last.filter(|(entry, _)| entry.path == path)
                        && std::mem::replace(may_go, false)
                    {
                        all.replaced.insert(path);
                    }
                }
                _ => {}
            }
        }
        // Contents come before their directory. A directory with an entry that stays has to stay.
        let mut kept: BTreeSet<Vec<u8>> = BTreeSet::new();
        for (entry, may_go) in removed.into_iter().rev() {
            if may_go && !kept.remove(&entry.path) {
                all.entries.push(entry);
            } else if let Some(parent) = parent(&entry.path) {
                kept.insert(parent.to_vec());
            }
        }
        Ok(all)
    }

    /// The entries, contents before their directories.
    pub fn entries(&self) -> &[SurplusEntry] {
        &self.entries
    }

    /// Returns true if the source has another kind of entry at this path, for which the
    /// destination's entry may give way.
    pub fn is_replaced(&self, path: &[u8]) -> bool {
        self.replaced.contains(path)
    }

    /// Number of entries that the destination has in all.
    pub fn destination_entries(&self) -> u64 {
        self.destination_entries
    }

    /// Checks whether all of these entries may be deleted.
    ///
    /// Errors: [`DeleteRefusal`].
    pub fn check(&self, max: MaxDelete) -> Result<(), DeleteRefusal> {
        let (deletes, entries) = (self.entries.len() as u64, self.destination_entries);
        if self.is_source_empty {
            return Err(DeleteRefusal::EmptySource);
        }
        if !max.allows(deletes, entries) {
            return Err(DeleteRefusal::TooMany { deletes, entries, max });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
