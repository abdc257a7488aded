//! Markets with the statistics that the thesis gives of its own, which is not public: networks, clusters, viewers, costs and scores.
//!
//! Source: the thesis, section 3.5.1: costs of countries up to thirty times apart, normal within one; a cluster's cost of being there falls with the
//! logarithm of clusters in its city; capacities are twice what a network would carry if it was offered everything; three times as many viewers
//! beside, whom others place. Choices, as it does not say: countries are spread over 15,000 by 8,000 km and cities around their middles; cities and
//! countries have sizes by a power law, internet providers by another; a score is a round trip by distance, with a lognormal factor of 0.25.
//! Read [`Shape`] first.

use crate::market::{Candidate, Cluster, Group, Market, mbps};
use anabranch_units::{BitRate, RandomStream, Seed};
use std::collections::BTreeMap;

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

/// The market of this shape that is drawn from a seed. Costs and scores have weight 1 each, in units of their means.
pub fn generate(shape: &Shape, seed: Seed) -> Market {
    let draws = |name| Draws(seed.stream(name, 0));
    let mut land = draws("land");
    let countries: Vec<((f64, f64), f64)> = (0..shape.countries)
        .map(|_| {
            let middle = (15_000.0 * land.0.unit_f64(), 8_000.0 * land.0.unit_f64());
            (middle, land.normal().exp().clamp(0.2, 6.0))
        })
        .collect();
    let by_size = power_law(shape.countries, 1.0);
    let cities: Vec<((f64, f64), f64)> = (0..shape.cities)
        .map(|_| {
            let ((x, y), cost) = countries[land.weighted(&by_size)];
            ((700.0f64.mul_add(land.normal(), x), 700.0f64.mul_add(land.normal(), y)), cost)
        })
        .collect();
    let (by_viewers, by_clusters) = (power_law(shape.cities, 1.0), power_law(shape.cities, 0.5));

    // Clusters: of a network no two in one city.
    let mut ground = draws("clusters");
    let (mut city_of, mut network_of) = (Vec::new(), Vec::new());
    for (network, count) in shape.networks.iter().enumerate() {
        let mut taken = std::collections::BTreeSet::new();
        while taken.len() < (*count).min(shape.cities) {
            let city = ground.weighted(&by_clusters);
            if taken.insert(city) {
                city_of.push(city);
                network_of.push(network);
            }
        }
    }
    let mut there: BTreeMap<usize, f64> = BTreeMap::new();
    city_of.iter().for_each(|city| *there.entry(*city).or_default() += 1.0);
    let cost: Vec<f64> = city_of
        .iter()
        .map(|city| {
            let (_, country) = cities[*city];
            let (transit, being_there) =
                (0.25f64.mul_add(ground.normal(), 1.0).clamp(0.3, 2.0), 0.5 / (1.0 + there[city].ln()));
            country * (transit + being_there)
        })
        .collect();

    // Viewers, the broker's first.
    let mut people = draws("viewers");
    let by_provider = power_law(shape.providers, 1.6);
    let viewers: Vec<((usize, usize), BitRate)> = (0..shape.sessions * (1 + BACKGROUND))
        .map(|_| ((people.weighted(&by_viewers), people.weighted(&by_provider)), people.bitrate()))
        .collect();
    let mut places: BTreeMap<(usize, usize), Place> = BTreeMap::new();
    for (number, (place, bitrate)) in viewers.iter().enumerate() {
        let place = places.entry(*place).or_default();
        place.all_bps += bitrate.as_bps() as f64;
        if number >= shape.sessions {
            let network = people.0.below(shape.networks.len() as u64) as usize;
            *place.background_bps.entry(network).or_default() += bitrate.as_bps() as f64;
        } else {
            place.is_ours = true;
        }
    }

    // Scores, bids, and capacities by what each network would carry of everything.
    let (mut wanted, mut taken) = (vec![0.0; city_of.len()], vec![0.0; city_of.len()]);
    let mut bids: Vec<Vec<Candidate>> = Vec::new();
    for (number, ((city, _), place)) in places.iter_mut().enumerate() {
        let mut noise = Draws(seed.stream("scores", number as u64));
        let mut of_networks: Vec<Vec<(u32, f64)>> = vec![Vec::new(); shape.networks.len()];
        for (cluster, its_city) in (0u32..).zip(&city_of) {
            let ((ax, ay), (bx, by)) = (cities[*city].0, cities[*its_city].0);
            let score = (8.0 + (ax - bx).hypot(ay - by) / 60.0) * (0.25 * noise.normal()).exp();
            of_networks[network_of[cluster as usize]].push((cluster, score));
        }
        let mut of_place = Vec::new();
        for (network, clusters) in
            of_networks.iter_mut().enumerate().filter(|(_, clusters)| !clusters.is_empty())
        {
            clusters.sort_by(|(_, a), (_, b)| a.total_cmp(b));
            let (best, least) = clusters[0];
            wanted[best as usize] += 2.0 * place.all_bps;
            taken[best as usize] += place.background_bps.get(&network).copied().unwrap_or_default();
            let near = clusters
                .iter()
                .take_while(|(_, score)| *score <= 2.0 * least)
                .count()
                .max(2)
                .min(clusters.len());
            let mut near: Vec<(u32, f64)> = clusters[..near].to_vec();
            near.sort_by(|(a, _), (b, _)| cost[*a as usize].total_cmp(&cost[*b as usize]));
            of_place.extend(
                near.into_iter().take(shape.bids).map(|(cluster, score)| Candidate { cluster, score }),
            );
        }
        if place.is_ours {
            place.number = bids.len() as u32;
            bids.push(of_place);
        }
    }
    share_with_neighbours(&mut wanted, &network_of, |a: usize, b: usize| {
        let ((ax, ay), (bx, by)) = (cities[city_of[a]].0, cities[city_of[b]].0);
        (ax - bx).hypot(ay - by)
    });

    let mut groups: BTreeMap<(u32, BitRate), u32> = BTreeMap::new();
    for (place, bitrate) in &viewers[..shape.sessions] {
        *groups.entry((places[place].number, *bitrate)).or_default() += 1;
    }
    let groups: Vec<Group> =
        groups.into_iter().map(|((place, bitrate), sessions)| Group { place, bitrate, sessions }).collect();
    let scores: Vec<f64> = bids.iter().flatten().map(|one| one.score).collect();
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len().max(1) as f64;
    let rates: Vec<f64> = viewers[..shape.sessions].iter().map(|(_, bitrate)| mbps(*bitrate)).collect();
    let (score_unit, cost_unit) = (mean(&scores), mean(&cost) * mean(&rates));
    bids.iter_mut().flatten().for_each(|one| one.score /= score_unit);
    let clusters = cost.iter().zip(wanted.iter().zip(&taken)).map(|(cost, (wanted, taken))| Cluster {
        capacity: BitRate::bps((wanted * shape.capacity - taken * shape.capacity.min(1.0)).max(0.0) as u64),
        cost_per_mbps: cost / cost_unit,
    });
    Market::new(clusters.collect(), &bids, groups).expect("what is drawn is a market")
}

/// A city's viewers by one internet provider.
#[derive(Default)]
struct Place {
    is_ours: bool,
    number: u32,
    all_bps: f64,
    background_bps: BTreeMap<usize, f64>,
}

/// A cluster to which nobody would be sent gets half of what the nearest of its network has.
fn share_with_neighbours(wanted: &mut [f64], network_of: &[usize], distance: impl Fn(usize, usize) -> f64) {
    let with_some: Vec<usize> = (0..wanted.len()).filter(|cluster| wanted[*cluster] > 0.0).collect();
    for cluster in 0..wanted.len() {
        if wanted[cluster] > 0.0 {
            continue;
        }
        let own = with_some.iter().copied().filter(|other| network_of[*other] == network_of[cluster]);
        let nearest = own.min_by(|a, b| distance(*a, cluster).total_cmp(&distance(*b, cluster)));
        if let Some(nearest) = nearest {
            wanted[nearest] /= 2.0;
            wanted[cluster] = wanted[nearest];
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
