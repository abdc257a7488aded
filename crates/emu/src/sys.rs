//! System calls that std lacks, each behind a safe function. This module has all `unsafe` code of
//! this crate.
//!
//! All functions that [`crate::build`] calls between `fork` and `_exit` allocate little and take no
//! lock of ours, because a forked process has none of the other threads.

use std::io::{Error, Result};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

fn check(result: libc::c_int) -> Result<libc::c_int> {
    if result < 0 { Err(Error::last_os_error()) } else { Ok(result) }
}

fn check_len(result: isize) -> Result<usize> {
    usize::try_from(result).map_err(|_| Error::last_os_error())
}

/// Side of a [`fork`] on which a process is.
pub(crate) enum Fork {
    Parent(libc::pid_t),
    Child,
}

/// Forks this process; the child has a copy of the calling thread only.
pub(crate) fn fork() -> Result<Fork> {
    // SAFETY: no memory is passed. The child runs `build::run_child` only, which ends in `_exit`;
    // glibc and musl keep their allocators usable in a forked child.
    match check(unsafe { libc::fork() })? {
        0 => Ok(Fork::Child),
        pid => Ok(Fork::Parent(pid)),
    }
}

/// Ends this process at once: no destructors, no exit handlers.
pub(crate) fn exit_now(code: i32) -> ! {
    // SAFETY: ends the process; nothing is passed.
    unsafe { libc::_exit(code) }
}

/// Waits for child `pid` to end; also returns if another call has already waited for the child.
pub(crate) fn wait_for(pid: libc::pid_t) {
    // SAFETY: a null status pointer means that the status is not wanted.
    while unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) } < 0
        && Error::last_os_error().raw_os_error() == Some(libc::EINTR)
    {}
}

pub(crate) fn kill(pid: libc::pid_t, signal: libc::c_int) -> Result<()> {
    // SAFETY: no memory is passed.
    check(unsafe { libc::kill(pid, signal) }).map(drop)
}

/// Makes the kernel send `signal` to this process when the *thread* that started it ends.
pub(crate) fn signal_on_parent_death(signal: libc::c_int) -> Result<()> {
    // SAFETY: no memory is passed.
    check(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, signal) }).map(drop)
}

pub(crate) fn parent_pid() -> libc::pid_t {
    // SAFETY: cannot fail, passes nothing.
    unsafe { libc::getppid() }
}

pub(crate) fn effective_ids() -> (libc::uid_t, libc::gid_t) {
    // SAFETY: cannot fail, passes nothing.
    unsafe { (libc::geteuid(), libc::getegid()) }
}

/// Detaches a forked child from the terminal and from its parent's files. The child gets a separate
/// session that ignores the terminal's signals, with `keep` and the null device as its only
/// descriptors. Returns the new number of `keep`.
pub(crate) fn detach(keep: OwnedFd) -> RawFd {
    const KEPT: RawFd = 3;
    // SAFETY: calls on descriptors and signals of this process, which is a fresh copy that shares
    // no Rust objects with anyone. Closing every descriptor above 3 is sound since none is used
    // after.
    unsafe {
        libc::setsid();
        libc::prctl(libc::PR_SET_NAME, c"emu-watchdog".as_ptr());
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT, libc::SIGPIPE] {
            libc::signal(signal, libc::SIG_IGN);
        }
        let kept = libc::fcntl(keep.as_raw_fd(), libc::F_DUPFD, 10);
        let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR);
        for std in 0..=2 {
            libc::dup2(null, std);
        }
        libc::dup2(kept, KEPT);
        std::mem::forget(keep);
        let all = libc::c_uint::MAX;
        if libc::syscall(libc::SYS_close_range, 4 as libc::c_uint, all, 0 as libc::c_uint) < 0 {
            for fd in 4..4096 {
                libc::close(fd);
            }
        }
    }
    KEPT
}

/// Creates a pair of connected sockets that keep message boundaries.
pub(crate) fn socket_pair() -> Result<(OwnedFd, OwnedFd)> {
    let mut fds = [0; 2];
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
    // SAFETY: `fds` has room for the two descriptors.
    check(unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, fds.as_mut_ptr()) })?;
    // SAFETY: both are fresh and owned by nobody else.
    Ok(unsafe { (OwnedFd::from_raw_fd(fds[0]), OwnedFd::from_raw_fd(fds[1])) })
}

/// Maximum number of descriptors in one message.
pub(crate) const FDS_MAX: usize = 4;
/// Buffer for a control message of [`FDS_MAX`] descriptors, aligned as `cmsghdr` requires.
#[repr(C, align(8))]
struct ControlBuffer([u8; 64]);

/// Sends `bytes` and copies of `fds` in one message.
pub(crate) fn send_with_fds(socket: RawFd, bytes: &[u8], fds: &[RawFd]) -> Result<()> {
    assert!(fds.len() <= FDS_MAX);
    let mut control = ControlBuffer([0; 64]);
    let mut io = libc::iovec { iov_base: bytes.as_ptr() as *mut _, iov_len: bytes.len() };
    // SAFETY: a zeroed msghdr is a valid empty one; every pointer put in it outlives the call; the
    // control buffer is aligned and has room (64 >= CMSG_SPACE of 16), so CMSG_FIRSTHDR is not
    // null.
    unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = &mut io;
        message.msg_iovlen = 1;
        if !fds.is_empty() {
            let len = size_of_val(fds) as libc::c_uint;
            message.msg_control = control.0.as_mut_ptr().cast();
            message.msg_controllen = libc::CMSG_SPACE(len) as _;
            let header = libc::CMSG_FIRSTHDR(&message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(len) as _;
            std::ptr::copy_nonoverlapping(
                fds.as_ptr().cast::<u8>(),
                libc::CMSG_DATA(header),
                size_of_val(fds),
            );
        }
        check_len(libc::sendmsg(socket, &message, libc::MSG_NOSIGNAL)).map(drop)
    }
}

/// Receives one message and its descriptors. An empty message means that the other side has closed.
pub(crate) fn receive_with_fds(socket: RawFd, bytes: &mut [u8]) -> Result<(usize, Vec<OwnedFd>)> {
    let mut control = ControlBuffer([0; 64]);
    let mut io = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: as in `send_with_fds`; the kernel writes at most the lengths given. Descriptors in
    // the message are fresh and ours; they are read unaligned since CMSG_DATA promises no
    // alignment.
    unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = &mut io;
        message.msg_iovlen = 1;
        message.msg_control = control.0.as_mut_ptr().cast();
        message.msg_controllen = control.0.len() as _;
        let received = loop {
            match check_len(libc::recvmsg(socket, &mut message, libc::MSG_CMSG_CLOEXEC)) {
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                other => break other?,
            }
        };
        let mut fds = Vec::new();
        let header = libc::CMSG_FIRSTHDR(&message);
        if !header.is_null() && (*header).cmsg_type == libc::SCM_RIGHTS {
            let count = ((*header).cmsg_len as usize - libc::CMSG_LEN(0) as usize) / size_of::<RawFd>();
            let data = libc::CMSG_DATA(header).cast::<RawFd>();
            fds = (0..count).map(|i| OwnedFd::from_raw_fd(data.add(i).read_unaligned())).collect();
        }
        Ok((received, fds))
    }
}

/// Reads one packet; `None` if no packet is waiting.
#[inline]
pub(crate) fn read_packet(fd: RawFd, buffer: &mut [u8]) -> Result<Option<usize>> {
    // SAFETY: the buffer is passed with its own length.
    let result = check_len(unsafe { libc::read(fd, buffer.as_mut_ptr().cast(), buffer.len()) });
    match result {
        Ok(n) => Ok(Some(n)),
        Err(e) if matches!(e.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::Interrupted) => {
            Ok(None)
        }
        Err(e) => Err(e),
    }
}

/// Writes one packet.
#[inline]
pub(crate) fn write_packet(fd: RawFd, packet: &[u8]) -> Result<()> {
    // SAFETY: the buffer is passed with its own length.
    check_len(unsafe { libc::write(fd, packet.as_ptr().cast(), packet.len()) }).map(drop)
}

/// Reads a file from its start. For descriptors of `/proc`, the kernel then regenerates the
/// content.
pub(crate) fn read_from_start(fd: BorrowedFd<'_>) -> Result<Vec<u8>> {
    let mut content = vec![0; 16 * 1024];
    // SAFETY: the buffer is passed with its own length.
    let n = check_len(unsafe { libc::pread(fd.as_raw_fd(), content.as_mut_ptr().cast(), content.len(), 0) })?;
    content.truncate(n);
    Ok(content)
}

/// Creates a descriptor that [`ring`] makes readable.
pub(crate) fn bell() -> Result<OwnedFd> {
    // SAFETY: no memory is passed; the descriptor is fresh.
    unsafe { Ok(OwnedFd::from_raw_fd(check(libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC))?)) }
}

pub(crate) fn ring(bell: &OwnedFd) {
    // A full counter means that the bell is already ringing.
    let _ = write_packet(bell.as_raw_fd(), &1u64.to_ne_bytes());
}

pub(crate) fn silence(bell: &OwnedFd) {
    let _ = read_packet(bell.as_raw_fd(), &mut [0; 8]);
}

/// Poll request for a readable descriptor.
pub(crate) fn readable(fd: RawFd) -> libc::pollfd {
    libc::pollfd { fd, events: libc::POLLIN, revents: 0 }
}

/// Waits until one of `fds` is ready or the timeout has passed; `None` waits without a limit.
pub(crate) fn wait(fds: &mut [libc::pollfd], timeout: Option<std::time::Duration>) {
    let time = timeout.map(|t| libc::timespec {
        tv_sec: t.as_secs().try_into().unwrap_or(libc::time_t::MAX),
        tv_nsec: t.subsec_nanos().into(),
    });
    let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the slice is passed with its own length; the time, if any, lives on this stack.
    // Errors (a signal) read as nothing ready, and the caller looks again.
    let result = unsafe { libc::ppoll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, time, std::ptr::null()) };
    if result < 0 {
        fds.iter_mut().for_each(|fd| fd.revents = 0);
    }
}

/// Asks the kernel not to delay this thread's timers in order to save power.
pub(crate) fn wake_on_time() {
    // SAFETY: no memory is passed; failing only leaves 50 us of slack.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1 as libc::c_ulong) };
}

/// Gives this thread priority over all ordinary threads (SCHED_RR, lowest real-time priority).
pub(crate) fn schedule_real_time() -> Result<()> {
    // SAFETY: all-zero bytes are a valid sched_param; thread 0 is the calling one.
    unsafe {
        let mut param: libc::sched_param = std::mem::zeroed();
        param.sched_priority = 1;
        // Child processes of this thread do not inherit the policy.
        check(libc::sched_setscheduler(0, libc::SCHED_RR | libc::SCHED_RESET_ON_FORK, &param)).map(drop)
    }
}

/// Sets this thread's niceness.
pub(crate) fn set_nice(nice: i32) -> Result<()> {
    // SAFETY: no memory is passed; on Linux, "process" 0 is the calling thread.
    check(unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, nice) }).map(drop)
}

pub(crate) fn thread_id() -> libc::pid_t {
    // SAFETY: cannot fail, passes nothing.
    unsafe { libc::gettid() }
}

/// Processor time that this thread has used.
pub(crate) fn thread_cpu_time() -> std::time::Duration {
    // SAFETY: all-zero bytes are a valid timespec, which the call fills.
    let time = unsafe {
        let mut time: libc::timespec = std::mem::zeroed();
        libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time);
        time
    };
    std::time::Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
}

/// Resolution of the monotonic clock, in nanoseconds.
pub(crate) fn clock_resolution_ns() -> Option<u64> {
    // SAFETY: all-zero bytes are a valid timespec, which the call fills.
    let (result, time) = unsafe {
        let mut time: libc::timespec = std::mem::zeroed();
        (libc::clock_getres(libc::CLOCK_MONOTONIC, &mut time), time)
    };
    (result == 0).then(|| time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs())
}

/// Adds `hook` to the steps that a command's child performs before exec.
pub(crate) fn before_exec(
    command: &mut std::process::Command,
    hook: impl FnMut() -> Result<()> + Send + Sync + 'static,
) {
    use std::os::unix::process::CommandExt;
    // SAFETY: our hooks make system calls only: no allocation, no lock.
    unsafe { command.pre_exec(hook) };
}
