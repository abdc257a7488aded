//! The true state of a world: networks, clusters, clients, costs, scores and distances. No party of
//! the decision protocol knows all of it.
//!
//! Invariants: an offer's cluster belongs to the network it is listed for; a network's offers for a
//! place are sorted by cost. Leaves out: generation (`generator`), and announcements (`designs`).
//! Read [`World`] first.

use crate::draws::scores;
use crate::market::Group;
use anabranch_units::{BitRate, Seed};
use std::collections::BTreeMap;
use std::ops::Range;

/// A city: its location and its country.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct City {
    /// Coordinates on a plane, in km.
    pub at_km: (f64, f64),
    /// Number of the country.
    pub country: u32,
}

impl City {
    /// Distance to another city, in km.
    pub fn distance_km(&self, other: &Self) -> f64 {
        (self.at_km.0 - other.at_km.0).hypot(self.at_km.1 - other.at_km.1)
    }
}

/// A cluster, as its network knows it.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Site {
    /// Id of the network.
    pub network: u32,
    /// Number of the city.
    pub city: u32,
    /// The network's cost per Mbit/s there: bandwidth and presence.
    pub cost_per_mbps: f64,
    /// Rate that the cluster can send.
    pub capacity: BitRate,
    /// Traffic to other clients than the broker's.
    pub background: BitRate,
}

impl Site {
    /// Capacity left for the broker's clients.
    pub const fn room(&self) -> BitRate {
        BitRate::bps(self.capacity.as_bps().saturating_sub(self.background.as_bps()))
    }
}

/// A content network, with its contract.
#[derive(Clone, Debug, PartialEq)]
pub struct Network {
    /// Numbers of its clusters.
    pub clusters: Range<u32>,
    /// Contract price per Mbit/s, the same for all clusters.
    pub price_per_mbps: f64,
    /// Median of the clusters' capacities, which the broker assumes for each cluster if the design
    /// announces none.
    pub capacity_median: BitRate,
}

/// Clients of one city and one internet provider.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Number of the city.
    pub city: u32,
    /// Number of the provider.
    pub provider: u32,
    /// Seed of the place's scores.
    pub(crate) draw: u64,
}

/// A cluster that may serve a place, with its score.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Offer {
    /// Number of the cluster.
    pub cluster: u32,
    /// The thesis's score, from latency and loss: lower is better.
    pub score: f64,
}

/// Maximum score of a considered cluster, as a multiple of the best score.
const SCORE_WITHIN: f64 = 2.0;
/// Minimum number of considered clusters.
const OFFERS_LEAST: usize = 2;

/// Selects the clusters that a network considers for a place: the clusters within `SCORE_WITHIN`
/// times the best score, and at least the best two. The result is sorted by cost.
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

/// The complete state of a world.
#[derive(Clone, Debug)]
pub struct World {
    pub(crate) cities: Vec<City>,
    pub(crate) sites: Vec<Site>,
    pub(crate) networks: Vec<Network>,
    pub(crate) places: Vec<Place>,
    pub(crate) groups: Vec<Group>,
    /// Offers of all networks for all places, by place and then by network.
    pub(crate) offers: Vec<Offer>,
    /// Index of the first offer of each place and network, and at the end the number of all offers.
    pub(crate) starts: Vec<u32>,
    pub(crate) seed: Seed,
    /// Measured scores of clusters for each place; `None` if scores are drawn.
    pub(crate) measured: Option<Vec<BTreeMap<u32, f64>>>,
}

/// Parts of a world that is not generated.
#[derive(Clone, Debug)]
pub struct WorldParts {
    /// Cities.
    pub cities: Vec<City>,
    /// Clusters, network after network; [`Site::network`] and [`Site::city`] are indices into these
    /// lists.
    pub sites: Vec<Site>,
    /// Networks, with consecutive cluster numbers; medians of capacities are computed.
    pub networks: Vec<Network>,
    /// City and provider number of each place.
    pub places: Vec<(u32, u32)>,
    /// Clients, by place.
    pub groups: Vec<Group>,
    /// Scores of clusters for each place. A cluster without a score does not serve the place. With
    /// `None`, scores are drawn by distance.
    pub scores: Option<Vec<BTreeMap<u32, f64>>>,
    /// Seed of drawn values.
    pub seed: Seed,
}

impl World {
    /// Creates a world from its parts.
    ///
    /// Panics: if a number is out of range of its list.
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
    /// Places with clients of the broker.
    pub fn places(&self) -> &[Place] {
        &self.places
    }
    /// The broker's clients; their places are indices into [`World::places`].
    pub fn groups(&self) -> &[Group] {
        &self.groups
    }
    /// Clusters that a network considers for a place ([`considered`]), cheapest first.
    pub fn offers(&self, place: u32, network: u32) -> &[Offer] {
        let at = place as usize * self.networks.len() + network as usize;
        &self.offers[self.starts[at] as usize..self.starts[at + 1] as usize]
    }
    /// Score of every cluster for a place; infinite for a cluster that does not serve the place.
    ///
    /// Cost: draws each score, unless scores were measured.
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
    /// Distance of a place's clients from a cluster, in km.
    pub fn distance_km(&self, place: u32, cluster: u32) -> f64 {
        let city = |number: u32| &self.cities[number as usize];
        city(self.places[place as usize].city).distance_km(city(self.sites[cluster as usize].city))
    }
    /// Returns true if no cluster is considered for any place.
    pub const fn serves_nobody(&self) -> bool {
        self.offers.is_empty()
    }
    /// Mean score of all offers.
    pub fn score_mean(&self) -> f64 {
        mean(self.offers.iter().map(|offer| offer.score))
    }
    /// Mean cost of serving a client: the mean cost of all clusters per Mbit/s, times the mean
    /// bitrate.
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
