//! The event queue: what is to happen, in order of time, and of arming where times are equal.
//!
//! [`EventQueue`] is the contract, [`QuadHeap`] the one queue so far. Whatever the queue, the order is the same, hence
//! so is the run.

use anabranch_units::Instant;

use crate::Target;

/// A timer that went off.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// When it was due.
    pub at: Instant,
    /// Who armed it.
    pub target: Target,
    /// What the one who armed it wanted to be told.
    pub token: u32,
}

/// A queue of events with a total order: by time, then by order of arming.
pub trait EventQueue: Default {
    /// Adds an event.
    fn push(&mut self, event: Event);
    /// Removes the first event if it is due at or before `limit`.
    fn pop_due(&mut self, limit: Instant) -> Option<Event>;
    /// When the first event is due.
    fn next_at(&self) -> Option<Instant>;
    /// How many events wait.
    fn len(&self) -> usize;
    /// Whether none waits.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[derive(Copy, Clone, Debug)]
struct Entry {
    at: Instant,
    seq: u64,
    target: Target,
    token: u32,
}
const _: () = assert!(size_of::<Entry>() == 24);

impl Entry {
    #[inline]
    const fn key(&self) -> u128 {
        (self.at.as_ps() as u128) << 64 | self.seq as u128
    }
}

/// A heap with four children a node: half the depth of a binary one, siblings side by side in memory.
///
/// Cost: `push` and `pop_due` take O(log n).
#[derive(Debug, Default)]
pub struct QuadHeap {
    entries: Vec<Entry>,
    seq: u64,
}

const ARITY: usize = 4;

impl EventQueue for QuadHeap {
    #[inline]
    fn push(&mut self, event: Event) {
        self.seq += 1;
        let entry = Entry { at: event.at, seq: self.seq, target: event.target, token: event.token };
        let mut hole = self.entries.len();
        self.entries.push(entry);
        while hole > 0 {
            let parent = (hole - 1) / ARITY;
            if self.entries[parent].key() <= entry.key() {
                break;
            }
            self.entries[hole] = self.entries[parent];
            hole = parent;
        }
        self.entries[hole] = entry;
    }

    #[inline]
    fn pop_due(&mut self, limit: Instant) -> Option<Event> {
        let first = *self.entries.first()?;
        if first.at > limit {
            return None;
        }
        let last = self.entries.pop().expect("there is a first entry");
        let len = self.entries.len();
        let mut hole = 0;
        while hole * ARITY + 1 < len {
            let children = hole * ARITY + 1..(hole * ARITY + 1 + ARITY).min(len);
            let least = children.min_by_key(|&i| self.entries[i].key()).expect("the hole has a child");
            if self.entries[least].key() >= last.key() {
                break;
            }
            self.entries[hole] = self.entries[least];
            hole = least;
        }
        if len > 0 {
            self.entries[hole] = last;
        }
        Some(Event { at: first.at, target: first.target, token: first.token })
    }

    #[inline]
    fn next_at(&self) -> Option<Instant> {
        self.entries.first().map(|e| e.at)
    }

    fn len(&self) -> usize {
        self.entries.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// The plain twin is a sorted list.
        #[test]
        fn heap_gives_events_in_order_of_time_then_of_arming(
            steps in prop::collection::vec((0u64..50, prop::option::of(0u64..50)), 1..200),
        ) {
            let (mut heap, mut list) = (QuadHeap::default(), Vec::<Event>::new());
            for (i, (at, limit)) in steps.into_iter().enumerate() {
                let event = Event { at: Instant::from_ps(at), target: Target::element(0), token: i as u32 };
                heap.push(event);
                list.push(event);
                list.sort_by_key(|e| (e.at, e.token));
                if let Some(limit) = limit.map(Instant::from_ps) {
                    let expected = (list[0].at <= limit).then(|| list.remove(0));
                    prop_assert_eq!(heap.pop_due(limit), expected);
                }
                prop_assert_eq!(heap.next_at(), list.first().map(|e| e.at));
            }
            for event in list {
                prop_assert_eq!(heap.pop_due(Instant::MAX), Some(event));
            }
            prop_assert!(heap.is_empty());
        }
    }
}
