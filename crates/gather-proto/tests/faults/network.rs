//! The path between the client and a server. Control messages travel on a stream, which may only be
//! slow; datagrams may be lost.

use anabranch_units::{BitRate, ByteCount, Duration, Instant, RandomStream};

/// Number of bytes that encryption, UDP and IP add to a datagram, and TLS, TCP and IP to a control
/// message.
const HEADER_BYTES: u64 = 56;
/// Minimum retransmission timeout of the control stream.
const RTO_MIN: Duration = Duration::from_ms(200);

/// A part of a path's traffic that can be cut separately.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum TrafficPart {
    /// Control messages in both directions.
    Control,
    /// Datagrams to the server.
    Up,
    /// Datagrams to the client.
    Down,
}

impl TrafficPart {
    pub const ALL: [Self; 3] = [Self::Control, Self::Up, Self::Down];
}

/// The path between the client and a server.
#[derive(Clone, Debug)]
pub struct ServerPath {
    pub delay: Duration,
    /// Additional delay of the server when a connection is opened.
    pub connecting: Duration,
    pub loss_ppm: u32,
    pub repeat_ppm: u32,
    /// Rate of delayed datagrams in parts per million.
    pub late_ppm: u32,
    /// Maximum additional delay of delayed datagrams, so that later datagrams overtake them.
    pub late_max: Duration,
    /// Maximum datagram length in bytes; longer datagrams are lost.
    pub datagram_max: usize,
    /// Rate of the link in each direction, and the length of its queue; `None` for no limit.
    pub link: Option<(BitRate, ByteCount)>,
    /// Whether segments of the control stream are lost as often as datagrams.
    pub loses_control: bool,
    /// End of the last transmission in each direction.
    free_at: [Instant; 2],
    cut_until: [Instant; 3],
    /// Arrival time of the last control message in each direction; control messages arrive in
    /// order.
    last: [Instant; 2],
}

impl ServerPath {
    pub fn new(delay: Duration, datagram_max: usize) -> Self {
        Self {
            delay,
            connecting: Duration::ZERO,
            loss_ppm: 0,
            repeat_ppm: 0,
            late_ppm: 0,
            late_max: Duration::ZERO,
            datagram_max,
            link: None,
            loses_control: false,
            free_at: [Instant::ZERO; 2],
            cut_until: [Instant::ZERO; 3],
            last: [Instant::ZERO; 2],
        }
    }

    pub fn cut(&mut self, lane: TrafficPart, until: Instant) {
        self.cut_until[lane as usize] = until;
    }

    /// End of the cut of a part of the traffic.
    pub fn cut_until(&self, lane: TrafficPart) -> Instant {
        self.cut_until[lane as usize]
    }

    /// Opens a connection, whose messages do not wait for messages of an earlier connection.
    pub fn connect(&mut self, now: Instant) {
        self.last = [now; 2];
    }

    /// Time at which `bytes` bytes, sent at `at`, leave the link; `None` if the link's queue is
    /// full.
    fn transmitted(&self, at: Instant, is_up: bool, bytes: usize) -> Option<Instant> {
        let Some((rate, queue)) = self.link else { return Some(at) };
        let begins = at.max(self.free_at[usize::from(is_up)]);
        let is_full = begins.saturating_since(at) > rate.transmit_time(queue);
        (!is_full).then(|| begins + rate.transmit_time(ByteCount::new(bytes as u64 + HEADER_BYTES)))
    }

    /// Arrival time of a control message sent now: after the end of a cut, after earlier messages,
    /// and after the retransmissions of lost segments.
    pub fn control(&mut self, now: Instant, random: &mut RandomStream, is_up: bool, bytes: usize) -> Instant {
        let mut sent_at = now.max(self.cut_until[TrafficPart::Control as usize]);
        let mut timeout = self.delay * 2 + RTO_MIN;
        let arrives = loop {
            let transmitted = self.transmitted(sent_at, is_up, bytes);
            // A retransmission occupies the link only at its own time.
            if let Some(at) = transmitted.filter(|_| sent_at == now) {
                self.free_at[usize::from(is_up)] = at;
            }
            let is_lost = self.loses_control && random.chance_ppm(self.loss_ppm);
            match transmitted {
                Some(at) if !is_lost => break at + self.delay,
                _ => sent_at += timeout,
            }
            timeout = timeout * 2;
        };
        let last = &mut self.last[usize::from(is_up)];
        *last = arrives.max(*last);
        *last
    }

    /// Arrival of the last control message from the server.
    pub fn last_control_down(&self) -> Instant {
        self.last[0]
    }

    /// Arrival times of a datagram of `bytes` bytes sent at `now`: none, one or two.
    pub fn datagram(
        &mut self,
        now: Instant,
        random: &mut RandomStream,
        lane: TrafficPart,
        bytes: usize,
    ) -> Vec<Instant> {
        if self.cut_until(lane) > now || bytes > self.datagram_max {
            return Vec::new();
        }
        let copies = 1 + u32::from(random.chance_ppm(self.repeat_ppm));
        let mut arrivals = Vec::new();
        for _ in 0..copies {
            let is_up = lane == TrafficPart::Up;
            let Some(at) = self.transmitted(now, is_up, bytes) else { continue };
            self.free_at[usize::from(is_up)] = at;
            if !random.chance_ppm(self.loss_ppm) {
                let is_late = random.chance_ppm(self.late_ppm);
                let late = if is_late {
                    Duration::from_us(random.below(1 + self.late_max.as_us()))
                } else {
                    Duration::ZERO
                };
                arrivals.push(at + self.delay + late);
            }
        }
        arrivals
    }

    /// Repairs the path, except for its MTU.
    pub fn heal(&mut self) {
        let Self { delay, connecting, datagram_max, last, .. } = *self;
        *self = Self { connecting, last, ..Self::new(delay, datagram_max) };
    }
}
