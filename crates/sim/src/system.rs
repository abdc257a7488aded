//! Systems in scenarios: the traits by which a system's workload is planned and run.
//!
//! This room does not know the systems. A workload of an unknown kind keeps its settings as parsed,
//! and the [`System`] of that kind builds machines from them. A system may also provide a [`Layer`]
//! between the machines of other workloads and the network. Leaves out: the machines' interface
//! ([`crate::traffic::App`]).

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
    /// Name in workloads: `kind = "gather"`.
    fn kind(&self) -> &'static str;
    /// Schema of the settings of the system's workloads, for the reference of scenarios. `None` for
    /// a system without workloads.
    fn settings(&self) -> Option<schemars::Schema> {
        None
    }
    /// Creates the plan of `workload` on `network`. `field` names the workload in messages.
    ///
    /// Errors: a setting that is unknown or out of range, with its path below `field`.
    fn plan(
        &self,
        workload: &SystemWorkload,
        network: &Network,
        field: &str,
    ) -> Result<Box<dyn SystemPlan>, PlanError>;
    /// Creates the control of the hybrid switch that `spec` describes, with a schedule that follows
    /// demand, for `racks` racks. `None` for a system without schedules.
    ///
    /// Errors: an unknown scheduler or impossible times, as the setting with its location.
    fn circuits(&self, _spec: &CircuitSpec, _racks: u16) -> Option<Result<Box<dyn CircuitPlan>, PlanError>> {
        None
    }
}

/// A resolved workload of a system, from which runs start.
pub trait SystemPlan: std::fmt::Debug + Send + Sync {
    /// Creates the system's application in a run with this seed.
    ///
    /// Errors: failures of the system's random draw, in one line.
    fn app(&self, network: &Network, seed: Seed) -> Result<Box<dyn App>, PlanError>;
    /// Creates the layer between the network and the machines of all hosts and workloads, in a run
    /// with this seed. At most one workload of a scenario may have a layer. The layer's counters
    /// are that workload's figures.
    fn layer(&self, _network: &Network, _seed: Seed) -> Option<Box<dyn Layer<Msg>>> {
        None
    }
    /// Returns true if the workload has a layer.
    fn has_layer(&self) -> bool {
        false
    }
    /// Returns true if the workload ends by itself.
    fn has_end(&self) -> bool {
        true
    }
    /// Strict priorities of the workload's packets.
    fn priorities(&self) -> &[u8] {
        &[1]
    }
}
