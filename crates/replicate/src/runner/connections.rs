//! A runner's connections: to the next site of each flow, and from the previous one.
//!
//! Leaves out: rights to connect (`service`), and the contents of frames
//! ([`anabranch_replicate_proto::msg`]).

use super::{
    ANSWER_TIMEOUT, CONNECT_TIMEOUT, FIRM_TIMEOUT, HEARTBEAT, HOP_TIMEOUT, Shared, digest, dscp, lock,
    wait_for,
};
use anabranch_net::cause::{cause, is_firm};
use anabranch_net::identity::{Guard, Identity};
use anabranch_net::keys::Role;
use anabranch_net::resolve::Resolver;
use anabranch_net::socket::{self, TcpOptions};
use anabranch_replicate_proto::control::{FlowSide, OutgoingSpec, Priority, Report};
use anabranch_replicate_proto::daemon::CONFIRM_EVERY;
use anabranch_replicate_proto::msg::{FrameHeader, Hello, HelloReply};
use anabranch_replicate_proto::plan::FlowId;
use anabranch_replicate_proto::site::{AcceptError, Frame, Packet};
use bytes::BytesMut;
use std::io;
use std::sync::LazyLock;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::net::TcpStream;
use tokio_rustls::TlsStream;

/// One resolver for all attempts, because it bounds the process's threads. Lookups are charged to
/// the site that uses the name.
static RESOLVER: LazyLock<Resolver> = LazyLock::new(Resolver::default);

const ALIVE: u8 = 1;
const TAKEN: u8 = 2;
/// Kind of a fill flow's confirmation. The number of packets follows, 8 bytes, big-endian.
const CONFIRMED: u8 = 3;

/// Reason why a flow has no connection.
#[derive(Debug)]
enum NoConnection {
    /// The site is unreachable, or another service answers there.
    Unreached(String),
    /// The site answers, and refuses the flow.
    NotTaken(String),
}

impl std::fmt::Display for NoConnection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unreached(reason) | Self::NotTaken(reason) => f.write_str(reason),
        }
    }
}
impl std::error::Error for NoConnection {}

impl Shared {
    // ---- outgoing flows ----

    pub(super) async fn send_flow(
        &self,
        index: usize,
        stripe: u16,
        identity: &Identity,
        waiting: &AtomicU64,
    ) {
        let out = &self.program.outgoing[index];
        let stream = match self.connect(out, stripe, identity).await {
            Ok(stream) => stream,
            Err(NoConnection::Unreached(reason)) => {
                return self.hop_is_lost(out, true, reason);
            }
            Err(NoConnection::NotTaken(reason)) => return self.hop_failed(out, reason),
        };
        if waiting.fetch_sub(1, Relaxed) == 1 {
            // Reports the congestion control even for an attempt that ends before the first regular
            // report.
            self.report(self.progress());
            self.report(Report::Ready { run: self.program.run });
        }
        let mut guard = identity.guard(stream.get_ref().1);
        let (read, write) = tokio::io::split(stream);
        let sent = async {
            let mut write = write;
            self.write_frames(out, &mut write).await?;
            write.shutdown().await
        };
        let result = tokio::select! {
            alive = watch_peer(read) => alive,
            // After the last frame, `watch_peer` waits for the peer's confirmation.
            Err(error) = sent => Err(error),
            reason = guard.withdrawn() => Err(io::Error::other(reason)),
        };
        if let Err(error) = result {
            self.hop_failed(out, format!("at {}: {}", out.address, cause(&error)));
        }
    }

    /// Like [`Self::send_flow`], for a fill flow: retries for as long as the attempt runs, and ends
    /// without an error.
    pub(super) async fn send_fill(&self, index: usize, identity: &Identity) {
        let out = &self.program.outgoing[index];
        let sent = async {
            let stream = self.connect(out, 0, identity).await.map_err(io::Error::other)?;
            let class = TcpOptions { dscp: dscp(out.hop.priority), ..TcpOptions::default() };
            socket::configure(stream.get_ref().0, &class)?;
            let mut guard = identity.guard(stream.get_ref().1);
            let (read, mut write) = tokio::io::split(stream);
            let frames = async {
                self.write_frames(out, &mut write).await?;
                write.shutdown().await
            };
            tokio::select! {
                over = self.watch_fill(out.flow, read) => over,
                Err(error) = frames => Err(error),
                reason = guard.withdrawn() => Err(io::Error::other(reason)),
            }
        };
        if let Err(error) = sent.await {
            tracing::info!(flow = out.flow.0, to = %out.to_name, "fills no more: {}", cause(&error));
        }
    }

    /// Reads the confirmations of a fill flow's receiver until the stream ends.
    async fn watch_fill(&self, flow: FlowId, read: ReadHalf<TlsStream<TcpStream>>) -> io::Result<()> {
        read_confirmations(read, |packets| {
            self.stir(|s| s.confirm(flow, packets)).map_err(|error| invalid(error.to_string()))
        })
        .await
    }

    /// Connects a flow; retries until the site accepts it.
    async fn connect(
        &self,
        out: &OutgoingSpec,
        stripe: u16,
        identity: &Identity,
    ) -> Result<TlsStream<TcpStream>, NoConnection> {
        let mut last = None;
        let connected = self.try_to_connect(out, stripe, identity, &mut last);
        match tokio::time::timeout(CONNECT_TIMEOUT, connected).await {
            Ok(result) => result,
            Err(_) => Err(match last {
                Some(reason) => NoConnection::Unreached(reason),
                None => NoConnection::NotTaken(format!(
                    "{} did not set up its part within {} s",
                    out.to_name,
                    CONNECT_TIMEOUT.as_secs()
                )),
            }),
        }
    }

    /// Tries once to connect. `last` is the reason why the latest attempt failed, if the site was
    /// unreachable.
    async fn try_to_connect(
        &self,
        out: &OutgoingSpec,
        stripe: u16,
        identity: &Identity,
        last: &mut Option<String>,
    ) -> Result<TlsStream<TcpStream>, NoConnection> {
        let hello = Hello { run: self.program.run, flow: out.flow, stripe }.encode();
        // The few packets of a greeting must not starve.
        let class = if self.fills(out.group) { Priority::Bulk } else { out.hop.priority };
        let options = TcpOptions {
            congestion_control: out.hop.congestion_control.clone(),
            dscp: dscp(class),
            ..TcpOptions::default()
        };
        let mut pause = Duration::from_millis(20);
        let mut failing_since: Option<Instant> = None;
        loop {
            let tried = async {
                let address = RESOLVER.resolve(&out.to_name, &out.address).await?;
                let tcp = socket::connect(address, &options).await?;
                *lock(&self.flows[&out.flow].congestion_control) = socket::congestion_control(&tcp).ok();
                let mut stream = identity.connect(tcp, Role::Site, &out.to_name).await?;
                stream.write_all(&hello).await?;
                stream.flush().await?;
                let reply = HelloReply::decode(stream.read_u8().await?);
                Ok::<_, io::Error>((stream, reply))
            };
            match tokio::time::timeout(ANSWER_TIMEOUT, tried).await {
                Ok(Ok((stream, Ok(HelloReply::Welcome)))) => return Ok(stream),
                Ok(Ok((_, Ok(HelloReply::NotInstalled)))) => (*last, failing_since) = (None, None),
                Ok(Ok((_, Ok(HelloReply::Refused)))) => {
                    return Err(NoConnection::NotTaken(format!("{} refused it", out.to_name)));
                }
                Ok(Ok((_, Err(error)))) => return Err(NoConnection::NotTaken(error.to_string())),
                Ok(Err(error)) => {
                    let reason = cause(&error);
                    tracing::debug!(to = %out.address, "connecting again: {reason}");
                    let since = *failing_since.get_or_insert_with(Instant::now);
                    if error.kind() == io::ErrorKind::InvalidData
                        || is_firm(&error) && since.elapsed() >= FIRM_TIMEOUT
                    {
                        return Err(NoConnection::Unreached(reason));
                    }
                    *last = Some(reason);
                }
                Err(_) => {
                    let within = ANSWER_TIMEOUT.as_secs();
                    let reason = format!("no answer within {within} s: is its data port open to this site?");
                    return Err(NoConnection::Unreached(reason));
                }
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_secs(1));
        }
    }

    async fn write_frames(
        &self,
        out: &OutgoingSpec,
        write: &mut WriteHalf<TlsStream<TcpStream>>,
    ) -> io::Result<()> {
        let counters = &self.flows[&out.flow];
        let notify = &self.ready[&out.flow];
        loop {
            if !lock(&self.site).can_produce(out.flow) {
                write.flush().await?;
                if out.padding_bytes > 0 && self.write_padding(out, write).await? {
                    continue;
                }
            }
            let frame = wait_for(notify, || {
                if let Some(packets) = *lock(&counters.end) {
                    return Some(Frame::End { packets });
                }
                // The check is cheap, and only `produce` wakes the state machine. `stir` needs the
                // lock, so the lock must be released before.
                let can = lock(&self.site).can_produce(out.flow);
                if can { self.stir(|s| s.produce(out.flow)) } else { None }
            })
            .await;
            match frame {
                Frame::Data(mut packet) => {
                    self.fault.spoil(out.flow, &mut packet);
                    let length = packet.symbol.len() as u32;
                    let digest = digest(&packet.symbol);
                    lock(&self.digests).note(out.flow, FlowSide::Sent, packet.generation, digest);
                    let header =
                        FrameHeader::Data { generation: packet.generation, hash: packet.hash, length };
                    lock(&counters.blocked).note(true, out.hop.stripes);
                    write.write_all(&header.encode()).await?;
                    write.write_all(&packet.symbol).await?;
                    lock(&counters.blocked).note(false, out.hop.stripes);
                    counters.sent_bytes.fetch_add(u64::from(length), Relaxed);
                    counters.site_bytes.inc_by(length.into());
                }
                Frame::End { packets } => {
                    // All stripes end, no matter which one took the end from the state machine.
                    *lock(&counters.end) = Some(packets);
                    notify.notify_waiters();
                    write.write_all(&FrameHeader::End { packets }.encode()).await?;
                    return write.flush().await;
                }
            }
        }
    }

    /// Writes padding if the flow should send some now. Returns whether padding was written.
    async fn write_padding(
        &self,
        out: &OutgoingSpec,
        write: &mut WriteHalf<TlsStream<TcpStream>>,
    ) -> io::Result<bool> {
        let Some(length) = lock(&self.site).poll_padding(self.now(), out.flow) else { return Ok(false) };
        let blocked = &self.flows[&out.flow].blocked;
        lock(blocked).note(true, out.hop.stripes);
        write.write_all(&FrameHeader::Padding { length }.encode()).await?;
        write.write_all(&vec![0; length as usize]).await?;
        write.flush().await?;
        lock(blocked).note(false, out.hop.stripes);
        Ok(true)
    }

    // ---- incoming flows ----

    pub(super) async fn receive_flow(&self, flow: FlowId, stream: TlsStream<TcpStream>, mut guard: Guard) {
        let (mut read, mut write) = tokio::io::split(stream);
        let from =
            self.program.incoming.iter().find(|i| i.flow == flow).expect("attached only if it arrives here");
        let fills = self.fills(from.group);
        let mut beating = async || -> io::Result<()> {
            let mut told = 0;
            loop {
                let confirmed = if fills { lock(&self.site).confirmed(flow) } else { told };
                if confirmed > told {
                    told = confirmed;
                    write.write_u8(CONFIRMED).await?;
                    write.write_u64(confirmed).await?;
                } else {
                    write.write_u8(ALIVE).await?;
                }
                write.flush().await?;
                if fills {
                    tokio::time::sleep(CONFIRM_EVERY.to_std()).await;
                    let more = wait_for(&self.incoming[&flow].room, || {
                        (lock(&self.site).confirmed(flow) > told).then_some(())
                    });
                    let _ = tokio::time::timeout(HEARTBEAT, more).await;
                } else {
                    tokio::time::sleep(HEARTBEAT).await;
                }
            }
        };
        let result = tokio::select! {
            result = self.read_frames(flow, &mut read) => result,
            result = beating() => result,
            reason = guard.withdrawn() => Err(io::Error::other(reason)),
        };
        let result = match result {
            Ok(()) => {
                let told = async {
                    write.write_u8(TAKEN).await?;
                    write.shutdown().await
                };
                // The flow is complete here, so a lost confirmation matters to the sender only.
                let _ = tokio::time::timeout(HOP_TIMEOUT, told).await;
                return;
            }
            Err(error) => error,
        };
        if fills {
            return tracing::info!(flow = flow.0, from = %from.from_name, "fills no more: {}", cause(&result));
        }
        self.hop_failed(from, cause(&result));
    }

    async fn read_frames(&self, flow: FlowId, read: &mut ReadHalf<TlsStream<TcpStream>>) -> io::Result<()> {
        let invalid = |text: String| io::Error::new(io::ErrorKind::InvalidData, text);
        let counters = &self.incoming[&flow];
        let mut header = [0; FrameHeader::LEN];
        loop {
            read.read_exact(&mut header).await?;
            let decoded = FrameHeader::decode(&header, self.program.symbol_bytes);
            match decoded.map_err(|e| invalid(e.to_string()))? {
                FrameHeader::Padding { length } => {
                    read_bytes(read, length).await?;
                    counters.received_bytes.fetch_add(length.into(), Relaxed);
                }
                FrameHeader::Data { generation, hash, length } => {
                    let symbol = read_bytes(read, length).await?;
                    counters.received_bytes.fetch_add(length.into(), Relaxed);
                    counters.site_bytes.inc_by(length.into());
                    let digest = digest(&symbol);
                    lock(&self.digests).note(flow, FlowSide::Received, generation, digest);
                    let mut packet = Some(Packet { generation, hash, symbol: symbol.freeze() });
                    let accepted = wait_for(&self.incoming[&flow].room, || {
                        if !lock(&self.site).has_room(flow, generation) {
                            return None;
                        }
                        match self
                            .stir(|s| s.accept(flow, packet.take().expect("put back below if not taken")))
                        {
                            Err(AcceptError::Full(back)) => {
                                packet = Some(back);
                                None
                            }
                            other => Some(other.map_err(|e| e.to_string())),
                        }
                    });
                    lock(&counters.waits).note(true);
                    let accepted = accepted.await;
                    lock(&counters.waits).note(false);
                    accepted.map_err(invalid)?;
                }
                FrameHeader::End { packets } => {
                    return self.stir(|s| s.accept_end(flow, packets)).map_err(|e| invalid(e.to_string()));
                }
            }
        }
    }
}

/// Reads `length` bytes into a buffer that grows with them.
async fn read_bytes(read: &mut ReadHalf<TlsStream<TcpStream>>, length: u32) -> io::Result<BytesMut> {
    let mut bytes = BytesMut::with_capacity(length as usize);
    let mut limited = read.take(length.into());
    while bytes.len() < length as usize {
        if limited.read_buf(&mut bytes).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(bytes)
}

fn invalid(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}

/// Reads the confirmations of a fill flow's receiver until the stream ends; `confirm` takes each
/// count of packets.
async fn read_confirmations(
    mut read: impl AsyncRead + Unpin,
    mut confirm: impl FnMut(u64) -> io::Result<()>,
) -> io::Result<()> {
    loop {
        match read.read_u8().await? {
            ALIVE => {}
            CONFIRMED => confirm(read.read_u64().await?)?,
            TAKEN => return Ok(()),
            other => return Err(invalid(format!("unexpected byte {other}"))),
        }
    }
}

/// For the fuzz target: returns true if the bytes are valid confirmations with increasing counts.
pub fn exercise_confirmations(bytes: &[u8]) -> bool {
    let mut last = 0;
    let read = read_confirmations(bytes, |packets| {
        if packets < last {
            return Err(invalid(format!("{packets} after {last}")));
        }
        last = packets;
        Ok(())
    });
    let waker = std::task::Waker::noop();
    let polled = std::pin::pin!(read).poll(&mut std::task::Context::from_waker(waker));
    matches!(polled, std::task::Poll::Ready(Ok(())))
}

/// Reads the receiver's heartbeats, and the final confirmation of the whole flow.
async fn watch_peer(mut read: ReadHalf<TlsStream<TcpStream>>) -> io::Result<()> {
    loop {
        let word = tokio::time::timeout(HOP_TIMEOUT, read.read_u8()).await.map_err(|_| {
            io::Error::new(io::ErrorKind::TimedOut, format!("silent for {} s", HOP_TIMEOUT.as_secs()))
        })?;
        match word? {
            ALIVE => {}
            TAKEN => return Ok(()),
            other => {
                return Err(io::Error::new(io::ErrorKind::InvalidData, format!("unexpected byte {other}")));
            }
        }
    }
}
