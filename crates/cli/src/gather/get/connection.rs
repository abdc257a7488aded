//! A client's connection to one server: control messages over TLS, keys for datagrams.

use super::targets::Holder;
use crate::gather::control::{Reader, farewell};
use anabranch_gather::msg::Control;
use anabranch_net::identity::{Guard, Identity};
use anabranch_net::seal::{self, Channel, ChannelId};
use anabranch_units::text::printable;
use anyhow::{Context as _, anyhow, bail, ensure};
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

/// What a connection's reader hands on.
#[derive(Debug)]
pub enum Incoming {
    /// It stands.
    Connected(Box<Connected>),
    /// The server says something; its words are fit to be shown.
    Control(Control),
    /// Datagrams have another channel from now on, as the last one's keys wear out.
    Channel(Box<Channel>),
    /// It is over, or never stood; why, in one line that begins with what the server did.
    Lost(String),
}

/// A connection that stands.
#[derive(Debug)]
pub struct Connected {
    /// The server's name, as its certificate says.
    pub name: String,
    /// Where it takes feedback.
    pub datagrams_to: SocketAddr,
    /// How datagrams are sealed and opened.
    pub channel: Channel,
    /// The channel before, whose last datagrams may be on their way.
    pub last_channel: Option<Channel>,
    /// Messages for it.
    pub control: mpsc::UnboundedSender<Control>,
    /// How long TCP's handshake took.
    pub rtt: Duration,
}

impl Connected {
    /// What opens datagrams of a channel, if it is the last one or the one before.
    pub fn opener(&mut self, id: Option<ChannelId>) -> Option<&mut seal::Opener> {
        let all = [Some(&mut self.channel), self.last_channel.as_mut()];
        all.into_iter()
            .flatten()
            .map(|channel| &mut channel.opener)
            .find(|opener| Some(opener.channel()) == id)
    }
}

/// Connects to `holder` and reads what it says; all of it goes to `incoming` with `server` beside it.
pub async fn run(identity: Identity, holder: String, server: u32, incoming: mpsc::Sender<(u32, Incoming)>) {
    let lost = match converse(&identity, &holder, server, &incoming).await {
        Ok(reason) => reason,
        Err(error) => format!("{error:#}"),
    };
    // Nobody listens any more: the command is at its end.
    let _ = incoming.send((server, Incoming::Lost(lost))).await;
}

/// Speaks with a server until the connection is over; why it is.
async fn converse(
    identity: &Identity,
    holder: &str,
    server: u32,
    incoming: &mpsc::Sender<(u32, Incoming)>,
) -> anyhow::Result<String> {
    let greeted = greet(identity, holder).await?;
    let Greeted { mut reader, mut guard, name, channel, datagrams_to, rtt } = greeted;
    let (control, mut messages) = mpsc::unbounded_channel();
    let channel = seal::channel(reader.get_ref(), channel)?;
    let connected = Connected { name, datagrams_to, channel, last_channel: None, control, rtt };
    incoming.send((server, Incoming::Connected(Box::new(connected)))).await?;
    let mut here = tokio::time::interval(HERE_EVERY);
    let gone = |error: std::io::Error| anyhow!("it {}", farewell(&error));
    loop {
        tokio::select! {
            message = reader.next() => match message.map_err(gone)? {
                Some(Control::Channel { channel }) => {
                    let channel = seal::channel(reader.get_ref(), ChannelId(channel))?;
                    incoming.send((server, Incoming::Channel(Box::new(channel)))).await?;
                }
                Some(Control::Goodbye { reason }) => {
                    return Ok(format!("it closed the connection: {}", printable(&reason)));
                }
                Some(message) => incoming.send((server, Incoming::Control(shown(message)))).await?,
                None => return Ok("it closed the connection".to_owned()),
            },
            message = messages.recv() => match message {
                None => return Ok("nobody asks it for anything".to_owned()),
                Some(first) => {
                    let mut all = vec![first];
                    while let Ok(next) = messages.try_recv() {
                        all.push(next);
                    }
                    reader.write(all).await.map_err(gone)?;
                }
            },
            _ = here.tick() => reader.write([Control::Here]).await.map_err(gone)?,
            reason = guard.withdrawn() => return Ok(reason),
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

/// A server that has answered a greeting.
pub struct Greeted {
    /// What it says next.
    pub reader: Reader<tokio_rustls::TlsStream<TcpStream>>,
    /// Tells when the server is trusted no more.
    guard: Guard,
    /// Its name, as its certificate says, fit to be shown.
    pub name: String,
    /// The channel of its datagrams.
    channel: ChannelId,
    /// Where it takes feedback.
    datagrams_to: SocketAddr,
    /// How long TCP's handshake took.
    rtt: Duration,
}

/// The server closed the connection before it had answered the greeting.
#[derive(Debug)]
struct Dropped(String);

impl std::fmt::Display for Dropped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}
impl std::error::Error for Dropped {}

/// Connects to a server, and greets it; some times, where the server drops the connection first: one with many silent
/// connections makes room by that.
///
/// Errors: one line, without the holder.
pub async fn greet(identity: &Identity, holder: &str) -> anyhow::Result<Greeted> {
    let tries = async {
        for _ in 1..GREETINGS {
            match connect(identity, Holder::of(holder)).await {
                Err(error) if error.is::<Dropped>() => tokio::time::sleep(GREET_AGAIN).await,
                other => return other,
            }
        }
        connect(identity, Holder::of(holder)).await
    };
    let greeted = tokio::time::timeout(CONNECT_TIME, tries).await;
    greeted.with_context(|| format!("no answer in {} s", CONNECT_TIME.as_secs()))?
}

async fn connect(identity: &Identity, holder: Holder<'_>) -> anyhow::Result<Greeted> {
    let address = tokio::net::lookup_host(holder.at).await.ok().and_then(|mut all| all.next());
    let address = address.context("no such host")?;
    let begun = Instant::now();
    let options = anabranch_net::socket::TcpOptions::default();
    let tcp = anabranch_net::socket::connect(address, &options).await.map_err(|error| {
        anyhow!("it cannot be reached ({}): does `anabranch gather serve` run there?", error.kind())
    })?;
    let rtt = begun.elapsed();
    let (stream, peer) = identity.connect_to_site(tcp).await.map_err(|error| {
        let is_ours = error.get_ref().is_some_and(|inner| inner.is::<tokio_rustls::rustls::Error>());
        if is_ours {
            anyhow!(anabranch_net::tls::explain("it", &error))
        } else {
            anyhow!(Dropped(format!("it {}", farewell(&error))))
        }
    })?;
    let name = printable(&peer.name).into_owned();
    // Before a word is said: any server's certificate is good for any address.
    if let Some(expected) = holder.name {
        ensure!(
            peer.name == expected,
            "server `{name}` answers there, not `{expected}`: check the address, or the name before the @"
        );
    }
    let guard = identity.guard(stream.get_ref().1);
    let mut reader = Reader::new(stream);
    let gone = |error: std::io::Error| anyhow!(Dropped(format!("it {}", farewell(&error))));
    reader.write([Control::Hello]).await.map_err(gone)?;
    let (port, channel) = match reader.next().await.map_err(gone)? {
        Some(Control::Welcome { port, channel }) => (port, ChannelId(channel)),
        Some(Control::Goodbye { reason }) => bail!("it lets nobody in now: {}", printable(&reason)),
        Some(_) => bail!("it does not answer as a server of this version does"),
        None => bail!("it closed the connection: does it have this release?"),
    };
    let datagrams_to = SocketAddr::new(address.ip(), port);
    Ok(Greeted { reader, guard, name, channel, datagrams_to, rtt })
}
