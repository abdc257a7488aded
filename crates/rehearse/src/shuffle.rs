//! `shuffle` on the emulator: a scenario's workload with real agents and a real coordinator, beside
//! the programs that send its flows.
//!
//! All programs are this binary. `shuffle keys` makes certificates in a temporary folder. `shuffle
//! coordinator` runs in its host, and `shuffle agent` in each host that sends or receives. The
//! programs that send announce their flows over the agents' sockets. An agent gets a link's rate
//! without headers, because limits do not count headers. Leaves out: the flows (`emu::scenario`).
//! Read [`EmulatedSystem`] first.

use crate::fleet::{Fleet, ask, failed};
use crate::program;
use anabranch_emu::Emulation;
use anabranch_emu::scenario::programs::name;
use anabranch_emu::scenario::{
    Announce, FlowObservation, HostObservations, Rehearsal, RunningSystem, ScenarioError, System,
};
use anabranch_shuffle::wire::HostView;
use anabranch_shuffle_proto::simulated::{Shuffle, report_coflows};
use anabranch_sim::scenario::SystemWorkload;
use anabranch_sim::traffic::Start;
use anabranch_sim::{CoflowRow, Plan, WorkloadRow};
use anabranch_units::{BitRate, ByteCount, Seed, SiteId};
use anyhow::{Context as _, ensure};
use serde_json::Value;
use std::path::PathBuf;
use std::time::Duration;

/// Port of the coordinator.
const PORT: u16 = 7190;

/// `shuffle` in emulated scenarios.
#[derive(Copy, Clone, Debug)]
pub struct EmulatedSystem;

impl System for EmulatedSystem {
    fn kind(&self) -> &'static str {
        "shuffle"
    }
    fn rehearse(
        &self,
        workload: &SystemWorkload,
        plan: &Plan,
        field: &str,
    ) -> Result<Box<dyn Rehearsal>, ScenarioError> {
        let shuffle = anabranch_shuffle_proto::simulated::plan(workload, plan.network(), field);
        Ok(Box::new(Workload(shuffle.map_err(|error| ScenarioError::new(error.to_string()))?)))
    }
}

/// A resolved workload.
struct Workload(Shuffle);

/// Index of the flow's coflow in [`RunningFlows::coflows`], and size of the flow.
type Flow = (usize, ByteCount);

impl Workload {
    fn starts(&self) -> impl Iterator<Item = (usize, Start)> {
        let coflows = self.0.coflows().enumerate();
        coflows.flat_map(|(number, (_, starts))| starts.map(move |start| (number, start)))
    }
}

impl Rehearsal for Workload {
    fn flows(&self) -> Vec<Start> {
        self.starts().map(|(_, start)| start).collect()
    }
    fn priority(&self) -> u8 {
        self.0.priority()
    }
    fn start(
        &self,
        emulation: &Emulation,
        plan: &Plan,
        _: Seed,
    ) -> Result<Box<dyn RunningSystem>, ScenarioError> {
        let control = self.0.has_coordinator().then(|| Coordination::start(emulation, plan, &self.0));
        let control = control.transpose().map_err(failed)?;
        let coflows = self.0.coflows().map(|(name, _)| name.to_owned()).collect();
        let size = |start: Start| start.size.unwrap_or_default();
        let flows = self.starts().map(|(coflow, start)| (coflow, size(start))).collect();
        Ok(Box::new(RunningFlows { coflows, flows, control }))
    }
}

/// Coflows and flows of a running workload.
struct RunningFlows {
    coflows: Vec<String>,
    /// Flows in the order of [`Rehearsal::flows`].
    flows: Vec<Flow>,
    control: Option<Coordination>,
}

impl RunningSystem for RunningFlows {
    fn announce(&self, site: SiteId, flow: usize) -> Option<Announce> {
        let socket = self.control.as_ref()?.socket(site);
        let (coflow, size) = self.flows[flow];
        let line: [(&str, Value); 2] =
            [("coflow", self.coflows[coflow].as_str().into()), ("size_bytes", size.as_u64().into())];
        let line = line.map(|(field, value)| (field.to_owned(), value)).into_iter().collect();
        Some(Announce { socket, line })
    }

    fn work(&mut self, _: &Emulation, _: Duration) -> Result<(), ScenarioError> {
        Ok(())
    }

    fn distrust(&self, emulation: &Emulation) -> Option<String> {
        self.control.as_ref().and_then(|control| control.distrust(emulation))
    }

    fn report(&self, seen: &HostObservations, numbers: &[u32], row: &mut WorkloadRow) -> Vec<CoflowRow> {
        let mut of = vec![Vec::new(); self.coflows.len()];
        for ((coflow, size), number) in self.flows.iter().zip(numbers) {
            of[*coflow].push((seen.flows.get(number), size.as_u64()));
        }
        let row_of = |(name, flows): (&String, Vec<(Option<&FlowObservation>, u64)>)| {
            let ends: Option<Vec<u64>> = flows.iter().map(|(flow, _)| (*flow)?.whole_ns).collect();
            let started_ns = flows.iter().filter_map(|(flow, _)| (*flow)?.start_ns).min().unwrap_or(0);
            let took_ns =
                ends.and_then(|ends| ends.into_iter().max()).map(|end| end.saturating_sub(started_ns));
            CoflowRow {
                workload_index: 0,
                coflow: name.clone(),
                flows: flows.len() as u64,
                size_bytes: flows.iter().map(|(_, size)| size).sum(),
                started_s: started_ns as f64 / 1e9,
                cct_us: took_ns.map(|ns| ns as f64 / 1e3),
            }
        };
        let coflows: Vec<CoflowRow> = self.coflows.iter().zip(of).map(row_of).collect();
        let times = coflows.iter().filter_map(|coflow| coflow.cct_us).collect();
        report_coflows(times, coflows.len(), row);
        coflows
    }
}

/// A running coordinator and its agents.
struct Coordination {
    fleet: Fleet,
    /// Site and address of the coordinator.
    coordinator: (SiteId, String),
}

impl Coordination {
    /// Starts coordinator and agents, and waits until all agents have joined.
    ///
    /// Errors: an error of the operating system; agents that do not join in time.
    fn start(emulation: &Emulation, plan: &Plan, shuffle: &Shuffle) -> anyhow::Result<Self> {
        let fleet = Fleet::new("shuffle")?;
        let site = |host: u16| plan.network().hosts()[usize::from(host)];
        let names: Vec<String> = shuffle.hosts().keys().map(|host| name(site(*host))).collect();
        let mut keys = program();
        keys.args(["-q", "shuffle", "keys", "--operators", "operator", "--hosts", &names.join(",")]);
        let made = keys.arg("--out").arg(fleet.keys()).output()?;
        ensure!(made.status.success(), "shuffle keys: {}", String::from_utf8_lossy(&made.stderr).trim());

        let coordinator_site = site(shuffle.coordinator_host());
        let address = format!("{}:{PORT}", emulation.site_address(coordinator_site));
        let allocator = shuffle.allocator().context("who has no coordinator needs no control")?;
        let coordinator = (coordinator_site, address.clone());
        let mut control = Self { fleet, coordinator };
        let mut coordinator = program();
        coordinator.args([
            "shuffle",
            "coordinator",
            "--allocator",
            allocator.name(),
            "--listen",
            &address,
            "--keys",
        ]);
        coordinator.arg(control.fleet.keys()).arg("--store").arg(control.fleet.path("store.redb"));
        control.fleet.start_controller(emulation, coordinator_site, coordinator)?;
        let transport = &plan.scenario().transport;
        let share = f64::from(transport.mss) / f64::from(transport.mss + transport.header_bytes);
        for (host, link) in shuffle.hosts() {
            let (site, data_bps) = (site(*host), (link.as_bps() as f64 * share) as u64);
            let mut agent = program();
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
            agent.arg("--keys").arg(control.fleet.keys()).arg("--listen").arg(control.socket(site));
            agent.arg("--state").arg(control.fleet.path(&format!("{}.jsonl", name(site))));
            control.fleet.start(emulation, site, agent)?;
        }
        Fleet::wait_ready("agents", control.fleet.agents(), || {
            Ok(control.hosts(emulation)?.iter().filter(|host| host.up).count())
        })?;
        Ok(control)
    }

    /// Hosts whose agents have joined, as `shuffle status` reports them; empty if the coordinator
    /// does not answer.
    fn hosts(&self, emulation: &Emulation) -> anyhow::Result<Vec<HostView>> {
        let (site, address) = &self.coordinator;
        let mut status = program();
        status.args([
            "shuffle",
            "status",
            "--json",
            "--coordinator",
            &format!("https://{address}"),
            "--keys",
        ]);
        status.arg(self.fleet.keys());
        let status: Value = ask(emulation, *site, status).unwrap_or_default();
        Ok(serde_json::from_value(status["hosts"].clone()).unwrap_or_default())
    }

    /// Reason not to trust the run: agents that lost the coordinator.
    fn distrust(&self, emulation: &Emulation) -> Option<String> {
        let hosts = match self.hosts(emulation) {
            Ok(hosts) => hosts,
            Err(error) => {
                return Some(format!("the coordinator cannot be asked how its agents were: {error}"));
            }
        };
        let is_steady = |host: &&HostView| host.up && host.joins == 1;
        let away = self.fleet.agents().saturating_sub(hosts.iter().filter(is_steady).count());
        let why = "lost the coordinator for a while, and no flow of their hosts had a limit";
        (away > 0).then(|| format!("{away} agents {why}: free a processor"))
    }

    /// Path of the socket of a site's agent.
    fn socket(&self, site: SiteId) -> PathBuf {
        self.fleet.path(&format!("{}.sock", name(site)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_shuffle_proto::simulated::SimulatedSystem;
    use anabranch_sim::scenario::{self, Workload as Asked};

    #[test]
    fn coflow_ends_with_its_last_flow() {
        let text = r#"
            [network]
            topology = "star"
            hosts = 3
            rate = "10 Mbit/s"
            [workload]
            kind = "shuffle"
            coflows.t.start = "1 s"
            coflows.t.flows = [
                { from = "h0", to = "h2", size = "10 kB" },
                { from = "h1", to = "h2", size = "20 kB", start = "5 ms" },
            ]
        "#;
        let points = scenario::read("test.toml", text, &[]).expect("a good scenario");
        let read = |_: &str| unreachable!("it names no file");
        let plan =
            Plan::with_systems(points[0].scenario.clone(), &read, &[&SimulatedSystem]).expect("a good plan");
        let Asked::System(workload) = &plan.scenario().workload[0] else { panic!("a system's") };
        let shuffle = anabranch_shuffle_proto::simulated::plan(workload, plan.network(), "w").expect("good");
        let workload = Workload(shuffle);
        let flows = workload.flows();
        assert_eq!(flows.len(), 2);
        assert_eq!((flows[1].at.as_ns(), flows[1].size), (1_005_000_000, Some(ByteCount::new(20_000))));
        let flows = workload.starts().map(|(of, start)| (of, start.size.unwrap_or_default())).collect();
        let running = RunningFlows { coflows: vec!["t".to_owned()], flows, control: None };
        assert!(running.announce(SiteId(0), 0).is_none(), "nobody hears of flows without a coordinator");
        let mut seen = HostObservations::default();
        let flow = |start_ns, whole_ns| FlowObservation {
            start_ns: Some(start_ns),
            whole_ns,
            ..FlowObservation::default()
        };
        seen.flows.insert(4, flow(1_000_000_000, Some(1_500_000_000)));
        seen.flows.insert(7, flow(1_005_000_000, None));
        let cct_us =
            |seen: &HostObservations| running.report(seen, &[4, 7], &mut WorkloadRow::default())[0].cct_us;
        assert_eq!(cct_us(&seen), None, "its last flow is not whole");
        seen.flows.insert(7, flow(1_005_000_000, Some(2_250_000_000)));
        assert_eq!(cct_us(&seen), Some(1_250_000.0));
    }
}
