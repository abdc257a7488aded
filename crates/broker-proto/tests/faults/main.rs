//! Brokers and the agents of networks under faults, in virtual time: joins, silence, mailboxes,
//! back-off and the lead.
//!
//! Each seed draws the kinds and rates of faults: lost and late messages, cuts between agents and
//! brokers, an unreachable store, crashes of agents and brokers, a second process of a network,
//! frozen agents, and brokers whose clocks restart. After every event [`World`] checks the
//! invariants. At the end all faults stop, and every agent must join the leader and take part in
//! rounds.
//! `testing::faults` explains how to run one seed, or more.
#![allow(clippy::disallowed_methods, reason = "a test reads what it is told")]

#[path = "../it/store.rs"]
#[allow(dead_code, reason = "damage to the store is for other tests")]
mod store;
mod world;

use anabranch_testing::faults::{self, ScheduleEnd};
use world::World;

fn schedule(seed: u64) -> ScheduleEnd {
    World::new(seed).run()
}

#[test]
fn agents_rejoin_and_lose_no_message_under_faults() {
    faults::run(&[], schedule);
}

#[test]
fn equal_seeds_give_equal_logs() {
    faults::run_twice(schedule);
}
