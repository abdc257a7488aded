//! The broker under the real clock: its state machine behind one lock, and the state of answers to
//! players behind another lock.
//!
//! Requests change the state machine and wake the driver. Searches and store operations run in
//! tasks, so that requests are answered meanwhile. A decision is stored before it takes effect, in
//! a file or in a store that several brokers share under one leader. Leaves out: HTTP, answers to
//! players (`players`), and operators' views (`views`). Read [`BrokerService`] first.
#![allow(clippy::disallowed_methods, reason = "a driver: reads the clock")]

mod config;
mod counted_parts;
mod players;
mod store_effects;
#[cfg(test)]
mod tests;
mod views;

pub use config::{BrokerServiceConfig, OpenError, StoreConfig};
pub use counted_parts::{COUNTED_BYTES_MAX, COUNTED_MAX};

use crate::contracts::Contracts;
use crate::decision_form::{unix_ms, write_decision};
use crate::history::History;
use crate::wire::{CountedReply, DecisionView, NetworkMessage};
use anabranch_broker_proto::Answer;
use anabranch_broker_proto::broker::{Decision, Job, PlaceDemand, VoidReason};
use anabranch_broker_proto::counting::RequestCounter;
use anabranch_broker_proto::delivery::Delivery;
use anabranch_broker_proto::messages::{Assent, Bids, BidsReply};
use anabranch_broker_proto::networks::{self, Networks, NotLeaderError, Refusal, TOLD_LEASES};
use anabranch_broker_proto::replica::{Replica, RoleChange};
use anabranch_broker_proto::reports::Reports;
use anabranch_broker_proto::steering::Catalogue;
use anabranch_http::lease::{EtcdConfigError, EtcdStore, FileStore, SharedStore};
use anabranch_http::metrics::{Counters as Labelled, Histogram, seconds};
use anabranch_net::identity::Identity;
use anabranch_units::{Duration, Instant, PeerId};
use counted_parts::CountedParts;
use players::AnswerState;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;
use tokio::task::JoinSet;

/// Maximum time between two passes of the driver if no deadline is due.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// Lifetime of client counts that an operator has set.
const GIVEN_FOR: Duration = Duration::from_secs(900);
/// Maximum number of places in one message of counts.
const PLACES_PER_MESSAGE: usize = 20_000;
/// Niceness of a search thread, so that searches yield to all other work.
const NICE: i32 = 5;
/// Lease of a broker without a shared store, where no other broker can lead.
const LEASE_ALONE: Duration = Duration::from_secs(3_600);

/// Causes of a network's failures, for metrics.
const BID_REFUSED: &str = "bid_refused";
const SILENT: &str = "silent";
const FAILURES: [&str; 2] = [BID_REFUSED, SILENT];

/// Reason for refusing a network's request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NetworkError {
    /// There is no contract with this network.
    Unknown(String),
    /// This network's agent has not joined, or a later agent has replaced it.
    NotJoined(String),
    /// Another broker leads; its address, if known.
    Follows(Option<String>),
}

impl From<NotLeaderError> for NetworkError {
    fn from(NotLeaderError(leader): NotLeaderError) -> Self {
        Self::Follows(leader)
    }
}

impl NetworkError {
    /// Converts the refusal of a request of the network `name`.
    fn of(name: &str, refusal: Refusal) -> Self {
        match refusal {
            Refusal::NotJoined => Self::NotJoined(name.to_owned()),
            Refusal::NotLeading(leader) => Self::Follows(leader),
        }
    }
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

/// A running broker; clones share it.
#[derive(Clone)]
pub struct BrokerService {
    shared: Arc<Shared>,
}

struct Shared {
    contracts: Contracts,
    catalogue: Catalogue,
    ttl_s: u32,
    state: Mutex<State>,
    answering: Mutex<AnswerState>,
    keeper: Arc<dyn SharedStore<DecisionView>>,
    /// Store as operators see it.
    store: String,
    /// Random name and keys with which this broker reports its counts to the leader. `None` without
    /// a shared store.
    counts_for: Option<(u64, Identity)>,
    /// Wakes the driver.
    changed: Notify,
    /// Wakes requests that wait for messages to networks.
    told: Notify,
}

struct State {
    epoch: std::time::Instant,
    networks: Networks,
    /// Client counts set by an operator, and the time at which the counts expire.
    given: Option<(Vec<PlaceDemand>, Instant)>,
    /// Viewer counts reported by other brokers.
    counted: CountedParts,
    /// Decision last read from the store or sent to it, in its stored form.
    stored: Option<Arc<DecisionView>>,
    /// The decision that is being stored, and its stored form. A retry writes the same form, so a
    /// decision in the store never changes.
    keeping: Option<(Arc<Decision>, Arc<DecisionView>)>,
    decision: Arc<DecisionView>,
    history: History,
    /// Error of the last store operation.
    store_error: Option<String>,
    /// Error of the last attempt to store a decision.
    keep_error: Option<String>,
    /// True after the log has reported that rounds are stalled.
    is_stalled: bool,
    counters: Counters,
}

/// Counters since the start, for metrics.
struct Counters {
    joins: u64,
    silent: u64,
    bids_taken: u64,
    bids_refused: u64,
    rounds_accepted: u64,
    rounds_void: u64,
    decision_seconds: Histogram,
    store_errors: u64,
    leads: u64,
    failures: Labelled<2>,
}

impl Counters {
    /// Creates counters at 0 for the networks with a contract.
    fn new(contracts: &Contracts) -> Self {
        let of = |network| FAILURES.map(|cause| [contracts.name(network), cause]);
        Self {
            joins: 0,
            silent: 0,
            bids_taken: 0,
            bids_refused: 0,
            rounds_accepted: 0,
            rounds_void: 0,
            decision_seconds: seconds(),
            store_errors: 0,
            leads: 0,
            failures: Labelled::new(["network", "cause"], contracts.numbers().flat_map(of)),
        }
    }
}

/// Interval in which each player sends one request.
fn ttl(ttl_s: u32) -> Duration {
    Duration::from_secs(ttl_s.into())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic while the lock is held is a bug, and its own message reports it; the tables stay
    // valid.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl State {
    fn now(&self) -> Instant {
        Instant::from_std(self.epoch.elapsed())
    }

    /// Seconds since this broker called a round.
    fn took_s(&self, round: u64) -> Option<f64> {
        self.networks.since_call(self.now(), round).map(Duration::as_secs_f64)
    }
}

impl BrokerService {
    /// Opens the store. No agent has joined yet; an [`anabranch_http::Server`] then drives the
    /// service.
    ///
    /// Errors: a store that is unusable.
    pub fn open(config: BrokerServiceConfig) -> Result<Self, OpenError> {
        let BrokerServiceConfig { settings, contracts, store, ttl_s, believes_players } = config;
        let mut counts_for = None;
        let shown_store = store.to_string();
        let keeper: Arc<dyn SharedStore<DecisionView>> = match store {
            StoreConfig::File(path) => {
                Arc::new(FileStore::open(&path).map_err(|error| OpenError::Store(error.into()))?)
            }
            StoreConfig::Memory => {
                Arc::new(FileStore::in_memory().map_err(|error| OpenError::Store(error.into()))?)
            }
            StoreConfig::Etcd { etcd, identity } => {
                let name = anabranch_net::random();
                let name = name.map_err(|error| OpenError::Etcd(EtcdConfigError::NoRandom(error)))?;
                counts_for = Some((name, identity));
                Arc::new(EtcdStore::new(etcd).map_err(OpenError::Etcd)?)
            }
        };
        let lease = keeper.lease().map_or(LEASE_ALONE, Duration::from_std);
        // Round numbers start at the time of day, which exceeds the numbers of every earlier
        // broker.
        let replica = Replica::new(Instant::ZERO, settings, lease, unix_ms());
        let epoch = std::time::Instant::now();
        let answering = AnswerState {
            epoch,
            delivery: Arc::default(),
            gone: Arc::new(contracts.numbers().collect()),
            counting: RequestCounter::new(Instant::ZERO, ttl(ttl_s)),
            reports: believes_players.then(Reports::default),
            reported: 0,
            steers: true,
            answers: 0,
            unknown: 0,
        };
        let state = State {
            epoch,
            networks: Networks::new(replica, lease),
            given: None,
            counted: CountedParts::default(),
            stored: None,
            keeping: None,
            decision: Arc::default(),
            history: History::default(),
            store_error: None,
            keep_error: None,
            is_stalled: false,
            counters: Counters::new(&contracts),
        };
        let catalogue = contracts.catalogue();
        let (state, answering) = (Mutex::new(state), Mutex::new(answering));
        let (changed, told) = (Notify::new(), Notify::new());
        let shared = Shared {
            contracts,
            catalogue,
            ttl_s,
            state,
            answering,
            keeper,
            store: shown_store,
            counts_for,
            changed,
            told,
        };
        let service = Self { shared: Arc::new(shared) };
        service.read_file().map_err(OpenError::Store)?;
        Ok(service)
    }

    /// Resigns the lead, so that another broker need not wait for the lease to end. Does nothing
    /// with a file store.
    pub async fn give_lead_back(&self) {
        let keeper = Arc::clone(&self.shared.keeper);
        if let Ok(Err(error)) = tokio::task::spawn_blocking(move || keeper.leave()).await {
            tracing::warn!("{error}: another broker leads once the lease is over");
        }
    }

    fn lease(&self) -> Duration {
        self.shared.keeper.lease().map_or(LEASE_ALONE, Duration::from_std)
    }

    fn network(&self, name: &str) -> Result<PeerId, NetworkError> {
        self.shared.contracts.number(name).ok_or_else(|| NetworkError::Unknown(name.to_owned()))
    }

    /// Registers a network's agent, which takes part from the next round on.
    pub(crate) fn join(&self, name: &str, session: u64) -> Result<(), NetworkError> {
        let network = self.network(name)?;
        let mut state = lock(&self.shared.state);
        let now = state.now();
        let contract = self.shared.contracts.contract(network);
        state.networks.handle_join(now, network, session, contract)?;
        state.counters.joins += 1;
        drop(state);
        self.note_presence();
        tracing::info!("network {name} has joined");
        self.shared.changed.notify_one();
        Ok(())
    }

    /// Deregisters a network's agent.
    pub(crate) fn leave(&self, name: &str, session: u64) -> Result<(), NetworkError> {
        let network = self.network(name)?;
        let mut state = lock(&self.shared.state);
        let now = state.now();
        let left = state.networks.handle_leave(now, network, session);
        left.map_err(|refusal| NetworkError::of(name, refusal))?;
        drop(state);
        self.note_presence();
        tracing::info!("network {name} has left");
        self.shared.changed.notify_one();
        Ok(())
    }

    /// Returns the messages after number `after` as soon as there are any, or none after `wait`.
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
                let now = state.now();
                let found = state.networks.poll_messages(now, network, session, after);
                if let Some(messages) = found.map_err(|refusal| NetworkError::of(name, refusal))? {
                    let read = |(number, message)| Some((number, NetworkMessage::of(message)?));
                    return Ok(messages.into_iter().filter_map(read).collect());
                }
            }
            if tokio::time::timeout_at(until, told).await.is_err() {
                return Ok(Vec::new());
            }
        }
    }

    /// Handles a network's bids.
    pub(crate) fn bids(&self, name: &str, session: u64, bids: Bids) -> Result<BidsReply, NetworkError> {
        let network = self.network(name)?;
        let mut state = lock(&self.shared.state);
        let now = state.now();
        let reply = state.networks.handle_bids(now, network, session, bids);
        let reply = reply.map_err(|refusal| NetworkError::of(name, refusal))?;
        state.counters.bids_taken += reply.taken;
        state.counters.bids_refused += reply.refused;
        state.counters.failures.of([name, BID_REFUSED]).inc_by(reply.refused);
        drop(state);
        if let Some(reason) = reply.reasons.first() {
            tracing::warn!("network {name}: {} bids refused, the first: {reason}", reply.refused);
        }
        self.shared.changed.notify_one();
        Ok(reply)
    }

    /// Handles a network's answer to a proposal.
    pub(crate) fn assent(&self, name: &str, session: u64, assent: &Assent) -> Result<(), NetworkError> {
        let network = self.network(name)?;
        let mut state = lock(&self.shared.state);
        let now = state.now();
        let taken = state.networks.handle_assent(now, network, session, assent);
        taken.map_err(|refusal| NetworkError::of(name, refusal))?;
        drop(state);
        self.shared.changed.notify_one();
        Ok(())
    }

    /// Sets the clients to place. An empty list makes the broker use its own counts again.
    pub(crate) fn give_clients(&self, gathered: Vec<PlaceDemand>) -> Result<(), NetworkError> {
        let mut state = lock(&self.shared.state);
        state.networks.leading()?;
        let until = state.now() + GIVEN_FOR;
        state.given = (!gathered.is_empty()).then_some((gathered, until));
        drop(state);
        self.shared.changed.notify_one();
        Ok(())
    }

    /// Records counts of another broker. Returns the networks whose agents are connected.
    pub(crate) fn note_counted(
        &self,
        broker: u64,
        part: u32,
        gathered: Vec<PlaceDemand>,
    ) -> Result<CountedReply, NetworkError> {
        let mut state = lock(&self.shared.state);
        let roll = state.networks.roll()?;
        let now = state.now();
        let until = now + self.lease() * TOLD_LEASES;
        if !state.counted.note(now, (broker, part), gathered, until) {
            tracing::debug!("no room for what another broker has counted");
        }
        let names = |those: Vec<PeerId>| {
            those.into_iter().map(|network| self.shared.contracts.name(network).to_owned()).collect()
        };
        Ok(CountedReply { round: roll.round, up: names(roll.up), awaited: names(roll.awaited) })
    }

    /// Records players' measurements of a network.
    pub(crate) fn measured(
        &self,
        name: &str,
        scores: Option<(f64, f64)>,
        delivered: Option<f64>,
    ) -> Result<(), NetworkError> {
        let network = self.network(name)?;
        let mut state = lock(&self.shared.state);
        let machine = state.networks.leading()?;
        if let Some((bid, measured)) = scores {
            machine.handle_measured(network, bid, measured);
        }
        if let Some(share) = delivered {
            machine.handle_delivered(network, share);
        }
        Ok(())
    }

    /// Interval between two steering requests of a player, in seconds.
    pub fn ttl_s(&self) -> u32 {
        self.shared.ttl_s
    }

    /// Updates the list of disconnected networks used in answers to players.
    fn note_presence(&self) {
        let mut state = lock(&self.shared.state);
        let Some(there) = state.networks.poll_there() else { return };
        let gone: BTreeSet<PeerId> =
            self.shared.contracts.numbers().filter(|network| !there.contains(network)).collect();
        lock(&self.shared.answering).gone = Arc::new(gone);
    }

    /// Drives the state machine until the future is dropped.
    pub(crate) async fn go_on(&self) {
        let mut tasks = JoinSet::new();
        if self.shared.counts_for.is_some() {
            let service = self.clone();
            tasks.spawn(async move { service.say_counts().await });
        }
        loop {
            let (job, ask, wait) = {
                let mut state = lock(&self.shared.state);
                let now = state.now();
                // Counting all clients is costly, and a pass that only renews the lease needs no
                // counts.
                if state.networks.needs_clients(now) {
                    let gathered = self.gathered(&mut state, now);
                    let reported = lock(&self.shared.answering).reports.as_mut().map(Reports::take);
                    state.networks.handle_clients(gathered);
                    if let Ok(broker) = state.networks.leading() {
                        for (network, delivered) in reported.iter().flatten() {
                            broker.handle_delivered(*network, *delivered);
                        }
                    }
                }
                state.networks.handle_timeout(now);
                let ask = state.networks.poll_ask(now);
                let due = state.networks.poll_timeout().unwrap_or(now + LOOK_EVERY).min(now + LOOK_EVERY);
                (state.networks.poll_job(), ask, due.saturating_since(now).to_std())
            };
            self.settle();
            self.note_stall();
            if let Some(job) = job {
                let service = self.clone();
                tasks.spawn(async move { service.search(job).await });
            }
            if let Some((number, ask)) = ask {
                let service = self.clone();
                tasks.spawn(async move { service.ask_store(number, ask).await });
            }
            while tasks.try_join_next().is_some() {}
            // Timers round down, so one millisecond is added; otherwise the loop would spin.
            let wait = wait + std::time::Duration::from_millis(1);
            let _ = tokio::time::timeout(wait, self.shared.changed.notified()).await;
        }
    }

    /// Returns the clients to place: the clients set by an operator, or else the clients counted by
    /// all brokers.
    fn gathered(&self, state: &mut State, now: Instant) -> Vec<PlaceDemand> {
        state.given.take_if(|(_, until)| *until < now);
        if let Some((gathered, _)) = &state.given {
            return gathered.clone();
        }
        let own = self.counted_here();
        state.counted.with(now, own)
    }

    /// Searches for a decision on a blocking thread, while requests are answered.
    async fn search(&self, job: Job) {
        let began = std::time::Instant::now();
        let searched = tokio::task::spawn_blocking(move || {
            // Linux applies the niceness to this thread alone. If the call fails, the search runs
            // at normal priority.
            let _ = rustix::process::setpriority_process(None, NICE);
            let answer = job.run();
            (job, answer)
        });
        let (job, answer): (Job, Answer) =
            searched.await.expect("searching does not panic, and the runtime is there");
        {
            let mut state = lock(&self.shared.state);
            let now = state.now();
            state.counters.decision_seconds.observe(began.elapsed().as_secs_f64());
            state.networks.handle_found(now, &job, answer);
        }
        self.shared.changed.notify_one();
    }

    /// Delivers the state machine's messages to networks, and its decisions to players' answers.
    fn settle(&self) {
        loop {
            let event = lock(&self.shared.state).networks.poll_event();
            match event {
                None => break,
                Some(networks::Event::Turn(turn)) => self.take_turn(turn),
                Some(networks::Event::Silent(network)) => {
                    let name = self.shared.contracts.name(network);
                    let mut state = lock(&self.shared.state);
                    state.counters.silent += 1;
                    state.counters.failures.of([name, SILENT]).inc();
                    drop(state);
                    tracing::warn!("network {name}: its agent has fallen silent, and counts as gone");
                }
                Some(networks::Event::PollsDue) => self.shared.told.notify_waiters(),
            }
        }
        self.note_presence();
    }

    fn take_turn(&self, turn: RoleChange) {
        match turn {
            RoleChange::Began => {
                lock(&self.shared.state).counters.leads += 1;
                tracing::info!("this broker leads");
            }
            RoleChange::Ended => {
                let mut state = lock(&self.shared.state);
                // The decision that could not be stored no longer matters, because another broker
                // leads.
                (state.given, state.counted, state.keep_error) = (None, CountedParts::default(), None);
                drop(state);
                tracing::warn!("this broker does not lead any more");
            }
            RoleChange::Accepted(decision) => {
                lock(&self.shared.state).counters.rounds_accepted += 1;
                self.note_decision(&decision);
            }
            RoleChange::News(decision) => self.note_decision(&decision),
            RoleChange::Void { round, why } => {
                let why = match why {
                    VoidReason::NoBids => "no network has bid",
                    VoidReason::NoAgreement => "networks do not agree",
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

    /// Puts a decision in force for answers to players.
    fn note_decision(&self, decision: &Decision) {
        lock(&self.shared.answering).delivery = Arc::new(Delivery::new(decision));
        let mut state = lock(&self.shared.state);
        let stored = state.stored.clone().filter(|stored| stored.round == decision.round);
        let number = state.decision.number;
        let write = || Arc::new(write_decision(decision, number, &self.shared.contracts));
        let view = stored.unwrap_or_else(write);
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
