//! `anabranch shuffle`: rates for the flows of a computing stage. Connects the `shuffle` crates to
//! flows, files and hosts.

pub mod agent;
pub mod allocator;
pub mod coordinator;
pub mod guard;
pub mod keys;
pub mod replay;
pub mod status;
pub mod trace;

use crate::doctor::Need;
use crate::member::Member;
use anabranch_recipes::{Decision, Flow, Harm, Mechanism, Relation, Resources, Separation, Sharing, System};
use std::process::ExitCode;

/// Subcommands.
#[derive(clap::Subcommand)]
pub enum Noun {
    /// Make, renew and revoke the keys by which coordinator, agents and operators authenticate each
    /// other.
    Keys(keys::Args),
    /// Run the coordinator, which receives hosts' reports of flows and sets the rate of each: one
    /// for all hosts.
    Coordinator(coordinator::Args),
    /// Run a host's agent, which reports the host's flows and holds them to their rates: one at
    /// each host.
    Agent(agent::Args),
    /// Show active coflows, and the rate limit of each flow.
    Status(status::Args),
    /// Lift the limits of a killed agent.
    #[command(hide = true)]
    Guard(guard::Args),
    /// Compute the completion times of recorded coflows under one or several schedulers, beside a
    /// lower bound.
    Replay(replay::Args),
    /// Generate coflows with the statistics of a recorded hour, in the format that `replay` reads.
    Trace(trace::Args),
}

/// Implementation of [`Member`] for `shuffle`.
pub(crate) struct Shuffle;

impl Member for Shuffle {
    type Noun = Noun;
    fn run(noun: Noun, quiet: bool) -> anyhow::Result<ExitCode> {
        match noun {
            Noun::Keys(args) => keys::run(&args, quiet),
            Noun::Coordinator(args) => coordinator::run(&args, quiet),
            Noun::Agent(args) => agent::run(&args, quiet),
            Noun::Status(args) => status::run(&args),
            Noun::Guard(args) => guard::run(&args),
            Noun::Replay(args) => replay::run(&args, quiet),
            Noun::Trace(args) => trace::run(&args),
        }
    }
    fn is_daemon(noun: &Noun) -> bool {
        matches!(noun, Noun::Coordinator(_) | Noun::Agent(_))
    }
    fn simulated() -> Option<&'static dyn anabranch_sim::system::System> {
        Some(&anabranch_shuffle_proto::simulated::SimulatedSystem)
    }
    fn emulated() -> Option<&'static dyn anabranch_emu::scenario::System> {
        Some(&anabranch_rehearse::shuffle::EmulatedSystem)
    }
    fn needs() -> Option<Need> {
        let findings = anabranch_pace::doctor();
        Some(Need { name: "flow rates", field: "rates", prefix: "rates by ", findings })
    }
    fn recipe() -> Option<System> {
        Some(System {
            name: "shuffle",
            title: "shuffle",
            planes: "programs + the coordinator of rates",
            relation: Relation::Priority,
            separation: &[Separation::Layering],
            sharing: Sharing::Complete,
            resources: &[Resources::Disjoint],
            flow: Flow::OneWay,
            assumes: "programs announce the flows that they wait for together",
            decision: Decision::OneSide,
            harm: &[Harm::Performance, Harm::Responsiveness],
            has: Mechanism::Transparency,
            advice: None,
            source: "docs/shuffle.md",
        })
    }
}
