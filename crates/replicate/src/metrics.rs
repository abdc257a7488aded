//! Metrics of a site's daemon and of the controller.
//!
//! Leaves out: their format and their listener ([`anabranch_http::metrics`]).

use anabranch_graph::Topology;
use anabranch_http::metrics::{Counter, Counters, Gauge, Histogram, Metrics, seconds};
use anabranch_replicate_proto::control::{FailureKind, Report, TransferId};
use anabranch_replicate_proto::coordinator::{Outcome, Verdict};
use anabranch_units::SiteId;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Maximum number of transfers whose start a site remembers.
const STARTS_MAX: usize = 1_024;
/// Causes of a failure at the reporting site.
const OWN_CAUSES: [&str; 5] = ["busy", "corrupt", "refused", "unreadable", "unwritable"];
/// Causes of a failed hop to or from another site.
const HOP_CAUSES: [&str; 2] = ["broken", "unreachable"];
/// Cause of a failure that the controller alone sees: the site stopped answering.
const SILENT: &str = "silent";
/// Labels of [`Outcome`]s.
const OUTCOMES: [&str; 7] =
    ["cancelled", "conflicts", "differs", "done", "failed", "integrity", "some_failed"];
/// Labels of [`Verdict`]s.
const VERDICTS: [&str; 6] = ["conflict", "differs", "done", "failed", "integrity", "unreachable"];

fn cause_of(kind: FailureKind) -> &'static str {
    match kind {
        FailureKind::Unreadable => "unreadable",
        FailureKind::Unwritable => "unwritable",
        FailureKind::Refused => "refused",
        FailureKind::Busy => "busy",
        _ => "other",
    }
}

/// Site and cause of a failure that `reporter` reports; `None` for any other report.
fn failure_in(reporter: SiteId, report: &Report) -> Option<(SiteId, &'static str)> {
    match report {
        Report::Failed { run, .. } if run.is_question() => None,
        Report::Failed { kind, .. } => Some((reporter, cause_of(*kind))),
        Report::Corrupt { .. } => Some((reporter, "corrupt")),
        Report::HopFailed { peer, unconnected: true, .. } => Some((*peer, "unreachable")),
        Report::HopFailed { peer, .. } => Some((*peer, "broken")),
        _ => None,
    }
}

fn count(failures: &Counters<2>, names: &[String], failure: Option<(SiteId, &'static str)>) {
    if let Some((site, cause)) = failure {
        failures.of([names.get(site.index()).map_or("", String::as_str), cause]).inc();
    }
}

fn names(topology: &Topology) -> Vec<String> {
    topology.sites().iter().map(|site| site.name.clone()).collect()
}

/// Metrics of a site's daemon since its start.
#[derive(Debug)]
pub(crate) struct SiteMetrics {
    site: SiteId,
    names: Vec<String>,
    sent_bytes: Counters<1>,
    received_bytes: Counters<1>,
    failures: Counters<2>,
    files: Counter,
    file_bytes: Counter,
    pub(crate) attempts: Gauge,
    pub(crate) memory_bytes: Gauge,
    pub(crate) attempt_seconds: Histogram,
    file_seconds: Histogram,
    /// Time of each transfer's first attempt here.
    starts: Mutex<BTreeMap<TransferId, Instant>>,
}

impl SiteMetrics {
    /// Creates the metrics of `site`, whose neighbours in the network are the sites that it may
    /// send to and receive from.
    pub(crate) fn new(topology: &Topology, site: SiteId) -> Self {
        let names = names(topology);
        let to: Vec<SiteId> = topology.links_out(site).map(|link| topology.link(link).to).collect();
        let from: Vec<SiteId> = topology.links_in(site).map(|link| topology.link(link).from).collect();
        let by_name = |label, sites: &[SiteId]| {
            Counters::new([label], sites.iter().map(|site| [names[site.index()].clone()]))
        };
        let own = OWN_CAUSES.map(|cause| [names[site.index()].as_str(), cause]);
        let hops = to.iter().chain(&from);
        let hops = hops.flat_map(|peer| HOP_CAUSES.map(|cause| [names[peer.index()].as_str(), cause]));
        Self {
            site,
            sent_bytes: by_name("to", &to),
            received_bytes: by_name("from", &from),
            failures: Counters::new(["site", "cause"], own.into_iter().chain(hops)),
            files: Counter::default(),
            file_bytes: Counter::default(),
            attempts: Gauge::default(),
            memory_bytes: Gauge::default(),
            attempt_seconds: seconds(),
            file_seconds: seconds(),
            starts: Mutex::default(),
            names,
        }
    }

    /// Counter of payload bytes passed to TCP for the site `name`.
    pub(crate) fn sent_to(&self, name: &str) -> Counter {
        self.sent_bytes.of([name]).clone()
    }

    /// Counter of payload bytes received from the site `name`.
    pub(crate) fn received_from(&self, name: &str) -> Counter {
        self.received_bytes.of([name]).clone()
    }

    pub(crate) fn note_report(&self, report: &Report) {
        count(&self.failures, &self.names, failure_in(self.site, report));
    }

    /// Notes that an attempt of a transfer is installed.
    pub(crate) fn note_start(&self, transfer: TransferId) {
        let mut starts = self.starts.lock().unwrap_or_else(PoisonError::into_inner);
        if starts.len() >= STARTS_MAX && !starts.contains_key(&transfer) {
            starts.pop_first();
        }
        starts.entry(transfer).or_insert_with(Instant::now);
    }

    /// Notes that this site forgets a transfer. Returns the time since its first attempt.
    pub(crate) fn take_start(&self, transfer: TransferId) -> Option<Duration> {
        let mut starts = self.starts.lock().unwrap_or_else(PoisonError::into_inner);
        starts.remove(&transfer).map(|start| start.elapsed())
    }

    /// Notes that the file of a transfer is in place.
    pub(crate) fn note_file(&self, transfer: TransferId, bytes: u64) {
        self.files.inc();
        self.file_bytes.inc_by(bytes);
        if let Some(took) = self.take_start(transfer) {
            self.file_seconds.observe(took.as_secs_f64());
        }
    }

    /// Returns the metrics as text.
    pub(crate) fn text(&self) -> String {
        let mut all = Metrics::default();
        let help = "Files that arrived here whole, verified and named";
        all.add("replicate_relay_files_total", help, self.files.clone());
        all.add("replicate_relay_file_bytes_total", "Bytes of these files", self.file_bytes.clone());
        let help = "Payload bytes passed to TCP for the next site";
        all.add("replicate_relay_sent_bytes_total", help, self.sent_bytes.clone());
        let help = "Payload bytes received from the previous site";
        all.add("replicate_relay_received_bytes_total", help, self.received_bytes.clone());
        let help = "Failures by site and cause: at this site, or of hops to and from other sites";
        all.add("replicate_relay_failures_total", help, self.failures.clone());
        all.add(
            "replicate_relay_attempts",
            "Attempts of transfers that are installed here",
            self.attempts.clone(),
        );
        let help = "Memory that these attempts may take";
        all.add("replicate_relay_memory_bytes", help, self.memory_bytes.clone());
        let help = "Duration of this site's part in an attempt";
        all.add("replicate_relay_attempt_seconds", help, self.attempt_seconds.clone());
        let help = "Time from the first attempt of a transfer to its file in place here";
        all.add("replicate_relay_file_seconds", help, self.file_seconds.clone());
        all.text()
    }
}

/// Counts of the controller since its start.
#[derive(Debug)]
pub(crate) struct ControllerCounts {
    names: Vec<String>,
    pub(crate) reports: u64,
    pub(crate) store_errors: u64,
    ended: Counters<1>,
    verdicts: Counters<2>,
    delivered_bytes: Counters<1>,
    failures: Counters<2>,
    transfer_seconds: Histogram,
}

impl ControllerCounts {
    /// Creates the counts of a network's controller.
    pub(crate) fn new(topology: &Topology) -> Self {
        let names = names(topology);
        let by_site = |values: &[&'static str]| {
            let each = names.iter().flat_map(|name| values.iter().map(|value| [name.as_str(), *value]));
            each.collect::<Vec<_>>()
        };
        let causes: Vec<&str> = OWN_CAUSES.into_iter().chain(HOP_CAUSES).chain([SILENT]).collect();
        Self {
            reports: 0,
            store_errors: 0,
            ended: Counters::new(["outcome"], OUTCOMES.map(|outcome| [outcome])),
            verdicts: Counters::new(["site", "verdict"], by_site(&VERDICTS)),
            delivered_bytes: Counters::new(["site"], names.iter().map(|name| [name.as_str()])),
            failures: Counters::new(["site", "cause"], by_site(&causes)),
            transfer_seconds: seconds(),
            names,
        }
    }

    fn name(&self, site: SiteId) -> &str {
        self.names.get(site.index()).map_or("", String::as_str)
    }

    /// Counts a report of a site.
    pub(crate) fn note_report(&mut self, site: SiteId, report: &Report) {
        self.reports += 1;
        count(&self.failures, &self.names, failure_in(site, report));
    }

    /// Counts a site that stopped answering.
    pub(crate) fn note_silent(&self, site: SiteId) {
        count(&self.failures, &self.names, Some((site, SILENT)));
    }

    /// Counts the end of a transfer for a destination; `length_bytes` is the file's length.
    pub(crate) fn note_verdict(&self, site: SiteId, verdict: &Verdict, length_bytes: u64) {
        let name = self.name(site);
        let word = match verdict {
            Verdict::Done => "done",
            Verdict::Failed { .. } => "failed",
            Verdict::Unreachable { .. } => "unreachable",
            Verdict::Integrity { .. } => "integrity",
            Verdict::Conflict { .. } => "conflict",
            Verdict::Differs { .. } => "differs",
        };
        self.verdicts.of([name, word]).inc();
        if verdict.is_delivered() {
            self.delivered_bytes.of([name]).inc_by(length_bytes);
        }
    }

    /// Counts the end of a transfer by outcome, and records its duration `took`, if known.
    pub(crate) fn note_end(&self, outcome: Outcome, took: Option<Duration>) {
        let word = match outcome {
            Outcome::Done => "done",
            Outcome::SomeFailed => "some_failed",
            Outcome::Failed => "failed",
            Outcome::Integrity => "integrity",
            Outcome::Cancelled => "cancelled",
            Outcome::Conflicts => "conflicts",
            Outcome::Differs => "differs",
        };
        self.ended.of([word]).inc();
        if let Some(took) = took {
            self.transfer_seconds.observe(took.as_secs_f64());
        }
    }

    /// Adds the counts to the controller's metrics.
    pub(crate) fn add_to(&self, all: &mut Metrics) {
        all.add("replicate_transfers_ended_total", "Transfers that ended, by outcome", self.ended.clone());
        let help = "Ends of transfers for a destination, by site and verdict";
        all.add("replicate_verdicts_total", help, self.verdicts.clone());
        let help = "Bytes of files that are in place, by destination";
        all.add("replicate_delivered_bytes_total", help, self.delivered_bytes.clone());
        let help = "Failures that sites report, and silent sites, by site and cause";
        all.add("replicate_failures_total", help, self.failures.clone());
        let help = "Time from the submission of a transfer to its end";
        all.add("replicate_transfer_seconds", help, self.transfer_seconds.clone());
        all.counter("replicate_reports_total", "Reports taken", self.reports);
        all.counter("replicate_store_errors_total", "Failed writes to the store", self.store_errors);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Controller, ControllerConfig, DefaultPlanner};
    use anabranch_graph::LinkProperties;
    use anabranch_replicate_proto::control::{Attempt, Run};
    use anabranch_replicate_proto::plan::FlowId;
    use anabranch_testing::exposition::{Exposition, check_table};
    use anabranch_units::BitRate;

    fn two() -> Topology {
        let mut two = Topology::new("two");
        let sites = ["paris", "rome"].map(|name| two.add_site(name, None).expect("a new name"));
        let link = LinkProperties::new(BitRate::gbps(1), anabranch_units::Duration::from_ms(1));
        two.add_cable(sites[0], sites[1], link).expect("two sites");
        two
    }

    #[test]
    fn documents_list_all_metrics() {
        let relay = SiteMetrics::new(&two(), SiteId(0));
        check_table("docs/replicate.md", "replicate relay", &relay.text());
        let config = ControllerConfig::new(two(), DefaultPlanner, std::path::PathBuf::new());
        let controller = Controller::open_in_memory(config).expect("an empty store");
        check_table("docs/replicate.md", "replicate controller", &controller.metrics());
    }

    #[test]
    fn failures_count_at_the_site_that_caused_them() {
        let relay = SiteMetrics::new(&two(), SiteId(0));
        let run = Run { transfer: TransferId(1), attempt: Attempt(1) };
        let hop = |unconnected| Report::HopFailed {
            run,
            flow: FlowId(0),
            peer: SiteId(1),
            unconnected,
            reason: String::new(),
        };
        let failed = |run| Report::Failed { run, kind: FailureKind::Unreadable, reason: String::new() };
        let question = failed(Run::question(1));
        let reports = [hop(true), hop(false), hop(false), failed(run), question, Report::Ready { run }];
        reports.iter().for_each(|report| relay.note_report(report));
        let all = Exposition::read(&relay.text()).expect("the format");
        let failures = |site: &str, cause: &str| {
            all.value(&format!("replicate_relay_failures_total{{site=\"{site}\",cause=\"{cause}\"}}"))
        };
        assert_eq!(failures("rome", "unreachable"), Some(1.0));
        assert_eq!(failures("rome", "broken"), Some(2.0));
        assert_eq!(failures("paris", "unreadable"), Some(1.0));
        assert_eq!(all.sum("replicate_relay_failures_total"), Some(4.0));
    }
}
