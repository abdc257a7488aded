//! TLS listeners of nodes and sources for viewers.

use anabranch_http::plain::{PlainLimits, PlainServer, Proxies};
use anabranch_net::public::ServerCertificate;
use std::io;
use std::net::SocketAddr;

/// An additional listener for viewers over TLS, with HTTP/1.1 or HTTP/2.
#[derive(Clone, Debug)]
pub struct SecureListener {
    /// Address on which to listen. Port 0 selects a free port.
    pub address: SocketAddr,
    /// Certificate, loaded with the protocols of [`anabranch_http::plain::PROTOCOLS`].
    pub certificate: ServerCertificate,
}

impl SecureListener {
    pub(crate) fn bind(self, limits: PlainLimits, proxies: Proxies) -> io::Result<PlainServer> {
        let server = PlainServer::bind(self.address, limits)?;
        Ok(server.with_certificate(self.certificate).with_proxies(proxies))
    }
}
