//! Joint planning: which transfers are planned together, when, and when running transfers are
//! planned again.
//!
//! A transfer with an attempt to plan waits for a short time for other transfers, to be planned
//! together with them. This wait is rarely longer than the sites take to report their data
//! ([`JointConfig::gather`], [`JointConfig::gather_max`]). Running transfers keep their plans, and
//! the new plan takes them into account.
//!
//! Running transfers are planned again under two conditions. First, the smallest rate gains
//! [`JointConfig::gain_min`], or the sum of rates gains that much and the smallest rate does not
//! fall. Second, each running transfer still needs [`JointConfig::left_min`]. The transfers are
//! then stopped, and all are planned at once when their sites have reported their data. The gain is
//! computed when a transfer starts or ends, when a measured capacity changes, and when a transfer
//! may leave a new plan. A transfer that was planned again keeps its plan for some time
//! ([`JointConfig::again`]), and a
//! store-and-forward attempt keeps its plan to its end.
//!
//! A joint plan is valid only if no transfer exceeds its share, so each source limits its rate to
//! the share. TCP alone would divide links equally among flows.
//!
//! Leaves out: capacity that users' rate limits and priorities leave to others. Read
//! [`JointConfig`] first.

#[cfg(test)]
mod tests;

#[cfg(doc)]
use super::request::JointConfig;
use super::transfer::Transfer;
use super::{Coordinator, PlanRequest, Planner, SchemeChoice, TransferId};
use crate::plan::{Plan, fairer, fairer_by, share_flows_under};
use anabranch_units::{BitRate, ByteCount, Instant, LinkId, SiteId};

const NOTHING: BitRate = BitRate::bps(0);

/// A transfer that needs a plan.
pub(super) struct Demand {
    pub id: TransferId,
    pub source: SiteId,
    pub targets: Vec<SiteId>,
    pub avoid_sites: Vec<SiteId>,
    pub avoid_links: Vec<LinkId>,
    pub scheme: SchemeChoice,
    pub fill: bool,
    /// Whether this attempt is the transfer's first.
    pub fresh: bool,
}

/// A running transfer.
pub(super) struct RunningDemand {
    pub demand: Demand,
    pub plan: Plan,
    pub ceiling: Option<BitRate>,
    pub left: ByteCount,
    /// End of the time in which it keeps its plan. `None` if it was not planned again, or if this
    /// time is past.
    pub keeps_until: Option<Instant>,
}

/// Plans for some transfers, and the resulting rates of all running transfers: the planned
/// transfers first, then the others.
struct Solution {
    plans: Vec<Result<Plan, String>>,
    /// Whether the plans were made together, so that sources must keep to their rates.
    joint: bool,
    rates: Vec<BitRate>,
}

impl Solution {
    /// Text such as "3 Mbit/s, 8 Mbit/s in all".
    fn text(&self) -> String {
        let all: u64 = self.rates.iter().map(|r| r.as_bps()).sum();
        format!("{}, {} in all", self.rates.iter().min().copied().unwrap_or(NOTHING), BitRate::bps(all))
    }
}

impl<P: Planner> Coordinator<P> {
    /// Plans the waiting transfers, if they have waited long enough.
    pub(super) fn plan_waiting(&mut self) {
        let Some(joint) = self.config.joint.clone() else { return };
        let look = self.look_at.take_if(|t| *t <= self.now).is_some();
        let inquiring = self.transfers.values().any(Transfer::inquires);
        let due = self.transfers.values_mut().any(|t| t.plan_is_due(self.now, inquiring));
        if !due && !look {
            return;
        }
        let ids: Vec<TransferId> = self.transfers.keys().copied().collect();
        let mut waiting: Vec<Demand> = Vec::new();
        let mut busy: Vec<RunningDemand> = Vec::new();
        for id in ids {
            if due {
                waiting.extend(self.with(id, Transfer::waiting_demand).flatten());
            }
            busy.extend(self.with(id, |t, cx| t.busy(cx)).flatten());
        }
        if waiting.len() + busy.len() > joint.transfers_max {
            for demand in &waiting {
                self.with(demand.id, |t, cx| t.install_waiting(cx, None, &[]));
            }
            return;
        }
        let demands: Vec<&Demand> = waiting.iter().collect();
        let keep = self.best(&demands, &busy.iter().collect::<Vec<_>>());
        if look || waiting.iter().any(|d| d.fresh) {
            self.look_at = busy.iter().filter_map(|b| b.keeps_until).chain(self.look_at).min();
            let rate_of = |at: usize| keep.rates[waiting.len() + at];
            let (moved, kept): (Vec<_>, Vec<_>) = busy.iter().enumerate().partition(|(at, b)| {
                let rate = rate_of(*at);
                // A switch loses all flows that relays of a store-and-forward plan have stored.
                !b.plan.store_and_forward
                    && b.keeps_until.is_none()
                    && rate.as_bps() > 0
                    && rate.transmit_time(b.left) >= joint.left_min
            });
            let moved: Vec<&RunningDemand> = moved.into_iter().map(|(_, b)| b).collect();
            let kept: Vec<&RunningDemand> = kept.into_iter().map(|(_, b)| b).collect();
            let all: Vec<&Demand> = demands.iter().copied().chain(moved.iter().map(|b| &b.demand)).collect();
            if !moved.is_empty() {
                let switch = self.best(&all, &kept);
                let all_planned = switch.plans.iter().all(Result::is_ok);
                if all_planned && fairer_by(joint.gain_min, &switch.rates, &keep.rates) {
                    let until = self.now + joint.switch;
                    for demand in &demands {
                        self.with(demand.id, |t, _| t.wait_for_others(until));
                    }
                    let reason = match &switch.rates[..] {
                        [rate] => format!("planned anew for {rate} instead of {}", keep.rates[0]),
                        rates => format!(
                            "{} at once are planned anew: the slowest gets {} instead of {}",
                            rates.len(),
                            switch.text(),
                            keep.text()
                        ),
                    };
                    for busy in moved {
                        self.with(busy.demand.id, |t, cx| t.plan_anew(cx, reason.clone()));
                    }
                    return;
                }
            }
        }
        let everybody: Vec<TransferId> =
            waiting.iter().map(|d| d.id).chain(busy.iter().map(|b| b.demand.id)).collect();
        for (demand, plan) in waiting.iter().zip(keep.plans) {
            let with: Vec<TransferId> =
                everybody.iter().copied().filter(|id| keep.joint && *id != demand.id).collect();
            self.with(demand.id, |t, cx| t.install_waiting(cx, plan.ok(), &with));
        }
    }

    /// Plans `demands` while `others` run. Returns the joint plan, unless separate plans give the
    /// slowest transfer a higher rate.
    fn best(&self, demands: &[&Demand], others: &[&RunningDemand]) -> Solution {
        let requests: Vec<PlanRequest<'_>> = demands
            .iter()
            .map(|d| PlanRequest {
                topology: &self.topology,
                source: d.source,
                destinations: &d.targets,
                avoid_sites: &d.avoid_sites,
                avoid_links: &d.avoid_links,
                scheme: d.scheme,
                fill: d.fill,
            })
            .collect();
        let alone = self.solution(requests.iter().map(|r| self.planner.plan(r)).collect(), others, false);
        if demands.len() + others.len() < 2 {
            return alone;
        }
        let fixed: Vec<&Plan> = others.iter().map(|b| &b.plan).collect();
        let together = self.solution(self.planner.plan_together(&requests, &fixed), others, true);
        let count = |s: &Solution| s.plans.iter().filter(|p| p.is_ok()).count();
        if count(&together) != count(&alone) {
            return if count(&together) > count(&alone) { together } else { alone };
        }
        if fairer(&together.rates, &alone.rates) { together } else { alone }
    }

    fn solution(&self, plans: Vec<Result<Plan, String>>, others: &[&RunningDemand], joint: bool) -> Solution {
        let capacities: Vec<u64> =
            self.topology.links().iter().map(|l| l.properties.capacity.as_bps()).collect();
        let (mut known, mut ceilings): (Vec<&Plan>, Vec<Option<BitRate>>) = (Vec::new(), Vec::new());
        for plan in plans.iter().flatten() {
            known.push(plan);
            ceilings.push(ceiling(plan, joint));
        }
        known.extend(others.iter().map(|b| &b.plan));
        ceilings.extend(others.iter().map(|b| b.ceiling));
        let fits = known.iter().flat_map(|p| &p.flows).all(|f| f.link.index() < capacities.len());
        let mut found = if fits {
            share_flows_under(&capacities, &known, &ceilings).into_iter()
        } else {
            // A plan with an unknown link gets no rate; its installation is refused later.
            vec![NOTHING; known.len()].into_iter()
        };
        // A transfer without a plan has no rate.
        let mut rates: Vec<BitRate> =
            plans.iter().map(|p| p.as_ref().map_or(NOTHING, |_| found.next().unwrap_or(NOTHING))).collect();
        rates.extend(found);
        Solution { plans, joint, rates }
    }
}

/// Maximum rate at which the source may send a file: the planned rate if the plan was made together
/// with other transfers' plans.
pub(super) fn ceiling(plan: &Plan, joint: bool) -> Option<BitRate> {
    // A filling group has no planned rate and no limit.
    let bulk = plan.groups.iter().filter(|g| g.fills.is_none());
    // With store-and-forward, each hop needs its whole link, but not at the same time as the other
    // hops.
    (joint && bulk.count() == 1 && !plan.store_and_forward).then_some(plan.rate)
}
