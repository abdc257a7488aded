//! Timeouts of sockets, and packets' times of arrival. Source: socket(7), recvmsg(2), the kernel's Documentation/networking/timestamping.rst.

use anabranch_dilate::Clock;
use libc::{c_int, c_void, cmsghdr, msghdr, socklen_t, ssize_t, timespec, timeval};

use super::clocks::{dilate, dilate_micros};
use super::{dilation, missing, nanoseconds_of, time_val, time_val_left};

/// Timeouts with 64-bit times where `long` has 32 bits (include/uapi/asm-generic/socket.h); the same here.
const SO_RCVTIMEO_NEW: c_int = 66;
const SO_SNDTIMEO_NEW: c_int = 67;
/// Times of arrival, as above.
const SO_TIMESTAMP_NEW: c_int = 63;
const SO_TIMESTAMPNS_NEW: c_int = 64;
const SO_TIMESTAMPING_NEW: c_int = 65;

fn is_timeout(level: c_int, name: c_int) -> bool {
    level == libc::SOL_SOCKET
        && matches!(name, libc::SO_RCVTIMEO | libc::SO_SNDTIMEO | SO_RCVTIMEO_NEW | SO_SNDTIMEO_NEW)
}

/// The C library's, in the program's time.
///
/// # Safety
/// As the C library's.
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
        // SAFETY: the program has given `bytes` bytes; they need not be aligned.
        let own = unsafe { value.cast::<timeval>().read_unaligned() };
        // Microseconds past a second are the kernel's to refuse.
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
    // SAFETY: the program's own arguments, as it gave them.
    unsafe { next(fd, level, name, value, bytes) }
}

/// The C library's, in the program's time.
///
/// # Safety
/// As the C library's.
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
    // SAFETY: the program's own arguments, as it gave them.
    let result = unsafe { next(fd, level, name, value, bytes) };
    if result == 0
        && is_timeout(level, name)
        && let Some(dilation) = dilation()
        // SAFETY: the kernel has read and written it.
        && unsafe { *bytes } as usize >= size_of::<timeval>()
    {
        let own = value.cast::<timeval>();
        // SAFETY: the kernel has written `bytes` bytes; they need not be aligned.
        let real = unsafe { own.read_unaligned() };
        if let Some(real) = nanoseconds_of(&real) {
            // SAFETY: as above.
            unsafe { own.write_unaligned(time_val_left(dilation.shrunk(real))) };
        }
    }
    result
}

/// The C library's, with times of arrival in the program's time.
///
/// # Safety
/// As the C library's.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    let Some(next) = next!(recvmsg as fn(c_int, *mut msghdr, c_int) -> ssize_t) else {
        return missing() as ssize_t;
    };
    // SAFETY: the program's own arguments, as it gave them.
    let received = unsafe { next(fd, message, flags) };
    if received >= 0 {
        // SAFETY: the kernel has written to it.
        unsafe { dilate_arrival(message) };
    }
    received
}

/// Turns the times of arrival in a message's control data into the program's.
///
/// # Safety
/// The kernel has filled the message.
pub(super) unsafe fn dilate_arrival(message: *mut msghdr) {
    if dilation().is_none() {
        return;
    }
    // SAFETY: by this function's own condition, here and for each control message below.
    let mut control: *mut cmsghdr = unsafe { libc::CMSG_FIRSTHDR(message) };
    // SAFETY: it is not null, so it lies in the control data.
    while let Some(header) = unsafe { control.as_ref() } {
        // SAFETY: as above.
        let data = unsafe { libc::CMSG_DATA(control) };
        let holds = |bytes: usize| {
            // SAFETY: it computes a length.
            let least = unsafe { libc::CMSG_LEN(bytes as u32) } as usize;
            header.cmsg_level == libc::SOL_SOCKET && header.cmsg_len >= least
        };
        match header.cmsg_type {
            libc::SCM_TIMESTAMP | SO_TIMESTAMP_NEW if holds(size_of::<timeval>()) => {
                // SAFETY: the message holds a `timeval`, and control data are aligned for one.
                unsafe { dilate_micros(Clock::Realtime, data.cast()) };
            }
            // Of three times the first is by the real clock, and 0 where there is none.
            libc::SCM_TIMESTAMPNS | SO_TIMESTAMPNS_NEW | libc::SCM_TIMESTAMPING | SO_TIMESTAMPING_NEW
                if holds(size_of::<timespec>()) =>
            {
                let at = data.cast::<timespec>();
                // SAFETY: as above.
                if unsafe { (*at).tv_sec } != 0 {
                    // SAFETY: as above.
                    unsafe { dilate(Some(Clock::Realtime), at) };
                }
            }
            _ => {}
        }
        // SAFETY: as above.
        control = unsafe { libc::CMSG_NXTHDR(message, control) };
    }
}
