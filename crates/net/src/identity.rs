//! Who a process is to its peers: a certificate and key of the project's own authority, used in both directions.

use rustls::pki_types::{CertificateDer, ServerName};
use std::io;
use std::sync::Arc;
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsConnector, TlsStream};

/// A process's certificate, key and trust, ready to connect and to accept.
#[derive(Clone)]
pub struct Identity {
    connector: TlsConnector,
    acceptor: TlsAcceptor,
}

impl Identity {
    /// From configurations that both demand the peer's certificate (see the module `tls`).
    pub fn new(client: Arc<rustls::ClientConfig>, server: Arc<rustls::ServerConfig>) -> Self {
        Self { connector: client.into(), acceptor: server.into() }
    }

    /// Makes `tcp` a secure connection to the peer called `name`.
    ///
    /// Errors: the peer's certificate is not of our authority or not for `name` (`InvalidData`); the connection's own.
    pub async fn connect(&self, tcp: TcpStream, name: &str) -> io::Result<TlsStream<TcpStream>> {
        let name = ServerName::try_from(name.to_owned()).map_err(|e| {
            io::Error::new(io::ErrorKind::InvalidInput, format!("`{name}` is no name for a certificate: {e}"))
        })?;
        Ok(self.connector.connect(name, tcp).await?.into())
    }

    /// Accepts a secure connection.
    ///
    /// Errors: the peer shows no certificate of our authority; the connection's own.
    pub async fn accept(&self, tcp: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        Ok(self.acceptor.accept(tcp).await?.into())
    }
}

/// The certificate that the peer of `stream` showed.
pub fn peer_certificate(stream: &TlsStream<TcpStream>) -> Option<CertificateDer<'static>> {
    let certificates = stream.get_ref().1.peer_certificates()?;
    Some(certificates.first()?.clone().into_owned())
}
