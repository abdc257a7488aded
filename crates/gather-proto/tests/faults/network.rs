//! The way between the client and a server: a stream of control messages, which is slow at the worst, and datagrams, which are lost.

use anabranch_units::{Duration, Instant, RandomStream};

/// What a way carries, and can be cut for by itself.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Lane {
    /// Control messages, to and fro.
    Control,
    /// Datagrams to the server.
    Up,
    /// Datagrams to the client.
    Down,
}

impl Lane {
    pub const ALL: [Self; 3] = [Self::Control, Self::Up, Self::Down];
}

/// The way between the client and a server.
#[derive(Clone, Debug)]
pub struct Way {
    pub delay: Duration,
    /// How long a server takes beside that until a connection stands.
    pub connecting: Duration,
    pub loss_ppm: u32,
    pub repeat_ppm: u32,
    /// Of the datagrams that are late, and how much at the most: those that are sent later come earlier.
    pub late_ppm: u32,
    pub late_max: Duration,
    /// Longer datagrams never come.
    pub datagram_max: usize,
    cut_until: [Instant; 3],
    /// When the last control message arrives, each way: they come in order.
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

    /// Until when nothing passes on a lane.
    pub fn cut_until(&self, lane: Lane) -> Instant {
        self.cut_until[lane as usize]
    }

    /// A connection stands: its messages do not wait for those of an earlier one.
    pub fn connect(&mut self, now: Instant) {
        self.last = [now; 2];
    }

    /// When a control message arrives that leaves now: once the stream is not cut any more, and after those before it.
    pub fn control(&mut self, now: Instant, is_up: bool) -> Instant {
        let last = &mut self.last[usize::from(is_up)];
        *last = (now.max(self.cut_until[Lane::Control as usize]) + self.delay).max(*last);
        *last
    }

    /// When a datagram of so many bytes arrives that leaves now: never, once or twice.
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

    /// All is well again, but for how long datagrams may be.
    pub fn heal(&mut self) {
        let Self { delay, connecting, datagram_max, last, .. } = *self;
        *self = Self { connecting, last, ..Self::new(delay, datagram_max) };
    }
}
