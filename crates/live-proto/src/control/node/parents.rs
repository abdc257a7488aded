//! A node's side towards its parents: their messages, failures, and requests.

use super::{Event, Node, is_due};
use crate::control::differences::ApplyResult;
use crate::control::messages::{ChildMessage, ParentMessage, Refusal, ToChild};
use crate::{NodeId, Object};
use anabranch_units::{BitRate, Instant};

impl Node {
    /// Takes a message from a parent. Messages from other nodes and from earlier incarnations are
    /// ignored.
    pub fn handle_parent(&mut self, now: Instant, parent: NodeId, message: ToChild) {
        if !self.hear_parent(now, parent, message.life) {
            return;
        }
        match message.body {
            ParentMessage::Heartbeat(offer) => {
                let declared = self.parents[&parent].declared;
                self.neighbours.handle_offer(parent, offer.limited(declared));
            }
            ParentMessage::Advertisement(delta) => {
                if self.neighbours.handle_table(parent, delta) == ApplyResult::Gap {
                    self.ask_for_table(now, parent);
                }
            }
            ParentMessage::Granted { object, attempt } => self.handle_granted(now, parent, object, attempt),
            ParentMessage::Refused { object, attempt, why: Refusal::NotHeld } => {
                self.handle_not_held(now, parent, object, attempt);
            }
            ParentMessage::Refused { object, attempt, .. } => {
                self.handle_refused(now, parent, object, attempt)
            }
            ParentMessage::Compare => self.send_held(now, parent),
        }
    }

    /// Requests a whole advertisement, at most twice in an advertisement period.
    fn ask_for_table(&mut self, now: Instant, parent: NodeId) {
        let every = self.whole_table_every();
        let session = self.parents.get_mut(&parent).expect("callers asked");
        if is_due(&mut session.resend_at, now, every) {
            self.send_parent(parent, ChildMessage::Resend);
        }
    }

    /// Sends the list of all attempts, at most once per heartbeat period.
    fn send_held(&mut self, now: Instant, parent: NodeId) {
        let session = self.parents.get_mut(&parent).expect("callers asked");
        if is_due(&mut session.compared_at, now, self.settings.heartbeat) {
            let held = session.held.iter().collect();
            self.send_parent(parent, ChildMessage::Held { last_attempt: self.attempts, held });
        }
    }

    /// Takes a failure of a parent or its link that the driver has detected: the connection broke,
    /// or no stream makes progress. Missing heartbeats have the same effect.
    pub fn handle_parent_failed(&mut self, now: Instant, parent: NodeId) {
        let Some(session) = self.parents.get_mut(&parent) else { return };
        session.heard_at = None;
        session.held = Default::default();
        self.neighbours.handle_failure(parent);
        self.emit(Event::ParentFailed(parent));
        let is_there = |object: &Object| {
            let stream = &self.streams[object];
            let ways = [&stream.current, &stream.next].into_iter().flatten();
            ways.into_iter().any(|upstream| upstream.parent == parent)
        };
        let objects: Vec<Object> = self.streams.keys().copied().filter(is_there).collect();
        for object in objects {
            self.lose_upstream(object, parent);
            self.seek_if_lost(now, object);
        }
    }

    /// Takes the driver's measurement (`capacity`) of the link from a parent. The parent is
    /// notified, and admits streams up to this rate.
    pub fn handle_measured(&mut self, parent: NodeId, measured: BitRate) {
        let Some(session) = self.parents.get_mut(&parent) else { return };
        let is_new = session.measured.replace(measured) != Some(measured);
        if is_new && session.heard_at.is_some() {
            self.send_parent(parent, ChildMessage::Measured(measured));
        }
    }

    /// Records whether the link from a parent limits transfers, by the driver's measurement
    /// (`capacity`). Children are notified by the next heartbeat.
    pub fn handle_limiting(&mut self, parent: NodeId, is_limiting: bool) {
        if let Some(session) = self.parents.get_mut(&parent) {
            session.is_limiting = is_limiting;
        }
    }

    /// Whether a parent reports that a link to it limits its transfers. Measurements of the link
    /// from the parent are then not valid.
    pub fn is_parent_limited(&self, parent: NodeId) -> bool {
        self.neighbours.offer(parent).is_some_and(|offer| offer.is_limited)
    }

    /// Whether the link from any parent limits transfers.
    pub(super) fn is_limited(&self) -> bool {
        self.parents.values().any(|session| session.is_limiting)
    }

    /// Records a message from a parent. Returns false if the message must be ignored.
    fn hear_parent(&mut self, now: Instant, parent: NodeId, life: u64) -> bool {
        let Some(session) = self.parents.get(&parent).filter(|session| life >= session.life) else {
            return false;
        };
        if life > session.life && session.heard_at.is_some() {
            self.handle_parent_failed(now, parent);
        }
        let session = self.parents.get_mut(&parent).expect("found above");
        (session.life, session.heard_at) = (life, Some(now));
        true
    }

    /// Drops an attempt at a parent, and notifies the parent.
    pub(super) fn give_up(&mut self, parent: NodeId, object: Object, attempt: u64) {
        self.forget_attempt(parent, object, attempt);
        self.send_parent(parent, ChildMessage::Unsubscribe { object, attempt });
    }

    /// Drops an attempt at a parent, unless a later attempt has replaced it.
    pub(super) fn forget_attempt(&mut self, parent: NodeId, object: Object, attempt: u64) {
        let session = self.parents.get_mut(&parent).expect("requests go to parents");
        if session.held.of(object) == Some(attempt) {
            session.held.remove(object);
        }
    }
}
