//! An output port: queues, a serialiser and the wire behind it.
//!
//! This port needs two events per hop (end of transmission, end of the wire). It is for links with
//! several priorities, a shared buffer, or settings that change. All other links use its one-event
//! counterpart [`crate::FifoPort`], which tests compare with this reference (STYLE 33). Read
//! [`Port`] first.

use anabranch_units::{
    BitRate, ByteCount, Duration, LOSS_BURST_MAX, RandomStream, RunInstant, Serialiser, loss_ppm_max,
};

use crate::EventQueue;
use crate::buffer::BufferId;
use crate::element::{Cx, Element};
use crate::packet::{Drop, DropCounts, Fifo, Flag, PRIORITIES, PacketId, PacketMeta};
use crate::target::Target;

/// Minimum rate of a port. At a lower rate, the transmission time of a byte exceeds the 32.32 fixed
/// point of [`Serialiser`].
pub const RATE_MIN: BitRate = BitRate::bps(2_000);

/// Maximum delay of a wire. It is well above any real network's delay, and well within the range of
/// a [`RunInstant`].
pub const DELAY_MAX: Duration = Duration::from_secs(3_600);

/// Settings of a port and its wire. All settings may change at run time.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct PortSettings {
    /// Rate; at least [`RATE_MIN`].
    pub rate: BitRate,
    /// Delay of the wire, from the departure of the last bit; at most [`DELAY_MAX`].
    pub delay: Duration,
    /// Probability of random losses on the wire in parts per million; at most 1,000,000.
    pub loss_ppm: u32,
    /// Mean length of a burst of losses in packets, 1 to [`LOSS_BURST_MAX`]. With 1, losses are
    /// independent. Longer bursts follow Gilbert's model: because bursts must end, `loss_ppm` is at
    /// most [`loss_ppm_max`].
    pub loss_burst: u32,
    /// Probability of random bit errors on the wire in parts per 10^12; at most 10^12. A single bit
    /// error drops the packet.
    pub bit_errors_ppt: u64,
    /// Maximum bytes *in each priority's queue*. The packet being sent is not in its queue.
    pub queue_bytes_max: ByteCount,
    /// Maximum number of packets in each priority's queue; `None` for no limit.
    pub queue_packets_max: Option<u32>,
    /// Queue length in bytes above which an arriving ECN-capable packet is marked (DCTCP section
    /// 3.1, K).
    pub mark_bytes: Option<ByteCount>,
    /// True if the link is up.
    pub up: bool,
}

/// Reason why settings are invalid for a port.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PortError {
    /// The rate is below [`RATE_MIN`].
    RateTooLow {
        /// The requested rate.
        rate: BitRate,
    },
    /// The delay is above [`DELAY_MAX`].
    DelayTooLong {
        /// The requested delay.
        delay: Duration,
    },
    /// The loss probability is above one.
    LossTooHigh {
        /// The requested loss, in parts per million.
        loss_ppm: u32,
    },
    /// The burst length is 0, or above [`LOSS_BURST_MAX`].
    LossBurst {
        /// The requested burst length, in packets.
        loss_burst: u32,
    },
    /// The loss is too high for bursts of this length.
    LossTooHighForBurst {
        /// The requested loss, in parts per million.
        loss_ppm: u32,
        /// The requested burst length, in packets.
        loss_burst: u32,
        /// Maximum loss with bursts of this length, in parts per million.
        loss_ppm_max: u32,
    },
    /// The probability of bit errors is above one.
    BitErrorsTooHigh {
        /// The requested bit errors, in parts per 10^12.
        bit_errors_ppt: u64,
    },
}

impl std::fmt::Display for PortError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::RateTooLow { rate } => write!(f, "link rate {rate}: must be at least {RATE_MIN}"),
            Self::DelayTooLong { delay } => write!(f, "link delay {delay}: must be at most {DELAY_MAX}"),
            Self::LossTooHigh { loss_ppm } => {
                write!(f, "link loss {loss_ppm} ppm: must be at most 1000000 ppm")
            }
            Self::LossBurst { loss_burst } => {
                write!(f, "bursts of {loss_burst} lost packets: must be of 1 to {LOSS_BURST_MAX}")
            }
            Self::LossTooHighForBurst { loss_ppm, loss_burst, loss_ppm_max } => write!(
                f,
                "link loss {loss_ppm} ppm in bursts of {loss_burst}: must be at most {loss_ppm_max} ppm, as between two bursts a packet arrives"
            ),
            Self::BitErrorsTooHigh { bit_errors_ppt } => {
                write!(f, "link bit errors {bit_errors_ppt} in 10^12: must be at most 10^12")
            }
        }
    }
}
impl std::error::Error for PortError {}

impl PortSettings {
    /// Creates the settings of a link that is up and has no losses.
    pub const fn new(rate: BitRate, delay: Duration, queue_bytes_max: ByteCount) -> Self {
        Self {
            rate,
            delay,
            loss_ppm: 0,
            loss_burst: 1,
            bit_errors_ppt: 0,
            queue_bytes_max,
            queue_packets_max: None,
            mark_bytes: None,
            up: true,
        }
    }

    /// Checks that a port can have these settings.
    ///
    /// Errors: see [`PortError`].
    pub fn check(&self) -> Result<(), PortError> {
        self.serialiser().map(|_| ())
    }

    pub(crate) fn serialiser(&self) -> Result<Serialiser, PortError> {
        if self.delay > DELAY_MAX {
            return Err(PortError::DelayTooLong { delay: self.delay });
        }
        if self.loss_ppm > 1_000_000 {
            return Err(PortError::LossTooHigh { loss_ppm: self.loss_ppm });
        }
        let (loss_ppm, loss_burst) = (self.loss_ppm, self.loss_burst);
        let loss_ppm_max = loss_ppm_max(loss_burst).ok_or(PortError::LossBurst { loss_burst })?;
        if loss_ppm > loss_ppm_max {
            return Err(PortError::LossTooHighForBurst { loss_ppm, loss_burst, loss_ppm_max });
        }
        if self.bit_errors_ppt > PPT {
            return Err(PortError::BitErrorsTooHigh { bit_errors_ppt: self.bit_errors_ppt });
        }
        match self.rate.serialiser() {
            Some(serialiser) if self.rate >= RATE_MIN => Ok(serialiser),
            _ => Err(PortError::RateTooLow { rate: self.rate }),
        }
    }
}

/// Counters of a port since it was created.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct PortCounters {
    /// Packets that arrived at the port.
    pub offered_packets: u64,
    /// Bytes that arrived at the port.
    pub offered_bytes: u64,
    /// Packets sent completely, including packets lost on the wire afterwards.
    pub sent_packets: u64,
    /// Bytes of the packets sent completely.
    pub sent_bytes: u64,
    /// Packets that left the wire at its far end.
    pub arrived_packets: u64,
    /// Bytes of the packets that left the wire.
    pub arrived_bytes: u64,
    /// Packets dropped at the port or on its wire, by reason.
    pub drops: DropCounts,
    /// Packets that the port has marked (ECN).
    pub marked_packets: u64,
    /// Sum of the packets' waiting times before transmission.
    pub wait_sum: WaitSum,
    /// Longest waiting time of a packet before its transmission.
    pub wait_max: Duration,
}

/// A sum of waiting times.
///
/// Units: picoseconds in 128 bits, because the sum over a long run exceeds the range of a
/// [`Duration`].
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct WaitSum(u128);

impl WaitSum {
    #[inline]
    pub(crate) const fn add(&mut self, wait: Duration) {
        self.0 += wait.as_ps() as u128;
    }
    /// Returns the mean over `packets` packets; `None` if there are none.
    pub fn mean(self, packets: u64) -> Option<Duration> {
        let mean = self.0.checked_div(u128::from(packets))?;
        Some(Duration::from_ps(u64::try_from(mean).expect("no packet waited for longer than the run")))
    }
}

/// Random losses and bit errors of a wire.
#[derive(Clone, Debug)]
pub(crate) struct WireErrors {
    random: RandomStream,
    loss_ppm: u32,
    /// Burst model, and whether the last packet was lost (`None` before the first packet). `None`
    /// as a whole for independent losses.
    bursts: Option<(Bursts, Option<bool>)>,
    /// Probability that a byte arrives undamaged, in parts of 2^63.
    byte_intact_q63: u64,
}

/// Transitions of a wire's state from packet to packet in Gilbert's model, whose bad state loses
/// every packet.
///
/// Source: Gilbert, *Capacity of a burst-noise channel*, Bell System Technical Journal, 1960, with
/// h = 0 and k = 1 in the notation of Elliott, *Estimates of error rates for codes on burst-noise
/// channels*, 1963.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
struct Bursts {
    /// Probability of a change from good to bad per packet, in parts of 2^63.
    begins_q63: u64,
    /// Probability of a change from bad to good per packet, in parts of 2^63.
    ends_q63: u64,
}

impl Bursts {
    /// Computes the model for bursts of `loss_burst` packets on average with a total loss of
    /// `loss_ppm`. Returns `None` for independent losses.
    ///
    /// The share of time in the bad state is begins / (begins + ends), with ends = 1 /
    /// `loss_burst`. This equation determines begins.
    fn of(loss_ppm: u32, loss_burst: u32) -> Option<Self> {
        const ONE_Q63: u128 = 1 << 63;
        if loss_ppm == 0 || loss_burst <= 1 {
            return None;
        }
        let (loss_ppm, loss_burst) = (u128::from(loss_ppm), u128::from(loss_burst));
        let begins = ONE_Q63 * loss_ppm / ((1_000_000 - loss_ppm) * loss_burst);
        Some(Self { begins_q63: begins as u64, ends_q63: (ONE_Q63 / loss_burst) as u64 })
    }
}

/// The number 1 in parts per 10^12.
const PPT: u64 = 1_000_000_000_000;

impl WireErrors {
    pub(crate) fn new(random: RandomStream, settings: &PortSettings) -> Self {
        let mut new = Self { random, loss_ppm: 0, bursts: None, byte_intact_q63: 1 << 63 };
        new.change(settings);
        new
    }

    fn change(&mut self, settings: &PortSettings) {
        let bursts = Bursts::of(settings.loss_ppm, settings.loss_burst);
        // A burst continues across changes of other settings.
        if bursts != self.bursts.map(|(bursts, _)| bursts) {
            self.bursts = bursts.map(|bursts| (bursts, None));
        }
        self.loss_ppm = settings.loss_ppm;
        let intact = ((1u128 << 63) * u128::from(PPT - settings.bit_errors_ppt) / u128::from(PPT)) as u64;
        self.byte_intact_q63 = power_q63(intact, 8);
    }

    /// Draws whether a packet of `size_bytes` is lost. Returns the reason of a loss.
    #[inline]
    pub(crate) fn draw(&mut self, size_bytes: u32) -> Option<Drop> {
        if self.loss_ppm == 0 && self.byte_intact_q63 == 1 << 63 {
            return None;
        }
        if self.loss_ppm > 0 && self.loses() {
            return Some(Drop::Loss);
        }
        let intact = power_q63(self.byte_intact_q63, size_bytes);
        (intact < 1 << 63 && self.random.next_u64() >> 1 >= intact).then_some(Drop::BitError)
    }

    /// Draws whether the wire loses the next packet. Cost: one draw.
    #[inline]
    fn loses(&mut self) -> bool {
        let Some((bursts, last)) = &mut self.bursts else { return self.random.chance_ppm(self.loss_ppm) };
        let is_lost = match last {
            // For the first packet, the wire's state is drawn from its long-term distribution.
            None => self.random.chance_ppm(self.loss_ppm),
            Some(false) => self.random.next_u64() >> 1 < bursts.begins_q63,
            Some(true) => self.random.next_u64() >> 1 >= bursts.ends_q63,
        };
        *last = Some(is_lost);
        is_lost
    }
}

/// Returns `base` to the power of `exponent`. `base` and the result are in parts of 2^63, rounded
/// down at each step.
fn power_q63(base: u64, mut exponent: u32) -> u64 {
    let times = |a: u64, b: u64| ((u128::from(a) * u128::from(b)) >> 63) as u64;
    let (mut square, mut power) = (base, 1 << 63);
    while exponent > 0 {
        if exponent & 1 == 1 {
            power = times(power, square);
        }
        square = times(square, square);
        exponent >>= 1;
    }
    power
}

/// An output port: a drop-tail queue per priority, a serialiser that sends the head of the first
/// non-empty queue without preemption, and a wire with delay and random losses.
///
/// A link that goes down drops queued packets and the packet being sent ([`Drop::LinkDown`]), and
/// each arriving packet until the link is up again. Packets already on the wire arrive. A new rate
/// also applies to the remaining part of the packet being sent. After the delay becomes shorter, no
/// packet overtakes an earlier packet on the wire.
#[derive(Debug)]
pub struct Port {
    peer: Target,
    settings: PortSettings,
    serialiser: Serialiser,
    chance: WireErrors,
    buffer: Option<BufferId>,
    queues: [Fifo; PRIORITIES],
    sending: Option<Transmission>,
    /// Number of the current transmission. After a change, it distinguishes the current timer from
    /// stale timers.
    generation: u32,
    wire: Fifo,
    wire_due_first: Option<RunInstant>,
    wire_due_last: RunInstant,
    counters: PortCounters,
}

#[derive(Copy, Clone, Debug)]
struct Transmission {
    packet: PacketId,
    time: Duration,
    done_at: RunInstant,
}

/// Token of the timer for the arrival of the first packet on the wire.
const ARRIVE: u32 = 0;
/// Low bit of the tokens for the end of a transmission. The other bits are the generation.
const SENT: u32 = 1;

impl Port {
    /// Creates a port whose packets arrive at `peer`. `random` decides random losses and bit
    /// errors.
    ///
    /// Errors: settings that a port cannot have.
    pub fn new(peer: Target, settings: PortSettings, random: RandomStream) -> Result<Self, PortError> {
        Ok(Self {
            peer,
            settings,
            serialiser: settings.serialiser()?,
            chance: WireErrors::new(random, &settings),
            buffer: None,
            queues: [Fifo::default(); PRIORITIES],
            sending: None,
            generation: 0,
            wire: Fifo::default(),
            wire_due_first: None,
            wire_due_last: RunInstant::ZERO,
            counters: PortCounters::default(),
        })
    }

    /// Returns the same port with its queues in the fabric's shared buffer `buffer`. The queues'
    /// own limits still apply.
    pub const fn with_buffer(mut self, buffer: BufferId) -> Self {
        self.buffer = Some(buffer);
        self
    }

    /// Current settings.
    pub const fn settings(&self) -> &PortSettings {
        &self.settings
    }
    /// The counters so far.
    pub const fn counters(&self) -> &PortCounters {
        &self.counters
    }
    /// Bytes in all queues, without the packet being sent.
    pub fn queue_bytes(&self) -> ByteCount {
        ByteCount::new(self.queues.iter().map(Fifo::bytes).sum())
    }
    /// Packets in all queues, without the packet being sent.
    pub fn queue_packets(&self) -> u32 {
        self.queues.iter().map(Fifo::packets).sum()
    }
    /// Packets in the queues, being sent, and on the wire.
    pub fn packets_held(&self) -> u64 {
        let waiting: u64 = self.queues.iter().map(|q| u64::from(q.packets())).sum();
        waiting + u64::from(self.sending.is_some()) + u64::from(self.wire.packets())
    }

    /// Changes the port's settings from now on.
    ///
    /// Errors: settings that a port cannot have; the current settings then stay.
    pub fn handle_settings<Q: EventQueue>(
        &mut self,
        cx: &mut Cx<'_, Q>,
        settings: PortSettings,
    ) -> Result<(), PortError> {
        self.serialiser = settings.serialiser()?;
        let rate_before = self.settings.rate;
        self.settings = settings;
        self.chance.change(&settings);
        if !settings.up {
            self.generation = self.generation.wrapping_add(1);
            if let Some(sending) = self.sending.take() {
                self.drop(cx, sending.packet, Drop::LinkDown);
            }
            while let Some(p) = self.pop_first(cx) {
                self.drop(cx, p, Drop::LinkDown);
            }
        } else if let (Some(sending), true) = (self.sending, settings.rate != rate_before) {
            // The remaining share of the packet needs the same share of the packet's transmission
            // time at the new rate.
            let time = self.serialiser.time(cx.meta(sending.packet).size_bytes);
            let left = u128::from((sending.done_at - cx.now()).as_ps()) * u128::from(time.as_ps())
                / u128::from(sending.time.as_ps().max(1));
            let left = Duration::from_ps(u64::try_from(left).expect("less than the packet's whole time"));
            self.transmit(cx, sending.packet, time, left);
        }
        Ok(())
    }

    /// Returns the arrival time of the next packet: the first packet on the wire or, if the wire is
    /// empty, the packet being sent.
    pub(crate) fn next_arrival(&self) -> Option<RunInstant> {
        let sent = self.sending.map(|s| (s.done_at + self.settings.delay).max(self.wire_due_last));
        self.wire_due_first.or(sent)
    }

    #[inline]
    fn drop<Q: EventQueue>(&mut self, cx: &mut Cx<'_, Q>, p: PacketId, reason: Drop) {
        self.counters.drops.count(reason);
        cx.drop(p, reason);
    }

    #[inline]
    fn pop_first<Q: EventQueue>(&mut self, cx: &mut Cx<'_, Q>) -> Option<PacketId> {
        let p = self.queues.iter_mut().find_map(|queue| queue.pop(cx.all_meta()))?;
        if let Some(buffer) = self.buffer {
            let size_bytes = cx.meta(p).size_bytes;
            cx.buffer(buffer).leave(size_bytes);
        }
        Some(p)
    }

    /// Occupies the serialiser with `p` for `left`, of the whole packet's transmission time `time`.
    #[inline]
    fn transmit<Q: EventQueue>(&mut self, cx: &mut Cx<'_, Q>, p: PacketId, time: Duration, left: Duration) {
        self.generation = self.generation.wrapping_add(1);
        let done_at = cx.now() + left;
        self.sending = Some(Transmission { packet: p, time, done_at });
        cx.arm(done_at, self.generation << 1 | SENT);
    }

    #[inline]
    fn transmit_whole<Q: EventQueue>(&mut self, cx: &mut Cx<'_, Q>, p: PacketId) {
        let time = self.serialiser.time(cx.meta(p).size_bytes);
        self.transmit(cx, p, time, time);
    }

    #[inline]
    fn on_sent<Q: EventQueue>(&mut self, cx: &mut Cx<'_, Q>) {
        let p = self
            .sending
            .take()
            .expect("this generation's timer is armed only while a packet is being sent")
            .packet;
        self.counters.sent_packets += 1;
        self.counters.sent_bytes += u64::from(cx.meta(p).size_bytes);
        if let Some(reason) = self.chance.draw(cx.meta(p).size_bytes) {
            self.drop(cx, p, reason);
        } else {
            let due = (cx.now() + self.settings.delay).max(self.wire_due_last);
            self.wire_due_last = due;
            cx.meta(p).due = due;
            if self.wire_due_first.is_none() {
                self.wire_due_first = Some(due);
                cx.arm(due, ARRIVE);
            }
            self.wire.push(cx.all_meta(), p);
        }
        if let Some(next) = self.pop_first(cx) {
            // While a packet is queued, its `due` field holds the time at which it arrived at this
            // port.
            let wait = cx.now() - cx.meta(next).due;
            self.counters.wait_sum.add(wait);
            self.counters.wait_max = self.counters.wait_max.max(wait);
            self.transmit_whole(cx, next);
        }
    }

    #[inline]
    fn on_arrive<Q: EventQueue>(&mut self, cx: &mut Cx<'_, Q>) {
        let p = self.wire.pop(cx.all_meta()).expect("ARRIVE is armed only while the wire holds a packet");
        self.wire_due_first = self.wire.first().map(|next| cx.meta(next).due);
        if let Some(due) = self.wire_due_first {
            cx.arm(due, ARRIVE);
        }
        let meta = cx.meta(p);
        meta.hops = meta.hops.saturating_add(1);
        self.counters.arrived_packets += 1;
        self.counters.arrived_bytes += u64::from(meta.size_bytes);
        cx.forward(self.peer, p);
    }
}

impl Element for Port {
    #[inline]
    fn on_packet<Q: EventQueue>(&mut self, cx: &mut Cx<'_, Q>, p: PacketId) {
        let &mut PacketMeta { size_bytes, priority, .. } = cx.meta(p);
        self.counters.offered_packets += 1;
        self.counters.offered_bytes += u64::from(size_bytes);
        if !self.settings.up {
            return self.drop(cx, p, Drop::LinkDown);
        }
        if self.sending.is_none() {
            return self.transmit_whole(cx, p);
        }
        let queue = &mut self.queues[usize::from(priority).min(PRIORITIES - 1)];
        let is_full = queue.bytes() + u64::from(size_bytes) > self.settings.queue_bytes_max.as_u64()
            || self.settings.queue_packets_max.is_some_and(|max| queue.packets() >= max);
        let has_no_room = |id| !cx.buffer(id).enter(queue.bytes(), size_bytes);
        if is_full || self.buffer.is_some_and(has_no_room) {
            return self.drop(cx, p, Drop::QueueFull);
        }
        let is_above = self.settings.mark_bytes.is_some_and(|mark| queue.bytes() > mark.as_u64());
        let now = cx.now();
        let meta = cx.meta(p);
        meta.due = now;
        if is_above && meta.has(Flag::Ect) {
            meta.set(Flag::Ce, true);
            self.counters.marked_packets += 1;
        }
        queue.push(cx.all_meta(), p);
    }

    #[inline]
    fn on_timer<Q: EventQueue>(&mut self, cx: &mut Cx<'_, Q>, token: u32) {
        if token == ARRIVE {
            self.on_arrive(cx);
        } else if token == self.generation << 1 | SENT {
            self.on_sent(cx);
        }
    }
}
