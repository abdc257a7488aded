//! Replacements of the C library's functions that send or close, and the connection to the agent.
//!
//! This module has all `unsafe` code of this crate. Each function checks its arguments, calls the C
//! library's function, counts the bytes sent, and leaves `errno` as that function has set it.
//! Leaves out: when to announce (`table`). Read [`look`] and [`say`].

#![cfg_attr(
    test,
    allow(dead_code, reason = "tests call the library's functions under these names, but for a few")
)]

use crate::COFLOW_VARIABLE;
use crate::table::{FDS_MAX, Table};
use anabranch_announce::SOCKET_VARIABLE;
use anabranch_announce::line::{FlowKey, LINE_BYTES_MAX, Line, NAME_BYTES_MAX};
use libc::{c_int, c_uint, c_void, iovec, msghdr, off_t, off64_t, size_t, sockaddr, socklen_t, ssize_t};
use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use rustix::time::{ClockId, clock_gettime};
use std::ffi::{CStr, CString, OsStr, OsString};
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering::Relaxed};

/// Time in milliseconds between two attempts to reach an agent that did not answer.
const RETRY_MS: u64 = 1_000;

static TABLE: Table = Table::new();
static SETTINGS: OnceLock<Settings> = OnceLock::new();
/// Time of the next permitted attempt after a failed one, in milliseconds of the monotonic clock.
static RETRY_AT_MS: AtomicU64 = AtomicU64::new(0);

struct Settings {
    agent: SocketAddrUnix,
    coflow: String,
}

impl Settings {
    /// Reads the settings. `None` if the program's flows are not to be announced.
    fn from_env() -> Option<Self> {
        let agent = SocketAddrUnix::new(std::path::Path::new(&variable(SOCKET_VARIABLE)?)).ok()?;
        let coflow = variable(COFLOW_VARIABLE)?.into_string().ok()?;
        let is_name = coflow.len() <= NAME_BYTES_MAX && coflow.bytes().all(|byte| byte.is_ascii_graphic());
        is_name.then_some(Self { agent, coflow })
    }
}

unsafe extern "C" {
    /// A getenv(3) that finds no variable in a program with more rights than its caller
    /// (secure_getenv(3)).
    fn secure_getenv(name: *const libc::c_char) -> *const libc::c_char;
}

/// Reads an environment variable, unless the program has more rights than its caller. Otherwise, if
/// `/etc/ld.so.preload` names this library, a set-user-id program would connect to a socket that
/// its caller chooses.
fn variable(name: &str) -> Option<OsString> {
    let name = CString::new(name).ok()?;
    // SAFETY: the name ends with a zero, and the environment does not change before the program
    // begins.
    let value = unsafe { secure_getenv(name.as_ptr()) };
    if value.is_null() {
        return None;
    }
    // SAFETY: a value that is not null is a string of the environment, valid during the copy.
    let value = unsafe { CStr::from_ptr(value) };
    (!value.is_empty()).then(|| OsStr::from_bytes(value.to_bytes()).to_owned())
}

/// Runs when the library is loaded, before the program starts. Data that other libraries send even
/// earlier is not counted.
extern "C" fn begin() {
    if let Some(settings) = Settings::from_env() {
        let _ = SETTINGS.set(settings);
    }
}

#[cfg(not(test))]
#[used]
// SAFETY: the loader calls the functions in this section once; `begin` ignores its arguments.
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn() = begin;

/// Runs `work` and restores `errno`.
fn keeping_errno<T>(work: impl FnOnce() -> T) -> T {
    // SAFETY: the C library returns the address of this thread's `errno`, which is valid as long as
    // the thread.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: the address is valid, and no other reference to this thread's `errno` exists.
    let before = unsafe { *errno };
    let result = work();
    // SAFETY: the address is still valid.
    unsafe { *errno = before };
    result
}

/// Announces the flow if the descriptor is about to send `more_bytes` and an announcement is due.
#[inline]
fn look(fd: c_int, more_bytes: u64) {
    let Some(settings) = SETTINGS.get() else { return };
    let is_tcp = || {
        keeping_errno(|| {
            // SAFETY: the descriptor is not -1, as the table ensures, and is only queried. If the
            // program closes it meanwhile, the kernel returns an error.
            let socket = unsafe { BorrowedFd::borrow_raw(fd) };
            rustix::net::sockopt::socket_protocol(socket) == Ok(Some(rustix::net::ipproto::TCP))
        })
    };
    TABLE.announce(fd, more_bytes, is_tcp, |bytes| keeping_errno(|| say(settings, fd, bytes)));
}

/// Counts the bytes that a call has sent, and announces the flow if it is large enough.
#[inline]
fn count(fd: c_int, sent_bytes: ssize_t) {
    if sent_bytes > 0 && SETTINGS.get().is_some() {
        TABLE.add(fd, sent_bytes as u64);
        look(fd, 0);
    }
}

/// Sends one line to the agent. Does not wait, and keeps no descriptor open.
fn say(settings: &Settings, fd: c_int, bytes: u64) -> bool {
    let now = clock_gettime(ClockId::Monotonic);
    let now_ms = now.tv_sec as u64 * 1_000 + now.tv_nsec as u64 / 1_000_000;
    if now_ms < RETRY_AT_MS.load(Relaxed) {
        return false;
    }
    // SAFETY: the descriptor is not -1, and is only queried (see `look`).
    let socket = unsafe { BorrowedFd::borrow_raw(fd) };
    let Ok(local) = rustix::net::getsockname(socket) else { return false };
    let Ok(Some(remote)) = rustix::net::getpeername(socket) else { return false };
    let (Ok(local), Ok(remote)) = (SocketAddr::try_from(local), SocketAddr::try_from(remote)) else {
        return false;
    };
    let mut buffer = [0; LINE_BYTES_MAX];
    let line = Line::announce(FlowKey { local, remote }, &settings.coflow, bytes);
    let Some(line) = line.write(&mut buffer) else { return false };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let is_said = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).and_then(
        |connection| {
            rustix::net::connect(&connection, &settings.agent)?;
            rustix::net::send(&connection, line, SendFlags::NOSIGNAL)
        },
    );
    if is_said.is_err() {
        RETRY_AT_MS.store(now_ms + RETRY_MS, Relaxed);
    }
    is_said.is_ok()
}

/// Maximum bytes that `sendfile` can send: the rest of the file.
///
/// # Safety
/// `offset` must be null or the pointer that the program passed to `sendfile`.
unsafe fn file_rest(file: c_int, offset: *const off_t, bytes: size_t) -> u64 {
    keeping_errno(|| {
        if file < 0 {
            return 0;
        }
        // SAFETY: the descriptor is not -1, and is only queried.
        let file = unsafe { BorrowedFd::borrow_raw(file) };
        let Ok(stat) = rustix::fs::fstat(file) else { return 0 };
        let at = if offset.is_null() {
            rustix::fs::seek(file, rustix::fs::SeekFrom::Current(0)).unwrap_or(u64::MAX)
        } else {
            // SAFETY: the caller upholds this function's condition; the offset need not be aligned.
            u64::try_from(unsafe { offset.read_unaligned() }).unwrap_or(u64::MAX)
        };
        (bytes as u64).min(u64::try_from(stat.st_size).unwrap_or(0).saturating_sub(at))
    })
}

/// The next library's function of this name: the C library's or another preloaded library's.
macro_rules! next {
    ($name:ident($($argument:expr),*) as fn($($kind:ty),*) -> $result:ty) => {{
        static NEXT: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
        let mut function = NEXT.load(Relaxed);
        if function.is_null() {
            let name = concat!(stringify!($name), "\0");
            // SAFETY: the name ends with a zero byte. Concurrent calls get the same result.
            function = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr().cast()) };
            NEXT.store(function, Relaxed);
        }
        if function.is_null() {
            // SAFETY: the address of this thread's `errno` is valid.
            unsafe { *libc::__errno_location() = libc::ENOSYS };
            return -1;
        }
        // SAFETY: the function of this name has this signature by POSIX or by Linux's manual.
        let function = unsafe {
            std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($kind),*) -> $result>(function)
        };
        // SAFETY: passes the program's arguments on unchanged.
        unsafe { function($($argument),*) }
    }};
}

/// Defines functions that send, each with its check before the call and its signature.
macro_rules! senders {
    ($($name:ident($fd:ident, $($argument:ident: $kind:ty),*) asks $more:expr;)*) => {$(
        /// Calls the C library's function, and counts the bytes that it sends.
        ///
        /// # Safety
        /// The caller must keep to the C library's rules for this function.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C" fn $name($fd: c_int, $($argument: $kind),*) -> ssize_t {
            look($fd, $more);
            let sent_bytes = next!($name($fd, $($argument),*) as fn(c_int, $($kind),*) -> ssize_t);
            count($fd, sent_bytes);
            sent_bytes
        }
    )*};
}

// The contents of buffer lists are not read before the call, because the kernel must refuse an
// invalid list.
senders! {
    write(fd, buffer: *const c_void, length: size_t) asks length as u64;
    send(fd, buffer: *const c_void, length: size_t, flags: c_int) asks length as u64;
    sendto(fd, buffer: *const c_void, length: size_t, flags: c_int, to: *const sockaddr, to_length: socklen_t)
        asks length as u64;
    writev(fd, buffers: *const iovec, number: c_int) asks 0;
    sendmsg(fd, message: *const msghdr, flags: c_int) asks 0;
    // SAFETY: the kernel reads the target of the offset, too.
    sendfile(fd, file: c_int, offset: *mut off_t, length: size_t) asks unsafe { rest_to_send(fd, file, offset, length) };
    // SAFETY: the kernel reads the target of the offset, too; both types of offsets are equal on
    // this target.
    sendfile64(fd, file: c_int, offset: *mut off64_t, length: size_t) asks unsafe { rest_to_send(fd, file, offset, length) };
}

/// # Safety
/// `offset` must be null or the pointer that the program passed to `sendfile`.
unsafe fn rest_to_send(fd: c_int, file: c_int, offset: *const off_t, length: size_t) -> u64 {
    if SETTINGS.get().is_none() || !TABLE.may_announce(fd, length as u64) {
        return 0;
    }
    // SAFETY: the caller upholds this function's condition.
    unsafe { file_rest(file, offset, length) }
}

/// Defines functions after which a descriptor refers to another file: the descriptor is an
/// argument, or the result.
macro_rules! changers {
    ($($name:ident($($argument:ident: $kind:ty),*) forgets $what:tt;)*) => {$(
        /// Calls the C library's function and removes the descriptor from the table.
        ///
        /// # Safety
        /// The caller must keep to the C library's rules for this function.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C" fn $name($($argument: $kind),*) -> c_int {
            changers!(@before $what);
            let result = next!($name($($argument),*) as fn($($kind),*) -> c_int);
            changers!(@after $what result);
            result
        }
    )*};
    (@before (its_result)) => {};
    (@before $fd:ident) => { TABLE.forget($fd) };
    (@after (its_result) $result:ident) => { TABLE.forget($result) };
    (@after $fd:ident $result:ident) => {};
}

changers! {
    close(fd: c_int) forgets fd;
    connect(fd: c_int, address: *const sockaddr, length: socklen_t) forgets fd;
    dup(fd: c_int) forgets (its_result);
    dup2(from: c_int, to: c_int) forgets to;
    dup3(from: c_int, to: c_int, flags: c_int) forgets to;
    socket(family: c_int, kind: c_int, protocol: c_int) forgets (its_result);
    accept(fd: c_int, address: *mut sockaddr, length: *mut socklen_t) forgets (its_result);
    accept4(fd: c_int, address: *mut sockaddr, length: *mut socklen_t, flags: c_int) forgets (its_result);
}

/// Calls the C library's function and removes the descriptors from the table.
///
/// # Safety
/// The caller must keep to the C library's rules for this function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    // With this flag the call closes no descriptor.
    if flags as c_uint & libc::CLOSE_RANGE_CLOEXEC == 0 {
        (first..=last.min(FDS_MAX as c_uint - 1)).for_each(|fd| TABLE.forget(fd as c_int));
    }
    next!(close_range(first, last, flags) as fn(c_uint, c_uint, c_int) -> c_int)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read as _, Seek as _, Write as _};
    use std::os::fd::AsRawFd as _;

    #[test]
    fn keeping_errno_restores_errno() {
        // SAFETY: the address of this thread's `errno` is valid.
        unsafe { *libc::__errno_location() = 77 };
        // SAFETY: the call gets no pointer.
        let failed = keeping_errno(|| unsafe { libc::close(-1) });
        assert_eq!((failed, std::io::Error::last_os_error().raw_os_error()), (-1, Some(77)));
    }

    #[test]
    fn results_and_errno_match_the_c_library() {
        let (mut reader, writer) = std::io::pipe().expect("descriptors");
        // SAFETY: the buffer has four bytes, as stated.
        let sent = unsafe { write(writer.as_raw_fd(), b"four".as_ptr().cast(), 4) };
        let mut got = [0; 4];
        reader.read_exact(&mut got).expect("they are there");
        assert_eq!((sent, &got), (4, b"four"));
        // SAFETY: the buffer has four bytes, as stated.
        let refused = unsafe { send(writer.as_raw_fd(), b"four".as_ptr().cast(), 4, 0) };
        assert_eq!((refused, std::io::Error::last_os_error().raw_os_error()), (-1, Some(libc::ENOTSOCK)));
        // SAFETY: the call gets no pointer.
        let refused = unsafe { close(-1) };
        assert_eq!((refused, std::io::Error::last_os_error().raw_os_error()), (-1, Some(libc::EBADF)));
    }

    #[test]
    fn sendfile_announces_the_rest_of_the_file() {
        let mut file = tempfile();
        file.write_all(&[7; 1_000]).expect("room");
        file.rewind().expect("a file");
        // SAFETY: the offset is null or this test's.
        let rest = |offset: *const off_t, bytes| unsafe { file_rest(file.as_raw_fd(), offset, bytes) };
        assert_eq!(rest(std::ptr::null(), 600), 600);
        assert_eq!(rest(std::ptr::null(), usize::MAX), 1_000);
        assert_eq!(rest(&400, usize::MAX), 600);
        assert_eq!(rest(&-1, 600), 0);
        assert_eq!(rest(&2_000, 600), 0);
        // SAFETY: the offset is null.
        assert_eq!(unsafe { file_rest(-1, std::ptr::null(), 600) }, 0);
    }

    fn tempfile() -> std::fs::File {
        let path = std::env::temp_dir().join(format!("anabranch-preload-{}", std::process::id()));
        let mut options = std::fs::File::options();
        let file = options.read(true).write(true).create(true).truncate(true).open(&path).expect("writable");
        std::fs::remove_file(&path).expect("it is there");
        file
    }
}
