//! What has come of all servers, as `start` and `link` look at it.
//!
//! Leaves out: what follows from it. Read [`Totals`] first.

use anabranch_units::Duration;

/// The share lost from which on so much more comes than the link carries that nothing else need be seen.
pub(super) const LOSS_FLOOD: f64 = 0.2;

/// What has come from all servers, since the beginning.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct Totals {
    /// Bytes of datagrams.
    pub(super) bytes: u64,
    pub(super) packets: u64,
    /// Of them, those of servers that see a queue on their paths.
    pub(super) queued: u64,
    pub(super) lost: u64,
}

/// The servers that send.
#[derive(Copy, Clone, Debug)]
pub(super) struct Servers {
    /// Those that have something to bring.
    pub(super) asked: usize,
    /// Those of which something has come.
    pub(super) heard: usize,
    /// More may connect soon.
    pub(super) awaits: bool,
    /// The round trip to the farthest.
    pub(super) rtt: Duration,
}
