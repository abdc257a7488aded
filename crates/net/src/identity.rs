//! Who a process is to its peers, ready to connect and to accept: [`Credentials`] as a driver uses them.

use crate::keys::{Role, System};
use crate::tls::{self, Credentials, PeerIdentity};
use std::io;
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsConnector, TlsStream};

/// A process's certificate, key and trust.
#[derive(Clone)]
pub struct Identity {
    system: System,
    connector: TlsConnector,
    /// For [`Role::Site`] by any name.
    connector_to_sites: TlsConnector,
    acceptor: TlsAcceptor,
}

impl Identity {
    /// For a process with these credentials.
    ///
    /// Errors: as [`Credentials::server_config`].
    pub fn new(credentials: &Credentials) -> Result<Self, rustls::Error> {
        Ok(Self {
            system: credentials.identity().system,
            connector: credentials.client_config()?.into(),
            connector_to_sites: credentials.client_config_for(Role::Site)?.into(),
            acceptor: credentials.server_config()?.into(),
        })
    }

    /// How it shakes hands with those who call, for [`crate::admission::Arrival::identify`].
    pub fn server_config(&self) -> std::sync::Arc<rustls::ServerConfig> {
        self.acceptor.config().clone()
    }

    /// Makes `tcp` a secure connection to `name` in `role` of our system.
    ///
    /// Errors: the peer's certificate is not of our authority, or somebody else's ([`tls::explain`] says whose); a name
    /// that no certificate can carry (`InvalidInput`); the connection's own.
    pub async fn connect(&self, tcp: TcpStream, role: Role, name: &str) -> io::Result<TlsStream<TcpStream>> {
        let name = tls::server_name(self.system, role, name)
            .map_err(|e| io::Error::new(io::ErrorKind::InvalidInput, e))?;
        Ok(self.connector.connect(name, tcp).await?.into())
    }

    /// Makes `tcp` a secure connection to a site whose name is not known, and says which it is.
    ///
    /// Errors: the peer's certificate is not one of a site of our system, or not of our authority (`InvalidData`); the connection's own.
    pub async fn connect_to_site(&self, tcp: TcpStream) -> io::Result<(TlsStream<TcpStream>, PeerIdentity)> {
        // Asked of nobody: what the certificate says is checked.
        let unnamed = tls::server_name(self.system, Role::Site, "any").map_err(io::Error::other)?;
        let stream = TlsStream::from(self.connector_to_sites.connect(unnamed, tcp).await?);
        let peer = stream.get_ref().1.peer_certificates().and_then(tls::peer_identity);
        Ok((stream, peer.ok_or_else(|| io::Error::other("the verified certificate names nobody"))?))
    }

    /// Accepts a secure connection and says who called.
    ///
    /// Errors: the peer shows no certificate of our authority, or one of another system (`InvalidData`); the connection's
    /// own.
    pub async fn accept(&self, tcp: TcpStream) -> io::Result<(TlsStream<TcpStream>, PeerIdentity)> {
        let stream = TlsStream::from(self.acceptor.accept(tcp).await?);
        let peer = stream.get_ref().1.peer_certificates().and_then(tls::peer_identity);
        Ok((stream, peer.ok_or_else(|| io::Error::other("the verified certificate names nobody"))?))
    }
}
