//! Schedulers, one file each.

mod eclipse;
mod fixed;
mod refit;
mod rotor;
mod solstice;
mod strobe;

pub use eclipse::Eclipse;
pub use fixed::Fixed;
pub use refit::Refit;
pub use rotor::Rotor;
pub use solstice::Solstice;
pub use strobe::Strobe;

use crate::{Demand, Schedule, Timing};

/// Decides the circuits of one week.
pub trait Scheduler {
    /// A schedule for `demand`. It passes [`Schedule::check`].
    ///
    /// Panics: may panic if `timing` does not pass [`Timing::check`].
    fn schedule(&mut self, demand: &Demand, timing: &Timing) -> Schedule;
}

macro_rules! kinds {
    ($($kind:ident $name:literal $about:literal => $new:expr,)*) => {
        /// Every scheduler that is built from its name alone.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        #[non_exhaustive]
        pub enum Kind {
            $(#[doc = $about] $kind,)*
        }

        impl Kind {
            /// All of them, in the order of tables.
            pub const ALL: &'static [Self] = &[$(Self::$kind),*];

            /// Its name in commands and tables.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$kind => $name,)* }
            }

            /// One line that says what it does.
            pub const fn about(self) -> &'static str {
                match self { $(Self::$kind => $about,)* }
            }

            /// A new scheduler of this kind.
            pub fn scheduler(self) -> Box<dyn Scheduler> {
                match self { $(Self::$kind => Box::new($new),)* }
            }
        }
    };
}

kinds! {
    Strobe "strobe" "each pair once a week, without regard to demand" => Strobe,
    Rotor "rotor" "matchings in turn, each as short as a day may be, without regard to demand" => Rotor::default(),
    Solstice "solstice" "longest common days first (CoNEXT 2015)" => Solstice,
    Eclipse "eclipse" "most bytes a second first (SIGMETRICS 2016)" => Eclipse,
    Refit "refit" "days by auction, then lengths and circuits fitted to each other" => Refit,
}

#[cfg(test)]
mod tests;
