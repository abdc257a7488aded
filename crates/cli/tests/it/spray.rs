//! `spray` with real agents on an emulated multi-path network: the agents carry TCP, and TCP
//! connections survive failures of the agents.
//!
//! The programs use Python's sockets, so TCP is the kernel's own. If the machine allows no
//! namespaces or TUN devices, or lacks Python, the tests print the reason and count as skipped.
//! Read [`World`] first.

#![allow(clippy::disallowed_methods, reason = "tests of drivers: processes, files and clocks")]

mod metrics;

use crate::has_program;
use crate::namespace::Namespace;
use crate::net::{PATIENCE, anabranch};
use crate::start::start_or_skip;
use anabranch_emu::{Emulation, EmulationOptions, LinkState};
use anabranch_graph::Topology;
use anabranch_graph::file::{Defaults, load};
use anabranch_testing::skip::skip;
use anabranch_units::{BitRate, LinkId, SiteId};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::io::Read as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Number of paths between the two hosts.
const PATHS: usize = 4;
/// The hosts are the first two sites.
const A: SiteId = SiteId(0);
const B: SiteId = SiteId(1);

/// Sends the requested number of bytes, which count up, as fast as the connection accepts them.
const SERVER: &str = r#"
import socket, sys
listener = socket.create_server((sys.argv[1], 9000), family=socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET)
print("listening", flush=True)
while True:
    flow, _ = listener.accept()
    size = int(flow.makefile().readline())
    sent, block = 0, bytes(range(256)) * 256
    while sent < size:
        part = block[: size - sent]
        flow.sendall(part)
        sent += len(part)
    flow.close()
"#;

/// Requests a number of bytes, checks the value of each, and prints the number of bytes received.
const CLIENT: &str = r#"
import socket, sys
flow = socket.create_connection((sys.argv[1], 9000), timeout=30)
flow.sendall(sys.argv[2].encode() + b"\n")
got, block = 0, bytes(range(256)) * 257
while True:
    part = flow.recv(65536)
    if not part:
        break
    at = got % 256
    assert part == block[at : at + len(part)], "the bytes are others"
    got += len(part)
print(got)
"#;

/// Two hosts behind one switch each, with [`PATHS`] paths of 40 Mbit/s between the switches. Also
/// keys, and the hosts' programs.
struct World {
    emulation: Emulation,
    folder: tempfile::TempDir,
    agents: [Option<Child>; 2],
    programs: Vec<Child>,
}

impl World {
    fn new() -> Option<Self> {
        if !has_program("python3") {
            skip("no python3, whose sockets are the programs here");
            return None;
        }
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("paths.toml");
        let mut text = "name = \"paths\"\n[[site]]\nname = \"a\"\n[[site]]\nname = \"b\"\n".to_owned();
        let mut cables = Vec::new();
        for switch in
            ["left", "right"].map(str::to_owned).into_iter().chain((0..PATHS).map(|n| format!("m{n}")))
        {
            text += &format!("[[site]]\nname = \"{switch}\"\nswitch = true\n");
        }
        cables.push(("a".to_owned(), "left".to_owned(), 1_000));
        cables.push(("right".to_owned(), "b".to_owned(), 1_000));
        for path in 0..PATHS {
            cables.push(("left".to_owned(), format!("m{path}"), 40));
            cables.push((format!("m{path}"), "right".to_owned(), 40));
        }
        for (from, to, mbps) in cables {
            text += &format!(
                "[[cable]]\nbetween = [\"{from}\", \"{to}\"]\ncapacity = \"{mbps} Mbit/s\"\ndelay = \"500 us\"\nqueue = \"200 kB\"\n"
            );
        }
        std::fs::write(&path, text).expect("the folder is ours");
        let topology: Topology =
            load(path.to_str().expect("plain names"), &Defaults::new(BitRate::mbps(10)), |p| {
                std::fs::read_to_string(p)
            })
            .expect("a good topology");
        let emulation = start_or_skip(&topology, EmulationOptions::default())?;
        let mut keys = anabranch();
        keys.args(["-q", "spray", "keys", "--hosts", "a,b", "--out"]).arg(folder.path().join("keys"));
        assert!(keys.status().expect("it runs").success());
        let mut world = Self { emulation, folder, agents: [None, None], programs: Vec::new() };
        let mut server = Command::new("python3");
        server.args(["-c", SERVER, &world.emulation.site_address(B).to_string()]);
        let mut server = world.emulation.spawn(B, piped(server)).expect("it runs");
        let mut first = [0; 9];
        server.stdout.as_mut().expect("piped").read_exact(&mut first).expect("it listens");
        world.programs.push(server);
        Some(world)
    }

    /// Starts a host's agent; `more` are further arguments.
    fn up(&mut self, at: SiteId, more: &[&str]) {
        self.agents[usize::from(at.0)] = Some(self.start(at, &self.socket(at), more));
    }

    /// Starts an agent with this status socket.
    fn start(&self, at: SiteId, socket: &Path, more: &[&str]) -> Child {
        let (name, other) = if at == A { ("a", ("b", B)) } else { ("b", ("a", A)) };
        let mut agent = anabranch();
        agent.args(["spray", "up", "--name", name, "--rate", "40 Mbit/s", "--keys"]);
        agent.arg(self.folder.path().join("keys")).arg("--socket").arg(socket);
        agent.arg("--peer").arg(format!("{}={}", other.0, self.emulation.site_address(other.1)));
        let log = std::fs::File::options()
            .append(true)
            .create(true)
            .open(self.folder.path().join(format!("{name}.log")))
            .expect("the folder is ours");
        agent.args(more).stdout(Stdio::null()).stderr(log);
        self.emulation.spawn(at, agent).expect("it runs")
    }

    fn socket(&self, at: SiteId) -> std::path::PathBuf {
        self.folder.path().join(format!("{}.sock", at.0))
    }

    /// Ends an agent, by SIGKILL or by a signal that the agent handles.
    fn end(&mut self, at: SiteId, is_killed: bool) {
        let mut agent = self.agents[usize::from(at.0)].take().expect("it runs");
        if is_killed {
            agent.kill().expect("it runs");
        } else {
            let pid = Pid::from_raw(agent.id() as i32).expect("it has one");
            kill_process(pid, Signal::TERM).expect("it runs");
        }
        let ended = agent.wait().expect("it ends");
        assert_eq!(ended.success(), !is_killed, "{ended}: {}", self.log());
    }

    fn log(&self) -> String {
        let read = |name: &str| std::fs::read_to_string(self.folder.path().join(name)).unwrap_or_default();
        format!("a: {}\nb: {}", read("a.log"), read("b.log"))
    }

    /// Status of the only peer of a host's agent.
    fn peer(&self, at: SiteId) -> Value {
        let mut status = anabranch();
        status.args(["spray", "status", "--json", "--socket"]).arg(self.socket(at));
        let output = status.output().expect("it runs");
        let status: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        // An agent that does not answer yet has no status.
        status["peers"][0].clone()
    }

    /// Waits until the agent's session carries TCP, or no longer carries it.
    fn wait(&self, at: SiteId, is_up: bool) {
        let began = Instant::now();
        while self.peer(at)["is_up"] != is_up {
            assert!(began.elapsed() < PATIENCE, "is_up is never {is_up}: {}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Starts a download of this many bytes from `b` to `a`.
    fn bring(&self, bytes: usize) -> Child {
        let mut client = Command::new("python3");
        client.args(["-c", CLIENT, &self.emulation.site_address(B).to_string(), &bytes.to_string()]);
        self.emulation.spawn(A, piped(client)).expect("it runs")
    }

    /// Waits until all bytes have arrived.
    fn brought(&self, mut client: Child, bytes: usize) {
        let began = Instant::now();
        while client.try_wait().expect("it can be asked").is_none() {
            assert!(began.elapsed() < PATIENCE, "the bytes do not come: {}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
        let mut said = [String::new(), String::new()];
        client.stdout.take().expect("piped").read_to_string(&mut said[0]).expect("text");
        client.stderr.take().expect("piped").read_to_string(&mut said[1]).expect("text");
        assert_eq!(said[0].trim(), bytes.to_string(), "{} {}", said[1], self.log());
    }

    /// Changes the state of the four links of a path: two cables, in both directions.
    fn set_path(&mut self, path: u32, change: impl Fn(LinkState) -> LinkState) {
        // The hosts' links are the first four.
        for link in (4 + path * 4..8 + path * 4).map(LinkId) {
            let state = self.emulation.link_state(link).expect("it is one");
            self.emulation.set_link(link, change(state)).expect("it is one");
        }
    }

    /// Routing rules of a host.
    fn rules(&self, at: SiteId) -> String {
        self.shell(at, "ip rule")
    }

    /// Runs a line of shell on a host, and returns what it prints.
    fn shell(&self, at: SiteId, line: &str) -> String {
        let mut shell = Command::new("sh");
        shell.args(["-c", line]);
        let shell = self.emulation.spawn(at, piped(shell));
        String::from_utf8(shell.expect("it runs").wait_with_output().expect("it ends").stdout).expect("text")
    }

    /// Returns true if a host's kernel sends TCP for the other host through its agent's device.
    fn goes_by_device(&self, at: SiteId) -> bool {
        let to = self.emulation.site_address(if at == A { B } else { A });
        self.shell(at, &format!("ip route get {to} ipproto tcp sport 5000 dport 9000")).contains("dev spray0")
    }

    /// Waits until `holds` returns true; `what` names the condition in the error.
    fn until(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        let began = Instant::now();
        while !holds(self) {
            assert!(began.elapsed() < PATIENCE, "{what}: never: {}", self.log());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn agent(&self, at: SiteId) -> Pid {
        let agent = self.agents[usize::from(at.0)].as_ref().expect("it runs");
        Pid::from_raw(agent.id() as i32).expect("it has one")
    }

    /// Process id of the guard of a host's agent.
    fn guard(&self, at: SiteId) -> Option<Pid> {
        let agent = self.agent(at).as_raw_pid();
        let threads = std::fs::read_dir(format!("/proc/{agent}/task")).ok()?;
        let children =
            threads.filter_map(|thread| std::fs::read_to_string(thread.ok()?.path().join("children")).ok());
        children.collect::<String>().split_whitespace().find_map(|pid| Pid::from_raw(pid.parse().ok()?))
    }
}

fn piped(mut command: Command) -> Command {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

impl Drop for World {
    fn drop(&mut self) {
        for child in self.agents.iter_mut().flatten().chain(&mut self.programs) {
            let _ = child.kill();
            let _ = child.wait();
        }
        if std::thread::panicking() {
            eprintln!("{}", self.log());
        }
    }
}

/// Short and long transfers use more than half of the paths. Ended agents leave no rules behind.
#[test]
fn tcp_uses_most_paths_and_agents_leave_no_rules() {
    let Some(mut world) = World::new() else { return };
    let before = world.rules(A);
    world.up(A, &[]);
    world.up(B, &[]);
    world.wait(A, true);
    world.wait(B, true);
    for bytes in [1, 64_000, 64_000, 3_000_000] {
        world.brought(world.bring(bytes), bytes);
    }
    let peer = world.peer(B);
    let used =
        peer["ways"].as_array().expect("a list").iter().filter(|way| way["came_datagrams"] != 0).count();
    assert!(used > 32, "{used} of 64 ways: {peer}");
    assert!(peer["source_packets"].as_u64() > Some(80), "two flows of 64 kB are short: {peer}");
    assert!(peer["sprayed_packets"].as_u64() > Some(1_000), "{peer}");
    assert_eq!((&peer["refused_in_packets"], &peer["forged_datagrams"]), (&0.into(), &0.into()));
    // No packet took the ordinary route.
    assert_eq!(peer["refused_out_packets"], 0);
    world.end(A, false);
    world.wait(B, false);
    world.end(B, false);
    assert_eq!(world.rules(A), before);
    world.brought(world.bring(10_000), 10_000);
}

/// A connection that began before the agents survives their start, kills and ends.
#[test]
fn connection_survives_starts_and_kills_of_agents() {
    let Some(mut world) = World::new() else { return };
    // At 40 Mbit/s, the rate of one path, the download takes some seconds.
    let bytes = 30_000_000;
    let client = world.bring(bytes);
    std::thread::sleep(Duration::from_millis(300));
    world.up(A, &[]);
    world.up(B, &[]);
    world.wait(B, true);
    std::thread::sleep(Duration::from_millis(300));
    world.end(B, true);
    world.wait(A, false);
    std::thread::sleep(Duration::from_millis(300));
    // The guard of the killed agent deletes its rules.
    world.until("no rules", |world| !world.rules(B).contains("7200"));
    world.up(B, &[]);
    world.wait(B, true);
    world.end(A, false);
    world.wait(B, false);
    world.up(A, &["--ways", "3"]);
    world.wait(A, true);
    world.brought(client, bytes);
    assert_eq!(world.rules(B).matches("lookup 7200").count(), 1, "{}", world.rules(B));
}

/// TCP avoids the half of the paths that lose packets, and then also a path that fails.
#[test]
fn paths_that_lose_packets_or_fail_are_avoided() {
    let Some(mut world) = World::new() else { return };
    world.up(A, &[]);
    world.up(B, &[]);
    world.wait(A, true);
    world.wait(B, true);
    for path in 0..2 {
        world.set_path(path, |state| LinkState { loss_ppm: 50_000, ..state });
    }
    for bytes in [64_000, 2_000_000] {
        world.brought(world.bring(bytes), bytes);
    }
    let client = world.bring(8_000_000);
    std::thread::sleep(Duration::from_millis(300));
    world.set_path(3, |state| LinkState { up: false, ..state });
    world.brought(client, 8_000_000);
    let peer = world.peer(B);
    let late =
        peer["ways"].as_array().expect("a list").iter().filter(|way| way["late_datagrams"] != 0).count();
    assert!(late >= 8, "{late} ways lost packets: {peer}");
    // A quarter of the paths is down, and half of the paths lose packets, so at most 48 paths are
    // avoided for these reasons. While the machine stalls, further paths are avoided until probes
    // return.
    let began = Instant::now();
    loop {
        let peer = world.peer(B);
        let left =
            peer["ways"].as_array().expect("a list").iter().filter(|way| way["left"] == "late").count();
        if (4..=48).contains(&left) {
            break;
        }
        assert!(began.elapsed() < PATIENCE, "{left} of 64 ways are left: {peer}");
        world.brought(world.bring(64_000), 64_000);
    }
}

/// The agents' own connection takes one path. If this path is down, TCP uses the other paths. The
/// test takes one half of the paths down, then the other half.
#[test]
fn tcp_survives_failure_of_the_agents_own_path() {
    let Some(mut world) = World::new() else { return };
    world.up(A, &[]);
    world.up(B, &[]);
    world.wait(A, true);
    world.wait(B, true);
    // The agent that starts first also logs warnings until its peer is up, so these are counted
    // before.
    let known = world.log().matches("WARN").count();
    let client = world.bring(60_000_000);
    for dead in [0..2, 2..4] {
        for (path, is_up) in (0..PATHS as u32).map(|path| (path, !dead.contains(&path))) {
            world.set_path(path, |state| LinkState { up: is_up, ..state });
        }
        // The silence after which a peer counts as down.
        std::thread::sleep(Duration::from_secs(5));
        assert_eq!(world.log().matches("WARN").count(), known, "{}", world.log());
    }
    world.brought(client, 60_000_000);
    assert_eq!(world.log().matches("WARN").count(), known, "{}", world.log());
}

/// #48: a stopped agent's guard returns TCP to the ordinary route within seconds. Once the agent
/// runs again, TCP uses the device again.
#[test]
fn tcp_continues_by_ordinary_route_while_agent_is_stopped() {
    let Some(mut world) = World::new() else { return };
    world.up(A, &[]);
    world.up(B, &[]);
    world.wait(A, true);
    world.wait(B, true);
    // A killed guard is restarted.
    let first = world.guard(B).expect("an agent has a guard");
    kill_process(first, Signal::KILL).expect("it runs");
    world.until("a new guard", |world| world.guard(B).is_some_and(|guard| guard != first));
    kill_process(world.agent(B), Signal::STOP).expect("it runs");
    world.brought(world.bring(64_000), 64_000);
    assert!(!world.goes_by_device(B), "its guard has deleted the route: {}", world.log());
    kill_process(world.agent(B), Signal::CONT).expect("it runs");
    world.until("the route", |world| world.goes_by_device(B) && world.goes_by_device(A));
    world.wait(A, true);
    world.wait(B, true);
    let before = world.peer(B)["source_packets"].as_u64().expect("a number");
    world.brought(world.bring(64_000), 64_000);
    let packets = world.peer(B)["source_packets"].as_u64().expect("a number") - before;
    assert!(packets >= 40, "{packets} packets went by datagrams");
    world.end(A, false);
    world.end(B, false);
    assert!(!world.rules(B).contains("7200"), "{}", world.rules(B));
}

/// #48: if another program changes the kernel's state, the agent repairs it, and TCP uses the
/// device again.
#[test]
fn routing_changes_by_other_programs_are_repaired() {
    let Some(mut world) = World::new() else { return };
    world.up(A, &[]);
    world.up(B, &[]);
    world.wait(A, true);
    world.wait(B, true);
    let rules = world.rules(A);
    let filter = "for d in all spray0; do echo 1 >/proc/sys/net/ipv4/conf/$d/rp_filter; done";
    for (change, log) in [
        ("ip link set spray0 down", "set the agent's device down"),
        ("ip link delete spray0", "deleted the agent's device"),
        (FLUSH_RULES, "removed the agent's rules"),
        ("ip route flush table 7200", "removed the agent's routes"),
        (filter, "reverse path filtering"),
    ] {
        world.shell(A, change);
        world.until(change, |world| world.log().contains(log));
        world.until(change, |world| world.goes_by_device(A) && world.goes_by_device(B));
        let before = world.peer(A)["came_datagrams"].as_u64().expect("a number");
        world.brought(world.bring(64_000), 64_000);
        let came = world.peer(A)["came_datagrams"].as_u64().expect("a number") - before;
        assert!(came >= 40, "{change}: {came} datagrams came: {}", world.log());
        if change != filter {
            assert_eq!(world.rules(A), rules, "{change}");
        }
    }
}

/// Deletes all rules except the system's.
const FLUSH_RULES: &str =
    "for pref in 7199 7200 7201; do while ip rule del pref $pref 2>/dev/null; do :; done; done";

/// #48: if another program keeps removing the rules, both agents' sessions stay down, because their
/// status shows.
#[test]
fn repeated_removal_of_rules_takes_both_agents_down() {
    let Some(mut world) = World::new() else { return };
    world.up(A, &[]);
    world.up(B, &[]);
    world.wait(A, true);
    world.wait(B, true);
    world.until("down", |world| {
        world.shell(A, FLUSH_RULES);
        world.peer(A)["is_up"] == false && world.peer(B)["is_up"] == false
    });
    let why = |at| world.peer(at)["why"].as_str().unwrap_or_default().to_owned();
    assert_eq!(why(A), "another program removed the agent's rules");
    assert_eq!(why(B), "on its host, another program removed the agent's rules");
    world.brought(world.bring(64_000), 64_000);
    assert!(!world.goes_by_device(A) && !world.goes_by_device(B));
}

/// #48: the next agent deletes the rules of an agent that was killed with its guard, whatever the
/// table of those rules.
#[test]
fn rules_of_a_dead_agents_table_are_deleted() {
    let Some(mut world) = World::new() else { return };
    let other = ["--table", "8200", "--device", "spray1", "--listen", "0.0.0.0:7300"];
    let other = EndedOnDrop(world.start(B, &world.folder.path().join("other.sock"), &other));
    world.up(B, &["--table", "9200"]);
    world.until("rules", |world| ["8200", "9200"].iter().all(|table| world.rules(B).contains(table)));
    let guard = world.guard(B).expect("an agent has a guard");
    kill_process(guard, Signal::STOP).expect("it runs");
    world.end(B, true);
    kill_process(guard, Signal::KILL).expect("it waits");
    assert!(world.rules(B).contains("lookup 9200"), "{}", world.rules(B));
    world.up(B, &[]);
    world.until("rules", |world| world.rules(B).contains("7200") && !world.rules(B).contains("9200"));
    // Rules of another agent that runs on the same host remain.
    assert!(world.rules(B).contains("lookup 8200"), "{}", world.rules(B));
    drop(other);
}

/// Two namespaces joined by a cable, for addresses that emulated networks cannot have. Also keys,
/// and the programs in the namespaces.
struct CabledNamespaces {
    hosts: [Namespace; 2],
    folder: tempfile::TempDir,
    running: Vec<EndedOnDrop>,
}

impl CabledNamespaces {
    /// Creates both hosts, and runs these `ip` commands in each. In a command, `N` stands for the
    /// host's number, 1 or 2, and `M` for the other host's number.
    fn new(commands: &[&str]) -> Option<Self> {
        let hosts = || -> Result<_, String> {
            let hosts = [Namespace::start()?, Namespace::start()?];
            hosts[0].connect("v0", &hosts[1], "v0")?;
            for (host, (own, other)) in hosts.iter().zip([("1", "2"), ("2", "1")]) {
                for command in ["link set v0 up", "link set lo up"].iter().chain(commands) {
                    host.command(&format!("ip {}", command.replace('N', own).replace('M', other)))?;
                }
            }
            Ok(hosts)
        };
        let hosts = hosts().inspect_err(|why| skip(why)).ok()?;
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut keys = anabranch();
        keys.args(["-q", "spray", "keys", "--hosts", "a,b", "--out"]).arg(folder.path().join("keys"));
        assert!(keys.status().expect("it runs").success());
        Some(Self { hosts, folder, running: Vec::new() })
    }

    fn socket(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join(format!("{name}.sock"))
    }

    /// Path of the file with the standard error of the agent of this name.
    fn log(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join(format!("{name}.log"))
    }

    fn spawn(&self, host: usize, mut command: Command) -> EndedOnDrop {
        EndedOnDrop(self.hosts[host].run(move || command.spawn()).expect("it runs"))
    }

    /// Starts the agent of this name: `a` on the first host, another name on the second.
    fn up(&mut self, name: &str, more: &[&str]) {
        let mut agent = anabranch();
        agent.args(["-q", "spray", "up", "--name", name, "--keys"]).arg(self.folder.path().join("keys"));
        let log = std::fs::File::create(self.log(name)).expect("the folder is ours");
        agent.arg("--socket").arg(self.socket(name)).args(more).stderr(log);
        let agent = self.spawn(usize::from(name == "b"), agent);
        self.running.push(agent);
    }

    fn peer(&self, name: &str) -> Value {
        let mut status = anabranch();
        let output = status.args(["spray", "status", "--json", "--socket"]).arg(self.socket(name)).output();
        let status: Value = serde_json::from_slice(&output.expect("it runs").stdout).unwrap_or_default();
        status["peers"][0].clone()
    }

    fn until_up(&self) {
        for name in ["a", "b"] {
            let began = Instant::now();
            while self.peer(name)["is_up"] != true {
                assert!(began.elapsed() < PATIENCE, "{name} is never up: {}", self.peer(name));
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }
}

/// #52: hosts of routed fabrics have their address on the loopback device, but agents connected
/// from the address of the cable.
#[test]
fn agents_connect_from_the_listening_address() {
    let commands = [
        "address add 10.78.0.N/24 dev v0",
        "address add 10.99.0.N/32 dev lo",
        "route add 10.99.0.M via 10.78.0.M",
    ];
    let Some(mut world) = CabledNamespaces::new(&commands) else { return };
    world.up("a", &["--peer", "b=10.99.0.2", "--listen", "10.99.0.1"]);
    world.up("b", &["--peer", "a=10.99.0.1", "--listen", "10.99.0.2:7200"]);
    world.until_up();
    let way = "ip route get 10.99.0.2 from 10.99.0.1 ipproto tcp sport 5000 dport 8000";
    let way = world.hosts[0].command(way).expect("it runs");
    assert!(way.contains("dev spray0"), "{way}");
}

/// #52: one name that did not resolve, or one peer without a route, ended the agent for all peers.
/// A new host required a restart.
#[test]
fn sighup_adds_and_removes_peers_of_the_file() {
    let Some(mut world) = CabledNamespaces::new(&["address add 10.78.0.N/16 dev v0"]) else { return };
    let file = world.folder.path().join("peers");
    let listed = |last: &[&str]| {
        let silent = (0..196).map(|n| format!("h{n}=10.78.1.{n}\n"));
        let named = ["# all hosts\n", "a=10.78.0.1\n", "b=10.78.0.2\n", "c=192.0.2.7 # no route\n"];
        silent.chain(named.iter().chain(last).map(|line| (*line).to_owned())).collect::<String>()
    };
    let write = |text: &str| std::fs::write(&file, text).expect("the folder is ours");
    let socket = world.socket("a");
    let status = |more: &[&str]| {
        let mut status = anabranch();
        let output = status.args(["spray", "status", "--socket"]).arg(&socket).args(more).output();
        String::from_utf8_lossy(&output.expect("it runs").stdout).into_owned()
    };
    let until = |what: &str, is_there: &dyn Fn() -> bool| {
        let began = Instant::now();
        while !is_there() {
            assert!(began.elapsed() < PATIENCE, "{what}: {}", status(&[]));
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    write(&listed(&["d=nosuch.invalid\n"]));
    let path = file.to_str().expect("plain names").to_owned();
    world.up("a", &["--peers", &path]);
    world.up("b", &["--peer", "a=10.78.0.1"]);
    let agent = Pid::from_raw(world.running[0].0.id() as i32).expect("it has one");
    until("b is up", &|| status(&["--summary"]) == "1 of 199 peers up\n");
    until("d is looked up", &|| {
        status(&["--down", "--peer", "d"]).contains("no address of `nosuch.invalid`")
    });
    assert!(status(&["--peer", "c"]).contains("no way to 192.0.2.7"), "{}", status(&["--peer", "c"]));
    assert!(!status(&["--down"]).contains("10.78.0.2"), "b is up");
    let rules = || world.hosts[0].command("ip rule").expect("it runs");
    let of_b = rules().matches("to 10.78.0.2").count();
    assert_eq!((of_b, rules().contains("192.0.2.7")), (3, false), "{}", rules());

    write(&listed(&["d=10.78.2.1\n", "e=10.78.2.2\n"]));
    kill_process(agent, Signal::HUP).expect("it runs");
    until("e is there", &|| status(&["--summary"]) == "1 of 200 peers up\n");
    until("d has rules", &|| rules().contains("to 10.78.2.1") && rules().contains("to 10.78.2.2"));
    write("b=\n");
    kill_process(agent, Signal::HUP).expect("it runs");
    let log = world.log("a");
    until("the mistake is told", &|| {
        std::fs::read_to_string(&log).expect("it is ours").contains("the peers stay as they were")
    });
    assert_eq!(status(&["--summary"]), "1 of 200 peers up\n");
    write(&listed(&[]));
    kill_process(agent, Signal::HUP).expect("it runs");
    until("d and e are gone", &|| status(&["--summary"]) == "1 of 198 peers up\n");
    until("d has no rules", &|| !rules().contains("10.78.2.1"));
    let b: Value = serde_json::from_str(&status(&["--json", "--up"])).expect("JSON");
    assert_eq!((b["up"].as_u64(), b["peers"][0]["name"].as_str()), (Some(1), Some("b")));

    // A terminal's Ctrl-C and a service manager may send two signals; the rules must be deleted all
    // the same.
    kill_process(agent, Signal::TERM).expect("it runs");
    kill_process(agent, Signal::INT).expect("it ends");
    let ended = world.running[0].0.wait().expect("it ends");
    assert!(ended.success(), "{ended}");
    let rules = world.hosts[0].command("ip rule").expect("it runs");
    assert!(!rules.contains("10.78") && !rules.contains("7200"), "{rules}");
}

/// TCP over IPv6 uses the agents, also after the MTU of the cable has been lowered.
#[test]
fn agents_carry_tcp_over_ipv6() {
    let Some(mut world) = CabledNamespaces::new(&["address add fd00::N/64 dev v0 nodad"]) else { return };
    if !has_program("python3") {
        return skip("no python3, whose sockets are the programs here");
    }
    world.up("a", &["--peer", "b=fd00::2"]);
    world.up("b", &["--peer", "a=[fd00::1]:7200"]);
    let mut server = Command::new("python3");
    server.args(["-c", SERVER, "fd00::2"]).stdout(Stdio::piped());
    let mut server = world.spawn(1, server);
    server.0.stdout.as_mut().expect("piped").read_exact(&mut [0; 9]).expect("it listens");
    world.until_up();
    for (bytes, mtu) in [(64_000, 1_500), (2_000_000, 1_500), (2_000_000, 1_400)] {
        for host in &world.hosts {
            host.command(&format!("ip link set v0 mtu {mtu}")).expect("it can be shorter");
        }
        let before = world.peer("b")["source_packets"].as_u64().expect("a number");
        let mut client = Command::new("python3");
        client.args(["-c", CLIENT, "fd00::2", &bytes.to_string()]).stdout(Stdio::piped());
        let mut client = world.spawn(0, client);
        let mut said = String::new();
        client.0.stdout.take().expect("piped").read_to_string(&mut said).expect("text");
        assert_eq!(said.trim(), bytes.to_string());
        let packets = world.peer("b")["source_packets"].as_u64().expect("a number") - before;
        assert!(packets >= 40, "{packets} packets of the short part went by datagrams");
    }
    assert_eq!(world.peer("b")["refused_out_packets"], 0);
    assert!(world.hosts[0].command("ip -6 rule").expect("it runs").contains("lookup 7200"));
}

/// A process that ends with its test.
struct EndedOnDrop(Child);

impl Drop for EndedOnDrop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Keys are replaced after few datagrams. Unsealed datagrams have no effect and get no answer.
#[test]
fn worn_out_keys_are_replaced_and_unsealed_datagrams_ignored() {
    let Some(mut world) = World::new() else { return };
    world.up(A, &["--key-packets", "2000"]);
    world.up(B, &["--key-packets", "2000"]);
    world.wait(A, true);
    world.wait(B, true);
    let stranger = format!(
        r#"
import os, socket
own = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
own.settimeout(0.5)
for size in [0, 1, 11, 28, 44, 1400] * 50:
    own.sendto(os.urandom(size), ("{}", 7200))
try:
    print("answered", len(own.recv(2000)))
except TimeoutError:
    print("silence")
flow = socket.create_connection(("{}", 7200))
flow.sendall(os.urandom(300))
flow.settimeout(5)
try:
    while flow.recv(100): pass
except ConnectionResetError:
    pass
"#,
        world.emulation.site_address(B),
        world.emulation.site_address(B)
    );
    let mut command = Command::new("python3");
    command.args(["-c", &stranger]);
    let stranger = world.emulation.spawn(A, piped(command)).expect("it runs");
    world.brought(world.bring(6_000_000), 6_000_000);
    let said = stranger.wait_with_output().expect("it ends");
    assert_eq!(
        String::from_utf8_lossy(&said.stdout).trim(),
        "silence",
        "{}",
        String::from_utf8_lossy(&said.stderr)
    );
    world.wait(B, true);
    assert!(world.log().contains("keys are worn out"), "{}", world.log());
}

/// Invalid settings are refused in one line, before any state changes.
#[test]
fn invalid_settings_are_refused_in_one_line_before_start() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let keys = folder.path().join("keys");
    let mut made = anabranch();
    made.args(["-q", "spray", "keys", "--hosts", "a,b", "--out"]).arg(&keys);
    assert!(made.status().expect("it runs").success());
    let refused = |arguments: &[&str], words: &str| {
        let mut up = anabranch();
        up.args(["spray", "up", "--keys"])
            .arg(&keys)
            .arg("--socket")
            .arg(folder.path().join("s"))
            .args(arguments);
        let output = up.output().expect("it runs");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(words), "{arguments:?}: {said}");
    };
    refused(&["--name", "a", "--peer", "a=192.0.2.1"], "this host itself");
    refused(&["--name", "a", "--peer", "b=127.0.0.1"], "no other host's address");
    refused(&["--name", "a", "--peer", "b=192.0.2.1", "--ways", "0"], "1..=128");
    refused(&["--name", "a", "--peer", "b=192.0.2.1", "--table", "254"], "table 254");
    refused(&["--name", "a", "--peer", "b=:x"], "a port is a number");
    refused(&["--name", "c", "--peer", "b=192.0.2.1"], "c.pem");
    refused(&["--name", "a"], "--peer");
    let mut status = anabranch();
    let output =
        status.args(["spray", "status", "--socket"]).arg(folder.path().join("s")).output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("does the agent run?"), "{said}");
}
