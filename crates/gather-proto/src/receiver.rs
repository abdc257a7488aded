//! The client's end of one pull: assembles packets into generations, and reports the missing
//! packets to the server.
//!
//! A packet of a complete generation, or beyond the window, counts for the rate control and is then
//! dropped. Feedback leaves when the rate control needs it: with TFRC once a round trip, with BBR
//! eight times, and with both at each new loss. Feedback also leaves when the window has moved or
//! the grant has fallen, and repeatedly during silence. Memory is bounded by the window and by a
//! maximum per generation. Decoding of a generation restarts if a server sends that maximum of sums
//! without yielding all blocks.
//!
//! Leaves out: the choice of pulls, and the division of the last hop's rate (`client`).

use crate::layout::{Code, Codes, Layout};
use crate::mode::{DecoderKind, Mode, RateControl, TIMEOUT, slow_start};
use crate::msg::{ArrivalReport, Feedback, LACKS_MAX, Packet, PullId, Report, Timing};
use crate::receipt::ReceivedPackets;
use anabranch_codes::Symbol;
use anabranch_codes::lt::{Decoder as _, Inactivation, Peeling};
use anabranch_codes::mds::Elimination;
use anabranch_endpoint::Message as _;
use anabranch_transport::bbr::Arrivals;
use anabranch_transport::tfrc::{Arrival, Receiver as Tfrc};
use anabranch_units::{BitRate, ByteCount, Duration, Instant};
use std::collections::VecDeque;
use std::ops::Range;

/// Number of packets before a feedback in [`Mode::Counted`], if fewer than one packet arrives per
/// round trip.
const FEEDBACK_PACKETS: u64 = 8;
/// Maximum time for which feedback waits for [`FEEDBACK_PACKETS`].
///
/// Differs: RFC 5348 section 6.2 sends one feedback per packet in that case, that is, one message
/// in each direction.
pub(crate) const FEEDBACK_GAP_MAX: Duration = Duration::from_ms(5);
/// Packets after which feedback for BBR leaves.
pub(crate) const ARRIVED_PACKETS: u64 = 16;
/// Part of a round trip (a divisor) after which feedback for BBR leaves with fewer packets. Every
/// round trip then yields several measurements.
const ARRIVED_RTT_PART: u64 = 8;
/// Maximum time for which feedback for BBR waits for more packets.
const ARRIVED_GAP_MAX: Duration = Duration::from_ms(5);
/// Number of steps in a window. Feedback leaves once the window has moved by more than one step.
const WINDOW_STEPS: u32 = 8;
/// Number of slow repeats of feedback in a silence. The first repeat leaves after a round trip of
/// silence, the second after an interval a quarter longer. From the second repeat on, the silence
/// counts as an outage, and intervals restart as short as for arriving packets ([`arrived_gap`]).
///
/// Why not 1: a repeat just before an arriving packet would delay that packet's report. A pull from
/// one server beside four Cubic flows, behind a queue of two bandwidth-delay products, would get
/// 1.64 instead of 1.51 of its share (80 seeds). Why wait at all: if no report ever waited for a
/// repeat, 64 MiB from 3 to 32 servers over 1 Gbit/s and 100 ms with losses would take 2 to 4 %
/// longer.
const SILENCE_SLOW: u32 = 2;
/// Maximum interval between feedbacks in a silence.
const SILENCE_MAX: Duration = Duration::from_ms(500);
/// Minimum interval in a silence: `SILENCE_FIRST` while no round-trip time is known, `SILENCE_MIN`
/// afterwards.
const SILENCE_FIRST: Duration = Duration::from_ms(20);
const SILENCE_MIN: Duration = Duration::from_ms(1);
/// Minimum interval in a silence, in packet intervals.
const SILENCE_GAPS: u64 = 3;
/// Limit on the growth of the packet interval's estimate. A longer interval counts as `PACE_GROWTH`
/// times the estimate plus a `PACE_RTT_PART`-th of a round trip.
const PACE_GROWTH: u64 = 2;
const PACE_RTT_PART: u64 = 4;
/// Divisor of each interval in a silence that gives its growth. Feedback is short, and with this
/// growth the end of an outage is noticed after at most a quarter of its length.
const SILENCE_GROWTH_PART: u64 = 4;

/// Maximum time from the arrival of a packet to its report, if fewer than [`ARRIVED_PACKETS`]
/// packets arrive in that time.
pub(crate) fn arrived_gap(rtt: Duration) -> Duration {
    Duration::from_ps(rtt.as_ps() / ARRIVED_RTT_PART).min(ARRIVED_GAP_MAX)
}

/// Maximum number of packets held of a generation. With [`Code::Mds`] the maximum is the number of
/// blocks, because only innovative packets are held. With other codes it is twice the number of
/// blocks plus a constant.
///
/// Maliciously chosen sums may never yield a block, while random sums do. A server that exceeds
/// this number does not follow its code.
pub(crate) fn packets_max(mode: Mode, decoder: DecoderKind, blocks: u32) -> u64 {
    if Code::is_mds(blocks, mode) {
        return blocks.into();
    }
    let more = match decoder {
        DecoderKind::Inactivation => 64,
        // Peeling needs more extra packets, in proportion, the fewer blocks there are.
        DecoderKind::Standard | DecoderKind::Improved => 256,
    };
    2 * u64::from(blocks) + more
}

/// Parameters of a pull at its client.
#[derive(Clone, Debug)]
pub struct ReceiverParams {
    /// The client's number for the pull.
    pub pull: PullId,
    /// Layout of the pull's bytes.
    pub layout: Layout,
    /// Protocol of the pull.
    pub mode: Mode,
    /// Rate control of the server.
    pub rate_control: RateControl,
    /// Decoder.
    pub decoder: DecoderKind,
    /// Number of generations kept open.
    pub window: u32,
    /// Minimum interval between feedbacks.
    pub feedback_every: Duration,
    /// Initial grant to the server.
    pub grant: Option<BitRate>,
    /// Round-trip time measured by the client. Packets of [`RateControl::Tfrc`] carry the server's
    /// estimate; other packets do not.
    pub rtt: Option<Duration>,
    /// Whether the server's answer has arrived: see [`Feedback::is_unsaid`].
    pub is_said: bool,
}

/// Packet counts of a pull.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct PullCounts {
    /// Packets received.
    pub packets: u64,
    /// Received packets of complete generations or beyond the window.
    pub useless: u64,
    /// Received packets that cannot belong to this pull.
    pub malformed: u64,
    /// Feedbacks sent.
    pub feedbacks: u64,
    /// Number of packets counted as lost; always 0 with [`RateControl::Tfrc`].
    pub lost: u64,
}

#[derive(Debug)]
enum Decoder<S> {
    Elimination(Elimination<S>),
    Peeling(Peeling<S>),
    Inactivation(Inactivation<S>),
}

/// State of the reports for the server's rate control.
#[derive(Debug)]
enum Account {
    Tfrc(Box<Tfrc>),
    Bbr {
        arrivals: Arrivals,
        /// Arrival of the packet with the highest number.
        newest_at: Option<Instant>,
    },
}

/// A generation in the window, either incomplete or complete.
#[derive(Debug)]
enum GenerationState<S> {
    Lacking(Box<Decoder<S>>),
    Complete,
}

/// The receiving end of one pull.
#[derive(Debug)]
pub struct Receiver<S> {
    receiving: ReceiverParams,
    codes: Codes,
    account: Account,
    base: u32,
    open: VecDeque<GenerationState<S>>,
    complete: VecDeque<(u32, Vec<S>)>,
    next: u32,
    received: ReceivedPackets,
    rtt: Option<Duration>,
    heard_at: Option<Instant>,
    /// Smoothed interval between packets.
    gap: Duration,
    told_at: Option<Instant>,
    told_packets: u64,
    told_loss: f64,
    told_base: u32,
    told_grant: Option<BitRate>,
    /// Duration of silence after which feedback is repeated.
    silence: Duration,
    /// Repeats since the last packet.
    repeats: u32,
    counts: PullCounts,
}

impl<S: Symbol> Receiver<S> {
    /// Creates a receiver that has received no packet.
    pub fn new(receiving: ReceiverParams) -> Self {
        let codes = Codes::new(&receiving.layout, receiving.mode);
        let size = Packet::<S>::header_bytes(receiving.rate_control) + receiving.layout.block_bytes();
        let account = match receiving.rate_control {
            RateControl::Tfrc => {
                Account::Tfrc(Box::new(Tfrc::new(size, TIMEOUT, slow_start(receiving.mode, receiving.grant))))
            }
            RateControl::Bbr => Account::Bbr { arrivals: Arrivals::default(), newest_at: None },
        };
        Self {
            codes,
            account,
            base: 0,
            open: VecDeque::new(),
            complete: VecDeque::new(),
            next: 0,
            received: ReceivedPackets::default(),
            rtt: receiving.rtt,
            heard_at: None,
            gap: Duration::ZERO,
            told_at: None,
            told_packets: 0,
            told_loss: 0.0,
            told_base: 0,
            told_grant: receiving.grant,
            silence: SILENCE_FIRST,
            repeats: 0,
            counts: PullCounts::default(),
            receiving,
        }
    }

    /// Layout of the pull's bytes.
    pub const fn layout(&self) -> &Layout {
        &self.receiving.layout
    }
    /// Packet counts of the pull so far.
    pub const fn counts(&self) -> PullCounts {
        let lost = match &self.account {
            Account::Bbr { arrivals, .. } => arrivals.counts().lost,
            Account::Tfrc(_) => 0,
        };
        PullCounts { lost, ..self.counts }
    }
    /// Whether all generations are complete.
    pub fn is_complete(&self) -> bool {
        self.base == self.receiving.layout.generations()
    }
    /// Runs of incomplete generations, in ascending order.
    ///
    /// Cost: one step per open generation, and one step for all later generations together.
    pub fn incomplete(&self) -> impl Iterator<Item = Range<u32>> + '_ {
        let open = (self.base..).zip(&self.open);
        let lacking =
            open.filter(|(_, open)| matches!(open, GenerationState::Lacking(_))).map(|(at, _)| at..at + 1);
        let behind = self.base + self.open.len() as u32..self.receiving.layout.generations();
        lacking.chain(Some(behind).filter(|behind| !behind.is_empty()))
    }
    /// Whether the window covers the last generation, so that few packets are still expected.
    pub fn is_ending(&self) -> bool {
        self.base + self.open.len() as u32 == self.receiving.layout.generations()
    }
    /// Bytes of complete generations.
    pub fn complete_bytes(&self) -> u64 {
        let open =
            (self.base..).zip(&self.open).filter(|(_, open)| matches!(open, GenerationState::Complete));
        let above = open.map(|(generation, _)| self.receiving.layout.range(generation));
        let below = if self.is_complete() {
            self.receiving.layout.bytes()
        } else {
            self.receiving.layout.range(self.base).start
        };
        below + above.map(|range| range.end - range.start).sum::<u64>()
    }
    /// Arrival of the last packet.
    pub const fn heard_at(&self) -> Option<Instant> {
        self.heard_at
    }
    /// Records that the server's answer has arrived.
    pub const fn set_said(&mut self) {
        self.receiving.is_said = true;
    }
    /// Whether no further feedback is needed.
    fn is_over(&self) -> bool {
        self.is_complete() && self.receiving.is_said
    }
    /// Sets the grant, which the next feedback carries to the server. A lower grant triggers
    /// feedback at once.
    pub const fn set_grant(&mut self, grant: Option<BitRate>) {
        self.receiving.grant = grant;
    }
    /// Whether a changed grant is worth an immediate feedback: always if it is lower, because other
    /// servers may already send more; if it is higher, only if by more than a seventh.
    pub fn is_regranted(&self) -> bool {
        match (self.receiving.grant, self.told_grant) {
            (Some(grant), Some(told)) => grant < told || grant.as_bps() / 8 * 7 > told.as_bps(),
            (Some(_), None) => true,
            (None, Some(_)) => true,
            (None, None) => false,
        }
    }
    /// Current grant to the server; `None` for no limit.
    pub const fn grant(&self) -> Option<BitRate> {
        self.receiving.grant
    }
    /// Bytes of packets held for incomplete generations.
    pub fn held_bytes(&self) -> u64 {
        let packets = |open: &GenerationState<S>| match open {
            GenerationState::Lacking(decoder) => decoder.packets() as u64,
            GenerationState::Complete => 0,
        };
        self.open.iter().map(packets).sum::<u64>() * u64::from(self.receiving.layout.block_bytes())
    }
    /// Loss rate of packets; with TFRC, the loss event rate.
    pub fn loss_rate(&self) -> f64 {
        self.account.loss_rate()
    }

    fn decoder(&self, generation: u32) -> Box<Decoder<S>> {
        let len = self.receiving.layout.block_bytes() as usize;
        Box::new(match (self.codes.of(generation).clone(), self.receiving.decoder) {
            (Code::Mds(code), _) => Decoder::Elimination(Elimination::new(code, len)),
            (Code::Lt(code), DecoderKind::Standard) => Decoder::Peeling(Peeling::standard(code, len)),
            (Code::Lt(code), DecoderKind::Improved) => Decoder::Peeling(Peeling::improved(code, len)),
            (Code::Lt(code), DecoderKind::Inactivation) => {
                Decoder::Inactivation(Inactivation::new(code, len))
            }
        })
    }

    /// Handles a packet that arrived at `now`.
    pub fn handle_packet(&mut self, now: Instant, packet: Packet<S>) {
        let ReceiverParams { layout, window, .. } = &self.receiving;
        self.counts.packets += 1;
        // No server sends so far ahead: the skipped numbers exceed a whole pull.
        let is_far = packet.sequence.checked_sub(self.next).is_some_and(|ahead| ahead > 1 << 24)
            || packet.sequence == u32::MAX;
        if packet.payload.len() != layout.block_bytes() as usize
            || packet.generation >= layout.generations()
            || is_far
        {
            self.counts.malformed += 1;
            return;
        }
        let bytes = packet.wire_len();
        self.rtt = packet.timing.and_then(|timing| timing.rtt).or(self.rtt);
        let sequence = u64::from(packet.sequence);
        match &mut self.account {
            Account::Tfrc(tfrc) => {
                let Some(Timing { sent_at, rtt }) = packet.timing else {
                    self.counts.malformed += 1;
                    return;
                };
                tfrc.handle_packet(now, &Arrival { sequence, bytes, sent_at, rtt });
            }
            Account::Bbr { arrivals, newest_at } => {
                if sequence >= arrivals.counts().next {
                    *newest_at = Some(now);
                }
                arrivals.handle_packet(sequence);
            }
        }
        // Neither an outage nor the few probes during an outage reflect the packet interval. A long
        // interval therefore changes the estimate only gradually.
        let of_rtt = Duration::from_ps(self.rtt.unwrap_or(SILENCE_FIRST).as_ps() / PACE_RTT_PART);
        let most = self.gap * PACE_GROWTH + of_rtt;
        let gap = now.saturating_since(self.heard_at.replace(now).unwrap_or(now)).min(most);
        self.gap = Duration::from_ps(self.gap.as_ps() / 8 * 7 + gap.as_ps() / 8);
        (self.silence, self.repeats) = (self.patience(|rtt| rtt), 0);
        self.next = self.next.max(packet.sequence + 1);
        self.received.handle_packet(packet.sequence, packet.nonce);
        let Some(at) = packet.generation.checked_sub(self.base).filter(|at| at < window) else {
            self.counts.useless += 1;
            return;
        };
        while self.open.len() <= at as usize {
            let decoder = self.decoder(self.base + self.open.len() as u32);
            self.open.push_back(GenerationState::Lacking(decoder));
        }
        let open = &mut self.open[at as usize];
        let GenerationState::Lacking(decoder) = open else {
            self.counts.useless += 1;
            return;
        };
        if !decoder.push(packet.id, packet.payload) {
            let blocks = self.receiving.layout.blocks(packet.generation);
            if decoder.packets() as u64 >= packets_max(self.receiving.mode, self.receiving.decoder, blocks) {
                self.counts.malformed += 1;
                self.open[at as usize] = GenerationState::Lacking(self.decoder(packet.generation));
            }
            return;
        }
        if let GenerationState::Lacking(decoder) = std::mem::replace(open, GenerationState::Complete) {
            let blocks = decoder.into_blocks().expect("a decoder that is complete has its blocks");
            self.complete.push_back((packet.generation, blocks));
        }
        while matches!(self.open.front(), Some(GenerationState::Complete)) {
            self.open.pop_front();
            self.base += 1;
        }
    }

    /// The next completed generation with its blocks; the last block of a pull is padded.
    pub fn poll_complete(&mut self) -> Option<(u32, Vec<S>)> {
        self.complete.pop_front()
    }

    /// The feedback due at `now`, if any.
    pub fn poll_feedback(&mut self, now: Instant) -> Option<Feedback> {
        let is_silent = self.silent_at().is_some_and(|at| at <= now);
        if self.earliest().is_some_and(|at| at > now) && !is_silent {
            return None;
        }
        let report = self.poll_report(now, is_silent);
        // If feedback left only once per round trip, the server could send only one window in two
        // round trips.
        let has_moved = self.base - self.told_base > self.receiving.window / WINDOW_STEPS;
        if report.is_none() && !is_silent && !has_moved && !self.is_regranted() {
            return None;
        }
        if is_silent {
            let longer = self.silence + Duration::from_ps(self.silence.as_ps() / SILENCE_GROWTH_PART);
            self.repeats += 1;
            let wait = if self.repeats == SILENCE_SLOW { self.patience(arrived_gap) } else { longer };
            self.silence = wait.min(SILENCE_MAX);
        }
        self.told_at = Some(now);
        (self.told_packets, self.told_loss) = (self.counts.packets, self.account.losses());
        (self.told_base, self.told_grant) = (self.base, self.receiving.grant);
        self.counts.feedbacks += 1;
        let mut lacks: Vec<u16> = self.open.iter().map(GenerationState::lacks).take(LACKS_MAX).collect();
        let mut base = self.base;
        if self.is_complete() && !self.receiving.is_said {
            // A server does not answer feedback on a complete pull, so one generation counts as
            // incomplete.
            (base, lacks) = (self.base.saturating_sub(1), vec![0]);
        } else if lacks.is_empty() && !self.is_complete() {
            // No packet of the next generation has arrived.
            lacks.push(self.receiving.layout.blocks(self.base).min(u16::MAX.into()) as u16);
        }
        Some(Feedback {
            pull: self.receiving.pull,
            next: self.next,
            receipt: self.received.receipt(),
            report,
            grant: self.receiving.grant,
            base,
            lacks,
            is_unsaid: !self.receiving.is_said,
        })
    }

    /// The report due at `now`, if any. A silence makes a report for BBR due, too, because packets
    /// in flight may then be lost.
    fn poll_report(&mut self, now: Instant, is_silent: bool) -> Option<Report> {
        let is_due = is_silent || self.report_at().is_some_and(|at| at <= now);
        match &mut self.account {
            Account::Tfrc(tfrc) => tfrc.poll_report(now).map(Report::Tfrc),
            Account::Bbr { arrivals, newest_at } => {
                let at = newest_at.filter(|_| is_due)?;
                Some(Report::Arrived(ArrivalReport::new(now.saturating_since(at), arrivals.counts())))
            }
        }
    }

    /// Time of the next report.
    fn report_at(&self) -> Option<Instant> {
        let Account::Bbr { newest_at, .. } = &self.account else {
            let Account::Tfrc(tfrc) = &self.account else { return None };
            return tfrc.poll_timeout();
        };
        let came_at = (*newest_at)?;
        let new = self.counts.packets - self.told_packets;
        if new == 0 {
            return None;
        }
        let told_at =
            self.told_at.filter(|_| new < ARRIVED_PACKETS && self.account.losses() <= self.told_loss);
        Some(told_at.map_or(came_at, |told| told + self.rtt.map_or(Duration::ZERO, arrived_gap)))
    }

    /// Earliest time of the next feedback.
    fn earliest(&self) -> Option<Instant> {
        let every = self.receiving.feedback_every;
        // The first packets give the server its round-trip time, and a loss is reported at once. A
        // server without a grant finds its rate from feedback, and needs feedback every round trip.
        let waits = self.receiving.mode == Mode::Counted
            && self.receiving.rate_control == RateControl::Tfrc
            && self.receiving.grant.is_some()
            && self.told_packets > 1
            && self.counts.packets < self.told_packets + FEEDBACK_PACKETS
            && self.account.losses() <= self.told_loss;
        Some(self.told_at? + if waits { every.max(FEEDBACK_GAP_MAX) } else { every })
    }

    /// Silence that is tolerated while packets are in flight: `part` of the round-trip time, but at
    /// least the interval of [`SILENCE_GAPS`] packets.
    fn patience(&self, part: impl Fn(Duration) -> Duration) -> Duration {
        let granted = self.receiving.grant.map_or(Duration::ZERO, |grant| {
            let bytes =
                Packet::<S>::header_bytes(self.receiving.rate_control) + self.receiving.layout.block_bytes();
            grant.transmit_time(ByteCount::new(bytes.into()))
        });
        let of_rtt = self.rtt.map_or(SILENCE_FIRST, |rtt| part(rtt).max(SILENCE_MIN));
        of_rtt.max(self.gap.max(granted) * SILENCE_GAPS).max(self.receiving.feedback_every)
    }

    /// Time of the next repeat in a silence.
    fn silent_at(&self) -> Option<Instant> {
        if self.is_over() || self.receiving.mode == Mode::Lttp {
            return None;
        }
        let since = self.heard_at?.max(self.told_at?);
        Some(since + self.silence)
    }

    /// Time of the next call of [`Receiver::poll_feedback`].
    pub fn poll_timeout(&self) -> Option<Instant> {
        if self.is_over() {
            return None;
        }
        let report = self.report_at().map(|at| self.earliest().map_or(at, |earliest| at.max(earliest)));
        report.into_iter().chain(self.silent_at()).min()
    }
}

impl Account {
    /// A quantity that grows with each loss that must be reported at once.
    fn losses(&self) -> f64 {
        match self {
            Self::Tfrc(tfrc) => tfrc.loss_rate(),
            Self::Bbr { arrivals, .. } => arrivals.counts().lost as f64,
        }
    }
    fn loss_rate(&self) -> f64 {
        match self {
            Self::Tfrc(tfrc) => tfrc.loss_rate(),
            Self::Bbr { arrivals, .. } => {
                let counts = arrivals.counts();
                counts.lost as f64 / counts.next.max(1) as f64
            }
        }
    }
}

impl<S: Symbol> GenerationState<S> {
    fn lacks(&self) -> u16 {
        match self {
            Self::Complete => 0,
            Self::Lacking(decoder) => decoder.lacks().clamp(1, u16::MAX.into()) as u16,
        }
    }
}

impl<S: Symbol> Decoder<S> {
    fn push(&mut self, id: u32, symbol: S) -> bool {
        match self {
            Self::Elimination(decoder) => decoder.push(id, symbol),
            Self::Peeling(decoder) => decoder.push(id, symbol),
            Self::Inactivation(decoder) => decoder.push(id, symbol),
        }
    }
    fn packets(&self) -> usize {
        match self {
            Self::Elimination(decoder) => decoder.packets(),
            Self::Peeling(decoder) => decoder.packets(),
            Self::Inactivation(decoder) => decoder.packets(),
        }
    }
    fn lacks(&self) -> usize {
        match self {
            Self::Elimination(decoder) => decoder.lacks(),
            Self::Peeling(decoder) => decoder.lacks(),
            Self::Inactivation(decoder) => decoder.lacks(),
        }
    }
    fn into_blocks(self) -> Option<Vec<S>> {
        match self {
            Self::Elimination(decoder) => decoder.into_blocks(),
            Self::Peeling(decoder) => decoder.into_blocks(),
            Self::Inactivation(decoder) => decoder.into_blocks(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_endpoint::Bytes;

    fn receiver(layout: Layout, rtt: Option<Duration>) -> Receiver<Bytes> {
        Receiver::new(ReceiverParams {
            pull: PullId(0),
            layout,
            mode: Mode::Counted,
            rate_control: RateControl::Bbr,
            decoder: DecoderKind::Inactivation,
            window: 4,
            feedback_every: Duration::ZERO,
            grant: None,
            rtt,
            is_said: true,
        })
    }

    fn packet(sequence: u32, generation: u32, id: u32) -> Packet<Bytes> {
        let payload = Bytes::from_static(b"x");
        Packet { pull: PullId(0), sequence, timing: None, queued: false, nonce: 0, generation, id, payload }
    }

    /// Issue #19: if any packets in the number of blocks complete a generation, the receiver holds
    /// no more packets than that.
    #[test]
    fn generation_keeps_at_most_as_many_packets_as_blocks() {
        for blocks in [1, 2, 20, 255] {
            let mut receiver = receiver(Layout::new(blocks, 1, 255).expect("within limits"), None);
            // One block is never sent, and each sum is sent twice.
            for (sequence, id) in (1..blocks as u32).chain((300..900).map(|id| id / 2)).enumerate() {
                receiver.handle_packet(Instant::ZERO, packet(sequence as u32, 0, id));
                assert!(
                    receiver.held_bytes()
                        <= packets_max(Mode::Counted, DecoderKind::Inactivation, blocks as u32)
                );
            }
            assert!(receiver.is_complete() && receiver.counts().malformed == 0, "{blocks} blocks");
            assert_eq!(packets_max(Mode::Counted, DecoderKind::Inactivation, blocks as u32), blocks);
        }
    }

    /// Issue #19: the window may contain more generations than one feedback covers.
    #[test]
    fn feedback_on_long_windows_covers_the_first_generations() {
        let mut receiver =
            receiver(Layout::new(2_000, 1, 1).expect("within limits"), Some(Duration::from_ms(10)));
        receiver.receiving.window = 1_000;
        receiver.handle_packet(Instant::ZERO, packet(0, 999, 0));
        receiver.handle_packet(Instant::ZERO, packet(1, 1_000, 0));
        assert_eq!(receiver.counts().useless, 1, "beyond the window");
        let feedback = receiver.poll_feedback(Instant::ZERO + Duration::from_secs(1)).expect("it is silent");
        assert_eq!((feedback.base, &feedback.lacks), (0, &vec![1; LACKS_MAX]));
    }

    /// Issue #17: a server divided 4 GiB into as many generations as bytes. At the end of the pull
    /// the client visited each generation, which took ten seconds.
    #[test]
    fn missing_ranges_of_many_generations_are_few() {
        let layout = Layout::new(u32::MAX.into(), 1, 1).expect("within limits");
        let generations = layout.generations();
        let mut receiver = receiver(layout, None);
        let all = 0..generations;
        assert!(receiver.incomplete().eq([all]));
        for (sequence, generation) in [0, 3].into_iter().enumerate() {
            receiver.handle_packet(Instant::ZERO, packet(sequence as u32, generation, 0));
        }
        // The iterator takes at most one step per open generation and one more.
        assert!(receiver.incomplete().eq([1..2, 2..3, 4..generations]));
    }

    /// Issue #19: a burst delayed the feedback of one round trip. Each further repeat then waited
    /// twice as long, and a short path stalled for half a second.
    #[test]
    fn feedback_backs_off_moderately_during_silence() {
        let rtt = Duration::from_ms(2);
        let mut receiver = receiver(Layout::new(100, 1, 100).expect("within limits"), Some(rtt));
        let mut now = Instant::ZERO;
        for sequence in 0..20 {
            now += Duration::from_us(100);
            receiver.handle_packet(now, packet(sequence, 0, sequence));
            receiver.poll_feedback(now);
        }
        let last = now;
        let mut at = Vec::new();
        while now < last + Duration::from_secs(10) {
            now = receiver.poll_timeout().expect("it is silent");
            if receiver.poll_feedback(now).is_some() {
                at.push(now);
            }
        }
        let gaps: Vec<Duration> = at.windows(2).map(|pair| pair[1].saturating_since(pair[0])).collect();
        // Two intervals of at most two round trips, then an eighth of a round trip or a
        // millisecond.
        assert!(gaps[..2].iter().all(|&gap| gap <= rtt * 2) && gaps[2] <= SILENCE_MIN, "{gaps:?}");
        assert!(
            gaps[2..].windows(2).all(|pair| pair[0] <= pair[1] && pair[1] * 4 <= pair[0] * 5),
            "{gaps:?}"
        );
        assert_eq!(gaps.last(), Some(&SILENCE_MAX));
    }

    /// Issue #19: during silence a server sends a packet each 200 ms. The client took 200 ms for
    /// the packet interval after some of these packets, and answered each packet only once. A path
    /// whose losses come in runs of packets stalled for 3.4 s.
    #[test]
    fn feedback_repeats_in_an_outage_despite_rare_packets() {
        let layout = Layout::new(1_000, 1, 1_000).expect("within limits");
        let mut receiver = receiver(layout, Some(Duration::from_ms(20)));
        let mut now = Instant::ZERO;
        let mut feedbacks = Vec::new();
        for sequence in 0..220 {
            let next = now + if sequence < 200 { Duration::from_us(120) } else { Duration::from_ms(200) };
            receiver.handle_packet(now, packet(sequence, 0, sequence));
            feedbacks.push(0);
            while let Some(at) = receiver.poll_timeout().filter(|at| *at < next) {
                now = at.max(now);
                feedbacks[sequence as usize] += u32::from(receiver.poll_feedback(now).is_some());
            }
            now = next;
        }
        let of_outage = &feedbacks[200..];
        assert!(of_outage[..10].iter().all(|&count| count >= 5), "{of_outage:?}");
        assert!(of_outage.iter().all(|&count| count >= 2), "{of_outage:?}");
    }

    /// Issue #19: a packet interval longer than a round trip must not count as silence.
    #[test]
    fn feedback_on_slow_links_follows_packets_not_time() {
        let layout = Layout::new(200, 1, 200).expect("within limits");
        let mut receiver = receiver(layout, Some(Duration::from_ms(1)));
        let mut now = Instant::ZERO;
        let mut feedbacks = 0;
        for sequence in 0..150 {
            receiver.handle_packet(now, packet(sequence, 0, sequence));
            let next = now + Duration::from_ms(8);
            while let Some(at) = receiver.poll_timeout().filter(|at| *at < next) {
                now = at.max(now);
                feedbacks += u32::from(receiver.poll_feedback(now).is_some() && sequence >= 50);
            }
            now = next;
        }
        assert!(feedbacks <= 100, "{feedbacks} for a hundred packets");
    }
}
