//! A store in one file (redb): opened for this user alone, refused where it is damaged or another's.
//!
//! redb verifies all checksums when it opens, and where it panics all the same, [`guarded`] makes an error of it. Leaves out:
//! what is in a record, which is each system's. Read [`open_database`] first.

use anabranch_net::private;
use redb::backends::FileBackend;
use redb::{Database, DatabaseError, ReadableTable as _, StorageError, TableDefinition};
use std::cell::Cell;
use std::fs::File;
use std::os::unix::fs::MetadataExt as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Once;

/// Facts about a store; `format` is the version of its records, which [`open_database`] writes.
pub const META: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("meta");

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
            Self::BadRecord { path, reason } => {
                write!(f, "store {}: {reason}: move the file away to start anew", path.display())
            }
        }
    }
}
impl std::error::Error for StoreError {}

/// That the store at `path` cannot be used.
pub fn unusable(path: &Path, error: &dyn std::fmt::Display) -> StoreError {
    StoreError::Unusable { path: path.to_owned(), reason: error.to_string() }
}

/// What `work` says, or that the store at `path` is damaged where it panics: redb does on some files that another program
/// wrote into. Nothing is printed then, whatever hook for panics there is.
///
/// Errors: those of `work`; a panic.
pub fn guarded<T>(path: &Path, work: impl FnOnce() -> Result<T, StoreError>) -> Result<T, StoreError> {
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
pub fn open_database(path: &Path, format: &[u8]) -> Result<Database, StoreError> {
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
