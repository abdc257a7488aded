//! Waits for descriptors. Source: select(2), poll(2), epoll_wait(2), recvmmsg(2), mq_send(3),
//! sigtimedwait(2), semop(2).

use anabranch_dilate::Clock;
use libc::{
    c_char, c_int, c_uint, c_void, epoll_event, fd_set, mmsghdr, mqd_t, nfds_t, pollfd, sembuf, siginfo_t,
    sigset_t, size_t, ssize_t, timespec, timeval,
};

use super::{
    dilation, missing, nanoseconds, nanoseconds_of, or_own, stretched, stretched_ms, time_spec, time_val,
    time_val_left, until,
};

/// Defines functions that wait for a duration in milliseconds.
macro_rules! milliseconds {
    ($($name:ident($($before:ident: $before_kind:ty),*; $ms:ident; $($after:ident: $after_kind:ty),*);)*) => {$(
        /// The C library's function of this name, in the program's time.
        ///
        /// # Safety
        /// The caller must keep to the C library's rules for this function.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C" fn $name($($before: $before_kind,)* $ms: c_int, $($after: $after_kind),*) -> c_int {
            let Some(next) = next!($name as fn($($before_kind,)* c_int, $($after_kind),*) -> c_int) else {
                return missing();
            };
            // SAFETY: passes the program's arguments on, except for a number.
            unsafe { next($($before,)* stretched_ms($ms), $($after),*) }
        }
    )*};
}

milliseconds! {
    poll(fds: *mut pollfd, count: nfds_t; ms;);
    __poll_chk(fds: *mut pollfd, count: nfds_t; ms; bytes: size_t);
    epoll_wait(epoll: c_int, events: *mut epoll_event, count: c_int; ms;);
    epoll_pwait(epoll: c_int, events: *mut epoll_event, count: c_int; ms; mask: *const sigset_t);
}

/// Defines functions that wait for a duration without changing it.
macro_rules! durations {
    ($($name:ident($($before:ident: $before_kind:ty),*; $span:ident; $($after:ident: $after_kind:ty),*);)*) => {$(
        /// The C library's function of this name, in the program's time.
        ///
        /// # Safety
        /// The caller must keep to the C library's rules for this function.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C" fn $name(
            $($before: $before_kind,)* $span: *const timespec, $($after: $after_kind),*
        ) -> c_int {
            let Some(next) = next!($name as fn($($before_kind,)* *const timespec, $($after_kind),*) -> c_int)
            else {
                return missing();
            };
            // SAFETY: the pointer is the program's, valid or null.
            let real = unsafe { stretched($span) };
            // SAFETY: passes the program's arguments on, or a time that outlives the call.
            unsafe { next($($before,)* or_own(&real, $span), $($after),*) }
        }
    )*};
}

durations! {
    ppoll(fds: *mut pollfd, count: nfds_t; span; mask: *const sigset_t);
    __ppoll_chk(fds: *mut pollfd, count: nfds_t; span; mask: *const sigset_t, bytes: size_t);
    pselect(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set; span; mask: *const sigset_t);
    epoll_pwait2(epoll: c_int, events: *mut epoll_event, count: c_int; span; mask: *const sigset_t);
    sigtimedwait(signals: *const sigset_t, found: *mut siginfo_t; span;);
    semtimedop(semaphores: c_int, operations: *mut sembuf, count: size_t; span;);
}

/// The C library's function of this name, in the program's time.
///
/// # Safety
/// The caller must keep to the C library's rules for this function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn select(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    span: *mut timeval,
) -> c_int {
    let next = next!(select as fn(c_int, *mut fd_set, *mut fd_set, *mut fd_set, *mut timeval) -> c_int);
    let Some(next) = next else { return missing() };
    // SAFETY: the pointer is the program's, valid or null.
    let own = unsafe { span.as_mut() };
    let (Some(dilation), Some(own)) = (dilation(), own) else {
        // SAFETY: passes the program's arguments on unchanged.
        return unsafe { next(count, read, write, except, span) };
    };
    let Some(wait) = nanoseconds_of(own) else {
        // SAFETY: passes the program's arguments on unchanged.
        return unsafe { next(count, read, write, except, own) };
    };
    let mut real = time_val(dilation.stretched(wait));
    // SAFETY: passes the program's arguments on, and a time that outlives the call.
    let result = unsafe { next(count, read, write, except, &mut real) };
    if let Some(left) = nanoseconds_of(&real) {
        *own = time_val_left(dilation.shrunk(left));
    }
    result
}

/// The C library's function of this name, in the program's time.
///
/// # Safety
/// The caller must keep to the C library's rules for this function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn recvmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    span: *mut timespec,
) -> c_int {
    let next = next!(recvmmsg as fn(c_int, *mut mmsghdr, c_uint, c_int, *mut timespec) -> c_int);
    let Some(next) = next else { return missing() };
    // SAFETY: the pointer is the program's, valid or null.
    let real = unsafe { stretched(span) };
    let received = match real {
        Some(mut real) => {
            // SAFETY: passes the program's arguments on, and a time that outlives the call.
            let received = unsafe { next(fd, messages, count, flags, &mut real) };
            // SAFETY: the pointer is not null, because its target was read.
            let own = unsafe { span.as_mut() };
            if let (Some(own), Some(dilation), Some(left)) = (own, dilation(), nanoseconds(&real)) {
                *own = time_spec(dilation.shrunk(left));
            }
            received
        }
        // SAFETY: passes the program's arguments on unchanged.
        None => unsafe { next(fd, messages, count, flags, span) },
    };
    for index in 0..usize::try_from(received).unwrap_or(0) {
        // SAFETY: the kernel has written `received` messages.
        unsafe { super::sockets::dilate_arrival(&raw mut (*messages.add(index)).msg_hdr) };
    }
    received
}

/// The C library's function of this name, in the program's time.
///
/// # Safety
/// The caller must keep to the C library's rules for this function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn mq_timedsend(
    queue: mqd_t,
    message: *const c_char,
    bytes: size_t,
    priority: c_uint,
    at: *const timespec,
) -> c_int {
    let next = next!(mq_timedsend as fn(mqd_t, *const c_char, size_t, c_uint, *const timespec) -> c_int);
    let Some(next) = next else { return missing() };
    // SAFETY: the pointer is the program's, valid or null.
    let real = unsafe { until(Some(Clock::Realtime), at) };
    // SAFETY: passes the program's arguments on, or a time that outlives the call.
    unsafe { next(queue, message, bytes, priority, or_own(&real, at)) }
}

/// The C library's function of this name, in the program's time.
///
/// # Safety
/// The caller must keep to the C library's rules for this function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn mq_timedreceive(
    queue: mqd_t,
    message: *mut c_char,
    bytes: size_t,
    priority: *mut c_uint,
    at: *const timespec,
) -> ssize_t {
    let next =
        next!(mq_timedreceive as fn(mqd_t, *mut c_char, size_t, *mut c_uint, *const timespec) -> ssize_t);
    let Some(next) = next else { return missing() as ssize_t };
    // SAFETY: the pointer is the program's, valid or null.
    let real = unsafe { until(Some(Clock::Realtime), at) };
    // SAFETY: passes the program's arguments on, or a time that outlives the call.
    unsafe { next(queue, message, bytes, priority, or_own(&real, at)) }
}

/// A buffer that only the kernel reads.
pub(super) type Opaque = *mut c_void;
