//! `spray` on the emulator: a real agent at each host, which carries the kernel's TCP traffic of
//! all other workloads.
//!
//! All programs are this binary. `spray keys` makes certificates in a temporary folder, and `spray
//! up` runs at each host with all other hosts as peers. Leaves out: the flows (`emu::scenario`),
//! and schemes that only switches can run. Read [`EmulatedSystem`] first.

use crate::fleet::{Fleet, started};
use crate::program;
use anabranch_emu::Emulation;
use anabranch_emu::scenario::programs::name;
use anabranch_emu::scenario::{HostObservations, Rehearsal, RunningSystem, ScenarioError, System};
use anabranch_sim::scenario::SystemWorkload;
use anabranch_sim::{CoflowRow, Plan, WorkloadRow};
use anabranch_spray::status::{LinkFigures, Status};
use anabranch_spray_proto::simulated::Spray;
use anabranch_units::{Seed, SiteId};
use anyhow::{Context as _, ensure};
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Maximum time until the agents reach each other.
const UP_MAX: Duration = Duration::from_secs(20);
/// Maximum number of hosts. Each host has all other hosts as peers.
const HOSTS_MAX: usize = 32;

/// `spray` in emulated scenarios.
#[derive(Copy, Clone, Debug)]
pub struct EmulatedSystem;

impl System for EmulatedSystem {
    fn kind(&self) -> &'static str {
        "spray"
    }
    fn rehearse(
        &self,
        workload: &SystemWorkload,
        plan: &Plan,
        field: &str,
    ) -> Result<Box<dyn Rehearsal>, ScenarioError> {
        let spray = anabranch_spray_proto::simulated::plan(workload, plan.network(), field)
            .map_err(|error| ScenarioError::new(error.to_string()))?;
        if !spray.is_agent() {
            return Err(ScenarioError::new(format!(
                "{field}.scheme: only in the simulator: real hosts have `agent`"
            )));
        }
        let hosts = plan.network().hosts().len();
        if hosts > HOSTS_MAX {
            return Err(ScenarioError::new(format!(
                "{field}: {hosts} hosts: at most {HOSTS_MAX} have an agent each on one machine"
            )));
        }
        Ok(Box::new(Workload(spray)))
    }
}

/// A resolved workload.
struct Workload(Spray);

impl Rehearsal for Workload {
    fn start(
        &self,
        emulation: &Emulation,
        plan: &Plan,
        _: Seed,
    ) -> Result<Box<dyn RunningSystem>, ScenarioError> {
        started(Agents::start(emulation, plan, &self.0))
    }
}

/// Running agents of a workload.
struct Agents {
    fleet: Fleet,
    sites: Vec<SiteId>,
    /// The last status of each agent.
    said: Mutex<Vec<Status>>,
}

impl Agents {
    /// Starts the agents, and waits until all have reached each other.
    ///
    /// Errors: an error of the operating system; agents that do not reach each other in time.
    fn start(emulation: &Emulation, plan: &Plan, spray: &Spray) -> anyhow::Result<Self> {
        let fleet = Fleet::new("spray")?;
        let sites: Vec<SiteId> = plan.network().hosts().to_vec();
        let names: Vec<String> = sites.iter().map(|site| name(*site)).collect();
        let mut keys = program();
        keys.args(["-q", "spray", "keys", "--hosts", &names.join(",")]);
        let made = keys.arg("--out").arg(fleet.keys()).output()?;
        ensure!(made.status.success(), "spray keys: {}", String::from_utf8_lossy(&made.stderr).trim());
        let mut agents = Self { fleet, sites, said: Mutex::default() };
        let config = spray.config();
        for site in &agents.sites {
            let mut up = program();
            up.args(["spray", "up", "--name", &name(*site), "--ways", &spray.ways().to_string()]);
            up.args(["--long", &config.long.to_string(), "--rate", &config.rate.to_string()]);
            up.args(["--hold-max", &config.hold_max.to_string()]);
            up.arg("--keys").arg(agents.fleet.keys()).arg("--socket").arg(agents.socket(*site));
            up.arg("--peer");
            up.args(
                agents
                    .sites
                    .iter()
                    .filter(|other| *other != site)
                    .map(|other| format!("{}={}", name(*other), emulation.site_address(*other))),
            );
            agents.fleet.start(emulation, *site, up)?;
        }
        agents.wait()?;
        Ok(agents)
    }

    /// Path of the socket on which a site's agent reports its status.
    fn socket(&self, site: SiteId) -> PathBuf {
        self.fleet.path(&format!("{}.sock", name(site)))
    }

    /// Returns an agent's status.
    fn status(&self, site: SiteId) -> anyhow::Result<Status> {
        let mut status = program();
        status.args(["spray", "status", "--json", "--socket"]).arg(self.socket(site));
        let output = status.stderr(Stdio::null()).output()?;
        serde_json::from_slice(&output.stdout).context("an agent does not say how it fares")
    }

    /// Waits until each agent has reached all other agents.
    fn wait(&self) -> anyhow::Result<()> {
        let began = Instant::now();
        for site in &self.sites {
            loop {
                let status = self.status(*site)?;
                let Some(down) = status.peers.iter().find(|peer| !peer.is_up) else { break };
                let why = down.why.as_deref().unwrap_or("it is not known why");
                ensure!(
                    began.elapsed() < UP_MAX,
                    "the agent of {} has not reached that of {} within {UP_MAX:?}: {why}",
                    name(*site),
                    down.name
                );
                std::thread::sleep(Duration::from_millis(50));
            }
        }
        Ok(())
    }
}

impl RunningSystem for Agents {
    fn work(&mut self, _: &Emulation, _: Duration) -> Result<(), ScenarioError> {
        Ok(())
    }

    fn distrust(&self, _: &Emulation) -> Option<String> {
        let said: Result<Vec<Status>, _> = self.sites.iter().map(|site| self.status(*site)).collect();
        let said = match said {
            Ok(said) => said,
            Err(error) => return Some(format!("an agent cannot be asked how it was: {error}")),
        };
        let down: usize =
            said.iter().map(|status| status.peers.iter().filter(|peer| !peer.is_up).count()).sum();
        *self.said.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = said;
        (down > 0).then(|| format!("{down} agents lost another one: free a processor"))
    }

    fn report(&self, _: &HostObservations, _: &[u32], row: &mut WorkloadRow) -> Vec<CoflowRow> {
        let said = self.said.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let all = || said.iter().flat_map(|status| &status.peers).map(|peer| &peer.figures);
        let sum = |of: fn(&LinkFigures) -> u64| all().map(of).sum::<u64>() as f64;
        let figures = [
            ("source_packets", sum(|figures| figures.source_packets)),
            ("parity_packets", sum(|figures| figures.parity_packets)),
            ("recovered_packets", sum(|figures| figures.recovered_packets)),
            ("repeated_packets", sum(|figures| figures.repeated_packets)),
            ("surplus_packets", sum(|figures| figures.surplus_packets)),
            ("given_up_packets", sum(|figures| figures.given_up_packets)),
            ("early_packets", sum(|figures| figures.early_packets)),
            ("sprayable_packets", sum(|figures| figures.sprayable_packets)),
            ("sprayed_packets", sum(|figures| figures.sprayed_packets)),
            ("unsent_datagrams", sum(|figures| figures.unsent_datagrams + figures.too_long_datagrams)),
        ];
        row.more.extend(figures);
        Vec::new()
    }
}
