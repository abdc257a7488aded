//! A client and its servers, with objects, over links that delay, lose, duplicate and reorder
//! datagrams.

use anabranch_endpoint::{Bytes, WireMessage as _};
use anabranch_gather_proto::msg::{Control, Datagram};
use anabranch_gather_proto::{
    Client, ClientConfig, ClientEvent, Offer, Server, ServerConfig, ServerEvent, ServerId,
};
use anabranch_units::{BitRate, Duration, Instant, RandomStream, Seed};
use std::collections::BTreeMap;

/// Number of datagrams lost together.
const BURST: u32 = 50;

/// Delay and faults of datagrams. Control messages arrive after the delay, in order.
#[derive(Copy, Clone, Debug)]
pub struct WireSettings {
    pub delay: Duration,
    pub loss_ppm: u32,
    pub repeat_ppm: u32,
    /// Share of datagrams that arrive one delay later than the other datagrams.
    pub late_ppm: u32,
    /// Share of datagrams, in either direction, that begin a run of [`BURST`] lost datagrams.
    pub burst_ppm: u32,
    /// Maximum datagram length in bytes; longer datagrams are lost.
    pub mtu: usize,
    /// Extra delay of control messages to the client, as after a lost segment.
    pub held_up: Duration,
}

impl Default for WireSettings {
    fn default() -> Self {
        let (loss_ppm, repeat_ppm, late_ppm, burst_ppm) = (0, 0, 0, 0);
        Self {
            delay: Duration::from_us(500),
            loss_ppm,
            repeat_ppm,
            late_ppm,
            burst_ppm,
            mtu: usize::MAX,
            held_up: Duration::ZERO,
        }
    }
}

#[derive(Debug)]
enum Arrival {
    ToServer(u32, Vec<u8>),
    ToClient(u32, Vec<u8>),
    ControlToServer(u32, Vec<u8>),
    ControlToClient(u32, Vec<u8>),
    Death(u32),
}

/// A server with its objects.
struct Host {
    server: Server<Bytes>,
    objects: BTreeMap<String, Vec<u8>>,
    /// Name of each pull's object.
    names: BTreeMap<u16, String>,
    is_alive: bool,
}

pub struct World {
    pub client: Client<Bytes>,
    pub events: Vec<ClientEvent<Bytes>>,
    pub packets_sent: usize,
    servers: Vec<Host>,
    server_config: ServerConfig,
    now: Instant,
    wire: WireSettings,
    random: RandomStream,
    arrivals: BTreeMap<(Instant, u64), Arrival>,
    number: u64,
    burst_left: u32,
}

/// `size` random bytes that differ for each `number`.
pub fn object(number: u64, size: usize) -> Vec<u8> {
    let mut random = Seed::new(number).stream("object", 0);
    (0..size).map(|_| random.next_u64() as u8).collect()
}

impl World {
    pub fn new(seed: u64, wire: WireSettings, config: ClientConfig, server_config: ServerConfig) -> Self {
        Self {
            client: Client::new(config).expect("a good configuration"),
            events: Vec::new(),
            packets_sent: 0,
            servers: Vec::new(),
            // The tests use short objects and short blocks.
            server_config: ServerConfig { block_bytes_min: 1, ..server_config },
            now: Instant::ZERO,
            wire,
            random: Seed::new(seed).stream("wire", 0),
            arrivals: BTreeMap::new(),
            number: 0,
            burst_left: 0,
        }
    }
    pub fn add_server(&mut self) -> ServerId {
        let server = Server::new(self.server_config.clone());
        let (objects, names) = (BTreeMap::new(), BTreeMap::new());
        self.servers.push(Host { server, objects, names, is_alive: true });
        self.client.add_server()
    }
    /// Adds a server with this maximum rate.
    pub fn add_slow_server(&mut self, rate: BitRate) -> ServerId {
        let id = self.add_server();
        let config = ServerConfig { rate_max: Some(rate), ..self.server_config.clone() };
        self.servers[id.0 as usize].server = Server::new(config);
        id
    }
    /// Sets the loss rate of datagrams sent from now on.
    pub const fn lose(&mut self, loss_ppm: u32) {
        self.wire.loss_ppm = loss_ppm;
    }
    pub fn put(&mut self, server: ServerId, name: &str, bytes: Vec<u8>) {
        self.servers[server.0 as usize].objects.insert(name.to_owned(), bytes);
    }
    pub fn kill_at(&mut self, server: ServerId, after: Duration) {
        self.arrive(Instant::ZERO + after, Arrival::Death(server.0));
    }
    fn arrive(&mut self, at: Instant, arrival: Arrival) {
        self.number += 1;
        self.arrivals.insert((at, self.number), arrival);
    }
    fn datagram(&mut self, make: impl Fn(Vec<u8>) -> Arrival, datagram: &Datagram<Bytes>) {
        let WireSettings { delay, loss_ppm, repeat_ppm, late_ppm, burst_ppm, mtu, .. } = self.wire;
        if burst_ppm > 0 && self.random.chance_ppm(burst_ppm) {
            self.burst_left = BURST;
        }
        if self.burst_left > 0 {
            self.burst_left -= 1;
            return;
        }
        let mut bytes = Vec::new();
        datagram.encode(&mut bytes);
        let copies = 1 + u32::from(self.random.chance_ppm(repeat_ppm));
        for _ in 0..copies {
            if bytes.len() <= mtu && !self.random.chance_ppm(loss_ppm) {
                let late = self.random.chance_ppm(late_ppm);
                let at = self.now + delay * (1 + u64::from(late));
                self.arrive(at, make(bytes.clone()));
            }
        }
    }
    /// Runs until no event is left, at most for `time`.
    pub fn run(&mut self, time: Duration) {
        let end = self.now + time;
        let rtt = Some(self.wire.delay * 2);
        for server in 0..self.servers.len() {
            self.client.handle_connected(self.now, ServerId(server as u32), rtt);
        }
        self.client.begin(self.now);
        loop {
            self.settle();
            let servers = self.servers.iter().filter(|s| s.is_alive).filter_map(|s| s.server.poll_timeout());
            let arrival = self.arrivals.first_key_value().map(|((at, _), _)| *at);
            let Some(next) = servers.chain(self.client.poll_timeout()).chain(arrival).min() else { break };
            assert!(
                next >= self.now,
                "a deadline that was there has been dealt with: {next:?} at {:?}",
                self.now
            );
            if next > end {
                break;
            }
            self.now = next;
            while let Some(entry) = self.arrivals.first_entry().filter(|entry| entry.key().0 <= self.now) {
                let arrival = entry.remove();
                self.handle(arrival);
                self.settle();
            }
            self.client.handle_timeout(self.now);
            for host in self.servers.iter_mut().filter(|s| s.is_alive) {
                host.server.handle_timeout(self.now);
            }
        }
    }
    fn handle(&mut self, arrival: Arrival) {
        let now = self.now;
        match arrival {
            Arrival::Death(server) => self.servers[server as usize].is_alive = false,
            Arrival::ToServer(to, bytes) => {
                let Ok(Datagram::Feedback(feedback)) = Datagram::decode(&bytes) else { panic!("feedback") };
                self.servers[to as usize].server.handle_feedback(now, &feedback);
            }
            Arrival::ToClient(from, bytes) => {
                let from = ServerId(from);
                match Datagram::decode(&bytes) {
                    Ok(Datagram::Packet(packet)) => self.client.handle_packet(now, from, packet),
                    Ok(Datagram::Accepted(accepted)) => {
                        self.client.handle_control(now, from, Control::Accepted(accepted));
                    }
                    other => panic!("{other:?}"),
                }
            }
            Arrival::ControlToServer(to, bytes) => {
                let (message, _) = Control::decode_framed(&bytes).expect("well written").expect("whole");
                self.servers[to as usize].server.handle_control(now, message);
            }
            Arrival::ControlToClient(from, bytes) => {
                let (message, _) = Control::decode_framed(&bytes).expect("well written").expect("whole");
                self.client.handle_control(now, ServerId(from), message);
            }
        }
    }
    fn settle(&mut self) {
        let (now, delay) = (self.now, self.wire.delay);
        while let Some((to, message)) = self.client.poll_control() {
            let mut bytes = Vec::new();
            message.encode_framed(&mut bytes);
            self.arrive(now + delay, Arrival::ControlToServer(to.0, bytes));
        }
        while let Some((to, feedback)) = self.client.poll_transmit(now) {
            self.datagram(|bytes| Arrival::ToServer(to.0, bytes), &Datagram::Feedback(feedback));
        }
        while let Some(event) = self.client.poll_event() {
            self.events.push(event);
        }
        for at in 0..self.servers.len() {
            let Host { server, objects, names, is_alive } = &mut self.servers[at];
            if !*is_alive {
                continue;
            }
            while let Some(event) = server.poll_event() {
                assert!(!matches!(event, ServerEvent::FalseReceipt { .. }), "an honest client: {event:?}");
                if let ServerEvent::Asked { pull, object } = event {
                    match objects.get(&object) {
                        None => server.refuse(pull, format!("{object}: no such object")),
                        Some(bytes) => {
                            names.insert(pull.0, object);
                            server.offer(
                                now,
                                pull,
                                Offer { object_bytes: bytes.len() as u64, first_id: 7, secret: 7 },
                            );
                        }
                    }
                }
            }
            while let Some((pull, generation, range)) = server.poll_wanted() {
                let bytes = &objects[&names[&pull.0]][range.start as usize..range.end as usize];
                let length = server.block_bytes(pull).expect("it is under way") as usize;
                let blocks = bytes.chunks(length).map(Bytes::copy_from_slice).collect();
                server.supply(pull, generation, blocks);
            }
            let mut control = Vec::new();
            while let Some(message) = server.poll_control() {
                let mut bytes = Vec::new();
                message.encode_framed(&mut bytes);
                control.push(bytes);
            }
            let mut packets = Vec::new();
            while let Some(packet) = server.poll_transmit(now) {
                packets.push(packet);
            }
            let unsaid: Vec<_> = std::iter::from_fn(|| server.poll_unsaid()).collect();
            for accepted in unsaid {
                self.datagram(|bytes| Arrival::ToClient(at as u32, bytes), &Datagram::Accepted(accepted));
            }
            for bytes in control {
                self.arrive(now + delay + self.wire.held_up, Arrival::ControlToClient(at as u32, bytes));
            }
            self.packets_sent += packets.len();
            for packet in packets {
                self.datagram(|bytes| Arrival::ToClient(at as u32, bytes), &Datagram::Packet(packet));
            }
        }
    }
    pub fn is_complete(&self, piece: usize) -> bool {
        self.events
            .iter()
            .any(|event| matches!(event, ClientEvent::Complete { piece: p } if p.0 as usize == piece))
    }
    pub fn has_failed(&self, piece: usize) -> bool {
        self.events
            .iter()
            .any(|event| matches!(event, ClientEvent::Failed { piece: p, .. } if p.0 as usize == piece))
    }
    pub fn servers_are_idle(&self) -> bool {
        self.servers.iter().all(|host| host.server.is_idle())
    }
    /// The received bytes of a piece's object, with zeros for missing bytes.
    pub fn got(&self, piece: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        for event in &self.events {
            match event {
                ClientEvent::Accepted { piece: p, object_bytes, .. } if p.0 as usize == piece => {
                    bytes.resize(*object_bytes as usize, 0);
                }
                ClientEvent::Blocks { piece: p, range, blocks } if p.0 as usize == piece => {
                    let all: Vec<u8> = blocks.iter().flatten().copied().collect();
                    let length = (range.end - range.start) as usize;
                    bytes[range.start as usize..range.end as usize].copy_from_slice(&all[..length]);
                }
                _ => {}
            }
        }
        bytes
    }
    /// The events so far, without received bytes, as text for failure messages.
    pub fn story(&self) -> String {
        let events = self.events.iter().filter(|event| !matches!(event, ClientEvent::Blocks { .. }));
        format!("at {:?}, {} packets: {:?}", self.now, self.packets_sent, events.collect::<Vec<_>>())
    }
}
