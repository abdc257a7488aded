//! `anabranch live`: live video over trees that a central optimiser plans.

mod controller;
mod dns;
mod evaluate;
mod keys;
mod network;
mod node;
mod plan;
mod play;
mod publish;
mod recorded;
mod secure;
mod sign;
mod source;
mod status;
mod worlds;

use crate::doctor::Need;
use crate::member::Member;
use anabranch_recipes::{Decision, Flow, Harm, Mechanism, Relation, Resources, Separation, Sharing, System};
use std::path::Path;
use std::process::ExitCode;

/// Commands of `live`.
#[derive(clap::Subcommand)]
pub enum Noun {
    /// Plan the trees of a network, and lead its nodes to them.
    Controller(Box<controller::Args>),
    /// Take in channels from encoders and other origins, and serve them as low-latency HLS to
    /// nodes.
    Source(source::Args),
    /// Publish test patterns of any bitrate to a source, in place of encoders.
    Publish(publish::Args),
    /// Relay channels from parents, sources or other nodes, to viewers and to other nodes.
    Node(node::Args),
    /// Sign URLs that edges with the same secrets serve until they expire.
    Sign(sign::Args),
    /// Plan the trees of a described network for a described demand, once.
    Plan(plan::Args),
    /// Play a channel with many measuring players: join times, latency, stalls.
    Play(play::Args),
    /// Empty a node: its streams move to other nodes without a break.
    Drain(controller::DrainArgs),
    /// Show the network as the controller has it, or change it: nodes, links, groups of viewers,
    /// channels.
    Network(Box<network::Args>),
    /// Show nodes, links and trees as they run.
    Status(status::Args),
    /// Make the keys of a network's controller, nodes and operators, renew or revoke them.
    Keys(keys::Args),
    /// Answer viewers' questions of DNS with the addresses of their edge, and steer players among
    /// edges.
    Dns(dns::Args),
    /// Compare the plan with other designs in networks and workloads drawn from seeds (the thesis's
    /// §4.7.1).
    Evaluate(Box<evaluate::Args>),
}

/// Implementation of [`Member`] for `live`.
pub(crate) struct Live;

impl Member for Live {
    type Noun = Noun;
    fn run(noun: Noun, quiet: bool) -> anyhow::Result<ExitCode> {
        match noun {
            Noun::Controller(args) => controller::run(&args, quiet),
            Noun::Drain(args) => controller::drain(&args, quiet),
            Noun::Network(args) => network::run(&args, quiet),
            Noun::Status(args) => status::run(&args),
            Noun::Keys(args) => keys::run(&args, quiet),
            Noun::Source(args) => source::run(&args, quiet),
            Noun::Publish(args) => publish::run(&args, quiet),
            Noun::Node(args) => node::run(&args, quiet),
            Noun::Sign(args) => sign::run(&args),
            Noun::Dns(args) => dns::run(&args, quiet),
            Noun::Plan(args) => plan::run(&args),
            Noun::Play(args) => play::run(&args, quiet),
            Noun::Evaluate(args) => evaluate::run(&args, quiet),
        }
    }
    fn is_daemon(noun: &Noun) -> bool {
        matches!(
            noun,
            Noun::Controller(_) | Noun::Source(_) | Noun::Publish(_) | Noun::Node(_) | Noun::Dns(_)
        )
    }
    fn simulated() -> Option<&'static dyn anabranch_sim::system::System> {
        Some(&anabranch_live_proto::simulated::SimulatedSystem)
    }
    fn emulated() -> Option<&'static dyn anabranch_emu::scenario::System> {
        Some(&anabranch_rehearse::live::EmulatedSystem)
    }
    fn needs() -> Option<Need> {
        let findings = anabranch_live::doctor();
        Some(Need { name: "live video", field: "live_inputs", prefix: "live from ", findings })
    }
    fn recipe() -> Option<System> {
        Some(System {
            name: "live",
            title: "live",
            planes: "the controller + nodes",
            relation: Relation::Priority,
            separation: &[Separation::Timescale],
            sharing: Sharing::Incomplete,
            resources: &[Resources::Full],
            flow: Flow::TwoWay,
            assumes: "the plan is right until an event",
            decision: Decision::Choice,
            harm: &[Harm::Performance, Harm::Responsiveness],
            has: Mechanism::HierarchicalPartitioning,
            advice: None,
            source: "docs/live.md",
        })
    }
}

/// Reads the text of a file of at most `bytes_max` bytes.
///
/// Errors: a file that cannot be read, or is longer.
fn read_text(path: &Path, bytes_max: u64) -> anyhow::Result<String> {
    let length = std::fs::metadata(path)?.len();
    ensure_usage!(length <= bytes_max, "{length} bytes: at most {bytes_max}");
    Ok(crate::text::read(path)?)
}
