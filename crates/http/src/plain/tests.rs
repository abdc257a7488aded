//! Listeners on loopback, and clients that misbehave.

use super::*;
use axum::routing::{get, post};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

/// A time limit that no step of a test reaches.
const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(50);

const QUESTION: &str = "GET / HTTP/1.1\r\nhost: x\r\n\r\n";
/// A request whose body is missing.
const HALF: &str = "POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\n\r\n";
const FLOOD: u8 = 3;

fn patient(silent_max: usize, speaking_max: usize) -> PlainLimits {
    let admission = AdmissionLimits { silent_max, speaking_max, silent_time: LONG, speaking_time: LONG };
    let times = PlainLimits { body_time: LONG, write_time: LONG, ..PlainLimits::for_connections(8) };
    PlainLimits { admission, bodies_max: 4, ..times }
}

/// Serves until the test ends; returns the listener's address.
fn serve(limits: PlainLimits) -> SocketAddr {
    let server = PlainServer::bind(([127, 0, 0, 1], 0).into(), limits).expect("a free port");
    let at = server.local_addr().expect("it is bound");
    let router = Router::new()
        .route("/", get(async || "well"))
        .route("/long", get(async || "x".repeat(100_000)))
        .route("/echo", post(async |body: String| body));
    tokio::spawn(server.run(router));
    at
}

/// Opens a connection from 127.0.0.`host` and sends `words` on it.
async fn say(at: SocketAddr, host: u8, words: &str) -> TcpStream {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.bind(([127, 0, 0, host], 0).into()).expect("all of 127.0.0.0/8 is loopback");
    let mut tcp = socket.connect(at).await.expect("it listens");
    tcp.write_all(words.as_bytes()).await.expect("it is open");
    tcp
}

/// Returns the answer up to and including `end`, or all of it if the connection ends before.
async fn hear(tcp: &mut TcpStream, end: &str) -> String {
    let (mut heard, mut bytes) = (String::new(), [0; 1_024]);
    let hears = async {
        while !heard.ends_with(end) {
            match tcp.read(&mut bytes).await {
                Ok(0) | Err(_) => return,
                Ok(count) => heard += std::str::from_utf8(&bytes[..count]).expect("text"),
            }
        }
    };
    timeout(LONG, hears).await.expect("in time");
    heard
}

async fn is_answered(tcp: &mut TcpStream) -> bool {
    hear(tcp, "well").await.starts_with("HTTP/1.1 200 ")
}

/// Waits until at most `most` connections are open, and returns their number.
async fn open(held: &mut [TcpStream], most: usize) -> usize {
    let counts = async {
        loop {
            let is_open = |tcp: &TcpStream| matches!(tcp.try_read(&mut [0; 1]), Err(error) if error.kind() == io::ErrorKind::WouldBlock);
            let count = held.iter().filter(|tcp| is_open(tcp)).count();
            if count <= most {
                return count;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(LONG, counts).await.expect("in time")
}

/// #48: each silent connection took a slot before it was accepted. Once all slots were taken, no
/// other client could connect.
#[tokio::test]
async fn silent_connections_of_one_address_exclude_no_client() {
    let at = serve(patient(8, 8));
    let mut early = say(at, 2, "").await;
    let mut held = Vec::new();
    for _ in 0..40 {
        held.push(say(at, FLOOD, "").await);
    }
    assert!(is_answered(&mut say(at, FLOOD, QUESTION).await).await, "one of the same address");
    assert_eq!(open(&mut held, 6).await, 6, "the early one and the one that asked had a place, too");
    early.write_all(QUESTION.as_bytes()).await.expect("it is open");
    assert!(is_answered(&mut early).await);
    // A connection that has sent a request is not dropped for silent connections.
    for _ in 0..40 {
        held.push(say(at, FLOOD, "").await);
    }
    early.write_all(QUESTION.as_bytes()).await.expect("it is open");
    assert!(is_answered(&mut early).await);
}

/// #48: players behind one proxy have one address. Their idle connections are dropped for new
/// requests.
#[tokio::test]
async fn busiest_address_loses_its_longest_idle_connection() {
    let at = serve(patient(8, 3));
    let mut held = Vec::new();
    for _ in 0..3 {
        let mut tcp = say(at, FLOOD, QUESTION).await;
        assert!(is_answered(&mut tcp).await);
        held.push(tcp);
    }
    // The first connection sends another request, so the second one has been idle for the longest
    // time.
    held[0].write_all(QUESTION.as_bytes()).await.expect("it is open");
    assert!(is_answered(&mut held[0]).await);
    let mut newcomer = say(at, FLOOD, QUESTION).await;
    assert!(is_answered(&mut newcomer).await);
    assert_eq!(open(&mut held, 2).await, 2);
    assert_eq!(open(&mut held[1..2], 0).await, 0);
}

/// #48: a request whose body never arrived kept its slot for ever.
#[tokio::test]
async fn body_that_does_not_arrive_in_time_is_refused() {
    let at = serve(PlainLimits { body_time: SHORT, ..patient(8, 8) });
    let mut tcp = say(at, 2, HALF).await;
    assert!(hear(&mut tcp, "\0").await.starts_with("HTTP/1.1 408 "), "and then it is closed");
    let mut tcp = say(serve(patient(8, 8)), 2, HALF).await;
    tcp.write_all(b"well").await.expect("it is open");
    assert!(is_answered(&mut tcp).await);
}

/// #48: only the number of connections limited the number of bodies in transfer.
#[tokio::test]
async fn newer_bodies_displace_stalled_bodies() {
    let at = serve(patient(16, 16));
    let mut early = say(at, 2, HALF).await;
    early.write_all(b"we").await.expect("it is open");
    let mut held = Vec::new();
    for _ in 0..12 {
        held.push(say(at, FLOOD, HALF).await);
    }
    assert!(hear(&mut held[0], "\0").await.starts_with("HTTP/1.1 503 "), "the oldest of the busiest address");
    early.write_all(b"ll").await.expect("it is open");
    assert!(is_answered(&mut early).await);
    let mut late = say(at, FLOOD, HALF).await;
    late.write_all(b"well").await.expect("it is open");
    assert!(is_answered(&mut late).await);
}

#[tokio::test]
async fn a_body_beyond_its_limit_is_refused() {
    let at = serve(PlainLimits { body_bytes_max: 4, ..patient(8, 8) });
    for (length, status) in [(4, "200"), (5, "413")] {
        let words =
            format!("POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n{:0<length$}", "");
        let mut tcp = say(at, 2, &words).await;
        let heard = hear(&mut tcp, if length == 4 { "0000" } else { "\n" }).await;
        assert!(heard.starts_with(&format!("HTTP/1.1 {status} ")), "{heard}");
    }
}

/// #48: a client that kept sending requests and read no answer kept its connection for ever.
#[tokio::test]
async fn client_that_reads_no_answers_is_disconnected() {
    let at = serve(PlainLimits { write_time: SHORT, ..patient(8, 8) });
    let question = QUESTION.replace(" / ", " /long ");
    let mut tcp = say(at, 2, &question).await;
    let asks = async { while tcp.write_all(question.as_bytes()).await.is_ok() {} };
    timeout(LONG, asks).await.expect("it is closed in time");
}

/// #48: pipelined requests of a few thousand connections occupied the players' thread.
#[tokio::test]
async fn pipelined_request_waits_for_the_pause() {
    let at = serve(patient(8, 8));
    let begun = std::time::Instant::now();
    let mut one_by_one = say(at, 2, QUESTION).await;
    for _ in 0..3 {
        assert!(is_answered(&mut one_by_one).await);
        one_by_one.write_all(QUESTION.as_bytes()).await.expect("it is open");
    }
    let mut pipelined = say(at, 2, &QUESTION.repeat(2)).await;
    assert!(is_answered(&mut pipelined).await && is_answered(&mut pipelined).await);
    assert!(begun.elapsed() >= PIPELINED_PAUSE);
}

/// Serves each client its own address.
fn serve_clients(proxies: &str, has_proxy_protocol: bool) -> SocketAddr {
    let server = PlainServer::bind(([127, 0, 0, 1], 0).into(), patient(8, 8)).expect("a free port");
    let proxies: Proxies = proxies.parse().expect("prefixes");
    let at = server.local_addr().expect("it is bound");
    let who = async |Extension(PeerAddress(from)): Extension<PeerAddress>| format!("{from}!");
    let router = Router::new().route("/", get(who));
    let server = server.with_proxies(proxies.with_proxy_protocol(has_proxy_protocol));
    tokio::spawn(server.with_cors(Cors::default()).run(router));
    at
}

fn forwarded_question(address: &str) -> String {
    format!("GET / HTTP/1.1\r\nhost: x\r\nx-forwarded-for: {address}\r\n\r\n")
}

#[tokio::test]
async fn each_proxied_request_has_its_own_client_address() {
    let at = serve_clients("127.0.0.2", false);
    let mut proxy = say(at, 2, &forwarded_question("203.0.113.9")).await;
    assert!(hear(&mut proxy, "!").await.ends_with("\r\n\r\n203.0.113.9!"));
    proxy.write_all(forwarded_question("2001:db8::9").as_bytes()).await.expect("it is open");
    assert!(hear(&mut proxy, "!").await.ends_with("\r\n\r\n2001:db8::9!"));
    let mut other = say(at, 3, &forwarded_question("203.0.113.9")).await;
    assert!(hear(&mut other, "!").await.ends_with("\r\n\r\n127.0.0.3!"));
}

#[tokio::test]
async fn proxy_protocol_header_sets_the_connections_client() {
    let at = serve_clients("127.0.0.2", true);
    let header = "PROXY TCP4 203.0.113.9 127.0.0.1 4711 80\r\n";
    let mut proxy = say(at, 2, &format!("{header}{QUESTION}")).await;
    assert!(hear(&mut proxy, "!").await.ends_with("203.0.113.9!"));
    let mut without = say(at, 2, QUESTION).await;
    assert_eq!(hear(&mut without, "!").await, "", "the proxy is not set up for it");
    let mut forged = say(at, 3, &format!("{header}{QUESTION}")).await;
    assert!(hear(&mut forged, "\n").await.starts_with("HTTP/1.1 400 "), "it is no proxy");
    let mut direct = say(at, 3, QUESTION).await;
    assert!(hear(&mut direct, "!").await.ends_with("127.0.0.3!"));
}

#[tokio::test]
async fn pages_of_other_origins_can_read_refusals() {
    let at = serve_clients("none", false);
    let origin = "origin: https://page.example\r\n";
    for (method, path, status, header) in [
        ("GET", "/", 200, "access-control-expose-headers: "),
        ("GET", "/unknown", 404, "access-control-expose-headers: "),
        ("PUT", "/", 405, "access-control-expose-headers: "),
        ("OPTIONS", "/unknown", 204, "access-control-allow-headers: cmcd-session\r\n"),
    ] {
        let asks = "access-control-request-method: GET\r\naccess-control-request-headers: cmcd-session";
        let words =
            format!("{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{origin}{asks}\r\n\r\n");
        let heard = hear(&mut say(at, 2, &words).await, "\0").await;
        assert!(heard.starts_with(&format!("HTTP/1.1 {status} ")), "{heard}");
        for header in ["access-control-allow-origin: *\r\n", "cache-control: no-store\r\n", header] {
            assert!(heard.contains(header), "{method} {path}: {heard}");
        }
    }
    let too_long = "POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 900000\r\nconnection: close\r\n\r\n";
    let body = "0".repeat(900_000);
    let heard = hear(&mut say(at, 2, &format!("{too_long}{body}")).await, "\0").await;
    assert!(
        heard.starts_with("HTTP/1.1 413 ") && heard.contains("access-control-allow-origin: *"),
        "{heard}"
    );
}

#[tokio::test]
async fn silent_and_idle_connections_are_closed_in_time() {
    let mut limits = patient(8, 8);
    limits.admission.silent_time = SHORT;
    let mut silent = say(serve(limits), 2, "GET / HTTP/1.1\r\n").await;
    assert_eq!(hear(&mut silent, "\0").await, "");
    let mut limits = patient(8, 8);
    limits.admission.speaking_time = SHORT;
    let mut idle = say(serve(limits), 2, QUESTION).await;
    assert!(is_answered(&mut idle).await);
    assert_eq!(hear(&mut idle, "\0").await, "");
}

/// #48: players' connections could take all descriptors of the process.
#[test]
fn connections_leave_descriptors_for_other_work() {
    let of = |descriptors, others| PlainLimits::for_descriptors(descriptors, others, 10_000).descriptors();
    assert_eq!(of(1 << 20, 5_000), 10_000);
    assert_eq!(of(12_000, 5_000), 7_000);
    assert_eq!(of(1_024, 5_000), 256, "where others may take all, they are left three of four");
    let few = PlainLimits::for_descriptors(1_024, 5_000, 10_000).admission;
    assert_eq!((few.silent_max, few.speaking_max), (64, 192));
}
