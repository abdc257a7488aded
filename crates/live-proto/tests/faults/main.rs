//! Tests of nodes and a controller under faults, in virtual time.
//!
//! Each seed draws a network of three tiers, its channels and viewers, and the kinds of faults:
//! lost and late messages, links that are cut or lose capacity, nodes that crash or freeze, a split
//! network, a failed or frozen controller, lost updates, drained nodes. After every event,
//! [`World`] checks the invariants in `laws`. After all faults have ended, the network must return
//! to the plan. `testing::faults` explains how to run one or more seeds.
#![allow(clippy::disallowed_methods, reason = "a test reads what it is told")]

mod changes;
mod degraded;
mod laws;
mod planner;
mod viewers;
mod world;

use anabranch_testing::faults::{self, ScheduleEnd};
use world::World;

fn schedule(seed: u64) -> ScheduleEnd {
    World::new(seed).run()
}

#[test]
fn invariants_hold_and_plan_is_restored_after_faults() {
    faults::run(&[], schedule);
}

#[test]
fn equal_seeds_leave_equal_logs() {
    faults::run_twice(schedule);
}
