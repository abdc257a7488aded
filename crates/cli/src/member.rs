//! The trait that a system implements to be part of the command.
//!
//! Leaves out: the list of systems (`family`). Read [`Member`].

use crate::doctor::Need;
use std::process::ExitCode;

/// A system, as this command uses it.
pub(crate) trait Member {
    /// Subcommands of its verb.
    type Noun: clap::Subcommand;
    /// Runs a subcommand.
    ///
    /// Errors: a one-line message for the user.
    fn run(noun: Self::Noun, quiet: bool) -> anyhow::Result<ExitCode>;
    /// Returns true for a subcommand that runs until a signal ends it. Its log is the only record
    /// of its work, so its default log level is higher.
    fn is_daemon(_noun: &Self::Noun) -> bool {
        false
    }
    /// Workloads in simulated scenarios.
    fn simulated() -> Option<&'static dyn anabranch_sim::system::System> {
        None
    }
    /// Workloads in emulated scenarios.
    fn emulated() -> Option<&'static dyn anabranch_emu::scenario::System> {
        None
    }
    /// Control planes that the system coordinates, with the mechanism, for `anabranch recipe`.
    fn recipe() -> Option<anabranch_recipes::System> {
        None
    }
    /// Abilities of a machine that the system needs, besides the common ones.
    fn needs() -> Option<Need> {
        None
    }
}
