//! The contents that destinations lack, as byte streams.
//!
//! A stream holds contents in the order of the manifest: small files whole, of large files the
//! lacking blocks. So a transfer of many files consists of ranges of one stream, like a transfer of
//! one file. Destinations that lack the same contents share a stream ([`plan`]).
//!
//! Leaves out: what a destination has; the names and hashes of the entries, which the manifest has.
//! Read [`Layout`] and [`plan`] first.

use crate::node::put_number;
use anabranch_pieces::ByteRange;
use std::collections::BTreeMap;

/// Length of a block: the unit in which a large file is sent.
pub const BLOCK_BYTES: u64 = 1 << 20;
/// Maximum number of destinations of a set.
pub const DESTINATIONS_MAX: usize = 256;
/// Maximum number of classes before small classes join. Contents beyond this number of classes are
/// sent to all destinations that lack any content.
pub const CLASSES_MAX: usize = 1_024;
/// A class with less than one part in `SHARE_MIN` of the bytes joins another class.
const SHARE_MIN: u64 = 100;
/// Extents of a block of a layout, which is read from its beginning.
const GROUP: usize = 64;

/// Set of destinations, by their numbers.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Destinations([u64; DESTINATIONS_MAX / 64]);

impl Destinations {
    /// Adds a destination.
    ///
    /// Panics: for a number from [`DESTINATIONS_MAX`] on, a mistake of the caller.
    pub fn insert(&mut self, number: usize) {
        self.0[number / 64] |= 1 << (number % 64);
    }

    /// Returns true if a destination is in the set.
    pub fn contains(&self, number: usize) -> bool {
        self.0.get(number / 64).is_some_and(|bits| bits & (1 << (number % 64)) != 0)
    }

    /// Number of destinations.
    pub fn len(&self) -> u64 {
        self.0.iter().map(|bits| u64::from(bits.count_ones())).sum()
    }

    /// Returns true for no destination.
    pub fn is_empty(&self) -> bool {
        self.0 == Self::default().0
    }

    /// The destinations of either set.
    pub fn union(&self, other: &Self) -> Self {
        let mut union = *self;
        union.0.iter_mut().zip(other.0).for_each(|(bits, more)| *bits |= more);
        union
    }

    /// The numbers in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        (0..DESTINATIONS_MAX).filter(|number| self.contains(*number))
    }
}

impl FromIterator<usize> for Destinations {
    fn from_iter<I: IntoIterator<Item = usize>>(numbers: I) -> Self {
        let mut set = Self::default();
        numbers.into_iter().for_each(|number| set.insert(number));
        set
    }
}

/// A part of one file's content in a stream.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Extent {
    /// First byte in the stream.
    pub stream_bytes: u64,
    /// Number of the file among the files of the manifest.
    pub file: u64,
    /// Part of the file that is in the stream. It is not empty, and its beginning is a multiple of
    /// [`BLOCK_BYTES`].
    pub range: ByteRange,
}

/// A place in a file.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Number of the file among the files of the manifest.
    pub file: u64,
    /// Offset in the file's content.
    pub offset_bytes: u64,
}

/// First extent of a group, and where the group is encoded.
#[derive(Copy, Clone, Debug)]
struct Group {
    first: Extent,
    /// Position of the group's second extent in the encoded extents.
    at: usize,
}

/// The stream of one class.
///
/// Cost: some 5 bytes for a small file; lookups read up to 64 extents.
///
/// ```
/// use anabranch_pieces::ByteRange;
/// use anabranch_sets::layout::{BLOCK_BYTES, Layout, Place};
/// let mut layout = Layout::default();
/// layout.push(3, ByteRange { start: 0, end: 100 });
/// layout.push(7, ByteRange { start: BLOCK_BYTES, end: BLOCK_BYTES + 50 });
/// assert_eq!(layout.length_bytes(), 150);
/// assert_eq!(layout.place(120), Some(Place { file: 7, offset_bytes: BLOCK_BYTES + 20 }));
/// assert_eq!(layout.offset(Place { file: 3, offset_bytes: 99 }), Some(99));
/// ```
#[derive(Clone, Debug, Default)]
pub struct Layout {
    groups: Vec<Group>,
    /// Extents behind the first of each group: file, block and length as differences.
    encoded: Vec<u8>,
    /// The last extent, which may become longer.
    last: Option<Extent>,
    /// File of the last encoded extent.
    encoded_file: u64,
    count: usize,
    length_bytes: u64,
}

/// Reads a number that [`put_number`] wrote.
fn take(from: &mut &[u8]) -> u64 {
    let (mut value, mut shift) = (0, 0);
    while let Some((byte, rest)) = from.split_first() {
        *from = rest;
        value |= u64::from(byte & 0x7f) << shift;
        shift += 7;
        if *byte < 0x80 {
            break;
        }
    }
    value
}

impl Layout {
    /// Adds a part of a file behind all others. A part that follows the last one in its file makes
    /// it longer.
    ///
    /// Panics: if the part is empty, does not begin at a block, or is not behind the last one, a
    /// mistake of the caller.
    pub fn push(&mut self, file: u64, range: ByteRange) {
        assert!(range.start < range.end && range.start.is_multiple_of(BLOCK_BYTES), "parts are blocks");
        if let Some(last) = &mut self.last {
            let is_behind = (last.file, last.range.end) <= (file, range.start) || last.file < file;
            assert!(is_behind, "parts come in the order of the manifest");
            if last.file == file && last.range.end == range.start {
                last.range.end = range.end;
                self.length_bytes += range.len();
                return;
            }
        }
        self.flush();
        self.last = Some(Extent { stream_bytes: self.length_bytes, file, range });
        self.length_bytes += range.len();
    }

    /// Encodes the last extent: nothing is added to it any more.
    fn flush(&mut self) {
        let Some(extent) = self.last.take() else { return };
        if self.count.is_multiple_of(GROUP) {
            self.groups.push(Group { first: extent, at: self.encoded.len() });
        } else {
            put_number(&mut self.encoded, extent.file - self.encoded_file);
            put_number(&mut self.encoded, extent.range.start / BLOCK_BYTES);
            put_number(&mut self.encoded, extent.range.len());
        }
        self.encoded_file = extent.file;
        self.count += 1;
    }

    /// The extents of a group, without the last one of the layout, which is not encoded.
    fn of_group(&self, number: usize) -> impl Iterator<Item = Extent> + use<'_> {
        let group = self.groups[number];
        let end = self.groups.get(number + 1).map_or(self.encoded.len(), |next| next.at);
        let mut rest = &self.encoded[group.at..end];
        let mut next = Some(group.first);
        std::iter::from_fn(move || {
            let extent = next?;
            next = (!rest.is_empty()).then(|| {
                let (files, block, length) = (take(&mut rest), take(&mut rest), take(&mut rest));
                let start = block * BLOCK_BYTES;
                Extent {
                    stream_bytes: extent.stream_bytes + extent.range.len(),
                    file: extent.file + files,
                    range: ByteRange { start, end: start + length },
                }
            });
            Some(extent)
        })
    }

    /// The extents from the last group on whose first extent is `at_most`.
    fn extents_after<F: Fn(&Extent) -> bool>(&self, at_most: F) -> impl Iterator<Item = Extent> + use<'_, F> {
        let first = self.groups.partition_point(|group| at_most(&group.first)).saturating_sub(1);
        (first..self.groups.len()).flat_map(|number| self.of_group(number)).chain(self.last)
    }

    /// Length of the stream.
    pub fn length_bytes(&self) -> u64 {
        self.length_bytes
    }

    /// The extents from the one that holds the byte `from` of the stream on.
    pub fn extents(&self, from: u64) -> impl Iterator<Item = Extent> + '_ {
        let all = self.extents_after(move |first| first.stream_bytes <= from);
        all.skip_while(move |extent| extent.stream_bytes + extent.range.len() <= from)
    }

    /// The place in a file of a byte of the stream; `None` behind its end.
    pub fn place(&self, stream_bytes: u64) -> Option<Place> {
        let extent = self.extents(stream_bytes).next()?;
        let offset_bytes = extent.range.start + (stream_bytes - extent.stream_bytes);
        Some(Place { file: extent.file, offset_bytes })
    }

    /// The byte of the stream that holds a place; `None` if the stream does not have the place.
    pub fn offset(&self, place: Place) -> Option<u64> {
        let key = |extent: &Extent| (extent.file, extent.range.start);
        let wanted = (place.file, place.offset_bytes);
        let all = self.extents_after(|first| key(first) <= wanted);
        let mut candidates = all.take_while(|extent| key(extent) <= wanted);
        let holds = |extent: &Extent| extent.file == place.file && place.offset_bytes < extent.range.end;
        let extent = candidates.find(holds)?;
        Some(extent.stream_bytes + (place.offset_bytes - extent.range.start))
    }

    /// Bytes of memory that the extents take.
    pub fn held_bytes(&self) -> usize {
        self.groups.capacity() * size_of::<Group>() + self.encoded.capacity()
    }
}

/// The parts of a file of this length that are sent or not sent as one: a small file whole, a large
/// one by blocks. An empty file has none.
pub fn units(size_bytes: u64) -> impl Iterator<Item = ByteRange> {
    let begins = (0..size_bytes.div_ceil(BLOCK_BYTES)).map(|block| block * BLOCK_BYTES);
    begins.map(move |start| ByteRange { start, end: size_bytes.min(start + BLOCK_BYTES) })
}

/// Destinations that are sent the same stream.
#[derive(Clone, Debug)]
pub struct Class {
    /// The destinations.
    pub destinations: Destinations,
    /// The contents.
    pub stream: Layout,
}

/// Bytes by the destinations that lack them, from a first pass over the lacking contents.
#[derive(Clone, Debug, Default)]
pub struct Census {
    bytes: BTreeMap<Destinations, u64>,
    all: Destinations,
}

/// The class of each set of destinations.
#[derive(Clone, Debug, Default)]
pub struct Classes {
    class_of: BTreeMap<Destinations, usize>,
    classes: Vec<Destinations>,
    /// All destinations, which get the contents that were not counted separately.
    all: Destinations,
}

impl Census {
    /// Counts `bytes` that these destinations lack.
    ///
    /// Cost: the first [`CLASSES_MAX`] sets are kept; bytes of later ones count for all
    /// destinations.
    pub fn count(&mut self, destinations: Destinations, bytes: u64) {
        if destinations.is_empty() || bytes == 0 {
            return;
        }
        self.all = self.all.union(&destinations);
        if self.bytes.len() >= CLASSES_MAX && !self.bytes.contains_key(&destinations) {
            // Sets that are seen late may be large: all destinations get their bytes.
            *self.bytes.entry(Destinations::default()).or_default() += bytes;
            return;
        }
        *self.bytes.entry(destinations).or_default() += bytes;
    }

    /// Joins small classes with others, the smallest first, each where it adds the fewest bytes
    /// that a destination has already.
    pub fn join(mut self) -> Classes {
        if let Some(rest) = self.bytes.remove(&Destinations::default()) {
            *self.bytes.entry(self.all).or_default() += rest;
        }
        let total: u64 = self.bytes.values().sum();
        // Each class with the sets that it holds.
        let begin = self.bytes.into_iter().map(|(set, bytes)| (set, bytes, vec![set]));
        let mut classes: Vec<(Destinations, u64, Vec<Destinations>)> = begin.collect();
        loop {
            let smallest = (0..classes.len()).min_by_key(|at| (classes[*at].1, classes[*at].0));
            let Some(at) = smallest else { break };
            if classes.len() == 1 || u128::from(classes[at].1) * u128::from(SHARE_MIN) >= u128::from(total) {
                break;
            }
            let (set, bytes, sets) = classes.swap_remove(at);
            let waste = |(other, other_bytes, _): &(Destinations, u64, Vec<Destinations>)| {
                let union = set.union(other).len();
                u128::from(bytes) * u128::from(union - set.len())
                    + u128::from(*other_bytes) * u128::from(union - other.len())
            };
            let partner = classes.iter_mut().min_by_key(|class| (waste(class), class.0));
            let partner = partner.expect("another class is left");
            partner.0 = partner.0.union(&set);
            partner.1 += bytes;
            partner.2.extend(sets);
        }
        classes.sort_by_key(|(set, ..)| *set);
        let mut joined = Classes { all: self.all, ..Classes::default() };
        for (set, _, sets) in classes {
            // Two classes may have become equal by their unions.
            if joined.classes.last() != Some(&set) {
                joined.classes.push(set);
            }
            let number = joined.classes.len() - 1;
            joined.class_of.extend(sets.into_iter().map(|set| (set, number)));
        }
        joined
    }
}

impl Classes {
    /// Number of the class whose stream holds the contents that these destinations lack.
    ///
    /// Panics: if they were not counted, a mistake of the caller.
    pub fn class_of(&self, destinations: &Destinations) -> usize {
        let class = self.class_of.get(destinations).or_else(|| self.class_of.get(&self.all));
        *class.expect("the destinations were counted")
    }

    /// Destinations of each class.
    pub fn destinations(&self) -> &[Destinations] {
        &self.classes
    }
}

/// The streams of all classes, from the lacking parts in the order of the manifest: file, part, and
/// the destinations that lack it. They are read twice.
pub fn plan<I>(lacking: impl Fn() -> I) -> Vec<Class>
where
    I: Iterator<Item = (u64, ByteRange, Destinations)>,
{
    let mut census = Census::default();
    lacking().for_each(|(_, range, destinations)| census.count(destinations, range.len()));
    let classes = census.join();
    let empty = |set: &Destinations| Class { destinations: *set, stream: Layout::default() };
    let mut planned: Vec<Class> = classes.destinations().iter().map(empty).collect();
    for (file, range, destinations) in lacking() {
        if !destinations.is_empty() {
            planned[classes.class_of(&destinations)].stream.push(file, range);
        }
    }
    planned.retain(|class| class.stream.length_bytes() > 0);
    planned
}

#[cfg(test)]
mod tests;
