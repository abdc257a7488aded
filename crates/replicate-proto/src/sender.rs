//! The source: cuts the work into generations or chunks and hands them to its virtual links.
//!
//! A coded group takes generation after generation, all streams of one at once. A routed group takes chunk after chunk,
//! each on the stream that has most room, so that a slow tree carries less instead of holding the others up.
//!
//! A group that *fills* another (CodedBulk section 3.2, Figure 6) takes chunks from the end of the same work on. Its flows
//! have the lowest priority and may stand still for ever, so a chunk on them counts only once every destination on
//! the way has confirmed it; until then the filled group goes on as if the chunk had not been sent. When the two meet, each chunk
//! that is not confirmed goes again on a stream on which it was not sent, the last chunk first: one tree that stands still holds
//! no others back.
//!
//! Leaves out: reading the file (the driver does, when [`crate::site::Site::wanted`] says so).

use crate::plan::Mode;
use crate::work::WorkMap;
use std::collections::{BTreeMap, VecDeque};

/// Chunks that a stream which fills may have on the way unconfirmed, at first; one more for each that is confirmed. So a
/// stream that stands still takes few.
const UNCONFIRMED_FIRST: u64 = 16;
/// The most: more than buffers hold, so a bound on memory only.
const UNCONFIRMED_MAX: u64 = 1024;

/// A group's progress at the source.
#[derive(Debug)]
pub(crate) struct SourceGroup {
    pub(crate) mode: Mode,
    pub(crate) map: WorkMap,
    /// Generations or chunks supplied.
    pub(crate) next: u64,
    /// Zero generations to append to a coded group.
    pub(crate) flush: u64,
    /// Packets handed to each stream.
    pub(crate) sent: Vec<u64>,
    /// Generations or chunks that it supplies in all, once that is settled.
    pub(crate) end: Option<u64>,
    pub(crate) ended: bool,
    /// Of a group that fills another.
    pub(crate) filling: Option<Filling>,
}

/// What a group that fills another has on the way.
#[derive(Debug)]
pub(crate) struct Filling {
    /// The group that it fills.
    pub(crate) group: u16,
    /// Chunks that a stream has on the way, in the order sent.
    on_the_way: Vec<VecDeque<u64>>,
    /// Chunks that no stream has confirmed, with the stream that each went on first.
    open: BTreeMap<u64, usize>,
    /// The last chunk that went again on a stream; those after it did before.
    again: Vec<u64>,
}

impl SourceGroup {
    pub(crate) fn new(mode: Mode, map: WorkMap, streams: usize, flush: u64, fills: Option<u16>) -> Self {
        let filling = fills.map(|group| Filling {
            group,
            on_the_way: vec![VecDeque::new(); streams],
            open: BTreeMap::new(),
            again: vec![u64::MAX; streams],
        });
        Self { mode, map, next: 0, flush, sent: vec![0; streams], end: None, ended: false, filling }
    }
    /// True while zeros must follow the work.
    pub(crate) fn must_flush(&self) -> bool {
        self.end.is_some_and(|end| self.next < end + self.flush)
    }
    /// Number of the next generation or chunk that was not supplied before.
    pub(crate) fn upcoming(&self) -> Option<u64> {
        match self.filling {
            None => Some(self.next).filter(|n| *n < self.map.pieces()),
            Some(_) => (self.map.pieces() - self.next).checked_sub(1),
        }
    }
    /// Its first byte.
    pub(crate) fn upcoming_byte(&self) -> Option<u64> {
        self.upcoming().and_then(|n| self.map.piece(n)).map(|p| p.start)
    }
    /// Whether `stream` may have one more chunk on the way.
    pub(crate) fn may_send(&self, stream: usize) -> bool {
        self.filling.as_ref().is_none_or(|f| {
            let open = f.on_the_way[stream].len() as u64;
            open < UNCONFIRMED_MAX.min(UNCONFIRMED_FIRST + self.sent[stream] - open)
        })
    }
    /// The chunk that is worth sending again, on `stream`.
    pub(crate) fn again(&self, stream: usize) -> Option<u64> {
        let filling = self.filling.as_ref()?;
        let below = filling.open.range(..filling.again[stream]);
        below.rev().find(|(_, first)| **first != stream).map(|(chunk, _)| *chunk)
    }
    /// Whether a chunk that was sent is not confirmed.
    pub(crate) fn has_open(&self) -> bool {
        self.filling.as_ref().is_some_and(|f| !f.open.is_empty())
    }
    /// Notes that `chunk` goes on `stream`.
    pub(crate) fn send(&mut self, stream: usize, chunk: u64) {
        let is_new = self.upcoming() == Some(chunk);
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
    /// The first `packets` packets of `stream` are where they belong.
    pub(crate) fn confirm(&mut self, stream: usize, packets: u64) {
        let Some(filling) = &mut self.filling else { return };
        let left = self.sent[stream].saturating_sub(packets) as usize;
        let over = filling.on_the_way[stream].len().saturating_sub(left);
        for chunk in filling.on_the_way[stream].drain(..over) {
            filling.open.remove(&chunk);
        }
    }
    /// The byte from which on all of the work is confirmed. Never grows.
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
