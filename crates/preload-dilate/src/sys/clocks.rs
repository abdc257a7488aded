//! Clocks: the time that the program reads. Source: clock_gettime(2), gettimeofday(2), times(2),
//! getrusage(2).

use anabranch_dilate::Clock;
use libc::{c_int, c_long, c_void, clock_t, clockid_t, rusage, time_t, timespec, timeval, tms};

use super::{dilation, missing, nanoseconds, nanoseconds_of, set_errno, time_spec, time_val};

/// Number of the real-time clock for `timespec_get`.
const TIME_UTC: c_int = 1;

/// Converts a clock's time to the program's time.
///
/// # Safety
/// The pointer must be null or point to a time of the program.
pub(super) unsafe fn dilate(clock: Option<Clock>, at: *mut timespec) {
    let (Some(dilation), Some(clock)) = (dilation(), clock) else { return };
    // SAFETY: the caller upholds this function's condition.
    if let Some(at) = unsafe { at.as_mut() }
        && let Some(real) = nanoseconds(at)
    {
        *at = time_spec(dilation.dilated(clock, real));
    }
}

/// Does the same as [`dilate`], for a time with microseconds.
///
/// # Safety
/// See [`dilate`].
pub(super) unsafe fn dilate_micros(clock: Clock, at: *mut timeval) {
    let Some(dilation) = dilation() else { return };
    // SAFETY: the caller upholds this function's condition.
    if let Some(at) = unsafe { at.as_mut() }
        && let Some(real) = nanoseconds_of(at)
    {
        *at = time_val(dilation.dilated(clock, real));
    }
}

/// The C library's function of this name, in the program's time.
///
/// # Safety
/// The caller must keep to the C library's rules for this function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn clock_gettime(clock: clockid_t, at: *mut timespec) -> c_int {
    let Some(next) = next!(clock_gettime as fn(clockid_t, *mut timespec) -> c_int) else {
        return missing();
    };
    // SAFETY: passes the program's arguments on unchanged.
    let result = unsafe { next(clock, at) };
    if result == 0 {
        // SAFETY: the next function has written to the pointer's target.
        unsafe { dilate(Clock::of(clock), at) };
    }
    result
}

/// The C library's function of this name, in the program's time.
///
/// # Safety
/// The caller must keep to the C library's rules for this function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn gettimeofday(at: *mut timeval, zone: *mut c_void) -> c_int {
    let Some(next) = next!(gettimeofday as fn(*mut timeval, *mut c_void) -> c_int) else {
        return missing();
    };
    // SAFETY: passes the program's arguments on unchanged.
    let result = unsafe { next(at, zone) };
    if result == 0 {
        // SAFETY: the pointer is null, or the next function has written to its target.
        unsafe { dilate_micros(Clock::Realtime, at) };
    }
    result
}

/// The C library's function of this name, in the program's time.
///
/// # Safety
/// The caller must keep to the C library's rules for this function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn time(seconds: *mut time_t) -> time_t {
    let mut at = timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the function writes one structure, which outlives the call.
    if unsafe { clock_gettime(libc::CLOCK_REALTIME, &mut at) } != 0 {
        return -1;
    }
    // SAFETY: the pointer is the program's, valid or null.
    if let Some(seconds) = unsafe { seconds.as_mut() } {
        *seconds = at.tv_sec;
    }
    at.tv_sec
}

/// The C library's function of this name, in the program's time.
///
/// # Safety
/// The caller must keep to the C library's rules for this function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn timespec_get(at: *mut timespec, base: c_int) -> c_int {
    let Some(next) = next!(timespec_get as fn(*mut timespec, c_int) -> c_int) else { return 0 };
    // SAFETY: passes the program's arguments on unchanged.
    let result = unsafe { next(at, base) };
    if result == TIME_UTC {
        // SAFETY: the next function has written to the pointer's target.
        unsafe { dilate(Some(Clock::Realtime), at) };
    }
    result
}

/// Converts a count of the machine's ticks to the program's ticks.
fn dilate_ticks(ticks: c_long) -> c_long {
    dilation().map_or(ticks, |dilation| ticks.div_euclid(dilation.dilation().factor().into()))
}

/// The C library's function of this name, in the program's time.
///
/// # Safety
/// The caller must keep to the C library's rules for this function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn clock() -> clock_t {
    let Some(next) = next!(clock as fn() -> clock_t) else { return missing().into() };
    // SAFETY: the function has no arguments.
    match unsafe { next() } {
        -1 => -1,
        ticks => dilate_ticks(ticks),
    }
}

/// The C library's function of this name, in the program's time.
///
/// # Safety
/// The caller must keep to the C library's rules for this function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn times(used: *mut tms) -> clock_t {
    let Some(next) = next!(times as fn(*mut tms) -> clock_t) else { return missing().into() };
    // SAFETY: passes the program's argument on unchanged.
    let ticks = unsafe { next(used) };
    if ticks == -1 {
        return -1;
    }
    // SAFETY: the pointer is null, or the next function has written to its target.
    if let Some(used) = unsafe { used.as_mut() } {
        for part in [&mut used.tms_utime, &mut used.tms_stime, &mut used.tms_cutime, &mut used.tms_cstime] {
            *part = dilate_ticks(*part);
        }
    }
    dilate_ticks(ticks)
}

/// The C library's function of this name, in the program's time.
///
/// # Safety
/// The caller must keep to the C library's rules for this function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn getrusage(who: c_int, used: *mut rusage) -> c_int {
    let Some(next) = next!(getrusage as fn(c_int, *mut rusage) -> c_int) else { return missing() };
    // SAFETY: passes the program's arguments on unchanged.
    let result = unsafe { next(who, used) };
    if result != 0 {
        return result;
    }
    // SAFETY: the next function has written to the pointer's target.
    if let Some(used) = unsafe { used.as_mut() } {
        // SAFETY: the pointer is to a field of the program's structure.
        unsafe { dilate_micros(Clock::Cpu, &mut used.ru_utime) };
        // SAFETY: the pointer is to a field of the program's structure.
        unsafe { dilate_micros(Clock::Cpu, &mut used.ru_stime) };
    }
    result
}

/// Fails while time is stretched: `settimeofday` and `clock_settime` would set the machine's clock
/// to the program's time.
///
/// # Safety
/// The caller must keep to the C library's rules for this function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn clock_settime(clock: clockid_t, at: *const timespec) -> c_int {
    if dilation().is_some() {
        set_errno(libc::EPERM);
        return -1;
    }
    let Some(next) = next!(clock_settime as fn(clockid_t, *const timespec) -> c_int) else {
        return missing();
    };
    // SAFETY: passes the program's arguments on unchanged.
    unsafe { next(clock, at) }
}

/// Fails while time is stretched, like [`clock_settime`].
///
/// # Safety
/// The caller must keep to the C library's rules for this function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn settimeofday(at: *const timeval, zone: *const c_void) -> c_int {
    if dilation().is_some() {
        set_errno(libc::EPERM);
        return -1;
    }
    let Some(next) = next!(settimeofday as fn(*const timeval, *const c_void) -> c_int) else {
        return missing();
    };
    // SAFETY: passes the program's arguments on unchanged.
    unsafe { next(at, zone) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::SECOND_NS;

    #[test]
    fn clocks_agree_with_the_next_library_without_variables() {
        let mut at = timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the structure is this test's.
        assert_eq!(unsafe { clock_gettime(libc::CLOCK_REALTIME, &mut at) }, 0);
        // SAFETY: the argument may be null.
        let seconds = unsafe { time(std::ptr::null_mut()) };
        assert!((at.tv_sec..=at.tv_sec + 60).contains(&seconds));
        assert!(nanoseconds(&at).is_some_and(|ns| ns > SECOND_NS));
        // SAFETY: the structure is this test's.
        assert_eq!(unsafe { clock_gettime(99, &mut at) }, -1);
        assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EINVAL));
    }
}
