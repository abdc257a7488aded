//! Parts at one node: received bytes, requests that wait for bytes, and parents.
//!
//! Source: `crate::relay`, without its memory limits. Leaves out: connections and their bytes
//! (`app`). Read [`NodeParts`].

use crate::{NodeId, Object};
use std::collections::BTreeMap;

/// A part of an object, by its number since the start of the run.
pub(super) type PartId = (Object, u64);

/// A request to a parent in progress.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct Fetch {
    pub(super) parent: NodeId,
    pub(super) stream: u32,
}

/// Parts of one node.
#[derive(Debug, Default)]
pub(super) struct NodeParts {
    /// Bytes received of each part in the window.
    have: BTreeMap<PartId, u64>,
    /// Connections of requests that are not completely answered.
    waiting: BTreeMap<PartId, Vec<u32>>,
    fetches: BTreeMap<PartId, Fetch>,
    /// Parents that have granted each object, the latest grant last.
    routes: BTreeMap<Object, Vec<NodeId>>,
}

impl NodeParts {
    /// Bytes of a part that this node has.
    pub(super) fn bytes(&self, part: PartId) -> u64 {
        self.have.get(&part).copied().unwrap_or(0)
    }

    /// Sets the received bytes of a part, and drops the part that is `window` numbers older.
    pub(super) fn note_bytes(&mut self, part: PartId, bytes: u64, window: u64) {
        let have = self.have.entry(part).or_default();
        *have = bytes.max(*have);
        if let Some(old) = part.1.checked_sub(window) {
            self.have.remove(&(part.0, old));
        }
    }

    /// Adds a request that waits for a part.
    pub(super) fn wait(&mut self, part: PartId, stream: u32) {
        self.waiting.entry(part).or_default().push(stream);
    }

    /// Connections of the requests that wait for a part.
    pub(super) fn waiting(&self, part: PartId) -> Vec<u32> {
        self.waiting.get(&part).cloned().unwrap_or_default()
    }

    /// Removes a waiting request.
    pub(super) fn forget(&mut self, part: PartId, stream: u32) {
        if let Some(streams) = self.waiting.get_mut(&part) {
            streams.retain(|waiting| *waiting != stream);
            if streams.is_empty() {
                self.waiting.remove(&part);
            }
        }
    }

    /// Parent for the next request for an object.
    pub(super) fn route(&self, object: Object) -> Option<NodeId> {
        self.routes.get(&object)?.last().copied()
    }

    /// Adds a parent that has granted an object.
    pub(super) fn add_route(&mut self, object: Object, parent: NodeId) {
        let routes = self.routes.entry(object).or_default();
        routes.retain(|known| *known != parent);
        routes.push(parent);
    }

    /// Removes a parent of an object. Returns the requests to the parent that were in progress,
    /// which are dropped.
    pub(super) fn remove_route(&mut self, object: Object, parent: NodeId) -> Vec<(PartId, u32)> {
        if let Some(routes) = self.routes.get_mut(&object) {
            routes.retain(|known| *known != parent);
            if routes.is_empty() {
                self.routes.remove(&object);
            }
        }
        let of_parent = self.fetches.range((object, 0)..=(object, u64::MAX));
        let of_parent = of_parent.filter(|(_, fetch)| fetch.parent == parent);
        let ended: Vec<(PartId, u32)> = of_parent.map(|(part, fetch)| (*part, fetch.stream)).collect();
        for (part, _) in &ended {
            self.fetches.remove(part);
        }
        ended
    }

    /// Parts of an object that requests wait for and that are not being fetched.
    pub(super) fn unfetched(&self, object: Object) -> Vec<PartId> {
        let waiting = self.waiting.range((object, 0)..=(object, u64::MAX));
        waiting.map(|(part, _)| *part).filter(|part| !self.fetches.contains_key(part)).collect()
    }

    /// Whether a part is being fetched from a parent.
    pub(super) fn is_fetched(&self, part: PartId) -> bool {
        self.fetches.contains_key(&part)
    }

    /// Adds a request to a parent.
    pub(super) fn start_fetch(&mut self, part: PartId, fetch: Fetch) {
        self.fetches.insert(part, fetch);
    }

    /// Removes a finished request to a parent. Returns false if the request was dropped before.
    pub(super) fn end_fetch(&mut self, part: PartId, stream: u32) -> bool {
        let is_it = self.fetches.get(&part).is_some_and(|fetch| fetch.stream == stream);
        if is_it {
            self.fetches.remove(&part);
        }
        is_it
    }

    /// All requests to parents in progress.
    pub(super) fn fetches(&self) -> impl Iterator<Item = (PartId, Fetch)> {
        self.fetches.iter().map(|(part, fetch)| (*part, *fetch))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ChannelId;
    use anabranch_units::BitRate;

    const OBJECT: Object = Object { channel: ChannelId(0), bitrate: BitRate::mbps(1) };

    #[test]
    fn fetches_from_a_lost_parent_are_repeated() {
        let (old, new) = (NodeId(1), NodeId(2));
        let mut parts = NodeParts::default();
        parts.add_route(OBJECT, old);
        parts.wait((OBJECT, 7), 50);
        parts.start_fetch((OBJECT, 7), Fetch { parent: old, stream: 9 });
        parts.add_route(OBJECT, new);
        assert_eq!(parts.route(OBJECT), Some(new));
        assert_eq!(parts.unfetched(OBJECT), []);
        assert_eq!(parts.remove_route(OBJECT, old), [((OBJECT, 7), 9)]);
        assert_eq!(parts.unfetched(OBJECT), [(OBJECT, 7)]);
        assert!(!parts.end_fetch((OBJECT, 7), 9));
        parts.forget((OBJECT, 7), 50);
        assert_eq!(parts.unfetched(OBJECT), []);
    }

    #[test]
    fn node_drops_parts_older_than_the_window() {
        let mut parts = NodeParts::default();
        for number in 0..20 {
            parts.note_bytes((OBJECT, number), 100, 5);
        }
        let kept: Vec<u64> = (0..20).filter(|number| parts.bytes((OBJECT, *number)) > 0).collect();
        assert_eq!(kept, [15, 16, 17, 18, 19]);
        parts.note_bytes((OBJECT, 19), 40, 5);
        assert_eq!(parts.bytes((OBJECT, 19)), 100, "a second copy takes nothing away");
    }
}
