//! Requests for parts. A client keeps its connections to a node open, with one request at a time on
//! each connection.

use super::super::relay::{Fetch, PartId};
use super::super::settings::host_of;
use super::{LiveApp, STALLED, StreamUse, WINDOW};
use crate::control::messages::GroupId;
use crate::control::node::RequestId;
use crate::{NodeId, Object, Tier};
use anabranch_sim::traffic::{AppCx, HEAD_BYTES, Side, TLS_RECORD_BYTES};
use anabranch_units::{ByteCount, Instant};

/// Size of a request, and of an answer without its part, in bytes.
const FRAME_BYTES: u64 = HEAD_BYTES + TLS_RECORD_BYTES;
/// Size of the playlist with which an edge admits a viewer, in bytes.
pub(super) const PLAYLIST_BYTES: u64 = 2_000;

/// A node or viewer that requests parts.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Client {
    Node(NodeId),
    Viewer(usize),
}

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum RequestContent {
    /// Admission of a viewer.
    Entry(RequestId, GroupId, Object),
    Part(PartId),
}

/// A request in progress.
#[derive(Copy, Clone, Debug)]
pub(super) struct PipeRequest {
    pub(super) wanted: RequestContent,
    /// Arrival of the answer's last byte so far, or the time of the request.
    heard_at: Instant,
    /// Bytes of the request that the server has received.
    asked_bytes: u64,
    /// Bytes of the answer: in total, sent, and received.
    answer_bytes: u64,
    sent_bytes: u64,
    got_bytes: u64,
    /// Whether the edge admits the viewer. `None` before the edge's answer.
    pub(super) is_admitted: Option<bool>,
}

/// A connection of a client to a node.
#[derive(Copy, Clone, Debug)]
pub(super) struct Pipe {
    pub(super) client: Client,
    pub(super) server: NodeId,
    pub(super) ask: Option<PipeRequest>,
    /// Whether the client has abandoned the connection.
    is_dropped: bool,
}

impl LiveApp {
    pub(super) fn pipe(&mut self, stream: u32) -> Option<&mut Pipe> {
        match self.streams.get_mut(stream as usize)?.as_mut()? {
            StreamUse::Parts(pipe) if !pipe.is_dropped => Some(pipe),
            _ => None,
        }
    }

    /// Sends a request. Returns its connection.
    pub(super) fn request(
        &mut self,
        cx: &mut AppCx<'_, '_>,
        client: Client,
        server: NodeId,
        wanted: RequestContent,
    ) -> u32 {
        let answer_bytes = match wanted {
            RequestContent::Entry(..) => PLAYLIST_BYTES,
            RequestContent::Part((object, _)) => self.stage.settings.part_bytes(object.bitrate) + FRAME_BYTES,
        };
        let ask = PipeRequest {
            wanted,
            heard_at: cx.now(),
            asked_bytes: 0,
            answer_bytes,
            sent_bytes: 0,
            got_bytes: 0,
            is_admitted: None,
        };
        let kept = self.idle.get_mut(&(client, server)).and_then(Vec::pop);
        let stream = match kept {
            Some(stream) => stream,
            None => {
                let from = match client {
                    Client::Node(node) => host_of(node.index()),
                    Client::Viewer(viewer) => self.viewers[viewer].host,
                };
                let pipe = Pipe { client, server, ask: None, is_dropped: false };
                self.open(cx, (from, host_of(server.index())), StreamUse::Parts(pipe))
            }
        };
        self.pipe(stream).expect("idle streams are kept").ask = Some(ask);
        cx.write(stream, Side::Opener, FRAME_BYTES);
        stream
    }

    /// Abandons a connection: the client ignores further answers on it.
    pub(super) fn drop_pipe(&mut self, stream: u32) {
        let now = self.now;
        let Some(pipe) = self.pipe(stream) else { return };
        (pipe.is_dropped, pipe.ask) = (true, None);
        let Pipe { client, server, .. } = *pipe;
        if let Client::Node(node) = client
            && let Some(estimator) = self.nodes[node.index()].estimators.get_mut(&server)
        {
            estimator.handle_end(now, u64::from(stream));
        }
    }

    /// Handles bytes of a request that arrive at a node.
    pub(super) fn on_request(&mut self, cx: &mut AppCx<'_, '_>, stream: u32, bytes: u64) {
        let now = cx.now();
        let Some(Pipe { server, ask: Some(ask), .. }) = self.pipe(stream) else { return };
        ask.asked_bytes += bytes;
        let (server, wanted) = (*server, ask.wanted);
        if ask.asked_bytes < FRAME_BYTES {
            return;
        }
        let Some(machine) = &mut self.nodes[server.index()].machine else { return };
        match wanted {
            RequestContent::Entry(request, group, object) => {
                self.asking.insert(request, stream);
                machine.handle_viewer(now, request, group, object);
                self.stir_node(cx, server.index());
            }
            RequestContent::Part(part) => {
                self.nodes[server.index()].parts.wait(part, stream);
                self.serve(cx, server, part);
                self.fetch(cx, server, part);
            }
        }
    }

    /// Handles bytes of an answer that arrive at its client.
    pub(super) fn on_answer(&mut self, cx: &mut AppCx<'_, '_>, stream: u32, bytes: u64) {
        let now = cx.now();
        let Some(Pipe { client, server, ask: Some(ask), .. }) = self.pipe(stream) else { return };
        ask.got_bytes += bytes;
        ask.heard_at = now;
        let (client, server, answer) = (*client, *server, *ask);
        let is_whole = answer.got_bytes >= answer.answer_bytes;
        if is_whole {
            self.pipe(stream).expect("found above").ask = None;
            self.idle.entry((client, server)).or_default().push(stream);
        }
        match (client, answer.wanted) {
            (Client::Node(node), RequestContent::Part(part)) => {
                self.sums.upstream_bytes += bytes;
                self.on_part_bytes(cx, (node, server), part, (stream, bytes), &answer);
            }
            (Client::Viewer(viewer), RequestContent::Entry(_, _, object)) if is_whole => {
                self.on_entry(cx, viewer, (server, object), answer.is_admitted == Some(true));
            }
            (Client::Viewer(viewer), RequestContent::Part(part)) if is_whole => {
                self.on_part(cx, viewer, part)
            }
            _ => {}
        }
    }

    fn on_part_bytes(
        &mut self,
        cx: &mut AppCx<'_, '_>,
        (node, server): (NodeId, NodeId),
        part: PartId,
        (stream, bytes): (u32, u64),
        answer: &PipeRequest,
    ) {
        let now = cx.now();
        let window = WINDOW.as_ps() / self.stage.settings.part.as_ps();
        let run = &mut self.nodes[node.index()];
        let whole = answer.got_bytes >= answer.answer_bytes;
        run.parts.note_bytes(part, answer.got_bytes.saturating_sub(FRAME_BYTES), window.max(1));
        if let Some(estimator) = run.estimators.get_mut(&server) {
            estimator.handle_bytes(u64::from(stream), ByteCount::new(bytes));
            if whole {
                estimator.handle_end(now, u64::from(stream));
            }
        }
        if whole {
            run.parts.end_fetch(part, stream);
        }
        if let Some(machine) = &mut run.machine {
            machine.handle_delivered(now, part.0, server);
        }
        self.serve(cx, node, part);
        self.stir_node(cx, node.index());
    }

    /// Number of bytes of a part that a node has.
    fn bytes_at(&self, node: NodeId, part: PartId, now: Instant) -> u64 {
        if self.stage.overlay.node(node).tier != Tier::Source {
            return self.nodes[node.index()].parts.bytes(part);
        }
        let is_ready = self.ready_at(part.0.channel.0, part.1) <= now;
        if is_ready { self.stage.settings.part_bytes(part.0.bitrate) } else { 0 }
    }

    /// Sends the available bytes of a part to the requests that wait for them.
    pub(super) fn serve(&mut self, cx: &mut AppCx<'_, '_>, node: NodeId, part: PartId) {
        let bytes = self.bytes_at(node, part, cx.now());
        if bytes == 0 || self.nodes[node.index()].machine.is_none() {
            return;
        }
        for stream in self.nodes[node.index()].parts.waiting(part) {
            let pipe = self.pipe(stream).and_then(|pipe| pipe.ask.as_mut());
            let Some(ask) = pipe.filter(|ask| ask.wanted == RequestContent::Part(part)) else {
                self.nodes[node.index()].parts.forget(part, stream);
                continue;
            };
            let more = (bytes + FRAME_BYTES).saturating_sub(ask.sent_bytes);
            ask.sent_bytes += more;
            let is_whole = ask.sent_bytes >= ask.answer_bytes;
            if more > 0 {
                cx.write(stream, Side::Acceptor, more);
            }
            if is_whole {
                self.nodes[node.index()].parts.forget(part, stream);
            }
        }
    }

    /// Requests a part from a parent, unless the node has the whole part or a request is in
    /// progress.
    fn fetch(&mut self, cx: &mut AppCx<'_, '_>, node: NodeId, part: PartId) {
        let now = cx.now();
        let (object, number) = part;
        let parts = &self.nodes[node.index()].parts;
        let is_whole = self.bytes_at(node, part, now) >= self.stage.settings.part_bytes(object.bitrate);
        let is_source = self.stage.overlay.node(node).tier == Tier::Source;
        if is_source || is_whole || parts.is_fetched(part) {
            return;
        }
        let Some(parent) = parts.route(object) else { return };
        let stream = self.request(cx, Client::Node(node), parent, RequestContent::Part(part));
        self.sums.upstream_parts += 1;
        let is_ready = self.ready_at(object.channel.0, number) <= now;
        let run = &mut self.nodes[node.index()];
        run.parts.start_fetch(part, Fetch { parent, stream });
        if let Some(estimator) = run.estimators.get_mut(&parent).filter(|_| is_ready) {
            estimator.handle_start(now, u64::from(stream), object.bitrate);
            if let Some(at) = estimator.poll_timeout() {
                self.arm(cx, super::NODES + node.0 as u16, at);
            }
        }
    }

    /// Requests from a parent all parts of an object for which requests wait.
    pub(super) fn fetch_waiting(&mut self, cx: &mut AppCx<'_, '_>, node: NodeId, object: Object) {
        for part in self.nodes[node.index()].parts.unfetched(object) {
            self.fetch(cx, node, part);
        }
    }

    /// Handles the completion of a channel's part at the sources.
    pub(super) fn on_part_ready(&mut self, cx: &mut AppCx<'_, '_>, channel: u32) {
        let number = self.whole_parts(channel, cx.now()).saturating_sub(1);
        let sources: Vec<NodeId> = self.stage.overlay.tier(Tier::Source).collect();
        for object in self.stage.settings.ladder(channel) {
            sources.iter().for_each(|source| self.serve(cx, *source, (object, number)));
        }
        let (token, at) = (self.channel_token(channel), self.ready_at(channel, number + 1));
        self.arm(cx, token, at);
    }

    /// Whether nothing has arrived for [`STALLED`] of a part that exists at the sources.
    pub(super) fn is_stalled(&mut self, now: Instant, part: PartId, stream: u32) -> bool {
        let ready_at = self.ready_at(part.0.channel.0, part.1);
        let ask = self.pipe(stream).and_then(|pipe| pipe.ask);
        ask.is_some_and(|ask| now > ask.heard_at.max(ready_at) + STALLED)
    }

    /// Handles a connection whose other end was silent for too long.
    pub(super) fn on_broken(&mut self, cx: &mut AppCx<'_, '_>, stream: u32) {
        let now = cx.now();
        let Some(Pipe { client, server, ask, .. }) = self.pipe(stream).copied() else { return };
        self.drop_pipe(stream);
        if let Some(idle) = self.idle.get_mut(&(client, server)) {
            idle.retain(|kept| *kept != stream);
        }
        let Some(ask) = ask else { return };
        match (client, ask.wanted) {
            (Client::Node(node), RequestContent::Part(part)) => {
                let run = &mut self.nodes[node.index()];
                run.parts.end_fetch(part, stream);
                if let Some(machine) = &mut run.machine {
                    machine.handle_undelivered(now, part.0, server);
                }
                self.stir_node(cx, node.index());
            }
            (Client::Viewer(viewer), _) => self.give_up(cx, viewer),
            (Client::Node(_), RequestContent::Entry(..)) => unreachable!("viewers enter"),
        }
    }
}
