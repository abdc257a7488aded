//! A host's agent: it opens the device and sockets, accepts peers, and removes everything at its
//! end.
//!
//! `forward` carries packets on a separate thread, a `session` speaks to each peer, and `routing`
//! makes the kernel route TCP into the device. Read [`Agent`] first.

use crate::config::{AgentConfig, Peer};
use crate::forward::{Came, Command, Forwarder, Setup};
use crate::guard::Guard;
use crate::pulse::Pulse;
use crate::routing::{Routing, RoutingError};
use crate::session::{Session, Shown};
use crate::status::{self, PeerStatus, Status};
use anabranch_net::admission::{Admission, AdmissionLimits};
use anabranch_net::identity::Identity;
use anabranch_net::keys::Role;
use anabranch_net::local::{self, ListenError};
use anabranch_net::refusals::Refusals;
use anabranch_net::{socket, tls};
use anabranch_spray_proto::kernel::{Fault, PeerPlace};
use anabranch_spray_proto::{Config, ConfigError, PEER_MEMORY_MAX};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream, UnixListener, lookup_host};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio_rustls::TlsStream;

/// Variation of round trips that programs cause by themselves, without a change in the network.
const JITTER: anabranch_units::Duration = anabranch_units::Duration::from_us(500);
/// Maximum delay of an acknowledgement that waits for a datagram in the reverse direction. Most
/// programs answer within this time.
const SAY_WITHIN: anabranch_units::Duration = anabranch_units::Duration::from_us(500);
/// Capacity of the queue of commands to the forwarding thread.
const COMMANDS_MAX: usize = 64;
/// Time for sessions to announce their end, and for packets in flight to arrive.
const END_TIME: Duration = Duration::from_secs(2);
/// Time limit of the forwarding thread's answer to `spray status`.
const FIGURES_TIME: Duration = Duration::from_secs(1);
const LAST_PACKETS: Duration = Duration::from_millis(100);

/// Reason why an agent does not start, or ends: one line that names the remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AgentError {
    /// A setting out of range.
    #[error("{0}")]
    Setting(String),
    /// Settings that the state machines refuse.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A peer has no address.
    #[error("peer `{peer}`: {host}: {error}: check the name, or give NAME=ADDRESS")]
    Unknown {
        /// Name of the peer.
        peer: String,
        /// Host name without an address.
        host: String,
        /// Error of the system's resolver.
        error: io::Error,
    },
    /// Two peers have the same address.
    #[error("peers `{0}` and `{1}`: both are {2}: name each once")]
    Twice(String, String, IpAddr),
    /// There is no route to a peer.
    #[error("peer `{peer}`: no way there: {error}")]
    NoWay {
        /// Name of the peer.
        peer: String,
        /// Error of the system.
        error: io::Error,
    },
    /// Another agent owns the device.
    #[error("{error}: another agent of this host runs: end it, or choose another --device and --table")]
    Busy {
        /// Error of the system.
        error: io::Error,
    },
    /// The device cannot be made.
    #[error(
        "{error}: run the agent as root, or with CAP_NET_ADMIN; /dev/net/tun has to be there (modprobe tun)"
    )]
    Forbidden {
        /// Error of the system.
        error: io::Error,
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

/// A host's agent. Dropping it removes its device and its rules.
pub struct Agent {
    config: AgentConfig,
    at: SocketAddr,
    identity: Identity,
    places: Vec<PeerPlace>,
    came: Vec<Arc<Came>>,
    shown: Vec<Arc<Mutex<Shown>>>,
    listener: TcpListener,
    told: Option<UnixListener>,
    commands: mpsc::Sender<Command>,
    thread: JoinHandle<io::Result<()>>,
    pulse: Arc<Pulse>,
    guard: Option<Guard>,
    // Dropped last: rules must outlive routes.
    routing: Arc<Routing>,
}

impl Agent {
    /// Opens the device and sockets and sets the kernel's rules; [`Agent::run`] starts the work.
    ///
    /// Errors: see [`AgentError`]; an error leaves nothing behind.
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
        let mut places = Vec::new();
        for peer in &config.peers {
            places.push(place(peer, config.listen).await?);
        }
        let mut known: BTreeMap<IpAddr, &Peer> = BTreeMap::new();
        for (place, peer) in places.iter().zip(&config.peers) {
            if let Some(other) = known.insert(place.address, peer) {
                return Err(AgentError::Twice(other.name.clone(), peer.name.clone(), place.address));
            }
        }
        let any: IpAddr = if places.iter().any(|place| place.address.is_ipv6()) {
            Ipv6Addr::UNSPECIFIED.into()
        } else {
            Ipv4Addr::UNSPECIFIED.into()
        };
        let listener = socket::listen(config.listen.unwrap_or((any, crate::config::PORT).into()))?;
        let at = listener.local_addr()?;
        let told = config.socket.as_deref().map(|path| local::listen(path, None)).transpose()?;
        let came: Vec<Arc<Came>> = places.iter().map(|_| Arc::default()).collect();
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
            places: places.clone(),
            came: came.clone(),
            key_packets: config.key_packets,
            commands: taken,
        };
        let (thread, index) = forward(setup).await.map_err(|error| match error.kind() {
            io::ErrorKind::ResourceBusy => AgentError::Busy { error },
            io::ErrorKind::PermissionDenied | io::ErrorKind::NotFound => AgentError::Forbidden { error },
            _ => AgentError::System(error),
        })?;
        let routing = Arc::new(Routing::set_up((&config.device, index), config.table, at.port(), &places)?);
        let shown = || {
            let since = std::time::Instant::now();
            Arc::new(Mutex::new(Shown { up: None, since, why: Some("its agent was not reached yet".into()) }))
        };
        let shown = places.iter().map(|_| shown()).collect();
        let identity = identity.clone();
        Ok(Self {
            config,
            at,
            identity,
            places,
            came,
            shown,
            listener,
            told,
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

    /// Runs until `end` completes, then tells its peers and removes its device and its rules.
    ///
    /// Errors: a failure that prevents further work, see [`AgentError`]. No peer can cause one.
    pub async fn run(self, end: impl Future<Output = ()>) -> Result<(), AgentError> {
        let Self { config, at, identity, places, came, shown, listener, told, commands, thread, .. } = self;
        let Self { pulse, mut guard, routing, .. } = self;
        let (tell_fault, faults) = watch::channel(None);
        let (ending, is_end) = watch::channel(false);
        let mut sessions = JoinSet::new();
        let mut callers = BTreeMap::new();
        for (number, peer) in config.peers.iter().enumerate() {
            let (call, calls) = mpsc::channel(1);
            callers.insert((peer.name.clone(), places[number].address), call);
            let session = Session {
                number,
                name: peer.name.clone(),
                place: places[number],
                identity: identity.clone(),
                routing: Arc::clone(&routing),
                commands: commands.clone(),
                came: Arc::clone(&came[number]),
                shown: Arc::clone(&shown[number]),
                is_routed: Arc::default(),
                faults: faults.clone(),
                end: is_end.clone(),
                calls,
            };
            sessions.spawn(session.run());
        }
        let status = async || {
            let fault = *faults.borrow();
            tell(&config, at, &places, (&shown, fault), &commands).await
        };
        let telling = async {
            match told {
                Some(listener) => status::answer(listener, status).await,
                None => std::future::pending().await,
            }
        };
        let ended = async {
            while !thread.is_finished() {
                guard.iter_mut().for_each(Guard::keep);
                tokio::time::sleep(END_TIME / 4).await
            }
        };
        tokio::select! {
            () = end => {}
            never = accept(&listener, &identity, &callers) => match never {},
            () = telling => {}
            () = ended => {}
            never = Arc::clone(&routing).keep(pulse, commands.clone(), tell_fault) => match never {},
        }
        let _ = ending.send(true);
        let all = async { while sessions.join_next().await.is_some() {} };
        if tokio::time::timeout(END_TIME, all).await.is_err() {
            tracing::warn!("a peer was not told that this agent ends");
        }
        sessions.shutdown().await;
        drop(routing);
        // Packets that peers sent before they learnt of the end.
        tokio::time::sleep(LAST_PACKETS).await;
        drop((commands, callers));
        if let Some(path) = &config.socket {
            let _ = std::fs::remove_file(path);
        }
        let done = tokio::task::spawn_blocking(move || {
            let done = thread.join();
            // The pipe is closed now.
            if let Some(guard) = guard {
                guard.wait();
            }
            done
        });
        match done.await {
            Ok(Ok(done)) => Ok(done?),
            _ => Err(io::Error::other("the thread that carries packets has failed").into()),
        }
    }
}

/// Resolves a peer's address, and the local address from which its packets leave.
async fn place(peer: &Peer, listen: Option<SocketAddr>) -> Result<PeerPlace, AgentError> {
    let unknown = |error| AgentError::Unknown { peer: peer.name.clone(), host: peer.host.clone(), error };
    let found = lookup_host((peer.host.as_str(), peer.port)).await.map_err(unknown)?;
    // An agent on an IPv4 address cannot be reached over IPv6.
    let fits = |to: &SocketAddr| listen.is_none_or(|listen| listen.is_ipv6() || to.is_ipv4());
    let to = found.into_iter().find(fits);
    let to = to.ok_or_else(|| unknown(io::Error::other("it has no address that --listen goes with")))?;
    let local = || {
        let any: IpAddr =
            if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let socket = std::net::UdpSocket::bind((any, 0))?;
        socket.connect(to)?;
        Ok(socket.local_addr()?.ip())
    };
    let local = local().map_err(|error| AgentError::NoWay { peer: peer.name.clone(), error })?;
    if local == to.ip() || to.ip().is_loopback() || to.ip().is_unspecified() || to.ip().is_multicast() {
        return Err(AgentError::Setting(format!(
            "peer `{}`: {} is no other host's address",
            peer.name,
            to.ip()
        )));
    }
    Ok(PeerPlace { address: to.ip(), local, port: peer.port })
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

/// Accepts peers, and hands their connections to their sessions.
async fn accept(
    listener: &TcpListener,
    identity: &Identity,
    callers: &BTreeMap<(String, IpAddr), mpsc::Sender<TlsStream<TcpStream>>>,
) -> Infallible {
    let descriptors =
        rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
    let admission = Admission::new(AdmissionLimits::for_descriptors(descriptors));
    let refusals = Arc::new(Refusals::default());
    let mut greeting = JoinSet::new();
    loop {
        let arrival = admission.accept(listener).await;
        while greeting.try_join_next().is_some() {}
        let (tls, from, refusals) = (identity.server_config(), arrival.from().ip(), Arc::clone(&refusals));
        let callers = callers.clone();
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
            let call = callers.get(&(peer.name.clone(), from)).filter(|_| peer.role == Role::Site);
            let Some(call) = call else {
                let line = format!("{peer} calls from {from}: no --peer says so");
                return refusals.note(Some(&peer), &line);
            };
            // The session closes a connection that a newer one replaces once it falls silent.
            let _ = half_open.within(async { call.send(stream).await.map_err(io::Error::other) }).await;
        });
    }
}

/// Builds the agent's status.
async fn tell(
    config: &AgentConfig,
    at: SocketAddr,
    places: &[PeerPlace],
    (shown, fault): (&[Arc<Mutex<Shown>>], Option<Fault>),
    commands: &mpsc::Sender<Command>,
) -> Status {
    let (reply, figures) = oneshot::channel();
    let ask = async {
        commands.send(Command::Figures { reply }).await.ok()?;
        figures.await.ok()
    };
    // A stalled thread gives no answer.
    let figures = tokio::time::timeout(FIGURES_TIME, ask).await.ok().flatten().unwrap_or_default();
    let peer = |(number, peer): (usize, &Peer)| {
        let shown = shown[number].lock().unwrap_or_else(PoisonError::into_inner).clone();
        PeerStatus {
            name: peer.name.clone(),
            address: places[number].address.to_string(),
            is_up: shown.up.is_some() && fault.is_none(),
            since_s: shown.since.elapsed().as_secs_f64(),
            why: fault.map(|fault| fault.to_string()).or(shown.why),
            mtu_bytes: shown.up.map(|bytes| bytes as u64),
            figures: figures.get(number).cloned().unwrap_or_default(),
        }
    };
    Status {
        name: config.name.clone(),
        device: config.device.clone(),
        listen: at.to_string(),
        ways: config.ways,
        peers: config.peers.iter().enumerate().map(peer).collect(),
    }
}
