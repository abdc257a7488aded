//! Common Media Client Data (CMCD): reports of players on their playback.
//!
//! A report is a dictionary of structured fields (RFC 9651). Of its keys, [`Report::read`] uses
//! `bs` (buffer starvation), `rc` (status of a response), `cdn` and `url`; it ignores all other
//! keys.
//!
//! Source: CTA-5004 (version 1, in queries) and CTA-5004-A (version 2, reports in event mode).
//! Leaves out: the transport of reports. Read [`Report`].

use sfv::{BareItem, Dictionary, ListEntry, Parser};

/// Maximum number of reports in one request.
pub const REPORTS_MAX: usize = 1_000;
/// Longest report.
pub const REPORT_BYTES_MAX: usize = 4_096;

/// A player's report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Name of a pathway, from the key `cdn`.
    pub cdn: Option<String>,
    /// Host of the requested URL, without its port, from the key `url`.
    pub host: Option<String>,
    /// Whether the buffer did not run empty (`bs`) and no response failed (`rc` from 200 to 399, or
    /// absent).
    pub is_good: bool,
}

impl Report {
    /// Reads a report. Returns `None` for text that is not a dictionary, or is longer than
    /// [`REPORT_BYTES_MAX`].
    ///
    /// Source: CTA-5004-A, keys `bs`, `cdn`, `rc`, `url`; RFC 9651, section 4.2.2 (parsing a
    /// dictionary).
    ///
    /// ```
    /// use anabranch_media::cmcd::Report;
    /// let report = Report::read("e=rr,rc=503,url=\"https://a1.example:443/x.mp4\",v=2").expect("a dictionary");
    /// assert_eq!((report.host.as_deref(), report.is_good), (Some("a1.example"), false));
    /// ```
    pub fn read(text: &str) -> Option<Self> {
        if text.len() > REPORT_BYTES_MAX {
            return None;
        }
        let fields: Dictionary = Parser::new(text).parse().ok()?;
        let item = |key: &str| match fields.get(key) {
            Some(ListEntry::Item(item)) => Some(&item.bare_item),
            _ => None,
        };
        let text_of = |key: &str| match item(key) {
            Some(BareItem::String(text)) => Some(text.as_str()),
            Some(BareItem::Token(text)) => Some(text.as_str()),
            _ => None,
        };
        let is_starved = matches!(item("bs"), Some(BareItem::Boolean(true)));
        // Status 0 reports a request without a response, which has failed.
        let has_failed = match item("rc") {
            Some(BareItem::Integer(status)) => !(200..400).contains(&i64::from(*status)),
            _ => false,
        };
        let host = text_of("url").and_then(host).map(str::to_owned);
        Some(Self { cdn: text_of("cdn").map(str::to_owned), host, is_good: !is_starved && !has_failed })
    }
}

/// The host of a URL, without its port.
fn host(url: &str) -> Option<&str> {
    let rest = url.split_once("://")?.1;
    let authority = rest.split(['/', '?', '#']).next()?;
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    Some(host.split_once(':').map_or(host, |(host, _)| host))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_cmcd_versions_are_read() {
        let of = |text: &str| {
            let report = Report::read(text).expect("it is one");
            (report.cdn.unwrap_or_default(), report.host.unwrap_or_default(), report.is_good)
        };
        let expected = |cdn: &str, host: &str, is_good| (cdn.to_owned(), host.to_owned(), is_good);
        // Version 1, in a query.
        assert_eq!(of("bl=21300,br=3200,bs,d=4004,mtp=25400,ot=v,sid=\"6e2f\""), expected("", "", false));
        assert_eq!(of("br=3200,mtp=25400"), expected("", "", true));
        // Version 2, in event mode.
        let late = of("e=rr,rc=503,ttfb=20,url=\"https://u:p@a1.example:443/x.mp4\",v=2");
        assert_eq!(late, expected("", "a1.example", false));
        assert_eq!(of("e=rr,rc=206,cdn=\"a.1\",br=(3200;v 128;a)"), expected("a.1", "", true));
        assert_eq!(of("e=ps,sta=p,rc=0"), expected("", "", false));
    }

    #[test]
    fn invalid_reports_are_ignored() {
        for wrong in ["=", "bs=?2", "a b c", "\u{e9}", &format!("x=\"{}\"", "y".repeat(5_000))] {
            assert_eq!(Report::read(wrong), None, "{wrong}");
        }
    }
}
