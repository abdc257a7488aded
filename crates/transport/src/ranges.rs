//! Sets of positions, for what was acknowledged selectively.

/// Disjoint ranges of positions, ascending.
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
    /// How many ranges, and bytes in them, lie beyond `position`.
    pub(crate) fn beyond(&self, position: u64) -> (usize, u64) {
        let at = self.ranges.partition_point(|(start, _)| *start <= position);
        let rest = &self.ranges[at..];
        (rest.len(), rest.iter().map(|(s, e)| e - s).sum())
    }
    /// The gaps from `from` to the last range.
    pub(crate) fn holes(&self, from: u64) -> impl Iterator<Item = (u64, u64)> + '_ {
        let ranges = &self.ranges[self.ranges.partition_point(|(_, end)| *end <= from)..];
        let starts = std::iter::once(from).chain(ranges.iter().map(|(_, end)| *end));
        starts.zip(ranges.iter().map(|(start, _)| *start)).filter(|(start, end)| start < end)
    }
    /// The ranges, ascending.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = (u64, u64)> + '_ {
        self.ranges.iter().copied()
    }
}
