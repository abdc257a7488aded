//! Mutually authenticated TLS 1.3 against one authority, and who the other end is.
//!
//! Both ends show a certificate of the same authority. A client says whom it expects ([`server_name`]): another role or
//! another site does not pass the handshake. A server learns who called from [`peer_identity`] and must itself check that
//! this peer may do what it asks. Leaves out: making keys ([`crate::keys`]). Read [`Credentials`] first.
#![allow(clippy::disallowed_methods, reason = "a driver: reads key files and checks dates")]

use crate::keys::{self, Role};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, RootCertStore, ServerConfig};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Who stands behind a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerIdentity {
    /// What it may do.
    pub role: Role,
    /// Its name: a site's as in the topology.
    pub name: String,
}

/// Where a party's three files are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CredentialFiles {
    /// The authority's certificate.
    pub ca: PathBuf,
    /// The party's certificate.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

impl CredentialFiles {
    /// The files that [`keys::write_set`] wrote below `folder` for `name` in `role`.
    pub fn in_set(folder: &Path, role: Role, name: &str) -> Self {
        let stem = match role {
            Role::Site => format!("sites/{}", keys::escaped(name)),
            Role::Operator => format!("operators/{}", keys::escaped(name)),
            Role::Controller => "controller".into(),
        };
        Self {
            ca: folder.join("ca.pem"),
            certificate: folder.join(format!("{stem}.pem")),
            key: folder.join(format!("{stem}.key")),
        }
    }
}

/// A party's own certificate and key, and the authority it trusts.
pub struct Credentials {
    identity: PeerIdentity,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    roots: Arc<RootCertStore>,
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credentials").field("identity", &self.identity).finish_non_exhaustive()
    }
}

/// Why credentials cannot be used.
#[derive(Debug)]
#[non_exhaustive]
pub enum TlsError {
    /// A file that cannot be read.
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        error: std::io::Error,
    },
    /// A file without what it should hold.
    NotPem {
        /// The file.
        path: PathBuf,
        /// What it should hold.
        what: &'static str,
    },
    /// A certificate whose time is over, or has not begun.
    Expired {
        /// The file.
        path: PathBuf,
    },
    /// A certificate that the authority did not make.
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
    /// A certificate that does not say who its holder is.
    NoIdentity {
        /// Whose.
        whose: String,
    },
    /// A certificate that cannot be used otherwise.
    Unusable {
        /// The file.
        path: PathBuf,
        /// What TLS says about it.
        reason: String,
    },
    /// A name that no certificate can carry.
    BadName(String),
}

impl std::fmt::Display for TlsError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unreadable { path, error } => {
                write!(
                    f,
                    "{}: cannot be read: {error} (`anabranch replicate keys init`, `gather keys` and `shuffle keys` make sets)",
                    path.display()
                )
            }
            Self::NotPem { path, what } => write!(f, "{}: holds no {what} in PEM", path.display()),
            Self::Expired { path } => write!(
                f,
                "{}: the certificate has expired, or is not valid yet: make a new set, or set the clock",
                path.display()
            ),
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
                write!(f, "{whose}: the certificate does not say who holds it: make it with `keys init`")
            }
            Self::Unusable { path, reason } => write!(f, "{}: cannot be used: {reason}", path.display()),
            Self::BadName(text) => f.write_str(text),
        }
    }
}
impl std::error::Error for TlsError {}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

impl Credentials {
    /// Reads and checks a party's files.
    ///
    /// Errors: see [`TlsError`]; each names its file.
    pub fn load(files: &CredentialFiles) -> Result<Self, TlsError> {
        let read = |path: &Path| {
            std::fs::read(path).map_err(|error| TlsError::Unreadable { path: path.to_owned(), error })
        };
        Self::from_pem(&read(&files.ca)?, &read(&files.certificate)?, &read(&files.key)?, files)
    }

    /// Credentials from PEM texts in memory; `files` are only named in messages.
    ///
    /// Errors: as [`Credentials::load`].
    pub fn from_pem(
        ca: &[u8],
        certificate: &[u8],
        key: &[u8],
        files: &CredentialFiles,
    ) -> Result<Self, TlsError> {
        let certificates = |pem: &[u8], path: &Path| {
            let list: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
            list.ok()
                .filter(|l| !l.is_empty())
                .ok_or_else(|| TlsError::NotPem { path: path.to_owned(), what: "certificate" })
        };
        let cas = certificates(ca, &files.ca)?;
        let chain = certificates(certificate, &files.certificate)?;
        let key = PrivateKeyDer::from_pem_slice(key)
            .map_err(|_| TlsError::NotPem { path: files.key.clone(), what: "private key" })?;
        let mut roots = RootCertStore::empty();
        for ca in &cas {
            roots
                .add(ca.clone())
                .map_err(|e| TlsError::Unusable { path: files.ca.clone(), reason: e.to_string() })?;
        }
        check(&cas, &chain, files)?;
        let identity = peer_identity(&chain)
            .ok_or_else(|| TlsError::NoIdentity { whose: files.certificate.display().to_string() })?;
        let credentials = Self { identity, chain, key, roots: Arc::new(roots) };
        // Fails here rather than at the first connection if key and certificate do not belong together.
        credentials.client_config().map_err(|e| match e {
            rustls::Error::InconsistentKeys(_) => TlsError::WrongKey { path: files.key.clone() },
            other => TlsError::Unusable { path: files.key.clone(), reason: other.to_string() },
        })?;
        Ok(credentials)
    }

    /// Whom these credentials stand for.
    pub fn identity(&self) -> &PeerIdentity {
        &self.identity
    }

    /// For a listener: every caller must show a certificate of the same authority.
    ///
    /// Errors: what rustls says of the certificate; none after [`Credentials::load`].
    pub fn server_config(&self) -> Result<Arc<ServerConfig>, rustls::Error> {
        let provider = provider();
        let verifier =
            rustls::server::WebPkiClientVerifier::builder_with_provider(self.roots.clone(), provider.clone())
                .build()
                .map_err(|e| rustls::Error::General(e.to_string()))?;
        let config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_client_cert_verifier(verifier)
            .with_single_cert(self.chain.clone(), self.key.clone_key())?;
        Ok(Arc::new(config))
    }

    /// For a caller: shows the own certificate and accepts only the authority's.
    ///
    /// Errors: as [`Credentials::server_config`].
    pub fn client_config(&self) -> Result<Arc<ClientConfig>, rustls::Error> {
        let config = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_root_certificates(self.roots.clone())
            .with_client_auth_cert(self.chain.clone(), self.key.clone_key())?;
        Ok(Arc::new(config))
    }

    /// For a caller that knows the other end's role but not its name: accepts whoever the authority vouches for in `role`.
    /// Who it is says [`peer_identity`].
    ///
    /// Errors: as [`Credentials::server_config`].
    pub fn client_config_for(&self, role: Role) -> Result<Arc<ClientConfig>, rustls::Error> {
        let inner =
            rustls::client::WebPkiServerVerifier::builder_with_provider(self.roots.clone(), provider())
                .build()
                .map_err(|e| rustls::Error::General(e.to_string()))?;
        let config = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(AnyOf { role, inner }))
            .with_client_auth_cert(self.chain.clone(), self.key.clone_key())?;
        Ok(Arc::new(config))
    }
}

/// Accepts whom the authority vouches for in a role, by whatever name: all else is webpki's to check, the name that the
/// certificate says among it.
#[derive(Debug)]
struct AnyOf {
    role: Role,
    inner: Arc<rustls::client::WebPkiServerVerifier>,
}

impl rustls::client::danger::ServerCertVerifier for AnyOf {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<rustls::client::danger::ServerCertVerified, rustls::Error> {
        let wrong_name = || rustls::Error::InvalidCertificate(CertificateError::NotValidForName);
        let peer = peer_identity(std::slice::from_ref(leaf)).filter(|peer| peer.role == self.role);
        let name = server_name(self.role, &peer.ok_or_else(wrong_name)?.name).map_err(|_| wrong_name())?;
        self.inner.verify_server_cert(leaf, chain, &name, ocsp, now)
    }
    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        self.inner.verify_tls12_signature(message, certificate, signature)
    }
    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        self.inner.verify_tls13_signature(message, certificate, signature)
    }
    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}

/// Checks the chain as a peer would, to blame a file and not a connection.
fn check(
    cas: &[CertificateDer<'_>],
    chain: &[CertificateDer<'_>],
    files: &CredentialFiles,
) -> Result<(), TlsError> {
    let unusable =
        |e: webpki::Error| TlsError::Unusable { path: files.certificate.clone(), reason: e.to_string() };
    let anchors = cas
        .iter()
        .map(webpki::anchor_from_trusted_cert)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|e| TlsError::Unusable { path: files.ca.clone(), reason: e.to_string() })?;
    let leaf = webpki::EndEntityCert::try_from(&chain[0]).map_err(unusable)?;
    let algorithms = provider().signature_verification_algorithms.all;
    let now = UnixTime::now();
    // A controller's certificate is for servers only, an operator's for clients only: either use will do here.
    let verdict = [webpki::KeyUsage::server_auth(), webpki::KeyUsage::client_auth()]
        .map(|usage| leaf.verify_for_usage(algorithms, &anchors, &chain[1..], now, usage, None, None).err());
    if verdict.iter().any(Option::is_none) {
        return Ok(());
    }
    let path = files.certificate.clone();
    // That it is for the other use only says nothing about what is wrong.
    let wrong_use = |e: &webpki::Error| matches!(e, webpki::Error::RequiredEkuNotFoundContext(_));
    let [Some(first), Some(second)] = verdict else { unreachable!("both are errors") };
    let error = if wrong_use(&first) { second } else { first };
    Err(match error {
        webpki::Error::CertExpired { .. } | webpki::Error::CertNotValidYet { .. } => {
            TlsError::Expired { path }
        }
        webpki::Error::UnknownIssuer | webpki::Error::InvalidSignatureForPublicKey => {
            TlsError::WrongCa { path, ca: files.ca.clone() }
        }
        other => unusable(other),
    })
}

/// Whom a peer's certificate stands for, as the authority wrote it there; `None` if it says nothing of the kind.
///
/// Only for chains that a handshake (or [`Credentials::load`]) has verified.
pub fn peer_identity(chain: &[CertificateDer<'_>]) -> Option<PeerIdentity> {
    let leaf = webpki::EndEntityCert::try_from(chain.first()?).ok()?;
    let mut found = leaf.valid_uri_names().filter_map(|uri| {
        let (role, name) = uri.strip_prefix("anabranch:")?.split_once(':')?;
        let role = [Role::Site, Role::Controller, Role::Operator].into_iter().find(|r| r.word() == role)?;
        Some(PeerIdentity { role, name: keys::unescaped(name)? })
    });
    let first = found.next()?;
    // Two identities in one certificate are none.
    found.next().is_none().then_some(first)
}

/// What a client asks TLS to check: that the other end is `name` in `role`, whatever its address.
///
/// Errors: a name that no certificate can carry.
pub fn server_name(role: Role, name: &str) -> Result<ServerName<'static>, TlsError> {
    let dns = keys::dns_name(role, name).map_err(|e| TlsError::BadName(e.to_string()))?;
    ServerName::try_from(dns).map_err(|e| TlsError::BadName(format!("name `{name}`: {e}")))
}

/// One line about why a TLS connection failed, with the place and what to do; `who` is what was expected at the other end,
/// as in `controller at 127.0.0.1:7171`.
pub fn explain(who: &str, error: &std::io::Error) -> String {
    let tls = error.get_ref().and_then(|e| e.downcast_ref::<rustls::Error>());
    match tls {
        Some(rustls::Error::InvalidCertificate(e)) => match e {
            CertificateError::Expired
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYet
            | CertificateError::NotValidYetContext { .. } => {
                format!(
                    "{who}: its certificate has expired, or is not valid yet: make a new set, or set the clock"
                )
            }
            CertificateError::UnknownIssuer | CertificateError::BadSignature => {
                format!("{who}: its certificate is of another authority: use keys of one set at both ends")
            }
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                format!("{who}: somebody else answers there: its certificate has another name or role")
            }
            other => format!("{who}: its certificate was refused: {other}"),
        },
        Some(rustls::Error::AlertReceived(alert)) => {
            format!(
                "{who}: refused our certificate ({alert:?}): use keys of one set at both ends, not expired"
            )
        }
        Some(rustls::Error::NoCertificatesPresented) => {
            format!("{who}: showed no certificate: both ends need one")
        }
        Some(rustls::Error::InvalidMessage(_)) => format!("{who}: does not speak TLS there: check the port"),
        Some(other) => format!("{who}: TLS failed: {other}"),
        None => format!("{who}: {error}"),
    }
}

#[cfg(test)]
mod tests;
