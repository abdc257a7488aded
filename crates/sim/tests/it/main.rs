//! Tests of whole runs: invariants of every scenario, and agreement with theory.

#![allow(clippy::disallowed_methods, reason = "a test may read its own corpus")]

mod circuit;
mod laws;
mod rotor;
mod theory;

use anabranch_sim::scenario::{Scenario, Workload, read};
use anabranch_sim::{Outcome, Plan, Simulation, exercise};
use anabranch_testing::replay;

/// Parses `text`, which must give a single scenario.
fn scenario(text: &str) -> Scenario {
    let points = read("test", text, &[]).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(points.len(), 1);
    points[0].scenario.clone()
}

/// Plans `text`, with `topology` as the text of its topology file.
fn plan_with(text: &str, topology: &str) -> Plan {
    let read = |_: &str| Ok(topology.to_owned());
    Plan::new(scenario(text), &read).unwrap_or_else(|error| panic!("{error}"))
}

fn plan(text: &str) -> Plan {
    plan_with(text, "")
}

/// Runs one trial to its end.
fn run(plan: &Plan) -> Outcome {
    Simulation::<anabranch_fabric::QuadHeap>::new(plan, 0).expect("nothing is drawn").run()
}

/// Replays the corpora of the fuzz targets, and plans the repository's scenarios.
#[test]
fn corpora_and_scenarios_are_parsed_without_panic() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut seen = 0;
    let files = |folder: &str| {
        let paths = std::fs::read_dir(root.join(folder)).expect("it is part of the repository");
        let paths = paths.map(|file| file.expect("it can be listed").path());
        // Files to which scenarios refer are in folders next to the scenarios.
        let files = paths.filter(|path| !path.is_dir());
        files.map(|path| (std::fs::read(&path).expect("it can be read"), path)).collect::<Vec<_>>()
    };
    seen += replay("scenario_toml", anabranch_sim::exercise::exercise_scenario);
    seen += replay("scenario_files", exercise::exercise_files);
    seen += replay("scenario_set", exercise::exercise_sets);
    for (bytes, path) in files("scenarios") {
        // The result is not checked: it is false for a scenario that refers to a file.
        anabranch_sim::exercise::exercise_scenario(&bytes);
        let text = String::from_utf8(bytes).expect("text");
        for mut point in read("scenario", &text, &[]).expect("a good one") {
            point.scenario.workload.retain(|workload| !matches!(workload, Workload::System(_)));
            if let Some(circuit) = &mut point.scenario.circuit {
                circuit.schedule = None;
            }
            let beside = |name: &str| std::fs::read_to_string(root.join("scenarios").join(name));
            Plan::new(point.scenario, &beside).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        }
        seen += 1;
    }
    assert!(seen >= 10, "{seen}");
}

/// #17: sizes need units. All scenarios of experiments have units, swept values included.
#[test]
fn every_scenario_of_an_experiment_is_valid() {
    let experiments = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../experiments");
    let list = |folder: &std::path::Path| {
        let entries = std::fs::read_dir(folder).expect("it is part of the repository");
        entries.map(|entry| entry.expect("it can be listed").path()).collect::<Vec<_>>()
    };
    let mut seen = 0;
    for path in list(&experiments).iter().filter(|path| path.is_dir()).flat_map(|folder| list(folder)) {
        if path.extension().is_none_or(|extension| extension != "toml") {
            continue;
        }
        let text = std::fs::read_to_string(&path).expect("text");
        if text.contains("[network]") || text.contains("\nnetwork") {
            read("claim", &text, &[]).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            seen += 1;
        }
    }
    assert!(seen >= 15, "{seen}");
}

/// #17: a queue smaller than a packet passed only packets that arrived while it was empty.
#[test]
fn queue_must_hold_the_largest_packet() {
    let plan = |network: &str, workload: &str| {
        let text =
            format!("duration = \"1 s\"\nnetwork = {{ {network} }}\n[workload]\npairs = \"all\"\n{workload}");
        let topology = "site = [{ name = \"a\" }, { name = \"b\" }]\ncable = [{ between = [\"a\", \"b\"], queue = \"1 kB\" }]";
        let error = Plan::new(scenario(&text), &|_| Ok(topology.to_owned())).err();
        error.map(|error| error.to_string()).unwrap_or_default()
    };
    let star = |more: &str| format!("topology = \"star\", hosts = 3, {more}");
    let long = "kind = \"long\"";
    assert_eq!(plan(&star("queue = \"1500 B\""), long), "");
    assert_eq!(
        plan(&star("queue = \"1499 B\""), long),
        "network.queue: 1499 B: must hold at least a packet of 1500 B"
    );
    assert!(plan(&star("host_queue = \"1 kB\""), long).starts_with("network.host_queue: "));
    let dumbbell = "topology = \"dumbbell\", pairs = 2, uplink_queue = \"1 kB\"";
    assert!(plan(dumbbell, long).starts_with("network.uplink_queue: "));
    let udp = "kind = \"udp\"\nrate = \"1 Mbit/s\"\npacket = \"9000 B\"";
    assert!(plan(&star("queue = \"8999 B\""), udp).contains("a packet of 9000 B"));
    assert!(
        plan("topology = \"x.toml\"", long)
            .starts_with("network.topology: link a-b: queue 1000 B: must hold")
    );
}

#[test]
fn datagram_delay_is_path_delay_plus_queueing() {
    // 1,250 bytes take 100 us on each of two links with 1 ms delay. Of two simultaneous datagrams,
    // the second waits for the first.
    let delays = |pairs: &str| {
        let text = format!(
            "duration = \"1 s\"\nnetwork = {{ topology = \"star\", hosts = 3, rate = \"100 Mbit/s\", delay = \"1 ms\" }}\n\
             workload = {{ kind = \"udp\", pairs = {pairs}, rate = \"1 Mbit/s\", packet = \"1250 B\" }}"
        );
        let outcome = run(&plan(&text));
        let row = &outcome.workloads[0];
        [row.delay_us_p50, row.delay_us_p99].map(|delay| delay.expect("some arrive"))
    };
    assert_eq!(delays("[[\"h0\", \"h2\"]]"), [2_200.0, 2_200.0]);
    let [p50, p99] = delays("[[\"h0\", \"h2\"], [\"h1\", \"h2\"]]");
    // The buckets of the histogram are 1/32 wide.
    assert!((2_200.0..2_270.0).contains(&p50) && p99 == 2_300.0, "{p50}, {p99}");
}

#[test]
fn loss_bursts_must_be_possible() {
    let refused = |network: &str, more: &str| {
        let text = format!(
            "duration = \"1 s\"\nnetwork = {{ topology = \"star\", hosts = 3, {network} }}\n\
             workload = {{ kind = \"long\", pairs = 1 }}\n{more}"
        );
        let points = match read("test", &text, &[]) {
            Ok(points) => points,
            Err(error) => return error.to_string(),
        };
        let error = Plan::new(points[0].scenario.clone(), &|_| Ok(String::new())).err();
        error.map(|error| error.to_string()).unwrap_or_default()
    };
    let change = |what: &str| format!("[[change]]\nat = \"10 ms\"\nlink = \"hub-h0\"\n{what}");
    assert_eq!(refused("loss_ppm = 800000, loss_burst = 4", ""), "");
    let none = refused("loss_burst = 0", "");
    assert!(none.contains("network.loss_burst: 0: must be 1 to 1000000 packets"), "{none}");
    assert!(refused("loss_burst = 1000001", "").contains("network.loss_burst: 1000001: must"));
    assert_eq!(refused("loss_burst = 1000000", ""), "");
    assert_eq!(
        refused("loss_ppm = 800001, loss_burst = 4", ""),
        "network.loss_ppm: link loss 800001 ppm in bursts of 4: must be at most 800000 ppm, as between two bursts a packet arrives"
    );
    assert_eq!(refused("loss_ppm = 1000", &change("loss_burst = 8")), "");
    assert!(
        refused("loss_ppm = 900000", &change("loss_burst = 4")).starts_with("change[0]: link loss 900000")
    );
    // The network's burst length applies to changes, because a change keeps the settings that it
    // leaves out.
    let text = "duration = \"1 s\"\nworkload = { kind = \"long\", pairs = 1 }\n\
                network = { topology = \"star\", hosts = 3, loss_burst = 8 }\n\
                [[change]]\nat = \"10 ms\"\nlink = \"hub-h0\"\nloss_ppm = 1000\n";
    let plan = plan(text);
    let &(_, link, settings) = plan.changes().first().expect("it has one");
    assert_eq!((settings.loss_ppm, settings.loss_burst), (1_000, 8));
    assert_eq!(plan.network().port_settings(link).loss_burst, 8);
}

/// Returns the names between backticks, such as the list of fields in the message for an unknown
/// field.
fn names(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

#[test]
fn documentation_names_every_setting() {
    let docs = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/scenarios.md");
    let docs = std::fs::read_to_string(docs).expect("it is part of the repository");
    let documented: std::collections::BTreeSet<&str> = names(&docs).collect();
    let refused = |text: &str| {
        let error = anabranch_sim::scenario::read("test", text, &[])
            .expect_err("a setting of no such name is refused");
        assert!(error.message.contains("unknown field"), "{error}");
        error.message
    };
    let network = "network = { topology = \"star\", hosts = 2";
    let mut messages = vec![
        (String::new(), refused(&format!("what = 1\n{network} }}"))),
        (String::new(), refused(&format!("{network}, what = 1 }}"))),
        (String::new(), refused(&format!("{network} }}\ntransport = {{ what = 1 }}"))),
        ("probe.".to_owned(), refused(&format!("{network} }}\nprobe = {{ interval = \"1 s\", what = 1 }}"))),
        ("change.".to_owned(), refused(&format!("{network} }}\n[[change]]\nwhat = 1"))),
    ];
    for kind in ["long", "incast", "poisson", "udp", "trace"] {
        assert!(documented.contains(kind), "{kind}");
        let text = format!("{network} }}\nworkload = {{ kind = \"{kind}\", what = 1 }}");
        messages.push((String::new(), refused(&text)));
    }
    for (prefix, message) in &messages {
        for name in names(message).filter(|name| *name != "what") {
            let name = format!("{prefix}{name}");
            assert!(documented.contains(name.as_str()), "docs/scenarios.md does not say what `{name}` is");
        }
    }
}

/// The list of kinds depends on the systems; this plan has none.
#[test]
fn unknown_kind_is_reported_with_known_kinds() {
    let text =
        "duration = \"1 s\"\n[network]\ntopology = \"star\"\nhosts = 3\n[[workload]]\nkind = \"outcast\"\n";
    let error = Plan::new(scenario(text), &|_| Ok(String::new())).expect_err("nothing has it");
    assert_eq!(
        error.to_string(),
        "workload[0].kind: `outcast`: must be one of long, incast, poisson, udp, trace, racks"
    );
}
