//! A host's agent: it opens the device and sockets, accepts peers, and removes everything at its
//! end.
//!
//! `forward` carries packets on a separate thread, a `session` exchanges control messages with each
//! peer, and `routing` makes the kernel route TCP into the device. Read [`Agent`] first.

use crate::config::{AgentConfig, Peer, check_peers};
use crate::directory::Directory;
use crate::forward::{Command, Forwarder, Setup};
use crate::guard::Guard;
use crate::members::{Member, Members};
use crate::metrics;
use crate::pulse::Pulse;
use crate::routing::{Routing, RoutingError};
use crate::session::Shared;
use crate::status::{self, PeerStatus, Status};
use anabranch_http::metrics::seconds;
use anabranch_net::admission::{Admission, AdmissionLimits};
use anabranch_net::identity::Identity;
use anabranch_net::keys::Role;
use anabranch_net::local::{self, ListenError};
use anabranch_net::refusals::Refusals;
use anabranch_net::{socket, tls};
use anabranch_spray_proto::kernel::Fault;
use anabranch_spray_proto::{Config, ConfigError, PEER_MEMORY_MAX};
use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::net::{TcpListener, UnixListener, lookup_host};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;

/// Variation of round trips that programs cause, without a change in the network.
const JITTER: anabranch_units::Duration = anabranch_units::Duration::from_us(500);
/// Maximum delay of an acknowledgement that waits for a datagram in the reverse direction. Most
/// programs answer within this time.
const SAY_WITHIN: anabranch_units::Duration = anabranch_units::Duration::from_us(500);
/// Maximum number of scrapes that wait for the metrics.
const SCRAPES_MAX: usize = 16;
/// Capacity of the queue of commands to the forwarding thread.
const COMMANDS_MAX: usize = 64;
/// Time that sessions get to announce their end when the agent ends.
const END_TIME: Duration = Duration::from_secs(2);
/// Time limit for resolving peers' names before the agent begins; sessions resolve the names again.
const RESOLVE_TIME: Duration = Duration::from_secs(3);
/// Time limit of the forwarding thread's answer to `spray status`.
const FIGURES_TIME: Duration = Duration::from_secs(1);
const LAST_PACKETS: Duration = Duration::from_millis(100);

/// Reason why an agent does not start, or ends: one line that names a remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AgentError {
    /// A setting out of range.
    #[error("{0}")]
    Setting(String),
    /// Settings that the state machines refuse.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Another agent owns the device.
    #[error("{error}: another agent of this host runs: end it, or choose another --device and --table")]
    Busy {
        /// Error of the system.
        error: io::Error,
    },
    /// The device cannot be made.
    #[error("{error}: {remedy}")]
    Forbidden {
        /// Error of the system.
        error: io::Error,
        /// The right or file that the agent lacks.
        remedy: &'static str,
    },
    /// Rules remain in the kernel.
    #[error(
        "{count} rules of table {table} are left: delete them (`ip rule`, `ip -6 rule`), or start an agent with this --table"
    )]
    Left {
        /// Number of remaining rules.
        count: usize,
        /// The agent's table.
        table: u32,
    },
    /// The kernel's rules cannot be set.
    #[error(transparent)]
    Routing(#[from] RoutingError),
    /// The status socket cannot be created.
    #[error("--socket {0}")]
    Listen(#[from] ListenError),
    /// Any other error of the system.
    #[error(transparent)]
    System(#[from] io::Error),
}

/// Reply channel for one scrape of the metrics.
type Scrape = oneshot::Sender<String>;

/// A host's agent. Dropping it removes its device and its rules.
pub struct Agent {
    config: AgentConfig,
    at: SocketAddr,
    identity: Identity,
    peers: watch::Sender<Vec<Peer>>,
    listener: TcpListener,
    told: Option<UnixListener>,
    /// Queue of metrics scrapes; the reply to each is the metrics' text.
    scrapes: (mpsc::Sender<Scrape>, mpsc::Receiver<Scrape>),
    commands: mpsc::Sender<Command>,
    thread: JoinHandle<io::Result<()>>,
    pulse: Arc<Pulse>,
    guard: Option<Guard>,
    // Dropped last: the rules must exist for as long as the routes.
    routing: Arc<Routing>,
}

impl Agent {
    /// Opens the device and sockets and sets the kernel's rules; [`Agent::run`] starts the work.
    ///
    /// Errors: see [`AgentError`]; after an error no device, socket or rule remains.
    /// Panics: outside of a tokio runtime.
    pub async fn start(mut config: AgentConfig, identity: &Identity) -> Result<Self, AgentError> {
        config.check().map_err(AgentError::Setting)?;
        let machine = Config {
            long: config.long,
            rate: config.rate,
            hold_max: config.hold_max,
            say_within: SAY_WITHIN,
            jitter: JITTER,
            memory: Some(PEER_MEMORY_MAX),
            ..Config::of_agent()
        };
        machine.check()?;
        let any = match config.listen {
            Some(at) => at.ip(),
            None => wildcard(&config.peers).await,
        };
        let listener = socket::listen(config.listen.unwrap_or((any, crate::config::PORT).into()))?;
        let at = listener.local_addr()?;
        let told = config.socket.as_deref().map(|path| local::listen(path, None)).transpose()?;
        let (commands, taken) = mpsc::channel(COMMANDS_MAX);
        let guard = config.guard.take().and_then(|command| {
            let warn = |error: &io::Error| {
                tracing::warn!("no guard: an agent that stands still holds up TCP to its peers: {error}");
            };
            Guard::start(command).inspect_err(warn).ok()
        });
        let (guard, pipe) = guard.unzip();
        let pulse = Arc::new(Pulse::new(pipe));
        let setup = Setup {
            pulse: Arc::clone(&pulse),
            device: config.device.clone(),
            listen: at,
            ways: config.ways,
            config: machine,
            key_packets: config.key_packets,
            commands: taken,
        };
        let (thread, index) = forward(setup).await.map_err(|error| match error.kind() {
            io::ErrorKind::ResourceBusy => AgentError::Busy { error },
            io::ErrorKind::PermissionDenied | io::ErrorKind::NotFound => {
                AgentError::Forbidden { error, remedy: remedy() }
            }
            _ => AgentError::System(error),
        })?;
        let routing = Arc::new(Routing::set_up((&config.device, index), config.table, at.port())?);
        let peers = watch::Sender::new(config.peers.clone());
        let identity = identity.clone();
        let scrapes = mpsc::channel(SCRAPES_MAX);
        Ok(Self {
            config,
            at,
            identity,
            peers,
            listener,
            told,
            scrapes,
            commands,
            thread,
            pulse,
            guard,
            routing,
        })
    }

    /// Address on which the agent listens.
    pub const fn address(&self) -> SocketAddr {
        self.at
    }

    /// Returns a handle that changes the peers while the agent runs.
    pub fn peer_changes(&self) -> PeerChanges {
        PeerChanges { own: self.config.name.clone(), peers: self.peers.clone() }
    }

    /// Returns a function that gives the agent's metrics in Prometheus' text format. The text is
    /// empty while the agent does not run.
    pub fn metrics(
        &self,
    ) -> impl Fn() -> Pin<Box<dyn Future<Output = String> + Send>> + Clone + Send + Sync + use<> {
        let scrapes = self.scrapes.0.clone();
        move || {
            let (reply, text) = oneshot::channel();
            let scrapes = scrapes.clone();
            Box::pin(async move {
                let asked = scrapes.send(reply).await;
                if asked.is_ok() { text.await.unwrap_or_default() } else { String::new() }
            })
        }
    }

    /// Runs until `end` completes, then notifies the peers and removes the device and the rules.
    ///
    /// Errors: a failure that prevents further work, see [`AgentError`]. No peer can cause one.
    pub async fn run(self, end: impl Future<Output = ()>) -> Result<(), AgentError> {
        let Self { config, at, identity, peers, listener, told, scrapes, commands, thread, .. } = self;
        let (up_seconds, (_, mut scrapes)) = (seconds(), scrapes);
        let Self { pulse, mut guard, routing, .. } = self;
        let (tell_fault, faults) = watch::channel(None);
        let directory = Arc::new(Directory::new(Arc::clone(&routing)));
        let members = Members::new(Shared {
            identity: identity.clone(),
            listen: at,
            routing: Arc::clone(&routing),
            directory: Arc::clone(&directory),
            commands: commands.clone(),
            faults: faults.clone(),
            up_seconds: up_seconds.clone(),
        });
        let mut sessions = JoinSet::new();
        let status = async || {
            let fault = *faults.borrow();
            tell(&config, at, (&members, &directory), fault, &commands).await
        };
        let telling = async {
            match told {
                Some(listener) => status::answer(listener, status).await,
                None => std::future::pending().await,
            }
        };
        let scraped = async {
            while let Some(reply) = scrapes.recv().await {
                let _ = reply.send(metrics::text(&status().await, &up_seconds));
            }
            std::future::pending().await
        };
        let ended = async {
            while !thread.is_finished() {
                guard.iter_mut().for_each(Guard::keep);
                tokio::time::sleep(END_TIME / 4).await
            }
        };
        tokio::select! {
            () = end => {}
            never = accept(&listener, &identity, &directory) => match never {},
            never = follow(&members, peers.subscribe(), &mut sessions) => match never {},
            () = telling => {}
            () = scraped => {}
            () = ended => {}
            never = Arc::clone(&routing).keep(pulse, commands.clone(), tell_fault) => match never {},
        }
        members.end();
        let all = async { while sessions.join_next().await.is_some() {} };
        if tokio::time::timeout(END_TIME, all).await.is_err() {
            tracing::warn!("a peer was not told that this agent ends");
        }
        sessions.shutdown().await;
        let left = routing.clear();
        drop((members, directory, routing));
        // Waits for packets that peers sent before they were notified of the end.
        tokio::time::sleep(LAST_PACKETS).await;
        drop(commands);
        if let Some(path) = &config.socket {
            let _ = std::fs::remove_file(path);
        }
        let done = tokio::task::spawn_blocking(move || {
            let done = thread.join();
            // All write ends of the pipe are closed now, so the guard ends.
            if let Some(guard) = guard {
                guard.wait();
            }
            done
        });
        match done.await {
            Ok(Ok(done)) => done?,
            _ => return Err(io::Error::other("the thread that carries packets has failed").into()),
        }
        match left? {
            0 => Ok(()),
            count => Err(AgentError::Left { count, table: config.table }),
        }
    }
}

/// Updates the sessions whenever the list of peers changes.
async fn follow(
    members: &Members,
    mut peers: watch::Receiver<Vec<Peer>>,
    sessions: &mut JoinSet<usize>,
) -> Infallible {
    loop {
        members.set(&peers.borrow_and_update().clone(), sessions);
        tokio::select! {
            changed = peers.changed() => changed.expect("the agent that runs keeps the sender"),
            Some(Ok(link)) = sessions.join_next() => members.free(link),
        }
    }
}

/// Handle that changes the peers of a running agent.
#[derive(Clone, Debug)]
pub struct PeerChanges {
    own: String,
    peers: watch::Sender<Vec<Peer>>,
}

impl PeerChanges {
    /// Replaces the peers. Sessions of unchanged peers continue. Returns the numbers of added and
    /// of removed peers.
    ///
    /// Errors: an invalid list of peers, in one line; the peers then stay unchanged.
    pub fn set(&self, peers: Vec<Peer>) -> Result<(usize, usize), String> {
        check_peers(&self.own, &peers)?;
        let before = self.peers.send_replace(peers.clone());
        let count = |of: &[Peer], others: &[Peer]| of.iter().filter(|peer| !others.contains(peer)).count();
        Ok((count(&peers, &before), count(&before, &peers)))
    }
}

/// Returns the wildcard address to listen on: IPv6 if a peer has an IPv6 address, because an IPv6
/// socket also accepts IPv4.
async fn wildcard(peers: &[Peer]) -> IpAddr {
    let mut found = JoinSet::new();
    for peer in peers {
        let (host, port) = (peer.host.clone(), peer.port);
        found.spawn(async move {
            let found = tokio::time::timeout(RESOLVE_TIME, lookup_host((host, port))).await;
            found.is_ok_and(|found| found.is_ok_and(|mut found| found.next().is_some_and(|at| at.is_ipv6())))
        });
    }
    while let Some(is_ipv6) = found.join_next().await {
        if is_ipv6.unwrap_or(false) {
            return Ipv6Addr::UNSPECIFIED.into();
        }
    }
    Ipv4Addr::UNSPECIFIED.into()
}

/// Returns the right or the file whose lack prevents the creation of a device.
fn remedy() -> &'static str {
    match anabranch_linux::tun::check() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            "/dev/net/tun has to be there (modprobe tun)"
        }
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            "let this user read and write /dev/net/tun (chmod 0666, as udev sets it), or run the agent as root"
        }
        _ => "run the agent as root, or with CAP_NET_ADMIN",
    }
}

/// Starts the forwarding thread. Returns the thread and the index of its device.
async fn forward(setup: Setup) -> io::Result<(JoinHandle<io::Result<()>>, u32)> {
    let (opened, is_open) = oneshot::channel();
    let run = move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let made = Forwarder::new(setup).and_then(|(forwarder, commands)| {
                let index = forwarder.device_index()?;
                Ok((forwarder, commands, index))
            });
            match made {
                Ok((forwarder, commands, index)) => {
                    let _ = opened.send(Ok(index));
                    forwarder.run(commands).await
                }
                Err(error) => {
                    let _ = opened.send(Err(error));
                    Ok(())
                }
            }
        })
    };
    let thread = std::thread::Builder::new().name("spray-forward".into()).spawn(run)?;
    let index =
        is_open.await.map_err(|_| io::Error::other("the thread that carries packets has failed"))??;
    Ok((thread, index))
}

/// Accepts connections of peers, and passes them to the peers' sessions.
async fn accept(listener: &TcpListener, identity: &Identity, directory: &Arc<Directory>) -> Infallible {
    let descriptors =
        rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
    let admission = Admission::new(AdmissionLimits::for_descriptors(descriptors));
    let refusals = Arc::new(Refusals::default());
    let mut greeting = JoinSet::new();
    loop {
        let arrival = admission.accept(listener).await;
        while greeting.try_join_next().is_some() {}
        let (tls, from, refusals) = (identity.server_config(), arrival.from().ip(), Arc::clone(&refusals));
        let directory = Arc::clone(directory);
        greeting.spawn(async move {
            let (stream, peer, half_open) = match arrival.identify(tls).await {
                Ok(identified) => identified,
                Err(error) => {
                    if let Some(line) = tls::stranger(from, &error) {
                        refusals.note(None, &line);
                    }
                    return;
                }
            };
            let from = from.to_canonical();
            let call = directory.calls_of(&peer.name, from).filter(|_| peer.role == Role::Site);
            let Some(call) = call else {
                let line = format!("{peer} calls from {from}: no --peer and no line of --peers says so");
                return refusals.note(Some(&peer), &line);
            };
            // The session replaces its connection by the newer one once the old connection is
            // silent.
            let _ = half_open.within(async { call.send(stream).await.map_err(io::Error::other) }).await;
        });
    }
}

/// Builds the agent's status.
async fn tell(
    config: &AgentConfig,
    at: SocketAddr,
    (members, directory): (&Members, &Directory),
    fault: Option<Fault>,
    commands: &mpsc::Sender<Command>,
) -> Status {
    let (reply, figures) = oneshot::channel();
    let ask = async {
        commands.send(Command::Figures { reply }).await.ok()?;
        figures.await.ok()
    };
    // A stalled thread gives no answer within the time limit.
    let figures = tokio::time::timeout(FIGURES_TIME, ask).await.ok().flatten().unwrap_or_default();
    let addresses = directory.addresses();
    let peer = |(link, member): (usize, Member)| {
        let shown = member.shown.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let address = addresses.get(&link);
        PeerStatus {
            name: member.peer.name,
            address: address.map(ToString::to_string),
            is_up: shown.up.is_some() && fault.is_none(),
            since_s: shown.since.elapsed().as_secs_f64(),
            why: fault.map(|fault| fault.to_string()).or(shown.why),
            mtu_bytes: shown.up.map(|bytes| bytes as u64),
            failures: shown.failures.by_label(),
            figures: address.and_then(|_| figures.get(link).cloned()).unwrap_or_default(),
        }
    };
    let peers: Vec<PeerStatus> = members.list().into_iter().map(peer).collect();
    Status {
        name: config.name.clone(),
        device: config.device.clone(),
        listen: at.to_string(),
        ways: config.ways,
        up: peers.iter().filter(|peer| peer.is_up).count(),
        peers,
    }
}
