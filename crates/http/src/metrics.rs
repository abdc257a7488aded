//! Metrics in Prometheus' text format, and their listener.
//!
//! A daemon keeps [`Counter`]s, [`Counters`] by label and histograms of [`seconds`], or reads the
//! counts of its state machine. At each scrape it writes all of them into [`Metrics`]. Values of
//! labels come from the configuration and from a fixed list of causes, so no peer can add a series.
//! A controller answers at `/metrics` on its HTTPS port ([`reply`]); daemons without HTTP have a
//! [`MetricsServer`].
//!
//! Names follow Prometheus: a unit (`_seconds`, `_bytes`) ends the name, and counters end in
//! `_total` after the unit. Leaves out: the metrics of each system. Read [`Metrics`] and
//! [`Counters`] first.

use crate::answer::{Refusal, is_operator};
use crate::plain::{PlainLimits, PlainServer};
use anabranch_net::tls::PeerIdentity;
use axum::Router;
use axum::http::header;
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use prometheus_client::encoding::prometheus_text::{CONTENT_TYPE, encode};
use prometheus_client::encoding::{EncodeCounterValue, EncodeGaugeValue, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::{MetricType, TypedMetric};
use prometheus_client::registry::{Metric, Registry};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt::Debug;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

/// A counter; clones share its value.
pub use prometheus_client::metrics::counter::Counter;
/// A gauge; clones share its value.
pub use prometheus_client::metrics::gauge::Gauge;
/// A histogram; clones share its values.
pub use prometheus_client::metrics::histogram::Histogram;

/// Prefix of all metrics' names.
const PREFIX: &str = "anabranch";
/// Ending of counters' names.
const TOTAL: &str = "_total";
/// Value of each label in the series that counts all unknown values.
const OTHER: &str = "other";
/// Maximum number of a [`MetricsServer`]'s connections.
const CONNECTIONS_MAX: usize = 16;
/// Upper bounds of the buckets of durations: three per decade, from a request in a data centre to
/// a transfer of some hours.
const SECONDS: [f64; 15] =
    [0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1_000.0, 3_000.0, 10_000.0];

/// Returns an empty histogram of durations in seconds.
pub fn seconds() -> Histogram {
    Histogram::new(SECONDS)
}

/// Values of one metric, by the values of its `N` labels.
#[derive(Debug)]
struct Family<M, const N: usize> {
    labels: [&'static str; N],
    series: BTreeMap<[String; N], M>,
}

impl<M: TypedMetric + EncodeMetric, const N: usize> Family<M, N> {
    fn encode_one(&self, encoder: &mut MetricEncoder, values: [&str; N], metric: &M) -> std::fmt::Result {
        let mut labels = self.labels.map(|label| (label, ""));
        labels.iter_mut().zip(values).for_each(|(label, value)| label.1 = value);
        metric.encode(encoder.encode_family(&labels)?)
    }

    fn encode_all(&self, encoder: &mut MetricEncoder) -> std::fmt::Result {
        self.series.iter().try_for_each(|(values, metric)| {
            self.encode_one(encoder, values.each_ref().map(String::as_str), metric)
        })
    }
}

impl<M: TypedMetric + EncodeMetric, const N: usize> EncodeMetric for Family<M, N> {
    fn encode(&self, mut encoder: MetricEncoder) -> std::fmt::Result {
        self.encode_all(&mut encoder)
    }

    fn metric_type(&self) -> MetricType {
        M::TYPE
    }
}

/// Counters of one metric, by the values of `N` labels. The set of values is fixed. Clones share
/// the counts.
///
/// ```
/// use anabranch_http::metrics::{Counters, Metrics};
/// let failures = Counters::new(["site", "cause"], [["paris", "broken"], ["rome", "broken"]]);
/// failures.of(["paris", "broken"]).inc();
/// let mut metrics = Metrics::default();
/// metrics.add("failures_total", "Failures", failures);
/// let text = metrics.text();
/// assert!(text.contains("anabranch_failures_total{site=\"paris\",cause=\"broken\"} 1\n"));
/// assert!(text.contains("anabranch_failures_total{site=\"rome\",cause=\"broken\"} 0\n"));
/// ```
#[derive(Clone, Debug)]
pub struct Counters<const N: usize> {
    family: Arc<Family<Counter, N>>,
    /// Count of values outside of the set; omitted while it is 0.
    other: Counter,
}

impl<const N: usize> Counters<N> {
    /// Creates counters at 0 for these values of the labels.
    pub fn new<S: Into<String>>(labels: [&'static str; N], values: impl IntoIterator<Item = [S; N]>) -> Self {
        let series = values.into_iter().map(|values| (values.map(Into::into), Counter::default()));
        let family = Family { labels, series: series.collect() };
        Self { family: Arc::new(family), other: Counter::default() }
    }

    /// Returns the counter of these values. Values outside of the set share one counter, whose
    /// labels are `other`.
    pub fn of(&self, values: [&str; N]) -> &Counter {
        self.family.series.get(&values.map(str::to_owned)).unwrap_or(&self.other)
    }
}

impl<const N: usize> EncodeMetric for Counters<N> {
    fn encode(&self, mut encoder: MetricEncoder) -> std::fmt::Result {
        self.family.encode_all(&mut encoder)?;
        if self.other.get() > 0 {
            self.family.encode_one(&mut encoder, [OTHER; N], &self.other)?;
        }
        Ok(())
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Counter
    }
}

/// Metrics of one daemon at one scrape.
///
/// Panics: functions that add a metric, if a counter's name does not end in `_total`, or if another
/// metric's name does.
#[derive(Debug)]
pub struct Metrics(Registry);

impl Default for Metrics {
    fn default() -> Self {
        Self(Registry::with_prefix(PREFIX))
    }
}

impl Metrics {
    /// Adds a metric under `anabranch_NAME`. `help` is a phrase without a full stop.
    pub fn add(&mut self, name: &str, help: &str, metric: impl Metric) {
        let base = match metric.metric_type() {
            // The encoder appends `_total`.
            MetricType::Counter => name.strip_suffix(TOTAL),
            _ => Some(name).filter(|name| !name.ends_with(TOTAL)),
        };
        let base = base.unwrap_or_else(|| panic!("{name}: a counter's name ends in {TOTAL}, and no other's"));
        self.0.register(base, help, metric);
    }

    /// Adds a counter whose value a state machine holds.
    pub fn counter<V>(&mut self, name: &str, help: &str, value: V)
    where
        V: EncodeCounterValue + Debug + Send + Sync + 'static,
    {
        self.add(name, help, ConstCounter::new(value));
    }

    /// Adds a gauge.
    pub fn gauge<V>(&mut self, name: &str, help: &str, value: V)
    where
        V: EncodeGaugeValue + Debug + Send + Sync + 'static,
    {
        self.add(name, help, ConstGauge::new(value));
    }

    /// Adds counters whose values a state machine holds, with the values of their labels.
    pub fn counters<V, const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        labels: [&'static str; N],
        values: impl IntoIterator<Item = ([String; N], V)>,
    ) where
        V: EncodeCounterValue + Debug + Send + Sync + 'static,
    {
        let series = values.into_iter().map(|(values, count)| (values, ConstCounter::new(count)));
        self.add(name, help, Family { labels, series: series.collect() });
    }

    /// Adds gauges, with the values of their labels.
    pub fn gauges<V, const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        labels: [&'static str; N],
        values: impl IntoIterator<Item = ([String; N], V)>,
    ) where
        V: EncodeGaugeValue + Debug + Send + Sync + 'static,
    {
        let series = values.into_iter().map(|(values, value)| (values, ConstGauge::new(value)));
        self.add(name, help, Family { labels, series: series.collect() });
    }

    /// Returns all metrics in Prometheus' text format.
    pub fn text(self) -> String {
        let mut text = String::new();
        encode(&mut text, &self.0).expect("a string takes all text");
        text
    }
}

/// Answers a scrape.
fn page(text: String) -> Response {
    ([(header::CONTENT_TYPE, CONTENT_TYPE)], text).into_response()
}

/// Returns a service's metrics, for operators only: they cover all peers, while other peers may see
/// only their own state.
///
/// Errors: a refusal of any other peer.
pub fn reply(peer: &PeerIdentity, metrics: impl FnOnce() -> String) -> Result<Response, Refusal> {
    is_operator(peer, "look")?;
    Ok(page(metrics()))
}

/// Listener for Prometheus at `/metrics`: plain HTTP without a password, so it belongs on loopback
/// or on a network of operators.
pub struct MetricsServer(PlainServer);

impl MetricsServer {
    /// Listens; port 0 takes a free port.
    ///
    /// Errors: an error of the operating system.
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        PlainServer::bind(address, PlainLimits::for_connections(CONNECTIONS_MAX)).map(Self)
    }

    /// Address of the listener.
    ///
    /// Errors: an error of the operating system.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }

    /// Answers each scrape with the text of `metrics`. Never returns; drop the future to stop.
    pub async fn run<T>(self, metrics: impl Fn() -> T + Clone + Send + Sync + 'static) -> Infallible
    where
        T: Future<Output = String> + Send + 'static,
    {
        let scrape = get(move || {
            let text = metrics();
            async move { page(text.await) }
        });
        self.0.run(Router::new().route("/metrics", scrape)).await
    }
}
