//! Network namespaces and user namespaces.
//!
//! No namespace has a name, so the kernel removes it, and its devices, with its last process and
//! descriptor, however these end. Source: namespaces(7), network_namespaces(7), user_namespaces(7).
//! Leaves out: mount and process-id namespaces. Read [`Namespace`].

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use rustix::fs::{Mode, OFlags};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

/// A kind of namespace.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Isolates devices, addresses, routes and sockets.
    Network,
    /// Isolates users and their privileges.
    User,
}

impl Kind {
    const fn path(self) -> &'static str {
        match self {
            Self::Network => "/proc/thread-self/ns/net",
            Self::User => "/proc/thread-self/ns/user",
        }
    }
}

/// A namespace, which exists at least as long as this value.
#[derive(Debug)]
pub struct Namespace {
    kind: Kind,
    file: OwnedFd,
}

impl Namespace {
    /// Wraps a descriptor of a namespace of this kind.
    pub fn from_descriptor(kind: Kind, file: OwnedFd) -> Self {
        Self { kind, file }
    }

    /// The calling thread's namespace.
    ///
    /// Errors: the system's.
    pub fn of_thread(kind: Kind) -> io::Result<Self> {
        let file = rustix::fs::open(kind.path(), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Self { kind, file })
    }

    /// Moves the calling thread into a new namespace. A process with several threads cannot enter a
    /// user namespace.
    ///
    /// Errors: the system's.
    pub fn unshare(kind: Kind) -> io::Result<Self> {
        let flags = match kind {
            Kind::Network => UnshareFlags::NEWNET,
            Kind::User => UnshareFlags::NEWUSER,
        };
        // SAFETY: neither flag unshares the descriptor table, which other threads rely on.
        unsafe { unshare_unsafe(flags)? };
        Self::of_thread(kind)
    }

    /// Creates a network namespace. The calling thread stays in its own namespace.
    ///
    /// Errors: the system's.
    pub fn new_network() -> io::Result<Self> {
        std::thread::scope(|scope| scope.spawn(|| Self::unshare(Kind::Network)).join())
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// Moves the calling thread into this namespace. A forked child may call this before `exec`,
    /// because it makes only one system call.
    ///
    /// Errors: the system's.
    pub fn enter(&self) -> io::Result<()> {
        let kind = match self.kind {
            Kind::Network => LinkNameSpaceType::Network,
            Kind::User => LinkNameSpaceType::User,
        };
        Ok(move_into_link_name_space(self.file.as_fd(), Some(kind))?)
    }

    /// Runs `work` on a new thread in the network namespace. Sockets that `work` opens and
    /// processes that it starts stay in the namespace.
    ///
    /// Errors: the system's.
    /// Panics: if `work` panics.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> io::Result<T> {
        let body = || self.enter().map(|()| work());
        std::thread::scope(|scope| scope.spawn(body).join())
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// Path for other programs, such as `ip link set DEVICE netns PATH` or `nsenter --net=PATH`.
    /// Valid until this value is dropped.
    pub fn path(&self) -> PathBuf {
        format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd()).into()
    }

    /// Inode number of the namespace, as in the links of `/proc/PID/ns`.
    ///
    /// Errors: the system's.
    pub fn inode(&self) -> io::Result<u64> {
        Ok(rustix::fs::fstat(&self.file)?.st_ino)
    }
}

impl AsFd for Namespace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}
