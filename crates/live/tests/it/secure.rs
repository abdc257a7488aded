//! Tests of viewers over TLS: HTTP/1.1 players, an HTTP/2 client, a replaced certificate.

use crate::origin::{PARTS, TestNode, TestOrigin, object};
use crate::players::{on_air, spec};
use crate::source::{get, get_once_there};
use anabranch_http::plain::PROTOCOLS;
use anabranch_live::players::{Players, PlayersConfig};
use anabranch_live::signing::{Grant, SigningSecrets};
use anabranch_live::{Node, NodeConfig, SecureListener};
use anabranch_live_proto::play::FIRST_PATIENCE;
use anabranch_live_proto::play::PlayerKind;
use anabranch_media::hls::{DeliveryDirectives, MediaPlaylist};
use anabranch_net::public::{ServerCertificate, ServerTrust, write_self_signed};
use anabranch_units::Duration;
use axum::http::{Request, StatusCode};
use bytes::Bytes;
use h2::RecvStream;
use h2::client::SendRequest;
use std::net::SocketAddr;
use tokio::net::TcpStream;

/// A node with a TLS listener for `localhost`.
struct SecureNode {
    node: TestNode,
    address: SocketAddr,
    certificate: ServerCertificate,
    folder: tempfile::TempDir,
}

impl SecureNode {
    fn start(parent: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let files = write_self_signed(folder.path(), &["localhost"], 2100);
        let certificate = ServerCertificate::load(files, PROTOCOLS).expect("good files");
        let mut config = NodeConfig::new("edge", ([127, 0, 0, 1], 0).into());
        config.parents = vec![parent.to_owned()];
        let secure = SecureListener { address: config.address, certificate: certificate.clone() };
        config.secure = Some(secure);
        let node = Node::bind(config).expect("loopback");
        let address = node.secure_addr().expect("bound").expect("it has one");
        Self { node: TestNode::run(node), address, certificate, folder }
    }

    fn trust(&self, protocols: &[&str]) -> ServerTrust {
        ServerTrust::load(&self.folder.path().join("chain.pem"), protocols).expect("an authority")
    }

    fn url(&self) -> String {
        format!("https://localhost:{}", self.address.port())
    }

    async fn client(&self) -> Client {
        let tcp = TcpStream::connect(self.address).await.expect("it listens");
        let tls = self.trust(&["h2"]).connect(tcp, "localhost").await.expect("a trusted server");
        let (requests, connection) = h2::client::handshake(tls).await.expect("it speaks HTTP/2");
        tokio::spawn(connection);
        Client { requests }
    }
}

/// An HTTP/2 client.
struct Client {
    requests: SendRequest<Bytes>,
}

impl Client {
    /// Sends a request. Returns the status and the unread body.
    async fn ask(&self, target: &str) -> (StatusCode, RecvStream) {
        let request = Request::get(format!("https://localhost{target}")).body(()).expect("a target");
        let mut ready = self.requests.clone().ready().await.expect("the connection stands");
        let (answer, _) = ready.send_request(request, true).expect("the connection stands");
        let (head, body) = answer.await.expect("an answer").into_parts();
        (head.status, body)
    }

    async fn get(&self, target: &str) -> (StatusCode, Vec<u8>) {
        let (status, mut body) = self.ask(target).await;
        (status, read(&mut body, usize::MAX).await)
    }
}

/// Reads a body to its end, or until `bytes_max` bytes have been read.
async fn read(body: &mut RecvStream, bytes_max: usize) -> Vec<u8> {
    let mut whole = Vec::new();
    while whole.len() < bytes_max {
        let Some(bytes) = body.data().await else { break };
        let bytes = bytes.expect("no break");
        whole.extend_from_slice(&bytes);
        body.flow_control().release_capacity(bytes.len()).expect("they were received");
    }
    whole
}

/// Plays the stream over TLS with ten players, for this time or to its end. Returns the number of
/// stalls.
async fn stalls_over_tls(duration: Option<Duration>) -> u64 {
    let (source, _publish) = on_air().await;
    let edge = SecureNode::start(&source.url);
    get_once_there(&source.url, "/news/index.m3u8").await;
    let url = edge.url();
    let players = (0..10).map(|_| spec(PlayerKind::Buffering, &[&url])).collect();
    let trust = Some(edge.trust(&["http/1.1"]));
    let config = PlayersConfig { players, dns: None, trust, duration, first_patience: FIRST_PATIENCE };
    let without = Players::new(PlayersConfig { trust: None, ..config.clone() });
    assert!(without.expect_err("no authority").to_string().contains("no authority is known"));
    let reports = Players::new(config).expect("a set-up").run(std::future::pending()).await;
    for report in &reports {
        let measured = &report.measurements;
        assert_eq!(measured.counts.failed, 0, "{:?}", measured.last_failure);
        assert!(measured.counts.objects > 5, "{:?}", measured.counts);
    }
    reports.iter().map(|report| report.measurements.stalls).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn players_over_tls_play_the_stream() {
    stalls_over_tls(None).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "it measures: `make claims`"]
async fn players_over_tls_do_not_stall() {
    // The stream lasts seven seconds. Players stall while the source waits for another publisher.
    assert_eq!(stalls_over_tls(Some(Duration::from_secs(5))).await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn http2_client_receives_playlists_and_parts() {
    let (source, _publish) = on_air().await;
    let edge = SecureNode::start(&source.url);
    get_once_there(&source.url, "/news/main/index.m3u8").await;
    let client = edge.client().await;
    let mut playlist = loop {
        let (_, text) = client.get("/news/main/index.m3u8").await;
        let playlist = MediaPlaylist::read(&text).expect("a playlist");
        if !playlist.preload_hints.is_empty() {
            break playlist;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    };
    for _ in 0..5 {
        // The hinted part is requested together with the playlist that will list it, on one
        // connection.
        let hint = playlist.preload_hints.first().map(|hint| hint.uri.clone()).expect("low latency");
        let part = playlist.open.as_ref().map_or(0, |open| open.parts.len() as u64);
        let msn = Some(playlist.next_msn());
        let directives = DeliveryDirectives { msn, part: Some(part), skip: None };
        let target = format!("/news/main/index.m3u8?{}", directives.query());
        let media = format!("/news/main/{hint}");
        let ((status, text), (media_status, bytes)) = tokio::join!(client.get(&target), client.get(&media));
        assert_eq!((status, media_status), (StatusCode::OK, StatusCode::OK));
        let (_, of_source) = get(&source.url, &media).await;
        assert!(!bytes.is_empty() && bytes == of_source, "{media}");
        let next = MediaPlaylist::read(&text).expect("a playlist");
        assert!(next.next_msn() > playlist.next_msn() || next.preload_hints != playlist.preload_hints);
        playlist = next;
    }
}

/// The origin sends its last part only after the viewer has received the five parts before it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn body_streams_while_the_certificate_is_replaced() {
    let origin = TestOrigin::start("max-age=60");
    let edge = SecureNode::start(&origin.url);
    let client = edge.client().await;
    origin.parts.add_permits(PARTS - 1);
    let (status, mut body) = client.ask("/ch/piece.mp4").await;
    assert_eq!(status, StatusCode::OK);
    let before_last = object().len() / PARTS * (PARTS - 1);
    let mut whole = read(&mut body, before_last).await;
    assert_eq!(whole.len(), before_last);

    write_self_signed(edge.folder.path(), &["localhost"], 2101);
    assert!(edge.certificate.has_changed());
    edge.certificate.reload().expect("good files");
    // From now on the client trusts only the new certificate.
    assert_eq!(edge.client().await.get("/health").await.0, StatusCode::OK);

    origin.parts.add_permits(1);
    whole.extend(read(&mut body, usize::MAX).await);
    assert!(whole == object(), "other bytes than the origin's");
    assert_eq!(client.get("/ch/piece.mp4").await.1, object());
    assert_eq!(origin.requests(), 1);
}

/// A client once requested thousands of objects on one connection and read none. The relay kept a
/// viewer for each.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_that_cancels_repeatedly_is_disconnected() {
    let origin = TestOrigin::start("max-age=60");
    let edge = SecureNode::start(&origin.url);
    let rude = edge.client().await;
    let cancels = async {
        for number in 0..100_000 {
            let request =
                Request::get(format!("https://localhost/ch/{number}.mp4")).body(()).expect("a target");
            let Ok(mut ready) = rude.requests.clone().ready().await else { return number };
            let Ok((answer, mut stream)) = ready.send_request(request, true) else { return number };
            tokio::task::yield_now().await;
            stream.send_reset(h2::Reason::CANCEL);
            drop(answer);
        }
        100_000
    };
    let asked = tokio::time::timeout(std::time::Duration::from_secs(120), cancels).await;
    assert!(asked.expect("it is disconnected") < 100_000);
    assert!((edge.node.counts)().joins < 5_000);
    // The origin may still send parts of cancelled objects.
    origin.parts.add_permits(10_000 * PARTS);
    assert_eq!(edge.client().await.get("/ch/piece.mp4").await.1, object());
}

/// A player needs only a signed URL, because playlists lead to further signed URLs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn edge_with_secrets_serves_signed_urls_only() {
    let (source, _publish) = on_air().await;
    get_once_there(&source.url, "/news/index.m3u8").await;
    let secrets = SigningSecrets::read("0123456789abcdef0123456789abcdef").expect("a secret");
    let mut config = NodeConfig::new("edge", ([127, 0, 0, 1], 0).into());
    config.parents = vec![source.url.clone()];
    config.signing = Some(secrets.clone());
    let node = Node::bind(config).expect("loopback");
    let metrics = node.metrics();
    let edge = TestNode::run(node);
    let grant = |expires_unix_s| Grant { path: "/news".to_owned(), expires_unix_s, clients: None };
    let signed = |end| format!("{}{}", edge.url, secrets.sign(&grant(end)).expect("a path"));
    let good = signed(u64::MAX);
    let specs = (0..4).map(|_| spec(PlayerKind::Buffering, &[&good])).collect();
    let first_patience = FIRST_PATIENCE;
    let config = PlayersConfig { players: specs, dns: None, trust: None, duration: None, first_patience };
    let reports = Players::new(config).expect("a set-up").run(std::future::pending()).await;
    for report in reports {
        let measured = &report.measurements;
        assert_eq!((measured.counts.refused, measured.counts.failed), (0, 0), "{:?}", measured.last_failure);
        assert!(measured.counts.objects > 3, "{:?}", measured.counts);
    }
    let target = |url: &str| url.trim_start_matches(&edge.url).to_owned() + "/news/index.m3u8";
    let bad = target(&good).replace("/~1", "/~2");
    for (target, said) in
        [("/news/index.m3u8".to_owned(), "missing"), (bad, "wrong"), (target(&signed(1)), "expired at 1 s")]
    {
        let (status, line) = get(&edge.url, &target).await;
        let line = String::from_utf8(line).expect("text");
        assert_eq!(status, StatusCode::FORBIDDEN);
        assert!(
            line.starts_with("signature: ") && line.contains(said) && line.lines().count() == 1,
            "{line}"
        );
    }
    assert_eq!(get(&edge.url, "/health").await.0, StatusCode::OK);
    let text = metrics();
    for reason in ["missing", "wrong", "expired"] {
        let line = format!("anabranch_live_requests_unsigned_total{{reason=\"{reason}\"}} 1\n");
        assert!(text.contains(&line), "{text}");
    }
}
