//! Map from generations to bytes of the file.
//!
//! An attempt carries some ranges of the file, the *work*. Each range is divided into pieces of
//! equal size from its start; its last piece may be shorter. The pieces are numbered consecutively,
//! and a piece never spans two ranges. Source and sinks compute the same map from the same program,
//! so offsets are never transferred.

use anabranch_pieces::ByteRange;

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
    /// Errors: `None` if `piece_bytes` is 0, or if ranges are not ascending, disjoint and of at
    /// least one byte each.
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

    /// Number of pieces.
    pub fn pieces(&self) -> u64 {
        self.pieces
    }

    /// Number of pieces that begin before `byte`.
    pub fn begun_before(&self, byte: u64) -> u64 {
        let at = self.ranges.partition_point(|(_, r)| r.start < byte);
        let Some((first, range)) = at.checked_sub(1).map(|at| self.ranges[at]) else { return 0 };
        first + (range.end.min(byte) - range.start).div_ceil(self.piece_bytes)
    }

    /// The bytes of piece `number`; `None` after the last.
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
    fn unordered_or_empty_work_is_refused() {
        assert_eq!(WorkMap::new(&[range(10, 20), range(15, 30)], 10), None);
        assert_eq!(WorkMap::new(&[range(10, 10)], 10), None);
        assert_eq!(WorkMap::new(&[range(0, 10)], 0), None);
        assert_eq!(WorkMap::new(&[], 10).expect("no work is fine").pieces(), 0);
    }

    proptest! {
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
