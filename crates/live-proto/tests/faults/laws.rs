//! The laws: invariants that every schedule must obey.
//!
//! 1. No link carries more than its sender's estimate of its capacity, neither by the ledger nor by
//!    the streams that children fetch.
//! 2. A granted stream is never refused for lack of capacity, unless the capacity of its link has
//!    just fallen. So no decision degrades a running stream.
//! 3. One request changes the parent at no more than n - 1 = 2 nodes, for n = 3 tiers.
//! 4. A node has one parent for an object, and at most one more while the stream moves. At the end
//!    each stream leads to a source that imports it, through parents that have granted it. (Links
//!    lead down the tiers only, so there is no loop.)
//! 5. A stream that moves is fetched from its old parent until the new parent delivers.
//! 6. Within two rounds after the last fault, for a quiet time, all tables equal the controller's,
//!    no local decision overrides a route of the tables, and streams follow the tables. From then
//!    on this holds whenever no stage is in progress, and for a quiet time of the last round. If
//!    full links keep a stream from its planned route, the tables have the stream where it runs.
//! 7. The version of a node's tables never decreases.
//! 8. At the end every viewer is served if an edge of its group could serve it at any bitrate.
//! 9. No viewer's video stalls while the controller fails, updates are lost, or nodes are drained.

use super::viewers::{Viewer, WatchedEdge};
use super::world::{LATE_US_MAX, ROUND, World, ladder};
use anabranch_live_proto::control::messages::{
    Cause, ChildMessage, ParentMessage, Refusal, ToChild, ToParent,
};
use anabranch_live_proto::control::tables::{Prefix, RibEntry, Version};
use anabranch_live_proto::{NodeId, Object, Tier};
use anabranch_units::{BitRate, Duration, Instant};
use std::collections::{BTreeMap, BTreeSet};

/// Age of the last video at which a parent counts as delivering: less than two flow intervals.
const DELIVERS: Duration = Duration::from_ms(150);
/// Longest time without service for a viewer that could be served: two attempts at all edges.
const NEGLECT_MAX: Duration = Duration::from_secs(9);

/// Time without a stage in which law 6 must hold at every check.
const QUIET: Duration = Duration::from_secs(3);

/// Observations for the checks of the laws.
#[derive(Default)]
pub struct Laws {
    /// Grants so far: parent, child, object and attempt.
    granted: BTreeSet<(NodeId, NodeId, Object, u64)>,
    /// The node that has just lowered a link's capacity, and may evict streams.
    pub evictor: Option<NodeId>,
    /// Nodes whose parent changed, by the request that caused the changes.
    changed: BTreeMap<Cause, BTreeSet<NodeId>>,
    /// Last time at which a node counted a parent as failed, by node and parent.
    pub failed: BTreeMap<(NodeId, NodeId), Instant>,
    /// Newest version of the tables, by the incarnation number of the node.
    versions: BTreeMap<u64, Version>,
    /// Start of the first quiet time in which law 6 held after the last fault.
    converged_at: Option<Instant>,
    /// Time since which law 6 has held at every check.
    agrees_since: Option<Instant>,
    /// Whether law 6 has held for [`QUIET`] in the last round.
    is_quiet: bool,
}

impl Laws {
    /// Records a parent's message to a child, and checks law 2.
    pub fn note_sent(&mut self, parent: NodeId, child: NodeId, message: &ToChild) {
        match message.body {
            ParentMessage::Granted { object, attempt } => {
                self.granted.insert((parent, child, object, attempt));
            }
            ParentMessage::Refused { object, attempt, why: Refusal::Evicted } => {
                assert_eq!(self.evictor, Some(parent), "law 2: evicted without a loss of capacity");
                self.granted.remove(&(parent, child, object, attempt));
            }
            ParentMessage::Refused { object, attempt, why: Refusal::NoCapacity | Refusal::Draining } => {
                let was_granted = self.granted.contains(&(parent, child, object, attempt));
                assert!(!was_granted, "law 2: node {} refuses {object:?} after a grant", parent.0);
            }
            // The parent had released the silent child, and the child compares its requests.
            ParentMessage::Refused { object, attempt, why: Refusal::NotHeld } => {
                self.granted.remove(&(parent, child, object, attempt));
            }
            _ => {}
        }
    }

    /// Records a child's message that arrives at its parent.
    pub fn note_given_up(&mut self, child: NodeId, parent: NodeId, message: &ToParent) {
        if let ChildMessage::Unsubscribe { object, attempt } = message.body {
            self.granted
                .retain(|grant| (grant.0, grant.1, grant.2) != (parent, child, object) || grant.3 > attempt);
        }
    }

    /// Records a granted request that results from `cause`, and checks law 3.
    pub fn note_fetch(&mut self, at: NodeId, cause: Cause) {
        let changed = self.changed.entry(cause).or_default();
        changed.insert(at);
        assert!(changed.len() <= 2, "law 3: {cause:?} changed {changed:?}");
    }
}

impl World {
    /// Checks law 5 when a node stops fetching an object from a parent that last delivered at
    /// `last`.
    pub fn check_stop(&self, at: NodeId, object: Object, parent: NodeId, last: Option<Instant>) {
        let now = self.now();
        let process = self.nodes[at.index()].as_ref().expect("it has said so");
        let is_wanted = process.machine.objects().any(|own| own == object);
        let delivers = last.is_some_and(|last| now <= last + DELIVERS);
        let grants = self.nodes[parent.index()].as_ref();
        let grants = grants.is_some_and(|parent| parent.machine.is_granted(at, object));
        let has_failed = self.laws.failed.get(&(at, parent)) == Some(&now);
        if is_wanted && delivers && grants && !has_failed {
            let next = process.machine.upstream(object);
            assert!(next.is_some_and(|next| next != parent), "law 5: node {} breaks {object:?} first", at.0);
        }
    }

    /// Checks law 9 for a viewer with an edge.
    pub fn check_video(&self, at: usize, watch: WatchedEdge) {
        let is_stalled = self.is_video_safe && self.now() > watch.last + DELIVERS;
        assert!(!is_stalled, "law 9: viewer {at} has no video since {:?}", watch.last);
    }

    /// Checks laws 1, 4 and 7, and observes laws 6 and 8.
    pub fn check_flows(&mut self) {
        for link in self.place.network.links() {
            let (Some(parent), Some(child)) = (&self.nodes[link.from.index()], &self.nodes[link.to.index()])
            else {
                continue;
            };
            // The parent may not yet have a new link.
            let Some(ledger) = parent.machine.ledger(link.to) else { continue };
            let believed = ledger.capacity().believed();
            let fetched = child
                .fetching
                .keys()
                .filter(|(object, from)| *from == link.from && parent.machine.is_granted(link.to, *object));
            let load: u64 = fetched.map(|(object, _)| object.bitrate.as_bps()).sum();
            let places = (link.from.0, link.to.0);
            assert!(BitRate::bps(load) <= believed, "law 1: {load} bit/s on {places:?}, {believed} believed");
            assert!(ledger.used() <= believed, "law 1: the ledger of {places:?} exceeds {believed}");
            // A frozen node receives a lower capacity when it resumes.
            let is_known = believed <= link.capacity || parent.frozen_until > self.now();
            assert!(is_known, "law 1: {places:?} is believed above its declared capacity");
        }
        for (process, at) in self.nodes.iter().zip(0..) {
            let Some(process) = process else { continue };
            let version = process.machine.rib().version();
            let earlier = self.laws.versions.insert(process.life, version).unwrap_or_default();
            assert!(version >= earlier, "law 7: node {at} goes back from {earlier} to {version}");
            let mut ways: BTreeMap<Object, u32> = BTreeMap::new();
            for (object, _) in process.fetching.keys() {
                *ways.entry(*object).or_default() += 1;
            }
            assert!(ways.values().all(|count| *count <= 2), "law 4: node {at} has {ways:?}");
        }
        if let Some(healed_at) = self.healed_at {
            // The last delayed message counts as the last fault.
            if self.now() > healed_at + Duration::from_us(LATE_US_MAX) {
                self.note_agreement(healed_at);
            }
            self.note_neglect();
        }
    }

    /// Whether the controller is still moving the network to other tables.
    fn is_moving(&self) -> bool {
        let controller = &self.controller.as_ref().expect("started by the end of faults").machine;
        !controller.is_settled() || controller.version().decision == 0
    }

    /// Observes law 6.
    fn note_agreement(&mut self, healed_at: Instant) {
        let (now, is_moving) = (self.now(), self.is_moving());
        let difference = if is_moving { None } else { self.difference() };
        if is_moving || difference.is_some() {
            let since = self.laws.agrees_since.take();
            let is_broken = since.is_some_and(|since| now >= since + QUIET) && !is_moving;
            assert!(!is_broken, "law 6: equal since {since:?}, without a stage now {difference:?}");
            return;
        }
        let since = *self.laws.agrees_since.get_or_insert(now);
        if now < since + QUIET {
            return;
        }
        if self.laws.converged_at.is_none() {
            self.schedule.say("converged");
            self.laws.converged_at = Some(since);
        }
        self.laws.is_quiet |= now >= healed_at + ROUND * 2;
    }

    /// Checks that a stream leads to a source that imports its object.
    fn check_way(&self, at: NodeId, object: Object) {
        let mut node = at;
        while self.place.network.node(node).tier != Tier::Source {
            let process = self.nodes[node.index()].as_ref().expect("started by the end of faults");
            let Some(parent) = process.machine.upstream(object) else {
                panic!("law 4: {object:?} of node {} ends at node {}", at.0, node.0);
            };
            let grants = self.nodes[parent.index()].as_ref().expect("started by the end of faults");
            let is_granted = grants.machine.is_granted(node, object);
            assert!(is_granted, "law 4: node {} does not grant {object:?} to node {}", parent.0, node.0);
            node = parent;
        }
        let is_imported = self.place.imports.get(&node).is_some_and(|objects| objects.contains(&object));
        assert!(is_imported, "law 4: node {} does not import {object:?} of node {}", node.0, at.0);
    }

    /// Describes the first difference between the controller's tables and the nodes; `None` if
    /// equal.
    fn difference(&self) -> Option<String> {
        let controller = &self.controller.as_ref().expect("started by the end of faults").machine;
        let mut nodes = self.nodes.iter().flatten().zip(0..);
        nodes.find_map(|(process, at)| {
            let (node, rib) = (&process.machine, process.machine.rib());
            let fib = node.fib(self.now());
            if rib.version() != controller.version() || !rib.central().eq(controller.table(NodeId(at))) {
                return Some(format!("node {at} has other tables, of version {}", rib.version()));
            }
            let is_unfollowed = |entry: &&RibEntry| {
                let Prefix::Object(object) = entry.prefix else { return true };
                let is_followed = node.upstream(object).is_none_or(|parent| parent == entry.next_hop);
                !is_followed || fib.lookup(object) != Some(entry.next_hop)
            };
            let is_override = |entry: &&RibEntry| {
                controller.table(NodeId(at)).any(|planned| planned.prefix == entry.prefix)
            };
            let entry = rib.central().find(is_unfollowed).or_else(|| rib.distributed().find(is_override))?;
            let Prefix::Object(object) = entry.prefix else { return Some(format!("{}", entry.prefix)) };
            let (upstream, hop) = (node.upstream(object), fib.lookup(object));
            Some(format!("node {at}: {entry:?}, stream from {upstream:?}, next hop {hop:?}"))
        })
    }

    /// Whether the edge could serve a viewer: by its own stream, or by a route with capacity.
    fn can_serve(&self, edge: NodeId, object: Object) -> bool {
        let receives = |node: NodeId| {
            self.nodes[node.index()].as_ref().is_some_and(|process| process.machine.is_receiving(object))
        };
        let spare = |parent: NodeId, child: NodeId| {
            let process = self.nodes[parent.index()].as_ref();
            process.and_then(|process| Some(process.machine.ledger(child)?.spare()))
        };
        let has_room = |parent, child| spare(parent, child).is_some_and(|spare| spare > object.bitrate);
        let parents = |node| {
            let links = self.place.network.links_in(node).iter();
            links
                .map(|link| self.place.network.link(*link).from)
                .filter(move |parent| has_room(*parent, node))
        };
        let is_source = |node: NodeId| self.place.network.node(node).tier == Tier::Source;
        let is_fed = |node: NodeId| receives(node) || (!is_source(node) && parents(node).any(receives));
        receives(edge) || parents(edge).any(is_fed)
    }

    fn note_neglect(&mut self) {
        let now = self.now();
        for at in 0..self.viewers.len() {
            let Viewer { group, channel, is_here, ref watch, .. } = self.viewers[at];
            let edges = &self.place.groups[group.0 as usize];
            let could = || {
                ladder(channel)
                    .into_iter()
                    .any(|object| edges.iter().any(|edge| self.can_serve(*edge, object)))
            };
            let is_neglected = is_here && watch.is_none() && could();
            let since = &mut self.viewers[at].neglected_since;
            *since = is_neglected.then_some(since.unwrap_or(now));
            let since = since.unwrap_or(now);
            assert!(now <= since + NEGLECT_MAX, "law 8: viewer {at} could be served since {since:?}");
        }
    }

    /// Checks the laws that must hold two rounds after all faults have ended.
    pub fn check_end(&self) {
        let healed_at = self.healed_at.expect("it is over");
        let converged_at = self.laws.converged_at;
        let is_in_time = converged_at.is_some_and(|at| at <= healed_at + ROUND * 2);
        let difference = self.difference();
        assert!(is_in_time, "law 6: equal at {converged_at:?}, difference {difference:?}");
        assert!(self.laws.is_quiet, "law 6: never equal for {QUIET:?} in the last round");
        for (process, at) in self.nodes.iter().flatten().zip(0..) {
            let machine = &process.machine;
            let streams = machine.objects().filter(|object| machine.upstream(*object).is_some());
            streams.for_each(|object| self.check_way(NodeId(at), object));
        }
        for (at, viewer) in self.viewers.iter().enumerate() {
            if let Some(watch) = viewer.watch {
                assert!(self.now() <= watch.last + DELIVERS, "viewer {at} has no video");
            }
        }
    }
}
