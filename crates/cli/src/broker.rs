//! `anabranch broker`: content networks bid clusters, a broker places clients. So far: what comes of each design of their interface.

mod evaluate;

use crate::member::Member;
use std::process::ExitCode;

/// What to do.
#[derive(clap::Subcommand)]
pub enum Noun {
    /// Compare the designs by which networks and a broker may decide together, in worlds that are drawn from seeds.
    Evaluate(evaluate::Args),
}

/// `broker`, as this command has it.
pub(crate) struct Broker;

impl Member for Broker {
    type Noun = Noun;
    fn run(noun: Noun, quiet: bool) -> anyhow::Result<ExitCode> {
        match noun {
            Noun::Evaluate(args) => evaluate::run(&args, quiet),
        }
    }
}
