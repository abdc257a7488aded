//! Tests of two hosts, each with its layer and its choice of paths, in virtual time, while paths
//! fail.
//!
//! Leaves out: the behaviour of each part alone, which the part's own tests cover. Read [`Pair`]
//! first.

use crate::ways::{Chooser, DatagramClass};
use crate::{Body, Config, Datagram, FlowId, Host, OutgoingPacket};
use anabranch_endpoint::Bytes;
use anabranch_units::{BitRate, Duration, Instant, Seed};

const WAYS: u16 = 64;
/// One-way delay of a datagram.
const FLIGHT: Duration = Duration::from_ms(2);
/// Interval between two reports of an end, and number of datagrams with each report, as in `link`.
const SAY: Duration = Duration::from_secs(1);
const SAID: u32 = 3;

/// Two ends. Packets from TCP are numbered, and deliveries are recorded.
struct Pair {
    hosts: [Host<Bytes>; 2],
    choosers: [Chooser; 2],
    flying: Vec<(Instant, usize, Option<Datagram<Bytes>>)>,
    now: Instant,
    /// Returns true if a path towards an end is dead.
    is_dead: fn(usize, u16) -> bool,
    /// First byte of each packet delivered at each end.
    handed: [Vec<u8>; 2],
    say_at: Instant,
    /// Time of the last report that each end received from the other.
    said_at: [Instant; 2],
}

impl Pair {
    fn new(seed: u64, is_dead: fn(usize, u16) -> bool) -> Self {
        let config = Config {
            say_within: Duration::from_us(500),
            jitter: Duration::from_us(500),
            ..Config::of_agent()
        };
        let host = || Host::new(config.clone()).expect("it can be");
        let now = Instant::ZERO + Duration::from_secs(1);
        let stream = |end| Seed::new(seed).stream("ways", end);
        Self {
            hosts: [host(), host()],
            choosers: [0, 1].map(|end| Chooser::new(stream(end), WAYS, BitRate::mbps(40))),
            flying: Vec::new(),
            now,
            is_dead,
            handed: Default::default(),
            say_at: now,
            said_at: [now; 2],
        }
    }

    fn send(&mut self, from: usize, flow: u32, packet: u8, payload_bytes: u32) {
        let outgoing = OutgoingPacket {
            packet: Bytes::from(vec![packet]),
            payload_bytes,
            is_acknowledgement: payload_bytes == 0,
            is_end: false,
            flow_size: None,
        };
        let id = FlowId { peer: 1 - from as u32, flow };
        self.hosts[from].handle_packet(self.now, id, outgoing);
        self.stir();
    }

    fn fly(&mut self, from: usize, way: u16, datagram: Option<Datagram<Bytes>>) {
        if !(self.is_dead)(1 - from, way) {
            self.flying.push((self.now + FLIGHT, 1 - from, datagram));
        }
    }

    fn stir(&mut self) {
        let now = self.now;
        for end in 0..2 {
            while let Some(arrived) = self.hosts[end].poll_arrived() {
                self.handed[end].push(arrived.packet[0]);
            }
            loop {
                while let Some(leaving) = self.hosts[end].poll_leaving() {
                    let way = match leaving.datagram.body {
                        Body::Bare => self.choosers[end].choose(now, leaving.class),
                        _ => self.choosers[end].handle_leaving(now, leaving.class).1,
                    };
                    self.fly(end, way, Some(leaving.datagram));
                }
                let Some(is_dark) = self.choosers[end].poll_probe(now) else { break };
                self.hosts[end].handle_probe(now, 1 - end as u32, is_dark);
            }
        }
    }

    /// Advances time to `until`.
    fn pass(&mut self, until: Instant) {
        loop {
            let due = self.hosts.iter().filter_map(Host::poll_timeout);
            let due = due.chain(self.choosers.iter_mut().filter_map(Chooser::poll_timeout));
            let due = due.chain(self.flying.iter().map(|(due, ..)| *due)).chain([self.say_at]).min();
            let Some(due) = due.filter(|due| *due <= until) else { break };
            self.now = self.now.max(due);
            let now = self.now;
            if self.say_at <= now {
                self.say_at = now + SAY;
                for end in 0..2 {
                    for _ in 0..SAID {
                        let way = self.choosers[end].choose(now, DatagramClass::Other);
                        self.fly(end, way, None);
                        self.hosts[end].handle_probe(now, 1 - end as u32, false);
                    }
                }
            }
            for end in 0..2 {
                self.hosts[end].handle_timeout(now);
                self.choosers[end].handle_timeout(now);
            }
            let (here, later) =
                std::mem::take(&mut self.flying).into_iter().partition(|(due, ..)| *due <= now);
            self.flying = later;
            for (_, to, datagram) in here {
                let Some(datagram) = datagram else {
                    self.said_at[to] = now;
                    continue;
                };
                for echo in &datagram.echoes {
                    self.choosers[to].handle_echo(now, echo.number, echo.ago, echo.is_marked);
                }
                self.hosts[to].handle_datagram(now, 1 - to as u32, datagram, (1_000, false));
            }
            self.stir();
        }
        self.now = until;
    }

    fn pass_ms(&mut self, ms: u64) {
        self.pass(self.now + Duration::from_ms(ms));
    }
}

/// Half of all paths are dead, and the hosts do not know which. Most connections begin without a
/// retransmission by TCP.
#[test]
fn connections_start_quickly_with_half_the_paths_dead() {
    let mut slow = [0; 4];
    for seed in 0..200 {
        let mut pair = Pair::new(seed, |_, way| way % 2 == 0);
        for flow in 0..4u8 {
            pair.send(0, flow.into(), flow, 1);
            pair.pass_ms(30);
            slow[usize::from(flow)] += usize::from(!pair.handed[1].contains(&flow));
            pair.pass_ms(300);
        }
    }
    assert!(slow[0] <= 30 && slow[1..].iter().all(|slow| *slow <= 2), "{slow:?} of 200 took more than 30 ms");
}

/// Half of the paths are dead from the start. Then they recover and the other half dies, all at
/// once. TCP continues by its own timer, mostly with the second attempt and within a second and a
/// half, and both ends stay connected.
#[test]
fn live_paths_are_found_when_all_used_paths_die() {
    let mut took = Vec::new();
    for seed in 0..200 {
        let mut pair = Pair::new(seed, |_, way| way % 2 == 0);
        // A stream of data in one direction, acknowledgements in the other.
        for _ in 0..3_000 {
            pair.send(1, 1, 0, 1_400);
            pair.pass(pair.now + Duration::from_us(300));
            pair.send(0, 1, 0, 0);
            pair.pass(pair.now + Duration::from_us(300));
        }
        pair.is_dead = |_, way| way % 2 == 1;
        let began = pair.now;
        for _ in 0..10 {
            pair.send(1, 1, 0, 1_400);
        }
        pair.handed = Default::default();
        let mut timer = Duration::from_ms(200);
        // The data is retransmitted until an answer arrives.
        'tries: for n in 1..10 {
            pair.pass(pair.now + timer);
            timer = timer * 2;
            pair.send(1, 1, n, 1_400);
            for _ in 0..20 {
                pair.pass_ms(1);
                if pair.handed[0].contains(&n) && !pair.handed[1].contains(&n) {
                    pair.send(0, 1, n, 0);
                }
                if pair.handed[1].contains(&n) {
                    break 'tries;
                }
            }
        }
        took.push((pair.now - began).as_us() / 1_000);
        while pair.now < began + Duration::from_secs(6) {
            pair.pass_ms(10);
            let silent = pair.said_at.iter().map(|at| pair.now - *at).max().unwrap_or_default();
            assert!(silent < Duration::from_secs(3), "seed {seed}: an end is silent");
        }
    }
    took.sort_unstable();
    assert!(took[190] < 700 && took[199] < 1_500, "{took:?} ms");
}
