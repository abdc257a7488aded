//! Sleeps. Source: nanosleep(2), clock_nanosleep(2), usleep(3), sleep(3), C11's thread functions.

use anabranch_dilate::Clock;
use libc::{c_int, c_uint, clockid_t, timespec};

use super::{
    MICROSECOND_NS, SECOND_NS, UNTIL, dilation, errno, missing, nanoseconds, or_own, stretched, time_spec,
    until,
};

const NONE: timespec = timespec { tv_sec: 0, tv_nsec: 0 };

/// Returns the remaining time of an interrupted sleep to the program.
///
/// # Safety
/// `rest` must be null or point to a time of the program.
unsafe fn tell_rest(left: &timespec, rest: *mut timespec) {
    // SAFETY: the caller upholds this function's condition.
    let rest = unsafe { rest.as_mut() };
    if let (Some(dilation), Some(rest), Some(left)) = (dilation(), rest, nanoseconds(left)) {
        *rest = time_spec(dilation.shrunk(left));
    }
}

/// The C library's function of this name, in the program's time.
///
/// # Safety
/// The caller must keep to the C library's rules for this function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn nanosleep(span: *const timespec, rest: *mut timespec) -> c_int {
    let Some(next) = next!(nanosleep as fn(*const timespec, *mut timespec) -> c_int) else {
        return missing();
    };
    // SAFETY: the pointer is the program's, valid or null.
    let Some(real) = (unsafe { stretched(span) }) else {
        // SAFETY: passes the program's arguments on unchanged.
        return unsafe { next(span, rest) };
    };
    let mut left = NONE;
    // SAFETY: both times outlive the call.
    let result = unsafe { next(&real, &mut left) };
    if result == -1 && errno() == libc::EINTR {
        // SAFETY: the pointer is the program's, valid or null.
        unsafe { tell_rest(&left, rest) };
    }
    result
}

/// The C library's function of this name, in the program's time.
///
/// # Safety
/// The caller must keep to the C library's rules for this function.
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
        // SAFETY: the pointer is the program's, valid or null.
        let real = unsafe { until(Clock::of(clock), span) };
        // SAFETY: passes the program's arguments on, or a time that outlives the call.
        return unsafe { next(clock, flags, or_own(&real, span), rest) };
    }
    // SAFETY: the pointer is the program's, valid or null.
    let Some(real) = (unsafe { stretched(span) }) else {
        // SAFETY: passes the program's arguments on unchanged.
        return unsafe { next(clock, flags, span, rest) };
    };
    let mut left = NONE;
    // SAFETY: both times outlive the call.
    let result = unsafe { next(clock, flags, &real, &mut left) };
    if result == libc::EINTR {
        // SAFETY: the pointer is the program's, valid or null.
        unsafe { tell_rest(&left, rest) };
    }
    result
}

/// The C library's function of this name, in the program's time.
///
/// # Safety
/// The caller must keep to the C library's rules for this function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn usleep(micros: c_uint) -> c_int {
    let span = time_spec(i64::from(micros) * MICROSECOND_NS);
    // SAFETY: the time outlives the call; the pointer to the remaining time is null.
    unsafe { nanosleep(&span, std::ptr::null_mut()) }
}

/// The C library's function of this name, in the program's time.
///
/// # Safety
/// The caller must keep to the C library's rules for this function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn sleep(seconds: c_uint) -> c_uint {
    let span = time_spec(i64::from(seconds) * SECOND_NS);
    let mut rest = NONE;
    // SAFETY: both times outlive the call.
    match unsafe { nanosleep(&span, &mut rest) } {
        0 => 0,
        _ => rest.tv_sec as c_uint,
    }
}

/// The C library's function of this name, in the program's time.
///
/// # Safety
/// The caller must keep to the C library's rules for this function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn thrd_sleep(span: *const timespec, rest: *mut timespec) -> c_int {
    // SAFETY: passes the program's arguments on unchanged.
    match unsafe { clock_nanosleep(libc::CLOCK_REALTIME, 0, span, rest) } {
        0 => 0,
        libc::EINTR => -1,
        // Any other negative number reports a failure (C11, 7.26.5.7).
        _ => -2,
    }
}
