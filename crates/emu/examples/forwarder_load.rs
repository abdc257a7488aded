//! The forwarder's load and lateness: `cargo run --release -p anabranch-emu --example
//! forwarder_load`.
//!
//! Prints one JSON object per case. One case is a UDP flood of 1,500-byte packets over an unlimited
//! link (packets per second of the forwarder's processor time). The other is 100 Mbit/s of TCP over
//! a 5 ms link. Each case runs with the machine otherwise idle and with all processors busy, and
//! with the forwarder at elevated and at ordinary priority.

#![allow(
    clippy::disallowed_methods,
    reason = "an example of a driver: it uses the clock, threads and sockets"
)]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration as StdDuration, Instant};

use anabranch_emu::{Emulation, EmulationOptions, ForwarderOptions, Report};
use anabranch_graph::{LinkProperties, Topology};
use anabranch_units::{BitRate, Duration, SiteId};

const A: SiteId = SiteId(0);
const B: SiteId = SiteId(1);

fn pair(rate: BitRate, delay: Duration, options: EmulationOptions) -> Emulation {
    let mut topology = Topology::new("pair");
    let (a, b) = (topology.add_site("a", None).expect("new"), topology.add_site("b", None).expect("new"));
    topology.add_cable(a, b, LinkProperties::new(rate, delay)).expect("a good cable");
    Emulation::start(&topology, options).unwrap_or_else(|error| panic!("{error}"))
}

fn flood(options: EmulationOptions) -> Report {
    let emulation = pair(BitRate::gbps(20), Duration::from_us(10), options);
    let to = emulation.site_address(B);
    let sink = emulation.run_in(B, || UdpSocket::bind((to, 7_000))).expect("entered").expect("bound");
    let socket = emulation.run_in(A, || UdpSocket::bind("0.0.0.0:0")).expect("entered").expect("bound");
    let start = Instant::now();
    while start.elapsed() < StdDuration::from_secs(3) {
        let _ = socket.send_to(&[0; 1_472], (to, 7_000));
    }
    drop(sink);
    emulation.report().expect("running")
}

fn tcp(options: EmulationOptions, mbps: u64, busy_threads: usize) -> (Report, f64) {
    let emulation = pair(BitRate::mbps(mbps), Duration::from_ms(5), options);
    let to = emulation.site_address(B);
    let listener = emulation.run_in(B, || TcpListener::bind((to, 7_001))).expect("entered").expect("bound");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..busy_threads {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        scope.spawn(|| {
            let stream = emulation.run_in(A, || TcpStream::connect((to, 7_001)));
            let mut stream = stream.expect("entered").expect("connected");
            let chunk = [0; 64 << 10];
            while !stop.load(Ordering::Relaxed) {
                let _ = stream.write_all(&chunk);
            }
        });
        let (mut stream, _) = listener.accept().expect("a connection");
        let (start, mut bytes, mut buffer) = (Instant::now(), 0, vec![0; 256 << 10]);
        while start.elapsed() < StdDuration::from_secs(4) {
            bytes += stream.read(&mut buffer).expect("the sender lives");
        }
        stop.store(true, Ordering::Relaxed);
        let mbps = (bytes * 8) as f64 / start.elapsed().as_secs_f64() / 1e6;
        (emulation.report().expect("running"), mbps)
    })
}

/// The 9 sites and 13 cables of Internet2, with one TCP connection over every directed link.
fn internet2(options: EmulationOptions, mbps: u64) -> (Report, f64) {
    let mut topology = Topology::new("internet2");
    let sites: Vec<_> = (0..9).map(|i| topology.add_site(format!("s{i}"), None).expect("new")).collect();
    let cables = [
        (0, 1),
        (0, 2),
        (1, 2),
        (1, 3),
        (2, 4),
        (3, 4),
        (3, 5),
        (4, 6),
        (5, 6),
        (5, 7),
        (6, 7),
        (6, 8),
        (7, 8),
    ];
    for (u, v) in cables {
        let properties = LinkProperties::new(BitRate::mbps(mbps), Duration::from_ms(8));
        topology.add_cable(sites[u], sites[v], properties).expect("a good cable");
    }
    let emulation = Emulation::start(&topology, options).unwrap_or_else(|error| panic!("{error}"));
    let stop = AtomicBool::new(false);
    let start = Instant::now();
    std::thread::scope(|scope| {
        for l in topology.link_ids() {
            let (link, to, stop, emulation) =
                (topology.link(l), emulation.link_address(l), &stop, &emulation);
            let listener = emulation
                .run_in(link.to, || TcpListener::bind((to, 7_001)))
                .expect("entered")
                .expect("bound");
            scope.spawn(move || {
                let (mut stream, _) = listener.accept().expect("a connection");
                let mut buffer = vec![0; 256 << 10];
                while !stop.load(Ordering::Relaxed) && stream.read(&mut buffer).is_ok_and(|n| n > 0) {}
            });
            scope.spawn(move || {
                let stream = emulation.run_in(link.from, || TcpStream::connect((to, 7_001)));
                let mut stream = stream.expect("entered").expect("connected");
                while !stop.load(Ordering::Relaxed) && stream.write_all(&[0; 16 << 10]).is_ok() {}
            });
        }
        std::thread::sleep(StdDuration::from_secs(2));
        let bytes = |c: Vec<anabranch_emu::LinkCounters>| c.iter().map(|c| c.arrived_bytes).sum::<u64>();
        let before = bytes(emulation.counters().expect("running"));
        let from = Instant::now();
        std::thread::sleep(StdDuration::from_secs(4));
        let after = bytes(emulation.counters().expect("running"));
        let mbps = ((after - before) * 8) as f64 / from.elapsed().as_secs_f64() / 1e6 / 26.0;
        let mut report = emulation.report().expect("running");
        report.took_s = start.elapsed().as_secs_f64();
        stop.store(true, Ordering::Relaxed);
        (report, mbps)
    })
}

fn main() {
    let print = |case: &str, goodput_mbps: f64, report: &Report| {
        let per_cpu_s = report.packets as f64 / report.forwarder.cpu_s;
        let report = serde_json::to_string(report).expect("numbers and strings");
        println!(
            "{{\"case\":\"{case}\",\"packets_per_cpu_s\":{per_cpu_s:.0},\"goodput_mbps\":{goodput_mbps:.1},\"report\":{report}}}"
        );
    };
    let spin_us: u64 = std::env::args().nth(1).map_or(5, |us| us.parse().expect("microseconds"));
    let coalesce_us: u64 = std::env::args().nth(2).map_or(0, |us| us.parse().expect("microseconds"));
    let options = |elevate| EmulationOptions {
        forwarder: ForwarderOptions {
            elevate,
            spin: Duration::from_us(spin_us),
            coalesce: Duration::from_us(coalesce_us),
        },
        ..Default::default()
    };
    for mbps in [10, 20] {
        let (report, per_link) = internet2(options(true), mbps);
        print(&format!("26 links at {mbps} Mbit/s (per link, acknowledgements included)"), per_link, &report);
    }
    print("flood", 0.0, &flood(options(true)));
    for (elevate, who) in [(true, "elevated"), (false, "ordinary")] {
        for (mbps, threads, load) in [(100, 0, "idle"), (100, 2, "busy"), (400, 0, "idle")] {
            let (report, goodput) = tcp(options(elevate), mbps, threads);
            print(&format!("tcp {mbps} Mbit/s, {load}, {who}"), goodput, &report);
        }
    }
}
