//! Limits in force on a host: the limited flows, the session of each limit, and limits that could
//! not be lifted.
//!
//! The agent's state machine gives [`LimitOrder`]s; the [`Host`] records and sets limits. Before a
//! flow gets its first limit, its earlier rate is recorded, so that another process can restore
//! that rate if the agent is killed. A limit that cannot be lifted is retried with each
//! [`LimitOrder::Keep`]. [`lift_left`] lifts the limits of a killed agent by its records. Leaves
//! out: how a limit is enforced, and the file of records (drivers). Read [`Enforcement`] first.

use crate::announced_flows::Socket;
use crate::control::FlowKey;
use crate::state::LimitedConnection;
use anabranch_units::BitRate;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// An order about limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LimitOrder {
    /// Set these limits; an entry without a rate lifts the limit. The last entry of a flow counts.
    Set(Vec<(FlowKey, Option<BitRate>, Socket)>),
    /// Only these flows exist. Forget the limits of all other flows, and lift them if the
    /// connections still exist.
    Keep(BTreeSet<FlowKey>),
    /// Count limits set from now on as limits of a new session.
    BeginSession,
    /// Lift the limits that were not set in the current session.
    LiftOld,
    /// Lift all limits.
    LiftAll,
}

/// A limit to set on one connection.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Addresses and ports.
    pub flow: FlowKey,
    /// Socket cookie, unique since boot; addresses and ports may be reused.
    pub cookie: u64,
    /// Rate limit; `None` lifts it.
    pub rate: Option<BitRate>,
}

/// Result of setting one limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The limit is set, or lifted.
    Done,
    /// The connection no longer exists.
    Gone,
    /// The change failed, with the reason in one line.
    Failed(String),
}

/// A problem with limits, for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LimitProblem {
    /// Flows without limits because recording failed: an unrecorded limit would be worse than no
    /// limit.
    Unnoted {
        /// Number of flows.
        flows: usize,
        /// Reason, in one line.
        error: String,
    },
    /// A flow runs without the limit that it should have.
    Unlimited {
        /// Reason, in one line.
        error: String,
        /// True for the first flow in this state.
        is_first: bool,
    },
    /// A limit could not be lifted, and the lift is retried. Reported once for a flow.
    Unlifted {
        /// Reason, in one line.
        error: String,
    },
}

impl fmt::Display for LimitProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unnoted { flows, error } => {
                write!(f, "{flows} flows get no limit: cannot write the state file: {error}")
            }
            Self::Unlimited { error, .. } => write!(f, "a flow runs without its limit: {error}"),
            Self::Unlifted { error } => write!(f, "cannot lift a limit, trying on: {error}"),
        }
    }
}

/// The host on which limits are set.
pub trait Host {
    /// Records that these connections are about to get limits. The record must outlast the process.
    ///
    /// Errors: the reason, in one line.
    fn note(&mut self, limited: &[LimitedConnection]) -> Result<(), String>;
    /// Sets and lifts limits. Returns one outcome for each change, in order.
    fn set(&mut self, changes: &[Change]) -> Vec<Outcome>;
    /// Drops all records except the records of these flows, after limits were lifted.
    fn forget_all_but(&mut self, limited: &BTreeMap<FlowKey, LimitedConnection>);
    /// Reports a problem.
    fn warn(&mut self, trouble: &LimitProblem);
}

/// A host on which a killed agent has left limits.
pub trait LeftoverHost {
    /// Error of looking up connections.
    type Error;
    /// Finds the connection with these addresses, and its current limit.
    ///
    /// Errors: the lookup failed.
    fn find(&mut self, flow: FlowKey) -> Result<Option<Socket>, Self::Error>;
    /// Restores a connection's earlier rate. `limit` is its current limit.
    fn restore(&mut self, limited: &LimitedConnection, limit: BitRate) -> Outcome;
}

/// Result of lifting a killed agent's limits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LiftResult {
    /// Number of lifted limits.
    pub lifted: usize,
    /// Limits that could not be lifted, each with the reason in one line.
    pub stuck: Vec<(LimitedConnection, String)>,
}

/// Lifts a killed agent's limits by its records, in order, on connections that still exist.
///
/// Errors: connections cannot be looked up. Some limits may be lifted already, but all records must
/// be kept.
pub fn lift_left<R: LeftoverHost>(
    left: impl IntoIterator<Item = LimitedConnection>,
    host: &mut R,
) -> Result<LiftResult, R::Error> {
    let mut outcome = LiftResult::default();
    // The first record of a connection states the rate before the agent's first limit.
    let mut seen = BTreeSet::new();
    for limited in left {
        let flow = FlowKey { local: limited.local, remote: limited.remote };
        let found = host.find(flow)?.filter(|found| found.cookie == limited.cookie);
        let Some(limit) = found.and_then(|found| found.limit).filter(|_| seen.insert(limited.cookie)) else {
            continue;
        };
        if limited.before() == Some(limit) {
            continue;
        }
        match host.restore(&limited, limit) {
            Outcome::Done => outcome.lifted += 1,
            // The connection was closed meanwhile.
            Outcome::Gone => {}
            Outcome::Failed(error) => outcome.stuck.push((limited, error)),
        }
    }
    Ok(outcome)
}

/// Limits of a host.
#[derive(Debug)]
pub struct Enforcement<H> {
    host: H,
    limited: BTreeMap<FlowKey, LimitedConnection>,
    /// Flows whose limits were set in the current session.
    fresh: BTreeSet<FlowKey>,
    /// Flows whose limits could not be lifted or changed, and must still be lifted.
    unlifted: BTreeSet<FlowKey>,
    is_warned: bool,
}

impl<H: Host> Enforcement<H> {
    /// Creates the state of a host without limits.
    pub fn new(host: H) -> Self {
        let (limited, fresh, unlifted) = (BTreeMap::new(), BTreeSet::new(), BTreeSet::new());
        Self { host, limited, fresh, unlifted, is_warned: false }
    }

    /// Executes an order.
    pub fn carry_out(&mut self, order: LimitOrder) {
        match order {
            LimitOrder::Set(limits) => {
                self.set(limits.into_iter().map(|(flow, rate, socket)| (flow, (rate, socket))).collect());
            }
            LimitOrder::Keep(flows) => {
                // Failed lifts are retried with every listing of flows.
                let unlifted = self.unlifted.clone();
                self.lift(|flow| !flows.contains(flow) || unlifted.contains(flow));
            }
            LimitOrder::BeginSession => self.fresh.clear(),
            LimitOrder::LiftOld => {
                let fresh = std::mem::take(&mut self.fresh);
                self.lift(|flow| !fresh.contains(flow));
                self.fresh = fresh;
            }
            LimitOrder::LiftAll => self.lift(|_| true),
        }
    }

    /// The host.
    pub const fn host(&self) -> &H {
        &self.host
    }

    /// The host, mutable.
    pub const fn host_mut(&mut self) -> &mut H {
        &mut self.host
    }

    /// Flows that have or may have limits.
    pub const fn limited(&self) -> &BTreeMap<FlowKey, LimitedConnection> {
        &self.limited
    }

    fn set(&mut self, mut limits: BTreeMap<FlowKey, (Option<BitRate>, Socket)>) {
        let mut noted = Vec::new();
        for (flow, (rate, socket)) in &limits {
            let is_known = self.limited.get(flow).is_some_and(|limited| limited.cookie == socket.cookie);
            if rate.is_some() && !is_known {
                let FlowKey { local, remote } = *flow;
                let before_bps = socket.limit.map(BitRate::as_bps);
                noted.push((*flow, LimitedConnection { local, remote, cookie: socket.cookie, before_bps }));
            }
        }
        let news: BTreeSet<FlowKey> = noted.iter().map(|(flow, _)| *flow).collect();
        if !noted.is_empty() {
            let lines: Vec<LimitedConnection> = noted.iter().map(|(_, limited)| *limited).collect();
            match self.host.note(&lines) {
                Ok(()) => self.limited.extend(noted),
                // Limits of flows that are already recorded are still set.
                Err(error) => {
                    for flow in &news {
                        limits.remove(flow);
                    }
                    self.host.warn(&LimitProblem::Unnoted { flows: news.len(), error });
                }
            }
        }
        let change = |(flow, (rate, socket)): (&FlowKey, &(Option<BitRate>, Socket))| Change {
            flow: *flow,
            cookie: socket.cookie,
            rate: *rate,
        };
        let changes: Vec<Change> = limits.iter().map(change).collect();
        let outcomes = self.host.set(&changes);
        for (Change { flow, rate, .. }, outcome) in changes.into_iter().zip(outcomes) {
            match (outcome, rate) {
                (Outcome::Done, Some(_)) => {
                    self.fresh.insert(flow);
                    self.unlifted.remove(&flow);
                }
                (Outcome::Done, None) => {
                    self.fresh.remove(&flow);
                    self.unlifted.remove(&flow);
                }
                // The flow has ended; the next listing shows that.
                (Outcome::Gone, _) => {}
                (Outcome::Failed(error), None) => self.note_unlifted(flow, error),
                (Outcome::Failed(error), Some(_)) => {
                    // The earlier limit may be far below the permitted rate, so it is lifted.
                    if !news.contains(&flow) {
                        self.unlifted.insert(flow);
                    }
                    let is_first = !std::mem::replace(&mut self.is_warned, true);
                    self.host.warn(&LimitProblem::Unlimited { error, is_first });
                }
            }
        }
    }

    /// Reports a failed lift once for each flow, however often it is retried.
    fn note_unlifted(&mut self, flow: FlowKey, error: String) {
        if self.unlifted.insert(flow) {
            self.host.warn(&LimitProblem::Unlifted { error });
        }
    }

    /// Lifts the limits of the selected flows.
    fn lift(&mut self, is_lifted: impl Fn(&FlowKey) -> bool) {
        let lift = |(flow, limited): (&FlowKey, &LimitedConnection)| Change {
            flow: *flow,
            cookie: limited.cookie,
            rate: None,
        };
        let lifts: Vec<Change> = self.limited.iter().filter(|(flow, _)| is_lifted(flow)).map(lift).collect();
        if lifts.is_empty() {
            return;
        }
        let outcomes = self.host.set(&lifts);
        for (Change { flow, .. }, outcome) in lifts.into_iter().zip(outcomes) {
            match outcome {
                Outcome::Done | Outcome::Gone => {
                    self.limited.remove(&flow);
                    self.fresh.remove(&flow);
                    self.unlifted.remove(&flow);
                }
                Outcome::Failed(error) => self.note_unlifted(flow, error),
            }
        }
        self.host.forget_all_but(&self.limited);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A model kernel with the current limits, which can be made to refuse limits.
    #[derive(Default)]
    struct Kernel {
        limits: BTreeMap<FlowKey, BitRate>,
        noted: usize,
        is_refusing: bool,
    }

    impl Host for Kernel {
        fn note(&mut self, limited: &[LimitedConnection]) -> Result<(), String> {
            self.noted += limited.len();
            Ok(())
        }
        fn set(&mut self, changes: &[Change]) -> Vec<Outcome> {
            if self.is_refusing {
                return vec![Outcome::Failed("refused".into()); changes.len()];
            }
            for Change { flow, rate, .. } in changes {
                match rate {
                    Some(rate) => self.limits.insert(*flow, *rate),
                    None => self.limits.remove(flow),
                };
            }
            vec![Outcome::Done; changes.len()]
        }
        fn forget_all_but(&mut self, limited: &BTreeMap<FlowKey, LimitedConnection>) {
            self.noted = limited.len();
        }
        fn warn(&mut self, _: &LimitProblem) {}
    }

    fn flow(port: u16) -> FlowKey {
        FlowKey { local: ([10, 0, 0, 1], port).into(), remote: ([10, 0, 0, 2], 7_000).into() }
    }
    fn set(port: u16, mbps: u64) -> LimitOrder {
        LimitOrder::Set(vec![(
            flow(port),
            Some(BitRate::mbps(mbps)),
            Socket { cookie: port.into(), limit: None },
        )])
    }

    #[test]
    fn limits_are_recorded_and_old_limits_lifted() {
        let mut limits = Enforcement::new(Kernel::default());
        limits.carry_out(set(1, 5));
        limits.carry_out(set(2, 5));
        limits.carry_out(LimitOrder::BeginSession);
        limits.carry_out(set(2, 6));
        assert_eq!((limits.host().noted, limits.host().limits.len()), (2, 2));
        limits.carry_out(LimitOrder::LiftOld);
        assert_eq!(limits.host().limits, BTreeMap::from([(flow(2), BitRate::mbps(6))]));
        limits.carry_out(LimitOrder::Keep(BTreeSet::new()));
        assert_eq!((limits.host().noted, limits.host().limits.len()), (0, 0));
    }

    /// Connections left by a killed agent, and the flows whose limits cannot be lifted.
    struct Machine(BTreeMap<FlowKey, Socket>, BTreeSet<FlowKey>);

    impl LeftoverHost for Machine {
        type Error = std::convert::Infallible;
        fn find(&mut self, flow: FlowKey) -> Result<Option<Socket>, Self::Error> {
            Ok(self.0.get(&flow).copied())
        }
        fn restore(&mut self, limited: &LimitedConnection, limit: BitRate) -> Outcome {
            let flow = FlowKey { local: limited.local, remote: limited.remote };
            let socket = self.0.get_mut(&flow).expect("it was found");
            assert_eq!(socket.limit, Some(limit));
            if self.1.contains(&flow) {
                return Outcome::Failed("held".into());
            }
            socket.limit = limited.before();
            Outcome::Done
        }
    }

    #[test]
    fn leftover_limits_are_lifted_by_their_first_record() {
        let mbps = |mbps| Some(BitRate::mbps(mbps));
        let note = |port: u16, cookie, before: Option<BitRate>| {
            let FlowKey { local, remote } = flow(port);
            LimitedConnection { local, remote, cookie, before_bps: before.map(BitRate::as_bps) }
        };
        let sockets = [(1, 1, mbps(5)), (2, 9, mbps(5)), (3, 3, mbps(5)), (4, 4, mbps(5)), (5, 5, mbps(5))];
        let sockets = sockets.map(|(port, cookie, limit)| (flow(port), Socket { cookie, limit }));
        let mut machine = Machine(BTreeMap::from(sockets), BTreeSet::from([flow(4)]));
        let notes = [
            // A connection recorded twice: the second record has the agent's own limit as the
            // earlier rate.
            note(1, 1, mbps(40)),
            note(1, 1, mbps(7)),
            // Port reused by another connection; same connection; limit that cannot be lifted;
            // closed connection.
            note(2, 2, None),
            note(3, 3, mbps(5)),
            note(4, 4, None),
            note(6, 6, None),
            note(5, 5, None),
        ];
        let Ok(lifted) = lift_left(notes, &mut machine);
        assert_eq!((lifted.lifted, lifted.stuck), (2, vec![(note(4, 4, None), "held".to_owned())]));
        let limits: Vec<_> = machine.0.values().map(|socket| socket.limit).collect();
        assert_eq!(limits, [mbps(40), mbps(5), mbps(5), mbps(5), None]);
    }

    /// After a failed raise the low limit stayed in force, and the coordinator classified the flow
    /// as slow permanently (#18).
    #[test]
    fn failed_raise_lifts_the_old_limit() {
        let mut limits = Enforcement::new(Kernel::default());
        limits.carry_out(set(1, 5));
        limits.host_mut().is_refusing = true;
        limits.carry_out(set(1, 50));
        limits.carry_out(LimitOrder::Keep(BTreeSet::from([flow(1)])));
        assert_eq!(limits.host().limits[&flow(1)], BitRate::mbps(5));
        limits.host_mut().is_refusing = false;
        limits.carry_out(LimitOrder::Keep(BTreeSet::from([flow(1)])));
        assert!(limits.host().limits.is_empty());
        // Later limits of the flow are set again.
        limits.carry_out(set(1, 60));
        limits.carry_out(LimitOrder::Keep(BTreeSet::from([flow(1)])));
        assert_eq!(limits.host().limits[&flow(1)], BitRate::mbps(60));
    }
}
