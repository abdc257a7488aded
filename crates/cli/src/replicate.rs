//! `anabranch replicate`: joins the system to sockets, files and the controller's service.

pub mod controller;
pub mod keys;
pub mod leftovers;
pub mod plan;
pub mod relay;
pub mod send;
pub mod status;
pub mod wait;
mod watch;

use crate::member::Member;
use anabranch_recipes::{Decision, Flow, Harm, Mechanism, Relation, Resources, Separation, Sharing, System};
use std::process::ExitCode;

/// What to do.
#[derive(clap::Subcommand)]
pub enum Noun {
    /// Run the controller, which plans transfers and sees them through: one for all sites.
    Controller(controller::Args),
    /// Run a site's daemon, which sends, passes on and receives: one at each site.
    Relay(relay::Args),
    /// Send a file from one site to others.
    ///
    /// Ctrl-C and SIGTERM stop the transfer; arrived data is kept, and the same command goes on from there. A terminal that
    /// is closed, or kill -9, ends the command alone: the same command then follows the transfer, and so does
    /// `status --follow`. Where the command follows a transfer that was under way already, Ctrl-C and SIGTERM end the command alone, too.
    Send(send::Args),
    /// Show how a file would travel, and how fast. Needs the network's file only: no controller, no keys.
    Plan(plan::Args),
    /// Show how transfers stand; follow one, or stop one.
    Status(status::Args),
    /// Wait for transfers to end, without a word; the exit code is that of the worst outcome.
    Wait(wait::Args),
    /// List leftovers of files that did not arrive whole, or remove them.
    Leftovers(leftovers::Args),
    /// Make, renew and revoke the keys with which controller, sites and operators know each other.
    #[command(subcommand)]
    Keys(keys::Command),
}

/// `replicate`, as this command has it.
pub(crate) struct Replicate;

impl Member for Replicate {
    type Noun = Noun;
    fn run(noun: Noun, quiet: bool) -> anyhow::Result<ExitCode> {
        match noun {
            Noun::Controller(args) => controller::run(&args, quiet),
            Noun::Relay(args) => relay::run(&args, quiet),
            Noun::Send(args) => send::run(&args, quiet),
            Noun::Plan(args) => plan::run(&args),
            Noun::Status(args) => status::run(&args, quiet),
            Noun::Wait(args) => wait::run(&args),
            Noun::Leftovers(args) => leftovers::run(&args),
            Noun::Keys(command) => keys::run(&command, quiet),
        }
    }
    fn is_daemon(noun: &Noun) -> bool {
        matches!(noun, Noun::Controller(_) | Noun::Relay(_))
    }
    fn simulated() -> Option<&'static dyn anabranch_sim::system::System> {
        Some(&anabranch_replicate_proto::simulated::Simulated)
    }
    fn emulated() -> Option<&'static dyn anabranch_emu::scenario::System> {
        Some(&anabranch_rehearse::replicate::Emulated)
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
