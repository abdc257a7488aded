//! `anabranch replicate manifest`: the snapshot id of a directory, and what the snapshot holds.

use crate::exit::{OrUsage as _, SOME_FAILED};
use crate::filters::FilterArgs;
use crate::metadata::MetadataArgs;
use anabranch_disk::tree::index::Index;
use anabranch_disk::tree::manifest::{Counts, Snapshot, read};
use anabranch_disk::tree::{Problem, ScanRules, Tree, shown_below};
use anabranch_units::ByteCount;
use std::path::PathBuf;
use std::process::ExitCode;

/// Maximum number of problems listed. Further problems are only counted.
const PROBLEMS_MAX: usize = 100;

/// The directory, its filter, and the form of the answer.
#[derive(clap::Args)]
pub struct Args {
    /// Directory, or a single file.
    #[arg(value_name = "DIR")]
    path: PathBuf,
    /// Keep the hashes of files in this file: the next run reads only files that changed. It can be
    /// deleted at any time.
    #[arg(long, value_name = "FILE")]
    index: Option<PathBuf>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    metadata: MetadataArgs,
    #[command(flatten)]
    filters: FilterArgs,
}

/// An entry that is not in the snapshot, for programs.
#[derive(serde::Serialize)]
struct ProblemRow {
    path: String,
    reason: String,
}

/// The answer, for programs.
#[derive(serde::Serialize)]
struct Answer<'a> {
    snapshot: String,
    is_complete: bool,
    files: u64,
    files_bytes: u64,
    directories: u64,
    symbolic_links: u64,
    hard_links: u64,
    excluded_entries: u64,
    special_files: u64,
    working_files: u64,
    other_file_systems: u64,
    unreadable_entries: u64,
    unsettled_entries: u64,
    hashed_files: u64,
    problems: &'a [ProblemRow],
}

/// Runs the command.
///
/// Errors: one line for the user.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let filter = args.filters.filter()?;
    let tree = Tree::open(&args.path).or_usage()?;
    let index = match (&args.index, tree.root()?) {
        (Some(path), Some(root)) => Some(Index::open(path, &root)?),
        // A single file is read each time.
        _ => None,
    };
    let mut problems = Vec::new();
    let mut report = |path: &[u8], problem: &Problem| {
        if problems.len() < PROBLEMS_MAX {
            let path = shown_below(tree.path(), path);
            problems.push(ProblemRow { path, reason: problem.to_string() });
        }
    };
    let rules = ScanRules { filter: &filter, metadata: args.metadata.rules() };
    let Snapshot { id, counts } = read(&tree, rules, index.as_ref(), &mut |_, _| {}, &mut report)?;
    let id = id.to_string();
    if args.json {
        outln!("{}", serde_json::to_string(&answer(&id, &counts, &problems))?);
    } else {
        outln!("snapshot {id}");
        for line in lines(&counts) {
            outln!("{line}");
        }
        for problem in &problems {
            errln!("{}: {}", problem.path, problem.reason);
        }
        let unlisted = counts.unreadable + counts.unsettled - problems.len() as u64;
        if unlisted > 0 {
            errln!("{unlisted} more entries were unreadable or changed");
        }
    }
    Ok(if counts.is_complete() { ExitCode::SUCCESS } else { ExitCode::from(SOME_FAILED) })
}

fn answer<'a>(id: &str, counts: &Counts, problems: &'a [ProblemRow]) -> Answer<'a> {
    Answer {
        snapshot: id.to_owned(),
        is_complete: counts.is_complete(),
        files: counts.files,
        files_bytes: counts.bytes,
        directories: counts.directories,
        symbolic_links: counts.symbolic_links,
        hard_links: counts.hard_links,
        excluded_entries: counts.excluded,
        special_files: counts.specials,
        working_files: counts.reserved,
        other_file_systems: counts.other_file_systems,
        unreadable_entries: counts.unreadable,
        unsettled_entries: counts.unsettled,
        hashed_files: counts.hashed_files,
        problems,
    }
}

/// One line for each count above zero, and always one for files.
fn lines(counts: &Counts) -> Vec<String> {
    let files = format!("files: {}, {}", counts.files, ByteCount::new(counts.bytes));
    let rest = [
        ("directories", counts.directories),
        ("symbolic links", counts.symbolic_links),
        ("hard links, further names of these files", counts.hard_links),
        ("excluded by the filter, directories counted once", counts.excluded),
        ("sockets, pipes and devices, skipped", counts.specials),
        ("working files of transfers, skipped", counts.reserved),
        ("directories of other file systems, skipped", counts.other_file_systems),
        ("unreadable, and not in the snapshot", counts.unreadable),
        ("changed while they were read", counts.unsettled),
    ];
    let rest = rest.into_iter().filter(|(_, count)| *count > 0);
    std::iter::once(files).chain(rest.map(|(what, count)| format!("{what}: {count}"))).collect()
}
