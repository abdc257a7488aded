//! Choice of the holder that describes an object: the first one listed, if it connects soon. If a
//! holder is lost, does not have the object, has another version or takes too long, the next holder
//! is asked.

use super::{Fetch, FetchEvent, FetchFailure, Object, ObjectId, ObjectStage, Version};
use crate::client::deadlines::reason;
use crate::client::{Failure, ServerId};
use crate::msg::{Control, ObjectDescription};
use anabranch_codes::Symbol;
use anabranch_endpoint::Bytes;
use anabranch_pieces::Attributes;
use anabranch_units::{Duration, Instant};

/// Maximum wait for a server that reports hashing of other objects, in addition to the hashing time
/// of the object itself.
pub(super) const BUSY_MAX: Duration = Duration::from_secs(600);
/// Minimum assumed hashing rate of a server, in bytes per second: a slow disk shared with other
/// clients.
const HASH_BYTES_PER_S: u64 = 20_000_000;

/// Maximum time to hash an object; zero while its length is unknown.
fn hashing_time(object: &Object) -> Duration {
    Duration::from_secs(object.wanted.bytes.unwrap_or(0) / HASH_BYTES_PER_S)
}

impl<S: Symbol + From<Bytes>> Fetch<S> {
    /// Requests descriptions of waiting objects, from the first listed holder if it connects soon.
    pub(super) fn describe_waiting(&mut self, now: Instant) {
        self.each_active(|fetch, object| fetch.describe_if_waiting(now, object));
    }

    /// Requests the description of one object, if the object waits for a description.
    pub(super) fn describe_if_waiting(&mut self, now: Instant, object: usize) {
        let it = &self.objects[object];
        if it.waits_to_be_described() && !(it.asked.is_none() && self.first_comes(it)) {
            self.describe(now, object);
        }
    }

    /// Whether the first listed holder may still connect in time.
    pub(super) fn first_comes(&self, it: &Object) -> bool {
        let first = it.wanted.parts[0].holders.first().map(|first| &self.links[first.0 as usize]);
        self.first_at.is_some() && first.is_some_and(|link| !link.is_connected && link.lost.is_none())
    }

    /// Whether a holder that has not been asked for a description is connected or may still
    /// connect.
    pub(super) fn may_ask(&self, it: &Object) -> bool {
        let is_left = |(at, holder): (usize, &ServerId)| {
            !it.tried.contains(&at) && self.links[holder.0 as usize].lost.is_none()
        };
        it.wanted.parts[0].holders.iter().enumerate().any(is_left)
    }

    /// Asks the first connected holder that has not been asked for a description.
    pub(super) fn describe(&mut self, now: Instant, object: usize) {
        // The previous holder may have had another version.
        self.drop_early(now, object);
        let it = &mut self.objects[object];
        let holders = &it.wanted.parts[0].holders;
        let mut waits = false;
        for (at, holder) in holders.iter().enumerate() {
            if it.tried.contains(&at) {
                continue;
            }
            let link = &self.links[holder.0 as usize];
            if link.is_connected {
                if self.is_many && it.may_be_short() {
                    (it.asked, it.is_waiting, it.asked_at, it.is_told) = (Some(at), false, now, false);
                    it.tried.insert(at);
                    it.first_asked_at.get_or_insert(now);
                    let holder = *holder;
                    return self.inspect(now, object, holder);
                }
                let name = &it.wanted.parts[0].name;
                let ask = |with_hash| (*holder, Control::Describe { object: name.clone(), with_hash });
                if it.wanted.bytes.is_none() || it.wanted.attributes.is_none() {
                    self.control.push_back(ask(false));
                }
                if it.wanted.hash.is_none() {
                    self.control.push_back(ask(true));
                }
                (it.asked, it.is_waiting, it.asked_at, it.is_told) = (Some(at), false, now, false);
                it.tried.insert(at);
                it.first_asked_at.get_or_insert(now);
                // If a file may be partly present, the beginning of the object is probably present.
                let is_unknown = it.stage == ObjectStage::Describing && !it.wanted.may_be_there;
                let holder = *holder;
                if is_unknown && !self.is_many {
                    self.ask_early(now, object, holder);
                }
                return;
            }
            waits |= link.lost.is_none();
        }
        if it.wanted.bytes.is_some() && it.wanted.hash.is_some() {
            // Missing attributes do not make an object fail.
            it.lacks_attributes = true;
        } else if waits {
            it.is_waiting = true;
        } else {
            let is_known = it.wanted.bytes.is_some();
            let unsaid =
                if is_known { "it does not tell the hash" } else { "it does not describe the object" };
            let failures = holders.iter().map(|server| {
                let lost = self.links[server.0 as usize].lost.clone();
                let said = || it.refusals.get(server).cloned();
                let other = || it.agreement.others.get(server).map(Version::to_string);
                let reason = lost.or_else(said).or_else(other).unwrap_or_else(|| unsaid.to_owned());
                Failure { server: *server, reason }
            });
            let failures = failures.collect();
            self.fail(now, object, FetchFailure::NotBrought(failures));
        }
    }

    /// Time at which the answer of a holder about an object is late, if that holder sends no
    /// further data.
    ///
    /// `asked_at` is the time of the request, and `first_asked_at` the time of the first request of
    /// the same kind.
    pub(super) fn answer_due(
        &self,
        it: &Object,
        server: ServerId,
        asked_at: Instant,
        first_asked_at: Instant,
    ) -> Instant {
        let hashing = hashing_time(it);
        // Answers arrive one after the other, so each answer waits for the earlier ones.
        let answered_at = self.links[server.0 as usize].answered_at;
        let since = answered_at.map_or(asked_at, |at| at.max(asked_at));
        let silence = self.patience(it, server);
        let silent_at = if self.may_ask(it) {
            self.client.silent_at(server, since)
        } else {
            // No other holder could be asked instead.
            self.client.heard_at(server).map_or(since, |at| at.max(since)) + silence
        };
        let latest = first_asked_at + BUSY_MAX + hashing + silence;
        (silent_at + hashing).min(latest)
    }

    /// Silence after which a holder's answer about an object is late.
    fn patience(&self, it: &Object, server: ServerId) -> Duration {
        let is_needed = it.wanted.bytes.is_none() || it.wanted.hash.is_none();
        let compares = matches!(it.stage, ObjectStage::Comparing(_));
        if is_needed && !compares && !self.may_ask(it) {
            self.client.last_silence(server)
        } else {
            self.client.silence(server)
        }
    }

    /// Whether the answer of the asked holder is late. In a comparison, whether the answers of all
    /// awaited holders are late.
    fn is_late(&self, now: Instant, it: &Object) -> bool {
        let first_asked_at = it.first_asked_at.unwrap_or(it.asked_at);
        let is_late = |server: ServerId| self.answer_due(it, server, it.asked_at, first_asked_at) < now;
        match &it.stage {
            ObjectStage::Comparing(waiting) => waiting.iter().all(|(_, server)| is_late(*server)),
            _ => it.asked_server().is_some_and(is_late),
        }
    }

    /// Asks the next holder of each object whose description is late.
    pub(super) fn ask_others(&mut self, now: Instant) {
        for object in self.active.clone() {
            let it = &self.objects[object];
            if !self.is_late(now, it) {
                continue;
            }
            let (may_ask, lacks_description) = (self.may_ask(it), it.lacks_description());
            let silence = it.asked_server().map(|server| (server, self.patience(it, server)));
            let it = &mut self.objects[object];
            match &mut it.stage {
                // A server that does not report its version may still deliver the bytes.
                ObjectStage::Comparing(waiting) => {
                    waiting.clear();
                    self.compared(now, object);
                }
                // The last holder asked may still answer in the meantime.
                ObjectStage::Opening | ObjectStage::Getting(_) if !may_ask => {}
                ObjectStage::Describing
                | ObjectStage::Opening
                | ObjectStage::Getting(_)
                | ObjectStage::Finishing
                    if lacks_description =>
                {
                    // A holder that refused has answered, so its silence is no reason for the
                    // failure.
                    if let Some((server, silence)) = silence.filter(|_| !it.is_waiting) {
                        let failing = match it.wanted.bytes {
                            Some(_) => "it did not tell the hash",
                            None => "it did not describe the object",
                        };
                        it.refusals.insert(server, reason(failing, silence));
                    }
                    self.describe(now, object);
                }
                ObjectStage::Finishing => {
                    it.lacks_attributes = true;
                    self.finish_if_known(now, object);
                }
                _ => {}
            }
        }
    }

    /// Handles the loss of a server. If the server was asked for a description, the next holder is
    /// asked.
    pub(super) fn describer_lost(&mut self, now: Instant, object: usize, server: ServerId) {
        let it = &mut self.objects[object];
        if let ObjectStage::Comparing(waiting) = &mut it.stage {
            waiting.retain(|(_, of)| *of != server);
            return self.compared(now, object);
        }
        let was_asked = it.asked_server() == Some(server);
        let may_wait = it.waits_to_be_described() && it.wanted.parts[0].holders.contains(&server);
        if it.lacks_description() && (was_asked || may_wait) {
            self.describe(now, object);
        } else if it.stage == ObjectStage::Finishing && was_asked {
            it.lacks_attributes = true;
            self.finish_if_known(now, object);
        }
    }

    /// Handles a server's notice that a hash takes longer.
    pub(super) fn hashing(&mut self, now: Instant, server: ServerId, name: &str) {
        for object in &self.active {
            let (it, object) = (&mut self.objects[*object], *object as u32);
            let is_comparing = matches!(&it.stage, ObjectStage::Comparing(waiting) if waiting.iter().any(|(_, of)| *of == server));
            let is_asked = it.wanted.hash.is_none() && it.asked_server() == Some(server);
            if !(is_comparing || is_asked) {
                continue;
            }
            // A server hashes one object after the other, so hashing one object delays answers
            // about other objects, too.
            let most = BUSY_MAX + hashing_time(it);
            if it.first_asked_at.is_some_and(|at| now.saturating_since(at) < most) {
                it.asked_at = now;
            }
            if it.wanted.parts[0].name == name && !it.is_told && it.stage == ObjectStage::Finishing {
                it.is_told = true;
                self.events.push_back(FetchEvent::StillHashing { object: ObjectId(object), server });
            }
        }
    }

    /// Handles a server's description of an object.
    pub(super) fn described(
        &mut self,
        now: Instant,
        server: ServerId,
        name: &str,
        found: &Result<ObjectDescription, String>,
    ) {
        for object in self.by_name.get(name).cloned().unwrap_or_default() {
            self.not_brought(now, object, server);
            if matches!(self.objects[object].stage, ObjectStage::Comparing(_)) {
                self.compare_with(now, object, server, name, found);
                continue;
            }
            let it = &mut self.objects[object];
            let part = &it.wanted.parts[0];
            if part.name != name || !part.holders.contains(&server) || !it.is_under_way() {
                continue;
            }
            // A holder that answered late may be the only holder with the object's version.
            let says_hash =
                it.wanted.hash.is_none() && matches!(found, Ok(ObjectDescription { hash: Some(_), .. }));
            let was_asked = |at: &usize| part.holders[*at] == server;
            let is_asked = it.asked_server() == Some(server) || (says_hash && it.tried.iter().any(was_asked));
            let lacks_something = it.wanted.hash.is_none() || it.wanted.attributes.is_none();
            let is_version = matches!(found, Ok(ObjectDescription { hash: Some(_), .. }) | Err(_));
            let expected = if it.wanted.parts.len() == 1 { it.wanted.bytes } else { part.bytes };
            match found {
                Ok(found) if expected.is_some_and(|bytes| bytes != found.bytes) => {
                    self.note_other(object, server, Version::Length(found.bytes));
                    if is_asked && lacks_something {
                        self.describe(now, object);
                        self.finish_if_known(now, object);
                    }
                }
                Ok(found) if is_asked => {
                    let attributes = Attributes { mode: found.mode.into(), modified_ns: found.modified_ns };
                    it.wanted.attributes.get_or_insert(attributes);
                    it.wanted.hash = it.wanted.hash.or(found.hash);
                    if it.stage == ObjectStage::Describing {
                        self.open(object, found.bytes);
                        (0..self.links.len() as u32)
                            .for_each(|link| self.ask_version(now, object, ServerId(link)));
                    } else {
                        self.finish_if_known(now, object);
                    }
                }
                Err(reason) => {
                    let is_unknown = it.stage == ObjectStage::Describing || it.wanted.hash.is_none();
                    it.refusals.insert(server, reason.clone());
                    if is_asked && is_unknown {
                        self.describe(now, object);
                    }
                }
                Ok(_) => {}
            }
            if is_version {
                let said = found.as_ref().ok().and_then(|found| Some((found.bytes, found.hash?)));
                self.note_version(object, server, said);
                self.finish_if_known(now, object);
            }
        }
    }
}
