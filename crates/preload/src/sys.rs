//! The C library's functions that a program calls first here, and the agent's socket.
//!
//! All of this room's `unsafe` is here. Each function looks at its arguments, calls the library's
//! own, counts the bytes that the library's has sent, and leaves `errno` as that has. Leaves out:
//! what is announced when (`table`). Read [`look`] and [`say`].

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

/// An agent that is not there is looked for again after so long.
const RETRY_MS: u64 = 1_000;

static TABLE: Table = Table::new();
static SETTINGS: OnceLock<Settings> = OnceLock::new();
/// When an agent that was not there may be looked for, in milliseconds of the monotonic clock.
static RETRY_AT_MS: AtomicU64 = AtomicU64::new(0);

struct Settings {
    agent: SocketAddrUnix,
    coflow: String,
}

impl Settings {
    /// `None` if nothing must be announced.
    fn from_env() -> Option<Self> {
        let agent = SocketAddrUnix::new(std::path::Path::new(&variable(SOCKET_VARIABLE)?)).ok()?;
        let coflow = variable(COFLOW_VARIABLE)?.into_string().ok()?;
        let is_name = coflow.len() <= NAME_BYTES_MAX && coflow.bytes().all(|byte| byte.is_ascii_graphic());
        is_name.then_some(Self { agent, coflow })
    }
}

unsafe extern "C" {
    /// getenv(3) that finds nothing in a program that has more rights than who has started it
    /// (secure_getenv(3)).
    fn secure_getenv(name: *const libc::c_char) -> *const libc::c_char;
}

/// Reads an environment variable, unless the caller has fewer rights than the program: if
/// `/etc/ld.so.preload` names this library, a set-user-id program would otherwise connect to a
/// socket of its caller's choice.
fn variable(name: &str) -> Option<OsString> {
    let name = CString::new(name).ok()?;
    // SAFETY: the name ends with a zero; nobody changes the environment before the program has
    // begun.
    let value = unsafe { secure_getenv(name.as_ptr()) };
    if value.is_null() {
        return None;
    }
    // SAFETY: what is not null is a string of the environment, which is there while this copies it.
    let value = unsafe { CStr::from_ptr(value) };
    (!value.is_empty()).then(|| OsStr::from_bytes(value.to_bytes()).to_owned())
}

/// Runs when the library is loaded, before the program starts. Data that other libraries send even
/// earlier is not seen.
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

/// Does `work` and restores `errno`.
fn keeping_errno<T>(work: impl FnOnce() -> T) -> T {
    // SAFETY: the C library returns the address of this thread's `errno`, which is valid as long as
    // the thread.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above; nobody else refers to it meanwhile.
    let before = unsafe { *errno };
    let result = work();
    // SAFETY: as above.
    unsafe { *errno = before };
    result
}

/// Announces that the descriptor is about to send so much more, if that is worth it.
#[inline]
fn look(fd: c_int, more_bytes: u64) {
    let Some(settings) = SETTINGS.get() else { return };
    let is_tcp = || {
        keeping_errno(|| {
            // SAFETY: it is not -1, as the table has it; it is only asked, and if the program
            // closes it meanwhile, the kernel says that it is none.
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

/// Sends one line to the agent. Waits for nothing and keeps nothing.
fn say(settings: &Settings, fd: c_int, bytes: u64) -> bool {
    let now = clock_gettime(ClockId::Monotonic);
    let now_ms = now.tv_sec as u64 * 1_000 + now.tv_nsec as u64 / 1_000_000;
    if now_ms < RETRY_AT_MS.load(Relaxed) {
        return false;
    }
    // SAFETY: as in `look`.
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
/// `offset` is null or the pointer that the program passed to `sendfile`.
unsafe fn file_rest(file: c_int, offset: *const off_t, bytes: size_t) -> u64 {
    keeping_errno(|| {
        if file < 0 {
            return 0;
        }
        // SAFETY: it is not -1, and it is only asked.
        let file = unsafe { BorrowedFd::borrow_raw(file) };
        let Ok(stat) = rustix::fs::fstat(file) else { return 0 };
        let at = if offset.is_null() {
            rustix::fs::seek(file, rustix::fs::SeekFrom::Current(0)).unwrap_or(u64::MAX)
        } else {
            // SAFETY: by this function's own condition; it need not be aligned.
            u64::try_from(unsafe { offset.read_unaligned() }).unwrap_or(u64::MAX)
        };
        (bytes as u64).min(u64::try_from(stat.st_size).unwrap_or(0).saturating_sub(at))
    })
}

/// The next library's function of this name: the C library's, or another preloaded one's.
macro_rules! next {
    ($name:ident($($argument:expr),*) as fn($($kind:ty),*) -> $result:ty) => {{
        static NEXT: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
        let mut function = NEXT.load(Relaxed);
        if function.is_null() {
            let name = concat!(stringify!($name), "\0");
            // SAFETY: the name ends with a zero byte. Two threads that ask at once hear the same.
            function = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr().cast()) };
            NEXT.store(function, Relaxed);
        }
        if function.is_null() {
            // SAFETY: `errno` is this thread's.
            unsafe { *libc::__errno_location() = libc::ENOSYS };
            return -1;
        }
        // SAFETY: the function of this name has this signature by POSIX or by Linux's manual.
        let function = unsafe {
            std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($kind),*) -> $result>(function)
        };
        // SAFETY: the program's own arguments, as it gave them.
        unsafe { function($($argument),*) }
    }};
}

/// Functions that send: the check before each call, and the signature.
macro_rules! senders {
    ($($name:ident($fd:ident, $($argument:ident: $kind:ty),*) asks $more:expr;)*) => {$(
        /// The C library's, counted.
        ///
        /// # Safety
        /// As the C library's.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C" fn $name($fd: c_int, $($argument: $kind),*) -> ssize_t {
            look($fd, $more);
            let sent_bytes = next!($name($fd, $($argument),*) as fn(c_int, $($kind),*) -> ssize_t);
            count($fd, sent_bytes);
            sent_bytes
        }
    )*};
}

// The contents of buffer lists are not read before the call: the kernel must refuse an invalid
// list.
senders! {
    write(fd, buffer: *const c_void, length: size_t) asks length as u64;
    send(fd, buffer: *const c_void, length: size_t, flags: c_int) asks length as u64;
    sendto(fd, buffer: *const c_void, length: size_t, flags: c_int, to: *const sockaddr, to_length: socklen_t)
        asks length as u64;
    writev(fd, buffers: *const iovec, number: c_int) asks 0;
    sendmsg(fd, message: *const msghdr, flags: c_int) asks 0;
    // SAFETY: the kernel reads what the offset points to, too.
    sendfile(fd, file: c_int, offset: *mut off_t, length: size_t) asks unsafe { rest_to_send(fd, file, offset, length) };
    // SAFETY: as above; the two kinds of offsets are one where this is built.
    sendfile64(fd, file: c_int, offset: *mut off64_t, length: size_t) asks unsafe { rest_to_send(fd, file, offset, length) };
}

/// # Safety
/// As [`file_rest`].
unsafe fn rest_to_send(fd: c_int, file: c_int, offset: *const off_t, length: size_t) -> u64 {
    if SETTINGS.get().is_none() || !TABLE.may_announce(fd, length as u64) {
        return 0;
    }
    // SAFETY: by this function's own condition.
    unsafe { file_rest(file, offset, length) }
}

/// Functions that make a descriptor another one: which, before the call or by its result.
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
    // With this flag the descriptors stay open.
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
    fn errno_stays_as_it_was() {
        // SAFETY: this thread's.
        unsafe { *libc::__errno_location() = 77 };
        // SAFETY: no memory is given.
        let failed = keeping_errno(|| unsafe { libc::close(-1) });
        assert_eq!((failed, std::io::Error::last_os_error().raw_os_error()), (-1, Some(77)));
    }

    #[test]
    fn results_and_errno_are_the_c_librarys() {
        let (mut reader, writer) = std::io::pipe().expect("descriptors");
        // SAFETY: four bytes, as is said.
        let sent = unsafe { write(writer.as_raw_fd(), b"four".as_ptr().cast(), 4) };
        let mut got = [0; 4];
        reader.read_exact(&mut got).expect("they are there");
        assert_eq!((sent, &got), (4, b"four"));
        // SAFETY: as above.
        let refused = unsafe { send(writer.as_raw_fd(), b"four".as_ptr().cast(), 4, 0) };
        assert_eq!((refused, std::io::Error::last_os_error().raw_os_error()), (-1, Some(libc::ENOTSOCK)));
        // SAFETY: no memory is given.
        let refused = unsafe { close(-1) };
        assert_eq!((refused, std::io::Error::last_os_error().raw_os_error()), (-1, Some(libc::EBADF)));
    }

    #[test]
    fn sendfile_announces_the_rest_of_the_file() {
        let mut file = tempfile();
        file.write_all(&[7; 1_000]).expect("room");
        file.rewind().expect("a file");
        // SAFETY: no offset, or one of this test's.
        let rest = |offset: *const off_t, bytes| unsafe { file_rest(file.as_raw_fd(), offset, bytes) };
        assert_eq!(rest(std::ptr::null(), 600), 600);
        assert_eq!(rest(std::ptr::null(), usize::MAX), 1_000);
        assert_eq!(rest(&400, usize::MAX), 600);
        assert_eq!(rest(&-1, 600), 0);
        assert_eq!(rest(&2_000, 600), 0);
        // SAFETY: no offset.
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
