//! Jobs of the controller for an optimiser, and the check of its plans.

use crate::control::messages::GroupId;
use crate::{Network, NodeId, Object, Tier};
use anabranch_units::{BitRate, LinkId};
use std::collections::{BTreeMap, BTreeSet};

/// Work for an optimiser: the network as the nodes report it, and the demand.
#[derive(Clone, Debug, PartialEq)]
pub struct PlanJob {
    /// Number of the job; the plan is handed back with it.
    pub number: u64,
    /// Rate of each link that may be planned, by [`LinkId`]: the believed capacity without the
    /// slack, and zero for links of failed and of excluded nodes.
    pub capacities: Vec<BitRate>,
    /// Sources that import each object.
    pub imports: BTreeMap<Object, BTreeSet<NodeId>>,
    /// Viewers of each group, served or not.
    pub demand: BTreeMap<(GroupId, Object), u64>,
    /// Nodes that must carry nothing.
    pub excluded: BTreeSet<NodeId>,
    /// The present trees and places of viewers: moves of running streams have a price.
    pub running: Plan,
}

/// Trees and places of viewers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Parent of each node for each object that it carries. Sources have none.
    pub parents: BTreeMap<(NodeId, Object), NodeId>,
    /// Edge at which a group watches an object.
    pub edges: BTreeMap<(GroupId, Object), NodeId>,
}

/// Refusal of a plan; the tables stay as they are.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PlanError {
    /// The plan answers another job than the last.
    OtherJob {
        /// Job of the plan.
        number: u64,
        /// Job that waits for a plan.
        pending: Option<u64>,
    },
    /// A route between nodes without a link.
    NoLink(NodeId, NodeId),
    /// A link with more streams than it can carry.
    OverCapacity {
        /// The link.
        link: LinkId,
        /// Sum of the planned bitrates.
        planned: BitRate,
        /// Capacity of the link.
        capacity: BitRate,
    },
    /// A route to a node that neither imports nor receives the object.
    NoStream(NodeId, Object),
    /// A group at a node that is not one of its edges.
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

    /// Checks that each route has a link, each link its capacity, and each object a source.
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
