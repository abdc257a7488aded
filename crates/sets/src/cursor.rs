//! The entries of one directory, read node by node from its root.
//!
//! Nodes may come from a hostile peer. Each is checked against its hash and against its parent:
//! its level, the names that it may hold, and that it ends where the names' hashes say. So a
//! directory has one tree, and equal directories have equal roots.
//!
//! Leaves out: directories in directories (`crate::difference`). Read [`Cursor`] first.

use crate::entry::{Entry, Name, NodeHash};
use crate::node::{self, Items, Node, NodeError};

/// Nodes by their hashes.
pub trait Store {
    /// Bytes of the node with this hash; `None` if the store lacks it.
    fn node(&mut self, hash: &NodeHash) -> Option<Vec<u8>>;
}

impl Store for &std::collections::BTreeMap<NodeHash, Vec<u8>> {
    fn node(&mut self, hash: &NodeHash) -> Option<Vec<u8>> {
        self.get(hash).cloned()
    }
}

impl<S: Store> Store for &mut S {
    fn node(&mut self, hash: &NodeHash) -> Option<Vec<u8>> {
        (**self).node(hash)
    }
}

/// Nodes of two manifests.
pub(crate) struct Both<A, B>(pub(crate) A, pub(crate) B);

impl<A: Store, B: Store> Store for Both<A, B> {
    fn node(&mut self, hash: &NodeHash) -> Option<Vec<u8>> {
        self.0.node(hash).or_else(|| self.1.node(hash))
    }
}

/// Reason why a manifest cannot be read further.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReadError {
    /// The store lacks a node. Once the store has it, reading can go on.
    Missing {
        /// Hash of the missing node.
        hash: NodeHash,
    },
    /// A node contradicts its hash or its parent.
    Node {
        /// Hash of the node.
        hash: NodeHash,
        /// The mistake.
        error: TreeError,
    },
    /// Directories are nested deeper than [`crate::DEPTH_MAX`].
    TooDeep,
    /// A hard link's file is not listed before the link.
    LinkOrder {
        /// Path of the link.
        path: Vec<u8>,
    },
}

/// Why a node cannot be at its place in a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TreeError {
    /// The bytes have another hash.
    Hash,
    /// The bytes do not encode a node.
    Encoding(NodeError),
    /// A node of another level must stand here.
    Level,
    /// The names of a node are not between the names of its neighbours.
    Names,
    /// A node ends early, or an index has one child only.
    Shape,
}

impl std::fmt::Display for ReadError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Missing { hash } => write!(f, "node {hash} is missing"),
            Self::Node { hash, error } => match error {
                TreeError::Hash => write!(f, "node {hash}: its bytes have another hash"),
                TreeError::Encoding(error) => write!(f, "node {hash}: {error}"),
                TreeError::Level => write!(f, "node {hash}: a node of another level must stand here"),
                TreeError::Names => write!(f, "node {hash}: its names are not those between its neighbours"),
                TreeError::Shape => write!(f, "node {hash}: it ends early, or has one child only"),
            },
            Self::TooDeep => write!(f, "more than {} directories lie in each other", crate::DEPTH_MAX),
            Self::LinkOrder { path } => {
                let path = String::from_utf8_lossy(path);
                let path = anabranch_units::text::printable(&path);
                write!(f, "`{path}`: a hard link to a path that is not listed before it")
            }
        }
    }
}
impl std::error::Error for ReadError {}

/// Reads a node and checks its hash.
pub(crate) fn fetch<T>(
    store: &mut impl Store,
    hash: &NodeHash,
    decode: impl Fn(&[u8]) -> Result<T, NodeError>,
) -> Result<T, ReadError> {
    let bytes = store.node(hash).ok_or(ReadError::Missing { hash: *hash })?;
    let wrong = |error| ReadError::Node { hash: *hash, error };
    if node::hash(&bytes) != *hash {
        return Err(wrong(TreeError::Hash));
    }
    decode(&bytes).map_err(|error| wrong(TreeError::Encoding(error)))
}

/// A node that is not read yet.
#[derive(Clone, Debug)]
pub(crate) struct Unread {
    pub(crate) hash: NodeHash,
    /// `None` for the root of a directory.
    pub(crate) level: Option<u8>,
    /// Last name of the nodes before it.
    after: Option<Name>,
    /// Last name of the node, as its parent states it.
    last: Option<Name>,
    /// True for the last node of its level.
    is_last: bool,
}

/// Next item of a cursor.
#[derive(Debug)]
pub(crate) enum Peeked<'c> {
    Unread(&'c Unread),
    Entry(&'c Entry),
    End,
}

/// Items that were read and not passed; the next one is at the end.
#[derive(Debug)]
enum Rest {
    Entries(Vec<Entry>),
    Nodes(Vec<Unread>),
}

/// A place among the entries of a directory.
#[derive(Debug)]
pub(crate) struct Cursor {
    /// Unread rests of the nodes from the root down. Empty rests are removed at once.
    stack: Vec<Rest>,
}

impl Cursor {
    /// Creates a cursor before the first entry below `root`. Without a root, the cursor is at the
    /// end.
    pub(crate) fn new(root: Option<NodeHash>) -> Self {
        let unread = |hash| Unread { hash, level: None, after: None, last: None, is_last: true };
        Self { stack: root.map(|hash| Rest::Nodes(vec![unread(hash)])).into_iter().collect() }
    }

    pub(crate) fn peek(&self) -> Peeked<'_> {
        match self.stack.last() {
            None => Peeked::End,
            Some(Rest::Entries(entries)) => {
                Peeked::Entry(entries.last().expect("empty rests are removed at once"))
            }
            Some(Rest::Nodes(nodes)) => {
                Peeked::Unread(nodes.last().expect("empty rests are removed at once"))
            }
        }
    }

    /// Skips the next node without reading it.
    pub(crate) fn skip(&mut self) {
        if let Some(Rest::Nodes(nodes)) = self.stack.last_mut() {
            nodes.pop();
        }
        self.tidy();
    }

    /// Returns the next entry, and moves behind it. `None` if a node comes next, or at the end.
    pub(crate) fn next_entry(&mut self) -> Option<Entry> {
        let Some(Rest::Entries(entries)) = self.stack.last_mut() else { return None };
        let entry = entries.pop();
        self.tidy();
        entry
    }

    fn tidy(&mut self) {
        while self.stack.last().is_some_and(|rest| match rest {
            Rest::Entries(entries) => entries.is_empty(),
            Rest::Nodes(nodes) => nodes.is_empty(),
        }) {
            self.stack.pop();
        }
    }

    /// Reads the next node, if a node comes next. After an error the cursor stands where it stood.
    pub(crate) fn open(&mut self, store: &mut impl Store) -> Result<(), ReadError> {
        let Some(Rest::Nodes(nodes)) = self.stack.last() else { return Ok(()) };
        let unread = nodes.last().expect("empty rests are removed at once");
        let node = fetch(store, &unread.hash, Node::decode)?;
        let rest = checked(node, unread).map_err(|error| ReadError::Node { hash: unread.hash, error })?;
        self.skip();
        self.stack.push(rest);
        self.tidy();
        Ok(())
    }
}

/// Checks a node against its parent, and returns its items, the next one last.
fn checked(node: Node, unread: &Unread) -> Result<Rest, TreeError> {
    let is_root = unread.level.is_none();
    if !unread.is_last && !node.is_cut {
        return Err(TreeError::Shape);
    }
    let check_names = |first: Option<&Name>, last: Option<&Name>| {
        let is_behind = unread.after.as_ref().is_none_or(|after| first.is_some_and(|first| after < first));
        let ends_there = is_root || unread.last.as_ref() == last;
        if is_behind && ends_there { Ok(()) } else { Err(TreeError::Names) }
    };
    let check_level = |got: u8| {
        let fits = unread.level.is_none_or(|level| level == got);
        if fits { Ok(()) } else { Err(TreeError::Level) }
    };
    match node.items {
        Items::Leaf(mut entries) => {
            check_level(0)?;
            check_names(entries.first().map(|e| &e.name), entries.last().map(|e| &e.name))?;
            entries.reverse();
            Ok(Rest::Entries(entries))
        }
        Items::Index { level, children } => {
            check_level(level)?;
            if is_root && children.len() < 2 {
                return Err(TreeError::Shape);
            }
            // The first name of an index is unknown, but it is at most the last name of the first
            // child.
            check_names(children.first().map(|c| &c.last), children.last().map(|c| &c.last))?;
            let mut after = unread.after.clone();
            let count = children.len();
            let nodes = children.into_iter().enumerate().map(|(number, child)| Unread {
                hash: child.hash,
                level: Some(level - 1),
                after: after.replace(child.last.clone()),
                last: Some(child.last),
                is_last: unread.is_last && number + 1 == count,
            });
            let mut nodes: Vec<Unread> = nodes.collect();
            nodes.reverse();
            Ok(Rest::Nodes(nodes))
        }
    }
}
