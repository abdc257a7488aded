//! The source: cuts the work into generations or chunks and hands them to its virtual links.
//!
//! A coded group takes generation after generation, all streams of one at once. A routed group takes chunk after chunk,
//! each on the stream that has most room, so that a slow tree carries less instead of holding the others up.
//!
//! Leaves out: reading the file (the driver does, when [`crate::site::Site::wanted`] says so).

use crate::plan::Mode;
use crate::work::WorkMap;

/// A group's progress at the source.
#[derive(Debug)]
pub(crate) struct SourceGroup {
    pub(crate) mode: Mode,
    pub(crate) map: WorkMap,
    /// Next generation or chunk to be supplied.
    pub(crate) next: u64,
    /// Zero generations to append to a coded group.
    pub(crate) flush: u64,
    /// Packets handed to each stream.
    pub(crate) sent: Vec<u64>,
    pub(crate) ended: bool,
}

impl SourceGroup {
    pub(crate) fn new(mode: Mode, map: WorkMap, streams: usize, flush: u64) -> Self {
        Self { mode, map, next: 0, flush, sent: vec![0; streams], ended: false }
    }
    /// True while there is work to supply.
    pub(crate) fn has_work(&self) -> bool {
        self.next < self.map.pieces()
    }
    /// True while zeros must follow the work.
    pub(crate) fn must_flush(&self) -> bool {
        !self.has_work() && self.next < self.map.pieces() + self.flush
    }
}
