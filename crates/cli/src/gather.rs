//! `anabranch gather`: one client pulls from many servers at once. Joins the system to sockets, files and the simulator.

mod control;
pub mod get;
pub mod keys;
pub mod ls;
pub mod serve;
pub mod simulated;
pub mod stripe;

use std::process::ExitCode;

const _: () = assert!(
    anabranch_gather::msg::SEAL_BYTES as usize == anabranch_net::seal::OVERHEAD_BYTES,
    "what the system reckons with is what sealing adds"
);

/// What to do.
#[derive(clap::Subcommand)]
pub enum Noun {
    /// Make the keys with which servers and clients know each other.
    Keys(keys::Args),
    /// Let clients pull the files of a folder.
    Serve(serve::Args),
    /// Pull objects from servers.
    Get(get::Args),
    /// List what a server has.
    Ls(ls::Args),
    /// Cut a file into parts for several servers.
    Stripe(stripe::Args),
}

impl Noun {
    /// Whether it runs until it is told to end.
    pub fn is_daemon(&self) -> bool {
        matches!(self, Self::Serve(_))
    }
}

/// What cannot be meant, as it was written.
#[derive(Debug)]
struct Usage(anyhow::Error);

impl std::fmt::Display for Usage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:#}", self.0)
    }
}
impl std::error::Error for Usage {}

/// Marks errors as wrong usage, whose exit code is 2.
trait OrUsage<T> {
    /// The same, but for the exit code.
    fn or_usage(self) -> anyhow::Result<T>;
}

impl<T, E: Into<anyhow::Error>> OrUsage<T> for Result<T, E> {
    fn or_usage(self) -> anyhow::Result<T> {
        self.map_err(|error| Usage(error.into()).into())
    }
}

/// Runs it.
///
/// Errors: one line for the user.
pub fn run(noun: Noun, quiet: bool) -> anyhow::Result<ExitCode> {
    let result = match noun {
        Noun::Keys(args) => keys::run(&args, quiet),
        Noun::Serve(args) => serve::run(&args, quiet),
        Noun::Get(args) => get::run(&args, quiet),
        Noun::Ls(args) => ls::run(&args),
        Noun::Stripe(args) => stripe::run(&args, quiet),
    };
    match result {
        Err(error) if error.chain().any(|cause| cause.is::<Usage>()) => {
            eprintln!("anabranch: {}", anabranch_units::text::printable(&format!("{error:#}")));
            Ok(ExitCode::from(2))
        }
        other => other,
    }
}
