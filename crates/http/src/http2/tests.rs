//! Clients over TLS, well-behaved and abusive, against a server on loopback.

use super::*;
use crate::plain::{PROTOCOLS, PlainLimits, PlainServer};
use anabranch_net::public::{ServerCertificate, ServerTrust, write_self_signed};
use axum::Router;
use axum::body::Body as AnyBody;
use axum::routing::get;
use h2::client::{ResponseFuture, SendRequest};
use hyper::Request;
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(100);
/// More bytes than the buffers of the server and the kernel hold.
const LONG_BYTES: usize = 8 << 20;

struct Server {
    at: SocketAddr,
    trust: ServerTrust,
    /// As `trust`, but without ALPN.
    trust_without_protocols: ServerTrust,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn patient(speaking_max: usize) -> PlainLimits {
    let mut limits = PlainLimits::default();
    limits.admission.speaking_max = speaking_max;
    limits.admission.silent_time = LONG;
    limits.admission.speaking_time = LONG;
    PlainLimits { write_time: LONG, ..limits }
}

impl Server {
    fn start(limits: PlainLimits) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let files = write_self_signed(folder.path(), &["localhost"], 2100);
        let certificate = ServerCertificate::load(files.clone(), PROTOCOLS).expect("good files");
        let trust = ServerTrust::load(&files.chain, &["h2"]).expect("an authority");
        let trust_without_protocols = ServerTrust::load(&files.chain, &[]).expect("an authority");
        let server = PlainServer::bind(([127, 0, 0, 1], 0).into(), limits).expect("loopback");
        let at = server.local_addr().expect("bound");
        let router = Router::new()
            .route("/", get(async || "well"))
            .route("/long", get(async || vec![7_u8; LONG_BYTES]))
            .route("/never", get(async || std::future::pending::<AnyBody>().await));
        let server = server.with_certificate(certificate);
        let task = tokio::spawn(async move { match server.run(router).await {} });
        Self { at, trust, trust_without_protocols, task }
    }

    async fn connect(&self, from: [u8; 4]) -> Client {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.bind((from, 0).into()).expect("all of 127.0.0.0/8 is loopback");
        let tcp = socket.connect(self.at).await.expect("it listens");
        let tls = self.trust.connect(tcp, "localhost").await.expect("a trusted server");
        assert_eq!(tls.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
        let (requests, connection) = h2::client::handshake(tls).await.expect("it speaks HTTP/2");
        let over = tokio::spawn(connection);
        Client { requests, over }
    }
}

struct Client {
    requests: SendRequest<Bytes>,
    over: tokio::task::JoinHandle<Result<(), h2::Error>>,
}

impl Client {
    async fn ask(&mut self, path: &str) -> ResponseFuture {
        self.try_ask(path).await.expect("the connection stands")
    }

    /// Sends a request; `None` if the connection is closed.
    async fn try_ask(&mut self, path: &str) -> Option<ResponseFuture> {
        let request = Request::get(format!("https://localhost{path}")).body(()).expect("a path");
        self.requests = self.requests.clone().ready().await.ok()?;
        Some(self.requests.send_request(request, true).ok()?.0)
    }

    async fn is_answered(&mut self) -> bool {
        let answer = self.ask("/").await;
        matches!(timeout(LONG, answer).await, Ok(Ok(response)) if response.status() == 200)
    }
}

const LOCAL: [u8; 4] = [127, 0, 0, 1];

#[tokio::test]
async fn clients_of_http1_and_http2_are_answered() {
    let server = Server::start(patient(100));
    let mut client = server.connect(LOCAL).await;
    assert!(client.is_answered().await);
    let mut body = client.ask("/long").await.await.expect("an answer").into_body();
    let mut length = 0;
    while let Some(bytes) = body.data().await {
        let bytes = bytes.expect("a whole answer");
        length += bytes.len();
        body.flow_control().release_capacity(bytes.len()).expect("it was received");
    }
    assert_eq!(length, LONG_BYTES);

    let tcp = TcpStream::connect(server.at).await.expect("it listens");
    let mut tls = server.trust_without_protocols.connect(tcp, "localhost").await.expect("trusted");
    tls.write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").await.expect("it reads");
    let mut heard = String::new();
    tls.read_to_string(&mut heard).await.expect("a whole answer");
    assert!(heard.starts_with("HTTP/1.1 200 ") && heard.ends_with("well"), "{heard}");
}

#[tokio::test]
async fn client_that_cancels_streams_endlessly_is_disconnected() {
    let server = Server::start(patient(1_000));
    let mut polite = server.connect(LOCAL).await;
    let mut rude = server.connect([127, 0, 0, 2]).await;
    let cancels = async {
        loop {
            let request = Request::get("https://localhost/never").body(()).expect("a path");
            let Ok(ready) = rude.requests.clone().ready().await else { return };
            rude.requests = ready;
            let Ok((answer, mut stream)) = rude.requests.send_request(request, true) else { return };
            // Gives the server time to begin its work on the request.
            tokio::task::yield_now().await;
            stream.send_reset(h2::Reason::CANCEL);
            drop(answer);
        }
    };
    timeout(LONG, cancels).await.expect("it is disconnected");
    assert!(timeout(LONG, rude.over).await.is_ok());
    assert!(polite.is_answered().await);
}

#[tokio::test]
async fn few_cancelled_streams_keep_the_connection_open() {
    let server = Server::start(patient(1_000));
    let mut client = server.connect(LOCAL).await;
    for _ in 0..CANCELLED_PER_S_MAX / 2 {
        drop(client.ask("/never").await);
    }
    assert!(client.is_answered().await);
}

/// One address took all request slots with a few connections.
#[tokio::test]
async fn busiest_address_loses_its_oldest_stream() {
    let server = Server::start(patient(8));
    let mut early = server.connect(LOCAL).await;
    let early_answer = early.ask("/never").await;
    let mut busy = server.connect([127, 0, 0, 2]).await;
    let mut answers = Vec::new();
    for _ in 0..12 {
        answers.push(busy.ask("/never").await);
    }
    let oldest = answers.remove(0);
    assert!(timeout(LONG, oldest).await.expect("it is dropped").is_err());
    assert!(early.is_answered().await);
    assert!(timeout(SHORT, early_answer).await.is_err(), "the only stream of its address waits on");
    assert!(timeout(SHORT, answers.pop().expect("the last one")).await.is_err(), "the youngest, too");
}

#[tokio::test]
async fn stream_whose_client_reads_nothing_is_reset() {
    let server = Server::start(PlainLimits { write_time: SHORT, ..patient(100) });
    let mut client = server.connect(LOCAL).await;
    let mut body = client.ask("/long").await.await.expect("an answer").into_body();
    // The client never enlarges the first flow-control window.
    let mut length = 0;
    let broken = async {
        loop {
            match body.data().await {
                Some(Ok(bytes)) => length += bytes.len(),
                ended => return ended,
            }
        }
    };
    assert!(timeout(LONG, broken).await.expect("it is reset").is_some_and(|ended| ended.is_err()));
    assert!(length < LONG_BYTES);
    // A stream whose answer has not begun is not reset.
    let waiting = client.ask("/never").await;
    assert!(timeout(5 * SHORT, waiting).await.is_err());
    assert!(client.is_answered().await);
}

#[tokio::test]
async fn connection_without_streams_is_closed_in_time() {
    let mut limits = patient(100);
    limits.admission.speaking_time = SHORT;
    let server = Server::start(limits);
    // The request of a late client finds its connection closed.
    let mut kept = None;
    for _ in 0..20 {
        let mut client = server.connect(LOCAL).await;
        let Some(waiting) = client.try_ask("/never").await else { continue };
        if timeout(5 * SHORT, waiting).await.is_err() {
            kept = Some(client);
            break;
        }
    }
    let kept = kept.expect("an open stream keeps its connection");
    assert!(timeout(LONG, kept.over).await.is_ok());
}

#[tokio::test]
async fn request_heads_and_stream_counts_are_limited() {
    let server = Server::start(patient(1_000));
    let mut client = server.connect(LOCAL).await;
    let mut answers = Vec::new();
    for _ in 0..STREAMS_MAX {
        answers.push(client.ask("/never").await);
    }
    let is_told = async {
        while client.requests.current_max_send_streams() != STREAMS_MAX as usize {
            tokio::time::sleep(SHORT).await;
        }
    };
    timeout(LONG, is_told).await.expect("the server tells its limit");
    answers.clear();
    let long = "x".repeat(20 << 10);
    let request = Request::get("https://localhost/").header("x-long", long).body(()).expect("a path");
    let ready = client.requests.clone().ready().await.expect("the connection stands");
    client.requests = ready;
    let answer = client.requests.send_request(request, true).map(|(answer, _)| answer);
    let refused = match answer {
        Ok(answer) => match timeout(LONG, answer).await.expect("an answer") {
            Ok(response) => response.status() == 431,
            Err(_) => true,
        },
        Err(_) => true,
    };
    assert!(refused);
}
