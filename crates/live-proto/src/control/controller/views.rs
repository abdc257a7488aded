//! Views of the controller's state, for directories and operators.

use super::Controller;
use crate::control::messages::GroupId;
use crate::control::tables::Version;
use crate::{NodeId, Object};
use anabranch_units::BitRate;

impl Controller {
    /// Whether a node's reports arrive.
    pub fn is_reporting(&self, node: NodeId) -> bool {
        self.is_up(node)
    }

    /// Whether a node accepts new streams: it reports and is not drained.
    pub fn is_open(&self, node: NodeId) -> bool {
        self.is_up(node) && !self.draining.contains(&node)
    }

    /// Version of the tables in a node's last report.
    pub fn installed(&self, node: NodeId) -> Version {
        self.nodes[node.index()].version
    }

    /// Streams in a node's reports, with the parent that delivers each; `None` as parent of an
    /// imported stream.
    pub fn streams(&self, node: NodeId) -> impl Iterator<Item = (Object, Option<NodeId>)> {
        let streams = self.nodes[node.index()].streams.table().iter();
        streams.map(|(object, parent)| (*object, *parent))
    }

    /// Number of viewers in a node's reports, by group and object.
    pub fn viewers_at(&self, node: NodeId) -> impl Iterator<Item = ((GroupId, Object), u64)> {
        self.nodes[node.index()].viewers.table().iter().map(|(key, viewers)| (*key, *viewers))
    }

    /// Capacity of each link, as nodes report it; 0 for a failed link.
    pub fn believed(&self) -> Vec<BitRate> {
        self.capacities()
    }
}
