//! Uncoded plans: paths, greedily packed trees and optimally packed trees, as flows.
//!
//! Every scheme first determines *routes* and their rates. Then [`quantise`] turns the rates into
//! whole numbers of units: equal flows if equal flows lose no rate, otherwise flows of unequal
//! rates. Sources: CodedBulk sections 2.2 and 4.1; Watel and Weisser 2016.
//!
//! Leaves out: codes. Read [`Route`] first.

use super::request::{PlanError, Problem, STREAMS_MAX};
use super::shares::{Column, PricedColumn, max_min};
use super::{Flow, FlowId, Group, Input, Mode, Sink, Term};
use anabranch_graph::{
    Arborescence, arborescence_price_bound, cheapest_arborescence, decompose, distances, greedy_arborescence,
    min_cost_flow,
};
use anabranch_units::{LinkId, SiteId};
use std::collections::BTreeMap;

/// Copies of data from the source to some destinations: a list of hops, in which each hop follows
/// the hop that feeds it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Route {
    /// For each hop, the index of the previous hop (`None` at the source), and the link.
    pub hops: Vec<(Option<usize>, LinkId)>,
    /// Destinations and the hop from which each takes its copy.
    pub sinks: Vec<(SiteId, usize)>,
}

/// Routes to the same destinations, each with a rate in bits per second.
#[derive(Clone, Debug)]
pub(super) struct Routes {
    pub routes: Vec<(Route, f64)>,
}

/// Flows with whole numbers of units.
#[derive(Clone, Debug)]
pub(super) struct QuantisedFlows {
    /// Rate of a unit in bits per second.
    pub unit: u64,
    pub groups: Vec<Group>,
    pub flows: Vec<Flow>,
}

impl Routes {
    /// Rate of all routes together in bits per second.
    pub fn rate(&self) -> f64 {
        self.routes.iter().map(|r| r.1).sum()
    }
}

/// Maximum number of destinations for which the cheapest tree is found exactly.
pub(super) const EXACT_DESTINATIONS_MAX: usize = 10;

impl Route {
    /// Number of hops from the source to the farthest destination.
    pub fn depth(&self) -> u64 {
        let mut depths: Vec<u64> = Vec::new();
        for (parent, _) in &self.hops {
            depths.push(1 + parent.map_or(0, |p| depths[p]));
        }
        depths.into_iter().max().unwrap_or(0)
    }

    /// The links that the route uses, with the number of uses.
    pub fn uses(&self) -> Vec<(LinkId, f64)> {
        let mut uses: BTreeMap<LinkId, f64> = BTreeMap::new();
        self.hops.iter().for_each(|(_, l)| *uses.entry(*l).or_default() += 1.0);
        uses.into_iter().collect()
    }

    /// The tree to `destinations` that consists of `links`.
    pub fn tree(problem: &Problem, destinations: &[SiteId], links: &[LinkId]) -> Self {
        let mut hops: Vec<(Option<usize>, LinkId)> = Vec::new();
        let mut at: BTreeMap<SiteId, Option<usize>> = BTreeMap::from([(problem.source, None)]);
        while hops.len() < links.len() {
            for link in links {
                if let Some(&parent) = at.get(&problem.adjacency.from(*link))
                    && !at.contains_key(&problem.adjacency.to(*link))
                {
                    at.insert(problem.adjacency.to(*link), Some(hops.len()));
                    hops.push((parent, *link));
                }
            }
        }
        let sink = |d: &SiteId| (*d, at[d].expect("a tree reaches every destination"));
        Self { sinks: destinations.iter().map(sink).collect(), hops }
    }
}

/// One shortest path to each destination. A destination on another destination's path relays the
/// file.
///
/// Each destination, nearest first, chooses among its shortest paths. It takes a path with the
/// fewest new links after the last destination on it (section 4.1: least total bandwidth). Among
/// these it takes one with the fewest copies on its links so far.
pub(super) fn single_path(problem: &Problem) -> Result<Vec<Routes>, PlanError> {
    let network = &problem.adjacency;
    let far = distances(network, &problem.capacities, &problem.lengths, problem.source);
    let mut order: Vec<(u64, SiteId)> =
        (0..network.sites() as u16).map(SiteId).filter_map(|site| Some((far[site.index()]?, site))).collect();
    order.sort_unstable();
    let mut copies = vec![0u64; network.links()];
    let mut paths: Vec<(SiteId, Vec<LinkId>)> = Vec::new();
    for (_, destination) in order.iter().filter(|(_, s)| problem.destinations.contains(s)) {
        // For each site's best shortest path: the number of links that the path adds, the number of
        // copies on them, and the path's last link.
        let mut best: Vec<Option<(u64, u64, Option<LinkId>)>> = vec![None; network.sites()];
        best[problem.source.index()] = Some((0, 0, None));
        for (distance, site) in order.iter().filter(|(_, s)| *s != problem.source) {
            let settled = paths.iter().any(|(d, _)| d == site);
            let ways = network.links_in(*site).iter().filter_map(|l| {
                let from = network.from(*l).index();
                let shortest = problem.capacities[l.index()] > 0
                    && far[from].is_some_and(|f| f + problem.lengths[l.index()] == *distance);
                let (added, met, _) = best[from].filter(|_| shortest)?;
                // Data that a destination already has costs nothing.
                Some(if settled { (0, 0, Some(*l)) } else { (added + 1, met + copies[l.index()], Some(*l)) })
            });
            best[site.index()] = ways.min();
        }
        let mut path = Vec::new();
        let mut at = *destination;
        while let Some((_, _, Some(link))) = best[at.index()] {
            path.push(link);
            at = network.from(link);
        }
        path.reverse();
        let given = path.iter().rposition(|l| paths.iter().any(|(d, _)| *d == network.to(*l)));
        path.iter().skip(given.map_or(0, |at| at + 1)).for_each(|l| copies[l.index()] += 1);
        paths.push((*destination, path));
    }
    // A group consists of a copy that leaves the source, and all copies that its destinations pass
    // on.
    let mut groups: Vec<Route> = Vec::new();
    let mut home: BTreeMap<SiteId, usize> = BTreeMap::new();
    for (destination, path) in &paths {
        let passed = path.iter().rposition(|l| {
            let to = problem.adjacency.to(*l);
            to != *destination && home.contains_key(&to)
        });
        let (group, mut parent, start) = match passed {
            Some(at) => {
                let giver = problem.adjacency.to(path[at]);
                let group = home[&giver];
                let hop = groups[group].sinks.iter().find(|(s, _)| *s == giver).map(|(_, hop)| *hop);
                (group, hop, at + 1)
            }
            None => {
                groups.push(Route { hops: Vec::new(), sinks: Vec::new() });
                (groups.len() - 1, None, 0)
            }
        };
        for link in &path[start..] {
            groups[group].hops.push((parent, *link));
            parent = Some(groups[group].hops.len() - 1);
        }
        let last = parent.expect("a destination is not the source");
        groups[group].sinks.push((*destination, last));
        home.insert(*destination, group);
    }
    fair(problem, groups.into_iter().map(|g| vec![g]).collect())
}

/// Paths to each destination separately: paths of least total length that fill the destination's
/// min-cut.
pub(super) fn multi_path(problem: &Problem) -> Result<Vec<Routes>, PlanError> {
    let mut groups = Vec::new();
    for (destination, cut) in problem.destinations.iter().zip(&problem.cuts) {
        let flow = min_cost_flow(
            &problem.adjacency,
            &problem.capacities,
            &problem.lengths,
            problem.source,
            *destination,
            *cut,
        )
        .expect("the min-cut fits");
        let route = |path: Vec<LinkId>| Route {
            sinks: vec![(*destination, path.len() - 1)],
            hops: path.iter().enumerate().map(|(i, l)| (i.checked_sub(1), *l)).collect(),
        };
        let paths = decompose(&problem.adjacency, &flow, problem.source, *destination);
        groups.push(paths.into_iter().map(|(path, _)| route(path)).collect());
    }
    fair(problem, groups)
}

/// Max-min fair rates for groups with given routes.
fn fair(problem: &Problem, groups: Vec<Vec<Route>>) -> Result<Vec<Routes>, PlanError> {
    let mut columns: Vec<Column> = groups
        .iter()
        .enumerate()
        .flat_map(|(owner, routes)| routes.iter().map(move |r| Column { owner, uses: r.uses() }))
        .collect();
    let capacities: Vec<f64> = problem.capacities.iter().map(|c| *c as f64).collect();
    let shares = max_min(&capacities, groups.len(), &mut columns, f64::INFINITY, |_, _| None)?;
    let mut weights = shares.weights.into_iter();
    let routes = |g: Vec<Route>| Routes { routes: g.into_iter().zip(weights.by_ref()).collect() };
    Ok(groups.into_iter().map(routes).collect())
}

/// Consecutive trees, each by Watel and Weisser's approximation on the remaining capacity.
pub(super) fn steiner(problem: &Problem) -> Routes {
    let mut left = problem.capacities.clone();
    let mut routes = Vec::new();
    loop {
        let prices: Vec<f64> = left
            .iter()
            .zip(&problem.lengths)
            .map(|(c, length)| if *c > 0 { *length as f64 } else { f64::INFINITY })
            .collect();
        let tree = greedy_arborescence(&problem.adjacency, &prices, problem.source, &problem.destinations);
        let Some(tree) = tree else { return Routes { routes } };
        let rate = tree.links.iter().map(|l| left[l.index()]).min().expect("a tree has links");
        tree.links.iter().for_each(|l| left[l.index()] -= rate);
        routes.push((Route::tree(problem, &problem.destinations, &tree.links), rate as f64));
    }
}

/// The best fractional packing of trees, with a proven upper bound of its rate in bits per second.
///
/// `known` is an additional packing to start from, next to the greedy one.
pub(super) fn packed(problem: &Problem, known: Option<&Routes>) -> Result<(Routes, f64), PlanError> {
    let capacities: Vec<f64> = problem.capacities.iter().map(|c| *c as f64).collect();
    let greedy = steiner(problem);
    let start = greedy.routes.iter().chain(known.into_iter().flat_map(|k| &k.routes));
    let mut columns: Vec<Column> = Vec::new();
    for (route, _) in start {
        let column = Column { owner: 0, uses: route.uses() };
        if !columns.contains(&column) {
            columns.push(column);
        }
    }
    let bound = problem.bound() as f64;
    let shares =
        max_min(&capacities, 1, &mut columns, bound, |owner, prices| Some(cheapest(problem, owner, prices)))?;
    Ok((trees(problem, &columns, &shares.weights, 0), shares.ceiling))
}

/// The columns of one owner with a nonzero rate, as trees.
pub(super) fn trees(problem: &Problem, columns: &[Column], weights: &[f64], owner: usize) -> Routes {
    let total: f64 = columns.iter().zip(weights).filter(|(c, _)| c.owner == owner).map(|(_, w)| w).sum();
    let routes = columns
        .iter()
        .zip(weights)
        .filter(|(c, w)| c.owner == owner && **w > total * 1e-9)
        .map(|(c, w)| {
            let links: Vec<LinkId> = c.uses.iter().map(|(l, _)| *l).collect();
            (Route::tree(problem, &problem.destinations, &links), *w)
        })
        .collect();
    Routes { routes }
}

/// The cheapest tree under `prices`, exact for few destinations.
pub(super) fn cheapest(problem: &Problem, owner: usize, prices: &[f64]) -> PricedColumn {
    let own: Vec<f64> = prices
        .iter()
        .zip(&problem.capacities)
        .map(|(p, c)| if *c > 0 { *p } else { f64::INFINITY })
        .collect();
    let (network, root, to) = (&problem.adjacency, problem.source, &problem.destinations);
    let exact = to.len() <= EXACT_DESTINATIONS_MAX;
    let found: Option<Arborescence> = if exact {
        cheapest_arborescence(network, &own, root, to)
    } else {
        greedy_arborescence(network, &own, root, to)
    };
    let tree = found.expect("every destination of a checked request can be reached");
    let floor = if exact { tree.price } else { arborescence_price_bound(network, &own, root, to) };
    PricedColumn {
        column: Column { owner, uses: tree.links.iter().map(|l| (*l, 1.0)).collect() },
        price: tree.price,
        floor,
    }
}

/// Flows with the rates closest to the routes' rates. They maximise the smallest rate, then the sum
/// of rates, and then minimise the number of flows. Flows are equal unless unequal flows promise a
/// fraction of [`UNLIKE_GAIN_MIN`] more.
///
/// Errors: [`PlanError::TooNarrow`].
pub(super) fn quantise(
    capacities: &[u64],
    wanted: &[Routes],
    streams_max: u16,
) -> Result<QuantisedFlows, PlanError> {
    let even = even(capacities, wanted, streams_max.into());
    let ideal = wanted.iter().map(Routes::rate).fold(f64::INFINITY, f64::min);
    let gains = |than: f64, rate: f64| rate > than * (1.0 + UNLIKE_GAIN_MIN);
    if let Some(even) = even.as_ref().filter(|even| !gains(even.score.0 as f64, ideal)) {
        return Ok(even.laid(wanted, false));
    }
    let unlike = unlike(capacities, wanted);
    match (even, unlike) {
        (Some(even), Some(unlike)) if !gains(even.score.0 as f64, unlike.score.0 as f64) => {
            Ok(even.laid(wanted, false))
        }
        (_, Some(unlike)) => Ok(unlike.laid(wanted, true)),
        (Some(even), None) => Ok(even.laid(wanted, false)),
        (None, None) => Err(PlanError::TooNarrow),
    }
}

/// Quantises as [`quantise`] does, with equal flows only.
///
/// Errors: [`PlanError::TooNarrow`].
pub(super) fn quantise_evenly(
    capacities: &[u64],
    wanted: &[Routes],
    streams_max: u16,
) -> Result<QuantisedFlows, PlanError> {
    let even = even(capacities, wanted, streams_max.into()).ok_or(PlanError::TooNarrow)?;
    Ok(even.laid(wanted, false))
}

/// Unequal flows are used only if they promise this fraction more rate than equal flows, which need
/// no rate limits.
const UNLIKE_GAIN_MIN: f64 = 1e-3;
/// Number of units into which the rate of unequal streams is divided. Rounding down loses at most
/// one unit per stream: 0.64 % of the rate with [`STREAMS_MAX`] streams.
const UNLIKE_UNITS: f64 = 10_000.0;
/// Fraction of a group's rate that the narrowest routes together may lose by getting no stream.
/// Each stream costs its sites buffers and connections.
const SLIVERS_SHARE: f64 = 2e-3;
/// A rate that is short of a whole number of units by this fraction still counts as that number,
/// because solvers round.
const SHORT: f64 = 1e-4;

/// Routes with whole numbers of units.
struct FittedRoutes {
    /// The smallest rate of a group, and the sum over all groups.
    score: (u64, u64),
    flows: usize,
    unit: u64,
    /// Units of each route, by group.
    counts: Vec<Vec<u32>>,
}

/// The best plan of equal flows, with at most `most` streams in a group: a route has as many
/// streams as units.
fn even(capacities: &[u64], wanted: &[Routes], most: u32) -> Option<FittedRoutes> {
    // A route with a tiny part of its group's rate would need too many streams, so it may be
    // rounded to zero.
    let mut units: Vec<f64> = Vec::new();
    for group in wanted {
        let total = group.rate();
        let large = group.routes.iter().map(|r| r.1).filter(|r| *r * 4.0 * f64::from(most) >= total);
        units.extend(large.flat_map(|r| (1..=most).map(move |k| r / f64::from(k))));
    }
    units.sort_by(|a, b| b.total_cmp(a));
    units.dedup_by(|a, b| (*a - *b).abs() <= *b * 1e-9);
    let mut best: Option<FittedRoutes> = None;
    for unit in units {
        let mut counts: Vec<Vec<u32>> = wanted
            .iter()
            .map(|g| g.routes.iter().map(|r| ((r.1 / unit + SHORT) as u32).min(most)).collect::<Vec<u32>>())
            .collect();
        for group in &mut counts {
            let mut over = group.iter().sum::<u32>().saturating_sub(most);
            for count in group.iter_mut().rev() {
                let cut = over.min(*count);
                *count -= cut;
                over -= cut;
            }
        }
        let has_room = |counts: &[u32], _: usize| counts.iter().sum::<u32>() < most;
        let Some(fitted) = fit(capacities, wanted, unit, counts, has_room) else { continue };
        // Rates within a few parts per million are equal; fewer flows are then better.
        let near = |a: u64, b: u64| a.abs_diff(b) as f64 <= a.max(b) as f64 * 4e-6;
        let better = best.as_ref().is_none_or(|b| {
            if !near(fitted.score.0, b.score.0) {
                fitted.score.0 > b.score.0
            } else if !near(fitted.score.1, b.score.1) {
                fitted.score.1 > b.score.1
            } else {
                fitted.flows < b.flows
            }
        });
        if better {
            best = Some(fitted);
        }
    }
    best
}

/// A plan of unequal flows: each route is one stream, with as many units as its rate contains. The
/// narrowest routes, with [`SLIVERS_SHARE`] of a group's rate together, have no stream.
fn unlike(capacities: &[u64], wanted: &[Routes]) -> Option<FittedRoutes> {
    let least = wanted.iter().map(Routes::rate).fold(f64::INFINITY, f64::min);
    let unit = least / UNLIKE_UNITS;
    let counts = wanted.iter().map(|group| {
        let rate = |route: usize| group.routes[route].1;
        let mut widest: Vec<usize> = (0..group.routes.len()).collect();
        widest.sort_by(|a, b| rate(*b).total_cmp(&rate(*a)));
        let (mut units, mut rest) = (vec![0; widest.len()], group.rate());
        for route in widest.into_iter().take(STREAMS_MAX.into()) {
            if rest > group.rate() * SLIVERS_SHARE {
                units[route] = (rate(route) / unit + SHORT) as u32;
                rest -= rate(route);
            }
        }
        units
    });
    let counts = counts.collect();
    fit(capacities, wanted, unit, counts, |counts, route| counts[route] > 0)
}

/// The routes with `counts` units each. Rounding down leaves capacity: each route for which `may`
/// is true gets one more unit if it fits, the groups with the fewest units first. `None` if a group
/// has no unit.
fn fit(
    capacities: &[u64],
    wanted: &[Routes],
    unit: f64,
    mut counts: Vec<Vec<u32>>,
    may: impl Fn(&[u32], usize) -> bool,
) -> Option<FittedRoutes> {
    if counts.iter().any(|g| g.iter().sum::<u32>() == 0) {
        return None;
    }
    let mut on_link = vec![0u64; capacities.len()];
    let each = |on_link: &mut Vec<u64>, route: &Route, n: u32| {
        route.hops.iter().for_each(|(_, l)| on_link[l.index()] += u64::from(n));
    };
    for (group, counts) in wanted.iter().zip(&counts) {
        group.routes.iter().zip(counts).for_each(|((r, _), n)| each(&mut on_link, r, *n));
    }
    let mut order: Vec<usize> = (0..counts.len()).collect();
    order.sort_by_key(|g| counts[*g].iter().sum::<u32>());
    for g in order {
        for (i, (route, _)) in wanted[g].routes.iter().enumerate() {
            let mut with = on_link.clone();
            each(&mut with, route, 1);
            let fits = with.iter().zip(capacities).all(|(n, c)| *n as f64 * unit <= *c as f64 * (1.0 + 1e-9));
            if fits && may(&counts[g], i) {
                on_link = with;
                counts[g][i] += 1;
            }
        }
    }
    let exact = on_link.iter().zip(capacities).filter(|(n, _)| **n > 0).map(|(n, c)| c / n).min();
    let exact = exact.filter(|e| *e > 0)?;
    let sums: Vec<u64> = counts.iter().map(|g| g.iter().map(|n| u64::from(*n)).sum()).collect();
    let least = exact * sums.iter().copied().min().expect("there is a group");
    let score = (least, exact * sums.iter().sum::<u64>());
    Some(FittedRoutes { score, flows: on_link.iter().sum::<u64>() as usize, unit: exact, counts })
}

impl FittedRoutes {
    /// The flows: one stream for each unit of a route, or, if `unlike`, one stream for each route
    /// with at least one unit.
    fn laid(&self, wanted: &[Routes], unlike: bool) -> QuantisedFlows {
        let (mut groups, mut flows) = (Vec::new(), Vec::new());
        for (g, (wanted, counts)) in wanted.iter().zip(&self.counts).enumerate() {
            let streams = counts.iter().map(|n| if unlike { (*n).min(1) } else { *n });
            let routes = wanted.routes.iter().map(|(route, _)| route).zip(streams);
            let mut group = lay(g as u16, routes, &mut flows);
            if unlike {
                group.weights = counts.iter().copied().filter(|n| *n > 0).collect();
            }
            groups.push(group);
        }
        QuantisedFlows { unit: self.unit, groups, flows }
    }
}

/// The group with index `group` and the given number of streams for each route; adds its flows to
/// `flows`.
pub(super) fn lay<'a>(
    group: u16,
    routes: impl Iterator<Item = (&'a Route, u32)>,
    flows: &mut Vec<Flow>,
) -> Group {
    let mut stream = 0u16;
    let mut inputs: BTreeMap<SiteId, Vec<FlowId>> = BTreeMap::new();
    for (route, count) in routes {
        for _ in 0..count {
            let base = flows.len() as u32;
            for (parent, link) in &route.hops {
                let input = match parent {
                    None => Input::Stream(stream),
                    Some(hop) => Input::Flow(FlowId(base + *hop as u32)),
                };
                let terms = vec![Term { input, coefficient: 1, delayed: false }];
                flows.push(Flow { group, link: *link, terms });
            }
            for (site, hop) in &route.sinks {
                inputs.entry(*site).or_default().push(FlowId(base + *hop as u32));
            }
            stream += 1;
        }
    }
    let sinks = inputs.into_iter().map(|(site, inputs)| Sink { site, inputs, decode: None }).collect();
    Group { streams: stream, weights: Vec::new(), mode: Mode::Routed, sinks, fills: None }
}
