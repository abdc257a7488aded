//! Tests of a whole system under faults, in virtual time: a coordinator, agents, programs' flows
//! and a network with loss and delay.
//!
//! Each seed draws the kinds and rates of faults: lost, late and reordered messages, partitions,
//! crashes of agents (with or without their guards) and of the coordinator, restarts from the
//! agents' state files, frozen agents, clocks that jump, limits that cannot be set or lifted, full
//! disks. After every event [`World`] checks the invariants. At the end all faults stop, and every
//! coflow must end. `testing::faults` explains how to run one seed, or more.
#![allow(clippy::disallowed_methods, reason = "a test reads what it is told")]

mod host;
mod service;
mod world;

use anabranch_testing::faults::{self, ScheduleEnd};
use world::World;

fn schedule(seed: u64) -> ScheduleEnd {
    World::new(seed).run()
}

#[test]
fn limits_are_lifted_and_flows_complete_after_faults() {
    faults::run(&[], schedule);
}

#[test]
fn same_seed_gives_the_same_log() {
    faults::run_twice(schedule);
}
