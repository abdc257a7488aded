//! One site's part in one attempt: source, relay and destination in a single sans-IO machine.
//!
//! The driver passes packets in with [`Site::accept`] and takes frames out with [`Site::produce`].
//! In between it runs the [`Work`] of the machine on any number of cores, because work is pure and
//! may finish in any order. The driver passes bytes of the file in with [`Site::supply`] when
//! [`Site::wanted`] asks for them, and receives bytes to write as [`Write`]s. If a plan requires
//! sites to store all data before they pass it on, packets leave as [`Store`]s and return with
//! [`Site::fetched`]. At a source with streams of unequal rates, [`Site::poll_timeout`] gives the
//! next time at which [`Site::wanted`] may ask again.
//!
//! Contract: after any call that changes the machine, run [`Site::poll_work`],
//! [`Site::poll_write`], [`Site::poll_store`], [`Site::poll_fetch`] and [`Site::poll_event`] to
//! `None`, and check the flows with [`Site::can_produce`] again.
//!
//! Invariants: a packet is accepted only when every virtual link and sink that needs it has room,
//! so memory is at most [`SiteProgram::memory_bytes`](crate::control::SiteProgram::memory_bytes);
//! flows coded together advance together; the smallest unfinished generation can always advance.

mod build;
#[cfg(test)]
mod tests;

pub use build::{BUFFER_PACKETS_MAX, ProgramError};

use crate::plan::{FlowId, Mode};
pub use crate::receiver::Write;
use crate::receiver::{DecodeJob, DecodeResult, Sink};
use crate::relay::{CodeJob, VirtualLink};
pub use crate::relay::{Frame, Packet};
use crate::sender::SourceGroup;
use crate::spool::Spool;
pub use crate::spool::{Fetch, Store};
use crate::symbol::CheckedSymbol;
use crate::work::WorkMap;
use anabranch_pieces::{ByteRange, GenerationHash, RangeSet};
use anabranch_units::Instant;
use std::collections::{BTreeMap, VecDeque};

/// Maximum number of ranges that a filled site remembers. Flows that keep their order make only a
/// few ranges.
const HAVE_RANGES_MAX: usize = 65_536;

/// The state machine. See the module.
#[derive(Debug)]
pub struct Site<S> {
    symbol_bytes: usize,
    groups: Vec<Group>,
    incoming: BTreeMap<FlowId, IncomingFlow>,
    links: Vec<VirtualLink<S>>,
    link_of: BTreeMap<FlowId, usize>,
    /// Spools of the flows that are stored before they are passed on.
    spools: BTreeMap<FlowId, Spool<S>>,
    sinks: Vec<Sink<S>>,
    /// Ranges of this attempt in the file, if a filling group may bring the same data as another
    /// group.
    have: Option<RangeSet>,
    verified_bytes: u64,
    /// Number of expected bytes, if a filling group may bring them before the filled group ends.
    wanted_bytes: Option<u64>,
    sources: BTreeMap<u16, Source>,
    events: VecDeque<Event>,
    /// Time since the attempt began, as last reported by the driver.
    now: Instant,
    /// Whether links may have a job; read by `poll_work`.
    stirred: bool,
}

#[derive(Debug)]
struct Group {
    mode: Mode,
    streams: usize,
    map: WorkMap,
    flush: u64,
    fills: Option<u16>,
    filled: bool,
    /// Number of packets of each flow of a filled coded group, once one flow of the group has
    /// ended.
    packets: Option<u64>,
}

impl Group {
    /// Maximum number of packets of a flow: one for each generation, including zeros that flush the
    /// code, or one for each chunk.
    fn packets(&self) -> u64 {
        self.map.pieces() + if self.mode == Mode::Coded { self.flush } else { 0 }
    }
}

/// Consumer of a flow or stream: virtual link and term, or sink and input.
#[derive(Copy, Clone, Debug)]
enum Consumer {
    Link { link: usize, term: usize },
    Sink { sink: usize, input: usize },
}

#[derive(Debug)]
struct IncomingFlow {
    group: u16,
    consumers: Vec<Consumer>,
    received: u64,
    total: Option<u64>,
}

#[derive(Debug)]
struct Source {
    group: SourceGroup,
    /// Consumers of each stream, by stream.
    consumers: Vec<Vec<Consumer>>,
}

/// An event for the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A sink decoded a generation (or received a chunk) that differs from the source's data. The
    /// sink did not write it.
    Corrupt {
        /// The sink.
        sink: usize,
        /// The group.
        group: u16,
        /// The generation or chunk.
        generation: u64,
    },
    /// A sink has processed all data that will arrive.
    SinkDone {
        /// The sink.
        sink: usize,
    },
    /// The source has supplied all of a group's work.
    SourceDone {
        /// The group.
        group: u16,
    },
}

/// Why a packet from a peer was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AcceptError<S> {
    /// The buffers are full: try again when [`Site::has_room`] permits it.
    Full(Packet<S>),
    /// The flow does not arrive at this site.
    UnknownFlow(FlowId),
    /// The generation had already arrived, or is beyond the work.
    Generation {
        /// Number in the packet.
        generation: u64,
        /// Number of generations.
        limit: u64,
    },
    /// The symbol has the wrong length for its generation.
    Length {
        /// Correct length.
        want: usize,
        /// Length of the symbol.
        got: usize,
    },
    /// The flow had already ended, or has fewer packets than announced.
    AfterEnd,
    /// The peer has confirmed packets that were not sent to it, or has reduced its confirmation.
    Confirmed {
        /// Number of confirmed packets.
        packets: u64,
    },
}

impl<S> std::fmt::Display for AcceptError<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Full(_) => write!(f, "no room yet"),
            Self::UnknownFlow(flow) => write!(f, "flow {} does not arrive here", flow.0),
            Self::Generation { generation, limit } => {
                write!(f, "generation {generation}: seen before, or not below {limit}")
            }
            Self::Length { want, got } => write!(f, "symbol of {got} bytes where {want} belong"),
            Self::AfterEnd => write!(f, "packet count differs from that in the end of the flow"),
            Self::Confirmed { packets } => {
                write!(f, "{packets} packets confirmed: more than were sent, or fewer than before")
            }
        }
    }
}

/// Pure work: run it anywhere, and pass the result to [`Site::complete`].
#[derive(Debug)]
pub enum Work<S> {
    /// Code a packet.
    Code(CodeJob<S>),
    /// Decode and check a generation, or check a chunk.
    Decode(DecodeJob<S>),
}

/// Finished [`Work`].
#[derive(Debug)]
pub enum WorkResult<S> {
    /// A coded packet.
    Code {
        /// Index of the virtual link.
        link: usize,
        /// Number of the packet in its flow.
        number: u64,
        /// The packet.
        packet: Packet<S>,
    },
    /// A decoded generation.
    Decode(DecodeResult<S>),
}

impl<S: CheckedSymbol> Work<S> {
    /// Does the work.
    pub fn run(self) -> WorkResult<S> {
        match self {
            Self::Code(job) => {
                let (link, number, packet) = job.run();
                WorkResult::Code { link, number, packet }
            }
            Self::Decode(job) => WorkResult::Decode(job.run()),
        }
    }
}

impl<S: CheckedSymbol> Site<S> {
    fn buffer(&self, consumer: Consumer) -> &crate::relay::ReceiveBuffer<S> {
        match consumer {
            Consumer::Link { link, term } => self.links[link].receive(term),
            Consumer::Sink { sink, input } => &self.sinks[sink].inputs[input],
        }
    }

    /// Index of a packet in a buffer: the generation if flows are coded together, otherwise the
    /// order of arrival.
    fn index(mode: Mode, generation: u64, arrived: u64) -> u64 {
        if mode == Mode::Coded { generation } else { arrived }
    }

    /// Whether there is room for a packet of `flow` with this generation; otherwise the packet must
    /// wait. A packet with an invalid generation need not wait, because [`Site::accept`] refuses
    /// it.
    pub fn has_room(&self, flow: FlowId, generation: u64) -> bool {
        self.incoming.get(&flow).is_some_and(|i| {
            let group = &self.groups[usize::from(i.group)];
            let index = Self::index(group.mode, generation, i.received);
            generation >= group.packets() || self.takes(flow, i, index)
        })
    }

    fn takes(&self, flow: FlowId, incoming: &IncomingFlow, index: u64) -> bool {
        incoming.consumers.iter().all(|c| self.buffer(*c).has_room(index))
            && self.spools.get(&flow).is_none_or(Spool::has_room)
    }

    fn symbol_length(&self, group: &Group, generation: u64) -> usize {
        let (Some(piece), 0) = (group.map.piece(generation), group.flush) else { return self.symbol_bytes };
        let symbols = if group.mode == Mode::Coded { group.streams as u64 } else { 1 };
        piece.len().div_ceil(symbols) as usize
    }

    /// Accepts a packet of `flow`.
    ///
    /// Errors: [`AcceptError::Full`] returns the packet. Any other error means that the peer broke
    /// the protocol.
    pub fn accept(&mut self, flow: FlowId, packet: Packet<S>) -> Result<(), AcceptError<S>> {
        let Some(incoming) = self.incoming.get(&flow) else { return Err(AcceptError::UnknownFlow(flow)) };
        let group = &self.groups[usize::from(incoming.group)];
        let limit = group.packets();
        if packet.generation >= limit {
            return Err(AcceptError::Generation { generation: packet.generation, limit });
        }
        let want = self.symbol_length(group, packet.generation);
        if packet.symbol.len() != want {
            return Err(AcceptError::Length { want, got: packet.symbol.len() });
        }
        // A routed flow with an unknown end carries each chunk at most once.
        if incoming.received >= incoming.total.unwrap_or(limit) {
            return Err(AcceptError::AfterEnd);
        }
        let index = Self::index(group.mode, packet.generation, incoming.received);
        if incoming.consumers.iter().any(|c| self.buffer(*c).holds(index)) {
            return Err(AcceptError::Generation { generation: packet.generation, limit });
        }
        if !self.takes(flow, incoming, index) {
            return Err(AcceptError::Full(packet));
        }
        let incoming = self.incoming.get_mut(&flow).expect("looked up above");
        incoming.received += 1;
        let consumers = std::mem::take(&mut incoming.consumers);
        if let Some(spool) = self.spools.get_mut(&flow) {
            spool.insert(packet.clone());
        }
        self.deliver(&consumers, index, packet);
        let incoming = self.incoming.get_mut(&flow).expect("looked up above");
        incoming.consumers = consumers;
        if incoming.total == Some(incoming.received) {
            self.check_sinks();
        }
        Ok(())
    }

    fn deliver(&mut self, consumers: &[Consumer], index: u64, packet: Packet<S>) {
        for consumer in consumers {
            let buffer = match *consumer {
                Consumer::Link { link, term } => self.links[link].receive_mut(term),
                Consumer::Sink { sink, input } => &mut self.sinks[sink].inputs[input],
            };
            buffer.insert(index, packet.clone());
        }
        self.stirred = true;
    }

    /// Accepts the end of `flow`, which according to its sender had `packets` packets.
    ///
    /// Errors: an unknown flow, or a count that contradicts the packets so far or an earlier end.
    pub fn accept_end(&mut self, flow: FlowId, packets: u64) -> Result<(), AcceptError<S>> {
        let Some(incoming) = self.incoming.get_mut(&flow) else { return Err(AcceptError::UnknownFlow(flow)) };
        if incoming.total.is_some_and(|t| t != packets) || incoming.received > packets {
            return Err(AcceptError::AfterEnd);
        }
        let group = &mut self.groups[usize::from(incoming.group)];
        if group.mode == Mode::Coded {
            let all = group.map.pieces() + group.flush;
            // Flows that are coded together end together, all with the same count.
            let (least, most) = match group.packets {
                Some(packets) => (packets, packets),
                None if group.filled => (group.flush, all),
                None => (all, all),
            };
            if !(least..=most).contains(&packets) {
                return Err(AcceptError::AfterEnd);
            }
            group.packets = Some(packets);
        }
        incoming.total = Some(packets);
        let consumers = incoming.consumers.clone();
        self.set_totals(&consumers, packets);
        for link in self.spools.get_mut(&flow).into_iter().flat_map(|s| s.set_total(packets)) {
            self.links[link].set_total(packets);
        }
        self.check_sinks();
        Ok(())
    }

    fn set_totals(&mut self, consumers: &[Consumer], packets: u64) {
        for consumer in consumers {
            match *consumer {
                Consumer::Link { link, .. } => self.links[link].set_total(packets),
                Consumer::Sink { sink, .. } => {
                    let group = &self.groups[usize::from(self.sinks[sink].group)];
                    if group.mode == Mode::Coded {
                        self.sinks[sink].set_end(packets - group.flush);
                    }
                }
            }
        }
    }

    /// Whether all packets of `flow` have arrived.
    pub fn has_ended(&self, flow: FlowId) -> bool {
        self.incoming.get(&flow).is_some_and(|i| i.total == Some(i.received))
    }

    /// Checks whether sinks are done: the file is complete, or the sink's flows have ended. A
    /// filling sink is done when the filled sinks are done, because they would bring all of its
    /// data too.
    fn check_sinks(&mut self) {
        let whole = self.wanted_bytes == Some(self.verified_bytes);
        let fills = |s: &Sink<S>| self.groups[usize::from(s.group)].fills.is_some();
        for (number, sink) in self.sinks.iter_mut().enumerate().filter(|(_, s)| !fills(s)) {
            let ended = self
                .incoming
                .values()
                .filter(|i| {
                    i.consumers.iter().any(|c| matches!(c, Consumer::Sink { sink, .. } if *sink == number))
                })
                .all(|i| i.total == Some(i.received));
            if sink.poll_done(whole || sink.is_drained(ended)) {
                self.events.push_back(Event::SinkDone { sink: number });
            }
        }
        let all = self.sinks.iter().filter(|s| !fills(s)).all(Sink::is_done);
        for (number, sink) in self.sinks.iter_mut().enumerate().filter(|(_, s)| fills(s)) {
            if sink.poll_done(all) {
                self.events.push_back(Event::SinkDone { sink: number });
            }
        }
    }

    /// Number of packets of `flow`, from the first on, that have reached every destination
    /// downstream of this site. Only for filling flows.
    pub fn confirmed(&self, flow: FlowId) -> u64 {
        let consumers = self.incoming.get(&flow).map_or(&[][..], |i| &i.consumers);
        self.least_confirmed(consumers)
    }

    fn least_confirmed(&self, consumers: &[Consumer]) -> u64 {
        let confirmed = consumers.iter().map(|c| match *c {
            Consumer::Link { link, .. } => self.links[link].confirmed(),
            Consumer::Sink { sink, input } => self.sinks[sink].confirmed(input),
        });
        confirmed.min().unwrap_or(0)
    }

    /// Accepts the next site's [`confirmed`](Self::confirmed) count of `flow`, an outgoing flow.
    ///
    /// Errors: an unknown flow, or more packets than were sent.
    pub fn confirm(&mut self, flow: FlowId, packets: u64) -> Result<(), AcceptError<S>> {
        let Some(&link) = self.link_of.get(&flow) else { return Err(AcceptError::UnknownFlow(flow)) };
        if !self.links[link].confirm(packets) {
            return Err(AcceptError::Confirmed { packets });
        }
        self.stirred = true;
        let is_link = |c: &Consumer| matches!(c, Consumer::Link { link: l, .. } if *l == link);
        let fed = self.sources.iter().find_map(|(group, source)| {
            let stream = source.consumers.iter().position(|consumers| consumers.iter().any(is_link))?;
            Some((*group, stream))
        });
        if let Some((group, stream)) = fed {
            let packets = self.least_confirmed(&self.sources[&group].consumers[stream]);
            self.sources.get_mut(&group).expect("found above").group.confirm(stream, packets);
        }
        Ok(())
    }

    /// Sets the time, counted from [`Instant::ZERO`] at the beginning of the attempt. Only sources
    /// with rate-limited streams need the time.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.now = self.now.max(now);
    }

    /// Next time at which a rate-limited stream may continue; `None` if no stream waits for a time.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let sources = self.sources.iter().filter(|(number, _)| self.has_work(**number));
        let dues = sources.flat_map(|(_, s)| (0..s.consumers.len()).map(|stream| s.group.due(stream)));
        dues.filter(|due| *due > self.now).min()
    }

    /// The next data that the source should supply for `group`: bytes of the file, while there is
    /// room for them.
    pub fn wanted(&self, group: u16) -> Option<ByteRange> {
        let (number, _) = self.choice(group)?;
        self.sources[&group].group.map.piece(number)
    }

    /// The next item to be supplied: the generation, or the chunk and its stream.
    fn choice(&self, group: u16) -> Option<(u64, usize)> {
        let source = self.sources.get(&group).filter(|_| self.has_work(group))?;
        if source.group.mode == Mode::Coded {
            return self.streams_have_room(source, source.group.next).then_some((source.group.next, 0));
        }
        if let Some(filling) = &source.group.filling
            && self.have_met(filling.group, &source.group)
        {
            let stream = self.roomiest_stream(source, |s| source.group.again(s).is_some())?;
            return Some((source.group.again(stream)?, stream));
        }
        let stream = self.roomiest_stream(source, |_| true)?;
        Some((source.group.upcoming()?, stream))
    }

    /// Whether every byte of `filled`'s work that `fill` could send has been sent by one of the two
    /// groups.
    fn have_met(&self, filled: u16, fill: &SourceGroup) -> bool {
        match (self.sources[&filled].group.upcoming_byte(), fill.upcoming_byte()) {
            (Some(front), Some(back)) => front > back,
            _ => true,
        }
    }

    /// Whether the source has work left in `group`. Once false, the result stays false.
    ///
    /// A filled group continues to the point after which all destinations have confirmed the data.
    /// A group that fills it continues to the point where the two groups meet, and then until
    /// all of its sent data is confirmed.
    pub fn has_work(&self, group: u16) -> bool {
        let source = self.sources.get(&group).map(|s| &s.group);
        let Some(source @ SourceGroup { end: None, map, next, filling, .. }) = source else { return false };
        let Some(filling) = filling else {
            if !self.groups[usize::from(group)].filled {
                return *next < map.pieces();
            }
            let fill = self.sources.values().map(|s| &s.group);
            let fill = fill.filter(|s| s.filling.as_ref().is_some_and(|f| f.group == group));
            let needed = fill.map(SourceGroup::confirmed_from).max().unwrap_or(u64::MAX);
            return *next < map.begun_before(needed);
        };
        let is_over = self.sources[&filling.group].group.end.is_some();
        !is_over && (source.has_open() || !self.have_met(filling.group, source))
    }

    /// All pieces of `group`'s work. The source sends them in order, except for a group that fills
    /// another.
    pub fn work_map(&self, group: u16) -> Option<&WorkMap> {
        self.groups.get(usize::from(group)).map(|g| &g.map)
    }

    fn streams_have_room(&self, source: &Source, generation: u64) -> bool {
        source.consumers.iter().flatten().all(|c| self.buffer(*c).has_room(generation))
    }

    /// Among the streams for which `may` is true, the routed stream with the most free slots on its
    /// fullest branch. Of equal streams, the one that has carried the fewest packets.
    fn roomiest_stream(&self, source: &Source, may: impl Fn(usize) -> bool) -> Option<usize> {
        (0..source.consumers.len())
            .filter(|s| {
                let sent = source.group.sent[*s];
                !source.consumers[*s].is_empty()
                    && source.group.may_send(*s, self.now)
                    && may(*s)
                    && source.consumers[*s].iter().all(|c| self.buffer(*c).has_room(sent))
            })
            .max_by_key(|s| {
                let free = source.consumers[*s].iter().map(|c| match *c {
                    Consumer::Link { link, term } => {
                        self.links[link].receive(term).free() + self.links[link].transmit_free()
                    }
                    Consumer::Sink { sink, input } => self.sinks[sink].inputs[input].free(),
                });
                (free.min(), std::cmp::Reverse(source.group.sent[*s]), std::cmp::Reverse(*s))
            })
    }

    /// Supplies the piece that [`Site::wanted`] asked for. `symbols` are its equally long parts
    /// (one for a routed group), the last one padded with zeros. `hash` is the hash of the piece's
    /// plain bytes.
    ///
    /// Panics: if nothing is wanted, or the number or lengths of the symbols are wrong. Both are
    /// mistakes of the driver.
    pub fn supply(&mut self, group: u16, symbols: Vec<S>, hash: GenerationHash) {
        let (generation, stream) = self.choice(group).expect("the driver supplies only what is wanted");
        let source = &self.sources[&group];
        let want = self.symbol_length(&self.groups[usize::from(group)], generation);
        assert!(symbols.iter().all(|s| s.len() == want), "symbols of a generation have {want} bytes");
        match source.group.mode {
            Mode::Coded => {
                assert_eq!(symbols.len(), source.consumers.len(), "one symbol for each stream");
                self.supply_generation(group, symbols, hash);
            }
            Mode::Routed => {
                let [symbol] = <[S; 1]>::try_from(symbols).ok().expect("a chunk is one symbol");
                let source = self.sources.get_mut(&group).expect("looked up above");
                let index = source.group.sent[stream];
                source.group.send(self.now, stream, generation);
                let consumers = source.consumers[stream].clone();
                self.deliver(&consumers, index, Packet { generation, hash, symbol });
            }
        }
        self.advance_sources();
    }

    fn supply_generation(&mut self, group: u16, symbols: Vec<S>, hash: GenerationHash) {
        let source = self.sources.get_mut(&group).expect("callers looked it up");
        let generation = source.group.next;
        source.group.next += 1;
        let consumers = std::mem::take(&mut source.consumers);
        for (stream, symbol) in symbols.into_iter().enumerate() {
            self.deliver(&consumers[stream], generation, Packet { generation, hash, symbol });
        }
        self.sources.get_mut(&group).expect("callers looked it up").consumers = consumers;
    }

    /// Appends the zeros that flush a code, and passes the links the lengths of their flows.
    fn advance_sources(&mut self) {
        // Filled groups are processed before the groups that fill them, which end together with
        // them.
        let fills = |n: &u16| self.sources[n].group.filling.is_some();
        let (fill, bulk): (Vec<u16>, Vec<u16>) = self.sources.keys().copied().partition(fills);
        for number in bulk.into_iter().chain(fill) {
            let group = &self.sources[&number].group;
            let over = match &group.filling {
                None => !self.has_work(number),
                Some(filling) => self.sources[&filling.group].group.ended,
            };
            let group = &mut self.sources.get_mut(&number).expect("a key of the map").group;
            if over && group.end.is_none() {
                group.end = Some(group.next);
            }
            loop {
                let source = &self.sources[&number];
                if !source.group.must_flush() || !self.streams_have_room(source, source.group.next) {
                    break;
                }
                let zeros = (0..source.consumers.len()).map(|_| S::combine(&[], self.symbol_bytes)).collect();
                self.supply_generation(number, zeros, GenerationHash::default());
            }
            let source = self.sources.get_mut(&number).expect("a key of the map");
            if source.group.end.is_none() || source.group.must_flush() || source.group.ended {
                continue;
            }
            source.group.ended = true;
            for stream in 0..source.consumers.len() {
                let source = &self.sources[&number];
                let packets = match source.group.mode {
                    Mode::Coded => source.group.next,
                    Mode::Routed => source.group.sent[stream],
                };
                let consumers = source.consumers[stream].clone();
                self.set_totals(&consumers, packets);
            }
            self.events.push_back(Event::SourceDone { group: number });
        }
    }

    /// The next piece of work, or `None`.
    pub fn poll_work(&mut self) -> Option<Work<S>> {
        if !self.stirred {
            return None;
        }
        for (number, link) in self.links.iter_mut().enumerate() {
            if let Some(job) = link.take_job(number) {
                return Some(Work::Code(job));
            }
        }
        for (number, sink) in self.sinks.iter_mut().enumerate() {
            if let Some(job) = sink.take_job(number) {
                return Some(Work::Decode(job));
            }
        }
        self.stirred = false;
        if !self.sources.is_empty() {
            self.advance_sources();
        }
        self.stirred.then(|| self.poll_work()).flatten()
    }

    /// Accepts the result of a piece of work.
    pub fn complete(&mut self, done: WorkResult<S>) {
        self.stirred = true;
        match done {
            WorkResult::Code { link, number, packet } => self.links[link].complete(number, packet),
            WorkResult::Decode(decoded) => {
                let (sink, generation) = (decoded.sink, decoded.generation);
                if !self.sinks[sink].complete(decoded, self.have.as_ref()) {
                    let group = self.sinks[sink].group;
                    self.events.push_back(Event::Corrupt { sink, group, generation });
                }
                self.check_sinks();
            }
        }
    }

    /// The next bytes to be written, or `None`.
    pub fn poll_write(&mut self) -> Option<Write<S>> {
        self.sinks.iter_mut().find_map(Sink::poll_write)
    }

    /// Reports that a [`Write`] is in the file.
    pub fn handle_written(&mut self, sink: usize, range: ByteRange) {
        self.stirred = true;
        self.sinks[sink].settle(range);
        self.verified_bytes += match &mut self.have {
            None => range.len(),
            Some(have) if have.ranges().len() < HAVE_RANGES_MAX || have.touches(range) => have.insert(range),
            // Beyond that number of ranges, the ends of the flows show when all data has arrived.
            Some(_) => 0,
        };
        self.check_sinks();
    }

    /// The next packet to be stored until its flow has ended, or `None`. The driver chooses where
    /// to store it, but not in memory: a flow may carry the whole file.
    pub fn poll_store(&mut self) -> Option<Store<S>> {
        self.spools.values_mut().find_map(Spool::poll_store)
    }

    /// Reports that a [`Store`] of `flow` is done.
    pub fn handle_stored(&mut self, flow: FlowId) {
        self.stirred = true;
        self.spools.get_mut(&flow).expect("the driver stores what it was given").handle_stored();
    }

    /// The next packet to be fetched from the store, or `None`.
    pub fn poll_fetch(&mut self) -> Option<Fetch> {
        let links = &self.links;
        let has_room = |link: usize, term: usize, index| links[link].receive(term).has_room(index);
        self.spools.values_mut().find_map(|s| s.poll_fetch(has_room))
    }

    /// Supplies a packet that [`Site::poll_fetch`] asked for.
    pub fn fetched(&mut self, fetch: Fetch, packet: Packet<S>) {
        self.stirred = true;
        self.links[fetch.link].receive_mut(fetch.term).insert(fetch.index, packet);
    }

    /// Whether [`Site::produce`] would return a frame of `flow`.
    pub fn can_produce(&self, flow: FlowId) -> bool {
        self.link_of.get(&flow).is_some_and(|l| self.links[*l].can_produce())
    }

    /// The next frame of `flow`.
    pub fn produce(&mut self, flow: FlowId) -> Option<Frame<S>> {
        let frame = self.links[*self.link_of.get(&flow)?].produce();
        self.stirred |= frame.is_some();
        frame
    }

    /// Length in bytes of the padding that the driver should send on `flow` now, if any. Only flows
    /// with [`OutgoingSpec::padding_bytes`](crate::control::OutgoingSpec::padding_bytes) that have
    /// no data ready are padded. `now` is the time since the attempt began.
    pub fn poll_padding(&mut self, now: Instant, flow: FlowId) -> Option<u32> {
        let link = *self.link_of.get(&flow)?;
        let length = self.links[link].poll_padding(now, self.symbol_bytes as u64)?;
        Some(u32::try_from(length).expect("a symbol has at most SYMBOL_BYTES_MAX bytes"))
    }

    /// The next event, or `None`.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Bytes of the file that this site has verified and written in this attempt.
    pub fn verified_bytes(&self) -> u64 {
        self.verified_bytes
    }
    /// Whether a sink waits for writes to the file.
    pub fn is_sink_stalled(&self) -> bool {
        self.sinks.iter().any(Sink::is_stalled)
    }
    /// Whether every sink has reported that it is done.
    pub fn are_sinks_done(&self) -> bool {
        self.sinks.iter().all(Sink::is_done)
    }
    /// Whether the ends of all outgoing flows were taken.
    pub fn is_sent(&self) -> bool {
        self.links.iter().all(VirtualLink::is_done)
    }
    /// Bytes of symbols in all virtual buffers now; shared symbols count once for each buffer.
    pub fn live_bytes(&self) -> u64 {
        let links = self.links.iter().map(VirtualLink::live_bytes).sum::<usize>();
        let sinks = self.sinks.iter().map(Sink::live_bytes).sum::<usize>();
        let spools = self.spools.values().map(Spool::live_bytes).sum::<usize>();
        (links + sinks + spools) as u64
    }
    /// Outgoing flows, in the order of the program.
    pub fn outgoing(&self) -> impl Iterator<Item = FlowId> + '_ {
        self.links.iter().map(|l| l.flow)
    }
}
