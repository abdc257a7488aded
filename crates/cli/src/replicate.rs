//! `anabranch replicate`: joins the system to sockets, files and the controller's service.

pub mod keys;
pub mod partial;
pub mod plan;
pub mod runner;
pub mod service;

use std::process::ExitCode;

/// What to do.
#[derive(clap::Subcommand)]
pub enum Noun {
    /// Show what a transfer would do, and how fast, before a byte moves.
    Plan(plan::Args),
    /// Make the keys with which controller, sites and operators know each other.
    #[command(subcommand)]
    Keys(keys::Command),
}

/// Runs it.
///
/// Errors: one line for the user.
pub fn run(noun: Noun, _quiet: bool) -> anyhow::Result<ExitCode> {
    match noun {
        Noun::Plan(args) => plan::run(&args),
        Noun::Keys(command) => keys::run(&command),
    }
}
