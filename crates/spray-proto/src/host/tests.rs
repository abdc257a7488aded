//! Tests of a [`Host`] alone and of two hosts together. Read [`World`] first.

use super::*;
use crate::memory::{MEMORY_MIN, PEER_FLOWS_MAX, PEER_MEMORY_MAX};
use anabranch_endpoint::Bytes;
use anabranch_units::{RandomStream, Seed};
use proptest::prelude::*;

/// Two hosts, and the datagrams in flight between them, each with its destination and arrival time.
struct World {
    hosts: [Host<Bytes>; 2],
    flying: Vec<(Instant, usize, Datagram<Bytes>)>,
    random: RandomStream,
    loss_ppm: u32,
    now: Instant,
    /// Packets that arrived in datagrams at each host, and packets that each host delivered to TCP.
    came: [Vec<Bytes>; 2],
    handed: [Vec<Bytes>; 2],
}

impl World {
    fn new(seed: u64, loss_ppm: u32, config: &Config) -> Self {
        let host = || Host::new(config.clone()).expect("it can be");
        let random = Seed::new(seed).stream("world", 0);
        let (hosts, now) = ([host(), host()], Instant::ZERO);
        Self {
            hosts,
            flying: Vec::new(),
            random,
            loss_ppm,
            now,
            came: Default::default(),
            handed: Default::default(),
        }
    }

    /// Delivers each datagram after 100 us, or one time in eight after a millisecond. Loses some
    /// datagrams, and duplicates others.
    fn stir(&mut self) {
        for at in 0..2 {
            while let Some(leaving) = self.hosts[at].poll_leaving() {
                for _ in 0..1 + usize::from(self.random.chance_ppm(10_000)) {
                    if !self.random.chance_ppm(self.loss_ppm) {
                        let slow = self.random.below(8) == 0;
                        let us = 100 + self.random.below(20) + if slow { 1_000 } else { 0 };
                        let due = self.now + Duration::from_us(us);
                        self.flying.push((due, 1 - at, leaving.datagram.clone()));
                    }
                }
            }
            while let Some(arrived) = self.hosts[at].poll_arrived() {
                self.handed[at].push(arrived.packet);
            }
        }
    }

    fn send(&mut self, from: usize, flow: u32, packet: Bytes, flow_size: Option<ByteCount>) {
        let outgoing = OutgoingPacket {
            packet,
            payload_bytes: 1_000,
            is_acknowledgement: false,
            is_end: false,
            flow_size,
        };
        self.hosts[from].handle_packet(self.now, FlowId { peer: 1 - from as u32, flow }, outgoing);
        self.stir();
    }

    /// Advances time to `until`, or with `None` until no work is left.
    fn pass(&mut self, until: Option<Instant>) {
        loop {
            let flying = self.flying.iter().map(|(due, ..)| *due).min();
            let due = self.hosts.iter().filter_map(Host::poll_timeout).chain(flying).min();
            let Some(due) = due.filter(|due| until.is_none_or(|until| *due <= until)) else { break };
            self.now = self.now.max(due);
            for host in &mut self.hosts {
                host.handle_timeout(self.now);
            }
            let (here, later) =
                std::mem::take(&mut self.flying).into_iter().partition(|(due, ..)| *due <= self.now);
            self.flying = later;
            for (_, to, datagram) in here {
                if let Body::Plain(packet) | Body::Source { packet, .. } = &datagram.body {
                    self.came[to].push(packet.clone());
                }
                self.hosts[to].handle_datagram(self.now, 1 - to as u32, datagram, (1_000, false));
            }
            self.stir();
        }
        self.now = until.unwrap_or(self.now);
    }
}

fn packet(flow: u32, number: u32) -> Bytes {
    Bytes::from([flow.to_be_bytes(), number.to_be_bytes()].concat())
}

proptest! {
    /// Under loss, reordering and duplication, the host delivers each packet that arrives, only
    /// once if flow sizes are known, and no packet that was not sent. At the end no timer is set.
    #[test]
    fn each_arrived_packet_is_delivered(
        seed: u64, loss_ppm in 0u32..300_000, knows_sizes: bool, is_agent: bool, window in 1u32..30,
        memory in prop::option::of(prop::sample::select(vec![MEMORY_MIN, PEER_MEMORY_MAX])),
    ) {
        let config = if is_agent { Config::of_agent() } else { Config { knows_sizes, ..Config::default() } };
        let config = Config { memory, ..config };
        let knows_sizes = config.knows_sizes;
        let mut world = World::new(seed, loss_ppm, &config);
        let mut sent: Vec<Bytes> = Vec::new();
        for number in 0..150 {
            for flow in 0..2 {
                sent.push(packet(flow, number));
                world.send(0, flow, packet(flow, number), Some(ByteCount::new(99_000)));
            }
            if number % window == 0 {
                world.pass(Some(world.now + Duration::from_us(150)));
            }
        }
        world.pass(None);
        let sorted = |packets: &[Bytes]| { let mut all = packets.to_vec(); all.sort(); all };
        let handed = sorted(&world.handed[1]);
        let unique: BTreeSet<&Bytes> = handed.iter().collect();
        // A duplicate that arrives after its flow was forgotten is left to TCP, like the duplicate
        // of a plain packet.
        if knows_sizes {
            prop_assert_eq!(unique.len(), handed.len(), "one was handed over twice");
        }
        prop_assert!(world.came[1].iter().all(|packet| unique.contains(packet)), "one that came was not handed over");
        prop_assert!(handed.iter().all(|packet| sent.contains(packet)), "one was never sent");
        prop_assert!(world.hosts.iter().all(|host| host.poll_timeout().is_none()), "something is waited for");
        let counts = world.hosts[0].counts();
        prop_assert!(counts.parities <= counts.sources, "{:?}", counts);
    }
}

/// Nine packets of ten take 100 us, the tenth takes a millisecond. Once the hosts have measured
/// both delays, parities recover late packets.
#[test]
fn late_packets_are_recovered_before_arrival() {
    let mut world = World::new(7, 0, &Config::default());
    for flow in 0..40 {
        for number in 0..40 {
            world.send(0, flow, packet(flow, number), Some(ByteCount::new(40_000)));
        }
        world.pass(Some(world.now + Duration::from_ms(2)));
    }
    world.pass(None);
    let (sender, receiver) = (world.hosts[0].counts(), world.hosts[1].counts());
    let blocked = sender.blocked_sum / sender.units as f64;
    assert!((0.06..0.16).contains(&blocked), "{blocked}: one in eight is");
    assert!(receiver.recovered > 100 && receiver.given_up * 50 < receiver.recovered, "{receiver:?}");
}
/// The first of three packets arrives last, 300 us after the second and 200 us after the third.
#[test]
fn holding_time_of_packets_is_counted() {
    let config = Config { parities: Parities::Fixed(0), ..Config::default() };
    let mut world = World::new(1, 0, &config);
    let mut leaving = Vec::new();
    for _ in 0..3 {
        let outgoing = OutgoingPacket {
            packet: Bytes::from(vec![0; 1_000]),
            payload_bytes: 1_000,
            is_acknowledgement: false,
            is_end: false,
            flow_size: None,
        };
        world.hosts[0].handle_packet(world.now, FlowId { peer: 1, flow: 7 }, outgoing);
        leaving.extend(std::iter::from_fn(|| world.hosts[0].poll_leaving()));
    }
    for (us, number) in [(100, 1), (200, 2), (400, 0)] {
        let datagram = leaving[number].datagram.clone();
        world.hosts[1].handle_datagram(Instant::from_us(us), 0, datagram, (1_000, false));
    }
    assert_eq!(std::iter::from_fn(|| world.hosts[1].poll_arrived()).count(), 3);
    assert!((world.hosts[1].counts().held_s - 500e-6).abs() < 1e-9, "{}", world.hosts[1].counts().held_s);
}

/// A lone packet, such as the first of a connection, is sent again when it is overdue, and TCP gets
/// it once. Of many lost packets only a few are repeated.
#[test]
fn few_lost_packets_of_short_flows_are_retransmitted() {
    let mut world = World::new(3, 0, &Config::of_agent());
    world.send(0, 1, packet(1, 0), None);
    world.pass(Some(world.now + Duration::from_ms(100)));
    assert_eq!((world.handed[1].len(), world.hosts[0].counts().repeated), (1, 0));
    world.loss_ppm = 1_000_000;
    let (mut left_at, began) = (Vec::new(), world.now);
    world.send(0, 2, packet(2, 0), None);
    while let Some(due) = world.hosts[0].poll_timeout().filter(|due| *due < began + Duration::from_ms(100)) {
        world.pass(Some(due));
        if world.hosts[0].counts().repeated > left_at.len() as u64 {
            left_at.push((world.now - began).as_us());
        }
    }
    // The first repeat leaves after one and a half round trips of up to a millisecond, plus the
    // delay of echoes.
    assert!(matches!(left_at[..], [300..2_100, 800..6_300]), "{left_at:?} us");
    for number in 1..=90 {
        world.send(0, 2, Bytes::from(vec![number as u8; 1_000]), None);
        world.pass(Some(world.now + Duration::from_ms(1)));
    }
    // The budget is a twentieth of 90 packets, and three packets.
    let repeated = world.hosts[0].counts().repeated;
    assert!((7..=9).contains(&repeated), "{repeated} of 91");
    // A repeated packet that arrives twice is delivered once.
    world.loss_ppm = 0;
    let handed = world.handed[1].len();
    world.send(0, 3, packet(3, 0), None);
    let again = world.flying[0].2.clone();
    world.hosts[1].handle_datagram(world.now, 0, again, (1_000, false));
    world.pass(None);
    assert_eq!(world.handed[1].len(), handed + 1);
}

/// An authenticated but hostile peer, and the host that it attacks.
struct Siege {
    host: Host<Bytes>,
    now: Instant,
    random: RandomStream,
    /// Payload of every datagram.
    packet: Bytes,
    /// Largest number of bytes held at any time.
    peak: ByteCount,
    handed: usize,
}

/// Kinds of datagrams that the peer of a [`Siege`] sends.
#[derive(Copy, Clone, Debug)]
enum Attack {
    /// Parities of units without source packets: 63 of 64 for each unit, 15 units a flow.
    Parities,
    /// Packets beyond a gap.
    Gaps,
    /// Packets in order on many flows; the host keeps the packets for recovery.
    Flows,
    /// Single packets far ahead, whose gaps are recorded.
    Skips,
    /// All of the other attacks, and packets of the host's own TCP, which the peer never
    /// acknowledges.
    All,
}

impl Siege {
    const FLOWS: u64 = 8_000;

    fn new(seed: u64) -> Self {
        let config = Config { memory: Some(PEER_MEMORY_MAX), ..Config::of_agent() };
        Self {
            host: Host::new(config).expect("it can be"),
            now: Instant::ZERO,
            random: Seed::new(seed).stream("siege", 0),
            packet: Bytes::from(vec![0; 1_300]),
            peak: ByteCount::ZERO,
            handed: 0,
        }
    }

    fn say(&mut self, number: u32, flow: u32, body: Body<Bytes>) {
        // A few very late packets cause the longest hold for the other packets.
        let sent_at = if self.random.below(1_000) == 0 { Instant::ZERO } else { self.now };
        let datagram = Datagram { number, sent_at, flow, body, echoes: Vec::new() };
        self.host.handle_datagram(self.now, 1, datagram, (1_300, false));
    }

    /// Sends one datagram, or one packet of the host's own TCP.
    fn step(&mut self, attack: Attack, number: u32) {
        let until = self.now + Duration::from_us(self.random.below(5));
        self.pass(until);
        let attack = match attack {
            Attack::All => match self.random.below(5) {
                0 => Attack::Parities,
                1 => Attack::Gaps,
                2 => Attack::Flows,
                3 => Attack::Skips,
                _ => return self.send(),
            },
            one => one,
        };
        let (epoch, packet) = (Instant::ZERO, self.packet.clone());
        let flow = self.random.below(Self::FLOWS) as u32;
        match attack {
            Attack::Parities => {
                let (first, index) = (self.random.below(15) as u32 * 64, self.random.below(63) as u8);
                self.say(number, flow, Body::Parity { epoch, first, packets: 64, index, parity: packet });
            }
            Attack::Gaps => {
                let ahead = 1 + number / 16 * 2;
                self.say(number, number % 16, Body::Source { epoch, number: ahead, packet });
            }
            Attack::Flows => {
                self.say(number, flow, Body::Source { epoch, number: number / 4_000, packet });
            }
            Attack::Skips => {
                let ahead = 500 * (1 + self.random.below(8) as u32);
                self.say(number, flow, Body::Source { epoch, number: ahead, packet: Bytes::new() });
            }
            Attack::All => unreachable!("it is one of the others by now"),
        }
        self.check();
    }

    /// Sends a packet of the host's own TCP.
    fn send(&mut self) {
        let packet = self.packet.clone();
        let (is_acknowledgement, is_end) = (false, false);
        let outgoing =
            OutgoingPacket { packet, payload_bytes: 1_300, is_acknowledgement, is_end, flow_size: None };
        let flow = self.random.below(Self::FLOWS) as u32;
        self.host.handle_packet(self.now, FlowId { peer: 1, flow }, outgoing);
        self.check();
    }

    fn check(&mut self) {
        while self.host.poll_leaving().is_some() {}
        self.handed += std::iter::from_fn(|| self.host.poll_arrived()).count();
        let held = self.host.held(1);
        assert!(held <= PEER_MEMORY_MAX, "{held} are held");
        assert!(self.host.flows() as u64 <= PEER_FLOWS_MAX, "{} flows", self.host.flows());
        self.peak = self.peak.max(held);
    }

    fn pass(&mut self, until: Instant) {
        while let Some(due) = self.host.poll_timeout().filter(|due| *due <= until) {
            self.host.handle_timeout(due);
            assert!(self.host.poll_timeout().is_none_or(|next| next > due), "what is due has been done");
            self.check();
        }
        self.now = until;
    }
}

/// #48: a peer's parities, gaps and flows filled the memory of a root process, and the memory was
/// not freed when the peer ended.
#[test]
fn hostile_peer_stays_within_its_budget() {
    for (seed, attack, fills) in [
        (1, Attack::Parities, true),
        (2, Attack::Gaps, true),
        (3, Attack::Flows, true),
        (4, Attack::Skips, false),
        (5, Attack::All, true),
    ] {
        let mut siege = Siege::new(seed);
        (0..30_000).for_each(|number| siege.step(attack, number));
        assert!(!fills || siege.peak > ByteCount::mib(15), "{attack:?}: {} at the most", siege.peak);
        assert!(!fills || siege.host.counts().shed > 0, "{attack:?}");
        assert_eq!(siege.host.flows_held(1), siege.host.recounted(1), "{attack:?}");
        // Silence of the peer frees all memory.
        siege.pass(siege.now + SILENCE + Duration::from_ms(100));
        assert_eq!((siege.host.held(1), siege.host.flows()), (ByteCount::ZERO, 0), "{attack:?}");
        assert_eq!(siege.host.poll_timeout(), None, "{attack:?}");
    }
}

/// #48: a peer's memory was not freed when its session ended.
#[test]
fn forgetting_a_peer_frees_all_its_memory() {
    let mut siege = Siege::new(1);
    (0..3_000).for_each(|number| siege.step(Attack::All, number));
    let (handed, flows) = (siege.handed, siege.host.flows());
    assert!(flows > 1_000 && siege.host.held(1) > ByteCount::mib(1), "{flows} {}", siege.host.held(1));
    siege.host.forget(siege.now, 1);
    assert_eq!((siege.host.held(1), siege.host.flows()), (ByteCount::ZERO, 0));
    assert_eq!(siege.host.poll_timeout(), None);
    siege.check();
    assert!(siege.handed > handed, "held packets are handed over");
    // The next session starts from a clean state.
    let before = siege.handed;
    siege.say(0, 1, Body::Source { epoch: siege.now, number: 0, packet: Bytes::new() });
    siege.check();
    assert_eq!(siege.handed, before + 1);
}

/// #48: if all peers together exceed the limit, the agent makes the largest peer give up half of
/// its memory.
#[test]
fn peer_gives_up_memory_above_a_lowered_limit() {
    let mut siege = Siege::new(1);
    (0..10_000).for_each(|number| siege.step(Attack::All, number));
    let half = ByteCount::new(siege.host.held(1).as_u64() / 2);
    siege.host.limit_memory(siege.now, 1, half);
    siege.check();
    assert!(siege.host.held(1) <= half && siege.host.held(1) > ByteCount::mib(1), "{}", siege.host.held(1));
    assert_eq!(siege.host.flows_held(1), siege.host.recounted(1));
    let handed = siege.handed;
    siege.host.limit_memory(siege.now, 1, ByteCount::ZERO);
    siege.check();
    assert!(siege.handed > handed, "held packets are handed over");
    // The few echoes that wait to leave stay.
    assert!(siege.host.held(1) < ByteCount::kib(4) && siege.host.flows() == 0, "{}", siege.host.held(1));
}

/// #48: the budget sheds the flow with the longest silence; packets of other flows still wait for
/// their gaps.
#[test]
fn oldest_flow_gives_up_its_packets_first() {
    let config = Config { memory: Some(MEMORY_MIN), hold_max: Duration::from_ms(50), ..Config::of_agent() };
    let mut host = Host::<Bytes>::new(config).expect("it can be");
    let mut say = |us: u64, flow: u32, number: u32| {
        let body =
            Body::Source { epoch: Instant::ZERO, number, packet: Bytes::from(vec![flow as u8; 1_300]) };
        let datagram = Datagram { number: 0, sent_at: Instant::ZERO, flow, body, echoes: Vec::new() };
        host.handle_datagram(Instant::from_us(us), 1, datagram, (1_300, false));
        std::iter::from_fn(|| host.poll_arrived()).map(|arrived| arrived.packet[0]).collect::<Vec<u8>>()
    };
    assert!(say(0, 1, 1).is_empty(), "it waits for packet 0");
    assert!(say(1, 2, 1).is_empty());
    let mut number = 2;
    let first_shed = loop {
        let handed = say(2, 2, number);
        if !handed.is_empty() {
            break handed;
        }
        number += 1;
    };
    assert_eq!(first_shed, [1]);
    assert!((70..90).contains(&number), "{number} packets fit");
}

proptest! {
    /// With an ample budget, an honest peer's packets are delivered as without a budget.
    #[test]
    fn ample_budget_does_not_change_delivery(seed: u64, loss_ppm in 0u32..200_000, window in 1u32..60) {
        let run = |memory: Option<ByteCount>| {
            let mut world = World::new(seed, 0, &Config { memory, ..Config::of_agent() });
            // The hosts measure a round trip before packets are lost, so repeats are not later than
            // holds.
            world.send(0, 9, packet(9, 0), None);
            world.pass(Some(world.now + Duration::from_ms(10)));
            world.loss_ppm = loss_ppm;
            for number in 0..200 {
                for flow in 0..3 {
                    world.send(0, flow, packet(flow, number), None);
                }
                if number % window == 0 {
                    world.pass(Some(world.now + Duration::from_us(500)));
                }
            }
            world.pass(Some(world.now + Duration::from_secs(1)));
            // Parities of incomplete units count as surplus only when they expire, so surplus is
            // not compared.
            (world.handed, world.hosts.map(|host| HostCounts { surplus: 0, ..*host.counts() }))
        };
        prop_assert!(run(None) == run(Some(PEER_MEMORY_MAX)), "a budget has changed what is handed over");
    }
}
