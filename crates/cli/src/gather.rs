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
    /// Make, renew and revoke the keys with which servers and clients know each other.
    Keys(keys::Args),
    /// Let clients pull the files of a folder.
    Serve(serve::Args),
    /// Pull files from the servers that hold them.
    Get(get::Args),
    /// List the files that a server offers.
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

/// Runs it.
///
/// Errors: one line for the user.
pub fn run(noun: Noun, quiet: bool) -> anyhow::Result<ExitCode> {
    match noun {
        Noun::Keys(args) => keys::run(&args, quiet),
        Noun::Serve(args) => serve::run(&args, quiet),
        Noun::Get(args) => get::run(&args, quiet),
        Noun::Ls(args) => ls::run(&args),
        Noun::Stripe(args) => stripe::run(&args, quiet),
    }
}
