//! Hashes of served files: a cache of known hashes, and the order in which files are read for
//! clients.
//!
//! The disk reads for one client at a time, in turns of [`TURN_BYTES`]. Clients take turns, and so
//! do the connections of one client. A small file therefore waits for one turn of each competing
//! reader, however long their files are. A file is open only from its first turn on.
//! [`Hashes::kept_in`] stores known hashes on disk.

use super::files::{FileState, Files, state};
use anabranch_gather_proto::msg::ObjectDescription;
use anabranch_net::private;
use rustix::fs::FlockOperation;
use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use tokio::sync::Semaphore;

/// Number of bytes read in one turn.
const TURN_BYTES: u64 = 16 << 20;
/// Number of bytes per read.
const READ_BYTES: usize = 1 << 20;
/// Maximum number of known hashes. Beyond it the oldest entries are dropped.
const KNOWN_MAX: usize = 16_384;
/// Maximum line length of the cache file in bytes.
const LINE_BYTES_MAX: u64 = 256;
/// Age in nanoseconds below which a changed file is not cached. A second write in that time may
/// leave the file's times unchanged.
const RECENT_NS: i128 = 2_000_000_000;

/// The reason why the cache file cannot be used. Displays as one line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CacheError {
    /// The file cannot be opened or read, or is not a plain file of this user.
    #[error("{}: {error}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// Another server uses the file.
    #[error("{}: another server uses it: give each its own --cache", .0.display())]
    Taken(PathBuf),
}

/// Turns of one client, which its connections share.
pub type ClientTurns = Arc<Semaphore>;

/// A semaphore that admits one reader at a time.
pub fn turns() -> ClientTurns {
    Arc::new(Semaphore::new(1))
}

/// Cache of known hashes, and the turns of the disk's readers.
pub struct Hashes {
    known: Mutex<KnownHashes>,
    turn: ClientTurns,
}

/// A file that is hashed in part.
struct PartialHash {
    file: File,
    found: ObjectDescription,
    state: FileState,
    at: u64,
    hasher: blake3::Hasher,
    buffer: Vec<u8>,
}

impl PartialHash {
    fn step(&mut self) -> io::Result<()> {
        let end = self.found.bytes.min(self.at + TURN_BYTES);
        while self.at < end {
            let next = (end - self.at).min(READ_BYTES as u64) as usize;
            self.buffer.resize(next, 0);
            self.file.read_exact_at(&mut self.buffer, self.at)?;
            self.hasher.update(&self.buffer);
            self.at += next as u64;
        }
        Ok(())
    }
}

impl Hashes {
    /// An empty cache in memory.
    pub fn new() -> Self {
        Self { known: Mutex::default(), turn: turns() }
    }

    /// A cache stored in the file `path`: known hashes are read from the file, and new hashes are
    /// appended.
    ///
    /// Errors: one line: the file cannot be opened, is not a plain file of this user, or is in use
    /// by another server.
    pub fn kept_in(path: &Path) -> Result<Self, CacheError> {
        let at = |error| CacheError::File { path: path.to_owned(), error };
        let file = private::open(path, File::options().read(true).append(true)).map_err(at)?;
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)
            .map_err(|_| CacheError::Taken(path.to_owned()))?;
        let known = KnownHashes::read(file).map_err(at)?;
        Ok(Self { known: Mutex::new(known), turn: turns() })
    }

    fn known(&self, state: &FileState) -> Option<[u8; 32]> {
        self.known.lock().expect("nobody panics with it").by_state.get(state).copied()
    }

    /// Description of the file `name` with its hash. If the hash is unknown, the file is read in
    /// turns with other clients. `its` are the turns of the requesting client. `hashed` counts the
    /// bytes read.
    ///
    /// Errors: as [`Files::open`]; or the file changes during the read.
    pub async fn hash(
        &self,
        files: &Files,
        name: &str,
        its: &ClientTurns,
        hashed: &AtomicU64,
    ) -> Result<ObjectDescription, String> {
        let with = |found: ObjectDescription, hash| ObjectDescription { hash: Some(hash), ..found };
        // No file is open while this request waits for its turn.
        let (found, is) = files.open(name).map(|opened| (opened.found, opened.state))?;
        if let Some(hash) = self.known(&is) {
            return Ok(with(found, hash));
        }
        let mut reading: Option<PartialHash> = None;
        loop {
            let of_client = its.acquire().await.map_err(|error| error.to_string())?;
            let turn = Arc::clone(&self.turn).acquire_owned().await.map_err(|error| error.to_string())?;
            let mut now = match reading.take() {
                Some(reading) => reading,
                None => {
                    let opened = files.open(name)?;
                    // The file may have been hashed for another client in the meantime.
                    if let Some(hash) = self.known(&opened.state) {
                        return Ok(with(opened.found, hash));
                    }
                    PartialHash {
                        file: opened.file,
                        found: opened.found,
                        state: opened.state,
                        at: 0,
                        hasher: blake3::Hasher::new(),
                        buffer: Vec::new(),
                    }
                }
            };
            let step = tokio::task::spawn_blocking(move || {
                let result = now.step();
                // If the requesting client has left, the turn ends with this read, and not before.
                drop(turn);
                result.map(|()| now)
            });
            let now = step.await.map_err(|error| error.to_string())?;
            drop(of_client);
            let now = now.map_err(|error| match error.kind() {
                io::ErrorKind::UnexpectedEof => format!("{name}: it changes while it is read"),
                _ => format!("{name}: {error}"),
            })?;
            hashed.store(now.at, Relaxed);
            if now.at < now.found.bytes {
                reading = Some(now);
                continue;
            }
            let hash = *now.hasher.finalize().as_bytes();
            let (_, after) = state(&now.file).map_err(|error| format!("{name}: {error}"))?;
            if after != now.state {
                return Err(format!("{name}: it changes while it is read"));
            }
            self.known.lock().expect("nobody panics with it").add(now.state, hash);
            return Ok(with(now.found, hash));
        }
    }
}

/// Known hashes, by the state of their file.
#[derive(Default)]
struct KnownHashes {
    by_state: BTreeMap<FileState, [u8; 32]>,
    /// File states in the order in which their hashes became known, the oldest first.
    order: VecDeque<FileState>,
    /// Cache file with one line per hash.
    file: Option<File>,
}

impl KnownHashes {
    fn read(mut file: File) -> io::Result<Self> {
        let mut known = Self::default();
        let length = file.metadata()?.len();
        let most = KNOWN_MAX as u64 * 2 * LINE_BYTES_MAX;
        let mut text = Vec::new();
        // Only the end of an oversized file is read.
        file.seek(io::SeekFrom::Start(length.saturating_sub(most)))?;
        (&file).take(most).read_to_end(&mut text)?;
        let mut lines = 0;
        // A line torn by a crash does not parse, and is skipped.
        for (state, hash) in text.split(|byte| *byte == b'\n').filter_map(parse) {
            known.insert(state, hash);
            lines += 1;
        }
        if lines > KNOWN_MAX || length > most {
            let lines = known.order.iter().filter_map(|state| Some(line(state, known.by_state.get(state)?)));
            let text = lines.collect::<String>();
            file.set_len(0)?;
            file.write_all(text.as_bytes())?;
        } else if !text.is_empty() && !text.ends_with(b"\n") {
            file.write_all(b"\n")?;
        }
        known.file = Some(file);
        Ok(known)
    }

    fn insert(&mut self, state: FileState, hash: [u8; 32]) {
        if self.by_state.insert(state, hash).is_none() {
            self.order.push_back(state);
        }
        if self.order.len() > KNOWN_MAX
            && let Some(first) = self.order.pop_front()
        {
            self.by_state.remove(&first);
        }
    }

    fn add(&mut self, state: FileState, hash: [u8; 32]) {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let is_recent = now.map_or(true, |now| state[4] + RECENT_NS > now.as_nanos().cast_signed());
        if is_recent || self.by_state.contains_key(&state) {
            return;
        }
        self.insert(state, hash);
        if let Some(file) = &mut self.file
            && let Err(error) = file.write_all(line(&state, &hash).as_bytes())
        {
            tracing::warn!(%error, "hashes are not kept any more: the file of --cache cannot be written");
            self.file = None;
        }
    }
}

fn line(state: &FileState, hash: &[u8; 32]) -> String {
    let [device, inode, bytes, modified, changed] = state;
    format!("{device} {inode} {bytes} {modified} {changed} {}\n", blake3::Hash::from(*hash).to_hex())
}

fn parse(line: &[u8]) -> Option<(FileState, [u8; 32])> {
    let mut words = std::str::from_utf8(line).ok()?.split(' ');
    let mut state = [0; 5];
    for number in &mut state {
        *number = words.next()?.parse().ok()?;
    }
    let hash = blake3::Hash::from_hex(words.next()?).ok()?;
    words.next().is_none().then_some((state, *hash.as_bytes()))
}

/// Fuzz target: parses `bytes` as a cache file, and checks that each parsed line is reproduced by
/// writing it.
pub fn exercise(bytes: &[u8]) {
    for (state, hash) in bytes.split(|byte| *byte == b'\n').filter_map(parse) {
        let again = line(&state, &hash);
        assert_eq!(parse(again.trim_end().as_bytes()), Some((state, hash)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, SystemTime};

    fn served(files: &[(&str, &[u8])]) -> (tempfile::TempDir, Files) {
        let folder = tempfile::tempdir().expect("a temporary folder");
        for (name, bytes) in files {
            std::fs::write(folder.path().join(name), bytes).expect("it can be written");
        }
        let files = Files::below(folder.path()).expect("it is there");
        (folder, files)
    }

    async fn hash(hashes: &Hashes, files: &Files, name: &str) -> Result<Option<[u8; 32]>, String> {
        hashes.hash(files, name, &turns(), &AtomicU64::new(0)).await.map(|found| found.hash)
    }

    #[tokio::test]
    async fn file_that_was_written_to_has_another_hash() {
        let (folder, files) = served(&[("a", b"inside")]);
        let hashes = Hashes::new();
        assert_eq!(hash(&hashes, &files, "a").await, Ok(Some(*blake3::hash(b"inside").as_bytes())));
        std::fs::write(folder.path().join("a"), b"beside").expect("it can be written");
        assert_eq!(hash(&hashes, &files, "a").await, Ok(Some(*blake3::hash(b"beside").as_bytes())));
        assert!(hash(&hashes, &files, "none").await.is_err_and(|reason| reason.contains("no such object")));
        assert_eq!(
            hashes.known.lock().expect("alone").by_state.len(),
            0,
            "what was just changed is not trusted"
        );
    }

    /// Issue #17: hashing one file of 60 GiB made the `get` of every other client fail.
    #[tokio::test]
    async fn small_file_does_not_wait_for_large_file() {
        let (folder, files) = served(&[("small", b"x")]);
        let large = File::create(folder.path().join("large")).expect("it can be made");
        // The sparse file takes no disk space, but reading it would take hours.
        large.set_len(1 << 42).expect("a file with a hole");
        let (hashes, files) = (Arc::new(Hashes::new()), Arc::new(files));
        let begun = Arc::new(AtomicU64::new(0));
        let task = {
            let (hashes, files, begun) = (Arc::clone(&hashes), Arc::clone(&files), Arc::clone(&begun));
            tokio::spawn(async move { hashes.hash(&files, "large", &turns(), &begun).await.is_ok() })
        };
        while begun.load(Relaxed) == 0 {
            tokio::task::yield_now().await;
        }
        for _ in 0..3 {
            assert_eq!(hash(&hashes, &files, "small").await, Ok(Some(*blake3::hash(b"x").as_bytes())));
        }
        // The requesting client leaves, so its turn must end.
        task.abort();
        assert!(task.await.is_err_and(|error| error.is_cancelled()));
        let _turn = hashes.turn.acquire().await.expect("nobody closes it");
    }

    #[tokio::test]
    async fn no_file_is_open_while_requests_wait() {
        let (_folder, files) = served(&[("a", b"inside")]);
        let hashes = Hashes::new();
        let open = || std::fs::read_dir("/proc/self/fd").expect("there is /proc").count();
        let turn = hashes.turn.acquire().await.expect("nobody closes it");
        let hashed = AtomicU64::new(0);
        let its = turns();
        let before = open();
        let mut all: Vec<_> = (0..200).map(|_| Box::pin(hashes.hash(&files, "a", &its, &hashed))).collect();
        for one in &mut all {
            assert!(futures_poll(one.as_mut()).is_pending());
        }
        // Other tests of this process open files at the same time.
        assert!(open() < before + 100, "{} of {before}", open());
        drop(turn);
        for one in all {
            assert!(one.await.is_ok());
        }
    }

    fn futures_poll<F: Future>(future: std::pin::Pin<&mut F>) -> std::task::Poll<F::Output> {
        future.poll(&mut std::task::Context::from_waker(std::task::Waker::noop()))
    }

    #[tokio::test]
    async fn hashes_are_known_again_after_a_restart() {
        let (folder, files) = served(&[("a", b"inside"), ("b", b"beside")]);
        let path = folder.path().join("cache");
        let long_ago = |name: &str| state(&files.open(name).expect("a file").file).expect("it is there").1;
        let hash_of = |bytes: &[u8]| *blake3::hash(bytes).as_bytes();
        let mut first = KnownHashes::read(
            File::options().read(true).append(true).create(true).open(&path).expect("made"),
        )
        .expect("empty");
        // The wrong hash proves that the answer is read from the cache file.
        first.insert(long_ago("a"), [7; 32]);
        let kept = line(&long_ago("a"), &[7; 32]) + "torn 1 2";
        std::fs::write(&path, kept).expect("it can be written");
        let hashes = Hashes::kept_in(&path).expect("readable");
        assert_eq!(hash(&hashes, &files, "a").await, Ok(Some([7; 32])));
        assert_eq!(hash(&hashes, &files, "b").await, Ok(Some(hash_of(b"beside"))));
        let other = Hashes::kept_in(&path).err().map(|error| error.to_string());
        assert!(other.is_some_and(|line| line.contains("another server uses it")));
        // The hash of a file that is old enough is stored, although a torn line precedes it.
        let old = SystemTime::now() - Duration::from_secs(10);
        let ns = old.duration_since(SystemTime::UNIX_EPOCH).expect("after 1970").as_nanos().cast_signed();
        hashes.known.lock().expect("alone").add([1, 2, 3, ns, ns], [8; 32]);
        drop(hashes);
        let again = Hashes::kept_in(&path).expect("readable");
        assert_eq!(again.known(&[1, 2, 3, ns, ns]), Some([8; 32]));
        assert_eq!(again.known(&long_ago("a")), Some([7; 32]));
        assert_eq!(again.known.lock().expect("alone").order.len(), 2);
    }

    #[test]
    fn number_of_known_hashes_is_bounded() {
        let mut known = KnownHashes::default();
        for number in 0..KNOWN_MAX as i128 + 3 {
            known.insert([number; 5], [0; 32]);
        }
        assert_eq!((known.by_state.len(), known.order.len()), (KNOWN_MAX, KNOWN_MAX));
        assert!(!known.by_state.contains_key(&[2; 5]) && known.by_state.contains_key(&[3; 5]));
    }
}
