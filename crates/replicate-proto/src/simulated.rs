//! `replicate` in the simulator: a scenario's workload in which the state machines of the relays
//! move files over simulated TCP.
//!
//! The same [`Site`] machines run the same programs as in the daemons. In place of `runner`'s
//! sockets, each hop is a stream of the simulator, pinned to its link. A stream has a send buffer
//! that bounds unsent data, and a receive buffer that fills while a machine has no room. Symbols
//! are lengths. Frames have their size on the wire, including TLS records.
//!
//! Idealised in comparison with the daemons: coding, hashing and disks take no time. Controllers,
//! greetings and heartbeats are left out, so a transfer begins with the TCP handshakes of its hops.
//! Read [`Replicate`] and [`Replication`] first.

mod settings;

use crate::control::{Attempt, HopSettings, OutgoingSpec, Priority, Run, SiteProgram, Submitter, TransferId};
use crate::daemon::CONFIRM_EVERY;
use crate::msg::FrameHeader;
use crate::pace::{Pace, cost};
use crate::plan::{FlowId, Mode, Plan, share_flows_under};
use crate::program::{AttemptFacts, programs, source_rate};
use crate::site::{Frame, Packet, ProgramError, Site};
use anabranch_endpoint::Len;
use anabranch_pieces::{ByteRange, GenerationHash};
use anabranch_sim::scenario::SystemWorkload;
use anabranch_sim::system::{System, SystemPlan};
use anabranch_sim::traffic::{App, AppCx, Side, StreamEvent, StreamSpec, TLS_RECORD_BYTES};
use anabranch_sim::{CompletionTimes, Network, PlanError, WorkloadRow};
use anabranch_units::{BitRate, ByteCount, Duration, Instant, LinkId, Seed, SiteId};
use std::collections::{BTreeMap, VecDeque};
use std::error::Error;

use crate::plan::schemes::{DrawnTransfer, SchemeError, ceilings, filled, plans};

/// Length of an endless file: at 400 Gbit/s it takes 6 hours to send.
const ENDLESS_BYTES: u64 = 1 << 50;
/// Strict priorities of planned flows and of filling flows.
const BULK: u8 = 1;
const FILL: u8 = 2;
/// Maximum data in a TLS record (RFC 8446 section 5.1).
const RECORD_DATA_BYTES: u64 = 16_384;
/// Size of a confirmation in the reverse direction: its kind and a count, in a record.
const CONFIRMATION_BYTES: u64 = 9 + TLS_RECORD_BYTES;

pub use settings::{Settings, plan};

/// `replicate` in scenarios.
#[derive(Copy, Clone, Debug)]
pub struct SimulatedSystem;

impl System for SimulatedSystem {
    fn kind(&self) -> &'static str {
        "replicate"
    }
    fn settings(&self) -> Option<schemars::Schema> {
        Some(schemars::schema_for!(Settings))
    }
    fn plan(
        &self,
        workload: &SystemWorkload,
        network: &Network,
        field: &str,
    ) -> Result<Box<dyn SystemPlan>, PlanError> {
        Ok(Box::new(plan(workload, network, field)?))
    }
}

/// A resolved workload.
#[derive(Debug)]
pub struct Replicate {
    settings: Settings,
    /// The listed transfers; `None` if they are drawn for each run.
    listed: Option<Vec<DrawnTransfer>>,
    priorities: Vec<u8>,
    field: String,
}

impl Replicate {
    /// The workload's settings in the scenario.
    pub const fn settings(&self) -> &Settings {
        &self.settings
    }
    /// The transfers of a run with this seed.
    pub fn transfers(&self, network: &Network, seed: Seed) -> Vec<DrawnTransfer> {
        self.listed.clone().unwrap_or_else(|| self.settings.draw(network.named_topology(), seed))
    }
    /// Total planned rate of these transfers, on links without other traffic.
    ///
    /// Errors: an error of a planner.
    pub fn planned(&self, network: &Network, transfers: &[DrawnTransfer]) -> Result<BitRate, PlanError> {
        Ok(RunPlans::new(&self.settings, network, transfers, &self.field)?.together)
    }
}

struct RunPlans {
    plans: Vec<Plan>,
    /// Maximum rate of each source.
    ceilings: Vec<Option<BitRate>>,
    /// Total planned rate.
    together: BitRate,
}

impl RunPlans {
    fn new(
        settings: &Settings,
        network: &Network,
        drawn: &[DrawnTransfer],
        field: &str,
    ) -> Result<Self, PlanError> {
        let topology = network.named_topology();
        let wrong = |error: SchemeError| wrong_scheme(field, &error);
        let (plans, _) = plans(topology, drawn, &settings.scheme).map_err(wrong)?;
        let ceilings = ceilings(&plans, &settings.scheme);
        let full: Vec<u64> = topology.links().iter().map(|l| l.properties.capacity.as_bps()).collect();
        let shares = share_flows_under(&full, &plans, &ceilings);
        let together = BitRate::bps(shares.iter().map(|share| share.as_bps()).sum());
        Ok(Self { plans, ceilings, together })
    }
}

fn wrong_scheme(field: &str, error: &dyn Error) -> PlanError {
    PlanError { field: format!("{field}.scheme"), message: error.to_string() }
}

/// Fills `row` with the results of transfers: the verified bytes of the slowest destination of each
/// in the `measured` time, the durations of the completed ones (none if files are endless), and
/// their total planned rate.
pub fn report_transfers(
    verified_bytes: impl Iterator<Item = u64>,
    measured: Duration,
    whole: Option<CompletionTimes>,
    planned: BitRate,
    row: &mut WorkloadRow,
) {
    let rate = |bytes| BitRate::average(ByteCount::new(bytes), measured).map_or(0.0, BitRate::as_mbps_f64);
    let rates: Vec<f64> = verified_bytes.map(rate).collect();
    row.goodput_mbps = Some(rates.iter().sum());
    row.share(rates);
    if let Some(times) = whole {
        row.complete(&times);
    }
    row.more.insert("planned_mbps", planned.as_mbps_f64());
}

impl SystemPlan for Replicate {
    fn app(&self, network: &Network, seed: Seed) -> Result<Box<dyn App>, PlanError> {
        let drawn = self.transfers(network, seed);
        Ok(Box::new(Replication::new(&self.settings, network, &drawn, &self.field)?))
    }
    fn has_end(&self) -> bool {
        self.settings.size.is_some()
    }
    fn priorities(&self) -> &[u8] {
        &self.priorities
    }
}

/// Running transfers of one run.
#[derive(Debug)]
pub struct Replication {
    transfers: Vec<Transfer>,
    /// Hops by stream number; `None` for streams of other workloads.
    streams: Vec<Option<Hop>>,
    send_buffer_bytes: u64,
    size: Option<ByteCount>,
    /// Total planned rate, on links without other traffic.
    planned: BitRate,
    fills: bool,
}

#[derive(Debug)]
struct Transfer {
    at: Instant,
    has_begun: bool,
    /// Indices of the destinations in `sites`.
    destinations: Vec<usize>,
    source: usize,
    sites: Vec<SiteRun>,
    finished_at: Option<Instant>,
}

/// One site's part of a transfer.
#[derive(Debug)]
struct SiteRun {
    program: SiteProgram,
    machine: Site<Len>,
    host: u16,
    /// Incoming streams.
    incoming: Vec<u32>,
    /// Streams of each outgoing flow, and the reverse link of each outgoing flow.
    outgoing: Vec<Vec<u32>>,
    back: Vec<Option<LinkId>>,
    /// Packets that are stored until their flow has ended.
    shelves: BTreeMap<(FlowId, u64), Packet<Len>>,
    /// Pace of a rate-limited source.
    pace: Option<Pace>,
    /// Next time at which the machine must be called.
    timeout: Option<Instant>,
    /// Verified bytes at the end of the warm-up.
    warmup_bytes: u64,
}

/// One connection of a flow.
#[derive(Debug)]
struct Hop {
    transfer: usize,
    from: usize,
    to: usize,
    flow: FlowId,
    fills: bool,
    /// Frames that were written and not yet accepted, each with its bytes on the wire.
    frames: VecDeque<(Frame<Len>, u64)>,
    /// Bytes that wait in the receive buffer, and bytes of the first frame that were already read.
    waiting: u64,
    in_hand: u64,
    has_ended: bool,
    /// Confirmations in transit in the reverse direction, and the bytes of the first one that have
    /// arrived.
    confirmations: VecDeque<u64>,
    confirmation_bytes: u64,
    confirmed: u64,
}

/// Bytes on the wire of a frame: header and symbol each have their own records, because they are
/// written separately.
fn wire_bytes(frame: &Frame<Len>) -> u64 {
    let header = FrameHeader::LEN as u64 + TLS_RECORD_BYTES;
    match frame {
        Frame::End { .. } => header,
        Frame::Data(packet) => {
            let symbol = packet.symbol.0 as u64;
            header + symbol + TLS_RECORD_BYTES * symbol.div_ceil(RECORD_DATA_BYTES)
        }
    }
}

impl Replication {
    fn new(
        settings: &Settings,
        network: &Network,
        drawn: &[DrawnTransfer],
        field: &str,
    ) -> Result<Self, PlanError> {
        let wrong = |error: &dyn Error| wrong_scheme(field, error);
        let RunPlans { plans, ceilings, together } = RunPlans::new(settings, network, drawn, field)?;
        let plans = match settings.fill {
            true => filled(network.named_topology(), &plans).map_err(|error| wrong(&error))?,
            false => plans,
        };
        let transfers = plans.iter().zip(&ceilings).enumerate().map(|(index, (plan, ceiling))| {
            let held = ceiling.map(|rate| source_rate(plan, rate));
            let at = Instant::ZERO + settings.start + settings.stagger * index as u64;
            Transfer::new(settings, network, plan, (index, at, held))
        });
        Ok(Self {
            transfers: transfers.collect::<Result<_, _>>().map_err(|error| wrong(&error))?,
            streams: Vec::new(),
            send_buffer_bytes: settings.send_buffer.as_u64(),
            size: settings.size,
            planned: together,
            fills: settings.fill,
        })
    }

    /// Opens a transfer's streams.
    fn begin(&mut self, cx: &mut AppCx<'_, '_>, number: usize) {
        let transfer = &mut self.transfers[number];
        transfer.has_begun = true;
        let place: BTreeMap<SiteId, usize> =
            transfer.sites.iter().enumerate().map(|(at, site)| (site.program.site, at)).collect();
        let hosts: Vec<u16> = transfer.sites.iter().map(|site| site.host).collect();
        for from in 0..transfer.sites.len() {
            for index in 0..transfer.sites[from].program.outgoing.len() {
                let out = transfer.sites[from].program.outgoing[index].clone();
                let (to, fills) = (place[&out.to], out.hop.priority == Priority::Fill);
                for _ in 0..out.hop.stripes {
                    let spec = StreamSpec {
                        from: hosts[from],
                        to: hosts[to],
                        links: [Some(out.link), transfer.sites[from].back[index]],
                        size: None,
                        priority: if fills { FILL } else { BULK },
                        is_control: false,
                    };
                    let stream = cx.open(&spec);
                    transfer.sites[from].outgoing[index].push(stream);
                    transfer.sites[to].incoming.push(stream);
                    let at = stream as usize;
                    if self.streams.len() <= at {
                        self.streams.resize_with(at + 1, || None);
                    }
                    self.streams[at] = Some(Hop::new(number, (from, to), out.flow, fills));
                }
            }
        }
        for site in 0..hosts.len() {
            self.stir(cx, number, site);
        }
    }

    /// Lets a site's machine do everything that it can do now.
    fn stir(&mut self, cx: &mut AppCx<'_, '_>, transfer: usize, site: usize) {
        let Self { transfers, streams, send_buffer_bytes, .. } = self;
        let run = &mut transfers[transfer].sites[site];
        loop {
            let mut moved = false;
            for &stream in &run.incoming {
                moved |= hop(streams, stream).take_in(cx, stream, &mut run.machine);
            }
            moved |= run.supply(cx, transfer);
            moved |= run.work();
            for (out, stripes) in run.program.outgoing.iter().zip(&run.outgoing) {
                for &stream in stripes {
                    moved |=
                        hop(streams, stream).send(cx, stream, &mut run.machine, (out, *send_buffer_bytes));
                }
            }
            if !moved {
                break;
            }
        }
        let transfer = &mut transfers[transfer];
        if transfer.finished_at.is_none()
            && transfer.destinations.iter().all(|d| transfer.sites[*d].machine.are_sinks_done())
        {
            transfer.finished_at = Some(cx.now());
        }
    }

    /// Sends the confirmed counts of filling flows to the previous sites.
    fn confirm(&mut self, cx: &mut AppCx<'_, '_>) {
        for (stream, hop) in self.streams.iter_mut().enumerate() {
            let Some(hop) = hop.as_mut().filter(|hop| hop.fills) else { continue };
            let confirmed = self.transfers[hop.transfer].sites[hop.to].machine.confirmed(hop.flow);
            if confirmed > hop.confirmed {
                hop.confirmed = confirmed;
                hop.confirmations.push_back(confirmed);
                cx.write(stream as u32, Side::Acceptor, CONFIRMATION_BYTES);
            }
        }
    }

    fn confirm_token(&self) -> u16 {
        self.transfers.len() as u16
    }
}

/// A stream of a site.
fn hop(streams: &mut [Option<Hop>], stream: u32) -> &mut Hop {
    streams[stream as usize].as_mut().expect("sites know their own streams")
}

impl Transfer {
    fn new(
        settings: &Settings,
        network: &Network,
        plan: &Plan,
        (index, at, held): (usize, Instant, Option<BitRate>),
    ) -> Result<Self, ProgramError> {
        let topology = network.named_topology();
        let opposites = network.topology().opposites();
        let length = settings.size.map_or(ENDLESS_BYTES, ByteCount::as_u64);
        let hop =
            HopSettings { stripes: settings.stripes, congestion_control: None, priority: Priority::Bulk };
        let attempted = AttemptFacts {
            run: Run { transfer: TransferId(index as u64), attempt: Attempt(1) },
            length,
            snapshot: None,
            source_path: "file",
            path: &|_| "file".to_owned(),
            missing: &|_| vec![ByteRange { start: 0, end: length }],
            symbol_bytes: settings.symbol.as_u64() as u32,
            buffer_packets: settings.buffer_packets,
            bandwidth_limit: held,
            submitter: Submitter::Operator,
            hop: &|_| hop.clone(),
            // Streams need no address.
            address: &|_, _| String::new(),
        };
        let mut sites = Vec::new();
        for program in programs(topology, plan, &attempted).into_values() {
            sites.push(SiteRun {
                machine: Site::new(&program)?,
                host: network.host(program.site).expect("a network without switches has only hosts"),
                incoming: Vec::new(),
                outgoing: vec![Vec::new(); program.outgoing.len()],
                back: program.outgoing.iter().map(|out| opposites[out.link.index()]).collect(),
                shelves: BTreeMap::new(),
                pace: Pace::of(&program),
                timeout: None,
                warmup_bytes: 0,
                program,
            });
        }
        let place = |site: SiteId| sites.iter().position(|s: &SiteRun| s.program.site == site);
        Ok(Self {
            at,
            has_begun: false,
            destinations: plan.destinations.iter().filter_map(|d| place(*d)).collect(),
            source: place(plan.source).expect("the source has a program"),
            sites,
            finished_at: None,
        })
    }

    /// Bytes that the transfer's slowest destination has verified since the warm-up.
    fn verified_bytes(&self) -> u64 {
        let sites = self.destinations.iter().map(|d| &self.sites[*d]);
        sites.map(|site| site.machine.verified_bytes() - site.warmup_bytes).min().unwrap_or(0)
    }
}

impl SiteRun {
    /// Supplies the wanted pieces of the source's groups. Returns whether any piece was supplied.
    fn supply(&mut self, cx: &mut AppCx<'_, '_>, transfer: usize) -> bool {
        if self.program.source_path.is_none() {
            return false;
        }
        let mut moved = false;
        self.machine.handle_timeout(cx.now());
        for (number, group) in self.program.groups.iter().enumerate() {
            while let Some(range) = self.machine.wanted(number as u16) {
                let is_coded = group.mode == Mode::Coded;
                let streams = if is_coded { u64::from(group.streams) } else { 1 };
                if let Some(pace) = self.pace.as_mut().filter(|_| group.fills.is_none()) {
                    if pace.due() > cx.now() {
                        cx.arm(pace.due(), transfer as u16);
                        break;
                    }
                    pace.spend(cx.now(), cost(&self.program, number as u16, range.len()));
                }
                let length = if group.flush > 0 {
                    self.program.symbol_bytes as usize
                } else {
                    range.len().div_ceil(streams) as usize
                };
                let symbols = vec![Len(length); streams as usize];
                self.machine.supply(number as u16, symbols, GenerationHash::default());
                moved = true;
            }
        }
        self.timeout = self.timeout.filter(|at| *at > cx.now());
        if let Some(at) = self.machine.poll_timeout()
            && self.timeout.is_none_or(|armed| at < armed)
        {
            cx.arm(at, transfer as u16);
            self.timeout = Some(at);
        }
        moved
    }

    /// Codes, decodes, writes and stores, all at once. Returns whether there was any work.
    fn work(&mut self) -> bool {
        let mut moved = false;
        while let Some(work) = self.machine.poll_work() {
            self.machine.complete(work.run());
            moved = true;
        }
        while let Some(write) = self.machine.poll_write() {
            self.machine.handle_written(write.sink, write.range);
            moved = true;
        }
        while let Some(store) = self.machine.poll_store() {
            self.shelves.insert((store.flow, store.index), store.packet);
            self.machine.handle_stored(store.flow);
            moved = true;
        }
        while let Some(fetch) = self.machine.poll_fetch() {
            // Several virtual links may read this packet, each once.
            let packet = self.shelves[&(fetch.flow, fetch.index)].clone();
            self.machine.fetched(fetch, packet);
            moved = true;
        }
        while self.machine.poll_event().is_some() {}
        moved
    }
}

impl Hop {
    fn new(transfer: usize, (from, to): (usize, usize), flow: FlowId, fills: bool) -> Self {
        Self {
            transfer,
            from,
            to,
            flow,
            fills,
            frames: VecDeque::new(),
            waiting: 0,
            in_hand: 0,
            has_ended: false,
            confirmations: VecDeque::new(),
            confirmation_bytes: 0,
            confirmed: 0,
        }
    }

    /// Continues to read the first frame, as a real reader does with an unfinished frame. Returns
    /// true once the frame is complete.
    fn read(&mut self, cx: &mut AppCx<'_, '_>, stream: u32) -> bool {
        let Some((_, wire)) = self.frames.front() else { return false };
        let more = self.waiting.min(wire - self.in_hand);
        if more > 0 {
            cx.read(stream, Side::Acceptor, more);
            self.in_hand += more;
            self.waiting -= more;
        }
        self.in_hand == *wire
    }

    /// Passes complete frames to the machine at the receiving end while the machine has room for
    /// them. Returns whether any frame was passed.
    fn take_in(&mut self, cx: &mut AppCx<'_, '_>, stream: u32, machine: &mut Site<Len>) -> bool {
        let mut moved = false;
        while self.read(cx, stream) {
            let has_room = match &self.frames[0].0 {
                Frame::Data(packet) => machine.has_room(self.flow, packet.generation),
                Frame::End { .. } => true,
            };
            if !has_room {
                break;
            }
            let good = "the machines keep their protocol, and TCP its bytes";
            match self.frames.pop_front().expect("looked at above").0 {
                Frame::Data(packet) => machine.accept(self.flow, packet).expect(good),
                Frame::End { packets } => machine.accept_end(self.flow, packets).expect(good),
            }
            self.in_hand = 0;
            moved = true;
        }
        moved
    }

    /// Writes frames of the machine at the sending end while the send buffer accepts them. Returns
    /// whether any frame was written.
    fn send(
        &mut self,
        cx: &mut AppCx<'_, '_>,
        stream: u32,
        machine: &mut Site<Len>,
        (out, buffer_bytes): (&OutgoingSpec, u64),
    ) -> bool {
        let mut moved = false;
        while !self.has_ended
            && machine.can_produce(out.flow)
            && cx.unacknowledged_bytes(stream, Side::Opener) < buffer_bytes
        {
            let frame = machine.produce(out.flow).expect("it can");
            let wire = wire_bytes(&frame);
            self.has_ended = matches!(frame, Frame::End { .. });
            self.frames.push_back((frame, wire));
            cx.write(stream, Side::Opener, wire);
            moved = true;
        }
        moved
    }
}

impl App for Replication {
    fn start(&mut self, cx: &mut AppCx<'_, '_>) {
        for number in 0..self.transfers.len() {
            match self.transfers[number].at {
                at if at <= cx.now() => self.begin(cx, number),
                at => cx.arm(at, number as u16),
            }
        }
        if self.fills {
            cx.arm(cx.now() + CONFIRM_EVERY, self.confirm_token());
        }
    }

    fn on_timer(&mut self, cx: &mut AppCx<'_, '_>, token: u16) {
        if token == self.confirm_token() {
            self.confirm(cx);
            if self.ended_at().is_none() {
                cx.arm(cx.now() + CONFIRM_EVERY, token);
            }
            return;
        }
        let number = usize::from(token);
        if self.transfers[number].has_begun {
            self.stir(cx, number, self.transfers[number].source);
        } else {
            self.begin(cx, number);
        }
    }

    fn on_stream(&mut self, cx: &mut AppCx<'_, '_>, stream: u32, side: Side, event: StreamEvent) {
        let hop = hop(&mut self.streams, stream);
        let transfer = hop.transfer;
        match (side, event) {
            (Side::Acceptor, StreamEvent::Arrived { bytes }) => {
                hop.waiting += bytes;
                if hop.read(cx, stream) {
                    let to = hop.to;
                    self.stir(cx, transfer, to);
                }
            }
            (Side::Opener, StreamEvent::Acknowledged) => {
                let from = hop.from;
                if self.transfers[transfer].sites[from].machine.can_produce(hop.flow) {
                    self.stir(cx, transfer, from);
                }
            }
            (Side::Opener, StreamEvent::Arrived { bytes }) => {
                cx.read(stream, side, bytes);
                hop.confirmation_bytes += bytes;
                let (from, flow) = (hop.from, hop.flow);
                while hop.confirmation_bytes >= CONFIRMATION_BYTES {
                    hop.confirmation_bytes -= CONFIRMATION_BYTES;
                    let packets = hop.confirmations.pop_front().expect("one for each that was written");
                    let machine = &mut self.transfers[transfer].sites[from].machine;
                    machine.confirm(flow, packets).expect("what was sent is confirmed, in order");
                }
                self.stir(cx, transfer, from);
            }
            _ => {}
        }
    }

    fn end_warmup(&mut self) {
        for site in self.transfers.iter_mut().flat_map(|transfer| &mut transfer.sites) {
            site.warmup_bytes = site.machine.verified_bytes();
        }
    }

    fn ended_at(&self) -> Option<Instant> {
        let ends: Option<Vec<Instant>> = self.transfers.iter().map(|transfer| transfer.finished_at).collect();
        ends?.into_iter().max()
    }

    fn progress(&self) -> Option<f64> {
        let size = self.size?.as_u64().max(1) as f64;
        let done = self.transfers.iter().map(|transfer| {
            let sites = transfer.destinations.iter().map(|d| &transfer.sites[*d]);
            sites.map(|site| site.machine.verified_bytes()).min().unwrap_or(0) as f64 / size
        });
        Some(done.sum::<f64>() / self.transfers.len() as f64)
    }

    fn report(&self, measured: Duration, row: &mut WorkloadRow) {
        let whole = self.size.map(|size| {
            let whole = self.transfers.iter().filter_map(|transfer| {
                let took = transfer.finished_at?.saturating_since(transfer.at);
                Some((size.as_u64(), took.as_secs_f64() * 1e6))
            });
            CompletionTimes(whole.collect())
        });
        let verified = self.transfers.iter().map(Transfer::verified_bytes);
        report_transfers(verified, measured, whole, self.planned, row);
    }
}

#[cfg(test)]
mod tests;
