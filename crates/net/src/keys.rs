//! A working set of keys: one certificate authority, and a certificate for everyone it vouches for.
//!
//! ECDSA on P-256, by rcgen. Who a certificate stands for is written in its subject alternative names: a URI for the
//! system, the role and the name (`anabranch:replicate:site:seattle`), and a DNS name of the same meaning that TLS checks
//! (`seattle.site.replicate.anabranch`), so a site called `controller` is still only a site, and a client of `gather` is
//! nobody to `replicate`. A set is of one system, which its authority's name says. Leaves out: revocation (make a new set
//! instead). Read [`make_set`], [`add_to_set`] and [`write_set`] first.
#![allow(clippy::disallowed_methods, reason = "a driver: writes files, and certificates begin now")]

use crate::tls::{CredentialFiles, Credentials, PeerIdentity, TlsError};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use std::fmt::Write as _;
use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use time::{Duration, OffsetDateTime};

/// The system whose parties know each other by a set of keys. Another takes one name here and one line in [`SYSTEMS`].
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum System {
    /// One file to many sites.
    Replicate,
    /// One client pulls from many servers.
    Gather,
    /// Rates for the flows of a computing stage.
    Shuffle,
}

/// Each system's word, and what it calls its sites, its controller if it has one, and its operators.
const SYSTEMS: [(System, &str, [Option<&str>; 3]); 3] = [
    (System::Replicate, "replicate", [Some("site"), Some("controller"), Some("operator")]),
    (System::Gather, "gather", [Some("server"), None, Some("client")]),
    (System::Shuffle, "shuffle", [Some("host"), Some("coordinator"), Some("operator")]),
];

impl System {
    /// All of them.
    pub fn all() -> impl Iterator<Item = Self> {
        SYSTEMS.into_iter().map(|(system, ..)| system)
    }

    fn line(self) -> (&'static str, [Option<&'static str>; 3]) {
        let (_, word, roles) = SYSTEMS.into_iter().find(|(s, ..)| *s == self).expect("each has its line");
        (word, roles)
    }

    /// The system's word in a certificate, which is its verb on the command line.
    pub fn word(self) -> &'static str {
        self.line().0
    }

    /// What the system calls those in `role`; `None` if it has nobody in it.
    pub fn role_name(self, role: Role) -> Option<&'static str> {
        self.line().1[role as usize]
    }
}

impl std::fmt::Display for System {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.word())
    }
}

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
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Site, Self::Controller, Self::Operator];

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
    /// Whose keys they are.
    pub system: System,
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
    /// For whom; `None` for the authority.
    pub holder: Option<PeerIdentity>,
}

/// A set of keys; the authority comes first, then the controller if the system has one.
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
    /// A folder with keys of another system, or of none.
    OtherSystem {
        /// The folder.
        folder: PathBuf,
        /// Whose keys it holds; `None` if they do not say.
        holds: Option<System>,
        /// Whose were to be made.
        wanted: System,
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
            Self::OtherSystem { folder, holds, wanted } => {
                let holds = match holds {
                    Some(system) => format!("keys of {system}"),
                    None => "keys that name no system, as older versions made them".to_owned(),
                };
                write!(
                    f,
                    "{} holds {holds}: keys of {wanted} need a folder of their own, as keys/{wanted}",
                    folder.display()
                )
            }
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

/// The DNS name that stands for `name` in a system's `role`. DNS knows no upper case, so everything but `a-z`, `0-9` and inner
/// hyphens becomes `_xx`.
///
/// Errors: a name that is empty or too long for a DNS label (63 bytes after escaping).
pub fn dns_name(system: System, role: Role, name: &str) -> Result<String, KeysError> {
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
    Ok(format!("{label}.{}.{system}.anabranch", role.word()))
}

/// The inverse of [`dns_name`]; `None` for what it never writes.
pub(crate) fn of_dns_name(text: &str) -> Option<PeerIdentity> {
    let mut labels = text.split('.');
    let (label, role, system) = (labels.next()?, labels.next()?, labels.next()?);
    let mut bytes = Vec::new();
    let mut rest = label.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'_' {
            let hex = [rest.next()?, rest.next()?];
            bytes.push(u8::from_str_radix(std::str::from_utf8(&hex).ok()?, 16).ok()?);
        } else {
            bytes.push(byte);
        }
    }
    let peer = PeerIdentity {
        system: System::all().find(|s| s.word() == system)?,
        role: Role::ALL.into_iter().find(|r| r.word() == role)?,
        name: String::from_utf8(bytes).ok()?,
    };
    (dns_name(peer.system, peer.role, &peer.name).ok()? == text).then_some(peer)
}

/// The URI that names the holder in a certificate.
pub(crate) fn uri(system: System, role: Role, name: &str) -> String {
    format!("anabranch:{system}:{}:{}", role.word(), escaped(name))
}

/// The inverse of [`uri`]; `None` for what it never writes.
pub(crate) fn of_uri(text: &str) -> Option<PeerIdentity> {
    let mut parts = text.strip_prefix("anabranch:")?.splitn(3, ':');
    let (system, role) = (parts.next()?, parts.next()?);
    Some(PeerIdentity {
        system: System::all().find(|s| s.word() == system)?,
        role: Role::ALL.into_iter().find(|r| r.word() == role)?,
        name: unescaped(parts.next()?)?,
    })
}

/// Where the files of `name` in `role` lie below a set's folder, without `.pem` and `.key`.
pub(crate) fn stem(role: Role, name: &str) -> PathBuf {
    match role {
        Role::Site => Path::new("sites").join(escaped(name)),
        Role::Operator => Path::new("operators").join(escaped(name)),
        Role::Controller => "controller".into(),
    }
}

/// Makes a set of keys in memory.
///
/// Errors: a bad or repeated name, a validity out of range.
///
/// ```
/// use anabranch_net::keys::{SetRequest, System, make_set, VALID_DAYS};
/// let request = SetRequest {
///     system: System::Replicate,
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
    let mut ca = authority(request.system, &ca_key);
    (ca.not_before, ca.not_after) = validity;
    let ca_certificate = ca.self_signed(&ca_key)?;
    let first = KeyFile {
        stem: "ca".into(),
        certificate_pem: ca_certificate.pem(),
        key_pem: ca_key.serialize_pem(),
        holder: None,
    };
    let leaves = leaves(request, true, validity, &Issuer::new(ca, ca_key))?;
    Ok(KeySet { files: std::iter::once(first).chain(leaves).collect() })
}

/// Makes keys for more sites and operators, vouched for by the authority of the set in `folder`; they are good for as long
/// as was asked, or as the authority is if that ends before.
///
/// Errors: as [`make_set`]; no authority there, or another system's, or its key and certificate do not belong together.
pub fn add_to_set(folder: &Path, request: &SetRequest) -> Result<KeySet, KeysError> {
    let validity = check(request, OffsetDateTime::now_utc())?;
    let (key_path, certificate_path) = (folder.join("ca.key"), folder.join("ca.pem"));
    let bad = |path: &Path, reason: String| KeysError::BadAuthority { path: path.to_owned(), reason };
    let read = |path: &Path| std::fs::read_to_string(path).map_err(|e| bad(path, e.to_string()));
    let ca_key = KeyPair::from_pem(&read(&key_path)?).map_err(|e| bad(&key_path, e.to_string()))?;
    let certificate = read(&certificate_path)?;
    let holds = authority_system(&certificate);
    if holds != Some(request.system) {
        let (folder, wanted) = (folder.to_owned(), request.system);
        return Err(KeysError::OtherSystem { folder, holds, wanted });
    }
    let issuer = Issuer::new(authority(request.system, &ca_key), ca_key);
    let files = leaves(request, false, validity, &issuer)?;
    for file in &files {
        let (leaf, key) = (file.certificate_pem.as_bytes(), file.key_pem.as_bytes());
        let named = CredentialFiles {
            ca: certificate_path.clone(),
            certificate: "".into(),
            key: "".into(),
            holder: file.holder.clone(),
        };
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

/// Leaves of any system by any authority: what nobody makes, for tests.
#[cfg(test)]
pub(crate) fn more_of(authority: &KeyFile, request: &SetRequest) -> Vec<KeyFile> {
    let key = KeyPair::from_pem(&authority.key_pem).expect("a good key");
    let system = authority_system(&authority.certificate_pem).expect("it says so");
    let validity = check(request, OffsetDateTime::now_utc()).expect("a good request");
    let issuer = Issuer::new(self::authority(system, &key), key);
    leaves(request, true, validity, &issuer).expect("a good request")
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

/// How an authority's name begins: it says whose certificates it makes.
fn authority_mark(system: System) -> String {
    format!("anabranch {system} authority ")
}

/// Whose certificates this authority makes; `None` if it does not say, or is no certificate.
fn authority_system(pem: &str) -> Option<System> {
    let certificate = CertificateDer::from_pem_slice(pem.as_bytes()).ok()?;
    let anchor = webpki::anchor_from_trusted_cert(&certificate).ok()?;
    let names = |system| {
        let mark = authority_mark(system);
        anchor.subject.windows(mark.len()).any(|part| part == mark.as_bytes())
    };
    System::all().find(|system| names(*system))
}

/// The authority of `system` that holds `key`. All but its validity follows from these.
fn authority(system: System, key: &KeyPair) -> CertificateParams {
    let mut ca = CertificateParams::default();
    ca.distinguished_name = rcgen::DistinguishedName::new();
    // The key's own bytes tell two authorities apart in messages.
    let mark: String = key.public_key_raw().iter().rev().take(4).map(|b| format!("{b:02x}")).collect();
    ca.distinguished_name.push(DnType::CommonName, authority_mark(system) + &mark);
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
    let system = request.system;
    let mut make = |role: Role, name: &str, hosts: &[String]| -> Result<(), KeysError> {
        let key = KeyPair::generate()?;
        let mut leaf = CertificateParams::new(vec![dns_name(system, role, name)?])?;
        leaf.distinguished_name = rcgen::DistinguishedName::new();
        leaf.distinguished_name.push(DnType::CommonName, name);
        leaf.distinguished_name.push(DnType::OrganizationalUnitName, role.word());
        leaf.distinguished_name.push(DnType::OrganizationName, system.word());
        let text = uri(system, role, name);
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
        files.push(KeyFile {
            stem: stem(role, name),
            certificate_pem: certificate.pem(),
            key_pem: key.serialize_pem(),
            holder: Some(PeerIdentity { system, role, name: name.to_owned() }),
        });
        Ok(())
    };
    let mut hosts = vec![
        "localhost".to_owned(),
        IpAddr::V4(Ipv4Addr::LOCALHOST).to_string(),
        IpAddr::V6(Ipv6Addr::LOCALHOST).to_string(),
    ];
    hosts.extend(request.controller_hosts.iter().filter(|h| !h.is_empty()).cloned());
    hosts.dedup();
    if with_controller && system.role_name(Role::Controller).is_some() {
        make(Role::Controller, "controller", &hosts)?;
    }
    for name in &request.operators {
        make(Role::Operator, name, &[])?;
    }
    for name in &request.sites {
        make(Role::Site, name, &[])?;
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
                [Role::Site, Role::Controller, Role::Operator]
                    .map(|r| dns_name(System::Shuffle, r, n).expect("short"))
            })
            .collect();
        for (i, name) in all.iter().enumerate() {
            assert!(!all[..i].contains(name), "{name}");
            assert!(rustls::pki_types::ServerName::try_from(name.as_str()).is_ok(), "{name}");
        }
        assert!(dns_name(System::Gather, Role::Site, &"x".repeat(63)).is_ok());
        assert!(dns_name(System::Gather, Role::Site, &"x".repeat(64)).is_err());
        assert!(dns_name(System::Gather, Role::Site, "").is_err());
    }

    #[test]
    fn a_certificates_names_are_read_back_as_they_were_written() {
        for system in System::all() {
            for role in Role::ALL {
                for name in ["seattle", "Seattle", "New York", "a:b", "-x-", "_41", "Zürich", "x.y"] {
                    let peer = PeerIdentity { system, role, name: name.into() };
                    assert_eq!(of_uri(&uri(system, role, name)).as_ref(), Some(&peer));
                    let dns = dns_name(system, role, name).expect("short");
                    assert_eq!(of_dns_name(&dns), Some(peer), "{dns}");
                }
            }
        }
        for bad in ["anabranch:site:seattle", "anabranch:spray:site:a", "anabranch:gather:site:%41", "a", ""]
        {
            assert_eq!(of_uri(bad), None, "{bad}");
        }
        for bad in [
            "a.site.anabranch",
            "a.site.spray.anabranch",
            "_61.site.gather.anabranch",
            "A.site.gather.anabranch",
        ] {
            assert_eq!(of_dns_name(bad), None, "{bad}");
        }
    }

    /// #17: `gather keys` added to the folder of `replicate`, and its clients then commanded sites.
    #[test]
    fn a_folder_takes_keys_of_one_system_only() {
        let folder = std::env::temp_dir().join(format!("anabranch-keys-system-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        let request = |system| SetRequest {
            system,
            sites: vec!["a".into()],
            operators: vec![],
            controller_hosts: vec![],
            valid_days: 2,
        };
        for system in System::all() {
            let own = folder.join(system.word());
            let set = make_set(&request(system)).expect("a good request");
            assert_eq!(authority_system(&set.files[0].certificate_pem), Some(system));
            let has_controller = set.files.iter().any(|f| f.stem == Path::new("controller"));
            assert_eq!(has_controller, system.role_name(Role::Controller).is_some());
            write_set(&own, &set).expect("an empty folder");
            for other in System::all() {
                let more = SetRequest { sites: vec!["b".into()], ..request(other) };
                match add_to_set(&own, &more) {
                    Ok(_) => assert_eq!(other, system),
                    Err(error) => {
                        let said =
                            format!("holds keys of {system}: keys of {other} need a folder of their own");
                        assert!(other != system && error.to_string().contains(&said), "{error}");
                    }
                }
            }
        }
        let _ = std::fs::remove_dir_all(&folder);
    }

    #[test]
    fn bad_sets_are_refused() {
        let good = SetRequest {
            system: System::Replicate,
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
            system: System::Replicate,
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
            Credentials::load(&CredentialFiles::in_set(&folder, System::Replicate, role, name))
                .expect("one authority for all");
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
            system: System::Replicate,
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
