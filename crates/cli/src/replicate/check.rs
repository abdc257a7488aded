//! `anabranch replicate check`: compares a directory with its copies at other sites. A dry run of
//! `send` and `sync` shows the same comparison.

use super::ends::{Ends, follow};
use super::watch::{Output, watch_view};
use crate::comparison::{self, Location};
use crate::exit::OrUsage as _;
use anabranch_pieces::name::directory;
use anabranch_replicate::Client;
use anabranch_replicate::wire::{SubmitRequest, TransferView};
use anabranch_replicate_proto::control::DirectoryRules;
use anabranch_replicate_proto::coordinator::{Outcome, SubmitResult, Verdict};
use anabranch_units::ByteCount;
use anabranch_units::text::printable;
use std::process::ExitCode;

/// The directory, and the sites.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    ends: Ends,
}

/// Runs the command.
///
/// Errors: one line for the user. The exit code tells the outcome: 4 for differences.
pub fn run(args: &Args, quiet: bool) -> anyhow::Result<ExitCode> {
    let ends = &args.ends;
    ensure_usage!(
        directory(ends.file()).is_some(),
        "`{0}`: check takes a directory: write `{0}/`",
        printable(ends.file())
    );
    let (filter, metadata) = (ends.filter_rules()?, ends.metadata_rules()?);
    let rules = DirectoryRules { filter, metadata, compare: true, ..DirectoryRules::default() };
    let client = ends.client()?;
    let output = Output { json: ends.json, quiet };
    crate::process::runtime()?.block_on(async {
        let topology = client.topology().await?.topology()?;
        let request = ends.request(rules, &topology).or_usage()?;
        let ended = compare(&client, &request, output).await?;
        let code = ended.map_or(crate::exit::INTERRUPTED, |(_, outcome)| outcome.exit_code());
        Ok(ExitCode::from(code))
    })
}

/// Compares the ends of `request`, prints the differences, and passes the bytes that a destination
/// lacks to `plan`.
///
/// Errors: one line for the user.
pub(super) async fn dry_run(
    client: &Client,
    request: &SubmitRequest,
    output: Output,
    plan: impl FnOnce(ByteCount) -> anyhow::Result<ExitCode>,
) -> anyhow::Result<ExitCode> {
    let mut comparing = request.clone();
    comparing.rules.compare = true;
    let Some((view, outcome)) = compare(client, &comparing, output).await? else {
        return Ok(ExitCode::from(crate::exit::INTERRUPTED));
    };
    if !matches!(outcome, Outcome::Done | Outcome::Differs) {
        return Ok(ExitCode::from(outcome.exit_code()));
    }
    // Destinations get the union of the lacking contents: at least the largest part.
    let lacking = view.destinations.iter().filter_map(|d| d.comparison.as_ref());
    match lacking.map(|comparison| comparison.content_bytes).max() {
        Some(bytes) => plan(ByteCount::new(bytes.saturating_add(view.length_bytes.unwrap_or(0)))),
        None => Ok(ExitCode::SUCCESS),
    }
}

/// Runs a comparison to its end, and prints it. Returns its last status; `None` after an interrupt.
async fn compare(
    client: &Client,
    request: &SubmitRequest,
    output: Output,
) -> anyhow::Result<Option<(TransferView, Outcome)>> {
    let submitted = client.submit_or_attach(request).await?;
    let (SubmitResult::New(id) | SubmitResult::Attached(id)) = submitted;
    if !output.json && !output.quiet {
        errln!("transfer {id}: comparing");
    }
    let watching = watch_view(client, id, Output { quiet: true, ..output });
    let ended = follow(client, submitted, output, watching).await?;
    if let Some((view, _)) = ended.as_ref().filter(|_| !output.json && !output.quiet) {
        out!("{}", differences(view));
    }
    Ok(ended)
}

/// The differences of each destination, and the first entries that differ.
fn differences(view: &TransferView) -> String {
    let mut lines = Vec::new();
    for d in &view.destinations {
        match (&d.verdict, &d.comparison) {
            (_, Some(found)) => {
                lines.extend(comparison::lines(&d.site, &d.path, found, Location::There));
            }
            (Some(Verdict::Done), _) => lines.push(format!("{}: equal", d.site)),
            // The line about the failure says more.
            _ => {}
        }
    }
    lines.iter().map(|line| format!("{}\n", printable(line))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replicate::status::tests::view;
    use anabranch_sets::comparison::{Comparison, DifferenceKind, DifferentEntry};

    #[test]
    fn differences_are_listed_below_their_counts() {
        let mut view = view(4, "data/");
        view.destinations.truncate(2);
        view.destinations[0].verdict = Some(Verdict::Done);
        let named = vec![
            DifferentEntry {
                kind: DifferenceKind::Renamed,
                path: "b".to_owned(),
                from: Some("a".to_owned()),
            },
            DifferentEntry { kind: DifferenceKind::Missing, path: "c".to_owned(), from: None },
        ];
        let found =
            Comparison { missing: 2, renamed: 1, content_bytes: 3_000, named, ..Comparison::default() };
        view.destinations[1].verdict = Some(Verdict::Differs { reason: "2 missing".to_owned() });
        view.destinations[1].comparison = Some(found);
        let text = "a: equal\nb: 2 missing, 1 renamed; lacks 3.00 kB of contents\n  \
                    renamed     b (there: a)\n  missing     c\n  and 1 more\n";
        assert_eq!(differences(&view), text);
    }
}
