//! The typed client of the controller: for sites, and for the command line.
//!
//! Leaves out: connections (the `http` room), carrying out commands. Read [`Client`] and [`SiteLink`] first.

use crate::wire::{
    CommandsReply, EventView, RegisterReply, RegisterRequest, ReportsRequest, SourceReply, SubmitReply,
    SubmitRequest, TopologyView, TransferView, TransfersView,
};
use anabranch_http::{BACKOFF, ClientError, Connection, REPLY_BYTES_MAX, REPLY_TIME};
use anabranch_net::identity::Identity;
use anabranch_net::keys::escaped;
use anabranch_replicate_proto::control::{Command, Report, TransferId};
use anabranch_replicate_proto::coordinator::Submitted;
use anabranch_replicate_proto::plan::Plan;
use anabranch_sessions::{PeerSession, Position};
use http_body_util::BodyExt as _;
use hyper::body::{Bytes, Incoming};
use hyper::{Method, StatusCode};
use std::collections::VecDeque;
use std::time::Duration;
use tokio::sync::{Mutex, watch};
use tokio::time::{Instant, sleep, timeout};

/// How long one call waits for commands: short, so that a controller that vanished is noticed.
const COMMANDS_WAIT: Duration = Duration::from_secs(5);
/// How long a source may look for a file: longer than the controller waits for it.
const SOURCE_TIME: Duration = Duration::from_secs(40);
/// Silence after which a watched stream counts as broken; the server sends a sign of life every 15 s.
const WATCH_SILENCE: Duration = Duration::from_secs(40);

/// A connection to the controller; clones share it.
#[derive(Clone)]
pub struct Client {
    connection: Connection,
}

impl Client {
    /// A client of the controller at `address` (`host:port`). Connects at the first request; `patience` is how long a
    /// repeatable request is tried.
    ///
    /// Errors: keys of another system, an address without port.
    pub fn new(
        address: impl Into<String>,
        identity: &Identity,
        patience: Duration,
    ) -> Result<Self, ClientError> {
        Ok(Self { connection: Connection::new(crate::SYSTEM, address, identity, patience)? })
    }

    /// Another client of the same controller, which tries a repeatable request for so long.
    #[must_use]
    pub fn with_patience(&self, patience: Duration) -> Self {
        Self { connection: self.connection.with_patience(patience) }
    }

    /// Submits a transfer. Tried once: repeated, it might be taken on twice.
    ///
    /// Errors: see [`ClientError`].
    pub async fn submit(&self, request: &SubmitRequest) -> Result<TransferId, ClientError> {
        let body = self.connection.write(request)?;
        let reply = self.connection.send(&Method::POST, "/v1/transfers", &body, REPLY_TIME).await?;
        Ok(TransferId(self.connection.read::<SubmitReply>(&reply)?.id))
    }

    /// Submits a transfer, unless one that is under way does the same already. Repeated where the answer got lost: the
    /// transfer that the first request began is then [`Submitted::Attached`]; if it ended meanwhile, another is begun.
    ///
    /// Errors: see [`ClientError`]; status 409 where one under way does the same by other settings.
    pub async fn submit_or_attach(&self, request: &SubmitRequest) -> Result<Submitted, ClientError> {
        let body = self.connection.write(&SubmitRequest { attach: true, ..request.clone() })?;
        let reply = self.connection.send_again(Method::POST, "/v1/transfers", body, REPLY_TIME).await?;
        let reply: SubmitReply = self.connection.read(&reply)?;
        let id = TransferId(reply.id);
        Ok(if reply.attached { Submitted::Attached(id) } else { Submitted::New(id) })
    }

    /// Has a file sent, or follows the transfer under way that does the same already, and watches that.
    ///
    /// Errors: as [`Client::submit_or_attach`].
    pub async fn send(&self, request: &SubmitRequest) -> Result<Watch, ClientError> {
        let (Submitted::New(id) | Submitted::Attached(id)) = self.submit_or_attach(request).await?;
        Ok(self.watch(id))
    }

    /// The length of the file that a request would send, as its source says; nothing is begun.
    ///
    /// Errors: see [`ClientError`]; status 422 where the source would not send it.
    pub async fn ask_source(&self, request: &SubmitRequest) -> Result<u64, ClientError> {
        let body = self.connection.write(request)?;
        let reply = self.connection.send(&Method::POST, "/v1/source", &body, SOURCE_TIME).await?;
        Ok(self.connection.read::<SourceReply>(&reply)?.length_bytes)
    }

    /// How a transfer stands.
    ///
    /// Errors: see [`ClientError`].
    pub async fn status(&self, id: TransferId) -> Result<TransferView, ClientError> {
        self.connection.get(&format!("/v1/transfers/{id}")).await
    }

    /// How all transfers stand, oldest first.
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

    /// The plan of a transfer's present or last attempt.
    ///
    /// Errors: see [`ClientError`]; status 404 before the first.
    pub async fn plan(&self, id: TransferId) -> Result<Plan, ClientError> {
        self.connection.get(&format!("/v1/transfers/{id}/plan")).await
    }

    /// Of the plans of a transfer's attempts, the last that served the most destinations.
    ///
    /// Errors: see [`ClientError`]; status 404 before the first.
    pub async fn widest_plan(&self, id: TransferId) -> Result<Plan, ClientError> {
        self.connection.get(&format!("/v1/transfers/{id}/plan?widest=true")).await
    }

    /// The controller's network, and which sites are up.
    ///
    /// Errors: see [`ClientError`].
    pub async fn topology(&self) -> Result<TopologyView, ClientError> {
        self.connection.get("/v1/topology").await
    }

    /// Gives a transfer up; false if it was over already. Repeated where the answer got lost: false then, too, for one that
    /// the first request cancelled.
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

    /// Any address that answers with text: `/metrics`, `/openapi.json`, `/healthz`.
    ///
    /// Errors: see [`ClientError`].
    pub async fn text(&self, path: &str) -> Result<String, ClientError> {
        self.connection.text(path).await
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
            patience: self.connection.patience(),
            lost: None,
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
        // One try: the caller acknowledges anew each time.
        self.connection.read(
            &self.connection.send(&Method::GET, &path, &Bytes::new(), COMMANDS_WAIT + REPLY_TIME).await?,
        )
    }
}

/// An item for a watcher.
#[derive(Clone, Debug, PartialEq)]
pub enum WatchItem {
    /// How the transfer stands now.
    Status(Box<TransferView>),
    /// An event.
    Event(Box<EventView>),
    /// The controller cannot be reached, and why: it is tried on.
    Away(String),
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
    patience: Duration,
    lost: Option<Lost>,
}

/// The controller cannot be reached.
struct Lost {
    /// Until when it is tried.
    until: Instant,
    /// The watcher has been told.
    is_said: bool,
}

impl Watch {
    /// The same, where a controller that went away is tried for so long.
    pub fn with_patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    /// The transfer.
    pub fn id(&self) -> TransferId {
        self.id
    }

    /// Waits for the transfer's end, passing over what happens meanwhile: how it stands then.
    ///
    /// Errors: as [`Watch::next`].
    pub async fn end(mut self) -> Result<TransferView, ClientError> {
        let mut last = None;
        while let Some(item) = self.next().await? {
            if let WatchItem::Status(view) = item {
                last = Some(*view);
            }
        }
        Ok(last.expect("a watch is over only after a status with the outcome"))
    }

    /// The next thing to show; `None` once the transfer is over and everything was shown.
    ///
    /// Errors: see [`ClientError`], after the watch's patience.
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
            let lost = self.lost.get_or_insert(Lost { until, is_said: false });
            if !error.is_passing() || Instant::now() + pause >= lost.until {
                return Err(error);
            }
            // A restart is over at the second try, and worth no word.
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

/// The id and the item of a block of an event stream, as far as it has any (HTML Living Standard, section 9.2.6).
///
/// Errors: data that is not what its event holds.
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

/// A site's standing conversation with the controller: registers, again where need be, and never loses or repeats a
/// command while the site's process lives.
pub struct SiteLink {
    client: Client,
    site: String,
    registration: RegisterRequest,
    session: Mutex<PeerSession>,
    /// The number of the last batch of reports.
    batch: Mutex<u64>,
    /// How often it has registered.
    registered: watch::Sender<u64>,
}

impl SiteLink {
    /// A link for `site`; the registration's session must be chosen at random when the site's process starts. The place of
    /// another process is taken at most once.
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
            // Reports travel while a request for commands waits.
            self.client.connection.warm();
        }
        Ok((session.joins(), session.position()))
    }

    /// The answer to a request of the registration `times`, none once there is a newer one: a controller whose machine lost its
    /// power closes no connection, and its successor answers nothing that was asked on one.
    async fn answered<T>(&self, times: u64, request: impl Future<Output = T>) -> Option<T> {
        let mut registered = self.registered.subscribe();
        tokio::select! {
            answer = request => Some(answer),
            _ = registered.wait_for(|now| *now > times) => None,
        }
    }

    /// The next commands, in order; an empty list now and then. They count as carried out when this is called again.
    ///
    /// Errors: see [`ClientError`], after the client's patience; calling again goes on.
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

    /// Sends reports, in order, each exactly once. Callers take turns.
    ///
    /// Errors: see [`ClientError`], after the client's patience; the reports may then not have arrived.
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
