//! Metrics of a server.
//!
//! Leaves out: the format of metrics, and their listener ([`anabranch_http::metrics`]).

use anabranch_http::metrics::{Counter, Counters, Gauge, Histogram, Metrics, seconds};

/// Cause of a failed pull, or of a connection that was refused.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Too many connections of this client, or of all clients.
    Crowded,
    /// The client acknowledged packets that it had not received.
    FalseReceipt,
    /// The connection has no valid certificate of a client.
    NoClient,
    /// The client uses another version of the protocol.
    OtherVersion,
    /// The pull was refused.
    Refused,
    /// The object became shorter during the pull.
    Shortened,
    /// The client was silent for too long.
    Silent,
    /// The object could not be read.
    Unreadable,
}

impl Cause {
    const ALL: [Self; 8] = [
        Self::Crowded,
        Self::FalseReceipt,
        Self::NoClient,
        Self::OtherVersion,
        Self::Refused,
        Self::Shortened,
        Self::Silent,
        Self::Unreadable,
    ];

    const fn label(self) -> &'static str {
        match self {
            Self::Crowded => "crowded",
            Self::FalseReceipt => "false_receipt",
            Self::NoClient => "no_client",
            Self::OtherVersion => "other_version",
            Self::Refused => "refused",
            Self::Shortened => "shortened",
            Self::Silent => "silent",
            Self::Unreadable => "unreadable",
        }
    }
}

/// Metrics of a server since its start.
#[derive(Debug)]
pub struct ServerMetrics {
    /// Number of open connections of admitted clients.
    pub clients: Gauge,
    /// Number of clients admitted.
    pub admitted: Counter,
    /// Number of pulls begun.
    pub pulls: Counter,
    /// Number of short objects sent whole, without a pull.
    pub shorts: Counter,
    /// Number of snapshots of directories that clients asked for and got.
    pub snapshots: Counter,
    /// Number of bytes of objects read for pulls, and of short objects sent whole.
    pub object_bytes: Counter,
    /// Number of bytes of sealed datagrams sent.
    pub sent_bytes: Counter,
    failures: Counters<1>,
    /// Durations of pulls that ended without a failure.
    pub pull_seconds: Histogram,
    /// Number of datagrams whose channel was not open.
    pub strays: Counter,
    /// Number of datagrams dropped because their session's queue was full.
    pub crowded: Counter,
}

impl ServerMetrics {
    pub fn new() -> Self {
        Self {
            clients: Gauge::default(),
            admitted: Counter::default(),
            pulls: Counter::default(),
            shorts: Counter::default(),
            snapshots: Counter::default(),
            object_bytes: Counter::default(),
            sent_bytes: Counter::default(),
            failures: Counters::new(["cause"], Cause::ALL.map(|cause| [cause.label()])),
            pull_seconds: seconds(),
            strays: Counter::default(),
            crowded: Counter::default(),
        }
    }

    /// Counts a failure.
    pub fn note_failure(&self, cause: Cause) {
        self.failures.of([cause.label()]).inc();
    }

    /// Returns the metrics in Prometheus' text format.
    pub fn text(&self) -> String {
        let mut all = Metrics::default();
        all.add("gather_clients", "Connections of clients", self.clients.clone());
        let mut add = |name: &str, help, counter: &Counter| {
            all.add(&format!("gather_{name}"), help, counter.clone());
        };
        add("clients_total", "Clients that were admitted", &self.admitted);
        add("pulls_total", "Pulls begun", &self.pulls);
        add("short_objects_total", "Short objects sent whole, without a pull", &self.shorts);
        add("snapshots_total", "Snapshots of directories told to clients", &self.snapshots);
        let help = "Bytes of objects read for pulls, and of short objects";
        add("object_bytes_total", help, &self.object_bytes);
        add("sent_bytes_total", "Bytes of datagrams sent, with their overhead", &self.sent_bytes);
        add("stray_datagrams_total", "Datagrams of no open connection", &self.strays);
        let help = "Datagrams dropped because too many waited for their session";
        add("crowded_datagrams_total", help, &self.crowded);
        let help = "Failed pulls, and refused connections, by cause";
        all.add("gather_failures_total", help, self.failures.clone());
        let help = "Duration of pulls that ended without a failure";
        all.add("gather_pull_seconds", help, self.pull_seconds.clone());
        all.text()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_list_all_metrics() {
        let text = ServerMetrics::new().text();
        anabranch_testing::exposition::check_table("docs/gather.md", "gather serve", &text);
    }
}
