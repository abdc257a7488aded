//! Repeats of short flows' unacknowledged packets: when they leave, how often, and within which
//! budget.
//!
//! A host that chooses paths learns from echoes which packets arrived, and which paths deliver
//! nothing. It repeats a packet over another path long before TCP's timer fires. Invariant: each
//! kept packet has one entry in `due`. Leaves out: which flows are short, and the delays (`host`).
//! Read [`Repeats`] first.

use crate::datagram::{Body, FlowId};
use crate::memory::PACKET_BYTES;
use crate::packet::Packet;
use anabranch_units::Instant;
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of repeats of a packet; each waits twice as long as the one before.
pub(crate) const REPEATS_MAX: u32 = 2;
/// Repeat budget of a host: one byte for each of this many bytes sent, plus a burst at the start
/// and after a pause. Heavy loss means a full queue that all paths share, which repeats would fill
/// further. The burst suffices for the lone, short packets of new connections.
const BYTES_PER_REPEATED: u64 = 20;
const REPEATED_AT_ONCE: u64 = 3_000;
/// Maximum number of packets kept for repeats to one host.
pub const UNHEARD_MAX: usize = 1_024;

/// A source packet that has left.
#[derive(Debug)]
pub(crate) struct UnackedSource<P> {
    pub(crate) body: Body<P>,
    /// Bytes of data that the flow had sent before this packet.
    pub(crate) sent_bytes: u64,
    /// Number of earlier transmissions.
    pub(crate) repeats: u32,
    /// Time of the next repeat.
    pub(crate) due: Instant,
}

impl<P: Packet> UnackedSource<P> {
    fn kept_bytes(&self) -> u64 {
        let Body::Source { packet, .. } = &self.body else { return 0 };
        packet.len_bytes() as u64 + PACKET_BYTES
    }
}

/// Repeat budget for one peer.
#[derive(Copy, Clone, Debug)]
struct Budget {
    /// Number of packets kept.
    kept: usize,
    /// Bytes of the kept packets, with their overheads.
    kept_bytes: u64,
    /// Credit in sent bytes; repeating one byte uses [`BYTES_PER_REPEATED`] of it.
    left: u64,
}

impl Default for Budget {
    fn default() -> Self {
        Self { kept: 0, kept_bytes: 0, left: REPEATED_AT_ONCE * BYTES_PER_REPEATED }
    }
}

/// A host's unacknowledged packets, by flow and number.
#[derive(Debug)]
pub(crate) struct Repeats<P> {
    unheard: BTreeMap<(FlowId, u32), UnackedSource<P>>,
    due: BTreeSet<(Instant, FlowId, u32)>,
    budgets: BTreeMap<u32, Budget>,
}

impl<P: Packet> Repeats<P> {
    pub(crate) const fn new() -> Self {
        Self { unheard: BTreeMap::new(), due: BTreeSet::new(), budgets: BTreeMap::new() }
    }

    /// Keeps a source packet that leaves, if there is room.
    pub(crate) fn keep(&mut self, id: FlowId, unheard: UnackedSource<P>) {
        let Body::Source { number, packet, .. } = &unheard.body else { return };
        let budget = self.budgets.entry(id.peer).or_default();
        if budget.kept >= UNHEARD_MAX {
            return;
        }
        if unheard.repeats == 0 {
            let entitled = budget.left + packet.len_bytes() as u64;
            budget.left = entitled.min(REPEATED_AT_ONCE * BYTES_PER_REPEATED);
        }
        let (number, due) = (*number, unheard.due);
        budget.kept_bytes += unheard.kept_bytes();
        match self.unheard.insert((id, number), unheard) {
            Some(before) => {
                budget.kept_bytes -= before.kept_bytes();
                self.due.remove(&(before.due, id, number));
            }
            None => budget.kept += 1,
        }
        self.due.insert((due, id, number));
    }

    /// Handles the echo of a packet.
    pub(crate) fn handle_echo(&mut self, id: FlowId, number: u32) {
        self.take(id, number);
    }

    fn take(&mut self, id: FlowId, number: u32) -> Option<UnackedSource<P>> {
        let unheard = self.unheard.remove(&(id, number))?;
        self.due.remove(&(unheard.due, id, number));
        if let Some(budget) = self.budgets.get_mut(&id.peer) {
            budget.kept -= 1;
            budget.kept_bytes -= unheard.kept_bytes();
        }
        Some(unheard)
    }

    /// Bytes of packets kept for a host, with their overheads.
    pub(crate) fn kept_bytes(&self, peer: u32) -> u64 {
        self.budgets.get(&peer).map_or(0, |budget| budget.kept_bytes)
    }

    /// Drops all packets for a host.
    pub(crate) fn forget(&mut self, peer: u32) {
        let (first, last) = (FlowId { peer, flow: 0 }, FlowId { peer, flow: u32::MAX });
        let of_peer = (first, 0)..=(last, u32::MAX);
        while let Some((id, number)) = self.unheard.range(of_peer.clone()).next().map(|(key, _)| *key) {
            self.take(id, number);
        }
    }

    /// Moves the deadlines of all packets for a host forward to `at`, unless they are earlier.
    pub(crate) fn hasten(&mut self, peer: u32, at: Instant) {
        let (first, last) = (FlowId { peer, flow: 0 }, FlowId { peer, flow: u32::MAX });
        for (&(id, number), unheard) in self.unheard.range_mut((first, 0)..=(last, u32::MAX)) {
            if unheard.due > at {
                self.due.remove(&(unheard.due, id, number));
                unheard.due = at;
                self.due.insert((at, id, number));
            }
        }
    }

    /// Takes the next packet that is due and within the budget, until `None`.
    pub(crate) fn poll(&mut self, now: Instant) -> Option<(FlowId, UnackedSource<P>)> {
        while let Some((_, id, number)) = self.due.first().copied().filter(|(due, ..)| *due <= now) {
            let Some(unheard) = self.take(id, number) else { break };
            let Body::Source { packet, .. } = &unheard.body else { continue };
            let cost = packet.len_bytes() as u64 * BYTES_PER_REPEATED;
            let Some(budget) = self.budgets.get_mut(&id.peer) else { continue };
            if let Some(left) = budget.left.checked_sub(cost) {
                budget.left = left;
                return Some((id, unheard));
            }
        }
        None
    }

    /// Time of the next [`Self::poll`].
    pub(crate) fn due(&self) -> Option<Instant> {
        self.due.first().map(|(due, ..)| *due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_endpoint::Bytes;

    fn at(us: u64) -> Instant {
        Instant::from_us(us)
    }
    fn flow(peer: u32) -> FlowId {
        FlowId { peer, flow: 7 }
    }
    fn unheard(number: u32, bytes: usize, due_us: u64) -> UnackedSource<Bytes> {
        let body = Body::Source { epoch: Instant::ZERO, number, packet: Bytes::from(vec![0; bytes]) };
        UnackedSource { body, sent_bytes: 0, repeats: 0, due: at(due_us) }
    }
    fn polled(repeats: &mut Repeats<Bytes>, us: u64) -> usize {
        std::iter::from_fn(|| repeats.poll(at(us))).count()
    }

    #[test]
    fn unacknowledged_packets_are_repeated_once_when_due() {
        let mut repeats = Repeats::new();
        for number in 0..3 {
            repeats.keep(flow(1), unheard(number, 100, 50 + u64::from(number)));
        }
        repeats.keep(flow(2), unheard(0, 100, 90));
        repeats.handle_echo(flow(1), 1);
        assert_eq!((repeats.due(), polled(&mut repeats, 49)), (Some(at(50)), 0));
        repeats.hasten(1, at(51));
        assert_eq!((polled(&mut repeats, 51), repeats.due()), (2, Some(at(90))), "the other host's waits");
        assert_eq!((polled(&mut repeats, 1_000), repeats.due()), (1, None));
    }

    #[test]
    fn repeats_stay_below_a_twentieth_and_three_thousand_bytes() {
        let mut repeats = Repeats::new();
        for number in 0..200 {
            repeats.keep(flow(1), unheard(number, 1_000, 10));
        }
        // Credit does not accumulate beyond one burst.
        assert_eq!(polled(&mut repeats, 10), 3);
        for number in 0..20 {
            repeats.keep(flow(1), unheard(number, 1_000, 20));
        }
        assert_eq!(polled(&mut repeats, 20), 1);
    }

    #[test]
    fn forgetting_a_host_keeps_other_hosts_packets() {
        let mut repeats = Repeats::new();
        for number in 0..3 {
            repeats.keep(flow(1), unheard(number, 100, 10));
            repeats.keep(flow(1), unheard(number, 200, 20));
            repeats.keep(flow(2), unheard(number, 100, 10));
        }
        assert_eq!(repeats.kept_bytes(1), 3 * (200 + PACKET_BYTES));
        repeats.forget(1);
        assert_eq!((repeats.kept_bytes(1), repeats.kept_bytes(2)), (0, 3 * (100 + PACKET_BYTES)));
        assert_eq!(polled(&mut repeats, 1_000), 3);
        assert_eq!(repeats.kept_bytes(2), 0);
    }

    #[test]
    fn kept_packets_are_limited_per_host_and_freed() {
        let mut repeats = Repeats::new();
        for number in 0..5_000 {
            repeats.keep(flow(1), unheard(number, 1, 10));
        }
        repeats.keep(flow(2), unheard(0, 1, 10));
        assert_eq!((repeats.unheard.len(), repeats.due.len()), (UNHEARD_MAX + 1, UNHEARD_MAX + 1));
        polled(&mut repeats, 10);
        assert_eq!((repeats.unheard.len(), repeats.due.len()), (0, 0));
        repeats.keep(flow(1), unheard(1, 1, 10));
        repeats.keep(flow(1), unheard(1, 1, 30));
        assert_eq!((repeats.unheard.len(), repeats.due()), (1, Some(at(30))), "one number is one packet");
    }
}
