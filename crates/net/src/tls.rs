//! Mutually authenticated TLS 1.3 against one authority, and who the other end is.
//!
//! Both ends show a certificate of the same authority and of the same system. A client says whom it expects
//! ([`server_name`]): another role or another site does not pass the handshake. A server learns who called from
//! [`peer_identity`] and must itself check that this peer may do what it asks. Leaves out: making keys ([`crate::keys`]). Read [`Credentials`] first.
#![allow(clippy::disallowed_methods, reason = "a driver: reads key files and checks dates")]

use crate::keys::{self, Role, System};
use anabranch_units::text::printable;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, RootCertStore, ServerConfig};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Who stands behind a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerIdentity {
    /// The system that it belongs to.
    pub system: System,
    /// What it may do.
    pub role: Role,
    /// Its name: a site's as in the topology.
    pub name: String,
}

impl std::fmt::Display for PeerIdentity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let role = self.system.role_name(self.role).unwrap_or(self.role.word());
        write!(f, "{} {role} `{}`", self.system, printable(&self.name))
    }
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
    /// Whose they must be; `None` if anybody's will do.
    pub holder: Option<PeerIdentity>,
}

impl CredentialFiles {
    /// The files that [`keys::write_set`] wrote below `folder` for `name` in the system's `role`.
    pub fn in_set(folder: &Path, system: System, role: Role, name: &str) -> Self {
        let stem = folder.join(keys::stem(role, name)).into_os_string();
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
    /// A certificate of another holder than it should be.
    WrongHolder {
        /// The file.
        path: PathBuf,
        /// Whose it should be.
        expected: PeerIdentity,
        /// Whose it is.
        found: PeerIdentity,
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
                write!(
                    f,
                    "{whose}: the certificate does not say which system's it is and who holds it: make a new set with `keys`"
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
        if let Some(expected) = files.holder.as_ref().filter(|expected| **expected != identity) {
            let (path, expected) = (files.certificate.clone(), expected.clone());
            return Err(TlsError::WrongHolder { path, expected, found: identity });
        }
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

    /// For a listener: every caller must show a certificate of the same authority and system.
    ///
    /// Errors: what rustls says of the certificate; none after [`Credentials::load`].
    pub fn server_config(&self) -> Result<Arc<ServerConfig>, rustls::Error> {
        let provider = provider();
        let inner =
            rustls::server::WebPkiClientVerifier::builder_with_provider(self.roots.clone(), provider.clone())
                .build()
                .map_err(|e| rustls::Error::General(e.to_string()))?;
        let verifier = Arc::new(Callers { system: self.identity.system, inner });
        let config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_client_cert_verifier(verifier)
            .with_single_cert(self.chain.clone(), self.key.clone_key())?;
        Ok(Arc::new(config))
    }

    /// For a caller: shows the own certificate and accepts only whom it asks for, by [`server_name`].
    ///
    /// Errors: as [`Credentials::server_config`].
    pub fn client_config(&self) -> Result<Arc<ClientConfig>, rustls::Error> {
        self.client_config_with(None)
    }

    /// For a caller that knows the other end's role but not its name: accepts whoever the authority vouches for in `role`.
    /// Who it is says [`peer_identity`].
    ///
    /// Errors: as [`Credentials::server_config`].
    pub fn client_config_for(&self, role: Role) -> Result<Arc<ClientConfig>, rustls::Error> {
        self.client_config_with(Some(role))
    }

    fn client_config_with(&self, any_of: Option<Role>) -> Result<Arc<ClientConfig>, rustls::Error> {
        let inner =
            rustls::client::WebPkiServerVerifier::builder_with_provider(self.roots.clone(), provider())
                .build()
                .map_err(|e| rustls::Error::General(e.to_string()))?;
        let config = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Called {
                system: self.identity.system,
                any_of,
                inner,
            }))
            .with_client_auth_cert(self.chain.clone(), self.key.clone_key())?;
        Ok(Arc::new(config))
    }
}

/// Why a peer that the authority vouches for is not the right one.
#[derive(Debug)]
enum Stranger {
    /// Its certificate names nobody.
    Nameless,
    /// Somebody else answers.
    Another { expected: String, found: PeerIdentity },
    /// It calls another system.
    OtherSystem { system: System, found: PeerIdentity },
}

impl std::fmt::Display for Stranger {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Nameless => f.write_str(
                "its certificate does not say which system's it is and who holds it: make a new set with `keys`",
            ),
            Self::Another { expected, found } => {
                write!(f, "somebody else answers there: {found}, and not {expected}")
            }
            Self::OtherSystem { system, found } => {
                write!(f, "{found} has no business here: this is {system}")
            }
        }
    }
}
impl std::error::Error for Stranger {}
impl From<Stranger> for rustls::Error {
    fn from(stranger: Stranger) -> Self {
        Self::InvalidCertificate(CertificateError::Other(rustls::OtherError(Arc::new(stranger))))
    }
}

/// Whom a leaf names, or why it will not do.
fn holder(leaf: &CertificateDer<'_>) -> Result<PeerIdentity, rustls::Error> {
    peer_identity(std::slice::from_ref(leaf)).ok_or_else(|| Stranger::Nameless.into())
}

/// A listener's check: the authority vouches for the caller, who is of this system.
#[derive(Debug)]
struct Callers {
    system: System,
    inner: Arc<dyn rustls::server::danger::ClientCertVerifier>,
}

impl rustls::server::danger::ClientCertVerifier for Callers {
    fn root_hint_subjects(&self) -> &[rustls::DistinguishedName] {
        self.inner.root_hint_subjects()
    }
    fn verify_client_cert(
        &self,
        leaf: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<rustls::server::danger::ClientCertVerified, rustls::Error> {
        let verified = self.inner.verify_client_cert(leaf, chain, now)?;
        let found = holder(leaf)?;
        if found.system != self.system {
            return Err(Stranger::OtherSystem { system: self.system, found }.into());
        }
        Ok(verified)
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

/// A caller's check: the authority vouches for whoever answers, who is the one that was asked for, or of this system in the
/// role that will do.
#[derive(Debug)]
struct Called {
    system: System,
    /// A role in which any name will do.
    any_of: Option<Role>,
    inner: Arc<rustls::client::WebPkiServerVerifier>,
}

impl rustls::client::danger::ServerCertVerifier for Called {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        asked: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<rustls::client::danger::ServerCertVerified, rustls::Error> {
        // The holder's own name: that the authority vouches for it is webpki's to check, whose it is ours.
        let found = peer_identity(std::slice::from_ref(leaf));
        let own = found.as_ref().and_then(|p| server_name(p.system, p.role, &p.name).ok());
        let verified =
            self.inner.verify_server_cert(leaf, chain, own.as_ref().unwrap_or(asked), ocsp, now)?;
        let (Some(found), Some(own)) = (found, own) else { return Err(Stranger::Nameless.into()) };
        let (is_right, expected) = match self.any_of {
            Some(role) => (
                (found.system, found.role) == (self.system, role),
                format!("a {} {}", self.system, self.system.role_name(role).unwrap_or(role.word())),
            ),
            None => (own == *asked, expected(asked)),
        };
        if is_right { Ok(verified) } else { Err(Stranger::Another { expected, found }.into()) }
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

/// Who was asked for, in words.
fn expected(asked: &ServerName<'_>) -> String {
    let text = asked.to_str();
    keys::of_dns_name(&text).map_or_else(|| text.into_owned(), |peer| peer.to_string())
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
    let mut found = leaf.valid_uri_names().filter_map(keys::of_uri);
    let first = found.next()?;
    // Two identities in one certificate are none.
    found.next().is_none().then_some(first)
}

/// What a client asks TLS to check: that the other end is `name` in the system's `role`, whatever its address.
///
/// Errors: a name that no certificate can carry.
pub fn server_name(system: System, role: Role, name: &str) -> Result<ServerName<'static>, TlsError> {
    let dns = keys::dns_name(system, role, name).map_err(|e| TlsError::BadName(e.to_string()))?;
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
            CertificateError::Other(other) => format!("{who}: {}", other.0),
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
