//! Changes of a network at run time: nodes, links, groups and channels are added, changed and
//! removed.
//!
//! Ids are positions in the description, so a removed entry keeps its position. [`RemovedEntries`]
//! lists removed entries, and a later addition of the same name reuses the position. Leaves out:
//! transfer and storage of changes (`controller`). Read [`Change`] and [`Layout::changed`] first.

use super::{ChannelEntry, Description, DescriptionError, GroupEntry, Layout, LinkEntry, NodeEntry};
use anabranch_live_proto::NodeId;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Maximum number of changes of one request.
pub const CHANGES_MAX: usize = 10_000;

/// One change of a network.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Change {
    /// Adds a node, or replaces the entry with this name. The tier of a name cannot change.
    SetNode(NodeEntry),
    /// Removes a node. Its streams move, and it gets no new streams.
    RemoveNode(String),
    /// Adds a link, or replaces the capacity and cost of the link between these nodes.
    SetLink(LinkEntry),
    /// Removes a link. Its streams move.
    RemoveLink {
        /// Node that sends video.
        from: String,
        /// Node that receives video.
        to: String,
    },
    /// Adds a group of viewers, or replaces the group with this name.
    SetGroup(GroupEntry),
    /// Removes a group. Its viewers then belong to the group for all other addresses.
    RemoveGroup(String),
    /// Adds a channel, or replaces the renditions of the channel with this name. The bitrate of an
    /// existing rendition cannot change.
    SetChannel(ChannelEntry),
    /// Removes a channel. Its streams end.
    RemoveChannel(String),
}

/// Removed entries of a description. They keep their positions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RemovedEntries {
    /// Names of removed nodes.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub nodes: BTreeSet<String>,
    /// Sender and receiver of removed links.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub links: BTreeSet<(String, String)>,
    /// Names of removed groups.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub groups: BTreeSet<String>,
    /// Names of removed channels.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub channels: BTreeSet<String>,
}

impl RemovedEntries {
    /// Whether no entry is removed.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    pub(super) fn has_link(&self, link: &LinkEntry) -> bool {
        self.links.iter().any(|(from, to)| *from == link.from && *to == link.to)
    }
}

/// Replaces the entry with the same key, or appends the new entry. Returns the replaced entry.
fn put<T>(entries: &mut Vec<T>, new: T, is_same: impl Fn(&T) -> bool) -> Option<T> {
    match entries.iter_mut().find(|entry| is_same(entry)) {
        Some(entry) => Some(std::mem::replace(entry, new)),
        None => {
            entries.push(new);
            None
        }
    }
}

impl Description {
    fn apply(&mut self, change: Change) -> Result<(), DescriptionError> {
        let missing = |what, name: &str| Err(DescriptionError::NotThere(what, name.to_owned()));
        let removed = &mut self.removed;
        match change {
            Change::SetNode(node) => {
                removed.nodes.remove(&node.name);
                let (name, tier) = (node.name.clone(), node.tier);
                let before = put(&mut self.nodes, node, |entry| entry.name == name);
                if let Some(before) = before.filter(|before| before.tier != tier) {
                    return Err(DescriptionError::OtherTier(name, before.tier));
                }
            }
            Change::RemoveNode(name) => {
                if !self.nodes.iter().any(|node| node.name == name) || !removed.nodes.insert(name.clone()) {
                    return missing("node", &name);
                }
            }
            Change::SetLink(link) => {
                let ends = (link.from.clone(), link.to.clone());
                removed.links.remove(&ends);
                put(&mut self.links, link, |entry| entry.from == ends.0 && entry.to == ends.1);
            }
            Change::RemoveLink { from, to } => {
                let is_known = self.links.iter().any(|link| link.from == from && link.to == to);
                let shown = format!("{from} to {to}");
                if !is_known || !removed.links.insert((from, to)) {
                    return missing("link", &shown);
                }
            }
            Change::SetGroup(group) => {
                removed.groups.remove(&group.name);
                let name = group.name.clone();
                put(&mut self.groups, group, |entry| entry.name == name);
            }
            Change::RemoveGroup(name) => {
                if !self.groups.iter().any(|group| group.name == name) || !removed.groups.insert(name.clone())
                {
                    return missing("group", &name);
                }
            }
            Change::SetChannel(channel) => self.set_channel(channel)?,
            Change::RemoveChannel(name) => {
                let is_known = self.channels.iter().any(|channel| channel.name == name);
                if !is_known || !removed.channels.insert(name.clone()) {
                    return missing("channel", &name);
                }
            }
        }
        Ok(())
    }

    fn set_channel(&mut self, channel: ChannelEntry) -> Result<(), DescriptionError> {
        let was_removed = self.removed.channels.remove(&channel.name);
        let (name, renditions) = (channel.name.clone(), channel.renditions.clone());
        let before = put(&mut self.channels, channel, |entry| entry.name == name);
        // A removed channel has no running stream.
        let running = before.filter(|_| !was_removed).map(|before| before.renditions).unwrap_or_default();
        for (rendition, bitrate) in running {
            if renditions.get(&rendition).is_some_and(|new| *new != bitrate) {
                return Err(DescriptionError::OtherBitrate(name, rendition, bitrate));
            }
        }
        Ok(())
    }
}

impl Layout {
    /// Applies changes in order, all or none. Returns the changed network.
    ///
    /// Errors: see [`DescriptionError`].
    pub fn changed(&self, changes: Vec<Change>) -> Result<Self, DescriptionError> {
        super::limit("changes at once", changes.len(), CHANGES_MAX)?;
        let mut description = self.description().clone();
        changes.into_iter().try_for_each(|change| description.apply(change))?;
        let changed = Self::new(description)?;
        changed.check_extends(self)?;
        Ok(changed)
    }

    /// Checks that nodes, links, groups and channels of `earlier` have kept their ids.
    ///
    /// Errors: [`DescriptionError::OtherIds`], [`DescriptionError::Change`].
    pub fn check_extends(&self, earlier: &Self) -> Result<(), DescriptionError> {
        self.network().check_extends(earlier.network()).map_err(DescriptionError::Change)?;
        let (new, old) = (self.description(), earlier.description());
        let mut groups = old.groups.iter().zip(new.groups.iter().map(Some).chain(std::iter::repeat(None)));
        if let Some((old, _)) = groups.find(|(old, new)| new.is_none_or(|new| new.name != old.name)) {
            return Err(DescriptionError::OtherIds("group", old.name.clone()));
        }
        let mut channels =
            old.channels.iter().zip(new.channels.iter().map(Some).chain(std::iter::repeat(None)));
        match channels.find(|(old, new)| new.is_none_or(|new| new.name != old.name)) {
            Some((old, _)) => Err(DescriptionError::OtherIds("channel", old.name.clone())),
            None => Ok(()),
        }
    }

    /// Whether a node is removed.
    pub fn is_removed(&self, node: NodeId) -> bool {
        self.description().removed.nodes.contains(&self.entry(node).name)
    }

    /// The nodes that are removed.
    pub fn removed_nodes(&self) -> BTreeSet<NodeId> {
        let removed = self.description().removed.nodes.iter();
        removed.filter_map(|name| self.network().find(name)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::exercise::NETWORK;
    use super::*;
    use anabranch_live_proto::control::tables::Version;
    use anabranch_live_proto::directory::AddressPrefix;
    use anabranch_live_proto::{ChannelId, Object, Tier};
    use anabranch_units::{BitRate, LinkId};
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn layout() -> Layout {
        Description::from_toml(NETWORK).and_then(Layout::new).expect("a good description")
    }

    fn node(name: &str, tier: Tier) -> NodeEntry {
        let control = (tier != Tier::Edge).then(|| "127.0.0.1:7400".to_owned());
        let media = "http://127.0.0.1:7500".to_owned();
        NodeEntry { name: name.to_owned(), tier, media, control, addresses: Vec::new() }
    }

    fn link(from: &str, to: &str, mbps: u64) -> LinkEntry {
        let (from, to) = (from.to_owned(), to.to_owned());
        LinkEntry { from, to, capacity: BitRate::mbps(mbps), cost: 1.0 }
    }

    fn channel(name: &str, mbps: u64) -> ChannelEntry {
        let renditions = [("main".to_owned(), BitRate::mbps(mbps))].into();
        ChannelEntry { name: name.to_owned(), renditions }
    }

    fn group(name: &str, edge: &str) -> GroupEntry {
        let prefix: AddressPrefix = "10.0.0.0/8".parse().expect("a prefix");
        let edges = vec![super::super::GroupEdgeEntry::Name(edge.to_owned())];
        GroupEntry { name: name.to_owned(), prefixes: vec![prefix], edges }
    }

    #[test]
    fn removed_entries_keep_their_ids() {
        let before = layout();
        let changes = vec![
            Change::SetNode(node("r2", Tier::Reflector)),
            Change::SetLink(link("s", "r2", 20)),
            Change::SetLink(link("r2", "e", 20)),
            Change::RemoveNode("r".to_owned()),
            Change::RemoveLink { from: "s".to_owned(), to: "r".to_owned() },
            Change::RemoveGroup("here".to_owned()),
            Change::SetGroup(group("there", "e")),
            Change::RemoveChannel("news".to_owned()),
            Change::SetChannel(channel("sport", 3)),
        ];
        let after = before.changed(changes).expect("good changes");
        assert_eq!(after.network().find("r2"), Some(NodeId(3)));
        assert_eq!(after.removed_nodes(), [NodeId(1)].into());
        assert_eq!(after.network().links()[0].capacity, BitRate::bps(0));
        let sport = Object { channel: ChannelId(1), bitrate: BitRate::mbps(3) };
        assert_eq!(
            (after.object("/sport/main/1.m4s"), after.object("/news/high/1.m4s")),
            (Some(sport), None)
        );
        assert_eq!(after.channel("/news/index.m3u8").count(), 0);
        assert_eq!(after.group_of([127, 0, 0, 1].into()), None);
        assert_eq!(after.group_of([10, 0, 0, 1].into()).map(|group| group.0), Some(1));
        let directory = after.directory(
            Version::default(),
            &BTreeMap::from([((after.group_of([10, 0, 0, 1].into()).expect("there"), sport), NodeId(2))]),
            |_| true,
            |_| vec![sport],
        );
        let contents = directory.contents();
        assert_eq!((contents.channels.len(), contents.groups.len(), contents.edges.len()), (1, 1, 1));
        assert_eq!(contents.places[0].object.channel, ChannelId(0), "published ids leave out the removed");
        assert_eq!(contents.edges[0].objects[0].channel, ChannelId(0));
        let again = vec![
            Change::SetNode(node("r", Tier::Reflector)),
            Change::SetLink(link("s", "r", 7)),
            Change::SetChannel(channel("news", 9)),
        ];
        let again = after.changed(again).expect("they take their places again");
        assert_eq!((again.network().find("r"), again.removed_nodes().len()), (Some(NodeId(1)), 0));
        assert_eq!(again.network().link(LinkId(0)).capacity, BitRate::mbps(7));
    }

    #[test]
    fn bad_change_is_refused_in_one_line() {
        let layout = layout();
        let cases = [
            (Change::RemoveNode("x".to_owned()), "no node `x`"),
            (Change::RemoveLink { from: "s".to_owned(), to: "e".to_owned() }, "no link `s to e`"),
            (Change::RemoveGroup("x".to_owned()), "no group `x`"),
            (Change::RemoveChannel("x".to_owned()), "no channel `x`"),
            (Change::SetNode(node("e", Tier::Reflector)), "an edge"),
            (Change::SetLink(link("s", "e", 5)), "links lead from"),
            (Change::SetLink(link("s", "x", 5)), "no node `x`"),
            (Change::SetGroup(group("there", "r")), "no edge"),
            (
                Change::SetChannel(ChannelEntry { renditions: BTreeMap::new(), ..channel("a", 1) }),
                "no rendition",
            ),
            (
                Change::SetChannel(ChannelEntry {
                    renditions: [("high".to_owned(), BitRate::mbps(5))].into(),
                    ..channel("news", 1)
                }),
                "4 Mbit/s",
            ),
        ];
        for (change, words) in cases {
            let good = Change::SetChannel(channel("good", 1));
            let error = layout.changed(vec![good, change]).expect_err(words).to_string();
            assert!(error.contains(words) && !error.contains('\n'), "{words}: {error}");
        }
        let many = vec![Change::RemoveNode("x".to_owned()); CHANGES_MAX + 1];
        assert!(layout.changed(many).expect_err("too many").to_string().contains("10000"));
    }

    fn names() -> impl Strategy<Value = String> {
        prop_oneof![Just("s"), Just("r"), Just("e"), Just("n"), Just("news"), Just("here")]
            .prop_map(str::to_owned)
    }

    fn changes() -> impl Strategy<Value = Change> {
        let tiers = prop_oneof![Just(Tier::Source), Just(Tier::Reflector), Just(Tier::Edge)];
        prop_oneof![
            (names(), tiers).prop_map(|(name, tier)| Change::SetNode(node(&name, tier))),
            names().prop_map(Change::RemoveNode),
            (names(), names(), 0..9u64).prop_map(|(from, to, mbps)| Change::SetLink(link(&from, &to, mbps))),
            (names(), names()).prop_map(|(from, to)| Change::RemoveLink { from, to }),
            (names(), names()).prop_map(|(name, edge)| Change::SetGroup(group(&name, &edge))),
            names().prop_map(Change::RemoveGroup),
            (names(), 1..3u64).prop_map(|(name, mbps)| Change::SetChannel(channel(&name, mbps))),
            names().prop_map(Change::RemoveChannel),
        ]
    }

    proptest! {
        #[test]
        fn changed_layout_extends_the_earlier_layout(
            requests in prop::collection::vec(prop::collection::vec(changes(), 0..4), 0..12),
        ) {
            let mut now = layout();
            for request in requests {
                let Ok(next) = now.changed(request) else { continue };
                prop_assert!(next.check_extends(&now).is_ok());
                let directory = next.directory(Version::default(), &BTreeMap::new(), |_| true, |_| Vec::new());
                let removed = &next.description().removed.nodes;
                let is_there = directory.contents().edges.iter().all(|edge| !removed.contains(&edge.name));
                prop_assert!(is_there);
                let json = serde_json::to_string(next.description()).expect("plain data");
                let read = serde_json::from_str::<Description>(&json).expect("written above");
                prop_assert_eq!(Layout::new(read).expect("it was good"), next.clone());
                let toml = toml::to_string(next.description()).expect("plain data");
                prop_assert_eq!(&Description::from_toml(&toml).expect("written above"), next.description());
                now = next;
            }
        }
    }
}
