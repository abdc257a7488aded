//! The published directory: channels, edges, groups of viewers, and the edge of each group for each
//! object.
//!
//! The controller builds a [`Directory`]; DNS, content steering and the edges read it. A viewer's
//! group is derived from its address. A group without a planned edge gets an edge that already has
//! the object, or else its nearest edge (§4.4.2, "Initial requests"). The file format of a
//! directory is the JSON of [`DirectoryContents`].
//!
//! Leaves out: the transfer of a directory, and the messages of viewers. Read [`Directory`] and
//! [`DirectoryContents`] first; [`names`] has the directory's DNS names.

#[doc(hidden)]
pub mod exercise;
pub mod names;
mod prefixes;
mod subnet;

pub use prefixes::{AddressPrefix, PrefixError};
pub use subnet::{CLIENT_SUBNET_CODE, ClientSubnet, SubnetError};

use crate::control::controller::CONTROLLER_GROUPS_MAX;
use crate::control::messages::GroupId;
use crate::control::node::NODE_STREAMS_MAX;
use crate::control::tables::Version;
use crate::{ChannelId, NODES_MAX, Object};
use anabranch_units::BitRate;
use anabranch_units::text::brief;
use prefixes::GroupTable;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

/// Maximum number of channels of a directory.
pub const CHANNELS_MAX: usize = 65_536;
/// Maximum number of renditions of a channel.
pub const RENDITIONS_MAX: usize = 32;
/// Maximum number of edges that a group lists.
pub const GROUP_EDGES_MAX: usize = 64;
/// Maximum number of addresses of an edge. With 8 records a DNS answer stays small.
pub const EDGE_ADDRESSES_MAX: usize = 8;
/// Maximum number of address prefixes of all groups: about the size of the Internet's routing
/// table.
pub const PREFIXES_MAX: usize = 1_048_576;
/// Maximum number of planned edges: pairs of a group and an object.
pub const PLACES_MAX: usize = 1_048_576;
/// Longest text of a directory: room for [`PREFIXES_MAX`] prefixes and [`PLACES_MAX`] planned
/// edges.
pub const DIRECTORY_BYTES_MAX: usize = 256 << 20;
/// Longest name of a channel, rendition, edge or group: a label of DNS (RFC 1035, section 2.3.4).
pub const LABEL_BYTES_MAX: usize = 63;
/// Longest base URL of an edge.
pub const URL_BYTES_MAX: usize = 255;

/// An edge, by its index in [`DirectoryContents::edges`].
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct EdgeId(pub u32);

/// A channel at one of its bitrates.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rendition {
    /// DNS label, unique within the channel.
    pub name: String,
    /// Rate of the stream, unique within the channel.
    pub bitrate: BitRate,
}

/// A channel. Its index in [`DirectoryContents::channels`] is its [`ChannelId`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Channel {
    /// DNS label, unique within the directory.
    pub name: String,
    /// Renditions of the channel, at least one.
    pub renditions: Vec<Rendition>,
}

/// An edge that serves viewers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Edge {
    /// DNS label, unique within the directory.
    pub name: String,
    /// Base of the URLs that viewers request, without a path: `http://198.51.100.7:8080`.
    pub url: String,
    /// Addresses that DNS returns for the edge.
    pub addresses: Vec<IpAddr>,
    /// Whether the edge is up and takes new viewers.
    pub is_open: bool,
    /// Objects that the edge receives. Objects of unknown channels are allowed, and never
    /// requested.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub objects: Vec<Object>,
}

/// A group of viewers. Its index in [`DirectoryContents::groups`] is its [`GroupId`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Group {
    /// Name, unique within the directory.
    pub name: String,
    /// Address prefixes of the group's viewers. The longest matching prefix of all groups decides.
    #[serde(default)]
    pub prefixes: Vec<AddressPrefix>,
    /// Edges for the group, the nearest first.
    pub edges: Vec<EdgeId>,
}

/// The planned edge of a group for one object.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlannedEdge {
    /// Group of the viewers.
    pub group: GroupId,
    /// Object that the viewers watch.
    pub object: Object,
    /// Edge that serves the viewers.
    pub edge: EdgeId,
}

/// Contents of a [`Directory`], not yet checked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DirectoryContents {
    /// Decision of the controller from which the planned edges come.
    pub version: Version,
    /// Channels, by [`ChannelId`].
    pub channels: Vec<Channel>,
    /// Edges, by [`EdgeId`].
    pub edges: Vec<Edge>,
    /// Groups, by [`GroupId`].
    pub groups: Vec<Group>,
    /// Group of all addresses outside the groups' prefixes. If `None`, these addresses have no
    /// group.
    #[serde(default)]
    pub default_group: Option<GroupId>,
    /// Planned edges, at most one for each group and object.
    #[serde(default)]
    pub places: Vec<PlannedEdge>,
}

/// A defect of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DirectoryError {
    /// Text longer than [`DIRECTORY_BYTES_MAX`].
    TooLong(usize),
    /// Text that is not a directory in JSON. Holds the reader's reason and the fault's position.
    BadText(String),
    /// More entries than the limit.
    TooMany {
        /// Kind of the entries, and where they are listed.
        what: String,
        /// Number of entries.
        count: usize,
        /// Maximum number of entries allowed.
        most: usize,
    },
    /// A name that is not a DNS label in lower case.
    BadName {
        /// Kind of the named entry.
        what: &'static str,
        /// Name that is refused.
        name: String,
    },
    /// Two entries of one kind with the same name.
    NameTaken {
        /// Kind of the named entries.
        what: &'static str,
        /// Name that both entries have.
        name: String,
    },
    /// A channel without a rendition.
    NoRendition(String),
    /// A rendition of 0 bit/s.
    NoBitrate {
        /// Name of the channel.
        channel: String,
        /// Name of the rendition.
        rendition: String,
    },
    /// Two renditions of one channel with the same bitrate. Objects are identified by their
    /// bitrate.
    BitrateTaken {
        /// Name of the channel.
        channel: String,
        /// Bitrate that both renditions have.
        bitrate: BitRate,
    },
    /// A base URL of an edge that is not valid.
    BadUrl {
        /// Name of the edge.
        edge: String,
        /// Base URL of the edge.
        url: String,
    },
    /// A prefix that is listed twice.
    PrefixTaken(AddressPrefix),
    /// An index of an edge that does not exist.
    NoSuchEdge {
        /// Where the index occurs.
        place: String,
        /// Index that no edge has.
        edge: EdgeId,
    },
    /// An index of a group that does not exist.
    NoSuchGroup {
        /// Where the index occurs.
        place: &'static str,
        /// Index that no group has.
        group: GroupId,
    },
    /// Two planned edges for one group and one object.
    PlaceTaken(GroupId, Object),
}

impl fmt::Display for DirectoryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong(bytes) => {
                write!(f, "directory of {bytes} bytes: at most {DIRECTORY_BYTES_MAX} are possible")
            }
            Self::BadText(reason) => write!(f, "{reason}"),
            Self::TooMany { what, count, most } => {
                write!(f, "{count} {what}: at most {most} are possible: join or remove some")
            }
            Self::BadName { what, name } => write!(
                f,
                "{what} `{}`: a name has 1 to {LABEL_BYTES_MAX} characters of a-z, 0-9 and `-`, without `-` at its ends, as DNS needs it: rename it",
                brief(name, LABEL_BYTES_MAX)
            ),
            Self::NameTaken { what, name } => write!(f, "{what} `{name}` is listed twice: rename one"),
            Self::NoRendition(channel) => write!(f, "channel `{channel}`: no rendition is listed: add one"),
            Self::NoBitrate { channel, rendition } => {
                write!(
                    f,
                    "channel `{channel}`, rendition `{rendition}`: bitrate 0 bit/s: must be at least 1 bit/s"
                )
            }
            Self::BitrateTaken { channel, bitrate } => write!(
                f,
                "channel `{channel}`: two renditions of {bitrate}: a bitrate names one rendition: change one"
            ),
            Self::BadUrl { edge, url } => write!(
                f,
                "edge `{edge}`, url `{}`: must be http:// or https:// with a host, without a path, as http://198.51.100.7:8080",
                brief(url, URL_BYTES_MAX)
            ),
            Self::PrefixTaken(prefix) => write!(f, "prefix {prefix} is listed twice: remove one"),
            Self::NoSuchEdge { place, edge } => write!(f, "{place}: edge {}: no such edge", edge.0),
            Self::NoSuchGroup { place, group } => write!(f, "{place}: group {}: no such group", group.0),
            Self::PlaceTaken(group, object) => write!(
                f,
                "group {}, channel {} at {}: two places are listed: remove one",
                group.0, object.channel.0, object.bitrate
            ),
        }
    }
}

impl std::error::Error for DirectoryError {}

/// A checked directory of channels, edges and groups. See the module.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "DirectoryContents")]
pub struct Directory {
    /// The contents. Planned edges are sorted, and so are the objects of each edge.
    contents: DirectoryContents,
    channels: BTreeMap<String, ChannelId>,
    group_names: BTreeMap<String, GroupId>,
    groups: GroupTable,
}

impl Serialize for Directory {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.contents.serialize(serializer)
    }
}

impl TryFrom<DirectoryContents> for Directory {
    type Error = DirectoryError;
    fn try_from(contents: DirectoryContents) -> Result<Self, Self::Error> {
        Self::new(contents)
    }
}

impl Default for Directory {
    fn default() -> Self {
        Self::new(DirectoryContents::default()).expect("empty contents have no defect")
    }
}

impl Directory {
    /// Creates a directory of these contents.
    ///
    /// Errors: the first defect found; see [`DirectoryError`].
    pub fn new(mut contents: DirectoryContents) -> Result<Self, DirectoryError> {
        let channels = check_channels(&contents.channels)?;
        check_edges(&contents.edges)?;
        let groups = group_table(&contents)?;
        check_places(&contents)?;
        for edge in &mut contents.edges {
            edge.objects.sort_unstable();
        }
        contents.places.sort_unstable();
        let key = |place: &PlannedEdge| (place.group, place.object);
        if let Some(pair) = contents.places.windows(2).find(|pair| key(&pair[0]) == key(&pair[1])) {
            return Err(DirectoryError::PlaceTaken(pair[0].group, pair[0].object));
        }
        let names = contents.groups.iter().map(|group| group.name.clone());
        let group_names = names.zip((0..).map(GroupId)).collect();
        Ok(Self { contents, channels, group_names, groups })
    }

    /// Reads a directory in JSON.
    ///
    /// Errors: text that is too long or not a directory; the first defect of its contents.
    pub fn read(text: &[u8]) -> Result<Self, DirectoryError> {
        if text.len() > DIRECTORY_BYTES_MAX {
            return Err(DirectoryError::TooLong(text.len()));
        }
        let contents = serde_json::from_slice(text);
        Self::new(contents.map_err(|error| DirectoryError::BadText(brief(&error.to_string(), 256)))?)
    }

    /// The contents. Planned edges are sorted, and so are the objects of each edge.
    pub const fn contents(&self) -> &DirectoryContents {
        &self.contents
    }

    /// Decision of the controller from which the planned edges come.
    pub const fn version(&self) -> Version {
        self.contents.version
    }

    /// The edge with this id.
    pub fn edge(&self, id: EdgeId) -> Option<&Edge> {
        self.contents.edges.get(id.0 as usize)
    }

    /// The channel with this name.
    pub fn channel(&self, name: &str) -> Option<(ChannelId, &Channel)> {
        let id = *self.channels.get(name)?;
        Some((id, &self.contents.channels[id.0 as usize]))
    }

    /// The object of a rendition, by the names of the channel and the rendition.
    pub fn find(&self, channel: &str, rendition: &str) -> Option<Object> {
        let (id, channel) = self.channel(channel)?;
        let found = channel.renditions.iter().find(|listed| listed.name == rendition)?;
        Some(Object { channel: id, bitrate: found.bitrate })
    }

    /// The object of a channel's rendition with the lowest bitrate.
    pub fn lowest(&self, channel: &str) -> Option<Object> {
        let (id, channel) = self.channel(channel)?;
        let bitrate = channel.renditions.iter().map(|rendition| rendition.bitrate).min()?;
        Some(Object { channel: id, bitrate })
    }

    /// The group with this name.
    pub fn group_named(&self, name: &str) -> Option<GroupId> {
        self.group_names.get(name).copied()
    }

    /// The group of a viewer's address by the longest prefix, and the scope of the answer. The
    /// scope is the length of the shortest prefix around the address in which all addresses have
    /// this group. It accounts for longer prefixes of other groups and for addresses outside all
    /// prefixes (RFC 7871, section 7.2.1). The group is `None` if the address matches no prefix and
    /// there is no default group.
    ///
    /// Cost: a binary search.
    pub fn group_of(&self, address: IpAddr) -> (Option<GroupId>, u8) {
        self.groups.lookup(address)
    }

    /// The edge for viewers of a group (§4.4.2). The planned edge is used if it is open. Otherwise
    /// an open edge of the group that has the object is used, or else the group's nearest open
    /// edge. Viewers without a group get an open edge that has the object, or else the first open
    /// edge.
    ///
    /// Returns `None` if the group is unknown or none of its edges is open.
    pub fn edge_for(&self, group: Option<GroupId>, object: Object) -> Option<EdgeId> {
        self.pathways(group, object).next()
    }

    /// Open edges for viewers of a group in order of preference, beginning with [`Self::edge_for`].
    pub fn pathways(&self, group: Option<GroupId>, object: Object) -> impl Iterator<Item = EdgeId> {
        let planned = group.and_then(|group| self.planned(group, object));
        let edges = move || self.edges_of(group).filter(|edge| self.is_open(*edge));
        let with_object = edges().filter(move |edge| self.has_object(*edge, object));
        let without = edges().filter(move |edge| !self.has_object(*edge, object));
        let others = with_object.chain(without).filter(move |edge| Some(*edge) != planned);
        planned.into_iter().chain(others)
    }

    /// Open edges for viewers of a group in order of preference, as [`Self::pathways`]. A group
    /// without an open edge gets the edges of viewers without a group.
    pub fn serving_edges(&self, group: Option<GroupId>, object: Object) -> impl Iterator<Item = EdgeId> {
        let own = group.filter(|_| self.edge_for(group, object).is_some());
        self.pathways(own, object)
    }

    /// Edges of a group. Viewers without a group get all edges.
    fn edges_of(&self, group: Option<GroupId>) -> impl Iterator<Item = EdgeId> {
        let listed = group.map(|group| self.contents.groups.get(group.0 as usize));
        let own = listed.flatten().map(|group| &*group.edges).unwrap_or_default();
        let all = if group.is_none() { self.contents.edges.len() as u32 } else { 0 };
        own.iter().copied().chain((0..all).map(EdgeId))
    }

    fn planned(&self, group: GroupId, object: Object) -> Option<EdgeId> {
        let places = &self.contents.places;
        let found = places.binary_search_by_key(&(group, object), |place| (place.group, place.object));
        found.ok().map(|index| places[index].edge).filter(|edge| self.is_open(*edge))
    }

    fn is_open(&self, edge: EdgeId) -> bool {
        self.edge(edge).is_some_and(|edge| edge.is_open)
    }

    fn has_object(&self, edge: EdgeId, object: Object) -> bool {
        self.edge(edge).is_some_and(|edge| edge.objects.binary_search(&object).is_ok())
    }
}

/// Whether a name is a DNS label in lower case (RFC 1123, section 2.1).
fn is_label(name: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=LABEL_BYTES_MAX).contains(&name.len())
        && name.bytes().all(is_allowed)
        && !name.starts_with('-')
        && !name.ends_with('-')
}

fn check_count(what: impl Into<String>, count: usize, most: usize) -> Result<(), DirectoryError> {
    if count > most { Err(DirectoryError::TooMany { what: what.into(), count, most }) } else { Ok(()) }
}

fn check_names<'a>(
    what: &'static str,
    names: impl Iterator<Item = &'a String>,
) -> Result<(), DirectoryError> {
    let mut taken = BTreeSet::new();
    for name in names {
        if !is_label(name) {
            return Err(DirectoryError::BadName { what, name: name.clone() });
        }
        if !taken.insert(name) {
            return Err(DirectoryError::NameTaken { what, name: name.clone() });
        }
    }
    Ok(())
}

fn check_channels(channels: &[Channel]) -> Result<BTreeMap<String, ChannelId>, DirectoryError> {
    check_count("channels", channels.len(), CHANNELS_MAX)?;
    check_names("channel", channels.iter().map(|channel| &channel.name))?;
    for channel in channels {
        let name = || channel.name.clone();
        let renditions = &channel.renditions;
        check_count(format!("renditions of channel `{}`", channel.name), renditions.len(), RENDITIONS_MAX)?;
        check_names("rendition", renditions.iter().map(|rendition| &rendition.name))?;
        if renditions.is_empty() {
            return Err(DirectoryError::NoRendition(name()));
        }
        let mut bitrates = BTreeSet::new();
        for Rendition { name: rendition, bitrate } in renditions {
            if bitrate.as_bps() == 0 {
                return Err(DirectoryError::NoBitrate { channel: name(), rendition: rendition.clone() });
            }
            if !bitrates.insert(*bitrate) {
                return Err(DirectoryError::BitrateTaken { channel: name(), bitrate: *bitrate });
            }
        }
    }
    Ok(channels.iter().map(|channel| channel.name.clone()).zip((0..).map(ChannelId)).collect())
}

fn is_base_url(url: &str) -> bool {
    let rest = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"));
    let is_authority = |rest: &str| {
        !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_alphanumeric() || b"-.:[]_".contains(&b))
    };
    url.len() <= URL_BYTES_MAX && rest.is_some_and(is_authority)
}

fn check_edges(edges: &[Edge]) -> Result<(), DirectoryError> {
    check_count("edges", edges.len(), NODES_MAX)?;
    check_names("edge", edges.iter().map(|edge| &edge.name))?;
    for edge in edges {
        let of = |what: &str| format!("{what} of edge `{}`", edge.name);
        check_count(of("addresses"), edge.addresses.len(), EDGE_ADDRESSES_MAX)?;
        check_count(of("objects"), edge.objects.len(), NODE_STREAMS_MAX)?;
        if !is_base_url(&edge.url) {
            return Err(DirectoryError::BadUrl { edge: edge.name.clone(), url: edge.url.clone() });
        }
    }
    Ok(())
}

fn group_table(contents: &DirectoryContents) -> Result<GroupTable, DirectoryError> {
    let groups = &contents.groups;
    check_count("groups", groups.len(), CONTROLLER_GROUPS_MAX)?;
    check_names("group", groups.iter().map(|group| &group.name))?;
    check_count("prefixes", groups.iter().map(|group| group.prefixes.len()).sum(), PREFIXES_MAX)?;
    for group in groups {
        check_count(format!("edges of group `{}`", group.name), group.edges.len(), GROUP_EDGES_MAX)?;
        if let Some(edge) = group.edges.iter().find(|edge| edge.0 as usize >= contents.edges.len()) {
            return Err(DirectoryError::NoSuchEdge { place: format!("group `{}`", group.name), edge: *edge });
        }
    }
    let is_unknown = |group: &GroupId| group.0 as usize >= groups.len();
    if let Some(group) = contents.default_group.filter(is_unknown) {
        return Err(DirectoryError::NoSuchGroup { place: "default_group", group });
    }
    let of_group = |(group, id): (&Group, GroupId)| {
        group.prefixes.iter().map(move |prefix| (*prefix, id)).collect::<Vec<_>>()
    };
    let prefixes = groups.iter().zip((0..).map(GroupId)).flat_map(of_group).collect();
    GroupTable::new(prefixes, contents.default_group).map_err(DirectoryError::PrefixTaken)
}

fn check_places(contents: &DirectoryContents) -> Result<(), DirectoryError> {
    check_count("places", contents.places.len(), PLACES_MAX)?;
    for PlannedEdge { group, edge, .. } in &contents.places {
        if group.0 as usize >= contents.groups.len() {
            return Err(DirectoryError::NoSuchGroup { place: "places", group: *group });
        }
        if edge.0 as usize >= contents.edges.len() {
            return Err(DirectoryError::NoSuchEdge { place: "places".to_owned(), edge: *edge });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
