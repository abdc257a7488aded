//! The entries of a directory's manifest that a filter includes.
//!
//! A server tells the manifest of a whole directory, so that servers with equal directories stay
//! interchangeable. Its client selects entries of this manifest. The selection lists the entries
//! that a scan of the directory with the same filter lists.
//!
//! Read [`Manifest::select`] first.

use super::{FileSpan, HeadError, Manifest, NODE_BYTES, encode};
use crate::tree::{name_of, parent_of};
use anabranch_pieces::ByteRange;
use anabranch_sets::filter::Filter;
use anabranch_sets::{Attributes, BuildError, Builder, Change, Entry, Kind, LinkPath, Name, NodeHash};
use std::collections::{BTreeMap, BTreeSet};

/// An open directory of the selection.
struct Open {
    path: Vec<u8>,
    attributes: Attributes,
}

/// Nodes of a selection, within a limit of memory.
struct Nodes {
    by_hash: BTreeMap<NodeHash, Vec<u8>>,
    held_bytes: u64,
    /// Maximum of `held_bytes`.
    limit: u64,
}

impl Nodes {
    /// Keeps a node, unless the limit is exceeded.
    fn keep(&mut self, hash: NodeHash, node: &[u8]) {
        if self.held_bytes <= self.limit && !self.by_hash.contains_key(&hash) {
            self.held_bytes += node.len() as u64 + NODE_BYTES;
            self.by_hash.insert(hash, node.to_vec());
        }
    }

    /// Errors: the nodes and `more_bytes` exceed the limit.
    fn check(&self, more_bytes: u64) -> Result<(), HeadError> {
        if self.held_bytes.saturating_add(more_bytes) > self.limit {
            return Err(HeadError::Memory { limit: self.limit });
        }
        Ok(())
    }
}

/// State of a selection.
struct Selector<'m> {
    from: &'m Manifest,
    filter: &'m Filter,
    /// Directories that hold a file which excludes them; an empty path for the root.
    marked: BTreeSet<Vec<u8>>,
    /// Numbers of the files that have further names.
    linked: BTreeSet<usize>,
    /// First included path of each of these files.
    first_paths: BTreeMap<usize, LinkPath>,
    builder: Builder,
    open: Vec<Open>,
    /// The excluded directory whose entries are passed over.
    passed_over: Option<Vec<u8>>,
    nodes: Nodes,
    /// Numbers of the included files, in their order.
    files: Vec<usize>,
}

/// A manifest that was decoded has its entries in order, with right attributes.
fn unbuilt(_: BuildError) -> HeadError {
    HeadError::Format
}

fn is_below(path: &[u8], directory: &[u8]) -> bool {
    path.strip_prefix(directory).is_some_and(|rest| rest.starts_with(b"/"))
}

impl<'m> Selector<'m> {
    fn new(from: &'m Manifest, filter: &'m Filter, limit: u64) -> Self {
        Self {
            from,
            filter,
            marked: BTreeSet::new(),
            linked: from.aliases.values().copied().collect(),
            first_paths: BTreeMap::new(),
            builder: Builder::new(),
            open: Vec::new(),
            passed_over: None,
            nodes: Nodes { by_hash: BTreeMap::new(), held_bytes: 0, limit },
            files: Vec::new(),
        }
    }

    /// Notes the directories that hold a file which excludes them.
    fn mark(&mut self) -> Result<(), HeadError> {
        let mut changes = self.from.entries();
        while let Some(change) = changes.poll().map_err(HeadError::Node)? {
            if let Change::Added { path, entry } = change
                && entry.kind.tree().is_none()
                && self.filter.is_marker(name_of(&path))
            {
                self.marked.insert(parent_of(&path).to_vec());
            }
        }
        Ok(())
    }

    /// Selects the entries.
    fn run(mut self) -> Result<Manifest, HeadError> {
        if self.filter.has_markers() {
            self.mark()?;
        }
        let is_empty = self.marked.contains(&b""[..]);
        let (mut changes, mut root) = (self.from.entries(), None);
        while let Some(change) = changes.poll().map_err(HeadError::Node)? {
            match change {
                Change::Root { after, .. } => root = after,
                Change::Added { path, entry } if !is_empty => self.entry(&path, entry.kind)?,
                // Without a snapshot before there is no other change.
                _ => {}
            }
        }
        self.leave(b"")?;
        let Self { from, builder, mut nodes, files, .. } = self;
        let mut keep = |hash, node: &[u8]| nodes.keep(hash, node);
        let id = builder.finish(root, &mut keep).map_err(unbuilt)?;
        let blocks = || files.iter().filter_map(|number| Some(from.blocks(*number)?.1));
        nodes.check(blocks().map(|blocks| blocks.len() as u64).sum())?;
        let head = encode(id, &nodes.by_hash, &blocks().collect::<Vec<_>>().concat());
        let limit = nodes.limit;
        drop(nodes);
        let mut selected = Manifest::decode(head, limit)?;
        for (file, number) in selected.files.iter_mut().zip(&files) {
            file.range = from.files[*number].range;
        }
        Ok(selected)
    }

    /// Closes the directories that do not hold `path`.
    fn leave(&mut self, path: &[u8]) -> Result<(), HeadError> {
        while let Some(Open { attributes, .. }) = self.open.pop_if(|last| !is_below(path, &last.path)) {
            let nodes = &mut self.nodes;
            let mut keep = |hash, node: &[u8]| nodes.keep(hash, node);
            self.builder.leave(attributes, &mut keep).map_err(unbuilt)?;
            self.nodes.check(0)?;
        }
        Ok(())
    }

    fn entry(&mut self, path: &[u8], kind: Kind) -> Result<(), HeadError> {
        if self.passed_over.as_ref().is_some_and(|above| is_below(path, above)) {
            return Ok(());
        }
        self.leave(path)?;
        match kind {
            Kind::Directory { attributes, .. } => self.directory(path, attributes),
            Kind::File { .. } => match self.from.find(path) {
                Some(number) => self.file(path, number),
                None => Err(HeadError::Format),
            },
            Kind::HardLink { .. } => match self.from.aliases.get(path) {
                Some(number) => self.file(path, *number),
                // A further name of another entry is refused when it is written.
                None => self.other(path, kind),
            },
            Kind::SymbolicLink { .. } => self.other(path, kind),
        }
    }

    fn directory(&mut self, path: &[u8], attributes: Attributes) -> Result<(), HeadError> {
        if !self.filter.includes_directory(path) || self.marked.contains(path) {
            self.passed_over = Some(path.to_vec());
            return Ok(());
        }
        self.builder.enter(name(path)?).map_err(unbuilt)?;
        self.open.push(Open { path: path.to_vec(), attributes });
        Ok(())
    }

    /// Adds a name of a file: the first included one as the file, further ones as hard links.
    fn file(&mut self, path: &[u8], number: usize) -> Result<(), HeadError> {
        let FileSpan { mode, range, content, modified, .. } = self.from.files[number];
        if !self.filter.includes_file(path, range.len(), modified) {
            return Ok(());
        }
        if let Some(first) = self.first_paths.get(&number) {
            let target = first.clone();
            return self.add(path, Kind::HardLink { path: target });
        }
        if self.linked.contains(&number)
            && let Ok(first) = LinkPath::new(path)
        {
            self.first_paths.insert(number, first);
        }
        self.files.push(number);
        let attributes = Attributes { mode, modified };
        self.add(path, Kind::File { attributes, size_bytes: range.len(), content })
    }

    fn other(&mut self, path: &[u8], kind: Kind) -> Result<(), HeadError> {
        if self.filter.includes_path(path) { self.add(path, kind) } else { Ok(()) }
    }

    fn add(&mut self, path: &[u8], kind: Kind) -> Result<(), HeadError> {
        let nodes = &mut self.nodes;
        let mut keep = |hash, node: &[u8]| nodes.keep(hash, node);
        // Servers list no further metadata.
        let entry = Entry { name: name(path)?, kind, metadata: None };
        self.builder.add(&entry, &mut keep).map_err(unbuilt)?;
        self.nodes.check(0)
    }
}

fn name(path: &[u8]) -> Result<Name, HeadError> {
    Name::new(name_of(path)).map_err(|_| HeadError::Format)
}

impl Manifest {
    /// The entries of a whole directory that `filter` includes, as a scan with this filter lists
    /// them. `--exclude-if-present` excludes a directory that lists the file. The contents keep
    /// their ranges in the stream of the whole directory. Head and length are of the selection
    /// alone, which takes at most `limit` bytes, also while it is built.
    ///
    /// Errors: [`HeadError`].
    pub fn select(&self, filter: &Filter, limit: u64) -> Result<Self, HeadError> {
        Selector::new(self, filter, limit).run()
    }

    /// Ranges of all contents in the stream.
    pub(in crate::tree) fn content_ranges(&self) -> impl Iterator<Item = ByteRange> + '_ {
        self.files.iter().map(|file| file.range)
    }

    /// The head, without the rest of the manifest.
    pub(in crate::tree) fn into_head(self) -> Vec<u8> {
        self.head
    }
}

#[cfg(test)]
mod tests;
