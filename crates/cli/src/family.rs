//! The systems that this command has: the only list of them.
//!
//! Each line of [`family!`] makes a verb, a kind of workload for `simulate` and one for `emulate`, and checks for `doctor`.
//! A line names a [`Member`], which a system's module of this room implements.
//!
//! Leaves out: the systems themselves, which have their own rooms. CONTRIBUTING.md says how to add one, step by step.

use crate::doctor::Need;
use crate::member::Member;
use std::process::ExitCode;

/// Makes of a list of systems all that this command knows of them.
macro_rules! family {
    ($($(#[$about:meta])* $verb:ident: $member:ty,)+) => {
        /// A system, and what it is to do.
        #[derive(clap::Subcommand)]
        pub(crate) enum Verb {
            $($(#[$about])* #[command(subcommand)] $verb(<$member as Member>::Noun),)+
        }

        impl Verb {
            /// See [`Member::is_daemon`].
            pub(crate) fn is_daemon(&self) -> bool {
                match self {
                    $(Self::$verb(noun) => <$member>::is_daemon(noun),)+
                }
            }

            /// See [`Member::run`].
            pub(crate) fn run(self, quiet: bool) -> anyhow::Result<ExitCode> {
                match self {
                    $(Self::$verb(noun) => <$member>::run(noun, quiet),)+
                }
            }
        }

        /// Those that simulated scenarios may run.
        pub(crate) fn simulated() -> Vec<&'static dyn anabranch_sim::system::System> {
            [$(<$member>::simulated()),+].into_iter().flatten().collect()
        }

        /// Those that emulated scenarios may run.
        pub(crate) fn emulated() -> Vec<&'static dyn anabranch_emu::scenario::System> {
            [$(<$member>::emulated()),+].into_iter().flatten().collect()
        }

        /// The control planes that they coordinate.
        pub(crate) fn recipes() -> Vec<anabranch_recipes::System> {
            [$(<$member>::recipe()),+].into_iter().flatten().collect()
        }

        /// What they need of a machine.
        pub(crate) fn needs() -> Vec<Need> {
            [$(<$member>::needs()),+].into_iter().flatten().collect()
        }
    };
}

family! {
    /// Bring one file to many sites, as fast as the links between them allow.
    Replicate: crate::replicate::Replicate,
    /// Pull files from many servers at once, and keep this machine's link full.
    Gather: crate::gather::Gather,
    /// Order flows that are waited for together (coflows), so that the mean coflow completes sooner.
    Shuffle: crate::shuffle::Shuffle,
    /// Send short flows over every path, coded, so that no crowded one delays them.
    Spray: crate::spray::Spray,
    /// Place clients on the clusters of content networks, which bid for them.
    Broker: crate::broker::Broker,
    /// Carry live video over trees of relays, and compare plans of such trees.
    Live: crate::live::Live,
    /// Plan the circuits of a reconfigurable data-centre network.
    Circuit: crate::circuit::Circuit,
}

#[cfg(test)]
mod tests;
