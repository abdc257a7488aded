//! Totals of received packets over all servers, the input of `start` and `link`.
//!
//! Leaves out: conclusions from the totals. Read [`Totals`] first.

use anabranch_units::Duration;

/// Loss rate above which more arrives at the link than it carries, without further evidence.
pub(super) const LOSS_FLOOD: f64 = 0.2;

/// Totals received from all servers since the client's beginning.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct Totals {
    /// Number of bytes in datagrams.
    pub(super) bytes: u64,
    pub(super) packets: u64,
    /// Number of packets from servers that see a queue on their paths.
    pub(super) queued: u64,
    pub(super) lost: u64,
}

/// Number and state of the servers that send.
#[derive(Copy, Clone, Debug)]
pub(super) struct Servers {
    /// Number of servers with requests.
    pub(super) asked: usize,
    /// Number of servers from which packets have arrived.
    pub(super) heard: usize,
    /// Whether further servers may connect soon.
    pub(super) awaits: bool,
    /// Round-trip time to the farthest server.
    pub(super) rtt: Duration,
}
