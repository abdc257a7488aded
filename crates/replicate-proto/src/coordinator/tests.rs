//! The coordinator with simulated sites that answer commands, late or wrongly, fail and return.

mod attach;
mod digests;
mod directories;
mod filling;
mod limits;
mod questions;
mod room;
mod slow;
mod world;

use super::*;
use crate::control::{Attempt, FlowDigest, FlowProgress, FlowSide, Inventory, Priority, Unsettled};
use crate::plan::{Flow, Group, Input, Mode, Scheme, Sink, Term};
use anabranch_graph::LinkProperties;
use anabranch_pieces::ByteRange;
use anabranch_units::Seed;
pub(super) use world::request;
use world::{ATTRIBUTES, HASH, LENGTH, World, filled_plan, internet2, topology, verdict, whole, whole_of};

#[test]
fn completed_transfer_leaves_no_state_at_its_sites() {
    let mut w = World::new(internet2());
    let id = w.submit(request(0, &[3, 5, 8]));
    let status = w.run_to_end(id);
    assert_eq!((status.outcome, status.attempts), (Some(Outcome::Done), 1));
    assert_eq!(status.hash, Some(HASH));
    assert!(status.destinations.iter().all(|d| d.verified_bytes == LENGTH));
    w.run_for(Duration::from_secs(1));
    let run = Run { transfer: id, attempt: Attempt(1) };
    for site in [0, 3, 5, 8] {
        assert_eq!(w.sites[site].removed, [run], "idle codes are removed, once");
        assert!(w.sites[site].forgotten && w.sites[site].program.is_none());
    }
    w.run_for(Duration::from_secs(120));
    assert_eq!(w.coordinator.poll_timeout(), None, "nothing is left to do");
}

#[test]
fn hash_is_sent_while_data_still_arrives() {
    let mut w = World::new(internet2());
    w.sites[0].remembers_hash = true;
    let id = w.submit(request(0, &[3, 8]));
    while !w.sites.iter().any(|s| s.finish_later.is_some()) {
        w.tick();
        assert_eq!(w.outcome(id), None, "the hash is told while data still arrives");
    }
    // The destination may report the complete file before its flows end.
    let run = Run { transfer: id, attempt: Attempt(1) };
    w.sites[3].have = whole();
    w.report(SiteId(3), Report::Completed { run });
    let status = w.coordinator.status(id).expect("it is remembered");
    assert_eq!(verdict(&status, 3), &Verdict::Done);
    let status = w.run_to_end(id);
    assert_eq!((status.outcome, status.attempts), (Some(Outcome::Done), 1));
}

#[test]
fn programs_of_neighbouring_sites_match() {
    let mut w = World::new(internet2());
    w.submit(TransferRequest {
        hop_overrides: vec![HopOverride {
            link: LinkId(0),
            hop: HopSettings { stripes: 4, congestion_control: Some("bbr".into()), priority: Priority::Bulk },
        }],
        ..request(0, &[1, 4])
    });
    w.tick();
    w.tick();
    let programs: Vec<_> = w.sites.iter().filter_map(|s| s.program.as_ref()).collect();
    assert_eq!(programs.len(), 4, "source, one relay, two destinations");
    for p in &programs {
        for o in &p.outgoing {
            let peer = w.sites[o.to.index()].program.as_ref().expect("the receiver takes part");
            let i = peer.incoming.iter().find(|i| i.flow == o.flow).expect("the receiver knows the flow");
            assert_eq!((i.from, i.link, i.stripes), (p.site, o.link, o.hop.stripes));
            assert_eq!(o.address, format!("10.0.0.{}:7000", o.link));
            assert_eq!(o.hop.stripes, if o.link == LinkId(0) { 4 } else { 1 });
        }
        assert_eq!(p.groups[0].work, whole());
        assert_eq!(p.source_path.is_some(), p.site == SiteId(0));
    }
}

#[test]
fn rerun_sends_only_missing_ranges() {
    let mut w = World::new(internet2());
    w.sites[3].have = vec![ByteRange { start: 0, end: 600_000 }];
    w.sites[5].finished = true;
    w.sites[8].have = whole();
    let id = w.submit(request(0, &[3, 5, 8]));
    for _ in 0..3 {
        w.tick();
    }
    let program = w.sites[3].program.clone().expect("it still lacks something");
    assert_eq!(program.groups[0].work, [ByteRange { start: 600_000, end: LENGTH }]);
    let status = w.run_to_end(id);
    assert_eq!((status.outcome, status.attempts), (Some(Outcome::Done), 1));
    assert_eq!([0, 1].map(|at| status.destinations[at].moved_bytes), [LENGTH - 600_000, 0]);
}

/// #54: the bytes of an unfinished attempt were lost at a restart of the controller.
#[test]
fn moved_bytes_of_a_done_destination_survive_a_restart() {
    let mut w = World::new(internet2());
    w.sites[3].have = vec![ByteRange { start: 100_000, end: LENGTH }];
    let id = w.submit(request(0, &[3, 5]));
    while w.sites[5].program.is_none() {
        w.tick();
    }
    // The data arrives there, and the file is not finished.
    w.sites[5].deaf = true;
    let verdict = |w: &World| w.coordinator.status(id).expect("it is known").destinations[0].verdict.clone();
    while verdict(&w).is_none() {
        w.tick();
    }
    assert_eq!((verdict(&w), w.outcome(id)), (Some(Verdict::Done), None));
    w.restart_controller();
    w.sites[5].deaf = false;
    assert_eq!(w.coordinator.status(id).expect("it is restored").destinations[0].moved_bytes, 100_000);
    assert_eq!(w.run_to_end(id).destinations[0].moved_bytes, 100_000);
}

#[test]
fn complete_destinations_need_a_hash_but_no_attempt() {
    let mut w = World::new(internet2());
    w.sites[3].have = whole();
    w.sites[5].finished = true;
    let id = w.submit(request(0, &[3, 5]));
    assert_eq!(w.run_to_end(id).outcome, Some(Outcome::Done));
    assert!(!w.seen(|e| matches!(e, EventKind::Planned { .. })));
}

#[test]
fn an_empty_file_arrives() {
    let mut w = World::new(internet2());
    w.length = 0;
    let id = w.submit(request(0, &[3]));
    assert_eq!(w.run_to_end(id).outcome, Some(Outcome::Done));
    assert!(w.sites[3].finished);
}

#[test]
fn a_killed_relay_is_planned_around() {
    let mut w = World::new(internet2());
    w.length = 20_000_000;
    let id = w.submit(request(0, &[5]));
    w.run_for(Duration::from_secs(2));
    let relay = w.coordinator.plan(id).expect("it runs").flows[0].link;
    let relay = w.coordinator.topology().link(relay).to;
    w.kill(relay);
    let status = w.run_to_end(id);
    assert_eq!(status.outcome, Some(Outcome::Done));
    assert_eq!(status.attempts, 2);
    let plan = w.coordinator.plan(id).expect("the last one is kept");
    assert!(plan.flows.iter().all(|f| w.coordinator.topology().link(f.link).to != relay));
}

#[test]
fn returning_site_receives_the_missed_commands() {
    let mut w = World::new(internet2());
    w.length = 20_000_000;
    let id = w.submit(request(0, &[5]));
    w.run_for(Duration::from_secs(2));
    let relay = w.coordinator.topology().link(w.coordinator.plan(id).expect("it runs").flows[0].link).to;
    w.kill(relay);
    assert_eq!(w.run_to_end(id).outcome, Some(Outcome::Done));
    w.run_for(Duration::from_secs(100));
    w.start(relay);
    w.run_for(Duration::from_secs(1));
    assert_eq!(w.sites[relay.index()].removed, [Run { transfer: id, attempt: Attempt(1) }]);
    assert!(w.sites[relay.index()].forgotten);
}

#[test]
fn transfer_waits_for_a_killed_source() {
    let mut w = World::new(internet2());
    w.length = 20_000_000;
    let id = w.submit(request(0, &[5, 8]));
    w.run_for(Duration::from_secs(3));
    w.kill(SiteId(0));
    w.run_for(Duration::from_secs(60));
    assert_eq!(w.outcome(id), None);
    assert!(w.seen(|e| matches!(e, EventKind::Stopped { gone: Some(SiteId(0)), .. })), "{:?}", w.events);
    let before = ranges::bytes(&w.sites[5].have);
    assert!(before > 0);
    w.start(SiteId(0));
    assert_eq!(w.run_to_end(id).outcome, Some(Outcome::Done));
}

/// #18: the transfer never continued if a destination already had a file of that name.
#[test]
fn source_killed_before_its_answer_is_asked_again() {
    let mut w = World::new(internet2());
    w.sites[5].finished = true;
    let id = w.submit(request(0, &[5]));
    w.kill(SiteId(0));
    w.run_for(Duration::from_secs(5));
    w.start(SiteId(0));
    assert_eq!(w.run_to_end(id).outcome, Some(Outcome::Done));
}

#[test]
fn source_that_stays_unreachable_fails_the_transfer() {
    let mut w = World::new(internet2());
    w.length = 20_000_000;
    let id = w.submit(request(0, &[5, 8]));
    w.run_for(Duration::from_secs(3));
    w.kill(SiteId(0));
    let status = w.run_to_end(id);
    assert_eq!(status.outcome, Some(Outcome::Failed));
    assert!(
        matches!(verdict(&status, 5), Verdict::Failed { reason } if reason.contains("s0 was away for 10 min"))
    );
}

#[test]
fn absent_destination_does_not_stop_other_destinations() {
    let mut w = World::new(internet2());
    w.length = 20_000_000;
    let id = w.submit(request(0, &[5, 8]));
    w.run_for(Duration::from_secs(3));
    w.kill(SiteId(8));
    w.run_for(Duration::from_secs(60));
    let status = w.coordinator.status(id).expect("it is remembered");
    assert_eq!(verdict(&status, 5), &Verdict::Done);
    assert_eq!(status.outcome, None, "the other one is still waited for");
    let status = w.run_to_end(id);
    assert_eq!(status.outcome, Some(Outcome::SomeFailed));
    assert!(matches!(verdict(&status, 8), Verdict::Unreachable { reason } if reason.contains("s8 was away")));
}

#[test]
fn returning_destination_receives_its_missing_data() {
    let mut w = World::new(internet2());
    w.length = 20_000_000;
    let id = w.submit(request(0, &[5, 8]));
    w.run_for(Duration::from_secs(3));
    w.kill(SiteId(8));
    w.run_for(Duration::from_secs(100));
    w.start(SiteId(8));
    assert_eq!(w.run_to_end(id).outcome, Some(Outcome::Done));
}

#[test]
fn a_dead_link_is_avoided() {
    let mut w = World::new(internet2());
    w.length = 20_000_000;
    let id = w.submit(request(0, &[5]));
    w.run_for(Duration::from_secs(2));
    let link = w.coordinator.plan(id).expect("it runs").flows[1].link;
    w.dead_links.insert(link);
    let status = w.run_to_end(id);
    assert_eq!((status.outcome, status.attempts), (Some(Outcome::Done), 2));
    assert!(w.seen(|e| matches!(e, EventKind::Stopped { gone: None, .. })), "{:?}", w.events);
    assert!(!w.seen(|e| matches!(e, EventKind::Stopped { gone: Some(_), .. })), "no site is away");
}

#[test]
fn destination_behind_dead_link_delays_no_other_destination() {
    let mut w = World::new(topology(4, &[(0, 1), (0, 2), (2, 3)]));
    w.length = 20_000_000;
    w.dead_links.extend([LinkId(4), LinkId(5)]);
    let id = w.submit(request(0, &[1, 3]));
    w.run_for(Duration::from_secs(30));
    let status = w.coordinator.status(id).expect("it is remembered");
    assert_eq!(verdict(&status, 1), &Verdict::Done);
    let status = w.run_to_end(id);
    assert_eq!(status.outcome, Some(Outcome::SomeFailed));
    assert!(w.now.as_secs_f64() < 1_200.0);
}

/// #17: a site with a wrong address stalled all other sites. They were blamed, and the transfer
/// never ended.
#[test]
fn unreachable_site_is_reported_and_delays_no_destination() {
    let config = CoordinatorConfig { site_wait: Duration::from_secs(60), ..CoordinatorConfig::default() };
    let mut w = World::with(topology(3, &[(0, 1), (0, 2), (1, 2)]), config);
    w.walled.insert(SiteId(2));
    let id = w.submit(request(0, &[1, 2]));
    w.run_for(Duration::from_secs(5));
    let status = w.coordinator.status(id).expect("it is remembered");
    assert_eq!(verdict(&status, 1), &Verdict::Done, "as soon as without the other");
    let line = "s0 cannot connect to s2 at 10.0.0.2:7000: no such host";
    assert!(w.seen(|e| matches!(e, EventKind::Postponed { site: SiteId(2), reason } if reason == line)));
    assert!(status.destinations[1].postponed);
    let status = w.run_to_end(id);
    assert_eq!(status.outcome, Some(Outcome::SomeFailed));
    let named =
        |reason: &str| reason.contains("cannot connect to s2 at 10.0.0.") && reason.contains("no such host");
    assert!(matches!(verdict(&status, 2), Verdict::Unreachable { reason } if named(reason)), "{status:?}");
    assert!((60.0..180.0).contains(&w.now.as_secs_f64()), "an end, and not before its time: {:?}", w.now);
    assert!(
        w.seen(|e| matches!(e, EventKind::Waiting { reason } if named(reason) && reason.contains("at most")))
    );
    assert!(status.attempts < 20, "{}", status.attempts);
}

/// #17: a site to which other sites could not connect at first is served once they can.
#[test]
fn site_that_becomes_reachable_gets_its_file() {
    let mut w = World::new(topology(3, &[(0, 1), (0, 2), (1, 2)]));
    w.walled.insert(SiteId(2));
    let id = w.submit(request(0, &[1, 2]));
    w.run_for(Duration::from_secs(30));
    w.walled.clear();
    assert_eq!(w.run_to_end(id).outcome, Some(Outcome::Done));
    assert!(w.now.as_secs_f64() < 120.0, "tries are not far apart");
}

#[test]
fn restored_link_serves_its_destination() {
    let mut w = World::new(topology(4, &[(0, 1), (0, 2), (2, 3)]));
    w.dead_links.extend([LinkId(4), LinkId(5)]);
    let id = w.submit(request(0, &[1, 3]));
    w.run_for(Duration::from_secs(60));
    w.dead_links.clear();
    assert_eq!(w.run_to_end(id).outcome, Some(Outcome::Done));
}

#[test]
fn a_full_disk_fails_its_destination_only() {
    let mut w = World::new(internet2());
    w.sites[5].disk_full = true;
    let id = w.submit(request(0, &[5, 8]));
    let status = w.run_to_end(id);
    assert_eq!(status.outcome, Some(Outcome::SomeFailed));
    assert!(matches!(verdict(&status, 5), Verdict::Failed { reason } if reason == "s5: no space left"));
    assert_eq!(verdict(&status, 8), &Verdict::Done);
}

#[test]
fn a_relay_that_refuses_is_not_asked_again() {
    let mut w = World::new(internet2());
    w.sites[1].refuses = true;
    let id = w.submit(request(0, &[5]));
    let status = w.run_to_end(id);
    assert_eq!((status.outcome, status.attempts), (Some(Outcome::Done), 2));
}

#[test]
fn a_relay_that_does_not_answer_is_planned_around() {
    let mut w = World::new(internet2());
    w.sites[1].deaf = true;
    let id = w.submit(request(0, &[5]));
    let status = w.run_to_end(id);
    assert_eq!((status.outcome, status.attempts), (Some(Outcome::Done), 2));
}

#[test]
fn a_destination_that_does_not_answer_becomes_unreachable() {
    let mut w = World::new(internet2());
    w.sites[8].deaf = true;
    let id = w.submit(request(0, &[5, 8]));
    let status = w.run_to_end(id);
    assert_eq!(status.outcome, Some(Outcome::SomeFailed));
    assert!(matches!(verdict(&status, 8), Verdict::Unreachable { .. }));
}

#[test]
fn bit_flipping_relay_is_named_and_planned_around() {
    let mut w = World::new(internet2());
    w.sites[3].flips_bits = true;
    let id = w.submit(request(0, &[5, 7]));
    let status = w.run_to_end(id);
    assert_eq!(status.outcome, Some(Outcome::Done));
    assert_eq!(status.suspects, [SiteId(3)]);
    assert!(status.corrupt >= 16);
}

#[test]
fn bit_flipping_cut_vertex_ends_as_integrity_failure() {
    let mut w = World::new(topology(3, &[(0, 1), (1, 2)]));
    w.sites[1].flips_bits = true;
    let id = w.submit(request(0, &[2]));
    let status = w.run_to_end(id);
    assert_eq!(status.suspects, [SiteId(1)]);
    // The only path leads through the named site, so avoiding it makes the destination unreachable.
    assert!(matches!(verdict(&status, 2), Verdict::Unreachable { .. } | Verdict::Integrity { .. }));
    assert_eq!(w.sites[2].have, []);
}

#[test]
fn refuse_policy_ends_destination_at_first_corruption() {
    let mut w = World::new(internet2());
    w.sites[3].flips_bits = true;
    let id = w.submit(TransferRequest { on_corrupt: CorruptPolicy::Refuse, ..request(0, &[5, 2]) });
    let status = w.run_to_end(id);
    assert_eq!(status.outcome, Some(Outcome::Integrity));
    assert_eq!(verdict(&status, 2), &Verdict::Done);
}

#[test]
fn corrupt_file_is_sent_again_and_finally_refused() {
    for (fails, outcome) in [(2, Outcome::Done), (3, Outcome::Integrity)] {
        let mut w = World::new(internet2());
        w.sites[5].finish_fails = fails;
        let id = w.submit(request(0, &[5]));
        assert_eq!(w.run_to_end(id).outcome, Some(outcome), "after {fails} failures");
    }
}

/// #18: a transfer was refused for data of another file that an earlier transfer had left at the
/// destination.
#[test]
fn leftover_of_another_file_does_not_cause_a_refusal() {
    for (left, outcome) in [(LENGTH, Outcome::Done), (0, Outcome::Integrity)] {
        let mut w = World::new(internet2());
        w.sites[5].have =
            vec![ByteRange { start: 0, end: left }].into_iter().filter(|r| !r.is_empty()).collect();
        w.sites[5].finish_fails = 1;
        let id = w.submit(TransferRequest { on_corrupt: CorruptPolicy::Refuse, ..request(0, &[5]) });
        assert_eq!(w.run_to_end(id).outcome, Some(outcome), "{left} bytes were there");
    }
}

#[test]
fn source_is_asked_for_an_unreported_hash() {
    let mut w = World::new(internet2());
    w.sites[0].knows_no_hash = true;
    let id = w.submit(request(0, &[5]));
    assert_eq!(w.run_to_end(id).outcome, Some(Outcome::Done));
}

#[test]
fn restarted_controller_completes_running_transfers() {
    let mut w = World::new(internet2());
    w.length = 20_000_000;
    let id = w.submit(request(0, &[5, 8]));
    w.run_for(Duration::from_secs(3));
    let before = ranges::bytes(&w.sites[8].have);
    assert!(before > 0 && before < w.length);
    w.restart_controller();
    let status = w.run_to_end(id);
    assert_eq!((status.outcome, status.attempts), (Some(Outcome::Done), 2));
    assert!(w.sites[8].removed.contains(&Run { transfer: id, attempt: Attempt(1) }));
    w.restart_controller();
    assert_eq!(w.outcome(id), Some(Outcome::Done), "what is over stays over");
}

#[test]
fn a_cancelled_transfer_is_removed_everywhere() {
    let mut w = World::new(internet2());
    w.length = 20_000_000;
    let id = w.submit(request(0, &[5, 8]));
    w.run_for(Duration::from_secs(3));
    assert!(w.coordinator.cancel(w.now, id));
    assert!(!w.coordinator.cancel(w.now, id), "only once");
    w.run_for(Duration::from_secs(1));
    assert_eq!(w.outcome(id), Some(Outcome::Cancelled));
    assert!(w.sites.iter().all(|s| s.program.is_none()));
    assert!(w.sites[8].forgotten);
}

#[test]
fn transfer_starts_without_a_site_that_never_appeared() {
    let mut w = World::new(internet2());
    w.kill(SiteId(8));
    w.run_for(Duration::from_secs(5));
    let id = w.submit(request(0, &[5, 8]));
    w.run_for(Duration::from_secs(10));
    let status = w.coordinator.status(id).expect("it is remembered");
    assert_eq!(verdict(&status, 5), &Verdict::Done);
    w.start(SiteId(8));
    assert_eq!(w.run_to_end(id).outcome, Some(Outcome::Done));
}

#[test]
fn removal_is_repeated_to_a_site_that_missed_it() {
    let mut w = World::new(internet2());
    let id = w.submit(request(0, &[5]));
    w.run_to_end(id);
    w.run_for(Duration::from_secs(100));
    w.sites[1].removed.clear();
    let run = Run { transfer: id, attempt: Attempt(1) };
    for _ in 0..10 {
        w.report(
            SiteId(1),
            Report::Progress { run, verified_bytes: 0, sink_stalled: 0.0, flows: vec![], arrivals: vec![] },
        );
        w.tick();
    }
    assert_eq!(w.sites[1].removed, [run], "once in a sweep");
}

#[test]
fn late_reports_of_an_old_attempt_are_ignored() {
    let mut w = World::new(internet2());
    w.length = 20_000_000;
    let id = w.submit(request(0, &[5]));
    w.run_for(Duration::from_secs(2));
    let old = Run { transfer: id, attempt: Attempt(0) };
    let before = w.coordinator.status(id);
    let reason = "late".to_owned();
    w.report(SiteId(5), Report::Failed { run: old, kind: FailureKind::Unwritable, reason: reason.clone() });
    w.report(SiteId(5), Report::Completed { run: old });
    w.report(SiteId(5), Report::SinkDone { run: old, have: whole() });
    w.report(
        SiteId(1),
        Report::HopFailed { run: old, flow: FlowId(0), peer: SiteId(0), unconnected: false, reason },
    );
    w.report(SiteId(0), Report::SourceDone { run: old, hash: Some(FileHash([1; 32])) });
    w.report(SiteId(5), Report::Completed { run: Run { transfer: id, attempt: Attempt(1) } });
    assert_eq!(w.coordinator.status(id), before);
}

#[test]
fn bad_requests_are_refused_with_one_line() {
    let mut w = World::new(internet2());
    let now = w.now;
    let mut refused = |request: TransferRequest, text: &str| {
        let error = w.coordinator.submit(now, request).expect_err(text).to_string();
        assert!(error.contains(text) && !error.contains('\n'), "{error}");
    };
    refused(request(0, &[]), "no destination");
    refused(request(0, &[3, 0]), "`s0` is both source and destination");
    refused(request(0, &[3, 3]), "`s3` appears twice");
    refused(request(0, &[9]), "sites 0 to 8");
    refused(TransferRequest { avoid_links: vec![LinkId(26)], ..request(0, &[3]) }, "26 links");
    refused(TransferRequest { avoid_sites: vec![SiteId(3)], ..request(0, &[3]) }, "`s3` is to be avoided");
    refused(TransferRequest { source_path: "../x".into(), ..request(0, &[3]) }, "outside the folder");
    refused(TransferRequest { source_path: "a\u{1b}[2J".into(), ..request(0, &[3]) }, "control character");
    let to = |path: &str| vec![Destination { site: SiteId(3), path: path.into() }];
    for (path, said) in
        [("sub/", "end with a slash"), (".anabranch-1.partial", "kept for files"), (".", "no file")]
    {
        refused(TransferRequest { destinations: to(path), ..request(0, &[3]) }, said);
    }
    refused(TransferRequest { symbol_bytes: 0, ..request(0, &[3]) }, "symbol_bytes 0: must be 1 to");
    refused(TransferRequest { buffer_packets: 0, ..request(0, &[3]) }, "buffer_packets 0");
    let bandwidth_limit = Some(BitRate::mbps(1));
    refused(
        TransferRequest { fill: true, bandwidth_limit, ..request(0, &[3]) },
        "fill with a bandwidth limit",
    );
    let hop = HopSettings { priority: Priority::Fill, ..request(0, &[3]).hop };
    refused(TransferRequest { fill: true, hop, ..request(0, &[3]) }, "fill with hops of priority fill");
    refused(
        TransferRequest { source_path: "x".repeat(4_097), ..request(0, &[3]) },
        "4097: must be 1 to 4096",
    );
    refused(
        TransferRequest { bandwidth_limit: Some(BitRate::bps(0)), ..request(0, &[3]) },
        "bandwidth limit",
    );
}

#[test]
fn running_and_remembered_transfers_are_bounded() {
    let config = CoordinatorConfig { transfers_max: 2, finished_max: 1, ..CoordinatorConfig::default() };
    let mut w = World::with(internet2(), config);
    let first = w.submit(request(0, &[3]));
    let second = w.submit(request(0, &[4]));
    let error = w.coordinator.submit(w.now, request(0, &[5])).expect_err("two are under way");
    assert_eq!(error, SubmitError::TooMany { limit: 2 });
    w.run_to_end(first);
    w.run_to_end(second);
    w.run_for(Duration::from_secs(60));
    assert_eq!(w.coordinator.transfer_ids().collect::<Vec<_>>(), [second], "the older one is forgotten");
    assert!(!w.store.contains_key(&first));
}

/// Settings of a round. Rounds alternate in pairs: two rounds plan each transfer alone, and the
/// next two rounds plan all transfers together.
fn both_ways(round: u64) -> CoordinatorConfig {
    let joint = (round / 2 % 2 == 1).then(JointConfig::default);
    CoordinatorConfig { joint, ..CoordinatorConfig::default() }
}

/// Sites (and sometimes the controller) fail and return at random. Every site that is up at the end
/// receives the file.
#[test]
fn reachable_destinations_are_verified_after_random_failures() {
    let mut unlucky = 0;
    for round in 0..200 {
        let mut random = Seed::new(round).stream("schedule", 0);
        let mut w = World::with(internet2(), both_ways(round));
        w.length = 1_000_000 + random.below(60_000_000);
        let mut order: Vec<u16> = (0..9).collect();
        random.shuffle(&mut order);
        let ends = 2 + random.below(3) as usize;
        let id = w.submit(request(order[0], &order[1..ends]));
        let chaos = Duration::from_secs(10 + random.below(120));
        let gone = SiteId(order[8 - random.below(8) as usize]);
        while w.now.saturating_since(Instant::ZERO) < chaos {
            w.tick();
            if random.chance_ppm(20_000) {
                let site = SiteId(random.below(9) as u16);
                if w.sites[site.index()].alive { w.kill(site) } else { w.start(site) }
            }
            if random.chance_ppm(3_000) {
                w.restart_controller();
            }
            if random.chance_ppm(5_000) {
                w.dead_links.insert(LinkId(random.below(26) as u32));
            }
            if random.chance_ppm(20_000) {
                w.dead_links.clear();
            }
        }
        w.dead_links.clear();
        for i in 0..9 {
            if !w.sites[i].alive && (SiteId(i as u16) != gone || round % 2 == 0) {
                w.start(SiteId(i as u16));
            }
        }
        if round % 2 == 1 {
            w.kill(gone);
        }
        let status = w.run_to_end(id);
        for d in &status.destinations {
            let whole = ranges::normal(&[ByteRange { start: 0, end: w.length }], w.length);
            match d.verdict.as_ref().expect("it is over") {
                Verdict::Done => assert_eq!(w.sites[d.site.index()].have, whole, "round {round}"),
                Verdict::Unreachable { .. } if round % 2 == 1 => assert_eq!(d.site, gone, "round {round}"),
                Verdict::Failed { reason } if reason.contains("was away") => {
                    assert_eq!((round % 2, SiteId(order[0])), (1, gone), "round {round}")
                }
                // A new failure hit each attempt, up to the maximum number of consecutive ones.
                Verdict::Failed { reason } if reason.contains("moved nothing") => unlucky += 1,
                other => panic!("round {round}: {other:?}"),
            }
        }
        w.run_for(Duration::from_secs(100));
        for s in w.sites.iter().filter(|s| s.alive) {
            assert_eq!(s.program, None, "round {round}: idle codes are removed");
        }
    }
    assert_eq!(unlucky, 0, "destinations were given up while the sites kept dying");
}

/// The state machine continues whatever the sites report, in any order.
#[test]
fn arbitrary_site_reports_never_panic_the_coordinator() {
    for round in 0..100 {
        let mut random = Seed::new(round).stream("nonsense", 0);
        let mut w = World::with(internet2(), both_ways(round));
        w.length = 5_000_000;
        let id = w.submit(request(0, &[3, 5, 8]));
        for _ in 0..300 {
            w.tick();
            let run = Run { transfer: id, attempt: Attempt(random.below(4) as u32) };
            let (n, flow) = (random.below(20), FlowId(random.below(20) as u32));
            let range = ByteRange { start: random.next_u64(), end: random.next_u64() };
            let report = match random.below(11) {
                0 => Report::Inventory(Inventory {
                    length: Some(n),
                    have: vec![range],
                    hash: Some(HASH),
                    attributes: Some(ATTRIBUTES),
                    arriving: Some(HASH),
                    head_bytes: Some(n / 2),
                    unsettled: Unsettled { ranges: vec![range], left_out: None },
                    ..Inventory::new(run)
                }),
                1 => Report::Ready { run },
                2 => Report::Progress {
                    run,
                    verified_bytes: random.next_u64(),
                    sink_stalled: -3.0,
                    flows: vec![],
                    arrivals: vec![],
                },
                3 => Report::SourceDone { run, hash: (n == 3).then_some(FileHash([3; 32])) },
                4 => Report::SinkDone { run, have: vec![range] },
                5 => Report::Corrupt { run, group: n as u16 / 10, generation: random.next_u64() },
                6 => Report::Completed { run },
                7 => Report::HopFailed {
                    run,
                    flow,
                    peer: SiteId(n as u16),
                    unconnected: n.is_multiple_of(3),
                    reason: "x\ny".into(),
                },
                8 => Report::Hashed { run, hash: HASH },
                9 => {
                    let digests = vec![FlowDigest { flow, side: FlowSide::Received, digest: n }];
                    Report::Audit { run, group: 0, generation: 3, digests }
                }
                _ if n == 0 => Report::Failed { run, kind: FailureKind::Refused, reason: String::new() },
                _ => continue,
            };
            let site = SiteId(random.below(9) as u16);
            w.report(site, report);
        }
        w.run_to_end(id);
    }
}

/// #17: a transfer replaced any file of the same name at a destination without confirmation.
#[test]
fn existing_other_file_is_kept_unless_replacement_is_allowed() {
    for (length, hash) in [(LENGTH, FileHash([9; 32])), (LENGTH + 1, HASH)] {
        let mut w = World::new(internet2());
        w.sites[5].other = Some((length, hash));
        let id = w.submit(request(0, &[5, 8]));
        let status = w.run_to_end(id);
        let Verdict::Failed { reason } = verdict(&status, 5) else { panic!("{:?}", verdict(&status, 5)) };
        assert!(reason.contains("another file has this name") && reason.contains("--replace"), "{reason}");
        assert_eq!(*verdict(&status, 8), Verdict::Done);
        assert!(w.sites[5].have.is_empty(), "no byte was moved for it");
        let id = w.submit(TransferRequest { replace: true, ..request(0, &[5]) });
        let status = w.run_to_end(id);
        assert_eq!(*verdict(&status, 5), Verdict::Done);
    }
}

/// #17: every inquiry found a replaceable file again, a hundred times per second and without end.
#[test]
fn replaceable_file_is_reported_once() {
    for remembers_hash in [false, true] {
        let mut w = World::new(internet2());
        w.sites[0].remembers_hash = remembers_hash;
        w.sites[5].other = Some((LENGTH, FileHash([9; 32])));
        let id = w.submit(TransferRequest { replace: true, ..request(0, &[5]) });
        let status = w.run_to_end(id);
        assert_eq!(*verdict(&status, 5), Verdict::Done);
        assert!(status.attempts <= 2, "{} attempts", status.attempts);
    }
}

/// #17: a private file counted as done if a destination already had its content. There, everybody
/// could still read it.
#[test]
fn existing_copy_is_done_unless_its_permissions_are_wider() {
    for (mode, then) in [(0o640, 0o640), (0o600, 0o600), (0o644, 0o640), (0o666, 0o640)] {
        for remembers_hash in [false, true] {
            let mut w = World::new(internet2());
            w.sites[0].remembers_hash = remembers_hash;
            (w.sites[5].finished, w.sites[5].mode) = (true, Some(mode));
            let id = w.submit(request(0, &[5]));
            let status = w.run_to_end(id);
            assert_eq!(*verdict(&status, 5), Verdict::Done, "{mode:o}");
            assert_eq!((w.sites[5].mode, status.attempts), (Some(then), 1), "{mode:o}");
            assert!(w.sites[5].have.is_empty(), "no byte was moved for it");
        }
    }
}
