//! Fuzzing of a client and a server with random valid messages at random times.
//!
//! The input bytes are read as a list of messages and waits. Each message is encoded and decoded,
//! so that only messages occur that could arrive. After each step the held memory must be within
//! the configured limits. Leaves out: the decoding of arbitrary bytes (`msg::exercise`).

use crate::msg::{
    ArrivalReport, Control, Datagram, Feedback, Numbers, Packet, PullAcceptance, PullId, Report, Request,
    Timing,
};
use crate::receipt::{Receipt, ReceivedPackets};
use crate::{
    Client, ClientConfig, Mode, Offer, Piece, RateControl, Server, ServerConfig, ServerEvent, ServerId,
};
use anabranch_endpoint::{Bytes, Message as _, WireMessage as _};
use anabranch_transport::tfrc;
use anabranch_units::{BitRate, ByteCount, Duration, Instant};
use std::collections::BTreeMap;

/// Maximum number of steps of one input, so that the input ends soon.
const STEPS_MAX: usize = 400;
/// Bytes of a first flight over the longest path, with headers of short blocks.
const FIRST_FLIGHT_BYTES: u64 = 75_000;
/// Maximum bytes sent per byte received. BBR's start sends 2.8 times the arriving rate, counts are
/// credited up to twice the proven bytes, and the rate is kept for some round trips.
const FLOOD_FACTOR: u64 = 16;
/// Interval between probes of a silent path in microseconds.
const ASK_EVERY_US: u64 = 10_000;
/// Maximum size of a probe in bytes.
const ASK_BYTES: u64 = 200;

/// Numbers drawn from a list of bytes. Beyond the end of the list all numbers are 0.
struct Draw<'a> {
    left: &'a [u8],
}

impl Draw<'_> {
    fn byte(&mut self) -> u8 {
        let (first, rest) = self.left.split_first().unwrap_or((&0, &[]));
        self.left = rest;
        *first
    }
    fn flag(&mut self) -> bool {
        self.byte() & 1 == 1
    }
    /// A small number, a number near a power of two, or an arbitrary number.
    fn number(&mut self) -> u64 {
        match self.byte() {
            small @ 0..=199 => small.into(),
            power @ 200..=249 => (1 << (power - 200 + 7)) - u64::from(self.flag()),
            250..=252 => u32::MAX.into(),
            253 => u64::MAX,
            _ => (0..8).fold(0, |number, _| number << 8 | u64::from(self.byte())),
        }
    }
    fn small(&mut self, below: u32) -> u32 {
        self.byte() as u32 % below
    }
    fn pull(&mut self, below: u32) -> PullId {
        PullId(self.small(below) as u16)
    }
    fn time(&mut self) -> Duration {
        Duration::from_ns(self.number().min(u64::MAX / 1_000))
    }
    fn share(&mut self) -> f64 {
        f64::from(self.byte()) / 255.0
    }
}

/// A message after its encoding and decoding.
fn carried(message: &Control) -> Control {
    let mut bytes = Vec::new();
    message.encode_framed(&mut bytes);
    Control::decode_framed(&bytes).expect("what is written can be read").expect("it is whole").0
}

fn carried_datagram(datagram: &Datagram<Bytes>) -> Datagram<Bytes> {
    let mut bytes = Vec::new();
    datagram.encode(&mut bytes);
    Datagram::decode(&bytes).expect("what is written can be read")
}

/// Runs a client against servers whose messages `bytes` describe.
pub fn exercise_client(bytes: &[u8]) {
    let mut draw = Draw { left: bytes };
    let config = ClientConfig {
        block_bytes: 1 + draw.small(40),
        block_bytes_safe: 8,
        blocks_max: 1 + draw.small(20),
        window: 1 + draw.small(4),
        pulls_max: 1 + draw.small(6) as usize,
        link: draw.flag().then(|| BitRate::bps(1_000 + draw.number().min(1 << 40))),
        ..ClientConfig::default()
    };
    let most = config.memory().as_u64();
    let mut client = Client::<Bytes>::new(config.clone()).expect("within limits");
    let servers: Vec<ServerId> = (0..3).map(|_| client.add_server()).collect();
    for piece in 0..4 {
        let ranges = (piece > 0).then(|| std::iter::once(0..100 * piece * piece * piece).collect());
        let holders = servers[piece as usize % 3..].to_vec();
        client.add(Piece { object: "object".into(), ranges, holders });
    }
    let mut now = Instant::ZERO;
    let beginning = client.add_beginning("object".into(), 500, servers[0]);
    client.begin(now);
    for _ in 0..STEPS_MAX {
        if draw.left.is_empty() {
            break;
        }
        let (server, pull) = (ServerId(draw.small(3)), draw.pull(12));
        match draw.byte() % 14 {
            0 => now += Duration::from_us(draw.number().min(10_000_000)),
            1 => client.handle_connected(
                now,
                server,
                draw.flag().then(|| Duration::from_us(draw.number() % (1 << 32))),
            ),
            2 => client.handle_lost(now, server, "lost"),
            3 => client.handle_control(now, server, carried(&Control::Refused { pull, reason: "no".into() })),
            4 => client.handle_control(now, server, carried(&Control::GaveUp { pull, reason: "no".into() })),
            5 => client.widen(beginning, servers.clone(), draw.number().max(1)),
            6 => client.cancel(now, beginning),
            7 | 8 => {
                // The answer accepts the requested range, or another range.
                let bytes = [0, 100, 500, 800, 2_700, draw.number()][draw.small(6) as usize];
                let object_bytes = if draw.flag() { bytes } else { draw.number() };
                let block_bytes = if draw.flag() { config.block_bytes } else { draw.number() as u32 };
                let blocks_max = if draw.flag() { config.blocks_max } else { draw.number() as u32 };
                let accepted = PullAcceptance { pull, object_bytes, bytes, block_bytes, blocks_max };
                client.handle_control(now, server, carried(&Control::Accepted(accepted)));
            }
            _ => {
                let first = Packet {
                    pull,
                    sequence: draw.number() as u32,
                    timing: draw.flag().then(|| Timing {
                        sent_at: Instant::ZERO + draw.time(),
                        rtt: draw
                            .flag()
                            .then(|| Duration::from_us(draw.number() % (1 << 32)).max(Duration::from_us(1))),
                    }),
                    queued: draw.flag(),
                    nonce: 0,
                    generation: draw.small(6),
                    id: draw.number() as u32,
                    payload: Bytes::from(vec![
                        draw.byte();
                        if draw.flag() { config.block_bytes } else { draw.small(80) }
                            as usize
                    ]),
                };
                // Further packets follow with related ids.
                let step = [0, 1, 2, 1 << 24][draw.small(4) as usize];
                for number in 0..1 + draw.small(40) {
                    let (sequence, id) = (
                        first.sequence.wrapping_add(number),
                        first.id.wrapping_add(number.wrapping_mul(step)),
                    );
                    let rate_control =
                        if first.timing.is_some() { RateControl::Tfrc } else { RateControl::Bbr };
                    let numbers = Numbers::of(rate_control);
                    let (sequence, id) = (sequence % numbers.packets, id % numbers.ids);
                    let packet = Datagram::Packet(Packet { sequence, id, ..first.clone() });
                    let Datagram::Packet(packet) = carried_datagram(&packet) else { continue };
                    client.handle_packet(now, server, packet);
                    assert!(client.held_bytes() <= most, "{} B held, {most} B allowed", client.held_bytes());
                }
            }
        }
        while client.poll_event().is_some() {}
        while let Some((_, message)) = client.poll_control() {
            carried(&message);
        }
        while client.poll_transmit(now).is_some() {}
        if client.poll_timeout().is_some_and(|at| at <= now) || draw.flag() {
            client.handle_timeout(now);
        }
        assert!(client.held_bytes() <= most, "{} B held, {most} B allowed", client.held_bytes());
    }
}

/// Maximum bytes of a first flight under a grant, before any proven arrival.
const UNPROVEN_MAX: ByteCount = ByteCount::new(20_000);

/// Bytes that a server has sent, and bytes that its client has received.
#[derive(Debug, Default)]
struct Flood {
    sent_bytes: u64,
    received_bytes: u64,
    pulls: u64,
}

impl Flood {
    /// Checks the bytes sent against a first flight per pull, a multiple of the bytes received, and
    /// the probes of a silent path.
    fn check(&self, now: Instant) {
        let first = self.pulls * (FIRST_FLIGHT_BYTES + UNPROVEN_MAX.as_u64());
        let asks = (1 + (now - Instant::ZERO).as_us() / ASK_EVERY_US) * self.pulls * ASK_BYTES;
        let most = first + FLOOD_FACTOR * self.received_bytes + asks;
        assert!(self.sent_bytes <= most, "{self:?} after {now:?}: at most {most} B");
    }
}

/// Runs a server against a client whose messages `bytes` describe.
pub fn exercise_server(bytes: &[u8]) {
    let mut draw = Draw { left: bytes };
    let config = ServerConfig {
        pulls_max: 1 + draw.small(4) as usize,
        rate_max: draw.flag().then(|| BitRate::bps(1 + draw.number() % (1 << 40))),
        block_bytes_max: 1 + draw.small(60),
        block_bytes_min: 1,
        memory_max: ByteCount::new(1 + draw.number() % (1 << 14)),
        unproven_max: UNPROVEN_MAX,
        quantum: Duration::from_us(draw.small(200).into()),
        ..ServerConfig::default()
    };
    let most = config.memory_max.as_u64();
    let mut server = Server::<Bytes>::new(config);
    let mut now = Instant::ZERO;
    let mut receipts: BTreeMap<PullId, (u32, ReceivedPackets)> = BTreeMap::new();
    let mut flood = Flood::default();
    for _ in 0..STEPS_MAX {
        if draw.left.is_empty() {
            break;
        }
        let pull = draw.pull(6);
        match draw.byte() % 6 {
            0 => now += Duration::from_us(draw.number().min(10_000_000)),
            1 => server.handle_control(now, carried(&Control::Stop { pull })),
            2 | 3 => {
                let request = Request {
                    pull,
                    object: "object".into(),
                    start: if draw.flag() { 0 } else { draw.number() },
                    length: draw.flag().then(|| draw.number().max(1)),
                    is_cut: draw.flag(),
                    mode: if draw.flag() { Mode::Counted } else { Mode::Lttp },
                    rate_control: if draw.flag() { RateControl::Bbr } else { RateControl::Tfrc },
                    block_bytes: draw.number() as u32,
                    blocks_max: draw.number() as u32,
                    window: 5 * draw.small(70),
                    grant: draw.flag().then(|| BitRate::bps(draw.number().max(1))),
                    start_after: draw.time(),
                    rtt: draw.flag().then(|| Duration::from_us(1 + draw.number() % u64::from(u32::MAX))),
                    servers: draw.number() as u16,
                };
                server.handle_control(now, carried(&Control::Pull(request)));
            }
            _ => {
                let (sent_at, delay) = (Instant::ZERO + draw.time(), draw.time());
                let report = match draw.small(3) {
                    0 => None,
                    1 => Some(Report::Tfrc(tfrc::Report {
                        sent_at,
                        delay,
                        received_bytes_per_s: [0.0, draw.share() * 1e6, f64::MAX][draw.small(3) as usize],
                        loss_rate: draw.share(),
                    })),
                    _ => {
                        let [received, lost, runs] = std::array::from_fn(|_| draw.number() as u32);
                        Some(Report::Arrived(ArrivalReport { delay, received, lost, runs }))
                    }
                };
                // The receipt is the true receipt or a default one that proves nothing.
                let (next, receipt) = match receipts.get(&pull) {
                    Some((next, received)) if draw.byte() > 0 => (*next, received.receipt()),
                    _ => (draw.number() as u32, Receipt::default()),
                };
                let feedback = Feedback {
                    pull,
                    next,
                    receipt,
                    report,
                    grant: draw.flag().then(|| BitRate::bps(draw.number().max(1))),
                    base: draw.number() as u32,
                    lacks: (0..draw.small(65)).map(|_| draw.number() as u16).collect(),
                    is_unsaid: draw.flag(),
                };
                let Datagram::Feedback(feedback) = carried_datagram(&Datagram::Feedback(feedback)) else {
                    continue;
                };
                server.handle_feedback(now, &feedback);
            }
        }
        while let Some(event) = server.poll_event() {
            if let ServerEvent::Asked { pull, .. } = event {
                receipts.remove(&pull);
                flood.pulls += 1;
                match draw.small(4) {
                    0 => server.refuse(pull, "no".repeat(400)),
                    1 => {}
                    _ => {
                        let object_bytes = [0, 1, 3_000, draw.number()][draw.small(4) as usize];
                        server.offer(
                            now,
                            pull,
                            Offer { object_bytes, first_id: draw.number() as u32, secret: 0 },
                        );
                    }
                }
            }
        }
        while let Some((pull, generation, range)) = server.poll_wanted() {
            let block = server.block_bytes(pull).expect("it wants something") as usize;
            let bytes = vec![7; (range.end - range.start) as usize];
            server.supply(pull, generation, bytes.chunks(block).map(Bytes::copy_from_slice).collect());
            assert!(server.held_bytes() <= most, "{} B held, {most} B allowed", server.held_bytes());
        }
        while let Some(message) = server.poll_control() {
            carried(&message);
        }
        while let Some(accepted) = server.poll_unsaid() {
            carried_datagram(&Datagram::Accepted(accepted));
        }
        let comes = draw.byte();
        for number in 0..100 {
            let Some(packet) = server.poll_transmit(now) else { break };
            let Datagram::Packet(packet) = carried_datagram(&Datagram::Packet(packet)) else { continue };
            let bytes = u64::from(packet.wire_len());
            flood.sent_bytes += bytes;
            // A full link delivers some of the packets; otherwise all arrive.
            if number % (1 + u32::from(comes)) == 0 {
                flood.received_bytes += bytes;
                let (next, received) = receipts.entry(packet.pull).or_default();
                *next = (*next).max(packet.sequence + 1);
                received.handle_packet(packet.sequence, packet.nonce);
            }
        }
        flood.check(now);
        if draw.flag() {
            server.handle_timeout(now);
        }
        if draw.byte() == 0 {
            server.fail(pull, "the disk is gone".into());
        }
    }
}
