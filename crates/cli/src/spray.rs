//! `anabranch spray`: short flows over every path. Its formulas, a host's agent, and both in scenarios.

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

/// What to do.
#[derive(clap::Subcommand)]
pub enum Noun {
    /// Make, renew and revoke the keys with which agents know each other.
    Keys(keys::Args),
    /// Run a host's agent, by which its TCP to other hosts goes over every path: one at each host.
    Up(up::Args),
    /// The process that an agent starts to watch over it: not for users.
    #[command(hide = true)]
    Guard(guard::Args),
    /// Show how a host's agent fares: its peers, what is coded, which ways are left and why.
    Status(status::Args),
    /// Compute how many packets to code together and how many parities to add, and what that costs and gains.
    Model(model::Args),
}

/// Where a host's agent tells how it fares, if nobody says otherwise.
fn socket_of(name: &str) -> PathBuf {
    Path::new("/run/anabranch").join(format!("spray-{}.sock", escaped(name)))
}

/// `spray`, as this command has it.
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
        Some(&anabranch_spray_proto::simulated::Simulated)
    }
    fn emulated() -> Option<&'static dyn anabranch_emu::scenario::System> {
        Some(&anabranch_rehearse::spray::Emulated)
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
