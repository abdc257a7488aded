//! A client's connections to a service: HTTP/1.1 over mutual TLS. Connections are kept, so that a
//! request costs one round trip.
//!
//! Requests that are safe to repeat are repeated until the client's time limit. Leaves out: the
//! requests themselves. Read [`Connection`] first.

use crate::answer::ErrorBody;
use anabranch_net::address::lookup;
use anabranch_net::cause::{cause, explain};
use anabranch_net::identity::Identity;
use anabranch_net::keys::{Role, System};
use anabranch_sessions::Backoff;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::SendRequest;
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::{Mutex, oneshot};
use tokio::time::{Instant, sleep, timeout};

/// Maximum bytes of a reply.
pub const REPLY_BYTES_MAX: usize = 256 << 20;
/// Time limit of a connection attempt, or of an immediate reply.
pub const REPLY_TIME: Duration = Duration::from_secs(20);
/// Maximum number of idle connections that are kept.
const IDLE_MAX: usize = 2;
/// Minimum patience at which the first failed attempt is logged, not only the last.
const TOLD_PATIENCE: Duration = Duration::from_secs(5);
/// Pauses before a request is repeated. The longest pause is shorter than the time for which a
/// restarted controller waits for its sites.
pub const BACKOFF: Backoff =
    Backoff::new(anabranch_units::Duration::from_ms(100), anabranch_units::Duration::from_secs(1));

/// Time limit within which a broken connection must report its error.
const BREAKS: Duration = Duration::from_secs(1);

/// Error of a broken connection.
type ConnectionFailure = oneshot::Receiver<hyper::Error>;

/// Reason for the failure of a request to a service.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ClientError {
    /// The service is unreachable, or has another identity than expected. One line, with host and
    /// port.
    Unreachable(String),
    /// The service refused the request. `error` is one line, with host and port.
    Refused {
        /// HTTP status of the refusal.
        status: u16,
        /// Reason for the refusal, in one line.
        error: String,
    },
    /// The answer is malformed.
    Garbled(String),
    /// A setting of the client is invalid.
    Settings(String),
}

impl std::fmt::Display for ClientError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unreachable(line) | Self::Garbled(line) | Self::Settings(line) => f.write_str(line),
            Self::Refused { error, .. } => f.write_str(error),
        }
    }
}
impl std::error::Error for ClientError {}

impl ClientError {
    /// Returns true if a repetition of the same request may succeed.
    pub fn is_passing(&self) -> bool {
        match self {
            Self::Unreachable(_) => true,
            Self::Refused { status, .. } => matches!(status, 429 | 502 | 503),
            _ => false,
        }
    }
}

/// Connections to one service; clones share them.
#[derive(Clone)]
pub struct Connection {
    inner: Arc<Inner>,
}

struct Inner {
    service: &'static str,
    address: String,
    identity: Identity,
    patience: Duration,
    /// Idle connections, longest unused first. They are used in turn, so that none is idle long
    /// enough for the server to close it.
    idle: Mutex<VecDeque<SendRequest<Full<Bytes>>>>,
}

/// Describes in words of this program why a connection broke.
pub(crate) fn why_broken(error: &hyper::Error) -> String {
    let mut source: Option<&(dyn std::error::Error + 'static)> = std::error::Error::source(error);
    while let Some(inner) = source {
        if let Some(io) = inner.downcast_ref::<std::io::Error>() {
            return cause(io);
        }
        source = inner.source();
    }
    let said = if error.is_parse() {
        "what it says is not HTTP"
    } else if error.is_timeout() {
        "no answer in time"
    } else {
        "it went away"
    };
    said.to_owned()
}

impl Connection {
    /// Creates a client of the system's controller at `address` (`host:port`, or a URL
    /// `https://host:port`). The client connects at the first request. `patience` is the time
    /// during which a repeatable request is retried.
    ///
    /// Errors: keys of another system; an address without a port.
    pub fn new(
        system: System,
        address: impl Into<String>,
        identity: &Identity,
        patience: Duration,
    ) -> Result<Self, ClientError> {
        let given = address.into();
        let (scheme, rest) = given.split_once("://").unwrap_or(("https", &given));
        let address = rest.strip_suffix('/').unwrap_or(rest).to_owned();
        let service = system.role_name(Role::Controller).unwrap_or(Role::Controller.word());
        if scheme.eq_ignore_ascii_case("http") {
            return Err(ClientError::Settings(format!(
                "{service} address `{given}`: it speaks TLS only: write https://HOST:PORT, or HOST:PORT alone"
            )));
        }
        let is_host = |host: &str| !host.is_empty() && !host.contains(['/', '?', '#', '@']);
        let parts =
            address.rsplit_once(':').filter(|(host, port)| is_host(host) && port.parse::<u16>().is_ok());
        if !scheme.eq_ignore_ascii_case("https") || parts.is_none() {
            return Err(ClientError::Settings(format!(
                "{service} address `{given}`: must be host:port and nothing more, as in 127.0.0.1:7171"
            )));
        }
        let own = identity.own();
        if own.system != system {
            return Err(ClientError::Settings(format!("the keys are those of {own}: give keys of {system}")));
        }
        Ok(Self {
            inner: Arc::new(Inner {
                service,
                address,
                identity: identity.clone(),
                patience,
                idle: Mutex::default(),
            }),
        })
    }

    /// Address of the service, as `host:port`.
    pub fn address(&self) -> &str {
        &self.inner.address
    }

    /// Returns a client of the same service with another patience.
    pub fn with_patience(&self, patience: Duration) -> Self {
        let Inner { service, address, identity, .. } = &*self.inner;
        let (address, identity) = (address.clone(), identity.clone());
        Self { inner: Arc::new(Inner { service, address, identity, patience, idle: Mutex::default() }) }
    }

    /// Time during which a repeatable request is retried.
    pub fn patience(&self) -> Duration {
        self.inner.patience
    }

    /// Name and address of the service, for messages.
    pub fn who(&self) -> String {
        format!("{} at {}", self.inner.service, self.inner.address)
    }

    /// Opens a separate connection.
    ///
    /// Errors: [`ClientError::Unreachable`].
    pub async fn connect(&self) -> Result<SendRequest<Full<Bytes>>, ClientError> {
        Ok(self.open().await?.0)
    }

    /// Opens a separate connection. Returns its error channel, too.
    async fn open(&self) -> Result<(SendRequest<Full<Bytes>>, ConnectionFailure), ClientError> {
        let fail = |e: &std::io::Error| {
            let hint = match e.kind() {
                std::io::ErrorKind::ConnectionRefused => ": does it run, and listen at this address?",
                _ => "",
            };
            ClientError::Unreachable(explain(&self.who(), e) + hint)
        };
        let slow = || {
            ClientError::Unreachable(format!("{}: no answer within {} s", self.who(), REPLY_TIME.as_secs()))
        };
        let connect = async { TcpStream::connect(&*lookup(&self.inner.address).await?).await };
        let stream = timeout(REPLY_TIME, connect).await.map_err(|_| slow())?.map_err(|e| fail(&e))?;
        let _ = stream.set_nodelay(true);
        let tls = timeout(REPLY_TIME, self.inner.identity.connect(stream, Role::Controller, "controller"))
            .await
            .map_err(|_| slow())?
            .map_err(|e| fail(&e))?;
        let guard = self.inner.identity.guard(tls.get_ref().1);
        let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(tls))
            .await
            .map_err(|e| ClientError::Unreachable(self.broken(&e)))?;
        let (tell, broke) = oneshot::channel();
        tokio::spawn(async move {
            // Reports the error to a request that had not been sent when the connection broke.
            if let Ok(Err(error)) = guard.during(connection).await {
                let _ = tell.send(error);
            }
        });
        Ok((sender, broke))
    }

    /// Returns the reason for the failure of a request. If the connection broke before the request
    /// was sent, the reason is the connection's error.
    async fn why(&self, error: &hyper::Error, broke: ConnectionFailure) -> ClientError {
        let cause = if error.is_canceled() { timeout(BREAKS, broke).await.ok() } else { None };
        ClientError::Unreachable(self.broken(cause.and_then(Result::ok).as_ref().unwrap_or(error)))
    }

    /// Describes a broken connection in one line.
    pub fn broken(&self, error: &hyper::Error) -> String {
        format!("{}: {}", self.who(), why_broken(error))
    }

    /// Builds a request with this JSON body.
    ///
    /// Errors: an invalid path.
    pub fn request(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<Request<Full<Bytes>>, ClientError> {
        Request::builder()
            .method(method)
            .uri(path)
            .header(hyper::header::HOST, &self.inner.address)
            .header(hyper::header::CONTENT_TYPE, "application/json")
            .body(Full::new(body))
            .map_err(|e| ClientError::Settings(e.to_string()))
    }

    /// Sends a request once, and returns the answer, within the time limit `wait`.
    ///
    /// Errors: see [`ClientError`].
    pub async fn send(
        &self,
        method: &Method,
        path: &str,
        body: &Bytes,
        wait: Duration,
    ) -> Result<Bytes, ClientError> {
        let kept = self.kept().await;
        let fresh = if kept.is_none() { Some(self.open().await?) } else { None };
        let exchange = async {
            // The server may have closed a kept connection meanwhile. A request that was not sent
            // may use a new connection.
            if let Some(mut sender) = kept {
                let request = self.request(method.clone(), path, body.clone())?;
                match sender.try_send_request(request).await {
                    Ok(response) => return Ok((sender, self.collect(response).await)),
                    Err(mut e) => {
                        if e.take_message().is_none() {
                            return Err(ClientError::Unreachable(self.broken(e.error())));
                        }
                    }
                }
            }
            let (mut sender, broke) = match fresh {
                Some(fresh) => fresh,
                None => self.open().await?,
            };
            let request = self.request(method.clone(), path, body.clone())?;
            match sender.send_request(request).await {
                Ok(response) => Ok((sender, self.collect(response).await)),
                Err(error) => Err(self.why(&error, broke).await),
            }
        };
        let result = timeout(wait, exchange).await.map_err(|_| {
            ClientError::Unreachable(format!("{}: no answer within {} s", self.who(), wait.as_secs()))
        })?;
        let (mut sender, answer) = result?;
        if answer.is_ok() && sender.ready().await.is_ok() {
            self.keep(sender).await;
        }
        answer
    }

    /// Sends a request once as `send` does, with a time limit that includes connecting. It serves
    /// an agent, which must know at once that its controller is unreachable.
    ///
    /// Errors: see [`ClientError`].
    pub async fn once(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
        within: Duration,
    ) -> Result<Bytes, ClientError> {
        let sent = self.send(&method, path, &body, within);
        timeout(within, sent).await.unwrap_or_else(|_| {
            let who = self.who();
            Err(ClientError::Unreachable(format!("{who}: no answer within {} ms", within.as_millis())))
        })
    }

    /// Returns a kept connection that is still open, if there is one.
    async fn kept(&self) -> Option<SendRequest<Full<Bytes>>> {
        let mut idle = self.inner.idle.lock().await;
        idle.retain(|s| s.is_ready() && !s.is_closed());
        idle.pop_front()
    }

    /// Opens another connection in the background, for a request that will be sent while another
    /// request is in flight.
    pub fn warm(&self) {
        let connection = self.clone();
        tokio::spawn(async move {
            // A failure is retried by the request that needs the connection.
            if let Ok(sender) = connection.connect().await {
                connection.keep(sender).await;
            }
        });
    }

    async fn keep(&self, sender: SendRequest<Full<Bytes>>) {
        let mut idle = self.inner.idle.lock().await;
        idle.push_back(sender);
        // The surplus connections at the front have been idle for the longest time.
        let surplus = idle.len().saturating_sub(IDLE_MAX);
        idle.drain(..surplus);
    }

    /// Returns the body of an answer.
    ///
    /// Errors: the answer breaks off, is too long, or is a refusal.
    pub async fn collect(&self, response: Response<Incoming>) -> Result<Bytes, ClientError> {
        let status = response.status();
        let body = Limited::new(response.into_body(), REPLY_BYTES_MAX)
            .collect()
            .await
            .map_err(|e| {
                let why = match e.downcast_ref::<hyper::Error>() {
                    Some(broke) => why_broken(broke),
                    None => format!("more than {REPLY_BYTES_MAX} bytes"),
                };
                ClientError::Unreachable(format!("{}: reply broke off: {why}", self.who()))
            })?
            .to_bytes();
        if status.is_success() {
            return Ok(body);
        }
        let error =
            serde_json::from_slice::<ErrorBody>(&body).map_or_else(|_| status.to_string(), |b| b.error);
        Err(ClientError::Refused { status: status.as_u16(), error: format!("{}: {error}", self.who()) })
    }

    /// Repeats a request until it succeeds, is refused, or the patience has passed. Logs the first
    /// failure at once if the patience is at least 5 s.
    ///
    /// Errors: the error of the last attempt.
    pub async fn send_again(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
        wait: Duration,
    ) -> Result<Bytes, ClientError> {
        let end = Instant::now() + self.inner.patience;
        let (mut backoff, mut is_told) = (BACKOFF, self.inner.patience < TOLD_PATIENCE);
        loop {
            let result = self.send(&method, path, &body, wait).await;
            let pause = backoff.next_pause().to_std();
            match result {
                Err(e) if e.is_passing() && Instant::now() + pause < end => {
                    if !std::mem::replace(&mut is_told, true) {
                        let left = end.saturating_duration_since(Instant::now());
                        tracing::warn!("{e}; trying on for {} s", left.as_secs());
                    }
                    sleep(pause).await;
                }
                result => return result,
            }
        }
    }

    /// Parses a reply as a `T`.
    ///
    /// Errors: [`ClientError::Garbled`].
    pub fn read<T: DeserializeOwned>(&self, bytes: &[u8]) -> Result<T, ClientError> {
        serde_json::from_slice(bytes).map_err(|error| self.garbled(&error))
    }

    /// Returns the error of an unreadable reply.
    pub fn garbled(&self, error: &serde_json::Error) -> ClientError {
        ClientError::Garbled(format!("{}: reply: {error}", self.who()))
    }

    /// Serializes the body of a request.
    ///
    /// Errors: a value that JSON cannot express.
    pub fn write(&self, value: &impl Serialize) -> Result<Bytes, ClientError> {
        serde_json::to_vec(value).map(Bytes::from).map_err(|e| ClientError::Settings(e.to_string()))
    }

    /// Fetches JSON from a path, with retries as in [`Self::send_again`].
    ///
    /// Errors: see [`ClientError`].
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.read(&self.send_again(Method::GET, path, Bytes::new(), REPLY_TIME).await?)
    }

    /// Fetches text from a path, with retries as in [`Self::send_again`].
    ///
    /// Errors: see [`ClientError`].
    pub async fn text(&self, path: &str) -> Result<String, ClientError> {
        let bytes = self.send_again(Method::GET, path, Bytes::new(), REPLY_TIME).await?;
        String::from_utf8(bytes.to_vec()).map_err(|e| ClientError::Garbled(format!("{}: {e}", self.who())))
    }
}
