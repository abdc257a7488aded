//! Waits of threads for one another. Source: pthread_cond_timedwait(3p), sem_wait(3), the manual of
//! glibc ("Waiting with Explicit Clocks").

use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

use anabranch_dilate::Clock;
use libc::{
    c_int, c_void, clockid_t, pthread_cond_t, pthread_condattr_t, pthread_mutex_t, pthread_rwlock_t,
    pthread_t, sem_t, timespec,
};

use super::{likely_clock, missing, or_own, until};

/// Defines functions that wait until an instant of a clock.
macro_rules! instants {
    ($($name:ident($($argument:ident: $kind:ty),*; $at:ident) by $clock:expr;)*) => {$(
        /// The C library's function of this name, in the program's time.
        ///
        /// # Safety
        /// The caller must keep to the C library's rules for this function.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C" fn $name($($argument: $kind,)* $at: *const timespec) -> c_int {
            let Some(next) = next!($name as fn($($kind,)* *const timespec) -> c_int) else { return missing() };
            let clock = $clock;
            // SAFETY: the pointer is the program's, valid or null.
            let real = unsafe { until(clock, $at) };
            // SAFETY: passes the program's arguments on, or a time that outlives the call.
            unsafe { next($($argument,)* or_own(&real, $at)) }
        }
    )*};
}

instants! {
    // SAFETY: the condition variable and the time are the program's.
    pthread_cond_timedwait(condition: *mut pthread_cond_t, mutex: *mut pthread_mutex_t; at) by unsafe { condition_clock(condition, at) };
    pthread_cond_clockwait(condition: *mut pthread_cond_t, mutex: *mut pthread_mutex_t, clock: clockid_t; at)
        by Clock::of(clock);
    pthread_mutex_timedlock(mutex: *mut pthread_mutex_t; at) by Some(Clock::Realtime);
    pthread_mutex_clocklock(mutex: *mut pthread_mutex_t, clock: clockid_t; at) by Clock::of(clock);
    pthread_rwlock_timedrdlock(lock: *mut pthread_rwlock_t; at) by Some(Clock::Realtime);
    pthread_rwlock_timedwrlock(lock: *mut pthread_rwlock_t; at) by Some(Clock::Realtime);
    pthread_rwlock_clockrdlock(lock: *mut pthread_rwlock_t, clock: clockid_t; at) by Clock::of(clock);
    pthread_rwlock_clockwrlock(lock: *mut pthread_rwlock_t, clock: clockid_t; at) by Clock::of(clock);
    pthread_timedjoin_np(thread: pthread_t, result: *mut *mut c_void; at) by Some(Clock::Realtime);
    pthread_clockjoin_np(thread: pthread_t, result: *mut *mut c_void, clock: clockid_t; at) by Clock::of(clock);
    sem_timedwait(semaphore: *mut sem_t; at) by Some(Clock::Realtime);
    sem_clockwait(semaphore: *mut sem_t, clock: clockid_t; at) by Clock::of(clock);
    cnd_timedwait(condition: *mut c_void, mutex: *mut c_void; at) by Some(Clock::Realtime);
    mtx_timedlock(mutex: *mut c_void; at) by Some(Clock::Realtime);
}

/// Offset in glibc of the word with a condition variable's clock bit, then that bit (since 2.25:
/// `__wrefs`, `__PTHREAD_COND_CLOCK_MONOTONIC_MASK`).
const CLOCK_AT: usize = 36;
const CLOCK_BIT: u8 = 2;

/// Whether condition variables have their clock bit at [`CLOCK_AT`]: 0 before this was checked.
static HAS_CLOCK: AtomicU8 = AtomicU8::new(UNKNOWN);
const UNKNOWN: u8 = 0;
const YES: u8 = 1;
const NO: u8 = 2;

/// The clock of a condition variable, from its attribute. POSIX has no function that returns this
/// clock.
///
/// # Safety
/// The pointers must be to an initialised condition variable and a time of the program.
unsafe fn condition_clock(condition: *const pthread_cond_t, at: *const timespec) -> Option<Clock> {
    if has_clock() {
        // SAFETY: the byte is within the structure.
        let byte = unsafe { clock_byte(condition) };
        return Some(if byte & CLOCK_BIT == 0 { Clock::Realtime } else { Clock::Monotonic });
    }
    // SAFETY: the caller upholds this function's condition.
    unsafe { at.as_ref() }.map(likely_clock)
}

/// # Safety
/// The pointer must be to a condition variable.
unsafe fn clock_byte(condition: *const pthread_cond_t) -> u8 {
    const { assert!(CLOCK_AT + 4 <= size_of::<pthread_cond_t>()) };
    // Other threads may write the word meanwhile, but never change this bit.
    let word = condition.cast::<u8>().wrapping_add(CLOCK_AT).cast::<std::sync::atomic::AtomicU32>();
    // SAFETY: the caller upholds this function's condition; the structure is aligned for words.
    unsafe { (*word).load(Relaxed) as u8 }
}

/// Checks the layout with condition variables of our own.
fn has_clock() -> bool {
    match HAS_CLOCK.load(Relaxed) {
        UNKNOWN => {
            let has = [(libc::CLOCK_MONOTONIC, CLOCK_BIT), (libc::CLOCK_REALTIME, 0)]
                .into_iter()
                .all(|(clock, bit)| probe(clock).is_some_and(|byte| byte & CLOCK_BIT == bit));
            HAS_CLOCK.store(if has { YES } else { NO }, Relaxed);
            has
        }
        known => known == YES,
    }
}

/// Reads the clock's byte in a new condition variable.
fn probe(clock: clockid_t) -> Option<u8> {
    // SAFETY: the C library fills both structures before they are read; zeros are valid for both.
    let (mut attribute, mut condition): (pthread_condattr_t, pthread_cond_t) = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are to structures of this function.
    let is_made = unsafe {
        libc::pthread_condattr_init(&mut attribute) == 0
            && libc::pthread_condattr_setclock(&mut attribute, clock) == 0
            && libc::pthread_cond_init(&mut condition, &attribute) == 0
    };
    // SAFETY: the condition variable is initialised, and no thread waits for it.
    is_made.then(|| unsafe {
        let byte = clock_byte(&condition);
        libc::pthread_cond_destroy(&mut condition);
        byte
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_env = "gnu")]
    #[test]
    fn condition_variable_clock_is_read_correctly() {
        assert!(has_clock());
        assert_eq!(probe(libc::CLOCK_MONOTONIC).map(|byte| byte & CLOCK_BIT), Some(CLOCK_BIT));
        assert_eq!(probe(libc::CLOCK_REALTIME).map(|byte| byte & CLOCK_BIT), Some(0));
    }
}
