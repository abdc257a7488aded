//! Transfers that run at the same time, planned together.
//!
//! Read [`joint`] first.

use super::planner::{Planned, Planner, smallest_rate};
use super::request::{PlanError, Request};
use super::routed;
use super::shares::{Column, max_min};
use super::{Plan, Scheme};
use anabranch_units::{BitRate, LinkId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Transfers planned together.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Joint {
    /// A plan for each transfer, in the order of the requests; together they fit the links.
    pub planned: Vec<Planned>,
    /// What each would get with the network for itself (its optimal packing).
    pub alone: Vec<BitRate>,
    /// What each gets if it is planned as if alone and the plans then share the links max-min fairly.
    pub selfish: Vec<BitRate>,
}

/// Plans several transfers together: trees with max-min fair rates.
///
/// Every request sees the same network; where they give different capacities left, the smaller counts. What a request
/// avoids, it avoids for itself.
/// Errors: as [`Planner::new`] for any request, an empty list ([`PlanError::NoDestinations`]), [`PlanError::Solver`].
pub fn joint(requests: &[Request<'_>]) -> Result<Joint, PlanError> {
    let planners: Vec<Planner<'_>> =
        requests.iter().map(|r| Planner::new(r.clone())).collect::<Result<_, _>>()?;
    let first = planners.first().ok_or(PlanError::NoDestinations)?;
    if requests.iter().any(|r| r.topology != first.request.topology) {
        return Err(PlanError::DifferentTopologies);
    }
    let links = first.problem.adjacency.links();
    // A link that one request avoids is still there for the others: take what the requests say is left of it.
    let left = |r: &Request<'_>, l: usize| match &r.capacities {
        Some(left) => left[l].as_bps(),
        None => r.topology.links()[l].properties.capacity.as_bps(),
    };
    let capacities: Vec<u64> = (0..links)
        .map(|l| {
            let usable = planners.iter().any(|p| p.problem.capacities[l] > 0);
            let least = requests.iter().map(|r| left(r, l)).min().unwrap_or(0);
            if usable { least } else { 0 }
        })
        .collect();
    let as_float: Vec<f64> = capacities.iter().map(|c| *c as f64).collect();
    let mut columns: Vec<Column> = Vec::new();
    let mut alone = Vec::new();
    let mut selfish_plans = Vec::new();
    for (owner, planner) in planners.iter().enumerate() {
        let planned = planner.plan(Scheme::Packed)?;
        for (route, _) in routed::packed(&planner.problem, None)?.0.routes {
            columns.push(Column { owner, uses: route.uses() });
        }
        alone.push(planned.plan.rate);
        selfish_plans.push(planned.plan);
    }
    let price =
        |owner: usize, prices: &[f64]| Some(routed::cheapest(&planners[owner].problem, owner, prices));
    let shares = max_min(&as_float, planners.len(), &mut columns, f64::INFINITY, price)?;
    let mut planned = Vec::new();
    for (owner, planner) in planners.iter().enumerate() {
        let routes = routed::trees(&planner.problem, &columns, &shares.weights, owner);
        // Each transfer is cut into equal flows within its own share of every link.
        let mut own: BTreeMap<LinkId, f64> = BTreeMap::new();
        for (route, rate) in &routes.routes {
            route.uses().iter().for_each(|(l, n)| *own.entry(*l).or_default() += rate * f64::from(*n));
        }
        let share: Vec<u64> =
            (0..links).map(|l| own.get(&LinkId(l as u32)).map_or(0, |s| (*s).floor() as u64)).collect();
        let ideal = smallest_rate(std::slice::from_ref(&routes));
        let most = planner.problem.options.routed_streams_max;
        let quantised = routed::quantise(&share, &[routes], most)?;
        planned.push(planner.planned(Scheme::Packed, quantised, ideal, planner.problem.bound() as f64, 1));
    }
    Ok(Joint { planned, alone, selfish: share_links(&capacities, &selfish_plans) })
}

/// Max-min fair rates of whole plans that run at the same time, each with all its flows in step.
///
/// The rate of a plan here is that of its slowest group; every flow of a plan slows down by the same factor.
pub fn share_links(capacities: &[u64], plans: &[Plan]) -> Vec<BitRate> {
    // Bits on each link per bit delivered to the slowest destination.
    let load: Vec<Vec<f64>> = plans
        .iter()
        .map(|plan| {
            let streams = plan.groups.iter().map(|g| g.streams).min().map_or(1.0, f64::from);
            let mut load = vec![0.0; capacities.len()];
            plan.flows.iter().for_each(|f| load[f.link.index()] += 1.0 / streams);
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
