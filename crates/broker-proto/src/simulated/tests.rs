//! Rounds, agents and players in the simulator: choice of clusters, cost of faults, and validation
//! of scenarios.

use super::SimulatedSystem;
use anabranch_sim::{Outcome, Plan, Simulation, scenario};

fn plan(text: &str) -> Result<Plan, String> {
    let point = scenario::read("test.toml", text, &[]).map_err(|error| error.to_string())?.remove(0);
    let read = |_: &str| Err(std::io::ErrorKind::NotFound.into());
    Plan::with_systems(point.scenario, &read, &[&SimulatedSystem]).map_err(|error| error.to_string())
}

/// Ten networks and forty players for a minute.
fn text(settings: &str) -> String {
    format!(
        r#"
        duration = "60 s"
        network = {{ topology = "star", hosts = 15, rate = "200 Mbit/s", delay = "2 ms", queue = "1 MiB" }}
        [workload]
        kind = "broker"
        networks = 10
        players = 40
        costs = [1.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0]
        cost_weight = 100.0
        arrivals = "15 s"
        ttl = "4 s"
        every = "5 s"
        bids_within = "1 s"
        {settings}
        "#
    )
}

fn run(settings: &str, trial: u64) -> Outcome {
    let plan = plan(&text(settings)).unwrap_or_else(|error| panic!("{error}"));
    let simulation: Simulation<'_> = Simulation::new(&plan, trial).expect("it can be planned");
    simulation.run()
}

#[test]
fn players_use_the_cheapest_network_and_never_stall() {
    let outcome = run("", 0);
    let more = &outcome.workloads[0].more;
    assert_eq!((more["players_begun"], more["stalls"], more["failures"]), (40.0, 0.0, 0.0), "{more:?}");
    // The first cluster has capacity for 60 players: nine tenths of its link.
    assert_eq!((more["cost_mean"], more["unplaced"]), (1.0, 0.0), "{more:?}");
    assert!(more["rounds_accepted"] >= 10.0, "{more:?}");
    assert!(more["decided_us_max"] < 500_000.0, "{more:?}");
    assert_eq!(run("", 0).network.event_hash, outcome.network.event_hash);
}

#[test]
fn network_failure_costs_seconds_and_its_players_move() {
    let faults = "faults = [{ what = \"network-dies\", network = 0, at = \"20 s\" }]\nsilent_after = \"6 s\"";
    let more = &run(faults, 0).workloads[0].more;
    assert!(more["failures"] >= 30.0, "{more:?}");
    assert!(more["stalled_share"] < 0.02, "buffers bridge what others take over: {more:?}");
    assert_eq!(more["cost_mean"], 2.0, "{more:?}");
}

#[test]
fn players_survive_a_broker_restart_without_stalls() {
    let faults = "faults = [{ what = \"broker-dies\", at = \"20 s\", until = \"35 s\" }]";
    let more = &run(faults, 0).workloads[0].more;
    assert_eq!((more["stalls"], more["cost_mean"]), (0.0, 1.0), "{more:?}");
    assert!(more["unanswered"] > 0.0, "{more:?}");
    assert!((5.0..11.0).contains(&more["rounds_accepted"]), "{more:?}");
}

#[test]
fn late_agent_has_no_players_and_harms_no_network() {
    let faults = "faults = [{ what = \"agent-late\", network = 0, at = \"0 s\" }]";
    let more = &run(faults, 0).workloads[0].more;
    assert_eq!((more["stalls"], more["cost_mean"]), (0.0, 2.0), "{more:?}");
}

#[test]
fn invalid_settings_are_refused_with_their_location() {
    let said = |settings: &str| plan(&text(settings)).expect_err("it is wrong");
    assert!(
        said("design = \"best\"").contains("design: `best`: there are "),
        "{}",
        said("design = \"best\"")
    );
    let fault = |fault: &str| said(&format!("faults = [{{ {fault} }}]"));
    assert!(fault("what = \"agent-dies\", at = \"1 s\"").contains("say which network"));
    assert!(fault("what = \"agent-dies\", network = 10, at = \"1 s\"").contains("there are 0 to 9"));
    assert!(fault("what = \"broker-dies\", network = 1, at = \"1 s\"").contains("leave `network` out"));
    assert!(fault("what = \"broker-dies\", at = \"5 s\", until = \"1 s\"").contains("has to end after that"));
    assert!(said("clusters = 2").contains("the network has 15"), "{}", said("clusters = 2"));
    assert!(said("buffer = \"1 s\"").contains("buffer: 1 s: must be 2 s"), "{}", said("buffer = \"1 s\""));
}
