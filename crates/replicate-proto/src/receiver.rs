//! The sink: decodes arriving packets, checks the data, and hands it out to be written.
//!
//! A coded sink applies the plan's [`DecodeMap`]: with a lookahead it waits for later generations,
//! with a state it decodes generations strictly in order. A routed sink accepts chunks in any
//! order. A sink checks each generation or chunk against the hash in its packets before a byte is
//! written.
//!
//! Leaves out: files (the driver writes them; see [`Write`]).

use crate::plan::{DecodeMap, Mode};
use crate::relay::ReceiveBuffer;
use crate::symbol::CheckedSymbol;
use crate::work::WorkMap;
use anabranch_pieces::Piece;
use anabranch_pieces::{ByteRange, GenerationHash, RangeSet};
use std::collections::VecDeque;
use std::sync::Arc;

/// Bytes to be written to a sink's file: `parts` concatenated, truncated to the range's length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write<S> {
    /// The sink, as an index into the program's sinks.
    pub sink: usize,
    /// Position in the file.
    pub range: ByteRange,
    /// The parts to be written at this position.
    pub parts: Vec<S>,
    /// Hash of exactly these bytes.
    pub piece: Piece,
}

/// Whether decoded bytes equal the bytes that the source read.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum CheckResult {
    Good,
    Bad,
}

#[derive(Debug)]
pub(crate) struct Sink<S> {
    pub(crate) group: u16,
    mode: Mode,
    streams: usize,
    pub(crate) inputs: Vec<ReceiveBuffer<S>>,
    decode: Option<Arc<DecodeMap>>,
    map: WorkMap,
    next: u64,
    /// Number of generations with data; `None` while the source may still end before all of the
    /// work.
    end: Option<u64>,
    /// Number of later generations that must arrive before a generation is decoded while `end` is
    /// unknown. A generation with that many successors is data, not zeros.
    hold: usize,
    /// Decoded state; `None` while a job that changes it runs.
    state: Option<Vec<S>>,
    /// Generations or chunks between `take_job` and `handle_written`.
    in_flight: usize,
    capacity: usize,
    writes: VecDeque<Write<S>>,
    /// State of each input's chunks; only in a group that fills another group.
    confirming: Vec<ConfirmedPrefix>,
    reported_done: bool,
}

/// Chunks of one input that are in the file, counted from the first chunk without a gap.
#[derive(Debug, Default)]
struct ConfirmedPrefix {
    /// Accepted chunks, by their first byte, and whether they are in the file.
    taken: VecDeque<(u64, bool)>,
    confirmed: u64,
    /// Whether a chunk arrived wrong. That chunk and later chunks are then never confirmed, so the
    /// filled group carries them again.
    broken: bool,
}

impl ConfirmedPrefix {
    fn take(&mut self, start: u64) {
        if !self.broken {
            self.taken.push_back((start, false));
        }
    }
    fn settle(&mut self, start: u64) {
        if let Some(entry) = self.taken.iter_mut().find(|(s, written)| *s == start && !written) {
            entry.1 = true;
        }
        while let Some((_, true)) = self.taken.front() {
            self.taken.pop_front();
            self.confirmed += 1;
        }
    }
    fn spoil(&mut self, start: u64) {
        if self.taken.iter().any(|(s, _)| *s == start) {
            self.broken = true;
            self.taken.clear();
        }
    }
}

/// The properties of a group that its sink needs.
#[derive(Clone, Debug)]
pub(crate) struct SinkGroup {
    pub(crate) number: u16,
    pub(crate) mode: Mode,
    pub(crate) streams: usize,
    pub(crate) map: WorkMap,
    pub(crate) flush: usize,
    /// Whether the group's flows may end before all of the work.
    pub(crate) filled: bool,
    /// Whether the group fills another group.
    pub(crate) fills: bool,
}

/// A generation to be decoded and checked: pure work that may run anywhere.
#[derive(Debug)]
pub struct DecodeJob<S> {
    pub(crate) sink: usize,
    generation: u64,
    range: ByteRange,
    hash: GenerationHash,
    decode: Option<Arc<DecodeMap>>,
    /// Inputs, lookahead and state in the order of the decoder's columns.
    symbols: Vec<S>,
    streams: usize,
}

/// The result of a [`DecodeJob`].
#[derive(Debug)]
pub struct DecodeResult<S> {
    pub(crate) sink: usize,
    pub(crate) generation: u64,
    range: ByteRange,
    parts: Vec<S>,
    piece: Piece,
    pub(crate) check: CheckResult,
    state: Option<Vec<S>>,
}

impl<S: CheckedSymbol> DecodeJob<S> {
    pub(crate) fn run(self) -> DecodeResult<S> {
        let length = self.symbols.iter().map(|s| s.len()).max().unwrap_or(0);
        let (parts, state) = match &self.decode {
            None => (self.symbols, None),
            Some(decode) => {
                let parts = multiply(&decode.output, &self.symbols, length);
                let state = (decode.state > 0).then(|| {
                    let old = self.symbols.len() - usize::from(decode.state);
                    let columns: Vec<S> = self.symbols[old..].iter().chain(&parts).cloned().collect();
                    multiply(&decode.next, &columns, length)
                });
                (parts, state)
            }
        };
        debug_assert!(self.decode.is_none() || parts.len() == self.streams);
        let piece = S::hash_piece(&parts, self.range);
        // A hash of zeros means that no packet carried the hash (flows with only delayed terms).
        // The hash of the whole file then detects wrong data.
        let known = self.hash != GenerationHash::default();
        let check = if known && piece.hash != self.hash { CheckResult::Bad } else { CheckResult::Good };
        let Self { sink, generation, range, .. } = self;
        DecodeResult { sink, generation, range, parts, piece, check, state }
    }
}

fn multiply<S: CheckedSymbol>(matrix: &[Vec<u8>], columns: &[S], length: usize) -> Vec<S> {
    let row = |coefficients: &Vec<u8>| {
        let terms: Vec<(u8, &S)> =
            coefficients.iter().zip(columns).filter(|(c, _)| **c != 0).map(|(c, s)| (*c, s)).collect();
        S::combine(&terms, length)
    };
    matrix.iter().map(row).collect()
}

impl<S: CheckedSymbol> Sink<S> {
    pub(crate) fn new(
        group: SinkGroup,
        inputs: usize,
        decode: Option<DecodeMap>,
        capacity: usize,
        symbol_bytes: usize,
    ) -> Self {
        let lookahead = decode.as_ref().map_or(0, |d| usize::from(d.lookahead));
        let hold = if group.filled { lookahead.max(group.flush) } else { lookahead };
        let state = decode
            .as_ref()
            .map(|d| (0..d.state).map(|_| S::combine(&[], symbol_bytes)).collect())
            .unwrap_or_default();
        Self {
            group: group.number,
            mode: group.mode,
            streams: group.streams,
            inputs: (0..inputs).map(|_| ReceiveBuffer::new(capacity + hold)).collect(),
            decode: decode.map(Arc::new),
            end: (!group.filled).then_some(group.map.pieces()),
            hold,
            map: group.map,
            next: 0,
            state: Some(state),
            in_flight: 0,
            capacity,
            writes: VecDeque::new(),
            confirming: (0..if group.fills { inputs } else { 0 })
                .map(|_| ConfirmedPrefix::default())
                .collect(),
            reported_done: false,
        }
    }

    pub(crate) fn live_bytes(&self) -> usize {
        let writes = self.writes.iter().flat_map(|w| &w.parts).map(|p| p.len()).sum::<usize>();
        writes + self.inputs.iter().map(ReceiveBuffer::live_bytes).sum::<usize>()
    }
    pub(crate) fn is_done(&self) -> bool {
        self.reported_done
    }
    /// Whether the disk delays the flows.
    pub(crate) fn is_stalled(&self) -> bool {
        self.in_flight == self.capacity
    }

    pub(crate) fn take_job(&mut self, sink: usize) -> Option<DecodeJob<S>> {
        if self.in_flight == self.capacity {
            return None;
        }
        let job = match self.mode {
            Mode::Routed => {
                let (input, packet) =
                    self.inputs.iter_mut().enumerate().find_map(|(i, buffer)| Some((i, buffer.pop()?)))?;
                let range = self.map.piece(packet.generation).expect("chunk numbers are checked on arrival");
                if let Some(confirming) = self.confirming.get_mut(input) {
                    confirming.take(range.start);
                }
                DecodeJob {
                    sink,
                    generation: packet.generation,
                    range,
                    hash: packet.hash,
                    decode: None,
                    symbols: vec![packet.symbol],
                    streams: 1,
                }
            }
            Mode::Coded => {
                let decode = self.decode.as_ref()?;
                let over = self.end.is_some_and(|end| self.next >= end);
                let Some(range) = self.map.piece(self.next).filter(|_| !over) else {
                    // The remaining generations are zeros that flush other sinks. The sink must
                    // accept them, or the flows would stop.
                    for input in &mut self.inputs {
                        while input.pop().is_some() {}
                    }
                    return None;
                };
                let lookahead = usize::from(decode.lookahead);
                let wait = if self.end.is_some() { lookahead } else { self.hold };
                let arrived = self.inputs.iter().all(|i| (0..=wait).all(|d| i.get(d).is_some()));
                if !arrived || self.state.is_none() {
                    return None;
                }
                let at = |offset: usize| self.inputs.iter().filter_map(move |i| i.get(offset));
                let hash =
                    at(0).map(|p| p.hash).find(|h| *h != GenerationHash::default()).unwrap_or_default();
                let mut symbols: Vec<S> = (0..=lookahead).flat_map(at).map(|p| p.symbol.clone()).collect();
                symbols.extend(self.state.iter().flatten().cloned());
                if decode.state > 0 {
                    self.state = None;
                }
                for input in &mut self.inputs {
                    input.pop().expect("every input was seen to hold the generation");
                }
                self.next += 1;
                let (generation, decode) = (self.next - 1, Some(Arc::clone(decode)));
                DecodeJob { sink, generation, range, hash, decode, symbols, streams: self.streams }
            }
        };
        self.in_flight += 1;
        Some(job)
    }

    /// Accepts a job's result. Returns false for a generation that differs from the source's data.
    /// Data that the file already has is not written again.
    pub(crate) fn complete(&mut self, done: DecodeResult<S>, have: Option<&RangeSet>) -> bool {
        if let Some(state) = done.state {
            self.state = Some(state);
        }
        if done.check == CheckResult::Bad {
            self.in_flight -= 1;
            self.confirming.iter_mut().for_each(|c| c.spoil(done.range.start));
            return false;
        }
        if have.is_some_and(|h| h.contains(done.range)) {
            self.settle(done.range);
            return true;
        }
        self.writes.push_back(Write {
            sink: done.sink,
            range: done.range,
            parts: done.parts,
            piece: done.piece,
        });
        true
    }

    pub(crate) fn poll_write(&mut self) -> Option<Write<S>> {
        self.writes.pop_front()
    }

    /// Handles a finished write: `range`, the result of a job, is in the file.
    pub(crate) fn settle(&mut self, range: ByteRange) {
        self.in_flight -= 1;
        self.confirming.iter_mut().for_each(|c| c.settle(range.start));
    }

    /// Sets the number of generations with data that the source sends.
    pub(crate) fn set_end(&mut self, generations: u64) {
        self.end = Some(generations);
    }

    /// Number of packets of an input, from the first on, that are in the file.
    pub(crate) fn confirmed(&self, input: usize) -> u64 {
        self.confirming.get(input).map_or(0, |c| c.confirmed)
    }

    /// Whether all data of the sink's flows has been processed, given that they have `ended`.
    pub(crate) fn is_drained(&self, ended: bool) -> bool {
        let drained = match self.mode {
            Mode::Coded => self.end == Some(self.next),
            Mode::Routed => self.inputs.iter().all(|i| i.get(0).is_none()),
        };
        ended && drained && self.in_flight == 0
    }

    /// Returns true only at the first call at which the sink is `done`.
    pub(crate) fn poll_done(&mut self, done: bool) -> bool {
        done && !std::mem::replace(&mut self.reported_done, true)
    }
}
