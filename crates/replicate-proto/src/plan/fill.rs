//! Groups that fill the capacity that the flows of a plan leave unused (CodedBulk section 3.2,
//! Figure 6).
//!
//! A destination that is reachable over the remaining capacity is filled over that capacity,
//! separately. The other destinations of its group are filled together, by trees over all links.
//! These trees prefer links with more remaining capacity. The plan leaves no capacity for these
//! trees, but their flows have the lowest priority. They use the capacity that the plan's flows
//! cannot use because of other transfers. Rates are not planned: every chunk is sent over a tree
//! that has room.
//!
//! Differs: the paper does not describe the choice of its uncoded paths. Read [`fill`].

use super::request::Problem;
use super::routed::{Route, lay};
use super::{Group, Plan};
use anabranch_graph::{greedy_arborescence, max_flow};
use anabranch_units::SiteId;

/// Maximum number of trees of a filling group: each costs every site on it buffers and a
/// connection.
const TREES_MAX: usize = 4;
/// A smaller remainder of a link results from whole numbers of equal flows and is not worth a tree.
const SPARE_SHARE_MIN: f64 = 0.02;
/// Factor of the length of a link without remaining capacity.
const SHARED_FACTOR: f64 = 8.0;
/// Growth of a link's length per tree of the group that uses it, as a multiple of the length, so
/// that trees differ.
const USED_FACTOR: f64 = 4.0;

/// `plan`, of this problem, with groups that fill the remaining capacity.
pub(super) fn fill(problem: &Problem, plan: &Plan) -> Plan {
    let mut filled = plan.clone();
    let mut spare = problem.capacities.clone();
    for (link, units) in plan.link_units() {
        let left = &mut spare[link.index()];
        *left = left.saturating_sub(plan.unit.as_bps() * units);
    }
    for (left, capacity) in spare.iter_mut().zip(&problem.capacities) {
        if (*left as f64) < *capacity as f64 * SPARE_SHARE_MIN {
            *left = 0;
        }
    }
    let bulk = plan.groups.iter().enumerate().filter(|(_, g)| g.fills.is_none());
    for (number, group) in bulk {
        let sites = group.sinks.iter().map(|s| s.site);
        let has_spare = |d: &SiteId| max_flow(&problem.adjacency, &spare, problem.source, *d, 1).value > 0;
        let (alone, together): (Vec<SiteId>, Vec<SiteId>) = sites.partition(has_spare);
        let over_spare: Vec<f64> = lengths(problem, |l| if spare[l] > 0 { 1.0 } else { f64::INFINITY });
        let over_all: Vec<f64> = lengths(problem, |l| match (problem.capacities[l], spare[l]) {
            (0, _) => f64::INFINITY,
            (_, 0) => SHARED_FACTOR,
            _ => 1.0,
        });
        let groups = alone.into_iter().map(|d| (vec![d], &over_spare));
        for (to, prices) in groups.chain(Some((together, &over_all)).filter(|(to, _)| !to.is_empty())) {
            let routes = trees(problem, prices.clone(), &to);
            let index = filled.groups.len() as u16;
            let laid = lay(index, routes.iter().map(|r| (r, 1)), &mut filled.flows);
            filled.groups.push(Group { fills: Some(number as u16), ..laid });
        }
    }
    filled
}

fn lengths(problem: &Problem, factor: impl Fn(usize) -> f64) -> Vec<f64> {
    problem.lengths.iter().enumerate().map(|(l, length)| *length as f64 * factor(l)).collect()
}

/// Trees to `to`, each with a link that the previous trees do not use.
fn trees(problem: &Problem, mut prices: Vec<f64>, to: &[SiteId]) -> Vec<Route> {
    let mut used = vec![false; prices.len()];
    let mut routes = Vec::new();
    while routes.len() < TREES_MAX {
        let tree = greedy_arborescence(&problem.adjacency, &prices, problem.source, to);
        let Some(tree) = tree.filter(|t| t.links.iter().any(|l| !used[l.index()])) else { break };
        for link in &tree.links {
            used[link.index()] = true;
            prices[link.index()] += USED_FACTOR * problem.lengths[link.index()] as f64;
        }
        routes.push(Route::tree(problem, to, &tree.links));
    }
    routes
}
