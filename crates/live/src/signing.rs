//! Signed URLs with an expiry time. An edge with secrets serves no other URLs.
//!
//! A signature is the first segment of a path, as in `/~1~1767225600~~SIGNATURE/news/index.m3u8`.
//! Playlists refer to resources by relative URIs, so players repeat the signature in requests for
//! every playlist, segment and part, without cookies. The edge removes the signature, so parents
//! and caches see only the path.
//!
//! | field | meaning |
//! | --- | --- |
//! | 1 | number of path segments that the signature covers, from the start of the path; 0 covers all paths |
//! | 1767225600 | expiry time, in seconds since 1970 |
//! | empty | prefix of the viewers' addresses, such as `192.0.2.0_24`; empty for all addresses |
//! | SIGNATURE | HMAC-SHA256 of the covered path and the preceding fields, in base64url |
//!
//! Source: RFC 2104 (HMAC), RFC 4648, section 5 (base64url). Leaves out: encryption of the path;
//! revocation other than by a change of the secrets. Read [`SigningSecrets`] and [`Grant`] first.

use anabranch_live_proto::directory::AddressPrefix;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use ring::hmac;
use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, PoisonError, RwLock};

/// Allowed length of a secret, in bytes.
const SECRET_BYTES: std::ops::RangeInclusive<usize> = 32..=256;
/// Maximum number of secrets that are valid at the same time, so that a secret can be replaced
/// gradually.
pub const SECRETS_MAX: usize = 2;
/// Maximum number of path segments that a signature can cover.
const DEPTH_MAX: usize = 8;
/// Prefix of the signed text. It invalidates signatures made for another purpose or format.
const CONTEXT: &str = "anabranch live url 1";
/// Start of a signature in a path.
const MARK: &str = "/~";

/// Secrets of signed URLs. Clones share the secrets.
///
/// A file has one or two secrets, one per line. The first secret signs, and both are accepted.
/// Empty lines and lines that begin with `#` are ignored.
#[derive(Clone)]
pub struct SigningSecrets {
    keys: Arc<RwLock<Vec<hmac::Key>>>,
}

impl fmt::Debug for SigningSecrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SigningSecrets").finish_non_exhaustive()
    }
}

/// Reason why a file of secrets is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SecretFileError {
    /// A secret that is not 32 to 256 printable ASCII characters: line, bytes.
    BadSecret(usize, usize),
    /// The file has more than [`SECRETS_MAX`] secrets.
    TooMany,
    /// The file has no secret.
    Empty,
}

impl fmt::Display for SecretFileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BadSecret(line, bytes) => write!(
                f,
                "line {line}: secret of {bytes} bytes: must have {} to {} printable ASCII characters and no space",
                SECRET_BYTES.start(),
                SECRET_BYTES.end()
            ),
            Self::TooMany => write!(f, "more than {SECRETS_MAX} secrets: keep the present and the last one"),
            Self::Empty => write!(f, "no secret: write one, as `openssl rand -hex 32` makes it"),
        }
    }
}

impl std::error::Error for SecretFileError {}

/// Reason why the signature of a request is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SignatureError {
    /// The path has no signature.
    Missing,
    /// The signature is malformed, or no secret has signed this path.
    Bad,
    /// The signature has expired at this time, in seconds since 1970.
    Expired(u64),
    /// The viewer's address is outside the signature's address prefix.
    OtherClient(IpAddr),
}

impl fmt::Display for SignatureError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing => write!(f, "signature: missing: ask for a signed URL"),
            Self::Bad => write!(f, "signature: wrong for this path: ask for a signed URL"),
            Self::Expired(end) => write!(f, "signature: expired at {end} s since 1970: ask for a new URL"),
            Self::OtherClient(address) => {
                write!(f, "signature: made for another network than that of {address}: ask for a new URL")
            }
        }
    }
}

impl std::error::Error for SignatureError {}

/// Permission that a signature grants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Path that is covered, including all paths below: `/news`, or `/` for all paths.
    pub path: String,
    /// Expiry time, in seconds since 1970.
    pub expires_unix_s: u64,
    /// Address prefix of the viewers. `None` for all addresses.
    pub clients: Option<AddressPrefix>,
}

/// A path that a signature cannot cover.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrantPathError(String);

impl fmt::Display for GrantPathError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = anabranch_units::text::brief(&self.0, 64);
        write!(f, "path `{shown}`: must be `/`, or up to {DEPTH_MAX} names as in /news or /news/main")
    }
}

impl std::error::Error for GrantPathError {}

/// A signature parsed from a path.
#[derive(Clone, Debug, PartialEq, Eq)]
struct PathSignature<'a> {
    depth: usize,
    expires_unix_s: u64,
    clients: Option<AddressPrefix>,
    /// Fields before the signature, as written in the path.
    fields: &'a str,
    signature: [u8; 32],
    /// Path after the signature.
    path: &'a str,
}

/// Splits a target into signature and path. `None` for a target without a signature.
fn read(target: &str) -> Option<Result<PathSignature<'_>, SignatureError>> {
    let rest = target.strip_prefix(MARK)?;
    let read = || {
        let (segment, _) = rest.split_once('/')?;
        let path = &rest[segment.len()..];
        let (fields, signature) = segment.rsplit_once('~')?;
        let mut words = fields.split('~');
        let (depth, expires, clients) = (words.next()?, words.next()?, words.next()?);
        if words.next().is_some() {
            return None;
        }
        let clients = match clients {
            "" => None,
            text => Some(text.replacen('_', "/", 1).parse().ok()?),
        };
        let signature = BASE64.decode(signature).ok()?.try_into().ok()?;
        let depth = depth.parse().ok().filter(|depth| *depth <= DEPTH_MAX)?;
        Some(PathSignature { depth, expires_unix_s: expires.parse().ok()?, clients, fields, signature, path })
    };
    Some(read().ok_or(SignatureError::Bad))
}

/// The first `depth` segments of a path, without its query. `None` if the path has fewer segments.
fn covered(path: &str, depth: usize) -> Option<&str> {
    let path = path.split('?').next().unwrap_or_default();
    if depth == 0 {
        return Some("");
    }
    let mut ends = path.match_indices('/').skip(1).map(|(at, _)| at).chain([path.len()]);
    ends.nth(depth - 1).map(|end| &path[..end])
}

fn message(covered: &str, fields: &str) -> String {
    format!("{CONTEXT}\n{covered}\n{fields}")
}

impl SigningSecrets {
    /// Parses the text of a file of secrets.
    ///
    /// Errors: [`SecretFileError`].
    pub fn read(text: &str) -> Result<Self, SecretFileError> {
        Ok(Self { keys: Arc::new(RwLock::new(keys(text)?)) })
    }

    /// Replaces the secrets by those in the text of a changed file.
    ///
    /// Errors: [`SecretFileError`]; the secrets then stay unchanged.
    pub fn replace(&self, text: &str) -> Result<(), SecretFileError> {
        let keys = keys(text)?;
        *self.keys.write().unwrap_or_else(PoisonError::into_inner) = keys;
        Ok(())
    }

    /// Signs a grant. Returns the first segment of a path, such as `/~1~1767225600~~SIGNATURE`, to
    /// be put before a path that the grant covers.
    ///
    /// Errors: [`GrantPathError`].
    pub fn sign(&self, grant: &Grant) -> Result<String, GrantPathError> {
        let path = grant.path.strip_suffix('/').unwrap_or(&grant.path);
        let names: Vec<&str> = path.split('/').skip(1).collect();
        let is_name = |name: &&str| {
            !name.is_empty()
                && !name.starts_with('~')
                && name.bytes().all(|b| b.is_ascii_graphic() && b != b'?')
        };
        let begins = path.is_empty() || path.starts_with('/');
        if !begins || names.len() > DEPTH_MAX || !names.iter().all(is_name) {
            return Err(GrantPathError(grant.path.clone()));
        }
        let clients =
            grant.clients.map(|prefix| prefix.to_string().replacen('/', "_", 1)).unwrap_or_default();
        let fields = format!("{}~{}~{clients}", names.len(), grant.expires_unix_s);
        let keys = self.keys.read().unwrap_or_else(PoisonError::into_inner);
        let signature = hmac::sign(&keys[0], message(path, &fields).as_bytes());
        Ok(format!("{MARK}{fields}~{}", BASE64.encode(signature)))
    }

    /// Checks the signature of a target, a path with query. Returns the target without the
    /// signature.
    ///
    /// Errors: [`SignatureError`].
    /// Cost: one HMAC of a few hundred bytes for each secret, compared in constant time.
    pub fn check<'a>(
        &self,
        target: &'a str,
        now_unix_s: u64,
        from: IpAddr,
    ) -> Result<&'a str, SignatureError> {
        let signed = read(target).ok_or(SignatureError::Missing)??;
        let covered = covered(signed.path, signed.depth).ok_or(SignatureError::Bad)?;
        let message = message(covered, signed.fields);
        let keys = self.keys.read().unwrap_or_else(PoisonError::into_inner);
        let is_good = |key: &hmac::Key| hmac::verify(key, message.as_bytes(), &signed.signature).is_ok();
        if !keys.iter().any(is_good) {
            return Err(SignatureError::Bad);
        }
        if now_unix_s >= signed.expires_unix_s {
            return Err(SignatureError::Expired(signed.expires_unix_s));
        }
        if signed.clients.is_some_and(|clients| !clients.contains(from.to_canonical())) {
            return Err(SignatureError::OtherClient(from));
        }
        Ok(signed.path)
    }
}

fn keys(text: &str) -> Result<Vec<hmac::Key>, SecretFileError> {
    let mut keys = Vec::new();
    for (line, secret) in (1..).zip(text.lines().map(str::trim)) {
        if secret.is_empty() || secret.starts_with('#') {
            continue;
        }
        let is_secret = SECRET_BYTES.contains(&secret.len()) && secret.bytes().all(|b| b.is_ascii_graphic());
        if !is_secret {
            return Err(SecretFileError::BadSecret(line, secret.len()));
        }
        if keys.len() == SECRETS_MAX {
            return Err(SecretFileError::TooMany);
        }
        keys.push(hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes()));
    }
    if keys.is_empty() { Err(SecretFileError::Empty) } else { Ok(keys) }
}

/// Checks an arbitrary target with a fixed secret, for fuzz targets. Returns whether its signature
/// is valid.
///
/// Panics: if a new signature for the grant of an accepted target is not accepted.
#[doc(hidden)]
pub fn exercise(bytes: &[u8]) -> bool {
    let secrets = SigningSecrets::read("0123456789abcdef0123456789abcdef").expect("a secret");
    let Ok(target) = std::str::from_utf8(bytes) else { return false };
    let from = IpAddr::from([192, 0, 2, 1]);
    let Ok(path) = secrets.check(target, 0, from) else { return false };
    let signed = read(target).expect("it was taken").expect("it was taken");
    let path_covered = covered(path, signed.depth).expect("it was taken");
    let grant = Grant {
        path: if path_covered.is_empty() { "/".to_owned() } else { path_covered.to_owned() },
        expires_unix_s: signed.expires_unix_s,
        clients: signed.clients,
    };
    // A path such as `//x` can be covered by a check, but cannot be signed.
    if let Ok(again) = secrets.sign(&grant) {
        let same = format!("{again}{path}");
        assert!(secrets.check(&same, 0, from) == Ok(path) || grant.path.ends_with('/'), "{target}");
    }
    true
}

#[cfg(test)]
mod tests;
