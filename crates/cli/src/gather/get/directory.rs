//! `anabranch gather get` and `gather sync` of a directory: the report and the exit code.

use super::end::EndLine;
use super::progress::{Progress, print_line};
use super::worded;
use crate::comparison::{self, Location};
use crate::exit;
use crate::formats::{rate, size};
use crate::keys::follow_files;
use crate::process::asked_to_end;
use anabranch_gather::{
    Comparison, DirectoryReport, DirectoryTarget, GetDirectory, Identity, Unpacked, Verdict,
};
use anabranch_units::ByteCount;
use anabranch_units::text::printable;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(Serialize)]
struct DirectoryLine<'a> {
    event: &'static str,
    directory: &'a str,
    path: String,
    /// Id of the snapshot; `None` if no server stated one.
    snapshot: Option<String>,
    verdict: &'static str,
    error: Option<String>,
    /// Files whose content was written.
    files: u64,
    files_bytes: u64,
    /// Entries that were deleted because the servers lack them.
    deleted: u64,
    /// Entries that the servers lack, and that stay.
    surplus: u64,
    /// Differences from the snapshot, after a dry run.
    #[serde(skip_serializing_if = "Option::is_none")]
    comparison: Option<&'a Comparison>,
    /// Entries that were left because another program changed them.
    conflicts: u64,
    /// Paths of the first conflicts.
    conflict_paths: &'a [String],
    /// By server: its version of the directory, if that differs from the fetched version.
    other_versions: &'a BTreeMap<String, String>,
    took_s: f64,
}

/// The target with its destination.
///
/// Errors: one line: an output that names no directory.
pub fn checked(
    target: DirectoryTarget,
    output: &Path,
    snapshot: Option<[u8; 32]>,
) -> anyhow::Result<DirectoryTarget> {
    let streams = output.as_os_str() == "-";
    ensure_usage!(!streams, "--output -: standard output takes one object, not a directory");
    // Without slashes at its end.
    let path: PathBuf = output.components().collect();
    ensure_usage!(
        path.file_name().is_some(),
        "--output {}: name the directory that becomes the copy",
        output.display()
    );
    Ok(DirectoryTarget { snapshot, ..target.at(path) })
}

/// Pulls the directory.
///
/// Errors: a one-line message for the user.
pub fn run(identity: &Identity, get: GetDirectory<'_>, json: bool, quiet: bool) -> anyhow::Result<ExitCode> {
    let (servers, deletes) = (get.target().holders.len(), get.target().delete.is_some());
    let mut shown = Progress::new(json, quiet, servers);
    let report = crate::process::runtime()?.block_on(async {
        tokio::select! {
            report = get.until(asked_to_end(), |event| shown.hear(event, false)) => report.map_err(worded),
            never = follow_files(identity) => match never {},
        }
    });
    shown.end();
    Ok(say(&report?, deletes, json, quiet))
}

/// Reports the result. `deletes` is true for a mirror that deletes entries which the servers lack.
fn say(report: &DirectoryReport, deletes: bool, json: bool, quiet: bool) -> ExitCode {
    let took_s = report.elapsed.as_secs_f64();
    let written = &report.written;
    let (verdict, error) = match &report.verdict {
        Verdict::Verified if report.comparison.is_some() => ("compared", None),
        Verdict::Verified if written.conflicts > 0 => ("conflicts", None),
        Verdict::Verified => ("verified", None),
        Verdict::Failed(failure) => ("failed", Some(failure.to_string())),
        _ => ("interrupted", None),
    };
    if json {
        print_line(&DirectoryLine {
            event: "directory",
            directory: &report.name,
            path: report.path.display().to_string(),
            snapshot: report.snapshot.map(|id| blake3::Hash::from(id).to_hex().to_string()),
            verdict,
            error,
            files: written.files,
            files_bytes: written.bytes,
            deleted: written.deleted,
            surplus: report.surplus,
            comparison: report.comparison.as_ref(),
            conflicts: written.conflicts,
            conflict_paths: &written.conflict_paths,
            other_versions: &report.other_versions,
            took_s,
        });
        let verified = usize::from(matches!(verdict, "verified" | "compared"));
        print_line(&EndLine::new(report.contents.as_ref(), (verified, 1 - verified), took_s));
    } else {
        say_to_people(report, took_s, deletes, quiet);
    }
    match &report.verdict {
        Verdict::Verified if written.conflicts > 0 => ExitCode::from(exit::SOME_FAILED),
        Verdict::Verified => ExitCode::SUCCESS,
        Verdict::Failed(failure) if failure.is_refused() => ExitCode::from(exit::CORRUPT),
        Verdict::Failed(_) => ExitCode::FAILURE,
        _ => ExitCode::from(exit::INTERRUPTED),
    }
}

/// Names the entries that were left.
fn say_conflicts(written: &Unpacked, deletes: bool) {
    let replaces = if deletes { "replaces or deletes" } else { "replaces" };
    for path in &written.conflict_paths {
        errln!(
            "anabranch: {path}: changed here by another program, and left: --replace {replaces} files and links"
        );
    }
    let unlisted = written.conflicts - written.conflict_paths.len() as u64;
    if unlisted > 0 {
        errln!("anabranch: {unlisted} more entries were changed here by another program, and left");
    }
    if written.deletes_withheld {
        errln!("anabranch: no entry was deleted: mend the entries above first");
    }
}

fn say_to_people(report: &DirectoryReport, took_s: f64, deletes: bool, quiet: bool) {
    let written = &report.written;
    say_conflicts(written, deletes);
    if report.verdict != Verdict::Verified {
        if report.verdict == Verdict::Interrupted {
            errln!("anabranch: interrupted; the same command goes on from there");
        } else if report.can_go_on() {
            errln!("anabranch: arrived data is kept; the same command goes on from there");
        }
        return;
    }
    if quiet {
        return;
    }
    let name = &report.name;
    if let Some(found) = &report.comparison {
        let path = report.path.display().to_string();
        let lines = comparison::lines(&path, &path, found, Location::Here);
        lines.iter().for_each(|line| outln!("{}", printable(line)));
        return;
    }
    let Some(contents) = &report.contents else {
        outln!("{name}: nothing changed");
        return;
    };
    let fetched = contents.fetched_bytes();
    let word = if written.files == 1 { "file" } else { "files" };
    let deleted = match written.deleted {
        0 => String::new(),
        1 => ", 1 entry deleted".to_owned(),
        entries => format!(", {entries} entries deleted"),
    };
    outln!(
        "{name}: {} {word} written ({}){deleted}, {} fetched in {took_s:.2} s: {}",
        written.files,
        size(ByteCount::new(written.bytes)),
        size(ByteCount::new(fetched)),
        rate(fetched as f64 / took_s.max(1e-9))
    );
    if report.surplus > 0 && !deletes {
        let word = if report.surplus == 1 { "entry" } else { "entries" };
        outln!("{} {word} here that the servers lack: see --delete", report.surplus);
    }
}
