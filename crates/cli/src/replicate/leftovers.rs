//! `anabranch replicate leftovers`: lists and removes remains of incomplete files.

use crate::exit::OrUsage as _;
use anabranch_disk::folder::{Folder, Links, shown};
use anabranch_disk::partial::leftovers::{Leftover, find};
use anabranch_units::{ByteCount, Duration};
use anyhow::Context as _;
use std::path::PathBuf;
use std::process::ExitCode;

/// The folder to search, and the action.
#[derive(clap::Args)]
pub struct Args {
    /// Folder to search, with all folders below it: a relay's --dir, or the folder that `gather
    /// get` writes to.
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// Remove the leftovers, except files being written. The next transfer of a removed file starts
    /// from scratch.
    #[arg(long)]
    remove: bool,
    /// Only leftovers without a write for this time, such as "168 h".
    #[arg(long, value_name = "TIME", default_value = "0 s")]
    older_than: Duration,
    /// Print one JSON list.
    #[arg(long)]
    json: bool,
}

/// A leftover, for programs.
#[derive(serde::Serialize)]
struct Row {
    path: String,
    length_bytes: Option<u64>,
    disk_bytes: u64,
    age_s: u64,
    is_being_written: bool,
    is_removed: bool,
}

/// Runs the command.
///
/// Errors: one line for the user.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let folder = args.dir.canonicalize().and_then(|path| Folder::open(&path, Links::Refused));
    let folder = folder.with_context(|| format!("--dir {}", args.dir.display())).or_usage()?;
    let mut rows = Vec::new();
    let looked = find(&folder, |left: &Leftover| {
        if left.age < args.older_than.to_std() {
            return false;
        }
        rows.push(Row {
            path: shown(&left.path),
            length_bytes: left.length,
            disk_bytes: left.disk_bytes,
            age_s: left.age.as_secs(),
            is_being_written: left.is_open,
            is_removed: args.remove && !left.is_open,
        });
        args.remove
    });
    if args.json {
        outln!("{}", serde_json::to_string(&rows)?);
    } else if rows.is_empty() {
        outln!("nothing is left below {}", shown(folder.path()));
    } else {
        let mut table = comfy_table::Table::new();
        table.load_preset(comfy_table::presets::NOTHING);
        table.set_header(["file", "on disk", "of", "unused for", "state"]);
        for row in &rows {
            let state = match (row.is_being_written, row.is_removed) {
                (true, _) => "being written",
                (_, true) => "removed",
                _ => "left",
            };
            let age = match row.age_s {
                0..7_200 => format!("{} min", row.age_s / 60),
                7_200..172_800 => format!("{} h", row.age_s / 3_600),
                _ => format!("{} days", row.age_s / 86_400),
            };
            let of = row.length_bytes.map_or("-".into(), |bytes| ByteCount::new(bytes).to_string());
            table.add_row([
                row.path.clone(),
                ByteCount::new(row.disk_bytes).to_string(),
                of,
                age,
                state.to_owned(),
            ]);
        }
        outln!("{}", table.trim_fmt());
    }
    looked.context("not all of it could be removed")?;
    Ok(ExitCode::SUCCESS)
}
