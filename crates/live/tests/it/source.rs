//! Tests of a recorded stream that passes from a source through reflector and edge to a player.

use crate::origin::TestNode;
use anabranch_http::origin::Origin;
use anabranch_live::{PublishTokens, Source, SourceConfig};
use anabranch_media::hls::{DeliveryDirectives, MediaPlaylist, MultivariantPlaylist};
use anabranch_units::Duration;
use axum::http::{HeaderMap, StatusCode};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

pub const TOKEN: &str = "0123456789abcdef";
/// Header of a publisher with the correct token.
pub const AUTHORIZATION: &str = "Authorization: Bearer 0123456789abcdef\r\n";
/// Seven seconds of video and audio, in fragments of 120 ms.
const STREAM: &[u8] = include_bytes!("../../../media/tests/cmaf/fragments_120ms.mp4");
/// Pause between fragments. The stream is faster than real time, but does not count as bursty.
const FRAGMENT_PAUSE: std::time::Duration = std::time::Duration::from_millis(80);
/// Number of parts after which the first reflector is killed.
const PARTS_BEFORE_KILL: usize = 10;

pub struct TestSource {
    pub url: String,
    task: JoinHandle<()>,
}

impl TestSource {
    fn start() -> Self {
        Self::start_with(Duration::from_ms(200))
    }

    /// Starts a source with a target part duration.
    pub fn start_with(part_target: Duration) -> Self {
        Self::start_as(part_target, false)
    }

    /// Starts a source whose segments are numbered by the media time or on the source's own
    /// timeline.
    pub fn start_as(part_target: Duration, is_timeline_shared: bool) -> Self {
        let tokens = PublishTokens::read(&format!("news {TOKEN}")).expect("a token file");
        let mut config = SourceConfig::new(([127, 0, 0, 1], 0).into(), tokens);
        config.part_target = part_target;
        config.is_timeline_shared = is_timeline_shared;
        config.segment_target = Duration::from_secs(1);
        config.rendition.listed_segments = 20;
        // Shorter than the time after which players give up a blocking reload.
        config.silence_max = Duration::from_secs(1);
        let source = Source::bind(config).expect("loopback");
        let url = format!("http://{}", source.local_addr().expect("bound"));
        let task = tokio::spawn(async move { match source.run().await {} });
        Self { url, task }
    }

    async fn put(&self, path: &str, headers: &str, pieces: Vec<&[u8]>) -> String {
        put(&self.url, path, headers, pieces).await
    }

    /// Uploads pieces at intervals of `pace`. Returns head and body of the answer.
    pub async fn put_paced(
        &self,
        path: &str,
        headers: &str,
        pieces: Vec<&[u8]>,
        pace: std::time::Duration,
    ) -> String {
        put_paced(&self.url, path, headers, pieces, pace).await
    }
}

/// Uploads pieces faster than real time. Returns head and body of the answer.
pub async fn put(url: &str, path: &str, headers: &str, pieces: Vec<&[u8]>) -> String {
    put_paced(url, path, headers, pieces, FRAGMENT_PAUSE).await
}

/// Uploads pieces at intervals of `pace`. Returns head and body of the answer.
pub async fn put_paced(
    url: &str,
    path: &str,
    headers: &str,
    pieces: Vec<&[u8]>,
    pace: std::time::Duration,
) -> String {
    let authority = url.trim_start_matches("http://");
    let mut stream = TcpStream::connect(authority).await.expect("it listens");
    let head = format!(
        "PUT {path} HTTP/1.1\r\nHost: {authority}\r\n{headers}Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.expect("it reads");
    let mut ticks = tokio::time::interval(pace);
    for piece in pieces {
        ticks.tick().await;
        let mut chunk = format!("{:x}\r\n", piece.len()).into_bytes();
        chunk.extend_from_slice(piece);
        chunk.extend_from_slice(b"\r\n");
        // The source may close a refused upload at any time.
        if stream.write_all(&chunk).await.is_err() {
            break;
        }
    }
    let _ = stream.write_all(b"0\r\n\r\n").await;
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    String::from_utf8_lossy(&answer).into_owned()
}

impl Drop for TestSource {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Fragments of the recorded stream. The first piece also contains the initialisation section.
pub fn fragments() -> Vec<&'static [u8]> {
    let mut borders = vec![0];
    let mut at = 0;
    while at + 8 <= STREAM.len() {
        let size = u32::from_be_bytes(STREAM[at..at + 4].try_into().expect("four bytes")) as usize;
        at += size;
        if &STREAM[at - size + 4..at - size + 8] == b"mdat" {
            borders.push(at);
        }
    }
    borders.windows(2).map(|pair| &STREAM[pair[0]..pair[1]]).collect()
}

pub async fn get(url: &str, target: &str) -> (StatusCode, Vec<u8>) {
    let origin = Origin::new(url).expect("a URL");
    let mut reply = origin.get(target, &HeaderMap::new()).await.expect("an answer");
    let mut body = Vec::new();
    while let Some(bytes) = reply.bytes().await.expect("no break") {
        body.extend_from_slice(&bytes);
    }
    (reply.status(), body)
}

/// Waits until a target is answered with success. Returns the body.
pub async fn get_once_there(url: &str, target: &str) -> Vec<u8> {
    loop {
        let (status, body) = get(url, target).await;
        if status == StatusCode::OK {
            return body;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

/// Segment and part number of the first part that a playlist does not list.
fn next_part(playlist: &MediaPlaylist) -> (u64, u64) {
    (playlist.next_msn(), playlist.open.as_ref().map_or(0, |open| open.parts.len() as u64))
}

/// Names of all listed parts, in order.
fn parts(playlist: &MediaPlaylist) -> Vec<String> {
    let of_segments = playlist.segments.iter().map(|segment| &segment.parts);
    let open = playlist.open.iter().map(|open| &open.parts);
    of_segments.chain(open).flatten().map(|part| part.resource.uri.clone()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stream_reaches_the_player_despite_a_killed_reflector() {
    let source = TestSource::start();
    let (first, second) =
        (TestNode::start("first", &[&source.url]), TestNode::start("second", &[&source.url]));
    let edge = TestNode::start("edge", &[&first.url, &second.url]);
    let mut first = Some(first);
    let publish = source.put("/news/main", AUTHORIZATION, fragments());
    let play = async {
        let mut played: BTreeMap<String, Vec<u8>> = BTreeMap::new();
        let mut playlist;
        loop {
            let text = get_once_there(&edge.url, "/news/main/index.m3u8").await;
            playlist = MediaPlaylist::read(&text).expect("a playlist");
            if playlist.part_target.is_some() {
                break;
            }
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
        while !playlist.is_ended {
            for name in parts(&playlist) {
                let Entry::Vacant(entry) = played.entry(name) else { continue };
                let target = format!("/news/main/{}", entry.key());
                let (status, bytes) = get(&edge.url, &target).await;
                assert_eq!(status, StatusCode::OK, "{target}");
                entry.insert(bytes);
            }
            if played.len() >= PARTS_BEFORE_KILL {
                first = None;
            }
            let asked = next_part(&playlist);
            let directives = DeliveryDirectives { msn: Some(asked.0), part: Some(asked.1), skip: None };
            let target = format!("/news/main/index.m3u8?{}", directives.query());
            let (status, text) = get(&edge.url, &target).await;
            assert_eq!(status, StatusCode::OK, "{target}");
            playlist = MediaPlaylist::read(&text).expect("a playlist");
            assert!(playlist.is_ended || next_part(&playlist) > asked, "{target} did not wait for its part");
        }
        (played, playlist)
    };
    let (answer, (played, playlist)) = tokio::join!(publish, play);
    assert!(answer.starts_with("HTTP/1.1 201 "), "{answer}");
    assert!(first.is_none() && (second.counts)().upstream_requests > 0, "the second reflector took over");
    assert!(playlist.segments.len() >= 6, "{} segments of 1 s", playlist.segments.len());
    assert!(played.len() >= 25, "{} parts of 200 ms", played.len());
    for (name, bytes) in &played {
        let (_, of_source) = get(&source.url, &format!("/news/main/{name}")).await;
        assert!(of_source == *bytes, "{name}: other bytes than the source's");
    }
    // A segment equals the concatenation of its parts.
    let whole = &playlist.segments[playlist.segments.len() / 2];
    let number = whole.resource.uri.trim_end_matches(".m4s");
    let joined: Vec<u8> =
        (0..).map_while(|part| played.get(&format!("{number}.{part}.m4s"))).flatten().copied().collect();
    let (_, segment) = get(&edge.url, &format!("/news/main/{}", whole.resource.uri)).await;
    assert!(!segment.is_empty() && segment == joined, "segment {number}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn publishers_without_a_token_are_refused_in_one_line() {
    let source = TestSource::start();
    for headers in ["", "Authorization: Bearer 0123456789abcdeX\r\n", "Authorization: Basic bGl2ZTpsaXZl\r\n"]
    {
        let answer = source.put("/news/main", headers, vec![b"ftyp"]).await;
        assert!(answer.starts_with("HTTP/1.1 401 "), "{answer}");
        let (_, line) = answer.split_once("\r\n\r\n").expect("a head");
        assert_eq!(line.lines().count(), 1, "{line}");
    }
    assert_eq!(get(&source.url, "/news/main/index.m3u8").await.0, StatusCode::NOT_FOUND);
    assert_eq!(get(&source.url, "/news/index.m3u8").await.0, StatusCode::NOT_FOUND);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_stream_leaves_the_channel_usable() {
    let source = TestSource::start();
    // The header claims a box of 4 GiB.
    let hostile: &[u8] = b"\xff\xff\xff\xffmoof";
    let answer = source.put("/news/main", AUTHORIZATION, vec![hostile]).await;
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    let pieces: Vec<&[u8]> = fragments().into_iter().take(24).collect();
    let answer = source.put("/news/main", AUTHORIZATION, pieces).await;
    assert!(answer.starts_with("HTTP/1.1 201 "), "{answer}");
    let text = get_once_there(&source.url, "/news/index.m3u8").await;
    let variants = MultivariantPlaylist::read(&text).expect("a multivariant playlist").variants;
    assert_eq!(variants[0].uri, "main/index.m3u8");
    let codecs = variants[0].codecs.as_deref().expect("the recorded stream's are known");
    assert!(codecs.starts_with("avc1.") && codecs.ends_with(",mp4a.40.2"), "{codecs}");
    assert!(variants[0].resolution.is_some());
    let text = get_once_there(&source.url, "/news/main/index.m3u8").await;
    assert!(!MediaPlaylist::read(&text).expect("a playlist").segments.is_empty());
}
