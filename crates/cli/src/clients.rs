//! Options of listeners for the public: trusted proxies, and origins whose pages may send
//! credentials.

use anabranch_http::plain::{Clients, Cors, Proxies};

/// Clients of a listener for viewers.
#[derive(clap::Args)]
pub struct ClientArgs {
    /// Proxies whose word on a viewer's address counts (X-Forwarded-For, Forwarded, X-Real-IP), as 10.0.0.0/8,2001:db8::1, or
    /// `none`. A header that a client can write itself must be overwritten by the proxy. By default those on this machine
    /// (`broker serve`, `live dns`), or none.
    #[arg(long, value_name = "PREFIX,...")]
    proxies: Option<Proxies>,
    /// Connections from --proxies begin with the PROXY protocol, version 1 or 2.
    #[arg(long, requires = "proxies")]
    proxy_protocol: bool,
    /// Origins whose pages may ask with credentials, as https://page.example. Pages of all origins may ask without.
    #[arg(long, value_name = "ORIGIN,...")]
    origins: Option<Cors>,
}

impl ClientArgs {
    /// Settings for the clients of a listener. `default` has the proxies if the command line names
    /// none.
    ///
    /// Errors: the PROXY protocol without a proxy.
    pub fn clients(&self, default: Proxies) -> anyhow::Result<Clients> {
        let proxies = self.proxies.clone().unwrap_or(default);
        if self.proxy_protocol && proxies == Proxies::default() {
            bail_usage!("--proxy-protocol: --proxies none names no proxy: name its addresses");
        }
        Ok(Clients {
            proxies: proxies.with_proxy_protocol(self.proxy_protocol),
            cors: self.origins.clone().unwrap_or_default(),
        })
    }
}
