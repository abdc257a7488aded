//! Properties of job plans: never worse than staying, never below the bound; and the effect of
//! single failures.
//!
//! Leaves out: schedules of one phase. Read `plans_are_never_worse_than_staying` first.

use super::*;
use crate::generate;
use anabranch_units::{BitRate, ByteCount, Seed};
use proptest::prelude::*;

fn phase(name: usize, after: Vec<usize>, compute_ms: u64, demand: Demand) -> Phase {
    Phase { name: format!("phase {name}"), after, compute: Duration::from_ms(compute_ms), demand }
}

fn any_demand(hosts: usize) -> impl Strategy<Value = Demand> {
    (0..5usize, 1u64..4_000, any::<u64>()).prop_map(move |(kind, mb, seed)| {
        let bytes = ByteCount::new(mb * 1_000_000);
        match kind {
            0 => generate::ring(hosts, bytes),
            1 => generate::all_to_all(hosts, bytes),
            2 => generate::skewed(hosts, bytes, 2, 4, Seed::new(seed)),
            3 => generate::random(hosts, bytes, 300_000, Seed::new(seed)),
            _ => Demand::new(hosts),
        }
        .unwrap()
    })
}

fn any_job() -> impl Strategy<Value = Job> {
    (2usize..=9, 1usize..=4, 1usize..=3, 1usize..=5).prop_flat_map(|(hosts, count, iterations, phases)| {
        let night = prop_oneof![1u64..1_000, 1_000u64..1_000_000];
        let phases = prop::collection::vec((any_demand(hosts), 0u64..300, any::<u64>()), phases);
        (night, phases, 0usize..3).prop_map(move |(night_us, phases, spares)| {
            let switches = Switches { count, rate: BitRate::gbps(100), night: Duration::from_us(night_us) };
            let all = phases.into_iter().enumerate().map(|(number, (demand, compute, drawn))| {
                let after = (0..number).filter(|before| drawn >> before & 1 == 1).collect();
                phase(number, after, compute, demand)
            });
            Job { hosts, spares, switches, iterations, phases: all.collect() }
        })
    })
}

proptest! {
    #[test]
    fn plans_are_never_worse_than_staying(job in any_job()) {
        let planner = Planner::new(&job).unwrap();
        let plan = planner.plan();
        prop_assert!(plan.makespan <= plan.staying.unwrap());
        prop_assert!(plan.bound <= plan.makespan);
        prop_assert_eq!(plan.steps.len(), job.iterations * job.phases.len());
        // The true bytes equal the planned bytes, so the execution has the planned makespan.
        prop_assert_eq!(planner.executed(&plan, &job).unwrap(), plan.makespan);
    }

    #[test]
    fn single_failures_need_a_spare_host_or_second_switch(job in any_job(), host in 0usize..9, switch in 0usize..4) {
        let (host, switch) = (host % job.hosts, switch % job.switches.count);
        let planner = Planner::new(&job).unwrap();
        let whole = planner.plan();
        let after = |text: String| {
            let failures: Failures = text.parse().unwrap();
            failures.check(&job).unwrap();
            planner.plan_after(&failures)
        };
        // A spare host takes over all circuits of the dead host.
        prop_assert_eq!(after(format!("host={host}")).is_ok(), job.spares > 0);
        let dead = after(format!("port={switch}:{host}"));
        if job.switches.count == 1 {
            prop_assert_eq!(dead.is_ok(), job.spares > 0);
            let lost = after(format!("switch={switch}"));
            prop_assert_eq!(lost, Err(JobFailure::Switches));
        } else {
            for left in [dead.unwrap(), after(format!("switch={switch}")).unwrap()] {
                prop_assert!(whole.packet <= left.packet && whole.bound <= left.bound);
                prop_assert!(left.packet <= left.bound && left.bound <= left.makespan);
                prop_assert!(left.makespan <= left.staying.unwrap_or(left.makespan));
            }
        }
    }

    #[test]
    fn spares_for_all_damaged_hosts_keep_the_plan(job in any_job(), switch in 0usize..4, damaged in 1usize..3) {
        let job = Job { spares: damaged, ..job };
        let ports = (0..damaged.min(job.hosts)).map(|host| (switch % job.switches.count, host)).collect();
        let planner = Planner::new(&job).unwrap();
        let left = planner.plan_after(&Failures { ports, ..Failures::default() });
        prop_assert_eq!(left, Ok(planner.plan()));
    }
}

#[test]
fn spares_replace_the_most_damaged_hosts() {
    let mut job = file("[[phase]]\nname = \"a\"\n").unwrap();
    job.switches.count = 3;
    let failures: Failures = "port=0:5,port=0:3,port=1:3,switch=2".parse().unwrap();
    let left = |spares: usize| {
        let dead = failures.dead_ports(&Job { spares, ..job.clone() })?;
        let port = |(at, _): (usize, &bool)| (at / job.hosts, at % job.hosts);
        let ports = dead.iter().enumerate().filter(|(_, is_dead)| **is_dead).map(port);
        Ok(ports.filter(|(switch, _)| *switch < 2).collect::<Vec<_>>())
    };
    assert_eq!(left(0), Err(JobFailure::Hosts { dead: 1, spares: 0 }));
    assert_eq!(left(1), Ok(vec![(0, 5)]), "host 3 has no port left");
    assert_eq!(left(2), Ok(vec![]));
    // Without the dead switch, host 3 keeps a port, but still gets a spare first.
    let failures: Failures = "port=0:5,port=0:3,port=1:3".parse().unwrap();
    let dead = failures.dead_ports(&job).unwrap();
    assert_eq!(dead.iter().position(|is_dead| *is_dead), Some(5));
    assert_eq!(dead.iter().filter(|is_dead| **is_dead).count(), 1);
}

#[test]
fn bounds_after_a_failure_count_the_remaining_ports() {
    let job = file("[[phase]]\nname = \"a\"\npattern = \"ring-all-reduce\"\nbytes = \"8 GB\"\n").unwrap();
    let job = Job { spares: 0, ..job };
    let planner = Planner::new(&job).unwrap();
    // 14 GB take 140 ms over two ports of 400 Gbit/s, and 280 ms over one.
    let of = |plan: &JobPlan| (plan.packet, plan.bound);
    let ms = |ms: u64| (Duration::from_ms(ms), Duration::from_ms(ms));
    assert_eq!(of(&planner.plan()), ms(140));
    assert_eq!(of(&planner.plan_after(&"port=0:3".parse().unwrap()).unwrap()), ms(280));
}

#[test]
fn unplanned_bytes_are_refused_with_phase_and_hosts() {
    let text = "[[phase]]\nname = \"gradients\"\npattern = \"ring-all-reduce\"\nbytes = \"8 GB\"\n\
                [[phase]]\nname = \"tokens\"\npattern = \"all-to-all\"\nbytes = \"20 GB\"\n\
                [[phase]]\nname = \"rest\"\n";
    let truth = file(text).unwrap();
    let without = |phase: usize, pair: usize| {
        let mut planned = truth.clone();
        let mut entries = planned.phases[phase].demand.entries().to_vec();
        entries[pair] = 0;
        planned.phases[phase].demand = Demand::from_entries(8, entries).unwrap();
        planned
    };
    let planned = without(1, 1);
    let planner = Planner::new(&planned).unwrap();
    let plan = planner.plan();
    assert_eq!(plan.steps[1].choice, Choice::Days);
    let unplanned = JobError::Unplanned { phase: "tokens".to_owned(), source: 0, destination: 1 };
    assert_eq!(planner.executed(&plan, &truth), Err(unplanned));
    // In this plan the phase was planned as idle.
    let planner = Planner::new(&truth).unwrap();
    let mut more = truth.clone();
    more.phases[2].demand.add(2, 5, ByteCount::new(1)).unwrap();
    let error = planner.executed(&planner.plan(), &more).unwrap_err().to_string();
    assert_eq!(error, "phase `rest`: 2 -> 5 has bytes, and the plan has no circuits for them");
    // Standing circuits carry bytes of any pair.
    more.phases[2].demand = truth.phases[2].demand.clone();
    more.phases[0].demand.add(0, 5, ByteCount::new(1)).unwrap();
    assert!(planner.executed(&planner.plan(), &more).is_ok());
}

#[test]
fn plan_of_a_long_job_has_each_step_once() {
    let text = "iterations = 5000\n[[phase]]\nname = \"a\"\npattern = \"ring-all-reduce\"\nbytes = \"1 MB\"\n\
                [[phase]]\nname = \"b\"\npattern = \"all-to-all\"\nbytes = \"1 MB\"\n";
    let job = file(text).unwrap();
    let planner = Planner::new(&job).unwrap();
    let plan = planner.plan();
    let places = plan.steps.iter().map(|step| 2 * step.iteration + step.phase);
    assert!(places.eq(0..STEPS_MAX), "{} steps", plan.steps.len());
    assert!(plan.steps.windows(2).all(|pair| pair[0].end <= pair[1].end));
    assert_eq!(planner.executed(&plan, &job), Ok(plan.makespan));
}

fn file(text: &str) -> Result<Job, FileError> {
    format!("hosts = 8\nspares = 1\nswitches = 2\nrate = \"400 Gbit/s\"\nnight = \"10 ms\"\n{text}").parse()
}

#[test]
fn circuits_turn_between_phases_if_it_saves_time() {
    let job = file(
        "[[phase]]\nname = \"gradients\"\npattern = \"ring-all-reduce\"\nbytes = \"8 GB\"\ncompute = \"100 ms\"\n\
         [[phase]]\nname = \"tokens\"\npattern = \"all-to-all\"\nbytes = \"20 GB\"\ncompute = \"30 ms\"\n\
         [[phase]]\nname = \"activations\"\npattern = \"pipeline\"\nbytes = \"2 GB\"\ncompute = \"30 ms\"\n",
    )
    .unwrap();
    let plan = Planner::new(&job).unwrap().plan();
    let choices: Vec<_> = plan.steps.iter().map(|step| step.choice).collect();
    assert_eq!(choices, [Choice::Stay, Choice::Days, Choice::Turn]);
    // Gradients: 14 GB over two circuits take 140 ms. Activations take 20 ms, and the night passes
    // while hosts compute.
    let at: Vec<_> = plan.steps.iter().map(|step| (step.ready, step.end)).collect();
    assert_eq!(at[0], (Duration::from_ms(100), Duration::from_ms(240)));
    assert_eq!(at[2].1.as_ps() - at[1].1.as_ps(), Duration::from_ms(50).as_ps());
    assert!(plan.makespan < plan.staying.unwrap());
    assert!(plan.packet <= plan.bound && plan.bound <= plan.makespan);
}

#[test]
fn job_keeps_its_circuits_if_nights_are_long() {
    let text = "[[phase]]\nname = \"a\"\npattern = \"ring-all-reduce\"\nbytes = \"100 MB\"\n\
                [[phase]]\nname = \"b\"\npattern = \"all-to-all\"\nbytes = \"100 MB\"\n";
    let mut job = file(text).unwrap();
    job.switches.night = Duration::from_secs(1);
    let plan = Planner::new(&job).unwrap().plan();
    assert!(plan.steps.iter().all(|step| step.choice == Choice::Stay));
    assert_eq!(Some(plan.makespan), plan.staying);
}

#[test]
fn file_errors_name_the_line_of_the_mistake() {
    let mistake = |text: &str| file(text).unwrap_err().to_string();
    assert_eq!(mistake(""), "0 phases: a job has 1 to 64");
    assert!(mistake("[[phase]]\nname = \"a\"\nbites = 1\n").starts_with("line 8: unknown field `bites`"));
    assert_eq!(
        mistake("[[phase]]\nname = \"a\"\npattern = \"ring-all-reduce\"\n"),
        "line 6: phase `a`: a pattern needs `bytes`"
    );
    let error = mistake("[[phase]]\nname = \"a\"\nafter = [\"b\"]\n");
    assert_eq!(error, "line 6: phase `a`: after `b`: no earlier phase has this name");
    let error = mistake("[[phase]]\nname = \"a\"\npairs = [{ from = 0, to = 8, bytes = \"1 MB\" }]\n");
    assert_eq!(error, "line 6: phase `a`: rack 8: the network has racks 0 to 7");
    assert!(
        mistake("[[phase]]\nname = \"a\"\n[[phase]]\nname = \"a\"\n")
            .starts_with("line 8: phase `a`: must be")
    );
    let error = mistake("iterations = 10001\n[[phase]]\nname = \"a\"\n");
    assert_eq!(error, "iterations 10001: must be at least 1, with 10000 phases in all at most");
    let error = mistake("[[phase]]\nname = \"a\"\ncompute = \"86401 s\"\n");
    assert!(error.starts_with("phase `a`: compute"), "{error}");
}

#[test]
fn failures_of_unknown_parts_are_refused() {
    let job = file("[[phase]]\nname = \"a\"\n").unwrap();
    let check = |text: &str| text.parse::<Failures>().unwrap().check(&job);
    assert_eq!(check("host=7,port=1:7"), Ok(()));
    assert_eq!(check("host=8"), Err(FailuresError::NoSuch { part: "host", number: 8, count: 8 }));
    assert_eq!(check("port=2:0"), Err(FailuresError::NoSuch { part: "switch", number: 2, count: 2 }));
    assert!("rack=1".parse::<Failures>().is_err());
    assert!("port=1".parse::<Failures>().is_err());
    let many = vec!["host=1"; 65].join(",");
    assert_eq!(many.parse::<Failures>(), Err(FailuresError::Many(65)));
}

/// The largest job: its plan stays above its bound, and a failure has an answer.
#[test]
fn largest_job_is_planned_and_survives_failures() {
    let hosts = HOSTS_MAX;
    let bytes = ByteCount::new(1_000_000_000);
    let demands =
        [generate::ring(hosts, bytes).unwrap(), generate::skewed(hosts, bytes, 4, 12, Seed::new(1)).unwrap()];
    let switches = Switches { count: 2, rate: BitRate::gbps(400), night: Duration::from_ms(10) };
    let phases =
        demands.into_iter().enumerate().map(|(number, demand)| phase(number, Vec::new(), 20, demand));
    let job = Job { hosts, spares: 1, switches, iterations: 1, phases: phases.collect() };
    let planner = Planner::new(&job).unwrap();
    let plan = planner.plan();
    assert!(plan.bound <= plan.makespan && plan.makespan <= plan.staying.unwrap());
    let after = planner.plan_after(&"host=511".parse().unwrap()).unwrap();
    assert_eq!(after.makespan, plan.makespan, "a spare takes the dead host's place");
    let after = planner.plan_after(&"port=0:7,port=1:9".parse().unwrap()).unwrap();
    assert!(after.bound <= after.makespan);
}
