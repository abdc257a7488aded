//! The last accepted decision, in redb: a broker that starts again knows it.
//!
//! Leaves out: all that networks say anew. Read [`Store`] first.

use crate::wire::DecisionView;
use anabranch_http::store::{StoreError, StoreFile};
use redb::{ReadableDatabase as _, TableDefinition};
use std::path::Path;

const DECISION: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("decision");
const FORMAT: &[u8] = b"broker 1";
const LAST: &str = "last";

/// An open store.
pub(crate) struct Store {
    file: StoreFile,
}

impl Store {
    /// Opens or makes it.
    pub(crate) fn open(path: &Path) -> Result<Self, StoreError> {
        Ok(Self { file: StoreFile::open(path, FORMAT)? })
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
