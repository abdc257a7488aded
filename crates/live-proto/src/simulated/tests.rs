//! Tests of trees, viewers and faults in the simulator, and of invalid settings.

use super::SimulatedSystem;
use anabranch_sim::{Outcome, Plan, Simulation, scenario};

fn plan(text: &str) -> Result<Plan, String> {
    let point = scenario::read("test.toml", text, &[]).map_err(|error| error.to_string())?.remove(0);
    let read = |name: &str| match name {
        "testbed.toml" => Ok(testbed()),
        _ => Err(std::io::ErrorKind::NotFound.into()),
    };
    Plan::with_systems(point.scenario, &read, &[&SimulatedSystem]).map_err(|error| error.to_string())
}

/// A scenario with a source, two reflectors, three edges, and twelve viewers of four channels,
/// unless `settings` say otherwise.
fn text(settings: &str) -> String {
    let usual = ["edges = 3", "channels = 4", "viewers = 12", "arrivals = \"5 s\"", "buffer = \"1 s\""];
    let is_given =
        |line: &&str| settings.lines().any(|own| own.split(" =").next() == line.split(" =").next());
    let usual: Vec<&str> = usual.into_iter().filter(|line| !is_given(line)).collect();
    format!(
        r#"
        duration = "40 s"
        warmup = "10 s"
        network = {{ topology = "star", hosts = 11, rate = "100 Mbit/s", delay = "2 ms", queue = "1 MiB" }}
        [workload]
        kind = "live"
        {}
        {settings}
        "#,
        usual.join("\n")
    )
}

/// The testbed of §4.7.2 with links of 12 Mbit/s: two sources, two reflectors and six edges, each
/// tier fully connected to the next. The controller is 10 ms away, and a host of viewers is 2 ms
/// from each edge.
fn testbed() -> String {
    let nodes = ["s0", "s1", "r0", "r1", "e0", "e1", "e2", "e3", "e4", "e5"];
    let hosts = ["ctl"].into_iter().chain(nodes).map(str::to_owned).chain((0..6).map(|v| format!("v{v}")));
    let mut text = "name = \"testbed\"\n[[site]]\nname = \"net\"\nswitch = true\n".to_owned();
    hosts.for_each(|host| text += &format!("[[site]]\nname = \"{host}\"\n"));
    let mut cable = |a: &str, b: &str, capacity: &str, delay: &str| {
        text += &format!(
            "[[cable]]\nbetween = [\"{a}\", \"{b}\"]\ncapacity = \"{capacity}\"\ndelay = \"{delay}\"\n"
        );
    };
    cable("ctl", "net", "1 Gbit/s", "9 ms");
    for (at, node) in nodes.iter().enumerate() {
        cable(node, "net", "1 Gbit/s", "1 ms");
        let children = if at < 2 { 2..4 } else { 4..10 };
        for child in children.filter(|_| at < 4) {
            cable(node, nodes[child], "12 Mbit/s", "5 ms");
        }
    }
    (0..6).for_each(|viewers| cable(&format!("v{viewers}"), "net", "1 Gbit/s", "1 ms"));
    text
}

/// Runs twelve channels of 1.4 Mbit/s with one viewer each in the testbed.
fn testbed_run(settings: &str, trial: u64) -> Outcome {
    let text = format!(
        r#"
        duration = "40 s"
        warmup = "5 s"
        network = {{ topology = "testbed.toml", queue = "256 KiB", host_queue = "256 KiB" }}
        [workload]
        kind = "live"
        sources = 2
        edges = 6
        channels = 12
        viewers = 12
        bitrates = ["1400 kbit/s"]
        part = "1 s"
        buffer = "3 s"
        arrivals = "3 s"
        source_capacity = "12 Mbit/s"
        reflector_capacity = "12 Mbit/s"
        {settings}
        "#
    );
    run_text(&text, trial)
}

fn run(settings: &str, trial: u64) -> Outcome {
    run_text(&text(settings), trial)
}

fn run_text(text: &str, trial: u64) -> Outcome {
    let plan = plan(text).unwrap_or_else(|error| panic!("{error}"));
    let simulation: Simulation<'_> = Simulation::new(&plan, trial).expect("it can be planned");
    simulation.run()
}

#[test]
fn viewers_watch_without_a_stall() {
    let outcome = run("", 0);
    let row = &outcome.workloads[0];
    let more = &row.more;
    assert_eq!((more["watching"], more["stalls"], more["failures"]), (12.0, 0.0, 0.0), "{more:?}");
    // Twelve viewers receive 1 Mbit/s each.
    let goodput = row.goodput_mbps.expect("parts arrived");
    assert!((11.5..12.5).contains(&goodput), "{goodput}");
    // A request takes a round trip of 8 ms. A part of 25 kB takes 2 ms on each of six cables.
    assert!((4.0..40.0).contains(&more["part_age_ms_p99"]), "{more:?}");
    assert!(more["plans"] >= 2.0, "{more:?}");
    assert_eq!(run("", 0).network.event_hash, outcome.network.event_hash);
}

#[test]
fn each_node_requests_a_part_once() {
    let more = &run("viewers = 100", 0).workloads[0].more;
    assert_eq!(more["watching"], 100.0, "{more:?}");
    // In 30 s each channel has 150 parts, fetched by at most two reflectors and three edges.
    assert!(more["upstream_parts"] <= 4.0 * 155.0 * 5.0, "{more:?}");
    assert!(more["segments"] > 100.0 * 145.0, "{more:?}");
}

#[test]
fn failed_reflector_causes_no_stall() {
    let faults = r#"faults = [{ what = "node-dies", node = "reflector-0", at = "20 s" }]"#;
    for trial in 0..3 {
        let more = &run(faults, trial).workloads[0].more;
        assert_eq!((more["watching"], more["stalls"]), (12.0, 0.0), "{trial}: {more:?}");
    }
}

#[test]
fn failure_of_only_source_stalls_all_viewers() {
    let faults = r#"faults = [{ what = "node-dies", node = "source-0", at = "20 s" }]"#;
    let more = &run(faults, 0).workloads[0].more;
    assert!(more["stalls"] >= 12.0, "{more:?}");
    let more = &run(&format!("sources = 2\n{faults}"), 0).workloads[0].more;
    assert_eq!((more["watching"], more["stalls"]), (12.0, 0.0), "{more:?}");
}

#[test]
fn viewers_of_a_failed_edge_move_to_another_edge() {
    let faults = r#"faults = [{ what = "node-dies", node = "edge-0", at = "20 s", until = "30 s" }]"#;
    let more = &run(faults, 0).workloads[0].more;
    assert_eq!(more["watching"], 12.0, "{more:?}");
    assert!(more["moves"] >= 1.0 && more["failures"] >= 1.0, "{more:?}");
}

#[test]
fn failed_controller_and_drained_reflector_cause_no_stall() {
    let faults = r#"faults = [
        { what = "controller-dies", at = "12 s", until = "25 s" },
        { what = "drain", node = "reflector-1", at = "30 s" },
    ]"#;
    let more = &run(faults, 0).workloads[0].more;
    assert_eq!((more["watching"], more["stalls"], more["failures"]), (12.0, 0.0, 0.0), "{more:?}");
}

#[test]
fn drained_testbed_reflector_causes_no_stall() {
    let faults = r#"faults = [{ what = "drain", node = "reflector-0", at = "12 s" }]"#;
    for trial in 0..5 {
        let more = &testbed_run(faults, trial).workloads[0].more;
        assert_eq!((more["watching"], more["stalls"]), (12.0, 0.0), "{trial}: {more:?}");
    }
}

#[test]
fn narrow_links_refuse_viewers_or_lower_their_bitrate() {
    let narrow = "bitrates = [\"4 Mbit/s\", \"1 Mbit/s\"]\nreflector_capacity = \"4.5 Mbit/s\"";
    let more = &run(narrow, 0).workloads[0].more;
    assert!(more["refused"] > 0.0 && more["stalls"] == 0.0, "{more:?}");
    assert!(more["watching"] >= 10.0, "{more:?}");
}

/// One node has two faults of one kind at different times, and two faults of different kinds at
/// once.
#[test]
fn separate_faults_of_one_node_are_accepted() {
    let faults = "faults = [{ what = \"node-dies\", node = \"edge-0\", at = \"9 s\", until = \"12 s\" }, \
                  { what = \"node-dies\", node = \"edge-0\", at = \"3 s\", until = \"8 s\" }, \
                  { what = \"drain\", node = \"edge-0\", at = \"4 s\" }]";
    assert_eq!(plan(&text(faults)).err(), None);
}

#[test]
fn bad_settings_are_refused_in_one_line() {
    for (settings, line) in [
        ("sources = 0", "sources: 0: must be 1 to 500"),
        (
            "reflectors = 200\nedges = 327",
            "reflectors: 200: with 1 sources and 327 edges there are 65600 links",
        ),
        ("part = \"1 ms\"", "part: 1 ms: must be"),
        ("bitrates = []", "bitrates: must be 1 to 16 rates, each once"),
        ("edge = 3", "unknown field `edge`"),
        ("faults = [{ what = \"node-dies\", node = \"edge-9\", at = \"1 s\" }]", "node `edge-9`: there are"),
        ("faults = [{ what = \"drain\", at = \"1 s\" }]", "name the node"),
        ("faults = [{ what = \"controller-dies\", node = \"edge-0\", at = \"1 s\" }]", "leave `node` out"),
        (
            "faults = [{ what = \"node-dies\", node = \"edge-0\", at = \"9 s\", until = \"12 s\" }, \
             { what = \"node-dies\", node = \"edge-0\", at = \"3 s\", until = \"9 s\" }]",
            "at 3 s: edge-0 has this fault from 9 s to 12 s already: join the two",
        ),
        (
            "faults = [{ what = \"controller-dies\", at = \"3 s\" }, { what = \"controller-dies\", at = \"9 s\" }]",
            "at 9 s: the controller has this fault from 3 s to the end of the run already",
        ),
    ] {
        let error = plan(&text(settings)).expect_err(settings);
        assert!(error.contains(line) && !error.contains('\n'), "{settings}: {error}");
    }
    let error = plan(&text("reflectors = 20")).expect_err("too few hosts");
    assert!(error.contains("take 26 hosts; the network has 11"), "{error}");
}
