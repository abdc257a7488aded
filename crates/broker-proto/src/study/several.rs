//! Several brokers whose clients share clusters, over rounds of changing demand: networks' bids,
//! and their results.
//!
//! Source: the thesis leaves this open (chapter 7). With several brokers a network's bids overlap:
//! if all are accepted, the network's clusters are overloaded. The question is whether bids are
//! hints or guarantees. Here the brokers run their rounds in turn, and networks reserve capacity by
//! their [`Reserve`]. Demand of each broker in each place follows a random walk: a lognormal factor
//! whose logarithm keeps nine tenths from round to round.
//!
//! Read [`BrokersStudy`] and [`run`] first.

use crate::agent::{Agent, Reserve};
use crate::broker::{Broker, Decision, Event, PlaceDemand};
use crate::designs::Design;
use crate::draws::Draws;
use crate::market::mbps;
use crate::optimiser::Optimiser;
use crate::parties::Parties;
use crate::world::World;
use anabranch_units::{Duration, Instant, PeerId, Seed};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Share of a place's log demand that remains from round to round.
const KEEPS: f64 = 0.9;

/// Parameters of a study.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct BrokersStudy {
    /// Number of brokers; each has an equal mean share of the world's clients.
    pub brokers: u32,
    /// Number of rounds of each broker.
    pub rounds: u32,
    /// Capacity that networks reserve for other brokers.
    pub reserve: Reserve,
    /// Standard deviation of the logarithm of a place's demand.
    pub swing: f64,
    /// Weight of cost.
    pub cost_weight: f64,
    /// Seed of the demand.
    pub seed: Seed,
}

/// Outcome of one round of all brokers.
#[derive(Copy, Clone, Debug, Default, PartialEq)]
pub struct RoundOutcome {
    /// Share of clients whose cluster is overloaded.
    pub overloaded_share: f64,
    /// Share of unserved clients.
    pub unserved_share: f64,
    /// Mean cost per Mbit/s to the serving network.
    pub cost_mean: f64,
    /// Mean score of the served clients.
    pub score_mean: f64,
    /// Sum of the differences between actual and expected rates of clusters, relative to the total
    /// traffic.
    pub surprise_share: f64,
    /// Share of brokers whose round changed nothing for lack of agreement.
    pub void_share: f64,
}

/// Demand of one broker.
struct Demand {
    draws: Draws,
    /// Logarithm of the demand factor of each place.
    levels: Vec<f64>,
}

impl Demand {
    fn new(several: &BrokersStudy, broker: u32, places: usize) -> Self {
        let mut draws = Draws(several.seed.stream("demand", u64::from(broker)));
        let levels = (0..places).map(|_| several.swing * draws.normal()).collect();
        Self { draws, levels }
    }

    /// Returns the clients of the next round.
    fn next(&mut self, several: &BrokersStudy, all: &[PlaceDemand]) -> Vec<PlaceDemand> {
        let (draws, part) = (&mut self.draws, f64::from(several.brokers.max(1)).recip());
        let fresh = (1.0 - KEEPS * KEEPS).sqrt() * several.swing;
        let mean = (-0.5 * several.swing * several.swing).exp();
        let next = self.levels.iter_mut().zip(all).map(|(level, of)| {
            *level = KEEPS.mul_add(*level, fresh * draws.normal());
            let factor = part * mean * level.exp();
            let mut of = of.clone();
            for some in &mut of.clients {
                // Random rounding keeps the mean.
                some.sessions = f64::from(some.sessions).mul_add(factor, draws.0.unit_f64()) as u32;
            }
            of
        });
        next.collect()
    }
}

/// Runs all rounds of a study.
pub fn run(world: &World, design: &Arc<dyn Design>, several: &BrokersStudy) -> Vec<RoundOutcome> {
    let (parties, second) = (Parties::new(world), Duration::from_secs(1));
    let mut agents = parties.agents(several.reserve);
    let mut brokers: Vec<Broker> = (0..several.brokers)
        .map(|_| {
            let mut settings = parties.settings(design, several.cost_weight, Optimiser::default());
            settings.every = second;
            let mut broker = Broker::new(Instant::ZERO, settings);
            parties.join_all(&mut broker);
            broker
        })
        .collect();
    let all = parties.gathered();
    let mut demands: Vec<Demand> =
        (0..several.brokers).map(|broker| Demand::new(several, broker, all.len())).collect();
    let mut outcomes = Vec::new();
    for round in 0..several.rounds {
        let now = Instant::ZERO + second * u64::from(round);
        let expected = expected(&agents, several.brokers, world);
        let mut voids = 0;
        // Each round starts with another broker.
        for turn in 0..several.brokers {
            let number = (turn + round) % several.brokers;
            let broker = &mut brokers[number as usize];
            broker.handle_gathered(demands[number as usize].next(several, &all));
            broker.handle_timeout(now);
            parties.end_round(broker, now, PeerId(number), &**design, &mut agents);
            while let Some(event) = broker.poll_event() {
                voids += u32::from(matches!(event, Event::Void { .. }));
            }
        }
        let decisions: Vec<Arc<Decision>> = brokers.iter().filter_map(|b| b.accepted().cloned()).collect();
        let void_share = f64::from(voids) / f64::from(several.brokers.max(1));
        outcomes.push(RoundOutcome { void_share, ..outcome(world, &decisions, &expected) });
    }
    outcomes
}

/// Rate that networks expect of each cluster for all brokers together, in bits per second.
fn expected(agents: &[Agent], brokers: u32, world: &World) -> Vec<f64> {
    let of = |(cluster, site): (u32, &crate::world::Site)| {
        let agent = &agents[site.network as usize];
        (0..brokers).map(|broker| agent.expected_bps(PeerId(broker), cluster)).sum()
    };
    (0..).zip(world.sites()).map(of).collect()
}

fn outcome(world: &World, decisions: &[Arc<Decision>], expected: &[f64]) -> RoundOutcome {
    let mut sent: BTreeMap<u32, u64> = BTreeMap::new();
    let (mut all, mut served, mut traffic, mut cost, mut score) = (0.0, 0.0, 0.0, 0.0, 0.0);
    let placed = || decisions.iter().flat_map(|decision| &decision.placed);
    for placed in placed() {
        let sessions = f64::from(placed.sessions);
        all += sessions;
        let Some((to, bid)) = placed.to else { continue };
        *sent.entry(to.cluster).or_default() += placed.bitrate.as_bps() * u64::from(placed.sessions);
        let rate = sessions * mbps(placed.bitrate);
        served += sessions;
        traffic += rate;
        cost += rate * world.sites()[to.cluster as usize].cost_per_mbps;
        score += sessions * bid;
    }
    let is_over = |cluster: u32| {
        sent.get(&cluster).is_some_and(|sent| *sent > world.sites()[cluster as usize].room().as_bps())
    };
    let over = placed()
        .filter(|placed| placed.to.is_some_and(|(to, _)| is_over(to.cluster)))
        .fold(0.0, |sum, placed| sum + f64::from(placed.sessions));
    let surprise: f64 = (0u32..)
        .zip(expected)
        .map(|(cluster, expected)| (sent.get(&cluster).map_or(0.0, |sent| *sent as f64) - expected).abs())
        .sum();
    let ratio = |part: f64, whole: f64| if whole > 0.0 { part / whole } else { 0.0 };
    RoundOutcome {
        overloaded_share: ratio(over, all),
        unserved_share: ratio(all - served, all),
        cost_mean: ratio(cost, traffic),
        score_mean: ratio(score, served),
        surprise_share: ratio(surprise / 1e6, traffic),
        void_share: 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::designs;
    use crate::generator::{WorldShape, generate};

    fn mean(design: &str, reserve: Reserve, of: impl Fn(&RoundOutcome) -> f64) -> f64 {
        let shape = WorldShape {
            networks: vec![12, 4, 4],
            sessions: 600,
            countries: 3,
            cities: 40,
            providers: 3,
            capacity: 0.12,
            ..WorldShape::default()
        };
        let world = generate(&shape, Seed::new(3));
        let several = BrokersStudy {
            brokers: 2,
            rounds: 30,
            reserve,
            swing: 0.3,
            cost_weight: 1.0,
            seed: Seed::new(1),
        };
        let design = designs::by_name(design).expect("there is one");
        let outcomes = run(&world, &design, &several);
        outcomes[10..].iter().map(of).sum::<f64>() / 20.0
    }

    #[test]
    fn guarantees_prevent_overload_and_learnt_reserves_halve_it() {
        let over = |reserve| mean("marketplace", reserve, |outcome| outcome.overloaded_share);
        let (hint, parts) = (over(Reserve::Nothing), over(Reserve::Parts(2)));
        let learnt = over(Reserve::Learnt { deviations: 2.0 });
        assert_eq!(parts, 0.0, "what is promised is kept");
        assert!(hint > 0.1 && learnt < hint / 2.0, "{hint} {learnt}");
    }

    #[test]
    fn assents_prevent_overload_by_several_brokers() {
        let over = mean("transactions", Reserve::Nothing, |outcome| outcome.overloaded_share);
        assert_eq!(over, 0.0);
    }

    #[test]
    fn demand_keeps_its_mean() {
        let world = generate(&WorldShape { sessions: 2_000, ..WorldShape::default() }, Seed::new(1));
        let all = Parties::new(&world).gathered();
        let several = BrokersStudy {
            brokers: 2,
            rounds: 1,
            reserve: Reserve::Nothing,
            swing: 0.3,
            cost_weight: 1.0,
            seed: Seed::new(5),
        };
        let mut demand = Demand::new(&several, 0, all.len());
        let count = |of: &[PlaceDemand]| -> f64 {
            of.iter().flat_map(|of| &of.clients).map(|some| f64::from(some.sessions)).sum()
        };
        let mean = (0..50).map(|_| count(&demand.next(&several, &all))).sum::<f64>() / 50.0;
        assert!((mean / 1_000.0 - 1.0).abs() < 0.05, "{mean}");
    }
}
