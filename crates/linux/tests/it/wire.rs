//! Two hosts, each a network namespace, connected by a wire that marks packets between their TUN
//! devices.
//!
//! Read [`Wire`] and [`Marking`].

use std::collections::VecDeque;
use std::io::Read as _;
use std::net::{IpAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anabranch_linux::namespace::Namespace;
use anabranch_linux::rtnetlink::{Address, LOOPBACK, LinkChange, Prefix, Rtnetlink};
use anabranch_linux::tun;
use anabranch_testing::skip::is_lacking;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

const DEVICE: &str = "ab0";
/// MTU of the devices, in bytes.
const PACKET_BYTES_MAX: usize = 1_500;
/// Interval at which the wire checks whether to stop.
const TICK: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
/// The interval while packets are delayed.
const SHORT_TICK: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
const TCP: u8 = 6;

/// The change that marks a packet.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Marking {
    /// ECE in the TCP header.
    Ece,
    /// A DSCP in the IP header.
    Dscp(u8),
}

/// Settings of the wire, and its counters.
#[derive(Debug, Default)]
pub struct State {
    /// True if packets from the receiver are marked. Phases override it.
    pub is_marking: AtomicBool,
    /// Number of packets in each phase without marks and in each phase with marks; 0 to disable
    /// phases.
    pub phase_packets: AtomicU64,
    /// True if packets with data get a congestion mark (CE of RFC 3168).
    pub is_congested: AtomicBool,
    /// Delay in each direction, in milliseconds.
    pub delay_ms: AtomicU64,
    /// True if the next packet with data is lost.
    pub loses_next: AtomicBool,
    /// TCP packets from the receiver, except the first packet of the handshake.
    pub packets: AtomicU64,
    /// Packets that were marked.
    pub marked: AtomicU64,
    /// Transitions from unmarked to marked packets, then from marked to unmarked ones.
    pub ups: AtomicU64,
    pub downs: AtomicU64,
    is_over: AtomicBool,
    last: AtomicBool,
}

/// Two hosts and the wire between them.
pub struct Wire {
    pub sender: Namespace,
    pub receiver: Namespace,
    pub state: Arc<State>,
    thread: Option<JoinHandle<()>>,
}

impl Wire {
    /// Creates the hosts and the wire. Fails with the reason if the machine permits none.
    pub fn new(marking: Marking) -> Result<Self, String> {
        // Error number for the maximum number of namespaces.
        const ENOSPC: i32 = 28;
        let namespace = || match Namespace::new_network() {
            Err(error) if is_lacking(&error, &[ENOSPC]) => Err(format!("no network namespace: {error}")),
            made => Ok(made.expect("a namespace")),
        };
        tun::check().map_err(|error| format!("/dev/net/tun: {error}"))?;
        let (sender, receiver) = (namespace()?, namespace()?);
        let ends = [set_up(&sender, 1), set_up(&receiver, 2)];
        let state = Arc::new(State::default());
        let carried = state.clone();
        let thread = std::thread::spawn(move || carry(&ends, marking, &carried));
        Ok(Self { sender, receiver, state, thread: Some(thread) })
    }

    /// Sets a sysctl below `net` on both hosts.
    pub fn set(&self, name: &str, value: &str) {
        for host in [&self.sender, &self.receiver] {
            let path = format!("/proc/sys/net/{name}");
            host.run(|| std::fs::write(&path, value))
                .expect("ours")
                .unwrap_or_else(|e| panic!("{path}: {e}"));
        }
    }

    /// As [`Self::set`], for a sysctl that older kernels lack.
    pub fn set_if_there(&self, name: &str, value: &str) {
        if std::path::Path::new("/proc/sys/net").join(name).exists() {
            self.set(name, value);
        }
    }

    /// Opens a connection from the sender with `connect`, and starts a thread at the receiver that
    /// reads all data. `prepare` is called with the listening socket.
    pub fn connect(
        &self,
        is_ipv6: bool,
        prepare: impl FnOnce(&TcpListener) + Send,
        connect: impl FnOnce(std::net::SocketAddr) -> TcpStream + Send,
    ) -> (TcpStream, JoinHandle<u64>) {
        let at = (address(2, is_ipv6), 0);
        let listener = self.receiver.run(|| {
            let listener = TcpListener::bind(at).expect("its own address");
            prepare(&listener);
            listener
        });
        let listener = listener.expect("ours");
        let to = listener.local_addr().expect("bound");
        let near = self.sender.run(|| connect(to)).expect("ours");
        let (mut far, _) = listener.accept().expect("it has connected");
        let reader = std::thread::spawn(move || {
            let (mut bytes, mut chunk) = (0, vec![0; 1 << 16]);
            while let Ok(length @ 1..) = far.read(&mut chunk) {
                bytes += length as u64;
            }
            bytes
        });
        (near, reader)
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.state.is_over.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(ended.is_ok() || std::thread::panicking(), "the wire has failed");
        }
    }
}

pub fn address(host: u8, is_ipv6: bool) -> IpAddr {
    if is_ipv6 { [0xfd51, 0, 0, 0, 0, 0, 0, host.into()].into() } else { [10, 51, 0, host].into() }
}

/// Creates a host's device and sets its addresses.
fn set_up(namespace: &Namespace, host: u8) -> OwnedFd {
    let device = Mutex::new(None);
    namespace
        .run(|| {
            // An address is usable immediately if the kernel does not check for duplicates.
            let path = "/proc/sys/net/ipv6/conf/default/accept_dad";
            std::fs::write(path, "0").expect("a namespace of our own");
            *device.lock().expect("no panic") = Some(tun::open(DEVICE).expect("a device"));
            let mut kernel = Rtnetlink::open().expect("netlink");
            let index = kernel.index_of(DEVICE).expect("it is there");
            let up = LinkChange { set_up: true, ..LinkChange::default() };
            for link in [LOOPBACK, index] {
                kernel.change_link(link, &up).expect("ours");
            }
            for (is_ipv6, bits) in [(false, 24), (true, 64)] {
                let prefix = Prefix { address: address(host, is_ipv6), bits };
                kernel.add_address(Address { device: index, prefix }).expect("ours");
            }
            assert!(comes(|| TcpListener::bind((address(host, true), 0)).is_ok()));
        })
        .expect("ours");
    device.into_inner().expect("no panic").expect("it was made")
}

/// Carries packets in both directions until the wire is dropped.
fn carry(ends: &[OwnedFd; 2], marking: Marking, state: &State) {
    let mut packet = [0; PACKET_BYTES_MAX];
    let mut waiting: VecDeque<(Instant, usize, Vec<u8>)> = VecDeque::new();
    while !state.is_over.load(Relaxed) {
        let mut fds = ends.each_ref().map(|end| PollFd::new(end, PollFlags::IN));
        let _ = poll(&mut fds, Some(if waiting.is_empty() { &TICK } else { &SHORT_TICK }));
        while waiting.front().is_some_and(|(due, ..)| *due <= Instant::now()) {
            let (_, to, bytes) = waiting.pop_front().expect("it was looked at");
            let _ = rustix::io::write(&ends[to], &bytes);
        }
        for (from, to) in [(0, 1), (1, 0)] {
            while let Ok(length) = rustix::io::read(&ends[from], &mut packet[..]) {
                let bytes = &mut packet[..length];
                if from == 0 {
                    congest(bytes, state);
                    if bytes.len() > PACKET_BYTES_MAX / 2 && state.loses_next.swap(false, Relaxed) {
                        continue;
                    }
                } else {
                    mark(bytes, marking, state);
                }
                let delay = Duration::from_millis(state.delay_ms.load(Relaxed));
                if !delay.is_zero() {
                    waiting.push_back((Instant::now() + delay, to, bytes.to_vec()));
                    continue;
                }
                // A full device drops the packet, like a receiver at the end of a wire.
                let _ = rustix::io::write(&ends[to], bytes);
            }
        }
    }
}

/// Offset of the TCP header in a packet; `None` for other protocols and for packets that open a
/// connection.
fn tcp(packet: &[u8]) -> Option<usize> {
    const SYN: u8 = 2;
    let (protocol, at) = match packet.first()? >> 4 {
        4 => (*packet.get(9)?, usize::from(packet[0] & 15) * 4),
        6 => (*packet.get(6)?, 40),
        _ => return None,
    };
    (protocol == TCP && packet.get(at + 13)? & SYN == 0).then_some(at)
}

fn mark(packet: &mut [u8], marking: Marking, state: &State) {
    let Some(at) = tcp(packet) else { return };
    let index = state.packets.fetch_add(1, Relaxed);
    let is_marked = match state.phase_packets.load(Relaxed) {
        0 => state.is_marking.load(Relaxed),
        length => index / length % 2 == 1,
    };
    if state.last.swap(is_marked, Relaxed) != is_marked {
        let transitions = if is_marked { &state.ups } else { &state.downs };
        transitions.fetch_add(1, Relaxed);
    }
    if !is_marked {
        return;
    }
    state.marked.fetch_add(1, Relaxed);
    match marking {
        Marking::Ece => change(packet, at + 12, at + 16, |word| word | 0x40),
        Marking::Dscp(value) => set_class(packet, |class| class & 3 | u16::from(value) << 2),
    }
}

/// Sets the congestion mark in ECN-capable packets.
fn congest(packet: &mut [u8], state: &State) {
    if state.is_congested.load(Relaxed) && tcp(packet).is_some() {
        // A packet without ECN has the field 0.
        set_class(packet, |class| if class & 3 == 0 { class } else { class | 3 });
    }
}

/// Changes the byte of DSCP and ECN.
fn set_class(packet: &mut [u8], class: impl FnOnce(u16) -> u16) {
    if packet[0] >> 4 == 4 {
        change(packet, 0, 10, |word| word & 0xff00 | class(word & 0xff));
    } else {
        let word = u16::from_be_bytes([packet[0], packet[1]]);
        let word = word & 0xf00f | class(word >> 4 & 0xff) << 4;
        packet[..2].copy_from_slice(&word.to_be_bytes());
    }
}

/// Changes two bytes, and the checksum that covers them (RFC 1624, equation 3).
fn change(packet: &mut [u8], at: usize, checksum: usize, by: impl FnOnce(u16) -> u16) {
    let read = |packet: &[u8], at| u16::from_be_bytes([packet[at], packet[at + 1]]);
    let old = read(packet, at);
    let new = by(old);
    let sum = u32::from(!read(packet, checksum)) + u32::from(!old) + u32::from(new);
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    packet[at..at + 2].copy_from_slice(&new.to_be_bytes());
    packet[checksum..checksum + 2].copy_from_slice(&(!(sum as u16)).to_be_bytes());
}

/// Waits for a condition. Returns false on timeout.
pub fn comes(mut condition: impl FnMut() -> bool) -> bool {
    const PATIENCE: Duration = Duration::from_secs(60);
    let began = Instant::now();
    while !condition() {
        if began.elapsed() > PATIENCE {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    true
}
