//! Tests of a rotor between hosts: TCP and UDP get the time share of their circuits, and no packet
//! passes in a night.

use super::plan;
use anabranch_fabric::{CircuitSettings, QuadHeap, QueueLimits, shifts};
use anabranch_sim::{Outcome, Plan, Simulation};
use anabranch_units::{BitRate, Duration};

const HOSTS: u16 = 4;
const DAY: Duration = Duration::from_us(180);
const NIGHT: Duration = Duration::from_us(20);
const RATE: BitRate = BitRate::gbps(10);

fn settings(ports: u16) -> CircuitSettings {
    CircuitSettings {
        circuit_rate: RATE,
        circuit_delay: Duration::ZERO,
        packet: None,
        queue: QueueLimits { packets_max: 64, bytes_max: None, mark_packets: None },
        resize: None,
        mark_ahead: None,
        timetable: shifts(ports, 1..ports, DAY, NIGHT).expect("days and nights have a length"),
        around: None,
    }
}

/// Plans a star of four hosts whose switch is a rotor.
fn rotor_plan(workload: &str) -> Plan {
    let text = format!(
        r#"
        duration = "60 ms"
        warmup = "10 ms"
        network = {{ topology = "star", hosts = {HOSTS}, rate = "10 Gbit/s", delay = "1 us" }}
        {workload}
        "#
    );
    plan(&text).with_circuits("hub", settings(HOSTS)).expect("a star has one switch")
}

fn run(plan: &Plan) -> Outcome {
    Simulation::<QuadHeap>::new(plan, 0).expect("nothing is drawn").run()
}

const UDP: &str = r#"
    [workload]
    kind = "udp"
    rate = "RATE"
    pairs = [["0", "1"], ["1", "3"]]
"#;

#[test]
fn udp_gets_the_time_share_of_its_circuit() {
    // A pair of hosts has one of three days, each 180 us of 200 us.
    let share = 0.9 / 3.0;
    for (offered, expected) in [(0.5 * share, 0.5 * share), (0.9, share)] {
        let rate = format!("{} Mbit/s", (offered * RATE.as_mbps_f64()).round());
        let outcome = run(&rotor_plan(&UDP.replace("RATE", &rate)));
        let goodput = outcome.workloads[0].goodput_mbps.expect("time has passed") / 2.0;
        let got = goodput / RATE.as_mbps_f64();
        // Headers take less than 5 %, and packets that do not fit into the remaining day less than
        // 1 %.
        assert!((0.94 * expected..=expected).contains(&got), "offered {offered}: {got}");
        let row = &outcome.network;
        assert_eq!(row.dropped_queue_full > 0, offered > share);
        let dropped = row.dropped_queue_full + row.dropped_otherwise;
        assert_eq!(row.injected_packets, row.delivered_packets + dropped + row.in_flight_packets);
    }
}

#[test]
fn tcp_data_arrives_only_in_its_circuits_days() {
    let workload = r#"
        transport = { handshake = true, sack = true, rto_min = "2 ms" }
        [workload]
        kind = "long"
        pairs = [["0", "1"], ["1", "2"], ["2", "3"], ["3", "0"]]
        size = "2 MB"
    "#;
    let plan = rotor_plan(workload);
    let mut simulation = Simulation::<QuadHeap>::new(&plan, 0).expect("nothing is drawn");
    let topology = plan.network().topology();
    let to_host_1 = topology.find_link("hub-1").expect("a star's link");
    simulation.tap(to_host_1);
    while simulation.step() {}
    let timetable = settings(HOSTS).timetable;
    let mut data = 0;
    for (_, tapped) in simulation.take_tapped() {
        // After the circuit, the port to the host sends at the circuit's rate, and its wire takes 1
        // us.
        let serialise = RATE.serialiser().expect("10 Gbit/s").time(tapped.meta.size_bytes);
        let left = tapped.at - Duration::from_us(1) - serialise;
        let slot = timetable.at((left - Duration::from_ps(1)).into());
        assert_eq!(slot.state.get(usize::from(tapped.meta.src)), Some(&Some(1)), "{tapped:?}");
        data += u64::from(tapped.meta.src == 0 && tapped.meta.size_bytes > 1_000);
    }
    assert!(data >= 2_000_000 / 1_448, "{data}");
    let outcome = simulation.run();
    assert!(outcome.flows.iter().all(|flow| flow.fct_us.is_some()), "{:?}", outcome.flows);
}

#[test]
fn rotor_run_is_repeatable_and_ends() {
    let text = UDP.replace("RATE", "1 Gbit/s");
    let hash = || run(&rotor_plan(&text)).network.event_hash;
    assert_eq!(hash(), hash());
    // The run has time for some 600 slots, but the timers stop with the flow.
    let one_flow = r#"
        [workload]
        kind = "long"
        pairs = [["0", "1"]]
        size = "1 kB"
    "#;
    let outcome = run(&rotor_plan(one_flow));
    assert!(outcome.network.events < 200, "{}", outcome.network.events);
}

#[test]
fn only_a_switch_can_be_a_rotor() {
    let error = |name: &str, settings| {
        let star = plan(
            r#"
            duration = "1 ms"
            network = { topology = "star", hosts = 4 }
            workload = { kind = "long", pairs = [["0", "1"]] }
            "#,
        );
        star.with_circuits(name, settings).expect_err("refused").to_string()
    };
    assert_eq!(error("0", settings(HOSTS)), "circuit: `0` is a host: name a switch");
    assert!(
        error("nobody", settings(HOSTS)).starts_with("circuit: "),
        "{}",
        error("nobody", settings(HOSTS))
    );
    assert_eq!(
        error("hub", settings(5)),
        "circuit: slot 1, output 4: must be one of the outputs, and connected once"
    );
}
