//! Tests in the simulator: Figure 5 of the paper over simulated TCP, agents' reports to the
//! coordinator, and a scenario's settings.

use anabranch_shuffle_proto::Scheduler;
use anabranch_shuffle_proto::simulated::SimulatedSystem;
use anabranch_sim::{Outcome, Plan, Simulation, scenario};
use std::path::Path;

fn repository() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn plan(text: &str, sets: &[String]) -> Result<Plan, String> {
    let point = scenario::read("test.toml", text, sets).map_err(|error| error.to_string())?.remove(0);
    let read = |name: &str| match name {
        "far.toml" => Ok(FAR.to_owned()),
        name => std::fs::read_to_string(repository().join("scenarios").join(name)),
    };
    Plan::with_systems(point.scenario, &read, &[&SimulatedSystem]).map_err(|error| error.to_string())
}

fn run(plan: &Plan) -> Outcome {
    let simulation: Simulation<'_> = Simulation::new(plan, 0).expect("it can be planned");
    simulation.run()
}

/// Returns the completion times of the coflows a and b of `scenarios/shuffle.toml`, in seconds.
fn figure_5(allocator: &str, more: &[&str]) -> [f64; 2] {
    let text =
        std::fs::read_to_string(repository().join("scenarios/shuffle.toml")).expect("it is part of it");
    let sets = [format!("workload.allocator={allocator}"), "sweep={}".to_owned()];
    let more = more.iter().map(|set| (*set).to_owned());
    let plan = plan(&text, &sets.into_iter().chain(more).collect::<Vec<_>>()).expect("it is good");
    let coflows = run(&plan).coflows;
    let seconds = |name: &str| {
        let coflow = coflows.iter().find(|row| row.coflow == name).expect("there are a and b");
        coflow.cct_us.expect("it ends") / 1e6
    };
    [seconds("a"), seconds("b")]
}

/// Settings of the second example of Figure 5: coflow b arrives 2 s after coflow a, and its link is
/// wider.
const LATE: [&str; 3] =
    ["workload.coflows.b.start=3 s", "network.topology=networks/figure-5-late.toml", "name=late"];

fn assert_near(allocator: &str, seconds: [f64; 2], paper: [f64; 2]) {
    println!("{allocator}: {seconds:.3?} s, in the paper {paper:?}");
    for (seconds, paper) in seconds.iter().zip(paper) {
        assert!((seconds / paper - 1.0).abs() <= 0.03, "{allocator}: {seconds:?} s, in the paper {paper}");
    }
}

#[test]
fn figure_5_takes_the_papers_times_under_every_scheduler() {
    for allocator in ["none", "max-min"] {
        assert_near(allocator, figure_5(allocator, &[]), [6.0, 4.0]);
    }
    for allocator in ["chase", "chase-total", "chase-without-conservation", "chase+", "varys"] {
        assert_near(allocator, figure_5(allocator, &[]), [6.0, 3.0]);
    }
}

#[test]
fn late_flow_completes_earlier_with_work_conservation() {
    for allocator in ["none", "max-min", "chase", "chase-total", "chase+", "varys"] {
        assert_near(allocator, figure_5(allocator, &LATE), [6.0, 2.0]);
    }
    assert_near("chase-without-conservation", figure_5("chase-without-conservation", &LATE), [6.0, 3.0]);
}

const STAR: &str = r#"
    network = { topology = "star", hosts = 4, rate = "20 Mbit/s", delay = "50 us", queue = "64 KiB" }
    [workload]
    kind = "shuffle"
"#;

#[test]
fn mice_stay_unreported_and_reports_need_a_coordinator() {
    let of = |more: &str| {
        let flows = "coflows.t.flows = [{ from = \"h1\", to = \"h2\", size = \"40 kB\" }]";
        run(&plan(&format!("{STAR}{more}\n{flows}"), &[]).expect("it is good"))
    };
    let mouse = of("");
    let row = &mouse.workloads[0];
    assert!(row.more["control_bytes"] > 1_000.0 && !row.more.contains_key("first_limit_us_p50"), "{row:?}");
    let limited = of("mice_below = \"0 B\"");
    let row = &limited.workloads[0];
    // The coordinator is two links away in each direction, and sending the request takes time, too.
    assert!((500.0..2_000.0).contains(&row.more["first_limit_us_p50"]), "{row:?}");
    let alone = of("allocator = \"none\"");
    let row = &alone.workloads[0];
    assert!(!row.more.contains_key("control_bytes"), "{row:?}");
    assert_eq!((alone.flows.len(), row.finished), (1, Some(1)));
    // The outcome also lists one control connection for each host's agent.
    assert_eq!((limited.flows.len(), limited.workloads[0].flows), (3, 1));
}

/// Topology of two hosts near each other and a distant third host.
const FAR: &str = r#"
    site = [{ name = "a" }, { name = "b" }, { name = "c" }]
    cable = [
        { between = ["a", "b"], capacity = "100 Mbit/s", delay = "50 us" },
        { between = ["a", "c"], capacity = "100 Mbit/s", delay = "5 ms" },
    ]
"#;

/// The simulated agent reported flows before it had joined, and the coordinator refused the reports
/// (#18).
#[test]
fn flows_begun_before_the_join_get_limits() {
    let text = r#"
        network = { topology = "far.toml", queue = "64 KiB" }
        [workload]
        kind = "shuffle"
        coordinator = "c"
        coflows.t.flows = [{ from = "a", to = "b", size = "1 MB" }]
    "#;
    let outcome = run(&plan(text, &[]).expect("it is good"));
    let row = &outcome.workloads[0];
    assert_eq!(row.finished, Some(1));
    // The handshake with the coordinator takes 10 ms, and so do the messages.
    assert!((19_500.0..20_500.0).contains(&row.more["first_limit_us_p50"]), "{row:?}");
}

#[test]
fn coflow_time_spans_its_first_to_last_flow() {
    let text = format!(
        r#"{STAR}
        [workload.coflows.t]
        start = "1 s"
        flows = [
            {{ from = "h1", to = "h2", size = "250 kB", start = "500 ms" }},
            {{ from = "h1", to = "h3", size = "250 kB", start = "2 s" }},
        ]
        "#
    );
    let outcome = run(&plan(&text, &[]).expect("it is good"));
    let [coflow] = &outcome.coflows[..] else { panic!("one") };
    assert_eq!((coflow.flows, coflow.size_bytes, coflow.started_s), (2, 500_000, 1.5));
    // 1.5 s between the starts of both flows, then 250 kB at 20 Mbit/s.
    let seconds = coflow.cct_us.expect("it ends") / 1e6;
    assert!((1.60..1.62).contains(&seconds), "{seconds}");
    let data: Vec<_> = outcome.flows.iter().filter(|flow| flow.size_bytes.is_some()).collect();
    assert_eq!(data.len(), 2);
    assert!(data.iter().all(|flow| flow.fct_us.is_some_and(|us| (100_000.0..120_000.0).contains(&us))));
}

#[test]
fn every_scheduler_completes_random_coflows() {
    for (trial, scheduler) in Scheduler::ALL.into_iter().enumerate() {
        let mut random = anabranch_units::Seed::new(trial as u64).stream("flows", 0);
        let mut text = format!("{STAR}\nallocator = \"{scheduler}\"\n");
        for coflow in 0..8 {
            let flow = |random: &mut anabranch_units::RandomStream| {
                let (from, step) = (random.below(4), 1 + random.below(3));
                // Mice of one byte, and larger flows.
                let (size, start) = (1 + random.below(400_000) * random.below(2), random.below(2_000));
                let to = (from + step) % 4;
                format!(
                    "{{ from = \"h{from}\", to = \"h{to}\", size = \"{size} B\", start = \"{start} ms\" }}"
                )
            };
            let flows: Vec<String> = (0..=random.below(4)).map(|_| flow(&mut random)).collect();
            text += &format!("coflows.t{coflow}.flows = [{}]\n", flows.join(", "));
        }
        let outcome = run(&plan(&text, &[]).expect("it is good"));
        assert!(outcome.coflows.iter().all(|coflow| coflow.cct_us.is_some()), "{scheduler}");
        assert_eq!(outcome.coflows.len(), 8);
    }
}

#[test]
fn invalid_settings_are_refused_with_their_name() {
    let flow = "{ from = \"h1\", to = \"h2\", size = \"1 MB\" }";
    let good = format!("coflows.t.flows = [{flow}]");
    assert!(plan(&format!("{STAR}{good}"), &[]).is_ok());
    let late = good.replace("{ from", "{ start = \"100000 s\", from");
    assert!(plan(&format!("{STAR}{late}\ncoflows.t.start = \"100000 s\""), &[]).is_ok());
    for (settings, says) in [
        ("".to_owned(), "workload[0].coflows: 0 flows: must be 1 to 100000"),
        ("coflows.t.flows = []\n".to_owned(), "workload[0].coflows: 0 flows"),
        (format!("{good}\ncoflows.u.flows = []"), "workload[0].coflows.u: has no flows"),
        (format!("{good}\nallocator = \"fast\""), "workload[0].allocator: `fast`: must be none, max-min, "),
        (format!("{good}\ncoordinator = \"h9\""), "workload[0].coordinator: "),
        (format!("{good}\npriority = 3"), "workload[0].priority: 3: must be 0 to 2"),
        (format!("{good}\nlook_every = \"1 ns\""), "workload[0].look_every: "),
        (good.replace("h2", "h1"), "workload[0].coflows.t.flows[0].to: h1: a flow goes to another host"),
        (good.replace("1 MB", "0 B"), "workload[0].coflows.t.flows[0].size: 0 B: must be at least 1 B"),
        (good.replace("h2", "switch"), "workload[0].coflows.t.flows[0].to: "),
        (good.replace("coflows.t", "coflows.\"a b\""), "workload[0].coflows: name \"a b\""),
        // #17: both start times were accepted, and their sum overflowed.
        (format!("{good}\ncoflows.t.start = \"5000 h\""), "workload[0].coflows.t.start: "),
        (
            format!(
                "coflows.t.start = \"100000 s\"\n{}",
                good.replace("{ from", "{ start = \"100001 s\", from")
            ),
            "workload[0].coflows.t.flows[0].start: ",
        ),
        (format!("{good}\nwhat = 1"), "what"),
    ] {
        let error = plan(&format!("{STAR}{settings}"), &[]).expect_err(&settings);
        assert!(error.contains(says) && !error.contains('\n'), "{settings}: {error}");
    }
}
