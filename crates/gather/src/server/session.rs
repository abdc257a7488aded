//! One client's connection at a server: the client's requests, and the packets sent to the client.

use super::channels::ChannelKey;
use super::directories::Content;
use super::listing;
use super::metrics::Cause;
use super::share::{Share, UsagePart};
use super::{Datagrams, ServeEvent, Shared, WAITING_MAX};
use crate::control::{Reader, farewell, other_version};
use anabranch_endpoint::{Bytes, WireMessage as _};
use anabranch_gather_proto::msg::{self, Control, Datagram, Feedback, PullId, VERSION};
use anabranch_gather_proto::snapshot::SnapshotObject;
use anabranch_gather_proto::{Offer, Server, ServerEvent};
use anabranch_net::admission::{Arrival, HalfOpen};
use anabranch_net::datagram::{Segments, SendError};
use anabranch_net::identity::Identity;
use anabranch_net::keys::Role;
use anabranch_net::random;
use anabranch_net::seal::{self, Channel, ChannelId};
use anabranch_net::timer::FineTimer;
use anabranch_net::tls::{PeerIdentity, stranger};
use anabranch_pieces::name::directory;
use anabranch_units::Instant;
use anabranch_units::text::printable;
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio_rustls::TlsStream;

/// Interval of polling while the client has not yet shown its address for packets.
const UNSHOWN_EVERY: std::time::Duration = std::time::Duration::from_millis(100);
/// Interval of polling for memory that the client's other connections may have freed.
const SHORT_EVERY: std::time::Duration = std::time::Duration::from_millis(50);
/// Maximum time for writing control messages to a client.
const WRITE_TIME: std::time::Duration = std::time::Duration::from_secs(10);
/// Interval between messages that notify a client of a hash in progress.
const HASHING_EVERY: std::time::Duration = std::time::Duration::from_secs(1);
/// Maximum number of packets sent before the session checks for input.
const BURST_PACKETS: usize = 256;
/// Maximum bytes of one segmented send. The kernel's limit is just below 64 KiB.
const TOGETHER_BYTES: usize = 65_000;
/// Maximum number of a connection's hash and list requests that wait for their answers.
const QUESTIONS_MAX: usize = 4_096;
/// Maximum number of answers that wait to be written.
const ANSWERS_MAX: usize = 64;
/// Maximum number of control messages handled in a row.
const HEARD_MAX: usize = 64;
/// Maximum number of log lines of a connection.
const LINES_MAX: u32 = 10_000;
/// Number of packets left to a key at which the next channel is announced. More packets than can
/// leave before the client has read the announcement.
const KEY_LEFT_PACKETS: u64 = 1 << 22;

/// Maximum bytes read from a refused client: a few requests.
const UNHEARD_BYTES_MAX: usize = 1 << 16;
/// Maximum time for reading from a refused client.
const UNHEARD_TIME: std::time::Duration = std::time::Duration::from_secs(1);

type Stream = TlsStream<TcpStream>;

/// Registration of an open channel. Dropping the entry closes the channel.
struct Entry<'a> {
    shared: &'a Shared,
    place: ChannelKey,
    id: ChannelId,
}

impl<'a> Entry<'a> {
    /// Registers the channel `id` that the client at `client` has drawn. Returns `None` if another
    /// session has that id at the same address.
    fn named(shared: &'a Shared, client: SocketAddr, id: ChannelId, datagrams: &Datagrams) -> Option<Self> {
        let place = ChannelKey::new(client, id);
        // Constructed only on success: dropping an `Entry` closes its channel, which would here be
        // another session's channel.
        let is_open = shared.channels.lock().expect("nobody panics with it").open(place, datagrams);
        is_open.then(|| Self { shared, place, id })
    }

    /// Registers a further channel of the same client, with a random id.
    fn another(&self, datagrams: &Datagrams) -> Result<Self, seal::SealError> {
        loop {
            let id = ChannelId::random()?;
            let place = self.place.with(id);
            let mut channels = self.shared.channels.lock().expect("nobody panics with it");
            if channels.open(place, datagrams) {
                return Ok(Self { shared: self.shared, place, id });
            }
        }
    }
}

impl Drop for Entry<'_> {
    fn drop(&mut self) {
        self.shared.channels.lock().expect("nobody panics with it").close(self.place);
    }
}

/// The channel in use, and its announced successor.
struct Keys<'a> {
    entry: Entry<'a>,
    channel: Channel,
    sealed_packets: u64,
    next: Option<(Entry<'a>, Channel)>,
}

impl<'a> Keys<'a> {
    fn new(entry: Entry<'a>, stream: &Stream) -> Result<Self, seal::SealError> {
        let channel = seal::channel(stream, entry.id)?;
        Ok(Self { entry, channel, sealed_packets: 0, next: None })
    }

    /// Creates the next channel if the current key is nearly used up. Returns the message that
    /// announces the channel to the client.
    fn renew(&mut self, datagrams: &Datagrams, stream: &Stream) -> Result<Option<Control>, seal::SealError> {
        let shared = self.entry.shared;
        let is_fresh = self.channel.sealer.packets_left(0) >= KEY_LEFT_PACKETS
            && shared.key_packets.is_none_or(|most| self.sealed_packets < most);
        if is_fresh || self.next.is_some() {
            return Ok(None);
        }
        let entry = self.entry.another(datagrams)?;
        let channel = seal::channel(stream, entry.id)?;
        let message = Control::Channel { channel: entry.id.0 };
        self.next = Some((entry, channel));
        Ok(Some(message))
    }

    /// Opens a datagram of the client. The first datagram on the next channel shows that the client
    /// has that channel's keys, and makes it the current channel. Returns the feedback in an
    /// authentic datagram. An empty authentic datagram only shows the client's address for packets.
    fn open(&mut self, bytes: &mut [u8]) -> Option<Option<Feedback>> {
        let id = ChannelId::of(bytes);
        let next = self.next.take_if(|(entry, _)| Some(entry.id) == id);
        let Some((entry, mut channel)) = next else {
            let opened = self.channel.opener.open(bytes).ok()?;
            return Some(feedback(opened.payload));
        };
        let Ok(opened) = channel.opener.open(bytes) else {
            self.next = Some((entry, channel));
            return None;
        };
        let said = feedback(opened.payload);
        (self.entry, self.channel, self.sealed_packets) = (entry, channel, 0);
        Some(said)
    }
}

fn feedback(payload: &[u8]) -> Option<Feedback> {
    match Datagram::<Bytes>::decode(payload) {
        Ok(Datagram::Feedback(feedback)) => Some(feedback),
        _ => None,
    }
}

/// A request that takes time to answer.
enum SlowRequest {
    Hash { object: String },
    List { prefix: String, after: String },
}

/// The reason why a connection was refused or ended. Displays as one line.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    #[error(transparent)]
    System(#[from] io::Error),
    #[error("no secure connection: {0}")]
    Insecure(io::Error),
    #[error("{0}")]
    NoClient(String),
    #[error("no greeting: {0}")]
    NoGreeting(io::Error),
    #[error("the first message is no greeting")]
    OtherGreeting,
    #[error("closed before a greeting")]
    Closed,
    #[error("{0}")]
    Gone(String),
    #[error("it takes in nothing for {0} s: deadline has elapsed")]
    Stuck(u64),
    #[error("nothing was asked for in {0} s")]
    Idle(u64),
    #[error("pull {pull}: it acknowledges packets that it has not received, after {packets} were sent")]
    FalseReceipt { pull: u16, packets: u32 },
    #[error(transparent)]
    Seal(#[from] seal::SealError),
    #[error("pull {pull}: {error}")]
    SealPacket { pull: u16, error: seal::SealError },
}

fn gone(error: io::Error) -> SessionError {
    SessionError::Gone(farewell(&error))
}

/// Serves one client until its connection ends.
///
/// Errors: the reason why the connection was refused, or ended unexpectedly.
pub async fn run(shared: &Arc<Shared>, identity: &Identity, arrival: Arrival) -> Result<(), SessionError> {
    let from = arrival.from();
    // Control messages are short, and each waits for the one before: Nagle's algorithm would delay
    // each message.
    arrival.tcp().set_nodelay(true)?;
    let identified = arrival.identify(identity.server_config()).await.inspect_err(|error| {
        if let Some(line) = stranger(from.ip().to_canonical(), error) {
            shared.refusals.note(None, &line);
        }
    });
    let identified = identified.inspect_err(|_| shared.metrics.note_failure(Cause::NoClient));
    let (stream, peer, half_open) = identified.map_err(SessionError::Insecure)?;
    if !matches!(peer.role, Role::Operator | Role::Site) {
        let line = format!("{peer} is no client: its keys are for something else");
        shared.refusals.note(Some(&peer), &line);
        shared.metrics.note_failure(Cause::NoClient);
        return Err(SessionError::NoClient(line));
    }
    let guard = identity.guard(stream.get_ref().1);
    let mut reader = Reader::new(stream);
    let first = half_open.within(async { Ok(reader.next().await) }).await;
    let first = first.map_err(SessionError::NoGreeting)?;
    if let Some(version) = first.as_ref().err().and_then(other_version) {
        shared.metrics.note_failure(Cause::OtherVersion);
        shared
            .refusals
            .note(Some(&peer), &format!("client refused: it speaks version {version} of the protocol"));
        let reason = format!(
            "it speaks version {VERSION} of the protocol, not {version}: use one release at both ends"
        );
        turn_away(reader, &half_open, reason).await;
        return Ok(());
    }
    let channel = match first.map_err(gone)? {
        Some(Control::Hello { channel }) => ChannelId(channel),
        Some(_) => return Err(SessionError::OtherGreeting),
        None => return Err(SessionError::Closed),
    };
    // From here on the connection counts towards its identity's limit and is no longer half-open.
    let place = match shared.places.take(&peer) {
        Ok(place) => place,
        Err(crowded) => {
            shared.refusals.note(Some(&peer), &format!("client refused: {crowded}"));
            shared.metrics.note_failure(Cause::Crowded);
            turn_away(reader, &half_open, crowded.to_string()).await;
            return Ok(());
        }
    };
    let (datagrams_in, datagrams) = mpsc::channel(WAITING_MAX);
    let Some(entry) = Entry::named(shared, from, channel, &datagrams_in) else {
        shared.refusals.note(Some(&peer), "client refused: it names a channel of another session");
        turn_away(reader, &half_open, format!("channel {channel} is another session's: try again")).await;
        return Ok(());
    };
    drop(half_open);
    let name = printable(&peer.name).into_owned();
    shared.say(&ServeEvent::Came { client: name.clone(), from }, true);
    shared.metrics.admitted.inc();
    let mut session = Session {
        shared,
        share: Arc::clone(place.common()),
        number: shared.connections.fetch_add(1, Relaxed),
        name,
        peer,
        server: Server::new(shared.config.clone()),
        keys: Keys::new(entry, reader.get_ref())?,
        client: from,
        takes_at: None,
        objects: BTreeMap::new(),
        begun_at: std::time::Instant::now(),
        sent_bytes: 0,
        lines: 0,
        buffer: Vec::with_capacity(TOGETHER_BYTES + 65_536),
    };
    shared.metrics.clients.inc();
    let served = guard.during(session.serve(reader, datagrams_in, datagrams)).await;
    let ended = served.unwrap_or_else(|reason| Err(SessionError::Gone(reason)));
    let reason = ended.map_or_else(|error| error.to_string(), |()| "closed the connection".to_owned());
    let (client, stayed_s) = (session.name.clone(), session.begun_at.elapsed().as_secs());
    let sent_bytes = session.sent_bytes;
    shared.say(&ServeEvent::Went { client, from, sent_bytes, stayed_s, reason }, true);
    Ok(())
}

/// Notifies a client why it is refused. Pending input is read and dropped afterwards: closing a
/// stream with unread input resets the stream, which may lose the last message.
async fn turn_away(mut reader: Reader<Stream>, half_open: &HalfOpen, reason: String) {
    let reason = msg::reason(reason);
    let told = async {
        reader.write([Control::Goodbye { reason }]).await?;
        reader.drain(UNHEARD_BYTES_MAX, UNHEARD_TIME).await
    };
    // The connection is closed whether or not the message was delivered.
    let _ = half_open.within(told).await;
}

/// Answers slow requests one after the other.
async fn answer(
    shared: Arc<Shared>,
    share: Arc<Share>,
    mut questions: mpsc::Receiver<SlowRequest>,
    answers: mpsc::Sender<Control>,
) {
    // When the session has ended, no answer is needed, and the closed channel ends this task, too.
    while let Some(question) = questions.recv().await {
        match question {
            SlowRequest::Hash { object } => {
                let hashed = AtomicU64::new(0);
                let mut found = std::pin::pin!(async {
                    if directory(&object).is_some() {
                        let found = shared.directories.describe(&object, &share.turns).await;
                        return found.inspect(|_| _ = shared.metrics.snapshots.inc());
                    }
                    shared.hashes.hash(&shared.files, &object, &share.turns, &hashed).await
                });
                let mut tick = tokio::time::interval(HASHING_EVERY);
                tick.reset();
                let found = loop {
                    tokio::select! {
                        found = &mut found => break found,
                        _ = tick.tick() => {
                            let hashed_bytes = hashed.load(Relaxed);
                            let _ = answers.send(Control::Hashing { object: object.clone(), hashed_bytes }).await;
                        }
                    }
                };
                let _ = answers
                    .send(Control::Described { object: object.clone(), found: found.map_err(msg::reason) })
                    .await;
            }
            SlowRequest::List { prefix, after } => {
                // One list per client is made at a time; it may wait for a hash of the same client.
                let Ok(_turn) = share.turns.acquire().await else { return };
                let of = Arc::clone(&shared);
                let page = tokio::task::spawn_blocking(move || listing::page(&of.files, &prefix, &after));
                let failed = |error: tokio::task::JoinError| {
                    vec![Control::ListEnd { next: Err(msg::reason(error.to_string())) }]
                };
                for message in page.await.unwrap_or_else(failed) {
                    let _ = answers.send(message).await;
                }
            }
        }
    }
}

/// Writes messages to a client. Fails with [`SessionError::Stuck`] if the client does not read the
/// messages within [`WRITE_TIME`].
async fn tell(reader: &mut Reader<Stream>, messages: Vec<Control>) -> Result<(), SessionError> {
    let written = tokio::time::timeout(WRITE_TIME, reader.write(messages)).await;
    written.map_err(|_| SessionError::Stuck(WRITE_TIME.as_secs()))?.map_err(gone)
}

/// Queues a request. Returns a refusal if too many requests are waiting.
fn ask(question: SlowRequest, questions: &mpsc::Sender<SlowRequest>, waiting: &mut usize) -> Option<Control> {
    let reason = || format!("more than {QUESTIONS_MAX} hashes and lists are asked for at once");
    match questions.try_send(question) {
        Ok(()) => {
            *waiting += 1;
            None
        }
        Err(refused) => Some(match refused.into_inner() {
            SlowRequest::Hash { object } => Control::Described { object, found: Err(reason()) },
            SlowRequest::List { .. } => Control::ListEnd { next: Err(reason()) },
        }),
    }
}

/// The object of a pull, with its bytes.
struct Object {
    name: String,
    content: Content,
    begun_at: std::time::Instant,
}

struct Session<'a> {
    shared: &'a Arc<Shared>,
    /// Resources shared with the client's other connections.
    share: Arc<Share>,
    /// Number of this connection among all connections of the server.
    number: u64,
    name: String,
    peer: PeerIdentity,
    server: Server<Bytes>,
    keys: Keys<'a>,
    client: SocketAddr,
    /// Address at which the client takes packets; `None` until the client has shown its address.
    takes_at: Option<SocketAddr>,
    objects: BTreeMap<PullId, Object>,
    begun_at: std::time::Instant,
    sent_bytes: u64,
    lines: u32,
    buffer: Vec<u8>,
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        self.share.leave(self.number);
        self.shared.metrics.clients.dec();
    }
}

impl Session<'_> {
    /// Serves the client's requests until the client leaves.
    ///
    /// Errors: the event that ended the connection, in one line.
    async fn serve(
        &mut self,
        mut reader: Reader<Stream>,
        datagrams_in: Datagrams,
        mut datagrams: mpsc::Receiver<super::ReceivedDatagram>,
    ) -> Result<(), SessionError> {
        let welcome = Control::Welcome { port: self.shared.port };
        tell(&mut reader, vec![welcome]).await?;
        let (questions, questions_out) = mpsc::channel(QUESTIONS_MAX);
        let (answers_in, mut answers) = mpsc::channel(ANSWERS_MAX);
        // The task ends with this session, because dropping the set aborts its tasks.
        let mut tasks = tokio::task::JoinSet::new();
        tasks.spawn(answer(Arc::clone(self.shared), Arc::clone(&self.share), questions_out, answers_in));
        let mut timer = FineTimer::new()?;
        let mut asked_at = std::time::Instant::now();
        let mut waiting = 0;
        loop {
            let worked = self.work();
            if let Err(error @ SessionError::FalseReceipt { .. }) = &worked {
                self.shared.metrics.note_failure(Cause::FalseReceipt);
                self.shared.refusals.note(Some(&self.peer), &format!("{}: {error}", self.peer));
                tell(&mut reader, vec![Control::Goodbye { reason: error.to_string() }]).await?;
            }
            worked?;
            let mut control = self.control();
            control.extend(self.keys.renew(&datagrams_in, reader.get_ref())?);
            reader.queue(control);
            // Control messages are written before data, because a first flight keeps a slow link
            // busy for seconds.
            reader.write_some().await.map_err(gone)?;
            let more = self.send().await?;
            let stuck_at = reader.stuck_since().map(|since| since + WRITE_TIME);
            let wakes_at = if more { Some(std::time::Instant::now()) } else { self.wakes_at() };
            let is_idle = self.server.is_idle() && waiting == 0;
            let idle_at = is_idle.then(|| asked_at + self.shared.idle);
            tokio::select! {
                biased;
                message = reader.exchange() => {
                    let Some(first) = message.map_err(gone)? else {
                        return Ok(());
                    };
                    asked_at = std::time::Instant::now();
                    // Reading a page that is not in memory blocks this session; other sessions
                    // continue.
                    let heard = || self.hear_all(first, &mut reader, &questions, &mut waiting);
                    tokio::task::block_in_place(heard)?;
                }
                Some(first) = answers.recv(), if reader.has_room() => {
                    let mut all = vec![first];
                    all.extend(std::iter::from_fn(|| answers.try_recv().ok()));
                    let is_last = |message: &&Control| {
                        let is_part = matches!(message, Control::Listed { .. } | Control::Unlisted { .. });
                        !is_part && !matches!(message, Control::Hashing { .. })
                    };
                    waiting -= all.iter().filter(is_last).count();
                    asked_at = std::time::Instant::now();
                    reader.queue(all);
                }
                Some((from, bytes)) = datagrams.recv() => {
                    self.take(from, bytes);
                    while let Ok((from, bytes)) = datagrams.try_recv() {
                        self.take(from, bytes);
                    }
                }
                result = timer.wait(wakes_at.into_iter().chain(idle_at).chain(stuck_at).min()) => {
                    result?;
                    if stuck_at.is_some_and(|at| at <= std::time::Instant::now()) {
                        return Err(SessionError::Stuck(WRITE_TIME.as_secs()));
                    }
                    if idle_at.is_some_and(|at| at <= std::time::Instant::now()) {
                        let idle = SessionError::Idle(self.shared.idle.as_secs());
                        tell(&mut reader, vec![Control::Goodbye { reason: idle.to_string() }]).await?;
                        return Err(idle);
                    }
                    let now = self.now();
                    self.server.handle_timeout(now);
                }
            }
        }
    }

    /// Handles a control message, and the further messages that have been received.
    ///
    /// Errors: bytes that are not a message.
    fn hear_all(
        &mut self,
        first: Control,
        reader: &mut Reader<Stream>,
        questions: &mpsc::Sender<SlowRequest>,
        waiting: &mut usize,
    ) -> Result<(), SessionError> {
        let mut next = Some(first);
        for _ in 0..HEARD_MAX {
            let Some(message) = next.take() else { break };
            reader.queue(self.hear(message, questions, waiting));
            if !reader.has_room() {
                return Ok(());
            }
            next = reader.next_here().map_err(gone)?;
        }
        if let Some(last) = next {
            reader.queue(self.hear(last, questions, waiting));
        }
        Ok(())
    }

    /// Handles one control message. Returns the answer if it is known at once.
    fn hear(
        &mut self,
        message: Control,
        questions: &mpsc::Sender<SlowRequest>,
        waiting: &mut usize,
    ) -> Option<Control> {
        let question = match message {
            Control::Describe { object, with_hash }
                if !with_hash || SnapshotObject::parse(&object).is_some() =>
            {
                let found = self.shared.open(&object).map(|(_, found)| found).map_err(msg::reason);
                return Some(Control::Described { object, found });
            }
            Control::Describe { object, .. } => SlowRequest::Hash { object },
            Control::Inspect { object, with_hash, with_content } => {
                return match self.shared.files.inspect(&object) {
                    Ok((found, Some(content))) if with_content => {
                        self.shared.metrics.shorts.inc();
                        self.shared.metrics.object_bytes.inc_by(content.len() as u64);
                        Some(Control::Short { object, found, content: content.into() })
                    }
                    Ok((found, content)) => {
                        let is_longer = content.is_none();
                        let refused = if is_longer && with_hash {
                            ask(SlowRequest::Hash { object: object.clone() }, questions, waiting)
                        } else {
                            None
                        };
                        Some(refused.unwrap_or(Control::Described { object, found: Ok(found) }))
                    }
                    Err(reason) => Some(Control::Described { object, found: Err(msg::reason(reason)) }),
                };
            }
            Control::List { prefix, after } => SlowRequest::List { prefix, after },
            other => {
                let now = self.now();
                self.server.handle_control(now, other);
                return None;
            }
        };
        ask(question, questions, waiting)
    }

    /// Whether a further line about this client may be logged.
    fn may_log(&mut self) -> bool {
        self.lines += 1;
        if self.lines == LINES_MAX {
            tracing::warn!(
                client = self.name,
                "{LINES_MAX} lines: nothing more is logged of this connection"
            );
        }
        self.lines < LINES_MAX
    }

    fn say(&mut self, event: &ServeEvent) {
        let is_logged = self.may_log();
        self.shared.say(event, is_logged);
    }

    /// Closes the file of a pull and returns the object's name.
    fn forget(&mut self, pull: PullId) -> String {
        self.objects.remove(&pull).map(|object| object.name).unwrap_or_default()
    }

    fn failed(&mut self, pull: PullId, object: String, (cause, reason): (Cause, String)) {
        self.shared.metrics.note_failure(cause);
        let client = self.name.clone();
        self.say(&ServeEvent::PullFailed { client, pull: pull.0, object, reason });
    }

    /// Pending control messages to the client. Refusals are logged.
    fn control(&mut self) -> Vec<Control> {
        let all: Vec<Control> = std::iter::from_fn(|| self.server.poll_control()).collect();
        for message in &all {
            if let Control::Refused { reason, .. } = message {
                self.shared.metrics.note_failure(Cause::Refused);
                let line = format!("{}: pull refused: {reason}", self.peer);
                self.shared.refusals.note(Some(&self.peer), &line);
            }
        }
        all
    }

    fn now(&self) -> Instant {
        Instant::from_std(self.begun_at.elapsed())
    }

    fn wakes_at(&self) -> Option<std::time::Instant> {
        let at = self.server.poll_timeout()?.to_std(self.begun_at);
        // Until the client has shown its address, due packets wait; only the end of a silent pull
        // matters.
        let is_waiting = self.takes_at.is_none();
        let at = if is_waiting { at.max(std::time::Instant::now() + UNSHOWN_EVERY) } else { at };
        let is_short = self.server.is_short();
        Some(if is_short { at.min(std::time::Instant::now() + SHORT_EVERY) } else { at })
    }

    /// Handles a datagram from an address that may be the client's.
    fn take(&mut self, from: SocketAddr, mut bytes: Vec<u8>) {
        let now = self.now();
        if from.ip().to_canonical() != self.client.ip().to_canonical() {
            return;
        }
        let Some(said) = self.keys.open(&mut bytes) else { return };
        self.takes_at = Some(from);
        if let Some(feedback) = said {
            self.server.handle_feedback(now, &feedback);
        }
    }

    /// Handles requests and ends of pulls, and reads the requested blocks.
    fn work(&mut self) -> Result<(), SessionError> {
        while let Some(event) = self.server.poll_event() {
            match event {
                ServerEvent::Asked { pull, object } => self.begin(pull, object),
                ServerEvent::Complete { pull, packets } => {
                    if let Some(Object { begun_at, .. }) = self.objects.get(&pull) {
                        self.shared.metrics.pull_seconds.observe(begun_at.elapsed().as_secs_f64());
                    }
                    let object = self.forget(pull);
                    let client = self.name.clone();
                    self.say(&ServeEvent::PullEnded { client, pull: pull.0, object, packets });
                }
                ServerEvent::GaveUp { pull } => {
                    let object = self.forget(pull);
                    let reason = "nothing was heard of the client".to_owned();
                    self.failed(pull, object, (Cause::Silent, reason));
                }
                ServerEvent::FalseReceipt { pull, packets } => {
                    return Err(SessionError::FalseReceipt { pull: pull.0, packets });
                }
            }
        }
        while let Some((pull, generation, range)) = self.next_wanted() {
            self.supply(pull, generation, range);
        }
        Ok(())
    }

    /// Starts a pull of the object `name`.
    fn begin(&mut self, pull: PullId, name: String) {
        let now = self.now();
        let pulls_max = self.shared.config.pulls_max;
        let Self { shared, share, number, server, objects, .. } = self;
        let begun = share.take(*number, |others| {
            let offered = if others.pulls + objects.len() >= pulls_max {
                Err(format!("{pulls_max} pulls at once are allowed to a client, over all its connections (--pulls-max)"))
            } else {
                shared.open(&name)
            };
            let offered = offered.and_then(|opened| Ok((opened, drawn()? as u32, drawn()?)));
            let result = offered.map(|((content, found), first_id, secret)| {
                server.set_others(others.usage);
                let object_bytes = found.bytes;
                server.offer(now, pull, Offer { object_bytes, first_id, secret });
                // Without a block size the pull was refused for its range or length.
                let is_offered = server.block_bytes(pull).is_some();
                if is_offered {
                    let name = printable(&name).into_owned();
                    let begun_at = std::time::Instant::now();
                    objects.insert(pull, Object { name, content, begun_at });
                }
                is_offered.then_some(object_bytes)
            });
            (UsagePart { usage: server.usage(), pulls: objects.len() }, result)
        });
        match begun {
            Err(reason) => self.server.refuse(pull, reason),
            Ok(Some(bytes)) => {
                self.shared.metrics.pulls.inc();
                let (client, object) = (self.name.clone(), printable(&name).into_owned());
                self.say(&ServeEvent::PullBegun { client, pull: pull.0, object, length_bytes: bytes });
            }
            Ok(None) => {}
        }
    }

    /// The next range to read, within the memory limit over all the client's connections.
    fn next_wanted(&mut self) -> Option<(PullId, u32, std::ops::Range<u64>)> {
        let Self { share, number, server, objects, .. } = self;
        share.take(*number, |others| {
            server.set_others(others.usage);
            let next = server.poll_wanted();
            (UsagePart { usage: server.usage(), pulls: objects.len() }, next)
        })
    }

    /// Reads the blocks of one generation.
    fn supply(&mut self, pull: PullId, generation: u32, range: std::ops::Range<u64>) {
        let (Some(object), Some(block_bytes)) = (self.objects.get(&pull), self.server.block_bytes(pull))
        else {
            return;
        };
        // Reading a page that is not in memory blocks this session; other sessions continue.
        let read = tokio::task::block_in_place(|| object.content.read(range));
        match read {
            Ok(bytes) => {
                self.shared.metrics.object_bytes.inc_by(bytes.len() as u64);
                let bytes = Bytes::from(bytes);
                let ends = (0..bytes.len()).step_by(block_bytes as usize);
                let block = |start: usize| bytes.slice(start..bytes.len().min(start + block_bytes as usize));
                self.server.supply(pull, generation, ends.map(block).collect());
            }
            Err(error) => {
                let object = self.forget(pull);
                let (cause, reason) = match error.kind() {
                    io::ErrorKind::UnexpectedEof => {
                        (Cause::Shortened, "the object has become shorter".to_owned())
                    }
                    _ => (Cause::Unreadable, format!("the object cannot be read: {error}")),
                };
                self.failed(pull, object, (cause, reason.clone()));
                self.server.fail(pull, reason);
            }
        }
    }

    /// Sends due packets if the client's address is known. Returns true if further packets are due.
    async fn send(&mut self) -> Result<bool, SessionError> {
        let Some(to) = self.takes_at else { return Ok(false) };
        let now = self.now();
        let mut segment_bytes = 0;
        for _ in 0..BURST_PACKETS {
            let unsaid =
                self.server.poll_unsaid().map(|accepted| (accepted.pull, Datagram::Accepted(accepted)));
            let packet =
                || self.server.poll_transmit(now).map(|packet| (packet.pull, Datagram::Packet(packet)));
            let Some((pull, datagram)) = unsaid.or_else(packet) else {
                self.flush(to, segment_bytes).await?;
                return Ok(false);
            };
            let start = self.buffer.len();
            self.buffer.resize(start + seal::HEADER_BYTES, 0);
            datagram.encode(&mut self.buffer);
            self.buffer.resize(self.buffer.len() + seal::TAG_BYTES, 0);
            self.keys
                .channel
                .sealer
                .seal(&mut self.buffer[start..])
                .map_err(|error| SessionError::SealPacket { pull: pull.0, error })?;
            self.keys.sealed_packets += 1;
            let length = self.buffer.len() - start;
            if start > 0 && length != segment_bytes {
                // All datagrams of one segmented send must have the same length.
                let last = self.buffer.split_off(start);
                self.flush(to, segment_bytes).await?;
                self.buffer.extend_from_slice(&last);
            }
            segment_bytes = length;
            if self.buffer.len() + segment_bytes > TOGETHER_BYTES {
                self.flush(to, segment_bytes).await?;
            }
        }
        self.flush(to, segment_bytes).await?;
        Ok(true)
    }

    async fn flush(&mut self, to: SocketAddr, segment_bytes: usize) -> Result<(), SessionError> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        self.sent_bytes += self.buffer.len() as u64;
        self.shared.metrics.sent_bytes.inc_by(self.buffer.len() as u64);
        let result = self.shared.socket.send(&Segments::new(to, &self.buffer, segment_bytes)).await;
        self.buffer.clear();
        match result {
            Ok(()) => {}
            // The client requests shorter blocks once it detects that no packet arrives.
            Err(error @ SendError::TooBig { .. }) => tracing::warn!(client = %self.client, "{error}"),
            // Ordinary loss: the sender detects it from feedback, or from missing feedback.
            Err(error) => tracing::debug!(client = %self.client, "{error}"),
        }
        Ok(())
    }
}

/// A random number that no client can predict.
fn drawn() -> Result<u64, String> {
    random().map_err(|error| format!("no random number: {error}"))
}
