//! The session with a peer's agent: connection, control messages, and the peer's route in the
//! kernel.
//!
//! Of two agents, the agent with the lesser name connects and retries, and the other agent waits.
//! Each connection has one channel, so the keys end with the connection. When the keys have sealed
//! their maximum, a new connection follows. Between connections packets take the ordinary route.
//! Leaves out: the control protocol's decisions (`spray_proto::link`). Read [`Session::keep`]
//! first.

use crate::config::Peer;
use crate::directory::{CallSender, Directory};
use crate::forward::{Command, ReceiveState, packet_max};
use crate::metrics::{Cause, Failures};
use crate::routing::Routing;
use anabranch_http::metrics::Histogram;
use anabranch_net::cause::{cause, explain};
use anabranch_net::datagram::{payload_max, route_mtu};
use anabranch_net::identity::Identity;
use anabranch_net::keys::Role;
use anabranch_net::seal::{self, ChannelId};
use anabranch_net::socket::{TcpOptions, connect};
use anabranch_net::tls;
use anabranch_sessions::Backoff;
use anabranch_spray_proto::control::Control;
use anabranch_spray_proto::kernel::{Fault, PeerEndpoint};
use anabranch_spray_proto::link::{Action, Link};
use anabranch_units::{Duration, Instant};
use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, lookup_host};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsStream;

/// Pauses between two connection attempts.
const BACKOFF: Backoff = Backoff::new(Duration::from_ms(100), Duration::from_secs(5));
/// Duration from which a connection counts as a success, which resets the back-off.
const STOOD_MIN: std::time::Duration = std::time::Duration::from_secs(5);
/// Time limit of one connection attempt. The next attempt uses another source port, and so perhaps
/// another path through the network.
const TRY_TIME: std::time::Duration = std::time::Duration::from_secs(1);
/// Time limit of all attempts for one connection, and of the greeting on a connection.
const CONNECT_TIME: std::time::Duration = std::time::Duration::from_secs(5);
/// Interval between two look-ups of a peer's name while there is no connection.
const RESOLVE_EVERY: std::time::Duration = std::time::Duration::from_secs(30);
/// Period over which the length of the longest received datagram is reported.
const LATELY: Duration = Duration::from_secs(4);
/// Minimum length of a TCP packet for which datagrams are used. A path with a smaller MTU is not
/// used.
const PACKET_MIN: usize = 512;
/// Number of datagrams that announce the end of this agent, because some may be lost.
const BYES: usize = 3;
/// Maximum bytes of an incomplete message.
const UNREAD_MAX: usize = 64;

/// Status of a peer.
#[derive(Clone, Debug)]
pub(crate) struct SessionStatus {
    pub(crate) up: Option<usize>,
    pub(crate) since: std::time::Instant,
    pub(crate) why: Option<String>,
    pub(crate) failures: Failures,
}

/// Parts that all sessions share.
#[derive(Clone)]
pub(crate) struct Shared {
    pub(crate) identity: Identity,
    /// Address on which the agent listens.
    pub(crate) listen: SocketAddr,
    pub(crate) routing: Arc<Routing>,
    pub(crate) directory: Arc<Directory>,
    pub(crate) commands: mpsc::Sender<Command>,
    /// Fault that prevents datagrams to all peers; `None` without a fault.
    pub(crate) faults: watch::Receiver<Option<Fault>>,
    /// Durations for which peers were up.
    pub(crate) up_seconds: Histogram,
}

/// State of a session with one peer.
pub(crate) struct Session {
    /// Number of the peer's link.
    pub(crate) number: usize,
    pub(crate) peer: Peer,
    /// Last known address of the peer's name; `None` if no address is known.
    pub(crate) place: Option<PeerEndpoint>,
    /// Time of the last look-up of the peer's name that gave an address.
    pub(crate) resolved_at: Option<std::time::Instant>,
    pub(crate) shared: Shared,
    pub(crate) came: Arc<ReceiveState>,
    pub(crate) shown: Arc<Mutex<SessionStatus>>,
    /// Datagram length of the peer's route; `None` while the route does not exist.
    pub(crate) routed_bytes: Arc<tokio::sync::Mutex<Option<usize>>>,
    /// True once the agent ends or the peer is removed.
    pub(crate) end: watch::Receiver<bool>,
    /// Sender and receiver of the peer's connections.
    pub(crate) call: CallSender,
    pub(crate) calls: mpsc::Receiver<TlsStream<TcpStream>>,
}

/// Reason for the end of an established connection, in this project's wording.
fn farewell(error: &io::Error) -> String {
    use io::ErrorKind as Kind;
    if let Some(refusal) = tls::refusal(error) {
        return format!("its agent {refusal}");
    }
    match error.kind() {
        Kind::UnexpectedEof | Kind::ConnectionReset | Kind::ConnectionAborted | Kind::BrokenPipe => {
            "its agent went away".to_owned()
        }
        Kind::InvalidData => "its agent sent bytes that do not fit the session's keys".to_owned(),
        _ => cause(error),
    }
}

/// Returns the error for an ended forwarding thread.
fn gone() -> io::Error {
    io::Error::other("the thread that carries packets has ended")
}

impl Session {
    /// Runs the session until the agent ends or the peer is removed. Returns the number of its
    /// link.
    pub(crate) async fn run(mut self) -> usize {
        let is_caller = self.shared.identity.own().name < self.peer.name;
        let mut backoff = BACKOFF;
        while !*self.end.borrow() {
            let stream = match self.settle().await {
                Ok(place) if is_caller => self.call(place).await.map_err(|error| (Cause::Unreachable, error)),
                Ok(_) => tokio::select! {
                    call = self.calls.recv() => call.ok_or_else(|| (Cause::Unreachable, gone())),
                    // The name may resolve to another address by now.
                    () = sleep(RESOLVE_EVERY) => continue,
                    _ = self.end.changed() => continue,
                },
                Err(error) => Err((Cause::Unresolved, error)),
            };
            let stood = match stream {
                Ok(stream) => {
                    let began = std::time::Instant::now();
                    let ended = self.keep(stream, is_caller).await;
                    if let Err(error) = ended
                        && !*self.end.borrow()
                    {
                        self.show_down(Cause::Closed, farewell(&error));
                    }
                    began.elapsed() > STOOD_MIN
                }
                Err((cause, error)) => {
                    if !*self.end.borrow() {
                        self.show_down(cause, error.to_string());
                    }
                    false
                }
            };
            if stood {
                backoff.reset();
            }
            if is_caller || self.place.is_none() {
                tokio::select! {
                    () = sleep(backoff.next_pause().to_std()) => {}
                    _ = self.end.changed() => {}
                }
            }
        }
        self.leave().await;
        self.number
    }

    /// Returns the peer's address, resolved again if the last look-up is old.
    ///
    /// Errors: why the peer has no address, or why this agent cannot use it.
    async fn settle(&mut self) -> io::Result<PeerEndpoint> {
        let is_recent = self.resolved_at.is_some_and(|at| at.elapsed() < RESOLVE_EVERY);
        if let Some(place) = self.place.filter(|_| is_recent) {
            return Ok(place);
        }
        let found = timeout(CONNECT_TIME, find(&self.peer, self.shared.listen, self.place)).await;
        let found = found.unwrap_or_else(|_| Err(io::Error::other("its name is not resolved in time")));
        let found = match found {
            Ok(found) => found,
            // The known address is kept if the name server does not answer.
            Err(error) => return self.place.ok_or(error),
        };
        self.resolved_at = Some(std::time::Instant::now());
        if self.place == Some(found) {
            return Ok(found);
        }
        self.leave().await;
        let (directory, call) = (Arc::clone(&self.shared.directory), self.call.clone());
        let (number, name) = (self.number, self.peer.name.clone());
        let claim = move || directory.claim(number, &name, found, call);
        let claimed = tokio::task::spawn_blocking(claim).await.map_err(io::Error::other)?;
        claimed.inspect_err(|_| self.resolved_at = None)?;
        let place = Command::Place { link: number, place: Some(found), came: Arc::clone(&self.came) };
        self.shared.commands.send(place).await.map_err(|_| gone())?;
        self.place = Some(found);
        Ok(found)
    }

    /// Releases the peer's address.
    async fn leave(&mut self) {
        if self.place.take().is_none() {
            return;
        }
        let (directory, number) = (Arc::clone(&self.shared.directory), self.number);
        let _ = tokio::task::spawn_blocking(move || directory.release(number)).await;
        let place = Command::Place { link: number, place: None, came: Arc::default() };
        let _ = self.shared.commands.send(place).await;
    }

    /// Returns the address to which packets are sent now.
    fn place(&self) -> io::Result<PeerEndpoint> {
        self.place.ok_or_else(|| io::Error::other("it has no address"))
    }

    async fn call(&self, place: PeerEndpoint) -> io::Result<TlsStream<TcpStream>> {
        let to = SocketAddr::from((place.address, place.port));
        let options = TcpOptions { from: Some(place.local), ..TcpOptions::default() };
        let call = async {
            let tcp = loop {
                if let Ok(tried) = timeout(TRY_TIME, connect(to, &options)).await {
                    break tried?;
                }
            };
            self.shared.identity.connect(tcp, Role::Site, &self.peer.name).await
        };
        let mut end = self.end.clone();
        let connected = tokio::select! {
            connected = timeout(CONNECT_TIME, call) => connected,
            _ = end.changed() => return Err(io::ErrorKind::Interrupted.into()),
        };
        match connected {
            Ok(Ok(stream)) => Ok(stream),
            // `explain` includes the address.
            Ok(Err(error)) => Err(io::Error::other(explain("its agent", &error))),
            Err(_) => Err(io::Error::other(format!("its agent at {to} does not answer"))),
        }
    }

    /// Stores and logs that packets of up to `mtu` bytes travel in datagrams. An unchanged state is
    /// logged once.
    fn show_up(&self, mtu: usize) {
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        if shown.up.is_none() {
            shown.since = std::time::Instant::now();
            let name = &self.peer.name;
            tracing::info!("{name}: TCP goes over every path, in packets of up to {mtu} bytes");
        }
        (shown.up, shown.why) = (Some(mtu), None);
    }

    /// Stores, counts and logs why packets take the ordinary route. An unchanged state is logged
    /// once.
    fn show_down(&self, cause: Cause, why: String) {
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        let is_known = shown.why.as_ref() == Some(&why);
        // A failing link first reports the cause, then closes the connection with the same message.
        // The close is therefore not counted as a second failure.
        if cause != Cause::Closed || !is_known {
            shown.failures.count(cause);
        }
        if shown.up.take().is_some() {
            self.shared.up_seconds.observe(shown.since.elapsed().as_secs_f64());
            shown.since = std::time::Instant::now();
        }
        if !is_known {
            tracing::warn!("{}: {why}; its traffic goes the ordinary way", self.peer.name);
        }
        shown.why = Some(why);
    }

    /// Exchanges greetings, then serves the connection until it fails. Afterwards packets take the
    /// ordinary route.
    ///
    /// Errors: the reason for the end of the connection.
    async fn keep(&mut self, mut stream: TlsStream<TcpStream>, is_caller: bool) -> io::Result<()> {
        let greeted = timeout(CONNECT_TIME, greet(&mut stream, is_caller)).await;
        let channel = greeted.unwrap_or_else(|_| Err(io::Error::other("its agent does not greet")))?;
        let keys = seal::channel(&stream, channel).map_err(io::Error::other)?;
        let (reply, is_free) = oneshot::channel();
        let open = Command::Open { link: self.number, channel: Box::new(keys), reply };
        self.shared.commands.send(open).await.map_err(|_| gone())?;
        if !is_free.await.map_err(|_| gone())? {
            return Err(io::Error::other("its agent chose a channel that another one has"));
        }
        let guard = self.shared.identity.guard(stream.get_ref().1);
        let talked = guard.during(self.talk(&mut stream)).await;
        let talked = talked.unwrap_or_else(|reason| Err(io::Error::other(reason)));
        let _ = self.limit(None).await;
        let _ = self.shared.commands.send(Command::Close { link: self.number, channel }).await;
        talked
    }

    /// Moves the peer's packets into datagrams of up to `bytes`, or back to the ordinary route.
    async fn limit(&self, bytes: Option<usize>) -> io::Result<()> {
        let set = Command::Limit { link: self.number, bytes };
        let before = *self.routed_bytes.lock().await;
        let (routing, place) = (Arc::clone(&self.shared.routing), self.place()?);
        let route = async {
            // A route change runs to its end even if this future is dropped. The lock orders the
            // next change after it.
            let mut routed_bytes = Arc::clone(&self.routed_bytes).lock_owned().await;
            let route = move || match (routed_bytes.take(), bytes) {
                (_, Some(bytes)) => {
                    // A route whose change fails may exist.
                    *routed_bytes = Some(bytes);
                    routing.up(&place, packet_max(bytes))
                }
                (Some(_), None) => routing.down(&place),
                (None, None) => Ok(()),
            };
            tokio::task::spawn_blocking(route).await.map_err(io::Error::other)?.map_err(io::Error::other)
        };
        // The order of both steps ensures that the kernel never routes packets into the device that
        // the thread would refuse: a larger limit is set before the route, a smaller one after it.
        if bytes >= before {
            self.shared.commands.send(set).await.map_err(|_| gone())?;
            route.await
        } else {
            let done = route.await;
            self.shared.commands.send(set).await.map_err(|_| gone())?;
            done
        }
    }

    /// Sends a control message in a datagram.
    async fn probe(&self, bytes: usize, says: Control) -> io::Result<()> {
        let probe = Command::Probe { link: self.number, bytes, says };
        self.shared.commands.send(probe).await.map_err(|_| gone())
    }

    async fn talk(&self, stream: &mut TlsStream<TcpStream>) -> io::Result<()> {
        let epoch = std::time::Instant::now();
        let now = || Instant::from_std(epoch.elapsed());
        let place = self.place()?;
        let to = SocketAddr::from((place.address, place.port));
        let longest = || {
            let mtu = route_mtu(to)?;
            let bytes = payload_max(mtu, to.ip()).filter(|bytes| packet_max(*bytes) >= PACKET_MIN);
            bytes.ok_or_else(|| io::Error::other(format!("the way there takes packets of {mtu} bytes only")))
        };
        let mut link = Link::new(now(), longest()?);
        let mut lately: VecDeque<(Instant, u16)> = VecDeque::new();
        let mut unread: Vec<u8> = Vec::new();
        let mut end = self.end.clone();
        let mut said = self.came.said.subscribe();
        let mut faults = self.shared.faults.clone();
        link.handle_fault(now(), *faults.borrow_and_update());
        loop {
            while let Some(action) = link.poll_action() {
                match action {
                    Action::Say(message) => say(stream, message).await?,
                    Action::Probe(bytes, says) => self.probe(bytes, says).await?,
                    Action::Up(bytes) => {
                        self.limit(Some(bytes)).await?;
                        self.show_up(packet_max(bytes));
                    }
                    Action::Down(why) => {
                        self.limit(None).await?;
                        self.show_down(why.into(), why.to_string());
                    }
                    Action::Close(why) => return Err(io::Error::other(why.to_string())),
                }
            }
            let due = link.poll_timeout().unwrap_or(Instant::MAX).saturating_since(now()).to_std();
            tokio::select! {
                read = stream.read_buf(&mut unread) => {
                    if read? == 0 {
                        return Err(io::Error::other("its agent went away"));
                    }
                    while let Some((message, length)) = Control::decode(&unread).map_err(io::Error::other)? {
                        unread.drain(..length);
                        link.handle_message(now(), message);
                    }
                    if unread.len() > UNREAD_MAX {
                        return Err(io::Error::other("its agent says what is no message"));
                    }
                }
                () = sleep(due) => {
                    let now = now();
                    let longest_now = self.came.longest.swap(0, Relaxed).min(usize::from(u16::MAX)) as u16;
                    lately.push_back((now, longest_now));
                    lately.retain(|(at, _)| now.saturating_since(*at) < LATELY);
                    let lately = lately.iter().map(|(_, bytes)| *bytes).max().unwrap_or_default();
                    link.handle_longest(now, longest()?);
                    link.handle_timeout(now, lately, self.came.count.load(Relaxed));
                    if self.came.is_worn_out.load(Relaxed) {
                        return Err(io::Error::other("its keys are worn out: new ones follow"));
                    }
                }
                _ = said.changed() => {
                    let says = *said.borrow_and_update();
                    if let Some(says) = says {
                        link.handle_message(now(), says);
                    }
                }
                Ok(()) = faults.changed() => link.handle_fault(now(), *faults.borrow_and_update()),
                _ = end.changed() => {
                    // The end is announced in datagrams and over the connection, as `link` expects.
                    for _ in 0..BYES {
                        self.probe(0, Control::Bye).await?;
                    }
                    say(stream, Control::Bye).await?;
                    let _ = stream.shutdown().await;
                    return Ok(());
                }
            }
        }
    }
}

async fn say(stream: &mut TlsStream<TcpStream>, message: Control) -> io::Result<()> {
    let mut bytes = Vec::new();
    message.encode(&mut bytes);
    stream.write_all(&bytes).await?;
    stream.flush().await
}

/// Finds the peer's address, and this host's source address towards it. The last address is kept if
/// the name still resolves to it.
///
/// Errors: no address, no route to it, or an address that belongs to no other host.
async fn find(peer: &Peer, listen: SocketAddr, last: Option<PeerEndpoint>) -> io::Result<PeerEndpoint> {
    let found = lookup_host((peer.host.as_str(), peer.port)).await;
    let found: Vec<SocketAddr> = found
        .map_err(|_| io::Error::other(format!("no address of `{}`: check the name", peer.host)))?
        // An agent that listens on one address, or on all IPv4 addresses, can only be reached by
        // that address family.
        .filter(|to| listen.is_ipv4() == to.is_ipv4() || listen.is_ipv6() && listen.ip().is_unspecified())
        .collect();
    let kept = found.iter().find(|to| last.is_some_and(|last| last.address == to.ip()));
    let no_address = || {
        io::Error::other(format!(
            "`{}` has no address that an agent on {listen} reaches: give --listen '[::]'",
            peer.host
        ))
    };
    let to = *kept.or(found.first()).ok_or_else(no_address)?;
    let local = || {
        let any: IpAddr =
            if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        // Peers accept connections only from the address in their configuration, which is the
        // address that this agent listens on.
        let from = Some(listen.ip()).filter(|from| !from.is_unspecified()).unwrap_or(any);
        let socket = std::net::UdpSocket::bind((from, 0))?;
        socket.connect(to)?;
        Ok(socket.local_addr()?.ip())
    };
    let no_way = |error| io::Error::other(format!("no way to {}: {}", to.ip(), cause(&error)));
    let local = local().map_err(no_way)?;
    if local == to.ip() || to.ip().is_loopback() || to.ip().is_unspecified() || to.ip().is_multicast() {
        return Err(io::Error::other(format!("{} is no other host's address", to.ip())));
    }
    Ok(PeerEndpoint { address: to.ip(), local, port: peer.port })
}

/// Agrees on a channel number, which the connecting agent draws.
async fn greet(stream: &mut TlsStream<TcpStream>, is_caller: bool) -> io::Result<ChannelId> {
    let own = ChannelId::random().map_err(io::Error::other)?;
    if is_caller {
        say(stream, Control::Hello { channel: own.0 }).await?;
    }
    let mut unread = Vec::new();
    let heard = loop {
        if stream.read_buf(&mut unread).await? == 0 {
            return Err(io::Error::other("its agent went away: does it name this host as a peer?"));
        }
        if let Some((message, length)) = Control::decode(&unread).map_err(io::Error::other)? {
            // The peer must wait for the answer to its greeting before its next message.
            if length < unread.len() {
                return Err(io::Error::other("its agent speaks before it is answered"));
            }
            break message;
        }
    };
    let Control::Hello { channel } = heard else {
        return Err(io::Error::other("its agent does not greet"));
    };
    if is_caller {
        return if channel == own.0 {
            Ok(own)
        } else {
            Err(io::Error::other("its agent chose another channel"))
        };
    }
    say(stream, Control::Hello { channel }).await?;
    Ok(ChannelId(channel))
}
