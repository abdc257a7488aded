//! The controller's durable state: one record per transfer, in redb.
//!
//! Every change is one transaction, synced before it is visible outside. Leaves out: a record's
//! contents (`replicate_proto::coordinator::TransferSnapshot`), and opening a file (`http::store`).
//! Read [`Store`] first.

use anabranch_graph::Topology;
use anabranch_http::store::{Failure, META, StoreError, StoreFile, unusable};
use anabranch_replicate_proto::control::TransferId;
use anabranch_replicate_proto::coordinator::TransferSnapshot;
use redb::{Database, ReadableDatabase as _, ReadableTable as _, TableDefinition};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

const TRANSFERS: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("transfers");
const TIMES: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("times");
/// Version of the records. A store of another version is refused.
const FORMAT: &[u8] = b"1";
const OTHER_TOPOLOGY: &str = "was written on another topology: start with that one, or with another store";

/// An open store.
pub(crate) struct Store {
    file: StoreFile,
}

/// Times at which a transfer was accepted and ended, in milliseconds since 1970; `None` if unknown.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TransferTimes {
    /// Time of acceptance.
    pub began_unix_ms: Option<u64>,
    /// Time of the end.
    pub ended_unix_ms: Option<u64>,
}

/// A transfer and its new record; `None` once the transfer is forgotten.
pub(crate) type Change = (TransferId, Option<(TransferSnapshot, TransferTimes)>);

pub(crate) struct StoreContents {
    pub(crate) next_transfer: TransferId,
    pub(crate) snapshots: Vec<TransferSnapshot>,
    pub(crate) times: BTreeMap<TransferId, TransferTimes>,
}

/// Names and link ends in order of ids, which give the ids their meaning.
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
    /// Opens or creates the store.
    pub(crate) fn open(path: &Path, topology: &Topology) -> Result<(Self, StoreContents), StoreError> {
        Self::read(StoreFile::open(path, FORMAT)?, topology)
    }

    /// Creates a store without a file, for exercises of requests.
    pub(crate) fn in_memory(topology: &Topology) -> Result<(Self, StoreContents), StoreError> {
        Self::read(StoreFile::in_memory(FORMAT)?, topology)
    }

    fn read(file: StoreFile, topology: &Topology) -> Result<(Self, StoreContents), StoreError> {
        let fingerprint = fingerprint(topology);
        let is_ours = file.run(|database| {
            let write = database.begin_write()?;
            let is_ours = {
                let mut meta = write.open_table(META)?;
                write.open_table(TRANSFERS)?;
                write.open_table(TIMES)?;
                let known = meta.get("topology")?.map(|v| v.value() == fingerprint);
                if known.is_none() {
                    meta.insert("topology", fingerprint.as_slice())?;
                }
                known.unwrap_or(true)
            };
            write.commit()?;
            Ok(is_ours)
        })?;
        if !is_ours {
            return Err(unusable(file.path(), &OTHER_TOPOLOGY));
        }
        let bad = |reason: String| StoreError::BadRecord { path: file.path().to_owned(), reason };
        let stored = file.run(read_all)?.map_err(bad)?;
        Ok((Self { file }, stored))
    }

    /// Writes changes in one transaction: a snapshot, or the removal of a forgotten transfer.
    pub(crate) fn save(&self, next_transfer: TransferId, changes: &[Change]) -> Result<(), StoreError> {
        self.file.run(|database| {
            let write = database.begin_write()?;
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
            Ok(write.commit()?)
        })
    }
}

/// Reads all records. The inner error is a record of unknown form.
fn read_all(database: &Database) -> Result<Result<StoreContents, String>, Failure> {
    let read = database.begin_read()?;
    let meta = read.open_table(META)?;
    let next_transfer = match meta.get("next_transfer")? {
        None => 1,
        Some(next) => match serde_json::from_slice(next.value()) {
            Ok(next) => next,
            Err(e) => return Ok(Err(format!("next_transfer: {e}"))),
        },
    };
    let (table, known) = (read.open_table(TRANSFERS)?, read.open_table(TIMES)?);
    let (mut snapshots, mut times) = (Vec::new(), BTreeMap::new());
    for entry in table.iter()? {
        let (id, bytes) = entry?;
        let snapshot: TransferSnapshot = match serde_json::from_slice(bytes.value()) {
            Ok(snapshot) => snapshot,
            Err(e) => return Ok(Err(format!("transfer {}: {e}", id.value()))),
        };
        let at = known.get(id.value())?;
        let at = at.and_then(|bytes| serde_json::from_slice(bytes.value()).ok()).unwrap_or_default();
        times.insert(snapshot.id, at);
        snapshots.push(snapshot);
    }
    Ok(Ok(StoreContents { next_transfer: TransferId(next_transfer), snapshots, times }))
}
