//! Metrics of a host's agent.
//!
//! Bytes and durations of flows are taken from the listings of connections, so they lag by the
//! interval between two listings. Leaves out: the format and the listener of metrics
//! ([`anabranch_http::metrics`]).

use anabranch_http::metrics::{Counter, Counters, Gauge, Histogram, Metrics, seconds};
use anabranch_shuffle_proto::agent::Notice;
use anabranch_shuffle_proto::announced_flows::ListedConnection;
use anabranch_shuffle_proto::control::FlowKey;
use anabranch_shuffle_proto::enforcement::LimitProblem;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// Cause of a failure.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// An announcement was refused.
    Announcement,
    /// The coordinator did not answer, or could not be reached.
    Away,
    /// There were more flows than may be announced.
    Full,
    /// The coordinator did not know the agent's session.
    NotJoined,
    /// The coordinator refused the agent for good.
    Refused,
    /// Limits were lifted, because the coordinator was silent.
    Silent,
    /// No rule was applied to some connections, for lack of room.
    Uncovered,
    /// A limit could not be lifted.
    Unlifted,
    /// A flow runs without the limit that it should have.
    Unlimited,
    /// Connections could not be listed.
    Unlisted,
    /// Flows got no limit because the state file could not be written.
    Unnoted,
}

impl Cause {
    const ALL: [Self; 11] = [
        Self::Announcement,
        Self::Away,
        Self::Full,
        Self::NotJoined,
        Self::Refused,
        Self::Silent,
        Self::Uncovered,
        Self::Unlifted,
        Self::Unlimited,
        Self::Unlisted,
        Self::Unnoted,
    ];

    const fn label(self) -> &'static str {
        match self {
            Self::Announcement => "announcement",
            Self::Away => "away",
            Self::Full => "full",
            Self::NotJoined => "not_joined",
            Self::Refused => "refused",
            Self::Silent => "silent",
            Self::Uncovered => "uncovered",
            Self::Unlifted => "unlifted",
            Self::Unlimited => "unlimited",
            Self::Unlisted => "unlisted",
            Self::Unnoted => "unnoted",
        }
    }
}

/// A connection of an announced flow, as last listed.
#[derive(Debug)]
struct Connection {
    cookie: u64,
    acked_bytes: u64,
    since: Instant,
}

/// Metrics of an agent since its start.
#[derive(Debug)]
pub(super) struct AgentMetrics {
    pub(super) is_joined: Gauge,
    pub(super) joins: Counter,
    /// Connections of announced flows at the last listing. The maximum number of announced flows
    /// limits their number.
    connections: Mutex<BTreeMap<FlowKey, Connection>>,
    sent_bytes: Counter,
    flow_seconds: Histogram,
    /// Durations of requests to join and of reports.
    pub(super) report_seconds: Histogram,
    pub(super) limited: Gauge,
    pub(super) limits: Counter,
    failures: Counters<1>,
}

impl AgentMetrics {
    pub(super) fn new() -> Self {
        Self {
            is_joined: Gauge::default(),
            joins: Counter::default(),
            connections: Mutex::default(),
            sent_bytes: Counter::default(),
            flow_seconds: seconds(),
            report_seconds: seconds(),
            limited: Gauge::default(),
            limits: Counter::default(),
            failures: Counters::new(["cause"], Cause::ALL.map(|cause| [cause.label()])),
        }
    }

    pub(super) fn note_failure(&self, cause: Cause) {
        self.failures.of([cause.label()]).inc();
    }

    pub(super) fn note(&self, notice: &Notice) {
        let cause = match notice {
            Notice::Joined => {
                self.joins.inc();
                return;
            }
            Notice::Back => return,
            Notice::Rejoins(_) => Cause::NotJoined,
            Notice::Away(_) | Notice::StillAway(_) => Cause::Away,
            Notice::Silent => Cause::Silent,
            Notice::Unlisted(_) => Cause::Unlisted,
            Notice::Cut(_) => Cause::Uncovered,
            Notice::Full => Cause::Full,
        };
        self.note_failure(cause);
    }

    pub(super) fn note_trouble(&self, trouble: &LimitProblem) {
        self.note_failure(match trouble {
            LimitProblem::Unnoted { .. } => Cause::Unnoted,
            LimitProblem::Unlimited { .. } => Cause::Unlimited,
            LimitProblem::Unlifted { .. } => Cause::Unlifted,
        });
    }

    /// Records a listing of connections. The connections in `known` belong to announced flows.
    pub(super) fn note_listing(&self, flows: &[ListedConnection], known: &BTreeSet<FlowKey>, now: Instant) {
        let mut connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
        let mut before = std::mem::take(&mut *connections);
        for ListedConnection { flow, cookie, acked_bytes, .. } in
            flows.iter().filter(|seen| known.contains(&seen.flow))
        {
            // The first coflow of a connection may have begun before its announcement, so all bytes
            // of the connection count.
            let last = before.remove(flow).filter(|last| {
                let is_same = last.cookie == *cookie;
                if !is_same {
                    self.flow_seconds.observe((now - last.since).as_secs_f64());
                }
                is_same
            });
            let (last_bytes, since) = last.map_or((0, now), |last| (last.acked_bytes, last.since));
            self.sent_bytes.inc_by(acked_bytes.saturating_sub(last_bytes));
            connections.insert(*flow, Connection { cookie: *cookie, acked_bytes: *acked_bytes, since });
        }
        for ended in before.into_values() {
            self.flow_seconds.observe((now - ended.since).as_secs_f64());
        }
    }

    /// Returns the metrics as text.
    pub(super) fn text(&self) -> String {
        let mut all = Metrics::default();
        let connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner).len();
        let help = "1 while this agent is joined to the coordinator";
        all.add("shuffle_agent_joined", help, self.is_joined.clone());
        all.add(
            "shuffle_agent_joins_total",
            "Times that the coordinator accepted this agent",
            self.joins.clone(),
        );
        all.gauge("shuffle_agent_connections", "Connections of announced flows", connections);
        let help = "Acknowledged bytes of connections of announced flows, as of the last listing";
        all.add("shuffle_agent_sent_bytes_total", help, self.sent_bytes.clone());
        let help = "Time from the first listing of an announced flow to the end of its connection";
        all.add("shuffle_agent_flow_seconds", help, self.flow_seconds.clone());
        all.add("shuffle_agent_limited_connections", "Connections with a limit", self.limited.clone());
        all.add("shuffle_agent_limits_total", "Limits set", self.limits.clone());
        let help = "Duration of joins and reports, to the coordinator's answer";
        all.add("shuffle_agent_report_seconds", help, self.report_seconds.clone());
        all.add("shuffle_agent_failures_total", "Failures by cause", self.failures.clone());
        all.text()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_testing::exposition::{Exposition, check_table};
    use std::time::Duration;

    #[test]
    fn documents_list_all_metrics() {
        check_table("docs/shuffle.md", "shuffle agent", &AgentMetrics::new().text());
    }

    #[test]
    fn bytes_of_a_known_connection_count_once() {
        let metrics = AgentMetrics::new();
        let key = |port| {
            let local = ([10, 0, 0, 1], port).into();
            FlowKey::new(local, ([10, 0, 0, 2], 80).into())
        };
        let seen = |port, cookie, acked_bytes| ListedConnection {
            flow: key(port),
            cookie,
            user: 0,
            may_send: true,
            acked_bytes,
            written_bytes: acked_bytes,
            limit: None,
        };
        let (known, start) = (BTreeSet::from([key(1), key(2)]), Instant::now());
        let at = |s| start + Duration::from_secs(s);
        metrics.note_listing(&[seen(1, 7, 100), seen(3, 9, 1_000)], &known, at(0));
        metrics.note_listing(&[seen(1, 7, 150), seen(2, 8, 10)], &known, at(1));
        // Another connection uses the port.
        metrics.note_listing(&[seen(1, 70, 30), seen(2, 8, 10)], &known, at(2));
        metrics.note_listing(&[], &known, at(4));
        let all = Exposition::read(&metrics.text()).expect("the format");
        assert_eq!(all.value("shuffle_agent_sent_bytes_total"), Some(190.0));
        assert_eq!(all.value("shuffle_agent_flow_seconds_count"), Some(3.0));
        assert_eq!(all.value("shuffle_agent_flow_seconds_sum"), Some(2.0 + 2.0 + 3.0));
        assert_eq!(all.value("shuffle_agent_connections"), Some(0.0));
    }
}
