//! `live` in the simulator: a scenario's workload in which the machines of the controller and the nodes
//! meet over simulated TCP.
//!
//! The controller has the first host, then each source, reflector and edge has one, and viewers share
//! the others. All reflectors are children of all sources, and all edges of all reflectors. Control
//! messages take the bytes that they take in JSON. Parts travel as in the relay: one upstream request
//! for each part, and bytes are passed on as they arrive. A group is the viewers of one host, and its
//! nearest edge is the one with the shortest delay to the host. Links fail by the scenario's `change`.
//!
//! Ideal, beside the programs: plans take no time, TLS takes bytes and no round trips, and viewers know
//! the directory without DNS. Read [`Stage`] and `playing` first.

mod playing;
mod relay;
mod settings;
#[cfg(test)]
mod tests;
mod viewing;

use crate::network::{Link, Network as Overlay, Node, NodeId, Tier};
use anabranch_sim::scenario::SystemWorkload;
use anabranch_sim::system::{System, SystemPlan};
use anabranch_sim::traffic::App;
use anabranch_sim::{Network, PlanError};
use anabranch_units::{BitRate, Duration, Seed};

pub use settings::{Fault, FaultKind, Mode, Settings, host_of};

/// `live` in scenarios.
#[derive(Copy, Clone, Debug)]
pub struct Simulated;

impl System for Simulated {
    fn kind(&self) -> &'static str {
        "live"
    }
    fn plan(
        &self,
        workload: &SystemWorkload,
        network: &Network,
        field: &str,
    ) -> Result<Box<dyn SystemPlan>, PlanError> {
        Ok(Box::new(plan(workload, network, field)?))
    }
}

/// The stage of a workload, which messages call `field`.
///
/// Errors: a setting that is unknown or out of range; a network with too few hosts, or without ways
/// between them.
pub fn plan(workload: &SystemWorkload, network: &Network, field: &str) -> Result<Stage, PlanError> {
    settings::plan(workload, network, field)
}

/// A viewer of a workload.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Viewer {
    /// Index of its group, the viewers of one host.
    pub group: usize,
    /// Number of its channel.
    pub channel: u32,
    /// Time from the begin of the run to its opening.
    pub opens_after: Duration,
}

/// A workload whose settings fit its network.
#[derive(Clone, Debug)]
pub struct Stage {
    settings: Settings,
    overlay: Overlay,
    /// Edges of each group with their prices, the nearest first.
    groups: Vec<Vec<(NodeId, f64)>>,
}

impl Stage {
    /// Settings of the workload.
    pub const fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Sources, reflectors and edges with their links.
    pub const fn overlay(&self) -> &Overlay {
        &self.overlay
    }

    /// Edges of each group with their prices, the nearest first.
    pub fn groups(&self) -> &[Vec<(NodeId, f64)>] {
        &self.groups
    }

    /// All viewers, for a run with this seed.
    pub fn viewers(&self, seed: Seed) -> impl Iterator<Item = Viewer> + use<'_> {
        let (settings, groups) = (&self.settings, self.groups.len());
        let mut random = seed.stream("live-viewers", 0);
        (0..settings.viewers).map(move |number| Viewer {
            opens_after: Duration::from_ps(random.below(settings.arrivals.as_ps() + 1)),
            channel: number % settings.channels,
            // Every group gets to every channel in the end.
            group: (number + number / settings.channels) as usize % groups,
        })
    }
}

impl SystemPlan for Stage {
    fn app(&self, _: &Network, seed: Seed) -> Result<Box<dyn App>, PlanError> {
        Ok(Box::new(playing::Playing::new(self, seed)))
    }
    fn has_end(&self) -> bool {
        false
    }
    fn priorities(&self) -> &[u8] {
        &[1]
    }
}

/// The overlay of a workload. `capacity` is the declared capacity of a link between two hosts, and
/// `cost` its price.
fn overlay(
    settings: &Settings,
    capacity: impl Fn(u16, u16) -> BitRate,
    cost: impl Fn(u16, u16) -> f64,
) -> Overlay {
    let counts = [
        ("source", Tier::Source, settings.sources),
        ("reflector", Tier::Reflector, settings.reflectors),
        ("edge", Tier::Edge, settings.edges),
    ];
    let nodes: Vec<Node> = counts
        .into_iter()
        .flat_map(|(word, tier, count)| {
            (0..count).map(move |number| Node { name: format!("{word}-{number}"), tier })
        })
        .collect();
    let all = &nodes;
    let ids = |tier: Tier| (0..all.len()).filter(move |at| all[*at].tier == tier);
    let pairs = |from: Tier, to: Tier| ids(from).flat_map(move |from| ids(to).map(move |to| (from, to)));
    let down = pairs(Tier::Source, Tier::Reflector).chain(pairs(Tier::Reflector, Tier::Edge));
    let links = down.map(|(from, to)| {
        let (from_host, to_host) = (settings::host_of(from), settings::host_of(to));
        let (capacity, cost) = (capacity(from_host, to_host), cost(from_host, to_host));
        Link { from: NodeId(from as u32), to: NodeId(to as u32), capacity, cost }
    });
    let links = links.collect();
    Overlay::new(nodes, links).expect("links lead down the tiers, and settings bound their number")
}
