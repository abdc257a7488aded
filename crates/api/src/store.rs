//! The controller's durable state: one record per transfer, in redb.
//!
//! Every change is one transaction, synced before anybody outside hears of it. A file that was damaged is refused: redb
//! verifies all checksums when it opens, and where it panics all the same, [`guarded`] makes an error of it. Leaves out: what
//! is in a record (`replicate::coordinator::TransferSnapshot`). Read [`Store`] first.

use anabranch_graph::Topology;
use anabranch_net::private;
use anabranch_replicate::control::TransferId;
use anabranch_replicate::coordinator::TransferSnapshot;
use redb::backends::{FileBackend, InMemoryBackend};
use redb::{
    Database, DatabaseError, ReadableDatabase as _, ReadableTable as _, StorageError, TableDefinition,
};
use serde::{Deserialize, Serialize};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::MetadataExt as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Once;

const TRANSFERS: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("transfers");
const TIMES: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("times");
const META: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("meta");
/// Version of the records; another one is refused, not guessed at.
const FORMAT: &[u8] = b"1";

/// Why the store cannot be used.
#[derive(Debug)]
#[non_exhaustive]
pub enum StoreError {
    /// The file cannot be opened, read or written.
    Unusable {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// It was written on another topology.
    OtherTopology {
        /// The file.
        path: PathBuf,
    },
    /// A record cannot be understood.
    BadRecord {
        /// The file.
        path: PathBuf,
        /// Which, and why.
        reason: String,
    },
}

impl std::fmt::Display for StoreError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unusable { path, reason } => write!(f, "store {}: {reason}", path.display()),
            Self::OtherTopology { path } => write!(
                f,
                "store {}: was written on another topology: start with that one, or with another store",
                path.display()
            ),
            Self::BadRecord { path, reason } => {
                write!(f, "store {}: {reason}: move the file away to start anew", path.display())
            }
        }
    }
}
impl std::error::Error for StoreError {}

pub(crate) fn unusable(path: &Path, error: &dyn std::fmt::Display) -> StoreError {
    StoreError::Unusable { path: path.to_owned(), reason: error.to_string() }
}

/// What `work` says, or that the store at `path` is damaged where it panics: redb does on some files that another program
/// wrote into. Nothing is printed then, whatever hook for panics there is.
///
/// Errors: those of `work`; a panic.
pub(crate) fn guarded<T>(path: &Path, work: impl FnOnce() -> Result<T, StoreError>) -> Result<T, StoreError> {
    thread_local! {
        static IS_GUARDED: Cell<bool> = const { Cell::new(false) };
    }
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !IS_GUARDED.get() {
                usual(info);
            }
        }));
    });
    let was = IS_GUARDED.replace(true);
    // Who gets the error stops using what `work` used.
    let result = catch_unwind(AssertUnwindSafe(work));
    IS_GUARDED.set(was);
    result.unwrap_or_else(|_| Err(damaged(path, "it contradicts itself")))
}

/// That a file has been damaged, and what to do.
fn damaged(path: &Path, what: &str) -> StoreError {
    let reason = format!("damaged: {what}: move it away to start anew, or bring back a copy");
    StoreError::Unusable { path: path.to_owned(), reason }
}

/// That another process has it open, and which if the kernel says so.
#[allow(clippy::disallowed_methods, reason = "a driver: asks the kernel who has the file")]
fn in_use(path: &Path) -> String {
    let inode = std::fs::metadata(path).map(|found| found.ino()).ok();
    let locks = std::fs::read_to_string("/proc/locks").unwrap_or_default();
    let who = match inode.and_then(|inode| holder(&locks, inode)) {
        Some(pid) => format!("process {pid}"),
        None => "another process".to_owned(),
    };
    format!("is in use by {who}: end that one, or name another store")
}

/// Of lines as `/proc/locks` has them (proc_locks(5)), the process that holds the file of this number.
fn holder(locks: &str, inode: u64) -> Option<u32> {
    locks.lines().find_map(|line| {
        let mut words = line.split_whitespace().skip(4);
        let (pid, file) = (words.next()?, words.next()?);
        (file.rsplit(':').next()?.parse() == Ok(inode)).then(|| pid.parse().ok())?
    })
}

/// Opens or makes a database whose records have this format, for this user alone. For [`guarded`].
///
/// Errors: a file that cannot be used ([`private::open`]), that is damaged, or with records of another format.
pub(crate) fn open_database(path: &Path, format: &[u8]) -> Result<Database, StoreError> {
    let unusable = |e: &dyn std::fmt::Display| unusable(path, e);
    let file = private::open(path, File::options().read(true).write(true)).map_err(|e| unusable(&e))?;
    let file = FileBackend::new(file).map_err(|e| unusable(&e))?;
    // Reads the whole file: it has at most some MB.
    let database = Database::builder().set_check_integrity_on_open(true).create_with_backend(file);
    let database = database.map_err(|e| match e {
        DatabaseError::Storage(StorageError::Corrupted(what)) => {
            let what = what.split_whitespace().collect::<Vec<_>>().join(" ");
            damaged(path, what.trim_end_matches('.'))
        }
        DatabaseError::DatabaseAlreadyOpen => unusable(&in_use(path)),
        other => unusable(&other),
    })?;
    let write = database.begin_write().map_err(|e| unusable(&e))?;
    let found = {
        let mut meta = write.open_table(META).map_err(|e| unusable(&e))?;
        let found = meta.get("format").map_err(|e| unusable(&e))?.map(|v| v.value().to_vec());
        if found.is_none() {
            meta.insert("format", format).map_err(|e| unusable(&e))?;
        }
        found
    };
    if let Some(other) = found.as_deref().filter(|found| *found != format) {
        let reason = format!("format {:?} is not known", String::from_utf8_lossy(other));
        return Err(StoreError::BadRecord { path: path.to_owned(), reason });
    }
    write.commit().map_err(|e| unusable(&e))?;
    Ok(database)
}

/// An open store.
pub(crate) struct Store {
    database: Database,
    path: PathBuf,
}

/// When a transfer was accepted and when it ended, in milliseconds since 1970; none where that is not known (yet).
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Times {
    /// When it was accepted.
    pub began_unix_ms: Option<u64>,
    /// When it was over.
    pub ended_unix_ms: Option<u64>,
}

/// What is kept of a transfer; none once it is forgotten.
pub(crate) type Change = (TransferId, Option<(TransferSnapshot, Times)>);

/// What was in it.
pub(crate) struct Stored {
    pub(crate) next_transfer: TransferId,
    pub(crate) snapshots: Vec<TransferSnapshot>,
    pub(crate) times: BTreeMap<TransferId, Times>,
}

/// What ids mean: site names and the ends of links, in order.
pub(crate) fn fingerprint(topology: &Topology) -> Vec<u8> {
    let mut text = String::new();
    for site in topology.sites() {
        text.push_str(&format!("{:?} ", site.name));
    }
    for link in topology.links() {
        text.push_str(&format!("{}>{} ", link.from, link.to));
    }
    text.into_bytes()
}

impl Store {
    /// Opens or makes the store.
    pub(crate) fn open(path: &Path, topology: &Topology) -> Result<(Self, Stored), StoreError> {
        guarded(path, || Self::read(open_database(path, FORMAT)?, path, topology))
    }

    /// The same without a file, for what only talks to a controller.
    pub(crate) fn in_memory(topology: &Topology) -> Result<(Self, Stored), StoreError> {
        let path = Path::new("in memory");
        let database = Database::builder().create_with_backend(InMemoryBackend::new());
        Self::read(database.map_err(|e| unusable(path, &e))?, path, topology)
    }

    fn read(database: Database, path: &Path, topology: &Topology) -> Result<(Self, Stored), StoreError> {
        let unusable = |e: &dyn std::fmt::Display| unusable(path, e);
        let bad = |reason: String| StoreError::BadRecord { path: path.to_owned(), reason };
        let fingerprint = fingerprint(topology);
        let write = database.begin_write().map_err(|e| unusable(&e))?;
        {
            let mut meta = write.open_table(META).map_err(|e| unusable(&e))?;
            write.open_table(TRANSFERS).map_err(|e| unusable(&e))?;
            write.open_table(TIMES).map_err(|e| unusable(&e))?;
            let known = meta.get("topology").map_err(|e| unusable(&e))?.map(|v| v.value() == fingerprint);
            match known {
                None => drop(meta.insert("topology", fingerprint.as_slice()).map_err(|e| unusable(&e))?),
                Some(true) => {}
                Some(false) => return Err(StoreError::OtherTopology { path: path.to_owned() }),
            }
        }
        write.commit().map_err(|e| unusable(&e))?;
        let read = database.begin_read().map_err(|e| unusable(&e))?;
        let meta = read.open_table(META).map_err(|e| unusable(&e))?;
        let next = meta.get("next_transfer").map_err(|e| unusable(&e))?.map(|v| v.value().to_vec());
        let next_transfer = match next {
            None => 1,
            Some(bytes) => serde_json::from_slice(&bytes).map_err(|e| bad(format!("next_transfer: {e}")))?,
        };
        let table = read.open_table(TRANSFERS).map_err(|e| unusable(&e))?;
        let known = read.open_table(TIMES).map_err(|e| unusable(&e))?;
        let (mut snapshots, mut times) = (Vec::new(), BTreeMap::new());
        for entry in table.iter().map_err(|e| unusable(&e))? {
            let (id, bytes) = entry.map_err(|e| unusable(&e))?;
            let snapshot: TransferSnapshot = serde_json::from_slice(bytes.value())
                .map_err(|e| bad(format!("transfer {}: {e}", id.value())))?;
            let at = known.get(id.value()).map_err(|e| unusable(&e))?;
            let at = at.and_then(|bytes| serde_json::from_slice(bytes.value()).ok()).unwrap_or_default();
            times.insert(snapshot.id, at);
            snapshots.push(snapshot);
        }
        drop((meta, table, known, read));
        Ok((
            Self { database, path: path.to_owned() },
            Stored { next_transfer: TransferId(next_transfer), snapshots, times },
        ))
    }

    /// Makes changes durable, all or none: a snapshot, or the end of a transfer that was forgotten.
    pub(crate) fn save(&self, next_transfer: TransferId, changes: &[Change]) -> Result<(), StoreError> {
        guarded(&self.path, || self.try_save(next_transfer, changes).map_err(|e| unusable(&self.path, &e)))
    }

    fn try_save(
        &self,
        next_transfer: TransferId,
        changes: &[Change],
    ) -> Result<(), Box<dyn std::error::Error>> {
        let write = self.database.begin_write()?;
        {
            let mut meta = write.open_table(META)?;
            meta.insert("next_transfer", serde_json::to_vec(&next_transfer)?.as_slice())?;
            let (mut table, mut known) = (write.open_table(TRANSFERS)?, write.open_table(TIMES)?);
            for (id, kept) in changes {
                match kept {
                    Some((snapshot, times)) => {
                        table.insert(id.0, serde_json::to_vec(snapshot)?.as_slice())?;
                        known.insert(id.0, serde_json::to_vec(times)?.as_slice())?;
                    }
                    None => {
                        table.remove(id.0)?;
                        known.remove(id.0)?;
                    }
                }
            }
        }
        write.commit()?;
        Ok(())
    }
}
