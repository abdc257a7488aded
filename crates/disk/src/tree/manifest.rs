//! The manifest of a tree on disk: a scan, hashes of its files, nodes.
//!
//! A file that changes while it is read is read again, and left out if it goes on changing. Read
//! [`read`] first.

use super::index::{Index, Lookups};
use super::metadata::Reader;
use super::{Found, Problem, ScanRules, Skipped, Stat, Tree, Visitor, name_of};
use crate::folder::OpenError;
use anabranch_pieces::FileHash;
use anabranch_pieces::blocks::{self, BlockHasher, has_blocks};
use anabranch_sets::metadata::Metadata;
use anabranch_sets::{AllAttributes, Builder, Entry, Kind, LinkPath, Name, NodeHash, Target};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::time::SystemTime;

/// Bytes that are read at once.
const BUFFER_BYTES: usize = 256 << 10;
/// Times that a file is read until it stays unchanged.
const READS_MAX: u32 = 3;
/// Maximum number of files with a further name that the scan has not reached. Names of further
/// files are listed as separate files.
const LINKED_MAX: usize = 200_000;

/// Counts of one scan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Plain files.
    pub files: u64,
    /// Bytes of the plain files.
    pub bytes: u64,
    /// Folders below the root.
    pub directories: u64,
    /// Symbolic links.
    pub symbolic_links: u64,
    /// Further names of files.
    pub hard_links: u64,
    /// Entries that the filter excludes, folders once.
    pub excluded: u64,
    /// Sockets, pipes and devices.
    pub specials: u64,
    /// Working files of transfers.
    pub reserved: u64,
    /// Folders of other file systems.
    pub other_file_systems: u64,
    /// Entries that cannot be read.
    pub unreadable: u64,
    /// Files and folders that changed while they were read.
    pub unsettled: u64,
    /// Files that were read. The index has the hashes of the other files.
    pub hashed_files: u64,
    /// Bytes of the files that were read.
    pub hashed_bytes: u64,
}

impl Counts {
    /// Returns true if every entry that the filter includes is in the manifest.
    pub fn is_complete(&self) -> bool {
        self.unreadable == 0 && self.unsettled == 0
    }

    /// Line that says why deletes at a copy would be wrong: the manifest lacks entries on other
    /// file systems, or of special kinds. `None` if there are none.
    pub fn gaps(&self) -> Option<String> {
        if self.other_file_systems > 0 {
            return Some(format!(
                "{} of its entries are on other file systems and are not read, so --delete could delete them elsewhere",
                self.other_file_systems
            ));
        }
        (self.specials > 0).then(|| {
            format!(
                "{} of its entries are sockets, pipes or devices, which are not sent, so --delete could delete files \
                 of these names elsewhere",
                self.specials
            )
        })
    }
}

/// A snapshot of a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Its id.
    pub id: NodeHash,
    /// Counts of its entries.
    pub counts: Counts,
}

/// Makes the manifest of a tree. `out` gets its nodes, `report` each problem with its path from the
/// root.
///
/// Errors: the root or the index cannot be read. Other problems are reported and counted.
pub fn read<'r>(
    tree: &Tree,
    rules: impl Into<ScanRules<'r>>,
    index: Option<&Index>,
    out: &mut impl FnMut(NodeHash, &[u8]),
    report: &mut impl FnMut(&[u8], &Problem),
) -> io::Result<Snapshot> {
    let outputs = Outputs { nodes: out, blocks: &mut |_| {} };
    read_with_blocks(tree, rules.into(), index, outputs, report)
}

/// Receivers of a manifest's parts.
pub(super) struct Outputs<'o, O> {
    /// Gets the nodes.
    pub(super) nodes: &'o mut O,
    /// Gets the values of the blocks of each large file, in the order of the manifest.
    pub(super) blocks: &'o mut dyn FnMut(&[u8]),
}

/// Does the same as [`read`], with the blocks of large files.
///
/// Errors: see [`read`].
pub(super) fn read_with_blocks<O: FnMut(NodeHash, &[u8])>(
    tree: &Tree,
    rules: ScanRules<'_>,
    index: Option<&Index>,
    out: Outputs<'_, O>,
    report: &mut impl FnMut(&[u8], &Problem),
) -> io::Result<Snapshot> {
    let is_whole = rules.filter.is_open();
    match index {
        None => build(tree, rules, None, out, report),
        Some(index) => index.with(is_whole, |lookups| build(tree, rules, Some(lookups), out, report)),
    }
}

fn build<O: FnMut(NodeHash, &[u8])>(
    tree: &Tree,
    rules: ScanRules<'_>,
    lookups: Option<&mut Lookups<'_>>,
    Outputs { nodes: out, blocks: blocks_out }: Outputs<'_, O>,
    report: &mut impl FnMut(&[u8], &Problem),
) -> io::Result<Snapshot> {
    let mut maker = Maker {
        builder: Builder::new(),
        metadata: Reader::new(rules.metadata),
        lookups,
        linked: BTreeMap::new(),
        counts: Counts::default(),
        buffer: vec![0; BUFFER_BYTES],
        out: &mut *out,
        blocks_out,
        report,
    };
    tree.scan(rules.filter, &mut maker)?;
    let root = match tree.root()? {
        Some(root) => {
            let metadata = maker.directory_metadata(b"", &root, tree.descriptor.as_fd())?;
            Some(AllAttributes { attributes: root.directory_attributes(), metadata })
        }
        None => None,
    };
    let Maker { builder, counts, .. } = maker;
    let id = builder.finish(root, out).map_err(io::Error::other)?;
    Ok(Snapshot { id, counts })
}

/// A file with several names: its first path, and the names that are still expected.
struct Linked {
    path: LinkPath,
    left: u32,
}

/// Builds a manifest from the entries of a scan.
struct Maker<'m, 'i, O, R> {
    builder: Builder,
    metadata: Reader,
    lookups: Option<&'m mut Lookups<'i>>,
    /// Files with further hard links, by device and inode: btrfs subvolumes and overlays repeat
    /// inodes.
    linked: BTreeMap<(u64, u64), Linked>,
    counts: Counts,
    buffer: Vec<u8>,
    out: &'m mut O,
    blocks_out: &'m mut dyn FnMut(&[u8]),
    report: &'m mut R,
}

/// Hash of a file's content, and its facts when it was read.
struct Hashed {
    content: FileHash,
    /// Values of its blocks; empty for a small file.
    blocks: Vec<u8>,
    stat: Stat,
}

/// Hashes a small file as a whole, and a large one by blocks.
enum ContentHasher {
    Whole(Box<blake3::Hasher>),
    Blocks(Box<BlockHasher>),
}

impl ContentHasher {
    fn new(size_bytes: u64) -> Self {
        if has_blocks(size_bytes) {
            Self::Blocks(Box::new(BlockHasher::new(size_bytes)))
        } else {
            Self::Whole(Box::default())
        }
    }

    fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Whole(hasher) => {
                hasher.update(bytes);
            }
            Self::Blocks(hasher) => hasher.update(bytes),
        }
    }

    /// The hash, and the values of the blocks; `None` if bytes are missing.
    fn finish(self) -> Option<(FileHash, Vec<u8>)> {
        match self {
            Self::Whole(hasher) => Some((FileHash(*hasher.finalize().as_bytes()), Vec::new())),
            Self::Blocks(hasher) => hasher.finish(),
        }
    }
}

/// Why a file has no hash.
enum Unhashed {
    Problem(Problem),
    Fatal(io::Error),
}

impl<O: FnMut(NodeHash, &[u8]), R: FnMut(&[u8], &Problem)> Maker<'_, '_, O, R> {
    fn add(&mut self, path: &[u8], kind: Kind, metadata: Option<Box<Metadata>>) -> io::Result<()> {
        let name = Name::new(name_of(path)).map_err(io::Error::other)?;
        self.builder.add(&Entry { name, kind, metadata }, self.out).map_err(io::Error::other)
    }

    /// Metadata of a directory. If it cannot be taken, the directory is listed without it.
    fn directory_metadata(
        &mut self,
        path: &[u8],
        stat: &Stat,
        folder: BorrowedFd<'_>,
    ) -> io::Result<Option<Box<Metadata>>> {
        match self.metadata.of_directory(folder, stat) {
            Ok(metadata) => Ok(metadata),
            Err(problem) => self.problem(path, problem).map(|()| None),
        }
    }

    /// The first path of the file, if a name of it was listed before.
    fn earlier_path(&mut self, found: &Found<'_>) -> Option<LinkPath> {
        let file = (found.stat.device, found.stat.inode);
        let linked = self.linked.get_mut(&file)?;
        linked.left -= 1;
        let path = linked.path.clone();
        if linked.left == 0 {
            self.linked.remove(&file);
        }
        Some(path)
    }

    /// Hash of a file's content, from the index or from the file.
    fn hash(&mut self, found: &Found<'_>) -> Result<Hashed, Unhashed> {
        if let Some(known) = self.known(found).map_err(Unhashed::Fatal)? {
            return Ok(known);
        }
        for _ in 0..READS_MAX {
            let begun = SystemTime::now();
            let read = self.read(found).map_err(|e| Unhashed::Problem(Problem::Unreadable(e)))?;
            let Some(hashed) = read else { continue };
            self.counts.hashed_files += 1;
            self.counts.hashed_bytes += hashed.stat.size_bytes;
            if let Some(lookups) = &mut self.lookups {
                let is_settled = lookups.is_settled(&hashed.stat, begun);
                let entry = is_settled.then_some((&hashed.stat, &hashed.content));
                lookups.keep(found.path, entry).map_err(Unhashed::Fatal)?;
                if is_settled && !hashed.blocks.is_empty() {
                    lookups.keep_blocks(found.path, &hashed.blocks).map_err(Unhashed::Fatal)?;
                }
            }
            return Ok(hashed);
        }
        Err(Unhashed::Problem(Problem::FileChanged))
    }

    /// Hash of an unchanged file, from the index. The values of a large file's blocks must fit it.
    fn known(&mut self, found: &Found<'_>) -> io::Result<Option<Hashed>> {
        let Some(lookups) = &mut self.lookups else { return Ok(None) };
        let (size_bytes, stat) = (found.stat.size_bytes, found.stat);
        let Some(content) = lookups.hash(found.path, &stat)? else { return Ok(None) };
        if !has_blocks(size_bytes) {
            return Ok(Some(Hashed { content, blocks: Vec::new(), stat }));
        }
        let kept = lookups.blocks(found.path)?.filter(|values| blocks::are_of(values, size_bytes, content));
        Ok(kept.map(|blocks| Hashed { content, blocks, stat }))
    }

    /// Reads a file once; `None` if it changed meanwhile.
    fn read(&mut self, found: &Found<'_>) -> Result<Option<Hashed>, OpenError> {
        let (mut file, before) = found.open()?;
        let (mut hasher, mut bytes) = (ContentHasher::new(before.size_bytes), 0);
        loop {
            match file.read(&mut self.buffer) {
                Ok(0) => break,
                Ok(length) => {
                    hasher.update(&self.buffer[..length]);
                    bytes += length as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(OpenError::Io(error)),
            };
            // A file that grows faster than it is read has no end.
            if bytes > before.size_bytes {
                return Ok(None);
            }
        }
        let stat = Stat::of(&super::stat_of(&file)?);
        if bytes != before.size_bytes || !before.is_unchanged(&stat) {
            return Ok(None);
        }
        Ok(hasher.finish().map(|(content, blocks)| Hashed { content, blocks, stat }))
    }
}

impl<O: FnMut(NodeHash, &[u8]), R: FnMut(&[u8], &Problem)> Visitor for Maker<'_, '_, O, R> {
    fn enter(&mut self, path: &[u8]) -> io::Result<()> {
        let name = Name::new(name_of(path)).map_err(io::Error::other)?;
        self.builder.enter(name).map_err(io::Error::other)
    }

    fn leave(&mut self, path: &[u8], stat: &Stat, folder: BorrowedFd<'_>) -> io::Result<()> {
        self.counts.directories += 1;
        let metadata = self.directory_metadata(path, stat, folder)?;
        let all = AllAttributes { attributes: stat.directory_attributes(), metadata };
        self.builder.leave(all, self.out).map_err(io::Error::other)
    }

    fn file(&mut self, found: &Found<'_>) -> io::Result<()> {
        if found.stat.links > 1
            && let Some(path) = self.earlier_path(found)
        {
            self.counts.hard_links += 1;
            return self.add(found.path, Kind::HardLink { path }, None);
        }
        let Hashed { content, blocks, stat } = match self.hash(found) {
            Ok(hashed) => hashed,
            Err(Unhashed::Problem(problem)) => return self.problem(found.path, problem),
            Err(Unhashed::Fatal(error)) => return Err(error),
        };
        let metadata = match self.metadata.of_file(found.folder, OsStr::from_bytes(found.name()), &stat) {
            Ok(metadata) => metadata,
            Err(problem) => return self.problem(found.path, problem),
        };
        if stat.links > 1
            && self.linked.len() < LINKED_MAX
            && let Ok(path) = LinkPath::new(found.path)
        {
            self.linked.insert((stat.device, stat.inode), Linked { path, left: stat.links - 1 });
        }
        self.counts.files += 1;
        self.counts.bytes += stat.size_bytes;
        if !blocks.is_empty() {
            (self.blocks_out)(&blocks);
        }
        let attributes = stat.file_attributes();
        self.add(found.path, Kind::File { attributes, size_bytes: stat.size_bytes, content }, metadata)
    }

    fn link(&mut self, found: &Found<'_>, target: &[u8]) -> io::Result<()> {
        let (path, stat) = (found.path, &found.stat);
        // File systems in user space may give targets of any length.
        let Ok(target) = Target::new(target) else {
            return self.problem(path, Problem::Unreadable(OpenError::Special));
        };
        let metadata = match self.metadata.of_link(stat) {
            Ok(metadata) => metadata,
            Err(problem) => return self.problem(path, problem),
        };
        self.counts.symbolic_links += 1;
        self.add(path, Kind::SymbolicLink { modified: stat.modified, target }, metadata)
    }

    fn skipped(&mut self, _: &[u8], why: Skipped) -> io::Result<()> {
        *match why {
            Skipped::Special => &mut self.counts.specials,
            Skipped::Reserved => &mut self.counts.reserved,
            Skipped::OtherFileSystem => &mut self.counts.other_file_systems,
            Skipped::Excluded => &mut self.counts.excluded,
        } += 1;
        Ok(())
    }

    fn problem(&mut self, path: &[u8], problem: Problem) -> io::Result<()> {
        match problem {
            Problem::FolderChanged | Problem::FileChanged => self.counts.unsettled += 1,
            Problem::Unreadable(_) | Problem::TooDeep | Problem::Metadata(_) => self.counts.unreadable += 1,
        }
        (self.report)(path, &problem);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
