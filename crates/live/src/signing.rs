//! Signed URLs that expire: an edge with secrets serves no others.
//!
//! A signature is the first segment of a path, as in `/~1~1767225600~~SIGNATURE/news/index.m3u8`.
//! Playlists name their resources by relative URIs, so players carry the signature on to every
//! playlist, segment and part, without cookies. The edge removes it: parents and caches of the relay
//! see the path alone.
//!
//! | field | meaning |
//! | --- | --- |
//! | 1 | number of segments of the path, from its begin, that the signature covers; 0 covers all |
//! | 1767225600 | end of its validity, in seconds since 1970 |
//! | empty | prefix of the viewers' addresses, as `192.0.2.0_24`; empty for all |
//! | SIGNATURE | HMAC-SHA256 of the covered path and the fields before, in base64url |
//!
//! Source: RFC 2104 (HMAC), RFC 4648, section 5 (base64url). Leaves out: encryption of the path;
//! revocation, besides a change of the secrets. Read [`SigningSecrets`] and [`Grant`] first.

use anabranch_live_proto::directory::AddressPrefix;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use ring::hmac;
use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, PoisonError, RwLock};

/// Shortest and longest secret, in bytes.
const SECRET_BYTES: std::ops::RangeInclusive<usize> = 32..=256;
/// Secrets that are good at the same time: the present one, and the one before or after it.
pub const SECRETS_MAX: usize = 2;
/// Segments of a path that a signature can cover.
const DEPTH_MAX: usize = 8;
/// Text that begins what is signed: signatures of another use or form are not good here.
const CONTEXT: &str = "anabranch live url 1";
/// Mark of a signature in a path.
const MARK: &str = "/~";

/// Secrets of signed URLs; clones share them.
///
/// A file has one secret in a line, two at most: the first one signs, and both are good. Empty lines
/// and lines that begin with `#` are ignored.
#[derive(Clone)]
pub struct SigningSecrets {
    keys: Arc<RwLock<Vec<hmac::Key>>>,
}

impl fmt::Debug for SigningSecrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SigningSecrets").finish_non_exhaustive()
    }
}

/// A file of secrets that is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SecretFileError {
    /// A secret of other than 32 to 256 printable ASCII characters: line, bytes.
    BadSecret(usize, usize),
    /// More than [`SECRETS_MAX`] secrets.
    TooMany,
    /// No secret.
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

/// Why a request is not served.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SignatureError {
    /// The path has no signature.
    Missing,
    /// The text is no signature, or one by none of the secrets for this path.
    Bad,
    /// The end of its validity, in seconds since 1970, is over.
    Expired(u64),
    /// The viewer's address is outside its prefix.
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

/// A signature's extent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Path whose resources it covers, with everything below: `/news`, or `/` for all.
    pub path: String,
    /// End of its validity, in seconds since 1970.
    pub expires_unix_s: u64,
    /// Addresses of the viewers. `None` for all.
    pub clients: Option<AddressPrefix>,
}

/// A path that no signature can cover.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrantPathError(String);

impl fmt::Display for GrantPathError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = anabranch_units::text::brief(&self.0, 64);
        write!(f, "path `{shown}`: must be `/`, or up to {DEPTH_MAX} names as in /news or /news/main")
    }
}

impl std::error::Error for GrantPathError {}

/// A signature as it is read from a path.
#[derive(Clone, Debug, PartialEq, Eq)]
struct PathSignature<'a> {
    depth: usize,
    expires_unix_s: u64,
    clients: Option<AddressPrefix>,
    /// Fields before the signature, as they are written.
    fields: &'a str,
    signature: [u8; 32],
    /// Path after the signature.
    path: &'a str,
}

/// Splits a target into its signature and its path. `None` for a target that begins with none.
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

/// The first `depth` segments of a path with query. `None` if there are fewer.
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
    /// Reads the text of a file of secrets.
    ///
    /// Errors: [`SecretFileError`].
    pub fn read(text: &str) -> Result<Self, SecretFileError> {
        Ok(Self { keys: Arc::new(RwLock::new(keys(text)?)) })
    }

    /// Takes the secrets of a changed file.
    ///
    /// Errors: [`SecretFileError`]; the secrets stay as they are.
    pub fn replace(&self, text: &str) -> Result<(), SecretFileError> {
        let keys = keys(text)?;
        *self.keys.write().unwrap_or_else(PoisonError::into_inner) = keys;
        Ok(())
    }

    /// The path's first segment for a grant, as `/~1~1767225600~~SIGNATURE`: a path below the grant's
    /// follows it.
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

    /// The target, a path with query, without its signature, if it is good now for this viewer.
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

/// Checks any target with a fixed secret, for fuzz targets. Returns true if its signature is valid.
///
/// Panics: if the grant of an accepted target, signed again, is not accepted.
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
    // A path such as `//x` can be checked but not signed.
    if let Ok(again) = secrets.sign(&grant) {
        let same = format!("{again}{path}");
        assert!(secrets.check(&same, 0, from) == Ok(path) || grant.path.ends_with('/'), "{target}");
    }
    true
}

#[cfg(test)]
mod tests;
