//! The parties that certificates stand for: their system, role and name, and how these are written
//! in a certificate and as a path.
//!
//! Leaves out: making and reading certificates (`keys.rs`, `tls.rs`). Read [`PeerIdentity`] first.

use anabranch_units::text::printable;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use time::Duration;

/// A system whose parties authenticate each other by a set of keys, as described by the system.
///
/// A system provides its description by [`system!`](crate::system). A certificate of a system that
/// is not in the program identifies no party.
#[derive(Debug)]
pub struct SystemSpec {
    /// The system's verb on the command line, which also names the system in certificates.
    pub word: &'static str,
    /// The name of its sites in messages.
    pub site: &'static str,
    /// The name of its controller in messages. `None` without a controller.
    pub controller: Option<&'static str>,
    /// The name of its operators in messages. `None` without operators.
    pub operator: Option<&'static str>,
    /// True if a controller also connects to other controllers, so that its certificate also serves
    /// as a client's.
    pub controller_dials: bool,
    /// The arguments with which the system's command `keys` makes a new set, for messages. Empty if
    /// it needs none.
    pub keys_arguments: &'static str,
}

/// The descriptions of all systems that are linked into the program.
#[linkme::distributed_slice]
pub static SYSTEMS: [SystemSpec];

/// Describes a system to this room: makes a constant [`System`](crate::keys::System) of a
/// [`SystemSpec`](crate::keys::SystemSpec), and enters it in the program's list.
///
/// ```
/// use anabranch_net::keys::{Role, System, SystemSpec};
/// anabranch_net::system! {
///     /// A system that only waits.
///     pub PAUSE = SystemSpec {
///         word: "pause",
///         site: "site",
///         controller: None,
///         operator: None,
///         controller_dials: false,
///         keys_arguments: "",
///     };
/// }
/// assert!(System::all().any(|system| system == PAUSE));
/// assert_eq!(PAUSE.role_name(Role::Operator), None);
/// ```
#[macro_export]
macro_rules! system {
    ($(#[$doc:meta])* $vis:vis $name:ident = $spec:expr;) => {
        $(#[$doc])*
        $vis const $name: $crate::keys::System = {
            #[$crate::linkme::distributed_slice($crate::keys::SYSTEMS)]
            #[linkme(crate = $crate::linkme)]
            static SPEC: $crate::keys::SystemSpec = $spec;
            $crate::keys::System::new(&SPEC)
        };
    };
}

/// A system. Systems are equal if their words are equal.
#[derive(Copy, Clone)]
pub struct System(&'static SystemSpec);

impl System {
    /// Creates the system with this description; [`system!`](crate::system) calls this function.
    pub const fn new(spec: &'static SystemSpec) -> Self {
        Self(spec)
    }

    /// All systems of the program, in the order of their words.
    pub fn all() -> impl Iterator<Item = Self> {
        let mut all: Vec<Self> = SYSTEMS.iter().map(Self).collect();
        all.sort_unstable();
        all.into_iter()
    }

    /// The system's verb on the command line, which also names the system in certificates.
    pub const fn word(self) -> &'static str {
        self.0.word
    }

    /// The name in messages of a party in `role`; `None` if the system has no such role.
    pub const fn role_name(self, role: Role) -> Option<&'static str> {
        match role {
            Role::Site => Some(self.0.site),
            Role::Controller => self.0.controller,
            Role::Operator => self.0.operator,
        }
    }

    /// The command that makes a new set of keys, for messages.
    pub fn keys_command(self) -> String {
        format!("anabranch {self} keys {}", self.0.keys_arguments).trim_end().to_owned()
    }

    /// True if a controller also connects to other controllers.
    pub(crate) const fn controller_dials(self) -> bool {
        self.0.controller_dials
    }
}

impl PartialEq for System {
    fn eq(&self, other: &Self) -> bool {
        self.word() == other.word()
    }
}
impl Eq for System {}
impl PartialOrd for System {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for System {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.word().cmp(other.word())
    }
}
impl std::fmt::Debug for System {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.word())
    }
}

impl std::fmt::Display for System {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.word())
    }
}

/// The role of a certificate's holder, which decides its rights.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// A party that moves data, and takes commands for itself only.
    Site,
    /// A party that commands the sites.
    Controller,
    /// A party that submits and watches transfers.
    Operator,
}

impl Role {
    /// All roles.
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

/// Time by which a certificate's validity starts before its making, for peers whose clocks are
/// slow.
pub(crate) const BACKDATED: Duration = Duration::HOUR;

/// The holder of a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerIdentity {
    /// The system to which the holder belongs.
    pub system: System,
    /// The holder's role.
    pub role: Role,
    /// The holder's name; for a site, its name in the topology.
    pub name: String,
}

impl std::fmt::Display for PeerIdentity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let role = self.system.role_name(self.role).unwrap_or(self.role.word());
        write!(f, "{} {role} `{}`", self.system, printable(&self.name))
    }
}

/// A name that no certificate can carry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadName {
    /// The refused name.
    pub name: String,
    /// Rule that the name breaks.
    pub reason: &'static str,
}

impl std::fmt::Display for BadName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "name `{}`: {}", self.name, self.reason)
    }
}

impl std::error::Error for BadName {}

/// Escapes `name` for use as one path component or one part of a URI: every character except
/// letters, digits, `-` and `_` becomes `%XX`.
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

/// Inverse of [`escaped`]; `None` for texts that [`escaped`] never writes.
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

/// Returns the DNS name of the party `name` in `role` of a system. DNS names ignore case, so all
/// characters except `a-z`, `0-9` and inner hyphens become `_xx`.
///
/// Errors: a name that is empty or too long for a DNS label (63 bytes after escaping).
pub fn dns_name(system: System, role: Role, name: &str) -> Result<String, BadName> {
    let bad = |reason| BadName { name: name.to_owned(), reason };
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
    // An all-digit label is allowed here, because the DNS name does not end with this label.
    if label.len() > 63 {
        return Err(bad(
            "is too long: at most 63 bytes, with other characters than a-z, 0-9 and - counting three",
        ));
    }
    Ok(format!("{label}.{}.{system}.anabranch", role.word()))
}

/// Inverse of [`dns_name`]; `None` for texts that [`dns_name`] never writes.
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

/// Inverse of [`uri`]; `None` for texts that [`uri`] never writes.
pub(crate) fn of_uri(text: &str) -> Option<PeerIdentity> {
    let mut parts = text.strip_prefix("anabranch:")?.splitn(3, ':');
    let (system, role) = (parts.next()?, parts.next()?);
    Some(PeerIdentity {
        system: System::all().find(|s| s.word() == system)?,
        role: Role::ALL.into_iter().find(|r| r.word() == role)?,
        name: unescaped(parts.next()?)?,
    })
}

/// Path of the files of `name` in `role` below a set's folder, without `.pem` and `.key`.
pub(crate) fn stem(role: Role, name: &str) -> PathBuf {
    match role {
        Role::Site => Path::new("sites").join(escaped(name)),
        Role::Operator => Path::new("operators").join(escaped(name)),
        Role::Controller => "controller".into(),
    }
}

/// Systems for the tests of this crate.
#[cfg(test)]
pub(crate) mod examples {
    use super::SystemSpec;

    crate::system! {
        /// A system with all roles.
        pub(crate) HAUL = SystemSpec {
            word: "haul",
            site: "site",
            controller: Some("controller"),
            operator: Some("operator"),
            controller_dials: false,
            keys_arguments: "",
        };
    }
    crate::system! {
        /// A system without a controller that calls its roles server and client.
        pub(crate) PULL = SystemSpec {
            word: "pull",
            site: "server",
            controller: None,
            operator: Some("client"),
            controller_dials: false,
            keys_arguments: "",
        };
    }
    crate::system! {
        /// A system of sites only.
        pub(crate) MESH = SystemSpec {
            word: "mesh",
            site: "host",
            controller: None,
            operator: None,
            controller_dials: false,
            keys_arguments: "",
        };
    }
    crate::system! {
        /// A system whose controllers connect to each other.
        pub(crate) PEER = SystemSpec {
            word: "peer",
            site: "network",
            controller: Some("broker"),
            operator: Some("operator"),
            controller_dials: true,
            keys_arguments: "",
        };
    }
}

#[cfg(test)]
mod tests {
    use super::examples::{HAUL, MESH, PEER, PULL};
    use super::*;

    #[test]
    fn systems_define_their_role_names_and_rights() {
        assert_eq!(System::all().collect::<Vec<_>>(), [HAUL, MESH, PEER, PULL]);
        let roles = |system: System| Role::ALL.map(|role| system.role_name(role));
        assert_eq!(roles(PEER), [Some("network"), Some("broker"), Some("operator")]);
        assert_eq!(roles(PULL), [Some("server"), None, Some("client")]);
        assert_eq!(roles(MESH), [Some("host"), None, None]);
        assert_eq!([HAUL, PEER].map(System::controller_dials), [false, true]);
    }
}
