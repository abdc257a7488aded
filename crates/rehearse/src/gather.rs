//! `gather` on the emulator: a scenario's workload with real servers and a real client.
//!
//! All programs are this binary: `gather serve` runs in each server's host with a file of random
//! bytes, and `gather get` runs in the client's host, once in each round.
//!
//! Differs from the simulator: each round makes new connections. A round lasts from the last
//! connection's handshake until all blocks are verified and stored on disk. Read [`EmulatedSystem`]
//! first.

use crate::fleet::{Fleet, failed, quiet_program, refuse_only_simulated, started};
use crate::program;
use crate::replicate::stage::make_file;
use anabranch_emu::Emulation;
use anabranch_emu::scenario::programs::name;
use anabranch_emu::scenario::{HostObservations, Rehearsal, RunningSystem, ScenarioError, System};
use anabranch_gather_proto::simulated::Gather;
use anabranch_net::keys::{SetRequest, VALID_DAYS};
use anabranch_sim::scenario::SystemWorkload;
use anabranch_sim::{CoflowRow, Plan, WorkloadRow};
use anabranch_units::{Seed, SiteId};
use anyhow::{Context as _, ensure};
use serde_json::Value;
use std::process::Stdio;
use std::time::{Duration, Instant};

/// Port of the servers.
const PORT: u16 = 7180;
/// Bytes of the IPv4 and UDP headers, which do not count for a datagram's own size.
const HEADERS_BYTES: u32 = 28;

/// `gather` in emulated scenarios.
#[derive(Copy, Clone, Debug)]
pub struct EmulatedSystem;

impl System for EmulatedSystem {
    fn kind(&self) -> &'static str {
        "gather"
    }
    fn rehearse(
        &self,
        workload: &SystemWorkload,
        plan: &Plan,
        field: &str,
    ) -> Result<Box<dyn Rehearsal>, ScenarioError> {
        let gather = anabranch_gather_proto::simulated::plan(workload, plan.network(), field);
        let gather = gather.map_err(|error| ScenarioError::new(error.to_string()))?;
        refuse_only_simulated(field, gather.only_simulated())?;
        Ok(Box::new(Workload(gather)))
    }
}

/// A checked workload.
struct Workload(Gather);

impl Rehearsal for Workload {
    fn start(
        &self,
        emulation: &Emulation,
        plan: &Plan,
        seed: Seed,
    ) -> Result<Box<dyn RunningSystem>, ScenarioError> {
        started(Rounds::start(&self.0, emulation, plan, seed))
    }
}

/// Running servers, and the client's rounds.
struct Rounds {
    fleet: Fleet,
    client: SiteId,
    /// Arguments of each `gather get`, without its output folder.
    asked: Vec<String>,
    warmup: u32,
    rounds: u32,
    /// Bytes that one round fetches from all servers together.
    round_bytes: u64,
    took_us: Vec<f64>,
}

impl Rounds {
    /// Errors: an error of the operating system; a server that does not start.
    fn start(gather: &Gather, emulation: &Emulation, plan: &Plan, seed: Seed) -> anyhow::Result<Self> {
        let fleet = Fleet::new("gather")?;
        let site = |host: u16| plan.network().hosts()[usize::from(host)];
        let servers = gather.servers(plan.network(), seed);
        let request = SetRequest {
            system: anabranch_gather::SYSTEM,
            sites: servers.iter().map(|host| name(site(*host))).collect(),
            operators: vec!["client".into()],
            controller_hosts: vec![],
            valid_days: VALID_DAYS,
        };
        fleet.make_keys(&request)?;
        let keys = fleet.keys();
        let mut running = Self {
            client: site(gather.client()),
            asked: ["gather", "get", "--json", "--keys"].map(str::to_owned).into(),
            warmup: gather.rounds().0,
            rounds: gather.rounds().1,
            round_bytes: gather.round_bytes(),
            took_us: Vec::new(),
            fleet,
        };
        running.asked.push(keys.display().to_string());
        let (mut first, mut holders) = (None, Vec::new());
        for host in servers {
            let (site, name) = (site(host), name(site(host)));
            let served = running.fleet.path(&name);
            std::fs::create_dir(&served)?;
            let object = if gather.is_same_block() { "of-all".to_owned() } else { format!("of-{name}") };
            let file = served.join(&object);
            match &first {
                Some(first) if gather.is_same_block() => std::fs::hard_link(first, &file)?,
                _ => drop(make_file(&file, gather.block())?),
            }
            first.get_or_insert(file);
            let address = emulation.site_address(site);
            let mut serve = quiet_program();
            serve.args(["gather", "serve"]).arg(&served).args(["--listen", &format!("{address}:{PORT}")]);
            serve.args(["--name", &name]).arg("--keys").arg(&keys);
            running.fleet.start(emulation, site, serve)?;
            holders.push((format!("{name}@{address}:{PORT}"), object));
        }
        if gather.is_same_block() {
            let all: Vec<&str> = holders.iter().map(|(holder, _)| holder.as_str()).collect();
            running.asked.push(format!("{}/of-all", all.join(",")));
        } else {
            running.asked.extend(holders.iter().map(|(holder, object)| format!("{holder}/{object}")));
        }
        let datagram = plan.scenario().transport.mss + plan.scenario().transport.header_bytes - HEADERS_BYTES;
        running.asked.extend(["--datagram".to_owned(), format!("{datagram} B")]);
        if let Some(link) = gather.link() {
            running.asked.extend(["--link".to_owned(), link.to_string()]);
        }
        Ok(running)
    }

    /// Runs one round. Returns its duration since all servers were connected, in microseconds.
    fn round(&self, emulation: &Emulation, number: u32) -> anyhow::Result<f64> {
        let folder = self.fleet.path(&format!("round-{number}"));
        std::fs::create_dir(&folder)?;
        let mut get = program();
        get.args(&self.asked).arg("--output").arg(folder.join(""));
        get.stdout(Stdio::piped()).stderr(Stdio::inherit());
        let output = emulation.spawn(self.client, get)?.wait_with_output()?;
        ensure!(output.status.success(), "gather get: round {number} failed: {}", output.status);
        std::fs::remove_dir_all(&folder)?;
        let said = String::from_utf8_lossy(&output.stdout);
        let last: Value = serde_json::from_str(said.lines().last().unwrap_or_default())?;
        let number = |field: &str| last[field].as_f64().with_context(|| format!("gather get: no {field}"));
        Ok((number("took_s")? - number("connected_s")?) * 1e6)
    }
}

impl RunningSystem for Rounds {
    fn work(&mut self, emulation: &Emulation, time: Duration) -> Result<(), ScenarioError> {
        let began = Instant::now();
        for number in 0..self.warmup + self.rounds {
            if began.elapsed() >= time {
                break;
            }
            let took = self.round(emulation, number).map_err(failed)?;
            if number >= self.warmup {
                self.took_us.push(took);
            }
        }
        Ok(())
    }

    fn report(&self, _: &HostObservations, _: &[u32], row: &mut WorkloadRow) -> Vec<CoflowRow> {
        if !self.took_us.is_empty() {
            row.rounds(self.took_us.clone(), self.round_bytes);
        }
        Vec::new()
    }
}
