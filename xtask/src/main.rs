//! The project's own tools: `cargo xtask bench`.
//!
//! Every subcommand is a module with an `Args` type and a `run` function. Read [`Command`] first.

mod bench;

use clap::{Parser, Subcommand};

/// The project's own tools.
#[derive(Parser)]
#[command(name = "xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Measure the hot parts, beside other programs' where there are any.
    Bench(bench::Args),
}

fn main() -> anyhow::Result<()> {
    match Cli::parse().command {
        Command::Bench(args) => bench::run(args),
    }
}
