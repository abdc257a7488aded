//! Circuits and time dilation against the real kernel.

use super::*;
use anabranch_fabric::{CircuitSettings, PacketNetwork, QueueLimits, shifts};
use anabranch_linux::cpu_limit::CpuHierarchy;
use anabranch_linux::rtnetlink::Rtnetlink;
use anabranch_units::Seed;

const HUB: SiteId = SiteId(3);

/// Three hosts at a hybrid switch: 80 Mbit/s by circuit, 10 Mbit/s by packets, days of 9 ms.
fn racks() -> (Topology, EmulationOptions) {
    let mut topology = Topology::new("racks");
    let hosts = ["a", "b", "c"].map(|name| topology.add_site(name, None).expect("new"));
    let hub = topology.add_switch("hub").expect("new");
    for host in hosts {
        let properties = LinkProperties::new(BitRate::gbps(1), Duration::ZERO);
        topology.add_cable(host, hub, properties).expect("a good cable");
    }
    let settings = CircuitSettings {
        circuit_rate: BitRate::mbps(80),
        circuit_delay: Duration::from_us(300),
        packet: Some(PacketNetwork { rate: BitRate::mbps(10), delay: Duration::from_us(100) }),
        queue: QueueLimits { packets_max: 64, bytes_max: None, mark_packets: None },
        resize: None,
        mark_ahead: None,
        timetable: shifts(3, 1..3, Duration::from_ms(9), Duration::from_ms(1)).expect("slots with a length"),
        around: None,
    };
    let circuit = CircuitOptions { site: hub, settings, mark: CircuitMark::Ece, schedule: None };
    (topology, EmulationOptions { circuit: Some(circuit), ..EmulationOptions::default() })
}

fn dilated(factor: u32, options: EmulationOptions) -> EmulationOptions {
    EmulationOptions { dilation: Dilation::try_from(factor).expect("in range"), ..options }
}

/// Values below `/proc/sys/net/ipv4` that dilation stretches, in the calling thread's namespace.
fn kernel_clocks() -> Vec<(String, String)> {
    let names = ["rto_min_us", "tso_rtt_log", "comp_sack_delay_ns", "comp_sack_slack_ns", "min_rtt_wlen"];
    let read = |name: &str| {
        let path = format!("/proc/sys/net/ipv4/tcp_{name}");
        let value = std::fs::read_to_string(&path).unwrap_or_else(|error| format!("{error}"));
        (path, value.trim().to_owned())
    };
    names.map(read).into()
}

#[test]
fn no_dilated_round_trip_is_sooner_than_its_multiple() {
    dilated_round_trips(false);
}

#[test]
#[ignore = "it measures: `make claims`"]
fn dilation_multiplies_the_real_round_trip_time() {
    dilated_round_trips(true);
}

fn dilated_round_trips(is_measured: bool) {
    let _alone = alone();
    let options = dilated(10, EmulationOptions::default());
    let Some(emulation) = start(&pair(BitRate::mbps(10), Duration::from_ms(2)), options) else { return };
    let (a, b) = (emulation.site_address(A), emulation.site_address(B));
    let (near, far) = (udp(&emulation, A, a, 0), udp(&emulation, B, b, 7_000));
    let stop = AtomicBool::new(false);
    let times = std::thread::scope(|scope| {
        scope.spawn(|| echo(&far, &stop));
        let times = round_trips(&near, (b, 7_000).into(), 1_000, 11);
        stop.store(true, Ordering::Relaxed);
        times
    });
    let report = emulation.report().expect("running");
    // 1,000 bytes at 10 Mbit/s take 0.8 ms each way.
    let expected = StdDuration::from_micros(2 * (2_000 + 800) * 10);
    assert_eq!(times.len(), 11);
    assert!(times[0] >= expected, "{:?} is sooner than the link allows", times[0]);
    if !is_measured || !is_trusted(&report) {
        return;
    }
    let slack = StdDuration::from_secs_f64(20.0 * report.lateness_us_p99 / 1e6) + StdDuration::from_millis(3);
    assert!(
        times[5] <= expected + slack,
        "median {:?}, expected {expected:?}, at most {slack:?} more",
        times[5]
    );
    let took_s = emulation.now().as_secs_f64();
    assert!((report.took_s..report.took_s + 1.0).contains(&took_s), "{took_s} s, {} s", report.took_s);
}

#[test]
fn kernel_clocks_stretch_in_sites_alone() {
    let _alone = alone();
    let before = kernel_clocks();
    let Some(emulation) =
        start(&pair(BitRate::mbps(1), Duration::ZERO), dilated(20, EmulationOptions::default()))
    else {
        return;
    };
    let inside = emulation.run_in(A, kernel_clocks).expect("entered");
    let values: Vec<&str> = inside.iter().map(|(_, value)| value.as_str()).collect();
    assert_eq!(values, ["4000000", "13", "20000000", "2000000", "6000"]);
    assert_eq!(kernel_clocks(), before, "the machine's own settings stay");
    drop(emulation);
    assert_eq!(kernel_clocks(), before);
}

#[test]
fn quick_ack_is_set_on_the_route_of_sites() {
    let _alone = alone();
    let options = EmulationOptions { quick_ack: true, ..EmulationOptions::default() };
    let Some(emulation) = start(&pair(BitRate::mbps(10), Duration::from_ms(1)), options) else { return };
    let (a, b) = (emulation.site_address(A), emulation.site_address(B));
    let routes = emulation.run_in(A, || {
        let mut kernel = Rtnetlink::open().expect("netlink");
        kernel.routes(false, libc::RT_TABLE_MAIN.into()).expect("the main table")
    });
    let routes = routes.expect("entered");
    assert!(matches!(&routes[..], [route] if route.quick_ack), "{routes:?}");
    // The route leads to the other site, like the device's own route.
    let (near, far) = (udp(&emulation, A, a, 0), udp(&emulation, B, b, 7_000));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| echo(&far, &stop));
        assert_eq!(round_trips(&near, (b, 7_000).into(), 100, 3).len(), 3);
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn both_networks_carry_tcp_between_racks() {
    tcp_between_racks(false);
}

#[test]
#[ignore = "it measures: `make claims`"]
fn both_networks_carry_tcp_near_their_rates() {
    tcp_between_racks(true);
}

fn tcp_between_racks(is_measured: bool) {
    let _alone = alone();
    let (topology, options) = racks();
    let Some(emulation) = start(&topology, options) else { return };
    let b = emulation.site_address(B);
    let listener = emulation.run_in(B, || TcpListener::bind((b, 7_001))).expect("entered").expect("bound");
    let stop = AtomicBool::new(false);
    let (bytes, figures) = std::thread::scope(|scope| {
        scope.spawn(|| {
            let stream =
                emulation.run_in(A, || TcpStream::connect((b, 7_001))).expect("entered").expect("connected");
            pump(stream, &stop);
        });
        let (mut stream, _) = listener.accept().expect("a connection");
        let (mut buffer, mut bytes, begun) = (vec![0; 256 << 10], 0, WallInstant::now());
        while begun.elapsed() < StdDuration::from_secs(2) {
            bytes += stream.read(&mut buffer).expect("the sender lives") as u64;
        }
        let figures = emulation.take_circuits().expect("running").expect("a hybrid switch");
        stop.store(true, Ordering::Relaxed);
        (bytes, figures)
    });
    assert!(figures.circuit_bytes > 0 && figures.packet_network_bytes > 0, "{figures:?}");
    // Headers and acknowledgements also count.
    assert!(
        figures.circuit_bytes + figures.packet_network_bytes > bytes,
        "{figures:?}, {bytes} bytes of data"
    );
    let report = emulation.report().expect("running");
    println!("{bytes} bytes, {figures:?}, {report:?}");
    let seconds = report.took_s;
    assert!((figures.circuit_bytes as f64) * 8.0 <= 2.0 * 80e6 * 0.5 * seconds, "{figures:?} in {seconds} s");
    if !is_measured || !is_trusted(&report) {
        return;
    }
    // This pair has one day of 9 ms every 20 ms, and 10 Mbit/s for at most the remaining time.
    let mbps = bytes as f64 * 8.0 / 2e6;
    assert!((5.0..=45.0).contains(&mbps), "{mbps} Mbit/s");
}

#[test]
fn matchings_of_another_switch_size_are_refused() {
    let (topology, options) = racks();
    let circuit = options.circuit.expect("a hybrid switch");
    assert_eq!(circuit.site, HUB);
    let timetable = shifts(4, 1..4, Duration::from_ms(9), Duration::from_ms(1)).expect("slots with a length");
    let settings = CircuitSettings { timetable, ..circuit.settings };
    let circuit = Some(CircuitOptions { settings, ..circuit });
    let error = Emulation::start(&topology, EmulationOptions { circuit, ..EmulationOptions::default() });
    let error = error.map(|_| ()).expect_err("four racks").to_string();
    assert!(error.contains("switch of circuits: slot 1, output 3"), "{error}");
}

/// Body of a process that the test below starts: keeps a flow open over circuits under dilation
/// until the process is killed.
#[test]
fn child_of_the_circuit_kill_test() {
    if std::env::var_os("ANABRANCH_EMU_CIRCUIT_KILL_TEST").is_none() {
        return;
    }
    let (topology, options) = racks();
    let Some(emulation) = start(&topology, dilated(20, EmulationOptions { seed: Seed::new(7), ..options }))
    else {
        println!("\nSKIP");
        return;
    };
    let b = emulation.site_address(B);
    let listener = emulation.run_in(B, || TcpListener::bind((b, 7_001))).expect("entered").expect("bound");
    let (mut shell, ready) = held_site(&emulation);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let stream =
                emulation.run_in(A, || TcpStream::connect((b, 7_001))).expect("entered").expect("connected");
            pump(stream, &AtomicBool::new(false));
        });
        let (mut stream, _) = listener.accept().expect("a connection");
        let mut buffer = vec![0; 64 << 10];
        stream.read_exact(&mut buffer).expect("the flow is open");
        println!("{ready}");
        // Runs until the kill.
        while stream.read(&mut buffer).is_ok_and(|length| length > 0) {}
    });
    let _ = shell.wait();
}

/// TCP sockets of this machine that no program holds, in all namespaces.
fn orphans() -> usize {
    let text = std::fs::read_to_string("/proc/net/sockstat").expect("Linux has it");
    let mut words = text.split_whitespace().skip_while(|word| *word != "orphan");
    words.nth(1).and_then(|count| count.parse().ok()).expect("a number of orphans")
}

/// Maximum lifetime of an orphaned socket in the test below. The helper permits one retransmission.
/// The kernel waits for the RTO of 200 ms, stretched by 20, and then for twice that time; a busy
/// machine needs more.
const ORPHAN_LIFE: StdDuration = StdDuration::from_secs(60);

#[test]
fn killed_emulator_leaves_no_namespace_socket_device_or_setting() {
    let _alone = alone();
    let (before, orphans_before) = (kernel_clocks(), orphans());
    if !kill_test("circuits::child_of_the_circuit_kill_test", "ANABRANCH_EMU_CIRCUIT_KILL_TEST") {
        return;
    }
    assert!(!std::path::Path::new("/sys/class/net/ab0").exists(), "a device in the machine's own namespace");
    assert_eq!(kernel_clocks(), before);
    assert_no_orphans_beyond(orphans_before);
}

/// Waits until this machine has at most `before` orphaned sockets. Panics after [`ORPHAN_LIFE`].
fn assert_no_orphans_beyond(before: usize) {
    let (began, deadline) = (WallInstant::now(), WallInstant::now() + ORPHAN_LIFE);
    while orphans() > before && WallInstant::now() < deadline {
        std::thread::sleep(StdDuration::from_millis(100));
    }
    println!("{before} orphans before, {} after {:.1?}", orphans(), began.elapsed());
    assert!(orphans() <= before, "{} orphans, {before} before", orphans());
}

/// #51: a host's program dies in the middle of a flow, and its kernel goes on with the flow.
#[test]
fn killed_host_program_leaves_no_socket_or_namespace() {
    let _alone = alone();
    let orphans_before = orphans();
    let (topology, options) = racks();
    let Some(emulation) = start(&topology, dilated(4, options)) else { return };
    let b = emulation.site_address(B);
    let listener = emulation.run_in(B, || TcpListener::bind((b, 7_001))).expect("entered").expect("bound");
    let mut sender = Command::new("bash");
    sender.args(["-c", &format!("exec cat /dev/zero >/dev/tcp/{b}/7001")]);
    let mut sender = match emulation.spawn(A, sender) {
        Ok(sender) => sender,
        Err(error) => return skip(&error.to_string()),
    };
    let (mut stream, _) = listener.accept().expect("a connection");
    let mut buffer = vec![0; 64 << 10];
    stream.read_exact(&mut buffer).expect("the flow is open");
    let namespace = std::fs::read_link(format!("/proc/{}/ns/net", sender.id())).expect("it runs");
    let namespace = namespace.to_string_lossy();
    sender.kill().expect("our child");
    sender.wait().expect("our child");
    stream.read_exact(&mut buffer[..1]).expect("its kernel still sends");
    assert!(emulation.report().is_ok(), "the network is still there");
    drop((stream, listener, emulation));
    let deadline = WallInstant::now() + PATIENCE;
    while !holders(&namespace).is_empty() && WallInstant::now() < deadline {
        std::thread::sleep(StdDuration::from_millis(10));
    }
    assert_eq!(holders(&namespace), [""; 0], "namespace {namespace} is still held");
    assert_no_orphans_beyond(orphans_before);
}

/// Two sites under a dilation of 20, whose programs have the time of one processor divided by 20.
/// Returns `None`, with the reason printed, if the machine cannot limit processor time.
fn start_with_limited_processors() -> Option<Emulation> {
    if let Err(error) = CpuHierarchy::find() {
        skip(&format!("no limits of processor time: {error}"));
        return None;
    }
    let options = EmulationOptions { host_cpus: Some(1), ..EmulationOptions::default() };
    start_or_skip(&pair(BitRate::mbps(1), Duration::ZERO), dilated(20, options))
}

/// Processor time that a process has used (fields 14 and 15 of proc_pid_stat(5)).
fn cpu_time(pid: u32) -> StdDuration {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("the process runs");
    let (_, fields) = text.rsplit_once(") ").expect("the name is in parentheses");
    let ticks = fields.split(' ').skip(11).take(2).map(|field| field.parse::<u64>().expect("a number"));
    // SAFETY: no memory is passed.
    let per_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    StdDuration::from_millis(ticks.sum::<u64>() * 1_000 / per_second.unsigned_abs())
}

/// #51: programs were F times too fast beside their network.
#[test]
fn host_processor_time_is_divided_by_the_dilation() {
    let _alone = alone();
    let Some(emulation) = start_with_limited_processors() else { return };
    let mut busy = Command::new("sh");
    busy.args(["-c", "while :; do :; done"]);
    let began = WallInstant::now();
    let mut busy = emulation.spawn(A, busy).expect("sh is there");
    std::thread::sleep(StdDuration::from_secs(2));
    let (used, elapsed) = (cpu_time(busy.id()), began.elapsed());
    let report = emulation.report().expect("running");
    println!("{used:?} of {elapsed:?}, {:?}", report.host_time);
    // Processor time is counted in ticks, and the limit holds on average.
    assert!(used <= elapsed / 10, "{used:?} of {elapsed:?}");
    let time = report.host_time.expect("a limit");
    assert_eq!(time.cpus, 1);
    assert!(time.throttled_share_max > 0.0 && time.throttled_share_max <= 1.0, "{report:?}");
    drop(emulation);
    assert!(!busy.wait().expect("our child").success());
}

/// Control groups of emulations whose helper process has ended.
fn leftover_groups() -> Vec<String> {
    let Ok(hierarchy) = CpuHierarchy::find() else { return Vec::new() };
    let root = hierarchy.group("any").path().parent().expect("below the root").to_owned();
    let names = std::fs::read_dir(root).expect("it is mounted").flatten();
    let names = names.filter_map(|entry| entry.file_name().into_string().ok());
    let helper = |name: &str| name.strip_prefix("anabranch-")?.split('-').next().map(str::to_owned);
    let has_ended = |pid: String| !std::path::Path::new("/proc").join(pid).exists();
    names.filter(|name| helper(name).is_some_and(has_ended)).collect()
}

/// Body of a process that the test below starts: holds groups of processor time until the process
/// is killed.
#[test]
fn child_of_the_processor_kill_test() {
    if std::env::var_os("ANABRANCH_EMU_PROCESSOR_KILL_TEST").is_none() {
        return;
    }
    let Some(emulation) = start_with_limited_processors() else {
        println!("\nSKIP");
        return;
    };
    let (mut shell, ready) = held_site(&emulation);
    let group = std::fs::read_to_string(format!("/proc/{}/cgroup", shell.id())).expect("it runs");
    assert!(group.contains("/anabranch-"), "{group}");
    println!("{ready}");
    // Runs until the kill.
    let _ = shell.wait();
}

#[test]
fn killed_emulator_leaves_no_group_of_processor_time() {
    let _alone = alone();
    let before = leftover_groups();
    if !kill_test("circuits::child_of_the_processor_kill_test", "ANABRANCH_EMU_PROCESSOR_KILL_TEST") {
        return;
    }
    let is_new = |group: &String| !before.contains(group);
    let deadline = WallInstant::now() + PATIENCE;
    while leftover_groups().iter().any(is_new) && WallInstant::now() < deadline {
        std::thread::sleep(StdDuration::from_millis(10));
    }
    let left: Vec<_> = leftover_groups().into_iter().filter(is_new).collect();
    assert!(left.is_empty(), "{left:?}");
}
