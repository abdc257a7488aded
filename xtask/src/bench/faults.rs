//! `bench faults`: schedules of faults per second, and simulated time per CPU time, of each
//! system's fault tests.
//!
//! A violation ends the benchmark, with the seed. Leaves out: the schedules (`tests/faults` of each
//! `-proto` room). Read [`run`] first.

use anyhow::{Context as _, bail};
use std::process::{Command, Stdio};
use std::time::Instant;

/// Arguments of `bench faults`.
#[derive(clap::Args)]
pub struct Args {
    /// The systems. By default all that have such tests.
    #[arg(value_name = "SYSTEM", default_values = ["replicate", "gather", "shuffle", "broker", "live"])]
    systems: Vec<String>,
    /// Schedules of each.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..))]
    schedules: u64,
    /// Number of the first seed.
    #[arg(long, default_value_t = 0)]
    first: u64,
}

/// Runs the benchmark.
///
/// Errors: a schedule that fails; tests that cannot be built.
pub fn run(args: &Args) -> anyhow::Result<()> {
    println!("system     schedules      CPU s   a CPU second   simulated hours in a CPU hour");
    for system in &args.systems {
        let program = program(system)?;
        let (began, before) = (Instant::now(), children_cpu_s()?);
        let mut command = Command::new(&program);
        command.args(["--nocapture", "--skip", "the_same_seed"]).stderr(Stdio::inherit());
        command.env("ANABRANCH_FAULTS", args.schedules.to_string());
        command.env("ANABRANCH_FAULTS_SEED", args.first.to_string());
        let output = command.output().with_context(|| program.clone())?;
        let said = String::from_utf8_lossy(&output.stdout);
        if !output.status.success() {
            bail!("{system}: a schedule fails: its seed stands above");
        }
        let simulated_s = simulated_s(&said).with_context(|| format!("{system}: its tests said `{said}`"))?;
        let cpu_s = children_cpu_s()? - before;
        println!(
            "{system:<10} {:>9} {cpu_s:>10.1} {:>14.1} {:>15.0}   ({:.0} s by the clock)",
            args.schedules,
            args.schedules as f64 / cpu_s,
            simulated_s / cpu_s,
            began.elapsed().as_secs_f64()
        );
    }
    Ok(())
}

/// CPU time of the processes that this process has started and that have ended: `cutime` and
/// `cstime` of proc_pid_stat(5).
fn children_cpu_s() -> anyhow::Result<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    // Fields after the name, which ends with the last parenthesis. `cutime` and `cstime` are fields
    // 16 and 17.
    let fields =
        stat.rsplit_once(')').context("a name in parentheses")?.1.split_whitespace().skip(13).take(2);
    let ticks = fields.map(str::parse::<u64>).sum::<Result<u64, _>>()?;
    Ok(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}

/// Builds a system's fault tests, and returns the path of the program.
fn program(system: &str) -> anyhow::Result<String> {
    let package = format!("anabranch-{system}-proto");
    let words =
        ["test", "--release", "--no-run", "--test", "faults", "--message-format", "json", "--package"];
    let output = Command::new(env!("CARGO")).args(words).arg(&package).stderr(Stdio::inherit()).output()?;
    let lines = String::from_utf8_lossy(&output.stdout).into_owned();
    let artifacts = lines.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let built = artifacts
        .filter(|a| a["target"]["name"] == "faults")
        .find_map(|a| Some(a["executable"].as_str()?.to_owned()));
    built.with_context(|| {
        format!("{package}: no fault tests were built: name replicate, gather, shuffle, broker or live")
    })
}

/// Extracts the simulated seconds of all tests from their lines with `faults: `. The form of a line
/// is `faults: 200 schedules, 31415 simulated seconds`.
fn simulated_s(said: &str) -> Option<f64> {
    let lines = said.lines().filter_map(|line| line.split_once("faults: "));
    let seconds = lines.map(|(_, rest)| rest.split_once("schedules, ")?.1.split_once(' ')?.0.parse().ok());
    seconds.reduce(|sum: Option<f64>, more| Some(sum? + more?))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn simulated_seconds_of_fault_tests_are_read() {
        let said = "running 2 tests\ntest x ... faults: 200 schedules, 31415 simulated seconds\nok\n";
        assert_eq!(simulated_s(said), Some(31_415.0));
        let further = format!("{said}faults: 200 schedules, 5 simulated seconds, logs 0f\n");
        assert_eq!(simulated_s(&further), Some(31_420.0));
        assert_eq!(simulated_s("faults: none"), None);
    }
}
