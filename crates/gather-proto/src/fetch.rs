//! A whole fetch: objects from the servers that hold them, from the first question to the verdict.
//!
//! So many objects are under way at once as the driver has room for; the others wait for their turn (`turns`). For each object one
//! holder is asked what it is (`describe`): its length, its attributes and its hash, unless a manifest says them; and for its beginning
//! at once (`early`). Then what lacks of it is pulled by the [`Client`], which knows which server brings what; what has come is
//! written, and checked against the hash. Where that is wrong all holders are asked for their hashes, and what is wrong is
//! pulled once more from those that have the right version (`compare`). Of several objects short ones come whole with their
//! description (`short`). An object fails once no holder can help it further,
//! or its place cannot be written; others go on.
//!
//! The driver carries messages and datagrams, and does with files what [`FetchEvent`] says. Where nothing else says the length and
//! the hash of an object, the holder that describes it is trusted: the first one that is named, if it answers soon.
//!
//! Leaves out: sockets, sealing, files, hashing, and connecting again to a server that was lost. Read [`Wanted`],
//! [`FetchEvent`] and [`Fetch`] first.

mod compare;
mod describe;
mod early;
mod event;
mod short;
#[cfg(test)]
mod tests;
mod turns;

pub use early::EARLY_BYTES;
pub use event::{FetchEvent, FetchFailure, ObjectId, Part, Version, Wanted};

use crate::client::{Client, ClientEvent, Piece, ServerId};
use crate::config::{ClientConfig, ConfigError};
use crate::msg::{Control, Feedback, Packet};
use crate::receiver::Counts;
use anabranch_codes::Symbol;
use anabranch_endpoint::Bytes;
use anabranch_units::{Duration, Instant};
use short::Content;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

use early::Early;

/// How far pieces of an object that is streamed are asked for ahead of what has been passed on: what comes early waits in
/// memory.
const AHEAD_BYTES: u64 = 64 << 20;
/// The longest piece of an object that is streamed, in bytes.
const AHEAD_PIECE_BYTES: u64 = 16 << 20;
/// How often a server that has sent nothing yet is shown where packets are taken.
const SHOW_EVERY: Duration = Duration::from_ms(50);
/// How soon after a connection it is shown that once more: the first time may have been lost, or have come before the server knew
/// the connection's keys.
const SHOW_AGAIN: Duration = Duration::from_ms(5);
/// How long the server that was named first is waited for to say what an object is, where another answers before.
const FIRST_WAIT: Duration = Duration::from_ms(500);
/// How often it is looked for answers that are late.
const LOOK_EVERY: Duration = Duration::from_ms(200);

/// How a fetch is set up.
#[derive(Clone, Debug, PartialEq)]
pub struct FetchConfig {
    /// Of its pulls. An answer that takes longer than [`ClientConfig::give_up`], and what hashing may take, is late.
    pub client: ClientConfig,
    /// The one object is passed on in order while it comes: it is asked for not far ahead of that, and no second try is
    /// possible.
    pub streams: bool,
    /// Objects that are under way at once, at least 1: the others wait for their turn. For each of them a driver may have
    /// files open, and keep a short content in memory.
    pub objects_max: usize,
}

/// What has become of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Stage {
    /// It has not had its turn.
    Waiting,
    /// Its length is asked for.
    Describing,
    /// What lacks is being found out.
    Opening,
    /// Its pieces are coming, so many.
    Getting(usize),
    /// All of it is written; its hash or its attributes are awaited.
    Finishing,
    /// It is checked, and given its name.
    Checking,
    /// It is not what its hash says: these servers are to say what they have of these parts.
    Comparing(BTreeSet<(usize, ServerId)>),
    Verified,
    Failed(FetchFailure),
}

/// An object on its way.
#[derive(Debug)]
pub struct Object {
    wanted: Wanted,
    stage: Stage,
    /// The place of the holder of the first part that was asked last what it is.
    asked: Option<usize>,
    /// The places of all that were asked so far: none is asked twice.
    tried: BTreeSet<usize>,
    /// The holder that was asked cannot say it, and another one is not connected yet: that one is asked once it is.
    is_waiting: bool,
    /// When, or when it was last heard that the answer takes longer.
    asked_at: Instant,
    first_asked_at: Option<Instant>,
    /// It was told that a server still reads it.
    is_told: bool,
    /// Nobody says who may read it, nor when it was changed.
    lacks_attributes: bool,
    /// What other servers have instead.
    others: BTreeMap<ServerId, Version>,
    /// Why servers say nothing of it.
    refusals: BTreeMap<ServerId, String>,
    /// Parts that are not asked for at a server, as it has another version of them.
    spoilt: BTreeSet<(usize, ServerId)>,
    /// Some of them were found by the last comparison.
    is_wiser: bool,
    fetched_bytes: u64,
    kept_bytes: u64,
    /// Whether its hash was wrong, and a further try is made.
    was_wrong: bool,
    /// Who was asked to say all of it at once, and when.
    brings: Option<(ServerId, Instant)>,
    /// All of it, as somebody said it, until its place is open.
    content: Option<Content>,
    /// Its place is open, and all of it is to come so.
    awaits_content: bool,
    ended_at: Option<Instant>,
}

impl Object {
    /// Its length in bytes, once that is known.
    pub const fn bytes(&self) -> Option<u64> {
        self.wanted.bytes
    }
    /// Its BLAKE3 hash, once that is known.
    pub const fn hash(&self) -> Option<[u8; 32]> {
        self.wanted.hash
    }
    /// Bytes that were not there before, those of a second try included.
    pub const fn fetched_bytes(&self) -> u64 {
        self.fetched_bytes
    }
    /// Bytes that had come before this fetch.
    pub const fn kept_bytes(&self) -> u64 {
        self.kept_bytes
    }
    /// Who is known to have another version of it, and which.
    pub const fn others(&self) -> &BTreeMap<ServerId, Version> {
        &self.others
    }
    /// When it was verified or failed.
    pub const fn ended_at(&self) -> Option<Instant> {
        self.ended_at
    }
    /// Whether it is there, with the right hash.
    pub const fn is_verified(&self) -> bool {
        matches!(self.stage, Stage::Verified)
    }
    /// Why it failed, if it has.
    pub const fn failure(&self) -> Option<&FetchFailure> {
        match &self.stage {
            Stage::Failed(failure) => Some(failure),
            _ => None,
        }
    }
    /// Whether something may become of it.
    const fn is_under_way(&self) -> bool {
        !matches!(self.stage, Stage::Verified | Stage::Failed(_))
    }
    /// Whether its length or its hash must still be said.
    const fn lacks_description(&self) -> bool {
        match self.stage {
            Stage::Describing => true,
            Stage::Opening | Stage::Getting(_) | Stage::Finishing => self.wanted.hash.is_none(),
            _ => false,
        }
    }
    /// Whether that is so, and nobody is asked for it.
    const fn waits_to_be_described(&self) -> bool {
        self.lacks_description() && (self.asked.is_none() || self.is_waiting)
    }
    /// Who was asked last what it is.
    fn asked_server(&self) -> Option<ServerId> {
        self.asked.map(|at| self.wanted.parts[0].holders[at])
    }
}

/// A server, as far as a fetch needs to know it.
#[derive(Debug)]
struct Link {
    is_connected: bool,
    lost: Option<String>,
    /// A packet has come from it.
    is_heard: bool,
    /// Objects whose content it was asked for, those first that wait longest: at most [`short::CONTENTS_MAX`].
    contents: BTreeSet<(Instant, usize)>,
    /// How many of them it may owe now.
    contents_max: usize,
    /// When that was lowered last, and until when it counts as slow.
    cut_at: Option<Instant>,
    slow_until: Option<Instant>,
    rtt: Option<Duration>,
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
        }
    }
    /// Whether it does not know yet where packets are taken.
    const fn is_silent(&self) -> bool {
        self.is_connected && !self.is_heard
    }
}

/// A piece that is not asked for yet, where its part begins in its object, and how many bytes its servers' object has.
#[derive(Debug)]
struct Later {
    start: u64,
    bytes: u64,
    piece: Piece,
}

/// Fetches objects from many servers. See the module's head.
#[derive(Debug)]
pub struct Fetch<S> {
    client: Client<S>,
    streams: bool,
    give_up: Duration,
    links: Vec<Link>,
    objects: Vec<Object>,
    /// Objects that are neither verified nor have failed.
    left: usize,
    objects_max: usize,
    pulls_max: usize,
    /// There are several objects: short ones may come whole.
    is_many: bool,
    /// The first object that has not had its turn, and those under way: at most `objects_max`.
    next: usize,
    active: BTreeSet<usize>,
    /// Which objects are made of what servers call so.
    by_name: BTreeMap<String, Vec<usize>>,
    /// Of each piece, its object and where its part begins there; none of those that were dropped.
    pieces: Vec<Option<(usize, u64)>>,
    /// The beginning of the one object, as long as its place is not open.
    early: Option<Early<S>>,
    /// Pieces that are not asked for yet, as they would come too early.
    ahead: VecDeque<Later>,
    done_bytes: u64,
    /// Questions of what objects are: at most one of each kind for each object and holder waits here.
    control: VecDeque<(ServerId, Control)>,
    events: VecDeque<FetchEvent<S>>,
    /// Servers that are to be shown where packets are taken: each once.
    shows: VecDeque<ServerId>,
    show_at: Instant,
    /// Until when the server that was named first is waited for.
    first_at: Option<Instant>,
    look_at: Instant,
}

impl<S: Symbol + From<Bytes>> Fetch<S> {
    /// A fetch of these objects from so many servers, none of which is connected yet.
    ///
    /// Errors: a setting out of its range.
    /// Panics: for an object without parts, and a holder that is none of the servers.
    pub fn new(
        now: Instant,
        config: FetchConfig,
        servers: u32,
        wanted: Vec<Wanted>,
    ) -> Result<Self, ConfigError> {
        if config.objects_max == 0 {
            let message = "0 objects at once: must be at least 1".to_owned();
            return Err(ConfigError { setting: "objects_max", message });
        }
        let (give_up, pulls_max) = (config.client.give_up, config.client.pulls_max);
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
            stage: Stage::Waiting,
            asked: None,
            tried: BTreeSet::new(),
            is_waiting: false,
            asked_at: now,
            first_asked_at: None,
            is_told: false,
            lacks_attributes: false,
            others: BTreeMap::new(),
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
            give_up,
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
        // Where bytes are known from a manifest, files are opened while servers are reached.
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
    /// Bytes of all objects that are there, those that had come before included.
    pub const fn done_bytes(&self) -> u64 {
        self.done_bytes
    }
    /// Bytes of all objects, once every length is known.
    pub fn total_bytes(&self) -> Option<u64> {
        self.objects.iter().map(Object::bytes).sum()
    }
    /// What became of packets, over all pulls.
    pub fn counts(&self) -> Counts {
        self.client.counts()
    }
    /// Packets that came for pulls that are over.
    pub const fn strays(&self) -> u64 {
        self.client.strays()
    }
    /// Bytes of packets that are kept as long as their generations are not complete; at most [`ClientConfig::memory`].
    pub fn held_bytes(&self) -> u64 {
        self.client.held_bytes()
    }
    /// Pulls under way: from which server, and what share of their packets begin a loss event.
    pub fn pulls(&self) -> impl Iterator<Item = (ServerId, f64)> + '_ {
        self.client.pulls().map(|(_, server, loss)| (server, loss))
    }

    /// A server's control channel stands, as far as this end sees: the server may yet drop it. `rtt` is what a message took to and fro, where that is known; `block_bytes` the
    /// longest block that the way to it is known to take.
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
        self.each_active(|fetch, object| fetch.ask_length(object, server));
        self.client.handle_connected(now, server, rtt);
        self.settle(now);
    }

    /// A server cannot be reached, or not any more: why, in one line.
    pub fn handle_lost(&mut self, now: Instant, server: ServerId, reason: &str) {
        let link = &mut self.links[server.0 as usize];
        (link.is_connected, link.lost) = (false, Some(reason.to_owned()));
        self.shows.retain(|shown| *shown != server);
        self.control.retain(|(to, _)| *to != server);
        self.client.handle_lost(now, server, reason);
        self.bringer_lost(now, server);
        self.each_active(|fetch, object| fetch.describer_lost(now, object, server));
        self.settle(now);
    }

    /// Takes in a message of a server. What only a client says is ignored.
    pub fn handle_control(&mut self, now: Instant, server: ServerId, message: Control) {
        match message {
            Control::Described { object, found } => self.described(now, server, &object, &found),
            Control::Short { object, found, content } => self.short(now, server, &object, found, content),
            Control::Hashing { object, .. } => self.hashing(now, server, &object),
            other => self.client.handle_control(now, server, other),
        }
        self.settle(now);
    }

    /// Takes in a packet of a server.
    pub fn handle_packet(&mut self, now: Instant, server: ServerId, packet: Packet<S>) {
        self.links[server.0 as usize].is_heard = true;
        self.client.handle_packet(now, server, packet);
        self.settle(now);
    }

    /// An object's place is open, and these ranges of it are lacking.
    pub fn handle_opened(&mut self, now: Instant, object: ObjectId, missing: &[Range<u64>]) {
        let object = object.0 as usize;
        if self.objects[object].stage == Stage::Opening {
            self.opened(now, object, missing);
            self.settle(now);
        }
    }

    /// So many bytes of the object that is streamed have been passed on, from its beginning.
    pub fn handle_flushed(&mut self, now: Instant, bytes: u64) {
        self.ask_ahead(now, bytes);
        self.settle(now);
    }

    /// An object has its name.
    pub fn handle_finished(&mut self, now: Instant, object: ObjectId) {
        let it = &mut self.objects[object.0 as usize];
        if it.stage == Stage::Checking {
            (it.stage, it.ended_at) = (Stage::Verified, Some(now));
            self.ended(object.0 as usize);
            self.events.push_back(FetchEvent::Verified { object });
            self.settle(now);
        }
    }

    /// An object is not what its hash says.
    pub fn handle_mismatch(&mut self, now: Instant, object: ObjectId) {
        let object = object.0 as usize;
        if self.objects[object].stage == Stage::Checking {
            self.compare(now, object);
            self.settle(now);
        }
    }

    /// An object cannot be written: why, in one line. Nothing comes of what was ordered of it since, which may be passed over.
    pub fn handle_unwritable(&mut self, now: Instant, object: ObjectId, reason: String) {
        self.fail(now, object.0 as usize, FetchFailure::NotWritten(reason));
        self.settle(now);
    }

    /// When to call [`Fetch::handle_timeout`] next; none once it is done.
    pub fn poll_timeout(&self) -> Option<Instant> {
        if self.is_done() {
            return None;
        }
        let show_at = self.links.iter().any(Link::is_silent).then_some(self.show_at);
        let all = [self.client.poll_timeout(), show_at, self.first_at, Some(self.look_at)];
        all.into_iter().flatten().min()
    }

    /// Tells that `now` has come.
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
        }
        self.settle(now);
    }

    /// The next feedback, and whom it is for.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<(ServerId, Feedback)> {
        self.client.poll_transmit(now)
    }
    /// The next server that is to be shown, by a sealed datagram with nothing in it, where packets are taken.
    pub fn poll_show(&mut self) -> Option<ServerId> {
        self.shows.pop_front()
    }
    /// The next message for a server.
    pub fn poll_control(&mut self) -> Option<(ServerId, Control)> {
        self.control.pop_front().or_else(|| self.client.poll_control())
    }
    /// What the driver is to know or to do.
    pub fn poll_event(&mut self) -> Option<FetchEvent<S>> {
        self.events.pop_front()
    }

    /// Has all servers shown where packets are taken of which none has come.
    fn show(&mut self, now: Instant) {
        self.show_at = now + SHOW_EVERY;
        let silent = (0u32..).zip(&self.links).filter(|(_, link)| link.is_silent());
        self.shows = silent.map(|(server, _)| ServerId(server)).collect();
    }

    /// Takes in what the client says, and what comes of that.
    fn settle(&mut self, now: Instant) {
        loop {
            while let Some(event) = self.client.poll_event() {
                self.on_client(now, event);
            }
            // What fails at once makes room for more.
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
                if let Stage::Getting(left) = &mut self.objects[object].stage {
                    *left -= 1;
                    if *left == 0 {
                        self.finish(now, object);
                    }
                }
            }
            ClientEvent::Left { failure, .. } => {
                // Nor will it say the hash, perhaps; the next one may. One that is only slow is there.
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

    /// Bytes of an object have come that are to be written.
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
        (it.stage, it.ended_at) = (Stage::Failed(failure.clone()), Some(now));
        self.ended(number);
        self.events.push_back(FetchEvent::Failed { object: ObjectId(number as u32), failure });
    }

    fn open(&mut self, number: usize, bytes: u64) {
        let it = &mut self.objects[number];
        it.wanted.bytes = Some(bytes);
        it.stage = Stage::Opening;
        self.events.push_back(FetchEvent::Open { object: ObjectId(number as u32), bytes });
    }

    /// Asks for what an object lacks.
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

    /// Asks servers for what an object lacks.
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
                Later { start, bytes: end - start, piece }
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
        it.stage = Stage::Getting(pieces.len() + early);
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

    fn ask(&mut self, object: usize, later: Later) {
        let id = self.client.add(later.piece);
        self.client.expect_bytes(id, later.bytes);
        debug_assert_eq!(id.0 as usize, self.pieces.len(), "pieces are numbered in order");
        self.pieces.push(Some((object, later.start)));
    }

    /// Asks for what comes next of the object that is streamed, of which `flushed` bytes have been passed on.
    fn ask_ahead(&mut self, now: Instant, flushed: u64) {
        let at = |next: &Later| next.start + next.piece.ranges.as_ref().map_or(0, |ranges| ranges[0].start);
        while self.ahead.front().is_some_and(|next| at(next) < flushed + AHEAD_BYTES) {
            if let Some(next) = self.ahead.pop_front() {
                self.ask(0, next);
            }
        }
        self.client.begin(now);
    }

    /// All of an object has come.
    fn finish(&mut self, now: Instant, object: usize) {
        self.objects[object].stage = Stage::Finishing;
        self.finish_if_known(now, object);
    }

    /// Has an object checked and named, once all is known of it.
    fn finish_if_known(&mut self, now: Instant, object: usize) {
        let it = &self.objects[object];
        let (Stage::Finishing, Some(hash)) = (&it.stage, it.wanted.hash) else { return };
        // Of an object of parts servers know nothing more.
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
        let it = &mut self.objects[object];
        it.stage = Stage::Checking;
        let attributes = it.wanted.attributes;
        self.events.push_back(FetchEvent::Finish { object: ObjectId(object as u32), hash, attributes });
    }

    /// A server has another version of an object than the one that is pulled.
    fn note_other(&mut self, object: usize, server: ServerId, version: Version) {
        if self.objects[object].others.insert(server, version.clone()).is_none() {
            let object = ObjectId(object as u32);
            self.events.push_back(FetchEvent::OtherVersion { object, server, version });
        }
    }
}
