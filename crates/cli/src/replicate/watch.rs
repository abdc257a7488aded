//! Watching a transfer to its end, for `send`, `status --follow` and `wait`.
//!
//! `display` prints events; at the end there is a table, or an object for programs, and the exit
//! code. Times are the controller's, so a late watcher prints the same. Read [`watch`] first.

mod display;

use crate::formats::{rate, size};
use anabranch_http::ClientError;
use anabranch_pieces::name::directory;
use anabranch_replicate::wire::TransferView;
use anabranch_replicate::{Client, WatchItem};
use anabranch_replicate_proto::control::{EntryCounts, LeftEntry, TransferId};
use anabranch_replicate_proto::coordinator::{EventKind, Outcome, Verdict};
use anabranch_sets::comparison::Comparison;
use anabranch_units::text::printable;
use anabranch_units::{BitRate, ByteCount};
use display::TransferDisplay;
use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

/// Retry time for an unreachable controller.
const PATIENCE: Duration = Duration::from_secs(600);

/// Form of the output.
#[derive(Copy, Clone, Debug)]
pub(super) struct Output {
    /// True for JSON lines.
    pub(super) json: bool,
    /// True for no output before the end.
    pub(super) quiet: bool,
}

/// Final object of a watched transfer, for programs.
#[derive(serde::Serialize)]
struct Summary<'a> {
    event: &'static str,
    transfer: u64,
    outcome: Option<Outcome>,
    attempts: u32,
    length_bytes: Option<u64>,
    hash: Option<String>,
    /// Time from the first plan, which sites get at once, to the last destination's verdict.
    took_s: f64,
    /// Rate of this transfer's bytes at the slowest successful destination. `None` if no bytes
    /// arrived there.
    rate_bps: Option<u64>,
    #[serde(flatten)]
    plan: PlanSummary,
    verified: bool,
    /// True if nothing had to be sent because every destination had the file.
    was_there: bool,
    corrupt: u64,
    suspects: &'a [String],
    congestion_controls: &'a [String],
    destinations: Vec<DestinationSummary<'a>>,
    /// Links of the transfer that are declared with a wrong capacity.
    wrong_links: Vec<MisdeclaredLink>,
}

#[derive(serde::Serialize)]
struct PlanSummary {
    scheme: Option<String>,
    planned_bps: Option<u64>,
    bound_bps: Option<u64>,
}

/// A link whose measured capacity differs much from the declared one.
#[derive(Clone, serde::Serialize)]
struct MisdeclaredLink {
    from: String,
    to: String,
    declared_bps: u64,
    carried_bps: u64,
    is_limit: bool,
    #[serde(skip)]
    line: String,
}

#[derive(serde::Serialize)]
struct DestinationSummary<'a> {
    site: &'a str,
    path: &'a str,
    /// Counts of a directory's entries.
    entries: Option<EntryCounts>,
    /// The first entries that were left.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    left: &'a [LeftEntry],
    /// Differences from the source, if the transfer compared them.
    #[serde(skip_serializing_if = "Option::is_none")]
    comparison: Option<&'a Comparison>,
    verdict: Option<&'a Verdict>,
    took_s: Option<f64>,
    /// Bytes that arrived in this transfer.
    moved_bytes: u64,
    rate_bps: Option<u64>,
}

/// Times of events by the controller's clock, in milliseconds since 1970.
#[derive(Default)]
struct EventTimes {
    /// True if the log was seen from its beginning.
    is_whole: bool,
    planned: Option<u64>,
    ended: BTreeMap<String, u64>,
}

/// Watches a transfer to its end, and reports its result. Returns the exit code.
///
/// Errors: one line for the user. If only the controller is unreachable, the transfer continues.
pub(super) async fn watch(client: &Client, id: TransferId, output: Output) -> anyhow::Result<ExitCode> {
    Ok(ExitCode::from(watch_outcome(client, id, output).await?.exit_code()))
}

/// Message for a watch that ends early because the controller is unreachable.
pub(super) fn may_go_on(id: TransferId) -> String {
    format!(
        "transfer {id} may go on without this command: `anabranch replicate status --follow {id}` shows it"
    )
}

/// Error that ends a command about a transfer, which the controller knew before if `was_known`.
pub(super) fn broken_off(id: TransferId, was_known: bool, error: ClientError) -> anyhow::Error {
    match error {
        ClientError::Unreachable(_) => anyhow::Error::new(error).context(may_go_on(id)),
        ClientError::Refused { status: 404, .. } if was_known => {
            anyhow::anyhow!("the controller no longer knows transfer {id}")
        }
        _ => error.into(),
    }
}

/// As [`watch`], but returns the outcome.
pub(super) async fn watch_outcome(
    client: &Client,
    id: TransferId,
    output: Output,
) -> anyhow::Result<Outcome> {
    Ok(watch_view(client, id, output).await?.1)
}

/// As [`watch`], but returns the last status and the outcome.
pub(super) async fn watch_view(
    client: &Client,
    id: TransferId,
    output: Output,
) -> anyhow::Result<(TransferView, Outcome)> {
    let mut shown = TransferDisplay::new(output);
    let mut times = EventTimes::default();
    let mut wrong_links = BTreeMap::new();
    let (mut was_known, mut ended) = (false, None);
    let mut watch = client.watch(id).with_patience(PATIENCE);
    while let Some(item) = watch.next().await.map_err(|error| broken_off(id, was_known, error))? {
        was_known = was_known || !matches!(item, WatchItem::Away(_));
        match item {
            WatchItem::Status(view) => {
                shown.status(&view);
                ended = view.outcome.map(|outcome| (view, outcome));
            }
            WatchItem::Event(event) => {
                if output.json {
                    outln!("{}", serde_json::to_string(&event)?);
                }
                match (&event.event.kind, event.at_unix_ms) {
                    (EventKind::Submitted, _) => times.is_whole = true,
                    (EventKind::Planned { .. }, Some(at)) => {
                        times.planned.get_or_insert(at);
                    }
                    (EventKind::Verdict { site, .. }, Some(at)) => {
                        times.ended.entry(site.clone()).or_insert(at);
                    }
                    _ => {}
                }
                if let Some(wrong) = wrong_link(&event.event.kind) {
                    // The last measurement of a link counts.
                    wrong_links.insert((wrong.from.clone(), wrong.to.clone()), wrong);
                }
                shown.event(&event.event.kind);
            }
            WatchItem::Away(why) => shown.say(&format!("{why}: trying on")),
        }
    }
    shown.end();
    let (view, outcome) = ended.expect("a watch is over only after a status with the outcome");
    let mut summary = summary(&view, &times);
    summary.wrong_links = wrong_links.into_values().collect();
    if output.json {
        outln!("{}", serde_json::to_string(&summary)?);
    } else if !output.quiet {
        out!("{}", table(&summary, &view));
    }
    for line in trouble(&summary) {
        errln!("anabranch: {}", printable(&line));
    }
    Ok((*view, outcome))
}

fn wrong_link(kind: &EventKind<String>) -> Option<MisdeclaredLink> {
    let EventKind::WrongCapacity { from, to, declared, carried, is_limit } = kind else { return None };
    let line = kind.in_words(&String::clone);
    let (from, to, is_limit) = (from.clone(), to.clone(), *is_limit);
    let (declared_bps, carried_bps) = (declared.as_bps(), carried.as_bps());
    Some(MisdeclaredLink { from, to, declared_bps, carried_bps, is_limit, line })
}

fn summary<'a>(view: &'a TransferView, times: &EventTimes) -> Summary<'a> {
    // Without its beginning, the log's first plan may belong to a later attempt.
    let began = times.planned.filter(|_| times.is_whole).or(view.began_unix_ms);
    let seconds_of = |ended: u64| began.map(|began| ended.saturating_sub(began) as f64 / 1e3);
    // Bytes that were there before the transfer have no rate.
    let rate = |bytes: u64, seconds: f64| {
        (bytes > 0).then(|| (bytes as f64 * 8.0 / seconds.max(1e-3)).round() as u64)
    };
    let destinations: Vec<_> = view
        .destinations
        .iter()
        .map(|d| {
            let is_delivered = d.verdict.as_ref().is_some_and(Verdict::is_delivered);
            let ended = times.ended.get(&d.site).filter(|_| is_delivered);
            let took_s = ended.and_then(|ended| seconds_of(*ended));
            DestinationSummary {
                site: &d.site,
                path: &d.path,
                entries: d.entries,
                left: &d.left,
                comparison: d.comparison.as_ref(),
                verdict: d.verdict.as_ref(),
                took_s,
                moved_bytes: d.moved_bytes,
                rate_bps: took_s.and_then(|seconds| rate(d.moved_bytes, seconds)),
            }
        })
        .collect();
    let slowest = destinations
        .iter()
        .filter_map(|d| Some((d.took_s?, d.rate_bps)))
        .reduce(|slowest, d| if d.0 > slowest.0 { d } else { slowest });
    let ended = times.ended.values().copied().max().or(view.ended_unix_ms);
    let is_done = view.outcome == Some(Outcome::Done);
    Summary {
        event: "summary",
        transfer: view.id,
        outcome: view.outcome,
        attempts: view.attempts,
        length_bytes: view.length_bytes,
        hash: view.hash.map(|h| h.to_string()),
        took_s: ended.and_then(seconds_of).unwrap_or(0.0),
        rate_bps: slowest.and_then(|(_, rate_bps)| rate_bps),
        plan: PlanSummary {
            scheme: view.scheme.map(|s| s.to_string()),
            planned_bps: view.rates.planned_bps,
            bound_bps: view.rates.bound_bps,
        },
        verified: is_done,
        was_there: is_done && times.is_whole && times.planned.is_none(),
        corrupt: view.corrupt,
        suspects: &view.suspects,
        congestion_controls: &view.congestion_controls,
        destinations,
        wrong_links: Vec::new(),
    }
}

/// Formats the failures: each cause once, with the affected sites; and all differences in one line.
fn trouble(summary: &Summary<'_>) -> Vec<String> {
    let result = |verdict: &Verdict, path: &str| match verdict {
        verdict if verdict.is_delivered() => "with conflicts",
        _ if directory(path).is_some() => "without the directory",
        _ => "without the file",
    };
    let mut causes: Vec<(&str, &str, Vec<&str>)> = Vec::new();
    let mut differences = Vec::new();
    for d in &summary.destinations {
        let Some((verdict, reason)) = d.verdict.and_then(|verdict| Some((verdict, verdict.reason()?))) else {
            continue;
        };
        if matches!(verdict, Verdict::Differs { .. }) {
            differences.push(format!("{}: {reason}", d.site));
            continue;
        }
        // The line has the names of its sites.
        let own = reason.strip_prefix(d.site).and_then(|rest| rest.strip_prefix(": "));
        let reason = own.unwrap_or(reason);
        match causes.iter_mut().find(|(known, ..)| *known == reason) {
            Some((.., sites)) => sites.push(d.site),
            None => causes.push((reason, result(verdict, d.path), vec![d.site])),
        }
    }
    let (id, all) = (summary.transfer, summary.destinations.len());
    let line = |(reason, what, sites): (&str, &str, Vec<&str>)| {
        format!(
            "transfer {id}: {} of {all} destinations {what} ({}): {reason}",
            sites.len(),
            sites.join(", ")
        )
    };
    let mut lines: Vec<String> = causes.into_iter().map(line).collect();
    if !differences.is_empty() {
        let count = differences.len();
        let (destinations, differ) = match (all, count) {
            (1, _) => ("destination", "differs"),
            (_, 1) => ("destinations", "differs"),
            _ => ("destinations", "differ"),
        };
        lines.push(format!(
            "transfer {id}: {count} of {all} {destinations} {differ}: {}",
            differences.join("; ")
        ));
    }
    lines
}

/// Lines about entries that only a destination has, or had.
fn surplus_lines(summary: &Summary<'_>) -> Vec<String> {
    let counted = |n: u64| format!("{n} {}", if n == 1 { "entry" } else { "entries" });
    let mut lines = Vec::new();
    for DestinationSummary { site, entries, .. } in &summary.destinations {
        let Some(EntryCounts { surplus, deleted, conflicts, .. }) = *entries else { continue };
        if deleted > 0 {
            lines.push(format!("{} deleted at {site}, which the source lacks", counted(deleted)));
        }
        if let Some(surplus) = surplus.filter(|surplus| *surplus > 0) {
            // After deletes, the line about conflicts names the entries that stayed.
            let is_after_deletes = deleted > 0 || conflicts > 0;
            let hint = if is_after_deletes { "" } else { "; `replicate sync --delete` removes them" };
            lines.push(format!("{} only at {site}{hint}", counted(surplus)));
        }
    }
    lines
}

fn table(summary: &Summary<'_>, view: &TransferView) -> String {
    let mut rows = comfy_table::Table::new();
    rows.load_preset(comfy_table::presets::NOTHING);
    rows.set_header(["destination", "result", "time", "rate"]);
    for d in &summary.destinations {
        let result = match d.verdict {
            Some(Verdict::Done) => "verified",
            Some(Verdict::Failed { .. }) => "failed",
            Some(Verdict::Unreachable { .. }) => "unreachable",
            Some(Verdict::Integrity { .. }) => "refused",
            Some(Verdict::Conflict { .. }) => "conflicts",
            Some(Verdict::Differs { .. }) => "differs",
            None => "-",
        };
        let (took_s, rate_bps) = if summary.was_there { (None, None) } else { (d.took_s, d.rate_bps) };
        let time = took_s.map_or("-".into(), |s| format!("{s:.1} s"));
        let rate = rate_bps.map_or("-".into(), |bps| rate(bps as f64 / 8.0).to_string());
        rows.add_row([d.site.to_owned(), result.to_owned(), time, rate]);
    }
    let mut out = format!("{}\n", rows.trim_fmt());
    let facts = facts(summary, view);
    if !facts.is_empty() {
        out.push_str(&facts);
        out.push('\n');
    }
    for line in surplus_lines(summary) {
        out.push_str(&format!("{}\n", printable(&line)));
    }
    if !summary.suspects.is_empty() {
        out.push_str(&format!("data was changed on its way by {}\n", summary.suspects.join(", ")));
    }
    for wrong in &summary.wrong_links {
        out.push_str(&format!("{}\n", printable(&wrong.line)));
    }
    out
}

/// The limit of the source's rate, if the transfer has one.
fn limit_in_words(view: &TransferView) -> Option<String> {
    let limit = BitRate::bps(view.rates.limit_bps?);
    Some(format!("source held to {limit} by --bwlimit"))
}

/// Formats how the transfer was done, as far as it was.
fn facts(summary: &Summary<'_>, view: &TransferView) -> String {
    let Some(length) = view.length_bytes.map(|n| size(ByteCount::new(n))) else { return String::new() };
    let mut facts = Vec::new();
    let counted = |n: u64, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
    if summary.was_there {
        facts.push(format!("{length} was there already: nothing had to be sent"));
    } else if let (Some(scheme), Some(planned), Some(bound)) = (
        &summary.plan.scheme,
        view.rates.planned_bps.map(BitRate::bps),
        view.rates.bound_bps.map(BitRate::bps),
    ) {
        let held = limit_in_words(view).map_or(String::new(), |held| format!(", {held}"));
        facts.push(format!("{length} by {scheme}: planned {planned}, bound {bound}{held}"));
        facts.push(counted(summary.attempts.into(), "attempt"));
        let stripes = format!("{} a hop", counted(view.hop.stripes.into(), "stripe"));
        facts.push(match &summary.congestion_controls.join(" and ")[..] {
            "" => stripes,
            names => format!("congestion control {names}, {stripes}"),
        });
    } else {
        facts.push(length.to_string());
    }
    facts.extend(summary.hash.as_ref().map(|hash| format!("BLAKE3 {hash}")));
    facts.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replicate::status::tests::view;
    use anabranch_replicate_proto::plan::Scheme;

    /// #17: each cause was printed twice: in the table, after 180 columns of blanks, and below the
    /// table. #54: a line named its site twice.
    #[test]
    fn cause_is_reported_once_with_the_sites_it_hit() {
        let mut view = view(4, "file");
        let failed = |reason: &str| Some(Verdict::Failed { reason: reason.to_owned() });
        let verdicts = [failed("a: no space"), failed("b gone"), failed("c: no space")];
        view.destinations.truncate(4);
        view.destinations.iter_mut().zip(verdicts).for_each(|(d, verdict)| d.verdict = verdict);
        view.destinations[3].verdict = Some(Verdict::Done);
        view.outcome = Some(Outcome::SomeFailed);
        let summary = summary(&view, &EventTimes::default());
        let said = trouble(&summary);
        assert_eq!(
            said,
            [
                "transfer 4: 2 of 4 destinations without the file (a, c): no space",
                "transfer 4: 1 of 4 destinations without the file (b): b gone"
            ]
        );
        let table = table(&summary, &view);
        assert!(
            !table.contains("no space") && table.lines().all(|l| l.trim_end() == l && l.len() < 80),
            "{table}"
        );
        assert!(
            table.contains(" failed ") && !table.contains("planned") && !table.contains("stripe"),
            "{table}"
        );
    }

    /// #53: a comparison printed a line for each site, with the site's name twice.
    #[test]
    fn differences_of_all_sites_are_one_line() {
        let mut view = view(1, "data/");
        view.destinations.truncate(3);
        let differs = |reason: &str| Some(Verdict::Differs { reason: reason.to_owned() });
        let verdicts = [differs("314 missing"), Some(Verdict::Done), differs("314 missing")];
        view.destinations.iter_mut().zip(verdicts).for_each(|(d, verdict)| d.verdict = verdict);
        let said = |view: &TransferView| trouble(&summary(view, &EventTimes::default()));
        assert_eq!(said(&view), ["transfer 1: 2 of 3 destinations differ: a: 314 missing; c: 314 missing"]);
        view.destinations[0].verdict = Some(Verdict::Failed { reason: "gone".to_owned() });
        assert_eq!(
            said(&view),
            [
                "transfer 1: 1 of 3 destinations without the directory (a): gone",
                "transfer 1: 1 of 3 destinations differs: c: 314 missing"
            ]
        );
    }

    /// #17: a watcher that began after the first plan measured time from a later attempt's plan.
    #[test]
    fn late_watcher_measures_from_the_start_of_transfer() {
        let mut view = view(4, "file");
        view.destinations.iter_mut().for_each(|d| d.verdict = Some(Verdict::Done));
        (view.outcome, view.began_unix_ms) = (Some(Outcome::Done), Some(1_000));
        let seen =
            |is_whole| EventTimes { is_whole, planned: Some(7_000), ended: [("a".to_owned(), 9_000)].into() };
        assert_eq!(summary(&view, &seen(false)).took_s, 8.0);
        assert_eq!(summary(&view, &seen(true)).took_s, 2.0);
    }

    /// #17: a transfer that was forgotten while watched was called wrong usage.
    #[test]
    fn only_a_transfer_that_never_was_is_wrong_usage() {
        let missing = || ClientError::Refused { status: 404, error: "no transfer 4".to_owned() };
        let said = |was_known| {
            let error = broken_off(TransferId(4), was_known, missing());
            (format!("{error:#}"), crate::exit::code(&error))
        };
        assert_eq!(said(false), ("no transfer 4".to_owned(), ExitCode::from(crate::exit::USAGE)));
        let forgotten = "the controller no longer knows transfer 4".to_owned();
        assert_eq!(said(true), (forgotten, ExitCode::from(crate::exit::FAILED)));
    }

    #[test]
    fn last_line_names_a_link_with_a_wrong_capacity() {
        let view = view(4, "file");
        let mut summary = summary(&view, &EventTimes::default());
        let mbps = BitRate::mbps;
        let (from, to) = ("nyc".to_owned(), "sfo".to_owned());
        let (declared, carried, is_limit) = (mbps(1), mbps(10), false);
        summary.wrong_links.extend(wrong_link(&EventKind::WrongCapacity {
            from,
            to,
            declared,
            carried,
            is_limit,
        }));
        let last = table(&summary, &view).lines().last().map(str::to_owned);
        let said = "link nyc to sfo: declared as 1 Mbit/s, carried at least 10 Mbit/s; plans use the carried rate \
                    until the topology is corrected";
        assert_eq!(last.as_deref(), Some(said));
    }

    /// #17: if no data had to be sent, the summary was `1 MiB by -: planned -, bound -`.
    #[test]
    fn existing_copies_are_reported_as_nothing_to_send() {
        let mut view = view(4, "file");
        view.destinations.iter_mut().for_each(|d| d.verdict = Some(Verdict::Done));
        view.outcome = Some(Outcome::Done);
        let seen = EventTimes { is_whole: true, ..EventTimes::default() };
        assert_eq!(facts(&summary(&view, &seen), &view), "1.00 MB was there already: nothing had to be sent");
        // A restarted controller has forgotten the plan.
        assert_eq!(facts(&summary(&view, &EventTimes::default()), &view), "1.00 MB");
        (view.scheme, view.rates.planned_bps, view.rates.bound_bps) =
            (Some(Scheme::Packed), Some(2_000_000), Some(3_000_000));
        let sent = EventTimes { planned: Some(1_000), ended: [("a".to_owned(), 3_000)].into(), ..seen };
        let summary = summary(&view, &sent);
        assert_eq!((summary.took_s, summary.rate_bps, summary.was_there), (2.0, Some(4_000_000), false));
        assert_eq!(
            facts(&summary, &view),
            "1.00 MB by packed: planned 2 Mbit/s, bound 3 Mbit/s; 1 attempt; 1 stripe a hop"
        );
        view.rates.limit_bps = Some(1_000_000);
        let said = facts(&self::summary(&view, &sent), &view);
        assert!(said.contains("bound 3 Mbit/s, source held to 1 Mbit/s by --bwlimit; "), "{said}");
    }

    /// #53: a resumed transfer's rate counted bytes that an earlier transfer had brought.
    #[test]
    fn rate_counts_only_bytes_that_moved() {
        let mut view = view(4, "file");
        view.destinations.truncate(2);
        view.destinations.iter_mut().for_each(|d| d.verdict = Some(Verdict::Done));
        (view.destinations[0].moved_bytes, view.destinations[1].moved_bytes) = (0, 250_000);
        view.outcome = Some(Outcome::Done);
        let ended = [("a".to_owned(), 2_000), ("b".to_owned(), 3_000)].into();
        let summary = summary(&view, &EventTimes { is_whole: true, planned: Some(1_000), ended });
        let rates: Vec<_> = summary.destinations.iter().map(|d| (d.took_s, d.rate_bps)).collect();
        assert_eq!(rates, [(Some(1.0), None), (Some(2.0), Some(1_000_000))]);
        assert_eq!(summary.rate_bps, Some(1_000_000));
    }
}
