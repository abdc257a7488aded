//! Search for the process that holds a flow's socket.
//!
//! sock_diag(7) returns the inode of a flow's socket; the links in `/proc/PID/fd` (proc_pid_fd(5))
//! show the process that has this socket open. pidfd_getfd(2) duplicates the descriptor, which
//! needs the right to trace that process (ptrace(2): `PTRACE_MODE_ATTACH_REALCREDS`).
//!
//! A duplicate is never kept: while it is open, the owner's close(2) would not end the connection.
//! Only the socket's location is kept ([`SocketLocation`]). A descriptor found there is accepted
//! only if it has the same inode and the same cookie (`SO_COOKIE`), which is unique since boot. The
//! module `helper` duplicates.
//!
//! Leaves out: sockets that no process has open any more (the kernel still sends their data). Read
//! [`Sockets`].

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::RawFd;

use rustix::process::Pid;

use crate::helper::{SocketLocation, socket_inode};
use crate::{Connection, FlowReader, PaceError};

/// Finds the sockets of flows.
#[derive(Debug)]
pub(crate) struct Sockets {
    reader: FlowReader,
    /// Recent owners of sockets: a process with one flow often has the next one, too.
    owners: Vec<Pid>,
}

impl Sockets {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { reader: FlowReader::new()?, owners: Vec::new() })
    }

    /// Finds the location of each connection's socket.
    ///
    /// Cost: a lookup in the kernel's table for each flow, and one pass over the descriptors of the
    /// recent owners for all flows together. If sockets are still missing, one pass over the
    /// descriptors of all processes.
    pub(crate) fn find(&mut self, wanted: &[Connection]) -> Vec<Result<SocketLocation, PaceError>> {
        let mut look = |connection: &Connection| {
            let found = self.reader.find(connection.flow)?;
            Ok(found.filter(|state| connection.may_be(Some(state.cookie()))))
        };
        let states: Vec<io::Result<_>> = wanted.iter().map(&mut look).collect();
        let mut missing: BTreeSet<u32> =
            states.iter().flatten().flatten().map(|state| state.inode).filter(|inode| *inode > 0).collect();
        let mut found = BTreeMap::new();
        if !missing.is_empty() {
            self.owners.retain(|pid| look_through(*pid, &mut missing, &mut found) == InspectionResult::Found);
        }
        let mut is_any_hidden = false;
        if !missing.is_empty() {
            for pid in processes().filter(|pid| !self.owners.contains(pid)).collect::<Vec<_>>() {
                if missing.is_empty() {
                    break;
                }
                is_any_hidden |= look_through(pid, &mut missing, &mut found) == InspectionResult::Hidden;
            }
        }
        let mut users: Vec<(Pid, u32)> = Vec::new();
        for (pid, _) in found.values() {
            if !self.owners.contains(pid) {
                self.owners.push(*pid);
            }
            if !users.iter().any(|(known, _)| known == pid) {
                users.push((*pid, user(*pid)));
            }
        }
        let socket = |(connection, state): (&Connection, io::Result<Option<crate::FlowState>>)| {
            let flow = connection.flow;
            let state = match state {
                Ok(Some(state)) => state,
                Ok(None) => return Err(PaceError::NoSuchFlow { flow }),
                Err(error) => {
                    let mechanism = crate::Mechanism::Socket;
                    return Err(PaceError::Refused { flow, mechanism, error });
                }
            };
            let nobody = PaceError::NoOwner { flow, is_any_hidden };
            let (pid, fd) = *found.get(&state.inode).ok_or(nobody)?;
            let user = users.iter().find(|(owner, _)| *owner == pid).map_or(0, |(_, user)| *user);
            Ok(SocketLocation { pid, fd, inode: state.inode, cookie: state.cookie(), user })
        };
        wanted.iter().zip(states).map(socket).collect()
    }
}

/// All processes that `/proc` shows.
fn processes() -> impl Iterator<Item = Pid> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?))
}

/// Result of inspecting a process's descriptors.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum InspectionResult {
    Found,
    Nothing,
    /// The process may not be inspected.
    Hidden,
}

/// Moves the sockets that this process holds from `missing` to `found`.
fn look_through(
    pid: Pid,
    missing: &mut BTreeSet<u32>,
    found: &mut BTreeMap<u32, (Pid, RawFd)>,
) -> InspectionResult {
    let before = missing.len();
    let entries = match std::fs::read_dir(format!("/proc/{}/fd", pid.as_raw_pid())) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return InspectionResult::Hidden,
        // The process has ended.
        Err(_) => return InspectionResult::Nothing,
    };
    for entry in entries.flatten() {
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
    if missing.len() < before { InspectionResult::Found } else { InspectionResult::Nothing }
}

/// The process's real user; root if the process has ended.
fn user(pid: Pid) -> u32 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", pid.as_raw_pid())).unwrap_or_default();
    real_user(&status).unwrap_or(0)
}

/// Reads the real user from the text of `/proc/PID/status` (proc_pid_status(5)).
fn real_user(status: &str) -> Option<u32> {
    status.lines().find_map(|line| line.strip_prefix("Uid:"))?.split_whitespace().next()?.parse().ok()
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
    #[test]
    fn first_user_in_process_status_is_the_real_user() {
        assert_eq!(real_user("Name:\tx\nUid:\t1000\t0\t0\t0\nGid:\t7\t7\t7\t7\n"), Some(1000));
        assert_eq!(real_user("Name:\tUid:\n"), None);
    }
}
