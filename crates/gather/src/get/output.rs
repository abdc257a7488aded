//! Where objects are written, files or a stream: a thread of its own, so that a slow disk does not hold up the network at once.
//!
//! What it is told waits in a bounded queue; once that is full the network waits too, and packets are lost as they would be
//! at any receiver that is too slow. Files are [`PartialFile`]s: an interrupted command goes on where it was. Short ones that come
//! in one piece stay in memory until they are whole and right, and are put in place then ([`whole`]).

use anabranch_disk::folder::{Place as FilePlace, at};
use anabranch_disk::partial::{FinishError, Naming, PartialFile, exists, hash_file_at, narrow, whole};
use anabranch_endpoint::Bytes;
use anabranch_gather_proto::fetch::ObjectId;
use anabranch_gather_proto::msg::SHORT_BYTES_MAX;
use anabranch_pieces::{Attributes, ByteRange, FileHash, PieceHasher};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::ops::Range;
use std::path::{Path, PathBuf};
use tokio::sync::mpsc;

/// What the thread is told, of the object with this number.
#[derive(Debug)]
pub enum Order {
    /// It will have this many bytes.
    Open {
        /// Which object.
        object: ObjectId,
        /// Its file; the stream without.
        path: Option<PathBuf>,
        /// Its length.
        bytes: u64,
    },
    /// Bytes of it.
    Write {
        /// Which object.
        object: ObjectId,
        /// Which bytes.
        range: Range<u64>,
        /// The bytes, end to end; cut to the range.
        parts: Vec<Bytes>,
    },
    /// All of it is there: it is to be checked and given its name.
    Finish {
        /// Which object.
        object: ObjectId,
        /// What its hash must be.
        hash: [u8; 32],
        /// What it is besides its bytes; without, only its owner may read it.
        attributes: Option<Attributes>,
    },
}

/// What it says.
#[derive(Debug)]
pub enum Reply {
    /// What an object lacks still.
    Opened {
        /// Which object.
        object: ObjectId,
        /// Ranges that are to be fetched.
        missing: Vec<Range<u64>>,
    },
    /// So much of an object has gone to the stream.
    Flushed {
        /// Bytes from its beginning.
        bytes: u64,
    },
    /// It has its name.
    Finished {
        /// Which object.
        object: ObjectId,
    },
    /// What was written is not what its hash says.
    Mismatch {
        /// Which object.
        object: ObjectId,
    },
    /// It cannot be written.
    Failed {
        /// Which object.
        object: ObjectId,
        /// Why, in one line.
        reason: String,
    },
}

/// Files that are checked and synced at once.
const FINISHERS: usize = 8;
/// Orders that wait: a generation each, so some 32 MiB.
const ORDERS_MAX: usize = 64;

/// The thread, which ends when nobody orders any more.
pub struct Output {
    orders: mpsc::Sender<Order>,
    thread: std::thread::JoinHandle<()>,
}

impl Output {
    /// Starts it; files are on the disk before they get their names if it `syncs`, and take the place of others if it may
    /// `replace`. An object without a file goes to `stream`. What it says comes out of the receiver.
    ///
    /// Errors: the system has no thread to give.
    pub fn start(
        syncs: bool,
        replace: bool,
        mut stream: Option<Box<dyn Write + Send>>,
    ) -> std::io::Result<(Self, mpsc::UnboundedReceiver<Reply>)> {
        let (orders, mut orders_out) = mpsc::channel(ORDERS_MAX);
        // Bounded by the orders: each has one reply at the most, and who orders reads them.
        let (replies, replies_out) = mpsc::unbounded_channel();
        let thread = std::thread::Builder::new().name("output".into()).spawn(move || {
            let mut files = BTreeMap::new();
            let mut last = None;
            let (finishing_in, finishing) = std::sync::mpsc::sync_channel(0);
            let finishing = std::sync::Mutex::new(finishing);
            std::thread::scope(|scope| {
                // Checking and syncing one file does not hold up others: disks sync several together.
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
                    // Where nobody hears of it any more, what is there is kept.
                    match order {
                        Order::Finish { object, hash, attributes } => {
                            if let Some(place) = files.remove(&object) {
                                let _ = finishing_in.send((object, place, hash, attributes));
                            }
                        }
                        other => {
                            let reply = handle(&mut files, &mut stream, &mut last, other, syncs, replace);
                            let _ = reply.map(|reply| replies.send(reply));
                        }
                    }
                }
                drop(finishing_in);
            });
        })?;
        Ok((Self { orders, thread }, replies_out))
    }

    /// Orders something, once there is room for it.
    pub async fn order(&self, order: Order) {
        // The thread ends only after its last order.
        let _ = self.orders.send(order).await;
    }

    /// Waits until all that was ordered is done.
    pub async fn end(self) {
        drop(self.orders);
        let _ = tokio::task::spawn_blocking(|| self.thread.join()).await;
    }
}

/// Where an object goes.
enum Place {
    File {
        file: Box<PartialFile>,
        bytes: u64,
    },
    /// A short file, kept in memory: all of it, once that has come.
    Short {
        place: FilePlace,
        bytes: u64,
        content: Option<Vec<u8>>,
    },
    Stream(Box<Stream>),
    /// A file that is there and stays.
    There {
        path: PathBuf,
        file: File,
        hash: FileHash,
    },
}

/// An object that is passed on as it comes, in order.
struct Stream {
    out: Box<dyn Write + Send>,
    bytes: u64,
    flushed: u64,
    /// What has come too early, by its first byte.
    early: BTreeMap<u64, Vec<u8>>,
    hasher: blake3::Hasher,
}

impl Stream {
    /// Writes what is next. True if there was some.
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

/// What is at an object's place.
enum Opened {
    /// A file of its length, with this hash, that may not be replaced.
    There(File, FileHash),
    /// What has come of it.
    New(Box<PartialFile>),
    /// A short one, of which nothing has come.
    Short(FilePlace),
}

/// Opens an object's file, or looks at the one that is there.
///
/// Errors: one line; a file of another length that may not be replaced.
fn open(path: &Path, last: &mut Option<FilePlace>, bytes: u64, replace: bool) -> std::io::Result<Opened> {
    let place = FilePlace::beside(path, last.as_ref())?;
    *last = Some(place.clone());
    place.check()?;
    if !replace && let Some(file) = place.finished()? {
        if at(path, file.metadata())?.len() != bytes {
            return Err(exists(path));
        }
        let hash = at(path, hash_file_at(&file, bytes))?;
        return Ok(Opened::There(file, hash));
    }
    if (1..=SHORT_BYTES_MAX as u64).contains(&bytes) && !whole::is_begun(&place) {
        return Ok(Opened::Short(place));
    }
    PartialFile::open(place, bytes).map(|file| Opened::New(Box::new(file)))
}

/// Whether something has this name, as far as that can be seen.
pub fn may_be_there(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|found| !found.is_dir())
}

/// Begins a file of which some bytes have come.
fn begin(place: FilePlace, bytes: u64, syncs: bool) -> std::io::Result<Box<PartialFile>> {
    let mut file = Box::new(PartialFile::open(place, bytes)?);
    file.set_syncs(syncs);
    Ok(file)
}

/// Writes some bytes of a file.
fn write(file: &mut PartialFile, range: ByteRange, bytes: Vec<u8>) -> std::io::Result<()> {
    let mut hasher = PieceHasher::new(range);
    hasher.update(&bytes);
    let piece = hasher.finish().ok_or_else(|| std::io::Error::other("fewer bytes than were said"))?;
    file.write(range, &[bytes], &piece)
}

fn handle(
    places: &mut BTreeMap<ObjectId, Place>,
    stream: &mut Option<Box<dyn Write + Send>>,
    last: &mut Option<FilePlace>,
    order: Order,
    syncs: bool,
    replace: bool,
) -> Option<Reply> {
    match order {
        Order::Open { object, path: None, bytes } => {
            let Some(out) = stream.take() else {
                return Some(Reply::Failed { object, reason: "the stream takes one object".to_owned() });
            };
            let (early, hasher) = (BTreeMap::new(), blake3::Hasher::new());
            places.insert(object, Place::Stream(Box::new(Stream { out, bytes, flushed: 0, early, hasher })));
            let missing = (bytes > 0).then_some(0..bytes).into_iter().collect();
            Some(Reply::Opened { object, missing })
        }
        Order::Open { object, path: Some(path), bytes } => Some(match open(&path, last, bytes, replace) {
            Ok(Opened::There(file, hash)) => {
                places.insert(object, Place::There { path, file, hash });
                Reply::Opened { object, missing: Vec::new() }
            }
            Ok(Opened::New(mut file)) => {
                let missing = file.have().missing(bytes).into_iter().map(|r| r.start..r.end).collect();
                file.set_syncs(syncs);
                places.insert(object, Place::File { file, bytes });
                Reply::Opened { object, missing }
            }
            Ok(Opened::Short(place)) => {
                places.insert(object, Place::Short { place, bytes, content: None });
                let all = 0..bytes;
                Reply::Opened { object, missing: vec![all] }
            }
            Err(error) => Reply::Failed { object, reason: error.to_string() },
        }),
        Order::Write { object, range, parts } => {
            let range = ByteRange { start: range.start, end: range.end };
            // One run of bytes: BLAKE3 hashes many chunks at once, and one write costs less than many.
            let mut bytes = parts.concat();
            bytes.truncate(range.len() as usize);
            let here = places.get_mut(&object)?;
            if let Place::Short { bytes: all, content, .. } = here
                && (range.start, range.end) == (0, *all)
                && bytes.len() as u64 == *all
            {
                *content = Some(bytes);
                return None;
            }
            let written = match here {
                Place::File { file, .. } => write(file, range, bytes),
                // It comes in several pieces after all.
                Place::Short { place, bytes: all, .. } => {
                    let all = *all;
                    begin(place.clone(), all, syncs).and_then(|mut file| {
                        let result = write(&mut file, range, bytes);
                        *here = Place::File { file, bytes: all };
                        result
                    })
                }
                Place::There { .. } => return None,
                Place::Stream(stream) => {
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
        Order::Finish { .. } => unreachable!("finishing has threads of its own"),
    }
}

/// An object that is whole, its place, hash and attributes.
type Job = (ObjectId, Place, [u8; 32], Option<Attributes>);

fn finish((object, place, hash, attributes): Job, syncs: bool, replace: bool) -> Reply {
    let naming = Naming { attributes, replace };
    let (mut file, bytes) = match place {
        Place::File { file, bytes } => (file, bytes),
        Place::Short { place, bytes, content } => {
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
        Place::There { path, file, hash: found } => {
            let is_same = found == FileHash(hash);
            let reason = || exists(&path).to_string();
            return if is_same {
                narrow(&file, &path, attributes);
                Reply::Finished { object }
            } else {
                Reply::Failed { object, reason: reason() }
            };
        }
        Place::Stream(stream) => {
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
