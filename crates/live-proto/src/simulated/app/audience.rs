//! The viewers of a run. They enter, fetch part after part, and leave edges that fail.

use super::super::relay::PartId;
use super::super::viewer::{PATIENCE, PAUSE, ViewerState};
use super::pipes::{Client, RequestContent};
use super::{LiveApp, WINDOW};
use crate::control::node::RequestId;
use crate::{NodeId, Object};
use anabranch_sim::traffic::{AppCx, Side};
use anabranch_units::Instant;

impl LiveApp {
    pub(super) fn on_viewer_timer(&mut self, cx: &mut AppCx<'_, '_>, viewer: usize) {
        let viewing = &self.viewers[viewer];
        if viewing.due > cx.now() {
            self.wait_viewer(cx, viewer, viewing.due);
        } else if viewing.state == ViewerState::Away {
            self.ask_next(cx, viewer);
        } else {
            self.give_up(cx, viewer);
        }
    }

    fn wait_viewer(&mut self, cx: &mut AppCx<'_, '_>, viewer: usize, due: Instant) {
        self.viewers[viewer].due = due;
        let token = self.viewer_token(viewer);
        self.arm(cx, token, due);
    }

    /// Edges and objects for a viewer in order of preference: the planned edge, then the nearest
    /// edges. An edge that has just failed comes last for each bitrate.
    fn choices(&self, viewer: usize) -> Vec<(NodeId, Object)> {
        let viewing = &self.viewers[viewer];
        let near: Vec<NodeId> =
            self.stage.groups[viewing.group.0 as usize].iter().map(|(edge, _)| *edge).collect();
        let mut choices = Vec::new();
        for object in self.stage.settings.ladder(viewing.channel) {
            let planned = self.mapping.get(&(viewing.group, object)).copied();
            let others = near.iter().copied().filter(|edge| Some(*edge) != planned);
            let mut edges: Vec<NodeId> = planned.into_iter().chain(others).collect();
            edges.sort_by_key(|edge| viewing.failed_edge == Some(*edge));
            choices.extend(edges.into_iter().map(|edge| (edge, object)));
        }
        choices
    }

    /// Asks the next edge for admission.
    fn ask_next(&mut self, cx: &mut AppCx<'_, '_>, viewer: usize) {
        let now = cx.now();
        let choices = self.choices(viewer);
        let (edge, object) = self.viewers[viewer].next_choice(choices);
        self.lives += 1;
        let request = RequestId(self.lives);
        let wanted = RequestContent::Entry(request, self.viewers[viewer].group, object);
        let stream = self.request(cx, Client::Viewer(viewer), edge, wanted);
        let viewing = &mut self.viewers[viewer];
        (viewing.state, viewing.stream) = (ViewerState::Asking { edge, object, request }, Some(stream));
        self.wait_viewer(cx, viewer, now + PATIENCE);
    }

    /// Asks the next edge, or pauses if all edges have been asked.
    fn try_further(&mut self, cx: &mut AppCx<'_, '_>, viewer: usize) {
        if self.viewers[viewer].has_tried_all() {
            self.wait_viewer(cx, viewer, cx.now() + PAUSE);
        } else {
            self.ask_next(cx, viewer);
        }
    }

    /// Ends a viewer's wait after its deadline: the viewer leaves its edge.
    pub(super) fn give_up(&mut self, cx: &mut AppCx<'_, '_>, viewer: usize) {
        let viewing = &mut self.viewers[viewer];
        let (group, state, stream) = (viewing.group, viewing.state, viewing.stream);
        let is_admitted = stream.and_then(|stream| self.pipe(stream)?.ask?.is_admitted) == Some(true);
        let (edge, life, object, request) = match state {
            ViewerState::Away => return,
            ViewerState::Asking { edge, object, request } => {
                (edge, self.nodes[edge.index()].life, object, Some(request))
            }
            ViewerState::Watching { edge, life, object } => (edge, life, object, None),
        };
        let is_waiting = request.is_some_and(|request| self.asking.remove(&request).is_some());
        let run = &mut self.nodes[edge.index()];
        if let Some(machine) = run.machine.as_mut().filter(|_| run.life == life) {
            match request {
                Some(request) if is_waiting => machine.handle_viewer_cancelled(request, object),
                // The edge has not received the request, or has refused it.
                Some(_) if !is_admitted => {}
                _ => machine.handle_viewer_left(group, object),
            }
        }
        stream.into_iter().for_each(|stream| self.drop_pipe(stream));
        self.viewers[viewer].fail(edge);
        self.stir_node(cx, edge.index());
        // A viewer that was watching tries another edge at once.
        if request.is_none() { self.ask_next(cx, viewer) } else { self.try_further(cx, viewer) }
    }

    /// Sends an edge's answer to a viewer that wants to enter.
    pub(super) fn answer_viewer(&mut self, cx: &mut AppCx<'_, '_>, request: RequestId, is_admitted: bool) {
        let Some(stream) = self.asking.remove(&request) else { return };
        if let Some(ask) = self.pipe(stream).and_then(|pipe| pipe.ask.as_mut()) {
            ask.is_admitted = Some(is_admitted);
            cx.write(stream, Side::Acceptor, super::pipes::PLAYLIST_BYTES);
        }
    }

    /// Handles an edge's answer at the viewer.
    pub(super) fn on_entry(
        &mut self,
        cx: &mut AppCx<'_, '_>,
        viewer: usize,
        (edge, object): (NodeId, Object),
        is_admitted: bool,
    ) {
        let (now, life) = (cx.now(), self.nodes[edge.index()].life);
        if is_admitted {
            self.viewers[viewer].admit(now, (edge, life), object);
            self.fetch_part(cx, viewer, edge, object);
        } else {
            self.viewers[viewer].refuse();
            self.try_further(cx, viewer);
        }
    }

    /// Requests the next part from the edge. The first part is as old as the buffer is long, so
    /// that playback starts at once.
    fn fetch_part(&mut self, cx: &mut AppCx<'_, '_>, viewer: usize, edge: NodeId, object: Object) {
        let now = cx.now();
        let (part, buffer) = (self.stage.settings.part, self.stage.settings.buffer);
        let channel = self.viewers[viewer].channel;
        let whole = self.whole_parts(channel, now);
        let first = whole.saturating_sub(buffer.as_ps().div_ceil(part.as_ps()));
        let viewing = &mut self.viewers[viewer];
        let next = viewing.next.get_or_insert(first);
        if *next + WINDOW.as_ps() / part.as_ps() < whole {
            *next = first;
            viewing.skips += 1;
        }
        let number = *next;
        let stream = self.request(cx, Client::Viewer(viewer), edge, RequestContent::Part((object, number)));
        self.viewers[viewer].stream = Some(stream);
        let due = now.max(self.ready_at(channel, number)) + PATIENCE;
        self.wait_viewer(cx, viewer, due);
    }

    /// Handles a complete part at a viewer.
    pub(super) fn on_part(&mut self, cx: &mut AppCx<'_, '_>, viewer: usize, (object, number): PartId) {
        let now = cx.now();
        let ready_at = self.ready_at(object.channel.0, number);
        let (settings, viewing) = (&self.stage.settings, &mut self.viewers[viewer]);
        viewing.take(now, (settings.part, settings.buffer), settings.part_bytes(object.bitrate));
        if viewing.admitted_at.is_some_and(|at| at <= ready_at) {
            self.sums.ages_ms.push(now.saturating_since(ready_at).as_us() as f64 / 1e3);
        }
        if let ViewerState::Watching { edge, .. } = viewing.state {
            self.fetch_part(cx, viewer, edge, object);
        }
    }

    /// Moves the viewers of a stream that an edge has ended.
    pub(super) fn lose_viewers(&mut self, cx: &mut AppCx<'_, '_>, node: NodeId, lost: Object) {
        for viewer in 0..self.viewers.len() {
            let ViewerState::Watching { edge, object, .. } = self.viewers[viewer].state else { continue };
            if (edge, object) == (node, lost) {
                let stream = self.viewers[viewer].stream;
                stream.into_iter().for_each(|stream| self.drop_pipe(stream));
                self.viewers[viewer].fail(edge);
                self.ask_next(cx, viewer);
            }
        }
    }
}
