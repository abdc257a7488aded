//! Whole runs: laws that hold for every scenario, and theory that some must agree with.

mod laws;
mod theory;

use anabranch_sim::scenario::{Scenario, read};
use anabranch_sim::{Outcome, Plan, Simulation};

/// The only scenario of `text`.
fn scenario(text: &str) -> Scenario {
    let points = read("test", text, &[]).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(points.len(), 1);
    points[0].scenario.clone()
}

/// The plan of `text`, whose topology file, if it names one, is `topology`.
fn plan_with(text: &str, topology: &str) -> Plan {
    let read = |_: &str| Ok(topology.to_owned());
    Plan::new(scenario(text), &read).unwrap_or_else(|error| panic!("{error}"))
}

fn plan(text: &str) -> Plan {
    plan_with(text, "")
}

/// One run to its end.
fn run(plan: &Plan) -> Outcome {
    Simulation::<anabranch_fabric::QuadHeap>::new(plan, 0).run()
}
