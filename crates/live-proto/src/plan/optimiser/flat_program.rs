//! A program as flat arrays: links grouped by the node they lead to, and objects with their
//! requests.
//!
//! A *feed* leads from a source to a reflector, a *trunk* from a reflector to an edge, a *tail*
//! from an edge to a group. Prices are per Mbit/s and include w_c. They are the same for all
//! objects, because every cost is proportional to the bitrate.

use crate::network::Tier;
use crate::plan::problem::{GroupId, GroupLinkId, ObjectId, Program};
use anabranch_units::LinkId;
use std::collections::BTreeMap;
use std::ops::Range;

/// Index that stands for no link.
pub(super) const NONE: u32 = u32::MAX;
/// Price of a link that cannot be used.
pub(super) const FAR: f64 = 1e30;

/// Number of sets above which further sets ignore capacities: they differ only in their sources, so
/// the bounds then also count feeds too narrow for the objects.
const FEED_SETS_MAX: usize = 64;

/// The links of one tier, grouped by the node at their lower end.
#[derive(Clone, Debug, Default)]
pub(super) struct Links {
    /// Index of the first link into each node, and the number of links at the end.
    pub(super) starts: Vec<u32>,
    /// Node at the upper end, by its index within its tier.
    pub(super) parents: Vec<u32>,
    /// Weighted cost per Mbit/s.
    pub(super) costs: Vec<f64>,
    /// Planned capacity in bit/s.
    pub(super) rooms: Vec<u64>,
    /// Planned capacity in Mbit/s.
    pub(super) capacities: Vec<f64>,
    /// Id of the link, or of the group link.
    pub(super) ids: Vec<u32>,
}

impl Links {
    fn push(&mut self, parent: u32, cost: f64, room: u64, id: u32) {
        self.parents.push(parent);
        self.costs.push(cost);
        self.rooms.push(room);
        self.capacities.push(room as f64 / 1e6);
        self.ids.push(id);
    }
    fn end_node(&mut self) {
        self.starts.push(self.parents.len() as u32);
    }
    pub(super) fn len(&self) -> usize {
        self.parents.len()
    }
    pub(super) fn leading_to(&self, node: usize) -> Range<usize> {
        self.starts[node] as usize..self.starts[node + 1] as usize
    }
}

/// A program as flat arrays.
#[derive(Clone, Debug)]
pub(super) struct FlatProgram {
    pub(super) reflectors: usize,
    pub(super) edges: usize,
    pub(super) feeds: Links,
    pub(super) trunks: Links,
    pub(super) tails: Links,
    /// Sets of feeds that objects may use.
    pub(super) feed_sets: Vec<FeedSet>,
    pub(super) objects: Objects,
}

/// Feeds that some objects may use.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FeedSet {
    /// Sources that hold the channels, as a bit set.
    pub(super) sources: u64,
    /// Lowest usable capacity in bit/s. Narrower feeds cannot carry any of the objects.
    least_room: u64,
}

/// Objects with their requests. A request is called a pair here: its object and its group.
#[derive(Clone, Debug, Default)]
pub(super) struct Objects {
    /// Bitrate in Mbit/s.
    pub(super) rates: Vec<f64>,
    /// Bitrate in bit/s.
    pub(super) bps: Vec<u64>,
    /// Index of the object's feed set.
    pub(super) sets: Vec<u16>,
    /// Index of each object's first pair, and the number of pairs at the end.
    pub(super) starts: Vec<u32>,
    /// Group of each pair.
    pub(super) groups: Vec<u32>,
    /// Value of each pair, per Mbit/s of its object.
    pub(super) worths: Vec<f64>,
}

impl Objects {
    pub(super) fn len(&self) -> usize {
        self.rates.len()
    }
    pub(super) fn pairs(&self, object: usize) -> Range<usize> {
        self.starts[object] as usize..self.starts[object + 1] as usize
    }
}

impl FlatProgram {
    pub(super) fn new(program: &Program) -> Self {
        let network = program.network();
        let weight = program.settings().cost_weight;
        let mut at = vec![NONE; network.nodes().len()];
        for tier in [Tier::Source, Tier::Reflector, Tier::Edge] {
            for (node, index) in network.tier(tier).zip(0..) {
                at[node.index()] = index;
            }
        }
        let of_tier = |tier: Tier| {
            let mut links = Links { starts: vec![0], ..Links::default() };
            for node in network.tier(tier) {
                for &id in network.links_in(node) {
                    let link = network.link(id);
                    let room = program.planned_link(id).as_bps();
                    links.push(at[link.from.index()], weight * link.cost, room, id.0);
                }
                links.end_node();
            }
            links
        };
        let (feeds, trunks) = (of_tier(Tier::Reflector), of_tier(Tier::Edge));
        let mut tails = Links { starts: vec![0], ..Links::default() };
        for group in 0..program.groups().len() as u32 {
            for &id in program.links_to_group(GroupId(group)) {
                let link = program.group_links()[id.index()];
                let room = program.planned(link.capacity).as_bps();
                tails.push(at[link.edge.index()], weight * link.cost, room, id.0);
            }
            tails.end_node();
        }
        let (objects, feed_sets) = objects(program, &feeds);
        Self {
            reflectors: network.tier(Tier::Reflector).count(),
            edges: network.tier(Tier::Edge).count(),
            feeds,
            trunks,
            tails,
            feed_sets,
            objects,
        }
    }

    /// Id of a feed or trunk in the network.
    pub(super) fn link_id(links: &Links, link: u32) -> LinkId {
        LinkId(links.ids[link as usize])
    }
    pub(super) fn tail_id(&self, tail: u32) -> GroupLinkId {
        GroupLinkId(self.tails.ids[tail as usize])
    }
    /// Whether `feed` is in `set`.
    pub(super) fn has_feed(&self, set: usize, feed: usize) -> bool {
        let set = self.feed_sets[set];
        set.sources >> self.feeds.parents[feed] & 1 == 1 && self.feeds.rooms[feed] >= set.least_room
    }
}

fn objects(program: &Program, feeds: &Links) -> (Objects, Vec<FeedSet>) {
    let sources: Vec<_> = program.network().tier(Tier::Source).collect();
    let mut rooms = feeds.rooms.clone();
    rooms.sort_unstable();
    let mut ids: BTreeMap<FeedSet, u16> = BTreeMap::new();
    let mut sets = Vec::new();
    let mut objects = Objects { starts: vec![0], ..Objects::default() };
    for (offer, id) in program.offers().iter().zip(0..) {
        let held =
            sources.iter().zip(0..).filter(|&(&source, _)| program.holds(source, offer.object.channel));
        let mask = held.fold(0, |mask, (_, bit)| mask | 1u64 << bit);
        let bps = offer.object.bitrate.as_bps();
        let wide = rooms[rooms.partition_point(|&room| room < bps)..].first();
        let mut set = FeedSet { sources: mask, least_room: wide.copied().unwrap_or(u64::MAX) };
        if !ids.contains_key(&set) && sets.len() >= FEED_SETS_MAX {
            set.least_room = 0;
        }
        let id_of_set = *ids.entry(set).or_insert_with(|| {
            sets.push(set);
            sets.len() as u16 - 1
        });
        let rate = offer.object.bitrate.as_mbps_f64();
        objects.rates.push(rate);
        objects.bps.push(bps);
        objects.sets.push(id_of_set);
        for request in program.requests_for(ObjectId(id)) {
            objects.groups.push(request.group.0);
            objects.worths.push(program.value(request) / rate);
        }
        objects.starts.push(objects.groups.len() as u32);
    }
    (objects, sets)
}

/// Tail and trunk that serve each pair, or [`NONE`].
#[derive(Clone, Debug)]
pub(super) struct Paths {
    pub(super) tails: Vec<u32>,
    pub(super) trunks: Vec<u32>,
}

impl Paths {
    pub(super) fn new(pairs: usize) -> Self {
        Self { tails: vec![NONE; pairs], trunks: vec![NONE; pairs] }
    }
    /// Tails and trunks of these pairs.
    pub(super) fn of(&self, pairs: Range<usize>) -> (&[u32], &[u32]) {
        (&self.tails[pairs.clone()], &self.trunks[pairs])
    }
}

/// Prices and remaining capacities with which one object's tree is sought.
#[derive(Copy, Clone)]
pub(super) struct PriceView<'a> {
    pub(super) tails: &'a [f64],
    pub(super) trunks: &'a [f64],
    /// Price of the feed into each reflector; [`FAR`] if there is no feed.
    pub(super) feeds: &'a [f64],
    pub(super) tail_rooms: &'a [u64],
    pub(super) trunk_rooms: &'a [u64],
}
