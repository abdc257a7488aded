//! Whole systems under faults, in virtual time: the coordinator, and sites that are real [`Daemon`]s, over connections that
//! delay; processes crash and come back with what was durable.
//!
//! A schedule is drawn from its number, and repeats exactly. First faults come at random; then all that was down is brought back,
//! and every transfer has to end. After every step no name may hold what nobody sent there; at the end what was told as done is
//! there, and who shares no name with another has all.
//!
//! Leaves out: coding and connections inside an attempt, whose bytes here simply arrive while all its hops stand. `crates/faults.rs`
//! says how to run one seed, or more.
#![allow(clippy::disallowed_methods, reason = "a test reads what it is told")]

#[path = "../../../faults.rs"]
#[expect(dead_code, reason = "its world has a queue and a log of its own")]
mod faults;
mod world;

use faults::Ended;
use world::World;

/// Schedules that failed once, and stay right: 38 is a source that died before it had said how long its file is, while a
/// destination had a file of that name; the transfer stood still for ever.
const KEPT: [u64; 1] = [38];

fn schedule(seed: u64) -> Ended {
    let (log, seconds) = World::new(seed).run();
    Ended { log, seconds }
}

#[test]
fn whatever_dies_nothing_wrong_has_a_name_and_every_transfer_ends() {
    faults::run(&KEPT, schedule);
}

#[test]
fn the_same_seed_leaves_the_same_log() {
    faults::run_twice(schedule);
}
