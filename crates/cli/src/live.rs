//! `anabranch live`: live video over trees that a central optimiser plans.

mod dns;
mod evaluate;
mod node;
mod source;
mod worlds;

use crate::member::Member;
use std::process::ExitCode;

/// Commands of `live`.
#[derive(clap::Subcommand)]
pub enum Noun {
    /// Take in channels from encoders, and serve them as low-latency HLS to nodes.
    Source(source::Args),
    /// Relay channels from parents, sources or other nodes, to viewers and to other nodes.
    Node(node::Args),
    /// Answer viewers' questions of DNS with the addresses of their edge, and steer players among edges.
    Dns(dns::Args),
    /// Compare the plan with other designs in networks and workloads drawn from seeds (the thesis's §4.7.1).
    Evaluate(Box<evaluate::Args>),
}

/// `live`, as this command has it.
pub(crate) struct Live;

impl Member for Live {
    type Noun = Noun;
    fn run(noun: Noun, quiet: bool) -> anyhow::Result<ExitCode> {
        match noun {
            Noun::Source(args) => source::run(&args, quiet),
            Noun::Node(args) => node::run(&args, quiet),
            Noun::Dns(args) => dns::run(&args, quiet),
            Noun::Evaluate(args) => evaluate::run(&args, quiet),
        }
    }
    fn is_daemon(noun: &Noun) -> bool {
        matches!(noun, Noun::Source(_) | Noun::Node(_) | Noun::Dns(_))
    }
}
