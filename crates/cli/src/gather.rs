//! `anabranch gather`: one client pulls from many servers at once. Connects the `gather` crates to
//! sockets, files and the simulator.

pub mod get;
pub mod keys;
pub mod ls;
pub mod serve;
pub mod stripe;
pub mod sync;

use crate::member::Member;
use anabranch_recipes::{Decision, Flow, Harm, Mechanism, Relation, Resources, Separation, Sharing, System};
use std::process::ExitCode;

/// Subcommands.
#[derive(clap::Subcommand)]
pub enum Noun {
    /// Make, renew and revoke the keys by which servers and clients authenticate each other.
    Keys(keys::Args),
    /// Let clients pull the files of a folder.
    Serve(serve::Args),
    /// Pull files from the servers that hold them.
    Get(get::Args),
    /// Mirror a directory from the servers that hold it, with deletes.
    Sync(sync::Args),
    /// List the files that a server offers.
    Ls(ls::Args),
    /// Cut a file into parts for several servers.
    Stripe(stripe::Args),
}

/// Implementation of [`Member`] for `gather`.
pub(crate) struct Gather;

impl Member for Gather {
    type Noun = Noun;
    fn run(noun: Noun, quiet: bool) -> anyhow::Result<ExitCode> {
        match noun {
            Noun::Keys(args) => keys::run(&args, quiet),
            Noun::Serve(args) => serve::run(&args, quiet),
            Noun::Get(args) => get::run(&args, quiet),
            Noun::Sync(args) => sync::run(&args, quiet),
            Noun::Ls(args) => ls::run(&args, quiet),
            Noun::Stripe(args) => stripe::run(&args, quiet),
        }
    }
    fn is_daemon(noun: &Noun) -> bool {
        matches!(noun, Noun::Serve(_))
    }
    fn simulated() -> Option<&'static dyn anabranch_sim::system::System> {
        Some(&anabranch_gather_proto::simulated::SimulatedSystem)
    }
    fn emulated() -> Option<&'static dyn anabranch_emu::scenario::System> {
        Some(&anabranch_rehearse::gather::EmulatedSystem)
    }
    fn recipe() -> Option<System> {
        Some(System {
            name: "gather",
            title: "gather",
            planes: "a client's grants + TCP of other flows",
            relation: Relation::Peers,
            separation: &[Separation::HardAdministration, Separation::SoftAdministration],
            sharing: Sharing::None,
            resources: &[Resources::Disjoint],
            flow: Flow::None,
            assumes: "other flows slow down after losses and delay",
            decision: Decision::Separate,
            harm: &[Harm::Performance],
            has: Mechanism::Reaction,
            advice: None,
            source: "docs/gather.md",
        })
    }
}
