//! Comparison of an object's holders before the object is finished: all holders should have the
//! same version.
//!
//! A long object arrives from several holders, so another version of equal length causes a hash
//! mismatch (`compare`). A short object arrives from a single holder. A fetch of one short object
//! therefore asks the object's other holders for the hash, and waits briefly. A strict fetch asks
//! every holder and waits longer; an object with two versions then fails.
//!
//! Leaves out: objects of several parts, whose hashes a manifest gives. Read
//! [`Fetch::ask_version`] first.

#[cfg(test)]
mod tests;

use super::{EARLY_BYTES, Fetch, FetchFailure, Link, Object, ObjectStage, Version};
use crate::client::ServerId;
use crate::msg::Control;
use anabranch_codes::Symbol;
use anabranch_endpoint::Bytes;
use anabranch_units::Instant;
use std::collections::BTreeMap;

/// Versions of an object at its holders.
#[derive(Debug, Default)]
pub(super) struct Agreement {
    /// Versions that differ from the described version, by server.
    pub(super) others: BTreeMap<ServerId, Version>,
    /// Holders that were asked for their hash and have not answered, with the time of the request.
    awaited: BTreeMap<ServerId, Instant>,
    /// Length and hash of the object at each holder that answered; `None` if the holder refused to
    /// report them.
    said: BTreeMap<ServerId, Option<(u64, [u8; 32])>>,
}

impl Link {
    /// Whether the server may still connect.
    const fn is_connecting(&self) -> bool {
        !self.is_connected && self.lost.is_none()
    }
}

impl<S: Symbol + From<Bytes>> Fetch<S> {
    /// Whether the holders of an object are asked for their hashes.
    fn compares_hashes(&self, it: &Object) -> bool {
        let is_short = it.wanted.bytes.is_some_and(|bytes| bytes <= EARLY_BYTES);
        it.wanted.parts.len() == 1 && (self.is_strict || (is_short && self.objects.len() == 1))
    }

    /// Asks a server for its version of an object, if another server describes the object. The
    /// server is asked for its hash if hashes are compared, and otherwise for its length.
    pub(super) fn ask_version(&mut self, now: Instant, object: usize, server: ServerId) {
        let it = &self.objects[object];
        let part = &it.wanted.parts[0];
        let is_holder = part.holders.contains(&server) && self.links[server.0 as usize].is_connected;
        let is_other = (it.asked.is_some() || self.is_strict) && it.asked_server() != Some(server);
        if !(is_holder && is_other && it.is_under_way()) {
            return;
        }
        let (name, with_hash) = (part.name.clone(), self.compares_hashes(it));
        // The length need not be requested if a manifest gives it.
        let knows_length = part.bytes.is_some() || it.comes_whole();
        let agreement = &mut self.objects[object].agreement;
        let is_known = if with_hash {
            agreement.said.contains_key(&server) || agreement.awaited.contains_key(&server)
        } else {
            knows_length
        };
        if is_known {
            return;
        }
        if with_hash {
            agreement.awaited.insert(server, now);
        }
        self.control.push_back((server, Control::Describe { object: name, with_hash }));
    }

    /// Records a holder's answer: its length and hash, or a refusal.
    pub(super) fn note_version(&mut self, object: usize, server: ServerId, said: Option<(u64, [u8; 32])>) {
        let agreement = &mut self.objects[object].agreement;
        agreement.awaited.remove(&server);
        agreement.said.insert(server, said);
        self.name_others(object);
    }

    /// Reports the holders whose hash differs from the expected hash.
    pub(super) fn name_others(&mut self, object: usize) {
        let it = &self.objects[object];
        let Some(expected) = it.wanted.hash.filter(|_| it.wanted.parts.len() == 1) else { return };
        let name = it.wanted.parts[0].name.clone();
        for (server, said) in it.agreement.said.clone() {
            if let Some((bytes, hash)) = said.filter(|(_, hash)| *hash != expected) {
                self.note_other(object, server, Version::Hash { name: name.clone(), bytes, hash });
            }
        }
    }

    /// Whether an object whose bytes are all present waits for the hashes of its holders.
    pub(super) fn awaits_versions(&mut self, now: Instant, object: usize) -> bool {
        if self.is_strict {
            // A holder of an object with a known hash may not have been sent any request yet.
            (0..self.links.len() as u32).for_each(|link| self.ask_version(now, object, ServerId(link)));
        }
        let it = &self.objects[object];
        if !self.compares_hashes(it) {
            return false;
        }
        let is_awaited = |(server, asked_at): (&ServerId, &Instant)| {
            let link = &self.links[server.0 as usize];
            let until = if self.is_strict {
                self.answer_due(it, *server, *asked_at, *asked_at)
            } else {
                *asked_at + link.patience()
            };
            link.is_connected && now < until
        };
        let may_come = |holder: &ServerId| self.is_strict && self.links[holder.0 as usize].is_connecting();
        it.agreement.awaited.iter().any(is_awaited) || it.wanted.parts[0].holders.iter().any(may_come)
    }

    /// Finishes the objects whose holders have been awaited for long enough.
    pub(super) fn finish_compared(&mut self, now: Instant) {
        self.each_active(|fetch, object| {
            if fetch.objects[object].stage == ObjectStage::Finishing {
                fetch.finish_if_known(now, object);
            }
        });
    }

    /// Fails an object with two known versions in a strict fetch. Returns whether the object has
    /// failed.
    pub(super) fn fail_if_they_differ(&mut self, now: Instant, object: usize) -> bool {
        let others = &self.objects[object].agreement.others;
        let is_version = |other: &Version| !matches!(other, Version::Refused(_));
        let differ = self.is_strict && others.values().any(is_version);
        if differ {
            let failure = FetchFailure::Differ(others.clone());
            self.fail(now, object, failure);
        }
        differ
    }
}
