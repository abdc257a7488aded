//! A link that loses capacity, with and without estimates of its capacity, in virtual time.
//!
//! The network has a source, two reflectors and an edge with twelve viewers of different channels,
//! and no controller. At [`DEGRADED_AT`] one link falls to a share of its rate. Each stream fetches
//! parts one after another. A reflector forwards bytes as they arrive, and the transfers on a link
//! share its rate equally. A viewer plays from a buffer. Leaves out: round-trip times.

use anabranch_live_proto::control::capacity::CapacityEstimator;
use anabranch_live_proto::control::messages::GroupId;
use anabranch_live_proto::control::node::{Event, Node, RequestId, Settings, Transmit};
use anabranch_live_proto::{ChannelId, Link, Network, NodeId, Object, Tier};
use anabranch_units::{BitRate, ByteCount, Duration, Instant, Seed};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

const STEP: Duration = Duration::from_ms(10);
const PART: Duration = Duration::from_ms(200);
const DEGRADED_AT: Duration = Duration::from_secs(10);
const END: Duration = Duration::from_secs(40);
/// Maximum number of complete parts that wait to be fetched: the length of a playlist.
const LISTED: u64 = 40;
const CHANNELS: u32 = 12;
const SOURCE: NodeId = NodeId(0);
const REFLECTOR: NodeId = NodeId(1);
const EDGE: NodeId = NodeId(3);
const GROUP: GroupId = GroupId(0);

/// A stream at the edge, and its viewer.
struct Stream {
    object: Object,
    next_part_at: Instant,
    /// Number of complete parts that are not yet fetched.
    ready: u64,
    under_way: Option<Transfer>,
    buffered: Duration,
    is_stalled: bool,
}

/// A part in transfer. Reflector and edge start at the same time, because the source has the whole
/// part.
#[derive(Copy, Clone)]
struct Transfer {
    reflector: NodeId,
    number: u64,
    size: u64,
    /// Bytes received by the reflector.
    at_reflector: u64,
    /// Bytes received by the edge.
    at_edge: u64,
}

/// Sender and receiver of a link.
type LinkEnds = (NodeId, NodeId);

/// Reports that nodes exchange in a run.
#[derive(Copy, Clone, PartialEq, Eq)]
enum ReportScope {
    Nothing,
    /// Measured capacities.
    Capacity,
    /// Measured capacities, and whether a parent is itself limited.
    All,
}

struct World {
    now: Instant,
    nodes: Vec<Node>,
    /// Messages of the last step, with sender and receiver.
    mail: VecDeque<(NodeId, NodeId, Transmit)>,
    streams: Vec<Stream>,
    /// Parent from which the edge fetches each object.
    routes: BTreeMap<Object, NodeId>,
    estimators: BTreeMap<LinkEnds, CapacityEstimator>,
    told: ReportScope,
    /// Duration of media in each viewer's buffer at the start of playback.
    buffer: Duration,
    transfers: u64,
    rates: BTreeMap<LinkEnds, BitRate>,
    stalls: u64,
    stalled: Duration,
    /// Links whose estimated capacity was below the declared capacity at any time.
    narrowed: BTreeSet<LinkEnds>,
}

fn object(channel: u32) -> Object {
    Object { channel: ChannelId(channel), bitrate: BitRate::mbps(1) }
}

fn bytes(rate: BitRate, time: Duration) -> u64 {
    (u128::from(rate.as_bps()) * u128::from(time.as_ns()) / 8_000_000_000) as u64
}

impl World {
    fn new(seed: u64, told: ReportScope, buffer: Duration) -> Self {
        let tiers = [Tier::Source, Tier::Reflector, Tier::Reflector, Tier::Edge];
        let node = |(at, tier): (usize, Tier)| anabranch_live_proto::Node { name: format!("n{at}"), tier };
        let capacity = BitRate::mbps(20);
        let link = |(from, to)| Link { from: NodeId(from), to: NodeId(to), capacity, cost: 1.0 };
        let ends = [(0, 1), (0, 2), (1, 3), (2, 3)];
        let links = ends.map(link);
        let ends = ends.map(|(from, to)| (NodeId(from), NodeId(to)));
        let nodes = tiers.into_iter().enumerate().map(node).collect();
        let network = Network::new(nodes, links.into()).expect("tiers are in order");
        let machine = |at: u32| {
            let seed = Seed::new(seed * 8 + u64::from(at));
            Node::new(Instant::ZERO, &network, NodeId(at), 1 << 32, Settings::default(), seed)
        };
        let mut nodes: Vec<Node> = (0..4).map(machine).collect();
        (0..CHANNELS).for_each(|channel| assert!(nodes[0].handle_import(object(channel))));
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
            estimators: ends.map(|ends| (ends, CapacityEstimator::new(capacity))).into(),
            told,
            buffer,
            transfers: 0,
            rates: ends.map(|ends| (ends, capacity)).into(),
            stalls: 0,
            stalled: Duration::ZERO,
            narrowed: BTreeSet::new(),
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
                    // Reflectors receive each stream immediately.
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

    /// Bytes that each transfer on a link can carry in a step.
    fn share(&self, ends: LinkEnds) -> u64 {
        let waits = |transfer: &Transfer| match ends.0 {
            SOURCE => transfer.reflector == ends.1 && transfer.at_reflector < transfer.size,
            reflector => transfer.reflector == reflector && transfer.at_edge < transfer.at_reflector,
        };
        let count = self.streams.iter().filter_map(|stream| stream.under_way.as_ref());
        let count = count.filter(|transfer| waits(transfer)).count() as u64;
        bytes(self.rates[&ends], STEP) / count.max(1)
    }

    fn carry(&mut self) {
        let now = self.now;
        let shares: BTreeMap<LinkEnds, u64> =
            self.rates.keys().map(|ends| (*ends, self.share(*ends))).collect();
        for stream in &mut self.streams {
            if stream.next_part_at <= now {
                stream.next_part_at += PART;
                stream.ready = (stream.ready + 1).min(LISTED);
            }
            if let Some(transfer) = &mut stream.under_way {
                let Transfer { reflector, number, size, .. } = *transfer;
                let upper = self.estimators.get_mut(&(SOURCE, reflector)).expect("a link");
                let arrived = shares[&(SOURCE, reflector)].min(size - transfer.at_reflector);
                transfer.at_reflector += arrived;
                upper.handle_bytes(number, ByteCount::new(arrived));
                if arrived > 0 && transfer.at_reflector == size {
                    upper.handle_end(now, number);
                }
                let lower = self.estimators.get_mut(&(reflector, EDGE)).expect("a link");
                let arrived = shares[&(reflector, EDGE)].min(transfer.at_reflector - transfer.at_edge);
                transfer.at_edge += arrived;
                lower.handle_bytes(number, ByteCount::new(arrived));
                self.nodes[EDGE.index()].handle_delivered(now, stream.object, reflector);
                if transfer.at_edge == size {
                    lower.handle_end(now, number);
                    stream.under_way = None;
                    stream.buffered += PART;
                }
            }
            if let (None, true, Some(reflector)) =
                (stream.under_way, stream.ready > 0, self.routes.get(&stream.object).copied())
            {
                stream.ready -= 1;
                self.transfers += 1;
                let (number, size) = (self.transfers, bytes(stream.object.bitrate, PART));
                for ends in [(SOURCE, reflector), (reflector, EDGE)] {
                    let estimator = self.estimators.get_mut(&ends).expect("a link");
                    estimator.handle_start(now, number, stream.object.bitrate);
                }
                stream.under_way = Some(Transfer { reflector, number, size, at_reflector: 0, at_edge: 0 });
            }
        }
    }

    /// Runs the estimators, and reports their results to the nodes.
    fn measure(&mut self) {
        let now = self.now;
        for (ends @ (from, to), estimator) in &mut self.estimators {
            let node = &mut self.nodes[to.index()];
            estimator.handle_parent_limited(node.is_parent_limited(*from));
            while estimator.poll_timeout().is_some_and(|at| at <= now) {
                estimator.handle_timeout(now);
            }
            if self.told == ReportScope::All {
                node.handle_limiting(*from, estimator.is_limiting(now));
            }
            if let Some(estimate) = estimator.estimate().filter(|_| self.told != ReportScope::Nothing) {
                node.handle_measured(*from, estimate);
            }
            let capacity = self.nodes[from.index()].ledger(*to).expect("a child").capacity();
            if capacity.believed() < capacity.declared {
                self.narrowed.insert(*ends);
            }
        }
    }

    /// Plays a step from each buffer. Called from one second before the degradation.
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

    fn run(mut self, degraded: LinkEnds, percent: u64) -> Self {
        while self.now < Instant::ZERO + END {
            self.now += STEP;
            let since = self.now.saturating_since(Instant::ZERO);
            // By this time all nodes have received advertisements.
            if since == Duration::from_secs(3) {
                for channel in 0..CHANNELS {
                    let request = RequestId(u64::from(channel));
                    self.nodes[EDGE.index()].handle_viewer(self.now, request, GROUP, object(channel));
                }
            }
            if since == DEGRADED_AT {
                let rate = self.rates.get_mut(&degraded).expect("a link");
                *rate = BitRate::bps(rate.as_bps() * percent / 100);
            }
            self.control();
            self.carry();
            if since >= DEGRADED_AT - Duration::from_secs(1) {
                self.play();
            } else {
                self.streams.iter_mut().for_each(|stream| stream.buffered = self.buffer);
            }
            self.measure();
        }
        assert!(self.nodes[SOURCE.index()].is_receiving(object(0)));
        self
    }
}

#[test]
fn measured_capacity_shortens_stalls_on_a_degraded_link() {
    for buffer in [Duration::from_ms(600), Duration::from_secs(6)] {
        let sum = |told: ReportScope| {
            let cells = (0..20).flat_map(|seed| [5, 10, 15, 20, 25].map(|percent| (seed, percent)));
            cells.fold((0, Duration::ZERO), |(stalls, stalled), (seed, percent)| {
                let world = World::new(seed, told, buffer).run((REFLECTOR, EDGE), percent);
                (stalls + world.stalls, stalled + world.stalled)
            })
        };
        let (without, with) = (sum(ReportScope::Nothing), sum(ReportScope::All));
        println!(
            "buffer {buffer}: {} stalls, {} without; {} stalls, {} with",
            without.0, without.1, with.0, with.1
        );
        assert!(with.1.as_ns() * 4 < without.1.as_ns(), "{with:?} against {without:?}");
        assert!(with.0 <= without.0, "{with:?} against {without:?}");
    }
}

/// #50: an object that was complete at the source also counted as complete at a reflector. The edge
/// then blamed its link from the reflector for the reflector's own narrow link.
#[test]
fn only_the_degraded_link_counts_as_narrow() {
    // Counts, for a degraded link, the runs that find it, and other links that count as narrow.
    let sums = |told: ReportScope, degraded: LinkEnds| {
        let runs = (0..10).flat_map(|seed| [5, 10, 15, 20].map(|percent| (seed, percent)));
        runs.fold((0, 0), |(found, wrong), (seed, percent)| {
            let world = World::new(seed, told, Duration::from_secs(6)).run(degraded, percent);
            let is_found = world.narrowed.contains(&degraded);
            (found + usize::from(is_found), wrong + world.narrowed.len() - usize::from(is_found))
        })
    };
    let (upper, lower) = ((SOURCE, REFLECTOR), (REFLECTOR, EDGE));
    let untold = sums(ReportScope::Capacity, upper);
    let told = [upper, lower].map(|degraded| sums(ReportScope::All, degraded));
    println!("links found and blamed wrongly in 40 runs: {told:?}, {untold:?} without the parent's word");
    assert!(untold.1 > 0, "{untold:?}");
    assert!(told.iter().all(|(_, wrong)| *wrong == 0), "{told:?}");
    // In some runs few streams are left on the link and fit its remaining capacity.
    assert!(told.iter().all(|(found, _)| *found >= 36), "{told:?}");
}
