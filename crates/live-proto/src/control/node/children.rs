//! A node's side towards its children: admission by the ledgers, heartbeats, advertisements.

use super::{ChildSession, Event, NODE_STREAMS_MAX, Node, ParentSession, Stream, is_due};
use crate::control::ledger::{Capacity, Digest, STREAMS_MAX};
use crate::control::messages::{Cause, ChildMessage, ParentMessage, Refusal, ToParent};
use crate::control::neighbours::Offer;
use crate::control::tables::Version;
use crate::{NodeId, Object};
use anabranch_units::{BitRate, Instant};

/// Number of consecutive heartbeats with a different digest after which the two ends compare their
/// attempts. A single heartbeat differs whenever a request is in flight.
const MISMATCHES_MAX: u32 = 2;

impl Node {
    /// Takes a message of a child. Messages of other nodes, and of earlier incarnations, are
    /// ignored.
    pub fn handle_child(&mut self, now: Instant, child: NodeId, message: ToParent) {
        let Some(session) = self.children.get(&child).filter(|session| message.life >= session.life) else {
            return;
        };
        if message.life > session.life {
            self.release_child(child);
            self.forget_measurement(child);
        }
        let session = self.children.get_mut(&child).expect("found above");
        (session.life, session.heard_at) = (message.life, Some(now));
        match message.body {
            ChildMessage::Subscribe { object, attempt, version, cause } => {
                self.handle_subscribe(now, child, (object, attempt), version, cause);
            }
            ChildMessage::Unsubscribe { object, attempt } => {
                if session.ledger.attempts().of(object).is_some_and(|held| held <= attempt) {
                    self.release(child, object);
                }
            }
            ChildMessage::Heartbeat(digest) => self.compare(child, digest),
            ChildMessage::Held { last_attempt, held } => self.handle_held(child, last_attempt, held),
            ChildMessage::Resend => self.resend_table(now, child),
            ChildMessage::Measured(rate) => self.take_measurement(child, rate),
        }
    }

    /// Sends the whole advertisement to a child, at most twice in an advertisement period.
    fn resend_table(&mut self, now: Instant, child: NodeId) {
        let every = self.whole_table_every();
        let session = self.children.get_mut(&child).expect("callers asked");
        if let Some(whole) = self.advertiser.whole()
            && is_due(&mut session.resent_at, now, every)
        {
            self.send_child(child, ParentMessage::Advertisement(whole));
        }
    }

    /// Starts the import of an object at a source. Returns false and imports nothing at other tiers
    /// or beyond [`NODE_STREAMS_MAX`] streams.
    pub fn handle_import(&mut self, object: Object) -> bool {
        let has_room = self.streams.len() < NODE_STREAMS_MAX || self.streams.contains_key(&object);
        let is_taken = has_room && self.controller.is_source;
        if is_taken {
            self.streams.entry(object).or_default().is_imported = true;
        }
        is_taken
    }

    /// Ends the import of an object at a source, and refuses its children.
    pub fn handle_import_ended(&mut self, object: Object) {
        if self.streams.get(&object).is_some_and(|stream| stream.is_imported) {
            self.refuse_children(object, Refusal::NotImported);
            let stream = self.streams.remove(&object).expect("found above");
            self.audience.groups -= stream.viewers.len();
            if !stream.viewers.is_empty() {
                self.emit(Event::ViewersLost(object, Refusal::NotImported));
            }
        }
    }

    /// Sets the capacity of the link to a child after a new measurement or a new declared value.
    /// Streams that do not fit are refused, the last admitted first.
    pub fn handle_capacity(&mut self, child: NodeId, capacity: Capacity) {
        let Some(session) = self.children.get_mut(&child) else { return };
        for (object, attempt) in session.ledger.set_capacity(capacity) {
            self.send_child(child, ParentMessage::Refused { object, attempt, why: Refusal::Evicted });
            self.detach(child, object);
        }
        self.send_offer(child);
    }

    /// Takes a child's measured rate of the link.
    fn take_measurement(&mut self, child: NodeId, rate: BitRate) {
        let session = self.children.get_mut(&child).expect("callers asked");
        let before = session.ledger.capacity();
        let capacity = Capacity { measured: Some(rate), ..before };
        if capacity != before {
            session.is_measured = true;
            self.handle_capacity(child, capacity);
        }
    }

    /// Discards the measurement of a child that has restarted.
    fn forget_measurement(&mut self, child: NodeId) {
        let session = self.children.get_mut(&child).expect("callers asked");
        if std::mem::take(&mut session.is_measured) {
            let declared = Capacity::declared(session.ledger.capacity().declared);
            self.handle_capacity(child, declared);
        }
    }

    fn handle_subscribe(
        &mut self,
        now: Instant,
        child: NodeId,
        (object, attempt): (Object, u64),
        version: Option<Version>,
        cause: Cause,
    ) {
        let is_source = self.controller.is_source;
        let is_full = self.streams.len() >= NODE_STREAMS_MAX;
        let session = self.children.get_mut(&child).expect("callers asked");
        let held = session.ledger.attempts().of(object);
        if held.is_some_and(|held| held > attempt) {
            return;
        }
        let has_stream = self.streams.contains_key(&object);
        let why = if held.is_some() {
            None
        } else if self.controller.is_draining {
            Some(Refusal::Draining)
        } else if is_source && !has_stream {
            Some(Refusal::NotImported)
        } else if !has_stream && is_full {
            Some(Refusal::TableFull)
        } else {
            None
        };
        let why = why.or_else(|| (!session.ledger.admit(object, attempt)).then_some(Refusal::NoCapacity));
        if let Some(why) = why {
            return self.send_child(child, ParentMessage::Refused { object, attempt, why });
        }
        let stream = self.streams.entry(object).or_insert_with(|| Stream::asked_by(version, cause));
        let is_served = stream.is_served();
        stream.children.insert(child, is_served);
        if is_served {
            self.send_child(child, ParentMessage::Granted { object, attempt });
        } else {
            self.seek(now, object);
        }
    }

    /// Grants an object to all children that wait for it.
    pub(super) fn grant_children(&mut self, object: Object) {
        let stream = self.streams.get_mut(&object).expect("callers asked");
        let waiting = stream.children.iter_mut().filter(|(_, is_granted)| !**is_granted);
        let waiting: Vec<NodeId> = waiting
            .map(|(child, is_granted)| {
                *is_granted = true;
                *child
            })
            .collect();
        for child in waiting {
            let attempt = self.children[&child].ledger.attempts().of(object).expect("children are admitted");
            self.send_child(child, ParentMessage::Granted { object, attempt });
        }
    }

    /// Ends an object's streams to all children, and refuses their requests.
    pub(super) fn refuse_children(&mut self, object: Object, why: Refusal) {
        let stream = self.streams.get_mut(&object).expect("callers asked");
        for child in std::mem::take(&mut stream.children).into_keys() {
            let session = self.children.get_mut(&child).expect("children of streams are children");
            let attempt = session.ledger.attempts().of(object).expect("children are admitted");
            session.ledger.release(object);
            self.send_child(child, ParentMessage::Refused { object, attempt, why });
        }
    }

    /// Releases all streams of a failed or restarted child.
    pub(super) fn release_child(&mut self, child: NodeId) {
        let session = self.children.get_mut(&child).expect("callers asked");
        (session.heard_at, session.mismatches) = (None, 0);
        let objects: Vec<Object> = session.ledger.attempts().iter().map(|(object, _)| object).collect();
        objects.into_iter().for_each(|object| self.release(child, object));
    }

    fn release(&mut self, child: NodeId, object: Object) {
        let session = self.children.get_mut(&child).expect("callers asked");
        if session.ledger.release(object) {
            self.detach(child, object);
        }
    }

    /// Removes a child from a stream.
    fn detach(&mut self, child: NodeId, object: Object) {
        if let Some(stream) = self.streams.get_mut(&object) {
            stream.children.remove(&child);
        }
        self.end_if_unwanted(object);
    }

    fn compare(&mut self, child: NodeId, digest: Digest) {
        let session = self.children.get_mut(&child).expect("callers asked");
        let is_same = session.ledger.attempts().digest() == digest;
        session.mismatches = if is_same { 0 } else { session.mismatches + 1 };
        if session.mismatches >= MISMATCHES_MAX {
            session.mismatches = 0;
            self.send_child(child, ParentMessage::Compare);
        }
    }

    fn handle_held(&mut self, child: NodeId, last_attempt: u64, held: Vec<(Object, u64)>) {
        if held.len() > STREAMS_MAX {
            return;
        }
        let held: std::collections::BTreeMap<Object, u64> = held.into_iter().collect();
        let ledger = &self.children[&child].ledger;
        // A later attempt for an object is a repeated request in flight, so the stream continues.
        let is_over = |(object, attempt): &(Object, u64)| {
            *attempt <= last_attempt && held.get(object).is_none_or(|held| held < attempt)
        };
        let over: Vec<_> = ledger.attempts().iter().filter(is_over).collect();
        let missing = held
            .iter()
            .filter(|(object, attempt)| ledger.attempts().of(**object).is_none_or(|known| known < **attempt));
        let missing: Vec<_> = missing.map(|(object, attempt)| (*object, *attempt)).collect();
        over.into_iter().for_each(|(object, _)| self.release(child, object));
        for (object, attempt) in missing {
            self.send_child(child, ParentMessage::Refused { object, attempt, why: Refusal::NotHeld });
        }
    }

    pub(super) fn send_heartbeats(&mut self) {
        let children: Vec<NodeId> = self.children.keys().copied().collect();
        children.into_iter().for_each(|child| self.send_offer(child));
        let of_session =
            |(parent, session): (&NodeId, &ParentSession)| (*parent, session.held.digest(), session.measured);
        let parents: Vec<_> = self.parents.iter().map(of_session).collect();
        for (parent, digest, measured) in parents {
            self.send_parent(parent, ChildMessage::Heartbeat(digest));
            if let Some(measured) = measured {
                self.send_parent(parent, ChildMessage::Measured(measured));
            }
        }
    }

    fn send_offer(&mut self, child: NodeId) {
        let ChildSession { ledger, .. } = &self.children[&child];
        let (capacity, spare) = (ledger.capacity().believed(), ledger.spare());
        let (is_draining, is_limited) = (self.controller.is_draining, self.is_limited());
        let offer = Offer { capacity, spare, is_draining, is_limited };
        self.send_child(child, ParentMessage::Heartbeat(offer));
    }

    pub(super) fn advertise(&mut self) {
        if self.children.is_empty() {
            return;
        }
        let received =
            self.streams.iter().filter(|(_, stream)| stream.is_imported || stream.current.is_some());
        let reaches = self.neighbours.advertisement(received.map(|(object, _)| *object));
        let delta = self.advertiser.advance(reaches);
        let children: Vec<NodeId> = self.children.keys().copied().collect();
        for child in children {
            self.send_child(child, ParentMessage::Advertisement(delta.clone()));
        }
    }

    /// Refuses all viewers of a stream that no parent can deliver.
    pub(super) fn lose_viewers(&mut self, now: Instant, object: Object, why: Refusal) {
        let stream = self.streams.get_mut(&object).expect("callers asked");
        let viewers = std::mem::take(&mut stream.viewers);
        let waiting = std::mem::take(&mut stream.waiting);
        self.audience.groups -= viewers.len();
        self.audience.waiting -= waiting.len();
        if !viewers.is_empty() {
            self.emit(Event::ViewersLost(object, why));
        }
        for (group, count) in viewers {
            self.note_lost(now, group, object, count);
        }
        for (request, group) in waiting {
            self.note_refused(now, group, object);
            self.emit(Event::ViewerRefused(request, why));
        }
    }
}
