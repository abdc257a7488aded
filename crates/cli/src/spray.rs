//! `anabranch spray`: short flows over every path. Commands for the formulas and for a host's
//! agent, and the workloads of scenarios.

mod guard;
mod keys;
mod model;
mod status;
mod up;

use crate::member::Member;
use anabranch_net::keys::escaped;
use anabranch_recipes::{
    Advice, Decision, Flow, Harm, Mechanism, Relation, Resources, Separation, Sharing, System,
};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Subcommands.
#[derive(clap::Subcommand)]
pub enum Noun {
    /// Make, renew and revoke the keys by which agents authenticate each other.
    Keys(keys::Args),
    /// Run a host's agent, which spreads its TCP to other hosts over every path: one at each host.
    Up(up::Args),
    /// Watch over an agent: started by the agent, not by users.
    #[command(hide = true)]
    Guard(guard::Args),
    /// Show the status of a host's agent: its peers, coding, and avoided paths with the reasons.
    Status(status::Args),
    /// Compute the best number of packets to code together and of parities, with their costs and
    /// gains.
    Model(model::Args),
}

/// Default status socket of a host's agent.
fn socket_of(name: &str) -> PathBuf {
    Path::new("/run/anabranch").join(format!("spray-{}.sock", escaped(name)))
}

/// Implementation of [`Member`] for `spray`.
pub(crate) struct Spray;

impl Member for Spray {
    type Noun = Noun;
    fn run(noun: Noun, quiet: bool) -> anyhow::Result<ExitCode> {
        match noun {
            Noun::Keys(args) => keys::run(&args, quiet),
            Noun::Up(args) => up::run(&args, quiet),
            Noun::Guard(args) => guard::run(&args),
            Noun::Status(args) => status::run(&args),
            Noun::Model(args) => model::run(&args),
        }
    }
    fn is_daemon(noun: &Noun) -> bool {
        matches!(noun, Noun::Up(_))
    }
    fn simulated() -> Option<&'static dyn anabranch_sim::system::System> {
        Some(&anabranch_spray_proto::simulated::SimulatedSystem)
    }
    fn emulated() -> Option<&'static dyn anabranch_emu::scenario::System> {
        Some(&anabranch_rehearse::spray::EmulatedSystem)
    }
    fn recipe() -> Option<System> {
        Some(System {
            name: "spray",
            title: "spray",
            planes: "a host's choice of paths + hashing of switches",
            relation: Relation::Peers,
            separation: &[Separation::Layering],
            sharing: Sharing::None,
            resources: &[Resources::Disjoint],
            flow: Flow::None,
            assumes: "a path that blocked packets does so again",
            decision: Decision::Separate,
            harm: &[Harm::Performance],
            has: Mechanism::Reaction,
            advice: Some(Advice {
                mechanism: Some(Mechanism::Transparency),
                reason: "switches and hosts have one owner; it reacts so that switches stay as they are",
            }),
            source: "docs/spray.md",
        })
    }
}
