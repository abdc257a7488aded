//! From event to event: the flows' volumes and completions.

use crate::allocator::{Active, Allocator, Event, Rates};
use crate::network::{Flow, FlowId, LinkId, Network, TransferId};
use anabranch_units::{ByteCount, Duration, Instant};
use std::collections::BTreeMap;
use std::fmt;

/// What would be moved within this is complete: times are whole picoseconds, and volumes are rounded on the way.
const COMPLETE_WITHIN_S: f64 = 1e-11;
/// By how much of its rate a link may be above it, by rounding.
const ROUNDING: f64 = 1e-9;

/// When a flow, or a transfer, was there and done.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The flow's arrival, or that of the transfer's first.
    pub arrived: Instant,
    /// The flow's completion, or that of the transfer's last.
    pub completed: Instant,
}

impl Completion {
    /// From the one to the other.
    pub fn time(&self) -> Duration {
        self.completed - self.arrived
    }
}

/// What became of all flows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// By flow.
    pub flows: Vec<Completion>,
    /// By transfer.
    pub transfers: BTreeMap<TransferId, Completion>,
    /// How often rates were set.
    pub decisions: u64,
}

/// Why a run cannot be, or go on.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum RunError {
    /// A flow on a link that is not there.
    NoSuchLink(FlowId, LinkId),
    /// A flow that crosses no link, or one twice.
    Route(FlowId),
    /// More flows than can be named.
    TooManyFlows(usize),
    /// The allocator gave a flow a rate that is none.
    Rate {
        /// The flow.
        flow: FlowId,
        /// What it was given, in bits a second.
        bps: f64,
    },
    /// The allocator gave a link's flows more than it carries.
    Overload {
        /// The link.
        link: LinkId,
        /// The sum of its flows' rates, in bits a second.
        bps: f64,
    },
    /// Flows are active, none of them moves, and none is to come.
    Stalled {
        /// Since then.
        at: Instant,
        /// How many.
        flows: usize,
    },
    /// A flow would take longer than a run can be (213 days).
    TooLong(FlowId),
}

impl fmt::Display for RunError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSuchLink(flow, link) => write!(f, "flow {}: there is no link {}", flow.0, link.0),
            Self::Route(flow) => write!(f, "flow {}: must cross at least one link, and each once", flow.0),
            Self::TooManyFlows(flows) => write!(f, "{flows} flows: at most {}", u32::MAX),
            Self::Rate { flow, bps } => write!(f, "flow {} is given {bps} b/s", flow.0),
            Self::Overload { link, bps } => write!(f, "link {}: its flows are given {bps} b/s", link.0),
            Self::Stalled { at, flows } => {
                write!(f, "{flows} flows are given nothing at {} s, and nothing is to come", at.as_secs_f64())
            }
            Self::TooLong(flow) => write!(f, "flow {}: takes longer than 213 days", flow.0),
        }
    }
}
impl std::error::Error for RunError {}

/// Runs all flows to their completion.
///
/// Units: a flow moves `volume` bytes of 8 bits; rates are bits a second.
/// Cost: a decision for each instant at which flows arrive or complete, and a walk along the flows that are active then.
/// Errors: see [`RunError`].
/// Differs: volumes and rates are `f64`, so that completions are exact to some picoseconds; what completes within
/// ten of each other does so together.
pub fn run(network: &Network, flows: &[Flow], allocator: &mut impl Allocator) -> Result<Outcome, RunError> {
    check(network, flows)?;
    let mut arrivals: Vec<FlowId> = (0..flows.len() as u32).map(FlowId).collect();
    arrivals.sort_by_key(|id| flows[id.0 as usize].arrives);
    let mut arrivals = arrivals.into_iter().peekable();
    let mut state = State {
        network,
        flows,
        remaining_bits: flows.iter().map(|flow| 8.0 * flow.volume.as_u64() as f64).collect(),
        bps: vec![0.0; flows.len()],
        active: Vec::new(),
        completed_at: vec![None; flows.len()],
        load_bps: vec![0.0; network.links()],
    };
    let (mut now, mut decisions) = (Instant::ZERO, 0);
    loop {
        let arrival = arrivals.peek().map(|id| flows[id.0 as usize].arrives);
        let completion = state.next_completion(now)?;
        let Some(next) = arrival.into_iter().chain(completion).min() else {
            if state.active.is_empty() {
                return Ok(state.outcome(decisions));
            }
            return Err(RunError::Stalled { at: now, flows: state.active.len() });
        };
        let completed = state.advance(now, next);
        now = next;
        let mut arrived = Vec::new();
        while let Some(id) = arrivals.next_if(|id| flows[id.0 as usize].arrives <= now) {
            // What has nothing to move is complete as it arrives.
            if flows[id.0 as usize].volume == ByteCount::ZERO {
                state.completed_at[id.0 as usize] = Some(now);
            } else {
                arrived.push(id);
            }
        }
        state.active.extend(&arrived);
        state.active.iter().for_each(|id| state.bps[id.0 as usize] = 0.0);
        let event = Event { arrived: &arrived, completed: &completed };
        let active = Active { network, flows, remaining_bits: &state.remaining_bits, ids: &state.active };
        allocator.allocate(now, event, active, &mut Rates { bps: &mut state.bps });
        decisions += 1;
        state.check_rates()?;
    }
}

fn check(network: &Network, flows: &[Flow]) -> Result<(), RunError> {
    if u32::try_from(flows.len()).is_err() {
        return Err(RunError::TooManyFlows(flows.len()));
    }
    for (number, flow) in flows.iter().enumerate() {
        let id = FlowId(number as u32);
        if let Some(link) = flow.route.iter().find(|link| link.0 as usize >= network.links()) {
            return Err(RunError::NoSuchLink(id, *link));
        }
        let is_twice = flow.route.iter().enumerate().any(|(at, link)| flow.route[..at].contains(link));
        if flow.route.is_empty() || is_twice {
            return Err(RunError::Route(id));
        }
    }
    Ok(())
}

struct State<'a> {
    network: &'a Network,
    flows: &'a [Flow],
    /// By flow: what it has still to move, and how fast it does.
    remaining_bits: Vec<f64>,
    bps: Vec<f64>,
    active: Vec<FlowId>,
    completed_at: Vec<Option<Instant>>,
    /// By link, of the last decision.
    load_bps: Vec<f64>,
}

impl State<'_> {
    /// When the first of the active flows completes at these rates.
    fn next_completion(&self, now: Instant) -> Result<Option<Instant>, RunError> {
        let time_s = |id: &FlowId| self.remaining_bits[id.0 as usize] / self.bps[id.0 as usize];
        let first = self.active.iter().min_by(|a, b| time_s(a).total_cmp(&time_s(b)));
        let Some(first) = first.filter(|id| self.bps[id.0 as usize] > 0.0) else { return Ok(None) };
        let ps = (time_s(first) * 1e12).ceil();
        if now.as_ps() as f64 + ps >= u64::MAX as f64 {
            return Err(RunError::TooLong(*first));
        }
        Ok(Some(now + Duration::from_ps(ps as u64)))
    }

    /// Moves all active flows on; returns those that are complete then.
    fn advance(&mut self, now: Instant, next: Instant) -> Vec<FlowId> {
        let time_s = next.saturating_since(now).as_secs_f64();
        let mut completed = Vec::new();
        let Self { remaining_bits, bps, active, completed_at, .. } = self;
        active.retain(|id| {
            let flow = id.0 as usize;
            remaining_bits[flow] -= bps[flow] * time_s;
            if remaining_bits[flow] > bps[flow] * COMPLETE_WITHIN_S {
                return true;
            }
            (remaining_bits[flow], completed_at[flow]) = (0.0, Some(next));
            completed.push(*id);
            false
        });
        completed
    }

    /// Whether the last decision is one.
    fn check_rates(&mut self) -> Result<(), RunError> {
        self.load_bps.fill(0.0);
        for id in &self.active {
            let bps = self.bps[id.0 as usize];
            if !(bps >= 0.0 && bps.is_finite()) {
                return Err(RunError::Rate { flow: *id, bps });
            }
            self.flows[id.0 as usize].route.iter().for_each(|link| self.load_bps[link.0 as usize] += bps);
        }
        for (link, bps) in (0..).map(LinkId).zip(&self.load_bps) {
            if *bps > self.network.rate(link).as_bps() as f64 * (1.0 + ROUNDING) {
                return Err(RunError::Overload { link, bps: *bps });
            }
        }
        Ok(())
    }

    fn outcome(self, decisions: u64) -> Outcome {
        let done = self.completed_at.iter().map(|at| at.expect("a run ends when all flows are complete"));
        let completion =
            |(flow, completed): (&Flow, Instant)| Completion { arrived: flow.arrives, completed };
        let flows: Vec<Completion> = self.flows.iter().zip(done).map(completion).collect();
        let mut transfers: BTreeMap<TransferId, Completion> = BTreeMap::new();
        for (flow, completion) in self.flows.iter().zip(&flows) {
            let all = transfers.entry(flow.transfer).or_insert(*completion);
            all.arrived = all.arrived.min(completion.arrived);
            all.completed = all.completed.max(completion.completed);
        }
        Outcome { flows, transfers, decisions }
    }
}

#[cfg(test)]
mod tests;
