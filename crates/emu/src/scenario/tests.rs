//! Tests of the hosts' tasks in a plan, and of the reasons to distrust a run.

use super::host::OutgoingFlow;
use super::*;
use anabranch_sim::{Network, PlanError, scenario};
use anabranch_units::Instant;
use std::net::Ipv4Addr;

const NETWORK: &str = "[network]\ntopology = \"star\"\nhosts = 3\nrate = \"10 Mbit/s\"\n";

fn planned(text: &str) -> Plan {
    let points = scenario::read("test.toml", &format!("{text}\n{NETWORK}"), &[]).expect("a good scenario");
    Plan::new(points[0].scenario.clone(), &|_| unreachable!("it names no file")).expect("a good plan")
}

fn listed(plan: &Plan) -> Result<Flows, ScenarioError> {
    Flows::new(plan, 0, &[], &|site| Ipv4Addr::new(10, 0, 0, site.0 as u8).into())
}

#[test]
fn hosts_get_their_tasks_for_all_flows() {
    let workloads = r#"
        duration = "1 s"
        workload = [
            { kind = "poisson", load = 0.1, sizes = "10 kB", priority = 2 },
            { kind = "udp", pairs = [["h0", "h2"]], rate = "1 Mbit/s", start = "1 ms", priority = 0 },
        ]
    "#;
    let plan = planned(workloads);
    let flows = listed(&plan).expect("few flows");
    let outgoing: Vec<&OutgoingFlow> = flows.tasks.values().flat_map(|task| &task.outgoing).collect();
    assert_eq!(outgoing.len(), flows.of_workload[0].len());
    assert!((20..=60).contains(&outgoing.len()), "37.5 in the mean: {}", outgoing.len());
    assert!(outgoing.iter().all(|flow| flow.start_ns < 1_000_000_000 && flow.priority == 2));
    assert!(outgoing.iter().all(|flow| flow.size_bytes == Some(10_000)));
    for (host, task) in &flows.tasks {
        let to_it = outgoing.iter().filter(|flow| flow.to == Ipv4Addr::new(10, 0, 0, *host as u8));
        assert_eq!(to_it.count(), task.incoming.len(), "host {host}");
    }
    let [source] = &flows.tasks[&0].sources[..] else { panic!("one source") };
    assert_eq!((source.start_ns, source.priority, source.flow), (1_000_000, 0, outgoing.len() as u32));
    assert_eq!(flows.tasks[&2].sinks, [source.flow]);
}

#[test]
fn hosts_with_another_congestion_control_are_reported() {
    let workloads = r#"
        duration = "1 s"
        transport = { control = "cubic", rack = true }
        workload = [
            { kind = "long", pairs = [["h0", "h2"]], control = "bbr" },
            { kind = "long", pairs = [["h1", "h2"]] },
        ]
    "#;
    let flows = listed(&planned(workloads)).expect("two flows");
    let of = |host: u16| {
        let task = &flows.tasks[&host];
        (task.congestion_control.as_str(), task.outgoing[0].congestion_control.as_deref())
    };
    assert_eq!((of(0), of(1)), (("cubic", Some("bbr")), ("cubic", None)));
}

#[test]
fn excess_flows_and_late_starts_are_refused() {
    let of = |flows: u32| {
        let workload = format!(
            "duration = \"9 s\"\nworkload = [{{ kind = \"long\", pairs = [[\"h0\", \"h1\"]], streams = {flows} }}]"
        );
        listed(&planned(&workload))
    };
    assert!(of(host::FLOWS_MAX).is_ok());
    let two = r#"
        duration = "9 s"
        workload = [
            { kind = "long", pairs = [["h0", "h1"]], streams = 10000 },
            { kind = "long", pairs = [["h0", "h1"]] },
        ]
    "#;
    let error = listed(&planned(two)).err().expect("one too many").to_string();
    assert!(error.contains("workload[1]: more than 10000 flows"), "{error}");
    let late = r#"workload = [{ kind = "long", pairs = [["h0", "h1"]], size = "1 B", start = "600 s" }]"#;
    let error = listed(&planned(late)).err().expect("too late").to_string();
    assert!(error.contains("workload[0]: a flow begins later than"), "{error}");
}

/// A system whose flows are announced before they send.
#[derive(Debug)]
struct AnnouncingSystem;

impl System for AnnouncingSystem {
    fn kind(&self) -> &'static str {
        "talk"
    }
    fn rehearse(&self, _: &SystemWorkload, _: &Plan, _: &str) -> Result<Box<dyn Rehearsal>, ScenarioError> {
        Ok(Box::new(Self))
    }
}

impl Rehearsal for AnnouncingSystem {
    fn flows(&self) -> Vec<Start> {
        let flow = |src, size| Start { at: Instant::ZERO, src, dst: 2, size: Some(ByteCount::new(size)) };
        vec![flow(0, 10_000), flow(1, 20_000)]
    }
    fn priority(&self) -> u8 {
        2
    }
    fn start(&self, _: &Emulation, _: &Plan, _: Seed) -> Result<Box<dyn RunningSystem>, ScenarioError> {
        Err(ScenarioError::new("there is no emulation in this test"))
    }
}

impl anabranch_sim::system::System for AnnouncingSystem {
    fn kind(&self) -> &'static str {
        "talk"
    }
    fn plan(
        &self,
        _: &SystemWorkload,
        _: &Network,
        _: &str,
    ) -> Result<Box<dyn anabranch_sim::system::SystemPlan>, PlanError> {
        Ok(Box::new(Self))
    }
}

impl anabranch_sim::system::SystemPlan for AnnouncingSystem {
    fn app(&self, _: &Network, _: Seed) -> Result<Box<dyn anabranch_sim::traffic::App>, PlanError> {
        unreachable!("it is not simulated")
    }
    fn has_end(&self) -> bool {
        true
    }
    fn priorities(&self) -> &[u8] {
        &[2]
    }
}

#[test]
fn flows_of_unknown_systems_are_refused() {
    let text = format!("{NETWORK}[workload]\nkind = \"talk\"\n");
    let points = scenario::read("test.toml", &text, &[]).expect("a good scenario");
    let read = |_: &str| unreachable!("it names no file");
    let plan =
        Plan::with_systems(points[0].scenario.clone(), &read, &[&AnnouncingSystem]).expect("a good plan");
    let flows = |systems: &[&dyn System]| {
        Flows::new(&plan, 0, systems, &|site| Ipv4Addr::new(10, 0, 0, site.0 as u8).into())
    };
    let known = flows(&[&AnnouncingSystem]).expect("few flows");
    assert_eq!(known.of_workload[0].iter().map(|(number, _)| *number).collect::<Vec<_>>(), [0, 1]);
    let [second] = &known.tasks[&1].outgoing[..] else { panic!("one") };
    assert_eq!((second.flow, second.priority, second.size_bytes), (1, 2, Some(20_000)));
    assert_eq!(known.tasks[&2].incoming.len(), 2);
    let error = flows(&[]).err().expect("nobody has it").to_string();
    assert_eq!(error, "workload[0].kind: talk: only in the simulator");
}

#[test]
fn late_programs_and_lost_datagrams_make_a_run_untrusted() {
    let mut seen = HostObservations::default();
    assert!(distrust(&seen, Duration::from_us(500)).is_empty());
    (0..99).for_each(|_| seen.datagrams_late.record(1_000));
    seen.datagrams_late.record(2_000_000);
    seen.starts_late.record(400_000);
    assert!(distrust(&seen, Duration::from_us(500)).is_empty(), "one in a hundred may be late");
    seen.datagrams_late.record(2_000_000);
    seen.unread_datagrams = 3;
    let why = distrust(&seen, Duration::from_us(500));
    assert!(
        why.len() == 2 && why[0].contains("bound 500 us") && why[1].starts_with("3 datagrams"),
        "{why:?}"
    );
    assert!(distrust(&seen, Duration::from_us(300))[0].contains("flows began"));
}
