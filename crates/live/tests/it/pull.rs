//! Tests of pulls from origins whose answers are scripted.

use crate::source::{AUTHORIZATION, TOKEN, get, put};
use anabranch_http::plain::{PROTOCOLS, PlainLimits, PlainServer};
use anabranch_live::{PublishTokens, Pull, Source, SourceConfig, SourceError};
use anabranch_media::hls::{MediaPlaylist, MultivariantPlaylist};
use anabranch_net::public::{ServerCertificate, ServerTrust, write_signed};
use anabranch_testing::ports::free_port;
use anabranch_units::Duration;
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Scripted answer of an origin at a path.
#[derive(Clone)]
pub enum OriginAnswer {
    Playlist(String),
    Media(&'static str),
    /// Any object with its media type and cache headers.
    Cached {
        kind: &'static str,
        cache_control: &'static str,
        age: &'static str,
        body: &'static str,
    },
    /// A playlist for requests with this query. Other requests are answered with 401.
    Session(&'static str, String),
    Redirect(String),
    Page,
    /// A playlist that never ends.
    Endless,
}

#[derive(Default)]
struct Log {
    targets: Mutex<Vec<String>>,
    endless_bytes: AtomicUsize,
}

#[derive(Clone)]
struct OriginState {
    said: watch::Receiver<BTreeMap<String, OriginAnswer>>,
    log: Arc<Log>,
}

/// An origin on a separate runtime. Dropping the origin closes all its connections. Media at a path
/// without a script have the path as their body.
pub struct ScriptedOrigin {
    pub url: String,
    said: watch::Sender<BTreeMap<String, OriginAnswer>>,
    log: Arc<Log>,
    runtime: Option<Runtime>,
}

impl ScriptedOrigin {
    pub fn start() -> Self {
        Self::at(([127, 0, 0, 1], 0).into(), None)
    }

    /// Starts an HTTPS origin for `localhost`. Also returns the file of its certificate authority.
    fn secure(folder: &std::path::Path) -> (Self, std::path::PathBuf) {
        let (files, ca) = write_signed(folder, &["localhost"], 2100);
        let certificate = ServerCertificate::load(files, PROTOCOLS).expect("good files");
        (Self::at(([127, 0, 0, 1], 0).into(), Some(certificate)), ca)
    }

    fn at(address: SocketAddr, certificate: Option<ServerCertificate>) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a thread starts");
        let server = {
            let _entered = runtime.enter();
            PlainServer::bind(address, PlainLimits::default()).expect("loopback")
        };
        let at = server.local_addr().expect("bound");
        let url = match &certificate {
            Some(_) => format!("https://localhost:{}", at.port()),
            None => format!("http://{at}"),
        };
        let server = match certificate {
            Some(certificate) => server.with_certificate(certificate),
            None => server,
        };
        let (said, receiver) = watch::channel(BTreeMap::new());
        let log = Arc::<Log>::default();
        let serving = OriginState { said: receiver, log: Arc::clone(&log) };
        runtime.spawn(server.run(Router::new().fallback(serve).with_state(serving)));
        Self { url, said, log, runtime: Some(runtime) }
    }

    pub fn say(&self, path: &str, said: OriginAnswer) {
        self.said.send_modify(|paths| drop(paths.insert(path.to_owned(), said)));
    }

    pub fn targets(&self) -> Vec<String> {
        self.log.targets.lock().expect("no panic").clone()
    }

    fn kill(mut self) -> SocketAddr {
        self.runtime.take().expect("it runs").shutdown_background();
        self.url.trim_start_matches("http://").parse().expect("an address")
    }
}

impl Drop for ScriptedOrigin {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

async fn serve(State(mut serving): State<OriginState>, request: Request) -> Response {
    let (path, query) = (request.uri().path().to_owned(), request.uri().query().unwrap_or("").to_owned());
    serving.log.targets.lock().expect("no panic").push(request.uri().to_string());
    let _ = serving.said.borrow_and_update();
    if query.contains("_HLS_msn") {
        // A blocking reload waits until any script changes.
        let _ = tokio::time::timeout(std::time::Duration::from_secs(5), serving.said.changed()).await;
    }
    let said = serving.said.borrow().get(&path).cloned();
    let kind = |kind: &'static str| [(header::CONTENT_TYPE, kind)];
    match said {
        Some(OriginAnswer::Media(bytes)) => (kind("video/mp4"), bytes).into_response(),
        Some(OriginAnswer::Cached { kind, cache_control, age, body }) => {
            let headers =
                [(header::CONTENT_TYPE, kind), (header::CACHE_CONTROL, cache_control), (header::AGE, age)];
            (headers, body).into_response()
        }
        Some(OriginAnswer::Playlist(text)) => (kind("application/vnd.apple.mpegurl"), text).into_response(),
        Some(OriginAnswer::Session(session, text)) if query.split('&').any(|pair| pair == session) => {
            (kind("application/vnd.apple.mpegurl"), text).into_response()
        }
        Some(OriginAnswer::Session(..)) => StatusCode::UNAUTHORIZED.into_response(),
        Some(OriginAnswer::Redirect(to)) => (StatusCode::FOUND, [(header::LOCATION, to)]).into_response(),
        Some(OriginAnswer::Page) => (kind("text/html"), "<html>it works</html>").into_response(),
        Some(OriginAnswer::Endless) => {
            let log = Arc::clone(&serving.log);
            let line = Bytes::from("#EXTM3U\n".repeat(1_024));
            let lines = futures_util::stream::repeat_with(move || {
                log.endless_bytes.fetch_add(line.len(), SeqCst);
                Ok::<_, std::io::Error>(line.clone())
            });
            Body::from_stream(lines).into_response()
        }
        None if path.ends_with(".mp4") => (kind("video/mp4"), path).into_response(),
        None => StatusCode::NOT_FOUND.into_response(),
    }
}

/// A source that pulls the channel `news`.
struct PullingSource {
    url: String,
    task: JoinHandle<()>,
}

impl PullingSource {
    fn start(url: &str, idle: Option<Duration>) -> Self {
        Self::with(url, idle, None)
    }

    fn with(url: &str, idle: Option<Duration>, trust: Option<ServerTrust>) -> Self {
        let tokens = PublishTokens::read(&format!("* {TOKEN}")).expect("a token file");
        let mut config = SourceConfig::new(([127, 0, 0, 1], 0).into(), tokens);
        config.pulls = vec![Pull { channel: "news".to_owned(), url: url.to_owned() }];
        config.pull_idle = idle;
        config.pull_trust = trust;
        let source = Source::bind(config).expect("loopback");
        let url = format!("http://{}", source.local_addr().expect("bound"));
        let task = tokio::spawn(async move { match source.run().await {} });
        Self { url, task }
    }

    /// Polls until a playlist satisfies `is_it`.
    async fn playlist(&self, rendition: &str, is_it: impl Fn(&MediaPlaylist) -> bool) -> MediaPlaylist {
        let read = async {
            loop {
                let (status, text) = get(&self.url, &format!("/news/{rendition}/index.m3u8")).await;
                if status == StatusCode::OK {
                    let playlist = MediaPlaylist::read(&text).expect("a playlist");
                    if is_it(&playlist) {
                        return playlist;
                    }
                }
                pause(20).await;
            }
        };
        tokio::time::timeout(PATIENCE, read).await.expect("a playlist in time")
    }
}

impl Drop for PullingSource {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Longest wait for a change. It only ends a test that hangs.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(60);

/// Waits until `holds` returns true; `what` names the condition in the error.
async fn until(what: &str, holds: impl Fn() -> bool) {
    let until = tokio::time::Instant::now() + PATIENCE;
    while !holds() {
        assert!(tokio::time::Instant::now() < until, "never: {what}");
        pause(10).await;
    }
}

async fn pause(ms: u64) {
    tokio::time::sleep(std::time::Duration::from_millis(ms)).await;
}

/// A playlist of complete segments of 1 s, whose names begin with `run`.
fn plain(run: &str, first: u64, count: u64) -> OriginAnswer {
    let segments: String =
        (first..first + count).map(|n| format!("#EXTINF:1.0,\n{run}_seg{n}.mp4\n")).collect();
    let head = "#EXTM3U\n#EXT-X-TARGETDURATION:1\n";
    let map = format!("#EXT-X-MAP:URI=\"{run}_init.mp4\"\n");
    OriginAnswer::Playlist(format!("{head}#EXT-X-MEDIA-SEQUENCE:{first}\n{map}{segments}"))
}

const VARIANTS: &str = include_str!("../../../media/tests/hls/mediamtx_variants.m3u8");
const MEDIA: &str = include_str!("../../../media/tests/hls/mediamtx_session.m3u8");
const SESSION: &str = "session=e6c39594-5df0-4323-a4ca-f910befb764d";
const LATER_SESSION: &str = "session=77777777-5b1d-4b6e-9d53-0f6a4b7c8d9e";

/// MediaMTX redirects the first request to itself, opens a session, and adds its number to URIs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mediamtx_stream_survives_an_expired_session() {
    let origin = ScriptedOrigin::start();
    origin.say("/cam/index.m3u8", OriginAnswer::Playlist(VARIANTS.to_owned()));
    origin.say("/cam/video1_stream.m3u8", OriginAnswer::Session(SESSION, MEDIA.to_owned()));
    origin.say("/cam/audio2_stream.m3u8", OriginAnswer::Session(SESSION, MEDIA.to_owned()));
    origin.say("/entry/index.m3u8", OriginAnswer::Redirect("/cam/index.m3u8?cookieCheck=1".to_owned()));
    let source = PullingSource::start(&format!("{}/entry/index.m3u8", origin.url), None);
    let (_, text) = get(&source.url, "/news/index.m3u8").await;
    let variants = MultivariantPlaylist::read(&text).expect("a multivariant playlist");
    assert_eq!(variants.variants[0].uri, "v1/index.m3u8");
    assert_eq!(variants.renditions[0].uri.as_deref(), Some("a1/index.m3u8"));
    assert_eq!(variants.variants[0].resolution, Some((320, 180)));
    let is_whole = |playlist: &MediaPlaylist| playlist.next_msn() == 12 && playlist.open.is_some();
    for rendition in ["v1", "a1"] {
        let playlist = source.playlist(rendition, is_whole).await;
        assert_eq!((playlist.media_sequence, playlist.part_target), (9, Some(Duration::from_ms(200))));
    }
    let (_, body) = get(&source.url, "/news/v1/10.0.m4s").await;
    assert_eq!(body, b"/cam/055a9e72e526_video1_part30.mp4");
    let targets = origin.targets();
    assert!(targets.iter().filter(|to| to.contains(".mp4")).all(|to| to.contains(SESSION)), "{targets:?}");
    let first = targets.iter().find(|to| to.contains("video1_stream")).expect("it is asked for");
    assert!(!first.contains("_HLS_"), "the first playlist must not block: {first}");
    let blocked = format!("/cam/video1_stream.m3u8?{SESSION}&_HLS_msn=12&_HLS_part=2");
    until(&blocked, || origin.targets().contains(&blocked)).await;
    // The session expires, and the next session has the same stream.
    origin.say("/cam/index.m3u8", OriginAnswer::Playlist(VARIANTS.replace(SESSION, LATER_SESSION)));
    let later = MEDIA.replace(SESSION, LATER_SESSION);
    let uri = format!("055a9e72e526_video1_part52.mp4?{LATER_SESSION}");
    let part = format!("#EXT-X-PART:DURATION=0.2,URI=\"{uri}\"\n#EXT-X-PRELOAD");
    origin.say(
        "/cam/video1_stream.m3u8",
        OriginAnswer::Session(LATER_SESSION, later.replace("#EXT-X-PRELOAD", &part)),
    );
    let has_part =
        |playlist: &MediaPlaylist| playlist.open.as_ref().is_some_and(|open| open.parts.len() == 3);
    let playlist = source.playlist("v1", has_part).await;
    assert!(playlist.segments.iter().all(|segment| !segment.head.is_discontinuous));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn publisher_of_a_pulled_channel_is_refused() {
    let origin = ScriptedOrigin::start();
    origin.say("/a.m3u8", plain("a", 0, 3));
    let source = PullingSource::start(&format!("{}/a.m3u8", origin.url), None);
    source.playlist("main", |playlist| playlist.next_msn() == 3).await;
    let answer = put(&source.url, "/news/main", AUTHORIZATION, vec![b"ftyp"]).await;
    assert!(answer.starts_with("HTTP/1.1 503 ") && answer.contains("is pulled"), "{answer}");
    let answer = put(&source.url, "/sport/main", AUTHORIZATION, vec![b""]).await;
    assert!(answer.starts_with("HTTP/1.1 201 "), "{answer}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pull_without_viewers_sends_no_upstream_requests() {
    let origin = ScriptedOrigin::start();
    origin.say("/a.m3u8", plain("a", 0, 3));
    let source = PullingSource::start(&format!("{}/a.m3u8", origin.url), Some(Duration::from_ms(600)));
    pause(300).await;
    assert_eq!(origin.targets(), [""; 0], "before the first viewer");
    let (status, text) = get(&source.url, "/news/index.m3u8").await;
    assert_eq!(status, StatusCode::OK, "{}", String::from_utf8_lossy(&text));
    let (status, _) = get(&source.url, "/news/main/index.m3u8").await;
    assert_eq!(status, StatusCode::OK, "the first request waits for the origin");
    // After the last viewer leaves, polls every half target duration stop after the idle time.
    let mut rested = 0;
    let rests = async {
        while origin.targets().len() > rested {
            rested = origin.targets().len();
            pause(1_200).await;
        }
    };
    tokio::time::timeout(PATIENCE, rests).await.expect("polls stop");
    // After a pause of several segments the next viewer waits for current media.
    origin.say("/a.m3u8", plain("a", 40, 3));
    let (_, text) = get(&source.url, "/news/main/index.m3u8").await;
    let playlist = MediaPlaylist::read(&text).expect("a playlist");
    assert!(playlist.media_sequence >= 40, "{}", String::from_utf8_lossy(&text));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restarted_origin_continues_with_a_discontinuity() {
    // The port is bound again later, so it is outside the ephemeral range.
    let origin = ScriptedOrigin::at(([127, 0, 0, 1], free_port()).into(), None);
    origin.say("/a.m3u8", plain("a", 10, 3));
    let source = PullingSource::start(&format!("{}/a.m3u8", origin.url), None);
    source.playlist("main", |playlist| playlist.next_msn() == 13).await;
    let address = origin.kill();
    pause(1_500).await;
    let (status, text) = get(&source.url, "/news/main/index.m3u8").await;
    assert_eq!(status, StatusCode::OK, "the window stays");
    assert!(!MediaPlaylist::read(&text).expect("a playlist").is_ended);
    let (origin, began) = (ScriptedOrigin::at(address, None), tokio::time::Instant::now());
    origin.say("/a.m3u8", plain("b", 0, 2));
    let playlist = source.playlist("main", |playlist| playlist.next_msn() == 15).await;
    let marks: Vec<bool> = playlist.segments.iter().map(|segment| segment.head.is_discontinuous).collect();
    assert_eq!(marks, [false, false, false, true, false]);
    let (_, body) = get(&source.url, "/news/main/13.m4s").await;
    assert_eq!(body, b"/b_seg0.mp4");
    // A playlist is requested at most twice a second.
    let requests_max = 12 + 2 * began.elapsed().as_secs() as usize;
    assert!(origin.targets().len() < requests_max, "it was asked with pauses: {:?}", origin.targets());
}

/// If a playlist or redirect could lead the source to a server in its internal network, the source
/// would publish that server's answers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redirects_and_playlists_never_lead_to_private_servers() {
    let (origin, inner) = (ScriptedOrigin::start(), ScriptedOrigin::start());
    inner.say("/secret.m3u8", plain("a", 0, 3));
    let OriginAnswer::Playlist(text) = plain("a", 0, 3) else { unreachable!("it is one") };
    let elsewhere = text.replace("a_seg1", &format!("{}/a_seg1", inner.url));
    origin.say("/a.m3u8", OriginAnswer::Playlist(elsewhere));
    let source = PullingSource::start(&format!("{}/a.m3u8", origin.url), None);
    let playlist = source.playlist("main", |playlist| playlist.next_msn() == 3).await;
    let gaps: Vec<bool> = playlist.segments.iter().map(|segment| segment.is_gap).collect();
    assert_eq!(gaps, [false, true, false]);
    origin.say("/b.m3u8", OriginAnswer::Redirect(format!("{}/secret.m3u8", inner.url)));
    let redirected = PullingSource::start(&format!("{}/b.m3u8", origin.url), None);
    origin.say("/c.m3u8", OriginAnswer::Redirect("/c.m3u8".to_owned()));
    let (circled, began) =
        (PullingSource::start(&format!("{}/c.m3u8", origin.url), None), tokio::time::Instant::now());
    let circles = || origin.targets().iter().filter(|to| *to == "/c.m3u8").count();
    until("a try", || circles() >= 4).await;
    pause(400).await;
    for source in [redirected, circled] {
        assert_eq!(get(&source.url, "/health").await.0, StatusCode::OK);
    }
    assert_eq!(inner.targets(), [""; 0]);
    // There are pauses of half a second and more between tries of four requests.
    let (circles, tries_max) = (circles(), 3 + 2 * began.elapsed().as_secs() as usize);
    assert!((4..=4 * tries_max).contains(&circles), "{circles} requests of at most {tries_max} tries");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn endless_playlist_is_cut_off() {
    let origin = ScriptedOrigin::start();
    origin.say("/a.m3u8", OriginAnswer::Endless);
    let source = PullingSource::start(&format!("{}/a.m3u8", origin.url), None);
    until("a try", || origin.log.endless_bytes.load(SeqCst) > 1 << 20).await;
    pause(600).await;
    let sent = origin.log.endless_bytes.load(SeqCst);
    let tries = origin.targets().len();
    assert!(sent > 1 << 20 && sent < tries * (12 << 20), "{sent} bytes in {tries} tries");
    origin.say("/a.m3u8", plain("a", 0, 3));
    source.playlist("main", |playlist| playlist.next_msn() == 3).await;
    origin.say("/a.m3u8", OriginAnswer::Endless);
    pause(1_200).await;
    origin.say("/a.m3u8", plain("a", 2, 3));
    let playlist = source.playlist("main", |playlist| playlist.next_msn() == 5).await;
    assert!(playlist.segments.iter().all(|segment| !segment.head.is_discontinuous && !segment.is_gap));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn web_pages_are_refused_as_media() {
    let origin = ScriptedOrigin::start();
    origin.say("/a.m3u8", OriginAnswer::Page);
    origin.say("/a_seg1.mp4", OriginAnswer::Page);
    let source = PullingSource::start(&format!("{}/a.m3u8", origin.url), None);
    until("a request", || !origin.targets().is_empty()).await;
    assert_eq!(origin.targets()[0], "/a.m3u8");
    origin.say("/a.m3u8", plain("a", 0, 3));
    let playlist = source.playlist("main", |playlist| playlist.next_msn() == 3).await;
    let gaps: Vec<bool> = playlist.segments.iter().map(|segment| segment.is_gap).collect();
    assert_eq!(gaps, [false, true, false]);
    assert_eq!(get(&source.url, "/news/main/1.m4s").await.0, StatusCode::NOT_FOUND);
}

/// A source that pulls from another source yields the same numbers and bytes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn source_pulled_from_a_source_has_equal_parts() {
    let first = crate::source::TestSource::start_with(Duration::from_ms(200));
    let second = PullingSource::start(&format!("{}/news/index.m3u8", first.url), None);
    let pieces = crate::source::fragments();
    let publish = put(&first.url, "/news/main", AUTHORIZATION, pieces);
    let pull = second.playlist("v1", |playlist| playlist.is_ended);
    let (answer, playlist) = tokio::join!(publish, pull);
    assert!(answer.starts_with("HTTP/1.1 201 "), "{answer}");
    assert!(playlist.segments.len() >= 3, "{playlist:?}");
    for segment in &playlist.segments {
        let uris = segment.parts.iter().map(|part| &part.resource.uri).chain([&segment.resource.uri]);
        for uri in uris {
            let (_, one) = get(&first.url, &format!("/news/main/{uri}")).await;
            let (_, two) = get(&second.url, &format!("/news/v1/{uri}")).await;
            assert!(one == two && !one.is_empty(), "{uri}: the bytes are equal");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn https_origin_of_a_private_authority_is_pulled() {
    let folder = tempfile::tempdir().expect("a folder");
    let (origin, ca) = ScriptedOrigin::secure(folder.path());
    origin.say("/a.m3u8", plain("a", 0, 3));
    origin.say("/entry.m3u8", OriginAnswer::Redirect("/a.m3u8".to_owned()));
    let trust = ServerTrust::load(&ca, &["http/1.1"]).expect("an authority");
    let url = format!("{}/entry.m3u8", origin.url);
    let source = PullingSource::with(&url, None, Some(trust));
    source.playlist("main", |playlist| playlist.next_msn() == 3).await;
    let (_, body) = get(&source.url, "/news/main/1.m4s").await;
    assert_eq!(body, b"/a_seg1.mp4");
    let mut config = SourceConfig::new(([127, 0, 0, 1], 0).into(), PublishTokens::default());
    config.pulls = vec![Pull { channel: "news".to_owned(), url }];
    let Err(SourceError::BadPull(refused)) = Source::bind(config) else { panic!("no authority") };
    let line = refused.to_string();
    assert!(line.ends_with("no authority is known for HTTPS: name a file of authorities"), "{line}");
}

/// No request is sent to an origin whose certificate is refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn origin_with_a_refused_certificate_is_not_pulled() {
    let folders = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
    let (origin, ca) = ScriptedOrigin::secure(folders[0].path());
    let (_, other_ca) = write_signed(folders[1].path(), &["localhost"], 2100);
    origin.say("/a.m3u8", plain("a", 0, 3));
    let by_address = origin.url.replace("localhost", "127.0.0.1");
    let sources = [(origin.url.clone(), other_ca), (by_address, ca)].map(|(url, ca)| {
        let trust = ServerTrust::load(&ca, &["http/1.1"]).expect("an authority");
        PullingSource::with(&format!("{url}/a.m3u8"), None, Some(trust))
    });
    pause(1_000).await;
    for source in &sources {
        assert_eq!(get(&source.url, "/health").await.0, StatusCode::OK);
        assert_eq!(get(&source.url, "/news/main/index.m3u8").await.0, StatusCode::NOT_FOUND);
    }
    assert_eq!(origin.targets(), [""; 0]);
}
