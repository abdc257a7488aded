//! Metrics of a source. Bytes that nodes fetch are counted by the nodes.

use anabranch_http::metrics::{Counter, Counters, Histogram, Metrics, seconds};

/// Cause of a failed upload.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// The limit of renditions is reached, or the publisher's earlier files are still being
    /// uploaded.
    Full,
    /// The connection broke.
    Lost,
    /// The packager refused the bytes.
    Refused,
    /// Another publisher replaced this publisher.
    Replaced,
    /// The publisher sent nothing.
    Silent,
    /// The token was wrong.
    Token,
}

impl Cause {
    const ALL: [Self; 6] = [Self::Full, Self::Lost, Self::Refused, Self::Replaced, Self::Silent, Self::Token];

    const fn label(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Lost => "lost",
            Self::Refused => "refused",
            Self::Replaced => "replaced",
            Self::Silent => "silent",
            Self::Token => "token",
        }
    }
}

/// Metrics of a source since its start.
#[derive(Debug)]
pub(super) struct SourceMetrics {
    /// Bytes of streams and files received from publishers.
    pub(super) published_bytes: Counter,
    /// Duration of successful uploads.
    pub(super) upload_seconds: Histogram,
    failures: Counters<1>,
}

impl Default for SourceMetrics {
    fn default() -> Self {
        Self {
            published_bytes: Counter::default(),
            upload_seconds: seconds(),
            failures: Counters::new(["cause"], Cause::ALL.map(|cause| [cause.label()])),
        }
    }
}

impl SourceMetrics {
    pub(super) fn note_failure(&self, cause: Cause) {
        self.failures.of([cause.label()]).inc();
    }

    /// Formats the metrics of a source with this number of running streams.
    pub(super) fn text(&self, streams: usize) -> String {
        let mut all = Metrics::default();
        all.gauge("live_source_streams", "Streams of renditions under way", streams);
        let help = "Bytes of streams and files that publishers sent";
        all.add("live_source_published_bytes_total", help, self.published_bytes.clone());
        let help = "Duration of uploads that ended well: whole streams, or files of a muxer";
        all.add("live_source_upload_seconds", help, self.upload_seconds.clone());
        all.add("live_source_failures_total", "Failed uploads by cause", self.failures.clone());
        all.text()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_list_all_metrics() {
        let text = SourceMetrics::default().text(0);
        anabranch_testing::exposition::check_table("docs/live.md", "live source", &text);
    }
}
