//! Settings of a `broker` workload in a scenario, and their validation against its network.

use super::ResolvedWorkload;
use crate::designs;
use crate::limits::{check_price, check_weight};
use anabranch_graph::{Adjacency, distances};
use anabranch_media::bitrates::segment_bytes;
use anabranch_sim::scenario::SystemWorkload;
use anabranch_sim::{Network, PlanError};
use anabranch_units::{BitRate, ByteCount, Duration, Instant, Seed};
use schemars::JsonSchema;
use serde::Deserialize;

/// Maximum number of networks.
const NETWORKS_MAX: u32 = 1_000;
/// Maximum number of clusters of a network.
const CLUSTERS_MAX: u32 = 1_000;
/// Maximum number of players.
const PLAYERS_MAX: u32 = 10_000;
/// Maximum of all durations and times in the settings.
const TIME_MAX: Duration = Duration::from_secs(100_000);

/// A workload's settings. Hosts are assigned in order: one to the broker, one to each cluster, and
/// the remaining ones to players.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Design, as in `broker serve --design`.
    pub design: String,
    /// Number of networks.
    pub networks: u32,
    /// Number of clusters of each network.
    pub clusters: u32,
    /// Number of players.
    pub players: u32,
    /// Bitrate of a player.
    pub bitrate: BitRate,
    /// Playback time of a segment.
    pub segment: Duration,
    /// Playback time of a full buffer.
    pub buffer: Duration,
    /// Interval between two steering requests of a player.
    pub ttl: Duration,
    /// Interval between two rounds.
    pub every: Duration,
    /// Time for networks to bid.
    pub bids_within: Duration,
    /// Silence after which an agent counts as disconnected.
    pub silent_after: Duration,
    /// Capacity that a cluster announces. Default: nine tenths of the capacity of its host's links.
    pub capacity: Option<BitRate>,
    /// Cost per Mbit/s of each network. Missing values are drawn from 1 to 3 by the seed.
    pub costs: Vec<f64>,
    /// Weight of one unit of money, where one ms of round trip has weight 1.
    pub cost_weight: f64,
    /// Time after the start within which players arrive.
    pub arrivals: Duration,
    /// Faults to inject.
    pub faults: Vec<Fault>,
    /// Strict priority of segments.
    pub priority: u8,
    /// Strict priority of requests, bids and answers.
    pub control_priority: u8,
}

/// A temporary fault.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// Kind of the fault.
    pub what: FaultKind,
    /// Number of the network; none for the broker.
    pub network: Option<u32>,
    /// Time of the start.
    pub at: Duration,
    /// Time of the end. Default: the end of the run.
    pub until: Option<Duration>,
}

/// Kind of a fault.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum FaultKind {
    /// A network's agent is silent; its clusters keep serving.
    AgentDies,
    /// A network's agent bids after the deadline.
    AgentLate,
    /// A network's agent and clusters are silent.
    NetworkDies,
    /// The broker is silent; at the end a new broker starts with the last accepted decision.
    BrokerDies,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            design: "marketplace".to_owned(),
            networks: 10,
            clusters: 1,
            players: 200,
            bitrate: BitRate::mbps(3),
            segment: Duration::from_secs(2),
            buffer: Duration::from_secs(10),
            ttl: Duration::from_secs(10),
            every: Duration::from_secs(10),
            bids_within: Duration::from_secs(2),
            silent_after: Duration::from_secs(25),
            capacity: None,
            costs: Vec::new(),
            cost_weight: 1.0,
            arrivals: Duration::from_secs(5),
            faults: Vec::new(),
            priority: 1,
            control_priority: 1,
        }
    }
}

impl Fault {
    /// Returns true if the fault is active at a time.
    pub fn holds(&self, now: Instant) -> bool {
        now >= Instant::ZERO + self.at && self.until.is_none_or(|until| now < Instant::ZERO + until)
    }
}

impl Settings {
    /// Returns a setting that is set and has no counterpart in real programs, if there is one.
    pub fn only_simulated(&self) -> Option<&'static str> {
        let late = self.faults.iter().any(|fault| fault.what == FaultKind::AgentLate);
        let silent = self.silent_after != Self::default().silent_after;
        [(late, "faults with `agent-late`"), (silent, "silent_after")]
            .into_iter()
            .find_map(|(is_set, name)| is_set.then_some(name))
    }

    /// First host of the players, after the hosts of the broker and the networks.
    pub fn first_viewer(&self) -> u16 {
        (1 + self.networks * self.clusters) as u16
    }
    /// Host of a network's cluster.
    pub fn cluster_host(&self, network: u32, cluster: u32) -> u16 {
        (1 + network * self.clusters + cluster) as u16
    }
    /// Host of a player.
    pub fn player_host(&self, player: u32, hosts: u16) -> u16 {
        let first = self.first_viewer();
        first + (player % u32::from(hosts - first)) as u16
    }
    /// Cost per Mbit/s of each network.
    pub fn costs(&self, seed: Seed) -> Vec<f64> {
        let mut random = seed.stream("broker-costs", 0);
        let mut draw = || 1.0 + 2.0 * random.unit_f64();
        (0..self.networks as usize).map(|at| self.costs.get(at).copied().unwrap_or_else(&mut draw)).collect()
    }
    /// Size of a segment in bytes.
    pub fn segment_bytes(&self) -> u64 {
        segment_bytes(self.bitrate, self.segment)
    }

    fn check(&self, hosts: usize) -> Result<(), (&'static str, String)> {
        let within = |name, value: u32, most: u32| {
            let message = format!("{value}: must be 1 to {most}");
            if (1..=most).contains(&value) { Ok(()) } else { Err((name, message)) }
        };
        if designs::by_name(&self.design).is_none() {
            let names: Vec<String> = designs::all().iter().map(|design| design.name()).collect();
            return Err(("design", format!("`{}`: there are {}", self.design, names.join(", "))));
        }
        within("networks", self.networks, NETWORKS_MAX)?;
        within("clusters", self.clusters, CLUSTERS_MAX)?;
        within("players", self.players, PLAYERS_MAX)?;
        let needed = 1 + self.networks as usize * self.clusters as usize + 1;
        if hosts < needed {
            let message = format!(
                "{}: with {} clusters each they take {} hosts, and broker and players one each at least; the network has {hosts}",
                self.networks,
                self.clusters,
                needed - 2
            );
            return Err(("networks", message));
        }
        let times = [
            ("segment", self.segment, Duration::from_ms(100)),
            ("buffer", self.buffer, self.segment),
            ("ttl", self.ttl, Duration::from_secs(1)),
            ("every", self.every, Duration::from_ms(100)),
            ("bids_within", self.bids_within, Duration::from_ms(10)),
            ("silent_after", self.silent_after, Duration::from_secs(1)),
            ("arrivals", self.arrivals, Duration::ZERO),
        ];
        for (name, time, least) in times {
            if time < least || time > TIME_MAX {
                return Err((name, format!("{time}: must be {least} to {TIME_MAX}")));
            }
        }
        if self.segment_bytes() == 0 || ByteCount::new(self.segment_bytes()) > ByteCount::new(1 << 40) {
            return Err(("bitrate", format!("{}: a segment has to be 1 B to 1 TiB", self.bitrate)));
        }
        if self.costs.len() > self.networks as usize {
            return Err(("costs", format!("{}: there are {} networks", self.costs.len(), self.networks)));
        }
        for cost in &self.costs {
            check_price("cost", *cost).map_err(|error| ("costs", error.to_string()))?;
        }
        check_weight(self.cost_weight).map_err(|error| ("cost_weight", error.to_string()))?;
        for (name, priority) in [("priority", self.priority), ("control_priority", self.control_priority)] {
            if priority > 2 {
                return Err((name, format!("{priority}: must be 0 to 2")));
            }
        }
        for fault in &self.faults {
            let is_brokers = fault.what == FaultKind::BrokerDies;
            match fault.network {
                None if is_brokers => {}
                Some(network) if !is_brokers && network < self.networks => {}
                Some(network) if !is_brokers => {
                    let message = format!("network {network}: there are 0 to {}", self.networks - 1);
                    return Err(("faults", message));
                }
                Some(_) => {
                    return Err(("faults", "broker-dies: is no network's: leave `network` out".to_owned()));
                }
                None => return Err(("faults", "say which network: `network = 0` is the first".to_owned())),
            }
            if fault.at > TIME_MAX || fault.until.is_some_and(|until| until > TIME_MAX || until <= fault.at) {
                return Err(("faults", format!("at {}: has to end after that, by {TIME_MAX}", fault.at)));
            }
        }
        Ok(())
    }
}

/// Resolves a workload, which messages call `field`, against its network.
///
/// Errors: a setting that is unknown or out of range; a network with too few hosts, or without
/// paths between them.
pub fn plan(
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
            let message = format!("broker: no way between {} and {}, and back", name(0), name(host));
            return Err(wrong("kind", message));
        }
    }
    let scores = scores(&settings, network);
    let capacity = settings.capacity;
    let clusters = settings.networks * settings.clusters;
    let capacities = (0..clusters).map(|at| capacity.unwrap_or_else(|| network.usable_rate((at + 1) as u16)));
    let priorities = vec![settings.priority, settings.control_priority];
    Ok(ResolvedWorkload {
        capacities: capacities.collect(),
        scores,
        priorities,
        settings,
        hosts: hosts as u16,
    })
}

/// Round trip without queues in ms, by viewers' host and cluster.
fn scores(settings: &Settings, network: &Network) -> Vec<Vec<f64>> {
    let topology = network.topology();
    let lengths: Vec<u64> = topology.links().iter().map(|link| link.properties.delay.as_ps()).collect();
    let capacities: Vec<u64> =
        topology.links().iter().map(|link| link.properties.capacity.as_bps()).collect();
    let adjacency = Adjacency::new(topology);
    let from_clusters: Vec<_> = (1..settings.first_viewer())
        .map(|host| distances(&adjacency, &capacities, &lengths, network.hosts()[usize::from(host)]))
        .collect();
    let viewers = network.hosts().iter().skip(settings.first_viewer().into());
    let ms = |ps: Option<u64>| 2.0 * ps.unwrap_or_default() as f64 / 1e9;
    viewers.map(|site| from_clusters.iter().map(|from| ms(from[site.index()])).collect()).collect()
}
