//! The trait by which a system joins the command's family.
//!
//! Leaves out: the list of systems (`family`). Read [`Member`].

use crate::doctor::Need;
use std::process::ExitCode;

/// A system, as this command meets it.
pub(crate) trait Member {
    /// What its verb can be told to do.
    type Noun: clap::Subcommand;
    /// Does it.
    ///
    /// Errors: one line for the user.
    fn run(noun: Self::Noun, quiet: bool) -> anyhow::Result<ExitCode>;
    /// Whether it runs until it is told to end. Its log is what remains of what it did, so it says more by itself.
    fn is_daemon(_noun: &Self::Noun) -> bool {
        false
    }
    /// Its workloads in simulated scenarios.
    fn simulated() -> Option<&'static dyn anabranch_sim::system::System> {
        None
    }
    /// Its workloads in emulated scenarios.
    fn emulated() -> Option<&'static dyn anabranch_emu::scenario::System> {
        None
    }
    /// The control planes that it coordinates and how, for `anabranch recipe`.
    fn recipe() -> Option<anabranch_recipes::System> {
        None
    }
    /// What it needs of a machine beside what all systems need.
    fn needs() -> Option<Need> {
        None
    }
}
