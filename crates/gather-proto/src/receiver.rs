//! One pull at its client: packets become generations, and the server is told what is lacking.
//!
//! A packet of a generation that is complete, or beyond the window, counts for the rate control and is dropped. Feedback leaves
//! when the rate control needs it (TFRC once a round trip, BBR eight times; both at each new loss), where the window has moved or
//! less is granted, and again while nothing comes. Memory is bounded by the window and by what is kept of a generation: a server
//! that sends ever more sums of which no block follows begins it anew.
//!
//! Leaves out: which pulls there are, and how the last hop is divided (`client`).

use crate::layout::{Code, Codes, Layout};
use crate::mode::{DecoderKind, Mode, RateControl, TIMEOUT, slow_start};
use crate::msg::{Arrived, Feedback, LACKS_MAX, Packet, PullId, Report, Timing};
use crate::receipt::Received;
use anabranch_codes::Symbol;
use anabranch_codes::lt::{Decoder as _, Inactivation, Peeling};
use anabranch_codes::mds::Elimination;
use anabranch_endpoint::Message as _;
use anabranch_transport::bbr::Arrivals;
use anabranch_transport::tfrc::{Arrival, Receiver as Tfrc};
use anabranch_units::{BitRate, ByteCount, Duration, Instant};
use std::collections::VecDeque;
use std::ops::Range;

/// In [`Mode::Counted`] feedback waits for so many packets where they come more slowly than once a round trip...
const FEEDBACK_PACKETS: u64 = 8;
/// ...but no longer than this.
///
/// Differs: RFC 5348 section 6.2 has one for each packet then, which is a message up for each message down.
pub(crate) const FEEDBACK_GAP_MAX: Duration = Duration::from_ms(5);
/// For BBR feedback leaves after so many packets...
pub(crate) const ARRIVED_PACKETS: u64 = 16;
/// ...or where fewer have come after such a part of a round trip, so that each round trip has some that tell of its rate...
const ARRIVED_RTT_PART: u64 = 8;
/// ...which is no longer than this.
const ARRIVED_GAP_MAX: Duration = Duration::from_ms(5);
/// Into so many steps a window is divided: once it has moved by more than one, the server is told.
const WINDOW_STEPS: u32 = 8;
/// Where nothing comes for a round trip feedback leaves again, and once more after a quarter longer. From this one on it is an outage, and
/// repeats begin anew, as soon after each other as packets would have feedback ([`arrived_gap`]).
///
/// Where they begin so at once, one that leaves just before a packet comes has the report of that packet wait: a pull from one server beside four
/// flows of Cubic, behind two products, has 1.64 of its share for 1.51 (80 seeds). Where no report waits for a repeat, 64 MiB from 3 to 32
/// servers over 1 Gbit/s and 100 ms with losses take 2 to 4 % longer.
const SILENCE_SLOW: u32 = 2;
/// The longest time between two feedbacks while nothing comes.
const SILENCE_MAX: Duration = Duration::from_ms(500);
/// The shortest, as long as no round trip is known, and where one is.
const SILENCE_FIRST: Duration = Duration::from_ms(20);
const SILENCE_MIN: Duration = Duration::from_ms(1);
/// No shorter than so many packets take.
const SILENCE_GAPS: u64 = 3;
/// A packet that comes later than by so many times the pace, and such a part of a round trip, counts as one that comes then.
const PACE_GROWTH: u64 = 2;
const PACE_RTT_PART: u64 = 4;
/// Each time is longer by such a part of it: feedback is short, and an outage is then heard of after a quarter more than it lasts.
const SILENCE_GROWTH_PART: u64 = 4;

/// How long packets that came may wait until feedback tells of them, where fewer than [`ARRIVED_PACKETS`] come in it.
pub(crate) fn arrived_gap(rtt: Duration) -> Duration {
    Duration::from_ps(rtt.as_ps() / ARRIVED_RTT_PART).min(ARRIVED_GAP_MAX)
}

/// The most packets that are kept of a generation. Of one of [`Code::Mds`] those that say something new, as many as there are blocks; of
/// others twice its blocks, and some more.
///
/// Chosen sums can lack a block for ever, drawn ones do not: beyond this a server does not send what its code says.
pub(crate) fn packets_max(mode: Mode, decoder: DecoderKind, blocks: u32) -> u64 {
    if Code::is_mds(blocks, mode) {
        return blocks.into();
    }
    let more = match decoder {
        DecoderKind::Inactivation => 64,
        // Peeling needs the more, the fewer blocks there are.
        DecoderKind::Standard | DecoderKind::Improved => 256,
    };
    2 * u64::from(blocks) + more
}

/// How a pull is received.
#[derive(Clone, Debug)]
pub struct Receiving {
    /// What the client calls it.
    pub pull: PullId,
    /// Its bytes.
    pub layout: Layout,
    /// Of the protocol's two.
    pub mode: Mode,
    /// What decides how fast the server sends.
    pub rate_control: RateControl,
    /// How packets become blocks.
    pub decoder: DecoderKind,
    /// Generations that are kept open.
    pub window: u32,
    /// The least time between two feedbacks.
    pub feedback_every: Duration,
    /// What the server may send in a second.
    pub grant: Option<BitRate>,
    /// The round trip, where the client has measured it: packets of [`RateControl::Tfrc`] say it, others do not.
    pub rtt: Option<Duration>,
    /// The server's answer has come: see [`Feedback::is_unsaid`].
    pub is_said: bool,
}

/// What became of packets.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Packets that have come.
    pub packets: u64,
    /// Of them, those of complete generations or beyond the window.
    pub useless: u64,
    /// Of them, those that cannot be of this pull.
    pub malformed: u64,
    /// Feedbacks sent.
    pub feedbacks: u64,
    /// Packets that count as lost; none are counted with [`RateControl::Tfrc`].
    pub lost: u64,
}

#[derive(Debug)]
enum Decoder<S> {
    Elimination(Elimination<S>),
    Peeling(Peeling<S>),
    Inactivation(Inactivation<S>),
}

/// What the server's rate control is told of.
#[derive(Debug)]
enum Account {
    Tfrc(Box<Tfrc>),
    Bbr {
        arrivals: Arrivals,
        /// When the packet came that has the highest number.
        newest_at: Option<Instant>,
    },
}

/// A generation that is open, or was and is complete.
#[derive(Debug)]
enum Open<S> {
    Lacking(Box<Decoder<S>>),
    Complete,
}

/// The receiving end of one pull.
#[derive(Debug)]
pub struct Receiver<S> {
    receiving: Receiving,
    codes: Codes,
    account: Account,
    base: u32,
    open: VecDeque<Open<S>>,
    complete: VecDeque<(u32, Vec<S>)>,
    next: u32,
    received: Received,
    rtt: Option<Duration>,
    heard_at: Option<Instant>,
    /// The time between two packets, smoothed.
    gap: Duration,
    told_at: Option<Instant>,
    told_packets: u64,
    told_loss: f64,
    told_base: u32,
    told_grant: Option<BitRate>,
    /// After how long to say again what is lacking, as nothing comes.
    silence: Duration,
    /// How often that was done since a packet came.
    repeats: u32,
    counts: Counts,
}

impl<S: Symbol> Receiver<S> {
    /// The receiver of a pull of which nothing has come yet.
    pub fn new(receiving: Receiving) -> Self {
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
            received: Received::default(),
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
            counts: Counts::default(),
            receiving,
        }
    }

    /// Its bytes.
    pub const fn layout(&self) -> &Layout {
        &self.receiving.layout
    }
    /// What became of its packets.
    pub const fn counts(&self) -> Counts {
        let lost = match &self.account {
            Account::Bbr { arrivals, .. } => arrivals.counts().lost,
            Account::Tfrc(_) => 0,
        };
        Counts { lost, ..self.counts }
    }
    /// Whether all generations are complete.
    pub fn is_complete(&self) -> bool {
        self.base == self.receiving.layout.generations()
    }
    /// Runs of generations that are not complete, in order.
    ///
    /// Cost: a step for each generation that is open and one for all behind them, however many the layout has.
    pub fn incomplete(&self) -> impl Iterator<Item = Range<u32>> + '_ {
        let open = (self.base..).zip(&self.open);
        let lacking = open.filter(|(_, open)| matches!(open, Open::Lacking(_))).map(|(at, _)| at..at + 1);
        let behind = self.base + self.open.len() as u32..self.receiving.layout.generations();
        lacking.chain(Some(behind).filter(|behind| !behind.is_empty()))
    }
    /// Whether packets of its last generation have come: few are still to come then.
    pub fn is_ending(&self) -> bool {
        self.base + self.open.len() as u32 == self.receiving.layout.generations()
    }
    /// Bytes of generations that are complete.
    pub fn complete_bytes(&self) -> u64 {
        let open = (self.base..).zip(&self.open).filter(|(_, open)| matches!(open, Open::Complete));
        let above = open.map(|(generation, _)| self.receiving.layout.range(generation));
        let below = if self.is_complete() {
            self.receiving.layout.bytes()
        } else {
            self.receiving.layout.range(self.base).start
        };
        below + above.map(|range| range.end - range.start).sum::<u64>()
    }
    /// When the last packet came.
    pub const fn heard_at(&self) -> Option<Instant> {
        self.heard_at
    }
    /// The server's answer has come.
    pub const fn set_said(&mut self) {
        self.receiving.is_said = true;
    }
    /// Whether nothing is left to be said of it.
    fn is_over(&self) -> bool {
        self.is_complete() && self.receiving.is_said
    }
    /// Grants another rate, which the server hears of with the next feedback; there is some at once where it is a lower one.
    pub const fn set_grant(&mut self, grant: Option<BitRate>) {
        self.receiving.grant = grant;
    }
    /// Whether the server is to hear at once that it may send less, as others may send more already, or by so much more that it is
    /// worth a message.
    pub fn is_regranted(&self) -> bool {
        match (self.receiving.grant, self.told_grant) {
            (Some(grant), Some(told)) => grant < told || grant.as_bps() / 8 * 7 > told.as_bps(),
            (Some(_), None) => true,
            (None, Some(_)) => true,
            (None, None) => false,
        }
    }
    /// What the server may send in a second.
    pub const fn grant(&self) -> Option<BitRate> {
        self.receiving.grant
    }
    /// Bytes of packets that it keeps of generations which are not complete.
    pub fn held_bytes(&self) -> u64 {
        let packets = |open: &Open<S>| match open {
            Open::Lacking(decoder) => decoder.packets() as u64,
            Open::Complete => 0,
        };
        self.open.iter().map(packets).sum::<u64>() * u64::from(self.receiving.layout.block_bytes())
    }
    /// The share of packets that are lost; with TFRC the share of them that begin a loss event.
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

    /// Takes in a packet that came at `now`.
    pub fn handle_packet(&mut self, now: Instant, packet: Packet<S>) {
        let Receiving { layout, window, .. } = &self.receiving;
        self.counts.packets += 1;
        // A sequence number so far ahead that its gap would be all of the pull was not sent.
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
        // An outage is not the pace, nor are the few packets with which a server asks in it: a pace that is slower is believed by and by.
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
            self.open.push_back(Open::Lacking(decoder));
        }
        let open = &mut self.open[at as usize];
        let Open::Lacking(decoder) = open else {
            self.counts.useless += 1;
            return;
        };
        if !decoder.push(packet.id, packet.payload) {
            let blocks = self.receiving.layout.blocks(packet.generation);
            if decoder.packets() as u64 >= packets_max(self.receiving.mode, self.receiving.decoder, blocks) {
                self.counts.malformed += 1;
                self.open[at as usize] = Open::Lacking(self.decoder(packet.generation));
            }
            return;
        }
        if let Open::Lacking(decoder) = std::mem::replace(open, Open::Complete) {
            let blocks = decoder.into_blocks().expect("a decoder that is complete has its blocks");
            self.complete.push_back((packet.generation, blocks));
        }
        while matches!(self.open.front(), Some(Open::Complete)) {
            self.open.pop_front();
            self.base += 1;
        }
    }

    /// A generation that has become complete, with its blocks, the last of them padded.
    pub fn poll_complete(&mut self) -> Option<(u32, Vec<S>)> {
        self.complete.pop_front()
    }

    /// What the server is to be told at `now`, if there is something.
    pub fn poll_feedback(&mut self, now: Instant) -> Option<Feedback> {
        let is_silent = self.silent_at().is_some_and(|at| at <= now);
        if self.earliest().is_some_and(|at| at > now) && !is_silent {
            return None;
        }
        let report = self.poll_report(now, is_silent);
        // Told once a round trip, a server would send two round trips' worth from one window.
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
        let mut lacks: Vec<u16> = self.open.iter().map(Open::lacks).take(LACKS_MAX).collect();
        let mut base = self.base;
        if self.is_complete() && !self.receiving.is_said {
            // Whose pull is over is not answered any more.
            (base, lacks) = (self.base.saturating_sub(1), vec![0]);
        } else if lacks.is_empty() && !self.is_complete() {
            // Nothing of the next generation has come.
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

    /// What the rate control is to know at `now`, if it is due. For BBR it is where nothing comes, too: what is on its way is lost.
    fn poll_report(&mut self, now: Instant, is_silent: bool) -> Option<Report> {
        let is_due = is_silent || self.report_at().is_some_and(|at| at <= now);
        match &mut self.account {
            Account::Tfrc(tfrc) => tfrc.poll_report(now).map(Report::Tfrc),
            Account::Bbr { arrivals, newest_at } => {
                let at = newest_at.filter(|_| is_due)?;
                Some(Report::Arrived(Arrived::new(now.saturating_since(at), arrivals.counts())))
            }
        }
    }

    /// When the next report is due.
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

    /// When feedback may leave next.
    fn earliest(&self) -> Option<Instant> {
        let every = self.receiving.feedback_every;
        // The first packets give the server its round trip; a loss is told at once. Who is granted nothing finds its rate by
        // feedback and has it every round trip.
        let waits = self.receiving.mode == Mode::Counted
            && self.receiving.rate_control == RateControl::Tfrc
            && self.receiving.grant.is_some()
            && self.told_packets > 1
            && self.counts.packets < self.told_packets + FEEDBACK_PACKETS
            && self.account.losses() <= self.told_loss;
        Some(self.told_at? + if waits { every.max(FEEDBACK_GAP_MAX) } else { every })
    }

    /// How long nothing may come while packets are on their way: such a `part` of a round trip, but some packets' time at least.
    fn patience(&self, part: impl Fn(Duration) -> Duration) -> Duration {
        let granted = self.receiving.grant.map_or(Duration::ZERO, |grant| {
            let bytes =
                Packet::<S>::header_bytes(self.receiving.rate_control) + self.receiving.layout.block_bytes();
            grant.transmit_time(ByteCount::new(bytes.into()))
        });
        let of_rtt = self.rtt.map_or(SILENCE_FIRST, |rtt| part(rtt).max(SILENCE_MIN));
        of_rtt.max(self.gap.max(granted) * SILENCE_GAPS).max(self.receiving.feedback_every)
    }

    /// When silence is to be broken.
    fn silent_at(&self) -> Option<Instant> {
        if self.is_over() || self.receiving.mode == Mode::Lttp {
            return None;
        }
        let since = self.heard_at?.max(self.told_at?);
        Some(since + self.silence)
    }

    /// When to call [`Receiver::poll_feedback`] next.
    pub fn poll_timeout(&self) -> Option<Instant> {
        if self.is_over() {
            return None;
        }
        let report = self.report_at().map(|at| self.earliest().map_or(at, |earliest| at.max(earliest)));
        report.into_iter().chain(self.silent_at()).min()
    }
}

impl Account {
    /// What grows with each loss that the server should hear of at once.
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

impl<S: Symbol> Open<S> {
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
        Receiver::new(Receiving {
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

    /// #19: of a generation of which any as many packets as blocks make it whole, no more are kept, whatever comes.
    #[test]
    fn of_a_generation_no_more_is_kept_than_it_has_blocks() {
        for blocks in [1, 2, 20, 255] {
            let mut receiver = receiver(Layout::new(blocks, 1, 255).expect("within limits"), None);
            // One block is never sent, and each sum twice.
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

    /// #19: a window of more generations than a feedback tells of.
    #[test]
    fn of_a_long_window_the_first_generations_are_told() {
        let mut receiver =
            receiver(Layout::new(2_000, 1, 1).expect("within limits"), Some(Duration::from_ms(10)));
        receiver.receiving.window = 1_000;
        receiver.handle_packet(Instant::ZERO, packet(0, 999, 0));
        receiver.handle_packet(Instant::ZERO, packet(1, 1_000, 0));
        assert_eq!(receiver.counts().useless, 1, "beyond the window");
        let feedback = receiver.poll_feedback(Instant::ZERO + Duration::from_secs(1)).expect("it is silent");
        assert_eq!((feedback.base, &feedback.lacks), (0, &vec![1; LACKS_MAX]));
    }

    /// #17: a server that cut 4 GiB into as many generations made the client walk them all, for ten seconds, at a pull's end.
    #[test]
    fn what_lacks_of_endless_generations_is_a_few_runs() {
        let layout = Layout::new(u32::MAX.into(), 1, 1).expect("within limits");
        let generations = layout.generations();
        let mut receiver = receiver(layout, None);
        let all = 0..generations;
        assert!(receiver.incomplete().eq([all]));
        for (sequence, generation) in [0, 3].into_iter().enumerate() {
            receiver.handle_packet(Instant::ZERO, packet(sequence as u32, generation, 0));
        }
        // Iterators are counted by their steps: none is longer than the window and one.
        assert!(receiver.incomplete().eq([1..2, 2..3, 4..generations]));
    }

    /// #19: where a burst took the feedback of one round trip, each further try waited twice as long, and a short path stood for half
    /// a second.
    #[test]
    fn in_silence_feedback_is_repeated_ever_more_rarely_but_not_by_much() {
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
        // Twice a round trip, about, and then an eighth of one or a millisecond.
        assert!(gaps[..2].iter().all(|&gap| gap <= rtt * 2) && gaps[2] <= SILENCE_MIN, "{gaps:?}");
        assert!(
            gaps[2..].windows(2).all(|pair| pair[0] <= pair[1] && pair[1] * 4 <= pair[0] * 5),
            "{gaps:?}"
        );
        assert_eq!(gaps.last(), Some(&SILENCE_MAX));
    }

    /// #19: a server that hears nothing sends a packet each 200 ms. After some of these the client took that for the pace, and each was answered
    /// once: a path whose losses come in runs of packets stood for 3.4 s.
    #[test]
    fn in_an_outage_feedback_is_repeated_though_a_packet_comes_now_and_then() {
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

    /// #19: a packet that takes longer than a round trip is no silence.
    #[test]
    fn on_a_slow_link_feedback_is_for_packets_and_not_for_the_time_between_them() {
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
