//! Rounds between a broker and agents that may be late, dead, unstable or malicious, over channels
//! with delay and loss.
//!
//! [`RoundWorld::check`] checks the invariants after every message.

use anabranch_broker_proto::broker::{
    ClusterId, Decision, Event, NetworkTrust, PlaceDemand, Settings, ToNetwork, VoidReason,
};
use anabranch_broker_proto::designs::{self, Design};
use anabranch_broker_proto::messages::{Assent, BidResult, Bids, ClusterBid, Proposal, ShareBids};
use anabranch_broker_proto::{Agent, Broker, Estimates, Parties, Reserve, World, WorldShape, generate};
use anabranch_units::{Duration, Instant, PeerId, RandomStream, Seed};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

fn world(seed: u64) -> World {
    let shape = WorldShape {
        networks: vec![30, 4, 4, 6, 5],
        sessions: 300,
        countries: 5,
        cities: 60,
        providers: 4,
        ..WorldShape::default()
    };
    generate(&shape, Seed::new(seed))
}

/// Behaviour of a network's agent.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum AgentBehaviour {
    /// Correct.
    Good,
    /// Silent.
    Dead,
    /// Sends bids after the deadline.
    Late,
    /// Sends invalid messages only.
    Nonsense,
    /// Bids each cluster for each share many times.
    Floods,
    /// Joins and leaves repeatedly.
    Flaps,
    /// Refuses every proposal, with capacity 0.
    Refuses,
}

enum Message {
    ToNetwork(ToNetwork),
    Bids(Bids),
    Assent(Assent),
}

/// A broker, its agents, and the channels between them.
struct RoundWorld<'a> {
    now: Instant,
    parties: &'a Parties<'a>,
    design: Arc<dyn Design>,
    broker: Broker,
    agents: Vec<(Agent, AgentBehaviour)>,
    random: RandomStream,
    loss_ppm: u32,
    on_the_way: BTreeMap<(Instant, u64), (PeerId, Message)>,
    messages: u64,
    /// Capacity of each cluster, as the broker has accepted it in bids of the current round.
    bid: BTreeMap<ClusterId, u64>,
    calling: u64,
    decisions: Vec<Arc<Decision>>,
    voids: Vec<(u64, VoidReason)>,
    /// Results sent to each network, by network and round.
    told: BTreeMap<(PeerId, u64), BidResult>,
    began_at: Instant,
}

const EVERY: Duration = Duration::from_secs(60);
const BIDS_WITHIN: Duration = Duration::from_secs(10);
const ASSENTS_WITHIN: Duration = Duration::from_secs(5);
const ATTEMPTS: u32 = 3;

fn settings(design: &Arc<dyn Design>) -> Settings {
    Settings {
        every: EVERY,
        bids_within: BIDS_WITHIN,
        assents_within: ASSENTS_WITHIN,
        attempts_max: ATTEMPTS,
        ..Settings::new(Arc::clone(design))
    }
}

impl<'a> RoundWorld<'a> {
    fn new(parties: &'a Parties<'a>, design: &str, manners: &[AgentBehaviour], seed: u64) -> Self {
        let design = designs::by_name(design).expect("there is one");
        let mut broker = Broker::new(Instant::ZERO, settings(&design));
        for number in 0..manners.len() as u32 {
            broker.handle_joined(PeerId(number), parties.contract(number));
        }
        broker.handle_gathered(parties.gathered());
        Self {
            now: Instant::ZERO,
            parties,
            design,
            broker,
            agents: manners.iter().map(|manner| (Agent::default(), *manner)).collect(),
            random: Seed::new(seed).stream("hall", 0),
            loss_ppm: 0,
            on_the_way: BTreeMap::new(),
            messages: 0,
            bid: BTreeMap::new(),
            calling: 0,
            decisions: Vec::new(),
            voids: Vec::new(),
            told: BTreeMap::new(),
            began_at: Instant::ZERO,
        }
    }

    fn send(&mut self, network: PeerId, message: Message, after: Duration) {
        if !self.random.chance_ppm(self.loss_ppm) {
            let delay = Duration::from_ms(5 + self.random.below(200));
            self.messages += 1;
            self.on_the_way.insert((self.now + delay + after, self.messages), (network, message));
        }
    }

    /// Runs until `until`.
    fn run(&mut self, until: Instant) {
        loop {
            self.drain();
            let next = self.on_the_way.keys().next().map(|(at, _)| *at);
            let due = self.broker.poll_timeout();
            let Some(at) = next.into_iter().chain(due).min().filter(|at| *at <= until) else { break };
            self.now = self.now.max(at);
            if next == Some(at) {
                let (_, (network, message)) = self.on_the_way.pop_first().expect("there is one");
                self.deliver(network, message);
            } else {
                self.broker.handle_timeout(self.now);
            }
        }
        self.now = until;
    }

    fn drain(&mut self) {
        loop {
            if let Some(job) = self.broker.poll_job() {
                let answer = job.run();
                self.broker.handle_answer(self.now, &job, answer);
            } else if let Some((network, message)) = self.broker.poll_transmit() {
                match &message {
                    ToNetwork::Call(call) if call.round != self.calling => {
                        (self.calling, self.began_at) = (call.round, self.now);
                        self.bid.clear();
                    }
                    ToNetwork::Accepted(accepted) => {
                        let before = self.told.insert((network, accepted.round), accepted.clone());
                        assert!(before.is_none(), "a round is told once");
                    }
                    _ => {}
                }
                self.send(network, Message::ToNetwork(message), Duration::ZERO);
            } else if let Some(event) = self.broker.poll_event() {
                match event {
                    Event::Accepted(decision) => self.check(decision),
                    Event::Void { round, why } => self.voids.push((round, why)),
                    _ => {}
                }
            } else {
                break;
            }
        }
    }

    fn deliver(&mut self, network: PeerId, message: Message) {
        match message {
            Message::ToNetwork(message) => self.answer(network, message),
            Message::Bids(bids) => {
                let capacities: Vec<(u32, u64)> = bids
                    .clusters
                    .iter()
                    .map(|bid| (bid.cluster, bid.capacity_bps.unwrap_or(u64::MAX)))
                    .collect();
                let (round, count) =
                    (bids.round, bids.shares.iter().map(|of| of.clusters.len() as u64).sum());
                let reply = self.broker.handle_bids(network, bids);
                assert!(reply.taken + reply.refused >= count, "each bid is taken or refused: {reply:?}");
                if reply.taken > 0 {
                    assert_eq!(round, self.calling);
                    let ids =
                        capacities.into_iter().map(|(cluster, bps)| (ClusterId { network, cluster }, bps));
                    self.bid.extend(ids);
                }
            }
            Message::Assent(assent) => self.broker.handle_assent(network, &assent),
        }
    }

    /// Handles a message at a network's agent.
    fn answer(&mut self, network: PeerId, message: ToNetwork) {
        let own = self.parties.own(network.0);
        let (agent, manner) = &mut self.agents[network.index()];
        let manner = *manner;
        if manner == AgentBehaviour::Dead {
            return;
        }
        if manner == AgentBehaviour::Flaps && self.random.below(3) == 0 {
            self.broker.handle_left(network);
            self.bid.retain(|id, _| id.network != network);
            self.broker.handle_joined(network, self.parties.contract(network.0));
            return;
        }
        match message {
            ToNetwork::Call(call) => {
                let mut bids = agent.handle_call(PeerId(0), &*self.design, &own, &call);
                let mut after = Duration::ZERO;
                match manner {
                    AgentBehaviour::Late => after = BIDS_WITHIN,
                    AgentBehaviour::Nonsense => spoil(&mut bids, &mut self.random),
                    AgentBehaviour::Floods => {
                        let all = bids.clone();
                        bids.clusters.extend(all.clusters);
                        bids.shares.extend(all.shares);
                        self.send(network, Message::Bids(bids.clone()), after);
                    }
                    _ => {}
                }
                self.send(network, Message::Bids(bids), after);
            }
            ToNetwork::Proposal(proposal) => {
                let mut assent = agent.handle_proposal(&own, PeerId(0), &proposal);
                if manner == AgentBehaviour::Refuses {
                    assent.refused = proposal.clusters.clone();
                    assent.refused.iter_mut().for_each(|refused| refused.rate_bps = 0);
                }
                self.send(network, Message::Assent(assent), Duration::ZERO);
            }
            ToNetwork::Accepted(accepted) => agent.handle_accepted(PeerId(0), &accepted),
            _ => {}
        }
    }

    /// Checks the invariants of a decision on its acceptance.
    fn check(&mut self, decision: Arc<Decision>) {
        assert_eq!(decision.round, self.calling);
        let before = self.decisions.last().map_or(0, |before| before.round);
        assert!(decision.round > before, "rounds are accepted once, and in order");
        let latest = BIDS_WITHIN + ASSENTS_WITHIN * u64::from(ATTEMPTS);
        assert!(self.now.saturating_since(self.began_at) <= latest, "a round comes to an end");
        let mut sent: BTreeMap<ClusterId, u64> = BTreeMap::new();
        let mut clients: BTreeMap<(u32, u64), u64> = BTreeMap::new();
        for placed in &decision.placed {
            let (bps, sessions) = (placed.bitrate.as_bps(), u64::from(placed.sessions));
            *clients.entry((placed.place, bps)).or_default() += sessions;
            if let Some((to, score)) = placed.to {
                *sent.entry(to).or_default() += bps * sessions;
                assert!(score.is_finite() && decision.prices_per_mbps.contains_key(&to));
            }
        }
        for (to, bps) in &sent {
            let most = self.bid.get(to);
            assert!(most.is_some_and(|most| bps <= most), "{to:?} gets {bps} of {most:?}");
        }
        let gathered: Vec<PlaceDemand> = self.parties.gathered();
        let all = (0..).zip(&gathered).flat_map(|(place, of)| {
            of.clients.iter().map(move |some| ((place, some.bitrate_bps), u64::from(some.sessions)))
        });
        assert_eq!(clients, all.collect(), "every client is somewhere, once");
        self.decisions.push(decision);
    }

    fn standing(&self, network: u32) -> NetworkTrust {
        self.broker.standing(PeerId(network)).expect("it is known")
    }

    /// Rate assigned to a network's clusters in the last decision, in bits per second.
    fn gets(&self, network: u32) -> u64 {
        let decision = self.decisions.last().expect("a round was accepted");
        let its =
            decision.placed.iter().filter(|p| p.to.is_some_and(|(to, _)| to.network == PeerId(network)));
        its.map(|placed| placed.bitrate.as_bps() * u64::from(placed.sessions)).sum()
    }
}

/// Makes every bid invalid, in a random way.
fn spoil(bids: &mut Bids, random: &mut RandomStream) {
    let wrong = [f64::NAN, f64::INFINITY, -1.0, 1e300];
    for bid in &mut bids.clusters {
        if random.below(2) == 0 {
            bid.price = Some(wrong[random.below(4) as usize]);
        }
        if random.below(2) == 0 {
            bid.capacity_bps = Some(u64::MAX);
        }
    }
    for of in &mut bids.shares {
        for (cluster, score) in &mut of.clusters {
            match random.below(2) {
                0 => *score = wrong[random.below(4) as usize],
                _ => *cluster += 100_000,
            }
        }
    }
    bids.shares.push(ShareBids { share: u32::MAX, clusters: vec![(0, 1.0)] });
    bids.clusters.push(ClusterBid { cluster: u32::MAX, price: Some(f64::NAN), capacity_bps: None });
}

#[test]
fn each_design_places_all_clients_and_informs_the_networks() {
    let world = world(1);
    let parties = Parties::new(&world);
    for design in designs::all() {
        let mut hall = RoundWorld::new(&parties, &design.name(), &[AgentBehaviour::Good; 5], 1);
        hall.run(Instant::ZERO + EVERY + Duration::from_secs(30));
        assert_eq!(hall.decisions.len(), 2, "{}", design.name());
        for network in 0..5 {
            let told = &hall.told[&(PeerId(network), 2)];
            let told_bps: u64 = told.clusters.iter().map(|cluster| cluster.rate_bps).sum();
            let placed_bps: u64 = told.shares.iter().map(|s| s.bitrate_bps * u64::from(s.sessions)).sum();
            assert_eq!((told_bps, placed_bps), (hall.gets(network), hall.gets(network)));
            let committed: u64 =
                told.clusters.iter().map(|c| hall.agents[network as usize].0.committed_bps(c.cluster)).sum();
            assert_eq!(committed, told_bps);
        }
    }
}

#[test]
fn faulty_networks_do_not_affect_other_networks() {
    let world = world(2);
    let parties = Parties::new(&world);
    let manners = [
        AgentBehaviour::Good,
        AgentBehaviour::Dead,
        AgentBehaviour::Late,
        AgentBehaviour::Nonsense,
        AgentBehaviour::Floods,
    ];
    let mut hall = RoundWorld::new(&parties, "marketplace", &manners, 1);
    hall.run(Instant::ZERO + EVERY * 10);
    assert!(hall.decisions.len() >= 10);
    for network in [1, 2, 3] {
        assert_eq!(hall.gets(network), 0, "its place is taken by others");
    }
    assert!(hall.gets(0) > 0 && hall.gets(4) > 0);
    assert!(hall.decisions.iter().all(|decision| decision.placed.iter().all(|placed| placed.to.is_some())));
    assert_eq!(hall.standing(0), NetworkTrust::default());
    assert!(hall.standing(1).missed >= 10 && hall.standing(2).missed >= 10);
    assert!(hall.standing(3).reputation < 0.1, "{:?}", hall.standing(3));
    // Half of the flooding agent's bids are duplicates.
    assert!((0.45..0.55).contains(&hall.standing(4).reputation), "{:?}", hall.standing(4));
}

/// The decision stores the standings of all networks, disconnected networks included.
#[test]
fn restarted_broker_keeps_the_networks_reputations() {
    let world = world(2);
    let parties = Parties::new(&world);
    let manners = [
        AgentBehaviour::Good,
        AgentBehaviour::Nonsense,
        AgentBehaviour::Good,
        AgentBehaviour::Good,
        AgentBehaviour::Good,
    ];
    let mut hall = RoundWorld::new(&parties, "marketplace", &manners, 1);
    hall.run(Instant::ZERO + EVERY * 5);
    hall.broker.handle_left(PeerId(1));
    hall.run(hall.now + EVERY * 2);
    let thought = hall.standing(1);
    assert!(thought.reputation < 0.3, "{thought:?}");
    let decision = hall.decisions.last().expect("a round was accepted");
    let mut new = Broker::new(hall.now, settings(&hall.design)).with_accepted((**decision).clone());
    assert_eq!(new.standing(PeerId(1)), Some(thought), "it is known before the network is there again");
    new.handle_joined(PeerId(1), parties.contract(1));
    assert_eq!(new.standing(PeerId(1)), Some(thought), "and is not forgotten as it comes");
    assert_eq!(new.standing(PeerId(0)), Some(NetworkTrust::default()));
}

/// For any faults of networks and channels, [`RoundWorld::check`] holds and rounds continue.
#[test]
fn rounds_continue_under_random_network_and_channel_faults() {
    let worlds: Vec<World> = (1..=4).map(world).collect();
    let all = [
        AgentBehaviour::Good,
        AgentBehaviour::Dead,
        AgentBehaviour::Late,
        AgentBehaviour::Nonsense,
        AgentBehaviour::Floods,
        AgentBehaviour::Flaps,
        AgentBehaviour::Refuses,
    ];
    let (mut accepted, mut voids) = (0, 0);
    for seed in 0..200 {
        let mut random = Seed::new(seed).stream("schedule", 0);
        let parties = Parties::new(&worlds[seed as usize % worlds.len()]);
        let manners: Vec<AgentBehaviour> = (0..5)
            .map(|_| if random.below(2) == 0 { AgentBehaviour::Good } else { all[random.below(7) as usize] })
            .collect();
        let designs = ["marketplace", "transactions", "best-lookup", "brokered"];
        let design = designs[random.below(4) as usize];
        let mut hall = RoundWorld::new(&parties, design, &manners, seed);
        hall.loss_ppm = [0, 10_000, 200_000][random.below(3) as usize];
        for _ in 0..6 {
            let until = hall.now + Duration::from_secs(1 + random.below(60));
            hall.run(until);
            // The broker ends, and a new broker resumes from the last accepted round.
            if random.below(4) == 0 {
                let mut new = Broker::new(hall.now, settings(&hall.design)).with_rounds_after(hall.calling);
                if let Some(decision) = hall.decisions.last() {
                    new = new.with_accepted((**decision).clone());
                }
                for number in 0..5 {
                    new.handle_joined(PeerId(number), parties.contract(number));
                }
                new.handle_gathered(parties.gathered());
                hall.broker = new;
                hall.told
                    .retain(|(_, round), _| hall.decisions.iter().any(|decision| decision.round == *round));
            }
        }
        accepted += hall.decisions.len();
        voids += hall.voids.len();
    }
    assert!(accepted > 300 && voids > 0, "{accepted} {voids}");
}

#[test]
fn network_that_refuses_twice_gets_no_clients() {
    let world = world(3);
    let parties = Parties::new(&world);
    let manners = [
        AgentBehaviour::Good,
        AgentBehaviour::Refuses,
        AgentBehaviour::Good,
        AgentBehaviour::Good,
        AgentBehaviour::Good,
    ];
    let mut hall = RoundWorld::new(&parties, "transactions", &manners, 1);
    hall.run(Instant::ZERO + Duration::from_secs(50));
    assert_eq!((hall.decisions.len(), hall.gets(1)), (1, 0));
    assert_eq!(hall.voids, []);
    // A silent agent counts as a refusal, and the broker searches again with the remaining
    // networks.
    hall.agents[2].1 = AgentBehaviour::Dead;
    hall.run(Instant::ZERO + EVERY * 2);
    assert_eq!((hall.decisions.len(), hall.gets(1), hall.gets(2)), (2, 0, 0));
}

/// An agent that assents and leaves before the last answer of the round gets no clients.
#[test]
fn network_that_assents_and_leaves_gets_no_clients() {
    let world = world(3);
    let parties = Parties::new(&world);
    let design = designs::by_name("transactions").expect("there is one");
    let mut broker = Broker::new(Instant::ZERO, settings(&design));
    parties.join_all(&mut broker);
    broker.handle_gathered(parties.gathered());
    broker.handle_timeout(Instant::ZERO);
    let mut agents = parties.agents(Reserve::Nothing);
    let job = parties.hand_over(&mut broker, PeerId(0), &*design, &mut agents).expect("all have bid");
    broker.handle_answer(Instant::ZERO, &job, job.run());
    let mut proposals = Vec::new();
    while let Some((network, message)) = broker.poll_transmit() {
        if let ToNetwork::Proposal(proposal) = message {
            proposals.push((network, proposal));
        }
    }
    assert!(proposals.len() > 1, "several are asked");
    let gone = proposals[0].0;
    let agree = |(network, proposal): &(PeerId, Proposal), broker: &mut Broker| {
        let assent = agents[network.index()].handle_proposal(&parties.own(network.0), PeerId(0), proposal);
        assert_eq!(assent.refused, []);
        broker.handle_assent(*network, &assent);
    };
    agree(&proposals[0], &mut broker);
    broker.handle_left(gone);
    proposals[1..].iter().for_each(|proposal| agree(proposal, &mut broker));
    assert!(broker.accepted().is_none(), "it is searched for another decision");
    parties.end_round(&mut broker, Instant::ZERO, PeerId(0), &*design, &mut agents);
    let decision = broker.accepted().expect("the others agree");
    let given = |network| {
        decision.placed.iter().filter(|p| p.to.is_some_and(|(to, _)| to.network == network)).count()
    };
    assert!(given(gone) == 0 && given(proposals[1].0) > 0);
}

#[test]
fn last_decision_stays_in_force_without_bids() {
    let world = world(4);
    let parties = Parties::new(&world);
    let mut hall = RoundWorld::new(&parties, "marketplace", &[AgentBehaviour::Good; 5], 1);
    hall.run(Instant::ZERO + Duration::from_secs(30));
    hall.agents.iter_mut().for_each(|(_, manner)| *manner = AgentBehaviour::Dead);
    hall.run(Instant::ZERO + EVERY * 3);
    assert_eq!(hall.decisions.len(), 1);
    assert!(hall.voids.len() >= 2 && hall.voids.iter().all(|(_, why)| *why == VoidReason::NoBids));
    assert_eq!(hall.broker.accepted().map(|decision| decision.round), Some(1));
}

/// Two brokers each fill the same clusters to the capacity that was bid.
#[test]
fn two_brokers_overbook_clusters_unless_networks_are_asked() {
    let mut over = BTreeMap::new();
    for design in ["marketplace", "transactions"] {
        let world = generate(
            &WorldShape {
                networks: vec![12, 4],
                sessions: 400,
                countries: 3,
                cities: 30,
                providers: 3,
                capacity: 0.16,
                ..WorldShape::default()
            },
            Seed::new(5),
        );
        let parties = Parties::new(&world);
        let design: Arc<dyn Design> = designs::by_name(design).expect("there is one");
        let mut agents = parties.agents(Reserve::Nothing);
        for number in 1..=2 {
            let mut broker = Broker::new(Instant::ZERO, settings(&design));
            parties.join_all(&mut broker);
            broker.handle_gathered(parties.gathered());
            broker.handle_timeout(Instant::ZERO);
            parties.end_round(&mut broker, Instant::ZERO, PeerId(number), &*design, &mut agents);
        }
        let used: BTreeSet<u32> = (0..world.sites().len() as u32)
            .filter(|cluster| {
                let network = world.sites()[*cluster as usize].network;
                let room = parties.own(network).site(*cluster).map_or(0, |site| site.room().as_bps());
                agents[network as usize].committed_bps(*cluster) > room
            })
            .collect();
        over.insert(design.name(), used.len());
    }
    assert!(over["marketplace"] > 0, "{over:?}");
    assert_eq!(over["transactions"], 0, "{over:?}");
}
