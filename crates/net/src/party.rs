//! The parties that certificates stand for: their system, role and name, and how these are written in a certificate and as a path.
//!
//! Leaves out: making and reading certificates (`keys.rs`, `tls.rs`). Read [`PeerIdentity`] first.

use anabranch_units::text::printable;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use time::Duration;

/// The system whose parties know each other by a set of keys.
///
/// Another one takes a name here and a line in `SYSTEMS`. The list is in this room, not at the systems, as a certificate of a system
/// that is not in it names nobody, and as keys of all systems are kept from being served.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum System {
    /// One file to many sites.
    Replicate,
    /// One client pulls from many servers.
    Gather,
    /// Rates for the flows of a computing stage.
    Shuffle,
    /// Short flows over every path.
    Spray,
    /// Content networks bid, a broker places clients.
    Broker,
}

/// Each system's word, and what it calls its sites, its controller if it has one, and its operators.
const SYSTEMS: [(System, &str, [Option<&str>; 3]); 5] = [
    (System::Replicate, "replicate", [Some("site"), Some("controller"), Some("operator")]),
    (System::Gather, "gather", [Some("server"), None, Some("client")]),
    (System::Shuffle, "shuffle", [Some("host"), Some("coordinator"), Some("operator")]),
    (System::Spray, "spray", [Some("host"), None, None]),
    (System::Broker, "broker", [Some("network"), Some("broker"), Some("operator")]),
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

    /// The system's word for parties in `role`; `None` if it has none of them.
    pub fn role_name(self, role: Role) -> Option<&'static str> {
        self.line().1[role as usize]
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

/// How long before it is made a certificate begins to be good, for machines whose clocks are late.
pub(crate) const BACKDATED: Duration = Duration::HOUR;

/// The holder of a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerIdentity {
    /// The system that it belongs to.
    pub system: System,
    /// The holder's role.
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

/// A name that no certificate can carry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadName {
    /// The name.
    pub name: String,
    /// What is wrong with it.
    pub reason: &'static str,
}

impl std::fmt::Display for BadName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "name `{}`: {}", self.name, self.reason)
    }
}

impl std::error::Error for BadName {}

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
