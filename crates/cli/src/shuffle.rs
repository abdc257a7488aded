//! `anabranch shuffle`: rates for the flows of a computing stage. Joins the system to the network of flows, files and hosts.

pub mod agent;
pub mod allocator;
pub mod coordinator;
pub mod emulated;
pub mod keys;
pub mod replay;
pub mod simulated;
pub mod status;
pub mod trace;

use std::process::ExitCode;

/// What to do.
#[derive(clap::Subcommand)]
pub enum Noun {
    /// Make the keys with which coordinator, agents and operators know each other.
    Keys(keys::Args),
    /// Hear of flows from hosts' agents, and say how fast each may be: one for all hosts.
    Coordinator(coordinator::Args),
    /// Say what flows a host has, and hold them to their rates: one at each host.
    Agent(agent::Args),
    /// Show which transfers are under way, and how fast their flows may be.
    Status(status::Args),
    /// Lift what a killed agent has left.
    #[command(hide = true)]
    Guard(agent::guard::Args),
    /// Recorded transfers under one scheduler or several: how long they take, beside the least that they could.
    Replay(replay::Args),
    /// Make up transfers with the statistics of a recorded hour, for `replay`, on stdout.
    Trace(trace::Args),
}

impl Noun {
    /// Whether it runs until it is told to end.
    pub fn is_daemon(&self) -> bool {
        matches!(self, Self::Coordinator(_) | Self::Agent(_))
    }
}

/// Runs it.
///
/// Errors: one line for the user.
pub fn run(noun: Noun, quiet: bool) -> anyhow::Result<ExitCode> {
    match noun {
        Noun::Keys(args) => keys::run(&args, quiet),
        Noun::Coordinator(args) => coordinator::run(&args, quiet),
        Noun::Agent(args) => agent::run(&args, quiet),
        Noun::Status(args) => status::run(&args),
        Noun::Guard(args) => agent::guard::run(&args),
        Noun::Replay(args) => replay::run(&args, quiet),
        Noun::Trace(args) => trace::run(&args),
    }
}
