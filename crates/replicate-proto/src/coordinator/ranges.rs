//! Sets of bytes of a file, as ascending, disjoint, non-empty ranges with gaps between them.
//!
//! Reports come from other machines, so all input passes through [`normal`] first.

use anabranch_pieces::ByteRange;

/// `ranges` as a set within `0..length`: sorted, merged, truncated.
pub(super) fn normal(ranges: &[ByteRange], length: u64) -> Vec<ByteRange> {
    let mut sorted: Vec<ByteRange> = ranges
        .iter()
        .map(|r| ByteRange { start: r.start, end: r.end.min(length) })
        .filter(|r| r.start < r.end)
        .collect();
    sorted.sort_unstable();
    let mut merged: Vec<ByteRange> = Vec::with_capacity(sorted.len());
    for range in sorted {
        match merged.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => merged.push(range),
        }
    }
    merged
}

/// The part of `0..length` that is not in the normal set `have`.
pub(super) fn missing(have: &[ByteRange], length: u64) -> Vec<ByteRange> {
    let mut gaps = Vec::new();
    let mut start = 0;
    for range in have {
        if start < range.start {
            gaps.push(ByteRange { start, end: range.start });
        }
        start = range.end;
    }
    if start < length {
        gaps.push(ByteRange { start, end: length });
    }
    gaps
}

/// The part of a normal set that is in the normal set `other`.
pub(super) fn common(set: &[ByteRange], other: &[ByteRange]) -> Vec<ByteRange> {
    let (mut common, mut from) = (Vec::new(), 0);
    for range in set {
        from += other[from..].partition_point(|o| o.end <= range.start);
        let touching = other[from..].iter().take_while(|o| o.start < range.end);
        common.extend(
            touching.map(|o| ByteRange { start: o.start.max(range.start), end: o.end.min(range.end) }),
        );
    }
    common
}

/// The part of a normal set that is not in the normal set `other`.
#[cfg(test)]
pub(super) fn without(set: &[ByteRange], other: &[ByteRange]) -> Vec<ByteRange> {
    common(set, &missing(other, u64::MAX))
}

/// Number of bytes in a normal set.
pub(super) fn bytes(ranges: &[ByteRange]) -> u64 {
    ranges.iter().map(|r| r.end - r.start).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn set_and_its_gaps_cover_the_file(pairs in proptest::collection::vec((0u64..120, 0u64..120), 0..20), length in 0u64..100) {
            let ranges: Vec<_> = pairs.iter().map(|&(start, end)| ByteRange { start, end }).collect();
            let have = normal(&ranges, length);
            let gaps = missing(&have, length);
            for byte in 0..length {
                let within = |set: &[ByteRange]| set.iter().any(|r| r.start <= byte && byte < r.end);
                prop_assert_eq!(within(&have), within(&ranges));
                prop_assert_ne!(within(&have), within(&gaps));
            }
            prop_assert_eq!(bytes(&have) + bytes(&gaps), length);
            prop_assert_eq!(without(&have, &gaps), have.clone());
            prop_assert_eq!(common(&have, &gaps), vec![]);
            prop_assert!(have.windows(2).all(|w| w[0].end < w[1].start));
        }

        #[test]
        fn common_bytes_are_in_both_sets(
            a in proptest::collection::vec((0u64..120, 0u64..120), 0..20),
            b in proptest::collection::vec((0u64..120, 0u64..120), 0..20),
        ) {
            let set = |pairs: &[(u64, u64)]| {
                normal(&pairs.iter().map(|&(start, end)| ByteRange { start, end }).collect::<Vec<_>>(), 120)
            };
            let (a, b) = (set(&a), set(&b));
            let (both, only) = (common(&a, &b), without(&a, &b));
            for byte in 0..120 {
                let within = |set: &[ByteRange]| set.iter().any(|r| r.start <= byte && byte < r.end);
                prop_assert_eq!(within(&both), within(&a) && within(&b));
                prop_assert_eq!(within(&only), within(&a) && !within(&b));
            }
            prop_assert_eq!(normal(&both, 120), both);
        }
    }
}
