//! Tests of properties of the fabric's elements that hold for any traffic.

mod circuit_switch;
mod layer;
mod rotor;

use anabranch_fabric::*;
use anabranch_units::*;
use proptest::prelude::*;

/// Node that records arriving packets with their times.
#[derive(Default)]
struct Sink(Vec<(Instant, PacketMeta, u32)>);

impl Node for Sink {
    type Body = u32;
    fn on_packet<Q: EventQueue>(&mut self, cx: &mut NodeCx<'_, u32, Q>, meta: PacketMeta, body: u32) {
        self.0.push((cx.now(), meta, body));
    }
    fn on_timer<Q: EventQueue>(&mut self, _: &mut NodeCx<'_, u32, Q>, _: u32) {}
}

const PORT: Target = Target::element(0);

fn one_port(settings: PortSettings) -> Fabric<Sink> {
    let port =
        Port::new(Target::node(0), settings, Seed::new(1).stream("loss", 0)).expect("settings in range");
    Fabric::new(vec![AnyElement::Port(Box::new(port))], vec![Sink::default()])
}

fn packet(priority: u8, size_bytes: u32) -> PacketMeta {
    PacketMeta::new(0, 0, size_bytes).with_priority(priority)
}

fn link(mbps: u64, delay_us: u64, queue_bytes: u64) -> PortSettings {
    PortSettings::new(BitRate::mbps(mbps), Duration::from_us(delay_us), ByteCount::new(queue_bytes))
}

fn bodies(fabric: &Fabric<Sink>) -> Vec<u32> {
    fabric.nodes()[0].0.iter().map(|&(_, _, body)| body).collect()
}

/// A packet (gap before it in us, priority, size), or a change of the link's settings.
#[derive(Clone, Debug)]
enum Step {
    Packet { gap_us: u64, priority: u8, size: u32 },
    Change { gap_us: u64, settings: PortSettings },
}

fn settings() -> impl Strategy<Value = PortSettings> {
    (1u64..200, 0u64..2_000, losses(300_000), 0u64..20_000, prop::bool::weighted(0.8)).prop_map(
        |(mbps, delay_us, (loss_ppm, loss_burst), queue, up)| PortSettings {
            loss_ppm,
            loss_burst,
            up,
            ..link(mbps, delay_us, queue)
        },
    )
}

/// Generates a loss rate below `ppm`, at most one half, and a burst length.
fn losses(ppm: u32) -> impl Strategy<Value = (u32, u32)> {
    (0..ppm, prop_oneof![Just(1), 2u32..20])
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let packet = (0u64..300, 0u8..4, 40u32..1501).prop_map(|(gap_us, priority, size)| Step::Packet {
        gap_us,
        priority,
        size,
    });
    let change = (0u64..300, settings()).prop_map(|(gap_us, settings)| Step::Change { gap_us, settings });
    prop::collection::vec(prop_oneof![9 => packet, 1 => change], 1..200)
}

fn play(fabric: &mut Fabric<Sink>, steps: &[Step], mut check: impl FnMut(&Fabric<Sink>)) {
    let mut now = fabric.now();
    for (i, step) in steps.iter().enumerate() {
        match *step {
            Step::Packet { gap_us, priority, size } => {
                now += Duration::from_us(gap_us);
                fabric.inject(now, PORT, packet(priority, size), i as u32);
            }
            Step::Change { gap_us, settings } => {
                now += Duration::from_us(gap_us);
                fabric.handle_port_settings(now, PORT, settings).expect("settings in range");
            }
        }
        check(fabric);
    }
}

proptest! {
    #[test]
    fn sent_equals_delivered_plus_dropped_plus_in_flight(first in settings(), steps in steps()) {
        let mut fabric = one_port(first);
        let check = |fabric: &Fabric<Sink>| {
            let (totals, port) = (fabric.totals(), fabric.port(PORT).expect("element 0"));
            let counters = port.counters();
            assert_eq!(totals.injected, totals.delivered + totals.drops.total() + fabric.in_flight());
            assert_eq!(fabric.in_flight(), port.packets_held());
            assert_eq!(counters.offered_packets, counters.arrived_packets + counters.drops.total() + port.packets_held());
        };
        play(&mut fabric, &steps, check);
        fabric.advance(Instant::MAX);
        check(&fabric);
        prop_assert_eq!(fabric.in_flight(), 0);
        prop_assert!(fabric.port(PORT).expect("element 0").queue_bytes() == ByteCount::ZERO);
    }

    /// Processing only at the times of `next_arrival` gives the same arrivals as processing every
    /// event.
    #[test]
    fn no_packet_arrives_before_next_arrival(first in settings(), steps in steps()) {
        let (mut often, mut seldom) = (one_port(first), one_port(first));
        play(&mut often, &steps, |_| ());
        play(&mut seldom, &steps, |_| ());
        while let Some(deadline) = often.next_deadline() {
            let (next, before) = (often.next_arrival(), often.totals().delivered);
            often.advance(deadline);
            prop_assert!(often.totals().delivered == before || next == Some(deadline));
        }
        while let Some(next) = seldom.next_arrival() {
            prop_assert!(next >= seldom.next_deadline().expect("something is on its way"));
            seldom.advance(next);
            // A packet fails to arrive only if it is lost on the wire.
            let came = seldom.nodes()[0].0.last().is_some_and(|&(at, ..)| at == next);
            prop_assert!(came || seldom.port(PORT).expect("element 0").settings().loss_ppm > 0);
        }
        seldom.advance(Instant::MAX);
        let arrivals = |f: &Fabric<Sink>| f.nodes()[0].0.iter().map(|&(at, _, body)| (at, body)).collect::<Vec<_>>();
        prop_assert_eq!(arrivals(&often), arrivals(&seldom));
    }

    #[test]
    fn packets_of_one_priority_keep_order_across_changes(first in settings(), steps in steps()) {
        let mut fabric = one_port(first);
        play(&mut fabric, &steps, |_| ());
        fabric.advance(Instant::MAX);
        for class in 0..PRIORITIES as u8 {
            let seen: Vec<_> = fabric.nodes()[0].0.iter()
                .filter(|(_, meta, _)| meta.priority.min(2) == class).map(|&(_, _, body)| body).collect();
            prop_assert!(seen.is_sorted(), "{:?}", seen);
        }
    }

    #[test]
    fn no_link_exceeds_its_rate_over_any_interval(mbps in 1u64..200, steps in steps()) {
        let steps: Vec<_> = steps.into_iter().filter(|s| matches!(s, Step::Packet { .. })).collect();
        let mut fabric = one_port(link(mbps, 70, 30_000));
        play(&mut fabric, &steps, |_| ());
        fabric.advance(Instant::MAX);
        let seen = &fabric.nodes()[0].0;
        for i in 0..seen.len() {
            let mut bytes = 0;
            for j in i + 1..seen.len() {
                bytes += u64::from(seen[j].1.size_bytes);
                // The Serialiser rounds each packet down by up to one picosecond.
                let least = BitRate::mbps(mbps).transmit_time(ByteCount::new(bytes)).as_ps() - (j - i) as u64;
                prop_assert!((seen[j].0 - seen[i].0).as_ps() >= least);
            }
        }
    }

    #[test]
    fn low_priority_never_starts_while_high_priority_waits(steps in steps()) {
        let steps: Vec<_> = steps.into_iter().filter(|s| matches!(s, Step::Packet { .. })).collect();
        let (rate, delay) = (BitRate::mbps(20), Duration::from_us(300));
        let mut fabric = one_port(PortSettings::new(rate, delay, ByteCount::mib(1)));
        let mut came = vec![Instant::ZERO; steps.len()];
        let mut now = Instant::ZERO;
        for (i, step) in steps.iter().enumerate() {
            if let Step::Packet { gap_us, .. } = *step { now += Duration::from_us(gap_us) }
            came[i] = now;
        }
        play(&mut fabric, &steps, |_| ());
        fabric.advance(Instant::MAX);
        let seen = &fabric.nodes()[0].0;
        let started = |&(at, meta, _): &(Instant, PacketMeta, u32)| {
            at - (delay + rate.serialiser().expect("not zero").time(meta.size_bytes))
        };
        for (i, low) in seen.iter().enumerate() {
            for high in &seen[i + 1..] {
                let overtaken = high.1.priority.min(2) < low.1.priority.min(2)
                    && came[high.2 as usize] < started(low);
                prop_assert!(!overtaken, "{:?} left before {:?}", low, high);
            }
        }
    }

    #[test]
    fn single_packet_takes_transmission_time_plus_delay(mbps in 1u64..100_000, delay_us in 0u64..500_000, size in 1u32..9_000) {
        let settings = link(mbps, delay_us, 0);
        let mut fabric = one_port(settings);
        fabric.inject(Instant::from_us(3), PORT, packet(1, size), 0);
        fabric.advance(Instant::MAX);
        let time = settings.rate.serialiser().expect("not zero").time(size);
        prop_assert_eq!(fabric.nodes()[0].0[0].0, Instant::from_us(3) + time + settings.delay);
    }
}

#[test]
fn queue_accepts_exactly_its_limit() {
    // The first packet is sent at once and does not count.
    for (limit, delivered) in [(3_000, 3), (2_999, 2)] {
        let mut fabric = one_port(link(10, 0, limit));
        for i in 0..3 {
            fabric.inject(Instant::ZERO, PORT, packet(1, 1_500), i);
        }
        fabric.advance(Instant::MAX);
        assert_eq!(fabric.totals().delivered, delivered);
        assert_eq!(fabric.totals().drops.of(Drop::QueueFull), 3 - delivered);
    }
}

#[test]
fn full_low_priority_queue_leaves_room_for_high_priority() {
    let mut fabric = one_port(link(10, 0, 3_000));
    for i in 0..10 {
        fabric.inject(Instant::ZERO, PORT, packet(2, 1_500), i);
    }
    fabric.inject(Instant::ZERO, PORT, packet(0, 100), 100);
    fabric.advance(Instant::MAX);
    assert_eq!(bodies(&fabric), [0, 100, 1, 2]);
}

#[test]
fn link_outage_drops_queued_and_new_packets_only() {
    let mut fabric = one_port(link(10, 5_000, 10_000)); // 1 ms a packet
    for i in 0..4 {
        fabric.inject(Instant::ZERO, PORT, packet(1, 1_250), i);
    }
    let at = Instant::from_us(1_500); // packet 0 on the wire, 1 being sent, 2 and 3 waiting
    let down = PortSettings { up: false, ..link(10, 5_000, 10_000) };
    fabric.handle_port_settings(at, PORT, down).expect("settings in range");
    assert_eq!(fabric.totals().drops.of(Drop::LinkDown), 3);
    fabric.inject(at, PORT, packet(1, 1_250), 4);
    assert_eq!(fabric.totals().drops.of(Drop::LinkDown), 4);
    fabric.handle_port_settings(at, PORT, link(10, 5_000, 10_000)).expect("settings in range");
    fabric.inject(at, PORT, packet(1, 1_250), 5);
    fabric.advance(Instant::MAX);
    assert_eq!(bodies(&fabric), [0, 5]);
    // The timer of the interrupted transmission (due at 2 ms) must not end the transmission of
    // packet 5.
    assert_eq!(fabric.nodes()[0].0[1].0, Instant::from_us(1_500 + 1_000 + 5_000));
}

#[test]
fn new_rate_applies_to_the_unsent_part_of_packets() {
    let mut fabric = one_port(link(10, 0, 10_000)); // 1 ms a packet
    fabric.inject(Instant::ZERO, PORT, packet(1, 1_250), 0);
    fabric
        .handle_port_settings(Instant::from_us(250), PORT, link(100, 0, 10_000))
        .expect("settings in range");
    fabric.advance(Instant::MAX);
    assert_eq!(fabric.nodes()[0].0[0].0, Instant::from_us(250 + 75));
}

#[test]
fn loss_matches_its_probability_and_repeats_for_a_seed() {
    let run = || {
        let mut fabric = one_port(PortSettings { loss_ppm: 10_000, ..link(1_000, 0, 0) });
        for i in 0..100_000 {
            fabric.inject(Instant::from_us(20 * u64::from(i)), PORT, packet(1, 1_000), i);
        }
        fabric.advance(Instant::MAX);
        bodies(&fabric)
    };
    let arrived = run();
    // 1,000 losses are expected, with a standard deviation of 31.5. The tolerance is five standard
    // deviations.
    assert!((98_842..=99_158).contains(&arrived.len()), "{}", arrived.len());
    assert_eq!(arrived, run());
}

/// Returns which of `packets` packets a wire loses. `settings` gives the wire's settings before
/// each packet.
fn lost(packets: u32, settings: impl Fn(u32) -> PortSettings) -> Vec<bool> {
    let mut fabric = one_port(settings(0));
    let mut before = settings(0);
    for i in 0..packets {
        let at = Instant::from_us(20 * u64::from(i));
        let now = settings(i);
        if now != before {
            fabric.handle_port_settings(at, PORT, now).expect("settings in range");
            before = now;
        }
        fabric.inject(at, PORT, packet(1, 1_000), i);
    }
    fabric.advance(Instant::MAX);
    let mut lost = vec![true; packets as usize];
    for i in bodies(&fabric) {
        lost[i as usize] = false;
    }
    lost
}

/// Returns the length of each run of losses.
fn runs(lost: &[bool]) -> Vec<usize> {
    lost.split(|is_lost| !is_lost).map(<[bool]>::len).filter(|len| *len > 0).collect()
}

#[test]
fn bursts_have_their_length_and_loss_share() {
    // Burst lengths are geometric: with 2,000,000 p / b bursts the standard deviation of the mean
    // is below b divided by the square root of that number.
    for (loss_ppm, loss_burst) in
        [(10_000, 2), (10_000, 8), (1_000, 8), (50_000, 40), (500_000, 2), (800_000, 4)]
    {
        let seen = lost(2_000_000, |_| PortSettings { loss_ppm, loss_burst, ..link(1_000, 0, 0) });
        let runs = runs(&seen);
        let mean = runs.iter().sum::<usize>() as f64 / runs.len() as f64;
        let expected = f64::from(loss_burst);
        let five = 5.0 / (runs.len() as f64).sqrt();
        assert!((mean / expected - 1.0).abs() < five, "{loss_ppm} ppm, {loss_burst}: runs of {mean}");
        let share = runs.iter().sum::<usize>() as f64 / seen.len() as f64 * 1e6 / f64::from(loss_ppm);
        // The length of a burst, and of the gap after it, each have a standard deviation near their
        // mean.
        assert!((share - 1.0).abs() < 1.5 * five, "{loss_ppm} ppm, {loss_burst}: {share} of it");
        // The share of bursts longer than the mean must match the geometric distribution.
        let longer = runs.iter().filter(|len| **len > loss_burst as usize).count() as f64 / runs.len() as f64;
        let geometric = (1.0 - 1.0 / expected).powf(expected);
        assert!(
            (longer - geometric).abs() < five,
            "{loss_ppm} ppm, {loss_burst}: {longer}, expected {geometric}"
        );
    }
}

#[test]
fn first_packet_has_the_same_loss_probability() {
    let settings = PortSettings { loss_ppm: 200_000, loss_burst: 50, ..link(1_000, 0, 0) };
    let is_first_lost = |seed| {
        let port = FifoPort::new(Target::node(0), settings, Seed::new(seed).stream("loss", 0));
        let port = port.expect("settings in range");
        let mut fabric = Fabric::<Sink>::new(vec![AnyElement::Fifo(port)], vec![Sink::default()]);
        fabric.inject(Instant::ZERO, PORT, packet(1, 1_000), 0);
        fabric.advance(Instant::MAX);
        fabric.totals().delivered == 0
    };
    // 2,000 of 10,000 are expected, with a standard deviation of 40. The tolerance is five standard
    // deviations.
    let first = (0..10_000).filter(|seed| is_first_lost(*seed)).count();
    assert!((1_800..=2_200).contains(&first), "{first}");
}

#[test]
fn independent_losses_use_one_draw_per_packet() {
    let mut random = Seed::new(1).stream("loss", 0);
    let plain: Vec<bool> = (0..10_000).map(|_| random.chance_ppm(30_000)).collect();
    assert_eq!(lost(10_000, |_| PortSettings { loss_ppm: 30_000, ..link(1_000, 0, 0) }), plain);
    let bursts = lost(10_000, |_| PortSettings { loss_ppm: 30_000, loss_burst: 2, ..link(1_000, 0, 0) });
    assert_ne!(bursts, plain);
}

#[test]
fn burst_survives_a_delay_change_and_ends_without_losses() {
    let bursts = PortSettings { loss_ppm: 10_000, loss_burst: 100, ..link(1_000, 0, 0) };
    let steady = lost(100_000, |_| bursts);
    let moved = lost(100_000, |i| PortSettings { delay: Duration::from_us(u64::from(i % 2)), ..bursts });
    assert_eq!(steady, moved);
    let begun = steady.iter().position(|is_lost| *is_lost).expect("some are lost") as u32;
    let ended = lost(100_000, |i| if i > begun { link(1_000, 0, 0) } else { bursts });
    assert_eq!(ended.iter().filter(|is_lost| **is_lost).count(), 1);
}

#[test]
fn settings_out_of_range_are_refused_and_change_nothing() {
    let slow = PortSettings { rate: BitRate::bps(RATE_MIN.as_bps() - 1), ..link(1, 0, 0) };
    assert_eq!(slow.check(), Err(PortError::RateTooLow { rate: slow.rate }));
    assert_eq!(PortSettings { rate: RATE_MIN, ..slow }.check(), Ok(()));
    let lossy = PortSettings { loss_ppm: 1_000_001, ..link(1, 0, 0) };
    assert_eq!(lossy.check(), Err(PortError::LossTooHigh { loss_ppm: 1_000_001 }));
    assert_eq!(PortSettings { loss_ppm: 1_000_000, ..lossy }.check(), Ok(()));
    for loss_burst in [0, LOSS_BURST_MAX + 1] {
        let burst = PortSettings { loss_burst, ..link(1, 0, 0) };
        assert_eq!(burst.check(), Err(PortError::LossBurst { loss_burst }));
    }
    let bursts = PortSettings { loss_ppm: 800_000, loss_burst: 4, ..lossy };
    assert_eq!(bursts.check(), Ok(()));
    let endless = PortError::LossTooHighForBurst { loss_ppm: 800_001, loss_burst: 4, loss_ppm_max: 800_000 };
    assert_eq!(PortSettings { loss_ppm: 800_001, ..bursts }.check(), Err(endless));
    assert_eq!(PortSettings { loss_burst: LOSS_BURST_MAX, ..link(1, 0, 0) }.check(), Ok(()));
    let long = PortSettings { delay: DELAY_MAX + Duration::from_ps(1), ..link(1, 0, 0) };
    assert_eq!(long.check(), Err(PortError::DelayTooLong { delay: long.delay }));
    assert_eq!(PortSettings { delay: DELAY_MAX, ..long }.check(), Ok(()));
    let mut fabric = one_port(link(1, 0, 0));
    assert!(fabric.handle_port_settings(Instant::ZERO, PORT, slow).is_err());
    assert_eq!(fabric.port(PORT).expect("element 0").settings(), &link(1, 0, 0));
}

#[test]
fn switch_forwards_by_destination_and_counts_undeliverable_packets() {
    let switch = Switch::new(vec![Some(Target::node(1)), None]);
    let mut fabric: Fabric<Sink> =
        Fabric::new(vec![AnyElement::Switch(switch)], vec![Sink::default(), Sink::default()]);
    for dst in 0..3 {
        fabric.inject(Instant::ZERO, PORT, PacketMeta::new(9, dst, 100), 0);
    }
    assert_eq!((fabric.nodes()[0].0.len(), fabric.nodes()[1].0.len()), (0, 1));
    assert_eq!(fabric.totals().drops.of(Drop::NoRoute), 2);
}

/// Generates packets for the comparison of both ports: gap before each packet in ps, size, and
/// whether the packet is ECN-capable.
fn arrivals() -> impl Strategy<Value = Vec<(u64, u32, bool)>> {
    // Gaps have random picoseconds, because the two ports may differ for simultaneous events.
    prop::collection::vec((1u64..200_000_000, 40u32..1501, any::<bool>()), 1..300)
}

fn limits() -> impl Strategy<Value = PortSettings> {
    let limit = (0u64..20_000, prop::option::of(0u32..12), prop::option::of(0u64..15_000));
    (limit, 1u64..200, 0u64..900_000, losses(200_000), 0u64..100_000_000, prop::bool::weighted(0.95))
        .prop_map(
            |(
                (queue, queue_packets_max, mark),
                mbps,
                delay_ns,
                (loss_ppm, loss_burst),
                bit_errors_ppt,
                up,
            )| PortSettings {
                delay: Duration::from_ps(delay_ns * 1_000 + 7),
                loss_ppm,
                loss_burst,
                bit_errors_ppt,
                queue_packets_max,
                mark_bytes: mark.map(ByteCount::new),
                up,
                ..link(mbps, 0, queue)
            },
        )
}

proptest! {
    /// The one-event port equals the two-event port, packet by packet and counter by counter.
    #[test]
    fn one_event_port_equals_the_two_event_port(settings in limits(), arrivals in arrivals()) {
        let random = || Seed::new(1).stream("loss", 0);
        let plain = Port::new(Target::node(0), settings, random()).expect("settings in range");
        let fifo = FifoPort::new(Target::node(0), settings, random()).expect("settings in range");
        let mut plain = Fabric::<Sink>::new(vec![AnyElement::Port(Box::new(plain))], vec![Sink::default()]);
        let mut fifo = Fabric::<Sink>::new(vec![AnyElement::Fifo(fifo)], vec![Sink::default()]);
        let mut now = Instant::ZERO;
        for (i, &(gap_ps, size, ecn_ect)) in arrivals.iter().enumerate() {
            now += Duration::from_ps(gap_ps);
            for fabric in [&mut plain, &mut fifo] {
                let mut meta = PacketMeta::new(0, 0, size);
                meta.set(Flag::Ect, ecn_ect);
                fabric.inject(now, PORT, meta, i as u32);
            }
            let (a, b) = (plain.port_counters(PORT).expect("a port"), fifo.port_counters(PORT).expect("a port"));
            prop_assert_eq!((a.sent_packets, a.sent_bytes), (b.sent_packets, b.sent_bytes));
            prop_assert_eq!((a.offered_bytes, a.marked_packets), (b.offered_bytes, b.marked_packets));
            prop_assert_eq!(plain.queue(PORT), fifo.queue(PORT));
            let totals = fifo.totals();
            prop_assert_eq!(totals.injected, totals.delivered + totals.drops.total() + fifo.in_flight());
        }
        for fabric in [&mut plain, &mut fifo] {
            fabric.advance(Instant::MAX);
        }
        let seen = |f: &Fabric<Sink>| -> Vec<_> {
            f.nodes()[0].0.iter().map(|&(at, meta, body)| (at, meta.has(Flag::Ce), meta.hops, body)).collect()
        };
        prop_assert_eq!(seen(&plain), seen(&fifo));
        prop_assert_eq!(plain.port_counters(PORT), fifo.port_counters(PORT));
        prop_assert_eq!(plain.totals().drops, fifo.totals().drops);
    }
}

#[test]
fn ecn_capable_packet_is_marked_just_past_the_threshold() {
    // Packets have 1,000 bytes. The first is sent at once, so n - 2 packets are queued when the
    // n-th arrives.
    let settings = PortSettings { mark_bytes: Some(ByteCount::new(2_000)), ..link(1, 0, 100_000) };
    let mut fabric = one_port(settings);
    for i in 0..6 {
        let mut meta = packet(1, 1_000);
        meta.set(Flag::Ect, i != 4);
        fabric.inject(Instant::from_us(i), PORT, meta, i as u32);
    }
    fabric.advance(Instant::MAX);
    let marked: Vec<_> = fabric.nodes()[0].0.iter().map(|(_, meta, _)| meta.has(Flag::Ce)).collect();
    // The fifth packet is not ECN-capable. At the fourth, 2,000 bytes are queued, which is not
    // above the threshold.
    assert_eq!(marked, [false, false, false, false, false, true]);
}

#[test]
fn bit_errors_drop_larger_packets_more_often() {
    // One bit in 10^5 is wrong: 1,500 bytes arrive with probability (1 - 1e-5)^12000 = 0.887, 40
    // bytes with 0.9968.
    let settings = PortSettings { bit_errors_ppt: 10_000_000, ..link(1_000, 0, 1 << 30) };
    for (size, expected) in [(1_500, 0.8869), (40, 0.9968)] {
        let mut fabric = one_port(settings);
        for i in 0..40_000 {
            fabric.inject(Instant::from_us(i * 13), PORT, packet(1, size), 0);
        }
        fabric.advance(Instant::MAX);
        let share = fabric.nodes()[0].0.len() as f64 / 40_000.0;
        assert!((share - expected).abs() < 0.008, "{size}: {share}, expected {expected}");
        assert_eq!(fabric.totals().drops.of(Drop::BitError) + fabric.totals().delivered, 40_000);
    }
}

#[test]
fn ports_of_a_shared_buffer_drop_only_when_full() {
    let port = |node| {
        let port = Port::new(Target::node(node), link(1, 0, 1 << 30), Seed::new(1).stream("loss", 0));
        AnyElement::Port(Box::new(port.expect("settings in range").with_buffer(BufferId(0))))
    };
    let buffer = SharedBuffer::new(ByteCount::new(5_000), None);
    let mut fabric = Fabric::<Sink>::new(vec![port(0), port(1)], vec![Sink::default(), Sink::default()])
        .with_buffers(vec![buffer]);
    // Each port sends one packet, and the buffer holds five of the other ten packets.
    for i in 0..12 {
        fabric.inject(Instant::ZERO, Target::element(i % 2), packet(1, 1_000), i);
    }
    assert_eq!(fabric.totals().drops.of(Drop::QueueFull), 5);
    // Further packets fit once some packets have left.
    fabric.advance(Instant::from_us(8_000));
    fabric.inject(Instant::from_us(8_000), Target::element(0), packet(1, 1_000), 12);
    assert_eq!(fabric.totals().drops.of(Drop::QueueFull), 5);
    fabric.advance(Instant::MAX);
    assert_eq!(fabric.totals().delivered, 8);
}

/// Draws from the exponential distribution with this mean.
fn exponential(mean: f64, random: &mut RandomStream) -> f64 {
    -mean * (1.0 - random.unit_f64()).ln()
}

/// Returns the mean wait of packets with random arrivals at a port with load `rho`, in units of the
/// mean service time. Sizes are constant or exponential.
fn mean_wait(rho: f64, is_exponential: bool, packets: u32) -> f64 {
    const SIZE: f64 = 10_000.0;
    let settings = link(1_000, 0, 1 << 40);
    let service_ps = SIZE * 8.0 * 1e12 / 1e9;
    let random = Seed::new(1).stream("loss", 0);
    let port = FifoPort::new(Target::node(0), settings, random).expect("settings in range");
    let mut fabric = Fabric::<Counter>::new(vec![AnyElement::Fifo(port)], vec![Counter]);
    let (mut gaps, mut sizes) = (Seed::new(7).stream("gaps", 0), Seed::new(7).stream("sizes", 0));
    let mut now = Instant::ZERO;
    for _ in 0..packets {
        now += Duration::from_ps(exponential(service_ps / rho, &mut gaps) as u64);
        let size = if is_exponential { exponential(SIZE, &mut sizes).round().max(1.0) } else { SIZE };
        fabric.inject(now, PORT, packet(1, size as u32), ());
    }
    let wait = fabric.port_counters(PORT).expect("a port").wait_sum.mean(packets.into());
    wait.expect("packets came").as_ps() as f64 / service_ps
}

/// Node that discards packets.
struct Counter;
impl Node for Counter {
    type Body = ();
    fn on_packet<Q: EventQueue>(&mut self, _: &mut NodeCx<'_, (), Q>, _: PacketMeta, (): ()) {}
    fn on_timer<Q: EventQueue>(&mut self, _: &mut NodeCx<'_, (), Q>, _: u32) {}
}

/// Kleinrock, *Queueing Systems* volume 1 (1975), section 5.6 (Pollaczek and Khinchin): the mean
/// wait is rho / (2 (1 - rho)) service times for M/D/1, rho / (1 - rho) for M/M/1.
#[test]
fn random_arrivals_wait_as_queueing_theory_predicts() {
    for rho in [0.3, 0.5, 0.8] {
        let (fixed, random) = (rho / (2.0 * (1.0 - rho)), rho / (1.0 - rho));
        let measured = mean_wait(rho, false, 1_000_000);
        assert!((measured / fixed - 1.0).abs() < 0.02, "M/D/1, load {rho}: {measured}, expected {fixed}");
        let measured = mean_wait(rho, true, 1_000_000);
        assert!((measured / random - 1.0).abs() < 0.02, "M/M/1, load {rho}: {measured}, expected {random}");
    }
}
