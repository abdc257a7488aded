//! Mutually authenticated TLS 1.3 against one authority, and the other end's identity.
//!
//! Both ends present a certificate of the same authority and of the same system. A client names the
//! expected role and site ([`server_name`]): a peer of another role or site fails the handshake. A
//! server learns the caller's identity from [`peer_identity`] and must itself check the caller's
//! rights. Leaves out: making keys ([`crate::keys`]). Read [`Credentials`] first.
#![allow(clippy::disallowed_methods, reason = "a driver: reads key files and checks dates")]

mod verify;

pub(crate) use verify::moment;

use crate::certificate::{CertificateFacts, written};
use crate::party::{self, BACKDATED, Role, System};
use crate::revoked::{self, BadLine, RevocationList};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{AlertDescription, CertificateError, ClientConfig, RootCertStore, ServerConfig};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use time::OffsetDateTime;
use verify::{CallerVerifier, ChainError, Clock, ListenerVerifier, verify_chain};

pub use crate::party::PeerIdentity;
pub(crate) use verify::Trust;

/// Paths of a party's three files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CredentialFiles {
    /// The authority's certificate.
    pub ca: PathBuf,
    /// The party's certificate.
    pub certificate: PathBuf,
    /// Path of the private key.
    pub key: PathBuf,
    /// The expected holder of the certificate; `None` if any holder is accepted.
    pub holder: Option<PeerIdentity>,
}

impl CredentialFiles {
    /// Path of the list of revoked certificates ([`crate::revoked`]), beside the authority's
    /// certificate. The file need not exist.
    pub fn revoked(&self) -> PathBuf {
        self.ca.with_file_name("revoked")
    }
}

impl CredentialFiles {
    /// Paths of the files that [`crate::keys::write_set`] wrote below `folder` for `name` in `role`
    /// of the system.
    pub fn in_set(folder: &Path, system: System, role: Role, name: &str) -> Self {
        let stem = folder.join(party::stem(role, name)).into_os_string();
        let file = |end: &str| {
            let mut path = stem.clone();
            path.push(end);
            PathBuf::from(path)
        };
        Self {
            ca: folder.join("ca.pem"),
            certificate: file(".pem"),
            key: file(".key"),
            holder: Some(PeerIdentity { system, role, name: name.to_owned() }),
        }
    }
}

/// A party's own certificate and key, and the authorities that the party trusts.
pub struct Credentials {
    identity: PeerIdentity,
    facts: CertificateFacts,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    trust: Arc<Trust>,
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credentials").field("identity", &self.identity).finish_non_exhaustive()
    }
}

/// Reason why credentials are unusable.
#[derive(Debug)]
#[non_exhaustive]
pub enum TlsError {
    /// A file that cannot be read.
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        error: std::io::Error,
        /// System whose command makes the file; `None` if any system's command does.
        system: Option<System>,
    },
    /// A file without the expected PEM section.
    NotPem {
        /// The file.
        path: PathBuf,
        /// Expected content.
        what: &'static str,
    },
    /// An expired certificate.
    Expired {
        /// The file.
        path: PathBuf,
        /// Time of expiry.
        end: OffsetDateTime,
    },
    /// A certificate that is not valid yet.
    NotYet {
        /// The file.
        path: PathBuf,
        /// Start of validity.
        begin: OffsetDateTime,
    },
    /// A certificate that was revoked.
    Revoked {
        /// The file.
        path: PathBuf,
        /// The list that contains the certificate.
        list: PathBuf,
    },
    /// A list of revoked certificates that cannot be read.
    BadList {
        /// The file.
        path: PathBuf,
        /// Line and reason.
        error: BadLine,
    },
    /// A file that users other than its owner may read or write.
    OpenToOthers {
        /// The file.
        path: PathBuf,
        /// Mode of the file.
        mode: u32,
        /// Right that other users must not have.
        what: &'static str,
        /// Mode that removes the right.
        fix: &'static str,
    },
    /// A file longer than `bytes_max`.
    TooLong {
        /// The file.
        path: PathBuf,
        /// Maximum size of the file in bytes.
        bytes_max: u64,
    },
    /// The clock of this machine is set before 1970.
    Clock,
    /// A certificate that the authority did not sign.
    WrongCa {
        /// The file.
        path: PathBuf,
        /// The authority's file.
        ca: PathBuf,
    },
    /// The key belongs to another certificate.
    WrongKey {
        /// The key's file.
        path: PathBuf,
    },
    /// A certificate that names no holder.
    NoIdentity {
        /// The party whose certificate names no holder.
        whose: String,
    },
    /// A certificate of another holder than expected.
    WrongHolder {
        /// The file.
        path: PathBuf,
        /// Expected party.
        expected: PeerIdentity,
        /// Actual party.
        found: PeerIdentity,
    },
    /// A certificate that TLS cannot use for another reason.
    Unusable {
        /// The file.
        path: PathBuf,
        /// The reason that rustls gives.
        reason: String,
    },
    /// A name that no certificate can carry.
    BadName(String),
}

impl std::fmt::Display for TlsError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unreadable { path, error, system } => {
                let verb = system.map_or_else(|| "keys".to_owned(), System::keys_command);
                write!(
                    f,
                    "{}: cannot be read: {error}: make keys (`{verb}`), or name the folder that has them with --keys",
                    path.display()
                )
            }
            Self::NotPem { path, what } => write!(f, "{}: holds no {what} in PEM", path.display()),
            Self::Expired { path, end } => write!(
                f,
                "{}: the certificate expired on {}: make a new one with `keys renew`",
                path.display(),
                written(*end)
            ),
            Self::NotYet { path, begin } => write!(
                f,
                "{}: the certificate is valid from {} on, and here it is {}: set the clock",
                path.display(),
                written(*begin),
                written(OffsetDateTime::now_utc())
            ),
            Self::Revoked { path, list } => write!(
                f,
                "{}: the certificate was revoked, as {} says: make a new one with `keys renew`",
                path.display(),
                list.display()
            ),
            Self::BadList { path, error } => write!(f, "{}: {error}", path.display()),
            Self::OpenToOthers { path, mode, what, fix } => write!(
                f,
                "{0}: others may {what} it (mode {mode:04o}): run `chmod {fix} {0}`",
                path.display()
            ),
            Self::TooLong { path, bytes_max } => {
                write!(f, "{}: has more than {bytes_max} bytes: is it the right file?", path.display())
            }
            Self::Clock => f.write_str(CLOCK_TEXT),
            Self::WrongCa { path, ca } => write!(
                f,
                "{}: the certificate was not made by the authority {}: use files of one set",
                path.display(),
                ca.display()
            ),
            Self::WrongKey { path } => {
                write!(f, "{}: the key belongs to another certificate", path.display())
            }
            Self::NoIdentity { whose } => {
                write!(
                    f,
                    "{whose}: the certificate names no system and no holder: make a new set with `keys`"
                )
            }
            Self::WrongHolder { path, expected, found } => write!(
                f,
                "{}: is the certificate of {found}, and one of {expected} is needed: name the folder with keys of {}",
                path.display(),
                expected.system
            ),
            Self::Unusable { path, reason } => write!(f, "{}: cannot be used: {reason}", path.display()),
            Self::BadName(text) => f.write_str(text),
        }
    }
}
impl std::error::Error for TlsError {}

/// Maximum size in bytes of a file with a certificate or a key.
pub const PEM_BYTES_MAX: u64 = 1 << 20;
const CLOCK_TEXT: &str = "this machine's clock is set before 1970: set it";

/// Reads `path`, which must not grant `denied` rights to anyone but its owner.
fn read_file(
    path: &Path,
    bytes_max: u64,
    denied: DeniedRights,
    system: Option<System>,
) -> Result<Vec<u8>, TlsError> {
    let unreadable = |error| TlsError::Unreadable { path: path.to_owned(), error, system };
    let file = std::fs::File::open(path).map_err(unreadable)?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        let mode = file.metadata().map_err(unreadable)?.permissions().mode() & 0o7777;
        if mode & denied.mode != 0 {
            let DeniedRights { what, fix, .. } = denied;
            return Err(TlsError::OpenToOthers { path: path.to_owned(), mode, what, fix });
        }
    }
    let mut bytes = Vec::new();
    file.take(bytes_max + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > bytes_max {
        return Err(TlsError::TooLong { path: path.to_owned(), bytes_max });
    }
    Ok(bytes)
}

/// Rights that only a file's owner may have.
#[derive(Copy, Clone)]
struct DeniedRights {
    mode: u32,
    what: &'static str,
    fix: &'static str,
}

/// Rights to a private key, which only its owner may have.
const SECRET: DeniedRights = DeniedRights { mode: 0o077, what: "read or write", fix: "600" };
/// Right to change the trusted authorities, which only the owner and at most the group may have.
const TRUSTED: DeniedRights = DeniedRights { mode: 0o002, what: "write", fix: "644" };

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

impl Credentials {
    /// Reads and checks a party's files.
    ///
    /// Errors: see [`TlsError`]; each names its file.
    pub fn load(files: &CredentialFiles) -> Result<Self, TlsError> {
        let system = files.holder.as_ref().map(|holder| holder.system);
        let pem = |path: &Path, denied| read_file(path, PEM_BYTES_MAX, denied, system);
        let (ca, certificate) = (pem(&files.ca, TRUSTED)?, pem(&files.certificate, TRUSTED)?);
        let list = files.revoked();
        let revoked = match read_file(&list, revoked::FILE_BYTES_MAX, TRUSTED, system) {
            Ok(bytes) => String::from_utf8_lossy(&bytes)
                .parse()
                .map_err(|error| TlsError::BadList { path: list, error })?,
            Err(TlsError::Unreadable { error, .. }) if error.kind() == std::io::ErrorKind::NotFound => {
                RevocationList::default()
            }
            Err(error) => return Err(error),
        };
        Self::from_pem(&ca, &certificate, &pem(&files.key, SECRET)?, files, revoked)
    }

    /// Parses credentials from PEM texts in memory. `files` only supplies the paths for messages.
    ///
    /// Errors: as [`Credentials::load`].
    pub fn from_pem(
        ca: &[u8],
        certificate: &[u8],
        key: &[u8],
        files: &CredentialFiles,
        revoked: RevocationList,
    ) -> Result<Self, TlsError> {
        let certificates = |pem: &[u8], path: &Path| {
            let list: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
            list.ok()
                .filter(|l| !l.is_empty())
                .ok_or_else(|| TlsError::NotPem { path: path.to_owned(), what: "certificate" })
        };
        let now = Clock::now().ok_or(TlsError::Clock)?;
        let cas = in_time(certificates(ca, &files.ca)?, now, &files.ca)?;
        let chain = certificates(certificate, &files.certificate)?;
        let key = PrivateKeyDer::from_pem_slice(key)
            .map_err(|_| TlsError::NotPem { path: files.key.clone(), what: "private key" })?;
        let mut roots = RootCertStore::empty();
        for ca in &cas {
            roots
                .add(ca.clone())
                .map_err(|e| TlsError::Unusable { path: files.ca.clone(), reason: e.to_string() })?;
        }
        let path = || files.certificate.clone();
        verify_chain(&cas, &chain, now).map_err(|error| match error {
            ChainError::Expired(end) => TlsError::Expired { path: path(), end },
            ChainError::NotYet(begin) => TlsError::NotYet { path: path(), begin },
            ChainError::OtherAuthority => TlsError::WrongCa { path: path(), ca: files.ca.clone() },
            ChainError::Other(e) => TlsError::Unusable { path: path(), reason: e.to_string() },
        })?;
        let identity = peer_identity(&chain)
            .ok_or_else(|| TlsError::NoIdentity { whose: files.certificate.display().to_string() })?;
        if let Some(expected) = files.holder.as_ref().filter(|expected| **expected != identity) {
            let (path, expected) = (files.certificate.clone(), expected.clone());
            return Err(TlsError::WrongHolder { path, expected, found: identity });
        }
        let facts = CertificateFacts::of(&chain[0])
            .ok_or_else(|| TlsError::Unusable { path: path(), reason: "its dates cannot be read".into() })?;
        if revoked.denies(&identity, facts.begin + BACKDATED) {
            return Err(TlsError::Revoked { path: path(), list: files.revoked() });
        }
        let trust = Trust { system: identity.system, authorities: cas, roots: Arc::new(roots), revoked };
        let credentials = Self { identity, facts, chain, key, trust: Arc::new(trust) };
        // A key that does not match the certificate fails here rather than at the first connection.
        credentials.client_config().map_err(|e| match e {
            rustls::Error::InconsistentKeys(_) => TlsError::WrongKey { path: files.key.clone() },
            other => TlsError::Unusable { path: files.key.clone(), reason: other.to_string() },
        })?;
        Ok(credentials)
    }

    /// The holder of these credentials.
    pub fn identity(&self) -> &PeerIdentity {
        &self.identity
    }

    /// First and last moment at which the certificate is valid.
    pub fn validity(&self) -> (OffsetDateTime, OffsetDateTime) {
        (self.facts.begin, self.facts.end)
    }

    pub(crate) fn trust(&self) -> &Arc<Trust> {
        &self.trust
    }

    /// Configuration for a listener: every caller must present a certificate of the same authority
    /// and system.
    ///
    /// Errors: the error of rustls about the certificate; none after [`Credentials::load`].
    pub fn server_config(&self) -> Result<Arc<ServerConfig>, rustls::Error> {
        let verifier = Arc::new(CallerVerifier::new(self.trust.clone(), provider())?);
        let mut config = ServerConfig::builder_with_details(provider(), Arc::new(Clock))
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_client_cert_verifier(verifier)
            .with_single_cert(self.chain.clone(), self.key.clone_key())?;
        // A resumed session would skip the check of the caller's certificate.
        config.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Arc::new(config))
    }

    /// Configuration for a caller: presents the own certificate and accepts only the party that
    /// [`server_name`] names.
    ///
    /// Errors: as [`Credentials::server_config`].
    pub fn client_config(&self) -> Result<Arc<ClientConfig>, rustls::Error> {
        self.client_config_with(None)
    }

    /// Configuration for a caller that knows the peer's role but not its name: accepts any party of
    /// the authority in `role`. [`peer_identity`] then returns the party.
    ///
    /// Errors: as [`Credentials::server_config`].
    pub fn client_config_for(&self, role: Role) -> Result<Arc<ClientConfig>, rustls::Error> {
        self.client_config_with(Some(role))
    }

    fn client_config_with(&self, any_of: Option<Role>) -> Result<Arc<ClientConfig>, rustls::Error> {
        let verifier = Arc::new(ListenerVerifier::new(self.trust.clone(), any_of, provider())?);
        let mut config = ClientConfig::builder_with_details(provider(), Arc::new(Clock))
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .dangerous()
            .with_custom_certificate_verifier(verifier)
            .with_client_auth_cert(self.chain.clone(), self.key.clone_key())?;
        config.resumption = rustls::client::Resumption::disabled();
        Ok(Arc::new(config))
    }
}

/// Selects the authorities that are valid at `now`. Fails if none is.
fn in_time(
    authorities: Vec<CertificateDer<'static>>,
    now: UnixTime,
    path: &Path,
) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let mut refused = None;
    let mut good = Vec::new();
    for authority in authorities {
        let path = || path.to_owned();
        let facts = CertificateFacts::of(&authority)
            .ok_or_else(|| TlsError::Unusable { path: path(), reason: "it is no certificate".into() })?;
        let now = i128::from(now.as_secs());
        if i128::from(facts.end.unix_timestamp()) < now {
            refused = Some(TlsError::Expired { path: path(), end: facts.end });
        } else if i128::from(facts.begin.unix_timestamp()) > now {
            refused = Some(TlsError::NotYet { path: path(), begin: facts.begin });
        } else {
            good.push(authority);
        }
    }
    match refused {
        Some(error) if good.is_empty() => Err(error),
        _ => Ok(good),
    }
}

/// The holder of a peer's certificate, as signed by the authority; `None` if the certificate names
/// no holder.
///
/// Only for chains that a handshake (or [`Credentials::load`]) has verified.
pub fn peer_identity(chain: &[CertificateDer<'_>]) -> Option<PeerIdentity> {
    let leaf = webpki::EndEntityCert::try_from(chain.first()?).ok()?;
    let mut found = leaf.valid_uri_names().filter_map(party::of_uri);
    let first = found.next()?;
    // A certificate with two identities has no identity.
    found.next().is_none().then_some(first)
}

/// The server name by which TLS checks that the peer is `name` in `role` of the system,
/// independently of the peer's address.
///
/// Errors: a name that no certificate can carry.
pub fn server_name(system: System, role: Role, name: &str) -> Result<ServerName<'static>, TlsError> {
    let dns = party::dns_name(system, role, name).map_err(|e| TlsError::BadName(e.to_string()))?;
    ServerName::try_from(dns).map_err(|e| TlsError::BadName(format!("name `{name}`: {e}")))
}

/// Returns the reason if this error means that the peer refused our certificate. A TLS 1.3 client
/// learns of the refusal only after its own handshake, at its first read.
pub fn refusal(error: &std::io::Error) -> Option<String> {
    let tls = error.get_ref().and_then(|e| e.downcast_ref::<rustls::Error>());
    let Some(rustls::Error::AlertReceived(alert)) = tls else { return None };
    Some(refused(*alert))
}

fn refused(alert: AlertDescription) -> String {
    let why = match alert {
        AlertDescription::CertificateExpired => {
            "it has expired, or is not valid yet by its clock: make a new one with `keys renew`, or set the clocks".to_owned()
        }
        AlertDescription::CertificateRevoked => "it was revoked: make a new one with `keys renew`".to_owned(),
        AlertDescription::UnknownCA | AlertDescription::DecryptError => {
            "it is of another authority: use keys of one set at both ends".to_owned()
        }
        AlertDescription::CertificateUnknown => {
            "it is of another system, or names no holder: use keys of one set at both ends".to_owned()
        }
        // Without the number, since 256 unknown alerts would give 256 different log lines.
        AlertDescription::Unknown(_) => {
            "by an alert that TLS does not have: use keys of one set at both ends, not expired".to_owned()
        }
        other => format!("{other:?}: use keys of one set at both ends, not expired"),
    };
    format!("refused our certificate: {why}")
}

/// Describes a TLS failure in an operator's words, to follow the peer's name and a colon.
pub fn words(error: &rustls::Error) -> String {
    use rustls::Error as Tls;
    match error {
        Tls::InvalidCertificate(e) => match e {
            CertificateError::ExpiredContext { not_after, .. } => format!(
                "its certificate expired on {}: make a new one with `keys renew`, or set this machine's clock",
                verify::moment(*not_after)
            ),
            CertificateError::NotValidYetContext { not_before, .. } => format!(
                "its certificate is valid from {} on: set this machine's clock",
                verify::moment(*not_before)
            ),
            CertificateError::Revoked => {
                "its certificate was revoked: make a new one with `keys renew`".to_owned()
            }
            CertificateError::UnknownIssuer | CertificateError::BadSignature => {
                "its certificate is of another authority: use keys of one set at both ends".to_owned()
            }
            CertificateError::Other(other) => other.0.to_string(),
            CertificateError::BadEncoding => "its certificate cannot be read".to_owned(),
            _ => "its certificate was refused: use keys of one set at both ends".to_owned(),
        },
        Tls::AlertReceived(alert) => refused(*alert),
        Tls::FailedToGetCurrentTime => CLOCK_TEXT.to_owned(),
        Tls::NoCertificatesPresented => "showed no certificate: both ends need one".to_owned(),
        Tls::InvalidMessage(_) => "does not speak TLS there: check the port".to_owned(),
        Tls::PeerIncompatible(_) => "speaks another version of TLS: it must speak 1.3".to_owned(),
        Tls::DecryptError => "sent bytes that do not fit the session's keys".to_owned(),
        Tls::PeerMisbehaved(_)
        | Tls::InappropriateMessage { .. }
        | Tls::InappropriateHandshakeMessage { .. } => "does not keep to TLS".to_owned(),
        _ => "TLS failed".to_owned(),
    }
}

/// Log line about a caller that TLS refused; `None` for a caller that disconnected, or sent no
/// bytes.
pub fn stranger(from: std::net::IpAddr, error: &std::io::Error) -> Option<String> {
    let tls = error.get_ref()?.downcast_ref::<rustls::Error>()?;
    Some(format!("a caller from {from}: {}", words(tls)))
}

#[cfg(test)]
mod tests;
