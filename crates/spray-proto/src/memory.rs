//! Memory accounting of a host for each peer, and the order in which flows give up their packets.
//!
//! Leaves out: the flows and their contents (`host`, `decoder`). Read [`Ages`] first.

use crate::datagram::FlowId;
use anabranch_units::{ByteCount, Duration, Instant};
use std::collections::BTreeSet;

/// Maximum bytes that an agent holds for one peer: twice the packets of 1 Gbit/s within the longest
/// hold.
pub const PEER_MEMORY_MAX: ByteCount = ByteCount::mib(16);
/// Minimum budget that can be set: the longest packet and its flow fit.
pub(crate) const MEMORY_MIN: ByteCount = ByteCount::kib(128);
/// Overhead of a held packet in bytes: its allocation, its tree entry, and the tree's free space.
pub(crate) const PACKET_BYTES: u64 = 160;
/// Bytes charged for a unit without its parities.
pub(crate) const UNIT_BYTES: u64 = 256;
/// Bytes charged for a flow without packets: its state, the empty nodes of its trees, its entries
/// in the host's tables.
pub(crate) const FLOW_BYTES: u64 = 1_536;
/// Bytes charged for the number of a given-up packet.
pub(crate) const SKIPPED_BYTES: u64 = 16;
/// Maximum part of a peer's budget for flow states, as a divisor. The remaining budget is for
/// packets.
const STATES_SHARE: u64 = 2;
/// Minimum time after a flow's last packet for which parities, and packets for recovery, are kept.
const KEPT_MIN: Duration = Duration::from_ms(10);

/// Maximum number of flows of one peer that an agent remembers.
pub const PEER_FLOWS_MAX: u64 = PEER_MEMORY_MAX.as_u64() / STATES_SHARE / FLOW_BYTES;

/// Maximum bytes of a peer's flow states under a budget.
pub(crate) const fn states_max(budget: u64) -> u64 {
    budget / STATES_SHARE
}

/// Time after a flow's last packet for which parities, and packets for recovery, are kept.
pub(crate) fn kept_time(hold_max: Duration) -> Duration {
    hold_max.max(KEPT_MIN)
}

/// Bytes that flows of one peer hold.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PeerMemory {
    /// States of flows.
    pub(crate) states: u64,
    /// Packets and parities.
    pub(crate) packets: u64,
}

impl PeerMemory {
    pub(crate) const fn all(self) -> u64 {
        self.states + self.packets
    }
    /// Replaces one flow's part of the sum.
    pub(crate) const fn replace(&mut self, before: Self, after: Self) {
        self.states = self.states + after.states - before.states;
        self.packets = self.packets + after.packets - before.packets;
    }
}

/// Position of a flow among the flows of its peer.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct FlowPosition {
    /// True if the flow holds packets.
    pub(crate) is_laden: bool,
    /// Time of the flow's last packet or of an earlier one. The position is corrected when the flow
    /// becomes the first of its list.
    pub(crate) at: Instant,
}

/// Flows by peer and by the time of their last packet, in two lists: without packets and with
/// packets.
#[derive(Debug, Default)]
pub(crate) struct Ages([BTreeSet<(u32, Instant, u32)>; 2]);

impl Ages {
    /// Inserts a flow into its list.
    pub(crate) fn insert(&mut self, id: FlowId, place: FlowPosition) {
        self.0[usize::from(place.is_laden)].insert((id.peer, place.at, id.flow));
    }
    /// Removes a flow from its list.
    pub(crate) fn remove(&mut self, id: FlowId, place: FlowPosition) {
        self.0[usize::from(place.is_laden)].remove(&(id.peer, place.at, id.flow));
    }
    /// Returns the first flow of a peer in one list, and the time of its position.
    pub(crate) fn first(&self, peer: u32, is_laden: bool) -> Option<(Instant, FlowId)> {
        let all = (peer, Instant::ZERO, 0)..=(peer, Instant::MAX, u32::MAX);
        let (_, at, flow) = *self.0[usize::from(is_laden)].range(all).next()?;
        Some((at, FlowId { peer, flow }))
    }
}
