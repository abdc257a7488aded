//! Common Media Client Data: what players say of how they fare, in the queries of their questions and in reports of their own.
//!
//! A report is a dictionary of structured fields (RFC 9651): `bs` that the buffer has run empty, `rc` the status of a response, `url` or `cdn` whose.
//! What is none of that says nothing. Source: CTA-5004 and CTA-5004-A. Leaves out: what reports count for (`broker_proto::reports`). Read [`read`].

use anabranch_broker_proto::reports::Report;
use anabranch_broker_proto::steering::Catalogue;
use anabranch_media::steering::{host_key, pathway_key};
use anabranch_units::PeerId;
use sfv::{BareItem, Dictionary, ListEntry, Parser};

/// The most reports of a request.
pub const REPORTS_MAX: usize = 1_000;
/// The longest of one.
const REPORT_BYTES_MAX: usize = 4_096;

/// A report, of the network that it names, or of the one that the player plays by.
pub(crate) fn read(text: &str, catalogue: &Catalogue, plays_by: Option<PeerId>) -> Option<Report> {
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
    let starved = match item("bs") {
        Some(BareItem::Boolean(starved)) => *starved,
        _ => false,
    };
    // No response at all is 0; what is not asked for fails nobody.
    let failed = match item("rc") {
        Some(BareItem::Integer(status)) => !(200..400).contains(&i64::from(*status)),
        _ => false,
    };
    let named = text_of("cdn").and_then(|way| pathway_key(catalogue, way));
    let by_host = || text_of("url").and_then(host).and_then(|host| host_key(catalogue, host));
    let network = named.or_else(by_host).or(plays_by)?;
    Some(Report { network, is_good: !starved && !failed })
}

/// The host of an address, without its port.
fn host(url: &str) -> Option<&str> {
    let rest = url.split_once("://")?.1;
    let authority = rest.split(['/', '?', '#']).next()?;
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    Some(host.split_once(':').map_or(host, |(host, _)| host))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contracts::Contracts;

    #[test]
    fn reports_are_of_the_network_that_they_name() {
        let contracts: Contracts =
            "[[network]]\nname = \"a\"\n[[network.cluster]]\nnumber = 1\nhost = \"a1.example\"\n[[network]]\nname = \"b\"\n"
                .parse()
                .expect("it is right");
        let catalogue = contracts.catalogue();
        let of = |text: &str| {
            read(text, &catalogue, Some(PeerId(1))).map(|report| (report.network.0, report.is_good))
        };
        // Version 1, in a query: of the network that the player plays by.
        assert_eq!(of("bl=21300,br=3200,bs,d=4004,mtp=25400,ot=v,sid=\"6e2f\""), Some((1, false)));
        assert_eq!(of("br=3200,mtp=25400"), Some((1, true)));
        // Version 2, an event of its own.
        assert_eq!(of("e=rr,rc=503,ttfb=20,url=\"https://a1.example:443/x.mp4\",v=2"), Some((0, false)));
        assert_eq!(of("e=rr,rc=206,cdn=\"a.1\",br=(3200;v 128;a)"), Some((0, true)));
        assert_eq!(of("e=ps,sta=p,rc=0"), Some((1, false)));
        for wrong in ["=", "bs=?2", "a b c", "\u{e9}"] {
            assert_eq!(of(wrong), None, "{wrong}");
        }
        assert_eq!(read("bs", &catalogue, None), None);
        assert_eq!(of(&format!("x=\"{}\"", "y".repeat(5_000))), None);
    }
}
