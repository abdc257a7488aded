//! Names of one directory that a file system takes for equal.
//!
//! A file system may ignore the case of letters (vfat, exFAT) or, beside it, the Unicode form of
//! names (directories of ext4 with `+F`, HFS+). Two entries of one directory then need one name
//! there, and the second one would overwrite the first one. Case folding follows the Unicode
//! Standard, section 3.13: simple folding where the form counts, and full folding (definition D145)
//! where it does not. Rust's standard library and `icu_normalizer` have the tables.
//!
//! Leaves out: code points that ext4 ignores in names, and the tables of single file systems. Read
//! [`Folding`] and [`Collisions`] first.

use crate::cursor::{Cursor, Peeked, ReadError, Store, fetch};
use crate::entry::{Entry, Name, NodeHash};
use crate::node::Snapshot;
use anabranch_units::text::printable;
use icu_normalizer::DecomposingNormalizerBorrowed;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::BTreeMap;

/// Differences between names that a file system ignores.
///
/// ```
/// use anabranch_sets::folding::Folding;
/// assert_eq!(Folding::CASE.folded(b"README"), Folding::CASE.folded(b"readme"));
/// assert_ne!(Folding::NONE.folded(b"README"), Folding::NONE.folded(b"readme"));
/// ```
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Folding {
    /// Whether the case of letters is ignored.
    #[serde(default)]
    pub ignores_case: bool,
    /// Whether composed and decomposed characters are equal.
    #[serde(default)]
    pub ignores_form: bool,
}

impl Folding {
    /// Every difference counts.
    pub const NONE: Self = Self { ignores_case: false, ignores_form: false };
    /// The case is ignored.
    pub const CASE: Self = Self { ignores_case: true, ignores_form: false };
    /// The Unicode form is ignored.
    pub const FORM: Self = Self { ignores_case: false, ignores_form: true };
    /// Case and Unicode form are ignored.
    pub const CASE_AND_FORM: Self = Self { ignores_case: true, ignores_form: true };
    /// The foldings under which different names can be equal.
    pub const LOSSY: [Self; 3] = [Self::CASE, Self::FORM, Self::CASE_AND_FORM];

    /// Returns true if different names stay different.
    pub fn is_none(&self) -> bool {
        *self == Self::NONE
    }

    /// The name without the differences that are ignored. A name that is not UTF-8 stays as it is.
    pub fn folded(self, name: &[u8]) -> Cow<'_, [u8]> {
        let text = match std::str::from_utf8(name) {
            Ok(text) if !self.is_none() => text,
            _ => return Cow::Borrowed(name),
        };
        if text.is_ascii() {
            let is_folded = !self.ignores_case || !text.bytes().any(|byte| byte.is_ascii_uppercase());
            return if is_folded { Cow::Borrowed(name) } else { Cow::Owned(name.to_ascii_lowercase()) };
        }
        let folded = match (self.ignores_case, self.ignores_form) {
            (true, true) => decomposed(&fully_folded(&decomposed(text))).into_owned(),
            (true, false) => text.chars().map(simply_folded).collect(),
            _ => decomposed(text).into_owned(),
        };
        Cow::Owned(folded.into_bytes())
    }

    /// The ignored differences in words.
    pub fn words(self) -> &'static str {
        match (self.ignores_case, self.ignores_form) {
            (true, true) => "case and Unicode form",
            (true, false) => "case",
            (false, true) => "Unicode form",
            (false, false) => "no difference",
        }
    }
}

/// Returns true for the dotless i. Case folding keeps it, although it shares its upper case with
/// `i`.
fn is_unfolded(letter: char) -> bool {
    letter == '\u{131}'
}

/// The canonical decomposition (NFD) of a text.
fn decomposed(text: &str) -> Cow<'_, str> {
    DecomposingNormalizerBorrowed::new_nfd().normalize(text)
}

/// Full case folding of a text. The detour by the upper case joins all variants of a letter, such
/// as the final sigma.
fn fully_folded(text: &str) -> String {
    let mut folded = String::with_capacity(text.len());
    for letter in text.chars() {
        if is_unfolded(letter) {
            folded.push(letter);
        } else {
            let lower = letter.to_lowercase();
            folded.extend(lower.flat_map(char::to_uppercase).flat_map(char::to_lowercase));
        }
    }
    folded
}

/// Simple case folding of a character: mappings to several characters are left out.
fn simply_folded(letter: char) -> char {
    if is_unfolded(letter) {
        return letter;
    }
    let lower = only(letter.to_lowercase()).unwrap_or(letter);
    let upper = only(lower.to_uppercase()).unwrap_or(lower);
    only(upper.to_lowercase()).unwrap_or(upper)
}

/// The item of an iterator with one item.
fn only(mut letters: impl Iterator<Item = char>) -> Option<char> {
    letters.next().filter(|_| letters.next().is_none())
}

/// Entries of a directory tree whose names are equal under a folding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Collisions {
    /// The folding.
    pub folding: Folding,
    /// Number of entries whose name equals the name of an earlier entry of the same directory.
    pub entries: u64,
    /// Paths of the first such entry and of the earlier entry. Bytes that are not printable text
    /// are escaped; so are names that differ in their Unicode form alone.
    pub first: (String, String),
}

impl Collisions {
    /// Finds the collisions of a snapshot under each of `foldings`. A folding without a collision
    /// is left out.
    ///
    /// Errors: [`ReadError`]: a node of the manifest is missing or wrong.
    /// Cost: 8 bytes for each entry of the largest directory; a second reading of directories with
    /// collisions. A manifest may stand for any number of equal directories: check its size first.
    pub fn find(
        mut nodes: impl Store,
        snapshot: NodeHash,
        foldings: &[Folding],
    ) -> Result<Vec<Self>, ReadError> {
        let none = |folding: &Folding| Self { folding: *folding, entries: 0, first: Default::default() };
        let mut found: Vec<Self> = foldings.iter().map(none).collect();
        let root = fetch(&mut nodes, &snapshot, Snapshot::decode)?;
        let mut waiting: Vec<(Vec<u8>, NodeHash)> = vec![(Vec::new(), root.tree)];
        while let Some((path, tree)) = waiting.pop() {
            let (mut keys, mut below) = (Vec::new(), Vec::new());
            each_entry(&mut nodes, tree, |entry| {
                keys.push(key(&entry.name));
                if let Some(tree) = entry.kind.tree() {
                    below.push((joined(&path, &entry.name), tree));
                }
            })?;
            waiting.extend(below.into_iter().rev());
            keys.sort_unstable();
            let repeated: Vec<u64> =
                keys.windows(2).filter(|pair| pair[0] == pair[1]).map(|pair| pair[0]).collect();
            if repeated.is_empty() {
                continue;
            }
            let mut candidates: Vec<Name> = Vec::new();
            each_entry(&mut nodes, tree, |entry| {
                if repeated.binary_search(&key(&entry.name)).is_ok() {
                    candidates.push(entry.name);
                }
            })?;
            for collisions in &mut found {
                collisions.add(&path, &candidates);
            }
        }
        found.retain(|collisions| collisions.entries > 0);
        Ok(found)
    }

    /// Counts the names of one directory, in order, that equal an earlier one.
    fn add(&mut self, directory: &[u8], names: &[Name]) {
        let mut earlier: BTreeMap<Cow<'_, [u8]>, &Name> = BTreeMap::new();
        for name in names {
            let folded = self.folding.folded(name.as_bytes());
            let Some(other) = earlier.get(&folded).copied() else {
                earlier.insert(folded, name);
                continue;
            };
            if self.entries == 0 {
                let of_form = |name: &Name| Folding::FORM.folded(name.as_bytes()).into_owned();
                let is_escaped = of_form(name) == of_form(other);
                let shown = |name: &Name| shown(&joined(directory, name), is_escaped);
                self.first = (shown(name), shown(other));
            }
            self.entries += 1;
        }
    }
}

impl std::fmt::Display for Collisions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { folding, entries, first: (path, other) } = self;
        let need = if *entries == 1 { "entry needs" } else { "entries need" };
        write!(
            f,
            "the file system ignores {} in names, and {entries} {need} the name of another entry: rename one of \
             each; the first is `{path}` beside `{other}`",
            folding.words()
        )
    }
}

fn joined(directory: &[u8], name: &Name) -> Vec<u8> {
    match directory {
        [] => name.as_bytes().to_vec(),
        _ => [directory, b"/", name.as_bytes()].concat(),
    }
}

fn shown(path: &[u8], is_escaped: bool) -> String {
    if is_escaped {
        return path.escape_ascii().to_string();
    }
    printable(&String::from_utf8_lossy(path)).into_owned()
}

/// Hash of a name under the folding that ignores most. Names that are equal under another folding
/// have equal hashes, unless U+0345 (iota below) stands before another mark.
fn key(name: &Name) -> u64 {
    let folded = Folding::CASE_AND_FORM.folded(name.as_bytes());
    anabranch_units::mix64(anabranch_units::fnv1a(folded.iter().copied()))
}

/// Passes the entries of one directory to `take`, in order.
fn each_entry(nodes: &mut impl Store, tree: NodeHash, mut take: impl FnMut(Entry)) -> Result<(), ReadError> {
    let mut cursor = Cursor::new(Some(tree));
    loop {
        if let Some(entry) = cursor.next_entry() {
            take(entry);
        } else if matches!(cursor.peek(), Peeked::End) {
            return Ok(());
        } else {
            cursor.open(nodes)?;
        }
    }
}

#[cfg(test)]
mod tests;
