//! A server that lets clients pull the files of a folder.
//!
//! One UDP socket serves all clients; each connection of a client uses TLS. Each client's
//! connections, pulls, memory and rate are bounded. No packet leaves before the client has proved
//! its address twice: by its connection, and by an authenticated datagram from the address that
//! takes packets. Read [`ServeConfig`], [`Server`] and [`ServeEvent`] first, then `session`.

mod channels;
mod directories;
mod event;
mod files;
mod hashes;
mod listing;
mod metrics;
mod session;
mod share;

pub use event::ServeEvent;
pub use hashes::CacheError;

use anabranch_disk::folder::secrets::{keep_outside, warn_of_any};
use anabranch_gather_proto::ServerConfig;
use anabranch_gather_proto::msg::{Feedback, ObjectDescription};
use anabranch_gather_proto::snapshot::SnapshotObject;
use anabranch_net::admission::{Admission, AdmissionLimits, ConnectionSlots};
use anabranch_net::datagram::{Batch, DatagramOptions, DatagramSocket};
use anabranch_net::identity::Identity;
use anabranch_net::refusals::Refusals;
use anabranch_net::seal::{ChannelId, OVERHEAD_BYTES};
use anabranch_net::socket::{let_open_fast, listen};
use anabranch_net::tls::{CredentialFiles, TlsError};
use anabranch_units::{BitRate, ByteCount, Duration};
use channels::{Channels, HandOnResult};
use directories::{Content, Directories};
use files::Files;
use hashes::Hashes;
use metrics::ServerMetrics;
use rustix::process::{Resource, getrlimit};
use share::Share;
use std::convert::Infallible;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// Settings of a server.
#[derive(Clone, Debug)]
pub struct ServeConfig {
    /// The folder whose files are offered, by their paths below the folder. Symbolic links that
    /// lead out of the folder are not followed.
    pub dir: PathBuf,
    /// Address and port on which the server listens: TCP for control and UDP for data. Port 0
    /// selects a free port.
    pub listen: SocketAddr,
    /// UDP port announced to clients, if a forwarded port differs from the port of `listen`.
    pub advertise_port: Option<u16>,
    /// The server's certificate and key. They must lie outside `dir`.
    pub credentials: CredentialFiles,
    /// Other paths that must lie outside `dir`.
    pub secrets: Vec<PathBuf>,
    /// Maximum rate of one connection, in bits of datagrams per second; `None` for no limit.
    pub rate_max: Option<BitRate>,
    /// Maximum number of connections at once. One client, that is, one key, may have a quarter of
    /// them.
    pub clients_max: usize,
    /// Maximum number of pulls of one client at once, over all its connections. A pull is for one
    /// object, or for a part of an object.
    pub pulls_max: usize,
    /// Maximum memory for the blocks of one client, over all its connections. The lists of pulled
    /// directories take the same amount for all clients together, and one list at most half of it.
    pub memory: ByteCount,
    /// Duration without feedback from its client after which a pull ends.
    pub give_up: Duration,
    /// Duration without pulls and requests after which a connection is closed.
    pub idle: Duration,
    /// File of known hashes, outside `dir`, which survives restarts. Indexes of directories lie
    /// beside it. `None` keeps hashes in memory only, and indexes in files without a name.
    pub cache: Option<PathBuf>,
    /// Maximum number of packets that one key seals. For tests only, because ciphers have their own
    /// limits; `None` otherwise.
    pub key_packets: Option<u64>,
}

impl ServeConfig {
    /// Settings that serve `dir` on a free port of the loopback address, with limits for a few
    /// dozen clients.
    pub fn new(dir: PathBuf, credentials: CredentialFiles) -> Self {
        Self {
            dir,
            listen: (Ipv4Addr::LOCALHOST, 0).into(),
            advertise_port: None,
            credentials,
            secrets: Vec::new(),
            rate_max: None,
            clients_max: 64,
            pulls_max: 64,
            memory: ByteCount::mib(128),
            give_up: Duration::from_secs(30),
            idle: Duration::from_secs(300),
            cache: None,
            key_packets: None,
        }
    }
}

/// The reason why a server cannot run. Displays as one line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The folder cannot be opened.
    #[error("{}: make this folder, or name the one that holds the files: {error}", dir.display())]
    Folder {
        /// The folder.
        dir: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// A setting that must not be 0 is 0.
    #[error("{setting} 0: must be at least 1")]
    Zero {
        /// Name of the setting in [`ServeConfig`].
        setting: &'static str,
    },
    /// A key, or the file of hashes, lies inside the folder.
    #[error("{0}")]
    Inside(io::Error),
    /// The file of hashes cannot be used.
    #[error("cache: {0}")]
    Cache(CacheError),
    /// The certificate or its key cannot be used.
    #[error(transparent)]
    Credentials(#[from] TlsError),
    /// The process's limit of descriptors is too low for the configured number of clients.
    #[error(
        "clients_max {clients_max} and pulls_max {pulls_max} may need {needed} descriptors, and there are {descriptors} \
         (ulimit -Hn): choose less, or allow more"
    )]
    Descriptors {
        /// Configured maximum number of connections.
        clients_max: usize,
        /// Configured maximum number of pulls of each client.
        pulls_max: usize,
        /// Number of descriptors needed.
        needed: u64,
        /// Number of descriptors that the process may have.
        descriptors: u64,
    },
    /// The system refuses a socket, or an operation on it.
    #[error(transparent)]
    Socket(#[from] io::Error),
}

/// Maximum number of datagrams queued for a session. Further datagrams are dropped, as at a full
/// socket.
const WAITING_MAX: usize = 1_024;
/// Divisor of the connection limit that gives the maximum number of connections per identity.
pub const CLIENT_SHARE: usize = 4;
/// Number of descriptors of a connection besides its pulls: its socket, its timer, and a file under
/// hashing.
const CONNECTION_DESCRIPTORS: u64 = 3;
/// Number of descriptors besides connections and pulls: the runtime, the folder, files under
/// hashing, and the terminal.
const OWN_DESCRIPTORS: u64 = 128;
/// Interval within which due packets may leave together.
const QUANTUM: Duration = Duration::from_us(150);

/// Maximum length of a client's datagram in bytes. The longest one is feedback.
const DATAGRAM_BYTES_MAX: usize = OVERHEAD_BYTES + Feedback::BYTES_MAX as usize;

/// A received datagram and its source address.
type ReceivedDatagram = (SocketAddr, Vec<u8>);
/// Queue of datagrams for a session.
type Datagrams = mpsc::Sender<ReceivedDatagram>;

/// State shared by all sessions.
struct Shared {
    socket: DatagramSocket,
    files: Files,
    hashes: Hashes,
    directories: Arc<Directories>,
    config: ServerConfig,
    /// UDP port to which clients send datagrams.
    port: u16,
    /// Queue for the datagrams of each channel.
    channels: Mutex<Channels>,
    /// Admitted clients and their connections, each client with its resources.
    places: ConnectionSlots<Share>,
    /// Number of connections accepted so far.
    connections: AtomicU64,
    refusals: Refusals,
    idle: std::time::Duration,
    key_packets: Option<u64>,
    metrics: Arc<ServerMetrics>,
    hear: Box<dyn Fn(&ServeEvent) + Send + Sync>,
}

impl Shared {
    /// Opens the object that a client requests as `name`: a file, or a part of a snapshot.
    ///
    /// Errors: one line for the client.
    fn open(&self, name: &str) -> Result<(Content, ObjectDescription), String> {
        if let Some(object) = SnapshotObject::parse(name) {
            return self.directories.open(&object);
        }
        self.files.open(name).map(|opened| (Content::File(opened.file), opened.found))
    }

    /// Reports an event. The event is also logged, unless its connection has used up its log lines.
    fn say(&self, event: &ServeEvent, is_logged: bool) {
        if is_logged {
            event.log();
        }
        (self.hear)(event);
    }
}

/// A running server. Dropping it ends the server.
///
/// The server's tasks block on file reads, so it needs a multi-threaded runtime (the default of
/// `#[tokio::main]`).
pub struct Server {
    at: SocketAddr,
    identity: Identity,
    shared: Arc<Shared>,
    /// Tasks that accept connections and receive datagrams.
    tasks: JoinSet<io::Error>,
}

impl Server {
    /// Starts a server whose events are only logged ([`tracing`]).
    ///
    /// Errors: see [`ServeError`].
    pub async fn start(config: ServeConfig) -> Result<Self, ServeError> {
        Self::start_with(config, |_| ()).await
    }

    /// Starts a server that calls `hear` with its events, from all of its tasks. `hear` must return
    /// soon.
    ///
    /// Errors: see [`ServeError`].
    pub async fn start_with(
        config: ServeConfig,
        hear: impl Fn(&ServeEvent) + Send + Sync + 'static,
    ) -> Result<Self, ServeError> {
        let ServeConfig { dir, credentials, clients_max, pulls_max, .. } = config;
        let files = Files::below(&dir);
        let files = files.map_err(|error| ServeError::Folder { dir: dir.clone(), error })?;
        for (setting, number) in [("clients_max", clients_max), ("pulls_max", pulls_max)] {
            if number == 0 {
                return Err(ServeError::Zero { setting });
            }
        }
        let hashes = match &config.cache {
            None => Hashes::new(),
            Some(path) => {
                let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
                keep_outside(&dir, [folder.unwrap_or(Path::new("."))]).map_err(ServeError::Inside)?;
                Hashes::kept_in(path).map_err(ServeError::Cache)?
            }
        };
        let own = [&credentials.ca, &credentials.certificate, &credentials.key];
        let secrets = config.secrets.iter().chain(own).map(PathBuf::as_path);
        keep_outside(&dir, secrets).map_err(ServeError::Inside)?;
        warn_of_any(files.folder());
        let identity = Identity::load(&credentials)?;
        let directories = Directories::below(&dir, config.cache.as_deref(), config.memory.as_u64());
        let directories = directories.map_err(|error| ServeError::Folder { dir: dir.clone(), error })?;
        let machine = ServerConfig {
            pulls_max,
            rate_max: config.rate_max,
            memory_max: config.memory,
            give_up: config.give_up,
            quantum: QUANTUM,
            ..ServerConfig::default()
        };
        let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let half_open = AdmissionLimits::for_descriptors(descriptors);
        let pulls = (clients_max as u64).saturating_mul(pulls_max as u64 + CONNECTION_DESCRIPTORS);
        let needed = pulls.saturating_add(half_open.descriptors() + OWN_DESCRIPTORS);
        if needed > descriptors {
            return Err(ServeError::Descriptors { clients_max, pulls_max, needed, descriptors });
        }
        let listener = listen(config.listen)?;
        if let Err(error) = let_open_fast(&listener) {
            tracing::debug!(%error, "no caller's first packet says anything");
        }
        // With port 0 the system selects a free TCP port, and UDP uses the same port number.
        let at = listener.local_addr()?;
        let socket = DatagramSocket::bind(at, &DatagramOptions::default())?;
        let shared = Arc::new(Shared {
            socket,
            files,
            hashes,
            directories: Arc::new(directories),
            config: machine,
            port: config.advertise_port.unwrap_or(at.port()),
            channels: Mutex::default(),
            places: ConnectionSlots::new(clients_max, clients_max.div_ceil(CLIENT_SHARE), Share::new),
            connections: AtomicU64::new(0),
            refusals: Refusals::default(),
            idle: config.idle.to_std(),
            key_packets: config.key_packets,
            metrics: Arc::new(ServerMetrics::new()),
            hear: Box::new(hear),
        });
        let mut tasks = JoinSet::new();
        let (of_accept, who) = (Arc::clone(&shared), identity.clone());
        tasks.spawn(async move { match accept(&of_accept, &listener, &who, half_open).await {} });
        let of_datagrams = Arc::clone(&shared);
        tasks.spawn(async move { demultiplex(&of_datagrams).await });
        Ok(Self { at, identity, shared, tasks })
    }

    /// The address on which the server listens.
    pub const fn address(&self) -> SocketAddr {
        self.at
    }

    /// The server's identity, for callers that reload its keys when they change
    /// ([`Identity::reload`]).
    pub const fn identity(&self) -> &Identity {
        &self.identity
    }

    /// A function that returns the server's metrics in Prometheus' text format, at any time.
    pub fn metrics(&self) -> impl Fn() -> String + Clone + Send + Sync + use<> {
        let metrics = Arc::clone(&self.shared.metrics);
        move || metrics.text()
    }

    /// Waits until the server fails, and returns the error. No client can cause a failure.
    pub async fn failed(&mut self) -> ServeError {
        match self.tasks.join_next().await {
            Some(Ok(error)) => ServeError::Socket(error),
            Some(Err(error)) => ServeError::Socket(io::Error::other(error)),
            None => ServeError::Socket(io::Error::other("it has ended")),
        }
    }

    /// Stops the server. On return no further client is admitted, and connections are being closed.
    pub async fn stop(mut self) {
        self.tasks.shutdown().await;
        let ServerMetrics { strays, crowded, .. } = &*self.shared.metrics;
        let (strays, crowded) = (strays.get(), crowded.get());
        tracing::info!(strays, crowded, "server ends");
    }
}

/// Fuzz target for the file of hashes.
#[doc(hidden)]
pub fn exercise_cache(bytes: &[u8]) {
    hashes::exercise(bytes);
}

/// Passes datagrams to their sessions until the socket fails.
async fn demultiplex(shared: &Shared) -> io::Error {
    let mut batch = Batch::with_messages(8);
    loop {
        if let Err(error) = shared.socket.recv(&mut batch).await {
            return error;
        }
        let mut channels = shared.channels.lock().expect("nobody panics with it");
        for datagram in batch.datagrams() {
            let is_short = datagram.bytes.len() <= DATAGRAM_BYTES_MAX;
            let id = ChannelId::of(datagram.bytes).filter(|_| is_short);
            let taken = id.map(|id| channels.hand_on(id, datagram.from, datagram.bytes));
            match taken {
                Some(HandOnResult::Handed) => {}
                Some(HandOnResult::Crowded) => _ = shared.metrics.crowded.inc(),
                Some(HandOnResult::Stray) | None => _ = shared.metrics.strays.inc(),
            }
        }
    }
}

async fn accept(
    shared: &Arc<Shared>,
    listener: &TcpListener,
    identity: &Identity,
    half_open: AdmissionLimits,
) -> Infallible {
    let admission = Admission::new(half_open);
    // Dropping the set at the end of this task aborts the sessions.
    let mut sessions = JoinSet::new();
    loop {
        let arrival = admission.accept(listener).await;
        let (shared, identity) = (Arc::clone(shared), identity.clone());
        while sessions.try_join_next().is_some() {}
        sessions.spawn(async move {
            let from = arrival.from();
            if let Err(error) = session::run(&shared, &identity, arrival).await {
                tracing::debug!(%from, "{error}");
            }
        });
    }
}
