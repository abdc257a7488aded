//! Packet-hops per CPU second of the plain port: `cargo run --release -p anabranch-fabric --example hops`.
//!
//! Hosts around a ring of ports; every host keeps 64 packets of 1,500 bytes under way to the host five links on.

#![allow(
    clippy::disallowed_methods,
    reason = "an example that measures: it reads the processor time it has used"
)]

use anabranch_fabric::*;
use anabranch_units::*;

const HOPS: u16 = 5;
const WINDOW: u32 = 64;

/// Sends a packet on for every one that arrives. Its timer sends the first ones.
struct Host {
    id: u16,
    hosts: u16,
}

impl Host {
    fn send<Q: EventQueue>(&self, cx: &mut NodeCx<'_, (), Q>) {
        let to = (self.id + HOPS) % self.hosts;
        cx.send(Target::element(u32::from(self.id)), PacketMeta::new(self.id, to, 1_500), ());
    }
}

impl Node for Host {
    type Body = ();
    fn on_packet<Q: EventQueue>(&mut self, cx: &mut NodeCx<'_, (), Q>, _: PacketMeta, (): ()) {
        self.send(cx);
    }
    fn on_timer<Q: EventQueue>(&mut self, cx: &mut NodeCx<'_, (), Q>, _: u32) {
        (0..WINDOW).for_each(|_| self.send(cx));
    }
}

/// Processor time used by this process (its only thread), first field of proc(5) schedstat.
fn cpu_s() -> f64 {
    let text = std::fs::read_to_string("/proc/self/schedstat").expect("Linux");
    text.split_whitespace().next().and_then(|ns| ns.parse::<f64>().ok()).expect("nanoseconds") / 1e9
}

fn main() {
    for hosts in [16u16, 128, 1_024] {
        let ports = (0..hosts).map(|i| {
            let next = Target::element(u32::from(hosts + (i + 1) % hosts));
            let settings =
                PortSettings::new(BitRate::gbps(100), Duration::from_ns(500), ByteCount::kib(1_024));
            let loss = Seed::new(1).stream("loss", u64::from(i));
            AnyElement::Port(Box::new(Port::new(next, settings, loss).expect("a rate in range")))
        });
        let switches = (0..hosts).map(|i| {
            let next = |to| if to == i { Target::node(u32::from(i)) } else { Target::element(u32::from(i)) };
            AnyElement::Switch(Switch::new((0..hosts).map(|to| Some(next(to))).collect()))
        });
        let nodes = (0..hosts).map(|id| Host { id, hosts }).collect();
        let mut fabric: Fabric<Host> = Fabric::new(ports.chain(switches).collect(), nodes);
        for i in 0..u32::from(hosts) {
            fabric.arm(Target::node(i), Instant::from_ns(u64::from(i)), 0);
        }
        let before = cpu_s();
        fabric.advance(Instant::from_us(400_000 / u64::from(hosts)));
        let used = cpu_s() - before;
        let hops: u64 = (0..u32::from(hosts))
            .map(|i| fabric.port(Target::element(i)).expect("ports come first").counters().arrived_packets)
            .sum();
        let rate = hops as f64 / used / 1e6;
        println!("{hosts} hosts: {rate:.2} M packet-hops per CPU second ({hops} hops, {used:.2} s)");
    }
}
