//! The single list of the systems in this command.
//!
//! Each line of [`family!`] adds a verb, a kind of workload for `simulate` and for `emulate`, and
//! checks for `doctor`. A line names a [`Member`], which a system's module of this crate
//! implements.
//!
//! Leaves out: the systems, which are separate crates. CONTRIBUTING.md explains how to add a
//! system, step by step.

use crate::doctor::Need;
use crate::member::Member;
use std::process::ExitCode;

/// Generates this command's code for each system from the list.
macro_rules! family {
    ($($(#[$about:meta])* $verb:ident: $member:ty,)+) => {
        /// A system, and its subcommand.
        #[derive(clap::Subcommand)]
        pub(crate) enum Verb {
            $($(#[$about])* #[command(subcommand)] $verb(Box<<$member as Member>::Noun>),)+
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
                    $(Self::$verb(noun) => <$member>::run(*noun, quiet),)+
                }
            }
        }

        /// Systems for simulated scenarios.
        pub(crate) fn simulated() -> Vec<&'static dyn anabranch_sim::system::System> {
            [$(<$member>::simulated()),+].into_iter().flatten().collect()
        }

        /// Systems for emulated scenarios.
        pub(crate) fn emulated() -> Vec<&'static dyn anabranch_emu::scenario::System> {
            [$(<$member>::emulated()),+].into_iter().flatten().collect()
        }

        /// Control planes that the systems coordinate.
        pub(crate) fn recipes() -> Vec<anabranch_recipes::System> {
            [$(<$member>::recipe()),+].into_iter().flatten().collect()
        }

        /// Abilities of a machine that the systems need.
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
    /// Schedule groups of flows (coflows), so that the mean coflow completes sooner.
    Shuffle: crate::shuffle::Shuffle,
    /// Send short flows over every path, coded, so that no congested path delays them.
    Spray: crate::spray::Spray,
    /// Place clients on the clusters of content networks, which bid for them.
    Broker: crate::broker::Broker,
    /// Carry live video over trees of relays, and compare plans for these trees.
    Live: crate::live::Live,
    /// Plan the circuits of a reconfigurable data-centre network.
    Circuit: crate::circuit::Circuit,
}

#[cfg(test)]
mod tests;
