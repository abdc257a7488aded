//! A library to preload into unmodified programs: it stretches the time that they read and wait
//! for.
//!
//! ```text
//! ANABRANCH_DILATION=20 LD_PRELOAD=libanabranch_preload_dilate.so ping -c 20 10.0.0.2
//! ```
//!
//! **What is stretched.** Each clock runs from a base at a rate of 1/F: `MONOTONIC`, `REALTIME`,
//! `BOOTTIME`, `TAI`, and their coarse and raw variants. Clocks of processor time also run at 1/F,
//! so the processor appears F times as fast to the program. A wait for a duration lasts F times as
//! long, and a wait until an instant ends when the program's clock shows it. An infinite wait stays
//! infinite. Times are limited to 292 years of the machine, and waits in whole milliseconds
//! (`poll`, `epoll_wait`) to 24 days.
//!
//! | | functions |
//! | --- | --- |
//! | clocks | `clock_gettime`, `gettimeofday`, `time`, `timespec_get`, `clock`, `times`, `getrusage` |
//! | sleeps | `nanosleep`, `clock_nanosleep`, `usleep`, `sleep`, `thrd_sleep` |
//! | descriptors | `select`, `pselect`, `poll`, `ppoll`, `epoll_wait`, `epoll_pwait`, `epoll_pwait2`, `recvmmsg`, `mq_timedsend`, `mq_timedreceive` |
//! | timers | `timerfd_settime`, `timerfd_gettime`, `setitimer`, `getitimer`, `alarm`, `timer_settime`, `timer_gettime` |
//! | threads | `pthread_cond_timedwait`, `pthread_cond_clockwait`, `pthread_mutex_timedlock`, `pthread_mutex_clocklock`, the same of rwlocks, `sem_timedwait`, `sem_clockwait`, `pthread_timedjoin_np`, `pthread_clockjoin_np`, `cnd_timedwait`, `mtx_timedlock` |
//! | others | `sigtimedwait`, `semtimedop`; `SO_RCVTIMEO` and `SO_SNDTIMEO`; times of arrival (`SO_TIMESTAMP`) in `recvmsg` and `recvmmsg` |
//! | `syscall` | `futex`, `futex_waitv`, `clock_gettime`, `gettimeofday`, `time`, `nanosleep`, `clock_nanosleep`, `select`, `pselect6`, `poll`, `ppoll`, `epoll_wait`, `epoll_pwait`, `epoll_pwait2`, `recvmmsg`, `rt_sigtimedwait`, `semtimedop`, `timerfd_create`, `timerfd_settime`, `timerfd_gettime` |
//!
//! **What is not stretched.** Programs that call the kernel without the C library (static programs,
//! Go's); `anabranch_dilate::check_program` refuses them. The C library's internal waits, for
//! example for a name server's answer. `io_uring`, `aio_suspend`, `io_getevents`. The kernel's own
//! clock in: times of files, `TCP_INFO`, `TCP_USER_TIMEOUT`, keep-alive, `SO_LINGER`,
//! `SO_MAX_PACING_RATE` (docs/circuit.md has TCP's own timers). A program whose file has
//! set-user-ID or capabilities, unless root runs it: the loader then preloads no library.
//!
//! **Base.** Processes agree about the time if they have the same base:
//! `anabranch_dilate::ProgramTime::now` takes the base once for all programs of an experiment.
//! Without the base's variable, the library takes the base when it is loaded, and passes it on to
//! the program's children.
//!
//! If a variable is invalid, the program ends with status [`EXIT_BAD_VARIABLE`] and a line on
//! standard error, because results at the wrong speed would be worse. Leaves out: C libraries other
//! than glibc. Read [`anabranch_dilate::ProgramTime`], then the `sys` module.

#![cfg(target_os = "linux")]
#![allow(
    clippy::disallowed_methods,
    reason = "a driver: it stands between a program and its C library, and reads clocks and the environment"
)]

mod sys;

/// Exit status of a program whose variables are invalid.
pub const EXIT_BAD_VARIABLE: i32 = 126;
