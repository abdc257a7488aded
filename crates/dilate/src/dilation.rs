//! The arithmetic of stretched time.
//!
//! Times are nanoseconds of 64 bits: 292 years, as the kernel's. Results past that stay at its end. Read [`Dilation`].

/// Largest factor.
pub const FACTOR_MAX: u32 = 1_024;

/// A clock, by what it counts from. Coarse kinds are as their fine ones.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Clock {
    /// Time since boot without sleep.
    Monotonic,
    /// Time since 1970.
    Realtime,
    /// Time since boot.
    Boottime,
    /// Time since boot by the hardware.
    Raw,
    /// Atomic time since 1970.
    Tai,
    /// Processor time of a thread or a process.
    Cpu,
}

impl Clock {
    /// A clock by its number (clock_gettime(2)); `None` for a device's.
    pub fn of(id: libc::clockid_t) -> Option<Self> {
        match id {
            libc::CLOCK_MONOTONIC | libc::CLOCK_MONOTONIC_COARSE => Some(Self::Monotonic),
            libc::CLOCK_REALTIME | libc::CLOCK_REALTIME_COARSE | libc::CLOCK_REALTIME_ALARM => {
                Some(Self::Realtime)
            }
            libc::CLOCK_BOOTTIME | libc::CLOCK_BOOTTIME_ALARM => Some(Self::Boottime),
            libc::CLOCK_MONOTONIC_RAW => Some(Self::Raw),
            libc::CLOCK_TAI => Some(Self::Tai),
            libc::CLOCK_PROCESS_CPUTIME_ID | libc::CLOCK_THREAD_CPUTIME_ID => Some(Self::Cpu),
            // Of negative numbers the lowest two bits are 3 for devices, else the kind of processor time.
            id if id < 0 && id & 3 != 3 => Some(Self::Cpu),
            _ => None,
        }
    }
}

/// Times of the clocks at which stretched and real time are the same.
///
/// Units: nanoseconds.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Bases {
    /// Of [`Clock::Monotonic`].
    pub monotonic_ns: i64,
    /// Of [`Clock::Realtime`].
    pub realtime_ns: i64,
    /// Of [`Clock::Boottime`].
    pub boottime_ns: i64,
    /// Of [`Clock::Raw`].
    pub raw_ns: i64,
    /// Of [`Clock::Tai`].
    pub tai_ns: i64,
}

impl Bases {
    /// The clocks' present times.
    pub fn now() -> Self {
        Self::read(|id| {
            let mut at = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            // SAFETY: the kernel writes one structure, which outlives the call.
            unsafe { libc::clock_gettime(id, &mut at) };
            at.tv_sec.saturating_mul(1_000_000_000).saturating_add(at.tv_nsec)
        })
    }

    /// The times that a function returns for the clocks' numbers.
    ///
    /// Units: nanoseconds.
    pub fn read(mut clock: impl FnMut(libc::clockid_t) -> i64) -> Self {
        Self {
            monotonic_ns: clock(libc::CLOCK_MONOTONIC),
            realtime_ns: clock(libc::CLOCK_REALTIME),
            boottime_ns: clock(libc::CLOCK_BOOTTIME),
            raw_ns: clock(libc::CLOCK_MONOTONIC_RAW),
            tai_ns: clock(libc::CLOCK_TAI),
        }
    }

    fn of(&self, clock: Clock) -> i64 {
        match clock {
            Clock::Monotonic => self.monotonic_ns,
            Clock::Realtime => self.realtime_ns,
            Clock::Boottime => self.boottime_ns,
            Clock::Raw => self.raw_ns,
            Clock::Tai => self.tai_ns,
            Clock::Cpu => 0,
        }
    }
}

/// Time stretched by a factor from a base on.
///
/// ```
/// use anabranch_dilate::{Bases, Clock, Dilation};
///
/// let dilation = Dilation::new(20, Bases { monotonic_ns: 1_000, ..Bases::default() });
/// assert_eq!(dilation.dilated(Clock::Monotonic, 1_200), 1_010);
/// assert_eq!(dilation.real(Clock::Monotonic, 1_010), 1_200);
/// ```
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Dilation {
    factor: i64,
    bases: Bases,
}

impl Dilation {
    /// Units: `factor` is real seconds in a stretched one; 0 counts as 1.
    pub fn new(factor: u32, bases: Bases) -> Self {
        Self { factor: factor.max(1).into(), bases }
    }

    /// Whether time is as it was.
    pub fn is_none(&self) -> bool {
        self.factor == 1
    }

    /// The program's time at a real one, rounded down.
    pub fn dilated(&self, clock: Clock, real_ns: i64) -> i64 {
        let base = self.bases.of(clock);
        base.saturating_add(real_ns.saturating_sub(base).div_euclid(self.factor))
    }

    /// The first real time at which the program's clock shows `dilated_ns`.
    pub fn real(&self, clock: Clock, dilated_ns: i64) -> i64 {
        let base = self.bases.of(clock);
        base.saturating_add(dilated_ns.saturating_sub(base).saturating_mul(self.factor))
    }

    /// Real length of a duration of the program.
    pub fn stretched(&self, dilated_ns: i64) -> i64 {
        dilated_ns.saturating_mul(self.factor)
    }

    /// Length in the program's time of a real duration, rounded up: what is left of a wait is not nothing.
    pub fn shrunk(&self, real_ns: i64) -> i64 {
        let whole = real_ns / self.factor;
        whole + i64::from(real_ns % self.factor > 0)
    }

    /// The factor.
    pub fn factor(&self) -> u32 {
        self.factor as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CLOCKS: [Clock; 6] =
        [Clock::Monotonic, Clock::Realtime, Clock::Boottime, Clock::Raw, Clock::Tai, Clock::Cpu];

    /// Bases of up to 146 years.
    fn dilations() -> impl Strategy<Value = Dilation> {
        (1..=FACTOR_MAX, prop::array::uniform5(0..i64::MAX / 2)).prop_map(|(factor, ns)| {
            let [monotonic_ns, realtime_ns, boottime_ns, raw_ns, tai_ns] = ns;
            Dilation::new(factor, Bases { monotonic_ns, realtime_ns, boottime_ns, raw_ns, tai_ns })
        })
    }

    proptest! {
        /// A wait until an instant ends when the clock shows it, and not a nanosecond earlier: up to 53 days from the base.
        #[test]
        fn waits_end_exactly_when_the_clock_shows_their_end(
            dilation in dilations(), clock in 0usize..6, after in -(1i64 << 52)..1 << 52,
        ) {
            let clock = CLOCKS[clock];
            let at = dilation.bases.of(clock) + after;
            let real = dilation.real(clock, at);
            prop_assert_eq!(dilation.dilated(clock, real), at);
            prop_assert!(dilation.dilated(clock, real - 1) < at);
        }

        /// A wait too long for the clock ends late and never early.
        #[test]
        fn waits_past_the_end_of_time_stay_there(dilation in dilations(), clock in 0usize..6, at: i64) {
            let clock = CLOCKS[clock];
            let base = dilation.bases.of(clock);
            prop_assert!(at < base || dilation.real(clock, at) >= at);
            prop_assert_eq!(dilation.real(clock, i64::MAX), i64::MAX);
        }

        #[test]
        fn clocks_never_go_back_and_durations_never_wrap(
            dilation in dilations(), clock in 0usize..6, a: i64, b: i64,
        ) {
            let clock = CLOCKS[clock];
            let (a, b) = (a.min(b), a.max(b));
            prop_assert!(dilation.dilated(clock, a) <= dilation.dilated(clock, b));
            prop_assert!(dilation.real(clock, a) <= dilation.real(clock, b));
            prop_assert!(dilation.stretched(a) <= dilation.stretched(b));
            prop_assert!(dilation.stretched(a.max(0)) >= a.max(0));
        }

        #[test]
        fn a_rest_is_nothing_only_if_nothing_is_left(dilation in dilations(), rest in 0..i64::MAX) {
            let shrunk = dilation.shrunk(rest);
            prop_assert!(dilation.stretched(shrunk) >= rest);
            prop_assert_eq!(shrunk == 0, rest == 0);
        }
    }

    #[test]
    fn numbers_of_clocks_are_told_apart() {
        for (id, clock) in [
            (libc::CLOCK_MONOTONIC_COARSE, Some(Clock::Monotonic)),
            (libc::CLOCK_REALTIME, Some(Clock::Realtime)),
            (libc::CLOCK_MONOTONIC_RAW, Some(Clock::Raw)),
            (libc::CLOCK_BOOTTIME, Some(Clock::Boottime)),
            (libc::CLOCK_THREAD_CPUTIME_ID, Some(Clock::Cpu)),
            // Of process 1 (CPUCLOCK_SCHED), and of a device with descriptor 1.
            (!1 << 3 | 2, Some(Clock::Cpu)),
            (!1 << 3 | 3, None),
            (99, None),
        ] {
            assert_eq!(Clock::of(id), clock, "{id}");
        }
    }
}
