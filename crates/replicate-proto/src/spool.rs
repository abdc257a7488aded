//! Store and forward: a site stores the packets of an incoming flow until the flow has arrived
//! completely, and then passes them on.
//!
//! Only plans of [`crate::plan::Scheme::SteinerStoreAndForward`] do so (CodedBulk section 4.1, the
//! model of the baseline). Sites of all other plans pass data on as it arrives. The driver chooses
//! where to store the packets ([`crate::site::Site::poll_store`]). It returns them one by one, when
//! the virtual link that waits for them has room ([`crate::site::Site::poll_fetch`]).
//!
//! Leaves out: the disk (the driver's), and the combination of packets (`relay`).

use crate::plan::FlowId;
use crate::relay::Packet;
use crate::symbol::Symbol;
use std::collections::VecDeque;

/// A packet to be stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Store<S> {
    /// The flow of the packet.
    pub flow: FlowId,
    /// The packet's index among the flow's packets, from 0 in the order of their arrival.
    pub index: u64,
    /// The packet.
    pub packet: Packet<S>,
}

/// A packet to be fetched from the store.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Fetch {
    /// The flow of the packet.
    pub flow: FlowId,
    /// The packet's index when it was stored.
    pub index: u64,
    /// The virtual link and the term that need the packet.
    pub(crate) link: usize,
    pub(crate) term: usize,
}

/// The stored packets of one incoming flow.
#[derive(Debug)]
pub(crate) struct Spool<S> {
    flow: FlowId,
    capacity: usize,
    /// Packets that the driver has not received yet.
    pending: VecDeque<Store<S>>,
    taken_in: u64,
    stored: u64,
    /// Total number of packets, once the flow has ended.
    total: Option<u64>,
    readers: Vec<Reader>,
}

/// A virtual link that passes the flow on.
#[derive(Debug)]
struct Reader {
    link: usize,
    term: usize,
    /// Index of the next packet to fetch.
    next: u64,
}

impl<S> Spool<S> {
    /// A spool with room for `capacity` packets that the driver has not stored yet.
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
    /// Sets the flow's number of packets. Returns the links that pass them on.
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
    /// The next packet for which a link `has_room`, once all packets of the flow have arrived.
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
