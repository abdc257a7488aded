//! Tests of the limits sent to agents, and of rates within links' capacities after any report.

use super::*;
use crate::{Chase, ChasePlus};
use anabranch_fluid::{Aalo, Fifo, MaxMin, Sincronia, Srf, Varys, Wss};
use anabranch_units::Duration;
use proptest::prelude::*;

const LINK: BitRate = BitRate::mbps(100);

fn address(host: u8, port: u16) -> std::net::SocketAddr {
    (IpAddr::from([10, 0, 0, host]), port).into()
}
fn key(from: u8, to: u8, port: u16) -> FlowKey {
    FlowKey { local: address(from, port), remote: address(to, 7_000) }
}
fn flow(key: FlowKey, coflow: &str, megabytes: u64) -> Report {
    Report::Flow {
        flow: key,
        coflow: coflow.to_owned(),
        size_bytes: megabytes * 1_000_000,
        open_ended: false,
    }
}
fn at(ms: u64) -> Instant {
    Instant::ZERO + Duration::from_ms(ms)
}
fn host(number: u8) -> Host {
    Host { addresses: vec![[10, 0, 0, number].into()], rate: LINK, uplinks: Vec::new() }
}
/// A host behind uplinks of these names and rates in Mbit/s.
fn behind(number: u8, uplinks: &[(&str, u64)]) -> Host {
    let uplink = |(name, mbps): &(&str, u64)| Uplink { name: (*name).into(), rate: BitRate::mbps(*mbps) };
    Host { uplinks: uplinks.iter().map(uplink).collect(), ..host(number) }
}

type BoxedAllocator = Box<dyn Allocator>;

struct Site(Coordinator<BoxedAllocator>);

impl Site {
    fn new(hosts: u8) -> Self {
        Self::with(hosts, Box::new(ChasePlus::default()))
    }
    fn with(hosts: u8, allocator: BoxedAllocator) -> Self {
        let mut coordinator = Coordinator::new(ClassSettings::default(), allocator);
        for number in 0..hosts {
            coordinator.handle_join(at(0), &number.to_string(), 1, host(number)).expect("it joins");
        }
        Self(coordinator)
    }
    fn report(&mut self, ms: u64, host: u8, reports: &[Report]) {
        self.0.handle_reports(at(ms), &host.to_string(), 1, reports).expect("it is taken");
    }
    fn limits(&mut self, ms: u64, host: u8) -> Vec<(u16, u64)> {
        self.0.decide(at(ms)).expect("it decides");
        let limits = self.0.poll_limits(&host.to_string(), 1);
        limits.into_iter().map(|l| (l.flow.local.port(), l.rate_bps.expect("a limit") / 1_000)).collect()
    }
    /// Returns the ports of the flows whose limits are lifted.
    fn lifted(&mut self, ms: u64, host: u8) -> Vec<u16> {
        self.0.decide(at(ms)).expect("it decides");
        let limits = self.0.poll_limits(&host.to_string(), 1);
        limits.into_iter().filter(|l| l.rate_bps.is_none()).map(|l| l.flow.local.port()).collect()
    }
}

#[test]
fn coflow_ends_with_last_flow_but_not_by_departure() {
    let mut site = Site::new(4);
    let keys = [key(0, 2, 1), key(1, 3, 2)];
    for (host, key) in [(0, keys[0]), (1, keys[1])] {
        site.report(5, host, &[flow(key, "a", 10)]);
    }
    site.report(6, 0, &[Report::Moved { flow: keys[0], moved_bytes: 7 }, Report::Ended { flow: keys[0] }]);
    assert_eq!(site.0.poll_ended(), None);
    site.report(9, 1, &[Report::Moved { flow: keys[1], moved_bytes: 4 }, Report::Ended { flow: keys[1] }]);
    let (since, bytes) = (at(5), ByteCount::new(11));
    assert_eq!(
        site.0.poll_ended(),
        Some(EndedCoflow { name: "a".into(), since, at: at(9), flows: 2, bytes })
    );

    site.report(10, 0, &[flow(keys[0], "b", 10)]);
    site.0.handle_leave(at(11), "0", 1);
    assert_eq!(site.0.poll_ended(), None);
}

#[test]
fn flows_of_a_coflow_complete_together() {
    let mut site = Site::new(4);
    site.report(0, 0, &[flow(key(0, 2, 1), "a", 10), flow(key(0, 3, 2), "a", 30)]);
    assert_eq!(site.limits(0, 0), [(1, 25_000), (2, 75_000)]);
    // Coflow b has more data left, and gets the rate that coflow a leaves at host 3.
    site.report(1, 1, &[flow(key(1, 3, 3), "b", 300)]);
    assert_eq!(site.limits(1, 1), [(3, 25_000)]);
    assert_eq!(site.limits(1, 0), []);
    site.report(2, 0, &[Report::Ended { flow: key(0, 3, 2) }]);
    assert_eq!(site.limits(2, 0), [(1, 100_000)]);
    assert_eq!(site.limits(2, 1), [(3, 100_000)]);
}

#[test]
fn mice_have_no_limit_until_they_grow() {
    let mut site = Site::new(2);
    let mouse =
        |bytes| Report::Flow { flow: key(0, 1, 1), coflow: "a".into(), size_bytes: bytes, open_ended: false };
    site.report(0, 0, &[mouse(49_999)]);
    // The mouse gets no limit, whatever its connection had before.
    assert_eq!(site.lifted(0, 0), [1]);
    site.report(1, 0, &[mouse(50_000)]);
    assert_eq!(site.limits(1, 0), [(1, 100_000)]);
    site.report(2, 0, &[Report::Ended { flow: key(0, 1, 1) }, mouse(49_999)]);
    assert_eq!(site.lifted(2, 0), [1]);
}

#[test]
fn flows_within_a_host_cross_no_link() {
    let mut site = Site::new(2);
    let loopback = |mut key: FlowKey| {
        key.remote.set_ip([127, 0, 0, 2].into());
        key
    };
    for to in [key(0, 0, 1), loopback(key(0, 1, 1)), key(7, 7, 1)] {
        site.report(0, 0, &[flow(to, "a", 10)]);
        assert_eq!(site.lifted(0, 0), [1]);
        site.report(0, 0, &[Report::Ended { flow: to }]);
    }
    // Hosts on one machine use loopback as their network.
    let host = Host { addresses: vec![[127, 0, 0, 2].into()], ..host(1) };
    site.0.handle_join(at(0), "1", 2, host).expect("it joins");
    site.report(0, 0, &[flow(loopback(key(0, 1, 1)), "a", 10)]);
    assert_eq!(site.limits(0, 0), [(1, 100_000)]);
}

#[test]
fn departed_agent_frees_its_links_and_reports_again() {
    let mut site = Site::new(3);
    site.report(0, 0, &[flow(key(0, 2, 1), "a", 10)]);
    site.report(0, 1, &[flow(key(1, 2, 2), "a", 10)]);
    assert_eq!((site.limits(0, 0), site.limits(0, 1)), (vec![(1, 50_000)], vec![(2, 50_000)]));
    site.0.handle_leave(at(1), "0", 2);
    assert_eq!(site.limits(1, 1), [], "another agent's leave means nothing");
    site.0.handle_leave(at(1), "0", 1);
    assert_eq!(site.limits(1, 1), [(2, 100_000)]);
    assert!(matches!(site.0.handle_reports(at(2), "0", 1, &[]), Err(ReportError::NotJoined(_))));
    site.0.handle_join(at(2), "0", 2, host(0)).expect("it joins");
    let again = [flow(key(0, 2, 1), "a", 10)];
    assert!(matches!(site.0.handle_reports(at(2), "0", 1, &again), Err(ReportError::NotJoined(_))));
    site.0.handle_reports(at(2), "0", 2, &again).expect("it is taken");
    site.0.decide(at(2)).expect("it decides");
    assert_eq!(site.0.poll_limits("0", 1), []);
    assert_eq!(site.0.poll_limits("0", 2).len(), 1);
}

#[test]
fn flows_to_a_later_host_share_its_link() {
    let mut site = Site::new(2);
    site.report(0, 0, &[flow(key(0, 2, 1), "a", 10)]);
    site.report(0, 1, &[flow(key(1, 2, 2), "a", 10)]);
    assert_eq!((site.limits(0, 0), site.limits(0, 1)), (vec![(1, 100_000)], vec![(2, 100_000)]));
    let slow = Host { rate: BitRate::mbps(20), ..host(2) };
    site.0.handle_join(at(1), "2", 1, slow).expect("it joins");
    assert_eq!((site.limits(1, 0), site.limits(1, 1)), (vec![(1, 10_000)], vec![(2, 10_000)]));
    // The host joins again with another link.
    site.0.handle_join(at(2), "2", 2, host(2)).expect("it joins");
    assert_eq!((site.limits(2, 0), site.limits(2, 1)), (vec![(1, 50_000)], vec![(2, 50_000)]));
}

/// A flow to a host on loopback that joined after the announcement never had a limit (#18).
#[test]
fn flows_to_a_later_loopback_host_cross_its_link() {
    let mut site = Site::new(0);
    let host = |last: u8| Host { addresses: vec![[127, 0, 0, last].into()], ..host(0) };
    let key =
        |port: u16| FlowKey { local: ([127, 0, 0, 1], port).into(), remote: ([127, 0, 0, 2], 7_000).into() };
    let reports = [flow(key(1), "a", 10), flow(key(2), "a", 0)];
    site.0.handle_join(at(0), "0", 1, host(1)).expect("it joins");
    site.report(0, 0, &reports);
    assert_eq!(site.lifted(0, 0), [1, 2]);
    site.0.handle_join(at(1), "1", 1, host(2)).expect("it joins");
    assert_eq!(site.limits(1, 0), [(1, 100_000)]);
}

#[test]
fn flows_cross_the_uplinks_their_ends_do_not_share() {
    let mut site = Site::new(0);
    let join = |site: &mut Site, number: u8, uplinks: &[(&str, u64)]| {
        site.0.handle_join(at(0), &number.to_string(), 1, behind(number, uplinks))
    };
    join(&mut site, 0, &[("rack-a", 30), ("site-x", 20)]).expect("it joins");
    join(&mut site, 1, &[("site-x", 20), ("rack-a", 30)]).expect("it joins");
    join(&mut site, 2, &[("rack-b", 25), ("site-x", 20)]).expect("it joins");
    join(&mut site, 3, &[("site-y", 10)]).expect("it joins");
    join(&mut site, 4, &[]).expect("it joins");
    let alone = |site: &mut Site, from: u8, to: u8| {
        site.report(0, from, &[flow(key(from, to, 1), "a", 10)]);
        let limits = site.limits(0, from);
        site.report(0, from, &[Report::Ended { flow: key(from, to, 1) }]);
        limits[0].1 / 1_000
    };
    // Flows in a rack, between racks, between sites, to a host in the core, and to an unknown host.
    let rates = [(0, 1), (0, 2), (2, 0), (0, 3), (3, 0), (1, 4), (4, 2), (3, 9)]
        .map(|(from, to)| alone(&mut site, from, to));
    assert_eq!(rates, [100, 25, 25, 10, 10, 20, 20, 100]);
    // The flows of two hosts share the uplink. The flow within the site gets the remaining rate of
    // its link.
    site.report(1, 0, &[flow(key(0, 4, 1), "a", 10), flow(key(0, 1, 3), "b", 100)]);
    site.report(1, 1, &[flow(key(1, 4, 2), "a", 10)]);
    assert_eq!((site.limits(1, 0), site.limits(1, 1)), (vec![(1, 10_000), (3, 90_000)], vec![(2, 10_000)]));
    // The host joins again, now from inside the site.
    site.0.handle_join(at(2), "4", 2, behind(4, &[("site-x", 20)])).expect("it joins");
    assert_eq!((site.limits(2, 0), site.limits(2, 1)), (vec![(1, 15_000), (3, 85_000)], vec![(2, 15_000)]));

    // All connected hosts must state the same rate.
    let error =
        site.0.handle_join(at(2), "0", 1, behind(0, &[("rack-a", 40)])).expect_err("refused").to_string();
    assert_eq!(
        error,
        "uplink rack-a: 40 Mbit/s, but 30 Mbit/s on host 1: say the same on all hosts behind it"
    );
    assert_eq!(site.0.count().0, 3, "what is refused changes nothing");
    site.0.handle_leave(at(3), "1", 1);
    site.0.handle_join(at(3), "0", 1, behind(0, &[("rack-a", 40)])).expect("nobody else is behind it");
}

#[test]
fn overdue_flow_still_has_a_rate() {
    let mut site = Site::new(3);
    site.report(0, 0, &[flow(key(0, 2, 1), "a", 1)]);
    assert_eq!(site.limits(0, 0), [(1, 100_000)]);
    // The flow is overdue when another flow arrives, and is assumed to finish soon.
    site.report(400, 1, &[flow(key(1, 2, 2), "b", 100)]);
    assert_eq!(site.limits(400, 1), [(2, 1_000)]);
    assert_eq!(site.limits(400, 0), []);
    let remaining = |site: &mut Site| site.0.coflows(at(400))[0].flows[0].remaining;
    assert_eq!(remaining(&mut site), REMAINING_MIN);
    site.report(400, 0, &[Report::Moved { flow: key(0, 2, 1), moved_bytes: 400_000 }]);
    assert_eq!(remaining(&mut site).as_u64(), 600_000);
}

#[test]
fn idle_flow_frees_its_rate_until_it_moves() {
    let mut site = Site::new(3);
    let (idle, other) = (key(0, 2, 1), key(1, 2, 2));
    let moved = |flow, moved_bytes| [Report::Moved { flow, moved_bytes }];
    site.report(0, 0, &[flow(idle, "a", 30)]);
    site.report(0, 1, &[flow(other, "b", 300)]);
    // The minimum rate of the waiting flow is taken from the other flow.
    assert_eq!(site.limits(0, 0), [(1, 99_000)]);
    assert_eq!(site.limits(0, 1), [(2, 1_000)]);
    // 64 KiB take 5.2 ms at the first flow's rate, and 524 ms at the second flow's rate. Checks are
    // rounded up to steps.
    let due = site.0.poll_timeout().expect("flows are looked at");
    assert_eq!(due, at(550));
    assert_eq!(site.lifted(549, 0), [] as [u16; 0]);
    assert_eq!(site.lifted(550, 0), [1]);
    assert_eq!(site.limits(550, 1), [(2, 100_000)]);
    assert_eq!(site.0.count(), (2, 1, 2));
    let views = site.0.coflows(at(550));
    assert_eq!((views[0].flows[0].rate, views[0].flows[0].remaining.as_u64()), (None, 30_000_000));
    // Small progress does not wake an idle flow.
    site.report(600, 1, &moved(other, 1_000_000));
    site.report(600, 0, &moved(idle, 49_999));
    assert_eq!((site.limits(600, 0), site.limits(600, 1)), (vec![], vec![]));
    site.report(700, 0, &moved(idle, 50_000));
    assert_eq!((site.limits(700, 0), site.limits(700, 1)), (vec![(1, 99_000)], vec![(2, 1_000)]));
    // While both flows move as permitted, nothing changes.
    for ms in (800..=1_800).step_by(100) {
        site.report(ms, 0, &moved(idle, 50_000 + 12_375 * (ms - 700)));
        site.report(ms, 1, &moved(other, 1_000_000 + 125 * (ms - 700)));
        assert_eq!((site.limits(ms, 0), site.limits(ms, 1)), (vec![], vec![]));
    }
    assert_eq!(site.lifted(1_850, 0), [] as [u16; 0]);
    assert_eq!(site.lifted(2_349, 0), [] as [u16; 0]);
    assert_eq!(site.lifted(2_350, 0), [1]);
    // New data also wakes an idle flow.
    site.report(2_400, 0, &[flow(idle, "a", 31)]);
    assert_eq!((site.limits(2_400, 0), site.limits(2_400, 1)), (vec![(1, 99_000)], vec![(2, 1_000)]));
    assert_eq!(site.lifted(2_950, 0), [1]);
    // A coflow ends with its last flow, even an idle one.
    site.report(3_100, 0, &[Report::Ended { flow: idle }]);
    let bytes = ByteCount::new(13_662_500);
    let ended = EndedCoflow { name: "a".into(), since: at(0), at: at(3_100), flows: 1, bytes };
    assert_eq!(site.0.poll_ended(), Some(ended));
    // The other flow has been idle since its last progress.
    assert_eq!(site.lifted(3_500, 1), [2]);
    assert_eq!(site.0.count(), (1, 0, 1));
}

#[test]
fn slow_flow_reserves_little_more_than_its_rate() {
    let mut site = Site::new(3);
    let (slow, other) = (key(0, 2, 1), key(1, 2, 2));
    let moved = |flow, moved_bytes| [Report::Moved { flow, moved_bytes }];
    // Moves both flows at these numbers of bytes per millisecond, between two times in
    // milliseconds.
    let go = |site: &mut Site, from: u64, to: u64, before: u64, slow_each: u64, other_each: u64| {
        for ms in (from + 50..=to).step_by(50) {
            site.report(ms, 0, &moved(slow, before + slow_each * (ms - from)));
            site.report(ms, 1, &moved(other, other_each * ms));
            if ms < to {
                assert_eq!((site.limits(ms, 0), site.limits(ms, 1)), (vec![], vec![]), "at {ms} ms");
            }
        }
    };
    site.report(0, 0, &[flow(slow, "a", 30)]);
    site.report(0, 1, &[flow(other, "b", 300)]);
    assert_eq!((site.limits(0, 0), site.limits(0, 1)), (vec![(1, 99_000)], vec![(2, 1_000)]));
    // The first interval is not judged. At 8 of 99 Mbit/s the slow flow keeps its limit, but
    // reserves only 10 Mbit/s of its links.
    go(&mut site, 0, 1_100, 0, 1_000, 125);
    assert_eq!((site.limits(1_100, 0), site.limits(1_100, 1)), (vec![], vec![(2, 90_000)]));
    assert_eq!(site.0.count(), (2, 1, 2));
    assert_eq!(site.0.coflows(at(1_100))[0].flows[0].rate, Some(BitRate::mbps(99)));
    // Small changes of the slow flow's rate are ignored; large changes are not.
    go(&mut site, 1_100, 1_650, 1_100_000, 1_050, 11_250);
    assert_eq!((site.limits(1_650, 0), site.limits(1_650, 1)), (vec![], vec![]));
    go(&mut site, 1_650, 2_200, 1_677_500, 500, 11_250);
    assert_eq!((site.limits(2_200, 0), site.limits(2_200, 1)), (vec![], vec![(2, 95_000)]));
    go(&mut site, 2_200, 2_750, 1_952_500, 2_000, 11_250);
    assert_eq!((site.limits(2_750, 0), site.limits(2_750, 1)), (vec![], vec![(2, 80_000)]));
    // The flow uses its limit again, and is no longer slow.
    go(&mut site, 2_750, 3_300, 3_052_500, 12_000, 11_250);
    assert_eq!((site.limits(3_300, 0), site.limits(3_300, 1)), (vec![], vec![(2, 1_000)]));
    assert_eq!(site.0.count(), (2, 2, 2));
    site.report(3_350, 0, &[Report::Ended { flow: slow }]);
    assert_eq!(site.limits(3_350, 1), [(2, 100_000)]);
    assert!(site.0.links.iter().all(|(_, kept_bps)| *kept_bps == 0));
}

#[test]
fn open_ended_flow_is_assumed_to_double() {
    let mut site = Site::new(4);
    let said = |flow, kilobytes: u64, moved_kilobytes: u64| {
        let size_bytes = 1_000 * kilobytes;
        [
            Report::Flow { flow, coflow: "a".into(), size_bytes, open_ended: true },
            Report::Moved { flow, moved_bytes: 1_000 * moved_kilobytes },
        ]
    };
    let remaining = |site: &mut Site, ms| -> Vec<u64> {
        // Forces a decision, as the arrival of another flow would.
        site.0.is_changed = true;
        site.0.decide(at(ms)).expect("it decides");
        site.0.coflows(at(ms))[0].flows.iter().map(|flow| flow.remaining.as_u64() / 1_000).collect()
    };
    let (one, two) = (key(0, 2, 1), key(1, 2, 2));
    site.report(0, 0, &said(one, 2_100, 2_000));
    site.report(0, 1, &said(two, 200, 0));
    assert_eq!(remaining(&mut site, 0), [1_000, 1_000]);
    assert_eq!((site.limits(0, 0), site.limits(0, 1)), (vec![(1, 50_000)], vec![(2, 50_000)]));
    // The number of buffered bytes counts if it is larger.
    site.report(1, 1, &said(two, 4_200, 200));
    site.report(1, 0, &said(one, 2_300, 2_200));
    assert_eq!(remaining(&mut site, 1), [1_200, 4_000]);
    // A flow with an empty buffer is idle until enough bytes are buffered.
    site.report(2, 0, &said(one, 2_300, 2_300));
    assert_eq!(site.lifted(2, 0), [1]);
    assert_eq!(site.limits(2, 1), [(2, 100_000)]);
    site.report(3, 0, &said(one, 2_349, 2_300));
    assert_eq!(site.lifted(3, 0), [] as [u16; 0]);
    assert_eq!(site.0.count(), (2, 1, 1));
    site.report(4, 0, &said(one, 9_000, 8_950));
    assert_eq!(site.0.count(), (2, 2, 1));
    // The mean is (2 + 6.95 + 0.2) MB divided by two flows.
    assert_eq!(remaining(&mut site, 4)[0], 4_575);
}

#[test]
fn departed_hosts_are_forgotten_at_the_host_limit() {
    let mut site = Site::new(2);
    let join = |site: &mut Site, name: usize| {
        let host = Host { addresses: Vec::new(), rate: LINK, uplinks: Vec::new() };
        site.0.handle_join(at(0), &format!("h{name}"), 1, host)
    };
    (2..HOSTS_MAX).for_each(|name| join(&mut site, name).expect("there is room"));
    assert_eq!(join(&mut site, HOSTS_MAX), Err(ReportError::TooManyHosts));
    // A host is forgotten only without flows to it.
    site.report(0, 0, &[flow(key(0, 1, 1), "a", 10)]);
    site.0.handle_leave(at(0), "1", 1);
    assert_eq!(join(&mut site, HOSTS_MAX), Err(ReportError::TooManyHosts));
    site.report(0, 0, &[Report::Ended { flow: key(0, 1, 1) }]);
    let links = site.0.links.len();
    join(&mut site, HOSTS_MAX).expect("there is room");
    assert_eq!((site.0.hosts.len(), site.0.links.len()), (HOSTS_MAX, links));
    assert!(!site.0.hosts.contains_key("1") && !site.0.by_address.values().any(|host| host == "1"));
}

#[test]
fn values_out_of_range_are_refused_in_one_line() {
    let mut site = Site::new(1);
    let long = "x".repeat(NAME_MAX + 1);
    for name in ["", "a b", "\n", &long] {
        let error =
            site.0.handle_reports(at(0), "0", 1, &[flow(key(0, 1, 1), name, 1)]).expect_err("refused");
        assert!(
            error.to_string().ends_with("must be 1 to 128 printable characters without blanks"),
            "{error}"
        );
    }
    let none = Host { rate: BitRate::bps(0), ..host(1) };
    assert_eq!(site.0.handle_join(at(0), "1", 1, none), Err(ReportError::SlowLink(BitRate::bps(0))));
    let none = behind(1, &[("a", 0)]);
    assert_eq!(site.0.handle_join(at(0), "1", 1, none), Err(ReportError::SlowLink(BitRate::bps(0))));
    let twice = behind(1, &[("a", 1), ("a", 1)]);
    assert_eq!(site.0.handle_join(at(0), "1", 1, twice), Err(ReportError::UplinkTwice("a".into())));
    let many = behind(1, &[("a", 1); HOST_UPLINKS_MAX + 1]);
    assert_eq!(site.0.handle_join(at(0), "1", 1, many), Err(ReportError::TooManyHostUplinks(9)));
    let many = Host { addresses: vec![[10, 0, 0, 1].into(); ADDRESSES_MAX + 1], ..host(1) };
    assert_eq!(site.0.handle_join(at(0), "1", 1, many), Err(ReportError::TooManyAddresses(65)));
    let taken = Host { addresses: vec!["::ffff:10.0.0.0".parse().expect("an address")], ..host(1) };
    let error = site.0.handle_join(at(0), "1", 1, taken.clone()).expect_err("host 0 has it").to_string();
    assert_eq!(error, "address 10.0.0.0: is host 0's: name the host's own with --address");
    site.0.handle_leave(at(0), "0", 1);
    site.0.handle_join(at(0), "1", 1, taken).expect("nobody has it");
    site.0.handle_join(at(0), "0", 1, Host { addresses: Vec::new(), ..host(0) }).expect("it joins");
    let flows: Vec<Report> = (0..HOST_FLOWS_MAX as u32 + 1)
        .map(|n| FlowKey { local: address(0, n as u16), remote: address(1, 1 + (n >> 16) as u16) })
        .map(|flow| Report::Flow { flow, coflow: "a".into(), size_bytes: 1, open_ended: false })
        .collect();
    assert_eq!(site.0.handle_reports(at(0), "0", 1, &flows), Err(ReportError::TooManyFlows));
}

proptest! {
    #[test]
    fn rates_fit_links_for_random_reports(acts in proptest::collection::vec(
        (0u8..4, 0u8..10, 0u16..4, 0u8..5, 0u64..100), 1..80,
    ), who in 0..10, is_late: bool) {
        let allocator: BoxedAllocator = match who {
            0 => Box::new(Chase::default()),
            1 => Box::new(Chase::new(crate::Priority::Total, false)),
            2 => Box::new(MaxMin::default()),
            3 => Box::new(Fifo::default()),
            4 => Box::new(Wss::default()),
            5 => Box::new(Srf::default()),
            6 => Box::new(Aalo::default()),
            7 => Box::new(Varys::default()),
            8 => Box::new(Sincronia::default()),
            _ => Box::new(ChasePlus::default()),
        };
        let mut site = Site::with(3, allocator);
        // A decision that begins after one act and is applied after the next.
        let mut late = None;
        for (step, (from, what, port, to, megabytes)) in acts.into_iter().enumerate() {
            let (now, name, key) = (at(step as u64 * 50), from.to_string(), key(from, to, port));
            // A refused report has no effect, so its error is ignored.
            let _ = match what {
                0 => {
                    let uplinks = [("a", 50), ("b", 30)];
                    let (rate, uplinks) = (BitRate::mbps(1 + megabytes), &uplinks[..usize::from(port % 3)]);
                    site.0.handle_join(now, &name, 1, Host { rate, ..behind(from, uplinks) })
                }
                1 => { site.0.handle_leave(now, &name, 1); Ok(()) }
                2 | 3 => site.0.handle_reports(now, &name, 1, &[Report::Ended { flow: key }]),
                4 => site.0.handle_reports(now, &name, 1, &[Report::Moved { flow: key, moved_bytes: megabytes * 1_000_000 }]),
                5 => {
                    let (coflow, size_bytes) = (["a", "b"][usize::from(port % 2)].into(), megabytes * 1_000_000);
                    let open = Report::Flow { flow: key, coflow, size_bytes, open_ended: true };
                    site.0.handle_reports(now, &name, 1, &[open])
                }
                _ => site.0.handle_reports(now, &name, 1, &[flow(key, ["a", "b"][usize::from(port % 2)], megabytes)]),
            };
            if let Some(mut decision) = late.take() {
                Decision::make(&mut decision);
                site.0.end_decision(now, decision).expect("links carry it");
            }
            if is_late && step % 2 == 0 {
                late = site.0.begin_decision(now);
                continue;
            }
            site.0.decide(now).expect("links carry it");
            let known = |of: fn(&ReportedFlow) -> bool| -> usize {
                site.0.hosts.values().map(|host| host.flows.values().filter(|flow| of(flow)).count()).sum()
            };
            let (told, all) = (known(|flow| flow.id().is_some()), known(ReportedFlow::is_waited_for));
            prop_assert_eq!(told, site.0.active.ids().len());
            let slow: Vec<(u64, &Vec<LinkId>)> = site.0.hosts.values().flat_map(|host| host.flows.values()).filter_map(|flow| match &flow.state {
                State::Slow { keeps_bps, route, .. } => Some((*keeps_bps, route)),
                _ => None,
            }).collect();
            prop_assert_eq!(told + slow.len(), site.0.looks.len());
            for (at, (_, kept_bps)) in site.0.links.iter().enumerate() {
                let kept = slow.iter().filter(|(_, route)| route.contains(&LinkId(at as u32)));
                prop_assert_eq!(*kept_bps, kept.map(|(keeps_bps, _)| keeps_bps).sum::<u64>());
            }
            prop_assert_eq!(site.0.count(), (all, told, site.0.coflows.len()));
            for link in (0..site.0.active.network().links() as u32).map(LinkId) {
                let on = site.0.active.flows_on(link);
                let limits = site.0.limits_bps();
                let sum_bps: f64 = limits.iter().filter(|(id, _)| on.contains(id)).map(|(_, bps)| bps).sum();
                let most_bps = site.0.active.rate_bps(link) + on.len() as f64 * RATE_MIN.as_bps() as f64;
                prop_assert!(sum_bps <= (1.0 + PART_MIN) * most_bps, "{sum_bps} b/s of {most_bps}");
            }
            prop_assert!(site.0.poll_timeout().is_none_or(|at| at > now), "who is idle has been found");
            prop_assert_eq!(site.0.coflows(now).iter().map(|coflow| coflow.flows.len()).sum::<usize>(), all);
            prop_assert!(site.0.coflows(now).iter().all(|coflow| !coflow.flows.is_empty()));
        }
    }
}

/// Flows of one host in very many coflows took all of the coordinator's time (#17).
#[test]
fn host_may_use_a_limited_number_of_coflows() {
    let mut site = Site::new(3);
    let of = |number: usize| flow(key(0, 1, number as u16), &format!("t{number}"), 1);
    let all: Vec<Report> = (0..HOST_COFLOWS_MAX).map(of).collect();
    site.report(0, 0, &all);
    let more = site.0.handle_reports(at(0), "0", 1, &[of(HOST_COFLOWS_MAX)]);
    assert_eq!(more, Err(ReportError::TooManyCoflows));
    // Another flow of a known coflow is accepted, and so are other hosts' coflows.
    site.report(0, 0, &[flow(key(0, 2, 60_000), "t0", 1)]);
    site.report(0, 2, &[flow(key(2, 1, 1), "mine", 1)]);
    // The last flow of a coflow makes room for another coflow.
    site.report(1, 0, &[Report::Ended { flow: key(0, 1, 1) }, of(HOST_COFLOWS_MAX)]);
    let next = of(HOST_COFLOWS_MAX + 1);
    let still = [Report::Ended { flow: key(0, 1, 0) }, next.clone()];
    assert_eq!(site.0.handle_reports(at(1), "0", 1, &still), Err(ReportError::TooManyCoflows));
    site.report(1, 0, &[Report::Ended { flow: key(0, 2, 60_000) }, next]);
    site.0.handle_leave(at(2), "0", 1);
    site.0.handle_join(at(2), "0", 2, host(0)).expect("it joins");
    site.0.handle_reports(at(2), "0", 2, &all).expect("all are forgotten");
}

#[test]
fn group_addresses_and_slow_links_are_refused() {
    let mut site = Site::new(1);
    let mut join = |addresses: &[&str], rate| {
        let addresses = addresses.iter().map(|ip| ip.parse().expect("an address")).collect();
        site.0.handle_join(at(0), "h", 1, Host { addresses, rate, uplinks: Vec::new() })
    };
    for ip in ["0.0.0.0", "::", "224.0.0.1", "ff02::1", "255.255.255.255", "::ffff:0.0.0.0"] {
        let error = join(&["10.0.0.9", ip], LINK).expect_err("no host's");
        assert!(matches!(error, ReportError::Address(_)), "{ip}: {error}");
    }
    let slow = BitRate::bps(RATE_MIN.as_bps() - 1);
    assert_eq!(join(&["10.0.0.9"], slow), Err(ReportError::SlowLink(slow)));
    join(&["10.0.0.9", "fd00::9"], RATE_MIN).expect("it joins");
}

#[test]
fn coflow_begins_with_its_first_flow_above_mouse_size() {
    let mut site = Site::new(3);
    site.report(0, 0, &[flow(key(0, 1, 1), "a", 0)]);
    assert_eq!(site.0.poll_begun(), None);
    site.report(1, 0, &[flow(key(0, 1, 2), "a", 1), flow(key(0, 2, 3), "a", 1)]);
    assert_eq!((site.0.poll_begun().as_deref(), site.0.poll_begun()), (Some("a"), None));
}
