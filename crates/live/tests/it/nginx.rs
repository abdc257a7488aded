//! Tests of an edge behind nginx, with the configuration of `docs/live.md`.

use crate::origin::TestNode;
use crate::source::{AUTHORIZATION, TestSource, fragments, get, get_once_there, put};
use anabranch_http::origin::Origin;
use anabranch_media::hls::{DeliveryDirectives, MediaPlaylist};
use anabranch_testing::ports::free_port;
use anabranch_testing::skip::skip;
use anabranch_units::Duration;
use axum::http::{HeaderMap, StatusCode, header};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Instant;
use tokio::time::sleep;

/// Longest wait for a change. It only ends a test that hangs.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(60);
const PAUSE: std::time::Duration = std::time::Duration::from_millis(20);
/// Number of concurrent viewers of one part.
const VIEWERS: usize = 10;
/// Number of blocking reloads.
const RELOADS: usize = 5;
const PLAYLIST: &str = "/news/main/index.m3u8";

/// An nginx in front of an edge. Dropping it ends the process.
struct Nginx {
    url: String,
    child: Child,
    folder: tempfile::TempDir,
}

/// Path of nginx's program. `None` if it is not installed.
fn program() -> Option<PathBuf> {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&paths).chain([PathBuf::from("/usr/sbin")]);
    folders.map(|folder| folder.join("nginx")).find(|path| path.is_file())
}

/// The document's configuration for this edge, cache folder and port.
fn documented(edge: &str, cache: &str, port: u16) -> String {
    let document = include_str!("../../../../docs/live.md");
    let (_, block) = document.split_once("```nginx\n").expect("the document has a configuration");
    let (block, _) = block.split_once("```").expect("the configuration has an end");
    let mut block = block.to_owned();
    for (old, new) in [
        ("/var/cache/nginx/live", cache.to_owned()),
        ("listen 80;", format!("listen 127.0.0.1:{port};")),
        ("http://127.0.0.1:7204", edge.to_owned()),
    ] {
        assert!(block.contains(old), "the document's configuration has no `{old}`");
        block = block.replace(old, &new);
    }
    block
}

impl Nginx {
    /// Starts nginx as one process, and waits until it listens.
    fn start(program: &std::path::Path, edge: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let (dir, port) = (folder.path().display().to_string(), free_port());
        let mut conf = format!(
            "daemon off;\nmaster_process off;\npid {dir}/nginx.pid;\nerror_log {dir}/error.log;\n\
             events {{ worker_connections 256; }}\nhttp {{\naccess_log off;\n"
        );
        for kind in ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"] {
            conf += &format!("{kind}_temp_path {dir}/{kind};\n");
        }
        conf += &documented(edge, &format!("{dir}/cache"), port);
        conf += "}\n";
        let path = folder.path().join("nginx.conf");
        std::fs::write(&path, conf).expect("room");
        let mut command = Command::new(program);
        command.arg("-c").arg(&path).arg("-e").arg(folder.path().join("error.log"));
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
        let mut nginx = Self { url: format!("http://127.0.0.1:{port}"), child, folder };
        let end = Instant::now() + PATIENCE;
        while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
            let ended = nginx.child.try_wait().expect("ours to reap");
            assert!(ended.is_none() && Instant::now() < end, "{ended:?}: {}", nginx.errors());
            std::thread::sleep(PAUSE);
        }
        nginx
    }

    /// The error log of nginx.
    fn errors(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("error.log")).unwrap_or_default()
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- nginx\n{}", self.errors());
        }
    }
}

/// An answer with its headers for caches.
#[derive(Debug)]
struct Answer {
    /// `Age`, in seconds.
    age: u64,
    cache_control: String,
    content_type: String,
    body: Vec<u8>,
}

async fn fetch(url: &str, target: &str) -> Answer {
    let origin = Origin::new(url).expect("a URL");
    let mut reply = origin.get(target, &HeaderMap::new()).await.expect("an answer");
    assert_eq!(reply.status(), StatusCode::OK, "{url}{target}");
    let [age, cache_control, content_type] =
        [header::AGE, header::CACHE_CONTROL, header::CONTENT_TYPE].map(|name| {
            let value = reply.headers().get(&name).unwrap_or_else(|| panic!("{url}{target}: no {name}"));
            value.to_str().expect("text").to_owned()
        });
    let mut body = Vec::new();
    while let Some(bytes) = reply.bytes().await.expect("no break") {
        body.extend_from_slice(&bytes);
    }
    Answer { age: age.parse().expect("digits"), cache_control, content_type, body }
}

/// Segment and part number of the first part that a playlist does not list.
fn next_part(playlist: &MediaPlaylist) -> (u64, u64) {
    (playlist.next_msn(), playlist.open.as_ref().map_or(0, |open| open.parts.len() as u64))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn edge_behind_nginx_serves_equal_bytes_with_shared_requests() {
    let Some(program) = program() else { return skip("nginx is not installed") };
    let source = TestSource::start_with(Duration::from_ms(200));
    let edge = TestNode::start("edge", &[&source.url]);
    let nginx = Nginx::start(&program, &edge.url);
    let url = source.url.clone();
    let publisher = tokio::spawn(async move { put(&url, "/news/main", AUTHORIZATION, fragments()).await });

    // Blocking reloads wait behind nginx as at the edge.
    let end = Instant::now() + PATIENCE;
    let mut playlist = loop {
        let text = get_once_there(&nginx.url, PLAYLIST).await;
        let playlist = MediaPlaylist::read(&text).expect("a playlist");
        if playlist.part_target.is_some() {
            break playlist;
        }
        assert!(Instant::now() < end, "the source offers no parts");
        sleep(PAUSE).await;
    };
    for _ in 0..RELOADS {
        let asked = next_part(&playlist);
        let directives = DeliveryDirectives { msn: Some(asked.0), part: Some(asked.1), skip: None };
        let target = format!("{PLAYLIST}?{}", directives.query());
        let (status, text) = get(&nginx.url, &target).await;
        assert_eq!(status, StatusCode::OK, "{target}");
        playlist = MediaPlaylist::read(&text).expect("a playlist");
        assert!(playlist.is_ended || next_part(&playlist) > asked, "{target} did not wait for its part");
    }
    let of_segments = playlist.segments.iter().flat_map(|segment| &segment.parts);
    let of_open = playlist.open.iter().flat_map(|open| &open.parts);
    let parts: Vec<String> = of_segments.chain(of_open).map(|part| part.resource.uri.clone()).collect();
    let [.., shared, compared] = &parts[..] else { panic!("{parts:?}: two parts are listed") };

    // Once the stream has ended, no answer changes.
    let answer = publisher.await.expect("no panic");
    assert!(answer.starts_with("HTTP/1.1 201 "), "{answer}");
    let ended = loop {
        let playlist = MediaPlaylist::read(&get_once_there(&nginx.url, PLAYLIST).await).expect("a playlist");
        if playlist.is_ended {
            break playlist;
        }
        assert!(Instant::now() < end, "the stream does not end");
        sleep(PAUSE).await;
    };
    let segment = &ended.segments[ended.segments.len() / 2].resource.uri;
    let media = [compared, segment].map(|name| format!("/news/main/{name}"));
    for target in std::iter::once(PLAYLIST).chain(media.iter().map(String::as_str)) {
        let before = fetch(&edge.url, target).await;
        let through = fetch(&nginx.url, target).await;
        let after = fetch(&edge.url, target).await;
        assert!(!through.body.is_empty() && through.body == before.body, "{target}: other bytes");
        assert_eq!(through.cache_control, before.cache_control, "{target}");
        assert_eq!(through.content_type, before.content_type, "{target}");
        let ages = [before.age, through.age, after.age];
        assert!(ages.is_sorted(), "{target}: {ages:?} s");
    }

    // Concurrent viewers of a whole part share one request to the edge.
    let target = format!("/news/main/{shared}");
    let requests_before = (edge.counts)().joins;
    let viewers: Vec<_> = (0..VIEWERS)
        .map(|_| {
            let (url, target) = (nginx.url.clone(), target.clone());
            tokio::spawn(async move { fetch(&url, &target).await.body })
        })
        .collect();
    let mut bodies = Vec::new();
    for viewer in viewers {
        bodies.push(viewer.await.expect("no panic"));
    }
    assert_eq!((edge.counts)().joins - requests_before, 1, "requests to the edge");
    let of_edge = fetch(&edge.url, &target).await.body;
    assert!(bodies.iter().all(|body| *body == of_edge), "{target}: other bytes than the edge's");
}
