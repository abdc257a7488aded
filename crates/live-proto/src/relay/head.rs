//! The head of an answer: status, length, validator, and freshness.
//!
//! Source: RFC 9110 (8.8.3 entity tags, 14 ranges), RFC 9111 (4.2 freshness, 5.1 Age, 5.2
//! Cache-Control). Leaves out: `Expires`; `Vary`, because requests to parents have no header that
//! could vary; revalidation.

use anabranch_units::Duration;

/// Headers that the relay forwards to viewers, in lower case. `Age`, `Content-Length` and
/// `Content-Range` are computed for each viewer. All other headers are dropped.
pub const PASSED_HEADERS: [&str; 9] = [
    "cache-control",
    "content-disposition",
    "content-encoding",
    "content-language",
    "content-type",
    "date",
    "etag",
    "expires",
    "last-modified",
];
/// Upper limit of `max-age` and `Age`, in seconds: one day, longer than any live window.
const AGE_S_MAX: u64 = 86_400;

/// Head of an answer from a parent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// HTTP status.
    pub status: u16,
    /// Length of the body in bytes. `None` if the parent did not announce it.
    pub length: Option<u64>,
    /// Range of a 206 answer.
    pub range: Option<ContentRange>,
    /// Headers of [`PASSED_HEADERS`], with names in lower case.
    pub headers: Vec<(&'static str, String)>,
    /// Age at the parent. Zero if absent or unreadable.
    pub age: Duration,
    /// Permissions from `Cache-Control`.
    pub cache: CacheControl,
}

/// Range of a 206 answer: `bytes first-last/total`.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct ContentRange {
    /// Position of the first byte.
    pub first: u64,
    /// Position of the last byte.
    pub last: u64,
    /// Length of the whole object, if known.
    pub total: Option<u64>,
}

/// Directives of `Cache-Control` that a shared cache obeys.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct CacheControl {
    /// `s-maxage`, else `max-age`.
    pub max_age: Option<Duration>,
    /// `no-cache`: no reuse after the transfer, because the relay does not revalidate.
    pub is_no_cache: bool,
    /// `no-store` or `private`: only viewers that were already waiting share the answer.
    pub is_unshared: bool,
    /// Whether a `Cache-Control` header was present.
    pub is_present: bool,
}

impl Head {
    /// Creates a head with this status and no headers.
    pub fn new(status: u16) -> Self {
        Self {
            status,
            length: None,
            range: None,
            headers: Vec::new(),
            age: Duration::ZERO,
            cache: CacheControl::default(),
        }
    }

    /// Reads one header, with a name in any case. Headers that the relay does not use are ignored.
    pub fn read_header(&mut self, name: &str, value: &str) {
        let lower = name.to_ascii_lowercase();
        match &*lower {
            "content-length" => self.length = decimal(value),
            "content-range" => self.range = ContentRange::read(value),
            "age" => self.age = seconds(value).unwrap_or(Duration::ZERO),
            _ => {}
        }
        if lower == "cache-control" {
            self.cache.read(value);
        }
        if let Some(known) = PASSED_HEADERS.iter().find(|known| **known == lower) {
            self.headers.push((known, value.to_owned()));
        }
    }

    /// The first value of a header in [`PASSED_HEADERS`], by its name in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| *known == name).map(|(_, value)| &**value)
    }

    /// The entity tag, if it is strong (RFC 9110, section 8.8.3).
    pub fn strong_etag(&self) -> Option<&str> {
        self.header("etag").filter(|tag| tag.starts_with('"'))
    }

    /// Length of the whole object: for 206 from the range, otherwise the length of the body.
    pub fn total(&self) -> Option<u64> {
        if self.status == 206 { self.range.and_then(|range| range.total) } else { self.length }
    }

    /// Whether `other`, the head of another leg, can describe the same bytes. Strong entity tags,
    /// lengths, types and encodings must not differ.
    pub fn agrees_with(&self, other: &Self) -> bool {
        fn same<T: PartialEq>(a: Option<T>, b: Option<T>) -> bool {
            a.is_none() || b.is_none() || a == b
        }
        same(self.strong_etag(), other.strong_etag())
            && same(self.total(), other.total())
            && self.header("content-encoding") == other.header("content-encoding")
            && self.header("content-type") == other.header("content-type")
    }

    /// Remaining freshness lifetime of the answer when its head arrives. `unmarked` applies to an
    /// answer without `Cache-Control`.
    pub fn freshness(&self, unmarked: Duration) -> Duration {
        let cache = &self.cache;
        if cache.is_no_cache || cache.is_unshared {
            return Duration::ZERO;
        }
        let lifetime = if cache.is_present { cache.max_age.unwrap_or(Duration::ZERO) } else { unmarked };
        Duration::from_ps(lifetime.as_ps().saturating_sub(self.age.as_ps()))
    }
}

impl CacheControl {
    /// Adds the directives of one header line.
    pub fn read(&mut self, line: &str) {
        self.is_present = true;
        let mut shared_age = None;
        for directive in line.split(',').map(str::trim) {
            let (name, value) = directive.split_once('=').unwrap_or((directive, ""));
            let value = value.trim().trim_matches('"');
            match &*name.trim().to_ascii_lowercase() {
                "no-store" | "private" => self.is_unshared = true,
                "no-cache" => self.is_no_cache = true,
                // An unreadable age counts as zero (RFC 9111, section 4.2.1).
                "s-maxage" => shared_age = Some(seconds(value).unwrap_or(Duration::ZERO)),
                "max-age" => {
                    let age = seconds(value).unwrap_or(Duration::ZERO);
                    self.max_age = Some(self.max_age.map_or(age, |held| held.min(age)));
                }
                _ => {}
            }
        }
        self.max_age = shared_age.or(self.max_age);
    }
}

impl ContentRange {
    /// Reads `bytes first-last/total`, with `*` for an unknown total.
    pub fn read(value: &str) -> Option<Self> {
        let (span, total) = value.trim().strip_prefix("bytes ")?.split_once('/')?;
        let (first, last) = span.split_once('-')?;
        let (first, last) = (decimal(first)?, decimal(last)?);
        let total = if total == "*" { None } else { Some(decimal(total)?) };
        (first <= last && total.is_none_or(|total| last < total)).then_some(Self { first, last, total })
    }
}

/// A viewer's `Range` header with one range.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum ByteRange {
    /// From a position to another position, or to the end.
    From(u64, Option<u64>),
    /// The last bytes of the object: their number.
    Last(u64),
}

impl ByteRange {
    /// Reads `bytes=first-last`, `bytes=first-` or `bytes=-count`. `None` for other values,
    /// including several ranges; the header is then ignored (RFC 9110, section 14.2).
    pub fn read(value: &str) -> Option<Self> {
        let (first, last) = value.trim().strip_prefix("bytes=")?.split_once('-')?;
        match (first, last) {
            ("", last) => decimal(last).map(Self::Last),
            (first, "") => Some(Self::From(decimal(first)?, None)),
            (first, last) => {
                let (first, last) = (decimal(first)?, decimal(last)?);
                (first <= last).then_some(Self::From(first, Some(last)))
            }
        }
    }

    /// The range in an object of this length: the first position, and the position after the last.
    ///
    /// Errors: `None` if no byte of the object is in the range.
    pub fn within(self, length: u64) -> Option<(u64, u64)> {
        let (first, end) = match self {
            Self::From(first, last) => {
                (first, last.map_or(length, |last| last.saturating_add(1).min(length)))
            }
            Self::Last(count) => (length.saturating_sub(count), length),
        };
        (first < end).then_some((first, end))
    }
}

fn decimal(text: &str) -> Option<u64> {
    let text = text.trim();
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    text.parse().ok()
}

fn seconds(text: &str) -> Option<Duration> {
    let text = text.trim();
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    // A number beyond the type counts as a long time, not as an error (RFC 9111, section 1.2.2).
    let secs = text.parse::<u64>().unwrap_or(u64::MAX);
    Some(Duration::from_secs(secs.min(AGE_S_MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn head(headers: &[(&str, &str)]) -> Head {
        let mut head = Head::new(200);
        for (name, value) in headers {
            head.read_header(name, value);
        }
        head
    }

    #[test]
    fn freshness_is_max_age_minus_age() {
        let unmarked = Duration::from_secs(1);
        let fresh = |headers: &[(&str, &str)]| head(headers).freshness(unmarked).as_ps() / 1_000_000_000_000;
        assert_eq!(fresh(&[("Cache-Control", "public, max-age=60"), ("Age", "20")]), 40);
        assert_eq!(fresh(&[("cache-control", "max-age=60, s-maxage=5")]), 5);
        assert_eq!(fresh(&[("cache-control", "max-age=60"), ("age", "61")]), 0);
        assert_eq!(fresh(&[("cache-control", "max-age=60, no-cache")]), 0);
        assert_eq!(fresh(&[("cache-control", "private, max-age=60")]), 0);
        assert_eq!(fresh(&[("cache-control", "max-age=x")]), 0);
        assert_eq!(fresh(&[("cache-control", "public")]), 0);
        assert_eq!(fresh(&[]), 1);
        assert_eq!(fresh(&[("cache-control", "max-age=99999999999999999999")]), 86_400);
    }

    #[test]
    fn ranges_are_clipped_to_the_object() {
        let bytes = |text, length| ByteRange::read(text).and_then(|range| range.within(length));
        assert_eq!(bytes("bytes=0-9", 100), Some((0, 10)));
        assert_eq!(bytes("bytes=90-200", 100), Some((90, 100)));
        assert_eq!(bytes("bytes=90-", 100), Some((90, 100)));
        assert_eq!(bytes("bytes=-10", 100), Some((90, 100)));
        assert_eq!(bytes("bytes=100-", 100), None);
        assert_eq!(bytes("bytes=-0", 100), None);
        for bad in ["bytes=5-4", "bytes=1-2,4-5", "items=0-1", "bytes=-", "bytes=a-"] {
            assert_eq!(ByteRange::read(bad), None, "{bad}");
        }
        let range = ContentRange { first: 2, last: 4, total: Some(5) };
        assert_eq!(ContentRange::read("bytes 2-4/5"), Some(range));
        assert_eq!(ContentRange::read("bytes 2-5/5"), None);
    }

    #[test]
    fn heads_of_different_bytes_disagree() {
        let a = head(&[("etag", "\"1\""), ("content-length", "5")]);
        assert!(a.agrees_with(&head(&[("content-length", "5")])));
        assert!(a.agrees_with(&head(&[("etag", "W/\"2\""), ("content-length", "5")])));
        assert!(!a.agrees_with(&head(&[("etag", "\"2\""), ("content-length", "5")])));
        assert!(!a.agrees_with(&head(&[("content-length", "6")])));
        assert!(!a.agrees_with(&head(&[("content-encoding", "gzip")])));
    }

    proptest! {
        #[test]
        fn random_headers_cause_no_panic(name in "[a-zA-Z-]{0,20}", value in any::<String>()) {
            for name in [&*name, "cache-control", "age", "content-range", "content-length"] {
                head(&[(name, &value)]);
            }
            let _ = ByteRange::read(&value);
        }
    }
}
