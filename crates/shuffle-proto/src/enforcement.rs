//! Limits that stand: which flows of a host have limits, of which session, and which could not be lifted.
//!
//! The agent's machine gives [`Order`]s; the [`Host`] writes down and sets. Before a flow gets its first limit, its earlier rate
//! is written down, so that a process that finds a killed agent's notes can set it back. A limit that cannot be lifted is tried again
//! with each [`Order::Keep`]. [`lift_left`] lifts the limits of a killed agent, by its notes. Leaves out: how a limit is enforced, and
//! the file of notes (drivers). Read [`Enforcement`] first.

use crate::book::Socket;
use crate::control::FlowKey;
use crate::state::Limited;
use anabranch_units::BitRate;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// What is to become of limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order {
    /// These flows have these limits from now on; no rate lifts. Of several words on one flow the last counts.
    Set(Vec<(FlowKey, Option<BitRate>, Socket)>),
    /// No other flows than these are there: limits of others are forgotten, and lifted where that is still possible.
    Keep(BTreeSet<FlowKey>),
    /// From now on limits are those of a new session.
    BeginSession,
    /// Limits that were not set since the session began are lifted.
    LiftOld,
    /// All limits are lifted.
    LiftAll,
}

/// A limit that is to be set on one connection.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Its addresses and ports.
    pub flow: FlowKey,
    /// What tells it from all others of this boot: others may have the same addresses before it and after it.
    pub cookie: u64,
    /// How fast it may be; `None` lifts its limit.
    pub rate: Option<BitRate>,
}

/// What became of one flow's limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is set, or lifted.
    Done,
    /// There is no such connection any more.
    Gone,
    /// It could not be done: why, in one line.
    Failed(String),
}

/// What went wrong with limits, for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// So many flows have no limit, as nothing could be written down: a limit that nobody knows of is worse than none.
    Unnoted {
        /// How many.
        flows: usize,
        /// Why, in one line.
        error: String,
    },
    /// A flow runs without its limit.
    Unlimited {
        /// Why, in one line.
        error: String,
        /// Whether it is the first one.
        is_first: bool,
    },
    /// A limit could not be lifted, which is tried again. Said once of a flow.
    Unlifted {
        /// Why, in one line.
        error: String,
    },
}

impl fmt::Display for Trouble {
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

/// The machine on which limits are set.
pub trait Host {
    /// Writes down, so that it outlives the process, that these connections are about to have limits.
    ///
    /// Errors: why that is not possible, in one line.
    fn note(&mut self, limited: &[Limited]) -> Result<(), String>;
    /// Sets and lifts limits; one outcome for each, in order.
    fn set(&mut self, changes: &[Change]) -> Vec<Outcome>;
    /// Limits were lifted: of all that was written down, only this counts still.
    fn forget_all_but(&mut self, limited: &BTreeMap<FlowKey, Limited>);
    /// Says what went wrong.
    fn warn(&mut self, trouble: &Trouble);
}

/// The machine on which a killed agent has left limits.
pub trait Remains {
    /// Why connections cannot be looked up.
    type Error;
    /// The connection that has these addresses, with the limit that it has.
    ///
    /// Errors: it cannot be told.
    fn find(&mut self, flow: FlowKey) -> Result<Option<Socket>, Self::Error>;
    /// Gives a connection, which has this limit, back what it had before.
    fn restore(&mut self, limited: &Limited, limit: BitRate) -> Outcome;
}

/// What became of limits that were left.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lifted {
    /// How many are lifted.
    pub lifted: usize,
    /// Those that are not, each with why, in one line.
    pub stuck: Vec<(Limited, String)>,
}

/// Lifts what a killed agent has left, by its notes in their order, on connections that are still there.
///
/// Errors: connections cannot be looked up; some limits may be lifted by then, and all notes are to be kept.
pub fn lift_left<R: Remains>(
    left: impl IntoIterator<Item = Limited>,
    host: &mut R,
) -> Result<Lifted, R::Error> {
    let mut outcome = Lifted::default();
    // The first note of a connection says what it had before any limit of ours.
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
            // It has ended meanwhile.
            Outcome::Gone => {}
            Outcome::Failed(error) => outcome.stuck.push((limited, error)),
        }
    }
    Ok(outcome)
}

/// A host's limits.
#[derive(Debug)]
pub struct Enforcement<H> {
    host: H,
    limited: BTreeMap<FlowKey, Limited>,
    /// Flows with limits of this session.
    fresh: BTreeSet<FlowKey>,
    /// Flows whose limits were to be lifted or to become others, and could not: they are to be lifted.
    unlifted: BTreeSet<FlowKey>,
    is_warned: bool,
}

impl<H: Host> Enforcement<H> {
    /// No limits.
    pub fn new(host: H) -> Self {
        let (limited, fresh, unlifted) = (BTreeMap::new(), BTreeSet::new(), BTreeSet::new());
        Self { host, limited, fresh, unlifted, is_warned: false }
    }

    /// Does what is ordered.
    pub fn carry_out(&mut self, order: Order) {
        match order {
            Order::Set(limits) => {
                self.set(limits.into_iter().map(|(flow, rate, socket)| (flow, (rate, socket))).collect());
            }
            Order::Keep(flows) => {
                // What could not be lifted is tried again, as often as flows are looked at.
                let unlifted = self.unlifted.clone();
                self.lift(|flow| !flows.contains(flow) || unlifted.contains(flow));
            }
            Order::BeginSession => self.fresh.clear(),
            Order::LiftOld => {
                let fresh = std::mem::take(&mut self.fresh);
                self.lift(|flow| !fresh.contains(flow));
                self.fresh = fresh;
            }
            Order::LiftAll => self.lift(|_| true),
        }
    }

    /// The machine.
    pub const fn host(&self) -> &H {
        &self.host
    }

    /// The machine, to be changed.
    pub const fn host_mut(&mut self) -> &mut H {
        &mut self.host
    }

    /// Flows that have or may have limits.
    pub const fn limited(&self) -> &BTreeMap<FlowKey, Limited> {
        &self.limited
    }

    fn set(&mut self, mut limits: BTreeMap<FlowKey, (Option<BitRate>, Socket)>) {
        let mut noted = Vec::new();
        for (flow, (rate, socket)) in &limits {
            let is_known = self.limited.get(flow).is_some_and(|limited| limited.cookie == socket.cookie);
            if rate.is_some() && !is_known {
                let FlowKey { local, remote } = *flow;
                let before_bps = socket.limit.map(BitRate::as_bps);
                noted.push((*flow, Limited { local, remote, cookie: socket.cookie, before_bps }));
            }
        }
        let news: BTreeSet<FlowKey> = noted.iter().map(|(flow, _)| *flow).collect();
        if !noted.is_empty() {
            let lines: Vec<Limited> = noted.iter().map(|(_, limited)| *limited).collect();
            match self.host.note(&lines) {
                Ok(()) => self.limited.extend(noted),
                // Flows whose limits are known go on.
                Err(error) => {
                    for flow in &news {
                        limits.remove(flow);
                    }
                    self.host.warn(&Trouble::Unnoted { flows: news.len(), error });
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
                // It has ended; the next listing says so.
                (Outcome::Gone, _) => {}
                (Outcome::Failed(error), None) => self.note_unlifted(flow, error),
                (Outcome::Failed(error), Some(_)) => {
                    // The limit of before may be far less than what it may have now.
                    if !news.contains(&flow) {
                        self.unlifted.insert(flow);
                    }
                    let is_first = !std::mem::replace(&mut self.is_warned, true);
                    self.host.warn(&Trouble::Unlimited { error, is_first });
                }
            }
        }
    }

    /// Says it once of a flow, however often it is tried.
    fn note_unlifted(&mut self, flow: FlowKey, error: String) {
        if self.unlifted.insert(flow) {
            self.host.warn(&Trouble::Unlifted { error });
        }
    }

    /// Lifts the limits of the flows for which this says yes.
    fn lift(&mut self, is_lifted: impl Fn(&FlowKey) -> bool) {
        let lift = |(flow, limited): (&FlowKey, &Limited)| Change {
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

    /// Limits as they stand, and whether the next ones can be set.
    #[derive(Default)]
    struct Kernel {
        limits: BTreeMap<FlowKey, BitRate>,
        noted: usize,
        is_refusing: bool,
    }

    impl Host for Kernel {
        fn note(&mut self, limited: &[Limited]) -> Result<(), String> {
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
        fn forget_all_but(&mut self, limited: &BTreeMap<FlowKey, Limited>) {
            self.noted = limited.len();
        }
        fn warn(&mut self, _: &Trouble) {}
    }

    fn flow(port: u16) -> FlowKey {
        FlowKey { local: ([10, 0, 0, 1], port).into(), remote: ([10, 0, 0, 2], 7_000).into() }
    }
    fn set(port: u16, mbps: u64) -> Order {
        Order::Set(vec![(flow(port), Some(BitRate::mbps(mbps)), Socket { cookie: port.into(), limit: None })])
    }

    #[test]
    fn limits_are_noted_before_they_are_set_and_old_ones_are_lifted_alone() {
        let mut limits = Enforcement::new(Kernel::default());
        limits.carry_out(set(1, 5));
        limits.carry_out(set(2, 5));
        limits.carry_out(Order::BeginSession);
        limits.carry_out(set(2, 6));
        assert_eq!((limits.host().noted, limits.host().limits.len()), (2, 2));
        limits.carry_out(Order::LiftOld);
        assert_eq!(limits.host().limits, BTreeMap::from([(flow(2), BitRate::mbps(6))]));
        limits.carry_out(Order::Keep(BTreeSet::new()));
        assert_eq!((limits.host().noted, limits.host().limits.len()), (0, 0));
    }

    /// Connections as a killed agent has left them, with the flows whose limits cannot be lifted.
    struct Machine(BTreeMap<FlowKey, Socket>, BTreeSet<FlowKey>);

    impl Remains for Machine {
        type Error = std::convert::Infallible;
        fn find(&mut self, flow: FlowKey) -> Result<Option<Socket>, Self::Error> {
            Ok(self.0.get(&flow).copied())
        }
        fn restore(&mut self, limited: &Limited, limit: BitRate) -> Outcome {
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
    fn what_was_left_is_lifted_once_by_its_first_note_where_its_connection_is_still_there() {
        let mbps = |mbps| Some(BitRate::mbps(mbps));
        let note = |port: u16, cookie, before: Option<BitRate>| {
            let FlowKey { local, remote } = flow(port);
            Limited { local, remote, cookie, before_bps: before.map(BitRate::as_bps) }
        };
        let sockets = [(1, 1, mbps(5)), (2, 9, mbps(5)), (3, 3, mbps(5)), (4, 4, mbps(5)), (5, 5, mbps(5))];
        let sockets = sockets.map(|(port, cookie, limit)| (flow(port), Socket { cookie, limit }));
        let mut machine = Machine(BTreeMap::from(sockets), BTreeSet::from([flow(4)]));
        let notes = [
            // Noted again with a limit of ours as that of before.
            note(1, 1, mbps(40)),
            note(1, 1, mbps(7)),
            // Another connection's by now; its own; one that cannot be lifted; gone.
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

    /// A raise that could not be set left the low limit, and the coordinator took the flow for slow, for ever (#18).
    #[test]
    fn a_flow_that_cannot_have_its_new_limit_does_not_keep_its_old_one() {
        let mut limits = Enforcement::new(Kernel::default());
        limits.carry_out(set(1, 5));
        limits.host_mut().is_refusing = true;
        limits.carry_out(set(1, 50));
        limits.carry_out(Order::Keep(BTreeSet::from([flow(1)])));
        assert_eq!(limits.host().limits[&flow(1)], BitRate::mbps(5));
        limits.host_mut().is_refusing = false;
        limits.carry_out(Order::Keep(BTreeSet::from([flow(1)])));
        assert!(limits.host().limits.is_empty());
        // It gets the next one.
        limits.carry_out(set(1, 60));
        limits.carry_out(Order::Keep(BTreeSet::from([flow(1)])));
        assert_eq!(limits.host().limits[&flow(1)], BitRate::mbps(60));
    }
}
