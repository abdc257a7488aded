//! State and counters of a link.
//!
//! Read [`LinkState`] and [`LinkCounters`].

use anabranch_fabric::{Drop as DropReason, Port};
use anabranch_units::{BitRate, Duration, LinkId};

/// The state of a link, which may change at run time.
#[derive(Copy, Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct LinkState {
    /// True if the link is up. A link that goes down drops its queued and arriving packets.
    pub up: bool,
    /// Rate in bits per second.
    pub rate: BitRate,
    /// One-way propagation delay.
    pub delay: Duration,
    /// Packets lost at random, parts per million.
    pub loss_ppm: u32,
    /// Mean number of packets in a burst of random losses; 1 for independent losses.
    pub loss_burst: u32,
}

/// Counters of a link's packets since the start, and the current length of its queue.
#[derive(Copy, Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct LinkCounters {
    /// Id of the link.
    pub link: LinkId,
    /// Packets that arrived at the link.
    pub offered_packets: u64,
    /// Packets that the link sent, including packets lost afterwards.
    pub sent_packets: u64,
    /// Bytes of the sent packets.
    pub sent_bytes: u64,
    /// Packets that arrived at the link's far end.
    pub arrived_packets: u64,
    /// Bytes that arrived at the link's far end.
    pub arrived_bytes: u64,
    /// Packets dropped because a queue was full.
    pub dropped_queue_full: u64,
    /// Packets lost at random.
    pub dropped_loss: u64,
    /// Packets dropped because of a bit error.
    pub dropped_bit_error: u64,
    /// Packets dropped because the link was down.
    pub dropped_link_down: u64,
    /// Packets that the link marked (ECN).
    pub marked_packets: u64,
    /// Bytes in the link's queues now.
    pub queue_bytes: u64,
}

impl LinkCounters {
    pub(crate) fn of(link: LinkId, port: &Port) -> Self {
        let counters = port.counters();
        Self {
            link,
            offered_packets: counters.offered_packets,
            sent_packets: counters.sent_packets,
            sent_bytes: counters.sent_bytes,
            arrived_packets: counters.arrived_packets,
            arrived_bytes: counters.arrived_bytes,
            dropped_queue_full: counters.drops.of(DropReason::QueueFull),
            dropped_loss: counters.drops.of(DropReason::Loss),
            dropped_bit_error: counters.drops.of(DropReason::BitError),
            dropped_link_down: counters.drops.of(DropReason::LinkDown),
            marked_packets: counters.marked_packets,
            queue_bytes: port.queue_bytes().as_u64(),
        }
    }
}
