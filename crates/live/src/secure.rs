//! Listeners of nodes and sources for viewers over TLS.

use anabranch_http::plain::{PlainLimits, PlainServer, Proxies};
use anabranch_net::public::ServerCertificate;
use std::io;
use std::net::SocketAddr;

/// A further listener, for viewers over TLS with HTTP/1.1 or HTTP/2.
#[derive(Clone, Debug)]
pub struct SecureListener {
    /// Address; port 0 takes a free one.
    pub address: SocketAddr,
    /// Certificate, loaded with [`anabranch_http::plain::PROTOCOLS`].
    pub certificate: ServerCertificate,
}

impl SecureListener {
    pub(crate) fn bind(self, limits: PlainLimits, proxies: Proxies) -> io::Result<PlainServer> {
        let server = PlainServer::bind(self.address, limits)?;
        Ok(server.with_certificate(self.certificate).with_proxies(proxies))
    }
}
