//! What fuzzers and the corpus's tests do with bytes from outside.

use crate::control::Report;
use crate::coordinator::{Host, Settings};
use crate::{Chase, ChasePlus, Coordinator};
use anabranch_fluid::{Law, Network, RunError, Watched, benchmark, run};
use anabranch_units::{BitRate, Duration, Instant};

/// Reads a trace; a small one is run under both of Flow Chasing's rules. True if it reads.
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
    end(run(&network, &trace.flows, &mut Watched::new(Chase::default(), Law::WorkConserving)));
    end(run(&network, &trace.flows, &mut Watched::new(ChasePlus::default(), Law::WorkConserving)));
    true
}

/// Takes lines of JSON for the reports of two agents in turns, each 100 ms after the one before. True if all of them
/// read.
#[doc(hidden)]
pub fn exercise_reports(bytes: &[u8]) -> bool {
    let mut coordinator = Coordinator::new(Settings::default(), ChasePlus::default());
    let mut now = Instant::ZERO;
    for (name, last) in [("a", 1), ("b", 2)] {
        let host = Host { addresses: vec![[10, 0, 0, last].into()], rate: BitRate::mbps(100) };
        coordinator.handle_join(now, name, 1, host).expect("it joins");
    }
    let mut do_all_read = true;
    for (line, name) in bytes.split(|byte| *byte == b'\n').zip(["a", "b"].into_iter().cycle()) {
        now += Duration::from_ms(100);
        match serde_json::from_slice::<Report>(line) {
            // What is refused changes nothing that links carry.
            Ok(report) => drop(coordinator.handle_reports(now, name, 1, &[report])),
            Err(_) => do_all_read = false,
        }
        coordinator.decide(now).expect("links carry what is decided");
        coordinator.poll_limits(name, 1);
        coordinator.transfers(now);
    }
    do_all_read
}
