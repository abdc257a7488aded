//! Tests of the emulator against the real kernel. Every test builds its own network, and its
//! tolerance includes the run's recorded lateness.
//!
//! If the machine permits no namespaces or TUN devices, the tests print the reason and count as
//! skipped.

#![allow(clippy::disallowed_methods, reason = "tests of a driver: they use the clock, threads and sockets")]

mod circuits;
mod start;

use std::io::{BufRead, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration as StdDuration, Instant as WallInstant};

use anabranch_emu::*;
use anabranch_fabric::switch::ecmp::Ecmp;
use anabranch_fabric::{Policy, PortSettings};
use anabranch_graph::{LinkProperties, Topology};
use anabranch_testing::skip::skip;
use anabranch_units::{BitRate, ByteCount, Duration, LinkId, SiteId};
use start::start_or_skip;

const A: SiteId = SiteId(0);
const B: SiteId = SiteId(1);
const THERE: LinkId = LinkId(0);

/// Serialises the tests, because two emulations at once would make each other late.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ONE_AT_A_TIME.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Starts the emulation. Returns `None`, with the reason printed, if it fails or if this test's
/// threads cannot enter its sites.
fn start(topology: &Topology, options: EmulationOptions) -> Option<Emulation> {
    let emulation = start_or_skip(topology, options)?;
    match emulation.run_in(A, || ()) {
        Ok(()) => Some(emulation),
        Err(error) => {
            skip(&format!(
                "{error}: only programs can enter a user namespace, and this test's threads would have to"
            ));
            None
        }
    }
}

fn pair(rate: BitRate, delay: Duration) -> Topology {
    let mut topology = Topology::new("pair");
    let (a, b) = (topology.add_site("a", None).expect("new"), topology.add_site("b", None).expect("new"));
    topology.add_cable(a, b, LinkProperties::new(rate, delay)).expect("a good cable");
    topology
}

fn udp(emulation: &Emulation, site: SiteId, address: IpAddr, port: u16) -> UdpSocket {
    let socket =
        emulation.run_in(site, || UdpSocket::bind((address, port))).expect("site entered").expect("bound");
    socket.set_read_timeout(Some(PATIENCE)).expect("a timeout above zero");
    socket
}

/// Time limit of every wait. It only ends a test that hangs.
const PATIENCE: StdDuration = StdDuration::from_secs(60);

fn set_dscp(socket: &impl std::os::fd::AsRawFd, dscp: i32) {
    set_tos(socket, dscp << 2);
}

fn set_tos(socket: &impl std::os::fd::AsRawFd, tos: i32) {
    // SAFETY: the option is one int, passed with its size.
    let result = unsafe {
        libc::setsockopt(socket.as_raw_fd(), libc::IPPROTO_IP, libc::IP_TOS, (&raw const tos).cast(), 4)
    };
    assert_eq!(result, 0);
}

/// Gives this thread priority over ordinary threads, if permitted, because a measuring thread must
/// not wait for a processor.
fn be_prompt() {
    // SAFETY: all-zero bytes are a valid sched_param; thread 0 is the calling one.
    unsafe {
        let mut param: libc::sched_param = std::mem::zeroed();
        param.sched_priority = 1;
        libc::sched_setscheduler(0, libc::SCHED_RR | libc::SCHED_RESET_ON_FORK, &param);
    }
}

/// Returns every received datagram to its sender until `stop`.
fn echo(socket: &UdpSocket, stop: &AtomicBool) {
    be_prompt();
    socket.set_read_timeout(Some(StdDuration::from_millis(100))).expect("a timeout above zero");
    let mut buffer = [0; 2_000];
    while !stop.load(Ordering::Relaxed) {
        if let Ok((n, from)) = socket.recv_from(&mut buffer) {
            socket.send_to(&buffer[..n], from).expect("the way back is there");
        }
    }
}

/// Round-trip times of `count` consecutive packets with an IP size of `size` bytes; lost packets
/// are left out.
fn round_trips(socket: &UdpSocket, to: SocketAddr, size: usize, count: u32) -> Vec<StdDuration> {
    be_prompt();
    let payload = vec![7; size - 28];
    let mut buffer = [0; 2_000];
    let mut times = Vec::new();
    for _ in 0..count {
        let sent = WallInstant::now();
        if socket.send_to(&payload, to).is_ok() && socket.recv_from(&mut buffer).is_ok() {
            times.push(sent.elapsed());
        }
    }
    times.sort();
    times
}

/// Sends continuously until `stop`.
fn pump(mut stream: TcpStream, stop: &AtomicBool) {
    let chunk = vec![0; 64 << 10];
    while !stop.load(Ordering::Relaxed) && stream.write_all(&chunk).is_ok() {}
}

/// Measures round trips of 1,000 bytes over a link of 10 Mbit/s and 20 ms. Asserts that none is
/// sooner than the link allows. Returns the median beyond that time, and the run's report.
fn round_trips_of_20_ms() -> Option<(StdDuration, Report)> {
    let _alone = alone();
    let emulation = start(&pair(BitRate::mbps(10), Duration::from_ms(20)), EmulationOptions::default())?;
    let (a, b) = (emulation.site_address(A), emulation.site_address(B));
    let (near, far) = (udp(&emulation, A, a, 0), udp(&emulation, B, b, 7_000));
    let stop = AtomicBool::new(false);
    let times = std::thread::scope(|scope| {
        scope.spawn(|| echo(&far, &stop));
        let times = round_trips(&near, (b, 7_000).into(), 1_000, 25);
        stop.store(true, Ordering::Relaxed);
        times
    });
    let report = emulation.report().expect("running");
    println!("{times:?}\n{report:?}");
    // 1,000 bytes at 10 Mbit/s take 0.8 ms each way.
    let expected = StdDuration::from_micros(2 * (20_000 + 800));
    assert_eq!(times.len(), 25);
    assert!(times[0] >= expected, "{:?} is sooner than the link allows", times[0]);
    Some((times[12] - expected, report))
}

/// Whether the figures of a run are trusted. Prints the reason if they are not.
fn is_trusted(report: &Report) -> bool {
    if !report.trusted {
        skip(&format!("this machine was too busy: {:?}", report.why));
    }
    report.trusted
}

/// Time by which the median of round trips may be late. The threads at both ends also have to wake
/// up, hence the fixed part.
fn slack(report: &Report) -> StdDuration {
    StdDuration::from_secs_f64(2.0 * report.lateness_us_p99 / 1e6) + StdDuration::from_millis(3)
}

#[test]
fn no_round_trip_is_sooner_than_delay_and_serialisation() {
    round_trips_of_20_ms();
}

#[test]
#[ignore = "it measures: `make claims`"]
fn round_trip_takes_twice_the_delay_and_serialisation() {
    let Some((late, report)) = round_trips_of_20_ms() else { return };
    if is_trusted(&report) {
        assert!(late <= slack(&report), "the median is {late:?} late");
    }
}

/// Measures the goodput of TCP over a link of 100 Mbit/s, in Mbit/s.
fn rate_over_100_mbps() -> Option<(f64, Report)> {
    let _alone = alone();
    let emulation = start(&pair(BitRate::mbps(100), Duration::from_ms(5)), EmulationOptions::default())?;
    let b = emulation.site_address(B);
    let listener = emulation.run_in(B, || TcpListener::bind((b, 7_001))).expect("entered").expect("bound");
    let stop = AtomicBool::new(false);
    let rate_mbps = std::thread::scope(|scope| {
        scope.spawn(|| {
            let stream =
                emulation.run_in(A, || TcpStream::connect((b, 7_001))).expect("entered").expect("connected");
            pump(stream, &stop);
        });
        let (mut stream, _) = listener.accept().expect("a connection");
        let mut buffer = vec![0; 256 << 10];
        let (mut bytes, start) = (0, WallInstant::now());
        // The measurement starts after slow start.
        let (mut counted_from, mut counting) = (start, false);
        while start.elapsed() < StdDuration::from_millis(3_000) {
            bytes += stream.read(&mut buffer).expect("the sender lives") as u64;
            if !counting && start.elapsed() > StdDuration::from_millis(500) {
                (bytes, counted_from, counting) = (0, WallInstant::now(), true);
            }
        }
        stop.store(true, Ordering::Relaxed);
        drop(listener);
        (bytes * 8) as f64 / counted_from.elapsed().as_secs_f64() / 1e6
    });
    let report = emulation.report().expect("running");
    println!("{rate_mbps:.1} Mbit/s\n{report:?}");
    Some((rate_mbps, report))
}

#[test]
fn tcp_carries_data_over_a_link() {
    // A reader that stops for a while counts the data of that time in an instant.
    let Some((rate_mbps, _)) = rate_over_100_mbps() else { return };
    assert!(rate_mbps > 0.0, "{rate_mbps} Mbit/s");
}

#[test]
#[ignore = "it measures: `make claims`"]
fn tcp_fills_a_link_to_within_a_tenth() {
    let Some((rate_mbps, report)) = rate_over_100_mbps() else { return };
    // The headers are 52 of 1,500 bytes, so the goodput is at most 96.5 Mbit/s.
    if is_trusted(&report) {
        assert!((90.0..=96.6).contains(&rate_mbps), "{rate_mbps} Mbit/s; {report:?}");
    }
}

/// The sample of the claim below: a probe of high priority passes a queue that bulk traffic keeps
/// full.
#[test]
fn high_priority_probes_pass_bulk_traffic() {
    probe_beside_bulk_traffic(false);
}

#[test]
#[ignore = "it measures: `make claims`"]
fn bulk_traffic_does_not_delay_a_high_priority_probe() {
    probe_beside_bulk_traffic(true);
}

fn probe_beside_bulk_traffic(is_measured: bool) {
    let _alone = alone();
    let Some(emulation) = start(&pair(BitRate::mbps(20), Duration::from_ms(5)), EmulationOptions::default())
    else {
        return;
    };
    let (a, b) = (emulation.site_address(A), emulation.site_address(B));
    let (near, plain) = (udp(&emulation, A, a, 0), udp(&emulation, A, a, 0));
    // Bulk traffic delays or drops the other probes.
    plain.set_read_timeout(Some(StdDuration::from_millis(400))).expect("above zero");
    set_dscp(&near, 46);
    let far = udp(&emulation, B, b, 7_000);
    set_dscp(&far, 46);
    let sink = udp(&emulation, B, b, 7_002);
    let bulk = udp(&emulation, A, a, 0);
    let stop = AtomicBool::new(false);
    let (high, same, queued) = std::thread::scope(|scope| {
        scope.spawn(|| echo(&far, &stop));
        scope.spawn(|| {
            // 1.5 times the link's rate, in bursts of a millisecond.
            let payload = [0; 1_472];
            let (start, mut sent) = (WallInstant::now(), 0);
            while !stop.load(Ordering::Relaxed) {
                while sent < start.elapsed().as_micros() * 30 / 12_000 {
                    let _ = bulk.send_to(&payload, sink.local_addr().expect("bound"));
                    sent += 1;
                }
                std::thread::sleep(StdDuration::from_millis(1));
            }
        });
        std::thread::sleep(StdDuration::from_millis(400));
        let high = round_trips(&near, (b, 7_000).into(), 100, 30);
        let same = round_trips(&plain, (b, 7_000).into(), 100, 10);
        let queued = emulation.counters().expect("running")[THERE.index()].queue_bytes;
        stop.store(true, Ordering::Relaxed);
        (high, same, queued)
    });
    let report = emulation.report().expect("running");
    println!("high {high:?}\nsame {same:?}\nqueued {queued}\n{report:?}");
    assert_eq!(high.len(), 30);
    if !is_measured || !is_trusted(&report) {
        return;
    }
    // 5 ms of delay and 100 bytes each way, and at most one packet of 1,500 bytes in transmission:
    // 10.68 ms.
    assert!(high[15] <= StdDuration::from_micros(10_680) + slack(&report), "median {:?}", high[15]);
    // The queue of 250 kB takes 100 ms; probes behind it are lost or late by that time.
    assert!(!same.is_empty(), "of ten that find a queue full in one case of three, all were lost");
    assert!(same.iter().all(|&t| t > StdDuration::from_millis(60)), "{same:?}");
    assert!(queued > 200_000, "{queued}");
}

#[test]
fn link_passes_no_packet_while_down() {
    let _alone = alone();
    let Some(emulation) = start(&pair(BitRate::mbps(100), Duration::from_ms(1)), EmulationOptions::default())
    else {
        return;
    };
    let (a, b) = (emulation.site_address(A), emulation.site_address(B));
    let (near, far) = (udp(&emulation, A, a, 0), udp(&emulation, B, b, 7_000));
    let stop = AtomicBool::new(false);
    let handle = emulation.handle();
    let state = handle.link_state(THERE).expect("running");
    std::thread::scope(|scope| {
        scope.spawn(|| echo(&far, &stop));
        let count = |n| round_trips(&near, (b, 7_000).into(), 100, n).len();
        assert_eq!(count(3), 3);
        handle.set_link(THERE, LinkState { up: false, ..state }).expect("in range");
        near.set_read_timeout(Some(StdDuration::from_millis(50))).expect("above zero");
        assert_eq!(count(3), 0);
        near.set_read_timeout(Some(PATIENCE)).expect("above zero");
        assert_eq!(handle.counters().expect("running")[THERE.index()].dropped_link_down, 3);
        handle.set_link(THERE, state).expect("in range");
        assert_eq!(count(3), 3);
        // A new delay applies at once.
        handle.set_link(THERE, LinkState { delay: Duration::from_ms(30), ..state }).expect("in range");
        assert!(
            round_trips(&near, (b, 7_000).into(), 100, 1).iter().all(|t| *t >= StdDuration::from_millis(31))
        );
        stop.store(true, Ordering::Relaxed);
    });
    let slow = LinkState { rate: BitRate::bps(1), ..state };
    assert!(matches!(handle.set_link(THERE, slow), Err(EmuError::Link { link: THERE, .. })));
    let bursts = LinkState { loss_ppm: 800_000, loss_burst: 4, ..state };
    handle.set_link(THERE, bursts).expect("in range");
    assert_eq!(handle.link_state(THERE).expect("running"), bursts);
    let endless = LinkState { loss_ppm: 800_001, ..bursts };
    assert!(matches!(handle.set_link(THERE, endless), Err(EmuError::Link { link: THERE, .. })));
    assert!(matches!(handle.set_link(LinkId(2), state), Err(EmuError::UnknownLink { links: 2, .. })));
    drop(emulation);
    assert!(matches!(handle.counters(), Err(EmuError::Ended)));
}

#[test]
fn link_address_uses_its_link_despite_longer_delay() {
    let _alone = alone();
    // a to c: 30 ms directly (links 0 and 1), 2 x 5 ms through b (links 2 to 5).
    let mut topology = Topology::new("triangle");
    let [a, b, c] = ["a", "b", "c"].map(|name| topology.add_site(name, None).expect("new"));
    for (u, v, ms) in [(a, c, 30), (a, b, 5), (b, c, 5)] {
        let properties = LinkProperties::new(BitRate::mbps(100), Duration::from_ms(ms));
        topology.add_cable(u, v, properties).expect("a good cable");
    }
    let Some(emulation) = start(&topology, EmulationOptions::default()) else { return };
    let near = udp(&emulation, a, emulation.site_address(a), 0);
    let (direct, routed) = (emulation.link_address(LinkId(0)), emulation.site_address(c));
    let (at_link, at_site) = (udp(&emulation, c, direct, 7_000), udp(&emulation, c, routed, 7_000));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| echo(&at_link, &stop));
        scope.spawn(|| echo(&at_site, &stop));
        let pinned = round_trips(&near, (direct, 7_000).into(), 100, 5)[2];
        let shortest = round_trips(&near, (routed, 7_000).into(), 100, 5)[2];
        stop.store(true, Ordering::Relaxed);
        println!("pinned {pinned:?}, shortest {shortest:?}");
        assert!(pinned >= StdDuration::from_millis(60));
        assert!(shortest >= StdDuration::from_millis(20));
    });
    let counters = emulation.counters().expect("running");
    let sent: Vec<_> = counters.iter().map(|c| c.sent_packets).collect();
    assert_eq!(sent, [5, 5, 5, 5, 5, 5]);
}

/// Ten datagrams sent at once to a link on which each takes 40 ms: the first is sent immediately,
/// and six find at most 5 kB in the queue. If the sending thread is delayed, fewer are marked.
#[test]
fn port_marks_ecn_capable_packets_for_the_kernel() {
    let _alone = alone();
    let topology = pair(BitRate::bps(200_000), Duration::ZERO);
    let marking = PortSettings {
        mark_bytes: Some(ByteCount::new(5_000)),
        ..PortSettings::new(BitRate::bps(200_000), Duration::ZERO, ByteCount::kib(64))
    };
    let options = EmulationOptions { ports: Some(vec![marking; 2]), ..EmulationOptions::default() };
    let Some(emulation) = start(&topology, options) else { return };
    let (to, from) = (emulation.site_address(B), emulation.site_address(A));
    let (sender, receiver) = (udp(&emulation, A, from, 0), udp(&emulation, B, to, 9));
    let marked = || emulation.counters().expect("running")[THERE.index()].marked_packets;
    // ECT(0), and a packet that must not be marked (RFC 3168, section 5).
    let mut of_capable = 0;
    for ecn in [0b10; 20].into_iter().chain([0b00]) {
        if ecn == 0b10 && of_capable > 0 {
            continue;
        }
        set_tos(&sender, ecn);
        let before = marked();
        for _ in 0..10 {
            sender.send_to(&[0; 972], (to, 9)).expect("sent");
        }
        // The kernel would drop a packet with a wrong checksum.
        for _ in 0..10 {
            receiver.recv(&mut [0; 1_000]).expect("all arrive");
        }
        let got = marked() - before;
        assert!(got <= if ecn == 0b10 { 3 } else { 0 }, "{ecn}: {got}");
        of_capable += got;
    }
    assert!(of_capable > 0, "none of 20 times ten");
}

#[test]
fn flows_spread_over_equal_paths_and_each_keeps_one() {
    let _alone = alone();
    let mut topology = Topology::new("diamond");
    let sites = ["a", "b", "left", "right"].map(|name| topology.add_site(name, None).expect("names differ"));
    let properties = LinkProperties::new(BitRate::mbps(10), Duration::from_ms(1));
    for (from, to) in [(0, 2), (0, 3), (2, 1), (3, 1)] {
        topology.add_cable(sites[from], sites[to], properties.clone()).expect("a good cable");
    }
    let routes = anabranch_graph::Routes::shortest(&topology, &[1; 8], &sites);
    let switching = topology.site_ids().map(|site| Switching {
        next: topology.site_ids().map(|dst| routes.next(site, dst).to_vec()).collect(),
        policy: Policy::Ecmp(Ecmp::new(u64::from(site.0))),
    });
    let options = EmulationOptions { switching: Some(switching.collect()), ..EmulationOptions::default() };
    let Some(over_left) = flows_over_the_first_link(&topology, options) else { return };
    // Binomial distribution of 40 at one half: five standard deviations are 16.
    assert!((4..=36).contains(&over_left), "{over_left} of 40");
}

#[test]
fn flows_spread_over_equal_paths_of_switches() {
    let _alone = alone();
    for is_switch in [true, false] {
        let mut topology = Topology::new("diamond");
        let mut add = |name, is_switch| {
            if is_switch { topology.add_switch(name) } else { topology.add_site(name, None) }
                .expect("names differ")
        };
        let sites = [add("a", false), add("b", false), add("left", is_switch), add("right", is_switch)];
        let properties = LinkProperties::new(BitRate::mbps(10), Duration::from_ms(1));
        for (from, to) in [(0, 2), (0, 3), (2, 1), (3, 1)] {
            topology.add_cable(sites[from], sites[to], properties.clone()).expect("a good cable");
        }
        let Some(over_left) = flows_over_the_first_link(&topology, EmulationOptions::default()) else {
            return;
        };
        let expected = if is_switch { 4..=36 } else { 40..=40 };
        assert!(expected.contains(&over_left), "{over_left} of 40");
    }
}

/// Sends forty flows from the first site to the second. Returns the number that leave by the first
/// link, and checks that each flow keeps its path.
fn flows_over_the_first_link(topology: &Topology, options: EmulationOptions) -> Option<u64> {
    let emulation = start(topology, options)?;
    let (to, from) = (emulation.site_address(B), emulation.site_address(A));
    let receiver = udp(&emulation, B, to, 9);
    let mut over_left = 0;
    let sent_left = || emulation.counters().expect("running")[0].sent_packets;
    for _ in 0..40 {
        let (sender, before) = (udp(&emulation, A, from, 0), sent_left());
        for _ in 0..3 {
            sender.send_to(&[0; 10], (to, 9)).expect("sent");
            receiver.recv(&mut [0; 10]).expect("it arrives");
        }
        let sent = sent_left() - before;
        assert!(sent == 0 || sent == 3, "a flow on two paths: {sent} of 3");
        over_left += sent / 3;
    }
    Some(over_left)
}

/// Body of a separate process that `nothing_is_left_after_the_emulating_process_is_killed` starts.
/// It builds a network, starts a background program, prints its state, and waits to be killed.
#[test]
fn child_of_the_kill_test() {
    if std::env::var_os("ANABRANCH_EMU_KILL_TEST").is_none() {
        return;
    }
    let Some(emulation) = start_or_skip(&pair(BitRate::mbps(1), Duration::ZERO), EmulationOptions::default())
    else {
        println!("\nSKIP");
        return;
    };
    let (mut shell, ready) = held_site(&emulation);
    println!("{ready}");
    // Runs until the kill, or for at most 1,002 seconds.
    let _ = shell.wait();
}

/// All processes that are in network namespace `name` ("net:[N]") or hold a descriptor to it.
fn holders(name: &str) -> Vec<String> {
    let links = |dir: String| std::fs::read_dir(dir).into_iter().flatten().flatten().map(|e| e.path());
    links("/proc".into())
        .filter(|p| p.file_name().is_some_and(|n| n.to_string_lossy().bytes().all(|b| b.is_ascii_digit())))
        .flat_map(|p| links(format!("{}/fd", p.display())).chain([p.join("ns/net")]).collect::<Vec<_>>())
        .filter(|p| std::fs::read_link(p).is_ok_and(|to| to.to_string_lossy() == name))
        .map(|p| p.display().to_string())
        .collect()
}

/// Starts two programs in site A that hold its namespace, the second in another session. The
/// returned line names both processes and the namespace, for [`kill_test`].
fn held_site(emulation: &Emulation) -> (Child, String) {
    let mut shell = Command::new("sh");
    shell.args(["-c", "setsid sleep 1001 & echo $!; readlink /proc/self/ns/net; exec sleep 1002"]);
    shell.stdout(Stdio::piped());
    let mut shell = emulation.spawn(A, shell).expect("sh is there");
    let mut lines = std::io::BufReader::new(shell.stdout.take().expect("piped")).lines();
    let (background, namespace) = (lines.next(), lines.next());
    let (Some(Ok(background)), Some(Ok(namespace))) = (background, namespace) else {
        panic!("two lines expected")
    };
    let ready = format!("\nREADY {} {background} {namespace}", shell.id());
    (shell, ready)
}

/// Runs the test `name` in another process with `variable` set, and kills the process once it
/// prints the line of [`held_site`]. Checks that its programs and its namespace disappear. Returns
/// false if the machine cannot emulate.
fn kill_test(name: &str, variable: &str) -> bool {
    let mut child = Command::new(std::env::current_exe().expect("this test"))
        .args(["--exact", name, "--nocapture"])
        .env(variable, "1")
        .stdout(Stdio::piped())
        .spawn()
        .expect("this test starts again");
    let mut lines =
        std::io::BufReader::new(child.stdout.take().expect("piped")).lines().map_while(Result::ok);
    let line = lines.find(|l| l == "SKIP" || l.starts_with("READY ")).expect("the child says how it goes");
    if line == "SKIP" {
        child.wait().expect("our child");
        skip("no emulation here");
        return false;
    }
    let fields: Vec<_> = line.split(' ').collect();
    let namespace = fields[3];
    assert!(holders(namespace).len() >= 3, "{:?}", holders(namespace));
    // After SIGKILL, none of our code runs in that process any more.
    child.kill().expect("our child");
    child.wait().expect("our child");
    let deadline = WallInstant::now() + PATIENCE;
    while !holders(namespace).is_empty() && WallInstant::now() < deadline {
        std::thread::sleep(StdDuration::from_millis(10));
    }
    assert_eq!(holders(namespace), [""; 0], "namespace {namespace} is still held");
    for pid in &fields[1..3] {
        // A zombie that its adoptive parent has not yet reaped has no command line.
        let left = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        assert_eq!(left, "", "process {pid} still runs");
    }
    true
}

#[test]
fn nothing_is_left_after_the_emulating_process_is_killed() {
    let _alone = alone();
    kill_test("child_of_the_kill_test", "ANABRANCH_EMU_KILL_TEST");
}

#[test]
fn emulation_works_inside_a_user_namespace() {
    let _alone = alone();
    // Every kernel has Reno and, unlike other congestion controls, permits it in every namespace.
    let options = EmulationOptions {
        isolation: Some(Isolation::UserNamespace),
        congestion_control: Some("reno".into()),
        tcp_buffer_bytes_max: Some(ByteCount::mib(16)),
        ..EmulationOptions::default()
    };
    let Some(emulation) = start_or_skip(&pair(BitRate::mbps(10), Duration::from_ms(1)), options) else {
        return;
    };
    assert_eq!((emulation.isolation(), emulation.congestion_control()), (Isolation::UserNamespace, "reno"));
    let script = "readlink /proc/self/ns/user; cat /proc/self/uid_map /proc/sys/net/ipv4/tcp_congestion_control \
                  /proc/sys/net/ipv4/tcp_rmem; cat /proc/net/dev";
    let mut shell = Command::new("sh");
    shell.args(["-c", script]).stdout(Stdio::piped());
    let output = emulation.spawn(B, shell).expect("sh is there").wait_with_output().expect("our child");
    let output = String::from_utf8_lossy(&output.stdout);
    let ours = std::fs::read_link("/proc/self/ns/user").expect("proc is there");
    assert!(!output.starts_with(&*ours.to_string_lossy()), "{output}");
    assert!(
        output.contains("\nreno\n") && output.contains("16777216") && output.contains("ab0:"),
        "{output}"
    );
    // Packets are exchanged between programs here, because threads cannot enter a user namespace.
    let talk = |site, role: &str| {
        let mut talk = Command::new(std::env::current_exe().expect("this test"));
        talk.args(["--exact", "child_of_the_user_namespace_test", "--nocapture"]).stdout(Stdio::piped());
        talk.env("ANABRANCH_EMU_TALK_TEST", format!("{role} {}", emulation.site_address(B)));
        emulation.spawn(site, talk).expect("this test starts again")
    };
    let mut far = talk(B, "echo");
    let output = talk(A, "ask").wait_with_output().expect("our child");
    let output = String::from_utf8_lossy(&output.stdout);
    far.kill().expect("our child");
    far.wait().expect("our child");
    assert!(output.contains("\nGOT "), "{output}");
}

/// Body of a separate process inside a site, which the test above starts: echoes datagrams, or
/// sends them until one is echoed.
#[test]
fn child_of_the_user_namespace_test() {
    let Some(role) = std::env::var("ANABRANCH_EMU_TALK_TEST").ok() else { return };
    let (role, address) = role.split_once(' ').expect("role and address");
    let to = SocketAddr::new(address.parse().expect("an address"), 7_000);
    if role == "echo" {
        let socket = UdpSocket::bind(to).expect("the address is this site's");
        return echo(&socket, &AtomicBool::new(false));
    }
    let socket = UdpSocket::bind("0.0.0.0:0").expect("any port");
    socket.set_read_timeout(Some(StdDuration::from_millis(100))).expect("above zero");
    // The echo process may not have bound its socket yet.
    let times = (0..600).map(|_| round_trips(&socket, to, 100, 1)).find(|times| !times.is_empty());
    println!("\nGOT {:?}", times.expect("an answer within 60 s"));
}

#[test]
fn programs_end_with_the_emulation() {
    let _alone = alone();
    let Some(emulation) = start_or_skip(&pair(BitRate::mbps(1), Duration::ZERO), EmulationOptions::default())
    else {
        return;
    };
    let mut sleep = Command::new("sleep");
    sleep.arg("1003");
    let mut spawned = emulation.spawn(A, sleep).expect("sleep is there");
    let mut prepared = Command::new("sleep");
    emulation.command(B, prepared.arg("1004"));
    let mut prepared = prepared.spawn().expect("sleep is there");
    let missing = emulation.spawn(A, Command::new("/no/such/program")).expect_err("not there");
    assert!(missing.to_string().contains("/no/such/program"), "{missing}");
    drop(emulation);
    // Both programs are dead by now, so the wait ends long before their 1,000 seconds.
    assert!(!spawned.wait().expect("our child").success());
    assert!(!prepared.wait().expect("our child").success());
}

#[test]
fn impossible_emulation_is_refused_with_value_and_limit() {
    let good = pair(BitRate::mbps(1), Duration::ZERO);
    let refused = |topology: &Topology, options| {
        Emulation::start(topology, options).map(|_| ()).expect_err("out of range").to_string()
    };
    let default = EmulationOptions::default;
    assert!(refused(&good, EmulationOptions { mtu: 575, ..default() }).contains("mtu 575: must be 576"));
    let text = refused(&good, EmulationOptions { base: [10, 77, 1, 0].into(), ..default() });
    assert!(text.contains("10.77.1.0"), "{text}");
    let text = refused(&good, EmulationOptions { congestion_control: Some("nosuch".into()), ..default() });
    assert!(
        text.contains("congestion control") || text.contains("TUN") || text.contains("namespace"),
        "{text}"
    );
    let text = refused(&good, EmulationOptions { congestion_control: Some("../x".into()), ..default() });
    assert!(text.contains("../x"), "{text}");
    assert!(refused(&Topology::new("none"), default()).contains("0 sites"));
    let text = refused(&good, EmulationOptions { host_cpus: Some(0), ..default() });
    assert!(text.contains("host processors 0: must be 1 to 1024"), "{text}");
    let text = refused(&pair(BitRate::bps(100), Duration::ZERO), default());
    assert!(text.contains("link 0") && text.contains("100 bit/s") && text.contains("2 kbit/s"), "{text}");
}

#[test]
fn doctor_names_a_fix_for_each_problem() {
    let _alone = alone();
    for finding in doctor() {
        println!("{finding:?}");
        assert_eq!(finding.ok, finding.fix.is_none(), "{finding:?}");
    }
}
