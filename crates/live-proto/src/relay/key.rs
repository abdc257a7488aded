//! The key of an object: its path and its delivery directives of low-latency HLS.

use anabranch_media::hls::{DeliveryDirectives, DirectivesError};
use std::fmt;

/// Maximum length of a request target (path with query), in bytes.
pub const TARGET_BYTES_MAX: usize = 2_048;

/// Rule for query parameters that are not delivery directives.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum QueryRule {
    /// Parameters are removed. They neither distinguish objects nor reach the parent.
    #[default]
    Remove,
    /// Parameters are part of the key, in the order of the request, and are sent to the parent.
    Keep,
}

/// The key by which viewers share one upstream request: the path, `_HLS_msn`, `_HLS_part` and
/// `_HLS_skip`.
///
/// Targets with equal directives in a different order have the same key.
/// Source: draft-pantos-hls-rfc8216bis-20, section 6.2.5 (delivery directives).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    path: String,
    directives: DeliveryDirectives,
    /// Other parameters, joined by `&`. Empty under [`QueryRule::Remove`].
    others: String,
}

/// Reason why a request target is not a valid key.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyError {
    /// The target is too long: its length in bytes, above [`TARGET_BYTES_MAX`].
    TooLong(usize),
    /// The path does not begin with `/`, contains characters other than printable ASCII, or has a
    /// segment `.` or `..`.
    BadPath,
    /// The query contains characters other than printable ASCII.
    BadQuery,
    /// The delivery directives are invalid.
    BadDirectives(DirectivesError),
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong(bytes) => write!(f, "target of {bytes} bytes: at most {TARGET_BYTES_MAX}"),
            Self::BadPath => {
                write!(f, "path: must begin with `/`, be printable ASCII and have no segment `.` or `..`")
            }
            Self::BadQuery => write!(f, "query: must be printable ASCII"),
            Self::BadDirectives(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for KeyError {}

impl Key {
    /// Parses a request target such as `/ch/live.m3u8?_HLS_msn=7&_HLS_part=2`.
    ///
    /// Errors: see [`KeyError`].
    pub fn read(target: &str, rule: QueryRule) -> Result<Self, KeyError> {
        if target.len() > TARGET_BYTES_MAX {
            return Err(KeyError::TooLong(target.len()));
        }
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let is_plain = |text: &str| text.bytes().all(|b| b.is_ascii_graphic());
        let has_dots = path.split('/').any(|s| matches!(s, "." | ".."));
        if !path.starts_with('/') || !is_plain(path) || has_dots {
            return Err(KeyError::BadPath);
        }
        if !is_plain(query) {
            return Err(KeyError::BadQuery);
        }
        let pairs = || query.split('&').filter(|pair| !pair.is_empty());
        let halves = pairs().map(|pair| pair.split_once('=').unwrap_or((pair, "")));
        let directives = DeliveryDirectives::read(halves).map_err(KeyError::BadDirectives)?;
        let is_kept = |pair: &&str| {
            let name = pair.split_once('=').map_or(*pair, |(name, _)| name);
            rule == QueryRule::Keep && !matches!(name, "_HLS_msn" | "_HLS_part" | "_HLS_skip")
        };
        let others = pairs().filter(is_kept).collect::<Vec<_>>().join("&");
        Ok(Self { path: path.to_owned(), directives, others })
    }

    /// The path, beginning with `/`.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The path up to and including its last `/`, which the objects of one stream share.
    pub fn folder(&self) -> &str {
        &self.path[..self.path.rfind('/').map_or(0, |at| at + 1)]
    }

    /// Whether the origin may delay the answer until a segment or part is available.
    pub fn is_blocking(&self) -> bool {
        self.directives.msn.is_some()
    }

    /// Whether the request waits for a part, not for a whole segment.
    pub fn names_part(&self) -> bool {
        self.directives.part.is_some()
    }

    /// Whether the path names a playlist or a DASH manifest.
    pub fn is_playlist(&self) -> bool {
        let name = self.path.rsplit('/').next().unwrap_or_default();
        matches!(name.rsplit_once('.'), Some((_, "m3u8" | "mpd")))
    }
}

impl fmt::Display for Key {
    /// Writes the request target for a parent.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.path)?;
        let queries = [self.others.clone(), self.directives.query()];
        let queries = queries.into_iter().filter(|query| !query.is_empty());
        queries.zip(['?', '&']).try_for_each(|(query, mark)| write!(f, "{mark}{query}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn key(target: &str) -> Key {
        Key::read(target, QueryRule::Remove).expect("a good target")
    }

    #[test]
    fn keys_include_delivery_directives_and_kept_queries() {
        assert_eq!(key("/a.m3u8?token=x&_HLS_part=2&_HLS_msn=7"), key("/a.m3u8?_HLS_msn=7&_HLS_part=2"));
        assert_ne!(key("/a.m3u8?_HLS_msn=7"), key("/a.m3u8?_HLS_msn=7&_HLS_part=0"));
        assert_ne!(key("/a.m3u8"), key("/a.m3u8?_HLS_skip=YES"));
        assert_eq!(key("/a.m3u8"), key("/a.m3u8?_HLS_skip=unknown"));
        let kept = |target| Key::read(target, QueryRule::Keep).expect("a good target");
        assert_ne!(kept("/a?x=1"), kept("/a?x=2"));
        assert_eq!(kept("/a?_HLS_msn=1&x=2&y").to_string(), "/a?x=2&y&_HLS_msn=1");
    }

    #[test]
    fn bad_targets_are_refused() {
        let error = |target: &str| Key::read(target, QueryRule::Remove).expect_err("a bad target");
        assert_eq!(error("a"), KeyError::BadPath);
        assert_eq!(error("/a/../b"), KeyError::BadPath);
        assert_eq!(error("/a b"), KeyError::BadPath);
        assert_eq!(error("/a?b=\u{e9}"), KeyError::BadQuery);
        for bad in ["_HLS_msn=-1", "_HLS_msn=+1", "_HLS_msn=", "_HLS_msn=1&_HLS_msn=1", "_HLS_part=1"] {
            assert!(matches!(error(&format!("/a?{bad}")), KeyError::BadDirectives(_)), "{bad}");
        }
        let path = |bytes: usize| format!("/{}", "a".repeat(bytes - 1));
        assert!(Key::read(&path(TARGET_BYTES_MAX), QueryRule::Remove).is_ok());
        assert_eq!(error(&path(TARGET_BYTES_MAX + 1)), KeyError::TooLong(TARGET_BYTES_MAX + 1));
    }

    #[test]
    fn path_without_query_determines_folder_and_kind() {
        assert_eq!(key("/ch/1/live.m3u8?_HLS_msn=3").folder(), "/ch/1/");
        assert!(key("/ch/live.m3u8").is_playlist());
        assert!(!key("/ch.m3u8/part.mp4").is_playlist());
    }

    proptest! {
        #[test]
        fn key_survives_a_text_round_trip(target in "/[a-z/]{0,9}(\\?([a-z]=[0-9]|_HLS_msn=[0-9]{1,3}|&|_HLS_skip=YES){0,5})?") {
            for rule in [QueryRule::Remove, QueryRule::Keep] {
                if let Ok(key) = Key::read(&target, rule) {
                    prop_assert_eq!(Key::read(&key.to_string(), rule), Ok(key));
                }
            }
        }

        #[test]
        fn random_targets_cause_no_panic(target in any::<String>()) {
            let _ = Key::read(&target, QueryRule::Keep);
        }
    }
}
