//! Whole systems under faults, in virtual time: a coordinator, agents, programs' flows and a network that loses and delays.
//!
//! Each seed draws which faults there are and how many: lost, late and overtaken messages, partitions, crashes of agents (with their
//! guards or without) and of the coordinator, restarts from the agents' state files, frozen agents, clocks that jump, limits that
//! cannot be set or lifted, full disks. After every event [`World`] checks the invariants. At the end all faults are
//! healed, and every coflow must end. `testing::faults` says how to run one seed, or more.
#![allow(clippy::disallowed_methods, reason = "a test reads what it is told")]

mod host;
mod service;
mod world;

use anabranch_testing::faults::{self, Ended};
use world::World;

fn schedule(seed: u64) -> Ended {
    World::new(seed).run()
}

#[test]
fn whatever_fails_limits_are_lifted_in_time_and_all_flows_come_to_their_end() {
    faults::run(&[], schedule);
}

#[test]
fn the_same_seed_leaves_the_same_log() {
    faults::run_twice(schedule);
}
