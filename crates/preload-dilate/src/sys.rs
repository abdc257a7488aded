//! The C library's functions that a program calls first here.
//!
//! All of this room's `unsafe` is here and below. Each function turns the program's times into the
//! machine's, calls the next library's function, and turns the machine's times in its results back.
//! Once the library is loaded, nothing is allocated, locked, looked up or kept open, so threads,
//! `fork` and signal handlers need no care. Leaves out: the arithmetic (`anabranch_dilate`). Read
//! [`dilation`] and [`until`].

#![cfg_attr(test, allow(dead_code, reason = "tests call a few of the functions, under these names"))]

use std::ffi::{CStr, OsStr};
use std::os::unix::ffi::OsStrExt as _;
use std::sync::atomic::{AtomicI64, AtomicPtr, AtomicU32, Ordering::Relaxed};

use anabranch_dilate::{BASE_VARIABLE, Bases, Clock, EnvironmentError, FACTOR_VARIABLE, ProgramTime};
use anabranch_units::Dilation;
use libc::{c_char, c_int, c_void, clockid_t, timespec, timeval};

const SECOND_NS: i64 = 1_000_000_000;
const MICROSECOND_NS: i64 = 1_000;
/// Wait until an instant (`TIMER_ABSTIME`, `TFD_TIMER_ABSTIME`).
const UNTIL: c_int = 1;
/// Seconds since 1970 of a time that no monotonic clock shows: 31 years.
const REALTIME_FROM_S: i64 = 1_000_000_000;

/// The next library's function of this name: the C library's, or another preloaded one's; `None` if there is none.
///
/// The loader finds it before the program begins: `dlsym` may not be called in a signal's handler
/// (signal-safety(7)). Libraries that are loaded before this one may call earlier, outside of
/// handlers.
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
        // SAFETY: the function of this name has this signature by POSIX or by Linux's manual; a null is `None`.
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

/// The factor in force; 0 before the variables were read.
static FACTOR: AtomicU32 = AtomicU32::new(0);
static MONOTONIC: AtomicI64 = AtomicI64::new(0);
static REALTIME: AtomicI64 = AtomicI64::new(0);
static BOOTTIME: AtomicI64 = AtomicI64::new(0);
static RAW: AtomicI64 = AtomicI64::new(0);
static TAI: AtomicI64 = AtomicI64::new(0);

unsafe extern "C" {
    /// getenv(3) that finds nothing in a program that has more rights than its caller (secure_getenv(3)).
    fn secure_getenv(name: *const c_char) -> *const c_char;
}

/// The program's time, if it is stretched.
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

/// Reads the variables. The loader calls it before the program begins, when there is one thread; other libraries may come first.
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
// SAFETY: the loader calls each function of this section once; `begin_at_load` ignores its arguments.
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn() = begin_at_load;

/// The variables' values; `None` without a factor.
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

/// A variable's value; `None` if it is missing or empty.
fn variable(name: &str) -> Option<&'static OsStr> {
    let name = std::ffi::CString::new(name).ok()?;
    // SAFETY: the name ends with a zero.
    let value = unsafe { secure_getenv(name.as_ptr()) };
    if value.is_null() {
        return None;
    }
    // SAFETY: a value that is not null is a string of the environment, which nobody changes before the program begins.
    let value = unsafe { CStr::from_ptr(value) };
    (!value.is_empty()).then(|| OsStr::from_bytes(value.to_bytes()))
}

/// Ends the program with a reason.
fn refuse(error: &EnvironmentError) -> ! {
    let line = format!("anabranch time dilation: {error}\n");
    // SAFETY: the text outlives the call.
    unsafe { libc::write(2, line.as_ptr().cast(), line.len()) };
    // SAFETY: the process ends without running the program's code.
    unsafe { libc::_exit(crate::EXIT_BAD_VARIABLE) }
}

/// A clock's time by the machine.
///
/// Units: nanoseconds.
fn real_time(clock: clockid_t) -> i64 {
    let mut at = timespec { tv_sec: 0, tv_nsec: 0 };
    if let Some(next) = next!(clock_gettime as fn(clockid_t, *mut timespec) -> c_int) {
        // SAFETY: it writes one structure, which outlives the call.
        unsafe { next(clock, &mut at) };
    }
    nanoseconds(&at).unwrap_or(0)
}

/// Finds a function once. A name that no library has is asked for again by each call.
pub(super) fn find(known: &AtomicPtr<c_void>, name: &'static str) -> *mut c_void {
    let mut function = known.load(Relaxed);
    if function.is_null() {
        // SAFETY: the name ends with a zero. Two threads that ask at once hear the same.
        function = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr().cast()) };
        known.store(function, Relaxed);
    }
    function
}

/// The result of a function that the next library lacks.
pub(super) fn missing() -> c_int {
    set_errno(libc::ENOSYS);
    -1
}

pub(super) fn errno() -> c_int {
    // SAFETY: the C library says where this thread's `errno` is, which is there as long as the thread.
    unsafe { *libc::__errno_location() }
}

pub(super) fn set_errno(value: c_int) {
    // SAFETY: as in `errno`.
    unsafe { *libc::__errno_location() = value };
}

/// `None` for a time that the kernel refuses.
pub(super) fn nanoseconds(at: &timespec) -> Option<i64> {
    (at.tv_sec >= 0 && (0..SECOND_NS).contains(&at.tv_nsec))
        .then(|| at.tv_sec.saturating_mul(SECOND_NS).saturating_add(at.tv_nsec))
}

/// As [`nanoseconds`]. More than a second of microseconds is good, as `select` takes it.
pub(super) fn nanoseconds_of(at: &timeval) -> Option<i64> {
    (at.tv_sec >= 0 && at.tv_usec >= 0).then(|| {
        let micros = at.tv_usec.saturating_mul(MICROSECOND_NS);
        at.tv_sec.saturating_mul(SECOND_NS).saturating_add(micros)
    })
}

/// Units: nanoseconds; a negative time counts as 0, which is past as well.
pub(super) fn time_spec(ns: i64) -> timespec {
    let ns = ns.max(0);
    timespec { tv_sec: ns / SECOND_NS, tv_nsec: ns % SECOND_NS }
}

/// As [`time_spec`], rounded down.
pub(super) fn time_val(ns: i64) -> timeval {
    let ns = ns.max(0);
    timeval { tv_sec: ns / SECOND_NS, tv_usec: ns % SECOND_NS / MICROSECOND_NS }
}

/// As [`time_val`], rounded up: what is left of a wait is not nothing.
pub(super) fn time_val_left(ns: i64) -> timeval {
    time_val(ns.saturating_add(MICROSECOND_NS - 1))
}

/// The machine's time at which the program's `clock` shows a time; `None` if the program's own value is good as it stands.
///
/// # Safety
/// The pointer is null, or the program's own to a time.
pub(super) unsafe fn until(clock: Option<Clock>, at: *const timespec) -> Option<timespec> {
    let dilation = dilation()?;
    // SAFETY: by this function's own condition.
    let at = nanoseconds(unsafe { at.as_ref() }?)?;
    // 0 may mean no time to its reader, so no other time becomes 0.
    if at == 0 { None } else { Some(time_spec(dilation.real(clock?, at).max(1))) }
}

/// The machine's length of a duration; `None` if the program's own value is good as it stands.
///
/// # Safety
/// As [`until`].
pub(super) unsafe fn stretched(span: *const timespec) -> Option<timespec> {
    let dilation = dilation()?;
    // SAFETY: by this function's own condition.
    let span = nanoseconds(unsafe { span.as_ref() }?)?;
    Some(time_spec(dilation.stretched(span)))
}

/// The machine's length of a duration in milliseconds. A negative duration is infinite and stays so.
pub(super) fn stretched_ms(ms: c_int) -> c_int {
    match dilation() {
        Some(dilation) if ms > 0 => ms.saturating_mul(dilation.dilation().factor() as c_int),
        _ => ms,
    }
}

/// The clock of a time whose clock is not known: real ones count from 1970, all others from a start of this machine.
pub(super) fn likely_clock(at: &timespec) -> Clock {
    if at.tv_sec >= REALTIME_FROM_S { Clock::Realtime } else { Clock::Monotonic }
}

/// Either the program's own pointer, or one to the machine's time.
pub(super) fn or_own(real: &Option<timespec>, own: *const timespec) -> *const timespec {
    real.as_ref().map_or(own, std::ptr::from_ref)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_converted_within_bounds_and_passed_on_past() {
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
    fn unknown_clocks_are_told_apart_by_their_times() {
        for (tv_sec, clock) in [(999_999_999, Clock::Monotonic), (1_000_000_000, Clock::Realtime)] {
            assert_eq!(likely_clock(&timespec { tv_sec, tv_nsec: 0 }), clock);
        }
    }

    #[test]
    fn without_variables_time_is_as_it_was() {
        assert!(dilation().is_none());
        assert_eq!(stretched_ms(7), 7);
    }
}
