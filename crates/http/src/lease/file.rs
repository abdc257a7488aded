//! A store in one file, for a controller that shares its decisions with no other controller.
//!
//! The controller always leads. Leaves out: the file itself (`store`). Read [`FileStore`].

use super::{LeaseError, SharedStore, StoredValue};
use crate::store::{StoreError, StoreFile};
use anabranch_election::{Stamp, StoreReply, StoreRequest};
use redb::{ReadableDatabase as _, TableDefinition};
use std::marker::PhantomData;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const DECISION: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("decision");
const LAST: &str = "last";
/// Epoch of the file's only lead.
const EPOCH: u64 = 1;

/// A value of type `V` in a file.
pub struct FileStore<V> {
    file: StoreFile,
    value: PhantomData<fn() -> V>,
}

impl<V: StoredValue> FileStore<V> {
    /// Opens the file, or creates it.
    ///
    /// Errors: a file that cannot be used, or whose value has another format.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        Ok(Self { file: StoreFile::open(path, V::FORMAT.as_bytes())?, value: PhantomData })
    }

    /// Creates a store in memory, for tests, which ends on drop.
    ///
    /// Errors: none are known.
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
            // Opening the table for writing creates it, so that the read below finds it.
            let write = database.begin_write()?;
            write.open_table(DECISION)?;
            write.commit()?;
            let table = database.begin_read()?.open_table(DECISION)?;
            let found = table.get(LAST)?.map(|value| serde_json::from_slice(value.value()));
            Ok(found.transpose()?)
        })
    }
}

/// Stamp of a file's value. The round of the value stands for the revisions of store and value.
fn stamp<V: StoredValue>(last: Option<&V>) -> Stamp {
    last.map_or(Stamp::default(), |last| Stamp { revision: last.round(), epoch: EPOCH, round: last.round() })
}

impl<V: StoredValue> SharedStore<V> for FileStore<V> {
    fn lease(&self) -> Option<Duration> {
        None
    }

    fn answer(&self, ask: &StoreRequest<V>) -> Result<StoreReply<V>, LeaseError> {
        Ok(match ask {
            StoreRequest::Lead => {
                let last = stamp(self.last()?.as_ref());
                StoreReply::Leads { epoch: EPOCH, revision: last.revision, last }
            }
            StoreRequest::Renew { .. } => {
                let last = stamp(self.last()?.as_ref());
                StoreReply::Renewed { revision: last.revision, last }
            }
            StoreRequest::Keep { decision, .. } => {
                self.keep(decision)?;
                StoreReply::Kept { revision: decision.round() }
            }
            StoreRequest::Read => {
                let value = self.last()?;
                StoreReply::Last { last: stamp(value.as_ref()), decision: value.map(Arc::new) }
            }
        })
    }

    fn leave(&self) -> Result<(), LeaseError> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_election::{Event, Machine, Replica, RoleChange};
    use anabranch_units::{Duration as Span, Instant};
    use serde::{Deserialize, Serialize};

    const LEASE: Span = Span::from_secs(9);
    const EVERY: Span = Span::from_secs(2);

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Count(u64);

    impl StoredValue for Count {
        const FORMAT: &'static str = "count 1";
        fn round(&self) -> u64 {
            self.0
        }
    }

    /// A machine that makes a decision in each round.
    struct Counter {
        next_at: Instant,
        round: u64,
        event: Option<Event<Count, ()>>,
    }

    impl Machine for Counter {
        type Settings = ();
        type Value = Count;
        type Message = ();
        type Void = ();
        type Job = ();
        type Answer = ();

        fn begin(now: Instant, (): &(), rounds_after: u64, last: Option<&Count>) -> Self {
            let round = last.map_or(rounds_after, |last| last.0.max(rounds_after));
            Self { next_at: now + EVERY, round, event: None }
        }
        fn round(value: &Count) -> u64 {
            value.0
        }
        fn round_time((): &()) -> Span {
            EVERY
        }
        fn handle_answer(&mut self, _: Instant, (): &(), (): ()) {}
        fn handle_timeout(&mut self, now: Instant) {
            self.round += 1;
            self.next_at = now + EVERY;
            self.event = Some(Event::Accepted(Arc::new(Count(self.round))));
        }
        fn poll_transmit(&mut self) -> Option<()> {
            None
        }
        fn poll_event(&mut self) -> Option<Event<Count, ()>> {
            self.event.take()
        }
        fn poll_job(&mut self) -> Option<()> {
            None
        }
        fn poll_timeout(&self) -> Option<Instant> {
            Some(self.next_at)
        }
    }

    #[test]
    fn single_controller_with_file_store_keeps_the_lead() {
        let store = FileStore::<Count>::in_memory().expect("memory");
        let mut replica = Replica::<Counter>::new(Instant::ZERO, (), LEASE, 0);
        let (mut now, mut decisions) = (Instant::ZERO, 0);
        while now < Instant::ZERO + LEASE * 20 {
            while let Some((number, ask)) = replica.poll_ask(now) {
                let told = store.answer(&ask).expect("memory");
                replica.handle_told(now, number, Some(told));
            }
            while let Some(turn) = replica.poll_turn() {
                assert!(!matches!(turn, RoleChange::Ended | RoleChange::News(_)), "{turn:?} at {now:?}");
                decisions += u64::from(matches!(turn, RoleChange::Accepted(_)));
            }
            now = replica.poll_timeout().expect("a renewal is due").max(now);
            replica.handle_timeout(now);
        }
        assert!(decisions >= 80, "{decisions} decisions in {now:?}");
    }
}
