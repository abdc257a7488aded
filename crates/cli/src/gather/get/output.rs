//! Where objects are written: a thread of its own, so that a slow disk does not hold up the network at once.
//!
//! What it is told waits in a bounded queue; once that is full the network waits too, and packets are lost as they would be
//! at any receiver that is too slow. Files are [`PartialFile`]s: an interrupted command goes on where it was.

use crate::partial::{FinishError, PartialFile};
use anabranch_endpoint::Bytes;
use anabranch_replicate::control::{ByteRange, FileHash};
use anabranch_replicate::tree::PieceHasher;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;
use tokio::sync::mpsc;

/// What the thread is told, of the object with this number.
#[derive(Debug)]
pub enum Order {
    /// It will have this many bytes.
    Open {
        /// Which object.
        object: usize,
        /// Its file.
        path: PathBuf,
        /// Its length.
        bytes: u64,
    },
    /// Bytes of it.
    Write {
        /// Which object.
        object: usize,
        /// Which bytes.
        range: Range<u64>,
        /// The bytes, end to end; cut to the range.
        parts: Vec<Bytes>,
    },
    /// All of it is there: it is to be checked and given its name.
    Finish {
        /// Which object.
        object: usize,
        /// What its hash must be.
        hash: [u8; 32],
    },
}

/// What it says.
#[derive(Debug)]
pub enum Reply {
    /// What an object lacks still.
    Opened {
        /// Which object.
        object: usize,
        /// Ranges that are to be fetched.
        missing: Vec<Range<u64>>,
    },
    /// It has its name.
    Finished {
        /// Which object.
        object: usize,
    },
    /// What was written is not what its hash says.
    Mismatch {
        /// Which object.
        object: usize,
    },
    /// It cannot be written.
    Failed {
        /// Which object.
        object: usize,
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
    /// Starts it. What it says comes out of the receiver.
    ///
    /// Errors: the system has no thread to give.
    pub fn start() -> std::io::Result<(Self, mpsc::UnboundedReceiver<Reply>)> {
        let (orders, mut orders_out) = mpsc::channel(ORDERS_MAX);
        let (replies, replies_out) = mpsc::unbounded_channel();
        let thread = std::thread::Builder::new().name("output".into()).spawn(move || {
            let mut files = BTreeMap::new();
            let (finishing_in, finishing) = std::sync::mpsc::sync_channel(0);
            let finishing = std::sync::Mutex::new(finishing);
            std::thread::scope(|scope| {
                // Checking and syncing one file does not hold up others: disks sync several together.
                for _ in 0..FINISHERS {
                    scope.spawn(|| {
                        loop {
                            let next = finishing.lock().expect("nobody panics with it").recv();
                            let Ok(job) = next else { break };
                            let _ = replies.send(finish(job));
                        }
                    });
                }
                while let Some(order) = orders_out.blocking_recv() {
                    // Where nobody hears of it any more, what is there is kept.
                    match order {
                        Order::Finish { object, hash } => {
                            let job = files.remove(&object).map(|file| (object, file, hash));
                            let _ = job.map(|job| finishing_in.send(job));
                        }
                        other => drop(handle(&mut files, other).map(|reply| replies.send(reply))),
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

fn handle(files: &mut BTreeMap<usize, (PartialFile, u64)>, order: Order) -> Option<Reply> {
    match order {
        Order::Open { object, path, bytes } => Some(match PartialFile::open(&path, bytes) {
            Ok(file) => {
                let missing = file.have().missing(bytes).into_iter().map(|r| r.start..r.end).collect();
                files.insert(object, (file, bytes));
                Reply::Opened { object, missing }
            }
            Err(error) => Reply::Failed { object, reason: error.to_string() },
        }),
        Order::Write { object, range, parts } => {
            let (file, _) = files.get_mut(&object)?;
            let range = ByteRange { start: range.start, end: range.end };
            let mut hasher = PieceHasher::new(range);
            let mut left = range.len() as usize;
            for part in &parts {
                let take = part.len().min(left);
                hasher.update(&part[..take]);
                left -= take;
            }
            let Some(piece) = hasher.finish() else {
                return Some(Reply::Failed { object, reason: "fewer bytes than were said".to_owned() });
            };
            let error = file.write(range, &parts, piece.hash.0).err()?;
            files.remove(&object);
            Some(Reply::Failed { object, reason: error.to_string() })
        }
        Order::Finish { .. } => unreachable!("finishing has threads of its own"),
    }
}

/// An object that is whole, its file, length and hash.
type Job = (usize, (PartialFile, u64), [u8; 32]);

fn finish((object, (mut file, bytes), hash): Job) -> Reply {
    match file.finish(bytes, FileHash(hash)) {
        Ok(()) => Reply::Finished { object },
        Err(FinishError::Mismatch { .. }) => Reply::Mismatch { object },
        Err(FinishError::Io(error)) => Reply::Failed { object, reason: error.to_string() },
    }
}
