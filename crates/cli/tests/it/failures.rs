//! Failures: processes die, links fail, relays lie, disks fill, users err.
//!
//! Networks are small and slow, so that a transfer of a few MiB can be interrupted even on a busy
//! machine. No test asserts on the clock except that each awaited event comes within
//! [`crate::net::PATIENCE`].

#![allow(clippy::disallowed_methods, reason = "tests of drivers: processes, files, threads and clocks")]

use crate::net::{CONTROLLER, FinishedSend, LocalDaemons, Net, run, skip, working_files};
use anabranch_units::BitRate;
use std::process::Stdio;

/// `s` reaches `d1` and `d2` through either of `r1` and `r2`.
const DIAMOND: &str = r#"
name = "diamond"
[defaults]
capacity = "5 Mbit/s"
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
fn killed_relay_is_planned_around_and_missing_bytes_resent() {
    let Some((mut net, bytes)) = diamond(6 * MIB) else { return };
    let sending = net.send(&SEND);
    sending.verified(3 * MIB as u64);
    net.kill("r1");
    let sent = sending.finish();
    sent.expect_done();
    expect_copies(&net, &["d1", "d2"], &bytes);
    // A busy machine may plan the second before the controller knows that r1 is down.
    assert!(sent.attempts() >= 2, "{} attempts", sent.attempts());
    // Starting over would add half of the file. Data in buffers and queues is sent twice.
    let from_source = net.sent_by("s");
    assert!(from_source < bytes.len() as u64 * 135 / 100, "{from_source} bytes left the source");
}

#[test]
fn transfer_survives_a_relay_restart() {
    let Some((mut net, bytes)) = diamond(6 * MIB) else { return };
    let sending = net.send(&SEND);
    sending.verified(2 * MIB as u64);
    net.kill("r1");
    net.start("r1");
    let sent = sending.finish();
    sent.expect_done();
    expect_copies(&net, &["d1", "d2"], &bytes);
}

#[test]
fn returning_destination_continues_from_its_partial_file() {
    let Some((mut net, bytes)) = diamond(6 * MIB) else { return };
    let sending = net.send(&SEND);
    sending.verified(3 * MIB as u64);
    net.kill("d1");
    net.start("d1");
    let sent = sending.finish();
    sent.expect_done();
    expect_copies(&net, &["d1", "d2"], &bytes);
    // Starting over would add half of the file.
    let received = net.arrived_at("d1");
    assert!(received < bytes.len() as u64 * 135 / 100, "{received} bytes came to d1");
}

#[test]
fn restarted_source_sends_only_the_rest() {
    let Some((mut net, bytes)) = diamond(6 * MIB) else { return };
    let sending = net.send(&SEND);
    sending.verified(3 * MIB as u64);
    net.kill("s");
    net.start("s");
    let sent = sending.finish();
    sent.expect_done();
    expect_copies(&net, &["d1", "d2"], &bytes);
    let from_source = net.sent_by("s");
    assert!(from_source < bytes.len() as u64 * 135 / 100, "{from_source} bytes left the source");
}

#[test]
fn restarted_controller_completes_the_transfer() {
    let Some((mut net, bytes)) = diamond(6 * MIB) else { return };
    let sending = net.send(&SEND);
    sending.verified(2 * MIB as u64);
    net.kill(CONTROLLER);
    net.start(CONTROLLER);
    let sent = sending.finish();
    sent.expect_done();
    expect_copies(&net, &["d1", "d2"], &bytes);
    let all = sent.summary()["destinations"].as_array().expect("a list").clone();
    assert!(all.iter().all(|d| d["took_s"].is_number()), "{}", sent.summary());
    assert!(sent.events.iter().any(|e| e["event"] == "finished"), "the end is told over a restart, too");
}

/// As [`DIAMOND`], with a thin control-traffic cable from the first site to every other.
fn diamond_with_control_plane() -> String {
    let sites = ["r1", "r2", "d1", "d2"];
    let cable = |to: &str| {
        format!("[[cable]]\nbetween = [\"s\", \"{to}\"]\ndelay = \"100 us\"\ncapacity = \"2 Mbit/s\"\n")
    };
    sites.iter().fold(DIAMOND.to_owned(), |text, to| text + &cable(to))
}

#[test]
fn dead_link_is_found_within_the_hop_timeout() {
    let Some(mut net) = Net::with_data_plane(&diamond_with_control_plane(), DIAMOND) else { return };
    let bytes = net.put("s", "file", 2, 6 * MIB);
    net.start_all();
    let sending = net.send(&SEND);
    sending.verified(2 * MIB as u64);
    net.set_up("r1", "d1", false);
    let stopped = sending.event("stopped");
    assert!(stopped["reason"].as_str().expect("text").contains("r1"), "{stopped}");
    let sent = sending.finish();
    sent.expect_done();
    expect_copies(&net, &["d1", "d2"], &bytes);
    assert!(sent.attempts() >= 2, "{} attempts", sent.attempts());
}

#[test]
fn absent_destination_is_unreachable_and_the_others_finish() {
    let Some(mut net) = Net::new(DIAMOND) else { return };
    let bytes = net.put("s", "file", 3, 6 * MIB);
    net.arguments(CONTROLLER, &["--site-wait", "6 s"]);
    net.start_all();
    let sending = net.send(&SEND);
    sending.verified(2 * MIB as u64);
    net.kill("d2");
    let sent = sending.finish();
    assert_eq!(sent.code(), 3, "{}", sent.summary());
    expect_copies(&net, &["d1"], &bytes);
    assert_eq!(sent.verdict("d1").0, "done");
    let (verdict, reason) = sent.verdict("d2");
    assert_eq!(verdict, "unreachable");
    assert!(reason.contains("d2") && reason.contains("6 s"), "{reason}");
    assert!(!net.path("d2", "file").exists());
}

fn flips(net: Option<Net>, liar: &str, ppm: u32, arguments: &[&str]) -> Option<(Net, Vec<u8>, FinishedSend)> {
    let mut net = net?;
    let bytes = net.put("s", "file", 4, 4 * MIB);
    net.arguments(liar, &["--inject-fault", &format!("flip-ppm={ppm}")]);
    net.start_all();
    let sent = net.send(&[&SEND[..], arguments].concat()).finish();
    Some((net, bytes, sent))
}

#[test]
fn bit_flipping_relay_in_a_routed_plan_is_avoided() {
    let Some((net, bytes, sent)) = flips(Net::new(DIAMOND), "r1", 200_000, &["--scheme", "packed"]) else {
        return;
    };
    sent.expect_done();
    expect_copies(&net, &["d1", "d2"], &bytes);
    assert_eq!(sent.suspects(), ["r1"]);
    assert!(sent.summary()["corrupt"].as_u64() > Some(0));
}

#[test]
fn relay_that_corrupts_all_data_is_soon_avoided() {
    let Some((net, bytes, sent)) = flips(Net::new(DIAMOND), "r1", 1_000_000, &["--scheme", "packed"]) else {
        return;
    };
    sent.expect_done();
    expect_copies(&net, &["d1", "d2"], &bytes);
    assert_eq!(sent.suspects(), ["r1"]);
    // Going on until the end of the attempt would resend about half of the file.
    let from_source = net.sent_by("s");
    assert!(from_source < bytes.len() as u64 * 140 / 100, "{from_source} bytes left the source");
}

#[test]
fn relay_that_corrupts_stored_data_is_avoided() {
    let scheme = ["--scheme", "steiner_store_and_forward"];
    let Some((net, bytes, sent)) = flips(Net::new(DIAMOND), "r1", 200_000, &scheme) else { return };
    sent.expect_done();
    expect_copies(&net, &["d1", "d2"], &bytes);
    assert_eq!(sent.suspects(), ["r1"]);
}

#[test]
fn relay_stores_all_before_forwarding_and_leaves_nothing() {
    let Some((mut net, bytes)) = diamond(4 * MIB) else { return };
    let sending = net.send(&[&SEND[..], &["--scheme", "steiner_store_and_forward"]].concat());
    sending.verified(1);
    let from_source = net.sent_by("s");
    // The remainder may be in flight: the buffers of both trees.
    assert!(from_source > bytes.len() as u64 / 2, "only {from_source} bytes had left the source");
    sending.finish().expect_done();
    expect_copies(&net, &["d1", "d2"], &bytes);
    for relay in ["r1", "r2"] {
        let left: Vec<_> = std::fs::read_dir(net.path(relay, "")).expect("it is there").flatten().collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

/// The butterfly: `c` codes for `d1` and `d2`, which also have paths around it. Full duplex, or one
/// direction only.
fn butterfly(full_duplex: bool) -> String {
    let sites = ["s", "a", "b", "c", "e", "d1", "d2"].map(|name| format!("[[site]]\nname = \"{name}\"\n"));
    let links = ["s a", "s b", "a c", "b c", "c e", "a d1", "b d2", "e d1", "e d2"].map(|ends| {
        let (from, to) = ends.split_once(' ').expect("two ends");
        if full_duplex {
            format!("[[cable]]\nbetween = [\"{from}\", \"{to}\"]\n")
        } else {
            format!("[[link]]\nfrom = \"{from}\"\nto = \"{to}\"\n")
        }
    });
    let defaults = "[defaults]\ncapacity = \"10 Mbit/s\"\ndelay = \"2 ms\"\n";
    [defaults, &sites.concat(), &links.concat()].concat()
}

#[test]
fn bit_flipping_relay_in_a_code_is_avoided() {
    let net = Net::with_data_plane(&butterfly(true), &butterfly(false));
    let Some((net, bytes, sent)) = flips(net, "c", 200_000, &["--scheme", "coded"]) else { return };
    sent.expect_done();
    expect_copies(&net, &["d1", "d2"], &bytes);
    assert_eq!(sent.suspects(), ["c"]);
    assert!(sent.summary()["corrupt"].as_u64() > Some(0));
}

#[test]
fn corrupt_data_ends_the_transfer_with_on_corrupt_refuse() {
    let arguments = ["--scheme", "packed", "--on-corrupt", "refuse"];
    let Some((net, bytes, sent)) = flips(Net::new(DIAMOND), "r1", 200_000, &arguments) else { return };
    assert_eq!(sent.code(), 4, "{}", sent.summary());
    for site in ["d1", "d2"] {
        let path = net.path(site, "file");
        assert!(!path.exists() || net.has(site, "file", &bytes), "{site} got a wrong file");
    }
    let verdicts = [sent.verdict("d1"), sent.verdict("d2")];
    assert!(
        verdicts.iter().any(|(v, reason)| v == "integrity" && reason.contains("arrived wrong")),
        "{verdicts:?}"
    );
}

/// The diamond with a file of 4 MiB at `s` and all daemons running; the disk of `site` holds 1 MiB.
fn diamond_with_a_small_disk(site: &str) -> Option<(Net, Vec<u8>)> {
    let mut net = Net::new(DIAMOND)?;
    let tried = std::process::Command::new("unshare")
        .args(["--mount", "sh", "-c", "mount -t tmpfs -o size=1m none /mnt"])
        .stderr(Stdio::null())
        .status();
    if !tried.is_ok_and(|s| s.success()) {
        skip("a small disk takes `unshare --mount` and `mount -t tmpfs`: run as root");
        return None;
    }
    let bytes = net.put("s", "file", 5, 4 * MIB);
    let dir = net.path(site, "");
    net.before(site, &format!("mount -t tmpfs -o size=1m none {}", dir.display()));
    net.start_all();
    Some((net, bytes))
}

#[test]
fn relay_with_too_small_a_disk_is_planned_around() {
    let Some((mut net, bytes)) = diamond_with_a_small_disk("r1") else { return };
    let sending = net.send(&[&SEND[..], &["--scheme", "steiner_store_and_forward"]].concat());
    let reason = sending.event("stopped")["reason"].to_string();
    assert!(reason.contains("r1: storing flow") && reason.contains("No space left"), "{reason}");
    sending.finish().expect_done();
    expect_copies(&net, &["d1", "d2"], &bytes);
}

#[test]
fn full_disk_fails_one_destination_with_one_line() {
    let Some((mut net, bytes)) = diamond_with_a_small_disk("d2") else { return };
    let sent = net.send(&SEND).finish();
    assert_eq!(sent.code(), 3, "{}", sent.summary());
    expect_copies(&net, &["d1"], &bytes);
    let (verdict, reason) = sent.verdict("d2");
    assert_eq!(verdict, "failed");
    assert!(reason.contains("d2") && reason.contains("No space left"), "{reason}");
    assert!(reason.contains("file") && !reason.contains('\n'), "{reason}");
}

#[test]
fn slow_destination_does_not_delay_the_other_destination() {
    let Some((mut net, bytes)) = diamond(12 * MIB) else { return };
    let sending = net.send(&SEND);
    sending.verified(MIB as u64);
    for relay in ["r1", "r2"] {
        net.set_rate(relay, "d2", BitRate::bps(300_000));
    }
    let verdict = sending.verdict("d1");
    assert_eq!(verdict["verdict"], "done");
    assert!(!net.path("d2", "file").exists(), "d2 cannot have all of it yet");
    for relay in ["r1", "r2"] {
        net.set_rate(relay, "d2", BitRate::mbps(5));
    }
    let sent = sending.finish();
    sent.expect_done();
    expect_copies(&net, &["d1", "d2"], &bytes);
    assert!(sent.events.iter().any(|e| e["event"] == "postponed" && e["site"] == "d2"));
}

/// Rates in Mbit/s over a long lossy link: with one CUBIC stream, and with four of BBR.
fn rates_over_a_lossy_long_link() -> Option<[f64; 2]> {
    let long = r#"
        [[site]]
        name = "s"
        [[site]]
        name = "d1"
        [[cable]]
        between = ["s", "d1"]
        capacity = "20 Mbit/s"
        delay = "40 ms"
        loss_ppm = 10000
    "#;
    let mut net = Net::new(long)?;
    let bytes = net.put("s", "file", 6, 2 * MIB);
    net.start_all();
    let mut rate = |name: &str, arguments: &[&str]| {
        let sent =
            net.send(&[&["file", "--from", "s", "--to", "d1", "--as", name], arguments].concat()).finish();
        sent.expect_done();
        assert!(net.has("d1", name, &bytes));
        sent.summary()["rate_bps"].as_f64().expect("a rate")
    };
    let cubic = rate("cubic", &["--congestion-control", "cubic"]);
    // Only the long hop has other settings, because the option applies to one hop.
    let bbr = rate("bbr", &["--hop", "s-d1 congestion-control=bbr stripes=4"]);
    println!(
        "1 % loss, 40 ms one way, 20 Mbit/s: {cubic:.1} Mbit/s with one cubic stream, {bbr:.1} with 4 of bbr"
    );
    Some([cubic, bbr])
}

#[test]
fn files_arrive_over_hops_with_their_own_settings() {
    // Each transfer and its copy are checked on the way.
    let _ = rates_over_a_lossy_long_link();
}

#[test]
#[ignore = "it measures: `make claims`"]
fn bbr_and_stripes_fill_a_lossy_long_link() {
    let Some([cubic, bbr]) = rates_over_a_lossy_long_link() else { return };
    assert!(bbr > 2.0 * cubic, "{bbr} and {cubic} Mbit/s");
}

#[test]
fn repeated_send_moves_only_missing_data() {
    let Some((mut net, bytes)) = diamond(4 * MIB) else { return };
    net.send(&SEND).finish().expect_done();
    let before = net.arrived_anywhere();
    net.send(&SEND).finish().expect_done();
    let again = net.arrived_anywhere() - before;
    // Control traffic only: inquiries, progress, long polls.
    assert!(again < 128 << 10, "{again} bytes to send nothing");
    std::fs::remove_file(net.path("d1", "file")).expect("it was there");
    let before = net.arrived_at("d2");
    net.send(&SEND).finish().expect_done();
    let again = net.arrived_at("d2") - before;
    assert!(again < 128 << 10, "{again} bytes to a destination that has the file");
    expect_copies(&net, &["d1", "d2"], &bytes);
}

#[test]
fn same_command_continues_after_ctrl_c() {
    let Some((mut net, bytes)) = diamond(6 * MIB) else { return };
    let sending = net.send(&SEND);
    sending.verified(3 * MIB as u64);
    sending.interrupt();
    let sent = sending.finish();
    assert_eq!(sent.code(), 130, "{}", sent.stderr);
    assert!(sent.stderr.contains("run the same command again"), "{}", sent.stderr);
    assert!(!working_files(&net.path("d1", "")).is_empty() && !net.path("d1", "file").exists());
    net.send(&SEND).finish().expect_done();
    expect_copies(&net, &["d1", "d2"], &bytes);
    let received = net.arrived_at("d1");
    assert!(received < bytes.len() as u64 * 135 / 100, "{received} bytes came to d1");
}

#[test]
fn transfer_of_a_new_version_resumes() {
    let Some((mut net, _)) = diamond(4 * MIB) else { return };
    net.put("d1", "file", 8, 5 * MIB);
    let bytes = net.put("s", "file", 7, 6 * MIB);
    let sending = net.send(&["file", "--from", "s", "--to", "d1", "--replace"]);
    sending.verified(3 * MIB as u64);
    net.kill("d1");
    net.start("d1");
    sending.finish().expect_done();
    expect_copies(&net, &["d1"], &bytes);
    let received = net.arrived_at("d1");
    assert!(received < bytes.len() as u64 * 135 / 100, "{received} bytes came to d1");
}

/// Kills and restarts daemons at times drawn from `seed`. At most one relay stays down.
fn kill_schedule(seed: u64) {
    let Some((mut net, bytes)) = diamond(6 * MIB) else { return };
    let mut random = crate::net::noise(seed, 64).into_iter().map(u64::from);
    let mut draw = move |below: u64| random.next().expect("64 draws are enough") % below;
    let sending = net.send(&SEND);
    sending.event("started");
    let roles = ["s", "r1", "r2", "d1", "d2", CONTROLLER];
    let mut lost = None;
    for _ in 0..3 {
        let pause = |tenths: u64| std::thread::sleep(std::time::Duration::from_millis(100 * tenths));
        pause(draw(20));
        let victim = roles[draw(6) as usize];
        if !net.runs(victim) {
            continue;
        }
        net.kill(victim);
        pause(draw(20));
        if lost.is_none() && victim.starts_with('r') && draw(3) == 0 {
            lost = Some(victim);
        } else {
            net.start(victim);
        }
    }
    let sent = sending.finish();
    sent.expect_done();
    expect_copies(&net, &["d1", "d2"], &bytes);
    println!(
        "kill schedule {seed}: done after {} attempts in {:.1} s",
        sent.attempts(),
        sent.took.as_secs_f64()
    );
}

#[test]
fn two_random_kill_schedules_end_with_every_destination_verified() {
    (1..=2).for_each(kill_schedule);
}

#[test]
#[ignore = "50 kill schedules take nine minutes: `make claims`"]
fn fifty_random_kill_schedules_end_with_every_destination_verified() {
    (3..=52).for_each(kill_schedule);
}

/// `island` has no cable.
const ISLAND: &str = r#"
[[site]]
name = "s"
[[site]]
name = "d1"
[[site]]
name = "d2"
[[site]]
name = "island"
[[cable]]
between = ["s", "d1"]
[[cable]]
between = ["s", "d2"]
"#;

/// Runs a command that must fail, and asserts one line on stderr that contains all of `mentions`. A
/// warning that attempts go on may precede it.
fn expect_one_line(command: std::process::Command, mentions: &[&str]) {
    let shown = format!("{command:?}");
    let (code, stderr) = run(command);
    assert!(code.is_some_and(|c| c != 0), "{shown} ended with {code:?}");
    let lines: Vec<_> = stderr.lines().filter(|line| !line.contains("; trying on for")).collect();
    let [line] = lines[..] else { panic!("{shown} said:\n{stderr}") };
    for mention in mentions {
        assert!(line.contains(mention), "{shown} said {stderr:?} without {mention:?}");
    }
}

#[test]
fn bad_input_gets_one_line_with_place_and_remedy() {
    let local = LocalDaemons::start(ISLAND, &["s", "d1"]);
    std::fs::write(local.path("s/file"), "hello").expect("the folder is ours");
    let send = |arguments: &[&str]| {
        let all = [&["send", "--quiet", "--controller", local.address(), "--from", "s"], arguments].concat();
        local.command(&all)
    };
    expect_one_line(send(&["file", "--to", "nowhere"]), &["`nowhere`", "there are s, d1, d2, island"]);
    expect_one_line(send(&["file", "--to", "d1,d1"]), &["`d1` appears twice", "name it once"]);
    expect_one_line(send(&["file", "--to", ""]), &["no site ``"]);
    expect_one_line(send(&["file", "--to", "d1,s"]), &["`s` is both", "leave it out"]);
    expect_one_line(send(&["file", "--to", "d1", "--avoid-sites", "d1"]), &["`d1`", "one or the other"]);
    expect_one_line(send(&["file", "--to", "island"]), &["from `s` to `island`", "add a link"]);
    expect_one_line(
        send(&["file", "--to", "d1", "--avoid-links", "s-d1"]),
        &["from `s` to `d1`", "avoid less"],
    );
    expect_one_line(send(&["file", "--to", "d1", "--avoid-links", "d1-d2"]), &["`d1-d2`", "FROM-TO"]);
    expect_one_line(send(&["absent", "--to", "d1"]), &["s/absent", "No such file", "--dir"]);
    expect_one_line(send(&["../file", "--to", "d1"]), &["`../file`", "outside the folder", "--dir"]);

    let mut reached_nobody = local.command(&["send", "--from", "s", "--to", "d1", "file"]);
    reached_nobody.args(["--controller", "127.0.0.1:1"]);
    expect_one_line(reached_nobody, &["127.0.0.1:1", "refused", "does it run"]);
}

#[test]
fn keys_that_do_not_belong_together_get_one_line() {
    let local = LocalDaemons::start(ISLAND, &[]);
    local.keys("other");
    let send = |keys: &str| {
        let all =
            ["send", "--controller", local.address(), "--from", "s", "--to", "d1", "file", "--keys", keys];
        local.command(&all)
    };
    expect_one_line(send("other"), &[local.address(), "another authority", "keys of one set"]);
    expect_one_line(
        send("absent"),
        &["absent/ca.pem", "make keys (`anabranch replicate keys init --topology FILE`)"],
    );
    // Replaces one file after the other by a file of the other set.
    let take = |file: &str| {
        std::fs::copy(local.path("other").join(file), local.path("keys/replicate").join(file))
            .expect("copied")
    };
    take("operators/operator.key");
    expect_one_line(send("keys/replicate"), &["operators/operator.key", "belongs to another certificate"]);
    take("operators/operator.pem");
    expect_one_line(send("keys/replicate"), &["operators/operator.pem", "ca.pem", "files of one set"]);
}

#[test]
fn invalid_topology_is_refused_in_one_line() {
    let local = LocalDaemons::start(ISLAND, &[]);
    let zero = ISLAND.to_owned() + "capacity = \"0 bit/s\"\n";
    std::fs::write(local.path("zero.toml"), zero).expect("the folder is ours");
    let mentions = ["capacity", "0 bit/s", "at least 1 bit/s", "zero.toml:"];
    expect_one_line(local.command(&["controller", "--topology", "zero.toml"]), &mentions);
    expect_one_line(
        local.command(&["relay", "--topology", "zero.toml", "--site", "s", "--dir", "s"]),
        &mentions,
    );
    let plan = |topology: &str, to: &str| {
        local.command(&["plan", "--topology", topology, "--from", "s", "--to", to])
    };
    expect_one_line(plan("zero.toml", "d1"), &mentions);
    expect_one_line(plan("absent.toml", "d1"), &["absent.toml", "No such file"]);
    expect_one_line(plan("network.toml", "island"), &["`island`", "add a link"]);
    let relay = ["relay", "--topology", "network.toml", "--site", "s", "--dir", "absent"];
    expect_one_line(local.command(&relay), &["--dir absent", "make this folder"]);
}
