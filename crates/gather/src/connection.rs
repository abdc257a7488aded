//! A client's connection to one server: control messages over TLS, keys for datagrams.
//!
//! The client draws the channel of its datagrams, so that it has keys once TLS stands: what it wants leaves with its greeting,
//! and not a round trip later. Until the server has answered, what was written is kept. Where the server drops the connection
//! instead, all of it is written again to the next one, whose channel is another.
//!
//! A server that was called from this machine before hears TLS's first message with the first packet (TCP Fast Open, RFC 7413), where
//! its machine allows that: then the first data comes one round trip after the answer to that packet, and otherwise two.
//!
//! Leaves out: TLS's early data (RFC 8446, section 2.3), which would save one more round trip. A command would have to keep the session's
//! secrets on disk, which rustls does not hand out; who records it can send it again; and a channel whose keys two sessions had would
//! repeat packet numbers. Sessions are not resumed either, which would save processor time alone: a resumed session does not look at
//! certificates.

use crate::control::{Reader, farewell, is_away};
use crate::targets::Holder;
use anabranch_gather_proto::msg::Control;
use anabranch_net::cause::explain;
use anabranch_net::identity::{Guard, Identity};
use anabranch_net::seal::{self, Channel, ChannelId};
use anabranch_net::socket;
use anabranch_units::text::printable;
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tokio::net::TcpStream;
use tokio::sync::mpsc;

/// How long a server may take to answer.
const CONNECT_TIME: Duration = Duration::from_secs(10);
/// How often a server is greeted that drops the connection before it answers, and how long after another try.
const GREETINGS: u32 = 5;
const GREET_AGAIN: Duration = Duration::from_millis(20);
/// How often a server hears that the client is there still: those that say nothing for minutes are sent away.
const HERE_EVERY: Duration = Duration::from_secs(60);

/// A connection that opened fast says with its first bytes that nobody is there.
const NEVER_STOOD: [io::ErrorKind; 4] = [
    io::ErrorKind::ConnectionRefused,
    io::ErrorKind::HostUnreachable,
    io::ErrorKind::NetworkUnreachable,
    io::ErrorKind::TimedOut,
];

/// What a connection's reader hands on.
#[derive(Debug)]
pub enum Incoming {
    /// It stands, though the server has not answered the greeting yet.
    Connected(Box<Connected>),
    /// The server dropped it before it had answered, and there is another one in its place; what was said to the last is said to
    /// this one, too.
    Again(Box<Way>),
    /// The server has answered the greeting: it takes datagrams at this port.
    Welcome(u16),
    /// The server says something; its words are fit to be shown.
    Control(Control),
    /// Datagrams have another channel from now on, as the last one's keys wear out.
    Channel(Box<Channel>),
    /// It is over, or never stood; why, in one line that begins with what the server did.
    Lost(String),
}

/// Where a server is, and how datagrams go there.
#[derive(Debug)]
pub struct Way {
    /// The server's name, as its certificate says, fit to be shown.
    pub name: String,
    /// Where it takes feedback: at the port of its stream, until it names another.
    pub datagrams_to: SocketAddr,
    /// How datagrams are sealed and opened.
    pub channel: Channel,
    /// The round trip.
    pub rtt: Duration,
}

/// A connection that stands.
#[derive(Debug)]
pub struct Connected {
    /// Where it leads.
    pub way: Way,
    /// The channel before, whose last datagrams may be on their way.
    pub last_channel: Option<Channel>,
    /// Messages for it. Bounded by what a fetch asks: at most one question of a kind for each object, and two messages for
    /// each pull.
    pub control: mpsc::UnboundedSender<Control>,
}

impl Connected {
    /// What opens datagrams of a channel, if it is the last one or the one before.
    pub fn opener(&mut self, id: Option<ChannelId>) -> Option<&mut seal::Opener> {
        let all = [Some(&mut self.way.channel), self.last_channel.as_mut()];
        all.into_iter()
            .flatten()
            .map(|channel| &mut channel.opener)
            .find(|opener| Some(opener.channel()) == id)
    }
}

/// Connects to `holder` and reads what it says; all of it goes to `incoming` with `server` beside it.
pub async fn run(identity: Identity, holder: String, server: u32, incoming: mpsc::Sender<(u32, Incoming)>) {
    let lost =
        converse(&identity, &holder, server, &incoming).await.unwrap_or_else(|error| error.to_string());
    // Nobody listens any more: the command is at its end.
    let _ = incoming.send((server, Incoming::Lost(lost))).await;
}

/// Speaks with a server until the connection is over; why it is.
async fn converse(
    identity: &Identity,
    holder: &str,
    server: u32,
    incoming: &mpsc::Sender<(u32, Incoming)>,
) -> Result<String, ConnectError> {
    let (control, mut messages) = mpsc::unbounded_channel();
    let hand_on = async |what| incoming.send((server, what)).await.map_err(|_| ConnectError::NotHeard);
    let mut begun =
        Begun { server, incoming, control: Some(control), messages: &mut messages, said: Vec::new() };
    let Greeted { mut reader, mut guard, port } = patiently(identity, holder, Some(&mut begun)).await?;
    drop(begun);
    hand_on(Incoming::Welcome(port)).await?;
    let mut here = tokio::time::interval(HERE_EVERY);
    // Once for the connection, as to begin it checks the server's certificate.
    let mut withdrawn = std::pin::pin!(guard.withdrawn());
    let gone = |error: io::Error| ConnectError::Gone(farewell(&error));
    loop {
        tokio::select! {
            message = reader.exchange() => match message.map_err(gone)? {
                Some(Control::Channel { channel }) => {
                    let channel = seal::channel(reader.get_ref(), ChannelId(channel))?;
                    hand_on(Incoming::Channel(Box::new(channel))).await?;
                }
                Some(Control::Goodbye { reason }) => {
                    return Ok(format!("it closed the connection: {}", printable(&reason)));
                }
                Some(message) => hand_on(Incoming::Control(shown(message))).await?,
                None => return Ok("it closed the connection".to_owned()),
            },
            message = messages.recv() => match message {
                None => return Ok("nobody asks it for anything".to_owned()),
                Some(first) => {
                    reader.queue([first]);
                    reader.queue(std::iter::from_fn(|| messages.try_recv().ok()));
                }
            },
            _ = here.tick() => reader.queue([Control::Here]),
            reason = &mut withdrawn => return Ok(reason),
        }
    }
}

/// The message with reasons that are fit to be shown. Names stay: they are compared.
fn shown(mut message: Control) -> Control {
    let reason = match &mut message {
        Control::Refused { reason, .. } | Control::GaveUp { reason, .. } => reason,
        Control::Described { found: Err(reason), .. } | Control::ListEnd { next: Err(reason) } => reason,
        _ => return message,
    };
    *reason = printable(reason).into_owned();
    message
}

/// A connection over which a greeting has gone.
struct Opened {
    /// What the server says next.
    reader: Reader<tokio_rustls::TlsStream<TcpStream>>,
    /// Tells when the server is trusted no more.
    guard: Guard,
}

/// A server that has answered a greeting.
pub struct Greeted {
    /// What it says next.
    pub reader: Reader<tokio_rustls::TlsStream<TcpStream>>,
    /// Tells when the server is trusted no more.
    guard: Guard,
    /// Where it takes datagrams.
    port: u16,
}

/// What a client has to say before the server has answered its greeting.
struct Begun<'a> {
    server: u32,
    /// Hears of each connection.
    incoming: &'a mpsc::Sender<(u32, Incoming)>,
    /// Where messages for it come in: handed on with the first connection.
    control: Option<mpsc::UnboundedSender<Control>>,
    messages: &'a mut mpsc::UnboundedReceiver<Control>,
    /// What was said. Bounded as `messages` are.
    said: Vec<Control>,
}

impl Begun<'_> {
    /// Tells of a connection.
    async fn connected(&mut self, way: Way) -> Result<(), ConnectError> {
        let what = match self.control.take() {
            Some(control) => Incoming::Connected(Box::new(Connected { way, last_channel: None, control })),
            None => Incoming::Again(Box::new(way)),
        };
        self.incoming.send((self.server, what)).await.map_err(|_| ConnectError::NotHeard)
    }

    /// Says what the client wants, also what it has said to a connection before, until the server answers the greeting.
    ///
    /// Errors: [`ConnectError::Dropped`], after which all of it may be said to another connection; what the server says instead.
    async fn welcomed(&mut self, opened: Opened) -> Result<Greeted, ConnectError> {
        let Opened { mut reader, mut guard } = opened;
        let mut unsaid = self.said.clone();
        // One that takes in nothing more may have said why.
        let mut is_deaf = false;
        loop {
            if !is_deaf {
                is_deaf = reader.write(std::mem::take(&mut unsaid)).await.is_err();
            }
            tokio::select! {
                biased;
                port = welcome(&mut reader) => return Ok(Greeted { reader, guard, port: port? }),
                reason = guard.withdrawn() => return Err(ConnectError::Untrusted(reason)),
                message = self.messages.recv() => {
                    unsaid = vec![message.ok_or(ConnectError::NotHeard)?];
                    unsaid.extend(std::iter::from_fn(|| self.messages.try_recv().ok()));
                    self.said.extend(unsaid.iter().cloned());
                }
            }
        }
    }
}

/// Reads a server's answer to a greeting: the port at which it takes datagrams. What has come of it is kept if this is dropped.
///
/// Errors: it is none, or there is none.
async fn welcome(reader: &mut Reader<tokio_rustls::TlsStream<TcpStream>>) -> Result<u16, ConnectError> {
    // Servers of before go away where a greeting is of another version.
    let more = |error: &io::Error| {
        if is_away(error) { " when it was greeted: does it have this release?" } else { "" }
    };
    let gone = |error: io::Error| ConnectError::Dropped(farewell(&error) + more(&error));
    match reader.next().await.map_err(gone)? {
        Some(Control::Welcome { port }) => Ok(port),
        Some(Control::Goodbye { reason }) => Err(ConnectError::TurnedAway(printable(&reason).into_owned())),
        Some(_) => Err(ConnectError::OtherVersion),
        None => Err(ConnectError::Closed),
    }
}

/// Why there is no connection to a server, or no longer: what the server did. Shown, it is one line without the server's
/// name.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// It did not answer within so many seconds.
    #[error("no answer in {0} s: deadline has elapsed")]
    Silent(u64),
    /// Its name leads nowhere.
    #[error("no such host")]
    NoSuchHost,
    /// Nothing takes a connection there.
    #[error("it cannot be reached ({0}): does `anabranch gather serve` run there?")]
    Unreachable(io::ErrorKind),
    /// One of the two does not trust the other's certificate: why.
    #[error("{0}")]
    Untrusted(String),
    /// It closed the connection before it had answered the greeting, in its words.
    #[error("it {0}")]
    Dropped(String),
    /// A server of another name answers.
    #[error("server `{name}` answers there, not `{expected}`: check the address, or the name before the @")]
    OtherName {
        /// The name in its certificate.
        name: String,
        /// The one that was asked for.
        expected: String,
    },
    /// It has no room for more clients, or speaks another version: its words.
    #[error("it does not let this client in: {0}")]
    TurnedAway(String),
    /// It answers with something else than a welcome.
    #[error("it does not answer as a server of this version does")]
    OtherVersion,
    /// It closed the connection in place of an answer.
    #[error("it closed the connection: does it have this release?")]
    Closed,
    /// A connection that stood is over: what it did.
    #[error("it {0}")]
    Gone(String),
    /// Datagrams cannot be sealed.
    #[error(transparent)]
    Seal(#[from] seal::SealError),
    /// Nobody listens to what it says.
    #[error("channel closed")]
    NotHeard,
}

/// Connects to a server, and greets it. What it answers is waited for.
///
/// Errors: one line, without the holder.
pub async fn greet(identity: &Identity, holder: &str) -> Result<Greeted, ConnectError> {
    patiently(identity, holder, None).await
}

/// Tries to connect; some times, where the server drops the connection before it answers: one with many silent connections makes
/// room by that.
async fn patiently(
    identity: &Identity,
    holder: &str,
    mut begun: Option<&mut Begun<'_>>,
) -> Result<Greeted, ConnectError> {
    let tries = async {
        let mut left = GREETINGS;
        loop {
            left -= 1;
            match attempt(identity, holder, begun.as_deref_mut()).await {
                Err(ConnectError::Dropped(_)) if left > 0 => tokio::time::sleep(GREET_AGAIN).await,
                other => return other,
            }
        }
    };
    let greeted = tokio::time::timeout(CONNECT_TIME, tries).await;
    greeted.unwrap_or(Err(ConnectError::Silent(CONNECT_TIME.as_secs())))
}

/// Connects once, and waits for the answer to the greeting; what has begun meanwhile goes on.
async fn attempt(
    identity: &Identity,
    holder: &str,
    begun: Option<&mut Begun<'_>>,
) -> Result<Greeted, ConnectError> {
    let (mut opened, way) = open(identity, Holder::of(holder)).await?;
    let Some(begun) = begun else {
        let port = welcome(&mut opened.reader).await?;
        return Ok(Greeted { reader: opened.reader, guard: opened.guard, port });
    };
    begun.connected(way).await?;
    begun.welcomed(opened).await
}

/// Connects to a server and says a greeting, without waiting for the answer.
async fn open(identity: &Identity, holder: Holder<'_>) -> Result<(Opened, Way), ConnectError> {
    let address = tokio::net::lookup_host(holder.at).await.ok().and_then(|mut all| all.next());
    let address = address.ok_or(ConnectError::NoSuchHost)?;
    // What leaves first begins TLS's handshake, which may come twice.
    let options = socket::TcpOptions { opens_fast: true, ..socket::TcpOptions::default() };
    let tcp =
        socket::connect(address, &options).await.map_err(|error| ConnectError::Unreachable(error.kind()))?;
    let connected = Instant::now();
    let (stream, peer) = identity.connect_to_site(tcp).await.map_err(|error| {
        let is_ours = error.get_ref().is_some_and(|inner| inner.is::<tokio_rustls::rustls::Error>());
        if is_ours {
            ConnectError::Untrusted(explain("it", &error))
        } else if NEVER_STOOD.contains(&error.kind()) {
            ConnectError::Unreachable(error.kind())
        } else {
            ConnectError::Dropped(farewell(&error))
        }
    })?;
    let rtt = round_trip(socket::rtt(stream.get_ref().0), connected.elapsed());
    let name = printable(&peer.name).into_owned();
    // Before a word is said: any server's certificate is good for any address.
    if let Some(expected) = holder.name.filter(|expected| peer.name != *expected) {
        return Err(ConnectError::OtherName { name, expected: expected.to_owned() });
    }
    let guard = identity.guard(stream.get_ref().1);
    let id = ChannelId::random()?;
    let channel = seal::channel(&stream, id)?;
    let mut reader = Reader::of_server(stream);
    let gone = |error: io::Error| ConnectError::Dropped(farewell(&error));
    reader.write([Control::Hello { channel: id.0 }]).await.map_err(gone)?;
    Ok((Opened { reader, guard }, Way { name, datagrams_to: address, channel, rtt }))
}

/// The round trip to a server: as the kernel has measured it, and no more than TLS's handshake took. That takes one, or with TCP's, where
/// that waited for it, two; the kernel counts a second and more where TCP's first packet was lost.
fn round_trip(measured: Option<Duration>, handshake: Duration) -> Duration {
    measured.map_or(handshake, |rtt| rtt.min(handshake))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// #19: of a way that loses packets one connection in ten had a round trip of a second, and a pull over it found its rate late.
    #[test]
    fn a_first_packet_that_was_lost_is_not_the_round_trip() {
        let ms = Duration::from_millis;
        assert_eq!(round_trip(Some(ms(911)), ms(28)), ms(28));
        assert_eq!(round_trip(Some(ms(20)), ms(45)), ms(20), "TCP's handshake is part of it");
        assert_eq!(round_trip(None, ms(21)), ms(21));
    }
}
