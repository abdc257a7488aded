//! Connections between nodes of adjacent tiers over mutual TLS, for JSON frames and for objects.
//!
//! A child connects to its parents. Each frame begins with its length in four bytes, most
//! significant byte first. Messages may be lost, so messages to a slow peer are dropped. Leaves
//! out: the messages (`live_proto::control::messages`). Read [`follow_parent`], [`serve_children`]
//! and [`serve_objects`].

use super::Shared;
use anabranch_http::PeerAddress;
use anabranch_http::plain::{PlainLimits, serve_identified};
use anabranch_live_proto::NodeId;
use anabranch_live_proto::control::messages::{ToChild, ToParent};
use anabranch_net::address::lookup;
use anabranch_net::admission::{Admission, AdmissionLimits, Arrival, ConnectionSlots};
use anabranch_net::cause::cause;
use anabranch_net::keys::Role;
use anabranch_net::refusals::Refusals;
use anabranch_net::tls::{PeerIdentity, stranger};
use axum::body::HttpBody;
use bytes::Bytes;
use hyper::body::Incoming;
use hyper::{Request, Response};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsStream;

/// Longest frame in bytes. An advertisement of all streams of a node fits.
const FRAME_BYTES_MAX: usize = 8 << 20;
/// Maximum number of frames that wait for a connection.
const OUTBOX_MAX: usize = 256;
/// Longest time to connect to a parent.
const CONNECT_TIME: Duration = Duration::from_secs(2);
/// Maximum number of connections of one child for objects. The child opens one for each object it
/// is fetching.
const OBJECT_CONNECTIONS_MAX: usize = 4_096;
/// Pause before a connection to a parent is attempted again.
const RECONNECT_PAUSE: Duration = Duration::from_millis(300);
/// Interval of the checks whether a removed parent is part of the network again.
const REMOVED_PAUSE: Duration = Duration::from_secs(1);
/// Longest time to write one frame.
const WRITE_TIME: Duration = Duration::from_secs(5);

/// Queue of frames for one neighbour.
#[derive(Clone)]
pub(super) struct Outbox(mpsc::Sender<Bytes>);

impl Outbox {
    /// Queues a message, or drops it if the queue is full.
    pub(super) fn send(&self, message: &impl Serialize) {
        let text = serde_json::to_vec(message).expect("messages are plain data");
        let _ = self.0.try_send(text.into());
    }
}

fn bad(reason: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason)
}

async fn read_frame<T: DeserializeOwned>(read: &mut (impl AsyncRead + Unpin)) -> io::Result<T> {
    let length = read.read_u32().await? as usize;
    if length > FRAME_BYTES_MAX {
        return Err(bad(format!("a frame of {length} bytes: at most {FRAME_BYTES_MAX} are possible")));
    }
    // The buffer grows as bytes arrive, so a claimed length alone allocates no memory.
    let mut text = Vec::new();
    read.take(length as u64).read_to_end(&mut text).await?;
    if text.len() < length {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    serde_json::from_slice(&text).map_err(|error| bad(format!("a frame is no message: {error}")))
}

async fn write_frames(
    write: &mut (impl AsyncWrite + Unpin),
    due: &mut mpsc::Receiver<Bytes>,
) -> io::Result<()> {
    while let Some(frame) = due.recv().await {
        let written = async {
            write.write_u32(frame.len() as u32).await?;
            write.write_all(&frame).await?;
            write.flush().await
        };
        timeout(WRITE_TIME, written).await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    }
    Ok(())
}

/// Reads and writes frames until the connection ends, or a later connection replaces it.
async fn talk<T: DeserializeOwned>(
    stream: impl AsyncRead + AsyncWrite,
    mut due: mpsc::Receiver<Bytes>,
    mut take: impl FnMut(T),
) -> io::Result<()> {
    let (mut read, mut write) = tokio::io::split(stream);
    let reads = async {
        loop {
            take(read_frame(&mut read).await?);
        }
    };
    tokio::select! {
        ended = reads => ended,
        ended = write_frames(&mut write, &mut due) => ended,
    }
}

impl Shared {
    /// Registers a connection to a neighbour, which replaces an earlier connection.
    fn connected(&self, node: NodeId) -> (Outbox, mpsc::Receiver<Bytes>) {
        let (sender, due) = mpsc::channel(OUTBOX_MAX);
        let outbox = Outbox(sender);
        self.lock().outboxes.insert(node, outbox.clone());
        (outbox, due)
    }

    /// Removes a connection, unless a later connection has replaced it. Returns whether it was
    /// removed.
    fn disconnected(&self, node: NodeId, outbox: &Outbox) -> bool {
        let mut state = self.lock();
        let is_last = state.outboxes.get(&node).is_some_and(|last| last.0.same_channel(&outbox.0));
        if is_last {
            state.outboxes.remove(&node);
        }
        is_last
    }
}

/// Keeps a connection to a parent open. Never returns.
pub(super) async fn follow_parent(shared: Arc<Shared>, parent: NodeId) {
    // A parent may accept each connection and then break it.
    let (mut is_news, refusals) = (true, Refusals::default());
    loop {
        if shared.layout().is_removed(parent) {
            sleep(REMOVED_PAUSE).await;
            continue;
        }
        if let Err(error) = talk_to_parent(&shared, parent, &mut is_news).await
            && is_news
        {
            let line = format!("parent {}: {}", shared.name(parent), cause(&error));
            is_news = !refusals.tell(None, &line);
        }
        sleep(RECONNECT_PAUSE).await;
    }
}

async fn talk_to_parent(shared: &Arc<Shared>, parent: NodeId, is_news: &mut bool) -> io::Result<()> {
    let layout = shared.layout();
    let entry = layout.entry(parent);
    let address = entry.control.as_deref().expect("the layout gives each parent an address");
    let connect = async {
        let tcp = TcpStream::connect(&*lookup(address).await?).await?;
        tcp.set_nodelay(true)?;
        shared.identity.connect(tcp, Role::Site, &entry.name).await
    };
    let tls =
        timeout(CONNECT_TIME, connect).await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    *is_news = true;
    let guard = shared.identity.guard(tls.get_ref().1);
    let (outbox, due) = shared.connected(parent);
    let talk = talk(tls, due, |message: ToChild| {
        shared.with(|state, now| state.node.handle_parent(now, parent, message));
    });
    let ended = guard.during(talk).await;
    if shared.disconnected(parent, &outbox) {
        // A closed connection reveals a failure sooner than missing heartbeats do.
        shared.with(|state, now| state.node.handle_parent_failed(now, parent));
    }
    ended.unwrap_or_else(|reason| Err(io::Error::other(reason)))
}

/// Serves children. Never returns.
pub(super) async fn serve_children(shared: Arc<Shared>, listener: TcpListener) {
    let admission = Admission::new(AdmissionLimits::default());
    let refusals = Arc::new(Refusals::default());
    let mut connections = tokio::task::JoinSet::new();
    loop {
        let arrival = admission.accept(&listener).await;
        let (shared, refusals) = (Arc::clone(&shared), Arc::clone(&refusals));
        connections.spawn(async move {
            let from = arrival.from();
            if let Err(error) = serve_child(&shared, arrival, &refusals).await {
                tracing::debug!("{from}: {}", cause(&error));
            }
        });
        while connections.try_join_next().is_some() {}
    }
}

/// Performs the TLS handshake. Returns `None` for a client that is not a child, which is logged.
async fn identify(
    shared: &Shared,
    arrival: Arrival,
    refusals: &Refusals,
) -> io::Result<Option<(TlsStream<TcpStream>, PeerIdentity, NodeId)>> {
    arrival.tcp().set_nodelay(true)?;
    let from = arrival.from().ip().to_canonical();
    let identified = arrival.identify(shared.identity.server_config()).await;
    let (tls, peer, half_open) = identified.inspect_err(|error| {
        if let Some(line) = stranger(from, error) {
            refusals.note(None, &line);
        }
    })?;
    drop(half_open);
    let layout = shared.layout();
    let network = layout.network();
    let is_child =
        |child: &NodeId| network.links_out(shared.id).iter().any(|link| network.link(*link).to == *child);
    let child = (peer.role == Role::Site && peer.system == crate::SYSTEM).then(|| network.find(&peer.name));
    let Some(child) = child.flatten().filter(is_child) else {
        refusals.note(Some(&peer), &format!("{peer} at {from} is refused: no link leads to it from here"));
        return Ok(None);
    };
    Ok(Some((tls, peer, child)))
}

/// Serves objects to children, at most [`OBJECT_CONNECTIONS_MAX`] connections each. Never returns.
pub(super) async fn serve_objects<A, F, B>(
    shared: Arc<Shared>,
    listener: TcpListener,
    answer: A,
    limits: PlainLimits,
) -> Infallible
where
    A: Fn(PeerAddress, Request<Incoming>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response<B>> + Send + 'static,
    B: HttpBody + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let admission = Admission::new(AdmissionLimits::default());
    let refusals = Arc::new(Refusals::default());
    let places = ConnectionSlots::new(usize::MAX, OBJECT_CONNECTIONS_MAX, || ());
    let mut connections = tokio::task::JoinSet::new();
    loop {
        let arrival = admission.accept(&listener).await;
        let from = PeerAddress(arrival.from().ip().to_canonical());
        let (shared, refusals) = (Arc::clone(&shared), Arc::clone(&refusals));
        let (answer, places) = (answer.clone(), places.clone());
        connections.spawn(async move {
            let serves = async {
                let Some((tls, peer, _)) = identify(&shared, arrival, &refusals).await? else {
                    return Ok(());
                };
                let place = match places.take(&peer) {
                    Ok(place) => place,
                    Err(crowded) => {
                        refusals.note(Some(&peer), &format!("{peer} at {}: {crowded}", from.0));
                        return Ok(());
                    }
                };
                let guard = shared.identity.guard(tls.get_ref().1);
                let served = serve_identified(tls, move |request| answer(from, request), limits);
                let ended = guard.during(served).await;
                drop(place);
                ended.unwrap_or_else(|reason| Err(io::Error::other(reason)))
            };
            if let Err(error) = serves.await {
                tracing::debug!("objects to {}: {}", from.0, cause(&error));
            }
        });
        while connections.try_join_next().is_some() {}
    }
}

async fn serve_child(shared: &Arc<Shared>, arrival: Arrival, refusals: &Refusals) -> io::Result<()> {
    let from = arrival.from().ip().to_canonical();
    let Some((tls, peer, child)) = identify(shared, arrival, refusals).await? else { return Ok(()) };
    let guard = shared.identity.guard(tls.get_ref().1);
    let (outbox, due) = shared.connected(child);
    let talk = talk(tls, due, |message: ToParent| {
        shared.with(|state, now| state.node.handle_child(now, child, message));
    });
    let ended = guard.during(talk).await;
    shared.disconnected(child, &outbox);
    match ended {
        Ok(Err(error)) if error.kind() == io::ErrorKind::InvalidData => {
            refusals.note(Some(&peer), &format!("{peer} at {from}: connection closed: {error}"));
            Err(error)
        }
        Ok(ended) => ended,
        Err(reason) => {
            tracing::warn!("connection of {peer} closed: {reason}");
            Err(io::Error::other(reason))
        }
    }
}
