//! Reports of a site that wait for the controller.
//!
//! Leaves out: the transport of requests, and retries. Read [`Outbox`].

use crate::control::{Inventory, Report, Run};
use std::collections::BTreeSet;

/// Maximum number of reports that wait for an unreachable controller.
pub const REPORTS_MAX: usize = 4_096;
/// Maximum number of reports in one request.
const REPORTS_TOGETHER_MAX: usize = 256;
/// Maximum number of ranges in one request, unless a single report has more. With the other fields
/// a request stays below the controller's limit of 4 MiB.
const RANGES_TOGETHER_MAX: usize = 32_768;

/// Reports that wait for the controller. Their number is bounded, however long the controller is
/// unreachable.
#[derive(Clone, Debug, Default)]
pub struct Outbox {
    waiting: Vec<Report>,
}

impl Outbox {
    /// Adds reports.
    pub fn extend(&mut self, reports: impl IntoIterator<Item = Report>) {
        self.waiting.extend(reports);
    }

    /// All waiting reports, oldest first.
    pub fn waiting(&self) -> &[Report] {
        &self.waiting
    }

    /// The reports of the next request, oldest first; empty if none waits. The reports stay in the
    /// outbox until [`Outbox::handle_sent`].
    pub fn next(&self) -> &[Report] {
        let mut ranges = 0;
        let fits = self.waiting.iter().take(REPORTS_TOGETHER_MAX).take_while(|report| {
            if let Report::Inventory(Inventory { have, .. }) | Report::SinkDone { have, .. } = report {
                ranges += have.len();
            }
            ranges <= RANGES_TOGETHER_MAX
        });
        // A request has at least one report. The controller's limit leaves room for any single
        // report.
        let count = fits.count().max(1).min(self.waiting.len());
        &self.waiting[..count]
    }

    /// Removes the first `count` reports: they have arrived, or will never be accepted.
    pub fn handle_sent(&mut self, count: usize) {
        self.waiting.drain(..count);
    }

    /// Drops outdated progress reports: of each attempt, only the last one is kept.
    pub fn thin(&mut self) {
        let mut seen: BTreeSet<Run> = BTreeSet::new();
        let mut kept: Vec<Report> = Vec::with_capacity(self.waiting.len());
        for report in self.waiting.drain(..).rev() {
            match &report {
                Report::Progress { run, .. } if !seen.insert(*run) => {}
                _ => kept.push(report),
            }
        }
        kept.reverse();
        self.waiting = kept;
    }

    /// Handles an unreachable controller: only the newest [`REPORTS_MAX`] reports are kept.
    pub fn handle_away(&mut self) {
        self.thin();
        self.waiting.drain(..self.waiting.len().saturating_sub(REPORTS_MAX));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::{Attempt, TransferId};

    const RUN: Run = Run { transfer: TransferId(1), attempt: Attempt(1) };

    fn outbox(reports: impl IntoIterator<Item = Report>) -> Outbox {
        let mut outbox = Outbox::default();
        outbox.extend(reports);
        outbox
    }
    fn progress(verified_bytes: u64) -> Report {
        Report::Progress { run: RUN, verified_bytes, sink_stalled: 0.0, flows: vec![], arrivals: vec![] }
    }

    #[test]
    fn reports_with_many_ranges_are_sent_one_by_one() {
        let range = anabranch_pieces::ByteRange { start: 0, end: 1 };
        let done = |ranges| Report::SinkDone { run: RUN, have: vec![range; ranges] };
        let ready = || Report::Ready { run: RUN };
        assert_eq!(outbox([done(RANGES_TOGETHER_MAX), ready(), done(1)]).next().len(), 2);
        assert_eq!(outbox([done(RANGES_TOGETHER_MAX + 1), ready()]).next().len(), 1);
        assert_eq!(outbox(vec![ready(); 1000]).next().len(), REPORTS_TOGETHER_MAX);
        assert_eq!(outbox([]).next(), []);
    }

    #[test]
    fn thinning_keeps_only_the_last_progress_report() {
        let (ready, completed) = (Report::Ready { run: RUN }, Report::Completed { run: RUN });
        let mut outbox = outbox([progress(1), ready.clone(), progress(2), completed.clone()]);
        outbox.thin();
        assert_eq!(outbox.next(), [ready, progress(2), completed]);
    }

    #[test]
    fn outbox_is_bounded_and_keeps_the_newest_reports() {
        let audit = |generation| Report::Audit { run: RUN, group: 0, generation, digests: vec![] };
        let mut outbox = Outbox::default();
        for generation in 0..10_000 {
            outbox.extend([audit(generation), progress(generation)]);
            outbox.handle_away();
            assert!(outbox.waiting.len() <= REPORTS_MAX);
        }
        assert_eq!(outbox.waiting.last(), Some(&progress(9_999)));
        assert_eq!(outbox.waiting[REPORTS_MAX - 2], audit(9_999));
    }
}
