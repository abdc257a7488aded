//! Rate limits by BPF: the kernel itself sets `SO_MAX_PACING_RATE` on sockets whose addresses and
//! ports are in a map.
//!
//! The mechanism is for programs whose descriptors cannot be duplicated (another pid namespace, a
//! security module, connections that their owner has already closed). It is also for future flows:
//! a limit may be set before the connection exists. The module `socket` describes how the kernel
//! paces.
//!
//! One program is attached to a cgroup (v2). The kernel calls it for every connection in the cgroup
//! that opens, and then at each RTT sample; it sets the connection's rate before the first byte.
//! Connections that opened before the attachment never call it. So a second program is an iterator
//! over all TCP sockets of the network namespace. It runs once after every change, and sets and
//! lifts rates immediately on old and new connections. The iterator needs `CONFIG_DEBUG_INFO_BTF`
//! and kernel 5.16 or later. Without it, no rate could be lifted from a connection without further
//! round trips, so the BPF pacer requires the iterator.
//!
//! The programs are written as instructions (`bpf/program.rs`) and loaded by bpf(2). They have some
//! hundred instructions, and need no tool to build or run. The `aya` crate loads only objects from
//! a compiler with a BPF back end: clang, or a nightly rustc and bpf-linker. Structure offsets come
//! from the running kernel's BTF.
//!
//! Links and maps vanish with their descriptors, also when this process is killed; rates that were
//! set on sockets then stay. Rates have 32 bits in bytes per second, so for the kernel 34.36 Gbit/s
//! or more means no limit. A higher limit that a program has set itself is restored as no limit.
//!
//! Leaves out: other network namespaces, even in the same cgroup. Read [`BpfPacer`].

mod program;

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::path::Path;

use anabranch_linux::bpf::btf::{self, Btf};
use anabranch_linux::bpf::sys::{self, CgroupHook};
use anabranch_linux::cgroup;
use anabranch_linux::namespace::{Kind, Namespace};
use anabranch_units::BitRate;
use rustix::fs::{Mode, OFlags};

use crate::limit::canonical;
use crate::{Connection, FLOWS_MAX, FlowKey, Limit, Mechanism, PaceError, StartError};
use program::{KEY_BYTES, Maps, RATE_BYTES, WANTED_BYTES};

/// Name of both programs, as `bpftool prog` lists them.
const PROGRAM: &str = "anabranch_pace";
/// The kernel's value of 32 bits for no limit.
const UNLIMITED: u32 = u32::MAX;
/// Largest rate that a [`BitRate`] can express, in bytes per second.
const RATE_MAX: u64 = u64::MAX / 8;

/// Implementation of [`crate::exercise_btf`].
pub(crate) fn exercise_btf(bytes: &[u8]) -> bool {
    let Some(types) = Btf::parse(bytes) else { return false };
    let _ = (types.function("f"), types.offsets("s", ["a", "b"]));
    // The kernel verifies loaded programs; building them must not panic.
    let _ = program::iterator(Maps { wanted: 0, before: 0 }, &types);
    true
}

/// Sets rates by BPF on the flows of programs whose sockets are inaccessible.
///
/// Dropping the pacer lifts every limit that it set.
#[derive(Debug)]
pub struct BpfPacer {
    wanted: sys::Map<KEY_BYTES, WANTED_BYTES>,
    before: sys::Map<KEY_BYTES, RATE_BYTES>,
    limited: BTreeMap<FlowKey, LimitedFlow>,
    iterator: OwnedFd,
    /// Network namespace whose flows the pacer limits.
    namespace: Namespace,
    _attached: OwnedFd,
}

/// A flow that has a limit.
#[derive(Copy, Clone, Debug)]
struct LimitedFlow {
    /// Cookie of the only socket to which the limit applies; `None` for any socket of the flow.
    cookie: Option<u64>,
    rate: BitRate,
}

impl BpfPacer {
    /// Creates a pacer for the network namespace of this thread. A flow that does not exist yet
    /// gets its limit as it opens, if its program is in this cgroup or below it. `None` is the root
    /// cgroup, which contains all programs.
    ///
    /// Errors: a feature that this kernel lacks or refuses, with the step.
    pub fn new(cgroup: Option<&Path>) -> Result<Self, StartError> {
        let failed = |step| move |error| StartError { mechanism: Mechanism::Bpf, step, error };
        let cgroup = match cgroup {
            Some(path) => path.to_owned(),
            None => cgroup::root().map_err(failed("find a cgroup2 file system"))?,
        };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let cgroup = rustix::fs::open(&cgroup, flags, Mode::empty())
            .map_err(|error| failed("open the cgroup")(error.into()))?;
        let namespace = Namespace::of_thread(Kind::Network).map_err(failed("open the network namespace"))?;
        let cookie = netns_cookie().map_err(failed("ask for the network namespace's cookie"))?;

        let wanted = sys::Map::new(FLOWS_MAX as u32).map_err(failed("make a BPF map"))?;
        let before = sys::Map::new(FLOWS_MAX as u32).map_err(failed("make a BPF map"))?;
        let maps = Maps { wanted: wanted.raw_fd(), before: before.raw_fd() };
        let types = std::fs::read(btf::VMLINUX).map_err(failed("read the kernel's types"))?;
        let lacks = || failed("find TCP's iterator in the kernel's types")(io::ErrorKind::Unsupported.into());
        let types = Btf::parse(&types).ok_or_else(lacks)?;
        let function = types.function("bpf_iter_tcp").ok_or_else(lacks)?;
        let iterator = program::iterator(maps, &types).ok_or_else(lacks)?;
        let iterator =
            sys::load_iterator(PROGRAM, &iterator, function).map_err(failed("load the iterator"))?;
        let iterator = sys::link_iterator(&iterator).map_err(failed("make the iterator"))?;
        let sock_ops = sys::load_for_cgroup(PROGRAM, &program::sock_ops(maps, cookie), CgroupHook::SockOps)
            .map_err(failed("load the program for connections"))?;
        let attached = sys::attach_to_cgroup(&sock_ops, &cgroup, CgroupHook::SockOps)
            .map_err(failed("attach it to the cgroup"))?;
        Ok(Self { wanted, before, limited: BTreeMap::new(), iterator, namespace, _attached: attached })
    }

    /// Sets these limits in order, and returns the result for each. A flow need not exist yet, and
    /// a connection with a cookie may have ended.
    ///
    /// A rate of 34.36 Gbit/s or more does not limit a flow.
    /// Errors: one for each flow; a failed flow does not affect other flows.
    /// Cost: up to four system calls for each flow, and one pass over the network namespace's
    /// sockets for all flows together.
    pub fn set<C: Into<Connection> + Copy>(&mut self, changes: &[(C, Limit)]) -> Vec<Result<(), PaceError>> {
        let changes = canonical(changes);
        let held: Vec<_> = changes.iter().map(|(c, _)| self.limited.get(&c.flow).copied()).collect();
        let mut results: Vec<_> = changes.iter().map(|(c, limit)| self.write(*c, *limit)).collect();
        let applied = self.apply();
        for (((Connection { flow, .. }, limit), result), held) in changes.iter().zip(&mut results).zip(held) {
            if result.is_err() {
                continue;
            }
            if let Err(error) = &applied {
                *result = Err(refused(*flow, io::Error::new(error.kind(), error.to_string())));
                // A limit that could not be lifted stays recorded.
                if let Some(held) = held {
                    self.limited.entry(*flow).or_insert(held);
                }
            } else if *limit == Limit::None && !self.limited.contains_key(flow) {
                let key = key(*flow);
                *result = self
                    .wanted
                    .remove(&key)
                    .and_then(|()| self.before.remove(&key))
                    .map_err(|error| refused(*flow, error));
            }
        }
        results
    }

    /// The flows with a limit, each with its rate.
    pub fn limits(&self) -> impl Iterator<Item = (FlowKey, BitRate)> {
        self.limited.iter().map(|(flow, limited)| (*flow, limited.rate))
    }

    /// Sets the rate that a flow gets back when its limit is lifted, instead of its present rate.
    ///
    /// Units: bytes per second; a value beyond 32 bits means no limit.
    pub(crate) fn note_before(&self, flow: FlowKey, before: u64) {
        let before = u32::try_from(before).unwrap_or(UNLIMITED);
        // If the map is full, the following limit fails, and the caller gets that error.
        let _ = self.before.insert(&key(flow), &before.to_ne_bytes());
    }

    /// Takes over a connection that already has this limit; `before` is restored when the limit is
    /// lifted.
    ///
    /// Units: as [`BpfPacer::note_before`].
    /// Errors: the map is full.
    pub(crate) fn take_over(
        &mut self,
        connection: Connection,
        rate: BitRate,
        before: u64,
    ) -> Result<(), PaceError> {
        if self.limited.len() >= FLOWS_MAX {
            return Err(PaceError::Full { flows_max: FLOWS_MAX });
        }
        let Connection { flow, cookie } = connection;
        self.note_before(flow, before);
        self.limited.insert(flow, LimitedFlow { cookie, rate });
        Ok(())
    }

    /// Reverts [`BpfPacer::note_before`].
    pub(crate) fn forget_before(&self, flow: FlowKey) {
        let _ = self.before.remove(&key(flow));
    }

    /// Writes the wanted rate of a flow; for no limit, the wanted rate is the flow's earlier rate.
    fn write(&mut self, connection: Connection, limit: Limit) -> Result<(), PaceError> {
        let bytes = limit.bytes_per_second(RATE_MAX)?;
        let Connection { flow, cookie } = connection;
        let (key, known) = (key(flow), self.limited.get(&flow).copied());
        let is_anothers = known.is_some_and(|known| !connection.may_be(known.cookie));
        if bytes.is_some() && self.limited.len() >= FLOWS_MAX && !self.limited.contains_key(&flow) {
            return Err(PaceError::Full { flows_max: FLOWS_MAX });
        }
        let written = match bytes {
            Some(bytes) => {
                let bytes = u32::try_from(bytes).unwrap_or(UNLIMITED);
                // The earlier connection's rate does not apply to this connection.
                let forgotten = if is_anothers { self.before.remove(&key) } else { Ok(()) };
                forgotten.and_then(|()| self.wanted.insert(&key, &wanted(bytes.to_ne_bytes(), cookie)))
            }
            None if known.is_none() || is_anothers => return Ok(()),
            None => match self.before.find(&key) {
                Ok(Some(before)) => {
                    let cookie = known.and_then(|known| known.cookie);
                    self.wanted.insert(&key, &wanted(before, cookie))
                }
                // The programs have never seen a socket with these addresses and ports.
                Ok(None) => self.wanted.remove(&key),
                Err(error) => Err(error),
            },
        };
        written.map_err(|error| refused(flow, error))?;
        match limit {
            Limit::Rate(rate) => drop(self.limited.insert(flow, LimitedFlow { cookie, rate })),
            Limit::None => drop(self.limited.remove(&flow)),
        }
        Ok(())
    }

    /// Runs the iterator in the pacer's network namespace, which may differ from this thread's.
    fn apply(&self) -> io::Result<()> {
        if Namespace::of_thread(Kind::Network)?.inode()? == self.namespace.inode()? {
            return sys::run_iterator(&self.iterator);
        }
        self.namespace.run(|| sys::run_iterator(&self.iterator))?
    }
}

impl Drop for BpfPacer {
    fn drop(&mut self) {
        let lifts: Vec<_> = self.limited.keys().map(|flow| (*flow, Limit::None)).collect();
        if !lifts.is_empty() {
            self.set(&lifts);
        }
    }
}

fn refused(flow: FlowKey, error: io::Error) -> PaceError {
    PaceError::Refused { flow, mechanism: Mechanism::Bpf, error }
}

/// Encodes a map value in the format that the programs read.
fn wanted(rate: [u8; RATE_BYTES], cookie: Option<u64>) -> [u8; WANTED_BYTES] {
    let mut wanted = [0; WANTED_BYTES];
    wanted[..RATE_BYTES].copy_from_slice(&rate);
    wanted[8..].copy_from_slice(&cookie.unwrap_or(0).to_ne_bytes());
    wanted
}

/// Encodes a map key in the format that the programs build.
fn key(flow: FlowKey) -> [u8; KEY_BYTES] {
    let mut key = [0; KEY_BYTES];
    let address = |at: SocketAddr| match at.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    };
    key[..16].copy_from_slice(&address(flow.local));
    key[16..32].copy_from_slice(&address(flow.remote));
    key[32..36].copy_from_slice(&u32::from(flow.local.port()).to_ne_bytes());
    key[36..].copy_from_slice(&u32::from(flow.remote.port()).to_ne_bytes());
    key
}

/// Cookie of the network namespace, by which the kernel identifies it.
fn netns_cookie() -> io::Result<u64> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
    let kind = (AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC);
    anabranch_linux::socket_options::netns_cookie(socket_with(kind.0, kind.1, kind.2, None)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn map_key_has_mapped_addresses_and_numeric_ports() {
        let flow = FlowKey::new("10.0.0.1:258".parse().expect("good"), "[fd00::1]:3".parse().expect("good"));
        let key = key(flow);
        assert_eq!(key[10..16], [0xff, 0xff, 10, 0, 0, 1]);
        assert_eq!((key[16], key[31]), (0xfd, 1));
        assert_eq!(key[32..36], 258u32.to_ne_bytes());
        assert_eq!(key[36..], 3u32.to_ne_bytes());
    }
}
