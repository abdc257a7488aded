//! The forwarding thread: packets go from the device through each peer's state machine to UDP, and
//! back.
//!
//! The thread reacts to packets, datagrams, deadlines, and [`Command`]s of sessions. Sessions own
//! the connections, and pass keys and length limits to the thread. Packets that are read together
//! are sent together, so that one system call sends all datagrams of a path. Datagrams for which
//! the kernel has no buffer space are dropped, as in a full queue. Read [`Forwarder`] first.

use crate::config::MEMORY_MAX;
use crate::outbox::{Outbox, SendOutcome};
use crate::pulse::{BEAT_EVERY, Pulse};
use crate::status::{LinkFigures, PathFigures};
use anabranch_endpoint::{Bytes, Message as _, WireMessage as _};
use anabranch_linux::tun::{Device, HEADROOM};
use anabranch_net::datagram::{Batch, DatagramOptions, DatagramSocket, Ecn, SendSocket};
use anabranch_net::seal::{Channel, ChannelId, HEADER_BYTES, OVERHEAD_BYTES, Opener, Sealer, TAG_BYTES};
use anabranch_net::timer::FineTimer;
use anabranch_spray_proto::control::Control;
use anabranch_spray_proto::kernel::PeerEndpoint;
use anabranch_spray_proto::ways::{self, Chooser, DatagramClass};
use anabranch_spray_proto::{
    Body, CarriedPacket, Config, Datagram, FlowId, Host, OutgoingDatagram, OutgoingPacket, Segment, control,
    mark,
};
use anabranch_units::{ByteCount, Duration, Instant, Seed};
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use tokio::sync::{mpsc, oneshot, watch};

/// Send buffer of each path's socket. Kept small because there are many sockets.
const SEND_BUFFER: ByteCount = ByteCount::mib(1);
/// MTU of the device. The routes' MTUs are lower and apply instead.
const MTU_BYTES: u16 = 16_000;
/// Maximum number of consecutive reads from the device before the socket is read, and vice versa.
const READS_MAX: usize = 8;
/// Number of the peer: each `Host` has only one.
const PEER: u32 = 0;

/// Commands of sessions to this thread.
pub(crate) enum Command {
    /// Assign a peer to the link, with `came` for its received datagrams, or remove its peer.
    Place { link: usize, place: Option<PeerEndpoint>, came: Arc<ReceiveState> },
    /// Install the keys of a channel. The reply is true if the channel number is free.
    Open { link: usize, channel: Box<Channel>, reply: oneshot::Sender<bool> },
    /// Limit the peer's sealed datagrams to `bytes`. With `None`, accept no packets for it.
    Limit { link: usize, bytes: Option<usize> },
    /// Send `says` in a datagram padded to `bytes`, or in the shortest datagram if `bytes` is less.
    Probe { link: usize, bytes: usize, says: Control },
    /// Discard the keys of this channel.
    Close { link: usize, channel: ChannelId },
    /// Create the device again, after another program has deleted it. The reply is its index.
    MakeDevice { reply: oneshot::Sender<io::Result<u32>> },
    /// Report the figures of all peers.
    Figures { reply: oneshot::Sender<Vec<LinkFigures>> },
}

/// State of a peer's received datagrams, which the peer's session reads without a command.
#[derive(Debug, Default)]
pub(crate) struct ReceiveState {
    /// Datagrams received with the current keys.
    pub(crate) count: AtomicU64,
    /// Length of the longest datagram received since the last read, in bytes.
    pub(crate) longest: AtomicUsize,
    /// True once the keys have sealed their maximum number of datagrams.
    pub(crate) is_worn_out: AtomicBool,
    /// Control message of the last received probe.
    pub(crate) said: watch::Sender<Option<Control>>,
}

/// Arguments at the start of the thread.
pub(crate) struct Setup {
    pub(crate) device: String,
    pub(crate) listen: SocketAddr,
    pub(crate) ways: u16,
    pub(crate) config: Config,
    pub(crate) key_packets: Option<u64>,
    pub(crate) pulse: Arc<Pulse>,
    pub(crate) commands: mpsc::Receiver<Command>,
}

/// State of one peer.
struct Link {
    place: PeerEndpoint,
    to: SocketAddr,
    host: Host<CarriedPacket>,
    chooser: Chooser,
    keys: Option<(Sealer, Opener)>,
    /// Number of datagrams that the keys may still seal under the configured limit; without one,
    /// only the cipher's limit applies.
    seals_left: u64,
    bytes_max: Option<usize>,
    came: Arc<ReceiveState>,
    figures: LinkFigures,
    /// True if the state machine may have output to send.
    is_touched: bool,
    /// Bytes that the state machine held at the last check.
    held_bytes: u64,
}

impl Link {
    /// Earliest deadline of the peer's state machines.
    fn poll_timeout(&mut self) -> Option<Instant> {
        self.host.poll_timeout().into_iter().chain(self.chooser.poll_timeout()).min()
    }

    /// Sets the maximum length of sealed datagrams. With `None`, no packets are accepted.
    fn limit(&mut self, bytes: Option<usize>) {
        self.bytes_max = bytes;
        if let Some(bytes) = bytes {
            self.host.limit_datagrams(PEER, bytes - OVERHEAD_BYTES);
        }
    }

    /// Frees the memory of all flows, because their packets now take the ordinary route.
    fn forget(&mut self, now: Instant) {
        self.host.forget(now, PEER);
        self.is_touched = true;
    }
}

/// State of the forwarding thread.
pub(crate) struct Forwarder {
    epoch: std::time::Instant,
    device: Device,
    socket: DatagramSocket,
    ways: Vec<SendSocket>,
    outboxes: Vec<Outbox>,
    config: Config,
    seed: Seed,
    links: Vec<Link>,
    by_address: BTreeMap<IpAddr, usize>,
    by_channel: BTreeMap<u64, usize>,
    key_packets: Option<u64>,
    /// Bytes held by all peers' state machines.
    held_bytes: u64,
    /// Packets to write to the device.
    writes: Vec<Vec<u8>>,
    spare: Vec<Vec<u8>>,
    pulse: Arc<Pulse>,
}

/// Maximum number of buffers kept for reuse.
const SPARE_MAX: usize = 256;

/// Turns off reverse-path filtering and router advertisements of a device. `routing` has a rule for
/// the system's reverse-path filter, and no IPv6 router uses the device. Kernels without these
/// files have no such settings.
fn set_filters(device: &str) {
    let _ = std::fs::write(format!("/proc/sys/net/ipv4/conf/{device}/rp_filter"), "0");
    let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{device}/accept_ra"), "0");
}

fn machines(config: &Config, ways: u16, seed: Seed, number: usize) -> (Host<CarriedPacket>, Chooser) {
    let host = Host::new(config.clone()).expect("settings are checked before the thread starts");
    (host, Chooser::new(seed.stream("ways", number as u64), ways, config.rate))
}

impl Forwarder {
    /// Creates the device and the sockets.
    ///
    /// Errors: the system's error, with the name of the failed object.
    /// Panics: outside of a tokio runtime.
    pub(crate) fn new(setup: Setup) -> io::Result<(Self, mpsc::Receiver<Command>)> {
        let Setup { device, listen, ways, config, key_packets, pulse, commands } = setup;
        let named =
            |error: io::Error| io::Error::new(error.kind(), format!("TUN device `{device}`: {error}"));
        let made = Device::make(&device, MTU_BYTES).map_err(named)?;
        set_filters(&device);
        let socket = DatagramSocket::bind(listen, &DatagramOptions::default())?;
        let options = DatagramOptions {
            send_buffer: SEND_BUFFER,
            receive_buffer: ByteCount::kib(4),
            ..DatagramOptions::default()
        };
        let at = SocketAddr::new(listen.ip(), 0);
        let sockets = (0..ways).map(|_| SendSocket::bind(at, &options)).collect::<io::Result<Vec<_>>>()?;
        // Random, because two runs need not choose the same paths.
        let seed = Seed::new(anabranch_net::random()?);
        let forwarder = Self {
            epoch: std::time::Instant::now(),
            device: made,
            socket,
            outboxes: (0..ways).map(|_| Outbox::default()).collect(),
            ways: sockets,
            config,
            seed,
            links: Vec::new(),
            by_address: BTreeMap::new(),
            by_channel: BTreeMap::new(),
            key_packets,
            held_bytes: 0,
            writes: Vec::new(),
            spare: Vec::new(),
            pulse,
        };
        Ok((forwarder, commands))
    }

    /// Index of the device.
    ///
    /// Errors: the system's.
    pub(crate) fn device_index(&self) -> io::Result<u32> {
        self.device.index()
    }

    fn now(&self) -> Instant {
        Instant::from_std(self.epoch.elapsed())
    }

    /// Assigns a peer with new state machines to a link, or removes the link's peer.
    fn place(&mut self, number: usize, place: Option<PeerEndpoint>, came: Arc<ReceiveState>) {
        self.by_address.retain(|_, link| *link != number);
        self.by_channel.retain(|_, link| *link != number);
        if let Some(link) = self.links.get_mut(number) {
            self.held_bytes -= std::mem::take(&mut link.held_bytes);
            let now = Instant::from_std(self.epoch.elapsed());
            (link.keys, link.bytes_max) = (None, None);
            link.forget(now);
        }
        let Some(place) = place else { return };
        while self.links.len() <= number {
            let nowhere =
                PeerEndpoint { address: IpAddr::from([0; 4]), local: IpAddr::from([0; 4]), port: 0 };
            let link = self.link(self.links.len(), nowhere, Arc::default());
            self.links.push(link);
        }
        self.links[number] = self.link(number, place, came);
        self.by_address.insert(place.address, number);
    }

    fn link(&self, number: usize, place: PeerEndpoint, came: Arc<ReceiveState>) -> Link {
        let (host, chooser) = machines(&self.config, self.ways.len() as u16, self.seed, number);
        Link {
            place,
            to: (place.address, place.port).into(),
            host,
            chooser,
            keys: None,
            seals_left: 0,
            bytes_max: None,
            came,
            figures: LinkFigures::default(),
            is_touched: false,
            held_bytes: 0,
        }
    }

    /// Carries packets until all senders of commands are dropped.
    ///
    /// Errors: the device or the socket cannot be read any more.
    pub(crate) async fn run(mut self, mut commands: mpsc::Receiver<Command>) -> io::Result<()> {
        let mut timer = FineTimer::new()?;
        let mut batch = Batch::with_messages(16);
        let mut beats = tokio::time::interval(BEAT_EVERY);
        loop {
            let due = self.links.iter_mut().filter_map(Link::poll_timeout).min();
            let due = due.map(|at| at.to_std(self.epoch));
            tokio::select! {
                command = commands.recv() => match command {
                    Some(command) => self.obey(command),
                    None => return Ok(()),
                },
                ready = self.device.readable() => {
                    ready?;
                    self.take_packets()?;
                }
                came = self.socket.recv(&mut batch) => {
                    came?;
                    self.take_datagrams(&mut batch);
                    // Packets already read are processed before more are read.
                    self.stir();
                    for _ in 1..READS_MAX {
                        if self.socket.try_recv(&mut batch)? == 0 {
                            break;
                        }
                        self.take_datagrams(&mut batch);
                        self.stir();
                    }
                }
                _ = beats.tick() => self.pulse.beat(),
                waited = timer.wait(due) => {
                    waited?;
                    let now = self.now();
                    for link in &mut self.links {
                        if link.poll_timeout().is_some_and(|due| due <= now) {
                            link.host.handle_timeout(now);
                            link.chooser.handle_timeout(now);
                            link.is_touched = true;
                        }
                    }
                }
            }
            self.stir();
        }
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Place { link, place, came } => self.place(link, place, came),
            Command::Open { link, channel, reply } => {
                let id = channel.sealer.channel();
                let is_free = self.by_channel.get(&id.0).is_none_or(|other| *other == link);
                if is_free {
                    let found = &mut self.links[link];
                    if let Some((before, _)) = &found.keys {
                        self.by_channel.remove(&before.channel().0);
                    }
                    self.by_channel.insert(id.0, link);
                    found.seals_left = self.key_packets.unwrap_or(u64::MAX);
                    let Channel { sealer, opener } = *channel;
                    found.keys = Some((sealer, opener));
                    found.came.count.store(0, Relaxed);
                    found.came.longest.store(0, Relaxed);
                    found.came.is_worn_out.store(false, Relaxed);
                }
                let _ = reply.send(is_free);
            }
            Command::Limit { link, bytes } => {
                let now = self.now();
                let link = &mut self.links[link];
                link.limit(bytes);
                if bytes.is_none() {
                    link.forget(now);
                }
            }
            Command::Probe { link, bytes, says } => {
                let now = self.now();
                let way = self.links[link].chooser.choose(now, DatagramClass::Other);
                let probe = control::probe(bytes.saturating_sub(OVERHEAD_BYTES), &says);
                self.post(link, way, (OVERHEAD_BYTES + probe.len(), None), |out| out.extend(&probe));
                if bytes == 0 {
                    // Short probes detect dead paths while TCP is idle. Long probes are not used
                    // for this, because a long probe may be lost because of its length alone.
                    self.links[link].host.handle_probe(now, PEER, false);
                    self.links[link].is_touched = true;
                }
                self.send(link);
            }
            Command::Close { link, channel } => {
                let now = self.now();
                let found = &mut self.links[link];
                if found.keys.as_ref().is_some_and(|(sealer, _)| sealer.channel() == channel) {
                    (found.keys, found.bytes_max) = (None, None);
                    found.forget(now);
                    self.by_channel.remove(&channel.0);
                }
            }
            Command::MakeDevice { reply } => {
                let made = self.device.make_again();
                if made.is_ok() {
                    set_filters(self.device.name());
                }
                let _ = reply.send(made);
            }
            Command::Figures { reply } => {
                let now = self.now();
                let figures = self.links.iter().map(|link| figures(link, now)).collect();
                let _ = reply.send(figures);
            }
        }
    }

    /// Reads packets of TCP from the device.
    fn take_packets(&mut self) -> io::Result<()> {
        for _ in 0..READS_MAX {
            let now = self.now();
            let mut is_any = false;
            for packet in self.device.read()? {
                is_any = true;
                // Other packets, such as neighbour discovery, are ignored.
                let Some(segment) = Segment::of(packet) else { continue };
                let Some(number) = self.by_address.get(&segment.destination) else { continue };
                let link = &mut self.links[*number];
                let most = link.bytes_max.map(packet_max);
                let fits = segment.source == link.place.local && !segment.has_options;
                if !fits || most.is_none_or(|most| packet.len() > most) {
                    link.figures.packets.refused_out_packets += 1;
                    continue;
                }
                let outgoing = OutgoingPacket {
                    packet: CarriedPacket::from(Bytes::copy_from_slice(packet)),
                    payload_bytes: segment.payload_bytes,
                    is_acknowledgement: segment.is_acknowledgement,
                    is_end: segment.is_end,
                    flow_size: None,
                };
                link.figures.packets.sent_bytes += u64::from(segment.payload_bytes);
                link.host.handle_packet(now, FlowId { peer: PEER, flow: segment.flow }, outgoing);
                link.is_touched = true;
            }
            if !is_any {
                break;
            }
            // Packets that are read together are sent together.
            self.stir();
        }
        Ok(())
    }

    /// Handles received datagrams.
    fn take_datagrams(&mut self, batch: &mut Batch) {
        let now = self.now();
        for came in batch.datagrams() {
            let channel = ChannelId::of(came.bytes);
            let Some(number) = channel.and_then(|id| self.by_channel.get(&id.0)) else { continue };
            let link = &mut self.links[*number];
            let Some((_, opener)) = &mut link.keys else { continue };
            let length = came.bytes.len();
            let is_marked = came.ecn == Some(Ecn::Ce);
            let Ok(opened) = opener.open(came.bytes) else { continue };
            link.came.count.fetch_add(1, Relaxed);
            link.came.longest.fetch_max(length, Relaxed);
            if control::is_probe(opened.payload) {
                match control::said_by_probe(opened.payload) {
                    Some(says) => _ = link.came.said.send_replace(Some(says)),
                    None => link.figures.packets.refused_in_packets += 1,
                }
                continue;
            }
            let Ok(datagram) = Datagram::<Bytes>::decode(opened.payload) else {
                link.figures.packets.refused_in_packets += 1;
                continue;
            };
            for echo in &datagram.echoes {
                link.chooser.handle_echo(now, echo.number, echo.ago, echo.is_marked);
            }
            let payload_bytes = match &datagram.body {
                Body::Plain(packet) | Body::Source { packet, .. } => {
                    Segment::of(packet).map_or(0, |segment| segment.payload_bytes)
                }
                Body::Bare | Body::Probe | Body::Parity { .. } => 0,
            };
            let datagram = datagram.map(|bytes| CarriedPacket { bytes, is_marked });
            link.host.handle_datagram(now, PEER, datagram, (payload_bytes, is_marked));
            link.is_touched = true;
        }
    }

    /// Drains the output of all state machines with new input.
    fn stir_links(&mut self) {
        let now = self.now();
        for number in 0..self.links.len() {
            if !std::mem::take(&mut self.links[number].is_touched) {
                continue;
            }
            while let Some(arrived) = self.links[number].host.poll_arrived() {
                self.deliver(number, arrived.packet);
            }
            loop {
                while let Some(leaving) = self.links[number].host.poll_leaving() {
                    self.leave(now, number, leaving);
                }
                let link = &mut self.links[number];
                let Some(is_dark) = link.chooser.poll_probe(now) else { break };
                link.host.handle_probe(now, PEER, is_dark);
            }
            self.send(number);
            let link = &mut self.links[number];
            let held_bytes = link.host.held(PEER).as_u64();
            self.held_bytes =
                self.held_bytes - std::mem::replace(&mut link.held_bytes, held_bytes) + held_bytes;
        }
    }

    /// Drains the output of all state machines with new input, and enforces the common memory
    /// limit.
    fn stir(&mut self) {
        self.stir_links();
        if self.bound_memory() {
            self.stir_links();
        }
        // A device that is full or down drops packets.
        if !self.writes.is_empty() {
            let written = self.device.write(&mut self.writes);
            if let Err(error) = written {
                tracing::debug!(%error, "packets that came were not taken");
            }
            while self.spare.len() < SPARE_MAX
                && let Some(buffer) = self.writes.pop()
            {
                self.spare.push(buffer);
            }
            self.writes.clear();
        }
    }

    /// Makes the peers with the most bytes give up memory until the total is within the limit.
    /// Returns true if any peer gave up memory.
    fn bound_memory(&mut self) -> bool {
        let (now, is_full) = (self.now(), self.held_bytes > MEMORY_MAX.as_u64());
        while self.held_bytes > MEMORY_MAX.as_u64()
            && let Some(link) = self.links.iter_mut().max_by_key(|link| link.held_bytes)
        {
            link.host.limit_memory(now, PEER, ByteCount::new(link.held_bytes / 2));
            let held_bytes = link.host.held(PEER).as_u64();
            self.held_bytes = self.held_bytes - link.held_bytes + held_bytes;
            (link.held_bytes, link.is_touched) = (held_bytes, true);
        }
        is_full
    }

    /// Sends a datagram that a state machine emitted.
    fn leave(&mut self, now: Instant, number: usize, leaving: OutgoingDatagram<CarriedPacket>) {
        let link = &mut self.links[number];
        let OutgoingDatagram { class, datagram, .. } = leaving;
        let is_spread = !(matches!(class, DatagramClass::Long(_)) && link.chooser.is_short_on(now));
        let way = match &datagram.body {
            Body::Bare => link.chooser.choose(now, class),
            _ => {
                let (told, way) = link.chooser.handle_leaving(now, class);
                debug_assert_eq!(told, datagram.number, "both count the same datagrams");
                way
            }
        };
        link.figures.sprayable_packets += u64::from(class.is_data());
        link.figures.sprayed_packets += u64::from(class.is_data() && is_spread);
        let ecn = match &datagram.body {
            Body::Plain(packet) | Body::Source { packet, .. } => ecn_of(&packet.bytes),
            Body::Bare | Body::Probe | Body::Parity { .. } => None,
        };
        let datagram = datagram.map(|packet| packet.bytes);
        let length = OVERHEAD_BYTES + datagram.wire_len() as usize;
        self.post(number, way, (length, ecn), |out| datagram.encode(out));
    }

    /// Seals a datagram and appends it to the outbox of its path. `length` is its sealed length.
    fn post(
        &mut self,
        number: usize,
        way: u16,
        (length, ecn): (usize, Option<Ecn>),
        write: impl FnOnce(&mut Vec<u8>),
    ) {
        let link = &mut self.links[number];
        let Some((sealer, _)) = &mut link.keys else { return };
        if link.seals_left == 0 {
            link.came.is_worn_out.store(true, Relaxed);
            return;
        }
        link.seals_left -= 1;
        let outbox = &mut self.outboxes[usize::from(way)];
        if !outbox.takes(length, ecn) {
            count(&mut link.figures, outbox.send(&self.ways[usize::from(way)], link.to));
        }
        let begin = outbox.len();
        outbox.push(length, ecn, |out| {
            out.extend([0; HEADER_BYTES]);
            write(out);
            out.extend([0; TAG_BYTES]);
        });
        if sealer.seal(outbox.since(begin)).is_err() {
            outbox.cut(begin);
            link.came.is_worn_out.store(true, Relaxed);
        }
    }

    /// Sends the outboxes of all paths.
    fn send(&mut self, number: usize) {
        let link = &mut self.links[number];
        for (outbox, socket) in self.outboxes.iter_mut().zip(&self.ways) {
            count(&mut link.figures, outbox.send(socket, link.to));
        }
    }

    /// Queues a received packet for the device, if its addresses are the peer's and this host's.
    fn deliver(&mut self, number: usize, packet: CarriedPacket) {
        let Link { place, figures, .. } = &mut self.links[number];
        let segment = Segment::of(&packet.bytes).filter(|segment| {
            segment.source == place.address && segment.destination == place.local && !segment.has_options
        });
        let Some(segment) = segment else {
            figures.packets.refused_in_packets += 1;
            return;
        };
        let mut buffer = self.spare.pop().unwrap_or_default();
        buffer.clear();
        buffer.resize(HEADROOM, 0);
        buffer.extend_from_slice(&packet.bytes);
        if packet.is_marked && !mark(&mut buffer[HEADROOM..]) {
            figures.packets.refused_in_packets += 1;
            return;
        }
        figures.packets.received_bytes += u64::from(segment.payload_bytes);
        self.writes.push(buffer);
    }
}

/// Returns the maximum length of a TCP packet that fits into a datagram of `datagram_bytes`.
pub(crate) const fn packet_max(datagram_bytes: usize) -> usize {
    // Leaves room for two echoes besides the longest packet: two datagrams arrive between two
    // packets of a long flow.
    let beside =
        OVERHEAD_BYTES + anabranch_spray_proto::HEAD_BYTES_MAX + 2 * anabranch_spray_proto::ECHO_BYTES;
    datagram_bytes.saturating_sub(beside)
}

/// Returns the ECN bits of the inner header, for the outer header (RFC 6040, section 4.1).
fn ecn_of(packet: &[u8]) -> Option<Ecn> {
    let [first, second, ..] = packet else { return None };
    match if first >> 4 == 6 { second >> 4 } else { *second } & 3 {
        1 => Some(Ecn::Ect1),
        2 => Some(Ecn::Ect0),
        3 => Some(Ecn::Ce),
        _ => None,
    }
}

fn count(figures: &mut LinkFigures, left: SendOutcome) {
    figures.sent_datagrams += left.sent;
    figures.unsent_datagrams += left.dropped;
    figures.too_long_datagrams += left.too_long;
}

/// Figures of one peer for its status.
fn figures(link: &Link, now: Instant) -> LinkFigures {
    let counts = link.host.counts();
    let view = link.host.peer(now, PEER);
    let (rtt, fastest) = link.chooser.round_trips();
    let seconds = |time: Option<Duration>| time.map(Duration::as_secs_f64);
    let mean = |sum: f64| if counts.units > 0 { sum / counts.units as f64 } else { 0.0 };
    let ways =
        (0..).zip(link.chooser.report(now)).map(|(number, way): (u16, ways::PathReport)| PathFigures {
            number,
            came_datagrams: way.came,
            marked_datagrams: way.marked,
            late_datagrams: way.late,
            rtt_s: seconds(way.rtt),
            left: way.left,
            long_flows: way.long_flows,
        });
    let opened = link.keys.as_ref().map(|(_, opener)| opener.counters()).unwrap_or_default();
    LinkFigures {
        flows: link.host.flows() as u64,
        blocked_share: view.blocked,
        unit_packets_mean: mean(counts.unit_packets as f64),
        parities_mean: mean(counts.parities as f64),
        source_packets: counts.sources,
        parity_packets: counts.parities,
        recovered_packets: counts.recovered,
        surplus_packets: counts.surplus,
        given_up_packets: counts.given_up,
        early_packets: counts.early,
        repeated_packets: counts.repeated,
        held_bytes: link.host.held(PEER).as_u64(),
        shed_flows: counts.shed,
        rtt_s: seconds(rtt),
        rtt_fastest_s: seconds(fastest),
        rtt_free_max_s: seconds(view.rtt_free),
        rtt_blocked_max_s: seconds(view.rtt_blocked),
        moved_long_flows: link.chooser.moved(),
        came_datagrams: opened.opened,
        replayed_datagrams: opened.replayed + opened.too_old,
        forged_datagrams: opened.forged + opened.malformed,
        ways: ways.collect(),
        ..link.figures.clone()
    }
}
