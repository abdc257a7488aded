//! The streams of a node: from which parent an object is requested, and when.

use super::{Event, GROUPS_MAX, GroupId, NODE_STREAMS_MAX, Node, RequestId, WAITING_MAX};
use crate::control::local;
use crate::control::messages::{Cause, ChildMessage, Refusal};
use crate::control::tables::{Evidence, Origin, Prefix, Version, Viewership};
use crate::{NodeId, Object};
use anabranch_units::Instant;
use std::collections::{BTreeMap, BTreeSet};

/// Progress of a request to a parent.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// The request has been sent this number of times.
    Asked(u32),
    /// The parent has admitted the request.
    Granted,
    /// Video has arrived.
    Delivering,
}

/// A stream requested or received from one parent.
#[derive(Clone, Debug)]
pub(super) struct Upstream {
    pub(super) parent: NodeId,
    /// Number of the last attempt. A repeated request has a new number, because the parent may
    /// answer each attempt differently, and answers may arrive out of order.
    attempt: u64,
    /// Number of the first attempt. A grant of any attempt is accepted, a refusal only of the last.
    first_attempt: u64,
    /// Number of the last granted attempt; `None` before the first grant and after a repeated
    /// request.
    granted: Option<u64>,
    /// When the last attempt was sent.
    asked_at: Instant,
    /// Version of the tables that routed the request; `None` after a local decision.
    version: Option<Version>,
    cause: Cause,
    phase: Phase,
}

/// State of an object at a node.
#[derive(Clone, Debug, Default)]
pub(super) struct Stream {
    /// Whether this node is a source that imports the object.
    pub(super) is_imported: bool,
    /// Children with the object in their ledger, and whether each has been sent the grant.
    pub(super) children: BTreeMap<NodeId, bool>,
    pub(super) viewers: BTreeMap<GroupId, u64>,
    pub(super) waiting: Vec<(RequestId, GroupId)>,
    /// The parent that delivers.
    pub(super) current: Option<Upstream>,
    /// The parent that is being asked, as the first parent or to replace `current`.
    pub(super) next: Option<Upstream>,
    /// Parents that have refused, or not delivered, since the last delivery.
    tried: BTreeSet<NodeId>,
    /// Version and cause of the request that created the stream.
    requested: Option<(Option<Version>, Cause)>,
    /// Deadline of `next`.
    due: Option<Instant>,
}

impl Stream {
    /// Creates a stream for a child's request.
    pub(super) fn asked_by(version: Option<Version>, cause: Cause) -> Self {
        Self { requested: Some((version, cause)), ..Self::default() }
    }

    /// Whether requests can be granted: the node imports the object, or a parent has granted it.
    pub(super) fn is_served(&self) -> bool {
        let is_granted = self.next.as_ref().is_some_and(|next| next.phase == Phase::Granted);
        self.is_imported || self.current.is_some() || is_granted
    }

    fn is_wanted(&self) -> bool {
        self.is_imported || !(self.children.is_empty() && self.viewers.is_empty() && self.waiting.is_empty())
    }
}

impl Node {
    /// Takes a viewer's request for an object. An event with `request` follows, at once or later.
    pub fn handle_viewer(&mut self, now: Instant, request: RequestId, group: GroupId, object: Object) {
        let is_full = self.streams.len() >= NODE_STREAMS_MAX && !self.streams.contains_key(&object);
        let is_served = self.streams.get(&object).is_some_and(Stream::is_served);
        let has_no_room =
            (!is_served && self.audience.waiting >= WAITING_MAX) || !self.has_room_for_group(group, object);
        let why = if self.controller.is_draining {
            Some(Refusal::Draining)
        } else {
            (is_full || has_no_room).then_some(Refusal::TableFull)
        };
        if let Some(why) = why {
            self.note_refused(now, group, object);
            return self.emit(Event::ViewerRefused(request, why));
        }
        if is_served {
            self.admit_viewer(request, group, object);
        } else {
            self.streams.entry(object).or_default().waiting.push((request, group));
            self.audience.waiting += 1;
            self.seek(now, object);
        }
    }

    /// Sets the number of a group's admitted viewers; 0 if all have left.
    pub fn handle_audience(&mut self, group: GroupId, object: Object, viewers: u64) {
        let Some(stream) = self.streams.get_mut(&object) else { return };
        if let (Some(count), 1..) = (stream.viewers.get_mut(&group), viewers) {
            *count = viewers;
        } else if viewers == 0 && stream.viewers.remove(&group).is_some() {
            self.audience.groups -= 1;
            self.end_if_unwanted(object);
        }
    }

    /// Whether a group can watch an object: it already does, or fewer than [`GROUPS_MAX`] groups
    /// do.
    fn has_room_for_group(&self, group: GroupId, object: Object) -> bool {
        let watches = self.streams.get(&object).is_some_and(|stream| stream.viewers.contains_key(&group));
        watches || self.audience.groups < GROUPS_MAX
    }

    fn admit_viewer(&mut self, request: RequestId, group: GroupId, object: Object) {
        let viewers = &mut self.streams.get_mut(&object).expect("callers asked").viewers;
        self.audience.groups += usize::from(!viewers.contains_key(&group));
        *viewers.entry(group).or_default() += 1;
        self.emit(Event::ViewerAdmitted(request));
    }

    /// Takes the departure of an admitted viewer.
    pub fn handle_viewer_left(&mut self, group: GroupId, object: Object) {
        let Some(stream) = self.streams.get_mut(&object) else { return };
        let Some(count) = stream.viewers.get_mut(&group) else { return };
        *count -= 1;
        if *count == 0 {
            stream.viewers.remove(&group);
            self.audience.groups -= 1;
        }
        self.end_if_unwanted(object);
    }

    /// Drops the waiting request of a viewer.
    pub fn handle_viewer_cancelled(&mut self, request: RequestId, object: Object) {
        if let Some(stream) = self.streams.get_mut(&object) {
            let before = stream.waiting.len();
            stream.waiting.retain(|(waiting, _)| *waiting != request);
            self.audience.waiting -= before - stream.waiting.len();
            self.end_if_unwanted(object);
        }
    }

    /// Takes the arrival of an object's video from a parent.
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

    /// Takes a stall: no video of an object has arrived from its parent for a time that the driver
    /// sets, although the parent is up.
    pub fn handle_stalled(&mut self, now: Instant, object: Object) {
        let Some(stream) = self.streams.get_mut(&object) else { return };
        let Some(current) = stream.current.take() else { return };
        stream.tried = [current.parent].into();
        self.emit(Event::Stop(object, current.parent));
        self.give_up(current.parent, object, current.attempt);
        self.seek_if_lost(now, object);
    }

    /// Takes a failure of a parent for one object: it is unreachable, or has broken off its answer.
    /// The stream moves, or a grant of this parent counts as refused.
    pub fn handle_undelivered(&mut self, now: Instant, object: Object, parent: NodeId) {
        if self.upstream(object) == Some(parent) {
            return self.handle_stalled(now, object);
        }
        let next = self.streams.get(&object).and_then(|stream| stream.next.as_ref());
        if next.is_some_and(|next| next.parent == parent && next.phase == Phase::Granted) {
            self.set_due(object, None);
            self.handle_stream_due(now, object);
        }
    }

    /// Asks a parent for a stream that is not served. The parent comes from the version that routed
    /// the request, from the current tables, or from Algorithm 1. If no parent is left, the stream
    /// ends; under [`super::ControlMode::Centralized`] it waits for tables.
    pub(super) fn seek(&mut self, now: Instant, object: Object) {
        let stream = &self.streams[&object];
        if stream.next.is_some() || stream.is_served() {
            return;
        }
        let version = stream.requested.and_then(|(version, _)| version);
        let own_tables = || if self.is_centralized() { self.routed(now, object, None) } else { None };
        let routed = self.routed(now, object, version).or_else(own_tables);
        let routed = routed.filter(|(parent, _)| self.can_ask(object, *parent));
        if let Some((parent, version)) = routed {
            return self.ask(now, object, parent, version);
        }
        match self.decide(object) {
            Some(parent) => self.ask(now, object, parent, None),
            None if self.is_centralized() => {}
            None => self.end(now, object, Refusal::NoParent),
        }
    }

    /// Asks for the streams that wait for the controller's tables, including refused ones.
    pub(super) fn seek_routes(&mut self, now: Instant) {
        if !self.is_centralized() {
            return;
        }
        let waits = |stream: &&mut Stream| stream.next.is_none() && !stream.is_served() && stream.is_wanted();
        self.streams.values_mut().filter(waits).for_each(|stream| stream.tried.clear());
        let waiting = self.streams.iter().filter(|(_, stream)| stream.tried.is_empty());
        let waiting: Vec<Object> = waiting.map(|(object, _)| *object).collect();
        waiting.into_iter().for_each(|object| self.seek_if_lost(now, object));
    }

    /// Seeks a parent if the stream has lost its parent.
    pub(super) fn seek_if_lost(&mut self, now: Instant, object: Object) {
        if self.streams.get(&object).is_some_and(Stream::is_wanted) {
            self.seek(now, object);
        }
    }

    /// The route of a request by the tables of its version, or by the current tables if the request
    /// has no version (§4.4.3).
    fn routed(
        &self,
        now: Instant,
        object: Object,
        version: Option<Version>,
    ) -> Option<(NodeId, Option<Version>)> {
        if let Some(version) = version.filter(|version| *version != self.rib.version()) {
            let parent = self.shadows.of(version)?.lookup(object)?;
            return Some((parent, Some(version)));
        }
        // A versioned request proves that its sender receives the controller's tables, so the
        // silence of the controller does not make them stale.
        let is_stale = |entry: &_| match version {
            Some(_) => self.has_changed(entry),
            None => self.is_stale(now, entry),
        };
        let entry = self.rib.route(object, is_stale)?;
        Some((entry.next_hop, (entry.origin == Origin::Central).then_some(entry.version)))
    }

    fn can_ask(&self, object: Object, parent: NodeId) -> bool {
        let is_up = self.neighbours.offer(parent).is_some_and(|offer| !offer.is_draining);
        is_up && !self.streams[&object].tried.contains(&parent)
    }

    /// Runs Algorithm 1 over the parents that have not refused. Returns `None` under central
    /// control.
    fn decide(&mut self, object: Object) -> Option<NodeId> {
        if self.is_centralized() {
            return None;
        }
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
        // A request to a further parent keeps the child's cause, but not its version.
        stream.requested = stream.requested.map(|(_, cause)| (None, cause));
        let cause = stream.requested.map_or(Cause { node: self.id, attempt }, |(_, cause)| cause);
        stream.next = Some(Upstream {
            parent,
            attempt,
            first_attempt: attempt,
            granted: None,
            asked_at: now,
            version,
            cause,
            phase: Phase::Asked(1),
        });
        self.parents.get_mut(&parent).expect("routes lead to parents").held.insert(object, attempt);
        self.neighbours.spend(parent, object.bitrate);
        self.send_parent(parent, ChildMessage::Subscribe { object, attempt, version, cause });
        self.set_due(object, Some(now + self.settings.ask_timeout));
    }

    /// Handles a parent that has no record of a request. The node repeats the request, unless it
    /// was sent a moment ago: then the next comparison of digests finds a missing record.
    pub(super) fn handle_not_held(&mut self, now: Instant, parent: NodeId, object: Object, attempt: u64) {
        let every = self.settings.ask_timeout;
        let stream = self.streams.get(&object);
        let is_this = |upstream: &&Upstream| upstream.parent == parent && upstream.attempt == attempt;
        let upstreams = stream.into_iter().flat_map(|stream| stream.current.iter().chain(&stream.next));
        if upstreams.filter(is_this).all(|upstream| now >= upstream.asked_at + every) {
            self.ask_again(now, parent, object, attempt);
        }
    }

    /// Repeats a request with a new attempt, because the parent has not answered or has no record
    /// of it.
    fn ask_again(&mut self, now: Instant, parent: NodeId, object: Object, attempt: u64) {
        self.forget_attempt(parent, object, attempt);
        let Some(stream) = self.streams.get_mut(&object) else { return };
        let is_this = |upstream: &&mut Upstream| upstream.parent == parent && upstream.attempt == attempt;
        let current = stream.current.as_mut().filter(is_this);
        let Some(upstream) = current.or_else(|| stream.next.as_mut().filter(is_this)) else { return };
        self.attempts += 1;
        let attempt = self.attempts;
        (upstream.attempt, upstream.granted, upstream.asked_at) = (attempt, None, now);
        let (version, cause) = (upstream.version, upstream.cause);
        self.parents.get_mut(&parent).expect("callers asked").held.insert(object, attempt);
        self.send_parent(parent, ChildMessage::Subscribe { object, attempt, version, cause });
    }

    /// Takes a parent's grant of a request.
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
        next.granted = next.granted.max(Some(attempt));
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
        let waiting = std::mem::take(&mut stream.waiting);
        self.audience.waiting -= waiting.len();
        for (request, group) in waiting {
            if self.has_room_for_group(group, object) {
                self.admit_viewer(request, group, object);
            } else {
                self.note_refused(now, group, object);
                self.emit(Event::ViewerRefused(request, Refusal::TableFull));
            }
        }
        self.end_if_unwanted(object);
    }

    /// Takes a parent's refusal of a request, or its end of a stream. After a grant of an earlier
    /// attempt the refusal can be older than the grant. The node then asks again, and the next
    /// answer decides.
    pub(super) fn handle_refused(&mut self, now: Instant, parent: NodeId, object: Object, attempt: u64) {
        let is_this = |upstream: &Upstream| upstream.parent == parent && upstream.attempt == attempt;
        let upstreams = self.streams.get(&object).map(|stream| [&stream.current, &stream.next]);
        let upstream = upstreams.into_iter().flatten().flatten().find(|upstream| is_this(upstream));
        if upstream.is_some_and(|upstream| upstream.granted.is_some_and(|granted| granted < attempt)) {
            return self.ask_again(now, parent, object, attempt);
        }
        self.forget_attempt(parent, object, attempt);
        let Some(stream) = self.streams.get_mut(&object) else { return };
        let is_next = stream.next.as_ref().is_some_and(is_this);
        if !is_next && !stream.current.as_ref().is_some_and(is_this) {
            return;
        }
        stream.tried.insert(parent);
        if stream.current.is_some() && is_next {
            // A move was refused: the next check of the plan tries again.
            stream.tried.clear();
        }
        self.lose_upstream(object, parent);
        self.seek_if_lost(now, object);
    }

    /// Handles the deadline of a request.
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
            return self.ask_again(now, parent, object, attempt);
        }
        if stream.current.is_none() {
            stream.tried.insert(parent);
        }
        self.lose_upstream(object, parent);
        self.give_up(parent, object, attempt);
        self.seek_if_lost(now, object);
    }

    /// Removes this parent from the stream, whether it was asked or delivering.
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

    /// Ends a stream without viewers and children.
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

    /// Ends a stream that no parent delivers, and refuses its children and viewers.
    fn end(&mut self, now: Instant, object: Object, why: Refusal) {
        self.refuse_children(object, why);
        self.lose_viewers(now, object, why);
        self.end_if_unwanted(object);
    }

    /// Moves streams whose planned parent differs from their parent, and streams of drained
    /// parents. The old parent serves until the new parent delivers.
    pub(super) fn follow_plan(&mut self, now: Instant) {
        let mut moves = Vec::new();
        for (object, stream) in &self.streams {
            let Some(current) = stream.current.as_ref().filter(|_| stream.next.is_none()) else { continue };
            let planned = self.rib.route(*object, |entry| self.is_stale(now, entry));
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
            self.timers.streams.remove(&(earlier, object));
        }
        if let Some(due) = due {
            self.timers.streams.insert((due, object));
        }
    }
}
