//! Coded plans: paths to every destination at the min-cut rate, and a code on their union.
//!
//! Sources: Jaggi and others, *Polynomial time algorithms for multicast network code construction*
//! (2005), section III (linear information flow, deterministic); Massey and Sain, *Inverses of
//! linear sequential circuits* (1968), for codes with cycles; CodedBulk section 2.4.
//!
//! The steps: capacities become unit links. Every destination gets `streams` unit-disjoint paths
//! that reuse the links of other destinations. If the flows then depend on each other without a
//! cycle, linear information flow finds the coefficients in topological order; plain forwarding is
//! tried first. A cycle is broken by delaying some terms by a generation; coefficients then come
//! from a seeded stream until every sink satisfies Massey and Sain's rank condition.
//!
//! Leaves out: the minimum number of links or coding sites (both NP-hard). Read [`Code`] first.

use super::field::{self, Matrix};
use super::request::{Layout, PlanError, Problem};
use super::routed::{Route, Routes};
use super::{DecodeMap, Flow, FlowId, Input, Sink, Term};
use anabranch_graph::{Adjacency, max_flow, min_cost_flow};
use anabranch_units::{LinkId, RandomStream, SiteId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A code: the content of every flow and the decoding at every sink.
#[derive(Clone, Debug)]
pub(super) struct Code {
    /// Rate of a flow in bits per second.
    pub unit: u64,
    pub streams: u16,
    pub flows: Vec<Flow>,
    pub sinks: Vec<Sink>,
}

/// Number of path layouts that are tried: they differ in order and in seeded preferences.
const LAYOUTS: u64 = 6;
/// Number of layouts that are tried while all of them have a cycle.
const LAYOUTS_CYCLIC: u64 = 18;
/// Maximum number of draws of coefficients for a code with cycles. A draw fails with probability of
/// about destinations * flows / 255.
const DRAWS: u32 = 64;
/// Cost of a new unit of a link relative to one that another destination's path already uses.
const NEW_UNIT: u64 = 1_000;

impl Code {
    pub fn new(problem: &Problem) -> Result<Self, PlanError> {
        let (unit, streams) = unit_and_streams(problem);
        let network = UnitNetwork::new(problem, unit, streams);
        // The best code so far, with its numbers of coding flows and of flows as the sort key.
        let mut best: Option<((usize, usize), Coefficients)> = None;
        let mut cyclic: Vec<(usize, Dependencies, BTreeSet<Arc>)> = Vec::new();
        let (enough, most) = match problem.options.layout {
            Layout::Shared => (LAYOUTS, LAYOUTS_CYCLIC),
            Layout::Independent | Layout::Scattered => (1, 1),
        };
        for layout in 0..most {
            if best.as_ref().is_some_and(|b| b.0.0 == 0) || best.is_some() && layout >= enough {
                break;
            }
            let paths = match problem.options.layout {
                Layout::Shared => network.lay_paths(layout),
                Layout::Independent => {
                    network.lay_shortest_paths(|unit| problem.lengths[network.link_of[unit].index()])
                }
                Layout::Scattered => {
                    let mut draws = problem.options.seed.stream("replicate-scattered", 0);
                    network.lay_shortest_paths(|_| 1 + draws.below(NEW_UNIT))
                }
            };
            let Some(paths) = paths else { continue };
            let dependencies = Dependencies::new(&network, paths);
            match dependencies.topological_order() {
                Some(order) => {
                    let (flows, ends) = dependencies.code_acyclic(&network, &order);
                    let coding = flows.iter().filter(|f| f.terms.len() > 1).count();
                    let score = (coding, flows.len());
                    if best.as_ref().is_none_or(|b| score < b.0) {
                        best = Some((score, (flows, ends)));
                    }
                }
                None => {
                    let mut draws = problem.options.seed.stream("replicate-feedback", layout);
                    let delayed = dependencies.feedback(&mut draws);
                    let delayed_flows = delayed.iter().map(|arc| arc.0).collect::<BTreeSet<_>>().len();
                    cyclic.push((delayed_flows, dependencies, delayed));
                }
            }
        }
        if let Some((_, (flows, ends))) = best {
            let sinks = sinks(streams, &flows, &network.destinations, &ends)
                .expect("linear information flow keeps every destination's vectors a basis");
            return Ok(Self { unit, streams, flows, sinks });
        }
        cyclic.sort_by_key(|c| c.0);
        let mut draws = problem.options.seed.stream("replicate-coefficients", 0);
        let mut tries = 0;
        for (_, dependencies, delayed) in &cyclic {
            for _ in 0..DRAWS {
                let (flows, ends) = dependencies.code_cyclic(&network, delayed, tries, &mut draws);
                tries += 1;
                if let Some(sinks) = sinks(streams, &flows, &network.destinations, &ends) {
                    return Ok(Self { unit, streams, flows, sinks });
                }
            }
        }
        Err(PlanError::NoCode { tries })
    }

    /// This code as routes, if no flow mixes streams: every stream then follows its own tree.
    pub fn routes(&self) -> Option<Routes> {
        if self.flows.iter().any(Flow::is_coded) {
            return None;
        }
        let mut routes = vec![Route { hops: Vec::new(), sinks: Vec::new() }; self.streams.into()];
        // Every flow follows its inputs in the list: acyclic codes are numbered in topological
        // order.
        let mut place: Vec<(usize, usize)> = Vec::new();
        for flow in &self.flows {
            let (stream, parent) = match flow.terms[0].input {
                Input::Stream(s) => (usize::from(s), None),
                Input::Flow(f) => (place.get(f.index())?.0, Some(place[f.index()].1)),
            };
            place.push((stream, routes[stream].hops.len()));
            routes[stream].hops.push((parent, flow.link));
        }
        for sink in &self.sinks {
            for f in &sink.inputs {
                let (stream, hop) = place[f.index()];
                routes[stream].sinks.push((sink.site, hop));
            }
        }
        let destinations = self.sinks.len();
        let whole = routes.iter().all(|r| r.sinks.len() == destinations);
        whole.then(|| Routes { routes: routes.into_iter().map(|r| (r, self.unit as f64)).collect() })
    }
}

/// The unit and the number of streams with the largest product. Of equal products, the one with the
/// fewest streams.
fn unit_and_streams(problem: &Problem) -> (u64, u16) {
    let most = u64::from(problem.options.coded_streams_max);
    let bound = problem.bound();
    let used: BTreeSet<u64> = problem.capacities.iter().copied().filter(|c| *c > 0).collect();
    let whole = used.iter().fold(0, |a, b| gcd(a, *b));
    let mut units: BTreeSet<u64> =
        used.iter().chain([&bound]).flat_map(|c| (1..=most).map(move |k| c / k)).chain([whole]).collect();
    units.remove(&0);
    // The rate at one unit: as many whole units as fit, up to the stream limit.
    let (mut best, mut best_rate) = ((1, 1), 0);
    for unit in units.into_iter().rev().filter(|u| *u <= bound) {
        if unit * (bound / unit).min(most) <= best_rate {
            continue;
        }
        let in_units: Vec<u64> = problem.capacities.iter().map(|c| c / unit).collect();
        let streams = problem.destinations.iter().try_fold(most, |least, d| {
            let flow = max_flow(&problem.adjacency, &in_units, problem.source, *d, least).value;
            (flow * unit > best_rate).then_some(flow)
        });
        if let Some(streams) = streams {
            (best, best_rate) = ((unit, streams as u16), unit * streams);
        }
        if best_rate == bound {
            break;
        }
    }
    best
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// The network with every link divided into links of one unit.
struct UnitNetwork {
    units: Adjacency,
    link_of: Vec<LinkId>,
    source: SiteId,
    destinations: Vec<SiteId>,
    streams: usize,
    seed: anabranch_units::Seed,
}

/// A unit link, and a unit link that it feeds.
type Arc = (usize, usize);
/// Flows with their terms, and the flows that each destination receives.
type Coefficients = (Vec<Flow>, Vec<Vec<FlowId>>);
/// For each destination, its paths as unit links.
type Paths = Vec<Vec<Vec<usize>>>;

impl UnitNetwork {
    fn new(problem: &Problem, unit: u64, streams: u16) -> Self {
        let (mut ends, mut link_of) = (Vec::new(), Vec::new());
        for link in problem.adjacency.link_ids() {
            for _ in 0..(problem.capacities[link.index()] / unit).min(streams.into()) {
                ends.push((problem.adjacency.from(link), problem.adjacency.to(link)));
                link_of.push(link);
            }
        }
        Self {
            units: Adjacency::from_ends(problem.adjacency.sites(), ends),
            link_of,
            source: problem.source,
            destinations: problem.destinations.clone(),
            streams: streams.into(),
            seed: problem.options.seed,
        }
    }

    /// Paths to every destination that share units where possible; `None` if this layout does not
    /// reach the wanted rate.
    fn lay_paths(&self, layout: u64) -> Option<Paths> {
        let count = self.units.links();
        let mut draws = self.seed.stream("replicate-layout", layout);
        let mut order: Vec<usize> = (0..self.destinations.len()).collect();
        let mut usable = vec![1; count];
        let mut preference = vec![0; count];
        // The third layout uses only links that lead away from the source, so it cannot have a
        // cycle. It does not always reach the rate.
        if layout == 2 {
            let rank = self.ranks();
            for unit in self.units.link_ids() {
                let (from, to) = (self.units.from(unit).index(), self.units.to(unit).index());
                usable[unit.index()] = u64::from(rank[from] < rank[to]);
            }
        } else if layout == 1 {
            order.reverse();
        } else if layout > 2 {
            draws.shuffle(&mut order);
            preference.iter_mut().for_each(|p| *p = draws.below(NEW_UNIT / 2));
        }
        let mut users = vec![0u32; count];
        let mut flows: Vec<Vec<u64>> = vec![Vec::new(); self.destinations.len()];
        for round in 0..3 {
            let mut changed = false;
            for d in &order {
                let previous = std::mem::take(&mut flows[*d]);
                for (unit, used) in previous.iter().enumerate() {
                    users[unit] -= *used as u32;
                }
                let lengths: Vec<u64> =
                    (0..count).map(|u| if users[u] > 0 { 1 } else { NEW_UNIT + preference[u] }).collect();
                let value = self.streams as u64;
                let flow =
                    min_cost_flow(&self.units, &usable, &lengths, self.source, self.destinations[*d], value)?;
                for (unit, used) in flow.units.iter().enumerate() {
                    users[unit] += *used as u32;
                }
                changed |= round > 0 && flow.units != previous;
                flows[*d] = flow.units;
            }
            if round > 0 && !changed {
                break;
            }
        }
        Some(self.join_units(&flows))
    }

    /// The shortest disjoint paths to each destination separately; `length` is evaluated again for
    /// each destination.
    fn lay_shortest_paths(&self, mut length: impl FnMut(usize) -> u64) -> Option<Paths> {
        let (usable, value) = (vec![1; self.units.links()], self.streams as u64);
        let mut flows = Vec::new();
        for destination in &self.destinations {
            let lengths: Vec<u64> = (0..self.units.links()).map(&mut length).collect();
            flows
                .push(min_cost_flow(&self.units, &usable, &lengths, self.source, *destination, value)?.units);
        }
        Some(self.join_units(&flows))
    }

    fn ranks(&self) -> Vec<(u32, usize)> {
        let mut rank: Vec<(u32, usize)> = (0..self.units.sites()).map(|s| (u32::MAX, s)).collect();
        rank[self.source.index()].0 = 0;
        let mut queue = VecDeque::from([self.source]);
        while let Some(site) = queue.pop_front() {
            for unit in self.units.links_out(site) {
                let to = self.units.to(*unit);
                if rank[to.index()].0 == u32::MAX {
                    rank[to.index()].0 = rank[site.index()].0 + 1;
                    queue.push_back(to);
                }
            }
        }
        rank
    }

    /// Joins the units that enter a site to the units that leave it, for each destination. Joints
    /// that another destination already has are preferred.
    fn join_units(&self, flows: &[Vec<u64>]) -> Paths {
        let mut joints: BTreeSet<Arc> = BTreeSet::new();
        let mut all = Vec::new();
        for (d, flow) in flows.iter().enumerate() {
            let used = |units: &[LinkId]| -> Vec<usize> {
                units.iter().map(|u| u.index()).filter(|u| flow[*u] > 0).collect()
            };
            let mut next: BTreeMap<usize, usize> = BTreeMap::new();
            for site in (0..self.units.sites() as u16).map(SiteId) {
                if site == self.source || site == self.destinations[d] {
                    continue;
                }
                let (mut into, mut out) = (used(self.units.links_in(site)), used(self.units.links_out(site)));
                into.retain(|i| match out.iter().position(|o| joints.contains(&(*i, *o))) {
                    Some(found) => {
                        next.insert(*i, out.remove(found));
                        false
                    }
                    None => true,
                });
                next.extend(into.into_iter().zip(out));
            }
            joints.extend(next.iter().map(|(a, b)| (*a, *b)));
            let path = |first: usize| std::iter::successors(Some(first), |u| next.get(u).copied()).collect();
            all.push(used(self.units.links_out(self.source)).into_iter().map(path).collect());
        }
        all
    }
}

/// The unit links that feed each other, by the paths of all destinations.
struct Dependencies {
    paths: Paths,
    /// For each unit link, its predecessors on the paths that use it, without repeats.
    before: BTreeMap<usize, Vec<CodeInput>>,
    /// For each destination and path, the stream with which it begins.
    first_stream: Vec<Vec<usize>>,
}

#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum CodeInput {
    Stream(usize),
    Unit(usize),
}

impl Dependencies {
    fn new(network: &UnitNetwork, paths: Paths) -> Self {
        let mut before: BTreeMap<usize, Vec<CodeInput>> = BTreeMap::new();
        let mut first_stream = Vec::new();
        for of_destination in &paths {
            let mut free: Vec<usize> = (0..network.streams).collect();
            let mut streams = vec![None; of_destination.len()];
            // A path uses the stream that its first unit already carries, if this destination does
            // not have that stream yet.
            for (path, stream) in of_destination.iter().zip(&mut streams) {
                let known = before.get(&path[0]).into_iter().flatten().find_map(|b| match b {
                    CodeInput::Stream(s) if free.contains(s) => Some(*s),
                    _ => None,
                });
                if let Some(s) = known {
                    free.retain(|f| *f != s);
                    *stream = Some(s);
                }
            }
            let mut free = free.into_iter();
            let streams: Vec<usize> = streams
                .into_iter()
                .map(|s| s.or_else(|| free.next()).expect("as many streams as paths"))
                .collect();
            for (path, stream) in of_destination.iter().zip(&streams) {
                let mut last = CodeInput::Stream(*stream);
                for unit in path {
                    let list = before.entry(*unit).or_default();
                    if !list.contains(&last) {
                        list.push(last);
                    }
                    last = CodeInput::Unit(*unit);
                }
            }
            first_stream.push(streams);
        }
        Self { paths, before, first_stream }
    }

    fn arcs(&self) -> impl Iterator<Item = Arc> + '_ {
        self.before.iter().flat_map(|(unit, list)| {
            list.iter().filter_map(|b| match b {
                CodeInput::Unit(from) => Some((*from, *unit)),
                CodeInput::Stream(_) => None,
            })
        })
    }

    fn topological_order(&self) -> Option<Vec<usize>> {
        let mut waits: BTreeMap<usize, usize> = self.before.keys().map(|u| (*u, 0)).collect();
        let mut after: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (from, to) in self.arcs() {
            *waits.entry(to).or_default() += 1;
            after.entry(from).or_default().push(to);
        }
        let mut order: Vec<usize> = waits.iter().filter(|(_, n)| **n == 0).map(|(u, _)| *u).collect();
        let mut next = 0;
        while next < order.len() {
            for to in after.get(&order[next]).into_iter().flatten() {
                let left = waits.get_mut(to).expect("every unit waits for a number of others");
                *left -= 1;
                if *left == 0 {
                    order.push(*to);
                }
            }
            next += 1;
        }
        (order.len() == waits.len()).then_some(order)
    }

    /// A minimal set of arcs whose removal leaves no cycle: the smallest of a few such sets.
    fn feedback(&self, draws: &mut RandomStream) -> BTreeSet<Arc> {
        const ORDERS: usize = 12;
        let mut arcs: Vec<Arc> = self.arcs().collect();
        let mut best: Option<BTreeSet<Arc>> = None;
        let cost =
            |set: &BTreeSet<Arc>| (set.iter().map(|arc| arc.0).collect::<BTreeSet<_>>().len(), set.len());
        for _ in 0..ORDERS {
            let mut after: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
            let mut cut = BTreeSet::new();
            for (from, to) in &arcs {
                let mut open = vec![*to];
                let mut seen = BTreeSet::from([*to]);
                while let Some(unit) = open.pop() {
                    open.extend(after.get(&unit).into_iter().flatten().filter(|u| seen.insert(**u)));
                }
                if seen.contains(from) {
                    cut.insert((*from, *to));
                } else {
                    after.entry(*from).or_default().push(*to);
                }
            }
            if best.as_ref().is_none_or(|b| cost(&cut) < cost(b)) {
                best = Some(cut);
            }
            draws.shuffle(&mut arcs);
        }
        best.expect("at least one order was tried")
    }

    /// Linear information flow: coefficients for the units in topological order.
    fn code_acyclic(&self, network: &UnitNetwork, order: &[usize]) -> Coefficients {
        let h = network.streams;
        let one = |i: usize| -> Vec<u8> { (0..h).map(|j| u8::from(i == j)).collect() };
        let unit_matrix: Matrix = (0..h).map(one).collect();
        // Per destination: the path that uses each unit, and the duals of the vectors that its
        // paths carry so far. Row i of the duals has product 1 with path i's vector and 0 with
        // every other path's vector.
        let mut on_path: Vec<BTreeMap<usize, usize>> = Vec::new();
        let mut duals: Vec<Matrix> = Vec::new();
        for (paths, streams) in self.paths.iter().zip(&self.first_stream) {
            on_path
                .push(paths.iter().enumerate().flat_map(|(i, p)| p.iter().map(move |u| (*u, i))).collect());
            duals.push(streams.iter().map(|s| unit_matrix[*s].clone()).collect());
        }
        let mut vectors: BTreeMap<usize, Vec<u8>> = BTreeMap::new();
        let mut terms: BTreeMap<usize, Vec<(CodeInput, u8)>> = BTreeMap::new();
        for unit in order {
            let inputs: Vec<(CodeInput, Vec<u8>)> = self.before[unit]
                .iter()
                .map(|b| match b {
                    CodeInput::Stream(s) => (*b, unit_matrix[*s].clone()),
                    CodeInput::Unit(u) => (*b, vectors[u].clone()),
                })
                .collect();
            let users: Vec<(usize, usize)> =
                on_path.iter().enumerate().filter_map(|(d, m)| m.get(unit).map(|i| (d, *i))).collect();
            let tests: Vec<&Vec<u8>> = users.iter().map(|(d, i)| &duals[*d][*i]).collect();
            let coefficients = combination(&inputs.iter().map(|i| &i.1).collect::<Vec<_>>(), &tests);
            let mut vector = vec![0; h];
            let mut own = Vec::new();
            for ((before, input), c) in inputs.iter().zip(coefficients).filter(|(_, c)| *c != 0) {
                field::add_scaled(&mut vector, c, input);
                own.push((*before, c));
            }
            for (d, i) in users {
                let scale = field::inv(field::dot(&duals[d][i], &vector));
                duals[d][i].iter_mut().for_each(|v| *v = field::mul(*v, scale));
                let replaced = duals[d][i].clone();
                for (j, dual) in duals[d].iter_mut().enumerate().filter(|(j, _)| *j != i) {
                    debug_assert_ne!(j, i);
                    let factor = field::dot(dual, &vector);
                    field::add_scaled(dual, factor, &replaced);
                }
            }
            vectors.insert(*unit, vector);
            terms.insert(*unit, own);
        }
        self.flows(network, order, &terms, &BTreeSet::new())
    }

    /// Random coefficients, with delays at the arcs in `delayed`. The first try uses 1 everywhere.
    fn code_cyclic(
        &self,
        network: &UnitNetwork,
        delayed: &BTreeSet<Arc>,
        attempt: u32,
        draws: &mut RandomStream,
    ) -> Coefficients {
        let mut terms = BTreeMap::new();
        for (unit, list) in &self.before {
            let mut own = Vec::new();
            for before in list {
                // A coefficient of 1 costs a relay the least, so about half of the coefficients are
                // 1 in the first tries.
                let one = list.len() == 1 || attempt == 0 || attempt < 8 && draws.below(2) == 0;
                own.push((*before, if one { 1 } else { 1 + draws.below(255) as u8 }));
            }
            terms.insert(*unit, own);
        }
        let order: Vec<usize> = self.before.keys().copied().collect();
        self.flows(network, &order, &terms, delayed)
    }

    /// The flows for the units that some sink needs, and the flows that each sink receives.
    fn flows(
        &self,
        network: &UnitNetwork,
        order: &[usize],
        terms: &BTreeMap<usize, Vec<(CodeInput, u8)>>,
        delayed: &BTreeSet<Arc>,
    ) -> Coefficients {
        let ends: Vec<Vec<usize>> = self
            .paths
            .iter()
            .map(|paths| paths.iter().map(|p| *p.last().expect("a path has links")).collect())
            .collect();
        let mut needed: BTreeSet<usize> = ends.iter().flatten().copied().collect();
        let mut open: Vec<usize> = needed.iter().copied().collect();
        while let Some(unit) = open.pop() {
            for (before, _) in &terms[&unit] {
                if let CodeInput::Unit(u) = before
                    && needed.insert(*u)
                {
                    open.push(*u);
                }
            }
        }
        let kept: Vec<usize> = order.iter().copied().filter(|u| needed.contains(u)).collect();
        let id: BTreeMap<usize, FlowId> =
            kept.iter().enumerate().map(|(i, u)| (*u, FlowId(i as u32))).collect();
        let term = |unit: usize, before: CodeInput, coefficient: u8| match before {
            CodeInput::Stream(s) => Term { input: Input::Stream(s as u16), coefficient, delayed: false },
            CodeInput::Unit(u) => {
                Term { input: Input::Flow(id[&u]), coefficient, delayed: delayed.contains(&(u, unit)) }
            }
        };
        let flows = kept
            .iter()
            .map(|unit| Flow {
                group: 0,
                link: network.link_of[*unit],
                terms: terms[unit].iter().map(|(before, c)| term(*unit, *before, *c)).collect(),
            })
            .collect();
        (flows, ends.iter().map(|units| units.iter().map(|u| id[u]).collect()).collect())
    }
}

/// Coefficients for `inputs` such that their sum has a nonzero product with every test. The search
/// is short, and prefers few and simple coefficients. Each test has a nonzero product with at least
/// one input.
///
/// Source: Jaggi and others 2005, section III-B: each test forbids at most one value of a
/// coefficient.
fn combination(inputs: &[&Vec<u8>], tests: &[&Vec<u8>]) -> Vec<u8> {
    let passes = |coefficients: &[(usize, u8)]| {
        tests.iter().all(|test| {
            let sum = |(i, c): &(usize, u8)| field::mul(*c, field::dot(test, inputs[*i]));
            coefficients.iter().map(sum).fold(0, field::add) != 0
        })
    };
    let spread = |coefficients: &[(usize, u8)]| {
        let mut all = vec![0; inputs.len()];
        coefficients.iter().for_each(|(i, c)| all[*i] = *c);
        all
    };
    if let Some(i) = (0..inputs.len()).find(|i| passes(&[(*i, 1)])) {
        return spread(&[(i, 1)]);
    }
    for a in 0..inputs.len() {
        for b in a + 1..inputs.len() {
            if let Some(c) = (1..=255).find(|c| passes(&[(a, 1), (b, *c)])) {
                return spread(&[(a, 1), (b, c)]);
            }
        }
    }
    let mut chosen: Vec<(usize, u8)> = vec![(0, 1)];
    let product = |chosen: &[(usize, u8)], test: &Vec<u8>| {
        chosen.iter().map(|(i, c)| field::mul(*c, field::dot(test, inputs[*i]))).fold(0, field::add)
    };
    for done in 0..tests.len() {
        if product(&chosen, tests[done]) != 0 {
            continue;
        }
        let helper = (0..inputs.len())
            .find(|i| field::dot(tests[done], inputs[*i]) != 0)
            .expect("the test's own path brings an input that passes it");
        let held = chosen.iter().find(|(i, _)| *i == helper).map_or(0, |(_, c)| *c);
        chosen.retain(|(i, _)| *i != helper);
        let value = (0..=255u8)
            .find(|value| {
                let mut with = chosen.clone();
                with.push((helper, *value));
                *value != held && tests[..=done].iter().all(|t| product(&with, t) != 0)
            })
            .expect("fewer tests than field elements leave one value free");
        chosen.push((helper, value));
    }
    spread(&chosen)
}

/// Decoding of every sink; `None` if a sink cannot decode.
fn sinks(streams: u16, flows: &[Flow], destinations: &[SiteId], ends: &[Vec<FlowId>]) -> Option<Vec<Sink>> {
    let system = System::new(streams.into(), flows)?;
    let sink = |(site, inputs): (&SiteId, &Vec<FlowId>)| {
        Some(Sink { site: *site, inputs: inputs.clone(), decode: Some(system.decoder(inputs)?) })
    };
    destinations.iter().zip(ends).map(sink).collect()
}

/// The flows as a linear sequential circuit: generation g of every flow is a sum of generation g of
/// the streams and of the state. The state holds the previous generation of the flows that some
/// term delays.
struct System {
    streams: usize,
    /// The flow whose previous generation each state symbol holds.
    state: Vec<FlowId>,
    /// For each flow, its coefficients over the streams, then over the state.
    rows: Matrix,
}

impl System {
    /// `None` if the terms without delay form a cycle.
    fn new(streams: usize, flows: &[Flow]) -> Option<Self> {
        let terms = || flows.iter().flat_map(|f| &f.terms);
        let delayed: BTreeSet<FlowId> = terms()
            .filter_map(|t| match t.input {
                Input::Flow(f) if t.delayed => Some(f),
                _ => None,
            })
            .collect();
        let state: Vec<FlowId> = delayed.into_iter().collect();
        let mut rows: Vec<Option<Vec<u8>>> = vec![None; flows.len()];
        let mut left = flows.len();
        while left > 0 {
            let before = left;
            for (i, flow) in flows.iter().enumerate() {
                if rows[i].is_some() {
                    continue;
                }
                let mut row = vec![0; streams + state.len()];
                let known = flow.terms.iter().all(|term| match term.input {
                    Input::Stream(s) => {
                        row[usize::from(s)] = field::add(row[usize::from(s)], term.coefficient);
                        true
                    }
                    Input::Flow(f) if term.delayed => {
                        let at = streams + state.binary_search(&f).expect("delayed flows are the state");
                        row[at] = field::add(row[at], term.coefficient);
                        true
                    }
                    Input::Flow(f) => match &rows[f.index()] {
                        Some(input) => {
                            field::add_scaled(&mut row, term.coefficient, input);
                            true
                        }
                        None => false,
                    },
                });
                if known {
                    rows[i] = Some(row);
                    left -= 1;
                }
            }
            if left == before {
                return None;
            }
        }
        Some(Self { streams, state, rows: rows.into_iter().map(|r| r.expect("none is left")).collect() })
    }

    /// The inverse with the least lookahead; `None` if there is none.
    ///
    /// Source: Massey and Sain 1968: an inverse with lookahead D exists if and only if the rank of
    /// the D-step transfer matrix exceeds the rank of the previous one by the number of streams. D
    /// need not exceed the size of the state.
    fn decoder(&self, inputs: &[FlowId]) -> Option<DecodeMap> {
        let (h, n) = (self.streams, self.state.len());
        let split = |ids: &[FlowId]| -> (Matrix, Matrix) {
            let row = |f: &FlowId| (self.rows[f.index()][h..].to_vec(), self.rows[f.index()][..h].to_vec());
            ids.iter().map(row).unzip()
        };
        let (c, m) = split(inputs);
        let (a, b) = split(&self.state);
        // impulse[k]: contribution of the streams of generation g to the inputs of generation g +
        // k.
        let mut impulse = vec![m];
        let mut observed = c.clone();
        let mut observes = c;
        for lookahead in 0..=n {
            let block = |i: usize, row: usize| -> Vec<u8> {
                (0..=lookahead)
                    .flat_map(|j| if j <= i { impulse[i - j][row].clone() } else { vec![0; h] })
                    .collect()
            };
            let transfer: Matrix = (0..=lookahead)
                .flat_map(|i| (0..h).map(move |row| (i, row)))
                .map(|(i, r)| block(i, r))
                .collect();
            let wanted: Matrix =
                (0..h).map(|i| (0..h * (lookahead + 1)).map(|j| u8::from(i == j)).collect()).collect();
            if let Some(inverse) = field::solve_left(&transfer, &wanted) {
                let by_state = field::product(&inverse, &observes, n);
                return Some(self.shorten(lookahead, inverse, by_state, &a, &b));
            }
            impulse.push(field::product(&observed, &b, h));
            observed = field::product(&observed, &a, n);
            observes.extend(observed.iter().cloned());
        }
        None
    }

    /// Removes the state's symbols that affect neither the output nor another needed symbol.
    fn shorten(
        &self,
        lookahead: usize,
        inverse: Matrix,
        by_state: Matrix,
        a: &Matrix,
        b: &Matrix,
    ) -> DecodeMap {
        let n = self.state.len();
        let mut needed: Vec<bool> = (0..n).map(|j| by_state.iter().any(|row| row[j] != 0)).collect();
        let mut open: Vec<usize> = (0..n).filter(|j| needed[*j]).collect();
        while let Some(i) = open.pop() {
            for j in (0..n).filter(|j| a[i][*j] != 0) {
                if !std::mem::replace(&mut needed[j], true) {
                    open.push(j);
                }
            }
        }
        let kept: Vec<usize> = (0..n).filter(|j| needed[*j]).collect();
        let pick = |row: &Vec<u8>| kept.iter().map(|j| row[*j]).collect::<Vec<u8>>();
        DecodeMap {
            lookahead: lookahead as u16,
            state: kept.len() as u16,
            output: inverse.into_iter().zip(&by_state).map(|(l, s)| [l, pick(s)].concat()).collect(),
            next: kept.iter().map(|i| [pick(&a[*i]), b[*i].clone()].concat()).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Request;
    use crate::plan::survey::random_digraph;
    use anabranch_units::Seed;

    /// More delays than any cycle needs: the lookahead of the inverse is then as long as the paths.
    #[test]
    fn code_with_all_terms_delayed_decodes_with_lookahead() {
        let (mut lookahead, mut state) = (0, 0);
        for id in 0..60 {
            let (topology, source, destinations) = random_digraph(Seed::new(5), id, 12);
            let problem =
                Problem::new(&Request::new(&topology, source, destinations)).expect("can be reached");
            let (unit, streams) = unit_and_streams(&problem);
            let network = UnitNetwork::new(&problem, unit, streams);
            let dependencies =
                Dependencies::new(&network, network.lay_paths(0).expect("the rate is reached"));
            let all: BTreeSet<Arc> = dependencies.arcs().collect();
            let mut draws = Seed::new(5).stream("coefficients", id);
            let (flows, found) = (0..DRAWS)
                .find_map(|attempt| {
                    let (flows, ends) = dependencies.code_cyclic(&network, &all, attempt, &mut draws);
                    Some((flows.clone(), sinks(streams, &flows, &network.destinations, &ends)?))
                })
                .expect("some draw decodes");
            for decode in found.iter().filter_map(|s| s.decode.as_ref()) {
                (lookahead, state) = (lookahead.max(decode.lookahead), state.max(decode.state));
            }
            let rate = anabranch_units::BitRate::bps(unit * u64::from(streams));
            let plan = crate::plan::Plan {
                scheme: crate::plan::Scheme::Coded,
                source,
                destinations: network.destinations.clone(),
                unit: anabranch_units::BitRate::bps(unit),
                groups: vec![crate::plan::Group {
                    streams,
                    weights: Vec::new(),
                    mode: crate::plan::Mode::Coded,
                    sinks: found,
                    fills: None,
                }],
                flows,
                rate,
                bound: rate,
                store_and_forward: false,
            };
            plan.check(&topology).expect("every destination decodes");
        }
        assert!(lookahead >= 3 && state >= 3, "{lookahead} {state}");
    }
}
