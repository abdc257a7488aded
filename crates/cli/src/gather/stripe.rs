//! `anabranch gather stripe`: splits a file into parts for many servers, and writes the manifest
//! from which the file is reassembled.

use crate::exit::OrUsage as _;
use crate::formats::size;
use anabranch_gather::{ManifestPart, Object, Stripe, StripeError, stripe};
use anabranch_units::ByteCount;
use anyhow::anyhow;
use serde::Serialize;
use std::path::PathBuf;
use std::process::ExitCode;

/// The file, the servers and the parts.
#[derive(clap::Args)]
pub struct Args {
    /// The file to cut.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Folder to write to. DIR/0 gets the files for the first of --servers, DIR/1 the files for the
    /// second, and so on; the manifest is DIR/NAME.toml, where NAME is the file's name.
    #[arg(long, value_name = "DIR")]
    into: PathBuf,
    /// Servers, by the addresses for clients, separated by commas. With NAME, clients check that
    /// the server has this name.
    #[arg(long, value_name = "[NAME@]HOST:PORT", value_delimiter = ',', required = true)]
    servers: Vec<String>,
    /// Number of parts. Without: the number of servers.
    #[arg(long, value_name = "N")]
    parts: Option<u64>,
    /// Number of servers for each part. All of these but one may fail.
    #[arg(long, value_name = "N", default_value_t = 1)]
    copies: usize,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Maximum number of listed parts of a server.
const PARTS_SHOWN: usize = 4;

#[derive(Serialize)]
struct StripeSummary<'a> {
    manifest: String,
    #[serde(flatten)]
    object: &'a Object,
}

/// Rephrases an error with the names of this command's options.
fn worded(error: StripeError) -> anyhow::Error {
    match error {
        StripeError::Server(_)
        | StripeError::Twice(_)
        | StripeError::Copies { .. }
        | StripeError::Parts(_) => anyhow!("--{error}"),
        other => other.into(),
    }
}

/// Runs the command.
///
/// Errors: a one-line message for the user.
pub fn run(args: &Args, quiet: bool) -> anyhow::Result<ExitCode> {
    let asked = Stripe {
        file: args.file.clone(),
        into: args.into.clone(),
        servers: args.servers.clone(),
        parts: args.parts,
        copies: args.copies,
    };
    let done = match stripe(&asked) {
        Ok(done) => done,
        Err(error) if error.is_usage() => return Err(worded(error)).or_usage(),
        Err(error) => return Err(worded(error)),
    };
    let object = &done.object;
    let (name, parts, servers) = (&object.name, object.part.len(), args.servers.len());
    if args.json {
        let done = StripeSummary { manifest: done.manifest.display().to_string(), object };
        outln!("{}", serde_json::to_string(&done)?);
    } else if !quiet {
        outln!("{name}: {parts} parts, each for {} of {servers} servers", args.copies);
        for (server, folder) in args.servers.iter().zip(&done.folders) {
            let its: Vec<&ManifestPart> =
                object.part.iter().filter(|part| part.holders.contains(server)).collect();
            let bytes = size(ByteCount::new(its.iter().filter_map(|part| part.bytes).sum()));
            let first =
                its.iter().take(PARTS_SHOWN).map(|part| part.name.as_str()).collect::<Vec<_>>().join(", ");
            let more = its.len().saturating_sub(PARTS_SHOWN);
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            outln!("  {}/: {first}{more} ({bytes})", folder.display());
            outln!("      copy them into the folder that {server} serves");
        }
        outln!("then: anabranch gather get --manifest {} -o {name}", done.manifest.display());
    }
    Ok(ExitCode::SUCCESS)
}
