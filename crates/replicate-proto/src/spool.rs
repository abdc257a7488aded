//! Store and forward: packets of an arriving flow, which a site puts by until the flow has arrived whole, and then passes on.
//!
//! Only plans of [`crate::plan::Scheme::SteinerStoreAndForward`] do so (CodedBulk section 4.1, the baseline's model); all
//! others pass data on as it comes. Packets lie where the driver puts them ([`crate::site::Site::poll_store`]) and come back
//! one by one, as the virtual link that waits for them has room ([`crate::site::Site::poll_fetch`]).
//!
//! Leaves out: the disk (the driver's), and how packets are combined (`relay`).

use crate::plan::FlowId;
use crate::relay::Packet;
use crate::symbol::Symbol;
use std::collections::VecDeque;

/// A packet to be put by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Store<S> {
    /// The flow that brought it.
    pub flow: FlowId,
    /// Its place among the flow's packets, from 0 in the order of their arrival.
    pub index: u64,
    /// The packet.
    pub packet: Packet<S>,
}

/// A packet to be taken back out.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Fetch {
    /// The flow that brought it.
    pub flow: FlowId,
    /// Its place, as it was stored.
    pub index: u64,
    /// Who takes it in.
    pub(crate) link: usize,
    pub(crate) term: usize,
}

/// What is put by of one arriving flow.
#[derive(Debug)]
pub(crate) struct Spool<S> {
    flow: FlowId,
    capacity: usize,
    /// Not handed to the driver yet.
    pending: VecDeque<Store<S>>,
    taken_in: u64,
    stored: u64,
    /// Packets in all, once the flow has ended.
    total: Option<u64>,
    readers: Vec<Reader>,
}

/// A virtual link that passes the flow on.
#[derive(Debug)]
struct Reader {
    link: usize,
    term: usize,
    /// The packet to ask for next.
    next: u64,
}

impl<S> Spool<S> {
    /// With room for `capacity` packets that the driver has not stored yet.
    pub(crate) fn new(flow: FlowId, capacity: usize) -> Self {
        let (pending, readers) = (VecDeque::new(), Vec::new());
        Self { flow, capacity, pending, taken_in: 0, stored: 0, total: None, readers }
    }
    pub(crate) fn add_reader(&mut self, link: usize, term: usize) {
        self.readers.push(Reader { link, term, next: 0 });
    }
    pub(crate) fn has_room(&self) -> bool {
        self.taken_in - self.stored < self.capacity as u64
    }
    pub(crate) fn insert(&mut self, packet: Packet<S>) {
        self.pending.push_back(Store { flow: self.flow, index: self.taken_in, packet });
        self.taken_in += 1;
    }
    /// The flow has `packets` packets. Names the links that pass them on.
    pub(crate) fn set_total(&mut self, packets: u64) -> impl Iterator<Item = usize> + '_ {
        self.total = Some(packets);
        self.readers.iter().map(|r| r.link)
    }
    pub(crate) fn poll_store(&mut self) -> Option<Store<S>> {
        self.pending.pop_front()
    }
    pub(crate) fn handle_stored(&mut self) {
        debug_assert!(self.stored < self.taken_in, "a packet is stored once");
        self.stored += 1;
    }
    /// The next packet that a link `has_room` for, once all are here.
    pub(crate) fn poll_fetch(&mut self, has_room: impl Fn(usize, usize, u64) -> bool) -> Option<Fetch> {
        if self.total != Some(self.stored) {
            return None;
        }
        let reader =
            self.readers.iter_mut().find(|r| r.next < self.stored && has_room(r.link, r.term, r.next))?;
        reader.next += 1;
        Some(Fetch { flow: self.flow, index: reader.next - 1, link: reader.link, term: reader.term })
    }
    pub(crate) fn live_bytes(&self) -> usize
    where
        S: Symbol,
    {
        self.pending.iter().map(|s| s.packet.symbol.len()).sum()
    }
}
