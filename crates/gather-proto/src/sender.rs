//! The server's end of one pull: the choice of the next packet, and the packet's time.
//!
//! In [`Mode::Counted`] each generation's blocks leave once, in order. Sums then leave, as many as
//! feedback reports missing in excess of the packets in flight. A packet counts as lost if it was
//! sent more than one and a half round trips ago and is still not acknowledged. A pull without loss
//! therefore sends each block once and stops by itself. In [`Mode::Lttp`] sums leave until the
//! client stops the pull. In both modes the rate control sets the rate: TFRC for the pull, or BBR
//! for its path. The client's grant limits that rate.
//!
//! Once all blocks of all the client's pulls have left, nothing else can be sent until the client
//! reports losses. Sums then leave unrequested, as many as are likely to be missing: the expected
//! losses at the recent loss rate, plus two standard deviations. For 64 packets over a path with 1
//! % loss that is three sums; the client then has to request more in some one of two hundred cases.
//! If the first flight holds the whole object, two sums follow it before any feedback. For 46
//! packets and 1 % loss two sums suffice in 99 of 100 cases. If that flight seems to exceed the
//! path's capacity, enough sums leave to keep the path busy until the client sees the gap
//! (`path::first`). Before the last block has left, no sum leaves unrequested, because each
//! unneeded sum delays a block. An exception is a generation that blocks the window, over long fast
//! paths. That generation gets as many sums as it lacks plus the likely losses, because waiting for
//! a second retransmission would halt the pull.
//!
//! A generation's blocks are requested from the owner of the object ([`Sender::poll_wanted`])
//! before they are sent, and dropped once the client has them. Leaves out: the owner of the object,
//! and limits per client (`server`).

use crate::layout::{Codes, Layout};
use crate::mode::{Mode, RateControl, TIMEOUT, slow_start};
use crate::msg::{ArrivalReport, Feedback, Numbers, Packet, PullId, Report, Timing};
use crate::path::{Path, ReportDelta, gap, made_up_from, quantum};
use crate::receipt::{CREDIT_FACTOR, Credit, Nonces};
use crate::receiver::FEEDBACK_GAP_MAX;
use anabranch_codes::Symbol;
use anabranch_transport::bbr::SendRecord;
use anabranch_transport::tfrc::{self, GAP_MAX_S, Sender as Tfrc, SenderConfig};
use anabranch_units::{BitRate, ByteCount, Duration, Instant};
use std::collections::VecDeque;

/// Maximum interval between two packets in [`Mode::Counted`], in seconds.
///
/// Differs: 64 in RFC 5348. At a very high loss rate the rate falls to one packet per interval, and
/// one packet a minute is useless. A TCP at Linux's minimum timeout sends as often.
const COUNTED_GAP_MAX_S: f64 = 0.2;
/// Maximum number of records of packets in flight. Beyond it the oldest packets count as lost.
const ON_WAY_MAX: usize = 1 << 16;
/// Minimum time after which an unacknowledged packet counts as lost. Processes are scheduled at
/// longer intervals than the shortest round trips.
const PATIENCE_MIN: Duration = Duration::from_ms(2);
/// Standard deviations of the random losses that unrequested sums cover at a pull's end.
const AHEAD_DEVIATIONS: f64 = 2.0;
/// Number of round trips in which the window must be about to run out for its first generations to
/// count as blocking it. Feedback on a packet sent now takes one round trip, and feedback on its
/// retransmission another.
const PRESSING_RTTS: f64 = 2.0;
/// Number of generations requested from the object's owner before their blocks are due.
const AHEAD: u32 = 2;

/// Parameters of a pull at its server.
#[derive(Clone, Debug)]
pub(crate) struct SenderParams {
    /// The client's number for the pull.
    pub pull: PullId,
    /// Layout of the pull's bytes.
    pub layout: Layout,
    /// Protocol of the pull.
    pub mode: Mode,
    /// Rate control.
    pub rate_control: RateControl,
    /// Number of generations that the client keeps open.
    pub window: u32,
    /// Maximum rate granted until the first feedback.
    pub grant: Option<BitRate>,
    /// Earliest time of the first packet.
    pub start: Instant,
    /// Round-trip time measured by the client.
    pub rtt: Option<Duration>,
    /// Duration of the client's silence after which the pull ends.
    pub give_up: Duration,
    /// Interval within which due packets leave together; zero for exact pacing.
    pub quantum: Duration,
    /// Id of each generation's first packet; 0 if the blocks themselves leave first.
    pub first_id: u32,
    /// Secret number that the client cannot guess; nonces are computed from it.
    pub secret: u64,
    /// Maximum bytes that TFRC sends before the first feedback proves an arrival.
    pub unproven_max: ByteCount,
}

/// Bound on the losses among `packets` at a loss rate of `share`, exceeded in one of fifty cases.
fn likely_lost(packets: u32, share: f64) -> u32 {
    let lost = f64::from(packets) * share;
    (lost + AHEAD_DEVIATIONS * lost.sqrt()).ceil() as u32
}

/// End of a pull.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum SenderEvent {
    /// The client has every byte.
    Complete,
    /// The client was silent for too long.
    GaveUp,
    /// The client acknowledged packets that it has not received.
    FalseReceipt,
}

/// Whether unrequested sums may leave; see the module documentation.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum UnrequestedSums {
    No,
    Yes,
}

#[derive(Debug)]
struct OpenGeneration<S> {
    /// Blocks of the generation; empty until they are supplied.
    blocks: Vec<S>,
    /// Id of the generation's next packet.
    next_id: u32,
    /// Number of missing packets by the last feedback; `None` before the first feedback.
    lacks: Option<u32>,
    on_way: u32,
}

#[derive(Copy, Clone, Debug)]
struct InFlightPacket {
    sequence: u32,
    generation: u32,
    sent_at: Instant,
    /// BBR's record of the sending; `None` with TFRC.
    sent: Option<SendRecord>,
}

/// State of the rate control.
#[derive(Debug)]
enum Rate {
    Tfrc {
        tfrc: Box<Tfrc>,
        /// Packets before this number count as acknowledged: by feedback or a timeout.
        heard: u32,
    },
    /// The path, shared with other pulls, controls the rate. The fields hold the counts of the last
    /// feedback on this pull.
    Path {
        received: u32,
        lost: u32,
        runs: u32,
        newest: Option<SendRecord>,
        /// Packets before this number count as lost after a long silence.
        written_off: u32,
        /// Whether packets have been written off since the last feedback.
        is_silent: bool,
        /// Bytes in flight that the path counts for this pull.
        inflight: u64,
    },
}

/// The sending end of one pull.
#[derive(Debug)]
pub(crate) struct Sender<S> {
    sending: SenderParams,
    codes: Codes,
    rate: Rate,
    /// Grant in datagram bytes per second.
    ceiling_bytes_per_s: f64,
    packet_bytes: u64,
    /// Time of the next packet; with a path, of the first packet only.
    next_at: Instant,
    sequence: u32,
    nonces: Nonces,
    credit: Credit,
    /// The lowest incomplete generation at the client.
    base: u32,
    /// The generation `base` and the following ones.
    open: VecDeque<OpenGeneration<S>>,
    /// The generation whose blocks are being sent.
    fresh: u32,
    on_way: VecDeque<InFlightPacket>,
    /// Number of the oldest records in `on_way` whose packets count as lost: feedback is overdue.
    late: usize,
    /// Number of owed sums; 0 if no generation needs to be searched for one.
    owed: u32,
    /// Highest `next` in feedback so far.
    heard_next: u32,
    heard_at: Instant,
    /// Whether the sender has sent less since the last report than TFRC allows.
    is_limited: bool,
    /// Whether no packet was sent since TFRC's timer was last set.
    was_idle: bool,
    event: Option<SenderEvent>,
    is_over: bool,
}

impl<S: Symbol> Sender<S> {
    /// Creates the sender of a pull requested at `now`.
    pub fn new(now: Instant, sending: SenderParams) -> Self {
        let codes = Codes::new(&sending.layout, sending.mode);
        let size = Packet::<S>::header_bytes(sending.rate_control) + sending.layout.block_bytes();
        let ceiling_bytes_per_s = bytes_per_s(sending.grant);
        let initial_bytes_per_s = match (sending.mode, sending.grant, sending.rtt) {
            (Mode::Lttp, ..) => 0.0,
            (Mode::Counted, Some(_), _) => ceiling_bytes_per_s,
            // The sender starts with TCP's initial window of ten packets per round trip (RFC 6928).
            (Mode::Counted, None, Some(rtt)) => 10.0 * f64::from(size) / rtt.as_secs_f64().max(1e-6),
            (Mode::Counted, None, None) => 0.0,
        };
        let (gap_max_s, timer_min_s) = match sending.mode {
            Mode::Lttp => (GAP_MAX_S, 0.0),
            Mode::Counted => (COUNTED_GAP_MAX_S, 4.0 * FEEDBACK_GAP_MAX.as_secs_f64()),
        };
        let tfrc = SenderConfig {
            size,
            timeout: TIMEOUT,
            initial_bytes_per_s,
            reduces_oscillation: false,
            gap_max_s,
            timer_min_s,
            slow_start: slow_start(sending.mode, sending.grant),
        };
        let rate = match sending.rate_control {
            RateControl::Tfrc => Rate::Tfrc { tfrc: Box::new(Tfrc::new(now, tfrc)), heard: 0 },
            RateControl::Bbr => Rate::Path {
                received: 0,
                lost: 0,
                runs: 0,
                newest: None,
                written_off: 0,
                is_silent: false,
                inflight: 0,
            },
        };
        Self {
            codes,
            rate,
            ceiling_bytes_per_s,
            packet_bytes: size.into(),
            next_at: sending.start,
            sequence: 0,
            nonces: Nonces::new(sending.secret),
            credit: Credit::default(),
            base: 0,
            open: VecDeque::new(),
            fresh: 0,
            on_way: VecDeque::new(),
            late: 0,
            owed: 0,
            heard_next: 0,
            heard_at: now.max(sending.start),
            is_limited: false,
            was_idle: true,
            event: (sending.layout.generations() == 0).then_some(SenderEvent::Complete),
            is_over: sending.layout.generations() == 0,
            sending,
        }
    }

    /// Layout of the pull.
    pub const fn layout(&self) -> &Layout {
        &self.sending.layout
    }
    /// Packets sent so far.
    pub const fn sent(&self) -> u32 {
        self.sequence
    }
    /// Current rate in datagram bytes per second. With a path the result is the grant only; the
    /// path's rate is [`Path::rate_bytes_per_s`].
    pub fn rate_bytes_per_s(&self) -> f64 {
        match &self.rate {
            Rate::Tfrc { tfrc, .. } => tfrc.rate_bytes_per_s().min(self.ceiling_bytes_per_s),
            Rate::Path { .. } => self.ceiling_bytes_per_s,
        }
    }
    /// Whether a path controls the rate.
    pub const fn has_path(&self) -> bool {
        matches!(self.rate, Rate::Path { .. })
    }
    /// Updates the pull's bytes in flight in `path`: packets neither acknowledged nor lost.
    pub fn count_inflight(&mut self, path: &mut Path) {
        let (is_over, sequence, packet_bytes) = (self.is_over, self.sequence, self.packet_bytes);
        if let Rate::Path { received, lost, written_off, inflight, .. } = &mut self.rate {
            let packets =
                sequence.saturating_sub(*received).saturating_sub(*lost).min(sequence - *written_off);
            let now = if is_over { 0 } else { u64::from(packets) * packet_bytes };
            path.set_inflight(std::mem::replace(inflight, now), now);
        }
    }
    fn rtt(&self, path: Option<&Path>) -> Option<Duration> {
        match &self.rate {
            Rate::Tfrc { tfrc, .. } => tfrc.rtt(),
            Rate::Path { .. } => path?.rtt(),
        }
    }
    fn loss_share(&self, path: Option<&Path>) -> f64 {
        match &self.rate {
            Rate::Tfrc { tfrc, .. } => tfrc.loss_rate(),
            Rate::Path { .. } => path.map_or(0.0, Path::loss_share),
        }
    }
    /// Bytes of the blocks held, including each block's bookkeeping.
    pub fn held_bytes(&self) -> u64 {
        let bytes = |block: &S| (block.len() + size_of::<S>()) as u64;
        let blocks = |open: &OpenGeneration<S>| open.blocks.iter().map(bytes).sum::<u64>();
        self.open.iter().map(blocks).sum()
    }
    /// Bytes of all open generations at their maximum length, plus records of packets in flight.
    pub fn wanted_bytes(&self) -> u64 {
        let records = self.on_way.len() * size_of::<InFlightPacket>();
        self.open.len() as u64 * self.generation_bytes() + records as u64
    }
    /// Bytes of the longest generation.
    pub fn generation_bytes(&self) -> u64 {
        let layout = &self.sending.layout;
        generation_bytes::<S>(layout.block_bytes(), layout.blocks_max())
    }
    /// Whether the sender holds no generation and has requested none.
    pub fn holds_nothing(&self) -> bool {
        self.open.is_empty()
    }
    /// Whether no further packet will leave.
    pub const fn is_over(&self) -> bool {
        self.is_over
    }

    /// The next generation whose blocks will be sent soon. Each generation is returned once.
    pub fn poll_wanted(&mut self) -> Option<u32> {
        let next = self.base + self.open.len() as u32;
        let end = self.sending.layout.generations().min(self.base + self.sending.window);
        if self.is_over || next >= end || next > self.fresh + AHEAD {
            return None;
        }
        self.open.push_back(OpenGeneration {
            blocks: Vec::new(),
            next_id: self.sending.first_id,
            lacks: None,
            on_way: 0,
        });
        Some(next)
    }

    /// Supplies a generation's blocks.
    ///
    /// Shape: [`Layout::blocks`] blocks, each of [`Layout::block_bytes`] or shorter at the end.
    /// Panics: if the number of blocks is wrong.
    pub fn supply(&mut self, generation: u32, blocks: Vec<S>) {
        assert_eq!(blocks.len(), self.sending.layout.blocks(generation) as usize, "a generation's blocks");
        if let Some(open) = self.opened(generation) {
            open.blocks = blocks;
        }
    }

    /// Drops the last requested generation if no packet of it was sent and another generation is
    /// open. It is requested again later. Returns false if no generation was dropped.
    pub fn give_back(&mut self) -> bool {
        let last = self.open.back().filter(|last| last.next_id == self.sending.first_id);
        let gives = last.is_some() && self.open.len() > 1;
        if gives {
            self.open.pop_back();
        }
        gives
    }

    fn opened(&mut self, generation: u32) -> Option<&mut OpenGeneration<S>> {
        self.open.get_mut(generation.checked_sub(self.base)? as usize)
    }

    /// Handles feedback. `path` is the pull's path if BBR controls the rate.
    pub fn handle_feedback(&mut self, now: Instant, feedback: &Feedback, mut path: Option<&mut Path>) {
        let generations = self.sending.layout.generations();
        let is_old = feedback.next < self.heard_next || feedback.base < self.base;
        if self.is_over || is_old {
            return;
        }
        if !self.is_true(feedback) {
            return self.end(SenderEvent::FalseReceipt);
        }
        if feedback.report.is_some() {
            self.credit.handle_receipt(feedback.next, feedback.receipt);
        }
        self.heard_next = feedback.next;
        self.heard_at = now;
        self.ceiling_bytes_per_s = bytes_per_s(feedback.grant);
        if let (Rate::Path { .. }, Some(path)) = (&self.rate, &mut path) {
            path.set_ceiling(now, self.ceiling_bytes_per_s);
        }
        let heard = match self.rate {
            Rate::Path { received, .. } => received,
            Rate::Tfrc { .. } => 0,
        };
        let believed_bytes_per_s = self.believed_bytes_per_s();
        match (&mut self.rate, &feedback.report, &mut path) {
            (Rate::Tfrc { tfrc, heard }, Some(Report::Tfrc(report)), _) => {
                *heard = (*heard).max(feedback.next);
                let received_bytes_per_s = report.received_bytes_per_s.min(believed_bytes_per_s);
                tfrc.handle_report(now, &tfrc::Report { received_bytes_per_s, ..*report }, self.is_limited);
                (self.is_limited, self.was_idle) = (false, true);
            }
            (Rate::Path { .. }, Some(Report::Arrived(arrived)), Some(path)) => {
                self.handle_arrived(now, feedback.next, arrived, path);
            }
            // A report for another rate control is ignored.
            _ => {}
        }
        if let Rate::Tfrc { .. } = self.rate {
            // If the rate has grown, the next packet leaves earlier than scheduled.
            self.next_at = self.next_at.min(now.max(self.sending.start) + self.gap(None));
        }
        while self.base < feedback.base {
            self.open.pop_front();
            self.base += 1;
        }
        self.fresh = self.fresh.max(self.base);
        self.forget(now, feedback.next, path.as_deref());
        if let (Rate::Path { .. }, Some(Report::Arrived(arrived)), Some(path)) =
            (&self.rate, feedback.report, &mut path)
            && arrived.delay > Duration::ZERO
            && arrived.received == heard
        {
            // After a long silence, packets count as lost if their acknowledgement is overdue.
            let until = self.on_way.get(self.late).map_or(self.sequence, |first| first.sequence);
            self.write_off(until, path);
        }
        let path = path.as_deref();
        for (open, lacks) in self.open.iter_mut().zip(&feedback.lacks) {
            open.lacks = Some((*lacks).into());
        }
        let pressing = self.pressing(path);
        self.owed = (0..self.open.len()).map(|at| self.owed_of(at, pressing, path)).sum();
        if self.base == generations {
            self.end(SenderEvent::Complete);
        }
    }

    /// Whether feedback's statements about packets are possible.
    fn is_true(&self, feedback: &Feedback) -> bool {
        let Feedback { next, receipt, report, base, .. } = feedback;
        let counts_more = matches!(report, Some(Report::Arrived(arrived)) if arrived.received > *next);
        // A generation is complete only after as many packets as it has blocks.
        let base_max = match self.sending.mode {
            Mode::Counted => self.fresh,
            Mode::Lttp => u32::from(self.sequence >= self.sending.layout.blocks(0)),
        };
        // Feedback without a report acknowledges no packet.
        let is_proven = report.is_none() || self.nonces.is_true(*next, *receipt);
        *next <= self.sequence && !counts_more && *base <= base_max && is_proven
    }

    /// Maximum credible receive rate of a TFRC client, in bytes per second.
    fn believed_bytes_per_s(&self) -> f64 {
        f64::from(CREDIT_FACTOR) * self.credit.share() * self.rate_bytes_per_s()
    }

    /// Whether TFRC has as many unacknowledged packets in flight as the client's receipts allow.
    fn is_unproven(&self) -> bool {
        let Rate::Tfrc { heard, .. } = self.rate else { return false };
        let first = self.sending.unproven_max.as_u64() / self.packet_bytes;
        u64::from(self.sequence - heard) >= first.max(1) + u64::from(CREDIT_FACTOR) * self.credit.proven()
    }

    /// Passes the change between the last report and this report to the path.
    fn handle_arrived(&mut self, now: Instant, next: u32, arrived: &ArrivalReport, path: &mut Path) {
        let first = self.on_way.front().map_or(self.sequence, |first| first.sequence);
        let at = next.checked_sub(1).and_then(|last| last.checked_sub(first));
        let came = at.and_then(|at| self.on_way.get(at as usize)?.sent);
        let Rate::Path { received, lost, runs, newest, is_silent, .. } = &mut self.rate else { return };
        // At most `next` packets can have arrived or been lost.
        if arrived.received < *received || arrived.received.saturating_add(arrived.lost) > next {
            return;
        }
        *newest = came.or(*newest);
        let delivered = self.credit.take(arrived.received - *received);
        // Packets without proof count as lost.
        let unproven = arrived.received - *received - delivered;
        // The peer may report any delay, so the round-trip time has a minimum.
        let rtt = |sent: SendRecord| {
            let rtt = now.saturating_since(sent.at).as_ps().saturating_sub(arrived.delay.as_ps());
            Duration::from_ps(rtt).max(Duration::from_us(1))
        };
        let news = ReportDelta {
            delivered_bytes: u64::from(delivered) * self.packet_bytes,
            lost_bytes: u64::from(arrived.lost.saturating_sub(*lost) + unproven) * self.packet_bytes,
            lost_runs: arrived.runs.saturating_sub(*runs) + u32::from(unproven > 0),
            newest: *newest,
            rtt: came.map(rtt),
        };
        *is_silent &= arrived.received == *received;
        (*received, *lost, *runs) = (arrived.received, arrived.lost, arrived.runs);
        self.count_inflight(path);
        if news.delivered_bytes + news.lost_bytes > 0 {
            path.handle_news(now, &news);
        }
    }

    /// Drops records of packets before `next`. Overdue packets no longer count as in flight.
    fn forget(&mut self, now: Instant, next: u32, path: Option<&Path>) {
        let patience = self
            .rtt(path)
            .map(|rtt| (Duration::from_ps(rtt.as_ps() / 2 * 3) + self.gap(path) * 2).max(PATIENCE_MIN));
        while let Some(first) = self.on_way.front()
            && (first.sequence < next || self.on_way.len() >= ON_WAY_MAX)
        {
            self.forget_first();
        }
        while let Some(packet) = self.on_way.get(self.late)
            && patience.is_some_and(|patience| packet.sent_at + patience < now)
        {
            self.late += 1;
            self.count_off(packet.generation);
        }
    }

    /// Records that a packet of this generation is no longer in flight.
    fn count_off(&mut self, generation: u32) {
        if let Some(open) = self.opened(generation) {
            open.on_way -= 1;
        }
    }

    fn forget_first(&mut self) {
        let Some(first) = self.on_way.pop_front() else { return };
        match self.late.checked_sub(1) {
            Some(late) => self.late = late,
            None => self.count_off(first.generation),
        }
    }

    /// Counts packets as no longer in flight once they are older than the path's patience. Until
    /// the next feedback the pull then has at most one packet in flight, because other pulls on the
    /// path may still make progress.
    pub fn expire(&mut self, now: Instant, path: &mut Path) {
        let patience = path.patience();
        let Rate::Path { .. } = self.rate else { return };
        let mut until = None;
        while let Some(first) = self.on_way.front()
            && first.sent_at + patience <= now
        {
            until = Some(first.sequence + 1);
            self.forget_first();
        }
        match (until, &mut self.rate) {
            (Some(until), Rate::Path { is_silent, .. }) => {
                *is_silent = true;
                self.write_off(until, path);
            }
            _ => self.count_inflight(path),
        }
    }

    /// Counts the packets before `until` as lost without the client's report.
    fn write_off(&mut self, until: u32, path: &mut Path) {
        let Rate::Path { written_off, inflight, .. } = &mut self.rate else { return };
        let before = *inflight;
        *written_off = until;
        self.count_inflight(path);
        if let Rate::Path { inflight, .. } = self.rate {
            path.handle_written_off(before.saturating_sub(inflight));
        }
    }

    /// Number of sums to send for open generation `at`. The first `pressing` ones block the window.
    fn owed_of(&self, at: usize, pressing: usize, path: Option<&Path>) -> u32 {
        let (open, generation) = (&self.open[at], self.base + at as u32);
        match open.lacks {
            Some(lacks) if lacks > 0 && generation < self.fresh => {
                // Adds the expected losses at the recent loss rate. An expectation below half a
                // packet adds none, and the client requests again. With a path, other packets fill
                // the waiting time, so only a generation that blocks the window gets more.
                let more = match self.has_path() {
                    true if at < pressing => likely_lost(lacks, self.loss_share(path)),
                    true => 0,
                    false => (f64::from(lacks) * self.loss_share(path)).round() as u32,
                };
                (lacks + more).saturating_sub(open.on_way)
            }
            _ => 0,
        }
    }

    /// Number of the first open generations that block the window ([`PRESSING_RTTS`]).
    fn pressing(&self, path: Option<&Path>) -> usize {
        let SenderParams { layout, window, .. } = &self.sending;
        let Some(rtt) = path.and_then(Path::rtt).filter(|_| self.base + window < layout.generations()) else {
            return 0;
        };
        let packets = rtt.as_secs_f64() / self.gap(path).as_secs_f64().max(1e-9);
        let ahead = (PRESSING_RTTS * packets / f64::from(layout.blocks_max())).ceil() as u32;
        (self.fresh - self.base).saturating_add(ahead).saturating_sub(*window) as usize
    }

    /// Index of the first generation that will probably lack packets once the packets in flight
    /// have arrived or are lost. `None` without a path, before all blocks have left, or if no loss
    /// is expected.
    fn ahead(&self, path: Option<&Path>) -> Option<usize> {
        let loss = self.loss_share(path);
        let unheard = path.map_or(0, Path::lost_unheard);
        let is_lossless = loss <= 0.0 && unheard == 0;
        if !self.has_path() || self.fresh < self.sending.layout.generations() || is_lossless {
            return None;
        }
        (0..self.open.len()).find(|at| {
            let open = &self.open[*at];
            let lacks = open.lacks.unwrap_or_else(|| self.sending.layout.blocks(self.base + *at as u32));
            lacks > 0 && (open.on_way < lacks + likely_lost(lacks, loss) || unheard > 0)
        })
    }

    /// Generation and id of the next packet. Without numbers or ids, the pull ends by timeout.
    fn next_packet(&self, path: Option<&Path>, unasked: UnrequestedSums) -> Option<(u32, u32)> {
        let most = Numbers::of(self.sending.rate_control);
        let next = self.next_of(path, unasked).filter(|_| !self.is_over && self.sequence < most.packets);
        next.filter(|(_, id)| *id < most.ids || self.sending.mode == Mode::Lttp)
    }

    fn next_of(&self, path: Option<&Path>, unasked: UnrequestedSums) -> Option<(u32, u32)> {
        let ready = |open: &&OpenGeneration<S>| !open.blocks.is_empty();
        if self.sending.mode == Mode::Lttp {
            return self.open.front().filter(ready).map(|open| (self.base, open.next_id));
        }
        if self.owed > 0 {
            let pressing = self.pressing(path);
            let owing = (0..self.open.len()).find(|at| self.owed_of(*at, pressing, path) > 0);
            if let Some(at) = owing {
                return Some((self.base + at as u32, self.open[at].next_id));
            }
        }
        if unasked == UnrequestedSums::Yes
            && let Some(at) = self.ahead(path)
        {
            return Some((self.base + at as u32, self.open[at].next_id));
        }
        let open = self.open.get((self.fresh - self.base) as usize).filter(ready)?;
        Some((self.fresh, open.next_id))
    }

    /// The next packet due. With BBR, `path` is the pull's path, and must have room for a packet.
    pub fn poll_transmit(
        &mut self,
        now: Instant,
        mut path: Option<&mut Path>,
        unasked: UnrequestedSums,
    ) -> Option<Packet<S>> {
        let waits = matches!(self.rate, Rate::Path { is_silent: true, inflight: 1.., .. });
        if waits
            || self.is_unproven()
            || self.next_at > now + quantum(self.sending.quantum, self.rtt(path.as_deref()))
        {
            return None;
        }
        let Some((generation, id)) = self.next_packet(path.as_deref(), unasked) else {
            self.is_limited = true;
            if let Rate::Tfrc { .. } = self.rate {
                // Idle time is not made up for as lateness.
                self.next_at = self.next_at.max(now);
            }
            return None;
        };
        let len = self.sending.layout.block_bytes() as usize;
        let blocks = self.sending.layout.blocks(generation);
        let code = self.codes.of(generation);
        let open = &mut self.open[(generation - self.base) as usize];
        let payload = code.encode(&open.blocks, id, len);
        open.next_id = open.next_id.wrapping_add(1);
        open.on_way += 1;
        if self.sending.mode == Mode::Counted {
            if generation == self.fresh && open.next_id == blocks {
                self.fresh += 1;
            }
            // The owed sum is now in flight.
            self.owed = self.owed.saturating_sub(u32::from(id >= blocks));
        }
        let sequence = self.sequence;
        let nonce = self.nonces.nonce(sequence);
        self.sequence += 1;
        if self.on_way.len() >= ON_WAY_MAX {
            self.forget(now, self.on_way[0].sequence + 1, path.as_deref());
        }
        let sent = match (&mut self.rate, &mut path) {
            (Rate::Path { inflight, .. }, Some(path)) => {
                *inflight += self.packet_bytes;
                if unasked == UnrequestedSums::Yes {
                    path.note_unasked(self.packet_bytes);
                }
                Some(path.handle_sent(now, self.packet_bytes))
            }
            (Rate::Path { .. }, None) => None,
            (Rate::Tfrc { tfrc, .. }, _) => {
                self.is_limited |= tfrc.rate_bytes_per_s() > self.ceiling_bytes_per_s;
                None
            }
        };
        self.on_way.push_back(InFlightPacket { sequence, generation, sent_at: now, sent });
        self.was_idle = false;
        let rtt = self.rtt(path.as_deref());
        if let Rate::Tfrc { .. } = self.rate {
            let gap = self.gap(None);
            self.next_at = self.next_at.max(made_up_from(now, gap, rtt)) + gap;
        }
        Some(Packet {
            pull: self.sending.pull,
            sequence,
            timing: (!self.has_path()).then(|| Timing { sent_at: now, rtt: rtt.or(self.sending.rtt) }),
            queued: path.is_some_and(|path| path.has_queue()),
            nonce,
            generation,
            id,
            payload,
        })
    }

    /// Transmission time of a packet at the current rate.
    fn gap(&self, path: Option<&Path>) -> Duration {
        let rate = path.map_or(f64::INFINITY, Path::rate_bytes_per_s);
        gap(self.packet_bytes, self.rate_bytes_per_s().min(rate))
    }

    /// Time of the last feedback on this pull, or its start.
    pub const fn heard_at(&self) -> Instant {
        self.heard_at
    }

    /// Time at which a silent client's pull ends. `heard_at` is the time of its last feedback.
    fn gives_up_at(&self, heard_at: Instant) -> Instant {
        self.heard_at.max(heard_at) + self.sending.give_up
    }

    /// Time of the next call of [`Sender::handle_timeout`] or [`Sender::poll_transmit`]. `heard_at`
    /// is the time of the last feedback on any of the client's pulls: a pull that waits for earlier
    /// pulls gets no feedback.
    pub fn poll_timeout(&self, path: Option<&Path>, heard_at: Instant) -> Option<Instant> {
        if self.is_over {
            return None;
        }
        let gives_up = self.gives_up_at(heard_at);
        let (due, send_at) = match (&self.rate, path) {
            (Rate::Tfrc { tfrc, .. }, _) => {
                (tfrc.timer().min(gives_up), (!self.is_unproven()).then_some(self.next_at))
            }
            (Rate::Path { is_silent, inflight, .. }, Some(path)) => {
                // Without room, the next packet waits for feedback, or until packets are lost.
                let may = path.has_room() && (!is_silent || *inflight == 0);
                let expires = self.on_way.front().map(|first| first.sent_at + path.patience());
                (gives_up.min(expires.unwrap_or(gives_up)), may.then(|| self.next_at.max(path.next_at())))
            }
            (Rate::Path { .. }, None) => (gives_up, None),
        };
        let send_at = send_at.filter(|_| self.next_packet(path, UnrequestedSums::Yes).is_some());
        Some(send_at.map_or(due, |at| due.min(at)))
    }

    /// Handles the time up to `now`. `heard_at` is the time of the client's last feedback.
    pub fn handle_timeout(&mut self, now: Instant, heard_at: Instant) {
        if self.is_over {
            return;
        }
        if self.gives_up_at(heard_at) <= now {
            return self.end(SenderEvent::GaveUp);
        }
        let Rate::Tfrc { tfrc, heard } = &mut self.rate else { return };
        if tfrc.timer() <= now {
            *heard = self.sequence;
            tfrc.handle_timeout(now, self.was_idle);
            self.was_idle = true;
            if self.next_packet(None, UnrequestedSums::Yes).is_none() {
                self.ask_for_word(now, None);
            }
        }
    }

    /// Schedules one more packet during a silence. The client responds to the packet with feedback.
    fn ask_for_word(&mut self, now: Instant, path: Option<&mut Path>) {
        if self.sending.mode == Mode::Counted && self.sequence > 0 {
            self.forget(now, self.sequence, path.as_deref());
            if let Some(path) = path {
                // The records were dropped, so their packets cannot expire one by one.
                self.write_off(self.sequence, path);
            }
            if let Some(open) = self.open.front_mut().filter(|_| self.base < self.fresh) {
                open.lacks = Some(open.lacks.unwrap_or(1).max(1));
                self.owed = 1;
            }
        }
    }

    /// Handles a long silence of the path.
    pub fn handle_silence(&mut self, now: Instant, path: &mut Path) {
        if !self.is_over && self.has_path() && self.next_packet(Some(path), UnrequestedSums::Yes).is_none() {
            self.ask_for_word(now, Some(path));
        }
    }

    /// Ends the pull at the client's request.
    pub fn stop(&mut self) {
        self.end(SenderEvent::Complete);
    }

    fn end(&mut self, event: SenderEvent) {
        self.is_over = true;
        self.event = Some(event);
        self.open.clear();
        self.on_way.clear();
        self.late = 0;
    }

    /// The end of the pull, returned once.
    pub fn poll_event(&mut self) -> Option<SenderEvent> {
        self.event.take()
    }
}

/// Memory in bytes for a generation of `blocks` blocks, including bookkeeping.
pub(crate) fn generation_bytes<S>(block_bytes: u32, blocks: u32) -> u64 {
    let block = u64::from(block_bytes) + size_of::<S>() as u64;
    u64::from(blocks) * block + size_of::<OpenGeneration<S>>() as u64
}

/// The grant in bytes per second; infinite if there is no grant.
fn bytes_per_s(grant: Option<BitRate>) -> f64 {
    grant.map_or(f64::INFINITY, |grant| grant.as_bps() as f64 / 8.0)
}

#[cfg(test)]
mod tests;
