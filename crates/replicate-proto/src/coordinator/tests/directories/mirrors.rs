//! Rules of directories: filters, deletes, backups, and conflicts at destinations.

use super::*;
use crate::control::{DirectoryRules, EntryCounts, LeftCause};
use anabranch_sets::deletes::MaxDelete;
use anabranch_sets::filter::Rules;
use anabranch_sets::folding::Collisions;
use anabranch_sets::folding::Folding;
use anabranch_sets::metadata::{MetadataRules, OwnerMapping};
use anabranch_sets::publication::Publication;

fn filter(rule: &str) -> Rules {
    Rules { rules: vec![rule.to_owned()], ..Rules::default() }
}

#[test]
fn conflict_at_one_destination_does_not_stop_the_others() {
    let mut w = World::new(internet2());
    let request = directory_request(&mut w, &[3, 8]);
    w.directories.entry(SiteId(3)).or_default().conflicts = 4;
    let id = w.submit(request);
    let status = w.run_to_end(id);
    let reason = "s3: in/x: changed here".to_owned();
    assert_eq!(*verdict(&status, 3), Verdict::Conflict { reason });
    assert_eq!((verdict(&status, 8), status.attempts), (&Verdict::Done, 1));
    assert!(!w.seen(|e| matches!(e, EventKind::Stopped { .. })));
    assert_eq!(status.outcome, Some(Outcome::Conflicts));
    assert_eq!(status.outcome.map(Outcome::exit_code), Some(3));
    let entries = EntryCounts { surplus: Some(2), deleted: 1, conflicts: 4, unsettled: 0 };
    assert_eq!(status.destinations[0].entries, Some(entries));
    let left = &status.destinations[0].left;
    assert_eq!((left.len(), left[0].cause), (3, LeftCause::Conflict), "the site's list is bounded");
    let snapshot = w.coordinator.snapshot(id).expect("it is remembered");
    assert_eq!(&snapshot.destinations[0].left, left);
    assert!(snapshot.destinations[1].left.is_empty());
}

#[test]
fn conflicts_beside_a_failure_are_partial_success() {
    let mut w = World::new(internet2());
    let request = directory_request(&mut w, &[3, 8]);
    w.directories.entry(SiteId(3)).or_default().conflicts = 1;
    w.sites[8].disk_full = true;
    let id = w.submit(request);
    let status = w.run_to_end(id);
    assert!(matches!(verdict(&status, 3), Verdict::Conflict { .. }), "{:?}", verdict(&status, 3));
    assert_eq!(status.outcome, Some(Outcome::SomeFailed));
}

/// A world whose source has two names that are equal without their case, and whose destination 3
/// ignores the case.
fn world_with_equal_names() -> (World, TransferRequest) {
    let mut w = World::new(internet2());
    let request = directory_request(&mut w, &[3, 8]);
    let of = |folding| Collisions { folding, entries: 2, first: ("x\ny".to_owned(), "X".repeat(9_000)) };
    w.collisions = vec![of(Folding::CASE), of(Folding::CASE_AND_FORM)];
    w.directories.entry(SiteId(3)).or_default().folding = Folding::CASE;
    (w, request)
}

#[test]
fn destination_that_ignores_case_is_refused_alone() {
    let (mut w, request) = world_with_equal_names();
    let id = w.submit(request);
    let status = w.run_to_end(id);
    let Verdict::Failed { reason } = verdict(&status, 3) else { panic!("{status:?}") };
    assert!(
        reason.starts_with("s3: in/: nothing was sent: the file system ignores case in names"),
        "{reason}"
    );
    assert!(reason.contains("2 entries") && !reason.contains('\n') && reason.len() < 1_500, "{reason}");
    assert!(w.sites[3].have.is_empty() && !w.sites[3].finished);
    assert_eq!(*verdict(&status, 8), Verdict::Done);
    assert_eq!(status.outcome, Some(Outcome::SomeFailed));
}

#[test]
fn names_equal_under_another_folding_are_sent() {
    let (mut w, request) = world_with_equal_names();
    w.directories.entry(SiteId(3)).or_default().folding = Folding::FORM;
    let id = w.submit(request);
    assert_eq!(w.run_to_end(id).outcome, Some(Outcome::Done));
}

#[test]
fn comparison_with_equal_names_is_made() {
    let (mut w, mut request) = world_with_equal_names();
    request.rules.compare = true;
    w.length = HEAD;
    let id = w.submit(request);
    let status = w.run_to_end(id);
    assert!(!matches!(verdict(&status, 3), Verdict::Failed { .. }), "{:?}", verdict(&status, 3));
}

#[test]
fn comparison_sends_the_head_and_reports_differences() {
    let mut w = World::new(internet2());
    let mut request = directory_request(&mut w, &[3, 8]);
    request.rules.compare = true;
    w.length = HEAD;
    w.sites[3].other = Some((500, FileHash([9; 32])));
    w.sites[8].other = Some((HEAD, HASH));
    w.directories.entry(SiteId(3)).or_default().missing = 2;
    let id = w.submit(request);
    assert_eq!(works(&mut w, id), [[range(0, HEAD)]]);
    let status = w.coordinator.status(id).expect("it is remembered");
    assert_eq!((status.attempts, status.outcome), (1, Some(Outcome::Differs)));
    assert_eq!(status.outcome.map(Outcome::exit_code), Some(4));
    let reason = "2 missing".to_owned();
    assert_eq!(*verdict(&status, 3), Verdict::Differs { reason });
    assert_eq!(*verdict(&status, 8), Verdict::Done);
    let comparison = status.destinations[0].comparison.clone().expect("it compared");
    assert_eq!((comparison.missing, comparison.named.len()), (2, 3), "the site's list is bounded");
    let snapshot = w.coordinator.snapshot(id).expect("it is remembered");
    assert_eq!(snapshot.destinations[0].comparison, Some(comparison));
}

#[test]
fn comparison_soon_reports_an_absent_site_as_unreachable() {
    let mut w = World::new(internet2());
    let mut request = directory_request(&mut w, &[3, 8]);
    request.rules.compare = true;
    w.length = HEAD;
    w.sites[3].other = Some((HEAD, HASH));
    w.kill(SiteId(8));
    let begun = w.now;
    let id = w.submit(request);
    let status = w.run_to_end(id);
    assert_eq!(status.outcome, Some(Outcome::SomeFailed));
    assert!(matches!(verdict(&status, 8), Verdict::Unreachable { .. }), "{:?}", verdict(&status, 8));
    assert!(w.now.saturating_since(begun) < Duration::from_secs(60));
}

#[test]
fn comparison_does_not_join_a_transfer() {
    let mut w = World::new(internet2());
    let plain = directory_request(&mut w, &[3]);
    w.submit(plain.clone());
    let rules = DirectoryRules { compare: true, ..DirectoryRules::default() };
    let refused = w.coordinator.submit_or_attach(w.now, TransferRequest { rules, ..plain.clone() });
    let error = refused.expect_err("the transfer writes").to_string();
    assert!(error.contains("compare unset, not on"), "{error}");
    let metadata = MetadataRules { owners: None, xattrs: true };
    let rules = DirectoryRules { metadata, ..DirectoryRules::default() };
    let refused = w.coordinator.submit_or_attach(w.now, TransferRequest { rules, ..plain.clone() });
    let error = refused.expect_err("the transfer takes no attributes").to_string();
    assert!(error.contains("other metadata"), "{error}");
    let rules = DirectoryRules { publish: Publication::Snapshot { keep: 2 }, ..DirectoryRules::default() };
    let refused = w.coordinator.submit_or_attach(w.now, TransferRequest { rules, ..plain });
    let error = refused.expect_err("the transfer writes in place").to_string();
    assert!(error.contains("publish unset, not snapshot keep=2"), "{error}");
}

#[test]
fn rules_and_source_reach_every_site() {
    let mut w = World::new(internet2());
    let mut request = directory_request(&mut w, &[3]);
    let rules = DirectoryRules {
        filter: filter("- *.tmp"),
        delete: Some(MaxDelete::Entries(7)),
        metadata: MetadataRules { owners: Some(OwnerMapping::Numbers), xattrs: true },
        ..DirectoryRules::default()
    };
    request.rules = DirectoryRules { backup: Some("./old//".to_owned()), ..rules.clone() };
    let id = w.submit(request.clone());
    w.run_to_end(id);
    let normal = DirectoryRules { backup: Some("old/".to_owned()), ..rules };
    for site in [0, 3] {
        let seen = &w.directories[&SiteId(site)].rules;
        assert!(!seen.is_empty() && seen.iter().all(|seen| *seen == normal), "{seen:?}");
    }
    // Another directory of the same site is another source, and so is another site.
    w.sites[3].finished = false;
    w.sites[3].have = vec![];
    request.source_path = "/other/".to_owned();
    let id = w.submit(request);
    w.run_to_end(id);
    let origins = &w.directories[&SiteId(3)].origins;
    assert!(origins.len() == 2 && origins[0] != origins[1] && !origins.contains(&0), "{origins:?}");
}

#[test]
fn rules_without_metadata_have_their_earlier_text() {
    let text = |rules: DirectoryRules| serde_json::to_string(&rules).expect("rules are JSON");
    let publish = Publication::Snapshot { keep: 0 };
    assert_eq!(text(DirectoryRules { publish, ..DirectoryRules::default() }), r#"{"publish":"snapshot"}"#);
    let metadata = MetadataRules { owners: Some(OwnerMapping::Numbers), xattrs: true };
    let with = DirectoryRules { metadata, ..DirectoryRules::default() };
    assert!(!with.is_open());
    assert_eq!(text(with), r#"{"metadata":{"owners":"numbers","xattrs":true}}"#);
}

#[test]
fn rules_that_could_delete_wrongly_are_refused() {
    let mut w = World::new(internet2());
    let plain = directory_request(&mut w, &[3]);
    let now = w.now;
    let mut refused = |rules: DirectoryRules, text: &str| {
        let request = TransferRequest { rules, ..plain.clone() };
        let error = w.coordinator.submit(now, request).expect_err(text).to_string();
        assert!(error.contains(text) && !error.contains('\n'), "{error}");
    };
    let open = DirectoryRules::default;
    let delete = Some(MaxDelete::default());
    for (filter, text) in [
        (Rules { size_bytes_max: Some(9), ..Rules::default() }, "--delete with --max-size"),
        (Rules { age_ns_min: Some(9), ..Rules::default() }, "--delete with --min-age"),
        (Rules { markers: vec!["x".to_owned()], ..Rules::default() }, "--delete with --exclude-if-present"),
    ] {
        refused(DirectoryRules { filter, delete, ..open() }, text);
    }
    let backup = |name: &str| DirectoryRules { backup: Some(name.to_owned()), ..open() };
    refused(backup("in"), "neither may contain the other");
    refused(backup("in/old"), "neither may contain the other");
    refused(backup("/srv/old"), "without a slash at its beginning");
    refused(backup("../old"), "outside the folder");
    let publish = Publication::Snapshot { keep: 2 };
    refused(DirectoryRules { publish, ..backup("old") }, "--backup with --publish snapshot");
    refused(DirectoryRules { filter: filter(&"x".repeat(33_000)), ..open() }, "bytes of a filter 33");
    let file = TransferRequest { rules: backup("old"), ..request(0, &[3]) };
    let said = w.coordinator.submit(now, file).expect_err("it is a file").to_string();
    assert!(said.contains("are for directories"), "{said}");
}

#[test]
fn running_transfer_with_another_filter_is_not_joined() {
    let mut w = World::new(internet2());
    let plain = directory_request(&mut w, &[3]);
    let id = w.submit(plain.clone());
    let rules = DirectoryRules { filter: filter("- a"), ..DirectoryRules::default() };
    let other = TransferRequest { rules, ..plain.clone() };
    let refused = w.coordinator.submit_or_attach(w.now, other).expect_err("it sends other entries");
    assert!(matches!(refused, SubmitError::RunsOtherwise { transfer, .. } if transfer == id), "{refused}");
    assert_eq!(w.coordinator.submit_or_attach(w.now, plain), Ok(SubmitResult::Attached(id)));
}

#[test]
fn counts_and_conflicts_survive_a_restart() {
    let mut w = World::new(internet2());
    let request = directory_request(&mut w, &[3]);
    w.directories.entry(SiteId(3)).or_default().conflicts = 1;
    let id = w.submit(request);
    let before = w.run_to_end(id);
    let snapshot = w.coordinator.snapshot(id).expect("it is remembered");
    let text = serde_json::to_string(&snapshot).expect("a snapshot is JSON");
    let snapshot: TransferSnapshot = serde_json::from_str(&text).expect("we wrote it");
    assert_eq!(snapshot.destinations[0].entries, before.destinations[0].entries);
    assert_eq!(snapshot.outcome, Some(Outcome::Conflicts));
}
