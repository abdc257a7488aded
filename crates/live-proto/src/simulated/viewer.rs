//! One viewer: the edges and bitrates that it tries, the part that it waits for, and its buffer.
//!
//! A viewer asks its planned edge, or the nearest edge, for the highest bitrate. A refused viewer
//! tries the other edges, then the next bitrate, and starts again after a pause. A viewer that does
//! not get a part in time leaves the edge. Leaves out: connections (`app`). Read
//! [`SimulatedViewer`].

use crate::control::messages::GroupId;
use crate::control::node::RequestId;
use crate::{NodeId, Object};
use anabranch_media::player::{PlaybackStats, Playout};
use anabranch_units::{Duration, Instant};

/// Longest wait for an edge's answer, and for a part once it exists at the sources.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);
/// Pause after all edges have refused a viewer.
pub(super) const PAUSE: Duration = Duration::from_secs(2);

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum ViewerState {
    /// The viewer is not yet open, or pauses.
    Away,
    /// A request to an edge is in progress.
    Asking { edge: NodeId, object: Object, request: RequestId },
    /// The edge's process has admitted the viewer. `life` is the incarnation number of the process.
    Watching { edge: NodeId, life: u64, object: Object },
}

#[derive(Debug)]
pub(super) struct SimulatedViewer {
    pub(super) host: u16,
    pub(super) group: GroupId,
    pub(super) channel: u32,
    pub(super) state: ViewerState,
    /// Connection of the request in progress, or else of the last request.
    pub(super) stream: Option<u32>,
    /// Number of the next part to fetch; `None` before the first.
    pub(super) next: Option<u64>,
    /// Time at which the viewer's wait or pause ends.
    pub(super) due: Instant,
    /// Time at which an edge last admitted the viewer.
    pub(super) admitted_at: Option<Instant>,
    /// Edge that has just failed.
    pub(super) failed_edge: Option<NodeId>,
    playout: Playout,
    /// Remaining choices of edge and object; the last entry is tried next.
    left: Vec<(NodeId, Object)>,
    counts: PlaybackStats,
    /// Number of refusals, and of jumps past parts that were no longer available.
    pub(super) refused: u64,
    pub(super) skips: u64,
    /// Bytes of complete parts.
    pub(super) bytes: u64,
}

impl SimulatedViewer {
    pub(super) fn new(host: u16, group: GroupId, channel: u32, opens_at: Instant) -> Self {
        Self {
            host,
            group,
            channel,
            state: ViewerState::Away,
            stream: None,
            next: None,
            due: opens_at,
            admitted_at: None,
            failed_edge: None,
            playout: Playout::new(opens_at),
            left: Vec::new(),
            counts: PlaybackStats::default(),
            refused: 0,
            skips: 0,
            bytes: 0,
        }
    }

    /// Returns the edge and object to ask next. Starts with the first of `choices`, the best first,
    /// when no earlier choice is left.
    pub(super) fn next_choice(&mut self, choices: Vec<(NodeId, Object)>) -> (NodeId, Object) {
        if self.left.is_empty() {
            self.left = choices;
            self.left.reverse();
        }
        self.left.pop().expect("groups have edges, and channels bitrates")
    }

    /// Whether all edges and bitrates have been tried.
    pub(super) fn has_tried_all(&self) -> bool {
        self.left.is_empty()
    }

    /// Whether an edge has admitted the viewer.
    pub(super) fn is_watching(&self) -> bool {
        matches!(self.state, ViewerState::Watching { .. })
    }

    /// Records the admission by this incarnation of an edge.
    pub(super) fn admit(&mut self, now: Instant, (edge, life): (NodeId, u64), object: Object) {
        self.left.clear();
        (self.admitted_at, self.failed_edge) = (Some(now), None);
        self.counts.answers += 1;
        self.counts.moves += u64::from(self.next.is_some());
        self.state = ViewerState::Watching { edge, life, object };
    }

    /// Records a refusal.
    pub(super) fn refuse(&mut self) {
        self.refused += 1;
        self.state = ViewerState::Away;
    }

    /// Records that an edge did not answer or deliver in time.
    pub(super) fn fail(&mut self, edge: NodeId) {
        self.failed_edge = Some(edge);
        match self.state {
            ViewerState::Asking { .. } => self.counts.unanswered += 1,
            _ => self.counts.failures += 1,
        }
        self.state = ViewerState::Away;
    }

    /// Adds a complete part of duration `part` to the buffer. Playback starts at a level of
    /// `buffer`.
    pub(super) fn take(&mut self, now: Instant, (part, buffer): (Duration, Duration), bytes: u64) {
        self.counts.segments += 1;
        self.bytes += bytes;
        self.playout.add(now, part, buffer);
        self.next = self.next.map(|next| next + 1);
    }

    /// Statistics of playback until `now`.
    pub(super) fn stats(&self, now: Instant) -> PlaybackStats {
        let mut playout = self.playout.clone();
        playout.advance(now);
        PlaybackStats {
            began_after: playout.began_after(),
            stalls: playout.stalls(),
            stalled: playout.stalled(),
            ..self.counts
        }
    }
}
