//! Tests that a congestion control made of BPF programs carries a TCP flow.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anabranch_linux::bpf::asm::{Assembler, Helper, Width};
use anabranch_linux::bpf::btf::{Btf, VMLINUX};
use anabranch_linux::bpf::congestion::{CongestionControl, RegisterError, registered};
use anabranch_linux::bpf::sys::Map;
use anabranch_linux::namespace::Namespace;
use anabranch_linux::rtnetlink::{LOOPBACK, LinkChange, Rtnetlink};
use anabranch_linux::sock_diag::FlowReader;
use anabranch_testing::skip::{is_lacking, skip};
use rustix::net::sockopt::set_tcp_congestion;
use rustix::net::{AddressFamily, SocketType, connect, socket};

use super::wire::comes;

const PATIENCE: Duration = Duration::from_secs(60);
const STACK: u8 = 10;
const BYTES: usize = 4 << 20;

/// A program that calls a kernel function with its first argument, the socket, and returns the
/// result.
fn forward(types: &Btf<'_>, function: &str) -> Option<Vec<u64>> {
    let mut asm = Assembler::default();
    asm.load(Width::Double, 1, 1, 0);
    asm.call_kernel(types.function(function)?);
    asm.exit();
    Some(asm.finish())
}

/// A program that counts its calls under key 0 of a map, and lets Reno change the window.
fn counting_reno(types: &Btf<'_>, counts: &Map<4, 8>) -> Option<Vec<u64>> {
    let mut asm = Assembler::default();
    let uncounted = asm.label();
    for (register, argument) in [(6, 0), (7, 8), (8, 16)] {
        asm.load(Width::Double, register, 1, argument);
    }
    asm.store_value(Width::Word, STACK, -4, 0);
    asm.set_map(1, counts.raw_fd());
    asm.copy(2, STACK);
    asm.add(2, -4);
    asm.call(Helper::MapLookupElem);
    asm.jump_if_equal(0, 0, uncounted);
    asm.set(1, 1);
    asm.atomic_add(0, 0, 1);
    asm.place(uncounted);
    for (argument, register) in [(1, 6), (2, 7), (3, 8)] {
        asm.copy(argument, register);
    }
    asm.call_kernel(types.function("tcp_reno_cong_avoid")?);
    asm.set(0, 0);
    asm.exit();
    Some(asm.finish())
}

fn programs(types: &Btf<'_>, counts: &Map<4, 8>) -> Option<Vec<(&'static str, Vec<u64>)>> {
    Some(vec![
        ("ssthresh", forward(types, "tcp_reno_ssthresh")?),
        ("undo_cwnd", forward(types, "tcp_reno_undo_cwnd")?),
        ("cong_avoid", counting_reno(types, counts)?),
    ])
}

/// Returns true if the error means that this machine does not support BPF congestion controls.
fn lacks(error: &RegisterError) -> bool {
    match error {
        RegisterError::Missing { .. } => true,
        RegisterError::Program { error, .. } | RegisterError::Refused { error, .. } => is_lacking(error, &[]),
        _ => false,
    }
}

/// Connects a socket under the congestion control to `to`.
fn connect_under(name: &str, to: SocketAddr) -> std::io::Result<TcpStream> {
    let near = socket(AddressFamily::INET, SocketType::STREAM, None)?;
    set_tcp_congestion(&near, name)?;
    connect(&near, &to)?;
    Ok(near.into())
}

/// Sends [`BYTES`] over loopback. Returns the name of the congestion control that the kernel
/// reports for the flow.
fn send_over(name: &str) -> String {
    let up = LinkChange { set_up: true, ..LinkChange::default() };
    Rtnetlink::open().expect("netlink").change_link(LOOPBACK, &up).expect("our own namespace");
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let mut near = connect_under(name, listener.local_addr().expect("bound")).expect("it listens");
    let (mut far, _) = listener.accept().expect("it has connected");
    let sender =
        std::thread::spawn(move || near.write_all(&vec![7; BYTES]).map(|()| near).expect("it is read"));
    let mut received = vec![0; BYTES];
    far.read_exact(&mut received).expect("it is sent");
    let near = sender.join().expect("it sends");
    let flow = anabranch_units::FlowKey::new(
        near.local_addr().expect("connected"),
        near.peer_addr().expect("connected"),
    );
    let state = FlowReader::new().and_then(|mut reader| reader.find(flow)).expect("sock_diag");
    state.and_then(|state| state.congestion_control).expect("a flow has a control")
}

/// Registers the counting congestion control. Fails with the reason if the machine does not support
/// it.
fn register(name: &str) -> Result<(CongestionControl, Map<4, 8>), String> {
    let bytes =
        std::fs::read(VMLINUX).map_err(|error| format!("no type information of the kernel: {error}"))?;
    let types = Btf::parse(&bytes).expect("a kernel's own types");
    let counts = match Map::<4, 8>::new(1) {
        Err(error) if is_lacking(&error, &[]) => return Err(format!("no BPF map: {error}")),
        made => made.expect("a map"),
    };
    counts.insert(&[0; 4], &[0; 8]).expect("room for one");
    let programs = programs(&types, &counts).ok_or("the kernel exports no functions of Reno")?;
    match CongestionControl::register(&types, name, 0, &programs) {
        Err(error) if lacks(&error) => Err(error.to_string()),
        made => Ok((made.expect("the kernel takes it"), counts)),
    }
}

/// Waits until the kernel has freed the congestion control.
fn await_removal(name: &str) {
    let began = Instant::now();
    while registered().expect("root may list").iter().any(|other| other == name) {
        assert!(began.elapsed() < PATIENCE, "{name} is never freed");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn tcp_flow_runs_under_a_bpf_congestion_control() {
    // Congestion controls are registered for the whole machine, so each run of this test needs its
    // own name.
    let name = format!("ab_{:x}", std::process::id());
    let (control, counts) = match register(&name) {
        Ok(registered) => registered,
        Err(why) => return skip(&why),
    };
    assert!(registered().expect("root may list").contains(&name));
    let namespace = Namespace::new_network().expect("root may make one");
    assert_eq!(namespace.run(|| send_over(&name)).expect("ours"), name);
    let calls = u64::from_ne_bytes(counts.find(&[0; 4]).expect("it is read").expect("it is there"));
    assert!(calls > 0, "the kernel calls the control's programs");

    drop(control);
    // A process that another test forks also holds the link, until it executes its program.
    let is_refused = || {
        let near = socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
        set_tcp_congestion(&near, &name) == Err(rustix::io::Errno::NOENT)
    };
    assert!(namespace.run(|| comes(is_refused)).expect("ours"), "{name} can still be chosen");
    await_removal(&name);
}

/// Environment variable with the name of the congestion control that the child of the next test
/// registers.
const HELD: &str = "ANABRANCH_TEST_CONTROL";
const READY: &str = "the control is registered";

/// Body of the child process of `killed_process_leaves_no_registered_congestion_control`, which
/// sets [`HELD`]. Without the variable it does nothing.
#[test]
fn child_holds_its_control() {
    let Ok(name) = std::env::var(HELD) else { return };
    let _control = register(&name).expect("as for the parent");
    println!("\n{READY}");
    std::thread::sleep(PATIENCE);
}

#[test]
fn killed_process_leaves_no_registered_congestion_control() {
    let name = format!("ab_{:x}_k", std::process::id());
    if let Err(why) = register(&name).map(drop) {
        return skip(&why);
    }
    await_removal(&name);
    let mut holder = Command::new(std::env::current_exe().expect("this test"));
    holder.args(["--exact", "congestion::child_holds_its_control", "--nocapture"]).env(HELD, &name);
    let mut holder = holder.stdout(Stdio::piped()).spawn().expect("it starts");
    let mut lines = BufReader::new(holder.stdout.take().expect("piped")).lines().map_while(Result::ok);
    assert!(lines.any(|line| line == READY), "the holder ends early");
    assert!(registered().expect("root may list").contains(&name));
    holder.kill().expect("it runs");
    holder.wait().expect("ours");
    await_removal(&name);
}

#[test]
fn verifier_refusal_is_explained() {
    let Ok(bytes) = std::fs::read(VMLINUX) else { return skip("no type information of the kernel") };
    let types = Btf::parse(&bytes).expect("a kernel's own types");
    let mut asm = Assembler::default();
    // The program exits without a result in `R0`.
    asm.exit();
    let name = format!("ab_{:x}_bad", std::process::id());
    match CongestionControl::register(&types, &name, 0, &[("ssthresh", asm.finish())]) {
        Err(RegisterError::Program { member, log, .. }) if !log.is_empty() => {
            assert_eq!(member, "ssthresh");
            assert!(log.contains("R0"), "{log}");
        }
        Err(error) if lacks(&error) => skip(&error.to_string()),
        other => panic!("{other:?}"),
    }
}
