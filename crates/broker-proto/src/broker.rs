//! The broker's side of the decision protocol: rounds on a clock, from clients that are counted to a decision that is accepted.
//!
//! A round calls all networks that are there, takes their bids until all have bid or time is up, decides, asks where the design asks, and says to each
//! what became of its bids. A network that is late, absent or bids nonsense costs nobody else anything: what it does not bid goes to
//! others. To decide takes a while, so it is a [`Job`] that the driver may run elsewhere: meanwhile the last accepted decision stands.
//!
//! Source: section 3.4.1, steps 2 to 7. Differs: where networks are asked (Transactions) there is a limit of attempts, and a round that comes to no
//! agreement changes nothing. Invariants: a round is accepted once, and a later one has a higher number; nothing goes to a network
//! beyond what it bid, or said when it was asked. Leaves out: sockets, where clients are counted, players (the delivery protocol).
//! Contract: one mutation, then [`Broker::poll_transmit`], [`Broker::poll_event`] and [`Broker::poll_job`] to `None`, then
//! [`Broker::poll_timeout`]. Read [`Broker`] and [`Decision`] first.

mod bids;
mod standing;

pub use standing::Standing;

use crate::designs::{Announced, Design};
use crate::limits::PRICE_PER_MBPS_MAX;
use crate::market::{Candidate, Cluster, Group, Market};
use crate::messages::{
    Accepted, Assent, Bids, BidsReply, Call, Clients, ClusterAccepted, ClusterRate, Proposal, Share,
    ShareAccepted,
};
use crate::optimiser::{Answer, Optimiser};
use anabranch_units::{BitRate, Duration, Instant, PeerId};
use bids::Checked;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// What a network and the broker have agreed on.
#[derive(Clone, Debug, PartialEq)]
pub struct Contract {
    /// What a megabit a second costs where the design has no prices of clusters.
    pub price_per_mbps: f64,
    /// What a cluster is taken to send where the design has no capacities of clusters.
    pub capacity_median: BitRate,
    /// The highest price that a bid may have.
    pub price_max_per_mbps: f64,
    /// The most clusters that it may bid.
    pub clusters_max: u32,
    /// The most bids of a round; a bid is a cluster for a share. They take up to [`BID_BYTES`] each
    /// until the round is over.
    pub bids_max: u64,
}

/// Bytes that a bid takes at most, from when it is taken in until the search is over: the bid
/// itself, the market's candidate, its score, and what the search keeps of it.
pub const BID_BYTES: u64 = 256;
/// Bytes that a network's bids of a round take at most, if its contract says nothing else.
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

/// How a broker decides.
#[derive(Clone)]
pub struct Settings {
    /// What networks are told, match and announce.
    pub design: Arc<dyn Design>,
    /// What a point of score is worth.
    pub score_weight: f64,
    /// What a unit of money is worth.
    pub cost_weight: f64,
    /// How often there is a round.
    pub every: Duration,
    /// How long networks have to bid.
    pub bids_within: Duration,
    /// How long they have to answer a proposal.
    pub assents_within: Duration,
    /// How many proposals there may be in a round.
    pub attempts_max: u32,
    /// How it is searched for the best decision.
    pub optimiser: Optimiser,
}

impl Settings {
    /// This design, where a point of score is worth as much as a unit of money; a round a minute.
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

/// Clients of a place, as they are counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gathered {
    /// Their city.
    pub location: String,
    /// Their internet provider.
    pub isp: String,
    /// How many, by bitrate.
    pub clients: Vec<Clients>,
}

/// To a network.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum ToNetwork {
    /// A round begins. All networks get the same.
    Call(Arc<Call>),
    /// So much would go to its clusters.
    Proposal(Proposal),
    /// What became of its bids.
    Accepted(Accepted),
}

/// What came about.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Event {
    /// A round was accepted.
    Accepted(Arc<Decision>),
    /// A round changed nothing.
    Void {
        /// Which.
        round: u64,
        /// Why.
        why: Why,
    },
}

/// Why a round changed nothing.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Why {
    /// No network has bid.
    NoBids,
    /// Networks did not agree within the limit of attempts.
    NoAgreement,
}

/// A cluster of a network.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClusterId {
    /// Whose.
    pub network: PeerId,
    /// The network's number for it.
    pub cluster: u32,
}

/// Some clients, and where they go.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Placed {
    /// The number of their place, in [`Decision::places`].
    pub place: u32,
    /// What each of them gets.
    pub bitrate: BitRate,
    /// How many.
    pub sessions: u32,
    /// To which cluster, and the score that was bid for it; `None` if no cluster that was bid for them has room left.
    pub to: Option<(ClusterId, f64)>,
}

/// What was decided in a round.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// Which round.
    pub round: u64,
    /// Cities and providers.
    pub places: Vec<(String, String)>,
    /// All clients, place by place.
    pub placed: Vec<Placed>,
    /// What a megabit a second of each cluster in use costs.
    pub prices_per_mbps: BTreeMap<ClusterId, f64>,
    /// By how much the best decision may be better at the most.
    pub gap_share: f64,
    /// What is thought of networks, that of those that are away, too: whoever goes on from here need not learn it anew.
    pub standings: BTreeMap<PeerId, Standing>,
}

/// What is to be searched for the best decision.
#[derive(Clone, Debug)]
pub struct Job {
    /// Which job.
    number: u64,
    /// What there is to decide about.
    pub market: Arc<Market>,
    prices: Vec<f64>,
    optimiser: Optimiser,
}

impl Job {
    /// Searches.
    ///
    /// Cost: tenths of a second for thirty thousand clients.
    pub fn run(&self) -> Answer {
        let prices = (!self.prices.is_empty()).then_some(&*self.prices);
        self.optimiser.optimise(&self.market, prices)
    }
}

/// A network, as the broker knows it.
#[derive(Debug)]
struct Known {
    contract: Contract,
    is_there: bool,
    /// In the present round: whether it was called, and what it has bid.
    is_called: bool,
    bids: Option<Checked>,
}

/// Where a round is.
#[derive(Debug)]
enum Stage {
    /// There is none.
    Between,
    Bidding {
        until: Instant,
    },
    /// A job is out.
    Deciding,
    Asking {
        until: Instant,
        attempt: u32,
        /// Those who have not answered.
        left: BTreeSet<PeerId>,
        is_refused: bool,
        answer: Answer,
    },
}

/// What a round decides about.
#[derive(Debug)]
struct Table {
    market: Arc<Market>,
    /// The market's clusters.
    clusters: Vec<ClusterId>,
    /// What a megabit of each costs.
    prices_per_mbps: Vec<f64>,
    /// By place: its candidates' scores, as they were bid.
    scores: Vec<Vec<f64>>,
    /// What one unit of the market's cost is in money.
    unit: f64,
}

/// The machine.
#[derive(Debug)]
pub struct Broker {
    settings: Settings,
    networks: BTreeMap<PeerId, Known>,
    /// What is thought of those that have joined, now or before the last accepted decision.
    standings: BTreeMap<PeerId, Standing>,
    /// Clients as they were counted last, and those whom the present round places.
    gathered: Arc<[Gathered]>,
    placing: Arc<[Gathered]>,
    round: u64,
    next_at: Instant,
    stage: Stage,
    call: Option<Arc<Call>>,
    /// In the present round: what networks have said that clusters can send at the most.
    limits: BTreeMap<ClusterId, u64>,
    attempt: u32,
    table: Option<Table>,
    /// The prices that the last search found, by cluster.
    shadow_prices: BTreeMap<ClusterId, f64>,
    accepted: Option<Arc<Decision>>,
    transmits: VecDeque<(PeerId, ToNetwork)>,
    events: VecDeque<Event>,
    /// Jobs so far, and the last one until it is taken.
    jobs: u64,
    job: Option<Job>,
}

impl Broker {
    /// A broker whose first round begins now.
    pub fn new(now: Instant, settings: Settings) -> Self {
        Self {
            settings,
            networks: BTreeMap::new(),
            standings: BTreeMap::new(),
            gathered: Arc::new([]),
            placing: Arc::new([]),
            round: 0,
            next_at: now,
            stage: Stage::Between,
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

    /// The same after a restart, with the last round that was accepted: the next has a higher number, and networks stand as they stood then.
    #[must_use]
    pub fn with_accepted(mut self, decision: Decision) -> Self {
        self.round = self.round.max(decision.round);
        self.standings.clone_from(&decision.standings);
        self.accepted = Some(Arc::new(decision));
        self
    }

    /// The same, with rounds of higher numbers than this one: another broker, or this one before a restart, may have called so many.
    ///
    /// Bids are for a round by its number, so that no number may be called twice. A driver has the time of day, or an epoch that a store counts.
    #[must_use]
    pub fn with_rounds_after(mut self, round: u64) -> Self {
        self.round = self.round.max(round);
        self
    }

    /// The last round that was accepted.
    pub const fn accepted(&self) -> Option<&Arc<Decision>> {
        self.accepted.as_ref()
    }
    /// What is thought of a network; none if it is not known.
    pub fn standing(&self, network: PeerId) -> Option<Standing> {
        self.standings.get(&network).copied()
    }

    /// A network's agent is there: it takes part from the next round on. What is thought of it stays.
    pub fn handle_joined(&mut self, network: PeerId, contract: Contract) {
        let known = self.networks.entry(network).or_insert_with(|| Known {
            contract: contract.clone(),
            is_there: true,
            is_called: false,
            bids: None,
        });
        (known.contract, known.is_there) = (contract, true);
        self.standings.entry(network).or_default();
    }

    /// A network's agent has gone. What it has bid in this round does not count any more.
    pub fn handle_left(&mut self, network: PeerId) {
        let Some(known) = self.networks.get_mut(&network) else { return };
        let has_bid = known.bids.take().is_some_and(|bids| bids.is_all);
        let was_called = std::mem::take(&mut known.is_called);
        known.is_there = false;
        if was_called && !has_bid && matches!(self.stage, Stage::Bidding { .. }) {
            self.standings.entry(network).or_default().note_missed();
        }
        match &mut self.stage {
            Stage::Bidding { .. } => self.close_if_all_have_bid(),
            // What is proposed, or searched for, has its clusters, whatever it has answered.
            Stage::Asking { left, is_refused, .. } => {
                left.remove(&network);
                *is_refused |= has_bid;
                self.end_asking();
            }
            Stage::Deciding => self.decide(),
            Stage::Between => {}
        }
    }

    /// The clients that there are, by place: the next round places them.
    pub fn handle_gathered(&mut self, mut gathered: Vec<Gathered>) {
        gathered.retain(|of| of.clients.iter().any(|some| some.sessions > 0 && some.bitrate_bps > 0));
        self.gathered = gathered.into();
    }

    /// A network bids.
    pub fn handle_bids(&mut self, network: PeerId, bids: Bids) -> BidsReply {
        let count = bids.shares.iter().map(|of| of.clusters.len() as u64).sum();
        let refused = |why: String| BidsReply { taken: 0, refused: count, reasons: vec![why] };
        let shares = self.call.as_ref().map_or(0, |call| call.shares.len() as u32);
        let round = self.round;
        let is_open = matches!(self.stage, Stage::Bidding { .. }) && bids.round == round;
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

    /// A network answers a proposal.
    pub fn handle_assent(&mut self, network: PeerId, assent: &Assent) {
        let Stage::Asking { attempt, left, .. } = &self.stage else { return };
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

    /// Clients have measured a score of a network that had bid another one for them.
    ///
    /// Values that are no measurement change nothing.
    pub fn handle_measured(&mut self, network: PeerId, bid: f64, measured: f64) {
        let ratio = measured / bid;
        if let Some(standing) = self.standings.get_mut(&network).filter(|_| ratio.is_finite() && ratio >= 0.0)
        {
            standing.note_score(ratio);
        }
    }

    /// A network's cluster has sent a share of what clients who were placed on it wanted.
    ///
    /// Values that are no share change nothing.
    pub fn handle_delivered(&mut self, network: PeerId, share: f64) {
        if let Some(standing) = self.standings.get_mut(&network).filter(|_| (0.0..=1.0).contains(&share)) {
            standing.note_delivered(share);
        }
    }

    /// A job has found this.
    pub fn handle_answer(&mut self, now: Instant, job: &Job, answer: Answer) {
        if job.number != self.jobs || !matches!(self.stage, Stage::Deciding) {
            return;
        }
        // A job of another machine may have the same number.
        let Some(table) = self.table.as_ref().filter(|table| Arc::ptr_eq(&table.market, &job.market)) else {
            return;
        };
        self.shadow_prices = table.clusters.iter().copied().zip(answer.prices.iter().copied()).collect();
        if self.settings.design.asks() { self.ask(now, answer) } else { self.accept(&answer) }
    }

    /// Time has come.
    pub fn handle_timeout(&mut self, now: Instant) {
        match &self.stage {
            Stage::Between if now >= self.next_at => self.begin(now),
            Stage::Bidding { until } if now >= *until => self.close(),
            Stage::Asking { until, left, .. } if now >= *until => {
                // Who says nothing agrees to nothing.
                for network in left.clone() {
                    self.forget_bids(network);
                    self.note_answer(network, true);
                }
            }
            _ => {}
        }
    }

    /// What to send next.
    pub fn poll_transmit(&mut self) -> Option<(PeerId, ToNetwork)> {
        self.transmits.pop_front()
    }
    /// What came about.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }
    /// What is to be run, and its answer given to [`Broker::handle_answer`].
    pub const fn poll_job(&mut self) -> Option<Job> {
        self.job.take()
    }
    /// When [`Broker::handle_timeout`] is due.
    pub const fn poll_timeout(&self) -> Option<Instant> {
        match &self.stage {
            Stage::Between => Some(self.next_at),
            Stage::Bidding { until } | Stage::Asking { until, .. } => Some(*until),
            Stage::Deciding => None,
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
        self.stage = Stage::Bidding { until: now + self.settings.bids_within };
    }

    fn close_if_all_have_bid(&mut self) {
        let has_bid = |known: &Known| known.bids.as_ref().is_some_and(|bids| bids.is_all);
        if self.networks.values().all(|known| has_bid(known) || !known.is_called) {
            self.close();
        }
    }

    /// No bids are taken any more.
    fn close(&mut self) {
        for (network, known) in self.networks.iter_mut().filter(|(_, known)| known.is_called) {
            // What has come of bids that go on is half of what was meant.
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

    /// Has the best decision searched for, with what was bid.
    fn decide(&mut self) {
        let Some(table) = self.lay_table() else { return self.end(Why::NoBids) };
        let prices = table.clusters.iter().map(|cluster| self.shadow_prices.get(cluster).copied());
        let known: Vec<Option<f64>> = prices.collect();
        // A cluster that is new has no price: with none at all the search begins from the beginning.
        let prices = if known.iter().all(Option::is_none) {
            Vec::new()
        } else {
            known.into_iter().map(Option::unwrap_or_default).collect()
        };
        let market = Arc::clone(&table.market);
        self.jobs += 1;
        self.job = Some(Job { number: self.jobs, market, prices, optimiser: self.settings.optimiser });
        self.table = Some(table);
        self.stage = Stage::Deciding;
    }

    /// The market of all bids that count, none if there are none.
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

    /// What a cluster can be given: what is said of it as far as that is believed, and no more than its network says when asked.
    fn capacity(&self, known: &Known, standing: Standing, id: ClusterId, said: &Announced) -> BitRate {
        let said = said.capacity.unwrap_or(known.contract.capacity_median).as_bps();
        let believed =
            if standing.capacity_trust < 1.0 { (said as f64 * standing.capacity_trust) as u64 } else { said };
        BitRate::bps(believed.min(self.limits.get(&id).copied().unwrap_or(u64::MAX)))
    }

    /// What an answer has each cluster send, by its number in the market, in bits a second; and how many clients.
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

    /// Asks networks whether they can send what an answer would have them send.
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
        self.stage = Stage::Asking { until, attempt: self.attempt, left, is_refused: false, answer };
        self.end_asking();
    }

    /// A network has answered, or will not.
    fn note_answer(&mut self, network: PeerId, refuses: bool) {
        if let Stage::Asking { left, is_refused, .. } = &mut self.stage
            && left.remove(&network)
        {
            *is_refused |= refuses;
            self.end_asking();
        }
    }

    fn end_asking(&mut self) {
        let Stage::Asking { left, is_refused, answer, .. } = &mut self.stage else { return };
        if !left.is_empty() {
            return;
        }
        if !*is_refused {
            let answer = answer.clone();
            self.accept(&answer);
        } else if self.attempt < self.settings.attempts_max {
            self.decide();
        } else {
            self.end(Why::NoAgreement);
        }
    }

    /// The round changes nothing.
    fn end(&mut self, why: Why) {
        self.events.push_back(Event::Void { round: self.round, why });
        self.stage = Stage::Between;
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
            Placed { place: group.place, bitrate: group.bitrate, sessions: placement.sessions, to }
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
        self.stage = Stage::Between;
    }

    /// Says to each network that was called what became of its bids.
    fn tell(&mut self, table: &Table, answer: &Answer, sent: &[(u64, u64)], decision: &Decision) {
        let money = if table.unit > 0.0 { 1.0 / table.unit } else { 0.0 };
        let mut of_networks: BTreeMap<PeerId, Accepted> = self
            .networks
            .iter()
            .filter(|(_, known)| known.is_called)
            .map(|(network, _)| {
                (*network, Accepted { round: self.round, clusters: Vec::new(), shares: Vec::new() })
            })
            .collect();
        let clusters = table.clusters.iter().zip(sent).zip(&answer.prices);
        for ((id, &(rate_bps, sessions)), price) in clusters {
            if let Some(accepted) = of_networks.get_mut(&id.network) {
                accepted.clusters.push(ClusterAccepted {
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
                accepted.shares.push(ShareAccepted {
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
