//! The event queue: events in order of time. Simultaneous events are in the order in which they
//! were armed.
//!
//! [`EventQueue`] is the interface, and [`QuadHeap`] the only implementation. Every implementation
//! must give the same order and therefore the same run.

use crate::target::Target;
use anabranch_units::RunInstant;

/// An expired timer.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Due time.
    pub at: RunInstant,
    /// The target that armed the timer.
    pub target: Target,
    /// A value that the target chose.
    pub token: u32,
}

/// A queue of events with a total order: by time, and among simultaneous events by the order of
/// arming.
pub trait EventQueue: Default {
    /// Adds an event.
    fn push(&mut self, event: Event);
    /// Removes and returns the first event if it is due at or before `limit`.
    fn pop_due(&mut self, limit: RunInstant) -> Option<Event>;
    /// Due time of the first event.
    fn next_at(&self) -> Option<RunInstant>;
    /// Number of waiting events.
    fn len(&self) -> usize;
    /// Returns true if no event is waiting.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[derive(Copy, Clone, Debug)]
struct Entry {
    at: RunInstant,
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

/// A heap with four children per node: half the depth of a binary heap, with siblings adjacent in
/// memory.
///
/// Nearly every event arms the next event of the same port. The slot of a removed event therefore
/// stays open until the next push, which then sifts once. Separate removal and insertion would sift
/// twice.
///
/// Cost: `push` and `pop_due` take O(log n).
#[derive(Debug, Default)]
pub struct QuadHeap {
    entries: Vec<Entry>,
    seq: u64,
    /// True if the first entry was removed and not replaced yet.
    is_open: bool,
}

const ARITY: usize = 4;

impl QuadHeap {
    /// Puts `entry`, which must not be in the heap, at the top and sifts it down.
    #[inline]
    fn sift_down(&mut self, entry: Entry) {
        let (entries, key) = (&mut self.entries[..], entry.key());
        let mut hole = 0;
        loop {
            let first = hole * ARITY + 1;
            let least = if let Some(children) = entries.get(first..first + ARITY) {
                // Compares two pairs independently, and then the two smaller entries.
                let a = usize::from(children[1].key() < children[0].key());
                let b = 2 + usize::from(children[3].key() < children[2].key());
                first + if children[b].key() < children[a].key() { b } else { a }
            } else {
                match (first..entries.len()).min_by_key(|&i| entries[i].key()) {
                    Some(least) => least,
                    None => break,
                }
            };
            if entries[least].key() >= key {
                break;
            }
            entries[hole] = entries[least];
            hole = least;
        }
        entries[hole] = entry;
    }

    /// Fills the open slot at the top with the last entry.
    #[inline]
    fn close(&mut self) {
        if std::mem::take(&mut self.is_open) {
            let last = self.entries.pop().expect("the open place is an entry");
            if !self.entries.is_empty() {
                self.sift_down(last);
            }
        }
    }
}

impl EventQueue for QuadHeap {
    #[inline]
    fn push(&mut self, event: Event) {
        self.seq += 1;
        let entry = Entry { at: event.at, seq: self.seq, target: event.target, token: event.token };
        if std::mem::take(&mut self.is_open) {
            return self.sift_down(entry);
        }
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
    fn pop_due(&mut self, limit: RunInstant) -> Option<Event> {
        self.close();
        let first = *self.entries.first()?;
        if first.at > limit {
            return None;
        }
        self.is_open = true;
        Some(Event { at: first.at, target: first.target, token: first.token })
    }

    #[inline]
    fn next_at(&self) -> Option<RunInstant> {
        let candidates = if self.is_open { self.entries.get(1..)? } else { &self.entries };
        candidates.iter().take(if self.is_open { ARITY } else { 1 }).map(|e| e.at).min()
    }

    fn len(&self) -> usize {
        self.entries.len() - usize::from(self.is_open)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// The plain counterpart is a sorted list.
        #[test]
        fn heap_orders_events_by_time_then_by_arming(
            steps in prop::collection::vec((0u64..50, prop::option::of(0u64..50)), 1..200),
        ) {
            let (mut heap, mut list) = (QuadHeap::default(), Vec::<Event>::new());
            for (i, (at, limit)) in steps.into_iter().enumerate() {
                let event = Event { at: RunInstant::from_ps(at), target: Target::element(0), token: i as u32 };
                heap.push(event);
                list.push(event);
                list.sort_by_key(|e| (e.at, e.token));
                if let Some(limit) = limit.map(RunInstant::from_ps) {
                    let expected = (list[0].at <= limit).then(|| list.remove(0));
                    prop_assert_eq!(heap.pop_due(limit), expected);
                }
                prop_assert_eq!(heap.next_at(), list.first().map(|e| e.at));
            }
            for event in list {
                prop_assert_eq!(heap.pop_due(RunInstant::MAX), Some(event));
            }
            prop_assert!(heap.is_empty());
        }
    }
}
