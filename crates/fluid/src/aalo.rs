//! Aalo: coflows that have sent less are served first; remaining volumes are unknown.
//!
//! Source: Chowdhury and Stoica, *Efficient Coflow Scheduling Without Prior Knowledge* (SIGCOMM
//! 2015), section 4: D-CLAS (discretised coflow-aware least-attained service). A coflow moves to
//! the next queue when its sent bytes reach a threshold; thresholds grow by a factor. Queues share
//! each link by weight. Within a queue, coflows are in the order of their arrival, and the flows of
//! a coflow share its rate max-min fairly. The remaining rate is left to the next coflow, queue by
//! queue. Differs: queue i of K, starting at 1, has weight K - i + 1, where the paper only requires
//! decreasing weights; a link is shared among the queues with flows on the link. The paper's
//! coordinator checks thresholds every 10 ms; here a coflow changes its queue as soon as it reaches
//! a threshold. If a flow completes before its coflow, its rate is distributed to flows on its
//! links in the coflow order, max-min fairly within a coflow. Shares are recomputed when a flow
//! arrives or grows, and when a coflow completes or changes its queue. The sent bytes of a coflow
//! are kept as long as it has active flows.

use crate::active::ActiveFlows;
use crate::allocator::{Allocator, Event};
use crate::filling::FillBuffers;
use crate::network::{CoflowId, FlowId, LinkId};
use crate::plan::Plan;
use anabranch_units::{ByteCount, Duration, Instant};
use std::collections::BTreeMap;
use std::fmt;

/// Maximum number of queues.
const QUEUES_MAX: u32 = 64;
/// Relative shortfall up to which a coflow counts as at its threshold, because of rounding.
const AT_THRESHOLD: f64 = 1e-9;

/// Aalo's state.
#[derive(Clone, Debug)]
pub struct Aalo {
    /// Thresholds between queues.
    thresholds_bits: Vec<f64>,
    coflows: BTreeMap<CoflowId, SentVolume>,
    /// Position of the flow's coflow in the order, and the flow's rate; by flow.
    flows: Vec<(u32, f64)>,
    plan: Plan,
    filling: FillBuffers,
    /// Time at which the next coflow reaches its threshold at the current rates.
    falls: Option<Instant>,
}

#[derive(Copy, Clone, Debug)]
struct SentVolume {
    /// Sent bits at time `since`. The rate `bps` applies from `since` on.
    bits: f64,
    bps: f64,
    since: Instant,
    queue: usize,
}

/// Reason why a set of queues is invalid.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AaloError {
    /// There is no queue, or there are too many queues.
    Queues(u32),
    /// The factor does not make thresholds grow.
    Factor(u32),
    /// The first threshold is 0.
    NoThreshold,
}

impl fmt::Display for AaloError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Queues(queues) => write!(f, "{queues} queues: must be 1 to {QUEUES_MAX}"),
            Self::Factor(factor) => write!(f, "thresholds grow by a factor of {factor}: must be at least 2"),
            Self::NoThreshold => write!(f, "first threshold 0 bytes: must be at least 1 byte"),
        }
    }
}
impl std::error::Error for AaloError {}

impl Default for Aalo {
    /// Creates the paper's queues: 10 queues with thresholds that start at 10 MB and grow by a
    /// factor of 10.
    fn default() -> Self {
        Self::new(10, ByteCount::new(10_000_000), 10).expect("within limits")
    }
}

impl SentVolume {
    fn settle(&mut self, now: Instant) {
        self.bits += self.bps * now.saturating_since(self.since).as_secs_f64();
        self.since = now;
    }
}

impl Aalo {
    /// Creates `queues` queues. A coflow leaves the first queue at the threshold `first`, and each
    /// further queue at `factor` times the previous threshold.
    ///
    /// Errors: see [`AaloError`].
    pub fn new(queues: u32, first: ByteCount, factor: u32) -> Result<Self, AaloError> {
        if !(1..=QUEUES_MAX).contains(&queues) {
            return Err(AaloError::Queues(queues));
        }
        if factor < 2 {
            return Err(AaloError::Factor(factor));
        }
        if first == ByteCount::ZERO {
            return Err(AaloError::NoThreshold);
        }
        let threshold = |at: u32| 8.0 * first.as_u64() as f64 * f64::from(factor).powi(at as i32);
        Ok(Self {
            thresholds_bits: (0..queues - 1).map(threshold).collect(),
            coflows: BTreeMap::new(),
            flows: Vec::new(),
            plan: Plan::default(),
            filling: FillBuffers::default(),
            falls: None,
        })
    }

    /// Returns the queue, starting at 0, that a coflow with active flows had at the last decision.
    pub fn queue(&self, coflow: CoflowId) -> Option<usize> {
        self.coflows.get(&coflow).map(|sent| sent.queue)
    }

    /// Updates the sent bytes and the queue of each coflow. Returns the order of coflows: by queue,
    /// then by arrival.
    fn order(&mut self, active: &ActiveFlows) -> Vec<(usize, CoflowId)> {
        let was = std::mem::take(&mut self.coflows);
        let mut order: Vec<(usize, Instant, CoflowId)> = Vec::new();
        for coflow in active.coflows() {
            let (arrived, all_bits) = active.coflow_so_far(coflow).expect("it has active flows");
            let left_bits: f64 = active.flows_of(coflow).iter().map(|id| active.remaining_bits(*id)).sum();
            let bits = all_bits - left_bits;
            let crossed = |threshold: &f64| bits >= threshold * (1.0 - AT_THRESHOLD);
            // The coflow id may have been reused by a new coflow since then.
            let was = was.get(&coflow).filter(|was| arrived <= was.since).map_or(0, |was| was.queue);
            let queue = self.thresholds_bits.partition_point(crossed).max(was);
            self.coflows.insert(coflow, SentVolume { bits, bps: 0.0, since: active.now(), queue });
            order.push((queue, arrived, coflow));
        }
        order.sort_unstable();
        order.into_iter().map(|(queue, _, coflow)| (queue, coflow)).collect()
    }

    /// Recomputes all rates.
    fn share(&mut self, active: &mut ActiveFlows) {
        let order = self.order(active);
        let Self { coflows, flows, plan, filling, thresholds_bits, .. } = self;
        plan.begin(active);
        let queues: Vec<&[(usize, CoflowId)]> = order.chunk_by(|a, b| a.0 == b.0).collect();
        let weight = |queue: usize| (thresholds_bits.len() + 1 - queue) as f64;
        let links = active.network().links();
        let mut weights = vec![0.0; links];
        // Links with flows, by queue.
        let mut is_on = vec![vec![false; links]; queues.len()];
        for (queue, is_on) in queues.iter().zip(&mut is_on) {
            let there = queue.iter().flat_map(|(_, coflow)| active.flows_of(*coflow));
            there.flat_map(|id| active.route(*id)).for_each(|link| is_on[link.0 as usize] = true);
            let there = weights.iter_mut().zip(is_on).filter(|(_, is_on)| **is_on);
            there.for_each(|(all, _)| *all += weight(queue[0].0));
        }
        let mut group: Vec<(FlowId, f64)> = Vec::new();
        for queue in &queues {
            let part =
                |link: usize| active.rate_bps(LinkId(link as u32)) * weight(queue[0].0) / weights[link];
            let mut left_bps: Vec<f64> = (0..links).map(part).collect();
            for (_, coflow) in *queue {
                group.extend(active.flows_of(*coflow).iter().map(|id| (*id, 1.0)));
                filling.fill(active, &mut group, |link| left_bps[link.0 as usize]);
                for (id, bps) in group.drain(..) {
                    plan.give(active, id, bps);
                    active.route(id).for_each(|link| left_bps[link.0 as usize] -= bps);
                }
            }
        }
        for (_, coflow) in &order {
            let hungry = active.flows_of(*coflow).iter().filter(|id| plan.most_bps(active, **id) > 0.0);
            group.extend(hungry.map(|id| (*id, 1.0)));
            filling.fill(active, &mut group, |link| plan.left_bps(link));
            group.drain(..).for_each(|(id, bps)| plan.give(active, id, bps));
        }
        plan.set(active);
        flows.resize(active.ids_end(), (0, 0.0));
        for ((_, coflow), rank) in order.iter().zip(0..) {
            let sent = coflows.get_mut(coflow).expect("it is in the order");
            for id in active.flows_of(*coflow) {
                flows[id.0 as usize] = (rank, plan.bps(*id));
                sent.bps += plan.bps(*id);
            }
        }
    }

    /// Returns the time at which the first coflow reaches a threshold.
    fn first_fall(&self) -> Option<Instant> {
        let falls = |sent: &SentVolume| {
            let threshold = self.thresholds_bits.get(sent.queue)?;
            let ps = ((threshold - sent.bits).max(0.0) / sent.bps * 1e12).ceil();
            // The condition also excludes coflows without progress, whose time is NaN or infinite.
            (ps < 1e19).then(|| sent.since + Duration::from_ps(ps as u64))
        };
        self.coflows.values().filter_map(falls).min()
    }
}

impl Allocator for Aalo {
    /// Cost: when shares are recomputed, some passes over the routes of all active flows; otherwise
    /// the flows on the links of completed flows, and the number of coflows.
    fn allocate(&mut self, event: &Event, active: &mut ActiveFlows) {
        let now = active.now();
        let has_gone = |id: &FlowId| active.flows_of(active.coflow(*id)).is_empty();
        let is_same =
            event.arrived.is_empty() && event.grown.is_empty() && !event.completed.iter().any(has_gone);
        if is_same && self.falls.is_none_or(|falls| falls > now) {
            let Self { coflows, flows, filling, .. } = self;
            let mut add = |active: &ActiveFlows, id: FlowId, more_bps: f64| {
                let sent = coflows.get_mut(&active.coflow(id)).expect("it has active flows");
                sent.settle(now);
                // Rounding may make the rate negative, which would move the coflow to the next
                // queue at once.
                sent.bps = (sent.bps + more_bps).max(0.0);
            };
            for id in &event.completed {
                add(active, *id, -std::mem::take(&mut flows[id.0 as usize].1));
            }
            let mut more: Vec<(FlowId, f64)> = Vec::new();
            filling.fill_after(
                event,
                active,
                |id| (flows[id.0 as usize].0, 1.0),
                |active, id, more_bps| {
                    add(active, id, more_bps);
                    more.push((id, more_bps));
                },
            );
            more.into_iter().for_each(|(id, more_bps)| flows[id.0 as usize].1 += more_bps);
        } else {
            self.share(active);
        }
        self.falls = self.first_fall();
    }

    fn next_decision(&self, _: &ActiveFlows) -> Option<Instant> {
        self.falls
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run;
    use crate::testing::{keeps_the_laws, networks, on_one_link};
    use proptest::prelude::*;

    /// Checks that coflows change their queue exactly at the thresholds.
    struct ThresholdCheck {
        inner: Aalo,
        /// Changes of queues: coflow, queue and time.
        fell: Vec<(CoflowId, usize, Instant)>,
    }

    impl ThresholdCheck {
        fn new(inner: Aalo) -> Self {
            Self { inner, fell: Vec::new() }
        }
    }

    impl Allocator for ThresholdCheck {
        fn allocate(&mut self, event: &Event, active: &mut ActiveFlows) {
            let before: Vec<Option<usize>> = active.coflows().map(|id| self.inner.queue(id)).collect();
            let wakes = self.inner.falls == Some(active.now());
            let mut is_at = false;
            self.inner.allocate(event, active);
            for (coflow, was) in active.coflows().collect::<Vec<_>>().into_iter().zip(before) {
                let (_, all_bits) = active.coflow_so_far(coflow).expect("it is there");
                let flows = active.flows_of(coflow).iter();
                let sent_bits = all_bits - flows.map(|id| active.remaining_bits(*id)).sum::<f64>();
                let queue = self.inner.queue(coflow).expect("it is there");
                let thresholds = &self.inner.thresholds_bits;
                let is_beyond = |at: usize| sent_bits >= thresholds[at] * (1.0 - 2.0 * AT_THRESHOLD);
                assert!(queue == 0 || is_beyond(queue - 1), "{coflow:?}: {sent_bits} bits, queue {queue}");
                let most_bits =
                    thresholds.get(queue).map_or(f64::INFINITY, |most| most * (1.0 + 1e-6) + 1e-3);
                assert!(sent_bits <= most_bits, "{coflow:?}: {sent_bits} bits, queue {queue}");
                // Rounding may leave the coflow just short of its threshold at the decision.
                is_at |= thresholds.get(queue).is_some_and(|most| sent_bits >= most * (1.0 - 1e-6));
                if was.is_some_and(|was| was != queue) {
                    is_at = true;
                    self.fell.push((coflow, queue, active.now()));
                }
            }
            let nothing = event.arrived.is_empty() && event.grown.is_empty() && event.completed.is_empty();
            assert!(!(wakes && nothing) || is_at, "nobody is at a threshold at {:?}", active.now());
        }
        fn next_decision(&self, active: &ActiveFlows) -> Option<Instant> {
            self.inner.next_decision(active)
        }
    }

    fn small() -> Aalo {
        Aalo::new(4, ByteCount::new(1_000), 10).expect("within limits")
    }

    proptest! {
        #[test]
        fn aalo_is_work_conserving_and_demotes_at_thresholds((network, flows) in networks()) {
            keeps_the_laws(&network, &flows, ThresholdCheck::new(small()), false);
        }
    }

    #[test]
    fn queues_share_by_weight_and_serve_in_arrival_order() {
        // At 1 Mb/s the first coflow enters the second queue after 1000 bytes, at 8 ms. The second
        // coflow arrives at this time and gets 4/7 of the rate.
        let (network, flows) = on_one_link(&[(10_000, 0), (5_000, 8), (5_000, 9)]);
        let mut watched = ThresholdCheck::new(small());
        let outcome = run(&network, &flows, &mut watched).expect("it ends");
        let at = |us: u64| Instant::ZERO + Duration::from_us(us);
        // The second coflow reaches its threshold after 8000 bits at 4/7 Mb/s, which takes 14 ms.
        // Then the third coflow gets 4/7 and reaches its threshold 14 ms later. The first coflow
        // has moved 8000 + 12,000 bits by then and gets the whole link, because it arrived first;
        // the second and third coflow have 32,000 bits left each.
        let fell: Vec<_> = watched.fell.iter().map(|(coflow, queue, at)| (coflow.0, *queue, *at)).collect();
        assert_eq!(fell, [(0, 1, at(8_000)), (1, 1, at(22_000)), (2, 1, at(36_000))]);
        let done: Vec<_> = outcome.flows.iter().map(|flow| flow.completed).collect();
        assert_eq!(done, [at(96_000), at(128_000), at(160_000)]);
    }

    #[test]
    fn invalid_queues_are_refused() {
        let first = ByteCount::new(1);
        assert!(Aalo::new(1, first, 2).is_ok() && Aalo::new(QUEUES_MAX, first, 2).is_ok());
        let error = |queues, first, factor| Aalo::new(queues, first, factor).expect_err("refused");
        assert_eq!(error(0, first, 2), AaloError::Queues(0));
        assert_eq!(error(65, first, 2).to_string(), "65 queues: must be 1 to 64");
        assert_eq!(error(1, first, 1), AaloError::Factor(1));
        assert_eq!(error(1, ByteCount::ZERO, 2), AaloError::NoThreshold);
    }
}
