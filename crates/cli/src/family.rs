//! The systems that this command has: the only list of them.
//!
//! Of each line of [`family!`] come a verb, a kind of workload for `simulate` and one for `emulate`, and what `doctor` looks at.
//! A system is a module with these items:
//!
//! - `Noun`, a [`clap::Subcommand`] with `is_daemon(&self) -> bool`, and `run(noun, quiet) -> anyhow::Result<ExitCode>`;
//! - `simulated()`, the planner of its workloads in the simulator, if it has one;
//! - `emulated()`, the same on the emulator;
//! - `needs()`, what it wants of a machine beside what all want.
//!
//! Leaves out: what a system does, which its own rooms hold. CONTRIBUTING.md says how to add one, step by step.

/// Makes of a list of systems all that this command knows of them.
macro_rules! family {
    ($($(#[$about:meta])* $verb:ident: $system:path as $module:ident,)+) => {
        $(use $system as $module;)+

        /// A system, and what it is to do.
        #[derive(clap::Subcommand)]
        pub(crate) enum Verb {
            $($(#[$about])* #[command(subcommand)] $verb($module::Noun),)+
        }

        impl Verb {
            /// Whether it runs until it is told to end. Its log is what remains of what it did, so it says more by itself.
            pub(crate) fn is_daemon(&self) -> bool {
                match self {
                    $(Self::$verb(noun) => noun.is_daemon(),)+
                }
            }

            /// Does it.
            ///
            /// Errors: one line for the user.
            pub(crate) fn run(self, quiet: bool) -> anyhow::Result<std::process::ExitCode> {
                match self {
                    $(Self::$verb(noun) => $module::run(noun, quiet),)+
                }
            }
        }

        /// Those that simulated scenarios may run.
        pub(crate) fn simulated() -> Vec<&'static dyn anabranch_sim::system::System> {
            [$($module::simulated()),+].into_iter().flatten().collect()
        }

        /// Those that emulated scenarios may run.
        pub(crate) fn emulated() -> Vec<&'static dyn anabranch_emu::scenario::System> {
            [$($module::emulated()),+].into_iter().flatten().collect()
        }

        /// What they want of a machine.
        pub(crate) fn needs() -> Vec<crate::doctor::Need> {
            [$($module::needs()),+].into_iter().flatten().collect()
        }
    };
}

family! {
    /// Bring one file to many sites, as fast as the links between them allow.
    Replicate: crate::replicate as replicate,
    /// Pull files from many servers at once, and keep this machine's link full.
    Gather: crate::gather as gather,
    /// Set the rates of a computing stage's flows, so that the stage ends sooner.
    Shuffle: crate::shuffle as shuffle,
}

#[cfg(test)]
mod tests;
