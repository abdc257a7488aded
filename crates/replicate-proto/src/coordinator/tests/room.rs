//! Sites without room: other destinations are served first, and the site receives its part later.

use super::*;

/// Maximum delay of a destination by one site without room: two attempts, and one pause.
const DELAY_MAX: Duration = Duration::from_secs(10);

fn configs() -> [CoordinatorConfig; 2] {
    let joint = CoordinatorConfig { joint: Some(JointConfig::default()), ..CoordinatorConfig::default() };
    [CoordinatorConfig::default(), joint]
}

fn done(w: &World, id: TransferId, site: u16) -> bool {
    let status = w.coordinator.status(id).expect("it is remembered");
    status.destinations.iter().any(|d| d.site == SiteId(site) && d.verdict == Some(Verdict::Done))
}

/// Time until the site has the file.
fn served_after(w: &mut World, id: TransferId, site: u16) -> Duration {
    let begun = w.now;
    while !done(w, id, site) {
        assert!(w.now < begun + Duration::from_secs(3_600), "{:?}", w.coordinator.status(id));
        w.tick();
    }
    w.now.saturating_since(begun)
}

/// #48: a destination without room stopped the attempt for all other destinations, without a time
/// limit.
#[test]
fn busy_destination_never_delays_other_destinations() {
    for config in configs() {
        // In the tree, site 3 passes on the data of site 5, and sites 7 and 8 are downstream of
        // both.
        for busy in [&[3][..], &[5], &[3, 5], &[3, 7, 8]] {
            let mut w = World::with(internet2(), config.clone());
            busy.iter().for_each(|site| w.sites[*site].is_busy = true);
            let id = w.submit(request(0, &[2, 3, 5, 6, 7, 8]));
            for site in [2, 3, 5, 6, 7, 8].into_iter().filter(|site| !busy.contains(site)) {
                let took = served_after(&mut w, id, site as u16);
                assert!(took <= DELAY_MAX, "{site} beside {busy:?}: {took}");
            }
            w.run_for(Duration::from_secs(3_600));
            let status = w.coordinator.status(id).expect("it is remembered");
            assert_eq!((status.outcome, status.phase), (None, PhaseName::Waiting), "{busy:?}");
            assert!(w.seen(|e| matches!(e, EventKind::Postponed { site, reason }
                if site.index() == busy[0] && reason.contains("no room at s"))));
            busy.iter().for_each(|site| w.sites[*site].is_busy = false);
            assert_eq!(w.run_to_end(id).outcome, Some(Outcome::Done), "{busy:?}");
        }
    }
}

/// #48: a relay without room stopped the attempt for destinations that do not need it.
#[test]
fn busy_relay_is_planned_around_or_waited_for() {
    for config in configs() {
        // Site 1 is on the shorter path to 3, and on the only path to 4.
        let mut w = World::with(topology(6, &[(0, 1), (1, 3), (0, 2), (2, 5), (5, 3), (1, 4)]), config);
        w.sites[1].is_busy = true;
        let id = w.submit(request(0, &[3, 4]));
        let took = served_after(&mut w, id, 3);
        assert!(took <= DELAY_MAX, "{took}");
        w.run_for(Duration::from_secs(3_600));
        let status = w.coordinator.status(id).expect("it is remembered");
        assert_eq!((status.outcome, status.phase), (None, PhaseName::Waiting), "4 waits for the relay");
        w.sites[1].is_busy = false;
        assert_eq!(w.run_to_end(id).outcome, Some(Outcome::Done));
    }
}

/// #48: after room became free, a transfer still waited to the end of a pause of up to 30 s.
#[test]
fn waiting_destination_is_asked_when_another_transfer_leaves() {
    for config in configs() {
        let mut w = World::with(topology(4, &[(0, 2), (0, 3), (1, 3)]), config);
        (w.sites[3].has_one_place, w.sites[3].slow_divisor) = (true, 500);
        let first = w.submit(request(1, &[3]));
        w.run_for(Duration::from_secs(2));
        let second = w.submit(request(0, &[2, 3]));
        let took = served_after(&mut w, second, 2);
        assert!(took <= DELAY_MAX, "{took}");
        w.run_to_end(first);
        assert!(
            w.now > Instant::ZERO + Duration::from_secs(150),
            "the first takes longer than the longest pause"
        );
        assert_eq!(w.coordinator.status(second).expect("it is remembered").phase, PhaseName::Waiting);
        w.sites[3].slow_divisor = 1;
        let took = served_after(&mut w, second, 3);
        assert!(took <= Duration::from_secs(3), "{took}");
    }
}

/// #48: attempts that only waited for room counted towards the limit of 10,000 attempts.
#[test]
fn attempts_without_room_are_not_counted() {
    let config = CoordinatorConfig { attempts_max: 20, ..CoordinatorConfig::default() };
    let mut w = World::with(internet2(), config);
    w.sites[3].is_busy = true;
    let id = w.submit(request(0, &[3, 5]));
    w.run_for(Duration::from_secs(3_600));
    assert!(w.coordinator.status(id).expect("it is remembered").attempts > 20);
    w.restart_controller();
    w.run_for(Duration::from_secs(600));
    w.sites[3].is_busy = false;
    assert_eq!(w.run_to_end(id).outcome, Some(Outcome::Done));
}

/// #48: a site that sometimes reports a lack of room must not stop the other destinations
/// repeatedly.
#[test]
fn busy_site_reports_never_stop_other_destinations_repeatedly() {
    let mut w = World::new(internet2());
    let id = w.submit(request(0, &[3, 5, 8]));
    let begun = w.now;
    // The site sets up its part, and reports a lack of room once data flows.
    while !(done(&w, id, 5) && done(&w, id, 8)) {
        w.tick();
        if let Some(run) = w.sites[3].program.as_ref().map(|p| p.run) {
            let (kind, reason) = (FailureKind::Busy, "no room".to_owned());
            w.coordinator.handle_report(w.now, SiteId(3), Report::Failed { run, kind, reason });
        }
        assert!(w.now < begun + DELAY_MAX, "{:?}", w.coordinator.status(id));
    }
}

/// #54: a busy site counted as one that does not answer, and got no removals of attempts.
#[test]
fn busy_answer_ends_the_question_for_the_file() {
    let mut w = World::new(internet2());
    w.sites[0].remembers_hash = true;
    w.sites[3].have = whole();
    w.busy_finishes = 5;
    let id = w.submit(request(0, &[3]));
    assert_eq!(w.run_to_end(id).outcome, Some(Outcome::Done));
}

/// #54: a busy source counted as one that does not tell the file's hash.
#[test]
fn busy_source_is_asked_again_without_a_strike() {
    let mut w = World::new(internet2());
    w.sites[3].have = whole();
    w.busy_hashes = 20;
    let id = w.submit(request(0, &[3]));
    assert_eq!(w.run_to_end(id).outcome, Some(Outcome::Done));
    assert_eq!(w.busy_hashes, 0);
}
