//! Exercises of the parsers of untrusted bytes, for fuzz targets: queries and reports of players,
//! tables of prefixes, playlists, fragmented MP4.
//!
//! Leaves out: the inputs (`fuzz/`). Read [`exercise_queries`] first.

use crate::cmaf::{CodecInfo, CutConfig, Cutter, Item, MediaTime, StreamReader, Timeline};
use crate::cmcd::Report;
use crate::hls::{MediaPlaylist, MultivariantPlaylist};
use crate::prefixes::PrefixTable;
use crate::steering::{Dialect, Pathway, PathwayTable, SteeringManifest, SteeringQuery, Viewer};
use anabranch_units::{BitRate, Duration};
use std::collections::{BTreeMap, BTreeSet};

/// Reads a steering query; a leading `D` stands for DASH. Returns whether the query is answered.
///
/// Panics: if the reload URI changes the viewer or loses a parameter, or if an answer names a
/// pathway twice.
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
    let read = |query: &str| SteeringQuery::read(dialect, query, defaults());
    let Ok(asked) = read(query) else { return false };
    let pathway = Pathway { id: "a".to_owned(), hosts: BTreeMap::from([(1, "a1.example".to_owned())]) };
    let pathways = PathwayTable::from([(0, pathway)]);
    let manifest = SteeringManifest::new([(0, 1), (0, 2)], &pathways, &BTreeSet::new(), &asked, 300);
    let manifest = manifest.expect("the table has a pathway");
    let ids: BTreeSet<&String> = manifest.pathway_priority.iter().collect();
    assert_eq!(ids.len(), manifest.pathway_priority.len(), "a pathway is named once");
    let again = read(manifest.reload_uri.trim_start_matches('?')).expect("the reload URI is a question");
    assert_eq!((again.viewer, again.others), (asked.viewer, asked.others));
    true
}

/// Reads a player's report (CMCD). Returns whether the report is valid and names a pathway or a
/// host.
pub fn exercise_cmcd(bytes: &[u8]) -> bool {
    let report = Report::read(&String::from_utf8_lossy(bytes));
    report.is_some_and(|report| report.cdn.is_some() || report.host.is_some())
}

/// Reads a table of prefixes. Returns whether the table is valid.
pub fn exercise_prefixes(bytes: &[u8]) -> bool {
    let Ok(table) = PrefixTable::read(bytes) else { return false };
    for address in ["192.0.2.1", "2001:db8::1", "::ffff:10.1.2.3"] {
        let _ = table.lookup(address.parse().expect("an address"));
    }
    true
}

/// Reads a media or multivariant playlist. Returns whether the playlist is valid.
///
/// Panics: if a playlist changes when it is written and read again, or if a delta update does not
/// resolve to its original playlist.
pub fn exercise_playlists(bytes: &[u8]) -> bool {
    if let Ok(playlist) = MultivariantPlaylist::read(bytes) {
        let text = playlist.write();
        let again = MultivariantPlaylist::read(text.as_bytes()).expect("a written playlist is one");
        assert_eq!(again.write(), text);
        return true;
    }
    let Ok(playlist) = MediaPlaylist::read(bytes) else { return false };
    let again = MediaPlaylist::read(playlist.write().as_bytes()).expect("a written playlist is one");
    assert_eq!(again, playlist);
    if let Some(delta) = playlist.delta().filter(|_| playlist.skipped_segments == 0) {
        assert_eq!(delta.resolve(&playlist).as_ref(), Ok(&playlist));
    }
    true
}

/// Reads a stream of fragmented MP4. The first byte of `bytes` is the size of the chunks that are
/// read. Returns whether the stream is valid and has samples.
///
/// Panics: if the fragments that are cut from the stream cannot be read.
pub fn exercise_boxes(bytes: &[u8]) -> bool {
    let Some((piece, bytes)) = bytes.split_first() else { return false };
    let _ = CodecInfo::of_init(bytes);
    let config = CutConfig {
        segment_target: Duration::from_secs(2),
        part_target: Duration::from_ms(200),
        fragments_per_part: 2,
        timeline: Timeline::Shared { epoch: MediaTime::from_ns(0) },
    };
    let mut cutter = Cutter::new(config).expect("the settings are in range");
    let mut reader = StreamReader::default();
    let mut is_read = true;
    let mut samples = 0;
    let mut own = StreamReader::default();
    for piece in bytes.chunks(usize::from(*piece).max(1)) {
        is_read &= reader.handle_bytes(piece).is_ok();
        while let Some(item) = reader.poll_item() {
            match item {
                Item::Init(init) => {
                    own.handle_bytes(&init.bytes).expect("it was read before");
                    cutter.handle_init(init);
                }
                Item::Sample(sample) => {
                    samples += 1;
                    is_read &= cutter.handle_sample(sample).is_ok();
                }
            }
        }
        read_cuts(&mut cutter, &mut own);
    }
    cutter.end_segment();
    read_cuts(&mut cutter, &mut own);
    is_read && samples > 0
}

/// Reads all fragments that the cutter has written.
fn read_cuts(cutter: &mut Cutter, reader: &mut StreamReader) {
    while let Some(cut) = cutter.poll_cut() {
        if let crate::cmaf::Cut::Fragment(bytes) = cut {
            reader.handle_bytes(&bytes).expect("a fragment that is written can be read");
            while reader.poll_item().is_some() {}
        }
    }
}

#[cfg(test)]
mod tests {
    use anabranch_testing::replay;

    #[test]
    fn fuzz_corpora_results_match_the_file_names() {
        assert!(replay("media_queries", super::exercise_queries) >= 5);
        assert!(replay("media_cmcd", super::exercise_cmcd) >= 6);
        assert!(replay("media_prefixes", super::exercise_prefixes) >= 3);
        assert!(replay("media_playlists", super::exercise_playlists) >= 12);
        assert!(replay("media_boxes", super::exercise_boxes) >= 8);
    }
}
