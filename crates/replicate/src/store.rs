//! The controller's durable state: one record per transfer, in redb.
//!
//! Every change is one transaction, synced before anybody outside hears of it. Leaves out: what is in a record
//! (`replicate_proto::coordinator::TransferSnapshot`), and how a file is opened (`http::store`). Read [`Store`] first.

use anabranch_graph::Topology;
use anabranch_http::store::{META, StoreError, guarded, open_database, unusable};
use anabranch_replicate_proto::control::TransferId;
use anabranch_replicate_proto::coordinator::TransferSnapshot;
use redb::backends::InMemoryBackend;
use redb::{Database, ReadableDatabase as _, ReadableTable as _, TableDefinition};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

const TRANSFERS: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("transfers");
const TIMES: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("times");
/// Version of the records; another one is refused, not guessed at.
const FORMAT: &[u8] = b"1";
const OTHER_TOPOLOGY: &str = "was written on another topology: start with that one, or with another store";

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
                Some(false) => return Err(unusable(&OTHER_TOPOLOGY)),
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
