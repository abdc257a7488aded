//! Whole fetches under faults, in virtual time: a client with its disk, servers with theirs, and a network that loses and delays.
//!
//! Each seed draws which faults there are and how many: lost, late, repeated and damaged datagrams, partitions, crashes and
//! frozen processes of servers and of the client, bits that flip as a server reads, disks that are full, slow or stuck, servers
//! that hold another version or nothing. After every event [`world::World`] checks what always holds; then all is healed, and every
//! object has to come. `crates/faults.rs` says how to run one seed, or more.
//!
//! Leaves out: TLS and sealing (a damaged datagram is one that is lost), clocks that jump (machines take a clock that only goes
//! forward), and the file system below a client's disk, which the `disk` room tests.
#![allow(clippy::disallowed_methods, reason = "a test reads what it is told")]

#[path = "../../../faults.rs"]
mod faults;
mod world;

use faults::Ended;
use world::World;

fn schedule(seed: u64) -> Ended {
    World::new(seed).run()
}

#[test]
fn whatever_fails_nothing_wrong_is_delivered_and_in_the_end_all_is() {
    faults::run(&[], schedule);
}

#[test]
fn the_same_seed_leaves_the_same_log() {
    faults::run_twice(schedule);
}
