//! Tests of rounds of pulls in the simulator: goodput against the ideal goodput, and validation of
//! scenarios.

mod shares;

use super::SimulatedSystem;
use anabranch_sim::{Outcome, Plan, Simulation, scenario};

fn plan(text: &str) -> Result<Plan, String> {
    let point = scenario::read("test.toml", text, &[]).map_err(|error| error.to_string())?.remove(0);
    let read = |_: &str| Err(std::io::ErrorKind::NotFound.into());
    Plan::with_systems(point.scenario, &read, &[&SimulatedSystem]).map_err(|error| error.to_string())
}

fn run(settings: &str, servers: usize, block_kib: u32, trial: u64) -> Outcome {
    run_with("", settings, servers, block_kib, trial)
}

fn run_with(of_run: &str, settings: &str, servers: usize, block_kib: u32, trial: u64) -> Outcome {
    let plan = plan(&format!(
        r#"
        {of_run}
        network = {{ topology = "star", hosts = {}, rate = "1 Gbit/s", delay = "25 us", queue = "64 KiB" }}
        [workload]
        kind = "gather"
        servers = {servers}
        block = "{block_kib} KiB"
        {settings}
        "#,
        servers + 1
    ))
    .unwrap_or_else(|error| panic!("{error}"));
    let simulation: Simulation<'_> = Simulation::new(&plan, trial).expect("it can be planned");
    simulation.run()
}

#[test]
fn goodput_is_near_ideal_for_any_number_of_servers() {
    for block_kib in [64, 256] {
        let mut before = 0.0;
        for servers in [1, 2, 5, 16, 60] {
            let outcome = run("rounds = 2", servers, block_kib, 0);
            let row = &outcome.workloads[0];
            let goodput = row.goodput_mbps.expect("rounds have ended");
            assert!(row.more["of_ideal_share"] >= 0.93, "{servers} servers: {goodput} Mbit/s");
            assert!(goodput >= before, "{servers} servers: {goodput} Mbit/s, fewer {before}");
            before = goodput;
            // Without loss, each block is sent once.
            assert_eq!((row.more["sent_packets_per_block"], outcome.network.dropped_queue_full), (1.0, 0));
        }
    }
}

#[test]
fn lttp_goodput_never_collapses() {
    for (decoder, least) in [("improved", 550.0), ("inactivation", 650.0)] {
        let settings = format!("mode = \"lttp\"\nrounds = 1\ndecoder = \"{decoder}\"");
        for servers in [15, 40] {
            let outcome = run(&settings, servers, 128, 1);
            let goodput = outcome.workloads[0].goodput_mbps.expect("the round has ended");
            assert!(goodput >= least && goodput < 900.0, "{decoder}, {servers} servers: {goodput} Mbit/s");
            assert!(outcome.network.dropped_queue_full > 0);
        }
    }
}

#[test]
fn both_rate_controls_find_an_unknown_link_rate() {
    for control in ["bbr", "tfrc"] {
        let settings = format!("knows_link = false\nrounds = 2\nrate_control = \"{control}\"");
        let outcome = run(&settings, 8, 1_024, 0);
        let goodput = outcome.workloads[0].goodput_mbps.expect("rounds have ended");
        assert!(goodput >= 700.0, "{control}: {goodput} Mbit/s");
    }
}

/// Issue #19: losses did not count while a grant limited servers, and five TCP flows had a tenth of
/// the link.
#[test]
fn pull_and_tcp_each_get_half_in_a_datacentre() {
    let text = include_str!("../../../../experiments/lttp/fairness-counted.toml");
    for (knows_link, rto_min) in [("true", "1 ms"), ("true", "200 ms"), ("false", "1 ms")] {
        let text = text
            .replace("mode = \"counted\"", &format!("mode = \"counted\"\nknows_link = {knows_link}"))
            .replace("rto_min = \"200 ms\"", &format!("rto_min = \"{rto_min}\""))
            .replace("duration = \"3 s\"", "duration = \"1500 ms\"");
        let plan = plan(&text).unwrap_or_else(|error| panic!("{error}"));
        let simulation: Simulation<'_> = Simulation::new(&plan, 0).expect("it can be planned");
        let outcome = simulation.run();
        let rates: Vec<f64> = outcome.workloads.iter().filter_map(|row| row.goodput_mbps).collect();
        let [gather, tcp] = rates[..] else { panic!("{rates:?}") };
        let share = gather / (gather + tcp);
        assert!(
            (1.0 / 3.0..2.0 / 3.0).contains(&share),
            "{knows_link}, {rto_min}: {gather}, TCP {tcp} Mbit/s"
        );
    }
}

/// Issue #19: a rate control that takes every loss for congestion wastes the benefit of the code.
#[test]
fn random_loss_costs_little_more_than_the_lost_packets() {
    let share = |servers: u32, loss_ppm: u32, control: &str| {
        let plan = plan(&format!(
            r#"
            network = {{ topology = "star", hosts = {}, rate = "100 Mbit/s", delay = "5 ms", queue = "250 kB", loss_ppm = {loss_ppm} }}
            [workload]
            kind = "gather"
            servers = {servers}
            block = "{} MiB"
            rounds = 1
            knows_link = false
            rate_control = "{control}"
            "#,
            servers + 1,
            16 / servers,
        ));
        let plan = plan.unwrap_or_else(|error| panic!("{error}"));
        let simulation: Simulation<'_> = Simulation::new(&plan, 0).expect("it can be planned");
        let arrives = (1.0 - f64::from(loss_ppm) / 1e6).powi(2);
        simulation.run().workloads[0].more["of_ideal_share"] / arrives
    };
    for loss_ppm in [0, 1_000, 10_000, 50_000] {
        for servers in [1, 4] {
            let found = share(servers, loss_ppm, "bbr");
            assert!(found > 0.83, "{servers} servers, {loss_ppm} ppm: {found}");
        }
    }
    assert!(share(1, 10_000, "tfrc") < 0.1, "what this replaced");
}

#[test]
fn servers_are_drawn_alike_for_gather_and_tcp() {
    let network = "network = { topology = \"fat-tree\", k = 4 }\n";
    let servers = |kind: &str, trial| {
        let plan = plan(&format!(
            "{network}[workload]\nkind = \"{kind}\"\nservers = 5\nblock = \"4 KiB\"\nrounds = 1\nrandom_servers = true"
        ));
        let plan = plan.unwrap_or_else(|error| panic!("{error}"));
        let simulation: Simulation<'_> = Simulation::new(&plan, trial).expect("it can be planned");
        let senders = simulation.run().flows.into_iter().filter(|flow| flow.to == "h0").map(|flow| flow.from);
        senders.collect::<Vec<_>>()
    };
    assert_eq!(servers("gather", 0), servers("incast", 0));
    assert_ne!(servers("gather", 0), servers("gather", 1));
    assert_ne!(servers("gather", 0), ["h1", "h2", "h3", "h4", "h5"]);
}

#[test]
fn probes_measure_pulls_that_last_the_whole_run() {
    let outcome = run_with(
        "duration = \"300 ms\"\nwarmup = \"100 ms\"\nprobe = { interval = \"50 ms\", flows = 9, links = [\"hub-h0\"] }",
        "mode = \"lttp\"\ndecoder = \"inactivation\"\nrounds = 1",
        3,
        65_536,
        0,
    );
    let row = &outcome.workloads[0];
    assert_eq!(row.rounds, None, "the run ends first");
    let goodput = row.goodput_mbps.expect("packets have come");
    assert!((850.0..1_000.0).contains(&goodput), "{goodput} Mbit/s");
    let (least, most) = (row.probed_share_min.expect("flows"), row.probed_share_max.expect("flows"));
    assert!(least > 0.3 && least < 1.0 && most > 1.0 && most < 2.0, "{least} to {most}");
    assert_eq!(row.probed_idle_us_max, Some(0.0));
    assert!(row.probed_link_use_share_min > Some(0.9));
    let flows = |sample: &&anabranch_sim::Sample| sample.what.starts_with("flow");
    // Control streams do not count as data flows, and every sender has an allowed rate.
    assert_eq!(outcome.series.iter().filter(flows).filter(|sample| sample.time_s < 0.051).count(), 3);
    assert!(outcome.series.iter().filter(flows).all(|sample| sample.allowed_mbps > Some(0.0)));
}

/// The paper's packet counts for three block sizes. Of the paper's mean degrees (4.29, 4.73, 6.88)
/// only the last is matched: our mean degrees are 5.1 and 5.9 for the first two sizes.
#[test]
fn packet_counts_match_table_1_of_the_paper() {
    let trials = 20;
    for (kib, packets_paper, degree_paper) in [(64, 68.0, None), (128, 137.0, None), (256, 271.0, Some(6.88))]
    {
        let (mut packets, mut degree) = (0.0, 0.0);
        for trial in 0..trials {
            let outcome = run("mode = \"lttp\"\ndecoder = \"inactivation\"\nrounds = 1", 1, kib, trial);
            let more = &outcome.workloads[0].more;
            packets += more["received_packets_per_pull"] / trials as f64;
            degree += more["packets_degree_mean"] / trials as f64;
            let came = more["received_packets_per_pull"] * (1_025.0 + more["packets_degree_mean"]);
            assert!((more["overhead_share"] - (came / (f64::from(kib) * 1_024.0) - 1.0)).abs() < 1e-9);
        }
        println!("{kib} KiB: {packets} packets, the paper {packets_paper}; a mean degree of {degree}");
        assert!((packets / packets_paper - 1.0f64).abs() < 0.05, "{kib} KiB: {packets}");
        assert!(
            degree_paper.is_none_or(|paper: f64| (degree / paper - 1.0).abs() < 0.1),
            "{kib} KiB: {degree}"
        );
    }
}

#[test]
fn equal_seeds_give_equal_runs() {
    let hash = |trial| run("mode = \"lttp\"\nrounds = 1", 5, 64, trial).network.event_hash;
    assert_eq!(hash(3), hash(3));
    assert_ne!(hash(3), hash(4));
}

#[test]
fn invalid_settings_are_refused_by_name() {
    for (settings, said) in [
        ("servers = 4", "workload[0].servers: 4: the network has 4 hosts, one of them the client"),
        ("servers = 2\nclient = \"nobody\"", "workload[0].client: "),
        ("servers = 2\nblock = \"0 B\"", "workload[0].block: 0: must be 1 to 1099511627776"),
        (
            "servers = 2\nmode = \"tcp\"",
            "workload[0].mode: unknown variant `tcp`, expected `lttp` or `counted`",
        ),
        (
            "servers = 2\ndecoder = \"improved\"",
            "workload[0].decoder: improved: must be inactivation in mode counted",
        ),
        ("servers = 2\nwindow = 1024", "workload[0].window: 1024 generations: must be 1 to 1023 generations"),
    ] {
        let text =
            format!("[network]\ntopology = \"star\"\nhosts = 4\n[workload]\nkind = \"gather\"\n{settings}");
        let message = plan(&text).expect_err("must be refused");
        assert!(message.starts_with(said) && !message.contains('\n'), "{message}");
    }
}
