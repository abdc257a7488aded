//! Laws of jobs: never worse than staying, never below the bound, and what single failures leave.
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
        // The true bytes are the planned ones: the plan runs as it stands.
        prop_assert_eq!(planner.executed(&plan, &job).unwrap(), plan.makespan);
    }

    #[test]
    fn single_failures_are_survived_with_spares(job in any_job(), host in 0usize..9, switch in 0usize..4) {
        let (host, switch) = (host % job.hosts, switch % job.switches.count);
        let planner = Planner::new(&job).unwrap();
        let whole = planner.plan();
        let after = |text: String| {
            let failures: Failures = text.parse().unwrap();
            failures.check(&job).unwrap();
            planner.plan_after(&failures)
        };
        // A spare host takes all circuits of the dead one.
        prop_assert_eq!(after(format!("host={host}")).is_ok(), job.spares > 0);
        let dead = after(format!("port={switch}:{host}"));
        if job.switches.count == 1 {
            prop_assert_eq!(dead.is_ok(), job.spares > 0);
            let lost = after(format!("switch={switch}"));
            prop_assert_eq!(lost, Err(Lost::Switches));
        } else {
            prop_assert!(dead.unwrap().makespan >= whole.bound);
            let left = after(format!("switch={switch}")).unwrap();
            prop_assert!(left.makespan >= whole.bound);
            prop_assert!(left.makespan <= left.staying.unwrap_or(left.makespan));
        }
    }
}

fn file(text: &str) -> Result<Job, FileError> {
    format!("hosts = 8\nspares = 1\nswitches = 2\nrate = \"400 Gbit/s\"\nnight = \"10 ms\"\n{text}").parse()
}

#[test]
fn three_phases_turn_where_it_pays() {
    let job = file(
        "[[phase]]\nname = \"gradients\"\npattern = \"ring-all-reduce\"\nbytes = \"8 GB\"\ncompute = \"100 ms\"\n\
         [[phase]]\nname = \"tokens\"\npattern = \"all-to-all\"\nbytes = \"20 GB\"\ncompute = \"30 ms\"\n\
         [[phase]]\nname = \"activations\"\npattern = \"pipeline\"\nbytes = \"2 GB\"\ncompute = \"30 ms\"\n",
    )
    .unwrap();
    let plan = Planner::new(&job).unwrap().plan();
    let choices: Vec<_> = plan.steps.iter().map(|step| step.choice).collect();
    assert_eq!(choices, [Choice::Stay, Choice::Days, Choice::Turn]);
    // Gradients: 14 GB over two circuits take 140 ms. Activations: 20 ms, and the night passes while hosts compute.
    let at: Vec<_> = plan.steps.iter().map(|step| (step.ready, step.end)).collect();
    assert_eq!(at[0], (Duration::from_ms(100), Duration::from_ms(240)));
    assert_eq!(at[2].1.as_ps() - at[1].1.as_ps(), Duration::from_ms(50).as_ps());
    assert!(plan.makespan < plan.staying.unwrap());
    assert!(plan.packet <= plan.bound && plan.bound <= plan.makespan);
}

#[test]
fn long_nights_make_a_job_stay() {
    let text = "[[phase]]\nname = \"a\"\npattern = \"ring-all-reduce\"\nbytes = \"100 MB\"\n\
                [[phase]]\nname = \"b\"\npattern = \"all-to-all\"\nbytes = \"100 MB\"\n";
    let mut job = file(text).unwrap();
    job.switches.night = Duration::from_secs(1);
    let plan = Planner::new(&job).unwrap().plan();
    assert!(plan.steps.iter().all(|step| step.choice == Choice::Stay));
    assert_eq!(Some(plan.makespan), plan.staying);
}

#[test]
fn mistakes_of_a_file_name_their_line() {
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
fn failures_that_the_job_lacks_are_refused() {
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
