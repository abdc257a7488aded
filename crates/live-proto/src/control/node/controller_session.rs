//! A node's side towards the controller: updates of its tables, and its reports.

use super::{ControlMode, Event, GROUPS_MAX, Node, Transmit};
use crate::control::differences::DeltaSender;
use crate::control::messages::{GroupId, Report, ToNode};
use crate::plan::VIEWERS_MAX;
use crate::{NodeId, Object};
use anabranch_units::{Duration, Instant};
use std::collections::BTreeMap;

/// Time for which moves of streams are collected into one report.
const REPORT_DELAY: Duration = Duration::from_ms(100);

/// A node's state of its session with the controller.
#[derive(Clone, Debug)]
pub(super) struct ControllerSession {
    /// Whether the node is a source.
    pub(super) is_source: bool,
    /// Highest lead in any message so far.
    lead: u64,
    /// Time of the last message; `None` before the first.
    heard_at: Option<Instant>,
    pub(super) is_draining: bool,
    /// Whether the next report must hold all entries.
    resend: bool,
    streams: DeltaSender<Object, Option<NodeId>>,
    viewers: DeltaSender<(GroupId, Object), u64>,
    refused: BTreeMap<(GroupId, Object), RefusedDemand>,
}

/// Refused requests of one group for one object, in windows of `Settings::demand_memory`. Requests
/// are counted, as in Table 4.1: an edge cannot distinguish a repeated request from a second
/// viewer.
#[derive(Copy, Clone, Debug)]
struct RefusedDemand {
    /// Start of the current window.
    since: Instant,
    /// Time of the last refusal.
    at: Instant,
    /// Number of requests refused in the current window.
    requests: u64,
    /// Largest number of viewers that a stream lost at once in the current window. Lost viewers ask
    /// again, so the count is the larger of `requests` and `lost`.
    lost: u64,
    /// Count of the previous window.
    earlier: u64,
}

impl RefusedDemand {
    const fn new(now: Instant) -> Self {
        Self { since: now, at: now, requests: 0, lost: 0, earlier: 0 }
    }

    fn note(&mut self, now: Instant, window: Duration) {
        self.at = now;
        if now >= self.since + window {
            let is_adjacent = now < self.since + window * 2;
            self.earlier = if is_adjacent { self.requests.max(self.lost) } else { 0 };
            (self.since, self.requests, self.lost) = (now, 0, 0);
        }
    }

    fn count(&self) -> u64 {
        self.requests.max(self.lost).max(self.earlier)
    }
}

impl ControllerSession {
    pub(super) const fn new(life: u64, is_source: bool) -> Self {
        Self {
            is_source,
            lead: 0,
            heard_at: None,
            is_draining: false,
            resend: false,
            streams: DeltaSender::new(life),
            viewers: DeltaSender::new(life),
            refused: BTreeMap::new(),
        }
    }

    pub(super) fn is_silent(&self, now: Instant, most: Duration) -> bool {
        self.heard_at.is_none_or(|heard_at| now > heard_at + most)
    }

    /// The entry for refused requests; `None` for a new entry if the table is full.
    fn refused(
        &mut self,
        now: Instant,
        window: Duration,
        key: (GroupId, Object),
    ) -> Option<&mut RefusedDemand> {
        if self.refused.len() >= GROUPS_MAX && !self.refused.contains_key(&key) {
            return None;
        }
        let refused = self.refused.entry(key).or_insert(RefusedDemand::new(now));
        refused.note(now, window);
        Some(refused)
    }
}

impl Node {
    /// Takes a message of the controller. Messages of earlier leads are ignored.
    pub fn handle_controller(&mut self, now: Instant, message: ToNode) {
        let controller = &mut self.controller;
        if message.lead < controller.lead {
            return;
        }
        (controller.lead, controller.heard_at) = (message.lead, Some(now));
        controller.is_draining = message.is_draining;
        controller.resend |= message.resend;
        let update = message.update.filter(|_| self.settings.mode != ControlMode::Distributed);
        let Some(update) = update else { return };
        if update.version == self.rib.version() {
            // The controller has not received the report of this version.
            self.timers.report = now;
            return;
        }
        let version = update.version;
        let mut rib = std::mem::take(&mut self.rib);
        let installed = rib.install(update, |node| self.neighbours.has(node));
        self.rib = rib;
        match installed {
            Ok(()) => {
                self.shadows.keep(version, self.rib.central_fib());
                self.emit(Event::Installed(version));
                self.follow_plan(now);
                self.seek_routes(now);
                self.timers.report = now;
            }
            Err(error) => self.emit(Event::UpdateRefused(error)),
        }
    }

    /// Counts a refused request as demand.
    pub(super) fn note_refused(&mut self, now: Instant, group: GroupId, object: Object) {
        let window = self.settings.demand_memory;
        if let Some(refused) = self.controller.refused(now, window, (group, object)) {
            refused.requests += 1;
        }
    }

    /// Counts the viewers of a lost stream as demand.
    pub(super) fn note_lost(&mut self, now: Instant, group: GroupId, object: Object, viewers: u64) {
        let window = self.settings.demand_memory;
        if let Some(refused) = self.controller.refused(now, window, (group, object)) {
            refused.lost = refused.lost.max(viewers);
        }
    }

    /// Number of viewers by group and object: served, waiting, then refused viewers. At most
    /// [`GROUPS_MAX`] entries of at most [`VIEWERS_MAX`], the controller's limits.
    pub(super) fn demand(&self) -> BTreeMap<(GroupId, Object), u64> {
        let served = self.streams.iter().flat_map(|(object, stream)| {
            stream.viewers.iter().map(|(group, count)| ((*group, *object), *count))
        });
        let waiting = self
            .streams
            .iter()
            .flat_map(|(object, stream)| stream.waiting.iter().map(|(_, group)| ((*group, *object), 1)));
        let refused = self.controller.refused.iter().map(|(key, refused)| (*key, refused.count()));
        let mut demand = BTreeMap::new();
        for (key, count) in served.chain(waiting).chain(refused) {
            if demand.len() < GROUPS_MAX || demand.contains_key(&key) {
                let sum: &mut u64 = demand.entry(key).or_default();
                *sum = sum.saturating_add(count).min(VIEWERS_MAX);
            }
        }
        demand
    }

    /// Schedules a report, because the controller waits for moves. At most ten reports are sent per
    /// second.
    pub(super) fn report_soon(&mut self, now: Instant) {
        self.timers.report = self.timers.report.min(now + REPORT_DELAY);
    }

    pub(super) fn report(&mut self, now: Instant) {
        let memory = self.settings.demand_memory;
        self.controller.refused.retain(|_, refused| now < refused.at + memory);
        let delivered = |(object, stream): (&Object, &super::Stream)| {
            let parent = stream.current.as_ref().map(|current| current.parent);
            (stream.is_imported || parent.is_some()).then_some((*object, parent))
        };
        let streams = self.streams.iter().filter_map(delivered).collect();
        let viewers = self.demand();
        let links = self.link_states();
        let controller = &mut self.controller;
        let mut streams = controller.streams.advance(streams, |sent, new| sent != new);
        let mut viewers = controller.viewers.advance(viewers, |sent, new| sent != new);
        if std::mem::take(&mut controller.resend) {
            let is_sent = "a report was sent above";
            streams = controller.streams.whole().expect(is_sent);
            viewers = controller.viewers.whole().expect(is_sent);
        }
        let (life, version, is_draining) = (self.life, self.rib.version(), controller.is_draining);
        let report = Report { life, version, is_draining, links, streams, viewers };
        self.output.messages.push_back(Transmit::Controller(report));
    }
}
