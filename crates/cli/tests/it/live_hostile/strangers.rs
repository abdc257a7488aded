//! Publishers and viewers that misbehave over plain HTTP.

use super::nodes::Mallory;
use super::{ENDLESS_BYTES, EVIL_TOKEN, World};
use crate::net::{PATIENCE, noise};
use anabranch_http::origin::Origin;
use anabranch_media::cmaf::TestPattern;
use anabranch_units::{BitRate, Duration as MediaDuration};
use hyper::HeaderMap;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// Number of requests with a wrong token.
const WRONG_TOKENS: usize = 1_000;
/// Number of short uploads of one publisher.
const SHORT_UPLOADS: usize = 200;
/// Number of connections that send their head byte by byte, and again of silent readers.
const SLOW_VIEWERS: usize = 200;
/// Number of unknown channels that a viewer requests.
const UNKNOWN_CHANNELS: usize = 2_000;
/// Time for which slow viewers stay.
const SLOW_TIME: Duration = Duration::from_millis(1_500);

/// An HTTP/1.1 connection with one request at a time.
struct Connection(BufReader<TcpStream>);

impl Connection {
    async fn open(at: SocketAddr) -> Self {
        Self(BufReader::new(TcpStream::connect(at).await.expect("it listens")))
    }

    /// Sends a request without a body, and reads the answer. Returns the status.
    ///
    /// Errors: the connection ends, or the answer has no length.
    async fn ask(&mut self, request_line: &str, headers: &str) -> io::Result<u16> {
        let head = format!("{request_line} HTTP/1.1\r\nHost: live\r\n{headers}Content-Length: 0\r\n\r\n");
        self.0.write_all(head.as_bytes()).await?;
        self.0.flush().await?;
        let (mut status, mut length) = (None, None);
        loop {
            let mut line = String::new();
            if self.0.read_line(&mut line).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let line = line.trim_end().to_ascii_lowercase();
            if line.is_empty() {
                break;
            }
            if status.is_none() {
                status = line.split(' ').nth(1).and_then(|word| word.parse().ok());
            }
            if let Some(value) = line.strip_prefix("content-length:") {
                length = value.trim().parse::<usize>().ok();
            }
        }
        let mut body = vec![0; length.ok_or_else(|| io::Error::other("no length"))?];
        self.0.read_exact(&mut body).await?;
        status.ok_or_else(|| io::Error::other("no status"))
    }
}

/// Publishes with a wrong token.
pub async fn wrong_tokens(world: &World) {
    let mut connection = Connection::open(world.address("london")).await;
    for _ in 0..WRONG_TOKENS {
        let answer = connection.ask("PUT /news/main", "Authorization: Bearer 0123456789abcdeX\r\n").await;
        assert_eq!(answer.expect("the source answers"), 401);
    }
}

/// Uploads `first`, then `more` repeatedly, up to `bytes_max` bytes or until the source closes the
/// connection. Returns the number of bytes sent.
async fn upload(world: &World, first: &[u8], mut more: impl FnMut() -> Vec<u8>, bytes_max: u64) -> u64 {
    let mut stream = TcpStream::connect(world.address("london")).await.expect("it listens");
    let head = format!(
        "PUT /evil/main HTTP/1.1\r\nHost: live\r\nAuthorization: Bearer {EVIL_TOKEN}\r\n\
         Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    );
    let (mut sent, mut next) = (0, first.to_vec());
    let uploads = async {
        stream.write_all(head.as_bytes()).await?;
        loop {
            stream.write_all(format!("{:x}\r\n", next.len()).as_bytes()).await?;
            stream.write_all(&next).await?;
            stream.write_all(b"\r\n").await?;
            sent += next.len() as u64;
            if sent >= bytes_max {
                break;
            }
            next = more();
        }
        stream.write_all(b"0\r\n\r\n").await?;
        stream.read_to_end(&mut Vec::new()).await
    };
    // A refused upload is closed at any time.
    let _ = timeout(PATIENCE, uploads).await.expect("the source reads, or closes the connection");
    sent
}

/// Header of a box that claims 2^62 bytes.
fn huge_box(kind: &[u8; 4]) -> Vec<u8> {
    [&[0, 0, 0, 1][..], kind, &(1u64 << 62).to_be_bytes()].concat()
}

/// Publishes invalid and endless streams with a valid token.
pub async fn bad_uploads(world: &World) {
    // One segment without an end: no key frame follows the first.
    let (rate, hour) = (BitRate::mbps(100), MediaDuration::from_secs(3_600));
    let mut pattern = TestPattern::new(rate, MediaDuration::from_ms(200), hour);
    let init = pattern.init();
    let sent = upload(world, &init, || pattern.next_fragment(), 2 * ENDLESS_BYTES).await;
    assert!(sent < 2 * ENDLESS_BYTES, "the source takes a segment of {sent} bytes");

    let filler = vec![7; 1 << 20];
    for kind in [b"mdat", b"free"] {
        let first = [&init[..], &huge_box(kind)].concat();
        upload(world, &first, || filler.clone(), ENDLESS_BYTES).await;
    }
    let first = [&init[..], &huge_box(b"moof")].concat();
    let sent = upload(world, &first, || filler.clone(), ENDLESS_BYTES).await;
    assert!(sent < ENDLESS_BYTES, "the source takes a moof of {sent} bytes");
    for seed in 0..8 {
        let random = noise(seed, 1 << 20);
        upload(world, &random, || random.clone(), 8 << 20).await;
    }
    for _ in 0..SHORT_UPLOADS {
        upload(world, b"\xff\xff\xff\xffmoof", Vec::new, 8).await;
    }
}

/// Misbehaves as viewers of the edge, alone and in numbers.
pub async fn bad_viewers(world: &World, mallory: &Mallory) {
    let at = world.address("rome");
    for target in ["/trap/main/index.m3u8", "/trap/main/1.m4s"] {
        endless_object(at, target, mallory).await;
    }
    let mut slow = JoinSet::new();
    for _ in 0..SLOW_VIEWERS {
        slow.spawn(send_slowly(at));
        slow.spawn(read_nothing(at));
    }
    bad_requests(at).await;
    sleep(SLOW_TIME).await;
    slow.shutdown().await;
}

/// Sends a head byte by byte until the edge closes the connection.
async fn send_slowly(at: SocketAddr) -> io::Result<Infallible> {
    let mut stream = TcpStream::connect(at).await?;
    stream.write_all(b"GET /news/index.m3u8 HTTP/1.1\r\nX-Slow: ").await?;
    loop {
        stream.write_all(b"x").await?;
        sleep(Duration::from_millis(100)).await;
    }
}

/// Requests an endless object, and reads nothing of the answer.
async fn read_nothing(at: SocketAddr) -> io::Result<Infallible> {
    let mut stream = TcpStream::connect(at).await?;
    stream.write_all(b"GET /trap/main/2.m4s HTTP/1.1\r\nHost: live\r\n\r\n").await?;
    // The socket stays open.
    std::future::pending().await
}

/// Reads an object of `mallory` at the edge until `mallory` has sent [`ENDLESS_BYTES`] of it.
async fn endless_object(at: SocketAddr, target: &str, mallory: &Mallory) {
    let origin = Origin::new(&format!("http://{at}")).expect("a URL");
    let (before, end) = (mallory.sent_bytes(), Instant::now() + PATIENCE);
    while mallory.sent_bytes() - before < ENDLESS_BYTES {
        assert!(Instant::now() < end, "{target}: {} bytes are relayed", mallory.sent_bytes() - before);
        // The edge refuses until it has heard the advertisement, and may cut a slow viewer off.
        let reads = async {
            let Ok(mut reply) = origin.get(target, &HeaderMap::new()).await else { return };
            while mallory.sent_bytes() - before < ENDLESS_BYTES
                && let Ok(Some(_)) = reply.bytes().await
            {}
        };
        let _ = timeout(PATIENCE, reads).await;
        sleep(Duration::from_millis(50)).await;
    }
}

/// Sends requests that no player sends.
async fn bad_requests(at: SocketAddr) {
    let mut connection = Connection::open(at).await;
    for (target, status) in [
        ("/news/main/index.m3u8?_HLS_part=-1", 400),
        ("/news/main/index.m3u8?_HLS_msn=1&_HLS_part=-1", 400),
        ("/news/main/index.m3u8?_HLS_msn=18446744073709551616", 400),
        ("/../../etc/passwd", 400),
        ("/news/main/../main/1.m4s", 400),
        ("/nothing", 404),
    ] {
        let answer = connection.ask(&format!("GET {target}"), "").await;
        assert_eq!(answer.expect("the edge answers"), status, "{target}");
    }
    for number in 0..UNKNOWN_CHANNELS {
        let answer = connection.ask(&format!("GET /channel-{number}/main/index.m3u8"), "").await;
        assert_eq!(answer.expect("the edge answers"), 404);
    }
    // The edge waits for another parent before it passes on the source's refusal.
    let far = "GET /news/main/index.m3u8?_HLS_msn=18446744073709551615";
    let answer = timeout(PATIENCE, connection.ask(far, "")).await.expect("an answer in time");
    answer.expect("the edge answers");
    for _ in 0..16 {
        let mut stream = TcpStream::connect(at).await.expect("it listens");
        let heads = async {
            stream.write_all(b"GET / HTTP/1.1\r\nX-Long: ").await?;
            for _ in 0..16 {
                stream.write_all(&[b'x'; 64 << 10]).await?;
            }
            stream.read_to_end(&mut Vec::new()).await
        };
        let _ = timeout(PATIENCE, heads).await.expect("the edge closes the connection");
    }
}
