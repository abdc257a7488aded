//! The event loop of a run: arrivals, growth and completions of flows.

use crate::active::{ActiveFlows, COMPLETE_WITHIN, DecisionError};
use crate::allocator::Allocator;
use crate::network::{CoflowId, Flow, FlowId, LinkId, Network};
use anabranch_units::{ByteCount, Duration, Instant};
use std::collections::BTreeMap;
use std::fmt;

/// Maximum number of consecutive decisions of an allocator without a completion.
const DECISIONS_IN_VAIN_MAX: u32 = 1 << 20;

/// Arrival and completion of a flow or coflow.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Arrival of the flow, or of the coflow's first flow.
    pub arrived: Instant,
    /// Completion of the flow, or of the coflow's last flow.
    pub completed: Instant,
}

impl Completion {
    /// Returns the time from the arrival to the completion.
    pub fn time(&self) -> Duration {
        self.completed - self.arrived
    }
}

/// Results of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Arrival and completion of each flow.
    pub flows: Vec<Completion>,
    /// Arrival and completion of each coflow.
    pub coflows: BTreeMap<CoflowId, Completion>,
    /// Number of decisions.
    pub decisions: u64,
}

/// Reason why a run is invalid or cannot continue.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum RunError {
    /// A flow uses a link that does not exist.
    NoSuchLink(FlowId, LinkId),
    /// The route of a flow is empty, or contains a link twice.
    Route(FlowId),
    /// A flow grows before it arrives.
    GrowsBefore {
        /// Flow.
        flow: FlowId,
        /// Time of the growth.
        at: Instant,
    },
    /// There are more flows than ids.
    TooManyFlows(usize),
    /// The allocator gave a flow an invalid rate.
    Rate {
        /// Flow.
        flow: FlowId,
        /// Rate in bits per second.
        bps: f64,
    },
    /// The allocator overloaded a link.
    Overload {
        /// Link.
        link: LinkId,
        /// Sum of the rates of the link's flows, in bits per second.
        bps: f64,
    },
    /// Flows are active, but no flow moves and no flow will arrive.
    Stalled {
        /// Time of the stall.
        at: Instant,
        /// Number of active flows.
        flows: usize,
    },
    /// A flow would take longer than the maximum duration of a run (213 days).
    TooLong(FlowId),
    /// The epoch has length 0.
    NoEpoch,
}

impl fmt::Display for RunError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSuchLink(flow, link) => write!(f, "flow {}: there is no link {}", flow.0, link.0),
            Self::Route(flow) => write!(f, "flow {}: must cross at least one link, and each once", flow.0),
            Self::GrowsBefore { flow, at } => {
                write!(f, "flow {}: grows at {} s, before it arrives", flow.0, at.as_secs_f64())
            }
            Self::TooManyFlows(flows) => write!(f, "{flows} flows: at most {}", u32::MAX),
            Self::Rate { flow, bps } => write!(f, "flow {} is given {bps} b/s", flow.0),
            Self::Overload { link, bps } => write!(f, "link {}: its flows are given {bps} b/s", link.0),
            Self::Stalled { at, flows } => {
                write!(f, "{flows} flows are given nothing at {} s, and nothing is to come", at.as_secs_f64())
            }
            Self::NoEpoch => write!(f, "epoch 0 s: must be longer"),
            Self::TooLong(flow) => write!(f, "flow {}: takes longer than 213 days", flow.0),
        }
    }
}
impl std::error::Error for RunError {}

/// Runs all flows to their completion.
///
/// Units: a flow moves `volume` bytes of 8 bits; rates are in bits per second. Cost: a decision for
/// each instant at which flows arrive, grow or complete. A decision costs its changes and the
/// allocator's work. Errors: see [`RunError`]. Differs: volumes and rates are `f64`, so completions
/// are exact to a few picoseconds; completions within 10 ps of each other coincide.
pub fn run(network: &Network, flows: &[Flow], allocator: &mut impl Allocator) -> Result<Outcome, RunError> {
    run_flows(network, flows, None, allocator)
}

/// Runs all flows to their completion, with decisions only at multiples of an epoch. A decision
/// considers all events of the epoch. A new flow has rate 0 until the next decision, and the rate
/// of a completed flow stays unused until then.
///
/// Cost, Differs: see [`run`].
/// Errors: see [`RunError`].
pub fn run_in_epochs(
    network: &Network,
    flows: &[Flow],
    epoch: Duration,
    allocator: &mut impl Allocator,
) -> Result<Outcome, RunError> {
    if epoch == Duration::ZERO {
        return Err(RunError::NoEpoch);
    }
    run_flows(network, flows, Some(epoch), allocator)
}

fn run_flows(
    network: &Network,
    flows: &[Flow],
    epoch: Option<Duration>,
    allocator: &mut impl Allocator,
) -> Result<Outcome, RunError> {
    check(network, flows)?;
    // Returns the time of the decision that follows an event. An event within the rounding error
    // after a multiple of the epoch counts as at this multiple.
    let decides = |at: Instant| match epoch {
        Some(epoch) => {
            let epoch_ps = u128::from(epoch.as_ps());
            let epochs = at.as_ps().saturating_sub(COMPLETE_WITHIN.as_ps().into()).div_ceil(epoch_ps);
            at.max(Instant::from_ps(epochs.saturating_mul(epoch_ps)))
        }
        None => at,
    };
    let mut decision: Option<Instant> = None;
    let mut volumes: Vec<(Instant, FlowId, ByteCount)> = Vec::with_capacity(flows.len());
    for (id, flow) in (0..).map(FlowId).zip(flows) {
        volumes.push((flow.arrives, id, flow.volume));
        volumes.extend(flow.grows.iter().map(|(at, volume)| (*at, id, *volume)));
    }
    // Sorted by time, then by flow.
    volumes.sort();
    let mut volumes = volumes.into_iter().peekable();
    let mut active = ActiveFlows::new(network.clone());
    // `names` and `through` are indexed by flow: the flow's id while it is active, and the
    // completion of its volume so far. `named` is indexed by id: the flow.
    let (mut names, mut through) = (vec![None; flows.len()], vec![Instant::ZERO; flows.len()]);
    let mut named: Vec<FlowId> = Vec::new();
    let (mut decisions, mut in_vain) = (0, 0);
    loop {
        let next = [volumes.peek().map(|(at, ..)| *at), active.next_completion()].into_iter().flatten().min();
        let wakes = allocator.next_decision(&active).filter(|_| !active.ids().is_empty());
        let wakes = wakes.map(decides).into_iter().chain(decision);
        let Some(next) = next.into_iter().chain(wakes).min() else {
            if active.ids().is_empty() {
                return Ok(outcome(flows, through, decisions));
            }
            let slow = active.ids().iter().find(|id| active.bps(**id) > 0.0);
            return Err(match slow {
                Some(id) => RunError::TooLong(named[id.0 as usize]),
                None => RunError::Stalled { at: active.now(), flows: active.ids().len() },
            });
        };
        active.advance(next);
        let completed = active.complete();
        in_vain = if completed.is_empty() && volumes.peek().is_none() { in_vain + 1 } else { 0 };
        if in_vain > DECISIONS_IN_VAIN_MAX {
            return Err(RunError::Stalled { at: next, flows: active.ids().len() });
        }
        for id in completed {
            let flow = named[id.0 as usize];
            (names[flow.0 as usize], through[flow.0 as usize]) = (None, next);
        }
        while let Some((_, flow, volume)) = volumes.next_if(|(at, ..)| *at <= next) {
            let (name, Flow { coflow, route, .. }) = (&mut names[flow.0 as usize], &flows[flow.0 as usize]);
            match *name {
                // An empty volume is complete when it arrives.
                _ if volume == ByteCount::ZERO => through[flow.0 as usize] = next,
                Some(id) => active.grow(id, volume),
                None => {
                    let id = active.insert(*coflow, route, volume);
                    *name = Some(id);
                    named.resize(active.ids_end(), flow);
                    named[id.0 as usize] = flow;
                }
            }
        }
        if *decision.get_or_insert(decides(next)) > next {
            continue;
        }
        decision = None;
        decisions += 1;
        active.decide(allocator).map_err(|error| match error {
            DecisionError::Rate { flow, bps } => RunError::Rate { flow: named[flow.0 as usize], bps },
            DecisionError::Overload { link, bps } => RunError::Overload { link, bps },
        })?;
    }
}

pub(crate) fn check(network: &Network, flows: &[Flow]) -> Result<(), RunError> {
    if u32::try_from(flows.len()).is_err() {
        return Err(RunError::TooManyFlows(flows.len()));
    }
    for (id, flow) in (0..).map(FlowId).zip(flows) {
        if let Some(link) = flow.route.iter().find(|link| link.0 as usize >= network.links()) {
            return Err(RunError::NoSuchLink(id, *link));
        }
        let is_twice = flow.route.iter().enumerate().any(|(at, link)| flow.route[..at].contains(link));
        if flow.route.is_empty() || is_twice {
            return Err(RunError::Route(id));
        }
        if let Some((at, _)) = flow.grows.iter().find(|(at, _)| *at < flow.arrives) {
            return Err(RunError::GrowsBefore { flow: id, at: *at });
        }
    }
    Ok(())
}

fn outcome(flows: &[Flow], completed: Vec<Instant>, decisions: u64) -> Outcome {
    let completion = |(flow, completed): (&Flow, Instant)| Completion { arrived: flow.arrives, completed };
    let done: Vec<Completion> = flows.iter().zip(completed).map(completion).collect();
    let mut coflows: BTreeMap<CoflowId, Completion> = BTreeMap::new();
    for (flow, completion) in flows.iter().zip(&done) {
        let all = coflows.entry(flow.coflow).or_insert(*completion);
        all.arrived = all.arrived.min(completion.arrived);
        all.completed = all.completed.max(completion.completed);
    }
    Outcome { flows: done, coflows, decisions }
}

#[cfg(test)]
pub(crate) mod tests;
