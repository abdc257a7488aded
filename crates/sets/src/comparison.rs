//! Comparison of a destination with its source: counts of the differences, and the first paths.
//!
//! Leaves out: the difference itself ([`Difference`]). Read [`Comparison`] first.

use crate::cursor::{Both, ReadError, Store};
use crate::deletes::is_in_scope;
use crate::difference::{Change, Difference};
use crate::entry::{Kind, NodeHash};
use crate::filter::Filter;
use crate::metadata::OwnersThere;
use crate::renames::Renames;
use anabranch_units::text::printable;
use serde::{Deserialize, Serialize};

/// Maximum number of entries that a comparison names.
pub const NAMED_MAX: usize = 100;
/// Maximum bytes of the paths that a comparison names.
pub const NAMED_BYTES_MAX: usize = 32 << 10;

/// Kind of a difference between a source and a destination.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum DifferenceKind {
    /// The destination lacks the entry.
    Missing,
    /// The entry has another content or target at the destination.
    Changed,
    /// The destination has the file's content under another path, which the source lacks.
    Renamed,
    /// Only attributes differ.
    Metadata,
    /// The source lacks the entry.
    Surplus,
}

/// An entry that differs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DifferentEntry {
    /// Kind of the difference.
    pub kind: DifferenceKind,
    /// Path at the source, or at the destination if only the destination has it. Bytes that are not
    /// printable text are escaped.
    pub path: String,
    /// Path of a renamed file at the destination.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
}

/// Differences of a destination from its source.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Comparison {
    /// Entries that the destination lacks.
    pub missing: u64,
    /// Entries with another content or target.
    pub changed: u64,
    /// Files under another path.
    pub renamed: u64,
    /// Entries with other attributes only.
    pub metadata: u64,
    /// Entries that the source lacks; `None` if the filter looks at more than paths, so that the
    /// destination cannot tell. Differs from the number of deletes of a mirror: the old path of a
    /// renamed file does not count, and a directory with an excluded entry does.
    pub surplus: Option<u64>,
    /// Bytes of contents that the destination has in no file.
    pub content_bytes: u64,
    /// The first differing entries, in the order of the manifest.
    pub named: Vec<DifferentEntry>,
}

impl Comparison {
    /// Compares the manifest `after` of a source with the manifest `before` of a destination;
    /// without `before` the destination has no entry. Surplus entries count as far as `scope`
    /// includes them; without `scope` they do not count. Owners of the source count as equal to the
    /// accounts that `owners` gives them there. Leaves [`Comparison::content_bytes`] at 0.
    ///
    /// Errors: [`ReadError`]: a node of either manifest is missing or wrong.
    /// Cost: two readings of the difference; memory for the paths of missing and surplus files, at
    /// most [`crate::NOTED_BYTES_MAX`].
    pub fn between(
        (mut before_nodes, before): (impl Store, Option<NodeHash>),
        (mut after_nodes, after): (impl Store, NodeHash),
        scope: Option<&Filter>,
        owners: OwnersThere<'_>,
    ) -> Result<Self, ReadError> {
        let mut counted = Self { surplus: scope.map(|_| 0), ..Self::default() };
        let mut renames = Renames::default();
        let is_counted = |change: &Change| match change {
            Change::Removed { path, entry } => {
                scope.is_some_and(|scope| is_in_scope(scope, path, &entry.kind))
            }
            change => !change.has_equal_owners(owners),
        };
        let mut each = |take: &mut dyn FnMut(Change)| -> Result<(), ReadError> {
            let nodes = Both(&mut before_nodes, &mut after_nodes);
            let mut changes = Difference::new(nodes, before, after);
            while let Some(change) = changes.poll()? {
                if is_counted(&change) {
                    take(change);
                }
            }
            Ok(())
        };
        each(&mut |change| renames.note(&change))?;
        let pairs = renames.pair();
        each(&mut |change| {
            if let Some(change) = pairs.apply(change) {
                counted.count(&change);
            }
        })?;
        Ok(counted)
    }

    fn count(&mut self, change: &Change) {
        let is_metadata = change.is_metadata_only();
        let (kind, path, from) = match change {
            Change::Root { before: None, .. } => (DifferenceKind::Missing, &b"."[..], None),
            Change::Root { .. } => (DifferenceKind::Metadata, &b"."[..], None),
            Change::Added { path, .. } => (DifferenceKind::Missing, &path[..], None),
            Change::Removed { path, .. } => (DifferenceKind::Surplus, &path[..], None),
            Change::Renamed { from, path, .. } => (DifferenceKind::Renamed, &path[..], Some(from)),
            Change::Changed { path, .. } if is_metadata => (DifferenceKind::Metadata, &path[..], None),
            Change::Changed { path, .. } => (DifferenceKind::Changed, &path[..], None),
        };
        *match kind {
            DifferenceKind::Missing => &mut self.missing,
            DifferenceKind::Changed => &mut self.changed,
            DifferenceKind::Renamed => &mut self.renamed,
            DifferenceKind::Metadata => &mut self.metadata,
            DifferenceKind::Surplus => self.surplus.get_or_insert(0),
        } += 1;
        let shown = |path: &[u8]| printable(&String::from_utf8_lossy(path)).into_owned();
        let is_directory = match change {
            Change::Added { entry, .. } | Change::Removed { entry, .. } => {
                matches!(entry.kind, Kind::Directory { .. })
            }
            _ => false,
        };
        let slash = if is_directory { "/" } else { "" };
        self.named.push(DifferentEntry {
            kind,
            path: format!("{}{slash}", shown(path)),
            from: from.map(|from| shown(from)),
        });
        self.bound();
    }

    /// Drops named entries above [`NAMED_MAX`] and [`NAMED_BYTES_MAX`]. Comparisons of other
    /// programs are bounded with it, too.
    pub fn bound(&mut self) {
        self.named.truncate(NAMED_MAX);
        let mut bytes = 0;
        let fits = self.named.iter().take_while(|entry| {
            bytes += entry.path.len() + entry.from.as_ref().map_or(0, String::len);
            bytes <= NAMED_BYTES_MAX
        });
        let fits = fits.count();
        self.named.truncate(fits);
        self.named.shrink_to(NAMED_MAX);
    }

    /// Number of differing entries.
    pub fn differences(&self) -> u64 {
        [self.missing, self.changed, self.renamed, self.metadata, self.surplus.unwrap_or(0)]
            .into_iter()
            .fold(0, u64::saturating_add)
    }

    /// The counts in words, such as `3 missing, 1 only there`; empty if nothing differs. `there` is
    /// the destination.
    pub fn in_words(&self, there: &str) -> String {
        let only = format!("only {there}");
        let counts = [
            (self.missing, "missing"),
            (self.changed, "changed"),
            (self.renamed, "renamed"),
            (self.metadata, "with other attributes"),
            (self.surplus.unwrap_or(0), &only),
        ];
        let words =
            counts.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}"));
        words.collect::<Vec<_>>().join(", ")
    }
}

#[cfg(test)]
mod tests;
