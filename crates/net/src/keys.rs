//! A working set of keys: one certificate authority, and a certificate for each of its holders.
//!
//! ECDSA on P-256, by rcgen. The subject alternative names of a certificate state its holder: a URI
//! with the system, the role and the name (`anabranch:SYSTEM:site:seattle`), and an equivalent DNS
//! name that TLS checks (`seattle.site.SYSTEM.anabranch`). So a site called `controller` is only a
//! site, and a client has no rights in another system. A set belongs to one system, which its
//! authority's name states. A list names revoked certificates ([`crate::revoked`]). Read
//! [`make_set`], [`add_to_set`], [`write_set`], [`renew`], [`revoke`].
#![allow(clippy::disallowed_methods, reason = "a driver: writes files, and certificates begin now")]

use crate::certificate::CertificateFacts;
use crate::party::{BACKDATED, PeerIdentity, of_dns_name, of_uri, stem, unescaped, uri};
use crate::revoked::{self, BadLine, RevocationList};
use crate::tls::{CredentialFiles, Credentials, TlsError};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use time::{Duration, OffsetDateTime};

pub use crate::party::{BadName, Role, SYSTEMS, System, SystemSpec, dns_name, escaped};

/// Default validity of a certificate: a little more than a year, so that yearly renewal is in time,
/// and an undetected stolen key expires soon after.
pub const VALID_DAYS: u32 = 397;
/// Maximum requested validity in days, and the validity of an authority.
pub const VALID_DAYS_MAX: u32 = 3_650;
/// The system and the holders for which to make a set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetRequest {
    /// The system of the keys.
    pub system: System,
    /// Names of the sites, as in the topology.
    pub sites: Vec<String>,
    /// Names of the people or programs that submit transfers.
    pub operators: Vec<String>,
    /// Further host names or addresses of the controller, so that browsers and curl accept it.
    pub controller_hosts: Vec<String>,
    /// Validity of the certificates in days, from an hour ago to the authority's end at most.
    pub valid_days: u32,
}

/// A certificate and its private key, PEM.
#[derive(Clone)]
pub struct KeyFile {
    /// Path below the set's folder, without `.pem` and `.key`.
    pub stem: PathBuf,
    /// The certificate.
    pub certificate_pem: String,
    /// Private key, as PEM.
    pub key_pem: String,
    /// The holder; `None` for the authority.
    pub holder: Option<PeerIdentity>,
}

/// A set of keys: first the authority, then the controller if the system has one.
#[derive(Clone)]
pub struct KeySet {
    /// The keys, with the stems `ca`, `controller`, `operators/NAME`, `sites/NAME`.
    pub files: Vec<KeyFile>,
}

/// Error in making a set.
#[derive(Debug)]
#[non_exhaustive]
pub enum KeysError {
    /// A name that no certificate can carry, or that appears twice.
    BadName {
        /// The refused name.
        name: String,
        /// Rule that the name breaks.
        reason: &'static str,
    },
    /// A number of days outside 1 to [`VALID_DAYS_MAX`].
    BadDays {
        /// The number.
        days: u32,
    },
    /// A file with this name exists; no file is overwritten.
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
        /// Why the key is refused.
        reason: String,
    },
    /// A folder with keys of another system, or of none.
    OtherSystem {
        /// The folder.
        folder: PathBuf,
        /// System of the folder's keys; `None` if they do not state one.
        holds: Option<System>,
        /// System of the requested keys.
        wanted: System,
    },
    /// A world-writable folder.
    OpenFolder {
        /// The folder.
        path: PathBuf,
    },
    /// A folder or file that cannot be read.
    Unreadable {
        /// The folder or file.
        path: PathBuf,
        /// The system's reason.
        error: std::io::Error,
    },
    /// A list of revoked certificates that cannot be read.
    BadList {
        /// The file.
        path: PathBuf,
        /// Line and reason.
        error: BadLine,
    },
    /// An error of the generator of certificates.
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
                    "{} exists already: choose another folder, or move the old keys away",
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
            Self::OpenFolder { path } => {
                write!(f, "{0}: anybody may write there: run `chmod 700 {0}`", path.display())
            }
            Self::Unreadable { path, error } => write!(f, "{}: cannot be read: {error}", path.display()),
            Self::BadList { path, error } => write!(f, "{}: {error}", path.display()),
            Self::Generator(error) => write!(f, "cannot make a certificate: {error}"),
        }
    }
}
impl std::error::Error for KeysError {}
impl From<BadName> for KeysError {
    fn from(BadName { name, reason }: BadName) -> Self {
        Self::BadName { name, reason }
    }
}
impl From<rcgen::Error> for KeysError {
    fn from(error: rcgen::Error) -> Self {
        Self::Generator(error)
    }
}

/// Makes a set of keys in memory.
///
/// Errors: a bad or repeated name, a validity out of range.
///
/// ```
/// use anabranch_net::keys::{SetRequest, SystemSpec, make_set, VALID_DAYS};
/// anabranch_net::system! {
///     HAUL = SystemSpec { word: "haul", site: "s", controller: Some("c"), operator: None,
///         controller_dials: false, keys_arguments: "" };
/// }
/// let request = SetRequest {
///     system: HAUL, sites: vec!["seattle".into(), "new york".into()],
///     operators: vec!["operator".into()], controller_hosts: vec![], valid_days: VALID_DAYS,
/// };
/// let stems: Vec<_> = make_set(&request)?.files.into_iter().map(|f| f.stem.display().to_string()).collect();
/// assert_eq!(stems, ["ca", "controller", "operators/operator", "sites/seattle", "sites/new%20york"]);
/// # Ok::<(), anabranch_net::keys::KeysError>(())
/// ```
pub fn make_set(request: &SetRequest) -> Result<KeySet, KeysError> {
    make_set_at(request, OffsetDateTime::now_utc())
}

/// Does the same as [`make_set`], at the time `now`.
pub(crate) fn make_set_at(request: &SetRequest, now: OffsetDateTime) -> Result<KeySet, KeysError> {
    check(request)?;
    let ca_key = KeyPair::generate()?;
    let mut ca = authority(request.system, &ca_key);
    ca.not_before = now - BACKDATED;
    ca.not_after = ca.not_before + Duration::days(VALID_DAYS_MAX.into());
    let ca_certificate = ca.self_signed(&ca_key)?;
    let first = KeyFile {
        stem: "ca".into(),
        certificate_pem: ca_certificate.pem(),
        key_pem: ca_key.serialize_pem(),
        holder: None,
    };
    let end = ca.not_after;
    let maker = CertificateMaker {
        system: request.system,
        now,
        end,
        revoked: RevocationList::default(),
        issuer: Issuer::new(ca, ca_key),
    };
    let leaves = maker.all(request, true)?;
    Ok(KeySet { files: std::iter::once(first).chain(leaves).collect() })
}

/// Makes keys for more sites and operators, signed by the authority of the set in `folder`. They
/// are valid as requested, or until the authority expires if that is earlier.
///
/// Errors: as [`make_set`]; no authority of this system in `folder`, or one without its key.
pub fn add_to_set(folder: &Path, request: &SetRequest) -> Result<KeySet, KeysError> {
    check(request)?;
    let (maker, certificate) = CertificateMaker::in_folder(folder, request.system)?;
    let files = maker.all(request, false)?;
    checked(folder, &certificate, files)
}

/// Checks that the authority in `folder` has signed all `files`.
fn checked(folder: &Path, certificate: &str, files: Vec<KeyFile>) -> Result<KeySet, KeysError> {
    let certificate_path = folder.join("ca.pem");
    for file in &files {
        let (leaf, key) = (file.certificate_pem.as_bytes(), file.key_pem.as_bytes());
        let named = CredentialFiles {
            ca: certificate_path.clone(),
            certificate: "".into(),
            key: "".into(),
            holder: file.holder.clone(),
        };
        let list = RevocationList::default();
        Credentials::from_pem(certificate.as_bytes(), leaf, key, &named, list).map_err(|error| {
            let reason = match error {
                TlsError::WrongCa { .. } => "does not belong to ca.key".to_owned(),
                other => other.to_string(),
            };
            KeysError::BadAuthority { path: certificate_path.clone(), reason }
        })?;
    }
    Ok(KeySet { files })
}

/// The holders of the certificates of the set in `folder`, except the authority.
///
/// Errors: the folder holds no set of this system, or cannot be read.
pub fn holders(folder: &Path, system: System) -> Result<Vec<PeerIdentity>, KeysError> {
    read_authority(folder, system)?;
    let mut found = Vec::new();
    if folder.join("controller.pem").exists() {
        found.push(PeerIdentity { system, role: Role::Controller, name: "controller".into() });
    }
    for (role, below) in [(Role::Operator, "operators"), (Role::Site, "sites")] {
        let path = folder.join(below);
        let unreadable = |error| KeysError::Unreadable { path: path.clone(), error };
        let entries = match std::fs::read_dir(&path) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            Err(error) => return Err(unreadable(error)),
        };
        let mut names = Vec::new();
        for entry in entries {
            let file = entry.map_err(unreadable)?.file_name();
            let name = file.to_str().and_then(|f| f.strip_suffix(".pem")).and_then(unescaped);
            names.extend(name);
        }
        names.sort();
        found.extend(names.into_iter().map(|name| PeerIdentity { system, role, name }));
    }
    Ok(found)
}

/// Makes new keys for holders that have certificates in `folder`, with the same host names;
/// [`replace_in_set`] writes them. Earlier revocations do not affect the new certificates.
///
/// Errors: as [`add_to_set`]; a holder has no certificate in `folder`.
pub fn renew(
    folder: &Path,
    system: System,
    holders: &[PeerIdentity],
    valid_days: u32,
) -> Result<KeySet, KeysError> {
    check_days(valid_days)?;
    let (maker, certificate) = CertificateMaker::in_folder(folder, system)?;
    let mut files = Vec::new();
    for holder in holders {
        let path = CredentialFiles::in_set(folder, system, holder.role, &holder.name).certificate;
        let pem =
            std::fs::read(&path).map_err(|error| KeysError::Unreadable { path: path.clone(), error })?;
        let bad = |reason: &str| KeysError::BadAuthority { path: path.clone(), reason: reason.to_owned() };
        let old = CertificateDer::from_pem_slice(&pem).map_err(|_| bad("holds no certificate"))?;
        let facts = CertificateFacts::of(&old).ok_or_else(|| bad("holds no certificate"))?;
        let leaf = webpki::EndEntityCert::try_from(&old).map_err(|e| bad(&e.to_string()))?;
        let names = leaf.valid_dns_names().filter(|name| !name.ends_with(".anabranch")).map(str::to_owned);
        let hosts: Vec<_> = names.chain(facts.addresses.iter().map(IpAddr::to_string)).collect();
        files.push(maker.leaf(holder.role, &holder.name, &hosts, valid_days)?);
    }
    checked(folder, &certificate, files)
}

/// Revokes all present certificates of these holders wherever the list in `folder` is used.
///
/// Errors: the folder holds no set of this system; the list cannot be read or written.
pub fn revoke(folder: &Path, system: System, holders: &[PeerIdentity]) -> Result<(), KeysError> {
    revoke_at(folder, system, holders, OffsetDateTime::now_utc())
}

fn revoke_at(
    folder: &Path,
    system: System,
    holders: &[PeerIdentity],
    now: OffsetDateTime,
) -> Result<(), KeysError> {
    read_authority(folder, system)?;
    let path = folder.join("revoked");
    let (mut text, _) = read_list(&path)?;
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    for holder in holders {
        text.push_str(&revoked::line(holder, now));
    }
    replace(&path, text.as_bytes(), 0o644)
}

/// The list of revoked certificates in `path`, as text and parsed; empty if there is no file.
fn read_list(path: &Path) -> Result<(String, RevocationList), KeysError> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(KeysError::Unreadable { path: path.to_owned(), error }),
    };
    let list = text.parse().map_err(|error| KeysError::BadList { path: path.to_owned(), error })?;
    Ok((text, list))
}

/// The authority's certificate in `folder`, which must be of this system.
fn read_authority(folder: &Path, system: System) -> Result<String, KeysError> {
    let path = folder.join("ca.pem");
    let certificate = std::fs::read_to_string(&path)
        .map_err(|e| KeysError::BadAuthority { path: path.clone(), reason: e.to_string() })?;
    let holds = authority_system(&certificate);
    if holds != Some(system) {
        return Err(KeysError::OtherSystem { folder: folder.to_owned(), holds, wanted: system });
    }
    Ok(certificate)
}

/// For tests only: makes certificates for any system with any authority.
#[cfg(test)]
pub(crate) fn more_of(authority: &KeyFile, request: &SetRequest) -> Vec<KeyFile> {
    let key = KeyPair::from_pem(&authority.key_pem).expect("a good key");
    let of = authority_system(&authority.certificate_pem).expect("it says so");
    let now = OffsetDateTime::now_utc();
    let (system, end) = (request.system, now + Duration::days(VALID_DAYS_MAX.into()));
    let issuer = Issuer::new(self::authority(of, &key), key);
    let maker = CertificateMaker { system, now, end, revoked: RevocationList::default(), issuer };
    maker.all(request, true).expect("a good request")
}

fn check_days(days: u32) -> Result<(), KeysError> {
    if (1..=VALID_DAYS_MAX).contains(&days) { Ok(()) } else { Err(KeysError::BadDays { days }) }
}

fn check(request: &SetRequest) -> Result<(), KeysError> {
    check_days(request.valid_days)?;
    for list in [&request.sites, &request.operators] {
        for (i, name) in list.iter().enumerate() {
            if list[..i].contains(name) {
                return Err(KeysError::BadName { name: name.clone(), reason: "appears twice" });
            }
        }
    }
    Ok(())
}

/// Prefix of an authority's name, which states its system.
fn authority_mark(system: System) -> String {
    format!("anabranch {system} authority ")
}

/// System that an authority's name states; `None` without one, or if `pem` is no certificate.
fn authority_system(pem: &str) -> Option<System> {
    let certificate = CertificateDer::from_pem_slice(pem.as_bytes()).ok()?;
    let anchor = webpki::anchor_from_trusted_cert(&certificate).ok()?;
    let names = |system| {
        let mark = authority_mark(system);
        anchor.subject.windows(mark.len()).any(|part| part == mark.as_bytes())
    };
    System::all().find(|system| names(*system))
}

/// Describes the holder of this certificate; `None` if it names no party of a known system.
pub fn holder_of(pem: &[u8]) -> Option<String> {
    let leaf = CertificateDer::from_pem_slice(pem).ok()?;
    let peer = crate::tls::peer_identity(&[leaf]).map(|peer| peer.to_string());
    peer.or_else(|| {
        authority_system(&String::from_utf8_lossy(pem)).map(|system| format!("{system} authority"))
    })
}

/// Parameters of the authority of `system` with `key`, which determine all but the validity.
fn authority(system: System, key: &KeyPair) -> CertificateParams {
    let mut ca = CertificateParams::default();
    ca.distinguished_name = rcgen::DistinguishedName::new();
    // The key's last bytes distinguish two authorities in messages.
    let mark: String = key.public_key_raw().iter().rev().take(4).map(|b| format!("{b:02x}")).collect();
    ca.distinguished_name.push(DnType::CommonName, authority_mark(system) + &mark);
    ca.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    ca.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    ca
}

/// An authority with its key, ready to sign certificates.
struct CertificateMaker {
    system: System,
    now: OffsetDateTime,
    /// Last moment of the authority's own validity.
    end: OffsetDateTime,
    revoked: RevocationList,
    issuer: Issuer<'static, KeyPair>,
}

impl CertificateMaker {
    /// Reads the authority of the set in `folder`, of this system, and its certificate.
    fn in_folder(folder: &Path, system: System) -> Result<(Self, String), KeysError> {
        let (key_path, certificate_path) = (folder.join("ca.key"), folder.join("ca.pem"));
        let bad = |path: &Path, reason: String| KeysError::BadAuthority { path: path.to_owned(), reason };
        let key = std::fs::read_to_string(&key_path).map_err(|e| bad(&key_path, e.to_string()))?;
        let key = KeyPair::from_pem(&key).map_err(|e| bad(&key_path, e.to_string()))?;
        let certificate = read_authority(folder, system)?;
        let der = CertificateDer::from_pem_slice(certificate.as_bytes()).ok();
        let facts = der.and_then(|der| CertificateFacts::of(&der));
        let facts = facts.ok_or_else(|| bad(&certificate_path, "holds no certificate".into()))?;
        let (_, revoked) = read_list(&folder.join("revoked"))?;
        let issuer = Issuer::new(authority(system, &key), key);
        Ok((Self { system, now: OffsetDateTime::now_utc(), end: facts.end, revoked, issuer }, certificate))
    }

    /// Makes the keys of the controller (if `with_controller`), the operators and the sites.
    fn all(&self, request: &SetRequest, with_controller: bool) -> Result<Vec<KeyFile>, KeysError> {
        let mut files = Vec::new();
        if with_controller && self.system.role_name(Role::Controller).is_some() {
            let mut hosts = vec![
                "localhost".to_owned(),
                IpAddr::V4(Ipv4Addr::LOCALHOST).to_string(),
                IpAddr::V6(Ipv6Addr::LOCALHOST).to_string(),
            ];
            hosts.extend(request.controller_hosts.iter().filter(|h| !h.is_empty()).cloned());
            hosts.dedup();
            files.push(self.leaf(Role::Controller, "controller", &hosts, request.valid_days)?);
        }
        for (role, names) in [(Role::Operator, &request.operators), (Role::Site, &request.sites)] {
            for name in names {
                files.push(self.leaf(role, name, &[], request.valid_days)?);
            }
        }
        Ok(files)
    }

    /// Makes one holder's certificate and key.
    fn leaf(&self, role: Role, name: &str, hosts: &[String], valid_days: u32) -> Result<KeyFile, KeysError> {
        let system = self.system;
        let holder = PeerIdentity { system, role, name: name.to_owned() };
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
            Role::Controller if !system.controller_dials() => vec![ExtendedKeyUsagePurpose::ServerAuth],
            Role::Site | Role::Controller => {
                vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth]
            }
            Role::Operator => vec![ExtendedKeyUsagePurpose::ClientAuth],
        };
        leaf.use_authority_key_identifier_extension = true;
        // One second, the resolution of a certificate, after the last revoked certificate.
        let refused_until = self.revoked.of(&holder).flatten();
        let made = refused_until.map_or(self.now, |until| self.now.max(until + Duration::SECOND));
        leaf.not_before = made - BACKDATED;
        leaf.not_after = (leaf.not_before + Duration::days(valid_days.into())).min(self.end);
        let certificate = leaf.signed_by(&key, &self.issuer)?;
        Ok(KeyFile {
            stem: stem(role, name),
            certificate_pem: certificate.pem(),
            key_pem: key.serialize_pem(),
            holder: Some(holder),
        })
    }
}

/// Writes a set below `folder`, which is created for its owner only: `STEM.pem` for everyone,
/// `STEM.key` with mode 0600. All paths are checked before the first write; no file is overwritten.
///
/// Errors: a file exists already, the folder cannot be written, or it is world-writable.
pub fn write_set(folder: &Path, set: &KeySet) -> Result<(), KeysError> {
    let all = set.files.iter().flat_map(|f| [in_folder(folder, f, ".pem"), in_folder(folder, f, ".key")]);
    for path in all {
        if path.symlink_metadata().is_ok() {
            return Err(KeysError::Exists { path });
        }
    }
    for file in &set.files {
        let (certificate, key) = (in_folder(folder, file, ".pem"), in_folder(folder, file, ".key"));
        make_folder(folder)?;
        make_folder(certificate.parent().unwrap_or(folder))?;
        create(&key, file.key_pem.as_bytes(), 0o600)?;
        create(&certificate, file.certificate_pem.as_bytes(), 0o644)?;
    }
    Ok(())
}

/// Replaces existing keys by renewed ones, each file atomically.
///
/// Errors: the folder cannot be written.
pub fn replace_in_set(folder: &Path, set: &KeySet) -> Result<(), KeysError> {
    for file in &set.files {
        replace(&in_folder(folder, file, ".key"), file.key_pem.as_bytes(), 0o600)?;
        replace(&in_folder(folder, file, ".pem"), file.certificate_pem.as_bytes(), 0o644)?;
    }
    Ok(())
}

fn in_folder(folder: &Path, file: &KeyFile, end: &str) -> PathBuf {
    let mut name = folder.join(&file.stem).into_os_string();
    name.push(end);
    name.into()
}

/// Creates a folder and its parents for their owner only; refuses a world-writable one.
fn make_folder(path: &Path) -> Result<(), KeysError> {
    let unwritable = |error| KeysError::Unwritable { path: path.to_owned(), error };
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    {
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        if let Ok(found) = path.metadata()
            && std::os::unix::fs::PermissionsExt::mode(&found.permissions()) & 0o002 != 0
        {
            return Err(KeysError::OpenFolder { path: path.to_owned() });
        }
    }
    builder.create(path).map_err(unwritable)
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

/// Replaces a file atomically: writes a temporary file and renames it.
fn replace(path: &Path, bytes: &[u8], mode: u32) -> Result<(), KeysError> {
    let mut new = path.to_owned().into_os_string();
    new.push(".new");
    let new = PathBuf::from(new);
    // An interrupted call may have left this file.
    let _ = std::fs::remove_file(&new);
    create(&new, bytes, mode)?;
    std::fs::rename(&new, path).map_err(|error| KeysError::Unwritable { path: path.to_owned(), error })
}

/// Exercise for the fuzz target and its corpus's test: parses `bytes` as a key file, as names and
/// as revocations. Returns true if any of these is found.
///
/// Panics: if a parser panics, or a name is not written as it was read.
#[doc(hidden)]
pub fn exercise(bytes: &[u8]) -> bool {
    let text = String::from_utf8_lossy(bytes);
    for (read, written) in [
        (of_uri(&text), &(|peer: &PeerIdentity| uri(peer.system, peer.role, &peer.name)) as &dyn Fn(&_) -> _),
        (of_dns_name(&text), &|peer: &PeerIdentity| {
            dns_name(peer.system, peer.role, &peer.name).expect("it was read")
        }),
    ] {
        if let Some(peer) = read {
            assert_eq!(written(&peer), text, "{peer}");
            return true;
        }
    }
    let certificates: Vec<_> =
        CertificateDer::pem_slice_iter(bytes).take(16).filter_map(Result::ok).collect();
    let mut roots = rustls::RootCertStore::empty();
    for certificate in &certificates {
        crate::tls::peer_identity(std::slice::from_ref(certificate));
        // The result is ignored, because a certificate that is no authority is refused.
        let _ = roots.add(certificate.clone());
    }
    holder_of(bytes);
    let revoked = text.parse::<crate::revoked::RevocationList>();
    let is_list = revoked.as_ref().is_ok_and(|revoked| !revoked.is_empty());
    let revoked = revoked.unwrap_or_default();
    for system in System::all() {
        let files = crate::tls::CredentialFiles::in_set(Path::new("x"), system, Role::Site, "a");
        drop(Credentials::from_pem(bytes, bytes, bytes, &files, revoked.clone()));
    }
    is_list || !certificates.is_empty() || rustls::pki_types::PrivateKeyDer::from_pem_slice(bytes).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::party::examples::{HAUL, PULL};

    #[test]
    fn party_names_survive_a_certificate() {
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
                [Role::Site, Role::Controller, Role::Operator].map(|r| dns_name(HAUL, r, n).expect("short"))
            })
            .collect();
        for (i, name) in all.iter().enumerate() {
            assert!(!all[..i].contains(name), "{name}");
            assert!(rustls::pki_types::ServerName::try_from(name.as_str()).is_ok(), "{name}");
        }
        assert!(dns_name(PULL, Role::Site, &"x".repeat(63)).is_ok());
        assert!(dns_name(PULL, Role::Site, &"x".repeat(64)).is_err());
        assert!(dns_name(PULL, Role::Site, "").is_err());
    }

    #[test]
    fn certificate_names_read_back_as_written() {
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
        for bad in ["anabranch:site:seattle", "anabranch:weave:site:a", "anabranch:pull:site:%41", "a", ""] {
            assert_eq!(of_uri(bad), None, "{bad}");
        }
        for bad in
            ["a.site.anabranch", "a.site.weave.anabranch", "_61.site.pull.anabranch", "A.site.pull.anabranch"]
        {
            assert_eq!(of_dns_name(bad), None, "{bad}");
        }
    }

    /// #17: keys were added to another system's folder; their clients then commanded its sites.
    #[test]
    fn folder_accepts_keys_of_one_system_only() {
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
    fn invalid_key_set_requests_are_refused() {
        let good = SetRequest {
            system: HAUL,
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
    fn added_holders_get_keys_of_the_same_authority() {
        let folder = std::env::temp_dir().join(format!("anabranch-keys-more-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        let first = SetRequest {
            system: HAUL,
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
            Credentials::load(&CredentialFiles::in_set(&folder, HAUL, role, name))
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
        assert!(error.contains("ca.pem: does not belong to ca.key"), "{error}");
        std::fs::remove_file(folder.join("ca.key")).expect("it was there");
        let error = add_to_set(&folder, &more).err().expect("no key").to_string();
        assert!(error.contains("ca.key: ") && error.contains("keys init"), "{error}");
        let _ = std::fs::remove_dir_all(&folder);
    }

    #[test]
    #[cfg(unix)]
    fn key_set_is_written_once_for_its_owner_only() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = std::env::temp_dir().join(format!("anabranch-keys-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        let request = SetRequest {
            system: HAUL,
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
        let error = write_set(&folder, &set).expect_err("ca.pem exists").to_string();
        assert!(error.contains("ca.pem exists already"), "{error}");
        std::fs::remove_dir_all(&folder).expect("ours");
    }
}
