//! A public listener: HTTP/1.1, with a certificate also HTTP/2 over TLS. Limits keep an address
//! from taking the connections of other addresses.
//!
//! Without a publicly trusted certificate the listener offers no TLS. It accepts every connection
//! at once, and admits connections by the rule of `net::admission`: at the limit, the address with
//! the most connections loses its connection with the oldest request. So an address with `n`
//! connections keeps them until every other address has at most `n`. Behind a proxy all clients
//! share one address, and the idle connections are closed first. Request bodies in transfer are
//! bounded by the same rule.
//!
//! Behind trusted [`Proxies`] a client has the address that the proxy names. Leaves out: the routes
//! and their answers; a router limits requests per second by [`RequestRate`]. Read [`PlainServer`]
//! and [`PlainLimits`] first.

mod cors;
mod proxies;
mod rate;

pub use cors::{Cors, CrossOrigin, OriginError};
pub(crate) use proxies::read_header;
pub use proxies::{Proxies, ProxiesError};
pub use rate::{ADDRESS_REQUESTS_PER_S, RequestRate};

use crate::http1::{Bounds, body, close, connection};
use crate::http2::{self, CANCELLED_PER_S_MAX, StreamSlots, Streams};
use crate::server::PeerAddress;
use anabranch_net::admission::{Admission, AdmissionLimits, Arrival, HalfOpen, HalfOpenTable, Number};
use anabranch_net::public::ServerCertificate;
use anabranch_net::refusals::Refusals;
use axum::Router;
use axum::body::{Body, HttpBody};
use axum::extract::{Extension, Request, State};
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse as _, Response};
use hyper::body::Incoming;
use hyper::service::{Service as _, service_fn};
use hyper_util::service::TowerToHyperService;
use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::{Notify, oneshot};

/// Default limit of open connections, if the process has enough descriptors.
pub const CONNECTIONS_MAX: usize = 10_000;
/// Maximum bytes of a request's head, and of pipelined requests that a connection has read ahead.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// Default bytes of answers that the kernel buffers for a peer that does not read.
const UNSENT_BYTES_MAX: u32 = 16 << 10;

/// Protocols that a [`PlainServer`] with a certificate offers (ALPN), the preferred one first.
pub const PROTOCOLS: &[&str] = &["h2", "http/1.1"];
/// Time for the last frames of an HTTP/2 connection that the server closes.
const FAREWELL: Duration = Duration::from_secs(2);

/// Pause before a pipelined request, which was sent before the previous answer was read: no browser
/// and no proxy sends one. Without the pause, a few thousand connections of pipelined requests
/// saturate a processor.
const PIPELINED_PAUSE: Duration = Duration::from_secs(1);

/// Limits of a [`PlainServer`]'s connections and bodies.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct PlainLimits {
    /// Maximum numbers of connections before their first request (silent) and after it (speaking);
    /// time limits of the first request, and between requests.
    pub admission: AdmissionLimits,
    /// Maximum number of requests with bodies in transfer.
    pub bodies_max: usize,
    /// Maximum bytes of a body.
    pub body_bytes_max: usize,
    /// Time limit of a body, from the end of the request's head.
    pub body_time: Duration,
    /// Time in which a client must read some bytes of its answers.
    pub write_time: Duration,
    /// Bytes of answers that the kernel buffers for each connection. A longer answer is written in
    /// several steps.
    pub unsent_bytes_max: u32,
}

impl Default for PlainLimits {
    fn default() -> Self {
        Self::for_connections(CONNECTIONS_MAX)
    }
}

impl PlainLimits {
    /// Default limits for this number of connections, at least 4: a quarter of them may be silent.
    pub fn for_connections(connections: usize) -> Self {
        let silent_max = (connections / 4).max(1);
        let admission = AdmissionLimits {
            silent_max,
            speaking_max: connections.saturating_sub(silent_max).max(1),
            silent_time: Duration::from_secs(10),
            speaking_time: Duration::from_secs(30),
        };
        Self {
            admission,
            bodies_max: 512,
            body_bytes_max: 64 << 10,
            body_time: Duration::from_secs(10),
            write_time: Duration::from_secs(10),
            unsent_bytes_max: UNSENT_BYTES_MAX,
        }
    }

    /// Default limits for a process that may have `descriptors` descriptors. Other work may need
    /// `others` of them, and connections take the remaining descriptors: at least a quarter of all,
    /// and at most `connections_max`.
    pub fn for_descriptors(descriptors: u64, others: u64, connections_max: usize) -> Self {
        let left = descriptors.saturating_sub(others).max(descriptors / 4);
        Self::for_connections(connections_max.min(usize::try_from(left).unwrap_or(usize::MAX)))
    }

    /// Maximum number of descriptors that the connections take.
    pub fn descriptors(&self) -> u64 {
        self.admission.descriptors()
    }
}

/// Clients of a public listener.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Clients {
    /// Proxies that are trusted to name a client's address.
    pub proxies: Proxies,
    /// Origins whose pages may send requests with credentials.
    pub cors: Cors,
}

/// A refusal in one line of text.
pub fn refusal(status: StatusCode, why: &str) -> Response {
    (status, format!("{why}\n")).into_response()
}

/// A bound public listener, not yet serving.
///
/// ```
/// # async fn run() -> std::io::Result<()> {
/// use anabranch_http::plain::{PlainLimits, PlainServer};
/// let server = PlainServer::bind(([127, 0, 0, 1], 0).into(), PlainLimits::default())?;
/// let router = axum::Router::new().route("/", axum::routing::get(async || "all is well\n"));
/// tokio::select! {
///     ended = server.run_on_thread("public", router) => ended,
///     () = tokio::time::sleep(std::time::Duration::from_secs(1)) => Ok(()),
/// }
/// # }
/// ```
pub struct PlainServer {
    listener: TcpListener,
    limits: PlainLimits,
    certificate: Option<ServerCertificate>,
    proxies: Proxies,
    /// CORS settings. `None`: pages of other origins cannot read the answers.
    cors: Option<Cors>,
}

impl PlainServer {
    /// Listens.
    ///
    /// Errors: an address that cannot be listened on.
    pub fn bind(address: SocketAddr, limits: PlainLimits) -> io::Result<Self> {
        let listener = anabranch_net::socket::listen(address)?;
        anabranch_net::socket::bound_unsent(&listener, limits.unsent_bytes_max)?;
        Ok(Self { listener, limits, certificate: None, proxies: Proxies::default(), cors: None })
    }

    /// Accepts TLS with a certificate, which must have been loaded with [`PROTOCOLS`].
    pub fn with_certificate(self, certificate: ServerCertificate) -> Self {
        Self { certificate: Some(certificate), ..self }
    }

    /// Trusts these proxies to name clients' addresses.
    pub fn with_proxies(self, proxies: Proxies) -> Self {
        Self { proxies, ..self }
    }

    /// Lets pages of other origins read the answers of [`Self::run`]'s router, refusals included.
    /// An answer without a `Cache-Control` header is marked `no-store`.
    pub fn with_cors(self, cors: Cors) -> Self {
        Self { cors: Some(cors), ..self }
    }

    /// Address of the listener.
    ///
    /// Errors: an error of the operating system.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves `router`, with a [`PeerAddress`] among each request's extensions. Never returns; drop
    /// the future to stop.
    pub async fn run(self, router: Router) -> Infallible {
        let bodies = Bodies::new(self.limits);
        let mut router = router.layer(from_fn_with_state(bodies, limit_body));
        // The CORS layer is the outermost, because the inner layers send refusals, too.
        if let Some(cors) = self.cors.clone() {
            router = router.layer(from_fn_with_state(cors, cors::layer));
        }
        let router = Arc::new(TowerToHyperService::new(router));
        self.run_answers(move |from, mut request| {
            request.extensions_mut().insert(from);
            let answer = router.call(request);
            async move { answer.await.unwrap_or_else(|never| match never {}) }
        })
        .await
    }

    /// Serves the answers of `answer`, without a router's cost. The caller limits the bodies of
    /// requests, or reads none. Never returns; drop the future to stop.
    pub async fn run_answers<A, F, B>(self, answer: A) -> Infallible
    where
        A: Fn(PeerAddress, Request<Incoming>) -> F + Clone + Send + Sync + Unpin + 'static,
        F: Future<Output = Response<B>> + Send + 'static,
        B: HttpBody + Send + 'static,
        B::Data: Send,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let Self { listener, limits, certificate, proxies, cors: _ } = self;
        let admission = Admission::new(limits.admission);
        let shared = Arc::new(ServerState {
            limits,
            certificate,
            proxies,
            streams: StreamSlots::new(limits.admission.speaking_max),
            refusals: Refusals::default(),
        });
        let mut connections = tokio::task::JoinSet::new();
        loop {
            let arrival = admission.accept(&listener).await;
            let (from, answer, shared) = (arrival.from(), answer.clone(), Arc::clone(&shared));
            connections.spawn(async move {
                if let Err(error) = shared.serve(arrival, answer).await {
                    tracing::debug!("{from}: {error}");
                }
            });
            while connections.try_join_next().is_some() {}
        }
    }

    /// Serves as [`Self::run`] does, on a separate thread, so that other work of this process does
    /// not delay answers. Returns only if the thread cannot start; drop the future to stop.
    ///
    /// Errors: an error of the operating system.
    pub async fn run_on_thread(self, name: &str, router: Router) -> io::Result<()> {
        let Self { listener, limits, certificate, proxies, cors } = self;
        let listener = listener.into_std()?;
        // Dropping the future drops this sender, which ends the thread.
        let (_runs, mut ends) = oneshot::channel::<()>();
        let (say, ended) = oneshot::channel();
        let serves = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                let listener = TcpListener::from_std(listener)?;
                let server = Self { listener, limits, certificate, proxies, cors };
                tokio::select! {
                    never = server.run(router) => match never {},
                    _ = &mut ends => Ok(()),
                }
            })
        };
        std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            let _ = say.send(serves());
        })?;
        ended.await.unwrap_or(Ok(()))
    }
}

/// Serves HTTP/1.1 on one connection whose peer is known, until either end closes it. The caller
/// limits connections.
///
/// Errors: an error of the connection; requests that are not HTTP.
pub async fn serve_identified<T, A, F, B>(stream: T, answer: A, limits: PlainLimits) -> io::Result<()>
where
    T: AsyncRead + AsyncWrite + Unpin,
    A: Fn(Request<Incoming>) -> F,
    F: Future<Output = Response<B>> + Send + 'static,
    B: HttpBody + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let service = service_fn(move |request: Request<Incoming>| {
        let answered = answer(request);
        Box::pin(async move { Ok::<_, Infallible>(answered.await) })
    });
    let bounds = Bounds {
        head_bytes_max: HEAD_BYTES_MAX,
        head_time: limits.admission.speaking_time,
        write_time: limits.write_time,
    };
    connection(stream, service, bounds, Arc::default()).await.map_err(io::Error::other)
}

/// Server state that all its connections share.
struct ServerState {
    limits: PlainLimits,
    certificate: Option<ServerCertificate>,
    proxies: Proxies,
    streams: StreamSlots,
    refusals: Refusals,
}

impl ServerState {
    /// Address of a connection's client: the peer, or the client that a proxy names in the PROXY
    /// protocol.
    ///
    /// Errors: a proxy that does not send the PROXY protocol although it must.
    async fn client(&self, arrival: &mut Arrival) -> io::Result<IpAddr> {
        let peer = arrival.from().ip().to_canonical();
        if !self.proxies.speaks_first(peer) {
            return Ok(peer);
        }
        let (tcp, half_open) = arrival.before_first_message();
        let read = half_open.within(read_header(tcp)).await;
        let client = read.inspect_err(|error| self.refusals.note(None, &format!("proxy {peer}: {error}")))?;
        Ok(client.unwrap_or(peer))
    }

    async fn serve<A, F, B>(&self, mut arrival: Arrival, answer: A) -> io::Result<()>
    where
        A: Fn(PeerAddress, Request<Incoming>) -> F + Send + Unpin,
        F: Future<Output = Response<B>> + Send + 'static,
        B: HttpBody + Send + 'static,
        B::Data: Send,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        arrival.tcp().set_nodelay(true)?;
        let from = self.client(&mut arrival).await?;
        let proxies = self.proxies.clone();
        let answer = move |request: Request<Incoming>| {
            let client = PeerAddress(proxies.client(from, request.headers()));
            answer(client, request)
        };
        let Some(certificate) = &self.certificate else {
            let (stream, half_open) = arrival.unidentified();
            return self.serve_http1(stream, half_open, answer).await;
        };
        let (stream, half_open) = arrival.encrypt(certificate.server_config()).await?;
        if stream.get_ref().1.alpn_protocol() == Some(b"h2") {
            self.serve_http2(stream, half_open, from, answer).await
        } else {
            self.serve_http1(stream, half_open, answer).await
        }
    }

    async fn serve_http1<T, A, F, B>(&self, stream: T, mut half_open: HalfOpen, answer: A) -> io::Result<()>
    where
        T: AsyncRead + AsyncWrite + Unpin,
        A: Fn(Request<Incoming>) -> F + Unpin,
        F: Future<Output = Response<B>> + Send + 'static,
        B: HttpBody + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        // Flags for a received request head, and for any received bytes, since the last check.
        let (asks, has_read) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (asked, read) = (Arc::clone(&asks), Arc::clone(&has_read));
        let service = service_fn(move |request: Request<Incoming>| {
            asked.store(true, Relaxed);
            let is_pipelined = !read.swap(false, Relaxed);
            let answered = answer(request);
            Box::pin(async move {
                if is_pipelined {
                    tokio::time::sleep(PIPELINED_PAUSE).await;
                }
                Ok::<_, Infallible>(answered.await)
            })
        });
        let bounds = Bounds {
            head_bytes_max: HEAD_BYTES_MAX,
            head_time: self.limits.admission.speaking_time,
            write_time: self.limits.write_time,
        };
        let mut served = connection(stream, service, bounds, has_read);
        let mut until_asked = poll_fn(|cx| match served.poll_without_shutdown(cx) {
            Poll::Ready(done) => Poll::Ready(Ok(Some(done))),
            Poll::Pending if asks.swap(false, Relaxed) => Poll::Ready(Ok(None)),
            Poll::Pending => Poll::Pending,
        });
        let mut done = half_open.within(&mut until_asked).await?;
        let done = loop {
            if let Some(done) = done {
                break done;
            }
            half_open.speaks();
            done = half_open.until_dropped(&mut until_asked).await?;
        };
        let stream = served.into_parts().io.into_inner().into_inner();
        let closes = async {
            close(stream).await;
            Ok(())
        };
        half_open.until_dropped(closes).await?;
        done.map_err(io::Error::other)
    }

    /// Serves a connection of HTTP/2. The streams count for the address `from`.
    async fn serve_http2<T, A, F, B>(
        &self,
        stream: T,
        mut half_open: HalfOpen,
        from: IpAddr,
        answer: A,
    ) -> io::Result<()>
    where
        T: AsyncRead + AsyncWrite + Send + Unpin,
        A: Fn(Request<Incoming>) -> F + Send + Unpin,
        F: Future<Output = Response<B>> + Send + 'static,
        B: HttpBody + Send + 'static,
        B::Data: Send,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let asks = Arc::new(AtomicBool::new(false));
        let asked = Arc::clone(&asks);
        let service = service_fn(move |request: Request<Incoming>| {
            asked.store(true, Relaxed);
            let answered = answer(request);
            async move { Ok::<_, Infallible>(http2::watched(answered.await)) }
        });
        let streams = Streams::new(&self.streams, from, self.limits.write_time);
        let mut served =
            std::pin::pin!(http2::connection(stream, service, HEAD_BYTES_MAX, Arc::clone(&streams)));
        let idle_time = self.limits.admission.speaking_time;
        let done = {
            let mut until_asked = poll_fn(|cx| match served.as_mut().poll(cx) {
                Poll::Ready(done) => Poll::Ready(Ok(Step::Done(done))),
                Poll::Pending if asks.swap(false, Relaxed) => Poll::Ready(Ok(Step::Asked)),
                Poll::Pending => Poll::Pending,
            });
            let mut step = half_open.within(&mut until_asked).await?;
            loop {
                match step {
                    Step::Asked => half_open.speaks(),
                    Step::Idle | Step::Abused | Step::Done(_) => break step,
                }
                let next = async {
                    tokio::select! {
                        biased;
                        step = &mut until_asked => step,
                        is_abused = streams.until_idle(idle_time) => {
                            Ok(if is_abused { Step::Abused } else { Step::Idle })
                        }
                    }
                };
                step = half_open.until_dropped(next).await?;
            }
        };
        match done {
            Step::Done(Err(error)) => {
                if is_protocol_error(&error) {
                    let line = format!("client {from}: connection closed: {}", why(&error));
                    self.refusals.note(None, &line);
                }
                Err(io::Error::other(error))
            }
            Step::Abused => {
                let line = format!(
                    "client {from}: connection closed: more than {CANCELLED_PER_S_MAX} requests cancelled within 1 s"
                );
                self.refusals.note(None, &line);
                Ok(())
            }
            Step::Idle => {
                served.as_mut().graceful_shutdown();
                // A client that reads nothing in time misses the last frames.
                let _ = tokio::time::timeout(FAREWELL, served).await;
                Ok(())
            }
            Step::Done(Ok(())) | Step::Asked => Ok(()),
        }
    }
}

/// Event of an HTTP/2 connection.
enum Step {
    /// A request has arrived.
    Asked,
    /// No stream has been open for the idle time.
    Idle,
    /// The client has cancelled too many streams.
    Abused,
    /// The connection has ended.
    Done(hyper::Result<()>),
}

/// Returns true if the client has violated HTTP/2; false if the connection broke or was closed.
fn is_protocol_error(error: &hyper::Error) -> bool {
    let h2 = std::error::Error::source(error).and_then(|source| source.downcast_ref::<h2::Error>());
    h2.is_some_and(|error| !error.is_io() && error.reason() != Some(h2::Reason::NO_ERROR))
}

fn why(error: &hyper::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

/// Request bodies in transfer, at most [`PlainLimits::bodies_max`]. At the limit, a newer body
/// displaces the oldest body of the busiest address.
#[derive(Clone)]
struct Bodies {
    limits: PlainLimits,
    table: Arc<Mutex<HalfOpenTable<Arc<Notify>>>>,
}

/// A body's slot, released on drop.
struct BodySlot<'a> {
    bodies: &'a Bodies,
    number: Number,
    bell: Arc<Notify>,
}

impl Bodies {
    fn new(limits: PlainLimits) -> Self {
        Self { limits, table: Arc::new(Mutex::new(HalfOpenTable::new(limits.bodies_max))) }
    }

    fn lock(&self) -> MutexGuard<'_, HalfOpenTable<Arc<Notify>>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self, from: IpAddr) -> BodySlot<'_> {
        let bell = Arc::new(Notify::new());
        let (number, dropped) = self.lock().arrive(from, Arc::clone(&bell));
        if let Some(dropped) = dropped {
            dropped.notify_one();
        }
        BodySlot { bodies: self, number, bell }
    }
}

impl Drop for BodySlot<'_> {
    fn drop(&mut self) {
        self.bodies.lock().leave(self.number);
    }
}

/// Reads a request's body within the time limit, unless newer bodies displace it.
async fn limit_body(
    State(bodies): State<Bodies>,
    Extension(PeerAddress(from)): Extension<PeerAddress>,
    request: Request,
    next: Next,
) -> Response {
    if request.body().is_end_stream() {
        return next.run(request).await;
    }
    let (head, unread) = request.into_parts();
    let limits = &bodies.limits;
    let read = {
        let place = bodies.enter(from);
        tokio::select! {
            read = body(unread, limits.body_bytes_max, limits.body_time) => read,
            () = place.bell.notified() => {
                Err((StatusCode::SERVICE_UNAVAILABLE, "body: dropped for newer ones: send it again".to_owned()))
            }
        }
    };
    match read {
        Ok(body) => next.run(Request::from_parts(head, Body::from(body))).await,
        Err((status, line)) => refusal(status, &line),
    }
}

#[cfg(test)]
mod tests;
