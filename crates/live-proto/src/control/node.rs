//! The control of one node: its tables, its neighbours, its streams and its reports.
//!
//! Source: §4.4. A viewer or a child asks for a stream. The node follows the controller's route if
//! the route's evidence holds, and otherwise decides by Algorithm 1. The chosen parent admits or
//! refuses the request. All requests for one object share one stream from one parent, so the
//! streams of an object form a tree. A stream moves to another parent by make before break: the old
//! parent serves until the new parent delivers.
//!
//! The driver passes in messages, the requests of viewers and the progress of transfers. After any
//! `handle_*` it drains [`Node::poll_transmit`] and [`Node::poll_event`] until `None`, then reads
//! [`Node::poll_timeout`]. The limits of the tables bound the output of one call. Leaves out: bytes
//! of video. Read [`Node`] and [`Event`] first.

mod changes;
mod children;
mod controller_session;
mod parents;
mod streams;

use super::ledger::{Attempts, Capacity, LinkLedger};
use super::local::ParentRoute;
use super::local::Rule;
use super::messages::{Cause, GroupId, Refusal, Report, ToChild, ToParent};
use super::neighbours::{Advertiser, Neighbours};
use super::tables::{LinkState, Rib, RibEntry, ShadowFibs, UpdateError, Version};
use crate::{Link, Network, NodeId, Object, Tier};
use anabranch_units::{BitRate, Duration, Instant, LinkId, RandomStream, Seed};
use controller_session::ControllerSession;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use streams::Stream;

/// Maximum number of streams of a node, including imported streams.
pub const NODE_STREAMS_MAX: usize = 65_536;
/// Maximum number of viewers of a node whose streams have not begun.
pub const WAITING_MAX: usize = 65_536;
/// Maximum number of (stream, group) pairs with viewers at one node, and of viewer entries in a
/// report.
pub const GROUPS_MAX: usize = 65_536;

/// Number of a viewer's request, chosen by the driver.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// Which decisions a node follows: the controller's, its own, or both.
///
/// Source: the designs of §4.7.2. `Distributed` and `Centralized` exist for comparison.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum ControlMode {
    /// The controller's routes while their evidence holds, and Algorithm 1 otherwise.
    #[default]
    Hybrid,
    /// Algorithm 1 only. The controller's tables are ignored.
    Distributed,
    /// The controller's routes only. A request without a route waits for tables that have one.
    /// Neither changed evidence nor a silent controller makes a route stale.
    Centralized,
}

/// Timing and rules of a node.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Interval between two heartbeats to a neighbour.
    pub heartbeat: Duration,
    /// Silence after which a parent counts as failed.
    pub parent_silence_max: Duration,
    /// Silence after which a child's streams are released.
    pub child_silence_max: Duration,
    /// Interval between two advertisements, and between two checks of all streams against the plan.
    pub advertise_every: Duration,
    /// Interval between two reports to the controller.
    pub report_every: Duration,
    /// Silence after which the controller counts as failed and its routes as stale.
    pub controller_silence_max: Duration,
    /// Time after which an unanswered request is repeated.
    pub ask_timeout: Duration,
    /// Number of times that a request is sent before the node gives up this parent.
    pub asks_max: u32,
    /// Longest time from a parent's grant to the first byte of video.
    pub deliver_timeout: Duration,
    /// Time for which a refused viewer counts as demand in reports.
    pub demand_memory: Duration,
    /// Change of a link's capacity that makes evidence stale, in percent (§4.4.2).
    pub stale_percent: u32,
    /// Variant of Algorithm 1.
    pub rule: Rule,
    /// Decisions that the node follows.
    pub mode: ControlMode,
}

impl Default for Settings {
    /// Source: §4.4.2 for advertisements every second and for 20 %. The thesis gives no timeouts;
    /// with these a node leaves a silent parent within 0.8 s.
    fn default() -> Self {
        Self {
            heartbeat: Duration::from_ms(200),
            parent_silence_max: Duration::from_ms(600),
            child_silence_max: Duration::from_secs(3),
            advertise_every: Duration::from_secs(1),
            report_every: Duration::from_secs(1),
            controller_silence_max: Duration::from_secs(10),
            ask_timeout: Duration::from_ms(300),
            asks_max: 3,
            deliver_timeout: Duration::from_secs(2),
            demand_memory: Duration::from_secs(15),
            stale_percent: 20,
            rule: Rule::NearestWithCapacity,
            mode: ControlMode::Hybrid,
        }
    }
}

/// A message for the driver to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Transmit {
    /// To a parent.
    Parent(NodeId, ToParent),
    /// To a child.
    Child(NodeId, ToChild),
    /// To the controller.
    Controller(Report),
}

/// An event that the driver acts on or logs.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// The viewer is admitted, and its stream is available.
    ViewerAdmitted(RequestId),
    /// The viewer is refused. It should ask another edge, then ask for a lower bitrate.
    ViewerRefused(RequestId, Refusal),
    /// A stream has ended, and all its viewers must ask another edge.
    ViewersLost(Object, Refusal),
    /// The object can be fetched from this parent.
    Fetch {
        /// Object of the stream.
        object: Object,
        /// The parent that has granted the object.
        parent: NodeId,
        /// Local decision from which the request results.
        cause: Cause,
        /// Version that routed the request; `None` after a local decision.
        version: Option<Version>,
    },
    /// The driver must stop fetching the object from this parent.
    Stop(Object, NodeId),
    /// A parent, or the link from it, has failed.
    ParentFailed(NodeId),
    /// Routes of this version are installed.
    Installed(Version),
    /// An update of the tables was refused.
    UpdateRefused(UpdateError),
}

/// A node's record of the process of a parent.
#[derive(Clone, Debug)]
struct ParentSession {
    /// Declared capacity of the link, an upper limit of all offers.
    declared: BitRate,
    /// Capacity measured by this node; `None` until the link has limited a transfer.
    measured: Option<BitRate>,
    /// Whether the link currently limits transfers, as measured by this node.
    is_limiting: bool,
    life: u64,
    /// Time of the last message; `None` before the first and after a failure.
    heard_at: Option<Instant>,
    /// Attempts that are unanswered or granted.
    held: Attempts,
    /// When this node last sent the list of all its attempts.
    compared_at: Option<Instant>,
    /// When this node last requested a whole advertisement.
    resend_at: Option<Instant>,
}

impl ParentSession {
    fn new(declared: BitRate) -> Self {
        let (heard_at, compared_at, resend_at) = (None, None, None);
        let (measured, held) = (None, Attempts::default());
        let is_limiting = false;
        Self { declared, measured, is_limiting, life: 0, heard_at, held, compared_at, resend_at }
    }
}

/// A node's record of the process of a child.
#[derive(Clone, Debug)]
struct ChildSession {
    link: LinkId,
    life: u64,
    /// Time of the last message; `None` before the first and after a failure.
    heard_at: Option<Instant>,
    ledger: LinkLedger,
    /// Whether the child has measured the ledger's capacity.
    is_measured: bool,
    /// Number of consecutive heartbeats whose digest differs from the ledger's.
    mismatches: u32,
    /// When the whole advertisement was last sent.
    resent_at: Option<Instant>,
}

impl ChildSession {
    const fn new(link: LinkId, ledger: LinkLedger) -> Self {
        Self { link, life: 0, heard_at: None, ledger, is_measured: false, mismatches: 0, resent_at: None }
    }
}

/// Rate limit: whether `every` has passed since `last`. If so, sets `last` to `now`.
fn is_due(last: &mut Option<Instant>, now: Instant, every: Duration) -> bool {
    let is_due = last.is_none_or(|last| now >= last + every);
    if is_due {
        *last = Some(now);
    }
    is_due
}

/// Deadlines of periodic work and of streams.
#[derive(Clone, Debug)]
struct Timers {
    /// When to send heartbeats and check for silent neighbours.
    heartbeat: Instant,
    /// When to advertise, and to check streams against the plan.
    advertise: Instant,
    /// When to report to the controller.
    report: Instant,
    /// When to repeat or give up the request of each stream.
    streams: BTreeSet<(Instant, Object)>,
}

/// State machine of a node. See the module.
#[derive(Clone, Debug)]
pub struct Node {
    id: NodeId,
    life: u64,
    settings: Settings,
    rib: Rib,
    shadows: ShadowFibs,
    neighbours: Neighbours,
    advertiser: Advertiser,
    parents: BTreeMap<NodeId, ParentSession>,
    children: BTreeMap<NodeId, ChildSession>,
    /// Streams with their viewers and children. Streams that a source imports have no parent.
    streams: BTreeMap<Object, Stream>,
    audience: Audience,
    timers: Timers,
    controller: ControllerSession,
    random: RandomStream,
    attempts: u64,
    output: Output,
}

/// Viewer counts over all streams.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
struct Audience {
    /// Number of viewers whose stream has not begun, at most [`WAITING_MAX`].
    waiting: usize,
    /// Number of (stream, group) pairs with viewers, at most [`GROUPS_MAX`].
    groups: usize,
}

/// Messages and events not yet polled by the driver.
#[derive(Clone, Debug, Default)]
struct Output {
    messages: VecDeque<Transmit>,
    events: VecDeque<Event>,
}

impl Node {
    /// Creates the machine of node `id`. `life` is its incarnation number. It must exceed earlier
    /// ones by more than the number of requests in one incarnation, as microseconds since the Unix
    /// epoch do.
    pub fn new(
        now: Instant,
        network: &Network,
        id: NodeId,
        life: u64,
        settings: Settings,
        seed: Seed,
    ) -> Self {
        let from = |link: &LinkId| (network.link(*link).from, *link);
        let neighbours = Neighbours::new(network.links_in(id).iter().map(from));
        let parents = neighbours.links().map(|(link, _)| {
            let Link { from, capacity, .. } = *network.link(link);
            (from, ParentSession::new(capacity))
        });
        let parents = parents.collect();
        let child = |link: &LinkId| {
            let ledger = LinkLedger::new(Capacity::declared(network.link(*link).capacity));
            (network.link(*link).to, ChildSession::new(*link, ledger))
        };
        let is_source = network.node(id).tier == Tier::Source;
        Self {
            id,
            life,
            settings,
            rib: Rib::default(),
            shadows: ShadowFibs::default(),
            parents,
            neighbours,
            advertiser: Advertiser::new(life),
            children: network.links_out(id).iter().map(child).collect(),
            streams: BTreeMap::new(),
            audience: Audience::default(),
            timers: Timers { heartbeat: now, advertise: now, report: now, streams: BTreeSet::new() },
            controller: ControllerSession::new(life, is_source),
            random: seed.stream("live.control", u64::from(id.0)),
            attempts: life,
            output: Output::default(),
        }
    }

    /// The node's routes.
    pub const fn rib(&self) -> &Rib {
        &self.rib
    }

    /// The current forwarding table: routes of the controller that are not stale, and local
    /// decisions.
    pub fn fib(&self, now: Instant) -> super::tables::Fib {
        self.rib.fib(|entry| self.is_stale(now, entry))
    }

    /// The parent that currently delivers an object.
    pub fn upstream(&self, object: Object) -> Option<NodeId> {
        self.streams.get(&object)?.current.as_ref().map(|upstream| upstream.parent)
    }

    /// Whether the node receives or imports an object.
    pub fn is_receiving(&self, object: Object) -> bool {
        self.streams.get(&object).is_some_and(|stream| stream.is_imported || stream.current.is_some())
    }

    /// Routes to an object that the parents advertise.
    pub fn ways(&self, object: Object) -> impl Iterator<Item = ParentRoute> {
        self.neighbours.ways(object)
    }

    /// Whether a child's request for an object has been granted.
    pub fn is_granted(&self, child: NodeId, object: Object) -> bool {
        let stream = self.streams.get(&object);
        stream.is_some_and(|stream| stream.is_served() && stream.children.get(&child) == Some(&true))
    }

    /// The ledger of the link to a child.
    pub fn ledger(&self, child: NodeId) -> Option<&LinkLedger> {
        self.children.get(&child).map(|session| &session.ledger)
    }

    /// Objects with a stream, including imported objects.
    pub fn objects(&self) -> impl Iterator<Item = Object> {
        self.streams.keys().copied()
    }

    /// Whether the node is drained and accepts no new stream.
    pub const fn is_draining(&self) -> bool {
        self.controller.is_draining
    }

    /// Next message to send.
    pub fn poll_transmit(&mut self) -> Option<Transmit> {
        self.output.messages.pop_front()
    }

    /// Next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.output.events.pop_front()
    }

    /// When [`Node::handle_timeout`] is due.
    pub fn poll_timeout(&self) -> Instant {
        let regular = self.timers.heartbeat.min(self.timers.advertise).min(self.timers.report);
        self.timers.streams.first().map_or(regular, |(at, _)| regular.min(*at))
    }

    /// Performs all actions that are due.
    pub fn handle_timeout(&mut self, now: Instant) {
        if now >= self.timers.heartbeat {
            self.watch_neighbours(now);
            self.send_heartbeats();
            self.timers.heartbeat = now + self.settings.heartbeat;
        }
        while let Some((at, object)) = self.timers.streams.first().copied()
            && at <= now
        {
            self.timers.streams.pop_first();
            self.handle_stream_due(now, object);
        }
        if now >= self.timers.advertise {
            self.timers.advertise = now + self.settings.advertise_every;
            self.follow_plan(now);
            self.seek_routes(now);
            self.advertise();
        }
        if now >= self.timers.report {
            self.timers.report = now + self.settings.report_every;
            self.report(now);
        }
    }

    /// Fails silent parents and releases silent children. If the node itself was frozen, all
    /// neighbours get a further silence period: their messages may still wait in the sockets.
    fn watch_neighbours(&mut self, now: Instant) {
        let was_frozen = now > self.timers.heartbeat + self.settings.parent_silence_max;
        let parents = self.parents.values_mut().map(|session| &mut session.heard_at);
        let children = self.children.values_mut().map(|session| &mut session.heard_at);
        if was_frozen {
            parents.chain(children).flatten().for_each(|heard_at| *heard_at = now);
            return;
        }
        let is_silent = |heard_at: Option<Instant>, most: Duration| {
            heard_at.is_some_and(|heard_at| now > heard_at + most)
        };
        let most = self.settings.parent_silence_max;
        let parents = self.parents.iter().filter(|(_, session)| is_silent(session.heard_at, most));
        let parents: Vec<_> = parents.map(|(parent, _)| *parent).collect();
        parents.into_iter().for_each(|parent| self.handle_parent_failed(now, parent));
        let most = self.settings.child_silence_max;
        let children = self.children.iter().filter(|(_, session)| is_silent(session.heard_at, most));
        let children: Vec<_> = children.map(|(child, _)| *child).collect();
        children.into_iter().for_each(|child| self.release_child(child));
    }

    /// Whether an entry is stale (§4.4.2): a link has changed, or the next hop or the controller
    /// has failed.
    fn is_stale(&self, now: Instant, entry: &RibEntry) -> bool {
        let is_silent = self.controller.is_silent(now, self.settings.controller_silence_max);
        (is_silent && !self.is_centralized())
            || self.neighbours.offer(entry.next_hop).is_none()
            || self.has_changed(entry)
    }

    fn has_changed(&self, entry: &RibEntry) -> bool {
        let state = |link| self.neighbours.link_state(link);
        !self.is_centralized() && entry.evidence.is_stale(self.settings.stale_percent, state)
    }

    fn is_centralized(&self) -> bool {
        self.settings.mode == ControlMode::Centralized
    }

    /// States of all links of the node.
    fn link_states(&self) -> Vec<(LinkId, LinkState)> {
        let inwards = self.neighbours.links().map(|(link, offer)| {
            (link, offer.map_or(LinkState::Failed, |offer| LinkState::Up(offer.capacity)))
        });
        let outwards = self
            .children
            .values()
            .map(|session| (session.link, LinkState::Up(session.ledger.capacity().believed())));
        inwards.chain(outwards).collect()
    }

    /// Shortest interval between two whole advertisements on one link: half a period.
    const fn whole_table_every(&self) -> Duration {
        Duration::from_ps(self.settings.advertise_every.as_ps() / 2)
    }

    fn emit(&mut self, event: Event) {
        self.output.events.push_back(event);
    }

    fn send_parent(&mut self, parent: NodeId, body: super::messages::ChildMessage) {
        let message = ToParent { life: self.life, body };
        self.output.messages.push_back(Transmit::Parent(parent, message));
    }

    fn send_child(&mut self, child: NodeId, body: super::messages::ParentMessage) {
        let message = ToChild { life: self.life, body };
        self.output.messages.push_back(Transmit::Child(child, message));
    }
}

#[cfg(test)]
mod tests;
