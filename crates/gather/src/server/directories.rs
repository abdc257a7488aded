//! Directories that clients pull: their snapshots, and the streams of these.
//!
//! A snapshot is made when a client asks for a directory's description. One directory is scanned at
//! a time, with an index on disk, so that unchanged files are not read again. The server holds the
//! manifests of the latest snapshots, within a limit of memory; contents are read from the files.
//! No symbolic link is followed.
//!
//! Leaves out: the scan and the stream (`disk::tree`), the names of the objects
//! ([`anabranch_gather_proto::snapshot`]). Read [`Directories`] and [`Content`] first.

use super::hashes::{ClientTurns, turns};
use anabranch_disk::folder::{Folder, Links, shown};
use anabranch_disk::tree::Tree;
use anabranch_disk::tree::arrival::half_written;
use anabranch_disk::tree::index::Index;
use anabranch_disk::tree::stream::TreeStream;
use anabranch_gather_proto::msg::ObjectDescription;
use anabranch_gather_proto::snapshot::{SnapshotObject, SnapshotPart, is_directory};
use anabranch_net::private;
use anabranch_pieces::ByteRange;
use anabranch_pieces::name::directory;
use anabranch_sets::filter::Filter;
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Maximum number of snapshots that are held. Each has an open folder.
const SNAPSHOTS_MAX: usize = 32;
/// Maximum number of nameless indexes. Each is an open file.
const NAMELESS_MAX: usize = 16;
/// Maximum number of indexes beside the file of hashes.
const INDEXES_MAX: usize = 64;

/// A snapshot of a directory.
#[derive(Debug)]
pub struct Snapshot {
    name: String,
    stream: TreeStream,
    /// BLAKE3 hash of the list of entries.
    list_hash: [u8; 32],
    /// Line about entries that the list lacks, or may lack while a transfer writes; empty for a
    /// complete list.
    gaps: String,
    /// Time at which its scan began.
    begun_at: Instant,
}

impl Snapshot {
    fn description(&self, part: SnapshotPart) -> ObjectDescription {
        let manifest = self.stream.manifest();
        let (bytes, hash) = match part {
            SnapshotPart::List => (manifest.head_bytes(), self.list_hash),
            SnapshotPart::Stream => (manifest.length_bytes(), manifest.id().0),
            SnapshotPart::Gaps => (self.gaps.len() as u64, *blake3::hash(self.gaps.as_bytes()).as_bytes()),
        };
        ObjectDescription { bytes, mode: 0, modified_ns: 0, hash: Some(hash) }
    }
}

/// Bytes of a requested object.
#[derive(Debug)]
pub enum Content {
    /// A file.
    File(File),
    /// A part of a snapshot.
    Snapshot(Arc<Snapshot>, SnapshotPart),
}

impl Content {
    /// Reads a range.
    ///
    /// Errors: the system's; a file of the snapshot changed since the scan; the object ends before
    /// the range (`UnexpectedEof`).
    pub fn read(&self, range: Range<u64>) -> io::Result<Vec<u8>> {
        match self {
            Self::File(file) => {
                let mut bytes = vec![0; (range.end - range.start) as usize];
                file.read_exact_at(&mut bytes, range.start)?;
                Ok(bytes)
            }
            Self::Snapshot(snapshot, part) => {
                if range.end > snapshot.description(*part).bytes {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                if *part == SnapshotPart::Gaps {
                    return Ok(snapshot.gaps.as_bytes()[range.start as usize..range.end as usize].to_vec());
                }
                snapshot.stream.read(ByteRange { start: range.start, end: range.end })
            }
        }
    }
}

/// The indexes of the directories.
#[derive(Debug)]
enum Indexes {
    /// Files without a name in the folder of temporary files, by directory.
    Nameless(VecDeque<(String, File)>),
    /// Files beside the file of hashes.
    Beside(PathBuf),
}

impl Indexes {
    /// Path of a directory's index.
    ///
    /// Errors: the system's.
    fn path(&mut self, name: &str) -> io::Result<PathBuf> {
        match self {
            Self::Nameless(files) => {
                let known = files.iter().position(|(of, _)| of == name);
                let file = match known.and_then(|at| files.remove(at)) {
                    Some((_, file)) => file,
                    None => tempfile::tempfile()?,
                };
                let path = format!("/proc/self/fd/{}", file.as_raw_fd()).into();
                files.push_back((name.to_owned(), file));
                if files.len() > NAMELESS_MAX {
                    files.pop_front();
                }
                Ok(path)
            }
            Self::Beside(cache) => {
                let path = index_path(cache, name);
                if !path.exists() {
                    make_room(cache)?;
                }
                drop(private::open(&path, File::options().read(true).write(true))?);
                Ok(path)
            }
        }
    }
}

const INDEX_ENDING: &str = ".index";

fn index_path(cache: &Path, name: &str) -> PathBuf {
    let mut path = cache.as_os_str().to_owned();
    path.push(format!(".{}{INDEX_ENDING}", &blake3::hash(name.as_bytes()).to_hex()[..32]));
    path.into()
}

/// Removes the oldest indexes, so that there is room for another one.
fn make_room(cache: &Path) -> io::Result<()> {
    let folder = cache.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let begin = cache.file_name().unwrap_or_default().to_string_lossy() + ".";
    let mut indexes = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let is_index = name.to_str().and_then(|name| name.strip_prefix(&*begin)?.strip_suffix(INDEX_ENDING));
        if is_index.is_some_and(|hash| hash.len() == 32) {
            indexes.push((entry.metadata()?.modified()?, entry.path()));
        }
    }
    indexes.sort_unstable();
    let surplus = (indexes.len() + 1).saturating_sub(INDEXES_MAX);
    indexes.iter().take(surplus).try_for_each(|(_, path)| std::fs::remove_file(path))
}

/// The directories below the served folder.
#[derive(Debug)]
pub struct Directories {
    folder: Folder,
    indexes: Mutex<Indexes>,
    /// Snapshots in the order of their last use, the latest one last.
    held: Mutex<VecDeque<Arc<Snapshot>>>,
    /// Turn of the scan.
    turn: ClientTurns,
    /// Maximum memory for all manifests together, in bytes; one takes at most half.
    memory_max: u64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Directories {
    /// Serves the directories below `folder`. Their indexes lie beside the file `cache`, or have no
    /// names.
    ///
    /// Errors: the system's.
    pub fn below(folder: &Path, cache: Option<&Path>, memory_max: u64) -> io::Result<Self> {
        let indexes = match cache {
            Some(cache) => Indexes::Beside(cache.to_owned()),
            None => Indexes::Nameless(VecDeque::new()),
        };
        Ok(Self {
            // Messages show clients the paths below the folder, but not the folder's own path.
            folder: Folder::open(folder, Links::Refused)?.shown_as(PathBuf::new()),
            indexes: Mutex::new(indexes),
            held: Mutex::default(),
            turn: turns(),
            memory_max,
        })
    }

    /// Description of the stream of the directory `name`, which ends with a slash, from a scan that
    /// begins now. `its` are the turns of the requesting client.
    ///
    /// Errors: one line for the client: no such directory, an entry that cannot be read, too many
    /// entries.
    pub async fn describe(
        self: &Arc<Self>,
        name: &str,
        its: &ClientTurns,
    ) -> Result<ObjectDescription, String> {
        let asked_at = Instant::now();
        if !is_directory(name) {
            return Err(format!("{}: no such directory", shown(Path::new(name))));
        }
        let _of_client = its.acquire().await.map_err(|error| error.to_string())?;
        let turn = Arc::clone(&self.turn).acquire_owned().await.map_err(|error| error.to_string())?;
        // The scan for another client, if it began after this client had asked.
        let known = lock(&self.held).iter().rfind(|held| held.name == name).cloned();
        if let Some(known) = known.filter(|known| known.begun_at >= asked_at) {
            return Ok(known.description(SnapshotPart::Stream));
        }
        let (directories, name) = (Arc::clone(self), name.to_owned());
        let scan = tokio::task::spawn_blocking(move || {
            let scanned = directories.scan(name);
            // If the client leaves, the scan continues and keeps its turn.
            drop(turn);
            scanned
        });
        let scanned = scan.await.map_err(|error| error.to_string())?;
        scanned.map(|held| held.description(SnapshotPart::Stream)).map_err(|error| error.to_string())
    }

    fn scan(&self, name: String) -> io::Result<Arc<Snapshot>> {
        let begun_at = Instant::now();
        // The working files of the served folder itself lie outside of it.
        let below = directory(&name).filter(|path| *path != ".");
        let half_written =
            || below.map_or(Ok(None), |path| half_written(&self.folder, &self.folder.name(path)?));
        let half_written_before = half_written()?;
        let tree = Tree::below(&self.folder, Path::new(directory(&name).unwrap_or(&name)))?;
        let root = tree.root()?.expect("a directory has a root");
        let path = lock(&self.indexes).path(&name);
        let index = path.and_then(|path| Index::open(&path, &root));
        let index = index.inspect_err(|error| tracing::warn!("{name}: every file is read: {error}")).ok();
        let (stream, scan) =
            TreeStream::scan_included(&tree, &Filter::default(), index.as_ref(), self.memory_max / 2)?;
        scan.whole()?;
        let half_written = half_written_before.or(half_written()?);
        let gaps = half_written.map(str::to_owned).or_else(|| scan.counts.gaps()).unwrap_or_default();
        let list_hash = *blake3::hash(stream.manifest().head()).as_bytes();
        let snapshot = Arc::new(Snapshot { name, stream, list_hash, gaps, begun_at });
        self.hold(Arc::clone(&snapshot));
        Ok(snapshot)
    }

    /// Keeps a snapshot as the latest, and drops snapshots above the limits.
    fn hold(&self, snapshot: Arc<Snapshot>) {
        let id = |of: &Snapshot| (of.name.clone(), of.stream.manifest().id());
        let memory = |held: &VecDeque<Arc<Snapshot>>| -> u64 {
            held.iter().map(|held| held.stream.manifest().held_bytes()).sum()
        };
        let mut held = lock(&self.held);
        held.retain(|other| id(other) != id(&snapshot));
        held.push_back(snapshot);
        while held.len() > 1 && (held.len() > SNAPSHOTS_MAX || memory(&held) > self.memory_max) {
            held.pop_front();
        }
    }

    /// A part of a snapshot, and its description.
    ///
    /// Errors: one line: the server does not hold the snapshot.
    pub fn open(&self, object: &SnapshotObject) -> Result<(Content, ObjectDescription), String> {
        let is_it = |held: &&Arc<Snapshot>| {
            held.name == object.directory && held.stream.manifest().id().0 == object.id
        };
        let found = lock(&self.held).iter().find(is_it).cloned();
        let Some(found) = found else {
            let name = shown(Path::new(&object.directory));
            return Err(format!("{name}: this snapshot is not held any more: give the command again"));
        };
        self.hold(Arc::clone(&found));
        let description = found.description(object.part);
        Ok((Content::Snapshot(found, object.part), description))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_disk::folder::Place;

    fn served(cache: Option<&Path>, memory_max: u64) -> (tempfile::TempDir, Arc<Directories>) {
        let folder = tempfile::tempdir().expect("a temporary folder");
        std::fs::create_dir_all(folder.path().join("data/sub")).expect("ours");
        std::fs::write(folder.path().join("data/sub/a"), b"the content").expect("ours");
        let directories = Directories::below(folder.path(), cache, memory_max).expect("it is there");
        (folder, Arc::new(directories))
    }

    async fn describe(directories: &Arc<Directories>, name: &str) -> Result<ObjectDescription, String> {
        directories.describe(name, &turns()).await
    }

    fn part(found: &ObjectDescription, part: SnapshotPart) -> SnapshotObject {
        let id = found.hash.expect("a snapshot has an id");
        SnapshotObject { directory: "data/".into(), id, part }
    }

    #[tokio::test]
    async fn stream_holds_the_list_and_the_contents() {
        let (folder, directories) = served(None, 1 << 20);
        let found = describe(&directories, "data/").await.expect("a directory");
        let (content, of_stream) = directories.open(&part(&found, SnapshotPart::Stream)).expect("it is held");
        assert_eq!(of_stream, found);
        let (list, of_list) = directories.open(&part(&found, SnapshotPart::List)).expect("it is held");
        assert_eq!(of_list.bytes + 11, found.bytes);
        let list = list.read(0..of_list.bytes).expect("it is in memory");
        assert_eq!(of_list.hash, Some(*blake3::hash(&list).as_bytes()));
        assert_eq!(content.read(0..of_list.bytes).expect("it is in memory"), list);
        assert_eq!(content.read(of_list.bytes..found.bytes).expect("it is there"), b"the content");
        let behind = content.read(0..found.bytes + 1).expect_err("nothing is behind it");
        assert_eq!(behind.kind(), io::ErrorKind::UnexpectedEof);
        std::fs::write(folder.path().join("data/sub/a"), b"THE CONTENTS").expect("ours");
        let changed = content.read(of_list.bytes..found.bytes).expect_err("it changed");
        assert!(changed.to_string().starts_with("data/sub/a: changed while it was read"), "{changed}");
        let other = describe(&directories, "data/").await.expect("a directory");
        assert_ne!(other.hash, found.hash);
        let all = describe(&directories, "./").await.expect("the served folder");
        assert!(all.hash != other.hash && all.bytes > other.bytes, "{all:?}");
    }

    #[tokio::test]
    async fn gaps_name_entries_that_the_list_lacks() {
        let (folder, directories) = served(None, 1 << 20);
        let gaps = |found: &ObjectDescription| {
            let (content, gaps) = directories.open(&part(found, SnapshotPart::Gaps)).expect("it is held");
            let line = String::from_utf8(content.read(0..gaps.bytes).expect("in memory")).expect("text");
            assert_eq!(gaps.hash, Some(*blake3::hash(line.as_bytes()).as_bytes()));
            line
        };
        let found = describe(&directories, "data/").await.expect("a directory");
        assert_eq!(gaps(&found), "");
        let socket = std::os::unix::net::UnixListener::bind(folder.path().join("data/socket"));
        let _socket = socket.expect("the folder is ours");
        let again = describe(&directories, "data/").await.expect("a directory");
        assert!(
            gaps(&again).starts_with("1 of its entries are sockets, pipes or devices"),
            "{}",
            gaps(&again)
        );
        let place = Place::of(&folder.path().join("data")).expect("a name");
        std::fs::write(folder.path().join(place.working_name("sending")), b"").expect("ours");
        let again = describe(&directories, "data/").await.expect("a directory");
        assert!(gaps(&again).starts_with("a transfer writes it, or broke off"), "{}", gaps(&again));
    }

    #[tokio::test]
    async fn links_keys_and_other_places_are_refused() {
        let (folder, directories) = served(None, 1 << 20);
        let at = |name: &str| folder.path().join(name);
        std::os::unix::fs::symlink("data", at("link")).expect("ours");
        std::os::unix::fs::symlink("/etc", at("data/etc")).expect("ours");
        std::fs::create_dir_all(at("data/.anabranch-0")).expect("ours");
        std::fs::write(at("data/.anabranch-0/x"), b"x").expect("ours");
        let found = describe(&directories, "data/").await.expect("a directory");
        assert_eq!(
            directories.open(&part(&found, SnapshotPart::List)).expect("held").1.bytes + 11,
            found.bytes
        );
        for (name, reason) in [
            ("link/", "link: its path has a symbolic link, and links are not followed"),
            ("none/", "none: No such file or directory"),
            ("data/sub/a/", "data/sub/a: not a directory"),
            ("../", "../: no such directory"),
            ("/etc/", "/etc/: no such directory"),
            ("data//sub/", "data//sub/: no such directory"),
            ("data/.anabranch-0/", "data/.anabranch-0/: no such directory"),
        ] {
            let said = describe(&directories, name).await.expect_err("refused");
            assert!(said.starts_with(reason), "{name}: {said}");
        }
        std::fs::write(at("data/ca.key"), "-----BEGIN PRIVATE KEY-----").expect("ours");
        let said = describe(&directories, "data/").await.expect_err("refused");
        assert!(said.starts_with("data/ca.key: ") && said.ends_with("nothing was sent"), "{said}");
    }

    #[tokio::test]
    async fn held_snapshots_are_bounded_by_memory() {
        let (folder, directories) = served(None, 1 << 20);
        let first = describe(&directories, "data/").await.expect("a directory");
        for number in 0..SNAPSHOTS_MAX {
            std::fs::write(folder.path().join(format!("data/{number}")), b"x").expect("ours");
            describe(&directories, "data/").await.expect("a directory");
        }
        assert_eq!(lock(&directories.held).len(), SNAPSHOTS_MAX);
        let said = directories.open(&part(&first, SnapshotPart::List)).expect_err("it was dropped");
        assert_eq!(said, "data/: this snapshot is not held any more: give the command again");
        let (_folder, small) = served(None, 100);
        let said = describe(&small, "data/").await.expect_err("refused");
        assert!(said.contains("half of --memory"), "{said}");
    }

    #[tokio::test]
    async fn index_survives_a_restart_and_indexes_are_bounded() {
        let kept = tempfile::tempdir().expect("a temporary folder");
        let cache = kept.path().join("hashes");
        let (folder, directories) = served(Some(&cache), 1 << 20);
        let old = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000);
        let file = File::open(folder.path().join("data/sub/a")).expect("ours");
        file.set_modified(old).expect("ours");
        let before = describe(&directories, "data/").await.expect("a directory");
        assert!(index_path(&cache, "data/").is_file());
        drop(directories);
        let again = Directories::below(folder.path(), Some(&cache), 1 << 20).expect("it is there");
        assert_eq!(describe(&Arc::new(again), "data/").await.expect("a directory"), before);
        // Files of one tick of the clock have no order.
        let index = File::options().write(true).open(index_path(&cache, "data/")).expect("ours");
        index.set_modified(old).expect("ours");
        for number in 0..INDEXES_MAX {
            std::fs::write(index_path(&cache, &format!("d{number}/")), b"").expect("ours");
        }
        make_room(&cache).expect("ours");
        assert_eq!(std::fs::read_dir(kept.path()).expect("ours").count(), INDEXES_MAX - 1);
        assert!(!index_path(&cache, "data/").exists(), "the oldest ones are removed");
    }
}
