//! One pull at its server: which packet leaves next, and when.
//!
//! In [`Mode::Counted`] each generation's blocks leave once, in order; then only as many sums as the client's feedback says
//! are lacking and not on their way already. What was sent longer ago than a round trip and a half and is still not counted
//! is lost. So a pull without loss sends each block once and stops by itself. In [`Mode::Lttp`] sums leave until the client says
//! stop. Either way TFRC decides how fast, and the client's grant bounds it.
//!
//! A generation's blocks are asked for ([`Sender::poll_wanted`]) before they are sent and forgotten once the client has them.
//! Leaves out: whose object it is and what the client may ask for (`server`).

use crate::layout::{Codes, Layout};
use crate::mode::{Mode, TIMEOUT, slow_start};
use crate::msg::{Feedback, Packet, PullId};
use crate::receiver::FEEDBACK_GAP_MAX;
use anabranch_codes::Symbol;
use anabranch_transport::tfrc::{GAP_MAX_S, Sender as Tfrc, SenderConfig};
use anabranch_units::{BitRate, Duration, Instant};
use std::collections::VecDeque;

/// The longest time between two packets in [`Mode::Counted`], in seconds.
///
/// Differs: 64 in RFC 5348. Where nearly all is lost its rate falls to that, and what comes then once in a minute is not worth
/// waiting for. A TCP whose timer stands at Linux's least one sends as much.
const COUNTED_GAP_MAX_S: f64 = 0.2;
/// Packets on their way that are remembered; the oldest of more count as lost.
const ON_WAY_MAX: usize = 1 << 16;
/// The least time after which a packet that is not counted is lost: processes take turns more slowly than the shortest ways.
const PATIENCE_MIN: Duration = Duration::from_ms(2);
/// How much may leave late and together: so many packets, or what is sent in such a part of a round trip, as long ways have
/// longer queues; and after how long it is too late for that (RFC 5348 section 4.6).
const CATCH_UP_PACKETS: u64 = 4;
const CATCH_UP_RTT_PART: u64 = 16;
const CATCH_UP_MAX: Duration = Duration::from_ms(20);
/// The longest time within which packets leave together: as Linux's TCP hands as much to the card at once as it sends in a
/// millisecond (`tcp_tso_autosize`).
const QUANTUM_MAX: Duration = Duration::from_ms(1);
/// Generations that are asked for before they are due.
const AHEAD: u32 = 2;

/// How a pull is sent.
#[derive(Clone, Debug)]
pub struct Sending {
    /// What the client calls it.
    pub pull: PullId,
    /// Its bytes.
    pub layout: Layout,
    /// Of the protocol's two.
    pub mode: Mode,
    /// Generations that the client keeps open.
    pub window: u32,
    /// The most that may be sent in a second until feedback says otherwise.
    pub grant: Option<BitRate>,
    /// When the first packet may leave.
    pub start: Instant,
    /// The round trip, where the client has measured it.
    pub rtt: Option<Duration>,
    /// After so long without feedback the pull is over.
    pub give_up: Duration,
    /// Packets that are due within this time at least leave together; none does so that is not due if this is zero.
    pub quantum: Duration,
    /// The id of each generation's first packet: 0 where blocks come first.
    pub first_id: u32,
}

/// How a pull ends.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum SenderEvent {
    /// The client has it all.
    Complete,
    /// Nothing was heard for too long.
    GaveUp,
}

#[derive(Debug)]
struct Open<S> {
    /// Empty until they are supplied.
    blocks: Vec<S>,
    /// The packet that is next of this generation.
    next_id: u32,
    /// What the client said last; nothing yet without.
    lacks: Option<u32>,
    on_way: u32,
}

#[derive(Copy, Clone, Debug)]
struct OnWay {
    sequence: u32,
    generation: u32,
    sent_at: Instant,
}

/// The sending end of one pull.
#[derive(Debug)]
pub struct Sender<S> {
    sending: Sending,
    codes: Codes,
    tfrc: Tfrc,
    /// Bytes of datagrams in a second.
    ceiling_bytes_per_s: f64,
    packet_bytes: f64,
    next_at: Instant,
    sequence: u32,
    /// The lowest generation that the client lacks, and those behind it.
    base: u32,
    open: VecDeque<Open<S>>,
    /// The generation whose blocks leave now.
    fresh: u32,
    on_way: VecDeque<OnWay>,
    /// Sums that are owed; 0 where none is to be looked for.
    owed: u32,
    /// The newest that feedback has said.
    heard_next: u32,
    heard_at: Instant,
    /// Since the last report less was sent than TFRC would have had.
    is_limited: bool,
    /// Nothing was sent since TFRC's timer was set.
    was_idle: bool,
    event: Option<SenderEvent>,
    is_over: bool,
}

impl<S: Symbol> Sender<S> {
    /// A pull that is asked for at `now`.
    pub fn new(now: Instant, sending: Sending) -> Self {
        let codes = Codes::new(&sending.layout, sending.mode);
        let size = Packet::<S>::HEADER_BYTES + sending.layout.block_bytes();
        let ceiling_bytes_per_s = bytes_per_s(sending.grant);
        let initial_bytes_per_s = match (sending.mode, sending.grant, sending.rtt) {
            (Mode::Lttp, ..) => 0.0,
            (Mode::Counted, Some(_), _) => ceiling_bytes_per_s,
            // As TCP's first window (RFC 6928).
            (Mode::Counted, None, Some(rtt)) => 10.0 * f64::from(size) / rtt.as_secs_f64().max(1e-6),
            (Mode::Counted, None, None) => 0.0,
        };
        let (gap_max_s, timer_min_s) = match sending.mode {
            Mode::Lttp => (GAP_MAX_S, 0.0),
            Mode::Counted => (COUNTED_GAP_MAX_S, 4.0 * FEEDBACK_GAP_MAX.as_secs_f64()),
        };
        let config = SenderConfig {
            size,
            timeout: TIMEOUT,
            initial_bytes_per_s,
            reduces_oscillation: false,
            gap_max_s,
            timer_min_s,
            slow_start: slow_start(sending.mode, sending.grant),
        };
        Self {
            codes,
            tfrc: Tfrc::new(now, config),
            ceiling_bytes_per_s,
            packet_bytes: f64::from(size),
            next_at: sending.start,
            sequence: 0,
            base: 0,
            open: VecDeque::new(),
            fresh: 0,
            on_way: VecDeque::new(),
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

    /// Its bytes.
    pub const fn layout(&self) -> &Layout {
        &self.sending.layout
    }
    /// Packets sent so far.
    pub const fn sent(&self) -> u32 {
        self.sequence
    }
    /// Bytes of datagrams that may leave in a second now.
    pub fn rate_bytes_per_s(&self) -> f64 {
        self.tfrc.rate_bytes_per_s().min(self.ceiling_bytes_per_s)
    }
    /// Bytes of blocks that it holds, with what each takes beside them.
    pub fn held_bytes(&self) -> u64 {
        let blocks =
            |open: &Open<S>| open.blocks.iter().map(|b| (b.len() + size_of::<S>()) as u64).sum::<u64>();
        self.open.iter().map(blocks).sum()
    }
    /// Bytes of the generations that it holds or has asked for, each taken for one of the longest, and of what it remembers of
    /// packets.
    pub fn wanted_bytes(&self) -> u64 {
        self.open.len() as u64 * self.generation_bytes() + (self.on_way.len() * size_of::<OnWay>()) as u64
    }
    /// Bytes that the longest generation takes.
    pub fn generation_bytes(&self) -> u64 {
        let layout = &self.sending.layout;
        generation_bytes::<S>(layout.block_bytes(), layout.blocks_max())
    }
    /// Whether it holds no generation and has asked for none.
    pub fn holds_nothing(&self) -> bool {
        self.open.is_empty()
    }
    /// Whether no packet will leave any more.
    pub const fn is_over(&self) -> bool {
        self.is_over
    }

    /// A generation whose blocks will be sent soon and are to be supplied; it is asked for once.
    pub fn poll_wanted(&mut self) -> Option<u32> {
        let next = self.base + self.open.len() as u32;
        let end = self.sending.layout.generations().min(self.base + self.sending.window);
        if self.is_over || next >= end || next > self.fresh + AHEAD {
            return None;
        }
        self.open.push_back(Open {
            blocks: Vec::new(),
            next_id: self.sending.first_id,
            lacks: None,
            on_way: 0,
        });
        Some(next)
    }

    /// Gives a generation's blocks.
    ///
    /// Shape: [`Layout::blocks`] of them, each of [`Layout::block_bytes`], or shorter where the last one ends.
    /// Panics: for another number of blocks.
    pub fn supply(&mut self, generation: u32, blocks: Vec<S>) {
        assert_eq!(blocks.len(), self.sending.layout.blocks(generation) as usize, "a generation's blocks");
        if let Some(open) = self.opened(generation) {
            open.blocks = blocks;
        }
    }

    fn opened(&mut self, generation: u32) -> Option<&mut Open<S>> {
        self.open.get_mut(generation.checked_sub(self.base)? as usize)
    }

    /// Takes in what the client says.
    pub fn handle_feedback(&mut self, now: Instant, feedback: &Feedback) {
        let generations = self.sending.layout.generations();
        let is_old = feedback.next < self.heard_next || feedback.base < self.base;
        // What was never sent cannot have come.
        let is_wrong = feedback.next > self.sequence || feedback.base > generations;
        if self.is_over || is_old || is_wrong {
            return;
        }
        self.heard_next = feedback.next;
        self.heard_at = now;
        self.ceiling_bytes_per_s = bytes_per_s(feedback.grant);
        if let Some(report) = &feedback.report {
            self.tfrc.handle_report(now, report, self.is_limited);
            (self.is_limited, self.was_idle) = (false, true);
        }
        // Where the rate has grown, the next packet need not wait as long as it would have.
        self.next_at = self.next_at.min(now.max(self.sending.start) + self.gap());
        while self.base < feedback.base {
            self.open.pop_front();
            self.base += 1;
        }
        self.fresh = self.fresh.max(self.base);
        self.forget(now, feedback.next);
        for (open, lacks) in self.open.iter_mut().zip(&feedback.lacks) {
            open.lacks = Some((*lacks).into());
        }
        self.owed = (0..self.open.len()).map(|at| self.owed_of(at)).sum();
        if self.base == generations {
            self.end(SenderEvent::Complete);
        }
    }

    /// Forgets packets that have come, and those that should have.
    fn forget(&mut self, now: Instant, next: u32) {
        let patience = self
            .tfrc
            .rtt()
            .map(|rtt| (Duration::from_ps(rtt.as_ps() / 2 * 3) + self.gap() * 2).max(PATIENCE_MIN));
        while let Some(first) = self.on_way.front() {
            let is_late = patience.is_some_and(|patience| first.sent_at + patience < now);
            if first.sequence >= next && !is_late && self.on_way.len() < ON_WAY_MAX {
                break;
            }
            let generation = first.generation;
            self.on_way.pop_front();
            if let Some(open) = self.opened(generation) {
                open.on_way -= 1;
            }
        }
    }

    /// Sums that are to be sent of the generation at this place.
    fn owed_of(&self, at: usize) -> u32 {
        let (open, generation) = (&self.open[at], self.base + at as u32);
        match open.lacks {
            Some(lacks) if lacks > 0 && generation < self.fresh => {
                // Of what is lacking and leaves now, as much more as was lost lately.
                let more = (f64::from(lacks) * self.tfrc.loss_rate()).ceil() as u32;
                (lacks + more).saturating_sub(open.on_way)
            }
            _ => 0,
        }
    }

    /// Which packet is next, by generation and id.
    fn next_packet(&self) -> Option<(u32, u32)> {
        // Whose numbers are used up sends nothing more, and is given up.
        if self.is_over || self.sequence == u32::MAX {
            return None;
        }
        let ready = |open: &&Open<S>| !open.blocks.is_empty();
        if self.sending.mode == Mode::Lttp {
            return self.open.front().filter(ready).map(|open| (self.base, open.next_id));
        }
        if self.owed > 0 {
            let owing = (0..self.open.len()).find(|at| self.owed_of(*at) > 0);
            if let Some(at) = owing {
                return Some((self.base + at as u32, self.open[at].next_id));
            }
        }
        let open = self.open.get((self.fresh - self.base) as usize).filter(ready)?;
        Some((self.fresh, open.next_id))
    }

    /// Packets that are due within this time leave together: where that is wanted, a quarter of a round trip if that is not too
    /// long, as a wake for each packet costs more than the packet.
    fn quantum(&self) -> Duration {
        let quarter = self.tfrc.rtt().map_or(Duration::ZERO, |rtt| Duration::from_ps(rtt.as_ps() / 4));
        match self.sending.quantum {
            Duration::ZERO => Duration::ZERO,
            least => least.max(quarter.min(QUANTUM_MAX)),
        }
    }

    /// The next packet that is due.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<Packet<S>> {
        if self.next_at > now + self.quantum() {
            return None;
        }
        let Some((generation, id)) = self.next_packet() else {
            self.is_limited = true;
            // Idle time is not lateness.
            self.next_at = self.next_at.max(now);
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
            // A sum that was owed is on its way now.
            self.owed = self.owed.saturating_sub(u32::from(id >= blocks));
        }
        let sequence = self.sequence;
        self.sequence += 1;
        if self.on_way.len() >= ON_WAY_MAX {
            self.forget(now, self.on_way[0].sequence + 1);
        }
        self.on_way.push_back(OnWay { sequence, generation, sent_at: now });
        self.was_idle = false;
        self.is_limited |= self.tfrc.rate_bytes_per_s() > self.ceiling_bytes_per_s;
        // What a clock or a busy machine has made late is made up for, but for no more packets than a queue takes.
        let gap = self.gap();
        let of_rtt =
            self.tfrc.rtt().map_or(Duration::ZERO, |rtt| Duration::from_ps(rtt.as_ps() / CATCH_UP_RTT_PART));
        let most = (gap * CATCH_UP_PACKETS).max(of_rtt).min(CATCH_UP_MAX);
        let earliest = Instant::ZERO + now.saturating_since(Instant::ZERO + most);
        self.next_at = self.next_at.max(earliest) + gap;
        Some(Packet {
            pull: self.sending.pull,
            sequence,
            sent_at: now,
            rtt: self.tfrc.rtt().or(self.sending.rtt),
            generation,
            id,
            payload,
        })
    }

    fn gap(&self) -> Duration {
        Duration::from_ps((self.packet_bytes / self.rate_bytes_per_s() * 1e12) as u64)
    }

    /// When to call [`Sender::handle_timeout`] or [`Sender::poll_transmit`] next.
    pub fn poll_timeout(&self) -> Option<Instant> {
        if self.is_over {
            return None;
        }
        let due = self.tfrc.timer().min(self.heard_at + self.sending.give_up);
        Some(if self.next_packet().is_some() { due.min(self.next_at) } else { due })
    }

    /// Tells that `now` has come.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.is_over {
            return;
        }
        if self.heard_at + self.sending.give_up <= now {
            return self.end(SenderEvent::GaveUp);
        }
        if self.tfrc.timer() <= now {
            self.tfrc.handle_timeout(now, self.was_idle);
            self.was_idle = true;
            // Nothing is heard, and perhaps nothing came: a packet more makes the client say so.
            if self.sending.mode == Mode::Counted && self.sequence > 0 && self.next_packet().is_none() {
                self.forget(now, self.sequence);
                if let Some(open) = self.open.front_mut().filter(|_| self.base < self.fresh) {
                    open.lacks = Some(open.lacks.unwrap_or(1).max(1));
                    self.owed = 1;
                }
            }
        }
    }

    /// The client has said stop.
    pub fn stop(&mut self) {
        self.end(SenderEvent::Complete);
    }

    fn end(&mut self, event: SenderEvent) {
        self.is_over = true;
        self.event = Some(event);
        self.open.clear();
        self.on_way.clear();
    }

    /// How it has ended, once.
    pub fn poll_event(&mut self) -> Option<SenderEvent> {
        self.event.take()
    }
}

/// Bytes that a generation of so many blocks takes: its blocks, what holds each of them, and what holds them all.
pub(crate) fn generation_bytes<S>(block_bytes: u32, blocks: u32) -> u64 {
    let block = u64::from(block_bytes) + size_of::<S>() as u64;
    u64::from(blocks) * block + size_of::<Open<S>>() as u64
}

/// Bytes in a second.
fn bytes_per_s(grant: Option<BitRate>) -> f64 {
    grant.map_or(f64::INFINITY, |grant| grant.as_bps() as f64 / 8.0)
}
