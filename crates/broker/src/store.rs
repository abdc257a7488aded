//! Where the last accepted decision is kept: in a file of this broker's own (redb), or in etcd with others. A broker that starts again knows it.
//!
//! Leaves out: all that networks say anew; what is asked of etcd (`etcd`). Read [`Keeper`] first.

use crate::asked::{Asked, Told};
use crate::etcd::{Etcd, EtcdConfig};
use crate::mistake::Mistake;
use crate::wire::DecisionView;
use anabranch_broker_proto::replica::Stamp;
use anabranch_http::store::{StoreError, StoreFile};
use redb::{ReadableDatabase as _, TableDefinition};
use std::path::Path;
use std::time::Duration;

const DECISION: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("decision");
const FORMAT: &[u8] = b"broker 1";
const LAST: &str = "last";

/// Epoch of the only lead that a file knows.
pub(crate) const EPOCH: u64 = 1;
/// Revision of a file as a whole: nobody replaces it while it is open.
pub(crate) const REVISION: u64 = 0;

/// The stamp of a file's decision: its round stands for the revision.
pub(crate) fn stamp(last: Option<&DecisionView>) -> Stamp {
    last.map_or(Stamp::default(), |last| Stamp { revision: last.round, epoch: EPOCH, round: last.round })
}

/// The store of a broker.
pub(crate) enum Keeper {
    /// Its own: it always leads.
    File(Store),
    /// One that it shares.
    Etcd(Etcd),
}

impl Keeper {
    pub(crate) fn etcd(config: EtcdConfig) -> Result<Self, Mistake> {
        Etcd::new(config).map(Self::Etcd)
    }

    /// How long a lead lasts; none where nobody else could have it.
    pub(crate) const fn lease(&self) -> Option<Duration> {
        match self {
            Self::File(_) => None,
            Self::Etcd(etcd) => Some(etcd.lease()),
        }
    }

    /// Asks, and waits for the answer.
    ///
    /// Errors: in a line; what was asked may have been done.
    pub(crate) fn answer(&self, asked: &Asked) -> Result<Told, String> {
        let store = match self {
            Self::File(store) => store,
            Self::Etcd(etcd) => return etcd.answer(asked),
        };
        let last = || store.last().map_err(|error| error.to_string());
        let (epoch, revision) = (EPOCH, REVISION);
        Ok(match asked {
            Asked::Lead => Told::Leads { epoch, revision, last: stamp(last()?.as_ref()) },
            Asked::Renew { .. } => Told::Renewed { revision, last: stamp(last()?.as_ref()) },
            Asked::Keep { view, .. } => {
                store.keep(view).map_err(|error| error.to_string())?;
                Told::Kept { revision: view.round }
            }
            Asked::Read => {
                let view = last()?;
                Told::Last { last: stamp(view.as_ref()), view }
            }
        })
    }

    /// Gives the lead back.
    pub(crate) fn leave(&self) -> Result<(), String> {
        match self {
            Self::File(_) => Ok(()),
            Self::Etcd(etcd) => etcd.leave(),
        }
    }
}

/// An open file.
pub(crate) struct Store {
    file: StoreFile,
}

impl Store {
    /// Opens or makes it.
    pub(crate) fn open(path: &Path) -> Result<Self, StoreError> {
        Ok(Self { file: StoreFile::open(path, FORMAT)? })
    }

    /// One that is gone when it is dropped.
    pub(crate) fn in_memory() -> Result<Self, StoreError> {
        Ok(Self { file: StoreFile::in_memory(FORMAT)? })
    }

    /// Keeps a decision in place of the one before.
    pub(crate) fn keep(&self, decision: &DecisionView) -> Result<(), StoreError> {
        self.file.run(|database| {
            let write = database.begin_write()?;
            write.open_table(DECISION)?.insert(LAST, serde_json::to_vec(decision)?.as_slice())?;
            Ok(write.commit()?)
        })
    }

    /// The last one that was kept.
    pub(crate) fn last(&self) -> Result<Option<DecisionView>, StoreError> {
        self.file.run(|database| {
            // A table that is not there yet holds nothing.
            let write = database.begin_write()?;
            write.open_table(DECISION)?;
            write.commit()?;
            let table = database.begin_read()?.open_table(DECISION)?;
            let found = table.get(LAST)?.map(|value| serde_json::from_slice(value.value()));
            Ok(found.transpose()?)
        })
    }
}
