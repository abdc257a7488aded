//! `anabranch replicate sync`: `send` of a directory, with deletes.

use super::send;
use anabranch_pieces::name::directory;
use anabranch_replicate_proto::control::DirectoryRules;
use anabranch_sets::deletes::MaxDelete;
use anabranch_units::text::printable;
use std::process::ExitCode;

/// The transfer, and its deletes.
// `send::Args` has an argument group of this name.
#[derive(clap::Args)]
#[group(skip)]
pub struct Args {
    /// Delete, at the destinations, entries that the source lacks. Without it, they are counted
    /// and stay.
    #[arg(long)]
    delete: bool,
    /// Most entries to delete at each destination: a number, or a percentage of its entries. If
    /// more would go, nothing is written or deleted there.
    #[arg(long, value_name = "COUNT|PERCENT%", default_value = "10%", requires = "delete")]
    max_delete: MaxDelete,
    /// Move deleted and overwritten entries to this directory below each destination's --dir,
    /// outside the mirrored directory.
    #[arg(long, value_name = "DIR")]
    backup: Option<String>,
    #[command(flatten)]
    send: send::Args,
}

/// Runs the command.
///
/// Errors: see [`send::run`].
pub fn run(args: &Args, quiet: bool) -> anyhow::Result<ExitCode> {
    let name = args.send.file();
    ensure_usage!(directory(name).is_some(), "`{0}`: sync takes a directory: write `{0}/`", printable(name));
    let rules = DirectoryRules {
        delete: args.delete.then_some(args.max_delete),
        backup: args.backup.clone(),
        ..DirectoryRules::default()
    };
    send::run_with(&args.send, rules, quiet)
}
