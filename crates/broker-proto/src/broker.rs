//! The broker's side of the decision protocol: periodic rounds, from counted clients to an accepted
//! decision.
//!
//! A round calls all connected networks, takes bids until all networks have bid or the deadline
//! passes, decides, asks the networks if the design requires it, and tells each network the result
//! of its bids. A network that is late, absent or bids nonsense does not affect any other network:
//! each client is placed on a cluster that was bid for it. A decision takes time, so the search is
//! a [`Job`] for the driver; meanwhile the last accepted decision stays in force.
//!
//! Source: section 3.4.1, steps 2 to 7. Differs: designs that ask networks (Transactions) have a
//! maximum number of attempts, and a round without agreement changes nothing. Invariants: a round
//! is accepted at most once, and round numbers increase; no cluster gets more than its network bid,
//! or more than its network stated when asked. Leaves out: sockets, counts of clients, and players
//! (the delivery protocol). Contract: one mutation, then [`Broker::poll_transmit`],
//! [`Broker::poll_event`] and [`Broker::poll_job`] to `None`, then [`Broker::poll_timeout`]. Read
//! [`Broker`] and [`Decision`] first.

mod bids;
mod standing;

pub use standing::NetworkTrust;

use crate::designs::{ClusterAnnouncement, Design};
use crate::limits::PRICE_PER_MBPS_MAX;
use crate::market::{Candidate, Cluster, Group, Market};
use crate::messages::{
    Assent, BidResult, Bids, BidsReply, Call, Clients, ClusterRate, ClusterResult, Proposal, Share,
    ShareResult,
};
use crate::optimiser::{Answer, Optimiser};
use anabranch_units::{BitRate, Duration, Instant, PeerId};
use bids::CheckedBids;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// Contract between a network and the broker.
#[derive(Clone, Debug, PartialEq)]
pub struct Contract {
    /// Price per Mbit/s of every cluster under designs in which networks announce no prices.
    pub price_per_mbps: f64,
    /// Capacity that the broker assumes for a cluster if the design announces no capacities.
    pub capacity_median: BitRate,
    /// Maximum price of a bid, per Mbit/s.
    pub price_max_per_mbps: f64,
    /// Maximum number of clusters that the network may bid.
    pub clusters_max: u32,
    /// Maximum number of bids in a round; a bid is one cluster for one share. Each bid takes up to
    /// [`BID_BYTES`] of memory until the round ends.
    pub bids_max: u64,
}

/// Maximum bytes of a bid, from its arrival to the end of the search: the bid itself, the market's
/// candidate, its score, and the search's state for it.
pub const BID_BYTES: u64 = 256;
/// Maximum bytes of a network's bids in a round, unless its contract sets another limit.
pub const BIDS_BYTES: u64 = 256 << 20;

impl Default for Contract {
    fn default() -> Self {
        Self {
            price_per_mbps: 1.0,
            capacity_median: BitRate::gbps(10),
            price_max_per_mbps: PRICE_PER_MBPS_MAX,
            clusters_max: 10_000,
            bids_max: BIDS_BYTES / BID_BYTES,
        }
    }
}

/// Settings of a broker's decisions.
#[derive(Clone)]
pub struct Settings {
    /// Design of the rounds: what the broker tells networks, and what they match and announce.
    pub design: Arc<dyn Design>,
    /// Weight of one point of score.
    pub score_weight: f64,
    /// Weight of one unit of money.
    pub cost_weight: f64,
    /// Interval between two rounds.
    pub every: Duration,
    /// Time for networks to bid.
    pub bids_within: Duration,
    /// Time for networks to answer a proposal.
    pub assents_within: Duration,
    /// Maximum number of proposals in a round.
    pub attempts_max: u32,
    /// Settings of the search.
    pub optimiser: Optimiser,
}

impl Settings {
    /// Creates settings for this design: equal weights of score and money, and one round a minute.
    pub fn new(design: Arc<dyn Design>) -> Self {
        Self {
            design,
            score_weight: 1.0,
            cost_weight: 1.0,
            every: Duration::from_secs(60),
            bids_within: Duration::from_secs(10),
            assents_within: Duration::from_secs(5),
            attempts_max: 5,
            optimiser: Optimiser::default(),
        }
    }
}

impl std::fmt::Debug for Settings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Settings").field("design", &self.design.name()).finish_non_exhaustive()
    }
}

/// Clients of one place, as counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlaceDemand {
    /// City of the clients.
    pub location: String,
    /// Internet provider of the clients.
    pub isp: String,
    /// Number of clients of each bitrate.
    pub clients: Vec<Clients>,
}

/// A message to a network.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum ToNetwork {
    /// Start of a round. All networks get the same call.
    Call(Arc<Call>),
    /// Rates that a proposed decision would place on the network's clusters.
    Proposal(Proposal),
    /// Result of the network's bids.
    Accepted(BidResult),
}

/// An event for the driver.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Event {
    /// A round was accepted.
    Accepted(Arc<Decision>),
    /// A round changed nothing.
    Void {
        /// Number of the round.
        round: u64,
        /// The reason.
        why: VoidReason,
    },
}

/// Reason why a round changed nothing.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum VoidReason {
    /// No network has bid.
    NoBids,
    /// Networks did not agree within the limit of attempts.
    NoAgreement,
}

/// A cluster of a network.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClusterId {
    /// Network of the cluster.
    pub network: PeerId,
    /// Id of the cluster, as the network numbers its clusters.
    pub cluster: u32,
}

/// Interchangeable clients, and their cluster.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct ClientPlacement {
    /// Index of the place in [`Decision::places`].
    pub place: u32,
    /// Bitrate of each client.
    pub bitrate: BitRate,
    /// Number of clients.
    pub sessions: u32,
    /// Cluster and the score bid for it; `None` if no cluster that was bid for these clients has
    /// capacity left.
    pub to: Option<(ClusterId, f64)>,
}

/// Decision of a round.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// Number of the round.
    pub round: u64,
    /// City and provider of each place.
    pub places: Vec<(String, String)>,
    /// All clients, place by place.
    pub placed: Vec<ClientPlacement>,
    /// Price per Mbit/s of each cluster in use.
    pub prices_per_mbps: BTreeMap<ClusterId, f64>,
    /// Upper bound on the distance from the best decision, as a share.
    pub gap_share: f64,
    /// Standing of all networks, absent ones included, so that a successor need not learn it again.
    pub standings: BTreeMap<PeerId, NetworkTrust>,
}

/// A search for the best decision.
#[derive(Clone, Debug)]
pub struct Job {
    /// Number of the job.
    number: u64,
    /// Market in which the job searches.
    pub market: Arc<Market>,
    prices: Vec<f64>,
    optimiser: Optimiser,
}

impl Job {
    /// Runs the search.
    ///
    /// Cost: tenths of a second for thirty thousand clients.
    pub fn run(&self) -> Answer {
        let prices = (!self.prices.is_empty()).then_some(&*self.prices);
        self.optimiser.optimise(&self.market, prices)
    }
}

/// The broker's state of one network.
#[derive(Debug)]
struct NetworkState {
    contract: Contract,
    is_there: bool,
    /// True if the current round has called the network; its bids follow.
    is_called: bool,
    bids: Option<CheckedBids>,
}

/// Stage of the current round.
#[derive(Debug)]
enum RoundStage {
    /// There is no current round.
    Between,
    Bidding {
        until: Instant,
    },
    /// A job is running.
    Deciding,
    Asking {
        until: Instant,
        attempt: u32,
        /// Networks without an answer so far.
        left: BTreeSet<PeerId>,
        is_refused: bool,
        answer: Answer,
    },
}

/// Market of a round, and the meaning of its numbers.
#[derive(Debug)]
struct Table {
    market: Arc<Market>,
    /// Cluster of each index in the market.
    clusters: Vec<ClusterId>,
    /// Price per Mbit/s of each cluster.
    prices_per_mbps: Vec<f64>,
    /// For each place: the bid score of each candidate.
    scores: Vec<Vec<f64>>,
    /// Value of one unit of the market's cost, in money.
    unit: f64,
}

/// The broker's state machine.
#[derive(Debug)]
pub struct Broker {
    settings: Settings,
    networks: BTreeMap<PeerId, NetworkState>,
    /// Standing of every network that has joined since the start, or that the last accepted
    /// decision lists.
    standings: BTreeMap<PeerId, NetworkTrust>,
    /// Clients of each place, as last counted.
    gathered: Arc<[PlaceDemand]>,
    /// Clients that the current round places.
    placing: Arc<[PlaceDemand]>,
    round: u64,
    next_at: Instant,
    stage: RoundStage,
    call: Option<Arc<Call>>,
    /// Maximum rates that networks have stated in answers of the current round.
    limits: BTreeMap<ClusterId, u64>,
    attempt: u32,
    table: Option<Table>,
    /// Shadow price of each cluster from the last search.
    shadow_prices: BTreeMap<ClusterId, f64>,
    accepted: Option<Arc<Decision>>,
    transmits: VecDeque<(PeerId, ToNetwork)>,
    events: VecDeque<Event>,
    /// Number of jobs so far.
    jobs: u64,
    /// The last job, until the driver polls it.
    job: Option<Job>,
}

impl Broker {
    /// Creates a broker whose first round begins now.
    pub fn new(now: Instant, settings: Settings) -> Self {
        Self {
            settings,
            networks: BTreeMap::new(),
            standings: BTreeMap::new(),
            gathered: Arc::new([]),
            placing: Arc::new([]),
            round: 0,
            next_at: now,
            stage: RoundStage::Between,
            call: None,
            limits: BTreeMap::new(),
            attempt: 0,
            table: None,
            shadow_prices: BTreeMap::new(),
            accepted: None,
            transmits: VecDeque::new(),
            events: VecDeque::new(),
            jobs: 0,
            job: None,
        }
    }

    /// Resumes after a restart from the last accepted decision: the next round numbers exceed the
    /// decision's, and networks keep their standings.
    #[must_use]
    pub fn with_accepted(mut self, decision: Decision) -> Self {
        self.round = self.round.max(decision.round);
        self.standings.clone_from(&decision.standings);
        self.accepted = Some(Arc::new(decision));
        self
    }

    /// Makes round numbers continue above `round`. Another broker, or the same broker before a
    /// restart, may have used the numbers up to `round`.
    ///
    /// Bids name their round by number, so a number must not be used twice. A driver uses the time
    /// of day, or an epoch counted in a store.
    #[must_use]
    pub fn with_rounds_after(mut self, round: u64) -> Self {
        self.round = self.round.max(round);
        self
    }

    /// The last accepted decision.
    pub const fn accepted(&self) -> Option<&Arc<Decision>> {
        self.accepted.as_ref()
    }
    /// Standing of a network; `None` if the network is unknown.
    pub fn standing(&self, network: PeerId) -> Option<NetworkTrust> {
        self.standings.get(&network).copied()
    }

    /// Handles a joining agent: its network takes part from the next round on, with its previous
    /// standing.
    pub fn handle_joined(&mut self, network: PeerId, contract: Contract) {
        let known = self.networks.entry(network).or_insert_with(|| NetworkState {
            contract: contract.clone(),
            is_there: true,
            is_called: false,
            bids: None,
        });
        (known.contract, known.is_there) = (contract, true);
        self.standings.entry(network).or_default();
    }

    /// Handles a leaving agent. Its network's bids in the current round no longer count.
    pub fn handle_left(&mut self, network: PeerId) {
        let Some(known) = self.networks.get_mut(&network) else { return };
        let has_bid = known.bids.take().is_some_and(|bids| bids.is_all);
        let was_called = std::mem::take(&mut known.is_called);
        known.is_there = false;
        if was_called && !has_bid && matches!(self.stage, RoundStage::Bidding { .. }) {
            self.standings.entry(network).or_default().note_missed();
        }
        match &mut self.stage {
            RoundStage::Bidding { .. } => self.close_if_all_have_bid(),
            // The proposal or search includes the network's clusters, even if the network has
            // assented.
            RoundStage::Asking { left, is_refused, .. } => {
                left.remove(&network);
                *is_refused |= has_bid;
                self.end_asking();
            }
            RoundStage::Deciding => self.decide(),
            RoundStage::Between => {}
        }
    }

    /// Sets the clients of each place, which the next round places.
    pub fn handle_gathered(&mut self, mut gathered: Vec<PlaceDemand>) {
        gathered.retain(|of| of.clients.iter().any(|some| some.sessions > 0 && some.bitrate_bps > 0));
        self.gathered = gathered.into();
    }

    /// Handles a network's bids.
    pub fn handle_bids(&mut self, network: PeerId, bids: Bids) -> BidsReply {
        let count = bids.shares.iter().map(|of| of.clusters.len() as u64).sum();
        let refused = |why: String| BidsReply { taken: 0, refused: count, reasons: vec![why] };
        let shares = self.call.as_ref().map_or(0, |call| call.shares.len() as u32);
        let round = self.round;
        let is_open = matches!(self.stage, RoundStage::Bidding { .. }) && bids.round == round;
        let Some(known) = self.networks.get_mut(&network).filter(|known| known.is_called && is_open) else {
            return refused(format!("round {}: is not open for bids", bids.round));
        };
        if known.bids.as_ref().is_some_and(|bids| bids.is_all) {
            return refused(format!("round {round}: bids are there already: the first count"));
        }
        let mut checked = known.bids.take().unwrap_or_default();
        let reply = bids::check(&known.contract, shares, bids, &mut checked);
        let all = reply.taken + reply.refused;
        if all > 0 {
            self.standings.entry(network).or_default().note_bids(reply.taken as f64 / all as f64);
        }
        known.bids = Some(checked);
        self.close_if_all_have_bid();
        reply
    }

    /// Handles a network's answer to a proposal.
    pub fn handle_assent(&mut self, network: PeerId, assent: &Assent) {
        let RoundStage::Asking { attempt, left, .. } = &self.stage else { return };
        if assent.round != self.round || assent.attempt != *attempt || !left.contains(&network) {
            return;
        }
        let bids = self.networks.get(&network).and_then(|known| known.bids.as_ref());
        let has_bid = |cluster: u32| bids.is_some_and(|bids| bids.clusters.contains_key(&cluster));
        for refused in assent.refused.iter().filter(|refused| has_bid(refused.cluster)) {
            let limit =
                self.limits.entry(ClusterId { network, cluster: refused.cluster }).or_insert(u64::MAX);
            *limit = refused.rate_bps.min(*limit);
        }
        self.note_answer(network, !assent.refused.is_empty());
    }

    /// Handles a score that clients measured (`measured`), and the score that the network had bid
    /// (`bid`).
    ///
    /// Values that are not measurements are ignored.
    pub fn handle_measured(&mut self, network: PeerId, bid: f64, measured: f64) {
        let ratio = measured / bid;
        if let Some(standing) = self.standings.get_mut(&network).filter(|_| ratio.is_finite() && ratio >= 0.0)
        {
            standing.note_score(ratio);
        }
    }

    /// Handles the share of the demand that a network's cluster delivered to the clients placed on
    /// it.
    ///
    /// Values that are not shares are ignored.
    pub fn handle_delivered(&mut self, network: PeerId, share: f64) {
        if let Some(standing) = self.standings.get_mut(&network).filter(|_| (0.0..=1.0).contains(&share)) {
            standing.note_delivered(share);
        }
    }

    /// Handles the result of a job.
    pub fn handle_answer(&mut self, now: Instant, job: &Job, answer: Answer) {
        if job.number != self.jobs || !matches!(self.stage, RoundStage::Deciding) {
            return;
        }
        // A job of a broker before a restart may have the same number.
        let Some(table) = self.table.as_ref().filter(|table| Arc::ptr_eq(&table.market, &job.market)) else {
            return;
        };
        self.shadow_prices = table.clusters.iter().copied().zip(answer.prices.iter().copied()).collect();
        if self.settings.design.asks() { self.ask(now, answer) } else { self.accept(&answer) }
    }

    /// Handles a timeout.
    pub fn handle_timeout(&mut self, now: Instant) {
        match &self.stage {
            RoundStage::Between if now >= self.next_at => self.begin(now),
            RoundStage::Bidding { until } if now >= *until => self.close(),
            RoundStage::Asking { until, left, .. } if now >= *until => {
                // A network that does not answer has refused.
                for network in left.clone() {
                    self.forget_bids(network);
                    self.note_answer(network, true);
                }
            }
            _ => {}
        }
    }

    /// Returns the next message to send.
    pub fn poll_transmit(&mut self) -> Option<(PeerId, ToNetwork)> {
        self.transmits.pop_front()
    }
    /// Returns the next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }
    /// Returns the next job to run, whose result goes to [`Broker::handle_answer`].
    pub const fn poll_job(&mut self) -> Option<Job> {
        self.job.take()
    }
    /// Time of the next [`Broker::handle_timeout`].
    pub const fn poll_timeout(&self) -> Option<Instant> {
        match &self.stage {
            RoundStage::Between => Some(self.next_at),
            RoundStage::Bidding { until } | RoundStage::Asking { until, .. } => Some(*until),
            RoundStage::Deciding => None,
        }
    }

    fn begin(&mut self, now: Instant) {
        self.next_at = now + self.settings.every;
        if self.gathered.is_empty() || !self.networks.values().any(|known| known.is_there) {
            return;
        }
        self.round += 1;
        self.attempt = 0;
        self.limits.clear();
        self.placing = Arc::clone(&self.gathered);
        let shares_clients = self.settings.design.shares_clients();
        let shares = (0..).zip(&*self.placing).map(|(share, of)| Share {
            share,
            location: of.location.clone(),
            isp: of.isp.clone(),
            clients: if shares_clients { of.clients.clone() } else { Vec::new() },
        });
        let call = Call { round: self.round, design: self.settings.design.name(), shares: shares.collect() };
        let call = Arc::new(call);
        for (network, known) in &mut self.networks {
            (known.is_called, known.bids) = (known.is_there, None);
            if known.is_there {
                self.transmits.push_back((*network, ToNetwork::Call(Arc::clone(&call))));
            }
        }
        self.call = Some(call);
        self.stage = RoundStage::Bidding { until: now + self.settings.bids_within };
    }

    fn close_if_all_have_bid(&mut self) {
        let has_bid = |known: &NetworkState| known.bids.as_ref().is_some_and(|bids| bids.is_all);
        if self.networks.values().all(|known| has_bid(known) || !known.is_called) {
            self.close();
        }
    }

    /// Closes the bidding.
    fn close(&mut self) {
        for (network, known) in self.networks.iter_mut().filter(|(_, known)| known.is_called) {
            // An incomplete series of bids does not represent the network, so the broker drops the
            // series.
            if known.bids.take_if(|bids| !bids.is_all).is_some() || known.bids.is_none() {
                self.standings.entry(*network).or_default().note_missed();
            }
        }
        self.decide();
    }

    fn forget_bids(&mut self, network: PeerId) {
        if let Some(known) = self.networks.get_mut(&network) {
            known.bids = None;
        }
    }

    /// Starts the search for the best decision from the current bids.
    fn decide(&mut self) {
        let Some(table) = self.lay_table() else { return self.end(VoidReason::NoBids) };
        let prices = table.clusters.iter().map(|cluster| self.shadow_prices.get(cluster).copied());
        let known: Vec<Option<f64>> = prices.collect();
        // A new cluster has no price. Without any known price the search starts from scratch.
        let prices = if known.iter().all(Option::is_none) {
            Vec::new()
        } else {
            known.into_iter().map(Option::unwrap_or_default).collect()
        };
        let market = Arc::clone(&table.market);
        self.jobs += 1;
        self.job = Some(Job { number: self.jobs, market, prices, optimiser: self.settings.optimiser });
        self.table = Some(table);
        self.stage = RoundStage::Deciding;
    }

    /// Builds the market from all valid bids; `None` without any.
    fn lay_table(&self) -> Option<Table> {
        let (mut clusters, mut prices, mut of_market) = (Vec::new(), Vec::new(), Vec::new());
        let mut places: Vec<Vec<Candidate>> = vec![Vec::new(); self.placing.len()];
        let mut scores: Vec<Vec<f64>> = vec![Vec::new(); self.placing.len()];
        for (network, known) in &self.networks {
            let Some(bids) = &known.bids else { continue };
            let standing = self.standing(*network).unwrap_or_default();
            let mut numbers = BTreeMap::new();
            for (cluster, said) in &bids.clusters {
                let id = ClusterId { network: *network, cluster: *cluster };
                numbers.insert(*cluster, clusters.len() as u32);
                let price = said.price_per_mbps.unwrap_or(known.contract.price_per_mbps);
                clusters.push(id);
                prices.push(price);
                of_market.push(Cluster {
                    capacity: self.capacity(known, standing, id, said),
                    cost_per_mbps: self.settings.cost_weight * price,
                });
            }
            let factor = self.settings.score_weight * standing.score_factor();
            for (share, bids) in &bids.shares {
                let candidates = bids
                    .iter()
                    .map(|(cluster, score)| Candidate { cluster: numbers[cluster], score: factor * score });
                places[*share as usize].extend(candidates);
                scores[*share as usize].extend(bids.iter().map(|(_, score)| score));
            }
        }
        if clusters.is_empty() {
            return None;
        }
        let groups = (0..).zip(&*self.placing).flat_map(|(place, of)| {
            let some = of.clients.iter().filter(|some| some.sessions > 0 && some.bitrate_bps > 0);
            some.map(move |some| Group {
                place,
                bitrate: BitRate::bps(some.bitrate_bps),
                sessions: some.sessions,
            })
        });
        let market = Market::new(of_market, &places, groups.collect()).expect("bids were checked");
        Some(Table {
            market: Arc::new(market),
            clusters,
            prices_per_mbps: prices,
            scores,
            unit: self.settings.cost_weight,
        })
    }

    /// Capacity of a cluster in the market: the announced capacity times the trust in it, and at
    /// most the rate stated in answers.
    fn capacity(
        &self,
        known: &NetworkState,
        standing: NetworkTrust,
        id: ClusterId,
        said: &ClusterAnnouncement,
    ) -> BitRate {
        let said = said.capacity.unwrap_or(known.contract.capacity_median).as_bps();
        let believed =
            if standing.capacity_trust < 1.0 { (said as f64 * standing.capacity_trust) as u64 } else { said };
        BitRate::bps(believed.min(self.limits.get(&id).copied().unwrap_or(u64::MAX)))
    }

    /// Total rate in bits per second and number of clients of each cluster of the market, as an
    /// answer places them.
    fn sent(table: &Table, answer: &Answer) -> Vec<(u64, u64)> {
        let mut sent = vec![(0, 0); table.clusters.len()];
        for placement in &answer.placements {
            let group = &table.market.groups()[placement.group as usize];
            if let Some(candidate) = placement.candidate {
                let cluster = table.market.candidates_of(group.place)[candidate as usize].cluster as usize;
                let sessions = u64::from(placement.sessions);
                sent[cluster].0 += sessions * group.bitrate.as_bps();
                sent[cluster].1 += sessions;
            }
        }
        sent
    }

    /// Asks networks whether they can send their part of an answer.
    fn ask(&mut self, now: Instant, answer: Answer) {
        let Some(table) = &self.table else { return };
        self.attempt += 1;
        let mut asked: BTreeMap<PeerId, Vec<ClusterRate>> = BTreeMap::new();
        for (id, (rate_bps, _)) in table.clusters.iter().zip(Self::sent(table, &answer)) {
            if rate_bps > 0 {
                asked.entry(id.network).or_default().push(ClusterRate { cluster: id.cluster, rate_bps });
            }
        }
        let left = asked.keys().copied().collect();
        for (network, clusters) in asked {
            let proposal = Proposal { round: self.round, attempt: self.attempt, clusters };
            self.transmits.push_back((network, ToNetwork::Proposal(proposal)));
        }
        let until = now + self.settings.assents_within;
        self.stage = RoundStage::Asking { until, attempt: self.attempt, left, is_refused: false, answer };
        self.end_asking();
    }

    /// Records a network's answer to a proposal, or its lack of an answer as a refusal.
    fn note_answer(&mut self, network: PeerId, refuses: bool) {
        if let RoundStage::Asking { left, is_refused, .. } = &mut self.stage
            && left.remove(&network)
        {
            *is_refused |= refuses;
            self.end_asking();
        }
    }

    fn end_asking(&mut self) {
        let RoundStage::Asking { left, is_refused, answer, .. } = &mut self.stage else { return };
        if !left.is_empty() {
            return;
        }
        if !*is_refused {
            let answer = answer.clone();
            self.accept(&answer);
        } else if self.attempt < self.settings.attempts_max {
            self.decide();
        } else {
            self.end(VoidReason::NoAgreement);
        }
    }

    /// Ends the round without a change.
    fn end(&mut self, why: VoidReason) {
        self.events.push_back(Event::Void { round: self.round, why });
        self.stage = RoundStage::Between;
        self.table = None;
    }

    fn accept(&mut self, answer: &Answer) {
        let Some(table) = self.table.take() else { return };
        let places = self.call.iter().flat_map(|call| &call.shares);
        let placed = answer.placements.iter().map(|placement| {
            let group = &table.market.groups()[placement.group as usize];
            let to = placement.candidate.map(|number| {
                let candidate = table.market.candidates_of(group.place)[number as usize];
                let score = table.scores[group.place as usize][number as usize];
                (table.clusters[candidate.cluster as usize], score)
            });
            ClientPlacement { place: group.place, bitrate: group.bitrate, sessions: placement.sessions, to }
        });
        let sent = Self::sent(&table, answer);
        let prices = table.clusters.iter().zip(&table.prices_per_mbps).zip(&sent);
        let decision = Arc::new(Decision {
            round: self.round,
            places: places.map(|share| (share.location.clone(), share.isp.clone())).collect(),
            placed: placed.collect(),
            prices_per_mbps: prices
                .filter(|(_, (rate, _))| *rate > 0)
                .map(|((id, price), _)| (*id, *price))
                .collect(),
            gap_share: answer.gap_share(),
            standings: self.standings.clone(),
        });
        self.tell(&table, answer, &sent, &decision);
        self.accepted = Some(Arc::clone(&decision));
        self.events.push_back(Event::Accepted(decision));
        self.stage = RoundStage::Between;
    }

    /// Tells each called network the result of its bids.
    fn tell(&mut self, table: &Table, answer: &Answer, sent: &[(u64, u64)], decision: &Decision) {
        let money = if table.unit > 0.0 { 1.0 / table.unit } else { 0.0 };
        let mut of_networks: BTreeMap<PeerId, BidResult> = self
            .networks
            .iter()
            .filter(|(_, known)| known.is_called)
            .map(|(network, _)| {
                (*network, BidResult { round: self.round, clusters: Vec::new(), shares: Vec::new() })
            })
            .collect();
        let clusters = table.clusters.iter().zip(sent).zip(&answer.prices);
        for ((id, &(rate_bps, sessions)), price) in clusters {
            if let Some(accepted) = of_networks.get_mut(&id.network) {
                accepted.clusters.push(ClusterResult {
                    cluster: id.cluster,
                    sessions,
                    rate_bps,
                    shadow_price: price * money,
                });
            }
        }
        for placed in &decision.placed {
            let Some((to, _)) = placed.to else { continue };
            if let Some(accepted) = of_networks.get_mut(&to.network) {
                accepted.shares.push(ShareResult {
                    share: placed.place,
                    cluster: to.cluster,
                    bitrate_bps: placed.bitrate.as_bps(),
                    sessions: placed.sessions,
                });
            }
        }
        let told =
            of_networks.into_iter().map(|(network, accepted)| (network, ToNetwork::Accepted(accepted)));
        self.transmits.extend(told);
    }
}
