//! The source: divides the work into generations or chunks and passes them to its virtual links.
//!
//! A coded group sends generation after generation, all streams of a generation at once. A routed
//! group sends chunk after chunk, each on the stream with the most room. A slow tree therefore
//! carries less data and does not delay other trees. A stream that shares a link with a heavier one
//! is limited to its planned rate, because TCP would give both the same rate.
//!
//! A group that *fills* another group (CodedBulk section 3.2, Figure 6) takes chunks from the end
//! of the same work. Its flows have the lowest priority and may never advance, so a chunk on them
//! counts only once every destination on the path has confirmed the chunk. Until then the filled
//! group continues as if the chunk had not been sent. When the two groups meet, each unconfirmed
//! chunk is sent again on a stream other than its first, the last chunk first. One stalled tree
//! therefore does not delay the other trees.
//!
//! Leaves out: reading the file (the driver does so, when [`crate::site::Site::wanted`] asks for
//! it).

use crate::pace::Pace;
use crate::plan::Mode;
use crate::work::WorkMap;
use anabranch_units::{ByteCount, Instant};
use std::collections::{BTreeMap, VecDeque};

/// Initial number of unconfirmed chunks that a filling stream may have in transit. The number grows
/// by one for each confirmed chunk, so a stalled stream holds few chunks.
const UNCONFIRMED_FIRST: u64 = 16;
/// Maximum number of unconfirmed chunks of a filling stream. It exceeds the capacity of the buffers
/// and only bounds memory.
const UNCONFIRMED_MAX: u64 = 1024;

/// A group's progress at the source.
#[derive(Debug)]
pub(crate) struct SourceGroup {
    pub(crate) mode: Mode,
    pub(crate) map: WorkMap,
    /// Number of supplied generations or chunks.
    pub(crate) next: u64,
    /// Number of zero generations to append to a coded group.
    pub(crate) flush: u64,
    /// Number of packets passed to each stream.
    pub(crate) sent: Vec<u64>,
    /// The pace of each rate-limited stream, by stream. Streams after the last entry have no limit.
    pub(crate) paces: Vec<Option<Pace>>,
    /// Total number of generations or chunks that the group supplies, once known.
    pub(crate) end: Option<u64>,
    pub(crate) ended: bool,
    /// State of a group that fills another group; `None` for other groups.
    pub(crate) filling: Option<FillState>,
}

/// Chunks in transit of a group that fills another group.
#[derive(Debug)]
pub(crate) struct FillState {
    /// The group that this group fills.
    pub(crate) group: u16,
    /// Chunks of each stream in transit, in the order of sending.
    on_the_way: Vec<VecDeque<u64>>,
    /// Chunks that no stream has confirmed, with the stream on which each was first sent.
    open: BTreeMap<u64, usize>,
    /// For each stream, the last chunk that was sent again on it. Chunks are sent again in
    /// descending order.
    again: Vec<u64>,
}

impl SourceGroup {
    pub(crate) fn new(mode: Mode, map: WorkMap, streams: usize, flush: u64, fills: Option<u16>) -> Self {
        let filling = fills.map(|group| FillState {
            group,
            on_the_way: vec![VecDeque::new(); streams],
            open: BTreeMap::new(),
            again: vec![u64::MAX; streams],
        });
        let (sent, paces) = (vec![0; streams], Vec::new());
        Self { mode, map, next: 0, flush, sent, paces, end: None, ended: false, filling }
    }
    /// Whether zeros must follow the work.
    pub(crate) fn must_flush(&self) -> bool {
        self.end.is_some_and(|end| self.next < end + self.flush)
    }
    /// Number of the next generation or chunk that has not been supplied.
    pub(crate) fn upcoming(&self) -> Option<u64> {
        match self.filling {
            None => Some(self.next).filter(|n| *n < self.map.pieces()),
            Some(_) => (self.map.pieces() - self.next).checked_sub(1),
        }
    }
    /// First byte of the next piece that has not been supplied.
    pub(crate) fn upcoming_byte(&self) -> Option<u64> {
        self.upcoming().and_then(|n| self.map.piece(n)).map(|p| p.start)
    }
    /// Time at which the pace of `stream` permits its next chunk.
    pub(crate) fn due(&self, stream: usize) -> Instant {
        self.paces.get(stream).and_then(Option::as_ref).map_or(Instant::ZERO, Pace::due)
    }
    /// Whether `stream` may have one more chunk in transit.
    pub(crate) fn may_send(&self, stream: usize, now: Instant) -> bool {
        self.due(stream) <= now && self.may_have_open(stream)
    }
    fn may_have_open(&self, stream: usize) -> bool {
        self.filling.as_ref().is_none_or(|f| {
            let open = f.on_the_way[stream].len() as u64;
            open < UNCONFIRMED_MAX.min(UNCONFIRMED_FIRST + self.sent[stream] - open)
        })
    }
    /// The chunk to be sent again on `stream`.
    pub(crate) fn again(&self, stream: usize) -> Option<u64> {
        let filling = self.filling.as_ref()?;
        let below = filling.open.range(..filling.again[stream]);
        below.rev().find(|(_, first)| **first != stream).map(|(chunk, _)| *chunk)
    }
    /// Whether a sent chunk is unconfirmed.
    pub(crate) fn has_open(&self) -> bool {
        self.filling.as_ref().is_some_and(|f| !f.open.is_empty())
    }
    /// Records that `chunk` is sent on `stream` now.
    pub(crate) fn send(&mut self, now: Instant, stream: usize, chunk: u64) {
        let is_new = self.upcoming() == Some(chunk);
        if let Some(pace) = self.paces.get_mut(stream).and_then(Option::as_mut) {
            pace.spend(now, ByteCount::new(self.map.piece(chunk).map_or(0, |piece| piece.len())));
        }
        self.sent[stream] += 1;
        self.next += u64::from(is_new);
        if let Some(filling) = &mut self.filling {
            filling.on_the_way[stream].push_back(chunk);
            if is_new {
                filling.open.insert(chunk, stream);
            } else {
                filling.again[stream] = chunk;
            }
        }
    }
    /// Records that the first `packets` packets of `stream` are confirmed.
    pub(crate) fn confirm(&mut self, stream: usize, packets: u64) {
        let Some(filling) = &mut self.filling else { return };
        let left = self.sent[stream].saturating_sub(packets) as usize;
        let over = filling.on_the_way[stream].len().saturating_sub(left);
        for chunk in filling.on_the_way[stream].drain(..over) {
            filling.open.remove(&chunk);
        }
    }
    /// The position in the file after which all work is confirmed. Never grows.
    pub(crate) fn confirmed_from(&self) -> u64 {
        let last = self.filling.as_ref().and_then(|f| f.open.last_key_value());
        let piece = |n: u64| self.map.piece(n).expect("a chunk that was supplied is of the work");
        match last {
            Some((last, _)) => piece(*last).end,
            None if self.next == 0 => u64::MAX,
            None => piece(self.map.pieces() - self.next).start,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_pieces::ByteRange;
    use anabranch_units::{BitRate, Duration};

    /// #48: without a limit at the source, light streams on a shared link exceed their rates.
    #[test]
    fn a_stream_with_a_ceiling_sends_at_its_rate() {
        let work = [ByteRange { start: 0, end: 1_000_000 }];
        let map = WorkMap::new(&work, 1_000).expect("good work");
        let mut group = SourceGroup::new(Mode::Routed, map, 2, 0, None);
        group.paces = vec![Some(Pace::new(BitRate::mbps(1))), None];
        let mut send_until = |from_ms: u64, to_ms: u64| {
            let before = group.sent[0];
            for now in (from_ms..to_ms).map(|ms| Instant::ZERO + Duration::from_ms(ms)) {
                while group.may_send(0, now) {
                    group.send(now, 0, group.next);
                }
                assert!(group.may_send(1, now), "the other stream has no ceiling");
            }
            group.sent[0] - before
        };
        assert_eq!(send_until(0, 1_000), 125, "1,000 bytes in each 8 ms");
        // After two seconds without room, the stream catches up for 50 ms, not for two seconds.
        assert_eq!(send_until(3_000, 4_000), 125 + 7);
    }
}
