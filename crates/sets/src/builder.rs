//! The builder of a manifest: entries in order go in, nodes come out.
//!
//! Each open directory has one unfinished node per level. So memory grows with the depth of the
//! tree and not with its entries.
//!
//! Leaves out: where the nodes are kept. Read [`Builder`] first.

use crate::DEPTH_MAX;
use crate::entry::{AllAttributes, DIRECTORY_MODE_BITS, Entry, EntryError, Kind, Name, NodeHash};
use crate::node::{self, Child, Snapshot};

/// Why an entry cannot be added.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BuildError {
    /// The name is not behind the last name of its directory.
    Order {
        /// The name.
        name: Name,
    },
    /// Directories are nested deeper than [`DEPTH_MAX`].
    TooDeep,
    /// A value is not allowed in an entry.
    Entry(EntryError),
}

impl std::fmt::Display for BuildError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Order { name } => {
                let name = String::from_utf8_lossy(name.as_bytes());
                write!(f, "`{}` is out of order", anabranch_units::text::printable(&name))
            }
            Self::TooDeep => write!(f, "more than {DEPTH_MAX} directories lie in each other"),
            Self::Entry(error) => error.fmt(f),
        }
    }
}
impl std::error::Error for BuildError {}

impl From<EntryError> for BuildError {
    fn from(error: EntryError) -> Self {
        Self::Entry(error)
    }
}

/// Unfinished node of one level.
#[derive(Debug, Default)]
struct Pending {
    items: Vec<u8>,
    count: usize,
    /// Name of the last item. It stays after the end of a node, because the order of names
    /// continues.
    last: Vec<u8>,
}

impl Pending {
    /// Name before the next item; empty for a node's first item.
    fn before(&self) -> &[u8] {
        if self.count == 0 { &[] } else { &self.last }
    }

    fn counted(&mut self, level: u8, name: &Name) -> bool {
        self.count += 1;
        self.last.clear();
        self.last.extend_from_slice(name.as_bytes());
        node::ends_node(level, self.count, self.items.len(), name.as_bytes())
    }

    /// Ends the node, and passes it to `out`.
    fn end(&mut self, level: u8, out: &mut impl FnMut(NodeHash, &[u8])) -> NodeHash {
        let bytes = node::assemble(level, self.count, &self.items);
        let hash = node::hash(&bytes);
        out(hash, &bytes);
        self.items.clear();
        self.count = 0;
        hash
    }
}

/// Unfinished nodes of one directory, the leaf first.
#[derive(Debug)]
struct Levels(Vec<Pending>);

impl Levels {
    fn new() -> Self {
        Self(vec![Pending::default()])
    }

    fn add(&mut self, entry: &Entry, out: &mut impl FnMut(NodeHash, &[u8])) -> Result<(), BuildError> {
        entry.check()?;
        self.check_order(&entry.name)?;
        let leaf = &mut self.0[0];
        let mut items = std::mem::take(&mut leaf.items);
        node::put_entry(&mut items, leaf.before(), entry);
        leaf.items = items;
        if leaf.counted(0, &entry.name) {
            self.end(0, out);
        }
        Ok(())
    }

    fn check_order(&self, name: &Name) -> Result<(), BuildError> {
        let is_behind = self.0[0].last.as_slice() < name.as_bytes();
        if is_behind { Ok(()) } else { Err(BuildError::Order { name: name.clone() }) }
    }

    /// Ends the node of a level, and adds it to the level above.
    fn end(&mut self, level: usize, out: &mut impl FnMut(NodeHash, &[u8])) {
        let number = u8::try_from(level).expect("64 items a node and fewer than 2^64 names: few levels");
        let hash = self.0[level].end(number, out);
        let last = Name::new(&self.0[level].last).expect("the last name was an entry's");
        if level + 1 == self.0.len() {
            self.0.push(Pending::default());
        }
        let child = Child { last, hash };
        let above = &mut self.0[level + 1];
        let mut items = std::mem::take(&mut above.items);
        node::put_child(&mut items, above.before(), &child);
        above.items = items;
        if above.counted(number + 1, &child.last) {
            self.end(level + 1, out);
        }
    }

    /// Ends all nodes, and returns the root.
    fn finish(mut self, out: &mut impl FnMut(NodeHash, &[u8])) -> NodeHash {
        let mut level = 0;
        loop {
            let is_top = level + 1 == self.0.len();
            let pending = &mut self.0[level];
            if is_top {
                // An index of a single node is left out: that node is the root.
                return match pending.items.last_chunk() {
                    Some(only) if level > 0 && pending.count == 1 => NodeHash(*only),
                    _ => pending.end(u8::try_from(level).expect("levels are few"), out),
                };
            }
            if pending.count > 0 {
                self.end(level, out);
            }
            level += 1;
        }
    }

    fn held_bytes(&self) -> usize {
        self.0.iter().map(|pending| pending.items.capacity() + pending.last.capacity()).sum()
    }
}

/// Builds a manifest from entries in its order: names in byte order, a directory's contents between
/// [`Builder::enter`] and [`Builder::leave`].
///
/// The closure `out` receives the nodes, children before their parents. It receives nodes of equal
/// directories repeatedly.
///
/// ```
/// use anabranch_sets::{Attributes, Builder, FileTime, Name};
/// let attributes = Attributes { mode: 0o755, modified: FileTime::new(0, 0)? };
/// let mut nodes = std::collections::BTreeMap::new();
/// let mut out = |hash, node: &[u8]| {
///     nodes.insert(hash, node.to_vec());
/// };
/// let mut builder = Builder::new();
/// builder.enter(Name::new(b"empty")?)?;
/// builder.leave(attributes, &mut out)?;
/// let id = builder.finish(Some(attributes.into()), &mut out)?;
/// assert!(nodes.contains_key(&id) && nodes.len() == 3);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Builder {
    /// The root's entries.
    root: Levels,
    /// Open directories, the outermost first.
    open: Vec<(Name, Levels)>,
}

impl Default for Builder {
    fn default() -> Self {
        Self::new()
    }
}

impl Builder {
    /// A builder without an entry.
    pub fn new() -> Self {
        Self { root: Levels::new(), open: Vec::new() }
    }

    fn current(&mut self) -> &mut Levels {
        self.open.last_mut().map_or(&mut self.root, |(_, levels)| levels)
    }

    /// Adds an entry to the open directory.
    ///
    /// Errors: its name is out of order, its mode is not allowed.
    pub fn add(&mut self, entry: &Entry, out: &mut impl FnMut(NodeHash, &[u8])) -> Result<(), BuildError> {
        self.current().add(entry, out)
    }

    /// Opens a directory inside the open directory.
    ///
    /// Errors: its name is out of order; [`DEPTH_MAX`] are open.
    pub fn enter(&mut self, name: Name) -> Result<(), BuildError> {
        if self.open.len() >= DEPTH_MAX {
            return Err(BuildError::TooDeep);
        }
        self.current().check_order(&name)?;
        self.open.push((name, Levels::new()));
        Ok(())
    }

    /// Closes the directory that was opened last.
    ///
    /// Errors: its mode is not allowed.
    /// Panics: if none is open, a mistake of the caller.
    pub fn leave(
        &mut self,
        attributes: impl Into<AllAttributes>,
        out: &mut impl FnMut(NodeHash, &[u8]),
    ) -> Result<(), BuildError> {
        let AllAttributes { attributes, metadata } = attributes.into();
        attributes.check(DIRECTORY_MODE_BITS)?;
        let (name, levels) = self.open.pop().expect("each leave has its enter");
        let tree = levels.finish(out);
        self.add(&Entry { name, kind: Kind::Directory { attributes, tree }, metadata }, out)
    }

    /// Ends the snapshot, and returns its id. `root` has the root directory's attributes, and is
    /// `None` for a single file.
    ///
    /// Errors: the root's mode is not allowed.
    /// Panics: if a directory is open, a mistake of the caller.
    pub fn finish(
        self,
        root: Option<AllAttributes>,
        out: &mut impl FnMut(NodeHash, &[u8]),
    ) -> Result<NodeHash, BuildError> {
        assert!(self.open.is_empty(), "each enter has its leave");
        if let Some(AllAttributes { attributes, .. }) = &root {
            attributes.check(DIRECTORY_MODE_BITS)?;
        }
        let snapshot = Snapshot { root, tree: self.root.finish(out) };
        let bytes = snapshot.encode();
        let id = node::hash(&bytes);
        out(id, &bytes);
        Ok(id)
    }

    /// Bytes of the unfinished nodes, which are most of the builder's memory.
    pub fn held_bytes(&self) -> usize {
        let open = self.open.iter().map(|(_, levels)| levels);
        open.chain([&self.root]).map(Levels::held_bytes).sum()
    }
}
