//! The parties of a world: each network's knowledge and contract, and the clients that the broker
//! counts.
//!
//! Leaves out: the parties' behaviour (`agent`, `broker`). Read [`Parties`] first.

use crate::agent::{Agent, Estimates, Reserve};
use crate::broker::{Broker, Contract, Job, PlaceDemand, Settings, ToNetwork};
use crate::designs::Design;
use crate::messages::Clients;
use crate::optimiser::Optimiser;
use crate::world::{Offer, Place, Site, World};
use anabranch_units::{Instant, PeerId};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A world, and the numbers of its places by name.
#[derive(Clone, Debug)]
pub struct Parties<'a> {
    world: &'a World,
    places: BTreeMap<(String, String), u32>,
}

fn name(place: &Place) -> (String, String) {
    (format!("city {}", place.city), format!("isp {}", place.provider))
}

impl<'a> Parties<'a> {
    /// Creates the parties of a world. Clusters and shares have the world's numbers of clusters and
    /// places.
    pub fn new(world: &'a World) -> Self {
        Self { world, places: world.places().iter().map(name).zip(0..).collect() }
    }
    /// The world.
    pub const fn world(&self) -> &'a World {
        self.world
    }
    /// Knowledge of one network.
    pub const fn own(&self, network: u32) -> NetworkKnowledge<'_> {
        NetworkKnowledge { parties: self, network }
    }
    /// Contract of a network.
    pub fn contract(&self, network: u32) -> Contract {
        let network = &self.world.networks()[network as usize];
        Contract {
            price_per_mbps: network.price_per_mbps,
            capacity_median: network.capacity_median,
            clusters_max: u32::MAX,
            bids_max: u64::MAX,
            ..Contract::default()
        }
    }
    /// Clients of the broker.
    pub fn gathered(&self) -> Vec<PlaceDemand> {
        let places = self.world.places().iter().map(name);
        let mut gathered: Vec<PlaceDemand> =
            places.map(|(location, isp)| PlaceDemand { location, isp, clients: Vec::new() }).collect();
        for group in self.world.groups() {
            let clients = Clients { bitrate_bps: group.bitrate.as_bps(), sessions: group.sessions };
            gathered[group.place as usize].clients.push(clients);
        }
        gathered
    }
}

impl Parties<'_> {
    /// Settings of a broker under this design: a mean client's cost, scaled to 1, weighs as much as
    /// the mean score, times `cost_weight`.
    pub fn settings(&self, design: &Arc<dyn Design>, cost_weight: f64, optimiser: Optimiser) -> Settings {
        Settings {
            score_weight: 1.0 / self.world.score_mean(),
            cost_weight: cost_weight / self.world.cost_mean(),
            optimiser,
            ..Settings::new(Arc::clone(design))
        }
    }
    /// Joins all networks to a broker.
    pub fn join_all(&self, broker: &mut Broker) {
        for number in 0..self.world.networks().len() as u32 {
            broker.handle_joined(PeerId(number), self.contract(number));
        }
    }
    /// Creates an agent for each network.
    pub fn agents(&self, reserve: Reserve) -> Vec<Agent> {
        vec![Agent::new(reserve); self.world.networks().len()]
    }
    /// Exchanges messages between a broker and all networks, without loss or delay, until there is
    /// a job or no message is left.
    pub fn hand_over(
        &self,
        broker: &mut Broker,
        id: PeerId,
        design: &dyn Design,
        agents: &mut [Agent],
    ) -> Option<Job> {
        while let Some((network, message)) = broker.poll_transmit() {
            let (agent, own) = (&mut agents[network.index()], self.own(network.0));
            match message {
                ToNetwork::Call(call) => {
                    broker.handle_bids(network, agent.handle_call(id, design, &own, &call));
                }
                ToNetwork::Proposal(proposal) => {
                    broker.handle_assent(network, &agent.handle_proposal(&own, id, &proposal));
                }
                ToNetwork::Accepted(accepted) => agent.handle_accepted(id, &accepted),
            }
        }
        broker.poll_job()
    }
    /// Exchanges messages and runs jobs until the end of the round.
    pub fn end_round(
        &self,
        broker: &mut Broker,
        now: Instant,
        id: PeerId,
        design: &dyn Design,
        agents: &mut [Agent],
    ) {
        while let Some(job) = self.hand_over(broker, id, design, agents) {
            let answer = job.run();
            broker.handle_answer(now, &job, answer);
        }
    }
}

/// Knowledge of one network of a world.
#[derive(Clone, Debug)]
pub struct NetworkKnowledge<'a> {
    parties: &'a Parties<'a>,
    network: u32,
}

impl NetworkKnowledge<'_> {
    fn place(&self, location: &str, isp: &str) -> Option<u32> {
        self.parties.places.get(&(location.to_owned(), isp.to_owned())).copied()
    }
}

impl Estimates for NetworkKnowledge<'_> {
    fn site(&self, cluster: u32) -> Option<Site> {
        let is_own = self.parties.world.networks()[self.network as usize].clusters.contains(&cluster);
        is_own.then(|| self.parties.world.sites()[cluster as usize])
    }
    fn considered(&self, location: &str, isp: &str) -> Vec<Offer> {
        let place = self.place(location, isp);
        place.map_or_else(Vec::new, |place| self.parties.world.offers(place, self.network).to_vec())
    }
    fn all(&self, location: &str, isp: &str) -> Vec<Offer> {
        let Some(place) = self.place(location, isp) else { return Vec::new() };
        let (scores, own) = (
            self.parties.world.scores(place),
            self.parties.world.networks()[self.network as usize].clusters.clone(),
        );
        let offers = own.map(|cluster| Offer { cluster, score: scores[cluster as usize] });
        offers.filter(|offer| offer.score.is_finite()).collect()
    }
}
