//! `cargo xtask bench`: speeds in work per CPU second, of our code and of another program that does
//! the same work, measured in turns in the same run.
//!
//! Machines are shared and their clock rates change, so the contenders take short turns and the
//! best turn of every contender counts. Speeds are asserted here (`codes --check`), never in tests.
//! Read [`best_seconds`] first.

mod broker;
mod circuit;
mod codes;
mod coordinator;
mod datagrams;
mod decide;
mod faults;
mod jobs;
mod live;
mod pace;
mod parts;
mod plans;
mod relay;
mod shuffle;
mod sim;
mod spray;
mod steering;

use anyhow::{Context as _, ensure};
use clap::Subcommand;
use rustix::time::{ClockId, clock_gettime};
use std::io::Write as _;
use std::process::{Command, Stdio};

/// Arguments of `bench`.
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    job: Job,
}

#[derive(Subcommand)]
enum Job {
    /// Measure how fast a broker assigns its viewers, and how close to the best assignment.
    Broker(broker::Args),
    /// Schedulers of circuits: time of a decision, demand served, and its bound.
    Circuit(circuit::Args),
    /// GF(2^8) kernels: sums of products, and xor.
    Codes(codes::Args),
    /// Measure the cost of `shuffle`'s coordinator while many flows run.
    Coordinator(coordinator::Args),
    /// UDP over loopback, plain and sealed, with and without offload; and the AEADs alone.
    Datagrams(datagrams::Args),
    /// A decision of Flow Chasing, as flows grow in number.
    Decide(decide::Args),
    /// Run whole systems under faults, in virtual time: schedules per second, simulated hours per
    /// CPU hour.
    Faults(faults::Args),
    /// Circuits of training jobs on parallel switches: makespans beside bounds, wrong bytes,
    /// failures.
    Jobs(jobs::Args),
    /// Plans of live video: gap, CPU time and memory; and the costs of local control.
    Live(live::Args),
    /// Changes of flows' rates by each mechanism, and by forking `tc`.
    Pace(pace::Args),
    /// Measure the distance of `replicate`'s plans from the min-cut where capacities differ.
    Plans(plans::Args),
    /// Measure the cost of every role of `replicate` over loopback: source, mirror, coding relay,
    /// destination.
    Relay(relay::Args),
    /// Measure the time from a flow's announcement on one host to another host's new limit.
    Shuffle(shuffle::Args),
    /// The packet simulator: packet-hops per CPU second on fixed scenarios.
    Sim(sim::Args),
    /// Measure the cost of an agent's coding, by the packets of a unit.
    Spray(spray::Args),
    /// Measure the response time of a broker that answers players at a given rate.
    Steering(steering::Args),
}

/// Runs the benchmark that was asked for.
pub fn run(args: Args) -> anyhow::Result<()> {
    match args.job {
        Job::Broker(args) => broker::run(&args),
        Job::Circuit(args) => circuit::run(&args),
        Job::Codes(args) => codes::run(&args),
        Job::Coordinator(args) => coordinator::run(&args),
        Job::Datagrams(args) => datagrams::run(&args),
        Job::Decide(args) => decide::run(&args),
        Job::Faults(args) => faults::run(&args),
        Job::Jobs(args) => jobs::run(&args),
        Job::Live(args) => live::run(&args),
        Job::Pace(args) => pace::run(&args),
        Job::Plans(args) => plans::run(&args),
        Job::Relay(args) => relay::run(&args),
        Job::Shuffle(args) => shuffle::run(&args),
        Job::Sim(args) => sim::run(&args),
        Job::Spray(args) => spray::run(&args),
        Job::Steering(args) => steering::run(&args),
    }
}

/// CPU seconds that a turn should take: above the clock's grain, below a scheduler's slice.
const TURN_S: f64 = 5e-4;
/// Turns that each contender gets, however short the time.
const TURNS_MIN: usize = 3;

/// CPU time of this thread.
///
/// Units: seconds.
fn thread_cpu_s() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + 1e-9 * time.tv_nsec as f64
}

/// Peak memory of this process: `VmHWM` of proc(5), which starts from zero in every new program.
///
/// Errors: `/proc/self/status` cannot be read or lacks the field.
fn peak_bytes() -> anyhow::Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("Linux tells the peak")?;
    let kib: u64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kib * 1_024)
}

/// Runs a program with `input` on its standard input and returns its standard output.
///
/// Errors: the program cannot start or fails.
fn output_of(command: &mut Command, input: &[u8]) -> anyhow::Result<Vec<u8>> {
    let name = command.get_program().to_string_lossy().into_owned();
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().with_context(|| name.clone())?;
    // A program that ends before it has read all input has failed, and prints the reason itself.
    let written = child.stdin.take().context("it is piped")?.write_all(input);
    let output = child.wait_with_output()?;
    ensure!(output.status.success(), "{name}: {}", output.status);
    written?;
    Ok(output.stdout)
}

/// CPU seconds of one call of each contender, the best of its turns.
///
/// Contenders take turns until all of them together have had `seconds` of CPU time for each.
fn best_seconds(contenders: &mut [Box<dyn FnMut() + '_>], seconds: f64) -> Vec<f64> {
    let turn = |call: &mut dyn FnMut(), calls: u64| {
        let start = thread_cpu_s();
        for _ in 0..calls {
            call();
        }
        thread_cpu_s() - start
    };
    let calls: Vec<u64> = contenders
        .iter_mut()
        .map(|call| {
            let mut calls = 1;
            loop {
                let took = turn(call, calls);
                if took >= TURN_S / 2.0 {
                    return ((calls as f64 * TURN_S / took).ceil() as u64).max(1);
                }
                calls *= 4;
            }
        })
        .collect();
    let mut best = vec![f64::INFINITY; contenders.len()];
    let (start, mut turns) = (thread_cpu_s(), 0);
    while turns < TURNS_MIN || thread_cpu_s() - start < seconds * contenders.len() as f64 {
        for ((best, call), &calls) in best.iter_mut().zip(contenders.iter_mut()).zip(&calls) {
            *best = best.min(turn(call, calls) / calls as f64);
        }
        turns += 1;
    }
    best
}
