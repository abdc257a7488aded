//! Tests of sessions: joined agents, requests that wait for limits, and decisions that take time.

use super::*;
use crate::ChasePlus;
use crate::control::FlowKey;
use anabranch_units::BitRate;

const LINK: BitRate = BitRate::mbps(100);

fn at(ms: u64) -> Instant {
    Instant::ZERO + Duration::from_ms(ms)
}

fn host(last: u8) -> Host {
    Host { addresses: vec![[10, 0, 0, last].into()], rate: LINK, uplinks: Vec::new() }
}

fn key(port: u16) -> FlowKey {
    FlowKey { local: ([10, 0, 0, 1], port).into(), remote: ([10, 0, 0, 2], 7_000).into() }
}

fn flow(port: u16) -> Report {
    Report::Flow { flow: key(port), coflow: "a".into(), size_bytes: 1_000_000, open_ended: false }
}

fn sessions() -> Sessions<ChasePlus> {
    let mut sessions = Sessions::new(SessionsConfig::default(), ChasePlus::default());
    sessions.handle_join(at(0), "h", 1, host(1), &[]).expect("it joins");
    sessions
}

fn decide(sessions: &mut Sessions<ChasePlus>, now: Instant) {
    if let Some(mut decision) = sessions.begin_decision(now) {
        decision.make();
        sessions.end_decision(now, decision).expect("the link carries it");
    }
}

fn limit(port: u16, rate_bps: Option<u64>) -> Limit {
    Limit { flow: key(port), rate_bps }
}

#[test]
fn waiting_request_is_answered_after_the_decision() {
    let mut sessions = sessions();
    let first = sessions.handle_limits(at(0), "h", 1, at(10_000)).expect("it is there");
    let second = sessions.handle_limits(at(0), "h", 1, at(10_000)).expect("it is there");
    decide(&mut sessions, at(0));
    assert_eq!(sessions.poll_answer(), None);
    sessions.handle_reports(at(1), "h", 1, &[flow(1)]).expect("it is taken");
    decide(&mut sessions, at(1));
    assert_eq!(sessions.poll_answer(), Some((first, Ok(vec![limit(1, Some(LINK.as_bps()))]))));
    assert_eq!(sessions.poll_event(), Some(Event::Begun("a".into())));
    // The second request gets the next limits.
    sessions.handle_reports(at(2), "h", 1, &[Report::Ended { flow: key(1) }, flow(2)]).expect("taken");
    decide(&mut sessions, at(2));
    assert_eq!(sessions.poll_answer().map(|(number, _)| number), Some(second));
    assert_eq!(sessions.poll_answer(), None);
    assert_eq!(sessions.counts().limits, 2);
}

#[test]
fn request_without_limits_is_answered_at_its_deadline() {
    let mut sessions = sessions();
    let wait = sessions.handle_limits(at(0), "h", 1, at(500)).expect("it is there");
    assert_eq!(sessions.poll_timeout(), Some(at(500)));
    sessions.handle_timeout(at(499));
    assert_eq!(sessions.poll_answer(), None);
    sessions.handle_timeout(at(500));
    assert_eq!(sessions.poll_answer(), Some((wait, Ok(vec![]))));
    assert_eq!(sessions.poll_timeout(), Some(at(1_000)));
}

#[test]
fn oldest_of_too_many_waiting_requests_is_answered() {
    let mut sessions = sessions();
    let mut wait = || sessions.handle_limits(at(0), "h", 1, at(500)).expect("it is there");
    let oldest = (0..WAITS_MAX).map(|_| wait()).min().expect("there are some");
    assert_eq!(sessions.poll_answer(), None);
    sessions.handle_limits(at(0), "h", 1, at(500)).expect("it is there");
    assert_eq!(sessions.poll_answer(), Some((oldest, Ok(vec![]))));
    assert_eq!(sessions.poll_answer(), None);
}

#[test]
fn agent_is_disconnected_exactly_at_the_silence_limit() {
    let mut sessions = sessions();
    sessions.handle_reports(at(300), "h", 1, &[flow(1)]).expect("it is taken");
    decide(&mut sessions, at(400));
    sessions.handle_limits(at(400), "h", 1, at(10_000)).expect("it is there");
    assert!(sessions.poll_answer().is_some());
    let wait = sessions.handle_limits(at(500), "h", 1, at(10_000)).expect("it is there");
    sessions.handle_timeout(at(1_499));
    assert!(sessions.is_joined("h", 1));
    sessions.handle_timeout(at(1_500));
    assert!(!sessions.is_joined("h", 1));
    assert_eq!(sessions.poll_answer(), Some((wait, Err(ReportError::NotJoined("h".into())))));
    assert_eq!(sessions.coordinator().count(), (0, 0, 0));
    let events: Vec<Event> = std::iter::from_fn(|| sessions.poll_event()).collect();
    assert!(events.contains(&Event::Silent("h".into())), "{events:?}");
    assert_eq!(sessions.counts().silent, 1);
    let refused = sessions.handle_reports(at(1_600), "h", 1, &[]);
    assert_eq!(refused, Err(ReportError::NotJoined("h".into())));
}

#[test]
fn replaced_agents_requests_are_refused_and_its_leave_ignored() {
    let mut sessions = sessions();
    let wait = sessions.handle_limits(at(0), "h", 1, at(10_000)).expect("it is there");
    sessions.handle_join(at(1), "h", 2, host(1), &[flow(1)]).expect("it joins");
    assert_eq!(sessions.poll_answer(), Some((wait, Err(ReportError::NotJoined("h".into())))));
    assert!(sessions.handle_limits(at(1), "h", 1, at(10_000)).is_err());
    sessions.handle_leave(at(2), "h", 1);
    assert!(sessions.is_joined("h", 2));
    sessions.handle_leave(at(2), "h", 2);
    assert!(!sessions.is_joined("h", 2));
    let left = std::iter::from_fn(|| sessions.poll_event()).filter(|event| matches!(event, Event::Left(_)));
    assert_eq!(left.count(), 1);
}

#[test]
fn limits_of_a_cancelled_request_answer_the_next() {
    let mut sessions = sessions();
    let given_up = sessions.handle_limits(at(0), "h", 1, at(10_000)).expect("it is there");
    sessions.handle_given_up("h", given_up);
    sessions.handle_reports(at(1), "h", 1, &[flow(1)]).expect("it is taken");
    decide(&mut sessions, at(1));
    assert_eq!(sessions.poll_answer(), None);
    let next = sessions.handle_limits(at(2), "h", 1, at(10_000)).expect("it is there");
    assert_eq!(sessions.poll_answer(), Some((next, Ok(vec![limit(1, Some(LINK.as_bps()))]))));
}

#[test]
fn reports_during_a_decision_count_in_the_next() {
    let mut sessions = sessions();
    sessions.handle_reports(at(1), "h", 1, &[flow(1)]).expect("it is taken");
    let mut decision = sessions.begin_decision(at(1)).expect("there is a flow");
    sessions.handle_reports(at(2), "h", 1, &[flow(2)]).expect("it is heard");
    assert!(sessions.begin_decision(at(2)).is_none(), "one at a time");
    decision.make();
    sessions.end_decision(at(3), decision).expect("the link carries it");
    let mut decision = sessions.begin_decision(at(3)).expect("another flow has come");
    decision.make();
    sessions.end_decision(at(4), decision).expect("the link carries it");
    assert!(sessions.begin_decision(at(4)).is_none(), "all is decided");
}
