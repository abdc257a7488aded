//! Metrics of a node.

use crate::signing::SignatureError;
use anabranch_http::metrics::{Counters, Metrics};
use anabranch_live_proto::relay::RelayCounts;

/// Labels of the reasons in [`SignatureError`].
const REASONS: [&str; 4] = ["client", "expired", "missing", "wrong"];

/// Number of requests refused because of their signature, by reason.
#[derive(Debug)]
pub(crate) struct UnsignedCounts(Counters<1>);

impl Default for UnsignedCounts {
    fn default() -> Self {
        Self(Counters::new(["reason"], REASONS.map(|reason| [reason])))
    }
}

impl UnsignedCounts {
    pub(crate) fn count(&self, error: &SignatureError) {
        let reason = match error {
            SignatureError::Missing => "missing",
            SignatureError::Bad => "wrong",
            SignatureError::Expired(_) => "expired",
            SignatureError::OtherClient(_) => "client",
        };
        self.0.of([reason]).inc();
    }
}

/// Formats the node's metrics for Prometheus.
pub(crate) fn text(c: &RelayCounts, viewers: usize, unsigned: &UnsignedCounts) -> String {
    let mut all = Metrics::default();
    let mut count = |name: &str, help, value: u64| all.counter(&format!("live_{name}"), help, value);
    count("requests_total", "Requests of viewers and nodes", c.joins);
    count("requests_joined_total", "Requests that found their object under way", c.joins_under_way);
    count("requests_hit_total", "Requests that found their object whole", c.hits);
    count("upstream_requests_total", "Requests to parents", c.upstream_requests);
    count("read_ahead_total", "Objects requested before any viewer", c.read_ahead);
    count(
        "upstream_bytes_total",
        "Bytes from parents, copies of doubled requests included",
        c.upstream_bytes,
    );
    count(
        "upstream_silences_total",
        "Requests to parents that were silent for longer than usual",
        c.silences,
    );
    count(
        "upstream_failures_total",
        "Requests to parents that failed, were refused, or gave other bytes than another parent",
        c.legs_failed,
    );
    count("objects_failed_total", "Objects that were not delivered", c.objects_failed);
    count("fetches_cancelled_total", "Fetches ended because no viewer was left", c.cancelled);
    count("viewers_cut_off_total", "Answers broken off for slowness or memory", c.cut_off);
    count("objects_evicted_total", "Objects dropped for memory or number", c.evicted);
    all.gauge("live_held_bytes", "Bytes of objects in memory", c.held_bytes);
    all.gauge("live_objects", "Objects under way or in memory", c.objects);
    all.gauge("live_viewers", "Requests under way", viewers);
    all.add("live_requests_unsigned_total", "Requests refused for their signature", unsigned.0.clone());
    all.text()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_list_all_metrics() {
        let text = text(&RelayCounts::default(), 0, &UnsignedCounts::default());
        anabranch_testing::exposition::check_table("docs/live.md", "live node", &text);
    }
}
