//! `anabranch live`: live video over trees that a central optimiser plans.

mod evaluate;
mod worlds;

use crate::member::Member;
use std::process::ExitCode;

/// Commands of `live`.
#[derive(clap::Subcommand)]
pub enum Noun {
    /// Compare the plan with other designs in networks and workloads drawn from seeds (the thesis's §4.7.1).
    Evaluate(Box<evaluate::Args>),
}

/// `live`, as this command has it.
pub(crate) struct Live;

impl Member for Live {
    type Noun = Noun;
    fn run(noun: Noun, quiet: bool) -> anyhow::Result<ExitCode> {
        match noun {
            Noun::Evaluate(args) => evaluate::run(&args, quiet),
        }
    }
}
