//! `anabranch circuit`: a reconfigurable data-centre network.

mod plan;
mod retcp;

use crate::member::Member;
use anabranch_recipes::{Decision, Flow, Harm, Mechanism, Relation, Resources, Separation, Sharing, System};
use std::process::ExitCode;

/// Commands of `circuit`.
#[derive(clap::Subcommand)]
pub enum Noun {
    /// Plan the circuits of one week for a table of demand, beside the bound that no plan exceeds.
    Plan(plan::Args),
    /// Register reTCP as a congestion control of this machine's kernel, until Ctrl-C. Needs root.
    Retcp(retcp::Args),
}

/// Implementation of [`Member`] for `circuit`.
pub(crate) struct Circuit;

impl Member for Circuit {
    type Noun = Noun;
    fn run(noun: Noun, _: bool) -> anyhow::Result<ExitCode> {
        match noun {
            Noun::Plan(args) => plan::run(&args),
            Noun::Retcp(args) => retcp::run(&args),
        }
    }
    fn is_daemon(_: &Noun) -> bool {
        false
    }
    fn recipe() -> Option<System> {
        Some(System {
            name: "circuit",
            title: "circuit",
            planes: "applications and TCP + the scheduler of circuits",
            relation: Relation::Priority,
            separation: &[Separation::Layering],
            sharing: Sharing::Complete,
            resources: &[Resources::Disjoint],
            flow: Flow::OneWay,
            assumes: "demand is known before its week",
            decision: Decision::OneSide,
            harm: &[Harm::Performance, Harm::Responsiveness],
            has: Mechanism::Transparency,
            advice: None,
            source: "docs/circuit.md",
        })
    }
    fn simulated() -> Option<&'static dyn anabranch_sim::system::System> {
        Some(&anabranch_circuit_proto::simulated::SimulatedSystem)
    }
}
