//! `anabranch experiment`: one cell of a published experiment, run on an emulated network or
//! predicted. Sweeps, checks and figures are in `experiments/<claim>/`.

mod codedbulk;
mod live;

use anabranch_rehearse::codedbulk::interactive;
use std::process::ExitCode;

/// Name of the experiment.
#[derive(clap::Subcommand)]
pub enum Noun {
    /// CodedBulk, Figures 8 to 10: concurrent transfers, with interactive traffic of higher
    /// priority.
    Codedbulk(codedbulk::Args),
    /// VDN, Figures 4.16 and 4.17: sources, reflectors and edges under a controller, with measuring
    /// players and a fault.
    Live(live::Args),
    /// One site's interactive traffic.
    #[command(hide = true)]
    Interactive(interactive::Part),
}

/// Runs the command.
///
/// Errors: a one-line message for the user.
pub fn run(noun: &Noun, quiet: bool) -> anyhow::Result<ExitCode> {
    match noun {
        Noun::Codedbulk(args) => codedbulk::run(args, quiet),
        Noun::Live(args) => live::run(args, quiet),
        Noun::Interactive(part) => {
            outln!("{}", serde_json::to_string(&interactive::run(part)?)?);
            Ok(ExitCode::SUCCESS)
        }
    }
}
