//! A node's metrics.

use crate::signing::SignatureError;
use anabranch_http::metrics::Metrics;
use anabranch_live_proto::relay::RelayCounts;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Reasons of [`SignatureError`], as metrics name them.
const REASONS: [&str; 4] = ["missing", "wrong", "expired", "client"];

/// Requests that were refused for their signature, by reason.
#[derive(Debug, Default)]
pub(crate) struct UnsignedCounts([AtomicU64; 4]);

impl UnsignedCounts {
    pub(crate) fn count(&self, error: &SignatureError) {
        let reason = match error {
            SignatureError::Missing => 0,
            SignatureError::Bad => 1,
            SignatureError::Expired(_) => 2,
            SignatureError::OtherClient(_) => 3,
        };
        self.0[reason].fetch_add(1, Relaxed);
    }
}

/// The node's metrics in Prometheus' text format.
pub(crate) fn text(counts: &RelayCounts, viewers: usize, unsigned: &UnsignedCounts) -> String {
    let mut metrics = Metrics::default();
    let mut add = |name: &str, kind: &str, help: &str, value: u64| {
        metrics.metric(&format!("live_{name}"), kind, help, &Metrics::plain(value));
    };
    let c = counts;
    add("requests_total", "counter", "Requests of viewers and nodes.", c.joins);
    add("requests_joined_total", "counter", "Requests that found their object under way.", c.joins_under_way);
    add("requests_hit_total", "counter", "Requests that found their object whole.", c.hits);
    add("upstream_requests_total", "counter", "Requests to parents.", c.upstream_requests);
    add("upstream_bytes_total", "counter", "Bytes from parents.", c.upstream_bytes);
    add("upstream_silences_total", "counter", "Requests to parents that were silent.", c.silences);
    add("upstream_failures_total", "counter", "Requests to parents that failed.", c.legs_failed);
    add("objects_failed_total", "counter", "Objects that were not delivered.", c.objects_failed);
    add("fetches_cancelled_total", "counter", "Fetches ended as no viewer was left.", c.cancelled);
    add("viewers_cut_off_total", "counter", "Answers broken off for slowness or memory.", c.cut_off);
    add("objects_evicted_total", "counter", "Objects dropped for memory or number.", c.evicted);
    add("held_bytes", "gauge", "Bytes of objects in memory.", c.held_bytes);
    add("objects", "gauge", "Objects under way or in memory.", c.objects as u64);
    add("viewers", "gauge", "Requests under way.", viewers as u64);
    let label =
        |(reason, count): (&str, &AtomicU64)| (format!("{{reason=\"{reason}\"}}"), count.load(Relaxed));
    let lines: Vec<_> = REASONS.into_iter().zip(&unsigned.0).map(label).collect();
    let help = "Requests refused for their signature.";
    metrics.metric("live_requests_unsigned_total", "counter", help, &lines);
    metrics.text()
}
