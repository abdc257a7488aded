//! The `anabranch` command, which connects the systems to drivers and to users. It contains no
//! protocol.
//!
//! Conventions: results are written to stdout, all other output to stderr; `--json` is for
//! programs; `exit` lists the exit codes. Each verb is a module with an `Args` type and a `run`
//! function. The command is a library, so that fuzz targets can call its parsers; the program calls
//! [`main`].
#![allow(
    clippy::disallowed_methods,
    reason = "a driver: sockets, files, clocks and the environment are its business"
)]
#![cfg_attr(
    not(test),
    deny(clippy::print_stdout, clippy::print_stderr, reason = "`output` writes whole lines")
)]

#[macro_use]
mod output;
#[macro_use]
mod exit;

mod broker;
mod circuit;
mod clients;
mod comparison;
mod completions;
mod demo;
mod docs;
mod doctor;
mod emulate;
mod etcd;
#[doc(hidden)]
pub mod exercise;
mod experiment;
mod family;
mod filters;
mod formats;
mod gather;
mod keys;
mod live;
mod member;
mod metadata;
mod metrics;
mod network;
mod page;
mod process;
mod publication;
mod recipe;
mod replicate;
mod run_dir;
mod shuffle;
mod simulate;
mod spray;
mod text;
mod topologies;

use clap::{CommandFactory as _, Parser, Subcommand};
use std::process::ExitCode;

/// Heading in `--help` above the options that every command has.
const EVERYWHERE: &str = "Options of every command";

/// Move data between and inside data centres: one file to many sites, from many servers at once, a
/// stage's flows at set rates.
#[derive(Parser)]
#[command(name = "anabranch", version, propagate_version = true)]
struct Cli {
    /// Log more on stderr; -vv logs everything.
    #[arg(short, long, global = true, help_heading = EVERYWHERE, action = clap::ArgAction::Count)]
    verbose: u8,
    /// Print only errors on stderr; daemons print warnings, too.
    #[arg(short, long, global = true, help_heading = EVERYWHERE, conflicts_with = "verbose")]
    quiet: bool,
    /// Format of log lines on stderr: text for people, or JSON lines for programs.
    #[arg(long, global = true, help_heading = EVERYWHERE, value_name = "FORMAT", value_enum, default_value_t = LogFormat::Text)]
    log_format: LogFormat,
    #[command(subcommand)]
    verb: Verb,
}

/// Format of log lines.
#[derive(Copy, Clone, Debug, PartialEq, Eq, clap::ValueEnum)]
enum LogFormat {
    // For people: time, level, message, values.
    Text,
    // For programs: JSON lines.
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
    /// List the built-in networks, or one network's sites and links by the names that other
    /// commands take.
    Topologies(topologies::Args),
    /// Check this machine's abilities, and explain how to fix what is missing.
    Doctor(doctor::Args),
    /// Bring a file to several sites of an emulated network, by each scheme in turn, and compare
    /// them.
    Demo(demo::Args),
    /// Run one cell of a published experiment on an emulated network, or predict it.
    #[command(subcommand)]
    Experiment(experiment::Noun),
    /// Name the mechanism by which two control planes should coordinate, and systems built that
    /// way.
    Recipe(recipe::Args),
    /// Print the completion script of a shell for verbs and options.
    Completions(completions::Args),
    /// Write the manual pages, or the reference of the documentation site.
    #[command(subcommand)]
    Docs(docs::Noun),
}

/// Name of the running command, such as `experiment codedbulk`, and all its arguments as on a
/// command line, defaults included.
fn arguments() -> (String, serde_json::Value) {
    let mut command = Cli::command();
    let matches = command.get_matches_mut();
    run_dir::arguments(&command, &matches)
}

impl Verb {
    /// Returns true for a command that runs until it is ended. Its log is the only record of its
    /// work, so its default level is higher.
    fn is_daemon(&self) -> bool {
        match self {
            Self::System(verb) => verb.is_daemon(),
            _ => false,
        }
    }
}

/// Log levels, from the level of `--quiet` upwards.
const LEVELS: [&str; 4] = ["error", "warn", "info", "debug"];

/// Starts logging to stderr, in the chosen format and level.
fn begin_log(cli: &Cli) {
    let asked = if cli.quiet { 0 } else { 1 + usize::from(cli.verbose) };
    let level = LEVELS[(asked + usize::from(cli.verb.is_daemon())).min(LEVELS.len() - 1)];
    let filter = tracing_subscriber::EnvFilter::try_from_env("ANABRANCH_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new(format!("error,anabranch={level}")));
    let log =
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(false);
    // A log line that cannot be written, for instance to a closed terminal, must not end the
    // program. An error report on stderr would end it.
    let log = log.log_internal_errors(false);
    match cli.log_format {
        LogFormat::Text => log.with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr())).init(),
        LogFormat::Json => log.json().flatten_event(true).init(),
    }
}

/// Program entry: parses the arguments, runs the command, and returns its exit code.
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
        Verb::Docs(noun) => docs::run(&noun, Cli::command()),
    };
    if let Err(error) = output::finish() {
        errln!("anabranch: standard output: {error}");
        return ExitCode::from(exit::FAILED);
    }
    match result {
        Ok(code) => code,
        Err(error) => {
            // One line with the error and its causes, whichever module has returned it.
            errln!("anabranch: {}", anabranch_units::text::printable(&format!("{error:#}")));
            exit::code(&error)
        }
    }
}

#[cfg(test)]
mod tests;
