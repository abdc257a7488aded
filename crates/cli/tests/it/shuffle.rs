//! `shuffle` over real flows: hosts as network namespaces on a bridge, a coordinator and agents as processes.
//!
//! Hosts' links are as fast as they come; what holds flows back are the agents' limits alone. Namespaces have no names, so
//! they vanish with their threads and processes. Where the machine allows none, the tests print why and count what they
//! skip. Read [`Star`] and [`Load`] first.

#[path = "../../../pace/tests/it/namespace.rs"]
mod namespace;

use crate::net::PATIENCE;
use crate::{anabranch, skip, text};
use anabranch_pace::{Flow, FlowReader};
use namespace::Namespace;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

/// Each test's flows would slow another's.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
/// What hosts say of their links, Mbit/s.
const LINKS: [u64; 3] = [8, 24, 32];

/// The longest that limits are waited for.
const WAIT_MAX: Duration = Duration::from_secs(20);
/// What a flow sends without a limit, Mbit/s.
const LOAD_MBPS: u64 = 40;

/// Three hosts and a switch, where the coordinator runs.
struct Star {
    folder: tempfile::TempDir,
    switch: Namespace,
    hosts: Vec<Namespace>,
    coordinator: Option<Child>,
    agents: [Option<Child>; 3],
    _alone: std::sync::MutexGuard<'static, ()>,
}

impl Star {
    /// With a coordinator and no agents; `None`, with the reason printed, where the machine allows no namespaces.
    fn start() -> Option<Self> {
        let alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let namespaces = || -> Result<_, String> {
            let switch = Namespace::start()?;
            switch.command("ip link set lo up")?;
            switch.command("ip link add br0 type bridge")?;
            switch.command("ip address add 10.9.7.254/24 dev br0")?;
            switch.command("ip link set br0 up")?;
            let mut hosts = Vec::new();
            for number in 0..LINKS.len() {
                let host = Namespace::start()?;
                switch
                    .command(&format!("ip link add p{number} type veth peer name v0 netns {}", host.id()))?;
                switch.command(&format!("ip link set p{number} master br0 up"))?;
                host.command(&format!("ip address add 10.9.7.{}/24 dev v0", number + 1))?;
                host.command("ip link set v0 up")?;
                host.command("ip link set lo up")?;
                hosts.push(host);
            }
            Ok((switch, hosts))
        };
        let (switch, hosts) = match namespaces() {
            Ok(both) => both,
            Err(why) => {
                skip(&why);
                return None;
            }
        };
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (coordinator, agents) = (None, [None, None, None]);
        let mut star = Self { folder, switch, hosts, coordinator, agents, _alone: alone };
        let made = anabranch()
            .args(["shuffle", "keys", "--hosts", "h0,h1,h2", "--operators", "operator", "--out"])
            .arg(star.path("keys"))
            .output()
            .expect("the command runs");
        assert!(made.status.success(), "{}", text(&made.stderr));
        star.start_coordinator();
        Some(star)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Starts this in a namespace and waits for its first line.
    fn spawn(namespace: &Namespace, mut command: std::process::Command) -> Child {
        command.stderr(Stdio::piped());
        let mut child = namespace.run(move || command.spawn()).expect("it starts");
        let mut said = BufReader::new(child.stderr.take().expect("it is piped")).lines();
        let line = said.next().expect("it says something").expect("text");
        eprintln!("{line}");
        // Whatever it says later, nobody must make it wait.
        std::thread::spawn(move || said.map_while(Result::ok).for_each(|line| eprintln!("{line}")));
        child
    }

    fn start_coordinator(&mut self) {
        let mut command = anabranch();
        command
            .args(["shuffle", "coordinator", "--allocator", "varys", "--listen", "10.9.7.254:7190", "--keys"])
            .arg(self.path("keys"));
        command.arg("--store").arg(self.path("coordinator.redb"));
        self.coordinator = Some(Self::spawn(&self.switch, command));
    }

    fn start_agent(&mut self, host: usize, more: &[&str]) {
        let mut command = anabranch();
        command.args(["shuffle", "agent", "--coordinator", "https://10.9.7.254:7190", "--name"]);
        command.arg(format!("h{host}")).arg("--keys").arg(self.path("keys"));
        command.args(["--link", &format!("{} Mbit/s", LINKS[host])]).args(more);
        command.arg("--listen").arg(self.path(&format!("h{host}.sock")));
        command.arg("--state").arg(self.path(&format!("h{host}.jsonl")));
        self.agents[host] = Some(Self::spawn(&self.hosts[host], command));
    }

    /// A flow from one host to another, which sends nothing before it is told to.
    fn load(&self, from: usize, to: usize) -> Load {
        let address = format!("10.9.7.{}:0", to + 1);
        let listener = self.hosts[to].run(move || TcpListener::bind(address).expect("its own address"));
        let remote = listener.local_addr().expect("bound");
        let stream = self.hosts[from].run(move || TcpStream::connect(remote).expect("listening"));
        let local = stream.local_addr().expect("connected");
        let (received, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (count, is_over) = (received.clone(), stop.clone());
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("it is connected");
            let mut chunk = vec![0; 64 << 10];
            while let Ok(length @ 1..) = stream.read(&mut chunk) {
                count.fetch_add(length as u64, Ordering::Relaxed);
            }
        });
        let (go, may_go) = mpsc::channel::<()>();
        std::thread::spawn(move || {
            let (mut stream, chunk) = (stream, [0; 16 << 10]);
            let _ = may_go.recv();
            let (begun, mut sent) = (Instant::now(), 0);
            while !is_over.load(Ordering::Relaxed) && begun.elapsed() < PATIENCE {
                if stream.write_all(&chunk).is_err() {
                    break;
                }
                sent += chunk.len() as u64;
                let due = Duration::from_micros(8 * sent / LOAD_MBPS);
                std::thread::sleep(due.saturating_sub(begun.elapsed()).min(Duration::from_millis(5)));
            }
        });
        Load { from, flow: Flow::new(local, remote), received, stop, go }
    }

    fn say(&self, host: usize, line: &str) -> Value {
        let stream = UnixStream::connect(self.path(&format!("h{host}.sock"))).expect("the agent listens");
        (&stream).write_all(format!("{line}\n").as_bytes()).expect("it reads");
        let mut reply = String::new();
        BufReader::new(&stream).read_line(&mut reply).expect("it answers");
        serde_json::from_str(&reply).expect("JSON")
    }

    fn announce(&self, load: &Load, transfer: &str, megabytes: u64) {
        let (local, remote) = (load.flow.local(), load.flow.remote());
        let size = 1_000_000 * megabytes;
        let line = format!(
            r#"{{"flow":{{"local":"{local}","remote":"{remote}"}},"transfer":"{transfer}","size_bytes":{size}}}"#
        );
        assert_eq!(self.say(load.from, &line), serde_json::json!({ "ok": true }));
    }

    /// What the flow's socket may be paced at, Mbit/s.
    fn limit(&self, load: &Load) -> Option<f64> {
        let flow = load.flow;
        let state = self.hosts[load.from].run(move || FlowReader::new().and_then(|mut r| r.find(flow)));
        let limit = state.expect("it can be asked").expect("the flow is there").pacing_limit;
        limit.map(|rate| rate.as_mbps_f64())
    }

    /// Waits until flows have these limits, within 6 %, and says how long that took.
    fn wait_for(&self, wanted: &[(&Load, Option<f64>)]) -> Duration {
        let begun = Instant::now();
        loop {
            let limits: Vec<_> = wanted.iter().map(|(load, _)| self.limit(load)).collect();
            let is_near = |(a, b): (&Option<f64>, Option<f64>)| match (a, b) {
                (Some(a), Some(b)) => (a / b - 1.0).abs() < 0.03,
                (a, b) => a.is_none() && b.is_none(),
            };
            if limits.iter().zip(wanted.iter().map(|(_, limit)| *limit)).all(is_near) {
                return begun.elapsed();
            }
            let all: Vec<_> = wanted.iter().map(|(_, limit)| limit).collect();
            assert!(begun.elapsed() < WAIT_MAX, "{limits:?} where {all:?} are to be");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn status(&self) -> Value {
        let mut command = anabranch();
        command.args([
            "shuffle",
            "status",
            "--json",
            "--history",
            "9",
            "--coordinator",
            "https://10.9.7.254:7190",
        ]);
        command.arg("--keys").arg(self.path("keys"));
        let output = self.switch.run(move || command.output()).expect("it runs");
        assert!(output.status.success(), "{}", text(&output.stderr));
        serde_json::from_slice(&output.stdout).expect("JSON")
    }

    /// Two transfers as in the paper's figure 5: a's first flow has the narrow link to itself, its second shares one with b.
    fn figure_5(&self) -> [Load; 3] {
        let loads = [self.load(0, 2), self.load(1, 2), self.load(1, 2)];
        loads.iter().for_each(Load::go);
        self.announce(&loads[0], "a", 60);
        self.announce(&loads[1], "a", 60);
        self.announce(&loads[2], "b", 600);
        self.wait_for(&with(&loads, FIGURE_5));
        loads
    }
}

/// What figure 5's flows get: a's second flow is as fast as its first, and b has the rest.
const FIGURE_5: [Option<f64>; 3] = [Some(8.0), Some(8.0), Some(16.0)];

fn with(loads: &[Load; 3], limits: [Option<f64>; 3]) -> Vec<(&Load, Option<f64>)> {
    loads.iter().zip(limits).collect()
}

fn kill(child: &mut Option<Child>) {
    let mut child = child.take().expect("it runs");
    child.kill().expect("ours to kill");
    child.wait().expect("ours to reap");
}

impl Drop for Star {
    fn drop(&mut self) {
        let agents = self.agents.iter_mut().filter_map(Option::take);
        for mut child in agents.chain(self.coordinator.take()) {
            drop(child.kill());
            drop(child.wait());
        }
    }
}

/// A flow that sends all that it may.
struct Load {
    from: usize,
    flow: Flow,
    received: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    go: mpsc::Sender<()>,
}

impl Load {
    fn go(&self) {
        self.go.send(()).expect("its thread waits for this");
    }

    fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Mbit/s that arrive over the next so long.
    fn rates(loads: &[Self], time: Duration) -> Vec<f64> {
        let count = || loads.iter().map(|l| l.received.load(Ordering::Relaxed)).collect::<Vec<_>>();
        let (begun, before) = (Instant::now(), count());
        std::thread::sleep(time);
        let (seconds, after) = (begun.elapsed().as_secs_f64(), count());
        before.iter().zip(after).map(|(b, a)| (a - b) as f64 * 8e-6 / seconds).collect()
    }

    /// Waits until this many bytes more have arrived.
    fn moves(&self, bytes: u64) {
        let (begun, before) = (Instant::now(), self.received.load(Ordering::Relaxed));
        while self.received.load(Ordering::Relaxed) < before + bytes {
            assert!(begun.elapsed() < PATIENCE, "{} stands still", self.flow);
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        // One that never went ends as nobody can tell it to any more.
        self.stop();
    }
}

#[test]
fn flows_of_two_transfers_run_at_their_rates_until_they_end() {
    let Some(mut star) = Star::start() else { return };
    (0..3).for_each(|host| star.start_agent(host, &[]));
    let loads = star.figure_5();
    // What was sent before the limits drains.
    std::thread::sleep(Duration::from_millis(300));
    let rates = Load::rates(&loads, Duration::from_secs(1));
    println!("{rates:.1?} Mbit/s where {FIGURE_5:?} were set");
    for (rate, limit) in rates.iter().zip(FIGURE_5) {
        let share = rate / limit.expect("all are limited");
        assert!((0.6..1.1).contains(&share), "{rates:?}");
    }
    let status = star.status();
    let transfers = status["transfers"].as_array().expect("an array");
    let names: Vec<_> = transfers.iter().map(|t| t["name"].as_str().expect("a name")).collect();
    assert_eq!(names, ["a", "b"]);
    assert_eq!(transfers[0]["flows"].as_array().map(Vec::len), Some(2));
    let remaining = transfers[0]["flows"][0]["remaining_bytes"].as_u64().expect("a number");
    assert!((1_000_000..59_900_000).contains(&remaining), "{status}");

    // b has h1's link to itself once a is through.
    loads[0].stop();
    loads[1].stop();
    star.wait_for(&[(&loads[2], Some(24.0))]);
    let ended = loop {
        let status = star.status();
        if let Some(ended) = status["history"].as_array().and_then(|history| history.first()) {
            break ended.clone();
        }
    };
    assert_eq!((ended["name"].as_str(), ended["flows"].as_u64()), (Some("a"), Some(2)), "{ended}");

    // Told to end, an agent lifts what it has set.
    let agent = star.agents[1].as_mut().expect("it runs");
    let pid = Pid::from_raw(agent.id() as i32).expect("a process");
    kill_process(pid, Signal::TERM).expect("ours");
    assert!(agent.wait().expect("ours to reap").success());
    assert_eq!(star.limit(&loads[2]), None);
}

#[test]
fn a_flow_that_sends_nothing_lends_its_rate_until_it_does() {
    let Some(mut star) = Star::start() else { return };
    (0..3).for_each(|host| star.start_agent(host, &[]));
    let (idle, other) = (star.load(1, 2), star.load(1, 2));
    other.go();
    star.announce(&idle, "a", 60);
    star.announce(&other, "b", 600);
    // a is the smaller one, and comes first.
    star.wait_for(&[(&idle, Some(24.0)), (&other, Some(0.1))]);
    star.wait_for(&[(&idle, None), (&other, Some(24.0))]);
    let transfers = &star.status()["transfers"];
    assert_eq!(transfers[0]["flows"][0]["rate_bps"], Value::Null, "{transfers}");
    idle.go();
    star.wait_for(&[(&idle, Some(24.0)), (&other, Some(0.1))]);
}

#[test]
fn without_a_coordinator_nothing_is_limited_and_with_it_again_all_is() {
    let Some(mut star) = Star::start() else { return };
    (0..3).for_each(|host| star.start_agent(host, &[]));
    let loads = star.figure_5();
    kill(&mut star.coordinator);
    let lifted = star.wait_for(&with(&loads, [None; 3]));
    println!("limits are lifted {lifted:.2?} after the coordinator was killed");
    loads.iter().for_each(|load| load.moves(1_000_000));
    star.start_coordinator();
    let back = star.wait_for(&with(&loads, FIGURE_5));
    println!("limits are there again {back:.2?} after it is back");
}

/// The processes that this one has started.
fn children(of: &Child) -> Vec<Pid> {
    let path = format!("/proc/{0}/task/{0}/children", of.id());
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.split_whitespace().filter_map(|word| Pid::from_raw(word.parse().ok()?)).collect()
}

#[test]
fn a_killed_agent_leaves_no_limit_behind() {
    let Some(mut star) = Star::start() else { return };
    (0..3).for_each(|host| star.start_agent(host, &[]));
    let loads = star.figure_5();
    kill(&mut star.agents[1]);
    let lifted = star.wait_for(&[(&loads[1], None), (&loads[2], None)]);
    println!("limits are lifted {lifted:.2?} after the agent was killed");
    loads.iter().for_each(|load| load.moves(500_000));
    // The other flow of a has its host's link in any case.
    star.wait_for(&[(&loads[0], Some(8.0))]);

    // With its guard killed, too, limits stay, and the next agent lifts them.
    star.start_agent(1, &[]);
    star.announce(&loads[1], "a", 60);
    star.announce(&loads[2], "b", 600);
    let are_limited = || loads[1..].iter().all(|load| star.limit(load).is_some());
    let begun = Instant::now();
    while !are_limited() {
        assert!(begun.elapsed() < PATIENCE, "limits are set again");
    }
    let guards = children(star.agents[1].as_ref().expect("it runs"));
    if guards.is_empty() {
        return skip("/proc does not say which children a process has");
    }
    for guard in guards {
        kill_process(guard, Signal::KILL).expect("ours");
    }
    kill(&mut star.agents[1]);
    loads.iter().for_each(|load| load.moves(200_000));
    assert!(loads[1..].iter().all(|load| star.limit(load).is_some()));
    star.start_agent(1, &[]);
    star.wait_for(&[(&loads[1], None), (&loads[2], None)]);
}

#[test]
fn rules_announce_flows_and_nobody_else_does_for_another() {
    let Some(mut star) = Star::start() else { return };
    let load = star.load(1, 2);
    load.go();
    let rules =
        format!("[[rule]]\nremote_port = {}\ntransfer = 'to-{{remote_host}}'\n", load.flow.remote().port());
    std::fs::write(star.path("rules.toml"), rules).expect("the folder is ours");
    let path = star.path("rules.toml").display().to_string();
    star.start_agent(1, &["--rules", &path]);
    // Its receiver has no agent: its sender's link is the narrow one.
    star.wait_for(&[(&load, Some(24.0))]);
    assert_eq!(star.status()["transfers"][0]["name"], "to-10.9.7.3");

    let known: SocketAddr = load.flow.local();
    for (line, says) in [
        ("{", "EOF"),
        (r#"{"flow":1}"#, "invalid type"),
        (r#"{"more":1}"#, "unknown field"),
        ("{}", "write flow, transfer and size_bytes"),
        (r#"{"ended":{"local":"10.9.7.2:1","remote":"10.9.7.3:1"}}"#, "no such connection"),
        (
            &format!(
                r#"{{"flow":{{"local":"{known}","remote":"{}"}},"transfer":"a b","size_bytes":1}}"#,
                load.flow.remote()
            ),
            "printable",
        ),
        (&" ".repeat(1_100), "1024 bytes"),
    ] {
        let reply = star.say(1, line);
        let error = reply["error"].as_str().unwrap_or_default();
        assert!(reply["ok"] == false && error.contains(says) && !error.contains('\n'), "{line}: {reply}");
    }
    // What its transfer waits for is moved, though the connection stays.
    let (local, remote) = (load.flow.local(), load.flow.remote());
    let reply = star.say(1, &format!(r#"{{"ended":{{"local":"{local}","remote":"{remote}"}}}}"#));
    assert_eq!(reply["ok"], true);
    star.wait_for(&[(&load, None)]);
}
