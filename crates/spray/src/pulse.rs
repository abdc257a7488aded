//! Heartbeats of the forwarding thread, for the agent and its guard. Read [`Pulse`].

use std::io::{PipeWriter, Write as _};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Interval between two heartbeats.
pub(crate) const BEAT_EVERY: Duration = Duration::from_millis(500);

/// The heartbeats of the forwarding thread.
#[derive(Debug)]
pub(crate) struct Pulse {
    count: AtomicU64,
    /// The guard's pipe, which never blocks; `None` without a guard.
    pipe: Option<PipeWriter>,
}

impl Pulse {
    pub(crate) fn new(pipe: Option<PipeWriter>) -> Self {
        Self { count: AtomicU64::new(0), pipe }
    }

    /// Counts a heartbeat and writes it. A full pipe means that the guard is stopped, and is
    /// ignored.
    pub(crate) fn beat(&self) {
        self.count.fetch_add(1, Relaxed);
        let _ = self.pipe.as_ref().map(|mut pipe| pipe.write(&[1]));
    }

    /// Number of heartbeats so far.
    pub(crate) fn count(&self) -> u64 {
        self.count.load(Relaxed)
    }
}
