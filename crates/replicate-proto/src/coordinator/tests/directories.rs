//! Directories: the head of the stream first, then what a destination lacks.

mod mirrors;

use super::*;

const HEAD: u64 = 100_000;

/// A request for a directory, whose source knows the snapshot.
fn directory_request(w: &mut World, destinations: &[u16]) -> TransferRequest {
    w.head_bytes = Some(HEAD);
    w.sites[0].remembers_hash = true;
    let mut request = request(0, destinations);
    request.source_path = "/data/".to_owned();
    request.destinations.iter_mut().for_each(|d| d.path = "in/".to_owned());
    request
}

/// Work of each attempt of the source, in order.
fn works(w: &mut World, id: TransferId) -> Vec<Vec<ByteRange>> {
    let mut works: Vec<(Run, Vec<ByteRange>)> = Vec::new();
    while w.outcome(id).is_none() {
        w.tick();
        if let Some(program) = &w.sites[0].program
            && works.last().is_none_or(|(run, _)| *run != program.run)
        {
            works.push((program.run, program.groups[0].work.clone()));
        }
    }
    works.into_iter().map(|(_, work)| work).collect()
}

fn range(start: u64, end: u64) -> ByteRange {
    ByteRange { start, end }
}

#[test]
fn destination_with_another_snapshot_gets_the_head_first() {
    let mut w = World::new(internet2());
    let request = directory_request(&mut w, &[3, 8]);
    w.sites[3].other = Some((500, FileHash([9; 32])));
    w.directories.entry(SiteId(3)).or_default().local = vec![range(200_000, LENGTH)];
    w.directories.entry(SiteId(8)).or_default().local = vec![range(150_000, LENGTH)];
    let id = w.submit(request);
    assert_eq!(works(&mut w, id), [[range(0, HEAD)], [range(HEAD, 200_000)]]);
    let status = w.coordinator.status(id).expect("it is remembered");
    assert_eq!((status.outcome, status.attempts), (Some(Outcome::Done), 2));
    assert!(!w.seen(|e| matches!(e, EventKind::Stopped { .. })), "the head's end is no failure");
}

/// #54: an attempt sent the union of the bytes that destinations lack to each of them.
#[test]
fn destinations_get_no_bytes_that_they_have() {
    let config = CoordinatorConfig { surplus_bytes_min: 1_000, ..CoordinatorConfig::default() };
    let mut w = World::with(internet2(), config);
    let request = directory_request(&mut w, &[3, 7, 8]);
    for site in [3, 7, 8] {
        w.sites[site].have = vec![range(0, HEAD)];
        w.directories.entry(SiteId(site as u16)).or_default().arriving = Some(HASH);
    }
    w.sites[3].have.push(range(400_000, LENGTH));
    w.sites[7].have.push(range(400_000, LENGTH));
    let id = w.submit(request);
    assert_eq!(works(&mut w, id), [[range(HEAD, 400_000)], [range(400_000, LENGTH)]]);
    let status = w.coordinator.status(id).expect("it is remembered");
    assert_eq!((status.outcome, status.attempts), (Some(Outcome::Done), 2));
    let moved: Vec<u64> = status.destinations.iter().map(|d| d.moved_bytes).collect();
    assert_eq!(moved, [300_000, 300_000, 900_000]);
    assert!(!w.seen(|e| matches!(e, EventKind::Stopped { .. })), "the end of a class is no failure");
}

/// A world in which these destinations have the head, and lack other ranges.
fn world_of_classes(lacked: &[(u16, u64, u64)]) -> (World, TransferRequest) {
    let config = CoordinatorConfig { surplus_bytes_min: 1_000, ..CoordinatorConfig::default() };
    let mut w = World::with(internet2(), config);
    let sites: Vec<u16> = lacked.iter().map(|(site, ..)| *site).collect();
    let request = directory_request(&mut w, &sites);
    for &(site, start, end) in lacked {
        w.sites[usize::from(site)].have = ranges::normal(&[range(0, start), range(end, LENGTH)], LENGTH);
        w.directories.entry(SiteId(site)).or_default().arriving = Some(HASH);
    }
    (w, request)
}

#[test]
fn new_destination_gets_the_head_with_its_first_class() {
    let (mut w, request) = world_of_classes(&[(3, HEAD, 400_000), (7, HEAD, 400_000), (8, 0, LENGTH)]);
    w.directories.entry(SiteId(8)).or_default().arriving = None;
    let id = w.submit(request);
    assert_eq!(works(&mut w, id), [[range(0, 400_000)], [range(400_000, LENGTH)]]);
    let status = w.coordinator.status(id).expect("it is remembered");
    assert_eq!((status.outcome, status.destinations[2].moved_bytes), (Some(Outcome::Done), LENGTH));
}

#[test]
fn next_class_does_not_wait_for_written_files() {
    let (mut w, request) = world_of_classes(&[(3, HEAD, 200_000), (8, HEAD, LENGTH)]);
    w.directories.entry(SiteId(3)).or_default().writes_slowly = true;
    let id = w.submit(request);
    w.run_for(Duration::from_secs(20));
    let status = w.coordinator.status(id).expect("it is remembered");
    assert_eq!(status.destinations[0].verdict, None);
    assert_eq!(*verdict(&status, 8), Verdict::Done, "{status:?}");
    w.directories.entry(SiteId(3)).or_default().writes_slowly = false;
    assert_eq!(w.run_to_end(id).outcome, Some(Outcome::Done));
}

#[test]
fn slow_class_is_postponed() {
    let (mut w, request) = world_of_classes(&[(3, HEAD, 200_000), (8, 200_000, LENGTH)]);
    w.sites[3].slow_divisor = 10_000;
    let id = w.submit(request);
    w.run_for(Duration::from_secs(40));
    let status = w.coordinator.status(id).expect("it is remembered");
    assert_eq!((status.destinations[0].postponed, verdict(&status, 8)), (true, &Verdict::Done), "{status:?}");
}

#[test]
fn classes_are_limited_by_number() {
    let config = CoordinatorConfig { surplus_bytes_min: 1, ..CoordinatorConfig::default() };
    let mut w = World::with(internet2(), config);
    let destinations: Vec<u16> = (1..=8).collect();
    let request = directory_request(&mut w, &destinations);
    for &site in &destinations {
        // Four classes of two destinations, and one of each destination.
        let (own, pair) = (u64::from(site - 1), u64::from((site - 1) / 2));
        let (pair, own) = (HEAD + 50_000 * pair, 300_000 + 50_000 * own);
        w.sites[usize::from(site)].have =
            vec![range(0, pair), range(pair + 50_000, own), range(own + 50_000, LENGTH)];
        w.directories.entry(SiteId(site)).or_default().arriving = Some(HASH);
    }
    let id = w.submit(request);
    let works = works(&mut w, id);
    assert_eq!(works.len(), 9, "{works:?}");
    assert_eq!(w.outcome(id), Some(Outcome::Done));
}

#[test]
fn empty_destinations_get_head_and_contents_in_one_attempt() {
    let mut w = World::new(internet2());
    let request = directory_request(&mut w, &[3, 8]);
    let id = w.submit(request);
    assert_eq!(works(&mut w, id), [whole()]);
    assert_eq!(w.outcome(id), Some(Outcome::Done));
}

#[test]
fn head_is_not_sent_twice_after_a_failure() {
    let mut w = World::new(internet2());
    let request = directory_request(&mut w, &[3]);
    w.sites[3].other = Some((500, FileHash([9; 32])));
    w.sites[3].have = vec![range(0, HEAD), range(300_000, 400_000)];
    w.directories.entry(SiteId(3)).or_default().arriving = Some(HASH);
    w.directories.entry(SiteId(3)).or_default().local = vec![range(400_000, LENGTH)];
    let id = w.submit(request);
    assert_eq!(works(&mut w, id), [[range(HEAD, 300_000)]]);
    assert_eq!(w.outcome(id), Some(Outcome::Done));
}

#[test]
fn files_that_change_at_the_source_are_left() {
    let mut w = World::new(internet2());
    let request = directory_request(&mut w, &[3]);
    w.unsettled.ranges = vec![range(200_000, 300_000)];
    let id = w.submit(request);
    assert_eq!(works(&mut w, id), [[range(0, 200_000), range(300_000, LENGTH)]]);
    let status = w.coordinator.status(id).expect("it is remembered");
    assert_eq!((status.outcome, status.attempts), (Some(Outcome::Conflicts), 1));
    assert_eq!(status.destinations[0].entries.map(|entries| entries.unsettled), Some(1));
}

/// The source learns of the change while it sends, and the destination finds a wrong hash.
#[test]
fn file_that_changes_while_sent_costs_an_attempt() {
    let mut w = World::new(internet2());
    let request = directory_request(&mut w, &[3]);
    w.sites[3].finish_fails = 1;
    w.directories.entry(SiteId(3)).or_default().local = vec![range(HEAD, 200_000), range(300_000, LENGTH)];
    let id = w.submit(request);
    while !w.seen(|e| matches!(e, EventKind::Started)) {
        w.tick();
    }
    w.unsettled.ranges = vec![range(200_000, 300_000)];
    let status = w.run_to_end(id);
    assert_eq!(status.outcome, Some(Outcome::Conflicts), "{status:?}");
    assert!((2..=3).contains(&status.attempts), "{} attempts", status.attempts);
}

#[test]
fn entries_left_out_of_the_scan_are_named() {
    let mut w = World::new(internet2());
    let request = directory_request(&mut w, &[3, 8]);
    w.unsettled.left_out = Some("data/log: changed while it was read".to_owned());
    let id = w.submit(request);
    let status = w.run_to_end(id);
    let reason = "s0: data/log: changed while it was read".to_owned();
    for site in [3, 8] {
        assert_eq!(*verdict(&status, site), Verdict::Conflict { reason: reason.clone() });
    }
    assert_eq!(status.outcome.map(Outcome::exit_code), Some(3));
}

/// #54: each attempt sent the head only, for a destination that it did not serve. After twelve such
/// attempts, the served destination was given up.
#[test]
fn postponed_destination_without_head_delays_no_other_destination() {
    let mut w = World::new(internet2());
    let request = directory_request(&mut w, &[3, 8]);
    w.sites[3].other = Some((500, FileHash([9; 32])));
    w.sites[3].is_busy = true;
    w.sites[8].slow_divisor = 100;
    let id = w.submit(request);
    w.run_for(Duration::from_secs(20));
    // The next inquiry asks both destinations.
    w.kill(SiteId(0));
    w.start(SiteId(0));
    w.run_for(Duration::from_secs(25));
    let status = w.coordinator.status(id).expect("it is remembered");
    assert_eq!((status.outcome, verdict(&status, 8)), (None, &Verdict::Done));
    w.sites[3].is_busy = false;
    assert_eq!(w.run_to_end(id).outcome, Some(Outcome::Done));
}

/// A transfer of an earlier snapshot of the directory left that snapshot's head and ranges.
#[test]
fn ranges_of_another_snapshot_count_for_nothing() {
    let mut w = World::new(internet2());
    let request = directory_request(&mut w, &[3]);
    w.sites[3].have = vec![range(0, LENGTH - 1)];
    w.directories.entry(SiteId(3)).or_default().arriving = Some(FileHash([9; 32]));
    w.directories.entry(SiteId(3)).or_default().local = vec![range(400_000, LENGTH)];
    let id = w.submit(request);
    assert_eq!(works(&mut w, id), [whole()]);
    assert_eq!(w.outcome(id), Some(Outcome::Done));
}

#[test]
fn site_that_loses_every_head_is_given_up() {
    let mut w = World::new(internet2());
    let request = directory_request(&mut w, &[3]);
    w.sites[3].other = Some((500, FileHash([9; 32])));
    w.directories.entry(SiteId(3)).or_default().loses_heads = true;
    let id = w.submit(request);
    w.run_to_end(id);
    let status = w.coordinator.status(id).expect("it is remembered");
    assert_eq!(status.outcome, Some(Outcome::Failed));
    assert!(status.attempts < 40, "{} attempts", status.attempts);
}

#[test]
fn files_are_not_sent_to_names_of_directories() {
    for (source, destination) in [("/data/", "in"), ("/data/in", "in/")] {
        let mut w = World::new(internet2());
        let mut request = request(0, &[3]);
        request.source_path = source.to_owned();
        request.destinations[0].path = destination.to_owned();
        let refused = w.coordinator.submit(w.now, request).expect_err("one of them is no directory");
        assert_eq!(refused, SubmitError::FileAndDirectory { path: destination.to_owned() });
        assert!(refused.to_string().contains("end with a slash"), "{refused}");
    }
}
