//! Distances and capacities (Table 4.2), which a node receives from its parents and advertises to
//! its children.
//!
//! Source: §4.4.2. A node advertises the objects that it receives at distance 0. For other objects
//! it advertises the distance to the nearest receiving node, if the path from there has enough
//! capacity for the object's bitrate. Differs: a changed capacity is sent only if it changes by
//! [`CAPACITY_STEP_PERCENT`]. An entry still implies that the capacity exceeds the bitrate, and
//! Algorithm 1 needs no more.
//!
//! Leaves out: transport of the messages. Read [`Neighbours`] and [`Reach`] first.

use super::differences::{ApplyResult, Delta, DeltaReceiver, DeltaSender};
use super::local::ParentRoute;
use super::tables::{LinkState, has_rate_changed};
use crate::{NodeId, Object};
use anabranch_units::{BitRate, LinkId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Maximum number of objects in a parent's table, and of objects that a node advertises.
pub const OBJECTS_MAX: usize = 65_536;
/// Maximum number of parents of a node.
pub const PARENTS_MAX: usize = 64;
/// Smallest change of an advertised capacity that is sent, in percent of the last sent value. The
/// same change makes evidence stale.
pub const CAPACITY_STEP_PERCENT: u32 = 20;

/// Distance and capacity to the nearest node that receives an object, as advertised to children.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reach {
    /// Number of links to that node, d(v, b): 0 if the advertising node receives the object.
    pub distance: u32,
    /// Spare capacity of the narrowest link on the path, c(v, b); `None` at distance 0.
    pub capacity: Option<BitRate>,
}

impl Reach {
    /// The reach of an object that the advertising node itself receives.
    pub const HERE: Self = Self { distance: 0, capacity: None };

    /// Replaces this reach by `other` if that is nearer, or equally near with more capacity.
    fn approach(&mut self, other: Self) {
        let key = |reach: &Self| (reach.distance, std::cmp::Reverse(reach.capacity));
        if key(&other) < key(self) {
            *self = other;
        }
    }

    fn is_news(&self, next: &Self) -> bool {
        let rate = |reach: &Self| reach.capacity.unwrap_or(BitRate::bps(0));
        self.distance != next.distance || has_rate_changed(rate(self), rate(next), CAPACITY_STEP_PERCENT)
    }
}

/// State of the link from a parent, as the parent reports it.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offer {
    /// Capacity of the link, as estimated by the parent.
    pub capacity: BitRate,
    /// Capacity that no stream uses.
    pub spare: BitRate,
    /// Whether the parent is drained and accepts no new stream.
    pub is_draining: bool,
    /// Whether a link to the parent has limited its transfers within the last second. The rate that
    /// its children receive is then the rate of that link.
    #[serde(default)]
    pub is_limited: bool,
}

impl Offer {
    /// The offer with rates of at most `declared`.
    pub(super) fn limited(self, declared: BitRate) -> Self {
        let capacity = self.capacity.min(declared);
        Self { capacity, spare: self.spare.min(capacity), ..self }
    }
}

/// A node's record of a parent.
#[derive(Clone, Debug)]
struct Parent {
    link: LinkId,
    /// Last offer; `None` before the first and after a failure.
    offer: Option<Offer>,
    table: DeltaReceiver<Object, Reach>,
}

impl Parent {
    const fn new(link: LinkId) -> Self {
        Self { link, offer: None, table: DeltaReceiver::new(OBJECTS_MAX) }
    }
}

/// Table 4.2 of one node: the advertisements of its parents.
#[derive(Clone, Debug, Default)]
pub struct Neighbours {
    parents: BTreeMap<NodeId, Parent>,
}

impl Neighbours {
    /// Creates the table for the parents of a node, with the links from them. Parents beyond
    /// [`PARENTS_MAX`] are left out.
    pub fn new(parents: impl IntoIterator<Item = (NodeId, LinkId)>) -> Self {
        let parents = parents.into_iter().take(PARENTS_MAX).map(|(node, link)| (node, Parent::new(link)));
        Self { parents: parents.collect() }
    }

    /// Adds a parent. Returns false and adds nothing if [`PARENTS_MAX`] is reached or the parent
    /// exists.
    pub fn add(&mut self, node: NodeId, link: LinkId) -> bool {
        let is_added = self.parents.len() < PARENTS_MAX && !self.has(node);
        if is_added {
            self.parents.insert(node, Parent::new(link));
        }
        is_added
    }

    /// The parents, in order.
    pub fn parents(&self) -> impl Iterator<Item = NodeId> {
        self.parents.keys().copied()
    }

    /// Whether `node` is a parent.
    pub fn has(&self, node: NodeId) -> bool {
        self.parents.contains_key(&node)
    }

    /// Takes a parent's offer.
    pub fn handle_offer(&mut self, parent: NodeId, offer: Offer) {
        if let Some(parent) = self.parents.get_mut(&parent) {
            parent.offer = Some(offer);
        }
    }

    /// Takes a parent's advertisement.
    pub fn handle_table(&mut self, parent: NodeId, delta: Delta<Object, Reach>) -> ApplyResult {
        self.parents.get_mut(&parent).map_or(ApplyResult::Old, |parent| parent.table.handle(delta))
    }

    /// Handles the failure of a parent or its link: discards the parent's offer and table.
    pub fn handle_failure(&mut self, parent: NodeId) {
        if let Some(parent) = self.parents.get_mut(&parent) {
            parent.offer = None;
            parent.table.clear();
        }
    }

    /// Subtracts a requested stream from a parent's offer, until the parent's next offer.
    pub fn spend(&mut self, parent: NodeId, bitrate: BitRate) {
        if let Some(offer) = self.parents.get_mut(&parent).and_then(|parent| parent.offer.as_mut()) {
            offer.spare = BitRate::bps(offer.spare.as_bps().saturating_sub(bitrate.as_bps()));
        }
    }

    /// The last offer of a parent; `None` if the parent has failed or not yet sent one.
    pub fn offer(&self, parent: NodeId) -> Option<Offer> {
        self.parents.get(&parent)?.offer
    }

    /// The links from the parents, with the last offers.
    pub fn links(&self) -> impl Iterator<Item = (LinkId, Option<Offer>)> {
        self.parents.values().map(|parent| (parent.link, parent.offer))
    }

    /// State of the link from a parent; [`LinkState::Failed`] for any other link.
    pub fn link_state(&self, link: LinkId) -> LinkState {
        let offer = self.links().find(|(own, _)| *own == link).and_then(|(_, offer)| offer);
        offer.map_or(LinkState::Failed, |offer| LinkState::Up(offer.capacity))
    }

    /// The routes to an object, one through each parent that advertises it: a row of Table 4.2.
    pub fn ways(&self, object: Object) -> impl Iterator<Item = ParentRoute> + Clone {
        self.parents.iter().filter_map(move |(node, parent)| {
            let offer = parent.offer.filter(|offer| !offer.is_draining)?;
            Some(via(*node, offer, *parent.table.table().get(&object)?))
        })
    }

    /// The advertisement to the children: the objects that this node receives, and for other
    /// objects the nearest route with enough capacity. At most [`OBJECTS_MAX`] objects.
    ///
    /// Received objects are listed first. Each parent gets an equal share of the remaining entries,
    /// and entries left over are filled in turn. No parent displaces a received object or the share
    /// of another parent.
    pub fn advertisement(&self, received: impl IntoIterator<Item = Object>) -> BTreeMap<Object, Reach> {
        let received = received.into_iter().take(OBJECTS_MAX);
        let mut reaches: BTreeMap<Object, Reach> = received.map(|object| (object, Reach::HERE)).collect();
        let share = (OBJECTS_MAX - reaches.len()) / self.parents.len().max(1);
        let mut beyond = Vec::new();
        for (node, parent) in &self.parents {
            let Some(offer) = parent.offer.filter(|offer| !offer.is_draining) else { continue };
            let mut added = 0;
            for (object, reach) in parent.table.table() {
                let via = via(*node, offer, *reach);
                if via.capacity <= object.bitrate {
                    continue;
                }
                let reach = Reach { distance: via.distance, capacity: Some(via.capacity) };
                match reaches.get_mut(object) {
                    Some(best) => best.approach(reach),
                    None if added < share => {
                        added += 1;
                        reaches.insert(*object, reach);
                    }
                    None => beyond.push((*object, reach)),
                }
            }
        }
        for (object, reach) in beyond {
            if reaches.len() < OBJECTS_MAX || reaches.contains_key(&object) {
                reaches.entry(object).or_insert(reach).approach(reach);
            }
        }
        reaches
    }
}

fn via(parent: NodeId, offer: Offer, reach: Reach) -> ParentRoute {
    let capacity = reach.capacity.map_or(offer.spare, |capacity| capacity.min(offer.spare));
    ParentRoute { parent, distance: reach.distance.saturating_add(1), capacity }
}

/// A node's advertisement as a sequence of messages, which are the same for all children.
#[derive(Clone, Debug)]
pub struct Advertiser {
    sender: DeltaSender<Object, Reach>,
}

impl Advertiser {
    /// Creates the state before the first message. `life` is the incarnation number of the node,
    /// and must exceed all earlier ones.
    pub const fn new(life: u64) -> Self {
        Self { sender: DeltaSender::new(life) }
    }

    /// The next message to a child: the changes since the last sent advertisement.
    pub fn advance(&mut self, reaches: BTreeMap<Object, Reach>) -> Delta<Object, Reach> {
        self.sender.advance(reaches, Reach::is_news)
    }

    /// The whole advertisement, for a child that requests it; `None` before the first message.
    pub fn whole(&self) -> Option<Delta<Object, Reach>> {
        self.sender.whole()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ChannelId;

    const X: NodeId = NodeId(0);
    const Y: NodeId = NodeId(1);

    fn object(channel: u32, kbps: u64) -> Object {
        Object { channel: ChannelId(channel), bitrate: BitRate::bps(kbps * 1_000) }
    }

    fn offer(kbps: u64) -> Offer {
        let spare = BitRate::bps(kbps * 1_000);
        Offer { capacity: spare, spare, is_draining: false, is_limited: false }
    }

    fn passed(distance: u32, kbps: u64) -> Reach {
        Reach { distance, capacity: Some(BitRate::bps(kbps * 1_000)) }
    }

    /// A node with two parents, which offer `x` and `y` kbit/s and advertise `reaches`.
    fn node(x: u64, y: u64, reaches: [&[(Object, Reach)]; 2]) -> Neighbours {
        let mut node = Neighbours::new([(X, LinkId(0)), (Y, LinkId(1))]);
        for ((parent, kbps), reaches) in [(X, x), (Y, y)].into_iter().zip(reaches) {
            node.handle_offer(parent, offer(kbps));
            let delta = Advertiser::new(1).advance(reaches.iter().copied().collect());
            assert_eq!(node.handle_table(parent, delta), ApplyResult::Yes);
        }
        node
    }

    #[test]
    fn received_objects_are_advertised_at_distance_zero() {
        let v0 = object(0, 800);
        let node = node(9_000, 9_000, [&[(v0, Reach::HERE)], &[]]);
        assert_eq!(node.advertisement([])[&v0], passed(1, 9_000));
        assert_eq!(node.advertisement([v0])[&v0], Reach::HERE);
        assert!(!node.advertisement([v0]).contains_key(&object(0, 400)));
    }

    #[test]
    fn nearest_path_with_capacity_is_advertised() {
        let (v0, v1) = (object(0, 2_000), object(1, 2_000));
        let x = [(v0, Reach::HERE), (v1, passed(1, 9_000))];
        let node = node(1_500, 4_000, [&x, &[(v0, passed(1, 3_000)), (v1, passed(2, 1_000))]]);
        // X receives v0, but the link from X is too narrow. No route to v1 has enough capacity.
        assert_eq!(node.advertisement([]), [(v0, passed(2, 3_000))].into());
    }

    #[test]
    fn capacity_equal_to_the_bitrate_is_not_enough() {
        let v0 = object(0, 2_000);
        for (kbps, is_passed_on) in [(2_000, false), (2_001, true)] {
            let node = node(kbps, 0, [&[(v0, Reach::HERE)], &[]]);
            assert_eq!(node.advertisement([]).contains_key(&v0), is_passed_on);
        }
    }

    #[test]
    fn hostile_parent_displaces_no_other_object() {
        // X fills its table with objects that sort before all objects of Y.
        let flood: Vec<_> =
            (0..OBJECTS_MAX as u32).map(|channel| (object(channel, 1), Reach::HERE)).collect();
        let last = OBJECTS_MAX as u32;
        let (received, of_y) = (object(last, 1), object(last + 1, 1));
        let node = node(9_000, 9_000, [&flood, &[(of_y, Reach::HERE)]]);
        let advertisement = node.advertisement([received]);
        assert_eq!(advertisement.len(), OBJECTS_MAX);
        assert_eq!(advertisement.get(&received), Some(&Reach::HERE));
        assert_eq!(advertisement.get(&of_y), Some(&passed(1, 9_000)));
    }

    #[test]
    fn failed_and_draining_parents_offer_no_route() {
        let v0 = object(0, 800);
        let mut node = node(9_000, 9_000, [&[(v0, Reach::HERE)], &[(v0, Reach::HERE)]]);
        assert_eq!(node.ways(v0).count(), 2);
        node.handle_failure(X);
        node.handle_offer(Y, Offer { is_draining: true, ..offer(9_000) });
        assert_eq!(node.ways(v0).count(), 0);
        node.handle_offer(X, offer(9_000));
        assert_eq!(node.ways(v0).count(), 0, "the table of a failed parent is void");
    }

    #[test]
    fn small_changes_of_capacity_are_not_sent() {
        let v0 = object(0, 800);
        let mut advertiser = Advertiser::new(1);
        advertiser.advance([(v0, passed(1, 10_000))].into());
        for (kbps, is_sent) in [(8_001, false), (12_000, true), (9_601, false), (9_600, true)] {
            let delta = advertiser.advance([(v0, passed(1, kbps))].into());
            assert_eq!(!delta.set.is_empty(), is_sent, "{kbps} kbit/s");
        }
        assert_eq!(advertiser.advance([(v0, passed(2, 9_600))].into()).set.len(), 1);
        assert_eq!(advertiser.advance([].into()).removed, [v0]);
    }
}
