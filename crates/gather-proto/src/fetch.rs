//! A whole fetch: requests objects from the servers that hold them, until each object is verified
//! or has failed.
//!
//! The driver sets how many objects may be under way at once; the other objects wait for their turn
//! (`turns`). One holder of each object is asked for a description (`describe`): its length,
//! attributes and hash, unless a manifest gives them. The same holder is immediately asked for the
//! object's beginning (`early_request`). The [`Client`] then pulls the missing bytes, assigning
//! ranges to servers. The bytes are written and checked against the hash. On a mismatch all holders
//! are asked for their hashes, and the wrong parts are pulled once more from holders of the right
//! version (`compare`). In a fetch of many objects, short objects arrive whole with their
//! descriptions (`short`). Other holders are asked whether they have the same version (`agree`). An
//! object fails once no holder can provide it, or if it cannot be written; the other objects
//! continue.
//!
//! The driver carries messages and datagrams, and performs the file operations of each
//! [`FetchEvent`]. If no manifest gives the length and hash of an object, the fetch trusts the
//! holder that describes the object. That holder is the first one listed, if it connects within
//! half a second.
//!
//! Leaves out: sockets, sealing, files, hashing, and reconnecting to a lost server. Read
//! [`RequestedObject`], [`FetchEvent`] and [`Fetch`] first.

mod agree;
mod compare;
mod describe;
mod early_request;
mod event;
mod short;
#[cfg(test)]
mod tests;
mod turns;

pub use early_request::EARLY_BYTES;
pub use event::{FetchEvent, FetchFailure, ObjectId, ObjectPart, RequestedObject, Version};

use crate::client::{Client, ClientEvent, Piece, ServerId};
use crate::config::{ClientConfig, ConfigError};
use crate::msg::{Control, Feedback, Packet};
use crate::receiver::PullCounts;
use anabranch_codes::Symbol;
use anabranch_endpoint::Bytes;
use anabranch_units::{Duration, Instant};
use short::Content;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

use early_request::EarlyRequest;

/// Number of bytes beyond the flushed bytes within which a streamed object is requested. Bytes that
/// arrive out of order wait in memory.
const AHEAD_BYTES: u64 = 64 << 20;
/// Maximum length of a piece of a streamed object, in bytes.
const AHEAD_PIECE_BYTES: u64 = 16 << 20;
/// Interval between datagrams that show the client's address to a server whose packets have not
/// arrived.
const SHOW_EVERY: Duration = Duration::from_ms(50);
/// Time from the connection to the second such datagram. The first datagram may have been lost, or
/// may have arrived before the server knew the connection's keys.
const SHOW_AGAIN: Duration = Duration::from_ms(5);
/// Maximum wait for the first listed server to connect, before another connected holder is asked
/// for a description.
const FIRST_WAIT: Duration = Duration::from_ms(500);
/// Interval between checks for overdue answers.
const LOOK_EVERY: Duration = Duration::from_ms(200);

/// Settings of a fetch.
#[derive(Clone, Debug, PartialEq)]
pub struct FetchConfig {
    /// Settings of the client. Its silence limit also applies to requests for descriptions; hashing
    /// time is added.
    pub client: ClientConfig,
    /// Whether the single object is passed on in order as it arrives. The object is then requested
    /// only up to 64 MiB ahead of the flushed bytes, and has no second try.
    pub streams: bool,
    /// Whether an object fails if two of its holders have different versions.
    pub is_strict: bool,
    /// Maximum number of objects under way at once, at least 1. A driver may hold an open file, and
    /// a short content in memory, for each of these objects.
    pub objects_max: usize,
}

/// State of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ObjectStage {
    /// The object waits for its turn.
    Waiting,
    /// A description is requested.
    Describing,
    /// The driver is finding out which bytes are missing.
    Opening,
    /// The object's pieces are being pulled. The value is the number of unfinished pieces.
    Getting(usize),
    /// All bytes are written, but the hash or the attributes are still unknown.
    Finishing,
    /// The driver is checking the object's hash and naming its file.
    Checking,
    /// The hash does not match. The set holds the parts and the servers whose hashes are awaited.
    Comparing(BTreeSet<(usize, ServerId)>),
    Verified,
    Failed(FetchFailure),
}

/// An object of a fetch.
#[derive(Debug)]
pub struct Object {
    wanted: RequestedObject,
    stage: ObjectStage,
    /// Index of the last holder asked for a description, among the holders of the first part.
    asked: Option<usize>,
    /// Indices of the holders asked so far. No holder is asked twice.
    tried: BTreeSet<usize>,
    /// Whether the asked holder cannot describe the object and the next holder is not connected
    /// yet.
    is_waiting: bool,
    /// Time of the request, or of the server's last notice that the hash takes longer.
    asked_at: Instant,
    first_asked_at: Option<Instant>,
    /// Whether the user has been notified that a server is still hashing the object.
    is_told: bool,
    /// Whether the object is finished without attributes, because no holder gave any in time.
    lacks_attributes: bool,
    /// Versions of the object at its holders.
    agreement: agree::Agreement,
    /// Refusals by servers, each with its reason.
    refusals: BTreeMap<ServerId, String>,
    /// Parts, each with a server that has another version of the part. The part is not requested
    /// from this server.
    spoilt: BTreeSet<(usize, ServerId)>,
    /// Whether the last comparison found further entries for `spoilt`.
    is_wiser: bool,
    fetched_bytes: u64,
    kept_bytes: u64,
    /// Whether the object's hash was wrong once, so that the current pulls are a further try.
    was_wrong: bool,
    /// The server asked for the object's whole content, and the time of the request.
    brings: Option<(ServerId, Instant)>,
    /// The whole content from a server, until the object's destination is open.
    content: Option<Content>,
    /// Whether the destination is open and a server is expected to send the whole content.
    awaits_content: bool,
    ended_at: Option<Instant>,
}

impl Object {
    /// Length in bytes, if known.
    pub const fn bytes(&self) -> Option<u64> {
        self.wanted.bytes
    }
    /// BLAKE3 hash, if known.
    pub const fn hash(&self) -> Option<[u8; 32]> {
        self.wanted.hash
    }
    /// Bytes fetched in this run, further tries included.
    pub const fn fetched_bytes(&self) -> u64 {
        self.fetched_bytes
    }
    /// Bytes kept from earlier runs.
    pub const fn kept_bytes(&self) -> u64 {
        self.kept_bytes
    }
    /// Servers known to have another version of the object, each with its version.
    pub const fn others(&self) -> &BTreeMap<ServerId, Version> {
        &self.agreement.others
    }
    /// The server that was last asked to describe the object; `None` before the first request.
    pub fn described_by(&self) -> Option<ServerId> {
        self.asked_server()
    }
    /// Time at which the object was verified or failed.
    pub const fn ended_at(&self) -> Option<Instant> {
        self.ended_at
    }
    /// Whether the object is complete and has the right hash.
    pub const fn is_verified(&self) -> bool {
        matches!(self.stage, ObjectStage::Verified)
    }
    /// Why the object failed; `None` if it has not failed.
    pub const fn failure(&self) -> Option<&FetchFailure> {
        match &self.stage {
            ObjectStage::Failed(failure) => Some(failure),
            _ => None,
        }
    }
    /// Whether the object is neither verified nor failed.
    const fn is_under_way(&self) -> bool {
        !matches!(self.stage, ObjectStage::Verified | ObjectStage::Failed(_))
    }
    /// Whether the object's length or hash is still unknown.
    const fn lacks_description(&self) -> bool {
        match self.stage {
            ObjectStage::Describing => true,
            ObjectStage::Opening | ObjectStage::Getting(_) | ObjectStage::Finishing => {
                self.wanted.hash.is_none()
            }
            _ => false,
        }
    }
    /// Whether the object lacks a description and no holder is currently asked for one.
    const fn waits_to_be_described(&self) -> bool {
        self.lacks_description() && (self.asked.is_none() || self.is_waiting)
    }
    /// The server that was last asked for a description.
    fn asked_server(&self) -> Option<ServerId> {
        self.asked.map(|at| self.wanted.parts[0].holders[at])
    }
}

/// State of a server within a fetch.
#[derive(Debug)]
struct Link {
    is_connected: bool,
    lost: Option<String>,
    /// Whether a packet has arrived from the server.
    is_heard: bool,
    /// Objects whose whole content the server was asked for, by time of request: at most
    /// [`short::CONTENTS_MAX`].
    contents: BTreeSet<(Instant, usize)>,
    /// Current maximum number of contents requested from the server at once.
    contents_max: usize,
    /// Time of the last reduction of `contents_max`.
    cut_at: Option<Instant>,
    /// End of the period in which the server counts as slow.
    slow_until: Option<Instant>,
    rtt: Option<Duration>,
    /// Time of the server's last answer about an object.
    answered_at: Option<Instant>,
}

impl Link {
    const fn new() -> Self {
        Self {
            is_connected: false,
            lost: None,
            is_heard: false,
            contents: BTreeSet::new(),
            contents_max: short::CONTENTS_FIRST,
            cut_at: None,
            slow_until: None,
            rtt: None,
            answered_at: None,
        }
    }
    /// Whether the server may not know the client's address for packets yet.
    const fn is_silent(&self) -> bool {
        self.is_connected && !self.is_heard
    }
}

/// A piece to request later: the start of its part in the object, and the part's length in bytes.
#[derive(Debug)]
struct DeferredPiece {
    start: u64,
    bytes: u64,
    piece: Piece,
}

/// Fetches objects from many servers. See the module documentation.
#[derive(Debug)]
pub struct Fetch<S> {
    client: Client<S>,
    streams: bool,
    is_strict: bool,
    links: Vec<Link>,
    objects: Vec<Object>,
    /// Number of objects that are neither verified nor failed.
    left: usize,
    objects_max: usize,
    pulls_max: usize,
    /// Whether there are several objects, so that short objects may arrive whole.
    is_many: bool,
    /// Index of the first object that waits for its turn.
    next: usize,
    /// Objects under way: at most `objects_max`.
    active: BTreeSet<usize>,
    /// Indices of objects, by the names of their parts at servers.
    by_name: BTreeMap<String, Vec<usize>>,
    /// Index of each piece's object, and the start of the piece's part in the object; `None` for a
    /// dropped piece.
    pieces: Vec<Option<(usize, u64)>>,
    /// Early request for the beginning of the single object, until the object's destination is
    /// open.
    early: Option<EarlyRequest<S>>,
    /// Pieces of the streamed object to request once more bytes are flushed.
    ahead: VecDeque<DeferredPiece>,
    done_bytes: u64,
    /// Queued requests for descriptions. At most one of each kind per object and holder is queued.
    control: VecDeque<(ServerId, Control)>,
    events: VecDeque<FetchEvent<S>>,
    /// Servers that are due for a datagram which shows the client's address, without duplicates.
    shows: VecDeque<ServerId>,
    show_at: Instant,
    /// End of the wait for the first listed server to connect.
    first_at: Option<Instant>,
    look_at: Instant,
}

impl<S: Symbol + From<Bytes>> Fetch<S> {
    /// A fetch of the objects `wanted` from `servers` servers, before any server is connected.
    ///
    /// Errors: a setting is out of range.
    /// Panics: if an object has no parts, or a holder is none of the servers.
    pub fn new(
        now: Instant,
        config: FetchConfig,
        servers: u32,
        wanted: Vec<RequestedObject>,
    ) -> Result<Self, ConfigError> {
        if config.objects_max == 0 {
            let message = "0 objects at once: must be at least 1".to_owned();
            return Err(ConfigError { setting: "objects_max", message });
        }
        let pulls_max = config.client.pulls_max;
        let mut client = Client::new(config.client)?;
        for _ in 0..servers {
            client.add_server();
        }
        let mut by_name: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        for (number, object) in wanted.iter().enumerate() {
            assert!(!object.parts.is_empty(), "an object has parts");
            for part in &object.parts {
                assert!(
                    part.holders.iter().all(|holder| holder.0 < servers),
                    "a holder is one of the servers"
                );
                let objects = by_name.entry(part.name.clone()).or_default();
                if objects.last() != Some(&number) {
                    objects.push(number);
                }
            }
        }
        let objects = wanted.into_iter().map(|wanted| Object {
            wanted,
            stage: ObjectStage::Waiting,
            asked: None,
            tried: BTreeSet::new(),
            is_waiting: false,
            asked_at: now,
            first_asked_at: None,
            is_told: false,
            lacks_attributes: false,
            agreement: agree::Agreement::default(),
            refusals: BTreeMap::new(),
            spoilt: BTreeSet::new(),
            is_wiser: false,
            fetched_bytes: 0,
            kept_bytes: 0,
            was_wrong: false,
            brings: None,
            content: None,
            awaits_content: false,
            ended_at: None,
        });
        let objects: Vec<Object> = objects.collect();
        let mut fetch = Self {
            client,
            streams: config.streams,
            is_strict: config.is_strict,
            links: (0..servers).map(|_| Link::new()).collect(),
            left: objects.len(),
            objects_max: config.objects_max,
            pulls_max,
            is_many: objects.len() > 1 && !config.streams,
            next: 0,
            active: BTreeSet::new(),
            objects,
            by_name,
            pieces: Vec::new(),
            early: None,
            ahead: VecDeque::new(),
            done_bytes: 0,
            control: VecDeque::new(),
            events: VecDeque::new(),
            shows: VecDeque::new(),
            show_at: now,
            first_at: Some(now + FIRST_WAIT),
            look_at: now + LOOK_EVERY,
        };
        // If a manifest gives the lengths, files are opened while the connections are set up.
        fetch.settle(now);
        Ok(fetch)
    }

    /// Whether every object is verified or has failed.
    pub const fn is_done(&self) -> bool {
        self.left == 0
    }
    /// The objects, in the order in which they were given.
    pub fn objects(&self) -> &[Object] {
        &self.objects
    }
    /// Bytes of all objects that are present, including bytes of earlier runs.
    pub const fn done_bytes(&self) -> u64 {
        self.done_bytes
    }
    /// Total bytes of all objects, once every length is known.
    pub fn total_bytes(&self) -> Option<u64> {
        self.objects.iter().map(Object::bytes).sum()
    }
    /// Packet counts over all pulls.
    pub fn counts(&self) -> PullCounts {
        self.client.counts()
    }
    /// Number of packets received for ended pulls.
    pub const fn strays(&self) -> u64 {
        self.client.strays()
    }
    /// Bytes of packets held for incomplete generations; at most [`ClientConfig::memory`].
    pub fn held_bytes(&self) -> u64 {
        self.client.held_bytes()
    }
    /// Pulls under way: the server, and the loss rate (with TFRC, the loss event rate).
    pub fn pulls(&self) -> impl Iterator<Item = (ServerId, f64)> + '_ {
        self.client.pulls().map(|(_, server, loss)| (server, loss))
    }

    /// Reports that a server's control channel is open at the client; the server may still drop it.
    /// `rtt` is the round-trip time, if known. `block_bytes` is the longest block that fits the
    /// path's known MTU.
    pub fn handle_connected(
        &mut self,
        now: Instant,
        server: ServerId,
        rtt: Option<Duration>,
        block_bytes: u32,
    ) {
        self.client.set_block_bytes(server, block_bytes);
        let link = &mut self.links[server.0 as usize];
        (link.is_connected, link.lost, link.rtt) = (true, None, rtt);
        self.show(now);
        self.show_at = now + SHOW_AGAIN;
        self.describe_waiting(now);
        self.each_active(|fetch, object| fetch.ask_version(now, object, server));
        self.client.handle_connected(now, server, rtt);
        self.settle(now);
    }

    /// Reports that a server is unreachable or lost, with a reason in one line.
    pub fn handle_lost(&mut self, now: Instant, server: ServerId, reason: &str) {
        let link = &mut self.links[server.0 as usize];
        (link.is_connected, link.lost) = (false, Some(reason.to_owned()));
        self.shows.retain(|shown| *shown != server);
        self.control.retain(|(to, _)| *to != server);
        self.client.handle_lost(now, server, reason);
        self.bringer_lost(now, server);
        self.each_active(|fetch, object| fetch.describer_lost(now, object, server));
        self.finish_compared(now);
        self.settle(now);
    }

    /// Handles a server's message. Ignores messages that only clients send.
    pub fn handle_control(&mut self, now: Instant, server: ServerId, message: Control) {
        self.client.handle_heard(now, server);
        if let Control::Described { .. } | Control::Short { .. } = message {
            self.links[server.0 as usize].answered_at = Some(now);
        }
        match message {
            Control::Described { object, found } => self.described(now, server, &object, &found),
            Control::Short { object, found, content } => self.short(now, server, &object, found, content),
            Control::Hashing { object, .. } => self.hashing(now, server, &object),
            other => self.client.handle_control(now, server, other),
        }
        self.settle(now);
    }

    /// Reports that a part of a server's control message has arrived. Without this report, a long
    /// message may take longer than the limit of silence.
    pub fn handle_heard(&mut self, now: Instant, server: ServerId) {
        self.client.handle_heard(now, server);
    }

    /// Handles a packet of a server.
    pub fn handle_packet(&mut self, now: Instant, server: ServerId, packet: Packet<S>) {
        self.links[server.0 as usize].is_heard = true;
        self.client.handle_packet(now, server, packet);
        self.settle(now);
    }

    /// Reports that an object's destination is open, and which byte ranges it lacks.
    pub fn handle_opened(&mut self, now: Instant, object: ObjectId, missing: &[Range<u64>]) {
        let object = object.0 as usize;
        if self.objects[object].stage == ObjectStage::Opening {
            self.opened(now, object, missing);
            self.settle(now);
        }
    }

    /// Reports that the first `bytes` bytes of the streamed object have been passed on.
    pub fn handle_flushed(&mut self, now: Instant, bytes: u64) {
        self.ask_ahead(now, bytes);
        self.settle(now);
    }

    /// Reports that an object's file has its final name.
    pub fn handle_finished(&mut self, now: Instant, object: ObjectId) {
        let it = &mut self.objects[object.0 as usize];
        if it.stage == ObjectStage::Checking {
            (it.stage, it.ended_at) = (ObjectStage::Verified, Some(now));
            self.ended(object.0 as usize);
            self.events.push_back(FetchEvent::Verified { object });
            self.settle(now);
        }
    }

    /// Reports that an object does not match its hash.
    pub fn handle_mismatch(&mut self, now: Instant, object: ObjectId) {
        let object = object.0 as usize;
        if self.objects[object].stage == ObjectStage::Checking {
            self.compare(now, object);
            self.settle(now);
        }
    }

    /// Reports that an object cannot be written, with a reason in one line. The driver may skip
    /// later events for this object.
    pub fn handle_unwritable(&mut self, now: Instant, object: ObjectId, reason: String) {
        self.fail(now, object.0 as usize, FetchFailure::NotWritten(reason));
        self.settle(now);
    }

    /// Time of the next call of [`Fetch::handle_timeout`]; `None` once the fetch is done.
    pub fn poll_timeout(&self) -> Option<Instant> {
        if self.is_done() {
            return None;
        }
        let show_at = self.links.iter().any(Link::is_silent).then_some(self.show_at);
        Instant::earliest([self.client.poll_timeout(), show_at, self.first_at, Some(self.look_at)])
    }

    /// Handles the passing of time up to `now`.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.client.handle_timeout(now);
        if self.show_at <= now {
            self.show(now);
        }
        if self.first_at.take_if(|at| *at <= now).is_some() {
            self.describe_waiting(now);
        }
        if self.look_at <= now {
            self.look_at = now + LOOK_EVERY;
            self.give_up_contents(now);
            self.ask_others(now);
            self.finish_compared(now);
        }
        self.settle(now);
    }

    /// The next feedback and its server.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<(ServerId, Feedback)> {
        self.client.poll_transmit(now)
    }
    /// The next server due for an empty sealed datagram, which shows the client's address to the
    /// server.
    pub fn poll_show(&mut self) -> Option<ServerId> {
        self.shows.pop_front()
    }
    /// The next control message and its server.
    pub fn poll_control(&mut self) -> Option<(ServerId, Control)> {
        self.control.pop_front().or_else(|| self.client.poll_control())
    }
    /// The next event for the driver.
    pub fn poll_event(&mut self) -> Option<FetchEvent<S>> {
        self.events.pop_front()
    }

    /// Queues the datagram that shows the client's address, for every server from which no packet
    /// has arrived.
    fn show(&mut self, now: Instant) {
        self.show_at = now + SHOW_EVERY;
        let silent = (0u32..).zip(&self.links).filter(|(_, link)| link.is_silent());
        self.shows = silent.map(|(server, _)| ServerId(server)).collect();
    }

    /// Handles the client's events and their consequences.
    fn settle(&mut self, now: Instant) {
        loop {
            while let Some(event) = self.client.poll_event() {
                self.on_client(now, event);
            }
            // An object that fails at once frees its turn for the next object.
            if !self.begin_more(now) {
                break;
            }
        }
    }

    fn on_client(&mut self, now: Instant, event: ClientEvent<S>) {
        let piece = event.piece();
        let Some((object, start)) = self.pieces[piece.0 as usize] else { return };
        if self.early.as_ref().is_some_and(|early| early.piece == piece) {
            return self.on_early(event);
        }
        match event {
            ClientEvent::Accepted { .. } => {}
            ClientEvent::OtherVersion { server, object_bytes, .. } => {
                self.note_other(object, server, Version::Length(object_bytes));
            }
            ClientEvent::Blocks { range, blocks, .. } => {
                self.write(object, start + range.start..start + range.end, blocks);
            }
            ClientEvent::Complete { .. } => {
                if let ObjectStage::Getting(left) = &mut self.objects[object].stage {
                    *left -= 1;
                    if *left == 0 {
                        self.finish(now, object);
                    }
                }
            }
            ClientEvent::Left { failure, .. } => {
                // A server that did not deliver a piece may not deliver the hash either, so another
                // server is asked. A server that is only slow may still deliver the hash.
                let it = &self.objects[object];
                let was_asked = it.asked_server() == Some(failure.server) && self.may_ask(it);
                let was_asked = was_asked && !self.client.is_slow(piece, failure.server);
                let lacks_hash = it.wanted.hash.is_none() && was_asked;
                self.events.push_back(FetchEvent::Left { object: ObjectId(object as u32), failure });
                if lacks_hash {
                    self.describe(now, object);
                }
            }
            ClientEvent::Failed { failures, .. } => {
                self.fail(now, object, FetchFailure::NotBrought(failures));
            }
        }
    }

    /// Passes received bytes of an object to the driver for writing.
    fn write(&mut self, object: usize, range: Range<u64>, blocks: Vec<S>) {
        let bytes = range.end - range.start;
        self.done_bytes += bytes;
        self.objects[object].fetched_bytes += bytes;
        self.events.push_back(FetchEvent::Write { object: ObjectId(object as u32), range, blocks });
    }

    fn fail(&mut self, now: Instant, number: usize, failure: FetchFailure) {
        self.drop_early(now, number);
        let it = &mut self.objects[number];
        if !it.is_under_way() {
            return;
        }
        (it.stage, it.ended_at) = (ObjectStage::Failed(failure.clone()), Some(now));
        self.ended(number);
        self.events.push_back(FetchEvent::Failed { object: ObjectId(number as u32), failure });
    }

    fn open(&mut self, number: usize, bytes: u64) {
        let it = &mut self.objects[number];
        it.wanted.bytes = Some(bytes);
        it.stage = ObjectStage::Opening;
        self.events.push_back(FetchEvent::Open { object: ObjectId(number as u32), bytes });
    }

    /// Requests the missing ranges of an opened object.
    fn opened(&mut self, now: Instant, object: usize, missing: &[Range<u64>]) {
        let lacks: u64 = missing.iter().map(|range| range.end - range.start).sum();
        let it = &mut self.objects[object];
        let bytes = it.wanted.bytes.unwrap_or(0);
        if it.was_wrong {
            self.done_bytes -= lacks;
        } else {
            it.kept_bytes = bytes - lacks;
            self.done_bytes += bytes - lacks;
        }
        if lacks == bytes && bytes > 0 && it.comes_whole() && !it.was_wrong {
            it.awaits_content = true;
            return self.take_content(now, object);
        }
        self.forget_content(object);
        self.pull(now, object, missing);
    }

    /// Pulls the missing ranges of an object from servers.
    fn pull(&mut self, now: Instant, object: usize, missing: &[Range<u64>]) {
        let (missing, early) = self.take_early(now, object, missing);
        let it = &mut self.objects[object];
        let bytes = it.wanted.bytes.unwrap_or(0);
        let mut pieces = Vec::new();
        let mut start = 0;
        for (number, part) in it.wanted.parts.iter().enumerate() {
            let end = start + part.bytes.unwrap_or(bytes);
            let is_good = |holder: &ServerId| !it.spoilt.contains(&(number, *holder));
            let holders: Vec<ServerId> = part.holders.iter().copied().filter(is_good).collect();
            let within = |range: &Range<u64>| {
                range.start.clamp(start, end) - start..range.end.clamp(start, end) - start
            };
            let ranges: Vec<Range<u64>> =
                missing.iter().map(within).filter(|range| !range.is_empty()).collect();
            let later = |ranges| {
                let object = part.name.clone();
                let piece = Piece { object, ranges: Some(ranges), holders: holders.clone() };
                DeferredPiece { start, bytes: end - start, piece }
            };
            if self.streams {
                let cut = |range: Range<u64>| {
                    let starts = range.clone().step_by(AHEAD_PIECE_BYTES as usize);
                    starts.map(move |at| at..range.end.min(at + AHEAD_PIECE_BYTES))
                };
                pieces.extend(ranges.into_iter().flat_map(cut).map(|range| later(vec![range])));
            } else if !ranges.is_empty() {
                pieces.push(later(ranges));
            }
            start = end;
        }
        it.stage = ObjectStage::Getting(pieces.len() + early);
        if pieces.is_empty() && early == 0 {
            return self.finish(now, object);
        }
        if self.streams {
            self.ahead = pieces.into();
            return self.ask_ahead(now, 0);
        }
        pieces.into_iter().for_each(|piece| self.ask(object, piece));
        self.client.begin(now);
    }

    fn ask(&mut self, object: usize, later: DeferredPiece) {
        let id = self.client.add(later.piece);
        self.client.expect_bytes(id, later.bytes);
        debug_assert_eq!(id.0 as usize, self.pieces.len(), "pieces are numbered in order");
        self.pieces.push(Some((object, later.start)));
    }

    /// Requests the next pieces of the streamed object, after `flushed` bytes have been passed on.
    fn ask_ahead(&mut self, now: Instant, flushed: u64) {
        let at = |next: &DeferredPiece| {
            next.start + next.piece.ranges.as_ref().map_or(0, |ranges| ranges[0].start)
        };
        while self.ahead.front().is_some_and(|next| at(next) < flushed + AHEAD_BYTES) {
            if let Some(next) = self.ahead.pop_front() {
                self.ask(0, next);
            }
        }
        self.client.begin(now);
    }

    /// Handles the arrival of an object's last missing byte.
    fn finish(&mut self, now: Instant, object: usize) {
        self.objects[object].stage = ObjectStage::Finishing;
        self.finish_if_known(now, object);
    }

    /// Requests the check and the naming of an object, once its description is complete.
    fn finish_if_known(&mut self, now: Instant, object: usize) {
        let it = &self.objects[object];
        let (ObjectStage::Finishing, Some(hash)) = (&it.stage, it.wanted.hash) else { return };
        // For an object of several parts, no server has attributes: only the manifest describes the
        // whole.
        let lacks = it.wanted.attributes.is_none() && !self.streams && it.wanted.parts.len() == 1;
        if lacks && !it.lacks_attributes {
            if it.asked.is_none() {
                self.describe(now, object);
            }
            let it = &self.objects[object];
            if it.asked.is_some() && it.wanted.attributes.is_none() {
                return;
            }
        }
        self.name_others(object);
        if self.awaits_versions(now, object) || self.fail_if_they_differ(now, object) {
            return;
        }
        let it = &mut self.objects[object];
        it.stage = ObjectStage::Checking;
        let attributes = it.wanted.attributes;
        self.events.push_back(FetchEvent::Finish { object: ObjectId(object as u32), hash, attributes });
    }

    /// Records that a server has a different version of an object than the version pulled.
    fn note_other(&mut self, object: usize, server: ServerId, version: Version) {
        if self.objects[object].agreement.others.insert(server, version.clone()).is_none() {
            let object = ObjectId(object as u32);
            self.events.push_back(FetchEvent::OtherVersion { object, server, version });
        }
    }
}
