//! The typed client of the controller: for sites, and for the command line.
//!
//! HTTP/1.1 over mutual TLS; connections are kept, so that a request costs one round trip. What is safe to repeat is
//! repeated until the client's patience ends. Leaves out: what to do with commands. Read [`Client`] and [`SiteLink`]
//! first.

use crate::wire::{
    CommandsReply, ErrorBody, LinkAddress, RegisterReply, RegisterRequest, ReportsRequest, SubmitReply,
    SubmitRequest, TopologyView, TransferView, TransfersView,
};
use anabranch_net::keys::{Role, escaped};
use anabranch_net::tls::{Credentials, explain, server_name};
use anabranch_replicate::control::{Command, Report, TransferId};
use anabranch_replicate::coordinator::Event;
use anabranch_replicate::plan::Plan;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::SendRequest;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep, timeout};
use tokio_rustls::TlsConnector;

/// The largest reply that is taken.
const REPLY_BYTES_MAX: usize = 256 << 20;
/// How long connecting, or a reply that nothing holds up, may take.
const REPLY_TIME: Duration = Duration::from_secs(20);
/// How long one call waits for commands: short, so that a controller that vanished is noticed.
const COMMANDS_WAIT: Duration = Duration::from_secs(5);
/// Silence after which a watched stream counts as broken; the server sends a sign of life every 15 s.
const WATCH_SILENCE: Duration = Duration::from_secs(40);
/// The most connections that are kept while nothing is asked on them.
const IDLE_MAX: usize = 2;
const BACKOFF_MIN: Duration = Duration::from_millis(100);
/// Short of the time for which a controller that comes back gathers its sites.
const BACKOFF_MAX: Duration = Duration::from_secs(1);

/// Why the controller did not do what was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ClientError {
    /// It cannot be reached, or is not who it should be. One line, with host and port.
    Unreachable(String),
    /// It said no. One line, with host and port; `status` is HTTP's.
    Refused {
        /// HTTP's status.
        status: u16,
        /// One line.
        error: String,
    },
    /// What it said cannot be understood.
    Garbled(String),
    /// The client's own settings cannot be used.
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
    /// The same request may succeed later.
    fn is_passing(&self) -> bool {
        match self {
            Self::Unreachable(_) => true,
            Self::Refused { status, .. } => matches!(status, 429 | 502 | 503),
            _ => false,
        }
    }
}

/// A connection to the controller; clones share it.
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

struct Inner {
    address: String,
    connector: TlsConnector,
    name: ServerName<'static>,
    patience: Duration,
    /// Kept connections, longest unused first: taken in turn, none rests long enough for the server to close it.
    idle: Mutex<VecDeque<SendRequest<Full<Bytes>>>>,
}

impl Client {
    /// A client of the controller at `address` (`host:port`). Connects at the first request; `patience` is how long a
    /// repeatable request is tried.
    ///
    /// Errors: credentials that cannot be used, an address without port.
    pub fn new(
        address: impl Into<String>,
        credentials: &Credentials,
        patience: Duration,
    ) -> Result<Self, ClientError> {
        let address = address.into();
        let settings = |e: &dyn std::fmt::Display| ClientError::Settings(e.to_string());
        if address.rsplit_once(':').is_none_or(|(h, p)| h.is_empty() || p.parse::<u16>().is_err()) {
            return Err(ClientError::Settings(format!(
                "controller address `{address}`: must be host:port, as in 127.0.0.1:7171"
            )));
        }
        let config = credentials.client_config().map_err(|e| settings(&e))?;
        let name = server_name(Role::Controller, "controller").map_err(|e| settings(&e))?;
        Ok(Self {
            inner: Arc::new(Inner {
                address,
                connector: TlsConnector::from(config),
                name,
                patience,
                idle: Mutex::default(),
            }),
        })
    }

    fn who(&self) -> String {
        format!("controller at {}", self.inner.address)
    }

    async fn connect(&self) -> Result<SendRequest<Full<Bytes>>, ClientError> {
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
        let stream = timeout(REPLY_TIME, TcpStream::connect(&self.inner.address))
            .await
            .map_err(|_| slow())?
            .map_err(|e| fail(&e))?;
        let _ = stream.set_nodelay(true);
        let tls = timeout(REPLY_TIME, self.inner.connector.connect(self.inner.name.clone(), stream))
            .await
            .map_err(|_| slow())?
            .map_err(|e| fail(&e))?;
        let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(tls))
            .await
            .map_err(|e| ClientError::Unreachable(self.broken(&e)))?;
        tokio::spawn(async move {
            // Whoever waits for a reply on it hears of its end.
            let _ = connection.await;
        });
        Ok(sender)
    }

    fn broken(&self, error: &hyper::Error) -> String {
        let mut source: Option<&(dyn std::error::Error + 'static)> = std::error::Error::source(error);
        while let Some(inner) = source {
            if let Some(io) = inner.downcast_ref::<std::io::Error>() {
                return explain(&self.who(), io);
            }
            source = inner.source();
        }
        format!("{}: {error}", self.who())
    }

    fn request(&self, method: Method, path: &str, body: Bytes) -> Result<Request<Full<Bytes>>, ClientError> {
        Request::builder()
            .method(method)
            .uri(path)
            .header(hyper::header::HOST, &self.inner.address)
            .header(hyper::header::CONTENT_TYPE, "application/json")
            .body(Full::new(body))
            .map_err(|e| ClientError::Settings(e.to_string()))
    }

    /// One try.
    async fn send(
        &self,
        method: &Method,
        path: &str,
        body: &Bytes,
        wait: Duration,
    ) -> Result<Bytes, ClientError> {
        let kept = self.kept().await;
        let was_kept = kept.is_some();
        let mut sender = match kept {
            Some(sender) => sender,
            None => self.connect().await?,
        };
        let exchange = async {
            let request = self.request(method.clone(), path, body.clone())?;
            let response = match sender.try_send_request(request).await {
                Ok(response) => response,
                Err(mut e) => {
                    // A kept connection may have been closed meanwhile; what was not sent may go over a new one.
                    if !was_kept || e.take_message().is_none() {
                        return Err(ClientError::Unreachable(self.broken(e.error())));
                    }
                    sender = self.connect().await?;
                    let request = self.request(method.clone(), path, body.clone())?;
                    sender
                        .send_request(request)
                        .await
                        .map_err(|e| ClientError::Unreachable(self.broken(&e)))?
                }
            };
            self.collect(response).await
        };
        let result = timeout(wait, exchange).await.map_err(|_| {
            ClientError::Unreachable(format!("{}: no answer within {} s", self.who(), wait.as_secs()))
        })?;
        if result.is_ok() && sender.ready().await.is_ok() {
            self.keep(sender).await;
        }
        result
    }

    /// A kept connection that still stands.
    async fn kept(&self) -> Option<SendRequest<Full<Bytes>>> {
        let mut idle = self.inner.idle.lock().await;
        idle.retain(|s| s.is_ready() && !s.is_closed());
        idle.pop_front()
    }

    /// Opens one connection more, in the background, for a request that will come while another is under way.
    fn warm(&self) {
        let client = self.clone();
        tokio::spawn(async move {
            // One that fails now is tried again by whoever needs it.
            if let Ok(sender) = client.connect().await {
                client.keep(sender).await;
            }
        });
    }

    async fn keep(&self, sender: SendRequest<Full<Bytes>>) {
        let mut idle = self.inner.idle.lock().await;
        idle.push_back(sender);
        // The others rest since longer.
        let surplus = idle.len().saturating_sub(IDLE_MAX);
        idle.drain(..surplus);
    }

    async fn collect(&self, response: Response<Incoming>) -> Result<Bytes, ClientError> {
        let status = response.status();
        let body = Limited::new(response.into_body(), REPLY_BYTES_MAX)
            .collect()
            .await
            .map_err(|e| ClientError::Unreachable(format!("{}: reply broke off: {e}", self.who())))?
            .to_bytes();
        if status.is_success() {
            return Ok(body);
        }
        let error =
            serde_json::from_slice::<ErrorBody>(&body).map_or_else(|_| status.to_string(), |b| b.error);
        Err(ClientError::Refused { status: status.as_u16(), error: format!("{}: {error}", self.who()) })
    }

    /// Tries until it works, is refused, or patience ends.
    async fn send_again(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
        wait: Duration,
    ) -> Result<Bytes, ClientError> {
        let end = Instant::now() + self.inner.patience;
        let mut pause = BACKOFF_MIN;
        loop {
            match self.send(&method, path, &body, wait).await {
                Err(e) if e.is_passing() && Instant::now() + pause < end => {
                    sleep(pause).await;
                    pause = (pause * 2).min(BACKOFF_MAX);
                }
                result => return result,
            }
        }
    }

    fn read<T: DeserializeOwned>(&self, bytes: &[u8]) -> Result<T, ClientError> {
        serde_json::from_slice(bytes).map_err(|e| ClientError::Garbled(format!("{}: reply: {e}", self.who())))
    }

    fn write(&self, value: &impl Serialize) -> Result<Bytes, ClientError> {
        serde_json::to_vec(value).map(Bytes::from).map_err(|e| ClientError::Settings(e.to_string()))
    }

    async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.read(&self.send_again(Method::GET, path, Bytes::new(), REPLY_TIME).await?)
    }

    /// Submits a transfer. Tried once: repeated, it might be taken on twice.
    ///
    /// Errors: see [`ClientError`].
    pub async fn submit(&self, request: &SubmitRequest) -> Result<TransferId, ClientError> {
        let body = self.write(request)?;
        let reply: SubmitReply =
            self.read(&self.send(&Method::POST, "/v1/transfers", &body, REPLY_TIME).await?)?;
        Ok(TransferId(reply.id))
    }

    /// How a transfer stands.
    ///
    /// Errors: see [`ClientError`].
    pub async fn status(&self, id: TransferId) -> Result<TransferView, ClientError> {
        self.get(&format!("/v1/transfers/{id}")).await
    }

    /// How all transfers stand, oldest first.
    ///
    /// Errors: see [`ClientError`].
    pub async fn statuses(&self) -> Result<Vec<TransferView>, ClientError> {
        self.get::<TransfersView>("/v1/transfers").await.map(|v| v.transfers)
    }

    /// The plan of a transfer's present or last attempt.
    ///
    /// Errors: see [`ClientError`]; status 404 before the first.
    pub async fn plan(&self, id: TransferId) -> Result<Plan, ClientError> {
        self.get(&format!("/v1/transfers/{id}/plan")).await
    }

    /// The controller's network, and which sites are up.
    ///
    /// Errors: see [`ClientError`].
    pub async fn topology(&self) -> Result<TopologyView, ClientError> {
        self.get("/v1/topology").await
    }

    /// Gives a transfer up. One that is over already is no error.
    ///
    /// Errors: see [`ClientError`].
    pub async fn cancel(&self, id: TransferId) -> Result<(), ClientError> {
        match self.send_again(Method::DELETE, &format!("/v1/transfers/{id}"), Bytes::new(), REPLY_TIME).await
        {
            Ok(_) | Err(ClientError::Refused { status: 409, .. }) => Ok(()),
            Err(e) => Err(e),
        }
    }

    /// Any address that answers with text: `/metrics`, `/openapi.json`, `/healthz`.
    ///
    /// Errors: see [`ClientError`].
    pub async fn text(&self, path: &str) -> Result<String, ClientError> {
        let bytes = self.send_again(Method::GET, path, Bytes::new(), REPLY_TIME).await?;
        String::from_utf8(bytes.to_vec()).map_err(|e| ClientError::Garbled(format!("{}: {e}", self.who())))
    }

    /// Watches a transfer until it is over; reconnects by itself.
    pub fn watch(&self, id: TransferId) -> Watch {
        Watch {
            client: self.clone(),
            id,
            last: None,
            body: None,
            buffer: Vec::new(),
            ready: VecDeque::new(),
            told_over: false,
            over: false,
        }
    }

    /// Tells the controller that a site is there. [`SiteLink`] does this by itself.
    ///
    /// Errors: see [`ClientError`].
    pub async fn register(
        &self,
        site: &str,
        request: &RegisterRequest,
    ) -> Result<RegisterReply, ClientError> {
        let path = format!("/v1/sites/{}/register", escaped(site));
        let body = self.write(request)?;
        self.read(&self.send_again(Method::POST, &path, body, REPLY_TIME).await?)
    }

    async fn commands(&self, site: &str, session: u64, after: u64) -> Result<CommandsReply, ClientError> {
        let path = format!(
            "/v1/sites/{}/commands?session={session}&after={after}&wait_ms={}",
            escaped(site),
            COMMANDS_WAIT.as_millis()
        );
        // One try: the caller acknowledges anew each time.
        self.read(&self.send(&Method::GET, &path, &Bytes::new(), COMMANDS_WAIT + REPLY_TIME).await?)
    }
}

/// What a watcher sees.
#[derive(Clone, Debug, PartialEq)]
pub enum WatchItem {
    /// How the transfer stands now.
    Status(Box<TransferView>),
    /// What happened, sites by id as in the topology.
    Event(Event),
}

/// A transfer being watched.
pub struct Watch {
    client: Client,
    id: TransferId,
    last: Option<String>,
    body: Option<Incoming>,
    buffer: Vec<u8>,
    ready: VecDeque<WatchItem>,
    told_over: bool,
    over: bool,
}

impl Watch {
    /// The next thing to show; `None` once the transfer is over and everything was shown.
    ///
    /// Errors: see [`ClientError`], after the client's patience.
    pub async fn next(&mut self) -> Result<Option<WatchItem>, ClientError> {
        let mut end: Option<Instant> = None;
        let mut pause = BACKOFF_MIN;
        loop {
            if let Some(item) = self.ready.pop_front() {
                return Ok(Some(item));
            }
            if self.over {
                return Ok(None);
            }
            let error = match self.fill().await {
                Ok(()) => continue,
                Err(error) => error,
            };
            self.body = None;
            self.buffer.clear();
            let end = *end.get_or_insert_with(|| Instant::now() + self.client.inner.patience);
            if !error.is_passing() || Instant::now() + pause >= end {
                return Err(error);
            }
            sleep(pause).await;
            pause = (pause * 2).min(BACKOFF_MAX);
        }
    }

    async fn fill(&mut self) -> Result<(), ClientError> {
        let who = self.client.who();
        let broken = |why: String| ClientError::Unreachable(format!("{who}: {why}"));
        let body = match &mut self.body {
            Some(body) => body,
            None => {
                let mut sender = self.client.connect().await?;
                let path = format!("/v1/transfers/{}/events", self.id);
                let mut request = self.client.request(Method::GET, &path, Bytes::new())?;
                if let Some(last) = self.last.as_ref().and_then(|l| l.parse().ok()) {
                    request.headers_mut().insert("last-event-id", last);
                }
                let response = timeout(REPLY_TIME, sender.send_request(request))
                    .await
                    .map_err(|_| broken("no answer".into()))?
                    .map_err(|e| ClientError::Unreachable(self.client.broken(&e)))?;
                if response.status() != StatusCode::OK {
                    self.client.collect(response).await?;
                    return Err(broken("an answer that was not asked for".into()));
                }
                self.body.insert(response.into_body())
            }
        };
        let frame = timeout(WATCH_SILENCE, body.frame()).await.map_err(|_| broken("fell silent".into()))?;
        let Some(frame) = frame else {
            // The server ends the stream of a transfer that is over, after its last event.
            self.over = self.told_over;
            return if self.over { Ok(()) } else { Err(broken("the stream ended".into())) };
        };
        let frame = frame.map_err(|e| broken(e.to_string()))?;
        if let Some(data) = frame.data_ref() {
            self.buffer.extend_from_slice(data);
        }
        if self.buffer.len() > REPLY_BYTES_MAX {
            return Err(ClientError::Garbled(format!(
                "{who}: an event of more than {REPLY_BYTES_MAX} bytes"
            )));
        }
        while let Some(end) = self.buffer.windows(2).position(|w| w == b"\n\n") {
            let block: Vec<u8> = self.buffer.drain(..end + 2).collect();
            self.take(&String::from_utf8_lossy(&block))?;
        }
        Ok(())
    }

    fn take(&mut self, block: &str) -> Result<(), ClientError> {
        let (mut kind, mut data) = ("", String::new());
        for line in block.lines() {
            let Some((field, value)) = line.split_once(':') else { continue };
            let value = value.strip_prefix(' ').unwrap_or(value);
            match field {
                "event" => kind = value,
                "id" => self.last = Some(value.to_owned()),
                "data" => data.push_str(value),
                _ => {}
            }
        }
        match kind {
            "status" => {
                let view: Box<TransferView> = self.client.read(data.as_bytes())?;
                self.told_over = view.outcome.is_some();
                self.ready.push_back(WatchItem::Status(view));
            }
            "event" => self.ready.push_back(WatchItem::Event(self.client.read(data.as_bytes())?)),
            _ => {}
        }
        Ok(())
    }
}

/// A site's standing conversation with the controller: registers, again where need be, and never loses or repeats a
/// command while the site's process lives.
pub struct SiteLink {
    client: Client,
    site: String,
    registration: RegisterRequest,
    registered: Mutex<Registered>,
    outbox: Mutex<Outbox>,
}

#[derive(Default)]
struct Registered {
    /// Counts registrations, so that two callers who were both told to register do so once.
    times: u64,
    done: bool,
    queue: Option<u64>,
    after: u64,
}

#[derive(Default)]
struct Outbox {
    batch: u64,
}

impl SiteLink {
    /// A link for `site`, which takes in data at `addresses`; `session` must be chosen at random when the site's process
    /// starts.
    pub fn new(client: Client, site: impl Into<String>, session: u64, addresses: Vec<LinkAddress>) -> Self {
        Self {
            client,
            site: site.into(),
            registration: RegisterRequest { session, addresses },
            registered: Mutex::default(),
            outbox: Mutex::default(),
        }
    }

    async fn ensure_registered(&self) -> Result<(u64, u64), ClientError> {
        let mut registered = self.registered.lock().await;
        if !registered.done {
            let reply = self.client.register(&self.site, &self.registration).await?;
            // The same queue goes on where we are, a new one counts anew.
            let same = registered.queue == Some(reply.queue);
            registered.after = if same { registered.after.max(reply.after) } else { reply.after };
            registered.queue = Some(reply.queue);
            registered.times += 1;
            registered.done = true;
            // Reports travel while a request for commands waits.
            self.client.warm();
        }
        Ok((registered.times, registered.after))
    }

    /// The controller does not know us (any more): register at the next call.
    async fn forget(&self, times: u64) {
        let mut registered = self.registered.lock().await;
        if registered.times == times {
            registered.done = false;
        }
    }

    /// The next commands, in order; an empty list now and then. They count as carried out when this is called again.
    ///
    /// Errors: see [`ClientError`], after the client's patience; calling again goes on.
    pub async fn next_commands(&self) -> Result<Vec<Command>, ClientError> {
        let end = Instant::now() + self.client.inner.patience;
        let mut pause = BACKOFF_MIN;
        loop {
            let (times, after) = self.ensure_registered().await?;
            match self.client.commands(&self.site, self.registration.session, after).await {
                Ok(reply) => {
                    let mut registered = self.registered.lock().await;
                    if registered.times != times {
                        // Numbers of another registration: what they belong to comes again.
                        continue;
                    }
                    let mut commands = Vec::with_capacity(reply.commands.len());
                    for c in reply.commands {
                        if c.number > registered.after {
                            registered.after = c.number;
                            commands.push(c.command);
                        }
                    }
                    return Ok(commands);
                }
                Err(ClientError::Refused { status: 409, .. }) => self.forget(times).await,
                Err(e) if e.is_passing() && Instant::now() + pause < end => {
                    sleep(pause).await;
                    pause = (pause * 2).min(BACKOFF_MAX);
                }
                Err(e) => return Err(e),
            }
        }
    }

    /// Sends reports, in order, each exactly once. Callers take turns.
    ///
    /// Errors: see [`ClientError`], after the client's patience; the reports may then not have arrived.
    pub async fn report(&self, reports: &[Report]) -> Result<(), ClientError> {
        let mut outbox = self.outbox.lock().await;
        outbox.batch += 1;
        let body = self.client.write(&ReportsRequest {
            session: self.registration.session,
            batch: outbox.batch,
            reports: reports.to_vec(),
        })?;
        let path = format!("/v1/sites/{}/reports", escaped(&self.site));
        loop {
            let (times, _) = self.ensure_registered().await?;
            match self.client.send_again(Method::POST, &path, body.clone(), REPLY_TIME).await {
                Err(ClientError::Refused { status: 409, .. }) => self.forget(times).await,
                result => return result.map(|_| ()),
            }
        }
    }
}
