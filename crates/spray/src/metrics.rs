//! Metrics of a host's agent: its status, and how long peers were up.
//!
//! Leaves out: the format and the listener of metrics ([`anabranch_http::metrics`]).

use crate::status::{PeerStatus, Status};
use anabranch_http::metrics::{Histogram, Metrics};
use anabranch_spray_proto::link::DirectReason;
use std::collections::BTreeMap;

/// Reason why a peer's packets take the ordinary route.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Cause {
    /// Datagrams to or from the peer do not arrive.
    Blocked,
    /// The connection with the peer's agent ended.
    Closed,
    /// The peer's agent has ended.
    Ended,
    /// This host or the peer's host has a fault.
    Fault,
    /// The peer's agent does not know yet whether its datagrams arrive.
    NotReady,
    /// The peer's agent is silent.
    Silent,
    /// The peer's agent cannot be reached.
    Unreachable,
    /// The peer's name has no usable address.
    Unresolved,
}

impl Cause {
    const ALL: [Self; 8] = [
        Self::Blocked,
        Self::Closed,
        Self::Ended,
        Self::Fault,
        Self::NotReady,
        Self::Silent,
        Self::Unreachable,
        Self::Unresolved,
    ];

    const fn label(self) -> &'static str {
        match self {
            Self::Blocked => "blocked",
            Self::Closed => "closed",
            Self::Ended => "ended",
            Self::Fault => "fault",
            Self::NotReady => "not_ready",
            Self::Silent => "silent",
            Self::Unreachable => "unreachable",
            Self::Unresolved => "unresolved",
        }
    }
}

impl From<DirectReason> for Cause {
    fn from(why: DirectReason) -> Self {
        match why {
            DirectReason::Silent => Self::Silent,
            DirectReason::Blocked => Self::Blocked,
            DirectReason::Bye => Self::Ended,
            DirectReason::NotReady => Self::NotReady,
            DirectReason::Faulty(_) | DirectReason::OtherFaulty(_) => Self::Fault,
        }
    }
}

/// Number of failures by cause.
#[derive(Clone, Debug)]
pub(crate) struct Failures(BTreeMap<Cause, u64>);

impl Default for Failures {
    fn default() -> Self {
        Self(Cause::ALL.map(|cause| (cause, 0)).into())
    }
}

impl Failures {
    pub(crate) fn count(&mut self, cause: Cause) {
        *self.0.entry(cause).or_default() += 1;
    }

    /// Returns the numbers by the causes' labels.
    pub(crate) fn by_label(&self) -> BTreeMap<String, u64> {
        self.0.iter().map(|(cause, count)| (cause.label().to_owned(), *count)).collect()
    }
}

/// Name, help text and value of a counter of each peer.
type Count = (&'static str, &'static str, fn(&PeerStatus) -> u64);

/// Counters of each peer. A counter starts at the start of the agent, at a change of the peer's
/// address, or with the current keys.
const COUNTS: [Count; 15] = [
    ("sent_bytes_total", "Payload bytes of TCP taken for the peer", |p| p.figures.packets.sent_bytes),
    ("received_bytes_total", "Payload bytes of TCP that came from the peer", |p| {
        p.figures.packets.received_bytes
    }),
    ("sent_datagrams_total", "Datagrams sent", |p| p.figures.sent_datagrams),
    ("received_datagrams_total", "Datagrams received with the current keys", |p| p.figures.came_datagrams),
    ("unsent_datagrams_total", "Datagrams that the kernel refused", |p| p.figures.unsent_datagrams),
    ("oversized_datagrams_total", "Datagrams longer than the path's MTU", |p| p.figures.too_long_datagrams),
    ("replayed_datagrams_total", "Duplicate or old datagrams received", |p| p.figures.replayed_datagrams),
    ("forged_datagrams_total", "Datagrams received that the peer did not seal", |p| {
        p.figures.forged_datagrams
    }),
    ("source_packets_total", "Packets of short flows sent in units", |p| p.figures.source_packets),
    ("parity_packets_total", "Parities of these units", |p| p.figures.parity_packets),
    ("repeated_packets_total", "Overdue packets of short flows sent again", |p| p.figures.repeated_packets),
    ("recovered_packets_total", "Packets recovered from parities", |p| p.figures.recovered_packets),
    ("abandoned_packets_total", "Packets that the receiver stopped waiting for", |p| {
        p.figures.given_up_packets
    }),
    ("refused_in_packets_total", "Packets received with addresses that the peer may not use", |p| {
        p.figures.packets.refused_in_packets
    }),
    ("refused_out_packets_total", "Packets of TCP too long for a datagram", |p| {
        p.figures.packets.refused_out_packets
    }),
];

/// Returns the metrics of an agent with this status as text.
pub(crate) fn text(status: &Status, up_seconds: &Histogram) -> String {
    let mut all = Metrics::default();
    let peers = &status.peers;
    let name = |peer: &PeerStatus| [peer.name.clone()];
    let up = peers.iter().map(|peer| (name(peer), u64::from(peer.is_up)));
    all.gauges("spray_peer_up", "1 while TCP to the peer goes over every path", ["peer"], up);
    for (metric, help, count) in COUNTS {
        let counts = peers.iter().map(|peer| (name(peer), count(peer)));
        all.counters(&format!("spray_{metric}"), help, ["peer"], counts);
    }
    let flows = peers.iter().map(|peer| (name(peer), peer.figures.flows));
    all.gauges("spray_flows", "Flows with state", ["peer"], flows);
    let held = peers.iter().map(|peer| (name(peer), peer.figures.held_bytes));
    all.gauges("spray_held_bytes", "Bytes of packets and flow states held", ["peer"], held);
    let rtts = peers.iter().filter_map(|peer| Some((name(peer), peer.figures.rtt_s?)));
    all.gauges("spray_rtt_seconds", "Smoothed round trip over all paths", ["peer"], rtts);
    let failures = peers.iter().flat_map(|peer| {
        peer.failures.iter().map(|(cause, count)| ([peer.name.clone(), cause.clone()], *count))
    });
    let help = "Times that the peer's packets took the ordinary way, and failed attempts, by cause";
    all.counters("spray_failures_total", help, ["peer", "cause"], failures);
    let help = "Duration of each period in which TCP to a peer went over every path";
    all.add("spray_up_seconds", help, up_seconds.clone());
    all.text()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::{LinkFigures, PacketFigures};
    use anabranch_testing::exposition::{Exposition, check_table};

    fn status() -> Status {
        let mut failures = Failures::default();
        failures.count(Cause::Silent);
        let packets = PacketFigures { sent_bytes: 7, ..PacketFigures::default() };
        let figures = LinkFigures { packets, rtt_s: Some(0.5), ..LinkFigures::default() };
        let peer = PeerStatus {
            name: "b".to_owned(),
            failures: failures.by_label(),
            figures,
            ..PeerStatus::default()
        };
        Status { peers: vec![peer], ..Status::default() }
    }

    #[test]
    fn documents_list_all_metrics() {
        let text = text(&status(), &anabranch_http::metrics::seconds());
        check_table("docs/spray.md", "spray up", &text);
    }

    #[test]
    fn peer_status_becomes_series_with_peer_label() {
        let text = text(&status(), &anabranch_http::metrics::seconds());
        let all = Exposition::read(&text).expect("the format");
        assert_eq!(all.value("spray_sent_bytes_total{peer=\"b\"}"), Some(7.0));
        assert_eq!(all.value("spray_rtt_seconds{peer=\"b\"}"), Some(0.5));
        assert_eq!(all.value("spray_failures_total{peer=\"b\",cause=\"silent\"}"), Some(1.0));
        assert_eq!(all.sum("spray_failures_total"), Some(1.0));
    }
}
