//! `anabranch gather get` for a directory: its arguments, its report and its exit code.

use super::end::EndLine;
use super::progress::{Progress, print_line};
use super::{Args, worded};
use crate::exit;
use crate::formats::{rate, size};
use crate::keys::follow_files;
use crate::process::asked_to_end;
use anabranch_gather::{DirectoryReport, DirectoryTarget, GetConfig, GetDirectory, Identity, Verdict};
use anabranch_units::ByteCount;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Serialize)]
struct DirectoryLine<'a> {
    event: &'static str,
    directory: &'a str,
    path: String,
    /// Id of the snapshot; `None` if no server told one.
    snapshot: Option<String>,
    verdict: &'static str,
    error: Option<String>,
    /// Files whose content was written.
    files: u64,
    files_bytes: u64,
    /// Entries that were left because another program changed them.
    conflicts: u64,
    /// Paths of the first ones.
    conflict_paths: &'a [String],
    /// By server: its version of the directory, if that differs from the fetched version.
    other_versions: &'a BTreeMap<String, String>,
    took_s: f64,
}

/// The target with its destination.
///
/// Errors: one line: an option that directories do not have; an output that names no directory.
pub fn checked(target: DirectoryTarget, args: &Args) -> anyhow::Result<DirectoryTarget> {
    let streams = args.output.as_os_str() == "-";
    ensure_usage!(!streams, "--output -: standard output takes one object, not a directory");
    ensure_usage!(args.expected.blake3.is_none(), "--blake3: for one object: a directory has a --snapshot");
    // Without slashes at its end.
    let path: PathBuf = args.output.components().collect();
    ensure_usage!(
        path.file_name().is_some(),
        "--output {}: name the directory that becomes the copy",
        args.output.display()
    );
    Ok(DirectoryTarget { snapshot: args.expected.snapshot, ..target.at(path) })
}

/// Pulls the directory.
///
/// Errors: a one-line message for the user.
pub fn run(
    identity: &Identity,
    target: DirectoryTarget,
    config: &GetConfig,
    json: bool,
    quiet: bool,
) -> anyhow::Result<ExitCode> {
    let mut shown = Progress::new(json, quiet, target.holders.len());
    let report = crate::process::runtime()?.block_on(async {
        let get = GetDirectory::new(identity, target, config);
        tokio::select! {
            report = get.until(asked_to_end(), |event| shown.hear(event, false)) => report.map_err(worded),
            never = follow_files(identity) => match never {},
        }
    });
    shown.end();
    Ok(say(&report?, json, quiet))
}

/// Reports the result.
fn say(report: &DirectoryReport, json: bool, quiet: bool) -> ExitCode {
    let took_s = report.elapsed.as_secs_f64();
    let written = &report.written;
    let (verdict, error) = match &report.verdict {
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
            conflicts: written.conflicts,
            conflict_paths: &written.conflict_paths,
            other_versions: &report.other_versions,
            took_s,
        });
        let verified = usize::from(verdict == "verified");
        print_line(&EndLine::new(report.contents.as_ref(), (verified, 1 - verified), took_s));
    } else {
        say_to_people(report, took_s, quiet);
    }
    match &report.verdict {
        Verdict::Verified if written.conflicts > 0 => ExitCode::from(exit::SOME_FAILED),
        Verdict::Verified => ExitCode::SUCCESS,
        Verdict::Failed(failure) if failure.is_refused() => ExitCode::from(exit::CORRUPT),
        Verdict::Failed(_) => ExitCode::FAILURE,
        _ => ExitCode::from(exit::INTERRUPTED),
    }
}

fn say_to_people(report: &DirectoryReport, took_s: f64, quiet: bool) {
    let written = &report.written;
    if report.verdict != Verdict::Verified {
        if report.verdict == Verdict::Interrupted {
            errln!("anabranch: interrupted; the same command goes on from there");
        } else if report.can_go_on() {
            errln!("anabranch: arrived data is kept; the same command goes on from there");
        }
        return;
    }
    for path in &written.conflict_paths {
        errln!(
            "anabranch: {path}: changed here by another program, and left: --replace replaces files and links"
        );
    }
    let unlisted = written.conflicts - written.conflict_paths.len() as u64;
    if unlisted > 0 {
        errln!("anabranch: {unlisted} more entries were changed here by another program, and left");
    }
    if quiet {
        return;
    }
    let name = &report.name;
    let Some(contents) = &report.contents else {
        outln!("{name}: nothing changed");
        return;
    };
    let fetched = contents.fetched_bytes();
    let word = if written.files == 1 { "file" } else { "files" };
    outln!(
        "{name}: {} {word} written ({}), {} fetched in {took_s:.2} s: {}",
        written.files,
        size(ByteCount::new(written.bytes)),
        size(ByteCount::new(fetched)),
        rate(fetched as f64 / took_s.max(1e-9))
    );
}
