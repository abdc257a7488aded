//! Plans of several simultaneous transfers, by the name of a scheme: each alone, or all together.

use super::planner::UnknownScheme;
use super::{JointRequest, Plan, PlanError, Planner, Request, Scheme, together};
use anabranch_graph::Topology;
use anabranch_units::{BitRate, SiteId};

/// A transfer of a workload.
#[derive(Clone, Debug)]
pub struct DrawnTransfer {
    /// The site that has the file.
    pub source: SiteId,
    /// The destinations.
    pub destinations: Vec<SiteId>,
}

/// Name of the scheme `auto` with a controller that plans all transfers together.
pub const JOINT: &str = "joint";

/// Why there are no plans for the name of a scheme.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum SchemeError {
    /// No scheme has this name.
    Unknown(UnknownScheme),
    /// The planner's error.
    Plan(PlanError),
}

impl std::fmt::Display for SchemeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unknown(error) => error.fmt(f),
            Self::Plan(error) => error.fmt(f),
        }
    }
}
impl std::error::Error for SchemeError {}

impl From<UnknownScheme> for SchemeError {
    fn from(error: UnknownScheme) -> Self {
        Self::Unknown(error)
    }
}
impl From<PlanError> for SchemeError {
    fn from(error: PlanError) -> Self {
        Self::Plan(error)
    }
}

/// The plans of all transfers, each with its number of coding flows.
///
/// Errors: an unknown scheme, or an error of its planner.
pub fn plans(
    topology: &Topology,
    drawn: &[DrawnTransfer],
    scheme: &str,
) -> Result<(Vec<Plan>, Vec<usize>), SchemeError> {
    if scheme != JOINT {
        return drawn.iter().map(|d| plan(topology, d, scheme)).collect();
    }
    let ask = |d: &DrawnTransfer| Request::new(topology, d.source, d.destinations.clone());
    let requests: Vec<JointRequest<'_>> =
        drawn.iter().map(|d| JointRequest { request: ask(d), scheme: None }).collect();
    Ok(together(&requests, &[])?.into_iter().map(|p| (p.plan, p.figures.coding_flows)).collect())
}

/// A transfer's plan, with its number of coding flows.
fn plan(topology: &Topology, drawn: &DrawnTransfer, scheme: &str) -> Result<(Plan, usize), SchemeError> {
    let planner = Planner::new(Request::new(topology, drawn.source, drawn.destinations.clone()))?;
    let planned = match scheme {
        "auto" => planner.auto()?.chosen,
        _ => planner.plan(scheme.parse::<Scheme>()?)?,
    };
    Ok((planned.plan, planned.figures.coding_flows))
}

/// Returns the same plans with groups that fill the capacity that each plan leaves.
///
/// Errors: an error of a planner.
pub fn filled(topology: &Topology, plans: &[Plan]) -> Result<Vec<Plan>, PlanError> {
    let fill = |plan: &Plan| -> Result<Plan, PlanError> {
        Ok(Planner::new(Request::new(topology, plan.source, plan.destinations.clone()))?.fill(plan))
    };
    plans.iter().map(fill).collect()
}

/// Maximum rate of each source: the planned rate if the transfers were planned together.
pub fn ceilings(plans: &[Plan], scheme: &str) -> Vec<Option<BitRate>> {
    plans.iter().map(|plan| (scheme == JOINT).then_some(plan.rate)).collect()
}
