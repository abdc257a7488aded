//! Tests of killed parents, frozen parents, and rings of nodes.

use crate::origin::{PARTS, TestNode, TestOrigin, Viewer};
use anabranch_http::origin::Origin;
use anabranch_live::{NodeConfig, RelayConfig};
use anabranch_testing::ports::free_port;
use axum::http::{HeaderMap, StatusCode};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_origin_is_replaced_without_a_break() {
    let (mut first, second) = (TestOrigin::start("max-age=60"), TestOrigin::start("max-age=60"));
    let edge = TestNode::start("edge", &[&first.url, &second.url]);
    first.parts.add_permits(3);
    let mut viewer = Viewer::ask(&edge.url, "/ch/piece.mp4").await;
    viewer.read_parts(3).await;
    second.parts.add_permits(PARTS);
    first.kill();
    viewer.read_all().await;
    assert_eq!(second.seen.lock().expect("no panic").range.as_deref(), Some("bytes=30000-"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frozen_origin_is_replaced_without_a_break() {
    let (first, second) = (TestOrigin::start("max-age=60"), TestOrigin::start("max-age=60"));
    let edge = TestNode::start("edge", &[&first.url, &second.url]);
    first.parts.add_permits(3);
    let mut viewer = Viewer::ask(&edge.url, "/ch/piece.mp4").await;
    viewer.read_parts(3).await;
    second.parts.add_permits(PARTS);
    viewer.read_all().await;
    assert_eq!((first.requests(), second.requests()), (1, 1));
    assert_eq!((edge.counts)().silences, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn doubled_leg_needs_no_further_request() {
    let (mut first, second) = (TestOrigin::start("max-age=60"), TestOrigin::start("max-age=60"));
    let mut config = NodeConfig::new("edge", ([127, 0, 0, 1], 0).into());
    config.parents = vec![first.url.clone(), second.url.clone()];
    config.relay = RelayConfig { is_doubled: true, ..RelayConfig::default() };
    let edge = TestNode::start_with(config);
    first.parts.add_permits(3);
    let mut viewer = Viewer::ask(&edge.url, "/ch/piece.mp4").await;
    viewer.read_parts(3).await;
    first.kill();
    second.parts.add_permits(PARTS);
    viewer.read_all().await;
    assert_eq!((first.requests(), second.requests()), (1, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ring_of_nodes_ends_with_an_error() {
    // The second node's address must be known before the first node starts.
    let at = std::net::SocketAddr::from(([127, 0, 0, 1], free_port()));
    let first = TestNode::start("first", &[&format!("http://{at}")]);
    let mut config = NodeConfig::new("second", at);
    config.parents = vec![first.url.clone()];
    let second = TestNode::start_with(config);
    let client = Origin::new(&first.url).expect("a URL");
    let reply = client.get("/ch/piece.mp4", &HeaderMap::new()).await.expect("an answer");
    assert_eq!(reply.status(), StatusCode::BAD_GATEWAY);
    assert_eq!(((first.counts)().upstream_requests, (second.counts)().upstream_requests), (1, 1));
}
