//! The status table.

use super::*;
use anabranch_replicate::wire::{DestinationView, HopRequest, RatesView};
use anabranch_replicate_proto::coordinator::{Outcome, PhaseName, SchemeChoice};

pub(in super::super) fn view(id: u64, path: &str) -> TransferView {
    let to = |site: &str| DestinationView {
        site: site.to_owned(),
        path: path.to_owned(),
        verified_bytes: 500_000,
        moved_bytes: 1_000_000,
        rate_bps: 0,
        postponed: false,
        away: None,
        entries: None,
        left: Vec::new(),
        comparison: None,
        verdict: None,
    };
    TransferView {
        id,
        phase: PhaseName::Running,
        outcome: None,
        exit_code: None,
        source: "paris".to_owned(),
        source_path: path.to_owned(),
        scheme_asked: SchemeChoice::Auto,
        scheme: None,
        hop: HopRequest::default(),
        rates: RatesView::default(),
        attempts: 1,
        length_bytes: Some(1_000_000),
        hash: None,
        planned_with: vec![],
        corrupt: 0,
        suspects: vec![],
        congestion_controls: vec![],
        last_trouble: None,
        began_unix_ms: Some(1_795_438_443_000),
        ended_unix_ms: None,
        destinations: ["a", "b", "c", "d", "e", "f"].map(to).into(),
    }
}

/// #17: all transfers ever were listed, oldest first and without a time; a long name widened the
/// table to 400 columns, a line break in a name broke it.
#[test]
fn newest_transfers_come_first_and_names_fit_one_row() {
    let now = 1_795_438_443_000 + 90_000;
    let listed = table((1..=25).map(|id| view(id, "file")).collect(), false, now);
    let first_words: Vec<_> = listed.lines().map(|l| l.split_whitespace().next().unwrap_or("")).collect();
    assert_eq!((first_words.len(), first_words[1], first_words[20]), (22, "25", "6"));
    assert!(listed.ends_with("the newest 20 of 25: --all lists the others, too\n"), "{listed}");
    assert_eq!(table((1..=25).map(|id| view(id, "file")).collect(), true, now).lines().count(), 26);
    let hostile = table(vec![view(1, &format!("a\nb{}", "x".repeat(250))), view(2, "ok")], false, now);
    assert_eq!(hostile.lines().count(), 3, "{hostile}");
    assert!(hostile.lines().all(|l| l.chars().count() < 180), "{hostile}");
    let row = listed.lines().nth(1).expect("a row");
    for part in
        ["1.00 MB", "running", "2026-11-23 12:54:03", "1 min 30 s so far", "a 50 %, b 50 %", " and 2 more"]
    {
        assert!(row.contains(part), "{part}: {row}");
    }
}

#[test]
fn single_transfer_shows_its_failure_and_duration() {
    let mut one = view(7, "file");
    (one.outcome, one.ended_unix_ms) = (Some(Outcome::SomeFailed), Some(1_795_438_443_000 + 5_000));
    one.destinations[0].verdict = Some(Verdict::Failed { reason: "no\nspace".to_owned() });
    one.destinations[1].verdict = Some(Verdict::Done);
    let said = table(vec![one], true, 0);
    assert!(said.contains("some failed") && said.contains(" 5 s "), "{said}");
    assert!(said.ends_with("a: failed: no\u{fffd}space\n"), "{said}");
}

#[test]
fn links_with_a_wrong_capacity_come_first() {
    let link = |to: &str, carried_mbps: Option<u64>, is_limit, planned_mbps: u64| LinkView {
        id: 0,
        from: "nyc".to_owned(),
        to: to.to_owned(),
        capacity_bps: 100_000_000,
        carried_bps: carried_mbps.map(|mbps| mbps * 1_000_000),
        is_limit,
        planned_bps: Some(planned_mbps * 1_000_000),
        delay_s: 0.0,
        cost: 1.0,
    };
    let listed = links_table(&[
        link("ams", None, false, 100),
        link("lon", Some(3), false, 100),
        link("sfo", Some(10), true, 10),
    ]);
    let rows: Vec<_> =
        listed.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    assert_eq!(
        rows,
        [
            "from to declared carried in plans",
            "nyc sfo 100 Mbit/s 10 Mbit/s 10 Mbit/s correct the topology",
            "nyc ams 100 Mbit/s - 100 Mbit/s",
            "nyc lon 100 Mbit/s at least 3 Mbit/s 100 Mbit/s",
        ]
    );
}
