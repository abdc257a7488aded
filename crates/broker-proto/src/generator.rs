//! Worlds drawn by the rules of the thesis: networks, clusters, clients, costs and scores.
//!
//! The thesis's traces are not public. Fewer clients here have alternative clusters than in its
//! Table 3.1.
//!
//! Source: the thesis, section 3.5.1. Costs of countries differ by up to thirty times; within a
//! country costs are normally distributed. A cluster's fixed cost falls with the logarithm of the
//! number of clusters in its city. A cluster's capacity is twice the traffic that its network would
//! send from it if offered all clients; a cluster without such traffic shares its nearest
//! neighbour's. Other customers of the networks have three times as many clients as the broker. A
//! contract's price is the mean cost of the traffic if the network were offered all clients.
//!
//! Choices where the thesis is silent: countries are spread over 15,000 by 8,000 km and cities
//! around their centres. Sizes of cities, countries and internet providers follow power laws;
//! bitrates follow [`LADDER`]. A score is a round trip by distance, with a lognormal factor of
//! 0.25. Other customers' clients pick a network at random, and there the cluster that the network
//! would choose.
//!
//! Read [`WorldShape`] first.

use crate::draws::{Draws, scores};
use crate::market::Group;
use crate::world::{City, Network, Offer, Place, Site, World, considered};
use anabranch_media::bitrates::{Rung, draw_bitrate};
use anabranch_units::{BitRate, Seed};
use std::collections::{BTreeMap, BTreeSet};

/// Parameters of a world.
#[derive(Clone, Debug, PartialEq)]
pub struct WorldShape {
    /// Number of clusters of each content network; the thesis has one highly distributed network
    /// and thirteen small ones.
    pub networks: Vec<usize>,
    /// Number of further networks with one cluster each, in cities that already have clusters.
    pub city_networks: usize,
    /// Number of clients that the broker places.
    pub sessions: usize,
    /// Number of countries.
    pub countries: usize,
    /// Number of cities.
    pub cities: usize,
    /// Number of internet providers in each city.
    pub providers: usize,
    /// Factor on all capacities; the thesis has 1.
    pub capacity: f64,
}

impl Default for WorldShape {
    fn default() -> Self {
        let mut networks = vec![400, 12, 16];
        networks.extend((0..11).map(|n| 15 + 7 * n));
        Self {
            networks,
            city_networks: 0,
            sessions: 33_400,
            countries: 20,
            cities: 2_500,
            providers: 60,
            capacity: 1.0,
        }
    }
}

/// Ladder of the clients' bitrates. Most clients have the lowest or the highest bitrate.
///
/// Source: VDX, section 3.3.1; viewers in percent.
const LADDER: [Rung; 10] = [
    rung(235, 28),
    rung(375, 8),
    rung(560, 6),
    rung(750, 6),
    rung(1_050, 5),
    rung(1_750, 5),
    rung(2_350, 5),
    rung(3_000, 6),
    rung(4_300, 6),
    rung(5_800, 25),
];

const fn rung(kbps: u64, viewers: u64) -> Rung {
    Rung { bitrate: BitRate::bps(1_000 * kbps), viewers }
}

/// Number of clients of other customers for each of the broker's clients.
const BACKGROUND: usize = 3;
/// Capacity of a cluster, as a multiple of the traffic that its network would send from it if
/// offered all clients.
const CAPACITY: f64 = 2.0;

impl Draws {
    fn bitrate(&mut self) -> BitRate {
        draw_bitrate(&LADDER, &mut self.0)
    }
}

/// Cumulative weights of the numbers from 1 on, which fall by a power law.
fn power_law(count: usize, power: f64) -> Vec<f64> {
    let mut sum = 0.0;
    (1..=count)
        .map(|n| {
            sum += (n as f64).powf(-power);
            sum
        })
        .collect()
}

/// Draws cities, and the relative cost of a Mbit/s in each country.
fn land(shape: &WorldShape, draws: &mut Draws) -> (Vec<City>, Vec<f64>) {
    let countries: Vec<((f64, f64), f64)> = (0..shape.countries)
        .map(|_| {
            let at = (15_000.0 * draws.0.unit_f64(), 8_000.0 * draws.0.unit_f64());
            (at, draws.normal().exp().clamp(0.2, 6.0))
        })
        .collect();
    let by_size = power_law(shape.countries, 1.0);
    let city = |_| {
        let country = draws.weighted(&by_size);
        let (x, y) = countries[country].0;
        let at_km = (700.0f64.mul_add(draws.normal(), x), 700.0f64.mul_add(draws.normal(), y));
        City { at_km, country: country as u32 }
    };
    ((0..shape.cities).map(city).collect(), countries.iter().map(|(_, cost)| *cost).collect())
}

/// Draws clusters with costs and without capacities, no two of a network in one city, and the
/// clusters of each network.
fn sites(shape: &WorldShape, cities: &[City], costs: &[f64], draws: &mut Draws) -> (Vec<Site>, Vec<Network>) {
    let by_clusters = power_law(shape.cities, 0.5);
    let nothing = BitRate::bps(0);
    let (mut sites, mut networks) = (Vec::new(), Vec::new());
    let mut add = |network: Vec<usize>| {
        let first = sites.len() as u32;
        sites.extend(network.into_iter().map(|city| Site {
            network: networks.len() as u32,
            city: city as u32,
            cost_per_mbps: 0.0,
            capacity: nothing,
            background: nothing,
        }));
        networks.push(Network {
            clusters: first..sites.len() as u32,
            price_per_mbps: 0.0,
            capacity_median: nothing,
        });
    };
    let mut all = Vec::new();
    for count in &shape.networks {
        let mut taken = BTreeSet::new();
        let mut own = Vec::new();
        while own.len() < (*count).min(shape.cities) {
            let city = draws.weighted(&by_clusters);
            if taken.insert(city) {
                own.push(city);
            }
        }
        all.extend(&own);
        add(own);
    }
    for _ in 0..shape.city_networks {
        add(vec![all[draws.0.below(all.len() as u64) as usize]]);
    }
    let mut there: BTreeMap<u32, f64> = BTreeMap::new();
    sites.iter().for_each(|site| *there.entry(site.city).or_default() += 1.0);
    for site in &mut sites {
        let transit = 0.25f64.mul_add(draws.normal(), 1.0).clamp(0.3, 2.0);
        let being_there = 0.5 / (1.0 + there[&site.city].ln());
        site.cost_per_mbps = costs[cities[site.city as usize].country as usize] * (transit + being_there);
    }
    (sites, networks)
}

/// Appends the clusters that a network considers, cheapest first.
fn consider(network: &Network, sites: &[Site], scores: &[f64], offers: &mut Vec<Offer>) {
    let all = network.clusters.clone().map(|cluster| Offer { cluster, score: scores[cluster as usize] });
    offers.extend(considered(all.collect(), |cluster| sites[cluster as usize].cost_per_mbps));
}

/// Clients of one city and internet provider.
#[derive(Default)]
struct Viewers {
    /// Number of the broker's clients of each bitrate.
    ours: BTreeMap<BitRate, u32>,
    all_bps: f64,
    background_bps: BTreeMap<usize, f64>,
}

fn viewers(shape: &WorldShape, networks: usize, draws: &mut Draws) -> BTreeMap<(usize, usize), Viewers> {
    let (by_viewers, by_provider) = (power_law(shape.cities, 1.0), power_law(shape.providers, 1.6));
    let mut places: BTreeMap<(usize, usize), Viewers> = BTreeMap::new();
    for number in 0..shape.sessions * (1 + BACKGROUND) {
        let at = (draws.weighted(&by_viewers), draws.weighted(&by_provider));
        let bitrate = draws.bitrate();
        let place = places.entry(at).or_default();
        place.all_bps += bitrate.as_bps() as f64;
        if number < shape.sessions {
            *place.ours.entry(bitrate).or_default() += 1;
        } else {
            let network = draws.0.below(networks as u64) as usize;
            *place.background_bps.entry(network).or_default() += bitrate.as_bps() as f64;
        }
    }
    places
}

/// Generates the world of this shape from a seed.
pub fn generate(shape: &WorldShape, seed: Seed) -> World {
    let draws = |name| Draws(seed.stream(name, 0));
    let (cities, costs) = land(shape, &mut draws("land"));
    let (mut sites, mut networks) = sites(shape, &cities, &costs, &mut draws("clusters"));
    let viewers = viewers(shape, networks.len(), &mut draws("viewers"));
    let (mut places, mut groups) = (Vec::new(), Vec::new());
    let (mut offers, mut starts) = (Vec::new(), Vec::new());
    let mut wanted_bps = vec![0.0; sites.len()];
    let mut background_bps = vec![0.0; sites.len()];
    for (draw, ((city, provider), of)) in (0..).zip(&viewers) {
        let distances = sites.iter().map(|site| cities[*city].distance_km(&cities[site.city as usize]));
        let scores = scores(distances, draw, seed);
        let first = offers.len();
        for (number, network) in networks.iter().enumerate() {
            starts.push(offers.len() as u32);
            consider(network, &sites, &scores, &mut offers);
            let start = starts[starts.len() - 1] as usize;
            if let Some(chosen) = offers.get(start) {
                wanted_bps[chosen.cluster as usize] += of.all_bps;
                background_bps[chosen.cluster as usize] +=
                    of.background_bps.get(&number).copied().unwrap_or_default();
            }
        }
        if of.ours.is_empty() {
            offers.truncate(first);
            starts.truncate(starts.len() - networks.len());
            continue;
        }
        let place = places.len() as u32;
        places.push(Place { city: *city as u32, provider: *provider as u32, draw });
        groups.extend(of.ours.iter().map(|(&bitrate, &sessions)| Group { place, bitrate, sessions }));
    }
    starts.push(offers.len() as u32);
    for network in &mut networks {
        let own = network.clusters.start as usize..network.clusters.end as usize;
        let (all, cost) = own.clone().fold((0.0, 0.0), |(all, cost), site| {
            (all + wanted_bps[site], wanted_bps[site].mul_add(sites[site].cost_per_mbps, cost))
        });
        network.price_per_mbps = if all > 0.0 { cost / all } else { 0.0 };
    }
    share_with_neighbours(&mut wanted_bps, &sites, &cities);
    for (site, (wanted, taken)) in sites.iter_mut().zip(wanted_bps.iter().zip(&background_bps)) {
        site.capacity = BitRate::bps((CAPACITY * wanted * shape.capacity) as u64);
        site.background = BitRate::bps((taken * shape.capacity.min(1.0)) as u64);
    }
    for network in &mut networks {
        let mut capacities: Vec<BitRate> =
            network.clusters.clone().map(|site| sites[site as usize].capacity).collect();
        capacities.sort();
        network.capacity_median = capacities.get(capacities.len() / 2).copied().unwrap_or(BitRate::bps(0));
    }
    World { cities, sites, networks, places, groups, offers, starts, seed, measured: None }
}

/// Divides a cluster's wanted traffic equally with those clusters of its network that attract no
/// traffic and have it as their nearest neighbour.
fn share_with_neighbours(wanted_bps: &mut [f64], sites: &[Site], cities: &[City]) {
    let distance =
        |a: usize, b: usize| cities[sites[a].city as usize].distance_km(&cities[sites[b].city as usize]);
    let mut takers: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for site in (0..sites.len()).filter(|site| wanted_bps[*site] <= 0.0) {
        let own = (0..sites.len())
            .filter(|other| wanted_bps[*other] > 0.0 && sites[*other].network == sites[site].network);
        if let Some(nearest) = own.min_by(|a, b| distance(*a, site).total_cmp(&distance(*b, site))) {
            takers.entry(nearest).or_default().push(site);
        }
    }
    for (giver, takers) in takers {
        let part = wanted_bps[giver] / (takers.len() + 1) as f64;
        wanted_bps[giver] = part;
        takers.into_iter().for_each(|taker| wanted_bps[taker] = part);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A small world.
    fn small() -> WorldShape {
        WorldShape {
            networks: vec![40, 3, 5, 8],
            sessions: 800,
            countries: 6,
            cities: 120,
            providers: 5,
            ..WorldShape::default()
        }
    }

    #[test]
    fn world_has_the_requested_shape_and_follows_the_seed() {
        let world = generate(&WorldShape { city_networks: 7, ..small() }, Seed::new(1));
        assert_eq!((world.sites().len(), world.networks().len()), (63, 11));
        assert_eq!(world.groups().iter().map(|group| group.sessions).sum::<u32>(), 800);
        let costs: Vec<f64> = world.sites().iter().map(|site| site.cost_per_mbps).collect();
        let (least, most) =
            costs.iter().fold((f64::MAX, 0.0f64), |(least, most), cost| (least.min(*cost), most.max(*cost)));
        assert!(most / least > 5.0, "{least} {most}");
        assert_eq!(generate(&small(), Seed::new(1)).groups(), generate(&small(), Seed::new(1)).groups());
        assert_ne!(generate(&small(), Seed::new(2)).groups(), generate(&small(), Seed::new(1)).groups());
    }

    #[test]
    fn network_considers_clusters_within_twice_its_best_score() {
        let world = generate(&small(), Seed::new(1));
        for place in 0..world.places().len() as u32 {
            let scores = world.scores(place);
            for (number, network) in (0..).zip(world.networks()) {
                let offers = world.offers(place, number);
                let own = network.clusters.start as usize..network.clusters.end as usize;
                let best = scores[own.clone()].iter().copied().fold(f64::INFINITY, f64::min);
                let within = scores[own].iter().filter(|score| **score <= 2.0 * best).count();
                assert_eq!(offers.len(), within.max(2));
                let costs: Vec<f64> =
                    offers.iter().map(|o| world.sites()[o.cluster as usize].cost_per_mbps).collect();
                assert!(costs.is_sorted() && offers.iter().all(|o| o.score == scores[o.cluster as usize]));
            }
        }
    }

    /// Each network alone has capacity for all clients, background included, each at the cluster
    /// that the network would choose, unless clusters share capacity with neighbours.
    #[test]
    fn price_is_mean_cost_and_capacity_twice_the_load() {
        let world = generate(&small(), Seed::new(1));
        for network in world.networks() {
            let own = &world.sites()[network.clusters.start as usize..network.clusters.end as usize];
            let all: u64 = own.iter().map(|site| site.capacity.as_bps()).sum();
            let demand: u64 = world.groups().iter().map(|g| g.bitrate.as_bps() * u64::from(g.sessions)).sum();
            let share = all as f64 / demand as f64;
            assert!((6.5..9.5).contains(&share), "twice four times the broker's: {share}");
            let costs = own.iter().map(|site| site.cost_per_mbps);
            let (least, most) = costs.fold((f64::MAX, 0.0f64), |(a, b), cost| (a.min(cost), b.max(cost)));
            assert!((least..=most).contains(&network.price_per_mbps));
        }
    }
}
