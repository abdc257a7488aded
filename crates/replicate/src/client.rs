//! The typed client of the controller: for sites, and for the command line.
//!
//! Leaves out: connections (the `http` room), executing commands. Read [`Client`] and [`SiteLink`]
//! first.

use crate::wire::{
    CommandsReply, EventView, RegisterReply, RegisterRequest, ReportsRequest, SourceReply, SubmitReply,
    SubmitRequest, TopologyView, TransferView, TransfersView,
};
use anabranch_http::{BACKOFF, ClientError, Connection, REPLY_BYTES_MAX, REPLY_TIME};
use anabranch_net::identity::Identity;
use anabranch_net::keys::escaped;
use anabranch_replicate_proto::control::{Command, Report, TransferId};
use anabranch_replicate_proto::coordinator::SubmitResult;
use anabranch_replicate_proto::plan::Plan;
use anabranch_sessions::{PeerSession, Position};
use http_body_util::BodyExt as _;
use hyper::body::{Bytes, Incoming};
use hyper::{Method, StatusCode};
use std::collections::VecDeque;
use std::time::Duration;
use tokio::sync::{Mutex, watch};
use tokio::time::{Instant, sleep, timeout};

/// Duration of one long poll for commands: short, so that a vanished controller is noticed.
const COMMANDS_WAIT: Duration = Duration::from_secs(5);
/// Time limit of a source's search for a file: longer than the controller waits for the source.
const SOURCE_TIME: Duration = Duration::from_secs(40);
/// Silence after which a watched stream counts as broken; the server sends a keep-alive every 15 s.
const WATCH_SILENCE: Duration = Duration::from_secs(40);

/// A connection to the controller; clones share it.
#[derive(Clone)]
pub struct Client {
    connection: Connection,
}

impl Client {
    /// Creates a client of the controller at `address` (`host:port`). The client connects at the
    /// first request; `patience` is the time during which a repeatable request is retried.
    ///
    /// Errors: keys of another system, an address without a port.
    pub fn new(
        address: impl Into<String>,
        identity: &Identity,
        patience: Duration,
    ) -> Result<Self, ClientError> {
        Ok(Self { connection: Connection::new(crate::SYSTEM, address, identity, patience)? })
    }

    /// Returns a client of the same controller with another retry time.
    #[must_use]
    pub fn with_patience(&self, patience: Duration) -> Self {
        Self { connection: self.connection.with_patience(patience) }
    }

    /// Submits a transfer. Not retried, because a repeated request could start a second transfer.
    ///
    /// Errors: see [`ClientError`].
    pub async fn submit(&self, request: &SubmitRequest) -> Result<TransferId, ClientError> {
        let body = self.connection.write(request)?;
        let reply = self.connection.send(&Method::POST, "/v1/transfers", &body, REPLY_TIME).await?;
        Ok(TransferId(self.connection.read::<SubmitReply>(&reply)?.id))
    }

    /// Submits a transfer, unless an equal one is active. Retried if the answer is lost: a transfer
    /// started by the first attempt is then [`SubmitResult::Attached`]. If that transfer has ended
    /// meanwhile, the retry starts another one.
    ///
    /// Errors: see [`ClientError`]; status 409 if an active transfer sends the same file to the
    /// same destinations with other settings.
    pub async fn submit_or_attach(&self, request: &SubmitRequest) -> Result<SubmitResult, ClientError> {
        let body = self.connection.write(&SubmitRequest { attach: true, ..request.clone() })?;
        let reply = self.connection.send_again(Method::POST, "/v1/transfers", body, REPLY_TIME).await?;
        let reply: SubmitReply = self.connection.read(&reply)?;
        let id = TransferId(reply.id);
        Ok(if reply.attached { SubmitResult::Attached(id) } else { SubmitResult::New(id) })
    }

    /// Submits a transfer, or attaches to an equal active one, and watches it.
    ///
    /// Errors: as [`Client::submit_or_attach`].
    pub async fn send(&self, request: &SubmitRequest) -> Result<TransferWatch, ClientError> {
        let (SubmitResult::New(id) | SubmitResult::Attached(id)) = self.submit_or_attach(request).await?;
        Ok(self.watch(id))
    }

    /// Asks the source for the length of the file that a request would send, without starting a
    /// transfer.
    ///
    /// Errors: see [`ClientError`]; status 422 if the source would not send the file.
    pub async fn ask_source(&self, request: &SubmitRequest) -> Result<u64, ClientError> {
        let body = self.connection.write(request)?;
        let reply = self.connection.send(&Method::POST, "/v1/source", &body, SOURCE_TIME).await?;
        Ok(self.connection.read::<SourceReply>(&reply)?.length_bytes)
    }

    /// Returns the status of a transfer.
    ///
    /// Errors: see [`ClientError`].
    pub async fn status(&self, id: TransferId) -> Result<TransferView, ClientError> {
        self.connection.get(&format!("/v1/transfers/{id}")).await
    }

    /// Returns the status of all transfers, oldest first.
    ///
    /// Errors: see [`ClientError`].
    pub async fn statuses(&self) -> Result<Vec<TransferView>, ClientError> {
        let mut all: Vec<TransferView> = Vec::new();
        loop {
            let after = all.last().map_or(0, |t| t.id);
            let page: TransfersView = self.connection.get(&format!("/v1/transfers?after={after}")).await?;
            let done = !page.more || page.transfers.is_empty();
            all.extend(page.transfers);
            if done {
                return Ok(all);
            }
        }
    }

    /// Returns the plan of a transfer's current or last attempt.
    ///
    /// Errors: see [`ClientError`]; status 404 before the first plan.
    pub async fn plan(&self, id: TransferId) -> Result<Plan, ClientError> {
        self.connection.get(&format!("/v1/transfers/{id}/plan")).await
    }

    /// Returns the latest of the plans that served the most destinations, over all attempts of a
    /// transfer.
    ///
    /// Errors: see [`ClientError`]; status 404 before the first plan.
    pub async fn widest_plan(&self, id: TransferId) -> Result<Plan, ClientError> {
        self.connection.get(&format!("/v1/transfers/{id}/plan?widest=true")).await
    }

    /// Returns the controller's network, and the state of each site.
    ///
    /// Errors: see [`ClientError`].
    pub async fn topology(&self) -> Result<TopologyView, ClientError> {
        self.connection.get("/v1/topology").await
    }

    /// Cancels a transfer; returns false if it was already over. A retry after a lost answer also
    /// returns false if the first attempt cancelled the transfer.
    ///
    /// Errors: see [`ClientError`].
    pub async fn cancel(&self, id: TransferId) -> Result<bool, ClientError> {
        match self
            .connection
            .send_again(Method::DELETE, &format!("/v1/transfers/{id}"), Bytes::new(), REPLY_TIME)
            .await
        {
            Ok(_) => Ok(true),
            Err(ClientError::Refused { status: 409, .. }) => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// Fetches any address that answers with text: `/metrics`, `/openapi.json`, `/healthz`.
    ///
    /// Errors: see [`ClientError`].
    pub async fn text(&self, path: &str) -> Result<String, ClientError> {
        self.connection.text(path).await
    }

    /// Watches a transfer to its end; reconnects by itself.
    pub fn watch(&self, id: TransferId) -> TransferWatch {
        TransferWatch {
            client: self.clone(),
            id,
            last: None,
            body: None,
            buffer: Vec::new(),
            ready: VecDeque::new(),
            told_over: false,
            over: false,
            patience: self.connection.patience(),
            lost: None,
        }
    }

    /// Registers a site with the controller. [`SiteLink`] does this by itself.
    ///
    /// Errors: see [`ClientError`].
    pub async fn register(
        &self,
        site: &str,
        request: &RegisterRequest,
    ) -> Result<RegisterReply, ClientError> {
        let path = format!("/v1/sites/{}/register", escaped(site));
        let body = self.connection.write(request)?;
        self.connection.read(&self.connection.send_again(Method::POST, &path, body, REPLY_TIME).await?)
    }

    async fn commands(
        &self,
        site: &str,
        session: u64,
        position: Position,
    ) -> Result<CommandsReply, ClientError> {
        let Position { numbering: queue, after } = position;
        let path = format!(
            "/v1/sites/{}/commands?session={session}&queue={queue}&after={after}&wait_ms={}",
            escaped(site),
            COMMANDS_WAIT.as_millis()
        );
        // A single attempt, because each call of the caller acknowledges the previous commands.
        self.connection.read(
            &self.connection.send(&Method::GET, &path, &Bytes::new(), COMMANDS_WAIT + REPLY_TIME).await?,
        )
    }
}

/// One update about a watched transfer.
#[derive(Clone, Debug, PartialEq)]
pub enum WatchItem {
    /// Current status of the transfer.
    Status(Box<TransferView>),
    /// An event.
    Event(Box<EventView>),
    /// The controller is unreachable, with the reason; the watch keeps trying.
    Away(String),
}

/// A watch on one transfer.
pub struct TransferWatch {
    client: Client,
    id: TransferId,
    last: Option<String>,
    body: Option<Incoming>,
    buffer: Vec<u8>,
    ready: VecDeque<WatchItem>,
    told_over: bool,
    over: bool,
    patience: Duration,
    lost: Option<Outage>,
}

/// State while the controller is unreachable.
struct Outage {
    /// Time at which the watch gives up.
    until: Instant,
    /// True once the watcher was notified of the outage.
    is_said: bool,
}

impl TransferWatch {
    /// Sets the time during which the watch retries an unreachable controller.
    pub fn with_patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    /// Id of the transfer.
    pub fn id(&self) -> TransferId {
        self.id
    }

    /// Waits for the end of the transfer, discarding other updates. Returns the final status.
    ///
    /// Errors: as [`TransferWatch::next`].
    pub async fn end(mut self) -> Result<TransferView, ClientError> {
        let mut last = None;
        while let Some(item) = self.next().await? {
            if let WatchItem::Status(view) = item {
                last = Some(*view);
            }
        }
        Ok(last.expect("a watch is over only after a status with the outcome"))
    }

    /// Returns the next update, or `None` after the last one.
    ///
    /// Errors: see [`ClientError`], once the watch's retry time is over.
    pub async fn next(&mut self) -> Result<Option<WatchItem>, ClientError> {
        let mut backoff = BACKOFF;
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
            let is_first = self.lost.is_none();
            let pause = backoff.next_pause().to_std();
            let until = Instant::now() + self.patience;
            let lost = self.lost.get_or_insert(Outage { until, is_said: false });
            if !error.is_passing() || Instant::now() + pause >= lost.until {
                return Err(error);
            }
            // A restarted controller answers the second attempt, so the watcher is told only after
            // that.
            if !is_first && !std::mem::replace(&mut lost.is_said, true) {
                self.ready.push_back(WatchItem::Away(error.to_string()));
            }
            sleep(pause).await;
        }
    }

    async fn fill(&mut self) -> Result<(), ClientError> {
        let who = self.client.connection.who();
        let broken = |why: String| ClientError::Unreachable(format!("{who}: {why}"));
        let body = match &mut self.body {
            Some(body) => body,
            None => {
                let mut sender = self.client.connection.connect().await?;
                let path = format!("/v1/transfers/{}/events", self.id);
                let mut request = self.client.connection.request(Method::GET, &path, Bytes::new())?;
                if let Some(last) = self.last.as_ref().and_then(|l| l.parse().ok()) {
                    request.headers_mut().insert("last-event-id", last);
                }
                let response = timeout(REPLY_TIME, sender.send_request(request))
                    .await
                    .map_err(|_| broken("no answer".into()))?
                    .map_err(|e| ClientError::Unreachable(self.client.connection.broken(&e)))?;
                if response.status() != StatusCode::OK {
                    self.client.connection.collect(response).await?;
                    return Err(broken("an answer that was not asked for".into()));
                }
                self.body.insert(response.into_body())
            }
        };
        let frame = timeout(WATCH_SILENCE, body.frame()).await.map_err(|_| broken("fell silent".into()))?;
        let Some(frame) = frame else {
            // The server ends the stream of a finished transfer after the last event.
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
        let (id, item) = read_block(block).map_err(|error| self.client.connection.garbled(&error))?;
        self.lost = None;
        self.last = id.or(self.last.take());
        if let Some(WatchItem::Status(view)) = &item {
            self.told_over = view.outcome.is_some();
        }
        self.ready.extend(item);
        Ok(())
    }
}

/// Parses one block of an event stream into its id and item, both optional (HTML Living Standard,
/// section 9.2.6).
///
/// Errors: data that does not fit the event's type.
pub(crate) fn read_block(block: &str) -> Result<(Option<String>, Option<WatchItem>), serde_json::Error> {
    let (mut kind, mut id, mut data) = ("", None, String::new());
    for line in block.lines() {
        let Some((field, value)) = line.split_once(':') else { continue };
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => kind = value,
            "id" => id = Some(value.to_owned()),
            "data" => data.push_str(value),
            _ => {}
        }
    }
    let item = match kind {
        "status" => Some(WatchItem::Status(serde_json::from_str(&data)?)),
        "event" => Some(WatchItem::Event(Box::new(serde_json::from_str(&data)?))),
        _ => None,
    };
    Ok((id, item))
}

/// A site's lasting session with the controller. It registers, repeatedly if needed, and delivers
/// every command exactly once while the site's process runs.
pub struct SiteLink {
    client: Client,
    site: String,
    registration: RegisterRequest,
    session: Mutex<PeerSession>,
    /// Number of the last batch of reports.
    batch: Mutex<u64>,
    /// Number of registrations so far.
    registered: watch::Sender<u64>,
}

impl SiteLink {
    /// Creates a link for `site`. The caller must draw the registration's session at random when
    /// the site's process starts. A link replaces another process of the site at most once.
    pub fn new(client: Client, site: impl Into<String>, registration: RegisterRequest) -> Self {
        Self {
            client,
            site: site.into(),
            registration,
            session: Mutex::default(),
            batch: Mutex::default(),
            registered: watch::Sender::default(),
        }
    }

    async fn ensure_registered(&self) -> Result<(u64, Position), ClientError> {
        let mut session = self.session.lock().await;
        if session.must_join() {
            let take_over = self.registration.take_over && session.joins() == 0;
            let registration = RegisterRequest { take_over, ..self.registration.clone() };
            let reply = self.client.register(&self.site, &registration).await?;
            if let Some(warning) = reply.warning.filter(|_| session.joins() == 0) {
                tracing::warn!("{warning}");
            }
            session.handle_joined(reply.queue, reply.after);
            self.registered.send_replace(session.joins());
            // Reports use a second connection while a long poll occupies the first.
            self.client.connection.warm();
        }
        Ok((session.joins(), session.position()))
    }

    /// Returns the answer to a request of registration number `times`, or `None` after a newer
    /// registration. A controller that lost power closes no connection, and its successor cannot
    /// answer old requests.
    async fn answered<T>(&self, times: u64, request: impl Future<Output = T>) -> Option<T> {
        let mut registered = self.registered.subscribe();
        tokio::select! {
            answer = request => Some(answer),
            _ = registered.wait_for(|now| *now > times) => None,
        }
    }

    /// Returns the next commands, in order; the list may be empty. The next call acknowledges them
    /// as executed.
    ///
    /// Errors: see [`ClientError`], once the client's retry time is over; the next call continues.
    pub async fn next_commands(&self) -> Result<Vec<Command>, ClientError> {
        let end = Instant::now() + self.client.connection.patience();
        let mut backoff = BACKOFF;
        loop {
            let (times, position) = self.ensure_registered().await?;
            let request = self.client.commands(&self.site, self.registration.session, position);
            let Some(answer) = self.answered(times, request).await else { continue };
            match answer {
                Ok(reply) => {
                    let commands = reply.commands.into_iter().map(|c| (c.number, c.command)).collect();
                    if let Some(new) = self.session.lock().await.handle_messages(times, commands) {
                        return Ok(new);
                    }
                }
                Err(ClientError::Refused { status: 409, .. }) => {
                    self.session.lock().await.handle_not_joined(times)
                }
                Err(e) => {
                    let pause = backoff.next_pause().to_std();
                    if !e.is_passing() || Instant::now() + pause >= end {
                        return Err(e);
                    }
                    sleep(pause).await;
                }
            }
        }
    }

    /// Sends reports, in order, each exactly once. Concurrent callers wait for each other.
    ///
    /// Errors: see [`ClientError`], once the client's retry time is over; the reports may then be
    /// lost.
    pub async fn report(&self, reports: &[Report]) -> Result<(), ClientError> {
        let mut batch = self.batch.lock().await;
        *batch += 1;
        let body = self.client.connection.write(&ReportsRequest {
            session: self.registration.session,
            batch: *batch,
            reports: reports.to_vec(),
        })?;
        let path = format!("/v1/sites/{}/reports", escaped(&self.site));
        loop {
            let (times, _) = self.ensure_registered().await?;
            let request = self.client.connection.send_again(Method::POST, &path, body.clone(), REPLY_TIME);
            match self.answered(times, request).await {
                None => {}
                Some(Err(ClientError::Refused { status: 409, .. })) => {
                    self.session.lock().await.handle_not_joined(times)
                }
                Some(result) => return result.map(|_| ()),
            }
        }
    }
}
