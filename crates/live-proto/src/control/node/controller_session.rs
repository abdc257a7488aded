//! A node's side towards the controller: its updates and the reports to it.

use super::{Event, GROUPS_MAX, Node, Transmit};
use crate::control::differences::DeltaSender;
use crate::control::messages::{GroupId, Report, ToNode};
use crate::{NodeId, Object};
use anabranch_units::{Duration, Instant};
use std::collections::BTreeMap;

/// Time in which moves are gathered into one report.
const REPORT_DELAY: Duration = Duration::from_ms(100);

/// A node's record of the controller.
#[derive(Clone, Debug)]
pub(super) struct ControllerSession {
    /// Whether the node is a source.
    pub(super) is_source: bool,
    /// Highest lead that was heard.
    lead: u64,
    /// Last message; `None` before the first.
    heard_at: Option<Instant>,
    pub(super) is_draining: bool,
    /// Whether the next report is whole.
    resend: bool,
    streams: DeltaSender<Object, Option<NodeId>>,
    viewers: DeltaSender<(GroupId, Object), u64>,
    /// Refused viewers, with the time of the last refusal.
    refused: BTreeMap<(GroupId, Object), (u64, Instant)>,
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

    /// Counts refused viewers as demand. A full table counts no new groups.
    pub(super) fn note_refused(&mut self, now: Instant, group: GroupId, object: Object, count: u64) {
        let is_full = self.refused.len() >= GROUPS_MAX && !self.refused.contains_key(&(group, object));
        if !is_full {
            self.refused.insert((group, object), (count, now));
        }
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
        let Some(update) = message.update else { return };
        let version = update.version;
        let mut rib = std::mem::take(&mut self.rib);
        let installed = rib.install(update, |node| self.neighbours.has(node));
        self.rib = rib;
        match installed {
            Ok(()) => {
                self.shadows.keep(version, self.rib.central_fib());
                self.emit(Event::Installed(version));
                self.follow_plan(now);
                self.timers.report = now;
            }
            Err(error) => self.emit(Event::UpdateRefused(error)),
        }
    }

    /// Reports soon, as the controller waits for moves: at most ten times a second.
    pub(super) fn report_soon(&mut self, now: Instant) {
        self.timers.report = self.timers.report.min(now + REPORT_DELAY);
    }

    pub(super) fn report(&mut self, now: Instant) {
        let memory = self.settings.demand_memory;
        self.controller.refused.retain(|_, (_, at)| now < *at + memory);
        let delivered = |(object, stream): (&Object, &super::Stream)| {
            let parent = stream.current.as_ref().map(|current| current.parent);
            (stream.is_imported || parent.is_some()).then_some((*object, parent))
        };
        let streams = self.streams.iter().filter_map(delivered).collect();
        let mut viewers: BTreeMap<(GroupId, Object), u64> =
            self.controller.refused.iter().map(|(key, (count, _))| (*key, *count)).collect();
        for (object, stream) in &self.streams {
            let waiting = stream.waiting.iter().map(|(_, group)| (*group, 1));
            for (group, count) in stream.viewers.iter().map(|(group, count)| (*group, *count)).chain(waiting)
            {
                *viewers.entry((group, *object)).or_default() += count;
            }
        }
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
