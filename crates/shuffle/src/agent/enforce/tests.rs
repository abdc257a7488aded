//! Tests of an agent's limits, and of the records in its state file. These tests do not need root.

use super::*;
use anabranch_pace::{PacerOptions, pacing_limit};
use anabranch_shuffle_proto::announced_flows::Socket;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, SendAncillaryBuffer, SendAncillaryMessage};
use std::collections::BTreeSet;
use std::mem::MaybeUninit;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;

fn limited(port: u16) -> LimitedConnection {
    let local = SocketAddr::from(([10, 0, 0, 1], port));
    LimitedConnection {
        local,
        remote: SocketAddr::from(([10, 0, 0, 2], 7000)),
        cookie: port.into(),
        before_bps: None,
    }
}

fn ports(left: &LeftoverLimits) -> Vec<u16> {
    left.0.iter().map(|limited| limited.local.port()).collect()
}

#[test]
fn state_file_keeps_pending_and_stuck_limits() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("state.jsonl");
    let (mut state, left) = StateFile::open(&path).expect("ours");
    assert!(left.is_empty() && state.tso_rtt_log().is_none());
    state.note_tso_rtt_log(Some(9)).expect("ours");
    state.add(&[limited(1), limited(2)]).expect("ours");
    state.stuck.push(limited(3));
    state.keep_only(&[limited(2)]).expect("ours");
    // Writes a partial line, as a process does that is killed while it writes.
    state.file.write_all(b"{\"local\":\"10.0.0.1:4").expect("ours");
    assert!(StateFile::open(&path).is_err(), "one at a time");
    // Copies the descriptor, as a fork in another thread does.
    let copy = state._lock.0.try_clone().expect("a descriptor");
    drop(state);

    let (mut state, left) = StateFile::open(&path).expect("ours");
    drop(copy);
    assert_eq!((state.tso_rtt_log(), ports(&left)), (Some(9), vec![3, 2]));
    state.note_tso_rtt_log(None).expect("ours");
    drop(state);
    let (mut state, _) = StateFile::open(&path).expect("ours");
    assert_eq!(state.tso_rtt_log(), None);
    state.keep_only([]).expect("ours");
    drop(state);
    let (_, left) = StateFile::open(&path).expect("ours");
    assert!(left.is_empty());
}

/// Creates an enforcer that sets limits through sockets only.
fn worker(folder: &tempfile::TempDir) -> Enforcement<Kernel> {
    let options = PacerOptions { bpf: false, ..PacerOptions::default() };
    let (state, _) = StateFile::open(&folder.path().join("state.jsonl")).expect("ours");
    Enforcement::new(Kernel {
        pacer: Pacer::new(&options).expect("sockets"),
        state,
        metrics: Arc::new(AgentMetrics::new()),
    })
}

fn connected() -> (TcpStream, TcpStream, FlowKey) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let near = TcpStream::connect(listener.local_addr().expect("bound")).expect("listening");
    let (far, _) = listener.accept().expect("connected");
    let (local, remote) = (near.local_addr().expect("connected"), near.peer_addr().expect("connected"));
    (near, far, FlowKey { local, remote })
}

fn limit(key: FlowKey, rate: Option<BitRate>) -> (FlowKey, Option<BitRate>, Socket) {
    let found = FlowReader::new().and_then(|mut reader| reader.find(key)).expect("asked").expect("there");
    (key, rate, Socket { cookie: found.cookie(), limit: None })
}

/// Sends a descriptor over a Unix socket. While the descriptor is in flight, no process has it
/// open.
fn post(stream: TcpStream, by: &UnixStream) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = [stream.as_fd()];
    assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
    let data = [std::io::IoSlice::new(b"x")];
    rustix::net::sendmsg(by, &data, &mut control, rustix::net::SendFlags::empty()).expect("there is room");
}

fn receive(by: &UnixStream) -> OwnedFd {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let (mut byte, flags) = ([0], rustix::net::RecvFlags::empty());
    let mut data = [std::io::IoSliceMut::new(&mut byte)];
    rustix::net::recvmsg(by, &mut data, &mut control, flags).expect("it was sent");
    let fds = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    fds.expect("it was sent")
}

#[test]
fn failed_lift_of_a_limit_is_retried() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut worker = worker(&folder);
    let (near, _far, flow) = connected();
    let rate = BitRate::mbps(5);
    worker.carry_out(LimitOrder::Set(vec![limit(flow, Some(rate))]));
    assert_eq!(pacing_limit(&near).expect("ours"), Some(rate));
    let (from, to) = UnixStream::pair().expect("two ends");
    post(near, &from);
    worker.carry_out(LimitOrder::LiftAll);
    worker.carry_out(LimitOrder::Keep(BTreeSet::from([flow])));
    assert_eq!(worker.limited().len(), 1);
    let near = receive(&to);
    assert_eq!(pacing_limit(&near).expect("ours"), Some(rate));
    worker.carry_out(LimitOrder::Keep(BTreeSet::from([flow])));
    assert_eq!(pacing_limit(&near).expect("ours"), None);
    assert!(worker.limited().is_empty());
}

#[test]
fn recorded_limits_are_lifted_with_an_unwritable_file() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut worker = worker(&folder);
    let ((near, _far, known), (other, _its_far, new)) = (connected(), connected());
    worker.carry_out(LimitOrder::Set(vec![limit(known, Some(BitRate::mbps(5)))]));
    let full = File::options().read(true).write(true).open("/dev/full").expect("every Linux has it");
    let file = std::mem::replace(&mut worker.host_mut().state.file, full);
    let seven = Some(BitRate::mbps(7));
    worker.carry_out(LimitOrder::Set(vec![limit(known, seven), limit(new, seven)]));
    let limits = [&near, &other].map(|stream| pacing_limit(stream).expect("ours"));
    assert_eq!(limits, [seven, None]);
    worker.carry_out(LimitOrder::Set(vec![limit(known, None), limit(new, seven)]));
    let limits = [&near, &other].map(|stream| pacing_limit(stream).expect("ours"));
    assert_eq!(limits, [None, None]);
    worker.host_mut().state.file = file;
    worker.carry_out(LimitOrder::Set(vec![limit(new, seven)]));
    assert_eq!(pacing_limit(&other).expect("ours"), Some(BitRate::mbps(7)));
}
