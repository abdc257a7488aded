//! Dates of segments (EXT-X-PROGRAM-DATE-TIME).
//!
//! Source: ISO 8601, in the profile of draft-pantos-hls-rfc8216bis, section 4.4.4.6. Leaves out:
//! dates before 1970. Read [`DateTime`].

use std::fmt;
use time::OffsetDateTime;
use time::format_description::well_known::{Iso8601, Rfc3339};

/// Latest date that can be written: the end of the year 9999.
const UNIX_MS_MAX: u64 = 253_402_300_799_999;

/// A date with its time of day.
///
/// Units: milliseconds since the beginning of 1970 (UTC).
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DateTime(u64);

impl DateTime {
    /// The date `unix_ms` milliseconds after the beginning of 1970. Returns `None` beyond the year
    /// 9999.
    pub const fn from_unix_ms(unix_ms: u64) -> Option<Self> {
        if unix_ms <= UNIX_MS_MAX { Some(Self(unix_ms)) } else { None }
    }
    /// Milliseconds since the beginning of 1970.
    pub const fn as_unix_ms(self) -> u64 {
        self.0
    }
}

impl fmt::Display for DateTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let date = OffsetDateTime::from_unix_timestamp_nanos(i128::from(self.0) * 1_000_000);
        let text = date.ok().and_then(|date| date.format(&Rfc3339).ok());
        f.write_str(&text.expect("dates up to the year 9999 have a text form"))
    }
}

/// Reads a date with an offset from UTC (`Z`, `+01:00` or `+0100`), to a millisecond. Returns
/// `None` for other text, and for dates before 1970.
///
/// ```
/// use anabranch_media::hls::read_date_time;
/// let date = read_date_time("2026-01-02T04:04:05.678+0100").expect("a date");
/// assert_eq!(date.to_string(), "2026-01-02T03:04:05.678Z");
/// ```
pub fn read_date_time(text: &str) -> Option<DateTime> {
    let date = OffsetDateTime::parse(text, &Iso8601::PARSING).ok()?;
    let unix_ms = date.unix_timestamp_nanos().checked_div(1_000_000)?;
    DateTime::from_unix_ms(u64::try_from(unix_ms).ok()?)
}
