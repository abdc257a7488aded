//! How much the forwarder carries and how late it is: `cargo run --release -p anabranch-emu --example forwarder_load`.
//!
//! Prints one JSON object per case: a UDP flood of 1,500-byte packets over an unlimited link (packets per second of the
//! forwarder's processor time), and 100 Mbit/s of TCP over a 5 ms link, with the machine otherwise idle and with all
//! processors kept busy, each with the forwarder ahead of ordinary threads and as one of them.

#![allow(
    clippy::disallowed_methods,
    reason = "an example of a driver: it uses the clock, threads and sockets"
)]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration as StdDuration, Instant};

use anabranch_emu::{Emulation, EmulationOptions, Report};
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
            while !stop.load(Ordering::Relaxed) && stream.write_all(&[0; 64 << 10]).is_ok() {}
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

fn main() {
    let print = |case: &str, goodput_mbps: f64, report: &Report| {
        let per_cpu_s = report.packets as f64 / report.forwarder_cpu_s;
        let report = serde_json::to_string(report).expect("numbers and strings");
        println!(
            "{{\"case\":\"{case}\",\"packets_per_cpu_s\":{per_cpu_s:.0},\"goodput_mbps\":{goodput_mbps:.1},\"report\":{report}}}"
        );
    };
    let spin_us: u64 = std::env::args().nth(1).map_or(5, |us| us.parse().expect("microseconds"));
    let options =
        |elevate| EmulationOptions { elevate, spin: Duration::from_us(spin_us), ..Default::default() };
    print("flood", 0.0, &flood(options(true)));
    for (elevate, who) in [(true, "elevated"), (false, "ordinary")] {
        for (mbps, threads, load) in [(100, 0, "idle"), (100, 2, "busy"), (400, 0, "idle")] {
            let (report, goodput) = tcp(options(elevate), mbps, threads);
            print(&format!("tcp {mbps} Mbit/s, {load}, {who}"), goodput, &report);
        }
    }
}
