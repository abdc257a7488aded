//! Tests of invariants: no uncounted loss, no link above its rate, monotonic time, equal runs for
//! equal seeds.

use super::{plan, run};
use anabranch_endpoint::{Endpoint as _, PeerId};
use anabranch_fabric::{Event, EventQueue, QuadHeap};
use anabranch_sim::{Network, Plan, Simulation};
use anabranch_units::{BitRate, ByteCount, Duration, Instant, RunInstant, Seed};
use std::collections::BTreeMap;

/// Scenarios that together use every element, transport and workload.
const SCENARIOS: [(&str, &str); 11] = [
    (
        "incast",
        r#"
        [network]
        topology = "star"
        hosts = 17
        queue = "32 KiB"
        [workload]
        kind = "incast"
        servers = 16
        block = "64 KiB"
        rounds = 3
        jitter = "20 us"
        "#,
    ),
    (
        "cubic on a dumbbell with a link that goes down",
        r#"
        duration = "300 ms"
        [network]
        topology = "dumbbell"
        pairs = 4
        uplink_rate = "100 Mbit/s"
        uplink_delay = "2 ms"
        uplink_queue = "50 kB"
        [transport]
        control = "cubic"
        [workload]
        kind = "long"
        pairs = "halves"
        jitter = "10 ms"
        [[change]]
        at = "100 ms"
        link = "left-right"
        up = false
        [[change]]
        at = "120 ms"
        link = "left-right"
        up = true
        rate = "50 Mbit/s"
        "#,
    ),
    (
        "dctcp in a leaf-spine",
        r#"
        duration = "20 ms"
        [network]
        topology = "leaf-spine"
        tors = 3
        spines = 2
        hosts = 4
        mark = "30 kB"
        [transport]
        control = "dctcp"
        ecn = true
        [workload]
        kind = "long"
        pairs = "permutation"
        "#,
    ),
    (
        "poisson arrivals, packet by packet",
        r#"
        [network]
        topology = "fat-tree"
        k = 4
        spread = "rps"
        [workload]
        kind = "poisson"
        load = 0.5
        sizes = "web-search"
        flows = 60
        "#,
    ),
    (
        "a permutation over hashed paths",
        r#"
        duration = "20 ms"
        [network]
        topology = "fat-tree"
        k = 4
        queue = "64 KiB"
        [workload]
        kind = "long"
        pairs = "permutation"
        streams = 2
        "#,
    ),
    (
        "bursts of datagrams beside a transfer, with loss and bit errors",
        r#"
        duration = "100 ms"
        [network]
        topology = "star"
        hosts = 4
        rate = "100 Mbit/s"
        queue = "20 kB"
        queue_packets = 10
        loss_ppm = 2000
        loss_burst = 4
        bit_errors_ppt = 10000
        [[workload]]
        kind = "udp"
        pairs = [["h0", "h3"], ["h1", "h3"]]
        rate = "80 Mbit/s"
        on = "2 ms"
        off = "2 ms"
        [[workload]]
        kind = "long"
        pairs = [["h2", "h3"]]
        "#,
    ),
    (
        "priorities and a shared buffer",
        r#"
        duration = "20 ms"
        [network]
        topology = "star"
        hosts = 6
        shared_buffer = "100 kB"
        shared_factor = 1.0
        jitter = "1 us"
        [[workload]]
        kind = "long"
        pairs = [["h0", "h5"], ["h1", "h5"]]
        priority = 0
        [[workload]]
        kind = "long"
        pairs = [["h2", "h5"], ["h3", "h4"]]
        priority = 2
        "#,
    ),
    (
        "between cities",
        r#"
        duration = "400 ms"
        [network]
        topology = "internet2"
        rate = "20 Mbit/s"
        queue = "100 kB"
        jitter = "100 us"
        [workload]
        kind = "long"
        pairs = [["0", "8"], ["4", "2"], ["7", "1"]]
        "#,
    ),
    (
        "without delay, jitter or handshake",
        r#"
        duration = "5 ms"
        [network]
        topology = "star"
        hosts = 5
        delay = "0 s"
        jitter = "5 us"
        [transport]
        handshake = false
        sack = false
        [workload]
        kind = "long"
        pairs = 1
        "#,
    ),
    (
        "nscc over a fat tree that sprays, an acknowledgement for every fourth segment",
        r#"
        duration = "5 ms"
        [network]
        topology = "fat-tree"
        k = 4
        spread = "rps"
        rate = "10 Gbit/s"
        queue = "40 kB"
        mark = "20 kB"
        jitter = "100 ns"
        acks_first = true
        [transport]
        control = "nscc"
        cwnd_max = "45 kB"
        initial_window_segments = 30
        ecn = true
        rack = true
        rack_reo_wnd_mult = 8
        ack_every = 4
        delayed_ack = "10 us"
        [workload]
        kind = "long"
        pairs = "permutation"
        size = "500 kB"
        "#,
    ),
    (
        "bbr on a link that becomes slower and loses some",
        r#"
        duration = "2 s"
        [network]
        topology = "dumbbell"
        pairs = 3
        uplink_rate = "20 Mbit/s"
        uplink_delay = "5 ms"
        uplink_queue = "25 kB"
        jitter = "100 us"
        loss_ppm = 500
        [transport]
        control = "bbr"
        rack = true
        [workload]
        kind = "long"
        pairs = "halves"
        jitter = "100 ms"
        [[change]]
        at = "1 s"
        link = "left-right"
        rate = "5 Mbit/s"
        loss_burst = 3
        "#,
    ),
];

/// The plain counterpart of the heap: an ordered map.
#[derive(Default)]
struct SortedMap {
    events: BTreeMap<(RunInstant, u64), Event>,
    seq: u64,
}

impl EventQueue for SortedMap {
    fn push(&mut self, event: Event) {
        self.seq += 1;
        self.events.insert((event.at, self.seq), event);
    }
    fn pop_due(&mut self, limit: RunInstant) -> Option<Event> {
        let first = self.events.first_entry().filter(|first| first.key().0 <= limit)?;
        Some(first.remove())
    }
    fn next_at(&self) -> Option<RunInstant> {
        self.events.first_key_value().map(|((at, _), _)| *at)
    }
    fn len(&self) -> usize {
        self.events.len()
    }
}

/// Runs to the end, and checks the invariants throughout. Returns the event hash.
fn lawful<Q: EventQueue>(name: &str, plan: &Plan, trial: u64) -> u64 {
    let mut simulation: Simulation<'_, Q> = Simulation::new(plan, trial).expect("nothing is drawn");
    let mut before = simulation.now();
    loop {
        let more = simulation.step();
        let totals = simulation.totals();
        assert!(simulation.now() >= before, "{name}: time goes forward");
        before = simulation.now();
        assert_eq!(
            totals.injected,
            totals.delivered + totals.drops.total() + simulation.in_flight(),
            "{name}: sent = delivered + dropped + in flight"
        );
        if !more {
            break;
        }
    }
    let held = |link| simulation.fabric().port_counters(Network::port(link)).expect("a link has a port");
    let mut dropped_at_ports = 0;
    for link in plan.network().topology().link_ids() {
        let counters = held(link);
        dropped_at_ports += counters.drops.total();
        assert!(
            counters.sent_packets <= counters.offered_packets
                && counters.arrived_packets <= counters.sent_packets
        );
        // Rates change in only one scenario, and only to lower values.
        let rate = plan.network().port_settings(link).rate;
        let time = simulation.now() - Instant::ZERO;
        if let Some(average) = BitRate::average(ByteCount::new(counters.sent_bytes), time) {
            assert!(average <= rate, "{name}: {average} on a link of {rate}");
        }
    }
    assert_eq!(dropped_at_ports, simulation.totals().drops.total(), "{name}: every drop has its port");
    for flow in simulation.traffic().flows() {
        assert!(flow.size.is_none_or(|size| flow.delivered_bytes <= size.as_u64()), "{name}");
    }
    assert!(simulation.totals().delivered > 100, "{name}: something happens");
    simulation.event_hash()
}

#[test]
fn invariants_hold_for_every_scenario_and_queue() {
    for (name, text) in SCENARIOS {
        let plan = plan(text);
        let heap = lawful::<QuadHeap>(name, &plan, 0);
        assert_eq!(heap, lawful::<SortedMap>(name, &plan, 0), "{name}: the same run on either queue");
        assert_ne!(heap, lawful::<QuadHeap>(name, &plan, 1), "{name}: another seed, another run");
    }
}

#[test]
fn concurrent_trials_equal_sequential_trials() {
    let plan = plan(SCENARIOS[0].1);
    let hash = |trial: u64| lawful::<QuadHeap>("threads", &plan, trial);
    let alone: Vec<_> = (0..6).map(hash).collect();
    let beside = std::thread::scope(|scope| {
        let trials: Vec<_> = (0..6).map(|trial| scope.spawn(move || hash(trial))).collect();
        trials.into_iter().map(|trial| trial.join().expect("it ends")).collect::<Vec<_>>()
    });
    assert_eq!(alone, beside);
}

#[test]
fn every_finite_flow_is_delivered_exactly_once() {
    let plan = plan(SCENARIOS[3].1);
    let outcome = run(&plan);
    assert_eq!(outcome.workloads[0].finished, Some(60));
    for flow in &outcome.flows {
        assert_eq!(Some(flow.delivered_bytes), flow.size_bytes);
        assert!(flow.fct_us.is_some_and(|fct| fct > 0.0));
    }
}

/// An implementation outside this room must be able to start the same flows and send the same
/// datagrams.
#[test]
fn plan_lists_the_flows_and_datagrams_of_a_run() {
    let plan = plan(
        r#"
        duration = "300 ms"
        [network]
        topology = "star"
        hosts = 5
        [[workload]]
        kind = "poisson"
        load = 0.3
        sizes = "40 kB"
        [[workload]]
        kind = "udp"
        pairs = "permutation"
        rate = "20 Mbit/s"
        on = "5 ms"
        off = "3 ms"
        start = "10 ms"
        [[workload]]
        kind = "incast"
        servers = 2
        block = "1 kB"
        "#,
    );
    let (outcome, seed) = (run(&plan), Seed::new(plan.seed(0)));
    let end = Instant::ZERO + plan.scenario().duration.expect("it stands there");
    let listed: Vec<_> =
        plan.starts(seed, 0).expect("a workload of flows").take_while(|start| start.at < end).collect();
    let opened: Vec<_> = outcome.flows.iter().filter(|flow| flow.workload_index == 0).collect();
    assert!(listed.len() > 500, "{}", listed.len());
    assert_eq!(listed.len(), opened.len());
    for (start, flow) in listed.iter().zip(opened) {
        assert_eq!(start.at.as_secs_f64(), flow.started_s);
        assert_eq!(
            (start.size.map(ByteCount::as_u64), format!("h{}", start.dst)),
            (flow.size_bytes, flow.to.clone())
        );
    }
    let sent = plan.udp_flows(seed, 1).expect("a workload of datagrams").into_iter().map(|flow| {
        let start = Instant::ZERO + Duration::from_ms(10);
        let mut source = flow.source(PeerId(0), start, Some(end)).expect("a good rate");
        while let Some(at) = source.poll_timeout() {
            source.poll_transmit(at);
        }
        source.sent()
    });
    assert_eq!(Some(sent.sum()), outcome.workloads[1].sent_packets);
    assert!(
        plan.starts(seed, 1).is_none() && plan.starts(seed, 2).is_none() && plan.udp_flows(seed, 0).is_none()
    );
}

#[test]
fn incast_delivers_its_blocks_in_all_rounds() {
    let outcome = run(&plan(SCENARIOS[0].1));
    let row = &outcome.workloads[0];
    assert_eq!((row.rounds, row.flows), (Some(3), 16));
    let delivered: u64 = outcome.flows.iter().map(|flow| flow.delivered_bytes).sum();
    assert_eq!(delivered, 3 * 16 * 65_536);
}

#[test]
fn flows_continue_after_a_link_outage() {
    let text = SCENARIOS[1].1.replace("duration = \"300 ms\"", "duration = \"600 ms\"\nwarmup = \"400 ms\"");
    let outcome = run(&plan(&text));
    assert!(outcome.network.dropped_otherwise > 0, "what waited was dropped");
    let goodput = outcome.workloads[0].goodput_mbps.expect("time has passed");
    // The link has 50 Mbit/s after the outage, less 52 bytes of headers in 1,500.
    assert!((40.0..=48.4).contains(&goodput), "{goodput}");
}

#[test]
fn finite_work_is_measured_over_its_duration() {
    let outcome = run(&plan(
        r#"
        duration = "10 s"
        network = { topology = "dumbbell", pairs = 1, rate = "100 Mbit/s", delay = "1 ms" }
        [workload]
        kind = "long"
        pairs = "halves"
        size = "1 MB"
        "#,
    ));
    let row = &outcome.workloads[0];
    let fct_us = row.fct_us_mean.expect("the flow is whole");
    assert_eq!(row.goodput_mbps.expect("time has passed"), (8e6 / fct_us * 1e6).round() / 1e6);
}

/// Two flows in opposite directions. Acknowledgements wait behind the other flow's data, or have
/// priority.
#[test]
fn acknowledgements_have_priority_if_configured() {
    let rtt = |acks_first: bool| {
        let outcome = run(&plan(&format!(
            r#"
            duration = "20 s"
            network = {{ topology = "dumbbell", pairs = 2, rate = "100 Mbit/s", uplink_rate = "10 Mbit/s", acks_first = {acks_first} }}
            transport = {{ handshake = false }}
            [[workload]]
            kind = "long"
            pairs = [["0", "2"]]
            start = "2 s"
            size = "200 kB"
            [[workload]]
            kind = "long"
            pairs = [["3", "1"]]
            "#
        )));
        outcome.workloads[0].fct_us_mean.expect("the flow is whole")
    };
    let (waiting, first) = (rtt(false), rtt(true));
    // 200 kB with their headers take 165 ms. A queue of 256 KiB takes 210 ms.
    assert!((165_000.0..200_000.0).contains(&first) && waiting > 1.5 * first, "{waiting} {first}");
}
