//! Tests of two sources of one channel, with two disjoint paths to the edge.

use crate::origin::TestNode;
use crate::pull::{OriginAnswer, ScriptedOrigin};
use crate::source::{AUTHORIZATION, TestSource, fragments, get, get_once_there, put};
use anabranch_live::{NodeConfig, RelayConfig};
use anabranch_media::hls::MediaPlaylist;
use anabranch_units::Duration;
use axum::http::StatusCode;
use std::collections::BTreeMap;
use tokio::time::Instant;

/// Duration of parts.
const PART: Duration = Duration::from_ms(200);
/// Claimed longest delay of a new byte after a fault, relative to a viewer directly at a source.
const BYTE_AFTER_FAULT_MAX: std::time::Duration = std::time::Duration::from_millis(50);
/// Number of received parts after which the source is killed.
const PARTS_BEFORE_KILL: usize = 12;

fn edge(parents: &[&str]) -> TestNode {
    let mut config = NodeConfig::new("edge", ([127, 0, 0, 1], 0).into());
    config.parents = parents.iter().map(|url| (*url).to_owned()).collect();
    config.relay = RelayConfig { is_doubled: true, ..RelayConfig::default() };
    TestNode::start_with(config)
}

/// Follows a rendition to its end. Returns the arrival time and bytes of each part.
pub async fn follow(url: &str, so_far: impl Fn(usize)) -> BTreeMap<String, (Instant, Vec<u8>)> {
    let mut parts = BTreeMap::new();
    let mut next: Option<(u64, u64)> = None;
    loop {
        let query = next.map(|(msn, part)| format!("?_HLS_msn={msn}&_HLS_part={part}")).unwrap_or_default();
        let text = get_once_there(url, &format!("/news/main/index.m3u8{query}")).await;
        let playlist = MediaPlaylist::read(&text).expect("a playlist");
        let of_segments = playlist.segments.iter().map(|segment| &segment.parts);
        let open = playlist.open.iter().map(|open| &open.parts);
        for part in of_segments.chain(open).flatten() {
            let name = &part.resource.uri;
            if !parts.contains_key(name) {
                let (status, bytes) = get(url, &format!("/news/main/{name}")).await;
                assert_eq!(status, StatusCode::OK, "{name}");
                parts.insert(name.clone(), (Instant::now(), bytes));
                so_far(parts.len());
            }
        }
        if playlist.is_ended {
            return parts;
        }
        let open = playlist.open.as_ref().map_or(0, |open| open.parts.len() as u64);
        next = playlist.part_target.is_some().then_some((playlist.next_msn(), open));
        if next.is_none() {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    }
}

/// Kills one of two sources. Compares a viewer behind the doubled edge with a viewer directly at
/// the surviving source. Returns the delays of the parts after the fault, in order.
async fn delays_after_a_killed_source() -> Vec<std::time::Duration> {
    let (first, second) = (TestSource::start_as(PART, true), TestSource::start_as(PART, true));
    let left = TestNode::start("left", &[&first.url]);
    let right = TestNode::start("right", &[&second.url]);
    let edge = edge(&[&left.url, &right.url]);
    let (first_url, second_url) = (first.url.clone(), second.url.clone());
    let (kill, killed) = tokio::sync::oneshot::channel();
    let kill = std::sync::Mutex::new(Some(kill));
    let killing = async move {
        let at: Instant = killed.await.expect("enough parts come");
        drop(first);
        at
    };
    let play = follow(&edge.url, |parts| {
        if parts >= PARTS_BEFORE_KILL
            && let Some(kill) = kill.lock().expect("no panic").take()
        {
            let _ = kill.send(Instant::now());
        }
    });
    let (_, _, killed_at, played, direct) = tokio::join!(
        put(&first_url, "/news/main", AUTHORIZATION, fragments()),
        put(&second_url, "/news/main", AUTHORIZATION, fragments()),
        killing,
        play,
        follow(&second_url, |_| ()),
    );
    let mut delays = Vec::new();
    for (name, (at, bytes)) in &played {
        let (source_at, of_source) = &direct[name];
        assert!(bytes == of_source, "{name}: the bytes of both sources are equal");
        if *at > killed_at {
            delays.push(at.saturating_duration_since(*source_at));
        }
    }
    delays.sort_unstable();
    assert!(delays.len() >= 10, "{} parts after the fault", delays.len());
    let (median, latest) = (delays[delays.len() / 2], delays[delays.len() - 1]);
    println!(
        "{} parts after the fault: {median:?} behind the source in the median, {latest:?} at most",
        delays.len()
    );
    delays
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn doubled_legs_deliver_every_part_despite_a_killed_source() {
    delays_after_a_killed_source().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "it measures: `make claims`"]
async fn killed_source_delays_no_part_of_doubled_legs() {
    let delays = delays_after_a_killed_source().await;
    let median = delays[delays.len() / 2];
    // The largest delay depends on the machine. A repeated request would take at least 200 ms.
    assert!(median < BYTE_AFTER_FAULT_MAX, "{delays:?}");
}

/// A playlist of segments of 2 s. The first segment begins at this second of a minute.
fn timeline(second: u64) -> OriginAnswer {
    let segment = |number: u64| {
        let date = format!("2026-01-02T03:04:{:02}Z", second + number * 2);
        format!("#EXT-X-PROGRAM-DATE-TIME:{date}\n#EXTINF:2.0,\n{number}.m4s\n")
    };
    let segments: String = (0..5).map(segment).collect();
    OriginAnswer::Playlist(format!("#EXTM3U\n#EXT-X-TARGETDURATION:2\n{segments}"))
}

/// The timeline of the first parent is used, and viewers receive no other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn source_with_another_timeline_is_refused() {
    let (first, second) = (ScriptedOrigin::start(), ScriptedOrigin::start());
    let edge = edge(&[&first.url, &second.url]);
    for (origin, second, media) in [(&first, 0, "first"), (&second, 7, "other")] {
        origin.say("/news/main/index.m3u8", timeline(second));
        (0..5).for_each(|number| origin.say(&format!("/news/main/{number}.m4s"), OriginAnswer::Media(media)));
    }
    assert_eq!(get(&edge.url, "/news/main/index.m3u8").await.0, StatusCode::OK);
    tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    let before = second.targets().len();
    for number in 0..5 {
        let (status, body) = get(&edge.url, &format!("/news/main/{number}.m4s")).await;
        assert_eq!((status, &*body), (StatusCode::OK, &b"first"[..]));
    }
    assert_eq!(second.targets().len(), before, "it is not asked for this stream: {:?}", second.targets());
}

/// Without a playlist, timelines are compared by the bytes in which two copies overlap.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn media_of_two_timelines_are_not_mixed() {
    let (first, second) = (ScriptedOrigin::start(), ScriptedOrigin::start());
    let edge = edge(&[&first.url, &second.url]);
    for number in 0..10 {
        let path = format!("/news/main/{number}.m4s");
        first.say(&path, OriginAnswer::Media("the first timeline"));
        second.say(&path, OriginAnswer::Media("the other timeline"));
        let (status, body) = get(&edge.url, &path).await;
        assert_eq!(status, StatusCode::OK);
        let body = String::from_utf8(body).expect("text");
        assert!(["the first timeline", "the other timeline"].contains(&&*body), "a mix: {body}");
    }
}
