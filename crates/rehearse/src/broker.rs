//! `broker` on the emulator: a scenario's workload with a real broker, real agents and players over
//! real sockets.
//!
//! All programs are this binary: `broker serve` in the broker's host, `broker cdn` in the host of
//! each network's first cluster, `broker origin` in each cluster's host, and one `broker play` in
//! each viewers' host. A fault of a network or an agent stops its process, so that its connections
//! stay open without data, as in the simulator. A fault of the broker kills its process; the next
//! broker starts from the same store.
//!
//! Differs from the simulator: players begin at other times, and decisions and TLS take real time.
//! Read [`EmulatedSystem`] first.

pub mod play;

use crate::fleet::{Fleet, ask, failed, quiet_program, refuse_only_simulated, started};
use crate::program;
use anabranch_broker::wire::{DecisionView, NetworkView, RoundView};
use anabranch_broker_proto::simulated::{
    Fault, FaultKind, ResolvedWorkload, Settings, city, pathway, report_players,
};
use anabranch_emu::Emulation;
use anabranch_emu::scenario::{HostObservations, Rehearsal, RunningSystem, ScenarioError, System};
use anabranch_net::keys::{SetRequest, VALID_DAYS};
use anabranch_sim::scenario::SystemWorkload;
use anabranch_sim::{CoflowRow, Plan, WorkloadRow};
use anabranch_units::{BitRate, Duration as Span, Seed, SiteId};
use anyhow::Context as _;
use play::Outcome;
use rustix::process::Signal;
use serde::Deserialize;
use std::fmt::Write as _;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// Port of the broker for networks.
const PORT: u16 = 7195;
/// Port of the broker for players.
const PLAYERS_PORT: u16 = 7196;
/// Port of each cluster. A clone of a pathway has the port of its base.
const ORIGIN_PORT: u16 = 80;
/// Internet provider of all viewers.
const ISP: &str = "emulated";

/// `broker` in emulated scenarios.
#[derive(Copy, Clone, Debug)]
pub struct EmulatedSystem;

impl System for EmulatedSystem {
    fn kind(&self) -> &'static str {
        "broker"
    }
    fn rehearse(
        &self,
        workload: &SystemWorkload,
        plan: &Plan,
        field: &str,
    ) -> Result<Box<dyn Rehearsal>, ScenarioError> {
        let stage = anabranch_broker_proto::simulated::plan(workload, plan.network(), field)
            .map_err(|error| ScenarioError::new(error.to_string()))?;
        let settings = stage.settings();
        refuse_only_simulated(field, settings.only_simulated())?;
        for (name, time) in
            [("every", settings.every), ("bids_within", settings.bids_within), ("ttl", settings.ttl)]
        {
            if time.as_us() % 1_000_000 != 0 || time == Span::ZERO {
                let line = format!("{field}.{name}: {time}: must be whole seconds to emulate");
                return Err(ScenarioError::new(line));
            }
        }
        Ok(Box::new(Workload(stage)))
    }
}

/// A resolved workload.
struct Workload(ResolvedWorkload);

impl Rehearsal for Workload {
    fn start(
        &self,
        emulation: &Emulation,
        plan: &Plan,
        seed: Seed,
    ) -> Result<Box<dyn RunningSystem>, ScenarioError> {
        started(Programs::start(&self.0, emulation, plan, seed))
    }
}

/// The parts of `broker status --json` that a run counts.
#[derive(Deserialize)]
struct Status {
    networks: Vec<NetworkView>,
    decision: DecisionView,
    rounds: Vec<RoundView>,
}

/// Running programs of a workload.
struct Programs {
    fleet: Fleet,
    settings: Settings,
    seed: Seed,
    sites: Vec<SiteId>,
    /// Index of each network's agent in the fleet.
    agents: Vec<usize>,
    /// Index of each cluster's origin in the fleet, by network and then by cluster.
    origins: Vec<usize>,
    warmup: Duration,
    /// Playing time after the warm-up.
    measured: Span,
    outcome: Outcome,
    rounds: (u64, u64),
    unplaced: u64,
}

fn clusters_text(capacities: &[BitRate], cost: f64) -> String {
    let table = |(number, capacity): (usize, &BitRate)| {
        format!(
            "[[cluster]]\nnumber = {number}\ncost = {cost:?}\ncapacity = \"{} bit/s\"\n",
            capacity.as_bps()
        )
    };
    capacities.iter().enumerate().map(table).collect()
}

impl Programs {
    /// Errors: an error of the operating system; a program that does not start.
    fn start(
        stage: &ResolvedWorkload,
        emulation: &Emulation,
        plan: &Plan,
        seed: Seed,
    ) -> anyhow::Result<Self> {
        let fleet = Fleet::new("broker")?;
        let settings = stage.settings().clone();
        let sites = plan.network().hosts().to_vec();
        let request = SetRequest {
            system: anabranch_broker::SYSTEM,
            sites: (0..settings.networks).map(pathway).collect(),
            operators: vec!["operator".into()],
            controller_hosts: vec![],
            valid_days: VALID_DAYS,
        };
        fleet.make_keys(&request)?;
        let mut running = Self {
            agents: Vec::new(),
            origins: Vec::new(),
            warmup: plan.scenario().warmup.to_std(),
            measured: Span::ZERO,
            outcome: Outcome::default(),
            rounds: (0, 0),
            unplaced: 0,
            fleet,
            sites,
            seed,
            settings,
        };
        running.write_files(stage, emulation)?;
        running.start_broker(emulation)?;
        for host in 1..running.settings.first_viewer() {
            let site = running.site(host);
            let mut origin = program();
            let listen = format!("{}:{ORIGIN_PORT}", emulation.site_address(site));
            origin.args(["broker", "origin", "--listen", &listen]);
            running.origins.push(running.fleet.start(emulation, site, origin)?);
        }
        for network in 0..running.settings.networks {
            let name = pathway(network);
            let mut agent = quiet_program();
            agent.args(["broker", "cdn", "--name", &name, "--broker", &running.address(emulation, PORT)]);
            agent.arg("--keys").arg(running.fleet.keys());
            agent.arg("--clusters").arg(running.fleet.path(&format!("{name}.toml")));
            agent.arg("--scores").arg(running.fleet.path(&format!("{name}.csv")));
            let site = running.site(running.settings.cluster_host(network, 0));
            running.agents.push(running.fleet.start(emulation, site, agent)?);
        }
        Fleet::wait_ready("agents", running.agents.len(), || {
            Ok(running.status(emulation)?.networks.iter().filter(|network| network.up).count())
        })?;
        Ok(running)
    }

    fn site(&self, host: u16) -> SiteId {
        self.sites[usize::from(host)]
    }
    /// Address of the broker with this port.
    fn address(&self, emulation: &Emulation, port: u16) -> String {
        format!("{}:{port}", emulation.site_address(self.site(0)))
    }

    fn write_files(&self, stage: &ResolvedWorkload, emulation: &Emulation) -> anyhow::Result<()> {
        let Settings { networks, clusters, .. } = self.settings;
        let costs = self.settings.costs(self.seed);
        let mut contracts = String::new();
        for network in 0..networks {
            let name = pathway(network);
            writeln!(contracts, "[[network]]\nname = \"{name}\"")?;
            for cluster in 0..clusters {
                let host = emulation.site_address(self.site(self.settings.cluster_host(network, cluster)));
                writeln!(contracts, "[[network.cluster]]\nnumber = {cluster}\nhost = \"{host}\"")?;
            }
            let own = (0..clusters).map(|cluster| stage.capacity(network * clusters + cluster));
            let text = clusters_text(&own.collect::<Vec<_>>(), costs[network as usize]);
            std::fs::write(self.fleet.path(&format!("{name}.toml")), text)?;
            let mut scores = "location,isp,cluster,score\n".to_owned();
            for host in self.settings.first_viewer()..self.sites.len() as u16 {
                for cluster in 0..clusters {
                    let score = stage.score(host, network * clusters + cluster);
                    writeln!(scores, "{},*,{cluster},{score}", city(host))?;
                }
            }
            std::fs::write(self.fleet.path(&format!("{name}.csv")), scores)?;
        }
        Ok(std::fs::write(self.fleet.path("contracts.toml"), contracts)?)
    }

    fn start_broker(&mut self, emulation: &Emulation) -> anyhow::Result<()> {
        let Settings { every, bids_within, ttl, cost_weight, design, .. } = &self.settings;
        let seconds = |time: &Span| (time.as_us() / 1_000_000).to_string();
        let mut serve = quiet_program();
        serve.args(["broker", "serve", "--design", design]);
        serve.args(["--listen", &self.address(emulation, PORT)]);
        serve.args(["--players", &self.address(emulation, PLAYERS_PORT)]);
        serve.args([
            "--every",
            &seconds(every),
            "--bids-within",
            &seconds(bids_within),
            "--ttl",
            &seconds(ttl),
        ]);
        serve.args(["--cost-weight", &cost_weight.to_string()]);
        serve.arg("--keys").arg(self.fleet.keys()).arg("--store").arg(self.fleet.path("store.redb"));
        serve.arg("--contracts").arg(self.fleet.path("contracts.toml"));
        let site = self.site(0);
        self.fleet.start_controller(emulation, site, serve)
    }

    fn status(&self, emulation: &Emulation) -> anyhow::Result<Status> {
        let mut status = program();
        status.args(["broker", "status", "--json", "--broker", &self.address(emulation, PORT)]);
        status.arg("--keys").arg(self.fleet.keys());
        ask(emulation, self.site(0), status)
    }

    /// Starts the players, one program for each host.
    fn start_players(&self, emulation: &Emulation, time: Duration) -> anyhow::Result<Vec<Child>> {
        let Settings { players, bitrate, segment, buffer, arrivals, .. } = self.settings;
        let ways: Vec<String> = (0..self.settings.networks)
            .map(|network| {
                let site = self.site(self.settings.cluster_host(network, 0));
                format!("{}={}:{ORIGIN_PORT}", pathway(network), emulation.site_address(site))
            })
            .collect();
        let hosts = self.settings.first_viewer()..self.sites.len() as u16;
        let count = hosts.len() as u32;
        let mut programs = Vec::new();
        for (at, host) in (0..).zip(hosts) {
            let own = players / count + u32::from(at < players % count);
            if own == 0 {
                continue;
            }
            let mut play = program();
            let steering = format!("http://{}/steering/hls", self.address(emulation, PLAYERS_PORT));
            play.args(["broker", "play", "--json", "--steering", &steering, "--way", &ways.join(",")]);
            play.args(["--players", &own.to_string(), "--location", &city(host), "--isp", ISP]);
            play.args(["--bitrate", &format!("{} bit/s", bitrate.as_bps())]);
            play.args(["--segment", &segment.to_string(), "--buffer", &buffer.to_string()]);
            play.args(["--arrivals", &arrivals.to_string()]);
            play.args(["--warmup", &Span::from_std(self.warmup).to_string()]);
            play.args(["--duration", &Span::from_std(time).to_string()]);
            let seed = self.seed.stream("players", u64::from(host)).next_u64();
            play.args(["--seed", &seed.to_string()]);
            play.stdout(Stdio::piped()).stderr(Stdio::inherit());
            programs.push(emulation.spawn(self.site(host), play)?);
        }
        Ok(programs)
    }

    /// Returns the start and the end of each fault, in order of time.
    fn faults(&self) -> Vec<(Duration, bool, Fault)> {
        let mut all = Vec::new();
        for fault in &self.settings.faults {
            all.push((fault.at.to_std(), true, fault.clone()));
            all.extend(fault.until.map(|until| (until.to_std(), false, fault.clone())));
        }
        all.sort_by_key(|(at, _, _)| *at);
        all
    }

    /// Begins or ends a fault.
    fn turn(&mut self, emulation: &Emulation, begins: bool, fault: &Fault) -> anyhow::Result<()> {
        let signal = if begins { Signal::STOP } else { Signal::CONT };
        let clusters = self.settings.clusters as usize;
        let network = fault.network.unwrap_or_default() as usize;
        match fault.what {
            FaultKind::AgentDies => self.fleet.signal(self.agents[network], signal),
            FaultKind::NetworkDies => {
                self.fleet.signal(self.agents[network], signal);
                let origins = &self.origins[network * clusters..(network + 1) * clusters];
                origins.iter().for_each(|origin| self.fleet.signal(*origin, signal));
            }
            FaultKind::BrokerDies if begins => {
                self.note_rounds(emulation)?;
                self.fleet.kill_controllers()?;
            }
            FaultKind::BrokerDies => self.start_broker(emulation)?,
            FaultKind::AgentLate => {}
        }
        Ok(())
    }

    /// Adds the rounds of the present broker to the total, before the broker ends.
    fn note_rounds(&mut self, emulation: &Emulation) -> anyhow::Result<()> {
        let status = self.status(emulation)?;
        let void = status.rounds.iter().filter(|round| round.void.is_some()).count() as u64;
        self.rounds.0 += status.rounds.len() as u64 - void;
        self.rounds.1 += void;
        let nowhere = status.decision.placed.iter().filter(|placed| placed.to.is_none());
        self.unplaced = nowhere.map(|placed| u64::from(placed.sessions)).sum();
        Ok(())
    }

    fn play(&mut self, emulation: &Emulation, time: Duration) -> anyhow::Result<()> {
        let began = Instant::now();
        self.measured = Span::from_std(time.saturating_sub(self.warmup));
        let players = self.start_players(emulation, time)?;
        for (at, begins, fault) in self.faults() {
            if at < time {
                std::thread::sleep(at.saturating_sub(began.elapsed()));
                self.turn(emulation, begins, &fault)?;
            }
        }
        for player in players {
            let output = player.wait_with_output()?;
            // `broker play` fails if no player began; here a run without players counts as a
            // result.
            let own: Outcome = serde_json::from_slice(&output.stdout)
                .with_context(|| format!("broker play: says nothing: {}", output.status))?;
            self.outcome.played.extend(own.played);
            self.outcome.before.extend(own.before);
            self.outcome.ways.extend(own.ways);
        }
        if self.fleet.has_controller() {
            self.note_rounds(emulation)?;
        }
        Ok(())
    }
}

impl RunningSystem for Programs {
    fn work(&mut self, emulation: &Emulation, time: Duration) -> Result<(), ScenarioError> {
        self.play(emulation, time).map_err(failed)
    }

    fn report(&self, _: &HostObservations, _: &[u32], row: &mut WorkloadRow) -> Vec<CoflowRow> {
        row.flows = self.outcome.played.len() as u64;
        let segments = (self.measured, self.settings.segment_bytes());
        report_players(&self.outcome.played, &self.outcome.before, segments, row);
        let costs = self.settings.costs(self.seed);
        let of = |way: &String| {
            let number = way.strip_prefix("network-")?.split('.').next()?.parse::<usize>().ok()?;
            costs.get(number).copied()
        };
        let paid: Vec<f64> = self.outcome.ways.iter().flatten().filter_map(of).collect();
        let mut more = |name, value: f64| row.more.insert(name, value);
        more("rounds_accepted", self.rounds.0 as f64);
        more("rounds_void", self.rounds.1 as f64);
        more("unplaced", self.unplaced as f64);
        if !paid.is_empty() {
            more("cost_mean", paid.iter().sum::<f64>() / paid.len() as f64);
        }
        Vec::new()
    }
}
