//! Exercises of untrusted input, for fuzz targets and the test of their corpora.

use crate::announcement::Announcement;
use crate::control::{FlowKey, Report};
use crate::coordinator::{ClassSettings, Host, check_name};
use crate::hosts::Hosts;
use crate::rules::Rules;
use crate::state;
use crate::{Chase, ChasePlus, Coordinator};
use anabranch_fluid::{Invariant, InvariantCheck, Network, RunError, benchmark, run};
use anabranch_units::{BitRate, Duration, Instant};

/// Parses a trace, and runs a small trace under both variants of Flow Chasing. Returns true if the
/// trace is valid.
#[doc(hidden)]
pub fn exercise_trace(bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else { return false };
    let Ok(trace) = benchmark::parse(text, usize::MAX) else { return false };
    if trace.flows.len() > 200 || trace.ports > 200 {
        return true;
    }
    let network = Network::big_switch(trace.ports, BitRate::gbps(1)).expect("ports have a rate");
    let end = |outcome: Result<_, RunError>| {
        assert!(matches!(outcome, Ok(_) | Err(RunError::TooLong(_))), "{:?}", outcome.err());
    };
    end(run(&network, &trace.flows, &mut InvariantCheck::new(Chase::default(), Invariant::WorkConserving)));
    end(run(
        &network,
        &trace.flows,
        &mut InvariantCheck::new(ChasePlus::default(), Invariant::WorkConserving),
    ));
    true
}

/// Handles each line as a JSON report of one of two agents in turn, 100 ms apart. Returns true if
/// all lines are valid.
#[doc(hidden)]
pub fn exercise_reports(bytes: &[u8]) -> bool {
    let mut coordinator = Coordinator::new(ClassSettings::default(), ChasePlus::default());
    let mut now = Instant::ZERO;
    for (name, last) in [("a", 1), ("b", 2)] {
        let host =
            Host { addresses: vec![[10, 0, 0, last].into()], rate: BitRate::mbps(100), uplinks: Vec::new() };
        coordinator.handle_join(now, name, 1, host).expect("it joins");
    }
    let mut do_all_read = true;
    for (line, name) in bytes.split(|byte| *byte == b'\n').zip(["a", "b"].into_iter().cycle()) {
        now += Duration::from_ms(100);
        match serde_json::from_slice::<Report>(line) {
            // A refused report does not change the links' loads.
            Ok(report) => drop(coordinator.handle_reports(now, name, 1, &[report])),
            Err(_) => do_all_read = false,
        }
        coordinator.decide(now).expect("links carry what is decided");
        coordinator.poll_limits(name, 1);
        coordinator.coflows(now);
    }
    do_all_read
}

/// Handles each line as an announcement of one host's programs, a millisecond apart. Returns true
/// if all announcements are accepted.
#[doc(hidden)]
pub fn exercise_announcements(bytes: &[u8]) -> bool {
    let mut coordinator = Coordinator::new(ClassSettings::default(), ChasePlus::default());
    let mut now = Instant::ZERO;
    let host = Host { addresses: vec![[10, 0, 0, 1].into()], rate: BitRate::mbps(100), uplinks: Vec::new() };
    coordinator.handle_join(now, "a", 1, host).expect("it joins");
    let mut are_all_taken = true;
    for line in bytes.split(|byte| *byte == b'\n') {
        now += Duration::from_ms(1);
        let report = match Announcement::read(line) {
            Ok(Announcement::Flow { flow, coflow, size_bytes }) => {
                Report::Flow { flow, coflow, size_bytes, open_ended: false }
            }
            Ok(Announcement::Ended { flow, .. }) => Report::Ended { flow },
            Err(error) => {
                let reason = error.to_string();
                assert!(!reason.is_empty() && !reason.contains('\n'), "{reason:?}");
                are_all_taken = false;
                continue;
            }
        };
        are_all_taken &= coordinator.handle_reports(now, "a", 1, &[report]).is_ok();
        coordinator.decide(now).expect("links carry what is decided");
    }
    are_all_taken
}

/// Parses rules, and determines the coflows of some flows by them. Returns true if the rules are
/// valid.
#[doc(hidden)]
pub fn exercise_rules(bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else { return false };
    let rules: Rules = match text.parse() {
        Ok(rules) => rules,
        Err(reason) => {
            assert!(!reason.to_string().contains('\n'), "{reason}");
            return false;
        }
    };
    for (local, remote) in [
        ("10.0.0.1:7337", "10.1.2.3:40000"),
        ("10.0.0.1:40000", "10.1.2.3:7000"),
        ("[fd00::1]:7337", "[2001:db8:1111:2222:3333:4444:5555:6666]:65535"),
        ("127.0.0.1:1", "[fe80::1%4]:1"),
    ] {
        let [local, remote] = [local, remote].map(|end| end.parse().expect("an address"));
        if let Some(name) = rules.coflow(FlowKey { local, remote }) {
            check_name(&name).expect("what rules call a coflow is a name");
        }
    }
    true
}

/// Parses a hosts file, and lets its hosts join. Returns true if the file is valid.
#[doc(hidden)]
pub fn exercise_hosts(bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else { return false };
    let hosts: Hosts = match text.parse() {
        Ok(hosts) => hosts,
        Err(reason) => {
            assert!(!reason.to_string().contains('\n'), "{reason}");
            return false;
        }
    };
    let mut coordinator = Coordinator::new(ClassSettings::default(), ChasePlus::default());
    for name in ["h1", "h2", "a"] {
        if let Some(placed) = hosts.place(name) {
            let rate = placed.link.unwrap_or(BitRate::mbps(100));
            let host = Host { addresses: placed.addresses.clone(), rate, uplinks: placed.uplinks.clone() };
            coordinator.handle_join(Instant::ZERO, name, 1, host).expect("what the file has may join");
        }
    }
    true
}

/// Parses an agent's state file, writes it and parses it again. Returns true if the file has a
/// valid line.
#[doc(hidden)]
pub fn exercise_state(bytes: &[u8]) -> bool {
    let left = state::read(bytes);
    let lines = left.limited.iter().map(|limited| state::StateLine::Limited(*limited));
    let bursts = state::StateLine::Bursts { tso_rtt_log: left.tso_rtt_log };
    let mut text = Vec::new();
    for line in lines.chain([bursts]) {
        serde_json::to_writer(&mut text, &line).expect("memory takes it");
        text.push(b'\n');
    }
    let again = state::read(&text);
    assert_eq!((&again.limited, again.tso_rtt_log), (&left.limited, left.tso_rtt_log));
    !left.limited.is_empty() || left.tso_rtt_log.is_some()
}
