//! Tests of measuring players with a source and two edges.

use crate::origin::TestNode;
use crate::source::{TOKEN, TestSource, fragments, get_once_there};
use anabranch_live::players::{PlayerReport, PlayerSpec, Players, PlayersConfig, failure};
use anabranch_live_proto::play::{FIRST_PATIENCE, PlayerKind};
use anabranch_units::Duration;
use hickory_proto::op::{Message, MessageType};
use hickory_proto::rr::rdata::A;
use hickory_proto::rr::rdata::opt::{EdnsCode, EdnsOption};
use hickory_proto::rr::{RData, Record};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};

const PLAYERS: usize = 50;
/// Duration of a fragment of the recorded stream.
pub const FRAGMENT: std::time::Duration = std::time::Duration::from_millis(120);
/// Target duration of parts. They are long, so that playback three parts behind tolerates a busy
/// machine.
const PART: Duration = Duration::from_ms(500);

/// Starts a source and a publisher that uploads a channel in real time.
pub async fn on_air() -> (Arc<TestSource>, tokio::task::JoinHandle<String>) {
    let source = Arc::new(TestSource::start_with(PART));
    let publisher = Arc::clone(&source);
    let publish = tokio::spawn(async move {
        let authorization = format!("Authorization: Bearer {TOKEN}\r\n");
        publisher.put_paced("/news/main", &authorization, fragments(), FRAGMENT).await
    });
    (source, publish)
}

pub fn spec(kind: PlayerKind, edges: &[&str]) -> PlayerSpec {
    let urls = edges.iter().map(|url| format!("{url}/news/index.m3u8")).collect();
    PlayerSpec { kind, urls, starts_after: Duration::ZERO, subnet: None, buffer: None }
}

fn players(players: Vec<PlayerSpec>) -> Players {
    Players::new(PlayersConfig {
        players,
        dns: None,
        trust: None,
        duration: None,
        first_patience: FIRST_PATIENCE,
    })
    .expect("a set-up")
}

/// Kills one of two edges while 50 players watch. `may_stall` is false where the machine has no
/// other work.
async fn killed_edge(may_stall: bool) {
    let (source, publish) = on_air().await;
    let (first, second) =
        (TestNode::start("first", &[&source.url]), TestNode::start("second", &[&source.url]));
    get_once_there(&source.url, "/news/index.m3u8").await;
    // One third of the players has the first edge, one third the second, and one third both.
    let choices: [&[&str]; 3] = [&[&first.url], &[&second.url], &[&first.url, &second.url]];
    let specs = (0..PLAYERS).map(|n| spec(PlayerKind::Buffering, choices[n % 3])).collect();
    let run = players(specs);
    let progress = run.progress();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let run = tokio::spawn(run.run(async move { drop(stopped.await) }));
    while progress.joined() < PLAYERS {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    assert!(may_stall || progress.stalls() == 0, "no player has stalled while both edges serve");
    drop(first);
    // The measurement ends with the publisher. Afterwards the source waits for another publisher
    // for longer than the players' buffers last, which causes stalls unrelated to the edges.
    assert!(publish.await.expect("no panic").starts_with("HTTP/1.1 201 "));
    stop.send(()).expect("the run waits for it");
    let reports = run.await.expect("no panic");
    let of = |choice: usize| reports.iter().filter(move |report| report.player % 3 == choice);
    assert!(of(0).all(|report| report.measurements.counts.failed > 0), "the first edge is dead");
    for report in of(1) {
        let measured = &report.measurements;
        assert_eq!(measured.counts.failed, 0, "player {}", report.player);
        assert!(may_stall || measured.stalls == 0, "player {}", report.player);
        assert!(measured.counts.objects > 5, "{:?}", measured.counts);
    }
    for report in of(2) {
        let counts = &report.measurements.counts;
        assert!(counts.edge_changes > 0 && counts.objects > 5, "{counts:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_edge_fails_no_player_of_another_edge() {
    killed_edge(true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "it measures: `make claims`"]
async fn killed_edge_stalls_no_player_of_another_edge() {
    killed_edge(false).await;
}

/// Runs players until the stream has ended for all of them.
async fn played(specs: Vec<PlayerSpec>, dns: Option<SocketAddr>) -> Vec<PlayerReport> {
    let run = Players::new(PlayersConfig {
        players: specs,
        dns,
        trust: None,
        duration: None,
        first_patience: FIRST_PATIENCE,
    })
    .expect("a set-up");
    run.run(std::future::pending()).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn players_of_both_kinds_receive_the_stream_by_dns() {
    let (source, _publish) = on_air().await;
    let edge = TestNode::start("edge", &[&source.url]);
    get_once_there(&source.url, "/news/index.m3u8").await;
    let port = edge.url.rsplit(':').next().expect("a port");
    let name = format!("http://edge.live.test:{port}");
    let socket = tokio::net::UdpSocket::bind("127.0.0.1:0").await.expect("loopback");
    let dns = socket.local_addr().expect("bound");
    let subnets = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&subnets);
    let server = tokio::spawn(async move {
        let mut buffer = [0; 512];
        loop {
            let (length, from) = socket.recv_from(&mut buffer).await.expect("loopback");
            let question = Message::from_vec(&buffer[..length]).expect("a question");
            let option = question.edns.as_ref().and_then(|edns| edns.option(EdnsCode::Subnet));
            let Some(EdnsOption::Subnet(subnet)) = option else { panic!("no client subnet") };
            seen.lock().expect("no panic").push((subnet.addr(), subnet.source_prefix()));
            let mut answer = question.clone();
            answer.metadata.message_type = MessageType::Response;
            let name = question.queries[0].name().clone();
            answer.add_answer(Record::from_rdata(name, 5, RData::A(A::new(127, 0, 0, 1))));
            socket.send_to(&answer.to_vec().expect("short"), from).await.expect("loopback");
        }
    });
    let subnet = "192.0.2.0/24".parse().ok();
    let specs =
        [PlayerKind::Buffering, PlayerKind::Fixed].map(|kind| PlayerSpec { subnet, ..spec(kind, &[&name]) });
    let reports = played(specs.into(), Some(dns)).await;
    server.abort();
    assert_eq!(*subnets.lock().expect("no panic"), [(IpAddr::from([192, 0, 2, 0]), 24); 2]);
    for report in &reports {
        let measured = &report.measurements;
        assert_eq!((measured.counts.refused, measured.counts.failed), (0, 0), "{:?}", measured.last_failure);
        let (resolved, join) = (measured.join.resolved, measured.join.first_byte);
        assert!(resolved.expect("DNS answers") <= join.expect("video"), "{measured:?}");
        assert_eq!(report.edge, Some(IpAddr::from([127, 0, 0, 1])));
    }
    assert!(reports[0].measurements.ages.total() > 3, "{:?}", reports[0].measurements.counts);
    assert!(reports[1].measurements.counts.objects >= 2, "{:?}", reports[1].measurements.counts);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_url_is_explained_in_one_line() {
    let source = TestSource::start_with(PART);
    let reports = played(vec![spec(PlayerKind::Buffering, &[&source.url])], None).await;
    let line = failure(&reports).expect("no video");
    let url = format!("{}/news/index.m3u8", source.url);
    assert_eq!(line, format!("no player has received video: {url}: answered with HTTP status 404"));
}
