//! `--metrics` of daemons that have no HTTP listener for operators.
//!
//! Leaves out: the metrics, which are in each system's crate. Read [`MetricsArgs`].

use crate::network::listen_address;
use anabranch_http::metrics::MetricsServer;
use anyhow::Context as _;
use std::convert::Infallible;
use std::future::{pending, ready};
use std::net::{Ipv4Addr, SocketAddr};

/// Option of each daemon's command.
#[derive(clap::Args)]
pub struct MetricsArgs {
    /// Address for Prometheus' /metrics, in plain HTTP without a password. A port alone means
    /// 127.0.0.1. By default there is none.
    #[arg(long, value_name = "[IP:]PORT", value_parser = address)]
    metrics: Option<SocketAddr>,
}

/// Parses an address; a port alone is a port of the loopback address.
fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_or_else(|_| listen_address(text), |port: u16| Ok((Ipv4Addr::LOCALHOST, port).into()))
}

impl MetricsArgs {
    /// Listens, if the command line names an address.
    ///
    /// Errors: the system refuses the address.
    pub fn bind(&self) -> anyhow::Result<MetricsListener> {
        let Some(at) = self.metrics else { return Ok(MetricsListener(None)) };
        let bound = MetricsServer::bind(at).with_context(|| format!("--metrics {at}"))?;
        Ok(MetricsListener(Some(bound)))
    }
}

/// The listener, if there is one.
pub struct MetricsListener(Option<MetricsServer>);

impl MetricsListener {
    /// Answers scrapes with `metrics`, after a line that names the address unless `quiet`. Never
    /// returns.
    pub async fn serve(
        self,
        quiet: bool,
        metrics: impl Fn() -> String + Clone + Send + Sync + 'static,
    ) -> Infallible {
        self.serve_later(quiet, move || ready(metrics())).await
    }

    /// As [`MetricsListener::serve`], for metrics that a future computes.
    pub async fn serve_later<T>(
        self,
        quiet: bool,
        metrics: impl Fn() -> T + Clone + Send + Sync + 'static,
    ) -> Infallible
    where
        T: Future<Output = String> + Send + 'static,
    {
        let Some(server) = self.0 else { return pending().await };
        if let Ok(at) = server.local_addr()
            && !quiet
        {
            errln!("metrics at http://{at}/metrics");
        }
        server.run(metrics).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn port_alone_means_the_loopback_address() {
        assert_eq!(address("9100"), Ok("127.0.0.1:9100".parse().expect("an address")));
        assert_eq!(address("[::]:9100"), Ok("[::]:9100".parse().expect("an address")));
        assert!(address("10.0.0.1").is_err() && address("70000").is_err());
    }
}
