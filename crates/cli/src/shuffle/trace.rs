//! `anabranch shuffle trace`: coflows generated with the statistics of a recorded hour.

use anabranch_fluid::benchmark::PORTS_MAX;
use anabranch_fluid::generate::text;
use anabranch_units::Seed;
use std::process::ExitCode;

/// Size of the trace.
#[derive(clap::Args)]
pub struct Args {
    /// Number of coflows. One arrives every 6.9 seconds on average.
    #[arg(long, value_name = "COUNT", default_value_t = 526, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    coflows: u32,
    /// Number of ports of the switch.
    #[arg(long, value_name = "COUNT", default_value_t = 150, value_parser = clap::value_parser!(u32).range(1..=i64::from(PORTS_MAX)))]
    ports: u32,
    /// Seed: equal seeds give equal coflows.
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,
}

/// Runs the command.
///
/// Errors: a one-line message for the user.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    out!("{}", text(args.coflows, args.ports, Seed::new(args.seed)));
    Ok(ExitCode::SUCCESS)
}
