//! A client's connection to one server: control messages over TLS, keys for datagrams.

use crate::gather::control::{self, Reader};
use anabranch_gather::msg::Control;
use anabranch_net::identity::Identity;
use anabranch_net::seal::{self, Channel, ChannelId};
use anyhow::{Context as _, bail};
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tokio::net::TcpStream;
use tokio::sync::mpsc;

/// How long a server may take to answer.
const CONNECT_TIME: Duration = Duration::from_secs(10);

/// What a connection's reader hands on.
#[derive(Debug)]
pub enum Incoming {
    /// It stands.
    Connected(Box<Connected>),
    /// The server says something.
    Control(Control),
    /// It is over, or never stood; why, in one line.
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
    /// Messages for it.
    pub control: mpsc::UnboundedSender<Control>,
    /// How long TCP's handshake took.
    pub rtt: Duration,
}

/// Connects to `holder` and reads what it says; all of it goes to `incoming` with `server` beside it.
pub async fn run(identity: Identity, holder: String, server: u32, incoming: mpsc::Sender<(u32, Incoming)>) {
    let lost = match converse(&identity, &holder, server, &incoming).await {
        Ok(()) => "the server has closed the connection".to_owned(),
        Err(error) => format!("{error:#}"),
    };
    // Nobody listens any more: the command is at its end.
    let _ = incoming.send((server, Incoming::Lost(lost))).await;
}

async fn converse(
    identity: &Identity,
    holder: &str,
    server: u32,
    incoming: &mpsc::Sender<(u32, Incoming)>,
) -> anyhow::Result<()> {
    let connected = tokio::time::timeout(CONNECT_TIME, connect(identity, holder)).await;
    let no_answer = || format!("no answer from {holder} in {} s", CONNECT_TIME.as_secs());
    let (stream, connected, mut messages) = connected.with_context(no_answer)??;
    let (read_half, mut write_half) = tokio::io::split(stream);
    incoming.send((server, Incoming::Connected(Box::new(connected)))).await?;
    let mut reader = Reader::new(read_half);
    loop {
        tokio::select! {
            message = reader.next() => match message.with_context(|| format!("connection to {holder}"))? {
                Some(message) => incoming.send((server, Incoming::Control(message))).await?,
                None => return Ok(()),
            },
            message = messages.recv() => match message {
                None => return Ok(()),
                Some(first) => {
                    let mut all = vec![first];
                    while let Ok(next) = messages.try_recv() {
                        all.push(next);
                    }
                    control::write(&mut write_half, all).await.with_context(|| format!("connection to {holder}"))?;
                }
            },
        }
    }
}

type Stream = tokio_rustls::TlsStream<TcpStream>;

async fn connect(
    identity: &Identity,
    holder: &str,
) -> anyhow::Result<(Stream, Connected, mpsc::UnboundedReceiver<Control>)> {
    let mut addresses =
        tokio::net::lookup_host(holder).await.with_context(|| format!("{holder}: no such host"))?;
    let address = addresses.next().with_context(|| format!("{holder}: no such host"))?;
    let begun = Instant::now();
    let options = anabranch_net::socket::TcpOptions::default();
    let tcp = anabranch_net::socket::connect(address, &options)
        .await
        .with_context(|| format!("cannot reach {holder}: is `anabranch gather serve` running there?"))?;
    let rtt = begun.elapsed();
    let (mut stream, peer) = identity.connect_to_site(tcp).await.map_err(|error| {
        anyhow::anyhow!(anabranch_net::tls::explain(&format!("server at {holder}"), &error))
    })?;
    control::write(&mut stream, [Control::Hello]).await?;
    let mut reader = Reader::new(stream);
    let (port, id) = match reader.next().await? {
        Some(Control::Welcome { port, channel }) => (port, ChannelId(channel)),
        Some(_) => bail!("{holder} does not answer as a server of this version does"),
        None => bail!("{holder} has closed the connection: it may have too many clients"),
    };
    let stream = reader.into_inner().with_context(|| format!("{holder} says more than it was asked"))?;
    let channel = seal::channel(&stream, id)?;
    let (control, messages) = mpsc::unbounded_channel();
    let datagrams_to = SocketAddr::new(address.ip(), port);
    Ok((stream, Connected { name: peer.name, datagrams_to, channel, control, rtt }, messages))
}
