//! Settings of a `live` workload in a scenario, and their check against the scenario's network.

use super::{ResolvedWorkload, overlay};
use crate::control::local;
use crate::control::node::ControlMode;
use crate::network::{LINKS_MAX, Network as Overlay, NodeId, Object};
use crate::{ChannelId, Tier};
use anabranch_graph::{Adjacency, distances};
use anabranch_media::bitrates::segment_bytes;
use anabranch_sim::scenario::SystemWorkload;
use anabranch_sim::{Network, PlanError};
use anabranch_units::{BitRate, Duration, Instant};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Maximum number of nodes of a tier.
const TIER_MAX: u32 = 500;
/// Maximum number of channels.
const CHANNELS_MAX: u32 = 2_000;
/// Maximum number of viewers.
const VIEWERS_MAX: u32 = 10_000;
/// Maximum number of faults.
const FAULTS_MAX: usize = 400;
/// Maximum number of bitrates of a channel.
const BITRATES_MAX: usize = 16;
/// Latest time of an event.
const TIME_MAX: Duration = Duration::from_secs(100_000);

/// Settings of a workload. Hosts are assigned in order: the controller, sources, reflectors, edges.
/// Viewers share the remaining hosts.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Number of sources. Each source has every channel.
    pub sources: u32,
    /// Number of reflectors.
    pub reflectors: u32,
    /// Number of edges.
    pub edges: u32,
    /// Number of channels.
    pub channels: u32,
    /// Number of viewers. They are assigned to the channels in turn.
    pub viewers: u32,
    /// Bitrates of every channel. Viewers ask for the highest bitrate first.
    pub bitrates: Vec<BitRate>,
    /// Duration of a part.
    pub part: Duration,
    /// Duration of media in a viewer's buffer at which playback starts.
    pub buffer: Duration,
    /// Time over which the viewers' arrivals are spread.
    pub arrivals: Duration,
    /// Time between two plans.
    pub every: Duration,
    /// Declared capacity of a link from a source. Default: nine tenths of the rate of the source's
    /// own links, divided by the number of reflectors.
    pub source_capacity: Option<BitRate>,
    /// Declared capacity of a link from a reflector. Default: nine tenths of the rate of the
    /// reflector's own links, divided by the number of edges.
    pub reflector_capacity: Option<BitRate>,
    /// Decisions that nodes follow.
    pub mode: Mode,
    /// Variant of Algorithm 1, by which nodes choose locally.
    pub rule: Rule,
    /// Failures and drains.
    pub faults: Vec<Fault>,
}

/// Which decisions nodes follow, as in [`ControlMode`].
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// The controller's routes while their evidence holds, and a local choice otherwise.
    #[default]
    Hybrid,
    /// Local choices only.
    Distributed,
    /// The controller's routes only.
    Centralized,
}

impl Mode {
    /// The corresponding mode of a node's control.
    pub const fn control(self) -> ControlMode {
        match self {
            Self::Hybrid => ControlMode::Hybrid,
            Self::Distributed => ControlMode::Distributed,
            Self::Centralized => ControlMode::Centralized,
        }
    }
}

/// Variant of Algorithm 1, as in [`local::Rule`].
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Rule {
    /// The nearest parent among those with enough capacity, as in the thesis's text.
    #[default]
    NearestWithCapacity,
    /// A parent with enough capacity among the nearest parents only, as printed.
    Printed,
}

impl Rule {
    /// The corresponding rule of a node's control.
    pub const fn control(self) -> local::Rule {
        match self {
            Self::NearestWithCapacity => local::Rule::NearestWithCapacity,
            Self::Printed => local::Rule::Printed,
        }
    }
}

/// A failure or a drain.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// Kind of the fault.
    pub what: FaultKind,
    /// Name of the node, such as `reflector-0`; none for the controller.
    pub node: Option<String>,
    /// Start time.
    pub at: Duration,
    /// End time. Default: the end of the run.
    pub until: Option<Duration>,
}

/// Kinds of faults.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum FaultKind {
    /// A node stops sending, but its connections stay open. It restarts with an empty state.
    NodeDies,
    /// The controller stops sending. It restarts with a new lead and an empty state.
    ControllerDies,
    /// An operator drains a node.
    Drain,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            sources: 1,
            reflectors: 2,
            edges: 4,
            channels: 10,
            viewers: 40,
            bitrates: vec![BitRate::mbps(1)],
            part: Duration::from_ms(200),
            buffer: Duration::from_ms(600),
            arrivals: Duration::from_secs(10),
            every: Duration::from_secs(10),
            source_capacity: None,
            reflector_capacity: None,
            mode: Mode::Hybrid,
            rule: Rule::NearestWithCapacity,
            faults: Vec::new(),
        }
    }
}

/// Host of the node with index `at`. The controller has the first host.
pub const fn host_of(at: usize) -> u16 {
    at as u16 + 1
}

impl Settings {
    /// Number of nodes.
    pub const fn nodes(&self) -> usize {
        (self.sources + self.reflectors + self.edges) as usize
    }

    /// First host of viewers.
    pub const fn first_viewer_host(&self) -> u16 {
        host_of(self.nodes())
    }

    /// Renditions of a channel, the highest bitrate first.
    pub(super) fn ladder(&self, channel: u32) -> Vec<Object> {
        let mut bitrates = self.bitrates.clone();
        bitrates.sort();
        bitrates.into_iter().rev().map(|bitrate| Object { channel: ChannelId(channel), bitrate }).collect()
    }

    /// Size of a part in bytes.
    pub(super) fn part_bytes(&self, bitrate: BitRate) -> u64 {
        segment_bytes(bitrate, self.part)
    }

    fn check(&self, hosts: usize) -> Result<(), (&'static str, String)> {
        let counts = [
            ("sources", self.sources, TIER_MAX),
            ("reflectors", self.reflectors, TIER_MAX),
            ("edges", self.edges, TIER_MAX),
            ("channels", self.channels, CHANNELS_MAX),
            ("viewers", self.viewers, VIEWERS_MAX),
        ];
        for (name, count, most) in counts {
            if !(1..=most).contains(&count) {
                return Err((name, format!("{count}: must be 1 to {most}")));
            }
        }
        let links = self.reflectors as usize * (self.sources + self.edges) as usize;
        if links > LINKS_MAX {
            let line = format!(
                "{}: with {} sources and {} edges there are {links} links: at most {LINKS_MAX}",
                self.reflectors, self.sources, self.edges
            );
            return Err(("reflectors", line));
        }
        let needed = self.nodes() + 2;
        if hosts < needed {
            let line = format!(
                "{}: controller, {} nodes and viewers take {needed} hosts; the network has {hosts}",
                self.edges,
                self.nodes()
            );
            return Err(("edges", line));
        }
        let times = [
            ("part", self.part, Duration::from_ms(20), Duration::from_secs(60)),
            ("buffer", self.buffer, self.part, TIME_MAX),
            ("arrivals", self.arrivals, Duration::ZERO, TIME_MAX),
            ("every", self.every, Duration::from_secs(1), TIME_MAX),
        ];
        for (name, time, least, most) in times {
            if time < least || time > most {
                return Err((name, format!("{time}: must be {least} to {most}")));
            }
        }
        let mut bitrates = self.bitrates.clone();
        bitrates.sort();
        bitrates.dedup();
        if !(1..=BITRATES_MAX).contains(&bitrates.len()) || bitrates.len() != self.bitrates.len() {
            return Err(("bitrates", format!("must be 1 to {BITRATES_MAX} rates, each once")));
        }
        let (least, most) = (BitRate::bps(1_000), BitRate::gbps(100));
        if let Some(rate) = bitrates.iter().find(|rate| **rate < least || **rate > most) {
            return Err(("bitrates", format!("{rate}: must be {least} to {most}")));
        }
        if self.faults.len() > FAULTS_MAX {
            return Err(("faults", format!("{}: at most {FAULTS_MAX}", self.faults.len())));
        }
        Ok(())
    }

    fn check_fault(&self, fault: &Fault, overlay: &Overlay) -> Result<(), String> {
        match (&fault.node, fault.what) {
            (None, FaultKind::ControllerDies) => {}
            (Some(_), FaultKind::ControllerDies) => {
                return Err("controller-dies: leave `node` out".to_owned());
            }
            (None, _) => return Err("name the node: `node = \"reflector-0\"` is the first".to_owned()),
            (Some(name), _) if overlay.find(name).is_none() => {
                return Err(format!(
                    "node `{name}`: there are source-0 to source-{}, reflector-0 to reflector-{} and edge-0 to edge-{}",
                    self.sources - 1,
                    self.reflectors - 1,
                    self.edges - 1
                ));
            }
            _ => {}
        }
        if fault.at > TIME_MAX || fault.until.is_some_and(|until| until > TIME_MAX || until <= fault.at) {
            return Err(format!("at {}: must end later, by {TIME_MAX}", fault.at));
        }
        Ok(())
    }
}

impl Fault {
    /// Start and end time.
    pub(super) fn times(&self) -> (Instant, Option<Instant>) {
        (Instant::ZERO + self.at, self.until.map(|until| Instant::ZERO + until))
    }

    /// Whether both faults are of one kind at one node, without time between them. The end of the
    /// earlier fault would then also end the later fault.
    fn meets(&self, other: &Self) -> bool {
        let begins_within = |a: &Self, b: &Self| b.at >= a.at && a.until.is_none_or(|until| b.at <= until);
        (self.what, &self.node) == (other.what, &other.node)
            && (begins_within(self, other) || begins_within(other, self))
    }

    /// Message for a fault that meets an earlier fault in the list.
    fn overlap(&self, earlier: &Self) -> String {
        let whose = self.node.as_deref().unwrap_or("the controller");
        let end = earlier.until.map_or("the end of the run".to_owned(), |until| until.to_string());
        format!(
            "at {}: {whose} has this fault from {} to {end} already: join the two, or leave time between them",
            self.at, earlier.at
        )
    }
}

/// Resolves the settings against the network. See [`super::plan`].
pub(super) fn plan(
    workload: &SystemWorkload,
    network: &Network,
    field: &str,
) -> Result<ResolvedWorkload, PlanError> {
    let wrong = |name: &str, message: String| PlanError { field: format!("{field}.{name}"), message };
    let settings: Settings = workload.settings(field)?;
    let hosts = network.hosts().len();
    settings.check(hosts).map_err(|(name, message)| wrong(name, message))?;
    for host in 1..hosts as u16 {
        if !network.is_reachable(0, host) || !network.is_reachable(host, 0) {
            let name = |host: u16| &network.named_topology().site(network.hosts()[usize::from(host)]).name;
            let message = format!("live: no way between {} and {}, and back", name(0), name(host));
            return Err(wrong("kind", message));
        }
    }
    let delays = delays(network);
    let cost = |from: u16, to: u16| 1.0 + delays[usize::from(from)][usize::from(to)];
    let capacity = |from: u16, _: u16| {
        let is_source = usize::from(from) <= settings.sources as usize;
        let (given, children) = if is_source {
            (settings.source_capacity, settings.reflectors)
        } else {
            (settings.reflector_capacity, settings.edges)
        };
        given.unwrap_or_else(|| BitRate::bps(network.usable_rate(from).as_bps() / u64::from(children)))
    };
    let overlay = overlay(&settings, capacity, cost);
    for (index, fault) in settings.faults.iter().enumerate() {
        settings.check_fault(fault, &overlay).map_err(|message| wrong("faults", message))?;
        if let Some(other) = settings.faults[..index].iter().find(|other| other.meets(fault)) {
            return Err(wrong("faults", fault.overlap(other)));
        }
    }
    let edges: Vec<NodeId> = overlay.tier(Tier::Edge).collect();
    let groups = (settings.first_viewer_host()..hosts as u16).map(|host| {
        let delay = |edge: &NodeId| delays[usize::from(host_of(edge.index()))][usize::from(host)];
        let mut near: Vec<NodeId> = edges.clone();
        // Each host starts the list of equally near edges at a different edge.
        near.rotate_left(usize::from(host) % edges.len());
        near.sort_by(|a, b| delay(a).total_cmp(&delay(b)));
        near.into_iter().map(|edge| (edge, delay(&edge))).collect()
    });
    let groups = groups.collect();
    Ok(ResolvedWorkload { overlay, groups, settings })
}

/// Propagation delay between each pair of hosts, without queues, in ms.
fn delays(network: &Network) -> Vec<Vec<f64>> {
    let topology = network.topology();
    let lengths: Vec<u64> = topology.links().iter().map(|link| link.properties.delay.as_ps()).collect();
    let capacities: Vec<u64> =
        topology.links().iter().map(|link| link.properties.capacity.as_bps()).collect();
    let adjacency = Adjacency::new(topology);
    let hosts = network.hosts();
    let from = |host| {
        let all = distances(&adjacency, &capacities, &lengths, host);
        hosts.iter().map(|to| all[to.index()].unwrap_or_default() as f64 / 1e9).collect()
    };
    hosts.iter().map(|host| from(*host)).collect()
}
