//! reTCP in the kernel, between two network namespaces whose wire marks acknowledgements.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use anabranch_linux::bpf::congestion::RegisterError;
use anabranch_linux::bpf::retcp::{
    AttachError, Base, ControlSpec, Mark, Retcp, RetcpCounts, attach, is_left,
};
use anabranch_linux::socket_options::{set_max_pacing_rate, window_packets};
use anabranch_testing::skip::{is_lacking, skip};
use anabranch_units::Dilation;
use rustix::net::sockopt::{set_tcp_congestion, set_tcp_nodelay, tcp_congestion};
use rustix::net::{AddressFamily, SocketType, connect, socket};

use super::wire::{Marking, Wire, comes};

const DSCP: u8 = 46;

/// Congestion controls are registered for the whole machine, so each run of a test needs its own
/// name.
fn name(suffix: &str) -> String {
    format!("ab{:x}{suffix}", std::process::id())
}

/// Returns true if the error means that this machine does not support reTCP.
fn lacks(error: &AttachError) -> bool {
    match error {
        AttachError::Missing { .. } | AttachError::Register(RegisterError::Missing { .. }) => true,
        AttachError::Register(
            RegisterError::Program { error, .. } | RegisterError::Refused { error, .. },
        )
        | AttachError::Watcher { error, .. }
        | AttachError::Refused { error, .. } => is_lacking(error, &[]),
        _ => false,
    }
}

fn dilation(factor: u32) -> Dilation {
    Dilation::try_from(factor).expect("in range")
}

/// Starts a congestion control and a wire that marks for it. Returns `None`, with the reason
/// printed, if the machine does not support them.
fn start(name: &str, base: Base, mark: Option<Mark>, factor: u32) -> Option<(Retcp, Wire)> {
    let retcp = match attach(&ControlSpec { name, base, mark, dilation: dilation(factor) }, None) {
        Err(error) if lacks(&error) => {
            skip(&error.to_string());
            return None;
        }
        attached => attached.unwrap_or_else(|error| panic!("{base:?} {mark:?}: {error}")),
    };
    let marking = match mark {
        Some(Mark::Dscp(value)) => Marking::Dscp(value),
        _ => Marking::Ece,
    };
    let wire = match Wire::new(marking) {
        Ok(wire) => wire,
        Err(why) => {
            skip(&why);
            return None;
        }
    };
    wire.set("ipv4/tcp_slow_start_after_idle", "0");
    wire.set("ipv4/tcp_ecn", if matches!(mark, Some(Mark::Dscp(_))) { "1" } else { "0" });
    Some((retcp, wire))
}

fn connect_under(name: &str, to: SocketAddr) -> TcpStream {
    let family = if to.is_ipv6() { AddressFamily::INET6 } else { AddressFamily::INET };
    let near = socket(family, SocketType::STREAM, None).expect("a socket");
    set_tcp_congestion(&near, name).expect("it is registered");
    set_tcp_nodelay(&near, true).expect("TCP");
    connect(&near, &to).expect("it listens");
    near.into()
}

/// Sends one byte, and returns the window after its acknowledgement.
fn window_after_byte(retcp: &Retcp, near: &mut TcpStream) -> u32 {
    let acks = || retcp.counts().expect("ours").acks;
    let before = acks();
    near.write_all(&[7]).expect("it is open");
    assert!(comes(|| acks() > before), "no acknowledgement comes");
    window_packets(&near).expect("TCP")
}

#[test]
fn window_doubles_with_the_mark_and_halves_without() {
    let cases = [
        (Base::Reno, Mark::Ece, false),
        (Base::Reno, Mark::Dscp(DSCP), false),
        (Base::Cubic, Mark::Ece, true),
        (Base::Cubic, Mark::Dscp(DSCP), true),
        (Base::Dctcp, Mark::Dscp(DSCP), false),
    ];
    for (index, (base, mark, is_ipv6)) in cases.into_iter().enumerate() {
        let name = name(&format!("_w{index}"));
        let Some((retcp, wire)) = start(&name, base, Some(mark), 1) else { return };
        // A timeout of a wire that stops would shrink the window.
        wire.set_if_there("ipv4/tcp_rto_min_us", "60000000");
        let (mut near, reader) = wire.connect(is_ipv6, |_| {}, |to| connect_under(&name, to));
        assert_eq!(tcp_congestion(&near).expect("TCP"), name);
        let windows = [false, true, true, false, false, true].map(|is_marked| {
            wire.state.is_marking.store(is_marked, Relaxed);
            window_after_byte(&retcp, &mut near)
        });
        let first = windows[0];
        let expected = [first, 2 * first, 2 * first, first, first, 2 * first];
        assert_eq!(windows, expected, "{base:?} {mark:?} IPv6 {is_ipv6}");
        let RetcpCounts { marked_acks, jumps_up, jumps_down, .. } = retcp.counts().expect("ours");
        assert_eq!((marked_acks, jumps_up, jumps_down), (3, 2, 1), "{base:?} {mark:?}");
        drop(near);
        assert_eq!(reader.join().expect("it reads"), windows.len() as u64);
    }
}

/// A paced flow of 2 MB under marks in phases of 10 acknowledgements.
#[test]
fn jumps_of_a_paced_flow_alternate_with_its_marks() {
    const BYTES: usize = 2_000_000;
    const PHASE: u64 = 10;
    for (base, mark) in [(Base::Cubic, Mark::Ece), (Base::Reno, Mark::Dscp(DSCP))] {
        let name = name(if mark == Mark::Ece { "_pe" } else { "_pd" });
        let Some((retcp, wire)) = start(&name, base, Some(mark), 20) else { return };
        wire.state.phase_packets.store(PHASE, Relaxed);
        let (mut near, reader) = wire.connect(
            false,
            |_| {},
            |to| {
                let near = connect_under(&name, to);
                set_max_pacing_rate(&near, 2_000_000).expect("a socket");
                near
            },
        );
        near.write_all(&vec![7; BYTES]).expect("it is read");
        let state = &wire.state;
        assert!(comes(|| state.packets.load(Relaxed) > 4 * PHASE), "{state:?}");
        let counts = retcp.counts().expect("ours");
        // The kernel merges equal acknowledgements that are queued while the program writes
        // (tcp_add_backlog). A jump is missed only if all acknowledgements of a phase are merged or
        // in flight.
        let joined = state.packets.load(Relaxed).saturating_sub(counts.acks);
        let missed = state.ups.load(Relaxed).saturating_sub(counts.jumps_up);
        assert!(missed * (PHASE - 1) <= joined + PHASE, "{counts:?} {state:?}");
        assert!(counts.jumps_up >= 2 && counts.jumps_up - counts.jumps_down <= 1, "{counts:?}");
        let marked = state.marked.load(Relaxed);
        assert!(
            mark != Mark::Ece || (marked / 2..=marked).contains(&counts.marked_acks),
            "{counts:?} {state:?}"
        );
        drop(near);
        assert_eq!(reader.join().expect("it reads"), BYTES as u64);
        println!("{base:?} {mark:?}: {counts:?}");
    }
}

/// #51: a congestion control that programs without CAP_NET_ADMIN may not choose could not be a
/// namespace's default.
#[test]
fn namespace_accepts_the_congestion_control_as_its_default() {
    let name = name("_d");
    let Some((retcp, wire)) = start(&name, Base::Cubic, None, 4) else { return };
    wire.set("ipv4/tcp_congestion_control", &name);
    let plain = |to: SocketAddr| TcpStream::connect(to).expect("it listens");
    let (mut near, reader) = wire.connect(false, |_| {}, plain);
    assert_eq!(tcp_congestion(&near).expect("TCP"), name);
    near.write_all(&vec![7; 1 << 20]).expect("it is read");
    drop(near);
    assert_eq!(reader.join().expect("it reads"), 1 << 20);
    assert_eq!(retcp.counts().expect("ours"), RetcpCounts::default());
    drop(retcp);
    assert!(is_left(&name).expect("root may list"), "the namespace keeps it");
    drop(wire);
    assert!(comes(|| !is_left(&name).expect("root may list")));
}

/// The window after a loss at about 120 packets, and the window 1.2 s of real time later, at a
/// round-trip time of 120 ms.
fn windows_after_loss(wire: &Wire, name: &str) -> [u32; 2] {
    let state = &wire.state;
    state.delay_ms.store(60, Relaxed);
    let (near, reader) = wire.connect(false, |_| {}, |to| connect_under(name, to));
    let mut writer = near.try_clone().expect("a descriptor");
    let is_over = AtomicBool::new(false);
    let windows = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Relaxed) {
                if writer.write_all(&[7; 1 << 14]).is_err() {
                    break;
                }
            }
        });
        let window = || window_packets(&near).expect("TCP");
        assert!(comes(|| window() >= 120), "the window stays at {}", window());
        state.loses_next.store(true, Relaxed);
        let mut most = 0;
        // After recovery, the window is 0.7 of its maximum.
        let recovers = comes(|| {
            most = most.max(window());
            !state.loses_next.load(Relaxed) && window() <= most * 3 / 4
        });
        assert!(recovers, "no loss is seen: {most}");
        std::thread::sleep(Duration::from_millis(500));
        let first = window();
        std::thread::sleep(Duration::from_millis(1_200));
        let windows = [first, window()];
        is_over.store(true, Relaxed);
        near.shutdown(std::net::Shutdown::Both).expect("it is open");
        windows
    });
    drop(near);
    reader.join().expect("it reads");
    windows
}

/// Between losses CUBIC's window grows with time: on the real clock by more than Reno's window, on
/// a slow clock by as much.
#[test]
#[ignore = "it measures: `make claims`"]
fn cubic_grows_on_the_stretched_clock() {
    let growth = [1, 1_000].map(|factor| {
        let name = name(&format!("_t{factor}"));
        let (_retcp, wire) = start(&name, Base::Cubic, None, factor)?;
        let [first, last] = windows_after_loss(&wire, &name);
        println!("CUBIC at {factor}: {first} to {last} packets in 1.2 s");
        Some(i64::from(last) - i64::from(first))
    });
    let [Some(real), Some(slow)] = growth else { return };
    // In ten round trips Reno's window grows by 5 packets (RFC 9438, section 4.3: 0.53 packets
    // each).
    assert!(real >= 10 && (0..=8).contains(&slow), "{real} and {slow} packets");
}

/// The sample of the claim above.
#[test]
fn cubic_recovers_from_a_loss_on_either_clock() {
    for factor in [1, 1_000] {
        let name = name(&format!("_r{factor}"));
        let Some((_retcp, wire)) = start(&name, Base::Cubic, None, factor) else { return };
        // The windows are waited for on the way.
        let _ = windows_after_loss(&wire, &name);
    }
}

#[test]
fn dctcp_shrinks_its_window_under_congestion_marks() {
    const BYTES: usize = 2 << 20;
    let name = name("_c");
    let Some((_retcp, wire)) = start(&name, Base::Dctcp, None, 1) else { return };
    let windows = || {
        [false, true].map(|is_congested| {
            wire.state.is_congested.store(is_congested, Relaxed);
            let (mut near, reader) = wire.connect(
                false,
                |listener| set_tcp_congestion(listener, &name).expect("it is registered"),
                |to| connect_under(&name, to),
            );
            near.write_all(&vec![7; BYTES]).expect("it is read");
            let window = window_packets(&near).expect("TCP");
            drop(near);
            assert_eq!(reader.join().expect("it reads"), BYTES as u64);
            window
        })
    };
    // A wire that stops causes a timeout, which shrinks the free window, too.
    let is_shrunk = (0..5).any(|_| {
        let [free, congested] = windows();
        println!("{free} packets, and {congested} under marks");
        congested <= 4 && free >= 4 * congested
    });
    assert!(is_shrunk, "five times");
}

/// Environment variable with the name of the congestion control that the child of the next test
/// attaches.
const HELD: &str = "ANABRANCH_TEST_RETCP";
const READY: &str = "reTCP is attached";

/// Body of the child process of `kill_with_an_open_flow_leaves_no_retcp`, which sets [`HELD`].
/// Without the variable it does nothing.
#[test]
fn child_holds_its_control() {
    let Ok(held) = std::env::var(HELD) else { return };
    let mark = if held.ends_with('e') { Mark::Ece } else { Mark::Dscp(DSCP) };
    let settings = ControlSpec { name: &held, base: Base::Cubic, mark: Some(mark), dilation: dilation(20) };
    let _retcp = attach(&settings, None).expect("as for the parent");
    println!("\n{READY}");
    std::thread::sleep(Duration::from_secs(60));
}

/// The machine's own settings, which a congestion control must not change.
fn machine() -> [String; 2] {
    ["tcp_congestion_control", "tcp_allowed_congestion_control"]
        .map(|name| std::fs::read_to_string(format!("/proc/sys/net/ipv4/{name}")).expect("Linux has it"))
}

#[test]
fn kill_with_an_open_flow_leaves_no_retcp() {
    let others = |settings: String, name: &str| {
        settings.split_whitespace().filter(|word| !word.starts_with("ab") || *word == name).count()
    };
    for suffix in ["_ke", "_kd"] {
        let name = name(suffix);
        let Some((retcp, wire)) = start(&name, Base::Cubic, Some(Mark::Ece), 20) else { return };
        drop(retcp);
        assert!(comes(|| !is_left(&name).expect("root may list")));
        let [default, allowed] = machine();
        let mut holder = Command::new(std::env::current_exe().expect("this test"));
        holder.args(["--exact", "retcp::child_holds_its_control", "--nocapture"]).env(HELD, &name);
        let mut holder = holder.stdout(Stdio::piped()).spawn().expect("it starts");
        let mut lines = BufReader::new(holder.stdout.take().expect("piped")).lines().map_while(Result::ok);
        let is_ready = lines.any(|line| line == READY);
        let (mut near, reader) = wire.connect(false, |_| {}, |to| connect_under(&name, to));
        holder.kill().expect("it runs");
        holder.wait().expect("ours");
        assert!(is_ready, "the holder ends early");

        near.write_all(&vec![7; 1 << 20]).expect("the flow goes on");
        assert_eq!(tcp_congestion(&near).expect("TCP"), name);
        let fresh = socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
        assert_eq!(set_tcp_congestion(&fresh, &name), Err(rustix::io::Errno::NOENT));
        drop(near);
        assert_eq!(reader.join().expect("it reads"), 1 << 20);
        assert!(comes(|| !is_left(&name).expect("root may list")), "{name} is left");
        let [default_after, allowed_after] = machine();
        assert_eq!(default_after, default);
        // Congestion controls of other tests may appear and disappear meanwhile.
        assert_eq!(others(allowed_after, &name), others(allowed, &name));
    }
}
