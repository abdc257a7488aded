//! A CDN that maps by DNS. Each node chooses its parent for a channel, and keeps it for the time to
//! live (§4.7.1, "CDN").
//!
//! For a new object a node takes the parent with the most free capacity among the parents that
//! receive the object. If no parent receives the object, the node takes the lightly loaded parent
//! with the most free capacity. Only single links are considered, not paths. All edges of a group
//! count as close to it. Parents of edges and reflectors have no location, so all of them count as
//! close.

use super::arrival_states::{ArrivalStates, Metrics, Window, lower_bitrate};
use super::ledger::{Ledger, Locks};
use crate::network::{ChannelId, NodeId, Object, Tier};
use crate::plan::problem::{GroupId, GroupLinkId};
use anabranch_units::{Duration, LinkId};

/// Load above which a link is not lightly loaded, as a share of its capacity.
const LIGHT_LOAD_MAX: f64 = 0.8;

struct Cdn<'a> {
    window: &'a Window<'a>,
    ledger: Ledger<'a>,
    nodes: Locks<(NodeId, ChannelId), LinkId>,
    groups: Locks<(GroupId, ChannelId), GroupLinkId>,
    now: Duration,
    ttl: Duration,
}

/// Metrics of a CDN for one window. `ttl` is the time to live of DNS answers: 30 s for "CDN", 1 s
/// for "CDN-1".
pub fn cdn(window: &Window<'_>, ttl: Duration) -> Metrics {
    let mut asks = ArrivalStates::new(window.trace);
    let mut cdn = Cdn {
        window,
        ledger: Ledger::new(window),
        nodes: Locks::new(),
        groups: Locks::new(),
        now: Duration::ZERO,
        ttl,
    };
    let count = asks.all.len().max(1) as u64;
    for (ask, number) in asks.all.iter_mut().zip(0..) {
        cdn.now = Duration::from_ps(window.length.as_ps() / count * number);
        while let Some(object) = ask.object() {
            if cdn.ask(object, ask.arrival.group) {
                break;
            }
            ask.now = lower_bitrate(window.trace, ask);
        }
    }
    asks.metrics(cdn.ledger.cost)
}

impl Cdn<'_> {
    /// Serves `object` to `group` if all chosen links have room. Returns whether it is served.
    fn ask(&mut self, object: Object, group: GroupId) -> bool {
        if self.ledger.serves(object, group) {
            return true;
        }
        let Some(last) = self.edge_link(object, group) else { return false };
        if !self.ledger.has_group_room(object, last) {
            return false;
        }
        let mut node = self.window.topology.group_links[last.index()].edge;
        let mut links = Vec::new();
        while !self.has_it(object, node) {
            let Some(link) = self.parent_link(object, node) else { return false };
            if !self.ledger.has_room(object, link) {
                return false;
            }
            links.push(link);
            node = self.window.topology.network.link(link).from;
        }
        for link in links.into_iter().rev() {
            self.ledger.carry(object, link);
        }
        self.ledger.serve(object, last);
        true
    }

    fn has_it(&self, object: Object, node: NodeId) -> bool {
        self.window.topology.network.node(node).tier == Tier::Source || self.ledger.receives(object, node)
    }

    /// The edge of `group` for this channel: the locked choice, or a new choice.
    fn edge_link(&mut self, object: Object, group: GroupId) -> Option<GroupLinkId> {
        let key = (group, object.channel);
        if let Some(&(link, until)) = self.groups.get(&key)
            && self.now < until
        {
            return Some(link);
        }
        let links = &self.ledger.to_group[group.index()];
        let subscribed = links.iter().filter(|link| {
            let edge = self.window.topology.group_links[link.index()].edge;
            self.ledger.receives(object, edge)
        });
        let chosen = subscribed.max_by_key(|link| self.ledger.group_rooms[link.index()]);
        // Among links with equal room the first link is taken.
        let roomiest = || links.iter().rev().max_by_key(|link| self.ledger.group_rooms[link.index()]);
        let chosen = chosen.or_else(roomiest);
        let chosen = *chosen?;
        self.groups.insert(key, (chosen, Duration::from_ps(self.now.as_ps() + self.ttl.as_ps())));
        Some(chosen)
    }

    /// The parent of `node` for this channel: the locked choice, or a new choice.
    fn parent_link(&mut self, object: Object, node: NodeId) -> Option<LinkId> {
        let key = (node, object.channel);
        if let Some(&(link, until)) = self.nodes.get(&key)
            && self.now < until
        {
            return Some(link);
        }
        let network = &self.window.topology.network;
        let room = |link: &&LinkId| self.ledger.link_rooms[link.index()];
        let links = network.links_in(node).iter();
        let subscribed = links.clone().filter(|&&link| self.ledger.receives(object, network.link(link).from));
        let light = links.clone().filter(|&&link| self.ledger.load(link) <= LIGHT_LOAD_MAX);
        let chosen = subscribed.max_by_key(room).or_else(|| light.max_by_key(room));
        let chosen = *chosen.or_else(|| links.max_by_key(room))?;
        self.nodes.insert(key, (chosen, Duration::from_ps(self.now.as_ps() + self.ttl.as_ps())));
        Some(chosen)
    }
}
