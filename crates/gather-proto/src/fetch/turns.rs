//! Selection of the objects under way: the first objects that have not ended, up to the driver's
//! maximum.
//!
//! Leaves out: requests for descriptions and contents (`describe`, `short`).

use super::{Fetch, ObjectStage};
use anabranch_codes::Symbol;
use anabranch_endpoint::Bytes;
use anabranch_units::Instant;

impl<S: Symbol + From<Bytes>> Fetch<S> {
    /// Starts objects while fewer than the maximum are under way. Returns whether any object was
    /// started.
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
                // If a manifest gives the length, the file is opened while servers are connecting.
                Some(bytes) => self.open(object, bytes),
                None => self.objects[object].stage = ObjectStage::Describing,
            }
            self.describe_if_waiting(now, object);
        }
        self.next > before
    }

    /// Handles the end of an object. Another object may then start.
    pub(super) fn ended(&mut self, object: usize) {
        self.left -= 1;
        self.active.remove(&object);
        self.forget_content(object);
    }

    /// Calls `f` for each object under way at the time of the call.
    pub(super) fn each_active(&mut self, mut f: impl FnMut(&mut Self, usize)) {
        for object in self.active.clone() {
            f(self, object);
        }
    }
}
