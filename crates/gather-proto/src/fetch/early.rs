//! The beginning of an object, which is pulled while its server is asked what the object is: its first bytes come a round trip sooner.
//! Of several objects descriptions come together, and short ones whole with them (`short`): there it is not done.
//!
//! The server is asked for [`EARLY_BYTES`], cut to the object's end, as the length is not known yet. What comes waits until the
//! object's place is open. Where all of the beginning is lacking there, it is written, and what is still on its way becomes a piece
//! like others, which any holder may bring. Otherwise it is dropped: where the object was there in part, where it is not of the
//! length that was said, or where another server has said what the object is. What fails here fails nothing else: the rest goes as
//! if nobody had been asked.
//!
//! Leaves out: whose word counts (`describe`).

use super::{Fetch, Stage};
use crate::client::{ClientEvent, PieceId, ServerId};
use anabranch_codes::Symbol;
use anabranch_endpoint::Bytes;
use anabranch_units::Instant;
use std::ops::Range;

/// How much is asked for of a beginning: one generation as the service cuts them. From the first packet on it is enough for the round
/// trip until the other holders' packets come: a sender that starts with 72 kB and doubles sends no more in that time.
pub const EARLY_BYTES: u64 = 256 << 10;

/// A beginning.
#[derive(Debug)]
pub(super) struct Early<S> {
    pub piece: PieceId,
    object: usize,
    server: ServerId,
    /// How long its server's object is, once that is said.
    object_bytes: Option<u64>,
    /// What has come.
    blocks: Vec<(Range<u64>, Vec<S>)>,
    is_complete: bool,
}

impl<S: Symbol + From<Bytes>> Fetch<S> {
    /// Bytes that have come before their object's place was open; at most [`EARLY_BYTES`].
    pub fn early_bytes(&self) -> u64 {
        let all = self.early.iter().flat_map(|early| &early.blocks);
        all.map(|(range, _)| range.end - range.start).sum()
    }

    /// Asks the server that is asked what an object is for its beginning, too.
    pub(super) fn ask_early(&mut self, now: Instant, object: usize, server: ServerId) {
        debug_assert_eq!(self.objects[object].stage, Stage::Describing, "its length is not known");
        let name = self.objects[object].wanted.parts[0].name.clone();
        let piece = self.client.add_beginning(name, EARLY_BYTES, server);
        self.pieces.push(Some((object, 0)));
        let blocks = Vec::new();
        self.early = Some(Early { piece, object, server, object_bytes: None, blocks, is_complete: false });
        self.client.begin(now);
    }

    /// Drops what has come of a beginning and is on its way.
    pub(super) fn drop_early(&mut self, now: Instant, object: usize) {
        if let Some(early) = self.early.take_if(|early| early.object == object) {
            self.pieces[early.piece.0 as usize] = None;
            self.client.cancel(now, early.piece);
        }
    }

    /// Takes in what the client says of a beginning.
    pub(super) fn on_early(&mut self, event: ClientEvent<S>) {
        let Some(early) = &mut self.early else { return };
        match event {
            ClientEvent::Accepted { object_bytes, .. } => early.object_bytes = Some(object_bytes),
            ClientEvent::Blocks { range, blocks, .. } => early.blocks.push((range, blocks)),
            ClientEvent::Complete { .. } => early.is_complete = true,
            ClientEvent::Failed { piece, .. } => {
                self.early = None;
                self.pieces[piece.0 as usize] = None;
            }
            // It is no other version before its length is known, and a server that leaves it was the only one.
            ClientEvent::OtherVersion { .. } | ClientEvent::Left { .. } => {}
        }
    }

    /// An object's place is open, and lacks this: takes what has come of its beginning. What is lacking besides, and how many pieces
    /// of it are on their way.
    pub(super) fn take_early(
        &mut self,
        now: Instant,
        object: usize,
        missing: &[Range<u64>],
    ) -> (Vec<Range<u64>>, usize) {
        let mut missing = missing.to_vec();
        let it = &self.objects[object];
        let bytes = it.wanted.bytes.unwrap_or(0);
        let end = bytes.min(EARLY_BYTES);
        let lacks_all = end > 0 && missing.first().is_some_and(|first| first.start == 0 && first.end >= end);
        let asked = it.asked_server();
        let is_its = |early: &Early<S>| {
            early.object == object
                && Some(early.server) == asked
                && early.object_bytes.is_none_or(|said| said == bytes)
        };
        if !(lacks_all && self.early.as_ref().is_some_and(is_its)) {
            self.drop_early(now, object);
            return (missing, 0);
        }
        let Some(early) = self.early.take() else { return (missing, 0) };
        early.blocks.into_iter().for_each(|(range, blocks)| self.write(object, range, blocks));
        missing[0].start = end;
        missing.retain(|range| !range.is_empty());
        if early.is_complete {
            return (missing, 0);
        }
        let holders = self.objects[object].wanted.parts[0].holders.clone();
        self.client.widen(early.piece, holders, bytes);
        (missing, 1)
    }
}
