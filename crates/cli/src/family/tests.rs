//! A system is added to the command by one line in the list. The system of this test needs 32 lines
//! besides `use` and closing braces.

use super::Member;
use crate::doctor::Need;
use anabranch_fabric::QuadHeap;
use anabranch_sim::{Plan, Simulation, scenario};
use clap::Parser;
use std::process::ExitCode;

/// A system that only waits, with every part that the command supports.
mod waiting {
    use crate::doctor::Need;
    use crate::member::Member;
    use anabranch_sim::scenario::SystemWorkload;
    use anabranch_sim::system::{System, SystemPlan};
    use anabranch_sim::traffic::{App, AppCx};
    use anabranch_sim::{Network, PlanError};
    use anabranch_units::{Duration, Instant, Seed};
    use std::process::ExitCode;

    #[derive(clap::Subcommand)]
    pub enum Noun {
        Wait,
    }
    pub struct Waiting;
    impl Member for Waiting {
        type Noun = Noun;
        fn run(_: Noun, _: bool) -> anyhow::Result<ExitCode> {
            Ok(ExitCode::from(7))
        }
        fn simulated() -> Option<&'static dyn System> {
            Some(&Self)
        }
        fn needs() -> Option<Need> {
            Some(Need { name: "patience", field: "patience", prefix: "by ", findings: vec![] })
        }
    }
    impl System for Waiting {
        fn kind(&self) -> &'static str {
            "pause"
        }
        fn plan(&self, w: &SystemWorkload, _: &Network, f: &str) -> Result<Box<dyn SystemPlan>, PlanError> {
            Ok(Box::new(w.settings::<Pause>(f)?))
        }
    }
    #[derive(Clone, Debug, serde::Deserialize)]
    struct Pause {
        time: Duration,
        #[serde(skip)]
        ended_at: Option<Instant>,
    }
    impl SystemPlan for Pause {
        fn app(&self, _: &Network, _: Seed) -> Result<Box<dyn App>, PlanError> {
            Ok(Box::new(self.clone()))
        }
    }
    impl App for Pause {
        fn start(&mut self, cx: &mut AppCx<'_, '_>) {
            cx.arm(Instant::ZERO + self.time, 0);
        }
        fn on_timer(&mut self, cx: &mut AppCx<'_, '_>, _: u16) {
            self.ended_at = Some(cx.now());
        }
        fn ended_at(&self) -> Option<Instant> {
            self.ended_at
        }
    }
}

family! {
    /// Wait for a while.
    Pause: self::waiting::Waiting,
}

#[derive(Parser)]
struct Command {
    #[command(subcommand)]
    verb: Verb,
}

#[test]
fn one_line_in_the_list_adds_a_verb() {
    let command = Command::try_parse_from(["anabranch", "pause", "wait"]).expect("it is a verb");
    assert!(!command.verb.is_daemon());
    let code = command.verb.run(true).expect("it runs");
    assert_eq!(format!("{code:?}"), format!("{:?}", ExitCode::from(7)));
    assert!(Command::try_parse_from(["anabranch", "gather", "ls"]).is_err(), "it is in another list");
}

#[test]
fn one_line_in_the_list_adds_a_simulated_workload() {
    let text = |kind: &str| {
        format!("[network]\ntopology = \"star\"\nhosts = 3\n[workload]\nkind = \"{kind}\"\ntime = \"3 ms\"\n")
    };
    let plan = |kind: &str| {
        let points = scenario::read("test.toml", &text(kind), &[]).expect("a good scenario");
        Plan::with_systems(points[0].scenario.clone(), &|_| unreachable!("it names no file"), &simulated())
    };
    let outcome =
        Simulation::<QuadHeap>::new(&plan("pause").expect("it is known"), 0).expect("nothing is drawn").run();
    assert_eq!(outcome.network.simulated_s, 0.003);
    let error = plan("gather").expect_err("it is in another list").to_string();
    assert!(error.ends_with("must be one of long, incast, poisson, udp, trace, racks, pause"), "{error}");
    assert!(emulated().is_empty(), "it is only simulated");
}

#[test]
fn one_line_in_the_list_adds_needs_for_doctor() {
    let [need] = &needs()[..] else { panic!("one") };
    assert_eq!((need.name, need.ways().len()), ("patience", 0));
    assert!(recipes().is_empty(), "it coordinates nothing");
}
