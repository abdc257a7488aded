//! `anabranch shuffle`: rates for the flows of a computing stage. Joins the system to the network of flows, files and hosts.

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

/// What to do.
#[derive(clap::Subcommand)]
pub enum Noun {
    /// Make, renew and revoke the keys with which coordinator, agents and operators know each other.
    Keys(keys::Args),
    /// Run the coordinator, which hears of flows from the hosts' agents and sets the rate of each: one for all hosts.
    Coordinator(coordinator::Args),
    /// Run a host's agent, which reports the host's flows and holds them to their rates: one at each host.
    Agent(agent::Args),
    /// Show which coflows are under way, and the rate to which each flow is held.
    Status(status::Args),
    /// Lift what a killed agent has left.
    #[command(hide = true)]
    Guard(guard::Args),
    /// Compute how long recorded coflows take under one scheduler or several, beside a bound that none can beat.
    Replay(replay::Args),
    /// Make up coflows like those of a recorded hour, and print them in the format that `replay` reads.
    Trace(trace::Args),
}

/// `shuffle`, as this command has it.
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
        Some(&anabranch_shuffle_proto::simulated::Simulated)
    }
    fn emulated() -> Option<&'static dyn anabranch_emu::scenario::System> {
        Some(&anabranch_rehearse::shuffle::Emulated)
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
