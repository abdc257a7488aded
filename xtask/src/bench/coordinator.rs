//! `bench coordinator`: the cost of `shuffle coordinator` while many flows run.
//!
//! Runs the coordinator of an existing binary over loopback, with agents that only do their side of
//! the protocol: every agent reports the progress of all its flows every 100 ms, as real ones do,
//! and receives the limits. Meanwhile some flows end and others start, and the coordinator decides
//! at every change. CPU time and memory are the coordinator's. Read [`measure`] first.

use super::relay::usage;
use anabranch_net::identity::Identity;
use anabranch_net::keys::Role;
use anabranch_net::tls::CredentialFiles;
use anabranch_shuffle::Client;
use anabranch_shuffle::wire::{JoinRequest, ReportsRequest};
use anabranch_shuffle_proto::control::{FlowKey, Report};
use anyhow::{Context as _, ensure};
use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::time::{MissedTickBehavior, interval};

/// Arguments of `bench coordinator`.
#[derive(Clone, clap::Args)]
pub struct Args {
    /// The `anabranch` command.
    #[arg(long, value_name = "FILE")]
    binary: PathBuf,
    /// Hosts, each with an agent.
    #[arg(long, default_value_t = 36, value_parser = clap::value_parser!(u16).range(2..=200))]
    hosts: u16,
    /// Flows under way.
    #[arg(long, default_value_t = 10_000)]
    flows: u32,
    /// Flows of one coflow.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    coflow_flows: u32,
    /// Flows that end each second, and as many begin.
    #[arg(long, default_value_t = 20)]
    churn: u32,
    /// Duration of the measurement.
    #[arg(long, value_name = "S", default_value_t = 20)]
    seconds: u64,
    /// Allocator, by the coordinator's name for it.
    #[arg(long, default_value = "chase+")]
    allocator: String,
}

/// Interval between reports of an agent, and number of flows in one request; both as in real
/// agents.
const EVERY: Duration = Duration::from_millis(100);
const FLOWS_TOGETHER: usize = 100;
/// Maximum time of a request.
const REPLY_MAX: Duration = Duration::from_secs(10);
/// Size of every flow: more than any flow moves during the benchmark.
const SIZE_BYTES: u64 = 1 << 40;

/// Runs the benchmark.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let folder = std::env::temp_dir().join(format!("anabranch-bench-coordinator-{}", std::process::id()));
    std::fs::create_dir(&folder)?;
    let measured = measure(args, &folder);
    let _ = std::fs::remove_dir_all(&folder);
    measured
}

fn measure(args: &Args, folder: &Path) -> anyhow::Result<()> {
    let keys = folder.join("keys");
    let names: Vec<String> = (0..args.hosts).map(|host| format!("h{host}")).collect();
    let anabranch = || {
        let mut command = Command::new(&args.binary);
        command.arg("shuffle").stdin(Stdio::null());
        command
    };
    let mut made = anabranch();
    made.args(["keys", "--operators", "operator", "--hosts", &names.join(","), "--out"]).arg(&keys);
    ensure!(made.stdout(Stdio::null()).stderr(Stdio::null()).status()?.success(), "no keys");
    // The hosts' addresses are invented. All agents run on this machine.
    let host = |host: u16| format!("[[host]]\nname = \"h{host}\"\naddresses = [\"10.9.0.{}\"]\n", host + 1);
    std::fs::write(folder.join("hosts.toml"), (0..args.hosts).map(host).collect::<String>())?;
    let mut coordinator = anabranch();
    coordinator.args(["coordinator", "--listen", "127.0.0.1:0", "--allocator", &args.allocator, "--keys"]);
    coordinator.arg(&keys).arg("--hosts").arg(folder.join("hosts.toml"));
    coordinator.arg("--store").arg(folder.join("store")).stderr(Stdio::piped());
    let mut coordinator = coordinator.spawn()?;
    let mut said = BufReader::new(coordinator.stderr.take().context("it is a pipe")?);
    let mut line = String::new();
    said.read_line(&mut line)?;
    std::thread::spawn(move || said.lines().map_while(Result::ok).for_each(|line| eprintln!("{line}")));
    let address = line.split("https://").nth(1).and_then(|rest| rest.split(';').next());
    let outcome = address.context("it says where it listens").and_then(|address| {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        runtime.block_on(load(args, &keys, &names, address, coordinator.id()))
    });
    let _ = coordinator.kill();
    let _ = coordinator.wait();
    outcome
}

/// State of one simulated agent.
struct Agent {
    client: Client,
    name: String,
    host: u16,
    flows: Vec<(FlowKey, String)>,
    begun: u32,
}

impl Agent {
    fn begin(&mut self, args: &Args) -> Report {
        let (host, number) = (u32::from(self.host), self.begun);
        self.begun += 1;
        // A coflow has flows of all hosts. The flows of one host end at all other hosts in turn.
        let coflow = format!("t{}", (number * u32::from(args.hosts) + host) / args.coflow_flows);
        let to = (host + 1 + number % (u32::from(args.hosts) - 1)) % u32::from(args.hosts);
        let end = |host: u32, port: u32| SocketAddr::from(([10, 9, 0, host as u8 + 1], port as u16));
        let flow = FlowKey { local: end(host, 1_024 + number % 60_000), remote: end(to, 7_000) };
        self.flows.push((flow, coflow.clone()));
        Report::Flow { flow, coflow, size_bytes: SIZE_BYTES, open_ended: false }
    }
}

async fn load(args: &Args, keys: &Path, names: &[String], address: &str, pid: u32) -> anyhow::Result<()> {
    let (limits, replies) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let mut agents = Vec::new();
    for (host, name) in (0..args.hosts).zip(names) {
        let identity =
            Identity::load(&CredentialFiles::in_set(keys, anabranch_shuffle::SYSTEM, Role::Site, name))?;
        let client = Client::new(address.trim(), &identity, REPLY_MAX)?;
        let join = JoinRequest {
            session: 1,
            addresses: vec![[10, 9, 0, host as u8 + 1].into()],
            link_rate_bps: 10_000_000_000,
            reports: Vec::new(),
        };
        client.join(name, &join, REPLY_MAX).await?;
        agents.push(Agent { client, name: name.clone(), host, flows: Vec::new(), begun: 0 });
    }
    let share = |of: u32, host: u16| {
        (0..of).filter(|number| number % u32::from(args.hosts) == u32::from(host)).count()
    };
    let mut tasks = tokio::task::JoinSet::new();
    let began = Instant::now();
    let ends_at = began + Duration::from_secs(2 + args.seconds);
    for mut agent in agents {
        let (limits, replies) = (limits.clone(), replies.clone());
        let (flows, churn) = (share(args.flows, agent.host), share(args.churn, agent.host));
        let begin: Vec<Report> = (0..flows).map(|_| agent.begin(args)).collect();
        let (client, name) = (agent.client.clone(), agent.name.clone());
        tasks.spawn(async move {
            while Instant::now() < ends_at {
                let wait = Duration::from_secs(1);
                limits.fetch_add(
                    client.limits(&name, 1, wait, REPLY_MAX).await?.len() as u64,
                    Ordering::Relaxed,
                );
            }
            anyhow::Ok(())
        });
        let args = args.clone();
        tasks.spawn(async move {
            let mut ticks = interval(EVERY);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            let mut reports = begin;
            let (mut moved_bytes, mut owed) = (0, 0.0);
            while Instant::now() < ends_at {
                for some in reports.chunks(FLOWS_TOGETHER) {
                    let request = ReportsRequest { session: 1, reports: some.to_vec() };
                    agent.client.report(&agent.name, &request, REPLY_MAX).await?;
                    replies.fetch_add(1, Ordering::Relaxed);
                }
                ticks.tick().await;
                moved_bytes += 100_000;
                reports.clear();
                owed += churn as f64 * EVERY.as_secs_f64();
                while owed >= 1.0 && !agent.flows.is_empty() {
                    owed -= 1.0;
                    reports.push(Report::Ended { flow: agent.flows.remove(0).0 });
                    reports.push(agent.begin(&args));
                }
                reports
                    .extend(agent.flows.iter().map(|(flow, _)| Report::Moved { flow: *flow, moved_bytes }));
            }
            anyhow::Ok(())
        });
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    let (at, before) = (Instant::now(), usage(pid)?);
    let (said_before, limits_before) = (replies.load(Ordering::Relaxed), limits.load(Ordering::Relaxed));
    tokio::time::sleep(Duration::from_secs(args.seconds)).await;
    let (took_s, after) = (at.elapsed().as_secs_f64(), usage(pid)?);
    let said = replies.load(Ordering::Relaxed) - said_before;
    let limits = limits.load(Ordering::Relaxed) - limits_before;
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    let per_s = |count: f64| count / took_s;
    println!(
        "{} flows of {} hosts, {} ending and beginning a second, {}: {:.2} processors ({:.2} its own, {:.2} the kernel's), \
        {} MiB at most; {:.0} requests and {:.0} limits a second",
        args.flows,
        args.hosts,
        args.churn,
        args.allocator,
        per_s(after.0 + after.1 - before.0 - before.1),
        per_s(after.0 - before.0),
        per_s(after.1 - before.1),
        after.2 >> 20,
        per_s(said as f64),
        per_s(limits as f64),
    );
    Ok(())
}
