//! Tests of a [`Host`] alone and of two hosts together. Read [`World`] first.

use super::*;
use anabranch_endpoint::Bytes;
use anabranch_units::{RandomStream, Seed};
use proptest::prelude::*;

/// Two hosts, and datagrams on their way between them: to which, and when.
struct World {
    hosts: [Host<Bytes>; 2],
    flying: Vec<(Instant, usize, Datagram<Bytes>)>,
    random: RandomStream,
    loss_ppm: u32,
    now: Instant,
    /// Packets that came at all, and those handed over, of each host.
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

    /// Everything that leaves flies for 100 us, or one time in eight for a millisecond; some of it is lost, some comes twice.
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
        let outgoing =
            Outgoing { packet, payload_bytes: 1_000, is_acknowledgement: false, is_end: false, flow_size };
        self.hosts[from].handle_packet(self.now, FlowId { peer: 1 - from as u32, flow }, outgoing);
        self.stir();
    }

    /// Lets time pass until `until`, or without until nothing is left to be done.
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
    /// Whatever the network does: what came is handed over, once; nothing is that was not sent; and in the end nothing is waited for.
    #[test]
    fn what_came_is_handed_over_once(
        seed: u64, loss_ppm in 0u32..300_000, knows_sizes: bool, is_agent: bool, window in 1u32..30,
    ) {
        let config = if is_agent { Config::of_agent() } else { Config { knows_sizes, ..Config::default() } };
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
        // A datagram that came twice, the second time when it was forgotten, is TCP's to drop: as a plain one always is.
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

/// Nine packets of ten take 100 us, and one a millisecond: after a while that is known, and parities bring back what is late.
#[test]
fn late_packets_come_back_before_they_come() {
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
/// A lone packet, as the first one of a connection is: it is sent again when it should have come, and TCP gets it once. Of many that do not
/// come few are.
/// The first of three packets comes last, 300 us after the second and 200 after the third.
#[test]
fn how_long_packets_wait_for_others_is_counted() {
    let config = Config { parities: Parities::Fixed(0), ..Config::default() };
    let mut world = World::new(1, 0, &config);
    let mut leaving = Vec::new();
    for _ in 0..3 {
        let outgoing = Outgoing {
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

#[test]
fn packets_of_short_flows_that_do_not_come_are_sent_again_as_long_as_they_are_few() {
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
    // After one and a half round trips, which are of a millisecond where one way is slow, and what may pass until it is said.
    assert!(matches!(left_at[..], [300..2_100, 800..6_300]), "{left_at:?} us");
    for number in 1..=90 {
        world.send(0, 2, Bytes::from(vec![number as u8; 1_000]), None);
        world.pass(Some(world.now + Duration::from_ms(1)));
    }
    // A twentieth of 90 packets, and three.
    let repeated = world.hosts[0].counts().repeated;
    assert!((7..=9).contains(&repeated), "{repeated} of 91");
    // One that comes both times is handed over once.
    world.loss_ppm = 0;
    let handed = world.handed[1].len();
    world.send(0, 3, packet(3, 0), None);
    let again = world.flying[0].2.clone();
    world.hosts[1].handle_datagram(world.now, 0, again, (1_000, false));
    world.pass(None);
    assert_eq!(world.handed[1].len(), handed + 1);
}
