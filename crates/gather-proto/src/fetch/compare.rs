//! The second try for an object that does not match its hash: all its servers are asked for their
//! hashes, and the object is pulled again from the servers with the right version. A server that
//! was not connected during the comparison may have another version, too. Further tries are made as
//! long as each comparison excludes another server.

use super::{Fetch, FetchEvent, FetchFailure, ObjectId, ObjectPart, ObjectStage, Version};
use crate::client::ServerId;
use crate::msg::{Control, ObjectDescription};
use anabranch_codes::Symbol;
use anabranch_endpoint::Bytes;
use anabranch_units::Instant;
use std::collections::BTreeSet;

impl<S: Symbol + From<Bytes>> Fetch<S> {
    /// Asks an object's servers for their versions after a hash mismatch.
    pub(super) fn compare(&mut self, now: Instant, object: usize) {
        let it = &mut self.objects[object];
        let mut waiting = BTreeSet::new();
        for (number, part) in it.wanted.parts.iter().enumerate() {
            for holder in &part.holders {
                let is_good = !it.spoilt.contains(&(number, *holder));
                if is_good && self.links[holder.0 as usize].is_connected {
                    let ask = Control::Describe { object: part.name.clone(), with_hash: true };
                    self.control.push_back((*holder, ask));
                    waiting.insert((number, *holder));
                }
            }
        }
        it.stage = ObjectStage::Comparing(waiting);
        it.is_wiser = false;
        (it.asked_at, it.first_asked_at) = (now, Some(now));
        self.events.push_back(FetchEvent::Comparing { object: ObjectId(object as u32) });
        self.compared(now, object);
    }

    /// Continues once all servers have answered. The wrong parts are pulled again from the
    /// remaining servers.
    pub(super) fn compared(&mut self, now: Instant, object: usize) {
        let it = &mut self.objects[object];
        if !matches!(&it.stage, ObjectStage::Comparing(waiting) if waiting.is_empty()) {
            return;
        }
        let is_held = |(number, part): (usize, &ObjectPart)| {
            part.holders.iter().any(|holder| !it.spoilt.contains(&(number, *holder)))
        };
        let is_held = it.wanted.parts.iter().enumerate().all(is_held);
        match it.wanted.bytes {
            // The number of tries is bounded by the number of holders, because each further try
            // excludes at least one more.
            Some(bytes) if is_held && (!it.was_wrong || it.is_wiser) && !self.streams => {
                it.was_wrong = true;
                self.open(object, bytes);
            }
            _ => {
                let failure = FetchFailure::Wrong(it.agreement.others.clone());
                self.fail(now, object, failure);
            }
        }
    }

    /// Handles a server's description of a part under comparison.
    pub(super) fn compare_with(
        &mut self,
        now: Instant,
        object: usize,
        server: ServerId,
        name: &str,
        found: &Result<ObjectDescription, String>,
    ) {
        let it = &mut self.objects[object];
        let ObjectStage::Comparing(waiting) = &mut it.stage else { return };
        // An answer without a hash belongs to an earlier request.
        if matches!(found, Ok(ObjectDescription { hash: None, .. })) {
            return;
        }
        let mut other = None;
        for (number, part) in it.wanted.parts.iter().enumerate() {
            if part.name != name || !waiting.remove(&(number, server)) {
                continue;
            }
            let whole = if it.wanted.parts.len() == 1 { it.wanted.hash } else { None };
            let version = match (found, part.hash.or(whole)) {
                (Ok(ObjectDescription { hash: Some(hash), bytes, .. }), Some(expected))
                    if *hash != expected =>
                {
                    Version::Hash { name: name.to_owned(), bytes: *bytes, hash: *hash }
                }
                (Err(reason), _) => Version::Refused(reason.clone()),
                _ => continue,
            };
            it.spoilt.insert((number, server));
            it.is_wiser = true;
            other = Some(version);
        }
        if let Some(version) = other {
            self.note_other(object, server, version);
        }
        self.compared(now, object);
    }
}
