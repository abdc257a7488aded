//! The broker under the real clock: its machine behind one lock, networks' mailboxes, and what players' questions are answered from.
//!
//! Requests change the machine and wake the driver, which has it go on. What is searched for, and what is asked of the store, runs apart, so that
//! requests are answered meanwhile; players' questions take another lock. A decision is kept before anybody is told of it, in a file, or in a store that
//! several brokers share, of which one leads. Leaves out: HTTP. Read [`BrokerService`] first.
#![allow(clippy::disallowed_methods, reason = "a driver: reads the clock")]

use crate::asked::{Asked, Told};
use crate::client::Client;
use crate::cmcd;
use crate::contracts::Contracts;
use crate::etcd::EtcdConfig;
use crate::history::History;
use crate::mistake::Mistake;
use crate::store::{Keeper, Store};
use crate::wire::{
    CountedRequest, DecisionView, NetworkMessage, NetworkView, PlaceClients, PlacedView, RoundView,
};
use anabranch_broker_proto::Answer;
use anabranch_broker_proto::broker::{
    Broker, ClusterId, Decision, Gathered, Job, Placed, Settings, ToNetwork, Why,
};
use anabranch_broker_proto::counting::{self, Counting};
use anabranch_broker_proto::delivery::Delivery;
use anabranch_broker_proto::messages::{Assent, Bids, BidsReply};
use anabranch_broker_proto::replica::{Replica, StoreAsk, StoreTold, Turn};
use anabranch_broker_proto::reports::Reports;
use anabranch_broker_proto::steering::{Ask, Catalogue, Steering, TTL_S, answer, network_of};
use anabranch_http::metrics::Metrics;
use anabranch_http::store::StoreError;
use anabranch_net::identity::Identity;
use anabranch_units::{BitRate, Duration, Instant, PeerId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::sync::Notify;
use tokio::task::JoinSet;

/// A network whose agent has asked for nothing for so long has gone. An agent asks at least every ten seconds.
pub const SILENT_AFTER: Duration = Duration::from_secs(25);
/// Messages that wait for a network: of more, the oldest are dropped, as a newer round has taken their place.
const MAILBOX_MAX: usize = 8;
/// How often the driver looks at the machine though nothing is due.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// Counts that are given from outside hold for so long.
const GIVEN_FOR: Duration = Duration::from_secs(900);
/// What other brokers have counted is said once in a lease, and holds for so many.
const COUNTED_LEASES: u64 = 3;
/// Places of one message.
const PLACES_PER_MESSAGE: usize = 20_000;
/// Messages of other brokers with what they have counted that are kept: more is none of theirs.
pub const COUNTED_MAX: usize = 64;
/// By how much a search goes behind all else that this machine does.
const NICE: i32 = 5;
/// How long a lead lasts where nobody else could have it.
const LEASE_ALONE: Duration = Duration::from_secs(3_600);

/// How a broker is set up.
pub struct BrokerServiceConfig {
    /// How it decides.
    pub settings: Settings,
    /// The networks, and what is agreed with them.
    pub contracts: Contracts,
    /// Where the last decision is kept.
    pub store: StoreConfig,
    /// Seconds after which players ask again.
    pub ttl_s: u32,
    /// Whether what players report of networks counts: anybody may report anything.
    pub believes_players: bool,
}

/// Where a broker keeps the last decision.
pub enum StoreConfig {
    /// In a file of its own; made if it is not there.
    File(PathBuf),
    /// In etcd, with other brokers, of which one leads.
    Etcd {
        /// Where etcd is.
        etcd: EtcdConfig,
        /// The keys by which this one says to the one that leads how many viewers it has counted.
        identity: Identity,
    },
}

impl BrokerServiceConfig {
    /// A broker with a file, and every other setting at its default.
    pub fn new(settings: Settings, contracts: Contracts, file: impl Into<PathBuf>) -> Self {
        let store = StoreConfig::File(file.into());
        Self { settings, contracts, store, ttl_s: TTL_S, believes_players: false }
    }
}

/// Why a broker cannot begin.
#[derive(Debug)]
#[non_exhaustive]
pub enum OpenError {
    /// Its file cannot be used.
    Store(StoreError),
    /// What it is told of etcd is none.
    Etcd(Mistake),
}

impl std::fmt::Display for OpenError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Store(error) => write!(f, "{error}"),
            Self::Etcd(mistake) => write!(f, "{mistake}"),
        }
    }
}
impl std::error::Error for OpenError {}

/// Why a network's request is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NetworkError {
    /// There is no contract with it.
    Unknown(String),
    /// It has not joined, or another agent of it has since.
    NotJoined(String),
    /// Another broker leads: where, as far as that is known.
    Follows(Option<String>),
}

impl std::fmt::Display for NetworkError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unknown(name) => {
                write!(f, "network {name}: is not in the broker's file of contracts: add it there")
            }
            Self::NotJoined(name) => {
                write!(f, "network {name}: has not joined with this session: join again")
            }
            Self::Follows(Some(leader)) => write!(f, "this broker does not lead: ask {leader}"),
            Self::Follows(None) => f.write_str("this broker does not lead, nor does another now: ask again"),
        }
    }
}

/// A running broker; clones are the same one.
#[derive(Clone)]
pub struct BrokerService {
    shared: Arc<Shared>,
}

struct Shared {
    contracts: Contracts,
    catalogue: Catalogue,
    ttl_s: u32,
    state: Mutex<State>,
    answering: Mutex<Answering>,
    keeper: Arc<Keeper>,
    /// For what it says to the broker that leads: its own name, and keys. None where no other could.
    counts_for: Option<(u64, Identity)>,
    /// Wakes the driver.
    changed: Notify,
    /// Wakes requests that wait for messages.
    told: Notify,
}

struct State {
    epoch: std::time::Instant,
    replica: Replica,
    there: BTreeMap<PeerId, Presence>,
    mailboxes: BTreeMap<PeerId, Mailbox>,
    /// Counts from outside, and until when they hold.
    given: Option<(Vec<Gathered>, Instant)>,
    /// By broker and part: what others have counted, and until when it holds.
    counted: BTreeMap<(u64, u32), (Vec<Gathered>, Instant)>,
    /// What was read from the store, or is to be written, as it stands there.
    stored: Option<Arc<DecisionView>>,
    /// When networks were called to the present round.
    called: Option<(u64, Instant)>,
    decision: Arc<DecisionView>,
    history: History,
    store_error: Option<String>,
    counters: Counters,
}

struct Presence {
    /// None of a network that was there before this broker began: it has its time to join again, so that players need not move twice.
    session: Option<u64>,
    heard_at: Instant,
}

#[derive(Default)]
struct Mailbox {
    sent: u64,
    messages: VecDeque<(u64, NetworkMessage)>,
}

/// What players' questions need: small, and held for microseconds.
struct Answering {
    epoch: std::time::Instant,
    delivery: Arc<Delivery>,
    gone: Arc<BTreeSet<PeerId>>,
    counting: Counting,
    /// None where players are not believed.
    reports: Option<Reports>,
    reported: u64,
    /// Whether players are steered at all.
    steers: bool,
    answers: u64,
    unknown: u64,
}

/// Counts since the start, for metrics.
#[derive(Default)]
struct Counters {
    joins: u64,
    silent: u64,
    bids_taken: u64,
    bids_refused: u64,
    rounds_accepted: u64,
    rounds_void: u64,
    decision_seconds: f64,
    store_errors: u64,
    leads: u64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic under the lock is a bug that the panic's own message tells of; the tables stay valid.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

impl Answering {
    fn now(&self) -> Instant {
        Instant::ZERO + Duration::from_std(self.epoch.elapsed())
    }
}

impl State {
    fn now(&self) -> Instant {
        Instant::ZERO + Duration::from_std(self.epoch.elapsed())
    }

    /// The network that speaks with this session.
    fn speaker(&mut self, network: PeerId, session: u64, name: &str) -> Result<&mut Broker, NetworkError> {
        let now = self.now();
        if !self.replica.leads() {
            return Err(NetworkError::Follows(self.replica.leader().map(str::to_owned)));
        }
        match self.there.get_mut(&network).filter(|presence| presence.session == Some(session)) {
            Some(presence) => presence.heard_at = now,
            None => return Err(NetworkError::NotJoined(name.to_owned())),
        }
        self.broker()
    }

    /// How long a round has taken that this broker called.
    fn took_s(&self, round: u64) -> Option<f64> {
        let called = self.called.filter(|(called, _)| *called == round);
        called.map(|(_, at)| self.now().saturating_since(at).as_secs_f64())
    }

    /// The machine, where this broker leads.
    fn broker(&mut self) -> Result<&mut Broker, NetworkError> {
        let leader = self.replica.leader().map(str::to_owned);
        self.replica.leading().ok_or(NetworkError::Follows(leader))
    }

    /// Those that the last decision has are taken to be there until they have had time to join, so that players need not move twice.
    fn expect_networks(&mut self, now: Instant) {
        let decision = self.replica.known();
        let networks = decision.iter().flat_map(|decision| &decision.placed).filter_map(|placed| placed.to);
        self.there =
            networks.map(|(to, _)| (to.network, Presence { session: None, heard_at: now })).collect();
        self.mailboxes.clear();
    }
}

impl BrokerService {
    /// Opens the store; nobody has joined yet. A [`anabranch_http::Server`] then drives it.
    ///
    /// Errors: a store that cannot be used.
    pub fn open(config: BrokerServiceConfig) -> Result<Self, OpenError> {
        let BrokerServiceConfig { settings, contracts, store, ttl_s, believes_players } = config;
        let (keeper, counts_for, lease) = match store {
            StoreConfig::File(path) => {
                (Keeper::File(Store::open(&path).map_err(OpenError::Store)?), None, LEASE_ALONE)
            }
            StoreConfig::Etcd { etcd, identity } => {
                let name = anabranch_net::random();
                let name = name.map_err(|error| OpenError::Etcd(Mistake(error.to_string())))?;
                let keeper = Keeper::etcd(etcd).map_err(OpenError::Etcd)?;
                let lease = keeper.lease().map_or(LEASE_ALONE, Duration::from_std);
                (keeper, Some((name, identity)), lease)
            }
        };
        // Whoever ran before has called no round of a higher number than the time.
        let replica = Replica::new(Instant::ZERO, settings, lease, unix_ms());
        let epoch = std::time::Instant::now();
        let answering = Answering {
            epoch,
            delivery: Arc::default(),
            gone: Arc::new(contracts.numbers().collect()),
            counting: Counting::new(Instant::ZERO, Duration::from_secs(ttl_s.into())),
            reports: believes_players.then(Reports::default),
            reported: 0,
            steers: true,
            answers: 0,
            unknown: 0,
        };
        let state = State {
            epoch,
            replica,
            there: BTreeMap::new(),
            mailboxes: BTreeMap::new(),
            given: None,
            counted: BTreeMap::new(),
            stored: None,
            called: None,
            decision: Arc::default(),
            history: History::default(),
            store_error: None,
            counters: Counters::default(),
        };
        let catalogue = contracts.catalogue();
        let (state, answering) = (Mutex::new(state), Mutex::new(answering));
        let (changed, told) = (Notify::new(), Notify::new());
        let keeper = Arc::new(keeper);
        let shared =
            Shared { contracts, catalogue, ttl_s, state, answering, keeper, counts_for, changed, told };
        let service = Self { shared: Arc::new(shared) };
        service.read_file().map_err(OpenError::Store)?;
        Ok(service)
    }

    /// Leads at once where the store is a file, so that players are answered by what is in it.
    fn read_file(&self) -> Result<(), StoreError> {
        let Keeper::File(store) = &*self.shared.keeper else { return Ok(()) };
        let last = store.last()?.map(Arc::new);
        let round = last.as_ref().map_or(0, |last| last.round);
        {
            let mut state = lock(&self.shared.state);
            let now = state.now();
            while let Some((number, ask)) = state.replica.poll_ask(now) {
                let told = match ask {
                    StoreAsk::Lead => StoreTold::Leads { epoch: 1, round },
                    _ => StoreTold::Last(
                        last.as_ref().map(|last| Arc::new(read_decision(last, &self.shared.contracts))),
                    ),
                };
                state.replica.handle_told(now, number, Some(told));
            }
            state.stored = last;
        }
        self.settle();
        Ok(())
    }

    /// Gives the lead back, so that another broker need not wait for the lease to end. Of one with a file, nothing.
    pub async fn give_lead_back(&self) {
        let keeper = Arc::clone(&self.shared.keeper);
        if let Ok(Err(error)) = tokio::task::spawn_blocking(move || keeper.leave()).await {
            tracing::warn!("{error}: another broker leads once the lease is over");
        }
    }

    fn network(&self, name: &str) -> Result<PeerId, NetworkError> {
        self.shared.contracts.number(name).ok_or_else(|| NetworkError::Unknown(name.to_owned()))
    }

    /// A network's agent joins: it takes part from the next round on.
    pub(crate) fn join(&self, name: &str, session: u64) -> Result<(), NetworkError> {
        let network = self.network(name)?;
        let mut state = lock(&self.shared.state);
        let now = state.now();
        state.broker()?.handle_joined(network, self.shared.contracts.contract(network));
        state.there.insert(network, Presence { session: Some(session), heard_at: now });
        state.mailboxes.insert(network, Mailbox::default());
        state.counters.joins += 1;
        drop(state);
        self.note_presence();
        tracing::info!("network {name} has joined");
        self.shared.changed.notify_one();
        Ok(())
    }

    /// A network's agent goes.
    pub(crate) fn leave(&self, name: &str, session: u64) -> Result<(), NetworkError> {
        let network = self.network(name)?;
        let mut state = lock(&self.shared.state);
        state.speaker(network, session, name)?.handle_left(network);
        state.there.remove(&network);
        drop(state);
        self.note_presence();
        tracing::info!("network {name} has left");
        self.shared.changed.notify_one();
        Ok(())
    }

    /// Messages after this one, as soon as there are any, at most `wait` from now.
    pub(crate) async fn messages(
        &self,
        name: &str,
        session: u64,
        after: u64,
        wait: std::time::Duration,
    ) -> Result<Vec<(u64, NetworkMessage)>, NetworkError> {
        let network = self.network(name)?;
        let until = tokio::time::Instant::now() + wait;
        loop {
            let told = self.shared.told.notified();
            tokio::pin!(told);
            told.as_mut().enable();
            {
                let mut state = lock(&self.shared.state);
                state.speaker(network, session, name)?;
                let mailbox = state.mailboxes.entry(network).or_default();
                mailbox.messages.retain(|(number, _)| *number > after);
                if !mailbox.messages.is_empty() {
                    return Ok(mailbox.messages.iter().cloned().collect());
                }
            }
            if tokio::time::timeout_at(until, told).await.is_err() {
                return Ok(Vec::new());
            }
        }
    }

    /// A network bids.
    pub(crate) fn bids(&self, name: &str, session: u64, bids: Bids) -> Result<BidsReply, NetworkError> {
        let network = self.network(name)?;
        let mut state = lock(&self.shared.state);
        let reply = state.speaker(network, session, name)?.handle_bids(network, bids);
        state.counters.bids_taken += reply.taken;
        state.counters.bids_refused += reply.refused;
        drop(state);
        if let Some(reason) = reply.reasons.first() {
            tracing::warn!("network {name}: {} bids refused, the first: {reason}", reply.refused);
        }
        self.shared.changed.notify_one();
        Ok(reply)
    }

    /// A network answers a proposal.
    pub(crate) fn assent(&self, name: &str, session: u64, assent: &Assent) -> Result<(), NetworkError> {
        let network = self.network(name)?;
        let mut state = lock(&self.shared.state);
        state.speaker(network, session, name)?.handle_assent(network, assent);
        drop(state);
        self.shared.changed.notify_one();
        Ok(())
    }

    /// Clients are counted by somebody else, who says this; nothing has the broker count again.
    pub(crate) fn give_clients(&self, gathered: Vec<Gathered>) -> Result<(), NetworkError> {
        let mut state = lock(&self.shared.state);
        state.broker()?;
        let until = state.now() + GIVEN_FOR;
        state.given = (!gathered.is_empty()).then_some((gathered, until));
        drop(state);
        self.shared.changed.notify_one();
        Ok(())
    }

    /// Another broker has counted these.
    pub(crate) fn note_counted(
        &self,
        broker: u64,
        part: u32,
        gathered: Vec<Gathered>,
    ) -> Result<(), NetworkError> {
        let mut state = lock(&self.shared.state);
        state.broker()?;
        let now = state.now();
        state.counted.retain(|_, (_, until)| *until > now);
        let lease = self.shared.keeper.lease().map_or(LEASE_ALONE, Duration::from_std);
        if state.counted.len() < COUNTED_MAX || state.counted.contains_key(&(broker, part)) {
            state.counted.insert((broker, part), (gathered, now + lease * COUNTED_LEASES));
        }
        Ok(())
    }

    /// Players have measured something of a network.
    pub(crate) fn measured(
        &self,
        name: &str,
        scores: Option<(f64, f64)>,
        delivered: Option<f64>,
    ) -> Result<(), NetworkError> {
        let network = self.network(name)?;
        let mut state = lock(&self.shared.state);
        let machine = state.broker()?;
        if let Some((bid, measured)) = scores {
            machine.handle_measured(network, bid, measured);
        }
        if let Some(share) = delivered {
            machine.handle_delivered(network, share);
        }
        Ok(())
    }

    /// What a player is told; none before anything is known of any way.
    pub fn steer(&self, ask: &Ask) -> Option<Steering> {
        let plays_by = ask.pathways.iter().find_map(|way| network_of(&self.shared.catalogue, way));
        let (delivery, gone) = {
            let mut answering = lock(&self.shared.answering);
            let now = answering.now();
            answering.counting.note(now, &ask.viewer, plays_by);
            answering.answers += 1;
            (Arc::clone(&answering.delivery), Arc::clone(&answering.gone))
        };
        let steering = answer(&delivery, &self.shared.catalogue, &gone, ask, self.shared.ttl_s);
        if steering.is_none() {
            lock(&self.shared.answering).unknown += 1;
        }
        steering
    }

    /// Whether players are steered, by an operator's word.
    pub(crate) fn steers(&self) -> bool {
        lock(&self.shared.answering).steers
    }
    pub(crate) fn set_steers(&self, steers: bool) {
        lock(&self.shared.answering).steers = steers;
    }

    /// A player reports how it fares: with a question, or by itself. Whether what players report counts.
    pub(crate) fn report<'a>(&self, reports: impl Iterator<Item = &'a str>, ask: Option<&Ask>) -> bool {
        if lock(&self.shared.answering).reports.is_none() {
            return false;
        }
        let catalogue = &self.shared.catalogue;
        let plays_by = ask.and_then(|ask| ask.pathways.iter().find_map(|way| network_of(catalogue, way)));
        let read: Vec<_> = reports.filter_map(|text| cmcd::read(text, catalogue, plays_by)).collect();
        let mut answering = lock(&self.shared.answering);
        answering.reported += read.len() as u64;
        let all = answering.reports.as_mut();
        all.into_iter().for_each(|all| read.iter().for_each(|report| all.note(*report)));
        true
    }

    /// The host of the best cluster for a viewer whose player cannot steer.
    pub fn host(&self, ask: &Ask) -> Option<String> {
        let steering = self.steer(ask)?;
        let clones = steering.pathway_clones.into_iter();
        let mut hosts: BTreeMap<String, String> =
            clones.map(|clone| (clone.id, clone.uri_replacement.host)).collect();
        steering.pathway_priority.iter().find_map(|way| hosts.remove(way))
    }

    /// Seconds after which players ask again.
    pub fn ttl_s(&self) -> u32 {
        self.shared.ttl_s
    }

    /// What is wrong, if anything: the store cannot be written.
    pub fn trouble(&self) -> Option<String> {
        lock(&self.shared.state).store_error.clone()
    }

    /// The last decision.
    pub fn decision(&self) -> Arc<DecisionView> {
        Arc::clone(&lock(&self.shared.state).decision)
    }

    /// The rounds of late.
    pub(crate) fn rounds(&self) -> Vec<RoundView> {
        lock(&self.shared.state).history.rounds()
    }

    pub(crate) fn networks(&self) -> Vec<NetworkView> {
        let playing = {
            let mut answering = lock(&self.shared.answering);
            let now = answering.now();
            answering.counting.playing(now)
        };
        let state = lock(&self.shared.state);
        let mut given: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
        for placed in &state.decision.placed {
            if let Some((network, _, _)) = placed.to {
                let given = given.entry(network).or_default();
                given.0 += u64::from(placed.sessions);
                given.1 += u64::from(placed.sessions) * placed.bitrate_bps;
            }
        }
        let view = |network: PeerId| {
            let name = self.shared.contracts.name(network).to_owned();
            let at = state.decision.networks.iter().position(|other| *other == name);
            let (sessions, rate_bps) = at.and_then(|at| given.get(&(at as u32))).copied().unwrap_or_default();
            let standing = state.replica.standing(network).unwrap_or_default();
            NetworkView {
                name,
                up: state.there.get(&network).is_some_and(|presence| presence.session.is_some()),
                reputation: standing.reputation,
                capacity_trust: standing.capacity_trust,
                score_bias: standing.score_bias,
                missed: standing.missed,
                sessions,
                rate_bps,
                playing: playing.get(&network).copied().unwrap_or(0),
            }
        };
        self.shared.contracts.numbers().map(view).collect()
    }

    pub(crate) fn metrics(&self) -> String {
        let mut text = Metrics::default();
        let (answers, unknown, dropped, reported) = {
            let answering = lock(&self.shared.answering);
            (answering.answers, answering.unknown, answering.counting.dropped(), answering.reported)
        };
        let state = lock(&self.shared.state);
        let counters = &state.counters;
        let ups = state.there.values().filter(|presence| presence.session.is_some()).count();
        let all: [(&str, &str, &str, u64); 15] = [
            ("leads", "gauge", "1 where this broker leads.", u64::from(state.replica.leads())),
            ("leads_total", "counter", "Times that it began to lead.", counters.leads),
            ("networks_up", "gauge", "Networks whose agents are there.", ups as u64),
            ("round", "gauge", "The last accepted round.", state.decision.round),
            ("joins_total", "counter", "Times that agents have joined.", counters.joins),
            ("silent_total", "counter", "Agents that left without a word.", counters.silent),
            ("bids_total", "counter", "Bids taken.", counters.bids_taken),
            ("bids_refused_total", "counter", "Bids refused.", counters.bids_refused),
            ("rounds_total", "counter", "Rounds accepted.", counters.rounds_accepted),
            ("rounds_void_total", "counter", "Rounds that changed nothing.", counters.rounds_void),
            ("answers_total", "counter", "Players' questions answered.", answers),
            ("answers_unknown_total", "counter", "Of them, those to which no way was known.", unknown),
            ("questions_uncounted_total", "counter", "Questions from too many places to count.", dropped),
            ("reports_total", "counter", "Players' reports that count.", reported),
            ("store_errors_total", "counter", "Failed writes to the store.", counters.store_errors),
        ];
        for (name, kind, help, value) in all {
            text.metric(&format!("broker_{name}"), kind, help, &Metrics::plain(value));
        }
        let took = [
            ("_sum".to_owned(), counters.decision_seconds),
            ("_count".to_owned(), (counters.rounds_accepted + counters.rounds_void) as f64),
        ];
        text.metric("broker_decision_seconds", "summary", "How long decisions took to find.", &took);
        text.text()
    }

    /// Tells those who answer players which networks have gone.
    fn note_presence(&self) {
        let gone: BTreeSet<PeerId> = {
            let state = lock(&self.shared.state);
            self.shared.contracts.numbers().filter(|network| !state.there.contains_key(network)).collect()
        };
        lock(&self.shared.answering).gone = Arc::new(gone);
    }

    /// Has the machine go on, until it is dropped.
    pub(crate) async fn go_on(&self) {
        let mut tasks = JoinSet::new();
        if self.shared.counts_for.is_some() {
            let service = self.clone();
            tasks.spawn(async move { service.say_counts().await });
        }
        loop {
            self.end_silent();
            let (job, ask, wait) = {
                let mut state = lock(&self.shared.state);
                let now = state.now();
                // A renewal of the lease needs no list of all clients.
                let due = state.replica.leading().and_then(|broker| broker.poll_timeout());
                if due.is_some_and(|at| at <= now) {
                    let gathered = self.gathered(&mut state, now);
                    let reported = lock(&self.shared.answering).reports.as_mut().map(Reports::take);
                    state.replica.leading().into_iter().for_each(|broker| {
                        broker.handle_gathered(gathered.clone());
                        for (network, delivered) in reported.iter().flatten() {
                            broker.handle_delivered(*network, *delivered);
                        }
                    });
                }
                state.replica.handle_timeout(now);
                let ask = state.replica.poll_ask(now);
                let due = state.replica.poll_timeout().unwrap_or(now + LOOK_EVERY).min(now + LOOK_EVERY);
                (state.replica.poll_job(), ask, due.saturating_since(now).to_std())
            };
            self.settle();
            if let Some(job) = job {
                let service = self.clone();
                tasks.spawn(async move { service.search(job).await });
            }
            if let Some((number, ask)) = ask {
                let service = self.clone();
                tasks.spawn(async move { service.ask_store(number, ask).await });
            }
            while tasks.try_join_next().is_some() {}
            // A millisecond more: timers fire early by their rounding, and would spin.
            let wait = wait + std::time::Duration::from_millis(1);
            let _ = tokio::time::timeout(wait, self.shared.changed.notified()).await;
        }
    }

    /// The clients that there are: as they were said, or counted, here and by other brokers.
    fn gathered(&self, state: &mut State, now: Instant) -> Vec<Gathered> {
        state.given.take_if(|(_, until)| *until < now);
        if let Some((gathered, _)) = &state.given {
            return gathered.clone();
        }
        state.counted.retain(|_, (_, until)| *until > now);
        let others = state.counted.values().flat_map(|(gathered, _)| gathered.iter().cloned());
        let own = lock(&self.shared.answering).counting.gathered(now);
        if state.counted.is_empty() { own } else { counting::together(own.into_iter().chain(others)) }
    }

    /// Says to the broker that leads how many viewers this one has counted, again and again.
    async fn say_counts(&self) {
        let Some(((name, identity), every)) = self.shared.counts_for.as_ref().zip(self.shared.keeper.lease())
        else {
            return;
        };
        let mut client: Option<Client> = None;
        loop {
            tokio::time::sleep(every).await;
            let leader = lock(&self.shared.state).replica.leader().map(str::to_owned);
            let Some(leader) = leader else { continue };
            if client.as_ref().is_none_or(|client| client.address() != leader) {
                client = Client::new(&leader, identity, every)
                    .inspect_err(|error| tracing::warn!("the broker that leads, {leader}: {error}"))
                    .ok();
            }
            let Some(client) = &client else { continue };
            let gathered = {
                let mut answering = lock(&self.shared.answering);
                let now = answering.now();
                answering.counting.gathered(now)
            };
            for (part, some) in (0..).zip(gathered.chunks(PLACES_PER_MESSAGE)) {
                let of =
                    |Gathered { location, isp, clients }: Gathered| PlaceClients { location, isp, clients };
                let places = some.iter().cloned().map(of).collect();
                let request = CountedRequest { broker: *name, part, places };
                if let Err(error) = client.counted(&request, every).await {
                    tracing::debug!("what was counted is not said: {error}");
                }
            }
        }
    }

    /// Searches for a decision, apart from those who are answered meanwhile.
    async fn search(&self, job: Job) {
        let began = std::time::Instant::now();
        let searched = tokio::task::spawn_blocking(move || {
            // This thread's alone, and it is for what can wait: players cannot. Where it may not, it is as before.
            let _ = rustix::process::setpriority_process(None, NICE);
            let answer = job.run();
            (job, answer)
        });
        let (job, answer): (Job, Answer) =
            searched.await.expect("searching does not panic, and the runtime is there");
        {
            let mut state = lock(&self.shared.state);
            let now = state.now();
            state.counters.decision_seconds += began.elapsed().as_secs_f64();
            state.replica.handle_answer(now, &job, answer);
        }
        self.shared.changed.notify_one();
    }

    /// Asks the store, apart from those who are answered meanwhile.
    async fn ask_store(&self, number: u64, ask: StoreAsk) {
        let ask = match ask {
            StoreAsk::Lead => Asked::Lead,
            StoreAsk::Renew { epoch } => Asked::Renew { epoch },
            StoreAsk::Keep { epoch, before, decision } => {
                let view = Arc::new(write_decision(&decision, &self.shared.contracts));
                lock(&self.shared.state).stored = Some(Arc::clone(&view));
                Asked::Keep { epoch, before, view }
            }
            _ => Asked::Read,
        };
        let keeper = Arc::clone(&self.shared.keeper);
        let is_keep = matches!(ask, Asked::Keep { .. });
        let within = keeper.lease().map_or(std::time::Duration::MAX, |lease| lease / 3);
        let asked = tokio::task::spawn_blocking(move || keeper.answer(&ask));
        let answer = match tokio::time::timeout(within, asked).await {
            Ok(answer) => answer.expect("asking does not panic, and the runtime is there"),
            Err(_) => Err("the store: no answer in time".to_owned()),
        };
        {
            let mut state = lock(&self.shared.state);
            let now = state.now();
            let before = state.store_error.take();
            let told = match answer {
                Ok(told) => Some(told),
                Err(error) => {
                    if before.as_ref() != Some(&error) {
                        tracing::error!("{error}");
                    }
                    state.counters.store_errors += 1;
                    state.store_error = Some(error);
                    // One that is alone goes on without having kept it; of several, another may lead by now.
                    (is_keep && self.shared.counts_for.is_none()).then_some(Told::Kept)
                }
            };
            let told = told.map(|told| match told {
                Told::Leads { epoch, round } => StoreTold::Leads { epoch, round },
                Told::Follows { leader, round } => StoreTold::Follows { leader, round },
                Told::Renewed => StoreTold::Renewed,
                Told::Kept => StoreTold::Kept,
                Told::Lost => StoreTold::Lost,
                Told::Last(last) => {
                    let last = last.map(Arc::new);
                    state.stored.clone_from(&last);
                    StoreTold::Last(last.map(|last| Arc::new(read_decision(&last, &self.shared.contracts))))
                }
            });
            state.replica.handle_told(now, number, told);
        }
        self.shared.changed.notify_one();
    }

    /// Agents of whom nothing was heard for long have gone. Where another broker leads, that one knows.
    fn end_silent(&self) {
        let mut silent = Vec::new();
        {
            let mut state = lock(&self.shared.state);
            let now = state.now();
            if !state.replica.leads() {
                return;
            }
            state.there.retain(|network, presence| {
                let is_there = now.saturating_since(presence.heard_at) < SILENT_AFTER;
                if !is_there {
                    silent.push(*network);
                }
                is_there
            });
            for network in &silent {
                state.replica.leading().into_iter().for_each(|broker| broker.handle_left(*network));
                state.counters.silent += 1;
            }
        }
        if !silent.is_empty() {
            self.note_presence();
            for network in silent {
                let name = self.shared.contracts.name(network);
                tracing::warn!("network {name}: its agent has fallen silent, and counts as gone");
            }
        }
    }

    /// Tells networks and players what the machine says.
    fn settle(&self) {
        let (mut messages, mut turns) = (Vec::new(), Vec::new());
        {
            let replica = &mut lock(&self.shared.state).replica;
            while let Some(turn) = replica.poll_turn() {
                turns.push(turn);
            }
            while let Some(message) = replica.poll_transmit() {
                messages.push(message);
            }
        }
        for turn in turns {
            self.take_turn(turn);
        }
        if messages.is_empty() {
            return;
        }
        {
            let mut state = lock(&self.shared.state);
            let now = state.now();
            for (network, message) in messages {
                let message = match message {
                    ToNetwork::Call(call) => {
                        if state.called.is_none_or(|(round, _)| round != call.round) {
                            state.called = Some((call.round, now));
                        }
                        NetworkMessage::Call((*call).clone())
                    }
                    ToNetwork::Proposal(proposal) => NetworkMessage::Proposal(proposal),
                    ToNetwork::Accepted(accepted) => NetworkMessage::Accepted(accepted),
                    _ => continue,
                };
                let mailbox = state.mailboxes.entry(network).or_default();
                mailbox.sent += 1;
                mailbox.messages.push_back((mailbox.sent, message));
                if mailbox.messages.len() > MAILBOX_MAX {
                    mailbox.messages.pop_front();
                }
            }
        }
        self.shared.told.notify_waiters();
    }

    fn take_turn(&self, turn: Turn) {
        match turn {
            Turn::Began => {
                let mut state = lock(&self.shared.state);
                let now = state.now();
                state.expect_networks(now);
                state.counters.leads += 1;
                drop(state);
                self.note_presence();
                tracing::info!("this broker leads");
            }
            Turn::Ended => {
                let mut state = lock(&self.shared.state);
                let now = state.now();
                state.expect_networks(now);
                (state.given, state.counted) = (None, BTreeMap::new());
                drop(state);
                self.note_presence();
                // Those who wait for messages hear that they have to ask another.
                self.shared.told.notify_waiters();
                tracing::warn!("this broker does not lead any more");
            }
            Turn::Accepted(decision) => {
                lock(&self.shared.state).counters.rounds_accepted += 1;
                self.note_decision(&decision);
            }
            Turn::News(decision) => {
                self.note_decision(&decision);
                let mut state = lock(&self.shared.state);
                if !state.replica.leads() {
                    let now = state.now();
                    state.expect_networks(now);
                }
                drop(state);
                self.note_presence();
            }
            Turn::Void { round, why } => {
                let why = match why {
                    Why::NoBids => "no network has bid",
                    Why::NoAgreement => "networks do not agree",
                };
                tracing::warn!("round {round}: {why}: the last decision stands");
                let mut state = lock(&self.shared.state);
                state.counters.rounds_void += 1;
                let took_s = state.took_s(round);
                state.history.note_void(round, unix_ms(), took_s, why);
            }
            _ => {}
        }
    }

    /// Players are answered by a decision from now on.
    fn note_decision(&self, decision: &Decision) {
        lock(&self.shared.answering).delivery = Arc::new(Delivery::new(decision));
        let mut state = lock(&self.shared.state);
        let stored = state.stored.clone().filter(|stored| stored.round == decision.round);
        let view = stored.unwrap_or_else(|| Arc::new(write_decision(decision, &self.shared.contracts)));
        let sessions: u64 = view.placed.iter().map(|placed| u64::from(placed.sessions)).sum();
        tracing::info!(
            "round {}: {sessions} clients placed, at most {:.3} % from the best",
            view.round,
            100.0 * view.gap_share
        );
        let before = std::mem::replace(&mut state.decision, Arc::clone(&view));
        let took_s = state.took_s(view.round);
        state.history.note_accepted(&before, &view, took_s);
    }
}

/// A decision with names in place of numbers, which are others after the file of contracts has changed.
fn write_decision(decision: &Decision, contracts: &Contracts) -> DecisionView {
    let placed = decision.placed.iter().map(|placed| PlacedView {
        place: placed.place,
        bitrate_bps: placed.bitrate.as_bps(),
        sessions: placed.sessions,
        to: placed.to.map(|(to, score)| (to.network.0, to.cluster, score)),
    });
    let prices = decision.prices_per_mbps.iter().map(|(id, price)| (id.network.0, id.cluster, *price));
    DecisionView {
        round: decision.round,
        accepted_unix_ms: unix_ms(),
        gap_share: decision.gap_share,
        places: decision.places.clone(),
        networks: contracts.numbers().map(|network| contracts.name(network).to_owned()).collect(),
        placed: placed.collect(),
        prices: prices.collect(),
    }
}

/// The same again; networks with whom there is no contract any more place nobody.
pub(crate) fn read_decision(view: &DecisionView, contracts: &Contracts) -> Decision {
    let id = |network: u32, cluster: u32| {
        let name = view.networks.get(network as usize)?;
        contracts.number(name).map(|network| ClusterId { network, cluster })
    };
    let placed = view.placed.iter().filter(|placed| (placed.place as usize) < view.places.len());
    let placed = placed.map(|placed| Placed {
        place: placed.place,
        bitrate: BitRate::bps(placed.bitrate_bps),
        sessions: placed.sessions,
        to: placed.to.and_then(|(network, cluster, score)| Some((id(network, cluster)?, score))),
    });
    let prices =
        view.prices.iter().filter_map(|&(network, cluster, price)| Some((id(network, cluster)?, price)));
    Decision {
        round: view.round,
        places: view.places.clone(),
        placed: placed.collect(),
        prices_per_mbps: prices.collect(),
        gap_share: view.gap_share,
    }
}
