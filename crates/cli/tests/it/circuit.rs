//! Circuit switches on the kernel's TCP: scenarios and commands under time dilation.

use crate::emulate::{ASK_TCP, is_trusted, stage};
use crate::net::anabranch;
use crate::{answer, skip, text};
use serde_json::Value;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::Stdio;

/// Path of a scenario in the repository.
fn carried(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios").join(name).display().to_string()
}

/// Runs figure 2.7 with one size of the queues, for a few weeks of the schedule.
fn figure_2_7(verb: &str, packets: u32, more: &[&str]) -> Value {
    let scenario = carried("circuit.toml");
    let packets = format!("circuit.queue_packets={packets}");
    let sets = ["--set", "sweep={}", "--set", &packets, "--set", "duration=\"70 ms\""];
    let output = answer(&[&["-q", verb, &scenario, "--json"], &sets[..], more].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    serde_json::from_str(text(&output.stdout).trim()).expect("one row")
}

/// The sample of the claim below: the circuits' rate and days bound their bytes from above.
#[test]
fn emulated_circuits_carry_no_more_than_simulated_ones() {
    let Some(_alone) = stage(&[]) else { return };
    let bytes = |row: &Value| row["circuit_bytes"].as_f64().expect("a hybrid switch");
    let simulated = figure_2_7("simulate", 128, &[]);
    let emulated = figure_2_7("emulate", 128, &["--dilation", "128"]);
    assert_eq!((&emulated["dilation"], &emulated["congestion_control"]), (&128.into(), &"reno".into()));
    assert!(bytes(&emulated) > 0.0 && bytes(&emulated) <= 1.3 * bytes(&simulated), "{simulated}, {emulated}");
}

#[test]
#[ignore = "it measures: `make claims`"]
fn simulated_and_emulated_circuits_have_similar_goodput() {
    let Some(_alone) = stage(&[]) else { return };
    for packets in [16, 128] {
        let bytes = |row: &Value| row["circuit_bytes"].as_f64().expect("a hybrid switch");
        let simulated = figure_2_7("simulate", packets, &[]);
        let emulated = figure_2_7("emulate", packets, &["--dilation", "128"]);
        if !is_trusted(&emulated) {
            continue;
        }
        let ratio = bytes(&emulated) / bytes(&simulated);
        println!("{packets} packets: {ratio:.2}, {emulated}");
        // The measured ratios were 0.93 at 16 packets and 1.00 at 128 packets.
        assert!((0.75..=1.3).contains(&ratio), "{simulated} and {emulated}");
    }
}

#[test]
fn command_in_a_rack_knows_the_other_hosts_addresses() {
    let Some(_alone) = stage(&["python3"]) else { return };
    let scenario = carried("circuit-validation.toml");
    let server = "exec python3 -c \"import socket,os; s=socket.create_server((os.environ['ANABRANCH_ADDRESS'],9)); c,_=s.accept(); c.sendall(c.recv(99)); c.recv(1)\"";
    let run = format!("3={server}");
    let options = ["--dilation", "50", "--settle", "1 s", "--run", &run, "--site", "5", "--json"];
    let output =
        answer(&[&["emulate", &scenario], &options[..], &["--", "python3", "-c", ASK_TCP, "{@3}"]].concat());
    let said = text(&output.stdout);
    let mut lines = said.lines();
    assert_eq!(lines.next(), Some("hello 50 reno"), "{said} {}", text(&output.stderr));
    let report = said.lines().find(|line| line.starts_with('{')).expect("the report");
    let report: Value = serde_json::from_str(report).expect("JSON");
    assert_eq!(report["dilation"], 50);
    assert!(report["circuits"]["packet_network_bytes"].is_u64(), "{report}");
    let said = text(&output.stderr);
    assert!(said.contains("dilation 50: ") && said.contains("first RTO 20 ms"), "{said}");
}

/// Runs iperf3 with 20 MB between two racks, with further options of the command. Returns its
/// report.
fn iperf3_between_racks(more: &[&str]) -> Value {
    let folder = tempfile::tempdir().expect("a writable temporary folder");
    let scenario = folder.path().join("two-racks.toml");
    std::fs::write(&scenario, TWO_RACKS).expect("a writable folder");
    let scenario = scenario.display().to_string();
    // The server may start later than the command.
    let client = "for n in $(seq 60); do iperf3 -c {@1} -n 20M -l 1M -w 4M && exit; sleep 1; done; exit 1";
    let command = ["sh", "-c", client];
    let options = ["-q", "emulate", &scenario, "--run", "1=exec iperf3 -s", "--settle", "1 s", "--json"];
    let output = answer(&[&options[..], more, &["--"], &command[..]].concat());
    let said = text(&output.stdout);
    assert!(output.status.success(), "{said} {}", text(&output.stderr));
    let report = said.lines().find(|line| line.starts_with('{')).expect("the report");
    serde_json::from_str(report).expect("JSON")
}

/// Circuits that follow announced demand. The days are long enough for a slow machine.
const TWO_RACKS: &str = r#"
duration = "10 s"
dilation = 1
[network]
topology = "star"
hosts = 2
rate = "1 Gbit/s"
delay = "10 us"
[circuit]
switch = "hub"
day = "9 ms"
night = "1 ms"
rate = "200 Mbit/s"
packet_rate = "50 Mbit/s"
queue_packets = 64
schedule = { scheduler = "solstice", demand = "announced", threshold = "100 kB", window = "20 ms", decision = "1 ms" }
[workload]
kind = "long"
pairs = 1
"#;

#[test]
fn unmodified_programs_announce_demand_that_circuits_follow() {
    let Some(_alone) = stage(&["iperf3"]) else { return };
    // Cargo places the library next to the tests of crates that use it.
    let library = std::env::current_exe().expect("it runs").with_file_name("libanabranch_preload.so");
    assert!(library.exists(), "{} is built with the tests", library.display());
    let silent = iperf3_between_racks(&[])["circuits"].clone();
    assert_eq!((&silent["circuit_bytes"], &silent["announcements"]), (&0.into(), &0.into()), "{silent}");
    let library = library.display().to_string();
    let announced = iperf3_between_racks(&["--preload", &library])["circuits"].clone();
    let count = |name: &str| announced[name].as_u64().expect("a count");
    println!("{announced}");
    assert!(count("announcements") > 0 && count("announcements_refused") == 0, "{announced}");
    assert!(count("circuit_bytes") > 1_000_000, "{announced}");
    assert_eq!(count("unknown_reports"), 0, "{announced}");
}

#[test]
fn invalid_dilations_are_refused_in_one_line() {
    let scenario = carried("circuit.toml");
    for factor in ["0", "0.5", "-3", "1025"] {
        let flag = format!("--dilation={factor}");
        let output = answer(&["emulate", &scenario, &flag]);
        let said = text(&output.stderr);
        let expected = format!("dilation {factor}: must be a whole number from 1 to 1024");
        assert!(output.status.code() == Some(2) && said.contains(&expected), "{factor}: {said}");
    }
    let output = answer(&["emulate", &scenario, "--set", "dilation=0"]);
    let said = text(&output.stderr);
    assert_eq!((output.status.code(), said.lines().count()), (Some(2), 1), "{said}");
    assert!(said.contains("dilation: 0: must be a whole number from 1 to 1024"), "{said}");
}

#[test]
fn systems_programs_are_refused_under_dilation() {
    let output = answer(&["emulate", &carried("gather.toml"), "--dilation", "2"]);
    let said = text(&output.stderr);
    assert_eq!((output.status.code(), said.lines().count()), (Some(2), 1), "{said}");
    assert!(said.contains("its programs count real time: leave out the dilation of 2"), "{said}");
}

#[test]
fn commands_require_one_network_and_its_options() {
    let scenario = carried("circuit.toml");
    for (args, expected) in [
        (&[][..], "6 combinations of settings: --set one value of each"),
        (&["--set", "sweep={}", "--loss", "1%"], "--loss and --queue are for topologies"),
        (&["--set", "sweep={}", "--mtu", "9000"], "--mtu is for topologies"),
        (&["--set", "sweep={}", "--trials", "2"], "--trials 2: a command runs once"),
    ] {
        let output = answer(&[&["emulate", &scenario], args, &["--", "true"]].concat());
        let said = text(&output.stderr);
        assert_eq!((output.status.code(), said.lines().count()), (Some(2), 1), "{said}");
        assert!(said.contains(expected), "{said}");
    }
}

#[test]
fn missing_libraries_and_static_programs_are_refused() {
    let scenario = carried("circuit.toml");
    let folder = tempfile::tempdir().expect("a writable temporary folder");
    // A static executable has no interpreter, so it loads no libraries.
    let program = folder.path().join("static");
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/dilate_elf/bad-static");
    std::fs::copy(corpus, &program).expect("both are files");
    let library = folder.path().join("libanabranch_preload_dilate.so");
    std::fs::write(&library, "").expect("a writable folder");
    let [program, library] = [&program, &library].map(|path| path.to_str().expect("text"));
    for (preload, command, expected) in
        [("/no/such/file", "true", "--preload /no/such/file"), (library, program, "is linked statically")]
    {
        let args = ["emulate", &scenario, "--set", "sweep={}", "--preload", preload, "--", command];
        let output = answer(&args);
        let said = text(&output.stderr);
        assert_eq!((output.status.code(), said.lines().count()), (Some(2), 1), "{said}");
        assert!(said.contains(expected), "{said}");
    }
}

#[test]
fn retcp_is_registered_until_its_command_ends() {
    let output = answer(&["circuit", "retcp", "--base", "dctcp"]);
    let said = text(&output.stderr);
    assert!(output.status.code() == Some(2) && said.contains("mark ECE under DCTCP"), "{said}");

    let name = format!("abc{:x}", std::process::id());
    let is_there = || {
        let known = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control");
        known.expect("Linux has it").split_whitespace().any(|other| other == name)
    };
    let mut command = anabranch();
    command.args(["circuit", "retcp", "--name", &name, "--base", "cubic", "--dilation", "20", "--json"]);
    let mut held = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    let mut lines = BufReader::new(held.stderr.take().expect("piped")).lines().map_while(Result::ok);
    let first = lines.next().unwrap_or_default();
    if !first.contains("is registered") {
        assert!(!held.wait().expect("ours").success());
        let is_lacking = ["needs Linux", "is needed", "not permitted"].iter().any(|why| first.contains(why));
        assert!(is_lacking, "{first}");
        return skip(&first);
    }
    assert!(is_there(), "{name} is not known");
    let pid = rustix::process::Pid::from_child(&held);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it runs");
    let output = held.wait_with_output().expect("ours");
    let counts: Value = serde_json::from_slice(&output.stdout).expect("one object");
    assert!(output.status.success() && counts["jumps_up"] == 0 && counts["name"] == *name, "{counts}");
    assert!(!is_there(), "{name} is left");
}
