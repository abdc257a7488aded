//! Totals of received packets over all servers, the input of `start` and `link`.
//!
//! Leaves out: conclusions from them. Read [`Totals`] first.

use anabranch_units::Duration;

/// Loss rate from which more arrives than the link carries, without further evidence.
pub(super) const LOSS_FLOOD: f64 = 0.2;

/// Received from all servers since the beginning.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct Totals {
    /// Bytes of datagrams.
    pub(super) bytes: u64,
    pub(super) packets: u64,
    /// Packets from servers that see a queue on their paths.
    pub(super) queued: u64,
    pub(super) lost: u64,
}

/// Number and state of the servers that send.
#[derive(Copy, Clone, Debug)]
pub(super) struct Servers {
    /// Servers with requests.
    pub(super) asked: usize,
    /// Servers from which packets have arrived.
    pub(super) heard: usize,
    /// Whether further servers may connect soon.
    pub(super) awaits: bool,
    /// Round-trip time to the farthest server.
    pub(super) rtt: Duration,
}
