//! Plans many instances with every scheme and counts how often each scheme falls short of the
//! min-cut.
//!
//! Read [`Survey`] first, and [`JointSurvey`] for simultaneous transfers. [`triples`],
//! [`random_digraph`], [`unlike_network`] and [`concurrent`] make the instances of the project's
//! claims.

use super::{
    JointRequest, Layout, Plan, PlanError, PlanWithFigures, Planner, RATE_TOLERANCE, Request, SCHEMES,
    Scheme, fairer, share_flows_under, together,
};
use anabranch_graph::{Adjacency, LinkProperties, Topology, max_flow};
use anabranch_units::{BitRate, Duration, RandomStream, Seed, SiteId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Counts over some instances. All fields add up, so surveys can be made in parts and
/// [merged](Survey::merge).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Survey {
    /// Number of planned instances.
    pub instances: u64,
    /// Number of instances with an unreachable destination. They count in no other field.
    pub unreachable: u64,
    /// Instances in which random data passed every scheme's plan to every destination.
    pub decoded: u64,
    /// The first few errors of the other instances.
    pub errors: Vec<String>,
    /// Counts of the coded plans.
    pub coded: CodeCounts,
    /// Counts of plans whose paths are laid for each destination separately
    /// ([`Layout::Independent`]).
    pub independent: CodeCounts,
    /// Counts of plans with random paths ([`Layout::Scattered`]), to get codes with cycles.
    pub scattered: CodeCounts,
    /// Instances in which coding beats every uncoded plan.
    pub coding_gains: u64,
    /// Maximum factor of that gain over the best uncoded plan.
    pub coding_gain_max: f64,
    /// Maximum fraction by which a packing may fall short of the best one.
    pub packed_gap_max: f64,
    /// Number of packings not proven optimal to within the tolerance.
    pub packed_unproven: u64,
    /// Shortfall of each scheme.
    pub schemes: BTreeMap<Scheme, Shortfall>,
    /// Number of choices of `auto`, by scheme.
    pub auto: BTreeMap<Scheme, u64>,
}

/// Counts of coded plans.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CodeCounts {
    /// Instances in which the rate equals the min-cut.
    pub equals_bound: u64,
    /// Instances in which random data passed the plan to every destination.
    pub decoded: u64,
    /// Instances whose plan mixes flows at some site.
    pub coding: u64,
    /// Maximum number of sites that code in one plan.
    pub coding_sites_max: usize,
    /// Instances whose plan delays terms because its flows form a cycle.
    pub delayed: u64,
    /// Instances with delays, by the maximum lookahead of a sink.
    pub lookaheads: BTreeMap<u16, u64>,
    /// Maximum number of state symbols of a sink.
    pub state_max: u16,
}

impl CodeCounts {
    fn add(&mut self, planned: &PlanWithFigures, decoded: bool, equals_bound: bool) {
        self.equals_bound += u64::from(equals_bound);
        self.decoded += u64::from(decoded);
        self.coding += u64::from(planned.figures.coding_flows > 0);
        self.coding_sites_max = self.coding_sites_max.max(planned.figures.coding_sites);
        if planned.figures.delayed_terms > 0 {
            self.delayed += 1;
            *self.lookaheads.entry(planned.figures.lookahead).or_default() += 1;
        }
        let sinks = planned.plan.groups.iter().flat_map(|g| &g.sinks);
        let state = sinks.filter_map(|s| s.decode.as_ref()).map(|d| d.state).max();
        self.state_max = self.state_max.max(state.unwrap_or(0));
    }
    fn merge(&mut self, other: &Self) {
        self.equals_bound += other.equals_bound;
        self.decoded += other.decoded;
        self.coding += other.coding;
        self.coding_sites_max = self.coding_sites_max.max(other.coding_sites_max);
        self.delayed += other.delayed;
        other.lookaheads.iter().for_each(|(k, n)| *self.lookaheads.entry(*k).or_default() += n);
        self.state_max = self.state_max.max(other.state_max);
    }
}

/// Comparison of one scheme's predicted rate with the min-cut.
#[derive(Copy, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Shortfall {
    /// Number of instances in which the scheme's rate is below the min-cut.
    pub short: u64,
    /// Number of short instances as a fraction of the instances that have a plan.
    pub short_share: f64,
    /// Maximum factor by which the min-cut exceeds the rate.
    pub factor_max: f64,
    /// Instances in which only the division into equal flows causes the shortfall.
    pub quantised_short: u64,
    /// Maximum fraction of the rate that equal flows lose.
    pub loss_share_max: f64,
}

/// Maximum number of errors that a survey keeps.
const ERRORS_MAX: usize = 10;

impl Survey {
    /// Plans one more instance with every scheme, and checks every plan.
    pub fn add(&mut self, request: &Request<'_>) {
        self.instances += 1;
        if let Err(error) = self.try_add(request) {
            self.note(request, error);
        }
        let planned = self.instances - self.unreachable;
        for shortfall in self.schemes.values_mut() {
            shortfall.short_share = shortfall.short as f64 / planned.max(1) as f64;
        }
    }

    fn checks(&mut self, request: &Request<'_>, scheme: Scheme, plan: &Plan) -> bool {
        let checked = plan.check(request.topology);
        if let Err(error) = &checked {
            self.note(request, format!("{scheme}: {error}"));
        }
        checked.is_ok()
    }

    fn note(&mut self, request: &Request<'_>, error: String) {
        if self.errors.len() < ERRORS_MAX {
            let (name, from, to) = (request.topology.name(), request.source, &request.destinations);
            self.errors.push(format!("{name}, {from} to {to:?}: {error}"));
        }
    }

    fn try_add(&mut self, request: &Request<'_>) -> Result<(), String> {
        let planner = match Planner::new(request.clone()) {
            Ok(planner) => planner,
            Err(PlanError::Unreachable { .. } | PlanError::NothingLeft { .. }) => {
                self.unreachable += 1;
                return Ok(());
            }
            Err(error) => return Err(error.to_string()),
        };
        let choice = planner.auto().map_err(|e| e.to_string())?;
        let bound = planner.bound().as_bps() as f64;
        let below = |rate: BitRate| (rate.as_bps() as f64) < bound * (1.0 - RATE_TOLERANCE);
        let mut uncoded = 0.0f64;
        let mut coded = 0.0f64;
        let mut decoded = true;
        for offer in &choice.offers {
            let (plan, figures) = (&offer.planned.plan, &offer.planned.figures);
            let checks = self.checks(request, offer.scheme, plan);
            decoded &= checks;
            let rate = plan.rate.as_bps() as f64;
            let shortfall = self.schemes.entry(offer.scheme).or_default();
            shortfall.short += u64::from(below(plan.rate));
            shortfall.quantised_short += u64::from(below(plan.rate) && !below(figures.ideal));
            shortfall.factor_max = shortfall.factor_max.max(bound / rate);
            shortfall.loss_share_max =
                shortfall.loss_share_max.max(figures.loss.as_bps() as f64 / figures.ideal.as_bps() as f64);
            match offer.scheme {
                Scheme::Coded => {
                    coded = rate;
                    self.coded.add(&offer.planned, checks, !below(plan.rate));
                }
                Scheme::Packed => {
                    self.packed_gap_max = self.packed_gap_max.max(figures.gap());
                    self.packed_unproven += u64::from(figures.gap() > RATE_TOLERANCE);
                    uncoded = uncoded.max(rate);
                }
                _ => uncoded = uncoded.max(rate),
            }
        }
        for layout in [Layout::Independent, Layout::Scattered] {
            let mut other = request.clone();
            other.options.layout = layout;
            let planned = super::plan(&other, Scheme::Coded).map_err(|e| format!("{layout:?} paths: {e}"))?;
            let checks = self.checks(request, Scheme::Coded, &planned.plan);
            let counts =
                if layout == Layout::Independent { &mut self.independent } else { &mut self.scattered };
            counts.add(&planned, checks, !below(planned.plan.rate));
            decoded &= checks;
        }
        self.decoded += u64::from(decoded);
        self.coding_gains += u64::from(coded > uncoded * (1.0 + RATE_TOLERANCE));
        self.coding_gain_max = self.coding_gain_max.max(coded / uncoded);
        *self.auto.entry(choice.chosen.plan.scheme).or_default() += 1;
        Ok(())
    }

    /// Adds the counts of another survey.
    pub fn merge(&mut self, other: &Self) {
        self.instances += other.instances;
        self.unreachable += other.unreachable;
        self.coded.merge(&other.coded);
        self.independent.merge(&other.independent);
        self.scattered.merge(&other.scattered);
        self.decoded += other.decoded;
        self.errors.extend(other.errors.iter().cloned());
        self.errors.truncate(ERRORS_MAX);
        self.coding_gains += other.coding_gains;
        self.coding_gain_max = self.coding_gain_max.max(other.coding_gain_max);
        self.packed_gap_max = self.packed_gap_max.max(other.packed_gap_max);
        self.packed_unproven += other.packed_unproven;
        let planned = (self.instances - self.unreachable).max(1) as f64;
        for scheme in SCHEMES {
            let theirs = other.schemes.get(&scheme).copied().unwrap_or_default();
            let ours = self.schemes.entry(scheme).or_default();
            ours.short += theirs.short;
            ours.short_share = ours.short as f64 / planned;
            ours.factor_max = ours.factor_max.max(theirs.factor_max);
            ours.quantised_short += theirs.quantised_short;
            ours.loss_share_max = ours.loss_share_max.max(theirs.loss_share_max);
        }
        other.auto.iter().for_each(|(k, n)| *self.auto.entry(*k).or_default() += n);
    }
}

/// Every source with every set of three destinations: 504 instances on nine sites, 2,860 on
/// thirteen.
pub fn triples(topology: &Topology) -> Vec<(SiteId, Vec<SiteId>)> {
    let sites: Vec<SiteId> = topology.site_ids().collect();
    let mut all = Vec::new();
    for source in &sites {
        let rest: Vec<SiteId> = sites.iter().copied().filter(|s| s != source).collect();
        for (i, a) in rest.iter().enumerate() {
            for (j, b) in rest.iter().enumerate().skip(i + 1) {
                all.extend(rest[j + 1..].iter().map(|c| (*source, vec![*a, *b, *c])));
            }
        }
    }
    all
}

/// The instance with number `id` of a seed: a random digraph of 5 to `sites_max` sites.
///
/// Of every five instances, four have two to four links from each site to random sites, and two to
/// four reachable destinations. One of these four has capacities of 1 to 4, the other three have
/// equal capacities. The fifth instance is a ring of relays that each get a different stream. Its
/// destinations lack one stream, which only the ring can bring. Many rings need codes with cycles.
/// A few more links lead to random sites.
///
/// Panics: for `sites_max` below 9.
pub fn random_digraph(seed: Seed, id: u64, sites_max: u16) -> (Topology, SiteId, Vec<SiteId>) {
    assert!(sites_max >= 9, "the smallest ring with two destinations has nine sites");
    let mut draws = seed.stream("replicate-survey", id);
    loop {
        let instance = if is_ring(id) {
            random_ring(&mut draws, id, sites_max)
        } else {
            random_links(&mut draws, id, sites_max)
        };
        if let Some(instance) = instance {
            return instance;
        }
    }
}

/// Whether [`random_digraph`] makes a ring of the instance with number `id`.
pub fn is_ring(id: u64) -> bool {
    id % 5 == 4
}

/// The network with number `id` of a seed, with a source and destinations: 8 to 40 sites whose
/// links have unequal capacities.
///
/// Cables connect all sites, with a mean of two to five cable ends per site. Every second network
/// draws its capacities from `UNLIKE_GBPS`, the other networks log-uniformly from 1 to 100 Gbit/s.
/// In two of every four networks, the two directions of a cable get separate capacities. One of
/// every ten networks consists of eight disjoint paths of two hops instead. The number of
/// destinations is random.
pub fn unlike_network(seed: Seed, id: u64) -> TransferInstance {
    let mut draws = seed.stream("replicate-unlike", id);
    let log_uniform = id % 2 == 1;
    let capacity = |draws: &mut RandomStream| match log_uniform {
        true => BitRate::bps((1e9 * 100f64.powf(draws.unit_f64())) as u64),
        false => BitRate::gbps(UNLIKE_GBPS[draws.below(UNLIKE_GBPS.len() as u64) as usize]),
    };
    if id % 10 == 9 {
        let mut topology = numbered(id, 2 + PATHS);
        for middle in 2..2 + PATHS {
            let properties = LinkProperties::new(capacity(&mut draws), Duration::ZERO);
            for (from, to) in [(0, middle), (middle, 1)] {
                topology
                    .add_link(SiteId(from), SiteId(to), properties.clone())
                    .expect("two sites, some capacity");
            }
        }
        return (topology, SiteId(0), vec![SiteId(1)]);
    }
    let sites = 8 + draws.below(33) as u16;
    let mut topology = numbered(id, sites);
    let cables = u64::from(sites) * (2 + draws.below(4)) / 2;
    for cable in 0..cables.max(u64::from(sites) - 1) {
        // The first cables make a tree of all sites.
        let (a, b) = match u16::try_from(cable + 1).ok().filter(|a| *a < sites) {
            Some(a) => (a, draws.below(u64::from(a)) as u16),
            None => {
                let a = draws.below(u64::from(sites)) as u16;
                (a, (a + 1 + draws.below(u64::from(sites) - 1) as u16) % sites)
            }
        };
        let there = capacity(&mut draws);
        let back = if id / 2 % 2 == 1 { capacity(&mut draws) } else { there };
        for (from, to, capacity) in [(a, b, there), (b, a, back)] {
            let properties = LinkProperties::new(capacity, Duration::ZERO);
            topology.add_link(SiteId(from), SiteId(to), properties).expect("two sites, some capacity");
        }
    }
    let mut order: Vec<SiteId> = topology.site_ids().collect();
    draws.shuffle(&mut order);
    let destinations = 1 + draws.below(DESTINATIONS.min(u64::from(sites) - 1)) as usize;
    (topology, order[0], order[1..=destinations].to_vec())
}

/// Capacities of [`unlike_network`]: a typical mix of a provider's links.
const UNLIKE_GBPS: [u64; 9] = [1, 2, 5, 8, 9, 10, 25, 40, 100];
/// Number of paths in the networks of disjoint paths.
const PATHS: u16 = 8;
/// Maximum number of destinations of [`unlike_network`]: all sites but the source.
const DESTINATIONS: u64 = 39;

type TransferInstance = (Topology, SiteId, Vec<SiteId>);

fn numbered(id: u64, sites: u16) -> Topology {
    let mut topology = Topology::new(format!("random {id}"));
    for site in 0..sites {
        topology.add_site(site.to_string(), None).expect("numbers differ");
    }
    topology
}

fn join(topology: &mut Topology, from: u16, to: u16, times: u64) {
    let properties = LinkProperties::new(BitRate::gbps(times), Duration::ZERO);
    topology.add_link(SiteId(from), SiteId(to), properties).expect("two different sites, some capacity");
}

/// `None` if too few sites can be reached from the source.
fn random_links(draws: &mut RandomStream, id: u64, sites_max: u16) -> Option<TransferInstance> {
    let sites = 5 + draws.below(u64::from(sites_max) - 4) as u16;
    let mut topology = numbered(id, sites);
    for from in 0..sites {
        for _ in 0..2 + draws.below(3) {
            let to = (from + 1 + draws.below(u64::from(sites) - 1) as u16) % sites;
            let times = if id % 5 == 3 { 1 + draws.below(4) } else { 1 };
            join(&mut topology, from, to, times);
        }
    }
    let mut order: Vec<SiteId> = topology.site_ids().collect();
    draws.shuffle(&mut order);
    let adjacency = Adjacency::new(&topology);
    let capacities = vec![1; adjacency.links()];
    let source = order[0];
    order.retain(|s| *s != source && max_flow(&adjacency, &capacities, source, *s, 1).value > 0);
    let destinations = 2 + draws.below(3) as usize;
    (order.len() >= destinations).then(|| (topology, source, order[..destinations].to_vec()))
}

fn random_ring(draws: &mut RandomStream, id: u64, sites_max: u16) -> Option<TransferInstance> {
    // Sites: the source, one feeder and one ring site (or two with a link between) for each stream,
    // the destinations.
    let split = draws.below(2) == 0;
    let streams = if split { 2 } else { 3 } + u16::from(sites_max >= 12 && draws.below(2) == 0);
    let ring_sites = if split { 2 * streams } else { streams };
    let first = 1 + streams + ring_sites;
    let least = if split { 2 } else { 3 };
    let room = sites_max.checked_sub(first + least)?.min(1);
    let destinations = least + draws.below(u64::from(room) + 1) as u16;
    let mut topology = numbered(id, first + destinations);
    let feeder = |i: u16| 1 + i % streams;
    let into = |i: u16| 1 + streams + if split { 2 * (i % streams) } else { i % streams };
    let out = |i: u16| into(i) + u16::from(split);
    for i in 0..streams {
        join(&mut topology, 0, feeder(i), 1);
        join(&mut topology, feeder(i), into(i), 1);
        if split {
            join(&mut topology, into(i), out(i), 1);
        }
        join(&mut topology, out(i), into(i + 1), 1);
    }
    let turn = draws.below(streams.into()) as u16;
    for destination in 0..destinations {
        let lacks = turn + destination;
        for i in (0..streams).filter(|i| *i != lacks % streams) {
            join(&mut topology, feeder(i), first + destination, 1);
        }
        // The missing stream travels around the ring and leaves it just before its starting point.
        join(&mut topology, out(lacks + streams - 1), first + destination, 1);
    }
    for _ in 0..draws.below(3) {
        let sites = u64::from(first + destinations);
        let from = draws.below(sites) as u16;
        join(&mut topology, from, ((u64::from(from) + 1 + draws.below(sites - 1)) % sites) as u16, 1);
    }
    Some((topology, SiteId(0), (first..first + destinations).map(SiteId).collect()))
}

/// Surveys all [`triples`] of a topology.
pub fn survey_triples(topology: &Topology) -> Survey {
    let mut survey = Survey::default();
    for (source, destinations) in triples(topology) {
        survey.add(&Request::new(topology, source, destinations));
    }
    survey
}

/// Surveys random digraphs `ids` of a seed, of up to twelve sites. See [`is_ring`] to survey the
/// two families separately.
pub fn survey_random(seed: Seed, ids: impl IntoIterator<Item = u64>) -> Survey {
    let mut survey = Survey::default();
    for id in ids {
        let (topology, source, destinations) = random_digraph(seed, id, 12);
        survey.add(&Request::new(&topology, source, destinations));
    }
    survey
}

/// Simultaneous transfers for a random draw: `count` sources, each site at most once, each with
/// `destinations` of the other sites.
///
/// Draws of one seed are nested: a draw with fewer transfers or destinations is the beginning of a
/// draw with more.
/// Shape: at most as many transfers as sites, each to at most all other sites.
pub fn concurrent(
    topology: &Topology,
    seed: Seed,
    count: usize,
    destinations: usize,
) -> Vec<(SiteId, Vec<SiteId>)> {
    let sites: Vec<SiteId> = topology.site_ids().collect();
    let mut sources = sites.clone();
    seed.stream("codedbulk sources", 0).shuffle(&mut sources);
    let drawn = sources.into_iter().take(count).map(|source| {
        let mut rest: Vec<SiteId> = sites.iter().copied().filter(|s| *s != source).collect();
        seed.stream("codedbulk destinations", u64::from(source.0)).shuffle(&mut rest);
        rest.truncate(destinations);
        rest.sort_unstable();
        (source, rest)
    });
    drawn.collect()
}

/// Rates of simultaneous transfers with several ways of planning; flows share the links as TCP
/// flows do ([`share_flows`](super::share_flows)).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct JointSurvey {
    /// Number of planned draws.
    pub instances: u64,
    /// Number of joint plans that mix flows.
    pub coding: u64,
    /// Figures of the slowest transfer of each draw.
    pub smallest: PlanningFigures,
    /// Figures of the sum of rates over the transfers of a draw.
    pub sum: PlanningFigures,
}

/// One figure of a draw for each way of planning, in units of the narrowest link's rate.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PlanningFigures {
    /// Mean over the draws if each transfer is planned as if alone (`auto`).
    pub alone: f64,
    /// All transfers are planned together, each source limited to its share.
    pub together: PlanningComparison,
    /// All transfers are planned together, without rate limits at the sources.
    pub unheld: PlanningComparison,
    /// Each transfer is planned on arrival, together with the earlier transfers, which keep their
    /// plans. It is planned as if alone if that is fairer.
    pub in_turn: PlanningComparison,
}

/// Comparison of one planning method with plans of single transfers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PlanningComparison {
    /// Mean over the draws.
    pub mean: f64,
    /// Draws with an increase of at least 1 %.
    pub more: u64,
    /// Draws with a decrease of at least 1 %.
    pub less: u64,
    /// Minimum ratio to planning alone.
    pub ratio_min: f64,
    /// Maximum ratio to planning alone.
    pub ratio_max: f64,
}

impl PlanningComparison {
    fn add(&mut self, before: u64, alone: f64, ours: f64) {
        let ratio = ours / alone;
        self.mean += (ours - self.mean) / (before + 1) as f64;
        self.more += u64::from(ratio > 1.01);
        self.less += u64::from(ratio < 0.99);
        self.ratio_min = if before == 0 { ratio } else { self.ratio_min.min(ratio) };
        self.ratio_max = self.ratio_max.max(ratio);
    }
}

impl PlanningFigures {
    fn add(&mut self, before: u64, [alone, together, unheld, in_turn]: [f64; 4]) {
        self.alone += (alone - self.alone) / (before + 1) as f64;
        self.together.add(before, alone, together);
        self.unheld.add(before, alone, unheld);
        self.in_turn.add(before, alone, in_turn);
    }
}

impl JointSurvey {
    /// Plans one more draw by all methods.
    ///
    /// Errors: as [`together`].
    pub fn add(&mut self, topology: &Topology, draw: &[(SiteId, Vec<SiteId>)]) -> Result<(), PlanError> {
        let capacities: Vec<u64> = topology.links().iter().map(|l| l.properties.capacity.as_bps()).collect();
        let unit = capacities.iter().copied().min().unwrap_or(1) as f64;
        let requests: Vec<JointRequest<'_>> = draw
            .iter()
            .map(|(source, to)| JointRequest {
                request: Request::new(topology, *source, to.clone()),
                scheme: None,
            })
            .collect();
        let mut alone = Vec::new();
        let (mut in_turn, mut ceilings): (Vec<Plan>, Vec<Option<BitRate>>) = (Vec::new(), Vec::new());
        for asked in &requests {
            let own = Planner::new(asked.request.clone())?.auto()?.chosen.plan;
            alone.push(own.clone());
            let before: Vec<&Plan> = in_turn.iter().collect();
            let beside = together(std::slice::from_ref(asked), &before)?.remove(0).plan;
            let with = |plan: &Plan, ceiling: Option<BitRate>| {
                let plans: Vec<&Plan> = before.iter().copied().chain([plan]).collect();
                share_flows_under(&capacities, &plans, &[&ceilings[..], &[ceiling]].concat())
            };
            let held = !before.is_empty() && fairer(&with(&beside, Some(beside.rate)), &with(&own, None));
            ceilings.push(held.then_some(beside.rate));
            in_turn.push(if held { beside } else { own });
        }
        let joint: Vec<Plan> = together(&requests, &[])?.into_iter().map(|p| p.plan).collect();
        let none = vec![None; joint.len()];
        let shares: Vec<Option<BitRate>> = joint.iter().map(|p| Some(p.rate)).collect();
        let ways = [(&alone, &none), (&joint, &shares), (&joint, &none), (&in_turn, &ceilings)];
        let rates = ways.map(|(plans, ceilings)| -> Vec<f64> {
            let rates = share_flows_under(&capacities, plans, ceilings);
            rates.iter().map(|r| r.as_bps() as f64 / unit).collect()
        });
        let smallest = |rates: &Vec<f64>| rates.iter().copied().fold(f64::INFINITY, f64::min);
        self.smallest.add(self.instances, rates.each_ref().map(smallest));
        self.sum.add(self.instances, rates.each_ref().map(|rates| rates.iter().sum()));
        self.coding += joint.iter().filter(|p| p.flows.iter().any(super::Flow::is_coded)).count() as u64;
        self.instances += 1;
        Ok(())
    }
}

/// Surveys the draws of seeds 1 to `draws`.
///
/// Errors: as [`JointSurvey::add`].
pub fn survey_joint(
    topology: &Topology,
    count: usize,
    destinations: usize,
    draws: u64,
) -> Result<JointSurvey, PlanError> {
    let mut survey = JointSurvey::default();
    for seed in 1..=draws {
        survey.add(topology, &concurrent(topology, Seed::new(seed), count, destinations))?;
    }
    Ok(survey)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn joint_plans_within_shares_never_slow_the_slowest() {
        let topology = anabranch_graph::file::load(
            "internet2",
            &anabranch_graph::file::Defaults::new(BitRate::gbps(1)),
            |_| Err(std::io::ErrorKind::NotFound.into()),
        )
        .expect("built in");
        let survey = survey_joint(&topology, 4, 3, 30).expect("plans exist");
        let PlanningFigures { alone, together, unheld, .. } = &survey.smallest;
        assert_eq!((survey.instances, together.less), (30, 0));
        assert!(together.more > 5 && together.mean > alone * 1.05, "{survey:?}");
        assert!(unheld.less > 5, "TCP alone does not share so: {survey:?}");
        assert!(survey.sum.together.mean > survey.sum.alone * 1.05, "{survey:?}");
    }
}
