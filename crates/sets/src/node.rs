//! The nodes of a manifest and their one encoding.
//!
//! A directory's entries are sorted by name and cut into *leaves*. An *index* lists the hashes of
//! the leaves, and is cut into nodes as well, up to a single root. The last name of a node decides
//! by its hash whether the node ends there. So an insertion changes the node around it and the path
//! to the root, and rarely a neighbour. Source: content-defined chunking as in Muthitacharoen et
//! al., "A low-bandwidth network file system" (SOSP 2001), section 3.1, over names instead of
//! bytes.
//!
//! Encoding: a format byte, the level, the number of items, the items. Integers are LEB128 in their
//! shortest form. A name is the length of the prefix that it shares with the name before it, and
//! the rest. Metadata follows an entry whose kind says so. Equal nodes have equal bytes:
//! [`Node::decode`] refuses any other encoding.
//!
//! Leaves out: reading a tree from node to node (`crate::cursor`). Read [`Node`] and [`ends_node`]
//! first.

mod metadata;

use crate::entry::{
    AllAttributes, Attributes, DIRECTORY_MODE_BITS, Entry, EntryError, FileTime, Kind, LinkPath, Name,
    NodeHash, Target,
};
use anabranch_pieces::FileHash;
use metadata::put_metadata;

/// First byte of every node.
const FORMAT: u8 = 1;
/// Level byte of a snapshot's node.
const SNAPSHOT: u8 = 255;
/// Bit of the kind of an entry that has metadata.
const WITH_METADATA: u8 = 4;
/// Flag of a snapshot's root that has metadata.
const ROOT_WITH_METADATA: u8 = 2;
/// Maximum level of an index: 64 items a node at least, so 64^8 leaves.
pub const LEVEL_MAX: u8 = 8;
/// Fewest items at which a name may end a node.
pub const ITEMS_MIN: usize = 64;
/// Maximum items of a node.
pub const ITEMS_MAX: usize = 1_024;
/// Beyond [`ITEMS_MIN`] items, about one in this many names ends a node. A node then has 256 items
/// on average.
const CUT_ONE_IN: u64 = 192;
/// A node ends once its items have this many bytes.
pub const ITEM_BYTES_CUT: usize = 128 << 10;
/// Maximum bytes of a node: the longest item fits behind [`ITEM_BYTES_CUT`].
pub const NODE_BYTES_MAX: usize = ITEM_BYTES_CUT + (8 << 10);
/// Key of the hashes of nodes, so that no file's content has a node's hash.
const HASH_KEY: &[u8; 32] = b"anabranch manifest: node, v.1   ";

/// Why bytes are not a node.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NodeError {
    /// More than [`NODE_BYTES_MAX`] bytes.
    TooLong {
        /// The bytes.
        bytes: usize,
    },
    /// The bytes end within an item.
    TooShort {
        /// Bytes that the next value needs.
        need: usize,
        /// Bytes that are left.
        got: usize,
    },
    /// The first byte is another format's.
    Format {
        /// The byte.
        got: u8,
    },
    /// The level is neither a leaf's, an index's, nor a snapshot's, or is not the expected one.
    Level {
        /// The level.
        got: u8,
    },
    /// A number is longer than it needs to be, or does not fit.
    Number,
    /// More than [`ITEMS_MAX`] items, or an index without an item.
    Items {
        /// The items.
        items: u64,
    },
    /// An entry's kind, or a flag, has an unknown value.
    Kind {
        /// The value.
        got: u8,
    },
    /// The shared prefix of two names is longer than the name before, or could be longer.
    Prefix,
    /// A name is not behind the name before it.
    Order,
    /// A value cannot be an entry's.
    Entry(EntryError),
    /// The node should have ended at an earlier item.
    Boundary,
    /// Bytes follow the last item.
    Trailing {
        /// The bytes.
        bytes: usize,
    },
}

impl std::fmt::Display for NodeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::TooLong { bytes } => {
                write!(f, "a node of {bytes} bytes: must have at most {NODE_BYTES_MAX}")
            }
            Self::TooShort { need, got } => {
                write!(f, "a node ends early: its next value needs {need} bytes, and {got} are left")
            }
            Self::Format { got } => write!(f, "format {got} of a node: must be {FORMAT}"),
            Self::Level { got } => write!(f, "a node of level {got}: another one was expected"),
            Self::Number => f.write_str("a number in a node is not in its shortest form"),
            Self::Items { items } => write!(f, "{items} items in a node: must be at most {ITEMS_MAX}"),
            Self::Kind { got } => write!(f, "unknown kind {got} in a node"),
            Self::Prefix => f.write_str("names in a node share another prefix than it says"),
            Self::Order => f.write_str("names in a node are not in ascending order"),
            Self::Entry(error) => error.fmt(f),
            Self::Boundary => f.write_str("a node goes on behind a name that ends it"),
            Self::Trailing { bytes } => write!(f, "{bytes} bytes follow a node's last item"),
        }
    }
}
impl std::error::Error for NodeError {}

impl From<EntryError> for NodeError {
    fn from(error: EntryError) -> Self {
        Self::Entry(error)
    }
}

/// Hash of an encoded node.
pub fn hash(node: &[u8]) -> NodeHash {
    NodeHash(*blake3::keyed_hash(HASH_KEY, node).as_bytes())
}

/// Returns true if a node of `level` ends behind its item number `items`, whose name is `name`;
/// `bytes` is the encoded length of the items.
pub fn ends_node(level: u8, items: usize, bytes: usize, name: &[u8]) -> bool {
    items >= ITEMS_MAX || bytes >= ITEM_BYTES_CUT || (items >= ITEMS_MIN && is_boundary(level, name))
}

/// Returns true for about one in [`CUT_ONE_IN`] names. A hash of the name and the level decides, so
/// each level has its own boundaries.
fn is_boundary(level: u8, name: &[u8]) -> bool {
    let hash = anabranch_units::fnv1a(name.iter().copied()) ^ u64::from(level).rotate_left(32);
    // FNV's low bits depend on the last bytes alone.
    anabranch_units::mix64(hash).is_multiple_of(CUT_ONE_IN)
}

/// One item of an index: a node of the level below.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Child {
    /// Last name below the node.
    pub last: Name,
    /// Its hash.
    pub hash: NodeHash,
}

/// Items of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Items {
    /// Entries of a directory, sorted by name.
    Leaf(Vec<Entry>),
    /// Nodes of the level below, sorted by last name.
    Index {
        /// At least 1.
        level: u8,
        /// The nodes.
        children: Vec<Child>,
    },
}

/// A decoded node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its items.
    pub items: Items,
    /// True if its last name ends it: only the last node of a level may end without that.
    pub is_cut: bool,
}

/// Adds a number in its shortest form.
pub(crate) fn put_number(to: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        to.push(value.to_le_bytes()[0] | 0x80);
        value >>= 7;
    }
    to.push(value.to_le_bytes()[0]);
}

fn put_bytes(to: &mut Vec<u8>, bytes: &[u8]) {
    put_number(to, bytes.len() as u64);
    to.extend_from_slice(bytes);
}

fn put_time(to: &mut Vec<u8>, time: FileTime) {
    let seconds = time.seconds();
    put_number(to, ((seconds << 1) ^ (seconds >> 63)).cast_unsigned());
    put_number(to, time.nanos().into());
}

fn put_attributes(to: &mut Vec<u8>, attributes: Attributes) {
    put_number(to, attributes.mode.into());
    put_time(to, attributes.modified);
}

fn shared_prefix(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

fn put_name(to: &mut Vec<u8>, before: &[u8], name: &[u8]) {
    let shared = shared_prefix(before, name);
    put_number(to, shared as u64);
    put_bytes(to, &name[shared..]);
}

/// Adds an entry that follows the name `before` (empty for the first one).
pub(crate) fn put_entry(to: &mut Vec<u8>, before: &[u8], entry: &Entry) {
    put_name(to, before, entry.name.as_bytes());
    let with_metadata = if entry.metadata.is_some() { WITH_METADATA } else { 0 };
    match &entry.kind {
        Kind::File { attributes, size_bytes, content } => {
            to.push(with_metadata);
            put_attributes(to, *attributes);
            put_number(to, *size_bytes);
            to.extend_from_slice(&content.0);
        }
        Kind::Directory { attributes, tree } => {
            to.push(1 | with_metadata);
            put_attributes(to, *attributes);
            to.extend_from_slice(&tree.0);
        }
        Kind::SymbolicLink { modified, target } => {
            to.push(2 | with_metadata);
            put_time(to, *modified);
            put_bytes(to, target.as_bytes());
        }
        Kind::HardLink { path } => {
            to.push(3 | with_metadata);
            put_bytes(to, path.as_bytes());
        }
    }
    if let Some(metadata) = &entry.metadata {
        put_metadata(to, metadata);
    }
}

/// Adds a child that follows the last name `before` (empty for the first one).
pub(crate) fn put_child(to: &mut Vec<u8>, before: &[u8], child: &Child) {
    put_name(to, before, child.last.as_bytes());
    to.extend_from_slice(&child.hash.0);
}

/// A node of encoded items.
pub(crate) fn assemble(level: u8, count: usize, items: &[u8]) -> Vec<u8> {
    let mut node = Vec::with_capacity(items.len() + 8);
    node.extend_from_slice(&[FORMAT, level]);
    put_number(&mut node, count as u64);
    node.extend_from_slice(items);
    node
}

/// The rest of the bytes.
struct Input<'b>(&'b [u8]);

impl<'b> Input<'b> {
    fn take(&mut self, need: usize) -> Result<&'b [u8], NodeError> {
        let (taken, rest) =
            self.0.split_at_checked(need).ok_or(NodeError::TooShort { need, got: self.0.len() })?;
        self.0 = rest;
        Ok(taken)
    }

    fn byte(&mut self) -> Result<u8, NodeError> {
        Ok(self.take(1)?[0])
    }

    fn number(&mut self) -> Result<u64, NodeError> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            // The tenth byte has one bit.
            if (bits << shift) >> shift != bits || (byte == 0 && shift > 0) {
                return Err(NodeError::Number);
            }
            value |= bits << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(NodeError::Number)
    }

    fn length(&mut self) -> Result<usize, NodeError> {
        usize::try_from(self.number()?).map_err(|_| NodeError::Number)
    }

    fn bytes(&mut self) -> Result<&'b [u8], NodeError> {
        let length = self.length()?;
        self.take(length)
    }

    fn hash(&mut self) -> Result<[u8; 32], NodeError> {
        Ok(self.take(32)?.try_into().expect("32 bytes were taken"))
    }

    fn time(&mut self) -> Result<FileTime, NodeError> {
        let folded = self.number()?;
        let seconds = (folded >> 1).cast_signed() ^ -(folded & 1).cast_signed();
        Ok(FileTime::new(seconds, self.number()?)?)
    }

    fn attributes(&mut self) -> Result<Attributes, NodeError> {
        let mode = u32::try_from(self.number()?).map_err(|_| NodeError::Number)?;
        Ok(Attributes { mode, modified: self.time()? })
    }

    fn name(&mut self, before: &[u8]) -> Result<Name, NodeError> {
        let shared = self.length()?;
        let rest = self.bytes()?;
        let prefix = before.get(..shared).ok_or(NodeError::Prefix)?;
        match (before.get(shared), rest.first()) {
            (Some(old), Some(new)) if old == new => return Err(NodeError::Prefix),
            (Some(old), Some(new)) if old > new => return Err(NodeError::Order),
            // The name before has this one as its prefix, or equals it.
            (_, None) if !before.is_empty() => return Err(NodeError::Order),
            _ => {}
        }
        Ok(Name::new(&[prefix, rest].concat())?)
    }

    /// Reads an entry behind its name.
    fn entry(&mut self, name: Name) -> Result<Entry, NodeError> {
        let number = self.byte()?;
        let kind = self.kind(number)?;
        let metadata = if number & WITH_METADATA == 0 { None } else { Some(self.metadata()?) };
        let entry = Entry { name, kind, metadata };
        entry.check()?;
        Ok(entry)
    }

    fn kind(&mut self, number: u8) -> Result<Kind, NodeError> {
        Ok(match number & !WITH_METADATA {
            0 => Kind::File {
                attributes: self.attributes()?,
                size_bytes: self.number()?,
                content: FileHash(self.hash()?),
            },
            1 => Kind::Directory { attributes: self.attributes()?, tree: NodeHash(self.hash()?) },
            2 => Kind::SymbolicLink { modified: self.time()?, target: Target::new(self.bytes()?)? },
            3 => Kind::HardLink { path: LinkPath::new(self.bytes()?)? },
            _ => return Err(NodeError::Kind { got: number }),
        })
    }

    /// Reads `count` items of a node; returns them, and whether the last name ends the node.
    fn items<T>(
        &mut self,
        level: u8,
        count: usize,
        mut read: impl FnMut(&mut Self, Name) -> Result<T, NodeError>,
        name_of: impl Fn(&T) -> &Name,
    ) -> Result<(Vec<T>, bool), NodeError> {
        let whole = self.0.len();
        // The least item has 34 bytes, or is a link of 6.
        let mut items: Vec<T> = Vec::with_capacity(count.min(whole / 6 + 1));
        let mut is_cut = false;
        for number in 1..=count {
            if is_cut {
                return Err(NodeError::Boundary);
            }
            let name = self.name(items.last().map_or(&[], |item| name_of(item).as_bytes()))?;
            let item = read(self, name)?;
            is_cut = ends_node(level, number, whole - self.0.len(), name_of(&item).as_bytes());
            items.push(item);
        }
        Ok((items, is_cut))
    }

    fn end(&self) -> Result<(), NodeError> {
        if self.0.is_empty() { Ok(()) } else { Err(NodeError::Trailing { bytes: self.0.len() }) }
    }
}

fn header(bytes: &[u8]) -> Result<(u8, Input<'_>), NodeError> {
    if bytes.len() > NODE_BYTES_MAX {
        return Err(NodeError::TooLong { bytes: bytes.len() });
    }
    let mut input = Input(bytes);
    match input.byte()? {
        FORMAT => Ok((input.byte()?, input)),
        got => Err(NodeError::Format { got }),
    }
}

impl Node {
    /// Reads a leaf or an index.
    ///
    /// Errors: [`NodeError`]; any bytes that [`Node::encode`] would not have written.
    /// Cost: memory in proportion to the bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, NodeError> {
        let (level, mut input) = header(bytes)?;
        if level > LEVEL_MAX {
            return Err(NodeError::Level { got: level });
        }
        let items = input.number()?;
        let count =
            usize::try_from(items).ok().filter(|count| *count <= ITEMS_MAX && (*count > 0 || level == 0));
        let count = count.ok_or(NodeError::Items { items })?;
        let (items, is_cut) = if level == 0 {
            let read = |input: &mut Input<'_>, name| input.entry(name);
            let (entries, is_cut) = input.items(level, count, read, |entry: &Entry| &entry.name)?;
            (Items::Leaf(entries), is_cut)
        } else {
            let read = |input: &mut Input<'_>, last| Ok(Child { last, hash: NodeHash(input.hash()?) });
            let (children, is_cut) = input.items(level, count, read, |child: &Child| &child.last)?;
            (Items::Index { level, children }, is_cut)
        };
        input.end()?;
        Ok(Self { items, is_cut })
    }

    /// The bytes of the node.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut before: &[u8] = &[];
        let (level, count) = match &self.items {
            Items::Leaf(entries) => {
                for entry in entries {
                    put_entry(&mut bytes, before, entry);
                    before = entry.name.as_bytes();
                }
                (0, entries.len())
            }
            Items::Index { level, children } => {
                for child in children {
                    put_child(&mut bytes, before, child);
                    before = child.last.as_bytes();
                }
                (*level, children.len())
            }
        };
        assemble(level, count, &bytes)
    }
}

/// The node that identifies a snapshot: its hash is the snapshot's id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Attributes of the root directory; `None` for a snapshot of a single file, which is the only
    /// entry of the tree.
    pub root: Option<AllAttributes>,
    /// Root node of the entries.
    pub tree: NodeHash,
}

impl Snapshot {
    /// Reads a snapshot's node.
    ///
    /// Errors: [`NodeError`].
    pub fn decode(bytes: &[u8]) -> Result<Self, NodeError> {
        let (level, mut input) = header(bytes)?;
        if level != SNAPSHOT {
            return Err(NodeError::Level { got: level });
        }
        let root = match input.byte()? {
            0 => None,
            1 => Some(input.attributes()?.into()),
            ROOT_WITH_METADATA => {
                let attributes = input.attributes()?;
                Some(AllAttributes { attributes, metadata: Some(input.metadata()?) })
            }
            got => return Err(NodeError::Kind { got }),
        };
        if let Some(AllAttributes { attributes, .. }) = &root {
            attributes.check(DIRECTORY_MODE_BITS)?;
        }
        let snapshot = Self { root, tree: NodeHash(input.hash()?) };
        input.end()?;
        Ok(snapshot)
    }

    /// The bytes of the node.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![FORMAT, SNAPSHOT];
        match &self.root {
            None => bytes.push(0),
            Some(AllAttributes { attributes, metadata }) => {
                bytes.push(if metadata.is_some() { ROOT_WITH_METADATA } else { 1 });
                put_attributes(&mut bytes, *attributes);
                if let Some(metadata) = metadata {
                    put_metadata(&mut bytes, metadata);
                }
            }
        }
        bytes.extend_from_slice(&self.tree.0);
        bytes
    }

    /// The snapshot's id.
    pub fn id(&self) -> NodeHash {
        hash(&self.encode())
    }
}

/// Decodes random bytes as a node and as a snapshot, for fuzzing, and checks that the result
/// encodes to the same bytes. Returns true if the bytes are a node or a snapshot.
pub fn exercise(bytes: &[u8]) -> bool {
    let node = Node::decode(bytes);
    if let Ok(node) = &node {
        assert_eq!(node.encode(), bytes, "a node has one encoding");
    }
    let snapshot = Snapshot::decode(bytes);
    if let Ok(snapshot) = &snapshot {
        assert_eq!(snapshot.encode(), bytes, "a snapshot has one encoding");
    }
    node.is_ok() || snapshot.is_ok()
}

#[cfg(test)]
mod tests;
