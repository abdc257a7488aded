//! A server for one client: answers requests, and sends the client's pulls, older pulls first.
//!
//! The state machine holds no object. It requests an object's description ([`ServerEvent::Asked`])
//! and the blocks of generations ([`Server::poll_wanted`]) from its user, and drops the blocks once
//! they are sent and confirmed. [`ServerConfig`] bounds the memory and the traffic that a client
//! can cause. No packet leaves before a request has arrived on the control channel.

use crate::config::ServerConfig;
use crate::layout::{Layout, LayoutError};
use crate::mode::{Mode, RateControl};
use crate::msg::{self, Control, Feedback, Numbers, Packet, PullAcceptance, PullId, Request, WINDOW_MAX};
use crate::path::{Path, quantum};
use crate::sender::{Sender, SenderEvent, SenderParams, UnrequestedSums, generation_bytes};
use anabranch_codes::Symbol;
use anabranch_endpoint::Message as _;
use anabranch_units::{ByteCount, Duration, Instant};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Maximum delay of a pull's first packet.
const START_AFTER_MAX: Duration = Duration::from_secs(10);

/// An object offered for a pull.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Length of the object in bytes.
    pub object_bytes: u64,
    /// Random number. In [`Mode::Lttp`] it is the id of the first packet, so that two servers do
    /// not send the same sums. In [`Mode::Counted`] ids begin with the blocks, and the number
    /// randomizes the times at which the server probes.
    pub first_id: u32,
    /// Random number that the client cannot guess, from which the packets' nonces derive.
    pub secret: u64,
}

/// Use of a client's memory by its pulls.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes of one generation per pull: the memory that every pull may always hold.
    pub least: u64,
    /// Bytes of generations held or requested, and of records of packets.
    pub wanted: u64,
    /// Sum over all pulls of the greater of `least` and `wanted`.
    pub reserved: u64,
}

impl std::ops::Add for Usage {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self {
            least: self.least + other.least,
            wanted: self.wanted + other.wanted,
            reserved: self.reserved + other.reserved,
        }
    }
}

/// Events of a server for its user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerEvent {
    /// A client requests an object: answer with [`Server::offer`] or [`Server::refuse`].
    Asked {
        /// The pull.
        pull: PullId,
        /// The object's name as sent by the client, untrusted.
        object: String,
    },
    /// A pull is complete, or the client has stopped it.
    Complete {
        /// The pull.
        pull: PullId,
        /// Packets sent.
        packets: u32,
    },
    /// A pull ended because its client was silent.
    GaveUp {
        /// The pull.
        pull: PullId,
    },
    /// The client acknowledged packets that it has not received. All its pulls have ended, and no
    /// further message is answered. The driver must close the connection.
    FalseReceipt {
        /// The pull.
        pull: PullId,
        /// Packets sent.
        packets: u32,
    },
}

/// A server for one client.
#[derive(Debug)]
pub struct Server<S> {
    config: ServerConfig,
    /// Memory use of the same client's other connections to this process.
    others: Usage,
    /// Requests that the user has not answered yet, each with its time.
    asked: BTreeMap<PullId, (Instant, Request)>,
    pulls: BTreeMap<PullId, Pull<S>>,
    /// The path to the client, once a pull uses it for rate control.
    path: Option<Path>,
    control: VecDeque<Control>,
    /// Pulls whose answer must be repeated in a datagram, without duplicates.
    unsaid: BTreeSet<PullId>,
    events: VecDeque<ServerEvent>,
    /// Time of the next datagram under the total rate limit.
    next_at: Instant,
    /// Time of the last feedback on any of the client's pulls.
    heard_at: Instant,
    /// Whether the client has acknowledged packets that it has not received, so that all input is
    /// ignored.
    is_closed: bool,
}

#[derive(Debug)]
struct Pull<S> {
    sender: Sender<S>,
    /// Start of the range in the object.
    start: u64,
    accepted: PullAcceptance,
}

impl<S: Symbol> Server<S> {
    /// A server without requests.
    pub const fn new(config: ServerConfig) -> Self {
        Self {
            config,
            others: Usage { least: 0, wanted: 0, reserved: 0 },
            asked: BTreeMap::new(),
            pulls: BTreeMap::new(),
            path: None,
            control: VecDeque::new(),
            unsaid: BTreeSet::new(),
            events: VecDeque::new(),
            next_at: Instant::ZERO,
            heard_at: Instant::ZERO,
            is_closed: false,
        }
    }

    /// Whether there are neither requests nor pulls.
    pub fn is_idle(&self) -> bool {
        self.asked.is_empty() && self.pulls.is_empty()
    }

    /// Bytes of blocks held, with their bookkeeping; at most [`ServerConfig::memory_max`].
    pub fn held_bytes(&self) -> u64 {
        self.pulls.values().map(|pull| pull.sender.held_bytes()).sum()
    }

    /// Memory use of this server's pulls.
    pub fn usage(&self) -> Usage {
        self.pulls.values().fold(Usage::default(), |sum, pull| {
            let (least, wanted) = (pull.sender.generation_bytes(), pull.sender.wanted_bytes());
            sum + Usage { least, wanted, reserved: least.max(wanted) }
        })
    }

    /// Sets the memory use of the client's other connections, which count towards the same limit.
    pub const fn set_others(&mut self, others: Usage) {
        self.others = others;
    }

    /// Handles a client's message. Ignores messages that only servers send.
    pub fn handle_control(&mut self, now: Instant, message: Control) {
        match message {
            _ if self.is_closed => {}
            Control::Pull(request) => self.ask(now, request),
            Control::Stop { pull } => {
                self.asked.remove(&pull);
                if let Some(pull) = self.pulls.get_mut(&pull) {
                    pull.sender.stop();
                }
                self.sweep();
            }
            _ => {}
        }
    }

    fn ask(&mut self, now: Instant, request: Request) {
        let pull = request.pull;
        let count = self.asked.len() + self.pulls.len();
        let limit = self.config.pulls_max;
        if self.asked.contains_key(&pull) || self.pulls.contains_key(&pull) {
            return self.refuse(pull, format!("pull {} is under way", pull.0));
        }
        if count >= limit {
            return self.refuse(pull, format!("{count} pulls at once: at most {limit} allowed to a client"));
        }
        if request.window == 0 || request.window > WINDOW_MAX {
            let window = request.window;
            return self.refuse(pull, format!("window of {window} generations: must be 1 to {WINDOW_MAX}"));
        }
        if request.start_after > START_AFTER_MAX {
            let seconds = request.start_after.as_secs_f64();
            return self.refuse(pull, format!("a start after {seconds} s: at most 10 s"));
        }
        self.events.push_back(ServerEvent::Asked { pull, object: request.object.clone() });
        self.asked.insert(pull, (now, request));
    }

    /// Accepts a requested pull.
    pub fn offer(&mut self, now: Instant, pull: PullId, offer: Offer) {
        let Some((asked_at, request)) = self.asked.remove(&pull) else { return };
        let whole = offer.object_bytes;
        let end = request.length.map_or(whole, |length| request.start.saturating_add(length));
        let end = if request.is_cut { end.min(whole) } else { end };
        if request.start > whole || end > whole {
            let start = request.start;
            return self.refuse(pull, format!("bytes {start} to {end}: the object has {whole}"));
        }
        let bytes = end - request.start;
        // A range shorter than the requested block length is one shorter block.
        let longest = request.block_bytes.min(self.config.block_bytes_max);
        let block_bytes = u64::from(longest).min(bytes.max(1)) as u32;
        let least = self.config.block_bytes_min;
        if u64::from(block_bytes) < u64::from(least).min(bytes) {
            return self.refuse(pull, format!("blocks of {block_bytes} B: must be at least {least} B"));
        }
        let blocks_max = match request.mode {
            Mode::Counted => request.blocks_max,
            // The paper codes over the whole requested range.
            Mode::Lttp => bytes.div_ceil(block_bytes.max(1).into()).clamp(1, u32::MAX.into()) as u32,
        };
        let layout = match Layout::new(bytes, block_bytes, blocks_max) {
            Ok(layout) => layout,
            Err(error) => return self.refuse(pull, error.to_string()),
        };
        let most = Numbers::of(request.rate_control).generations;
        if layout.generations() > most {
            let limit = u64::from(most) * u64::from(blocks_max) * u64::from(block_bytes);
            return self.refuse(pull, LayoutError::TooLong { bytes, limit }.to_string());
        }
        let generation = generation_bytes::<S>(block_bytes, layout.blocks_max());
        // Each pull may always hold one generation.
        let others = (self.usage() + self.others).least;
        let most = self.config.memory_max.as_u64();
        if others + generation > most {
            let reason = format!(
                "generations of {generation} B: other pulls have {others} of the {most} B that a client may: ask for fewer \
                 blocks to each, or for less at once"
            );
            return self.refuse(pull, reason);
        }
        let sending = SenderParams {
            pull,
            mode: request.mode,
            rate_control: request.rate_control,
            window: request.window,
            grant: request.grant,
            start: asked_at.max(now) + request.start_after,
            rtt: request.rtt,
            give_up: self.config.give_up,
            secret: offer.secret,
            unproven_max: self.config.unproven_max,
            quantum: self.config.quantum,
            first_id: if request.mode == Mode::Lttp { offer.first_id } else { 0 },
            layout,
        };
        let accepted = PullAcceptance { pull, object_bytes: whole, bytes, block_bytes, blocks_max };
        self.control.push_back(Control::Accepted(accepted));
        let (rtt, grant, unproven_max) = (sending.rtt, sending.grant, sending.unproven_max);
        let sender = Sender::new(now, sending);
        if sender.has_path() {
            // Uses the longest block length, because a later pull may have longer packets than a
            // short object.
            let packet_bytes = u64::from(Packet::<S>::header_bytes(RateControl::Bbr) + longest);
            let path = self.path.get_or_insert_with(|| {
                Path::new(now, offer.first_id, packet_bytes, rtt, (grant, unproven_max), request.servers)
            });
            path.fit(packet_bytes);
            path.set_ceiling(now, sender.rate_bytes_per_s());
        }
        self.pulls.insert(pull, Pull { sender, start: request.start, accepted });
        self.sweep();
    }

    /// Refuses a requested pull; `reason` is one line for the client's user.
    pub fn refuse(&mut self, pull: PullId, reason: String) {
        self.asked.remove(&pull);
        self.control.push_back(Control::Refused { pull, reason: msg::reason(reason) });
    }

    /// Ends a pull that cannot continue.
    pub fn fail(&mut self, pull: PullId, reason: String) {
        if let Some(mut ended) = self.pulls.remove(&pull) {
            ended.sender.stop();
            if let Some(path) = &mut self.path {
                ended.sender.count_inflight(path);
            }
            self.control.push_back(Control::GaveUp { pull, reason: msg::reason(reason) });
        }
    }

    /// The next byte range of an object to supply, with its pull and generation.
    pub fn poll_wanted(&mut self) -> Option<(PullId, u32, std::ops::Range<u64>)> {
        // Each pull has room for one generation. Pulls drop further generations without sent
        // packets, until every pull's first generation fits. The first pull that requests memory
        // receives the remaining memory.
        let most = self.config.memory_max.as_u64();
        while self.pulls.values().any(|pull| pull.sender.holds_nothing() && !pull.sender.is_over())
            && (self.usage() + self.others).reserved > most
            && self.pulls.values_mut().any(|pull| pull.sender.give_back())
        {}
        let all = self.usage() + self.others;
        let (free, unreserved) = (most.saturating_sub(all.wanted), most.saturating_sub(all.reserved));
        self.pulls.iter_mut().find_map(|(id, pull)| {
            let sender = &mut pull.sender;
            let room = if sender.holds_nothing() { free } else { unreserved };
            if sender.generation_bytes() > room {
                return None;
            }
            let generation = sender.poll_wanted()?;
            let range = pull.sender.layout().range(generation);
            Some((*id, generation, pull.start + range.start..pull.start + range.end))
        })
    }

    /// Whether a pull waits for memory of other pulls. [`Server::poll_wanted`] may return more once
    /// other pulls have freed memory.
    pub fn is_short(&self) -> bool {
        self.pulls.values().any(|pull| pull.sender.holds_nothing())
    }

    /// Total rate of all pulls that grants and rate control allow, in bits of datagrams per second.
    pub fn allowed_bps(&self) -> f64 {
        let (with_path, alone): (Vec<_>, Vec<_>) =
            self.pulls.values().partition(|pull| pull.sender.has_path());
        let alone = alone.iter().fold(0.0, |sum, pull| sum + pull.sender.rate_bytes_per_s());
        let of_path = self.path.as_ref().filter(|_| !with_path.is_empty());
        (alone + of_path.map_or(0.0, Path::rate_bytes_per_s)) * 8.0
    }

    /// Block length of a pull in bytes, while the pull exists.
    pub fn block_bytes(&self, pull: PullId) -> Option<u32> {
        self.pulls.get(&pull).map(|pull| pull.sender.layout().block_bytes())
    }

    /// Supplies a generation's blocks. Blocks no longer wanted are dropped.
    ///
    /// Shape: [`Layout::blocks`] blocks, each of [`Layout::block_bytes`] or shorter at the end.
    /// Panics: if the number of blocks is wrong.
    pub fn supply(&mut self, pull: PullId, generation: u32, blocks: Vec<S>) {
        if let Some(pull) = self.pulls.get_mut(&pull) {
            pull.sender.supply(generation, blocks);
        }
    }

    /// Handles feedback of the client.
    pub fn handle_feedback(&mut self, now: Instant, feedback: &Feedback) {
        if let Some(pull) = self.pulls.get_mut(&feedback.pull) {
            pull.sender.handle_feedback(now, feedback, self.path.as_mut());
            self.heard_at = self.heard_at.max(pull.sender.heard_at());
            if feedback.is_unsaid {
                self.unsaid.insert(feedback.pull);
            }
            if pull.sender.is_over() {
                self.sweep();
            }
        }
    }

    /// The next acceptance to repeat in a datagram, because the client lacks the copy on the
    /// control channel.
    pub fn poll_unsaid(&mut self) -> Option<PullAcceptance> {
        std::iter::from_fn(|| self.unsaid.pop_first()).find_map(|pull| Some(self.pulls.get(&pull)?.accepted))
    }

    /// The next packet due. Among pulls that share a path's rate, the oldest pull sends first, so
    /// that the client can request more before its last pull ends.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<Packet<S>> {
        if self.config.rate_max.is_some() && self.next_at > now + self.config.quantum {
            return None;
        }
        let has_room = self.path.as_ref().is_some_and(|path| {
            path.has_room() && path.next_at() <= now + quantum(self.config.quantum, path.rtt())
        });
        let path = &mut self.path;
        // Unrequested sums leave only if there is no other packet.
        let next = [UnrequestedSums::No, UnrequestedSums::Yes].into_iter().find_map(|unasked| {
            let mut pulls = self.pulls.values_mut().filter(|pull| has_room || !pull.sender.has_path());
            pulls.find_map(|pull| pull.sender.poll_transmit(now, path.as_mut(), unasked))
        });
        if let (None, true, Some(path)) = (&next, has_room, path) {
            path.handle_idle(now);
        }
        let packet = next?;
        if let Some(rate) = self.config.rate_max {
            let size = ByteCount::new(packet.wire_len().into());
            self.next_at = self.next_at.max(now) + rate.transmit_time(size);
        }
        Some(packet)
    }

    /// The next message for the client.
    pub fn poll_control(&mut self) -> Option<Control> {
        self.control.pop_front()
    }
    /// The next event for the user.
    pub fn poll_event(&mut self) -> Option<ServerEvent> {
        self.events.pop_front()
    }

    /// Time of the next call of [`Server::handle_timeout`] and [`Server::poll_transmit`].
    pub fn poll_timeout(&self) -> Option<Instant> {
        let path = self.path.as_ref();
        let due = self.pulls.values().filter_map(|pull| pull.sender.poll_timeout(path, self.heard_at));
        let due = due.chain(path.filter(|_| !self.pulls.is_empty()).and_then(Path::poll_timeout)).min()?;
        Some(if self.config.rate_max.is_some() { due.max(self.next_at) } else { due })
    }

    /// Handles the passing of time up to `now`.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.pulls.values_mut().for_each(|pull| pull.sender.handle_timeout(now, self.heard_at));
        if let Some(path) = &mut self.path {
            self.pulls.values_mut().for_each(|pull| pull.sender.expire(now, path));
            if path.handle_timeout(now) {
                self.pulls.values_mut().for_each(|pull| pull.sender.handle_silence(now, path));
            }
        }
        self.sweep();
    }

    /// Removes ended pulls and reports them.
    fn sweep(&mut self) {
        let Self { config, pulls, events, control, path, is_closed, .. } = self;
        pulls.retain(|id, pull| {
            let event = pull.sender.poll_event();
            if let (true, Some(path)) = (event.is_some(), &mut *path) {
                pull.sender.count_inflight(path);
            }
            match event {
                None => return true,
                Some(SenderEvent::Complete) => {
                    events.push_back(ServerEvent::Complete { pull: *id, packets: pull.sender.sent() });
                }
                Some(SenderEvent::FalseReceipt) => {
                    *is_closed = true;
                    events.push_back(ServerEvent::FalseReceipt { pull: *id, packets: pull.sender.sent() });
                }
                Some(SenderEvent::GaveUp) => {
                    let seconds = config.give_up.as_secs_f64();
                    let reason = format!(
                        "nothing was heard of the client for {seconds} s: the server's --give-up TIME waits longer"
                    );
                    control.push_back(Control::GaveUp { pull: *id, reason });
                    events.push_back(ServerEvent::GaveUp { pull: *id });
                }
            }
            false
        });
        if self.is_closed {
            self.asked.clear();
            self.pulls.clear();
        }
    }
}
