//! One pacer for all flows, which selects a suitable mechanism for each flow.
//!
//! The mechanisms are tried in this order. First the flow's own socket, which takes effect
//! immediately, adds no queue between TCP and the wire, and leaves no state in the kernel. Then
//! BPF, if the socket is inaccessible or does not exist yet. Last HTB, on a named device. A flow
//! stays with its mechanism until that fails: then the next mechanism takes over, and the first
//! releases the flow. A mechanism that cannot release the flow keeps it. After its program has
//! closed a socket, BPF changes and lifts its limit while the kernel sends the remaining data.
//!
//! Read [`Pacer`] and [`PacerOptions`].

use std::collections::BTreeMap;
use std::path::PathBuf;

use anabranch_units::BitRate;

use crate::limit::canonical;
use crate::socket::UNLIMITED;
use crate::{BpfPacer, Connection, FlowKey, HtbPacer, Limit, Mechanism, PaceError, SocketPacer, StartError};

/// Options of a pacer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PacerOptions {
    /// True if the pacer may set limits on duplicates of other programs' socket descriptors.
    pub socket: bool,
    /// True if BPF programs may be loaded.
    pub bpf: bool,
    /// The cgroup whose programs' connections get BPF limits when they open; `None` is the root
    /// cgroup, which contains all programs.
    pub cgroup: Option<PathBuf>,
    /// The device whose default qdisc may be replaced by HTB; `None` uses no HTB.
    pub device: Option<String>,
}

impl Default for PacerOptions {
    /// Permits sockets and BPF in the root cgroup, and no HTB.
    fn default() -> Self {
        Self { socket: true, bpf: true, cgroup: None, device: None }
    }
}

/// Limits this host's flows to rates, each flow by the first mechanism that works.
///
/// Dropping the pacer lifts every limit that it set.
#[derive(Debug)]
pub struct Pacer {
    socket: Option<SocketPacer>,
    bpf: Option<BpfPacer>,
    htb: Option<HtbPacer>,
    missing: Vec<StartError>,
    used: BTreeMap<FlowKey, FlowLimit>,
}

/// Limit of a flow, with its mechanism.
#[derive(Copy, Clone, Debug)]
struct FlowLimit {
    mechanism: Mechanism,
    rate: BitRate,
    /// Cookie of the only socket to which the limit applies; `None` for any socket of the flow.
    cookie: Option<u64>,
}

impl Pacer {
    /// Creates a pacer for the network namespace of this thread.
    ///
    /// A mechanism that does not work here is no error if another mechanism works:
    /// [`Pacer::missing`] lists it with the reason.
    /// Errors: the reasons of all permitted mechanisms, if none works.
    pub fn new(options: &PacerOptions) -> Result<Self, NoMechanism> {
        let mut missing = Vec::new();
        let mut keep = |error| missing.push(error);
        let socket = options.socket.then(|| {
            let failed = |error| StartError { mechanism: Mechanism::Socket, step: "list flows", error };
            SocketPacer::new().map_err(failed)
        });
        let socket = socket.and_then(|result| result.map_err(&mut keep).ok());
        let bpf = options.bpf.then(|| BpfPacer::new(options.cgroup.as_deref()));
        let bpf = bpf.and_then(|result| result.map_err(&mut keep).ok());
        let htb = options.device.as_deref().map(HtbPacer::new);
        let htb = htb.and_then(|result| result.map_err(&mut keep).ok());
        if socket.is_none() && bpf.is_none() && htb.is_none() {
            return Err(NoMechanism { missing });
        }
        Ok(Self { socket, bpf, htb, missing, used: BTreeMap::new() })
    }

    /// Permitted mechanisms that do not work here, with the reasons.
    pub fn missing(&self) -> &[StartError] {
        &self.missing
    }

    /// Sets these limits in order. Returns the mechanism of each limit, also of a lifted one;
    /// `None` for a flow that had no limit and needs none.
    ///
    /// A flow need not exist yet, unless sockets are the only mechanism. So a flow that has ended
    /// also gets a limit, which counts towards [`crate::FLOWS_MAX`] until it is lifted
    /// ([`Pacer::retain`]). A limit for a [`Connection`] with a cookie applies to no other
    /// connection. It replaces the limit of an earlier connection with the same addresses.
    /// Errors: one for each flow, from the last mechanism tried; a failed flow does not affect
    /// other flows.
    pub fn set<C: Into<Connection> + Copy>(
        &mut self,
        changes: &[(C, Limit)],
    ) -> Vec<Result<Option<Mechanism>, PaceError>> {
        let changes = canonical(changes);
        let mut results: Vec<Option<Result<Option<Mechanism>, PaceError>>> =
            changes.iter().map(|_| None).collect();
        let is_of_another = |(c, limit): &&(Connection, Limit)| *limit != Limit::None && self.is_anothers(*c);
        let gone: Vec<_> = changes.iter().filter(is_of_another).map(|(c, _)| (c.flow, Limit::None)).collect();
        if !gone.is_empty() {
            self.set(&gone);
        }
        let held: Vec<_> = changes.iter().map(|(connection, _)| self.held(*connection)).collect();
        for mechanism in [Mechanism::Socket, Mechanism::Bpf, Mechanism::Htb] {
            if !self.has(mechanism) {
                continue;
            }
            // Only the mechanism that holds the flow lifts its limit; a rate may also be set by
            // later mechanisms.
            let mine = |i: &usize| match (held[*i], changes[*i].1) {
                // A rate out of range for one mechanism is not tried with the next.
                _ if matches!(results[*i], Some(Ok(_) | Err(PaceError::Rate { .. }))) => false,
                // A connection that has ended is not tried again.
                _ if changes[*i].0.cookie.is_some()
                    && matches!(results[*i], Some(Err(PaceError::NoSuchFlow { .. }))) =>
                {
                    false
                }
                // BPF lifts the rate of a socket that can no longer be duplicated.
                (Some(Mechanism::Socket), Limit::None) if mechanism == Mechanism::Bpf => true,
                (Some(held), Limit::None) => held == mechanism,
                (None, Limit::None) => false,
                (held, Limit::Rate(_)) => held.is_none_or(|held| held <= mechanism),
            };
            let mut indices: Vec<usize> = (0..changes.len()).filter(mine).collect();
            indices.retain(|i| self.hand_over(changes[*i].0.flow, mechanism));
            let wanted: Vec<_> = indices.iter().map(|i| changes[*i]).collect();
            for (i, answer) in indices.into_iter().zip(self.set_by(mechanism, &wanted)) {
                let (Connection { flow, cookie }, limit) = changes[i];
                match (&answer, limit) {
                    (Ok(()), Limit::Rate(rate)) => {
                        self.used.insert(flow, FlowLimit { mechanism, rate, cookie });
                    }
                    (Ok(()), Limit::None) => drop(self.used.remove(&flow)),
                    (Err(_), _) => {}
                }
                results[i] = Some(answer.map(|()| Some(mechanism)));
            }
        }
        let unused = || Ok(None);
        results.into_iter().map(|result| result.unwrap_or_else(unused)).collect()
    }

    /// Adopts the limit that a killed pacer has left on this connection's socket. The limit stays
    /// in force, and lifting it restores `before`, the rate from before the limit; `None` means no
    /// limit. Without this call, the pacer would take the leftover limit for the earlier rate.
    ///
    /// Errors: as [`Pacer::set`].
    pub fn adopt(
        &mut self,
        connection: impl Into<Connection>,
        rate: BitRate,
        before: Option<BitRate>,
    ) -> Result<Option<Mechanism>, PaceError> {
        let connection: Connection = connection.into();
        let flow = connection.flow.canonical();
        let before = before.map_or(UNLIMITED, |rate| rate.as_bps() / 8);
        if let Some(socket) = &mut self.socket {
            socket.note_before(Some((flow, before)));
        }
        if let Some(bpf) = &self.bpf {
            bpf.note_before(flow, before);
        }
        let result = self.set(&[(connection, Limit::Rate(rate))]).pop().unwrap_or(Ok(None));
        if let Some(socket) = &mut self.socket {
            socket.note_before(None);
        }
        if let (Some(bpf), false) = (&self.bpf, matches!(result, Ok(Some(Mechanism::Bpf)))) {
            bpf.forget_before(flow);
        }
        result
    }

    /// Mechanism of this flow's limit; `None` if the flow has no limit of this pacer.
    pub fn mechanism(&self, flow: FlowKey) -> Option<Mechanism> {
        self.used.get(&flow.canonical()).map(|used| used.mechanism)
    }

    /// Mechanism of this connection's limit.
    fn held(&self, connection: Connection) -> Option<Mechanism> {
        self.mechanism(connection.flow).filter(|_| !self.is_anothers(connection))
    }

    /// Returns true if the limit in force belongs to another connection with these addresses.
    fn is_anothers(&self, connection: Connection) -> bool {
        self.used.get(&connection.flow).is_some_and(|used| !connection.may_be(used.cookie))
    }

    /// The flows with a limit: each with its rate and its mechanism.
    pub fn limits(&self) -> impl Iterator<Item = (FlowKey, BitRate, Mechanism)> {
        self.used.iter().map(|(flow, used)| (*flow, used.rate, used.mechanism))
    }

    /// Lifts the limits of flows for which `keep` returns false, such as flows that a listing no
    /// longer contains.
    pub fn retain(&mut self, mut keep: impl FnMut(FlowKey) -> bool) {
        let lifts: Vec<_> =
            self.used.keys().filter(|flow| !keep(**flow)).map(|flow| (*flow, Limit::None)).collect();
        self.set(&lifts);
    }

    fn has(&self, mechanism: Mechanism) -> bool {
        match mechanism {
            Mechanism::Socket => self.socket.is_some(),
            Mechanism::Bpf => self.bpf.is_some(),
            Mechanism::Htb => self.htb.is_some(),
        }
    }

    fn set_by(
        &mut self,
        mechanism: Mechanism,
        changes: &[(Connection, Limit)],
    ) -> Vec<Result<(), PaceError>> {
        match mechanism {
            _ if changes.is_empty() => None,
            Mechanism::Socket => self.socket.as_mut().map(|pacer| pacer.set(changes)),
            Mechanism::Bpf => self.bpf.as_mut().map(|pacer| pacer.set(changes)),
            Mechanism::Htb => self.htb.as_mut().map(|pacer| pacer.set(changes)),
        }
        .unwrap_or_default()
    }

    /// Makes the mechanism that holds a flow release it, before the mechanism `to` takes over.
    /// Returns true on success.
    fn hand_over(&mut self, flow: FlowKey, to: Mechanism) -> bool {
        let Some(used) = self.used.get(&flow).copied().filter(|used| used.mechanism != to) else {
            return true;
        };
        let FlowLimit { mechanism: from, rate, cookie } = used;
        match (&mut self.socket, &mut self.bpf) {
            // Both mechanisms set the same socket option, so the limit stays. BPF gets the earlier
            // rate that the socket mechanism had found.
            (Some(socket), Some(bpf)) if (from, to) == (Mechanism::Socket, Mechanism::Bpf) => {
                let before = socket.before(flow).unwrap_or(UNLIMITED);
                if bpf.take_over(Connection { flow, cookie }, rate, before).is_err() {
                    return false;
                }
                socket.forget(flow);
                self.used.insert(flow, FlowLimit { mechanism: to, ..used });
            }
            _ => {
                if self.set_by(from, &[(flow.into(), Limit::None)]).iter().any(Result::is_err) {
                    return false;
                }
                self.used.remove(&flow);
            }
        }
        true
    }
}

impl Drop for Pacer {
    fn drop(&mut self) {
        // Each mechanism lifts its own limits when dropped. Only this call lifts limits that must
        // be lifted by another mechanism.
        self.retain(|_| false);
    }
}

/// No permitted mechanism works here.
#[derive(Debug)]
pub struct NoMechanism {
    /// Reason of each mechanism that was tried.
    pub missing: Vec<StartError>,
}

impl std::fmt::Display for NoMechanism {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.missing[..] {
            [] => {
                write!(f, "no way to hold flows to rates is allowed: allow sockets, BPF or a device for HTB")
            }
            [first, rest @ ..] => {
                write!(f, "{first}")?;
                rest.iter().try_for_each(|error| write!(f, "; {error}"))
            }
        }
    }
}

impl std::error::Error for NoMechanism {}
