//! What is really so: networks and their clusters, clients, costs, scores and distances. No party of the decision protocol knows all of it.
//!
//! Invariants: an offer's cluster belongs to the network that it is listed for; a network's offers for a place are sorted, the cheapest first.
//! Leaves out: how a world is drawn (`generator`), what is told of it (`designs`). Read [`World`] first.

use crate::draws::scores;
use crate::market::Group;
use anabranch_units::{BitRate, Seed};
use std::collections::BTreeMap;
use std::ops::Range;

/// A city: where it is, in km, and its country's number.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct City {
    /// Where it is on a plane.
    pub at_km: (f64, f64),
    /// Its country, by number.
    pub country: u32,
}

impl City {
    /// How far the other one is, in km.
    pub fn distance_km(&self, other: &Self) -> f64 {
        (self.at_km.0 - other.at_km.0).hypot(self.at_km.1 - other.at_km.1)
    }
}

/// A group of servers, as its network knows it.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Site {
    /// Whose, by number.
    pub network: u32,
    /// Where, by number.
    pub city: u32,
    /// What a megabit a second costs its network there: bandwidth and being there.
    pub cost_per_mbps: f64,
    /// What it can send.
    pub capacity: BitRate,
    /// What it sends to others than the broker's clients.
    pub background: BitRate,
}

impl Site {
    /// What is left of it for the broker's clients.
    pub const fn room(&self) -> BitRate {
        BitRate::bps(self.capacity.as_bps().saturating_sub(self.background.as_bps()))
    }
}

/// A content network, as its contract has it.
#[derive(Clone, Debug, PartialEq)]
pub struct Network {
    /// Its clusters' numbers.
    pub clusters: Range<u32>,
    /// What a megabit a second costs by its contract, wherever it comes from.
    pub price_per_mbps: f64,
    /// The median of its clusters' capacities: where no capacity is told, the broker takes each of them to have this.
    pub capacity_median: BitRate,
}

/// Clients of one city and one internet provider.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Their city, by number.
    pub city: u32,
    /// Their provider, by number.
    pub provider: u32,
    /// What its scores are drawn from.
    pub(crate) draw: u64,
}

/// A cluster that may serve a place, and how badly it does.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Offer {
    /// Which, by number.
    pub cluster: u32,
    /// The thesis's score, from latency and loss: less is better.
    pub score: f64,
}

/// A network considers clusters with so many times the best score, and so many at least.
const SCORE_WITHIN: f64 = 2.0;
const OFFERS_LEAST: usize = 2;

/// Of all clusters of a network, each with its score for a place, those that it considers for it: the ones with at most twice the best score, or the
/// best two. The cheapest come first.
///
/// Source: section 3.5.1, *CDN matching algorithm and bidding*.
pub fn considered(mut all: Vec<Offer>, cost_per_mbps: impl Fn(u32) -> f64) -> Vec<Offer> {
    all.sort_by(|a, b| a.score.total_cmp(&b.score));
    if let Some(best) = all.first().map(|one| one.score) {
        all.truncate(all.partition_point(|one| one.score <= SCORE_WITHIN * best).max(OFFERS_LEAST));
        all.sort_by(|a, b| cost_per_mbps(a.cluster).total_cmp(&cost_per_mbps(b.cluster)));
    }
    all
}

/// All there is.
#[derive(Clone, Debug)]
pub struct World {
    pub(crate) cities: Vec<City>,
    pub(crate) sites: Vec<Site>,
    pub(crate) networks: Vec<Network>,
    pub(crate) places: Vec<Place>,
    pub(crate) groups: Vec<Group>,
    /// Offers of all networks for all places: place by place, within it network by network; where each begins, and one end more.
    pub(crate) offers: Vec<Offer>,
    pub(crate) starts: Vec<u32>,
    pub(crate) seed: Seed,
    /// By place: clusters' scores as they were measured. Without, they are drawn.
    pub(crate) measured: Option<Vec<BTreeMap<u32, f64>>>,
}

/// What a world is made of that is not drawn.
#[derive(Clone, Debug)]
pub struct WorldParts {
    /// Cities.
    pub cities: Vec<City>,
    /// Clusters, network after network; [`Site::network`] and [`Site::city`] are numbers in these lists.
    pub sites: Vec<Site>,
    /// Networks; their clusters' numbers follow each other, and their capacities' medians are reckoned.
    pub networks: Vec<Network>,
    /// Places: cities' and providers' numbers.
    pub places: Vec<(u32, u32)>,
    /// Clients, by place.
    pub groups: Vec<Group>,
    /// By place: clusters' scores. One that is not there serves the place for nobody. Without, scores are drawn by distance.
    pub scores: Option<Vec<BTreeMap<u32, f64>>>,
    /// Of what is drawn.
    pub seed: Seed,
}

impl World {
    /// A world of these parts.
    ///
    /// Panics: for numbers that are none of these lists.
    pub fn new(parts: WorldParts) -> Self {
        let WorldParts { cities, sites, mut networks, places, groups, scores, seed } = parts;
        for network in &mut networks {
            let own = &sites[network.clusters.start as usize..network.clusters.end as usize];
            let mut capacities: Vec<BitRate> = own.iter().map(|site| site.capacity).collect();
            capacities.sort_unstable();
            network.capacity_median =
                capacities.get(capacities.len() / 2).copied().unwrap_or(BitRate::bps(0));
        }
        let place = |(draw, (city, provider)): (u64, (u32, u32))| Place { city, provider, draw };
        let places = (0..).zip(places).map(place).collect();
        let (offers, starts) = (Vec::new(), Vec::new());
        let mut world =
            Self { cities, sites, networks, places, groups, offers, starts, seed, measured: scores };
        for place in 0..world.places.len() as u32 {
            let scores = world.scores(place);
            for network in &world.networks {
                world.starts.push(world.offers.len() as u32);
                let own = network
                    .clusters
                    .clone()
                    .map(|cluster| Offer { cluster, score: scores[cluster as usize] });
                let served = own.filter(|offer| offer.score.is_finite()).collect();
                let cost = |cluster: u32| world.sites[cluster as usize].cost_per_mbps;
                world.offers.extend(considered(served, cost));
            }
        }
        world.starts.push(world.offers.len() as u32);
        world
    }

    /// All cities.
    pub fn cities(&self) -> &[City] {
        &self.cities
    }
    /// All clusters, network after network.
    pub fn sites(&self) -> &[Site] {
        &self.sites
    }
    /// All networks.
    pub fn networks(&self) -> &[Network] {
        &self.networks
    }
    /// Where the broker has clients.
    pub fn places(&self) -> &[Place] {
        &self.places
    }
    /// The broker's clients; their places are numbers of [`World::places`].
    pub fn groups(&self) -> &[Group] {
        &self.groups
    }
    /// The clusters that a network considers for a place ([`considered`]), the cheapest first.
    pub fn offers(&self, place: u32, network: u32) -> &[Offer] {
        let at = place as usize * self.networks.len() + network as usize;
        &self.offers[self.starts[at] as usize..self.starts[at + 1] as usize]
    }
    /// Every cluster's score for a place, by number; infinite for one that does not serve it.
    ///
    /// Cost: draws each, where they were not measured.
    pub fn scores(&self, place: u32) -> Vec<f64> {
        if let Some(measured) = &self.measured {
            let of = &measured[place as usize];
            return (0..self.sites.len() as u32)
                .map(|cluster| of.get(&cluster).copied().unwrap_or(f64::INFINITY))
                .collect();
        }
        let distances = (0..self.sites.len() as u32).map(|cluster| self.distance_km(place, cluster));
        scores(distances, self.places[place as usize].draw, self.seed)
    }
    /// How far a place's clients are from a cluster, in km.
    pub fn distance_km(&self, place: u32, cluster: u32) -> f64 {
        let city = |number: u32| &self.cities[number as usize];
        city(self.places[place as usize].city).distance_km(city(self.sites[cluster as usize].city))
    }
    /// Whether no cluster is considered for any place.
    pub const fn serves_nobody(&self) -> bool {
        self.offers.is_empty()
    }
    /// The mean of all offers' scores.
    pub fn score_mean(&self) -> f64 {
        mean(self.offers.iter().map(|offer| offer.score))
    }
    /// What serving a client costs in the mean: the mean cluster's cost, for the mean bitrate.
    pub fn cost_mean(&self) -> f64 {
        let (mbps, sessions) = self.groups.iter().fold((0.0, 0.0), |(mbps, sessions), group| {
            let count = f64::from(group.sessions);
            (count.mul_add(crate::market::mbps(group.bitrate), mbps), sessions + count)
        });
        mean(self.sites.iter().map(|site| site.cost_per_mbps)) * mbps / f64::max(sessions, 1.0)
    }
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (count, sum) = values.fold((0.0, 0.0), |(count, sum), value| (count + 1.0, sum + value));
    sum / f64::max(count, 1.0)
}
