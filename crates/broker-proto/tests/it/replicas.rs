//! Several brokers around a shared store, with agents and players, under kills, cuts and lost
//! answers, in virtual time.
//!
//! The invariants are in [`ReplicaWorld::check_turn`], [`ReplicaWorld::check_told`] and
//! [`ReplicaWorld::check_players`]. The store models etcd: leases, and compare-and-set writes. It
//! may be unreachable, its answers may be lost after the operation, and its values may be deleted,
//! replaced or corrupted.

use super::store::{LEASE, Store};
use anabranch_broker_proto::broker::{Settings, ToNetwork};
use anabranch_broker_proto::delivery::Delivery;
use anabranch_broker_proto::designs::{self, Design};
use anabranch_broker_proto::messages::{Assent, Bids};
use anabranch_broker_proto::replica::{Replica, RoleChange, Stall, StoreReply, StoreRequest, standing};
use anabranch_broker_proto::{Agent, Parties, World, WorldShape, generate};
use anabranch_media::steering::Viewer;
use anabranch_units::{BitRate, Duration, Instant, PeerId, RandomStream, Seed};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const EVERY: Duration = Duration::from_secs(20);
const NETWORKS: u32 = 3;
const BROKERS: usize = 3;

enum Message {
    ToStore(u64, StoreRequest),
    FromStore(u64, Option<StoreReply>),
    ToNetwork(PeerId, ToNetwork),
    Bids(PeerId, Bids),
    Assent(PeerId, Assent),
    Joined(PeerId),
}

struct RunningBroker {
    replica: Replica,
    /// Number of the broker's incarnation. Messages for one incarnation do not reach another one.
    life: u64,
    delivery: Delivery,
    /// Time until which the broker cannot reach the store.
    cut_until: Instant,
    rounds_seen: Vec<u64>,
    /// Lead of the broker's clock of day over the other clocks.
    ahead: Duration,
}

struct ReplicaWorld<'a> {
    now: Instant,
    parties: &'a Parties<'a>,
    design: Arc<dyn Design>,
    store: Store,
    store_away_until: Instant,
    brokers: Vec<Option<RunningBroker>>,
    lives: u64,
    agents: Vec<Agent>,
    agents_dead: BTreeSet<PeerId>,
    random: RandomStream,
    loss_ppm: u32,
    on_the_way: BTreeMap<(Instant, u64), (usize, u64, Message)>,
    messages: u64,
    begun: u64,
    /// True if another store has replaced the store: then a lower round may follow a higher one.
    is_replaced: bool,
    /// Time at which the lead was deleted from the store.
    lead_deleted_at: Option<Instant>,
}

fn world(seed: u64) -> World {
    let shape = WorldShape {
        networks: vec![6, 3, 3],
        sessions: 60,
        countries: 2,
        cities: 12,
        providers: 2,
        ..WorldShape::default()
    };
    generate(&shape, Seed::new(seed))
}

impl<'a> ReplicaWorld<'a> {
    fn new(parties: &'a Parties<'a>, design: &str, seed: u64) -> Self {
        let mut stage = Self {
            now: Instant::ZERO,
            parties,
            design: designs::by_name(design).expect("there is one"),
            store: Store::default(),
            store_away_until: Instant::ZERO,
            brokers: (0..BROKERS).map(|_| None).collect(),
            lives: 0,
            agents: (0..NETWORKS).map(|_| Agent::default()).collect(),
            agents_dead: BTreeSet::new(),
            random: Seed::new(seed).stream("replicas", 0),
            loss_ppm: 0,
            on_the_way: BTreeMap::new(),
            messages: 0,
            begun: 0,
            is_replaced: false,
            lead_deleted_at: None,
        };
        (0..BROKERS).for_each(|at| stage.begin(at));
        stage
    }

    fn settings(&self) -> Settings {
        Settings {
            every: EVERY,
            bids_within: Duration::from_secs(4),
            assents_within: Duration::from_secs(2),
            ..Settings::new(Arc::clone(&self.design))
        }
    }

    fn begin(&mut self, at: usize) {
        // The brokers' clocks of day differ by some seconds.
        let ahead = Duration::from_ms(self.random.below(4_000));
        self.begin_ahead(at, ahead);
    }

    fn begin_ahead(&mut self, at: usize, ahead: Duration) {
        self.lives += 1;
        let wall = (self.now.saturating_since(Instant::ZERO) + ahead).as_us() / 1_000;
        self.brokers[at] = Some(RunningBroker {
            replica: Replica::new(self.now, self.settings(), LEASE, wall),
            life: self.lives,
            delivery: Delivery::default(),
            cut_until: Instant::ZERO,
            rounds_seen: Vec::new(),
            ahead,
        });
    }

    fn send(&mut self, at: usize, message: Message) {
        let Some(life) = self.brokers[at].as_ref().map(|running| running.life) else { return };
        let delay = Duration::from_ms(1 + self.random.below(300));
        self.messages += 1;
        self.on_the_way.insert((self.now + delay, self.messages), (at, life, message));
    }

    /// Runs until `until`. All brokers' clocks run at the same rate, so no two brokers lead at
    /// once, with one exception: the holder of a deleted lead leads until its lease ends, and can
    /// store nothing.
    fn run(&mut self, until: Instant) {
        loop {
            (0..BROKERS).for_each(|at| self.drain(at));
            let is_deleted = self.lead_deleted_at.is_some_and(|at| self.now < at + LEASE);
            assert!(self.leaders() <= 1 || is_deleted, "two lead at {:?}", self.now);
            let next = self.on_the_way.keys().next().map(|(at, _)| *at);
            let due =
                self.brokers.iter().flatten().filter_map(|running| running.replica.poll_timeout()).min();
            let Some(at) = next.into_iter().chain(due).min().filter(|at| *at <= until) else { break };
            self.now = self.now.max(at);
            if next == Some(at) {
                let (_, (broker, life, message)) = self.on_the_way.pop_first().expect("there is one");
                self.deliver(broker, life, message);
            } else {
                let now = self.now;
                for running in self.brokers.iter_mut().flatten() {
                    let is_due = running.replica.poll_timeout().is_some_and(|at| at <= now);
                    if is_due {
                        if let Some(broker) = running.replica.leading() {
                            broker.handle_gathered(self.parties.gathered());
                        }
                        running.replica.handle_timeout(now);
                    }
                }
            }
        }
        self.now = until;
    }

    fn drain(&mut self, at: usize) {
        loop {
            let now = self.now;
            let Some(running) = &mut self.brokers[at] else { return };
            if let Some((number, ask)) = running.replica.poll_ask(now) {
                self.send(at, Message::ToStore(number, ask));
            } else if let Some(turn) = running.replica.poll_turn() {
                self.check_turn(at, turn);
            } else if let Some(job) = running.replica.poll_job() {
                let answer = job.run();
                running.replica.handle_answer(now, &job, answer);
            } else if let Some((network, message)) = running.replica.poll_transmit() {
                self.check_told(&message);
                if !self.random.chance_ppm(self.loss_ppm) {
                    self.send(at, Message::ToNetwork(network, message));
                }
            } else {
                return;
            }
        }
    }

    fn deliver(&mut self, at: usize, life: u64, message: Message) {
        let now = self.now;
        let is_cut = |running: &RunningBroker| running.cut_until > now;
        if let Message::ToStore(number, ask) = message {
            // The store carries out an operation that was sent, even if its broker has died.
            let cut =
                self.brokers[at].as_ref().is_some_and(|running| running.life == life && is_cut(running));
            let is_away = self.store_away_until > now;
            let told = (!cut && !is_away).then(|| self.store.answer(now, life, &ask));
            let is_lost = self.random.chance_ppm(self.loss_ppm);
            self.send_to_life(at, life, Message::FromStore(number, told.filter(|_| !is_lost)));
            return;
        }
        let Some(running) = self.brokers[at].as_mut().filter(|running| running.life == life) else { return };
        match message {
            Message::FromStore(number, told) => running.replica.handle_told(now, number, told),
            Message::ToNetwork(network, message) => self.answer(at, network, message),
            Message::Bids(network, bids) => {
                running.replica.leading().into_iter().for_each(|broker| {
                    broker.handle_bids(network, bids.clone());
                });
            }
            Message::Assent(network, assent) => {
                running
                    .replica
                    .leading()
                    .into_iter()
                    .for_each(|broker| broker.handle_assent(network, &assent));
            }
            Message::Joined(network) => {
                let contract = self.parties.contract(network.0);
                running.replica.leading().into_iter().for_each(|broker| {
                    broker.handle_joined(network, contract.clone());
                });
            }
            Message::ToStore(..) => {}
        }
    }

    fn send_to_life(&mut self, at: usize, life: u64, message: Message) {
        self.messages += 1;
        let delay = Duration::from_ms(1 + self.random.below(300));
        self.on_the_way.insert((self.now + delay, self.messages), (at, life, message));
    }

    fn answer(&mut self, at: usize, network: PeerId, message: ToNetwork) {
        if self.agents_dead.contains(&network) {
            return;
        }
        let own = self.parties.own(network.0);
        let agent = &mut self.agents[network.index()];
        match message {
            ToNetwork::Call(call) => {
                let bids = agent.handle_call(PeerId(0), &*self.design, &own, &call);
                self.send(at, Message::Bids(network, bids));
            }
            ToNetwork::Proposal(proposal) => {
                let assent = agent.handle_proposal(&own, PeerId(0), &proposal);
                self.send(at, Message::Assent(network, assent));
            }
            ToNetwork::Accepted(accepted) => agent.handle_accepted(PeerId(0), &accepted),
            _ => {}
        }
    }

    /// Joins the agents of all live networks.
    fn join_all(&mut self, at: usize) {
        let dead = self.agents_dead.clone();
        for network in (0..NETWORKS).map(PeerId).filter(|network| !dead.contains(network)) {
            self.send(at, Message::Joined(network));
        }
    }

    /// Joins all agents to a new leader. Checks that a changed decision is stored, and newer than
    /// the broker's last decision.
    fn check_turn(&mut self, at: usize, turn: RoleChange) {
        match turn {
            RoleChange::Began => {
                self.begun += 1;
                self.join_all(at);
            }
            RoleChange::Accepted(decision) | RoleChange::News(decision) => {
                assert!(self.store.kept.contains(&decision), "players are told of what is kept");
                let running = self.brokers[at].as_mut().expect("it runs");
                let goes_on = running.rounds_seen.last().is_none_or(|last| *last < decision.round);
                // A fast clock of day inflates round numbers, yet the decision of a later lead is
                // still newer.
                assert!(goes_on || self.is_replaced || running.ahead > LEASE, "{}", decision.round);
                running.rounds_seen.push(decision.round);
                running.delivery = Delivery::new(&decision);
            }
            _ => {}
        }
    }

    /// Checks that networks receive results of stored rounds only.
    fn check_told(&self, message: &ToNetwork) {
        let ToNetwork::Accepted(accepted) = message else { return };
        let kept = self.store.kept.iter().find(|decision| decision.round == accepted.round);
        let kept = kept.expect("networks are told of what is kept");
        for share in &accepted.shares {
            let is_it = kept.placed.iter().any(|placed| {
                placed.place == share.share
                    && placed.sessions == share.sessions
                    && placed.to.is_some_and(|(to, _)| to.cluster == share.cluster)
            });
            assert!(is_it, "{share:?}");
        }
    }

    /// Returns the leading broker.
    fn leader(&self) -> usize {
        let leads = |running: &Option<RunningBroker>| running.as_ref().is_some_and(|one| one.replica.leads());
        self.brokers.iter().position(leads).expect("one leads")
    }

    fn delete_lead(&mut self) {
        self.store.leader = None;
        self.lead_deleted_at = Some(self.now);
    }

    /// Returns a broker's report of stalled rounds, if there is one.
    fn stall(&self) -> Option<Stall> {
        self.brokers.iter().flatten().find_map(|running| running.replica.stall(self.now))
    }

    /// Checks that, after the first decision, every client has a cluster at every running broker.
    fn check_players(&self) {
        for running in self.brokers.iter().flatten() {
            if running.delivery.round() == 0 {
                continue;
            }
            for (number, of) in (0..).zip(self.parties.gathered()) {
                let viewer = Viewer { location: of.location, isp: of.isp, bitrate: BitRate::mbps(3), number };
                assert!(!running.delivery.order(&viewer, &BTreeSet::new(), 3).is_empty());
            }
        }
    }

    fn check_store(&self) {
        assert!(self.store.kept.windows(2).all(|two| two[0].round < two[1].round), "rounds rise");
    }

    fn leaders(&self) -> usize {
        self.brokers.iter().flatten().filter(|running| running.replica.leads()).count()
    }
}

#[test]
fn successor_leads_within_the_lease_from_the_last_round() {
    let world = world(1);
    let parties = Parties::new(&world);
    let mut stage = ReplicaWorld::new(&parties, "marketplace", 1);
    stage.run(Instant::ZERO + EVERY * 3);
    assert_eq!((stage.leaders(), stage.begun), (1, 1));
    let rounds = stage.store.kept.len();
    assert!(rounds >= 2, "{rounds}");
    let rounds_seen: Vec<u64> = stage.store.kept.iter().map(|decision| decision.round).collect();
    for running in stage.brokers.iter().flatten() {
        let known = running.replica.known().map(|decision| decision.round);
        assert!(known.is_some_and(|round| rounds_seen.contains(&round)), "all know a decision");
        assert!(standing(&running.replica, PeerId(1)).is_some(), "and what is thought of networks");
    }
    let at = stage.leader();
    stage.brokers[at] = None;
    stage.run(stage.now + LEASE * 3);
    assert_eq!((stage.leaders(), stage.begun), (1, 2));
    stage.run(stage.now + EVERY * 2);
    assert!(stage.store.kept.len() > rounds, "rounds go on");
    stage.check_store();
}

/// A leader that cannot reach the store stops sending, and resigns before another broker leads.
#[test]
fn isolated_leader_ends_its_lead_by_its_own_clock() {
    let world = world(2);
    let parties = Parties::new(&world);
    let mut stage = ReplicaWorld::new(&parties, "marketplace", 2);
    stage.run(Instant::ZERO + EVERY * 2);
    let at = stage.leader();
    stage.brokers[at].as_mut().expect("it runs").cut_until = Instant::MAX;
    let mut most = 0;
    for _ in 0..60 {
        stage.run(stage.now + Duration::from_ms(500));
        most = most.max(stage.leaders());
    }
    assert_eq!((most, stage.leaders()), (1, 1));
    assert!(!stage.brokers[at].as_ref().expect("it runs").replica.leads());
    stage.check_store();
    stage.check_players();
}

#[test]
fn rounds_continue_after_random_kills_and_cuts() {
    let worlds: Vec<World> = (1..=3).map(world).collect();
    let (mut kept, mut begun, mut killed) = (0, 0, 0);
    for seed in 0..200 {
        let parties = Parties::new(&worlds[seed as usize % worlds.len()]);
        let mut random = Seed::new(seed).stream("kills", 0);
        let design = ["marketplace", "transactions"][random.below(2) as usize];
        let mut stage = ReplicaWorld::new(&parties, design, seed);
        stage.loss_ppm = [0, 50_000, 300_000][random.below(3) as usize];
        for _ in 0..12 {
            stage.run(stage.now + Duration::from_ms(500 + random.below(15_000)));
            stage.check_players();
            let at = random.below(BROKERS as u64) as usize;
            match random.below(6) {
                0 => {
                    killed += u64::from(stage.brokers[at].take().is_some());
                }
                1 => stage.begin(at),
                2 => {
                    let until = stage.now + Duration::from_ms(random.below(30_000));
                    stage.brokers[at].iter_mut().for_each(|running| running.cut_until = until);
                }
                3 => stage.store_away_until = stage.now + Duration::from_ms(random.below(20_000)),
                4 => {
                    let network = PeerId(random.below(u64::from(NETWORKS)) as u32);
                    if !stage.agents_dead.remove(&network) {
                        stage.agents_dead.insert(network);
                    }
                    (0..BROKERS).for_each(|at| stage.join_all(at));
                }
                _ => {}
            }
        }
        // All faults end: a broker leads, and rounds continue.
        (0..BROKERS).filter(|at| stage.brokers[*at].is_none()).collect::<Vec<_>>().into_iter().for_each(
            |at| {
                stage.begin(at);
            },
        );
        stage.brokers.iter_mut().flatten().for_each(|running| running.cut_until = Instant::ZERO);
        (stage.store_away_until, stage.loss_ppm) = (Instant::ZERO, 0);
        stage.agents_dead.clear();
        (0..BROKERS).for_each(|at| stage.join_all(at));
        let before = stage.store.kept.len();
        stage.run(stage.now + LEASE * 2 + EVERY * 4);
        assert_eq!(stage.leaders(), 1, "seed {seed}");
        assert!(stage.store.kept.len() > before, "seed {seed}: rounds go on");
        stage.check_store();
        stage.check_players();
        kept += stage.store.kept.len();
        begun += stage.begun;
    }
    assert!(kept > 1_000 && begun > 300 && killed > 100, "{kept} {begun} {killed}");
}

/// Damages values in the store, as an operator or a fault may do.
fn damage(stage: &mut ReplicaWorld<'_>, random: &mut RandomStream) {
    let old = |stage: &ReplicaWorld<'_>, random: &mut RandomStream| {
        let written = &stage.store.written;
        (!written.is_empty()).then(|| written[random.below(written.len() as u64) as usize].clone())
    };
    let claimed = stage.store.value.stamp;
    match random.below(6) {
        0 => stage.store.tamper(None),
        1 => {
            stage.store.tamper(None);
            stage.delete_lead();
        }
        2 => {
            let value = old(stage, random);
            stage.store.tamper(value);
        }
        3 => stage.store.spoil(0, 0),
        4 => stage.store.spoil(claimed.epoch, claimed.round + 1 + random.below(1 << 40)),
        _ => stage.store.spoil(claimed.epoch + random.below(1 << 20), random.below(claimed.round + 1)),
    }
}

/// Replaces the store by a backup or an empty store.
fn replace(stage: &mut ReplicaWorld<'_>, random: &mut RandomStream) {
    let written = &stage.store.written;
    let at = random.below(written.len() as u64 + 1) as usize;
    let value = at.checked_sub(1).map(|at| written[at].clone()).unwrap_or_default();
    stage.store.revision = value.stamp.revision;
    stage.store.value = value;
    stage.delete_lead();
    stage.is_replaced = true;
}

/// Rounds continue after the last fault, whatever damage the store's values had (#48).
#[test]
fn rounds_continue_after_any_damage_to_the_store() {
    let worlds: Vec<World> = (1..=3).map(world).collect();
    let mut rewritten = 0;
    for seed in 0..200 {
        let parties = Parties::new(&worlds[seed as usize % worlds.len()]);
        let mut random = Seed::new(seed).stream("damage", 0);
        let mut stage = ReplicaWorld::new(&parties, "marketplace", seed);
        stage.loss_ppm = [0, 0, 100_000][random.below(3) as usize];
        let may_replace = random.below(3) == 0;
        for _ in 0..10 {
            stage.run(stage.now + Duration::from_ms(200 + random.below(12_000)));
            stage.check_players();
            let at = random.below(BROKERS as u64) as usize;
            match random.below(8) {
                0 => stage.begin(at),
                1 => {
                    let until = stage.now + Duration::from_ms(random.below(20_000));
                    stage.brokers[at].iter_mut().for_each(|running| running.cut_until = until);
                }
                2 if may_replace => replace(&mut stage, &mut random),
                _ => damage(&mut stage, &mut random),
            }
        }
        stage.brokers.iter_mut().flatten().for_each(|running| running.cut_until = Instant::ZERO);
        stage.loss_ppm = 0;
        let before = stage.store.kept.len();
        stage.run(stage.now + LEASE * 2 + EVERY * 2);
        assert_eq!(stage.leaders(), 1, "seed {seed}");
        assert!(stage.store.kept.len() > before, "seed {seed}: rounds go on");
        let last = stage.store.kept.last().map(|decision| decision.round);
        stage.run(stage.now + LEASE);
        for running in stage.brokers.iter().flatten() {
            let known = running.replica.known().map(|decision| decision.round);
            assert!(known >= last, "seed {seed}: all brokers know the last round");
        }
        assert_eq!(stage.stall(), None, "seed {seed}");
        stage.check_players();
        rewritten += stage.store.written.len() - stage.store.kept.len();
    }
    assert!(rewritten > 100, "known decisions were written again: {rewritten}");
}

/// The leader restores a damaged value within one lease, and rounds continue under the same lead
/// (#48).
#[test]
fn a_leader_writes_its_decision_over_a_damaged_value() {
    let world = world(1);
    let parties = Parties::new(&world);
    let damages: [fn(&mut Store); 4] = [
        |store| store.tamper(None),
        |store| store.tamper(Some(store.written[0].clone())),
        |store| store.spoil(0, 0),
        |store| store.spoil(1, 1 << 50),
    ];
    for damage in damages {
        let mut stage = ReplicaWorld::new(&parties, "marketplace", 1);
        stage.run(Instant::ZERO + EVERY * 3 + Duration::from_secs(5));
        let last = stage.store.kept.last().cloned().expect("rounds were kept");
        damage(&mut stage.store);
        stage.run(stage.now + LEASE);
        assert_eq!(stage.store.value.decision, Some(Arc::clone(&last)), "the known decision");
        stage.run(stage.now + EVERY);
        assert!(stage.store.value.decision.as_ref().is_some_and(|now| now.round > last.round));
        assert_eq!((stage.begun, stage.stall()), (1, None), "the lead stands");
    }
}

/// A broker whose clock is one day ahead adopts the lower rounds of later leads, even if its own
/// decision was lost from the store (#48).
#[test]
fn later_lead_outranks_a_higher_round() {
    let world = world(2);
    let parties = Parties::new(&world);
    let mut stage = ReplicaWorld::new(&parties, "marketplace", 2);
    (1..BROKERS).for_each(|at| stage.brokers[at] = None);
    stage.begin_ahead(0, Duration::from_secs(86_400));
    stage.run(Instant::ZERO + LEASE + EVERY * 2);
    let day_ahead = stage.store.kept.last().expect("rounds were kept").round;
    stage.brokers[0].as_mut().expect("it runs").cut_until = stage.now + LEASE * 4;
    stage.store.tamper(None);
    (1..BROKERS).for_each(|at| stage.begin(at));
    stage.run(stage.now + LEASE * 4 + EVERY);
    let known = stage.brokers[0].as_ref().and_then(|running| running.replica.known().cloned());
    assert!(known.is_some_and(|known| known.round < day_ahead));
    assert_eq!((stage.leaders(), stage.stall()), (1, None));
}

/// A broker reports a stall after three rounds without a stored decision, and not earlier (#48).
#[test]
fn broker_reports_a_stall_after_three_missed_rounds() {
    let world = world(3);
    let parties = Parties::new(&world);
    let mut stage = ReplicaWorld::new(&parties, "marketplace", 3);
    stage.run(Instant::ZERO + EVERY * 2);
    stage.store_away_until = Instant::MAX;
    let away_at = stage.now;
    stage.run(away_at + EVERY * 3 - Duration::from_secs(1));
    assert_eq!(stage.stall(), None);
    stage.run(away_at + EVERY * 3 + LEASE * 2);
    for running in stage.brokers.iter().flatten() {
        let stall = running.replica.stall(stage.now);
        assert!(matches!(stall, Some(Stall::NoLeader { lasts }) if lasts >= EVERY * 3), "{stall:?}");
    }
    stage.store_away_until = Instant::ZERO;
    stage.run(stage.now + LEASE * 2);
    assert_eq!(stage.stall(), None);
}
