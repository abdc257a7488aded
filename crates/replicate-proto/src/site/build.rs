//! Builds a site's machine from its program. A program from a controller is outside input, so it is
//! checked completely before any part of it runs.
//!
//! Leaves out: the machine at work ([`crate::site`]). Read [`SiteParts`] first.

use super::{Consumer, Group, IncomingFlow, Site, Source};
use crate::control::{IncomingSpec as IncomingProgram, OutgoingSpec, SinkProgram, SiteProgram};
use crate::pace::Pace;
use crate::plan::{CEILING_MIN, FlowId, Input, Mode};
use crate::receiver::{Sink, SinkGroup};
use crate::relay::VirtualLink;
use crate::sender::SourceGroup;
use crate::spool::Spool;
use crate::symbol::CheckedSymbol;
use crate::work::WorkMap;
use anabranch_pieces::RangeSet;
use anabranch_units::Instant;
use std::collections::{BTreeMap, VecDeque};

/// Maximum number of packets in a virtual buffer.
pub const BUFFER_PACKETS_MAX: u16 = 4_096;
/// Maximum number of connections of one flow.
const STRIPES_MAX: u64 = 64;
/// Memory of a packet in addition to its symbol: its entries in the machine's tables, and the
/// allocator's overhead.
const PACKET_BYTES: u64 = 160;

/// Why a program cannot be run.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ProgramError {
    /// A flow occurs twice, or a term names a flow that does not arrive.
    Flow(FlowId),
    /// A group number is not in the program.
    Group(u16),
    /// A number is out of its range.
    OutOfRange {
        /// Name of the number.
        what: &'static str,
        /// Value of the number.
        value: u64,
        /// Minimum and maximum.
        allowed: (u64, u64),
    },
    /// A group's work is not ascending, disjoint and inside the file.
    Work(u16),
    /// A decoder's matrices do not match the sink.
    Decode(u16),
    /// A group cannot fill the group that it names.
    Fill(u16),
    /// The plan requires sites to store a coded group's flows before they pass them on, although
    /// these flows wait for each other in any case.
    StoreAndForward(u16),
}

impl std::fmt::Display for ProgramError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Flow(flow) => write!(f, "flow {}: named twice, or used here and never arrives", flow.0),
            Self::Group(group) => write!(f, "group {group}: not part of the program"),
            Self::OutOfRange { what, value, allowed } => {
                write!(f, "{what} {value}: must be {} to {}", allowed.0, allowed.1)
            }
            Self::Work(group) => {
                write!(f, "group {group}: its ranges are not ascending, disjoint and inside the file")
            }
            Self::Decode(group) => write!(f, "group {group}: the decoder does not fit the flows that arrive"),
            Self::Fill(group) => {
                write!(
                    f,
                    "group {group}: must be routed, and fill one that does not, with the same work and sinks"
                )
            }
            Self::StoreAndForward(group) => {
                write!(f, "group {group}: coded, so its flows cannot be stored before they are passed on")
            }
        }
    }
}
impl std::error::Error for ProgramError {}

impl SiteProgram {
    /// Maximum bytes of packets that a site holds with this program.
    pub fn memory_bytes(&self) -> u64 {
        let packets = u64::from(self.buffer_packets);
        // A job's result occupies the vTx slot that was reserved for it.
        let links: u64 = self.outgoing.iter().map(|o| (o.terms.len() as u64 + 1) * packets).sum();
        // Packets that are on the way to the disk.
        let stored = if self.store_and_forward { self.incoming.len() as u64 * packets } else { 0 };
        let sinks: u64 = self
            .sinks
            .iter()
            .map(|s| {
                let group = self.groups.get(usize::from(s.group)).filter(|g| g.filled);
                let lookahead = s.decode.as_ref().map_or(0, |d| u64::from(d.lookahead));
                let lookahead = lookahead.max(group.map_or(0, |g| u64::from(g.flush)));
                let state = s.decode.as_ref().map_or(0, |d| u64::from(d.state));
                let streams = s.inputs.len() as u64;
                streams * (packets + lookahead) + 2 * state + streams * packets * 2
            })
            .sum();
        // One frame for each reader and writer, and the source's read-ahead of one generation per
        // group.
        let stripes: u64 = self.incoming.iter().map(|i| u64::from(i.stripes)).sum::<u64>()
            + self.outgoing.iter().map(|o| u64::from(o.hop.stripes)).sum::<u64>();
        let read = if self.source_path.is_some() {
            self.groups.iter().map(|g| 4 * u64::from(g.streams)).sum()
        } else {
            0
        };
        (links + stored + sinks + 2 * stripes + read) * (u64::from(self.symbol_bytes) + PACKET_BYTES)
    }
}

/// The parts of the machine during construction. Groups are added first, then incoming flows, then
/// the consumers of the flows.
struct SiteParts<'a, S> {
    program: &'a SiteProgram,
    groups: Vec<Group>,
    incoming: BTreeMap<FlowId, IncomingFlow>,
    sources: BTreeMap<u16, Source>,
    links: Vec<VirtualLink<S>>,
    link_of: BTreeMap<FlowId, usize>,
    spools: BTreeMap<FlowId, Spool<S>>,
    sinks: Vec<Sink<S>>,
}

fn between(what: &'static str, value: u64, low: u64, high: u64) -> Result<(), ProgramError> {
    if (low..=high).contains(&value) {
        Ok(())
    } else {
        Err(ProgramError::OutOfRange { what, value, allowed: (low, high) })
    }
}

impl<S: CheckedSymbol> Site<S> {
    /// The machine for `program`, idle.
    ///
    /// Errors: see [`ProgramError`].
    pub fn new(program: &SiteProgram) -> Result<Self, ProgramError> {
        between("symbol_bytes", program.symbol_bytes.into(), 1, crate::msg::SYMBOL_BYTES_MAX.into())?;
        between("buffer_packets", program.buffer_packets.into(), 1, BUFFER_PACKETS_MAX.into())?;
        // With this limit, sums of piece numbers and offsets never overflow.
        between("length", program.length, 0, i64::MAX as u64)?;
        let mut parts = SiteParts::new(program)?;
        program.incoming.iter().try_for_each(|incoming| parts.add_incoming(incoming))?;
        parts.add_sources();
        program.outgoing.iter().try_for_each(|outgoing| parts.add_link(outgoing))?;
        program.sinks.iter().try_for_each(|sink| parts.add_sink(sink))?;
        Ok(parts.into_site())
    }
}

impl<'a, S: CheckedSymbol> SiteParts<'a, S> {
    fn new(program: &'a SiteProgram) -> Result<Self, ProgramError> {
        let groups =
            (0..program.groups.len()).map(|number| group(program, number)).collect::<Result<_, _>>()?;
        Ok(Self {
            program,
            groups,
            incoming: BTreeMap::new(),
            sources: BTreeMap::new(),
            links: Vec::new(),
            link_of: BTreeMap::new(),
            spools: BTreeMap::new(),
            sinks: Vec::new(),
        })
    }

    fn group(&self, number: u16) -> Result<&Group, ProgramError> {
        self.groups.get(usize::from(number)).ok_or(ProgramError::Group(number))
    }

    /// Maximum number of connections of one flow. The data of a filling flow is confirmed in its
    /// order, so a filling flow has one connection.
    fn stripes_max(&self, group: u16) -> Result<u64, ProgramError> {
        Ok(if self.group(group)?.fills.is_some() { 1 } else { STRIPES_MAX })
    }

    fn capacity(&self) -> usize {
        usize::from(self.program.buffer_packets)
    }

    fn add_incoming(&mut self, i: &IncomingProgram) -> Result<(), ProgramError> {
        between("stripes", i.stripes.into(), 1, self.stripes_max(i.group)?)?;
        let state = IncomingFlow { group: i.group, consumers: Vec::new(), received: 0, total: None };
        match self.incoming.insert(i.flow, state) {
            None => Ok(()),
            Some(_) => Err(ProgramError::Flow(i.flow)),
        }
    }

    fn add_sources(&mut self) {
        if self.program.source_path.is_none() {
            return;
        }
        for (number, g) in self.groups.iter().enumerate() {
            let mut group = SourceGroup::new(g.mode, g.map.clone(), g.streams, g.flush, g.fills);
            let ceilings = &self.program.groups[number].ceilings;
            group.paces = ceilings.iter().map(|ceiling| ceiling.map(Pace::new)).collect();
            let consumers = vec![Vec::new(); g.streams];
            self.sources.insert(number as u16, Source { group, consumers });
        }
    }

    fn add_link(&mut self, o: &OutgoingSpec) -> Result<(), ProgramError> {
        between("stripes", o.hop.stripes.into(), 1, self.stripes_max(o.group)?)?;
        let link = self.links.len();
        let is_known = self.link_of.insert(o.flow, link).is_some() || self.incoming.contains_key(&o.flow);
        if is_known || o.terms.is_empty() {
            return Err(ProgramError::Flow(o.flow));
        }
        for (term, t) in o.terms.iter().enumerate() {
            self.add_term(o.group, t.input, (link, term))?;
        }
        let (capacity, symbol_bytes) = (self.capacity(), self.program.symbol_bytes as usize);
        let group = self.group(o.group)?;
        let fixed = (group.flush > 0 || o.terms.iter().any(|t| t.delayed)).then_some(symbol_bytes);
        let made = VirtualLink::new(o.flow, group.mode, o.terms.clone(), capacity, fixed);
        self.links.push(made.with_padding(o.padding_bytes));
        Ok(())
    }

    /// Connects the input of a term to the term's position in a link.
    fn add_term(&mut self, of: u16, input: Input, (link, term): (usize, usize)) -> Result<(), ProgramError> {
        let (streams, is_fill) = (self.group(of)?.streams, self.group(of)?.fills.is_some());
        let consumers = match input {
            // Filling data counts only once every destination has it, so it must not wait.
            Input::Flow(flow) if self.program.store_and_forward && !is_fill => {
                if self.incoming.get(&flow).is_none_or(|i| i.group != of) {
                    return Err(ProgramError::Flow(flow));
                }
                let capacity = self.capacity();
                let spool = self.spools.entry(flow).or_insert_with(|| Spool::new(flow, capacity));
                spool.add_reader(link, term);
                return Ok(());
            }
            Input::Flow(flow) => self.arriving(of, flow)?,
            Input::Stream(stream) => self
                .sources
                .get_mut(&of)
                .and_then(|source| source.consumers.get_mut(usize::from(stream)))
                .ok_or(ProgramError::OutOfRange {
                    what: "stream",
                    value: stream.into(),
                    allowed: (0, streams as u64 - 1),
                })?,
        };
        consumers.push(Consumer::Link { link, term });
        Ok(())
    }

    /// Consumers of an incoming flow of a group.
    fn arriving(&mut self, group: u16, flow: FlowId) -> Result<&mut Vec<Consumer>, ProgramError> {
        let incoming = self.incoming.get_mut(&flow).filter(|incoming| incoming.group == group);
        Ok(&mut incoming.ok_or(ProgramError::Flow(flow))?.consumers)
    }

    fn add_sink(&mut self, s: &SinkProgram) -> Result<(), ProgramError> {
        let group = self.group(s.group)?;
        if !fits(s, group) {
            return Err(ProgramError::Decode(s.group));
        }
        let told = SinkGroup {
            number: s.group,
            mode: group.mode,
            streams: group.streams,
            map: group.map.clone(),
            flush: group.flush as usize,
            filled: group.filled,
            fills: group.fills.is_some(),
        };
        let filled = group.fills.map(|f| self.program.sinks.iter().any(|other| other.group == f));
        let sink = self.sinks.len();
        for (input, flow) in s.inputs.iter().enumerate() {
            self.arriving(s.group, *flow)?.push(Consumer::Sink { sink, input });
        }
        let (capacity, symbol_bytes) = (self.capacity(), self.program.symbol_bytes as usize);
        self.sinks.push(Sink::new(told, s.inputs.len(), s.decode.clone(), capacity, symbol_bytes));
        if filled == Some(false) {
            return Err(ProgramError::Fill(s.group));
        }
        Ok(())
    }

    fn into_site(self) -> Site<S> {
        let sinks = &self.program.sinks;
        let is_filled = sinks.iter().any(|s| self.groups[usize::from(s.group)].fills.is_some());
        let work = || sinks.iter().flat_map(|s| &self.program.groups[usize::from(s.group)].work);
        let wanted_bytes = is_filled.then(|| RangeSet::from_ranges(work().copied()).total());
        let mut site = Site {
            symbol_bytes: self.program.symbol_bytes as usize,
            groups: self.groups,
            incoming: self.incoming,
            links: self.links,
            link_of: self.link_of,
            spools: self.spools,
            sinks: self.sinks,
            have: is_filled.then(RangeSet::default),
            verified_bytes: 0,
            wanted_bytes,
            sources: self.sources,
            events: VecDeque::new(),
            now: Instant::ZERO,
            stirred: true,
        };
        // An attempt without work for the source ends at once.
        site.advance_sources();
        site
    }
}

/// A checked group of a program.
fn group(program: &SiteProgram, number: usize) -> Result<Group, ProgramError> {
    let (g, id) = (&program.groups[number], number as u16);
    if program.store_and_forward && g.mode == Mode::Coded {
        return Err(ProgramError::StoreAndForward(id));
    }
    between("streams", g.streams.into(), 1, 255)?;
    if !g.ceilings.is_empty() {
        // The streams of a coded group advance in lock step, at one rate.
        let streams = if g.mode == Mode::Routed { u64::from(g.streams) } else { 0 };
        between("ceilings", g.ceilings.len() as u64, streams, streams)?;
    }
    for ceiling in g.ceilings.iter().flatten() {
        between("ceiling", ceiling.as_bps(), CEILING_MIN.as_bps(), u64::MAX)?;
    }
    let symbols = if g.mode == Mode::Coded { u64::from(g.streams) } else { 1 };
    let is_inside = g.work.last().is_none_or(|r| r.end <= program.length);
    let map = WorkMap::new(&g.work, symbols * u64::from(program.symbol_bytes)).filter(|_| is_inside);
    let map = map.ok_or(ProgramError::Work(id))?;
    let filled = g.fills.map(|f| program.groups.get(usize::from(f)).ok_or(ProgramError::Group(f)));
    if let Some(filled) = filled.transpose()?
        && (g.mode != Mode::Routed || g.filled || filled.fills.is_some() || filled.work != g.work)
    {
        return Err(ProgramError::Fill(id));
    }
    Ok(Group {
        mode: g.mode,
        streams: g.streams.into(),
        map,
        flush: g.flush.into(),
        fills: g.fills,
        filled: g.filled,
        packets: None,
    })
}

/// Whether a sink's inputs and its decoder, if it has one, match the shape of its group.
fn fits(s: &SinkProgram, group: &Group) -> bool {
    match (&s.decode, group.mode) {
        (None, Mode::Routed) => s.inputs.len() == group.streams,
        (Some(d), Mode::Coded) => {
            let (streams, state) = (group.streams, usize::from(d.state));
            let columns = streams * (usize::from(d.lookahead) + 1) + state;
            s.inputs.len() == streams
                && d.output.len() == streams
                && d.output.iter().all(|row| row.len() == columns)
                && d.next.len() == state
                && d.next.iter().all(|row| row.len() == state + streams)
                && u64::from(d.lookahead) <= group.flush
        }
        _ => false,
    }
}
