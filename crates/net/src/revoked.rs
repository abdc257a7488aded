//! Revocation list: certificates that are no longer valid although they have not expired, in a file
//! beside `ca.pem`.
//!
//! Each line is `anabranch:SYSTEM:ROLE:NAME MOMENT`: certificates of this holder made until MOMENT
//! are refused, later ones are accepted. Without MOMENT all certificates of the holder are refused.
//! Empty lines, and text after a `#`, are ignored. The file is not a CRL (RFC 5280, section 5), for
//! two reasons. An operator who notices a stolen key can read and extend this list without the
//! authority's key, and the list cannot expire. Read [`RevocationList`] first.

use crate::certificate::{read, written};
use crate::party::{self, PeerIdentity};
use std::collections::BTreeMap;
use time::OffsetDateTime;

/// Maximum size of the file in bytes.
pub const FILE_BYTES_MAX: u64 = 1 << 20;

/// Holders whose certificates are refused, with the latest refused time of issue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RevocationList {
    /// Latest time of issue of the refused certificates, by the holder's [`party::uri`]; `None` for
    /// all certificates of the holder.
    until: BTreeMap<String, Option<OffsetDateTime>>,
}

/// A line that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadLine {
    /// Number of the line, from 1.
    pub line: usize,
    /// Rule that the line breaks.
    pub reason: &'static str,
}

impl std::fmt::Display for BadLine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "line {}: {}: write lines as `anabranch:replicate:site:NAME 2026-11-23T10:00:00Z`",
            self.line, self.reason
        )
    }
}
impl std::error::Error for BadLine {}

impl RevocationList {
    /// Number of holders in the list.
    pub fn len(&self) -> usize {
        self.until.len()
    }

    /// Returns true if the list is empty.
    pub fn is_empty(&self) -> bool {
        self.until.is_empty()
    }

    /// Returns true if the list refuses a certificate of `holder` made at `made`.
    pub fn denies(&self, holder: &PeerIdentity, made: OffsetDateTime) -> bool {
        self.of(holder).is_some_and(|until| until.is_none_or(|until| made <= until))
    }

    /// Latest time of issue at which a certificate of `holder` is refused; `Some(None)` if all are
    /// refused, `None` if the list does not name the holder.
    pub(crate) fn of(&self, holder: &PeerIdentity) -> Option<Option<OffsetDateTime>> {
        self.until.get(&party::uri(holder.system, holder.role, &holder.name)).copied()
    }

    fn add(&mut self, holder: String, until: Option<OffsetDateTime>) {
        self.until
            .entry(holder)
            .and_modify(|old| *old = old.and_then(|old| Some(old.max(until?))))
            .or_insert(until);
    }
}

impl std::str::FromStr for RevocationList {
    type Err = BadLine;

    fn from_str(text: &str) -> Result<Self, BadLine> {
        let mut revoked = Self::default();
        for (i, line) in text.lines().enumerate() {
            let bad = |reason| BadLine { line: i + 1, reason };
            let mut words = line.split('#').next().unwrap_or_default().split_whitespace();
            let Some(holder) = words.next() else { continue };
            if party::of_uri(holder).is_none() {
                return Err(bad("begins with no holder"));
            }
            let until =
                words.next().map(|w| read(w).ok_or(bad("has no moment after the holder"))).transpose()?;
            if words.next().is_some() {
                return Err(bad("goes on after the moment"));
            }
            revoked.add(holder.to_owned(), until);
        }
        Ok(revoked)
    }
}

/// The line that refuses certificates of `holder` made until `until`.
pub(crate) fn line(holder: &PeerIdentity, until: OffsetDateTime) -> String {
    format!("{} {}\n", party::uri(holder.system, holder.role, &holder.name), written(until))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::Role;
    use crate::party::examples::{HAUL, PULL};
    use time::Duration;

    fn site(name: &str) -> PeerIdentity {
        PeerIdentity { system: HAUL, role: Role::Site, name: name.into() }
    }

    #[test]
    fn certificates_made_by_the_revocation_time_are_refused() {
        let at = read("2026-11-23T10:00:00Z").expect("a moment");
        let first = line(&site("New York"), at);
        let text = format!("# lost on a train\n\n{first}anabranch:haul:site:b # for good\n");
        let revoked: RevocationList = text.parse().expect("good lines");
        assert_eq!(revoked.len(), 2);
        assert!(revoked.denies(&site("New York"), at));
        assert!(!revoked.denies(&site("New York"), at + Duration::SECOND));
        assert!(revoked.denies(&site("b"), at + Duration::days(9_999)), "no moment: for good");
        for other in [
            site("c"),
            PeerIdentity { role: Role::Operator, ..site("b") },
            PeerIdentity { system: PULL, ..site("b") },
        ] {
            assert!(!revoked.denies(&other, at), "{other}");
        }
        // The latest time applies in any order of lines; a line without a time refuses
        // all certificates.
        for (a, b) in [(Some(at), None), (Some(at), Some(at + Duration::HOUR))] {
            let mut both = RevocationList::default();
            both.add("x".into(), a);
            both.add("x".into(), b);
            let mut turned = RevocationList::default();
            turned.add("x".into(), b);
            turned.add("x".into(), a);
            assert_eq!((both.until["x"], turned.until["x"]), (b, b));
        }
    }

    #[test]
    fn bad_line_is_reported_by_its_number() {
        for (text, line) in [
            ("site:a", 1),
            ("# good\nanabranch:haul:site:a yesterday", 2),
            ("anabranch:haul:site:a 2026-11-23T10:00:00Z more", 1),
            ("anabranch:weave:site:a", 1),
            ("anabranch:haul:site:%41", 1),
        ] {
            let error = text.parse::<RevocationList>().expect_err("bad");
            assert_eq!(error.line, line, "{error}");
            assert!(!error.to_string().contains('\n'));
        }
    }
}
