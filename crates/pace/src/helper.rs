//! A helper process that operates on other programs' descriptors, so that this process never waits
//! for another program.
//!
//! Closing a duplicate with close(2) takes as long as closing its file. A file on a user's file
//! system (FUSE) closes when that file system has answered; a socket with `SO_LINGER` closes when
//! its data has arrived. A thread in this wait cannot even be killed. A program may replace its
//! socket by a file of this kind between a check and the duplication. So a forked process without
//! any other descriptor checks, duplicates, sets and closes, one task after the other. If the
//! process does not answer in time, it is left behind and replaced. The user whose descriptor it
//! touched is then *barred*: that user's processes are skipped until the forked process has ended,
//! and for some time longer. A task takes a descriptor only if `/proc/PID/fd` shows the wanted
//! socket, so all of this is rare.
//!
//! Source: fuse(4); socket(7), `SO_LINGER`; signal-safety(7) for permitted calls after a fork of a
//! process with threads. Leaves out: finding the process of a socket (the module `owner`). Read
//! [`Helper`] and [`Task`].

use std::collections::VecDeque;
use std::ffi::CStr;
use std::io::{self, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd as _, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_cookie};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, WaitOptions, pidfd_getfd, pidfd_open, waitpid};

use anabranch_linux::socket_options as sys;

/// Time limit of a task.
const PATIENCE: Duration = Duration::from_millis(250);
/// Time for which a user stays barred after the late process has ended.
const BARRED_FOR: Duration = Duration::from_secs(10);
/// Maximum number of processes left behind; at this number no socket is touched until one of the
/// processes ends.
const LEFT_BEHIND_MAX: usize = 4;
/// Maximum number of tasks in one request.
const BATCH: usize = 64;

/// Location of another process's socket, with the properties that distinguish it from other
/// sockets.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct SocketLocation {
    pub(crate) pid: Pid,
    pub(crate) fd: RawFd,
    /// Inode, as in `/proc/PID/fd`.
    pub(crate) inode: u32,
    pub(crate) cookie: u64,
    /// The process's real user.
    pub(crate) user: u32,
}

/// Operation on a socket. Each operation returns the earlier value.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// No change; returns the rate.
    ReadRate,
    /// Set `SO_MAX_PACING_RATE`, in bytes per second.
    Rate(u64),
    /// Set `SO_PRIORITY`.
    Priority(u32),
}

/// An operation on one socket.
pub(crate) type Task = (SocketLocation, Change);

/// Function that executes a task in the helper process. It must not allocate memory or take a lock.
type Act = fn(&Task) -> Result<u64, Errno>;

/// Changes other processes' sockets.
#[derive(Debug)]
pub(crate) struct Helper {
    act: Act,
    patience: Duration,
    running: Option<HelperProcess>,
    left_behind: Vec<LateProcess>,
}

#[derive(Debug)]
struct HelperProcess {
    pid: Pid,
    socket: OwnedFd,
}

/// A helper process that did not complete a task in time.
#[derive(Debug)]
struct LateProcess {
    pid: Pid,
    /// User of the process whose descriptor the task touched.
    user: u32,
    ended_at: Option<Instant>,
}

impl Helper {
    /// Creates a helper, which starts its process at the first task.
    pub(crate) fn new() -> Self {
        Self { act, patience: PATIENCE, running: None, left_behind: Vec::new() }
    }

    /// Executes these tasks in order. Returns the earlier value of each socket.
    ///
    /// Errors: one for each task. `NotFound` if the socket is no longer there; `TimedOut` if its
    /// program delays operations on its descriptors, or recently did.
    /// Cost: some ten system calls and two process switches for each task; a quarter of a second
    /// more for a late task.
    pub(crate) fn carry_out(&mut self, tasks: &[Task]) -> Vec<io::Result<u64>> {
        self.see_to_left_behind();
        let mut results: Vec<Option<io::Result<u64>>> = tasks.iter().map(|_| None).collect();
        let mut waiting: VecDeque<usize> = (0..tasks.len()).collect();
        while !waiting.is_empty() {
            waiting.retain(|at| {
                let refused = self.refusal(tasks[*at].0.user);
                let is_taken = refused.is_none();
                results[*at] = refused.map(Err);
                is_taken
            });
            let batch: Vec<usize> = waiting.drain(..waiting.len().min(BATCH)).collect();
            let wanted: Vec<Task> = batch.iter().map(|at| tasks[*at]).collect();
            let mut answers = self.hand_over(&wanted).into_iter();
            for at in batch {
                match answers.next() {
                    Some(answer) => results[at] = Some(answer),
                    // Tasks after a late one are given to the next process.
                    None => waiting.push_back(at),
                }
            }
            waiting.make_contiguous().sort_unstable();
        }
        results.into_iter().map(|result| result.expect("each task was answered or refused")).collect()
    }

    /// Reason for skipping this user's processes at present; `None` if they are not skipped.
    fn refusal(&self, user: u32) -> Option<io::Error> {
        let is_barred = self.left_behind.iter().any(|left| left.user == user);
        let is_full =
            self.left_behind.iter().filter(|left| left.ended_at.is_none()).count() >= LEFT_BEHIND_MAX;
        (is_barred || is_full).then(|| late(user, is_barred))
    }

    /// Hands a batch of tasks to the process. Returns results for the first of them, at least one.
    fn hand_over(&mut self, tasks: &[Task]) -> Vec<io::Result<u64>> {
        let Some(((place, _), _)) = tasks.split_first() else { return Vec::new() };
        if self.running.is_none() {
            match start(self.act, self.patience) {
                Ok(running) => self.running = Some(running),
                Err(error) => return vec![Err(error)],
            }
        }
        let running = self.running.as_ref().expect("it was started");
        let request: Vec<u8> = tasks.iter().flat_map(encode).collect();
        // All earlier requests were answered, so the socket's buffer has room for the whole
        // request.
        let sent = send(&running.socket, &request, SendFlags::NOSIGNAL);
        if sent != Ok(request.len()) {
            self.running = None;
            return vec![Err(sent.err().map_or(io::ErrorKind::WriteZero.into(), io::Error::from))];
        }
        let mut answers = Vec::with_capacity(tasks.len());
        let mut reply = [0; REPLY_BYTES];
        while answers.len() < tasks.len() {
            match recv(&running.socket, &mut reply, RecvFlags::WAITALL) {
                Ok((REPLY_BYTES, _)) => answers.push(decode_reply(&reply)),
                Err(Errno::AGAIN) => {
                    let user = tasks.get(answers.len()).map_or(place.user, |(place, _)| place.user);
                    let HelperProcess { pid, socket } = self.running.take().expect("it runs");
                    drop(socket);
                    self.left_behind.push(LateProcess { pid, user, ended_at: None });
                    answers.push(Err(late(user, true)));
                    break;
                }
                Err(Errno::INTR) => {}
                other => {
                    // The helper process was killed.
                    self.end();
                    let error = other.err().unwrap_or(Errno::PIPE);
                    answers.push(Err(error.into()));
                    break;
                }
            }
        }
        answers
    }

    /// Removes processes that ended long enough ago from the list of late ones.
    fn see_to_left_behind(&mut self) {
        self.left_behind.retain_mut(|left| {
            if left.ended_at.is_none() && !matches!(waitpid(Some(left.pid), WaitOptions::NOHANG), Ok(None)) {
                left.ended_at = Some(Instant::now());
            }
            left.ended_at.is_none_or(|at| at.elapsed() < BARRED_FOR)
        });
    }

    /// Ends the running process.
    fn end(&mut self) {
        if let Some(HelperProcess { pid, socket }) = self.running.take() {
            // The process ends once the socket's other end is closed and its tasks are done.
            drop(socket);
            let _ = waitpid(Some(pid), WaitOptions::empty());
        }
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        self.end();
        self.see_to_left_behind();
    }
}

fn late(user: u32, is_barred: bool) -> io::Error {
    let text = if is_barred {
        format!(
            "a program of user {user} holds up processes that touch its descriptors: that user's sockets are left alone"
        )
    } else {
        format!(
            "programs of {LEFT_BEHIND_MAX} users hold up processes that touch their descriptors: no socket is touched until one ends"
        )
    };
    io::Error::new(io::ErrorKind::TimedOut, text)
}

const REQUEST_BYTES: usize = 40;
const REPLY_BYTES: usize = 12;

/// Encodes a task for the helper process, which runs the same program.
fn encode((place, change): &Task) -> [u8; REQUEST_BYTES] {
    let (kind, value) = match change {
        Change::ReadRate => (0u32, 0),
        Change::Rate(rate) => (1, *rate),
        Change::Priority(priority) => (2, u64::from(*priority)),
    };
    let mut request = [0; REQUEST_BYTES];
    request[..4].copy_from_slice(&place.pid.as_raw_pid().to_ne_bytes());
    request[4..8].copy_from_slice(&place.fd.to_ne_bytes());
    request[8..12].copy_from_slice(&place.inode.to_ne_bytes());
    request[12..16].copy_from_slice(&kind.to_ne_bytes());
    request[16..24].copy_from_slice(&place.cookie.to_ne_bytes());
    request[24..32].copy_from_slice(&value.to_ne_bytes());
    request[32..36].copy_from_slice(&place.user.to_ne_bytes());
    request
}

fn decode(request: &[u8; REQUEST_BYTES]) -> Option<Task> {
    let word = |at: usize| request[at..].first_chunk::<4>().map(|bytes| u32::from_ne_bytes(*bytes));
    let long = |at: usize| request[at..].first_chunk::<8>().map(|bytes| u64::from_ne_bytes(*bytes));
    let place = SocketLocation {
        pid: Pid::from_raw(word(0)? as i32)?,
        fd: word(4)? as i32,
        inode: word(8)?,
        cookie: long(16)?,
        user: word(32)?,
    };
    let change = match word(12)? {
        0 => Change::ReadRate,
        1 => Change::Rate(long(24)?),
        _ => Change::Priority(long(24)? as u32),
    };
    Some((place, change))
}

fn decode_reply(reply: &[u8; REPLY_BYTES]) -> io::Result<u64> {
    let [a, b, c, d, value @ ..] = *reply;
    match i32::from_ne_bytes([a, b, c, d]) {
        0 => Ok(u64::from_ne_bytes(value)),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

/// Starts a process that executes tasks until the socket's other end is closed.
fn start(act: Act, patience: Duration) -> io::Result<HelperProcess> {
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    set_socket_timeout(&ours, Timeout::Recv, Some(patience))?;
    let mut before = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: both signal sets are initialised by the calls before they are read.
    unsafe {
        let mut all = MaybeUninit::<libc::sigset_t>::uninit();
        libc::sigfillset(all.as_mut_ptr());
        // The new process has copies of this process's signal handlers, which must not run there.
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
    }
    // SAFETY: the child only calls `serve`, which allocates no memory, takes no lock and does not
    // return (signal-safety(7)).
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        serve(theirs.as_raw_fd(), act);
    }
    let error = io::Error::last_os_error();
    // SAFETY: the first call has initialised `before`.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut()) };
    let pid = Pid::from_raw(pid).filter(|pid| pid.as_raw_pid() > 0).ok_or(error)?;
    Ok(HelperProcess { pid, socket: ours })
}

/// Ends the process immediately when dropped, also on a panic.
struct Exit;

impl Drop for Exit {
    fn drop(&mut self) {
        // SAFETY: this process has no state to clean up, because everything belongs to its parent.
        unsafe { libc::_exit(0) }
    }
}

/// Main loop of the helper process. Its memory is a copy of its parent's, in which any lock may be
/// held, so this function never allocates memory.
fn serve(socket: RawFd, act: Act) -> ! {
    let exit = Exit;
    // SAFETY: these descriptors belong to this process, and no code in it uses them.
    unsafe {
        // A separate process group, so that Ctrl-C does not end it before its parent.
        libc::setpgid(0, 0);
        libc::prctl(libc::PR_SET_NAME, c"pace-helper".as_ptr());
        for (first, last) in [(0, socket - 1), (socket + 1, RawFd::MAX)] {
            // Linux before 5.9 lacks close_range.
            if first <= last && libc::syscall(libc::SYS_close_range, first, last, 0) < 0 {
                for fd in first..=last.min(65_535) {
                    libc::close(fd);
                }
            }
        }
    }
    // SAFETY: the parent's fork left the descriptor open here, and the loop above skipped it.
    let socket = unsafe { rustix::fd::BorrowedFd::borrow_raw(socket) };
    let mut request = [0; REQUEST_BYTES];
    while recv(socket, &mut request, RecvFlags::WAITALL).is_ok_and(|(length, _)| length == REQUEST_BYTES) {
        let Some(task) = decode(&request) else { break };
        let (errno, value) = match act(&task) {
            Ok(value) => (0, value),
            Err(errno) => (errno.raw_os_error(), 0),
        };
        let mut reply = [0; REPLY_BYTES];
        reply[..4].copy_from_slice(&errno.to_ne_bytes());
        reply[4..].copy_from_slice(&value.to_ne_bytes());
        if send(socket, &reply, SendFlags::NOSIGNAL) != Ok(REPLY_BYTES) {
            break;
        }
    }
    drop(exit);
    unreachable!("the process has ended");
}

/// Executes the operation if the socket is still at its location.
fn act(task: &Task) -> Result<u64, Errno> {
    let (place, change) = task;
    if !is_there(place) {
        return Err(Errno::NOENT);
    }
    duplicate_and_change(place, change)
}

/// Checks that the descriptor is the wanted socket, as far as possible without duplicating it.
fn is_there(place: &SocketLocation) -> bool {
    let mut path = [0; 64];
    let mut rest = &mut path[..];
    if write!(rest, "/proc/{}/fd/{}", place.pid.as_raw_pid(), place.fd).is_err() {
        return false;
    }
    let Ok(path) = CStr::from_bytes_until_nul(&path) else { return false };
    let mut link = [MaybeUninit::<u8>::uninit(); 64];
    let Ok((link, _)) = rustix::fs::readlinkat_raw(rustix::fs::CWD, path, &mut link) else { return false };
    std::str::from_utf8(link).ok().and_then(socket_inode) == Some(place.inode)
}

fn duplicate_and_change(place: &SocketLocation, change: &Change) -> Result<u64, Errno> {
    let process = pidfd_open(place.pid, PidfdFlags::empty())?;
    let duplicate = pidfd_getfd(&process, place.fd, PidfdGetfdFlags::empty())?;
    // Not a socket, or another one: the owner has closed ours, and the number was reused.
    if socket_cookie(&duplicate) != Ok(place.cookie) {
        return Err(Errno::NOENT);
    }
    let errno = |error: io::Error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
    match *change {
        Change::ReadRate => sys::max_pacing_rate(&duplicate).map_err(errno),
        Change::Rate(rate) => {
            let before = sys::max_pacing_rate(&duplicate).map_err(errno)?;
            sys::set_max_pacing_rate(&duplicate, rate).map_err(errno)?;
            Ok(before)
        }
        Change::Priority(priority) => {
            let before = sys::priority(&duplicate).map_err(errno)?;
            sys::set_priority(&duplicate, priority).map_err(errno)?;
            Ok(before.into())
        }
    }
}

/// Parses the inode in `socket:[1234]`.
pub(crate) fn socket_inode(link: &str) -> Option<u32> {
    link.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

#[cfg(test)]
mod tests;
