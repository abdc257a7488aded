//! Tests of sharing, streaming and headers.

use crate::origin::{PARTS, TestNode, TestOrigin, Viewer, object};
use crate::pull::{OriginAnswer, ScriptedOrigin};
use anabranch_http::metrics::MetricsServer;
use anabranch_http::origin::Origin;
use anabranch_live::{NodeConfig, RelayConfig};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};

const VIEWERS: usize = 50;

/// The origin sends its last part only after all viewers have received the five parts before it, so
/// no tier may wait for a whole object.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_tiers_stream_one_request_to_fifty_viewers() {
    let origin = TestOrigin::start("max-age=60");
    let source = TestNode::start("source", &[&origin.url]);
    let reflector = TestNode::start("reflector", &[&source.url]);
    let edge = TestNode::start("edge", &[&reflector.url]);
    let asked: Vec<_> = (0..VIEWERS)
        .map(|n| {
            let (url, target) = (edge.url.clone(), format!("/ch/piece.mp4?viewer={n}"));
            tokio::spawn(async move { Viewer::ask(&url, &target).await })
        })
        .collect();
    edge.until(|counts| counts.joins == VIEWERS as u64).await;
    origin.parts.add_permits(PARTS - 1);
    let mut viewers = Vec::new();
    for viewer in asked {
        viewers.push(viewer.await.expect("no panic"));
    }
    for viewer in &mut viewers {
        viewer.read_parts(PARTS - 1).await;
    }
    origin.parts.add_permits(1);
    for viewer in &mut viewers {
        viewer.read_all().await;
    }
    Viewer::ask(&edge.url, "/ch/piece.mp4").await.read_all().await;
    assert_eq!(origin.requests(), 1);
    assert_eq!((edge.counts)().upstream_requests, 1);
    assert_eq!((edge.counts)().hits, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blocking_playlist_requests_share_one_upstream_request() {
    let origin = TestOrigin::start("no-cache");
    let reflector = TestNode::start("reflector", &[&origin.url]);
    let edge = TestNode::start("edge", &[&reflector.url]);
    let asked: Vec<_> = (0..VIEWERS)
        .map(|n| {
            let target = format!("/ch/live.m3u8?token={n}&_HLS_part=2&_HLS_msn=7");
            let url = edge.url.clone();
            tokio::spawn(async move {
                Viewer::ask(&url, &target).await.read_all().await;
            })
        })
        .collect();
    edge.until(|counts| counts.joins == VIEWERS as u64).await;
    origin.parts.add_permits(PARTS + 1);
    for viewer in asked {
        viewer.await.expect("no panic");
    }
    assert_eq!(origin.seen.lock().expect("no panic").targets, ["/ch/live.m3u8?_HLS_msn=7&_HLS_part=2"]);
}

#[tokio::test]
async fn answers_have_age_and_cors_headers() {
    let origin = TestOrigin::start("max-age=60");
    origin.parts.add_permits(PARTS);
    let edge = TestNode::start("edge", &[&origin.url]);
    Viewer::ask(&edge.url, "/ch/piece.mp4").await.read_all().await;
    let client = Origin::new(&edge.url).expect("a URL");
    let range = HeaderMap::from_iter([(header::RANGE, HeaderValue::from_static("bytes=10-19"))]);
    let mut reply = client.get("/ch/piece.mp4", &range).await.expect("an answer");
    assert_eq!(reply.status(), StatusCode::PARTIAL_CONTENT);
    for (name, value) in [
        ("age", "0"),
        ("cache-control", "max-age=60"),
        ("content-type", "video/mp4"),
        ("content-length", "10"),
        ("content-range", "bytes 10-19/60000"),
        ("access-control-allow-origin", "*"),
        ("access-control-expose-headers", "age, content-length, content-range, date, retry-after"),
    ] {
        assert_eq!(reply.headers().get(name).map(HeaderValue::as_bytes), Some(value.as_bytes()), "{name}");
    }
    assert_eq!(reply.bytes().await.expect("no break").as_deref(), Some(&object()[10..20]));
    for (target, status) in [("/ch/../a", 400), ("/a?_HLS_part=1", 400)] {
        let reply = client.get(target, &HeaderMap::new()).await.expect("an answer");
        assert_eq!(reply.status(), status, "{target}");
    }
}

/// Fetches a target. Returns its media type, `Cache-Control`, age in seconds, and body.
async fn fetch(client: &Origin, target: &str) -> (String, String, u64, String) {
    let mut reply = client.get(target, &HeaderMap::new()).await.expect("an answer");
    assert_eq!(reply.status(), StatusCode::OK, "{target}");
    let [kind, cache_control, age] = [header::CONTENT_TYPE, header::CACHE_CONTROL, header::AGE].map(|name| {
        let value = reply.headers().get(&name).expect("all three are sent");
        value.to_str().expect("text").to_owned()
    });
    let mut body = Vec::new();
    while let Some(bytes) = reply.bytes().await.expect("no break") {
        body.extend_from_slice(&bytes);
    }
    (kind, cache_control, age.parse().expect("digits"), String::from_utf8(body).expect("text"))
}

/// The relay does not read manifests. DASH depends on the cache headers alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dash_manifest_and_segment_are_cached_by_their_headers() {
    let origin = ScriptedOrigin::start();
    let edge = TestNode::start("edge", &[&origin.url]);
    let client = Origin::new(&edge.url).expect("a URL");
    let manifest = "<MPD type=\"dynamic\" minimumUpdatePeriod=\"PT1S\"/>";
    for (target, kind, cache_control, age, body) in [
        ("/dash/live.mpd", "application/dash+xml", "max-age=60", "0", manifest),
        ("/dash/7.m4s", "video/iso.segment", "public, max-age=3600", "20", "a segment"),
    ] {
        origin.say(target, OriginAnswer::Cached { kind, cache_control, age, body });
        let origin_age: u64 = age.parse().expect("digits");
        for _viewer in 0..2 {
            let (of_kind, of_cache, age, bytes) = fetch(&client, target).await;
            assert_eq!((&*of_kind, &*of_cache, &*bytes), (kind, cache_control, body));
            // The object ages while the node holds it.
            assert!((origin_age..origin_age + 60).contains(&age), "{target}: {age} s");
        }
    }
    assert_eq!(origin.targets(), ["/dash/live.mpd", "/dash/7.m4s"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn expired_dash_manifest_is_requested_again() {
    let origin = ScriptedOrigin::start();
    let edge = TestNode::start("edge", &[&origin.url]);
    let client = Origin::new(&edge.url).expect("a URL");
    let (kind, cache_control, age) = ("application/dash+xml", "max-age=1", "0");
    for body in ["<MPD publishTime=\"1\"/>", "<MPD publishTime=\"2\"/>"] {
        origin.say("/dash/live.mpd", OriginAnswer::Cached { kind, cache_control, age, body });
        assert_eq!(fetch(&client, "/dash/live.mpd").await.3, body);
        tokio::time::sleep(std::time::Duration::from_millis(1_100)).await;
    }
    assert_eq!(origin.targets(), ["/dash/live.mpd"; 2]);
}

#[tokio::test]
async fn full_node_is_unhealthy_and_refuses_viewers() {
    let origin = TestOrigin::start("max-age=60");
    let mut config = NodeConfig::new("edge", ([127, 0, 0, 1], 0).into());
    config.parents = vec![origin.url.clone()];
    config.relay = RelayConfig { viewers_max: 1, ..RelayConfig::default() };
    let edge = TestNode::start_with(config);
    let client = Origin::new(&edge.url).expect("a URL");
    let status =
        async |target: &str| client.get(target, &HeaderMap::new()).await.expect("an answer").status();
    assert_eq!(status("/health").await, StatusCode::OK);
    let url = edge.url.clone();
    let viewer = tokio::spawn(async move { Viewer::ask(&url, "/ch/piece.mp4").await });
    edge.until(|counts| counts.joins == 1).await;
    assert_eq!(status("/health").await, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(status("/ch/piece.mp4").await, StatusCode::SERVICE_UNAVAILABLE);
    viewer.abort();
}

#[tokio::test]
async fn metrics_are_served_on_a_separate_listener() {
    let origin = TestOrigin::start("max-age=60");
    let mut config = NodeConfig::new("edge", ([127, 0, 0, 1], 0).into());
    config.parents = vec![origin.url.clone()];
    let node = anabranch_live::Node::bind(config).expect("loopback");
    let listener = MetricsServer::bind(([127, 0, 0, 1], 0).into()).expect("loopback");
    let url = format!("http://{}", listener.local_addr().expect("bound"));
    let metrics = node.metrics();
    let scraped = tokio::spawn(listener.run(move || std::future::ready(metrics())));
    let task = tokio::spawn(node.run());
    let client = Origin::new(&url).expect("a URL");
    let mut reply = client.get("/metrics", &HeaderMap::new()).await.expect("an answer");
    let text = reply.bytes().await.expect("no break").expect("a body");
    let text = String::from_utf8(text.into()).expect("text");
    assert!(text.contains("anabranch_live_upstream_requests_total 0\n"), "{text}");
    task.abort();
    scraped.abort();
}
