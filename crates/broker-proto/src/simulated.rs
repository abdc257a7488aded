//! `broker` in the simulator: state machines of broker, agents and players over simulated TCP.
//!
//! The broker has one host and each cluster has one; players share the remaining hosts. Agents and
//! players have streams to the broker; a message takes the bytes of its JSON form. Players fetch
//! segments of one bitrate from clusters. A viewer's city is the name of its host; a cluster's
//! score for a host is their round trip. The settings list faults; `change` makes links fail.
//!
//! Ideal: decisions and bids take no time, TLS and HTTP take bytes and no round trips, and a
//! cluster sends requested segments at once. Read [`ResolvedWorkload`] and [`BrokerApp`] first.

mod own_clusters;
mod report;
mod settings;
#[cfg(test)]
mod tests;

use crate::agent::{Agent, Reserve};
use crate::broker::{Broker, Contract, Event, Settings as BrokerSettings, ToNetwork};
use crate::counting::RequestCounter;
use crate::delivery::Delivery;
use crate::designs::{self, Design};
use crate::messages::{Assent, Bids, Call};
use crate::steering::{Catalogue, answer};
use crate::world::Offer;
use anabranch_media::player::{Action, PlaybackStats, Player, PlayerSettings};
use anabranch_media::steering::{Dialect, Pathway, SteeringQuery, Viewer};
use anabranch_sim::scenario::SystemWorkload;
use anabranch_sim::system::{System, SystemPlan};
use anabranch_sim::traffic::{
    App, AppCx, HEAD_BYTES, Messages, Side, StreamEvent, StreamSpec, TLS_RECORD_BYTES,
};
use anabranch_sim::{Network, PlanError, WorkloadRow};
use anabranch_units::stats::percentile;
use anabranch_units::{BitRate, Duration, Instant, PeerId, Seed};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

pub use report::report_players;
pub use settings::{Fault, FaultKind, Settings, plan};

use own_clusters::OwnClusters;
use report::mean;

/// Interval between two polls of an agent, which are also its signs of life.
const ASKS_EVERY: Duration = Duration::from_secs(8);
/// Number of the broker's timer; agents' and players' timers follow.
const BROKER: u16 = 0;
const AGENTS: u16 = 1;

/// `broker` in scenarios.
#[derive(Copy, Clone, Debug)]
pub struct SimulatedSystem;

impl System for SimulatedSystem {
    fn kind(&self) -> &'static str {
        "broker"
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
        Ok(Box::new(plan(workload, network, field)?))
    }
}

/// A workload, resolved against its network.
#[derive(Debug)]
pub struct ResolvedWorkload {
    settings: Settings,
    hosts: u16,
    /// Score by viewers' host, from the first one on, and cluster.
    scores: Vec<Vec<f64>>,
    capacities: Vec<BitRate>,
    priorities: Vec<u8>,
}

impl ResolvedWorkload {
    /// Settings of the workload in the scenario.
    pub const fn settings(&self) -> &Settings {
        &self.settings
    }
    /// Number of hosts of the network.
    pub const fn hosts(&self) -> u16 {
        self.hosts
    }
    /// Score of a cluster for the viewers of a host: the round trip without queues, in ms.
    pub fn score(&self, viewer: u16, cluster: u32) -> f64 {
        self.scores[usize::from(viewer - self.settings.first_viewer())][cluster as usize]
    }
    /// Capacity that a cluster announces.
    pub fn capacity(&self, cluster: u32) -> BitRate {
        self.capacities[cluster as usize]
    }
}

impl SystemPlan for ResolvedWorkload {
    fn app(&self, _: &Network, seed: Seed) -> Result<Box<dyn App>, PlanError> {
        Ok(Box::new(BrokerApp::new(self, seed)))
    }
    fn has_end(&self) -> bool {
        false
    }
    fn priorities(&self) -> &[u8] {
        &self.priorities
    }
}

/// Name of the city of a host.
pub fn city(host: u16) -> String {
    format!("h{host}")
}

/// Pathway of a network in manifests.
pub fn pathway(network: u32) -> String {
    format!("network-{network}")
}

/// Internet provider of all viewers.
const ISP: &str = "simulated";

/// An agent's message.
#[derive(Debug)]
enum AgentMessage {
    Join,
    /// A poll for messages.
    Asks,
    Bids(Box<Bids>),
    Assent(Assent),
}

/// A message to an agent.
#[derive(Debug)]
enum BrokerMessage {
    Call(Arc<Call>),
    Other(Box<ToNetwork>),
}

fn message_bytes(message: &impl Serialize) -> u64 {
    serde_json::to_vec(message).map_or(0, |json| json.len() as u64) + HEAD_BYTES + TLS_RECORD_BYTES
}

/// A network's agent and its stream.
#[derive(Debug)]
struct NetworkRun {
    agent: Agent,
    own: OwnClusters,
    stream: u32,
    is_connected: bool,
    to_broker: Messages<AgentMessage>,
    to_agent: Messages<BrokerMessage>,
    /// Delayed messages, each with the time at which it is sent.
    late: VecDeque<(Instant, AgentMessage)>,
    asks_at: Instant,
}

/// A player and its streams.
#[derive(Debug)]
struct SimulatedPlayer {
    player: Player<u32>,
    host: u16,
    number: u64,
    opens_at: Instant,
    /// Stream to the broker; `None` before the first request.
    asks: Option<u32>,
    /// Stream to each cluster, by the cluster's number.
    streams: BTreeMap<u32, u32>,
}

#[derive(Copy, Clone, Debug)]
enum StreamContent {
    Agent(usize),
    Question(usize),
    Segments { player: usize, cluster: u32 },
}

/// A design, for `Debug` output by name.
struct DebugDesign(Arc<dyn Design>);

impl std::fmt::Debug for DebugDesign {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0.name())
    }
}

/// Progress of a player's stream.
#[derive(Copy, Clone, Debug, Default)]
struct Progress {
    /// Bytes of the request that have reached the server.
    asked: u64,
    /// Bytes of the answer still to arrive.
    left: u64,
    /// True if the answer is no longer awaited.
    is_dropped: bool,
}

/// State of all hosts of a run.
#[derive(Debug)]
pub struct BrokerApp {
    settings: Settings,
    design: DebugDesign,
    seed: Seed,
    broker: Broker,
    /// False while the broker is dead.
    is_alive: bool,
    heard_at: BTreeMap<PeerId, Instant>,
    counting: RequestCounter,
    delivery: Delivery,
    catalogue: Catalogue,
    /// Cluster of each pathway, by the pathway's name.
    clusters: BTreeMap<String, u32>,
    networks: Vec<NetworkRun>,
    players: Vec<SimulatedPlayer>,
    streams: Vec<Option<(StreamContent, Progress)>>,
    answers: BTreeMap<u32, VecDeque<(Vec<u32>, Duration)>>,
    rounds: u64,
    voids: u64,
    round_us: Vec<f64>,
    began_at: Instant,
    unplaced: u64,
    control_bytes: u64,
    segment_bytes: u64,
    at_warmup: Vec<PlaybackStats>,
    now: Instant,
    armed: BTreeMap<u16, Instant>,
}

impl BrokerApp {
    fn new(stage: &ResolvedWorkload, seed: Seed) -> Self {
        let settings = stage.settings.clone();
        let design = designs::by_name(&settings.design).expect("it was checked");
        let costs = settings.costs(seed);
        let clusters_of =
            |network: u32| (0..settings.clusters).map(move |cluster| network * settings.clusters + cluster);
        let hosts = stage.hosts;
        let own = |network: u32| OwnClusters {
            network,
            cost: costs[network as usize],
            capacities: clusters_of(network).map(|at| stage.capacity(at)).collect(),
            offers: (settings.first_viewer()..hosts)
                .map(|host| {
                    let offer = |cluster| Offer {
                        cluster,
                        score: stage.score(host, network * settings.clusters + cluster),
                    };
                    (city(host), (0..settings.clusters).map(offer).collect())
                })
                .collect(),
        };
        let listed = |network: u32| Pathway {
            id: pathway(network),
            hosts: (0..settings.clusters)
                .map(|cluster| (cluster, city(settings.cluster_host(network, cluster))))
                .collect(),
        };
        let catalogue: Catalogue =
            (0..settings.networks).map(|network| (PeerId(network), listed(network))).collect();
        let mut clusters = BTreeMap::new();
        for (network, listed) in &catalogue {
            clusters.insert(listed.id.clone(), network.0 * settings.clusters);
            for cluster in 0..settings.clusters {
                clusters.insert(listed.clone_id(cluster), network.0 * settings.clusters + cluster);
            }
        }
        let mut random = seed.stream("broker-players", 0);
        let of_player =
            PlayerSettings { segment: settings.segment, buffer: settings.buffer, ttl: settings.ttl };
        // Without the broker a player uses the manifest's own pathways in order.
        let own_ways: Vec<u32> = (0..settings.networks).map(|network| network * settings.clusters).collect();
        let players = (0..settings.players).map(|number| {
            let opens_at = Instant::ZERO + Duration::from_ps(random.below(settings.arrivals.as_ps() + 1));
            SimulatedPlayer {
                player: Player::new(opens_at, of_player, own_ways.clone()),
                host: settings.player_host(number, hosts),
                number: random.next_u64(),
                opens_at,
                asks: None,
                streams: BTreeMap::new(),
            }
        });
        let networks = (0..settings.networks).map(|network| NetworkRun {
            agent: Agent::new(Reserve::Nothing),
            own: own(network),
            stream: 0,
            is_connected: false,
            to_broker: Messages::default(),
            to_agent: Messages::default(),
            late: VecDeque::new(),
            asks_at: Instant::ZERO + ASKS_EVERY,
        });
        Self {
            broker: Broker::new(Instant::ZERO, broker_settings(&settings, &design)),
            design: DebugDesign(design),
            seed,
            is_alive: true,
            heard_at: BTreeMap::new(),
            counting: RequestCounter::new(Instant::ZERO, settings.ttl),
            delivery: Delivery::default(),
            catalogue,
            clusters,
            networks: networks.collect(),
            players: players.collect(),
            streams: Vec::new(),
            answers: BTreeMap::new(),
            rounds: 0,
            voids: 0,
            round_us: Vec::new(),
            began_at: Instant::ZERO,
            unplaced: 0,
            control_bytes: 0,
            segment_bytes: settings.segment_bytes(),
            at_warmup: Vec::new(),
            now: Instant::ZERO,
            armed: BTreeMap::new(),
            settings,
        }
    }

    fn has_fault(&self, now: Instant, network: Option<u32>, kinds: &[FaultKind]) -> bool {
        let is_it =
            |fault: &&Fault| fault.network == network && kinds.contains(&fault.what) && fault.holds(now);
        self.settings.faults.iter().any(|fault| is_it(&fault))
    }

    /// Returns true if a fault silences a network's agent.
    fn is_mute(&self, now: Instant, network: usize) -> bool {
        self.has_fault(now, Some(network as u32), &[FaultKind::AgentDies, FaultKind::NetworkDies])
    }

    fn is_broker_dead(&self, now: Instant) -> bool {
        self.has_fault(now, None, &[FaultKind::BrokerDies])
    }

    fn note(&mut self, stream: u32, carries: StreamContent) {
        let at = stream as usize;
        if self.streams.len() <= at {
            self.streams.resize(at + 1, None);
        }
        self.streams[at] = Some((carries, Progress::default()));
    }

    fn open(&mut self, cx: &mut AppCx<'_, '_>, from: u16, to: u16, is_control: bool) -> u32 {
        let priority = if is_control { self.settings.control_priority } else { self.settings.priority };
        cx.open(&StreamSpec { from, to, links: [None; 2], size: None, priority, is_control })
    }

    fn arm(&mut self, cx: &mut AppCx<'_, '_>, token: u16, at: Instant) {
        let at = at.max(cx.now());
        let armed = self.armed.entry(token).or_insert(Instant::MAX);
        if at < *armed {
            *armed = at;
            cx.arm(at, token);
        }
    }

    /// Sends an agent's message once its connection is established.
    fn say(&mut self, cx: &mut AppCx<'_, '_>, network: usize, said: AgentMessage) {
        let bytes = match &said {
            AgentMessage::Join | AgentMessage::Asks => HEAD_BYTES + TLS_RECORD_BYTES,
            AgentMessage::Bids(bids) => message_bytes(bids),
            AgentMessage::Assent(assent) => message_bytes(assent),
        };
        let run = &mut self.networks[network];
        run.to_broker.write(said, bytes);
        let stream = run.stream;
        self.control_bytes += bytes;
        cx.write(stream, Side::Opener, bytes);
    }

    /// Handles an agent's message at the broker.
    fn hear(&mut self, cx: &mut AppCx<'_, '_>, network: usize, said: AgentMessage) {
        if !self.is_alive {
            return;
        }
        let id = PeerId(network as u32);
        self.heard_at.insert(id, cx.now());
        match said {
            // An agent that is disconnected, or joined an earlier broker, joins at its next poll.
            AgentMessage::Join | AgentMessage::Asks => self.broker.handle_joined(id, Contract::default()),
            AgentMessage::Bids(bids) => drop(self.broker.handle_bids(id, *bids)),
            AgentMessage::Assent(assent) => self.broker.handle_assent(id, &assent),
        }
        self.stir(cx);
    }

    /// Handles a broker's message at an agent.
    fn told(&mut self, cx: &mut AppCx<'_, '_>, network: usize, told: BrokerMessage) {
        let now = cx.now();
        if self.is_mute(now, network) {
            return;
        }
        let is_late = self.has_fault(now, Some(network as u32), &[FaultKind::AgentLate]);
        let broker = PeerId(0);
        let run = &mut self.networks[network];
        let said = match told {
            BrokerMessage::Call(call) => {
                AgentMessage::Bids(Box::new(run.agent.handle_call(broker, &*self.design.0, &run.own, &call)))
            }
            BrokerMessage::Other(message) => match *message {
                ToNetwork::Proposal(proposal) => {
                    AgentMessage::Assent(run.agent.handle_proposal(&run.own, broker, &proposal))
                }
                ToNetwork::Accepted(accepted) => return run.agent.handle_accepted(broker, &accepted),
                ToNetwork::Call(_) => return,
            },
        };
        if is_late {
            let at = now + self.settings.bids_within;
            self.networks[network].late.push_back((at, said));
            self.arm(cx, AGENTS + network as u16, at);
        } else {
            self.say(cx, network, said);
        }
    }

    /// Sends the broker's messages and handles its events, until none is left.
    fn stir(&mut self, cx: &mut AppCx<'_, '_>) {
        let now = cx.now();
        loop {
            if let Some(job) = self.broker.poll_job() {
                let answer = job.run();
                self.broker.handle_answer(now, &job, answer);
            } else if let Some((network, message)) = self.broker.poll_transmit() {
                let run = &mut self.networks[network.index()];
                let (told, bytes) = match message {
                    ToNetwork::Call(call) => {
                        self.began_at = now;
                        let bytes = message_bytes(&*call);
                        (BrokerMessage::Call(call), bytes)
                    }
                    ToNetwork::Proposal(proposal) => {
                        let bytes = message_bytes(&proposal);
                        (BrokerMessage::Other(Box::new(ToNetwork::Proposal(proposal))), bytes)
                    }
                    ToNetwork::Accepted(accepted) => {
                        let bytes = message_bytes(&accepted);
                        (BrokerMessage::Other(Box::new(ToNetwork::Accepted(accepted))), bytes)
                    }
                };
                run.to_agent.write(told, bytes);
                self.control_bytes += bytes;
                cx.write(run.stream, Side::Acceptor, bytes);
            } else if let Some(event) = self.broker.poll_event() {
                match event {
                    Event::Accepted(decision) => {
                        self.rounds += 1;
                        self.round_us.push(now.saturating_since(self.began_at).as_secs_f64() * 1e6);
                        let nowhere = decision.placed.iter().filter(|placed| placed.to.is_none());
                        self.unplaced = nowhere.map(|placed| u64::from(placed.sessions)).sum();
                        self.delivery = Delivery::new(&decision);
                    }
                    Event::Void { .. } => self.voids += 1,
                }
            } else {
                break;
            }
        }
        if let Some(at) = self.broker.poll_timeout() {
            self.arm(cx, BROKER, at.max(now + Duration::from_us(1)));
        }
    }

    fn on_broker_timer(&mut self, cx: &mut AppCx<'_, '_>) {
        let now = cx.now();
        let is_dead = self.is_broker_dead(now);
        if is_dead {
            self.is_alive = false;
            self.arm(cx, BROKER, now + Duration::from_ms(100));
            return;
        }
        if !self.is_alive {
            // The new broker has only the last decision. Agents join it at their next poll.
            self.is_alive = true;
            let passed = now.saturating_since(Instant::ZERO).as_us();
            let mut broker =
                Broker::new(now, broker_settings(&self.settings, &self.design.0)).with_rounds_after(passed);
            self.counting = RequestCounter::new(now, self.settings.ttl);
            if let Some(decision) = self.broker.accepted() {
                self.counting = RequestCounter::new(now, self.settings.ttl).after(decision);
                broker = broker.with_accepted((**decision).clone());
            }
            self.broker = broker;
            self.heard_at.clear();
        }
        let silent_after = self.settings.silent_after;
        let silent: Vec<PeerId> = self
            .heard_at
            .iter()
            .filter(|(_, at)| now.saturating_since(**at) >= silent_after)
            .map(|(network, _)| *network)
            .collect();
        for network in silent {
            self.heard_at.remove(&network);
            self.broker.handle_left(network);
        }
        if self.broker.poll_timeout().is_some_and(|at| at <= now) {
            let gathered = self.counting.gathered(now);
            self.broker.handle_gathered(gathered);
            self.broker.handle_timeout(now);
        }
        self.stir(cx);
    }

    fn on_agent_timer(&mut self, cx: &mut AppCx<'_, '_>, network: usize) {
        let now = cx.now();
        let late = &mut self.networks[network].late;
        let due = late.partition_point(|(at, _)| *at <= now);
        let due: Vec<AgentMessage> = late.drain(..due).map(|(_, said)| said).collect();
        due.into_iter().for_each(|said| self.say(cx, network, said));
        if self.networks[network].asks_at <= now {
            self.networks[network].asks_at = now + ASKS_EVERY;
            if self.networks[network].is_connected && !self.is_mute(now, network) {
                self.say(cx, network, AgentMessage::Asks);
            }
        }
        let run = &self.networks[network];
        let next = run.late.front().map_or(run.asks_at, |(at, _)| run.asks_at.min(*at));
        self.arm(cx, AGENTS + network as u16, next);
    }

    fn player_token(&self, player: usize) -> u16 {
        AGENTS + self.networks.len() as u16 + player as u16
    }

    /// Carries out a player's actions until none is left.
    fn play(&mut self, cx: &mut AppCx<'_, '_>, number: usize) {
        let now = cx.now();
        while let Some(action) = self.players[number].player.poll(now) {
            match action {
                Action::LoadSteering => self.ask(cx, number),
                Action::LoadSegment(cluster) => self.fetch(cx, number, cluster),
                Action::AbortSegment(cluster) => {
                    if let Some(stream) = self.players[number].streams.remove(&cluster) {
                        self.drop_stream(stream);
                    }
                }
            }
        }
        let at = self.players[number].player.poll_timeout();
        let token = self.player_token(number);
        self.arm(cx, token, at.max(now + Duration::from_us(1)));
    }

    fn drop_stream(&mut self, stream: u32) {
        if let Some(Some((_, progress))) = self.streams.get_mut(stream as usize) {
            progress.is_dropped = true;
        }
    }

    fn ask(&mut self, cx: &mut AppCx<'_, '_>, number: usize) {
        let stream = match self.players[number].asks {
            Some(stream) if self.streams[stream as usize].is_some_and(|(_, progress)| progress.left == 0) => {
                stream
            }
            old => {
                old.into_iter().for_each(|stream| self.drop_stream(stream));
                let host = self.players[number].host;
                let stream = self.open(cx, host, 0, true);
                self.note(stream, StreamContent::Question(number));
                self.players[number].asks = Some(stream);
                stream
            }
        };
        if let Some(Some((_, progress))) = self.streams.get_mut(stream as usize) {
            // Not 0, because an answer is complete at 0. The length is set on sending.
            (progress.asked, progress.left) = (0, 1);
        }
        self.control_bytes += HEAD_BYTES + TLS_RECORD_BYTES;
        cx.write(stream, Side::Opener, HEAD_BYTES + TLS_RECORD_BYTES);
    }

    fn answer_player(&mut self, cx: &mut AppCx<'_, '_>, stream: u32, number: usize) {
        let now = cx.now();
        if self.is_broker_dead(now) {
            return;
        }
        let viewing = &self.players[number];
        let viewer = Viewer {
            location: city(viewing.host),
            isp: ISP.to_owned(),
            bitrate: self.settings.bitrate,
            number: viewing.number,
        };
        let plays_by = viewing.player.pathway().map(|cluster| PeerId(cluster / self.settings.clusters));
        self.counting.note(now, &viewer, plays_by);
        let gone: BTreeSet<PeerId> =
            self.catalogue.keys().filter(|network| !self.heard_at.contains_key(network)).copied().collect();
        let query = SteeringQuery::new(Dialect::Hls, viewer);
        let ttl_s = (self.settings.ttl.as_us() / 1_000_000) as u32;
        let Some(steering) = answer(&self.delivery, &self.catalogue, &gone, &query, ttl_s) else { return };
        let bytes = message_bytes(&steering);
        let ways =
            steering.pathway_priority.iter().filter_map(|way| self.clusters.get(way).copied()).collect();
        self.answers.entry(stream).or_default().push_back((ways, self.settings.ttl));
        if let Some(Some((_, progress))) = self.streams.get_mut(stream as usize) {
            progress.left = bytes;
        }
        self.control_bytes += bytes;
        cx.write(stream, Side::Acceptor, bytes);
    }

    fn fetch(&mut self, cx: &mut AppCx<'_, '_>, number: usize, cluster: u32) {
        let stream = match self.players[number].streams.get(&cluster) {
            Some(stream) => *stream,
            None => {
                let (network, own) = (cluster / self.settings.clusters, cluster % self.settings.clusters);
                let to = self.settings.cluster_host(network, own);
                let host = self.players[number].host;
                let stream = self.open(cx, host, to, false);
                self.note(stream, StreamContent::Segments { player: number, cluster });
                self.players[number].streams.insert(cluster, stream);
                stream
            }
        };
        let bytes = self.segment_bytes + HEAD_BYTES + TLS_RECORD_BYTES;
        if let Some(Some((_, progress))) = self.streams.get_mut(stream as usize) {
            (progress.asked, progress.left) = (0, bytes);
        }
        cx.write(stream, Side::Opener, HEAD_BYTES + TLS_RECORD_BYTES);
    }

    /// Counts received bytes of a player's request at the server, and answers a complete request.
    fn on_request(&mut self, cx: &mut AppCx<'_, '_>, stream: u32, bytes: u64) {
        let now = cx.now();
        let Some(Some((carries, progress))) = self.streams.get_mut(stream as usize) else { return };
        progress.asked += bytes;
        if progress.asked < HEAD_BYTES + TLS_RECORD_BYTES || progress.is_dropped {
            return;
        }
        progress.asked = 0;
        let left = progress.left;
        match *carries {
            StreamContent::Question(number) => self.answer_player(cx, stream, number),
            StreamContent::Segments { cluster, .. } => {
                let network = cluster / self.settings.clusters;
                if !self.has_fault(now, Some(network), &[FaultKind::NetworkDies]) {
                    cx.write(stream, Side::Acceptor, left);
                }
            }
            StreamContent::Agent(_) => {}
        }
    }

    /// Counts received bytes of an answer at a player, and handles a complete answer.
    fn on_answer(&mut self, cx: &mut AppCx<'_, '_>, stream: u32, bytes: u64) {
        let now = cx.now();
        let Some(Some((carries, progress))) = self.streams.get_mut(stream as usize) else { return };
        progress.left = progress.left.saturating_sub(bytes);
        if progress.left > 0 || progress.is_dropped {
            return;
        }
        match *carries {
            StreamContent::Question(number) => {
                let said = self.answers.get_mut(&stream).and_then(VecDeque::pop_front);
                if let Some((ways, ttl)) = said {
                    self.players[number].player.handle_steering(now, ways, ttl);
                }
                self.play(cx, number);
            }
            StreamContent::Segments { player, .. } => {
                self.players[player].player.handle_segment(now);
                self.play(cx, player);
            }
            StreamContent::Agent(_) => {}
        }
    }

    fn join(&mut self, cx: &mut AppCx<'_, '_>, network: usize) {
        self.networks[network].is_connected = true;
        if !self.is_mute(cx.now(), network) {
            self.say(cx, network, AgentMessage::Join);
        }
    }
}

fn broker_settings(settings: &Settings, design: &Arc<dyn Design>) -> BrokerSettings {
    BrokerSettings {
        every: settings.every,
        bids_within: settings.bids_within,
        cost_weight: settings.cost_weight,
        ..BrokerSettings::new(Arc::clone(design))
    }
}

impl App for BrokerApp {
    fn start(&mut self, cx: &mut AppCx<'_, '_>) {
        for network in 0..self.networks.len() {
            let host = self.settings.cluster_host(network as u32, 0);
            let stream = self.open(cx, host, 0, true);
            self.networks[network].stream = stream;
            self.note(stream, StreamContent::Agent(network));
            if !cx.has_handshakes() {
                self.join(cx, network);
            }
            let at = self.networks[network].asks_at;
            self.arm(cx, AGENTS + network as u16, at);
        }
        for number in 0..self.players.len() {
            let (token, at) = (self.player_token(number), self.players[number].opens_at);
            self.arm(cx, token, at);
        }
        let faults = self.settings.faults.iter().map(|fault| Instant::ZERO + fault.at);
        faults.for_each(|at| cx.arm(at, BROKER));
        self.arm(cx, BROKER, Instant::ZERO + Duration::from_ms(1));
    }

    fn on_timer(&mut self, cx: &mut AppCx<'_, '_>, token: u16) {
        let now = cx.now();
        self.now = now;
        if self.armed.get(&token).is_some_and(|at| *at <= now) {
            self.armed.remove(&token);
        } else if token != BROKER {
            return;
        }
        if token == BROKER {
            return self.on_broker_timer(cx);
        }
        let number = usize::from(token - AGENTS);
        if number < self.networks.len() {
            return self.on_agent_timer(cx, number);
        }
        let number = number - self.networks.len();
        self.players[number].player.handle_timeout(now);
        self.play(cx, number);
    }

    fn on_stream(&mut self, cx: &mut AppCx<'_, '_>, stream: u32, side: Side, event: StreamEvent) {
        self.now = cx.now();
        let Some((carries, _)) = self.streams.get(stream as usize).copied().flatten() else { return };
        match (carries, event) {
            (StreamContent::Agent(network), StreamEvent::Connected) if side == Side::Opener => {
                self.join(cx, network)
            }
            (StreamContent::Agent(network), StreamEvent::Arrived { bytes }) => {
                cx.read(stream, side, bytes);
                if side == Side::Acceptor {
                    self.networks[network].to_broker.note_arrived(bytes);
                    while let Some(said) = self.networks[network].to_broker.pop() {
                        self.hear(cx, network, said);
                    }
                } else {
                    self.networks[network].to_agent.note_arrived(bytes);
                    while let Some(told) = self.networks[network].to_agent.pop() {
                        self.told(cx, network, told);
                    }
                }
            }
            (_, StreamEvent::Arrived { bytes }) => {
                cx.read(stream, side, bytes);
                if side == Side::Acceptor {
                    self.on_request(cx, stream, bytes);
                } else {
                    self.on_answer(cx, stream, bytes);
                }
            }
            (StreamContent::Segments { player, .. }, StreamEvent::GivenUp) => {
                self.players[player].streams.retain(|_, own| *own != stream);
            }
            (StreamContent::Question(number), StreamEvent::GivenUp) => {
                self.players[number].asks.take_if(|own| *own == stream);
            }
            _ => {}
        }
    }

    fn end_warmup(&mut self) {
        self.at_warmup = self.players.iter().map(|viewing| viewing.player.stats(self.now)).collect();
    }
    fn ended_at(&self) -> Option<Instant> {
        None
    }

    fn report(&self, measured: Duration, row: &mut WorkloadRow) {
        row.flows = self.players.len() as u64;
        let end = self.now;
        let stats = self.players.iter().map(|viewing| viewing.player.stats(end));
        let stats: Vec<PlaybackStats> = stats.collect();
        report_players(&stats, &self.at_warmup, (measured, self.segment_bytes), row);
        let mut round_us = self.round_us.clone();
        round_us.sort_by(f64::total_cmp);
        let mut more = |name, value: Option<f64>| value.map(|value| row.more.insert(name, value));
        more("rounds_accepted", Some(self.rounds as f64));
        more("rounds_void", Some(self.voids as f64));
        more("decided_us_p50", percentile(&round_us, 0.5));
        more("decided_us_max", round_us.last().copied());
        more("unplaced", Some(self.unplaced as f64));
        more("control_bytes", Some(self.control_bytes as f64));
        let costs = self.settings.costs(self.seed);
        let of = |cluster: &u32| costs[(cluster / self.settings.clusters) as usize];
        let paid: Vec<f64> =
            self.players.iter().filter_map(|viewing| viewing.player.pathway()).map(of).collect();
        more("cost_mean", mean(&paid));
    }
}
