//! Runs of scenarios whose circuits follow demand.

use super::*;
use anabranch_sim::scenario::read;
use anabranch_sim::{Outcome, Plan, Simulation};

/// A scenario of four racks with four hosts each; `circuit` is inserted into `[circuit]`, and
/// `load` follows.
fn scenario(circuit: &str, load: &str) -> String {
    format!(
        r#"
        duration = "20 ms"
        [network]
        topology = "leaf-spine"
        tors = 4
        spines = 1
        hosts = 4
        rate = "10 Gbit/s"
        delay = "0 s"
        uplink_rate = "1 Tbit/s"
        uplink_delay = "0 s"
        queue = "10 MB"
        [transport]
        mss = 8_948
        rto_min = "10 ms"
        delayed_ack = "2 ms"
        [circuit]
        switch = "spine-0"
        {circuit}
        {load}
        "#
    )
}

fn plan(circuit: &str, load: &str) -> Result<Plan, PlanError> {
    let points = read("test", &scenario(circuit, load), &[]).unwrap_or_else(|error| panic!("{error}"));
    Plan::with_systems(
        points[0].scenario.clone(),
        &|_| Err(std::io::ErrorKind::NotFound.into()),
        &[&SimulatedSystem],
    )
}

fn run(circuit: &str, load: &str) -> Outcome {
    let plan = plan(circuit, load).unwrap_or_else(|error| panic!("{error}"));
    let simulation: Simulation<'_> = Simulation::new(&plan, 0).expect("nothing is drawn that cannot be");
    simulation.run()
}

/// Each host of a rack sends 100 MB to the next rack, and all flows begin at the same time.
const RING: &str = "[[workload]]\nkind = \"long\"\npairs = 4\nsize = \"100 MB\"";

#[test]
fn announced_ring_gets_one_day_a_week() {
    for scheduler in ["solstice", "eclipse", "refit"] {
        let circuit = format!("schedule = {{ scheduler = \"{scheduler}\", demand = \"announced\" }}");
        let outcome = run(&circuit, RING);
        assert_eq!(outcome.weeks.len(), 10, "{scheduler}");
        let (first, second) = (&outcome.weeks[0], &outcome.weeks[1]);
        assert_eq!((first.circuit_bytes, first.demand_bytes), (0, 0), "{scheduler}: nothing was known");
        assert_eq!(second.days, 1, "{scheduler}");
        assert!(second.circuit_bytes > 0, "{scheduler}");
        // 16 flows of 100 MB, minus the bytes that the packet network has carried in the first
        // week.
        let (most, carried) = (1_600_000_000, first.packet_network_bytes);
        assert!((most - carried..most).contains(&second.demand_bytes), "{scheduler}: {second:?}");
        assert_eq!((outcome.network.weeks, outcome.network.days), (Some(10), Some(10)));
    }
}

/// The last estimate equals the bytes that receivers lack. Excepted are bytes forwarded since then,
/// and bytes that wait behind a gap.
#[test]
fn announced_demand_equals_bytes_not_forwarded() {
    let outcome = run("schedule = { scheduler = \"solstice\", demand = \"announced\" }", RING);
    let delivered: u64 = outcome.flows.iter().map(|flow| flow.delivered_bytes).sum();
    let last = outcome.weeks.last().expect("ten weeks");
    let (lacks, slack) = (1_600_000_000 - delivered, delivered / 10);
    // The estimate is older than the end of the run by a week and the decision time.
    let since = last.circuit_bytes + last.packet_network_bytes;
    assert!(last.demand_bytes + slack >= lacks, "{} of {lacks}", last.demand_bytes);
    assert!(last.demand_bytes <= lacks + since + slack, "{} of {lacks} and {since}", last.demand_bytes);
    assert_eq!(last.unknown_reports, 0);
}

#[test]
fn queue_demand_is_at_most_the_queue_size() {
    let outcome = run("queue_packets = 8\nschedule = { scheduler = \"solstice\" }", RING);
    assert!(outcome.weeks.iter().skip(1).any(|week| week.demand_bytes > 0));
    // Data in one direction, acknowledgements in the other.
    let most = 4 * 2 * 8 * 9_000;
    assert!(outcome.weeks.iter().all(|week| week.demand_bytes <= most));
}

#[test]
fn closed_flows_leave_no_demand() {
    let load = "[[workload]]\nkind = \"long\"\npairs = 4\nsize = \"1 MB\"\n\
        [[workload]]\nkind = \"udp\"\npairs = [[\"0\", \"1\"]]\nrate = \"1 Mbit/s\"";
    let outcome = run("schedule = { scheduler = \"refit\", demand = \"announced\" }", load);
    assert_eq!(outcome.workloads[0].finished, Some(16));
    let last = outcome.weeks.last().expect("ten weeks");
    assert_eq!((last.demand_bytes, last.circuit_bytes), (0, 0));
}

#[test]
fn fixed_schedule_repeats_and_absent_circuits_carry_no_bytes() {
    let fixed = run("shifts = [1, 3]\nschedule = { scheduler = \"fixed\" }", RING);
    assert!(fixed.weeks.iter().all(|week| week.days == 2));
    assert!(fixed.weeks[0].circuit_bytes > 0, "it begins at once");
    let none = run("packet_rate = \"40 Gbit/s\"\nschedule = { scheduler = \"none\" }", RING);
    assert_eq!(none.network.circuit_bytes, Some(0));
    assert!(none.workloads[0].goodput_mbps > Some(100_000.0), "{:?}", none.workloads[0].goodput_mbps);
}

/// A run with a fixed schedule of weeks equals a run with an endless timetable.
#[test]
fn fixed_weeks_equal_the_timetable_of_shifts() {
    let weekly = run("shifts = [1, 3]\nschedule = { scheduler = \"fixed\" }", RING);
    let endless = run("shifts = [1, 3]\nday = \"980 us\"", RING);
    assert_eq!(weekly.network.event_hash, endless.network.event_hash);
}

#[test]
fn schedule_settings_out_of_range_are_refused() {
    let refused = |circuit: &str| plan(circuit, RING).map(drop).expect_err("refused").to_string();
    for (circuit, message) in [
        ("schedule = { scheduler = \"best\" }", "circuit.schedule.scheduler: `best`: must be one of strobe"),
        (
            "schedule = { scheduler = \"opera\" }",
            "circuit.schedule.scheduler: `opera`: must be one of strobe",
        ),
        ("schedule = { scheduler = \"fixed\" }", "circuit.shifts: missing: the scheduler `fixed` needs them"),
        (
            "shifts = [1, 2, 3]\nschedule = { scheduler = \"fixed\", window = \"599 us\" }",
            "circuit.shifts: 3 days: each needs 200 us of a week of 599 us",
        ),
        (
            "schedule = { scheduler = \"refit\", decision = \"2 h\" }",
            "circuit.schedule.decision: decision 7200 s: must be above zero",
        ),
        (
            "schedule = { scheduler = \"refit\", window = \"2 h\" }",
            "circuit.schedule.window: week 7200 s: must be 3600 s or shorter",
        ),
    ] {
        let said = refused(circuit);
        assert!(said.contains(message), "{circuit}: {said}");
    }
}
