//! Sites without room for their part of an attempt.
//!
//! A destination without room is treated as slow. The plan leaves the destination out, and the site
//! is asked again after a pause, or when another transfer leaves it. A relay without room is
//! planned around. Only a source without room makes all destinations wait.
//!
//! Leaves out: the division of a site's memory ([`crate::daemon::room`]). Read
//! [`Transfer::handle_busy`] first.

use super::{Context, Phase, RunningAttempt, Transfer, WaitEnd};
use crate::coordinator::{EventKind, Instant, SiteId, TransferId};
use std::collections::BTreeSet;

/// A site that had no room when it was last asked for its part.
#[derive(Clone, Debug)]
pub(super) struct CrowdedSite {
    /// Number of consecutive refusals.
    tries: u32,
    /// End of the pause before the site is asked again.
    until: Instant,
    /// The site's reason, in one line.
    line: String,
    /// The last event about the site's lack of room, if any.
    told: Option<RoomNotice>,
}

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum RoomNotice {
    Postponed,
    Waiting,
}

impl Transfer {
    /// Handles a site that lacks memory or descriptors for its part at the moment. Other transfers
    /// will return them.
    ///
    /// The first refusal in a transfer makes all destinations wait for `pause.min`, because an
    /// earlier attempt may be about to leave the site. Every later refusal costs the other
    /// destinations one attempt. An inquiry continues without the site.
    pub(super) fn handle_busy(&mut self, cx: &mut Context<'_>, site: SiteId, installed: bool, line: String) {
        let is_source = site == self.request.source;
        // A site that did not check its file is asked again for its data. While a check is pending,
        // the site gets no removals of attempts.
        if let Some(d) = self.target_mut(site)
            && d.finishing.take().is_some()
        {
            d.known = false;
        }
        // A busy source did answer, so no strike counts.
        if is_source && self.hash_question.pending.take().is_some() {
            self.hash_question.retry_at = Some(cx.now + cx.config.pause.max);
        }
        if !(installed || is_source && matches!(self.phase, Phase::Inquiring { .. })) {
            if let Phase::Inquiring { waiting, .. } = &mut self.phase {
                waiting.remove(&site);
            }
            let retry_at = cx.now + cx.config.pause.max;
            if let Some(d) = self.target_mut(site) {
                d.retry_at = Some(retry_at);
            }
            return;
        }
        // The buffers of filling flows are the most likely cause, so the next plan has no filling
        // flows.
        let is_filled = installed && self.running().is_some_and(RunningAttempt::is_filled);
        self.unfilled |= is_filled;
        if is_filled && self.running().is_some_and(|r| !r.needed.contains(&site)) {
            return;
        }
        self.remove_attempt(cx);
        self.crowded_attempts += 1;
        let is_first = !std::mem::replace(&mut self.has_waited_for_room, true);
        let tries = self.crowded.get(&site).map_or(0, |c| c.tries);
        let pause = cx.config.pause.after(if is_filled { 0 } else { tries });
        let (until, told) = (cx.now + pause, self.crowded.get(&site).and_then(|c| c.told));
        self.last_trouble = Some(line.clone());
        self.crowded.insert(site, CrowdedSite { tries: tries + 1, until, line, told });
        if is_source || is_filled || is_first {
            self.phase = Phase::Settling { until, early: WaitEnd::Never };
        }
        if is_source {
            self.tell_crowded(cx, site, site);
        } else if !is_filled && !is_first {
            self.wait_for_room(cx, site, site);
        }
        self.changed(cx);
    }

    /// Postpones a destination because the site `at` has no room. Other destinations do not wait.
    pub(super) fn wait_for_room(&mut self, cx: &mut Context<'_>, destination: SiteId, at: SiteId) {
        let Some(until) = self.crowded.get(&at).map(|c| c.until) else { return };
        let Some(d) = self.destinations.iter_mut().find(|d| d.site == destination && d.open()) else {
            return;
        };
        d.waits_for_room = true;
        d.retry_at = Some(until);
        self.tell_crowded(cx, destination, at);
    }

    /// Reports once that a destination is postponed, and once that nothing continues until there is
    /// room.
    fn tell_crowded(&mut self, cx: &mut Context<'_>, destination: SiteId, at: SiteId) {
        let are_others_served =
            at != self.request.source && self.destinations.iter().any(|d| d.open() && !d.waits_for_room);
        let Some(crowded) = self.crowded.get_mut(&at) else { return };
        let line = &crowded.line;
        let (told, kind) = if are_others_served {
            let reason = format!("no room at {line}; sending to the others first");
            (RoomNotice::Postponed, EventKind::Postponed { site: destination, reason })
        } else {
            (RoomNotice::Waiting, EventKind::Waiting { reason: format!("waiting for room at {line}") })
        };
        if crowded.told.is_none()
            || crowded.told == Some(RoomNotice::Postponed) && told == RoomNotice::Waiting
        {
            crowded.told = Some(told);
            self.event(cx, kind);
        }
    }

    /// Whether the site is avoided now because it had no room.
    pub(super) fn is_crowded(&self, site: SiteId, now: Instant) -> bool {
        self.crowded.get(&site).is_some_and(|c| now < c.until)
    }

    /// The site whose pause ends first.
    pub(super) fn first_crowded(&self, now: Instant) -> Option<SiteId> {
        let crowded = self.crowded.iter().filter(|(_, c)| now < c.until);
        crowded.min_by_key(|(_, c)| c.until).map(|(site, _)| *site)
    }

    /// Forgets earlier refusals of the attempt's participants, because all of them have their part.
    pub(super) fn has_room(&mut self, attempt: &RunningAttempt) {
        self.crowded.retain(|site, _| !attempt.participants.contains(site));
        for d in self.destinations.iter_mut().filter(|d| attempt.sinks.contains_key(&d.site)) {
            d.waits_for_room = false;
        }
    }

    /// Clears the pauses of all destinations that wait for room when the first of them ends: one
    /// plan can serve all of them.
    pub(super) fn ask_for_room(&mut self, now: Instant) {
        let waiting = || self.destinations.iter().filter(|d| d.open() && d.waits_for_room);
        if waiting().any(|d| d.retry_at.is_some_and(|t| now >= t)) {
            self.destinations.iter_mut().filter(|d| d.waits_for_room).for_each(|d| d.retry_at = None);
        }
    }

    /// Handles sites that other transfers' attempts have left: they are asked again after
    /// `pause.min`, which leaves time for the removal.
    pub(in crate::coordinator) fn handle_room(&mut self, cx: &Context<'_>, sites: &BTreeSet<SiteId>) {
        let again = cx.now + cx.config.pause.min;
        let mut is_woken = false;
        for (site, crowded) in
            self.crowded.iter_mut().filter(|(site, c)| sites.contains(site) && c.until > again)
        {
            is_woken = true;
            if let Phase::Settling { until, .. } = &mut self.phase
                && *site == self.request.source
                && *until == crowded.until
            {
                *until = again;
            }
            crowded.until = again;
        }
        if is_woken {
            for d in self.destinations.iter_mut().filter(|d| d.waits_for_room) {
                d.retry_at = d.retry_at.map(|t| t.min(again));
            }
        }
    }
}

/// Room that attempts returned: the transfers, and the sites that they left.
pub(in crate::coordinator) type FreedRoom = Vec<(TransferId, BTreeSet<SiteId>)>;
