//! `spray` in the simulator: a workload without traffic, whose layer carries the TCP of all other
//! workloads.
//!
//! The layer has one [`Host`](crate::Host) for each host, the same state machine as in real hosts.
//! Segments have no bytes here: a parity refers to the segments of its unit, and is as long as the
//! longest segment. Idealised compared with real hosts: coding takes no time, and flows know their
//! size if the scenario says so. Other host-based methods of spreading traffic are schemes of the
//! same workload, one file each. Read [`Spray`] first, then `layer`.

mod layer;
mod settings;
mod spreading;

pub use settings::plan;

use crate::Config;
use crate::ways::SpreaderKind;
use anabranch_endpoint::Instant;
use anabranch_fabric::Layer;
use anabranch_sim::scenario::SystemWorkload;
use anabranch_sim::system::{System, SystemPlan};
use anabranch_sim::traffic::{App, AppCx};
use anabranch_sim::{Msg, Network, PlanError};
use anabranch_units::Seed;
use anabranch_units::text::known;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `spray` in scenarios.
#[derive(Copy, Clone, Debug)]
pub struct SimulatedSystem;

impl System for SimulatedSystem {
    fn kind(&self) -> &'static str {
        "spray"
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
        Ok(Box::new(settings::plan(workload, network, field)?))
    }
}

/// A `spray` workload, resolved against its network.
#[derive(Clone, Debug)]
pub struct Spray {
    scheme: Scheme,
    config: Config,
    header_bytes: u32,
    /// Number of paths from an agent to each other host.
    ways: u16,
    /// True if packets of short flows have the first strict priority.
    short_first: bool,
}

/// The hosts' part in spreading traffic, besides the switches' part.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(extend("enum" = Self::all().map(Self::word).collect::<Vec<_>>()))]
enum Scheme {
    /// Short flows are coded, and packets carry the class of their flow.
    Caps,
    /// Packets carry the class of their flow.
    Classes,
    /// As `Classes`, and packets of short flows have the first strict priority.
    Priority,
    /// Flows are cut into cells of 64 KiB with separate paths, and are put in order at the
    /// receiver.
    Presto,
    /// The scheme of real hosts: short flows are coded, and hosts choose paths by header fields
    /// that the switches hash.
    Agent,
    /// Hosts choose paths by header fields, without coding.
    Ways(SpreaderKind),
}

impl Scheme {
    fn all() -> impl Iterator<Item = Self> {
        let ways = SpreaderKind::ALL.iter().map(|kind| Self::Ways(*kind));
        [Self::Caps, Self::Classes, Self::Priority, Self::Presto, Self::Agent].into_iter().chain(ways)
    }
    const fn word(self) -> &'static str {
        match self {
            Self::Caps => "caps",
            Self::Classes => "classes",
            Self::Priority => "priority",
            Self::Presto => "presto",
            Self::Agent => "agent",
            Self::Ways(kind) => kind.word(),
        }
    }
}

impl From<Scheme> for String {
    fn from(scheme: Scheme) -> Self {
        scheme.word().to_owned()
    }
}

impl TryFrom<String> for Scheme {
    type Error = String;
    fn try_from(word: String) -> Result<Self, String> {
        let found = Self::all().find(|scheme| scheme.word() == word);
        found
            .ok_or_else(|| format!("`{word}`: no such scheme: {}", known(&word, Self::all().map(Self::word))))
    }
}

impl Spray {
    /// Returns true for `Scheme::Agent`, the scheme of real hosts.
    pub fn is_agent(&self) -> bool {
        self.scheme == Scheme::Agent
    }
    /// Settings of each host.
    pub const fn config(&self) -> &Config {
        &self.config
    }
    /// Number of paths from an agent to each other host.
    pub const fn ways(&self) -> u16 {
        self.ways
    }
}

impl SystemPlan for Spray {
    fn app(&self, _: &Network, _: Seed) -> Result<Box<dyn App>, PlanError> {
        Ok(Box::new(IdleApp))
    }
    fn layer(&self, network: &Network, seed: Seed) -> Option<Box<dyn Layer<Msg>>> {
        Some(match self.scheme {
            Scheme::Ways(kind) => Box::new(spreading::SpreadLayer::new(kind, seed)),
            _ => Box::new(layer::SprayLayer::new(self, network.hosts().len(), seed)),
        })
    }
    fn has_layer(&self) -> bool {
        true
    }
    fn priorities(&self) -> &[u8] {
        if self.short_first { &[0, 1] } else { &[1] }
    }
}

/// An application without work.
#[derive(Debug)]
struct IdleApp;

impl App for IdleApp {
    fn start(&mut self, _: &mut AppCx<'_, '_>) {}
    fn on_timer(&mut self, _: &mut AppCx<'_, '_>, _: u16) {}
    fn ended_at(&self) -> Option<Instant> {
        Some(Instant::ZERO)
    }
}

#[cfg(test)]
mod tests;
