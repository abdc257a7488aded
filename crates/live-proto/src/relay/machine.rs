//! The relay's tables, their limits and its timers.

use super::key::Key;
use super::object::{Failure, Fetch, Hop, Leg, LegId, Object, ObjectId, ObjectState, ViewerId};
use super::pace::LearnedWaits;
use anabranch_units::{ByteCount, Duration, Instant};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;

/// Maximum number of playlists between a viewer's request and an object that is read ahead: a
/// multivariant and a media playlist. Playlists that name each other end there.
pub(super) const DEPTH_MAX: u8 = 2;
/// Maximum number of concurrent legs of one object.
pub(super) const LEGS_MAX: usize = 2;

/// Limits and times of a relay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelayConfig {
    /// Maximum number of bytes held of all objects together. At least [`Self::object_bytes_max`].
    pub memory_max: ByteCount,
    /// Maximum number of bytes held of one object. A longer object is streamed and not kept: the
    /// relay holds its newest bytes up to this limit. A viewer farther behind is cut off, and a new
    /// viewer starts another request.
    pub object_bytes_max: ByteCount,
    /// Maximum number of objects that are being fetched or kept.
    pub objects_max: usize,
    /// Maximum number of concurrent viewers.
    pub viewers_max: usize,
    /// Number of upstream requests for one object after which the object fails. At least 1.
    pub requests_max: u32,
    /// Whether each object is requested from two parents at once. The first copy of each byte
    /// counts.
    pub is_doubled: bool,
    /// Time without viewers until an upstream request is cancelled: since the departure of the
    /// last viewer, or since the request if the relay reads ahead.
    pub linger: Duration,
    /// Time for which a failure is returned to new viewers without another request.
    pub failure_time: Duration,
    /// Freshness lifetime of an answer without `Cache-Control`, except playlists, which get zero.
    pub unmarked_time: Duration,
    /// Silence after which a leg counts as broken, even if no other parent exists.
    pub give_up_after: Duration,
    /// Whether a playlist makes the relay fetch the objects that a new player requests next. Each
    /// tier then has them, or has requested them, when the player's request arrives.
    pub reads_ahead: bool,
}

impl Default for RelayConfig {
    fn default() -> Self {
        Self {
            memory_max: ByteCount::mib(512),
            object_bytes_max: ByteCount::mib(16),
            objects_max: 65_536,
            viewers_max: 100_000,
            requests_max: 4,
            is_doubled: false,
            linger: Duration::from_ms(500),
            failure_time: Duration::from_ms(200),
            unmarked_time: Duration::from_secs(1),
            // Three target durations of 6 s, the longest delay of a blocking reload.
            give_up_after: Duration::from_secs(18),
            reads_ahead: true,
        }
    }
}

/// A setting out of its range.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RelayConfigError {
    /// A limit is zero: name of the limit.
    Zero(&'static str),
    /// The memory limit is below the limit of one object.
    MemoryTooSmall(ByteCount, ByteCount),
}

impl fmt::Display for RelayConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Zero(name) => write!(f, "{name} 0: must be at least 1"),
            Self::MemoryTooSmall(memory, object) => {
                write!(f, "memory_max {memory}: must be at least object_bytes_max, {object}")
            }
        }
    }
}

impl std::error::Error for RelayConfigError {}

/// Totals since the relay was created, and two current values.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct RelayCounts {
    /// Number of viewers' requests.
    pub joins: u64,
    /// Number of viewers' requests for an object that was being fetched.
    pub joins_under_way: u64,
    /// Number of viewers' requests for a complete object.
    pub hits: u64,
    /// Number of objects requested before any viewer.
    pub read_ahead: u64,
    /// Number of requests sent to parents.
    pub upstream_requests: u64,
    /// Bytes received from parents, including duplicates.
    pub upstream_bytes: u64,
    /// Number of times that a leg was silent for longer than usual.
    pub silences: u64,
    /// Number of legs that broke, were refused, or sent different bytes.
    pub legs_failed: u64,
    /// Number of objects that failed.
    pub objects_failed: u64,
    /// Number of fetches cancelled for lack of viewers.
    pub cancelled: u64,
    /// Number of viewers cut off because they were slow or memory was full.
    pub cut_off: u64,
    /// Number of objects dropped to free memory or table entries.
    pub evicted: u64,
    /// Bytes currently held.
    pub held_bytes: u64,
    /// Number of objects currently being fetched or kept.
    pub objects: usize,
}

/// An action for the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Choose a parent outside of [`Relay::tried`], report the choice by [`Relay::handle_hop`], and
    /// send the request.
    Fetch(FetchRequest),
    /// Cancel this request. Further input of the leg is ignored.
    Cancel(LegId),
    /// Resume reading from this leg, which [`Flow::Pause`] has stopped.
    Continue(LegId),
    /// This parent was silent while another parent delivered the object with this key.
    Suspect(Hop, Key),
    /// This parent sends other media than another parent for the same key: their timelines differ.
    Differs(Hop, Key),
}

/// One upstream request to make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchRequest {
    /// Leg of the request, named in all reports about it.
    pub leg: LegId,
    /// Object to request; its text form is the request target.
    pub key: Key,
    /// Range to request; `None` for the whole object.
    pub resume: Option<Resume>,
    /// Value of the `CDN-Loop` header.
    pub passed: String,
}

/// The remaining bytes of a partly received object, requested by `Range: bytes=from-` and
/// `If-Range: etag`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resume {
    /// Position of the first missing byte.
    pub from: u64,
    /// Strong entity tag of the bytes already received.
    pub etag: String,
}

/// Whether the driver should keep reading from a leg.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Flow {
    /// Keep reading.
    Continue,
    /// Stop reading until [`Action::Continue`], because the viewers are behind.
    Pause,
    /// The request is finished or failed: close it.
    Stop,
}

/// One viewer's request.
#[derive(Debug)]
pub(super) struct Viewer {
    pub(super) object: ObjectId,
    /// Index in the object's list of viewers.
    pub(super) slot: usize,
    /// The range asked for and its `If-Range` validator, until the head is read.
    pub(super) range: Option<(super::head::ByteRange, Option<String>)>,
    /// Position of the next byte to read.
    pub(super) position: u64,
    /// Position after the last byte of the range. `None` for the whole object.
    pub(super) end: Option<u64>,
    pub(super) has_head: bool,
    /// Whether [`Relay::poll_ready`] must name this viewer at the next change.
    pub(super) is_waiting: bool,
}

/// The relay machine. See the module for its rules.
#[derive(Debug)]
pub struct Relay {
    pub(super) config: RelayConfig,
    pub(super) objects: BTreeMap<ObjectId, Object>,
    /// The object that new viewers of each key join.
    pub(super) listed: BTreeMap<Key, ObjectId>,
    /// Complete objects without viewers, least recently used first.
    pub(super) unused: BTreeSet<(u64, ObjectId)>,
    pub(super) legs: BTreeMap<LegId, Leg>,
    pub(super) viewers: Vec<Option<Viewer>>,
    pub(super) free_viewers: Vec<ViewerId>,
    /// At most one deadline per object, never later than the object's next deadline.
    timers: BTreeSet<(Instant, ObjectId)>,
    pub(super) actions: VecDeque<Action>,
    pub(super) ready: VecDeque<ViewerId>,
    pub(super) paces: LearnedWaits,
    pub(super) held_bytes: u64,
    /// Number of the next object, leg or use.
    next_number: u64,
    pub(super) counts: RelayCounts,
}

impl Relay {
    /// Creates a relay without objects.
    ///
    /// Errors: see [`RelayConfigError`].
    pub fn new(config: RelayConfig) -> Result<Self, RelayConfigError> {
        for (name, is_zero) in [
            ("object_bytes_max", config.object_bytes_max == ByteCount::ZERO),
            ("objects_max", config.objects_max == 0),
            ("viewers_max", config.viewers_max == 0),
            ("requests_max", config.requests_max == 0),
        ] {
            if is_zero {
                return Err(RelayConfigError::Zero(name));
            }
        }
        if config.memory_max < config.object_bytes_max {
            return Err(RelayConfigError::MemoryTooSmall(config.memory_max, config.object_bytes_max));
        }
        Ok(Self {
            config,
            objects: BTreeMap::new(),
            listed: BTreeMap::new(),
            unused: BTreeSet::new(),
            legs: BTreeMap::new(),
            viewers: Vec::new(),
            free_viewers: Vec::new(),
            timers: BTreeSet::new(),
            actions: VecDeque::new(),
            ready: VecDeque::new(),
            paces: LearnedWaits::default(),
            held_bytes: 0,
            next_number: 0,
            counts: RelayCounts::default(),
        })
    }

    /// Returns the next action; `None` if there is none.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Returns the next viewer for which [`Relay::handle_read`] has data; `None` if there is none.
    pub fn poll_ready(&mut self) -> Option<ViewerId> {
        self.ready.pop_front()
    }

    /// When to call [`Relay::handle_timeout`] next.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// Totals and current numbers.
    pub fn counts(&self) -> RelayCounts {
        RelayCounts { held_bytes: self.held_bytes, objects: self.objects.len(), ..self.counts }
    }

    /// Number of viewers' current requests.
    pub fn viewers(&self) -> usize {
        self.viewers.len() - self.free_viewers.len()
    }

    pub(super) fn number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }

    /// Removes and returns the next object whose deadline is due.
    pub(super) fn due(&mut self, now: Instant) -> Option<ObjectId> {
        let (at, id) = *self.timers.first()?;
        if at > now {
            return None;
        }
        self.timers.pop_first();
        self.objects.get_mut(&id).expect("a timer's object is in the table").timer = None;
        Some(id)
    }

    /// Enters the object's next deadline into the table, unless the table has an earlier deadline.
    /// A deadline that has moved later is not changed: it fires early and is entered again.
    pub(super) fn arm(&mut self, id: ObjectId) {
        let Some(object) = self.objects.get(&id) else { return };
        let Some(deadline) = self.deadline(object) else { return };
        if object.timer.is_some_and(|timer| timer <= deadline) {
            return;
        }
        let object = self.objects.get_mut(&id).expect("it was just found");
        if let Some(timer) = object.timer.replace(deadline) {
            self.timers.remove(&(timer, id));
        }
        self.timers.insert((deadline, id));
    }

    fn deadline(&self, object: &Object) -> Option<Instant> {
        match object.state {
            ObjectState::Whole => object.is_listed.then_some(object.fresh_until),
            ObjectState::Failed(_, until) => object.is_listed.then_some(until),
            ObjectState::Fetching => {
                let idle = object.idle_since.map(|since| since + self.config.linger);
                let legs = object.fetch.legs.iter().filter(|_| !object.fetch.is_paused);
                let silent = legs.map(|leg| self.silent_at(object, &self.legs[leg])).min();
                idle.into_iter().chain(silent).min()
            }
        }
    }

    /// When the silence of a leg makes it suspect or broken.
    pub(super) fn silent_at(&self, object: &Object, leg: &Leg) -> Instant {
        let gives_up = leg.heard_at + self.config.give_up_after;
        // A leg without a parent cannot be silent.
        if leg.is_suspect || leg.hop.is_none() {
            return gives_up;
        }
        let usual = self.paces.silence(object.key.folder(), object.wait(leg));
        gives_up.min(leg.heard_at + usual)
    }

    /// Adds a listed object without legs.
    pub(super) fn add_object(&mut self, now: Instant, key: Key, passed: String) -> ObjectId {
        let id = self.number();
        let object = Object {
            key: key.clone(),
            passed,
            head: None,
            head_at: now,
            body: super::body::Body::default(),
            state: ObjectState::Fetching,
            viewers: Vec::new(),
            idle_since: None,
            fresh_until: now,
            is_listed: true,
            depth: 0,
            used: id,
            timer: None,
            fetch: Fetch::default(),
        };
        self.objects.insert(id, object);
        self.listed.insert(key, id);
        id
    }

    /// Closes an object to new viewers. The object is removed once it has no viewers.
    pub(super) fn unlist(&mut self, id: ObjectId) {
        let object = self.objects.get_mut(&id).expect("only objects in the table are unlisted");
        if std::mem::take(&mut object.is_listed) {
            self.listed.remove(&object.key);
        }
        if object.viewers.is_empty() {
            self.remove_object(id);
        }
    }

    /// Removes an object without viewers.
    pub(super) fn remove_object(&mut self, id: ObjectId) {
        self.cancel_legs(id);
        let object = self.objects.remove(&id).expect("only objects in the table are removed");
        debug_assert!(object.viewers.is_empty(), "an object with viewers stays");
        if object.is_listed {
            self.listed.remove(&object.key);
        }
        if let Some(timer) = object.timer {
            self.timers.remove(&(timer, id));
        }
        self.unused.remove(&(object.used, id));
        self.held_bytes -= object.body.held();
    }

    pub(super) fn cancel_legs(&mut self, id: ObjectId) {
        let object = self.objects.get_mut(&id).expect("only objects in the table have legs");
        for leg in object.fetch.legs.drain(..) {
            self.legs.remove(&leg);
            self.actions.push_back(Action::Cancel(leg));
        }
    }

    /// Marks all waiting viewers of the object as ready.
    pub(super) fn wake(&mut self, id: ObjectId) {
        for viewer in &self.objects[&id].viewers {
            let waiting = self.viewers[viewer.index()].as_mut().expect("an object's viewers are open");
            if std::mem::take(&mut waiting.is_waiting) {
                self.ready.push_back(*viewer);
            }
        }
    }

    /// Ends an object that cannot be delivered completely.
    pub(super) fn fail(&mut self, now: Instant, id: ObjectId, failure: Failure) {
        self.cancel_legs(id);
        self.counts.objects_failed += 1;
        let until = now + self.config.failure_time;
        let object = self.objects.get_mut(&id).expect("only objects in the table fail");
        object.state = ObjectState::Failed(failure, until);
        let is_answerable = object.head.is_none();
        self.wake(id);
        if !is_answerable || self.objects[&id].viewers.is_empty() {
            self.unlist(id);
        }
        self.arm(id);
    }

    /// Makes room for one more object. Returns false if all objects are in use.
    pub(super) fn make_room(&mut self) -> bool {
        if self.objects.len() < self.config.objects_max {
            return true;
        }
        self.evict()
    }

    /// Drops the least recently used object without viewers.
    fn evict(&mut self) -> bool {
        let Some((_, id)) = self.unused.first().copied() else { return false };
        self.counts.evicted += 1;
        self.remove_object(id);
        true
    }

    /// Drops objects until the memory limit holds: unused objects first, then complete objects that
    /// slow viewers still read, then objects being fetched, `spared` last.
    pub(super) fn shrink(&mut self, now: Instant, spared: ObjectId) {
        while self.held_bytes > self.config.memory_max.as_u64() {
            if self.evict() {
                continue;
            }
            let holders = self.objects.iter().filter(|(_, object)| object.body.held() > 0);
            let rank = |id: ObjectId, object: &Object| (id == spared, object.is_fetching(), object.used);
            let victim = holders.min_by_key(|(id, object)| rank(**id, object)).map(|(id, _)| *id);
            let Some(id) = victim else { return };
            let object = self.objects.get_mut(&id).expect("it was just found");
            self.held_bytes -= object.body.held();
            self.counts.cut_off += object.viewers.len() as u64;
            self.counts.evicted += 1;
            object.body = super::body::Body::default();
            self.fail(now, id, Failure::NoMemory);
        }
    }
}
