//! `replicate` on the emulator: a scenario's workload with a real controller, real relays and real
//! files.
//!
//! All programs are this binary, set up by [`DaemonSettings`]: the controller at the first
//! transfer's source, a relay at each site, and a `replicate send` at its source for each transfer.
//!
//! Differs from the simulator: data is coded, hashed, encrypted and written; the controller's own
//! traffic shares the links. A transfer takes the time that `send` reports, from its first plan to
//! the last destination's verification. Read [`EmulatedSystem`] first.

pub mod stage;

use crate::fleet::{Fleet, ask, failed, refuse_only_simulated, started};
use crate::program;
use anabranch_emu::Emulation;
use anabranch_emu::scenario::{
    HostObservations, Rehearsal, RunningSystem, ScenarioError, System, congestion_control,
};
use anabranch_replicate_proto::plan::schemes::{DrawnTransfer, JOINT};
use anabranch_replicate_proto::simulated::{Replicate, Settings, plan, report_transfers};
use anabranch_sim::scenario::SystemWorkload;
use anabranch_sim::{CoflowRow, CompletionTimes, Plan, WorkloadRow};
use anabranch_units::{BitRate, ByteCount, Duration as Span, Seed, SiteId};
use anyhow::{Context as _, ensure};
use serde_json::Value;
use stage::{DaemonSettings, RunningSends, TransferEvents, keys_of, make_file};
use std::time::{Duration, Instant};

/// Time for which a destination may delay its transfer: practically unlimited, as in the simulator.
const PATIENCE: Duration = Duration::from_secs(100_000);
/// Interval between two checks whether all transfers have ended.
const LOOK: Duration = Duration::from_millis(20);

/// `replicate` in emulated scenarios.
#[derive(Copy, Clone, Debug)]
pub struct EmulatedSystem;

impl System for EmulatedSystem {
    fn kind(&self) -> &'static str {
        "replicate"
    }
    fn rehearse(
        &self,
        workload: &SystemWorkload,
        network: &Plan,
        field: &str,
    ) -> Result<Box<dyn Rehearsal>, ScenarioError> {
        let replicate =
            plan(workload, network.network(), field).map_err(|e| ScenarioError::new(e.to_string()))?;
        refuse_only_simulated(field, replicate.settings().only_simulated())?;
        let Some(size) = replicate.settings().size else {
            let line =
                format!("{field}.size: a file without end is only in the simulator: set a size to emulate");
            return Err(ScenarioError::new(line));
        };
        Ok(Box::new(Workload { replicate, size }))
    }
}

/// A resolved workload.
struct Workload {
    replicate: Replicate,
    size: ByteCount,
}

impl Rehearsal for Workload {
    fn start(
        &self,
        emulation: &Emulation,
        plan: &Plan,
        seed: Seed,
    ) -> Result<Box<dyn RunningSystem>, ScenarioError> {
        started(RunningTransfers::start(self, emulation, plan, seed))
    }
}

/// Running daemons, and the workload's transfers.
struct RunningTransfers {
    fleet: Fleet,
    stage: DaemonSettings,
    settings: Settings,
    size: ByteCount,
    transfers: Vec<DrawnTransfer>,
    /// Sum of the planned rates of all transfers.
    planned: BitRate,
    congestion_control: &'static str,
    warmup: Duration,
    /// True if links change during the run, so that plans may change, too.
    has_changes: bool,
    began: Instant,
    /// Time in which transfers could run.
    time: Duration,
    heard: Vec<TransferEvents>,
}

impl RunningTransfers {
    /// Errors: the system's; relays that do not join in time.
    fn start(workload: &Workload, emulation: &Emulation, plan: &Plan, seed: Seed) -> anyhow::Result<Self> {
        let (network, settings) = (plan.network(), workload.replicate.settings());
        let transfers = workload.replicate.transfers(network, seed);
        let fleet = Fleet::new("replicate")?;
        let stage = DaemonSettings {
            topology: network.named_topology().clone(),
            folder: fleet.path("sites"),
            keys: fleet.keys(),
            controller: transfers.first().context("a workload has transfers")?.source,
            fill: settings.fill,
            patience: Some(PATIENCE),
            joint: Some(settings.scheme == JOINT),
        };
        fleet.make_keys(&keys_of(&stage.topology))?;
        stage.make_folders()?;
        for (index, transfer) in transfers.iter().enumerate() {
            make_file(&stage.site_folder(transfer.source).join(file(index)), workload.size)?;
        }
        let mut running = Self {
            fleet,
            planned: workload.replicate.planned(network, &transfers)?,
            stage,
            settings: settings.clone(),
            size: workload.size,
            transfers,
            congestion_control: congestion_control(plan)?,
            warmup: plan.scenario().warmup.to_std(),
            has_changes: !plan.changes().is_empty(),
            began: Instant::now(),
            time: Duration::ZERO,
            heard: Vec::new(),
        };
        running.stage.start_daemons(emulation, &mut running.fleet)?;
        Fleet::wait_ready("relays", running.fleet.agents(), || Ok(running.sites_up(emulation)))?;
        Ok(running)
    }

    /// Number of sites whose relays have joined.
    fn sites_up(&self, emulation: &Emulation) -> usize {
        let mut status = program();
        status.args(["replicate", "status", "--sites", "--json"]).arg("--keys").arg(&self.stage.keys);
        status.args(["--controller", &self.stage.controller_address(emulation)]);
        let sites: Vec<Value> = ask(emulation, self.stage.controller, status).unwrap_or_default();
        sites.iter().filter(|site| site["up"] == true).count()
    }

    /// Time from the start of the run to the start of a transfer.
    fn start_of(&self, index: usize) -> Duration {
        (self.settings.start + self.settings.stagger * index as u64).to_std()
    }

    /// Starts each transfer at its time, until all transfers or the run have ended.
    fn send(&mut self, emulation: &Emulation) -> anyhow::Result<()> {
        let mut sends = RunningSends::default();
        for (index, transfer) in self.transfers.iter().enumerate() {
            let due = self.start_of(index);
            if due >= self.time {
                break;
            }
            std::thread::sleep(due.saturating_sub(self.began.elapsed()));
            let scheme = if self.settings.scheme == JOINT { "auto" } else { &self.settings.scheme };
            let names = (&*file(index), &*file(index), &*log(index));
            let mut send =
                self.stage.send(emulation, transfer.source, &transfer.destinations, scheme, names)?;
            send.args(["--congestion-control", self.congestion_control]);
            send.args(["--symbol", &format!("{} B", self.settings.symbol.as_u64())]);
            send.args(["--buffer-packets", &self.settings.buffer_packets.to_string()]);
            send.args(["--stripes", &self.settings.stripes.to_string()]);
            sends.begin(emulation, transfer.source, send)?;
        }
        while self.began.elapsed() < self.time && sends.heard().any(|heard| !heard.has_ended) {
            std::thread::sleep(LOOK);
        }
        let has_ended: Vec<bool> = sends.heard().map(|heard| heard.has_ended).collect();
        self.heard = sends.end();
        for (index, (heard, has_ended)) in self.heard.iter().zip(has_ended).enumerate() {
            let is_verified = heard.summary.as_ref().is_some_and(|summary| summary["verified"] == true);
            ensure!(
                is_verified || !has_ended,
                "replicate send: transfer {index}: {}",
                self.stage.last_words(self.transfers[index].source, &log(index))
            );
        }
        Ok(())
    }

    /// Duration of a transfer; `None` if the transfer is incomplete.
    fn took(&self, index: usize) -> Option<Duration> {
        let summary = self.heard.get(index)?.summary.as_ref()?;
        summary["took_s"].as_f64().map(Duration::from_secs_f64)
    }

    /// Bytes that the slowest destination of a transfer had verified at a time of the run.
    fn verified_bytes(&self, index: usize, at: Duration) -> u64 {
        let Some(heard) = self.heard.get(index) else { return 0 };
        let at_site = |site: &SiteId| {
            let grown = heard.grown.get(self.stage.name(*site)).map_or(&[][..], Vec::as_slice);
            let before = grown.iter().take_while(|(seen, _)| *seen <= self.began + at);
            before.last().map_or(0, |(_, bytes)| *bytes)
        };
        self.transfers[index].destinations.iter().map(at_site).min().unwrap_or(0)
    }
}

impl RunningSystem for RunningTransfers {
    fn work(&mut self, emulation: &Emulation, time: Duration) -> Result<(), ScenarioError> {
        (self.began, self.time) = (Instant::now(), time);
        self.send(emulation).map_err(failed)
    }

    fn distrust(&self, _: &Emulation) -> Option<String> {
        let stops: Vec<&str> = self.heard.iter().flat_map(|heard| &heard.stops).map(String::as_str).collect();
        let is_strange = !self.has_changes && !stops.is_empty();
        is_strange.then(|| {
            format!("transfers were held up or planned anew ({}): free a processor", stops.join("; "))
        })
    }

    fn report(&self, _: &HostObservations, _: &[u32], row: &mut WorkloadRow) -> Vec<CoflowRow> {
        let all = 0..self.transfers.len();
        let ends: Option<Vec<Duration>> =
            all.clone().map(|index| Some(self.start_of(index) + self.took(index)?)).collect();
        let end = ends.and_then(|ends| ends.into_iter().max()).unwrap_or(self.time);
        let verified = all.clone().map(|index| {
            let end =
                self.took(index).map_or_else(|| self.verified_bytes(index, end), |_| self.size.as_u64());
            end - self.verified_bytes(index, self.warmup)
        });
        let whole = all.filter_map(|index| Some((self.size.as_u64(), self.took(index)?.as_secs_f64() * 1e6)));
        let measured = Span::from_std(end.saturating_sub(self.warmup));
        report_transfers(verified, measured, Some(CompletionTimes(whole.collect())), self.planned, row);
        Vec::new()
    }
}

/// Name of a transfer's file, at its source and at its destinations.
fn file(index: usize) -> String {
    format!("file-{index}.bin")
}

fn log(index: usize) -> String {
    format!("send-{index}.log")
}
