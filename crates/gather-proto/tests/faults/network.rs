//! The path between the client and a server: a stream of control messages, which may only be slow,
//! and datagrams, which may be lost.

use anabranch_units::{Duration, Instant, RandomStream};

/// A part of a path's traffic that can be cut separately.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Lane {
    /// Control messages in both directions.
    Control,
    /// Datagrams to the server.
    Up,
    /// Datagrams to the client.
    Down,
}

impl Lane {
    pub const ALL: [Self; 3] = [Self::Control, Self::Up, Self::Down];
}

/// The path between the client and a server.
#[derive(Clone, Debug)]
pub struct Way {
    pub delay: Duration,
    /// Additional time of a server for opening a connection.
    pub connecting: Duration,
    pub loss_ppm: u32,
    pub repeat_ppm: u32,
    /// Rate of late datagrams, and their maximum extra delay: later ones overtake them.
    pub late_ppm: u32,
    pub late_max: Duration,
    /// Maximum datagram length; longer ones are lost.
    pub datagram_max: usize,
    cut_until: [Instant; 3],
    /// Arrival of the last control message in each direction: they arrive in order.
    last: [Instant; 2],
}

impl Way {
    pub fn new(delay: Duration, datagram_max: usize) -> Self {
        Self {
            delay,
            connecting: Duration::ZERO,
            loss_ppm: 0,
            repeat_ppm: 0,
            late_ppm: 0,
            late_max: Duration::ZERO,
            datagram_max,
            cut_until: [Instant::ZERO; 3],
            last: [Instant::ZERO; 2],
        }
    }

    pub fn cut(&mut self, lane: Lane, until: Instant) {
        self.cut_until[lane as usize] = until;
    }

    /// End of a lane's cut.
    pub fn cut_until(&self, lane: Lane) -> Instant {
        self.cut_until[lane as usize]
    }

    /// Opens a connection: its messages do not wait for an earlier connection's.
    pub fn connect(&mut self, now: Instant) {
        self.last = [now; 2];
    }

    /// Arrival time of a control message sent now: after the end of a cut, and after earlier
    /// messages.
    pub fn control(&mut self, now: Instant, is_up: bool) -> Instant {
        let last = &mut self.last[usize::from(is_up)];
        *last = (now.max(self.cut_until[Lane::Control as usize]) + self.delay).max(*last);
        *last
    }

    /// Arrival times of a datagram of `bytes` bytes sent now: none, one or two.
    pub fn datagram(
        &self,
        now: Instant,
        random: &mut RandomStream,
        lane: Lane,
        bytes: usize,
    ) -> Vec<Instant> {
        if self.cut_until(lane) > now || bytes > self.datagram_max {
            return Vec::new();
        }
        let copies = 1 + u32::from(random.chance_ppm(self.repeat_ppm));
        let mut arrivals = Vec::new();
        for _ in 0..copies {
            if !random.chance_ppm(self.loss_ppm) {
                let is_late = random.chance_ppm(self.late_ppm);
                let late = if is_late {
                    Duration::from_us(random.below(1 + self.late_max.as_us()))
                } else {
                    Duration::ZERO
                };
                arrivals.push(now + self.delay + late);
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
