//! Short objects in a fetch of many objects: the whole content arrives with its description, over
//! the control connection.
//!
//! A pull needs a request, an answer, feedback and a final message per object, which takes longer
//! than a short object itself. Only the description from the first listed holder is trusted. The
//! content is requested from the holder that owes the fewest contents, so each server delivers as
//! much as it can. The maximum number of contents that a server may owe adapts to its delay: it
//! grows by one after each timely content, and halves after a late one, so that no answer waits
//! long for others. If all servers owe their maximum and some are slow (because of packet loss, for
//! example), further objects are pulled in the meantime. An object is also pulled if its content
//! does not arrive, or does not match its description.
//!
//! Leaves out: the order of objects (`turns`), the choice of the describing holder (`describe`),
//! the check of the hash (the driver).

#[cfg(test)]
mod tests;

use super::describe::BUSY_MAX;
use super::{Fetch, FetchEvent, Link, Object, ObjectId, ObjectStage, Version};
use crate::client::ServerId;
use crate::msg::{Control, ObjectDescription, SHORT_BYTES_MAX};
use anabranch_codes::Symbol;
use anabranch_endpoint::Bytes;
use anabranch_units::{Duration, Instant};

/// Number of contents that one server may owe: initial value, minimum and maximum.
pub(super) const CONTENTS_FIRST: usize = 16;
const CONTENTS_MIN: usize = 2;
pub(super) const CONTENTS_MAX: usize = 128;
/// Time after its request at which an owed content is late. The time is at least `LATE_RTTS` round
/// trips.
const LATE: Duration = Duration::from_ms(200);
const LATE_RTTS: u64 = 3;
/// Time for which a server counts as slow after a late content.
const SLOW: Duration = Duration::from_secs(1);
/// Limit on the number of pulled objects under way, as a multiple of the pulls at once. Above the
/// limit no further objects are pulled for slow servers.
const AHEAD_PULLS: usize = 2;

/// The content of an object, as received from a server.
#[derive(Debug)]
pub(super) struct Content {
    server: ServerId,
    found: ObjectDescription,
    bytes: Bytes,
}

impl Object {
    /// Whether the object may be short and can be requested whole, because its description is
    /// unknown and no file may be present.
    pub(super) const fn may_be_short(&self) -> bool {
        let wanted = &self.wanted;
        wanted.bytes.is_none() && wanted.hash.is_none() && wanted.parts.len() == 1 && !wanted.may_be_there
    }
    /// Whether the object's content is requested or has arrived.
    pub(super) const fn comes_whole(&self) -> bool {
        self.brings.is_some() || self.content.is_some()
    }
}

impl Link {
    /// Maximum time in which a content is timely.
    pub(super) fn patience(&self) -> Duration {
        self.rtt.map_or(LATE, |rtt| LATE.max(rtt * LATE_RTTS))
    }
    /// Whether an owed content is late, or was late recently.
    fn is_slow(&self, now: Instant) -> bool {
        let is_late = self.contents.first().is_some_and(|(since, _)| *since + self.patience() <= now);
        is_late || self.slow_until.is_some_and(|until| now < until)
    }
    /// Handles the arrival of a content requested at `since`.
    fn brought(&mut self, now: Instant, since: Instant) {
        let patience = self.patience();
        if now < since + patience {
            self.contents_max = (self.contents_max + 1).min(CONTENTS_MAX);
        } else {
            // Contents that were requested together are late together, and cause one reduction.
            if self.cut_at.is_none_or(|at| at + patience <= now) {
                self.contents_max = (self.contents_max / 2).max(CONTENTS_MIN);
                self.cut_at = Some(now);
            }
            self.slow_until = Some(now + SLOW);
        }
    }
}

impl<S: Symbol + From<Bytes>> Fetch<S> {
    /// The connected holder of an object that owes the fewest contents, if a holder may owe another
    /// content.
    fn with_room(&self, it: &Object) -> Option<ServerId> {
        let owes = |holder: &ServerId| self.links[holder.0 as usize].contents.len();
        let holders = it.wanted.parts[0].holders.iter().copied();
        let connected = holders.filter(|holder| self.links[holder.0 as usize].is_connected);
        let has_room = |holder: &ServerId| owes(holder) < self.links[holder.0 as usize].contents_max;
        connected.filter(has_room).min_by_key(owes)
    }

    /// Whether an object that may be short has to wait, because every server owes its maximum or no
    /// server is connected.
    pub(super) fn waits_for_room(&self, now: Instant, object: usize) -> bool {
        let it = &self.objects[object];
        if !(self.is_many && it.may_be_short()) {
            return false;
        }
        let mut links = it.wanted.parts[0].holders.iter().map(|holder| &self.links[holder.0 as usize]);
        if links.clone().all(|link| link.lost.is_some()) {
            return false;
        }
        if self.first_comes(it) || links.clone().all(|link| !link.is_connected) {
            return true;
        }
        let is_slow = links.any(|link| link.is_slow(now));
        let owed: usize = self.links.iter().map(|link| link.contents.len()).sum();
        let pulled = self.active.len().saturating_sub(owed);
        self.with_room(it).is_none() && !(is_slow && pulled < AHEAD_PULLS * self.pulls_max)
    }

    /// Asks `describer` for an object's description, and the holder that owes the fewest contents
    /// for its content.
    pub(super) fn inspect(&mut self, now: Instant, object: usize, describer: ServerId) {
        let it = &self.objects[object];
        let bringer = if it.comes_whole() { None } else { self.with_room(it) };
        let name = it.wanted.parts[0].name.clone();
        let ask = |object, with_hash, with_content| Control::Inspect { object, with_hash, with_content };
        if let Some(other) = bringer.filter(|bringer| *bringer != describer) {
            self.control.push_back((other, ask(name.clone(), false, true)));
        }
        self.control.push_back((describer, ask(name, true, bringer == Some(describer))));
        if let Some(bringer) = bringer {
            self.objects[object].brings = Some((bringer, now));
            self.links[bringer.0 as usize].contents.insert((now, object));
        }
    }

    /// Cancels the request for an object's content.
    fn owe_no_more(&mut self, object: usize) {
        if let Some((server, since)) = self.objects[object].brings.take() {
            self.links[server.0 as usize].contents.remove(&(since, object));
        }
    }

    /// Cancels the request for an object's content, and drops a received content.
    pub(super) fn forget_content(&mut self, object: usize) {
        self.owe_no_more(object);
        let it = &mut self.objects[object];
        (it.content, it.awaits_content) = (None, false);
    }

    /// Handles an answer without the content. The object is then pulled.
    pub(super) fn not_brought(&mut self, now: Instant, object: usize, server: ServerId) {
        if self.objects[object].brings.is_some_and(|(bringer, _)| bringer == server) {
            self.owe_no_more(object);
            self.take_content(now, object);
        }
    }

    /// Handles the loss of a server. The contents that the server owes are pulled from other
    /// holders.
    pub(super) fn bringer_lost(&mut self, now: Instant, server: ServerId) {
        for (_, object) in std::mem::take(&mut self.links[server.0 as usize].contents) {
            self.not_brought(now, object, server);
        }
    }

    /// Pulls the objects whose contents have been owed for too long. Contents arrive one after the
    /// other, so each content waits for the earlier ones.
    pub(super) fn give_up_contents(&mut self, now: Instant) {
        for server in (0..self.links.len() as u32).map(ServerId) {
            let link = &self.links[server.0 as usize];
            // Other answers extend the wait, up to a bound.
            let is_late = |asked_at: Instant| {
                let since = link.answered_at.map_or(asked_at, |at| at.max(asked_at));
                self.client.silent_at(server, since).min(asked_at + BUSY_MAX) <= now
            };
            let late: Vec<usize> = link
                .contents
                .iter()
                .filter(|(since, _)| is_late(*since))
                .map(|(_, object)| *object)
                .collect();
            for object in late {
                self.not_brought(now, object, server);
            }
        }
    }

    /// Handles a server's answer with the whole content.
    pub(super) fn short(
        &mut self,
        now: Instant,
        server: ServerId,
        name: &str,
        found: ObjectDescription,
        bytes: Bytes,
    ) {
        for object in self.by_name.get(name).cloned().unwrap_or_default() {
            let it = &mut self.objects[object];
            let brings = it.brings.filter(|(bringer, _)| *bringer == server);
            if let (Some((_, since)), true) = (brings, it.wanted.parts[0].name == name) {
                self.links[server.0 as usize].brought(now, since);
                it.content = Some(Content { server, found, bytes: bytes.clone() });
                self.owe_no_more(object);
                self.take_content(now, object);
            }
        }
        self.described(now, server, name, &Ok(found));
    }

    /// Uses an object's content if its destination is open. Pulls the object if no content will
    /// arrive.
    pub(super) fn take_content(&mut self, now: Instant, object: usize) {
        let it = &mut self.objects[object];
        if !it.awaits_content {
            return;
        }
        if it.content.is_none() && it.brings.is_some() {
            it.stage = ObjectStage::Getting(1);
            return;
        }
        it.awaits_content = false;
        let bytes = it.wanted.bytes.unwrap_or(0);
        if let Some(Content { server, found, bytes: content }) = it.content.take() {
            let is_same = it.wanted.hash.is_none() || it.wanted.hash == found.hash;
            if is_same && content.len() as u64 == bytes {
                it.fetched_bytes += bytes;
                self.done_bytes += bytes;
                let (id, blocks) = (ObjectId(object as u32), vec![S::from(content)]);
                self.events.push_back(FetchEvent::Write { object: id, range: 0..bytes, blocks });
                return self.finish(now, object);
            }
            it.spoilt.insert((0, server));
            let version = match found.hash {
                Some(hash) if content.len() as u64 == bytes => {
                    Version::Hash { name: it.wanted.parts[0].name.clone(), bytes: found.bytes, hash }
                }
                _ => Version::Length(found.bytes),
            };
            self.note_other(object, server, version);
        }
        let all = 0..bytes;
        self.pull(now, object, std::slice::from_ref(&all));
    }
}

const _: () = assert!(SHORT_BYTES_MAX < u16::MAX as usize, "a message's length has two bytes");
