//! `gather` in the simulator: a workload in which the protocol's state machines serve one client.
//!
//! Control messages travel as TLS records on simulated TCP connections, which are open before the
//! first round. Packets and feedback travel as datagrams with their size on the wire. Only the
//! lengths of blocks are represented. In LTTP's mode a packet names its blocks as in the paper, by
//! a byte for its degree and a byte for each block (section V-D), and nothing is encrypted.
//!
//! Idealized: coding and hashing take no time, and objects need no reading. The comparison with the
//! paper concerns packets only, so the client is a [`Client`], not the [`crate::Fetch`] around it
//! that real programs run. Differences from a fetch: all pulls of a round begin together, with
//! their first packets spread over the link, while a fetch requests each object when its file is
//! opened. One client keeps its pull numbers and its servers' rates through all rounds, while a
//! fetch has all its objects from the beginning. The timers for requests, late answers and unknown
//! client addresses do not occur. `tests/faults` runs whole fetches. Read [`Gather`] and
//! [`GatherApp`] first.

mod settings;

use crate::msg::{Control, Datagram, Feedback, Packet};
use crate::{
    Client, ClientConfig, ClientEvent, Mode, Offer, Piece, Server, ServerConfig, ServerEvent, ServerId,
};
use anabranch_codes::lt::{Code, Params};
use anabranch_endpoint::{Len, Message as _, Payload as _};
use anabranch_sim::scenario::SystemWorkload;
use anabranch_sim::system::{System, SystemPlan};
use anabranch_sim::traffic::{App, AppCx, Side, StreamEvent, StreamSpec, TLS_RECORD_BYTES};
use anabranch_sim::{Network, PlanError, WorkloadRow};
use anabranch_units::{BitRate, ByteCount, Duration, Instant, RandomStream, Seed};
use settings::Settings;
use std::collections::VecDeque;

pub use settings::plan;

/// Maximum number of records of datagrams in flight on a channel. Beyond it the oldest datagrams
/// count as lost.
const FLIGHT_MAX: usize = 1 << 15;
/// Token of the client's timer. The servers' tokens follow, in order.
const CLIENT: u16 = 0;

/// `gather` in scenarios.
#[derive(Copy, Clone, Debug)]
pub struct SimulatedSystem;

impl System for SimulatedSystem {
    fn kind(&self) -> &'static str {
        "gather"
    }
    fn settings(&self) -> Option<schemars::Schema> {
        Some(schemars::schema_for!(settings::Settings))
    }
    fn plan(
        &self,
        workload: &SystemWorkload,
        network: &Network,
        field: &str,
    ) -> Result<Box<dyn SystemPlan>, PlanError> {
        Ok(Box::new(settings::plan(workload, network, field)?))
    }
}

/// A validated workload.
#[derive(Debug)]
pub struct Gather {
    settings: Settings,
    client: u16,
    link: BitRate,
    config: ClientConfig,
    server_config: ServerConfig,
    priorities: Vec<u8>,
}

impl Gather {
    /// Host of the client.
    pub const fn client(&self) -> u16 {
        self.client
    }
    /// Hosts of the servers in a run with this seed.
    pub fn servers(&self, network: &Network, seed: Seed) -> Vec<u16> {
        let draw = self.settings.random_servers.then_some(seed);
        network.servers(self.client, self.settings.servers, draw)
    }
    /// Bytes from each server in a round, or from all servers together if they hold the same block.
    pub const fn block(&self) -> ByteCount {
        self.settings.block
    }
    /// Whether all servers hold the same block.
    pub const fn is_same_block(&self) -> bool {
        self.settings.same_block
    }
    /// Bytes fetched in a round.
    pub fn round_bytes(&self) -> u64 {
        self.settings.round_bytes(self.settings.servers)
    }
    /// Number of warm-up rounds, and of measured rounds.
    pub const fn rounds(&self) -> (u32, u32) {
        (self.settings.warmup_rounds, self.settings.rounds)
    }
    /// Rate of the last hop, if the client knows it.
    pub fn link(&self) -> Option<BitRate> {
        self.config.link
    }
    /// Name of a used setting that real programs do not support, if any.
    pub fn only_simulated(&self) -> Option<&'static str> {
        self.settings.only_simulated()
    }
}

impl SystemPlan for Gather {
    fn app(&self, network: &Network, seed: Seed) -> Result<Box<dyn App>, PlanError> {
        let servers = self.servers(network, seed);
        Ok(Box::new(GatherApp::new(self, &servers, seed)))
    }
    fn has_end(&self) -> bool {
        true
    }
    fn priorities(&self) -> &[u8] {
        &self.priorities
    }
}

/// The rounds of pulls of one run.
#[derive(Debug)]
pub struct GatherApp {
    settings: Settings,
    host: u16,
    link: BitRate,
    client: Client<Len>,
    client_armed_at: Option<Instant>,
    servers: Vec<ServerSide>,
    /// Number of the first server's stream. The first server's channel and the other servers'
    /// streams and channels follow in turn.
    first_flow: u32,
    /// Number of connections that are not open yet.
    connecting: usize,
    rounds_left: u32,
    warmup_left: u32,
    began_at: Instant,
    rounds: Vec<(Instant, Instant)>,
    ended_at: Option<Instant>,
    /// Random ids of first packets in LTTP's mode.
    random: RandomStream,
    secrets: RandomStream,
    /// Code of a block in LTTP's mode; it gives the number of blocks that each packet names.
    code: Option<Code>,
    neighbours: Vec<u32>,
    /// Number of packets sent by all servers.
    sent: u64,
    /// Number of blocks named by packets in LTTP's mode.
    named: u64,
    /// Longest time for opening a connection so far.
    rtt: Duration,
}

#[derive(Debug)]
struct ServerSide {
    host: u16,
    machine: Server<Len>,
    armed_at: Option<Instant>,
    opened_at: Instant,
    datagrams: Flight<Datagram<Len>>,
    feedback: Flight<Feedback>,
    to_server: Stream,
    to_client: Stream,
}

/// Messages in one direction of a stream.
#[derive(Debug, Default)]
struct Stream {
    /// Messages in flight, each with its bytes on the wire.
    messages: VecDeque<(Control, u64)>,
    /// Bytes received of the first message.
    bytes: u64,
}

impl Stream {
    fn push(&mut self, message: Control) -> u64 {
        let mut encoded = Vec::new();
        message.encode_framed(&mut encoded);
        let bytes = encoded.len() as u64 + TLS_RECORD_BYTES;
        self.messages.push_back((message, bytes));
        bytes
    }
    /// Removes the first message, if it is complete.
    fn pop(&mut self) -> Option<Control> {
        let (_, bytes) = self.messages.front().filter(|(_, bytes)| *bytes <= self.bytes)?;
        self.bytes -= bytes;
        self.messages.pop_front().map(|(message, _)| message)
    }
}

/// Contents of datagrams in flight, by datagram number.
#[derive(Debug)]
struct Flight<M> {
    first: u64,
    messages: VecDeque<Option<M>>,
}

impl<M> Flight<M> {
    const fn new() -> Self {
        Self { first: 0, messages: VecDeque::new() }
    }
    /// Stores a message and returns its number.
    fn push(&mut self, message: M) -> u64 {
        if self.messages.len() == FLIGHT_MAX {
            self.messages.pop_front();
            self.first += 1;
        }
        self.messages.push_back(Some(message));
        self.first + self.messages.len() as u64 - 1
    }
    fn take(&mut self, number: u64) -> Option<M> {
        let message = self.messages.get_mut(number.checked_sub(self.first)? as usize)?.take();
        while matches!(self.messages.front(), Some(None)) {
            self.messages.pop_front();
            self.first += 1;
        }
        message
    }
}

impl GatherApp {
    fn new(plan: &Gather, servers: &[u16], seed: Seed) -> Self {
        let mut client =
            Client::new(plan.config.clone()).expect("a scenario's settings are checked before it runs");
        let settings = plan.settings.clone();
        let servers = servers.iter().map(|host| {
            client.add_server();
            ServerSide {
                host: *host,
                machine: Server::new(plan.server_config.clone()),
                armed_at: None,
                opened_at: Instant::ZERO,
                datagrams: Flight::new(),
                feedback: Flight::new(),
                to_server: Stream::default(),
                to_client: Stream::default(),
            }
        });
        let servers: Vec<ServerSide> = servers.collect();
        let blocks = settings.block.as_u64().div_ceil(settings.symbol.as_u64()) as usize;
        let code = (settings.mode == Mode::Lttp).then(|| Code::new(blocks, &Params::LTTP).ok()).flatten();
        Self {
            host: plan.client,
            link: plan.link,
            client,
            client_armed_at: None,
            connecting: servers.len(),
            servers,
            first_flow: 0,
            rounds_left: settings.rounds + settings.warmup_rounds,
            warmup_left: settings.warmup_rounds,
            began_at: Instant::ZERO,
            rounds: Vec::new(),
            ended_at: None,
            random: seed.stream("gather", 0),
            secrets: seed.stream("gather-secrets", 0),
            code,
            neighbours: Vec::new(),
            sent: 0,
            named: 0,
            rtt: Duration::ZERO,
            settings,
        }
    }

    const fn stream(&self, server: usize) -> u32 {
        self.first_flow + 2 * server as u32
    }
    const fn channel(&self, server: usize) -> u32 {
        self.stream(server) + 1
    }

    fn connected(&mut self, cx: &mut AppCx<'_, '_>, server: usize) {
        let rtt = cx.now() - self.servers[server].opened_at;
        self.rtt = self.rtt.max(rtt);
        let rtt = Some(rtt).filter(|rtt| *rtt > Duration::ZERO);
        self.client.handle_connected(cx.now(), ServerId(server as u32), rtt);
        self.connecting -= 1;
        if self.connecting == 0 {
            self.begin_round(cx);
        }
    }

    fn begin_round(&mut self, cx: &mut AppCx<'_, '_>) {
        self.rounds_left -= 1;
        self.began_at = cx.now();
        let servers: Vec<ServerId> = (0..self.servers.len() as u32).map(ServerId).collect();
        let object = || "block".to_owned();
        if self.settings.same_block {
            let ranges = Some(std::iter::once(0..self.settings.block.as_u64()).collect());
            self.client.add(Piece { object: object(), ranges, holders: servers });
        } else {
            for server in servers {
                self.client.add(Piece { object: object(), ranges: None, holders: vec![server] });
            }
        }
        self.client.begin(cx.now());
        self.stir_client(cx);
    }

    /// Performs all possible work of the client.
    fn stir_client(&mut self, cx: &mut AppCx<'_, '_>) {
        while let Some((to, feedback)) = self.client.poll_transmit(cx.now()) {
            let server = to.0 as usize;
            let bytes = feedback.wire_len() + self.settings.seal_bytes() + self.settings.header_bytes;
            let number = self.servers[server].feedback.push(feedback);
            cx.send(self.channel(server), Side::Acceptor, number, bytes);
        }
        while let Some((to, message)) = self.client.poll_control() {
            let server = to.0 as usize;
            let bytes = self.servers[server].to_server.push(message);
            cx.write(self.stream(server), Side::Opener, bytes);
        }
        while let Some(event) = self.client.poll_event() {
            debug_assert!(
                !matches!(event, ClientEvent::Failed { .. }),
                "servers hold what they are asked for"
            );
        }
        if self.client.is_done() && self.connecting == 0 && self.ended_at.is_none() {
            match self.warmup_left.checked_sub(1) {
                Some(left) => self.warmup_left = left,
                None => self.rounds.push((self.began_at, cx.now())),
            }
            if self.rounds_left > 0 {
                return self.begin_round(cx);
            }
            self.ended_at = Some(cx.now());
        }
        if let Some(at) = self.client.poll_timeout()
            && self.client_armed_at.is_none_or(|armed| at < armed)
        {
            self.client_armed_at = Some(at);
            cx.arm(at.max(cx.now()), CLIENT);
        }
    }

    /// Performs all possible work of a server.
    fn stir_server(&mut self, cx: &mut AppCx<'_, '_>, server: usize) {
        let (stream, channel) = (self.stream(server), self.channel(server));
        let now = cx.now();
        let side = &mut self.servers[server];
        while let Some(event) = side.machine.poll_event() {
            if let ServerEvent::Asked { pull, .. } = event {
                let (first_id, secret) = (self.random.next_u64() as u32, self.secrets.next_u64());
                let object_bytes = self.settings.block.as_u64();
                side.machine.offer(now, pull, Offer { object_bytes, first_id, secret });
            }
        }
        while let Some((pull, generation, range)) = side.machine.poll_wanted() {
            let Some(length) = side.machine.block_bytes(pull) else { break };
            let blocks = (range.end - range.start).div_ceil(length.into()) as usize;
            side.machine.supply(pull, generation, vec![Len(length as usize); blocks]);
        }
        while let Some(message) = side.machine.poll_control() {
            let bytes = side.to_client.push(message);
            cx.write(stream, Side::Acceptor, bytes);
        }
        while let Some(accepted) = side.machine.poll_unsaid() {
            let datagram = Datagram::Accepted(accepted);
            let bytes = datagram.wire_len() + self.settings.seal_bytes() + self.settings.header_bytes;
            let number = side.datagrams.push(datagram);
            cx.send(channel, Side::Opener, number, bytes);
        }
        while let Some(packet) = side.machine.poll_transmit(now) {
            let mut bytes = packet.wire_len() + self.settings.seal_bytes() + self.settings.header_bytes;
            if let Some(code) = &self.code {
                // The packet has a byte for the degree and a byte for each block instead of the
                // id's four bytes.
                code.neighbours(packet.id, &mut self.neighbours);
                bytes = bytes - 4 + 1 + self.neighbours.len() as u32;
                self.named += self.neighbours.len() as u64;
            }
            self.sent += 1;
            let number = side.datagrams.push(Datagram::Packet(packet));
            cx.send(channel, Side::Opener, number, bytes);
        }
        if let Some(at) = side.machine.poll_timeout()
            && side.armed_at.is_none_or(|armed| at < armed)
        {
            side.armed_at = Some(at);
            cx.arm(at.max(now), server as u16 + 1);
        }
    }
}

impl App for GatherApp {
    fn start(&mut self, cx: &mut AppCx<'_, '_>) {
        for server in 0..self.servers.len() {
            let host = self.servers[server].host;
            let priority = self.settings.priority;
            let spec = StreamSpec {
                from: self.host,
                to: host,
                links: [None; 2],
                size: None,
                priority,
                is_control: true,
            };
            let stream = cx.open(&spec);
            cx.open_channel(host, self.host, priority);
            if server == 0 {
                self.first_flow = stream;
            }
            self.servers[server].opened_at = cx.now();
        }
        if !cx.has_handshakes() {
            for server in 0..self.servers.len() {
                self.connected(cx, server);
            }
        }
    }

    fn on_stream(&mut self, cx: &mut AppCx<'_, '_>, stream: u32, side: Side, event: StreamEvent) {
        let server = (stream - self.first_flow) as usize / 2;
        match (event, side) {
            (StreamEvent::Connected, Side::Opener) => self.connected(cx, server),
            (StreamEvent::Arrived { bytes }, Side::Opener) => {
                cx.read(stream, side, bytes);
                self.servers[server].to_client.bytes += bytes;
                while let Some(message) = self.servers[server].to_client.pop() {
                    self.client.handle_control(cx.now(), ServerId(server as u32), message);
                }
                self.stir_client(cx);
            }
            (StreamEvent::Arrived { bytes }, Side::Acceptor) => {
                cx.read(stream, side, bytes);
                let its = &mut self.servers[server];
                its.to_server.bytes += bytes;
                while let Some(message) = its.to_server.pop() {
                    its.machine.handle_control(cx.now(), message);
                }
                self.stir_server(cx, server);
            }
            _ => {}
        }
    }

    fn on_datagram(&mut self, cx: &mut AppCx<'_, '_>, channel: u32, side: Side, number: u64) {
        let server = (channel - self.first_flow) as usize / 2;
        let its = &mut self.servers[server];
        match side {
            Side::Acceptor => {
                let server = ServerId(server as u32);
                match its.datagrams.take(number) {
                    Some(Datagram::Packet(packet)) => {
                        cx.deliver(channel, packet.payload.len() as u64);
                        self.client.handle_packet(cx.now(), server, packet);
                    }
                    Some(Datagram::Accepted(accepted)) => {
                        self.client.handle_control(cx.now(), server, Control::Accepted(accepted));
                    }
                    Some(Datagram::Feedback(_)) | None => return,
                }
                self.stir_client(cx);
            }
            Side::Opener => {
                let Some(feedback) = its.feedback.take(number) else { return };
                its.machine.handle_feedback(cx.now(), &feedback);
                self.stir_server(cx, server);
            }
        }
    }

    fn on_timer(&mut self, cx: &mut AppCx<'_, '_>, token: u16) {
        let now = cx.now();
        match token.checked_sub(1) {
            None => {
                if self.client_armed_at.take_if(|at| *at <= now).is_some() {
                    self.client.handle_timeout(now);
                    self.stir_client(cx);
                }
            }
            Some(server) => {
                let server = usize::from(server);
                if self.servers[server].armed_at.take_if(|at| *at <= now).is_some() {
                    self.servers[server].machine.handle_timeout(now);
                    self.stir_server(cx, server);
                }
            }
        }
    }

    fn end_warmup(&mut self) {}
    fn ended_at(&self) -> Option<Instant> {
        self.ended_at
    }
    fn allowed_bps(&self, flow: u32) -> Option<f64> {
        // Each server has two flow numbers: its stream, then its channel.
        let server = self.servers.get(flow.checked_sub(self.first_flow)? as usize / 2)?;
        Some(server.machine.allowed_bps())
    }
    fn progress(&self) -> Option<f64> {
        let all = self.settings.rounds + self.settings.warmup_rounds;
        Some(f64::from(all - self.rounds_left) / f64::from(all))
    }

    fn report(&self, _: Duration, row: &mut WorkloadRow) {
        let us = |time: Duration| time.as_secs_f64() * 1e6;
        let bytes = self.settings.round_bytes(self.servers.len());
        if self.rounds.is_empty() {
            // The run's time ended before the first round. The row then keeps the received bytes,
            // including useless packets.
            return;
        }
        row.rounds(self.rounds.iter().map(|(began, ended)| us(*ended - *began)).collect(), bytes);
        let all_rounds = self.settings.rounds + self.settings.warmup_rounds - self.rounds_left;
        let blocks = bytes.div_ceil(self.settings.symbol.as_u64()).max(1) * u64::from(all_rounds.max(1));
        row.more.insert("sent_packets_per_block", self.sent as f64 / blocks as f64);
        row.more.insert("received_packets_per_block", self.client.counts().packets as f64 / blocks as f64);
        if self.code.is_some() && self.sent > 0 {
            // Table I of the paper: each received packet has a byte for its degree, and a byte for
            // each block that it names.
            let pulls = f64::from(all_rounds.max(1)) * self.servers.len() as f64;
            let (packets, degree) =
                (self.client.counts().packets as f64 / pulls, self.named as f64 / self.sent as f64);
            let came = packets * (self.settings.symbol.as_u64() as f64 + 1.0 + degree);
            row.more.insert("received_packets_per_pull", packets);
            row.more.insert("packets_degree_mean", degree);
            row.more.insert("overhead_share", came / self.settings.block.as_u64() as f64 - 1.0);
        }
        // Ideal time: all blocks with their headers at the rate of the last hop, plus one round
        // trip.
        let header = Packet::<Len>::header_bytes(self.client.rate_control());
        let packet = header + self.settings.header_bytes + self.settings.seal_bytes();
        let pulls = if self.settings.same_block { 1 } else { self.servers.len() as u64 };
        let on_link =
            bytes + u64::from(packet) * pulls * (bytes / pulls).div_ceil(self.settings.symbol.as_u64());
        let ideal_us = us(self.rtt) + on_link as f64 * 8e6 / self.link.as_bps() as f64;
        row.more.insert("ideal_mbps", bytes as f64 * 8.0 / ideal_us);
        if let Some(goodput) = row.goodput_mbps {
            row.more.insert("of_ideal_share", goodput * ideal_us / (bytes as f64 * 8.0));
        }
    }
}

#[cfg(test)]
mod tests;
