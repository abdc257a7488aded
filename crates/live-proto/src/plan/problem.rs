//! The program of Figure 4.8 with the corrections of [`super`]: requests, links, and the weights of
//! the objective.
//!
//! Read [`Program`] first; [`Settings`] holds the operator's choices.

use crate::network::{ChannelId, Network, NodeId, Object, Tier};
use anabranch_units::{BitRate, LinkId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Maximum number of client groups.
pub const GROUPS_MAX: usize = 65_536;
/// Maximum number of links from edges to groups.
pub const GROUP_LINKS_MAX: usize = 262_144;
/// Maximum number of objects in one round.
pub const OBJECTS_MAX: usize = 65_536;
/// Maximum number of (group, object) pairs in one round.
pub const REQUESTS_MAX: usize = 1_048_576;
/// Maximum number of viewers of one request.
pub const VIEWERS_MAX: u64 = 1_000_000_000;
/// Maximum number of sources.
pub const SOURCES_MAX: usize = 64;
/// Maximum number of reflectors.
pub const REFLECTORS_MAX: usize = 64;
/// Maximum number of different sets of sources that hold a channel.
pub const HOLDER_SETS_MAX: usize = 256;

/// Maximum bitrate of an object.
pub const BITRATE_MAX: BitRate = BitRate::gbps(1_000);
/// A slack of a link's whole capacity, in parts per million.
pub const SLACK_PPM_MAX: u32 = 1_000_000;
/// Maximum cost of a link, weight, or importance.
pub const PRICE_MAX: f64 = 1e12;

/// A client group, by its index in [`Program::groups`].
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct GroupId(pub u32);

/// A link from an edge to a client group, by its index in [`Program::group_links`].
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct GroupLinkId(pub u32);

/// An object, by its index in [`Program::offers`].
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ObjectId(pub u32);

macro_rules! index {
    ($($id:ident)*) => {$(
        impl $id {
            /// The id as an index.
            pub const fn index(self) -> usize {
                self.0 as usize
            }
        }
    )*};
}
index!(GroupId GroupLinkId ObjectId);

/// Viewers of one city and one provider, which share one copy of an object (§4.7.1, "client
/// group").
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Group {
    /// Number of the city.
    pub city: u32,
    /// Number of the autonomous system.
    pub asn: u32,
}

/// A link from an edge to a client group.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct GroupLink {
    /// Edge at which the link begins.
    pub edge: NodeId,
    /// Group at which the link ends.
    pub group: GroupId,
    /// Rate available to video.
    pub capacity: BitRate,
    /// Cost per carried Mbit/s, from 0 to [`PRICE_MAX`].
    pub cost: f64,
}

/// An object and its importance to the operator.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Offer {
    /// Channel and bitrate.
    pub object: Object,
    /// Factor on the priority of [`Settings::priority`]; 1 for an ordinary object.
    pub importance: f64,
}

/// One request: a group asks for an object.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Request {
    /// Requested object.
    pub object: ObjectId,
    /// Group that requests the object.
    pub group: GroupId,
    /// Number of the group's viewers that ask for the object.
    pub viewers: u64,
}

/// An operator's preference for quality or quantity (§4.7.1, "Quality vs. quantity").
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Priority {
    /// High bitrates: the priority is the bitrate in Mbit/s.
    Quality,
    /// All streams equally: the priority is 1.
    Balanced,
    /// Many streams: the priority is one over the bitrate in Mbit/s.
    Quantity,
}

/// The operator's settings.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Settings {
    /// How an object's priority depends on its bitrate.
    pub priority: Priority,
    /// Weight of service, w_s, from 0 to [`PRICE_MAX`].
    pub service_weight: f64,
    /// Weight of cost, w_c, from 0 to [`PRICE_MAX`].
    pub cost_weight: f64,
    /// Whether a request counts once per viewer. If false, a request counts once per group, as in
    /// Figure 4.8.
    pub counts_viewers: bool,
    /// Share of each link's capacity that stays unplanned, in parts per million; below 1,000,000.
    pub slack_ppm: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            priority: Priority::Balanced,
            service_weight: 1.0,
            cost_weight: 0.001,
            counts_viewers: true,
            slack_ppm: 0,
        }
    }
}

impl Priority {
    /// Priority of an object of this bitrate.
    pub fn of(self, bitrate: BitRate) -> f64 {
        match self {
            Self::Quality => bitrate.as_mbps_f64(),
            Self::Balanced => 1.0,
            Self::Quantity => 1.0 / bitrate.as_mbps_f64(),
        }
    }
}

/// Path cost at which [`Settings::normalised`] applies its `cost_share`.
const NORMAL_PATH_COST: f64 = 60.0;

impl Settings {
    /// Returns these settings with weights that do not depend on units. The mean viewer is worth 1,
    /// and a path of cost 60 at the mean bitrate costs `cost_share`.
    ///
    /// Differs: the thesis states no values of w_s and w_c.
    pub fn normalised(self, offers: &[Offer], requests: &[Request], cost_share: f64) -> Self {
        let (mut viewers, mut rate, mut priority) = (0.0, 0.0, 0.0);
        for request in requests {
            if let Some(offer) = offers.get(request.object.index()) {
                let weight = request.viewers as f64;
                viewers += weight;
                rate += weight * offer.object.bitrate.as_mbps_f64();
                priority += weight * self.priority.of(offer.object.bitrate);
            }
        }
        if rate <= 0.0 || priority <= 0.0 {
            return self;
        }
        Self {
            service_weight: viewers / priority,
            cost_weight: cost_share * viewers / (NORMAL_PATH_COST * rate),
            ..self
        }
    }
}

/// Capacity minus the slack, rounded down to a bit/s. The slack must be below [`SLACK_PPM_MAX`].
pub fn plannable(capacity: BitRate, slack_ppm: u32) -> BitRate {
    let share = u128::from(SLACK_PPM_MAX - slack_ppm);
    let bps = u128::from(capacity.as_bps()) * share / u128::from(SLACK_PPM_MAX);
    BitRate::bps(u64::try_from(bps).expect("a share of a u64 fits into a u64"))
}

/// Validated input of one round.
#[derive(Clone, Debug, PartialEq)]
pub struct Program {
    network: Network,
    groups: Vec<Group>,
    group_links: Vec<GroupLink>,
    offers: Vec<Offer>,
    requests: Vec<Request>,
    /// Index of each object's first request, and the number of requests at the end.
    request_starts: Vec<u32>,
    /// Links to each group, in the order of `group_links`.
    links_to_group: Vec<Vec<GroupLinkId>>,
    holders: BTreeMap<ChannelId, Vec<NodeId>>,
    settings: Settings,
}

/// A defect of a round's input.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum ProgramError {
    /// More entries than the limit: kind, number, limit.
    TooMany(&'static str, usize, usize),
    /// A link to a group that does not lead from an edge.
    NotAnEdge(GroupLinkId, NodeId),
    /// A group, an object or a node that does not exist: kind, index.
    Unknown(&'static str, u32),
    /// Two links between one edge and one group.
    LinkTaken(GroupLinkId),
    /// Two requests of one group for one object.
    RequestTaken(GroupId, ObjectId),
    /// Two offers of one object.
    ObjectTaken(ObjectId),
    /// A value outside its range: what, value, range.
    BadValue(&'static str, f64, &'static str),
    /// A channel without a holder, or with a holder that is not a source.
    BadHolder(ChannelId),
}

impl std::fmt::Display for ProgramError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::TooMany(what, count, max) => {
                write!(f, "{count} {what}: at most {max} are possible in one round")
            }
            Self::NotAnEdge(link, node) => {
                write!(f, "group link {}: node {} is not an edge: name an edge", link.0, node.0)
            }
            Self::Unknown(what, id) => write!(f, "{what} {id}: no such {what}: add it or remove its use"),
            Self::LinkTaken(link) => {
                write!(f, "group link {}: edge and group are linked already: remove one", link.0)
            }
            Self::RequestTaken(group, object) => write!(
                f,
                "request of group {} for object {} is listed twice: add up the viewers",
                group.0, object.0
            ),
            Self::ObjectTaken(object) => {
                write!(f, "object {}: same channel and bitrate as another: remove one", object.0)
            }
            Self::BadValue(what, value, range) => write!(f, "{what} {value}: must be {range}"),
            Self::BadHolder(channel) => {
                write!(f, "channel {}: its holders must be one or more sources", channel.0)
            }
        }
    }
}

impl std::error::Error for ProgramError {}

fn limit(what: &'static str, count: usize, max: usize) -> Result<(), ProgramError> {
    if count > max { Err(ProgramError::TooMany(what, count, max)) } else { Ok(()) }
}

fn at_least_zero(what: &'static str, value: f64) -> Result<(), ProgramError> {
    let is_good = (0.0..=PRICE_MAX).contains(&value);
    if is_good { Ok(()) } else { Err(ProgramError::BadValue(what, value, "from 0 to 1e12")) }
}

impl Program {
    /// Creates a program over `network`. `requests` may be in any order; [`Program::requests`]
    /// sorts them by object, then by group.
    ///
    /// `holders` lists the sources of channels that only some sources hold. Channels not listed are
    /// held by all sources.
    ///
    /// Errors: see [`ProgramError`].
    pub fn new(
        network: Network,
        (groups, group_links): (Vec<Group>, Vec<GroupLink>),
        (offers, mut requests): (Vec<Offer>, Vec<Request>),
        holders: BTreeMap<ChannelId, Vec<NodeId>>,
        settings: Settings,
    ) -> Result<Self, ProgramError> {
        limit("sources", network.tier(Tier::Source).count(), SOURCES_MAX)?;
        limit("reflectors", network.tier(Tier::Reflector).count(), REFLECTORS_MAX)?;
        limit("groups", groups.len(), GROUPS_MAX)?;
        limit("group links", group_links.len(), GROUP_LINKS_MAX)?;
        limit("objects", offers.len(), OBJECTS_MAX)?;
        limit("requests", requests.len(), REQUESTS_MAX)?;
        at_least_zero("service weight", settings.service_weight)?;
        at_least_zero("cost weight", settings.cost_weight)?;
        if settings.slack_ppm >= SLACK_PPM_MAX {
            let slack = f64::from(settings.slack_ppm);
            return Err(ProgramError::BadValue("slack_ppm", slack, "below 1000000"));
        }
        for link in network.links() {
            at_least_zero("cost of a link", link.cost)?;
        }
        let links_to_group = links_to_groups(&network, &groups, &group_links)?;
        check_offers(&offers)?;
        check_holders(&network, &holders)?;
        requests.sort_unstable();
        for pair in requests.windows(2) {
            if (pair[0].object, pair[0].group) == (pair[1].object, pair[1].group) {
                return Err(ProgramError::RequestTaken(pair[0].group, pair[0].object));
            }
        }
        let mut request_starts = vec![0; offers.len() + 1];
        for request in &requests {
            if request.group.index() >= groups.len() {
                return Err(ProgramError::Unknown("group", request.group.0));
            }
            if request.object.index() >= offers.len() {
                return Err(ProgramError::Unknown("object", request.object.0));
            }
            if request.viewers == 0 || request.viewers > VIEWERS_MAX {
                let viewers = request.viewers as f64;
                return Err(ProgramError::BadValue("viewers of a request", viewers, "from 1 to 1000000000"));
            }
            request_starts[request.object.index() + 1] += 1;
        }
        for object in 0..offers.len() {
            request_starts[object + 1] += request_starts[object];
        }
        Ok(Self {
            network,
            groups,
            group_links,
            offers,
            requests,
            request_starts,
            links_to_group,
            holders,
            settings,
        })
    }

    /// Nodes and links of the tiers.
    pub fn network(&self) -> &Network {
        &self.network
    }
    /// All client groups.
    pub fn groups(&self) -> &[Group] {
        &self.groups
    }
    /// All links from edges to groups.
    pub fn group_links(&self) -> &[GroupLink] {
        &self.group_links
    }
    /// Links to one group.
    ///
    /// Panics: if the program has no such group.
    pub fn links_to_group(&self, group: GroupId) -> &[GroupLinkId] {
        &self.links_to_group[group.index()]
    }
    /// All objects.
    pub fn offers(&self) -> &[Offer] {
        &self.offers
    }
    /// All requests, sorted by object, then by group.
    pub fn requests(&self) -> &[Request] {
        &self.requests
    }
    /// Requests for one object, by group.
    ///
    /// Panics: if the program has no such object.
    pub fn requests_for(&self, object: ObjectId) -> &[Request] {
        let range = self.request_starts[object.index()]..self.request_starts[object.index() + 1];
        &self.requests[range.start as usize..range.end as usize]
    }
    /// The operator's choices.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }
    /// Whether `source` holds `channel`.
    pub fn holds(&self, source: NodeId, channel: ChannelId) -> bool {
        self.holders.get(&channel).is_none_or(|holders| holders.contains(&source))
    }
    /// Value of serving one request: w_s times the priority, times the viewers if they are counted.
    pub fn value(&self, request: &Request) -> f64 {
        let offer = &self.offers[request.object.index()];
        let viewers = if self.settings.counts_viewers { request.viewers as f64 } else { 1.0 };
        let priority = self.settings.priority.of(offer.object.bitrate) * offer.importance;
        self.settings.service_weight * priority * viewers
    }
    /// Capacity of a link that a plan may use: its capacity minus the slack, rounded down to a
    /// bit/s.
    pub fn planned(&self, capacity: BitRate) -> BitRate {
        plannable(capacity, self.settings.slack_ppm)
    }
    /// Capacity of a link between tiers that a plan may use.
    pub fn planned_link(&self, link: LinkId) -> BitRate {
        self.planned(self.network.link(link).capacity)
    }
}

fn links_to_groups(
    network: &Network,
    groups: &[Group],
    links: &[GroupLink],
) -> Result<Vec<Vec<GroupLinkId>>, ProgramError> {
    let mut to_group = vec![Vec::new(); groups.len()];
    for (link, id) in links.iter().zip(0..) {
        let id = GroupLinkId(id);
        let edge =
            network.nodes().get(link.edge.index()).ok_or(ProgramError::Unknown("node", link.edge.0))?;
        if edge.tier != Tier::Edge {
            return Err(ProgramError::NotAnEdge(id, link.edge));
        }
        at_least_zero("cost of a group link", link.cost)?;
        let of_group: &mut Vec<GroupLinkId> =
            to_group.get_mut(link.group.index()).ok_or(ProgramError::Unknown("group", link.group.0))?;
        if of_group.iter().any(|other| links[other.index()].edge == link.edge) {
            return Err(ProgramError::LinkTaken(id));
        }
        of_group.push(id);
    }
    Ok(to_group)
}

fn check_offers(offers: &[Offer]) -> Result<(), ProgramError> {
    let mut objects = std::collections::BTreeSet::new();
    for (offer, id) in offers.iter().zip(0..) {
        if !(BitRate::bps(1)..=BITRATE_MAX).contains(&offer.object.bitrate) {
            let bps = offer.object.bitrate.as_bps() as f64;
            return Err(ProgramError::BadValue("bitrate of an object in bit/s", bps, "from 1 to 1e12"));
        }
        if !(offer.importance > 0.0 && offer.importance <= PRICE_MAX) {
            return Err(ProgramError::BadValue("importance", offer.importance, "above 0 and at most 1e12"));
        }
        if !objects.insert(offer.object) {
            return Err(ProgramError::ObjectTaken(ObjectId(id)));
        }
    }
    Ok(())
}

fn check_holders(network: &Network, holders: &BTreeMap<ChannelId, Vec<NodeId>>) -> Result<(), ProgramError> {
    let mut sets = std::collections::BTreeSet::new();
    for (channel, nodes) in holders {
        let is_source =
            |node: &NodeId| network.nodes().get(node.index()).is_some_and(|node| node.tier == Tier::Source);
        if nodes.is_empty() || !nodes.iter().all(is_source) {
            return Err(ProgramError::BadHolder(*channel));
        }
        let mut set = nodes.clone();
        set.sort_unstable();
        set.dedup();
        sets.insert(set);
    }
    // The set of all sources counts as one set.
    limit("different sets of holding sources", sets.len() + 1, HOLDER_SETS_MAX)
}

#[cfg(test)]
mod tests;
