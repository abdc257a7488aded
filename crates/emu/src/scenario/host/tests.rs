//! Tests of a host's stamps, ports, clock and reports.

use super::*;

#[test]
fn stamp_survives_encoding_and_short_datagrams_are_refused() {
    let stamp = Stamp { flow: 7, number: u64::MAX - 1, sent_ns: 1 << 40 };
    assert_eq!(Stamp::decode(&stamp.encode()), Some(stamp));
    assert_eq!(Stamp::decode(&stamp.encode()[..Stamp::LEN - 1]), None);
}

/// #17: a stamp of more than 213 days overflowed; any program within the emulation can send one.
#[test]
fn stamp_from_the_future_is_refused() {
    let stamp = |sent_ns| Stamp { flow: 7, number: 1, sent_ns };
    assert_eq!(Stamp::received(&stamp(5).encode(), 5), Some(stamp(5)));
    assert_eq!(Stamp::received(&stamp(6).encode(), 5), None);
    assert_eq!(Stamp::received(&stamp(u64::MAX).encode(), 1 << 60), None);
}

#[test]
fn flows_are_identified_by_their_source_ports() {
    for flow in [0, 1, FLOWS_MAX - 1] {
        assert_eq!(flow_from(port(flow)), Some(flow));
    }
    for other in [PORT_FIRST - 1, port(FLOWS_MAX - 1) + 1, PORT_LISTENING] {
        assert_eq!(flow_from(other), None, "{other}");
    }
    assert!(port(FLOWS_MAX - 1) < 32_768, "below the ports that the kernel gives out");
}

#[test]
fn observations_of_one_flow_merge_across_hosts() {
    let mut sender = HostObservations { over_ns: 5, ..HostObservations::default() };
    sender.flows.insert(3, FlowObservation { start_ns: Some(1), ..FlowObservation::default() });
    sender.fail("sent", &Error::from(ErrorKind::AddrInUse));
    let mut receiver = HostObservations { over_ns: 9, ..HostObservations::default() };
    receiver
        .flows
        .insert(3, FlowObservation { received_bytes: 2, whole_ns: Some(8), ..FlowObservation::default() });
    receiver.fail("received", &Error::from(ErrorKind::AddrInUse));
    sender.merge(receiver);
    let flow = &sender.flows[&3];
    assert_eq!((flow.received_bytes, flow.start_ns, flow.whole_ns), (2, Some(1), Some(8)));
    assert_eq!((sender.over_ns, sender.failed), (9, 2));
    assert!(sender.failure.is_some_and(|failure| failure.starts_with("sent")));
}

#[test]
fn dilated_clock_counts_emulated_time() {
    let dilation = Dilation::try_from(20).expect("in range");
    let begin_ns = monotonic_ns() - 20_000_000;
    let clock = Clock { begin_ns, end_ns: 1_000_000_000, warmup_ns: 0, dilation };
    let now_ns = clock.now_ns();
    assert!((1_000_000..500_000_000).contains(&now_ns), "{now_ns}");
    let left = clock.left();
    assert!(left > Duration::from_secs(10) && left < Duration::from_secs(20), "{left:?}");
}
