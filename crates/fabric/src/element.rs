//! Elements, which move packets between the edges of a fabric.
//!
//! The trait is [`Element`]; `any.rs` lists the kinds of elements.

use crate::buffer::{BufferId, SharedBuffer};
use crate::packet::{Drop, DropCounts, PacketId, PacketMeta};
use crate::target::Target;
use crate::{Event, EventQueue};
use anabranch_units::RunInstant;

/// The actions of an element while it handles a packet or a timer.
pub struct Cx<'a, Q> {
    pub(crate) now: RunInstant,
    pub(crate) me: Target,
    pub(crate) meta: &'a mut [PacketMeta],
    pub(crate) events: &'a mut Q,
    pub(crate) ready: &'a mut Vec<(Target, PacketId)>,
    pub(crate) dropped: &'a mut Vec<PacketId>,
    pub(crate) drops: &'a mut DropCounts,
    pub(crate) buffers: &'a mut [SharedBuffer],
}

impl<Q: EventQueue> Cx<'_, Q> {
    /// Returns the fabric's time.
    #[inline]
    pub const fn now(&self) -> RunInstant {
        self.now
    }
    /// Returns the metadata of packet `p`.
    #[inline]
    pub fn meta(&mut self, p: PacketId) -> &mut PacketMeta {
        &mut self.meta[p.index()]
    }
    /// Returns the metadata of all packets, through which queues are linked.
    #[inline]
    pub fn all_meta(&mut self) -> &mut [PacketMeta] {
        self.meta
    }
    /// Passes `p` to `to` without delay. The packet arrives after this call has returned, and after
    /// packets that were passed earlier.
    #[inline]
    pub fn forward(&mut self, to: Target, p: PacketId) {
        self.ready.push((to, p));
    }
    /// Schedules `on_timer(token)` of this element at `at`, which must not be in the past.
    #[inline]
    pub fn arm(&mut self, at: RunInstant, token: u32) {
        debug_assert!(at >= self.now, "a timer cannot go off in the past");
        self.events.push(Event { at, target: self.me, token });
    }
    /// Returns a shared buffer.
    ///
    /// Panics: if the fabric has no buffer with this id.
    #[inline]
    pub(crate) fn buffer(&mut self, id: BufferId) -> &mut SharedBuffer {
        &mut self.buffers[usize::from(id.0)]
    }
    /// Drops the packet `p`, and counts the drop by its reason.
    #[inline]
    pub fn drop(&mut self, p: PacketId, reason: Drop) {
        self.drops.count(reason);
        self.dropped.push(p);
    }
}

/// A network element. It accepts packets, and finally forwards or drops each of them.
pub trait Element {
    /// Handles an arriving packet. The element holds the packet until it forwards or drops it.
    fn on_packet<Q: EventQueue>(&mut self, cx: &mut Cx<'_, Q>, p: PacketId);
    /// Handles an expired timer of this element.
    fn on_timer<Q: EventQueue>(&mut self, cx: &mut Cx<'_, Q>, token: u32);
}
