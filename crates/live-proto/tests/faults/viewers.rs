//! Viewers. Each asks DNS for an edge, and the edge for a stream. A refused viewer tries the other
//! edges of its group, then a lower bitrate, and starts again after a pause.

use super::world::{ScheduleEvent, World, ladder};
use anabranch_live_proto::control::messages::GroupId;
use anabranch_live_proto::control::node::RequestId;
use anabranch_live_proto::{ChannelId, NodeId, Object};
use anabranch_units::{Duration, Instant};

/// Time after which a viewer abandons an edge that does not answer.
const ANSWER: Duration = Duration::from_secs(4);
/// Pause of a viewer after all edges have refused it.
const PAUSE: Duration = Duration::from_secs(2);
/// Delay of a viewer's request to its edge.
const LATENCY: Duration = Duration::from_ms(1);
/// Time without video after which a viewer asks for another edge.
const GAP_MAX: Duration = Duration::from_secs(5);

/// A request whose answer is outstanding.
#[derive(Clone, Debug)]
pub struct PendingRequest {
    pub request: RequestId,
    pub edge: NodeId,
    pub object: Object,
    life: u64,
    until: Instant,
    /// Whether the viewer watches at another edge until the answer arrives.
    is_move: bool,
}

/// An edge at which a viewer watches.
#[derive(Copy, Clone, Debug)]
pub struct WatchedEdge {
    pub edge: NodeId,
    pub life: u64,
    pub object: Object,
    /// Time at which video last arrived.
    pub last: Instant,
}

pub struct Viewer {
    pub group: GroupId,
    pub channel: ChannelId,
    pub is_here: bool,
    pub ask: Option<PendingRequest>,
    pub watch: Option<WatchedEdge>,
    /// Remaining choices of edge and object; the last entry is tried next.
    left: Vec<(NodeId, Object)>,
    again_at: Instant,
    /// Time since which the viewer could be served but is not.
    pub neglected_since: Option<Instant>,
}

impl Viewer {
    pub fn new(group: GroupId, channel: ChannelId) -> Self {
        Self {
            group,
            channel,
            is_here: false,
            ask: None,
            watch: None,
            left: Vec::new(),
            again_at: Instant::ZERO,
            neglected_since: None,
        }
    }
}

impl World {
    /// Lets viewers arrive and leave at random.
    pub fn draw_viewers(&mut self) {
        for at in 0..self.viewers.len() {
            let chance = if self.viewers[at].is_here { 20_000 } else { 200_000 };
            if self.random.viewers.chance_ppm(chance) {
                let is_here = !self.viewers[at].is_here;
                self.schedule.say(format!("viewer {at} {}", if is_here { "comes" } else { "goes" }));
                self.viewers[at].is_here = is_here;
                if !is_here {
                    self.stop_watching(at);
                    self.cancel(at);
                }
            }
        }
    }

    /// Lets every present viewer check its video and its edge.
    pub fn watch(&mut self) {
        for at in 0..self.viewers.len() {
            if self.viewers[at].is_here {
                self.watch_one(at);
            }
        }
    }

    fn watch_one(&mut self, at: usize) {
        let now = self.now();
        let viewer = &self.viewers[at];
        let (group, watch) = (viewer.group, viewer.watch);
        if viewer.ask.as_ref().is_some_and(|ask| ask.until <= now) {
            self.cancel(at);
        }
        if let Some(mut watch) = watch {
            let is_same = self.awake(watch.edge).is_some_and(|process| process.life == watch.life);
            if is_same && self.is_fresh(watch.edge, watch.object) {
                watch.last = now;
            }
            self.viewers[at].watch = Some(watch);
            self.check_video(at, watch);
            if now > watch.last + GAP_MAX {
                self.stop_watching(at);
            } else if self.viewers[at].ask.is_none() {
                // Content steering: move to the assigned edge.
                let place = self.dns.get(&(group, watch.object)).copied();
                if let Some(place) = place.filter(|place| *place != watch.edge) {
                    self.ask(at, place, watch.object, true);
                }
            }
        }
        let viewer = &self.viewers[at];
        if viewer.watch.is_none() && viewer.ask.is_none() && viewer.again_at <= now {
            self.ask_next(at);
        }
    }

    fn ask_next(&mut self, at: usize) {
        let now = self.now();
        if self.viewers[at].left.is_empty() {
            let Viewer { group, channel, .. } = self.viewers[at];
            let mut left = Vec::new();
            for object in ladder(channel) {
                let first = self.resolve(group, object);
                let edges = self.place.groups[group.0 as usize].iter().copied();
                left.extend(first.map(|edge| (edge, object)));
                left.extend(edges.filter(|edge| Some(*edge) != first).map(|edge| (edge, object)));
            }
            left.reverse();
            self.viewers[at].left = left;
        }
        let Some((edge, object)) = self.viewers[at].left.pop() else { return };
        if self.viewers[at].left.is_empty() {
            self.viewers[at].again_at = now + PAUSE;
        }
        self.ask(at, edge, object, false);
    }

    fn ask(&mut self, at: usize, edge: NodeId, object: Object, is_move: bool) {
        let (now, request) = (self.now(), self.request());
        let group = self.viewers[at].group;
        // A failed edge refuses the connection. A frozen edge answers when it resumes.
        let Some(life) = self.nodes[edge.index()].as_ref().map(|process| process.life) else { return };
        self.schedule.after(LATENCY, ScheduleEvent::Ask { edge, life, request, group, object });
        self.viewers[at].ask =
            Some(PendingRequest { request, edge, object, life, until: now + ANSWER, is_move });
    }

    fn cancel(&mut self, at: usize) {
        let Some(ask) = self.viewers[at].ask.take() else { return };
        self.abandoned.insert(ask.request, (self.viewers[at].group, ask.object));
        if let Some(process) = self.awake(ask.edge).filter(|process| process.life == ask.life) {
            process.machine.handle_viewer_cancelled(ask.request, ask.object);
        }
    }

    fn stop_watching(&mut self, at: usize) {
        let group = self.viewers[at].group;
        if let Some(watch) = self.viewers[at].watch.take() {
            self.leave(watch.edge, watch.life, group, watch.object);
        }
    }

    /// Handles an edge's answer to a request.
    pub fn handle_answer(&mut self, edge: NodeId, request: RequestId, is_admitted: bool) {
        let now = self.now();
        let life = self.nodes[edge.index()].as_ref().expect("it has answered").life;
        let asks = |viewer: &Viewer| viewer.ask.as_ref().is_some_and(|ask| ask.request == request);
        let Some(at) = self.viewers.iter().position(asks) else {
            // The viewer cancelled the request while the edge was frozen.
            if let Some((group, object)) = self.abandoned.remove(&request).filter(|_| is_admitted) {
                self.leave(edge, life, group, object);
            }
            return;
        };
        let ask = self.viewers[at].ask.take().expect("found above");
        if !is_admitted {
            return;
        }
        if ask.is_move {
            self.stop_watching(at);
        }
        let viewer = &mut self.viewers[at];
        viewer.left.clear();
        viewer.watch = Some(WatchedEdge { edge, life, object: ask.object, last: now });
    }

    /// Handles the end of a stream at an edge.
    pub fn handle_lost(&mut self, edge: NodeId, object: Object) {
        assert!(!self.is_video_safe, "law 9: node {} loses {object:?}", edge.0);
        let life = self.nodes[edge.index()].as_ref().expect("it has said so").life;
        for viewer in &mut self.viewers {
            viewer.watch =
                viewer.watch.filter(|watch| (watch.edge, watch.life, watch.object) != (edge, life, object));
        }
    }
}
