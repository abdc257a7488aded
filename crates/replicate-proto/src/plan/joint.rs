//! Planning of simultaneous transfers together.
//!
//! Leaves out: limits of a source's rate, and priorities. Read [`together`] first.

use super::planner::{PlanWithFigures, Planner, smallest_rate};
use super::request::{PlanError, Request};
use super::routed::{self, Routes};
use super::shares::{Column, max_min};
use super::sharing::bundles;
use super::{Group, Plan, Scheme};
use anabranch_units::{BitRate, LinkId};
use std::collections::BTreeMap;

/// A transfer to be planned together with others.
#[derive(Clone, Debug)]
pub struct JointRequest<'a> {
    /// The transfer.
    pub request: Request<'a>,
    /// The scheme; `None` uses trees, or a code if that is faster.
    pub scheme: Option<Scheme>,
}

/// A code keeps all its flows in lock step and loses more relative to its plan than trees do (14 %
/// measured, trees 9 to 11 %). It is used only if it promises this fraction more than trees.
const CODE_GAIN_MIN: f64 = 0.05;

/// Plans that run at the same time and together with `others`, whose plans do not change: max-min
/// fair rates over all, as long as no transfer takes more than its share
/// ([`super::share_flows_under`]).
///
/// Trees come first: the linear program shares out the links, and each transfer's trees fit its
/// share. The transfers that may code and would gain from it then pool their shares and the
/// remaining capacity. Each takes a part in proportion to its rate, and they code if all of them
/// gain. A request for any other scheme is planned as if alone, and counts among `others`.
///
/// Every request has the same network; if they give different remaining capacities, the smallest is
/// used. The avoided sites and links of a request apply only to that request.
///
/// Shape: one plan for each request, in their order; together they fit the links. Errors: as
/// [`Planner::new`] for any request, [`PlanError::DifferentTopologies`], [`PlanError::Solver`].
pub fn together(requests: &[JointRequest<'_>], others: &[&Plan]) -> Result<Vec<PlanWithFigures>, PlanError> {
    let plain: Vec<Request<'_>> = requests.iter().map(|r| r.request.clone()).collect();
    if plain.is_empty() {
        return Ok(Vec::new());
    }
    let (plain, capacities) = on_one_network(&plain)?;
    let mut planned: Vec<Option<PlanWithFigures>> = Vec::new();
    let mut planners: Vec<(usize, Planner<'_>)> = Vec::new();
    for (index, (request, asked)) in plain.into_iter().zip(requests).enumerate() {
        let planner = Planner::new(request)?;
        match asked.scheme {
            None | Some(Scheme::Packed | Scheme::Coded) => {
                planners.push((index, planner));
                planned.push(None);
            }
            Some(scheme) => planned.push(Some(planner.plan(scheme)?)),
        }
    }
    let fixed = others.iter().copied().chain(planned.iter().flatten().map(|p| &p.plan));
    let JointShares { trees, alone, shares, mut left } = share(&planners, &capacities, fixed)?;
    let rates: Vec<f64> = trees.iter().map(|t| smallest_rate(std::slice::from_ref(t))).collect();
    let asked = |at: usize| requests[planners[at].0].scheme;
    let gains = |rate: BitRate, trees: f64| rate.as_bps() as f64 > trees * (1.0 + CODE_GAIN_MIN);
    // Transfers for which a code would be faster than trees, if they were alone, pool their shares
    // and the remaining capacity.
    let coders: Vec<usize> = (0..planners.len())
        .filter(|at| asked(*at) != Some(Scheme::Packed) && gains(planners[*at].1.bound(), alone[*at]))
        .collect();
    let weight: f64 = coders.iter().map(|at| rates[*at]).sum();
    let pool: Vec<f64> =
        (0..left.len()).map(|l| left[l] + coders.iter().map(|c| shares[*c][l]).sum::<f64>()).collect();
    let mut codes: BTreeMap<usize, PlanWithFigures> = BTreeMap::new();
    for at in &coders {
        let part = pool.iter().map(|p| p * rates[*at] / weight);
        codes.extend(code_within(&planners[*at].1, part)?.map(|code| (*at, code)));
    }
    if !coders.iter().all(|at| codes.get(at).is_some_and(|c| gains(c.plan.rate, rates[*at]))) {
        codes.clear();
    } else if !coders.is_empty() {
        left.fill(0.0);
    }
    // A transfer that must code has its share, and an equal part of the remaining capacity.
    let must: Vec<usize> = (0..planners.len())
        .filter(|at| asked(*at) == Some(Scheme::Coded) && !codes.contains_key(at))
        .collect();
    for at in &must {
        let part = shares[*at].iter().zip(&left).map(|(s, l)| s + l.max(0.0) / must.len() as f64);
        let code = code_within(&planners[*at].1, part)?.ok_or(PlanError::TooNarrow)?;
        codes.insert(*at, code);
    }
    for (at, (index, planner)) in planners.iter().enumerate() {
        planned[*index] = Some(match codes.remove(&at) {
            Some(code) => code,
            None => {
                let own: Vec<u64> = shares[at].iter().map(|s| s.floor() as u64).collect();
                let most = planner.problem.options.routed_streams_max;
                let quantised = routed::quantise_evenly(&own, std::slice::from_ref(&trees[at]), most)?;
                planner.planned(Scheme::Packed, quantised, rates[at], planner.problem.bound() as f64, 1)
            }
        });
    }
    Ok(planned.into_iter().flatten().collect())
}

/// Rates that differ by less than this fraction count as equal: equal flows have whole bits per
/// second.
const SAME: f64 = 1e-3;

/// Whether `rates` are fairer than `than`: the smallest rate is larger, or it is equal and the sum
/// is larger.
pub fn fairer(rates: &[BitRate], than: &[BitRate]) -> bool {
    fairer_by(SAME, rates, than)
}

/// Whether `rates` are fairer than `than`, as for [`fairer`], by more than the fraction `gain`.
pub fn fairer_by(gain: f64, rates: &[BitRate], than: &[BitRate]) -> bool {
    let figures = |rates: &[BitRate]| {
        let each = || rates.iter().map(|r| r.as_bps() as f64);
        (each().fold(f64::INFINITY, f64::min), each().sum::<f64>())
    };
    let ((least, sum), (other_least, other_sum)) = (figures(rates), figures(than));
    let more = |a: f64, b: f64, by: f64| a > b * (1.0 + by);
    more(least, other_least, gain) || !more(other_least, least, SAME) && more(sum, other_sum, gain)
}

/// The requests with the same remaining capacities for all, and these capacities.
fn on_one_network<'a>(requests: &[Request<'a>]) -> Result<(Vec<Request<'a>>, Vec<u64>), PlanError> {
    let topology = requests.first().ok_or(PlanError::NoDestinations)?.topology;
    if requests.iter().any(|r| r.topology != topology) {
        return Err(PlanError::DifferentTopologies);
    }
    let mut least: Vec<BitRate> = topology.links().iter().map(|l| l.properties.capacity).collect();
    for left in requests.iter().filter_map(|r| r.capacities.as_ref()) {
        if left.len() != least.len() {
            return Err(PlanError::CapacityCount { need: least.len(), got: left.len() });
        }
        least.iter_mut().zip(left).for_each(|(l, r)| *l = (*l).min(*r));
    }
    let same = |r: &Request<'a>| Request { capacities: Some(least.clone()), ..r.clone() };
    Ok((requests.iter().map(same).collect(), least.iter().map(|c| c.as_bps()).collect()))
}

/// Result of the linear program for each planner.
struct JointShares {
    trees: Vec<Routes>,
    /// Rate of each planner's trees if they had the whole network.
    alone: Vec<f64>,
    /// Bits per second of each link, by planner.
    shares: Vec<Vec<f64>>,
    /// Unused capacity of each link.
    left: Vec<f64>,
}

fn share<'p>(
    planners: &[(usize, Planner<'_>)],
    capacities: &[u64],
    fixed: impl Iterator<Item = &'p Plan>,
) -> Result<JointShares, PlanError> {
    let (mut columns, mut alone): (Vec<Column>, Vec<f64>) = (Vec::new(), Vec::new());
    for (owner, (_, planner)) in planners.iter().enumerate() {
        let packed = routed::packed(&planner.problem, None)?.0;
        alone.push(smallest_rate(std::slice::from_ref(&packed)));
        columns.extend(packed.routes.iter().map(|(route, _)| Column { owner, uses: route.uses() }));
    }
    // Every group of a fixed plan has one rate, and only its existing columns.
    let mut groups: BTreeMap<(usize, usize), usize> = BTreeMap::new();
    for (index, plan) in fixed.enumerate() {
        for bundle in bundles(index, plan, capacities.len()) {
            // If a link has no remaining capacity, the plan does not progress, whatever the others
            // do.
            if bundle.load.iter().zip(capacities).any(|(n, c)| *n > 0 && *c == 0) {
                continue;
            }
            let next = planners.len() + groups.len();
            let owner = *groups.entry((bundle.plan, bundle.group)).or_insert(next);
            let load = bundle.load.iter().enumerate().filter(|(_, n)| **n > 0);
            let uses = load.map(|(l, n)| (LinkId(l as u32), f64::from(*n) / bundle.streams)).collect();
            columns.push(Column { owner, uses });
        }
    }
    let owners = planners.len() + groups.len();
    let as_float: Vec<f64> = capacities.iter().map(|c| *c as f64).collect();
    let price = |owner: usize, prices: &[f64]| {
        let (_, planner) = planners.get(owner)?;
        Some(routed::cheapest(&planner.problem, owner, prices))
    };
    let found = max_min(&as_float, owners, &mut columns, f64::INFINITY, price)?;
    let mut used = vec![vec![0.0; capacities.len()]; owners];
    for (column, weight) in columns.iter().zip(&found.weights) {
        column.uses.iter().for_each(|(l, n)| used[column.owner][l.index()] += weight * n);
    }
    let left = (0..capacities.len()).map(|l| as_float[l] - used.iter().map(|u| u[l]).sum::<f64>()).collect();
    used.truncate(planners.len());
    let trees = planners
        .iter()
        .enumerate()
        .map(|(owner, (_, planner))| routed::trees(&planner.problem, &columns, &found.weights, owner));
    Ok(JointShares { trees: trees.collect(), alone, shares: used, left })
}

/// A code for the planner's transfer on `part` of every link, if that reaches every destination.
fn code_within(
    planner: &Planner<'_>,
    part: impl Iterator<Item = f64>,
) -> Result<Option<PlanWithFigures>, PlanError> {
    let part = part.map(|p| BitRate::bps(p.max(0.0) as u64)).collect();
    let within = match Planner::new(Request { capacities: Some(part), ..planner.request.clone() }) {
        Ok(within) => within,
        Err(PlanError::NothingLeft { .. }) => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut coded = within.plan(Scheme::Coded)?;
    coded.plan.bound = planner.bound();
    Ok(Some(coded))
}

/// Max-min fair rates of whole plans that run at the same time, each with all its flows in lock
/// step.
///
/// The rate of a plan here is the rate of its slowest group; every flow of a plan slows down by the
/// same factor. Filling flows are not counted.
pub fn share_links(capacities: &[u64], plans: &[Plan]) -> Vec<BitRate> {
    // Bits on each link per bit delivered to the slowest destination.
    let load: Vec<Vec<f64>> = plans
        .iter()
        .map(|plan| {
            let bulk = plan.groups.iter().filter(|g| g.fills.is_none());
            let least = bulk.map(Group::units).min().map_or(1.0, |units| units as f64);
            let mut load = vec![0.0; capacities.len()];
            let on_link = plan.link_units();
            on_link.into_iter().for_each(|(l, units)| load[l.index()] = units as f64 / least);
            load
        })
        .collect();
    let mut rates = vec![0.0f64; plans.len()];
    let mut active: Vec<usize> = (0..plans.len()).collect();
    while !active.is_empty() {
        let room =
            |l: usize| capacities[l] as f64 - (0..plans.len()).map(|p| rates[p] * load[p][l]).sum::<f64>();
        let grow = |l: usize| {
            let by: f64 = active.iter().map(|p| load[*p][l]).sum();
            if by > 0.0 { room(l).max(0.0) / by } else { f64::INFINITY }
        };
        let step = (0..capacities.len()).map(grow).fold(f64::INFINITY, f64::min);
        let tight: Vec<usize> =
            (0..capacities.len()).filter(|l| grow(*l) <= step * (1.0 + 1e-9) + 1e-9).collect();
        active.iter().for_each(|p| rates[*p] += step);
        let before = active.len();
        active.retain(|p| tight.iter().all(|l| load[*p][*l] == 0.0));
        if active.len() == before {
            break;
        }
    }
    rates.into_iter().map(|r| BitRate::bps(r as u64)).collect()
}
