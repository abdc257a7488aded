//! Checks of a peer's certificate beyond the authority's signature, during a handshake and
//! throughout a connection.

use super::{PeerIdentity, peer_identity, provider, server_name};
use crate::certificate::{CertificateFacts, written};
use crate::party::{self, BACKDATED, Role, System};
use crate::revoked::RevocationList;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, RootCertStore};
use std::sync::Arc;
use std::time::SystemTime;
use time::OffsetDateTime;

/// The machine's clock. (rustls' own clock panics before 1970.)
#[derive(Debug)]
pub(crate) struct Clock;

impl Clock {
    pub(crate) fn now() -> Option<UnixTime> {
        Self::at(SystemTime::now())
    }

    fn at(now: SystemTime) -> Option<UnixTime> {
        now.duration_since(SystemTime::UNIX_EPOCH).ok().map(UnixTime::since_unix_epoch)
    }
}

impl rustls::time_provider::TimeProvider for Clock {
    fn current_time(&self) -> Option<UnixTime> {
        Self::now()
    }
}

/// Trust settings of a party.
#[derive(Debug)]
pub(crate) struct Trust {
    /// System of the party and its peers.
    pub(crate) system: System,
    /// Authorities that may sign peers.
    pub(crate) authorities: Vec<CertificateDer<'static>>,
    /// The authorities, for rustls.
    pub(crate) roots: Arc<RootCertStore>,
    /// Certificates that are refused.
    pub(crate) revoked: RevocationList,
}

impl Trust {
    /// Identity in a leaf certificate of a trusted authority.
    fn holder(&self, leaf: &CertificateDer<'_>) -> Result<PeerIdentity, rustls::Error> {
        let holder = peer_identity(std::slice::from_ref(leaf)).ok_or(WrongPeer::Nameless)?;
        let facts = CertificateFacts::of(leaf).ok_or(WrongPeer::Nameless)?;
        if self.revoked.denies(&holder, facts.begin + BACKDATED) {
            return Err(rustls::Error::InvalidCertificate(CertificateError::Revoked));
        }
        Ok(holder)
    }

    /// Reason why an accepted peer is no longer trusted; `None` while it is.
    pub(crate) fn withdrawn(&self, chain: &[CertificateDer<'_>], now: SystemTime) -> Option<String> {
        let Some(now) = Clock::at(now) else { return Some(super::CLOCK_TEXT.to_owned()) };
        match verify_chain(&self.authorities, chain, now) {
            Ok(()) => {}
            Err(ChainError::Expired(end)) => {
                return Some(format!("its certificate expired on {}", written(end)));
            }
            Err(ChainError::NotYet(begin)) => {
                return Some(format!(
                    "its certificate is valid from {} on: the clock was set",
                    written(begin)
                ));
            }
            Err(ChainError::OtherAuthority) => return Some("its authority is trusted no more".to_owned()),
            Err(ChainError::Other(error)) => return Some(error.to_string()),
        }
        match self.holder(&chain[0]) {
            Ok(_) => None,
            Err(rustls::Error::InvalidCertificate(CertificateError::Revoked)) => {
                Some("its certificate was revoked".to_owned())
            }
            Err(error) => Some(error.to_string()),
        }
    }
}

/// Error of a certificate chain.
pub(crate) enum ChainError {
    /// Expired at this time.
    Expired(OffsetDateTime),
    /// Valid from this time on.
    NotYet(OffsetDateTime),
    /// The certificate was not made by any of the authorities.
    OtherAuthority,
    /// Another error of webpki.
    Other(webpki::Error),
}

fn of_unix(at: UnixTime) -> OffsetDateTime {
    let seconds = i64::try_from(at.as_secs()).unwrap_or(i64::MAX);
    OffsetDateTime::from_unix_timestamp(seconds).unwrap_or(OffsetDateTime::UNIX_EPOCH)
}

/// Formats a moment for messages.
pub(crate) fn moment(at: UnixTime) -> String {
    written(of_unix(at))
}

/// Verifies a certificate chain with the checks of a TLS peer. The certificate may be for servers
/// or for clients.
pub(crate) fn verify_chain(
    authorities: &[CertificateDer<'_>],
    chain: &[CertificateDer<'_>],
    now: UnixTime,
) -> Result<(), ChainError> {
    let anchors = authorities
        .iter()
        .map(webpki::anchor_from_trusted_cert)
        .collect::<Result<Vec<_>, _>>()
        .map_err(ChainError::Other)?;
    let (leaf, rest) = chain.split_first().ok_or(ChainError::Other(webpki::Error::BadDer))?;
    let leaf = webpki::EndEntityCert::try_from(leaf).map_err(ChainError::Other)?;
    let algorithms = provider().signature_verification_algorithms.all;
    // A controller's certificate may be for servers only, an operator's is for clients only. Either
    // use is accepted.
    let verdict = [webpki::KeyUsage::server_auth(), webpki::KeyUsage::client_auth()]
        .map(|usage| leaf.verify_for_usage(algorithms, &anchors, rest, now, usage, None, None).err());
    let [Some(first), Some(second)] = verdict else { return Ok(()) };
    // If the certificate allows only the other use, the first check returns this error for every
    // cause.
    let wrong_use = matches!(first, webpki::Error::RequiredEkuNotFoundContext(_));
    Err(match if wrong_use { second } else { first } {
        webpki::Error::CertExpired { not_after, .. } => ChainError::Expired(of_unix(not_after)),
        webpki::Error::CertNotValidYet { not_before, .. } => ChainError::NotYet(of_unix(not_before)),
        webpki::Error::UnknownIssuer | webpki::Error::InvalidSignatureForPublicKey => {
            ChainError::OtherAuthority
        }
        other => ChainError::Other(other),
    })
}

/// Reason why a peer with a valid certificate is not the expected party.
#[derive(Debug)]
pub(crate) enum WrongPeer {
    /// The certificate names no party.
    Nameless,
    /// The peer has another identity than expected.
    Another { expected: String, found: PeerIdentity },
    /// The peer belongs to another system.
    OtherSystem { system: System, found: PeerIdentity },
}

impl std::fmt::Display for WrongPeer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Nameless => {
                f.write_str("its certificate names no system and no holder: make a new set with `keys`")
            }
            Self::Another { expected, found } => {
                write!(f, "another party answers there: {found}, and not {expected}")
            }
            Self::OtherSystem { system, found } => {
                write!(f, "{found} has no business here: this is {system}")
            }
        }
    }
}
impl std::error::Error for WrongPeer {}
impl From<WrongPeer> for rustls::Error {
    fn from(stranger: WrongPeer) -> Self {
        Self::InvalidCertificate(CertificateError::Other(rustls::OtherError(Arc::new(stranger))))
    }
}

/// Methods that verify signatures through `inner` (webpki), equal for both ends.
macro_rules! signatures_by_inner {
    () => {
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
    };
}

/// Verifies a peer that connects to a listener: its certificate is signed by the authority, is not
/// revoked, and names the listener's system (`replicate`, `gather` or another).
#[derive(Debug)]
pub(crate) struct CallerVerifier {
    trust: Arc<Trust>,
    inner: Arc<dyn rustls::server::danger::ClientCertVerifier>,
}

impl CallerVerifier {
    pub(crate) fn new(trust: Arc<Trust>, provider: Arc<CryptoProvider>) -> Result<Self, rustls::Error> {
        let roots = trust.roots.clone();
        let inner = rustls::server::WebPkiClientVerifier::builder_with_provider(roots, provider)
            .build()
            .map_err(|e| rustls::Error::General(e.to_string()))?;
        Ok(Self { trust, inner })
    }
}

impl rustls::server::danger::ClientCertVerifier for CallerVerifier {
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
        let found = self.trust.holder(leaf)?;
        let system = self.trust.system;
        if found.system != system {
            return Err(WrongPeer::OtherSystem { system, found }.into());
        }
        Ok(verified)
    }
    signatures_by_inner!();
}

/// Verifies the listener to which a caller connects: its certificate is valid, and names the
/// expected party, or any party of the caller's system in the expected role.
#[derive(Debug)]
pub(crate) struct ListenerVerifier {
    trust: Arc<Trust>,
    /// Role in which any name is accepted; `None` if the name must match.
    any_of: Option<Role>,
    inner: Arc<rustls::client::WebPkiServerVerifier>,
}

impl ListenerVerifier {
    pub(crate) fn new(
        trust: Arc<Trust>,
        any_of: Option<Role>,
        provider: Arc<CryptoProvider>,
    ) -> Result<Self, rustls::Error> {
        let roots = trust.roots.clone();
        let inner = rustls::client::WebPkiServerVerifier::builder_with_provider(roots, provider)
            .build()
            .map_err(|e| rustls::Error::General(e.to_string()))?;
        Ok(Self { trust, any_of, inner })
    }
}

impl rustls::client::danger::ServerCertVerifier for ListenerVerifier {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        asked: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<rustls::client::danger::ServerCertVerified, rustls::Error> {
        // Checks the certificate against the holder's own name: webpki verifies the authority, and
        // we compare the identity.
        let found = peer_identity(std::slice::from_ref(leaf));
        let own = found.as_ref().and_then(|p| server_name(p.system, p.role, &p.name).ok());
        let verified =
            self.inner.verify_server_cert(leaf, chain, own.as_ref().unwrap_or(asked), ocsp, now)?;
        let found = self.trust.holder(leaf)?;
        let system = self.trust.system;
        let (is_right, expected) = match self.any_of {
            Some(role) => (
                (found.system, found.role) == (system, role),
                format!("a {system} {}", system.role_name(role).unwrap_or(role.word())),
            ),
            None => (own.as_ref() == Some(asked), expected(asked)),
        };
        if is_right { Ok(verified) } else { Err(WrongPeer::Another { expected, found }.into()) }
    }
    signatures_by_inner!();
}

/// Describes the expected peer.
fn expected(asked: &ServerName<'_>) -> String {
    let text = asked.to_str();
    party::of_dns_name(&text).map_or_else(|| text.into_owned(), |peer| peer.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// #17: rustls' own clock panicked at every connection when the machine's clock was before
    /// 1970.
    #[test]
    fn clock_before_1970_does_not_panic() {
        assert_eq!(Clock::at(SystemTime::UNIX_EPOCH - Duration::from_secs(1)), None);
        assert_eq!(Clock::at(SystemTime::UNIX_EPOCH).map(|t| t.as_secs()), Some(0));
    }
}
