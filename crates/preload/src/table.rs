//! Bytes sent on each descriptor, and the decision when to announce.
//!
//! Only atomics are used, so threads and signal handlers may interleave at any time. They may shift
//! the time of an announcement, but never change the data sent. Leaves out: system calls. Read
//! [`Table`].

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};

/// Number of descriptors in the table; descriptors from this number on are ignored.
pub const FDS_MAX: usize = 16_384;
/// Size below which a flow is not announced: it has no limit (Flow Chasing, section 4.4).
pub const MICE_BELOW_BYTES: u64 = 50_000;

const UNKNOWN: u8 = 0;
const OTHER: u8 = 1;
const TCP: u8 = 2;

/// State of each descriptor.
pub struct Table([Entry; FDS_MAX]);

struct Entry {
    kind: AtomicU8,
    sent_bytes: AtomicU64,
    /// Total bytes at which the next announcement is due; 0 before the first announcement.
    next_bytes: AtomicU64,
}

impl Default for Table {
    fn default() -> Self {
        Self::new()
    }
}

impl Table {
    /// Creates an empty table.
    pub const fn new() -> Self {
        Self(
            [const {
                Entry {
                    kind: AtomicU8::new(UNKNOWN),
                    sent_bytes: AtomicU64::new(0),
                    next_bytes: AtomicU64::new(0),
                }
            }; FDS_MAX],
        )
    }

    fn entry(&self, fd: i32) -> Option<&Entry> {
        self.0.get(usize::try_from(fd).ok()?)
    }

    /// Resets a descriptor that now refers to another file.
    pub fn forget(&self, fd: i32) {
        let Some(entry) = self.entry(fd).filter(|entry| entry.kind.load(Relaxed) != UNKNOWN) else { return };
        entry.kind.store(UNKNOWN, Relaxed);
        entry.sent_bytes.store(0, Relaxed);
        entry.next_bytes.store(0, Relaxed);
    }

    /// Adds bytes sent on the descriptor.
    pub fn add(&self, fd: i32, bytes: u64) {
        if let Some(entry) = self.entry(fd).filter(|entry| entry.kind.load(Relaxed) == TCP) {
            entry.sent_bytes.fetch_add(bytes, Relaxed);
        }
    }

    /// Returns true if [`Table::announce`] might announce if `more_bytes` were sent.
    pub fn may_announce(&self, fd: i32, more_bytes: u64) -> bool {
        self.entry(fd).is_some_and(|entry| {
            let least_bytes = entry.next_bytes.load(Relaxed).max(MICE_BELOW_BYTES);
            entry.kind.load(Relaxed) != OTHER
                && entry.sent_bytes.load(Relaxed).saturating_add(more_bytes) >= least_bytes
        })
    }

    /// Announces the total bytes of a descriptor that is about to send `more_bytes`, if an
    /// announcement is due. `say` sends it.
    ///
    /// `is_tcp` is called once for each descriptor. If `say` fails, the announcement is retried at
    /// the next call.
    pub fn announce(
        &self,
        fd: i32,
        more_bytes: u64,
        is_tcp: impl FnOnce() -> bool,
        say: impl FnOnce(u64) -> bool,
    ) {
        let Some(entry) = self.entry(fd) else { return };
        match entry.kind.load(Relaxed) {
            TCP => {}
            UNKNOWN if is_tcp() => entry.kind.store(TCP, Relaxed),
            UNKNOWN => return entry.kind.store(OTHER, Relaxed),
            _ => return,
        }
        let total_bytes = entry.sent_bytes.load(Relaxed).saturating_add(more_bytes);
        let next_bytes = entry.next_bytes.load(Relaxed);
        if total_bytes < next_bytes.max(MICE_BELOW_BYTES) {
            return;
        }
        // Only the thread whose exchange succeeds announces; concurrent threads leave the
        // announcement to it.
        let after = total_bytes.saturating_add(total_bytes / 4);
        if entry.next_bytes.compare_exchange(next_bytes, after, Relaxed, Relaxed).is_ok() && !say(total_bytes)
        {
            let _ = entry.next_bytes.compare_exchange(after, next_bytes, Relaxed, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_shuffle_proto::coordinator::ClassSettings;
    use proptest::prelude::*;

    #[test]
    fn announcement_threshold_equals_the_coordinators_mice_size() {
        assert_eq!(MICE_BELOW_BYTES, ClassSettings::default().mice_below.as_u64());
    }

    /// The announcement of descriptor 7, a TCP connection that is about to send `more_bytes`.
    fn said(table: &Table, more_bytes: u64) -> Option<u64> {
        let mut said = None;
        table.announce(
            7,
            more_bytes,
            || true,
            |total| {
                said = Some(total);
                true
            },
        );
        said
    }

    #[test]
    fn flow_is_announced_at_its_first_byte_past_mice() {
        let table = Box::new(Table::new());
        assert_eq!(said(&table, MICE_BELOW_BYTES - 1), None);
        table.add(7, MICE_BELOW_BYTES - 1);
        assert_eq!(said(&table, 0), None);
        assert_eq!(said(&table, 1), Some(MICE_BELOW_BYTES));
    }

    #[test]
    fn growth_by_a_quarter_is_announced() {
        let table = Box::new(Table::new());
        assert_eq!(said(&table, 80_000), Some(80_000));
        table.add(7, 80_000);
        assert_eq!(said(&table, 19_999), None);
        assert_eq!(said(&table, 20_000), Some(100_000));
        // Announced but not sent: the next call is about the same bytes.
        assert_eq!(said(&table, 20_000), None);
    }

    #[test]
    fn failed_announcement_is_retried() {
        let table = Box::new(Table::new());
        table.announce(7, 60_000, || true, |_| false);
        assert_eq!(said(&table, 60_000), Some(60_000));
    }

    #[test]
    fn reused_descriptor_restarts_its_count() {
        let table = Box::new(Table::new());
        table.announce(7, 60_000, || false, |_| panic!("it is no connection"));
        table.announce(7, 60_000, || panic!("it is known"), |_| panic!("it is no connection"));
        table.forget(7);
        assert_eq!(said(&table, 60_000), Some(60_000));
        table.add(7, 60_000);
        table.forget(7);
        assert_eq!(said(&table, 1_000), None);
        assert_eq!(said(&table, 51_000), Some(51_000));
    }

    #[test]
    fn descriptors_out_of_range_are_ignored() {
        let table = Box::new(Table::new());
        for fd in [-1, FDS_MAX as i32, i32::MAX, i32::MIN] {
            table.forget(fd);
            table.add(fd, 1);
            table.announce(fd, u64::MAX, || panic!("it is not asked"), |_| panic!("nothing is said"));
        }
        let last = FDS_MAX as i32 - 1;
        let mut is_said = false;
        table.announce(last, u64::MAX, || true, |_| std::mem::replace(&mut is_said, true));
        assert!(is_said);
    }

    proptest! {
        #[test]
        fn few_announcements_cover_nearly_all_bytes(calls in proptest::collection::vec(1..100_000u64, 1..400)) {
            let (table, mut lines, mut last, mut sent) = (Box::new(Table::new()), 0, 0, 0);
            for bytes in calls {
                if let Some(total) = said(&table, bytes) {
                    prop_assert!(total > last);
                    (lines, last) = (lines + 1, total);
                }
                table.add(7, bytes);
                sent += bytes;
            }
            prop_assert!(last <= sent);
            prop_assert!(sent < MICE_BELOW_BYTES || sent - last <= last / 4);
            // 50 kB grow to 40 MB in 30 steps of a quarter each.
            prop_assert!(lines <= 31, "{lines}");
        }
    }
}
