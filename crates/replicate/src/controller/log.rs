//! A bounded log of a transfer's events, for watchers that connect later.
//!
//! Leaves out: waiting for the next event ([`super::Controller`]). Read [`EventLog`] first.

use anabranch_replicate_proto::coordinator::{Event, EventKind};
use std::collections::VecDeque;

/// Maximum number of events kept for one transfer.
const LOG_MAX: usize = 512;
/// Maximum bytes of these events.
const LOG_BYTES_MAX: usize = 64 << 10;

/// Returns a number above all earlier ones, even across restarts.
pub(super) fn queue_id() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |d| d.as_nanos() as u64)
}

/// Time of day in milliseconds since 1970.
pub(super) fn unix_ms() -> Option<u64> {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.ok().and_then(|d| u64::try_from(d.as_millis()).ok())
}

/// A transfer's events.
pub(super) struct EventLog {
    /// Number of the next event.
    next: u64,
    pub(super) events: VecDeque<LoggedEvent>,
    /// Bytes of all events, by [`event_bytes`].
    bytes: usize,
}

/// An event kept for watchers.
pub(super) struct LoggedEvent {
    pub(super) number: u64,
    /// Time of day in milliseconds since 1970.
    pub(super) at_unix_ms: Option<u64>,
    pub(super) event: Event,
}

/// Memory of an event: the value, its lists and its texts, in bytes.
fn event_bytes(event: &Event) -> usize {
    let more = match &event.kind {
        EventKind::Planned { destinations, with, .. } => size_of_val(&**destinations) + size_of_val(&**with),
        EventKind::Progress { destinations, .. } => size_of_val(&**destinations),
        EventKind::Stopped { reason, .. }
        | EventKind::Postponed { reason, .. }
        | EventKind::Waiting { reason } => reason.len(),
        EventKind::Verdict { verdict, .. } => verdict.reason().map_or(0, str::len),
        _ => 0,
    };
    size_of::<LoggedEvent>() + more
}

impl EventLog {
    /// Creates an empty log. Its numbers exceed those in all earlier logs of the transfer, so a
    /// watcher that saw the last event before a restart receives the first event after it.
    pub(super) fn new() -> Self {
        Self { next: queue_id(), events: VecDeque::new(), bytes: 0 }
    }

    /// Adds an event. A full log drops its oldest progress event first, because progress is
    /// superseded twice a second.
    pub(super) fn push(&mut self, event: Event) {
        self.bytes += event_bytes(&event);
        self.events.push_back(LoggedEvent { number: self.next, at_unix_ms: unix_ms(), event });
        self.next += 1;
        while self.events.len() > LOG_MAX || self.bytes > LOG_BYTES_MAX && self.events.len() > 1 {
            let mut older = self.events.range(..self.events.len() - 1);
            let progress = older.position(|e| matches!(e.event.kind, EventKind::Progress { .. }));
            let Some(dropped) = self.events.remove(progress.unwrap_or(0)) else { break };
            self.bytes -= event_bytes(&dropped.event);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_replicate_proto::control::TransferId;
    use anabranch_replicate_proto::coordinator::{DestinationProgress, Verdict};
    use anabranch_units::SiteId;

    fn event(kind: EventKind) -> Event {
        Event { transfer: TransferId(1), attempt: 1, kind }
    }
    fn progress(verified_bytes: u64) -> Event {
        let one = DestinationProgress { site: SiteId(1), verified_bytes, rate_bps: 1 };
        event(EventKind::Progress { length_bytes: 1 << 40, destinations: vec![one; 3] })
    }
    fn is_progress(logged: &&LoggedEvent) -> bool {
        matches!(logged.event.kind, EventKind::Progress { .. })
    }

    /// #17: after four minutes the log held progress only, so a new watcher saw neither the plan
    /// nor early verdicts.
    #[test]
    fn progress_pushes_nothing_else_out_of_a_log() {
        let mut log = EventLog::new();
        let first = log.next;
        let verdict = |i| event(EventKind::Verdict { site: SiteId(i), verdict: Verdict::Done });
        log.push(event(EventKind::Submitted));
        for i in 0..40_u16 {
            log.push(verdict(i));
            (0..100).for_each(|n| log.push(progress(n)));
            assert!(log.events.len() <= LOG_MAX && log.bytes <= LOG_BYTES_MAX, "{}", log.bytes);
        }
        assert_eq!(log.bytes, log.events.iter().map(|e| event_bytes(&e.event)).sum::<usize>());
        let mut told: Vec<_> =
            log.events.iter().filter(|e| !is_progress(e)).map(|e| e.event.clone()).collect();
        assert_eq!(told.remove(0).kind, EventKind::Submitted);
        assert_eq!(told, (0..40).map(verdict).collect::<Vec<_>>());
        assert!(log.events.iter().filter(is_progress).count() > 100, "progress has what is left");
        // Numbers stay with their events, so a watcher's position remains valid.
        let numbers: Vec<_> = log.events.iter().map(|e| e.number - first).collect();
        assert!(numbers.is_sorted_by(|a, b| a < b) && numbers[1] == 1 && numbers.last() == Some(&4_040));
    }

    #[test]
    fn newest_event_stays_in_a_full_log() {
        let mut log = EventLog::new();
        for i in 0..2_000 {
            log.push(event(EventKind::Waiting { reason: format!("{i}") }));
            assert!(log.events.len() <= LOG_MAX && log.bytes <= LOG_BYTES_MAX, "{}", log.bytes);
        }
        for n in 0..3 {
            log.push(progress(n));
            assert_eq!(log.events.back().map(|e| &e.event), Some(&progress(n)), "who watches sees it");
            assert_eq!(log.events.iter().filter(is_progress).count(), 1);
        }
        log.push(event(EventKind::Waiting { reason: "x".repeat(2 * LOG_BYTES_MAX) }));
        assert_eq!(log.events.len(), 1);
    }
}
