//! Rates by `SO_MAX_PACING_RATE` on the flow's own socket.
//!
//! The kernel's TCP then spaces packets by itself (socket(7); Documentation/networking/ip-sysctl.rst, `tcp_pacing_*`): it works
//! under any queueing discipline, from the next packet on. BBR, which paces anyway, takes the limit as its ceiling. The
//! rate counts data, not headers (Linux, net/ipv4/tcp_output.c, `tcp_update_skb_after_send`): measured over a cable of namespaces
//! with segments of 524 bytes, a socket at 10 Mbit/s moved 9.90 Mbit/s of data in 10.89 Mbit/s of IP packets. Where the qdisc `fq` does
//! the pacing, it counts packets with all their headers (net/sched/sch_fq.c; not measured).
//!
//! The socket is one's own ([`set_pacing_limit`]) or that of any process that we may trace, by a duplicate
//! ([`SocketPacer`], the module `owner`). A socket that was paced once stays paced when its limit is lifted, at the rate that its
//! congestion control computes: the kernel has no way back. That is some way above what it sends.
//!
//! Leaves out: what a pacer that is killed leaves behind. Its rates stay on the sockets until somebody sets others or
//! they close; nothing tells them from those that a program has set itself. Read [`SocketPacer`].

use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsFd;

use anabranch_units::BitRate;

use crate::owner::{Socket, Sockets};
use crate::{FLOWS_MAX, Flow, Limit, Mechanism, PaceError, sys};

/// All ones: the kernel's way to write no limit.
pub(crate) const UNLIMITED: u64 = u64::MAX;

/// The most that this socket may be paced at; `None` without limit.
///
/// Errors: the system's; something that is no socket.
pub fn pacing_limit(socket: impl AsFd) -> io::Result<Option<BitRate>> {
    let bytes = sys::max_pacing_rate(socket)?;
    Ok((bytes != UNLIMITED).then(|| BitRate::bps(bytes.saturating_mul(8))))
}

/// Has the kernel pace a socket of one's own at this rate at most, or without limit.
///
/// Errors: a rate out of range, or the system's, as text in an `io::Error`.
pub fn set_pacing_limit(socket: impl AsFd, limit: Limit) -> io::Result<()> {
    let bytes = limit
        .bytes_per_second(RATE_MAX)
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
    sys::set_max_pacing_rate(socket, bytes.unwrap_or(UNLIMITED))
}

/// All that a [`BitRate`] can say.
const RATE_MAX: u64 = u64::MAX / 8;

/// A flow that has a limit.
#[derive(Debug)]
struct Limited {
    socket: Socket,
    /// What it had before.
    before: u64,
    rate: BitRate,
}

/// Sets rates on the sockets of this host's flows, whichever process they belong to.
///
/// Dropping it lifts every limit that it set.
#[derive(Debug)]
pub struct SocketPacer {
    sockets: Sockets,
    limited: BTreeMap<Flow, Limited>,
    /// What a flow gets back when its first limit of ours is lifted, where that is not what it has now.
    noted: Option<(Flow, u64)>,
}

impl SocketPacer {
    /// A pacer for the network namespace of this thread.
    ///
    /// Errors: the system's, if it has no sock_diag(7).
    pub fn new() -> io::Result<Self> {
        Ok(Self { sockets: Sockets::new()?, limited: BTreeMap::new(), noted: None })
    }

    /// Sets these limits, in this order, and says for each whether it stands.
    ///
    /// Lifting the limit of a flow that is gone, or that has none, is no error.
    /// Errors: for each flow its own; one that fails leaves the others be.
    /// Cost: four system calls for each flow that is known; finding new ones costs one pass over `/proc` for all of them
    /// together.
    pub fn set(&mut self, changes: &[(Flow, Limit)]) -> Vec<Result<(), PaceError>> {
        let mut results: Vec<_> = changes.iter().map(|(flow, limit)| self.set_known(*flow, *limit)).collect();
        let unknown: Vec<usize> = (0..changes.len()).filter(|i| results[*i].is_none()).collect();
        if !unknown.is_empty() {
            let flows: Vec<_> = unknown.iter().map(|i| changes[*i].0).collect();
            let sockets = self.sockets.find(&flows);
            for (i, socket) in unknown.into_iter().zip(sockets) {
                let (flow, limit) = changes[i];
                results[i] = Some(self.set_found(flow, limit, socket));
            }
        }
        results.into_iter().map(|result| result.expect("each flow was known or looked for")).collect()
    }

    /// The flows that have limits, and which.
    pub fn limits(&self) -> impl Iterator<Item = (Flow, BitRate)> {
        self.limited.iter().map(|(flow, limited)| (*flow, limited.rate))
    }

    /// What this flow gets back when its next limit is lifted; `None` takes that back.
    ///
    /// Units: bytes per second; all ones is no limit.
    pub(crate) fn note_before(&mut self, noted: Option<(Flow, u64)>) {
        self.noted = noted;
    }

    /// What a flow that has a limit had before.
    ///
    /// Units: bytes per second; all ones is no limit.
    pub(crate) fn before(&self, flow: Flow) -> Option<u64> {
        self.limited.get(&flow).map(|limited| limited.before)
    }

    /// Forgets a flow without lifting its limit.
    pub(crate) fn forget(&mut self, flow: Flow) {
        self.limited.remove(&flow);
    }

    /// Sets the limit of a flow whose socket is where it was; `None` if it has to be looked for.
    fn set_known(&mut self, flow: Flow, limit: Limit) -> Option<Result<(), PaceError>> {
        let bytes = match limit.bytes_per_second(RATE_MAX) {
            Ok(bytes) => bytes,
            Err(error) => return Some(Err(error)),
        };
        let Some(limited) = self.limited.get_mut(&flow) else {
            return (limit == Limit::None).then_some(Ok(()));
        };
        let duplicate = limited.socket.duplicate().ok()?;
        if let Err(error) = sys::set_max_pacing_rate(duplicate, bytes.unwrap_or(limited.before)) {
            return Some(Err(refused(flow, error)));
        }
        match limit {
            Limit::Rate(rate) => limited.rate = rate,
            Limit::None => drop(self.limited.remove(&flow)),
        }
        Some(Ok(()))
    }

    fn set_found(
        &mut self,
        flow: Flow,
        limit: Limit,
        socket: Result<Socket, PaceError>,
    ) -> Result<(), PaceError> {
        let bytes = limit.bytes_per_second(RATE_MAX)?;
        let socket = match socket {
            Err(PaceError::NoSuchFlow { .. }) if limit == Limit::None => {
                self.limited.remove(&flow);
                return Ok(());
            }
            other => other?,
        };
        let duplicate = socket.duplicate().map_err(|error| match error.kind() {
            // Closed since it was found; what it holds is still sent.
            io::ErrorKind::NotFound => PaceError::NoOwner { flow },
            _ => refused(flow, error),
        })?;
        // The same connection under another descriptor keeps what it had; a new one of the same name has its own.
        let known = self.limited.get(&flow).filter(|known| known.socket.cookie() == socket.cookie());
        let before = match known {
            Some(known) => known.before,
            None => match self.noted.filter(|(noted, _)| *noted == flow) {
                Some((_, before)) => before,
                None => sys::max_pacing_rate(&duplicate).map_err(|error| refused(flow, error))?,
            },
        };
        if self.limited.len() >= FLOWS_MAX && !self.limited.contains_key(&flow) {
            return Err(PaceError::Full { flows_max: FLOWS_MAX });
        }
        sys::set_max_pacing_rate(&duplicate, bytes.unwrap_or(before))
            .map_err(|error| refused(flow, error))?;
        match limit {
            Limit::Rate(rate) => drop(self.limited.insert(flow, Limited { socket, before, rate })),
            Limit::None => drop(self.limited.remove(&flow)),
        }
        Ok(())
    }
}

impl Drop for SocketPacer {
    fn drop(&mut self) {
        let lifts: Vec<_> = self.limited.keys().map(|flow| (*flow, Limit::None)).collect();
        self.set(&lifts);
    }
}

fn refused(flow: Flow, error: io::Error) -> PaceError {
    PaceError::Refused { flow, mechanism: Mechanism::Socket, error }
}
