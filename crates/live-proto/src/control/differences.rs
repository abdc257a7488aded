//! Tables that a sender transmits as differences, and completely after a loss or on request.
//!
//! Each message has a number. A receiver applies the difference that follows the last number, and
//! requests the whole table if a message is missing. Source: "every period" of §4.4.2; the thesis
//! does not state the contents of a message. Read [`DeltaSender`] and [`DeltaReceiver`] first.

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// A message: a change of a table, or the whole table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delta<K, V> {
    /// Incarnation number of the sender. A later incarnation has a higher number.
    pub numbering: u64,
    /// Number of the message within the incarnation, starting at 1.
    pub number: u64,
    /// Whether `set` holds the whole table.
    pub is_full: bool,
    /// New and changed entries.
    pub set: Vec<(K, V)>,
    /// Keys whose entries are removed.
    pub removed: Vec<K>,
}

/// Result of applying a message to a table.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum ApplyResult {
    /// The table now equals the sender's.
    Yes,
    /// The message is older than the table and was ignored.
    Old,
    /// Earlier messages are missing. The sender must send the whole table.
    Gap,
    /// The message exceeds the table's limit and was ignored.
    TooMany,
}

/// The sender's side of a table.
#[derive(Clone, Debug)]
pub struct DeltaSender<K, V> {
    numbering: u64,
    number: u64,
    sent: BTreeMap<K, V>,
}

impl<K: Copy + Ord, V: Copy + PartialEq> DeltaSender<K, V> {
    /// Creates an empty table. `numbering` must exceed the numbers of all earlier incarnations of
    /// the sender.
    pub const fn new(numbering: u64) -> Self {
        Self { numbering, number: 0, sent: BTreeMap::new() }
    }

    /// The message that changes the table into `present`. A changed value is sent only if
    /// `is_news(sent, present)`.
    pub fn advance(&mut self, present: BTreeMap<K, V>, is_news: impl Fn(&V, &V) -> bool) -> Delta<K, V> {
        let removed: Vec<K> = self.sent.keys().copied().filter(|key| !present.contains_key(key)).collect();
        removed.iter().for_each(|key| {
            self.sent.remove(key);
        });
        let is_new = |key: &K, value: &V| self.sent.get(key).is_none_or(|sent| is_news(sent, value));
        let set: Vec<(K, V)> = present.into_iter().filter(|(key, value)| is_new(key, value)).collect();
        self.sent.extend(set.iter().copied());
        self.number += 1;
        Delta { numbering: self.numbering, number: self.number, is_full: self.number == 1, set, removed }
    }

    /// The whole table as last sent, for a receiver that requests it; `None` before the first
    /// message.
    pub fn whole(&self) -> Option<Delta<K, V>> {
        let set = self.sent.iter().map(|(key, value)| (*key, *value)).collect();
        let (numbering, number) = (self.numbering, self.number);
        (number > 0).then_some(Delta { numbering, number, is_full: true, set, removed: Vec::new() })
    }
}

/// The receiver's side of a table.
#[derive(Clone, Debug)]
pub struct DeltaReceiver<K, V> {
    numbering: u64,
    number: u64,
    entries_max: usize,
    table: BTreeMap<K, V>,
}

impl<K: Copy + Ord, V: Copy> DeltaReceiver<K, V> {
    /// Creates an empty table with room for `entries_max` entries.
    pub const fn new(entries_max: usize) -> Self {
        Self { numbering: 0, number: 0, entries_max, table: BTreeMap::new() }
    }

    /// The table as last received.
    pub const fn table(&self) -> &BTreeMap<K, V> {
        &self.table
    }

    /// Empties the table. Only a whole table is accepted next.
    pub fn clear(&mut self) {
        (self.number, self.table) = (0, BTreeMap::new());
    }

    /// Applies a message.
    pub fn handle(&mut self, delta: Delta<K, V>) -> ApplyResult {
        let position = (delta.numbering, delta.number);
        if position <= (self.numbering, self.number) {
            return ApplyResult::Old;
        }
        if !delta.is_full {
            let is_synced = self.number > 0 && delta.numbering == self.numbering;
            let follows = is_synced && delta.number.checked_sub(1) == Some(self.number);
            if !follows {
                return ApplyResult::Gap;
            }
        }
        let new = delta.set.iter().filter(|(key, _)| delta.is_full || !self.table.contains_key(key)).count();
        let removed: BTreeSet<&K> = delta.removed.iter().filter(|key| self.table.contains_key(key)).collect();
        let old = if delta.is_full { 0 } else { self.table.len() - removed.len() };
        if old + new > self.entries_max {
            return ApplyResult::TooMany;
        }
        if delta.is_full {
            self.table.clear();
        }
        delta.removed.iter().for_each(|key| {
            self.table.remove(key);
        });
        self.table.extend(delta.set);
        (self.numbering, self.number) = position;
        ApplyResult::Yes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    type Tables = Vec<BTreeMap<u8, u8>>;

    fn tables() -> impl Strategy<Value = Tables> {
        prop::collection::vec(prop::collection::btree_map(0..8u8, 0..3u8, 0..6), 1..12)
    }

    proptest! {
        #[test]
        fn receiver_recovers_the_table_after_any_losses(
            tables in tables(), losses in prop::collection::vec(any::<bool>(), 12),
        ) {
            let (mut sender, mut receiver) = (DeltaSender::new(1), DeltaReceiver::new(8));
            for (table, is_lost) in tables.into_iter().zip(losses) {
                let delta = sender.advance(table.clone(), |old, new| old != new);
                if is_lost {
                    continue;
                }
                if receiver.handle(delta) == ApplyResult::Gap {
                    let whole = sender.whole().expect("a message was sent");
                    prop_assert_eq!(receiver.handle(whole), ApplyResult::Yes);
                }
                prop_assert_eq!(receiver.table(), &table);
            }
        }
    }

    #[test]
    fn message_of_an_earlier_life_is_ignored() {
        let (mut earlier, mut later) = (DeltaSender::new(1), DeltaSender::new(2));
        let mut receiver = DeltaReceiver::new(4);
        let old = earlier.advance([(1, 1)].into(), |_, _| true);
        assert_eq!(receiver.handle(later.advance([(2, 2)].into(), |_, _| true)), ApplyResult::Yes);
        assert_eq!(receiver.handle(old), ApplyResult::Old);
        assert_eq!(receiver.table(), &[(2, 2)].into());
    }

    #[test]
    fn table_accepts_entries_up_to_its_limit() {
        let mut sender = DeltaSender::new(1);
        let mut receiver = DeltaReceiver::new(2);
        let table = |entries: u8| (0..entries).map(|key| (key, 0)).collect::<BTreeMap<_, _>>();
        assert_eq!(receiver.handle(sender.advance(table(2), |_, _| true)), ApplyResult::Yes);
        assert_eq!(receiver.handle(sender.advance(table(3), |_, _| true)), ApplyResult::TooMany);
        assert_eq!(receiver.table(), &table(2));
        let swap = |removed: u8| Delta {
            numbering: 1,
            number: 2,
            is_full: false,
            set: vec![(9, 0)],
            removed: vec![removed],
        };
        assert_eq!(receiver.handle(swap(7)), ApplyResult::TooMany, "key 7 has no entry");
        assert_eq!(receiver.handle(swap(1)), ApplyResult::Yes);
    }
}
