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

/// A scheduler, which decides the circuits of one week.
pub trait Scheduler {
    /// Returns a schedule for `demand` that passes [`Schedule::check`].
    ///
    /// Panics: may panic if `timing` does not pass [`Timing::check`].
    fn schedule(&mut self, demand: &Demand, timing: &Timing) -> Schedule;

    /// Returns a schedule, and the bytes that it delivers. Schedulers of two hops, of several
    /// rotors or of a period longer than a week document which bytes count.
    ///
    /// Panics: as [`Self::schedule`].
    fn plan(&mut self, demand: &Demand, timing: &Timing) -> Plan {
        let schedule = self.schedule(demand, timing);
        let served = schedule.served(demand, timing);
        Plan { schedule, served }
    }
}

/// A schedule, and the bytes that it delivers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Days of one week.
    pub schedule: Schedule,
    /// Bytes that arrive at their destinations.
    pub served: ByteCount,
}

macro_rules! kinds {
    ($($kind:ident $name:literal $about:literal => $new:expr,)*) => {
        /// A scheduler that is built from its name alone.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        #[non_exhaustive]
        pub enum Kind {
            $(#[doc = $about] $kind,)*
        }

        impl Kind {
            /// All kinds, in the order of tables.
            pub const ALL: &'static [Self] = &[$(Self::$kind),*];

            /// Name of the scheduler in commands and tables.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$kind => $name,)* }
            }

            /// Description of the scheduler in one line.
            pub const fn about(self) -> &'static str {
                match self { $(Self::$kind => $about,)* }
            }

            /// Returns true if the scheduler's plans are days of one switch in one week, for which
            /// [`crate::bound::served_max`] is an upper bound. [`crate::bound::ports_max`] is an
            /// upper bound for all plans.
            pub const fn is_one_week(self) -> bool {
                !matches!(self, Self::RotorLb | Self::Opera | Self::Vermilion)
            }

            /// Creates a scheduler of this kind.
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
