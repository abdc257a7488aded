//! Clocks of a machine by their numbers, and their times at which stretching starts. Read
//! [`Clock`].

/// A clock, identified by its origin. A coarse clock counts as the corresponding fine clock.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Clock {
    /// Time since boot, without the time in suspend.
    Monotonic,
    /// Time since 1970.
    Realtime,
    /// Time since boot, including the time in suspend.
    Boottime,
    /// Time since boot by the hardware, without corrections of the rate.
    Raw,
    /// Atomic time since 1970.
    Tai,
    /// Processor time of a thread or a process.
    Cpu,
}

impl Clock {
    /// Returns the clock with this number (clock_gettime(2)); `None` for a device's clock.
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
            // In negative numbers, the lowest two bits are 3 for devices; other values are kinds of
            // processor time.
            id if id < 0 && id & 3 != 3 => Some(Self::Cpu),
            _ => None,
        }
    }
}

/// Times of the clocks at which stretched and real time are equal.
///
/// Units: nanoseconds.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Bases {
    /// Base time of [`Clock::Monotonic`].
    pub monotonic_ns: i64,
    /// Base time of [`Clock::Realtime`].
    pub realtime_ns: i64,
    /// Base time of [`Clock::Boottime`].
    pub boottime_ns: i64,
    /// Base time of [`Clock::Raw`].
    pub raw_ns: i64,
    /// Base time of [`Clock::Tai`].
    pub tai_ns: i64,
}

impl Bases {
    /// The current times of the clocks.
    pub fn now() -> Self {
        Self::read(|id| {
            let mut at = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            // SAFETY: the kernel writes one structure, which outlives the call.
            unsafe { libc::clock_gettime(id, &mut at) };
            at.tv_sec.saturating_mul(1_000_000_000).saturating_add(at.tv_nsec)
        })
    }

    /// The times that `clock` returns for the clocks' numbers.
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

    pub(crate) fn of(&self, clock: Clock) -> i64 {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clock_numbers_map_to_their_clocks() {
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
