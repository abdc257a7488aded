//! One round of the decision protocol in a world under one design, and its outcome for clients,
//! clusters and networks' accounts.
//!
//! Source: section 3.5.1 (metrics) and 3.7.1 (accounts). Read [`evaluate`] first.

use crate::agent::Reserve;
use crate::broker::{Broker, ClusterId, Decision};
use crate::designs::Design;
use crate::market::{Market, mbps};
use crate::optimiser::Optimiser;
use crate::parties::Parties;
use crate::world::World;
use anabranch_units::{BitRate, Instant, PeerId};
use std::sync::Arc;

/// Factor that networks add to their costs (section 3.7.1: 20 %).
pub const MARKUP: f64 = 1.2;

/// A world's only broker.
const BROKER: PeerId = PeerId(0);

/// Traffic, its revenue and its cost.
#[derive(Copy, Clone, Debug, Default, PartialEq)]
pub struct Account {
    /// Traffic of the broker's clients in Mbit/s.
    pub traffic_mbps: f64,
    /// Revenue: [`MARKUP`] times the traffic times the contract's price, or times the cluster's
    /// cost under designs that announce costs.
    pub paid: f64,
    /// Cost to the network.
    pub cost: f64,
}

impl Account {
    /// Revenue less cost.
    pub fn profit(&self) -> f64 {
        self.paid - self.cost
    }
    fn add(&mut self, traffic_mbps: f64, paid: f64, cost: f64) {
        self.traffic_mbps += traffic_mbps;
        self.paid += paid;
        self.cost += cost;
    }
}

/// Outcome of a round.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Median over clients of the serving network's cost per Mbit/s.
    pub cost_p50: f64,
    /// Median over clients of the score.
    pub score_p50: f64,
    /// Median over clients of the distance to the cluster.
    pub distance_km_p50: f64,
    /// Median load of all clusters with traffic: total traffic, background included, as a share of
    /// capacity.
    pub load_p50: f64,
    /// Share of clients whose cluster is overloaded.
    pub congested_share: f64,
    /// Number of unserved clients.
    pub unserved: u64,
    /// Upper bound on the distance of the broker's choice from the best under its information, as a
    /// share.
    pub gap_share: f64,
    /// Account of each network.
    pub networks: Vec<Account>,
    /// Account of each country, by the location of clusters.
    pub countries: Vec<Account>,
}

/// Creates a world's broker, whose first round begins at once.
fn broker(parties: &Parties<'_>, design: &Arc<dyn Design>, cost_weight: f64, optimiser: Optimiser) -> Broker {
    let mut broker = Broker::new(Instant::ZERO, parties.settings(design, cost_weight, optimiser));
    parties.join_all(&mut broker);
    broker.handle_gathered(parties.gathered());
    broker.handle_timeout(Instant::ZERO);
    broker
}

/// Returns the market that the broker sees under this design.
///
/// A mean client's cost is scaled to 1 and weighs as much as the mean score, times `cost_weight`
/// (the thesis's w_c, where w_p is 1).
pub fn market(world: &World, design: &Arc<dyn Design>, cost_weight: f64) -> Arc<Market> {
    let parties = Parties::new(world);
    let mut broker = broker(&parties, design, cost_weight, Optimiser::default());
    let mut agents = parties.agents(Reserve::Nothing);
    parties.hand_over(&mut broker, BROKER, &**design, &mut agents).expect("all networks have bid").market
}

/// Runs one round of a world under this design, and returns its outcome.
pub fn evaluate(world: &World, design: &Arc<dyn Design>, cost_weight: f64, optimiser: &Optimiser) -> Outcome {
    let parties = Parties::new(world);
    let mut broker = broker(&parties, design, cost_weight, *optimiser);
    let mut agents = parties.agents(Reserve::Nothing);
    parties.end_round(&mut broker, Instant::ZERO, BROKER, &**design, &mut agents);
    let decision = broker.accepted().expect("all networks have bid, and keep what they bid");
    outcome(world, &**design, decision)
}

/// Computes the outcome of a decision.
fn outcome(world: &World, design: &dyn Design, decision: &Decision) -> Outcome {
    let (mut costs, mut scores, mut distances) = (Vec::new(), Vec::new(), Vec::new());
    let (mut served, mut unserved) = (Vec::new(), 0);
    let mut networks = vec![Account::default(); world.networks().len()];
    let countries = world.cities().iter().map(|city| city.country + 1).max().unwrap_or(0);
    let mut countries = vec![Account::default(); countries as usize];
    let mut sent: Vec<u64> = world.sites().iter().map(|site| site.background.as_bps()).collect();
    for placed in &decision.placed {
        let sessions = placed.sessions;
        let Some((ClusterId { cluster, .. }, score)) = placed.to else {
            unserved += u64::from(sessions);
            continue;
        };
        let site = &world.sites()[cluster as usize];
        sent[cluster as usize] += placed.bitrate.as_bps() * u64::from(sessions);
        costs.push((site.cost_per_mbps, sessions));
        scores.push((score, sessions));
        distances.push((world.distance_km(placed.place, cluster), sessions));
        served.push((cluster as usize, sessions));
        let traffic = mbps(placed.bitrate) * f64::from(sessions);
        let contract = world.networks()[site.network as usize].price_per_mbps;
        let price = design.announce(site).price_per_mbps.unwrap_or(contract);
        let country = world.cities()[site.city as usize].country;
        for account in [&mut networks[site.network as usize], &mut countries[country as usize]] {
            account.add(traffic, MARKUP * price * traffic, site.cost_per_mbps * traffic);
        }
    }
    let is_congested = |cluster: usize| sent[cluster] > world.sites()[cluster].capacity.as_bps();
    let all: u64 = world.groups().iter().map(|group| u64::from(group.sessions)).sum();
    let congested: u64 =
        served.iter().filter(|(cluster, _)| is_congested(*cluster)).map(|(_, count)| u64::from(*count)).sum();
    let loads = sent.iter().zip(world.sites()).filter(|(sent, _)| **sent > 0);
    let load = |sent: u64, capacity: BitRate| sent as f64 / capacity.as_bps().max(1) as f64;
    Outcome {
        cost_p50: median(costs),
        score_p50: median(scores),
        distance_km_p50: median(distances),
        load_p50: median(loads.map(|(sent, site)| (load(*sent, site.capacity), 1)).collect()),
        congested_share: congested as f64 / all.max(1) as f64,
        unserved,
        gap_share: decision.gap_share,
        networks,
        countries,
    }
}

/// Weighted median; 0 without values.
fn median(mut values: Vec<(f64, u32)>) -> f64 {
    values.sort_by(|(a, _), (b, _)| a.total_cmp(b));
    let all: u64 = values.iter().map(|(_, count)| u64::from(*count)).sum();
    let mut before = 0;
    let middle = values.iter().find(|(_, count)| {
        before += u64::from(*count);
        2 * before >= all
    });
    middle.map_or(0.0, |(value, _)| *value)
}

/// Share of clients for whom a network has at least one, two, and so on, further clusters nearly as
/// good as its best.
///
/// Source: Table 3.1: within 25 % of the best score.
pub fn alternatives<const COUNTS: usize>(world: &World, network: u32) -> [f64; COUNTS] {
    let own = world.networks()[network as usize].clusters.clone();
    let (mut with, mut all) = ([0.0; COUNTS], 0.0);
    let mut near = vec![None; world.places().len()];
    for group in world.groups() {
        let alike = *near[group.place as usize].get_or_insert_with(|| {
            let scores = &world.scores(group.place)[own.start as usize..own.end as usize];
            let best = scores.iter().copied().fold(f64::INFINITY, f64::min);
            scores.iter().filter(|score| score.is_finite() && **score <= ALIKE * best).count()
        });
        let sessions = f64::from(group.sessions);
        all += sessions;
        with.iter_mut().take(alike.saturating_sub(1)).for_each(|with| *with += sessions);
    }
    with.map(|with| with / f64::max(all, 1.0))
}

/// Scores within this factor of the best count as nearly as good.
const ALIKE: f64 = 1.25;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::designs::{self, Brokered, Marketplace};
    use crate::generator::{WorldShape, generate};
    use anabranch_units::Seed;

    fn world(seed: u64) -> World {
        let shape = WorldShape {
            networks: vec![40, 3, 5, 8],
            sessions: 1_500,
            countries: 6,
            cities: 120,
            providers: 5,
            ..WorldShape::default()
        };
        generate(&shape, Seed::new(seed))
    }

    #[test]
    fn no_cluster_is_congested_if_clients_are_shared() {
        for seed in 1..=5 {
            let world = world(seed);
            for design in designs::all().iter().filter(|design| design.shares_clients()) {
                let outcome = evaluate(&world, design, 1.0, &Optimiser::default());
                assert_eq!(outcome.congested_share, 0.0, "{seed} {}", design.name());
            }
        }
    }

    #[test]
    fn account_sums_equal_demand_and_profit_equals_markup() {
        let world = world(1);
        let demand: f64 = world.groups().iter().map(|g| mbps(g.bitrate) * f64::from(g.sessions)).sum();
        for design in designs::all() {
            let outcome = evaluate(&world, &design, 1.0, &Optimiser::default());
            for accounts in [&outcome.networks, &outcome.countries] {
                let traffic: f64 = accounts.iter().map(|account| account.traffic_mbps).sum();
                assert!((traffic / demand - 1.0).abs() < 1e-9, "{} {}", design.name(), outcome.unserved);
            }
        }
        let marketplace: Arc<dyn Design> = Arc::new(Marketplace::default());
        let outcome = evaluate(&world, &marketplace, 1.0, &Optimiser::default());
        for account in outcome.networks {
            assert!((account.profit() - 0.2 * account.cost).abs() < 1e-9);
        }
    }

    /// With a higher weight of cost, clients are placed on cheaper and more distant clusters.
    #[test]
    fn higher_cost_weight_moves_clients_to_cheaper_clusters() {
        let world = world(2);
        let (marketplace, today): (Arc<dyn Design>, Arc<dyn Design>) =
            (Arc::new(Marketplace::default()), Arc::new(Brokered));
        let of = |weight| evaluate(&world, &marketplace, weight, &Optimiser::default());
        let (near, cheap) = (of(0.1), of(10.0));
        assert!(near.cost_p50 > cheap.cost_p50 && near.score_p50 < cheap.score_p50, "{near:?} {cheap:?}");
        let brokered = evaluate(&world, &today, 1.0, &Optimiser::default());
        assert!(brokered.networks.iter().any(|account| account.profit() < 0.0), "{brokered:?}");
    }

    #[test]
    fn median_weights_each_value_by_its_count() {
        assert_eq!(median(vec![(3.0, 1), (1.0, 5), (2.0, 1)]), 1.0);
        assert_eq!(median(vec![(3.0, 4), (1.0, 3), (2.0, 1)]), 2.0);
        assert_eq!(median(Vec::new()), 0.0);
    }

    #[test]
    fn share_of_clients_falls_with_number_of_alternatives() {
        let shares: [f64; 4] = alternatives(&world(1), 0);
        assert!(shares.is_sorted_by(|a, b| a >= b) && shares[0] > 0.0 && shares[0] <= 1.0, "{shares:?}");
    }
}
