//! The nodes, the links between their tiers, and the objects that nodes carry.

use anabranch_units::text::brief;
use anabranch_units::{BitRate, LinkId};
use serde::{Deserialize, Serialize};

/// Maximum number of nodes of a network.
pub const NODES_MAX: usize = 4_096;
/// Maximum number of links of a network.
pub const LINKS_MAX: usize = 65_536;
/// Maximum length of a node's name, in bytes.
pub const NAME_BYTES_MAX: usize = 63;

/// A node of one network, by its index in [`Network::nodes`].
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NodeId(pub u32);

/// A channel: one live video, at one or several bitrates.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ChannelId(pub u32);

/// One channel at one bitrate: the unit that a tree carries (§4.5, "object").
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Object {
    /// Channel of the object.
    pub channel: ChannelId,
    /// The rate of its stream.
    pub bitrate: BitRate,
}

/// The tiers, in the direction of the video (§4.2.1).
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Tier {
    /// Imports channels.
    Source,
    /// Forwards from sources to edges.
    Reflector,
    /// Serves viewers.
    Edge,
}

impl NodeId {
    /// The id as an index into a table by node.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// A cluster of servers at one location.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Name, unique within the network.
    pub name: String,
    /// Tier of the node.
    pub tier: Tier,
}

/// A link from a node to a node of the next tier.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Link {
    /// The end that sends video.
    pub from: NodeId,
    /// The end that receives video.
    pub to: NodeId,
    /// Rate available to video.
    pub capacity: BitRate,
    /// Cost per carried Mbit/s, in any currency. Finite, at least 0.
    pub cost: f64,
}

/// A network of sources, reflectors and edges, whose links connect each tier with the next.
#[derive(Clone, Debug, PartialEq)]
pub struct Network {
    nodes: Vec<Node>,
    links: Vec<Link>,
    /// Links into each node, in the order of [`Network::links`].
    links_in: Vec<Vec<LinkId>>,
    /// Links out of each node, in the order of [`Network::links`].
    links_out: Vec<Vec<LinkId>>,
}

/// A defect of a network's description.
#[derive(Clone, Debug, PartialEq)]
pub enum NetworkError {
    /// More nodes than [`NODES_MAX`].
    TooManyNodes(usize),
    /// More links than [`LINKS_MAX`].
    TooManyLinks(usize),
    /// A name that is empty or longer than [`NAME_BYTES_MAX`].
    BadName(String),
    /// Two nodes with the same name.
    NameTaken(String),
    /// An end of a link that is not a node.
    NoSuchNode(NodeId),
    /// A link that does not lead from a tier to the next tier.
    NotDownwards(String, String),
    /// Two links between the same nodes.
    LinkTaken(String, String),
    /// A cost that is negative, infinite or not a number.
    BadCost(String, String, f64),
}

/// A node's name on one line.
fn shown(name: &str) -> String {
    brief(name, NAME_BYTES_MAX)
}

impl std::fmt::Display for NetworkError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::TooManyNodes(count) => write!(f, "{count} nodes: at most {NODES_MAX} are possible"),
            Self::TooManyLinks(count) => write!(f, "{count} links: at most {LINKS_MAX} are possible"),
            Self::BadName(name) => {
                write!(f, "node `{}`: a name has 1 to {NAME_BYTES_MAX} bytes", shown(name))
            }
            Self::NameTaken(name) => write!(f, "node `{}` is listed twice: rename one", shown(name)),
            Self::NoSuchNode(id) => write!(f, "a link names node {}: no such node", id.0),
            Self::NotDownwards(from, to) => write!(
                f,
                "link `{}` to `{}`: links lead from a source to a reflector or from a reflector to an edge",
                shown(from),
                shown(to)
            ),
            Self::LinkTaken(from, to) => {
                write!(f, "link `{}` to `{}` is listed twice: remove one", shown(from), shown(to))
            }
            Self::BadCost(from, to, cost) => write!(
                f,
                "link `{}` to `{}`: cost {cost} must be a finite number of at least 0",
                shown(from),
                shown(to)
            ),
        }
    }
}

impl std::error::Error for NetworkError {}

/// Reason why a changed network is refused. A change keeps the ids of nodes and links: changed
/// entries keep their positions, and added entries are last. Capacity 0 removes a link, and a drain
/// removes a node.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ChangeError {
    /// Fewer nodes than before.
    FewerNodes {
        /// Number of nodes before the change.
        before: usize,
        /// Number of nodes in the changed network.
        after: usize,
    },
    /// Fewer links than before.
    FewerLinks {
        /// Number of links before the change.
        before: usize,
        /// Number of links in the changed network.
        after: usize,
    },
    /// A node with another name or tier.
    OtherNode(NodeId, String),
    /// A link with other ends.
    OtherEnds(LinkId),
}

impl std::fmt::Display for ChangeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::FewerNodes { before, after } => {
                write!(f, "{after} nodes: at least {before} must stay; drain a node to remove it")
            }
            Self::FewerLinks { before, after } => {
                write!(f, "{after} links: at least {before} must stay; give a link capacity 0 to remove it")
            }
            Self::OtherNode(id, name) => {
                write!(f, "node {} is `{}`: name and tier must stay; add another node", id.0, shown(name))
            }
            Self::OtherEnds(link) => write!(f, "link {link}: its ends must stay; add another link"),
        }
    }
}

impl std::error::Error for ChangeError {}

impl Network {
    /// Checks that this network has all nodes and links of `earlier`, with the same ids.
    /// Capacities and costs may differ.
    ///
    /// Errors: see [`ChangeError`].
    pub fn check_extends(&self, earlier: &Self) -> Result<(), ChangeError> {
        let (before, after) = (earlier.nodes.len(), self.nodes.len());
        if after < before {
            return Err(ChangeError::FewerNodes { before, after });
        }
        let (before, after) = (earlier.links.len(), self.links.len());
        if after < before {
            return Err(ChangeError::FewerLinks { before, after });
        }
        let mut nodes = earlier.nodes.iter().zip(&self.nodes).zip(0..);
        if let Some(((old, _), id)) = nodes.find(|((old, new), _)| old != new) {
            return Err(ChangeError::OtherNode(NodeId(id), old.name.clone()));
        }
        let mut links = earlier.links.iter().zip(&self.links).zip(0..);
        match links.find(|((old, new), _)| (old.from, old.to) != (new.from, new.to)) {
            Some((_, id)) => Err(ChangeError::OtherEnds(LinkId(id))),
            None => Ok(()),
        }
    }

    /// Creates a network of these nodes and links.
    ///
    /// Errors: see [`NetworkError`].
    pub fn new(nodes: Vec<Node>, links: Vec<Link>) -> Result<Self, NetworkError> {
        if nodes.len() > NODES_MAX {
            return Err(NetworkError::TooManyNodes(nodes.len()));
        }
        if links.len() > LINKS_MAX {
            return Err(NetworkError::TooManyLinks(links.len()));
        }
        let mut names = std::collections::BTreeSet::new();
        for node in &nodes {
            if node.name.is_empty() || node.name.len() > NAME_BYTES_MAX {
                return Err(NetworkError::BadName(node.name.clone()));
            }
            if !names.insert(node.name.as_str()) {
                return Err(NetworkError::NameTaken(node.name.clone()));
            }
        }
        let mut links_in = vec![Vec::new(); nodes.len()];
        let mut links_out = vec![Vec::new(); nodes.len()];
        let mut pairs = std::collections::BTreeSet::new();
        for (link, number) in links.iter().zip(0..) {
            let node = |id: NodeId| nodes.get(id.index()).ok_or(NetworkError::NoSuchNode(id));
            let (from, to) = (node(link.from)?, node(link.to)?);
            let names = || (from.name.clone(), to.name.clone());
            if !matches!(
                (from.tier, to.tier),
                (Tier::Source, Tier::Reflector) | (Tier::Reflector, Tier::Edge)
            ) {
                let (from, to) = names();
                return Err(NetworkError::NotDownwards(from, to));
            }
            if !pairs.insert((link.from, link.to)) {
                let (from, to) = names();
                return Err(NetworkError::LinkTaken(from, to));
            }
            if !link.cost.is_finite() || link.cost < 0.0 {
                let (from, to) = names();
                return Err(NetworkError::BadCost(from, to, link.cost));
            }
            links_out[link.from.index()].push(LinkId(number));
            links_in[link.to.index()].push(LinkId(number));
        }
        Ok(Self { nodes, links, links_in, links_out })
    }

    /// All nodes, by [`NodeId`].
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }
    /// All links, by their ids.
    pub fn links(&self) -> &[Link] {
        &self.links
    }
    /// The node with this id.
    ///
    /// Panics: if the network has no such node.
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.index()]
    }
    /// The link with this id.
    ///
    /// Panics: if the network has no such link.
    pub fn link(&self, id: LinkId) -> &Link {
        &self.links[id.index()]
    }
    /// Links into `node`, from its parents.
    pub fn links_in(&self, node: NodeId) -> &[LinkId] {
        &self.links_in[node.index()]
    }
    /// Links out of `node`, to its children.
    pub fn links_out(&self, node: NodeId) -> &[LinkId] {
        &self.links_out[node.index()]
    }
    /// The nodes of one tier, in order.
    pub fn tier(&self, tier: Tier) -> impl Iterator<Item = NodeId> {
        self.nodes.iter().zip(0..).filter(move |(node, _)| node.tier == tier).map(|(_, n)| NodeId(n))
    }
    /// The node with this name.
    pub fn find(&self, name: &str) -> Option<NodeId> {
        self.nodes.iter().zip(0..).find(|(node, _)| node.name == name).map(|(_, n)| NodeId(n))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes() -> Vec<Node> {
        [("s", Tier::Source), ("r", Tier::Reflector), ("e", Tier::Edge)]
            .map(|(name, tier)| Node { name: name.to_owned(), tier })
            .into()
    }

    fn link(from: u32, to: u32) -> Link {
        Link { from: NodeId(from), to: NodeId(to), capacity: BitRate::mbps(100), cost: 1.0 }
    }

    #[test]
    fn links_connect_each_tier_to_the_next_only() {
        let network = Network::new(nodes(), vec![link(0, 1), link(1, 2)]).expect("two good links");
        assert_eq!(network.links_in(NodeId(2)), [LinkId(1)]);
        assert_eq!(network.links_out(NodeId(0)), [LinkId(0)]);
        for (from, to) in [(1, 0), (0, 2), (2, 1), (1, 1)] {
            let error = Network::new(nodes(), vec![link(from, to)]).expect_err("not downwards");
            assert!(matches!(error, NetworkError::NotDownwards(..)), "{error}");
        }
    }

    #[test]
    fn changed_network_keeps_its_ids() {
        let before = Network::new(nodes(), vec![link(0, 1), link(1, 2)]).expect("two good links");
        let more = |name: &str, tier| [nodes(), vec![Node { name: name.to_owned(), tier }]].concat();
        let wide = Link { capacity: BitRate::mbps(200), cost: 0.0, ..link(0, 1) };
        let links = vec![wide, link(1, 2), link(3, 1)];
        let after = Network::new(more("s2", Tier::Source), links).expect("three good links");
        after.check_extends(&before).expect("a changed link, a new node, a new link");
        let mut renamed = nodes();
        renamed[1].name = "other".to_owned();
        let cases = [
            (nodes(), vec![link(0, 1)], "1 links: at least 2"),
            (nodes(), vec![link(1, 2), link(0, 1)], "link 0: its ends"),
            (renamed, vec![link(0, 1), link(1, 2)], "node 1 is `r`"),
            (nodes()[..2].to_vec(), vec![link(0, 1)], "2 nodes: at least 3"),
        ];
        for (nodes, links, words) in cases {
            let after = Network::new(nodes, links).expect("a good network");
            let error = after.check_extends(&before).expect_err("ids change").to_string();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn each_network_defect_has_its_message() {
        let cost = Link { cost: f64::NAN, ..link(0, 1) };
        let cases = [
            (vec![link(0, 7)], "node 7"),
            (vec![link(0, 1), link(0, 1)], "listed twice"),
            (vec![cost], "finite"),
        ];
        for (links, words) in cases {
            let error = Network::new(nodes(), links).expect_err("a defect").to_string();
            assert!(error.contains(words), "{error}");
        }
        let mut long = nodes();
        long[1].name = "\n".repeat(NAME_BYTES_MAX + 1);
        let error = Network::new(long, vec![]).expect_err("a long name").to_string();
        assert!(!error.contains('\n') && error.contains("...`"), "{error}");
        let mut twice = nodes();
        twice[1].name = "s".to_owned();
        assert_eq!(Network::new(twice, vec![]), Err(NetworkError::NameTaken("s".to_owned())));
    }
}
