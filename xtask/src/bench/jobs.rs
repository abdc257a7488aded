//! `bench jobs`: all demand over parallel circuit switches, training jobs with wrong bytes, and
//! single and double failures.
//!
//! CPU time of this thread. Read [`ParallelRow`], [`JobRow`] and [`FailureRow`] first.

use super::thread_cpu_s;
use anabranch_circuit_proto::job::{Failures, Job, Phase, Planner};
use anabranch_circuit_proto::parallel::{Switches, makespan_min, plan, spectra_like};
use anabranch_circuit_proto::{Demand, generate};
use anabranch_units::{BitRate, ByteCount, Duration, Seed};
use anyhow::ensure;

/// Arguments of `bench jobs`.
#[derive(clap::Args)]
pub struct Args {
    /// Hosts of the networks, which double from 32 up to this number.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(32..=512))]
    hosts: u32,
    /// Hosts of the training jobs.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(2..=512))]
    job_hosts: u32,
    /// Draws of wrong bytes for each job.
    #[arg(long, default_value_t = 4)]
    draws: u64,
    /// Pairs of failures that are drawn for each job.
    #[arg(long, default_value_t = 1_000)]
    pairs: u64,
    /// Rows to make; all without it.
    #[arg(long, value_enum)]
    only: Option<Part>,
    /// Fail if an answer to one failure takes 100 ms of CPU time or more, or a plan is worse than
    /// staying.
    #[arg(long)]
    check: bool,
}

/// A kind of rows.
#[derive(Copy, Clone, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    Parallel,
    Jobs,
    Failures,
}

/// Nights (times without circuits while a switch turns), in microseconds.
const NIGHTS_US: [u64; 7] = [1, 10, 100, 1_000, 10_000, 100_000, 1_000_000];
const SWITCHES: [usize; 4] = [1, 2, 4, 8];
/// Rate of a circuit.
const RATE: BitRate = BitRate::gbps(400);
/// Bytes that each host sends in a phase.
const HOST_BYTES: ByteCount = ByteCount::new(1_000_000_000);
/// Maximum CPU time of the answer to one failure, in milliseconds.
const ANSWER_MS_MAX: f64 = 100.0;

/// Result of one demand on one set of switches.
#[derive(serde::Serialize)]
struct ParallelRow {
    demand: &'static str,
    hosts: usize,
    switches: usize,
    night_us: u64,
    bound_s: f64,
    ours_s: f64,
    /// Makespan of the plan that Spectra makes, in seconds.
    peer_s: f64,
    plan_ms: f64,
}

/// Result of one job, planned with the true bytes and with wrong ones.
#[derive(serde::Serialize)]
struct JobRow {
    job: &'static str,
    hosts: usize,
    switches: usize,
    night_us: u64,
    bound_s: f64,
    ours_s: f64,
    staying_s: f64,
    packet_s: f64,
    draws: u64,
    /// Makespan of the plan for bytes that are 20 % wrong, over the makespan of the plan for the
    /// true ones.
    wrong_mean: f64,
    wrong_max: f64,
    /// CPU time of the plan for the true bytes, in milliseconds.
    plan_ms: f64,
}

/// Result of all single failures of one job, and of random pairs of failures.
#[derive(serde::Serialize)]
struct FailureRow {
    job: &'static str,
    hosts: usize,
    spares: usize,
    switches: usize,
    night_us: u64,
    singles: u64,
    singles_survived: u64,
    pairs: u64,
    pairs_survived: u64,
    /// CPU time of the slowest answer to one failure, in milliseconds.
    answer_ms_max: f64,
    /// Makespan after one failure over the makespan without a failure, for the failures that the
    /// job survives.
    slowdown_mean: f64,
    slowdown_max: f64,
}

/// Runs the benchmark, and prints one JSON object for each row.
///
/// Errors: with `--check`, an answer that takes too long, or a plan that is worse than staying.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let is_wanted = |part: Part| args.only.is_none_or(|only| only == part);
    let mut hosts = 32;
    while is_wanted(Part::Parallel) && hosts <= args.hosts as usize {
        parallel(hosts)?;
        hosts *= 2;
    }
    for count in [2, 4].into_iter().filter(|_| is_wanted(Part::Jobs)) {
        for night in NIGHTS_US {
            for (name, job) in jobs(args.job_hosts as usize, count, night, 1)? {
                let row = job_row(name, &job, args.draws)?;
                println!("{}", serde_json::to_string(&row)?);
                ensure!(!args.check || row.ours_s <= row.staying_s, "{name}: worse than staying");
            }
        }
    }
    let settings = [(2, 0), (2, 2), (4, 2)];
    for (count, spares) in settings.into_iter().filter(|_| is_wanted(Part::Failures)) {
        for (name, job) in jobs(args.job_hosts as usize, count, 10_000, spares)? {
            let row = failure_row(name, &job, args.pairs)?;
            println!("{}", serde_json::to_string(&row)?);
            let slowest = row.answer_ms_max;
            ensure!(
                !args.check || slowest < ANSWER_MS_MAX,
                "{name}: an answer takes {slowest:.1} ms: must be below {ANSWER_MS_MAX} ms"
            );
        }
    }
    Ok(())
}

fn parallel(hosts: usize) -> anyhow::Result<()> {
    let demands = [
        ("ring", generate::ring(hosts, HOST_BYTES)?),
        ("all-to-all", generate::all_to_all(hosts, HOST_BYTES)?),
        ("skewed experts", generate::skewed(hosts, HOST_BYTES, 4, 12, Seed::new(1))?),
    ];
    for (name, demand) in &demands {
        for count in SWITCHES {
            for night_us in NIGHTS_US {
                let switches = Switches { count, rate: RATE, night: Duration::from_us(night_us) };
                let start = thread_cpu_s();
                let ours = plan(demand, &switches)?;
                let plan_ms = (thread_cpu_s() - start) * 1e3;
                let row = ParallelRow {
                    demand: name,
                    hosts,
                    switches: count,
                    night_us,
                    bound_s: makespan_min(demand, &switches)?.as_secs_f64(),
                    ours_s: ours.makespan().as_secs_f64(),
                    peer_s: spectra_like(demand, &switches)?.makespan().as_secs_f64(),
                    plan_ms,
                };
                println!("{}", serde_json::to_string(&row)?);
            }
        }
    }
    Ok(())
}

/// Data-parallel training by rings; a mixture of experts with two all-to-alls and a ring; a
/// pipeline with a ring.
fn jobs(
    hosts: usize,
    count: usize,
    night_us: u64,
    spares: usize,
) -> anyhow::Result<Vec<(&'static str, Job)>> {
    let switches = Switches { count, rate: RATE, night: Duration::from_us(night_us) };
    let ring = generate::ring(hosts, ByteCount::new(2 * HOST_BYTES.as_u64()))?;
    let experts = generate::skewed(hosts, HOST_BYTES, 4, 12, Seed::new(1))?;
    let all = generate::all_to_all(hosts, HOST_BYTES)?;
    let mut pipeline = Demand::new(hosts)?;
    for host in 1..hosts {
        pipeline.add(host - 1, host, HOST_BYTES)?;
    }
    let phase = |(number, (name, demand)): (usize, (&str, &Demand))| Phase {
        name: name.to_owned(),
        after: number.checked_sub(1).into_iter().collect(),
        compute: Duration::from_ms(20),
        demand: demand.clone(),
    };
    let job = |phases: &[(&str, &Demand)]| Job {
        hosts,
        spares,
        switches,
        iterations: 4,
        phases: phases.iter().copied().enumerate().map(phase).collect(),
    };
    Ok(vec![
        ("rings", job(&[("forward", &ring), ("backward", &ring)])),
        ("experts", job(&[("dispatch", &experts), ("combine", &all), ("gradients", &ring)])),
        ("pipeline", job(&[("activations", &pipeline), ("gradients", &ring), ("tokens", &all)])),
    ])
}

fn job_row(name: &'static str, job: &Job, draws: u64) -> anyhow::Result<JobRow> {
    let start = thread_cpu_s();
    let plan = Planner::new(job)?.plan();
    let plan_ms = (thread_cpu_s() - start) * 1e3;
    let mut ratios = Vec::new();
    for draw in 0..draws {
        let wrong = with_wrong_bytes(job, Seed::new(draw))?;
        let planner = Planner::new(&wrong)?;
        let makespan = planner.executed(&planner.plan(), job)?;
        ratios.push(makespan.as_secs_f64() / plan.makespan.as_secs_f64());
    }
    let staying = plan.staying.expect("a ring reaches all hosts");
    Ok(JobRow {
        job: name,
        hosts: job.hosts,
        switches: job.switches.count,
        night_us: job.switches.night.as_us(),
        bound_s: plan.bound.as_secs_f64(),
        ours_s: plan.makespan.as_secs_f64(),
        staying_s: staying.as_secs_f64(),
        packet_s: plan.packet.as_secs_f64(),
        draws,
        wrong_mean: ratios.iter().sum::<f64>() / ratios.len().max(1) as f64,
        wrong_max: ratios.iter().copied().fold(0.0, f64::max),
        plan_ms,
    })
}

/// The job with each pair's bytes off by up to 20 % either way.
fn with_wrong_bytes(job: &Job, seed: Seed) -> anyhow::Result<Job> {
    let mut wrong = job.clone();
    for (number, phase) in wrong.phases.iter_mut().enumerate() {
        let mut random = seed.stream("wrong bytes", number as u64);
        let mut demand = Demand::new(job.hosts)?;
        for source in 0..job.hosts {
            for destination in (0..job.hosts).filter(|destination| *destination != source) {
                let bytes = phase.demand.between(source, destination).as_u64();
                let factor_ppm = u128::from(800_000 + random.below(400_001));
                let drawn = u64::try_from(u128::from(bytes) * factor_ppm / 1_000_000)?;
                demand.add(source, destination, ByteCount::new(drawn))?;
            }
        }
        phase.demand = demand;
    }
    Ok(wrong)
}

fn failure_row(name: &'static str, job: &Job, pairs: u64) -> anyhow::Result<FailureRow> {
    let planner = Planner::new(job)?;
    let whole = planner.plan().makespan.as_secs_f64();
    let mut singles: Vec<Failures> = Vec::new();
    for host in 0..job.hosts {
        singles.push(Failures { hosts: [host].into(), ..Failures::default() });
        for switch in 0..job.switches.count {
            singles.push(Failures { ports: [(switch, host)].into(), ..Failures::default() });
        }
    }
    for switch in 0..job.switches.count {
        singles.push(Failures { switches: [switch].into(), ..Failures::default() });
    }
    let (mut answer_ms_max, mut slowdowns) = (0f64, Vec::new());
    for failures in &singles {
        let start = thread_cpu_s();
        let after = planner.plan_after(failures);
        answer_ms_max = answer_ms_max.max((thread_cpu_s() - start) * 1e3);
        slowdowns.extend(after.ok().map(|plan| plan.makespan.as_secs_f64() / whole));
    }
    let mut random = Seed::new(1).stream("pairs of failures", job.spares as u64);
    let mut pairs_survived = 0;
    for _ in 0..pairs {
        let first = random.below(singles.len() as u64) as usize;
        let second = (first + 1 + random.below(singles.len() as u64 - 1) as usize) % singles.len();
        let mut both = singles[first].clone();
        both.hosts.extend(&singles[second].hosts);
        both.ports.extend(&singles[second].ports);
        both.switches.extend(&singles[second].switches);
        pairs_survived += u64::from(planner.plan_after(&both).is_ok());
    }
    Ok(FailureRow {
        job: name,
        hosts: job.hosts,
        spares: job.spares,
        switches: job.switches.count,
        night_us: job.switches.night.as_us(),
        singles: singles.len() as u64,
        singles_survived: slowdowns.len() as u64,
        pairs,
        pairs_survived,
        answer_ms_max,
        slowdown_mean: slowdowns.iter().sum::<f64>() / slowdowns.len().max(1) as f64,
        slowdown_max: slowdowns.iter().copied().fold(0.0, f64::max),
    })
}
