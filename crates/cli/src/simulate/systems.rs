//! The systems that scenarios may run, by the kind of their workloads.

use anabranch_sim::scenario::System;
use anabranch_sim::system::{SystemPlan, Systems};
use anabranch_sim::{Network, PlanError};

/// All of them.
pub(crate) struct Family;

impl Systems for Family {
    fn plan(
        &self,
        workload: &System,
        network: &Network,
        field: &str,
    ) -> Result<Box<dyn SystemPlan>, PlanError> {
        match workload.kind.as_str() {
            "replicate" => Ok(Box::new(crate::replicate::simulated::plan(workload, network, field)?)),
            "gather" => Ok(Box::new(crate::gather::simulated::plan(workload, network, field)?)),
            "shuffle" => Ok(Box::new(crate::shuffle::simulated::plan(workload, network, field)?)),
            other => {
                let message = format!("{other}: cannot be simulated yet");
                Err(PlanError { field: format!("{field}.kind"), message })
            }
        }
    }
}
