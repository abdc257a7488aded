//! Memory that a host's machine takes for each peer: what counts for how much, and which flow gives
//! up its packets first.
//!
//! Leaves out: the flows themselves and what they give up (`host`, `decoder`). Read [`Ages`] first.

use crate::datagram::FlowId;
use anabranch_units::{ByteCount, Duration, Instant};
use std::collections::BTreeSet;

/// The most bytes that an agent's machine holds for one peer: a gigabit a second of packets in the
/// longest hold, twice.
pub const PEER_MEMORY_MAX: ByteCount = ByteCount::mib(16);
/// The least budget that can be set: one long packet and its flow fit.
pub(crate) const MEMORY_MIN: ByteCount = ByteCount::kib(128);
/// Bytes that a held packet counts beside its own: its allocation, its entry in a tree, and what a
/// tree leaves free.
pub(crate) const PACKET_BYTES: u64 = 160;
/// Bytes that a unit without its parities counts.
pub(crate) const UNIT_BYTES: u64 = 256;
/// Bytes that a flow without packets counts: its state, the empty nodes of its trees, its entries
/// in the host's tables.
pub(crate) const FLOW_BYTES: u64 = 1_536;
/// Bytes that a number of a gap counts.
pub(crate) const SKIPPED_BYTES: u64 = 16;
/// Share of a peer's budget that states of flows take at most; the rest is for packets.
const STATES_SHARE: u64 = 2;
/// The least time after a flow's last packet in which its parities, and packets for mends, are
/// kept.
const KEPT_MIN: Duration = Duration::from_ms(10);

/// The most flows of one peer that an agent remembers.
pub const PEER_FLOWS_MAX: u64 = PEER_MEMORY_MAX.as_u64() / STATES_SHARE / FLOW_BYTES;

/// Bytes that the states of a peer's flows take at most under a budget.
pub(crate) const fn states_max(budget: u64) -> u64 {
    budget / STATES_SHARE
}

/// How long after a flow's last packet its parities, and packets for mends, are kept.
pub(crate) fn kept_time(hold_max: Duration) -> Duration {
    hold_max.max(KEPT_MIN)
}

/// Bytes that flows of one peer hold.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Held {
    /// States of flows.
    pub(crate) states: u64,
    /// Packets and parities.
    pub(crate) packets: u64,
}

impl Held {
    pub(crate) const fn all(self) -> u64 {
        self.states + self.packets
    }
    /// Replaces what one flow holds.
    pub(crate) const fn replace(&mut self, before: Self, after: Self) {
        self.states = self.states + after.states - before.states;
        self.packets = self.packets + after.packets - before.packets;
    }
}

/// A flow's place among the flows of its peer.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// Whether the flow holds packets.
    pub(crate) is_laden: bool,
    /// Time of the flow's last packet, or an earlier one: a place is corrected when the flow is the
    /// first.
    pub(crate) at: Instant,
}

/// Flows by peer and by the time of their last packet: those without packets, and those with
/// packets.
#[derive(Debug, Default)]
pub(crate) struct Ages([BTreeSet<(u32, Instant, u32)>; 2]);

impl Ages {
    /// Puts a flow in the list.
    pub(crate) fn insert(&mut self, id: FlowId, place: Place) {
        self.0[usize::from(place.is_laden)].insert((id.peer, place.at, id.flow));
    }
    /// Takes a flow out of the list.
    pub(crate) fn remove(&mut self, id: FlowId, place: Place) {
        self.0[usize::from(place.is_laden)].remove(&(id.peer, place.at, id.flow));
    }
    /// The first flow of a peer, and the time of its place.
    pub(crate) fn first(&self, peer: u32, is_laden: bool) -> Option<(Instant, FlowId)> {
        let all = (peer, Instant::ZERO, 0)..=(peer, Instant::MAX, u32::MAX);
        let (_, at, flow) = *self.0[usize::from(is_laden)].range(all).next()?;
        Some((at, FlowId { peer, flow }))
    }
}
