//! Slow destinations, which are served after the other ones.
//!
//! Leaves out: slow links, whose capacity is measured (`capacities`). Read
//! `Transfer::look_for_slow` first.

use super::capacities::slow_hop;
use super::{AvoidedResource, Context, LEVEL_MAX, Phase, Plan, RunningAttempt, Transfer};
use crate::coordinator::{BitRate, Duration, EventKind, SiteId};
use crate::plan::FileToSend;
use anabranch_units::ByteCount;
use std::collections::BTreeMap;

/// Size of a file for shares of links, which do not depend on it.
const ANY_SIZE: ByteCount = ByteCount::new(1 << 30);

impl RunningAttempt {
    /// Expected rate of a destination, with measured capacities.
    fn expected_rate(&self, site: SiteId) -> BitRate {
        self.expected.get(&site).copied().unwrap_or(self.plan.rate)
    }
    /// The same, but at most `limited`.
    fn rate_within(&self, site: SiteId, limited: Option<BitRate>) -> BitRate {
        let expected = self.expected_rate(site);
        limited.map_or(expected, |limited| limited.min(expected))
    }
}

impl Transfer {
    /// Postpones a destination that keeps all others below half of the planned rate, if the flows
    /// wait only for this destination.
    ///
    /// A plan uses only the capacities that were declared or measured before, so all destinations
    /// may be slower than planned without any fault. Rates do not identify the slow destination,
    /// because the slowest destination sets the rate of all. The indicator is the time for which
    /// each destination delayed the flows. Equally slow destinations delay the flows for about the
    /// same time.
    pub(super) fn look_for_slow(&mut self, cx: &mut Context<'_>) {
        let (now, hold, share, blocked_min) =
            (cx.now, cx.config.slow_hold, cx.config.slow_share, cx.config.slow_blocked);
        let levels: BTreeMap<SiteId, u8> = self.destinations.iter().map(|d| (d.site, d.level)).collect();
        let Phase::Running(r) = &mut self.phase else { return };
        let open: Vec<SiteId> = r.sinks.iter().filter(|(_, s)| !s.done).map(|(site, _)| *site).collect();
        if let [only] = open[..] {
            return self.look_for_slow_class(cx, only);
        }
        // If sites store all data before they pass it on, a wait for another site is by design.
        if open.is_empty() || r.plan.store_and_forward {
            return;
        }
        let limited = limited_rate(&r.plan, cx, self.request.bandwidth_limit);
        let blocked: BTreeMap<SiteId, bool> = open
            .iter()
            .map(|&site| {
                let inputs = r
                    .plan
                    .groups
                    .iter()
                    // Filling flows are blocked or idle regardless of the destination.
                    .filter(|g| g.fills.is_none())
                    .flat_map(|g| &g.sinks)
                    .filter(|s| s.site == site)
                    .flat_map(|s| &s.inputs);
                let mut any = false;
                let all = inputs
                    .map(|f| r.flows.get(f).is_some_and(|(_, b)| *b >= blocked_min))
                    .inspect(|_| any = true)
                    .all(|b| b);
                (site, all && any)
            })
            .collect();
        let everyone_blocked = blocked.values().all(|b| *b);
        let passed = now.saturating_since(std::mem::replace(&mut r.looked_at, now));
        for site in &open {
            let sink = r.sinks.get_mut(site).expect("open is taken from sinks");
            if sink.stalled >= blocked_min || blocked[site] && !everyone_blocked {
                sink.held += passed;
            }
        }
        let helds: BTreeMap<SiteId, Duration> =
            open.iter().map(|&site| (site, r.sinks[&site].held)).collect();
        let rates: BTreeMap<SiteId, u64> =
            open.iter().map(|&site| (site, r.sinks[&site].rate_bps(now))).collect();
        let mut worst: Option<(SiteId, bool, u64)> = None;
        for &site in &open {
            let rate = rates[&site];
            let least = r.rate_within(site, limited).as_bps() as f64 * share;
            let held = rates.iter().filter(|(s, _)| **s != site).all(|(_, rate)| (*rate as f64) < least);
            let sink = r.sinks.get_mut(&site).expect("open is taken from sinks");
            let disk = sink.stalled >= blocked_min;
            if !held || !(disk || (blocked[&site] && !everyone_blocked)) {
                sink.slow_since = None;
                continue;
            }
            let since = *sink.slow_since.get_or_insert(now);
            let least = helds.iter().filter(|(s, _)| **s != site).map(|(_, held)| *held).min();
            if least.is_some_and(|least| sink.held < hold + least + least) {
                continue;
            }
            // A stalled disk is the more reliable sign. Of destinations with the same sign, the
            // slowest is postponed.
            if now.saturating_since(since) >= hold
                && levels.get(&site).is_some_and(|l| *l < LEVEL_MAX)
                && worst.is_none_or(|(_, d, r)| (disk, std::cmp::Reverse(rate)) > (d, std::cmp::Reverse(r)))
            {
                worst = Some((site, disk, rate));
            }
        }
        let Some((slow, disk, rate)) = worst else { return };
        let (run, name) = (r.run, cx.name(slow).to_owned());
        let cause = slow_hop(cx, &r.plan, slow).filter(|_| !disk).unwrap_or_else(|| {
            let takes = if disk { "writes" } else { "is reached with" };
            format!("{name} {takes} {}, {} was expected", BitRate::bps(rate), r.expected_rate(slow))
        });
        if !disk {
            let tired = self.tired_sites.entry(slow).or_insert(AvoidedResource::new(now, self.id));
            tired.tire(now, run, cx.config);
        }
        self.postpone(cx, slow, &cause);
    }

    /// Ends the attempt, and serves a slow destination after the other ones. This is no failure:
    /// the same transfer continues in another order.
    fn postpone(&mut self, cx: &mut Context<'_>, slow: SiteId, cause: &str) {
        let reason = format!("{cause}: sending to the others first, {} after them", cx.name(slow));
        if let Some(d) = self.target_mut(slow) {
            d.level += 1;
        }
        self.event(cx, EventKind::Postponed { site: slow, reason });
        self.remove_attempt(cx);
    }

    /// Postpones the last open destination of a class that stays below half of its planned rate,
    /// if destinations of other classes wait for it.
    fn look_for_slow_class(&mut self, cx: &mut Context<'_>, only: SiteId) {
        let (now, hold, share) = (cx.now, cx.config.slow_hold, cx.config.slow_share);
        let limit = self.request.bandwidth_limit;
        let waiting: Vec<SiteId> =
            self.destinations.iter().filter(|d| self.waits(cx, d)).map(|d| d.site).collect();
        let may = self.head.class.is_some()
            && self.destinations.iter().any(|d| d.site == only && d.level < LEVEL_MAX);
        let Phase::Running(r) = &mut self.phase else { return };
        let may = may && waiting.iter().any(|site| !r.sinks.contains_key(site));
        let expected = r.expected_rate(only);
        let least = r.rate_within(only, limited_rate(&r.plan, cx, limit)).as_bps() as f64 * share;
        let sink = r.sinks.get_mut(&only).expect("callers found it there");
        let rate = sink.rate_bps(now);
        if !may || rate as f64 >= least {
            sink.slow_since = None;
            return;
        }
        if now.saturating_since(*sink.slow_since.get_or_insert(now)) >= hold {
            let (name, rate) = (cx.name(only).to_owned(), BitRate::bps(rate));
            self.postpone(cx, only, &format!("{name} is reached with {rate}, {expected} was expected"));
        }
    }
}

/// Rate to which a user's limit of all copies of the source holds a plan; `None` without a limit.
fn limited_rate(plan: &Plan, cx: &Context<'_>, limit: Option<BitRate>) -> Option<BitRate> {
    let file = FileToSend { size: ANY_SIZE, limit };
    limit.and_then(|_| file.by(plan, cx.topology).limited)
}
