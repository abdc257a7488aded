//! System calls by number, as Rust's standard library and tokio make them for futexes. Source:
//! syscall(2), futex(2).

use anabranch_dilate::Clock;
use libc::{c_int, c_long, clockid_t, timespec};

use super::{clocks, descriptors, missing, or_own, sleeps, stretched, stretched_ms, timers, until};

// Operations of futex(2). Other operations do not wait, or have a number in place of the time.
const COMMAND_MASK: c_long = 127;
const CLOCK_REALTIME: c_long = 256;
const WAIT: c_long = 0;
const LOCK_PI: c_long = 6;
const WAIT_BITSET: c_long = 9;
const WAIT_REQUEUE_PI: c_long = 11;
const LOCK_PI2: c_long = 13;

/// The machine's time for a futex operation; `None` if the program's own time is used.
///
/// # Safety
/// `time` must be the pointer that the program passed to the operation.
unsafe fn futex_time(operation: c_long, time: *const timespec) -> Option<timespec> {
    let by_flag = if operation & CLOCK_REALTIME != 0 { Clock::Realtime } else { Clock::Monotonic };
    let clock = match operation & COMMAND_MASK {
        // SAFETY: the operation's argument is null or points to a time.
        WAIT => return unsafe { stretched(time) },
        LOCK_PI => Clock::Realtime,
        WAIT_BITSET | WAIT_REQUEUE_PI | LOCK_PI2 => by_flag,
        _ => return None,
    };
    // SAFETY: the operation's argument is null or points to a time.
    unsafe { until(Some(clock), time) }
}

/// The C library's `syscall`, in the program's time. C passes variadic arguments in the same way as
/// the arguments of this function.
///
/// # Safety
/// The caller must keep to the C library's rules for this function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn syscall(
    number: c_long,
    a: c_long,
    b: c_long,
    c: c_long,
    d: c_long,
    e: c_long,
    f: c_long,
) -> c_long {
    let next = next!(syscall as fn(c_long, c_long, c_long, c_long, c_long, c_long, c_long) -> c_long);
    let Some(next) = next else { return missing().into() };
    if super::dilation().is_none() {
        // SAFETY: passes the program's arguments on unchanged.
        return unsafe { next(number, a, b, c, d, e, f) };
    }
    let time = |argument: c_long| argument as *const timespec;
    let with = |real: &Option<timespec>, own: c_long| or_own(real, time(own)) as c_long;
    // SAFETY: each branch passes the program's arguments on, or a time that outlives the call.
    unsafe {
        match number {
            libc::SYS_futex => {
                let real = futex_time(b, time(d));
                next(number, a, b, c, with(&real, d), e, f)
            }
            libc::SYS_futex_waitv => {
                let real = until(Clock::of(e as clockid_t), time(d));
                next(number, a, b, c, with(&real, d), e, f)
            }
            libc::SYS_clock_gettime => clocks::clock_gettime(a as clockid_t, b as *mut timespec).into(),
            libc::SYS_gettimeofday => clocks::gettimeofday(a as *mut _, b as *mut _).into(),
            libc::SYS_nanosleep => sleeps::nanosleep(time(a), b as *mut timespec).into(),
            libc::SYS_clock_nanosleep => {
                match sleeps::clock_nanosleep(a as clockid_t, b as c_int, time(c), d as *mut timespec) {
                    0 => 0,
                    error => {
                        super::set_errno(error);
                        -1
                    }
                }
            }
            libc::SYS_ppoll => {
                let mut real = stretched(time(c));
                let own = real.as_mut().map_or(c, |real| std::ptr::from_mut(real) as c_long);
                next(number, a, b, own, d, e, f)
            }
            libc::SYS_pselect6 => {
                let mut real = stretched(time(e));
                let own = real.as_mut().map_or(e, |real| std::ptr::from_mut(real) as c_long);
                next(number, a, b, c, d, own, f)
            }
            libc::SYS_epoll_pwait => next(number, a, b, c, stretched_ms(d as c_int).into(), e, f),
            libc::SYS_epoll_pwait2 | libc::SYS_semtimedop => {
                let real = stretched(time(d));
                next(number, a, b, c, with(&real, d), e, f)
            }
            libc::SYS_rt_sigtimedwait => {
                let real = stretched(time(c));
                next(number, a, b, with(&real, c), d, e, f)
            }
            libc::SYS_recvmmsg => {
                descriptors::recvmmsg(a as c_int, b as *mut _, c as _, d as c_int, e as *mut _).into()
            }
            libc::SYS_timerfd_create => timers::timerfd_create(a as clockid_t, b as c_int).into(),
            libc::SYS_timerfd_settime => {
                timers::timerfd_settime(a as c_int, b as c_int, c as *const _, d as *mut _).into()
            }
            libc::SYS_timerfd_gettime => timers::timerfd_gettime(a as c_int, b as *mut _).into(),
            number => old(number, [a, b, c, d, e, f]).unwrap_or_else(|| next(number, a, b, c, d, e, f)),
        }
    }
}

/// Makes system calls that newer architectures lack; `None` for all other calls.
///
/// # Safety
/// See the C library's `syscall`.
#[cfg(target_arch = "x86_64")]
unsafe fn old(number: c_long, arguments: [c_long; 6]) -> Option<c_long> {
    let [a, b, c, d, e, _] = arguments;
    // SAFETY: passes the program's arguments on unchanged.
    unsafe {
        match number {
            libc::SYS_time => Some(clocks::time(a as *mut _)),
            libc::SYS_poll => Some(descriptors::poll(a as *mut _, b as _, c as c_int).into()),
            libc::SYS_epoll_wait => {
                Some(descriptors::epoll_wait(a as c_int, b as *mut _, c as c_int, d as c_int).into())
            }
            libc::SYS_select => {
                let [read, write, except] = [b, c, d].map(|set| set as *mut libc::fd_set);
                Some(descriptors::select(a as c_int, read, write, except, e as *mut _).into())
            }
            _ => None,
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
unsafe fn old(_number: c_long, _arguments: [c_long; 6]) -> Option<c_long> {
    None
}
