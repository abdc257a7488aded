//! Replacements of the C library's functions that read or wait for time.
//!
//! This module and its submodules have all `unsafe` code of this crate. Each function converts the
//! program's times to the machine's, calls the next library's function, and converts the times in
//! its results back. Once the library is loaded, it allocates no memory, takes no lock, looks up no
//! symbol and keeps no descriptor open. So threads, `fork` and signal handlers need no care. Leaves
//! out: the arithmetic (`anabranch_dilate`). Read [`dilation`] and [`until`].

#![cfg_attr(test, allow(dead_code, reason = "tests call a few of the functions, under these names"))]

use std::ffi::{CStr, OsStr};
use std::os::unix::ffi::OsStrExt as _;
use std::sync::atomic::{AtomicI64, AtomicPtr, AtomicU32, Ordering::Relaxed};

use anabranch_dilate::{BASE_VARIABLE, Bases, Clock, EnvironmentError, FACTOR_VARIABLE, ProgramTime};
use anabranch_units::Dilation;
use libc::{c_char, c_int, c_void, clockid_t, timespec, timeval};

const SECOND_NS: i64 = 1_000_000_000;
const MICROSECOND_NS: i64 = 1_000;
/// Flag of an absolute time (`TIMER_ABSTIME`, `TFD_TIMER_ABSTIME`).
const UNTIL: c_int = 1;
/// Seconds since 1970 from which a time must be of the real-time clock: 31 years, which no
/// monotonic clock shows.
const REALTIME_FROM_S: i64 = 1_000_000_000;

/// The next library's function of this name: the C library's or another preloaded library's;
/// `None` if there is none.
///
/// The loader looks the function up before the program begins, because `dlsym` must not be called
/// in a signal handler (signal-safety(7)). Libraries that are loaded before this one may call the
/// function earlier, outside signal handlers.
macro_rules! next {
    ($name:ident as fn($($kind:ty),* $(,)?) -> $result:ty) => {{
        static NEXT: std::sync::atomic::AtomicPtr<libc::c_void> =
            std::sync::atomic::AtomicPtr::new(std::ptr::null_mut());
        extern "C" fn find_at_load() {
            crate::sys::find(&NEXT, concat!(stringify!($name), "\0"));
        }
        #[used]
        // SAFETY: the loader calls each function of this section once; `find_at_load` ignores its
        // arguments.
        #[unsafe(link_section = ".init_array")]
        static FIND: extern "C" fn() = find_at_load;
        let function = crate::sys::find(&NEXT, concat!(stringify!($name), "\0"));
        // SAFETY: by POSIX or Linux's manual, the function of this name has this signature; null
        // becomes `None`.
        unsafe {
            std::mem::transmute::<*mut libc::c_void, Option<unsafe extern "C" fn($($kind),*) -> $result>>(function)
        }
    }};
}

mod clocks;
mod descriptors;
mod sleeps;
mod sockets;
mod syscall;
mod threads;
mod timers;

/// The factor in force; 0 until the variables are read.
static FACTOR: AtomicU32 = AtomicU32::new(0);
static MONOTONIC: AtomicI64 = AtomicI64::new(0);
static REALTIME: AtomicI64 = AtomicI64::new(0);
static BOOTTIME: AtomicI64 = AtomicI64::new(0);
static RAW: AtomicI64 = AtomicI64::new(0);
static TAI: AtomicI64 = AtomicI64::new(0);

unsafe extern "C" {
    /// A getenv(3) that finds no variable in a program with more rights than its caller
    /// (secure_getenv(3)).
    fn secure_getenv(name: *const c_char) -> *const c_char;
}

/// The program's time; `None` if it is not stretched.
#[inline]
pub(super) fn dilation() -> Option<ProgramTime> {
    let factor = match FACTOR.load(Relaxed) {
        0 => begin(),
        factor => factor,
    };
    let dilation = Dilation::try_from(factor).ok().filter(|dilation| *dilation != Dilation::NONE);
    dilation.map(|dilation| {
        let bases = Bases {
            monotonic_ns: MONOTONIC.load(Relaxed),
            realtime_ns: REALTIME.load(Relaxed),
            boottime_ns: BOOTTIME.load(Relaxed),
            raw_ns: RAW.load(Relaxed),
            tai_ns: TAI.load(Relaxed),
        };
        ProgramTime::new(dilation, bases)
    })
}

/// Reads the variables. The loader calls this before the program begins, when there is only one
/// thread; other libraries may call it earlier.
fn begin() -> u32 {
    let time = match from_env() {
        Ok(time) => time,
        Err(error) => refuse(&error),
    };
    let factor = time.map_or(1, |time| {
        let bases = time.bases();
        MONOTONIC.store(bases.monotonic_ns, Relaxed);
        REALTIME.store(bases.realtime_ns, Relaxed);
        BOOTTIME.store(bases.boottime_ns, Relaxed);
        RAW.store(bases.raw_ns, Relaxed);
        TAI.store(bases.tai_ns, Relaxed);
        time.dilation().factor()
    });
    FACTOR.store(factor, Relaxed);
    factor
}

extern "C" fn begin_at_load() {
    begin();
}

#[cfg(not(test))]
#[used]
// SAFETY: the loader calls each function of this section once; `begin_at_load` ignores its
// arguments.
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn() = begin_at_load;

/// Values of the variables; `None` without a factor.
fn from_env() -> Result<Option<ProgramTime>, EnvironmentError> {
    let Some(factor) = variable(FACTOR_VARIABLE) else { return Ok(None) };
    let factor = factor.to_string_lossy();
    if let Some(base) = variable(BASE_VARIABLE) {
        return ProgramTime::read(&factor, &base.to_string_lossy()).map(Some);
    }
    let time = ProgramTime::new(ProgramTime::read_factor(&factor)?, Bases::read(real_time));
    let [_, (name, value)] = time.variables();
    // SAFETY: the loader runs this before the program's first thread.
    unsafe { std::env::set_var(name, value) };
    Ok(Some(time))
}

/// Value of a variable; `None` if it is missing or empty.
fn variable(name: &str) -> Option<&'static OsStr> {
    let name = std::ffi::CString::new(name).ok()?;
    // SAFETY: the name ends with a zero.
    let value = unsafe { secure_getenv(name.as_ptr()) };
    if value.is_null() {
        return None;
    }
    // SAFETY: a value that is not null is a string of the environment, which does not change before
    // the program begins.
    let value = unsafe { CStr::from_ptr(value) };
    (!value.is_empty()).then(|| OsStr::from_bytes(value.to_bytes()))
}

/// Prints the reason and ends the program.
fn refuse(error: &EnvironmentError) -> ! {
    let line = format!("anabranch time dilation: {error}\n");
    // SAFETY: the text outlives the call.
    unsafe { libc::write(2, line.as_ptr().cast(), line.len()) };
    // SAFETY: the process ends without running the program's code.
    unsafe { libc::_exit(crate::EXIT_BAD_VARIABLE) }
}

/// Real time of a clock, in nanoseconds.
fn real_time(clock: clockid_t) -> i64 {
    let mut at = timespec { tv_sec: 0, tv_nsec: 0 };
    if let Some(next) = next!(clock_gettime as fn(clockid_t, *mut timespec) -> c_int) {
        // SAFETY: the function writes one structure, which outlives the call.
        unsafe { next(clock, &mut at) };
    }
    nanoseconds(&at).unwrap_or(0)
}

/// Looks a function up and stores the result. If no library has the function, each call looks it up
/// again.
pub(super) fn find(known: &AtomicPtr<c_void>, name: &'static str) -> *mut c_void {
    let mut function = known.load(Relaxed);
    if function.is_null() {
        // SAFETY: the name ends with a zero. Concurrent calls get the same result.
        function = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr().cast()) };
        known.store(function, Relaxed);
    }
    function
}

/// The result of a function that the next library does not have.
pub(super) fn missing() -> c_int {
    set_errno(libc::ENOSYS);
    -1
}

pub(super) fn errno() -> c_int {
    // SAFETY: the C library returns the address of this thread's `errno`, which is valid as long as
    // the thread.
    unsafe { *libc::__errno_location() }
}

pub(super) fn set_errno(value: c_int) {
    // SAFETY: the address is valid, as in `errno`.
    unsafe { *libc::__errno_location() = value };
}

/// Converts a time to nanoseconds; `None` if the kernel would refuse the time.
pub(super) fn nanoseconds(at: &timespec) -> Option<i64> {
    (at.tv_sec >= 0 && (0..SECOND_NS).contains(&at.tv_nsec))
        .then(|| at.tv_sec.saturating_mul(SECOND_NS).saturating_add(at.tv_nsec))
}

/// Does the same as [`nanoseconds`]. A second or more of microseconds is accepted, because `select`
/// accepts it.
pub(super) fn nanoseconds_of(at: &timeval) -> Option<i64> {
    (at.tv_sec >= 0 && at.tv_usec >= 0).then(|| {
        let micros = at.tv_usec.saturating_mul(MICROSECOND_NS);
        at.tv_sec.saturating_mul(SECOND_NS).saturating_add(micros)
    })
}

/// Converts nanoseconds to a time; a negative time becomes 0, which is also in the past.
pub(super) fn time_spec(ns: i64) -> timespec {
    let ns = ns.max(0);
    timespec { tv_sec: ns / SECOND_NS, tv_nsec: ns % SECOND_NS }
}

/// Does the same as [`time_spec`], rounded down to microseconds.
pub(super) fn time_val(ns: i64) -> timeval {
    let ns = ns.max(0);
    timeval { tv_sec: ns / SECOND_NS, tv_usec: ns % SECOND_NS / MICROSECOND_NS }
}

/// Does the same as [`time_val`], rounded up, so that the remaining time of a wait does not become
/// zero.
pub(super) fn time_val_left(ns: i64) -> timeval {
    time_val(ns.saturating_add(MICROSECOND_NS - 1))
}

/// The machine's time at which the program's `clock` shows the time; `None` if the program's own
/// value is used.
///
/// # Safety
/// The pointer must be null or point to a time of the program.
pub(super) unsafe fn until(clock: Option<Clock>, at: *const timespec) -> Option<timespec> {
    let dilation = dilation()?;
    // SAFETY: the caller upholds this function's condition.
    let at = nanoseconds(unsafe { at.as_ref() }?)?;
    // The caller may treat 0 as "no time", so no other time becomes 0.
    if at == 0 { None } else { Some(time_spec(dilation.real(clock?, at).max(1))) }
}

/// The real length of a duration; `None` if the program's own value is used.
///
/// # Safety
/// See [`until`].
pub(super) unsafe fn stretched(span: *const timespec) -> Option<timespec> {
    let dilation = dilation()?;
    // SAFETY: the caller upholds this function's condition.
    let span = nanoseconds(unsafe { span.as_ref() }?)?;
    Some(time_spec(dilation.stretched(span)))
}

/// The real length of a duration in milliseconds. A negative duration is infinite and is unchanged.
pub(super) fn stretched_ms(ms: c_int) -> c_int {
    match dilation() {
        Some(dilation) if ms > 0 => ms.saturating_mul(dilation.dilation().factor() as c_int),
        _ => ms,
    }
}

/// Guesses the clock of a time: the real-time clock counts from 1970, all other clocks from the
/// machine's boot.
pub(super) fn likely_clock(at: &timespec) -> Clock {
    if at.tv_sec >= REALTIME_FROM_S { Clock::Realtime } else { Clock::Monotonic }
}

/// A pointer to the machine's time, or the program's own pointer if there is none.
pub(super) fn or_own(real: &Option<timespec>, own: *const timespec) -> *const timespec {
    real.as_ref().map_or(own, std::ptr::from_ref)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn valid_times_convert_and_invalid_ones_are_refused() {
        let at = |tv_sec, tv_nsec| nanoseconds(&timespec { tv_sec, tv_nsec });
        assert_eq!(at(1, 5), Some(1_000_000_005));
        assert_eq!(at(0, SECOND_NS - 1), Some(SECOND_NS - 1));
        assert_eq!((at(0, SECOND_NS), at(0, -1), at(-1, 0)), (None, None, None));
        assert_eq!(at(i64::MAX, 0), Some(i64::MAX));
        assert_eq!(nanoseconds_of(&timeval { tv_sec: 1, tv_usec: 2_000_000 }), Some(3 * SECOND_NS));
        assert_eq!(nanoseconds_of(&timeval { tv_sec: 0, tv_usec: -1 }), None);
        let longest = time_spec(i64::MAX);
        assert_eq!(nanoseconds(&longest), Some(i64::MAX));
        assert_eq!(time_spec(-5).tv_nsec, 0);
        assert_eq!((time_val_left(1).tv_usec, time_val(1).tv_usec), (1, 0));
    }

    #[test]
    fn unknown_clocks_are_guessed_from_their_times() {
        for (tv_sec, clock) in [(999_999_999, Clock::Monotonic), (1_000_000_000, Clock::Realtime)] {
            assert_eq!(likely_clock(&timespec { tv_sec, tv_nsec: 0 }), clock);
        }
    }

    #[test]
    fn time_is_unchanged_without_variables() {
        assert!(dilation().is_none());
        assert_eq!(stretched_ms(7), 7);
    }
}
