//! The project's own tools: `cargo xtask tidy`, `rooms`, `sample`, `site` and `bench`.
//!
//! Every subcommand is a module with an `Args` type and a `run` function. Read [`Command`] first.

#![allow(clippy::disallowed_methods, reason = "tools read files and ask the machine")]

mod bench;
mod site;
mod tidy;

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
    /// Check what the compiler and clippy do not: the walls between rooms and the house rules of
    /// the text.
    Tidy(tidy::Args),
    /// Draw which room uses which, from the manifests.
    Rooms(tidy::Repository),
    /// Print a random sample of comments and of names of tests, for a reviewer.
    Sample(tidy::sample::Args),
    /// Build the documentation site at target/site; installs mdBook below target/tools.
    Site(site::Args),
    /// Measure the hot parts, and the same parts of other programs if there are any.
    Bench(bench::Args),
}

fn main() -> anyhow::Result<()> {
    match Cli::parse().command {
        Command::Tidy(args) => tidy::run(args),
        Command::Rooms(args) => tidy::draw(args),
        Command::Sample(args) => tidy::sample::run(args),
        Command::Site(args) => site::run(args),
        Command::Bench(args) => bench::run(args),
    }
}
