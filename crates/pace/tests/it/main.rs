//! Tests of the rates of real TCP flows, between two network namespaces or over loopback.
//!
//! Namespaces have no names, so the kernel removes them, and their devices, with the test. If the
//! machine permits none, or lacks a mechanism, the tests print the reason and count as skipped.

#![allow(clippy::disallowed_methods, reason = "tests of a driver: they use the clock, threads and sockets")]

mod fuse;
mod namespace;
mod net;

use std::io::{ErrorKind, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anabranch_pace::*;
use anabranch_units::BitRate;
use net::*;

/// Tolerance of a rate measured over about half a second.
const TOLERANCE: f64 = 0.10;
/// Number of measured intervals: on a busy machine a flow pauses for a while and then catches up.
const WINDOWS: usize = 60;

/// Asserts that each of these flows, whose limit is `rate`, runs at that rate in at least one
/// interval.
fn assert_run_at(loads: &[Load], rate: BitRate) {
    // Data sent at an earlier rate drains meanwhile.
    std::thread::sleep(Duration::from_millis(200));
    let mut is_at_limit = vec![false; loads.len()];
    for _ in 0..WINDOWS {
        for (n, seen) in rates_over(loads, Duration::from_millis(600)).into_iter().enumerate() {
            println!(
                "{}: {:.1} Mbit/s where {rate} was set",
                loads[n].congestion_control,
                seen.as_mbps_f64()
            );
            let share = seen.as_mbps_f64() / rate.as_mbps_f64();
            is_at_limit[n] |= (1.0 - TOLERANCE..1.0 + TOLERANCE).contains(&share);
        }
        if is_at_limit.iter().all(|is| *is) {
            return;
        }
    }
    panic!("{WINDOWS} times not at {rate}, which was set: {is_at_limit:?}");
}

/// Asserts that flows have no limit any more: each runs at twice this rate or more in at least one
/// interval.
fn assert_are_faster_than(loads: &[Load], rate: BitRate) {
    std::thread::sleep(Duration::from_millis(150));
    let mut is_faster = vec![false; loads.len()];
    for _ in 0..WINDOWS {
        for (n, seen) in rates_over(loads, Duration::from_millis(300)).into_iter().enumerate() {
            println!("{}: {:.1} Mbit/s without limit", loads[n].congestion_control, seen.as_mbps_f64());
            is_faster[n] |= seen.as_bps() > 2 * rate.as_bps();
        }
        if is_faster.iter().all(|is| *is) {
            return;
        }
    }
    panic!("{WINDOWS} times not above twice {rate}, which was the limit: {is_faster:?}");
}

/// Sets one limit, and panics on failure.
fn set(pacer: &mut SocketPacer, flow: FlowKey, limit: Limit) {
    for result in pacer.set(&[(flow, limit)]) {
        result.expect("the flow is there and ours");
    }
}

/// Sets the limits of all these flows, and panics on failure.
fn set_all(pacer: &mut SocketPacer, loads: &[Load], limit: Limit) {
    let changes: Vec<_> = loads.iter().map(|load| (load.flow, limit)).collect();
    for result in pacer.set(&changes) {
        result.expect("the flow is there and ours");
    }
}

#[test]
fn configured_pacing_rate_is_measured_until_lifted() {
    let _alone = alone();
    let Some(pair) = Pair::start() else { return };
    let loads: Vec<_> = ["bbr", "cubic", "reno"].into_iter().filter_map(|name| pair.load(name)).collect();
    assert!(loads.iter().any(|load| load.congestion_control == "reno"), "every Linux has it");
    let mut pacer = pair.a.run(|| SocketPacer::new().expect("a pacer"));
    for rate in [BitRate::mbps(20), BitRate::mbps(50)] {
        set_all(&mut pacer, &loads, Limit::Rate(rate));
        assert_eq!(pacer.limits().filter(|(_, limit)| *limit == rate).count(), loads.len());
        assert_run_at(&loads, rate);
    }
    set_all(&mut pacer, &loads, Limit::None);
    assert_eq!(pacer.limits().count(), 0);
    assert_are_faster_than(&loads, BitRate::mbps(50));
}

#[test]
fn flow_of_another_process_is_limited_then_restored() {
    let _alone = alone();
    let Some(pair) = Pair::start() else { return };
    let loads = [pair.foreign_load(Ipv::Six)];
    let mut pacer = pair.a.run(|| SocketPacer::new().expect("a pacer"));
    set_all(&mut pacer, &loads, Limit::Rate(BitRate::mbps(20)));
    assert_run_at(&loads, BitRate::mbps(20));
    let mut reader = pair.a.run(|| FlowReader::new().expect("sock_diag"));
    let mut limit = || reader.find(loads[0].flow).expect("asked").expect("running").pacing_limit;
    assert_eq!(limit(), Some(BitRate::mbps(20)));
    drop(pacer);
    assert_eq!(limit(), None);
    assert_are_faster_than(&loads, BitRate::mbps(20));
}

/// Skips a test if the machine lacks a mechanism; every other cause of failure fails the test.
fn skip_without(error: &StartError) {
    // The verifier's error number for a refused program, which would be our mistake.
    const EACCES: i32 = 13;
    // Error numbers of a missing kernel module, and of a kernel without type information. Our
    // device exists.
    let codes: &[i32] = match error.step {
        "make a root qdisc" | "make a u32 filter" | "read the kernel's types" => &[2],
        _ => &[],
    };
    let has_no_cgroup2 =
        error.step == "find a cgroup2 file system" && error.error.kind() == ErrorKind::NotFound;
    // An error with the kernel's reason has a kind but no error number.
    let is_absent = !codes.is_empty() && error.error.kind() == ErrorKind::NotFound;
    let lacks = (is_lacking(&error.error, codes) || is_absent) && error.error.raw_os_error() != Some(EACCES);
    assert!(lacks || has_no_cgroup2, "{error}");
    skip(&error.to_string());
}

/// Returns true if all mechanisms work; otherwise prints the reason.
fn has_all(pacer: &Pacer) -> bool {
    pacer.missing().iter().for_each(skip_without);
    pacer.missing().is_empty()
}

/// Creates a pacer. Returns `None`, with the reason printed, if this machine lacks BPF limits.
fn bpf_pacer(pair: &Pair, cgroup: &TestCgroup) -> Option<BpfPacer> {
    let path = cgroup.path().to_owned();
    pair.a.run(move || BpfPacer::new(Some(&path))).map_err(|error| skip_without(&error)).ok()
}

fn set_all_by_bpf(pacer: &mut BpfPacer, loads: &[Load], limit: Limit) {
    let changes: Vec<_> = loads.iter().map(|load| (load.flow, limit)).collect();
    for result in pacer.set(&changes) {
        result.expect("the maps have room");
    }
}

#[test]
fn bpf_limits_new_connections_of_a_cgroup() {
    let _alone = alone();
    let Some(pair) = Pair::start() else { return };
    let Some(cgroup) = TestCgroup::make() else { return };
    let Some(mut pacer) = bpf_pacer(&pair, &cgroup) else { return };
    let loads =
        [pair.foreign_load_in(Ipv::Four, Some(&cgroup)), pair.foreign_load_in(Ipv::Six, Some(&cgroup))];
    set_all_by_bpf(&mut pacer, &loads, Limit::Rate(BitRate::mbps(30)));
    assert_run_at(&loads, BitRate::mbps(30));
    set_all_by_bpf(&mut pacer, &loads, Limit::Rate(BitRate::mbps(60)));
    assert_run_at(&loads, BitRate::mbps(60));
    assert_eq!(pacer.limits().count(), 2);
    set_all_by_bpf(&mut pacer, &loads, Limit::None);
    assert_are_faster_than(&loads, BitRate::mbps(60));
}

#[test]
fn bpf_limits_old_and_new_connections_and_restores_them() {
    let _alone = alone();
    let Some(pair) = Pair::start() else { return };
    let Some(cgroup) = TestCgroup::make() else { return };
    let before = pair.foreign_load(Ipv::Four);
    let Some(mut pacer) = bpf_pacer(&pair, &cgroup) else { return };
    let mut reader = pair.a.run(|| FlowReader::new().expect("sock_diag"));
    let mut limit = |flow| reader.find(flow).expect("asked").map(|state| state.pacing_limit);
    // The flow's addresses and ports are set before it exists.
    let waiting = pair.waiting_load(Ipv::Four, Some(&cgroup));
    let later = waiting.flow;
    for result in
        pacer.set(&[(before.flow, Limit::Rate(BitRate::mbps(10))), (later, Limit::Rate(BitRate::mbps(20)))])
    {
        result.expect("the maps have room");
    }
    assert_eq!((limit(before.flow), limit(later)), (Some(Some(BitRate::mbps(10))), None));
    let after = waiting.start();
    assert_eq!(limit(after.flow), Some(Some(BitRate::mbps(20))));
    drop(pacer);
    assert_eq!((limit(before.flow), limit(after.flow)), (Some(None), Some(None)));
}

fn htb_pacer(pair: &Pair) -> Option<HtbPacer> {
    pair.a.run(|| HtbPacer::new("v0")).map_err(|error| skip_without(&error)).ok()
}

fn set_all_by_htb(pacer: &mut HtbPacer, loads: &[Load], limit: Limit) {
    let changes: Vec<_> = loads.iter().map(|load| (load.flow, limit)).collect();
    for result in pacer.set(&changes) {
        result.expect("a class can be made");
    }
}

/// The device's qdiscs except its default one, from `tc`. The count of unclassified packets is
/// removed, because IPv6 sends packets by itself.
fn qdiscs(pair: &Pair) -> String {
    let seen = pair.a.command("tc qdisc show dev v0").unwrap_or_default();
    let seen = seen + &pair.a.command("tc class show dev v0").unwrap_or_default();
    let mut words: Vec<_> = seen.split(' ').collect();
    for at in 1..words.len() {
        if words[at - 1] == "direct_packets_stat" {
            words[at] = "";
        }
    }
    words.join(" ")
}

#[test]
fn htb_limits_flows_by_socket_marks_or_filters() {
    let _alone = alone();
    let Some(pair) = Pair::start() else { return };
    let before = qdiscs(&pair);
    let Some(mut pacer) = htb_pacer(&pair) else { return };
    // A flow that does not exist yet has no socket, so a filter must select its class.
    let waiting = [pair.waiting_load(Ipv::Four, None), pair.waiting_load(Ipv::Six, None)];
    let changes = waiting.each_ref().map(|w| (w.flow, Limit::Rate(BitRate::mbps(20))));
    pacer.set(&changes).into_iter().for_each(|result| result.expect("a class can be made"));
    let mut loads: Vec<_> = waiting.into_iter().map(WaitingLoad::start).collect();
    loads.extend(pair.load("cubic"));
    loads.push(pair.foreign_load(Ipv::Six));
    set_all_by_htb(&mut pacer, &loads, Limit::Rate(BitRate::mbps(20)));
    // A twentieth of the bytes that HTB counts are headers, including Ethernet's.
    assert_run_at(&loads, BitRate::mbps(19));
    set_all_by_htb(&mut pacer, &loads, Limit::Rate(BitRate::mbps(80)));
    assert_run_at(&loads, BitRate::mbps(76));
    set_all_by_htb(&mut pacer, &loads, Limit::None);
    assert_eq!(pacer.limits().count(), 0);
    assert_are_faster_than(&loads, BitRate::mbps(80));
    set_all_by_htb(&mut pacer, &loads, Limit::Rate(BitRate::mbps(20)));
    drop(pacer);
    assert_eq!(qdiscs(&pair), before);
}

#[test]
fn htb_clears_only_the_leftovers_of_killed_pacers() {
    let _alone = alone();
    let Some(pair) = Pair::start() else { return };
    let Some(pacer) = htb_pacer(&pair) else { return };
    let second = pair.a.run(|| HtbPacer::new("v0")).expect_err("one at a time");
    assert!(second.to_string().contains("another pacer has"), "{second}");
    let second = pair.a.run(|| HtbPacer::clear("v0")).expect_err("one at a time");
    assert!(second.to_string().contains("another pacer has"), "{second}");
    let ours = qdiscs(&pair);
    drop(pacer);
    let without = qdiscs(&pair);
    assert!(!pair.a.run(|| HtbPacer::clear("v0")).expect("it may look"), "nothing is left");
    // The state that a killed pacer leaves.
    let leave = || {
        let lines = [
            "tc qdisc add dev v0 root handle ab0a: htb default 0xfa1e",
            "tc class add dev v0 parent ab0a: classid ab0a:7 htb rate 8mbit",
        ];
        lines.into_iter().try_for_each(|line| pair.a.command(line).map(drop))
    };
    if let Err(error) = leave() {
        return skip(&error);
    }
    assert!(pair.a.run(|| HtbPacer::clear("v0")).expect("what is left is cleared"));
    assert_eq!(qdiscs(&pair), without);
    leave().expect("as before");
    let pacer = htb_pacer(&pair).expect("what is left is cleared");
    assert_eq!(qdiscs(&pair).lines().count(), ours.lines().count(), "{}", qdiscs(&pair));
    drop(pacer);
    pair.a.command("tc qdisc add dev v0 root handle 7: htb default 1").expect("the device is free again");
    let theirs = qdiscs(&pair);
    let refusal = pair.a.run(|| HtbPacer::new("v0")).expect_err("not ours");
    assert!(refusal.to_string().contains("the device has another program's, which stays"), "{refusal}");
    assert!(!pair.a.run(|| HtbPacer::clear("v0")).expect("it may look"), "not ours");
    assert_eq!(qdiscs(&pair), theirs);
}

#[test]
fn pacer_uses_and_names_the_first_working_mechanism() {
    let _alone = alone();
    let Some(pair) = Pair::start() else { return };
    let Some(cgroup) = TestCgroup::make() else { return };
    let options = PacerOptions {
        cgroup: Some(cgroup.path().to_owned()),
        device: Some("v0".into()),
        ..PacerOptions::default()
    };
    let mut pacer = pair.a.run(move || Pacer::new(&options).expect("sockets at least"));
    if !has_all(&pacer) {
        return;
    }
    let (here, waiting) = (pair.foreign_load(Ipv::Four), pair.waiting_load(Ipv::Six, Some(&cgroup)));
    let (there, later) = (here.flow, waiting.flow);
    let mut set = |flow, limit| pacer.set(&[(flow, limit)]).pop().expect("one").expect("it can be held");
    assert_eq!(set(there, Limit::Rate(BitRate::mbps(20))), Some(Mechanism::Socket));
    assert_eq!(set(later, Limit::Rate(BitRate::mbps(20))), Some(Mechanism::Bpf));
    let loads = [here, waiting.start()];
    assert_run_at(&loads, BitRate::mbps(20));
    assert_eq!(set(later, Limit::None), Some(Mechanism::Bpf));
    assert_eq!(set(later, Limit::None), None);
    let limits: Vec<_> = pacer.limits().collect();
    assert_eq!(limits, [(there, BitRate::mbps(20), Mechanism::Socket)]);
    pacer.retain(|_| false);
    assert_eq!(pacer.mechanism(there), None);
    assert_are_faster_than(&loads, BitRate::mbps(20));
    drop(pacer);

    // Without BPF, flows that do not exist yet are limited by the last mechanism, HTB.
    let options = PacerOptions { bpf: false, device: Some("v0".into()), ..PacerOptions::default() };
    let mut pacer = pair.a.run(move || Pacer::new(&options).expect("as before"));
    let waiting = pair.waiting_load(Ipv::Four, None);
    let mut set = |limit| pacer.set(&[(waiting.flow, limit)]).pop().expect("one").expect("it can be held");
    assert_eq!(set(Limit::Rate(BitRate::mbps(20))), Some(Mechanism::Htb));
    assert_eq!(set(Limit::None), Some(Mechanism::Htb));
}

#[test]
fn bpf_restores_flows_above_the_32_bit_rate_limit() {
    let _alone = alone();
    let Some(pair) = Pair::start() else { return };
    let Some(cgroup) = TestCgroup::make() else { return };
    let Some(mut pacer) = bpf_pacer(&pair, &cgroup) else { return };
    let loads = [pair.foreign_load_in(Ipv::Four, Some(&cgroup))];
    let mut reader = pair.a.run(|| FlowReader::new().expect("sock_diag"));
    let mut limit = || reader.find(loads[0].flow).expect("asked").expect("running").pacing_limit;
    // The maximum rate, and the rate that counts as no limit.
    let most = BitRate::bps(8 * (u64::from(u32::MAX) - 1));
    for (rate, is_limit) in
        [(BitRate::mbps(20), true), (most, true), (BitRate::mbps(20), true), (BitRate::gbps(50), false)]
    {
        set_all_by_bpf(&mut pacer, &loads, Limit::Rate(rate));
        assert_eq!(limit(), is_limit.then_some(rate));
        assert_eq!(pacer.limits().collect::<Vec<_>>(), [(loads[0].flow, rate)]);
    }
    set_all_by_bpf(&mut pacer, &loads, Limit::None);
    assert_eq!((limit(), pacer.limits().count()), (None, 0));
}

#[test]
fn every_failed_finding_has_a_fix() {
    for finding in doctor() {
        println!("{finding:?}");
        assert_eq!(finding.ok, finding.fix.is_none(), "{finding:?}");
    }
}

/// Opens a flow at 100 kbit/s whose program has closed it with most of its data unsent. Also
/// returns its pacer and its other end.
fn closed_with_data(options: &PacerOptions) -> Option<(Pacer, TcpStream, FlowKey)> {
    let mut pacer = Pacer::new(options).expect("sockets at least");
    if !has_all(&pacer) {
        return None;
    }
    let (mut near, far, flow) = connected();
    let set = pacer.set(&[(flow, Limit::Rate(BitRate::bps(100_000)))]).pop().expect("one");
    assert_eq!(set.expect("it can be held"), Some(Mechanism::Socket));
    near.set_nonblocking(true).expect("ours");
    while near.write(&[7; 100_000]).is_ok() {}
    drop(near);
    assert_eq!(limit_of(flow), Some(BitRate::bps(100_000)), "it closes as fast as it may");
    Some((pacer, far, flow))
}

fn limit_of(flow: FlowKey) -> Option<BitRate> {
    let found = FlowReader::new().and_then(|mut reader| reader.find(flow));
    found.expect("asked").expect("there").pacing_limit
}

/// The descriptor cannot be duplicated, because no process has it any more.
#[test]
fn limit_changes_and_lifts_after_the_program_has_closed() {
    let Some(cgroup) = TestCgroup::make() else { return };
    let cgroup = Some(cgroup.path().to_owned());
    let options = PacerOptions { cgroup, ..PacerOptions::default() };
    let Some((mut pacer, _far, flow)) = closed_with_data(&options) else { return };
    let lifted = pacer.set(&[(flow, Limit::None)]).pop().expect("one");
    assert_eq!(lifted.expect("BPF reaches it"), Some(Mechanism::Bpf));
    assert_eq!((limit_of(flow), pacer.mechanism(flow)), (None, None));

    let Some((mut pacer, _far, flow)) = closed_with_data(&options) else { return };
    let slower = pacer.set(&[(flow, Limit::Rate(BitRate::bps(80_000)))]).pop().expect("one");
    assert_eq!(slower.expect("BPF reaches it"), Some(Mechanism::Bpf));
    assert_eq!(limit_of(flow), Some(BitRate::bps(80_000)));
    drop(pacer);
    assert_eq!(limit_of(flow), None);

    let Some((pacer, _far, flow)) = closed_with_data(&options) else { return };
    drop(pacer);
    assert_eq!(limit_of(flow), None);
}

#[test]
fn limit_that_could_not_be_lifted_stays_recorded() {
    let _alone = alone();
    let Some(pair) = Pair::start() else { return };
    pair.a.run(|| {
        let device = Some("lo".into());
        let options = PacerOptions { bpf: false, device, ..PacerOptions::default() };
        let Some((mut pacer, far, flow)) = closed_with_data(&options) else { return };
        for limit in [Limit::None, Limit::Rate(BitRate::mbps(100))] {
            let result = pacer.set(&[(flow, limit)]).pop().expect("one");
            assert!(matches!(result, Err(PaceError::NoOwner { .. })), "{result:?}");
            assert_eq!(pacer.mechanism(flow), Some(Mechanism::Socket));
        }
        // A reset ends the connection immediately.
        drop(far);
        assert_eq!(
            pacer.set(&[(flow, Limit::None)]).pop().expect("one").expect("nothing is left"),
            Some(Mechanism::Socket)
        );
        assert_eq!(pacer.mechanism(flow), None);
    });
}

fn connected() -> (TcpStream, TcpStream, FlowKey) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let near = TcpStream::connect(listener.local_addr().expect("bound")).expect("listening");
    let (far, _) = listener.accept().expect("connected");
    let flow = FlowKey::new(near.local_addr().expect("connected"), near.peer_addr().expect("connected"));
    (near, far, flow)
}

/// Opens a connection with the same addresses as a closed one, immediately: the reset leaves no
/// socket in TIME_WAIT.
///
/// An address is free once no descriptor of the closed socket is left. A pacer of a parallel test
/// may hold one, because it briefly duplicates every descriptor of this process. A separate address
/// avoids the ports of other tests.
fn connected_again(listener: &TcpListener, local: Option<SocketAddr>) -> (TcpStream, TcpStream, Connection) {
    use rustix::net::{AddressFamily, SocketType, bind, connect, socket, sockopt};
    let near = socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
    sockopt::set_socket_linger(&near, Some(Duration::ZERO)).expect("ours");
    let until = Instant::now() + Duration::from_secs(60);
    while let Err(error) = bind(&near, &local.unwrap_or(([127, 8, 1, 1], 0).into())) {
        assert!(error == rustix::io::Errno::ADDRINUSE && Instant::now() < until, "{local:?}: {error}");
        std::thread::sleep(Duration::from_millis(10));
    }
    connect(&near, &listener.local_addr().expect("bound")).expect("listening");
    let (near, (far, _)) = (TcpStream::from(near), listener.accept().expect("connected"));
    let flow = FlowKey::new(near.local_addr().expect("connected"), near.peer_addr().expect("connected"));
    let found = FlowReader::new().and_then(|mut reader| reader.find(flow));
    (near, far, found.expect("asked").expect("there").connection())
}

/// #18: a limit that was set late applied to the next connection with the same addresses.
fn limits_are_for_one_connection(options: &PacerOptions, mechanism: Mechanism) {
    let mut pacer = match Pacer::new(options) {
        Ok(pacer) => pacer,
        Err(none) => return none.missing.iter().for_each(skip_without),
    };
    let mut set = |connection, limit| pacer.set(&[(connection, limit)]).pop().expect("one");
    let (slow, fast) = (Limit::Rate(BitRate::mbps(5)), Limit::Rate(BitRate::mbps(7)));
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let (near, far, first) = connected_again(&listener, None);
    let local = near.local_addr().expect("connected");
    assert_eq!(set(first, slow).expect("it is there"), Some(mechanism));
    assert_eq!(pacing_limit(&near).expect("ours"), Some(BitRate::mbps(5)));
    drop((near, far));
    let (near, _far, second) = connected_again(&listener, Some(local));
    assert!(second.flow == first.flow && second.cookie != first.cookie);
    let limit = || pacing_limit(&near).expect("ours");
    assert_eq!(limit(), None);
    // The change is too late, which only BPF cannot notice.
    let late = set(first, fast);
    let is_told = matches!(late, Err(PaceError::NoSuchFlow { .. }));
    assert!(is_told || mechanism == Mechanism::Bpf, "{late:?}");
    assert_eq!(limit(), None);
    assert_eq!(set(second, fast).expect("it is there"), Some(mechanism));
    assert_eq!(limit(), Some(BitRate::mbps(7)));
    // The first connection's limit does not affect the second one's, which stays in force.
    assert_eq!(set(first, Limit::None).expect("it has none"), None);
    assert_eq!(limit(), Some(BitRate::mbps(7)));
    assert_eq!(set(second, Limit::None).expect("it is there"), Some(mechanism));
    assert_eq!(limit(), None);
}

#[test]
fn limit_by_socket_applies_to_one_connection_only() {
    limits_are_for_one_connection(&PacerOptions { bpf: false, ..PacerOptions::default() }, Mechanism::Socket);
}

#[test]
fn limit_by_bpf_applies_to_one_connection_only() {
    let Some(cgroup) = TestCgroup::make() else { return };
    let cgroup = Some(cgroup.path().to_owned());
    let options = PacerOptions { socket: false, cgroup, ..PacerOptions::default() };
    limits_are_for_one_connection(&options, Mechanism::Bpf);
}

#[test]
fn lifting_a_limit_restores_the_programs_own_rate() {
    let (near, _far, flow) = connected();
    set_pacing_limit(&near, Limit::Rate(BitRate::gbps(80))).expect("ours");
    let mut pacer = SocketPacer::new().expect("a pacer");
    set(&mut pacer, flow, Limit::Rate(BitRate::mbps(5)));
    set(&mut pacer, flow, Limit::Rate(BitRate::mbps(6)));
    assert_eq!(pacing_limit(&near).expect("ours"), Some(BitRate::mbps(6)));
    set(&mut pacer, flow, Limit::None);
    assert_eq!(pacing_limit(&near).expect("ours"), Some(BitRate::gbps(80)));
    set_pacing_limit(&near, Limit::None).expect("ours");
    assert_eq!(pacing_limit(&near).expect("ours"), None);
}

#[test]
fn moved_socket_is_found_and_closed_one_is_not() {
    let (near, far, flow) = connected();
    let mut pacer = SocketPacer::new().expect("a pacer");
    set(&mut pacer, flow, Limit::Rate(BitRate::mbps(5)));
    let moved = near.try_clone().expect("a duplicate");
    drop(near);
    set(&mut pacer, flow, Limit::Rate(BitRate::mbps(7)));
    assert_eq!(pacing_limit(&moved).expect("ours"), Some(BitRate::mbps(7)));
    set(&mut pacer, flow, Limit::None);
    assert_eq!(pacing_limit(&moved).expect("ours"), None);
    set(&mut pacer, flow, Limit::Rate(BitRate::mbps(7)));
    drop(far);
    drop(moved);
    let again = &pacer.set(&[(flow, Limit::Rate(BitRate::mbps(8)))])[0];
    assert!(matches!(again, Err(PaceError::NoSuchFlow { .. } | PaceError::NoOwner { .. })), "{again:?}");
    set(&mut pacer, flow, Limit::None);
    assert_eq!(pacer.limits().count(), 0);
}

#[test]
fn missing_flow_and_bad_rate_affect_no_other_flow() {
    let (near, _far, flow) = connected();
    let nobody = FlowKey::new("127.0.0.1:1".parse().expect("good"), "127.0.0.1:1".parse().expect("good"));
    let mut pacer = SocketPacer::new().expect("a pacer");
    let results = pacer.set(&[
        (nobody, Limit::Rate(BitRate::mbps(1))),
        (flow, Limit::Rate(BitRate::bps(1))),
        (flow, Limit::Rate(BitRate::mbps(1))),
        (nobody, Limit::None),
    ]);
    assert!(matches!(results[0], Err(PaceError::NoSuchFlow { flow }) if flow == nobody), "{results:?}");
    assert!(matches!(results[1], Err(PaceError::Rate { .. })), "{results:?}");
    assert!(results[2].is_ok() && results[3].is_ok(), "{results:?}");
    assert_eq!(pacing_limit(&near).expect("ours"), Some(BitRate::mbps(1)));
}

#[test]
fn listing_shows_sent_bytes_and_mechanism_within_its_bound() {
    let (mut near, far, flow) = connected();
    rustix::net::sockopt::set_tcp_congestion(&near, "reno").expect("always there");
    near.write_all(&[7; 100_000]).expect("connected");
    let mut reader = FlowReader::new().expect("sock_diag");
    // Data over loopback is acknowledged immediately, but perhaps on another processor.
    let state = (0..4_000).find_map(|_| {
        std::thread::sleep(Duration::from_millis(5));
        let listing = reader.list(FLOWS_MAX).expect("asked");
        listing
            .flows
            .into_iter()
            .find(|s| s.flow == flow && s.bytes_acked.is_some_and(|n| n.as_u64() >= 50_000))
    });
    let state = state.expect("it has sent");
    println!("{state:?}");
    assert_eq!(reader.find(flow).expect("asked").map(|s| s.flow), Some(flow));
    assert_eq!(state.congestion_control.as_deref(), Some("reno"));
    assert!(state.may_send && state.rtt.is_some());
    let (sent, waiting) =
        (state.bytes_sent.expect("4.19 or later"), state.bytes_not_sent.expect("4.6 or later"));
    assert!(sent.as_u64() + waiting.as_u64() >= 100_000, "{state:?}");
    let short = reader.list(1).expect("asked");
    assert!(short.flows.len() == 1 && short.left_out > 0, "{short:?}");
    // The requested flow is listed regardless of the number of other flows.
    let short = reader.list_with(0, |listed| listed == flow).expect("asked");
    assert!(short.flows.len() == 1 && short.flows[0].flow == flow && short.left_out > 0, "{short:?}");
    let mapped = |a: SocketAddr| match a {
        SocketAddr::V4(v4) => SocketAddr::from((v4.ip().to_ipv6_mapped(), v4.port())),
        v6 => v6,
    };
    let both = FlowKey::new(mapped(flow.local), mapped(flow.remote));
    assert!(reader.find(both).expect("asked").is_some());
    // A half-closed connection can still send.
    far.shutdown(Shutdown::Write).expect("it is open");
    std::thread::sleep(Duration::from_millis(50));
    assert!(reader.find(flow).expect("asked").expect("it is there").may_send);
    near.shutdown(Shutdown::Write).expect("it is open");
    let may_send = |state: Option<FlowState>| state.is_some_and(|state| state.may_send);
    assert!(!may_send(reader.find(flow).expect("asked")));
    drop((near, far));
}

/// Not a test, but the program that [`Pair::foreign_load`] starts.
#[test]
fn the_sender_of_other_tests() {
    net::send_if_asked();
}

/// Not a test, but the program that [`fuse::Attacker`] starts.
#[test]
fn the_attacker_of_other_tests() {
    fuse::attack_if_asked();
}

/// #17: closing a duplicate of the attacker's file never returned, which stopped all limits.
#[test]
fn hung_file_system_delays_no_limit() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let attacker = fuse::Attacker::start(listener.local_addr().expect("bound"));
    let mut attacker = match attacker {
        Ok(attacker) => attacker,
        Err(why) => return skip(&why),
    };
    let (_far, _) = listener.accept().expect("it has connected");
    let (near, _other, flow) = connected();
    let mut pacer = SocketPacer::new().expect("a pacer");
    set(&mut pacer, flow, Limit::Rate(BitRate::mbps(5)));
    set(&mut pacer, attacker.flow, Limit::Rate(BitRate::mbps(5)));
    attacker.strike();
    let begun = Instant::now();
    set(&mut pacer, flow, Limit::Rate(BitRate::mbps(6)));
    set(&mut pacer, attacker.flow, Limit::Rate(BitRate::mbps(6)));
    drop(pacer);
    // A busy machine is slow, but a hung close would last for ever.
    assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
    assert_eq!((pacing_limit(&near).expect("ours"), limit_of(attacker.flow)), (None, None));
}

/// Inputs whose names begin with `bad` must be refused, and all others accepted.
#[test]
fn fuzz_corpora_are_accepted_unless_named_bad() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/pace_btf");
    let mut count = 0;
    for entry in std::fs::read_dir(&folder).expect("the corpus is part of the repository") {
        let path = entry.expect("the folder can be listed").path();
        let name =
            path.file_name().and_then(|n| n.to_str()).expect("corpus files have plain names").to_owned();
        let bytes = std::fs::read(&path).expect("the corpus can be read");
        assert_eq!(exercise_btf(&bytes), !name.starts_with("bad"), "{name}");
        count += 1;
    }
    assert!(count >= 5, "{}", folder.display());
}
