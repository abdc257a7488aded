//! Markets with the statistics that the thesis gives of its own, which is not public: networks, clusters, viewers, costs and scores.
//!
//! Source: the thesis, section 3.5.1: costs of countries up to thirty times apart, normal within one; a cluster's cost of being there falls with the
//! logarithm of clusters in its city; capacities are twice what a network would carry if it was offered everything; three times as many viewers
//! beside, whom others place. Choices, as it does not say: countries are spread over 15,000 by 8,000 km and cities around their middles; cities and
//! countries have sizes by a power law, internet providers by another; bitrates are shared out as in [`BITRATES`]; a score is a round trip by distance, with a lognormal factor of 0.25.
//! Read [`Shape`] first.

use crate::market::{Candidate, Cluster, Group, Market, mbps};
use anabranch_units::{BitRate, RandomStream, Seed};
use std::collections::{BTreeMap, BTreeSet};

/// How a market is made.
#[derive(Clone, Debug, PartialEq)]
pub struct Shape {
    /// Clusters of each content network; there are one highly distributed and thirteen small ones in the thesis.
    pub networks: Vec<usize>,
    /// Viewers whom the broker places.
    pub sessions: usize,
    /// Countries, their cities, and internet providers in each city.
    pub countries: usize,
    /// See above.
    pub cities: usize,
    /// See above.
    pub providers: usize,
    /// The most clusters that a network bids for a place: those within twice its best score, the cheapest first; two at least.
    pub bids: usize,
    /// What capacities are multiplied by: 1 as the thesis has them.
    pub capacity: f64,
}

impl Default for Shape {
    fn default() -> Self {
        let mut networks = vec![400, 12, 16];
        networks.extend((0..11).map(|n| 15 + 7 * n));
        Self {
            networks,
            sessions: 33_400,
            countries: 20,
            cities: 2_500,
            providers: 60,
            bids: 100,
            capacity: 1.0,
        }
    }
}

/// Bitrates of viewers in kbit/s, and how many of a hundred have each.
const BITRATES: [(u64, u64); 10] = [
    (235, 28),
    (375, 8),
    (560, 6),
    (750, 6),
    (1_050, 5),
    (1_750, 5),
    (2_350, 5),
    (3_000, 6),
    (4_300, 6),
    (5_800, 25),
];
/// Viewers whom others place, for each of the broker's.
const BACKGROUND: usize = 3;

/// Draws beside even ones.
struct Draws(RandomStream);

impl Draws {
    fn normal(&mut self) -> f64 {
        // Box and Muller; the logarithm of zero is nothing.
        let (a, b) = (1.0 - self.0.unit_f64(), self.0.unit_f64());
        (-2.0 * a.ln()).sqrt() * (std::f64::consts::TAU * b).cos()
    }
    /// The number of one of these, by their sums up to each.
    fn weighted(&mut self, sums: &[f64]) -> usize {
        let at = self.0.unit_f64() * sums.last().copied().unwrap_or(1.0);
        sums.partition_point(|sum| *sum <= at).min(sums.len() - 1)
    }
    fn bitrate(&mut self) -> BitRate {
        let mut at = self.0.below(BITRATES.iter().map(|(_, share)| share).sum());
        for (kbps, share) in BITRATES {
            if at < share {
                return BitRate::bps(1_000 * kbps);
            }
            at -= share;
        }
        unreachable!("shares add up")
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

/// A city: where it is, in km, and how dear its country is.
#[derive(Copy, Clone)]
struct City {
    at: (f64, f64),
    cost: f64,
}

impl City {
    fn distance(&self, other: &Self) -> f64 {
        (self.at.0 - other.at.0).hypot(self.at.1 - other.at.1)
    }
}

fn cities(shape: &Shape, draws: &mut Draws) -> Vec<City> {
    let countries: Vec<City> = (0..shape.countries)
        .map(|_| {
            let at = (15_000.0 * draws.0.unit_f64(), 8_000.0 * draws.0.unit_f64());
            City { at, cost: draws.normal().exp().clamp(0.2, 6.0) }
        })
        .collect();
    let by_size = power_law(shape.countries, 1.0);
    let city = |_| {
        let City { at: (x, y), cost } = countries[draws.weighted(&by_size)];
        let at = (700.0f64.mul_add(draws.normal(), x), 700.0f64.mul_add(draws.normal(), y));
        City { at, cost }
    };
    (0..shape.cities).map(city).collect()
}

/// A cluster: whose, in which city, and what a megabit costs there.
struct Site {
    network: usize,
    city: usize,
    cost: f64,
}

/// Clusters, of a network no two in one city.
fn sites(shape: &Shape, cities: &[City], draws: &mut Draws) -> Vec<Site> {
    let by_clusters = power_law(shape.cities, 0.5);
    let mut sites = Vec::new();
    for (network, count) in shape.networks.iter().enumerate() {
        let mut taken = BTreeSet::new();
        while taken.len() < (*count).min(shape.cities) {
            let city = draws.weighted(&by_clusters);
            if taken.insert(city) {
                sites.push(Site { network, city, cost: 0.0 });
            }
        }
    }
    let mut there: BTreeMap<usize, f64> = BTreeMap::new();
    sites.iter().for_each(|site| *there.entry(site.city).or_default() += 1.0);
    for site in &mut sites {
        let transit = 0.25f64.mul_add(draws.normal(), 1.0).clamp(0.3, 2.0);
        let being_there = 0.5 / (1.0 + there[&site.city].ln());
        site.cost = cities[site.city].cost * (transit + being_there);
    }
    sites
}

/// A city's viewers by one internet provider.
#[derive(Default)]
struct Place {
    /// Its number, if the broker has viewers there.
    number: Option<u32>,
    all_bps: f64,
    background_bps: BTreeMap<usize, f64>,
}

/// Viewers by place, the broker's first, and the places.
type Viewers = (Vec<((usize, usize), BitRate)>, BTreeMap<(usize, usize), Place>);

fn viewers(shape: &Shape, draws: &mut Draws) -> Viewers {
    let (by_viewers, by_provider) = (power_law(shape.cities, 1.0), power_law(shape.providers, 1.6));
    let viewers: Vec<((usize, usize), BitRate)> = (0..shape.sessions * (1 + BACKGROUND))
        .map(|_| ((draws.weighted(&by_viewers), draws.weighted(&by_provider)), draws.bitrate()))
        .collect();
    let mut places: BTreeMap<(usize, usize), Place> = BTreeMap::new();
    for (number, (place, bitrate)) in viewers.iter().enumerate() {
        let place = places.entry(*place).or_default();
        place.all_bps += bitrate.as_bps() as f64;
        if number < shape.sessions {
            place.number = Some(0);
        } else {
            let network = draws.0.below(shape.networks.len() as u64) as usize;
            *place.background_bps.entry(network).or_default() += bitrate.as_bps() as f64;
        }
    }
    for (number, place) in (0..).zip(places.values_mut().filter_map(|place| place.number.as_mut())) {
        *place = number;
    }
    (viewers, places)
}

/// What networks bid for the broker's places, what each cluster would get of everybody, twice, and what it gets of others' viewers.
struct Bids {
    of_places: Vec<Vec<Candidate>>,
    wanted_bps: Vec<f64>,
    taken_bps: Vec<f64>,
}

fn bids(
    shape: &Shape,
    cities: &[City],
    sites: &[Site],
    places: &BTreeMap<(usize, usize), Place>,
    seed: Seed,
) -> Bids {
    let nothing = vec![0.0; sites.len()];
    let mut bids = Bids { of_places: Vec::new(), wanted_bps: nothing.clone(), taken_bps: nothing };
    for (number, ((city, _), place)) in places.iter().enumerate() {
        let mut noise = Draws(seed.stream("scores", number as u64));
        let mut of_networks: Vec<Vec<Candidate>> = vec![Vec::new(); shape.networks.len()];
        for (cluster, site) in (0..).zip(sites) {
            let distance = cities[*city].distance(&cities[site.city]);
            let score = (8.0 + distance / 60.0) * (0.25 * noise.normal()).exp();
            of_networks[site.network].push(Candidate { cluster, score });
        }
        let mut of_place = Vec::new();
        for (network, mut near) in of_networks.into_iter().enumerate().filter(|(_, near)| !near.is_empty()) {
            near.sort_by(|a, b| a.score.total_cmp(&b.score));
            let best = near[0];
            bids.wanted_bps[best.cluster as usize] += 2.0 * place.all_bps;
            bids.taken_bps[best.cluster as usize] +=
                place.background_bps.get(&network).copied().unwrap_or_default();
            let within = near.iter().take_while(|one| one.score <= 2.0 * best.score).count();
            near.truncate(within.max(2));
            let cost = |one: &Candidate| sites[one.cluster as usize].cost;
            near.sort_by(|a, b| cost(a).total_cmp(&cost(b)));
            of_place.extend(near.into_iter().take(shape.bids));
        }
        if place.number.is_some() {
            bids.of_places.push(of_place);
        }
    }
    bids
}

/// The market of this shape that is drawn from a seed. Costs and scores have weight 1 each, in units of their means.
pub fn generate(shape: &Shape, seed: Seed) -> Market {
    let draws = |name| Draws(seed.stream(name, 0));
    let cities = cities(shape, &mut draws("land"));
    let sites = sites(shape, &cities, &mut draws("clusters"));
    let (viewers, places) = viewers(shape, &mut draws("viewers"));
    let ours = &viewers[..shape.sessions];
    let mut bids = bids(shape, &cities, &sites, &places, seed);
    share_with_neighbours(&mut bids.wanted_bps, &sites, &cities);

    let mut groups: BTreeMap<(u32, BitRate), u32> = BTreeMap::new();
    for (place, bitrate) in ours {
        let number = places[place].number.expect("the broker has viewers there");
        *groups.entry((number, *bitrate)).or_default() += 1;
    }
    let groups =
        groups.into_iter().map(|((place, bitrate), sessions)| Group { place, bitrate, sessions }).collect();
    let mean = |values: &mut dyn Iterator<Item = f64>| {
        let (count, sum) = values.fold((0.0, 0.0), |(count, sum), value| (count + 1.0, sum + value));
        sum / f64::max(count, 1.0)
    };
    let score_unit = mean(&mut bids.of_places.iter().flatten().map(|one| one.score));
    let cost_unit = mean(&mut sites.iter().map(|site| site.cost))
        * mean(&mut ours.iter().map(|(_, bitrate)| mbps(*bitrate)));
    bids.of_places.iter_mut().flatten().for_each(|one| one.score /= score_unit);
    let clusters =
        sites.iter().zip(bids.wanted_bps.iter().zip(&bids.taken_bps)).map(|(site, (wanted, taken))| {
            Cluster {
                capacity: BitRate::bps(
                    (wanted * shape.capacity - taken * shape.capacity.min(1.0)).max(0.0) as u64
                ),
                cost_per_mbps: site.cost / cost_unit,
            }
        });
    Market::new(clusters.collect(), &bids.of_places, groups).expect("what is drawn is a market")
}

/// A cluster to which nobody would be sent gets half of what the nearest of its network has.
fn share_with_neighbours(wanted_bps: &mut [f64], sites: &[Site], cities: &[City]) {
    let with_some: Vec<usize> = (0..sites.len()).filter(|site| wanted_bps[*site] > 0.0).collect();
    let distance = |a: usize, b: usize| cities[sites[a].city].distance(&cities[sites[b].city]);
    for site in 0..sites.len() {
        if wanted_bps[site] > 0.0 {
            continue;
        }
        let own = with_some.iter().copied().filter(|other| sites[*other].network == sites[site].network);
        if let Some(nearest) = own.min_by(|a, b| distance(*a, site).total_cmp(&distance(*b, site))) {
            wanted_bps[nearest] /= 2.0;
            wanted_bps[site] = wanted_bps[nearest];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Optimiser;

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
        let market = generate(&small(), Seed::new(1));
        assert_eq!(market.clusters().len(), 56);
        assert_eq!(market.groups().iter().map(|group| group.sessions).sum::<u32>(), 800);
        let costs: Vec<f64> = market.clusters().iter().map(|cluster| cluster.cost_per_mbps).collect();
        let (least, most) =
            costs.iter().fold((f64::MAX, 0.0f64), |(least, most), cost| (least.min(*cost), most.max(*cost)));
        assert!(most / least > 5.0, "{least} {most}");
        for group in market.groups() {
            assert!(market.candidates_of(group.place).len() >= 8, "two of each network");
        }
        assert_eq!(generate(&small(), Seed::new(1)).groups(), market.groups());
        assert_ne!(generate(&small(), Seed::new(2)).groups(), market.groups());
    }

    #[test]
    fn everybody_is_served_near_the_best_with_the_thesis_capacities_and_not_all_are_with_little() {
        let answer = Optimiser::default().optimise(&generate(&small(), Seed::new(1)), None);
        assert!(
            answer.unserved() == 0 && answer.gap_share() < 0.01,
            "{} {}",
            answer.unserved(),
            answer.gap_share()
        );
        let scarce = generate(&Shape { capacity: 0.02, ..small() }, Seed::new(1));
        assert!(Optimiser::default().optimise(&scarce, None).unserved() > 0);
    }
}
