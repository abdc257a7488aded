//! The end of a `get`: for programs a JSON line for each object and one for the whole command; for
//! people a sentence; and the exit code.

use super::Args;
use super::progress::print_line;
use crate::exit;
use crate::formats::{rate, size};
use anabranch_gather::{Counters, ObjectReport, Report, ServerReport, Verdict};
use anabranch_units::{ByteCount, Duration};
use serde::Serialize;
use std::collections::BTreeMap;
use std::process::ExitCode;

#[derive(Serialize)]
struct ObjectLine<'a> {
    event: &'static str,
    object: &'a str,
    path: String,
    length_bytes: Option<u64>,
    blake3: Option<String>,
    kept_bytes: u64,
    verdict: &'static str,
    error: Option<String>,
    /// By server: its version of the object, if that differs from the fetched version.
    other_versions: &'a BTreeMap<String, String>,
    took_s: Option<f64>,
}

#[derive(Serialize)]
pub struct EndLine<'a> {
    event: &'static str,
    verified: usize,
    failed: usize,
    fetched_bytes: u64,
    took_s: f64,
    /// Time until the last server was connected.
    connected_s: Option<f64>,
    /// Time until the first packet arrived.
    first_packet_s: Option<f64>,
    /// Time until the last packet arrived.
    last_packet_s: Option<f64>,
    goodput_bps: u64,
    #[serde(flatten)]
    counters: Counters,
    servers: &'a [ServerReport],
}

impl<'a> EndLine<'a> {
    /// The last line of a command that took `took_s` seconds; without a report nothing was pulled.
    pub fn new(report: Option<&'a Report>, (verified, failed): (usize, usize), took_s: f64) -> Self {
        let fetched_bytes = report.map_or(0, Report::fetched_bytes);
        let seconds = |of: fn(&Report) -> Option<Duration>| report.and_then(of).map(Duration::as_secs_f64);
        Self {
            event: "end",
            verified,
            failed,
            fetched_bytes,
            took_s,
            connected_s: seconds(|report| report.connected_after),
            first_packet_s: seconds(|report| report.first_packet_after),
            last_packet_s: seconds(|report| report.last_packet_after),
            goodput_bps: (fetched_bytes as f64 / took_s.max(1e-9) * 8.0).round() as u64,
            counters: report.map_or_else(Counters::default, |report| report.counters),
            servers: report.map_or(&[], |report| &report.servers),
        }
    }
}

fn line(object: &ObjectReport) -> ObjectLine<'_> {
    let (verdict, error) = match &object.verdict {
        Verdict::Verified => ("verified", None),
        Verdict::Failed(failure) => ("failed", Some(failure.to_string())),
        _ => ("interrupted", None),
    };
    ObjectLine {
        event: "object",
        object: &object.name,
        path: object.path.display().to_string(),
        length_bytes: object.bytes,
        blake3: object.hash.map(|hash| blake3::Hash::from(hash).to_hex().to_string()),
        kept_bytes: object.kept_bytes,
        verdict,
        error,
        other_versions: &object.other_versions,
        took_s: object.ended_after.map(Duration::as_secs_f64),
    }
}

/// Reports the results. `streams` is true if the object was written to standard output.
pub fn say(report: &Report, args: &Args, streams: bool, quiet: bool) -> ExitCode {
    let took_s = report.elapsed.as_secs_f64();
    let (verified, objects) = (report.verified(), report.objects.len());
    let fetched_bytes = report.fetched_bytes();
    let per_second = fetched_bytes as f64 / took_s.max(1e-9);
    if args.pull.json {
        report.objects.iter().for_each(|object| print_line(&line(object)));
        print_line(&EndLine::new(Some(report), (verified, objects - verified), took_s));
    } else if !quiet && !streams {
        let word = if objects == 1 { "object" } else { "objects" };
        outln!(
            "{verified} of {objects} {word} verified, {} fetched in {took_s:.2} s: {}",
            size(ByteCount::new(fetched_bytes)),
            rate(per_second)
        );
    }
    if !args.pull.json && !streams {
        if report.is_interrupted {
            errln!("anabranch: interrupted; the same command goes on from there");
        } else if report.objects.iter().any(ObjectReport::can_go_on) {
            errln!("anabranch: arrived data is kept; the same command goes on from there");
        }
    }
    let is_refused = |object: &ObjectReport| match &object.verdict {
        Verdict::Failed(failure) => failure.is_refused(),
        _ => false,
    };
    if report.is_interrupted {
        ExitCode::from(exit::INTERRUPTED)
    } else if report.is_verified() {
        ExitCode::SUCCESS
    } else if report.objects.iter().any(is_refused) {
        ExitCode::from(exit::CORRUPT)
    } else if verified > 0 {
        ExitCode::from(exit::SOME_FAILED)
    } else {
        ExitCode::FAILURE
    }
}
