//! Filling flows, which use what plans leave.

use super::*;

/// A running transfer with filling flows, and a site that relays only filling flows.
fn filling(prepare: impl Fn(&mut World, SiteId)) -> (World, TransferId, SiteId) {
    let mut w = World::new(internet2());
    w.length = 20_000_000;
    let asked = TransferRequest { fill: true, ..request(0, &[5, 8]) };
    let topology = w.coordinator.topology().clone();
    let plan = filled_plan(&PlanRequest {
        topology: &topology,
        source: SiteId(0),
        destinations: &[SiteId(5), SiteId(8)],
        avoid_sites: &[],
        avoid_links: &[],
        scheme: SchemeChoice::Auto,
        fill: true,
    });
    let plan = plan.expect("there is a plan");
    plan.check(&topology).expect("a good plan");
    let touches = |site: SiteId, fills: bool| {
        let own = plan.flows.iter().filter(|f| plan.fills(f) == fills).map(|f| topology.link(f.link));
        own.into_iter().any(|l| l.from == site || l.to == site)
    };
    let relay = topology.site_ids().find(|s| touches(*s, true) && !touches(*s, false));
    let relay = relay.expect("the paths leave sites to those who fill");
    prepare(&mut w, relay);
    let id = w.submit(asked);
    w.run_for(Duration::from_secs(2));
    (w, id, relay)
}

#[test]
fn fill_is_in_the_programs_at_lowest_priority() {
    let (w, id, relay) = filling(|_, _| {});
    let plan = w.coordinator.plan(id).expect("it runs");
    assert!(w.sites[relay.index()].program.is_some());
    for program in w.sites.iter().filter_map(|s| s.program.as_ref()) {
        for (group, planned) in program.groups.iter().zip(&plan.groups) {
            assert_eq!((group.fills, group.filled), (planned.fills, planned.fills.is_none()));
            assert_eq!(group.work, whole_of(w.length));
        }
        for o in &program.outgoing {
            let fills = plan.groups[usize::from(o.group)].fills.is_some();
            assert_eq!(o.hop.priority, if fills { Priority::Fill } else { Priority::Bulk });
        }
        assert!(crate::site::Site::<anabranch_endpoint::Len>::new(program).is_ok());
    }
}

#[test]
fn failed_relay_of_only_fill_does_not_stop_attempt() {
    let deaf = filling(|w, relay| w.sites[relay.index()].deaf = true);
    let refusing = filling(|w, relay| w.sites[relay.index()].refuses = true);
    let (mut killed, id, relay) = filling(|_, _| {});
    killed.kill(relay);
    for (mut w, id, _) in [deaf, refusing, (killed, id, relay)] {
        let status = w.run_to_end(id);
        assert_eq!((status.outcome, status.attempts), (Some(Outcome::Done), 1));
        assert_eq!(status.suspects, []);
    }
}

#[test]
fn broken_filling_hop_does_not_stop_the_attempt() {
    let (mut w, id, _) = filling(|_, _| {});
    let plan = w.coordinator.plan(id).expect("it runs").clone();
    let run = Run { transfer: id, attempt: Attempt(1) };
    for (i, flow) in plan.flows.iter().enumerate().filter(|(_, f)| plan.fills(f)) {
        let link = w.coordinator.topology().link(flow.link).clone();
        let reason = "reset".to_owned();
        w.report(
            link.from,
            Report::HopFailed { run, flow: FlowId(i as u32), peer: link.to, unconnected: false, reason },
        );
    }
    let status = w.run_to_end(id);
    assert_eq!((status.outcome, status.attempts), (Some(Outcome::Done), 1));
}

#[test]
fn site_refusing_fill_gets_a_program_without_fill() {
    let (mut w, id, _) = filling(|w, _| w.sites[5].refuses_fill = true);
    let status = w.run_to_end(id);
    assert_eq!((status.outcome, status.attempts), (Some(Outcome::Done), 2));
    assert!(w.coordinator.plan(id).expect("the last one is kept").groups.iter().all(|g| g.fills.is_none()));
}
