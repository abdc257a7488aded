//! Whole transfers in the simulator: measured and planned rates, and the guarantees of the
//! machines.

use super::SimulatedSystem;
use anabranch_sim::{Outcome, Plan, Simulation, scenario};

fn plan(text: &str) -> Result<Plan, String> {
    let point = scenario::read("test.toml", text, &[]).map_err(|error| error.to_string())?.remove(0);
    Plan::with_systems(point.scenario, &read, &[&SimulatedSystem]).map_err(|error| error.to_string())
}

/// Two topologies: a line of three sites whose second link has a quarter of the rate, and three
/// paths of unequal capacities.
fn read(name: &str) -> std::io::Result<String> {
    match name {
        "crossing.toml" => Ok(crossing()),
        "line.toml" => Ok(LINE.to_owned()),
        _ => Err(std::io::ErrorKind::NotFound.into()),
    }
}

const LINE: &str = r#"
name = "line"
[[site]]
name = "a"
[[site]]
name = "b"
[[site]]
name = "c"
[[cable]]
between = ["a", "b"]
capacity = "20 Mbit/s"
delay = "2 ms"
[[cable]]
between = ["b", "c"]
capacity = "5 Mbit/s"
delay = "2 ms"
"#;

/// Three paths from `a` to `d`, of 8.9, 1.4 and 8.7 Mbit/s. The narrow path shares its first link
/// with the first path and its last link with the third.
fn crossing() -> String {
    let cable = |(a, b, mbps): (&str, &str, &str)| {
        format!("[[cable]]\nbetween = [\"{a}\", \"{b}\"]\ncapacity = \"{mbps} Mbit/s\"\ndelay = \"2 ms\"\n")
    };
    let cables =
        [("a", "b", "10.3"), ("b", "d", "8.9"), ("b", "c", "10"), ("a", "c", "8.7"), ("c", "d", "10.1")];
    let sites = ["a", "b", "c", "d"].map(|site| format!("[[site]]\nname = \"{site}\"\n")).concat();
    format!("name = \"crossing\"\n{sites}{}", cables.map(cable).concat())
}

fn run(text: &str) -> Outcome {
    let plan = plan(text).unwrap_or_else(|error| panic!("{error}"));
    let simulation: Simulation<'_> = Simulation::new(&plan, 0).expect("it can be planned");
    simulation.run()
}

fn butterfly(scheme: &str) -> Outcome {
    run(&format!(
        r#"
        network = {{ topology = "butterfly", ways_back = true, rate = "10 Mbit/s", queue = "64 KiB" }}
        transport = {{ receive_buffer = "128 KiB" }}
        [workload]
        kind = "replicate"
        from = "s"
        to = ["t1", "t2"]
        size = "16 MiB"
        symbol = "16 KiB"
        scheme = "{scheme}"
        send_buffer = "128 KiB"
        "#
    ))
}

#[test]
fn code_beats_packings_on_the_butterfly_as_planned() {
    for (scheme, planned_mbps) in [("coded", 20.0), ("packed", 15.0), ("single_path", 10.0)] {
        let outcome = butterfly(scheme);
        let row = &outcome.workloads[0];
        assert_eq!(row.more["planned_mbps"], planned_mbps, "{scheme}");
        assert_eq!(row.finished, Some(1), "{scheme}");
        let goodput_mbps = row.goodput_mbps.expect("something was moved");
        // Headers of TCP, IP and records take 4 %. The beginning and the end of 16 MiB take some
        // more.
        let share = goodput_mbps / planned_mbps;
        assert!((0.85..0.97).contains(&share), "{scheme}: {goodput_mbps} of {planned_mbps}");
    }
}

/// #48: without rate limits TCP gives the streams of these paths 14.5 Mbit/s of the planned 19.
#[test]
fn streams_of_unequal_rates_reach_their_planned_rates() {
    let outcome = run(r#"
        duration = "25 s"
        warmup = "5 s"
        network = { topology = "crossing.toml", queue = "64 KiB" }
        transport = { receive_buffer = "128 KiB" }
        [workload]
        kind = "replicate"
        from = "a"
        to = ["d"]
        symbol = "16 KiB"
        scheme = "packed"
        send_buffer = "128 KiB"
        "#);
    let row = &outcome.workloads[0];
    assert!((18.99..=19.0).contains(&row.more["planned_mbps"]), "{:?}", row.more);
    let share = row.goodput_mbps.expect("something was moved") / 19.0;
    // Headers of TCP, IP and records take 4 %.
    assert!((0.92..0.97).contains(&share), "{share}");
}

#[test]
fn runs_repeat_with_their_seed_and_differ_otherwise() {
    let drawn = |seed: u64, scheme: &str| {
        run(&format!(
            r#"
            seed = {seed}
            duration = "2 s"
            network = {{ topology = "internet2", rate = "5 Mbit/s", queue = "64 KiB" }}
            [workload]
            kind = "replicate"
            transfers = 3
            symbol = "4 KiB"
            scheme = "{scheme}"
            "#
        ))
    };
    assert_eq!(drawn(1, "auto"), drawn(1, "auto"));
    assert_ne!(drawn(1, "auto").network.event_hash, drawn(2, "auto").network.event_hash);
    assert!(drawn(1, "joint").workloads[0].goodput_mbps.is_some_and(|mbps| mbps > 5.0));
}

#[test]
fn slow_hop_throttles_the_previous_hop_without_loss() {
    let outcome = run(r#"
        duration = "12 s"
        warmup = "4 s"
        network = { topology = "line.toml", queue = "256 KiB" }
        transport = { receive_buffer = "64 KiB" }
        [workload]
        kind = "replicate"
        from = "a"
        to = ["c"]
        symbol = "4 KiB"
        buffer_packets = 8
        send_buffer = "64 KiB"
        "#);
    let sent =
        |from: &str| outcome.links.iter().find(|l| l.from == from && l.to > l.from).expect(from).sent_bytes;
    // Capacity of the two connections and the relay's two buffers of 8 packets, with headers.
    let held = (4 * 64 + 4 * 8 * 4) * 1024;
    assert!(sent("a") < sent("b") + held, "{} and {}", sent("a"), sent("b"));
    assert_eq!(outcome.network.dropped_queue_full, 0);
    let goodput_mbps = outcome.workloads[0].goodput_mbps.expect("it moves");
    assert!((4.7..5.0).contains(&goodput_mbps), "{goodput_mbps}");
}

#[test]
fn store_and_forward_takes_the_sum_of_hop_times() {
    let whole = |scheme: &str| {
        let outcome = run(&format!(
            r#"
            network = {{ topology = "line.toml", queue = "256 KiB" }}
            [workload]
            kind = "replicate"
            from = "a"
            to = ["c"]
            size = "4 MiB"
            symbol = "16 KiB"
            scheme = "{scheme}"
            "#
        ));
        outcome.workloads[0].fct_us_mean.expect("it is whole") / 1e6
    };
    // 4 MiB take 1.7 s at 20 Mbit/s and 6.7 s at 5 Mbit/s.
    let (streamed, stored) = (whole("steiner"), whole("steiner_store_and_forward"));
    assert!((6.7..7.4).contains(&streamed), "{streamed}");
    assert!((1.6..2.0).contains(&(stored - streamed)), "{stored} after {streamed}");
}

#[test]
fn fill_uses_capacity_that_coded_flows_leave() {
    let goodput_mbps = |fill: bool| {
        let outcome = run(&format!(
            r#"
            seed = 3
            duration = "15 s"
            warmup = "5 s"
            network = {{ topology = "internet2", rate = "10 Mbit/s", queue = "64 KiB" }}
            transport = {{ receive_buffer = "128 KiB" }}
            [workload]
            kind = "replicate"
            transfers = 4
            symbol = "4 KiB"
            buffer_packets = 8
            send_buffer = "128 KiB"
            scheme = "coded"
            fill = {fill}
            "#
        ));
        outcome.workloads[0].goodput_mbps.expect("all move")
    };
    let (without, with) = (goodput_mbps(false), goodput_mbps(true));
    assert!(with > 1.2 * without, "{with} Mbit/s with fill, {without} without");
}

#[test]
fn errors_name_the_invalid_setting() {
    let wrong = |settings: &str, network: &str| {
        plan(&format!("duration = \"1 s\"\n[network]\ntopology = {network}\n[workload]\nkind = \"replicate\"\n{settings}"))
            .expect_err("must be refused")
    };
    let (drawn, b4) = ("transfers = 2\n", "\"b4\"");
    for (settings, network, said) in [
        ("", b4, "workload[0]: give either `from` and `to`, or `transfers`"),
        ("transfers = 99", b4, "workload[0].transfers: 99: 1 to 13"),
        ("transfers = 2\ndestinations = 13", b4, "workload[0].destinations: 13: must be 1 to 12"),
        ("transfers = 2\nscheme = \"fast\"", b4, "workload[0].scheme: "),
        ("transfers = 2\nsymbol = \"2 MiB\"", b4, "workload[0].symbol: 2097152: must be 1 to 1048576"),
        ("transfers = 2\nspeed = 3", b4, "workload[0].speed: unknown field"),
        ("from = \"1\"\nto = [\"nowhere\"]", b4, "workload[0].to: "),
        (drawn, "\"star\"\nhosts = 4", "workload[0].kind: replicate: "),
    ] {
        let message = wrong(settings, network);
        assert!(message.starts_with(said), "{message}");
        assert!(!message.contains('\n'), "{message}");
    }
    let endless = "[network]\ntopology = \"b4\"\n[workload]\nkind = \"replicate\"\ntransfers = 1";
    assert_eq!(
        plan(endless).expect_err("no end"),
        "duration: missing: a workload here has no end of its own"
    );
}

/// #17: with `stagger` at its limit, transfers from the 186th on overflowed the clock.
#[test]
fn the_last_transfer_begins_within_the_longest_run() {
    let sites: String = (0..188).map(|site| format!("[[site]]\nname = \"s{site}\"\n")).collect();
    let ring =
        (0..188).map(|site| format!("[[cable]]\nbetween = [\"s{site}\", \"s{}\"]\n", (site + 1) % 188));
    let ring = sites + &ring.collect::<String>();
    let plan = |stagger: &str| {
        let text = format!(
            "duration = \"1 s\"\nnetwork.topology = \"ring.toml\"\n[workload]\nkind = \"replicate\"\ntransfers = 187\n\
             destinations = 1\nstagger = \"{stagger}\"\nscheme = \"single_path\""
        );
        let point = scenario::read("test.toml", &text, &[]).expect("a scenario").remove(0);
        Plan::with_systems(point.scenario, &|_| Ok(ring.clone()), &[&SimulatedSystem])
            .map_err(|error| error.to_string())
    };
    let said = plan("100000 s").expect_err("too late");
    assert!(
        said.starts_with("workload[0].stagger: 100000 s: the last of 187 transfers would begin"),
        "{said}"
    );
    assert!(plan("538 s").is_err(), "186 times 538 s are more than 100,000 s");
    assert!(plan("537 s").is_ok(), "186 times 537 s are less");
}
