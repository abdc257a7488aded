//! The streams of a node: which parent is asked for an object, and when.

use super::{Event, GROUPS_MAX, GroupId, NODE_STREAMS_MAX, Node, RequestId, WAITING_MAX};
use crate::control::local;
use crate::control::messages::{Cause, ChildSays, Refusal};
use crate::control::tables::{Evidence, Origin, Prefix, Version, Viewership};
use crate::{NodeId, Object};
use anabranch_units::Instant;
use std::collections::{BTreeMap, BTreeSet};

/// Progress of a request to a parent.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Sent this number of times.
    Asked(u32),
    /// The parent has admitted it.
    Granted,
    /// Video has arrived.
    Delivering,
}

/// A stream at one parent.
#[derive(Clone, Debug)]
pub(super) struct Upstream {
    pub(super) parent: NodeId,
    /// The last attempt. A repeated request has a new one, as the parent may answer each
    /// differently, and answers may arrive out of order.
    attempt: u64,
    /// The first attempt: a grant of any counts, a refusal of the last only.
    first_attempt: u64,
    /// Version that routed the request; `None` after a local decision.
    version: Option<Version>,
    cause: Cause,
    phase: Phase,
}

/// An object at a node.
#[derive(Clone, Debug, Default)]
pub(super) struct Stream {
    /// Whether this node is a source that imports the object.
    pub(super) is_imported: bool,
    /// Children in whose ledger the object stands, and whether they have been told of the grant.
    pub(super) children: BTreeMap<NodeId, bool>,
    pub(super) viewers: BTreeMap<GroupId, u64>,
    pub(super) waiting: Vec<(RequestId, GroupId)>,
    /// The parent that delivers.
    pub(super) current: Option<Upstream>,
    /// The parent that is asked, at first or instead of `current`.
    pub(super) next: Option<Upstream>,
    /// Parents that have refused, or not delivered, since the last delivery.
    tried: BTreeSet<NodeId>,
    /// Version and decision that the first request brought along.
    requested: Option<(Option<Version>, Cause)>,
    /// Deadline of `next`.
    due: Option<Instant>,
}

impl Stream {
    /// A stream for which a child asks.
    pub(super) fn asked_by(version: Option<Version>, cause: Cause) -> Self {
        Self { requested: Some((version, cause)), ..Self::default() }
    }

    /// Whether requests can be granted: the object is imported, or a parent has granted it.
    pub(super) fn is_served(&self) -> bool {
        let is_granted = self.next.as_ref().is_some_and(|next| next.phase == Phase::Granted);
        self.is_imported || self.current.is_some() || is_granted
    }

    fn is_wanted(&self) -> bool {
        self.is_imported || !(self.children.is_empty() && self.viewers.is_empty() && self.waiting.is_empty())
    }
}

impl Node {
    /// A viewer asks for an object. An event with `request` follows, at once or later.
    pub fn handle_viewer(&mut self, now: Instant, request: RequestId, group: GroupId, object: Object) {
        let is_full = self.streams.len() >= NODE_STREAMS_MAX && !self.streams.contains_key(&object);
        let has_no_room = self.streams.get(&object).is_some_and(|stream| {
            let is_new = !stream.viewers.contains_key(&group);
            stream.waiting.len() >= WAITING_MAX || (is_new && stream.viewers.len() >= GROUPS_MAX)
        });
        let why = if self.controller.is_draining {
            Some(Refusal::Draining)
        } else {
            (is_full || has_no_room).then_some(Refusal::TableFull)
        };
        if let Some(why) = why {
            self.controller.note_refused(now, group, object, 1);
            return self.emit(Event::ViewerRefused(request, why));
        }
        let stream = self.streams.entry(object).or_default();
        if stream.is_served() {
            *stream.viewers.entry(group).or_default() += 1;
            self.emit(Event::ViewerAdmitted(request));
        } else {
            stream.waiting.push((request, group));
            self.seek(now, object);
        }
    }

    /// The number of a group's admitted viewers has changed; 0 if all have left.
    pub fn handle_audience(&mut self, group: GroupId, object: Object, viewers: u64) {
        let Some(stream) = self.streams.get_mut(&object) else { return };
        if let (Some(count), 1..) = (stream.viewers.get_mut(&group), viewers) {
            *count = viewers;
        } else if viewers == 0 && stream.viewers.remove(&group).is_some() {
            self.end_if_unwanted(object);
        }
    }

    /// An admitted viewer has left.
    pub fn handle_viewer_left(&mut self, group: GroupId, object: Object) {
        let Some(stream) = self.streams.get_mut(&object) else { return };
        let Some(count) = stream.viewers.get_mut(&group) else { return };
        *count -= 1;
        if *count == 0 {
            stream.viewers.remove(&group);
        }
        self.end_if_unwanted(object);
    }

    /// A viewer no longer waits for the answer to its request.
    pub fn handle_viewer_cancelled(&mut self, request: RequestId, object: Object) {
        if let Some(stream) = self.streams.get_mut(&object) {
            stream.waiting.retain(|(waiting, _)| *waiting != request);
            self.end_if_unwanted(object);
        }
    }

    /// Video of an object has arrived from a parent.
    pub fn handle_delivered(&mut self, now: Instant, object: Object, parent: NodeId) {
        let Some(stream) = self.streams.get_mut(&object) else { return };
        let is_next = |next: &Upstream| next.parent == parent && next.phase == Phase::Granted;
        if !stream.next.as_ref().is_some_and(is_next) {
            return;
        }
        let next = stream.next.take().map(|next| Upstream { phase: Phase::Delivering, ..next });
        let is_local = next.as_ref().is_some_and(|next| next.version.is_none());
        let old = std::mem::replace(&mut stream.current, next);
        stream.tried.clear();
        self.set_due(object, None);
        if let Some(old) = old {
            self.emit(Event::Stop(object, old.parent));
            self.give_up(old.parent, object, old.attempt);
            self.report_soon(now);
        }
        if is_local {
            let evidence = self.evidence(object);
            self.rib.decide(Prefix::Object(object), parent, evidence);
        } else {
            self.rib.forget(Prefix::Object(object));
        }
    }

    /// No video of an object has arrived from its parent for a time that the driver sets, although
    /// the parent is up.
    pub fn handle_stalled(&mut self, now: Instant, object: Object) {
        let Some(stream) = self.streams.get_mut(&object) else { return };
        let Some(current) = stream.current.take() else { return };
        stream.tried = [current.parent].into();
        self.emit(Event::Stop(object, current.parent));
        self.give_up(current.parent, object, current.attempt);
        self.seek_if_lost(now, object);
    }

    /// Asks a parent for a stream that is not served: by the version that routed the request, by
    /// the present tables, or by Algorithm 1. The stream ends if no parent is left.
    pub(super) fn seek(&mut self, now: Instant, object: Object) {
        let stream = &self.streams[&object];
        if stream.next.is_some() || stream.is_served() {
            return;
        }
        let version = stream.requested.and_then(|(version, _)| version);
        let routed = self.routed(now, object, version);
        let routed = routed.filter(|(parent, _)| self.can_ask(object, *parent));
        if let Some((parent, version)) = routed {
            return self.ask(now, object, parent, version);
        }
        match self.decide(object) {
            Some(parent) => self.ask(now, object, parent, None),
            None => self.end(now, object, Refusal::NoParent),
        }
    }

    /// Seeks a parent if the stream has lost the one that it had.
    pub(super) fn seek_if_lost(&mut self, now: Instant, object: Object) {
        if self.streams.get(&object).is_some_and(Stream::is_wanted) {
            self.seek(now, object);
        }
    }

    /// The route of a request by the tables. A request without a version follows the present ones,
    /// and one with a version the tables of that version (§4.4.3).
    fn routed(
        &self,
        now: Instant,
        object: Object,
        version: Option<Version>,
    ) -> Option<(NodeId, Option<Version>)> {
        if let Some(version) = version.filter(|version| *version != self.rib.version()) {
            let parent = self.shadows.of(version)?.lookup(object, None)?;
            return Some((parent, Some(version)));
        }
        // The sender of a versioned request hears the controller, so its silence is no reason here.
        let is_stale = |entry: &_| match version {
            Some(_) => self.has_changed(entry),
            None => self.is_stale(now, entry),
        };
        let entry = self.rib.route(object, None, is_stale)?;
        Some((entry.next_hop, (entry.origin == Origin::Central).then_some(entry.version)))
    }

    fn can_ask(&self, object: Object, parent: NodeId) -> bool {
        let is_up = self.neighbours.offer(parent).is_some_and(|offer| !offer.is_draining);
        is_up && !self.streams[&object].tried.contains(&parent)
    }

    /// Algorithm 1 among the parents that have not refused.
    fn decide(&mut self, object: Object) -> Option<NodeId> {
        let stream = &self.streams[&object];
        let delivers = |parent| stream.current.as_ref().is_some_and(|current| current.parent == parent);
        let ways = self.neighbours.ways(object);
        let ways = ways.filter(|via| !stream.tried.contains(&via.parent) && !delivers(via.parent));
        local::choose(self.settings.rule, object.bitrate, ways, &mut self.random)
    }

    /// Sends a request to a parent.
    fn ask(&mut self, now: Instant, object: Object, parent: NodeId, version: Option<Version>) {
        self.attempts += 1;
        let attempt = self.attempts;
        let stream = self.streams.get_mut(&object).expect("callers asked");
        // A further parent for a child's request has the same cause, and no version.
        stream.requested = stream.requested.map(|(_, cause)| (None, cause));
        let cause = stream.requested.map_or(Cause { node: self.id, attempt }, |(_, cause)| cause);
        stream.next = Some(Upstream {
            parent,
            attempt,
            first_attempt: attempt,
            version,
            cause,
            phase: Phase::Asked(1),
        });
        self.parents.get_mut(&parent).expect("routes lead to parents").held.insert(object, attempt);
        self.neighbours.spend(parent, object.bitrate);
        self.send_parent(parent, ChildSays::Subscribe { object, attempt, version, cause });
        self.set_due(object, Some(now + self.settings.ask_timeout));
    }

    /// Repeats a request, by a new attempt: the parent has not answered, or has no record of it.
    pub(super) fn ask_again(&mut self, parent: NodeId, object: Object, attempt: u64) {
        self.forget_attempt(parent, object, attempt);
        let Some(stream) = self.streams.get_mut(&object) else { return };
        let is_this = |upstream: &&mut Upstream| upstream.parent == parent && upstream.attempt == attempt;
        let current = stream.current.as_mut().filter(is_this);
        let Some(upstream) = current.or_else(|| stream.next.as_mut().filter(is_this)) else { return };
        self.attempts += 1;
        let attempt = self.attempts;
        upstream.attempt = attempt;
        let (version, cause) = (upstream.version, upstream.cause);
        self.parents.get_mut(&parent).expect("callers asked").held.insert(object, attempt);
        self.send_parent(parent, ChildSays::Subscribe { object, attempt, version, cause });
    }

    /// A parent has admitted a request.
    pub(super) fn handle_granted(&mut self, now: Instant, parent: NodeId, object: Object, attempt: u64) {
        let stream = self.streams.get_mut(&object);
        let next = stream.and_then(|stream| stream.next.as_mut());
        let is_this = |next: &&mut Upstream| {
            next.parent == parent && (next.first_attempt..=next.attempt).contains(&attempt)
        };
        let Some(next) = next.filter(is_this) else {
            if self.parents[&parent].held.of(object) != Some(attempt) {
                self.give_up(parent, object, attempt);
            }
            return;
        };
        if next.phase == Phase::Granted {
            return;
        }
        next.phase = Phase::Granted;
        let (cause, version) = (next.cause, next.version);
        self.streams.get_mut(&object).expect("found above").requested = None;
        self.set_due(object, Some(now + self.settings.deliver_timeout));
        self.emit(Event::Fetch { object, parent, cause, version });
        self.grant_children(object);
        let stream = self.streams.get_mut(&object).expect("found above");
        for (request, group) in std::mem::take(&mut stream.waiting) {
            *stream.viewers.entry(group).or_default() += 1;
            self.output.events.push_back(Event::ViewerAdmitted(request));
        }
    }

    /// A parent has refused a request, or ended a stream.
    pub(super) fn handle_refused(&mut self, now: Instant, parent: NodeId, object: Object, attempt: u64) {
        self.forget_attempt(parent, object, attempt);
        let Some(stream) = self.streams.get_mut(&object) else { return };
        let is_this = |upstream: &Upstream| upstream.parent == parent && upstream.attempt == attempt;
        let is_next = stream.next.as_ref().is_some_and(is_this);
        if !is_next && !stream.current.as_ref().is_some_and(is_this) {
            return;
        }
        stream.tried.insert(parent);
        if stream.current.is_some() && is_next {
            // A refused move: the next look at the plan tries again.
            stream.tried.clear();
        }
        self.lose_upstream(object, parent);
        self.seek_if_lost(now, object);
    }

    /// The deadline of a request has passed.
    pub(super) fn handle_stream_due(&mut self, now: Instant, object: Object) {
        let Some(stream) = self.streams.get_mut(&object) else { return };
        stream.due = None;
        let asks_max = self.settings.asks_max;
        let Some(next) = stream.next.as_mut() else { return };
        let (parent, attempt) = (next.parent, next.attempt);
        if let Phase::Asked(count) = &mut next.phase
            && *count < asks_max
        {
            *count += 1;
            self.set_due(object, Some(now + self.settings.ask_timeout));
            return self.ask_again(parent, object, attempt);
        }
        if stream.current.is_none() {
            stream.tried.insert(parent);
        }
        self.lose_upstream(object, parent);
        self.give_up(parent, object, attempt);
        self.seek_if_lost(now, object);
    }

    /// The stream at this parent, asked or delivered, is over.
    pub(super) fn lose_upstream(&mut self, object: Object, parent: NodeId) {
        let stream = self.streams.get_mut(&object).expect("callers asked");
        let is_there = |upstream: &&mut Upstream| upstream.parent == parent;
        let next = stream.next.as_mut().filter(is_there).map(|next| next.phase);
        let is_current = stream.current.as_mut().filter(is_there).is_some();
        if is_current {
            stream.current = None;
        }
        if next.is_some() {
            stream.next = None;
            if stream.current.is_some() {
                stream.requested = None;
            }
            self.set_due(object, None);
        }
        if is_current || next == Some(Phase::Granted) {
            self.emit(Event::Stop(object, parent));
        }
    }

    /// Ends a stream that no viewer and no child wants.
    pub(super) fn end_if_unwanted(&mut self, object: Object) {
        if self.streams.get(&object).is_none_or(Stream::is_wanted) {
            return;
        }
        self.set_due(object, None);
        let stream = self.streams.remove(&object).expect("found above");
        for upstream in [stream.current, stream.next].into_iter().flatten() {
            if !matches!(upstream.phase, Phase::Asked(_)) {
                self.emit(Event::Stop(object, upstream.parent));
            }
            self.give_up(upstream.parent, object, upstream.attempt);
        }
        self.rib.forget(Prefix::Object(object));
    }

    /// Ends a stream that no parent delivers: children and viewers must ask elsewhere.
    fn end(&mut self, now: Instant, object: Object, why: Refusal) {
        self.refuse_children(object, why);
        self.lose_viewers(now, object, why);
        self.end_if_unwanted(object);
    }

    /// Moves streams whose planned parent is another one, and streams of parents that are drained.
    /// The old parent serves until the new one delivers.
    pub(super) fn follow_plan(&mut self, now: Instant) {
        let mut moves = Vec::new();
        for (object, stream) in &self.streams {
            let Some(current) = stream.current.as_ref().filter(|_| stream.next.is_none()) else { continue };
            let planned = self.rib.route(*object, None, |entry| self.is_stale(now, entry));
            let planned = planned.filter(|entry| entry.origin == Origin::Central);
            let is_draining = self.neighbours.offer(current.parent).is_some_and(|offer| offer.is_draining);
            match planned {
                Some(entry) if entry.next_hop != current.parent => {
                    moves.push((*object, Some((entry.next_hop, entry.version))));
                }
                None if is_draining => moves.push((*object, None)),
                _ => {}
            }
        }
        for (object, planned) in moves {
            match planned {
                Some((parent, version)) => self.ask(now, object, parent, Some(version)),
                None => {
                    if let Some(parent) = self.decide(object) {
                        self.ask(now, object, parent, None);
                    }
                }
            }
        }
        let mut rib = std::mem::take(&mut self.rib);
        rib.drop_overrides(|entry| self.is_stale(now, entry));
        self.rib = rib;
    }

    fn evidence(&self, object: Object) -> Evidence {
        let state = |(link, _)| (link, self.neighbours.link_state(link));
        let viewers = self.streams[&object].viewers.values().sum();
        Evidence {
            links: self.neighbours.links().map(state).collect(),
            viewers: vec![Viewership { object, viewers }],
        }
    }

    fn set_due(&mut self, object: Object, due: Option<Instant>) {
        let stream = self.streams.get_mut(&object).expect("callers asked");
        if let Some(earlier) = std::mem::replace(&mut stream.due, due) {
            self.due.remove(&(earlier, object));
        }
        if let Some(due) = due {
            self.due.insert((due, object));
        }
    }
}
