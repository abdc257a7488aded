//! Which process holds a flow's socket, and a duplicate of it.
//!
//! sock_diag(7) says which inode a flow's socket has, and the links in `/proc/PID/fd` (proc_pid_fd(5)) which process has it
//! open; pidfd_getfd(2) duplicates it, which needs the right to trace that process (ptrace(2): `PTRACE_MODE_ATTACH_REALCREDS`).
//!
//! A duplicate is never kept: while it is open, the owner's close(2) would not end the connection. What is kept is where
//! the socket was; a descriptor found there is taken for the flow's only if it has the same cookie (`SO_COOKIE`), which no two
//! sockets of one boot share.
//!
//! Leaves out: sockets that no process has open any more (the kernel still sends what they hold). Read [`Sockets`].

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{OwnedFd, RawFd};

use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

use crate::{Flow, FlowReader, PaceError};

/// Where a flow's socket was last seen.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Socket {
    pid: Pid,
    fd: RawFd,
    cookie: u64,
}

impl Socket {
    /// What tells it from every other socket of this boot.
    pub(crate) const fn cookie(&self) -> u64 {
        self.cookie
    }

    /// A descriptor of our own for it. To be closed soon: see the module's head.
    ///
    /// Errors: the system's; `NotFound` if the socket is no longer there.
    pub(crate) fn duplicate(&self) -> io::Result<OwnedFd> {
        let process = pidfd_open(self.pid, PidfdFlags::empty())?;
        let duplicate = pidfd_getfd(&process, self.fd, PidfdGetfdFlags::empty())?;
        // No socket, or another one: the owner has closed ours and opened something else.
        match rustix::net::sockopt::socket_cookie(&duplicate) {
            Ok(cookie) if cookie == self.cookie => Ok(duplicate),
            _ => Err(io::ErrorKind::NotFound.into()),
        }
    }
}

/// Finds the sockets of flows.
#[derive(Debug)]
pub(crate) struct Sockets {
    reader: FlowReader,
    /// Who owned a socket lately: who has one flow often has the next.
    owners: Vec<Pid>,
}

impl Sockets {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { reader: FlowReader::new()?, owners: Vec::new() })
    }

    /// Where each flow's socket is.
    ///
    /// Cost: a look into the kernel's table for each flow, and for all flows together one pass over the descriptors of the
    /// processes that owned one lately, and then, if some are still missing, over those of all.
    pub(crate) fn find(&mut self, flows: &[Flow]) -> Vec<Result<Socket, PaceError>> {
        let states: Vec<_> = flows.iter().map(|flow| self.reader.find(*flow)).collect();
        let mut missing: BTreeSet<u32> =
            states.iter().flatten().flatten().map(|state| state.inode).filter(|inode| *inode > 0).collect();
        let mut found = BTreeMap::new();
        if !missing.is_empty() {
            self.owners.retain(|pid| look_through(*pid, &mut missing, &mut found));
        }
        if !missing.is_empty() {
            for pid in processes().filter(|pid| !self.owners.contains(pid)).collect::<Vec<_>>() {
                if missing.is_empty() {
                    break;
                }
                look_through(pid, &mut missing, &mut found);
            }
        }
        for (pid, _) in found.values() {
            if !self.owners.contains(pid) {
                self.owners.push(*pid);
            }
        }
        let socket = |(flow, state): (&Flow, io::Result<Option<crate::FlowState>>)| {
            let state = match state {
                Ok(Some(state)) => state,
                Ok(None) => return Err(PaceError::NoSuchFlow { flow: *flow }),
                Err(error) => {
                    let mechanism = crate::Mechanism::Socket;
                    return Err(PaceError::Refused { flow: *flow, mechanism, error });
                }
            };
            let (pid, fd) = *found.get(&state.inode).ok_or(PaceError::NoOwner { flow: *flow })?;
            Ok(Socket { pid, fd, cookie: state.cookie })
        };
        flows.iter().zip(states).map(socket).collect()
    }
}

/// All processes that `/proc` shows.
fn processes() -> impl Iterator<Item = Pid> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?))
}

/// Moves those of `missing` that this process holds to `found`; whether there were any.
fn look_through(pid: Pid, missing: &mut BTreeSet<u32>, found: &mut BTreeMap<u32, (Pid, RawFd)>) -> bool {
    let before = missing.len();
    let entries = std::fs::read_dir(format!("/proc/{}/fd", pid.as_raw_pid())).into_iter().flatten().flatten();
    for entry in entries {
        if missing.is_empty() {
            break;
        }
        let name = entry.file_name();
        let Some(fd) = name.to_str().and_then(|name| name.parse().ok()) else { continue };
        let Ok(target) = std::fs::read_link(entry.path()) else { continue };
        let Some(inode) = target.to_str().and_then(socket_inode) else { continue };
        if missing.remove(&inode) {
            found.insert(inode, (pid, fd));
        }
    }
    missing.len() < before
}

/// Of `socket:[1234]`.
fn socket_inode(link: &str) -> Option<u32> {
    link.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_links_of_sockets_have_a_socket_inode() {
        assert_eq!(socket_inode("socket:[4026]"), Some(4026));
        for other in ["pipe:[4026]", "socket:[", "socket:[x]", "x/socket:[1]", "socket:[99999999999]"] {
            assert_eq!(socket_inode(other), None, "{other}");
        }
    }
}
