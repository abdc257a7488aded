//! Ranges of the bytes of a file, and sets of ranges.

use serde::{Deserialize, Serialize};

/// A range of bytes of a file: `start..end`.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ByteRange {
    /// Position of the first byte.
    pub start: u64,
    /// Position after the last byte.
    pub end: u64,
}

impl ByteRange {
    /// Length in bytes.
    pub const fn len(self) -> u64 {
        self.end - self.start
    }
    /// Whether the range contains no byte.
    pub const fn is_empty(self) -> bool {
        self.start >= self.end
    }
}

/// A set of bytes of a file: ranges that are ascending, disjoint, and not adjacent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RangeSet(Vec<ByteRange>);

impl RangeSet {
    /// The set of all bytes in `ranges`, which may be in any order and may overlap.
    pub fn from_ranges(ranges: impl IntoIterator<Item = ByteRange>) -> Self {
        let mut set = Self::default();
        for range in ranges {
            set.insert(range);
        }
        set
    }

    /// Adds `range`. Returns the number of its bytes that were not in the set.
    pub fn insert(&mut self, range: ByteRange) -> u64 {
        if range.is_empty() {
            return 0;
        }
        let from = self.0.partition_point(|r| r.end < range.start);
        let to = self.0.partition_point(|r| r.start <= range.end);
        let merged = self.0[from..to]
            .iter()
            .fold(range, |m, r| ByteRange { start: m.start.min(r.start), end: m.end.max(r.end) });
        let old: u64 = self.0.splice(from..to, [merged]).map(ByteRange::len).sum();
        merged.len() - old
    }

    /// Whether all bytes of `range` are in the set.
    pub fn contains(&self, range: ByteRange) -> bool {
        let at = self.0.partition_point(|r| r.end < range.end);
        range.is_empty() || self.0.get(at).is_some_and(|r| r.start <= range.start)
    }

    /// Whether `range` overlaps or adjoins a range of the set, so that its insertion adds no
    /// further range.
    pub fn touches(&self, range: ByteRange) -> bool {
        self.0.get(self.0.partition_point(|r| r.end < range.start)).is_some_and(|r| r.start <= range.end)
    }

    /// Ranges of the bytes of `0..length` that are not in the set, ascending.
    pub fn missing(&self, length: u64) -> Vec<ByteRange> {
        let mut gaps = Vec::new();
        let mut at = 0;
        for r in self.0.iter().take_while(|r| r.start < length) {
            if r.start > at {
                gaps.push(ByteRange { start: at, end: r.start });
            }
            at = r.end;
        }
        if at < length {
            gaps.push(ByteRange { start: at, end: length });
        }
        gaps
    }

    /// Whether no byte is in the set.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Number of bytes in the set.
    pub fn total(&self) -> u64 {
        self.0.iter().map(|r| r.len()).sum()
    }

    /// The ranges of the set, ascending.
    pub fn ranges(&self) -> &[ByteRange] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn range(start: u64, end: u64) -> ByteRange {
        ByteRange { start, end }
    }

    proptest! {
        #[test]
        fn range_set_equals_a_plain_set_of_bytes(ranges in proptest::collection::vec((0u64..60, 0u64..12), 0..12)) {
            let ranges: Vec<_> = ranges.iter().map(|&(s, n)| range(s, s + n)).collect();
            let set = RangeSet::from_ranges(ranges.iter().copied());
            let bytes: std::collections::BTreeSet<u64> = ranges.iter().flat_map(|r| r.start..r.end).collect();
            prop_assert_eq!(set.total(), bytes.len() as u64);
            let mut grown = RangeSet::default();
            prop_assert_eq!(ranges.iter().map(|r| grown.insert(*r)).sum::<u64>(), set.total());
            for (start, end) in (0..72).flat_map(|s| (s..72).map(move |e| (s, e))) {
                let all = (start..end).all(|b| bytes.contains(&b));
                prop_assert_eq!(set.contains(range(start, end)), all, "{}..{}", start, end);
            }
            let missing: Vec<u64> = set.missing(64).iter().flat_map(|r| r.start..r.end).collect();
            prop_assert_eq!(missing, (0..64).filter(|b| !bytes.contains(b)).collect::<Vec<_>>());
            prop_assert!(set.ranges().windows(2).all(|w| w[0].end < w[1].start));
        }

        #[test]
        fn inserting_a_touching_range_adds_no_range(ranges in proptest::collection::vec((0u64..60, 1u64..12), 0..12), start in 0u64..60, n in 1u64..12) {
            let mut set = RangeSet::from_ranges(ranges.iter().map(|&(s, n)| range(s, s + n)));
            let (before, touches) = (set.ranges().len(), set.touches(range(start, start + n)));
            set.insert(range(start, start + n));
            prop_assert_eq!(set.ranges().len() <= before, touches);
        }
    }
}
