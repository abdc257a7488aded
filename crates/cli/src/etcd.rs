//! Options of controllers that share decisions in etcd.
//!
//! Leaves out: the store itself ([`anabranch_http::lease`]). Read [`EtcdArgs`].

use anabranch_http::lease::EtcdConfig;
use std::path::PathBuf;

/// A store that several controllers share.
#[derive(clap::Args)]
pub struct EtcdArgs {
    /// Share decisions in etcd with all controllers that name it, instead of --store: one of them
    /// leads, another takes over within --lease. Members of etcd, as http://HOST:PORT or
    /// https://HOST:PORT.
    #[arg(
        long,
        value_name = "URL,...",
        value_delimiter = ',',
        conflicts_with = "store",
        requires = "advertise"
    )]
    etcd: Vec<String>,
    /// Address of this controller for its peers and for the other controllers, as HOST:PORT.
    #[arg(long, value_name = "HOST:PORT", requires = "etcd", value_parser = host_and_port)]
    advertise: Option<String>,
    /// Seconds after which another controller leads if the leader is silent.
    #[arg(long, value_name = "SECONDS", default_value_t = 10, requires = "etcd", value_parser = clap::value_parser!(u64).range(2..=3_600))]
    lease: u64,
    /// First characters of all keys in etcd, one prefix for each group of controllers. By default
    /// /anabranch/SYSTEM/.
    #[arg(long, value_name = "PREFIX", requires = "etcd")]
    etcd_prefix: Option<String>,
    /// Authority of the certificates of etcd's members, as PEM; for https.
    #[arg(long, value_name = "FILE", requires = "etcd")]
    etcd_ca: Option<PathBuf>,
    /// This controller's certificate for etcd, as PEM, if its members ask for one.
    #[arg(long, value_name = "FILE", requires_all = ["etcd_ca", "etcd_key"])]
    etcd_cert: Option<PathBuf>,
    /// Key of --etcd-cert, as PEM.
    #[arg(long, value_name = "FILE", requires = "etcd_cert")]
    etcd_key: Option<PathBuf>,
}

impl EtcdArgs {
    /// Settings of the store of `system`'s controllers, if the command line names etcd.
    ///
    /// Errors: unreadable certificates.
    pub fn config(&self, system: &str) -> anyhow::Result<Option<EtcdConfig>> {
        let Some(address) = &self.advertise else { return Ok(None) };
        let prefix = self.etcd_prefix.clone().unwrap_or_else(|| format!("/anabranch/{system}/"));
        let lease = std::time::Duration::from_secs(self.lease);
        let mut etcd = EtcdConfig::new(self.etcd.clone(), &prefix, address).with_lease(lease);
        if let Some(authority) = &self.etcd_ca {
            let own = self.etcd_cert.as_deref().zip(self.etcd_key.as_deref());
            etcd = etcd.with_tls(authority, own)?;
        }
        Ok(Some(etcd))
    }
}

/// Parses an address, as HOST:PORT, for other controllers.
fn host_and_port(text: &str) -> Result<String, String> {
    let is_one =
        |(host, port): (&str, &str)| !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0);
    if text.rsplit_once(':').is_some_and(is_one) {
        Ok(text.to_owned())
    } else {
        Err("write HOST:PORT, as others reach this controller".to_owned())
    }
}
