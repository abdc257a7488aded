//! Whole fetches under faults, in virtual time: a client with its disk, servers with theirs, and a network that loses and delays.
//!
//! Each seed draws the protocol and its settings, and which faults there are and how many: lost, late, overtaken and repeated
//! datagrams, ways that take only short ones, partitions of the control stream and of datagrams either way, crashes, frozen
//! processes and jumping clocks of servers and of the client, bits that flip as a server reads or as the client writes, disks that
//! are full, slow or stuck, objects that are replaced or taken away while they are fetched, servers that hold another version or
//! nothing. After every event [`world::World`] checks what always holds; then all is healed, and every object has to come, at the
//! latest with the first command that is begun after that. `testing::faults` says how to run one seed, or more.
//!
//! Leaves out: TLS and sealing (a damaged datagram is one that is lost), clocks that jump back (machines take a clock that only goes
//! forward), and the file system below a client's disk, which the `disk` room tests.
#![allow(clippy::disallowed_methods, reason = "a test reads what it is told")]

mod disk;
mod network;
mod server;
mod world;

use anabranch_testing::faults::{self, Ended};
use world::World;

/// Schedules that failed once, and stay right: in 8273 a silent path stayed shut for what its pulls had forgotten; in 8664 a server gave
/// up a pull that had waited for others; in the rest a server was left for a faster one that did not have the object, and was not
/// asked again.
const KEPT: [u64; 5] = [3279, 7704, 8273, 8664, 9163];

fn schedule(seed: u64) -> Ended {
    World::new(seed).run()
}

#[test]
fn whatever_fails_nothing_wrong_is_delivered_and_in_the_end_all_is() {
    faults::run(&KEPT, schedule);
}

#[test]
fn the_same_seed_leaves_the_same_log() {
    faults::run_twice(schedule);
}
