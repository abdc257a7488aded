//! Metrics of a network's agent.
//!
//! Leaves out: their format and their listener ([`anabranch_http::metrics`]).

use anabranch_broker_proto::agent_session::{Event, Failure};
use anabranch_http::metrics::{Counter, Counters, Gauge, Histogram, Metrics, seconds};

/// Causes of failures at a broker.
const CAUSES: [&str; 6] = ["away", "bid_refused", "not_joined", "not_leading", "refused", "unknown_design"];
/// Labels of failures without a broker: unusable files with estimates.
const FILES: [&str; 2] = ["", "files"];

/// Metrics of an agent since its start.
#[derive(Debug)]
pub(super) struct AgentMetrics {
    brokers: Vec<String>,
    pub(super) is_joined: Gauge,
    joins: Counter,
    pub(super) bids: Counter,
    rounds: Counter,
    sessions: Gauge,
    rate_bps: Gauge,
    /// Duration of requests that the broker answers at once.
    pub(super) request_seconds: Histogram,
    failures: Counters<2>,
}

impl AgentMetrics {
    /// Creates the metrics of an agent of these brokers.
    pub(super) fn new(brokers: Vec<String>) -> Self {
        let of_brokers = brokers.iter().flat_map(|broker| CAUSES.map(|cause| [broker.as_str(), cause]));
        Self {
            is_joined: Gauge::default(),
            joins: Counter::default(),
            bids: Counter::default(),
            rounds: Counter::default(),
            sessions: Gauge::default(),
            rate_bps: Gauge::default(),
            request_seconds: seconds(),
            failures: Counters::new(["broker", "cause"], of_brokers.chain([FILES])),
            brokers,
        }
    }

    fn failures_at(&self, broker: usize, cause: &str) -> &Counter {
        self.failures.of([self.brokers.get(broker).map_or("", String::as_str), cause])
    }

    /// Counts bids that a broker refused.
    pub(super) fn note_refused_bids(&self, broker: usize, bids: u64) {
        self.failures_at(broker, "bid_refused").inc_by(bids);
    }

    /// Counts one failed read of the estimate files.
    pub(super) fn note_bad_files(&self) {
        self.failures.of(FILES).inc();
    }

    /// Counts a failed request to a broker.
    pub(super) fn note_failure(&self, broker: usize, failure: &Failure) {
        let cause = match failure {
            Failure::NotJoined(_) => "not_joined",
            Failure::NotLeading(_) => "not_leading",
            Failure::Away(_) => "away",
            Failure::Refused(_) => "refused",
        };
        self.is_joined.set(0);
        self.failures_at(broker, cause).inc();
    }

    /// Counts an event of the session with a broker.
    pub(super) fn note(&self, broker: usize, event: &Event) {
        match event {
            Event::Joined => {
                self.is_joined.set(1);
                self.joins.inc();
            }
            Event::UnknownDesign { .. } => {
                self.failures_at(broker, "unknown_design").inc();
            }
            Event::Accepted { sessions, rate, .. } => {
                self.rounds.inc();
                self.sessions.set(i64::try_from(*sessions).unwrap_or(i64::MAX));
                self.rate_bps.set(i64::try_from(rate.as_bps()).unwrap_or(i64::MAX));
            }
            // The failed request and the refused bids were counted with the answer.
            Event::Away(..) | Event::NotLeading(_) | Event::GivenUp(_) | Event::BidRefused { .. } => {}
        }
    }

    /// Returns the metrics as text.
    pub(super) fn text(&self) -> String {
        let mut all = Metrics::default();
        all.add("broker_agent_joined", "1 while this agent is joined to a broker", self.is_joined.clone());
        all.add("broker_agent_joins_total", "Times that a broker accepted this agent", self.joins.clone());
        all.add("broker_agent_bids_total", "Bids sent", self.bids.clone());
        all.add("broker_agent_rounds_total", "Rounds accepted", self.rounds.clone());
        let help = "Clients on the network's clusters by the last accepted round";
        all.add("broker_agent_sessions", help, self.sessions.clone());
        let help = "Rate of these clients in bits per second";
        all.add("broker_agent_rate_bps", help, self.rate_bps.clone());
        let help = "Duration of joins, bids and assents, to the broker's answer";
        all.add("broker_agent_request_seconds", help, self.request_seconds.clone());
        let help = "Failures by broker and cause; files with estimates belong to no broker";
        all.add("broker_agent_failures_total", help, self.failures.clone());
        all.text()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_list_all_metrics() {
        let text = AgentMetrics::new(vec!["127.0.0.1:7195".to_owned()]).text();
        anabranch_testing::exposition::check_table("docs/broker.md", "broker cdn", &text);
    }
}
