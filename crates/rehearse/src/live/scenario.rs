//! `live` on the emulator: a scenario's workload with a real controller, real nodes and measuring
//! players.
//!
//! Differs from the simulator: `live publish` begins 4 s before the run. A fault stops its node; at
//! its end the node is killed and started again. Ages, refusals and skips count from the start of
//! the run. Upstream parts, plans and control bytes are not counted. Read [`EmulatedSystem`] first.

use super::audience::{Audience, OnInterrupt};
use super::programs::{CONTROLLER_PORT, Daemons, Link, Node, Overlay, channel_name, playlist_url};
use crate::fleet::{Fleet, failed, started};
use anabranch_emu::Emulation;
use anabranch_emu::scenario::{HostObservations, Rehearsal, RunningSystem, ScenarioError, System};
use anabranch_live::players::{PlayerReport, PlayerSpec, Progress};
use anabranch_live_proto::play::{Ages, BUFFER_MAX, Measurements, PlayerKind};
use anabranch_live_proto::simulated::{self, FaultKind, ResolvedWorkload, Rule};
use anabranch_sim::scenario::SystemWorkload;
use anabranch_sim::{CoflowRow, Plan, WorkloadRow};
use anabranch_units::stats::percentile;
use anabranch_units::{Duration as Span, Seed, SiteId};
use anyhow::Context as _;
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Minimum duration of a segment. A segment is a whole number of parts.
const SEGMENT_MIN: Span = Span::from_secs(2);
/// Minimum duration of a part of `live source`.
const PART_MIN: Span = Span::from_ms(50);
/// Maximum duration of a part of `live publish`.
const PART_MAX: Span = Span::from_secs(10);
/// Time from the publishers' start to the start of the run. The first segments are then complete if
/// parts have at most 4 s.
const LEAD: Duration = Duration::from_secs(4);

/// `live` in emulated scenarios.
#[derive(Copy, Clone, Debug)]
pub struct EmulatedSystem;

impl System for EmulatedSystem {
    fn kind(&self) -> &'static str {
        "live"
    }
    fn rehearse(
        &self,
        workload: &SystemWorkload,
        plan: &Plan,
        field: &str,
    ) -> Result<Box<dyn Rehearsal>, ScenarioError> {
        let stage = simulated::plan(workload, plan.network(), field);
        let stage = stage.map_err(|error| ScenarioError::new(error.to_string()))?;
        let settings = stage.settings();
        let limits = [
            ("part", settings.part, PART_MIN, PART_MAX),
            ("buffer", settings.buffer, Span::ZERO, BUFFER_MAX),
        ];
        for (name, value, least, most) in limits {
            if value < least || value > most {
                let line = format!("{field}.{name}: {value}: must be {least} to {most} to emulate");
                return Err(ScenarioError::new(line));
            }
        }
        if settings.rule != Rule::default() {
            let line = format!("{field}.rule: leave it out to emulate: nodes have one rule");
            return Err(ScenarioError::new(line));
        }
        Ok(Box::new(Workload(stage)))
    }
}

/// A checked workload.
struct Workload(ResolvedWorkload);

impl Rehearsal for Workload {
    fn start(
        &self,
        emulation: &Emulation,
        plan: &Plan,
        seed: Seed,
    ) -> Result<Box<dyn RunningSystem>, ScenarioError> {
        started(Broadcast::start(&self.0, emulation, plan, seed))
    }
}

/// The network of a workload.
fn overlay(stage: &ResolvedWorkload, plan: &Plan) -> Overlay {
    let settings = stage.settings();
    let site = |host: u16| plan.network().hosts()[usize::from(host)];
    let nodes = stage.overlay().nodes().iter().enumerate().map(|(at, node)| Node {
        name: node.name.clone(),
        tier: node.tier,
        site: site(simulated::host_of(at)),
    });
    let links = stage.overlay().links().iter().map(|link| Link {
        from: link.from.index(),
        to: link.to.index(),
        capacity: link.capacity,
        cost: link.cost,
    });
    let groups = stage.groups().iter().enumerate().map(|(number, edges)| {
        let edges = edges.iter().map(|(edge, cost)| (edge.index(), *cost));
        (site(settings.first_viewer_host() + number as u16), edges.collect())
    });
    let parts = SEGMENT_MIN.as_ps().div_ceil(settings.part.as_ps());
    Overlay {
        controller: site(0),
        nodes: nodes.collect(),
        links: links.collect(),
        groups: groups.collect(),
        channels: u64::from(settings.channels),
        bitrates: settings.bitrates.clone(),
        segment: settings.part * parts,
        part: settings.part,
        mode: settings.mode.into(),
        every: settings.every,
    }
}

/// An event of a run.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    EndWarmup,
    Begin(usize),
    End(usize),
}

/// Sums over all viewers since their start.
#[derive(Copy, Clone, Debug, Default)]
struct Sums {
    video_bytes: u64,
    stalls: u64,
    stalled: Span,
    failed: u64,
    edge_changes: u64,
}

impl Sums {
    fn of(places: &[Arc<Progress>]) -> Self {
        places.iter().fold(Self::default(), |sums, of| Self {
            video_bytes: sums.video_bytes + of.video_bytes(),
            stalls: sums.stalls + of.stalls(),
            stalled: sums.stalled + of.stalled(),
            failed: sums.failed + of.failed(),
            edge_changes: sums.edge_changes + of.edge_changes(),
        })
    }
}

/// Running programs of a workload, and the reports of its viewers.
struct Broadcast {
    stage: ResolvedWorkload,
    daemons: Daemons,
    /// Index of the controller's program in the fleet, and its address.
    controller: (usize, String),
    viewers: BTreeMap<SiteId, Vec<(u64, PlayerSpec)>>,
    warmup: Duration,
    measured: Duration,
    /// Number of controllers started so far.
    leads: u32,
    before: Sums,
    after: Sums,
    reports: Vec<PlayerReport>,
}

impl Broadcast {
    /// Errors: an error of the operating system; programs that do not start.
    fn start(
        stage: &ResolvedWorkload,
        emulation: &Emulation,
        plan: &Plan,
        seed: Seed,
    ) -> anyhow::Result<Self> {
        let mut fleet = Fleet::new("live")?;
        let overlay = overlay(stage, plan);
        overlay.prepare(&fleet, emulation)?;
        let address = format!("{}:{CONTROLLER_PORT}", emulation.site_address(overlay.controller));
        let controller = controller(&overlay, &fleet, &address, 0);
        let controller = (fleet.start(emulation, overlay.controller, controller)?, address.clone());
        let daemons = Daemons::start(overlay, fleet, emulation, vec![address], false)?;
        std::thread::sleep(LEAD);
        let mut viewers: BTreeMap<SiteId, Vec<(u64, PlayerSpec)>> = BTreeMap::new();
        for (number, viewer) in stage.viewers(seed).enumerate() {
            let (site, edges) = &daemons.overlay.groups[viewer.group];
            let name = channel_name(daemons.overlay.channels, u64::from(viewer.channel));
            let url =
                |(edge, _): &(usize, f64)| playlist_url(emulation, daemons.overlay.nodes[*edge].site, &name);
            let spec = PlayerSpec {
                kind: PlayerKind::Buffering,
                urls: edges.iter().take(anabranch_live_proto::play::EDGES_MAX).map(url).collect(),
                starts_after: viewer.opens_after,
                subnet: None,
                buffer: Some(stage.settings().buffer),
            };
            viewers.entry(*site).or_default().push((number as u64, spec));
        }
        Ok(Self {
            stage: stage.clone(),
            daemons,
            controller,
            viewers,
            warmup: plan.scenario().warmup.to_std(),
            measured: Duration::ZERO,
            leads: 1,
            before: Sums::default(),
            after: Sums::default(),
            reports: Vec::new(),
        })
    }

    /// Returns all events before `time`, in order of time.
    fn events(&self, time: Duration) -> Vec<(Duration, Event)> {
        let faults = self.stage.settings().faults.iter().enumerate().flat_map(|(number, fault)| {
            let end = fault.until.map(|until| (until.to_std(), Event::End(number)));
            [Some((fault.at.to_std(), Event::Begin(number))), end].into_iter().flatten()
        });
        let mut events: Vec<(Duration, Event)> =
            faults.chain([(self.warmup, Event::EndWarmup)]).filter(|(at, _)| *at < time).collect();
        events.sort_unstable();
        events
    }

    fn play(&mut self, emulation: &Emulation, time: Duration) -> anyhow::Result<()> {
        let began = Instant::now();
        self.measured = time.saturating_sub(self.warmup);
        let viewers = std::mem::take(&mut self.viewers);
        let audience = Audience::start(emulation, viewers, &BTreeMap::new(), time, OnInterrupt::EndViewers)?;
        let progress = audience.progress();
        for (at, event) in self.events(time) {
            if !audience.wait(at.saturating_sub(began.elapsed())) {
                break;
            }
            match event {
                Event::EndWarmup => self.before = Sums::of(&progress),
                Event::Begin(number) => self.begin_fault(emulation, number)?,
                Event::End(number) => self.end_fault(emulation, number)?,
            }
        }
        self.reports = audience.reports()?;
        self.after = Sums::of(&progress);
        Ok(())
    }

    /// Returns the kind of a fault, and the index of its node.
    fn fault(&self, number: usize) -> anyhow::Result<(FaultKind, usize)> {
        let fault = &self.stage.settings().faults[number];
        let node = fault.node.as_deref().map(|name| self.stage.overlay().find(name));
        let node = node.map(|found| found.context("a fault names a node of the network")).transpose()?;
        Ok((fault.what, node.map_or(0, |node| node.index())))
    }

    fn begin_fault(&self, emulation: &Emulation, number: usize) -> anyhow::Result<()> {
        let (what, node) = self.fault(number)?;
        let Daemons { fleet, nodes, .. } = &self.daemons;
        match what {
            FaultKind::NodeDies => fleet.signal(nodes[node], Signal::STOP),
            FaultKind::ControllerDies => fleet.signal(self.controller.0, Signal::STOP),
            FaultKind::Drain => self.daemons.drain(emulation, node, true)?,
        }
        Ok(())
    }

    fn end_fault(&mut self, emulation: &Emulation, number: usize) -> anyhow::Result<()> {
        let (what, node) = self.fault(number)?;
        match what {
            FaultKind::NodeDies => self.daemons.restart_node(emulation, node),
            FaultKind::Drain => self.daemons.drain(emulation, node, false),
            FaultKind::ControllerDies => {
                let Daemons { overlay, fleet, .. } = &mut self.daemons;
                let command = controller(overlay, fleet, &self.controller.1, self.leads);
                self.leads += 1;
                fleet.restart(self.controller.0, emulation, overlay.controller, command)
            }
        }
    }
}

/// Builds the command of a controller with an empty store.
fn controller(overlay: &Overlay, fleet: &Fleet, address: &str, lead: u32) -> std::process::Command {
    let mut command = overlay.controller(fleet, address);
    command.arg("--store").arg(fleet.path(&format!("live-{lead}.redb")));
    command
}

impl RunningSystem for Broadcast {
    fn work(&mut self, emulation: &Emulation, time: Duration) -> Result<(), ScenarioError> {
        self.play(emulation, time).map_err(failed)
    }

    fn report(&self, _: &HostObservations, _: &[u32], row: &mut WorkloadRow) -> Vec<CoflowRow> {
        let (before, after) = (self.before, self.after);
        let measured_s = self.measured.as_secs_f64();
        row.flows = u64::from(self.stage.settings().viewers);
        row.goodput_mbps =
            (measured_s > 0.0).then(|| 8e-6 * (after.video_bytes - before.video_bytes) as f64 / measured_s);
        let measurements = || self.reports.iter().map(|report| &report.measurements);
        let mut begun_ms: Vec<f64> =
            measurements().filter_map(|of| of.join.playback).map(|after| after.as_secs_f64() * 1e3).collect();
        begun_ms.sort_by(f64::total_cmp);
        let mut ages = Ages::default();
        measurements().for_each(|of| ages.merge(&of.ages));
        let age_ms = |share| ages.quantile_us(share).map(|us| us / 1e3);
        let sum = |of: fn(&Measurements) -> u64| Some(measurements().map(of).sum::<u64>() as f64);
        let stalled_s = after.stalled.as_secs_f64() - before.stalled.as_secs_f64();
        let watched_s = measured_s * row.flows as f64;
        let columns = [
            ("players_begun", Some(begun_ms.len() as f64)),
            ("begun_ms_p50", percentile(&begun_ms, 0.5)),
            ("begun_ms_p99", percentile(&begun_ms, 0.99)),
            ("stalled_share", (watched_s > 0.0).then(|| stalled_s / watched_s)),
            ("stalls", Some((after.stalls - before.stalls) as f64)),
            ("moves", Some((after.edge_changes - before.edge_changes) as f64)),
            ("failures", Some((after.failed - before.failed) as f64)),
            ("part_age_ms_p50", age_ms(0.5)),
            ("part_age_ms_p99", age_ms(0.99)),
            ("refused", sum(|of| of.counts.refused)),
            ("skips", sum(|of| of.counts.skips)),
        ];
        row.more.extend(columns.into_iter().filter_map(|(name, value)| Some((name, value?))));
        Vec::new()
    }
}
