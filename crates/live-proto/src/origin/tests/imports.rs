//! Tests of imports from other origins.

use super::*;

/// Playlist recorded from MediaMTX, over HTTPS with a session in a cookie. MediaMTX was six commits
/// after version 1.20.1, with gohlslib 2.4.2.
const MEDIAMTX: &str = include_str!("../../../../media/tests/hls/mediamtx.m3u8");
/// Playlist as OvenMediaEngine writes it.
const OVEN: &str = include_str!("../../../../media/tests/hls/ovenmediaengine.m3u8");
/// Playlists recorded from that MediaMTX over plain HTTP, with the session number in the query.
const MEDIAMTX_VARIANTS: &str = include_str!("../../../../media/tests/hls/mediamtx_variants.m3u8");
const MEDIAMTX_SESSION: &str = include_str!("../../../../media/tests/hls/mediamtx_session.m3u8");
/// Delta update of `MEDIAMTX_SESSION`, four parts later.
const MEDIAMTX_DELTA: &str = include_str!("../../../../media/tests/hls/mediamtx_delta.m3u8");
/// Playlists of OvenMediaEngine: a whole playlist, and a delta update one segment later.
const OVEN_WHOLE: &str = include_str!("../../../../media/tests/hls/ovenmediaengine_whole.m3u8");
const OVEN_DELTA: &str = include_str!("../../../../media/tests/hls/ovenmediaengine_delta.m3u8");
/// Playlist as ffmpeg writes it.
const FFMPEG: &str = include_str!("../../../../media/tests/hls/ffmpeg.m3u8");

/// An importer, and an origin that serves each resource it names. The body of a resource is its
/// URI.
struct Bench {
    importer: Importer,
    now: Instant,
    /// URIs of all media requests so far.
    fetched: Vec<String>,
    /// Directives of the last playlist request.
    asked: Option<DeliveryDirectives>,
    playlist_id: Option<FetchId>,
    /// URIs that the origin does not have.
    missing: Vec<String>,
}

impl Bench {
    fn new(config: ImportConfig) -> Self {
        let now = Instant::from_ns(1_000);
        let importer = Importer::new(now, config).expect("the settings are in range");
        Self { importer, now, fetched: Vec::new(), asked: None, playlist_id: None, missing: Vec::new() }
    }

    fn run(&mut self) {
        self.importer.handle_timeout(self.now);
        while let Some(fetch) = self.importer.poll_fetch() {
            match fetch.kind {
                FetchKind::Playlist(directives) => {
                    self.asked = Some(directives);
                    self.playlist_id = Some(fetch.id);
                }
                FetchKind::Resource(resource) => {
                    self.fetched.push(resource.uri.clone());
                    if self.missing.contains(&resource.uri) {
                        self.importer.handle_failure(self.now, fetch.id);
                        continue;
                    }
                    for half in resource.uri.as_bytes().chunks(resource.uri.len().div_ceil(2)) {
                        self.importer.handle_bytes(self.now, fetch.id, half).expect("it is short");
                    }
                    self.importer.handle_end(self.now, fetch.id).expect("media are not read");
                }
            }
        }
    }

    /// Waits for the playlist request, and answers it with this text.
    fn answer(&mut self, text: &str) {
        self.run();
        while self.playlist_id.is_none() {
            self.now = self.importer.poll_timeout().expect("the playlist is asked for").max(self.now);
            self.run();
        }
        let id = self.playlist_id.take().expect("the loop ended");
        self.importer.handle_bytes(self.now, id, text.as_bytes()).expect("it is short");
        self.importer.handle_end(self.now, id).expect("it follows the standard");
        self.run();
    }

    fn body(&mut self, name: Name) -> Option<String> {
        let id = RequestId(0);
        self.importer.rendition().handle_request(self.now, id, name, DeliveryDirectives::default());
        let mut body = Vec::new();
        while let Some((_, answer)) = self.importer.rendition().poll_answer() {
            match answer {
                Answer::Head(head) if head.status != Status::Ok => return None,
                Answer::Data(bytes) => body.extend_from_slice(&bytes),
                _ => {}
            }
        }
        String::from_utf8(body).ok()
    }

    fn playlist(&mut self) -> MediaPlaylist {
        let text = self.body(Name::Playlist).expect("the window has media");
        MediaPlaylist::read(text.as_bytes()).expect("the importer follows the standard")
    }
}

/// A playlist without parts.
fn plain(first: u64, count: u64) -> String {
    let segment = |number| format!("#EXTINF:2.0,\nseg{number}.ts\n");
    let segments: String = (first..first + count).map(segment).collect();
    format!("#EXTM3U\n#EXT-X-TARGETDURATION:2\n#EXT-X-MEDIA-SEQUENCE:{first}\n{segments}")
}

#[test]
fn mediamtx_parts_are_forwarded() {
    let mut bench = Bench::new(ImportConfig::default());
    bench.answer(MEDIAMTX);
    assert_eq!(
        bench.fetched[..3],
        ["a91164e66975_video1_init.mp4", "a91164e66975_video1_seg9.mp4", "a91164e66975_video1_part30.mp4"]
    );
    assert_eq!(bench.fetched.len(), 24, "the init section, a segment, 22 parts");
    bench.run();
    let asked = bench.asked.expect("the playlist is asked for");
    assert_eq!((asked.msn, asked.part), (Some(12), Some(2)), "by blocking reload");
    let playlist = bench.playlist();
    assert_eq!((playlist.media_sequence, playlist.segments.len()), (9, 3));
    assert_eq!(playlist.part_target, Some(Duration::from_ms(200)));
    assert_eq!(playlist.preload_hints[0].uri, "12.2.m4s");
    assert_eq!(bench.body(Name::Part(10, 1)).as_deref(), Some("a91164e66975_video1_part31.mp4"));
    assert!(playlist.segments[1].parts[0].is_independent);
}

/// MediaMTX dates a segment when the segment is complete, and drops the dates of old segments.
#[test]
fn open_segment_is_dated_from_the_previous_segment() {
    let mut bench = Bench::new(ImportConfig::default());
    bench.answer(MEDIAMTX);
    let playlist = bench.playlist();
    let open = playlist.open.as_ref().expect("two parts are open");
    let heads = playlist.segments.iter().map(|segment| &segment.head).chain([&open.head]);
    let dates: Vec<_> = heads.map(|head| head.date.map(|date| date.to_string())).collect();
    let dated = |time: &str| Some(format!("2026-11-30T{time}Z"));
    assert_eq!(dates, [None, dated("23:38:16.438"), dated("23:38:18.438"), dated("23:38:20.438")]);
}

#[test]
fn dates_are_not_continued_over_a_discontinuity() {
    let mut bench = Bench::new(ImportConfig::default());
    bench.answer(
        "#EXTM3U\n#EXT-X-TARGETDURATION:2\n#EXT-X-PROGRAM-DATE-TIME:2026-01-02T03:04:05Z\n\
         #EXTINF:1.5,\na.ts\n#EXTINF:2.0,\nb.ts\n#EXT-X-DISCONTINUITY\n#EXTINF:2.0,\nc.ts\n",
    );
    let playlist = bench.playlist();
    let dates = playlist.segments.iter().map(|segment| segment.head.date.map(|date| date.as_unix_ms()));
    let dates: Vec<_> = dates.collect();
    assert_eq!(dates, [Some(1_767_323_045_000), Some(1_767_323_046_500), None]);
}

#[test]
fn request_for_hinted_part_is_answered_when_part_arrives() {
    let mut bench = Bench::new(ImportConfig::default());
    bench.answer(MEDIAMTX);
    let id = RequestId(9);
    bench.importer.rendition().handle_request(
        bench.now,
        id,
        Name::Part(12, 2),
        DeliveryDirectives::default(),
    );
    assert_eq!(bench.importer.rendition().poll_answer(), None);
    let hint = "#EXT-X-PRELOAD-HINT:TYPE=PART,URI=\"a91164e66975_video1_part52.mp4\"";
    let part = "#EXT-X-PART:DURATION=0.2,URI=\"a91164e66975_video1_part52.mp4\"";
    let next = "#EXT-X-PRELOAD-HINT:TYPE=PART,URI=\"x\"";
    bench.answer(&MEDIAMTX.replace(hint, &format!("{part}\n{next}")));
    let answers: Vec<_> = std::iter::from_fn(|| bench.importer.rendition().poll_answer()).collect();
    assert!(matches!(answers.last(), Some((RequestId(9), Answer::End))), "{answers:?}");
}

#[test]
fn ovenmediaengine_segment_numbers_are_kept() {
    let mut bench = Bench::new(ImportConfig::default());
    bench.answer(OVEN);
    let playlist = bench.playlist();
    assert_eq!((playlist.media_sequence, playlist.next_msn()), (19, 22));
    assert_eq!(playlist.open.map(|open| open.parts.len()), Some(2));
    assert_eq!(playlist.target_duration, Duration::from_secs(6));
}

#[test]
fn origin_without_parts_gives_no_low_latency() {
    let mut bench = Bench::new(ImportConfig::default());
    bench.answer(FFMPEG);
    let playlist = bench.playlist();
    assert_eq!((playlist.part_target, playlist.segments.len()), (None, 3));
    assert!(!playlist.server_control.can_block_reload);
    assert_eq!(bench.body(Name::Segment(2)).as_deref(), Some("h2.m4s"));
    let polled = bench.importer.poll_timeout().expect("the playlist is polled");
    assert_eq!(polled, bench.now + Duration::from_secs(1), "half a target duration later");
}

#[test]
fn restarted_origin_continues_after_the_last_segment() {
    let mut bench = Bench::new(ImportConfig::default());
    bench.answer(&plain(100, 5));
    assert_eq!(bench.playlist().next_msn(), 105);
    bench.answer(&plain(0, 2));
    let playlist = bench.playlist();
    assert_eq!((playlist.media_sequence, playlist.next_msn()), (102, 107));
    let marks: Vec<bool> = playlist.segments.iter().map(|segment| segment.head.is_discontinuous).collect();
    assert_eq!(marks, [false, false, false, true, false]);
    assert_eq!(bench.body(Name::Segment(105)).as_deref(), Some("seg0.ts"));
    bench.answer(&plain(1, 3));
    assert_eq!(bench.playlist().next_msn(), 109);
}

#[test]
fn stale_playlist_copy_is_no_restart() {
    let mut bench = Bench::new(ImportConfig::default());
    bench.answer(&plain(100, 5));
    bench.answer(&plain(99, 4));
    bench.answer(&plain(101, 5));
    let playlist = bench.playlist();
    assert_eq!(playlist.next_msn(), 106);
    assert!(playlist.segments.iter().all(|segment| !segment.head.is_discontinuous));
    // If the origin stays behind for longer, it counts as restarted.
    for _ in 0..5 {
        bench.answer(&plain(101, 4));
    }
    assert!(bench.playlist().segments.iter().any(|segment| segment.head.is_discontinuous));
}

#[test]
fn importer_continues_after_its_predecessors_last_segment() {
    let predecessor = Some(Predecessor { newest: 99, discontinuities: 3 });
    let mut bench = Bench::new(ImportConfig { predecessor, ..ImportConfig::default() });
    bench.answer(&plain(100, 3));
    let playlist = bench.playlist();
    assert_eq!((playlist.media_sequence, playlist.discontinuity_sequence), (100, 3));
    assert!(!playlist.segments[0].head.is_discontinuous);
    let mut bench = Bench::new(ImportConfig { predecessor, ..ImportConfig::default() });
    bench.answer(&plain(0, 3));
    let playlist = bench.playlist();
    assert_eq!(playlist.media_sequence, 100);
    assert!(playlist.segments[0].head.is_discontinuous);
}

#[test]
fn lost_segment_becomes_a_gap() {
    let mut bench = Bench::new(ImportConfig::default());
    bench.missing.push("seg1.ts".to_owned());
    bench.answer(&plain(0, 3));
    let playlist = bench.playlist();
    let gaps: Vec<bool> = playlist.segments.iter().map(|segment| segment.is_gap).collect();
    assert_eq!(gaps, [false, true, false]);
    assert_eq!(bench.body(Name::Segment(1)), None);
}

#[test]
fn retries_back_off_with_jitter() {
    let mut bench = Bench::new(ImportConfig::default());
    let mut delays = Vec::new();
    for _ in 0..8 {
        bench.run();
        let id = bench.playlist_id.take().expect("the playlist is asked for");
        bench.importer.handle_failure(bench.now, id);
        let at = bench.importer.poll_timeout().expect("it is asked for again");
        delays.push(at.saturating_since(bench.now).as_us() / 1_000);
        bench.now = at;
    }
    let bounds = [500, 1_000, 2_000, 4_000, 8_000, 16_000, 16_000, 16_000];
    for (delay, bound) in delays.iter().zip(bounds) {
        assert!((bound / 2..=bound).contains(delay), "{delay} ms of at most {bound} ms");
    }
    let other = Importer::new(bench.now, ImportConfig { seed: 1, ..ImportConfig::default() });
    let mut bench = Bench { importer: other.expect("the settings are in range"), ..bench };
    bench.run();
    let id = bench.playlist_id.take().expect("the playlist is asked for");
    bench.importer.handle_failure(bench.now, id);
    let at = bench.importer.poll_timeout().expect("it is asked for again");
    assert_ne!(at.saturating_since(bench.now).as_us() / 1_000, delays[0], "another seed, another delay");
}

/// A low-latency playlist: complete segments from number `first`, then `open_parts` parts of an
/// open segment. Names begin with `run`.
fn low_latency(run: &str, first: u64, whole: u64, open_parts: u64) -> String {
    let part = |segment: u64, part: u64| {
        format!("#EXT-X-PART:DURATION=0.5,URI=\"{run}_part{segment}.{part}.mp4?session=s1\"\n")
    };
    let segments: String = (first..first + whole)
        .map(|n| format!("{}{}#EXTINF:1.0,\n{run}_seg{n}.mp4?session=s1\n", part(n, 0), part(n, 1)))
        .collect();
    let open: String = (0..open_parts).map(|n| part(first + whole, n)).collect();
    format!(
        "#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXT-X-SERVER-CONTROL:CAN-BLOCK-RELOAD=YES\n\
         #EXT-X-PART-INF:PART-TARGET=0.5\n#EXT-X-MEDIA-SEQUENCE:{first}\n\
         #EXT-X-MAP:URI=\"{run}_init.mp4?session=s1\"\n{segments}{open}"
    )
}

fn discontinuities(playlist: &MediaPlaylist) -> Vec<u64> {
    let numbered = playlist.segments.iter().zip(playlist.media_sequence..);
    let marked = numbered.filter(|(segment, _)| segment.head.is_discontinuous);
    marked.map(|(_, number)| number).collect()
}

/// MediaMTX prefixes its names with a random number at each start. Its numbers may restart and
/// overlap the numbers of the earlier run.
#[test]
fn restart_with_overlapping_numbers_is_discontinuous() {
    let mut bench = Bench::new(ImportConfig::default());
    bench.answer(&low_latency("a", 5, 3, 0));
    bench.answer(&low_latency("b", 6, 3, 0));
    let playlist = bench.playlist();
    assert_eq!((playlist.next_msn(), discontinuities(&playlist)), (11, vec![8]));
    assert_eq!(
        bench.body(Name::Segment(8)).as_deref(),
        Some("b_part6.0.mp4?session=s1b_part6.1.mp4?session=s1")
    );
    bench.answer(&low_latency("b", 6, 4, 0));
    assert_eq!(discontinuities(&bench.playlist()), [8], "the next playlist continues");
}

#[test]
fn restart_beyond_known_numbers_is_discontinuous() {
    let mut bench = Bench::new(ImportConfig::default());
    bench.answer(&low_latency("a", 5, 3, 0));
    bench.answer(&low_latency("b", 8, 3, 0));
    assert_eq!(discontinuities(&bench.playlist()), [8], "the initialisation section has another name");
}

#[test]
fn new_session_number_is_no_restart() {
    let mut bench = Bench::new(ImportConfig::default());
    bench.answer(&low_latency("a", 5, 3, 0));
    bench.answer(&low_latency("a", 6, 3, 0).replace("session=s1", "session=s2"));
    let playlist = bench.playlist();
    assert_eq!((playlist.next_msn(), discontinuities(&playlist)), (9, vec![]));
}

#[test]
fn bursty_origin_ends_the_low_latency_offer() {
    let mut bench = Bench::new(ImportConfig::default());
    bench.answer(&low_latency("a", 0, 3, 1));
    assert!(bench.importer.rendition().is_low_latency());
    // The open segment ends, and the next three segments are first listed as complete.
    for whole in 4..=6 {
        bench.answer(&low_latency("a", 0, whole, 0));
        assert!(bench.importer.rendition().is_low_latency(), "{whole} segments");
    }
    bench.answer(&low_latency("a", 0, 7, 0));
    let playlist = bench.playlist();
    assert!(!playlist.server_control.can_block_reload && playlist.part_target.is_none());
    bench.answer(&low_latency("a", 0, 7, 1));
    assert!(bench.importer.rendition().is_low_latency(), "a segment was seen open");
}

#[test]
fn non_blocking_origin_is_polled_at_part_intervals() {
    let mut bench = Bench::new(ImportConfig::default());
    bench.answer(&low_latency("a", 0, 3, 1));
    let begun = bench.now;
    for _ in 0..4 {
        bench.answer(&low_latency("a", 0, 3, 1));
    }
    let took = bench.now.saturating_since(begun);
    assert_eq!(took, Duration::from_ms(1_500), "a part's duration after each answer without news");
}

#[test]
fn mediamtx_session_is_part_of_each_uri() {
    let variants = anabranch_media::hls::MultivariantPlaylist::read(MEDIAMTX_VARIANTS.as_bytes())
        .expect("it is the standard's");
    assert_eq!(variants.renditions.len(), 1, "the sound is a rendition of its own");
    assert_eq!(variants.variants[0].uri, "video1_stream.m3u8?session=e6c39594-5df0-4323-a4ca-f910befb764d");
    let mut bench = Bench::new(ImportConfig::default());
    bench.answer(MEDIAMTX_SESSION);
    assert!(bench.fetched.iter().all(|uri| uri.contains("?session=e6c39594")), "{:?}", bench.fetched);
    let text = bench.body(Name::Playlist).expect("the window has media");
    assert!(!text.contains("session"), "names towards viewers are the source's own: {text}");
    assert_eq!(bench.playlist().next_msn(), 12);
}

#[test]
fn mediamtx_delta_update_is_resolved() {
    let mut bench = Bench::new(ImportConfig::default());
    bench.answer(MEDIAMTX_SESSION);
    bench.answer(MEDIAMTX_DELTA);
    let playlist = bench.playlist();
    assert_eq!((playlist.media_sequence, playlist.next_msn()), (9, 12));
    assert_eq!(playlist.open.as_ref().map(|open| open.parts.len()), Some(6));
    assert!(discontinuities(&playlist).is_empty());
}

#[test]
fn ovenmediaengine_delta_update_is_resolved() {
    let mut bench = Bench::new(ImportConfig::default());
    bench.answer(OVEN_WHOLE);
    let whole = bench.playlist();
    assert_eq!((whole.media_sequence, whole.next_msn()), (33, 36));
    bench.answer(OVEN_DELTA);
    let playlist = bench.playlist();
    assert_eq!((playlist.media_sequence, playlist.next_msn()), (33, 37));
    assert!(discontinuities(&playlist).is_empty());
    assert!(playlist.segments.iter().all(|segment| !segment.is_gap));
}

#[test]
fn delta_update_without_a_base_is_refused() {
    let mut bench = Bench::new(ImportConfig::default());
    bench.run();
    let id = bench.playlist_id.take().expect("the playlist is asked for");
    bench.importer.handle_bytes(bench.now, id, OVEN_DELTA.as_bytes()).expect("it is short");
    let refused = bench.importer.handle_end(bench.now, id);
    assert!(
        matches!(refused, Err(ImportError::Playlist(PlaylistError::DeltaWithoutBase { .. }))),
        "{refused:?}"
    );
    bench.now = bench.importer.poll_timeout().expect("it is asked for again");
    bench.run();
    assert_eq!(bench.asked, Some(DeliveryDirectives::default()), "the whole playlist is asked for");
    bench.answer(OVEN_WHOLE);
    assert_eq!(bench.playlist().next_msn(), 36);
}

#[test]
fn answers_beyond_their_limits_are_refused() {
    let mut bench = Bench::new(ImportConfig::default());
    bench.run();
    let id = bench.playlist_id.take().expect("the playlist is asked for");
    let result = bench.importer.handle_bytes(bench.now, id, &vec![b'#'; (1 << 20) + 1]);
    assert_eq!(result, Err(ImportError::Playlist(PlaylistError::TooLong { got: (1 << 20) + 1 })));
    let mut config = ImportConfig::default();
    config.rendition.window_bytes_max = ByteCount::mib(1);
    let mut importer = Importer::new(bench.now, config).expect("the settings are in range");
    importer.handle_timeout(bench.now);
    let id = importer.poll_fetch().expect("the playlist").id;
    importer.handle_bytes(bench.now, id, plain(0, 1).as_bytes()).expect("it is short");
    importer.handle_end(bench.now, id).expect("it follows the standard");
    let id = importer.poll_fetch().expect("the segment").id;
    importer.handle_bytes(bench.now, id, &vec![0; 1 << 20]).expect("1 MiB fits");
    let result = importer.handle_bytes(bench.now, id, &[0]);
    assert_eq!(result, Err(ImportError::SegmentTooLarge { got: (1 << 20) + 1 }));
    assert_eq!(importer.rendition().window_bytes(), ByteCount::ZERO);
}

#[test]
fn segments_longer_than_a_minute_are_refused() {
    let with = |seconds: u64| {
        let mut bench = Bench::new(ImportConfig::default());
        bench.run();
        let id = bench.playlist_id.take().expect("the playlist is asked for");
        let text = plain(0, 1).replace("2.0", &seconds.to_string());
        bench.importer.handle_bytes(bench.now, id, text.as_bytes()).expect("it is short");
        bench.importer.handle_end(bench.now, id)
    };
    assert_eq!(with(60), Ok(()));
    assert_eq!(with(61), Err(ImportError::TooLong { got: Duration::from_secs(61) }));
}

#[test]
fn overlong_open_segment_becomes_a_gap() {
    let mut bench = Bench::new(ImportConfig::default());
    for count in 1..=3 {
        let part = "#EXT-X-PART:DURATION=60,URI=\"p\"\n".repeat(count);
        bench.answer(&format!(
            "#EXTM3U\n#EXT-X-TARGETDURATION:60\n#EXT-X-PART-INF:PART-TARGET=60\n\
             #EXT-X-SERVER-CONTROL:CAN-BLOCK-RELOAD=YES\n{part}"
        ));
    }
    let whole = "#EXT-X-PART:DURATION=60,URI=\"p\"\n".repeat(3);
    let head = "#EXTM3U\n#EXT-X-TARGETDURATION:60\n#EXT-X-PART-INF:PART-TARGET=60\n\
        #EXT-X-SERVER-CONTROL:CAN-BLOCK-RELOAD=YES\n";
    let part = "#EXT-X-PART:DURATION=60,URI=\"q\"\n";
    bench.answer(&format!("{head}{whole}#EXTINF:60,\na\n{part}"));
    let playlist = bench.playlist();
    assert!(playlist.segments[0].is_gap);
    assert_eq!(playlist.target_duration, Duration::from_secs(2), "the setting of the rendition");
}

#[test]
fn ended_origin_ends_the_rendition() {
    let mut bench = Bench::new(ImportConfig::default());
    bench.answer(&format!("{}#EXT-X-ENDLIST\n", plain(0, 3)));
    assert!(bench.playlist().is_ended);
    assert_eq!(bench.importer.poll_timeout(), None);
}

proptest! {
    #[test]
    fn media_sequence_never_decreases_for_any_playlist_order(
        steps in proptest::collection::vec((0..40_u64, 0..6_u64, any::<bool>()), 1..12),
    ) {
        let mut bench = Bench::new(ImportConfig::default());
        let mut last = 0;
        for (first, count, is_low_latency) in steps {
            let mut text = plain(first, count);
            if is_low_latency {
                text += "#EXT-X-SERVER-CONTROL:CAN-BLOCK-RELOAD=YES\n#EXT-X-PART-INF:PART-TARGET=0.2\n\
                         #EXT-X-PART:DURATION=0.2,URI=\"p\"\n";
            }
            bench.answer(&text);
            if let Some(text) = bench.body(Name::Playlist) {
                let playlist = MediaPlaylist::read(text.as_bytes()).expect("the importer follows the standard");
                prop_assert!(playlist.media_sequence >= last, "{} after {last}", playlist.media_sequence);
                last = playlist.media_sequence;
            }
        }
    }
}
