//! The listener: mutual TLS, who the peer is, and limits on what one peer may take up.
//!
//! HTTP/1.1 only. Leaves out: what is asked (the `http` module). Read [`Server`] first.

use crate::answer::{BODY_BYTES_MAX, ErrorBody};
use anabranch_net::keys::{Role, System};
use anabranch_net::tls::{Credentials, PeerIdentity, peer_identity};
use axum::body::{HttpBody as _, to_bytes};
use axum::extract::{Extension, Request, State};
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse as _, Json, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

/// How a server is set up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServeConfig {
    /// Where to listen; port 0 takes a free one. Loopback unless somebody chose otherwise.
    pub address: SocketAddr,
    /// Connections altogether, handshakes included.
    pub connections_max: usize,
    /// Connections of one peer.
    pub peer_connections_max: usize,
    /// Requests under way of one peer.
    pub peer_requests_max: usize,
    /// Handshakes under way.
    pub handshakes_max: usize,
    /// How long a handshake, a request's head, or its body may take.
    pub patience: Duration,
}

impl Default for ServeConfig {
    fn default() -> Self {
        Self {
            address: ([127, 0, 0, 1], 7171).into(),
            connections_max: 4_096,
            peer_connections_max: 64,
            peer_requests_max: 64,
            handshakes_max: 256,
            patience: Duration::from_secs(10),
        }
    }
}

/// Why the server cannot start.
#[derive(Debug)]
#[non_exhaustive]
pub enum ServeError {
    /// The address cannot be listened on.
    Bind {
        /// The address.
        address: SocketAddr,
        /// The system's reason.
        error: std::io::Error,
    },
    /// The credentials are not those of the system's controller.
    WrongHolder {
        /// Whose they are.
        found: PeerIdentity,
        /// The system that is served.
        system: System,
    },
    /// The credentials cannot be used.
    Credentials(String),
}

impl std::fmt::Display for ServeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Bind { address, error } => {
                write!(f, "{address}: cannot listen there: {error}: choose another address or port")
            }
            Self::WrongHolder { found, system } => {
                let role = system.role_name(Role::Controller).unwrap_or(Role::Controller.word());
                write!(f, "the service was given the keys of {found}: give it those of the {system} {role}")
            }
            Self::Credentials(reason) => write!(f, "the service's keys cannot be used: {reason}"),
        }
    }
}
impl std::error::Error for ServeError {}

/// What a [`Server`] serves.
pub trait Service: Send + Sync + 'static {
    /// Whose it is: parties of other systems do not get through.
    const SYSTEM: System;

    /// Its routes. The caller's identity is among each request's extensions.
    #[doc(hidden)]
    fn router(&self) -> axum::Router;

    /// What must run beside them: deadlines, say. Never returns; dropped to stop.
    #[doc(hidden)]
    fn drive(self) -> impl Future<Output = ()> + Send;
}

/// A bound listener, not yet serving.
pub struct Server<S> {
    listener: TcpListener,
    acceptor: TlsAcceptor,
    service: S,
    config: ServeConfig,
}

type PeerTable = Arc<Mutex<BTreeMap<(Role, String), (usize, PeerLimits)>>>;

/// What a peer's requests share, whatever connections they come by.
#[derive(Clone)]
struct PeerLimits {
    requests: Arc<Semaphore>,
    /// One request with a large body.
    large: Arc<Semaphore>,
}

/// What the requests of all peers share.
#[derive(Clone)]
struct Bodies {
    /// Large bodies under way, from their first byte until they are carried out: one. In memory a body becomes up to ten
    /// times as large.
    large: Arc<Semaphore>,
    patience: Duration,
}

/// Bytes of a body up to which a peer may have as many under way as requests.
const SMALL_BODY_BYTES: usize = 64 << 10;
/// What a connection's requests are read into, at most; a request's head must fit.
const READ_BUFFER_BYTES: usize = 32 << 10;

impl<S: Service> Server<S> {
    /// Listens.
    ///
    /// Errors: see [`ServeError`].
    pub async fn bind(
        service: S,
        credentials: &Credentials,
        config: ServeConfig,
    ) -> Result<Self, ServeError> {
        let found = credentials.identity();
        if (found.system, found.role) != (S::SYSTEM, Role::Controller) {
            return Err(ServeError::WrongHolder { found: found.clone(), system: S::SYSTEM });
        }
        let tls = credentials.server_config().map_err(|e| ServeError::Credentials(e.to_string()))?;
        let listener = TcpListener::bind(config.address)
            .await
            .map_err(|error| ServeError::Bind { address: config.address, error })?;
        Ok(Self { listener, acceptor: tls.into(), service, config })
    }

    /// Where it listens.
    ///
    /// Errors: the system's.
    pub fn local_addr(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves, and drives the service. Never returns; drop it to stop.
    pub async fn run(self) {
        let Self { listener, acceptor, service, config } = self;
        let bodies = Bodies { large: Arc::new(Semaphore::new(1)), patience: config.patience };
        let router = service.router().layer(from_fn_with_state(bodies, limit_body)).layer(from_fn(limit));
        let handshakes = Arc::new(Semaphore::new(config.handshakes_max));
        let slots = Arc::new(Semaphore::new(config.connections_max));
        let peers = PeerTable::default();
        let mut connections = tokio::task::JoinSet::new();
        let serve = async {
            loop {
                let slot = slots.clone().acquire_owned().await.expect("the semaphore is never closed");
                let handshake =
                    handshakes.clone().acquire_owned().await.expect("the semaphore is never closed");
                let (stream, address) = match listener.accept().await {
                    Ok(accepted) => accepted,
                    Err(error) => {
                        // Out of descriptors, say: the next one may go better.
                        tracing::warn!("accept: {error}");
                        tokio::time::sleep(Duration::from_millis(50)).await;
                        continue;
                    }
                };
                let (acceptor, router, peers, config) =
                    (acceptor.clone(), router.clone(), peers.clone(), config.clone());
                connections.spawn(async move {
                    let _slot = slot;
                    if let Err(reason) = serve_one(stream, acceptor, handshake, router, peers, config).await {
                        tracing::debug!("{address}: {reason}");
                    }
                });
                while connections.try_join_next().is_some() {}
            }
        };
        tokio::select! {
            () = serve => {}
            () = service.drive() => {}
        }
    }
}

/// One of a peer's connections; dropped with it.
struct PeerSlot {
    peers: PeerTable,
    key: (Role, String),
}

impl PeerSlot {
    fn take(peers: &PeerTable, peer: &PeerIdentity, config: &ServeConfig) -> Option<(Self, PeerLimits)> {
        let key = (peer.role, peer.name.clone());
        let mut table = peers.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = table.entry(key.clone()).or_insert_with(|| {
            let requests = Arc::new(Semaphore::new(config.peer_requests_max));
            (0, PeerLimits { requests, large: Arc::new(Semaphore::new(1)) })
        });
        if entry.0 >= config.peer_connections_max {
            return None;
        }
        entry.0 += 1;
        Some((Self { peers: peers.clone(), key }, entry.1.clone()))
    }
}

impl Drop for PeerSlot {
    fn drop(&mut self) {
        let mut table = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(entry) = table.get_mut(&self.key) {
            entry.0 -= 1;
            if entry.0 == 0 {
                table.remove(&self.key);
            }
        }
    }
}

async fn serve_one(
    stream: TcpStream,
    acceptor: TlsAcceptor,
    handshake: OwnedSemaphorePermit,
    router: axum::Router,
    peers: PeerTable,
    config: ServeConfig,
) -> Result<(), String> {
    stream.set_nodelay(true).map_err(|e| e.to_string())?;
    let tls = timeout(config.patience, acceptor.accept(stream))
        .await
        .map_err(|_| "handshake took too long".to_owned())?
        .map_err(|e| anabranch_net::tls::explain("a caller", &e))?;
    drop(handshake);
    let peer = tls
        .get_ref()
        .1
        .peer_certificates()
        .and_then(peer_identity)
        .ok_or_else(|| "its certificate does not say who holds it".to_owned())?;
    let Some((_slot, limits)) = PeerSlot::take(&peers, &peer, &config) else {
        return Err(format!("{peer} has {} connections already", config.peer_connections_max));
    };
    let service = TowerToHyperService::new(router.layer(Extension(peer)).layer(Extension(limits)));
    hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(config.patience)
        .max_buf_size(READ_BUFFER_BYTES)
        .serve_connection(TokioIo::new(tls), service)
        .await
        .map_err(|e| e.to_string())
}

fn busy(error: &str) -> Response {
    (StatusCode::TOO_MANY_REQUESTS, Json(ErrorBody { error: error.into() })).into_response()
}

/// Refuses a peer's request while too many others of it are under way.
async fn limit(Extension(limits): Extension<PeerLimits>, request: Request, next: Next) -> Response {
    let Ok(_permit) = limits.requests.try_acquire() else {
        return busy("too many requests of this peer are under way: try again");
    };
    next.run(request).await
}

/// Takes in a request's body in time; one large body at a time, and of each peer one that waits for its turn.
async fn limit_body(
    State(bodies): State<Bodies>,
    Extension(limits): Extension<PeerLimits>,
    request: Request,
    next: Next,
) -> Response {
    let (head, body) = request.into_parts();
    // Without a length it is large; a false length is the connection's end.
    let small = body.size_hint().upper().is_some_and(|n| n <= SMALL_BODY_BYTES as u64);
    let _turn = if small {
        None
    } else {
        let Ok(own) = limits.large.try_acquire_owned() else {
            return busy("a large request of this peer is under way: try again");
        };
        let turn = bodies.large.acquire_owned().await.expect("the semaphore is never closed");
        Some((own, turn))
    };
    let body = match timeout(bodies.patience, to_bytes(body, BODY_BYTES_MAX)).await {
        Ok(Ok(body)) => body,
        Ok(Err(error)) => {
            let error = format!("body: {error}: at most {BODY_BYTES_MAX} bytes");
            return (StatusCode::PAYLOAD_TOO_LARGE, Json(ErrorBody { error })).into_response();
        }
        Err(_) => {
            let error = format!("body: not here within {} s", bodies.patience.as_secs());
            return (StatusCode::REQUEST_TIMEOUT, Json(ErrorBody { error })).into_response();
        }
    };
    next.run(Request::from_parts(head, body.into())).await
}
