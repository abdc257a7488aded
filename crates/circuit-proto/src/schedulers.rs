//! Schedulers, one file each.

mod eclipse;
mod fixed;
mod negotiator;
mod opera;
mod refit;
mod rotor;
mod rotor_lb;
mod solstice;
mod strobe;
mod vermilion;

pub use eclipse::Eclipse;
pub use fixed::Fixed;
pub use negotiator::Negotiator;
pub use opera::{Opera, ROTORS};
pub use refit::Refit;
pub use rotor::Rotor;
pub use rotor_lb::RotorLb;
pub use solstice::Solstice;
pub use strobe::Strobe;
pub use vermilion::Vermilion;

use crate::{Demand, Schedule, Timing};
use anabranch_units::ByteCount;

/// Decides the circuits of one week.
pub trait Scheduler {
    /// A schedule for `demand`. It passes [`Schedule::check`].
    ///
    /// Panics: may panic if `timing` does not pass [`Timing::check`].
    fn schedule(&mut self, demand: &Demand, timing: &Timing) -> Schedule;

    /// A schedule with the bytes that arrive. Schedulers of two hops, of several rotors or of a
    /// period longer than a week document which bytes count.
    ///
    /// Panics: as [`Self::schedule`].
    fn plan(&mut self, demand: &Demand, timing: &Timing) -> Plan {
        let schedule = self.schedule(demand, timing);
        let served = schedule.served(demand, timing);
        Plan { schedule, served }
    }
}

/// A schedule with the bytes that arrive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Days of one week.
    pub schedule: Schedule,
    /// Bytes at their destinations.
    pub served: ByteCount,
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

            /// True if its plans are days of one switch in one week, which
            /// [`crate::bound::served_max`] bounds. [`crate::bound::ports_max`] bounds all plans.
            pub const fn is_one_week(self) -> bool {
                !matches!(self, Self::RotorLb | Self::Opera | Self::Vermilion)
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
    RotorLb "rotor-lb" "rotor with traffic in one hop or two (SIGCOMM 2017)" => RotorLb::default(),
    Opera "opera" "four rotors that turn one after the other (NSDI 2020)" => Opera::default(),
    Vermilion "vermilion" "slots by demand, and one for each pair: an average week of a longer period (2025)" => Vermilion::default(),
    Negotiator "negotiator" "racks request and grant, two days ahead (SIGCOMM 2024)" => Negotiator::default(),
    Solstice "solstice" "longest common days first (CoNEXT 2015)" => Solstice,
    Eclipse "eclipse" "most bytes a second first (SIGMETRICS 2016)" => Eclipse,
    Refit "refit" "days by auction, then lengths and circuits fitted to each other" => Refit,
}

#[cfg(test)]
mod tests;
