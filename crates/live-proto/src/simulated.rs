//! `live` in the simulator: the machines of the controller and the nodes communicate over simulated
//! TCP, as a workload of a scenario.
//!
//! The first host is the controller's. Each source, reflector and edge has a host, and viewers
//! share the remaining hosts. All reflectors are children of all sources, and all edges of all
//! reflectors. Control messages have the size of their JSON. Parts are transferred as by the relay:
//! one upstream request for each part, and bytes are forwarded as they arrive. A group is the
//! viewers of one host. Its nearest edge is the edge with the shortest delay to the host. Links
//! fail by the scenario's `change`.
//!
//! Simpler than the real programs: plans take no time, TLS adds bytes but no round trips, and
//! viewers know the directory without DNS. Read [`ResolvedWorkload`] and `app` first.

mod app;
mod relay;
mod settings;
#[cfg(test)]
mod tests;
mod viewer;

use crate::network::{Link, Network as Overlay, Node, NodeId, Tier};
use anabranch_sim::scenario::SystemWorkload;
use anabranch_sim::system::{System, SystemPlan};
use anabranch_sim::traffic::App;
use anabranch_sim::{Network, PlanError};
use anabranch_units::{BitRate, Duration, Seed};

pub use settings::{Fault, FaultKind, Mode, Rule, Settings, host_of};

/// The kind `live` of workloads in scenarios.
#[derive(Copy, Clone, Debug)]
pub struct SimulatedSystem;

impl System for SimulatedSystem {
    fn kind(&self) -> &'static str {
        "live"
    }
    fn settings(&self) -> Option<schemars::Schema> {
        Some(schemars::schema_for!(settings::Settings))
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

/// Resolves a workload. Error messages call the workload `field`.
///
/// Errors: a setting that is unknown or out of range; a network with too few hosts, or with hosts
/// that cannot reach each other.
pub fn plan(
    workload: &SystemWorkload,
    network: &Network,
    field: &str,
) -> Result<ResolvedWorkload, PlanError> {
    settings::plan(workload, network, field)
}

/// A viewer of a workload.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Viewer {
    /// Index of the viewer's group. A group is the viewers of one host.
    pub group: usize,
    /// Number of the viewer's channel.
    pub channel: u32,
    /// Time from the start of the run to the viewer's opening.
    pub opens_after: Duration,
}

/// A workload whose settings fit its network.
#[derive(Clone, Debug)]
pub struct ResolvedWorkload {
    settings: Settings,
    overlay: Overlay,
    /// Edges of each group with their costs, the nearest first.
    groups: Vec<Vec<(NodeId, f64)>>,
}

impl ResolvedWorkload {
    /// Settings of the workload.
    pub const fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Sources, reflectors and edges with their links.
    pub const fn overlay(&self) -> &Overlay {
        &self.overlay
    }

    /// Edges of each group with their costs, the nearest first.
    pub fn groups(&self) -> &[Vec<(NodeId, f64)>] {
        &self.groups
    }

    /// All viewers of a run with this seed.
    pub fn viewers(&self, seed: Seed) -> impl Iterator<Item = Viewer> + use<'_> {
        let (settings, groups) = (&self.settings, self.groups.len());
        let mut random = seed.stream("live-viewers", 0);
        (0..settings.viewers).map(move |number| Viewer {
            opens_after: Duration::from_ps(random.below(settings.arrivals.as_ps() + 1)),
            channel: number % settings.channels,
            // With enough viewers every group watches every channel.
            group: (number + number / settings.channels) as usize % groups,
        })
    }
}

impl SystemPlan for ResolvedWorkload {
    fn app(&self, _: &Network, seed: Seed) -> Result<Box<dyn App>, PlanError> {
        Ok(Box::new(app::LiveApp::new(self, seed)))
    }
    fn has_end(&self) -> bool {
        false
    }
    fn priorities(&self) -> &[u8] {
        &[1]
    }
}

/// Creates the overlay of a workload. `capacity` returns the declared capacity of a link between
/// two hosts, and `cost` its cost.
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
