//! A server: lets clients pull the files of a folder.
//!
//! One UDP socket for all clients, one TLS connection for each. What a client may have is bounded: connections, pulls, memory
//! and rate. No packet leaves before the client has proved its address twice: by its connection, and by an authenticated
//! datagram from where it takes packets. Read [`ServeConfig`], [`Server`] and [`ServeEvent`] first, then `session`.

mod channels;
mod event;
mod files;
mod hashes;
mod listing;
mod session;
mod share;

pub use event::ServeEvent;
pub use hashes::CacheError;

use anabranch_disk::folder::secrets::{keep_outside, warn_of_any};
use anabranch_gather_proto::ServerConfig;
use anabranch_gather_proto::msg::Feedback;
use anabranch_net::admission::{Admission, AdmissionLimits, Places};
use anabranch_net::datagram::{Batch, DatagramOptions, DatagramSocket};
use anabranch_net::identity::Identity;
use anabranch_net::refusals::Refusals;
use anabranch_net::seal::{ChannelId, OVERHEAD_BYTES};
use anabranch_net::socket::{let_open_fast, listen};
use anabranch_net::tls::{CredentialFiles, TlsError};
use anabranch_units::{BitRate, ByteCount, Duration};
use channels::{Channels, Taken};
use files::Files;
use hashes::Hashes;
use rustix::process::{Resource, getrlimit};
use share::Share;
use std::convert::Infallible;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// How a server is run.
#[derive(Clone, Debug)]
pub struct ServeConfig {
    /// The folder whose files are offered, by their paths below it. Symbolic links that lead out of it are not followed.
    pub dir: PathBuf,
    /// The address and port to listen on, TCP for control and UDP for data. Port 0 is any that is free.
    pub listen: SocketAddr,
    /// The UDP port that clients are told to use, where a forwarded port differs from that of `listen`.
    pub advertise_port: Option<u16>,
    /// The server's certificate and key. They may not lie below `dir`.
    pub credentials: CredentialFiles,
    /// What else may not lie below `dir`.
    pub secrets: Vec<PathBuf>,
    /// The highest rate at which one connection is sent data, in bits of datagrams; as fast as the client takes it without.
    pub rate_max: Option<BitRate>,
    /// The most connections at once. One client, which is all that use one key, may have a quarter of them.
    pub clients_max: usize,
    /// The most pulls of one client at once, over all its connections. A pull is one object, or a part of one.
    pub pulls_max: usize,
    /// The most memory for the blocks of one client, over all its connections.
    pub memory: ByteCount,
    /// A pull ends when its client says nothing for this long.
    pub give_up: Duration,
    /// A connection that has no pull and asks for nothing is closed after this long.
    pub idle: Duration,
    /// Where hashes of files are remembered over restarts: outside of `dir`. Without, in memory only.
    pub cache: Option<PathBuf>,
    /// Packets that one key seals at the most: for tests, as ciphers have limits of their own.
    pub key_packets: Option<u64>,
}

impl ServeConfig {
    /// Serves `dir` on a free port of this machine alone, with limits for a few dozen clients.
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
            give_up: Duration::from_secs(10),
            idle: Duration::from_secs(300),
            cache: None,
            key_packets: None,
        }
    }
}

/// Why no server runs. Shown, it is one line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The folder cannot be opened.
    #[error("{}: make this folder, or name the one that holds the files: {error}", dir.display())]
    Folder {
        /// The folder.
        dir: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// A setting that must not be 0.
    #[error("{setting} 0: must be at least 1")]
    Zero {
        /// Its name in [`ServeConfig`].
        setting: &'static str,
    },
    /// A key, or the file of hashes, lies in the folder.
    #[error("{0}")]
    Inside(io::Error),
    /// The file of hashes cannot be used.
    #[error("cache: {0}")]
    Cache(CacheError),
    /// The certificate or its key cannot be used.
    #[error(transparent)]
    Credentials(#[from] TlsError),
    /// The process may have fewer descriptors than clients may need.
    #[error(
        "clients_max {clients_max} and pulls_max {pulls_max} may need {needed} descriptors, and there are {descriptors} \
         (ulimit -Hn): choose less, or allow more"
    )]
    Descriptors {
        /// Connections at once.
        clients_max: usize,
        /// Pulls of each at once.
        pulls_max: usize,
        /// Descriptors that may be needed.
        needed: u64,
        /// Descriptors that the process may have.
        descriptors: u64,
    },
    /// The system refuses a socket, or what arrives there.
    #[error(transparent)]
    Socket(#[from] io::Error),
}

/// Datagrams of a client that wait for its session; more are dropped, as a full socket would.
const WAITING_MAX: usize = 1_024;
/// Of all places for clients, one identity may have one in so many.
pub const CLIENT_SHARE: usize = 4;
/// Descriptors of a connection besides its pulls: itself, its timer, and a file that is hashed.
const CONNECTION_DESCRIPTORS: u64 = 3;
/// Descriptors besides clients' connections and pulls: the runtime, the folder, files that are hashed, the terminal.
const OWN_DESCRIPTORS: u64 = 128;
/// The time that packets which are due may leave together.
const QUANTUM: Duration = Duration::from_us(150);

/// The longest datagram that a client sends: a feedback.
const DATAGRAM_BYTES_MAX: usize = OVERHEAD_BYTES + Feedback::BYTES_MAX as usize;

/// A datagram, and where it comes from.
type Arriving = (SocketAddr, Vec<u8>);
/// Where a session's datagrams go.
type Datagrams = mpsc::Sender<Arriving>;

/// What sessions share.
struct Shared {
    socket: DatagramSocket,
    files: Files,
    hashes: Hashes,
    config: ServerConfig,
    /// Where clients send datagrams.
    port: u16,
    /// Where each channel's datagrams go.
    channels: Mutex<Channels>,
    /// Places of clients that have said who they are, with what each has besides connections.
    places: Places<Share>,
    /// How many there have been.
    connections: AtomicU64,
    refusals: Refusals,
    idle: std::time::Duration,
    key_packets: Option<u64>,
    /// Datagrams of no channel that was open when they came, and those that a session had no room for.
    strays: AtomicU64,
    crowded: AtomicU64,
    hear: Box<dyn Fn(&ServeEvent) + Send + Sync>,
}

impl Shared {
    /// Says that something has happened; in the log, too, unless its connection has had its lines.
    fn say(&self, event: &ServeEvent, is_logged: bool) {
        if is_logged {
            event.log();
        }
        (self.hear)(event);
    }
}

/// A server that runs. Dropped, it ends.
///
/// Its tasks read files in between: it needs a runtime of several threads (`#[tokio::main]` makes one).
pub struct Server {
    at: SocketAddr,
    identity: Identity,
    shared: Arc<Shared>,
    /// Taking in connections and datagrams.
    tasks: JoinSet<io::Error>,
}

impl Server {
    /// Starts one. What happens goes to the log only ([`tracing`]).
    ///
    /// Errors: see [`ServeError`].
    pub async fn start(config: ServeConfig) -> Result<Self, ServeError> {
        Self::start_with(config, |_| ()).await
    }

    /// Starts one; `hear` is told what happens, by all of its tasks. It must not take long.
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
        // Port 0 is any that is free: both have the same.
        let at = listener.local_addr()?;
        let socket = DatagramSocket::bind(at, &DatagramOptions::default())?;
        let shared = Arc::new(Shared {
            socket,
            files,
            hashes,
            config: machine,
            port: config.advertise_port.unwrap_or(at.port()),
            channels: Mutex::default(),
            places: Places::new(clients_max, clients_max.div_ceil(CLIENT_SHARE), Share::new),
            connections: AtomicU64::new(0),
            refusals: Refusals::default(),
            idle: config.idle.to_std(),
            key_packets: config.key_packets,
            strays: AtomicU64::new(0),
            crowded: AtomicU64::new(0),
            hear: Box::new(hear),
        });
        let mut tasks = JoinSet::new();
        let (of_accept, who) = (Arc::clone(&shared), identity.clone());
        tasks.spawn(async move { match accept(&of_accept, &listener, &who, half_open).await {} });
        let of_datagrams = Arc::clone(&shared);
        tasks.spawn(async move { demultiplex(&of_datagrams).await });
        Ok(Self { at, identity, shared, tasks })
    }

    /// Where it listens.
    pub const fn address(&self) -> SocketAddr {
        self.at
    }

    /// Who it is: what reads its keys again when they change does so here ([`Identity::reload`]).
    pub const fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Waits until it cannot go on, which no client can bring about; why.
    pub async fn failed(&mut self) -> ServeError {
        match self.tasks.join_next().await {
            Some(Ok(error)) => ServeError::Socket(error),
            Some(Err(error)) => ServeError::Socket(io::Error::other(error)),
            None => ServeError::Socket(io::Error::other("it has ended")),
        }
    }

    /// Ends it: nobody is let in any more once this returns, and connections are being closed.
    pub async fn stop(mut self) {
        self.tasks.shutdown().await;
        let (strays, crowded) = (self.shared.strays.load(Relaxed), self.shared.crowded.load(Relaxed));
        tracing::info!(strays, crowded, "server ends");
    }
}

/// What a fuzzer does with bytes that may be a file of hashes.
#[doc(hidden)]
pub fn exercise_cache(bytes: &[u8]) {
    hashes::exercise(bytes);
}

/// Hands datagrams to the sessions they are for, until the socket fails.
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
                Some(Taken::Handed) => {}
                Some(Taken::Crowded) => drop(shared.crowded.fetch_add(1, Relaxed)),
                Some(Taken::Stray) | None => drop(shared.strays.fetch_add(1, Relaxed)),
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
    // They end with this task: all tasks of the set do.
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
