//! Tests of an agent with a scripted coordinator, scripted programs and scripted connections.

use super::*;
use crate::control::Report;
use crate::coordinator::IDLE_AFTER;

fn ms(ms: u64) -> Duration {
    Duration::from_ms(ms)
}
fn at(ms: u64) -> Instant {
    Instant::ZERO + Duration::from_ms(ms)
}
fn flow(port: u16) -> FlowKey {
    FlowKey { local: ([10, 0, 0, 1], port).into(), remote: ([10, 0, 0, 2], 7_000).into() }
}
fn seen(port: u16, acked_bytes: u64) -> ListedConnection {
    let (user, written_bytes) = (7, 1_000_000);
    ListedConnection {
        flow: flow(port),
        cookie: port.into(),
        user,
        may_send: true,
        acked_bytes,
        written_bytes,
        limit: None,
    }
}

fn agent() -> Agent {
    Agent::new(at(0), AgentConfig::new(BitRate::mbps(100)))
}

/// Returns the next request of the agent, which must exist.
fn asked(agent: &mut Agent) -> (u64, AgentAction) {
    agent.poll_ask().expect("it asks for something")
}
fn orders(agent: &mut Agent) -> Vec<LimitOrder> {
    let order = |event| match event {
        Event::Order(order) => Some(order),
        _ => None,
    };
    std::iter::from_fn(|| agent.poll_event()).filter_map(order).collect()
}
fn prepare(agent: &mut Agent, now: Instant, session: u64) {
    let (number, ask) = asked(agent);
    assert_eq!(ask, AgentAction::Prepare);
    agent.handle_answer(now, number, Ok(Answer::Prepared { coordinator: None, session }));
}
fn look(agent: &mut Agent, now: Instant, flows: &[ListedConnection]) {
    let (number, ask) = asked(agent);
    assert_eq!(ask, AgentAction::Look);
    agent.handle_answer(now, number, Ok(Answer::Listing { flows: flows.to_vec(), left_out: 0 }));
}
/// Makes the agent join. Returns the number of its pending request for limits.
fn join(agent: &mut Agent, now: Instant, session: u64, flows: &[ListedConnection]) -> u64 {
    prepare(agent, now, session);
    look(agent, now, flows);
    let (number, ask) = asked(agent);
    assert!(
        matches!(ask, AgentAction::Join(JoinRequest { session: said, .. }) if said == session),
        "{ask:?}"
    );
    agent.handle_answer(now, number, Ok(Answer::Taken));
    let (limits, ask) = asked(agent);
    assert_eq!(ask, AgentAction::Limits { session });
    limits
}
fn announce(agent: &mut Agent, now: Instant, port: u16) {
    let said = Announcement::Flow { flow: flow(port), coflow: "t".into(), size_bytes: 1_000_000 };
    agent.handle_announcement(now, &said, &seen(port, 0)).expect("there is room");
}
fn report(agent: &mut Agent) -> (u64, Vec<Report>) {
    match asked(agent) {
        (number, AgentAction::Report(ReportsRequest { reports, .. })) => (number, reports),
        other => panic!("{other:?}"),
    }
}

#[test]
fn agent_joins_with_known_flows_then_reports_changes() {
    let mut agent = agent();
    announce(&mut agent, at(0), 1);
    prepare(&mut agent, at(0), 9);
    look(&mut agent, at(1), &[seen(1, 0)]);
    let (number, AgentAction::Join(said)) = asked(&mut agent) else { panic!("it joins") };
    assert_eq!((said.session, said.reports.len(), said.link_rate_bps), (9, 1, 100_000_000));
    assert_eq!(agent.poll_ask(), None);
    agent.handle_answer(at(2), number, Ok(Answer::Taken));
    let (_, ask) = asked(&mut agent);
    assert_eq!(ask, AgentAction::Limits { session: 9 });
    assert_eq!(agent.poll_ask(), None);
    assert_eq!(agent.poll_timeout(), Some(at(102)));
    announce(&mut agent, at(50), 2);
    let (first, reports) = report(&mut agent);
    assert_eq!(reports.len(), 1);
    // Only one request is in flight at a time. Later updates are sent with the next request.
    announce(&mut agent, at(51), 3);
    assert_eq!(agent.poll_ask(), None);
    agent.handle_answer(at(60), first, Ok(Answer::Taken));
    let (second, _) = report(&mut agent);
    agent.handle_answer(at(61), second, Ok(Answer::Taken));
    agent.handle_timeout(at(102));
    look(&mut agent, at(102), &[seen(1, 0), seen(2, 0), seen(3, 0)]);
    // No flow has moved, so there is nothing to report.
    assert_eq!(agent.poll_ask(), None);
    agent.handle_timeout(at(202));
    look(&mut agent, at(202), &[seen(1, 0), seen(2, 0), seen(3, 0)]);
    assert_eq!(agent.poll_timeout(), Some(at(260)));
    agent.handle_timeout(at(260));
    let (_, reports) = report(&mut agent);
    assert!(reports.is_empty(), "it says that it is there: {reports:?}");
}

#[test]
fn reports_of_many_flows_precede_the_next_listing() {
    let mut agent = agent();
    let many = 2 * FLOWS_TOGETHER as u16 + 1;
    join(&mut agent, at(0), 9, &[]);
    (0..many).for_each(|port| announce(&mut agent, at(1), port));
    for part in [FLOWS_TOGETHER, FLOWS_TOGETHER, 1] {
        let (number, reports) = report(&mut agent);
        assert_eq!(reports.len(), part);
        agent.handle_answer(at(1_00), number, Ok(Answer::Taken));
    }
    assert!(matches!(asked(&mut agent), (_, AgentAction::Look)));
}

#[test]
fn limits_are_lifted_after_a_second_of_silence() {
    let mut agent = agent();
    announce(&mut agent, at(0), 1);
    let limits = join(&mut agent, at(0), 9, &[seen(1, 0)]);
    let limit = Limit { flow: flow(1), rate_bps: Some(1_000_000) };
    agent.handle_answer(at(10), limits, Ok(Answer::Limits(vec![limit])));
    let orders_so_far = orders(&mut agent);
    assert!(matches!(
        &orders_so_far[..],
        [LimitOrder::Keep(_), LimitOrder::BeginSession, LimitOrder::Set(_)]
    ));
    let (_, AgentAction::Limits { .. }) = asked(&mut agent) else { panic!("it waits for the next") };
    agent.handle_timeout(at(200));
    look(&mut agent, at(200), &[seen(1, 0)]);
    let (number, _) = report(&mut agent);
    agent.handle_timeout(at(999));
    assert!(!orders(&mut agent).contains(&LimitOrder::LiftAll));
    assert_eq!(agent.poll_timeout(), Some(at(1_000)));
    agent.handle_timeout(at(1_000));
    assert!(orders(&mut agent).contains(&LimitOrder::LiftAll));
    // The coordinator answers late, without knowing that the limits are lifted.
    agent.handle_answer(at(1_001), number, Ok(Answer::Taken));
    assert!(!agent.is_awaited(limits));
    assert_eq!((agent.poll_ask(), agent.poll_timeout()), (None, Some(at(1_051))));
    agent.handle_timeout(at(1_051));
    join(&mut agent, at(1_052), 10, &[seen(1, 0)]);
}

/// Limits that arrived during the coordinator's silence were set, and stayed while the coordinator
/// was unreachable (#18).
#[test]
fn limits_after_the_coordinators_silence_are_not_set() {
    let mut agent = agent();
    announce(&mut agent, at(0), 1);
    let limits = join(&mut agent, at(0), 9, &[seen(1, 0)]);
    agent.handle_timeout(at(200));
    look(&mut agent, at(200), &[seen(1, 0)]);
    report(&mut agent);
    orders(&mut agent);
    agent.handle_timeout(at(1_000));
    let limit = Limit { flow: flow(1), rate_bps: Some(1_000_000) };
    agent.handle_answer(at(1_001), limits, Ok(Answer::Limits(vec![limit])));
    assert_eq!(orders(&mut agent), [LimitOrder::LiftAll]);
    // The agent joins again, and receives all limits again.
    assert_eq!(agent.poll_timeout(), Some(at(1_051)));
}

/// If no session lasted a second, the limits of earlier sessions were never lifted (#18).
#[test]
fn old_limits_are_lifted_although_no_session_lasts() {
    let mut agent = agent();
    let mut lifted = 0;
    for session in 0..10 {
        let now = at(300 * session);
        agent.handle_timeout(now);
        join(&mut agent, now, session, &[]);
        agent.handle_timeout(now + ms(200));
        while let Some((number, ask)) = agent.poll_ask() {
            let answer = match ask {
                AgentAction::Look => Ok(Answer::Listing { flows: vec![], left_out: 0 }),
                _ => Err(Failure::NotJoined("join again".into())),
            };
            agent.handle_answer(now + ms(200), number, answer);
        }
        lifted += orders(&mut agent).iter().filter(|order| **order == LimitOrder::LiftOld).count();
    }
    assert_eq!(lifted, 2);
}

#[test]
fn limits_of_earlier_sessions_are_lifted_after_a_delay() {
    let mut agent = agent();
    join(&mut agent, at(0), 9, &[]);
    agent.handle_timeout(at(999));
    while let Some((number, ask)) = agent.poll_ask() {
        let answer = if ask == AgentAction::Look {
            Answer::Listing { flows: vec![], left_out: 0 }
        } else {
            Answer::Taken
        };
        agent.handle_answer(at(999), number, Ok(answer));
    }
    assert!(!orders(&mut agent).contains(&LimitOrder::LiftOld));
    agent.handle_timeout(at(1_000));
    let said = orders(&mut agent);
    assert!(said.contains(&LimitOrder::LiftOld) && !said.contains(&LimitOrder::LiftAll), "{said:?}");
}

#[test]
fn join_backs_off_until_permanent_refusal() {
    let mut agent = agent();
    let mut now = 0;
    for pause in [50, 100, 200, 400, 500, 500] {
        agent.handle_timeout(at(now));
        let (number, _) = asked(&mut agent);
        agent.handle_answer(at(now), number, Err(Failure::Passing("away".into())));
        assert_eq!(agent.poll_timeout(), Some(at(now + pause)));
        agent.handle_timeout(at(now + pause - 1));
        assert_eq!(agent.poll_ask(), None);
        now += pause;
    }
    let notices: Vec<Event> = std::iter::from_fn(|| agent.poll_event()).collect();
    assert_eq!(notices[0], Event::Notice(Notice::Away("away".into())));
    assert!(notices[1..].iter().all(|n| *n == Event::Notice(Notice::StillAway("away".into()))));
    agent.handle_timeout(at(now));
    prepare(&mut agent, at(now), 9);
    look(&mut agent, at(now), &[]);
    let (number, _) = asked(&mut agent);
    agent.handle_answer(at(now), number, Err(Failure::Refused("another's keys".into())));
    let last = std::iter::from_fn(|| agent.poll_event()).last();
    assert_eq!(last, Some(Event::GivenUp("another's keys".into())));
    assert_eq!((agent.poll_ask(), agent.poll_timeout()), (None, None));
}

#[test]
fn ending_agent_lifts_its_limits_and_leaves_once() {
    let mut never_joined = agent();
    never_joined.handle_end(at(5));
    assert_eq!((orders(&mut never_joined), never_joined.poll_ask()), (vec![LimitOrder::LiftAll], None));
    let mut agent = agent();
    join(&mut agent, at(0), 9, &[]);
    orders(&mut agent);
    agent.handle_end(at(5));
    agent.handle_end(at(6));
    assert_eq!(orders(&mut agent), [LimitOrder::LiftAll]);
    let (number, ask) = asked(&mut agent);
    assert_eq!(ask, AgentAction::Leave { session: 9 });
    assert!(agent.is_awaited(number) && agent.poll_ask().is_none() && agent.poll_timeout().is_none());
}

#[test]
fn listings_take_a_small_part_of_the_time() {
    assert_eq!(look_after(ms(0), None), LOOK_EVERY);
    assert_eq!(look_after(ms(0), Some(ms(50))), ms(50));
    assert_eq!(look_after(ms(0), Some(ms(0))), LOOK_SOON);
    assert_eq!(look_after(ms(0), Some(ms(500))), LOOK_EVERY);
    assert_eq!(look_after(ms(3), Some(ms(0))), ms(60));
    assert_eq!(look_after(ms(5), None), LOOK_EVERY);
    assert_eq!(look_after(ms(12), None), ms(240));
    // Listing takes this long with thousands of flows to report, and then with even more.
    assert_eq!(look_after(ms(120), Some(ms(0))), LOOK_LATE);
    assert_eq!(look_after(ms(260), None), ms(520));
    assert!(LOOK_LATE * 2 <= IDLE_AFTER);
}

#[test]
fn coordinator_connections_are_recognised_at_both_ends() {
    let here: [IpAddr; 1] = ["10.0.0.1".parse().expect("good")];
    let is_control = |local: &str, remote: &str, coordinator: &str| {
        let end = |text: &str| -> SocketAddr { text.parse().expect("good") };
        is_control(FlowKey { local: end(local), remote: end(remote) }, &[end(coordinator)], &here)
    };
    assert!(is_control("10.0.0.1:40000", "10.0.0.9:7190", "10.0.0.9:7190"));
    assert!(!is_control("10.0.0.1:40000", "10.0.0.8:7190", "10.0.0.9:7190"));
    assert!(!is_control("10.0.0.1:7190", "10.0.0.8:40000", "10.0.0.9:7190"));
    // If the coordinator runs on this host, its answers to other hosts are sent from its port.
    for coordinator in ["10.0.0.1:7190", "127.0.0.1:7190"] {
        assert!(is_control("10.0.0.1:7190", "10.0.0.2:40000", coordinator));
        assert!(!is_control("10.0.0.1:7191", "10.0.0.2:40000", coordinator));
        assert!(!is_control("10.0.0.1:40000", "10.0.0.2:7190", coordinator));
    }
}

/// #18: a listing that was started before a connection existed ended the flow that was announced
/// meanwhile, permanently.
#[test]
fn older_listing_does_not_end_an_announced_flow() {
    let mut agent = agent();
    join(&mut agent, at(0), 9, &[]);
    agent.handle_timeout(at(100));
    let (number, ask) = asked(&mut agent);
    assert_eq!(ask, AgentAction::Look);
    announce(&mut agent, at(101), 1);
    agent.handle_answer(at(102), number, Ok(Answer::Listing { flows: Vec::new(), left_out: 0 }));
    let (reported, reports) = report(&mut agent);
    assert!(matches!(reports[..], [Report::Flow { .. }]), "{reports:?}");
    assert_eq!(orders(&mut agent).last(), Some(&LimitOrder::Keep(BTreeSet::from([flow(1)]))));
    agent.handle_answer(at(103), reported, Ok(Answer::Taken));
    // The next listing includes the flow.
    agent.handle_timeout(at(203));
    look(&mut agent, at(204), &[]);
    let (_, reports) = report(&mut agent);
    assert!(matches!(reports.last(), Some(Report::Ended { .. })), "{reports:?}");
}
