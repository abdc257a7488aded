//! `anabranch broker`: content networks bid clusters, and a broker places clients on them.

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

/// Subcommands.
#[derive(clap::Subcommand)]
pub enum Noun {
    /// Make, renew and revoke the keys with which broker, networks and operators know each other.
    Keys(keys::Args),
    /// Run the broker: it calls networks in rounds, decides, and steers players.
    Serve(Box<serve::Args>),
    /// Run a content network's agent: it bids the network's clusters in each round.
    Cdn(cdn::Args),
    /// Show the networks, the broker's trust in them, and the clients that the last decision gives
    /// them.
    Status(status::Args),
    /// Simulate many players against a broker and its networks: ask for steering, and fetch
    /// segments from the pathway in the answer.
    Play(play::Args),
    /// Serve segments of any length, for `broker play`.
    Origin(origin::Args),
    /// Compare the thesis's designs of joint decisions in worlds drawn from seeds.
    Evaluate(evaluate::Args),
    /// Run several brokers with clients on the same clusters, round after round, while demand
    /// changes.
    Several(several::Args),
    /// Measure the gain of a network that lies about its costs or capacities, under two payment
    /// rules.
    Lies(lies::Args),
    /// Print one round's market and decision as JSON, for another solver.
    Market(market::Args),
    /// Write a generated world as the files that broker and networks' agents read, to try a
    /// deployment.
    World(world::Args),
}

/// Implementation of [`Member`] for `broker`.
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
        Some(&anabranch_broker_proto::simulated::SimulatedSystem)
    }
    fn emulated() -> Option<&'static dyn anabranch_emu::scenario::System> {
        Some(&anabranch_rehearse::broker::EmulatedSystem)
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
