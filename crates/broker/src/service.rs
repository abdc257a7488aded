//! The broker under the real clock: its machine behind one lock, networks' mailboxes, and what players' questions are answered from.
//!
//! Requests change the machine and wake the driver, which has it go on. What is searched for runs apart, so that requests are answered
//! meanwhile; players' questions take another lock. A decision is kept before anybody is told of it. Leaves out: HTTP. Read
//! [`BrokerService`] first.
#![allow(clippy::disallowed_methods, reason = "a driver: reads the clock")]

use crate::contracts::Contracts;
use crate::store::Store;
use crate::wire::{DecisionView, NetworkMessage, NetworkView, PlacedView};
use anabranch_broker_proto::Broker;
use anabranch_broker_proto::broker::{
    ClusterId, Decision, Event, Gathered, Job, Placed, Settings, ToNetwork, Why,
};
use anabranch_broker_proto::counting::Counting;
use anabranch_broker_proto::delivery::Delivery;
use anabranch_broker_proto::messages::{Assent, Bids, BidsReply};
use anabranch_broker_proto::steering::{Ask, Catalogue, Steering, TTL_S, answer};
use anabranch_http::metrics::Metrics;
use anabranch_http::store::StoreError;
use anabranch_units::{BitRate, Duration, Instant, PeerId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::sync::Notify;

/// A network whose agent has asked for nothing for so long has gone. An agent asks at least every ten seconds.
pub const SILENT_AFTER: Duration = Duration::from_secs(25);
/// Messages that wait for a network: of more, the oldest are dropped, as a newer round has taken their place.
const MAILBOX_MAX: usize = 8;
/// How often the driver looks at the machine though nothing is due.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// Counts that are given from outside hold for so long.
const GIVEN_FOR: Duration = Duration::from_secs(900);

/// How a broker is set up.
pub struct BrokerServiceConfig {
    /// How it decides.
    pub settings: Settings,
    /// The networks, and what is agreed with them.
    pub contracts: Contracts,
    /// The file in which the last decision is kept; made if it is not there.
    pub store: PathBuf,
    /// Seconds after which players ask again.
    pub ttl_s: u32,
}

impl BrokerServiceConfig {
    /// A broker with every setting at its default.
    pub fn new(settings: Settings, contracts: Contracts, store: impl Into<PathBuf>) -> Self {
        Self { settings, contracts, store: store.into(), ttl_s: TTL_S }
    }
}

/// Why a network's request is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NetworkError {
    /// There is no contract with it.
    Unknown(String),
    /// It has not joined, or another agent of it has since.
    NotJoined(String),
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
    store: Store,
    /// Wakes the driver.
    changed: Notify,
    /// Wakes requests that wait for messages.
    told: Notify,
}

struct State {
    epoch: std::time::Instant,
    machine: Broker,
    there: BTreeMap<PeerId, Presence>,
    mailboxes: BTreeMap<PeerId, Mailbox>,
    /// Counts from outside, and until when they hold.
    given: Option<(Vec<Gathered>, Instant)>,
    decision: Arc<DecisionView>,
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
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic under the lock is a bug that the panic's own message tells of; the tables stay valid.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

impl State {
    fn now(&self) -> Instant {
        Instant::ZERO + Duration::from_std(self.epoch.elapsed())
    }

    /// The network that speaks with this session.
    fn speaker(&mut self, network: PeerId, session: u64, name: &str) -> Result<(), NetworkError> {
        let now = self.now();
        match self.there.get_mut(&network).filter(|presence| presence.session == Some(session)) {
            Some(presence) => {
                presence.heard_at = now;
                Ok(())
            }
            None => Err(NetworkError::NotJoined(name.to_owned())),
        }
    }
}

impl BrokerService {
    /// Opens the store; nobody has joined yet. A [`anabranch_http::Server`] then drives it.
    ///
    /// Errors: a store that cannot be used.
    pub fn open(config: BrokerServiceConfig) -> Result<Self, StoreError> {
        let BrokerServiceConfig { settings, contracts, store, ttl_s } = config;
        let store = Store::open(&store)?;
        let last = store.last()?.unwrap_or_default();
        // Whoever ran before has called no round of a higher number than the time.
        let mut machine = Broker::new(Instant::ZERO, settings).with_rounds_after(unix_ms());
        let (mut delivery, mut there) = (Delivery::default(), BTreeMap::new());
        if last.round > 0 {
            let decision = read_decision(&last, &contracts);
            delivery = Delivery::new(&decision);
            let were_there = decision.placed.iter().filter_map(|placed| placed.to);
            there = were_there
                .map(|(to, _)| (to.network, Presence { session: None, heard_at: Instant::ZERO }))
                .collect();
            machine = machine.with_accepted(decision);
        }
        let epoch = std::time::Instant::now();
        let gone = contracts.numbers().filter(|network| !there.contains_key(network)).collect();
        let answering = Answering {
            epoch,
            delivery: Arc::new(delivery),
            gone: Arc::new(gone),
            counting: Counting::new(Instant::ZERO, Duration::from_secs(ttl_s.into())),
            answers: 0,
            unknown: 0,
        };
        let state = State {
            epoch,
            machine,
            there,
            mailboxes: BTreeMap::new(),
            given: None,
            decision: Arc::new(last),
            store_error: None,
            counters: Counters::default(),
        };
        let catalogue = contracts.catalogue();
        let (state, answering) = (Mutex::new(state), Mutex::new(answering));
        let (changed, told) = (Notify::new(), Notify::new());
        let shared = Shared { contracts, catalogue, ttl_s, state, answering, store, changed, told };
        Ok(Self { shared: Arc::new(shared) })
    }

    fn network(&self, name: &str) -> Result<PeerId, NetworkError> {
        self.shared.contracts.number(name).ok_or_else(|| NetworkError::Unknown(name.to_owned()))
    }

    /// A network's agent joins: it takes part from the next round on.
    pub(crate) fn join(&self, name: &str, session: u64) -> Result<(), NetworkError> {
        let network = self.network(name)?;
        let mut state = lock(&self.shared.state);
        let now = state.now();
        state.there.insert(network, Presence { session: Some(session), heard_at: now });
        state.mailboxes.insert(network, Mailbox::default());
        state.machine.handle_joined(network, self.shared.contracts.contract(network));
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
        state.speaker(network, session, name)?;
        state.there.remove(&network);
        state.machine.handle_left(network);
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
        state.speaker(network, session, name)?;
        let reply = state.machine.handle_bids(network, bids);
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
        state.speaker(network, session, name)?;
        state.machine.handle_assent(network, assent);
        drop(state);
        self.shared.changed.notify_one();
        Ok(())
    }

    /// Clients are counted by somebody else, who says this; nothing has the broker count again.
    pub(crate) fn give_clients(&self, gathered: Vec<Gathered>) {
        let mut state = lock(&self.shared.state);
        let until = state.now() + GIVEN_FOR;
        state.given = (!gathered.is_empty()).then_some((gathered, until));
        drop(state);
        self.shared.changed.notify_one();
    }

    /// Players have measured something of a network.
    pub(crate) fn measured(
        &self,
        name: &str,
        scores: Option<(f64, f64)>,
        delivered: Option<f64>,
    ) -> Result<(), NetworkError> {
        let network = self.network(name)?;
        let machine = &mut lock(&self.shared.state).machine;
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
        let (delivery, gone) = {
            let mut answering = lock(&self.shared.answering);
            let now = Instant::ZERO + Duration::from_std(answering.epoch.elapsed());
            answering.counting.note(now, &ask.viewer);
            answering.answers += 1;
            (Arc::clone(&answering.delivery), Arc::clone(&answering.gone))
        };
        let steering = answer(&delivery, &self.shared.catalogue, &gone, ask, self.shared.ttl_s);
        if steering.is_none() {
            lock(&self.shared.answering).unknown += 1;
        }
        steering
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

    pub(crate) fn networks(&self) -> Vec<NetworkView> {
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
            let standing = state.machine.standing(network).unwrap_or_default();
            NetworkView {
                name,
                up: state.there.get(&network).is_some_and(|presence| presence.session.is_some()),
                reputation: standing.reputation,
                capacity_trust: standing.capacity_trust,
                score_bias: standing.score_bias,
                missed: standing.missed,
                sessions,
                rate_bps,
            }
        };
        self.shared.contracts.numbers().map(view).collect()
    }

    pub(crate) fn metrics(&self) -> String {
        let mut text = Metrics::default();
        let (answers, unknown, dropped) = {
            let answering = lock(&self.shared.answering);
            (answering.answers, answering.unknown, answering.counting.dropped())
        };
        let state = lock(&self.shared.state);
        let counters = &state.counters;
        let ups = state.there.values().filter(|presence| presence.session.is_some()).count();
        let all: [(&str, &str, &str, u64); 12] = [
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
        loop {
            self.end_silent();
            let (job, wait) = {
                let mut state = lock(&self.shared.state);
                let now = state.now();
                if state.machine.poll_timeout().is_some_and(|at| at <= now) {
                    let gathered = self.gathered(&mut state, now);
                    state.machine.handle_gathered(gathered);
                    state.machine.handle_timeout(now);
                }
                let due = state.machine.poll_timeout().unwrap_or(now + LOOK_EVERY).min(now + LOOK_EVERY);
                (state.machine.poll_job(), due.saturating_since(now).to_std())
            };
            self.settle().await;
            if let Some(job) = job {
                self.search(job).await;
                continue;
            }
            // A millisecond more: timers fire early by their rounding, and would spin.
            let wait = wait + std::time::Duration::from_millis(1);
            let _ = tokio::time::timeout(wait, self.shared.changed.notified()).await;
        }
    }

    /// The clients that there are: as they were said, or counted.
    fn gathered(&self, state: &mut State, now: Instant) -> Vec<Gathered> {
        state.given.take_if(|(_, until)| *until < now);
        match &state.given {
            Some((gathered, _)) => gathered.clone(),
            None => lock(&self.shared.answering).counting.gathered(now),
        }
    }

    /// Searches for a decision, apart from those who are answered meanwhile.
    async fn search(&self, job: Job) {
        let began = std::time::Instant::now();
        let searched = tokio::task::spawn_blocking(move || {
            let answer = job.run();
            (job, answer)
        });
        let (job, answer) = searched.await.expect("searching does not panic, and the runtime is there");
        {
            let mut state = lock(&self.shared.state);
            let now = state.now();
            state.counters.decision_seconds += began.elapsed().as_secs_f64();
            state.machine.handle_answer(now, &job, answer);
        }
        self.settle().await;
    }

    /// Agents of whom nothing was heard for long have gone.
    fn end_silent(&self) {
        let mut silent = Vec::new();
        {
            let mut state = lock(&self.shared.state);
            let now = state.now();
            state.there.retain(|network, presence| {
                let is_there = now.saturating_since(presence.heard_at) < SILENT_AFTER;
                if !is_there {
                    silent.push(*network);
                }
                is_there
            });
            for network in &silent {
                state.machine.handle_left(*network);
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

    /// Keeps what was decided, and then tells networks and players.
    async fn settle(&self) {
        let (mut messages, mut events) = (Vec::new(), Vec::new());
        {
            let machine = &mut lock(&self.shared.state).machine;
            while let Some(message) = machine.poll_transmit() {
                messages.push(message);
            }
            while let Some(event) = machine.poll_event() {
                events.push(event);
            }
        }
        for event in events {
            match event {
                Event::Accepted(decision) => self.keep(&decision).await,
                Event::Void { round, why } => {
                    let why = match why {
                        Why::NoBids => "no network has bid",
                        Why::NoAgreement => "networks do not agree",
                    };
                    tracing::warn!("round {round}: {why}: the last decision stands");
                    lock(&self.shared.state).counters.rounds_void += 1;
                }
                _ => {}
            }
        }
        if messages.is_empty() {
            return;
        }
        {
            let mut state = lock(&self.shared.state);
            for (network, message) in messages {
                let message = match message {
                    ToNetwork::Call(call) => NetworkMessage::Call((*call).clone()),
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

    async fn keep(&self, decision: &Decision) {
        let view = Arc::new(write_decision(decision, &self.shared.contracts));
        let service = self.clone();
        let kept = Arc::clone(&view);
        let kept = tokio::task::spawn_blocking(move || service.shared.store.keep(&kept)).await;
        let kept = kept.expect("writing does not panic, and the runtime is there");
        lock(&self.shared.answering).delivery = Arc::new(Delivery::new(decision));
        let mut state = lock(&self.shared.state);
        state.store_error = kept.err().map(|error| error.to_string());
        if let Some(error) = state.store_error.clone() {
            tracing::error!("{error}");
            state.counters.store_errors += 1;
        }
        state.counters.rounds_accepted += 1;
        let sessions: u64 = view.placed.iter().map(|placed| u64::from(placed.sessions)).sum();
        tracing::info!(
            "round {}: {sessions} clients placed, at most {:.3} % from the best",
            view.round,
            100.0 * view.gap_share
        );
        state.decision = view;
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
fn read_decision(view: &DecisionView, contracts: &Contracts) -> Decision {
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
