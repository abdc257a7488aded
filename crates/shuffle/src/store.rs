//! Store of ended coflows, in redb: the last [`HISTORY_MAX`].
//!
//! Leaves out: all state that agents report again after a restart. Read [`History`] first.
#![allow(clippy::disallowed_methods, reason = "a driver: its test makes files")]

use crate::wire::EndedCoflowView;
use anabranch_http::store::{StoreError, StoreFile};
use redb::{ReadableDatabase as _, ReadableTable as _, ReadableTableMetadata as _, TableDefinition};
use std::path::Path;

const ENDED: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("ended");
const FORMAT: &[u8] = b"shuffle 1";
/// Maximum number of coflows stored; above it the oldest are dropped.
pub(crate) const HISTORY_MAX: u64 = 10_000;

/// An open store.
pub(crate) struct History {
    file: StoreFile,
}

impl History {
    /// Opens or creates the store.
    pub(crate) fn open(path: &Path) -> Result<Self, StoreError> {
        let history = Self { file: StoreFile::open(path, FORMAT)? };
        history.add(&[])?;
        Ok(history)
    }

    /// Adds coflows, oldest first, in one transaction.
    pub(crate) fn add(&self, ended: &[EndedCoflowView]) -> Result<(), StoreError> {
        self.file.run(|database| {
            let write = database.begin_write()?;
            {
                let mut table = write.open_table(ENDED)?;
                let next = table.last()?.map_or(0, |(number, _)| number.value() + 1);
                for (number, coflow) in (next..).zip(ended) {
                    table.insert(number, serde_json::to_vec(coflow)?.as_slice())?;
                }
                while table.len()? > HISTORY_MAX {
                    table.pop_first()?;
                }
            }
            Ok(write.commit()?)
        })
    }

    /// Returns the last `count` coflows, newest first.
    pub(crate) fn last(&self, count: usize) -> Result<Vec<EndedCoflowView>, StoreError> {
        self.file.run(|database| {
            let table = database.begin_read()?.open_table(ENDED)?;
            let mut ended = Vec::new();
            for entry in table.iter()?.rev().take(count) {
                ended.push(serde_json::from_slice(entry?.1.value())?);
            }
            Ok(ended)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(number: u64) -> EndedCoflowView {
        EndedCoflowView {
            name: number.to_string(),
            began_unix_ms: number,
            ended_unix_ms: number,
            flows: 1,
            moved_bytes: 9,
        }
    }

    #[test]
    fn records_of_earlier_versions_are_read() {
        let stored = r#"{"name":"7","began_unix_ms":7,"ended_unix_ms":7,"flows":1,"bytes":9}"#;
        assert_eq!(serde_json::from_str::<EndedCoflowView>(stored).expect("as it was written"), ended(7));
    }

    #[test]
    fn last_coflows_survive_a_restart_oldest_are_dropped() {
        let path = std::env::temp_dir().join(format!("anabranch-shuffle-store-{}.redb", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let many: Vec<_> = (0..HISTORY_MAX + 3).map(ended).collect();
        History::open(&path).expect("a new file").add(&many).expect("room");
        let history = History::open(&path).expect("it was closed");
        let Err(second) = History::open(&path) else { panic!("one at a time") };
        let in_use = format!("is in use by process {}: end that one", std::process::id());
        assert!(second.to_string().contains(&in_use), "{second}");
        assert_eq!(history.last(2).expect("it reads"), [ended(HISTORY_MAX + 2), ended(HISTORY_MAX + 1)]);
        let all = history.last(usize::MAX).expect("it reads");
        assert_eq!((all.len() as u64, all.last()), (HISTORY_MAX, Some(&ended(3))));
        let _ = std::fs::remove_file(&path);
    }
}
