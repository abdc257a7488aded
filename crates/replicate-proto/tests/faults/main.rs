//! Whole systems under faults, in virtual time: the coordinator, daemons and the machines of their
//! attempts. The network delays, loses and cuts; disks are slow or full or lose unsynced bytes.
//!
//! A schedule is drawn from its number, and repeats exactly. First faults occur at random; then all
//! of them are healed, and every transfer must end. After every event no name holds a file that was
//! not sent there, and memory is within its bound. At the end all files that were reported as
//! delivered exist, every reachable destination was served, and no attempt is left.
//! `testing::faults` describes how to run one seed, or more.
//!
//! `capacities` has the same world without faults, on a network that is declared wrong.
//!
//! Leaves out: the service around the machines (TLS, files, threads); `network`, `disk`, `site` and
//! `controller` are models of it.
#![allow(clippy::disallowed_methods, reason = "a test reads what it is told")]

mod capacities;
mod checks;
mod controller;
mod disk;
mod network;
mod requests;
mod runner;
mod site;
mod world;

use anabranch_testing::faults::{self, ScheduleEnd};
use world::World;

/// Schedules that failed once. 1778: a request from before a registration acknowledged commands of
/// a newer queue. 3779: an attempt that ended before its audit was abandoned without it, and so
/// were the next ones.
const KEPT: [u64; 2] = [1778, 3779];

fn schedule(seed: u64) -> ScheduleEnd {
    World::new(seed).run()
}

#[test]
fn after_any_failures_files_are_right_and_transfers_end() {
    faults::run(&KEPT, schedule);
}

#[test]
fn the_same_seed_leaves_the_same_log() {
    faults::run_twice(schedule);
}
