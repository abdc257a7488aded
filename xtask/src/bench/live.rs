//! `bench live`: the optimiser of `live` on drawn windows, beside HiGHS, and the costs of local
//! control.
//!
//! One process draws and solves one instance, so its peak memory is the instance's. With `--peer`
//! HiGHS solves the same program in path form, in one thread. Rows of plans are [`plans::Row`];
//! [`control`] has the rows of local control. Read [`Args`] first.

mod control;
mod peer;
mod plans;

use anyhow::ensure;
use std::path::PathBuf;

/// Arguments of `bench live`.
#[derive(clap::Args)]
pub struct Args {
    /// Measure only instances whose names contain one of these texts.
    #[arg(long, value_name = "TEXT", num_args = 1..)]
    only: Vec<String>,
    /// Seeds of the drawn networks and requests.
    #[arg(long, value_name = "SEED", num_args = 1.., default_values_t = [1, 2, 3])]
    seeds: Vec<u64>,
    /// Repetitions of each search; the shortest CPU time counts.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    turns: u32,
    /// Python interpreter that has `highspy`: HiGHS solves the windows of the first seed, too.
    #[arg(long, value_name = "PYTHON")]
    peer: Option<PathBuf>,
    /// Time limit of HiGHS for each program.
    #[arg(long, value_name = "SECONDS", default_value_t = 75.0)]
    peer_seconds: f64,
    /// Fail if a row misses its bound.
    #[arg(long)]
    check: bool,
    /// Print one JSON object for each row.
    #[arg(long)]
    json: bool,
    /// Draw and solve this instance in this process, and print its rows.
    #[arg(long, hide = true, value_name = "INSTANCE")]
    solve: Option<String>,
}

impl Args {
    fn is_chosen(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|text| name.contains(text.as_str()))
    }

    /// Prints a row at once if rows are printed as JSON.
    fn print(&self, row: &impl serde::Serialize) -> anyhow::Result<()> {
        if self.json {
            println!("{}", serde_json::to_string(row)?);
        }
        Ok(())
    }
}

/// Runs the benchmark.
///
/// Errors: a process that fails, a plan that breaks a constraint, or a missed bound with `--check`.
pub fn run(args: &Args) -> anyhow::Result<()> {
    if let Some(name) = &args.solve {
        return plans::solve_here(name, args.seeds[0], args.turns);
    }
    let python = args.peer.as_ref().filter(|python| peer::is_there(python));
    let mut missed = plans::measure(args, |instance, row| match python {
        Some(python) => peer::solve(python, args.peer_seconds, instance, row),
        None => Ok(None),
    })?;
    missed.extend(control::measure(args)?);
    missed.iter().for_each(|miss| eprintln!("missed: {miss}"));
    ensure!(!args.check || missed.is_empty(), "{} bounds missed", missed.len());
    Ok(())
}

/// Prints a table without borders.
fn print_table<const N: usize>(head: [&str; N], rows: impl IntoIterator<Item = [String; N]>) {
    let mut table = comfy_table::Table::new();
    table.load_preset(comfy_table::presets::NOTHING);
    table.set_header(head);
    table.add_rows(rows);
    let numbers = table.column_iter_mut().skip(1);
    numbers.for_each(|column| column.set_cell_alignment(comfy_table::CellAlignment::Right));
    println!("{table}\n");
}
