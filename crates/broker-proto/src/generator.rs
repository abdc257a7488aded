//! Worlds drawn by the rules of the thesis: networks, clusters, clients, costs and scores.
//!
//! The thesis's traces are not public. Fewer clients here have alternative clusters than in its Table 3.1.
//!
//! Source: the thesis, section 3.5.1: costs of countries up to thirty times apart, normal within one; a cluster's cost of being there falls with the
//! logarithm of clusters in its city; a cluster's capacity is twice what its network would send from it if the network was offered everything, and one
//! that would send nothing shares its nearest neighbour's; three times as many clients beside, whom others place; a contract's price is
//! the mean cost of what the network would send if it was offered everything.
//! Choices, as it does not say: countries are spread over 15,000 by 8,000 km and cities around their middles; cities and
//! countries have sizes by a power law, internet providers by another; bitrates follow [`LADDER`]; a score is a round trip by distance, with
//! a lognormal factor of 0.25; others' clients go to a network by chance, and there to the cluster that it would choose.
//! Read [`Shape`] first.

use crate::draws::{Draws, scores};
use crate::market::Group;
use crate::world::{City, Network, Offer, Place, Site, World, considered};
use anabranch_media::bitrates::{Rung, draw_bitrate};
use anabranch_units::{BitRate, Seed};
use std::collections::{BTreeMap, BTreeSet};

/// How a world is made.
#[derive(Clone, Debug, PartialEq)]
pub struct Shape {
    /// Clusters of each content network; there are one highly distributed and thirteen small ones in the thesis.
    pub networks: Vec<usize>,
    /// Further networks of one cluster each, in a city where others are.
    pub city_networks: usize,
    /// Clients whom the broker places.
    pub sessions: usize,
    /// Countries, their cities, and internet providers in each city.
    pub countries: usize,
    /// See above.
    pub cities: usize,
    /// See above.
    pub providers: usize,
    /// What capacities are multiplied by: 1 as the thesis has them.
    pub capacity: f64,
}

impl Default for Shape {
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

/// Ladder of the clients' bitrates. Most clients have the lowest or the highest one.
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

/// Clients whom others place, for each of the broker's.
const BACKGROUND: usize = 3;
/// A cluster's capacity, of what its network would send from it if the network was offered everything.
const CAPACITY: f64 = 2.0;

impl Draws {
    fn bitrate(&mut self) -> BitRate {
        draw_bitrate(&LADDER, &mut self.0)
    }
}

/// Sums of weights that fall with the power of a number from 1 on.
fn power_law(count: usize, power: f64) -> Vec<f64> {
    let mut sum = 0.0;
    (1..=count)
        .map(|n| {
            sum += (n as f64).powf(-power);
            sum
        })
        .collect()
}

/// Cities, and what a megabit costs in each country beside the others.
fn land(shape: &Shape, draws: &mut Draws) -> (Vec<City>, Vec<f64>) {
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

/// Clusters, of a network no two in one city, with costs and without capacities; and each network's.
fn sites(shape: &Shape, cities: &[City], costs: &[f64], draws: &mut Draws) -> (Vec<Site>, Vec<Network>) {
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

/// Appends what a network considers of its clusters, the cheapest first.
fn consider(network: &Network, sites: &[Site], scores: &[f64], offers: &mut Vec<Offer>) {
    let all = network.clusters.clone().map(|cluster| Offer { cluster, score: scores[cluster as usize] });
    offers.extend(considered(all.collect(), |cluster| sites[cluster as usize].cost_per_mbps));
}

/// A city's clients by one internet provider.
#[derive(Default)]
struct Viewers {
    /// The broker's, by bitrate.
    ours: BTreeMap<BitRate, u32>,
    all_bps: f64,
    background_bps: BTreeMap<usize, f64>,
}

fn viewers(shape: &Shape, networks: usize, draws: &mut Draws) -> BTreeMap<(usize, usize), Viewers> {
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

/// The world of this shape that is drawn from a seed.
pub fn generate(shape: &Shape, seed: Seed) -> World {
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

/// Clusters to which nobody would be sent, and the nearest of their network to which somebody would be, have the same part of what that one has.
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
    fn small() -> Shape {
        Shape {
            networks: vec![40, 3, 5, 8],
            sessions: 800,
            countries: 6,
            cities: 120,
            providers: 5,
            ..Shape::default()
        }
    }

    #[test]
    fn it_has_the_shape_that_was_asked_for_and_is_drawn_from_the_seed_alone() {
        let world = generate(&Shape { city_networks: 7, ..small() }, Seed::new(1));
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
    fn a_network_considers_what_is_within_twice_its_best_score_the_cheapest_first() {
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

    /// All of the broker's clients and all others fit into any network that has them all, each at the cluster that it would choose, but where that
    /// cluster shares with neighbours.
    #[test]
    fn capacities_are_twice_what_a_network_would_send_and_prices_its_mean_cost() {
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
