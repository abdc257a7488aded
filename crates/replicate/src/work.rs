//! Which bytes of the file a generation stands for.
//!
//! An attempt carries some ranges of the file, the *work*. Each range is cut into pieces of equal size from its start,
//! its last piece may be shorter, and the pieces are numbered through: a piece never spans two ranges. Source and sinks
//! compute the same map from the same program, so offsets never travel.

use crate::control::ByteRange;

/// The pieces of an attempt's work, by number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkMap {
    piece_bytes: u64,
    /// Each range with the number of its first piece.
    ranges: Vec<(u64, ByteRange)>,
    pieces: u64,
}

impl WorkMap {
    /// The map of `work` in pieces of `piece_bytes`.
    ///
    /// Errors: `None` if `piece_bytes` is 0, or ranges are not ascending, disjoint and each of at least one byte.
    pub fn new(work: &[ByteRange], piece_bytes: u64) -> Option<Self> {
        let ordered = work.windows(2).all(|w| w[0].end <= w[1].start);
        if piece_bytes == 0 || !ordered || work.iter().any(|r| r.start >= r.end) {
            return None;
        }
        let mut pieces = 0;
        let ranges = work
            .iter()
            .map(|r| {
                let first = pieces;
                pieces += (r.end - r.start).div_ceil(piece_bytes);
                (first, *r)
            })
            .collect();
        Some(Self { piece_bytes, ranges, pieces })
    }

    /// How many pieces there are.
    pub fn pieces(&self) -> u64 {
        self.pieces
    }

    /// How many pieces begin before `byte`.
    pub fn begun_before(&self, byte: u64) -> u64 {
        let at = self.ranges.partition_point(|(_, r)| r.start < byte);
        let Some((first, range)) = at.checked_sub(1).map(|at| self.ranges[at]) else { return 0 };
        first + (range.end.min(byte) - range.start).div_ceil(self.piece_bytes)
    }

    /// The bytes of piece `number`; `None` past the last.
    pub fn piece(&self, number: u64) -> Option<ByteRange> {
        if number >= self.pieces {
            return None;
        }
        let at = self.ranges.partition_point(|(first, _)| *first <= number) - 1;
        let (first, range) = self.ranges[at];
        let start = range.start + (number - first) * self.piece_bytes;
        Some(ByteRange { start, end: range.end.min(start + self.piece_bytes) })
    }
}

impl ByteRange {
    /// Length in bytes.
    pub const fn len(self) -> u64 {
        self.end - self.start
    }
    /// True for a range of no bytes.
    pub const fn is_empty(self) -> bool {
        self.start >= self.end
    }
}

/// A set of bytes of a file: ascending, disjoint, never touching ranges.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RangeSet(Vec<ByteRange>);

impl RangeSet {
    /// The set of all bytes in `ranges`, in any order, overlapping or not.
    pub fn from_ranges(ranges: impl IntoIterator<Item = ByteRange>) -> Self {
        let mut set = Self::default();
        for range in ranges {
            set.insert(range);
        }
        set
    }

    /// Adds `range` and says how many of its bytes are new.
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

    /// True if all bytes of `range` are in the set.
    pub fn contains(&self, range: ByteRange) -> bool {
        let at = self.0.partition_point(|r| r.end < range.end);
        range.is_empty() || self.0.get(at).is_some_and(|r| r.start <= range.start)
    }

    /// Whether adding `range` would make one of the set's ranges larger, and no new one.
    pub fn touches(&self, range: ByteRange) -> bool {
        self.0.get(self.0.partition_point(|r| r.end < range.start)).is_some_and(|r| r.start <= range.end)
    }

    /// Bytes of `0..length` that are not in the set.
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

    /// True if no byte is in the set.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many bytes are in the set.
    pub fn total(&self) -> u64 {
        self.0.iter().map(|r| r.len()).sum()
    }

    /// The ranges, ascending.
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

    #[test]
    fn a_piece_never_spans_two_ranges() {
        let map = WorkMap::new(&[range(10, 25), range(40, 41)], 10).expect("good work");
        assert_eq!(map.pieces(), 3);
        let pieces: Vec<_> = (0..3).map(|i| map.piece(i)).collect();
        assert_eq!(pieces, [Some(range(10, 20)), Some(range(20, 25)), Some(range(40, 41))]);
        assert_eq!(map.piece(3), None);
    }

    #[test]
    fn work_that_is_out_of_order_or_empty_is_refused() {
        assert_eq!(WorkMap::new(&[range(10, 20), range(15, 30)], 10), None);
        assert_eq!(WorkMap::new(&[range(10, 10)], 10), None);
        assert_eq!(WorkMap::new(&[range(0, 10)], 0), None);
        assert_eq!(WorkMap::new(&[], 10).expect("no work is fine").pieces(), 0);
    }

    proptest! {
        #[test]
        fn range_sets_agree_with_a_set_of_bytes(ranges in proptest::collection::vec((0u64..60, 0u64..12), 0..12)) {
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
        fn a_range_that_touches_the_set_adds_no_range(ranges in proptest::collection::vec((0u64..60, 1u64..12), 0..12), start in 0u64..60, n in 1u64..12) {
            let mut set = RangeSet::from_ranges(ranges.iter().map(|&(s, n)| range(s, s + n)));
            let (before, touches) = (set.ranges().len(), set.touches(range(start, start + n)));
            set.insert(range(start, start + n));
            prop_assert_eq!(set.ranges().len() <= before, touches);
        }

        #[test]
        fn pieces_cover_the_work_once(ranges in proptest::collection::vec((1u64..50, 1u64..50), 0..6), piece in 1u64..20) {
            let mut at = 0;
            let work: Vec<_> = ranges.iter().map(|&(gap, n)| { let s = at + gap; at = s + n; range(s, at) }).collect();
            let map = WorkMap::new(&work, piece).expect("ascending by construction");
            let covered: Vec<u64> = (0..map.pieces()).filter_map(|i| map.piece(i)).flat_map(|r| r.start..r.end).collect();
            prop_assert_eq!(covered, work.iter().flat_map(|r| r.start..r.end).collect::<Vec<_>>());
            for byte in (0..at + 3).chain([u64::MAX]) {
                let begun = (0..map.pieces()).filter_map(|i| map.piece(i)).filter(|p| p.start < byte).count();
                prop_assert_eq!(map.begun_before(byte), begun as u64);
            }
        }
    }
}
