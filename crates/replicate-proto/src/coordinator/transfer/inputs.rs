//! Inputs of a transfer: reports of sites, and sites that register or disappear.
//!
//! Leaves out: reactions, which [`Transfer::step`] decides.

use super::{
    Audit, AvoidedResource, CANNOT_CONNECT, CONGESTION_CONTROL_BYTES, CONGESTION_CONTROLS_MAX, Context, Debt,
    FinishedFile, OutageKind, PROGRESS_EVERY, Phase, RunningAttempt, STRIKES_MAX, THE_HOP, Transfer,
    UnreachableSite, one_line,
};
use crate::control::{EntryCounts, FlowProgress, Inventory};
use crate::coordinator::{
    Command, CorruptPolicy, DestinationProgress, Duration, EventKind, FailureKind, FileHash, FlowId, LinkId,
    Report, Run, SiteId, Verdict, audit,
};
use crate::plan::Mode;
use anabranch_pieces::ByteRange;
use anabranch_sets::comparison::Comparison;
use std::collections::BTreeMap;

impl Transfer {
    pub(in crate::coordinator) fn submitted(&mut self, cx: &mut Context<'_>) {
        self.event(cx, EventKind::Submitted);
        self.changed(cx);
    }

    pub(in crate::coordinator) fn cancel(&mut self, cx: &mut Context<'_>) -> bool {
        if self.outcome.is_some() {
            return false;
        }
        self.cancelled = true;
        self.decide_all(cx, &Verdict::Failed { reason: "cancelled".into() });
        true
    }

    pub(in crate::coordinator) fn handle_site_up(
        &mut self,
        cx: &mut Context<'_>,
        site: SiteId,
        restarted: bool,
    ) {
        for ((s, _), sent) in &mut self.debts {
            if *s == site {
                *sent = None;
            }
        }
        if self.outcome.is_some() {
            return;
        }
        // Hops that failed because of the restart are tried again, and so are destinations without
        // a path.
        if restarted {
            let touches = |l: LinkId| cx.topology.link(l).from == site || cx.topology.link(l).to == site;
            self.tired_links.retain(|&l, _| !touches(l));
            self.tired_sites.remove(&site);
            self.crowded.remove(&site);
        }
        for d in &mut self.destinations {
            if d.site == site || matches!(d.away, Some((_, OutageKind::NoPath(_)))) {
                d.retry_at = None;
            }
            if d.site == site && restarted {
                d.unreached = None;
            }
            if d.site == site && restarted {
                d.known = false;
                d.found = None;
                d.finishing = None;
            }
        }
        if !restarted {
            return;
        }
        if site == self.request.source {
            self.hash_question.pending = None;
        }
        let again = matches!(&self.phase, Phase::Inquiring { waiting, .. } if waiting.contains(&site));
        if again {
            self.inquire(cx, site);
        }
        if self.running().is_some_and(|r| r.needed.contains(&site)) {
            let reason = format!("site {} was restarted", cx.name(site));
            self.stop(cx, reason, Duration::ZERO);
        }
    }

    pub(in crate::coordinator) fn handle_site_down(&mut self, cx: &mut Context<'_>, site: SiteId) {
        for ((s, _), sent) in &mut self.debts {
            if *s == site {
                *sent = None;
            }
        }
        if self.outcome.is_some() {
            return;
        }
        if let Some(d) = self.target_mut(site) {
            d.known = false;
            d.found = None;
            d.finishing = None;
        }
        if site == self.request.source {
            self.hash_question.pending = None;
        }
        if let Phase::Inquiring { waiting, .. } = &mut self.phase {
            waiting.remove(&site);
            if site == self.request.source {
                self.phase = Phase::Idle;
            }
        }
        if self.running().is_some_and(|r| r.needed.contains(&site)) {
            let reason = format!("site {} is gone", cx.name(site));
            self.remove_attempt(cx);
            self.pause_without(cx, reason, Duration::ZERO, Some(site));
        }
    }

    pub(in crate::coordinator) fn handle_report(
        &mut self,
        cx: &mut Context<'_>,
        site: SiteId,
        report: Report,
    ) {
        let run = report.run();
        if self.outcome.is_some() {
            // A site that missed the removal continues to report: repeat the command.
            if matches!(report, Report::Progress { .. }) && run.attempt.0 <= self.attempts {
                self.owe(site, Debt::Uninstall(run));
            }
            return;
        }
        match report {
            Report::Inventory(inventory) => {
                let is_source = site == self.request.source;
                if is_source {
                    self.attributes = inventory.attributes;
                    self.head.bytes = inventory.head_bytes.filter(|_| self.request.is_directory());
                }
                if matches!(self.phase, Phase::Inquiring { run: asked, .. } if asked == run) {
                    if is_source {
                        self.handle_unsettled(inventory.unsettled.clone());
                    }
                    self.handle_names(site, inventory.names.clone());
                }
                self.handle_inventory(cx, site, inventory);
            }
            Report::Ready { .. } => self.handle_ready(site, run),
            Report::Progress { verified_bytes, sink_stalled, flows, arrivals, .. } => {
                self.handle_arrivals(cx, site, run, &arrivals);
                self.handle_progress(cx, site, run, (verified_bytes, sink_stalled), &flows);
            }
            Report::SourceDone { hash, .. } => {
                if site != self.request.source {
                    return;
                }
                let current = self.running_mut().filter(|r| r.run == run);
                if let Some(r) = current {
                    r.source_done = true;
                    r.active_at = cx.now;
                    if let Some(hash) = hash {
                        self.learn_hash(cx, hash);
                    }
                }
            }
            Report::Hashed { hash, .. } => {
                if site == self.request.source && self.hash_question.pending.is_some_and(|p| p.run == run) {
                    self.hash_question.pending = None;
                    self.hash_question.strikes = 0;
                    self.learn_hash(cx, hash);
                }
            }
            Report::SinkDone { have, .. } => self.handle_sink_done(cx, site, run, &have),
            Report::Corrupt { group, generation, .. } => {
                self.handle_corrupt(cx, site, run, group, generation)
            }
            Report::Audit { group, generation, digests, .. } => {
                if let Some(r) = self.running_mut().filter(|r| r.run == run)
                    && let Some(a) =
                        r.audit.as_mut().filter(|a| a.group == group && a.generation == generation)
                    && a.waiting.remove(&site)
                {
                    // At most three sides of each flow are kept.
                    let limit = r.plan.flows.len() * 3;
                    a.digests.insert(site, digests.into_iter().take(limit).collect());
                }
            }
            Report::Completed { .. } => {
                self.handle_completed(cx, site, run, None, Verdict::Done);
            }
            Report::Written { entries, conflicts, left, .. } => {
                self.handle_written(cx, (site, run), (entries, left), conflicts);
            }
            Report::Compared { comparison, .. } => self.handle_compared(cx, site, run, comparison),
            Report::HopFailed { flow, peer, unconnected, reason, .. } => {
                self.handle_hop_failed(cx, site, run, flow, peer, unconnected, &reason)
            }
            Report::Failed { kind, reason, .. } => self.handle_failed(cx, site, run, kind, &reason),
        }
    }

    fn handle_ready(&mut self, site: SiteId, run: Run) {
        if let Phase::Installing { attempt, waiting, .. } = &mut self.phase
            && attempt.run == run
        {
            waiting.remove(&site);
            if let Some(d) = self.target_mut(site) {
                d.strikes = 0;
            }
        }
    }

    /// Handles the differences of a destination from the source.
    fn handle_compared(&mut self, cx: &mut Context<'_>, site: SiteId, run: Run, mut comparison: Comparison) {
        if !self.request.rules.compare {
            return;
        }
        // The site may be hostile.
        comparison.bound();
        let verdict = match comparison.in_words("there") {
            words if words.is_empty() => Verdict::Done,
            words => Verdict::Differs { reason: words },
        };
        if self.handle_completed(cx, site, run, None, verdict) {
            self.head.compared.insert(site, comparison);
        }
    }

    /// Handles a destination that has the file, or the directory with these entries. Returns true
    /// if it was asked for this answer.
    pub(super) fn handle_completed(
        &mut self,
        cx: &mut Context<'_>,
        site: SiteId,
        run: Run,
        entries: Option<EntryCounts>,
        verdict: Verdict,
    ) -> bool {
        let Some(d) = self.target_mut(site) else { return false };
        let is_asked = d.finishing.is_some_and(|p| p.run == run) || d.told_ahead == Some(run);
        if !d.open() || !is_asked {
            return false;
        }
        self.head.written.extend(entries.map(|entries| (site, entries)));
        self.decide(cx, site, verdict);
        if let Some(sink) = self.running_mut().and_then(|r| r.sinks.get_mut(&site)) {
            sink.done = true;
        }
        true
    }

    fn handle_progress(
        &mut self,
        cx: &mut Context<'_>,
        site: SiteId,
        run: Run,
        (verified_bytes, sink_stalled): (u64, f64),
        flows: &[FlowProgress],
    ) {
        let now = cx.now;
        let current = self.running().is_some_and(|r| r.run == run);
        if !current {
            // A settling transfer has no attempt, so a site that still reports has missed the
            // removal.
            if run.attempt.0 < self.attempts || self.running().is_none() {
                self.owe(site, Debt::Uninstall(run));
            }
            return;
        }
        for name in flows.iter().filter_map(|f| f.congestion_control.as_ref()) {
            if name.len() < CONGESTION_CONTROL_BYTES
                && self.congestion_controls.len() < CONGESTION_CONTROLS_MAX
            {
                self.congestion_controls.insert(name.clone());
            }
        }
        let Some(r) = self.running_mut() else { return };
        for f in flows {
            let planned = r.plan.flows.get(f.flow.index());
            let Some(flow) = planned.filter(|flow| cx.topology.link(flow.link).from == site) else {
                continue;
            };
            let entry = r.flows.entry(f.flow).or_insert((0, 0.0));
            // Filling data counts only at its destination. It must not hide a stall of all other
            // flows.
            if !r.plan.fills(flow) {
                if f.sent_bytes > entry.0 {
                    r.active_at = now;
                }
                cx.links.handle_sent(flow.link, (run, f.flow), now, f.blocked);
            }
            *entry = (f.sent_bytes, f.blocked);
        }
        if let Some(sink) = r.sinks.get_mut(&site)
            && !sink.done
        {
            if verified_bytes > sink.verified_bytes {
                r.active_at = now;
            }
            sink.stalled = sink_stalled;
            sink.sample(now, verified_bytes);
        }
        self.show_progress(cx);
        self.look_for_slow(cx);
    }

    fn handle_inventory(
        &mut self,
        cx: &mut Context<'_>,
        site: SiteId,
        Inventory { run, length, have, hash, attributes, arriving, .. }: Inventory,
    ) {
        let source = self.request.source;
        match &mut self.phase {
            Phase::Inquiring { run: asked, waiting, answered, .. } if *asked == run => {
                if !waiting.remove(&site) {
                    return;
                }
                answered.insert(site);
            }
            _ => return,
        }
        if site == source {
            let Some(length) = length else {
                let reason = format!(
                    "site {} did not say the length of {}",
                    cx.name(source),
                    self.request.source_path
                );
                self.decide_all(cx, &Verdict::Failed { reason });
                return;
            };
            if self.length.is_some_and(|l| l != length) {
                let reason = format!(
                    "{} at {} changed during the transfer: send it again",
                    self.request.source_path,
                    cx.name(source)
                );
                self.decide_all(cx, &Verdict::Failed { reason });
                return;
            }
            if self.length.is_none() {
                self.length = Some(length);
                self.changed(cx);
            }
            if let Some(hash) = hash {
                self.learn_hash(cx, hash);
            } else if length == 0 {
                self.learn_hash(cx, FileHash(*blake3::hash(b"").as_bytes()));
            }
        } else if let Some(d) = self.destinations.iter_mut().find(|d| d.site == site && d.open()) {
            d.leftover.get_or_insert(!have.is_empty());
            // The source's length may not be known yet; the ranges are truncated when it is.
            d.set_have(&have, self.length.unwrap_or(u64::MAX), cx.config.ranges_max);
            self.head.arriving.extend(arriving.map(|snapshot| (site, snapshot)));
            let mode = attributes.map(|found| found.mode);
            d.found = length.zip(hash).map(|(length, hash)| FinishedFile { length, hash, mode });
        }
    }

    fn learn_hash(&mut self, cx: &mut Context<'_>, hash: FileHash) {
        match self.hash {
            None => {
                self.hash = Some(hash);
                self.changed(cx);
            }
            Some(old) if old != hash => {
                let reason = format!(
                    "{} at {} changed during the transfer: send it again",
                    self.request.source_path,
                    cx.name(self.request.source)
                );
                self.decide_all(cx, &Verdict::Failed { reason });
            }
            Some(_) => {}
        }
    }

    fn handle_sink_done(&mut self, cx: &mut Context<'_>, site: SiteId, run: Run, have: &[ByteRange]) {
        let Some(length) = self.length else { return };
        let current = self.running().is_some_and(|r| r.run == run && r.sinks.contains_key(&site));
        let ranges_max = cx.config.ranges_max;
        let unsettled = self.head.unsettled.ranges.clone();
        let Some(d) = self.destinations.iter_mut().find(|d| d.site == site && d.open()) else { return };
        let finishing = d.finishing.is_some_and(|p| p.run == run);
        if !current && !finishing {
            return;
        }
        d.set_have(have, length, ranges_max);
        d.add_unsettled(&unsettled, length);
        let full = d.full(Some(length));
        if finishing && !full {
            d.finishing = None;
            d.told_ahead = None;
            d.integrity += 1;
            let (integrity, missing) = (d.integrity, length - d.bytes.shown);
            // Wrong data from before this transfer is no reason to give the destination up.
            // Neither is a file of a directory that changed after its bytes were read.
            let refuses = self.request.on_corrupt == CorruptPolicy::Refuse
                && d.leftover != Some(true)
                && !self.request.is_directory();
            d.leftover = d.leftover.map(|leftover| leftover && !have.is_empty());
            let name = cx.name(site).to_owned();
            if integrity >= cx.config.integrity_max || refuses {
                let reason = format!(
                    "{missing} bytes of the file at {name} did not match its hash, {integrity} times"
                );
                self.decide(cx, site, Verdict::Integrity { reason });
            } else {
                self.last_trouble =
                    Some(format!("{missing} bytes of the file at {name} did not match its hash"));
            }
            self.changed(cx);
            return;
        }
        let integrity_max = cx.config.integrity_max;
        let now = cx.now;
        let Some(sink) = self.running_mut().and_then(|r| {
            r.active_at = now;
            r.sinks.get_mut(&site)
        }) else {
            return;
        };
        if std::mem::replace(&mut sink.done, true) || full {
            return;
        }
        if sink.corrupt
            && let Some(d) = self.target_mut(site)
        {
            d.integrity += 1;
            if d.integrity >= integrity_max {
                let reason =
                    format!("data kept arriving wrong at {} in {} attempts", cx.name(site), d.integrity);
                self.decide(cx, site, Verdict::Integrity { reason });
            }
            self.changed(cx);
        }
    }

    fn handle_corrupt(&mut self, cx: &mut Context<'_>, site: SiteId, run: Run, group: u16, generation: u64) {
        let source = self.request.source;
        let refuse = self.request.on_corrupt == CorruptPolicy::Refuse;
        let (now, audits_max, audit_timeout) = (cx.now, cx.config.audits_max, cx.config.audit_timeout);
        let Some(r) = self.running_mut().filter(|r| r.run == run && r.sinks.contains_key(&site)) else {
            return;
        };
        if usize::from(group) >= r.plan.groups.len() {
            return;
        }
        r.corrupt = r.corrupt.saturating_add(1);
        r.sinks.get_mut(&site).expect("the filter above found it").corrupt = true;
        let mut ask = None;
        if r.audit.is_none() && r.audits < audits_max {
            r.audits += 1;
            let routed = r.plan.groups[usize::from(group)].mode == Mode::Routed;
            let vectors = if routed { Vec::new() } else { audit::vectors(&r.plan, group) };
            r.audit = Some(Audit {
                group,
                generation,
                complainant: site,
                waiting: r.participants.clone(),
                digests: BTreeMap::new(),
                deadline: now + audit_timeout,
            });
            ask = Some((r.participants.clone(), vectors));
        }
        if let Some((participants, vectors)) = ask {
            for p in participants {
                let vectors = if p == source { vectors.clone() } else { Vec::new() };
                cx.command(p, Command::Audit { run, group, generation, vectors });
            }
        }
        self.corrupt += 1;
        self.event(cx, EventKind::Corrupt { site, group, generation });
        if refuse {
            let reason =
                format!("generation {generation} of group {group} arrived wrong at {}", cx.name(site));
            self.decide(cx, site, Verdict::Integrity { reason: reason.clone() });
            self.stop(cx, reason, Duration::ZERO);
        } else {
            self.leave_suspects(cx);
        }
    }

    #[expect(clippy::too_many_arguments, reason = "what a report says")]
    fn handle_hop_failed(
        &mut self,
        cx: &mut Context<'_>,
        site: SiteId,
        run: Run,
        flow: FlowId,
        peer: SiteId,
        unconnected: bool,
        reason: &str,
    ) {
        // Only the first report of an attempt identifies the failed link. Later reports may be
        // consequences: sites remove their flows at different moments, and their neighbours see a
        // broken hop.
        if self.running().is_none_or(|r| r.run != run) {
            return;
        }
        let failed = self.plan().and_then(|p| p.flows.get(flow.index()).filter(|f| !p.fills(f)));
        let Some(link) = failed.map(|f| f.link) else { return };
        let (from, to) = (cx.topology.link(link).from, cx.topology.link(link).to);
        if (site, peer) != (from, to) && (site, peer) != (to, from) {
            return;
        }
        if unconnected && site == from {
            return self.handle_unreached(cx, link, run, reason);
        }
        let settle = cx.config.settle;
        let tired = self.tired_links.entry(link).or_insert(AvoidedResource::new(cx.now, self.id));
        tired.tire(cx.now + settle, run, cx.config);
        let line = format!(
            "{THE_HOP} {} to {} failed, says {}: {}",
            cx.name(from),
            cx.name(to),
            cx.name(site),
            one_line(reason)
        );
        self.stop(cx, line, settle);
    }

    /// Handles a failed connection from the first site of `link` to its second site. Postpones the
    /// second site, so that no other destination waits for it.
    ///
    /// No settling time is needed, unlike after a broken hop, because the next plan avoids the
    /// second site in any case.
    fn handle_unreached(&mut self, cx: &mut Context<'_>, link: LinkId, run: Run, reason: &str) {
        let (from, to) = (cx.topology.link(link).from, cx.topology.link(link).to);
        let address = cx.sites[to.index()].addresses.get(&link).map_or("-", String::as_str);
        let line = format!(
            "{} {CANNOT_CONNECT} {} at {}: {}",
            cx.name(from),
            cx.name(to),
            one_line(address),
            one_line(reason)
        );
        let now = cx.now;
        self.tired_links.entry(link).or_insert(AvoidedResource::new(now, self.id)).tire(now, run, cx.config);
        // Other sites most likely cannot connect either, so the site relays nothing for some time.
        self.tired_sites.entry(to).or_insert(AvoidedResource::new(now, self.id)).tire(now, run, cx.config);
        let Some(d) = self.destinations.iter_mut().find(|d| d.site == to && d.open()) else {
            return self.stop(cx, line, Duration::ZERO);
        };
        let (since, tries) = d.unreached.as_ref().map_or((now, 1), |u| (u.since, u.tries + 1));
        d.unreached = Some(UnreachableSite { since, tries, line: line.clone() });
        d.retry_at = Some(now + cx.config.avoid.after(tries - 1));
        let last = tries >= STRIKES_MAX.into() && now >= since + self.site_wait(cx.config);
        self.remove_attempt(cx);
        self.last_trouble = Some(line.clone());
        if last {
            let reason = format!("{line} (tried for {})", now.saturating_since(since).in_words());
            self.decide(cx, to, Verdict::Unreachable { reason });
        } else if tries == 1 {
            self.event(cx, EventKind::Postponed { site: to, reason: line });
        }
        self.changed(cx);
    }

    fn handle_failed(
        &mut self,
        cx: &mut Context<'_>,
        site: SiteId,
        run: Run,
        kind: FailureKind,
        reason: &str,
    ) {
        let inquired = matches!(&self.phase, Phase::Inquiring { run: r, .. } if *r == run);
        let installed = self.running().is_some_and(|r| r.run == run && r.participants.contains(&site));
        let hashing = site == self.request.source && self.hash_question.pending.is_some_and(|p| p.run == run);
        let is_target = self.destinations.iter().any(|d| d.site == site && d.open());
        let finishing =
            self.destinations.iter().any(|d| d.site == site && d.finishing.is_some_and(|p| p.run == run));
        if !(inquired || installed || hashing || finishing) {
            return;
        }
        let line = format!("{}: {}", cx.name(site), one_line(reason));
        if kind == FailureKind::Busy {
            return self.handle_busy(cx, site, installed, line);
        }
        if installed && kind == FailureKind::Refused && self.running().is_some_and(RunningAttempt::is_filled)
        {
            // The most likely cause is the buffers of the filling flows. Without a site that only
            // relays filling flows, the attempt loses nothing.
            self.unfilled = true;
            if self.running().is_some_and(|r| r.needed.contains(&site)) {
                self.stop(cx, format!("{line} (the next plan fills nothing)"), Duration::ZERO);
            }
            return;
        }
        if site == self.request.source {
            self.decide_all(cx, &Verdict::Failed { reason: line });
        } else if is_target {
            if let Phase::Inquiring { waiting, .. } = &mut self.phase {
                waiting.remove(&site);
            }
            self.decide(cx, site, Verdict::Failed { reason: line.clone() });
            if installed && !(finishing && self.running().is_some_and(RunningAttempt::ended)) {
                self.stop(cx, line, Duration::ZERO);
            }
        } else if installed {
            // A relay (or a finished destination that relays) that cannot do its part is not asked
            // again in this transfer.
            debug_assert!(matches!(
                kind,
                FailureKind::Refused | FailureKind::Unreadable | FailureKind::Unwritable
            ));
            self.suspects.insert(site);
            self.stop(cx, line, Duration::ZERO);
        }
    }

    fn show_progress(&mut self, cx: &mut Context<'_>) {
        if self.last_progress_event.is_some_and(|t| cx.now.saturating_since(t) < PROGRESS_EVERY) {
            return;
        }
        self.last_progress_event = Some(cx.now);
        let destinations = self
            .destinations
            .iter()
            .map(|d| DestinationProgress {
                site: d.site,
                verified_bytes: self.shown(d),
                rate_bps: self.rate_bps(d.site, cx.now),
            })
            .collect();
        self.event(cx, EventKind::Progress { length_bytes: self.length.unwrap_or(0), destinations });
    }
}
