//! Writer of fetched objects, to files or a stream. The writer runs on a separate thread, so that a
//! slow disk does not stop the network at once.
//!
//! Orders wait in a bounded queue. If the queue is full, the network waits, too, and packets are
//! lost as at any slow receiver. Files are [`PartialFile`]s: an interrupted command resumes where
//! it stopped. A short file that arrives as a whole stays in memory until its hash is verified, and
//! is then written under its final name at once ([`whole`]). A directory's stream is a partial
//! file, too, and its files are written at the end ([`DirectorySink`]).

use anabranch_disk::folder::{Place as FilePlace, at};
use anabranch_disk::partial::{FinishError, Naming, PartialFile, exists, hash_file_at, narrow, whole};
use anabranch_disk::tree::arrival::Arrival;
use anabranch_disk::tree::unpack::Unpacked;
use anabranch_endpoint::Bytes;
use anabranch_gather_proto::fetch::ObjectId;
use anabranch_gather_proto::msg::SHORT_BYTES_MAX;
use anabranch_pieces::{Attributes, ByteRange, FileHash, PieceHasher};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::mpsc;

/// An order to the writer thread.
#[derive(Debug)]
pub enum WriterOrder {
    /// Opens the destination of an object.
    Open {
        /// The object.
        object: ObjectId,
        /// Path of the file; `None` for the stream.
        path: Option<PathBuf>,
        /// Length of the object.
        bytes: u64,
    },
    /// Writes bytes of an object.
    Write {
        /// The object.
        object: ObjectId,
        /// Byte range in the object.
        range: Range<u64>,
        /// The bytes in sequence. Bytes beyond the range are cut off.
        parts: Vec<Bytes>,
    },
    /// Checks a complete object and gives its file the final name.
    Finish {
        /// The object.
        object: ObjectId,
        /// Expected hash.
        hash: [u8; 32],
        /// Attributes of the file. Without attributes only the file's owner may read the file.
        attributes: Option<Attributes>,
    },
}

/// A reply of the writer thread.
#[derive(Debug)]
pub enum Reply {
    /// The destination of the object is open.
    Opened {
        /// The object.
        object: ObjectId,
        /// Byte ranges that must still be fetched.
        missing: Vec<Range<u64>>,
    },
    /// Bytes of the object were written to the stream.
    Flushed {
        /// Number of bytes written, from the beginning of the object.
        bytes: u64,
    },
    /// The object's file has its final name.
    Finished {
        /// The object.
        object: ObjectId,
    },
    /// The written bytes do not have the expected hash.
    Mismatch {
        /// The object.
        object: ObjectId,
    },
    /// The object cannot be written.
    Failed {
        /// The object.
        object: ObjectId,
        /// Reason, in one line.
        reason: String,
    },
}

/// Number of files that are checked and synced at once.
const FINISHERS: usize = 8;
/// Maximum number of queued orders. Each order holds one generation, so the queue holds about 32
/// MiB.
const ORDERS_MAX: usize = 64;

/// Destinations that are no files.
pub struct Sinks {
    /// Stream for the single object.
    pub stream: Option<Box<dyn Write + Send>>,
    /// Directory that is written from the single object, its stream.
    pub directory: Option<Arc<Mutex<DirectorySink>>>,
}

/// A directory that is written from its stream.
#[derive(Debug)]
pub struct DirectorySink {
    arrival: Arrival,
    /// Whether contents were wrong, so that the directory must be scanned again.
    was_wrong: bool,
    written: Unpacked,
}

/// Locks a value that a panic leaves whole.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl DirectorySink {
    /// Shares an arrival whose list of entries is known.
    pub fn shared(arrival: Arrival) -> Arc<Mutex<Self>> {
        Arc::new(Mutex::new(Self { arrival, was_wrong: false, written: Unpacked::default() }))
    }

    /// Counts of written files and of conflicts; zeros at the second call.
    pub fn take_written(&mut self) -> Unpacked {
        std::mem::take(&mut self.written)
    }

    /// Number of entries here that the snapshot lacked when the directory was scanned.
    pub fn surplus_entries(&self) -> u64 {
        self.arrival.surplus_entries()
    }

    /// The ranges that must be fetched.
    fn open(&mut self) -> std::io::Result<Vec<Range<u64>>> {
        if std::mem::take(&mut self.was_wrong) {
            self.arrival.again()?;
        }
        Ok(self.arrival.missing().into_iter().map(|range| range.start..range.end).collect())
    }

    /// Writes the directory. Returns false if contents are wrong.
    fn finish(&mut self) -> std::io::Result<bool> {
        match self.arrival.finish() {
            Ok(written) => self.written = written,
            Err(FinishError::Mismatch { .. }) => self.was_wrong = true,
            Err(FinishError::Io(error)) => return Err(error),
        }
        Ok(!self.was_wrong)
    }
}

/// The writer thread, which ends when the last sender of orders is dropped.
pub struct Output {
    orders: mpsc::Sender<WriterOrder>,
    thread: std::thread::JoinHandle<()>,
}

impl Output {
    /// Starts the thread. With `syncs`, files are synced to disk before they are given their final
    /// names. With `replace`, existing files are replaced. An object without a path is written to
    /// the stream of `sinks`. The returned receiver receives the replies.
    ///
    /// Errors: the system cannot start a thread.
    pub fn start(
        syncs: bool,
        replace: bool,
        mut sinks: Sinks,
    ) -> std::io::Result<(Self, mpsc::UnboundedReceiver<Reply>)> {
        let (orders, mut orders_out) = mpsc::channel(ORDERS_MAX);
        // The channel is bounded by the orders: each order has at most one reply, and the sender of
        // orders reads the replies.
        let (replies, replies_out) = mpsc::unbounded_channel();
        let thread = std::thread::Builder::new().name("output".into()).spawn(move || {
            let mut files = BTreeMap::new();
            let mut last = None;
            let (finishing_in, finishing) = std::sync::mpsc::sync_channel(0);
            let finishing = std::sync::Mutex::new(finishing);
            std::thread::scope(|scope| {
                // Checking and syncing one file does not delay the next, because disks sync several
                // files together.
                for _ in 0..FINISHERS {
                    scope.spawn(|| {
                        loop {
                            let next = finishing.lock().expect("nobody panics with it").recv();
                            let Ok(job) = next else { break };
                            let _ = replies.send(finish(job, syncs, replace));
                        }
                    });
                }
                while let Some(order) = orders_out.blocking_recv() {
                    // A closed reply channel is ignored: bytes written so far are kept.
                    match order {
                        WriterOrder::Finish { object, hash, attributes } => {
                            if let Some(place) = files.remove(&object) {
                                let _ = finishing_in.send((object, place, hash, attributes));
                            }
                        }
                        other => {
                            let reply = handle(&mut files, &mut sinks, &mut last, other, syncs, replace);
                            let _ = reply.map(|reply| replies.send(reply));
                        }
                    }
                }
                drop(finishing_in);
            });
        })?;
        Ok((Self { orders, thread }, replies_out))
    }

    /// Queues an order, as soon as the queue has room.
    pub async fn order(&self, order: WriterOrder) {
        // The thread ends only after the last order, so sending cannot fail.
        let _ = self.orders.send(order).await;
    }

    /// Waits until all orders have been executed.
    pub async fn end(self) {
        drop(self.orders);
        let _ = tokio::task::spawn_blocking(|| self.thread.join()).await;
    }
}

/// Destination of an object.
enum ObjectPlace {
    File {
        file: Box<PartialFile>,
        bytes: u64,
    },
    /// A short file, kept in memory. `content` is complete or `None`.
    Short {
        place: FilePlace,
        bytes: u64,
        content: Option<Vec<u8>>,
    },
    Stream(Box<Stream>),
    /// A directory that is written from its stream.
    Directory(Arc<Mutex<DirectorySink>>),
    /// An existing file that must not be replaced.
    There {
        path: PathBuf,
        file: File,
        hash: FileHash,
    },
}

/// An object that is passed on in order as it arrives.
struct Stream {
    out: Box<dyn Write + Send>,
    bytes: u64,
    flushed: u64,
    /// Bytes received out of order, by offset in the object.
    early: BTreeMap<u64, Vec<u8>>,
    hasher: blake3::Hasher,
}

impl Stream {
    /// Writes the next bytes in order. Returns true if any bytes were written.
    fn flush(&mut self) -> std::io::Result<bool> {
        let before = self.flushed;
        while let Some(bytes) = self.early.remove(&self.flushed) {
            self.out.write_all(&bytes)?;
            self.hasher.update(&bytes);
            self.flushed += bytes.len() as u64;
        }
        self.out.flush()?;
        Ok(self.flushed > before)
    }
}

/// Result of opening an object's destination.
enum OpenedPlace {
    /// An existing file of the same length, with its hash, that may not be replaced.
    There(File, FileHash),
    /// A partial file, new or resumed.
    New(Box<PartialFile>),
    /// A short file with no bytes yet.
    Short(FilePlace),
}

/// Opens an object's file, or inspects an existing file.
///
/// Errors: one line; an existing file of another length must not be replaced.
fn open(
    path: &Path,
    last: &mut Option<FilePlace>,
    bytes: u64,
    replace: bool,
) -> std::io::Result<OpenedPlace> {
    let place = FilePlace::beside(path, last.as_ref())?;
    *last = Some(place.clone());
    place.check()?;
    if !replace && let Some(file) = place.finished()? {
        if at(path, file.metadata())?.len() != bytes {
            return Err(exists(path));
        }
        let hash = at(path, hash_file_at(&file, bytes))?;
        return Ok(OpenedPlace::There(file, hash));
    }
    if (1..=SHORT_BYTES_MAX as u64).contains(&bytes) && !whole::is_begun(&place) {
        return Ok(OpenedPlace::Short(place));
    }
    PartialFile::open(place, bytes).map(|file| OpenedPlace::New(Box::new(file)))
}

/// Whether a file with this name exists, as far as the user may see.
pub fn may_be_there(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|found| !found.is_dir())
}

/// Opens a partial file, new or resumed.
fn begin(place: FilePlace, bytes: u64, syncs: bool) -> std::io::Result<Box<PartialFile>> {
    let mut file = Box::new(PartialFile::open(place, bytes)?);
    file.set_syncs(syncs);
    Ok(file)
}

/// Writes a byte range of a file.
fn write(file: &mut PartialFile, range: ByteRange, bytes: Vec<u8>) -> std::io::Result<()> {
    let mut hasher = PieceHasher::new(range);
    hasher.update(&bytes);
    let piece = hasher.finish().ok_or_else(|| std::io::Error::other("fewer bytes than were said"))?;
    file.write(range, &[bytes], &piece)
}

fn handle(
    places: &mut BTreeMap<ObjectId, ObjectPlace>,
    sinks: &mut Sinks,
    last: &mut Option<FilePlace>,
    order: WriterOrder,
    syncs: bool,
    replace: bool,
) -> Option<Reply> {
    if let (WriterOrder::Open { object, .. }, Some(directory)) = (&order, &sinks.directory) {
        let (object, opened) = (*object, lock(directory).open());
        places.insert(object, ObjectPlace::Directory(Arc::clone(directory)));
        return Some(match opened {
            Ok(missing) => Reply::Opened { object, missing },
            Err(error) => Reply::Failed { object, reason: error.to_string() },
        });
    }
    match order {
        WriterOrder::Open { object, path: None, bytes } => {
            let Some(out) = sinks.stream.take() else {
                return Some(Reply::Failed { object, reason: "the stream takes one object".to_owned() });
            };
            let (early, hasher) = (BTreeMap::new(), blake3::Hasher::new());
            places.insert(
                object,
                ObjectPlace::Stream(Box::new(Stream { out, bytes, flushed: 0, early, hasher })),
            );
            let missing = (bytes > 0).then_some(0..bytes).into_iter().collect();
            Some(Reply::Opened { object, missing })
        }
        WriterOrder::Open { object, path: Some(path), bytes } => {
            Some(match open(&path, last, bytes, replace) {
                Ok(OpenedPlace::There(file, hash)) => {
                    places.insert(object, ObjectPlace::There { path, file, hash });
                    Reply::Opened { object, missing: Vec::new() }
                }
                Ok(OpenedPlace::New(mut file)) => {
                    let missing = file.have().missing(bytes).into_iter().map(|r| r.start..r.end).collect();
                    file.set_syncs(syncs);
                    places.insert(object, ObjectPlace::File { file, bytes });
                    Reply::Opened { object, missing }
                }
                Ok(OpenedPlace::Short(place)) => {
                    places.insert(object, ObjectPlace::Short { place, bytes, content: None });
                    let all = 0..bytes;
                    Reply::Opened { object, missing: vec![all] }
                }
                Err(error) => Reply::Failed { object, reason: error.to_string() },
            })
        }
        WriterOrder::Write { object, range, parts } => {
            let range = ByteRange { start: range.start, end: range.end };
            // The parts are joined into one buffer: BLAKE3 hashes many chunks at once, and one
            // write costs less than many writes.
            let mut bytes = parts.concat();
            bytes.truncate(range.len() as usize);
            let here = places.get_mut(&object)?;
            if let ObjectPlace::Short { bytes: all, content, .. } = here
                && (range.start, range.end) == (0, *all)
                && bytes.len() as u64 == *all
            {
                *content = Some(bytes);
                return None;
            }
            let written = match here {
                ObjectPlace::File { file, .. } => write(file, range, bytes),
                // The short file arrives in several pieces, so it becomes a partial file.
                ObjectPlace::Short { place, bytes: all, .. } => {
                    let all = *all;
                    begin(place.clone(), all, syncs).and_then(|mut file| {
                        let result = write(&mut file, range, bytes);
                        *here = ObjectPlace::File { file, bytes: all };
                        result
                    })
                }
                ObjectPlace::There { .. } => return None,
                ObjectPlace::Directory(directory) => write(lock(directory).arrival.stream(), range, bytes),
                ObjectPlace::Stream(stream) => {
                    stream.early.insert(range.start, bytes);
                    match stream.flush() {
                        Ok(false) => return None,
                        Ok(true) => return Some(Reply::Flushed { bytes: stream.flushed }),
                        Err(error) => Err(error),
                    }
                }
            };
            let error = written.err()?;
            places.remove(&object);
            Some(Reply::Failed { object, reason: error.to_string() })
        }
        WriterOrder::Finish { .. } => unreachable!("finishing has threads of its own"),
    }
}

/// A complete object with its destination, expected hash and attributes.
type Job = (ObjectId, ObjectPlace, [u8; 32], Option<Attributes>);

fn finish((object, place, hash, attributes): Job, syncs: bool, replace: bool) -> Reply {
    let naming = Naming { attributes, replace };
    let (mut file, bytes) = match place {
        ObjectPlace::File { file, bytes } => (file, bytes),
        ObjectPlace::Short { place, bytes, content } => {
            let content = content.unwrap_or_default();
            if *blake3::hash(&content).as_bytes() != hash {
                return Reply::Mismatch { object };
            }
            let put = whole::put(&place, &content, FileHash(hash), &naming, syncs);
            let begun = put.and_then(|is_put| {
                let begin = || {
                    let mut file = begin(place, bytes, syncs)?;
                    write(&mut file, ByteRange { start: 0, end: bytes }, content)?;
                    Ok(file)
                };
                if is_put { Ok(None) } else { begin().map(Some) }
            });
            match begun {
                Ok(None) => return Reply::Finished { object },
                Ok(Some(file)) => (file, bytes),
                Err(error) => return Reply::Failed { object, reason: error.to_string() },
            }
        }
        ObjectPlace::There { path, file, hash: found } => {
            let is_same = found == FileHash(hash);
            let reason = || exists(&path).to_string();
            return if is_same {
                narrow(&file, &path, attributes);
                Reply::Finished { object }
            } else {
                Reply::Failed { object, reason: reason() }
            };
        }
        ObjectPlace::Directory(directory) => {
            return match lock(&directory).finish() {
                Ok(true) => Reply::Finished { object },
                Ok(false) => Reply::Mismatch { object },
                Err(error) => Reply::Failed { object, reason: error.to_string() },
            };
        }
        ObjectPlace::Stream(stream) => {
            let is_whole = stream.flushed == stream.bytes && *stream.hasher.finalize().as_bytes() == hash;
            return if is_whole { Reply::Finished { object } } else { Reply::Mismatch { object } };
        }
    };
    match file.finish(bytes, FileHash(hash), &naming) {
        Ok(()) => Reply::Finished { object },
        Err(FinishError::Mismatch { .. }) => Reply::Mismatch { object },
        Err(FinishError::Io(error)) => Reply::Failed { object, reason: error.to_string() },
    }
}
