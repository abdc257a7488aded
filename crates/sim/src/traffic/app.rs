//! Interface of a system on the hosts of a run. The system's machines keep the messages; this room
//! carries their lengths over streams and datagrams over channels.
//!
//! A stream is a TCP connection between two hosts with the scenario's transport settings. Received
//! bytes stay in the receive buffer until the machine reads them, so a machine that reads late
//! closes the receive window. Streams carry lengths, and an [`App`] identifies messages by their
//! order. A channel carries datagrams, which may be lost, and an [`App`] identifies them by their
//! numbers.
//!
//! Leaves out: the systems themselves (`system`). Read [`App`] and [`AppCx`] first.

use super::{PendingFlow, TrafficState};
use crate::end::{End, Port};
use crate::network::Network;
use crate::rows::WorkloadRow;
use anabranch_endpoint::PeerId;
use anabranch_fabric::HostsCx;
use anabranch_transport::{Datagram, Event};
use anabranch_units::{BitRate, ByteCount, Duration, Instant, LinkId};

/// A system's work on the hosts of one run.
pub trait App: std::fmt::Debug + Send {
    /// Handles the start of the run.
    fn start(&mut self, cx: &mut AppCx<'_, '_>);
    /// Handles an event of a stream's end at `side`. Never called if the system opens no stream.
    fn on_stream(&mut self, _cx: &mut AppCx<'_, '_>, _stream: u32, _side: Side, _event: StreamEvent) {}
    /// Handles a datagram that arrived at `side` of a channel. Never called if the system opens no
    /// channel.
    fn on_datagram(&mut self, _cx: &mut AppCx<'_, '_>, _channel: u32, _side: Side, _number: u64) {}
    /// Handles an expired timer.
    fn on_timer(&mut self, _cx: &mut AppCx<'_, '_>, _token: u16) {}
    /// Handles the end of the warm-up, when measurements start. Bytes delivered on streams are
    /// counted by this room.
    fn end_warmup(&mut self) {}
    /// Time at which the system's last work ended; `None` while work remains.
    fn ended_at(&self) -> Option<Instant>;
    /// Rate in bits per second that the sender of a flow may use now, if TCP does not decide it;
    /// for probes.
    fn allowed_bps(&self, _flow: u32) -> Option<f64> {
        None
    }
    /// Share of the work that is done, if its end is known.
    fn progress(&self) -> Option<f64> {
        None
    }
    /// Adds results for the `measured` time since the warm-up. Sums over the system's streams are
    /// already filled in.
    fn report(&self, _measured: Duration, _row: &mut WorkloadRow) {}
    /// Coflows of the system, if it has any.
    fn coflows(&self) -> Vec<Coflow> {
        Vec::new()
    }
}

/// A group of flows that is complete with its last flow (Chowdhury and Stoica, *Coflow*, HotNets
/// 2012).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Coflow {
    /// Name of the coflow.
    pub name: String,
    /// Number of flows.
    pub flows: u64,
    /// Total size of the coflow's flows.
    pub size: ByteCount,
    /// Scheduled start time of the coflow's first flow.
    pub started_at: Instant,
    /// Completion time of the coflow's last flow; `None` while a flow is incomplete.
    pub finished_at: Option<Instant>,
}

/// One end of a stream.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Side {
    /// The end that opened the stream.
    Opener,
    /// The end that accepted the stream.
    Acceptor,
}

/// An event of a stream.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum StreamEvent {
    /// The connection is established.
    Connected,
    /// Further bytes wait to be read.
    Arrived {
        /// Number of bytes.
        bytes: u64,
    },
    /// The peer has acknowledged data, so there is room to write.
    Acknowledged,
    /// The peer did not answer for too long.
    GivenUp,
}

/// A stream to open.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct StreamSpec {
    /// Opening host.
    pub from: u16,
    /// Accepting host, which must differ from the opening host.
    pub to: u16,
    /// First link of the packets in each direction, if given. Both links must connect these hosts.
    /// `None` leaves the choice to the network.
    pub links: [Option<LinkId>; 2],
    /// Total bytes that the opener sends, if known. Reports then include the completion time.
    pub size: Option<ByteCount>,
    /// Strict priority of the stream's packets, 0 first.
    pub priority: u8,
    /// True if the stream only carries control messages about data of other flows. It is not
    /// measured.
    pub is_control: bool,
}

/// Interface of an [`App`] during a callback.
pub struct AppCx<'a, 'b> {
    pub(super) world: &'a mut TrafficState,
    pub(super) cx: &'a mut HostsCx<'b, End>,
    pub(super) job: u16,
}

impl AppCx<'_, '_> {
    /// Current time of the run.
    pub const fn now(&self) -> Instant {
        self.cx.now()
    }
    /// Returns true if streams begin with a handshake that ends with [`StreamEvent::Connected`].
    /// Otherwise streams are established at once.
    pub const fn has_handshakes(&self) -> bool {
        self.world.config.handshake
    }
    /// Share of data in the bytes of full segments on a link; the remaining share is headers.
    pub fn data_share(&self) -> f64 {
        let (mss, header) = (self.world.config.mss, self.world.config.header_bytes);
        f64::from(mss) / f64::from(mss + header)
    }
    /// Opens a stream. Returns its number; numbers are given in the order of opening within a run.
    pub fn open(&mut self, spec: &StreamSpec) -> u32 {
        let StreamSpec { from: src, to: dst, links, size, priority, is_control } = *spec;
        let doors = links.map(|link| link.map(Network::port));
        let opening = PendingFlow { job: self.job, priority, src, dst, size, to_send: size, doors };
        let stream = self.world.connect_unread(self.cx, &opening);
        self.world.flows[stream as usize].is_control = is_control;
        stream
    }
    /// Opens a channel for datagrams in both directions. Returns its number; streams and channels
    /// are numbered together.
    pub fn open_channel(&mut self, from: u16, to: u16, priority: u8) -> u32 {
        let (size, to_send, doors) = (None, None, [None; 2]);
        let opening = PendingFlow { job: self.job, priority, src: from, dst: to, size, to_send, doors };
        let (flow, opener, acceptor) = self.world.enter(self.cx, &opening);
        self.cx.place(opener, End::Port(Box::new(Port::new(acceptor))));
        self.cx.place(acceptor, End::Port(Box::new(Port::new(opener))));
        flow
    }
    /// Sends a datagram of `size_bytes` on the wire, headers included, from `side` of a channel.
    pub fn send(&mut self, channel: u32, side: Side, number: u64, size_bytes: u32) {
        let sent_at = self.cx.now();
        if let Some(End::Port(port)) = self.cx.end_mut(self.end(channel, side)) {
            port.send(Datagram { number, size_bytes, sent_at });
        }
    }
    /// Counts bytes that a datagram of a channel has delivered, without headers.
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
    /// Writes `bytes` at `side` of a stream.
    pub fn write(&mut self, stream: u32, side: Side, bytes: u64) {
        super::write(self.cx, self.end(stream, side), bytes);
    }
    /// Removes `bytes` from the receive buffer of `side`.
    pub fn read(&mut self, stream: u32, side: Side, bytes: u64) {
        if let Some(End::Tcp(connection)) = self.cx.end_mut(self.end(stream, side)) {
            connection.read(bytes);
        }
    }
    /// Limits the rate of data sent at `side`, without headers. `None` removes the limit.
    ///
    /// Panics: if the limit is zero.
    pub fn set_pacing_limit(&mut self, stream: u32, side: Side, limit: Option<BitRate>) {
        if let Some(End::Tcp(connection)) = self.cx.end_mut(self.end(stream, side)) {
            connection.set_pacing_limit(limit);
        }
    }
    /// Bytes written at `side` that are not acknowledged yet: the content of the send buffer.
    pub fn unacknowledged_bytes(&self, stream: u32, side: Side) -> u64 {
        match self.cx.end(self.end(stream, side)) {
            Some(End::Tcp(connection)) => connection.unacknowledged_bytes(),
            _ => 0,
        }
    }
    /// Schedules `on_timer(token)` at `at`, which must not be in the past.
    ///
    /// Panics: in a debug build, if the token is 2^14 or more.
    pub fn arm(&mut self, at: Instant, token: u16) {
        debug_assert!(token < 1 << 14, "tokens are 14 bits wide");
        // Timer value 0 is used for the start.
        self.cx.arm(at, (u32::from(token) + 1) << 16 | u32::from(self.job));
    }
}

/// Converts a connection's event to an event of its stream; `None` if there is no such event.
pub(super) const fn stream_event(event: Event) -> Option<StreamEvent> {
    match event {
        Event::Connected => Some(StreamEvent::Connected),
        Event::Received { bytes } => Some(StreamEvent::Arrived { bytes }),
        Event::Acknowledged { .. } => Some(StreamEvent::Acknowledged),
        Event::GivenUp => Some(StreamEvent::GivenUp),
        _ => None,
    }
}
