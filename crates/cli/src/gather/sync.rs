//! `anabranch gather sync`: `get` of a directory, with deletes.

use super::get::PullArgs;
use super::get::directory::{checked, run as pull};
use crate::exit::OrUsage as _;
use anabranch_gather::{DirectoryTarget, GetDirectory, MaxDelete};
use anabranch_sets::publication::BACKUP_OF_SNAPSHOT;
use anabranch_units::text::printable;
use std::path::PathBuf;
use std::process::ExitCode;

/// The directory, its servers, and the deletes.
#[derive(clap::Args)]
pub struct Args {
    /// The directory, with all servers that hold it: [NAME@]HOST:PORT[,[NAME@]HOST:PORT...]/DIR/,
    /// such as host1:7180,host2:7180/data/. Without DIR/ it is the whole served folder.
    #[arg(value_name = "SERVER/DIR/", value_parser = directory)]
    directory: DirectoryTarget,
    /// The directory that becomes the mirror.
    #[arg(short, long, value_name = "PATH")]
    output: PathBuf,
    /// Delete entries here that the servers lack. Without it, they are counted and stay.
    #[arg(long)]
    delete: bool,
    /// Most entries to delete: a number, or a percentage of the entries here. Above it, nothing is
    /// written or deleted.
    #[arg(long, value_name = "COUNT|PERCENT%", default_value = "10%", requires = "delete")]
    max_delete: MaxDelete,
    /// Move deleted and overwritten entries to this directory, on the same file system and outside
    /// the mirror.
    #[arg(long, value_name = "DIR")]
    backup: Option<PathBuf>,
    /// Print the differences from the servers' version, and change nothing but the index.
    #[arg(long)]
    dry_run: bool,
    /// Id of the snapshot that the directory must have, as `replicate manifest` and `gather ls
    /// --snapshot` print it. Without it, the version of the first server is taken.
    #[arg(long, value_name = "ID", value_parser = super::get::snapshot_id)]
    snapshot: Option<[u8; 32]>,
    #[command(flatten)]
    pull: PullArgs,
}

fn directory(text: &str) -> Result<DirectoryTarget, String> {
    if !DirectoryTarget::is_named_by(text) {
        return Err(format!("`{0}`: sync takes a directory: write `{0}/`", printable(text)));
    }
    DirectoryTarget::parse(text).map_err(|error| error.to_string())
}

/// Runs the command.
///
/// Errors: one line for the user. Exit codes are as for `gather get`.
pub fn run(args: &Args, quiet: bool) -> anyhow::Result<ExitCode> {
    let (target, config) = requested(args).or_usage()?;
    let identity = args.pull.identity()?;
    let get = GetDirectory::new(&identity, target, &config);
    let get = if args.dry_run { get.comparing() } else { get };
    pull(&identity, get, args.pull.json, quiet)
}

/// Returns the directory and the settings.
///
/// Errors: one line: an invalid combination.
fn requested(args: &Args) -> anyhow::Result<(DirectoryTarget, anabranch_gather::GetConfig)> {
    let target = checked(args.directory.clone(), &args.output, args.snapshot)?;
    let delete = args.delete.then_some(args.max_delete);
    let backup: Option<PathBuf> = args.backup.as_ref().map(|backup| backup.components().collect());
    if let Some(backup) = &backup {
        let is_name = backup.file_name().is_some_and(|name| name.to_str().is_some());
        ensure_usage!(is_name, "--backup {}: name a directory, in UTF-8", backup.display());
    }
    let publication = args.pull.publish.publication()?;
    ensure_usage!(backup.is_none() || publication.is_each(), "{BACKUP_OF_SNAPSHOT}");
    let filter = args.pull.filters.filter()?;
    if let (Some(option), true) = (filter.beyond_paths(), args.delete) {
        bail_usage!("--delete with {option}: an entry could count in one copy only: leave one of them out");
    }
    let filter = filter.into();
    let target = DirectoryTarget { counts_surplus: true, delete, backup, publication, filter, ..target };
    Ok((target, super::get::config(&args.pull)?))
}
