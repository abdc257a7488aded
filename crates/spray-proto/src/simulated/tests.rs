//! Scenarios with `spray`'s layer: faster short flows, completeness of transfers under every
//! scheme, and refused settings. Read [`run`] first.

use super::SimulatedSystem;
use anabranch_sim::scenario::read;
use anabranch_sim::{Outcome, Plan, Simulation};

const NETWORK: &str = r#"
seed = 3
[network]
topology = "leaf-spine"
tors = 2
spines = 8
hosts = 8
rate = "10 Gbit/s"
uplink_rate = "1 Gbit/s"
delay = "12 us"
queue_packets = 256
queue = "400 kB"
"#;

/// Runs short flows beside long flows, and returns the outcome of the run.
fn run(spread: &str, spray: &str) -> Outcome {
    let network = NETWORK.replace("queue_packets", &format!("spread = \"{spread}\"\nqueue_packets"));
    let work = r#"
[[workload]]
kind = "long"
pairs = [["h0", "h8"], ["h1", "h9"]]
size = "20 MB"
[[workload]]
kind = "long"
pairs = [["h2", "h10"], ["h3", "h11"], ["h4", "h12"], ["h5", "h13"], ["h6", "h14"]]
size = "60 kB"
start = "5 ms"
jitter = "40 ms"
streams = 8
"#;
    let point = read("test", &format!("{network}{work}{spray}"), &[]).expect("it is right").remove(0);
    let plan = Plan::with_systems(
        point.scenario,
        &|_| Err(std::io::ErrorKind::NotFound.into()),
        &[&SimulatedSystem],
    );
    Simulation::<anabranch_fabric::QuadHeap>::new(&plan.expect("it can be"), 0).expect("it can run").run()
}

#[test]
fn short_flows_beat_hashing_and_uncoded_spraying() {
    let layer = "[[workload]]\nkind = \"spray\"\nrate = \"1 Gbit/s\"\n";
    let caps = run("caps", layer);
    let [long, short, spray] = &caps.workloads[..] else { panic!("three workloads") };
    assert_eq!((long.finished, short.finished), (Some(2), Some(40)));
    // Each flow has 42 segments.
    assert!(spray.more["source_packets"] >= 40.0 * 42.0, "{:?}", spray.more);
    assert!(spray.more["recovered_packets"] > 0.0, "{:?}", spray.more);
    let mean = |outcome: &Outcome| outcome.workloads[1].fct_us_mean.expect("all are whole");
    let (hashed, uncoded) = (run("ecmp", ""), run("caps", &format!("{layer}scheme = \"classes\"\n")));
    assert!(mean(&caps) < 0.5 * mean(&hashed), "{} {}", mean(&caps), mean(&hashed));
    assert!(mean(&caps) < mean(&uncoded), "{} {}", mean(&caps), mean(&uncoded));
}

#[test]
fn every_scheme_delivers_all_bytes() {
    for (spread, scheme) in [
        ("caps", "caps"),
        ("freeway", "classes"),
        ("ecmp", "priority"),
        ("presto", "presto"),
        ("letflow", "classes"),
        ("drill", "classes"),
        ("ecmp", "plb"),
        ("ecmp", "prr"),
        ("ecmp", "reps"),
        ("ecmp", "bitmap"),
        ("ecmp", "mixed"),
    ] {
        let outcome = run(spread, &format!("[[workload]]\nkind = \"spray\"\nscheme = \"{scheme}\"\n"));
        let finished: Vec<Option<u64>> = outcome.workloads.iter().map(|row| row.finished).collect();
        assert_eq!(finished[..2], [Some(2), Some(40)], "{spread} {scheme}");
    }
}

#[test]
fn invalid_settings_are_refused_with_their_place() {
    for (settings, place, message) in [
        ("unit = 0", "workload[0].unit", "unit of 0 packets: must be 1 to 64"),
        ("parities = 65", "workload[0].parities", "65 parities: must be 0 to 64"),
        ("hold_max = \"2 s\"", "workload[0].hold_max", "hold of 2 s: must be at most 1 s"),
    ] {
        let text = format!("{NETWORK}[[workload]]\nkind = \"spray\"\n{settings}\n");
        let point = read("test", &text, &[]).expect("it is right").remove(0);
        let plan = Plan::with_systems(
            point.scenario,
            &|_| Err(std::io::ErrorKind::NotFound.into()),
            &[&SimulatedSystem],
        );
        let error = plan.expect_err("it cannot be");
        assert_eq!((error.field.as_str(), error.message.as_str()), (place, message));
    }
    let twice = format!("{NETWORK}{}", "[[workload]]\nkind = \"spray\"\n".repeat(2));
    let point = read("test", &twice, &[]).expect("it is right").remove(0);
    let plan = Plan::with_systems(
        point.scenario,
        &|_| Err(std::io::ErrorKind::NotFound.into()),
        &[&SimulatedSystem],
    );
    assert_eq!(plan.expect_err("there are two").field, "workload[1].kind");
}
