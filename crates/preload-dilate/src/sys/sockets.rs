//! Timeouts of sockets, and arrival times of packets. Source: socket(7), recvmsg(2), the kernel's
//! Documentation/networking/timestamping.rst.

use anabranch_dilate::Clock;
use libc::{c_int, c_void, cmsghdr, msghdr, socklen_t, ssize_t, timespec, timeval};

use super::clocks::{dilate, dilate_micros};
use super::{dilation, missing, nanoseconds_of, time_val, time_val_left};

/// Options for timeouts with 64-bit times, which exist for a `long` of 32 bits
/// (include/uapi/asm-generic/socket.h). With 64 bits they equal the usual options.
const SO_RCVTIMEO_NEW: c_int = 66;
const SO_SNDTIMEO_NEW: c_int = 67;
/// Options for arrival times with 64-bit times.
const SO_TIMESTAMP_NEW: c_int = 63;
const SO_TIMESTAMPNS_NEW: c_int = 64;
const SO_TIMESTAMPING_NEW: c_int = 65;

fn is_timeout(level: c_int, name: c_int) -> bool {
    level == libc::SOL_SOCKET
        && matches!(name, libc::SO_RCVTIMEO | libc::SO_SNDTIMEO | SO_RCVTIMEO_NEW | SO_SNDTIMEO_NEW)
}

/// The C library's function of this name, in the program's time.
///
/// # Safety
/// The caller must keep to the C library's rules for this function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    bytes: socklen_t,
) -> c_int {
    let next = next!(setsockopt as fn(c_int, c_int, c_int, *const c_void, socklen_t) -> c_int);
    let Some(next) = next else { return missing() };
    if is_timeout(level, name)
        && let Some(dilation) = dilation()
        && bytes as usize >= size_of::<timeval>()
        && !value.is_null()
    {
        // SAFETY: the program passes `bytes` bytes; the structure need not be aligned.
        let own = unsafe { value.cast::<timeval>().read_unaligned() };
        // The kernel refuses a second's worth of microseconds or more.
        if own.tv_usec < 1_000_000
            && let Some(wait) = nanoseconds_of(&own)
        {
            let real = time_val(dilation.stretched(wait));
            // SAFETY: the time outlives the call.
            return unsafe {
                next(fd, level, name, (&raw const real).cast(), size_of::<timeval>() as socklen_t)
            };
        }
    }
    // SAFETY: passes the program's arguments on unchanged.
    unsafe { next(fd, level, name, value, bytes) }
}

/// The C library's function of this name, in the program's time.
///
/// # Safety
/// The caller must keep to the C library's rules for this function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    bytes: *mut socklen_t,
) -> c_int {
    let next = next!(getsockopt as fn(c_int, c_int, c_int, *mut c_void, *mut socklen_t) -> c_int);
    let Some(next) = next else { return missing() };
    // SAFETY: passes the program's arguments on unchanged.
    let result = unsafe { next(fd, level, name, value, bytes) };
    if result == 0
        && is_timeout(level, name)
        && let Some(dilation) = dilation()
        // SAFETY: the kernel has read and written the length.
        && unsafe { *bytes } as usize >= size_of::<timeval>()
    {
        let own = value.cast::<timeval>();
        // SAFETY: the kernel has written `bytes` bytes; the structure need not be aligned.
        let real = unsafe { own.read_unaligned() };
        if let Some(real) = nanoseconds_of(&real) {
            // SAFETY: the kernel has written `bytes` bytes; the structure need not be aligned.
            unsafe { own.write_unaligned(time_val_left(dilation.shrunk(real))) };
        }
    }
    result
}

/// The C library's function of this name, with arrival times in the program's time.
///
/// # Safety
/// The caller must keep to the C library's rules for this function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    let Some(next) = next!(recvmsg as fn(c_int, *mut msghdr, c_int) -> ssize_t) else {
        return missing() as ssize_t;
    };
    // SAFETY: passes the program's arguments on unchanged.
    let received = unsafe { next(fd, message, flags) };
    if received >= 0 {
        // SAFETY: the kernel has written to the pointer's target.
        unsafe { dilate_arrival(message) };
    }
    received
}

/// Converts the arrival times in a message's control data to the program's time.
///
/// # Safety
/// The kernel must have filled the message.
pub(super) unsafe fn dilate_arrival(message: *mut msghdr) {
    if dilation().is_none() {
        return;
    }
    // SAFETY: the caller upholds this function's condition, here and for each control message
    // below.
    let mut control: *mut cmsghdr = unsafe { libc::CMSG_FIRSTHDR(message) };
    // SAFETY: the pointer is null, or lies within the control data.
    while let Some(header) = unsafe { control.as_ref() } {
        // SAFETY: the pointer is not null, and lies within the control data.
        let data = unsafe { libc::CMSG_DATA(control) };
        let holds = |bytes: usize| {
            // SAFETY: the macro only computes a length.
            let least = unsafe { libc::CMSG_LEN(bytes as u32) } as usize;
            header.cmsg_level == libc::SOL_SOCKET && header.cmsg_len >= least
        };
        match header.cmsg_type {
            libc::SCM_TIMESTAMP | SO_TIMESTAMP_NEW if holds(size_of::<timeval>()) => {
                // SAFETY: the message holds a `timeval`, and control data is aligned for one.
                unsafe { dilate_micros(Clock::Realtime, data.cast()) };
            }
            // The first of up to three times is by the real-time clock, and 0 if the kernel has
            // none.
            libc::SCM_TIMESTAMPNS | SO_TIMESTAMPNS_NEW | libc::SCM_TIMESTAMPING | SO_TIMESTAMPING_NEW
                if holds(size_of::<timespec>()) =>
            {
                let at = data.cast::<timespec>();
                // SAFETY: the message holds a `timespec`, and control data is aligned for one.
                if unsafe { (*at).tv_sec } != 0 {
                    // SAFETY: the message holds a `timespec`, and control data is aligned for one.
                    unsafe { dilate(Some(Clock::Realtime), at) };
                }
            }
            _ => {}
        }
        // SAFETY: both pointers are to the message and its control data.
        control = unsafe { libc::CMSG_NXTHDR(message, control) };
    }
}
