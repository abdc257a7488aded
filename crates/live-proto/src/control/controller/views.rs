//! The controller's knowledge of the network, for directories and operators.

use super::Controller;
use crate::control::messages::GroupId;
use crate::control::tables::Version;
use crate::{NodeId, Object};
use anabranch_units::BitRate;

impl Controller {
    /// Whether a node reports.
    pub fn is_reporting(&self, node: NodeId) -> bool {
        self.is_up(node)
    }

    /// Whether a node takes new streams: it reports and is not drained.
    pub fn is_open(&self, node: NodeId) -> bool {
        self.is_up(node) && !self.draining.contains(&node)
    }

    /// Version of the tables that a node reports.
    pub fn installed(&self, node: NodeId) -> Version {
        self.nodes[node.index()].version
    }

    /// Streams that a node reports, with the parent that delivers each; `None` for an imported one.
    pub fn streams(&self, node: NodeId) -> impl Iterator<Item = (Object, Option<NodeId>)> {
        let streams = self.nodes[node.index()].streams.table().iter();
        streams.map(|(object, parent)| (*object, *parent))
    }

    /// Viewers that a node reports.
    pub fn viewers_at(&self, node: NodeId) -> impl Iterator<Item = ((GroupId, Object), u64)> {
        self.nodes[node.index()].viewers.table().iter().map(|(key, viewers)| (*key, *viewers))
    }

    /// Capacity of each link as nodes report it; 0 for a failed one.
    pub fn believed(&self) -> Vec<BitRate> {
        self.capacities()
    }
}
