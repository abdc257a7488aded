//! TLS with unauthenticated peers: a server with a publicly trusted certificate, and clients
//! without a certificate.
//!
//! Both ends speak TLS 1.2 or 1.3 and agree on HTTP's version by ALPN (RFC 7301). The certificate
//! is reloaded when its files change; established connections keep the earlier one. Leaves out:
//! peers with an identity ([`crate::tls`]), client certificates, OCSP. Read [`ServerCertificate`]
//! first, then [`ServerTrust`] and [`server_cause`].

use crate::cause::cause;
use crate::certificate::{CertificateFacts, written};
use crate::tls::moment;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{CertificateError, ClientConfig, RootCertStore, ServerConfig};
use std::fmt;
use std::io::{self, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;
use time::OffsetDateTime;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Maximum size in bytes of a file with certificates or a key.
pub const PEM_BYTES_MAX: u64 = 4 << 20;
/// Permission bits of other users; a key's file must have none set.
const OTHERS_MODE: u32 = 0o007;

/// A certificate, key or list of authorities that cannot be used.
#[derive(Debug)]
#[non_exhaustive]
pub enum PublicTlsError {
    /// A file that cannot be read.
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// A file of more than [`PEM_BYTES_MAX`].
    TooLong {
        /// The file.
        path: PathBuf,
    },
    /// A file without a certificate or key in PEM.
    NotPem {
        /// The file.
        path: PathBuf,
        /// The missing item.
        what: &'static str,
    },
    /// A key that every user of the machine may read or write.
    OpenToOthers {
        /// The file.
        path: PathBuf,
        /// Mode of the file.
        mode: u32,
    },
    /// An expired certificate.
    Expired {
        /// The file.
        path: PathBuf,
        /// Last moment of its validity.
        end: OffsetDateTime,
    },
    /// A key of another certificate.
    WrongKey {
        /// The key's file.
        path: PathBuf,
        /// The certificate's file.
        chain: PathBuf,
    },
    /// A certificate that rustls refuses.
    Unusable {
        /// The file.
        path: PathBuf,
        /// Error of rustls, as text.
        reason: String,
    },
}

impl fmt::Display for PublicTlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable { path, error } => write!(f, "{}: cannot be read: {error}", path.display()),
            Self::TooLong { path } => {
                write!(f, "{}: more than {PEM_BYTES_MAX} bytes: name a file in PEM", path.display())
            }
            Self::NotPem { path, what } => write!(f, "{}: holds no {what} in PEM", path.display()),
            Self::OpenToOthers { path, mode } => write!(
                f,
                "{}: every user may read or write this key (mode {mode:04o}): run chmod 600 on it",
                path.display()
            ),
            Self::Expired { path, end } => {
                write!(f, "{}: the certificate expired on {}: renew it", path.display(), written(*end))
            }
            Self::WrongKey { path, chain } => {
                write!(f, "{}: is not the key of the certificate in {}", path.display(), chain.display())
            }
            Self::Unusable { path, reason } => write!(f, "{}: cannot be used: {reason}", path.display()),
        }
    }
}

impl std::error::Error for PublicTlsError {}

fn read(path: &Path, denied_mode: u32) -> Result<Vec<u8>, PublicTlsError> {
    let unreadable = |error| PublicTlsError::Unreadable { path: path.to_owned(), error };
    let file = std::fs::File::open(path).map_err(unreadable)?;
    let mode = file.metadata().map_err(unreadable)?.permissions().mode() & 0o7777;
    if mode & denied_mode != 0 {
        return Err(PublicTlsError::OpenToOthers { path: path.to_owned(), mode });
    }
    let mut bytes = Vec::new();
    file.take(PEM_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > PEM_BYTES_MAX {
        return Err(PublicTlsError::TooLong { path: path.to_owned() });
    }
    Ok(bytes)
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, PublicTlsError> {
    let pem = read(path, 0)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    let not_pem = || PublicTlsError::NotPem { path: path.to_owned(), what: "certificate" };
    found.ok().filter(|found| !found.is_empty()).ok_or_else(not_pem)
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// Files of a server's certificate, in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFiles {
    /// The server's certificate, then the certificates of the authorities up to a root.
    pub chain: PathBuf,
    /// Private key of the server's certificate.
    pub key: PathBuf,
}

/// Length and time of the last change of each file.
type FileFingerprint = [Option<(u64, Option<SystemTime>)>; 2];

impl CertificateFiles {
    fn look(&self) -> FileFingerprint {
        let seen = |path: &Path| path.metadata().ok().map(|found| (found.len(), found.modified().ok()));
        [seen(&self.chain), seen(&self.key)]
    }
}

/// A server's certificate, reloaded from its files; clones share it.
#[derive(Clone)]
pub struct ServerCertificate {
    shared: Arc<Shared>,
}

struct Shared {
    files: CertificateFiles,
    /// Names of protocols for ALPN, the preferred one first.
    protocols: &'static [&'static str],
    /// Keys of session tickets, which stay valid when the certificate changes.
    tickets: Arc<dyn rustls::server::ProducesTickets>,
    current: Mutex<CurrentCertificate>,
}

struct CurrentCertificate {
    config: Arc<ServerConfig>,
    end: OffsetDateTime,
    seen: FileFingerprint,
}

impl fmt::Debug for ServerCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ServerCertificate").field(&self.shared.files).finish()
    }
}

impl ServerCertificate {
    /// Reads and checks the files. `protocols` are the names for ALPN, the preferred one first.
    ///
    /// Errors: see [`PublicTlsError`].
    pub fn load(files: CertificateFiles, protocols: &'static [&'static str]) -> Result<Self, PublicTlsError> {
        let unusable = |error: rustls::Error| PublicTlsError::Unusable {
            path: files.key.clone(),
            reason: error.to_string(),
        };
        let tickets = rustls::crypto::ring::Ticketer::new().map_err(unusable)?;
        let current = read_config(&files, protocols, &tickets)?;
        Ok(Self { shared: Arc::new(Shared { files, protocols, tickets, current: Mutex::new(current) }) })
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, CurrentCertificate> {
        self.shared.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// TLS configuration for the next handshake.
    pub fn server_config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.lock().config)
    }

    /// Last moment of the certificate's validity, as in `2026-11-23T10:00:00Z`.
    pub fn expires(&self) -> String {
        written(self.lock().end)
    }

    /// Returns true if the files have changed since the last reading. Blocks while it checks.
    pub fn has_changed(&self) -> bool {
        let seen = self.shared.files.look();
        seen != self.lock().seen
    }

    /// Reads the files again, for new connections. Blocks while it reads.
    ///
    /// Errors: see [`PublicTlsError`]; the certificate that was read before stays in use.
    pub fn reload(&self) -> Result<(), PublicTlsError> {
        let Shared { files, protocols, tickets, .. } = &*self.shared;
        // Taken before the files are read, so that a change in between is noticed.
        self.lock().seen = files.look();
        let current = read_config(files, protocols, tickets)?;
        *self.lock() = current;
        Ok(())
    }
}

fn read_config(
    files: &CertificateFiles,
    protocols: &[&str],
    tickets: &Arc<dyn rustls::server::ProducesTickets>,
) -> Result<CurrentCertificate, PublicTlsError> {
    let seen = files.look();
    let chain = certificates(&files.chain)?;
    let key = PrivateKeyDer::from_pem_slice(&read(&files.key, OTHERS_MODE)?)
        .map_err(|_| PublicTlsError::NotPem { path: files.key.clone(), what: "private key" })?;
    let unusable = |path: &Path, reason: String| PublicTlsError::Unusable { path: path.to_owned(), reason };
    // rustls checks the certificate first, so it can be parsed here.
    let config = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .and_then(|config| config.with_no_client_auth().with_single_cert(chain.clone(), key))
        .map_err(|error| match error {
            rustls::Error::InconsistentKeys(_) => {
                PublicTlsError::WrongKey { path: files.key.clone(), chain: files.chain.clone() }
            }
            other => unusable(&files.chain, other.to_string()),
        });
    let mut config = config?;
    let facts = CertificateFacts::of(&chain[0])
        .ok_or_else(|| unusable(&files.chain, "its dates cannot be read".to_owned()))?;
    if facts.end < OffsetDateTime::now_utc() {
        return Err(PublicTlsError::Expired { path: files.chain.clone(), end: facts.end });
    }
    config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
    config.ticketer = Arc::clone(tickets);
    Ok(CurrentCertificate { config: Arc::new(config), end: facts.end, seen })
}

/// Writes a self-signed certificate for `names`, valid until `year`, for tests.
///
/// Panics: a name that no certificate can have; a folder that cannot be written.
#[doc(hidden)]
pub fn write_self_signed(folder: &Path, names: &[&str], year: i32) -> CertificateFiles {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let key = rcgen::KeyPair::generate().expect("the generator of keys works");
    let mut params = rcgen::CertificateParams::new(names).expect("good names");
    params.not_after = rcgen::date_time_ymd(year, 1, 1);
    let certificate = params.self_signed(&key).expect("the key signs");
    let files = CertificateFiles { chain: folder.join("chain.pem"), key: folder.join("key.pem") };
    std::fs::write(&files.chain, certificate.pem()).expect("the folder can be written");
    std::fs::write(&files.key, key.serialize_pem()).expect("the folder can be written");
    let own = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(&files.key, own).expect("the file was just made");
    files
}

/// Writes an authority, and a certificate for `names` that it signed, for tests. Returns the
/// certificate's files, and the path of the authority's certificate.
///
/// Panics: a name that no certificate can have; a folder that cannot be written.
#[doc(hidden)]
pub fn write_signed(folder: &Path, names: &[&str], year: i32) -> (CertificateFiles, PathBuf) {
    let new_key = || rcgen::KeyPair::generate().expect("the generator of keys works");
    let ca_key = new_key();
    let mut ca = rcgen::CertificateParams::new(Vec::new()).expect("no names");
    ca.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let authority = ca.self_signed(&ca_key).expect("the key signs");
    let key = new_key();
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let mut leaf = rcgen::CertificateParams::new(names).expect("good names");
    leaf.not_after = rcgen::date_time_ymd(year, 1, 1);
    let issuer = rcgen::Issuer::new(ca, ca_key);
    let certificate = leaf.signed_by(&key, &issuer).expect("the key signs");
    let files = CertificateFiles { chain: folder.join("chain.pem"), key: folder.join("key.pem") };
    let ca_file = folder.join("ca.pem");
    for (file, pem) in
        [(&ca_file, authority.pem()), (&files.chain, certificate.pem()), (&files.key, key.serialize_pem())]
    {
        std::fs::write(file, pem).expect("the folder can be written");
    }
    let own = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(&files.key, own).expect("the file was just made");
    (files, ca_file)
}

/// Describes in a few words, to follow a colon, why a client could not connect to a server of
/// [`ServerTrust`].
pub fn server_cause(error: &io::Error) -> String {
    use CertificateError as Bad;
    let tls = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    match tls {
        Some(rustls::Error::InvalidCertificate(reason)) => match reason {
            Bad::UnknownIssuer | Bad::BadSignature => {
                "its certificate is of an authority that is not trusted here: give that authority's file"
                    .to_owned()
            }
            Bad::NotValidForName | Bad::NotValidForNameContext { .. } => {
                "its certificate has another name: write the URL with a name of the certificate".to_owned()
            }
            Bad::ExpiredContext { not_after, .. } => {
                format!("its certificate expired on {}", moment(*not_after))
            }
            Bad::Expired => "its certificate has expired".to_owned(),
            Bad::NotValidYetContext { not_before, .. } => {
                format!("its certificate is valid from {} on: set this machine's clock", moment(*not_before))
            }
            Bad::Revoked => "its certificate was revoked".to_owned(),
            _ => "its certificate was refused".to_owned(),
        },
        Some(rustls::Error::PeerIncompatible(_)) => {
            "it speaks another version of TLS: it must speak 1.2 or 1.3".to_owned()
        }
        Some(rustls::Error::AlertReceived(_)) => "it refused the TLS handshake".to_owned(),
        _ => cause(error),
    }
}

/// Certificate authorities that a client trusts; clones share them.
#[derive(Clone)]
pub struct ServerTrust {
    connector: TlsConnector,
}

impl fmt::Debug for ServerTrust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerTrust").finish_non_exhaustive()
    }
}

impl ServerTrust {
    /// Loads the authorities from a PEM file. `protocols` are the names for ALPN.
    ///
    /// Errors: see [`PublicTlsError`].
    pub fn load(path: &Path, protocols: &[&str]) -> Result<Self, PublicTlsError> {
        let unusable = |reason: String| PublicTlsError::Unusable { path: path.to_owned(), reason };
        let mut roots = RootCertStore::empty();
        for authority in certificates(path)? {
            roots.add(authority).map_err(|error| unusable(error.to_string()))?;
        }
        Self::new(roots, protocols).map_err(|error| unusable(error.to_string()))
    }

    fn new(roots: RootCertStore, protocols: &[&str]) -> Result<Self, rustls::Error> {
        let config = ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions()?;
        let mut config = config.with_root_certificates(roots).with_no_client_auth();
        config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
        Ok(Self { connector: Arc::new(config).into() })
    }

    /// Upgrades `tcp` to a secure connection to the server `host`, a name or an address.
    ///
    /// Errors: `host` is a name that no certificate can have (`InvalidInput`); the certificate is
    /// from another authority or for another host; the connection's own errors.
    pub async fn connect(&self, tcp: TcpStream, host: &str) -> io::Result<TlsStream<TcpStream>> {
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let name = ServerName::try_from(bare.to_owned())
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, format!("{host}: {error}")))?;
        self.connector.connect(name, tcp).await
    }
}

#[cfg(test)]
mod tests;
