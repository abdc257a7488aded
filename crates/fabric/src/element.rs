//! Elements: what moves packets between the edges of a fabric.
//!
//! The trait is [`Element`]; [`AnyElement`] lists the kinds there are, so that the hot loop dispatches by `match`.

use anabranch_units::Instant;

use crate::buffer::{BufferId, SharedBuffer};
use crate::packet::{Drop, DropCounts, PacketId, PacketMeta};
use crate::{Event, EventQueue, FifoPort, Port, Switch};

/// Where a packet or a timer goes: an element or a node of the fabric.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Target(u32);

const NODE_BIT: u32 = 1 << 31;

impl Target {
    /// The `index`th element.
    ///
    /// Panics: for an index of 2^31 or more.
    pub const fn element(index: u32) -> Self {
        assert!(index < NODE_BIT);
        Self(index)
    }
    /// The `index`th node.
    ///
    /// Panics: for an index of 2^31 or more.
    pub const fn node(index: u32) -> Self {
        assert!(index < NODE_BIT);
        Self(index | NODE_BIT)
    }
    pub(crate) const fn raw(self) -> u32 {
        self.0
    }
    /// Whether this is a node, not an element.
    #[inline]
    pub const fn is_node(self) -> bool {
        self.0 & NODE_BIT != 0
    }
    /// The index among elements or nodes.
    #[inline]
    pub const fn index(self) -> usize {
        (self.0 & !NODE_BIT) as usize
    }
}

/// What an element may do while it handles a packet or a timer.
pub struct Cx<'a, Q> {
    pub(crate) now: Instant,
    pub(crate) me: Target,
    pub(crate) meta: &'a mut [PacketMeta],
    pub(crate) events: &'a mut Q,
    pub(crate) ready: &'a mut Vec<(Target, PacketId)>,
    pub(crate) dropped: &'a mut Vec<PacketId>,
    pub(crate) drops: &'a mut DropCounts,
    pub(crate) buffers: &'a mut [SharedBuffer],
}

impl<Q: EventQueue> Cx<'_, Q> {
    /// The fabric's time.
    #[inline]
    pub const fn now(&self) -> Instant {
        self.now
    }
    /// What elements see of packet `p`.
    #[inline]
    pub fn meta(&mut self, p: PacketId) -> &mut PacketMeta {
        &mut self.meta[p.index()]
    }
    /// The meta of all packets, for queues threaded through it.
    #[inline]
    pub fn all_meta(&mut self) -> &mut [PacketMeta] {
        self.meta
    }
    /// Hands `p` on, with no delay: it gets there when this call has returned, after those handed on before.
    #[inline]
    pub fn forward(&mut self, to: Target, p: PacketId) {
        self.ready.push((to, p));
    }
    /// Asks for `on_timer(token)` at `at`, which is not before now.
    #[inline]
    pub fn arm(&mut self, at: Instant, token: u32) {
        debug_assert!(at >= self.now, "a timer cannot go off in the past");
        self.events.push(Event { at, target: self.me, token });
    }
    /// A shared buffer.
    ///
    /// Panics: if the fabric has none of this id.
    #[inline]
    pub(crate) fn buffer(&mut self, id: BufferId) -> &mut SharedBuffer {
        &mut self.buffers[usize::from(id.0)]
    }
    /// Drops `p` and counts it.
    #[inline]
    pub fn drop(&mut self, p: PacketId, reason: Drop) {
        self.drops.count(reason);
        self.dropped.push(p);
    }
}

/// A network element: takes packets, and sooner or later forwards or drops each of them.
pub trait Element {
    /// A packet arrives; it is this element's until forwarded or dropped.
    fn on_packet<Q: EventQueue>(&mut self, cx: &mut Cx<'_, Q>, p: PacketId);
    /// A timer that this element armed goes off.
    fn on_timer<Q: EventQueue>(&mut self, cx: &mut Cx<'_, Q>, token: u32);
}

/// Every kind of element.
#[derive(Debug)]
pub enum AnyElement {
    /// See [`FifoPort`]: the hot one, of which there are many.
    Fifo(FifoPort),
    /// See [`Port`].
    Port(Box<Port>),
    /// See [`Switch`].
    Switch(Switch),
}

impl Element for AnyElement {
    #[inline]
    fn on_packet<Q: EventQueue>(&mut self, cx: &mut Cx<'_, Q>, p: PacketId) {
        match self {
            Self::Fifo(e) => e.on_packet(cx, p),
            Self::Port(e) => e.on_packet(cx, p),
            Self::Switch(e) => e.on_packet(cx, p),
        }
    }
    #[inline]
    fn on_timer<Q: EventQueue>(&mut self, cx: &mut Cx<'_, Q>, token: u32) {
        match self {
            Self::Fifo(e) => e.on_timer(cx, token),
            Self::Port(e) => e.on_timer(cx, token),
            Self::Switch(e) => e.on_timer(cx, token),
        }
    }
}
