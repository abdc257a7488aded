//! Plans of drawn windows: certified gap, CPU time and memory of a cold round and of the warm round
//! after it.
//!
//! A warm round has the network of the cold one, requests drawn with another seed, and the cold
//! round's prices; it has two passes.
//! Leaves out: the costs of local control. Read [`INSTANCES`] and [`Row`] first.

use super::super::{output_of, peak_bytes, thread_cpu_s};
use super::{Args, print_table};
use anabranch_live_proto::plan::check::check;
use anabranch_live_proto::plan::generator::{Topology, TopologyShape, Workload, WorkloadKind, demand};
use anabranch_live_proto::plan::optimiser::{Optimiser, Prices};
use anabranch_live_proto::plan::{Plan, Priority, Program, Settings};
use anabranch_live_proto::round::RoundSettings;
use anabranch_units::{Duration, Seed};
use anyhow::Context as _;
use serde::{Deserialize, Serialize};
use std::process::Command;

/// Upper limits for the values of a benchmark row. A row fails if a value reaches its limit.
#[derive(Copy, Clone, Debug)]
pub(super) struct Bound {
    gap: f64,
    gap_of_cost: f64,
    cpu_s: f64,
    rss_bytes: f64,
}

const UNBOUNDED: Bound =
    Bound { gap: f64::INFINITY, gap_of_cost: f64::INFINITY, cpu_s: f64::INFINITY, rss_bytes: f64::INFINITY };
/// Bound for a window of one minute.
const MINUTE_BOUND: Bound = Bound { gap: 0.004, cpu_s: 0.2, rss_bytes: 20e6, ..UNBOUNDED };
/// Bound for a window of one minute whose priorities are bitrates.
const QUALITY_BOUND: Bound = Bound { gap: 0.012, cpu_s: 0.3, ..UNBOUNDED };
const LARGE_EVENT_BOUND: Bound = Bound { gap_of_cost: 0.01, cpu_s: 3.0, ..UNBOUNDED };
const HOUR_BOUND: Bound = Bound { gap: 0.025, cpu_s: 12.0, ..UNBOUNDED };
/// Bound for a warm round.
const WARM_BOUND: Bound = Bound { gap: 0.0035, ..UNBOUNDED };

/// Passes of a cold round, the default of [`Optimiser`].
const PASSES: u32 = 20;
/// Passes of a cold round whose prices converge later: one link holds few objects of the highest
/// bitrate, and the gap of a Large Event is judged by its cost.
const LONG_PASSES: u32 = 27;
const WARM_PASSES: u32 = 2;
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3_600);
/// Distance of the warm round's seed from the cold round's.
const NEXT_ROUND: u64 = 1_000;

/// A drawn window.
#[derive(Copy, Clone, Debug)]
pub(super) struct Instance {
    kind: WorkloadKind,
    videos: u32,
    edges: u32,
    priority: Priority,
    length: Duration,
    /// Passes of the cold round.
    passes: u32,
    bound: Bound,
}

const fn minute(kind: WorkloadKind, videos: u32, edges: u32) -> Instance {
    let (priority, length) = (Priority::Balanced, MINUTE);
    Instance { kind, videos, edges, priority, length, passes: PASSES, bound: MINUTE_BOUND }
}

/// The windows, smallest first within each trace.
pub(super) const INSTANCES: [Instance; 18] = {
    use WorkloadKind::{AverageDay, HeavyTail, LargeEvent};
    let heavy_tail = minute(HeavyTail, 10_000, 100);
    [
        minute(AverageDay, 10_000, 100),
        minute(AverageDay, 10_000, 500),
        minute(AverageDay, 10_000, 2_000),
        minute(HeavyTail, 1_000, 100),
        minute(HeavyTail, 1_000, 500),
        minute(HeavyTail, 1_000, 2_000),
        minute(HeavyTail, 2_000, 100),
        minute(HeavyTail, 2_000, 500),
        minute(HeavyTail, 2_000, 2_000),
        minute(HeavyTail, 5_000, 100),
        minute(HeavyTail, 5_000, 500),
        minute(HeavyTail, 5_000, 2_000),
        heavy_tail,
        minute(HeavyTail, 10_000, 500),
        minute(HeavyTail, 10_000, 2_000),
        Instance { priority: Priority::Quality, passes: LONG_PASSES, bound: QUALITY_BOUND, ..heavy_tail },
        Instance {
            passes: LONG_PASSES,
            bound: LARGE_EVENT_BOUND,
            ..minute(LargeEvent, LargeEvent.published_channels(), 100)
        },
        Instance { length: HOUR, bound: HOUR_BOUND, ..heavy_tail },
    ]
};

impl Instance {
    /// Unique name.
    pub(super) fn name(&self) -> String {
        let kind = match self.kind {
            WorkloadKind::AverageDay => "average-day",
            WorkloadKind::LargeEvent => "large-event",
            WorkloadKind::HeavyTail => "heavy-tail",
        };
        let priority = if self.priority == Priority::Quality { ", priority bitrate" } else { "" };
        let length = if self.is_hour() { ", whole hour" } else { "" };
        format!("{kind} {}, {} edges{priority}{length}", self.videos, self.edges)
    }

    pub(super) fn is_hour(&self) -> bool {
        self.length == HOUR
    }

    fn topology(&self, seed: u64) -> anyhow::Result<Topology> {
        let shape = TopologyShape { edges: self.edges, ..TopologyShape::default() };
        Ok(shape.draw(Seed::new(seed))?)
    }

    fn program_on(&self, topology: &Topology, seed: u64) -> anyhow::Result<Program> {
        let workload = Workload::window(self.kind, self.videos, self.length);
        let demand = demand(&workload.draw(&topology.shares, Seed::new(seed)).arrivals);
        let settings = Settings { priority: self.priority, ..Settings::default() };
        let settings = settings.normalised(&demand.0, &demand.1, RoundSettings::default().cost_share);
        Ok(topology.program(demand, settings)?)
    }

    /// The cold round's program.
    pub(super) fn program(&self, seed: u64) -> anyhow::Result<Program> {
        self.program_on(&self.topology(seed)?, seed)
    }
}

/// Result of one round, from our optimiser or from a peer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Row {
    pub(super) instance: String,
    pub(super) seed: u64,
    pub(super) videos: u32,
    pub(super) edges: u32,
    /// Number of viewers who ask.
    pub(super) requests: u64,
    /// Service less cost of the best plan found; `None` without one.
    pub(super) objective: Option<f64>,
    /// Certified upper bound of any plan's objective.
    pub(super) bound: Option<f64>,
    /// Distance between `objective` and `bound`, as a share of the bound.
    pub(super) gap: Option<f64>,
    /// Distance between `objective` and `bound`, as a share of the plan's cost; `None` for a peer.
    pub(super) gap_of_cost: Option<f64>,
    /// CPU time of the search alone, of the shortest turn.
    pub(super) cpu_s: f64,
    /// Peak memory of the process, its code and the drawing of the instance included.
    pub(super) rss_bytes: u64,
    /// Name of the other solver; `None` for our optimiser.
    pub(super) peer: Option<String>,
    /// The other solver's reason to stop.
    pub(super) ended: Option<String>,
}

/// Suffix of a warm round's instance.
const WARM: &str = ", warm";

/// Values of a row that miss their bound, one line each.
fn missed(row: &Row, bound: &Bound) -> Vec<String> {
    let mut missed = Vec::new();
    let mut expect = |value: f64, limit: f64, line: String| {
        if value >= limit {
            missed.push(format!("{}, seed {}: {line}", row.instance, row.seed));
        }
    };
    let percent = |share: f64| 100.0 * share;
    let (gap, gap_of_cost) = (row.gap.unwrap_or(1.0), row.gap_of_cost.unwrap_or(0.0));
    expect(gap, bound.gap, format!("gap {:.3} %: must be below {:.2} %", percent(gap), percent(bound.gap)));
    expect(
        gap_of_cost,
        bound.gap_of_cost,
        format!(
            "gap of cost {:.3} %: must be below {:.2} %",
            percent(gap_of_cost),
            percent(bound.gap_of_cost)
        ),
    );
    expect(row.cpu_s, bound.cpu_s, format!("{:.3} CPU s: must be below {} s", row.cpu_s, bound.cpu_s));
    let rss_bytes = row.rss_bytes as f64;
    expect(
        rss_bytes,
        bound.rss_bytes,
        format!("{:.1} MB of memory: must be below {:.0} MB", rss_bytes / 1e6, bound.rss_bytes / 1e6),
    );
    missed
}

/// Contradictions between our answer and a peer's to the same program: a plan above the other's
/// bound.
fn contradictions(ours: &Row, peer: &Row) -> Vec<String> {
    let mut lines = Vec::new();
    for (plan, certificate) in [(ours, peer), (peer, ours)] {
        if let (Some(objective), Some(bound)) = (plan.objective, certificate.bound)
            && objective > bound * (1.0 + ROUNDING)
        {
            lines.push(format!(
                "{}, seed {}: {} has a plan of {objective}, above the bound {bound} of {}",
                ours.instance,
                ours.seed,
                plan.peer.as_deref().unwrap_or("ours"),
                certificate.peer.as_deref().unwrap_or("ours"),
            ));
        }
    }
    lines
}

/// Relative tolerance of a comparison with a peer, which keeps its constraints within 1e-6.
const ROUNDING: f64 = 1e-6;

/// Measures the chosen instances, prints their rows and returns the missed bounds. `by_peer`
/// computes a peer's row for the first seed, if there is a peer.
pub(super) fn measure(
    args: &Args,
    by_peer: impl Fn(&Instance, &Row) -> anyhow::Result<Option<Row>>,
) -> anyhow::Result<Vec<String>> {
    let chosen: Vec<&Instance> = INSTANCES.iter().filter(|one| args.is_chosen(&one.name())).collect();
    if chosen.is_empty() {
        return Ok(Vec::new());
    }
    let (mut rows, mut misses) = (Vec::new(), Vec::new());
    for instance in chosen {
        for &seed in &args.seeds {
            let [cold, warm] = solve(instance, seed, args.turns)?;
            misses.extend(missed(&cold, &instance.bound));
            misses.extend(missed(&warm, if instance.is_hour() { &UNBOUNDED } else { &WARM_BOUND }));
            let is_first = seed == args.seeds[0];
            let peer_row = if is_first { by_peer(instance, &cold)? } else { None };
            misses.extend(peer_row.iter().flat_map(|row| contradictions(&cold, row)));
            for row in [Some(cold), Some(warm), peer_row].into_iter().flatten() {
                args.print(&row)?;
                rows.push(row);
            }
        }
    }
    if !args.json {
        let head = ["instance", "seed", "requests", "solver", "gap %", "of cost %", "CPU s", "MB"];
        print_table(head, rows.iter().map(cells));
    }
    Ok(misses)
}

fn cells(row: &Row) -> [String; 8] {
    let percent = |share: Option<f64>| share.map_or("-".to_owned(), |share| format!("{:.3}", 100.0 * share));
    [
        row.instance.clone(),
        row.seed.to_string(),
        row.requests.to_string(),
        row.peer.clone().unwrap_or_else(|| "ours".to_owned()),
        percent(row.gap),
        percent(row.gap_of_cost),
        format!("{:.3}", row.cpu_s),
        format!("{:.1}", row.rss_bytes as f64 / 1e6),
    ]
}

/// Solves an instance in a new process: its cold and its warm round.
fn solve(instance: &Instance, seed: u64, turns: u32) -> anyhow::Result<[Row; 2]> {
    let mut child = Command::new(std::env::current_exe()?);
    child.args(["bench", "live", "--solve", &instance.name()]);
    child.args(["--seeds", &seed.to_string(), "--turns", &turns.to_string()]);
    Ok(serde_json::from_slice(&output_of(&mut child, b"")?)?)
}

/// Solves an instance in this process and prints its two rows as JSON.
///
/// Errors: no such instance, or a plan that breaks a constraint.
pub(super) fn solve_here(name: &str, seed: u64, turns: u32) -> anyhow::Result<()> {
    let instance = INSTANCES.iter().find(|one| one.name() == name);
    let rows = rounds(instance.with_context(|| format!("{name}: no such instance"))?, seed, turns)?;
    println!("{}", serde_json::to_string(&rows)?);
    Ok(())
}

fn rounds(instance: &Instance, seed: u64, turns: u32) -> anyhow::Result<[Row; 2]> {
    let topology = instance.topology(seed)?;
    let program = instance.program_on(&topology, seed)?;
    let optimiser = Optimiser { passes: instance.passes, ..Optimiser::default() };
    let (cold, prices) = round(&program, &optimiser, None, turns)?;
    let cold = Row { instance: instance.name(), seed, ..of_plan(instance, &program, &cold) };
    let program = instance.program_on(&topology, seed + NEXT_ROUND)?;
    let optimiser = Optimiser { passes: WARM_PASSES, ..Optimiser::default() };
    let (warm, _) = round(&program, &optimiser, Some(&prices), turns)?;
    let warm = Row { instance: instance.name() + WARM, seed, ..of_plan(instance, &program, &warm) };
    Ok([cold, warm])
}

/// A plan with the CPU time and the peak memory of its search.
struct SolvedPlan {
    plan: Plan,
    cpu_s: f64,
    rss_bytes: u64,
}

fn of_plan(instance: &Instance, program: &Program, solved: &SolvedPlan) -> Row {
    Row {
        instance: String::new(),
        seed: 0,
        videos: instance.videos,
        edges: instance.edges,
        requests: program.requests().iter().map(|request| request.viewers).sum(),
        objective: Some(solved.plan.objective()),
        bound: Some(solved.plan.bound),
        gap: Some(solved.plan.gap()),
        gap_of_cost: solved.plan.gap_of_cost(),
        cpu_s: solved.cpu_s,
        rss_bytes: solved.rss_bytes,
        peer: None,
        ended: None,
    }
}

fn round(
    program: &Program,
    optimiser: &Optimiser,
    former: Option<&Prices>,
    turns: u32,
) -> anyhow::Result<(SolvedPlan, Prices)> {
    let mut cpu_s = f64::INFINITY;
    let mut last = None;
    for _ in 0..turns {
        // The last answer is dropped first: two answers at once would count as memory of the
        // search.
        drop(last.take());
        let start = thread_cpu_s();
        last = Some(optimiser.optimise(program, former)?);
        cpu_s = cpu_s.min(thread_cpu_s() - start);
    }
    let (plan, prices) = last.context("there is at least one turn")?;
    let rss_bytes = peak_bytes()?;
    check(program, &plan)?;
    Ok((SolvedPlan { plan, cpu_s, rss_bytes }, prices))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(objective: f64, bound: f64) -> Row {
        Row {
            instance: "x".to_owned(),
            seed: 1,
            videos: 1,
            edges: 1,
            requests: 1,
            objective: Some(objective),
            bound: Some(bound),
            gap: Some(0.0039),
            gap_of_cost: Some(0.5),
            cpu_s: 0.19,
            rss_bytes: 19_000_000,
            peer: None,
            ended: None,
        }
    }

    #[test]
    fn missed_bounds_are_named_with_their_values() {
        let good = row(1.0, 1.0);
        assert!(missed(&good, &MINUTE_BOUND).is_empty());
        let bad = Row { gap: Some(0.004), cpu_s: 0.2, rss_bytes: 20_000_000, ..good.clone() };
        let lines = [
            "x, seed 1: gap 0.400 %: must be below 0.40 %",
            "x, seed 1: 0.200 CPU s: must be below 0.2 s",
            "x, seed 1: 20.0 MB of memory: must be below 20 MB",
        ];
        assert_eq!(missed(&bad, &MINUTE_BOUND), lines);
        let of_cost = Row { gap_of_cost: Some(0.012), ..good };
        assert_eq!(
            missed(&of_cost, &LARGE_EVENT_BOUND),
            ["x, seed 1: gap of cost 1.200 %: must be below 1.00 %"]
        );
    }

    #[test]
    fn plans_above_the_other_bound_are_contradictions() {
        let peer = |objective, bound| Row { peer: Some("highs".to_owned()), ..row(objective, bound) };
        assert!(contradictions(&row(9.0, 10.0), &peer(9.5, 9.8)).is_empty());
        assert_eq!(contradictions(&row(9.9, 10.0), &peer(9.5, 9.8)).len(), 1);
        assert_eq!(contradictions(&row(9.0, 9.2), &peer(9.5, 9.8)).len(), 1);
    }

    #[test]
    fn instances_have_different_names() {
        let names: std::collections::BTreeSet<String> = INSTANCES.iter().map(Instance::name).collect();
        assert_eq!(names.len(), INSTANCES.len());
    }

    #[test]
    fn a_warm_round_follows_a_cold_one() {
        let instance = Instance { videos: 200, ..INSTANCES[3] };
        let [cold, warm] = rounds(&instance, 1, 1).expect("a small window");
        assert_eq!((cold.requests, warm.requests), (80, 80));
        assert_ne!(cold.objective, warm.objective, "its requests are drawn anew");
        assert!(warm.instance.ends_with(WARM) && cold.rss_bytes > 0);
    }
}
