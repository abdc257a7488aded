//! One host's layer towards all others: selects packets to code, parities, and delivery times.
//!
//! A state machine without I/O: packets of TCP enter by [`Host::handle_packet`] and leave by
//! [`Host::poll_arrived`], datagrams enter by [`Host::handle_datagram`] and leave by
//! [`Host::poll_leaving`]. Its parts are one file each: `encoder`, `decoder`, `blocking`, `spread`,
//! `repeats`, `memory`. Source: CAPS, sections IV, VI and VII. Read [`Host`] first.

use crate::blocking::{BlockingEstimator, Share};
use crate::config::{Config, ConfigError, Parities, UnitSize};
use crate::datagram::{Body, DARK, Datagram, ECHO_BYTES, Echo, FlowId};
use crate::decoder::{Decoder, DecoderCounts, NUMBER_MAX};
use crate::encoder::Encoder;
use crate::memory::{Ages, FLOW_BYTES, FlowPosition, PeerMemory, kept_time, states_max};
use crate::model::{self, PathModel};
use crate::packet::{Packet, UNIT_MAX};
use crate::repeats::{REPEATS_MAX, Repeats, UnackedSource};
use crate::sent_datagrams::{ReceivedDatagrams, SentDatagrams};
use crate::spread::{ExcessWindows, Least};
use crate::ways::DatagramClass;
use anabranch_units::{ByteCount, Duration, Instant};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Maximum number of flows with state; packets of further flows pass unchanged. With a memory
/// limit, [`crate::PEER_FLOWS_MAX`] applies first.
const FLOWS_MAX: usize = 1 << 16;
/// Silence after which a flow is forgotten.
const SILENCE: Duration = Duration::from_secs(2);
/// Packet length that the equations of the unit size assume.
const PACKET: ByteCount = ByteCount::new(1_500);
/// Round-trip times assumed without and with blocking until one is measured (CAPS, section VI-D).
const RTT_FREE: Duration = Duration::from_us(100);
const RTT_BLOCKED: Duration = Duration::from_ms(3);
/// Age at which an unacknowledged datagram is forgotten. If four round trips are longer, this time
/// applies instead. A forgotten datagram does not count as blocked: its loss mostly means a full
/// queue that all paths share, which parities would fill further.
const FORGOTTEN: Duration = Duration::from_ms(10);
/// Lower bound of the longest hold of a short flow's packets where hosts choose paths. The longest
/// hold is otherwise two round trips plus the delays of the hosts.
const HOLD_SHORT_MIN: Duration = Duration::from_ms(1);
/// Delay of the first repeat while no round trip is known.
const REPEAT_FIRST: Duration = Duration::from_ms(50);
/// Minimum and maximum pause that ends a unit. Between these bounds the pause is one round trip.
const PAUSE: (Duration, Duration) = (Duration::from_us(10), Duration::from_ms(4));

/// A packet from TCP.
#[derive(Clone, Debug)]
pub struct OutgoingPacket<P> {
    /// The packet.
    pub packet: P,
    /// Bytes of data in the packet; 0 for a pure acknowledgement.
    pub payload_bytes: u32,
    /// True for a pure acknowledgement.
    pub is_acknowledgement: bool,
    /// True if the stream ends with this packet.
    pub is_end: bool,
    /// Total size of the flow, if known.
    pub flow_size: Option<ByteCount>,
}

/// A datagram to send.
#[derive(Clone, Debug)]
pub struct OutgoingDatagram<P> {
    /// Number of the destination host.
    pub to: u32,
    /// True if the flow is short so far.
    pub is_short: bool,
    /// Bytes of data that the flow had sent before this datagram.
    pub sent_bytes: u64,
    /// Class by which its path is chosen.
    pub class: DatagramClass,
    /// The datagram.
    pub datagram: Datagram<P>,
}

/// A packet for TCP.
#[derive(Clone, Debug)]
pub struct DeliveredPacket<P> {
    /// Flow of the packet.
    pub id: FlowId,
    /// The packet.
    pub packet: P,
}

/// Counters of a host's layer.
#[derive(Copy, Clone, Debug, Default, PartialEq)]
pub struct HostCounts {
    /// Source packets sent.
    pub sources: u64,
    /// Parities sent.
    pub parities: u64,
    /// Units that have ended, with and without parities.
    pub units: u64,
    /// Source packets of these units.
    pub unit_packets: u64,
    /// Sum of the blocking probabilities, each taken at the end of a unit.
    pub blocked_sum: f64,
    /// Packets recovered from parities.
    pub recovered: u64,
    /// Source packets and parities that arrived but were not needed.
    pub surplus: u64,
    /// Missing packets for which the receiver stopped waiting.
    pub given_up: u64,
    /// Source packets received beyond a gap.
    pub early: u64,
    /// Source packets sent again.
    pub repeated: u64,
    /// Total time in seconds that packets beyond a gap waited for it.
    pub held_s: f64,
    /// Number of periods of the paper's section IX-C in the following sums.
    pub periods: u64,
    /// Sum of the periods' mean round trips, in seconds.
    pub rtt_s: f64,
    /// Sum of the relative differences between each period's mean and the smoothed round trip.
    pub rtt_apart_share: f64,
    /// Flows that lost their packets or their state because their peer's memory was full.
    pub shed: u64,
}

#[derive(Debug)]
struct Flow<P> {
    /// Starts of the flow states at both ends. Each end numbers its packets from its start.
    epoch: Instant,
    their_epoch: Option<Instant>,
    encoder: Encoder<P>,
    decoder: Decoder<P>,
    sent_bytes: u64,
    received_bytes: u64,
    flow_size: Option<ByteCount>,
    /// Fraction of a parity carried over from units that ended early.
    owed: f64,
    last_at: Instant,
    /// Time since which the number of held packets is constant.
    held_at: Instant,
    due: Option<Instant>,
    /// Bytes of the flow that count in the memory of its peer.
    held: PeerMemory,
    /// Position in the list of ages, while the flow is in the table.
    place: Option<FlowPosition>,
}

#[derive(Debug)]
struct Peer {
    blocking: BlockingEstimator,
    least: Least,
    sent: SentDatagrams,
    came: ReceivedDatagrams,
    /// Maximum length of a datagram.
    datagram_max: usize,
    /// Fastest round trip.
    base: Option<Duration>,
    /// Bytes that its flows hold.
    held: PeerMemory,
}

impl Default for Peer {
    fn default() -> Self {
        Self {
            blocking: BlockingEstimator::default(),
            least: Least::default(),
            sent: SentDatagrams::default(),
            came: ReceivedDatagrams::default(),
            datagram_max: usize::MAX,
            base: None,
            held: PeerMemory::default(),
        }
    }
}

impl Peer {
    /// Smoothed round trip, or another estimate, once known.
    fn round_trip(&self) -> Option<Duration> {
        self.blocking.smoothed().or(self.base)
    }

    /// Delay before a packet with `repeats` repeats so far is sent again.
    fn patience(&self, config: &Config, repeats: u32) -> Duration {
        let rtt = self.round_trip();
        let usual = rtt.map_or(REPEAT_FIRST, |rtt| {
            let half = Duration::from_ps(rtt.as_ps() / 2);
            rtt + half.max(config.jitter)
        });
        (usual + config.say_within) * (1 << repeats)
    }
}

/// Estimates for the path to another host.
#[derive(Copy, Clone, Debug, Default, PartialEq)]
pub struct PeerView {
    /// Probability that a packet of a short flow is blocked.
    pub blocked: f64,
    /// Smoothed round trip of short flows' packets, once known.
    pub rtt: Option<Duration>,
    /// Longest recent round trip of unblocked packets.
    pub rtt_free: Option<Duration>,
    /// Longest recent round trip of blocked packets.
    pub rtt_blocked: Option<Duration>,
}

/// A datagram to assemble.
struct Draft<P> {
    body: Body<P>,
    is_short: bool,
    is_data: bool,
    sent_bytes: u64,
    /// Number of earlier transmissions.
    repeats: u32,
}

impl<P> Draft<P> {
    /// Creates a datagram with echoes only.
    const fn bare() -> Self {
        Self { body: Body::Bare, is_short: true, is_data: false, sent_bytes: 0, repeats: 0 }
    }
}

/// State machine of one host's layer.
#[derive(Debug)]
pub struct Host<P: Packet> {
    config: Config,
    coder: P::Coder,
    peers: BTreeMap<u32, Peer>,
    /// Blocking statistics of all peers together.
    others: Share,
    /// Delay statistics of short flows' packets, and of long flows'.
    spread: [ExcessWindows; 2],
    flows: BTreeMap<FlowId, Box<Flow<P>>>,
    due: BTreeSet<(Instant, FlowId)>,
    /// Deadlines of the echoes to each peer.
    report_deadlines: BTreeSet<(Instant, u32)>,
    repeats: Repeats<P>,
    ages: Ages,
    swept_at: Instant,
    leaving: VecDeque<OutgoingDatagram<P>>,
    arrived: VecDeque<DeliveredPacket<P>>,
    counts: HostCounts,
}

impl<P: Packet> Host<P> {
    /// Creates a host's layer.
    ///
    /// Errors: settings out of range.
    pub fn new(config: Config) -> Result<Self, ConfigError> {
        config.check()?;
        Ok(Self {
            config,
            coder: P::Coder::default(),
            peers: BTreeMap::new(),
            others: Share::default(),
            spread: Default::default(),
            flows: BTreeMap::new(),
            due: BTreeSet::new(),
            report_deadlines: BTreeSet::new(),
            repeats: Repeats::new(),
            ages: Ages::default(),
            swept_at: Instant::ZERO,
            leaving: VecDeque::new(),
            arrived: VecDeque::new(),
            counts: HostCounts::default(),
        })
    }

    /// Counters so far.
    pub const fn counts(&self) -> &HostCounts {
        &self.counts
    }

    /// Estimates for the path to a host.
    pub fn peer(&self, now: Instant, peer: u32) -> PeerView {
        let Some(known) = self.peers.get(&peer) else { return PeerView::default() };
        let (rtt_free, rtt_blocked) = known.blocking.longest();
        PeerView { blocked: self.blocked(now, peer), rtt: known.blocking.smoothed(), rtt_free, rtt_blocked }
    }

    /// Number of flows with state.
    pub fn flows(&self) -> usize {
        self.flows.len()
    }

    /// Bytes held for a peer: packets and parities, states of flows, packets kept for repeats, and
    /// the history of datagrams. Excludes packets that wait for [`Host::poll_arrived`] and
    /// [`Host::poll_leaving`].
    pub fn held(&self, peer: u32) -> ByteCount {
        let known =
            self.peers.get(&peer).map_or(0, |peer| peer.held.all() + peer.sent.bytes() + peer.came.bytes());
        ByteCount::new(known + self.repeats.kept_bytes(peer))
    }

    /// Counts the bytes of [`Host::flows_held`] again, from the flows themselves.
    pub(crate) fn recounted(&self, peer: u32) -> ByteCount {
        let of_peer = FlowId { peer, flow: 0 }..=FlowId { peer, flow: u32::MAX };
        let bytes = |flow: &Flow<P>| {
            FLOW_BYTES + flow.decoder.skipped_bytes() + flow.decoder.recounted() + flow.encoder.bytes()
        };
        ByteCount::new(self.flows.range(of_peer).map(|(_, flow)| bytes(flow)).sum())
    }

    /// Bytes that the flows of a peer hold: a running count.
    pub(crate) fn flows_held(&self, peer: u32) -> ByteCount {
        ByteCount::new(self.peers.get(&peer).map_or(0, |peer| peer.held.all()))
    }

    /// Makes a peer, oldest flows first, deliver and free packets until it holds at most `most`.
    pub fn limit_memory(&mut self, now: Instant, peer: u32, most: ByteCount) {
        self.bound(now, peer, most.as_u64());
    }

    /// Forgets the flows of a peer and frees their memory, because its packets take another route
    /// from now on. Held packets are delivered. Estimates of paths stay.
    pub fn forget(&mut self, now: Instant, peer: u32) {
        let of_peer = FlowId { peer, flow: 0 }..=FlowId { peer, flow: u32::MAX };
        while let Some(id) = self.flows.range(of_peer.clone()).next().map(|(id, _)| *id) {
            self.remove(now, id);
        }
        self.repeats.forget(peer);
        let Some(known) = self.peers.get_mut(&peer) else { return };
        known.sent.expire(now, Duration::ZERO);
        if let Some(due) = std::mem::take(&mut known.came).due {
            self.report_deadlines.remove(&(due, peer));
        }
    }

    /// Sets the maximum length of datagrams to a host. TCP must leave room for their headers.
    /// Echoes use the remaining room.
    ///
    /// Panics: if `bytes` is below 100, because too few echoes would fit.
    pub fn limit_datagrams(&mut self, peer: u32, bytes: usize) {
        assert!(bytes >= 100, "datagrams of {bytes} bytes say nothing");
        self.peers.entry(peer).or_default().datagram_max = bytes;
    }

    /// Handles a packet from TCP.
    pub fn handle_packet(&mut self, now: Instant, id: FlowId, outgoing: OutgoingPacket<P>) {
        let OutgoingPacket { packet, payload_bytes, is_acknowledgement, is_end, flow_size } = outgoing;
        let Some(mut flow) = self.open(now, id) else {
            let (is_short, is_data, sent_bytes) = (false, !is_acknowledgement, 0);
            let body = Body::Plain(packet);
            return self.send(now, id, Draft { body, is_short, is_data, sent_bytes, repeats: 0 });
        };
        flow.flow_size = flow_size.or(flow.flow_size);
        let (is_short, sent_bytes) = (flow.is_short(&self.config), flow.sent_bytes);
        flow.sent_bytes += u64::from(payload_bytes);
        let mut is_whole = false;
        let body = if !is_short && self.config.orders_long && !is_acknowledgement {
            // A flow that has become long leaves no incomplete unit behind.
            self.protect(now, id, &mut flow, true);
            if flow.encoder.is_worn_out(NUMBER_MAX / 2) {
                (flow.encoder, flow.epoch) = (Encoder::new(), now);
            }
            Body::Source { epoch: flow.epoch, number: flow.encoder.pass(), packet }
        } else if !is_short || is_acknowledgement || !self.config.codes {
            Body::Plain(packet)
        } else {
            if flow.encoder.is_between() {
                let size = self.unit_size(now, id.peer, &flow);
                flow.encoder.begin(size);
            }
            let (number, whole) = flow.encoder.push(now, packet.clone());
            is_whole = whole || is_end || flow.is_all_sent(&self.config, sent_bytes);
            self.counts.sources += 1;
            Body::Source { epoch: flow.epoch, number, packet }
        };
        // A flow that has become long leaves no incomplete unit behind.
        is_whole |= !is_short && !flow.encoder.is_between();
        self.send(now, id, Draft { body, is_short, is_data: !is_acknowledgement, sent_bytes, repeats: 0 });
        if is_whole {
            self.protect(now, id, &mut flow, true);
        }
        self.close(id, flow);
        self.bound_memory(now, id.peer);
    }

    /// Handles a datagram from another host. `payload_bytes` is the data length of its packet.
    /// `is_marked` is true if the datagram arrived with a congestion mark.
    pub fn handle_datagram(
        &mut self,
        now: Instant,
        from: u32,
        datagram: Datagram<P>,
        (payload_bytes, is_marked): (u32, bool),
    ) {
        self.take_datagram(now, from, datagram, (payload_bytes, is_marked));
        self.bound_memory(now, from);
    }

    fn take_datagram(
        &mut self,
        now: Instant,
        from: u32,
        datagram: Datagram<P>,
        (payload_bytes, is_marked): (u32, bool),
    ) {
        let id = FlowId { peer: from, flow: datagram.flow };
        let Datagram { number, sent_at, body, echoes, .. } = datagram;
        self.handle_echoes(now, from, &echoes);
        let peer = self.peers.entry(from).or_default();
        let mut hold = self.config.hold_max;
        let is_numbered = match body {
            Body::Bare => return,
            Body::Probe => true,
            // Uncoded packets take other paths, so their delays do not apply.
            Body::Plain(_) => self.config.numbers_all,
            Body::Source { .. } | Body::Parity { .. } => {
                let is_long = self.config.orders_long
                    && self.flows.get(&id).is_some_and(|flow| !flow.is_short(&self.config));
                if self.config.numbers_all && !is_long {
                    // Time for a retransmission by the other host or by its TCP.
                    let again = |rtt: Duration| rtt * 2 + self.config.jitter + self.config.say_within;
                    hold = peer.round_trip().map_or(HOLD_SHORT_MIN, again).max(HOLD_SHORT_MIN).min(hold);
                }
                let spread = &mut self.spread[usize::from(is_long)];
                hold = spread.sample(&mut peer.least, (sent_at, now), hold);
                true
            }
        };
        let is_probe = matches!(body, Body::Probe);
        if is_numbered {
            let was_due = peer.came.due.is_some();
            let is_full = peer.came.push(number, now, is_marked, self.config.say_within);
            self.report_deadlines.extend(peer.came.due.filter(|_| !was_due).map(|due| (due, from)));
            if is_full || (is_probe && id.flow == DARK) {
                self.send(now, id, Draft::bare());
            }
        }
        if is_probe {
            return;
        }
        let Some(mut flow) = self.open(now, id) else {
            if let Body::Plain(packet) | Body::Source { packet, .. } = body {
                self.arrived.push_back(DeliveredPacket { id, packet });
            }
            return;
        };
        flow.received_bytes += u64::from(payload_bytes);
        // The limit is twice the size of a long flow: the last unit of a flow that has just become
        // long still gets parities, and the bytes of duplicates are counted, too.
        if self.config.memory.is_some() && flow.received_bytes / 2 >= self.config.long.as_u64() {
            flow.decoder.end_parities();
        }
        let mut out = Vec::new();
        let before = flow.decoder.counts;
        self.counts.held_s += flow.take_held(now);
        match body {
            Body::Bare | Body::Probe => {}
            Body::Plain(packet) => out.push(packet),
            Body::Source { epoch, number, packet } => {
                if flow.follow(epoch, &mut out) {
                    let coder = &mut self.coder;
                    flow.decoder.handle_source((now, hold), (number, packet), coder, &mut out);
                } else {
                    // The packet is from an earlier epoch. TCP handles its late arrival.
                    out.push(packet);
                }
            }
            Body::Parity { epoch, first, packets, index, parity } => {
                if flow.follow(epoch, &mut out) {
                    let coder = &mut self.coder;
                    let (unit, parity) = ((first, packets), (index, parity));
                    flow.decoder.handle_parity(now, unit, parity, coder, &mut out);
                } else {
                    self.counts.surplus += 1;
                }
            }
        }
        self.counts.add(before, flow.decoder.counts);
        self.arrived.extend(out.into_iter().map(|packet| DeliveredPacket { id, packet }));
        self.close(id, flow);
    }

    /// Handles acknowledgements of this host's datagrams.
    fn handle_echoes(&mut self, now: Instant, from: u32, echoes: &[Echo]) {
        let peer = self.peers.entry(from).or_default();
        let was_known = peer.round_trip().is_some();
        for echo in echoes {
            let Some((left, rtt)) = peer.sent.take(now, echo) else { continue };
            peer.base = Some(peer.base.map_or(rtt, |base| base.min(rtt)));
            if left.is_short
                && let Some(is_blocked) = peer.blocking.sample(now, rtt, self.config.jitter)
            {
                self.others.count(now, is_blocked);
            }
            if let Some((mean_s, apart_share)) = peer.blocking.take_period() {
                self.counts.periods += 1;
                self.counts.rtt_s += mean_s;
                self.counts.rtt_apart_share += apart_share;
            }
            if let Some((flow, number)) = left.source {
                let id = FlowId { peer: from, flow };
                self.repeats.handle_echo(id, number);
                if let Some(flow) = self.flows.get_mut(&id) {
                    flow.encoder.handle_echo(number);
                }
            }
        }
        if !was_known && peer.round_trip().is_some() {
            // Repeats that wait for the first round trip become due earlier.
            self.repeats.hasten(from, now + peer.patience(&self.config, 0));
        }
        let limit = peer.blocking.smoothed().map_or(FORGOTTEN, |rtt| (rtt * 4).max(FORGOTTEN));
        peer.sent.forget(now, limit);
    }

    /// Sends a datagram, with as many echoes as fit.
    fn send(&mut self, now: Instant, id: FlowId, draft: Draft<P>) {
        let Draft { body, is_short, is_data, sent_bytes, repeats } = draft;
        let peer = self.peers.entry(id.peer).or_default();
        let is_coded = is_short && is_data;
        if matches!(body, Body::Source { .. }) && self.config.repeats && is_short && repeats < REPEATS_MAX {
            let due = now + peer.patience(&self.config, repeats);
            self.repeats.keep(id, UnackedSource { body: body.clone(), sent_bytes, repeats, due });
        }
        let number = match &body {
            Body::Source { number, .. } => peer.sent.push(now, Some((id.flow, *number)), is_coded),
            Body::Parity { .. } => peer.sent.push(now, None, true),
            Body::Probe => peer.sent.push(now, None, false),
            Body::Plain(_) if self.config.numbers_all => peer.sent.push(now, None, false),
            Body::Bare | Body::Plain(_) => 0,
        };
        let mut datagram = Datagram { number, sent_at: now, flow: id.flow, body, echoes: Vec::new() };
        // A long flow's path may have a long queue, which would delay echoes.
        let is_quick = is_short || !is_data || !self.config.numbers_all;
        if let Some(due) = peer.came.due.filter(|_| is_quick) {
            self.report_deadlines.remove(&(due, id.peer));
            let bytes = datagram.header_bytes() + datagram.carried().map_or(0, Packet::len_bytes);
            datagram.echoes = peer.came.take(now, peer.datagram_max.saturating_sub(bytes) / ECHO_BYTES);
            self.report_deadlines.extend(peer.came.due.map(|due| (due, id.peer)));
        }
        let class = DatagramClass::of(&datagram, is_data, is_short);
        self.leaving.push_back(OutgoingDatagram { to: id.peer, is_short, sent_bytes, class, datagram });
    }

    /// Sends a probe as the next datagram. The other host echoes its arrival. With `is_dark`, this
    /// host receives nothing from the other host, which must answer immediately over any path.
    pub fn handle_probe(&mut self, now: Instant, peer: u32, is_dark: bool) {
        let draft = Draft { body: Body::Probe, is_short: false, is_data: false, sent_bytes: 0, repeats: 0 };
        self.send(now, FlowId { peer, flow: if is_dark { DARK } else { 0 } }, draft);
        self.bound_memory(now, peer);
    }

    /// Handles due deadlines.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some((_, peer)) = self.report_deadlines.first().copied().filter(|(at, _)| *at <= now) {
            let id = FlowId { peer, flow: 0 };
            self.send(now, id, Draft::bare());
        }
        while let Some((id, UnackedSource { body, sent_bytes, repeats, .. })) = self.repeats.poll(now) {
            self.counts.repeated += 1;
            let (is_short, is_data, repeats) = (true, true, repeats + 1);
            self.send(now, id, Draft { body, is_short, is_data, sent_bytes, repeats });
        }
        while let Some((_, id)) = self.due.first().copied().filter(|(at, _)| *at <= now) {
            let Some(mut flow) = self.flows.remove(&id) else {
                self.due.pop_first();
                continue;
            };
            let (idle, most) = self.patience(id.peer);
            if flow.encoder.due(idle, most).is_some_and(|due| due <= now) {
                self.protect(now, id, &mut flow, false);
            }
            let mut out = Vec::new();
            let before = flow.decoder.counts;
            self.counts.held_s += flow.take_held(now);
            flow.decoder.handle_timeout(now, &mut out);
            self.counts.add(before, flow.decoder.counts);
            self.arrived.extend(out.into_iter().map(|packet| DeliveredPacket { id, packet }));
            self.close(id, flow);
        }
        if self.expires_at().is_some_and(|at| at <= now) {
            self.expire(now);
        }
        if self.config.memory.is_some() {
            let peers: Vec<u32> = self.peers.keys().copied().collect();
            peers.into_iter().for_each(|peer| self.bound_memory(now, peer));
        }
    }

    /// Returns the next datagram to send, until `None`.
    pub fn poll_leaving(&mut self) -> Option<OutgoingDatagram<P>> {
        self.leaving.pop_front()
    }
    /// Returns the next packet for TCP, until `None`.
    pub fn poll_arrived(&mut self) -> Option<DeliveredPacket<P>> {
        self.arrived.pop_front()
    }
    /// Time of the next [`Host::handle_timeout`].
    pub fn poll_timeout(&self) -> Option<Instant> {
        let say = self.report_deadlines.first().map(|(at, _)| *at);
        let due = self.due.first().map(|(at, _)| *at);
        due.into_iter().chain(say).chain(self.repeats.due()).chain(self.expires_at()).min()
    }

    /// Next expiry of a silent flow or an unacknowledged datagram. `None` without a memory limit.
    fn expires_at(&self) -> Option<Instant> {
        self.config.memory?;
        let kept = kept_time(self.config.hold_max);
        let of_peer = |(number, peer): (&u32, &Peer)| {
            let laden = self.ages.first(*number, true).map(|(at, _)| at + kept);
            let bare = self.ages.first(*number, false).map(|(at, _)| at + SILENCE);
            laden.into_iter().chain(bare).chain(peer.sent.oldest_at().map(|at| at + SILENCE)).min()
        };
        self.peers.iter().filter_map(of_peer).min()
    }

    /// Drops the state of silent flows and of unacknowledged datagrams.
    fn expire(&mut self, now: Instant) {
        let peers: Vec<u32> = self.peers.keys().copied().collect();
        for peer in peers {
            self.expire_packets(now, peer);
            self.forget_silent(now, peer);
            if let Some(known) = self.peers.get_mut(&peer) {
                known.sent.expire(now, SILENCE);
            }
        }
    }

    /// Drops the packets of a peer's silent flows, and the old units of its active flows.
    fn expire_packets(&mut self, now: Instant, peer: u32) {
        let kept = kept_time(self.config.hold_max);
        while let Some((at, id)) = self.ages.first(peer, true)
            && now.saturating_since(at) >= kept
        {
            let Some(mut flow) = self.take(id) else { break };
            if now.saturating_since(flow.last_at) >= kept {
                self.shed(now, id, &mut flow);
            } else {
                let before = flow.decoder.counts;
                flow.decoder.expire(now);
                self.counts.add(before, flow.decoder.counts);
            }
            self.close(id, flow);
        }
    }

    /// Forgets a peer's flows after a long silence.
    fn forget_silent(&mut self, now: Instant, peer: u32) {
        while let Some((at, id)) = self.ages.first(peer, false)
            && now.saturating_since(at) >= SILENCE
        {
            if self.flows.get(&id).is_some_and(|flow| now.saturating_since(flow.last_at) >= SILENCE) {
                self.remove(now, id);
            } else if let Some(flow) = self.take(id) {
                self.close(id, flow);
            }
        }
    }

    /// Finds the peer's flow with the oldest last packet, among flows with packets if `is_laden`,
    /// else among flows without. Returns the packet's time and the flow.
    fn oldest(&mut self, peer: u32, is_laden: bool) -> Option<(Instant, FlowId)> {
        loop {
            let (at, id) = self.ages.first(peer, is_laden)?;
            let flow = self.take(id)?;
            let last_at = flow.last_at;
            self.close(id, flow);
            if last_at == at {
                return Some((at, id));
            }
        }
    }

    fn bound_memory(&mut self, now: Instant, peer: u32) {
        if let Some(most) = self.config.memory {
            self.bound(now, peer, most.as_u64());
        }
    }

    /// Makes a peer give up memory until it holds at most `most` bytes. States of flows have a
    /// fixed part of the budget, so that many flows without packets do not take the packets' room.
    fn bound(&mut self, now: Instant, peer: u32, most: u64) {
        while self.peers.get(&peer).is_some_and(|peer| peer.held.states > states_max(most)) {
            let oldest = [true, false].into_iter().filter_map(|is_laden| self.oldest(peer, is_laden)).min();
            let Some((_, id)) = oldest else { break };
            self.counts.shed += 1;
            self.remove(now, id);
        }
        while self.held(peer).as_u64() > most {
            if let Some((_, id)) = self.oldest(peer, true) {
                let Some(mut flow) = self.take(id) else { break };
                self.counts.shed += 1;
                self.shed(now, id, &mut flow);
                self.close(id, flow);
            } else if self.repeats.kept_bytes(peer) > 0 {
                self.repeats.forget(peer);
            } else {
                // The history of sent datagrams is freed last.
                let Some(known) = self.peers.get_mut(&peer) else { break };
                known.sent.expire(now, Duration::ZERO);
                break;
            }
        }
    }

    /// Makes a flow give up its packets.
    fn shed(&mut self, now: Instant, id: FlowId, flow: &mut Flow<P>) {
        let mut out = Vec::new();
        let before = flow.decoder.counts;
        self.counts.held_s += flow.take_held(now);
        flow.decoder.shed(&mut out);
        flow.encoder.take();
        self.counts.add(before, flow.decoder.counts);
        self.arrived.extend(out.into_iter().map(|packet| DeliveredPacket { id, packet }));
    }

    /// Forgets a flow. Its held packets are delivered.
    fn remove(&mut self, now: Instant, id: FlowId) {
        let Some(mut flow) = self.take(id) else { return };
        self.shed(now, id, &mut flow);
        if let Some(due) = flow.due {
            self.due.remove(&(due, id));
        }
        if let Some(peer) = self.peers.get_mut(&id.peer) {
            peer.held.replace(flow.held, PeerMemory::default());
        }
    }

    /// Removes a flow from the table and from the list of ages.
    fn take(&mut self, id: FlowId) -> Option<Box<Flow<P>>> {
        let mut flow = self.flows.remove(&id)?;
        if let Some(place) = flow.place.take() {
            self.ages.remove(id, place);
        }
        Some(flow)
    }

    /// Takes a flow out of the table, or creates it; `None` if there are too many.
    fn open(&mut self, now: Instant, id: FlowId) -> Option<Box<Flow<P>>> {
        if let Some(mut flow) = self.flows.remove(&id) {
            flow.last_at = now;
            return Some(flow);
        }
        if self.config.memory.is_none() && now.saturating_since(self.swept_at) >= SILENCE {
            self.swept_at = now;
            let peers: Vec<u32> = self.peers.keys().copied().collect();
            peers.into_iter().for_each(|peer| self.forget_silent(now, peer));
        }
        (self.flows.len() < FLOWS_MAX).then(|| Box::new(Flow::new(now, &self.config)))
    }

    /// Returns a flow to the table, and schedules its next deadline.
    fn close(&mut self, id: FlowId, mut flow: Box<Flow<P>>) {
        let (idle, most) = self.patience(id.peer);
        let due = flow.encoder.due(idle, most).into_iter().chain(flow.decoder.due()).min();
        if due != flow.due {
            if let Some(before) = flow.due {
                self.due.remove(&(before, id));
            }
            self.due.extend(due.map(|due| (due, id)));
            flow.due = due;
        }
        let held = flow.count();
        self.peers.entry(id.peer).or_default().held.replace(flow.held, held);
        flow.held = held;
        let is_laden = held.packets > 0 && self.config.memory.is_some();
        if flow.place.is_none_or(|place| place.is_laden != is_laden) {
            let place = FlowPosition { is_laden, at: flow.last_at };
            if let Some(before) = flow.place.replace(place) {
                self.ages.remove(id, before);
            }
            self.ages.insert(id, place);
        }
        self.flows.insert(id, flow);
    }

    /// Pause that ends a unit, and maximum age of a unit.
    fn patience(&self, peer: u32) -> (Duration, Duration) {
        let rtt = self.peers.get(&peer).and_then(|peer| peer.blocking.smoothed()).unwrap_or(RTT_FREE);
        (rtt.clamp(PAUSE.0, PAUSE.1), rtt + rtt)
    }

    fn blocked(&self, now: Instant, peer: u32) -> f64 {
        let nothing = BlockingEstimator::default();
        let blocking = self.peers.get(&peer).map_or(&nothing, |peer| &peer.blocking);
        blocking.probability(now, &self.others)
    }

    /// Number of packets in the unit that begins.
    fn unit_size(&self, now: Instant, peer: u32, flow: &Flow<P>) -> usize {
        let left = flow.left(&self.config).filter(|left| *left > 0);
        let left = left.map_or(u64::MAX, |left| left.div_ceil(PACKET.as_u64()));
        let window = u64::from(flow.encoder.window()).min(left).min(UNIT_MAX as u64) as u32;
        let size = match self.config.unit {
            UnitSize::Fixed(packets) => packets.into(),
            UnitSize::Window => window,
            UnitSize::Best => {
                let longest = self.peers.get(&peer).map_or((None, None), |peer| peer.blocking.longest());
                let rtt_free = longest.0.unwrap_or(RTT_FREE);
                let rtt_blocked = longest.1.unwrap_or(RTT_BLOCKED).max(rtt_free);
                let ways = PathModel { rate: self.config.rate, packet: PACKET, rtt_free, rtt_blocked };
                ways.frugal_unit(window, self.blocked(now, peer)).0
            }
        };
        size as usize
    }

    /// Sends the parities of the unit in a flow's encoder: the mean number of blocked packets,
    /// rounded up for a complete unit. For a unit that ended early, as small windows cause, the
    /// fraction is carried over to the next unit.
    fn protect(&mut self, now: Instant, id: FlowId, flow: &mut Flow<P>, is_whole: bool) {
        let Some(unit) = flow.encoder.take() else { return };
        let packets = unit.packets.len() as u32;
        let blocked = self.blocked(now, id.peer);
        let count = match self.config.parities {
            Parities::Fixed(count) => count.into(),
            Parities::Blocking if is_whole => model::parities(packets, blocked),
            Parities::Blocking => {
                flow.owed += f64::from(packets) * blocked / (1.0 - blocked);
                let count = flow.owed.floor();
                flow.owed -= count;
                count as u32
            }
        };
        let parities = P::parities(&mut self.coder, &unit.packets, (count as usize).min(UNIT_MAX));
        self.counts.units += 1;
        self.counts.unit_packets += u64::from(packets);
        self.counts.blocked_sum += blocked;
        self.counts.parities += parities.len() as u64;
        for (index, parity) in (0u8..).zip(parities) {
            let (epoch, first, packets) = (flow.epoch, unit.first, packets as u8);
            let body = Body::Parity { epoch, first, packets, index, parity };
            let sent_bytes = flow.sent_bytes;
            self.send(now, id, Draft { body, is_short: true, is_data: true, sent_bytes, repeats: 0 });
        }
    }
}

impl HostCounts {
    fn add(&mut self, before: DecoderCounts, after: DecoderCounts) {
        self.recovered += after.recovered - before.recovered;
        self.surplus += after.surplus - before.surplus;
        self.given_up += after.given_up - before.given_up;
        self.early += after.early - before.early;
    }
}

impl<P: Packet> Flow<P> {
    fn new(now: Instant, config: &Config) -> Self {
        Self {
            epoch: now,
            their_epoch: None,
            encoder: Encoder::new(),
            decoder: Decoder::new(config.held_max, config.memory.map(|_| config.hold_max)),
            sent_bytes: 0,
            received_bytes: 0,
            flow_size: None,
            owed: 0.0,
            last_at: now,
            held_at: now,
            due: None,
            held: PeerMemory::default(),
            place: None,
        }
    }

    /// Bytes that the flow holds.
    fn count(&self) -> PeerMemory {
        let states = FLOW_BYTES + self.decoder.skipped_bytes();
        PeerMemory { states, packets: self.decoder.bytes() + self.encoder.bytes() }
    }

    /// Returns the total time that the flow's packets were held since the last call, in seconds.
    fn take_held(&mut self, now: Instant) -> f64 {
        let since = std::mem::replace(&mut self.held_at, now);
        now.saturating_since(since).as_secs_f64() * self.decoder.held() as f64
    }
    /// Returns true if the flow is short so far.
    fn is_short(&self, config: &Config) -> bool {
        let size = self.flow_size.filter(|_| config.knows_sizes);
        let moved = ByteCount::new(self.sent_bytes.max(self.received_bytes));
        size.unwrap_or(moved) < config.long
    }
    /// Bytes that the flow has not sent yet, if known.
    fn left(&self, config: &Config) -> Option<u64> {
        let size = self.flow_size.filter(|_| config.knows_sizes)?;
        Some(size.as_u64().saturating_sub(self.sent_bytes))
    }
    /// Returns true if the bytes sent after the first `before` bytes include the flow's last byte.
    /// Data sent after the last byte is a retransmission.
    fn is_all_sent(&self, config: &Config, before: u64) -> bool {
        let size = self.flow_size.filter(|_| config.knows_sizes).map(ByteCount::as_u64);
        size.is_some_and(|size| (before + 1..=self.sent_bytes).contains(&size))
    }
    /// Returns true if the epoch is current. A newer epoch resets the decoder.
    fn follow(&mut self, epoch: Instant, out: &mut Vec<P>) -> bool {
        let known = *self.their_epoch.get_or_insert(epoch);
        if epoch > known {
            self.decoder.finish(out);
            self.decoder.restart();
            self.their_epoch = Some(epoch);
        }
        epoch >= known
    }
}

#[cfg(test)]
mod tests;
