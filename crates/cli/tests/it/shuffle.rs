//! `shuffle` over real flows: hosts as network namespaces on a bridge, a coordinator and agents as
//! processes.
//!
//! The links of hosts are unshaped, so only the agents' limits slow flows down. Namespaces have no
//! names, so they vanish with their threads and processes. If the machine allows no namespaces, the
//! tests print the reason and count as skipped. Read [`Star`] and [`Load`] first.

use crate::namespace::Namespace;
use crate::net::PATIENCE;
use crate::{anabranch, skip, text};
use anabranch_announce::{AnnounceError, Announcer};
use anabranch_pace::{FlowKey, FlowReader};
use anabranch_units::{ByteCount, Seed};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

/// Concurrent tests would slow each other's flows.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
/// Goodput that hosts report for their links, in Mbit/s.
const LINKS: [u64; 3] = [8, 24, 32];

/// Time limit of waits for rate limits.
const WAIT_MAX: Duration = Duration::from_secs(60);
/// Longest life of a flow: longer than any test.
const LOAD_MAX: Duration = Duration::from_secs(900);
/// Number of measured intervals. While the machine is busy, flows pause and catch up.
const WINDOWS: usize = 30;
/// Rate of a flow without a limit, in Mbit/s.
const LOAD_MBPS: u64 = 40;

/// Three hosts and a switch; the coordinator runs in the switch's namespace.
struct Star {
    folder: tempfile::TempDir,
    switch: Namespace,
    hosts: Vec<Namespace>,
    coordinator: Option<Child>,
    agents: [Option<Child>; 3],
    _alone: std::sync::MutexGuard<'static, ()>,
}

impl Star {
    /// Starts the hosts and a coordinator, without agents. Returns `None`, with a printed reason,
    /// if the machine allows no namespaces.
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
                switch.connect(&format!("p{number}"), &host, "v0")?;
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

    /// Starts a program in a namespace and waits for its first line.
    fn spawn(namespace: &Namespace, mut command: Command) -> Child {
        command.stderr(Stdio::piped());
        let mut child = namespace.run(move || command.spawn()).expect("it starts");
        let mut said = BufReader::new(child.stderr.take().expect("it is piped")).lines();
        let line = said.next().expect("it says something").expect("text");
        eprintln!("{line}");
        // The thread drains later output, so that the program never blocks on it.
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

    /// A listener at this host that accepts one connection and counts its bytes.
    fn sink(&self, host: usize) -> (SocketAddr, Arc<AtomicU64>) {
        let address = format!("10.9.7.{}:0", host + 1);
        let listener = self.hosts[host].run(move || TcpListener::bind(address).expect("its own address"));
        let (remote, received) = (listener.local_addr().expect("bound"), Arc::new(AtomicU64::new(0)));
        let count = received.clone();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("it is connected");
            let mut chunk = vec![0; 64 << 10];
            while let Ok(length @ 1..) = stream.read(&mut chunk) {
                count.fetch_add(length as u64, Ordering::Relaxed);
            }
        });
        (remote, received)
    }

    /// Starts a Python program at host 1 that sends to host 2, and returns it with the flow that it
    /// announces.
    fn python(&self, script: &str, more: impl FnOnce(&mut Command)) -> (Load, Child) {
        let (remote, received) = self.sink(2);
        let begin = "import os, socket, sys\ns = socket.create_connection((sys.argv[1], int(sys.argv[2])))\n\
            print(s.getsockname()[1], flush=True)\n";
        let mut command = Command::new("python3");
        command.args([
            "-c",
            &format!("{begin}{script}"),
            &remote.ip().to_string(),
            &remote.port().to_string(),
        ]);
        command.env("ANABRANCH_SHUFFLE_SOCKET", self.path("h1.sock")).current_dir(self.folder.path());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        more(&mut command);
        let mut child = self.hosts[1].run(move || command.spawn()).expect("it starts");
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().expect("it is piped")).read_line(&mut line).expect("text");
        let port = line.trim().parse().expect("a port");
        let flow = FlowKey::new((Ipv4Addr::new(10, 9, 7, 2), port).into(), remote);
        let (stop, (go, _)) = (Arc::new(AtomicBool::new(false)), mpsc::channel());
        (Load { from: 1, flow, received, stop, go }, child)
    }

    /// Connects a flow from one host to another, which sends nothing before [`Load::go`].
    fn load(&self, from: usize, to: usize) -> Load {
        let (remote, received) = self.sink(to);
        let stream = self.hosts[from].run(move || TcpStream::connect(remote).expect("listening"));
        let local = stream.local_addr().expect("connected");
        let stop = Arc::new(AtomicBool::new(false));
        let is_over = stop.clone();
        let (go, may_go) = mpsc::channel::<()>();
        std::thread::spawn(move || {
            let (mut stream, chunk) = (stream, [0; 16 << 10]);
            let _ = may_go.recv();
            let (begun, mut sent) = (Instant::now(), 0);
            while !is_over.load(Ordering::Relaxed) && begun.elapsed() < LOAD_MAX {
                if stream.write_all(&chunk).is_err() {
                    break;
                }
                sent += chunk.len() as u64;
                let due = Duration::from_micros(8 * sent / LOAD_MBPS);
                std::thread::sleep(due.saturating_sub(begun.elapsed()).min(Duration::from_millis(5)));
            }
        });
        Load { from, flow: FlowKey::new(local, remote), received, stop, go }
    }

    fn say(&self, host: usize, line: &str) -> Value {
        let stream = UnixStream::connect(self.path(&format!("h{host}.sock"))).expect("the agent listens");
        (&stream).write_all(format!("{line}\n").as_bytes()).expect("it reads");
        let mut reply = String::new();
        BufReader::new(&stream).read_line(&mut reply).expect("it answers");
        serde_json::from_str(&reply).expect("JSON")
    }

    fn announce(&self, load: &Load, coflow: &str, megabytes: u64) {
        let (local, remote) = (load.flow.local, load.flow.remote);
        let size = 1_000_000 * megabytes;
        let line = format!(
            r#"{{"flow":{{"local":"{local}","remote":"{remote}"}},"coflow":"{coflow}","size_bytes":{size}}}"#
        );
        assert_eq!(self.say(load.from, &line), serde_json::json!({ "ok": true }));
    }

    /// Pacing limit of the flow's socket, in Mbit/s.
    fn limit(&self, load: &Load) -> Option<f64> {
        let flow = load.flow;
        let state = self.hosts[load.from].run(move || FlowReader::new().and_then(|mut r| r.find(flow)));
        let limit = state.expect("it can be asked").expect("the flow is there").pacing_limit;
        limit.map(|rate| rate.as_mbps_f64())
    }

    /// Waits until the flows have these limits, within 6 %. Returns the time that this took.
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
            assert!(begun.elapsed() < WAIT_MAX, "{limits:?} where {all:?} are to be: {}", self.status());
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

    /// Waits until the limits of figure 5's flows fill the link of h1, however far the flows have
    /// progressed.
    fn wait_for_full_links(&self, loads: &[Load; 3]) {
        let begun = Instant::now();
        loop {
            match loads.each_ref().map(|load| self.limit(load)) {
                [Some(a), Some(b), Some(c)] if a < 8.3 && ((b + c) / 24.0 - 1.0).abs() < 0.03 => return,
                limits => assert!(begun.elapsed() < WAIT_MAX, "{limits:?}: {}", self.status()),
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Starts two coflows as in the paper's figure 5: the first flow of a has the narrow link
    /// alone, and the second flow of a shares a link with b.
    fn figure_5(&self, a: &str, b: &str) -> [Load; 3] {
        let loads = [self.load(0, 2), self.load(1, 2), self.load(1, 2)];
        loads.iter().for_each(Load::go);
        self.announce(&loads[0], a, 600);
        self.announce(&loads[1], a, 600);
        self.announce(&loads[2], b, 6_000);
        loads
    }
}

/// Limits of figure 5's flows: both flows of a have the same rate, and b gets the remaining rate.
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

/// A flow that sends as fast as its limit permits.
struct Load {
    from: usize,
    flow: FlowKey,
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

    /// Measures the flows' rates over the next second, in Mbit/s.
    fn rates(loads: &[Self]) -> Vec<f64> {
        let count = || loads.iter().map(|l| l.received.load(Ordering::Relaxed)).collect::<Vec<_>>();
        let (begun, before) = (Instant::now(), count());
        std::thread::sleep(Duration::from_secs(1));
        let (seconds, after) = (begun.elapsed().as_secs_f64(), count());
        before.iter().zip(after).map(|(b, a)| (a - b) as f64 * 8e-6 / seconds).collect()
    }

    /// Asserts that the flows run near these rates, all in one of [`WINDOWS`] intervals.
    fn assert_run_at(loads: &[Self], wanted_mbps: &[f64]) {
        let is_near = |_| {
            let rates = Self::rates(loads);
            println!("{rates:.1?} Mbit/s where {wanted_mbps:?} were set");
            rates.iter().zip(wanted_mbps).all(|(rate, wanted)| (0.6..1.1).contains(&(rate / wanted)))
        };
        assert!((0..WINDOWS).any(is_near), "never near {wanted_mbps:?} Mbit/s");
    }

    /// Waits until this many further bytes have arrived.
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
        // A flow that was never started ends, because nothing can start it any more.
        self.stop();
    }
}

#[test]
fn flows_of_two_coflows_keep_their_rates_until_complete() {
    let Some(mut star) = Star::start() else { return };
    // Kernels before Linux 5.18 do not have this setting.
    let bursts = |star: &Star| star.hosts[1].run(|| anabranch_pace::tso_rtt_log().ok());
    let before = bursts(&star);
    (0..3).for_each(|host| star.start_agent(host, &[]));
    assert_eq!(bursts(&star), before.map(|_| 0));
    let loads = star.figure_5("a", "b");
    star.wait_for(&with(&loads, FIGURE_5));
    // Data sent before the limits were set leaves the queues.
    std::thread::sleep(Duration::from_millis(300));
    Load::assert_run_at(&loads, &FIGURE_5.map(|limit| limit.expect("all are limited")));
    let status = star.status();
    let coflows = status["coflows"].as_array().expect("an array");
    let names: Vec<_> = coflows.iter().map(|coflow| coflow["name"].as_str().expect("a name")).collect();
    assert_eq!(names, ["a", "b"]);
    assert_eq!(coflows[0]["flows"].as_array().map(Vec::len), Some(2));
    let remaining = coflows[0]["flows"][0]["remaining_bytes"].as_u64().expect("a number");
    assert!((1_000_000..599_900_000).contains(&remaining), "{status}");

    // The flow of b has the link of h1 alone once a is complete.
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

    // An agent that ends by a signal lifts its limits and restores settings.
    let agent = star.agents[1].as_mut().expect("it runs");
    let pid = Pid::from_raw(agent.id() as i32).expect("a process");
    kill_process(pid, Signal::TERM).expect("ours");
    assert!(agent.wait().expect("ours to reap").success());
    assert_eq!(star.limit(&loads[2]), None);
    assert_eq!(bursts(&star), before);
}

#[test]
fn idle_flow_lends_its_rate_until_it_sends() {
    let Some(mut star) = Star::start() else { return };
    (0..3).for_each(|host| star.start_agent(host, &[]));
    let (idle, other) = (star.load(1, 2), star.load(1, 2));
    other.go();
    star.announce(&idle, "a", 600);
    star.announce(&other, "b", 6_000);
    star.wait_for(&[(&idle, None), (&other, Some(24.0))]);
    let coflows = &star.status()["coflows"];
    assert_eq!(coflows[0]["flows"][0]["rate_bps"], Value::Null, "{coflows}");
    // The coflow a is smaller, so its flow has priority once it sends.
    idle.go();
    star.wait_for(&[(&idle, Some(23.76)), (&other, Some(0.24))]);
}

#[test]
fn limits_are_lifted_without_the_coordinator_and_set_again() {
    let Some(mut star) = Star::start() else { return };
    (0..3).for_each(|host| star.start_agent(host, &[]));
    let loads = star.figure_5("a", "b");
    star.wait_for(&with(&loads, FIGURE_5));
    kill(&mut star.coordinator);
    let lifted = star.wait_for(&with(&loads, [None; 3]));
    println!("limits are lifted {lifted:.2?} after the coordinator was killed");
    loads.iter().for_each(|load| load.moves(1_000_000));
    star.start_coordinator();
    let back = star.wait_for(&with(&loads, FIGURE_5));
    println!("limits are there again {back:.2?} after it is back");
}

/// Child processes of a process.
fn children(of: &Child) -> Vec<Pid> {
    let path = format!("/proc/{0}/task/{0}/children", of.id());
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.split_whitespace().filter_map(|word| Pid::from_raw(word.parse().ok()?)).collect()
}

/// Kills an agent's guard and then the agent. Returns false if the guard is not found; then both
/// still run.
fn kill_with_guard(agent: &mut Option<Child>) -> bool {
    let guards = children(agent.as_ref().expect("it runs"));
    if guards.is_empty() {
        return false;
    }
    guards.into_iter().for_each(|guard| kill_process(guard, Signal::KILL).expect("ours"));
    kill(agent);
    true
}

#[test]
fn limits_of_a_killed_agent_are_lifted() {
    let Some(mut star) = Star::start() else { return };
    (0..3).for_each(|host| star.start_agent(host, &[]));
    let loads = star.figure_5("a", "b");
    star.wait_for(&with(&loads, FIGURE_5));
    kill(&mut star.agents[1]);
    let lifted = star.wait_for(&[(&loads[1], None), (&loads[2], None)]);
    println!("limits are lifted {lifted:.2?} after the agent was killed");
    loads.iter().for_each(|load| load.moves(500_000));
    // The other flow of a has the link of its host alone, whatever happens here.
    star.wait_for(&[(&loads[0], Some(8.0))]);

    // Without the guard, limits remain until the next agent lifts them.
    star.start_agent(1, &[]);
    star.announce(&loads[1], "a", 600);
    star.announce(&loads[2], "b", 6_000);
    let are_limited = || loads[1..].iter().all(|load| star.limit(load).is_some());
    let begun = Instant::now();
    while !are_limited() {
        assert!(begun.elapsed() < PATIENCE, "limits are set again");
    }
    if !kill_with_guard(&mut star.agents[1]) {
        return skip("/proc does not say which children a process has");
    }
    loads.iter().for_each(|load| load.moves(200_000));
    assert!(loads[1..].iter().all(|load| star.limit(load).is_some()));
    star.start_agent(1, &[]);
    star.wait_for(&[(&loads[1], None), (&loads[2], None)]);
}

/// The state of a killed agent is removed by its guard, or by the next agent if the guard was
/// killed, too. This includes state that is not on a flow's socket.
#[test]
fn queue_and_burst_setting_of_killed_agent_are_removed() {
    let Some(mut star) = Star::start() else { return };
    let left = |star: &Star| {
        let queue = star.hosts[1].command("tc qdisc show dev v0").unwrap_or_default();
        (queue.contains("htb"), star.hosts[1].run(|| anabranch_pace::tso_rtt_log().ok()))
    };
    let wait_for = |star: &Star, wanted| {
        let begun = Instant::now();
        while left(star) != wanted {
            assert!(begun.elapsed() < PATIENCE, "{:?} where {wanted:?} is to be", left(star));
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    let before = left(&star);
    assert!(!before.0, "nobody else has a queue there");
    let ours = (true, before.1.map(|_| 0));
    star.start_agent(1, &["--device", "v0"]);
    if !left(&star).0 {
        return skip("no HTB");
    }
    assert_eq!(left(&star), ours);
    kill(&mut star.agents[1]);
    wait_for(&star, before);

    star.start_agent(1, &["--device", "v0"]);
    if !kill_with_guard(&mut star.agents[1]) {
        return skip("/proc does not say which children a process has");
    }
    assert_eq!(left(&star), ours);
    star.start_agent(1, &["--device", "v0"]);
    assert_eq!(left(&star), ours);
    let agent = star.agents[1].as_mut().expect("it runs");
    kill_process(Pid::from_raw(agent.id() as i32).expect("a process"), Signal::TERM).expect("ours");
    assert!(agent.wait().expect("ours to reap").success());
    assert_eq!(left(&star), before);
}

/// Maximum stall of a flow under any kills, on an idle machine. At the minimum rate a flow moves
/// four times a second. Data sent in a large burst before an agent started may take longer.
const STALL_MAX: Duration = Duration::from_secs(3);
/// Maximum stall while other tests keep the machine busy. It only finds flows that never go on.
const BUSY_STALL_MAX: Duration = Duration::from_secs(60);

/// Kills, freezes and starts coordinator and agents at random while figure 5's flows run. Returns
/// the longest stall of a flow. At the end all processes run, and the limits are in force.
fn survive(star: &mut Star, seed: Seed, stall_max: Duration) -> Duration {
    let mut random = seed.stream("kills", 0);
    // The names are unique, because the previous schedule's coflows may not have ended yet.
    let [a, b] = ["a", "b"].map(|name| format!("{name}-{seed:?}").replace(' ', ""));
    let loads = star.figure_5(&a, &b);
    star.wait_for_full_links(&loads);
    let (is_over, counts) = (AtomicBool::new(false), loads.each_ref().map(|load| load.received.clone()));
    let watch = || {
        let (mut longest, mut seen) = (Duration::ZERO, [(0, Instant::now()); 3]);
        while !is_over.load(Ordering::Relaxed) {
            for (count, (before, at)) in counts.iter().zip(&mut seen) {
                let now = count.load(Ordering::Relaxed);
                longest = longest.max(at.elapsed());
                if now != *before {
                    (*before, *at) = (now, Instant::now());
                }
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        longest
    };
    let announce = |star: &Star, host: usize| match host {
        0 => star.announce(&loads[0], &a, 600),
        1 => {
            star.announce(&loads[1], &a, 600);
            star.announce(&loads[2], &b, 6_000);
        }
        _ => {}
    };
    std::thread::scope(|scope| {
        let watch = scope.spawn(watch);
        for _ in 0..2 + random.below(4) {
            // Index of an agent; above the agents' indices, the coordinator.
            let who = random.below(5).min(3) as usize;
            let child = if who < 3 { &mut star.agents[who] } else { &mut star.coordinator };
            match child {
                Some(child) if random.below(3) == 0 => {
                    let pid = Pid::from_raw(child.id() as i32).expect("a process");
                    kill_process(pid, Signal::STOP).expect("ours");
                    std::thread::sleep(Duration::from_millis(random.below(1_500)));
                    kill_process(pid, Signal::CONT).expect("ours");
                }
                Some(_) => kill(child),
                None if who < 3 => {
                    star.start_agent(who, &[]);
                    announce(star, who);
                }
                None => star.start_coordinator(),
            }
            std::thread::sleep(Duration::from_millis(random.below(1_200)));
        }
        if star.coordinator.is_none() {
            star.start_coordinator();
        }
        for host in 0..3 {
            if star.agents[host].is_none() {
                star.start_agent(host, &[]);
                announce(star, host);
            }
        }
        star.wait_for_full_links(&loads);
        is_over.store(true, Ordering::Relaxed);
        let stood_still = watch.join().expect("it only looks");
        assert!(stood_still < stall_max, "{seed:?}: a flow stood still for {stood_still:?}");
        stood_still
    })
}

fn survive_all(schedules: std::ops::Range<u64>, stall_max: Duration) {
    let Some(mut star) = Star::start() else { return };
    (0..3).for_each(|host| star.start_agent(host, &[]));
    for number in schedules {
        let stood_still = survive(&mut star, Seed::new(number), stall_max);
        println!("schedule {number}: no flow stood still for longer than {stood_still:.2?}");
    }
}

#[test]
fn no_flow_stalls_when_coordinator_or_agents_are_killed() {
    survive_all(0..3, BUSY_STALL_MAX);
}

#[test]
#[ignore = "50 schedules take five minutes: `make claims`"]
fn no_flow_stalls_in_50_schedules_of_kills() {
    survive_all(0..50, STALL_MAX);
}

#[test]
fn rules_announce_flows_and_foreign_announcements_are_refused() {
    let Some(mut star) = Star::start() else { return };
    let load = star.load(1, 2);
    load.go();
    let rules =
        format!("[[rule]]\nremote_port = {}\ncoflow = 'to-{{remote_host}}'\n", load.flow.remote.port());
    std::fs::write(star.path("rules.toml"), rules).expect("the folder is ours");
    let path = star.path("rules.toml").display().to_string();
    star.start_agent(1, &["--rules", &path]);
    // The receiver's host has no agent, so the sender's link is the bottleneck.
    star.wait_for(&[(&load, Some(24.0))]);
    assert_eq!(star.status()["coflows"][0]["name"], "to-10.9.7.3");

    let known: SocketAddr = load.flow.local;
    for (line, says) in [
        ("{", "EOF"),
        (r#"{"flow":1}"#, "invalid type"),
        (r#"{"more":1}"#, "unknown field"),
        ("{}", "write flow, coflow and size_bytes"),
        (r#"{"ended":{"local":"10.9.7.2:1","remote":"10.9.7.3:1"}}"#, "no such connection"),
        (
            &format!(
                r#"{{"flow":{{"local":"{known}","remote":"{}"}},"coflow":"a b","size_bytes":1}}"#,
                load.flow.remote
            ),
            "printable",
        ),
        (&" ".repeat(1_100), "1024 bytes"),
    ] {
        let reply = star.say(1, line);
        let error = reply["error"].as_str().unwrap_or_default();
        assert!(reply["ok"] == false && error.contains(says) && !error.contains('\n'), "{line}: {reply}");
    }
    // The program reports that all data of the coflow has been sent, although the connection stays
    // open.
    let (local, remote) = (load.flow.local, load.flow.remote);
    let reply = star.say(1, &format!(r#"{{"ended":{{"local":"{local}","remote":"{remote}"}}}}"#));
    assert_eq!(reply["ok"], true);
    star.wait_for(&[(&load, None)]);
}

/// Lets the program continue from its read of a line.
fn go_on(child: &mut Child) {
    child.stdin.as_mut().expect("it is piped").write_all(b"\n").expect("it reads");
}

#[test]
fn programs_announce_flows_through_rust_and_python_libraries() {
    let Some(mut star) = Star::start() else { return };
    star.start_agent(1, &[]);
    // A generous timeout, because the machine may be busy and speed is not under test.
    let announcer = Announcer::new(star.path("h1.sock")).with_timeout(PATIENCE);
    let (remote, _) = star.sink(2);
    let stream = star.hosts[1].run(move || TcpStream::connect(remote).expect("listening"));
    // An idle flow has a limit only for a moment, so this one sends.
    let mut writer = stream.try_clone().expect("a descriptor");
    std::thread::spawn(move || while writer.write_all(&[7; 16 << 10]).is_ok() {});
    let mut flow = announcer.announce(&stream, "rust", ByteCount::new(6_000_000_000)).expect("taken");
    assert_eq!((flow.remote(), flow.local().ip()), (remote, Ipv4Addr::new(10, 9, 7, 2).into()));
    let limit = || {
        let flow = FlowKey::new(stream.local_addr().expect("bound"), remote);
        let state = star.hosts[1].run(move || FlowReader::new().and_then(|mut r| r.find(flow)));
        state.expect("it can be asked").expect("it is there").pacing_limit
    };
    let begun = Instant::now();
    while limit().is_none() {
        assert!(begun.elapsed() < PATIENCE, "a limit is set");
    }
    flow.grow(ByteCount::new(9_000_000_000)).expect("taken");
    let view = star.status();
    assert_eq!(view["coflows"][0]["name"], "rust");
    let remaining = view["coflows"][0]["flows"][0]["remaining_bytes"].as_u64().expect("a number");
    assert!((6_000_000_001..=9_000_000_000).contains(&remaining), "{view}");
    flow.ended().expect("taken");
    while limit().is_some() {
        assert!(begun.elapsed() < PATIENCE, "it is lifted");
    }
    let error = announcer.announce(&stream, "a b", ByteCount::new(1)).expect_err("no name");
    assert!(matches!(&error, AnnounceError::Refused(reason) if reason.contains("printable")), "{error}");
    stream.shutdown(std::net::Shutdown::Both).expect("it is open");
    // A dual-stack socket, which the kernel's table lists as IPv4.
    let mapped = SocketAddr::from((Ipv4Addr::new(10, 9, 7, 3).to_ipv6_mapped(), star.sink(2).0.port()));
    let stream = star.hosts[1].run(move || TcpStream::connect(mapped).expect("listening"));
    drop(announcer.announce(&stream, "mapped", ByteCount::new(1)).expect("taken"));

    if !crate::has_program("python3") {
        return skip("no python3");
    }
    let clients = concat!(env!("CARGO_MANIFEST_DIR"), "/../../clients/python");
    let script = "from anabranch_announce import Announcer\nagent = Announcer(timeout=20)\n\
        import threading\nsend = lambda: [s.sendall(bytes(16_384)) for _ in iter(int, 1)]\n\
        threading.Thread(target=send, daemon=True).start()\n\
        with agent.announce(s, 'python', 6_000_000_000) as flow:\n    flow.grow(9_000_000_000)\n    sys.stdin.readline()\n\
        sys.stdin.readline(); os._exit(0)";
    let (load, mut child) = star.python(script, |command| {
        command.env("PYTHONPATH", clients);
    });
    star.wait_for(&[(&load, Some(24.0))]);
    assert_eq!(star.status()["coflows"][0]["name"], "python");
    go_on(&mut child);
    star.wait_for(&[(&load, None)]);
    go_on(&mut child);
    assert!(child.wait().expect("ours to reap").success());
}

#[test]
fn flows_of_unmodified_program_are_announced_limited_and_removed() {
    let Some(mut star) = Star::start() else { return };
    if !crate::has_program("python3") {
        return skip("no python3");
    }
    star.start_agent(1, &[]);
    // Cargo places the library next to the tests of crates that use it.
    let library = std::env::current_exe().expect("it runs").with_file_name("libanabranch_preload.so");
    assert!(library.exists(), "{} is built with the tests", library.display());
    let script = "import time\nopen('part', 'wb').truncate(1_000_000_000)\nf = os.open('part', os.O_RDONLY)\n\
        s.sendall(bytes(40_000)); sys.stdin.readline()\n\
        s.setblocking(False); s.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65_536); at = 0\n\
        while at < 1_000_000_000 and not os.path.exists('stop'):\n    \
            try: at += os.sendfile(s.fileno(), f, at, 1_000_000_000 - at)\n    except BlockingIOError: pass\n    \
            time.sleep(0.01)";
    let (load, mut child) = star.python(script, |command| {
        command.env("LD_PRELOAD", library).env("ANABRANCH_COFLOW", "unchanged");
    });
    while load.received.load(Ordering::Relaxed) < 40_000 {
        std::thread::sleep(Duration::from_millis(2));
    }
    assert_eq!(star.status()["coflows"], serde_json::json!([]), "a mouse");
    go_on(&mut child);
    star.wait_for(&[(&load, Some(24.0))]);
    let status = star.status();
    assert_eq!(status["coflows"][0]["name"], "unchanged");
    // The remaining size is the full size of the sendfile call, not the bytes passed so far.
    let remaining = status["coflows"][0]["flows"][0]["remaining_bytes"].as_u64().expect("a number");
    assert!((500_000_000..=1_000_040_000).contains(&remaining), "{status}");
    Load::assert_run_at(std::slice::from_ref(&load), &[24.0]);
    std::fs::write(star.path("stop"), "").expect("the folder is ours");
    assert!(child.wait().expect("ours to reap").success());
    let begun = Instant::now();
    while star.status()["coflows"] != serde_json::json!([]) {
        assert!(begun.elapsed() < PATIENCE, "it is forgotten");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(star.status()["history"][0]["name"], "unchanged");
}

/// The connection stays open until the status has shown all of its bytes.
#[test]
fn agent_counts_the_bytes_of_an_announced_flow() {
    const BYTES: usize = 300_000;
    let Some(mut star) = Star::start() else { return };
    let metrics = SocketAddr::from(([127, 0, 0, 1], 9_100));
    star.start_agent(1, &["--metrics", &metrics.to_string()]);
    let scrape = || star.hosts[1].run(move || crate::metrics::scrape(metrics));
    let (remote, received) = star.sink(2);
    let mut stream = star.hosts[1].run(move || TcpStream::connect(remote).expect("listening"));
    let local = stream.local_addr().expect("connected");
    let said =
        format!(r#"{{"flow":{{"local":"{local}","remote":"{remote}"}},"coflow":"a","size_bytes":{BYTES}}}"#);
    assert_eq!(star.say(1, &said), serde_json::json!({ "ok": true }));
    stream.write_all(&vec![7; BYTES]).expect("it is read");
    let until = |series: &str, value: f64| {
        let end = Instant::now() + PATIENCE;
        while scrape().value(series) != Some(value) {
            assert!(Instant::now() < end, "{series} {value}: {:?}", scrape());
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    until("shuffle_agent_sent_bytes_total", BYTES as f64);
    assert_eq!(received.load(Ordering::Relaxed), BYTES as u64);
    drop(stream);
    until("shuffle_agent_flow_seconds_count", 1.0);
    let all = scrape();
    assert_eq!(all.value("shuffle_agent_sent_bytes_total"), Some(BYTES as f64));
    assert_eq!(all.value("shuffle_agent_joined"), Some(1.0));
    assert!(all.value("shuffle_agent_report_seconds_count") >= Some(1.0), "{all:?}");
    assert_eq!(all.sum("shuffle_agent_failures_total"), Some(0.0), "{all:?}");
    kill(&mut star.coordinator);
    until("shuffle_agent_failures_total{cause=\"silent\"}", 1.0);
}
