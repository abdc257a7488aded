//! A link that loses capacity, with the estimate of its capacity and without, in virtual time.
//!
//! A source, two reflectors and an edge with twelve viewers, each of another channel, without a
//! controller. At [`DEGRADED_AT`] the link from one reflector falls to a share of its rate. Each stream
//! fetches parts one after another, and the transfers of a link share its rate. A viewer plays from
//! a buffer. Leaves out: the ways to the reflectors, which are wide enough.

use anabranch_live_proto::control::capacity::CapacityEstimator;
use anabranch_live_proto::control::messages::GroupId;
use anabranch_live_proto::control::node::{Event, Node, RequestId, Settings, Transmit};
use anabranch_live_proto::{ChannelId, Link, Network, NodeId, Object, Tier};
use anabranch_units::{BitRate, ByteCount, Duration, Instant, Seed};
use std::collections::{BTreeMap, VecDeque};

const STEP: Duration = Duration::from_ms(10);
const PART: Duration = Duration::from_ms(200);
const DEGRADED_AT: Duration = Duration::from_secs(10);
const END: Duration = Duration::from_secs(40);
/// Parts that a playlist lists.
const LISTED: u64 = 40;
const CHANNELS: u32 = 12;
const SOURCE: NodeId = NodeId(0);
const EDGE: NodeId = NodeId(3);
const GROUP: GroupId = GroupId(0);

/// A stream at the edge, and its viewer.
struct Stream {
    object: Object,
    next_part_at: Instant,
    /// Parts that are whole and not fetched.
    ready: u64,
    /// Transfer under way: parent, number, bytes left.
    under_way: Option<(NodeId, u64, u64)>,
    buffered: Duration,
    is_stalled: bool,
}

struct World {
    now: Instant,
    nodes: Vec<Node>,
    /// Messages of the last step, with their destination.
    mail: VecDeque<(NodeId, NodeId, Transmit)>,
    streams: Vec<Stream>,
    /// Parent of each object at the edge.
    routes: BTreeMap<Object, NodeId>,
    estimators: BTreeMap<NodeId, CapacityEstimator>,
    is_measured: bool,
    /// Buffer of each viewer when it starts to play.
    buffer: Duration,
    transfers: u64,
    /// Rate of each reflector's link to the edge.
    rates: BTreeMap<NodeId, BitRate>,
    stalls: u64,
    stalled: Duration,
}

fn object(channel: u32) -> Object {
    Object { channel: ChannelId(channel), bitrate: BitRate::mbps(1) }
}

fn bytes(rate: BitRate, time: Duration) -> u64 {
    (u128::from(rate.as_bps()) * u128::from(time.as_ns()) / 8_000_000_000) as u64
}

impl World {
    fn new(seed: u64, is_measured: bool, buffer: Duration) -> Self {
        let tiers = [Tier::Source, Tier::Reflector, Tier::Reflector, Tier::Edge];
        let node = |(at, tier): (usize, Tier)| anabranch_live_proto::Node { name: format!("n{at}"), tier };
        let capacity = BitRate::mbps(20);
        let link = |(from, to)| Link { from: NodeId(from), to: NodeId(to), capacity, cost: 1.0 };
        let links = [(0, 1), (0, 2), (1, 3), (2, 3)].map(link);
        let nodes = tiers.into_iter().enumerate().map(node).collect();
        let network = Network::new(nodes, links.into()).expect("tiers are in order");
        let machine = |at: u32| {
            let seed = Seed::new(seed * 8 + u64::from(at));
            Node::new(Instant::ZERO, &network, NodeId(at), 1 << 32, Settings::default(), seed)
        };
        let mut nodes: Vec<Node> = (0..4).map(machine).collect();
        (0..CHANNELS).for_each(|channel| assert!(nodes[0].handle_import(object(channel))));
        let parents = [NodeId(1), NodeId(2)];
        let stream = |channel| Stream {
            object: object(channel),
            next_part_at: Instant::ZERO + Duration::from_ms(u64::from(channel) * 37 % 200),
            ready: 0,
            under_way: None,
            buffered: Duration::ZERO,
            is_stalled: false,
        };
        Self {
            now: Instant::ZERO,
            nodes,
            mail: VecDeque::new(),
            streams: (0..CHANNELS).map(stream).collect(),
            routes: BTreeMap::new(),
            estimators: parents.map(|parent| (parent, CapacityEstimator::new(capacity))).into(),
            is_measured,
            buffer,
            transfers: 0,
            rates: parents.map(|parent| (parent, capacity)).into(),
            stalls: 0,
            stalled: Duration::ZERO,
        }
    }

    fn control(&mut self) {
        let now = self.now;
        for (from, to, message) in std::mem::take(&mut self.mail) {
            let node = &mut self.nodes[to.index()];
            match message {
                Transmit::Parent(_, message) => node.handle_child(now, from, message),
                Transmit::Child(_, message) => node.handle_parent(now, from, message),
                Transmit::Controller(_) => {}
            }
        }
        for at in 0..self.nodes.len() {
            let id = NodeId(at as u32);
            let node = &mut self.nodes[at];
            if node.poll_timeout() <= now {
                node.handle_timeout(now);
            }
            while let Some(event) = node.poll_event() {
                match event {
                    Event::Fetch { object, parent, .. } if id == EDGE => {
                        self.routes.insert(object, parent);
                    }
                    // Reflectors get each stream at once.
                    Event::Fetch { object, parent, .. } => node.handle_delivered(now, object, parent),
                    Event::Stop(object, parent) if self.routes.get(&object) == Some(&parent) => {
                        match node.upstream(object).filter(|upstream| *upstream != parent) {
                            Some(upstream) => self.routes.insert(object, upstream),
                            None => self.routes.remove(&object),
                        };
                    }
                    _ => {}
                }
            }
            while let Some(message) = node.poll_transmit() {
                match message {
                    Transmit::Parent(to, _) | Transmit::Child(to, _) => {
                        self.mail.push_back((id, to, message))
                    }
                    Transmit::Controller(_) => {}
                }
            }
        }
    }

    fn carry(&mut self) {
        let now = self.now;
        let mut shares = BTreeMap::new();
        for (parent, rate) in &self.rates {
            let is_theirs = |stream: &&Stream| stream.under_way.is_some_and(|(from, ..)| from == *parent);
            let count = self.streams.iter().filter(is_theirs).count() as u64;
            shares.insert(*parent, bytes(*rate, STEP) / count.max(1));
        }
        for stream in &mut self.streams {
            if stream.next_part_at <= now {
                stream.next_part_at += PART;
                stream.ready = (stream.ready + 1).min(LISTED);
            }
            if let Some((parent, transfer, left)) = &mut stream.under_way {
                let estimator = self.estimators.get_mut(parent).expect("a parent");
                let arrived = shares[parent].min(*left);
                *left -= arrived;
                estimator.handle_bytes(*transfer, ByteCount::new(arrived));
                self.nodes[EDGE.index()].handle_delivered(now, stream.object, *parent);
                if *left == 0 {
                    estimator.handle_end(now, *transfer);
                    stream.under_way = None;
                    stream.buffered += PART;
                }
            }
            if let (None, true, Some(parent)) =
                (stream.under_way, stream.ready > 0, self.routes.get(&stream.object).copied())
            {
                stream.ready -= 1;
                self.transfers += 1;
                let estimator = self.estimators.get_mut(&parent).expect("a parent");
                estimator.handle_start(now, self.transfers, stream.object.bitrate);
                stream.under_way = Some((parent, self.transfers, bytes(stream.object.bitrate, PART)));
            }
        }
    }

    /// Plays, from a second before the degradation on.
    fn play(&mut self) {
        for stream in &mut self.streams {
            stream.is_stalled &= stream.buffered < PART * 2;
            if stream.is_stalled {
                self.stalled += STEP;
            } else if stream.buffered < STEP {
                stream.is_stalled = true;
                self.stalls += 1;
            } else {
                stream.buffered = stream.buffered - STEP;
            }
        }
    }

    fn run(mut self, percent: u64) -> (u64, Duration) {
        let degraded = NodeId(1);
        while self.now < Instant::ZERO + END {
            self.now += STEP;
            let since = self.now.saturating_since(Instant::ZERO);
            // Advertisements have arrived by then.
            if since == Duration::from_secs(3) {
                for channel in 0..CHANNELS {
                    let request = RequestId(u64::from(channel));
                    self.nodes[EDGE.index()].handle_viewer(self.now, request, GROUP, object(channel));
                }
            }
            if since == DEGRADED_AT {
                let rate = self.rates.get_mut(&degraded).expect("a reflector");
                *rate = BitRate::bps(rate.as_bps() * percent / 100);
            }
            self.control();
            self.carry();
            if since >= DEGRADED_AT - Duration::from_secs(1) {
                self.play();
            } else {
                self.streams.iter_mut().for_each(|stream| stream.buffered = self.buffer);
            }
            for (parent, estimator) in &mut self.estimators {
                while estimator.poll_timeout().is_some_and(|at| at <= self.now) {
                    estimator.handle_timeout(self.now);
                }
                if let Some(estimate) = estimator.estimate().filter(|_| self.is_measured) {
                    self.nodes[EDGE.index()].handle_measured(*parent, estimate);
                }
            }
        }
        assert!(self.nodes[SOURCE.index()].is_receiving(object(0)));
        (self.stalls, self.stalled)
    }
}

#[test]
fn measured_capacity_spares_viewers_of_a_degraded_link() {
    for buffer in [Duration::from_ms(600), Duration::from_secs(6)] {
        let sum = |is_measured: bool| {
            let cells = (0..20).flat_map(|seed| [5, 10, 15, 20, 25].map(|percent| (seed, percent)));
            cells.fold((0, Duration::ZERO), |(stalls, stalled), (seed, percent)| {
                let (more, longer) = World::new(seed, is_measured, buffer).run(percent);
                (stalls + more, stalled + longer)
            })
        };
        let (without, with) = (sum(false), sum(true));
        println!(
            "buffer {buffer}: {} stalls, {} without; {} stalls, {} with",
            without.0, without.1, with.0, with.1
        );
        assert!(with.1.as_ns() * 4 < without.1.as_ns(), "{with:?} against {without:?}");
        assert!(with.0 <= without.0, "{with:?} against {without:?}");
    }
}
