//! Where a scenario's workload is a system's: who knows systems joins them to the simulator through these traits.
//!
//! This room is a driver and knows no system. A workload whose kind is in [`KINDS`] keeps its settings as they were read,
//! and a [`Systems`] makes machines of them. Leaves out: what the machines may do ([`crate::traffic::App`]).

use crate::network::Network;
use crate::plan::PlanError;
use crate::scenario::System;
use crate::traffic::App;
use anabranch_units::Seed;

/// The kinds of workloads that are systems'.
pub const KINDS: &[&str] = &["replicate", "gather", "shuffle"];

/// Who knows systems.
pub trait Systems {
    /// What `workload`, which messages call `field`, is to do on `network`.
    ///
    /// Errors: a setting that is unknown or cannot be, with its place below `field`.
    fn plan(
        &self,
        workload: &System,
        network: &Network,
        field: &str,
    ) -> Result<Box<dyn SystemPlan>, PlanError>;
}

/// A system's workload, looked up: runs start from it.
pub trait SystemPlan: std::fmt::Debug + Send + Sync {
    /// What it does in a run with this seed.
    ///
    /// Errors: what only the draw shows to be impossible, in one line.
    fn app(&self, network: &Network, seed: Seed) -> Result<Box<dyn App>, PlanError>;
    /// Whether it ends by itself.
    fn has_end(&self) -> bool;
    /// The strict priorities that its packets have.
    fn priorities(&self) -> &[u8];
}

/// Nobody who knows any.
#[derive(Copy, Clone, Debug)]
pub(crate) struct NoSystems;

impl Systems for NoSystems {
    fn plan(&self, workload: &System, _: &Network, field: &str) -> Result<Box<dyn SystemPlan>, PlanError> {
        let message = format!("{}: a system: only `anabranch simulate` runs it", workload.kind);
        Err(PlanError { field: format!("{field}.kind"), message })
    }
}
