//! The machines that workloads use: one enum, so that the hot loop dispatches by `match`.

use anabranch_endpoint::{Endpoint, Message, PeerId, Transmit};
use anabranch_transport::{Connection, Datagram, Event, Segment, UdpSource};
use anabranch_units::{Histogram, Instant};
use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

/// A protocol machine at one end of a flow.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "nearly all are connections; a box would cost each packet a cache miss"
)]
pub enum End {
    /// One end of a TCP connection.
    Tcp(Connection),
    /// Source of datagrams.
    UdpSource(Box<UdpSource>),
    /// Sink that counts datagrams.
    UdpSink(UdpSink),
    /// End of a channel for a system's datagrams.
    Port(Box<Port>),
}

/// A message between machines.
#[derive(Copy, Clone, Debug)]
pub enum Msg {
    /// A message between two [`End::Tcp`].
    Segment(Segment),
    /// A message from [`End::UdpSource`] to [`End::UdpSink`], or between two [`End::Port`]s.
    Datagram(Datagram),
}

/// A report of a machine.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Report {
    /// Event of a TCP connection.
    Tcp(Event),
    /// Datagrams have arrived.
    Datagrams {
        /// Number of bytes on the wire.
        bytes: u64,
    },
    /// A system's datagram has arrived.
    Datagram(Datagram),
}

/// One end of a channel for a system's datagrams. The system keeps the contents, and the channel
/// carries only their numbers.
#[derive(Clone, Debug)]
pub struct Port {
    peer: PeerId,
    leaving: VecDeque<Datagram>,
    arrived: VecDeque<Datagram>,
}

impl Port {
    /// The end that sends to `peer`.
    pub const fn new(peer: PeerId) -> Self {
        Self { peer, leaving: VecDeque::new(), arrived: VecDeque::new() }
    }
    /// Queues a datagram, which leaves when the port is polled.
    pub fn send(&mut self, datagram: Datagram) {
        self.leaving.push_back(datagram);
    }
}

/// Receives datagrams, and counts arrivals, delays and reordering.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct UdpSink {
    /// Datagrams that have arrived.
    pub received: u64,
    /// Number of received datagrams that a later datagram had overtaken.
    pub overtaken: u64,
    /// Sum of the delays of the received datagrams, in picoseconds.
    pub delay_sum_ps: u128,
    /// Maximum delay of a received datagram, in picoseconds.
    pub delay_max_ps: u64,
    /// Histogram of the delays of the received datagrams.
    pub delays: Histogram,
    highest: Option<u64>,
    untold_bytes: u64,
}

impl Message for Msg {
    #[inline]
    fn wire_len(&self) -> u32 {
        match self {
            Self::Segment(segment) => segment.wire_len(),
            Self::Datagram(datagram) => datagram.wire_len(),
        }
    }
    #[inline]
    fn is_ect(&self) -> bool {
        match self {
            Self::Segment(segment) => segment.is_ect(),
            Self::Datagram(_) => false,
        }
    }
    #[inline]
    fn mark_ce(&mut self) {
        if let Self::Segment(segment) = self {
            segment.mark_ce();
        }
    }
    #[inline]
    fn mark_circuit(&mut self) {
        if let Self::Segment(segment) = self {
            segment.mark_circuit();
        }
    }
}

impl Endpoint for End {
    type Msg = Msg;
    type Event = Report;

    #[inline]
    fn handle_message(&mut self, now: Instant, from: PeerId, msg: Msg) {
        match (self, msg) {
            (Self::Tcp(connection), Msg::Segment(segment)) => connection.handle_message(now, from, segment),
            (Self::UdpSink(sink), Msg::Datagram(datagram)) => sink.handle(now, &datagram),
            (Self::Port(port), Msg::Datagram(datagram)) => port.arrived.push_back(datagram),
            // Both ends of a flow are of the same kind, so these messages do not occur.
            (Self::Tcp(_), Msg::Datagram(_))
            | (Self::UdpSink(_) | Self::Port(_), Msg::Segment(_))
            | (Self::UdpSource(_), _) => {}
        }
    }
    #[inline]
    fn handle_timeout(&mut self, now: Instant) {
        match self {
            Self::Tcp(connection) => connection.handle_timeout(now),
            Self::UdpSource(source) => source.handle_timeout(now),
            Self::UdpSink(_) | Self::Port(_) => {}
        }
    }
    #[inline]
    fn poll_transmit(&mut self, now: Instant) -> Option<Transmit<Msg>> {
        fn wrap<M>(transmit: Transmit<M>, msg: impl FnOnce(M) -> Msg) -> Transmit<Msg> {
            Transmit { to: transmit.to, not_before: transmit.not_before, msg: msg(transmit.msg) }
        }
        match self {
            Self::Tcp(connection) => connection.poll_transmit(now).map(|t| wrap(t, Msg::Segment)),
            Self::UdpSource(source) => source.poll_transmit(now).map(|t| wrap(t, Msg::Datagram)),
            Self::UdpSink(_) => None,
            Self::Port(port) => {
                let msg = Msg::Datagram(port.leaving.pop_front()?);
                Some(Transmit { to: port.peer, not_before: None, msg })
            }
        }
    }
    #[inline]
    fn poll_event(&mut self) -> Option<Report> {
        match self {
            Self::Tcp(connection) => connection.poll_event().map(Report::Tcp),
            Self::UdpSource(_) => None,
            Self::UdpSink(sink) => {
                let bytes = std::mem::take(&mut sink.untold_bytes);
                (bytes > 0).then_some(Report::Datagrams { bytes })
            }
            Self::Port(port) => port.arrived.pop_front().map(Report::Datagram),
        }
    }
    #[inline]
    fn poll_timeout(&self) -> Option<Instant> {
        match self {
            Self::Tcp(connection) => connection.poll_timeout(),
            Self::UdpSource(source) => source.poll_timeout(),
            Self::UdpSink(_) | Self::Port(_) => None,
        }
    }
}

impl UdpSink {
    /// Counts a received datagram.
    pub fn handle(&mut self, now: Instant, datagram: &Datagram) {
        let delay = now.saturating_since(datagram.sent_at);
        self.received += 1;
        self.untold_bytes += u64::from(datagram.size_bytes);
        self.delay_sum_ps += u128::from(delay.as_ps());
        self.delay_max_ps = self.delay_max_ps.max(delay.as_ps());
        self.delays.record(delay.as_ns());
        if self.highest.is_some_and(|highest| datagram.number < highest) {
            self.overtaken += 1;
        } else {
            self.highest = Some(datagram.number);
        }
    }
}
