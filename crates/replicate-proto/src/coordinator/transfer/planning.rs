//! Preparation of an attempt: the sites that are asked for their data, the sites that are served,
//! the sites and links that the plan avoids, and the transfers that are planned with it.
//!
//! Leaves out: planning itself ([`crate::coordinator::Planner`]), and the programs that follow from
//! a plan.

use super::programs::usable;
use super::{
    AvoidedResource, Context, FinishedFile, OutageKind, Phase, STRIKES_MAX, Target, Transfer, one_line,
};
use crate::control::Attempt;
use crate::coordinator::classes::{CLASSES_MAX, next_class};
use crate::coordinator::joint_planning::{Demand, RunningDemand};
use crate::coordinator::{
    Command, Duration, EventKind, Instant, LinkId, Plan, PlanRequest, Run, SiteId, TransferId, Verdict,
    ranges,
};
use anabranch_pieces::ByteRange;
use anabranch_units::ByteCount;
use std::collections::BTreeSet;

impl Transfer {
    /// Destinations that could be served now: open, up, not waiting for anything.
    fn eligible(&self, cx: &Context<'_>) -> Vec<usize> {
        let ready = |d: &Target| {
            d.open()
                && cx.up(d.site)
                && d.retry_at.is_none()
                && d.finishing.is_none()
                // A found file cannot be judged before the length of the source's file is known.
                // Until then the destination is asked again.
                && (d.found.is_none() || self.length.is_none())
                && !d.full(self.length)
        };
        (0..self.destinations.len()).filter(|&i| ready(&self.destinations[i])).collect()
    }

    pub(super) fn inquire(&mut self, cx: &mut Context<'_>, site: SiteId) {
        let run = Run { transfer: self.id, attempt: Attempt(self.attempts) };
        let is_source = site == self.request.source;
        let path = if is_source {
            self.request.source_path.clone()
        } else {
            self.destinations.iter().find(|d| d.site == site).map(|d| d.path.clone()).unwrap_or_default()
        };
        self.informed.insert(site);
        let (submitter, rules) = (self.request.submitter, self.request.rules.clone());
        cx.command(site, Command::Inquire { run, is_source, path, submitter, rules });
    }

    pub(super) fn begin(&mut self, cx: &mut Context<'_>) -> bool {
        let eligible = self.eligible(cx);
        if !cx.up(self.request.source) || eligible.is_empty() {
            self.tell_waiting(cx);
            return false;
        }
        self.last_waiting = None;
        if self.idle_attempts >= cx.config.idle_attempts_max
            || self.attempts.saturating_sub(self.crowded_attempts) >= cx.config.attempts_max
        {
            let trouble = self.last_trouble.clone().unwrap_or_else(|| "no reason is known".into());
            let reason =
                format!("{} attempts in a row moved nothing; the last: {trouble}", self.idle_attempts);
            let turn = eligible.iter().map(|&i| self.destinations[i].turn()).min();
            let given_up: Vec<_> = eligible
                .iter()
                .map(|&i| &self.destinations[i])
                .filter(|d| Some(d.turn()) == turn)
                .map(|d| (d.site, d.integrity))
                .collect();
            for (site, integrity) in given_up {
                let reason = reason.clone();
                self.decide(
                    cx,
                    site,
                    if integrity > 0 { Verdict::Integrity { reason } } else { Verdict::Failed { reason } },
                );
            }
            if self.attempts.saturating_sub(self.crowded_attempts) < cx.config.attempts_max {
                self.idle_attempts = 0;
            }
            return true;
        }
        self.attempts += 1;
        self.changed(cx);
        let run = Run { transfer: self.id, attempt: Attempt(self.attempts) };
        let mut waiting: BTreeSet<SiteId> = eligible.iter().map(|&i| self.destinations[i].site).collect();
        waiting.insert(self.request.source);
        self.event(cx, EventKind::Inquiring);
        for &site in &waiting {
            self.inquire(cx, site);
        }
        self.phase = Phase::Inquiring { run, begun: cx.now, waiting, answered: BTreeSet::new() };
        true
    }

    /// Announces the sites for which the transfer waits, the reasons, and the maximum wait; once
    /// per state.
    fn tell_waiting(&mut self, cx: &mut Context<'_>) {
        let left = |since: Instant| (since + self.site_wait(cx.config)).saturating_since(cx.now);
        let (mut names, mut causes, mut most) = (Vec::new(), Vec::new(), Duration::ZERO);
        if let Some(since) = self.source_away.filter(|_| !cx.up(self.request.source)) {
            names.push(format!("the source {}", cx.name(self.request.source)));
            most = left(since);
        } else {
            for d in self.destinations.iter().filter(|d| d.open()) {
                let Some(since) = d.unreached.as_ref().map(|u| u.since).or(d.away.as_ref().map(|a| a.0))
                else {
                    continue;
                };
                names.push(cx.name(d.site).to_owned());
                most = most.max(left(since));
                causes.extend(match (&d.unreached, &d.away) {
                    (_, Some((_, OutageKind::Down))) => None,
                    (Some(u), _) => Some(u.line.clone()),
                    (None, Some((_, OutageKind::NoPath(reason)))) => Some(reason.clone()),
                    (None, None) => None,
                });
            }
        }
        if names.is_empty() {
            return;
        }
        causes.dedup();
        let (names, causes) = (names.join(", "), causes.join("; "));
        let key = format!("{names}: {causes}");
        if self.last_waiting.as_ref() == Some(&key) {
            return;
        }
        let why = if causes.is_empty() { String::new() } else { format!(": {causes}") };
        let reason = format!("waiting for {names}, {} at most{why}", most.in_words());
        self.last_waiting = Some(key);
        self.event(cx, EventKind::Waiting { reason });
    }

    /// Ends the inquiry when all sites have answered or are overdue, and plans for the sites that
    /// answered.
    pub(super) fn end_inquiry(&mut self, cx: &mut Context<'_>) {
        let Phase::Inquiring { begun, waiting, answered, .. } =
            std::mem::replace(&mut self.phase, Phase::Idle)
        else {
            unreachable!("called only while inquiring");
        };
        self.blame_destinations(cx, &waiting, "did not send its inventory");
        if !answered.contains(&self.request.source) {
            let reason = format!("the source {} did not answer", cx.name(self.request.source));
            self.pause(cx, reason, Duration::ZERO);
            return;
        }
        self.refuse_equal_names(cx);
        let Some(length) = self.length else { return };
        let (mut others, hash) = (Vec::new(), self.hash);
        self.head.lacking.clear();
        for d in self.destinations.iter_mut().filter(|d| answered.contains(&d.site)) {
            // The found file was reported before the length was known. A different file is dropped
            // here, not after the inquiry. Otherwise every later inquiry would find a file again
            // that may be replaced.
            let is_other = |found: &mut FinishedFile| {
                found.length != length || hash.is_some_and(|hash| found.hash != hash)
            };
            let has_other = d.found.take_if(is_other).is_some();
            // Data of another snapshot is of no use here, and the site drops it.
            if self.request.is_directory() && self.head.arriving.get(&d.site).copied() != hash {
                d.have.clear();
            }
            d.have = ranges::normal(&d.have, length);
            d.add_unsettled(&self.head.unsettled.ranges, length);
            if has_other {
                others.push(d.site);
                if self.head.bytes.is_some_and(|head| !d.missing(head).is_empty()) {
                    self.head.lacking.insert(d.site);
                }
            }
            d.bytes.shown = ranges::bytes(&d.have);
        }
        for site in others {
            self.leave_alone(cx, site);
        }
        let total = self.destinations.iter().map(|d| self.shown(d)).sum();
        if self.total_before.is_some_and(|before| total > before) {
            self.idle_attempts = 0;
        }
        self.total_before = Some(total);
        let eligible: Vec<usize> = self
            .eligible(cx)
            .into_iter()
            .filter(|&i| answered.contains(&self.destinations[i].site))
            .collect();
        let turn = eligible.iter().map(|&i| self.destinations[i].turn()).min();
        let targets: Vec<SiteId> = eligible
            .iter()
            .map(|&i| &self.destinations[i])
            .filter(|d| Some(d.turn()) == turn)
            .map(|d| d.site)
            .collect();
        let targets = self.choose_class(cx, targets, length);
        if targets.is_empty() {
            return;
        }
        match &cx.config.joint {
            None => self.plan_and_install(cx, targets, length),
            Some(joint) => {
                let fresh = self.attempts == 1;
                let (first, until) = (fresh.then_some(begun + joint.gather), cx.now + joint.gather_max);
                self.phase = Phase::Planning { targets, length, first, until, fresh };
            }
        }
    }

    /// Chooses the class of a directory's bytes that the attempt serves, and returns its
    /// destinations. Without a class, the attempt serves all `targets`.
    fn choose_class(&mut self, cx: &Context<'_>, targets: Vec<SiteId>, length: u64) -> Vec<SiteId> {
        self.head.class = None;
        let head_goes_first = targets.iter().any(|site| self.head.lacking.contains(site));
        // After attempts that moved nothing, no destination waits for another one's class.
        let has_moved = self.idle_attempts < 2;
        let may = self.request.is_directory() && has_moved && self.head.classes_served < CLASSES_MAX;
        if !may || head_goes_first {
            return targets;
        }
        let served = self.destinations.iter().filter(|d| targets.contains(&d.site));
        let missing: Vec<_> = served.map(|d| (d.site, d.missing(length))).collect();
        let Some(mut class) = next_class(&missing, cx.config.surplus_bytes_min) else { return targets };
        // A site drops bytes of a stream whose head it lacks.
        let head = ByteRange { start: 0, end: self.head.bytes.unwrap_or(0).min(length) };
        let lacks_head = |d: &Target| class.destinations.contains(&d.site) && !d.missing(head.end).is_empty();
        if self.destinations.iter().any(lacks_head) {
            class.ranges = ranges::normal(&[&class.ranges[..], &[head]].concat(), length);
        }
        let targets = class.destinations.clone();
        self.head.class = Some(class);
        targets
    }

    pub(in crate::coordinator) fn inquires(&self) -> bool {
        matches!(self.phase, Phase::Inquiring { .. })
    }

    /// Whether the wait for a joint plan is over. A first attempt waits for transfers that may
    /// still be submitted. After that time, like a later attempt, it waits only while another
    /// transfer is `inquiring`.
    pub(in crate::coordinator) fn plan_is_due(&mut self, now: Instant, inquiring: bool) -> bool {
        let Phase::Planning { first, until, .. } = &mut self.phase else { return false };
        first.take_if(|t| now >= *t);
        now >= *until || first.is_none() && !inquiring
    }

    /// The demand to be planned. Returns to the inquiry if the known data has changed since.
    pub(in crate::coordinator) fn waiting_demand(&mut self, cx: &mut Context<'_>) -> Option<Demand> {
        let Phase::Planning { targets, fresh, .. } = &self.phase else { return None };
        let (fresh, asked) = (*fresh, targets.clone());
        let there: Vec<SiteId> = self
            .eligible(cx)
            .into_iter()
            .map(|i| &self.destinations[i])
            .filter(|d| d.known)
            .map(|d| d.site)
            .collect();
        if !cx.up(self.request.source) || !asked.iter().all(|t| there.contains(t)) {
            self.phase = Phase::Idle;
            return None;
        }
        Some(self.demand(cx, asked, fresh))
    }

    fn demand(&self, cx: &Context<'_>, mut targets: Vec<SiteId>, fresh: bool) -> Demand {
        targets.sort_unstable();
        let (avoid_sites, avoid_links) = self.avoided(cx, &targets);
        let (id, source, scheme) = (self.id, self.request.source, self.request.scheme);
        let fill = self.request.fill && !self.unfilled;
        Demand { id, source, targets, avoid_sites, avoid_links, scheme, fill, fresh }
    }

    /// The running transfer, if it still has data to move.
    pub(in crate::coordinator) fn busy(&self, cx: &Context<'_>) -> Option<RunningDemand> {
        let r = self.running()?;
        let open = r.sinks.iter().filter(|(_, s)| !s.done);
        let left = open.clone().map(|(_, s)| s.missing_bytes - s.verified_bytes).max()?;
        let targets = open.map(|(site, _)| *site).collect();
        let demand = self.demand(cx, targets, false);
        let (ceiling, left) = (r.ceiling, ByteCount::new(left));
        let joint = cx.config.joint.as_ref()?;
        let free_at = |(at, times)| at + joint.again.after(times - 1);
        let keeps_until = self.replanned.map(free_at).filter(|t| *t > cx.now);
        Some(RunningDemand { demand, plan: r.plan.clone(), ceiling, left, keeps_until })
    }

    /// Installs a joint plan, made with the transfers in `with`. Without a plan, plans this
    /// transfer alone.
    pub(in crate::coordinator) fn install_waiting(
        &mut self,
        cx: &mut Context<'_>,
        plan: Option<Plan>,
        with: &[TransferId],
    ) {
        let (targets, length) = match std::mem::replace(&mut self.phase, Phase::Idle) {
            Phase::Planning { targets, length, .. } => (targets, length),
            // The transfer has ended in the meantime.
            other => {
                self.phase = other;
                return;
            }
        };
        let mut sorted = targets.clone();
        sorted.sort_unstable();
        let (avoid_sites, avoid_links) = self.avoided(cx, &sorted);
        match plan {
            Some(plan)
                if usable(&plan, cx, self.request.source, &sorted, &avoid_sites, &avoid_links).is_ok() =>
            {
                for d in self.destinations.iter_mut().filter(|d| sorted.contains(&d.site)) {
                    d.away = None;
                }
                self.install(cx, plan, length, with);
            }
            _ => self.plan_and_install(cx, targets, length),
        }
    }

    /// Waits until other running transfers are stopped and can be planned together with this one.
    pub(in crate::coordinator) fn wait_for_others(&mut self, new: Instant) {
        if let Phase::Planning { first, until, fresh, .. } = &mut self.phase {
            (*first, *until, *fresh) = (None, new, false);
        }
    }

    /// Stops the attempt, without a failure, to plan it together with other transfers.
    pub(in crate::coordinator) fn plan_anew(&mut self, cx: &mut Context<'_>, reason: String) {
        if self.running().is_none() {
            return;
        }
        self.replanned = Some((cx.now, self.replanned.map_or(1, |(_, times)| times + 1)));
        self.remove_attempt(cx);
        self.phase = Phase::Idle;
        self.event(cx, EventKind::Stopped { reason, gone: None });
        self.changed(cx);
    }

    fn blame_destinations(&mut self, cx: &mut Context<'_>, silent: &BTreeSet<SiteId>, what: &str) {
        let retry_at = cx.now + cx.config.pause.min;
        let mut over = Vec::new();
        for d in self.destinations.iter_mut().filter(|d| d.open() && silent.contains(&d.site)) {
            d.strikes += 1;
            d.retry_at = Some(retry_at);
            if d.strikes >= STRIKES_MAX {
                over.push((d.site, format!("{} {what}, {} times", cx.name(d.site), d.strikes)));
            }
        }
        for (site, reason) in over {
            self.decide(cx, site, Verdict::Unreachable { reason });
        }
    }

    pub(super) fn blame_silent(&mut self, cx: &mut Context<'_>, silent: &BTreeSet<SiteId>) {
        self.blame_destinations(cx, silent, "did not set up its part");
        let run = Run { transfer: self.id, attempt: Attempt(self.attempts) };
        for &site in silent {
            let tired = self.tired_sites.entry(site).or_insert(AvoidedResource::new(cx.now, self.id));
            tired.tire(cx.now, run, cx.config);
        }
        let names: Vec<_> = silent.iter().map(|s| cx.name(*s)).collect();
        let reason =
            format!("{} did not set up its part within {}", names.join(", "), cx.config.install_timeout);
        self.stop(cx, reason, Duration::ZERO);
    }

    /// Sites and links that must not be used to serve `targets` now.
    pub(super) fn avoided(&self, cx: &Context<'_>, targets: &[SiteId]) -> (Vec<SiteId>, Vec<LinkId>) {
        let now = cx.now;
        let end = |s: SiteId| s == self.request.source || targets.contains(&s);
        // The commands of a site that writes its files wait until these are written.
        let no_relay = |s: SiteId| {
            self.suspects.contains(&s)
                || self.request.avoid_sites.contains(&s)
                || self.is_crowded(s, now)
                || self.destinations.iter().any(|d| d.site == s && d.finishing.is_some())
                || self.tired_sites.get(&s).is_some_and(|t| now < t.until)
        };
        let sites = cx.topology.site_ids().filter(|&s| !end(s) && (no_relay(s) || !cx.up(s))).collect();
        let dead = |l: LinkId| {
            let link = cx.topology.link(l);
            self.request.avoid_links.contains(&l)
                || self.tired_links.get(&l).is_some_and(|t| now < t.until)
                || !cx.sites[link.to.index()].addresses.contains_key(&l)
                || !cx.up(link.from)
                || !cx.up(link.to)
                // A destination that must not relay only receives.
                || (link.from != self.request.source && end(link.from) && no_relay(link.from))
        };
        (sites, cx.topology.link_ids().filter(|&l| dead(l)).collect())
    }

    fn ask_planner(&self, cx: &Context<'_>, targets: &[SiteId]) -> Result<Plan, String> {
        let mut targets = targets.to_vec();
        targets.sort_unstable();
        let (avoid_sites, avoid_links) = self.avoided(cx, &targets);
        let plan = cx.planner.plan(&PlanRequest {
            topology: cx.topology,
            source: self.request.source,
            destinations: &targets,
            avoid_sites: &avoid_sites,
            avoid_links: &avoid_links,
            scheme: self.request.scheme,
            fill: self.request.fill && !self.unfilled,
        })?;
        usable(&plan, cx, self.request.source, &targets, &avoid_sites, &avoid_links)
            .map_err(|e| format!("the planner made an unusable plan: {e}"))?;
        Ok(plan)
    }

    fn plan_and_install(&mut self, cx: &mut Context<'_>, mut targets: Vec<SiteId>, length: u64) {
        let plan = match self.ask_planner(cx, &targets) {
            Ok(plan) => plan,
            Err(joint) => {
                // Serve the reachable destinations: one unreachable destination must not delay the
                // others.
                let mut lost = Vec::new();
                targets.retain(|&t| match self.ask_planner(cx, &[t]) {
                    Ok(_) => true,
                    Err(reason) => {
                        lost.push((t, reason));
                        false
                    }
                });
                let soonest = self.tired_links.values().chain(self.tired_sites.values()).map(|t| t.until);
                let retry_at = soonest.filter(|t| *t > cx.now).min().unwrap_or(cx.now + cx.config.avoid.max);
                for (site, reason) in lost {
                    let reason = one_line(&reason);
                    // The path may lead through a site that has no room now.
                    if let Some(crowded) = self.first_crowded(cx.now) {
                        self.wait_for_room(cx, site, crowded);
                        continue;
                    }
                    self.last_trouble = Some(reason.clone());
                    if let Some(d) = self.target_mut(site) {
                        d.retry_at = Some(retry_at);
                        let since = d.away.as_ref().map_or(cx.now, |(t, _)| *t);
                        d.away = Some((since, OutageKind::NoPath(reason)));
                    }
                }
                if targets.is_empty() {
                    return;
                }
                match self.ask_planner(cx, &targets) {
                    Ok(plan) => plan,
                    Err(_) => {
                        // Each destination can be served alone, but not all together: serve them
                        // one by one.
                        targets.truncate(1);
                        match self.ask_planner(cx, &targets) {
                            Ok(plan) => plan,
                            Err(_) => {
                                self.pause(cx, one_line(&joint), Duration::ZERO);
                                return;
                            }
                        }
                    }
                }
            }
        };
        for d in self.destinations.iter_mut().filter(|d| targets.contains(&d.site)) {
            d.away = None;
        }
        self.install(cx, plan, length, &[]);
    }
}
