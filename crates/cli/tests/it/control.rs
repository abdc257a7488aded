//! What operators meet when something is set up wrong: one line that names the cause, and nobody else held up.

#![allow(clippy::disallowed_methods, reason = "tests of drivers: they use the clock, files and programs")]

use super::net::{Local, run};
use std::time::{Duration, Instant};

const TRIANGLE: &str = r#"
[[site]]
name = "paris"
[[site]]
name = "tokyo"
[[site]]
name = "lima"
[[cable]]
between = ["paris", "tokyo"]
[[cable]]
between = ["paris", "lima"]
[[cable]]
between = ["tokyo", "lima"]
"#;

fn send(local: &Local, arguments: &[&str]) -> std::process::Command {
    let all = [&["send", "--controller", local.address(), "--from", "paris"], arguments].concat();
    local.command(&all)
}

/// #17: every attempt failed because of a site that could not be reached; it was never named, and all others waited.
#[test]
fn a_site_that_others_cannot_reach_is_named_and_holds_nobody_up() {
    let mut local = Local::start(TRIANGLE, &["paris", "tokyo"]);
    let mut lima = local.relay("lima", "lima");
    lima.args(["--advertise", "127.0.0.1:1"]);
    local.keep(lima);
    local.wait_for(&["paris", "tokyo", "lima"]);
    std::fs::write(local.path("paris/file"), vec![7; 1 << 20]).expect("the folder is ours");
    let begun = Instant::now();
    let mut sending = send(&local, &["file", "--to", "tokyo,lima"]);
    let mut sending = sending.stderr(std::process::Stdio::piped()).spawn().expect("it starts");
    while !local.path("tokyo/file").exists() {
        assert!(begun.elapsed() < Duration::from_secs(20), "tokyo waits for lima");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(sending.try_wait().expect("ours").is_none(), "lima is tried again");
    let (code, _) = run(local.command(&["status", "1", "--cancel", "--controller", local.address()]));
    assert_eq!(code, Some(0));
    let said = sending.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&said.stderr).into_owned();
    // By paris or by tokyo: whoever is first to say so.
    assert!(said.contains(" cannot connect to lima at 127.0.0.1:1: connection refused"), "{said}");
}

/// #17: daemons log by default, and a transfer's events stood in the controller's log as Rust writes its structs.
#[test]
fn a_transfer_stands_in_the_controllers_log_in_words() {
    let local = Local::start(TRIANGLE, &["paris", "tokyo"]);
    std::fs::write(local.path("paris/file"), "x").expect("the folder is ours");
    let (code, said) = run(send(&local, &["--quiet", "file", "--to", "tokyo"]));
    assert_eq!(code, Some(0), "{said}");
    let (code, said) = run(send(&local, &["--quiet", "missing", "--to", "tokyo"]));
    assert_eq!(code, Some(1), "{said}");
    let log = local.log_until("ended: failed");
    let has = |line: &str| log.iter().any(|l| l.contains(line) && l.contains("transfer"));
    for line in [
        "begins: file from paris to tokyo",
        "tokyo: has the file, verified",
        "ended: every destination has the file",
        "begins: missing from paris to tokyo",
        "tokyo: failed: ",
    ] {
        assert!(has(line), "{line}: {log:#?}");
    }
    assert!(!log.iter().any(|l| l.contains('{') || l.contains("kind=")), "{log:#?}");
    assert!(!log.iter().any(|l| l.contains("planned: ")), "an attempt's details are for who asks: {log:#?}");
}

/// #17: each site tried in vain to use it, and the transfer began anew without end.
#[test]
fn a_congestion_control_that_no_kernel_has_is_refused_in_one_line() {
    let local = Local::start(TRIANGLE, &["paris", "tokyo"]);
    std::fs::write(local.path("paris/file"), "x").expect("the folder is ours");
    let (code, said) =
        run(send(&local, &["--quiet", "file", "--to", "tokyo", "--congestion-control", "foo"]));
    assert_eq!((code, said.lines().count()), (Some(1), 1), "{said}");
    assert!(said.contains("paris: congestion control `foo`: unknown to this machine's kernel"), "{said}");
}

/// #17: a second relay of a site and the first took each other's place for ever, and no log had a line.
#[test]
fn a_second_relay_of_a_site_ends_with_one_line() {
    let local = Local::start(TRIANGLE, &["paris", "tokyo"]);
    local.wait_for(&["paris"]);
    let (code, said) = run(local.relay("paris", "elsewhere"));
    assert_eq!(code, Some(1), "{said}");
    let last = said.lines().last().expect("it says why");
    assert!(
        last.contains("another relay of site `paris` is running") && last.contains("--take-over"),
        "{said}"
    );
}

/// #17: a relay with a site that its controller does not know said for ever that it could not be reached.
#[test]
fn a_relay_whose_topology_is_another_ends_with_one_line() {
    let local = Local::start(TRIANGLE, &[]);
    let other = TRIANGLE.replace("lima", "oslo");
    std::fs::write(local.path("network.toml"), other).expect("the folder is ours");
    let (code, said) = run(local.relay("paris", "paris"));
    assert_eq!(code, Some(2), "{said}");
    assert!(
        said.lines().last().is_some_and(|l| l.contains("other sites or links than this controller's")),
        "{said}"
    );
}
