//! Clocks: what time it is to the program. Source: clock_gettime(2), gettimeofday(2), times(2), getrusage(2).

use anabranch_dilate::Clock;
use libc::{c_int, c_long, c_void, clock_t, clockid_t, rusage, time_t, timespec, timeval, tms};

use super::{dilation, missing, nanoseconds, nanoseconds_of, set_errno, time_spec, time_val};

/// `timespec_get`'s number of the real clock.
const TIME_UTC: c_int = 1;

/// Turns a clock's time into the program's.
///
/// # Safety
/// The pointer is null, or the program's own to a time.
pub(super) unsafe fn dilate(clock: Option<Clock>, at: *mut timespec) {
    let (Some(dilation), Some(clock)) = (dilation(), clock) else { return };
    // SAFETY: by this function's own condition.
    if let Some(at) = unsafe { at.as_mut() }
        && let Some(real) = nanoseconds(at)
    {
        *at = time_spec(dilation.dilated(clock, real));
    }
}

/// As [`dilate`], for a time with microseconds.
///
/// # Safety
/// As [`dilate`].
pub(super) unsafe fn dilate_micros(clock: Clock, at: *mut timeval) {
    let Some(dilation) = dilation() else { return };
    // SAFETY: by this function's own condition.
    if let Some(at) = unsafe { at.as_mut() }
        && let Some(real) = nanoseconds_of(at)
    {
        *at = time_val(dilation.dilated(clock, real));
    }
}

/// The C library's, in the program's time.
///
/// # Safety
/// As the C library's.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn clock_gettime(clock: clockid_t, at: *mut timespec) -> c_int {
    let Some(next) = next!(clock_gettime as fn(clockid_t, *mut timespec) -> c_int) else {
        return missing();
    };
    // SAFETY: the program's own arguments, as it gave them.
    let result = unsafe { next(clock, at) };
    if result == 0 {
        // SAFETY: the next function has written to it.
        unsafe { dilate(Clock::of(clock), at) };
    }
    result
}

/// The C library's, in the program's time.
///
/// # Safety
/// As the C library's.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn gettimeofday(at: *mut timeval, zone: *mut c_void) -> c_int {
    let Some(next) = next!(gettimeofday as fn(*mut timeval, *mut c_void) -> c_int) else {
        return missing();
    };
    // SAFETY: the program's own arguments, as it gave them.
    let result = unsafe { next(at, zone) };
    if result == 0 {
        // SAFETY: the next function has written to it, unless it is null.
        unsafe { dilate_micros(Clock::Realtime, at) };
    }
    result
}

/// The C library's, in the program's time.
///
/// # Safety
/// As the C library's.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn time(seconds: *mut time_t) -> time_t {
    let mut at = timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: it writes one structure, which outlives the call.
    if unsafe { clock_gettime(libc::CLOCK_REALTIME, &mut at) } != 0 {
        return -1;
    }
    // SAFETY: the program's own pointer, or null.
    if let Some(seconds) = unsafe { seconds.as_mut() } {
        *seconds = at.tv_sec;
    }
    at.tv_sec
}

/// The C library's, in the program's time.
///
/// # Safety
/// As the C library's.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn timespec_get(at: *mut timespec, base: c_int) -> c_int {
    let Some(next) = next!(timespec_get as fn(*mut timespec, c_int) -> c_int) else { return 0 };
    // SAFETY: the program's own arguments, as it gave them.
    let result = unsafe { next(at, base) };
    if result == TIME_UTC {
        // SAFETY: the next function has written to it.
        unsafe { dilate(Some(Clock::Realtime), at) };
    }
    result
}

/// A count of the machine's ticks as the program's.
fn dilate_ticks(ticks: c_long) -> c_long {
    dilation().map_or(ticks, |dilation| ticks.div_euclid(dilation.dilation().factor().into()))
}

/// The C library's, in the program's time.
///
/// # Safety
/// As the C library's.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn clock() -> clock_t {
    let Some(next) = next!(clock as fn() -> clock_t) else { return missing().into() };
    // SAFETY: it takes nothing.
    match unsafe { next() } {
        -1 => -1,
        ticks => dilate_ticks(ticks),
    }
}

/// The C library's, in the program's time.
///
/// # Safety
/// As the C library's.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn times(used: *mut tms) -> clock_t {
    let Some(next) = next!(times as fn(*mut tms) -> clock_t) else { return missing().into() };
    // SAFETY: the program's own argument, as it gave it.
    let ticks = unsafe { next(used) };
    if ticks == -1 {
        return -1;
    }
    // SAFETY: the next function has written to it, unless it is null.
    if let Some(used) = unsafe { used.as_mut() } {
        for part in [&mut used.tms_utime, &mut used.tms_stime, &mut used.tms_cutime, &mut used.tms_cstime] {
            *part = dilate_ticks(*part);
        }
    }
    dilate_ticks(ticks)
}

/// The C library's, in the program's time.
///
/// # Safety
/// As the C library's.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn getrusage(who: c_int, used: *mut rusage) -> c_int {
    let Some(next) = next!(getrusage as fn(c_int, *mut rusage) -> c_int) else { return missing() };
    // SAFETY: the program's own arguments, as it gave them.
    let result = unsafe { next(who, used) };
    if result != 0 {
        return result;
    }
    // SAFETY: the next function has written to it.
    if let Some(used) = unsafe { used.as_mut() } {
        // SAFETY: a field of the program's structure.
        unsafe { dilate_micros(Clock::Cpu, &mut used.ru_utime) };
        // SAFETY: as above.
        unsafe { dilate_micros(Clock::Cpu, &mut used.ru_stime) };
    }
    result
}

/// `settimeofday` and `clock_settime` would set the machine's clock to the program's time: not permitted while time is stretched.
///
/// # Safety
/// As the C library's.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn clock_settime(clock: clockid_t, at: *const timespec) -> c_int {
    if dilation().is_some() {
        set_errno(libc::EPERM);
        return -1;
    }
    let Some(next) = next!(clock_settime as fn(clockid_t, *const timespec) -> c_int) else {
        return missing();
    };
    // SAFETY: the program's own arguments, as it gave them.
    unsafe { next(clock, at) }
}

/// As [`clock_settime`].
///
/// # Safety
/// As the C library's.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn settimeofday(at: *const timeval, zone: *const c_void) -> c_int {
    if dilation().is_some() {
        set_errno(libc::EPERM);
        return -1;
    }
    let Some(next) = next!(settimeofday as fn(*const timeval, *const c_void) -> c_int) else {
        return missing();
    };
    // SAFETY: the program's own arguments, as it gave them.
    unsafe { next(at, zone) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::SECOND_NS;

    #[test]
    fn clocks_agree_with_the_next_library_without_variables() {
        let mut at = timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: a structure of this test's.
        assert_eq!(unsafe { clock_gettime(libc::CLOCK_REALTIME, &mut at) }, 0);
        // SAFETY: null is allowed.
        let seconds = unsafe { time(std::ptr::null_mut()) };
        assert!((at.tv_sec..=at.tv_sec + 60).contains(&seconds));
        assert!(nanoseconds(&at).is_some_and(|ns| ns > SECOND_NS));
        // SAFETY: a structure of this test's.
        assert_eq!(unsafe { clock_gettime(99, &mut at) }, -1);
        assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EINVAL));
    }
}
