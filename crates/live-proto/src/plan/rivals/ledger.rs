//! Remaining capacity of each link, and the streams that each node receives.

use super::arrival_states::Window;
use crate::network::{NodeId, Object};
use crate::plan::problem::{GroupId, GroupLinkId};
use anabranch_units::LinkId;
use std::collections::{BTreeMap, BTreeSet};

pub(super) struct Ledger<'a> {
    window: &'a Window<'a>,
    pub(super) link_rooms: Vec<u64>,
    pub(super) group_rooms: Vec<u64>,
    /// Pairs of an object and a node that receives it.
    receivers: BTreeSet<(Object, NodeId)>,
    served: BTreeSet<(Object, GroupId)>,
    /// Links to each group.
    pub(super) to_group: Vec<Vec<GroupLinkId>>,
    /// Cost of all carried streams.
    pub(super) cost: f64,
}

impl<'a> Ledger<'a> {
    pub(super) fn new(window: &'a Window<'a>) -> Self {
        let topology = window.topology;
        let mut to_group = vec![Vec::new(); topology.groups.len()];
        for (link, id) in topology.group_links.iter().zip(0..) {
            to_group[link.group.index()].push(GroupLinkId(id));
        }
        Self {
            window,
            link_rooms: topology.network.links().iter().map(|link| link.capacity.as_bps()).collect(),
            group_rooms: topology.group_links.iter().map(|link| link.capacity.as_bps()).collect(),
            receivers: BTreeSet::new(),
            served: BTreeSet::new(),
            to_group,
            cost: 0.0,
        }
    }

    pub(super) fn receives(&self, object: Object, node: NodeId) -> bool {
        self.receivers.contains(&(object, node))
    }
    pub(super) fn serves(&self, object: Object, group: GroupId) -> bool {
        self.served.contains(&(object, group))
    }
    pub(super) fn has_room(&self, object: Object, link: LinkId) -> bool {
        self.link_rooms[link.index()] >= object.bitrate.as_bps()
    }
    pub(super) fn has_group_room(&self, object: Object, link: GroupLinkId) -> bool {
        self.group_rooms[link.index()] >= object.bitrate.as_bps()
    }
    /// Carries `object` over `link`, which must have room.
    pub(super) fn carry(&mut self, object: Object, link: LinkId) {
        let ends = self.window.topology.network.link(link);
        self.link_rooms[link.index()] -= object.bitrate.as_bps();
        self.receivers.insert((object, ends.to));
        self.cost += ends.cost * object.bitrate.as_mbps_f64();
    }
    /// Serves `object` over a group link, which must have room.
    pub(super) fn serve(&mut self, object: Object, link: GroupLinkId) {
        let ends = self.window.topology.group_links[link.index()];
        self.group_rooms[link.index()] -= object.bitrate.as_bps();
        self.served.insert((object, ends.group));
        self.cost += ends.cost * object.bitrate.as_mbps_f64();
    }
    /// All requests served so far.
    pub(super) fn all_served(&self) -> &BTreeSet<(Object, GroupId)> {
        &self.served
    }
    /// Used share of a link's capacity.
    pub(super) fn load(&self, link: LinkId) -> f64 {
        let capacity = self.window.topology.network.link(link).capacity.as_bps() as f64;
        1.0 - self.link_rooms[link.index()] as f64 / capacity.max(1.0)
    }
}

/// Choices by node (or group) and channel, each locked until a time.
pub(super) type Locks<K, L> = BTreeMap<K, (L, anabranch_units::Duration)>;
