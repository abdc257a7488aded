//! The longest silence of a healthy parent, learned for each stream.
//!
//! For each folder of paths, the relay records how long parents delay the head of an answer, and
//! the longest gap between two pieces of a body; `WaitKind` lists the kinds. These waits reflect
//! the duration of a part, or of a segment if no parts are requested. A leg is *silent* after
//! [`SILENCE_FACTOR`] times the longest of the last [`SAMPLES`] waits plus [`SILENCE_MARGIN`],
//! clamped to [`SILENCE_MIN`] and [`SILENCE_MAX`]. Before the first sample the limit is
//! [`SILENCE_UNKNOWN`]. A false alarm costs one more request, and the long wait becomes a sample.

use anabranch_units::Duration;
use std::collections::BTreeMap;

/// Multiple of the longest recorded wait after which a silence is suspect. A part may be one part
/// late.
pub const SILENCE_FACTOR: u64 = 2;
/// Time added to the longest waits, for round trips and scheduling.
pub const SILENCE_MARGIN: Duration = Duration::from_ms(50);
/// Lowest limit of silence. It exceeds one retransmission timeout of TCP (200 ms).
pub const SILENCE_MIN: Duration = Duration::from_ms(300);
/// Highest limit of silence. It exceeds one segment of 6 s.
pub const SILENCE_MAX: Duration = Duration::from_secs(8);
/// Limit of silence for a stream without samples. With it the relay leaves a frozen parent within 1
/// s.
pub const SILENCE_UNKNOWN: Duration = Duration::from_ms(600);
/// Number of recorded waits of each kind.
pub const SAMPLES: usize = 8;
/// Number of recorded streams. The least recently used stream is dropped first.
pub const STREAMS_MAX: usize = 4_096;

/// Kinds of waits. Each kind has its samples.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum WaitKind {
    /// Wait for the head of a playlist that blocks until a part is available.
    PartListed,
    /// Wait for the head of a playlist that blocks until a segment is available.
    SegmentListed,
    /// Wait for the head of any other object.
    Head,
    /// Wait for the next piece of a body. Its sample is the longest gap of an object.
    Piece,
}

#[derive(Debug, Default)]
struct Stream {
    /// The last waits, by kind. The oldest is overwritten first.
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
    /// Records a completed wait.
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
