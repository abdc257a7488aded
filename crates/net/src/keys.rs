//! A working set of keys: one certificate authority, and a certificate for everyone it vouches for.
//!
//! ECDSA on P-256, by rcgen. Who a certificate stands for is written in its subject alternative names: a URI for the
//! role and the name (`anabranch:site:seattle`), and a DNS name of the same meaning that TLS checks
//! (`seattle.site.anabranch`), so a site called `controller` is still only a site. Leaves out: revocation (make a new set
//! instead). Read [`make_set`], [`add_to_set`] and [`write_set`] first.
#![allow(clippy::disallowed_methods, reason = "a driver: writes files, and certificates begin now")]

use crate::tls::{CredentialFiles, Credentials, TlsError};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};
use std::fmt::Write as _;
use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use time::{Duration, OffsetDateTime};

/// What a certificate's holder may do.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Moves data, and takes commands for itself.
    Site,
    /// Commands the sites.
    Controller,
    /// Submits and watches transfers.
    Operator,
}

impl Role {
    /// The role's word in a certificate.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Site => "site",
            Self::Controller => "controller",
            Self::Operator => "operator",
        }
    }
}

/// How long a set of keys is good for unless told otherwise.
pub const VALID_DAYS: u32 = 825;
/// The longest that may be asked for.
pub const VALID_DAYS_MAX: u32 = 3_650;

/// What to make a set for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetRequest {
    /// Names of the sites, as in the topology.
    pub sites: Vec<String>,
    /// Names of the people or programs that submit transfers.
    pub operators: Vec<String>,
    /// Host names or addresses of the controller besides loopback, so that browsers and curl accept it.
    pub controller_hosts: Vec<String>,
    /// Days that the certificates are good for, from an hour ago.
    pub valid_days: u32,
}

/// A certificate and its private key, PEM.
#[derive(Clone)]
pub struct KeyFile {
    /// Path below the set's folder, without `.pem` and `.key`.
    pub stem: PathBuf,
    /// The certificate.
    pub certificate_pem: String,
    /// Its private key.
    pub key_pem: String,
}

/// A set of keys; the authority comes first, then the controller.
#[derive(Clone)]
pub struct KeySet {
    /// `ca`, `controller`, `operators/NAME`, `sites/NAME`.
    pub files: Vec<KeyFile>,
}

/// Why no set was made.
#[derive(Debug)]
#[non_exhaustive]
pub enum KeysError {
    /// A name that no certificate can carry.
    BadName {
        /// The name.
        name: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A number of days out of range.
    BadDays {
        /// The number.
        days: u32,
    },
    /// Something is there already; nothing is overwritten.
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// The folder or a file cannot be written.
    Unwritable {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        error: std::io::Error,
    },
    /// The authority's key cannot be read.
    BadAuthority {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// The generator refused.
    Generator(rcgen::Error),
}

impl std::fmt::Display for KeysError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::BadName { name, reason } => write!(f, "name `{name}`: {reason}"),
            Self::BadDays { days } => write!(f, "validity {days} days: must be 1 to {VALID_DAYS_MAX} days"),
            Self::Exists { path } => {
                write!(
                    f,
                    "{} is there already: choose another folder, or move the old keys away",
                    path.display()
                )
            }
            Self::Unwritable { path, error } => write!(f, "{}: cannot be written: {error}", path.display()),
            Self::BadAuthority { path, reason } => write!(
                f,
                "{}: {reason}: name the folder that `keys init` made, with the authority's certificate and key in it",
                path.display()
            ),
            Self::Generator(error) => write!(f, "cannot make a certificate: {error}"),
        }
    }
}
impl std::error::Error for KeysError {}
impl From<rcgen::Error> for KeysError {
    fn from(error: rcgen::Error) -> Self {
        Self::Generator(error)
    }
}

/// `name` with all but letters, digits, `-` and `_` as `%XX`: one path component, one part of a URI.
pub fn escaped(name: &str) -> String {
    let mut out = String::new();
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_' {
            out.push(byte.into());
        } else {
            write!(out, "%{byte:02X}").expect("a string takes everything");
        }
    }
    out
}

/// The inverse of [`escaped`]; `None` for what it never writes.
pub(crate) fn unescaped(text: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let hex = [rest.next()?, rest.next()?];
            bytes.push(u8::from_str_radix(std::str::from_utf8(&hex).ok()?, 16).ok()?);
        } else {
            bytes.push(byte);
        }
    }
    let name = String::from_utf8(bytes).ok()?;
    (escaped(&name) == text).then_some(name)
}

/// The DNS name that stands for `name` in `role`. DNS knows no upper case, so everything but `a-z`, `0-9` and inner
/// hyphens becomes `_xx`.
///
/// Errors: a name that is empty or too long for a DNS label (63 bytes after escaping).
pub fn dns_name(role: Role, name: &str) -> Result<String, KeysError> {
    let bad = |reason| KeysError::BadName { name: name.to_owned(), reason };
    if name.is_empty() {
        return Err(bad("must not be empty"));
    }
    let mut label = String::new();
    for (i, byte) in name.bytes().enumerate() {
        let inner = i > 0 && i + 1 < name.len();
        if byte.is_ascii_lowercase() || byte.is_ascii_digit() || (byte == b'-' && inner) {
            label.push(byte.into());
        } else {
            write!(label, "_{byte:02x}").expect("a string takes everything");
        }
    }
    // An all-digit label is fine here: the name does not end with it.
    if label.len() > 63 {
        return Err(bad(
            "is too long: at most 63 bytes, with other characters than a-z, 0-9 and - counting three",
        ));
    }
    Ok(format!("{label}.{}.anabranch", role.word()))
}

/// The URI that names the holder in a certificate.
pub(crate) fn uri(role: Role, name: &str) -> String {
    format!("anabranch:{}:{}", role.word(), escaped(name))
}

/// Makes a set of keys in memory.
///
/// Errors: a bad or repeated name, a validity out of range.
///
/// ```
/// use anabranch_net::keys::{SetRequest, make_set, VALID_DAYS};
/// let request = SetRequest {
///     sites: vec!["seattle".into(), "new york".into()],
///     operators: vec!["operator".into()],
///     controller_hosts: vec![],
///     valid_days: VALID_DAYS,
/// };
/// let stems: Vec<_> = make_set(&request)?.files.into_iter().map(|f| f.stem.display().to_string()).collect();
/// assert_eq!(stems, ["ca", "controller", "operators/operator", "sites/seattle", "sites/new%20york"]);
/// # Ok::<(), anabranch_net::keys::KeysError>(())
/// ```
pub fn make_set(request: &SetRequest) -> Result<KeySet, KeysError> {
    make_set_at(request, OffsetDateTime::now_utc())
}

/// [`make_set`] for another day.
pub(crate) fn make_set_at(request: &SetRequest, now: OffsetDateTime) -> Result<KeySet, KeysError> {
    let validity = check(request, now)?;
    let ca_key = KeyPair::generate()?;
    let mut ca = authority(&ca_key);
    (ca.not_before, ca.not_after) = validity;
    let ca_certificate = ca.self_signed(&ca_key)?;
    let first =
        KeyFile { stem: "ca".into(), certificate_pem: ca_certificate.pem(), key_pem: ca_key.serialize_pem() };
    let leaves = leaves(request, true, validity, &Issuer::new(ca, ca_key))?;
    Ok(KeySet { files: std::iter::once(first).chain(leaves).collect() })
}

/// Makes keys for more sites and operators, vouched for by the authority of the set in `folder`; they are good for as long
/// as was asked, or as the authority is if that ends before.
///
/// Errors: as [`make_set`]; no authority there, or its key and certificate do not belong together.
pub fn add_to_set(folder: &Path, request: &SetRequest) -> Result<KeySet, KeysError> {
    let validity = check(request, OffsetDateTime::now_utc())?;
    let (key_path, certificate_path) = (folder.join("ca.key"), folder.join("ca.pem"));
    let bad = |path: &Path, reason: String| KeysError::BadAuthority { path: path.to_owned(), reason };
    let read = |path: &Path| std::fs::read_to_string(path).map_err(|e| bad(path, e.to_string()));
    let ca_key = KeyPair::from_pem(&read(&key_path)?).map_err(|e| bad(&key_path, e.to_string()))?;
    let certificate = read(&certificate_path)?;
    let issuer = Issuer::new(authority(&ca_key), ca_key);
    let files = leaves(request, false, validity, &issuer)?;
    for file in &files {
        let named = CredentialFiles { ca: certificate_path.clone(), certificate: "".into(), key: "".into() };
        let (leaf, key) = (file.certificate_pem.as_bytes(), file.key_pem.as_bytes());
        Credentials::from_pem(certificate.as_bytes(), leaf, key, &named).map_err(|error| {
            let reason = match error {
                TlsError::Expired { .. } => "has expired".to_owned(),
                TlsError::WrongCa { .. } => "is not what belongs to ca.key".to_owned(),
                other => other.to_string(),
            };
            bad(&certificate_path, reason)
        })?;
    }
    Ok(KeySet { files })
}

/// From when until when the certificates of a good request are good.
fn check(request: &SetRequest, now: OffsetDateTime) -> Result<(OffsetDateTime, OffsetDateTime), KeysError> {
    if !(1..=VALID_DAYS_MAX).contains(&request.valid_days) {
        return Err(KeysError::BadDays { days: request.valid_days });
    }
    for list in [&request.sites, &request.operators] {
        for (i, name) in list.iter().enumerate() {
            if list[..i].contains(name) {
                return Err(KeysError::BadName { name: name.clone(), reason: "appears twice" });
            }
        }
    }
    let begin = now - Duration::HOUR;
    Ok((begin, begin + Duration::days(request.valid_days.into())))
}

/// The authority that holds `key`. All but its validity follows from the key.
fn authority(key: &KeyPair) -> CertificateParams {
    let mut ca = CertificateParams::default();
    ca.distinguished_name = rcgen::DistinguishedName::new();
    // The key's own bytes tell two authorities apart in messages.
    let mark: String = key.public_key_raw().iter().rev().take(4).map(|b| format!("{b:02x}")).collect();
    ca.distinguished_name.push(DnType::CommonName, format!("anabranch authority {mark}"));
    ca.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    ca.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    ca
}

/// The controller's key if it is asked for, then the operators' and the sites'.
fn leaves(
    request: &SetRequest,
    with_controller: bool,
    (begin, end): (OffsetDateTime, OffsetDateTime),
    issuer: &Issuer<'_, KeyPair>,
) -> Result<Vec<KeyFile>, KeysError> {
    let mut files = Vec::new();
    let mut make = |role: Role, name: &str, stem: PathBuf, hosts: &[String]| -> Result<(), KeysError> {
        let key = KeyPair::generate()?;
        let mut leaf = CertificateParams::new(vec![dns_name(role, name)?])?;
        leaf.distinguished_name = rcgen::DistinguishedName::new();
        leaf.distinguished_name.push(DnType::CommonName, name);
        leaf.distinguished_name.push(DnType::OrganizationalUnitName, role.word());
        let text = uri(role, name);
        let text = text.try_into().map_err(KeysError::Generator)?;
        leaf.subject_alt_names.push(SanType::URI(text));
        for host in hosts {
            leaf.subject_alt_names.push(match host.parse::<IpAddr>() {
                Ok(address) => SanType::IpAddress(address),
                Err(_) => SanType::DnsName(host.as_str().try_into().map_err(KeysError::Generator)?),
            });
        }
        leaf.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        leaf.extended_key_usages = match role {
            Role::Site => vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth],
            Role::Controller => vec![ExtendedKeyUsagePurpose::ServerAuth],
            Role::Operator => vec![ExtendedKeyUsagePurpose::ClientAuth],
        };
        leaf.use_authority_key_identifier_extension = true;
        (leaf.not_before, leaf.not_after) = (begin, end);
        let certificate = leaf.signed_by(&key, issuer)?;
        files.push(KeyFile { stem, certificate_pem: certificate.pem(), key_pem: key.serialize_pem() });
        Ok(())
    };
    let mut hosts = vec![
        "localhost".to_owned(),
        IpAddr::V4(Ipv4Addr::LOCALHOST).to_string(),
        IpAddr::V6(Ipv6Addr::LOCALHOST).to_string(),
    ];
    hosts.extend(request.controller_hosts.iter().filter(|h| !h.is_empty()).cloned());
    hosts.dedup();
    if with_controller {
        make(Role::Controller, "controller", "controller".into(), &hosts)?;
    }
    for name in &request.operators {
        make(Role::Operator, name, Path::new("operators").join(escaped(name)), &[])?;
    }
    for name in &request.sites {
        make(Role::Site, name, Path::new("sites").join(escaped(name)), &[])?;
    }
    Ok(files)
}

/// Writes a set below `folder`, which is made if need be: `STEM.pem` for everyone, `STEM.key` for its owner only (mode
/// 0600). A whole set is made sure to fit before the first file is written; nothing is ever overwritten.
///
/// Errors: something is there already, or the folder cannot be written.
pub fn write_set(folder: &Path, set: &KeySet) -> Result<(), KeysError> {
    let path = |f: &KeyFile, end: &str| {
        let mut name = folder.join(&f.stem).into_os_string();
        name.push(end);
        PathBuf::from(name)
    };
    for path in set.files.iter().flat_map(|f| [path(f, ".pem"), path(f, ".key")]) {
        if path.symlink_metadata().is_ok() {
            return Err(KeysError::Exists { path });
        }
    }
    for file in &set.files {
        let (certificate, key) = (path(file, ".pem"), path(file, ".key"));
        let parent = certificate.parent().unwrap_or(folder);
        std::fs::create_dir_all(parent)
            .map_err(|error| KeysError::Unwritable { path: parent.to_owned(), error })?;
        create(&key, file.key_pem.as_bytes(), 0o600)?;
        create(&certificate, file.certificate_pem.as_bytes(), 0o644)?;
    }
    Ok(())
}

fn create(path: &Path, bytes: &[u8], mode: u32) -> Result<(), KeysError> {
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, mode);
    #[cfg(not(unix))]
    let _ = mode;
    let unwritable = |error| KeysError::Unwritable { path: path.to_owned(), error };
    let mut file = options.open(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::AlreadyExists => KeysError::Exists { path: path.to_owned() },
        _ => unwritable(error),
    })?;
    file.write_all(bytes).and_then(|()| file.sync_all()).map_err(unwritable)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_survive_a_certificate() {
        for name in ["seattle", "New York", "a/../b", "%41", "Zürich", "-x-", "controller:site"] {
            assert_eq!(unescaped(&escaped(name)).as_deref(), Some(name));
        }
        assert_eq!(unescaped("%4"), None);
        assert_eq!(unescaped("%41"), None, "`A` is never escaped: two spellings of one name");
    }

    #[test]
    fn different_holders_have_different_dns_names() {
        let names = ["seattle", "Seattle", "seattle-", "sea.ttle", "sea_ttle", "_53eattle", "controller"];
        let all: Vec<_> = names
            .iter()
            .flat_map(|n| {
                [Role::Site, Role::Controller, Role::Operator].map(|r| dns_name(r, n).expect("short"))
            })
            .collect();
        for (i, name) in all.iter().enumerate() {
            assert!(!all[..i].contains(name), "{name}");
            assert!(rustls::pki_types::ServerName::try_from(name.as_str()).is_ok(), "{name}");
        }
        assert!(dns_name(Role::Site, &"x".repeat(63)).is_ok());
        assert!(dns_name(Role::Site, &"x".repeat(64)).is_err());
        assert!(dns_name(Role::Site, "").is_err());
    }

    #[test]
    fn bad_sets_are_refused() {
        let good = SetRequest {
            sites: vec!["a".into()],
            operators: vec![],
            controller_hosts: vec![],
            valid_days: VALID_DAYS_MAX,
        };
        assert!(make_set(&good).is_ok());
        for bad in [
            SetRequest { valid_days: 0, ..good.clone() },
            SetRequest { valid_days: VALID_DAYS_MAX + 1, ..good.clone() },
            SetRequest { sites: vec!["a".into(), "a".into()], ..good.clone() },
            SetRequest { operators: vec![String::new()], ..good.clone() },
        ] {
            let error = make_set(&bad).err().expect("refused").to_string();
            assert!(!error.contains('\n'), "{error}");
        }
    }

    #[test]
    fn who_comes_later_gets_keys_of_the_same_authority() {
        let folder = std::env::temp_dir().join(format!("anabranch-keys-more-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        let first = SetRequest {
            sites: vec!["a".into()],
            operators: vec![],
            controller_hosts: vec![],
            valid_days: 2,
        };
        write_set(&folder, &make_set(&first).expect("a good request")).expect("an empty folder");
        let more = SetRequest { sites: vec!["b".into()], operators: vec!["c".into()], ..first.clone() };
        let set = add_to_set(&folder, &more).expect("the authority is there");
        let stems: Vec<_> = set.files.iter().map(|f| f.stem.display().to_string()).collect();
        assert_eq!(stems, ["operators/c", "sites/b"]);
        write_set(&folder, &set).expect("nothing of the kind is there");
        for (role, name) in [(Role::Site, "a"), (Role::Site, "b"), (Role::Operator, "c")] {
            Credentials::load(&CredentialFiles::in_set(&folder, role, name)).expect("one authority for all");
        }
        let again = add_to_set(&folder, &first).expect("keys in memory");
        assert!(
            matches!(write_set(&folder, &again), Err(KeysError::Exists { .. })),
            "nothing is overwritten"
        );

        let other = make_set(&first).expect("a good request");
        std::fs::write(folder.join("ca.pem"), &other.files[0].certificate_pem).expect("a folder");
        let error = add_to_set(&folder, &more).err().expect("another's certificate").to_string();
        assert!(error.contains("ca.pem: is not what belongs to ca.key"), "{error}");
        std::fs::remove_file(folder.join("ca.key")).expect("it was there");
        let error = add_to_set(&folder, &more).err().expect("no key").to_string();
        assert!(error.contains("ca.key: ") && error.contains("keys init"), "{error}");
        let _ = std::fs::remove_dir_all(&folder);
    }

    #[test]
    #[cfg(unix)]
    fn a_set_is_written_once_with_keys_for_the_owner_only() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = std::env::temp_dir().join(format!("anabranch-keys-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        let request = SetRequest {
            sites: vec!["a b".into()],
            operators: vec!["operator".into()],
            controller_hosts: vec!["control.example".into(), "10.0.0.1".into()],
            valid_days: 1,
        };
        let set = make_set(&request).expect("a good request");
        write_set(&folder, &set).expect("an empty folder");
        let mode = |p: &str| folder.join(p).metadata().expect("written").permissions().mode() & 0o777;
        assert_eq!((mode("ca.key"), mode("sites/a%20b.key")), (0o600, 0o600));
        assert_eq!(mode("ca.pem") & 0o400, 0o400);
        let error = write_set(&folder, &set).expect_err("it is there already").to_string();
        assert!(error.contains("ca.pem is there already"), "{error}");
        std::fs::remove_dir_all(&folder).expect("ours");
    }
}
