//! Rules of CoflowSim, the reference simulator of the field, where they differ from this crate's
//! rules. With them, CoflowSim's results can be reproduced.
//!
//! Source: github.com/coflow/coflowsim, commit b61f209, with its defaults. The differences, and the
//! reasons for this crate's defaults:
//!
//! - *Arrivals.* CoflowSim admits coflows at the beginning of epochs of length [`EPOCH`],
//!   together with the coflows that arrive during the epoch or at its end, so up to 10.24 s before
//!   their arrival. Completion times count from the admission ([`Trace::as_coflowsim`]). This crate
//!   admits coflows on arrival, because no scheduler knows future coflows.
//! - *Volumes.* In CoflowSim each flow has whole megabytes, rounded up ([`Trace::as_coflowsim`]).
//!   This crate uses the volumes in the trace, exact to a byte; the benchmark's trace has whole
//!   megabytes.
//! - *Steps.* In CoflowSim time advances in steps of length [`STEP`], in which a port moves a
//!   megabyte: [`PORT`]. Its second has 1024 ms. A flow that completes within a step completes at
//!   the step's end: [`crate::run_in_epochs`] with [`STEP`]. Times of this crate are exact.
//! - *Decisions.* CoflowSim sets rates when coflows are admitted or have ended; the rate of a
//!   flow that completes before its coflow stays unused until then. In this crate, other flows get
//!   the rate at once, for work conservation.
//! - *Order.* CoflowSim's SEBF uses the initial volume of a coflow. This crate uses the remaining
//!   volume, as Varys does.
//! - *Backfilling.* In CoflowSim a coflow with a full link gets nothing by MADD. From the
//!   remaining rate, the flows of all these coflows first get the smallest even share of their
//!   links. The rate that then remains is distributed to flows of all coflows, ordered by a
//!   deadline in whole milliseconds: admission plus a random 1 to 2 times the coflow's time alone
//!   (with a second of 1000 ms and a port of 2^30 bits), then by their last and first ports. In
//!   this crate backfilling follows the order of service.
//!
//! Over the first 170 coflows of the benchmark's trace, all completions equal CoflowSim's to the
//! millisecond. Differs: a link counts as full if less than a billionth of its rate is unused.
//! CoflowSim's limit is 0.001 b/s, which rounding errors of its sums exceed in long runs: coflows
//! on such links get almost nothing by MADD and no even share either.

use crate::active::ActiveFlows;
use crate::allocator::Event;
use crate::benchmark::Trace;
use crate::network::{CoflowId, FlowId, LinkId};
use crate::order::{CoflowOrder, by_arrival};
use crate::plan::Plan;
use anabranch_units::{BitRate, ByteCount, Duration, Instant};
use smallvec::SmallVec;
use std::collections::BTreeMap;

/// Interval between admissions of coflows.
pub const EPOCH: Duration = Duration::from_ms(10 * 1024);
/// Length of a step.
pub const STEP: Duration = Duration::from_ms(8);
/// Rate of a port: 2^20 bytes in 8 ms.
pub const PORT: BitRate = BitRate::bps(1_048_576_000);
const MEGABYTE: u64 = 1 << 20;

impl Trace {
    /// Returns the trace under CoflowSim's rules: each coflow is admitted at the beginning of the
    /// epoch in which it arrives, where an arrival at an epoch's end belongs to this epoch. Each
    /// flow has a whole number of megabytes, at least one megabyte.
    ///
    /// Differs: flows of several mappers at a port, or of several reducers at a port, stay
    /// separate; CoflowSim merges them.
    pub fn as_coflowsim(mut self) -> Self {
        for flow in &mut self.flows {
            let (epoch_ps, arrives_ps) = (u128::from(EPOCH.as_ps()), flow.arrives.as_ps());
            flow.arrives = Instant::from_ps(arrives_ps.saturating_sub(1) / epoch_ps * epoch_ps);
            flow.volume = ByteCount::new(flow.volume.as_u64().div_ceil(MEGABYTE).max(1) * MEGABYTE);
        }
        self
    }
}

/// Order in which coflows get their rates.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum ServiceOrder {
    /// The smallest effective bottleneck comes first.
    Bottleneck,
    /// The first coflow to arrive comes first.
    Arrival,
}

/// Rates by CoflowSim's rules.
#[derive(Clone, Debug)]
pub(crate) struct Rates {
    order: ServiceOrder,
    plan: Plan,
    came: BTreeMap<CoflowId, AdmittedCoflow>,
    factors: Factors,
}

/// State of a coflow, set at its admission.
#[derive(Copy, Clone, Debug)]
struct AdmittedCoflow {
    /// Time of the coflow alone on the network, at admission.
    alone_s: f64,
    deadline_ms: f64,
}

/// Random factors as drawn by `java.util.Random` with CoflowSim's seed. Coflows draw a factor each,
/// in the order of arrival.
///
/// Source: the documentation of `java.util.Random`, which gives its linear congruence (D. H.
/// Lehmer's, with 48 bits).
#[derive(Copy, Clone, Debug)]
struct Factors(u64);

impl Factors {
    const MULTIPLIER: u64 = 0x5_deec_e66d;
    const SEED: u64 = 17;

    const fn new() -> Self {
        Self(Self::SEED ^ Self::MULTIPLIER)
    }
    fn bits(&mut self, bits: u32) -> u64 {
        self.0 = (self.0.wrapping_mul(Self::MULTIPLIER) + 0xb) & ((1 << 48) - 1);
        self.0 >> (48 - bits)
    }
    /// Draws a factor from 1 to 2.
    fn draw(&mut self) -> f64 {
        1.0 + ((self.bits(26) << 27) + self.bits(27)) as f64 / (1u64 << 53) as f64
    }
}

impl Rates {
    pub fn new(order: ServiceOrder) -> Self {
        Self { order, plan: Plan::default(), came: BTreeMap::new(), factors: Factors::new() }
    }

    /// Recomputes rates if a coflow has arrived, grown or ended; otherwise does nothing.
    pub fn allocate(&mut self, event: &Event, active: &mut ActiveFlows) {
        if !CoflowOrder::default().is_new_order(event, active) {
            return;
        }
        let Self { order, plan, came, factors } = self;
        plan.begin(active);
        came.retain(|coflow, _| !active.flows_of(*coflow).is_empty());
        let mut coflows = by_arrival(active);
        for coflow in &coflows {
            let (arrived, _) = active.coflow_so_far(*coflow).expect("it has active flows");
            came.entry(*coflow).or_insert_with(|| {
                let alone_s = plan.alone_s(active, active.flows_of(*coflow));
                let deadline_ms = 1e3 * arrived.as_secs_f64() + 1e3 / 1.024 * alone_s * factors.draw();
                AdmittedCoflow { alone_s, deadline_ms: deadline_ms.trunc() }
            });
        }
        let mut by_deadline = coflows.clone();
        if *order == ServiceOrder::Bottleneck {
            coflows.sort_by(|a, b| came[a].alone_s.total_cmp(&came[b].alone_s));
        }
        let mut skipped: Vec<FlowId> = Vec::new();
        for coflow in coflows {
            let flows = active.flows_of(coflow);
            let time_s = plan.left_s(active, flows);
            if time_s.is_finite() {
                flows.iter().for_each(|id| plan.give(active, *id, active.remaining_bits(*id) / time_s));
            } else {
                skipped.extend(flows);
            }
        }
        share(plan, active, skipped);
        by_deadline.sort_by(|a, b| came[a].deadline_ms.total_cmp(&came[b].deadline_ms));
        let mut flows: Vec<FlowId> = Vec::new();
        for coflow in &by_deadline {
            let hungry = active.flows_of(*coflow).iter().filter(|id| plan.most_bps(active, **id) > 0.0);
            flows.extend(hungry);
            flows.sort_by_cached_key(|id| {
                let mut ports: SmallVec<[LinkId; 2]> = active.route(*id).collect();
                ports.reverse();
                ports
            });
            plan.fill(active, &flows);
            flows.clear();
        }
        plan.set(active);
    }
}

/// Gives each flow the smallest even share among its links' unused rates.
fn share(plan: &mut Plan, active: &ActiveFlows, mut flows: Vec<FlowId>) {
    flows.retain(|id| plan.most_bps(active, *id) > 0.0);
    let mut count = vec![0u32; active.network().links()];
    let links = flows.iter().flat_map(|id| active.route(*id));
    links.for_each(|link| count[link.0 as usize] += 1);
    let even_bps = |link: LinkId| plan.left_bps(link) / f64::from(count[link.0 as usize]);
    let least_bps = |id: &FlowId| active.route(*id).map(even_bps).fold(f64::INFINITY, f64::min);
    let shares: Vec<f64> = flows.iter().map(least_bps).collect();
    flows.iter().zip(shares).for_each(|(id, bps)| plan.give(active, *id, bps));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::benchmark;

    #[test]
    fn random_factors_equal_javas_random() {
        // The first results of `new Random(17).nextDouble()`.
        let mut factors = Factors::new();
        assert_eq!([factors.draw(), factors.draw()], [1.0 + 0.7323115139597316, 1.0 + 0.6973704783607497]);
    }

    #[test]
    fn arrivals_within_an_epoch_count_from_its_beginning() {
        let text = "2 4\n1 0 1 0 1 1:0\n2 10240 1 0 1 1:1\n3 10241 1 0 1 1:1.5\n4 20480 2 0 1 1 1:3\n";
        let trace = benchmark::parse(text, usize::MAX).expect("well written").as_coflowsim();
        let arrives: Vec<u64> = trace.flows.iter().map(|flow| flow.arrives.as_ns() / 1_000_000).collect();
        assert_eq!(arrives, [0, 0, 10_240, 10_240, 10_240]);
        let megabytes: Vec<u64> = trace.flows.iter().map(|flow| flow.volume.as_u64() / MEGABYTE).collect();
        assert_eq!(megabytes, [1, 1, 2, 2, 2]);
    }
}
