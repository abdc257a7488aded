//! `anabranch replicate wait`: waits for detached transfers, or transfers of other users.

use super::ends::ControllerArgs;
use super::watch::{Output, watch_outcome};
use anabranch_replicate_proto::control::TransferId;
use anabranch_replicate_proto::coordinator::Outcome;
use anabranch_units::Duration;
use anyhow::Context as _;
use std::process::ExitCode;
use std::sync::Arc;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// The transfers, and the time limit.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    controller: ControllerArgs,
    /// Numbers of the transfers.
    #[arg(required = true, value_name = "TRANSFER")]
    transfers: Vec<u64>,
    /// Maximum wait. The transfers continue after it.
    #[arg(long, value_name = "TIME")]
    timeout: Option<Duration>,
    /// Print JSON: a line for each event of each transfer, and an object at the end of each.
    #[arg(long)]
    json: bool,
}

/// Maximum number of transfers watched at a time: each takes a connection, and an operator has a
/// few dozen.
const WATCHED_MAX: usize = 16;

/// Outcomes from best to worst.
const ORDER: [Outcome; 7] = [
    Outcome::Done,
    Outcome::Conflicts,
    Outcome::SomeFailed,
    Outcome::Cancelled,
    Outcome::Failed,
    Outcome::Differs,
    Outcome::Integrity,
];

/// Exit code of the worst outcome.
fn worst(outcomes: &[Outcome]) -> u8 {
    let rank = |outcome: &Outcome| ORDER.iter().position(|o| o == outcome).unwrap_or(ORDER.len());
    outcomes.iter().copied().max_by_key(rank).map_or(0, Outcome::exit_code)
}

/// Runs the command. The exit code is the worst outcome's.
///
/// Errors: one line for the user; an unknown transfer is reported before any wait.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let client = args.controller.client()?;
    crate::process::runtime()?.block_on(async {
        let all = async {
            for id in &args.transfers {
                client.status(TransferId(*id)).await?;
            }
            let places = Arc::new(Semaphore::new(WATCHED_MAX));
            let mut watches = JoinSet::new();
            for id in args.transfers.iter().copied().map(TransferId) {
                let (client, places) = (client.clone(), Arc::clone(&places));
                let output = Output { json: args.json, quiet: true };
                watches.spawn(async move {
                    let _place = places.acquire().await.expect("the semaphore is never closed");
                    watch_outcome(&client, id, output).await
                });
            }
            let mut outcomes = Vec::new();
            while let Some(watched) = watches.join_next().await {
                outcomes.push(watched.context("a watch")??);
            }
            anyhow::Ok(worst(&outcomes))
        };
        let over = async {
            match args.timeout {
                Some(timeout) => tokio::time::sleep(timeout.to_std()).await,
                None => std::future::pending().await,
            }
        };
        let (code, why) = tokio::select! {
            code = all => return Ok(ExitCode::from(code?)),
            () = over => (crate::exit::TIMEOUT, "the time is over: waiting ends"),
            () = crate::process::asked_to_end() => (crate::exit::INTERRUPTED, "waiting ends"),
        };
        errln!("anabranch: {why}, and stops no transfer");
        Ok(ExitCode::from(code))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_code_is_the_worst_outcome() {
        assert_eq!(worst(&[Outcome::Done, Outcome::Done]), 0);
        assert_eq!(worst(&[Outcome::Done, Outcome::SomeFailed]), 3);
        assert_eq!(worst(&[Outcome::SomeFailed, Outcome::Cancelled]), 5);
        assert_eq!(worst(&[Outcome::Cancelled, Outcome::Failed, Outcome::Done]), 1);
        assert_eq!(worst(&[Outcome::Integrity, Outcome::Failed]), 4);
    }
}
