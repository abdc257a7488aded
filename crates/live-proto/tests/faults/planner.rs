//! A greedy planner that replaces the optimiser. Running streams stay where they fit, and other
//! streams take the first path with capacity.

use anabranch_live_proto::control::controller::{Plan, PlanJob};
use anabranch_live_proto::control::messages::GroupId;
use anabranch_live_proto::{Network, NodeId, Object, Tier};

struct Planner<'a> {
    network: &'a Network,
    job: &'a PlanJob,
    left_bps: Vec<u64>,
    plan: Plan,
}

impl Planner<'_> {
    /// Plans `object` at `node`, from a parent that has the object or can get it.
    fn reach(&mut self, node: NodeId, object: Object) -> bool {
        if self.job.excluded.contains(&node) {
            return false;
        }
        if self.network.node(node).tier == Tier::Source {
            return self.job.imports.get(&object).is_some_and(|sources| sources.contains(&node));
        }
        if self.plan.parents.contains_key(&(node, object)) {
            return true;
        }
        let running = self.job.running.parents.get(&(node, object)).copied();
        let mut links = self.network.links_in(node).to_vec();
        links.sort_by_key(|link| {
            let parent = self.network.link(*link).from;
            (running != Some(parent), !self.plan.parents.contains_key(&(parent, object)))
        });
        let bps = object.bitrate.as_bps();
        for link in links {
            let parent = self.network.link(link).from;
            if self.left_bps.get(link.index()).is_some_and(|left| *left >= bps) && self.reach(parent, object)
            {
                self.left_bps[link.index()] -= bps;
                self.plan.parents.insert((node, object), parent);
                return true;
            }
        }
        false
    }
}

/// Computes a plan for the job.
pub fn plan(network: &Network, groups: &[Vec<NodeId>], job: &PlanJob) -> Plan {
    let left_bps = job.capacities.iter().map(|rate| rate.as_bps()).collect();
    let mut planner = Planner { network, job, left_bps, plan: Plan::default() };
    let mut demand: Vec<(GroupId, Object)> = job.demand.keys().copied().collect();
    demand.sort_by_key(|key| !job.running.edges.contains_key(key));
    for (group, object) in demand {
        let running = job.running.edges.get(&(group, object)).copied();
        let mut edges = groups[group.0 as usize].clone();
        edges.sort_by_key(|edge| running != Some(*edge));
        if let Some(edge) = edges.into_iter().find(|edge| planner.reach(*edge, object)) {
            planner.plan.edges.insert((group, object), edge);
        }
    }
    planner.plan
}
