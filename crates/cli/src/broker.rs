//! `anabranch broker`: content networks bid clusters, a broker places clients.

mod cdn;
mod evaluate;
mod keys;
mod lies;
mod market;
mod origin;
mod play;
mod rows;
mod serve;
mod several;
mod status;
mod world;

use crate::member::Member;
use anabranch_recipes::{Decision, Flow, Harm, Mechanism, Relation, Resources, Separation, Sharing, System};
use std::process::ExitCode;

/// What to do.
#[derive(clap::Subcommand)]
pub enum Noun {
    /// Make, renew and revoke the keys with which broker, networks and operators know each other.
    Keys(keys::Args),
    /// Run the broker: it calls networks in rounds, decides, and tells players where to go.
    Serve(Box<serve::Args>),
    /// Run a content network's agent: it bids the network's clusters in each round.
    Cdn(cdn::Args),
    /// Show the networks, what the broker thinks of them, and what the last decision gives them.
    Status(status::Args),
    /// Play as many players would, to try a broker and its networks: ask it, and fetch segments from where it says.
    Play(play::Args),
    /// Serve segments of any length, for `broker play`.
    Origin(origin::Args),
    /// Compare the designs by which networks and a broker may decide together, in worlds that are drawn from seeds.
    Evaluate(evaluate::Args),
    /// Let several brokers decide round after round, while demand changes, for clients who go to the same clusters.
    Several(several::Args),
    /// Find what a network gains by lying about its costs or capacities, by two rules of payment.
    Lies(lies::Args),
    /// Print what there is to decide in a round, and the decision, as JSON: for another solver.
    Market(market::Args),
    /// Write a world that is drawn from a seed as the files that broker and networks' agents read: to try a deployment.
    World(world::Args),
}

/// `broker`, as this command has it.
pub(crate) struct Broker;

impl Member for Broker {
    type Noun = Noun;
    fn run(noun: Noun, quiet: bool) -> anyhow::Result<ExitCode> {
        match noun {
            Noun::Keys(args) => keys::run(&args, quiet),
            Noun::Serve(args) => serve::run(&args, quiet),
            Noun::Cdn(args) => cdn::run(&args, quiet),
            Noun::Status(args) => status::run(&args),
            Noun::Play(args) => play::run(&args, quiet),
            Noun::Origin(args) => origin::run(&args, quiet),
            Noun::Evaluate(args) => evaluate::run(&args, quiet),
            Noun::Several(args) => several::run(&args, quiet),
            Noun::Lies(args) => lies::run(&args, quiet),
            Noun::Market(args) => market::run(&args),
            Noun::World(args) => world::run(&args, quiet),
        }
    }
    fn is_daemon(noun: &Noun) -> bool {
        matches!(noun, Noun::Serve(_) | Noun::Cdn(_) | Noun::Origin(_))
    }
    fn simulated() -> Option<&'static dyn anabranch_sim::system::System> {
        Some(&anabranch_broker_proto::simulated::Simulated)
    }
    fn emulated() -> Option<&'static dyn anabranch_emu::scenario::System> {
        Some(&anabranch_rehearse::broker::Emulated)
    }
    fn recipe() -> Option<System> {
        Some(System {
            name: "broker",
            title: "broker",
            planes: "the broker + content networks",
            relation: Relation::Peers,
            separation: &[Separation::HardAdministration],
            sharing: Sharing::Incomplete,
            resources: &[Resources::Disjoint],
            flow: Flow::TwoWay,
            assumes: "bids are kept, and scores mean the same to all",
            decision: Decision::Joint,
            harm: &[Harm::Performance, Harm::Cost],
            has: Mechanism::PriorityRanking,
            advice: None,
            source: "docs/broker.md",
        })
    }
}
