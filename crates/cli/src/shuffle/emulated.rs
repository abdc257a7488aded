//! `shuffle` on the emulator: a scenario's workload with real agents and a real coordinator beside the flows' programs.
//!
//! Everything is this binary: `shuffle keys` makes certificates in a temporary folder, `shuffle coordinator` runs in its host,
//! `shuffle agent` in each host that sends or receives, and the programs that send announce their flows over the agents' sockets.
//! Agents are told what a link carries of data, as limits count no headers. Leaves out: the flows (`emulate`). Read [`Coordination`] first.

use super::agent::SILENT;
use super::simulated::Shuffle;
use crate::emulate::agent::Seen;
use anabranch_emu::Emulation;
use anabranch_sim::{Plan, TransferRow};
use anabranch_units::{BitRate, ByteCount, SiteId};
use anyhow::{Context as _, ensure};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Where the coordinator listens.
const PORT: u16 = 7190;
/// The longest that agents may take to join.
const JOIN_MAX: Duration = Duration::from_secs(20);
/// The longest that agents, and then the coordinator, may take to end before they are killed.
const END_MAX: Duration = Duration::from_secs(5);

/// A workload with the numbers of its flows.
pub(crate) struct Shuffled {
    pub(crate) shuffle: Shuffle,
    /// By name, with flows and their sizes.
    pub(crate) transfers: Vec<(String, Vec<(u32, ByteCount)>)>,
}

impl Shuffled {
    /// What became of transfers, of the workload with this number.
    pub(crate) fn transfers(&self, workload_index: u16, seen: &Seen) -> Vec<TransferRow> {
        let row = |(name, numbers): &(String, Vec<(u32, ByteCount)>)| {
            let flows = || numbers.iter().map(|(number, _)| seen.flows.get(number));
            let ends: Option<Vec<u64>> = flows().map(|flow| flow?.whole_ns).collect();
            let started_ns = flows().filter_map(|flow| flow?.start_ns).min().unwrap_or(0);
            let took_ns =
                ends.and_then(|ends| ends.into_iter().max()).map(|end| end.saturating_sub(started_ns));
            TransferRow {
                workload_index,
                transfer: name.clone(),
                flows: numbers.len() as u64,
                size_bytes: numbers.iter().map(|(_, size)| size.as_u64()).sum(),
                started_s: started_ns as f64 / 1e9,
                tct_us: took_ns.map(|ns| ns as f64 / 1e3),
            }
        };
        self.transfers.iter().map(row).collect()
    }
}

/// A coordinator and agents under way.
pub(crate) struct Coordination {
    folder: tempfile::TempDir,
    /// Agents first: each lifts what it has set, and takes its leave, before the coordinator goes.
    programs: Vec<Child>,
    /// How often an agent lifted its limits, as the coordinator did not answer.
    silences: Arc<AtomicU64>,
}

impl Coordination {
    /// Starts them and waits until all agents have joined.
    ///
    /// Errors: the system's; agents that do not join in time.
    pub(crate) fn start(emulation: &Emulation, plan: &Plan, shuffle: &Shuffle) -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new().prefix("anabranch-shuffle-").tempdir()?;
        let path = |name: &str| folder.path().join(name);
        let site = |host: u16| plan.network().hosts()[usize::from(host)];
        let names: Vec<String> = shuffle.hosts().keys().map(|host| name(site(*host))).collect();
        let mut keys = ours();
        keys.args(["-q", "shuffle", "keys", "--operators", "operator", "--hosts", &names.join(",")]);
        let made = keys.arg("--out").arg(path("keys")).output()?;
        ensure!(made.status.success(), "shuffle keys: {}", String::from_utf8_lossy(&made.stderr).trim());

        let coordinator_site = site(shuffle.coordinator_host());
        let address = format!("{}:{PORT}", emulation.site_address(coordinator_site));
        let allocator = shuffle.allocator().context("who has no coordinator needs no control")?.text();
        let mut control = Self { programs: Vec::new(), folder, silences: Arc::default() };
        let path = |name: &str| control.folder.path().join(name);
        let mut coordinator = ours();
        coordinator.args([
            "shuffle",
            "coordinator",
            "--allocator",
            &allocator,
            "--listen",
            &address,
            "--keys",
        ]);
        coordinator.arg(path("keys")).arg("--store").arg(path("store.redb"));
        let mut programs = vec![control.spawn(emulation, coordinator_site, coordinator)?];
        let transport = &plan.scenario().transport;
        let share = f64::from(transport.mss) / f64::from(transport.mss + transport.header_bytes);
        for (host, link) in shuffle.hosts() {
            let (site, data_bps) = (site(*host), (link.as_bps() as f64 * share) as u64);
            let mut agent = ours();
            agent.args([
                "shuffle",
                "agent",
                "--name",
                &name(site),
                "--coordinator",
                &format!("https://{address}"),
            ]);
            agent.args(["--link", &BitRate::bps(data_bps).to_string()]);
            agent.args(["--address", &emulation.site_address(site).to_string()]);
            agent.arg("--keys").arg(path("keys")).arg("--listen").arg(control.socket(site));
            agent.arg("--state").arg(path(&format!("{}.jsonl", name(site))));
            programs.push(control.spawn(emulation, site, agent)?);
        }
        programs.reverse();
        control.programs = programs;
        control.wait(emulation, coordinator_site, &address)?;
        Ok(control)
    }

    /// Starts a program in a site, and waits for its first line.
    fn spawn(&self, emulation: &Emulation, site: SiteId, mut command: Command) -> anyhow::Result<Child> {
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = emulation.spawn(site, command)?;
        let mut said = BufReader::new(child.stderr.take().context("its output is a pipe")?);
        let mut line = String::new();
        said.read_line(&mut line)?;
        let is_there = child.try_wait()?.is_none() && !line.is_empty();
        // Whatever it says later, nobody must make it wait.
        let silences = self.silences.clone();
        std::thread::spawn(move || {
            for line in said.lines().map_while(Result::ok) {
                silences.fetch_add(line.contains(SILENT).into(), Ordering::Relaxed);
                eprintln!("site {site}: {line}");
            }
        });
        if !is_there {
            let _ = child.kill();
            let _ = child.wait();
            anyhow::bail!("site {site}: {}", line.trim());
        }
        Ok(child)
    }

    /// Waits until all agents have joined.
    fn wait(&self, emulation: &Emulation, site: SiteId, address: &str) -> anyhow::Result<()> {
        let began = Instant::now();
        loop {
            let mut status = ours();
            status.args([
                "shuffle",
                "status",
                "--json",
                "--coordinator",
                &format!("https://{address}"),
                "--keys",
            ]);
            status.arg(self.folder.path().join("keys")).stdout(Stdio::piped()).stderr(Stdio::null());
            let output = emulation.spawn(site, status)?.wait_with_output()?;
            let status: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
            let hosts = status["hosts"].as_array().map_or(&[][..], Vec::as_slice);
            let up = hosts.iter().filter(|host| host["up"] == true).count();
            // All but the coordinator are agents.
            let agents = self.programs.len() - 1;
            if up == agents {
                return Ok(());
            }
            ensure!(began.elapsed() < JOIN_MAX, "{up} of {agents} agents have joined within {JOIN_MAX:?}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// What speaks against the run: limits that were not there.
    pub(crate) fn distrust(&self) -> Option<String> {
        let silences = self.silences.load(Ordering::Relaxed);
        let why = "agents were without their coordinator for a second, and no flow had a limit";
        (silences > 0).then(|| format!("{silences} times {why}: free a processor"))
    }

    /// Where the agent of a site listens.
    pub(crate) fn socket(&self, site: SiteId) -> PathBuf {
        self.folder.path().join(format!("{}.sock", name(site)))
    }
}

impl Drop for Coordination {
    fn drop(&mut self) {
        // Told to end, an agent waits for its guard, which writes to the folder; a killed one's would after that has gone.
        let agents = self.programs.len().saturating_sub(1);
        let (agents, coordinator) = self.programs.split_at_mut(agents);
        end(agents);
        end(coordinator);
    }
}

/// Tells these to end, all at once, and waits for them.
fn end(programs: &mut [Child]) {
    for child in &*programs {
        if let Some(pid) = Pid::from_raw(child.id() as i32) {
            let _ = kill_process(pid, Signal::TERM);
        }
    }
    let began = Instant::now();
    for child in programs {
        while matches!(child.try_wait(), Ok(None)) && began.elapsed() < END_MAX {
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// What the agent of a site is called.
fn name(site: SiteId) -> String {
    format!("h{}", site.0)
}

/// This binary.
fn ours() -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap_or_else(|_| "anabranch".into()));
    command.stdin(Stdio::null());
    command
}
