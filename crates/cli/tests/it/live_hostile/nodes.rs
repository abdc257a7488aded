//! Nodes with valid keys that misbehave: as a parent, as children, and towards the controller.

use super::{MIB, World};
use crate::net::{PATIENCE, noise};
use anabranch_http::ClientError;
use anabranch_live::controller::client::ControllerClient;
use anabranch_live_proto::control::differences::Delta;
use anabranch_live_proto::control::ledger::Digest;
use anabranch_live_proto::control::messages::{
    Cause, ChildMessage, ParentMessage, Report, ToChild, ToParent,
};
use anabranch_live_proto::control::neighbours::{Offer, Reach};
use anabranch_live_proto::control::tables::Version;
use anabranch_live_proto::{ChannelId, NodeId, Object};
use anabranch_net::identity::Identity;
use anabranch_net::keys::Role;
use anabranch_units::BitRate;
use serde::Serialize;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsStream;

/// Number of objects in a table of a neighbour. Its frame stays below 8 MiB.
const TABLE_ENTRIES: u32 = 40_000;
/// Number of connections that `mallory` breaks before it speaks the protocol.
const BROKEN_CONNECTIONS: usize = 8;
/// Number of equal bad requests to the controller.
const BAD_REQUESTS: u64 = 200;
/// Number of streams that a hostile child requests.
const SUBSCRIPTIONS: u32 = 5_000;
/// Interval of heartbeats, below the silence after which a parent counts as failed.
const HEARTBEAT: Duration = Duration::from_millis(200);

/// Object number `number` of no channel in the network.
fn unknown_object(number: u32) -> Object {
    Object { channel: ChannelId(1_000_000 + number), bitrate: BitRate::bps(1_000) }
}

async fn send_frame(write: &mut (impl AsyncWrite + Unpin), frame: &[u8]) -> io::Result<()> {
    write.write_u32(frame.len() as u32).await?;
    write.write_all(frame).await?;
    write.flush().await
}

async fn send(write: &mut (impl AsyncWrite + Unpin), message: &impl Serialize) -> io::Result<()> {
    send_frame(write, &serde_json::to_vec(message).expect("plain data")).await
}

/// Sends a frame that no neighbour may send. `kind` selects it.
async fn send_bad_frame(write: &mut (impl AsyncWrite + Unpin), kind: usize) -> io::Result<()> {
    match kind % 4 {
        0 => send_frame(write, &noise(kind as u64, 4_096)).await,
        // The length of a frame that does not follow.
        1 => {
            write.write_u32(u32::MAX).await?;
            write.write_all(&[b' '; 4_096]).await?;
            write.flush().await
        }
        2 => send_frame(write, "[".repeat(MIB as usize).as_bytes()).await,
        // A word that an error message would quote.
        _ => {
            let text = format!("{{\"life\":1,\"body\":\"{}\"}}", "x".repeat(MIB as usize));
            send_frame(write, text.as_bytes()).await
        }
    }
}

/// A reflector that breaks connections, advertises thousands of objects, and serves endless ones.
pub struct Mallory {
    sent_bytes: Arc<AtomicU64>,
    _tasks: JoinSet<()>,
}

impl Mallory {
    /// Listens for control connections of `rome`, and for requests of objects.
    pub async fn start(world: &World) -> Self {
        let control = TcpListener::bind(world.address("mallory-control")).await.expect("a free port");
        let media = TcpListener::bind(world.address("mallory")).await.expect("a free port");
        let identity = world.identity("mallory");
        let trap = world.layout.object("/trap/main/index.m3u8").expect("it is declared");
        let sent_bytes = Arc::new(AtomicU64::new(0));
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            for number in 0.. {
                let (tcp, _) = control.accept().await.expect("it listens");
                // The child reconnects after each connection that is broken.
                let _ = serve_control(&identity, tcp, number, trap).await;
            }
        });
        let counted = Arc::clone(&sent_bytes);
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (tcp, _) = media.accept().await.expect("it listens");
                connections.spawn(serve_endlessly(tcp, Arc::clone(&counted)));
                while connections.try_join_next().is_some() {}
            }
        });
        Self { sent_bytes, _tasks: tasks }
    }

    /// Bytes of objects sent so far.
    pub fn sent_bytes(&self) -> u64 {
        self.sent_bytes.load(Relaxed)
    }
}

/// Breaks the first connections. Then offers `trap` among thousands of other objects.
async fn serve_control(identity: &Identity, tcp: TcpStream, number: usize, trap: Object) -> io::Result<()> {
    let (mut stream, _) = identity.accept(tcp).await?;
    if number < BROKEN_CONNECTIONS {
        send_bad_frame(&mut stream, number).await?;
        // The child closes the connection. An earlier end could discard the frame.
        let _ = timeout(PATIENCE, stream.read_to_end(&mut Vec::new())).await;
        return Ok(());
    }
    let (read, write) = tokio::io::split(stream);
    let (asked, due) = unbounded_channel();
    let ended = tokio::select! {
        ended = read_requests(read, asked) => ended,
        ended = offer(write, due, trap) => ended,
    };
    ended.map(|never| match never {})
}

/// Reads frames of the child, and passes on its requests of streams.
async fn read_requests(
    mut read: ReadHalf<TlsStream<TcpStream>>,
    asked: UnboundedSender<(Object, u64)>,
) -> io::Result<Infallible> {
    loop {
        let length = read.read_u32().await? as usize;
        let mut text = vec![0; length];
        read.read_exact(&mut text).await?;
        if let Ok(ToParent { body: ChildMessage::Subscribe { object, attempt, .. }, .. }) =
            serde_json::from_slice(&text)
        {
            let _ = asked.send((object, attempt));
        }
    }
}

/// Sends heartbeats, one table, and a grant for each request.
async fn offer(
    mut write: WriteHalf<TlsStream<TcpStream>>,
    mut due: UnboundedReceiver<(Object, u64)>,
    trap: Object,
) -> io::Result<Infallible> {
    let rate = BitRate::mbps(100);
    let heartbeat = Offer { capacity: rate, spare: rate, is_draining: false, is_limited: false };
    let message = |body| ToChild { life: 1, body };
    let others = (0..TABLE_ENTRIES).map(|number| (unknown_object(number), Reach::HERE));
    let set: Vec<_> = std::iter::once((trap, Reach::HERE)).chain(others).collect();
    let table = Delta { numbering: 1, number: 1, is_full: true, set, removed: Vec::new() };
    send(&mut write, &message(ParentMessage::Heartbeat(heartbeat))).await?;
    send(&mut write, &message(ParentMessage::Advertisement(table))).await?;
    let mut ticks = tokio::time::interval(HEARTBEAT);
    loop {
        tokio::select! {
            _ = ticks.tick() => send(&mut write, &message(ParentMessage::Heartbeat(heartbeat))).await?,
            Some((object, attempt)) = due.recv() => {
                send(&mut write, &message(ParentMessage::Granted { object, attempt })).await?;
            }
        }
    }
}

/// Answers a request with a body without an end.
async fn serve_endlessly(mut tcp: TcpStream, sent_bytes: Arc<AtomicU64>) {
    let mut request = vec![0; 16 << 10];
    let Ok(1..) = tcp.read(&mut request).await else { return };
    let is_playlist = request.windows(6).any(|bytes| bytes == b".m3u8 ");
    let (kind, line) = if is_playlist {
        ("application/vnd.apple.mpegurl", "#EXTM3U\n#EXTINF:1,\nx.m4s\n")
    } else {
        ("video/iso.segment", "a part without an end ")
    };
    let head = format!("HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nCache-Control: max-age=60\r\n\r\n");
    let body = line.repeat((64 << 10) / line.len());
    if tcp.write_all(head.as_bytes()).await.is_err() {
        return;
    }
    while tcp.write_all(body.as_bytes()).await.is_ok() {
        sent_bytes.fetch_add(body.len() as u64, Relaxed);
    }
}

fn is_forbidden(answer: &Result<(), ClientError>) -> bool {
    matches!(answer, Err(ClientError::Refused { status: 403, .. }))
}

/// Sends the controller reports for other nodes, reports that cannot be read, and huge ones.
pub async fn bad_reports(world: &World) {
    let (identity, at) = (world.identity("mallory"), world.address("controller"));
    let client = ControllerClient::new(&at.to_string(), &identity, PATIENCE).expect("an address");
    for number in 0..BAD_REQUESTS {
        for name in ["rome", "paris"] {
            let answer = client.report(name, &report(number, 0), PATIENCE).await.map(drop);
            assert!(is_forbidden(&answer), "{name}: {answer:?}");
        }
        let drained = client.drain("rome", true).await;
        assert!(is_forbidden(&drained), "{drained:?}");
        // Each report claims that the node has restarted.
        client.report("mallory", &report(1 + number, 0), PATIENCE).await.expect("its own report");
    }
    for name in ["mallory", "oscar"] {
        let client = ControllerClient::new(&at.to_string(), &world.identity(name), PATIENCE);
        let client = client.expect("an address");
        for number in 0..4 {
            // The controller may refuse a long report.
            let _ = client.report(name, &report(1_000 + number, 20_000), PATIENCE).await;
        }
    }
    let own = "/v1/nodes/mallory/report";
    for number in 0..BAD_REQUESTS {
        let body = noise(number % 4, 512);
        assert_eq!(post(&identity, at, own, body.len(), &body).await, "400", "noise");
    }
    for _ in 0..8 {
        // Five MiB of a body that claims one GiB.
        let body = vec![b'['; 5 << 20];
        let status = post(&identity, at, own, 1 << 30, &body).await;
        assert_ne!(status, "200", "a body of one GiB");
    }
    strange_bytes(at).await;
}

/// A report of a node with `streams` running streams of no channel.
fn report(life: u64, streams: u32) -> Report {
    let set = (0..streams).map(|number| (unknown_object(number), None)).collect();
    Report {
        life,
        version: Version { lead: 0, decision: 0 },
        is_draining: false,
        links: Vec::new(),
        streams: Delta { numbering: life, number: 1, is_full: true, set, removed: Vec::new() },
        viewers: Delta { numbering: life, number: 1, is_full: true, set: Vec::new(), removed: Vec::new() },
    }
}

/// Posts a body to the controller on a new connection. Returns the status, or the error.
async fn post(identity: &Identity, at: SocketAddr, path: &str, claimed: usize, body: &[u8]) -> String {
    let exchange = async {
        let tcp = TcpStream::connect(at).await?;
        let mut stream = identity.connect(tcp, Role::Controller, "controller").await?;
        let head = format!("POST {path} HTTP/1.1\r\nhost: live\r\ncontent-length: {claimed}\r\n\r\n");
        stream.write_all(head.as_bytes()).await?;
        // The controller may answer, and close the connection, before it has read the body.
        let _ = stream.write_all(body).await;
        let _ = stream.flush().await;
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).await?;
        io::Result::Ok(String::from_utf8_lossy(&answer[9..]).into_owned())
    };
    match timeout(PATIENCE, exchange).await.expect("the controller answers or closes") {
        Ok(status) => status,
        Err(error) => error.to_string(),
    }
}

/// Sends bytes that are not TLS to a listener.
async fn strange_bytes(at: SocketAddr) {
    for seed in 0..50 {
        let mut tcp = TcpStream::connect(at).await.expect("it listens");
        let _ = tcp.write_all(&noise(seed, 4_096)).await;
        let mut said = Vec::new();
        let ends = tcp.read_to_end(&mut said);
        let _ = timeout(PATIENCE, ends).await.expect("the listener closes the connection");
    }
}

/// Sends bad frames and long tables to the control ports of the source and the reflector.
pub async fn bad_children(world: &World) {
    for (child, parent) in [("mallory", "london"), ("oscar", "paris")] {
        let (identity, at) = (world.identity(child), world.address(&format!("{parent}-control")));
        let connect = async || {
            let tcp = TcpStream::connect(at).await.expect("it listens");
            identity.connect(tcp, Role::Site, parent).await.expect("a child of the node")
        };
        for kind in 0..40 {
            let mut stream = connect().await;
            let _ = send_bad_frame(&mut stream, kind).await;
            let mut rest = Vec::new();
            let _ = timeout(PATIENCE, stream.read_to_end(&mut rest)).await.expect("the node closes it");
        }
        let mut stream = connect().await;
        // The node may close the connection at any time, because the child reads nothing.
        let _ = timeout(PATIENCE, flood(&mut stream)).await.expect("the node reads, or closes it");
        strange_bytes(at).await;
    }
}

/// Requests thousands of streams that nobody has, and claims to hold thousands more.
async fn flood(stream: &mut TlsStream<TcpStream>) -> io::Result<()> {
    let message = |life, body| ToParent { life, body };
    for number in 0..SUBSCRIPTIONS {
        let (object, attempt) = (unknown_object(number), u64::from(number) + 1);
        let cause = Cause { node: NodeId(u32::MAX), attempt };
        let body = ChildMessage::Subscribe { object, attempt, version: None, cause };
        send(stream, &message(1, body)).await?;
    }
    for life in 2..6 {
        let held = (0..TABLE_ENTRIES).map(|number| (unknown_object(number), life)).collect();
        send(stream, &message(life, ChildMessage::Held { last_attempt: u64::MAX, held })).await?;
        let digest = Digest { count: u64::MAX, hash: life };
        send(stream, &message(life, ChildMessage::Heartbeat(digest))).await?;
        send(stream, &message(life, ChildMessage::Measured(BitRate::gbps(1)))).await?;
        send(stream, &message(life, ChildMessage::Resend)).await?;
    }
    Ok(())
}
