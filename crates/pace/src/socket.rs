//! Rate limits by `SO_MAX_PACING_RATE` on the flow's own socket.
//!
//! The kernel's TCP then paces packets by itself (socket(7);
//! Documentation/networking/ip-sysctl.rst, `tcp_pacing_*`). The limit works under any queueing
//! discipline, from the next packet on. BBR, which always paces, takes the limit as its ceiling.
//! The rate counts data, not headers (Linux, net/ipv4/tcp_output.c, `tcp_update_skb_after_send`).
//! Measured over a cable of namespaces with segments of 524 bytes, a socket at 10 Mbit/s moved 9.90
//! Mbit/s of data in 10.89 Mbit/s of IP packets. If the qdisc `fq` paces, it counts packets with
//! all their headers (net/sched/sch_fq.c; not measured).
//!
//! The socket is the caller's own ([`set_pacing_limit`]), or belongs to any traceable process and
//! is reached by a duplicate ([`SocketPacer`]). The module `owner` finds the socket, and `helper`
//! sets the rate. A socket that was paced once stays paced when its limit is lifted, because the
//! kernel cannot end pacing. Its rate is then the one that the congestion control computes,
//! somewhat above the sending rate.
//!
//! Leaves out: rates of a killed pacer. These stay on the sockets until new rates are set or the
//! sockets close, and cannot be told from rates that a program has set itself. Read
//! [`SocketPacer`].

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::AsFd;

use anabranch_linux::socket_options as sys;
use anabranch_units::BitRate;

use crate::helper::{Change, Helper, SocketLocation, Task};
use crate::limit::canonical;
use crate::owner::Sockets;
use crate::{Connection, FLOWS_MAX, FlowKey, Limit, Mechanism, PaceError};

/// The kernel's value for no limit: all ones.
pub(crate) const UNLIMITED: u64 = u64::MAX;

/// Maximum pacing rate of this socket; `None` without a limit.
///
/// Errors: the system's; a descriptor that is not a socket.
pub fn pacing_limit(socket: impl AsFd) -> io::Result<Option<BitRate>> {
    let bytes = sys::max_pacing_rate(socket)?;
    Ok((bytes != UNLIMITED).then(|| BitRate::bps(bytes.saturating_mul(8))))
}

/// Limits the pacing rate of the caller's own socket, or lifts the limit.
///
/// Errors: a rate out of range, or the system's error, as text in an `io::Error`.
pub fn set_pacing_limit(socket: impl AsFd, limit: Limit) -> io::Result<()> {
    let bytes = limit
        .bytes_per_second(RATE_MAX)
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
    sys::set_max_pacing_rate(socket, bytes.unwrap_or(UNLIMITED))
}

/// Largest rate that a [`BitRate`] can express, in bytes per second.
const RATE_MAX: u64 = u64::MAX / 8;

/// A flow that has a limit.
#[derive(Debug)]
struct LimitedFlow {
    place: SocketLocation,
    /// Earlier rate, in bytes per second.
    before: u64,
    rate: BitRate,
}

/// Sets rates on the sockets of this host's flows, whichever process they belong to.
///
/// Dropping the pacer lifts every limit that it set.
#[derive(Debug)]
pub struct SocketPacer {
    sockets: Sockets,
    helper: Helper,
    limited: BTreeMap<FlowKey, LimitedFlow>,
    /// A flow, and the rate that it gets back when its first limit of this pacer is lifted, if that
    /// differs from the present rate.
    noted: Option<(FlowKey, u64)>,
}

impl SocketPacer {
    /// Creates a pacer for the network namespace of this thread.
    ///
    /// Errors: the system's, if it lacks sock_diag(7).
    pub fn new() -> io::Result<Self> {
        Ok(Self::with(Sockets::new()?, Helper::new()))
    }

    fn with(sockets: Sockets, helper: Helper) -> Self {
        Self { sockets, helper, limited: BTreeMap::new(), noted: None }
    }

    /// Sets these limits in order, and returns the result for each.
    ///
    /// Lifting the limit of a flow that has ended, or that has no limit, is no error.
    /// Errors: one for each flow; a failed flow does not affect other flows. A program that delays
    /// operations on its descriptors costs a quarter of a second once. Afterwards the flows of its
    /// user get an error for as long as the delay lasts.
    /// Cost: some ten system calls in another process for each known flow; one pass over `/proc`
    /// for all new flows together.
    pub fn set<C: Into<Connection> + Copy>(&mut self, changes: &[(C, Limit)]) -> Vec<Result<(), PaceError>> {
        let changes = canonical(changes);
        let (mut results, mut rest) = (Vec::with_capacity(changes.len()), &changes[..]);
        while !rest.is_empty() {
            // A flow that appears again is set after all earlier entries.
            let mut seen = BTreeSet::new();
            let again = rest.iter().position(|(connection, _)| !seen.insert(connection.flow));
            let (now, later) = rest.split_at(again.unwrap_or(rest.len()));
            results.extend(self.set_each_once(now));
            rest = later;
        }
        results
    }

    /// Does the same as `set`, for changes in which each flow appears only once.
    fn set_each_once(&mut self, changes: &[(Connection, Limit)]) -> Vec<Result<(), PaceError>> {
        let mut results: Vec<Option<Result<(), PaceError>>> = changes
            .iter()
            .map(|(connection, limit)| match limit.bytes_per_second(RATE_MAX) {
                Err(error) => Some(Err(error)),
                Ok(None) if self.known(*connection).is_none() => Some(Ok(())),
                Ok(_) => None,
            })
            .collect();
        self.set_where_they_were(changes, &mut results);
        let unknown: Vec<usize> = (0..changes.len()).filter(|i| results[*i].is_none()).collect();
        if !unknown.is_empty() {
            let wanted: Vec<_> = unknown.iter().map(|i| changes[*i].0).collect();
            let found: Vec<_> = unknown.into_iter().zip(self.sockets.find(&wanted)).collect();
            self.set_found(changes, found, &mut results);
        }
        results.into_iter().map(|result| result.expect("each flow was known or looked for")).collect()
    }

    /// The stored limit of this connection.
    fn known(&self, connection: Connection) -> Option<&LimitedFlow> {
        self.limited.get(&connection.flow).filter(|known| connection.may_be(Some(known.place.cookie)))
    }

    /// Sets the limits of flows whose sockets are still at their stored locations; other results
    /// stay `None`.
    fn set_where_they_were(
        &mut self,
        changes: &[(Connection, Limit)],
        results: &mut [Option<Result<(), PaceError>>],
    ) {
        let (mut indices, mut tasks): (Vec<usize>, Vec<Task>) = (Vec::new(), Vec::new());
        for (i, (connection, limit)) in changes.iter().enumerate() {
            let Some(limited) = self.known(*connection).filter(|_| results[i].is_none()) else { continue };
            indices.push(i);
            tasks.push((limited.place, Change::Rate(bytes(*limit).unwrap_or(limited.before))));
        }
        for (i, answer) in indices.into_iter().zip(self.helper.carry_out(&tasks)) {
            let (Connection { flow, .. }, limit) = changes[i];
            match answer {
                Ok(_) => {
                    self.note(flow, limit, None);
                    results[i] = Some(Ok(()));
                }
                // A search of all processes would not help.
                Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                    results[i] = Some(Err(refused(flow, error)));
                }
                Err(_) => {}
            }
        }
    }

    /// Sets the limits of flows whose sockets were searched for.
    fn set_found(
        &mut self,
        changes: &[(Connection, Limit)],
        found: Vec<(usize, Result<SocketLocation, PaceError>)>,
        results: &mut [Option<Result<(), PaceError>>],
    ) {
        let mut room = FLOWS_MAX.saturating_sub(self.limited.len());
        let (mut wanted, mut tasks) = (Vec::new(), Vec::new());
        for (i, place) in found {
            let (Connection { flow, .. }, limit) = changes[i];
            let place = match place {
                Ok(place) => place,
                Err(PaceError::NoSuchFlow { .. }) if limit == Limit::None => {
                    self.limited.remove(&flow);
                    results[i] = Some(Ok(()));
                    continue;
                }
                Err(error) => {
                    results[i] = Some(Err(error));
                    continue;
                }
            };
            if limit != Limit::None && !self.limited.contains_key(&flow) {
                if room == 0 {
                    results[i] = Some(Err(PaceError::Full { flows_max: FLOWS_MAX }));
                    continue;
                }
                room -= 1;
            }
            // The same connection under another descriptor keeps its earlier rate; a new connection
            // with the same addresses has its own.
            let known = self.limited.get(&flow).filter(|known| known.place.cookie == place.cookie);
            let noted = self.noted.filter(|(noted, _)| *noted == flow).map(|(_, before)| before);
            let before = known.map(|known| known.before).or(noted);
            wanted.push((i, place, before));
            tasks.push((place, bytes(limit).or(before).map_or(Change::ReadRate, Change::Rate)));
        }
        for ((i, place, before), answer) in wanted.into_iter().zip(self.helper.carry_out(&tasks)) {
            let (Connection { flow, .. }, limit) = changes[i];
            results[i] = Some(match answer {
                Ok(had) => {
                    self.note(flow, limit, Some((place, before.unwrap_or(had))));
                    Ok(())
                }
                Err(error) if is_gone(&error) => Err(PaceError::NoOwner { flow, is_any_hidden: false }),
                Err(error) => Err(refused(flow, error)),
            });
        }
    }

    /// Stores the limit of a flow and, if the socket was just found, its location and earlier rate.
    fn note(&mut self, flow: FlowKey, limit: Limit, news: Option<(SocketLocation, u64)>) {
        match (limit, news) {
            (Limit::None, _) => drop(self.limited.remove(&flow)),
            (Limit::Rate(rate), Some((place, before))) => {
                self.limited.insert(flow, LimitedFlow { place, before, rate });
            }
            (Limit::Rate(rate), None) => {
                if let Some(limited) = self.limited.get_mut(&flow) {
                    limited.rate = rate;
                }
            }
        }
    }

    /// The flows with a limit, each with its rate.
    pub fn limits(&self) -> impl Iterator<Item = (FlowKey, BitRate)> {
        self.limited.iter().map(|(flow, limited)| (*flow, limited.rate))
    }

    /// Sets the rate that this flow gets back when its next limit is lifted; `None` cancels that.
    ///
    /// Units: bytes per second; all ones mean no limit.
    pub(crate) fn note_before(&mut self, noted: Option<(FlowKey, u64)>) {
        self.noted = noted;
    }

    /// Earlier rate of a limited flow.
    ///
    /// Units: bytes per second; all ones mean no limit.
    pub(crate) fn before(&self, flow: FlowKey) -> Option<u64> {
        self.limited.get(&flow).map(|limited| limited.before)
    }

    /// Forgets a flow without lifting its limit.
    pub(crate) fn forget(&mut self, flow: FlowKey) {
        self.limited.remove(&flow);
    }
}

impl Drop for SocketPacer {
    fn drop(&mut self) {
        let lifts: Vec<_> = self.limited.keys().map(|flow| (*flow, Limit::None)).collect();
        self.set(&lifts);
    }
}

fn refused(flow: FlowKey, error: io::Error) -> PaceError {
    PaceError::Refused { flow, mechanism: Mechanism::Socket, error }
}

/// Converts a limit to the kernel's bytes per second. Returns `None` for no limit, and for a rate
/// out of range.
fn bytes(limit: Limit) -> Option<u64> {
    limit.bytes_per_second(RATE_MAX).ok().flatten()
}

/// Returns true if the socket is no longer at its location: it was closed, or its process has
/// ended. The kernel still sends its data.
fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || matches!(error.raw_os_error(), Some(libc::ESRCH | libc::EBADF))
}
