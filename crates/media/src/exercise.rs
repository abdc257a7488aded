//! Exercises of the parsers of outside bytes, for fuzz targets: questions of players, their
//! reports, tables of prefixes.
//!
//! Leaves out: the inputs (`fuzz/`). Read [`exercise_queries`] first.

use crate::cmcd::Report;
use crate::prefixes::PrefixTable;
use crate::steering::{Dialect, Pathway, PathwayTable, SteeringManifest, SteeringQuery, Viewer};
use anabranch_units::BitRate;
use std::collections::{BTreeMap, BTreeSet};

/// A question, as its query without escapes; `D` in front stands for DASH. Returns whether the
/// question is answered.
///
/// Panics: if the reload URI changes the viewer, or an answer names a pathway twice.
pub fn exercise_queries(bytes: &[u8]) -> bool {
    let text = String::from_utf8_lossy(bytes);
    let (dialect, query) = match text.strip_prefix('D') {
        Some(query) => (Dialect::Dash, query),
        None => (Dialect::Hls, &*text),
    };
    let defaults = || Viewer {
        location: "somewhere".to_owned(),
        isp: "any".to_owned(),
        number: 7,
        bitrate: BitRate::bps(3_000_000),
    };
    let pairs = |query: &str| -> Vec<(String, String)> {
        let pair = |pair: &str| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            (key.to_owned(), value.to_owned())
        };
        query.split('&').map(pair).collect()
    };
    let read = |pairs: &[(String, String)]| {
        let all = pairs.iter().map(|(key, value)| (&**key, &**value));
        SteeringQuery::read(dialect, query.len(), all, defaults())
    };
    let Ok(asked) = read(&pairs(query)) else { return false };
    let pathway = Pathway { id: "a".to_owned(), hosts: BTreeMap::from([(1, "a1.example".to_owned())]) };
    let pathways = PathwayTable::from([(0, pathway)]);
    let manifest = SteeringManifest::new([(0, 1), (0, 2)], &pathways, &BTreeSet::new(), &asked, 300);
    let manifest = manifest.expect("the table has a pathway");
    let ids: BTreeSet<&String> = manifest.pathway_priority.iter().collect();
    assert_eq!(ids.len(), manifest.pathway_priority.len(), "a pathway is named once");
    // The numbers of the reload URI are plain; its names are escaped.
    let again = pairs(manifest.reload_uri.trim_start_matches('?'));
    let numbers: Vec<_> = again.into_iter().filter(|(key, _)| key == "bitrate" || key == "viewer").collect();
    let again = read(&numbers).expect("the reload URI is a question").viewer;
    assert_eq!((again.bitrate, again.number), (asked.viewer.bitrate, asked.viewer.number));
    true
}

/// A player's report (CMCD). Returns whether it is read and names a pathway or a host.
pub fn exercise_cmcd(bytes: &[u8]) -> bool {
    let report = Report::read(&String::from_utf8_lossy(bytes));
    report.is_some_and(|report| report.cdn.is_some() || report.host.is_some())
}

/// A table of prefixes. Returns whether it is read.
pub fn exercise_prefixes(bytes: &[u8]) -> bool {
    let Ok(table) = PrefixTable::read(bytes) else { return false };
    for address in ["192.0.2.1", "2001:db8::1", "::ffff:10.1.2.3"] {
        let _ = table.lookup(address.parse().expect("an address"));
    }
    true
}

#[cfg(test)]
mod tests {
    use anabranch_testing::replay;

    #[test]
    fn the_corpora_are_as_they_say() {
        assert!(replay("media_queries", super::exercise_queries) >= 5);
        assert!(replay("media_cmcd", super::exercise_cmcd) >= 6);
        assert!(replay("media_prefixes", super::exercise_prefixes) >= 3);
    }
}
