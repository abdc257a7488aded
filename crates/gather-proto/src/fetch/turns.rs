//! Which objects are under way: the first ones that have not ended, as many as the driver has room for.
//!
//! Leaves out: what is asked of them (`describe`, `short`).

use super::{Fetch, Stage};
use anabranch_codes::Symbol;
use anabranch_endpoint::Bytes;
use anabranch_units::Instant;

impl<S: Symbol + From<Bytes>> Fetch<S> {
    /// Begins objects while there is room. Whether some were begun.
    pub(super) fn begin_more(&mut self, now: Instant) -> bool {
        let before = self.next;
        while self.next < self.objects.len() && self.active.len() < self.objects_max {
            let object = self.next;
            if self.waits_for_room(now, object) {
                break;
            }
            self.next += 1;
            self.active.insert(object);
            match self.objects[object].wanted.bytes {
                // Where bytes are known from a manifest, files are opened while servers are reached.
                Some(bytes) => self.open(object, bytes),
                None => self.objects[object].stage = Stage::Describing,
            }
            self.describe_if_waiting(now, object);
        }
        self.next > before
    }

    /// An object has ended: another one may have its place.
    pub(super) fn ended(&mut self, object: usize) {
        self.left -= 1;
        self.active.remove(&object);
        self.forget_content(object);
    }

    /// Does something with each object that is under way now.
    pub(super) fn each_active(&mut self, mut f: impl FnMut(&mut Self, usize)) {
        for object in self.active.clone() {
            f(self, object);
        }
    }
}
