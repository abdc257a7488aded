//! Metrics in Prometheus' text format.

use crate::answer::{Refusal, is_operator};
use anabranch_net::tls::PeerIdentity;
use axum::http::header;
use axum::response::{IntoResponse as _, Response};
use std::fmt::Write as _;

/// Returns a service's metrics, for operators only: they cover all peers, while other peers may see
/// only their own state.
///
/// Errors: a refusal of any other peer.
pub fn reply(peer: &PeerIdentity, metrics: impl FnOnce() -> String) -> Result<Response, Refusal> {
    is_operator(peer, "look")?;
    Ok(([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], metrics()).into_response())
}

/// Metrics of one service, in their text format.
#[derive(Debug, Default)]
pub struct Metrics(String);

impl Metrics {
    /// Formats one metric, with its values by labels.
    pub fn metric<V: std::fmt::Display>(
        &mut self,
        name: &str,
        kind: &str,
        help: &str,
        lines: &[(String, V)],
    ) {
        let _ = writeln!(self.0, "# HELP anabranch_{name} {help}\n# TYPE anabranch_{name} {kind}");
        for (labels, value) in lines {
            let _ = writeln!(self.0, "anabranch_{name}{labels} {value}");
        }
    }

    /// The one value of a metric without labels.
    pub fn plain<V>(value: V) -> [(String, V); 1] {
        [(String::new(), value)]
    }

    /// Returns all metrics as text, in the format of the answer.
    pub fn text(self) -> String {
        self.0
    }
}

/// A label's value.
pub fn quoted(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
