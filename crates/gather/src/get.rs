//! Pulls objects from many servers at once, verifies the objects, and gives their files the final
//! names. The module is the driver of a [`Fetch`] machine, with its sockets and files.
//!
//! Read [`GetConfig`], [`get`] and [`Report`] first.

mod output;
pub mod report;

use crate::connection::{self, ConnectionMessage, EstablishedConnection};
use crate::targets::{ManifestPart, Target};
use anabranch_endpoint::{Bytes, WireMessage as _};
use anabranch_gather_proto::fetch::{self, Fetch, FetchConfig, FetchEvent, FetchFailure, ObjectId};
use anabranch_gather_proto::msg::{Control, Datagram, Packet, SEAL_BYTES};
use anabranch_gather_proto::{BLOCK_BYTES_MIN, ClientConfig, ConfigError, Mode, RateControl, ServerId};
use anabranch_net::datagram::{
    Batch, DatagramOptions, DatagramSocket, PAYLOAD_MAX, Segments, payload_max, route_mtu,
};
use anabranch_net::identity::Identity;
use anabranch_net::seal::{self, Channel, ChannelId};
use anabranch_net::timer::FineTimer;
use anabranch_units::{BitRate, ByteCount, Duration, Instant};
pub(crate) use output::{DirectorySink, lock};
use output::{Output, Reply, Sinks, WriterOrder, may_be_there};
use report::{Counters, GetEvent, Note, ObjectFailure, ObjectReport, Report, ServerReport, Verdict};
use rustix::process::{Resource, getrlimit};
use std::collections::BTreeMap;
use std::future::pending;
use std::io;
use std::io::Write;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::time::Instant as Clock;
use tokio::sync::mpsc;

/// Minimum interval between feedback messages. Shorter intervals do not help on the shortest paths,
/// and cost both ends processing time.
const FEEDBACK_EVERY: Duration = Duration::from_us(500);
/// Maximum number of queued messages from connections.
const INCOMING_MAX: usize = 1_024;
/// Maximum number of messages from connections and files handled in a row.
const HEARD_MAX: usize = 64;
/// Maximum number of objects under way: enough to fill long paths, with little memory for the
/// objects' state.
const OBJECTS_MAX: u64 = 512;
/// Number of descriptors for an object under way: its folder, its bytes, its journal, and a file
/// under inspection.
const OBJECT_DESCRIPTORS: u64 = 4;
/// Number of descriptors for a server's connection.
const SERVER_DESCRIPTORS: u64 = 4;
/// Number of other descriptors: for the runtime, sockets, keys, and the terminal.
const OWN_DESCRIPTORS: u64 = 64;

/// Settings of a fetch.
#[derive(Clone, Debug, PartialEq)]
pub struct GetConfig {
    /// Rate of this machine's own link, which is divided among the servers. If `None`, each server
    /// must find its rate.
    pub link: Option<BitRate>,
    /// Rate control of the servers.
    pub rate_control: RateControl,
    /// Maximum memory for received blocks that are not yet written.
    pub memory: ByteCount,
    /// Maximum datagram length, in bytes of UDP payload. Datagrams are shorter on paths with a
    /// smaller MTU.
    pub datagram: ByteCount,
    /// Duration of silence after which a server is given up. `None` derives the duration from the
    /// path to each server, between 5 s and 60 s. A server's first answers have 60 s by default, or
    /// this time, but at least 10 s.
    pub give_up: Option<Duration>,
    /// Whether an object fails if two servers have different versions of it. Each server is asked
    /// for the object's hash, and must read the whole object.
    pub is_strict: bool,
    /// Whether files are synced to disk before they are given their final names.
    pub syncs: bool,
    /// Whether existing files are replaced, whatever their content.
    pub replace: bool,
    /// Interval between progress events.
    pub progress_every: Duration,
}

impl Default for GetConfig {
    fn default() -> Self {
        Self {
            link: None,
            rate_control: Mode::Counted.rate_control(),
            memory: ByteCount::mib(256),
            datagram: ByteCount::new(8_952),
            give_up: None,
            is_strict: false,
            syncs: true,
            replace: false,
            progress_every: Duration::from_secs(1),
        }
    }
}

/// The reason why the whole fetch cannot run. Displays as one line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GetError {
    /// The datagram length is out of range, in bytes.
    #[error("datagram {got}: must be {least} to {most} bytes")]
    Datagram {
        /// Length requested.
        got: ByteCount,
        /// Minimum length.
        least: u32,
        /// Maximum length.
        most: u32,
    },
    /// The memory limit is below the minimum.
    #[error("memory {got}: must be at least {least}")]
    Memory {
        /// Memory requested.
        got: ByteCount,
        /// Minimum memory.
        least: ByteCount,
    },
    /// The memory limit is too low for datagrams of this length.
    #[error("memory: too little for a pull of datagrams so long: give more, or a shorter datagram")]
    MemoryForDatagrams,
    /// Another setting is out of range.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The system refuses a socket, a timer or a thread.
    #[error(transparent)]
    System(#[from] io::Error),
    /// Receiving of datagrams failed.
    #[error("datagrams cannot be received: {0}")]
    Receive(io::Error),
}

impl GetConfig {
    /// Minimum memory: two generations of a pull, and one batch of datagrams from the kernel.
    pub const MEMORY_MIN: ByteCount = ByteCount::mib(16);

    /// Checks that every setting is in range.
    ///
    /// Errors: the first setting out of range.
    pub fn check(&self) -> Result<(), GetError> {
        self.client().map(drop)
    }

    /// Settings of the client's state machine.
    fn client(&self) -> Result<ClientConfig, GetError> {
        let headers = SEAL_BYTES + Packet::<()>::header_bytes(self.rate_control);
        let (least, most) = (headers + BLOCK_BYTES_MIN, PAYLOAD_MAX as u32);
        let datagram = u32::try_from(self.datagram.as_u64()).unwrap_or(u32::MAX);
        if !(least..=most).contains(&datagram) {
            return Err(GetError::Datagram { got: self.datagram, least, most });
        }
        if self.memory < Self::MEMORY_MIN {
            return Err(GetError::Memory { got: self.memory, least: Self::MEMORY_MIN });
        }
        let block_bytes = block_bytes(self.rate_control, datagram);
        let defaults = ClientConfig::default();
        let config = ClientConfig {
            block_bytes,
            block_bytes_safe: defaults.block_bytes_safe.min(block_bytes),
            blocks_max: ClientConfig::blocks_to_generation(block_bytes),
            link: self.link,
            rate_control: self.rate_control,
            // Headers of Ethernet, IP and UDP, and the bytes that authentication adds.
            overhead_bytes: defaults.overhead_bytes + SEAL_BYTES,
            feedback_every: FEEDBACK_EVERY,
            give_up: self.give_up,
            ..defaults
        };
        config.check()?;
        Ok(config)
    }
}

/// Block size for datagrams of `datagram` bytes. Long blocks are whole BLAKE3 chunks, so that no
/// two generations share a chunk.
fn block_bytes(rate_control: RateControl, datagram: u32) -> u32 {
    let headers = SEAL_BYTES + Packet::<()>::header_bytes(rate_control);
    let fits = datagram.saturating_sub(headers).max(1);
    let chunk = blake3::CHUNK_LEN as u32;
    if fits >= 4 * chunk { fits / chunk * chunk } else { fits }
}

/// All servers that hold any of these targets, without duplicates, in the order in which they are
/// first named.
pub fn holders(targets: &[Target]) -> Vec<&str> {
    let mut holders: Vec<&str> = Vec::new();
    for holder in targets.iter().flat_map(|target| &target.parts).flat_map(|part| &part.holders) {
        if !holders.contains(&holder.as_str()) {
            holders.push(holder);
        }
    }
    holders
}

/// Pulls all targets, each to its path, and reports the outcome of each target. [`Get`] also
/// supports interruption and events.
///
/// Errors: the whole fetch cannot run. A failed object is in the report, not an error.
pub async fn get(identity: &Identity, targets: Vec<Target>, config: &GetConfig) -> Result<Report, GetError> {
    Get::new(identity, targets, config).until(pending(), |_| ()).await
}

/// A fetch: its targets and its settings.
pub struct Get<'a> {
    identity: &'a Identity,
    targets: Vec<Target>,
    config: &'a GetConfig,
    sinks: Sinks,
}

impl<'a> Get<'a> {
    /// A fetch of `targets`, each to its destination path.
    pub const fn new(identity: &'a Identity, targets: Vec<Target>, config: &'a GetConfig) -> Self {
        Self { identity, targets, config, sinks: Sinks { stream: None, directory: None } }
    }

    /// Writes the directory `directory` from the single object, which is its stream.
    pub(crate) fn into_directory(mut self, directory: Arc<Mutex<DirectorySink>>) -> Self {
        self.sinks.directory = Some(directory);
        self
    }

    /// Writes the single object to `stream`, in order and as it arrives, instead of to a path. The
    /// object's hash is verified only at the end.
    ///
    /// Panics: if there are several targets.
    #[must_use]
    pub fn streamed(mut self, stream: Box<dyn Write + Send>) -> Self {
        assert!(self.targets.len() == 1, "a stream takes one object");
        self.sinks.stream = Some(stream);
        self
    }

    /// Runs until every object has ended, or until `stop` resolves; received bytes are kept in that
    /// case. `hear` is called with progress and other events, and must return soon.
    ///
    /// Errors: the whole fetch cannot run. A failed object is in the report, not an error.
    pub async fn until(
        self,
        stop: impl Future<Output = ()>,
        hear: impl FnMut(GetEvent<'_>),
    ) -> Result<Report, GetError> {
        let Self { identity, targets, config, sinks } = self;
        let streams = sinks.stream.is_some();
        let (output, replies) = Output::start(config.syncs, config.replace, sinks)?;
        let (mut run, incoming) = Run::begin(identity, targets, config, streams, output, hear)?;
        let is_ended = tokio::select! {
            result = run.go(incoming, replies) => { result?; true }
            () = stop => false,
        };
        let report = run.report(!is_ended);
        run.output.end().await;
        Ok(report)
    }
}

struct Link {
    holder: String,
    connected: Option<Box<EstablishedConnection>>,
    lost: Option<String>,
    received_bytes: u64,
    /// Number of bytes of control messages whose arrival was reported to the machine.
    told_bytes: u64,
    /// Number of changes of the server's datagram keys.
    key_changes: u64,
}

struct Run<F> {
    fetch: Fetch<Bytes>,
    hear: F,
    rate_control: RateControl,
    datagram: u32,
    streams: bool,
    socket: DatagramSocket,
    links: Vec<Link>,
    /// Index of the link to which each channel belongs, by channel id.
    channels: BTreeMap<u64, usize>,
    targets: Vec<Target>,
    output: Output,
    begun_at: Clock,
    progress_every: std::time::Duration,
    progress_at: Clock,
    connected_at: Option<Clock>,
    /// Times of the first and the last packet.
    packets_at: Option<(Clock, Clock)>,
    unknown_datagrams: u64,
    malformed_datagrams: u64,
}

/// Maximum number of objects under way, given the process's limit of descriptors and the number of
/// servers.
fn objects_max(descriptors: u64, servers: u64) -> usize {
    let left = descriptors.saturating_sub(OWN_DESCRIPTORS + SERVER_DESCRIPTORS.saturating_mul(servers));
    (left / OBJECT_DESCRIPTORS).clamp(1, OBJECTS_MAX) as usize
}

/// Description of a target for the state machine. `holders` are the servers' names, by server
/// number.
fn wanted(target: &Target, holders: &[&str], streams: bool) -> fetch::RequestedObject {
    let number = |holder: &String| holders.iter().position(|known| known == holder);
    let part = |part: &ManifestPart| fetch::ObjectPart {
        name: part.name.clone(),
        bytes: part.bytes,
        hash: part.blake3.as_ref().and_then(|hash| blake3::Hash::from_hex(hash).ok()).map(Into::into),
        holders: part.holders.iter().filter_map(number).map(|server| ServerId(server as u32)).collect(),
    };
    fetch::RequestedObject {
        bytes: target.bytes,
        hash: target.hash,
        attributes: target.attributes,
        may_be_there: !streams && may_be_there(&target.path),
        parts: target.parts.iter().map(part).collect(),
    }
}

impl<F: FnMut(GetEvent<'_>)> Run<F> {
    fn begin(
        identity: &Identity,
        targets: Vec<Target>,
        config: &GetConfig,
        streams: bool,
        output: Output,
        hear: F,
    ) -> Result<(Self, mpsc::Receiver<(u32, ConnectionMessage)>), GetError> {
        let holders = holders(&targets);
        let client = config.client()?.fitted(config.memory, holders.len());
        let client = client.ok_or(GetError::MemoryForDatagrams)?;
        let all = targets.iter().map(|target| wanted(target, &holders, streams)).collect();
        let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let objects_max = objects_max(descriptors, holders.len() as u64);
        let fetch = FetchConfig { client, streams, is_strict: config.is_strict, objects_max };
        let fetch = Fetch::new(Instant::ZERO, fetch, holders.len() as u32, all)?;
        let any = (std::net::Ipv6Addr::UNSPECIFIED, 0).into();
        let options = DatagramOptions { receive_buffer: ByteCount::mib(8), ..DatagramOptions::default() };
        // A machine without IPv6 gets an IPv4 socket.
        let socket = DatagramSocket::bind(any, &options).or_else(|_| {
            DatagramSocket::bind((std::net::Ipv4Addr::UNSPECIFIED, 0).into(), &DatagramOptions::default())
        })?;
        let (incoming_in, incoming) = mpsc::channel(INCOMING_MAX);
        for (server, holder) in (0u32..).zip(&holders) {
            let (identity, holder) = (identity.clone(), (*holder).to_owned());
            let give_up = config.give_up.map(Duration::to_std);
            tokio::spawn(connection::run(identity, holder, server, incoming_in.clone(), give_up));
        }
        let links = holders.iter().map(|holder| Link {
            holder: (*holder).to_owned(),
            connected: None,
            lost: None,
            received_bytes: 0,
            told_bytes: 0,
            key_changes: 0,
        });
        let links = links.collect();
        let (now, progress_every) = (Clock::now(), config.progress_every.to_std());
        let run = Self {
            fetch,
            hear,
            rate_control: config.rate_control,
            datagram: config.datagram.as_u64() as u32,
            streams,
            socket,
            links,
            channels: BTreeMap::new(),
            targets,
            output,
            begun_at: now,
            progress_every,
            progress_at: now + progress_every,
            connected_at: None,
            packets_at: None,
            unknown_datagrams: 0,
            malformed_datagrams: 0,
        };
        Ok((run, incoming))
    }

    fn now(&self) -> Instant {
        Instant::from_std(self.begun_at.elapsed())
    }

    async fn go(
        &mut self,
        mut incoming: mpsc::Receiver<(u32, ConnectionMessage)>,
        mut replies: mpsc::UnboundedReceiver<Reply>,
    ) -> Result<(), GetError> {
        let mut batch = Batch::new();
        let mut timer = FineTimer::new()?;
        loop {
            self.settle().await;
            if self.fetch.is_done() {
                return Ok(());
            }
            let at = self.fetch.poll_timeout().map(|at| at.to_std(self.begun_at));
            let wakes_at = at.map_or(self.progress_at, |at| at.min(self.progress_at));
            tokio::select! {
                biased;
                Some((server, message)) = incoming.recv() => {
                    self.on_connection(server as usize, message);
                    for _ in 1..HEARD_MAX {
                        let Ok((server, message)) = incoming.try_recv() else { break };
                        self.on_connection(server as usize, message);
                    }
                }
                Some(reply) = replies.recv() => {
                    self.on_output(reply);
                    for _ in 1..HEARD_MAX {
                        let Ok(reply) = replies.try_recv() else { break };
                        self.on_output(reply);
                    }
                }
                result = self.socket.recv(&mut batch) => {
                    result.map_err(GetError::Receive)?;
                    self.receive(&mut batch);
                }
                result = timer.wait(Some(wakes_at)) => {
                    result?;
                    let now = self.now();
                    self.hear_streams(now);
                    self.fetch.handle_timeout(now);
                    if self.progress_at <= Clock::now() {
                        self.progress();
                    }
                }
            }
        }
    }

    /// Reports the arrival of parts of control messages, because a long message takes seconds on a
    /// slow link.
    fn hear_streams(&mut self, now: Instant) {
        for (server, link) in (0u32..).zip(&mut self.links) {
            let Some(connected) = &link.connected else { continue };
            let received = connected.way.received.load(Relaxed);
            if std::mem::replace(&mut link.told_bytes, received) != received {
                self.fetch.handle_heard(now, ServerId(server));
            }
        }
    }

    /// Handles received datagrams.
    fn receive(&mut self, batch: &mut Batch) {
        let now = self.now();
        let clock = Clock::now();
        self.packets_at = Some((self.packets_at.map_or(clock, |(first, _)| first), clock));
        for datagram in batch.datagrams() {
            let id = ChannelId::of(datagram.bytes);
            let server = id.and_then(|id| self.channels.get(&id.0));
            let link = server.map(|server| (*server, &mut self.links[*server]));
            let Some((server, link)) = link else {
                self.unknown_datagrams += 1;
                continue;
            };
            let Some(connected) = link.connected.as_deref_mut() else { continue };
            // The opener itself counts the datagrams that it cannot open.
            let length = datagram.bytes.len() as u64;
            let Some(opener) = connected.opener(id) else { continue };
            let Ok(opened) = opener.open(datagram.bytes) else { continue };
            link.received_bytes += length;
            match Datagram::decode(opened.payload) {
                Ok(Datagram::Packet(packet)) => {
                    self.fetch.handle_packet(now, ServerId(server as u32), packet);
                }
                Ok(Datagram::Accepted(accepted)) => {
                    self.fetch.handle_control(now, ServerId(server as u32), Control::Accepted(accepted));
                }
                _ => self.malformed_datagrams += 1,
            }
        }
    }

    /// Carries out the machine's pending outputs.
    async fn settle(&mut self) {
        let now = self.now();
        let mut buffer = Vec::new();
        while let Some((server, feedback)) = self.fetch.poll_transmit(now) {
            if let Some(connected) = &mut self.links[server.0 as usize].connected {
                buffer.clear();
                buffer.resize(seal::HEADER_BYTES, 0);
                Datagram::<Bytes>::Feedback(feedback).encode(&mut buffer);
                send(&self.socket, connected, &mut buffer);
            }
        }
        while let Some(server) = self.fetch.poll_show() {
            if let Some(connected) = &mut self.links[server.0 as usize].connected {
                show(&self.socket, connected);
            }
        }
        while let Some((server, message)) = self.fetch.poll_control() {
            if let Some(connected) = &self.links[server.0 as usize].connected {
                // A closed connection accepts no further messages; its loss is reported separately.
                let _ = connected.control.send(message);
            }
        }
        while let Some(event) = self.fetch.poll_event() {
            self.on_fetch(event).await;
        }
    }

    fn target(&self, object: ObjectId) -> &Target {
        &self.targets[object.0 as usize]
    }

    fn holder(&self, server: ServerId) -> &str {
        &self.links[server.0 as usize].holder
    }

    fn note(&mut self, note: Note) {
        (self.hear)(GetEvent::Note(note));
    }

    async fn on_fetch(&mut self, event: FetchEvent<Bytes>) {
        let name = |object| self.target(object).name.clone();
        let note = match event {
            FetchEvent::Open { object, bytes } => {
                let path = (!self.streams).then(|| self.target(object).path.clone());
                return self.output.order(WriterOrder::Open { object, path, bytes }).await;
            }
            FetchEvent::Write { object, range, blocks } => {
                return self.output.order(WriterOrder::Write { object, range, parts: blocks }).await;
            }
            FetchEvent::Finish { object, hash, attributes } => {
                return self.output.order(WriterOrder::Finish { object, hash, attributes }).await;
            }
            FetchEvent::Left { object, failure } => {
                let (name, holder) = (name(object), self.holder(failure.server));
                return tracing::info!("{name}: {holder} leaves it to others: {}", failure.reason);
            }
            FetchEvent::OtherVersion { object, server, version } => {
                let it = &self.fetch.objects()[object.0 as usize];
                let describer = it.described_by().filter(|by| *by != server);
                let taken = describer.map(|by| self.holder(by).to_owned()).zip(it.hash());
                let server = self.holder(server).to_owned();
                Note::OtherVersion { object: name(object), server, version: version.to_string(), taken }
            }
            FetchEvent::StillHashing { object, server } => {
                Note::StillHashing { object: name(object), server: self.holder(server).to_owned() }
            }
            FetchEvent::Comparing { object } => Note::Comparing { object: name(object) },
            FetchEvent::Verified { object } => Note::Verified { object: name(object) },
            FetchEvent::Failed { object, failure } => {
                Note::Failed { object: name(object), failure: self.named(&failure) }
            }
            // Events added to the machine later need no action of this driver.
            _ => return,
        };
        self.note(note);
    }

    /// The reason of a failure, with the servers' names.
    fn named(&self, failure: &FetchFailure) -> ObjectFailure {
        match failure {
            FetchFailure::NotBrought(failures) => {
                let each = failures.iter().map(|f| (self.holder(f.server).to_owned(), f.reason.clone()));
                ObjectFailure::NotBrought(each.collect())
            }
            FetchFailure::Wrong(others) => ObjectFailure::Wrong(self.versions(others)),
            FetchFailure::Differ(others) => ObjectFailure::Differ(self.versions(others)),
            FetchFailure::NotWritten(reason) => ObjectFailure::NotWritten(reason.clone()),
            other => ObjectFailure::NotWritten(format!("{other:?}")),
        }
    }

    fn versions(&self, others: &BTreeMap<ServerId, fetch::Version>) -> BTreeMap<String, String> {
        others.iter().map(|(server, other)| (self.holder(*server).to_owned(), other.to_string())).collect()
    }

    fn on_connection(&mut self, server: usize, incoming: ConnectionMessage) {
        let now = self.now();
        let id = ServerId(server as u32);
        match incoming {
            ConnectionMessage::Connected(connected) => {
                let to = connected.way.datagrams_to;
                let rtt = Duration::from_std(connected.way.rtt);
                // The path MTU known to this machine. A smaller MTU further along the path shows as
                // silence.
                let fits = route_mtu(to).ok().and_then(|mtu| payload_max(mtu, to.ip()));
                let fits = fits.map_or(self.datagram, |fits| self.datagram.min(fits as u32));
                self.channels.insert(connected.way.channel.opener.channel().0, server);
                self.links[server].connected = Some(connected);
                self.connected_at = Some(Clock::now());
                self.fetch.handle_connected(now, id, Some(rtt), block_bytes(self.rate_control, fits));
            }
            ConnectionMessage::Again(way) => {
                let link = &mut self.links[server];
                let Some(connected) = link.connected.as_deref_mut() else { return };
                self.channels.insert(way.channel.opener.channel().0, server);
                let last = std::mem::replace(&mut connected.way, *way);
                self.channels.remove(&last.channel.opener.channel().0);
                show(&self.socket, connected);
            }
            ConnectionMessage::Welcome(port) => {
                let link = &mut self.links[server];
                let Some(connected) = link.connected.as_deref_mut() else { return };
                connected.way.datagrams_to.set_port(port);
                // The server did not receive datagrams that were sent before it knew the channel,
                // or that were sent to the port of a forwarded stream.
                if link.received_bytes == 0 {
                    show(&self.socket, connected);
                }
            }
            ConnectionMessage::Control(message) => {
                if let Control::Short { content, .. } = &message {
                    self.links[server].received_bytes += content.len() as u64;
                }
                self.fetch.handle_control(now, id, message);
            }
            ConnectionMessage::Channel(channel) => self.change_keys(server, *channel),
            ConnectionMessage::Lost(reason) => {
                let link = &mut self.links[server];
                self.channels.retain(|_, link| *link != server);
                link.connected = None;
                link.lost = Some(reason.clone());
                // The last server's loss is reported as the failure of its objects.
                if self.links.iter().any(|link| link.lost.is_none()) {
                    let server = self.links[server].holder.clone();
                    self.note(Note::ServerLost { server, reason: reason.clone() });
                }
                self.fetch.handle_lost(now, id, &reason);
            }
        }
    }

    /// Switches to the next keys of a server's datagrams, because the current keys are nearly used
    /// up.
    fn change_keys(&mut self, server: usize, channel: Channel) {
        let link = &mut self.links[server];
        let Some(connected) = link.connected.as_deref_mut() else { return };
        self.channels.insert(channel.opener.channel().0, server);
        let last = std::mem::replace(&mut connected.way.channel, channel);
        // Datagrams in flight can still be opened with the previous keys.
        if let Some(older) = connected.last_channel.replace(last) {
            self.channels.remove(&older.opener.channel().0);
        }
        link.key_changes += 1;
        show(&self.socket, connected);
    }

    fn on_output(&mut self, reply: Reply) {
        let now = self.now();
        match reply {
            Reply::Opened { object, missing } => self.fetch.handle_opened(now, object, &missing),
            Reply::Flushed { bytes } => self.fetch.handle_flushed(now, bytes),
            Reply::Finished { object } => self.fetch.handle_finished(now, object),
            Reply::Mismatch { object } => self.fetch.handle_mismatch(now, object),
            Reply::Failed { object, reason } => self.fetch.handle_unwritable(now, object, reason),
        }
    }

    fn servers(&self) -> Vec<ServerReport> {
        let rows = self.links.iter().map(|link| ServerReport {
            server: link.holder.clone(),
            name: link.connected.as_ref().map(|connected| connected.way.name.clone()),
            received_bytes: link.received_bytes,
            pulls: 0,
            loss_event_share: 0.0,
            lost: link.lost.clone(),
        });
        let mut rows: Vec<ServerReport> = rows.collect();
        for (server, loss) in self.fetch.pulls() {
            let row = &mut rows[server.0 as usize];
            row.pulls += 1;
            row.loss_event_share = row.loss_event_share.max(loss);
        }
        rows
    }

    /// Reports the progress of the fetch.
    fn progress(&mut self) {
        self.progress_at = Clock::now() + self.progress_every;
        let servers = self.servers();
        (self.hear)(GetEvent::Progress {
            done_bytes: self.fetch.done_bytes(),
            total_bytes: self.fetch.total_bytes(),
            servers: &servers,
        });
    }

    /// The final report of the fetch.
    fn report(&self, is_interrupted: bool) -> Report {
        let elapsed = self.begun_at.elapsed();
        let objects = self.targets.iter().zip(self.fetch.objects()).map(|(target, object)| ObjectReport {
            name: target.name.clone(),
            path: target.path.clone(),
            bytes: object.bytes(),
            hash: object.hash(),
            fetched_bytes: object.fetched_bytes(),
            kept_bytes: object.kept_bytes(),
            verdict: match object.failure() {
                Some(failure) => Verdict::Failed(self.named(failure)),
                None if object.is_verified() => Verdict::Verified,
                None => Verdict::Interrupted,
            },
            other_versions: self.versions(object.others()),
            ended_after: object.ended_at().map(|at| at - Instant::ZERO),
        });
        let opened = self.links.iter().filter_map(|link| link.connected.as_ref());
        let opened = opened.map(|connected| connected.way.channel.opener.counters());
        let (forged, replayed) = opened.fold((0, 0), |(forged, replayed), counters| {
            (forged + counters.forged, replayed + counters.replayed + counters.too_old)
        });
        let counts = self.fetch.counts();
        let since = |at: Clock| Duration::from_std(at - self.begun_at);
        Report {
            objects: objects.collect(),
            is_interrupted,
            elapsed: Duration::from_std(elapsed),
            connected_after: self.connected_at.map(since),
            first_packet_after: self.packets_at.map(|(first, _)| since(first)),
            last_packet_after: self.packets_at.map(|(_, last)| since(last)),
            counters: Counters {
                received_packets: counts.packets,
                useless_packets: counts.useless,
                malformed_packets: counts.malformed + self.malformed_datagrams,
                stray_packets: self.fetch.strays(),
                forged_packets: forged,
                replayed_packets: replayed,
                unknown_datagrams: self.unknown_datagrams,
                dropped_by_the_kernel: self.socket.receive_drops(),
                key_changes: self.links.iter().map(|link| link.key_changes).sum(),
            },
            servers: self.servers(),
        }
    }
}

/// Seals the payload in `buffer`, which has room for the header in front, and sends the datagram.
/// If the kernel has no room, the datagram is lost, as on any path.
fn send(socket: &DatagramSocket, connected: &mut EstablishedConnection, buffer: &mut Vec<u8>) {
    buffer.resize(buffer.len() + seal::TAG_BYTES, 0);
    if connected.way.channel.sealer.seal(buffer).is_ok()
        && let Err(error) = socket.try_send(&Segments::one(connected.way.datagrams_to, buffer))
    {
        tracing::debug!("{error}");
    }
}

/// Shows a server the client's address for packets, by an empty datagram.
fn show(socket: &DatagramSocket, connected: &mut EstablishedConnection) {
    send(socket, connected, &mut vec![0; seal::HEADER_BYTES]);
}
