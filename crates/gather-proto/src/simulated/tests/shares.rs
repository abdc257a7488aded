//! What a pull by `gather` has of a link beside flows of TCP: samples of `experiments/gather-fairness`, whose whole tables say more.

use super::Simulated;
use anabranch_sim::{Outcome, Plan, Simulation, scenario};
use std::fmt::Write as _;

/// One run of `text`, whose topology file is `topology`.
fn run(text: &str, topology: &str) -> Outcome {
    let point = scenario::read("test.toml", text, &[]).unwrap_or_else(|error| panic!("{error}")).remove(0);
    let read = |_: &str| Ok(topology.to_owned());
    let plan = Plan::with_systems(point.scenario, &read, &[&Simulated]);
    let plan = plan.unwrap_or_else(|error| panic!("{error}"));
    let simulation: Simulation<'_> = Simulation::new(&plan, 0).expect("it can be planned");
    simulation.run()
}

/// The shared link: its rate, the round trip across it, and how many products of the two its queue holds.
struct Link {
    mbps: f64,
    rtt_ms: f64,
    queue_bdps: f64,
}

/// What a pull from `servers` has of its fair share beside so many `flows` by this control, from the tenth second to the sixtieth.
fn share(link: &Link, servers: usize, control: &str, flows: usize, seed: u64) -> f64 {
    let Link { mbps, rtt_ms, queue_bdps } = *link;
    let queue = ((mbps * rtt_ms * 125.0 * queue_bdps) as u64).max(6_000);
    let mut topology = String::from("name = \"shared\"\n");
    for switch in ["left", "right"] {
        write!(topology, "[[site]]\nname = \"{switch}\"\nswitch = true\n").expect("text");
    }
    let mut hosts = vec![("right", "client".to_owned())];
    hosts.extend((0..servers).map(|server| ("left", format!("s{server}"))));
    let pairs = (0..flows).flat_map(|flow| [("left", format!("from{flow}")), ("right", format!("to{flow}"))]);
    hosts.extend(pairs);
    let cable = |a: &str, b: &str, mbps: f64, delay_ms: f64, queue: u64| {
        let delay_us = (1e3 * delay_ms) as u64;
        format!(
            "[[cable]]\nbetween = [\"{a}\", \"{b}\"]\ncapacity = \"{mbps} Mbit/s\"\ndelay = \"{delay_us} us\"\nqueue = \"{queue} B\"\n"
        )
    };
    for (_, host) in &hosts {
        write!(topology, "[[site]]\nname = \"{host}\"\n").expect("text");
    }
    topology += &cable("left", "right", mbps, rtt_ms / 4.0, queue);
    for (side, host) in &hosts {
        topology += &cable(side, host, 4.0 * mbps, rtt_ms / 8.0, 1 << 20);
    }
    let mut text = format!(
        r#"
        seed = {seed}
        duration = "60 s"
        warmup = "10 s"
        [network]
        topology = "shared.toml"
        jitter = "{:.0} us"
        [transport]
        control = "cubic"
        rack = true
        quick_ack = 16
        [[workload]]
        kind = "gather"
        client = "client"
        servers = {servers}
        rounds = 1
        block = "{} B"
        symbol = "1434 B"
        knows_link = false
        "#,
        12_000.0 / mbps,
        (mbps * 125e3 * 66.0) as u64,
    );
    for flow in 0..flows {
        write!(
            text,
            "\n[[workload]]\nkind = \"long\"\npairs = [[\"from{flow}\", \"to{flow}\"]]\ncontrol = \"{control}\"\njitter = \"500 ms\""
        )
        .expect("text");
    }
    let outcome = run(&text, &topology);
    let rates: Vec<f64> = outcome.workloads.iter().filter_map(|workload| workload.goodput_mbps).collect();
    assert_eq!(rates.len(), 1 + flows);
    let all: f64 = rates.iter().sum();
    assert!(all > 0.8 * mbps, "{rates:?}: the link stays busy");
    rates[0] * rates.len() as f64 / all
}

/// The median of three seeds.
fn median_share(link: &Link, servers: usize, control: &str, flows: usize) -> f64 {
    let mut shares: Vec<f64> = (1..=3).map(|seed| share(link, servers, control, flows, seed)).collect();
    shares.sort_unstable_by(f64::total_cmp);
    shares[1]
}

/// #19: three servers had 2 to 3 times the share of one party, most of it by their probes.
#[test]
fn a_pull_has_no_more_than_twice_its_share_beside_flows_of_cubic() {
    for (servers, queue_bdps, most) in [(3, 0.5, 1.8), (1, 0.5, 1.2)] {
        let share = median_share(&Link { mbps: 50.0, rtt_ms: 40.0, queue_bdps }, servers, "cubic", 4);
        assert!((0.5..most).contains(&share), "{servers} servers, a queue of {queue_bdps}: {share}");
    }
}

/// #19: beside Linux's BBR behind a short queue a pull had a tenth to a fourth of its share.
#[test]
fn a_pull_is_not_starved_by_the_first_version_of_bbr() {
    for (servers, flows, least) in [(1, 4, 0.6), (1, 1, 0.4), (3, 4, 1.0)] {
        let share = median_share(&Link { mbps: 50.0, rtt_ms: 40.0, queue_bdps: 0.5 }, servers, "bbr1", flows);
        assert!((least..2.2).contains(&share), "{servers} servers beside {flows} flows: {share}");
    }
}

/// #19: where servers have few packets in flight losses are not taken for chance's as long as others keep a queue.
#[test]
fn a_pull_cuts_its_rate_beside_others_where_it_has_few_packets_in_flight() {
    let share = median_share(&Link { mbps: 20.0, rtt_ms: 4.0, queue_bdps: 1.0 }, 3, "cubic", 4);
    assert!((1.0..3.0).contains(&share), "{share}");
}

/// #19: over 1 ms each burst of losses cut the rate at which servers may send together, to half of the link.
#[test]
fn bursts_of_losses_cost_little_more_than_themselves_over_a_short_way() {
    let mut topology = String::from(
        "name = \"bursts\"\n[[site]]\nname = \"switch\"\nswitch = true\n[[site]]\nname = \"client\"\n",
    );
    topology +=
        "[[cable]]\nbetween = [\"switch\", \"client\"]\ncapacity = \"100 Mbit/s\"\ndelay = \"250 us\"\n";
    topology += "loss_ppm = 50000\nloss_burst = 8\nqueue = \"25 kB\"\n";
    for server in 0..3 {
        write!(topology, "[[site]]\nname = \"s{server}\"\n").expect("text");
        write!(topology, "[[cable]]\nbetween = [\"s{server}\", \"switch\"]\ncapacity = \"200 Mbit/s\"\ndelay = \"250 us\"\n")
            .expect("text");
    }
    let goodput = |seed: u64| {
        let text = format!(
            r#"
            seed = {seed}
            duration = "60 s"
            [network]
            topology = "bursts.toml"
            jitter = "120 us"
            [workload]
            kind = "gather"
            client = "client"
            servers = 3
            rounds = 1
            same_block = true
            block = "32 MiB"
            symbol = "1434 B"
            knows_link = false
            "#
        );
        run(&text, &topology).workloads[0].goodput_mbps.expect("it has ended")
    };
    let goodputs: Vec<f64> = (1..=4).map(goodput).collect();
    let mean = goodputs.iter().sum::<f64>() / goodputs.len() as f64;
    assert!(mean > 70.0, "{goodputs:?}");
}
