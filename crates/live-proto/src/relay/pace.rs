//! The longest silence that a healthy parent keeps, learned for each stream.
//!
//! The rule: the relay records, for each folder of paths and kind of wait, how long the parents let
//! it wait for the head of an answer, and the longest gap between two pieces of a body. Both show
//! the duration of a part (or of a segment, where no parts are asked for). A leg is *silent* after
//! [`SILENCE_FACTOR`] times the longest of the last [`SAMPLES`] waits plus [`SILENCE_MARGIN`],
//! within [`SILENCE_MIN`] and [`SILENCE_MAX`]; [`SILENCE_UNKNOWN`] holds before the first sample. A
//! false alarm costs one more request, and its own wait becomes a sample.

use anabranch_units::Duration;
use std::collections::BTreeMap;

/// Silences longer than this many usual waits are suspect: a part may be one part late.
pub const SILENCE_FACTOR: u64 = 2;
/// Time beyond the usual waits for round trips and scheduling.
pub const SILENCE_MARGIN: Duration = Duration::from_ms(50);
/// Shortest silence that is suspect: one retransmission timeout of TCP (200 ms) must fit in.
pub const SILENCE_MIN: Duration = Duration::from_ms(300);
/// Longest silence that is not suspect: more than one segment of 6 s.
pub const SILENCE_MAX: Duration = Duration::from_secs(8);
/// Limit of silence for a stream without samples: with it, a frozen parent is left within 1 s.
pub const SILENCE_UNKNOWN: Duration = Duration::from_ms(600);
/// Number of waits of each kind that are remembered.
pub const SAMPLES: usize = 8;
/// Number of streams that are remembered; the least recently used one is dropped.
pub const STREAMS_MAX: usize = 4_096;

/// Kinds of waits; each has its own samples.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum WaitKind {
    /// For the head of a playlist that waits for a part.
    PartListed,
    /// For the head of a playlist that waits for a segment.
    SegmentListed,
    /// For the head of any other object.
    Head,
    /// For the next piece of a body: one sample per object, its longest gap.
    Piece,
}

#[derive(Debug, Default)]
struct Stream {
    /// The last waits by kind, oldest overwritten first.
    waits: [[Option<Duration>; SAMPLES]; 4],
    next: [usize; 4],
    used: u64,
}

/// Learned waits of all streams, by folder.
#[derive(Debug, Default)]
pub(super) struct LearnedWaits {
    streams: BTreeMap<String, Stream>,
    clock: u64,
}

impl LearnedWaits {
    /// Records a wait that has ended.
    pub(super) fn record(&mut self, folder: &str, kind: WaitKind, wait: Duration) {
        self.clock += 1;
        if !self.streams.contains_key(folder) {
            if self.streams.len() >= STREAMS_MAX {
                let oldest = self.streams.iter().min_by_key(|(_, stream)| stream.used);
                let name = oldest.map(|(name, _)| name.clone()).expect("the table is full");
                self.streams.remove(&name);
            }
            self.streams.insert(folder.to_owned(), Stream::default());
        }
        let stream = self.streams.get_mut(folder).expect("it was just inserted");
        stream.used = self.clock;
        let next = &mut stream.next[kind as usize];
        stream.waits[kind as usize][*next] = Some(wait);
        *next = (*next + 1) % SAMPLES;
    }

    /// The silence after which a leg of this stream is suspect.
    pub(super) fn silence(&self, folder: &str, kind: WaitKind) -> Duration {
        let waits = self.streams.get(folder).map(|stream| &stream.waits[kind as usize]);
        let Some(longest) = waits.and_then(|waits| waits.iter().flatten().max()) else {
            return SILENCE_UNKNOWN;
        };
        let longest = (*longest).min(SILENCE_MAX);
        (longest * SILENCE_FACTOR + SILENCE_MARGIN).clamp(SILENCE_MIN, SILENCE_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_is_twice_the_longest_wait() {
        let mut paces = LearnedWaits::default();
        assert_eq!(paces.silence("/a/", WaitKind::Head), SILENCE_UNKNOWN);
        for ms in [10, 400, 20] {
            paces.record("/a/", WaitKind::Head, Duration::from_ms(ms));
        }
        assert_eq!(paces.silence("/a/", WaitKind::Head), Duration::from_ms(850));
        assert_eq!(paces.silence("/a/", WaitKind::Piece), SILENCE_UNKNOWN);
        for _ in 0..SAMPLES {
            paces.record("/a/", WaitKind::Head, Duration::from_ms(1));
        }
        assert_eq!(paces.silence("/a/", WaitKind::Head), SILENCE_MIN);
        paces.record("/a/", WaitKind::Head, Duration::from_secs(100));
        assert_eq!(paces.silence("/a/", WaitKind::Head), SILENCE_MAX);
    }

    #[test]
    fn number_of_streams_is_limited() {
        let mut paces = LearnedWaits::default();
        for n in 0..STREAMS_MAX + 1 {
            paces.record(&format!("/{n}/"), WaitKind::Head, Duration::from_ms(200));
        }
        assert_eq!(paces.streams.len(), STREAMS_MAX);
        assert_eq!(paces.silence("/0/", WaitKind::Head), SILENCE_UNKNOWN);
        assert_eq!(paces.silence("/1/", WaitKind::Head), Duration::from_ms(450));
    }
}
