//! `anabranch replicate`: connects the system to sockets, files and the controller's service.

pub mod check;
pub mod controller;
mod ends;
mod errors;
pub mod keys;
pub mod leftovers;
pub mod manifest;
pub mod plan;
pub mod relay;
pub mod send;
pub mod status;
pub mod sync;
pub mod wait;
mod watch;

use crate::member::Member;
use anabranch_recipes::{Decision, Flow, Harm, Mechanism, Relation, Resources, Separation, Sharing, System};
use std::process::ExitCode;

/// Subcommands.
#[derive(clap::Subcommand)]
pub enum Noun {
    /// Run the controller, which plans transfers and carries them out: one for all sites.
    Controller(controller::Args),
    /// Run a site's daemon, which sends, forwards and receives: one at each site.
    Relay(relay::Args),
    /// Send a file from one site to others.
    ///
    /// Ctrl-C and SIGTERM stop the transfer; received data is kept, and the same command resumes
    /// it. A closed terminal or kill -9 ends only the command: the same command then attaches to
    /// the transfer, and so does `status --follow`. If the command attached to a transfer that was
    /// already active, Ctrl-C and SIGTERM end only the command, too.
    Send(send::Args),
    /// Mirror a directory: send it, and delete entries that the source lacks (`--delete`).
    ///
    /// Without `--delete` it does the same as `send DIR/`. Deletes come last, once all contents
    /// are in place, and only of entries that transfers from this source wrote or found equal, and
    /// that nobody changed since.
    Sync(sync::Args),
    /// Compare a directory with its copies at other sites. Nothing is changed.
    ///
    /// Each site reads the files that its index does not know, and the network carries the list of
    /// the source's entries. The exit code is 4 if a copy differs.
    Check(check::Args),
    /// Show the plan of a transfer, and its rate. Needs only the network's file: no controller, no
    /// keys.
    Plan(plan::Args),
    /// Show the status of transfers; follow one, or stop one.
    Status(status::Args),
    /// Wait for transfers to end, silently; the exit code is the worst outcome's.
    Wait(wait::Args),
    /// List or remove leftovers of incomplete files.
    Leftovers(leftovers::Args),
    /// Show the id of a directory's snapshot: equal directories have equal ids.
    ///
    /// The id covers names, kinds, contents, modes, times and links. It needs no controller and no
    /// keys: run it at two sites, and compare one line.
    Manifest(manifest::Args),
    /// Make, renew and revoke the keys by which controller, sites and operators authenticate each
    /// other.
    #[command(subcommand)]
    Keys(keys::Command),
}

/// `replicate` in this command.
pub(crate) struct Replicate;

impl Member for Replicate {
    type Noun = Noun;
    fn run(noun: Noun, quiet: bool) -> anyhow::Result<ExitCode> {
        match noun {
            Noun::Controller(args) => controller::run(&args, quiet),
            Noun::Relay(args) => relay::run(&args, quiet),
            Noun::Send(args) => send::run(&args, quiet),
            Noun::Sync(args) => sync::run(&args, quiet),
            Noun::Check(args) => check::run(&args, quiet),
            Noun::Plan(args) => plan::run(&args),
            Noun::Status(args) => status::run(&args, quiet),
            Noun::Wait(args) => wait::run(&args),
            Noun::Leftovers(args) => leftovers::run(&args),
            Noun::Manifest(args) => manifest::run(&args),
            Noun::Keys(command) => keys::run(&command, quiet),
        }
    }
    fn is_daemon(noun: &Noun) -> bool {
        matches!(noun, Noun::Controller(_) | Noun::Relay(_))
    }
    fn simulated() -> Option<&'static dyn anabranch_sim::system::System> {
        Some(&anabranch_replicate_proto::simulated::SimulatedSystem)
    }
    fn emulated() -> Option<&'static dyn anabranch_emu::scenario::System> {
        Some(&anabranch_rehearse::replicate::EmulatedSystem)
    }
    fn recipe() -> Option<System> {
        Some(System {
            name: "replicate",
            title: "replicate",
            planes: "transfers + the planner of the links",
            relation: Relation::Priority,
            separation: &[Separation::Layering],
            sharing: Sharing::Complete,
            resources: &[Resources::Disjoint],
            flow: Flow::TwoWay,
            assumes: "links have the stated capacity, and files the stated size",
            decision: Decision::OneSide,
            harm: &[Harm::Performance],
            has: Mechanism::Transparency,
            advice: None,
            source: "docs/replicate.md",
        })
    }
}
