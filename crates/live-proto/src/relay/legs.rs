//! The relay's side towards parents: requests, heads, bytes, faults, silence.

use super::head::Head;
use super::key::{Key, QueryRule};
use super::machine::{Action, DEPTH_MAX, FetchRequest, Flow, LEGS_MAX, Relay, Resume};
use super::object::{Failure, Hop, LOOP_DETECTED, Leg, LegId, Object, ObjectId, ObjectState};
use crate::play::opening_targets;
use anabranch_units::{Duration, Instant};
use bytes::Bytes;
use std::sync::Arc;

impl Relay {
    /// Begins the first upstream requests of an object: two on a doubled node.
    pub(super) fn begin_fetch(&mut self, now: Instant, id: ObjectId) {
        self.begin_leg(now, id);
        if self.config.is_doubled {
            self.begin_leg(now, id);
        }
    }

    /// Begins one more upstream request for an object.
    pub(super) fn begin_leg(&mut self, now: Instant, id: ObjectId) {
        let leg = LegId(self.number());
        let object = self.objects.get_mut(&id).expect("legs belong to objects in the table");
        let etag = object.head.as_ref().and_then(|head| head.strong_etag());
        let from = object.body.end();
        let resume = etag.filter(|_| from > 0).map(|etag| Resume { from, etag: etag.to_owned() });
        let request = FetchRequest { leg, key: object.key.clone(), resume, passed: object.passed.clone() };
        let from = request.resume.as_ref().map_or(0, |resume| resume.from);
        object.fetch.legs.push(leg);
        object.fetch.begun += 1;
        let state =
            Leg { object: id, hop: None, asked_at: now, heard_at: now, from, next: None, is_suspect: false };
        self.legs.insert(leg, state);
        self.actions.push_back(Action::Fetch(request));
    }

    /// Parents that were already asked for the object of this leg, by any of its legs.
    pub fn tried(&self, leg: LegId) -> &[Hop] {
        self.legs.get(&leg).map_or(&[], |leg| &self.objects[&leg.object].fetch.tried)
    }

    /// Takes the driver's choice of a leg's parent; `None` if no untried parent is left.
    pub fn handle_hop(&mut self, now: Instant, leg_id: LegId, hop: Option<Hop>) {
        let Some(leg) = self.legs.get_mut(&leg_id) else { return };
        let fetch = &mut self.objects.get_mut(&leg.object).expect("a leg's object is in the table").fetch;
        let id = leg.object;
        if let Some(hop) = hop {
            (leg.hop, leg.asked_at, leg.heard_at) = (Some(hop), now, now);
            fetch.tried.push(hop);
            fetch.has_new_relays = false;
            self.counts.upstream_requests += 1;
            self.arm(id);
            return;
        }
        fetch.is_out_of_hops = true;
        self.drop_leg(leg_id);
        let fetch = &self.objects[&id].fetch;
        if fetch.legs.is_empty() {
            let failure = fetch.failure.unwrap_or(Failure::NoParent);
            self.fail(now, id, failure);
            return;
        }
        self.add_leg(now, id);
        self.arm(id);
    }

    /// Takes the head of a parent's answer.
    pub fn handle_head(&mut self, now: Instant, leg_id: LegId, head: Head) -> Flow {
        let Some(leg) = self.legs.get(&leg_id).filter(|leg| leg.next.is_none()) else { return Flow::Stop };
        let (id, waited) = (leg.object, now - leg.asked_at);
        let object = self.objects.get_mut(&id).expect("a leg's object is in the table");
        let next = match (head.status, head.range) {
            (200, _) => 0,
            (206, Some(range)) if leg.from > 0 && range.first == leg.from => leg.from,
            (206, _) => return self.leg_failed(now, leg_id, Failure::Differs),
            (status, _) => return self.leg_failed(now, leg_id, Failure::Status(status)),
        };
        self.paces.record(object.key.folder(), object.wait(leg), waited);
        if let Some(first) = &object.head {
            if !first.agrees_with(&head) {
                return self.leg_differs(now, leg_id);
            }
        } else {
            let unmarked = if object.key.is_playlist() { Duration::ZERO } else { self.config.unmarked_time };
            object.head_at = now;
            object.fresh_until = now + head.freshness(unmarked);
            object.head = Some(Arc::new(head));
            self.wake(id);
        }
        self.legs.get_mut(&leg_id).expect("it was just found").next = Some(next);
        self.heard(now, leg_id);
        if self.objects[&id].total() == Some(self.objects[&id].body.end()) {
            self.complete(now, id);
        }
        self.arm(id);
        Flow::Continue
    }

    /// Takes bytes of a leg, after its head.
    pub fn handle_bytes(&mut self, now: Instant, leg_id: LegId, bytes: Bytes) -> Flow {
        let Some(leg) = self.legs.get_mut(&leg_id) else { return Flow::Stop };
        let Some(at) = leg.next else { return self.leg_failed(now, leg_id, Failure::Broke) };
        let (id, gap, next) = (leg.object, now - leg.heard_at, at + bytes.len() as u64);
        leg.next = Some(next);
        self.counts.upstream_bytes += bytes.len() as u64;
        let object = self.objects.get_mut(&id).expect("a leg's object is in the table");
        if object.total().is_some_and(|total| next > total) {
            return self.leg_differs(now, leg_id);
        }
        object.fetch.longest_gap = object.fetch.longest_gap.max(gap);
        let before = object.body.held();
        let Ok(is_new) = object.body.add(at, bytes) else {
            return self.leg_differs(now, leg_id);
        };
        self.heard(now, leg_id);
        if !is_new {
            return Flow::Continue;
        }
        let object_max = self.config.object_bytes_max.as_u64();
        let object = self.objects.get_mut(&id).expect("a leg's object is in the table");
        object.body.keep_last(object_max);
        let is_long = object.body.base() > 0;
        let may_be_long = object.total().is_none_or(|total| total > object_max);
        self.held_bytes = self.held_bytes + object.body.held() - before;
        let is_whole = object.total() == Some(object.body.end());
        self.wake(id);
        if is_whole {
            self.complete(now, id);
            self.shrink(now, id);
            return Flow::Stop;
        }
        let must_pause = may_be_long && self.is_ahead(id);
        if is_long && self.objects[&id].is_listed {
            self.unlist(id);
        }
        self.shrink(now, id);
        if !self.legs.contains_key(&leg_id) {
            return Flow::Stop;
        }
        if must_pause {
            self.objects.get_mut(&id).expect("its leg is under way").fetch.is_paused = true;
            return Flow::Pause;
        }
        self.arm(id);
        Flow::Continue
    }

    /// Whether even the foremost viewer lags the received bytes by more than half of
    /// `object_bytes_max`. A viewer whose range begins beyond the received bytes does not lag.
    fn is_ahead(&self, id: ObjectId) -> bool {
        let object = &self.objects[&id];
        let position = |viewer: &super::object::ViewerId| {
            self.viewers[viewer.index()].as_ref().map_or(0, |viewer| viewer.position)
        };
        let fastest = object.viewers.iter().map(position).max();
        let half = self.config.object_bytes_max.as_u64() / 2;
        fastest.is_some_and(|at| object.body.end().saturating_sub(at) > half)
    }

    /// Takes the regular end of a leg's body.
    pub fn handle_end(&mut self, now: Instant, leg_id: LegId) {
        let Some(leg) = self.legs.get(&leg_id) else { return };
        let id = leg.object;
        let object = &self.objects[&id];
        let failure = match (leg.next, object.total()) {
            (None, _) => Some(Failure::Broke),
            (Some(next), Some(total)) if next < total => Some(Failure::Broke),
            (Some(next), None) if next < object.body.end() => Some(Failure::Differs),
            _ => None,
        };
        match failure {
            Some(Failure::Differs) => {
                let _ = self.leg_differs(now, leg_id);
            }
            Some(failure) => {
                let _ = self.leg_failed(now, leg_id, failure);
            }
            None => self.complete(now, id),
        }
    }

    /// Takes the failure of a leg: its connection broke, or its parent cannot be reached.
    pub fn handle_broken(&mut self, now: Instant, leg_id: LegId) {
        if self.legs.contains_key(&leg_id) {
            let _ = self.leg_failed(now, leg_id, Failure::Broke);
        }
    }

    /// Ends all legs at a parent that has failed by evidence other than an answer. Their objects
    /// are requested from other parents.
    pub fn handle_parent_failed(&mut self, now: Instant, hop: Hop) {
        let legs = self.legs.iter().filter(|(_, leg)| leg.hop == Some(hop)).map(|(id, _)| *id);
        for leg in legs.collect::<Vec<_>>() {
            // The failure of one leg may have ended other legs of its object.
            if self.legs.contains_key(&leg) {
                self.actions.push_back(Action::Cancel(leg));
                let _ = self.leg_failed(now, leg, Failure::Broke);
            }
        }
    }

    /// Runs the deadlines that are due: silence, fetches without viewers, freshness.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some(id) = self.due(now) {
            let object = &self.objects[&id];
            let is_over = match object.state {
                ObjectState::Whole => object.is_listed && now >= object.fresh_until,
                ObjectState::Failed(_, until) => object.is_listed && now >= until,
                ObjectState::Fetching => {
                    let is_idle = object.idle_since.is_some_and(|since| now >= since + self.config.linger);
                    if is_idle {
                        self.counts.cancelled += 1;
                        self.remove_object(id);
                        continue;
                    }
                    if !object.fetch.is_paused {
                        self.check_silence(now, id);
                    }
                    false
                }
            };
            if is_over {
                self.unlist(id);
            }
            self.arm(id);
        }
    }

    fn check_silence(&mut self, now: Instant, id: ObjectId) {
        let silent =
            |relay: &Self, leg: &LegId| now >= relay.silent_at(&relay.objects[&id], &relay.legs[leg]);
        let legs: Vec<LegId> =
            self.objects[&id].fetch.legs.iter().filter(|leg| silent(self, leg)).copied().collect();
        for leg_id in legs {
            let Some(leg) = self.legs.get_mut(&leg_id) else { continue };
            if now >= leg.heard_at + self.config.give_up_after {
                self.actions.push_back(Action::Cancel(leg_id));
                let _ = self.leg_failed(now, leg_id, Failure::Silent);
                continue;
            }
            leg.is_suspect = true;
            self.counts.silences += 1;
            self.add_leg(now, id);
        }
    }

    /// Begins a further leg if all legs of the object are suspect and its limits permit.
    ///
    /// If no untried parent is left, silent parents are asked again, provided that further relays
    /// have joined the object. In a ring of relays each relay waits for the answer of the next
    /// relay. The repeated request lists all waiting relays, so one relay detects the loop and
    /// refuses the request ([`super::cdn_loop`]).
    fn add_leg(&mut self, now: Instant, id: ObjectId) {
        let fetch = &self.objects[&id].fetch;
        let all_suspect = fetch.legs.iter().all(|leg| self.legs[leg].is_suspect);
        if !all_suspect || fetch.begun >= self.config.requests_max {
            return;
        }
        if fetch.is_out_of_hops && !self.may_ask_again(id) {
            return;
        }
        let fetch = &self.objects[&id].fetch;
        if fetch.legs.len() >= LEGS_MAX {
            let oldest = fetch.legs[0];
            self.drop_leg(oldest);
            self.actions.push_back(Action::Cancel(oldest));
        }
        self.begin_leg(now, id);
    }

    /// Marks the parents of silent legs as untried. Returns false if repeating a request cannot
    /// help.
    fn may_ask_again(&mut self, id: ObjectId) -> bool {
        let object = self.objects.get_mut(&id).expect("a leg's object is in the table");
        let fetch = &mut object.fetch;
        let silent: Vec<Hop> = fetch.legs.iter().filter_map(|leg| self.legs[leg].hop).collect();
        if object.head.is_some() || !fetch.has_new_relays || silent.is_empty() {
            return false;
        }
        fetch.tried.retain(|hop| !silent.contains(hop));
        fetch.is_out_of_hops = false;
        true
    }

    /// Notes that a leg has delivered, and reports the parents of suspect legs of the same object.
    fn heard(&mut self, now: Instant, leg_id: LegId) {
        let leg = self.legs.get_mut(&leg_id).expect("a leg that was heard is in the table");
        leg.heard_at = now;
        leg.is_suspect = false;
        let id = leg.object;
        let fetch = &self.objects[&id].fetch;
        if fetch.legs.len() < 2 {
            return;
        }
        for other in fetch.legs.iter().filter(|other| **other != leg_id) {
            let other = &self.legs[other];
            if let Some(hop) = other.hop.filter(|_| other.is_suspect) {
                let suspect = Action::Suspect(hop, self.objects[&id].key.clone());
                if !self.actions.contains(&suspect) {
                    self.actions.push_back(suspect);
                }
            }
        }
    }

    fn drop_leg(&mut self, leg_id: LegId) {
        let leg = self.legs.remove(&leg_id).expect("only legs in the table are dropped");
        let object = self.objects.get_mut(&leg.object).expect("a leg's object is in the table");
        object.fetch.legs.retain(|held| *held != leg_id);
    }

    /// Ends a leg whose head or bytes contradict another leg. Only for media is the parent
    /// reported, because playlists of two sources may differ at any moment.
    fn leg_differs(&mut self, now: Instant, leg_id: LegId) -> Flow {
        let leg = &self.legs[&leg_id];
        let key = &self.objects[&leg.object].key;
        if let Some(hop) = leg.hop.filter(|_| !key.is_playlist()) {
            self.actions.push_back(Action::Differs(hop, key.clone()));
        }
        self.leg_failed(now, leg_id, Failure::Differs)
    }

    /// Replaces a leg that has failed, or fails its object. The driver closes the leg's connection.
    fn leg_failed(&mut self, now: Instant, leg_id: LegId, failure: Failure) -> Flow {
        let Leg { object: id, hop, .. } = self.legs[&leg_id];
        self.drop_leg(leg_id);
        self.counts.legs_failed += 1;
        if failure == Failure::Status(LOOP_DETECTED) {
            self.drop_waiting_legs(id, hop);
        }
        let object = self.objects.get_mut(&id).expect("a leg's object is in the table");
        if !matches!(object.fetch.failure, Some(Failure::Status(_))) {
            object.fetch.failure = Some(failure);
        }
        if failure.is_retried() && !object.viewers.is_empty() {
            self.add_leg(now, id);
        }
        let fetch_failure = self.objects[&id].fetch.failure.unwrap_or(failure);
        if self.objects[&id].fetch.legs.is_empty() {
            self.fail(now, id, fetch_failure);
        } else {
            self.arm(id);
        }
        Flow::Stop
    }

    /// Ends the legs at this parent whose response headers have not arrived, because these legs
    /// wait in the same loop of relays.
    fn drop_waiting_legs(&mut self, id: ObjectId, hop: Option<Hop>) {
        let waits = |leg: &LegId| self.legs[leg].hop == hop && self.legs[leg].next.is_none();
        let legs: Vec<LegId> = self.objects[&id].fetch.legs.iter().copied().filter(waits).collect();
        for leg in legs {
            self.drop_leg(leg);
            self.actions.push_back(Action::Cancel(leg));
        }
    }

    /// Marks an object as complete.
    fn complete(&mut self, now: Instant, id: ObjectId) {
        self.cancel_legs(id);
        let object = self.objects.get_mut(&id).expect("a leg's object is in the table");
        object.state = ObjectState::Whole;
        if object.fetch.longest_gap > Duration::ZERO {
            let gap = object.fetch.longest_gap;
            self.paces.record(object.key.folder(), super::pace::WaitKind::Piece, gap);
        }
        let ahead = if self.config.reads_ahead { opening(object) } else { Vec::new() };
        let is_kept = object.admits(now) && !object.head.as_ref().is_some_and(|head| head.cache.is_unshared);
        if is_kept {
            object.body.join();
        }
        let (passed, depth) = (object.passed.clone(), object.depth + 1);
        self.wake(id);
        if is_kept {
            let object = &self.objects[&id];
            if object.viewers.is_empty() {
                self.unused.insert((object.used, id));
            }
            self.arm(id);
        } else {
            self.unlist(id);
        }
        for key in ahead {
            self.read_ahead(now, key, &passed, depth);
        }
    }

    /// Requests an object that no viewer has requested yet. The request is cancelled if no viewer
    /// joins within [`super::RelayConfig::linger`].
    fn read_ahead(&mut self, now: Instant, key: Key, passed: &str, depth: u8) {
        let is_known = self.listed.get(&key).is_some_and(|id| self.objects[id].admits(now));
        if is_known || self.objects.len() >= self.config.objects_max {
            return;
        }
        if let Some(old) = self.listed.get(&key).copied() {
            self.unlist(old);
        }
        let id = self.add_object(now, key, passed.to_owned());
        let object = self.objects.get_mut(&id).expect("it was added");
        (object.idle_since, object.depth) = (Some(now), depth);
        self.counts.read_ahead += 1;
        self.begin_fetch(now, id);
        self.arm(id);
    }
}

/// Keys of the objects that a new player requests after a complete playlist. Empty for other
/// objects and for blocking reloads. A reload without directives looks like a new player's
/// request, so its part may be fetched in vain.
fn opening(object: &mut Object) -> Vec<Key> {
    let is_ok = object.head.as_ref().is_some_and(|head| head.status == 200);
    let is_followed = object.key.is_playlist() && !object.key.is_blocking() && object.depth < DEPTH_MAX;
    if !is_ok || !is_followed || object.body.base() > 0 {
        return Vec::new();
    }
    object.body.join();
    let Some(playlist) = object.body.from(0) else { return Vec::new() };
    let targets = opening_targets(object.key.path(), &playlist);
    targets.iter().filter_map(|target| Key::read(target, QueryRule::Remove).ok()).collect()
}
