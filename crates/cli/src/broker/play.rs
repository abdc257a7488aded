//! `anabranch broker play`: many players over real sockets, for tests of a broker and its networks.
//!
//! Leaves out: the players ([`anabranch_rehearse::broker::play`]). Read [`run`] first.

use anabranch_media::player::PlaybackStats;
use anabranch_rehearse::broker::play::{Outcome, Players, play};
use std::collections::BTreeMap;
use std::process::ExitCode;

/// The players, and how their results are shown.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    players: Players,
    /// Print one JSON object: statistics of each player, at the end of the warm-up and of the run,
    /// and its last pathway.
    #[arg(long)]
    json: bool,
}

/// Runs the players. Fails if no player has played.
///
/// Errors: a one-line message for the user.
pub fn run(args: &Args, quiet: bool) -> anyhow::Result<ExitCode> {
    crate::process::raise_descriptor_limit();
    let outcome = crate::process::runtime()?.block_on(play(&args.players))?;
    if args.json {
        outln!("{}", serde_json::to_string(&outcome)?);
    } else {
        show(&outcome, quiet);
    }
    let has_begun = outcome.played.iter().any(|played| played.began_after.is_some());
    if !has_begun && !quiet {
        errln!(
            "nobody has played: is the broker there, and do the ways' hosts serve /segment, as broker origin does?"
        );
    }
    Ok(if has_begun { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn show(outcome: &Outcome, quiet: bool) {
    let sum = |of: &dyn Fn(&PlaybackStats) -> u64| outcome.played.iter().map(of).sum::<u64>();
    let begun = outcome.played.iter().filter(|played| played.began_after.is_some()).count();
    let stalled_s = outcome.played.iter().map(|played| played.stalled.as_secs_f64()).sum::<f64>();
    outln!("{begun} of {} players have begun; {} segments", outcome.played.len(), sum(&|p| p.segments));
    outln!("stood still {} times, {stalled_s:.1} s in all", sum(&|p| p.stalls));
    outln!(
        "moved as the broker said {} times, as a way failed {} times",
        sum(&|p| p.moves),
        sum(&|p| p.failures)
    );
    outln!("the broker answered {} questions, {} it did not", sum(&|p| p.answers), sum(&|p| p.unanswered));
    let mut ways: BTreeMap<&str, usize> = BTreeMap::new();
    outcome.ways.iter().flatten().for_each(|way| *ways.entry(way).or_default() += 1);
    if !quiet {
        ways.iter().for_each(|(way, players)| outln!("in the end {players} by {way}"));
    }
}
