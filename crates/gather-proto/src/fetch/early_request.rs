//! Early request for the beginning of an object: the beginning is pulled while its server is asked
//! for the description, so the first bytes arrive a round trip sooner. A fetch of several objects
//! makes no such request, because descriptions arrive together and short objects arrive whole with
//! them (`short`).
//!
//! The server is asked for [`EARLY_BYTES`], or fewer if the object ends before. Received blocks
//! wait until the object's destination is open. If the whole beginning is missing there, the blocks
//! are written, and the bytes in flight become an ordinary piece, which any holder may deliver. The
//! beginning is dropped if the object was partly present, if its length differs from the
//! description, or if another server has described the object. A failure of the early request
//! affects nothing else: the fetch continues as if the beginning had not been requested.
//!
//! Leaves out: the choice of the describing server (`describe`).

use super::{Fetch, ObjectStage};
use crate::client::{ClientEvent, PieceId, ServerId};
use anabranch_codes::Symbol;
use anabranch_endpoint::Bytes;
use anabranch_units::Instant;
use std::ops::Range;

/// Length in bytes of the requested beginning of an object: one generation of the service's layout.
/// The beginning keeps its server busy until packets of the other holders arrive, a round trip
/// later. A sender that starts with 72 kB and doubles sends no more in that time.
pub const EARLY_BYTES: u64 = 256 << 10;

/// An early request for the beginning of an object.
#[derive(Debug)]
pub(super) struct EarlyRequest<S> {
    pub piece: PieceId,
    object: usize,
    server: ServerId,
    /// Length of the object at its server, once known.
    object_bytes: Option<u64>,
    /// Received blocks, each with its byte range.
    blocks: Vec<(Range<u64>, Vec<S>)>,
    is_complete: bool,
}

impl<S: Symbol + From<Bytes>> Fetch<S> {
    /// Number of bytes received before the object's destination was open; at most [`EARLY_BYTES`].
    pub fn early_bytes(&self) -> u64 {
        let all = self.early.iter().flat_map(|early| &early.blocks);
        all.map(|(range, _)| range.end - range.start).sum()
    }

    /// Requests the object's beginning from the describing server, in addition to the description.
    pub(super) fn ask_early(&mut self, now: Instant, object: usize, server: ServerId) {
        debug_assert_eq!(self.objects[object].stage, ObjectStage::Describing, "its length is not known");
        let name = self.objects[object].wanted.parts[0].name.clone();
        let piece = self.client.add_beginning(name, EARLY_BYTES, server);
        self.pieces.push(Some((object, 0)));
        let blocks = Vec::new();
        self.early =
            Some(EarlyRequest { piece, object, server, object_bytes: None, blocks, is_complete: false });
        self.client.begin(now);
    }

    /// Drops the received blocks of an object's beginning, and cancels its pull.
    pub(super) fn drop_early(&mut self, now: Instant, object: usize) {
        if let Some(early) = self.early.take_if(|early| early.object == object) {
            self.pieces[early.piece.0 as usize] = None;
            self.client.cancel(now, early.piece);
        }
    }

    /// Handles the client's events about the early request.
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
            // A length mismatch cannot occur before the length is known, and no other server is
            // asked for the beginning.
            ClientEvent::OtherVersion { .. } | ClientEvent::Left { .. } => {}
        }
    }

    /// Uses the beginning of an object whose destination is open and lacks `missing`. Returns the
    /// other missing ranges, and the number of the beginning's pieces still in flight.
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
        let is_its = |early: &EarlyRequest<S>| {
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
