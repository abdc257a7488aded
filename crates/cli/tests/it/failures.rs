//! What happens when things break: processes die, links die, relays lie, disks fill, users err.
//!
//! Networks are small and slow, so that a file of a few MiB is on its way for seconds. No test asserts on the clock
//! except that what it waits for comes within [`PATIENCE`].

#![allow(clippy::disallowed_methods, reason = "tests of drivers: processes, files, threads and clocks")]

use crate::net::{CONTROLLER, Net, PATIENCE, Sent, skip};
use anabranch_units::BitRate;
use std::process::Stdio;

/// `s` reaches `d1` and `d2` through either of `r1` and `r2`.
const DIAMOND: &str = r#"
name = "diamond"
[defaults]
capacity = "10 Mbit/s"
delay = "2 ms"
[[site]]
name = "s"
[[site]]
name = "r1"
[[site]]
name = "r2"
[[site]]
name = "d1"
[[site]]
name = "d2"
[[cable]]
between = ["s", "r1"]
[[cable]]
between = ["s", "r2"]
[[cable]]
between = ["r1", "d1"]
[[cable]]
between = ["r1", "d2"]
[[cable]]
between = ["r2", "d1"]
[[cable]]
between = ["r2", "d2"]
"#;

const MIB: usize = 1 << 20;

/// The diamond with all daemons running and a file of `length` bytes at `s`.
fn diamond(length: usize) -> Option<(Net, Vec<u8>)> {
    let mut net = Net::new(DIAMOND)?;
    let bytes = net.put("s", "file", 1, length);
    net.start_all();
    Some((net, bytes))
}

const SEND: [&str; 5] = ["file", "--from", "s", "--to", "d1,d2"];

fn expect_copies(net: &Net, sites: &[&str], bytes: &[u8]) {
    for site in sites {
        assert!(net.has(site, "file", bytes), "{site} has the file, whole and named");
    }
}

#[test]
fn a_relay_killed_mid_transfer_is_planned_around_and_only_what_is_missing_is_sent() {
    let Some((mut net, bytes)) = diamond(6 * MIB) else { return };
    let sending = net.send(&SEND);
    sending.verified(3 * MIB as u64);
    net.kill("r1");
    let sent = sending.finish();
    sent.expect_done();
    expect_copies(&net, &["d1", "d2"], &bytes);
    assert_eq!(sent.attempts(), 2);
    // From the start again would be half of the file more. What was in buffers and queues goes twice.
    let from_source = net.sent_by("s");
    assert!(from_source < bytes.len() as u64 * 135 / 100, "{from_source} bytes left the source");
}
