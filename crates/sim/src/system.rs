//! Systems in scenarios: the traits by which a system's workload is planned and run.
//!
//! This room knows no system. A workload of a kind that this room does not have keeps its settings as they were read, and
//! the [`System`] of that kind makes machines of these settings. A system may also stand between the other workloads' machines and the
//! network, as a [`Layer`]. Leaves out: the machines' interface ([`crate::traffic::App`]).

use crate::circuits::CircuitPlan;
use crate::end::Msg;
use crate::error::PlanError;
use crate::network::Network;
use crate::scenario::{CircuitSpec, SystemWorkload};
use crate::traffic::App;
use anabranch_fabric::Layer;
use anabranch_units::Seed;

/// A system that scenarios may run.
pub trait System: Sync {
    /// What workloads call it: `kind = "gather"`.
    fn kind(&self) -> &'static str;
    /// What `workload`, which messages call `field`, is to do on `network`.
    ///
    /// Errors: a setting that is unknown or cannot be, with its place below `field`.
    fn plan(
        &self,
        workload: &SystemWorkload,
        network: &Network,
        field: &str,
    ) -> Result<Box<dyn SystemPlan>, PlanError>;
    /// The control of the hybrid switch that `spec` describes, with a schedule that follows demand, for `racks` racks. `None` in
    /// a system without schedules.
    ///
    /// Errors: an unknown scheduler, impossible times; the setting with its place.
    fn circuits(&self, _spec: &CircuitSpec, _racks: u16) -> Option<Result<Box<dyn CircuitPlan>, PlanError>> {
        None
    }
}

/// A system's workload, looked up: runs start from it.
pub trait SystemPlan: std::fmt::Debug + Send + Sync {
    /// What it does in a run with this seed.
    ///
    /// Errors: what only the draw shows to be impossible, in one line.
    fn app(&self, network: &Network, seed: Seed) -> Result<Box<dyn App>, PlanError>;
    /// What stands between all hosts' machines and the network in a run with this seed, whichever workload they belong to. One workload
    /// of a scenario may have such a layer; what it counts is that workload's figures.
    fn layer(&self, _network: &Network, _seed: Seed) -> Option<Box<dyn Layer<Msg>>> {
        None
    }
    /// Whether it has one.
    fn has_layer(&self) -> bool {
        false
    }
    /// Whether it ends by itself.
    fn has_end(&self) -> bool {
        true
    }
    /// The strict priorities that its packets have.
    fn priorities(&self) -> &[u8] {
        &[1]
    }
}
