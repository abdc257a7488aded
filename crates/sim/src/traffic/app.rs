//! A system on the hosts of a run: its machines keep their messages, this room carries lengths over streams and datagrams over
//! channels.
//!
//! A stream is a TCP connection between two hosts, set up as the scenario's transport is. Arrived bytes stay in the receive
//! buffer until the machine reads them: a machine that reads late closes the window. Streams carry lengths, and an [`App`] knows by
//! order which messages they are. A channel carries datagrams, which may be lost; an [`App`] knows them by their numbers.
//!
//! Leaves out: the systems themselves (`system`). Read [`App`] and [`AppCx`] first.

use super::{Opening, World};
use crate::end::{End, Port};
use crate::network::Network;
use crate::rows::WorkloadRow;
use anabranch_endpoint::PeerId;
use anabranch_fabric::HostsCx;
use anabranch_transport::{Datagram, Event};
use anabranch_units::{BitRate, ByteCount, Duration, Instant, LinkId};

/// What a system does on the hosts of one run.
pub trait App: std::fmt::Debug + Send {
    /// The run begins.
    fn start(&mut self, cx: &mut AppCx<'_, '_>);
    /// A stream reports something of its end at `side`. Never for a system that opens none.
    fn on_stream(&mut self, _cx: &mut AppCx<'_, '_>, _stream: u32, _side: Side, _event: StreamEvent) {}
    /// A datagram has come out at `side` of a channel. Never for a system that opens none.
    fn on_datagram(&mut self, _cx: &mut AppCx<'_, '_>, _channel: u32, _side: Side, _number: u64) {}
    /// A timer that was armed goes off.
    fn on_timer(&mut self, _cx: &mut AppCx<'_, '_>, _token: u16) {}
    /// The warm-up is over: what is measured is measured from here on. What streams delivered is counted without the system.
    fn end_warmup(&mut self) {}
    /// When the last of its work was done; none while there is more.
    fn ended_at(&self) -> Option<Instant>;
    /// Bits in a second that the sender of a flow may send now, where something but TCP decides that; for probes.
    fn allowed_bps(&self, _flow: u32) -> Option<f64> {
        None
    }
    /// The share of the work that is done, where its end is known.
    fn progress(&self) -> Option<f64> {
        None
    }
    /// What it got in the `measured` time since the warm-up. Sums over its streams are filled in already.
    fn report(&self, _measured: Duration, _row: &mut WorkloadRow) {}
    /// Its coflows, where it has any.
    fn coflows(&self) -> Vec<Coflow> {
        Vec::new()
    }
}

/// A group of flows of which the last one counts (Chowdhury and Stoica, *Coflow*, HotNets 2012).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Coflow {
    /// What it is called.
    pub name: String,
    /// How many flows it has.
    pub flows: u64,
    /// What they move, all together.
    pub size: ByteCount,
    /// When the first of them was to begin.
    pub started_at: Instant,
    /// When the last of them was whole; none while one is not.
    pub finished_at: Option<Instant>,
}

/// One end of a stream.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Side {
    /// Who opened it.
    Opener,
    /// Who was asked.
    Acceptor,
}

/// What a stream reports.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum StreamEvent {
    /// Both ends are there.
    Connected,
    /// So many bytes more wait to be read.
    Arrived {
        /// How many.
        bytes: u64,
    },
    /// The other end has taken in more, so there is room to write.
    Acknowledged,
    /// The other end was silent for too long.
    GivenUp,
}

/// A stream that is to be opened.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct StreamSpec {
    /// The host that opens it.
    pub from: u16,
    /// The host that is asked, another one.
    pub to: u16,
    /// The links that its packets take there and back, each between these hosts; what the network chooses without.
    pub links: [Option<LinkId>; 2],
    /// What the opener sends on it in all, where that is known: reports then say when it was whole.
    pub size: Option<ByteCount>,
    /// Strict priority of its packets, 0 first.
    pub priority: u8,
    /// Whether it only carries what is said about data that travels elsewhere: then it is no flow to be measured.
    pub is_control: bool,
}

/// What an [`App`] may do while it is told something.
pub struct AppCx<'a, 'b> {
    pub(super) world: &'a mut World,
    pub(super) cx: &'a mut HostsCx<'b, End>,
    pub(super) job: u16,
}

impl AppCx<'_, '_> {
    /// The run's time.
    pub const fn now(&self) -> Instant {
        self.cx.now()
    }
    /// Whether streams begin with a handshake, after which they are [`StreamEvent::Connected`]; without, they stand at once.
    pub const fn has_handshakes(&self) -> bool {
        self.world.config.handshake
    }
    /// The part of what full segments take of a link that is data; headers are the rest.
    pub fn data_share(&self) -> f64 {
        let (mss, header) = (self.world.config.mss, self.world.config.header_bytes);
        f64::from(mss) / f64::from(mss + header)
    }
    /// Opens a stream, and says its number: streams are numbered in the order in which a run opens them.
    pub fn open(&mut self, spec: &StreamSpec) -> u32 {
        let StreamSpec { from: src, to: dst, links, size, priority, is_control } = *spec;
        let doors = links.map(|link| link.map(Network::port));
        let opening = Opening { job: self.job, priority, src, dst, size, to_send: size, doors };
        let stream = self.world.connect_unread(self.cx, &opening);
        self.world.flows[stream as usize].is_control = is_control;
        stream
    }
    /// Opens a channel for datagrams both ways, and says its number, which is one among those of streams.
    pub fn open_channel(&mut self, from: u16, to: u16, priority: u8) -> u32 {
        let (size, to_send, doors) = (None, None, [None; 2]);
        let opening = Opening { job: self.job, priority, src: from, dst: to, size, to_send, doors };
        let (flow, opener, acceptor) = self.world.enter(self.cx, &opening);
        self.cx.place(opener, End::Port(Box::new(Port::new(acceptor))));
        self.cx.place(acceptor, End::Port(Box::new(Port::new(opener))));
        flow
    }
    /// Sends a datagram of `size_bytes` on the wire, headers included, from the end at `side` of a channel.
    pub fn send(&mut self, channel: u32, side: Side, number: u64, size_bytes: u32) {
        let sent_at = self.cx.now();
        if let Some(End::Port(port)) = self.cx.end_mut(self.end(channel, side)) {
            port.send(Datagram { number, size_bytes, sent_at });
        }
    }
    /// Counts bytes that a datagram of a channel has brought, headers left out.
    pub fn deliver(&mut self, channel: u32, bytes: u64) {
        self.world.flows[channel as usize].delivered_bytes += bytes;
    }
    fn end(&self, stream: u32, side: Side) -> PeerId {
        let flow = &self.world.flows[stream as usize];
        match side {
            Side::Opener => flow.sender,
            Side::Acceptor => flow.receiver,
        }
    }
    /// Gives the end at `side` so many bytes more to send.
    pub fn write(&mut self, stream: u32, side: Side, bytes: u64) {
        super::write(self.cx, self.end(stream, side), bytes);
    }
    /// Takes so many bytes out of what has arrived at `side`.
    pub fn read(&mut self, stream: u32, side: Side, bytes: u64) {
        if let Some(End::Tcp(connection)) = self.cx.end_mut(self.end(stream, side)) {
            connection.read(bytes);
        }
    }
    /// Holds what is sent at `side` to a rate, headers not counted; lifts that with `None`.
    ///
    /// Panics: for a limit of zero.
    pub fn set_pacing_limit(&mut self, stream: u32, side: Side, limit: Option<BitRate>) {
        if let Some(End::Tcp(connection)) = self.cx.end_mut(self.end(stream, side)) {
            connection.set_pacing_limit(limit);
        }
    }
    /// Bytes that were written at `side` and that the other end has not acknowledged: what a send buffer holds.
    pub fn unacknowledged_bytes(&self, stream: u32, side: Side) -> u64 {
        match self.cx.end(self.end(stream, side)) {
            Some(End::Tcp(connection)) => connection.unacknowledged_bytes(),
            _ => 0,
        }
    }
    /// Asks for `on_timer(token)` at `at`, which is not before now.
    ///
    /// Panics: in a debug build, for a token of 2^14 or more.
    pub fn arm(&mut self, at: Instant, token: u16) {
        debug_assert!(token < 1 << 14, "tokens are 14 bits wide");
        // 0 is the start.
        self.cx.arm(at, (u32::from(token) + 1) << 16 | u32::from(self.job));
    }
}

/// What a connection's event means for who uses its stream.
pub(super) const fn stream_event(event: Event) -> Option<StreamEvent> {
    match event {
        Event::Connected => Some(StreamEvent::Connected),
        Event::Received { bytes } => Some(StreamEvent::Arrived { bytes }),
        Event::Acknowledged { .. } => Some(StreamEvent::Acknowledged),
        Event::GivenUp => Some(StreamEvent::GivenUp),
        _ => None,
    }
}
