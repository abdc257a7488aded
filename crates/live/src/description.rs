//! The description of a network: its nodes, links, groups of viewers and channels, by name.
//!
//! The operator writes the description as TOML for the controller. Nodes get it from the controller
//! as JSON. Leaves out: the current state of links. Read [`Description`] first, then [`Layout`] and
//! [`Change`].

mod change;
#[doc(hidden)]
pub mod exercise;

pub use change::{CHANGES_MAX, Change, RemovedEntries};

use crate::url::host;
use anabranch_http::origin::Origin;
use anabranch_live_proto::control::messages::GroupId;
use anabranch_live_proto::control::tables::Version;
use anabranch_live_proto::directory::{
    AddressPrefix, Channel, Directory, DirectoryContents, DirectoryError, Edge, EdgeId, Group, PlannedEdge,
    Rendition,
};
use anabranch_live_proto::plan::{REFLECTORS_MAX, SOURCES_MAX};
use anabranch_live_proto::round::GroupEdge;
use anabranch_live_proto::{ChangeError, ChannelId, Link, Network, NetworkError, Node, NodeId, Object, Tier};
use anabranch_units::BitRate;
use anabranch_units::text::brief;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

/// Longest description, in bytes.
pub const DESCRIPTION_BYTES_MAX: u64 = 16 << 20;
/// Number of characters of a bad value that an error shows.
const SHOWN_MAX: usize = 100;
/// Number of characters that an error shows of the two names of a link.
const PLACE_SHOWN_MAX: usize = 2 * SHOWN_MAX;
/// Number of characters that an error shows of the TOML reader's reason.
const REASON_SHOWN_MAX: usize = 400;

/// A network of `live`, as the operator describes it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Description {
    /// Sources, reflectors and edges.
    #[serde(default, rename = "node")]
    pub nodes: Vec<NodeEntry>,
    /// Links from each tier to the next.
    #[serde(default, rename = "link")]
    pub links: Vec<LinkEntry>,
    /// Groups of viewers.
    #[serde(default, rename = "group")]
    pub groups: Vec<GroupEntry>,
    /// Channels with their renditions.
    #[serde(default, rename = "channel")]
    pub channels: Vec<ChannelEntry>,
    /// Entries that were removed at run time.
    #[serde(default, skip_serializing_if = "RemovedEntries::is_empty")]
    pub removed: RemovedEntries,
}

/// A node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeEntry {
    /// Name, unique and equal to the name in the node's certificate.
    pub name: String,
    /// Tier: source, reflector or edge.
    pub tier: Tier,
    /// URL at which viewers and other nodes fetch objects, `http://HOST:PORT`. With `https://` the
    /// next tier uses mutual TLS to fetch from a source or reflector, and viewers use TLS to fetch
    /// from an edge.
    pub media: String,
    /// Address for control connections of the next tier, `HOST:PORT`. Edges need none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control: Option<String>,
    /// Addresses of an edge for DNS. Default: the address in `media`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<IpAddr>,
}

/// A link.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkEntry {
    /// Node that sends video.
    pub from: String,
    /// Node of the next tier, which receives video.
    pub to: String,
    /// Rate available to video.
    pub capacity: BitRate,
    /// Cost per carried Mbit/s, in any currency.
    #[serde(default)]
    pub cost: f64,
}

/// A group of viewers at one location.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupEntry {
    /// Unique name.
    pub name: String,
    /// Address prefixes, such as `192.0.2.0/24`. The first group without prefixes has all viewers
    /// outside the other groups' prefixes.
    #[serde(default)]
    pub prefixes: Vec<AddressPrefix>,
    /// Edges for the group, the nearest first.
    pub edges: Vec<GroupEdgeEntry>,
}

/// An edge of a group: its name, with or without a cost.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum GroupEdgeEntry {
    /// An edge whose cost is its position in the list: 0, 1, 2.
    Name(String),
    /// An edge with the cost per Mbit/s to the group.
    Priced {
        /// Name of the edge.
        edge: String,
        /// Cost per Mbit/s.
        cost: f64,
    },
}

/// A channel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChannelEntry {
    /// Unique name, the first component of the channel's paths.
    pub name: String,
    /// Bitrate of each rendition, by name. The name is the second component of its paths.
    pub renditions: BTreeMap<String, BitRate>,
}

/// A defect of a description.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum DescriptionError {
    /// A text that is not a description. Holds the reader's reason.
    BadText(String),
    /// The nodes or links are invalid.
    Network(NetworkError),
    /// The edges, groups or channels are invalid.
    Directory(DirectoryError),
    /// More entries than the limit: kind, count, limit.
    TooMany(&'static str, usize, usize),
    /// An unknown node: where it occurs, name.
    UnknownNode(String, String),
    /// An invalid media URL or control address: node, value, reason.
    BadAddress(String, String, &'static str),
    /// A group that lists a node other than an edge: group, node.
    NotAnEdge(String, String),
    /// A group without an edge.
    NoEdge(String),
    /// An edge that a group lists twice: group, edge.
    EdgeTaken(String, String),
    /// A cost that is negative, infinite or not a number: group, edge, cost.
    BadCost(String, String, f64),
    /// An entry to remove that does not exist: kind, name.
    NotThere(&'static str, String),
    /// A change of a node's tier: name, current tier.
    OtherTier(String, Tier),
    /// A change of a running rendition's bitrate: channel, rendition, current bitrate.
    OtherBitrate(String, String, BitRate),
    /// A group or channel whose position has changed: kind, name.
    OtherIds(&'static str, String),
    /// A node or link whose position has changed.
    Change(ChangeError),
}

/// A name or value on one line.
fn shown(text: &str) -> String {
    brief(text, SHOWN_MAX)
}

impl fmt::Display for DescriptionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BadText(reason) => f.write_str(reason),
            Self::Network(error) => write!(f, "{error}"),
            Self::Directory(error) => write!(f, "{error}"),
            Self::TooMany(what, count, max) => write!(f, "{count} {what}: at most {max} are possible"),
            Self::UnknownNode(place, name) => {
                let (place, name) = (brief(place, PLACE_SHOWN_MAX), shown(name));
                write!(f, "{place}: no node `{name}`: add a [[node]] of this name")
            }
            Self::BadAddress(node, value, reason) => {
                write!(f, "node `{}`: `{}`: {reason}", shown(node), shown(value))
            }
            Self::NotAnEdge(group, node) => {
                write!(f, "group `{}`: node `{}` is no edge: name an edge", shown(group), shown(node))
            }
            Self::NoEdge(group) => write!(f, "group `{}` has no edge: name at least one", shown(group)),
            Self::EdgeTaken(group, edge) => {
                write!(f, "group `{}`: edge `{}` is listed twice: remove one", shown(group), shown(edge))
            }
            Self::BadCost(group, edge, cost) => write!(
                f,
                "group `{}`, edge `{}`: cost {cost} must be a finite number of at least 0",
                shown(group),
                shown(edge)
            ),
            Self::NotThere(what, name) => {
                write!(f, "no {what} `{}` to remove: see `live network`", shown(name))
            }
            Self::OtherTier(name, tier) => {
                let article = if *tier == Tier::Edge { "an" } else { "a" };
                let tier = format!("{tier:?}").to_lowercase();
                let name = shown(name);
                write!(f, "node `{name}` is {article} {tier}: its tier must stay: add another node")
            }
            Self::OtherBitrate(channel, rendition, bitrate) => write!(
                f,
                "channel `{}`, rendition `{}`: its streams run at {bitrate}: add a rendition of another name",
                shown(channel),
                shown(rendition)
            ),
            Self::OtherIds(what, name) => {
                write!(f, "{what} `{}` has lost its place in the network", shown(name))
            }
            Self::Change(error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for DescriptionError {}

/// A checked description, with the ids of its entries.
#[derive(Clone, Debug, PartialEq)]
pub struct Layout {
    description: Description,
    network: Network,
    groups: Vec<Vec<GroupEdge>>,
    /// Directory without planned edges, in which all edges are closed.
    directory: Directory,
    /// Node of each edge in the directory.
    edges: Vec<NodeId>,
}

impl Description {
    /// Reads TOML.
    ///
    /// Errors: [`DescriptionError::BadText`], with the position.
    pub fn from_toml(text: &str) -> Result<Self, DescriptionError> {
        toml::from_str(text).map_err(|error| {
            let line = error.span().map(|span| text[..span.start].lines().count().max(1));
            let place = line.map_or_else(String::new, |line| format!("line {line}: "));
            let reason = brief(&error.message().replace('\n', " "), REASON_SHOWN_MAX);
            DescriptionError::BadText(format!("{place}{reason}"))
        })
    }
}

fn limit(what: &'static str, count: usize, max: usize) -> Result<(), DescriptionError> {
    if count > max { Err(DescriptionError::TooMany(what, count, max)) } else { Ok(()) }
}

impl Layout {
    /// Checks a description and assigns ids.
    ///
    /// Errors: see [`DescriptionError`].
    pub fn new(description: Description) -> Result<Self, DescriptionError> {
        description.nodes.iter().try_for_each(check_node)?;
        let network = network(&description)?;
        limit("sources", network.tier(Tier::Source).count(), SOURCES_MAX)?;
        limit("reflectors", network.tier(Tier::Reflector).count(), REFLECTORS_MAX)?;
        let groups = description.groups.iter().map(|group| group_edges(&network, group));
        let groups = groups.collect::<Result<Vec<_>, _>>()?;
        let edges: Vec<NodeId> = network.tier(Tier::Edge).collect();
        let contents = contents(&description, &edges, &groups);
        let directory = Directory::new(contents).map_err(DescriptionError::Directory)?;
        Ok(Self { description, network, groups, directory, edges })
    }

    /// The description from which the layout was made.
    pub const fn description(&self) -> &Description {
        &self.description
    }

    /// Nodes and links. Their ids are positions in the description.
    pub const fn network(&self) -> &Network {
        &self.network
    }

    /// Edges of each group, with the cost per Mbit/s to the group.
    pub fn groups(&self) -> &[Vec<GroupEdge>] {
        &self.groups
    }

    /// Edges of each group, without costs.
    pub fn group_edges(&self) -> Vec<Vec<NodeId>> {
        self.groups.iter().map(|edges| edges.iter().map(|(edge, _)| *edge).collect()).collect()
    }

    /// Entry of a node.
    ///
    /// Panics: if the network has no such node.
    pub fn entry(&self, node: NodeId) -> &NodeEntry {
        &self.description.nodes[node.index()]
    }

    /// Group of a viewer's address. `None` for an address outside all groups.
    pub fn group_of(&self, address: IpAddr) -> Option<GroupId> {
        self.directory.group_of(address.to_canonical()).0
    }

    /// Object of a path `/CHANNEL/RENDITION/…`.
    pub fn object(&self, path: &str) -> Option<Object> {
        let (channel, rest) = path.strip_prefix('/')?.split_once('/')?;
        let is_there = !self.description.removed.channels.contains(channel);
        is_there.then(|| self.directory.find(channel, rest.split_once('/')?.0)).flatten()
    }

    /// Objects of the channel in a path `/CHANNEL/…`. Empty for an unknown channel.
    pub fn channel(&self, path: &str) -> impl Iterator<Item = Object> {
        let name = path.strip_prefix('/').and_then(|path| path.split('/').next());
        let there = name.filter(|name| !self.description.removed.channels.contains(*name));
        let found = there.and_then(|name| self.directory.channel(name));
        found.into_iter().flat_map(|(id, channel)| objects(id, channel))
    }

    /// Names of an object's channel and rendition.
    pub fn names(&self, object: Object) -> Option<(&str, &str)> {
        let channel = self.directory.contents().channels.get(object.channel.0 as usize)?;
        let rendition = channel.renditions.iter().find(|listed| listed.bitrate == object.bitrate)?;
        Some((&channel.name, &rendition.name))
    }

    /// Name and media URL of each edge.
    pub fn edges(&self) -> impl Iterator<Item = (&str, &str)> {
        let entry = |edge: &NodeId| self.entry(*edge);
        self.edges.iter().map(entry).map(|entry| (&*entry.name, &*entry.media))
    }

    /// The directory with the assignments of a controller. Edges are open if `is_open` says so, and
    /// `objects` returns the objects that each edge receives.
    pub fn directory<'a>(
        &self,
        version: Version,
        places: &BTreeMap<(GroupId, Object), NodeId>,
        is_open: impl Fn(NodeId) -> bool,
        objects: impl Fn(NodeId) -> Vec<Object> + 'a,
    ) -> Directory {
        let mut contents = self.directory.contents().clone();
        contents.version = version;
        for (edge, node) in contents.edges.iter_mut().zip(&self.edges) {
            edge.is_open = is_open(*node);
            edge.objects = objects(*node);
        }
        let edge = |node: &NodeId| self.edges.binary_search(node).ok().map(|at| EdgeId(at as u32));
        let place = |(key, node): (&(GroupId, Object), &NodeId)| {
            Some(PlannedEdge { group: key.0, object: key.1, edge: edge(node)? })
        };
        contents.places = places.iter().filter_map(place).collect();
        without(&mut contents, &self.description.removed);
        Directory::new(contents).expect("the controller's places are of this network and within its limits")
    }
}

/// Removes removed entries from a directory, and renumbers the remaining entries.
fn without(contents: &mut DirectoryContents, removed: &RemovedEntries) {
    if removed.is_empty() {
        return;
    }
    let ids = |stay: Vec<bool>| {
        let mut next = 0..;
        let id = |stays: bool| stays.then(|| next.next().expect("a range without end"));
        stay.into_iter().map(id).collect::<Vec<Option<u32>>>()
    };
    let new = |ids: &[Option<u32>], id: u32| ids.get(id as usize).copied().flatten();
    let DirectoryContents { channels, edges, groups, default_group, places, .. } = contents;
    let channel_ids = ids(channels.iter().map(|entry| !removed.channels.contains(&entry.name)).collect());
    let edge_ids = ids(edges.iter().map(|entry| !removed.nodes.contains(&entry.name)).collect());
    let group_ids = ids(groups.iter().map(|entry| !removed.groups.contains(&entry.name)).collect());
    channels.retain(|entry| !removed.channels.contains(&entry.name));
    edges.retain(|entry| !removed.nodes.contains(&entry.name));
    groups.retain(|entry| !removed.groups.contains(&entry.name));
    let object = |object: Object| {
        let channel = ChannelId(new(&channel_ids, object.channel.0)?);
        Some(Object { channel, ..object })
    };
    let edge = |id: EdgeId| new(&edge_ids, id.0).map(EdgeId);
    for entry in edges {
        entry.objects = entry.objects.iter().copied().filter_map(object).collect();
    }
    for entry in groups {
        entry.edges = entry.edges.iter().copied().filter_map(edge).collect();
    }
    *default_group = default_group.and_then(|group| new(&group_ids, group.0)).map(GroupId);
    let place = |place: &PlannedEdge| {
        let group = GroupId(new(&group_ids, place.group.0)?);
        Some(PlannedEdge { group, object: object(place.object)?, edge: edge(place.edge)? })
    };
    *places = places.iter().filter_map(place).collect();
}

fn objects(id: ChannelId, channel: &Channel) -> impl Iterator<Item = Object> {
    channel.renditions.iter().map(move |rendition| Object { channel: id, bitrate: rendition.bitrate })
}

fn contents(description: &Description, edges: &[NodeId], groups: &[Vec<GroupEdge>]) -> DirectoryContents {
    let channel = |channel: &ChannelEntry| {
        let renditions = channel.renditions.iter();
        let renditions =
            renditions.map(|(name, bitrate)| Rendition { name: name.clone(), bitrate: *bitrate });
        Channel { name: channel.name.clone(), renditions: renditions.collect() }
    };
    let edge = |node: &NodeId| {
        let NodeEntry { name, media, addresses, .. } = &description.nodes[node.index()];
        let given = addresses.iter().copied();
        let own = addresses.is_empty().then(|| host(media)?.parse().ok()).flatten();
        let addresses = given.chain(own).collect();
        Edge { name: name.clone(), url: media.clone(), addresses, is_open: false, objects: Vec::new() }
    };
    let group = |(group, of_group): (&GroupEntry, &Vec<GroupEdge>)| {
        let id = |(node, _): &GroupEdge| EdgeId(edges.binary_search(node).expect("an edge") as u32);
        let edges = of_group.iter().map(id).collect();
        let is_removed = description.removed.groups.contains(&group.name);
        let prefixes = if is_removed { Vec::new() } else { group.prefixes.clone() };
        Group { name: group.name.clone(), prefixes, edges }
    };
    let is_default =
        |group: &GroupEntry| group.prefixes.is_empty() && !description.removed.groups.contains(&group.name);
    let default_group = description.groups.iter().position(is_default);
    DirectoryContents {
        version: Version::default(),
        channels: description.channels.iter().map(channel).collect(),
        edges: edges.iter().map(edge).collect(),
        groups: description.groups.iter().zip(groups).map(group).collect(),
        default_group: default_group.map(|at| GroupId(at as u32)),
        places: Vec::new(),
    }
}

fn check_node(node: &NodeEntry) -> Result<(), DescriptionError> {
    let bad = |value: &str, reason| DescriptionError::BadAddress(node.name.clone(), value.to_owned(), reason);
    // Both schemes have the same form, so `https://` is checked as `http://`.
    let plain = node.media.strip_prefix("https://").map(|rest| format!("http://{rest}"));
    Origin::new(plain.as_deref().unwrap_or(&node.media))
        .map_err(|_| bad(&node.media, "media must be http://HOST:PORT or https://HOST:PORT"))?;
    let control = node.control.as_deref().unwrap_or_default();
    let is_address = |text: &str| {
        let parts = text.rsplit_once(':');
        parts.is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0))
    };
    match (node.tier, &node.control) {
        (Tier::Source | Tier::Reflector, None) => {
            Err(bad("", "sources and reflectors need control = \"HOST:PORT\" for the next tier"))
        }
        (_, Some(_)) if !is_address(control) => Err(bad(control, "control must be HOST:PORT")),
        _ => Ok(()),
    }
}

fn network(description: &Description) -> Result<Network, DescriptionError> {
    let ids = description.nodes.iter().zip((0..).map(NodeId));
    let ids: BTreeMap<&str, NodeId> = ids.map(|(node, id)| (node.name.as_str(), id)).collect();
    let nodes = description.nodes.iter().map(|node| Node { name: node.name.clone(), tier: node.tier });
    let mut links = Vec::new();
    for link in &description.links {
        let end = |name: &str| {
            let place = || format!("link `{}` to `{}`", link.from, link.to);
            ids.get(name).copied().ok_or_else(|| DescriptionError::UnknownNode(place(), name.to_owned()))
        };
        let (from, to) = (end(&link.from)?, end(&link.to)?);
        let is_removed = description.removed.has_link(link);
        let capacity = if is_removed { BitRate::bps(0) } else { link.capacity };
        links.push(Link { from, to, capacity, cost: link.cost });
    }
    Network::new(nodes.collect(), links).map_err(DescriptionError::Network)
}

fn group_edges(network: &Network, group: &GroupEntry) -> Result<Vec<GroupEdge>, DescriptionError> {
    if group.edges.is_empty() {
        return Err(DescriptionError::NoEdge(group.name.clone()));
    }
    let mut edges: Vec<GroupEdge> = Vec::new();
    for (place, entry) in group.edges.iter().enumerate() {
        let (name, cost) = match entry {
            GroupEdgeEntry::Name(name) => (name, place as f64),
            GroupEdgeEntry::Priced { edge, cost } => (edge, *cost),
        };
        let unknown = || DescriptionError::UnknownNode(format!("group `{}`", group.name), name.clone());
        let node = network.find(name).ok_or_else(unknown)?;
        if network.node(node).tier != Tier::Edge {
            return Err(DescriptionError::NotAnEdge(group.name.clone(), name.clone()));
        }
        if !cost.is_finite() || cost < 0.0 {
            return Err(DescriptionError::BadCost(group.name.clone(), name.clone(), cost));
        }
        if edges.iter().any(|(edge, _)| *edge == node) {
            return Err(DescriptionError::EdgeTaken(group.name.clone(), name.clone()));
        }
        edges.push((node, cost));
    }
    Ok(edges)
}

#[cfg(test)]
mod tests {
    use super::exercise::NETWORK;
    use super::*;

    fn layout(text: &str) -> Result<Layout, DescriptionError> {
        Description::from_toml(text).and_then(Layout::new)
    }

    #[test]
    fn layout_assigns_ids_and_objects_to_names() {
        let layout = layout(NETWORK).expect("a good description");
        assert_eq!(layout.network().links()[0].capacity, BitRate::mbps(100));
        let high = Object { channel: ChannelId(0), bitrate: BitRate::mbps(4) };
        assert_eq!(layout.object("/news/high/1.m4s"), Some(high));
        assert_eq!(layout.names(high), Some(("news", "high")));
        assert_eq!(layout.object("/news/index.m3u8"), None);
        assert_eq!(layout.channel("/news/index.m3u8").count(), 2);
        assert_eq!(layout.group_of([127, 0, 0, 1].into()), Some(GroupId(0)));
        assert_eq!(layout.group_of([10, 0, 0, 1].into()), None);
        assert_eq!(layout.groups(), [vec![(NodeId(2), 0.0)]]);
        let json = serde_json::to_string(layout.description()).expect("plain data");
        assert_eq!(serde_json::from_str::<Description>(&json).expect("written above"), *layout.description());
    }

    #[test]
    fn each_description_defect_has_its_message() {
        let cases = [
            ("tier = \"edge\"", "tier = \"egde\"", "line 14"),
            ("from = \"r\"", "from = \"x\"", "no node `x`"),
            ("edges = [\"e\"]", "edges = [\"r\"]", "no edge"),
            ("edges = [\"e\"]", "edges = []", "at least one"),
            ("edges = [\"e\"]", "edges = [{ edge = \"e\", cost = -1 }]", "at least 0"),
            ("low = \"400kbit/s\"", "low = \"4Mbit/s\"", "4 Mbit/s"),
            ("low = \"400kbit/s\"", "low = \"0bit/s\"", "0 bit/s"),
            ("name = \"news\"", "name = \"a/b\"", "a-z"),
            ("control = \"127.0.0.1:7302\"", "", "need control"),
            ("http://127.0.0.1:7203", "ftp://x", "media must be"),
            ("capacity = \"50Mbit/s\"", "capacity = \"50Mbit/s\"\nprice = 3", "price"),
        ];
        for (from, to, words) in cases {
            assert!(NETWORK.contains(from), "{from}");
            let error = layout(&NETWORK.replacen(from, to, 1)).expect_err(words).to_string();
            assert!(error.contains(words) && !error.contains('\n'), "{words}: {error}");
        }
    }
}
