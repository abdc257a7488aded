//! The second try: an object does not match its hash, so all its servers are asked for theirs, and the object is pulled again from
//! those that have the right version. A server that was not connected then may have another version, too: further tries are made
//! for as long as each comparison finds one.

use super::{Fetch, FetchEvent, FetchFailure, ObjectId, Part, Stage, Version};
use crate::client::ServerId;
use crate::msg::{Control, Found};
use anabranch_codes::Symbol;
use anabranch_endpoint::Bytes;
use anabranch_units::Instant;
use std::collections::BTreeSet;

impl<S: Symbol + From<Bytes>> Fetch<S> {
    /// An object is not what its hash says: asks its servers which of them have something else.
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
        it.stage = Stage::Comparing(waiting);
        it.is_wiser = false;
        (it.asked_at, it.first_asked_at) = (now, Some(now));
        self.events.push_back(FetchEvent::Comparing { object: ObjectId(object as u32) });
        self.compared(now, object);
    }

    /// Goes on once all have said what they have: what is wrong is pulled again, from the others.
    pub(super) fn compared(&mut self, now: Instant, object: usize) {
        let it = &mut self.objects[object];
        if !matches!(&it.stage, Stage::Comparing(waiting) if waiting.is_empty()) {
            return;
        }
        let is_held = |(number, part): (usize, &Part)| {
            part.holders.iter().any(|holder| !it.spoilt.contains(&(number, *holder)))
        };
        let is_held = it.wanted.parts.iter().enumerate().all(is_held);
        match it.wanted.bytes {
            // There are no more tries than holders: each further one knows of one more that is left out.
            Some(bytes) if is_held && (!it.was_wrong || it.is_wiser) && !self.streams => {
                it.was_wrong = true;
                self.open(object, bytes);
            }
            _ => {
                let failure = FetchFailure::Wrong(it.others.clone());
                self.fail(now, object, failure);
            }
        }
    }

    /// A server says what it has of a part that is compared.
    pub(super) fn compare_with(
        &mut self,
        now: Instant,
        object: usize,
        server: ServerId,
        name: &str,
        found: &Result<Found, String>,
    ) {
        let it = &mut self.objects[object];
        let Stage::Comparing(waiting) = &mut it.stage else { return };
        // What it said to another question has no hash.
        if matches!(found, Ok(Found { hash: None, .. })) {
            return;
        }
        let mut other = None;
        for (number, part) in it.wanted.parts.iter().enumerate() {
            if part.name != name || !waiting.remove(&(number, server)) {
                continue;
            }
            let whole = if it.wanted.parts.len() == 1 { it.wanted.hash } else { None };
            let version = match (found, part.hash.or(whole)) {
                (Ok(Found { hash: Some(hash), bytes, .. }), Some(expected)) if *hash != expected => {
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
