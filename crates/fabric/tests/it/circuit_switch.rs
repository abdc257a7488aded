//! Tests of the hybrid switch: order, rates and delays of both networks, and limits that follow the
//! schedule.

use super::Sink;
use anabranch_fabric::*;
use anabranch_units::*;
use proptest::prelude::*;

const RACKS: u16 = 4;
const SWITCH: Target = Target::element(0);
const DAY: Duration = Duration::from_us(180);
const NIGHT: Duration = Duration::from_us(20);
const FRAME: u32 = 9_000;

fn settings() -> CircuitSettings {
    CircuitSettings {
        circuit_rate: BitRate::gbps(80),
        circuit_delay: Duration::from_us(30),
        packet: Some(PacketNetwork { rate: BitRate::gbps(10), delay: Duration::from_us(5) }),
        queue: QueueLimits { packets_max: 16, bytes_max: None, mark_packets: None },
        resize: None,
        mark_ahead: None,
        timetable: shifts(RACKS, 1..RACKS, DAY, NIGHT).expect("days and nights have a length"),
        around: None,
    }
}

fn between_racks(settings: CircuitSettings) -> Fabric<Sink> {
    let outputs = (0..RACKS).map(|rack| Target::node(rack.into())).collect();
    let switch = CircuitSwitch::new((0..RACKS).map(Some).collect(), outputs, settings);
    let switch = switch.expect("matchings of four ports");
    let nodes = std::iter::repeat_with(Sink::default).take(RACKS.into()).collect();
    Fabric::new(vec![AnyElement::Circuit(Box::new(switch))], nodes)
}

fn counters(fabric: &Fabric<Sink>) -> CircuitCounters {
    fabric.circuit_switch(SWITCH).expect("the switch is element 0").counters()
}

/// In the thesis the packet path takes 10 us, and 7.2 us for each 9,000-byte packet in the queue.
#[test]
fn packet_path_takes_10_us_plus_transmission_times() {
    let mut fabric = between_racks(settings());
    // Racks 0 and 2 have no circuit before 200 us.
    let at = Instant::from_us(25);
    for number in 0..10 {
        fabric.inject(at, SWITCH, PacketMeta::new(0, 2, FRAME), number);
    }
    fabric.advance(Instant::MAX);
    for (packets, (arrival, ..)) in (1u64..).zip(&fabric.nodes()[2].0) {
        assert_eq!(*arrival, at + Duration::from_us(10) + Duration::from_ns(7_200) * packets);
    }
    assert_eq!(counters(&fabric), CircuitCounters { circuit_bytes: 0, packet_bytes: 90_000 });
}

#[test]
fn circuit_takes_its_delay_and_one_transmission() {
    let mut fabric = between_racks(settings());
    fabric.inject(Instant::from_us(100), SWITCH, PacketMeta::new(0, 1, FRAME), 0);
    fabric.advance(Instant::MAX);
    assert_eq!(fabric.nodes()[1].0[0].0, Instant::from_us(130) + Duration::from_ns(900));
}

#[test]
fn small_packets_bypass_the_switch_immediately() {
    let around = Some(ByteCount::new(100));
    let mut fabric = between_racks(CircuitSettings { around, ..settings() });
    // In the night before the circuit a packet has no path through the switch.
    let at = Instant::from_us(5);
    for size in [100, 101] {
        fabric.inject(at, SWITCH, PacketMeta::new(0, 1, size), size);
    }
    assert_eq!(fabric.nodes()[1].0.len(), 1);
    fabric.advance(Instant::MAX);
    assert_eq!(counters(&fabric), CircuitCounters { circuit_bytes: 101, packet_bytes: 0 });
}

#[test]
fn packets_that_bypass_the_switch_are_marked_too() {
    let settings =
        CircuitSettings { around: Some(ByteCount::new(100)), mark_ahead: Some(Duration::ZERO), ..settings() };
    let mut fabric = between_racks(settings);
    // The circuit from rack 0 to rack 1 is up from 20 to 200 us.
    for (at, number) in [(10, 0), (100, 1)] {
        fabric.inject(Instant::from_us(at), SWITCH, PacketMeta::new(1, 0, 100), number);
    }
    fabric.advance(Instant::MAX);
    let marked: Vec<bool> = fabric.nodes()[0].0.iter().map(|(_, meta, _)| meta.has(Flag::Circuit)).collect();
    assert_eq!(marked, [false, true]);
}

#[test]
fn circuit_counts_one_hop_and_packet_network_two() {
    let mut fabric = between_racks(settings());
    let at = Instant::from_us(25);
    for destination in [1, 2] {
        fabric.inject(at, SWITCH, PacketMeta::new(0, destination, FRAME), 0);
    }
    fabric.advance(Instant::MAX);
    let hops = |rack: usize| fabric.nodes()[rack].0[0].1.hops;
    assert_eq!((hops(1), hops(2)), (1, 2));
}

#[test]
fn packets_wait_in_the_night_before_their_circuit() {
    let mut fabric = between_racks(settings());
    fabric.inject(Instant::from_us(5), SWITCH, PacketMeta::new(0, 1, FRAME), 0);
    fabric.inject(Instant::from_us(5), SWITCH, PacketMeta::new(0, 2, FRAME), 0);
    fabric.advance(Instant::MAX);
    assert_eq!(fabric.nodes()[1].0[0].0, Instant::from_us(50) + Duration::from_ns(900));
    assert_eq!(fabric.nodes()[2].0[0].0, Instant::from_us(15) + Duration::from_ns(7_200));
}

#[test]
fn packets_return_to_the_packet_path_after_the_day() {
    let mut fabric = between_racks(settings());
    // The transmission would end one picosecond after the beginning of the night.
    let late = Instant::from_us(200) - Duration::from_ns(900) + Duration::from_ps(1);
    fabric.inject(late, SWITCH, PacketMeta::new(0, 1, FRAME), 0);
    fabric.advance(Instant::MAX);
    assert_eq!(fabric.nodes()[1].0[0].0, Instant::from_us(210) + Duration::from_ns(7_200));
}

#[test]
fn full_queues_drop_packets_outside_the_packet_network() {
    let mut fabric = between_racks(settings());
    // Three racks send to the fourth rack, whose link takes a third of the packets.
    let mut now = Instant::from_us(20);
    for number in 0..900 {
        for source in 1..RACKS {
            fabric.inject(now, SWITCH, PacketMeta::new(source, 0, FRAME), number);
        }
        now += Duration::from_ns(7_200);
    }
    fabric.advance(Instant::MAX);
    let totals = fabric.totals();
    assert_eq!(totals.drops.total(), totals.drops.of(Drop::QueueFull));
    assert_eq!(totals.injected, totals.delivered + totals.drops.total());
    assert!(totals.delivered > 900 && totals.drops.total() > 0, "{totals:?}");
    assert_eq!(counters(&fabric).circuit_bytes + counters(&fabric).packet_bytes, totals.delivered * 9_000);
}

/// The queue from rack 0 to rack 1 holds s packets, b packets from tau before its day to its end,
/// and then s packets.
#[test]
fn queue_limit_grows_before_its_day_and_shrinks_afterwards() {
    let ahead = Duration::from_us(100);
    let resize = Some(Resize { packets_max: 64, ahead, drops_excess: false });
    // Rack 0 reaches rack 1 in the first day of each week of 600 us, from 20 to 200 us.
    for (at, size) in [(519, 16), (520, 64), (619, 64), (799, 64), (800, 16)] {
        let mut fabric = between_racks(CircuitSettings { resize, ..settings() });
        fabric.advance(Instant::from_us(at));
        for number in 0..100 {
            fabric.inject(Instant::from_us(at), SWITCH, PacketMeta::new(0, 1, FRAME), number);
        }
        let waits = fabric.circuit_switch(SWITCH).expect("the switch").queue_packets(0, 1);
        assert_eq!(waits, size, "at {at} us");
    }
}

/// Returns a timetable of one shift, in which rack 0 reaches rack `shift`.
fn week(shift: u16) -> Timetable<Matching> {
    shifts(RACKS, [shift], DAY, NIGHT).expect("days and nights have a length")
}

#[test]
fn new_timetable_begins_at_the_end_of_a_week() {
    let mut fabric = between_racks(CircuitSettings { timetable: week(1), ..settings() });
    let send = |fabric: &mut Fabric<Sink>, at, to| {
        fabric.inject(Instant::from_us(at), SWITCH, PacketMeta::new(0, to, FRAME), 0);
    };
    fabric
        .handle_timetable(Instant::from_us(100), SWITCH, week(2), Instant::ZERO)
        .expect("shifts are matchings");
    send(&mut fabric, 110, 1);
    send(&mut fabric, 110, 2);
    fabric.advance(Instant::from_us(200));
    assert_eq!(counters(&fabric), CircuitCounters { circuit_bytes: 9_000, packet_bytes: 9_000 });
    // The second week begins at 200 us with a night, which is followed by the other circuit.
    send(&mut fabric, 205, 1);
    send(&mut fabric, 205, 2);
    fabric.advance(Instant::MAX);
    let arrivals: Vec<Instant> = fabric.nodes()[2].0.iter().map(|(at, ..)| *at).collect();
    assert_eq!(arrivals[1], Instant::from_us(250) + Duration::from_ns(900));
    let arrivals: Vec<Instant> = fabric.nodes()[1].0.iter().map(|(at, ..)| *at).collect();
    assert_eq!(arrivals[1], Instant::from_us(215) + Duration::from_ns(7_200));
}

#[test]
fn new_timetable_begins_in_the_requested_week() {
    for (from, until) in [(0, 200), (200, 200), (201, 400), (400, 400)] {
        let mut fabric = between_racks(CircuitSettings { timetable: week(1), ..settings() });
        let from = Instant::from_us(from);
        fabric.handle_timetable(Instant::from_us(100), SWITCH, week(2), from).expect("shifts are matchings");
        // Rack 0 reaches rack 1 by circuit in each week of the first timetable.
        for (number, at) in [150, 350, 550].into_iter().enumerate() {
            let before = counters(&fabric).circuit_bytes;
            fabric.inject(Instant::from_us(at), SWITCH, PacketMeta::new(0, 1, FRAME), number as u32);
            fabric.advance(Instant::from_us(at + 10));
            let is_by_circuit = counters(&fabric).circuit_bytes > before;
            assert_eq!(is_by_circuit, at < until, "at {at} us, {until}");
        }
    }
}

#[test]
fn queue_limits_follow_a_new_timetable() {
    let resize = Some(Resize { packets_max: 64, ahead: Duration::from_us(40), drops_excess: false });
    for (at, size) in [(170, 64), (199, 64), (200, 16), (520, 16)] {
        let settings = CircuitSettings { resize, timetable: week(1), ..settings() };
        let mut fabric = between_racks(settings);
        // Rack 0 reaches rack 1 until 200 us, and not later.
        fabric
            .handle_timetable(Instant::from_us(1), SWITCH, week(2), Instant::ZERO)
            .expect("shifts are matchings");
        fabric.advance(Instant::from_us(at));
        for number in 0..100 {
            fabric.inject(Instant::from_us(at), SWITCH, PacketMeta::new(0, 1, FRAME), number);
        }
        let waits = fabric.circuit_switch(SWITCH).expect("the switch").queue_packets(0, 1);
        assert_eq!(waits, size, "at {at} us");
    }
}

#[test]
fn invalid_timetables_are_refused_and_change_nothing() {
    let mut fabric = between_racks(CircuitSettings { timetable: week(1), ..settings() });
    let wrong = Timetable::new(vec![(DAY, vec![Some(RACKS)])]).expect("a day has a length");
    let error =
        fabric.handle_timetable(Instant::ZERO, SWITCH, wrong, Instant::ZERO).expect_err("no such output");
    assert_eq!(error, CircuitError::NoMatching { slot: 0, output: RACKS });
    fabric.inject(Instant::from_us(100), SWITCH, PacketMeta::new(0, 1, FRAME), 0);
    fabric.advance(Instant::MAX);
    assert_eq!(counters(&fabric).circuit_bytes, 9_000);
}

/// Of 101 packets that arrive just before the day ends, one leaves at once, 64 fit into the queue,
/// and 16 may stay when it shrinks.
#[test]
fn shrinking_queue_drops_its_tail_only_if_set() {
    for (drops_excess, dropped) in [(false, 101 - 65), (true, 101 - 17)] {
        let resize = Some(Resize { packets_max: 64, ahead: Duration::ZERO, drops_excess });
        let mut fabric = between_racks(CircuitSettings { resize, ..settings() });
        // A packet takes 0.9 us in the circuit of rack 0, and 1 us of the day remains.
        let late = Instant::from_us(199);
        fabric.advance(late);
        for number in 0..101 {
            fabric.inject(late, SWITCH, PacketMeta::new(0, 1, FRAME), number);
        }
        fabric.advance(Instant::MAX);
        assert_eq!(fabric.totals().drops.of(Drop::QueueFull), dropped);
        let mut kept: Vec<u32> = fabric.nodes()[1].0.iter().map(|(.., number)| *number).collect();
        kept.sort_unstable();
        let expected: Vec<u32> = (0..kept.len() as u32).collect();
        assert_eq!(kept, expected, "from the tail");
    }
}

#[test]
fn marking_threshold_is_the_same_share_of_each_limit() {
    let queue = QueueLimits { packets_max: 16, bytes_max: None, mark_packets: Some(4) };
    let resize = Some(Resize { packets_max: 64, ahead: Duration::from_us(100), drops_excess: false });
    for (at, unmarked) in [(400, 5), (610, 16)] {
        let mut fabric = between_racks(CircuitSettings { queue, resize, ..settings() });
        fabric.advance(Instant::from_us(at));
        for number in 0..64 {
            let mut meta = PacketMeta::new(0, 1, FRAME);
            meta.set(Flag::Ect, true);
            fabric.inject(Instant::from_us(at), SWITCH, meta, number);
        }
        fabric.advance(Instant::MAX);
        let unmarked_packets = fabric.nodes()[1].0.iter().filter(|(_, meta, _)| !meta.has(Flag::Ce)).count();
        assert_eq!(unmarked_packets, unmarked, "at {at} us");
    }
}

/// The circuit from rack 0 to rack 1 is up from 20 to 200 us of each week of 600 us.
#[test]
fn packets_against_a_circuit_are_marked_until_its_end() {
    for ahead_us in [None, Some(0), Some(15), Some(100), Some(600)] {
        let mark_ahead = ahead_us.map(Duration::from_us);
        let mut fabric = between_racks(CircuitSettings { mark_ahead, ..settings() });
        for number in 0..240 {
            fabric.inject(Instant::from_us(5 * u64::from(number)), SWITCH, PacketMeta::new(1, 0, 64), number);
            fabric.inject(Instant::from_us(5 * u64::from(number)), SWITCH, PacketMeta::new(0, 1, 64), number);
        }
        fabric.advance(Instant::MAX);
        let marked =
            |rack: usize| fabric.nodes()[rack].0.iter().filter(|(_, meta, _)| meta.has(Flag::Circuit));
        for (at, meta, _) in &fabric.nodes()[0].0 {
            let (into_ns, ahead_ns) = (at.as_ns() % 600_000, 1_000 * ahead_us.unwrap_or(0));
            let next_ns = if into_ns < 200_000 { 20_000 } else { 620_000 };
            let is_near = ahead_us.is_some() && next_ns <= into_ns + ahead_ns;
            assert_eq!(meta.has(Flag::Circuit), is_near, "at {at:?}, {ahead_us:?} us ahead");
        }
        assert_eq!(marked(0).count() > 0, ahead_us.is_some());
        assert_eq!(marked(1).count() > 0, ahead_us.is_some(), "the opposite pair has its own circuit");
    }
}

#[test]
fn latency_is_counted_per_network_without_acknowledgements() {
    let mut fabric = between_racks(settings());
    let packets = [(25, 2, FRAME), (25, 2, FRAME), (25, 2, 1_001), (100, 1, FRAME), (100, 1, 1_000)];
    for (number, (at_us, dst, size)) in (0..).zip(packets) {
        fabric.inject(Instant::from_us(at_us), SWITCH, PacketMeta::new(0, dst, size), number);
    }
    fabric.advance(Instant::MAX);
    let latency = fabric.circuit_switch(SWITCH).expect("the switch").latency();
    assert_eq!(latency.packet.total(), 3);
    assert!((17.4..17.5).contains(&latency.packet.quantile_us(0.0)));
    assert_eq!((latency.circuit.total(), latency.circuit.max_us()), (1, 30.9));
}

#[test]
fn queues_keep_their_byte_limit() {
    let queue = QueueLimits { packets_max: 16, bytes_max: Some(ByteCount::new(20_000)), mark_packets: None };
    let mut fabric = between_racks(CircuitSettings { queue, ..settings() });
    for number in 0..8 {
        fabric.inject(Instant::from_us(1), SWITCH, PacketMeta::new(0, 1, FRAME), number);
    }
    assert_eq!(fabric.totals().drops.of(Drop::QueueFull), 6);
}

#[test]
fn traffic_within_a_rack_passes_without_delay() {
    let outputs = (0..RACKS).map(|rack| Target::node(rack.into())).collect();
    let switch = CircuitSwitch::new(vec![Some(0), Some(0)], outputs, settings()).expect("matchings");
    let nodes = std::iter::repeat_with(Sink::default).take(RACKS.into()).collect();
    let mut fabric: Fabric<Sink> = Fabric::new(vec![AnyElement::Circuit(Box::new(switch))], nodes);
    fabric.inject(Instant::from_us(3), SWITCH, PacketMeta::new(0, 1, FRAME), 0);
    assert_eq!(fabric.nodes()[0].0[0].0, Instant::from_us(3));
    fabric.inject(Instant::from_us(3), SWITCH, PacketMeta::new(0, 7, FRAME), 0);
    assert_eq!(fabric.totals().drops.of(Drop::NoRoute), 1);
}

proptest! {
    /// If a circuit has a longer delay than the packet network, packets after a day overtake the
    /// last packets of the day.
    #[test]
    fn packets_of_a_pair_arrive_in_order(
        resized in any::<bool>(),
        drops_excess in any::<bool>(),
        packets in prop::collection::vec((0u64..5_000, 0..RACKS, 0..RACKS, 64u32..9_001), 1..400),
    ) {
        let ahead = Duration::from_us(150);
        let resize = resized.then_some(Resize { packets_max: 64, ahead, drops_excess });
        let circuit_delay = Duration::from_us(10);
        let mut fabric = between_racks(CircuitSettings { resize, circuit_delay, ..settings() });
        let mut now = Instant::ZERO;
        for (number, (gap_ns, src, dst, size_bytes)) in (0..).zip(packets) {
            now += Duration::from_ns(gap_ns);
            fabric.inject(now, SWITCH, PacketMeta::new(src, dst, size_bytes), number);
            let totals = fabric.totals();
            prop_assert_eq!(totals.injected, totals.delivered + totals.drops.total() + fabric.in_flight());
        }
        while let Some(deadline) = fabric.next_deadline() {
            let arrival = fabric.next_arrival();
            let delivered = fabric.totals().delivered;
            fabric.advance(deadline);
            let is_early = arrival.is_some_and(|arrival| arrival > deadline);
            prop_assert!(!is_early || fabric.totals().delivered == delivered, "before the next arrival");
        }
        prop_assert_eq!((fabric.in_flight(), fabric.next_arrival()), (0, None));
        for sink in fabric.nodes() {
            let mut last = vec![None; RACKS.into()];
            for (_, meta, number) in &sink.0 {
                prop_assert!(last[usize::from(meta.src)].replace(*number) < Some(*number), "in order");
            }
        }
    }
}
