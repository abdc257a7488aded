//! A peer's agent: who calls, what is said, and what the kernel's routes become of it.
//!
//! Of two agents the one with the lesser name calls, again and again; the other one waits. Each connection has one channel, so its end is
//! the end of the datagrams' keys, and a key that wears out is followed by another connection. Meanwhile packets go the ordinary way.
//! Leaves out: what to say, and what follows from what is heard (`spray_proto::link`). Read [`Session::keep`] first.

use crate::forward::{Came, Command, packet_max};
use crate::routing::Routing;
use anabranch_net::cause::{cause, explain};
use anabranch_net::datagram::{payload_max, route_mtu};
use anabranch_net::identity::Identity;
use anabranch_net::keys::Role;
use anabranch_net::seal::{self, ChannelId};
use anabranch_net::socket::{TcpOptions, connect};
use anabranch_net::tls;
use anabranch_sessions::Backoff;
use anabranch_spray_proto::control::Control;
use anabranch_spray_proto::kernel::{Fault, PeerPlace};
use anabranch_spray_proto::link::{Action, Link};
use anabranch_units::{Duration, Instant};
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsStream;

/// Pauses before the peer is called again.
const BACKOFF: Backoff = Backoff::new(Duration::from_ms(100), Duration::from_secs(5));
/// A connection that stood for longer was a success: the next pause is the shortest.
const STOOD_MIN: std::time::Duration = std::time::Duration::from_secs(5);
/// How long one try to connect takes at the most: the next one goes by another port, and so perhaps by another path.
const TRY_TIME: std::time::Duration = std::time::Duration::from_secs(1);
/// How long a connection may take with all tries, and a greeting.
const CONNECT_TIME: std::time::Duration = std::time::Duration::from_secs(5);
/// A datagram that came counts as one that came lately for so long.
const LATELY: Duration = Duration::from_secs(4);
/// A longest packet below this is no way for TCP.
const PACKET_MIN: usize = 512;
/// How many datagrams say that this agent ends.
const BYES: usize = 3;
/// The most bytes of a message that has not come whole.
const UNREAD_MAX: usize = 64;

/// What is shown of a peer.
#[derive(Clone, Debug)]
pub(crate) struct Shown {
    pub(crate) up: Option<usize>,
    pub(crate) since: std::time::Instant,
    pub(crate) why: Option<String>,
}

/// What it takes to speak to one peer.
pub(crate) struct Session {
    pub(crate) number: usize,
    pub(crate) name: String,
    pub(crate) place: PeerPlace,
    pub(crate) identity: Identity,
    pub(crate) routing: Arc<Routing>,
    pub(crate) commands: mpsc::Sender<Command>,
    pub(crate) came: Arc<Came>,
    pub(crate) shown: Arc<Mutex<Shown>>,
    /// Whether its route stands, or may.
    pub(crate) is_routed: Arc<tokio::sync::Mutex<bool>>,
    /// Why no peer's packets go by datagrams, if so.
    pub(crate) faults: watch::Receiver<Option<Fault>>,
    /// True once the agent ends.
    pub(crate) end: watch::Receiver<bool>,
    /// Connections of a peer that calls.
    pub(crate) calls: mpsc::Receiver<TlsStream<TcpStream>>,
}

/// Why a connection that stood is over. No library's words.
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

/// The thread that carries packets is gone.
fn gone() -> io::Error {
    io::Error::other("the thread that carries packets has ended")
}

impl Session {
    /// Speaks to the peer until the agent ends.
    pub(crate) async fn run(mut self) {
        let is_caller = self.identity.own().name < self.name;
        let mut backoff = BACKOFF;
        while !*self.end.borrow() {
            let stream = if is_caller {
                self.call().await
            } else {
                tokio::select! {
                    call = self.calls.recv() => call.ok_or_else(gone),
                    _ = self.end.changed() => continue,
                }
            };
            let stood = match stream {
                Ok(stream) => {
                    let began = std::time::Instant::now();
                    let ended = self.keep(stream, is_caller).await;
                    if let Err(error) = ended
                        && !*self.end.borrow()
                    {
                        self.show(None, farewell(&error));
                    }
                    began.elapsed() > STOOD_MIN
                }
                Err(error) => {
                    if !*self.end.borrow() {
                        self.show(None, error.to_string());
                    }
                    false
                }
            };
            if stood {
                backoff.reset();
            }
            if is_caller {
                tokio::select! {
                    () = sleep(backoff.next_pause().to_std()) => {}
                    _ = self.end.changed() => {}
                }
            }
        }
    }

    async fn call(&self) -> io::Result<TlsStream<TcpStream>> {
        let to = SocketAddr::from((self.place.address, self.place.port));
        let call = async {
            let tcp = loop {
                if let Ok(tried) = timeout(TRY_TIME, connect(to, &TcpOptions::default())).await {
                    break tried?;
                }
            };
            self.identity.connect(tcp, Role::Site, &self.name).await
        };
        let mut end = self.end.clone();
        let connected = tokio::select! {
            connected = timeout(CONNECT_TIME, call) => connected,
            _ = end.changed() => return Err(io::ErrorKind::Interrupted.into()),
        };
        match connected {
            Ok(Ok(stream)) => Ok(stream),
            // The address is in the system's own words.
            Ok(Err(error)) => Err(io::Error::other(explain("its agent", &error))),
            Err(_) => Err(io::Error::other(format!("its agent at {to} does not answer"))),
        }
    }

    /// Says and logs that packets go by datagrams, or why they do not. The same twice is said once.
    fn show(&self, up: Option<usize>, why: String) {
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new = shown.up.is_some() != up.is_some() || (up.is_none() && shown.why.as_ref() != Some(&why));
        if shown.up.is_some() != up.is_some() {
            shown.since = std::time::Instant::now();
        }
        let name = &self.name;
        match up {
            Some(mtu) if is_new => {
                tracing::info!("{name}: TCP goes over every path, in packets of up to {mtu} bytes")
            }
            None if is_new => tracing::warn!("{name}: {why}; its traffic goes the ordinary way"),
            _ => {}
        }
        shown.up = up;
        shown.why = up.is_none().then_some(why);
    }

    /// Greets, then keeps the connection until it is of no use. Packets go the ordinary way afterwards.
    ///
    /// Errors: why it is not.
    async fn keep(&mut self, mut stream: TlsStream<TcpStream>, is_caller: bool) -> io::Result<()> {
        let greeted = timeout(CONNECT_TIME, greet(&mut stream, is_caller)).await;
        let channel = greeted.unwrap_or_else(|_| Err(io::Error::other("its agent does not greet")))?;
        let keys = seal::channel(&stream, channel).map_err(io::Error::other)?;
        let (reply, is_free) = oneshot::channel();
        let open = Command::Open { link: self.number, channel: Box::new(keys), reply };
        self.commands.send(open).await.map_err(|_| gone())?;
        if !is_free.await.map_err(|_| gone())? {
            return Err(io::Error::other("its agent chose a channel that another one has"));
        }
        let guard = self.identity.guard(stream.get_ref().1);
        let talked = guard.during(self.talk(&mut stream)).await;
        let talked = talked.unwrap_or_else(|reason| Err(io::Error::other(reason)));
        let _ = self.limit(None).await;
        let _ = self.commands.send(Command::Close { link: self.number, channel }).await;
        talked
    }

    /// Has packets go by datagrams of so many bytes, or the ordinary way.
    async fn limit(&self, bytes: Option<usize>) -> io::Result<()> {
        let set = Command::Limit { link: self.number, bytes };
        let (routing, place) = (Arc::clone(&self.routing), self.place);
        let route = async {
            // A route that is being set is set to the end, though nobody waits for it any more; what follows comes after it.
            let mut is_routed = Arc::clone(&self.is_routed).lock_owned().await;
            let route = move || match bytes {
                Some(bytes) => {
                    *is_routed = true;
                    routing.up(&place, packet_max(bytes))
                }
                None if std::mem::take(&mut *is_routed) => routing.down(&place),
                None => Ok(()),
            };
            tokio::task::spawn_blocking(route).await.map_err(io::Error::other)?.map_err(io::Error::other)
        };
        // The kernel gives the thread no packet that it would not take.
        if bytes.is_some() {
            self.commands.send(set).await.map_err(|_| gone())?;
            route.await
        } else {
            let done = route.await;
            self.commands.send(set).await.map_err(|_| gone())?;
            done
        }
    }

    /// Has a probe sent.
    async fn probe(&self, bytes: usize, says: Control) -> io::Result<()> {
        let probe = Command::Probe { link: self.number, bytes, says };
        self.commands.send(probe).await.map_err(|_| gone())
    }

    async fn talk(&self, stream: &mut TlsStream<TcpStream>) -> io::Result<()> {
        let epoch = std::time::Instant::now();
        let now = || Instant::from_std(epoch.elapsed());
        let to = SocketAddr::from((self.place.address, self.place.port));
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
        let mut faults = self.faults.clone();
        link.handle_fault(now(), *faults.borrow_and_update());
        loop {
            while let Some(action) = link.poll_action() {
                match action {
                    Action::Say(message) => say(stream, message).await?,
                    Action::Probe(bytes, says) => self.probe(bytes, says).await?,
                    Action::Up(bytes) => {
                        self.limit(Some(bytes)).await?;
                        self.show(Some(packet_max(bytes)), String::new());
                    }
                    Action::Down(why) => {
                        self.limit(None).await?;
                        self.show(None, why.to_string());
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
                    // By the connection and by others, as in `link`.
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

/// Agrees on a channel, which the caller draws.
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
            // What else it says waits for the answer.
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
