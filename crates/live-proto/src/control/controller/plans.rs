//! Jobs of the controller for an optimiser, and the check of its plans.

use crate::control::messages::GroupId;
use crate::{Network, NodeId, Object, Tier};
use anabranch_units::{BitRate, LinkId};
use std::collections::{BTreeMap, BTreeSet};

/// Input of the optimiser: the network as nodes report it, and the demand.
#[derive(Clone, Debug, PartialEq)]
pub struct PlanJob {
    /// Number of the job, which is returned with the plan.
    pub number: u64,
    /// Plannable rate of each link, by [`LinkId`]: the estimated capacity minus the slack, and zero
    /// for links of failed and of excluded nodes.
    pub capacities: Vec<BitRate>,
    /// Sources that import each object.
    pub imports: BTreeMap<Object, BTreeSet<NodeId>>,
    /// Number of viewers by group and object, served or not.
    pub demand: BTreeMap<(GroupId, Object), u64>,
    /// Nodes that must not carry any stream.
    pub excluded: BTreeSet<NodeId>,
    /// Current trees and assignments of viewers. They matter to the next plan, because moving a
    /// running stream has a cost.
    pub running: Plan,
}

/// Trees and assignments of viewers to edges.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Parent of each node for each object that the node carries. Sources have no entries.
    pub parents: BTreeMap<(NodeId, Object), NodeId>,
    /// Edge at which each group watches each object.
    pub edges: BTreeMap<(GroupId, Object), NodeId>,
}

/// Reason why a plan is refused. The tables stay unchanged.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PlanError {
    /// The plan belongs to another job than the pending job.
    OtherJob {
        /// Number of the plan's job.
        number: u64,
        /// Number of the pending job.
        pending: Option<u64>,
    },
    /// A route between two nodes without a link.
    NoLink(NodeId, NodeId),
    /// A link whose streams exceed its capacity.
    OverCapacity {
        /// The overloaded link.
        link: LinkId,
        /// Sum of the planned bitrates.
        planned: BitRate,
        /// Capacity of the link.
        capacity: BitRate,
    },
    /// A route whose parent neither imports nor receives the object.
    NoStream(NodeId, Object),
    /// A group assigned to a node that is not one of its edges.
    NotAnEdge(GroupId, NodeId),
}

impl std::fmt::Display for PlanError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::OtherJob { number, pending: Some(pending) } => {
                write!(f, "plan of job {number}: job {pending} is waiting; drop late plans")
            }
            Self::OtherJob { number, pending: None } => write!(f, "plan of job {number}: no job is waiting"),
            Self::NoLink(from, to) => write!(f, "route from node {} to node {}: no link", from.0, to.0),
            Self::OverCapacity { link, planned, capacity } => {
                write!(f, "link {link}: {planned} planned, at most {capacity} fit; plan fewer streams")
            }
            Self::NoStream(node, object) => {
                let (node, channel) = (node.0, object.channel.0);
                write!(
                    f,
                    "node {node} is planned to send V{channel}/{}, which it does not get",
                    object.bitrate
                )
            }
            Self::NotAnEdge(group, node) => {
                write!(f, "group {}: node {} is not one of its edges", group.0, node.0)
            }
        }
    }
}

impl std::error::Error for PlanError {}

/// The link from `parent` to `child`.
pub(super) fn link_between(network: &Network, parent: NodeId, child: NodeId) -> Option<LinkId> {
    let links = network.links_in(child).iter();
    links.copied().find(|link| network.link(*link).from == parent)
}

impl Plan {
    /// Sum of the bitrates on each link, by [`LinkId`].
    ///
    /// Errors: [`PlanError::NoLink`].
    pub fn loads(&self, network: &Network) -> Result<Vec<BitRate>, PlanError> {
        let mut loads = vec![0; network.links().len()];
        for ((node, object), parent) in &self.parents {
            let is_known = node.index() < network.nodes().len();
            let link = is_known.then(|| link_between(network, *parent, *node)).flatten();
            let link = link.ok_or(PlanError::NoLink(*parent, *node))?;
            let load: &mut u64 = &mut loads[link.index()];
            *load = load.saturating_add(object.bitrate.as_bps());
        }
        Ok(loads.into_iter().map(BitRate::bps).collect())
    }

    /// Checks that each route has a link, each link enough capacity, and each object a source.
    pub(crate) fn check(
        &self,
        network: &Network,
        job: &PlanJob,
        groups: &[Vec<NodeId>],
    ) -> Result<(), PlanError> {
        for (number, (planned, capacity)) in (0..).zip(self.loads(network)?.into_iter().zip(&job.capacities))
        {
            if planned > *capacity {
                let link = LinkId(number);
                return Err(PlanError::OverCapacity { link, planned, capacity: *capacity });
            }
        }
        let has = |node: NodeId, object: Object| match network.node(node).tier {
            Tier::Source => job.imports.get(&object).is_some_and(|sources| sources.contains(&node)),
            _ => self.parents.contains_key(&(node, object)),
        };
        for ((_, object), parent) in &self.parents {
            if !has(*parent, *object) {
                return Err(PlanError::NoStream(*parent, *object));
            }
        }
        for ((group, object), edge) in &self.edges {
            if !groups.get(group.0 as usize).is_some_and(|edges| edges.contains(edge)) {
                return Err(PlanError::NotAnEdge(*group, *edge));
            }
            if !has(*edge, *object) {
                return Err(PlanError::NoStream(*edge, *object));
            }
        }
        Ok(())
    }
}
