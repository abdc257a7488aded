//! Limits of one submitter, and transfers that wait until other transfers have returned their
//! share.

use super::*;

fn of_site(source: u16, destinations: &[u16]) -> TransferRequest {
    TransferRequest { submitter: Submitter::Site(SiteId(source)), ..request(source, destinations) }
}

fn few() -> CoordinatorConfig {
    CoordinatorConfig {
        transfers_max: 8,
        sites_transfers_max: 4,
        site_transfers_max: 3,
        finished_max: 8,
        ..CoordinatorConfig::default()
    }
}

/// #17: names of megabytes, any number of overrides for one link, and buffers too large for any
/// site were accepted.
#[test]
fn every_part_of_a_request_is_bounded() {
    let mut w = World::new(internet2());
    let hop = |name: &str| HopSettings {
        stripes: 1,
        congestion_control: Some(name.into()),
        priority: Priority::Bulk,
    };
    let named = |name: &str| TransferRequest { hop: hop(name), ..request(0, &[3]) };
    let over = |links: &[u32]| {
        let hop_overrides = links.iter().map(|l| HopOverride { link: LinkId(*l), hop: hop("bbr") }).collect();
        TransferRequest { hop_overrides, ..request(0, &[3]) }
    };
    let (sites, links) = (internet2().sites().len(), internet2().links().len());
    let avoid = |sites: usize, links: usize| TransferRequest {
        avoid_sites: vec![SiteId(1); sites],
        avoid_links: vec![LinkId(1); links],
        ..request(0, &[3])
    };
    let good = [
        named("a_name-of-15-chs"[..15].into()),
        over(&[0, 1, 2]),
        avoid(sites, links),
        TransferRequest { symbol_bytes: 1 << 20, buffer_packets: 4_096, ..request(0, &[3]) },
    ];
    for request in good {
        assert!(w.coordinator.submit(w.now, request).is_ok());
    }
    let path = vec!["x".repeat(203); 20].join("/");
    let mut long = request(0, &[1, 2, 3, 4, 5, 6, 7, 8]);
    long.destinations.iter_mut().for_each(|d| d.path = path.clone());
    assert!(w.coordinator.submit(w.now, long.clone()).is_ok(), "{} bytes", long.bytes());
    long.avoid_links = vec![LinkId(1); 10_000];
    for (request, text) in [
        (named("a_name-of-16-chs"), "congestion control `a_name-of-16-chs`"),
        (named(""), "congestion control ``"),
        (named("bbr\u{1b}[2J"), "congestion control `bbr\u{fffd}[2J`"),
        (over(&[0, 1, 0]), "link 0 has two hop overrides"),
        (avoid(sites + 1, 0), "sites to avoid"),
        (avoid(0, links + 1), "links to avoid"),
        (
            TransferRequest { symbol_bytes: (1 << 20) + 1, ..request(0, &[3]) },
            "1048577: must be 1 to 1048576",
        ),
        (TransferRequest { buffer_packets: 4_097, ..request(0, &[3]) }, "4097: must be 1 to 4096"),
        (long, "bytes of a request"),
    ] {
        let error = w.coordinator.submit(w.now, request).expect_err(text).to_string();
        assert!(error.contains(text) && !error.contains('\n'), "{error}");
    }
}

/// #17: 1,000 transfers of one site kept out the transfers of all other submitters.
#[test]
fn site_is_limited_to_its_share_of_slots() {
    let mut w = World::with(internet2(), few());
    for _ in 0..3 {
        w.submit(of_site(0, &[3]));
    }
    let error = w.coordinator.submit(w.now, of_site(0, &[3])).expect_err("it has its share");
    assert!(error.is_passing() && error.to_string().contains("3 transfers that site `"), "{error}");
    w.submit(of_site(1, &[3]));
    let error = w.coordinator.submit(w.now, of_site(2, &[3])).expect_err("sites have theirs");
    assert_eq!(error, SubmitError::TooManyOfSites { limit: 4 });
    for _ in 0..4 {
        w.submit(request(0, &[3]));
    }
    let error = w.coordinator.submit(w.now, request(0, &[3])).expect_err("all places are taken");
    assert_eq!(error, SubmitError::TooMany { limit: 8 });
}

/// #17: a site that submitted and cancelled repeatedly made the controller forget transfers of
/// other submitters.
#[test]
fn flooding_submitter_evicts_only_its_own_transfers() {
    let mut w = World::with(internet2(), few());
    let operators = w.submit(request(0, &[3]));
    let others = w.submit(of_site(1, &[3]));
    w.run_to_end(operators);
    w.run_to_end(others);
    let mut own = VecDeque::new();
    for _ in 0..30 {
        let id = w.submit(of_site(0, &[3]));
        assert!(w.coordinator.cancel(w.now, id));
        own.push_back(id);
        w.run_for(Duration::from_ms(100));
    }
    let kept: Vec<_> = own.into_iter().skip(27).collect();
    let remembered: Vec<_> = w.coordinator.transfer_ids().collect();
    assert_eq!(remembered, [&[operators, others][..], &kept].concat(), "three of its own, and all others'");
    // New transfers of operators displace transfers of operators. Sites keep half of the slots.
    for _ in 0..30 {
        let id = w.submit(request(0, &[3]));
        assert!(w.coordinator.cancel(w.now, id));
    }
    let sites = [&[others][..], &kept].concat();
    let remembered: Vec<_> = w.coordinator.transfer_ids().collect();
    assert_eq!(remembered.len(), 8);
    assert!(sites.iter().all(|id| remembered.contains(id)), "half of the places are theirs");
}

/// #17: a transfer failed permanently if a site had no memory for it at that moment.
#[test]
fn transfer_waits_for_room_without_limit_then_continues() {
    for busy in [0, 3] {
        let mut w = World::new(internet2());
        w.sites[busy].is_busy = true;
        let id = w.submit(request(0, &[3, 5]));
        w.run_for(Duration::from_secs(3_600));
        let status = w.coordinator.status(id).expect("it is remembered");
        assert_eq!((status.outcome, status.phase), (None, PhaseName::Waiting), "site {busy}");
        assert!(status.last_trouble.is_some_and(|line| line.contains("beside those of other transfers")));
        let said = w.events.iter().filter(
            |e| matches!(&e.kind, EventKind::Waiting { reason } if reason.contains("waiting for room at")),
        );
        assert_eq!(said.count(), 1, "it is said once");
        w.sites[busy].is_busy = false;
        let status = w.run_to_end(id);
        assert_eq!(status.outcome, Some(Outcome::Done), "site {busy}");
    }
}

/// #17: a site could make other sites connect to any address, and read the result.
#[test]
fn connection_results_are_removed_from_lines_for_sites() {
    for (line, cut) in [
        ("s cannot connect to d at 10.0.0.1:22: connection refused", "s cannot connect to d at 10.0.0.1:22"),
        (
            "no way to d for 10 min: s cannot connect to d at [::1]:22: no answer",
            "no way to d for 10 min: s cannot connect to d at [::1]:22",
        ),
        ("the hop s to d failed, says s: it went away", "the hop s to d failed, says s"),
        ("d: disk full", "d: disk full"),
    ] {
        assert_eq!(without_connecting(line), cut);
    }
    let mut w = World::new(internet2());
    w.walled.insert(SiteId(3));
    let id = w.submit(request(0, &[3, 5]));
    w.run_for(Duration::from_secs(60));
    let status = w.coordinator.status(id).expect("it is remembered");
    let line = status.last_trouble.expect("nobody can connect to it");
    assert!(line.contains("no such host") && !without_connecting(&line).contains("no such host"), "{line}");
}
