//! Tests of a layer between machines and network: its actions on packets, and its invisibility to
//! machines.

use anabranch_endpoint::{Endpoint, Message, PeerId, Transmit};
use anabranch_fabric::*;
use anabranch_units::*;
use std::sync::Arc;

/// Test machine: sends numbered messages at once, and reports the messages that it receives.
#[derive(Debug)]
struct End {
    peer: PeerId,
    left: u32,
    came: Vec<u32>,
}

#[derive(Clone, Debug)]
struct Msg(u32);

impl Message for Msg {
    fn wire_len(&self) -> u32 {
        1_000
    }
}

impl Endpoint for End {
    type Msg = Msg;
    type Event = u32;
    fn handle_message(&mut self, _: Instant, _: PeerId, msg: Msg) {
        self.came.push(msg.0);
    }
    fn handle_timeout(&mut self, _: Instant) {}
    fn poll_transmit(&mut self, _: Instant) -> Option<Transmit<Msg>> {
        self.left = self.left.checked_sub(1)?;
        Some(Transmit { to: self.peer, not_before: None, msg: Msg(self.left) })
    }
    fn poll_event(&mut self) -> Option<u32> {
        self.came.pop()
    }
    fn poll_timeout(&self) -> Option<Instant> {
        None
    }
}

/// User that opens two machines, and keeps the reports of the second. With `moves_out`, another
/// host's machine takes the first machine's slot before the layer sends a held packet.
#[derive(Default)]
struct Pair {
    came: Vec<(Instant, u32)>,
    moves_out: bool,
}

impl User for Pair {
    type End = End;
    fn on_event(&mut self, cx: &mut HostsCx<'_, End>, _: PeerId, event: u32) {
        self.came.push((cx.now(), event));
    }
    fn on_timer(&mut self, cx: &mut HostsCx<'_, End>, token: u32) {
        if token == 1 {
            cx.remove(PeerId(0));
            let other = cx.reserve(1, 8, 1);
            assert_eq!(other, PeerId(0), "the place is taken again");
            return cx.place(other, End { peer: PeerId(1), left: 0, came: Vec::new() });
        }
        let (a, b) = (cx.reserve(0, 7, 1), cx.reserve(1, 7, 1));
        cx.note_flow_size(a, Some(ByteCount::new(3_000)));
        cx.place(b, End { peer: a, left: 0, came: Vec::new() });
        cx.place(a, End { peer: b, left: 3, came: Vec::new() });
        if self.moves_out {
            cx.arm(cx.now() + Duration::from_us(500), 1);
        }
    }
}

/// Layer that labels each packet with its flow's size, drops the second packet, sends the first one
/// twice, and delays the third by a millisecond.
#[derive(Default)]
struct MeddlingLayer {
    seen: u32,
    held: Option<LayeredPacket<Msg>>,
    labels: Vec<Option<u64>>,
}

impl Layer<Msg> for MeddlingLayer {
    fn handle_leaving(&mut self, cx: &mut LayerCx<'_, Msg>, mut packet: LayeredPacket<Msg>) {
        packet.envelope.label = packet.flow_size.map(|size| Arc::new(size.as_u64()) as Label);
        self.seen += 1;
        match self.seen {
            1 => {
                cx.send(packet.clone());
                cx.send(packet);
            }
            2 => {}
            _ => {
                self.held = Some(packet);
                cx.arm(cx.now() + Duration::from_ms(1), 5);
            }
        }
    }
    fn handle_arrived(&mut self, cx: &mut LayerCx<'_, Msg>, mut packet: LayeredPacket<Msg>) {
        let label = packet.envelope.label.take();
        self.labels.push(label.and_then(|label| label.downcast_ref().copied()));
        cx.deliver(packet);
    }
    fn handle_timeout(&mut self, cx: &mut LayerCx<'_, Msg>, token: u32) {
        assert_eq!(token, 5);
        cx.send(self.held.take().expect("it is held"));
    }
    fn figures(&self) -> Vec<(&'static str, f64)> {
        vec![("labels", self.labels.iter().flatten().sum::<u64>() as f64)]
    }
}

fn fabric(moves_out: bool) -> Fabric<Hosts<Pair>> {
    let settings = PortSettings::new(BitRate::gbps(1), Duration::from_us(10), ByteCount::mib(1));
    let port = |n| {
        let random = Seed::new(n).stream("wire", 0);
        AnyElement::Fifo(FifoPort::new(Target::node(0), settings, random).expect("in range"))
    };
    let hosts =
        Hosts::new(vec![Target::element(0), Target::element(1)], Pair { moves_out, ..Pair::default() });
    let mut fabric =
        Fabric::new(vec![port(0), port(1)], vec![hosts.with_layer(Some(Box::new(MeddlingLayer::default())))]);
    fabric.arm(Target::node(0), Instant::ZERO, Hosts::<Pair>::user_token(0));
    fabric
}

#[test]
fn layer_may_duplicate_drop_hold_and_label_packets() {
    let mut fabric = fabric(false);
    fabric.advance(Instant::ZERO + Duration::from_ms(5));
    let hosts = &fabric.nodes()[0];
    let us: Vec<(u64, u32)> =
        hosts.user().came.iter().map(|(at, number)| (at.as_ns() / 1_000, *number)).collect();
    // Each packet takes 8 us on a link with 10 us delay.
    assert_eq!(us, [(18, 2), (26, 2), (1_018, 0)]);
    assert_eq!(hosts.layer_figures(), [("labels", 9_000.0)]);
    assert_eq!(fabric.totals().injected, 3);
}

#[test]
fn held_packets_of_removed_machines_leave_by_their_port() {
    let mut fabric = fabric(true);
    fabric.advance(Instant::ZERO + Duration::from_ms(5));
    assert_eq!(fabric.nodes()[0].user().came.len(), 3);
    let sent = |port| fabric.port_counters(Target::element(port)).expect("a port").sent_packets;
    assert_eq!((sent(0), sent(1)), (3, 0));
}
