//! The layer of all hosts of a run in which hosts choose paths by headers ([`ways`](crate::ways)),
//! without coding.
//!
//! A segment's label carries its number; the next segment in the reverse direction echoes the
//! received numbers with their marks. An acknowledgement takes the path of the last received
//! segment. Read [`SpreadLayer`] first.

use crate::ways::{Flight, SpreaderKind};
use anabranch_endpoint::{Duration, Instant};
use anabranch_fabric::{Flag, Layer, LayerCx, LayeredPacket};
use anabranch_sim::Msg;
use anabranch_units::Seed;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The layer of all hosts of a run.
pub(super) struct SpreadLayer {
    kind: SpreaderKind,
    seed: Seed,
    /// State by flow and sending host.
    sides: BTreeMap<(u32, u16), FlowDirection>,
    counts: SpreadCounts,
}

#[derive(Debug, Default)]
struct SpreadCounts {
    packets: u64,
    marked: u64,
    values: u64,
}

/// One direction of a flow at its sender, and the segments received in the reverse direction.
#[derive(Debug)]
struct FlowDirection {
    flight: Flight,
    /// Number of the flow's bytes sent so far: the position after the last byte.
    sent: u64,
    last_value: Option<u16>,
    /// Received segments to echo: number, arrival time, and whether the segment was marked.
    echoes: Vec<(u32, Instant, bool)>,
    /// Path value of the last received segment.
    came_by: u16,
}

/// Label of a segment.
struct Head {
    number: Option<u32>,
    echoes: Vec<(u32, Duration, bool)>,
}

/// Maximum number of echoes waiting for a segment of the reverse direction; above it the oldest are
/// dropped.
const ECHOES_MAX: usize = 64;

impl SpreadLayer {
    pub(super) fn new(kind: SpreaderKind, seed: Seed) -> Self {
        Self { kind, seed, sides: BTreeMap::new(), counts: SpreadCounts::default() }
    }

    fn side(&mut self, flow: u32, host: u16) -> &mut FlowDirection {
        let (kind, seed) = (self.kind, self.seed);
        self.sides.entry((flow, host)).or_insert_with(|| {
            let random = seed.stream("ways", u64::from(flow) << 16 | u64::from(host));
            let flight = Flight::new(kind.spreader(random));
            FlowDirection { flight, sent: 0, last_value: None, echoes: Vec::new(), came_by: 0 }
        })
    }
}

impl Layer<Msg> for SpreadLayer {
    fn handle_leaving(&mut self, cx: &mut LayerCx<'_, Msg>, mut packet: LayeredPacket<Msg>) {
        let Msg::Segment(segment) = packet.envelope.msg else { return cx.send(packet) };
        let now = cx.now();
        let side = self.side(packet.meta.flow, packet.meta.src);
        let mut number = None;
        let mut is_new = false;
        if segment.len > 0 {
            let is_repeated = segment.seq < side.sent;
            side.sent = side.sent.max(segment.end());
            let (own, value) = side.flight.handle_leaving(now, is_repeated);
            is_new = side.last_value.replace(value) != Some(value);
            (number, packet.meta.entropy) = (Some(own), value);
        } else {
            packet.meta.entropy = side.came_by;
        }
        let echoes: Vec<(u32, Duration, bool)> = side
            .echoes
            .drain(..)
            .map(|(number, at, is_marked)| (number, now.saturating_since(at), is_marked))
            .collect();
        if number.is_some() || !echoes.is_empty() {
            packet.envelope.label = Some(Arc::new(Head { number, echoes }));
        }
        self.counts.packets += u64::from(number.is_some());
        self.counts.values += u64::from(is_new);
        cx.send(packet);
    }

    fn handle_arrived(&mut self, cx: &mut LayerCx<'_, Msg>, mut packet: LayeredPacket<Msg>) {
        let label = packet.envelope.label.take();
        if let Some(head) = label.as_ref().and_then(|label| label.downcast_ref::<Head>()) {
            let (now, is_marked, value) = (cx.now(), packet.meta.has(Flag::Ce), packet.meta.entropy);
            let side = self.side(packet.meta.flow, packet.meta.dst);
            for (number, ago, is_marked) in &head.echoes {
                side.flight.handle_echo(now, *number, *ago, *is_marked);
            }
            if let Some(number) = head.number {
                if side.echoes.len() == ECHOES_MAX {
                    side.echoes.remove(0);
                }
                side.echoes.push((number, now, is_marked));
                side.came_by = value;
                self.counts.marked += u64::from(is_marked);
            }
        }
        cx.deliver(packet);
    }

    fn handle_timeout(&mut self, _: &mut LayerCx<'_, Msg>, _: u32) {}

    fn figures(&self) -> Vec<(&'static str, f64)> {
        let share = |part: u64| part as f64 / self.counts.packets.max(1) as f64;
        vec![
            ("spread_packets", self.counts.packets as f64),
            ("way_changes_share", share(self.counts.values)),
            ("marked_share", share(self.counts.marked)),
        ]
    }
}
