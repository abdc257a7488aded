//! Tests of the rotor: packets leave within the days of their circuits, and an idle rotor costs no
//! events.

use super::Sink;
use anabranch_fabric::*;
use anabranch_units::*;
use proptest::prelude::*;

const PORTS: u16 = 4;
const ROTOR: Target = Target::element(0);
const DAY: Duration = Duration::from_us(180);
const NIGHT: Duration = Duration::from_us(20);

/// Returns the settings of circuits without a packet network and without wire delay.
fn settings() -> CircuitSettings {
    CircuitSettings {
        circuit_rate: BitRate::mbps(100),
        circuit_delay: Duration::ZERO,
        packet: None,
        queue: QueueLimits { packets_max: 8, bytes_max: None, mark_packets: None },
        resize: None,
        mark_ahead: None,
        timetable: shifts(PORTS, 1..PORTS, DAY, NIGHT).expect("days and nights have a length"),
        around: None,
    }
}

/// Creates a rotor between four hosts.
fn rotor_between_hosts() -> Fabric<Sink> {
    let hosts: Vec<Target> = (0..PORTS).map(|host| Target::node(host.into())).collect();
    let rotor = CircuitSwitch::new((0..PORTS).map(Some).collect(), hosts, settings())
        .expect("matchings of four ports");
    let nodes = std::iter::repeat_with(Sink::default).take(PORTS.into()).collect();
    Fabric::new(vec![AnyElement::Circuit(Box::new(rotor))], nodes)
}

fn transmit_time(size_bytes: u32) -> Duration {
    Duration::from_ns(80) * size_bytes.into()
}

#[test]
fn shifts_connect_each_pair_once_a_period() {
    let timetable = settings().timetable;
    assert_eq!(timetable.period(), (DAY + NIGHT) * 3);
    for input in 0..PORTS {
        let outputs = timetable.slots().filter_map(|(_, matching)| matching.get(usize::from(input)).copied());
        let mut outputs: Vec<u16> = outputs.flatten().collect();
        outputs.sort_unstable();
        let others: Vec<u16> = (0..PORTS).filter(|output| *output != input).collect();
        assert_eq!(outputs, others);
    }
}

#[test]
fn packet_waits_for_the_day_of_its_circuit() {
    let mut fabric = rotor_between_hosts();
    // Host 2 is two ports after host 0, so their circuit is up in the second day.
    fabric.inject(Instant::from_us(1), ROTOR, PacketMeta::new(0, 2, 1_500), 7);
    fabric.advance(Instant::MAX);
    let begins = Instant::ZERO + NIGHT + DAY + NIGHT;
    assert_eq!(fabric.nodes()[2].0[0].0, begins + transmit_time(1_500));
}

#[test]
fn packet_longer_than_the_remaining_day_waits() {
    for (before_end, periods) in [(transmit_time(1_500), 0), (transmit_time(1_500) - Duration::from_ps(1), 1)]
    {
        let mut fabric = rotor_between_hosts();
        let ends = Instant::ZERO + NIGHT + DAY;
        fabric.inject(ends - before_end, ROTOR, PacketMeta::new(0, 1, 1_500), 7);
        fabric.advance(Instant::MAX);
        let expected = if periods == 0 {
            ends
        } else {
            Instant::ZERO + settings().timetable.period() + NIGHT + transmit_time(1_500)
        };
        assert_eq!(fabric.nodes()[1].0[0].0, expected);
    }
}

#[test]
fn packets_without_a_possible_circuit_are_dropped() {
    let mut fabric = rotor_between_hosts();
    let too_long = DAY.as_ns() as u32 / 80 + 1;
    for (src, dst, size_bytes) in [(0, 9, 100), (9, 0, 100), (0, 1, too_long)] {
        fabric.inject(Instant::ZERO, ROTOR, PacketMeta::new(src, dst, size_bytes), 0);
    }
    assert_eq!(fabric.totals().drops.of(Drop::NoRoute), 3);
    for _ in 0..9 {
        fabric.inject(Instant::ZERO, ROTOR, PacketMeta::new(0, 1, too_long - 1), 0);
    }
    assert_eq!(fabric.totals().drops.of(Drop::QueueFull), 1);
    fabric.advance(Instant::MAX);
    assert_eq!(fabric.nodes()[1].0.len(), 8, "one a period");
}

/// A port number beyond the last port was used as a port of another input.
#[test]
fn packet_to_a_host_without_a_port_is_dropped() {
    for port in [None, Some(9)] {
        let hosts = (0..PORTS).map(|host| Target::node(host.into())).collect();
        let rotor =
            CircuitSwitch::new(vec![Some(0), port], hosts, settings()).expect("matchings of four ports");
        let nodes = std::iter::repeat_with(Sink::default).take(PORTS.into()).collect();
        let mut fabric: Fabric<Sink> = Fabric::new(vec![AnyElement::Circuit(Box::new(rotor))], nodes);
        fabric.inject(Instant::ZERO, ROTOR, PacketMeta::new(0, 1, 100), 0);
        assert_eq!(fabric.totals().drops.of(Drop::NoRoute), 1, "{port:?}");
    }
}

#[test]
fn idle_rotor_arms_no_timer() {
    let mut fabric = rotor_between_hosts();
    assert_eq!((fabric.next_deadline(), fabric.next_arrival()), (None, None));
    fabric.inject(Instant::ZERO, ROTOR, PacketMeta::new(0, 3, 100), 0);
    assert_eq!(fabric.next_deadline(), Some(Instant::ZERO + NIGHT));
    fabric.advance(Instant::from_us(10_000));
    assert_eq!((fabric.next_deadline(), fabric.next_arrival()), (None, None));
    // Events: the ends of night and day three times, without the end of the last day, the end of
    // the transmission, and the arrival.
    assert_eq!(fabric.totals().events, 7);
}

#[test]
fn settings_without_a_matching_are_refused() {
    let of = |matching: Matching| {
        let timetable = Timetable::new(vec![(DAY, matching)]).expect("a day has a length");
        let settings = CircuitSettings { timetable, ..settings() };
        CircuitSwitch::new(vec![Some(0), Some(1)], vec![Target::node(0), Target::node(1)], settings)
            .map(|_| ())
    };
    assert_eq!(of(vec![Some(1), Some(0)]), Ok(()));
    assert_eq!(of(vec![Some(1)]), Ok(()));
    for (matching, output) in
        [(vec![Some(1), Some(1)], 1), (vec![Some(2)], 2), (vec![None, None, Some(0)], 0)]
    {
        assert_eq!(of(matching), Err(CircuitError::NoMatching { slot: 0, output }));
    }
    let slow = CircuitSettings { circuit_rate: BitRate::bps(1), ..settings() };
    let refused = CircuitSwitch::new(vec![], vec![], slow).map(|_| ());
    assert!(matches!(refused, Err(CircuitError::Rate(PortError::RateTooLow { .. }))), "{refused:?}");
    assert_eq!(shifts(1, 1..1, DAY, NIGHT).map(|_| ()), Err(TimetableError::Empty));
    assert_eq!(shifts(2, 1..2, DAY, Duration::ZERO).map(|_| ()), Err(TimetableError::EmptySlot { index: 0 }));
}

proptest! {
    #[test]
    fn packets_leave_in_order_within_days_of_their_circuits(
        packets in prop::collection::vec((0u64..60_000, 0..PORTS, 0..PORTS, 40u32..1_501), 1..200),
    ) {
        let mut fabric = rotor_between_hosts();
        let mut now = Instant::ZERO;
        for (number, (gap_ns, src, dst, size_bytes)) in (0..).zip(packets) {
            let dst = if src == dst { (src + 1) % PORTS } else { dst };
            now += Duration::from_ns(gap_ns);
            fabric.inject(now, ROTOR, PacketMeta::new(src, dst, size_bytes), number);
            let totals = fabric.totals();
            prop_assert_eq!(totals.injected, totals.delivered + totals.drops.total() + fabric.in_flight());
        }
        while let Some(arrival) = fabric.next_arrival() {
            let delivered = fabric.totals().delivered;
            fabric.advance(arrival - Duration::from_ps(1));
            prop_assert_eq!(fabric.totals().delivered, delivered, "before the next arrival");
            fabric.advance(arrival);
        }
        prop_assert_eq!(fabric.in_flight(), 0);
        prop_assert_eq!(fabric.next_deadline(), None);

        let timetable = settings().timetable;
        let mut sent = vec![Vec::new(); PORTS.into()];
        for (dst, sink) in (0..).zip(fabric.nodes()) {
            let mut last = vec![None; PORTS.into()];
            for (at, meta, number) in &sink.0 {
                let begins = *at - transmit_time(meta.size_bytes);
                let slot = timetable.at(begins.into());
                prop_assert_eq!(slot.state.get(usize::from(meta.src)), Some(&Some(dst)));
                prop_assert!(slot.ends_at >= (*at).into());
                prop_assert!(last[usize::from(meta.src)].replace(*number) < Some(*number), "in order");
                sent[usize::from(meta.src)].push((begins, *at));
            }
        }
        for sent in &mut sent {
            sent.sort_unstable();
            prop_assert!(sent.windows(2).all(|two| two[0].1 <= two[1].0), "one packet at a time");
        }
    }
}
