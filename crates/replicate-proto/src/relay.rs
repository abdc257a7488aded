//! Virtual links: how a site makes an outgoing flow from arriving ones (CodedBulk section 3.3,
//! Figure 7).
//!
//! Each outgoing flow has one transmit buffer (vTx), and one receive buffer (vRx) for each term.
//! One packet from every vRx is taken at once, coded, and put in the vTx. Every buffer holds at
//! least one packet and never more than its share. A full buffer stops its reader, TCP's window
//! closes, and the previous hop stops. This is the entire hop-by-hop flow control (section 3.2).
//!
//! Freedom from deadlock: a vRx always has room for the generation that its virtual link needs
//! next, a packet of generation `g` depends only on generations up to `g`, and a delayed term only
//! on `g - 1`. The smallest unfinished generation can therefore always advance, with any buffer
//! size and also if flows form a cycle.
//!
//! Leaves out: the set of flows (`plan`), sockets, and the origin of the source's data (`sender`).

use crate::plan::{FlowId, Mode, Term};
use crate::symbol::Symbol;
use anabranch_pieces::GenerationHash;
use anabranch_units::{Duration, Instant};
use std::collections::VecDeque;

/// One packet of a flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet<S> {
    /// Generation (coded group) or chunk number (routed group).
    pub generation: u64,
    /// Hash of the generation's or chunk's plain bytes; all zero if the flow does not carry the
    /// hash.
    pub hash: GenerationHash,
    /// The packet's symbol.
    pub symbol: S,
}

/// A frame that a flow passes to its connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame<S> {
    /// A packet.
    Data(Packet<S>),
    /// The end of the flow.
    End {
        /// Number of packets sent on the flow.
        packets: u64,
    },
}

/// vRx: the packets of one input that wait for packets of the other inputs, by index from the next
/// needed packet.
///
/// The index is the generation in a coded group, and the order of arrival in a routed group.
#[derive(Debug)]
pub(crate) struct ReceiveBuffer<S> {
    base: u64,
    slots: VecDeque<Option<Packet<S>>>,
    capacity: usize,
}

impl<S> ReceiveBuffer<S> {
    pub(crate) fn new(capacity: usize) -> Self {
        debug_assert!(capacity >= 1, "an empty share would deadlock (section 3.2)");
        Self { base: 0, slots: VecDeque::new(), capacity }
    }
    pub(crate) fn has_room(&self, index: u64) -> bool {
        index < self.base + self.capacity as u64
    }
    /// Number of free slots.
    pub(crate) fn free(&self) -> usize {
        self.capacity - self.slots.iter().flatten().count()
    }
    pub(crate) fn holds(&self, index: u64) -> bool {
        index < self.base || self.slots.get((index - self.base) as usize).is_some_and(Option::is_some)
    }
    pub(crate) fn insert(&mut self, index: u64, packet: Packet<S>) {
        debug_assert!(self.has_room(index) && !self.holds(index));
        let at = (index - self.base) as usize;
        while self.slots.len() <= at {
            self.slots.push_back(None);
        }
        self.slots[at] = Some(packet);
    }
    pub(crate) fn get(&self, offset: usize) -> Option<&Packet<S>> {
        self.slots.get(offset)?.as_ref()
    }
    pub(crate) fn live_bytes(&self) -> usize
    where
        S: Symbol,
    {
        self.slots.iter().flatten().map(|p| p.symbol.len()).sum()
    }
    pub(crate) fn pop(&mut self) -> Option<Packet<S>> {
        self.slots.front()?.as_ref()?;
        self.base += 1;
        self.slots.pop_front()?
    }
}

/// An outgoing flow and its buffers.
#[derive(Debug)]
pub(crate) struct VirtualLink<S> {
    pub(crate) flow: FlowId,
    mode: Mode,
    terms: Vec<Term>,
    receive: Vec<ReceiveBuffer<S>>,
    /// vTx in order; `None` while the packet is being coded.
    transmit: VecDeque<Option<Packet<S>>>,
    /// Number of the packet at the front of `transmit`.
    transmit_base: u64,
    /// Number of the next packet to code.
    next: u64,
    /// Total number of packets of the flow, once known.
    total: Option<u64>,
    end_taken: bool,
    /// Number of packets that the next site has confirmed; only for filling flows.
    confirmed: u64,
    capacity: usize,
    /// Fixed length of every symbol, if delayed terms mix generations.
    symbol_bytes: Option<usize>,
    padding: Padding,
}

/// Time for which a flow is padded: the start of a connection plus the time of a measurement
/// ([`crate::coordinator`]), and half of their sum as a reserve.
const PADDING_TIME: Duration = Duration::from_ms(4_000);

/// Padding of a flow, which loads its hop while no data is ready.
#[derive(Debug, Default)]
struct Padding {
    /// Bytes that may still be sent.
    left: u64,
    /// Time of the first padding.
    since: Option<Instant>,
}

/// A packet to be coded: pure work that may run anywhere.
#[derive(Debug)]
pub struct CodeJob<S> {
    pub(crate) link: usize,
    pub(crate) number: u64,
    generation: u64,
    hash: GenerationHash,
    terms: Vec<(u8, S)>,
    length: usize,
}

impl<S: Symbol> CodeJob<S> {
    pub(crate) fn run(self) -> (usize, u64, Packet<S>) {
        let terms: Vec<(u8, &S)> = self.terms.iter().map(|(c, s)| (*c, s)).collect();
        let symbol = S::combine(&terms, self.length);
        (self.link, self.number, Packet { generation: self.generation, hash: self.hash, symbol })
    }
}

impl<S: Symbol> VirtualLink<S> {
    pub(crate) fn new(
        flow: FlowId,
        mode: Mode,
        terms: Vec<Term>,
        capacity: usize,
        symbol_bytes: Option<usize>,
    ) -> Self {
        let receive = terms.iter().map(|_| ReceiveBuffer::new(capacity)).collect();
        Self {
            flow,
            mode,
            terms,
            receive,
            transmit: VecDeque::new(),
            transmit_base: 0,
            next: 0,
            total: None,
            end_taken: false,
            confirmed: 0,
            capacity,
            symbol_bytes,
            padding: Padding::default(),
        }
    }

    /// Allows padding of `bytes` bytes.
    pub(crate) fn with_padding(self, bytes: u64) -> Self {
        Self { padding: Padding { left: bytes, since: None }, ..self }
    }

    /// Length of the padding to be sent now, at most `most` bytes. `None` unless the flow has
    /// begun, has no data ready, and has no known end.
    pub(crate) fn poll_padding(&mut self, now: Instant, most: u64) -> Option<u64> {
        let waits = self.transmit_base > 0 && self.transmit.is_empty() && self.total.is_none();
        if !waits || self.padding.left == 0 {
            return None;
        }
        let since = *self.padding.since.get_or_insert(now);
        if now >= since + PADDING_TIME {
            self.padding.left = 0;
            return None;
        }
        let length = self.padding.left.min(most);
        self.padding.left -= length;
        Some(length)
    }

    pub(crate) fn receive(&self, term: usize) -> &ReceiveBuffer<S> {
        &self.receive[term]
    }
    pub(crate) fn receive_mut(&mut self, term: usize) -> &mut ReceiveBuffer<S> {
        &mut self.receive[term]
    }
    pub(crate) fn live_bytes(&self) -> usize {
        let receive: usize = self.receive.iter().map(ReceiveBuffer::live_bytes).sum();
        receive + self.transmit.iter().flatten().map(|p| p.symbol.len()).sum::<usize>()
    }
    /// Number of free slots of the vTx. The flow can still accept this number of packets plus the
    /// free slots of the vRx.
    pub(crate) fn transmit_free(&self) -> usize {
        self.capacity - self.transmit.len()
    }

    /// Sets the total number of packets of the flow.
    pub(crate) fn set_total(&mut self, packets: u64) {
        self.total = Some(packets);
    }

    /// Takes one packet from every vRx, if all have one and the vTx has room.
    pub(crate) fn take_job(&mut self, link: usize) -> Option<CodeJob<S>> {
        if self.transmit.len() == self.capacity || self.total == Some(self.next) {
            return None;
        }
        let first = self.next == 0;
        let ready =
            self.terms.iter().zip(&self.receive).all(|(t, r)| (t.delayed && first) || r.get(0).is_some());
        if !ready {
            return None;
        }
        let (mut generation, mut hash) = (self.next, GenerationHash::default());
        let mut terms = Vec::with_capacity(self.terms.len());
        for (term, receive) in self.terms.iter().zip(&mut self.receive) {
            if term.delayed && first {
                continue;
            }
            let packet = receive.pop().expect("every vRx was seen to hold its packet");
            if !term.delayed {
                // A relay that received two different hashes passes on the first, and the sink then
                // detects the damage.
                (generation, hash) = (packet.generation, packet.hash);
            }
            terms.push((term.coefficient, packet.symbol));
        }
        let longest = terms.iter().map(|(_, s)| s.len()).max().unwrap_or(0);
        let job = CodeJob {
            link,
            number: self.next,
            generation,
            hash,
            terms,
            length: self.symbol_bytes.unwrap_or(longest),
        };
        debug_assert!(self.mode == Mode::Routed || job.generation == self.next);
        self.transmit.push_back(None);
        self.next += 1;
        Some(job)
    }

    /// Puts a coded packet at its position in the vTx.
    pub(crate) fn complete(&mut self, number: u64, packet: Packet<S>) {
        let slot = &mut self.transmit[(number - self.transmit_base) as usize];
        debug_assert!(slot.is_none(), "a packet is coded once");
        *slot = Some(packet);
    }

    /// Whether `produce` returns a frame.
    pub(crate) fn can_produce(&self) -> bool {
        self.transmit.front().map_or(self.ended() && !self.end_taken, Option::is_some)
    }

    fn ended(&self) -> bool {
        self.total == Some(self.next) && self.transmit.is_empty()
    }

    /// The next frame for the flow's connection.
    pub(crate) fn produce(&mut self) -> Option<Frame<S>> {
        if let Some(Some(_)) = self.transmit.front() {
            self.transmit_base += 1;
            return self.transmit.pop_front().flatten().map(Frame::Data);
        }
        (self.ended() && !std::mem::replace(&mut self.end_taken, true))
            .then_some(Frame::End { packets: self.next })
    }

    /// Records that the next site has confirmed the first `packets` packets. Returns false if they
    /// were not all sent, or if the number is lower than before.
    pub(crate) fn confirm(&mut self, packets: u64) -> bool {
        let right = (self.confirmed..=self.transmit_base).contains(&packets);
        if right {
            self.confirmed = packets;
        }
        right
    }
    pub(crate) fn confirmed(&self) -> u64 {
        self.confirmed
    }

    /// Whether the end of the flow was taken.
    pub(crate) fn is_done(&self) -> bool {
        self.end_taken
    }
}
