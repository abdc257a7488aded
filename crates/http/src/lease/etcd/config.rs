//! Settings of a store in etcd.
//!
//! Read [`EtcdConfig`].

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Minimum lease.
const LEASE_MIN: Duration = Duration::from_secs(2);

/// Addresses of etcd's members, and this controller's keys, lease and address.
#[derive(Clone, Debug)]
pub struct EtcdConfig {
    /// Members as `http://HOST:PORT` or `https://HOST:PORT`. One member is enough; if a member does
    /// not answer, the next one gets the request.
    pub members: Vec<String>,
    /// Prefix of the names of all keys.
    pub prefix: String,
    /// Time for which a lead lasts without a renewal, at least 2 s. etcd counts whole seconds.
    pub lease: Duration,
    /// Address of this controller for its clients and for other controllers: `host:port`.
    pub address: String,
    pub(super) tls: Option<ureq::tls::TlsConfig>,
    pub(super) shows_certificate: bool,
}

/// Reason for refusing the settings of a store in etcd.
#[derive(Debug)]
#[non_exhaustive]
pub enum EtcdConfigError {
    /// The list of members is empty.
    NoMember,
    /// A member's address does not have a known form.
    BadMember {
        /// The address.
        member: String,
    },
    /// A member uses TLS, and no authority for its certificate is configured.
    NoAuthority {
        /// The member's address.
        member: String,
    },
    /// The lease is too short.
    ShortLease {
        /// The lease.
        lease: Duration,
    },
    /// A file is unreadable, or lacks the expected content.
    File {
        /// The file.
        path: PathBuf,
        /// The fault.
        reason: String,
    },
    /// The system provides no random numbers.
    NoRandom(std::io::Error),
}

impl fmt::Display for EtcdConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoMember => f.write_str("etcd: name at least one member, as http://HOST:PORT"),
            Self::BadMember { member } => {
                write!(f, "etcd `{member}`: must be http://HOST:PORT or https://HOST:PORT")
            }
            Self::NoAuthority { member } => {
                write!(f, "etcd `{member}`: https needs the authority's certificate")
            }
            Self::ShortLease { lease } => {
                let least_s = LEASE_MIN.as_secs();
                write!(f, "lease of {} s: must be {least_s} at least", lease.as_secs_f64())
            }
            Self::File { path, reason } => write!(f, "{}: {reason}", path.display()),
            Self::NoRandom(error) => write!(f, "{error}"),
        }
    }
}
impl std::error::Error for EtcdConfigError {}

impl EtcdConfig {
    /// Creates settings without TLS, with a lease of ten seconds and keys that begin with `prefix`.
    pub fn new(members: Vec<String>, prefix: impl Into<String>, address: impl Into<String>) -> Self {
        Self {
            members,
            prefix: prefix.into(),
            lease: Duration::from_secs(10),
            address: address.into(),
            tls: None,
            shows_certificate: false,
        }
    }

    /// Sets another lease.
    #[must_use]
    pub fn with_lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// Sets TLS with the certificate of the members' authority. If members require a client
    /// certificate, `own` has this controller's certificate and key. All are PEM files.
    ///
    /// Errors: a file that cannot be read, or has no certificate or key.
    pub fn with_tls(
        mut self,
        authority: &Path,
        own: Option<(&Path, &Path)>,
    ) -> Result<Self, EtcdConfigError> {
        let wrong = |path: &Path, reason: String| EtcdConfigError::File { path: path.to_owned(), reason };
        let read = |path: &Path| std::fs::read(path).map_err(|error| wrong(path, error.to_string()));
        let certificate = |path: &Path| {
            ureq::tls::Certificate::from_pem(&read(path)?)
                .map_err(|error| wrong(path, format!("has no certificate: {error}")))
        };
        let mut tls = ureq::tls::TlsConfig::builder()
            .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .root_certs([certificate(authority)?].into_iter().into());
        if let Some((own, key)) = own {
            let found = ureq::tls::PrivateKey::from_pem(&read(key)?)
                .map_err(|error| wrong(key, format!("has no key: {error}")))?;
            let client = ureq::tls::ClientCert::new_with_certs(&[certificate(own)?], found);
            tls = tls.client_cert(Some(client));
        }
        self.tls = Some(tls.build());
        self.shows_certificate = own.is_some();
        Ok(self)
    }

    /// Checks the members' addresses, their TLS, and the lease.
    ///
    /// Errors: settings that cannot be used.
    pub(super) fn check(&self) -> Result<(), EtcdConfigError> {
        if self.members.is_empty() {
            return Err(EtcdConfigError::NoMember);
        }
        for member in &self.members {
            if !(member.starts_with("http://") || member.starts_with("https://")) {
                return Err(EtcdConfigError::BadMember { member: member.clone() });
            }
            if member.starts_with("https://") && self.tls.is_none() {
                return Err(EtcdConfigError::NoAuthority { member: member.clone() });
            }
        }
        if self.lease < LEASE_MIN {
            return Err(EtcdConfigError::ShortLease { lease: self.lease });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_settings_are_refused_in_one_line() {
        let message = |members: &[&str], lease| {
            let members = members.iter().map(|member| (*member).to_owned()).collect();
            let config = EtcdConfig::new(members, "/a/", "a:1").with_lease(Duration::from_secs(lease));
            config.check().err().map(|error| error.to_string()).unwrap_or_default()
        };
        assert_eq!(message(&[], 10), "etcd: name at least one member, as http://HOST:PORT");
        assert_eq!(message(&["a:1"], 10), "etcd `a:1`: must be http://HOST:PORT or https://HOST:PORT");
        assert_eq!(
            message(&["https://a:1"], 10),
            "etcd `https://a:1`: https needs the authority's certificate"
        );
        assert_eq!(message(&["http://a:1"], 1), "lease of 1 s: must be 2 at least");
        assert_eq!(message(&["http://a:1"], 2), "");
    }
}
