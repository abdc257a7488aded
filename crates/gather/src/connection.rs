//! A client's connection to one server: control messages over TLS, and keys for datagrams.
//!
//! The client draws the channel id of its datagrams, so its keys exist as soon as the TLS handshake
//! is complete. Its requests leave together with its greeting, one round trip earlier than after
//! the server's answer. Written messages are kept until the server has answered. If the server
//! drops the connection instead, all messages are written again to the next connection, which has
//! another channel.
//!
//! With TCP Fast Open (RFC 7413), a server to which this machine has connected before receives
//! TLS's first message in the first packet, if the server's system allows that. The first data then
//! arrives one round trip after the answer to that packet; otherwise it takes two round trips.
//!
//! Leaves out: TLS's early data (RFC 8446, section 2.3), which would save one more round trip. A
//! command would have to keep session secrets on disk, which rustls does not export. An
//! eavesdropper could replay the data. A channel whose keys two sessions share would repeat packet
//! numbers. Sessions are not resumed either. Resumption would save processing time only, and a
//! resumed session does not check certificates.

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
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::timeout;

/// Maximum time for each of a server's first answers: to TCP, to TLS, and to the greeting. From TLS
/// on, the shorter limit of silence applies to descriptions.
///
/// TCP sends its SYN six times in a minute (RFC 6298, section 5.5). If 30 % of the packets are lost
/// in each direction, all six SYNs fail in 2 % of the cases. Four SYNs, which fit into 10 s, fail
/// in 7 %.
const ANSWER_TIME: Duration = Duration::from_secs(60);
/// Minimum of that time if the user sets the limit of silence.
pub const ANSWER_TIME_MIN: Duration = Duration::from_secs(10);
/// Maximum number of greetings sent to a server that drops the connection unanswered.
const GREETINGS: u32 = 5;
/// Pause between the greetings sent to a server that drops the connection unanswered.
const GREET_AGAIN: Duration = Duration::from_millis(20);
/// Interval between keep-alive messages. Servers close connections that are idle for minutes.
const HERE_EVERY: Duration = Duration::from_secs(60);

/// Errors of the first write that, with TCP Fast Open, mean that no connection was established.
const NEVER_STOOD: [io::ErrorKind; 4] = [
    io::ErrorKind::ConnectionRefused,
    io::ErrorKind::HostUnreachable,
    io::ErrorKind::NetworkUnreachable,
    io::ErrorKind::TimedOut,
];

/// Messages from a connection's task to the client that owns it.
#[derive(Debug)]
pub enum ConnectionMessage {
    /// The connection is established; the server has not answered the greeting yet.
    Connected(Box<EstablishedConnection>),
    /// The server dropped the connection before answering, and a new connection replaces it.
    /// Messages of the old connection are sent again on the new connection.
    Again(Box<DatagramPath>),
    /// The server has answered the greeting, and takes datagrams at this port.
    Welcome(u16),
    /// A control message of the server, whose reasons are printable.
    Control(Control),
    /// The next channel for datagrams, because the keys of the current channel are nearly used up.
    Channel(Box<Channel>),
    /// The connection ended, or was never established. The reason is one line that begins with the
    /// server's action.
    Lost(String),
}

/// A server's address, and the channel for datagrams.
#[derive(Debug)]
pub struct DatagramPath {
    /// The server's name in its certificate, printable.
    pub name: String,
    /// Address for feedback. Its port is the port of the TLS stream until the server names another
    /// port.
    pub datagrams_to: SocketAddr,
    /// Keys that seal and open datagrams.
    pub channel: Channel,
    /// Round-trip time.
    pub rtt: Duration,
    /// Number of bytes of control messages received so far.
    pub received: Arc<AtomicU64>,
}

/// An established connection.
#[derive(Debug)]
pub struct EstablishedConnection {
    /// Address and channel of the server.
    pub way: DatagramPath,
    /// The previous channel; its last datagrams may be in flight.
    pub last_channel: Option<Channel>,
    /// Queue of messages for the server. The queue is bounded by the requests of a fetch: one
    /// request of each kind per object, and two messages per pull.
    pub control: mpsc::UnboundedSender<Control>,
}

impl EstablishedConnection {
    /// The opener of channel `id`, if the channel is the current or the previous one.
    pub fn opener(&mut self, id: Option<ChannelId>) -> Option<&mut seal::Opener> {
        let all = [Some(&mut self.way.channel), self.last_channel.as_mut()];
        all.into_iter()
            .flatten()
            .map(|channel| &mut channel.opener)
            .find(|opener| Some(opener.channel()) == id)
    }
}

/// Connects to `holder` and forwards its messages to `incoming`, tagged with `server`.
///
/// A server that does not answer is given up after 60 s, or after `give_up`, but not before 10 s.
pub async fn run(
    identity: Identity,
    holder: String,
    server: u32,
    incoming: mpsc::Sender<(u32, ConnectionMessage)>,
    give_up: Option<Duration>,
) {
    let patience = answer_time(give_up);
    let lost = converse(&identity, &holder, server, &incoming, patience).await;
    let lost = lost.unwrap_or_else(|error| match error {
        ConnectError::Silent(_) => format!("{error}: --give-up TIME waits longer"),
        _ => error.to_string(),
    });
    // A closed receiver means that the command is ending.
    let _ = incoming.send((server, ConnectionMessage::Lost(lost))).await;
}

/// Maximum time for each of a server's first answers.
fn answer_time(give_up: Option<Duration>) -> Duration {
    give_up.map_or(ANSWER_TIME, |time| time.max(ANSWER_TIME_MIN))
}

/// Exchanges messages with a server until the connection ends. Returns the reason of the end.
async fn converse(
    identity: &Identity,
    holder: &str,
    server: u32,
    incoming: &mpsc::Sender<(u32, ConnectionMessage)>,
    patience: Duration,
) -> Result<String, ConnectError> {
    let (control, mut messages) = mpsc::unbounded_channel();
    let hand_on = async |what| incoming.send((server, what)).await.map_err(|_| ConnectError::NotHeard);
    let mut begun = StartedConnection {
        server,
        incoming,
        control: Some(control),
        messages: &mut messages,
        said: Vec::new(),
    };
    let GreetedServer { mut reader, mut guard, port } =
        patiently(identity, holder, patience, Some(&mut begun)).await?;
    drop(begun);
    hand_on(ConnectionMessage::Welcome(port)).await?;
    let mut here = tokio::time::interval(HERE_EVERY);
    // Created once per connection, because creation checks the server's certificate.
    let mut withdrawn = std::pin::pin!(guard.withdrawn());
    let gone = |error: io::Error| ConnectError::Gone(farewell(&error));
    loop {
        tokio::select! {
            message = reader.exchange() => match message.map_err(gone)? {
                Some(Control::Channel { channel }) => {
                    let channel = seal::channel(reader.get_ref(), ChannelId(channel))?;
                    hand_on(ConnectionMessage::Channel(Box::new(channel))).await?;
                }
                Some(Control::Goodbye { reason }) => {
                    return Ok(format!("it closed the connection: {}", printable(&reason)));
                }
                Some(message) => hand_on(ConnectionMessage::Control(shown(message))).await?,
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

/// The message with printable reasons. Names are unchanged, because they are compared with the
/// requested names.
fn shown(mut message: Control) -> Control {
    let reason = match &mut message {
        Control::Refused { reason, .. } | Control::GaveUp { reason, .. } => reason,
        Control::Described { found: Err(reason), .. } | Control::ListEnd { next: Err(reason) } => reason,
        _ => return message,
    };
    *reason = printable(reason).into_owned();
    message
}

/// A connection on which the greeting has been sent.
struct GreetingServer {
    /// Reader of the server's messages.
    reader: Reader<tokio_rustls::TlsStream<TcpStream>>,
    /// Reports when the server is no longer trusted.
    guard: Guard,
}

/// A server that has answered the greeting.
pub struct GreetedServer {
    /// Reader of the server's further messages.
    pub reader: Reader<tokio_rustls::TlsStream<TcpStream>>,
    /// Reports when the server is no longer trusted.
    guard: Guard,
    /// Port for datagrams.
    port: u16,
}

/// Client messages sent before the server has answered the greeting.
struct StartedConnection<'a> {
    server: u32,
    /// Sender of events about each connection.
    incoming: &'a mpsc::Sender<(u32, ConnectionMessage)>,
    /// Sender of messages for the server, which is passed on with the first connection.
    control: Option<mpsc::UnboundedSender<Control>>,
    messages: &'a mut mpsc::UnboundedReceiver<Control>,
    /// Messages sent so far, which the next try repeats. Bounded like `messages`.
    said: Vec<Control>,
}

impl StartedConnection<'_> {
    /// Reports an established connection to the client.
    async fn connected(&mut self, way: DatagramPath) -> Result<(), ConnectError> {
        let what = match self.control.take() {
            Some(control) => ConnectionMessage::Connected(Box::new(EstablishedConnection {
                way,
                last_channel: None,
                control,
            })),
            None => ConnectionMessage::Again(Box::new(way)),
        };
        self.incoming.send((self.server, what)).await.map_err(|_| ConnectError::NotHeard)
    }

    /// Sends the client's messages, earlier ones included, until the server answers the greeting.
    ///
    /// Errors: [`ConnectError::Dropped`], after which all messages may be sent on another
    /// connection; or the server's other answer.
    async fn welcomed(&mut self, opened: GreetingServer) -> Result<GreetedServer, ConnectError> {
        let GreetingServer { mut reader, mut guard } = opened;
        let mut unsaid = self.said.clone();
        // A server that has stopped reading may still have sent its reason.
        let mut is_deaf = false;
        loop {
            if !is_deaf {
                is_deaf = reader.write(std::mem::take(&mut unsaid)).await.is_err();
            }
            tokio::select! {
                biased;
                port = welcome(&mut reader) => return Ok(GreetedServer { reader, guard, port: port? }),
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

/// Reads the server's answer to a greeting: the port for datagrams. Cancel safe: bytes of a partial
/// message are kept.
///
/// Errors: the server sent another message, or the stream ended.
async fn welcome(reader: &mut Reader<tokio_rustls::TlsStream<TcpStream>>) -> Result<u16, ConnectError> {
    // Older servers close the connection at a greeting of another version.
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

/// The reason why a connection failed or ended, as the server's action. Displays as one line
/// without the server's name.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// No answer within this many seconds.
    #[error("no answer in {0} s")]
    Silent(u64),
    /// The host's name does not resolve.
    #[error("no such host")]
    NoSuchHost,
    /// No server accepts a connection at the address.
    #[error("it cannot be reached ({0}): does `anabranch gather serve` run there?")]
    Unreachable(io::ErrorKind),
    /// One side rejects the certificate of the other side, for this reason.
    #[error("{0}")]
    Untrusted(String),
    /// The server closed the connection before answering the greeting; the reason.
    #[error("it {0}")]
    Dropped(String),
    /// Another server than the expected one answers at the address.
    #[error("server `{name}` answers there, not `{expected}`: check the address, or the name before the @")]
    OtherName {
        /// Name in the answering server's certificate.
        name: String,
        /// Name that was expected.
        expected: String,
    },
    /// The server refuses this client, because it has no room or another version; its reason.
    #[error("it does not let this client in: {0}")]
    TurnedAway(String),
    /// The server's first message is not a welcome.
    #[error("it does not answer as a server of this version does")]
    OtherVersion,
    /// The server closed the connection instead of answering.
    #[error("it closed the connection: does it have this release?")]
    Closed,
    /// An established connection ended; the server's action.
    #[error("it {0}")]
    Gone(String),
    /// Datagrams cannot be sealed.
    #[error(transparent)]
    Seal(#[from] seal::SealError),
    /// The receiver of the connection's events was dropped.
    #[error("channel closed")]
    NotHeard,
}

/// Connects to a server, greets it and waits for the answer.
///
/// Errors: one line, without the holder.
pub async fn greet(identity: &Identity, holder: &str) -> Result<GreetedServer, ConnectError> {
    greet_within(identity, holder, None).await
}

/// Does the same as [`greet`], but gives a silent server up after `give_up`, and not before 10 s.
///
/// Errors: see [`greet`].
pub async fn greet_within(
    identity: &Identity,
    holder: &str,
    give_up: Option<Duration>,
) -> Result<GreetedServer, ConnectError> {
    patiently(identity, holder, answer_time(give_up), None).await
}

/// Connects to a server that must give each first answer within `patience`. Further tries are made
/// if the server drops the connection unanswered, as a server with many silent connections does to
/// free a slot.
async fn patiently(
    identity: &Identity,
    holder: &str,
    patience: Duration,
    mut begun: Option<&mut StartedConnection<'_>>,
) -> Result<GreetedServer, ConnectError> {
    let mut left = GREETINGS;
    loop {
        left -= 1;
        match attempt(identity, holder, patience, begun.as_deref_mut()).await {
            Err(ConnectError::Dropped(_)) if left > 0 => tokio::time::sleep(GREET_AGAIN).await,
            other => return other,
        }
    }
}

/// The result of `answer`, if it is available within `patience`.
async fn within<T>(
    patience: Duration,
    answer: impl Future<Output = Result<T, ConnectError>>,
) -> Result<T, ConnectError> {
    timeout(patience, answer).await.unwrap_or(Err(ConnectError::Silent(patience.as_secs())))
}

/// Connects once and waits for the answer to the greeting. In the meantime the messages in `begun`
/// are sent.
async fn attempt(
    identity: &Identity,
    holder: &str,
    patience: Duration,
    begun: Option<&mut StartedConnection<'_>>,
) -> Result<GreetedServer, ConnectError> {
    let (mut opened, way) = open(identity, Holder::of(holder), patience).await?;
    let Some(begun) = begun else {
        let port = within(patience, welcome(&mut opened.reader)).await?;
        return Ok(GreetedServer { reader: opened.reader, guard: opened.guard, port });
    };
    begun.connected(way).await?;
    within(patience, begun.welcomed(opened)).await
}

/// Connects to a server and sends the greeting, without waiting for the answer.
async fn open(
    identity: &Identity,
    holder: Holder<'_>,
    patience: Duration,
) -> Result<(GreetingServer, DatagramPath), ConnectError> {
    let addresses = within(patience, async {
        anabranch_net::address::lookup(holder.at).await.map_err(|_| ConnectError::NoSuchHost)
    });
    let address = addresses.await?.first().copied().ok_or(ConnectError::NoSuchHost)?;
    // TCP Fast Open may deliver the first bytes twice, which does no harm in a TLS handshake.
    let options = socket::TcpOptions { opens_fast: true, ..socket::TcpOptions::default() };
    let tcp = within(patience, async {
        socket::connect(address, &options).await.map_err(|error| ConnectError::Unreachable(error.kind()))
    });
    let tcp = tcp.await?;
    let connected = Instant::now();
    let shaken = within(patience, async { Ok(identity.connect_to_site(tcp).await) }).await?;
    let (stream, peer) = shaken.map_err(|error| {
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
    // The name is checked before any message is sent, because a trusted server's certificate is
    // valid for any address.
    if let Some(expected) = holder.name.filter(|expected| peer.name != *expected) {
        return Err(ConnectError::OtherName { name, expected: expected.to_owned() });
    }
    let guard = identity.guard(stream.get_ref().1);
    let id = ChannelId::random()?;
    let channel = seal::channel(&stream, id)?;
    let mut reader = Reader::of_server(stream);
    let gone = |error: io::Error| ConnectError::Dropped(farewell(&error));
    reader.write([Control::Hello { channel: id.0 }]).await.map_err(gone)?;
    let received = reader.received();
    Ok((
        GreetingServer { reader, guard },
        DatagramPath { name, datagrams_to: address, channel, rtt, received },
    ))
}

/// Round-trip time to a server: the kernel's measurement, but at most the duration of TLS's
/// handshake. The handshake takes one round trip, or two if it waits for TCP's handshake. The
/// kernel's measurement exceeds a second if TCP's first packet was lost.
fn round_trip(measured: Option<Duration>, handshake: Duration) -> Duration {
    measured.map_or(handshake, |rtt| rtt.min(handshake))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Issue #19: on a lossy path one connection in ten had a measured round trip of a second, and
    /// its pull found its rate late.
    #[test]
    fn lost_first_packet_does_not_count_as_round_trip() {
        let ms = Duration::from_millis;
        assert_eq!(round_trip(Some(ms(911)), ms(28)), ms(28));
        assert_eq!(round_trip(Some(ms(20)), ms(45)), ms(20), "TCP's handshake is part of it");
        assert_eq!(round_trip(None, ms(21)), ms(21));
    }
}
