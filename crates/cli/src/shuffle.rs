//! `anabranch shuffle`: rates for the flows of a computing stage. Joins the system to the network of flows, files and hosts.

pub mod allocator;
pub mod replay;
pub mod trace;

use std::process::ExitCode;

/// What to do.
#[derive(clap::Subcommand)]
pub enum Noun {
    /// Recorded transfers under one scheduler or several: how long they take, beside the least that they could.
    Replay(replay::Args),
    /// Make up transfers with the statistics of a recorded hour, for `replay`, on stdout.
    Trace(trace::Args),
}

/// Runs it.
///
/// Errors: one line for the user.
pub fn run(noun: Noun, quiet: bool) -> anyhow::Result<ExitCode> {
    match noun {
        Noun::Replay(args) => replay::run(&args, quiet),
        Noun::Trace(args) => trace::run(&args),
    }
}
