//! One client at a server: its requests, and what leaves for it.

use super::{Shared, WAITING_MAX};
use crate::gather::control::{self, Reader};
use anabranch_endpoint::{Bytes, Wire as _};
use anabranch_gather::msg::{Control, Datagram, PullId};
use anabranch_gather::{Offer, Server, ServerEvent};
use anabranch_net::admission::Arrival;
use anabranch_net::datagram::{Segments, SendError};
use anabranch_net::keys::Role;
use anabranch_net::seal::{self, Channel, ChannelId};
use anabranch_net::timer::FineTimer;
use anabranch_units::{Duration, Instant};
use anyhow::{Context as _, bail};
use std::collections::BTreeMap;
use std::fs::File;
use std::net::SocketAddr;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio_rustls::rustls::ServerConfig;

/// How often a session looks at the clock whose client has not shown where it takes packets.
const UNSHOWN_EVERY: std::time::Duration = std::time::Duration::from_millis(100);
/// Packets that leave before the session looks at what has come.
const BURST_PACKETS: usize = 256;
/// Bytes that are handed to the kernel together.
const TOGETHER_BYTES: usize = 65_000;
/// Descriptions that a client may wait for at once.
const DESCRIBING_MAX: usize = 256;

/// A channel's place among those that are open, while its session runs.
struct Entry<'a> {
    shared: &'a Shared,
    id: ChannelId,
}

impl Drop for Entry<'_> {
    fn drop(&mut self) {
        self.shared.channels.lock().expect("nobody panics with it").remove(&self.id.0);
    }
}

/// Answers one client until it goes.
///
/// Errors: why the connection ended, where it did not end well.
pub async fn run(shared: &Arc<Shared>, tls: Arc<ServerConfig>, arrival: Arrival) -> anyhow::Result<()> {
    let from = arrival.from();
    // Messages are short and each waits for the one before: none is held back to be sent with others.
    arrival.tcp().set_nodelay(true)?;
    let (stream, peer, half_open) = arrival.identify(tls).await.context("no secure connection")?;
    anyhow::ensure!(
        matches!(peer.role, Role::Operator | Role::Site),
        "{peer} is no client: its keys are for something else"
    );
    let mut reader = Reader::new(stream);
    let first = half_open.within(async { Ok(reader.next().await) }).await;
    match first.context("no greeting")?? {
        Some(Control::Hello) => {}
        Some(_) => bail!("the first message is no greeting"),
        None => bail!("closed before a greeting"),
    }
    // Here its identity's connections are counted; it is no longer half-open.
    let _place = shared
        .places
        .take(&peer)
        .inspect_err(|crowded| tracing::warn!(%from, "client refused: {crowded}"))?;
    drop(half_open);
    let mut stream = reader.into_inner().context("more was sent before the greeting was answered")?;
    let (datagrams_in, mut datagrams) = mpsc::channel(WAITING_MAX);
    let id = loop {
        let id = ChannelId::random()?;
        let mut channels = shared.channels.lock().expect("nobody panics with it");
        if let std::collections::btree_map::Entry::Vacant(place) = channels.entry(id.0) {
            place.insert(datagrams_in);
            break id;
        }
    };
    let _entry = Entry { shared, id };
    let channel = seal::channel(&stream, id)?;
    control::write(&mut stream, [Control::Welcome { port: shared.port, channel: id.0 }]).await?;
    tracing::info!(%from, name = peer.name, "client connected");
    let (read_half, mut write_half) = tokio::io::split(stream);
    let mut reader = Reader::new(read_half);
    let (described_in, mut described) = mpsc::channel(DESCRIBING_MAX);
    let describing = Arc::new(tokio::sync::Semaphore::new(DESCRIBING_MAX));
    let mut session = Session {
        shared,
        server: Server::new(shared.config.clone()),
        channel,
        client: from,
        takes_at: None,
        objects: BTreeMap::new(),
        begun_at: std::time::Instant::now(),
        buffer: Vec::with_capacity(TOGETHER_BYTES + 65_536),
    };
    let mut timer = FineTimer::new()?;
    loop {
        let more = session.work().await?;
        let control: Vec<Control> = std::iter::from_fn(|| session.server.poll_control()).collect();
        control::write(&mut write_half, control).await?;
        let wakes_at = if more { Some(std::time::Instant::now()) } else { session.wakes_at() };
        tokio::select! {
            biased;
            message = reader.next() => match message? {
                None => return Ok(()),
                Some(Control::Describe { object, with_hash: false }) => {
                    let found = session.shared.files.open(&object).ok().map(|(_, bytes)| (bytes, None));
                    control::write(&mut write_half, [Control::Described { object, found }]).await?;
                }
                Some(Control::Describe { object, with_hash: true }) => {
                    let place = Arc::clone(&describing).try_acquire_owned();
                    let place = place.ok().context("too many hashes are asked for at once")?;
                    let (answer, shared) = (described_in.clone(), Arc::clone(shared));
                    tokio::spawn(async move {
                        let found = shared.files.hash(&object).await.ok();
                        let found = found.map(|(bytes, hash)| (bytes, Some(hash)));
                        // The session may have ended: then nobody waits for it.
                        let _ = answer.send(Control::Described { object, found }).await;
                        drop(place);
                    });
                }
                Some(message) => session.server.handle_control(session.now(), message),
            },
            Some(message) = described.recv() => control::write(&mut write_half, [message]).await?,
            Some((from, bytes)) = datagrams.recv() => {
                session.take(from, bytes);
                while let Ok((from, bytes)) = datagrams.try_recv() {
                    session.take(from, bytes);
                }
            }
            result = timer.wait(wakes_at) => {
                result?;
                let now = session.now();
                session.server.handle_timeout(now);
            }
        }
    }
}

struct Session<'a> {
    shared: &'a Shared,
    server: Server<Bytes>,
    channel: Channel,
    client: SocketAddr,
    /// Where the client takes packets, once it has shown that.
    takes_at: Option<SocketAddr>,
    objects: BTreeMap<PullId, File>,
    begun_at: std::time::Instant,
    buffer: Vec<u8>,
}

impl Session<'_> {
    fn now(&self) -> Instant {
        Instant::ZERO + Duration::from_std(self.begun_at.elapsed())
    }

    fn wakes_at(&self) -> Option<std::time::Instant> {
        let at = self.begun_at + (self.server.poll_timeout()? - Instant::ZERO).to_std();
        // What is due waits until the client shows where it takes it: only to give up is there a time then.
        let is_waiting = self.takes_at.is_none();
        Some(if is_waiting { at.max(std::time::Instant::now() + UNSHOWN_EVERY) } else { at })
    }

    /// Takes in a datagram that says it is this client's.
    fn take(&mut self, from: SocketAddr, mut bytes: Vec<u8>) {
        let now = self.now();
        let Ok(opened) = self.channel.opener.open(&mut bytes) else { return };
        if from.ip().to_canonical() != self.client.ip().to_canonical() {
            return;
        }
        self.takes_at = Some(from);
        // An empty one only says where packets are taken.
        if let Ok(Datagram::Feedback(feedback)) = Datagram::decode(opened.payload) {
            self.server.handle_feedback(now, &feedback);
        }
    }

    /// Does what can be done now; true if there is more.
    async fn work(&mut self) -> anyhow::Result<bool> {
        while let Some(event) = self.server.poll_event() {
            match event {
                ServerEvent::Asked { pull, object } => match self.shared.files.open(&object) {
                    Ok((file, object_bytes)) => {
                        self.objects.insert(pull, file);
                        let first_id = rand_id();
                        self.server.offer(self.now(), pull, Offer { object_bytes, first_id });
                        if self.server.block_bytes(pull).is_none() {
                            // It was refused for its range or its length.
                            self.objects.remove(&pull);
                        }
                    }
                    Err(reason) => self.server.refuse(pull, reason),
                },
                ServerEvent::Complete { pull, packets } => {
                    self.objects.remove(&pull);
                    tracing::debug!(pull = pull.0, packets, "pull complete");
                }
                ServerEvent::GaveUp { pull } => {
                    self.objects.remove(&pull);
                    tracing::info!(pull = pull.0, "pull given up: nothing was heard of the client");
                }
            }
        }
        while let Some((pull, generation, range)) = self.server.poll_wanted() {
            self.supply(pull, generation, range);
        }
        self.send().await
    }

    /// Reads a generation's blocks.
    fn supply(&mut self, pull: PullId, generation: u32, range: std::ops::Range<u64>) {
        let (Some(file), Some(block_bytes)) = (self.objects.get(&pull), self.server.block_bytes(pull)) else {
            return;
        };
        let mut bytes = vec![0; (range.end - range.start) as usize];
        // A page that is not in memory stalls this session; others go on.
        let read = tokio::task::block_in_place(|| file.read_exact_at(&mut bytes, range.start));
        match read {
            Ok(()) => {
                let bytes = Bytes::from(bytes);
                let ends = (0..bytes.len()).step_by(block_bytes as usize);
                let block = |start: usize| bytes.slice(start..bytes.len().min(start + block_bytes as usize));
                self.server.supply(pull, generation, ends.map(block).collect());
            }
            Err(error) => {
                self.objects.remove(&pull);
                self.server.fail(pull, format!("the object cannot be read: {error}"));
            }
        }
    }

    /// Sends what is due, to a client that has shown where it takes it; true if there is more.
    async fn send(&mut self) -> anyhow::Result<bool> {
        let Some(to) = self.takes_at else { return Ok(false) };
        let now = self.now();
        let mut segment_bytes = 0;
        for _ in 0..BURST_PACKETS {
            let Some(packet) = self.server.poll_transmit(now) else {
                self.flush(to, segment_bytes).await?;
                return Ok(false);
            };
            let pull = packet.pull;
            let start = self.buffer.len();
            self.buffer.resize(start + seal::HEADER_BYTES, 0);
            Datagram::Packet(packet).encode(&mut self.buffer);
            self.buffer.resize(self.buffer.len() + seal::TAG_BYTES, 0);
            self.channel
                .sealer
                .seal(&mut self.buffer[start..])
                .with_context(|| format!("pull {}", pull.0))?;
            let length = self.buffer.len() - start;
            if start > 0 && length != segment_bytes {
                // Datagrams that leave together are of one length.
                let last = self.buffer.split_off(start);
                self.flush(to, segment_bytes).await?;
                self.buffer.extend_from_slice(&last);
            }
            segment_bytes = length;
            if self.buffer.len() + segment_bytes > TOGETHER_BYTES {
                self.flush(to, segment_bytes).await?;
            }
        }
        self.flush(to, segment_bytes).await?;
        Ok(true)
    }

    async fn flush(&mut self, to: SocketAddr, segment_bytes: usize) -> anyhow::Result<()> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let result = self.shared.socket.send(&Segments::new(to, &self.buffer, segment_bytes)).await;
        self.buffer.clear();
        match result {
            Ok(()) => {}
            // The client asks for shorter blocks once it sees that none comes.
            Err(error @ SendError::TooBig { .. }) => tracing::warn!(client = %self.client, "{error}"),
            // What is lost on the way is lost: feedback tells, or silence does.
            Err(error) => tracing::debug!(client = %self.client, "{error}"),
        }
        Ok(())
    }
}

/// A number that nobody can foresee, to begin a pull's sums with.
fn rand_id() -> u32 {
    use std::hash::{BuildHasher as _, Hasher as _};
    std::collections::hash_map::RandomState::new().build_hasher().finish() as u32
}
