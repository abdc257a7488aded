//! Metrics of agents, after a download of known length.

use super::{A, B, SiteId, World, piped};
use anabranch_testing::exposition::Exposition;
use std::process::Command;

/// Prints the metrics of the agent on the same host.
const SCRAPE: &str =
    "import urllib.request as u; print(u.urlopen('http://127.0.0.1:9100/metrics').read().decode(), end='')";

fn scrape(world: &World, at: SiteId) -> Exposition {
    let mut python = Command::new("python3");
    python.args(["-c", SCRAPE]);
    let python = world.emulation.spawn(at, piped(python)).expect("it runs").wait_with_output();
    let text = String::from_utf8(python.expect("it ends").stdout).expect("text");
    Exposition::read(&text).unwrap_or_else(|why| panic!("{why}: {text}: {}", world.log()))
}

fn of_peer(all: &Exposition, name: &str, peer: &str) -> f64 {
    let value = all.value(&format!("spray_{name}{{peer=\"{peer}\"}}"));
    value.unwrap_or_else(|| panic!("{name} of {peer}: {all:?}"))
}

#[test]
fn agents_count_the_bytes_that_they_carry() {
    const BYTES: usize = 300_000;
    let Some(mut world) = World::new() else { return };
    [A, B].into_iter().for_each(|at| world.up(at, &["--metrics", "9100"]));
    [A, B].into_iter().for_each(|at| world.wait(at, true));
    world.brought(world.bring(BYTES), BYTES);
    let [a, b] = [A, B].map(|at| scrape(&world, at));
    let (sent, received) = (of_peer(&b, "sent_bytes_total", "a"), of_peer(&a, "received_bytes_total", "b"));
    // TCP may retransmit some bytes.
    let is_near = received >= BYTES as f64 && sent >= received && sent < 1.5 * BYTES as f64;
    assert!(is_near, "{sent} sent, {received} received");
    assert_eq!((of_peer(&a, "peer_up", "b"), a.value("spray_up_seconds_count")), (1.0, Some(0.0)));
    assert!(of_peer(&a, "received_datagrams_total", "b") > 0.0 && of_peer(&a, "rtt_seconds", "b") > 0.0);
    world.end(B, false);
    world.wait(A, false);
    let a = scrape(&world, A);
    assert_eq!(a.value("spray_failures_total{peer=\"b\",cause=\"ended\"}"), Some(1.0), "{a:?}");
    assert_eq!((of_peer(&a, "peer_up", "b"), a.value("spray_up_seconds_count")), (0.0, Some(1.0)));
}
