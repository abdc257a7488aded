//! Sets of stream positions, for selective acknowledgements.

/// Disjoint ranges of positions, in ascending order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ranges {
    ranges: Vec<(u64, u64)>,
    total: u64,
}

impl Ranges {
    pub(crate) fn insert(&mut self, mut start: u64, mut end: u64) {
        let first = self.ranges.partition_point(|(_, e)| *e < start);
        let last = self.ranges.partition_point(|(s, _)| *s <= end);
        for (s, e) in self.ranges.drain(first..last) {
            (start, end) = (start.min(s), end.max(e));
            self.total -= e - s;
        }
        self.ranges.insert(first, (start, end));
        self.total += end - start;
    }
    pub(crate) fn forget_below(&mut self, position: u64) {
        let gone = self.ranges.partition_point(|(_, e)| *e <= position);
        self.total -= self.ranges.drain(..gone).map(|(s, e)| e - s).sum::<u64>();
        if let Some((start, _)) = self.ranges.first_mut().filter(|(s, _)| *s < position) {
            self.total -= position - *start;
            *start = position;
        }
    }
    /// Removes the positions from `start` to `end`.
    pub(crate) fn remove(&mut self, start: u64, end: u64) {
        let first = self.ranges.partition_point(|(_, e)| *e <= start);
        let last = self.ranges.partition_point(|(s, _)| *s < end);
        if first >= last {
            return;
        }
        let (from, to) = (self.ranges[first].0, self.ranges[last - 1].1);
        let left = [(from, start), (end, to)].into_iter().filter(|(s, e)| s < e);
        let gone: u64 = self.ranges[first..last].iter().map(|(s, e)| e - s).sum();
        self.total = self.total - gone + left.clone().map(|(s, e)| e - s).sum::<u64>();
        self.ranges.splice(first..last, left);
    }
    pub(crate) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }
    pub(crate) fn total(&self) -> u64 {
        self.total
    }
    pub(crate) fn start(&self) -> Option<u64> {
        self.ranges.first().map(|(start, _)| *start)
    }
    pub(crate) fn end(&self) -> Option<u64> {
        self.ranges.last().map(|(_, end)| *end)
    }
    pub(crate) fn containing(&self, position: u64) -> Option<(u64, u64)> {
        let at = self.ranges.partition_point(|(_, end)| *end <= position);
        self.ranges.get(at).copied().filter(|(start, _)| *start <= position)
    }
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = (u64, u64)> + '_ {
        self.ranges.iter().copied()
    }
    pub(crate) fn first(&self) -> Option<(u64, u64)> {
        self.ranges.first().copied()
    }
    /// Whether the set contains all positions from `start` to `end`.
    pub(crate) fn covers(&self, start: u64, end: u64) -> bool {
        self.containing(start).is_some_and(|(_, behind)| behind >= end)
    }
    /// The ranges between `start` and `end` that are not in the set.
    pub(crate) fn gaps(&self, start: u64, end: u64) -> impl Iterator<Item = (u64, u64)> + '_ {
        let first = self.ranges.partition_point(|(_, e)| *e <= start);
        let last = self.ranges.partition_point(|(s, _)| *s < end).max(first);
        let inside = &self.ranges[first..last];
        let starts = std::iter::once(start).chain(inside.iter().map(|(_, e)| *e));
        let ends = inside.iter().map(|(s, _)| *s).chain(std::iter::once(end));
        starts.zip(ends).filter(|(s, e)| s < e)
    }
    /// Number of ranges beyond `position`, and the number of their bytes.
    pub(crate) fn beyond(&self, position: u64) -> (usize, u64) {
        let at = self.ranges.partition_point(|(start, _)| *start <= position);
        let rest = &self.ranges[at..];
        (rest.len(), rest.iter().map(|(s, e)| e - s).sum())
    }
    /// The gaps between `from` and the start of the last range.
    pub(crate) fn holes(&self, from: u64) -> impl Iterator<Item = (u64, u64)> + '_ {
        let ranges = &self.ranges[self.ranges.partition_point(|(_, end)| *end <= from)..];
        let starts = std::iter::once(from).chain(ranges.iter().map(|(_, end)| *end));
        starts.zip(ranges.iter().map(|(start, _)| *start)).filter(|(start, end)| start < end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn range_set_equals_a_plain_set_of_positions(
            steps in prop::collection::vec((any::<bool>(), 0u64..60, 1u64..20), 0..40), from in 0u64..60, len in 1u64..30,
        ) {
            let (mut ranges, mut plain) = (Ranges::default(), std::collections::BTreeSet::new());
            for (insert, start, len) in steps {
                if insert {
                    ranges.insert(start, start + len);
                    plain.extend(start..start + len);
                } else {
                    ranges.remove(start, start + len);
                    plain.retain(|p| !(start..start + len).contains(p));
                }
                prop_assert_eq!(ranges.total(), plain.len() as u64);
                prop_assert_eq!(ranges.start(), plain.first().copied());
                prop_assert_eq!(ranges.end(), plain.last().map(|p| p + 1));
            }
            let missing: Vec<u64> = (from..from + len).filter(|p| !plain.contains(p)).collect();
            let gaps: Vec<u64> = ranges.gaps(from, from + len).flat_map(|(s, e)| s..e).collect();
            prop_assert_eq!(ranges.covers(from, from + len), missing.is_empty());
            prop_assert_eq!(gaps, missing);
        }
    }
}
