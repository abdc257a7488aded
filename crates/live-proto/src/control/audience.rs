//! Estimate of the number of an edge's viewers, from their requests.
//!
//! An edge keeps no state per viewer. Each viewer of a stream fetches each media object once. So
//! the number of a group's viewers is the number of its requests for media objects, divided by the
//! number of different objects. A group that requests only playlists counts as one viewer. Source:
//! none; the thesis's reports contain viewers (§4.3.1), but it does not state how they are counted.
//! Read [`Audience`] first.

use super::messages::GroupId;
use super::node::GROUPS_MAX;
use crate::Object;
use anabranch_units::{Duration, Instant};
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of different media objects of one stream that are counted in a window.
pub const MEDIA_MAX: usize = 256;

/// Requests of one group for one stream in the current window.
#[derive(Clone, Debug, Default)]
struct Tally {
    requests: u64,
    /// Number of requests for the objects in `media`.
    media_requests: u64,
    media: BTreeSet<u64>,
    viewers: u64,
}

/// A changed number of viewers.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct AudienceChange {
    /// Group of the viewers.
    pub group: GroupId,
    /// Stream that they watch.
    pub object: Object,
    /// Current number of viewers.
    pub viewers: u64,
}

/// Estimated viewers of one edge, by group and stream.
#[derive(Clone, Debug)]
pub struct Audience {
    window: Duration,
    ends_at: Instant,
    tallies: BTreeMap<(GroupId, Object), Tally>,
}

impl Audience {
    /// Creates an estimate without viewers. `window` must exceed the longest pause between a
    /// viewer's requests. A stream without requests ends after one to two windows.
    pub fn new(now: Instant, window: Duration) -> Self {
        Self { window, ends_at: now + window, tallies: BTreeMap::new() }
    }

    /// Counts a viewer's request for a stream. `media` is a hash of the media object's name, or
    /// `None` for a playlist. Returns whether the group already has viewers of the stream. If not,
    /// the caller must request admission and then call [`Audience::admit`].
    pub fn handle_request(&mut self, group: GroupId, object: Object, media: Option<u64>) -> bool {
        let Some(tally) = self.tallies.get_mut(&(group, object)) else { return false };
        tally.requests += 1;
        if let Some(hash) = media
            && (tally.media.contains(&hash) || tally.media.len() < MEDIA_MAX)
        {
            tally.media.insert(hash);
            tally.media_requests += 1;
        }
        true
    }

    /// Adds the first admitted viewer of a group to a stream. Returns false if the table is full.
    pub fn admit(&mut self, group: GroupId, object: Object) -> bool {
        if self.tallies.len() >= GROUPS_MAX && !self.tallies.contains_key(&(group, object)) {
            return false;
        }
        let tally = self.tallies.entry((group, object)).or_default();
        tally.requests += 1;
        tally.viewers = tally.viewers.max(1);
        true
    }

    /// Removes all viewers of a stream that has ended. They must be admitted again.
    pub fn handle_lost(&mut self, object: Object) {
        self.tallies.retain(|(_, of), _| *of != object);
    }

    /// When [`Audience::handle_timeout`] is due.
    pub const fn poll_timeout(&self) -> Instant {
        self.ends_at
    }

    /// Ends the window if it is complete. Returns the changed numbers of viewers; 0 for streams
    /// without requests.
    pub fn handle_timeout(&mut self, now: Instant) -> Vec<AudienceChange> {
        if now < self.ends_at {
            return Vec::new();
        }
        self.ends_at = now + self.window;
        let mut changes = Vec::new();
        for (&(group, object), tally) in &mut self.tallies {
            let different = tally.media.len() as u64;
            let watching = if different == 0 { 1 } else { tally.media_requests.div_ceil(different) };
            let viewers = if tally.requests == 0 { 0 } else { watching };
            if viewers != tally.viewers {
                changes.push(AudienceChange { group, object, viewers });
            }
            *tally = Tally { viewers, ..Tally::default() };
        }
        self.tallies.retain(|_, tally| tally.viewers > 0);
        changes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ChannelId;
    use anabranch_units::BitRate;
    use proptest::prelude::*;

    const GROUP: GroupId = GroupId(3);
    const OBJECT: Object = Object { channel: ChannelId(0), bitrate: BitRate::mbps(1) };

    fn at(second: u64) -> Instant {
        Instant::from_us(1_000_000 * second)
    }

    fn audience() -> Audience {
        Audience::new(at(1), Duration::from_secs(10))
    }

    fn viewers(changes: &[AudienceChange]) -> Option<u64> {
        changes.first().map(|change| change.viewers)
    }

    proptest! {
        #[test]
        fn viewers_who_fetch_all_media_are_counted(viewers in 2..500_u64, media in 1..40_u64) {
            let mut audience = audience();
            prop_assert!(!audience.handle_request(GROUP, OBJECT, None));
            prop_assert!(audience.admit(GROUP, OBJECT));
            for object in 0..media {
                for _ in 0..viewers {
                    prop_assert!(audience.handle_request(GROUP, OBJECT, Some(object)));
                }
            }
            let changes = audience.handle_timeout(at(11));
            prop_assert_eq!(changes, [AudienceChange { group: GROUP, object: OBJECT, viewers }]);
        }
    }

    #[test]
    fn a_stream_without_requests_has_no_viewers() {
        let mut audience = audience();
        audience.admit(GROUP, OBJECT);
        assert_eq!(audience.handle_timeout(at(10)), []);
        assert_eq!(audience.handle_timeout(at(11)), []);
        assert_eq!(audience.handle_timeout(at(20)), []);
        assert_eq!(viewers(&audience.handle_timeout(at(21))), Some(0));
        assert!(!audience.handle_request(GROUP, OBJECT, None));
    }

    #[test]
    fn playlist_requests_alone_count_as_one_viewer() {
        let mut audience = audience();
        audience.admit(GROUP, OBJECT);
        (0..50).for_each(|_| assert!(audience.handle_request(GROUP, OBJECT, None)));
        assert_eq!(audience.handle_timeout(at(11)), []);
    }

    #[test]
    fn lost_stream_needs_another_admission() {
        let mut audience = audience();
        audience.admit(GROUP, OBJECT);
        audience.handle_lost(OBJECT);
        assert!(!audience.handle_request(GROUP, OBJECT, None));
    }
}
