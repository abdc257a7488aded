//! Sincronia: coflows are served in an order that is derived from bottlenecks, from the last coflow
//! to the first; rates are greedy in this order.
//!
//! Source: Agarwal et al., *Sincronia: Near-Optimal Network Design for Coflows* (SIGCOMM 2018),
//! section 3: BSSI (bottleneck, select, scale, iterate) finds an order in which the completion
//! times are at most four times the optimum if rates are greedy in the order. All coflows have
//! equal weight. Sincronia knows the volumes of flows that have arrived, but no future flows.
//! Differs: the order is computed from the remaining volumes when a flow arrives or grows, and is
//! kept until the next arrival or growth; the paper's online version delays coflows to epochs of
//! doubling length, for its proof. A link's load is in seconds, because links have different rates.
//! Within a coflow the order is free; here flows with larger volumes come first.

use crate::active::ActiveFlows;
use crate::allocator::{Allocator, Event};
use crate::greedy::GreedyRates;
use crate::network::CoflowId;

/// Sincronia's state.
#[derive(Clone, Debug, Default)]
pub struct Sincronia {
    greedy: GreedyRates,
    /// Order keys, by flow.
    keys: Vec<u64>,
}

impl Allocator for Sincronia {
    /// Cost: when a flow arrives or grows, a pass over all active flows, and for each coflow the
    /// links of all coflows; otherwise, for each flow whose rate changes, the routes that use its
    /// links.
    fn allocate(&mut self, event: &Event, active: &mut ActiveFlows) {
        let Self { greedy, keys } = self;
        if event.arrived.is_empty() && event.grown.is_empty() {
            return greedy.allocate(event, active, |_, id| keys[id.0 as usize]);
        }
        keys.resize(active.ids_end(), 0);
        for (coflow, rank) in order(active).into_iter().zip(0u64..) {
            for id in active.flows_of(coflow) {
                // Volumes are not negative, so they sort like their bits.
                let volume = (active.volume_bits(*id) as f32).to_bits();
                keys[id.0 as usize] = rank << 32 | u64::from(!volume);
            }
        }
        greedy.restart(active, |_, id| keys[id.0 as usize]);
    }
}

/// A coflow without a position yet: its weight, and its load in seconds on each link.
struct UnorderedCoflow {
    coflow: CoflowId,
    weight: f64,
    load_s: Vec<f64>,
}

/// Returns BSSI's order of the coflows, from first to last. Of equally loaded links, the link with
/// the lowest id is the bottleneck. Of equal coflows, the coflow with the highest id comes last.
fn order(active: &ActiveFlows) -> Vec<CoflowId> {
    let links = active.network().links();
    let mut total_s = vec![0.0; links];
    let mut left: Vec<UnorderedCoflow> = Vec::new();
    for coflow in active.coflows() {
        let mut load_s = vec![0.0; links];
        for id in active.flows_of(coflow) {
            let bits = active.remaining_bits(*id);
            active.route(*id).for_each(|link| load_s[link.0 as usize] += bits / active.rate_bps(link));
        }
        total_s.iter_mut().zip(&load_s).for_each(|(total, load)| *total += load);
        left.push(UnorderedCoflow { coflow, weight: 1.0, load_s });
    }
    let mut backwards = Vec::with_capacity(left.len());
    while !left.is_empty() {
        let longest = |best: usize, at: usize| if total_s[at] > total_s[best] { at } else { best };
        let bottleneck = (0..links).reduce(longest).expect("flows cross links");
        // Compares the weight per second of load on the bottleneck, without a division by 0.
        let is_lighter = |a: &UnorderedCoflow, b: &UnorderedCoflow| {
            a.weight * b.load_s[bottleneck] <= b.weight * a.load_s[bottleneck] && a.load_s[bottleneck] > 0.0
        };
        let lightest = |best: usize, at: usize| {
            if is_lighter(&left[at], &left[best]) || left[best].load_s[bottleneck] <= 0.0 { at } else { best }
        };
        let last = (0..left.len()).reduce(lightest).expect("some are left");
        let last = left.remove(last);
        let seconds = last.load_s[bottleneck];
        total_s.iter_mut().zip(&last.load_s).for_each(|(total, load)| *total -= load);
        if seconds > 0.0 {
            for other in &mut left {
                let scaled = other.weight - last.weight * other.load_s[bottleneck] / seconds;
                other.weight = scaled.max(0.0);
            }
        }
        backwards.push(last.coflow);
    }
    backwards.reverse();
    backwards
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::greedy::tests::GreedyCheck;
    use crate::testing::{keeps_the_laws, networks};
    use crate::{FlowId, LinkId, Network};
    use anabranch_units::{BitRate, ByteCount};
    use proptest::prelude::*;

    /// An exact weight: numerator and denominator.
    type Weight = (i128, i128);

    fn reduced((above, below): Weight) -> Weight {
        let (mut a, mut b) = (above.abs(), below.abs());
        while b > 0 {
            (a, b) = (b, a % b);
        }
        (above / a.max(1), below / a.max(1))
    }

    /// Returns true if BSSI as in the paper, in exact arithmetic, can produce this order of coflows
    /// with some choice among equal coflows. `loads` are indexed by coflow and link.
    fn oracle_is_bssi(order: &[usize], loads: &[Vec<i128>], weights: &[Weight]) -> bool {
        let Some((last, before)) = order.split_last() else { return true };
        let total = |link: usize| order.iter().map(|coflow| loads[*coflow][link]).sum::<i128>();
        let longest = (0..loads[0].len()).map(total).max().expect("there are links");
        if longest == 0 {
            return true;
        }
        let is_found = |link: usize| {
            let there = order.iter().filter(|coflow| loads[**coflow][link] > 0);
            // The last coflow has the lowest weight per load.
            let is_least = |other: &usize| {
                let ((a, b), (c, d)) = (weights[*last], weights[*other]);
                a * d * loads[*other][link] <= c * b * loads[*last][link]
            };
            if total(link) < longest || loads[*last][link] == 0 || !there.clone().all(is_least) {
                return false;
            }
            let scaled = |(other, (c, d)): (usize, &Weight)| {
                let (a, b) = weights[*last];
                let (load, by) = (loads[other][link], loads[*last][link]);
                reduced((c * b * by - a * load * d, d * b * by))
            };
            let weights: Vec<Weight> = weights.iter().enumerate().map(scaled).collect();
            oracle_is_bssi(before, loads, &weights)
        };
        (0..loads[0].len()).any(is_found)
    }

    proptest! {
        #[test]
        fn sincronia_is_work_conserving_and_greedy_in_its_order((network, flows) in networks()) {
            let key = |inner: &Sincronia, _: &ActiveFlows, id: FlowId| inner.keys[id.0 as usize];
            keeps_the_laws(&network, &flows, GreedyCheck { inner: Sincronia::default(), key }, false);
        }

        #[test]
        fn order_is_a_possible_result_of_bssi(rows in proptest::collection::vec((0u32..5, 0u32..3, 0u32..3, 0u64..20), 1..14)) {
            let network = Network::big_switch(3, BitRate::mbps(1)).expect("it has a rate");
            let mut active = ActiveFlows::new(network);
            let mut loads = vec![vec![0i128; 6]; 5];
            for (coflow, from, to, bytes) in &rows {
                let route = Network::through_switch(3, *from, *to);
                active.insert(CoflowId(*coflow), &route, ByteCount::new(*bytes));
                route.iter().for_each(|LinkId(link)| loads[*coflow as usize][*link as usize] += i128::from(*bytes));
            }
            let order: Vec<usize> = order(&active).iter().map(|id| id.0 as usize).collect();
            prop_assert_eq!(order.len(), active.coflows().count());
            prop_assert!(oracle_is_bssi(&order, &loads, &[(1, 1); 5]), "{order:?} for {loads:?}");
        }
    }
}
