//! Sleeps. Source: nanosleep(2), clock_nanosleep(2), usleep(3), sleep(3), C11's threads.

use anabranch_dilate::Clock;
use libc::{c_int, c_uint, clockid_t, timespec};

use super::{
    MICROSECOND_NS, SECOND_NS, UNTIL, dilation, errno, missing, nanoseconds, or_own, stretched, time_spec,
    until,
};

const NONE: timespec = timespec { tv_sec: 0, tv_nsec: 0 };

/// Tells the program what is left of an interrupted sleep.
///
/// # Safety
/// `rest` is null, or the program's own to a time.
unsafe fn tell_rest(left: &timespec, rest: *mut timespec) {
    // SAFETY: by this function's own condition.
    let rest = unsafe { rest.as_mut() };
    if let (Some(dilation), Some(rest), Some(left)) = (dilation(), rest, nanoseconds(left)) {
        *rest = time_spec(dilation.shrunk(left));
    }
}

/// The C library's, in the program's time.
///
/// # Safety
/// As the C library's.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn nanosleep(span: *const timespec, rest: *mut timespec) -> c_int {
    let Some(next) = next!(nanosleep as fn(*const timespec, *mut timespec) -> c_int) else {
        return missing();
    };
    // SAFETY: the program's own pointer.
    let Some(real) = (unsafe { stretched(span) }) else {
        // SAFETY: the program's own arguments, as it gave them.
        return unsafe { next(span, rest) };
    };
    let mut left = NONE;
    // SAFETY: both outlive the call.
    let result = unsafe { next(&real, &mut left) };
    if result == -1 && errno() == libc::EINTR {
        // SAFETY: the program's own pointer.
        unsafe { tell_rest(&left, rest) };
    }
    result
}

/// The C library's, in the program's time.
///
/// # Safety
/// As the C library's.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn clock_nanosleep(
    clock: clockid_t,
    flags: c_int,
    span: *const timespec,
    rest: *mut timespec,
) -> c_int {
    type Arguments = unsafe extern "C" fn(clockid_t, c_int, *const timespec, *mut timespec) -> c_int;
    let next: Option<Arguments> =
        next!(clock_nanosleep as fn(clockid_t, c_int, *const timespec, *mut timespec) -> c_int);
    let Some(next) = next else { return libc::ENOSYS };
    if flags & UNTIL != 0 {
        // SAFETY: the program's own pointer.
        let real = unsafe { until(Clock::of(clock), span) };
        // SAFETY: the program's own arguments, or a time that outlives the call.
        return unsafe { next(clock, flags, or_own(&real, span), rest) };
    }
    // SAFETY: the program's own pointer.
    let Some(real) = (unsafe { stretched(span) }) else {
        // SAFETY: the program's own arguments, as it gave them.
        return unsafe { next(clock, flags, span, rest) };
    };
    let mut left = NONE;
    // SAFETY: both outlive the call.
    let result = unsafe { next(clock, flags, &real, &mut left) };
    if result == libc::EINTR {
        // SAFETY: the program's own pointer.
        unsafe { tell_rest(&left, rest) };
    }
    result
}

/// The C library's, in the program's time.
///
/// # Safety
/// As the C library's.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn usleep(micros: c_uint) -> c_int {
    let span = time_spec(i64::from(micros) * MICROSECOND_NS);
    // SAFETY: the time outlives the call; no rest is asked for.
    unsafe { nanosleep(&span, std::ptr::null_mut()) }
}

/// The C library's, in the program's time.
///
/// # Safety
/// As the C library's.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn sleep(seconds: c_uint) -> c_uint {
    let span = time_spec(i64::from(seconds) * SECOND_NS);
    let mut rest = NONE;
    // SAFETY: both outlive the call.
    match unsafe { nanosleep(&span, &mut rest) } {
        0 => 0,
        _ => rest.tv_sec as c_uint,
    }
}

/// The C library's, in the program's time.
///
/// # Safety
/// As the C library's.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn thrd_sleep(span: *const timespec, rest: *mut timespec) -> c_int {
    // SAFETY: the program's own arguments, as it gave them.
    match unsafe { clock_nanosleep(libc::CLOCK_REALTIME, 0, span, rest) } {
        0 => 0,
        libc::EINTR => -1,
        // Any other negative number is a failure (C11, 7.26.5.7).
        _ => -2,
    }
}
