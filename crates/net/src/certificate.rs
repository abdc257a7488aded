//! Facts of a certificate that webpki does not expose: its validity, and its IP addresses.
//!
//! Source: RFC 5280, sections 4.1 and 4.2.1.6; DER as in X.690. Use these readers only for
//! certificates that webpki has verified, because they verify nothing themselves. Leaves out: names
//! ([`crate::tls::peer_identity`]). Read [`CertificateFacts`] first.

use std::net::IpAddr;
use time::{Date, Month, OffsetDateTime, Time};

/// Validity and addresses of a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFacts {
    /// First moment of validity.
    pub begin: OffsetDateTime,
    /// Last moment of validity.
    pub end: OffsetDateTime,
    /// IP addresses among the subject alternative names.
    pub addresses: Vec<IpAddr>,
}

/// Reader of consecutive DER elements.
struct Elements<'a>(&'a [u8]);

const INTEGER: u8 = 0x02;
const OCTETS: u8 = 0x04;
const OBJECT: u8 = 0x06;
const UTC_TIME: u8 = 0x17;
const LONG_TIME: u8 = 0x18;
const SEQUENCE: u8 = 0x30;
const VERSION: u8 = 0xa0;
const EXTENSIONS: u8 = 0xa3;
/// Tag of an IP address among the subject alternative names.
const ADDRESS: u8 = 0x87;
/// Object identifier 2.5.29.17: subject alternative names.
const ALTERNATIVE_NAMES: [u8; 3] = [0x55, 0x1d, 0x11];

impl<'a> Elements<'a> {
    /// Returns the next element's tag and content.
    fn next(&mut self) -> Option<(u8, &'a [u8])> {
        let (&tag, rest) = self.0.split_first()?;
        let (&first, rest) = rest.split_first()?;
        let (length, rest) = match first {
            0..=0x7f => (usize::from(first), rest),
            0x81..=0x84 => {
                let (bytes, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
                (bytes.iter().fold(0, |length, byte| length << 8 | usize::from(*byte)), rest)
            }
            _ => return None,
        };
        let (content, rest) = rest.split_at_checked(length)?;
        self.0 = rest;
        Some((tag, content))
    }

    /// Returns the next element's content; `None` if its tag differs from `tag`.
    fn expect(&mut self, tag: u8) -> Option<&'a [u8]> {
        self.next().and_then(|(found, content)| (found == tag).then_some(content))
    }
}

impl CertificateFacts {
    /// Reads the facts of the certificate in `der`; `None` if it is invalid.
    pub fn of(der: &[u8]) -> Option<Self> {
        let mut signed = Elements(Elements(der).expect(SEQUENCE)?);
        let mut fields = Elements(signed.expect(SEQUENCE)?);
        let (tag, _) = fields.next()?;
        if tag == VERSION {
            fields.expect(INTEGER)?;
        }
        // The signature algorithm and the issuer lie between the serial number and the validity.
        fields.expect(SEQUENCE)?;
        fields.expect(SEQUENCE)?;
        let mut validity = Elements(fields.expect(SEQUENCE)?);
        let (begin, end) = (moment(validity.next()?)?, moment(validity.next()?)?);
        let mut addresses = Vec::new();
        while let Some((tag, content)) = fields.next() {
            if tag == EXTENSIONS {
                let mut extensions = Elements(Elements(content).expect(SEQUENCE)?);
                while let Some(extension) = extensions.expect(SEQUENCE) {
                    addresses.extend(addresses_in(extension).into_iter().flatten());
                }
            }
        }
        Some(Self { begin, end, addresses })
    }
}

/// The IP addresses in an extension; `None` if it is not the subject alternative names.
fn addresses_in(extension: &[u8]) -> Option<Vec<IpAddr>> {
    let mut parts = Elements(extension);
    if parts.expect(OBJECT)? != ALTERNATIVE_NAMES {
        return None;
    }
    let content = loop {
        // The flag of a critical extension may precede the content.
        if let (OCTETS, content) = parts.next()? {
            break content;
        }
    };
    let mut names = Elements(Elements(content).expect(SEQUENCE)?);
    let mut addresses = Vec::new();
    while let Some((tag, content)) = names.next() {
        if tag == ADDRESS {
            let four = <[u8; 4]>::try_from(content).map(IpAddr::from);
            addresses.extend(four.or_else(|_| <[u8; 16]>::try_from(content).map(IpAddr::from)).ok());
        }
    }
    Some(addresses)
}

/// Parses a time: `YYMMDDHHMMSSZ` or `YYYYMMDDHHMMSSZ`.
fn moment((tag, content): (u8, &[u8])) -> Option<OffsetDateTime> {
    let text = std::str::from_utf8(content).ok()?.strip_suffix('Z')?;
    let (year, rest) = match tag {
        UTC_TIME => {
            let (year, rest) = text.split_at_checked(2)?;
            let year = digits(year)?;
            (if year < 50 { 2000 + year } else { 1900 + year }, rest)
        }
        LONG_TIME => {
            let (year, rest) = text.split_at_checked(4)?;
            (digits(year)?, rest)
        }
        _ => return None,
    };
    let mut pairs = [0; 5];
    let mut rest = rest;
    for pair in &mut pairs {
        let (two, after) = rest.split_at_checked(2)?;
        (*pair, rest) = (u8::try_from(digits(two)?).ok()?, after);
    }
    let [month, day, hour, minute, second] = pairs;
    let date = Date::from_calendar_date(year, Month::try_from(month).ok()?, day).ok()?;
    let time = Time::from_hms(hour, minute, second).ok()?;
    rest.is_empty().then_some(OffsetDateTime::new_utc(date, time))
}

fn digits(text: &str) -> Option<i32> {
    text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok())?
}

/// Formats a moment for people and files: `2026-11-23T10:00:00Z`. Source: RFC 3339, to the second.
pub(crate) fn written(at: OffsetDateTime) -> String {
    let at = at.to_offset(time::UtcOffset::UTC);
    format!(
        "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}Z",
        at.year(),
        u8::from(at.month()),
        at.day(),
        at.hour(),
        at.minute(),
        at.second()
    )
}

/// Inverse of [`written`]; `None` for texts that [`written`] never writes.
pub(crate) fn read(text: &str) -> Option<OffsetDateTime> {
    // Removes the separators, and leaves the digits.
    let bare: String = text.chars().filter(|c| !matches!(c, '-' | ':' | 'T')).collect();
    moment((LONG_TIME, bare.as_bytes())).filter(|at| written(*at) == text)
}

/// Exercise for the fuzz target and its corpus's test: reads the facts of a DER certificate, and
/// `bytes` as a time. Returns true if they are a certificate.
///
/// Panics: if a reader panics, or a time is not read as written.
#[doc(hidden)]
pub fn exercise(bytes: &[u8]) -> bool {
    // The readers check the format themselves; here they must only not panic.
    let _ = std::str::from_utf8(bytes).ok().and_then(read);
    let Some(facts) = CertificateFacts::of(bytes) else { return false };
    for at in [facts.begin, facts.end] {
        assert_eq!(read(&written(at)), Some(at));
    }
    assert!(
        facts.addresses.len() <= bytes.len() / 6,
        "an address has a tag, a length and four bytes at least"
    );
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::{SetRequest, make_set_at};
    use crate::party::examples::HAUL;
    use rustls::pki_types::CertificateDer;
    use rustls::pki_types::pem::PemObject as _;
    use time::Duration;

    fn controller_at(now: OffsetDateTime, valid_days: u32) -> CertificateDer<'static> {
        let request = SetRequest {
            system: HAUL,
            sites: vec![],
            operators: vec![],
            controller_hosts: vec!["control.example".into(), "10.1.2.3".into(), "2001:db8::1".into()],
            valid_days,
        };
        let set = make_set_at(&request, now).expect("a good request");
        CertificateDer::from_pem_slice(set.files[1].certificate_pem.as_bytes()).expect("just made")
    }

    #[test]
    fn certificate_facts_match_the_requested_dates_and_addresses() {
        // The year has two digits before 2050, and four from then on.
        for now in ["2026-11-23T10:11:12Z", "2049-12-20T23:59:59Z", "2051-03-01T00:30:00Z"] {
            let now = read(now).expect("a moment");
            let der = controller_at(now, 30);
            let facts = CertificateFacts::of(&der).expect("a certificate");
            assert_eq!(facts.begin, now - Duration::HOUR);
            assert_eq!(facts.end, now - Duration::HOUR + Duration::days(30));
            let expected = ["127.0.0.1", "::1", "10.1.2.3", "2001:db8::1"];
            assert_eq!(facts.addresses, expected.map(|a| a.parse::<IpAddr>().expect("an address")));
        }
    }

    #[test]
    fn cut_or_changed_certificates_never_panic() {
        let der = controller_at(OffsetDateTime::now_utc(), 30);
        for length in 0..der.len() {
            assert_eq!(CertificateFacts::of(&der[..length]), None, "the first length is of the whole");
            for value in [0, 1, 0x7f, 0x80, 0x84, 0xff] {
                let mut changed = der.to_vec();
                changed[length] = value;
                let _ = CertificateFacts::of(&changed);
            }
        }
    }

    #[test]
    fn moments_parse_as_they_were_written() {
        for text in ["1970-01-01T00:00:00Z", "2026-02-28T23:59:59Z", "2400-02-29T12:00:00Z"] {
            assert_eq!(written(read(text).expect("a moment")), text);
        }
        for bad in
            ["", "2026-11-23", "2026-13-01T00:00:00Z", "2026-11-23T24:00:00Z", "2026-1-23T10:00:00Z", "٢026"]
        {
            assert_eq!(read(bad), None, "{bad}");
        }
    }
}
