//! Tests of the reader and the writer, with playlists of the draft and of media servers.

use super::*;
use proptest::prelude::*;

/// A playlist recorded from MediaMTX 1.20.1, six commits later, with gohlslib 2.4.2: parts of
/// 200 ms, segments of 2 s, 7 segments.
pub(super) const MEDIAMTX: &str = include_str!("../../tests/hls/mediamtx.m3u8");
/// A playlist in the format of OvenMediaEngine: parts of 0.2 s, segments of 6 s.
const OVEN: &str = include_str!("../../tests/hls/ovenmediaengine.m3u8");
/// A playlist in the format of ffmpeg's `hls` muxer for fragmented MP4.
const FFMPEG: &str = include_str!("../../tests/hls/ffmpeg.m3u8");

fn read(text: &str) -> MediaPlaylist {
    MediaPlaylist::read(text.as_bytes()).expect("the playlist follows the standard")
}

#[test]
fn mediamtx_playlist_is_read() {
    let playlist = read(MEDIAMTX);
    assert_eq!((playlist.part_target, playlist.segments.len()), (Some(Duration::from_ms(200)), 7));
    assert!(playlist.server_control.can_block_reload);
    assert_eq!(playlist.segments.iter().filter(|segment| segment.is_gap).count(), 2);
    let last = playlist.segments.last().expect("seven");
    assert_eq!((last.parts.len(), last.parts[0].is_independent), (10, true));
    assert_eq!(last.head.map.as_ref().map(|map| &*map.uri), Some("a91164e66975_video1_init.mp4"));
    assert_eq!(playlist.open.as_ref().map(|open| open.parts.len()), Some(2));
    assert_eq!(playlist.preload_hints[0].uri, "a91164e66975_video1_part52.mp4");
}

#[test]
fn ovenmediaengine_playlist_is_read() {
    let playlist = read(OVEN);
    assert_eq!((playlist.target_duration, playlist.media_sequence), (Duration::from_secs(6), 19));
    assert_eq!(playlist.segments.last().map(|segment| segment.parts.len()), Some(30));
    assert_eq!(playlist.open.as_ref().map(|open| open.parts.len()), Some(2));
    let report = &playlist.rendition_reports[0];
    assert_eq!((report.last_msn, report.last_part), (Some(22), Some(1)));
}

#[test]
fn ffmpeg_playlist_is_read() {
    let playlist = read(FFMPEG);
    assert_eq!(playlist.segments.len(), 3);
    let date = playlist.segments[0].head.date.expect("-hls_flags program_date_time");
    assert_eq!(date.to_string(), "2026-01-02T03:04:05.678Z");
    assert_eq!(playlist.part_target, None);
}

#[test]
fn byte_range_without_offset_follows_the_previous_range() {
    let text = "#EXTM3U\n#EXT-X-TARGETDURATION:2\n#EXTINF:2,\n#EXT-X-BYTERANGE:10@5\na\n\
                #EXTINF:2,\n#EXT-X-BYTERANGE:7\na\n#EXTINF:2,\n#EXT-X-BYTERANGE:3\nb\n";
    let playlist = read(text);
    let offsets =
        playlist.segments.iter().map(|segment| segment.resource.range.expect("a range").offset.as_u64());
    assert_eq!(offsets.collect::<Vec<_>>(), [5, 15, 0]);
}

#[test]
fn limits_hold_on_both_sides() {
    let head = "#EXTM3U\n#EXT-X-TARGETDURATION:2\n";
    let segments = |count| format!("{head}{}", "#EXTINF:2,\na\n".repeat(count));
    assert!(MediaPlaylist::read(segments(SEGMENTS_MAX).as_bytes()).is_ok());
    assert!(matches!(
        MediaPlaylist::read(segments(SEGMENTS_MAX + 1).as_bytes()),
        Err(PlaylistError::TooMany { what: "segments", .. })
    ));
    let parts = |count| {
        let part = "#EXT-X-PART:DURATION=0.2,URI=\"a\"\n";
        format!("{head}#EXT-X-PART-INF:PART-TARGET=0.2\n{}", part.repeat(count))
    };
    assert!(MediaPlaylist::read(parts(PARTS_MAX).as_bytes()).is_ok());
    assert!(MediaPlaylist::read(parts(PARTS_MAX + 1).as_bytes()).is_err());
    let lines = format!("{head}{}", "\n".repeat(LINES_MAX - 2));
    assert!(MediaPlaylist::read(lines.as_bytes()).is_ok());
    assert!(MediaPlaylist::read(format!("{lines}\n").as_bytes()).is_err());
    let long = format!("{head}#{}", "x".repeat(PLAYLIST_BYTES_MAX - head.len() - 1));
    assert!(MediaPlaylist::read(long.as_bytes()).is_ok());
    assert!(MediaPlaylist::read(format!("{long}x").as_bytes()).is_err());
}

#[test]
fn hostile_playlists_are_refused() {
    let head = "#EXTM3U\n#EXT-X-TARGETDURATION:2\n#EXT-X-PART-INF:PART-TARGET=1\n";
    for wrong in [
        "#EXT-X-PART:DURATION=nan,URI=\"a\"",
        "#EXT-X-PART:DURATION=-1,URI=\"a\"",
        "#EXT-X-PART:DURATION=3601,URI=\"a\"",
        "#EXT-X-PART:DURATION=1,URI=\"\"",
        "#EXT-X-PART:DURATION=1,URI=\"a\",BYTERANGE=\"18446744073709551615@1\"",
        "#EXT-X-PART:DURATION=1",
        "#EXT-X-SKIP:SKIPPED-SEGMENTS=4000000000",
        "#EXT-X-MEDIA-SEQUENCE:18446744073709551615",
        "#EXT-X-PROGRAM-DATE-TIME:yesterday",
        "#EXT-X-KEY:METHOD=AES-128,URI=\"k\"",
        "#EXTINF:inf,\na",
        "#EXTINF:1,",
        "a.mp4",
    ] {
        let text = format!("{head}{wrong}\n");
        let error = MediaPlaylist::read(text.as_bytes()).expect_err(wrong);
        assert_eq!(error.to_string().lines().count(), 1, "{wrong}: {error}");
    }
    assert_eq!(
        MediaPlaylist::read(b"#EXTM3U\n"),
        Err(PlaylistError::Missing { tag: "EXT-X-TARGETDURATION" })
    );
    assert_eq!(MediaPlaylist::read(b"a.mp4\n"), Err(PlaylistError::NotAPlaylist));
    assert_eq!(MediaPlaylist::read(b"\xff"), Err(PlaylistError::NotText));
}

#[test]
fn multivariant_playlist_survives_a_round_trip() {
    let text = "#EXTM3U\n#EXT-X-VERSION:7\n#EXT-X-INDEPENDENT-SEGMENTS\n\
        #EXT-X-CONTENT-STEERING:SERVER-URI=\"/steer\",PATHWAY-ID=\"a\"\n\
        #EXT-X-MEDIA:TYPE=AUDIO,GROUP-ID=\"aac\",NAME=\"en\",LANGUAGE=\"en\",CHANNELS=\"2\",DEFAULT=YES,AUTOSELECT=YES,URI=\"a.m3u8\"\n\
        #EXT-X-STREAM-INF:BANDWIDTH=1500000,AVERAGE-BANDWIDTH=1400000,CODECS=\"avc1.4d401f,mp4a.40.2\",\
        RESOLUTION=1280x720,FRAME-RATE=25.000,AUDIO=\"aac\"\nv.m3u8\n";
    let playlist = MultivariantPlaylist::read(text.as_bytes()).expect("it follows the standard");
    assert_eq!(playlist.write(), text);
    assert_eq!(playlist.variants[0].resolution, Some((1_280, 720)));
    let none = MultivariantPlaylist::read(MEDIAMTX.as_bytes());
    assert_eq!(none, Err(PlaylistError::Missing { tag: "EXT-X-STREAM-INF" }));
    assert!(MediaPlaylist::read(text.as_bytes()).is_err());
}

#[test]
fn directives_are_written_and_invalid_directives_refused() {
    let all = DeliveryDirectives { msn: Some(7), part: Some(0), skip: Some(Skip::Segments) };
    assert_eq!(all.query(), "_HLS_msn=7&_HLS_part=0&_HLS_skip=YES");
    let wrong: [&[(&str, &str)]; 5] = [
        &[("_HLS_msn", "-1")],
        &[("_HLS_msn", "+1")],
        &[("_HLS_msn", "99999999999999999999")],
        &[("_HLS_msn", "1"), ("_HLS_msn", "2")],
        &[("_HLS_skip", "YES"), ("_HLS_skip", "v2")],
    ];
    for pairs in wrong {
        assert!(DeliveryDirectives::read(pairs.iter().copied()).is_err(), "{pairs:?}");
    }
    let ignored = DeliveryDirectives::read([("session", "x"), ("_HLS_skip", "maybe")]);
    assert_eq!(ignored, Ok(DeliveryDirectives::default()));
}

fn parts(max: usize) -> impl Strategy<Value = Vec<Part>> {
    let part = ("[a-z]{1,8}", 1..400_u64, any::<bool>(), any::<bool>());
    proptest::collection::vec(part, 0..max).prop_map(|parts| {
        let part = |(uri, ms, is_independent, is_gap)| Part {
            resource: Resource::whole(uri),
            duration: Duration::from_ms(ms),
            is_independent,
            is_gap,
        };
        parts.into_iter().map(part).collect()
    })
}

prop_compose! {
    fn heads()(date in proptest::option::of(0..4_000_000_000_000_u64), is_discontinuous: bool) -> SegmentHead {
        let map = Some(Arc::new(Resource::whole("init.mp4")));
        SegmentHead { map, date: date.and_then(DateTime::from_unix_ms), is_discontinuous }
    }
}

prop_compose! {
    fn segments()(
        head in heads(),
        uri in "[a-z0-9./?=&]{1,20}",
        range in proptest::option::of((0..1_000_u64, 1..1_000_u64)),
        us in 1..5_000_000_u64,
        is_gap: bool,
        parts in parts(4),
    ) -> Segment {
        let range = range.map(|(offset, length)| ByteRange {
            offset: ByteCount::new(offset),
            length: ByteCount::new(length),
        });
        Segment { head, resource: Resource { uri, range }, duration: Duration::from_us(us), is_gap, parts }
    }
}

prop_compose! {
    fn playlists()(
        media_sequence in 0..1_000_000_u64,
        segments in proptest::collection::vec(segments(), 0..12),
        open in proptest::option::of((heads(), parts(4))),
        can_skip_s in proptest::option::of(1..20_u64),
        is_ended: bool,
    ) -> MediaPlaylist {
        MediaPlaylist {
            target_duration: Duration::from_secs(5),
            media_sequence,
            discontinuity_sequence: media_sequence / 7,
            has_independent_segments: true,
            part_target: Some(Duration::from_ms(400)),
            server_control: ServerControl {
                can_block_reload: true,
                can_skip_until: can_skip_s.map(Duration::from_secs),
                hold_back: None,
                part_hold_back: Some(Duration::from_ms(1_200)),
            },
            open: open.map(|(head, parts)| OpenSegment { head, parts }).filter(|open| !open.parts.is_empty()),
            preload_hints: vec![PreloadHint {
                kind: HintKind::Part,
                uri: "next.mp4".to_owned(),
                start: ByteCount::ZERO,
                length: None,
            }],
            rendition_reports: vec![RenditionReport {
                uri: "../low.m3u8".to_owned(),
                last_msn: Some(media_sequence),
                last_part: None,
            }],
            segments,
            is_ended,
            ..MediaPlaylist::default()
        }
    }
}

proptest! {
    #[test]
    fn playlists_survive_a_round_trip(playlist in playlists()) {
        prop_assert_eq!(MediaPlaylist::read(playlist.write().as_bytes()), Ok(playlist));
    }

    #[test]
    fn delta_updates_resolve_to_the_whole_playlist(playlist in playlists()) {
        if let Some(delta) = playlist.delta() {
            let skipped = delta.skipped_segments as usize;
            let kept: u64 = playlist.segments[skipped..].iter().map(|segment| segment.duration.as_ps()).sum();
            let open = playlist.open.iter().flat_map(|open| &open.parts);
            let open: u64 = open.map(|part| part.duration.as_ps()).sum();
            let until = playlist.server_control.can_skip_until.expect("it has a delta").as_ps();
            prop_assert!(kept + open >= until, "no younger segment is skipped");
            let read = MediaPlaylist::read(delta.write().as_bytes()).expect("a delta is a playlist");
            prop_assert_eq!(read.resolve(&playlist), Ok(playlist.clone()));
            let mut base = playlist;
            base.segments.truncate(skipped - 1);
            prop_assert!(delta.resolve(&base).is_err());
        }
    }

    #[test]
    fn random_text_causes_no_panic(text in "(#EXT(INF|-X-PART|-X-MAP|-X-SKIP)?:?[A-Z=,\"0-9.@]{0,20}\n?){0,12}") {
        let _ = MediaPlaylist::read(format!("#EXTM3U\n{text}").as_bytes());
        let _ = MultivariantPlaylist::read(format!("#EXTM3U\n{text}").as_bytes());
    }

    #[test]
    fn directives_survive_a_query_round_trip(msn: u64, part: Option<u64>, skip: bool) {
        let asked = DeliveryDirectives { msn: Some(msn), part, skip: skip.then_some(Skip::SegmentsAndDateRanges) };
        let query = asked.query();
        let pairs = query.split('&').map(|pair| pair.split_once('=').expect("a pair"));
        prop_assert_eq!(DeliveryDirectives::read(pairs), Ok(asked));
    }
}
