//! A process's identity towards its peers, ready to connect and to accept. The [`Credentials`] may
//! change while the process runs. Read [`Identity`] first, then [`Guard`].

use crate::certificate::{self, CertificateFacts};
use crate::keys::{Role, System};
use crate::tls::{self, CredentialFiles, Credentials, PeerIdentity, TlsError, Trust};
use rustls::pki_types::CertificateDer;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};
use time::OffsetDateTime;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_rustls::{TlsAcceptor, TlsConnector, TlsStream};

/// A process's certificate, key and trusted authorities; clones share them.
#[derive(Clone)]
pub struct Identity {
    shared: Arc<Shared>,
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Identity").field("own", self.own()).finish_non_exhaustive()
    }
}

struct Shared {
    identity: PeerIdentity,
    /// Credential files, and their fingerprint at the last reading; `None` if the credentials came
    /// from memory.
    files: Option<(CredentialFiles, Mutex<FileFingerprint>)>,
    current: watch::Sender<Arc<CurrentConfig>>,
}

/// TLS configuration in force until the certificate files change.
struct CurrentConfig {
    connector: TlsConnector,
    /// Connector that accepts a peer of any name in [`Role::Site`].
    connector_to_sites: TlsConnector,
    acceptor: TlsAcceptor,
    trust: Arc<Trust>,
    validity: (OffsetDateTime, OffsetDateTime),
}

impl CurrentConfig {
    fn new(credentials: &Credentials) -> Result<Arc<Self>, rustls::Error> {
        Ok(Arc::new(Self {
            connector: credentials.client_config()?.into(),
            connector_to_sites: credentials.client_config_for(Role::Site)?.into(),
            acceptor: credentials.server_config()?.into(),
            trust: credentials.trust().clone(),
            validity: credentials.validity(),
        }))
    }
}

/// Length and modification time of each credential file; `None` for a missing file.
type FileFingerprint = [Option<(u64, Option<SystemTime>)>; 4];

fn look(files: &CredentialFiles) -> FileFingerprint {
    let seen = |path: &Path| path.metadata().ok().map(|found| (found.len(), found.modified().ok()));
    [seen(&files.ca), seen(&files.certificate), seen(&files.key), seen(&files.revoked())]
}

impl Identity {
    /// Creates an identity from these credentials, which never change.
    ///
    /// Errors: as [`Credentials::server_config`].
    pub fn new(credentials: &Credentials) -> Result<Self, rustls::Error> {
        Self::with_files(credentials, None)
    }

    /// Loads the identity from these files, which may change later ([`Identity::reload`]).
    ///
    /// Errors: as [`Credentials::load`].
    pub fn load(files: &CredentialFiles) -> Result<Self, TlsError> {
        // Taken before the files are read, so that a change in between is noticed.
        let seen = look(files);
        let credentials = Credentials::load(files)?;
        let unusable =
            |e: rustls::Error| TlsError::Unusable { path: files.certificate.clone(), reason: e.to_string() };
        Self::with_files(&credentials, Some((files.clone(), Mutex::new(seen)))).map_err(unusable)
    }

    fn with_files(
        credentials: &Credentials,
        files: Option<(CredentialFiles, Mutex<FileFingerprint>)>,
    ) -> Result<Self, rustls::Error> {
        let current = watch::Sender::new(CurrentConfig::new(credentials)?);
        let identity = credentials.identity().clone();
        Ok(Self { shared: Arc::new(Shared { identity, files, current }) })
    }

    /// The party that this identity represents.
    pub fn own(&self) -> &PeerIdentity {
        &self.shared.identity
    }

    /// Last moment of the certificate's validity, as in `2026-11-23T10:00:00Z`, and the time left
    /// until then.
    pub fn expires(&self) -> (String, Duration) {
        let (_, end) = self.current().validity;
        (certificate::written(end), Duration::try_from(end - OffsetDateTime::now_utc()).unwrap_or_default())
    }

    /// Number of holders whose certificates are revoked.
    pub fn revoked(&self) -> usize {
        self.current().trust.revoked.len()
    }

    /// Path of the certificate's file; `None` if the credentials came from memory.
    pub fn certificate_file(&self) -> Option<&Path> {
        self.shared.files.as_ref().map(|(files, _)| files.certificate.as_path())
    }

    fn current(&self) -> Arc<CurrentConfig> {
        Arc::clone(&self.shared.current.borrow())
    }

    fn system(&self) -> System {
        self.shared.identity.system
    }

    /// Returns true if the files have changed since the last reading, successful or not. Blocks
    /// while it checks.
    pub fn has_changed(&self) -> bool {
        let Some((files, seen)) = &self.shared.files else { return false };
        look(files) != *seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the files again. Established connections continue; [`Guard`] reports the ones whose
    /// peer is no longer trusted. Does nothing without files. Blocks while it reads.
    ///
    /// Errors: as [`Credentials::load`]; the earlier credentials stay in force.
    pub fn reload(&self) -> Result<(), TlsError> {
        let Some((files, seen)) = &self.shared.files else { return Ok(()) };
        *seen.lock().unwrap_or_else(PoisonError::into_inner) = look(files);
        let unusable =
            |e: rustls::Error| TlsError::Unusable { path: files.certificate.clone(), reason: e.to_string() };
        let mut files = files.clone();
        files.holder = Some(self.shared.identity.clone());
        let current = CurrentConfig::new(&Credentials::load(&files)?).map_err(unusable)?;
        self.shared.current.send_replace(current);
        Ok(())
    }

    /// Current configuration for accepting connections, for
    /// [`crate::admission::Arrival::identify`].
    pub fn server_config(&self) -> Arc<rustls::ServerConfig> {
        self.current().acceptor.config().clone()
    }

    /// Upgrades `tcp` to a secure connection to `name` in `role` of our system.
    ///
    /// Errors: the peer's certificate is from another authority or names another party
    /// ([`crate::cause::explain`] tells which); a name that no certificate can carry
    /// (`InvalidInput`); the connection's own errors.
    pub async fn connect(&self, tcp: TcpStream, role: Role, name: &str) -> io::Result<TlsStream<TcpStream>> {
        let name = tls::server_name(self.system(), role, name)
            .map_err(|e| io::Error::new(io::ErrorKind::InvalidInput, e))?;
        Ok(self.current().connector.connect(name, tcp).await?.into())
    }

    /// Upgrades `tcp` to a secure connection to a site of unknown name. Returns the site's
    /// identity.
    ///
    /// Errors: the peer's certificate does not name a site of our system, or is from another
    /// authority (`InvalidData`); the connection's own errors.
    pub async fn connect_to_site(&self, tcp: TcpStream) -> io::Result<(TlsStream<TcpStream>, PeerIdentity)> {
        // A placeholder: the name in the certificate is checked after the handshake.
        let unnamed = tls::server_name(self.system(), Role::Site, "any").map_err(io::Error::other)?;
        let stream = TlsStream::from(self.current().connector_to_sites.connect(unnamed, tcp).await?);
        let peer = stream.get_ref().1.peer_certificates().and_then(tls::peer_identity);
        Ok((stream, peer.ok_or_else(|| io::Error::other("the verified certificate names no holder"))?))
    }

    /// Accepts a secure connection and returns the peer's identity.
    ///
    /// Errors: the peer presents no certificate of our authority, or one of another system
    /// (`InvalidData`); the connection's own errors.
    pub async fn accept(&self, tcp: TcpStream) -> io::Result<(TlsStream<TcpStream>, PeerIdentity)> {
        let stream = TlsStream::from(self.current().acceptor.accept(tcp).await?);
        let peer = stream.get_ref().1.peer_certificates().and_then(tls::peer_identity);
        Ok((stream, peer.ok_or_else(|| io::Error::other("the verified certificate names no holder"))?))
    }

    /// Creates a guard for a connection that was made with this identity.
    pub fn guard(&self, connection: &rustls::CommonState) -> Guard {
        let chain = connection.peer_certificates().unwrap_or_default();
        let chain: Vec<_> = chain.iter().map(|c| c.clone().into_owned()).collect();
        let current = self.shared.current.subscribe();
        Guard { chain, current, clock: SystemTime::now, every: CLOCK_EVERY, _identity: self.clone() }
    }
}

/// Maximum interval between two readings of the wall clock by a guard, because the clock may be set
/// meanwhile.
const CLOCK_EVERY: Duration = Duration::from_secs(30);

/// Reports when a connection's peer is no longer trusted: its certificate has expired or was
/// revoked, or its authority was replaced. The owner of the connection then closes it.
pub struct Guard {
    chain: Vec<CertificateDer<'static>>,
    current: watch::Receiver<Arc<CurrentConfig>>,
    /// Reads the wall clock.
    clock: fn() -> SystemTime,
    /// Maximum interval between two readings of the wall clock.
    every: Duration,
    /// Keeps the sender of changes alive.
    _identity: Identity,
}

impl Guard {
    /// Waits until the peer is no longer trusted, and returns the reason. May be dropped and called
    /// again.
    pub async fn withdrawn(&mut self) -> String {
        loop {
            let trust = Arc::clone(&self.current.borrow_and_update().trust);
            let now = (self.clock)();
            if let Some(reason) = trust.withdrawn(&self.chain, now) {
                return reason;
            }
            let left = self.chain.first().and_then(|leaf| CertificateFacts::of(leaf)).map(|facts| {
                // A certificate is valid until the end of its last second.
                let left = facts.end - OffsetDateTime::from(now) + time::Duration::SECOND;
                Duration::try_from(left).unwrap_or_default()
            });
            let pause = left.unwrap_or(self.every).min(self.every).max(Duration::from_millis(10));
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                _ = self.current.changed() => {}
            }
        }
    }

    /// Runs `exchange` for as long as the peer is trusted.
    ///
    /// Errors: the reason why the peer is no longer trusted; `exchange` was dropped.
    pub async fn during<T>(mut self, exchange: impl Future<Output = T>) -> Result<T, String> {
        tokio::select! {
            done = exchange => Ok(done),
            reason = self.withdrawn() => Err(reason),
        }
    }
}

#[cfg(test)]
mod tests;
