//! One end of a TCP connection: its two halves, the handshake, and the interface to the driver.
//!
//! Differs from RFC 9293: no reset, no urgent data, and no TIME-WAIT (a connection's number is
//! never reused). A connection that both sides have closed is over.

use crate::config::{Config, ConfigError};
use crate::congestion::Window;
use crate::receive::ReceiveHalf;
use crate::segment::{SackBlocks, Segment};
use crate::send::{Piece, SendHalf};
use anabranch_endpoint::{Duration, Endpoint, Instant, PeerId, Transmit};
use anabranch_units::{BitRate, RunInstant, Seed};

/// State of a connection.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// The connection waits for a SYN.
    Listening,
    /// The connection has sent a SYN, and waits for the answer.
    SynSent,
    /// The connection has answered a SYN, and waits for the acknowledgement.
    SynReceived,
    /// Both sides may send.
    Established,
    /// Both streams are complete and acknowledged.
    Over,
    /// The connection was given up, because the peer was silent for too long.
    GivenUp,
}

/// An event of a connection, for its user.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// The handshake is done.
    Connected,
    /// Further bytes have arrived in order.
    Received {
        /// Number of further bytes.
        bytes: u64,
    },
    /// Further bytes are acknowledged.
    Acknowledged {
        /// Number of further bytes.
        bytes: u64,
    },
    /// The peer's stream has ended.
    PeerClosed,
    /// All written bytes and the end of the stream are acknowledged.
    Finished,
    /// The connection was given up, because the peer was silent for too long.
    GivenUp,
}

/// Counters of one end since its creation.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Number of segments with data sent, retransmissions included.
    pub sent_segments: u64,
    /// Number of segments with data retransmitted.
    pub retransmitted_segments: u64,
    /// Number of expirations of the retransmission timer with unacknowledged data.
    pub timeouts: u64,
    /// Congestion window at the first such expiration, in bytes; `None` before it.
    pub first_timeout_cwnd_bytes: Option<u64>,
    /// Number of losses found by duplicate or selective acknowledgements.
    pub fast_recoveries: u64,
    /// Number of segments with data that arrived beyond a gap.
    pub out_of_order_segments: u64,
}

/// One end of a TCP connection.
///
/// ```
/// use anabranch_endpoint::{Endpoint, Instant, PeerId};
/// use anabranch_transport::{Config, Connection, Event};
///
/// let now = Instant::ZERO;
/// let mut client = Connection::connect(&Config::default(), PeerId(1))?;
/// let mut server = Connection::listen(&Config::default(), PeerId(0))?;
/// client.write(100);
/// // Without time in between: whatever one sends reaches the other at once.
/// loop {
///     let to_server = client.poll_transmit(now).map(|t| server.handle_message(now, PeerId(0), t.msg));
///     let to_client = server.poll_transmit(now).map(|t| client.handle_message(now, PeerId(1), t.msg));
///     if to_server.is_none() && to_client.is_none() {
///         break;
///     }
/// }
/// assert_eq!(server.poll_event(), Some(Event::Connected));
/// assert_eq!(server.poll_event(), Some(Event::Received { bytes: 100 }));
/// # Ok::<(), anabranch_transport::ConfigError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Connection {
    peer: PeerId,
    state: State,
    header_bytes: u32,
    sack: bool,
    ecn: bool,
    timeouts_max: u32,
    send: SendHalf,
    receive: ReceiveHalf,
    sent_segments: u64,
    retransmitted_segments: u64,
    peer_closed: bool,
    finished: bool,
    /// Number of unanswered SYN segments.
    syn_timeouts: u32,
    /// Time of the next SYN.
    syn_at: Option<Instant>,
    syn_now: bool,
    /// Time at which the peer's SYN was sent, echoed in the answer.
    syn_echo: Option<RunInstant>,
    /// An acknowledgement that must precede the last received data (RFC 8257 section 3.2).
    early: Option<Segment>,
    /// Pending events for the user. Byte counts are accumulated, so that the state stays small.
    connected: bool,
    received: u64,
    acknowledged: u64,
    tell_peer_closed: bool,
    tell_finished: bool,
    tell_given_up: bool,
}

impl Connection {
    /// Creates a connection that sends a SYN to `peer` as soon as it is polled.
    ///
    /// Errors: the settings are invalid.
    pub fn connect(config: &Config, peer: PeerId) -> Result<Self, ConfigError> {
        Self::new(config, peer, State::SynSent)
    }

    /// Creates a connection that waits for a SYN from `peer`.
    ///
    /// Errors: the settings are invalid.
    pub fn listen(config: &Config, peer: PeerId) -> Result<Self, ConfigError> {
        Self::new(config, peer, State::Listening)
    }

    fn new(config: &Config, peer: PeerId, state: State) -> Result<Self, ConfigError> {
        config.check()?;
        let mut new = Self {
            peer,
            state,
            header_bytes: config.header_bytes,
            sack: config.sack,
            ecn: config.ecn,
            timeouts_max: config.timeouts_max,
            send: SendHalf::new(config),
            receive: ReceiveHalf::new(config),
            sent_segments: 0,
            retransmitted_segments: 0,
            peer_closed: false,
            finished: false,
            syn_timeouts: 0,
            syn_at: None,
            syn_now: state == State::SynSent,
            syn_echo: None,
            early: None,
            connected: false,
            received: 0,
            acknowledged: 0,
            tell_peer_closed: false,
            tell_finished: false,
            tell_given_up: false,
        };
        if !config.handshake {
            (new.state, new.syn_now) = (State::Established, false);
            // Without a handshake the peer's buffer is unknown, so it is assumed to equal this
            // end's.
            new.send.open(config.receive_buffer.as_u64());
        }
        Ok(new)
    }

    /// Current state.
    pub const fn state(&self) -> State {
        self.state
    }
    /// Counters so far.
    pub fn counters(&self) -> Counters {
        Counters {
            sent_segments: self.sent_segments,
            retransmitted_segments: self.retransmitted_segments,
            timeouts: self.send.timeouts_total(),
            first_timeout_cwnd_bytes: self.send.first_timeout_cwnd(),
            fast_recoveries: self.send.recoveries_total(),
            out_of_order_segments: self.receive.out_of_order_total(),
        }
    }
    /// The congestion window and slow start threshold.
    pub fn window(&self) -> &Window {
        self.send.window()
    }
    /// Smoothed round-trip time; `None` before the first measurement.
    pub fn srtt(&self) -> Option<Duration> {
        self.send.srtt()
    }
    /// Number of bytes written but not acknowledged.
    pub fn unacknowledged_bytes(&self) -> u64 {
        self.send.unacknowledged()
    }
    /// Number of bytes received in order but not read.
    pub fn unread_bytes(&self) -> u64 {
        self.receive.unread()
    }

    /// Adds `bytes` bytes to the stream. The user must limit the bytes that wait
    /// ([`Self::unacknowledged_bytes`]).
    ///
    /// Panics: in a debug build, after [`Self::close`].
    pub fn write(&mut self, bytes: u64) {
        self.send.write(bytes);
    }
    /// Ends the stream after the bytes written so far.
    pub fn close(&mut self) {
        self.send.close();
    }
    /// Limits the rate of data from now on, in addition to the windows. `None` removes the limit.
    /// The connection must be polled afterwards.
    ///
    /// Units: the rate counts data, retransmissions included, but not headers, acknowledgements and
    /// the handshake. In any interval the connection sends at most the limit times the interval,
    /// plus one segment. Panics: if the limit is zero. Cost: a timer per segment; none without a
    /// limit.
    pub fn set_pacing_limit(&mut self, limit: Option<BitRate>) {
        self.send.set_pacing_limit(limit);
    }
    /// Seeds the congestion control's random draws. Must be called before the first segment is
    /// sent.
    pub fn set_seed(&mut self, seed: Seed) {
        self.send.set_seed(seed);
    }
    /// Removes `bytes` bytes from the receive buffer, so that more data is accepted.
    pub fn read(&mut self, bytes: u64) {
        if self.receive.read(bytes) {
            self.receive.ask_ack();
        }
    }

    /// Creates a segment without data, with all other fields set.
    fn segment(&mut self, now: Instant) -> Segment {
        let mut segment = Segment {
            seq: self.send.next(),
            len: 0,
            header_bytes: self.header_bytes,
            syn: false,
            fin: false,
            ack: None,
            window: 0,
            sack: SackBlocks::default(),
            sent_at: now.into(),
            echo: None,
            ece: false,
            cwr: false,
            ect: false,
            ce: false,
            circuit: false,
        };
        self.receive.stamp(&mut segment, self.sack);
        segment
    }

    fn syn(&mut self, now: Instant) -> Segment {
        let mut segment = self.segment(now);
        let acknowledges = self.state == State::SynReceived;
        (segment.syn, segment.seq, segment.echo) = (true, 0, self.syn_echo);
        segment.ack = segment.ack.filter(|_| acknowledges);
        // RFC 6298 section 2.1 and 5.5.
        self.syn_at = Some(now + self.send.rtt().rto());
        segment
    }

    fn establish(&mut self) {
        self.state = State::Established;
        (self.syn_at, self.syn_now, self.connected) = (None, false, true);
        self.send.rtt().handle_progress();
    }

    fn handle_syn(&mut self, now: Instant, segment: &Segment) {
        match self.state {
            State::Listening | State::SynReceived => {
                self.state = State::SynReceived;
                (self.syn_now, self.syn_echo) = (true, Some(segment.sent_at));
                self.send.open(segment.window);
            }
            State::SynSent if segment.ack.is_some() => {
                self.send.open(segment.window);
                if let Some(sent_at) = segment.echo {
                    self.send.rtt().sample(now.saturating_since(sent_at.into()), 1);
                }
                self.establish();
                self.receive.ask_ack();
            }
            // Repeats the answer, because the peer repeated its SYN: the acknowledgement was lost.
            State::Established | State::Over => self.receive.ask_ack(),
            State::SynSent | State::GivenUp => {}
        }
    }

    fn check_over(&mut self) {
        if self.finished && self.peer_closed {
            self.state = State::Over;
        }
    }
}

impl Endpoint for Connection {
    type Msg = Segment;
    type Event = Event;

    fn handle_message(&mut self, now: Instant, _from: PeerId, segment: Segment) {
        if segment.syn {
            return self.handle_syn(now, &segment);
        }
        match self.state {
            State::SynReceived => {
                if let Some(sent_at) = segment.echo {
                    self.send.rtt().sample(now.saturating_since(sent_at.into()), 1);
                }
                self.establish();
            }
            State::Established | State::Over => {}
            State::Listening | State::SynSent | State::GivenUp => return,
        }
        let acked = self.send.handle_ack(now, &segment);
        self.acknowledged += acked.bytes;
        if acked.finished {
            (self.finished, self.tell_finished) = (true, true);
        }
        if self.receive.must_ack_before(&segment) {
            self.early = Some(self.segment(now));
        }
        let taken = self.receive.handle_segment(now, &segment);
        self.received += taken.in_order;
        if taken.ended {
            (self.peer_closed, self.tell_peer_closed) = (true, true);
        }
        self.check_over();
    }

    fn handle_timeout(&mut self, now: Instant) {
        if self.syn_at.is_some_and(|t| t <= now) {
            self.syn_timeouts += 1;
            self.send.rtt().back_off();
            (self.syn_at, self.syn_now) = (None, true);
            if self.syn_timeouts > self.timeouts_max {
                (self.state, self.syn_now, self.tell_given_up) = (State::GivenUp, false, true);
            }
        }
        if self.state == State::Established
            && self.send.timer().is_some_and(|t| t <= now)
            && !self.send.handle_timeout(now)
        {
            (self.state, self.tell_given_up) = (State::GivenUp, true);
        }
    }

    fn poll_transmit(&mut self, now: Instant) -> Option<Transmit<Segment>> {
        let peer = self.peer;
        let to = |msg| Some(Transmit { to: peer, not_before: None, msg });
        match self.state {
            State::SynSent | State::SynReceived => {
                return std::mem::take(&mut self.syn_now).then(|| self.syn(now)).and_then(to);
            }
            State::Established | State::Over => {}
            State::Listening | State::GivenUp => return None,
        }
        if let Some(early) = self.early.take() {
            return to(early);
        }
        if self.state == State::Established
            && let Some(Piece { seq, len, fin, is_retransmission }) = self.send.poll(now)
        {
            self.sent_segments += 1;
            self.retransmitted_segments += u64::from(is_retransmission);
            if !is_retransmission {
                self.receive.note_data_sent(now);
            }
            let mut segment = self.segment(now);
            (segment.seq, segment.len, segment.fin) = (seq, len, fin);
            segment.cwr = !is_retransmission && self.ecn && self.send.take_cwr();
            // RFC 3168 section 6.1.5: retransmissions are not ECN-capable.
            segment.ect = self.ecn && !is_retransmission;
            return to(segment);
        }
        self.send.mind_probe(now);
        self.receive.must_ack(now).then(|| self.segment(now)).and_then(to)
    }

    fn poll_event(&mut self) -> Option<Event> {
        let take = std::mem::take::<u64>;
        if std::mem::take(&mut self.connected) {
            return Some(Event::Connected);
        }
        if self.received > 0 {
            return Some(Event::Received { bytes: take(&mut self.received) });
        }
        if self.acknowledged > 0 {
            return Some(Event::Acknowledged { bytes: take(&mut self.acknowledged) });
        }
        if std::mem::take(&mut self.tell_peer_closed) {
            return Some(Event::PeerClosed);
        }
        if std::mem::take(&mut self.tell_finished) {
            return Some(Event::Finished);
        }
        std::mem::take(&mut self.tell_given_up).then_some(Event::GivenUp)
    }

    fn poll_timeout(&self) -> Option<Instant> {
        match self.state {
            State::SynSent | State::SynReceived => self.syn_at,
            State::Established => Instant::earliest([self.send.timer(), self.receive.ack_at()]),
            State::Listening | State::Over | State::GivenUp => None,
        }
    }
}

#[cfg(test)]
mod tests;
