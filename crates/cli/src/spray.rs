//! `anabranch spray`: short flows over every path. So far its formulas; the system runs in simulated scenarios.

mod model;

use crate::member::Member;
use std::process::ExitCode;

/// What to do.
#[derive(clap::Subcommand)]
pub enum Noun {
    /// Compute how many packets to code together and how many parities to add, and what that costs and gains.
    Model(model::Args),
}

/// `spray`, as this command has it.
pub(crate) struct Spray;

impl Member for Spray {
    type Noun = Noun;
    fn run(noun: Noun, _: bool) -> anyhow::Result<ExitCode> {
        match noun {
            Noun::Model(args) => model::run(&args),
        }
    }
    fn simulated() -> Option<&'static dyn anabranch_sim::system::System> {
        Some(&anabranch_spray_proto::simulated::Simulated)
    }
}
