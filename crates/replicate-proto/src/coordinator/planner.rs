//! The interface through which a coordinator plans transfers, and the planner of the
//! [`plan`](crate::plan) module.
//!
//! Read [`Planner`] first.

use super::SchemeChoice;
use crate::plan::{self, JointRequest, Plan, PlanError, Request, Scheme};
use anabranch_graph::Topology;
use anabranch_units::{LinkId, SiteId};

/// A request to a planner.
#[derive(Clone, Debug)]
pub struct PlanRequest<'a> {
    /// The network.
    pub topology: &'a Topology,
    /// The site that holds the file.
    pub source: SiteId,
    /// The destinations, ascending; never empty.
    pub destinations: &'a [SiteId],
    /// Sites that must not be used, ascending; never the source or one of `destinations`.
    pub avoid_sites: &'a [SiteId],
    /// Links that must not be used, ascending.
    pub avoid_links: &'a [LinkId],
    /// The scheme.
    pub scheme: SchemeChoice,
    /// Whether the plan may have groups that fill the capacity left by other groups.
    pub fill: bool,
}

/// Plans a transfer on the network. Any `Fn(&PlanRequest<'_>) -> Result<Plan, String>` is a
/// planner.
pub trait Planner {
    /// A plan that serves all destinations of the request, as if no other transfer ran.
    ///
    /// Errors: one line with the reason why there is no plan.
    fn plan(&self, request: &PlanRequest<'_>) -> Result<Plan, String>;

    /// Plans `requests` jointly. `others` are the unchanged plans of transfers that run beside
    /// them. Returns one plan per request, in the order of `requests`. The default implementation
    /// plans each request as if no other transfer ran.
    fn plan_together(&self, requests: &[PlanRequest<'_>], others: &[&Plan]) -> Vec<Result<Plan, String>> {
        let _ = others;
        requests.iter().map(|r| self.plan(r)).collect()
    }
}

impl<F: Fn(&PlanRequest<'_>) -> Result<Plan, String>> Planner for F {
    fn plan(&self, request: &PlanRequest<'_>) -> Result<Plan, String> {
        self(request)
    }
}

/// The planner of the [`plan`](crate::plan) module, with its default options.
#[derive(Copy, Clone, Debug, Default)]
pub struct DefaultPlanner;

impl Planner for DefaultPlanner {
    fn plan(&self, request: &PlanRequest<'_>) -> Result<Plan, String> {
        let planner = plan::Planner::new(asked(request)).map_err(|e| e.to_string())?;
        let plan = match scheme(request.scheme) {
            None => planner.auto().map(|choice| choice.chosen.plan),
            Some(scheme) => planner.plan(scheme).map(|planned| planned.plan),
        };
        plan.map(|plan| if request.fill { planner.fill(&plan) } else { plan }).map_err(|e| e.to_string())
    }

    fn plan_together(&self, requests: &[PlanRequest<'_>], others: &[&Plan]) -> Vec<Result<Plan, String>> {
        // A request without a plan must not affect the plans of the others.
        let able: Vec<Result<(), PlanError>> =
            requests.iter().map(|r| plan::Planner::new(asked(r)).map(|_| ())).collect();
        let joint: Vec<JointRequest<'_>> = requests
            .iter()
            .zip(&able)
            .filter(|(_, able)| able.is_ok())
            .map(|(r, _)| JointRequest { request: asked(r), scheme: scheme(r.scheme) })
            .collect();
        let mut found = plan::together(&joint, others).map(Vec::into_iter);
        let next = |able: Result<(), PlanError>| {
            able.map_err(|e| e.to_string())?;
            match &mut found {
                Ok(plans) => Ok(plans.next().expect("one plan for each request").plan),
                Err(error) => Err(error.to_string()),
            }
        };
        let fill = |(found, r): (Result<Plan, String>, &PlanRequest<'_>)| {
            let plan = found?;
            match plan::Planner::new(asked(r)) {
                Ok(planner) if r.fill => Ok(planner.fill(&plan)),
                _ => Ok(plan),
            }
        };
        able.into_iter().map(next).zip(requests).map(fill).collect()
    }
}

fn asked<'a>(request: &PlanRequest<'a>) -> Request<'a> {
    Request {
        avoid_sites: request.avoid_sites.to_vec(),
        avoid_links: request.avoid_links.to_vec(),
        ..Request::new(request.topology, request.source, request.destinations)
    }
}

fn scheme(choice: SchemeChoice) -> Option<Scheme> {
    match choice {
        SchemeChoice::Auto => None,
        SchemeChoice::Coded => Some(Scheme::Coded),
        SchemeChoice::Packed => Some(Scheme::Packed),
        SchemeChoice::Steiner => Some(Scheme::Steiner),
        SchemeChoice::SteinerStoreAndForward => Some(Scheme::SteinerStoreAndForward),
        SchemeChoice::SteinerOneTree => Some(Scheme::SteinerOneTree),
        SchemeChoice::MultiPath => Some(Scheme::MultiPath),
        SchemeChoice::SinglePath => Some(Scheme::SinglePath),
    }
}
