//! The layer of all hosts of a run: each host's state machine, and segments as codable packets.
//!
//! Read [`SprayLayer`] first.

use super::{Scheme, Spray};
use crate::datagram::{Body, Datagram, FlowId};
use crate::host::{Host, OutgoingDatagram, OutgoingPacket};
use crate::packet::{LENGTH_BYTES, Packet};
use crate::ways::Chooser;
use anabranch_endpoint::{Instant, PeerId};
use anabranch_fabric::{Envelope, Flag, FlowClass, Label, Layer, LayerCx, LayeredPacket, PacketMeta};
use anabranch_sim::Msg;
use anabranch_transport::{Datagram as Phantom, Segment};
use anabranch_units::{BitRate, ByteCount, Seed};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Bytes of a flow on one path, in Presto: 64 KiB.
const CELL_BYTES: u64 = 1 << 16;
/// Bytes of a packet with echoes only: headers and some echoes.
const BARE_BYTES: u32 = 100;

/// The layer of all hosts of a run.
pub(super) struct SprayLayer {
    scheme: Scheme,
    short_first: bool,
    header_bytes: u32,
    /// Size from which a flow's packets bypass the hosts' state machines; `None` if hosts count
    /// bytes themselves.
    long: Option<ByteCount>,
    hosts: Vec<Host<DatagramContent>>,
    /// Last packet from one host to another, as a template for datagrams that carry no packet.
    came: LastPackets,
    /// Due time of each host's valid timer.
    armed_at: Vec<Option<Instant>>,
    /// Path choosers by source and destination, where hosts choose paths.
    choosers: BTreeMap<(u16, u16), Chooser>,
    ways: u16,
    rate: BitRate,
    seed: Seed,
    /// Bytes sent, and bytes of parities among them.
    sent_bytes: u64,
    parity_bytes: u64,
}

/// Content of a simulated datagram.
#[derive(Clone, Debug)]
enum DatagramContent {
    /// A packet of TCP.
    Source(LayeredPacket<Msg>),
    /// A parity: the packets of its unit.
    Parity(Arc<[LayeredPacket<Msg>]>),
}

/// Header of a datagram, as a label of packets. A source's content is the packet itself.
type Head = Datagram<Option<Arc<[LayeredPacket<Msg>]>>>;

impl Packet for DatagramContent {
    type Coder = ();

    fn len_bytes(&self) -> usize {
        match self {
            Self::Source(packet) => packet.meta.size_bytes as usize,
            Self::Parity(unit) => {
                unit.iter().map(|packet| packet.meta.size_bytes as usize).max().unwrap_or_default()
            }
        }
    }

    fn parities((): &mut (), packets: &[Self], count: usize) -> Vec<Self> {
        let source = |packet: &Self| match packet {
            Self::Source(packet) => packet.clone(),
            Self::Parity(_) => unreachable!("units are of packets of TCP"),
        };
        let unit: Arc<[LayeredPacket<Msg>]> = packets.iter().map(source).collect();
        vec![Self::Parity(unit); count]
    }

    fn recover((): &mut (), packets: &[Option<Self>], parities: &[(u8, Self)]) -> Option<Vec<Self>> {
        let (_, Self::Parity(unit)) = parities.first()? else { return None };
        let lost = packets.iter().zip(&**unit).filter(|(packet, _)| packet.is_none());
        Some(lost.map(|(_, source)| Self::Source(source.clone())).collect())
    }
}

impl SprayLayer {
    pub(super) fn new(spray: &Spray, hosts: usize, seed: Seed) -> Self {
        let host =
            |_| Host::new(spray.config.clone()).expect("a scenario's settings are checked before it runs");
        Self {
            scheme: spray.scheme,
            short_first: spray.short_first,
            header_bytes: spray.header_bytes,
            long: spray.config.knows_sizes.then_some(spray.config.long),
            hosts: (0..hosts).map(host).collect(),
            came: BTreeMap::new(),
            armed_at: vec![None; hosts],
            choosers: BTreeMap::new(),
            ways: spray.ways,
            rate: spray.config.rate,
            seed,
            sent_bytes: 0,
            parity_bytes: 0,
        }
    }

    /// Drains a host's state machine.
    fn stir(&mut self, cx: &mut LayerCx<'_, Msg>, number: u16) {
        let host = &mut self.hosts[usize::from(number)];
        while let Some(arrived) = host.poll_arrived() {
            if let DatagramContent::Source(packet) = arrived.packet {
                cx.deliver(packet);
            }
        }
        loop {
            while let Some(leaving) = host.poll_leaving() {
                let is_first = self.short_first && leaving.is_short;
                // The path is chosen even if no packet is made below: the chooser must number the
                // same datagrams as the host.
                let way = (self.scheme == Scheme::Agent).then(|| {
                    let (ways, rate, seed, now) = (self.ways, self.rate, self.seed, cx.now());
                    let to = leaving.to as u16;
                    let chooser = self.choosers.entry((number, to)).or_insert_with(|| {
                        let random = seed.stream("ways", u64::from(number) << 16 | u64::from(to));
                        Chooser::new(random, ways, rate)
                    });
                    match leaving.datagram.body {
                        Body::Bare => chooser.choose(now, leaving.class),
                        _ => chooser.handle_leaving(now, leaving.class).1,
                    }
                });
                let made = packet(self.scheme, self.header_bytes, &self.came, (number, leaving));
                let Some(mut packet) = made else { continue };
                // Switches read the path's number in place of the packet's flow. The flow is
                // restored on arrival.
                packet.meta.flow = way.map_or(packet.meta.flow, u32::from);
                if is_first {
                    packet.meta.priority = 0;
                }
                self.sent_bytes += u64::from(packet.meta.size_bytes);
                if matches!(packet.envelope.msg, Msg::Datagram(_)) {
                    self.parity_bytes += u64::from(packet.meta.size_bytes);
                }
                cx.send(packet);
            }
            let now = cx.now();
            let mut own = self.choosers.range_mut((number, 0)..=(number, u16::MAX));
            match own.find_map(|((_, to), chooser)| Some((*to, chooser.poll_probe(now)?))) {
                Some((to, is_dark)) => host.handle_probe(now, to.into(), is_dark),
                None => break,
            }
        }
        let armed_at = &mut self.armed_at[usize::from(number)];
        let own = self.choosers.range_mut((number, 0)..=(number, u16::MAX));
        let late_at = own.filter_map(|(_, chooser)| chooser.poll_timeout()).min();
        if let Some(due) = host.poll_timeout().into_iter().chain(late_at).min()
            && armed_at.is_none_or(|armed| due < armed)
        {
            let at = due.max(cx.now());
            *armed_at = Some(at);
            cx.arm(at, number.into());
        }
    }
}

/// Last packet from one host to another, and the state machines at its ends.
type LastPackets = BTreeMap<(u16, u16), (PacketMeta, PeerId, PeerId)>;

/// Builds the packet of a datagram that leaves, from the packet that it carries or the packets of
/// its unit. Without content it copies the last packet of the reverse direction, with ends swapped;
/// `None` if there was none.
fn packet(
    scheme: Scheme,
    header_bytes: u32,
    last: &LastPackets,
    (from, leaving): (u16, OutgoingDatagram<DatagramContent>),
) -> Option<LayeredPacket<Msg>> {
    let OutgoingDatagram { to, is_short, sent_bytes, datagram, .. } = leaving;
    let Datagram { number, flow, sent_at, body, echoes } = datagram;
    let (mut packet, body) = match body {
        Body::Plain(DatagramContent::Source(packet)) => (packet, Body::Plain(None)),
        Body::Source { epoch, number, packet: DatagramContent::Source(packet) } => {
            (packet, Body::Source { epoch, number, packet: None })
        }
        Body::Parity { epoch, first, packets, index, parity: DatagramContent::Parity(unit) } => {
            let longest = unit.iter().map(|packet| packet.meta.size_bytes).max().unwrap_or_default();
            let size_bytes = longest + LENGTH_BYTES as u32;
            let LayeredPacket { meta, envelope, .. } = &unit[0];
            let msg = Msg::Datagram(Phantom { number: first.into(), size_bytes, sent_at });
            let mut meta = *meta;
            meta.size_bytes = size_bytes;
            meta.set(Flag::Ect, false);
            let envelope = Envelope { msg, label: None, ..envelope.clone() };
            let packet = LayeredPacket { meta, envelope, flow_size: None };
            (packet, Body::Parity { epoch, first, packets, index, parity: Some(unit) })
        }
        Body::Bare => (bare(last, (to as u16, from), sent_at)?, Body::Bare),
        Body::Probe => (bare(last, (to as u16, from), sent_at)?, Body::Probe),
        Body::Plain(DatagramContent::Parity(_)) | Body::Source { .. } | Body::Parity { .. } => {
            unreachable!("sources are packets of TCP, and parities are not")
        }
    };
    if !matches!(body, Body::Plain(_)) || scheme == Scheme::Agent {
        packet.meta.size_bytes += header_bytes;
    }
    match scheme {
        Scheme::Presto => packet.meta.entropy = (sent_bytes / CELL_BYTES) as u16,
        Scheme::Caps | Scheme::Classes | Scheme::Priority => {
            packet.meta.class = if is_short { FlowClass::Short } else { FlowClass::Long };
        }
        Scheme::Agent => {}
        Scheme::Ways(_) => unreachable!("it has a layer of its own"),
    }
    if !matches!(body, Body::Plain(_)) || !echoes.is_empty() || scheme == Scheme::Agent {
        let head: Head = Datagram { number, flow, sent_at, body, echoes };
        packet.envelope.label = Some(Arc::new(head));
    }
    Some(packet)
}

/// Builds a packet without content from the last packet of the reverse direction, with ends
/// swapped.
fn bare(last: &LastPackets, (to, from): (u16, u16), sent_at: Instant) -> Option<LayeredPacket<Msg>> {
    let (meta, there, here) = last.get(&(to, from))?;
    let mut meta = *meta;
    std::mem::swap(&mut meta.src, &mut meta.dst);
    meta.size_bytes = BARE_BYTES;
    meta.set(Flag::Ect, false);
    let msg = Msg::Datagram(Phantom { number: 0, size_bytes: BARE_BYTES, sent_at });
    let envelope = Envelope { from: *here, to: *there, msg, label: None };
    Some(LayeredPacket { meta, envelope, flow_size: None })
}

/// Returns the segment, if the message is one.
fn segment(msg: &Msg) -> Option<Segment> {
    match msg {
        Msg::Segment(segment) => Some(*segment),
        Msg::Datagram(_) => None,
    }
}

impl Layer<Msg> for SprayLayer {
    fn handle_leaving(&mut self, cx: &mut LayerCx<'_, Msg>, mut packet: LayeredPacket<Msg>) {
        let Some(segment) = segment(&packet.envelope.msg) else { return cx.send(packet) };
        if packet.flow_size.zip(self.long).is_some_and(|(size, long)| size >= long) {
            self.sent_bytes += u64::from(packet.meta.size_bytes);
            packet.meta.class = FlowClass::Long;
            return cx.send(packet);
        }
        let PacketMeta { src, dst, flow, .. } = packet.meta;
        let outgoing = OutgoingPacket {
            payload_bytes: segment.len,
            is_acknowledgement: segment.len == 0 && !segment.syn && !segment.fin,
            is_end: segment.fin,
            flow_size: packet.flow_size,
            packet: DatagramContent::Source(packet),
        };
        self.hosts[usize::from(src)].handle_packet(cx.now(), FlowId { peer: dst.into(), flow }, outgoing);
        self.stir(cx, src);
    }

    fn handle_arrived(&mut self, cx: &mut LayerCx<'_, Msg>, mut packet: LayeredPacket<Msg>) {
        let PacketMeta { src, dst, flow, .. } = packet.meta;
        let label: Option<Label> = packet.envelope.label.take();
        let payload = segment(&packet.envelope.msg);
        if label.is_none() && payload.is_none() {
            return cx.deliver(packet);
        }
        let plain =
            || Head { number: 0, flow, sent_at: cx.now(), body: Body::Plain(None), echoes: Vec::new() };
        let unlabelled = (label.is_none() && self.long.is_none()).then(plain);
        let labelled = label.as_ref().and_then(|label| label.downcast_ref::<Head>());
        let Some(head) = labelled.or(unlabelled.as_ref()) else { return cx.deliver(packet) };
        let flow = head.flow;
        packet.meta.flow = flow;
        if let Some(chooser) = self.choosers.get_mut(&(dst, src)) {
            for echo in &head.echoes {
                chooser.handle_echo(cx.now(), echo.number, echo.ago, echo.is_marked);
            }
        }
        let is_marked = packet.meta.has(Flag::Ce);
        if self.scheme == Scheme::Agent || matches!(head.body, Body::Source { .. } | Body::Parity { .. }) {
            self.came.insert((src, dst), (packet.meta, packet.envelope.from, packet.envelope.to));
        }
        let carried = || DatagramContent::Source(packet);
        let body = match &head.body {
            Body::Bare => Body::Bare,
            Body::Probe => Body::Probe,
            Body::Plain(_) => Body::Plain(carried()),
            Body::Source { epoch, number, .. } => {
                Body::Source { epoch: *epoch, number: *number, packet: carried() }
            }
            Body::Parity { epoch, first, packets, index, parity: Some(unit) } => {
                let (epoch, first, packets, index) = (*epoch, *first, *packets, *index);
                Body::Parity {
                    epoch,
                    first,
                    packets,
                    index,
                    parity: DatagramContent::Parity(Arc::clone(unit)),
                }
            }
            Body::Parity { parity: None, .. } => return,
        };
        let echoes = head.echoes.clone();
        let datagram = Datagram { number: head.number, flow, sent_at: head.sent_at, body, echoes };
        let payload_bytes = payload.map_or(0, |segment| segment.len);
        let host = &mut self.hosts[usize::from(dst)];
        host.handle_datagram(cx.now(), src.into(), datagram, (payload_bytes, is_marked));
        self.stir(cx, dst);
    }

    fn handle_timeout(&mut self, cx: &mut LayerCx<'_, Msg>, token: u32) {
        let number = token as u16;
        if self.armed_at[usize::from(number)] != Some(cx.now()) {
            return;
        }
        self.armed_at[usize::from(number)] = None;
        self.hosts[usize::from(number)].handle_timeout(cx.now());
        for (_, chooser) in self.choosers.range_mut((number, 0)..=(number, u16::MAX)) {
            chooser.handle_timeout(cx.now());
        }
        self.stir(cx, number);
    }

    fn figures(&self) -> Vec<(&'static str, f64)> {
        let sum =
            |of: fn(&crate::HostCounts) -> f64| self.hosts.iter().map(|host| of(host.counts())).sum::<f64>();
        let (units, periods) = (sum(|counts| counts.units as f64), sum(|counts| counts.periods as f64));
        let share = |part: f64, all: f64| if all > 0.0 { part / all } else { 0.0 };
        vec![
            ("source_packets", sum(|counts| counts.sources as f64)),
            ("parity_packets", sum(|counts| counts.parities as f64)),
            ("unit_packets_mean", share(sum(|counts| counts.unit_packets as f64), units)),
            ("blocked_share_mean", share(sum(|counts| counts.blocked_sum), units)),
            ("recovered_packets", sum(|counts| counts.recovered as f64)),
            ("surplus_packets", sum(|counts| counts.surplus as f64)),
            ("given_up_packets", sum(|counts| counts.given_up as f64)),
            ("repeated_packets", sum(|counts| counts.repeated as f64)),
            ("early_packets", sum(|counts| counts.early as f64)),
            ("held_us_mean", 1e6 * share(sum(|counts| counts.held_s), sum(|counts| counts.sources as f64))),
            ("rtt_us_mean", 1e6 * share(sum(|counts| counts.rtt_s), periods)),
            ("rtt_apart_share_mean", share(sum(|counts| counts.rtt_apart_share), periods)),
            ("parity_bytes_share", share(self.parity_bytes as f64, self.sent_bytes as f64)),
        ]
    }
}
