//! The next step of a transfer: changes of its phase, abandoned attempts, waits and ends.
//!
//! Leaves out: the knowledge of a transfer, which the inputs change. Read [`Transfer::step`] first.

use super::{
    Context, Debt, OutageKind, PendingQuestion, Phase, RunningAttempt, STRIKES_MAX, Target, Transfer, WaitEnd,
};
use crate::control::{Attempt, Finish};
use crate::coordinator::{Command, Duration, EventKind, Outcome, Plan, Run, SiteId, Verdict, audit, ranges};
use anabranch_pieces::{Attributes, ByteRange};
use std::collections::BTreeSet;

/// Byte counts of a destination.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct TargetBytes {
    /// Number of verified bytes to display.
    pub(super) shown: u64,
    /// Bytes that arrived in ended attempts of this transfer.
    pub(super) moved: u64,
}

impl Transfer {
    /// Does everything that is due with the current knowledge.
    pub(in crate::coordinator) fn step(&mut self, cx: &mut Context<'_>) {
        // Each round ends a phase or gives a verdict, and no input makes more than a few of either
        // due.
        for _ in 0..256 {
            if self.outcome.is_none() {
                self.watch_sites(cx);
                self.finish_files(cx);
            }
            if self.outcome.is_some() || !self.step_phase(cx) {
                break;
            }
        }
        self.settle_debts(cx);
    }

    /// Detects sites that are unreachable for too long, and overdue answers.
    fn watch_sites(&mut self, cx: &mut Context<'_>) {
        let now = cx.now;
        let site_wait = self.site_wait(cx.config);
        if cx.up(self.request.source) {
            self.source_away = None;
        } else {
            let since = *self.source_away.get_or_insert(now);
            if now >= since + site_wait {
                let reason = format!(
                    "the source {} was away for {}",
                    cx.name(self.request.source),
                    site_wait.in_words()
                );
                self.decide_all(cx, &Verdict::Failed { reason });
            }
        }
        if self.hash_question.retry_at.is_some_and(|t| now >= t) {
            self.hash_question.retry_at = None;
        }
        if self.hash_question.pending.is_some_and(|p| now >= p.deadline) {
            self.hash_question.pending = None;
            self.hash_question.strikes += 1;
            if self.hash_question.strikes >= STRIKES_MAX {
                let reason =
                    format!("the source {} did not say the file's hash", cx.name(self.request.source));
                self.decide_all(cx, &Verdict::Failed { reason });
            }
        }
        self.ask_for_room(now);
        let mut verdicts = Vec::new();
        for d in self.destinations.iter_mut().filter(|d| d.open()) {
            if d.retry_at.is_some_and(|t| now >= t) {
                d.retry_at = None;
            }
            if d.finishing.is_some_and(|p| now >= p.deadline) {
                d.finishing = None;
                d.told_ahead = None;
                d.known = false;
                d.finish_strikes += 1;
                if d.finish_strikes >= STRIKES_MAX {
                    let reason = format!("{} did not finish {} in time", cx.name(d.site), d.path);
                    verdicts.push((d.site, Verdict::Unreachable { reason }));
                    continue;
                }
            }
            match (&d.away, cx.up(d.site)) {
                (Some((_, OutageKind::Down)), true) => d.away = None,
                (None | Some((_, OutageKind::NoPath(_))), false) => {
                    let since = d.away.as_ref().map_or(now, |(t, _)| *t);
                    d.away = Some((since, OutageKind::Down));
                }
                _ => {}
            }
            if let Some((since, away)) = &d.away
                && now >= *since + site_wait
            {
                let reason = match away {
                    OutageKind::Down => format!("{} was away for {}", cx.name(d.site), site_wait.in_words()),
                    OutageKind::NoPath(reason) => {
                        let reason = d.unreached.as_ref().map_or(reason, |u| &u.line);
                        format!("no way to {} for {}: {reason}", cx.name(d.site), site_wait.in_words())
                    }
                };
                verdicts.push((d.site, Verdict::Unreachable { reason }));
            }
        }
        for (site, verdict) in verdicts {
            self.decide(cx, site, verdict);
        }
    }

    /// Requests the check and naming of complete files, and the hash from the source if it is not
    /// known.
    fn finish_files(&mut self, cx: &mut Context<'_>) {
        let Some(length) = self.length else { return };
        if matches!(self.phase, Phase::Inquiring { .. }) {
            return;
        }
        let run = Run { transfer: self.id, attempt: Attempt(self.attempts) };
        if let Some(hash) = self.hash {
            let found: Vec<_> = self
                .destinations
                .iter_mut()
                .filter(|d| d.open())
                .filter_map(|d| d.found.take().map(|found| (d.site, found)))
                .collect();
            let source_mode = self.attributes.map(|source| source.mode);
            for (site, found) in found {
                let is_wider = found
                    .mode
                    .zip(source_mode)
                    .is_some_and(|(mode, source)| Attributes::narrowed(mode, source) != mode);
                if found.hash != hash {
                    self.leave_alone(cx, site);
                } else if !is_wider {
                    self.decide(cx, site, Verdict::Done);
                } else if let Some(d) = self.destinations.iter_mut().find(|d| d.site == site) {
                    // The found file is finished like an arrived one: the site then removes
                    // permissions that the source's file does not have.
                    d.set_have(&[ByteRange { start: 0, end: length }], length, cx.config.ranges_max);
                }
            }
            let deadline = cx.now + cx.config.finish_timeout + cx.work_time(length);
            let arriving: BTreeSet<SiteId> = self.running().map_or_else(BTreeSet::new, |r| {
                r.sinks.iter().filter(|(_, s)| !s.done).map(|(site, _)| *site).collect()
            });
            let origin = self.request.origin(cx.name(self.request.source));
            for d in self.destinations.iter_mut().filter(|d| d.open() && d.finishing.is_none()) {
                let full = d.full(Some(length));
                // A site compares its bytes with the whole length, so unsettled ranges are told at
                // the end.
                let is_early = arriving.contains(&d.site) && self.head.unsettled.ranges.is_empty();
                if !cx.up(d.site) || !(full || is_early) {
                    continue;
                }
                if full {
                    d.finishing = Some(PendingQuestion { run, deadline });
                }
                if d.told_ahead != Some(run) {
                    d.told_ahead = Some(run);
                    self.informed.insert(d.site);
                    let (path, attributes, replace) = (d.path.clone(), self.attributes, self.request.replace);
                    let (rules, origin) = (self.request.rules.clone(), origin);
                    let unsettled = ranges::normal(&self.head.unsettled.ranges, length);
                    let file =
                        Finish { run, path, length, hash, attributes, replace, rules, origin, unsettled };
                    cx.out.commands.push_back((d.site, Command::Finish(file)));
                }
            }
            return;
        }
        // The source reports the hash once it has served all destinations, so the coordinator does
        // not ask for it earlier. With filling flows it does ask: a destination may have all data
        // long before the source is done.
        let comes_anyway = self.running().is_some_and(|r| !r.source_done && !r.is_filled());
        let wanted = self.destinations.iter().any(|d| {
            d.open() && cx.up(d.site) && (d.found.is_some() || (d.full(Some(length)) && !comes_anyway))
        });
        let is_askable = self.hash_question.pending.is_none() && self.hash_question.retry_at.is_none();
        if wanted && is_askable && cx.up(self.request.source) {
            self.hash_question.pending = Some(PendingQuestion {
                run,
                deadline: cx.now + cx.config.finish_timeout + cx.work_time(length),
            });
            cx.command(self.request.source, Command::Hash { run, path: self.request.source_path.clone() });
        }
    }

    /// Gives a destination up if another file has the name, unless that file may be replaced.
    pub(super) fn leave_alone(&mut self, cx: &mut Context<'_>, site: SiteId) {
        // A directory may get new entries beside existing entries, so its site checks each entry.
        if self.request.replace || self.request.is_directory() {
            return;
        }
        let Some(d) = self.destinations.iter().find(|d| d.site == site) else { return };
        let reason = format!(
            "{}: {}: another file has this name there: send it with --replace, or under another name with --as",
            cx.name(site),
            d.path
        );
        self.decide(cx, site, Verdict::Failed { reason });
    }

    /// Changes the phase once. Returns false if no change is due.
    fn step_phase(&mut self, cx: &mut Context<'_>) -> bool {
        if self.destinations.iter().all(|d| !d.open()) {
            self.close(cx);
            return false;
        }
        let now = cx.now;
        match &mut self.phase {
            // In `Planning`, the coordinator makes the next change.
            Phase::Over | Phase::Planning { .. } => false,
            Phase::Idle => self.begin(cx),
            Phase::Settling { until, early } => {
                let there = match early {
                    WaitEnd::Never => false,
                    WaitEnd::Ends => {
                        cx.up(self.request.source)
                            && self.destinations.iter().all(|d| !d.open() || cx.up(d.site))
                    }
                    WaitEnd::Everybody => {
                        cx.topology.site_ids().all(|s| cx.up(s) || self.request.avoid_sites.contains(&s))
                    }
                };
                if now < *until && !there {
                    return false;
                }
                self.phase = Phase::Idle;
                true
            }
            Phase::Inquiring { begun, waiting, .. } => {
                let begun = *begun;
                if !waiting.is_empty() && now < self.inquiry_deadline(begun, cx.config) {
                    return false;
                }
                self.end_inquiry(cx);
                true
            }
            Phase::Installing { waiting, deadline, .. } => {
                if !waiting.is_empty() {
                    if now < *deadline {
                        return false;
                    }
                    let silent = waiting.clone();
                    self.blame_silent(cx, &silent);
                    return true;
                }
                let Phase::Installing { mut attempt, .. } = std::mem::replace(&mut self.phase, Phase::Idle)
                else {
                    unreachable!("the arm matched Installing");
                };
                attempt.begun = now;
                attempt.active_at = now;
                for d in self.destinations.iter_mut().filter(|d| attempt.sinks.contains_key(&d.site)) {
                    d.unreached = None;
                }
                self.has_room(&attempt);
                self.phase = Phase::Running(attempt);
                self.event(cx, EventKind::Started);
                true
            }
            Phase::Running(r) => {
                if let Some(a) = r.audit.take_if(|a| a.waiting.is_empty() || now >= a.deadline) {
                    let named = audit::suspects(&r.plan, cx.topology, a.group, a.complainant, &a.digests);
                    self.handle_suspects(cx, named);
                    return true;
                }
                if r.ended() {
                    return self.end_attempt(cx);
                }
                if now >= r.active_at + cx.config.stall_timeout {
                    let reason = format!("nothing moved for {}", cx.config.stall_timeout);
                    self.stop(cx, reason, Duration::ZERO);
                    return true;
                }
                false
            }
        }
    }

    fn handle_suspects(&mut self, cx: &mut Context<'_>, named: Vec<SiteId>) {
        for site in named {
            if self.suspects.insert(site) {
                self.event(cx, EventKind::Suspected { site });
                self.changed(cx);
            }
        }
        self.leave_suspects(cx);
    }

    /// Plans again if a named relay corrupts too much to wait for the end of the attempt.
    pub(super) fn leave_suspects(&mut self, cx: &mut Context<'_>) {
        let corrupt_max = cx.config.corrupt_max;
        // Only a site that relays in this plan can be planned around.
        let relays = |r: &RunningAttempt| {
            r.plan.flows.iter().any(|f| {
                let from = cx.topology.link(f.link).from;
                from != r.plan.source && self.suspects.contains(&from)
            })
        };
        if self.running().is_some_and(|r| r.corrupt >= corrupt_max && relays(r)) {
            let names: Vec<_> = self.suspects.iter().map(|s| cx.name(*s)).collect();
            let reason = format!("data arrives wrong because of {}", names.join(", "));
            self.stop(cx, reason, Duration::ZERO);
        }
    }

    /// The flows of the attempt have ended: continues when its last file is finished.
    fn end_attempt(&mut self, cx: &mut Context<'_>) -> bool {
        let length = self.length;
        let Some(r) = self.running() else { return false };
        let unfinished = |d: &&Target| r.sinks.contains_key(&d.site) && d.open();
        // Destinations of the next class do not wait until these sites have written their files.
        let is_next_due = self.head.class.is_some() && self.destinations.iter().any(|d| self.waits(cx, d));
        if !is_next_due && self.destinations.iter().filter(unfinished).any(|d| d.full(length)) {
            return false;
        }
        let missing: Vec<_> = self.destinations.iter().filter(unfinished).map(|d| cx.name(d.site)).collect();
        let is_part = self.head.goes_first || self.head.class.is_some();
        let has_part = |d: &Target| is_part && self.lacked(d, length.unwrap_or(0)).is_empty();
        if self.destinations.iter().filter(unfinished).all(has_part) {
            // A site that loses each part reaches the limit of attempts without progress.
            self.idle_attempts += u32::from(!missing.is_empty());
            self.head.classes_served += u32::from(self.head.class.is_some());
            self.remove_attempt(cx);
            self.phase = Phase::Idle;
        } else if r.audit.is_some() {
            // The next attempt avoids the relay that the audit names.
            return false;
        } else {
            let what = if r.corrupt > 0 { "data arrived wrong" } else { "data is missing" };
            let reason = format!("{what} at {}", missing.join(", "));
            self.stop(cx, reason, Duration::ZERO);
        }
        true
    }

    /// Returns true if a destination that is up lacks bytes.
    pub(super) fn waits(&self, cx: &Context<'_>, d: &Target) -> bool {
        d.open() && cx.up(d.site) && !d.full(self.length) && d.finishing.is_none()
    }

    /// Orders the removal of the current attempt's virtual links at all sites.
    pub(super) fn remove_attempt(&mut self, cx: &mut Context<'_>) {
        let bytes: Vec<_> = self.destinations.iter().map(|d| (self.shown(d), self.moved_bytes(d))).collect();
        let attempt = match std::mem::replace(&mut self.phase, Phase::Idle) {
            Phase::Installing { attempt, .. } => attempt,
            Phase::Running(attempt) => {
                cx.out.freed.push((self.id, attempt.participants.clone()));
                attempt
            }
            other => {
                self.phase = other;
                return;
            }
        };
        for (d, (shown, moved)) in self.destinations.iter_mut().zip(bytes) {
            (d.bytes.shown, d.bytes.moved) = (shown, moved);
            if attempt.sinks.get(&d.site).is_some_and(|s| !s.done) {
                d.known = false;
            }
        }
        cx.links.handle_ended(attempt.run);
        for &site in &attempt.participants {
            self.owe(site, Debt::Uninstall(attempt.run));
        }
        if self
            .last_plan
            .as_ref()
            .is_some_and(|last| last.destinations.len() > attempt.plan.destinations.len())
        {
            let last = self.last_plan.take();
            let served = |plan: &Option<Plan>| plan.as_ref().map_or(0, |plan| plan.destinations.len());
            if served(&last) >= served(&self.wider_plan) {
                self.wider_plan = last;
            }
        }
        self.last_plan = Some(attempt.plan);
        self.changed(cx);
    }

    /// Abandons the attempt. The next one begins after `settle` or after the pause for idle
    /// attempts.
    pub(super) fn stop(&mut self, cx: &mut Context<'_>, reason: String, settle: Duration) {
        self.remove_attempt(cx);
        self.pause(cx, reason, settle);
    }

    pub(super) fn pause(&mut self, cx: &mut Context<'_>, reason: String, settle: Duration) {
        self.pause_without(cx, reason, settle, None);
    }

    /// Pauses as [`Self::pause`] does, because the controller lost contact with the site `gone`.
    pub(super) fn pause_without(
        &mut self,
        cx: &mut Context<'_>,
        reason: String,
        settle: Duration,
        gone: Option<SiteId>,
    ) {
        self.idle_attempts += 1;
        let pause = match self.idle_attempts {
            0 | 1 => Duration::ZERO,
            n => cx.config.pause.after(n - 2),
        };
        self.phase = Phase::Settling { until: cx.now + pause.max(settle), early: WaitEnd::Never };
        self.last_trouble = Some(reason.clone());
        self.event(cx, EventKind::Stopped { reason, gone });
        self.changed(cx);
    }

    /// The transfer has ended for every destination.
    fn close(&mut self, cx: &mut Context<'_>) {
        self.remove_attempt(cx);
        for d in &mut self.destinations {
            // No later step reads these ranges, and their number may be large.
            d.have = Vec::new();
        }
        let count = |f: fn(&Verdict) -> bool| {
            self.destinations.iter().filter(|d| d.verdict.as_ref().is_some_and(f)).count()
        };
        let (done, delivered) = (count(|v| *v == Verdict::Done), count(Verdict::is_delivered));
        let outcome = if self.cancelled {
            Outcome::Cancelled
        } else if count(|v| matches!(v, Verdict::Integrity { .. })) > 0 {
            Outcome::Integrity
        } else if count(|v| matches!(v, Verdict::Differs { .. })) > 0 {
            Outcome::Differs
        } else if done == self.destinations.len() {
            Outcome::Done
        } else if delivered == self.destinations.len() {
            Outcome::Conflicts
        } else if delivered == 0 {
            Outcome::Failed
        } else {
            Outcome::SomeFailed
        };
        self.hash_question.pending = None;
        self.phase = Phase::Over;
        self.outcome = Some(outcome);
        for site in self.informed.clone() {
            self.owe(site, Debt::Forget);
        }
        self.event(cx, EventKind::Finished { outcome });
        self.changed(cx);
    }

    /// Sends pending messages to the sites that are up. A message counts as received if the site
    /// then stays up for the time of `sweep`.
    fn settle_debts(&mut self, cx: &mut Context<'_>) {
        let (now, sweep) = (cx.now, cx.config.sweep);
        let busy: BTreeSet<SiteId> =
            self.destinations.iter().filter(|d| d.finishing.is_some()).map(|d| d.site).collect();
        let mut paid = false;
        let (id, informed) = (self.id, &mut self.informed);
        self.debts.retain(|&(site, debt), sent| match *sent {
            // A site that is finishing the file receives its messages later.
            None if cx.sites[site.index()].up && !busy.contains(&site) => {
                *sent = Some(now);
                let command = match debt {
                    Debt::Uninstall(run) => Command::Uninstall { run },
                    Debt::Forget => Command::Forget { transfer: id },
                };
                cx.out.commands.push_back((site, command));
                true
            }
            Some(t) if now >= t + sweep => {
                paid = true;
                if debt == Debt::Forget {
                    informed.remove(&site);
                }
                false
            }
            _ => true,
        });
        if paid {
            self.changed(cx);
        }
    }
}
