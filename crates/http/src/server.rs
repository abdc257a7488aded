//! The listener: mutual TLS, the peer's identity, and limits on each peer's connections and
//! requests.
//!
//! HTTP/1.1 only. Leaves out: the requests themselves (each service's routes). Read [`Server`]
//! first.

use crate::answer::{BODY_BYTES_MAX, Refusal, RefusalReason};
use crate::connection::why_broken;
use crate::http1::{self, Bounds, close, connection};
use anabranch_net::admission::{Admission, AdmissionLimits, Arrival, ConnectionSlots};
use anabranch_net::cause::cause;
use anabranch_net::identity::Identity;
use anabranch_net::keys::{Role, System};
use anabranch_net::refusals::Refusals;
use anabranch_net::tls::{PeerIdentity, stranger};
use anabranch_units::text::brief;
use axum::body::HttpBody as _;
use axum::extract::{Extension, Request, State};
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse as _, Response};
use hyper_util::service::TowerToHyperService;
use std::future::poll_fn;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

/// Configuration of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServeConfig {
    /// Address to listen on; port 0 takes a free port. Loopback by default.
    pub address: SocketAddr,
    /// Maximum number of connections of identified peers.
    pub connections_max: usize,
    /// Maximum number of connections of one peer.
    pub peer_connections_max: usize,
    /// Maximum number of concurrent requests of one peer.
    pub peer_requests_max: usize,
    /// Limits of connections before the peer is identified, and their time limit.
    pub half_open: AdmissionLimits,
    /// Time limit of a request's head, of its body, and of a write for which the peer reads
    /// nothing.
    pub patience: Duration,
}

impl Default for ServeConfig {
    fn default() -> Self {
        Self {
            address: ([127, 0, 0, 1], 7171).into(),
            connections_max: 4_096,
            peer_connections_max: 64,
            peer_requests_max: 64,
            half_open: AdmissionLimits::default(),
            patience: Duration::from_secs(10),
        }
    }
}

impl ServeConfig {
    /// Maximum number of descriptors that the connections take.
    pub fn descriptors(&self) -> u64 {
        self.connections_max as u64 + self.half_open.descriptors()
    }
}

/// Reason why the server cannot start.
#[derive(Debug)]
#[non_exhaustive]
pub enum ServeError {
    /// The system refuses to listen on the address.
    Bind(std::io::Error),
    /// The keys belong to another party than the system's controller.
    WrongHolder {
        /// Actual holder.
        found: PeerIdentity,
        /// The system that is served.
        system: System,
    },
}

impl std::fmt::Display for ServeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Bind(error) => write!(f, "{error}"),
            Self::WrongHolder { found, system } => {
                let role = system.role_name(Role::Controller).unwrap_or(Role::Controller.word());
                write!(f, "the service was given the keys of {found}: give it those of the {system} {role}")
            }
        }
    }
}
impl std::error::Error for ServeError {}

/// A service for a [`Server`] to serve.
pub trait Service: Send + Sync + 'static {
    /// System of the service: parties of other systems are refused.
    const SYSTEM: System;

    /// Routes of the service. The caller's identity is among the extensions of each request.
    #[doc(hidden)]
    fn router(&self) -> axum::Router;

    /// Runs beside the routes, for instance to meet deadlines. Never returns; drop the future to
    /// stop.
    #[doc(hidden)]
    fn drive(self) -> impl Future<Output = ()> + Send;
}

/// Address of a request's sender, among the request's extensions.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct PeerAddress(
    /// IP address. An IPv4 address mapped into IPv6 is stored as IPv4.
    pub IpAddr,
);

/// A bound listener, not yet serving.
pub struct Server<S> {
    listener: TcpListener,
    identity: Identity,
    service: S,
    config: ServeConfig,
}

/// Limits on all requests of a peer, over all its connections.
#[derive(Clone)]
struct PeerLimits {
    requests: Arc<Semaphore>,
    /// Permit for one request with a large body.
    large: Arc<Semaphore>,
}

/// Limits on the requests of all peers together.
#[derive(Clone)]
struct Bodies {
    /// Permit for one large body at a time, from its first byte until its request is answered. A
    /// body takes up to ten times its size in memory, which [`crate::answer::read`] bounds.
    large: Arc<Semaphore>,
    patience: Duration,
}

/// Maximum bytes of a small body. A peer may send as many small bodies at once as requests.
pub const SMALL_BODY_BYTES: usize = 64 << 10;
/// Maximum read buffer of a connection; a request's head must fit.
const READ_BUFFER_BYTES: usize = 32 << 10;
/// Maximum characters of a request's path in the log.
const PATH_SHOWN_MAX: usize = 100;
/// Maximum characters of a request's method in the log, because HTTP allows any word.
const METHOD_SHOWN_MAX: usize = 16;

impl<S: Service> Server<S> {
    /// Listens.
    ///
    /// Errors: see [`ServeError`].
    pub async fn bind(service: S, identity: &Identity, config: ServeConfig) -> Result<Self, ServeError> {
        let found = identity.own();
        if (found.system, found.role) != (S::SYSTEM, Role::Controller) {
            return Err(ServeError::WrongHolder { found: found.clone(), system: S::SYSTEM });
        }
        let listener = anabranch_net::socket::listen(config.address).map_err(ServeError::Bind)?;
        Ok(Self { listener, identity: identity.clone(), service, config })
    }

    /// Address of the listener.
    ///
    /// Errors: an error of the operating system.
    pub fn local_addr(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves requests, and drives the service. Never returns; drop the future to stop.
    pub async fn run(self) {
        let Self { listener, identity, service, config } = self;
        let bodies = Bodies { large: Arc::new(Semaphore::new(1)), patience: config.patience };
        let refusals = Arc::new(Refusals::default());
        let router = service.router().layer(from_fn_with_state(bodies, limit_body)).layer(from_fn(limit));
        let router = router.layer(from_fn_with_state(Arc::clone(&refusals), note_refusal));
        let admission = Admission::new(config.half_open);
        let requests_max = config.peer_requests_max;
        let places =
            ConnectionSlots::new(config.connections_max, config.peer_connections_max, move || PeerLimits {
                requests: Arc::new(Semaphore::new(requests_max)),
                large: Arc::new(Semaphore::new(1)),
            });
        let mut connections = tokio::task::JoinSet::new();
        let serve = async {
            loop {
                let arrival = admission.accept(&listener).await;
                let (identity, router, places) = (identity.clone(), router.clone(), places.clone());
                let (refusals, patience) = (Arc::clone(&refusals), config.patience);
                connections.spawn(async move {
                    let from = arrival.from();
                    let served = serve_one(arrival, identity, router, places, &refusals, patience);
                    if let Err(reason) = served.await {
                        tracing::debug!("{from}: {reason}");
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

async fn serve_one(
    arrival: Arrival,
    identity: Identity,
    router: axum::Router,
    places: ConnectionSlots<PeerLimits>,
    refusals: &Refusals,
    patience: Duration,
) -> Result<(), String> {
    arrival.tcp().set_nodelay(true).map_err(|e| e.to_string())?;
    let from = arrival.from().ip().to_canonical();
    let identified = arrival.identify(identity.server_config()).await;
    let (stream, peer, half_open) = identified.map_err(|error| {
        if let Some(line) = stranger(from, &error) {
            refusals.note(None, &line);
        }
        cause(&error)
    })?;
    // The peer is identified; from here on, the time limit of the request's head applies.
    drop(half_open);
    let place = places.take(&peer).map_err(|crowded| {
        refusals.note(Some(&peer), &format!("connection refused: {crowded}"));
        crowded.to_string()
    })?;
    let limits = PeerLimits::clone(place.common());
    let guard = identity.guard(stream.get_ref().1);
    let who = peer.to_string();
    let router = router.layer(Extension(peer)).layer(Extension(limits)).layer(Extension(PeerAddress(from)));
    let service = TowerToHyperService::new(router);
    let bounds = Bounds { head_bytes_max: READ_BUFFER_BYTES, head_time: patience, write_time: patience };
    let mut served = connection(stream, service, bounds, Arc::default());
    match guard.during(poll_fn(|cx| served.poll_without_shutdown(cx))).await {
        Ok(done) => {
            close(served.into_parts().io.into_inner().into_inner()).await;
            done.map_err(|e| why_broken(&e))
        }
        Err(reason) => {
            tracing::warn!("connection of {who} closed: {reason}");
            Err(reason)
        }
    }
}

fn busy(error: &str) -> Response {
    Refusal(StatusCode::TOO_MANY_REQUESTS, error.into()).into_response()
}

/// Logs a refused request.
async fn note_refusal(
    State(refusals): State<Arc<Refusals>>,
    Extension(peer): Extension<PeerIdentity>,
    Extension(PeerAddress(from)): Extension<PeerAddress>,
    request: Request,
    next: Next,
) -> Response {
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let response = next.run(request).await;
    // Conflicts are expected when sites and hosts register again after a restart, so they are not
    // logged.
    let is_news = response.status() != StatusCode::CONFLICT || path.starts_with("/v1/transfers");
    if let Some(RefusalReason(reason)) = response.extensions().get().filter(|_| is_news) {
        let (method, path) = (brief(method.as_str(), METHOD_SHOWN_MAX), brief(&path, PATH_SHOWN_MAX));
        let line = format!("{peer} at {from} is refused: {reason} ({method} {path})");
        refusals.note(Some(&peer), &line);
    }
    response
}

/// Refuses a peer's request while too many of its requests are in progress.
async fn limit(Extension(limits): Extension<PeerLimits>, request: Request, next: Next) -> Response {
    let Ok(_permit) = limits.requests.try_acquire() else {
        return busy("too many requests of this peer are under way: try again");
    };
    next.run(request).await
}

/// Receives a request's body within the time limit. Only one large body is in progress at a time,
/// and each peer has at most one, in progress or waiting.
async fn limit_body(
    State(bodies): State<Bodies>,
    Extension(limits): Extension<PeerLimits>,
    request: Request,
    next: Next,
) -> Response {
    let (head, body) = request.into_parts();
    // A body without a stated length counts as large. If the stated length is wrong, the connection
    // ends.
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
    match http1::body(body, BODY_BYTES_MAX, bodies.patience).await {
        Ok(body) => next.run(Request::from_parts(head, body.into())).await,
        Err((status, line)) => Refusal(status, line).into_response(),
    }
}
