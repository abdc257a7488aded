//! Tables of a node: the routing information base (RIB), the forwarding table (FIB) computed from
//! the RIB, and the forwarding tables of earlier versions.
//!
//! Source: §4.4.1 and Table 4.1; shadow FIBs §4.4.3. A request that one version has routed is
//! forwarded by the same version at the next node. Leaves out: the local decision itself.
//! Read [`Rib`] and [`Prefix`] first.

use crate::{ChannelId, NodeId, Object};
use anabranch_units::{BitRate, LinkId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Maximum number of entries of one origin in a [`Rib`], and of entries in a [`Fib`].
pub const ENTRIES_MAX: usize = 65_536;
/// Maximum number of versions in [`ShadowFibs`], including the current version. A round has at most
/// eight stages.
pub const SHADOW_FIBS_MAX: usize = 8;
/// Maximum number of links, and of objects, in the evidence of one entry.
pub const EVIDENCE_MAX: usize = 64;

/// Version of a controller's decision.
///
/// A controller that takes the lead has a higher `lead` than all earlier controllers, so versions
/// of two controllers never coincide.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Version {
    /// Number of the controller's lead.
    pub lead: u64,
    /// Number of the decision within the lead.
    pub decision: u64,
}

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.lead, self.decision)
    }
}

/// The control loop that made a decision: the controller's or the node's.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// The controller.
    Central,
    /// The node itself, by Algorithm 1.
    Distributed,
}

/// Requests that an entry matches: channel / bitrate / *, with wildcards at the end (Table 4.1).
/// All chunks of an object share one route.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Prefix {
    /// `*`: every request.
    Any,
    /// `V0/*/*`: all bitrates of a channel.
    Channel(ChannelId),
    /// `V0/800 kbit/s/*`: one object.
    Object(Object),
}

impl Prefix {
    /// This prefix and all prefixes that cover it, the longest first.
    fn wider(self) -> impl Iterator<Item = Self> {
        let (channel, object) = match self {
            Self::Any => (None, None),
            Self::Channel(channel) => (Some(channel), None),
            Self::Object(object) => (Some(object.channel), Some(object)),
        };
        object.map(Self::Object).into_iter().chain(channel.map(Self::Channel)).chain([Self::Any])
    }

    /// Ranges of the prefixes that this prefix covers, excluding itself.
    fn narrower(self) -> Vec<std::ops::RangeInclusive<Self>> {
        let object = |channel, bps| Object { channel: ChannelId(channel), bitrate: BitRate::bps(bps) };
        let under =
            |first: u32, last: u32| Self::Object(object(first, 0))..=Self::Object(object(last, u64::MAX));
        match self {
            Self::Any => {
                let channels = Self::Channel(ChannelId(0))..=Self::Channel(ChannelId(u32::MAX));
                vec![channels, under(0, u32::MAX)]
            }
            Self::Channel(channel) => vec![under(channel.0, channel.0)],
            Self::Object(_) => Vec::new(),
        }
    }
}

impl std::fmt::Display for Prefix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Any => write!(f, "*"),
            Self::Channel(channel) => write!(f, "V{}/*/*", channel.0),
            Self::Object(object) => write!(f, "V{}/{}/*", object.channel.0, object.bitrate),
        }
    }
}

/// State of a link, as one of its ends reports it.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LinkState {
    /// The link carries video, at most at this rate.
    Up(BitRate),
    /// The link, or the node at its other end, has failed.
    Failed,
}

impl LinkState {
    /// The rate that the link can carry; zero if it has failed.
    pub const fn capacity(self) -> BitRate {
        match self {
            Self::Up(capacity) => capacity,
            Self::Failed => BitRate::bps(0),
        }
    }

    /// The state with a capacity of at most `declared`.
    pub fn limited(self, declared: BitRate) -> Self {
        match self {
            Self::Up(capacity) => Self::Up(capacity.min(declared)),
            Self::Failed => Self::Failed,
        }
    }

    /// Whether the state differs from `earlier` by at least `percent` of the earlier capacity. A
    /// failure and a repair always count.
    pub fn has_changed(self, earlier: Self, percent: u32) -> bool {
        match (earlier, self) {
            (Self::Up(old), Self::Up(new)) => has_rate_changed(old, new, percent),
            _ => self != earlier,
        }
    }
}

/// Whether `new` differs from `old` by at least `percent` of `old` (§4.4.2). Nodes apply this rule to
/// evidence and to advertised capacities.
pub fn has_rate_changed(old: BitRate, new: BitRate, percent: u32) -> bool {
    let (old, new) = (u128::from(old.as_bps()), u128::from(new.as_bps()));
    old != new && old.abs_diff(new) * 100 >= old * u128::from(percent)
}

/// Viewers of one object.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Viewership {
    /// The object that the viewers watch.
    pub object: Object,
    /// Number of viewers.
    pub viewers: u64,
}

/// State from which a decision was computed: links and viewers, as nodes had reported them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evidence {
    /// State of each link that the decision depends on.
    pub links: Vec<(LinkId, LinkState)>,
    /// Viewers of the objects that the prefix covers.
    pub viewers: Vec<Viewership>,
}

impl Evidence {
    /// Whether a link has changed by at least `percent` since the decision (§4.4.2). `state`
    /// returns the current state of a link.
    pub fn is_stale(&self, percent: u32, state: impl Fn(LinkId) -> LinkState) -> bool {
        self.links.iter().any(|(link, then)| state(*link).has_changed(*then, percent))
    }
}

/// A route with the evidence for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RibEntry {
    /// Control loop that made the decision.
    pub origin: Origin,
    /// Requests that the entry routes.
    pub prefix: Prefix,
    /// Parent to which the requests are forwarded.
    pub next_hop: NodeId,
    /// Version of the decision. A distributed entry has the version of the tables it overrides.
    pub version: Version,
    /// State from which the decision was computed.
    pub evidence: Evidence,
}

/// A change of a node's central entries, sent by the controller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RibUpdate {
    /// Version after the change.
    pub version: Version,
    /// Version to which the change applies; `None` if `set` holds all entries.
    pub base: Option<Version>,
    /// New and changed entries, of origin [`Origin::Central`].
    pub set: Vec<RibEntry>,
    /// Prefixes whose entries are removed.
    pub removed: Vec<Prefix>,
}

/// Reason why an update is refused. The tables stay unchanged.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum UpdateError {
    /// The version is not newer than the installed one.
    Old {
        /// Version of the update.
        version: Version,
        /// Version of the tables.
        installed: Version,
    },
    /// The update applies to a version that is not installed: a full update is needed.
    OtherBase {
        /// Version that the update changes.
        base: Version,
        /// Version of the tables.
        installed: Version,
    },
    /// More than [`ENTRIES_MAX`] entries.
    TooManyEntries(usize),
    /// An entry with more evidence than [`EVIDENCE_MAX`].
    TooMuchEvidence(Prefix),
    /// An entry whose origin is not [`Origin::Central`].
    NotCentral(Prefix),
    /// An entry whose next hop is not a parent of this node.
    NotAParent(Prefix, NodeId),
}

impl std::fmt::Display for UpdateError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Old { version, installed } => {
                write!(f, "update {version}: must be newer than the installed version {installed}")
            }
            Self::OtherBase { base, installed } => {
                write!(f, "update of version {base}: installed is {installed}; send all entries")
            }
            Self::TooManyEntries(count) => {
                write!(f, "{count} entries: at most {ENTRIES_MAX} are possible; use shorter prefixes")
            }
            Self::TooMuchEvidence(prefix) => {
                write!(
                    f,
                    "entry {prefix}: at most {EVIDENCE_MAX} links and {EVIDENCE_MAX} objects as evidence"
                )
            }
            Self::NotCentral(prefix) => write!(f, "entry {prefix}: a controller sends central entries only"),
            Self::NotAParent(prefix, node) => {
                write!(f, "entry {prefix}: next hop {} is no parent of this node", node.0)
            }
        }
    }
}

impl std::error::Error for UpdateError {}

/// Routes of a node, both central and distributed (Table 4.1).
#[derive(Clone, Debug, Default)]
pub struct Rib {
    version: Version,
    central: BTreeMap<Prefix, RibEntry>,
    distributed: BTreeMap<Prefix, RibEntry>,
}

impl Rib {
    /// Version of the central entries; [`Version::default`] before the first update.
    pub const fn version(&self) -> Version {
        self.version
    }

    /// Central entries, by prefix.
    pub fn central(&self) -> impl Iterator<Item = &RibEntry> {
        self.central.values()
    }

    /// Distributed entries, by prefix.
    pub fn distributed(&self) -> impl Iterator<Item = &RibEntry> {
        self.distributed.values()
    }

    /// Installs an update of the central entries completely or not at all.
    ///
    /// Errors: see [`UpdateError`].
    pub fn install(
        &mut self,
        update: RibUpdate,
        is_parent: impl Fn(NodeId) -> bool,
    ) -> Result<(), UpdateError> {
        let RibUpdate { version, base, set, removed } = update;
        if version <= self.version {
            return Err(UpdateError::Old { version, installed: self.version });
        }
        if let Some(base) = base
            && base != self.version
        {
            return Err(UpdateError::OtherBase { base, installed: self.version });
        }
        if set.len() > ENTRIES_MAX {
            return Err(UpdateError::TooManyEntries(set.len()));
        }
        for entry in &set {
            if entry.origin != Origin::Central {
                return Err(UpdateError::NotCentral(entry.prefix));
            }
            if entry.evidence.links.len().max(entry.evidence.viewers.len()) > EVIDENCE_MAX {
                return Err(UpdateError::TooMuchEvidence(entry.prefix));
            }
            if !is_parent(entry.next_hop) {
                return Err(UpdateError::NotAParent(entry.prefix, entry.next_hop));
            }
        }
        let removed: std::collections::BTreeSet<Prefix> = removed.into_iter().collect();
        let kept = |prefix: &Prefix| base.is_some() && !removed.contains(prefix);
        let new = set.iter().map(|entry| entry.prefix).collect::<std::collections::BTreeSet<_>>();
        let old = self.central.keys().filter(|prefix| kept(prefix) && !new.contains(prefix)).count();
        if old + new.len() > ENTRIES_MAX {
            return Err(UpdateError::TooManyEntries(old + new.len()));
        }
        self.central.retain(|prefix, _| kept(prefix));
        self.central.extend(set.into_iter().map(|entry| (entry.prefix, entry)));
        self.version = version;
        Ok(())
    }

    /// Enters a local decision, which replaces an earlier decision for the same prefix. Returns
    /// false and enters nothing if [`ENTRIES_MAX`] distributed entries exist.
    pub fn decide(&mut self, prefix: Prefix, next_hop: NodeId, evidence: Evidence) -> bool {
        let is_full = self.distributed.len() >= ENTRIES_MAX && !self.distributed.contains_key(&prefix);
        if !is_full {
            let origin = Origin::Distributed;
            let entry = RibEntry { origin, prefix, next_hop, version: self.version, evidence };
            self.distributed.insert(prefix, entry);
        }
        !is_full
    }

    /// Removes the local decision for this prefix, if any.
    pub fn forget(&mut self, prefix: Prefix) {
        self.distributed.remove(&prefix);
    }

    /// Removes local decisions that are not needed, because central entries that are not stale
    /// route all their requests. Returns the prefixes of the removed decisions.
    pub fn drop_overrides(&mut self, is_stale: impl Fn(&RibEntry) -> bool) -> Vec<Prefix> {
        let central = &self.central;
        let is_needed = |prefix: Prefix| {
            let mut narrower =
                prefix.narrower().into_iter().flat_map(|range| central.range(range)).peekable();
            let wider = prefix.wider().find_map(|wider| central.get(&wider));
            let is_planned = wider.map_or(narrower.peek().is_some(), |entry| !is_stale(entry));
            !is_planned || narrower.any(|(_, entry)| is_stale(entry))
        };
        let dropped: Vec<_> = self.distributed.keys().copied().filter(|prefix| !is_needed(*prefix)).collect();
        dropped.iter().for_each(|prefix| self.forget(*prefix));
        dropped
    }

    /// The route of a request: the longest matching prefix among distributed entries and central
    /// entries that are not stale. For equal prefixes the central entry wins.
    pub fn route(&self, object: Object, is_stale: impl Fn(&RibEntry) -> bool) -> Option<&RibEntry> {
        Prefix::Object(object).wider().find_map(|prefix| {
            let central = self.central.get(&prefix).filter(|entry| !is_stale(entry));
            central.or_else(|| self.distributed.get(&prefix))
        })
    }

    /// The forwarding table: central entries that are not stale, and distributed entries.
    pub fn fib(&self, is_stale: impl Fn(&RibEntry) -> bool) -> Fib {
        let held = self.central.values().filter(|entry| !is_stale(entry));
        let routes = self.distributed.values().chain(held);
        Fib { routes: routes.map(|entry| (entry.prefix, entry.next_hop)).collect() }
    }

    /// The forwarding table of the central entries only, for [`ShadowFibs`].
    pub fn central_fib(&self) -> Fib {
        Fib { routes: self.central.values().map(|entry| (entry.prefix, entry.next_hop)).collect() }
    }
}

/// A forwarding table of one version: next hops by prefix.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fib {
    routes: BTreeMap<Prefix, NodeId>,
}

impl Fib {
    /// The next hop of a request, by the longest prefix.
    pub fn lookup(&self, object: Object) -> Option<NodeId> {
        Prefix::Object(object).wider().find_map(|prefix| self.routes.get(&prefix).copied())
    }
}

/// Forwarding tables of the newest versions (§4.4.3), at most [`SHADOW_FIBS_MAX`].
#[derive(Clone, Debug, Default)]
pub struct ShadowFibs {
    by_version: BTreeMap<Version, Fib>,
}

impl ShadowFibs {
    /// Stores the forwarding table of a version, and drops the oldest table above the limit.
    pub fn keep(&mut self, version: Version, fib: Fib) {
        self.by_version.insert(version, fib);
        while self.by_version.len() > SHADOW_FIBS_MAX {
            self.by_version.pop_first();
        }
    }

    /// The table of a version; `None` if the version is not stored.
    pub fn of(&self, version: Version) -> Option<&Fib> {
        self.by_version.get(&version)
    }
}

#[cfg(test)]
mod tests;
