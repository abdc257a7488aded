//! A store in one file (redb). The file is accessible to this user only, and is refused if it is
//! damaged or has another user's or system's records.
//!
//! redb verifies all checksums when it opens a file. A panic of redb is converted to an error.
//! Leaves out: the contents of records, which each system defines. Read [`StoreFile`] first.

use anabranch_net::private;
use redb::backends::{FileBackend, InMemoryBackend};
use redb::{Database, DatabaseError, ReadableTable as _, StorageError, TableDefinition};
use std::cell::Cell;
use std::fs::File;
use std::os::unix::fs::MetadataExt as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, Once, PoisonError};

/// Table of facts about a store; `format` is the version of its records, which [`StoreFile::open`]
/// writes.
pub const META: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("meta");

/// Reason why the store is unusable.
#[derive(Debug)]
#[non_exhaustive]
pub enum StoreError {
    /// The file cannot be opened, read or written.
    Unusable {
        /// The file.
        path: PathBuf,
        /// Error of the system or of the check of the file.
        reason: String,
    },
    /// A record cannot be understood.
    BadRecord {
        /// The file.
        path: PathBuf,
        /// File and reason.
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

/// Returns the error that the store at `path` is unusable, for the reason `error`.
pub fn unusable(path: &Path, error: &dyn std::fmt::Display) -> StoreError {
    StoreError::Unusable { path: path.to_owned(), reason: error.to_string() }
}

/// Runs `work`, and returns its result, or a damage error for the store at `path` if it panics.
/// redb panics on some files that another program has modified. The panic prints no message,
/// whatever the panic hook.
///
/// Errors: errors of `work`; a panic.
fn guarded<T>(path: &Path, work: impl FnOnce() -> Result<T, StoreError>) -> Result<T, StoreError> {
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
    // On an error the caller stops using the state that `work` has used.
    let result = catch_unwind(AssertUnwindSafe(work));
    IS_GUARDED.set(was);
    result.unwrap_or_else(|_| Err(damaged(path, "it contradicts itself")))
}

/// Returns the error that a file is damaged, with the remedy.
fn damaged(path: &Path, what: &str) -> StoreError {
    let reason = format!("damaged: {what}: move it away to start anew, or bring back a copy");
    StoreError::Unusable { path: path.to_owned(), reason }
}

/// Describes that another process has the file open, with its process id if the kernel reports it.
fn in_use(path: &Path) -> String {
    let inode = std::fs::metadata(path).map(|found| found.ino()).ok();
    let locks = std::fs::read_to_string("/proc/locks").unwrap_or_default();
    let who = match inode.and_then(|inode| holder(&locks, inode)) {
        Some(pid) => format!("process {pid}"),
        None => "another process".to_owned(),
    };
    format!("is in use by {who}: end that one, or name another store")
}

/// Finds the process that holds the file with this inode, in lines of `/proc/locks`
/// (proc_locks(5)).
fn holder(locks: &str, inode: u64) -> Option<u32> {
    locks.lines().find_map(|line| {
        let mut words = line.split_whitespace().skip(4);
        let (pid, file) = (words.next()?, words.next()?);
        (file.rsplit(':').next()?.parse() == Ok(inode)).then(|| pid.parse().ok())?
    })
}

/// Any error of a store.
pub type Failure = Box<dyn std::error::Error>;

/// An open store, which survives a full disk.
///
/// After a failed read or write, redb refuses all operations until the file is opened again. So the
/// next call opens the same file again, even if another file has its name by then.
pub struct StoreFile {
    path: PathBuf,
    format: &'static [u8],
    /// The open file; `None` for a store in memory.
    file: Option<File>,
    /// The open database; `None` after an error.
    database: Mutex<Option<Database>>,
}

impl StoreFile {
    /// Opens or creates a store whose records have this format, accessible to this user only.
    ///
    /// Errors: a file that cannot be used ([`private::open`]), that is damaged, or whose records
    /// have another format.
    pub fn open(path: &Path, format: &'static [u8]) -> Result<Self, StoreError> {
        let options = private::open(path, File::options().read(true).write(true));
        let file = options.map_err(|e| unusable(path, &e))?;
        let new = Self { path: path.to_owned(), format, file: Some(file), database: Mutex::new(None) };
        new.run(|_| Ok(()))?;
        Ok(new)
    }

    /// Creates a store in memory, which ends with the process, or with the first error.
    ///
    /// Errors: none are known.
    pub fn in_memory(format: &'static [u8]) -> Result<Self, StoreError> {
        let new = Self { path: "in memory".into(), format, file: None, database: Mutex::new(None) };
        new.run(|_| Ok(()))?;
        Ok(new)
    }

    /// Path of the store.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Runs `work` on the database, to read or write. Calls run one at a time.
    ///
    /// Errors: errors of `work`, which then leaves no change in the store; a file that cannot be
    /// reopened.
    pub fn run<T>(&self, work: impl FnOnce(&Database) -> Result<T, Failure>) -> Result<T, StoreError> {
        let mut database = self.database.lock().unwrap_or_else(PoisonError::into_inner);
        guarded(&self.path, || {
            let open = match database.take() {
                Some(open) => open,
                None => self.open_again()?,
            };
            let result = work(&open).map_err(|error| unusable(&self.path, &error))?;
            *database = Some(open);
            Ok(result)
        })
    }

    fn open_again(&self) -> Result<Database, StoreError> {
        let unusable = |e: &dyn std::fmt::Display| unusable(&self.path, e);
        let mut builder = Database::builder();
        // The check reads the whole file, which has at most some MB.
        builder.set_check_integrity_on_open(true);
        let database = match &self.file {
            Some(file) => {
                let file = file.try_clone().map_err(|e| unusable(&e))?;
                builder.create_with_backend(FileBackend::new(file).map_err(|e| unusable(&e))?)
            }
            None => builder.create_with_backend(InMemoryBackend::new()),
        };
        let database = database.map_err(|e| match e {
            DatabaseError::Storage(StorageError::Corrupted(what)) => {
                let what = what.split_whitespace().collect::<Vec<_>>().join(" ");
                damaged(&self.path, what.trim_end_matches('.'))
            }
            DatabaseError::DatabaseAlreadyOpen => unusable(&in_use(&self.path)),
            other => unusable(&other),
        })?;
        let found = self.format_of(&database).map_err(|e| unusable(&e))?;
        if let Some(other) = found.filter(|found| found != self.format) {
            let reason = format!("format {:?} is not known", String::from_utf8_lossy(&other));
            return Err(StoreError::BadRecord { path: self.path.clone(), reason });
        }
        Ok(database)
    }

    /// Returns the recorded format. In a new store, records the format and returns `None`.
    fn format_of(&self, database: &Database) -> Result<Option<Vec<u8>>, Failure> {
        let write = database.begin_write()?;
        let found = {
            let mut meta = write.open_table(META)?;
            let found = meta.get("format")?.map(|v| v.value().to_vec());
            if found.is_none() {
                meta.insert("format", self.format)?;
            }
            found
        };
        write.commit()?;
        Ok(found)
    }
}
