//! Tests of a hybrid switch between racks, from scenario files: rates, delays, refusals.

use super::{plan, run};
use anabranch_sim::Plan;
use anabranch_sim::scenario::read;

/// Returns a network of eight racks of `hosts` hosts, as in the thesis (§2.3.4), with further
/// settings of `[circuit]`.
fn racks(hosts: u16, circuit: &str) -> String {
    format!(
        r#"
        [network]
        topology = "leaf-spine"
        tors = 8
        spines = 1
        hosts = {hosts}
        rate = "10 Gbit/s"
        delay = "0 s"
        uplink_rate = "1 Tbit/s"
        uplink_delay = "0 s"
        queue = "10 MB"
        [circuit]
        switch = "spine-0"
        {circuit}
        [transport]
        mss = 8_948
        "#
    )
}

/// As in the thesis's Table 2.1, each rack sends at full rate to the next rack.
#[test]
fn saturated_racks_fill_circuits_and_packet_network() {
    let load = r#"
        [[workload]]
        kind = "udp"
        pairs = 16
        rate = "9 Gbit/s"
        packet = "9 kB"
    "#;
    let outcome = run(&plan(&format!("duration = \"14 ms\"\n{}{load}", racks(16, ""))));
    let per_rack_gbps = |bytes: Option<u64>| bytes.expect("a hybrid switch") as f64 / 14e6;
    // In a week of 1,400 us a pair has a day of 180 us. With the night before the day, its packet
    // path is off for 200 us.
    let circuit = per_rack_gbps(outcome.network.circuit_bytes) / (180.0 / 1_400.0);
    assert!((79.5..=80.01).contains(&circuit), "{circuit} Gbit/s");
    let packet = per_rack_gbps(outcome.network.packet_network_bytes) / (1_200.0 / 1_400.0);
    assert!((9.9..=10.05).contains(&packet), "{packet} Gbit/s");
}

/// The thesis's formula: a queue of q packets of 9,000 bytes delays the packet path by 10 us, and
/// by 7.2 us for each queued packet and the packet on the link. A circuit takes 30 us, and 0.9 us
/// for each of these packets.
#[test]
fn median_latency_equals_a_full_queues_delay() {
    for queue in [4, 16, 64] {
        let load = r#"
            [[workload]]
            kind = "udp"
            pairs = [["0", "2"], ["1", "3"]]
            rate = "90 Gbit/s"
            packet = "9 kB"
        "#;
        let network = racks(2, &format!("queue_packets = {queue}"));
        let network = network.replace("rate = \"10 Gbit/s\"", "rate = \"100 Gbit/s\"");
        let latency = run(&plan(&format!("duration = \"14 ms\"\n{network}{load}"))).network.latency;
        let is_at = |found: Option<f64>, floor_us: f64, packet_us: f64, slack_us: f64| {
            let expected = floor_us + packet_us * f64::from(queue + 1);
            // An arriving packet waits for the next departure, and the histogram rounds up by at
            // most 1/32.
            let found = found.expect("packets took both networks");
            assert!((expected - slack_us..expected * 33.0 / 32.0).contains(&found), "{found} {expected}");
        };
        is_at(latency.packet_network_latency_us_p50, 10.0, 7.2, 0.8);
        is_at(latency.circuit_latency_us_p50, 30.0, 0.9, 0.8);
    }
}

/// Returns the congestion window of one flow from rack 0 to rack 1 in five weeks, every
/// [`SAMPLE_US`], in congestion avoidance and without loss.
fn windows(control: &str, mark: &str) -> Vec<u64> {
    let circuit = format!("queue_packets = 128\nmark_ahead = \"{mark}\"");
    let transport = format!("[transport]\ncontrol = \"{control}\"\ninitial_ssthresh = \"9 kB\"");
    let network = racks(2, &circuit).replace("[transport]", &transport);
    let load = "[[workload]]\nkind = \"long\"\npairs = [[\"0\", \"2\"]]\n";
    let probe = format!("[probe]\ninterval = \"{SAMPLE_US} us\"\nflows = 1\n");
    let outcome = run(&plan(&format!("duration = \"7 ms\"\n{network}{load}{probe}")));
    assert_eq!(outcome.workloads[0].retransmitted_segments, Some(0), "{control}, {mark}");
    outcome.series.iter().filter_map(|sample| sample.cwnd_bytes).collect()
}

const SAMPLE_US: usize = 5;

/// Returns the samples at which the window doubles, and the samples at which it halves, to within a
/// segment.
fn jumps(windows: &[u64]) -> (Vec<usize>, Vec<usize>) {
    let is_near = |window: u64, expected: u64| window.abs_diff(expected) <= 9_000;
    let at = |is_jump: &dyn Fn(u64, u64) -> bool| {
        let pairs = windows.windows(2).enumerate();
        pairs.filter(|(_, pair)| is_jump(pair[0], pair[1])).map(|(at, _)| at).collect()
    };
    (at(&|before, after| is_near(after, 2 * before)), at(&|before, after| is_near(after, before / 2)))
}

/// Acknowledgements of rack 0's flow pass the switch in the opposite direction and get marks, so
/// the window doubles.
#[test]
fn window_of_retcp_doubles_while_marks_last() {
    assert_eq!(windows("newreno", "0 s"), windows("newreno", "1 ms"), "NewReno sees no marks");
    assert_eq!(jumps(&windows("newreno", "1 ms")), (vec![], vec![]));
    // A day lasts 180 us. Acknowledgements arrive at most some 100 us after their marks.
    for (mark, marked_us) in [("0 s", 180), ("1 ms", 1_180)] {
        let (up, down) = jumps(&windows("retcp", mark));
        assert!((4..=5).contains(&down.len()), "{mark}: {up:?} {down:?}");
        let up_before = |down: &usize| up.iter().rev().find(|up| *up < down).copied();
        for (number, down) in down.iter().enumerate() {
            let lasted_us = (down - up_before(down).expect("raised first")) * SAMPLE_US;
            // The flow begins while the first marks are set, so its first interval may be shorter.
            let least_us = if number == 0 { 0 } else { marked_us - 100 };
            assert!((least_us..=marked_us + 100).contains(&lasted_us), "{mark}: {up:?} {down:?}");
        }
    }
}

#[test]
fn tcp_fills_fixed_circuits_between_racks() {
    let circuit = r#"
        shifts = [1]
        day = "1980 us"
        queue_packets = 128
    "#;
    let pairs: Vec<String> =
        (0..8 * 8).map(|host| format!("[\"{host}\", \"{}\"]", (host + 8) % 64)).collect();
    let load = format!("[[workload]]\nkind = \"long\"\npairs = [{}]\n", pairs.join(", "));
    let outcome =
        run(&plan(&format!("duration = \"40 ms\"\nwarmup = \"20 ms\"\n{}{load}", racks(8, circuit))));
    let goodput = outcome.workloads[0].goodput_mbps.expect("time has passed") / 8e3;
    assert!((70.0..=80.0).contains(&goodput), "{goodput} Gbit/s a rack");
}

#[test]
fn matchings_equal_their_shifts() {
    let carried = |circuit: &str| {
        let load = "[[workload]]\nkind = \"long\"\npairs = [[\"0\", \"2\"], [\"1\", \"7\"]]\n";
        run(&plan(&format!("duration = \"10 ms\"\n{}{load}", racks(1, circuit)))).network.circuit_bytes
    };
    let shifts = carried("shifts = [2, 6]");
    assert!(shifts > Some(0));
    assert_eq!(carried("matchings = [[2, 3, 4, 5, 6, 7, 0, 1], [6, 7, 0, 1, 2, 3, 4, 5]]"), shifts);
    // Racks 0 and 2 alone have circuits, in one of two days. Racks that name themselves have none.
    let fewer = carried("matchings = [[2, 1, 0, 3, 4, 5, 6, 7], [0, 1, 2, 3, 4, 5, 6, 7]]");
    assert!(fewer > Some(0) && fewer < shifts, "{fewer:?}");
}

/// A circuit that stays gains the nights: of 180 us of each 200, it gets 200.
#[test]
fn circuits_that_stay_carry_bytes_in_nights() {
    let carried = |circuit: &str| {
        let load = "[[workload]]\nkind = \"udp\"\npairs = [[\"0\", \"1\"]]\nrate = \"90 Gbit/s\"\npacket = \"9 kB\"\n";
        let network = racks(1, &format!("queue_packets = 64\n{circuit}"));
        let network = network.replace("rate = \"10 Gbit/s\"", "rate = \"100 Gbit/s\"");
        let outcome = run(&plan(&format!("duration = \"20 ms\"\n{network}{load}")));
        outcome.network.circuit_bytes.expect("a hybrid switch") as f64 * 8.0 / 20e6
    };
    // Rack 0 sends to rack 1 in both days; the other racks change.
    let both = "matchings = [[1, 0, 3, 2, 4, 5, 6, 7], [1, 0, 2, 3, 5, 4, 6, 7]]";
    let (all, moving) =
        (carried(both), carried(&format!("night = {{ length = \"20 us\", dark = \"moving\" }}\n{both}")));
    assert!((71.0..=72.0).contains(&all), "{all} Gbit/s");
    assert!((78.5..=80.0).contains(&moving), "{moving} Gbit/s");
    let changing = "matchings = [[1, 0, 3, 2, 4, 5, 6, 7], [2, 3, 0, 1, 4, 5, 6, 7]]";
    assert_eq!(
        carried(changing),
        carried(&format!("night = {{ length = \"20 us\", dark = \"moving\" }}\n{changing}"))
    );
}

#[test]
fn retcp_without_marks_is_refused() {
    let network = racks(1, "").replace("[transport]", "[transport]\ncontrol = \"retcp-cubic\"");
    let load = "[[workload]]\nkind = \"long\"\npairs = 1\nsize = \"1 kB\"";
    let refusal = read("test", &format!("{network}{load}"), &[]).expect_err("no switch marks").to_string();
    assert!(
        refusal.contains("circuit.mark_ahead: missing: a congestion control here goes by marks"),
        "{refusal}"
    );
}

#[test]
fn impossible_circuits_are_refused() {
    let refused = |circuit: &str| {
        let text = format!(
            "{}\n[[workload]]\nkind = \"long\"\npairs = \"permutation\"\nsize = \"1 kB\"",
            racks(1, circuit)
        );
        let point = match read("test", &text, &[]) {
            Ok(points) => points[0].scenario.clone(),
            Err(error) => return error.to_string(),
        };
        Plan::new(point, &|_: &str| Ok(String::new())).map(|_| ()).expect_err("refused").to_string()
    };
    for (circuit, message) in [
        ("day = \"10 us\"", "circuit.day: 10 us: must be above zero and no shorter than the night, 20 us"),
        ("shifts = [8]", "circuit.shifts: 8: must be 1 to 7, as the switch has 8 racks"),
        ("day = \"49 us\"", "circuit.day: 49 us: must be at least a night and the circuit's delay, 50 us"),
        ("matchings = [[1, 0]]", "circuit.matchings: matching 0: 2 racks: must be 8, as the switch has"),
        ("matchings = [[1, 0, 2, 3, 4, 5, 6, 8]]", "circuit.matchings: matching 0: rack 8: must be 0 to 7"),
        (
            "matchings = [[1, 2, 3, 4, 5, 6, 7, 0], [1, 2, 1, 3, 4, 5, 6, 7]]",
            "circuit.matchings: matching 1: racks 0 and 2 both lead to rack 1",
        ),
        (
            "matchings = [[1, 2, 3, 4, 5, 6, 7, 0]]\nschedule = { scheduler = \"refit\" }",
            "circuit.matchings: stated beside `schedule`: leave one out",
        ),
        ("shifts = [1]\nmatchings = [[1, 2, 3, 4, 5, 6, 7, 0]]", "duplicate field `shifts`"),
        ("shifts = []", "circuit.shifts: empty: must have at least 1 number or matching"),
        ("queue_packets = 0", "circuit.queue_packets: 0: must be at least 1"),
        ("resize = { packets = 64 }", "circuit.resize: missing field `ahead`"),
        (
            "resize = { packets = 8, ahead = \"1 ms\" }",
            "circuit.resize.packets: 8: must be at least queue_packets, 16",
        ),
        (
            "resize = { packets = 64, ahead = \"200000 s\" }",
            "circuit.resize.ahead: 200000 s: must be at most",
        ),
        (
            "night = { length = \"20 us\", dark = \"moving\" }\nschedule = { scheduler = \"refit\" }",
            "circuit.night.dark: moving: all circuits are dark in nights of a `schedule`",
        ),
        ("schedule = { scheduler = \"refit\" }", "circuit.schedule: no system here decides circuits"),
        (
            "schedule = { scheduler = \"refit\", window = \"199 us\" }",
            "circuit.schedule.window: 199 us: must hold a night and the shortest day, 200 us",
        ),
        (
            "schedule = { scheduler = \"refit\", decision = \"0 s\" }",
            "circuit.schedule.decision: 0 s: must be above zero",
        ),
        (
            "packet = false\nschedule = { scheduler = \"refit\" }",
            "circuit.packet: false: a schedule that follows demand needs the packet network",
        ),
        ("rate = \"1 bit/s\"", "circuit.rate: "),
        ("around = \"0 B\"", "circuit.around: 0 B: must be at least 1 B"),
        ("mark_ahead = \"200000 s\"", "circuit.mark_ahead: 200000 s: must be at most"),
        ("queue = \"8 kB\"", "must hold the largest packet"),
    ] {
        let said = refused(circuit);
        assert!(said.contains(message), "{circuit}: {said}");
    }
}

#[test]
fn flows_between_racks_keep_their_rate_and_shifts() {
    let load =
        "[[workload]]\nkind = \"racks\"\nrate = \"1 Gbit/s\"\nsizes = \"10 kB to 50 kB\"\nshifts = [1, 3]";
    let plan = plan(&format!("duration = \"20 ms\"\n{}{load}", racks(4, "")));
    let outcome = run(&plan);
    let bytes: u64 = outcome.flows.iter().filter_map(|flow| flow.size_bytes).sum();
    // Eight racks send 20 MB in 20 ms. At either end of a rack's time a flow may be counted or not.
    assert!(bytes.abs_diff(20_000_000) < 8 * 50_000, "{bytes}");
    let rack = |host: &str| host.trim_start_matches('h').parse::<u32>().expect("hosts have numbers") / 4;
    for flow in &outcome.flows {
        let shift = (rack(&flow.to) + 8 - rack(&flow.from)) % 8;
        assert!([1, 3].contains(&shift), "{} to {}", flow.from, flow.to);
    }
    let row = &outcome.workloads[0];
    // All flows are ranked, incomplete flows included, so the median is at or above the median of
    // the complete flows.
    assert!(row.more["all_fct_us_p50"] >= row.fct_us_p50.expect("most flows are whole"));
    assert!(row.finished < Some(row.flows) && row.more["all_flow_mbps_p50"] > 0.0, "{row:?}");
}

#[test]
fn impossible_loads_of_racks_are_refused() {
    let refused = |load: &str| {
        let text = format!("duration = \"1 s\"\n{}[[workload]]\nkind = \"racks\"\n{load}", racks(1, ""));
        let point = match read("test", &text, &[]) {
            Ok(points) => points[0].scenario.clone(),
            Err(error) => return error.to_string(),
        };
        let missing = |_: &str| Err(std::io::ErrorKind::NotFound.into());
        Plan::new(point, &missing).map(|_| ()).expect_err("refused").to_string()
    };
    for (load, message) in [
        ("rate = \"1 Gbit/s\"\nsizes = \"1 kB\"\nshifts = [8]", "workload[0].shifts: 8: must be 1 to 7"),
        ("rate = \"1 Gbit/s\"\nsizes = \"1 kB\"\nshifts = []", "workload[0].shifts: empty"),
        ("rate = \"1 bit/s\"\nsizes = \"1 kB\"", "workload[0].rate: 1: must be 1000 to"),
        ("rate = \"10 Gbit/s\"\nsizes = \"1 kB\"", "flows: must be at most 1000000"),
        ("rate = \"1 Gbit/s\"\nsizes = \"2 kB to 1 kB\"", "must be two sizes, the smaller one first"),
        ("rate = \"1 Gbit/s\"\nsizes = \"all\"", "workload[0].sizes: all: "),
    ] {
        let said = refused(load);
        assert!(said.contains(message), "{load}: {said}");
    }
    let star = "duration = \"1 s\"\n[network]\ntopology = \"star\"\nhosts = 4\n[workload]\nkind = \"racks\"\n\
        rate = \"1 Gbit/s\"\nsizes = \"9 kB\"";
    let point = read("test", star, &[]).expect("it can be read")[0].scenario.clone();
    let said = Plan::new(point, &|_: &str| Ok(String::new())).map(|_| ()).expect_err("no racks").to_string();
    assert!(said.contains("`racks`: needs a [circuit]"), "{said}");
}
