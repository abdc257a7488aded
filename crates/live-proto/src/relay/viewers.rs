//! The relay's side towards viewers: join, read, leave.

use super::cdn_loop;
use super::head::{ByteRange, Head};
use super::key::Key;
use super::machine::{Action, Relay, Viewer};
use super::object::{Failure, ObjectId, ObjectState, ViewerId};
use anabranch_units::{Duration, Instant};
use bytes::Bytes;
use std::fmt;
use std::sync::Arc;

/// A viewer's request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinRequest {
    /// Key of the requested object.
    pub key: Key,
    /// Requested range of bytes; `None` for the whole object. If the length of the object is
    /// unknown, the range is ignored.
    pub range: Option<ByteRange>,
    /// Validator of an `If-Range` header. Unless it equals the object's strong entity tag, the
    /// answer is the whole object (RFC 9110, section 13.1.5).
    pub if_range: Option<String>,
    /// The `CDN-Loop` value for the parent, from [`super::cdn_loop::forwarded`].
    pub passed: String,
}

/// A request that is refused for lack of room. The same request may succeed later.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum JoinError {
    /// The number of viewers has reached [`super::RelayConfig::viewers_max`].
    TooManyViewers(usize),
    /// The number of objects in use has reached [`super::RelayConfig::objects_max`].
    TooManyObjects(usize),
}

impl fmt::Display for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooManyViewers(max) => write!(f, "{max} viewers are here: ask another edge"),
            Self::TooManyObjects(max) => write!(f, "{max} objects are under way: ask another edge"),
        }
    }
}

impl std::error::Error for JoinError {}

/// Head of the answer to a viewer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Head of the parent's answer; its status is 200.
    pub head: Arc<Head>,
    /// Age of the object: the parent's `Age` plus the time since the response headers arrived.
    ///
    /// Differs: the time from request to head (RFC 9111, section 4.2.3, `response_delay`) is not
    /// added. A blocking reload waits at the origin, so its bytes are new when they leave it.
    pub age: Duration,
    /// Length of the answer's body. `None` if not known before the end.
    pub length: Option<u64>,
    /// For an answer with a range (206): position of the first byte, and the object's length.
    pub range: Option<(u64, u64)>,
}

/// The next item of an answer to a viewer: a head, then bytes, then the end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadStep {
    /// Nothing is available yet. [`Relay::poll_ready`] names the viewer when there is more.
    Pending,
    /// The head of the answer.
    Head(Answer),
    /// The next bytes.
    Bytes(Bytes),
    /// The answer is complete.
    End,
    /// The object failed before any answer: the driver answers with an error. The last item.
    Failed(Failure),
    /// The answer must be broken off. The last item.
    Broken(Failure),
}

impl Relay {
    /// Takes a viewer's request for an object. The object is fetched unless a fetch is in progress
    /// or a fresh copy is held.
    ///
    /// Errors: see [`JoinError`].
    pub fn handle_join(&mut self, now: Instant, request: JoinRequest) -> Result<ViewerId, JoinError> {
        if self.viewers() >= self.config.viewers_max {
            return Err(JoinError::TooManyViewers(self.config.viewers_max));
        }
        let JoinRequest { key, range, if_range, passed } = request;
        let found = self.listed.get(&key).copied().filter(|id| self.objects[id].admits(now));
        let id = match found {
            Some(id) => {
                self.add_relays(id, &passed);
                match self.objects[&id].state {
                    ObjectState::Fetching => self.counts.joins_under_way += 1,
                    ObjectState::Whole => self.counts.hits += 1,
                    ObjectState::Failed(..) => {}
                }
                id
            }
            None => {
                if let Some(old) = self.listed.get(&key).copied() {
                    self.unlist(old);
                }
                if !self.make_room() {
                    return Err(JoinError::TooManyObjects(self.config.objects_max));
                }
                self.add_object(now, key, passed)
            }
        };
        self.counts.joins += 1;
        let viewer = self.add_viewer(id, range.map(|range| (range, if_range)));
        if found.is_none() {
            self.begin_fetch(now, id);
        }
        self.arm(id);
        Ok(viewer)
    }

    /// Records the relays that a joining request has passed. In a loop of relays, a leg whose
    /// response headers have not arrived may wait for one of these relays.
    fn add_relays(&mut self, id: ObjectId, passed: &str) {
        let object = self.objects.get_mut(&id).expect("the viewer's object is in the table");
        if object.head.is_some() || !object.is_fetching() {
            return;
        }
        if let Some(joined) = cdn_loop::joined(&object.passed, passed) {
            object.passed = joined;
            object.fetch.has_new_relays = true;
        }
    }

    fn add_viewer(&mut self, id: ObjectId, range: Option<(ByteRange, Option<String>)>) -> ViewerId {
        let used = self.number();
        let object = self.objects.get_mut(&id).expect("the viewer's object is in the table");
        self.unused.remove(&(object.used, id));
        object.used = used;
        object.idle_since = None;
        let slot = object.viewers.len();
        let viewer =
            Viewer { object: id, slot, range, position: 0, end: None, has_head: false, is_waiting: false };
        let viewer_id = self.free_viewers.pop().unwrap_or_else(|| {
            self.viewers.push(None);
            ViewerId(self.viewers.len() as u32 - 1)
        });
        object.viewers.push(viewer_id);
        self.viewers[viewer_id.index()] = Some(viewer);
        viewer_id
    }

    /// Returns the next item of the answer to a viewer.
    ///
    /// Panics: if the viewer has left.
    pub fn handle_read(&mut self, now: Instant, viewer_id: ViewerId) -> ReadStep {
        let viewer = self.viewers[viewer_id.index()].as_mut().expect("the viewer has not left");
        let object = self.objects.get_mut(&viewer.object).expect("a viewer's object is in the table");
        if !viewer.has_head {
            if let ObjectState::Failed(failure, _) = object.state {
                return ReadStep::Failed(failure);
            }
            let Some(head) = &object.head else {
                viewer.is_waiting = true;
                return ReadStep::Pending;
            };
            let total = object.total();
            let applies = |etag: &Option<String>| etag.is_none() || etag.as_deref() == head.strong_etag();
            let asked = viewer.range.take().filter(|(_, etag)| applies(etag));
            let range = match (asked, total) {
                (Some((range, _)), Some(total)) => {
                    let Some((first, end)) = range.within(total) else {
                        return ReadStep::Failed(Failure::OutOfRange(total));
                    };
                    (viewer.position, viewer.end) = (first, Some(end));
                    Some((first, total))
                }
                _ => None,
            };
            viewer.has_head = true;
            let length = viewer.end.map(|end| end - viewer.position).or(total);
            let age = head.age + (now - object.head_at);
            return ReadStep::Head(Answer { head: Arc::clone(head), age, length, range });
        }
        if viewer.end.is_some_and(|end| viewer.position >= end) {
            return ReadStep::End;
        }
        if let Some(mut bytes) = object.body.from(viewer.position) {
            if let Some(end) = viewer.end {
                bytes.truncate(usize::try_from(end - viewer.position).unwrap_or(usize::MAX));
            }
            viewer.position += bytes.len() as u64;
            let behind = object.body.end() - viewer.position;
            if object.fetch.is_paused && behind <= self.config.object_bytes_max.as_u64() / 4 {
                self.resume_legs(now, viewer_id);
            }
            return ReadStep::Bytes(bytes);
        }
        match object.state {
            ObjectState::Failed(failure, _) => ReadStep::Broken(failure),
            _ if viewer.position < object.body.base() => {
                self.counts.cut_off += 1;
                ReadStep::Broken(Failure::TooSlow)
            }
            ObjectState::Whole => ReadStep::End,
            ObjectState::Fetching => {
                viewer.is_waiting = true;
                // Legs may have paused before the position of this viewer's range was known.
                if object.fetch.is_paused {
                    self.resume_legs(now, viewer_id);
                }
                ReadStep::Pending
            }
        }
    }

    /// Resumes legs that were paused for this viewer. Their silence is measured from now on.
    fn resume_legs(&mut self, now: Instant, viewer: ViewerId) {
        let id = self.viewers[viewer.index()].as_ref().expect("the viewer has not left").object;
        let object = self.objects.get_mut(&id).expect("a viewer's object is in the table");
        object.fetch.is_paused = false;
        for leg in &object.fetch.legs {
            self.legs.get_mut(leg).expect("an object's legs are in the table").heard_at = now;
            self.actions.push_back(Action::Continue(*leg));
        }
        self.arm(id);
    }

    /// Ends a viewer's request, whether or not its answer is complete. The id may then be reused.
    ///
    /// Panics: if the viewer has already left.
    pub fn handle_leave(&mut self, now: Instant, viewer_id: ViewerId) {
        let viewer = self.viewers[viewer_id.index()].take().expect("a viewer leaves once");
        self.free_viewers.push(viewer_id);
        let id = viewer.object;
        let object = self.objects.get_mut(&id).expect("a viewer's object is in the table");
        object.viewers.swap_remove(viewer.slot);
        if let Some(moved) = object.viewers.get(viewer.slot) {
            self.viewers[moved.index()].as_mut().expect("an object's viewers are open").slot = viewer.slot;
        }
        if !object.viewers.is_empty() {
            return;
        }
        if !object.is_listed {
            self.counts.cancelled += u64::from(object.is_fetching());
            self.remove_object(id);
            return;
        }
        match object.state {
            ObjectState::Fetching => object.idle_since = Some(now),
            ObjectState::Whole | ObjectState::Failed(..) => {
                self.unused.insert((object.used, id));
            }
        }
        self.arm(id);
    }
}
