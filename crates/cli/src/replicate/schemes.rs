//! Plans of several transfers at the same time, by the name of a scheme: each alone, or all together.

use anabranch_graph::Topology;
use anabranch_replicate::plan::{JointRequest, Plan, Planner, Request, Scheme, together};
use anabranch_units::{BitRate, SiteId};

/// One of several transfers.
#[derive(Clone, Debug)]
pub struct Drawn {
    /// Who has the file.
    pub source: SiteId,
    /// Who wants it.
    pub destinations: Vec<SiteId>,
}

/// `auto`, with a controller that plans all transfers together.
pub const JOINT: &str = "joint";

/// The plans of all, and of each how many flows code.
///
/// Errors: an unknown scheme, or what its planner says.
pub fn plans(topology: &Topology, drawn: &[Drawn], scheme: &str) -> anyhow::Result<(Vec<Plan>, Vec<usize>)> {
    if scheme != JOINT {
        return drawn.iter().map(|d| plan(topology, d, scheme)).collect();
    }
    let ask = |d: &Drawn| Request::new(topology, d.source, d.destinations.clone());
    let requests: Vec<JointRequest<'_>> =
        drawn.iter().map(|d| JointRequest { request: ask(d), scheme: None }).collect();
    Ok(together(&requests, &[])?.into_iter().map(|p| (p.plan, p.figures.coding_flows)).collect())
}

/// A transfer's plan, with what its planner knows.
fn plan(topology: &Topology, drawn: &Drawn, scheme: &str) -> anyhow::Result<(Plan, usize)> {
    let planner = Planner::new(Request::new(topology, drawn.source, drawn.destinations.clone()))?;
    let planned = match scheme {
        "auto" => planner.auto()?.chosen,
        _ => planner.plan(scheme.parse::<Scheme>()?)?,
    };
    Ok((planned.plan, planned.figures.coding_flows))
}

/// The same plans, with flows that fill what each leaves of the links.
///
/// Errors: what a planner says.
pub fn filled(topology: &Topology, plans: &[Plan]) -> anyhow::Result<Vec<Plan>> {
    let fill = |plan: &Plan| -> anyhow::Result<Plan> {
        Ok(Planner::new(Request::new(topology, plan.source, plan.destinations.clone()))?.fill(plan))
    };
    plans.iter().map(fill).collect()
}

/// How fast each source may send: no faster than planned where all were planned together.
pub fn ceilings(plans: &[Plan], scheme: &str) -> Vec<Option<BitRate>> {
    plans.iter().map(|plan| (scheme == JOINT).then_some(plan.rate)).collect()
}
