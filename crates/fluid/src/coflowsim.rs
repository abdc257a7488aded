//! The rules of CoflowSim, the field's reference simulator, where they are not ours: with them its figures can be compared.
//!
//! Source: github.com/coflow/coflowsim, at commit b61f209, with its defaults. What it does otherwise, and why
//! ours is as it is by default:
//!
//! - *Arrivals.* Transfers are admitted at the beginning of epochs of [`EPOCH`], and those that arrive during one or at its end
//!   with it: up to 10.24 s before they arrive. Their times count from then ([`Trace::as_coflowsim`]). Ours come when they come:
//!   no scheduler knows what is to come.
//! - *Volumes.* Each flow has whole megabytes, rounded up ([`Trace::as_coflowsim`]). Ours are the trace's, to a byte; those of the
//!   benchmark's own trace are whole megabytes.
//! - *Steps.* Time goes by in steps of [`STEP`], in which a port moves a megabyte: [`PORT`]. Its second has 1024 ms. What
//!   completes within a step does so at its end: [`crate::run_in_epochs`] with [`STEP`]. Ours is exact.
//! - *Decisions.* Rates are set when transfers are admitted or have gone; what a flow leaves that completes before its transfer
//!   stays unused until then. Ours goes to others at once, as work conservation is for.
//! - *Order.* SEBF is by what a transfer had to move at first. Ours is by what it has still to move, as Varys's section 5.3.2.
//! - *Backfilling.* A transfer that finds a link of its full gets nothing by MADD. Of what is left then the flows of all such
//!   transfers have the least even share of their links; the rest goes to flows of all transfers by a deadline: admission and a
//!   random 1 to 2 times the time that the transfer takes alone. Ours follows the order of service, which is what it is for.
//!   Differs: the random factor is 1.5 here, as its draws are those of Java's generator.

use crate::active::Active;
use crate::allocator::Event;
use crate::benchmark::Trace;
use crate::network::{FlowId, LinkId, TransferId};
use crate::order::{Ranks, by_arrival};
use crate::plan::Plan;
use anabranch_units::{BitRate, ByteCount, Duration, Instant};
use std::collections::BTreeMap;

/// How often it admits transfers.
pub const EPOCH: Duration = Duration::from_ms(10 * 1024);
/// Its steps.
pub const STEP: Duration = Duration::from_ms(8);
/// The rate of its ports: 2^20 bytes in 8 ms.
pub const PORT: BitRate = BitRate::bps(1_048_576_000);
const MEGABYTE: u64 = 1 << 20;
/// The mean of its random factor.
const DEADLINE: f64 = 1.5;

impl Trace {
    /// The transfers as CoflowSim has them: admitted at the beginning of the epoch during which or at whose end they arrive, and
    /// with whole megabytes for each flow, at least one.
    ///
    /// Differs: mappers at one port, or reducers, are flows of their own; CoflowSim joins them.
    pub fn as_coflowsim(mut self) -> Self {
        for flow in &mut self.flows {
            let (epoch_ps, arrives_ps) = (EPOCH.as_ps(), flow.arrives.as_ps());
            flow.arrives = Instant::from_ps(arrives_ps.saturating_sub(1) / epoch_ps * epoch_ps);
            flow.volume = ByteCount::new(flow.volume.as_u64().div_ceil(MEGABYTE).max(1) * MEGABYTE);
        }
        self
    }
}

/// In which order transfers get their rates.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// The smallest effective bottleneck first.
    Bottleneck,
    /// As they came.
    Arrival,
}

/// Rates by CoflowSim's rules.
#[derive(Clone, Debug)]
pub(crate) struct Rates {
    order: Order,
    plan: Plan,
    /// What each transfer would have taken alone when it came, in seconds.
    alone_s: BTreeMap<TransferId, f64>,
}

impl Rates {
    pub fn new(order: Order) -> Self {
        Self { order, plan: Plan::default(), alone_s: BTreeMap::new() }
    }

    /// Sets rates anew where a transfer has come or gone, and does nothing else.
    pub fn allocate(&mut self, event: &Event, active: &mut Active) {
        if !Ranks::default().is_new_order(event, active) {
            return;
        }
        let Self { order, plan, alone_s } = self;
        plan.begin(active);
        alone_s.retain(|transfer, _| !active.flows_of(*transfer).is_empty());
        for transfer in active.transfers() {
            alone_s.entry(transfer).or_insert_with(|| plan.alone_s(active, active.flows_of(transfer)));
        }
        let mut transfers = by_arrival(active);
        let mut by_deadline = transfers.clone();
        if *order == Order::Bottleneck {
            transfers.sort_by(|a, b| alone_s[a].total_cmp(&alone_s[b]));
        }
        let mut skipped: Vec<FlowId> = Vec::new();
        for transfer in transfers {
            let flows = active.flows_of(transfer);
            let time_s = plan.left_s(active, flows);
            if time_s.is_finite() {
                flows.iter().for_each(|id| plan.give(active, *id, active.remaining_bits(*id) / time_s));
            } else {
                skipped.extend(flows);
            }
        }
        share(plan, active, skipped);
        let deadline_s = |transfer: &TransferId| {
            let (arrived, _) = active.transfer_so_far(*transfer).expect("it has active flows");
            arrived.as_secs_f64() + DEADLINE * alone_s[transfer]
        };
        by_deadline.sort_by(|a, b| deadline_s(a).total_cmp(&deadline_s(b)));
        by_deadline.iter().for_each(|transfer| plan.fill(active, active.flows_of(*transfer)));
        plan.set(active);
    }
}

/// Gives flows the least even share of what their links have left.
fn share(plan: &mut Plan, active: &Active, mut flows: Vec<FlowId>) {
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
    fn who_arrives_in_an_epoch_or_at_its_end_is_there_at_its_beginning() {
        let text = "2 4\n1 0 1 0 1 1:0\n2 10240 1 0 1 1:1\n3 10241 1 0 1 1:1.5\n4 20480 2 0 1 1 1:3\n";
        let trace = benchmark::parse(text, usize::MAX).expect("well written").as_coflowsim();
        let arrives: Vec<u64> = trace.flows.iter().map(|flow| flow.arrives.as_ns() / 1_000_000).collect();
        assert_eq!(arrives, [0, 0, 10_240, 10_240, 10_240]);
        let megabytes: Vec<u64> = trace.flows.iter().map(|flow| flow.volume.as_u64() / MEGABYTE).collect();
        assert_eq!(megabytes, [1, 1, 2, 2, 2]);
    }
}
