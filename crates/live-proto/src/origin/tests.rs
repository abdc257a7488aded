//! Tests of an origin: publishers, windows and requests.

use super::window::NewSegment;
use super::*;
use anabranch_media::cmaf::{CutConfig, CutError, MediaTime, Timeline};
use anabranch_media::hls::{DateTime, DeliveryDirectives, MediaPlaylist, PlaylistError, Skip};
use anabranch_units::{BitRate, ByteCount, Duration, Instant};
use proptest::prelude::*;
use std::collections::BTreeMap;

mod imports;

/// 7 s of video by ffmpeg: 25 pictures per second, a key frame each second, fragments of 40 ms.
const FRAMES: &[u8] = include_bytes!("../../../media/tests/cmaf/frames.mp4");
/// The same video in fragments of 120 ms.
const FRAGMENTS_120MS: &[u8] = include_bytes!("../../../media/tests/cmaf/fragments_120ms.mp4");

/// Splits a stream into the boxes before the first fragment and the fragments.
fn fragments(stream: &[u8]) -> (&[u8], Vec<&[u8]>) {
    let begins: Vec<usize> =
        stream.windows(4).enumerate().filter(|(_, kind)| kind == b"moof").map(|(at, _)| at - 4).collect();
    let ends = begins.iter().skip(1).copied().chain([stream.len()]);
    (&stream[..begins[0]], begins.iter().zip(ends).map(|(begin, end)| &stream[*begin..end]).collect())
}

fn config(timeline: Timeline) -> PackagerConfig {
    PackagerConfig {
        rendition: RenditionConfig::default(),
        cut: CutConfig {
            segment_target: Duration::from_secs(2),
            part_target: Duration::from_ms(200),
            fragments_per_part: 2,
            timeline,
        },
        date: DateTime::from_unix_ms(1_767_323_045_000),
        predecessor: None,
    }
}

const OWN: Timeline = Timeline::Own { first: 0 };
const SHARED: Timeline = Timeline::Shared { epoch: MediaTime::from_ns(0) };

/// A received answer, complete or not.
#[derive(Clone, Debug, Default)]
struct ReceivedBody {
    head: Option<Head>,
    body: Vec<u8>,
    is_ended: bool,
    is_aborted: bool,
}

impl ReceivedBody {
    fn status(&self) -> Option<u16> {
        self.head.map(|head| head.status.code())
    }
    fn playlist(&self) -> MediaPlaylist {
        assert!(self.is_ended, "{self:?}");
        MediaPlaylist::read(&self.body).expect("the packager follows the standard")
    }
}

/// A packager that is fed at the pace of its media.
struct Bench {
    packager: Packager,
    now: Instant,
    received: BTreeMap<RequestId, ReceivedBody>,
    next_id: u64,
}

impl Bench {
    fn new(config: PackagerConfig) -> Self {
        let packager = Packager::new(config).expect("the settings are in range");
        Self { packager, now: Instant::from_ns(1_000), received: BTreeMap::new(), next_id: 0 }
    }

    /// Feeds `count` fragments from index `first`, one per `interval`.
    fn feed(&mut self, stream: &[u8], first: usize, count: usize, interval: Duration) {
        let (init, fragments) = fragments(stream);
        if first == 0 {
            self.packager.handle_bytes(self.now, init).expect("ffmpeg writes valid boxes");
        }
        for fragment in fragments.iter().skip(first).take(count) {
            self.packager.handle_bytes(self.now, fragment).expect("ffmpeg writes valid boxes");
            self.drain();
            self.now += interval;
        }
    }

    fn ask(&mut self, name: Name, directives: DeliveryDirectives) -> RequestId {
        let id = RequestId(self.next_id);
        self.next_id += 1;
        self.packager.rendition().handle_request(self.now, id, name, directives);
        self.drain();
        id
    }

    fn drain(&mut self) {
        while let Some((id, answer)) = self.packager.rendition().poll_answer() {
            let received = self.received.entry(id).or_default();
            assert!(!received.is_ended && !received.is_aborted, "nothing follows the end");
            match answer {
                Answer::Head(head) => assert!(received.head.replace(head).is_none(), "one head"),
                Answer::Data(bytes) => {
                    assert!(received.head.is_some(), "the head is first");
                    received.body.extend_from_slice(&bytes);
                }
                Answer::End => received.is_ended = true,
                Answer::Aborted => received.is_aborted = true,
            }
            if let (true, Some(length)) = (received.is_ended, received.head.and_then(|head| head.length)) {
                assert_eq!(received.body.len() as u64, length.as_u64());
            }
        }
    }

    fn answer(&self, id: RequestId) -> ReceivedBody {
        self.received.get(&id).cloned().unwrap_or_default()
    }

    fn playlist(&mut self) -> MediaPlaylist {
        let id = self.ask(Name::Playlist, DeliveryDirectives::default());
        self.answer(id).playlist()
    }

    fn body(&mut self, name: Name) -> Vec<u8> {
        let id = self.ask(name, DeliveryDirectives::default());
        let received = self.answer(id);
        assert_eq!((received.status(), received.is_ended), (Some(200), true), "{name}");
        received.body
    }
}

const FRAME: Duration = Duration::from_ms(40);

fn blocking(msn: u64, part: Option<u64>) -> DeliveryDirectives {
    DeliveryDirectives { msn: Some(msn), part, skip: None }
}

#[test]
fn playlist_without_media_is_refused_immediately() {
    let mut bench = Bench::new(config(OWN));
    for directives in [DeliveryDirectives::default(), blocking(0, None)] {
        let id = bench.ask(Name::Playlist, directives);
        assert_eq!(bench.answer(id).status(), Some(503));
    }
    bench.feed(FRAMES, 0, 100, FRAME);
    assert_eq!(bench.playlist().next_msn(), 1);
    assert_eq!(bench.packager.rendition().requests_waiting(), 0);
}

#[test]
fn playlist_lists_parts_and_hints_the_next_part() {
    let mut bench = Bench::new(config(OWN));
    bench.feed(FRAMES, 0, 86, FRAME);
    let playlist = bench.playlist();
    assert_eq!(
        (playlist.part_target, playlist.target_duration),
        (Some(Duration::from_ms(200)), Duration::from_secs(2))
    );
    assert!(playlist.server_control.can_block_reload);
    assert_eq!(playlist.server_control.part_hold_back, Some(Duration::from_ms(600)));
    assert_eq!(playlist.segments[0].parts.len(), 10);
    let open = playlist.open.as_ref().expect("1.44 s of segment 1");
    assert_eq!(open.parts.len(), 7);
    assert_eq!(open.head.date.expect("a date").as_unix_ms(), 1_767_323_047_000);
    assert_eq!(playlist.preload_hints[0].uri, "1.7.m4s");
    // Each listed resource can be fetched, and the parts concatenated equal the segment.
    let map = playlist.segments[0].head.map.as_ref().expect("a map").uri.clone();
    assert_eq!(bench.body(Name::read(&map).expect("a name")), fragments(FRAMES).0);
    let parts: Vec<u8> = (0..10).flat_map(|part| bench.body(Name::Part(0, part))).collect();
    assert_eq!(bench.body(Name::Segment(0)), parts);
}

#[test]
fn hint_at_segment_end_names_next_segments_first_part() {
    let mut bench = Bench::new(config(OWN));
    bench.feed(FRAMES, 0, 51, FRAME);
    let playlist = bench.playlist();
    assert_eq!(playlist.preload_hints[0].uri, "1.0.m4s");
    let early = bench.ask(Name::Part(1, 0), DeliveryDirectives::default());
    assert_eq!(bench.answer(early).status(), None);
    bench.feed(FRAMES, 51, 5, FRAME);
    assert!(bench.answer(early).is_ended);
}

#[test]
fn blocking_playlist_waits_for_its_part() {
    let mut bench = Bench::new(config(OWN));
    bench.feed(FRAMES, 0, 86, FRAME);
    let part = bench.ask(Name::Playlist, blocking(1, Some(7)));
    let segment = bench.ask(Name::Playlist, blocking(1, None));
    let past = bench.ask(Name::Playlist, blocking(0, None));
    assert_eq!(bench.answer(past).status(), Some(200));
    bench.feed(FRAMES, 86, 3, FRAME);
    assert_eq!(bench.answer(part).status(), None);
    bench.feed(FRAMES, 89, 2, FRAME);
    let got = bench.answer(part);
    assert_eq!(got.playlist().open.map(|open| open.parts.len()), Some(8));
    assert_eq!(got.head.map(|head| head.freshness), Some(Freshness::MaxAge(Duration::from_secs(12))));
    // Safari asks for a whole segment, without a part number.
    assert_eq!(bench.answer(segment).status(), None);
    bench.feed(FRAMES, 91, 11, FRAME);
    assert_eq!(bench.answer(segment).playlist().next_msn(), 2);
}

#[test]
fn part_past_a_segments_end_waits_for_next_segment() {
    let mut bench = Bench::new(config(OWN));
    bench.feed(FRAMES, 0, 96, FRAME);
    let id = bench.ask(Name::Playlist, blocking(1, Some(10)));
    bench.feed(FRAMES, 96, 5, FRAME);
    assert_eq!(bench.answer(id).status(), None, "segment 1 has no part 10");
    bench.feed(FRAMES, 101, 6, FRAME);
    assert_eq!(bench.answer(id).playlist().open.map(|open| open.parts.len()), Some(1));
}

#[test]
fn requests_too_far_ahead_are_refused() {
    let mut bench = Bench::new(config(OWN));
    bench.feed(FRAMES, 0, 86, FRAME);
    // Segment 0 is whole; segment 1 has 7 parts; 3 s are 15 parts.
    for (msn, part, status) in [
        (2, None, None),
        (3, None, Some(400)),
        (u64::MAX, None, Some(400)),
        (1, Some(21), None),
        (1, Some(22), Some(400)),
        (2, Some(14), None),
        (2, Some(15), Some(400)),
    ] {
        let id = bench.ask(Name::Playlist, blocking(msn, part));
        assert_eq!(bench.answer(id).status(), status, "{msn} {part:?}");
    }
    for name in [Name::Part(1, 9), Name::Part(2, 0), Name::Segment(2), Name::Init(1), Name::Part(0, 10)] {
        let id = bench.ask(name, DeliveryDirectives::default());
        assert_eq!(bench.answer(id).status(), Some(404), "{name}");
    }
}

#[test]
fn blocked_request_is_refused_after_three_target_durations() {
    let mut bench = Bench::new(config(OWN));
    bench.feed(FRAMES, 0, 86, FRAME);
    let id = bench.ask(Name::Playlist, blocking(1, Some(7)));
    let deadline = bench.packager.rendition().poll_timeout().expect("a request waits");
    assert_eq!(deadline, bench.now + Duration::from_secs(6));
    bench.packager.rendition().handle_timeout(deadline - Duration::from_ns(1));
    bench.drain();
    assert_eq!(bench.answer(id).status(), None);
    bench.packager.rendition().handle_timeout(deadline);
    bench.drain();
    assert_eq!(bench.answer(id).status(), Some(503));
    assert_eq!(bench.packager.rendition().poll_timeout(), None);
}

/// Files of ffmpeg's `hls` muxer: the initialisation section, the first segment and the fourth.
const HLS_FILES: [&[u8]; 3] = [
    include_bytes!("../../../media/tests/cmaf/hls_init.mp4"),
    include_bytes!("../../../media/tests/cmaf/hls_0.m4s"),
    include_bytes!("../../../media/tests/cmaf/hls_3.m4s"),
];

#[test]
fn lost_segment_files_become_gaps() {
    let mut bench = Bench::new(config(OWN));
    for (file, bytes) in HLS_FILES.iter().enumerate() {
        bench.packager.handle_body();
        // The publisher is cut off halfway through the first segment's file, and sends the file
        // again.
        if file == 1 {
            let half = &bytes[..bytes.len() / 2];
            bench.packager.handle_bytes(bench.now, half).expect("ffmpeg writes valid boxes");
            bench.packager.handle_body();
        }
        bench.packager.handle_bytes(bench.now, bytes).expect("ffmpeg writes valid boxes");
        bench.now += Duration::from_secs(2);
    }
    let playlist = bench.playlist();
    let gaps: Vec<bool> = playlist.segments.iter().map(|segment| segment.is_gap).collect();
    assert_eq!((playlist.media_sequence, gaps), (0, vec![false, true, true]));
    assert!(playlist.segments.iter().all(|segment| !segment.head.is_discontinuous));
}

#[test]
fn bursty_stream_offers_no_blocking_reload() {
    let mut bench = Bench::new(config(OWN));
    // All bytes of a 2 s segment arrive at once, as when ffmpeg uploads files.
    for segment in 0..3 {
        bench.feed(FRAMES, 50 * segment, 50, Duration::ZERO);
        bench.now += Duration::from_secs(2);
    }
    bench.feed(FRAMES, 150, 1, Duration::ZERO);
    let playlist = bench.playlist();
    assert_eq!((playlist.part_target, playlist.segments.len()), (None, 3));
    assert!(!playlist.server_control.can_block_reload && playlist.preload_hints.is_empty());
    assert!(playlist.segments.iter().all(|segment| segment.parts.is_empty()));
    let id = bench.ask(Name::Playlist, blocking(3, Some(0)));
    assert_eq!(bench.answer(id).status(), Some(200), "the directives are ignored");
}

#[test]
fn stream_that_turns_bursty_loses_its_parts() {
    let mut bench = Bench::new(config(OWN));
    bench.feed(FRAMES, 0, 60, FRAME);
    assert!(bench.packager.rendition().is_low_latency());
    let mut settings = config(OWN);
    settings.cut.segment_target = Duration::from_secs(1);
    let mut bench = Bench::new(settings);
    bench.feed(FRAMES, 0, 30, FRAME);
    assert!(bench.packager.rendition().is_low_latency());
    bench.feed(FRAMES, 30, 50, Duration::ZERO);
    assert!(bench.packager.rendition().is_low_latency(), "one burst is no rule");
    bench.feed(FRAMES, 80, 60, Duration::ZERO);
    assert!(!bench.packager.rendition().is_low_latency());
}

#[test]
fn unfinished_parts_are_sent_between_relays_only() {
    for sends_unfinished_parts in [false, true] {
        let mut settings = config(OWN);
        settings.rendition.sends_unfinished_parts = sends_unfinished_parts;
        let mut bench = Bench::new(settings);
        bench.feed(FRAMES, 0, 86, FRAME);
        let part = bench.ask(Name::Part(1, 7), DeliveryDirectives::default());
        let segment = bench.ask(Name::Segment(1), DeliveryDirectives::default());
        bench.feed(FRAMES, 86, 2, FRAME);
        let begun = bench.answer(part);
        assert_eq!(begun.body.is_empty(), !sends_unfinished_parts, "half of the part is whole");
        assert!(!bench.answer(segment).body.is_empty(), "parts of the segment are whole");
        bench.feed(FRAMES, 88, 15, FRAME);
        let (part, segment) = (bench.answer(part), bench.answer(segment));
        assert!(part.is_ended && part.body.starts_with(&begun.body));
        assert_eq!(part.head.and_then(|head| head.length).is_none(), sends_unfinished_parts);
        assert_eq!(part.body, bench.body(Name::Part(1, 7)));
        assert!(segment.is_ended);
        assert_eq!(segment.body, bench.body(Name::Segment(1)));
    }
}

#[test]
fn age_counts_from_the_end_of_a_body() {
    let mut bench = Bench::new(config(OWN));
    bench.feed(FRAMES, 0, 86, FRAME);
    bench.now += Duration::from_secs(3);
    let id = bench.ask(Name::Segment(0), DeliveryDirectives::default());
    let head = bench.answer(id).head.expect("a head");
    assert_eq!(head.freshness, Freshness::MaxAge(Duration::from_secs(12)));
    assert_eq!(head.age, Duration::from_ms(3_000 + 40 * 37), "its last byte came with fragment 49");
    let id = bench.ask(Name::Playlist, DeliveryDirectives::default());
    let head = bench.answer(id).head.expect("a head");
    assert_eq!((head.age, head.freshness), (Duration::ZERO, Freshness::MaxAge(Duration::from_secs(1))));
}

#[test]
fn restarted_source_continues_after_its_predecessor() {
    let mut first = Bench::new(config(OWN));
    first.feed(FRAMES, 0, 175, FRAME);
    let before = first.packager.rendition().predecessor().expect("it had segments");
    assert_eq!(before, Predecessor { newest: 3, discontinuities: 0 });
    let mut second = Bench::new(PackagerConfig { predecessor: Some(before), ..config(OWN) });
    second.feed(FRAMES, 0, 91, FRAME);
    let playlist = second.playlist();
    assert_eq!((playlist.media_sequence, playlist.discontinuity_sequence), (4, 0));
    assert!(playlist.segments[0].head.is_discontinuous);
    // Only the encoder restarts.
    second.packager.handle_body();
    second.feed(FRAMES, 0, 91, FRAME);
    let playlist = second.playlist();
    let marks: Vec<bool> = playlist.segments.iter().map(|segment| segment.head.is_discontinuous).collect();
    assert_eq!((playlist.media_sequence, marks), (4, vec![true, false, true]));
    let after = second.packager.rendition().predecessor().expect("it had segments");
    assert_eq!(after, Predecessor { newest: 7, discontinuities: 2 });
}

#[test]
fn sources_with_shared_timeline_produce_equal_segments() {
    let mut first = Bench::new(config(SHARED));
    first.feed(FRAMES, 0, 175, FRAME);
    let mut second = Bench::new(config(SHARED));
    second.now += Duration::from_ms(437);
    let (init, all) = fragments(FRAGMENTS_120MS);
    second.packager.handle_bytes(second.now, init).expect("ffmpeg writes valid boxes");
    for fragment in &all[7..] {
        second.packager.handle_bytes(second.now, fragment).expect("ffmpeg writes valid boxes");
        second.now += Duration::from_ms(120);
    }
    let (one, two) = (first.playlist(), second.playlist());
    assert_eq!((one.media_sequence, two.media_sequence), (0, 1));
    assert_eq!(one.segments[1..], two.segments[..], "names, borders, dates, parts and their flags");
    assert_eq!(one.segments.len(), 3);
    for segment in &two.segments {
        let resources = segment.parts.iter().map(|part| &part.resource).chain([&segment.resource]);
        for resource in resources.chain(segment.head.map.as_deref()) {
            let name = Name::read(&resource.uri).expect("a name");
            assert!(first.body(name) == second.body(name), "{name}: the bytes are equal");
        }
    }
}

#[test]
fn delta_update_skips_old_segments() {
    let mut settings = config(OWN);
    settings.cut.segment_target = Duration::from_ms(200);
    settings.cut.part_target = Duration::from_ms(200);
    settings.rendition.listed_segments = 60;
    let mut bench = Bench::new(settings);
    bench.feed(FRAMES, 0, 175, FRAME);
    let whole = bench.playlist();
    let until = whole.server_control.can_skip_until.expect("the window is longer than six targets");
    assert_eq!(until, Duration::from_secs(6));
    let id =
        bench.ask(Name::Playlist, DeliveryDirectives { skip: Some(Skip::Segments), ..Default::default() });
    let delta = bench.answer(id).playlist();
    assert!(delta.skipped_segments > 0);
    let mut base = whole.clone();
    base.segments.truncate(delta.skipped_segments as usize);
    assert_eq!(delta.resolve(&base), Ok(whole));
}

#[test]
fn waiting_requests_are_bounded() {
    let mut settings = config(OWN);
    settings.rendition.requests_max = 2;
    let mut bench = Bench::new(settings);
    bench.feed(FRAMES, 0, 86, FRAME);
    let ids: Vec<_> = (0..3).map(|_| bench.ask(Name::Playlist, blocking(1, Some(7)))).collect();
    let statuses: Vec<_> = ids.iter().map(|id| bench.answer(*id).status()).collect();
    assert_eq!(statuses, [None, None, Some(503)]);
    bench.packager.rendition().handle_cancel(ids[0]);
    let id = bench.ask(Name::Playlist, blocking(1, Some(7)));
    assert_eq!(bench.answer(id).status(), None);
    let plain = bench.ask(Name::Playlist, DeliveryDirectives::default());
    assert_eq!(bench.answer(plain).status(), Some(200), "it need not wait");
}

#[test]
fn window_is_bounded_in_segments() {
    let mut settings = config(OWN);
    settings.rendition.listed_segments = 3;
    settings.cut.segment_target = Duration::from_ms(200);
    let mut bench = Bench::new(settings);
    bench.feed(FRAMES, 0, 175, FRAME);
    let playlist = bench.playlist();
    assert_eq!(playlist.segments.len(), 3);
    let first = playlist.media_sequence;
    assert!(!bench.body(Name::Segment(first - 3)).is_empty(), "as many again can be fetched");
    let id = bench.ask(Name::Segment(first - 4), DeliveryDirectives::default());
    assert_eq!(bench.answer(id).status(), Some(404));
}

#[test]
fn settings_out_of_range_are_refused() {
    let with = |change: &dyn Fn(&mut RenditionConfig)| {
        let mut config = RenditionConfig::default();
        change(&mut config);
        Rendition::new(config).map(|_| ())
    };
    assert_eq!(with(&|_| ()), Ok(()));
    for listed in [2, WINDOW_SEGMENTS_MAX + 1] {
        assert_eq!(
            with(&|config| config.listed_segments = listed),
            Err(RenditionError::ListedSegments(listed))
        );
    }
    assert!(with(&|config| config.window_bytes_max = ByteCount::new((1 << 20) - 1)).is_err());
    assert!(with(&|config| config.requests_max = 0).is_err());
    assert!(with(&|config| config.requests_max = REQUESTS_MAX + 1).is_err());
}

/// The peak rate once included a segment of a fifth of the target as if it lasted the target.
#[test]
fn peak_rate_covers_segments_near_the_target_duration() {
    let mut rendition = Rendition::new(RenditionConfig::default()).expect("the settings are in range");
    let mut segment = |number: u64, ms: u64, bytes: usize| {
        let now = Instant::from_ns(number * 1_000_000_000);
        rendition
            .begin_segment(now, NewSegment { number, date: None, is_discontinuous: false, has_parts: true });
        rendition.push_bytes(now, vec![0; bytes]);
        rendition.end_part(now, Duration::from_ms(ms), true);
        rendition.end_segment(now);
        rendition.peak_rate().map(BitRate::as_bps)
    };
    // The target is 2 s, so the rate is measured over runs of segments that last 1 to 3 s.
    assert_eq!(segment(0, 400, 50_000), None);
    assert_eq!(segment(1, 600, 75_000), Some(1_000_000), "both together");
    assert_eq!(segment(2, 400, 150_000), Some(1_800_000), "with the one before");
    assert_eq!(segment(3, 3_000, 1_500_000), Some(4_000_000), "1.5 times the target, alone");
    assert_eq!(segment(4, 2_000, 100_000), Some(4_000_000), "the highest stays");
}

#[test]
fn ended_stream_ends_its_playlist() {
    let mut bench = Bench::new(config(OWN));
    bench.feed(FRAMES, 0, 91, FRAME);
    let waiting = bench.ask(Name::Playlist, blocking(2, None));
    bench.packager.handle_end(bench.now);
    bench.drain();
    let playlist = bench.answer(waiting).playlist();
    assert!(playlist.is_ended && playlist.preload_hints.is_empty());
    assert_eq!(playlist.next_msn(), 2);
}

#[test]
fn stream_other_than_mp4_is_refused_in_one_line() {
    let mut bench = Bench::new(config(OWN));
    let error = bench.packager.handle_bytes(bench.now, b"GET / HTTP/1.1\r\n\r\n").map(|_| ()).err();
    // A box of an unknown type is skipped, however large.
    assert_eq!(error, None);
    bench.packager.handle_body();
    let (init, all) = fragments(FRAMES);
    let mut bytes = all[0].to_vec();
    bytes[20] ^= 0x40;
    let result = bench.packager.handle_bytes(bench.now, &bytes);
    let error = result.expect_err("no moov has come");
    assert_eq!(error.to_string(), "stream without box moov: must be fragmented MP4");
    bench.packager.handle_body();
    bench.packager.handle_bytes(bench.now, init).expect("a new body begins anew");
}

/// A fragment of track 1 with one sample of 1 MiB and of duration 0.
fn still_megabyte() -> Vec<u8> {
    let boxed = |kind: &[u8; 4], contents: &[u8]| {
        let mut bytes = (contents.len() as u32 + 8).to_be_bytes().to_vec();
        bytes.extend_from_slice(kind);
        bytes.extend_from_slice(contents);
        bytes
    };
    let words = |words: &[u32]| words.iter().flat_map(|word| word.to_be_bytes()).collect::<Vec<u8>>();
    let mut boxes = boxed(b"tfhd", &words(&[0x2_0038, 1, 0, 1 << 20, 0]));
    boxes.extend(boxed(b"tfdt", &words(&[0, 0])));
    // The data begin after the moof of 80 bytes and the mdat header of 8 bytes.
    boxes.extend(boxed(b"trun", &words(&[1, 1, 88])));
    let mut bytes = boxed(b"moof", &boxed(b"traf", &boxes));
    assert_eq!(bytes.len(), 80);
    bytes.extend(boxed(b"mdat", &vec![0; 1 << 20]));
    bytes
}

#[test]
fn refused_stream_leaves_no_data_for_next_stream() {
    let mut bench = Bench::new(config(OWN));
    bench.feed(FRAMES, 0, 60, FRAME);
    bench.packager.handle_body();
    bench.packager.handle_bytes(bench.now, fragments(FRAGMENTS_120MS).0).expect("valid boxes");
    let bytes = still_megabyte().repeat(40);
    let refused = bench.packager.handle_bytes(bench.now, &bytes);
    assert!(matches!(refused, Err(PackageError::Cut(CutError::TooMuchWaiting { .. }))), "{refused:?}");
    bench.packager.handle_body();
    bench.feed(FRAMES, 0, 120, FRAME);
    let playlist = bench.playlist();
    assert!(playlist.next_msn() >= 2, "{playlist:?}");
    assert!(playlist.segments.iter().all(|segment| segment.duration <= Duration::from_ms(2_100)));
    let bytes = bench.body(Name::Segment(playlist.next_msn() - 1)).len();
    assert!(bytes < 1 << 20, "a segment of {bytes} bytes");
}

proptest! {
    #[test]
    fn each_request_has_one_answer(
        steps in proptest::collection::vec((0..6_u8, 0..5_u64, proptest::option::of(0..12_u64), 1..30_usize), 1..40),
        sends_unfinished_parts: bool,
    ) {
        let mut settings = config(OWN);
        settings.rendition.sends_unfinished_parts = sends_unfinished_parts;
        settings.rendition.listed_segments = 3;
        let mut bench = Bench::new(settings);
        let mut fed = 0;
        for (kind, segment, part, count) in steps {
            match kind {
                0 | 1 => {
                    bench.feed(FRAMES, fed, count, FRAME);
                    fed += count;
                }
                2 => { bench.ask(Name::Playlist, DeliveryDirectives { msn: Some(segment), part, skip: None }); }
                3 => { bench.ask(Name::Part(segment, part.unwrap_or(0)), DeliveryDirectives::default()); }
                4 => { bench.ask(Name::Segment(segment), DeliveryDirectives::default()); }
                _ => { bench.ask(Name::Playlist, DeliveryDirectives::default()); }
            }
        }
        // All waiting requests are answered once the stream has ended or their deadlines have
        // passed.
        bench.packager.handle_end(bench.now);
        bench.drain();
        while let Some(at) = bench.packager.rendition().poll_timeout() {
            bench.packager.rendition().handle_timeout(at);
            bench.drain();
        }
        prop_assert_eq!(bench.packager.rendition().requests_waiting(), 0);
        for id in 0..bench.next_id {
            let received = bench.answer(RequestId(id));
            prop_assert!(received.head.is_some() && (received.is_ended || received.is_aborted));
        }
    }

    #[test]
    fn resource_names_survive_a_text_round_trip(segment: u64, part: u64) {
        for name in [Name::Playlist, Name::Init(segment), Name::Segment(segment), Name::Part(segment, part)] {
            prop_assert_eq!(Name::read(&name.to_string()), Some(name));
        }
    }
}
