//! A store in one file, for a controller that is alone.
//!
//! Its user always leads. Leaves out: the file itself (`store`). Read [`FileStore`].

use super::{LeaseError, SharedStore, Stored};
use crate::store::{StoreError, StoreFile};
use anabranch_election::{Stamp, StoreAsk, StoreTold};
use redb::{ReadableDatabase as _, TableDefinition};
use std::marker::PhantomData;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const DECISION: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("decision");
const LAST: &str = "last";
/// Number of the only lead that a file knows.
const EPOCH: u64 = 1;
/// Revision of a file as a whole: no other program replaces it while it is open.
const REVISION: u64 = 0;

/// A value of type `V` in a file.
pub struct FileStore<V> {
    file: StoreFile,
    value: PhantomData<fn() -> V>,
}

impl<V: Stored> FileStore<V> {
    /// Opens the file, or makes it.
    ///
    /// Errors: a file that cannot be used, or that has another form of value.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        Ok(Self { file: StoreFile::open(path, V::FORMAT.as_bytes())?, value: PhantomData })
    }

    /// A store in memory, for tests: it ends when it is dropped.
    ///
    /// Errors: none that are known.
    pub fn in_memory() -> Result<Self, StoreError> {
        Ok(Self { file: StoreFile::in_memory(V::FORMAT.as_bytes())?, value: PhantomData })
    }

    fn keep(&self, value: &V) -> Result<(), StoreError> {
        self.file.run(|database| {
            let write = database.begin_write()?;
            write.open_table(DECISION)?.insert(LAST, serde_json::to_vec(value)?.as_slice())?;
            Ok(write.commit()?)
        })
    }

    fn last(&self) -> Result<Option<V>, StoreError> {
        self.file.run(|database| {
            // A missing table holds nothing.
            let write = database.begin_write()?;
            write.open_table(DECISION)?;
            write.commit()?;
            let table = database.begin_read()?.open_table(DECISION)?;
            let found = table.get(LAST)?.map(|value| serde_json::from_slice(value.value()));
            Ok(found.transpose()?)
        })
    }
}

/// Stamp of a file's value; the round stands in for the revision.
fn stamp<V: Stored>(last: Option<&V>) -> Stamp {
    last.map_or(Stamp::default(), |last| Stamp { revision: last.round(), epoch: EPOCH, round: last.round() })
}

impl<V: Stored> SharedStore<V> for FileStore<V> {
    fn lease(&self) -> Option<Duration> {
        None
    }

    fn answer(&self, ask: &StoreAsk<V>) -> Result<StoreTold<V>, LeaseError> {
        let (epoch, revision) = (EPOCH, REVISION);
        Ok(match ask {
            StoreAsk::Lead => StoreTold::Leads { epoch, revision, last: stamp(self.last()?.as_ref()) },
            StoreAsk::Renew { .. } => StoreTold::Renewed { revision, last: stamp(self.last()?.as_ref()) },
            StoreAsk::Keep { decision, .. } => {
                self.keep(decision)?;
                StoreTold::Kept { revision: decision.round() }
            }
            StoreAsk::Read => {
                let value = self.last()?;
                StoreTold::Last { last: stamp(value.as_ref()), decision: value.map(Arc::new) }
            }
        })
    }

    fn leave(&self) -> Result<(), LeaseError> {
        Ok(())
    }
}
