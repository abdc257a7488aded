//! Timers. Source: timerfd_create(2), setitimer(2), alarm(2), timer_settime(2).

use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

use anabranch_dilate::{Clock, ProgramTime};
use libc::{c_int, c_uint, clockid_t, itimerspec, itimerval, timespec, timeval};

use super::descriptors::Opaque;
use super::{
    UNTIL, dilation, likely_clock, missing, nanoseconds, nanoseconds_of, time_spec, time_val, time_val_left,
};

/// Number of descriptors whose clocks are stored. The clock of a descriptor from this number on is
/// guessed from the time.
const FDS_MAX: usize = 4_096;
/// Clock of each timer's descriptor, plus 1; 0 if unknown.
static CLOCKS: [AtomicU8; FDS_MAX] = [const { AtomicU8::new(0) }; FDS_MAX];

/// The C library's function of this name. Stores the clock for `timerfd_settime`.
///
/// # Safety
/// The caller must keep to the C library's rules for this function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn timerfd_create(clock: clockid_t, flags: c_int) -> c_int {
    let Some(next) = next!(timerfd_create as fn(clockid_t, c_int) -> c_int) else { return missing() };
    // SAFETY: passes the program's arguments on unchanged.
    let fd = unsafe { next(clock, flags) };
    if let Some(known) = usize::try_from(fd).ok().and_then(|fd| CLOCKS.get(fd)) {
        known.store(u8::try_from(clock + 1).unwrap_or(0), Relaxed);
    }
    fd
}

fn clock_of(fd: c_int, at: &timespec) -> Clock {
    let known = usize::try_from(fd).ok().and_then(|fd| CLOCKS.get(fd)).map_or(0, |known| known.load(Relaxed));
    let clock = known.checked_sub(1).and_then(|clock| Clock::of(clock.into()));
    clock.unwrap_or_else(|| likely_clock(at))
}

/// Converts a timer to the machine's time. 0 disarms a timer and stays 0.
fn real_timer(dilation: ProgramTime, timer: &itimerspec, until: Option<Clock>) -> Option<itimerspec> {
    let (value, interval) = (nanoseconds(&timer.it_value)?, nanoseconds(&timer.it_interval)?);
    let value = match until {
        _ if value == 0 => 0,
        Some(clock) => dilation.real(clock, value).max(1),
        None => dilation.stretched(value),
    };
    Some(itimerspec { it_value: time_spec(value), it_interval: time_spec(dilation.stretched(interval)) })
}

/// Converts a timer that the kernel has returned to the program's time.
///
/// # Safety
/// The pointer must be null or point to a timer of the program.
unsafe fn shrink(dilation: ProgramTime, timer: *mut itimerspec) {
    // SAFETY: the caller upholds this function's condition.
    let Some(timer) = (unsafe { timer.as_mut() }) else { return };
    for part in [&mut timer.it_value, &mut timer.it_interval] {
        if let Some(real) = nanoseconds(part) {
            *part = time_spec(dilation.shrunk(real));
        }
    }
}

/// The C library's function of this name, in the program's time.
///
/// # Safety
/// The caller must keep to the C library's rules for this function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn timerfd_settime(
    fd: c_int,
    flags: c_int,
    timer: *const itimerspec,
    before: *mut itimerspec,
) -> c_int {
    let next = next!(timerfd_settime as fn(c_int, c_int, *const itimerspec, *mut itimerspec) -> c_int);
    let Some(next) = next else { return missing() };
    // SAFETY: the pointer is the program's, valid or null.
    let own = unsafe { timer.as_ref() };
    let real = own.zip(dilation()).and_then(|(own, dilation)| {
        let until = (flags & UNTIL != 0).then(|| clock_of(fd, &own.it_value));
        real_timer(dilation, own, until)
    });
    // SAFETY: passes the program's arguments on, or a timer that outlives the call.
    let result = unsafe { next(fd, flags, real.as_ref().map_or(timer, std::ptr::from_ref), before) };
    if result == 0
        && let Some(dilation) = dilation()
    {
        // SAFETY: the pointer is null, or the kernel has written to its target.
        unsafe { shrink(dilation, before) };
    }
    result
}

/// The C library's function of this name, in the program's time.
///
/// # Safety
/// The caller must keep to the C library's rules for this function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn timerfd_gettime(fd: c_int, timer: *mut itimerspec) -> c_int {
    let Some(next) = next!(timerfd_gettime as fn(c_int, *mut itimerspec) -> c_int) else {
        return missing();
    };
    // SAFETY: passes the program's arguments on unchanged.
    let result = unsafe { next(fd, timer) };
    if result == 0
        && let Some(dilation) = dilation()
    {
        // SAFETY: the kernel has written to the pointer's target.
        unsafe { shrink(dilation, timer) };
    }
    result
}

/// The C library's function of this name, in the program's time. The clock of an absolute time is
/// guessed from its value.
///
/// # Safety
/// The caller must keep to the C library's rules for this function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn timer_settime(
    id: Opaque,
    flags: c_int,
    timer: *const itimerspec,
    before: *mut itimerspec,
) -> c_int {
    let next = next!(timer_settime as fn(Opaque, c_int, *const itimerspec, *mut itimerspec) -> c_int);
    let Some(next) = next else { return missing() };
    // SAFETY: the pointer is the program's, valid or null.
    let own = unsafe { timer.as_ref() };
    let real = own.zip(dilation()).and_then(|(own, dilation)| {
        real_timer(dilation, own, (flags & UNTIL != 0).then(|| likely_clock(&own.it_value)))
    });
    // SAFETY: passes the program's arguments on, or a timer that outlives the call.
    let result = unsafe { next(id, flags, real.as_ref().map_or(timer, std::ptr::from_ref), before) };
    if result == 0
        && let Some(dilation) = dilation()
    {
        // SAFETY: the pointer is null, or the kernel has written to its target.
        unsafe { shrink(dilation, before) };
    }
    result
}

/// The C library's function of this name, in the program's time.
///
/// # Safety
/// The caller must keep to the C library's rules for this function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn timer_gettime(id: Opaque, timer: *mut itimerspec) -> c_int {
    let Some(next) = next!(timer_gettime as fn(Opaque, *mut itimerspec) -> c_int) else {
        return missing();
    };
    // SAFETY: passes the program's arguments on unchanged.
    let result = unsafe { next(id, timer) };
    if result == 0
        && let Some(dilation) = dilation()
    {
        // SAFETY: the kernel has written to the pointer's target.
        unsafe { shrink(dilation, timer) };
    }
    result
}

/// Converts an interval timer that the kernel has returned to the program's time.
///
/// # Safety
/// The pointer must be null or point to a timer of the program.
unsafe fn shrink_interval(dilation: ProgramTime, timer: *mut itimerval) {
    // SAFETY: the caller upholds this function's condition.
    let Some(timer) = (unsafe { timer.as_mut() }) else { return };
    for part in [&mut timer.it_value, &mut timer.it_interval] {
        if let Some(real) = nanoseconds_of(part) {
            *part = time_val_left(dilation.shrunk(real));
        }
    }
}

fn real_interval(dilation: ProgramTime, timer: &itimerval) -> Option<itimerval> {
    let real = |part: &timeval| Some(time_val(dilation.stretched(nanoseconds_of(part)?)));
    // The kernel refuses a second's worth of microseconds or more.
    let is_good = |part: &timeval| part.tv_usec < 1_000_000;
    (is_good(&timer.it_value) && is_good(&timer.it_interval)).then_some(())?;
    Some(itimerval { it_value: real(&timer.it_value)?, it_interval: real(&timer.it_interval)? })
}

/// The C library's function of this name, in the program's time.
///
/// # Safety
/// The caller must keep to the C library's rules for this function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn setitimer(which: c_int, timer: *const itimerval, before: *mut itimerval) -> c_int {
    let Some(next) = next!(setitimer as fn(c_int, *const itimerval, *mut itimerval) -> c_int) else {
        return missing();
    };
    // SAFETY: the pointer is the program's, valid or null.
    let own = unsafe { timer.as_ref() };
    let real = own.zip(dilation()).and_then(|(own, dilation)| real_interval(dilation, own));
    // SAFETY: passes the program's arguments on, or a timer that outlives the call.
    let result = unsafe { next(which, real.as_ref().map_or(timer, std::ptr::from_ref), before) };
    if result == 0
        && let Some(dilation) = dilation()
    {
        // SAFETY: the pointer is null, or the kernel has written to its target.
        unsafe { shrink_interval(dilation, before) };
    }
    result
}

/// The C library's function of this name, in the program's time.
///
/// # Safety
/// The caller must keep to the C library's rules for this function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn getitimer(which: c_int, timer: *mut itimerval) -> c_int {
    let Some(next) = next!(getitimer as fn(c_int, *mut itimerval) -> c_int) else { return missing() };
    // SAFETY: passes the program's arguments on unchanged.
    let result = unsafe { next(which, timer) };
    if result == 0
        && let Some(dilation) = dilation()
    {
        // SAFETY: the kernel has written to the pointer's target.
        unsafe { shrink_interval(dilation, timer) };
    }
    result
}

/// The C library's function of this name, in the program's time.
///
/// # Safety
/// The caller must keep to the C library's rules for this function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn alarm(seconds: c_uint) -> c_uint {
    let Some(next) = next!(alarm as fn(c_uint) -> c_uint) else { return 0 };
    let Some(dilation) = dilation() else {
        // SAFETY: passes the program's argument on unchanged.
        return unsafe { next(seconds) };
    };
    // SAFETY: the argument is a number.
    let left = unsafe { next(seconds.saturating_mul(dilation.dilation().factor())) };
    left.div_ceil(dilation.dilation().factor())
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_dilate::Bases;
    use anabranch_units::Dilation;

    #[test]
    fn timers_are_stretched_and_disarmed_ones_stay_disarmed() {
        let dilation = ProgramTime::new(
            Dilation::try_from(20).expect("in range"),
            Bases { monotonic_ns: 1_000, ..Bases::default() },
        );
        let timer =
            |value, interval| itimerspec { it_value: time_spec(value), it_interval: time_spec(interval) };
        let real = |own: itimerspec, until| {
            let real = real_timer(dilation, &own, until).expect("good");
            (nanoseconds(&real.it_value), nanoseconds(&real.it_interval))
        };
        assert_eq!(real(timer(5, 7), None), (Some(100), Some(140)));
        assert_eq!(real(timer(0, 7), None), (Some(0), Some(140)));
        assert_eq!(real(timer(1_005, 0), Some(Clock::Monotonic)), (Some(1_100), Some(0)));
        // A time before the base is in the past, but the timer stays armed.
        assert_eq!(real(timer(1, 0), Some(Clock::Monotonic)), (Some(1), Some(0)));
        assert_eq!(real(timer(0, 0), Some(Clock::Monotonic)), (Some(0), Some(0)));
        assert_eq!(real(timer(i64::MAX, 0), None), (Some(i64::MAX), Some(0)));
    }
}
