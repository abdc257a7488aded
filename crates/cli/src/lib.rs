//! The `anabranch` command: it joins systems to drivers and speaks to people. Holds no protocol.
//!
//! Conventions: results on stdout, everything else on stderr; `--json` for programs; exit codes are listed in `exit`.
//! Each verb is a module with an `Args` type and a `run` function. The command is a library so that fuzz targets reach its parsers;
//! the program calls [`main`].
#![allow(
    clippy::disallowed_methods,
    reason = "a driver: sockets, files, clocks and the environment are its business"
)]

mod broker;
mod circuit;
mod clients;
mod completions;
mod demo;
mod doctor;
mod emulate;
mod etcd;
#[doc(hidden)]
pub mod exercise;
mod exit;
mod experiment;
mod family;
mod gather;
mod keys;
mod live;
mod member;
mod network;
mod page;
mod pipe;
mod process;
mod recipe;
mod replicate;
mod run_dir;
mod shown;
mod shuffle;
mod simulate;
mod spray;
mod topologies;

use clap::{CommandFactory as _, Parser, Subcommand};
use std::process::ExitCode;

/// Under which words `--help` lists the options that every command has, after the command's own.
const EVERYWHERE: &str = "Options of every command";

/// Move data between and inside data centres: one file to many sites, from many servers at once, a stage's flows at set rates.
#[derive(Parser)]
#[command(name = "anabranch", version, propagate_version = true)]
struct Cli {
    /// Say more on stderr; -vv says everything.
    #[arg(short, long, global = true, help_heading = EVERYWHERE, action = clap::ArgAction::Count)]
    verbose: u8,
    /// Say nothing on stderr but errors; daemons say warnings, too.
    #[arg(short, long, global = true, help_heading = EVERYWHERE, conflicts_with = "verbose")]
    quiet: bool,
    /// How log lines on stderr are written: text for people, or a JSON object a line for programs.
    #[arg(long, global = true, help_heading = EVERYWHERE, value_name = "FORMAT", value_enum, default_value_t = LogFormat::Text)]
    log_format: LogFormat,
    #[command(subcommand)]
    verb: Verb,
}

/// How log lines are written.
#[derive(Copy, Clone, Debug, PartialEq, Eq, clap::ValueEnum)]
enum LogFormat {
    // For people: time, level, what, its values.
    Text,
    // For programs: a JSON object a line.
    Json,
}

#[derive(Subcommand)]
enum Verb {
    #[command(flatten)]
    System(family::Verb),
    /// Run a scenario in the packet simulator.
    Simulate(simulate::Args),
    /// Run any program on an emulated network.
    Emulate(emulate::Args),
    /// A host of an emulated scenario.
    #[command(hide = true)]
    EmulateAgent,
    /// List the built-in networks, or one network's sites and links by the names that other commands take.
    Topologies(topologies::Args),
    /// Check what this machine can do, and say how to mend the rest.
    Doctor(doctor::Args),
    /// Bring a file to several sites of an emulated network, by one scheme after the other, and compare them.
    Demo(demo::Args),
    /// Run one cell of a published experiment on an emulated network, or predict it.
    #[command(subcommand)]
    Experiment(experiment::Noun),
    /// Say by which mechanism two control planes should coordinate, and which systems are built so.
    Recipe(recipe::Args),
    /// Print the script with which a shell completes verbs and options.
    Completions(completions::Args),
}

/// The command that runs, as in `experiment codedbulk`, and every argument of it as it could be written, defaults included.
fn arguments() -> (String, serde_json::Value) {
    let mut command = Cli::command();
    let matches = command.get_matches_mut();
    run_dir::arguments(&command, &matches)
}

impl Verb {
    /// Whether it runs until it is told to end. Its log is what remains of what it did, so it says more by itself.
    fn is_daemon(&self) -> bool {
        match self {
            Self::System(verb) => verb.is_daemon(),
            _ => false,
        }
    }
}

/// What the log says, from `--quiet` on.
const LEVELS: [&str; 4] = ["error", "warn", "info", "debug"];

/// Sends log lines to stderr, as the user wants them.
fn begin_log(cli: &Cli) {
    let asked = if cli.quiet { 0 } else { 1 + usize::from(cli.verbose) };
    let level = LEVELS[(asked + usize::from(cli.verb.is_daemon())).min(LEVELS.len() - 1)];
    let filter = tracing_subscriber::EnvFilter::try_from_env("ANABRANCH_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new(format!("error,anabranch={level}")));
    let log =
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(false);
    // A line that cannot be written, as to a terminal that was closed, is no reason to end: to say so on stderr would be one.
    let log = log.log_internal_errors(false);
    match cli.log_format {
        LogFormat::Text => log.with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr())).init(),
        LogFormat::Json => log.json().flatten_event(true).init(),
    }
}

/// The program: reads its arguments, runs what they say, and gives its exit code.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    begin_log(&cli);
    let result = match cli.verb {
        Verb::System(verb) => verb.run(cli.quiet),
        Verb::Simulate(args) => simulate::run(&args, cli.quiet),
        Verb::Emulate(args) => emulate::run(&args, cli.quiet, cli.verbose),
        Verb::EmulateAgent => emulate::host(),
        Verb::Topologies(args) => topologies::run(&args),
        Verb::Doctor(args) => doctor::run(&args),
        Verb::Demo(args) => demo::run(&args, cli.quiet),
        Verb::Experiment(noun) => experiment::run(&noun, cli.quiet),
        Verb::Recipe(args) => recipe::run(&args),
        Verb::Completions(args) => completions::run(&args, Cli::command()),
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            // One line: what went wrong, then what led to it; whoever's words they are.
            eprintln!("anabranch: {}", anabranch_units::text::printable(&format!("{error:#}")));
            exit::code(&error)
        }
    }
}

#[cfg(test)]
mod tests;
