//! A direct check of a plan against Figure 4.8 with the corrections of [`super`], independent of
//! the optimiser.
//!
//! Capacities are compared in whole bits per second. Read [`check`] first.

use super::answer::{Plan, Tree};
use super::problem::{GroupId, GroupLinkId, ObjectId, Program};
use crate::network::{NodeId, Tier};
use anabranch_units::{BitRate, LinkId};
use std::collections::{BTreeMap, BTreeSet};

/// Largest relative difference between a stated and a recomputed sum. It allows for the rounding of
/// a million terms of 52-bit numbers.
pub const SUM_TOLERANCE: f64 = 1e-9;

/// A constraint that a plan breaks.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Violation {
    /// Trees out of order, or two trees of one object.
    TreesOutOfOrder(ObjectId),
    /// An object, a link or a group link that does not exist: kind, index.
    Unknown(&'static str, u32),
    /// A link that occurs twice in one tree: object, kind, index.
    LinkTwice(ObjectId, &'static str, u32),
    /// A link whose streams exceed its planned capacity: link, load, planned capacity.
    OverCapacity(LinkId, BitRate, BitRate),
    /// A group link whose streams exceed its planned capacity: link, load, planned capacity.
    OverGroupCapacity(GroupLinkId, BitRate, BitRate),
    /// A node that sends an object without receiving it.
    SendsWithoutReceiving(ObjectId, NodeId),
    /// A node that receives an object twice.
    ReceivesTwice(ObjectId, NodeId),
    /// A source that sends an object of a channel it does not hold.
    NotHeld(ObjectId, NodeId),
    /// A group that receives an object twice.
    ServedTwice(ObjectId, GroupId),
    /// A group that receives an object without a request.
    NotRequested(ObjectId, GroupId),
    /// A stated sum that differs from the recomputed sum: name, stated, recomputed.
    WrongSum(&'static str, f64, f64),
    /// An objective above the certified bound: objective, bound.
    AboveBound(f64, f64),
}

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::TreesOutOfOrder(object) => {
                write!(f, "tree of object {}: trees must be listed once, by object", object.0)
            }
            Self::Unknown(what, id) => write!(f, "{what} {id}: the program has no such {what}"),
            Self::LinkTwice(object, what, id) => {
                write!(f, "object {}: {what} {id} is listed twice", object.0)
            }
            Self::OverCapacity(link, need, planned) => write!(
                f,
                "link {}: {} b/s planned, at most {} b/s are available",
                link.0,
                need.as_bps(),
                planned.as_bps()
            ),
            Self::OverGroupCapacity(link, need, planned) => write!(
                f,
                "group link {}: {} b/s planned, at most {} b/s are available",
                link.0,
                need.as_bps(),
                planned.as_bps()
            ),
            Self::SendsWithoutReceiving(object, node) => {
                write!(f, "object {}: node {} sends it without receiving it", object.0, node.0)
            }
            Self::ReceivesTwice(object, node) => {
                write!(f, "object {}: node {} receives it twice", object.0, node.0)
            }
            Self::NotHeld(object, node) => {
                write!(f, "object {}: source {} sends it without holding it", object.0, node.0)
            }
            Self::ServedTwice(object, group) => {
                write!(f, "object {}: group {} receives it twice", object.0, group.0)
            }
            Self::NotRequested(object, group) => {
                write!(f, "object {}: group {} receives it without a request", object.0, group.0)
            }
            Self::WrongSum(what, stated, found) => write!(f, "{what} {stated} stated, {found} found"),
            Self::AboveBound(objective, bound) => write!(f, "objective {objective} above the bound {bound}"),
        }
    }
}

impl std::error::Error for Violation {}

/// Recomputed sums of a plan.
#[derive(Copy, Clone, Debug, Default, PartialEq)]
pub struct PlanSums {
    /// Value of the served requests, weighted by w_s.
    pub service: f64,
    /// Cost of all links, weighted by w_c.
    pub cost: f64,
    /// Number of served requests.
    pub requests: u64,
    /// Number of served viewers.
    pub viewers: u64,
}

/// Verifies every constraint of Figure 4.8, then the plan's sums and its bound.
///
/// Errors: the first [`Violation`].
pub fn check(program: &Program, plan: &Plan) -> Result<PlanSums, Violation> {
    let sums = evaluate(program, &plan.trees)?;
    for (what, stated, found) in [("service", plan.service, sums.service), ("cost", plan.cost, sums.cost)] {
        if (stated - found).abs() > SUM_TOLERANCE * (sums.service + sums.cost) {
            return Err(Violation::WrongSum(what, stated, found));
        }
    }
    let objective = sums.service - sums.cost;
    if objective > plan.bound + SUM_TOLERANCE * (sums.service + sums.cost) {
        return Err(Violation::AboveBound(objective, plan.bound));
    }
    Ok(sums)
}

/// Verifies every constraint of Figure 4.8 and returns the sums of these trees.
///
/// Errors: the first [`Violation`].
pub fn evaluate(program: &Program, trees: &[Tree]) -> Result<PlanSums, Violation> {
    let mut on_link: BTreeMap<LinkId, u64> = BTreeMap::new();
    let mut on_group_link: BTreeMap<GroupLinkId, u64> = BTreeMap::new();
    let mut sums = PlanSums::default();
    for pair in trees.windows(2) {
        if pair[0].object >= pair[1].object {
            return Err(Violation::TreesOutOfOrder(pair[1].object));
        }
    }
    for tree in trees {
        let offer = program.offers().get(tree.object.index());
        let object = offer.ok_or(Violation::Unknown("object", tree.object.0))?.object;
        for link in &tree.links {
            *on_link.entry(*link).or_default() += object.bitrate.as_bps();
        }
        for link in &tree.group_links {
            *on_group_link.entry(*link).or_default() += object.bitrate.as_bps();
        }
        follow(program, tree, &mut sums)?;
    }
    for (link, need) in on_link {
        let planned = program.planned_link(link);
        if need > planned.as_bps() {
            return Err(Violation::OverCapacity(link, BitRate::bps(need), planned));
        }
    }
    for (link, need) in on_group_link {
        let planned = program.planned(program.group_links()[link.index()].capacity);
        if need > planned.as_bps() {
            return Err(Violation::OverGroupCapacity(link, BitRate::bps(need), planned));
        }
    }
    Ok(sums)
}

/// Follows one tree from the sources to the groups, and adds to the sums.
fn follow(program: &Program, tree: &Tree, sums: &mut PlanSums) -> Result<(), Violation> {
    let network = program.network();
    let object = program.offers()[tree.object.index()].object;
    let weight = program.settings().cost_weight * object.bitrate.as_mbps_f64();
    let mut receivers: BTreeSet<NodeId> = BTreeSet::new();
    let mut seen: BTreeSet<LinkId> = BTreeSet::new();
    for id in &tree.links {
        let link = network.links().get(id.index()).ok_or(Violation::Unknown("link", id.0))?;
        if !seen.insert(*id) {
            return Err(Violation::LinkTwice(tree.object, "link", id.0));
        }
        if network.node(link.from).tier == Tier::Source && !program.holds(link.from, object.channel) {
            return Err(Violation::NotHeld(tree.object, link.from));
        }
        if !receivers.insert(link.to) {
            return Err(Violation::ReceivesTwice(tree.object, link.to));
        }
        sums.cost += weight * link.cost;
    }
    for id in &tree.links {
        let from = network.link(*id).from;
        if network.node(from).tier != Tier::Source && !receivers.contains(&from) {
            return Err(Violation::SendsWithoutReceiving(tree.object, from));
        }
    }
    let mut served: BTreeSet<GroupId> = BTreeSet::new();
    for id in &tree.group_links {
        let link = program.group_links().get(id.index()).ok_or(Violation::Unknown("group link", id.0))?;
        if !receivers.contains(&link.edge) {
            return Err(Violation::SendsWithoutReceiving(tree.object, link.edge));
        }
        if !served.insert(link.group) {
            return Err(Violation::ServedTwice(tree.object, link.group));
        }
        let requests = program.requests_for(tree.object);
        let Ok(at) = requests.binary_search_by_key(&link.group, |request| request.group) else {
            return Err(Violation::NotRequested(tree.object, link.group));
        };
        sums.service += program.value(&requests[at]);
        sums.cost += weight * link.cost;
        sums.requests += 1;
        sums.viewers += requests[at].viewers;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
