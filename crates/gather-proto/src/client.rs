//! The client: assigns pieces to servers, grants rates, and reassigns the work of failed servers.
//!
//! A *piece* is a set of byte ranges of one object, with the servers that hold the object. A pull
//! asks one holder for one range. If that server refuses, stops responding or is lost, the client
//! requests the missing part of the range from another holder. A piece fails when no holder is
//! left; the other pieces continue.
//!
//! If the rate of the last hop is configured, the client divides it evenly among the servers. It
//! also divides a rate that it has estimated because several servers overflowed the hop (`link`). A
//! share that one server leaves unused for a while is given to the other servers ([`crate::share`];
//! `hop` applies the shares). The first packets of pulls that begin together are spread over their
//! transmission time on the link, because one packet from each of many servers can overflow its
//! queue (LTTP section V-F).
//!
//! Leaves out: whole objects and their hashes (`fetch`); connections and files (crate `gather`).
//! Read [`Piece`], [`ClientEvent`] and [`Client`] first.

mod active_servers;
mod balance;
mod came;
pub(crate) mod deadlines;
mod hop;
mod link;
mod start;
#[cfg(test)]
mod tests;

use crate::config::{ClientConfig, ConfigError, PULLS_AHEAD};
use crate::layout::{BLOCK_BYTES_MIN, Layout};
use crate::mode::RateControl;
use crate::msg::{Control, Feedback, Packet, PullAcceptance, PullId, Request};
use crate::receiver::{PullCounts, Receiver, ReceiverParams};
use anabranch_codes::Symbol;
use anabranch_endpoint::Message as _;
use anabranch_units::{BitRate, ByteCount, Duration, Instant};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

/// A server of a client. Servers are numbered in the order in which they were added.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ServerId(pub u32);

/// A piece of a client. Pieces are numbered in the order in which they were added.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PieceId(pub u32);

/// Byte ranges of one object to fetch, and the servers that hold the object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The object's name at its holders.
    pub object: String,
    /// The wanted byte ranges, ascending and disjoint; `None` for the whole object.
    pub ranges: Option<Vec<Range<u64>>>,
    /// Servers that hold the object, in order of preference.
    pub holders: Vec<ServerId>,
}

/// Why a server did not deliver a piece.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The server.
    pub server: ServerId,
    /// The reason, in one line.
    pub reason: String,
}

/// Events of a client for its user.
#[derive(Clone, Debug, PartialEq)]
pub enum ClientEvent<S> {
    /// A server has reported the length of an object.
    Accepted {
        /// The piece.
        piece: PieceId,
        /// The server that delivers the piece.
        server: ServerId,
        /// Bytes of the whole object.
        object_bytes: u64,
    },
    /// A server has an object of an unexpected length. The client requests it elsewhere.
    OtherVersion {
        /// The piece.
        piece: PieceId,
        /// The server with the other version.
        server: ServerId,
        /// Length of the server's object in bytes.
        object_bytes: u64,
    },
    /// Bytes of an object have arrived.
    Blocks {
        /// The piece.
        piece: PieceId,
        /// Byte range of the blocks in the object.
        range: Range<u64>,
        /// The blocks; the last block may be padded.
        blocks: Vec<S>,
    },
    /// The whole piece has arrived.
    Complete {
        /// The piece.
        piece: PieceId,
    },
    /// A server did not deliver a piece. The client asks the next holder, if a holder is left.
    Left {
        /// The piece.
        piece: PieceId,
        /// The server and the reason.
        failure: Failure,
    },
    /// No server is left that could deliver the piece.
    Failed {
        /// The piece.
        piece: PieceId,
        /// The servers that failed, each with its reason.
        failures: Vec<Failure>,
    },
}

impl<S> ClientEvent<S> {
    /// The piece concerned.
    pub const fn piece(&self) -> PieceId {
        match self {
            Self::Accepted { piece, .. }
            | Self::OtherVersion { piece, .. }
            | Self::Blocks { piece, .. }
            | Self::Complete { piece }
            | Self::Left { piece, .. }
            | Self::Failed { piece, .. } => *piece,
        }
    }
}

/// Maximum packets kept for a pull before its server has accepted the pull.
const EARLY_MAX: usize = 256;
/// Time from the last connection during which a server without requests keeps its share of the last
/// hop. `AWAITED_RTTS` round trips are added. Drivers request object descriptions in this time.
const AWAITED: Duration = Duration::from_ms(100);
const AWAITED_RTTS: u64 = 4;
/// Approximate size of a request on the link: a short pull message with TLS, TCP and IP headers.
const REQUEST: ByteCount = ByteCount::new(130);

#[derive(Debug)]
struct PieceState {
    piece: Piece,
    /// Length of the object, if known before a server reports it.
    object_bytes: Option<u64>,
    /// Missing ranges that no pull covers; `None` until the object's length is known.
    missing: Option<VecDeque<Range<u64>>>,
    pulls: u32,
    failures: Vec<Failure>,
    /// Servers dropped from the piece only because another holder seemed faster. The client asks
    /// these servers again if no other holder is left.
    slow: Vec<ServerId>,
    /// Whether the piece may end before its last byte, at the end of the object.
    is_cut: bool,
    is_over: bool,
}

impl PieceState {
    /// Whether the piece is the beginning of an object, requested from a single server.
    fn is_of_one(&self) -> bool {
        self.is_cut && self.piece.holders.len() == 1
    }
}

#[derive(Debug)]
struct ServerState {
    is_connected: bool,
    /// Why the server is unreachable; `None` while it is usable.
    lost: Option<String>,
    /// Whether the client has ever requested a pull from the server.
    was_asked: bool,
    /// Arrival times of the server's packets and control data.
    heard: deadlines::ServerArrivals,
    /// Round-trip time of the connection's setup.
    rtt: Option<Duration>,
    /// Shortest time from a request to its answer.
    answered: Option<Duration>,
    block_bytes: u32,
    /// Longest block received from the server, in bytes.
    came_block_bytes: u32,
    pulls: u32,
    /// Rate of the server's fastest completed pull, in object bytes per second, if any.
    rate_bytes_per_s: Option<f64>,
    /// Recent delivery rate.
    pace: balance::DeliveryRate,
    /// Start of the current period in which the server has at least one pull.
    asked_at: Option<Instant>,
    /// Bytes of datagrams received from the server since the last measurement.
    bytes: u64,
    /// Rate used by the server, in bits of datagrams per second, if two successive measurements
    /// were below the grant. A single low measurement may come from a delayed process.
    demand: Option<f64>,
    used_little: bool,
}

#[derive(Debug)]
struct Pull<S> {
    piece: PieceId,
    server: ServerId,
    /// Requested byte range: start and end. An end of `None` means the end of the object.
    range: (u64, Option<u64>),
    /// Requested maximum block length in bytes.
    block_bytes: u32,
    /// Maximum number of blocks per generation.
    blocks_max: u32,
    asked_at: Instant,
    state: PullState<S>,
    /// Whether the server has accepted the pull. Until then no block is delivered to the user.
    is_said: bool,
    /// Whether the pull is in the queue of pulls with feedback to send.
    is_touched: bool,
}

impl<S: Symbol> Pull<S> {
    /// Queues the pull for feedback, at most once until the feedback is polled.
    fn touch(&mut self, id: PullId, touched: &mut VecDeque<PullId>) {
        if !std::mem::replace(&mut self.is_touched, true) {
            touched.push_back(id);
        }
    }

    /// Granted rate, in bits of datagrams per second.
    fn grant(&self) -> Option<BitRate> {
        match &self.state {
            PullState::Asked { grant, .. } => *grant,
            PullState::Receiving(receiver) => receiver.grant(),
        }
    }
}

#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "nearly all are receiving")]
enum PullState<S> {
    /// The server has not answered; `early` holds packets that arrived before its answer.
    Asked {
        early: Vec<Packet<S>>,
        grant: Option<BitRate>,
    },
    Receiving(Receiver<S>),
}

/// Pulls pieces from many servers. See the module documentation.
#[derive(Debug)]
pub struct Client<S> {
    config: ClientConfig,
    servers: Vec<ServerState>,
    pieces: Vec<PieceState>,
    /// Number of pieces that are neither complete nor failed.
    unfinished: usize,
    /// Pieces with missing ranges to request.
    queue: VecDeque<PieceId>,
    pulls: BTreeMap<PullId, Pull<S>>,
    next_pull: u16,
    /// Whether pull numbers are left. Numbering restarts only when no pull is left, so the older of
    /// two pulls always has the lower number.
    has_numbers: bool,
    control: VecDeque<(ServerId, Control)>,
    events: VecDeque<ClientEvent<S>>,
    /// Pulls that may have feedback to send.
    touched: VecDeque<PullId>,
    measured_at: Option<Instant>,
    look_at: Option<Instant>,
    /// End of the period in which servers without requests keep a share of the last hop.
    awaits_until: Option<Instant>,
    /// Whether the last measurement lowered a grant and the freed share is not yet redistributed.
    is_lowered: bool,
    /// Bytes of datagrams received.
    came_bytes: u64,
    /// Number of packets from servers that see a queue on their paths.
    came_queued: u64,
    overflow: link::OverflowEstimator,
    few: active_servers::ActiveServers,
    /// Packet counts of ended pulls.
    counts: PullCounts,
    strays: u64,
}

impl<S: Symbol> Client<S> {
    /// A client without servers.
    ///
    /// Errors: a setting is out of range.
    pub fn new(config: ClientConfig) -> Result<Self, ConfigError> {
        config.check()?;
        Ok(Self {
            config,
            servers: Vec::new(),
            pieces: Vec::new(),
            unfinished: 0,
            queue: VecDeque::new(),
            pulls: BTreeMap::new(),
            next_pull: 0,
            has_numbers: true,
            control: VecDeque::new(),
            events: VecDeque::new(),
            touched: VecDeque::new(),
            measured_at: None,
            look_at: None,
            awaits_until: None,
            is_lowered: false,
            came_bytes: 0,
            came_queued: 0,
            overflow: link::OverflowEstimator::new(),
            few: active_servers::ActiveServers::default(),
            counts: PullCounts::default(),
            strays: 0,
        })
    }

    /// Adds a server that is not connected yet.
    pub fn add_server(&mut self) -> ServerId {
        let block_bytes = self.config.block_bytes;
        self.servers.push(ServerState {
            is_connected: false,
            lost: None,
            was_asked: false,
            heard: deadlines::ServerArrivals::default(),
            rtt: None,
            answered: None,
            block_bytes,
            came_block_bytes: 0,
            pulls: 0,
            rate_bytes_per_s: None,
            pace: balance::DeliveryRate::default(),
            asked_at: None,
            bytes: 0,
            demand: None,
            used_little: false,
        });
        ServerId(self.servers.len() as u32 - 1)
    }

    /// Sets the maximum block length for a server, if its path MTU differs from the default.
    pub fn set_block_bytes(&mut self, server: ServerId, bytes: u32) {
        self.servers[server.0 as usize].block_bytes = bytes.min(self.config.block_bytes);
    }

    /// Adds a piece, which [`Client::begin`] or the end of another pull requests.
    ///
    /// Panics: if a holder was not added.
    pub fn add(&mut self, piece: Piece) -> PieceId {
        let known = |server: &ServerId| (server.0 as usize) < self.servers.len();
        assert!(piece.holders.iter().all(known), "a piece's holders are servers of this client");
        let id = PieceId(self.pieces.len() as u32);
        let missing: Option<VecDeque<_>> = piece.ranges.clone().map(VecDeque::from);
        let is_over = missing.as_ref().is_some_and(VecDeque::is_empty);
        let object_bytes = None;
        let failures = self.lost_of(&piece.holders);
        self.pieces.push(PieceState {
            piece,
            object_bytes,
            missing,
            pulls: 0,
            failures,
            slow: Vec::new(),
            is_cut: false,
            is_over,
        });
        if is_over {
            self.events.push_back(ClientEvent::Complete { piece: id });
        } else {
            self.unfinished += 1;
            self.queue.push_back(id);
        }
        id
    }

    /// The servers among `holders` that are lost, each with its reason. Their loss will not be
    /// reported again.
    fn lost_of(&self, holders: &[ServerId]) -> Vec<Failure> {
        let lost = |server: &ServerId| {
            let reason = self.servers[server.0 as usize].lost.clone()?;
            Some(Failure { server: *server, reason })
        };
        holders.iter().filter_map(lost).collect()
    }

    /// Adds the first `bytes_max` bytes of an object as a piece requested from one server. A
    /// shorter object is requested whole. [`Client::widen`] turns the piece into an ordinary one;
    /// [`Client::cancel`] drops it.
    ///
    /// Panics: if the server was not added.
    pub fn add_beginning(&mut self, object: String, bytes_max: u64, server: ServerId) -> PieceId {
        let ranges = Some(std::iter::once(0..bytes_max).collect());
        let id = self.add(Piece { object, ranges, holders: vec![server] });
        self.pieces[id.0 as usize].is_cut = true;
        id
    }

    /// Sets the holders of an object's beginning, and the length of the object: at least 1 byte.
    /// Bytes that one holder does not deliver are then requested from another. Does nothing if the
    /// piece is complete, failed or cancelled.
    ///
    /// Panics: if a holder was not added.
    pub fn widen(&mut self, piece: PieceId, holders: Vec<ServerId>, object_bytes: u64) {
        let known: Vec<ServerId> = self.pieces[piece.0 as usize].piece.holders.clone();
        let new: Vec<ServerId> = holders.iter().copied().filter(|holder| !known.contains(holder)).collect();
        let lost = self.lost_of(&new);
        let state = &mut self.pieces[piece.0 as usize];
        if state.is_over {
            return;
        }
        state.failures.extend(lost);
        (state.piece.holders, state.object_bytes) = (holders, Some(object_bytes));
        for range in state.missing.iter_mut().flatten() {
            range.end = range.end.min(object_bytes.max(range.start + 1));
        }
    }

    /// Whether a server was dropped from a piece only because another holder seemed faster.
    pub fn is_slow(&self, piece: PieceId, server: ServerId) -> bool {
        self.pieces[piece.0 as usize].slow.contains(&server)
    }

    /// Drops a piece and stops its pulls. Events that are already queued may still name the piece.
    pub fn cancel(&mut self, now: Instant, piece: PieceId) {
        let state = &mut self.pieces[piece.0 as usize];
        if std::mem::replace(&mut state.is_over, true) {
            return;
        }
        self.unfinished -= 1;
        let its: Vec<PullId> =
            self.pulls.iter().filter(|(_, pull)| pull.piece == piece).map(|(id, _)| *id).collect();
        for id in its {
            let Some(pull) = self.close(id) else { continue };
            if let PullState::Receiving(receiver) = &pull.state {
                self.counts = added(self.counts, receiver.counts());
            }
            self.control.push_back((pull.server, Control::Stop { pull: id }));
        }
        self.regrant(false);
        self.schedule(now);
    }

    /// Sets the expected length of a piece's object. A server whose object has another length has
    /// another version, and its bytes are not used.
    pub fn expect_bytes(&mut self, piece: PieceId, object_bytes: u64) {
        self.pieces[piece.0 as usize].object_bytes = Some(object_bytes);
    }

    /// Requests every range that can be requested now.
    pub fn begin(&mut self, now: Instant) {
        self.schedule(now);
    }

    /// Whether every piece is complete or has failed.
    pub const fn is_done(&self) -> bool {
        self.unfinished == 0
    }
    /// Packet counts over all pulls.
    pub fn counts(&self) -> PullCounts {
        let running = self.pulls.values().filter_map(|pull| match &pull.state {
            PullState::Receiving(receiver) => Some(receiver.counts()),
            PullState::Asked { .. } => None,
        });
        running.fold(self.counts, added)
    }
    /// Bytes of packets held for incomplete generations; at most [`ClientConfig::memory`].
    pub fn held_bytes(&self) -> u64 {
        let held = |pull: &Pull<S>| match &pull.state {
            PullState::Asked { early, .. } => early.iter().map(|packet| packet.payload.len() as u64).sum(),
            PullState::Receiving(receiver) => receiver.held_bytes(),
        };
        self.pulls.values().map(held).sum()
    }
    /// Rate control of the servers.
    pub const fn rate_control(&self) -> RateControl {
        self.config.rate_control
    }
    /// Number of packets received for ended pulls.
    pub const fn strays(&self) -> u64 {
        self.strays
    }
    /// Pulls under way: the piece, the server, and the loss rate (with TFRC, the loss event rate).
    pub fn pulls(&self) -> impl Iterator<Item = (PieceId, ServerId, f64)> + '_ {
        self.pulls.values().map(|pull| {
            let loss = match &pull.state {
                PullState::Receiving(receiver) => receiver.loss_rate(),
                PullState::Asked { .. } => 0.0,
            };
            (pull.piece, pull.server, loss)
        })
    }

    /// Reports that a server's control channel is open; `rtt` is its round-trip time, if known.
    pub fn handle_connected(&mut self, now: Instant, server: ServerId, rtt: Option<Duration>) {
        let state = &mut self.servers[server.0 as usize];
        (state.is_connected, state.lost, state.rtt, state.answered) = (true, None, rtt, None);
        let until = now + AWAITED + rtt.unwrap_or(Duration::ZERO) * AWAITED_RTTS;
        self.awaits_until = self.awaits_until.max(Some(until));
        self.schedule(now);
    }

    /// Reports that a server is unreachable or lost.
    pub fn handle_lost(&mut self, now: Instant, server: ServerId, reason: &str) {
        let state = &mut self.servers[server.0 as usize];
        (state.is_connected, state.lost) = (false, Some(reason.to_owned()));
        let its: Vec<PullId> =
            self.pulls.iter().filter(|(_, pull)| pull.server == server).map(|(id, _)| *id).collect();
        let mut told: Vec<PieceId> = Vec::new();
        for id in its {
            told.extend(self.abandon(id, reason.to_owned()));
        }
        // Records the loss for unfinished pieces without a pull at the server.
        for at in 0..self.pieces.len() {
            let (id, state) = (PieceId(at as u32), &mut self.pieces[at]);
            let is_new = state.piece.holders.contains(&server)
                && !state.failures.iter().any(|failure| failure.server == server);
            if !state.is_over && is_new && !told.contains(&id) {
                state.failures.push(Failure { server, reason: reason.to_owned() });
            }
        }
        self.schedule(now);
    }

    /// Holders of a piece that have not failed to deliver it.
    fn left(&self, piece: PieceId) -> Vec<ServerId> {
        let PieceState { piece, failures, .. } = &self.pieces[piece.0 as usize];
        let failed = |server: &ServerId| failures.iter().any(|failure| failure.server == *server);
        piece.holders.iter().copied().filter(|server| !failed(server)).collect()
    }

    /// Assigns queued pieces to servers until either is exhausted.
    fn schedule(&mut self, now: Instant) {
        let mut new = Vec::new();
        let fair = self.config.pulls_max.div_ceil(self.servers.len().max(1));
        let mut waiting = VecDeque::new();
        while let Some(piece) = self.queue.pop_front() {
            self.has_numbers |= self.pulls.is_empty();
            if self.pulls.len() >= self.config.pulls_max || !self.has_numbers {
                self.queue.push_front(piece);
                break;
            }
            let state = &self.pieces[piece.0 as usize];
            if state.is_over || state.missing.as_ref().is_some_and(VecDeque::is_empty) {
                continue;
            }
            if self.left(piece).is_empty() && state.pulls == 0 && !self.recall(piece) {
                self.fail(piece);
                continue;
            }
            let left = self.left(piece);
            let is_shared = left.len() > 1;
            let left = self.asked_of(left);
            // The server with the fewest pulls is preferred; among equals, the fastest. A server
            // without a measured rate ranks first among equals, because it may be the fastest.
            let load = |server: &&ServerId| {
                let server = &self.servers[server.0 as usize];
                (server.pulls, server.rate_bytes_per_s.map_or(0, |rate| u64::MAX - rate as u64))
            };
            // Prevents the first connected server from taking pieces that other servers hold, too.
            let ready = |server: &&ServerId| {
                let state = &self.servers[server.0 as usize];
                let is_busy = || state.pulls as usize >= fair || self.ahead_of(**server) >= PULLS_AHEAD;
                state.is_connected && !(is_shared && is_busy())
            };
            let Some(server) = left.iter().filter(ready).min_by_key(load).copied() else {
                waiting.push_back(piece);
                continue;
            };
            if is_shared {
                self.keep(server);
            }
            if !self.pieces[piece.0 as usize].is_of_one() {
                self.begin_together(now);
            }
            new.push(self.open(now, piece, server));
            if self.pieces[piece.0 as usize].missing.as_ref().is_some_and(|missing| !missing.is_empty()) {
                self.queue.push_front(piece);
            }
        }
        waiting.append(&mut self.queue);
        self.queue = waiting;
        if new.is_empty() {
            return;
        }
        self.regrant(false);
        let slot = self.slot();
        // Requests leave in sequence, so a later one has waited for the earlier transmissions.
        let request = self.config.link.map_or(Duration::ZERO, |link| link.transmit_time(REQUEST));
        let step = Duration::from_ps(slot.as_ps().saturating_sub(request.as_ps()));
        for (number, id) in new.into_iter().enumerate() {
            self.ask(id, step * number as u64);
        }
    }

    /// Number of a server's pulls that expect more than retransmissions.
    fn ahead_of(&self, server: ServerId) -> usize {
        let is_ahead = |pull: &Pull<S>| match &pull.state {
            PullState::Receiving(receiver) => !receiver.is_ending(),
            PullState::Asked { .. } => true,
        };
        self.pulls.values().filter(|pull| pull.server == server && is_ahead(pull)).count()
    }

    /// Makes slow servers of a piece available again. Returns false if none of them is connected.
    fn recall(&mut self, piece: PieceId) -> bool {
        let Self { servers, pieces, .. } = self;
        let PieceState { failures, slow, .. } = &mut pieces[piece.0 as usize];
        slow.retain(|server| servers[server.0 as usize].is_connected);
        failures.retain(|failure| !slow.contains(&failure.server));
        !std::mem::take(slow).is_empty()
    }

    fn fail(&mut self, piece: PieceId) {
        let state = &mut self.pieces[piece.0 as usize];
        state.is_over = true;
        self.unfinished -= 1;
        let failures = std::mem::take(&mut state.failures);
        self.events.push_back(ClientEvent::Failed { piece, failures });
    }

    fn open(&mut self, now: Instant, piece: PieceId, server: ServerId) -> PullId {
        let holders = self.left(piece);
        let part = self.part_of(now, piece, server, &holders);
        let state = &mut self.pieces[piece.0 as usize];
        let range = match &mut state.missing {
            None => (0, None),
            Some(missing) => {
                let range = balance::portion(missing, part);
                (range.start, Some(range.end))
            }
        };
        state.pulls += 1;
        let its = &mut self.servers[server.0 as usize];
        if its.pulls == 0 {
            its.pace.begin(now);
            (its.asked_at, its.demand, its.used_little) = (Some(now), None, false);
        }
        its.pulls += 1;
        its.was_asked = true;
        let id = PullId(self.next_pull);
        (self.next_pull, self.has_numbers) = (id.0.wrapping_add(1), id.0 < u16::MAX);
        let (block_bytes, state) = (its.block_bytes, PullState::Asked { early: Vec::new(), grant: None });
        let pull = Pull {
            piece,
            server,
            range,
            block_bytes,
            blocks_max: self.config.blocks_of(block_bytes),
            asked_at: now,
            state,
            is_said: false,
            is_touched: false,
        };
        self.pulls.insert(id, pull);
        id
    }

    fn ask(&mut self, id: PullId, start_after: Duration) {
        let pull = &self.pulls[&id];
        let PullState::Asked { grant, .. } = &pull.state else { return };
        let config = &self.config;
        let state = &self.pieces[pull.piece.0 as usize];
        let servers = if state.is_of_one() { 1 } else { self.servers.len().min(u16::MAX.into()) as u16 };
        let request = Request {
            pull: id,
            object: state.piece.object.clone(),
            start: pull.range.0,
            length: pull.range.1.map(|end| end - pull.range.0),
            is_cut: state.is_cut,
            mode: config.mode,
            rate_control: config.rate_control,
            block_bytes: pull.block_bytes,
            blocks_max: pull.blocks_max,
            window: config.window,
            grant: *grant,
            start_after,
            rtt: self.servers[pull.server.0 as usize].rtt,
            servers,
        };
        self.control.push_back((pull.server, Control::Pull(request)));
    }

    /// Handles a server's message. Ignores messages of clients and about other servers' pulls.
    pub fn handle_control(&mut self, now: Instant, server: ServerId, message: Control) {
        self.handle_heard(now, server);
        let Some(id) = message.pull() else { return };
        if self.pulls.get(&id).is_none_or(|pull| pull.server != server) {
            return;
        }
        match message {
            Control::Accepted(accepted) => self.accept(now, id, &accepted),
            Control::Refused { reason, .. } | Control::GaveUp { reason, .. } => {
                self.abandon(id, reason);
                self.schedule(now);
            }
            _ => {}
        }
    }

    fn accept(&mut self, now: Instant, id: PullId, accepted: &PullAcceptance) {
        let Some(pull) = self.pulls.get(&id).filter(|pull| !pull.is_said) else { return };
        let (piece, server) = (pull.piece, pull.server);
        let object_bytes = accepted.object_bytes;
        let wanted = pull.range.1.map(|end| end - pull.range.0);
        let there_are = object_bytes.saturating_sub(pull.range.0);
        let is_cut = self.pieces[piece.0 as usize].is_cut;
        let wanted = wanted.map(|wanted| if is_cut { wanted.min(there_are) } else { wanted });
        if self.pieces[piece.0 as usize].object_bytes.is_some_and(|bytes| bytes != object_bytes) {
            self.control.push_back((server, Control::Stop { pull: id }));
            self.events.push_back(ClientEvent::OtherVersion { piece, server, object_bytes });
            self.abandon(id, format!("it has another version, of {object_bytes} bytes"));
            return self.schedule(now);
        }
        let is_wrong = wanted.is_some_and(|wanted| wanted != accepted.bytes)
            || (wanted.is_none() && accepted.bytes != accepted.object_bytes);
        let layout = self.layout_of(pull, accepted).filter(|layout| match &pull.state {
            PullState::Asked { .. } => !is_wrong,
            // The layout must equal the layout that the pull's packets implied.
            PullState::Receiving(receiver) => !is_wrong && receiver.layout() == layout,
        });
        let Some(layout) = layout else {
            self.control.push_back((server, Control::Stop { pull: id }));
            self.abandon(
                id,
                "it answers with other bytes, blocks or generations than were asked for".to_owned(),
            );
            return self.schedule(now);
        };
        // The piece's length is known from here on.
        self.pieces[piece.0 as usize].missing.get_or_insert_default();
        self.events.push_back(ClientEvent::Accepted { piece, server, object_bytes });
        if let Some(pull) = self.pulls.get_mut(&id) {
            pull.is_said = true;
            pull.range.1 = Some(pull.range.0 + accepted.bytes);
            if let PullState::Receiving(receiver) = &mut pull.state {
                receiver.set_said();
            }
        }
        self.receive(now, id, layout);
        self.settle(now, id);
    }

    /// Layout of a pull, or `None` if the server's choice is unacceptable: blocks or generations
    /// that are shorter than necessary cost processing time.
    fn layout_of(&self, pull: &Pull<S>, accepted: &PullAcceptance) -> Option<Layout> {
        let shortest = u64::from(pull.block_bytes.min(BLOCK_BYTES_MIN)).min(accepted.bytes.max(1));
        let is_wrong = accepted.block_bytes > pull.block_bytes
            || u64::from(accepted.block_bytes) < shortest
            || (self.config.mode == crate::Mode::Counted && accepted.blocks_max != pull.blocks_max);
        Layout::new(accepted.bytes, accepted.block_bytes, accepted.blocks_max).ok().filter(|_| !is_wrong)
    }

    /// Starts to receive a pull with this layout, unless reception has already started.
    fn receive(&mut self, now: Instant, id: PullId, layout: Layout) {
        let Some(pull) = self.pulls.get_mut(&id) else { return };
        let PullState::Asked { early, grant } = &mut pull.state else { return };
        let server = pull.server;
        let state = &mut self.servers[server.0 as usize];
        let answered = now.saturating_since(pull.asked_at);
        state.answered = Some(state.answered.map_or(answered, |before| before.min(answered)));
        let rtt = state.round_trip();
        let config = &self.config;
        let receiving = ReceiverParams {
            pull: id,
            layout,
            mode: config.mode,
            rate_control: config.rate_control,
            decoder: config.decoder,
            window: config.window,
            feedback_every: config.feedback_every,
            grant: *grant,
            rtt,
            is_said: pull.is_said,
        };
        let early = std::mem::take(early);
        pull.state = PullState::Receiving(Receiver::new(receiving));
        for packet in early {
            self.handle_packet(now, server, packet);
        }
    }

    /// Layout of the pull of `packet` while the server's answer is in flight. The request
    /// determines everything except the block length, which is the packet's.
    fn presumed(&self, pull: &Pull<S>, packet: &Packet<S>) -> Option<Layout> {
        let is_open = pull.range.1.is_none() || self.pieces[pull.piece.0 as usize].is_cut;
        let bytes =
            pull.range.1.filter(|_| !is_open && self.config.mode == crate::Mode::Counted)? - pull.range.0;
        let (block_bytes, blocks_max) = (packet.payload.len() as u32, pull.blocks_max);
        self.layout_of(
            pull,
            &PullAcceptance { pull: packet.pull, object_bytes: bytes, bytes, block_bytes, blocks_max },
        )
    }

    /// Handles a packet of a server.
    pub fn handle_packet(&mut self, now: Instant, server: ServerId, packet: Packet<S>) {
        let id = packet.pull;
        let Some(pull) = self.pulls.get_mut(&id).filter(|pull| pull.server == server) else {
            self.strays += 1;
            return;
        };
        // A lost control message arrives some round trips later. Packets are not delayed by it.
        if let PullState::Asked { .. } = pull.state
            && let Some(layout) = self.pulls.get(&id).and_then(|pull| self.presumed(pull, &packet))
        {
            self.receive(now, id, layout);
        }
        let Some(pull) = self.pulls.get_mut(&id) else { return };
        let is_far = packet.generation >= self.config.window;
        match &mut pull.state {
            // Until the server's answer, data may be of another version: one window is kept.
            PullState::Receiving(_) if !pull.is_said && is_far => self.strays += 1,
            PullState::Asked { early, .. } => {
                // Keeps at most as many packets as the pull may accept later.
                let most = EARLY_MAX.min(self.config.packets_max() as usize);
                if early.len() < most && packet.payload.len() <= self.config.block_bytes as usize {
                    early.push(packet);
                } else {
                    self.strays += 1;
                }
            }
            PullState::Receiving(receiver) => {
                let its = &mut self.servers[server.0 as usize];
                let bytes = u64::from(packet.wire_len());
                its.bytes += bytes;
                its.pace.note(packet.payload.len() as u64);
                its.came_block_bytes = its.came_block_bytes.max(packet.payload.len() as u32);
                its.heard.note_packet(now, its.rtt.unwrap_or(Duration::ZERO));
                self.came_bytes += bytes;
                self.came_queued += u64::from(packet.queued);
                let was_ending = receiver.is_ending();
                receiver.handle_packet(now, packet);
                let begins_to_end = !was_ending && receiver.is_ending();
                pull.touch(id, &mut self.touched);
                self.settle(now, id);
                if begins_to_end && !self.queue.is_empty() {
                    self.schedule(now);
                }
            }
        }
    }

    /// Delivers completed generations of a pull to the user.
    fn settle(&mut self, now: Instant, id: PullId) {
        let Some(pull) = self.pulls.get_mut(&id).filter(|pull| pull.is_said) else { return };
        let PullState::Receiving(receiver) = &mut pull.state else { return };
        let (piece, server) = (pull.piece, pull.server);
        while let Some((generation, blocks)) = receiver.poll_complete() {
            let range = receiver.layout().range(generation);
            let range = pull.range.0 + range.start..pull.range.0 + range.end;
            self.events.push_back(ClientEvent::Blocks { piece, range, blocks });
        }
        if !receiver.is_complete() {
            return;
        }
        self.counts = added(self.counts, receiver.counts());
        let rate =
            receiver.layout().bytes() as f64 / now.saturating_since(pull.asked_at).as_secs_f64().max(1e-6);
        let its = &mut self.servers[server.0 as usize];
        let state = &mut self.pieces[piece.0 as usize];
        // The beginning of an object is too short to measure the rate of the path.
        if !state.is_cut {
            its.brought(rate);
        }
        self.control.push_back((server, Control::Stop { pull: id }));
        self.close(id);
        let state = &mut self.pieces[piece.0 as usize];
        if state.pulls == 0 && state.missing.as_ref().is_some_and(VecDeque::is_empty) {
            state.is_over = true;
            self.unfinished -= 1;
            self.events.push_back(ClientEvent::Complete { piece });
        }
        self.regrant(false);
        self.schedule(now);
    }

    fn close(&mut self, id: PullId) -> Option<Pull<S>> {
        let pull = self.pulls.remove(&id)?;
        self.pieces[pull.piece.0 as usize].pulls -= 1;
        self.servers[pull.server.0 as usize].pulls -= 1;
        Some(pull)
    }

    /// Gives up a pull and queues its piece for other servers. Returns the piece.
    fn abandon(&mut self, id: PullId, reason: String) -> Option<PieceId> {
        let pull = self.take_back(id)?;
        let (piece, server) = (pull.piece, pull.server);
        let heard = matches!(&pull.state, PullState::Receiving(receiver) if receiver.heard_at().is_some());
        let is_accepted = matches!(pull.state, PullState::Receiving(_));
        let shorter = self.shorter_blocks(&pull).filter(|_| is_accepted && !heard);
        let its = &mut self.servers[server.0 as usize];
        if let Some(shorter) = shorter.filter(|_| its.is_connected) {
            // Another pull may already have lowered the block length for a smaller MTU.
            its.block_bytes = its.block_bytes.min(shorter);
        } else {
            let failure = Failure { server, reason };
            let state = &mut self.pieces[piece.0 as usize];
            state.slow.retain(|slow| *slow != server);
            state.failures.push(failure.clone());
            self.events.push_back(ClientEvent::Left { piece, failure });
        }
        self.regrant(false);
        Some(piece)
    }

    /// Gives up a pull because another holder seems faster.
    fn set_aside(&mut self, id: PullId, reason: String) {
        let Some(server) = self.pulls.get(&id).map(|pull| pull.server) else { return };
        let Some(piece) = self.abandon(id, reason) else { return };
        let state = &mut self.pieces[piece.0 as usize];
        if state.failures.iter().any(|failure| failure.server == server) {
            state.slow.push(server);
        }
    }

    /// Ends a pull and returns its missing ranges to the piece's queue.
    fn take_back(&mut self, id: PullId) -> Option<Pull<S>> {
        let pull = self.close(id)?;
        let state = &mut self.pieces[pull.piece.0 as usize];
        if let PullState::Receiving(receiver) = &pull.state {
            self.counts = added(self.counts, receiver.counts());
        }
        match &pull.state {
            PullState::Receiving(receiver) if pull.is_said => {
                let missing = state.missing.get_or_insert_default();
                for range in lacking(receiver, pull.range.0).into_iter().rev() {
                    missing.push_front(range);
                }
            }
            // No block was delivered.
            PullState::Receiving(_) | PullState::Asked { .. } => {
                if let (Some(missing), Some(end)) = (&mut state.missing, pull.range.1) {
                    let known = state.object_bytes.filter(|_| state.is_cut).unwrap_or(end);
                    let end = end.min(known.max(pull.range.0 + 1));
                    missing.push_front(pull.range.0..end);
                }
            }
        }
        self.queue.push_front(pull.piece);
        Some(pull)
    }

    /// Handles the passing of time up to `now`.
    pub fn handle_timeout(&mut self, now: Instant) {
        let dead = self.deadlines().filter(|(_, _, dead_at)| *dead_at <= now);
        let dead: Vec<(PullId, ServerId)> = dead.map(|(id, pull, _)| (id, pull.server)).collect();
        for (id, server) in &dead {
            self.control.push_back((*server, Control::Stop { pull: *id }));
            self.abandon(*id, deadlines::reason("it sent nothing", self.silence(*server)));
        }
        for (id, pull) in &mut self.pulls {
            if let PullState::Receiving(receiver) = &pull.state
                && receiver.poll_timeout().is_some_and(|at| at <= now)
            {
                pull.touch(*id, &mut self.touched);
            }
        }
        if !dead.is_empty() {
            self.schedule(now);
        }
        self.overtake(now);
    }

    /// The next feedback and its server.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<(ServerId, Feedback)> {
        self.measure(now);
        while let Some(id) = self.touched.pop_front() {
            let Some(pull) = self.pulls.get_mut(&id) else { continue };
            pull.is_touched = false;
            if let PullState::Receiving(receiver) = &mut pull.state
                && let Some(feedback) = receiver.poll_feedback(now)
            {
                return Some((pull.server, feedback));
            }
        }
        None
    }
    /// The next control message and its server.
    pub fn poll_control(&mut self) -> Option<(ServerId, Control)> {
        self.control.pop_front()
    }
    /// The next event for the user.
    pub fn poll_event(&mut self) -> Option<ClientEvent<S>> {
        self.events.pop_front()
    }

    /// Time of the next call of [`Client::handle_timeout`].
    pub fn poll_timeout(&self) -> Option<Instant> {
        let due = |(_, pull, dead_at): (PullId, &Pull<S>, Instant)| match &pull.state {
            PullState::Asked { .. } => dead_at,
            PullState::Receiving(receiver) => receiver.poll_timeout().map_or(dead_at, |at| at.min(dead_at)),
        };
        self.deadlines().map(due).chain(self.look_at.filter(|_| !self.pulls.is_empty())).min()
    }
}

/// Missing bytes of a pull, as ranges of the object.
fn lacking<S: Symbol>(receiver: &Receiver<S>, start: u64) -> Vec<Range<u64>> {
    let mut ranges: Vec<Range<u64>> = Vec::new();
    let layout = receiver.layout();
    for generations in receiver.incomplete() {
        let (first, last) = (layout.range(generations.start), layout.range(generations.end - 1));
        let range = start + first.start..start + last.end;
        match ranges.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => ranges.push(range),
        }
    }
    ranges
}

const fn added(a: PullCounts, b: PullCounts) -> PullCounts {
    PullCounts {
        packets: a.packets + b.packets,
        useless: a.useless + b.useless,
        malformed: a.malformed + b.malformed,
        feedbacks: a.feedbacks + b.feedbacks,
        lost: a.lost + b.lost,
    }
}
