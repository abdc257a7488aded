//! A path for datagrams between a server and its clients, with loss, corruption, duplication, delay
//! and replay.
//!
//! Clients send to the path's port (`serve --advertise-port`); each client has a separate socket
//! towards the server. A seeded stream decides the harm to each datagram, but not the times,
//! because both ends have real clocks.

use anabranch_units::{RandomStream, Seed};
use std::collections::VecDeque;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// A request rate that a busy machine carries over loopback: only the test causes losses.
pub const LINK: [&str; 2] = ["--link", "400 Mbit/s"];
/// A request rate at which an object takes more than ten seconds, so that a late test still
/// interrupts its pull.
pub const SLOW_LINK: [&str; 2] = ["--link", "16 Mbit/s"];

/// Rates of harm to datagrams per million, in either direction.
#[derive(Copy, Clone, Debug, Default)]
pub struct DatagramHarm {
    pub loss_ppm: u32,
    /// One bit of the datagram is flipped.
    pub flip_ppm: u32,
    pub repeat_ppm: u32,
    /// Up to twenty later datagrams overtake the datagram.
    pub late_ppm: u32,
    /// An old datagram is replayed.
    pub replay_ppm: u32,
    /// With each datagram towards the client, forged datagrams with the client's channel are sent
    /// to both ends.
    pub spoofs: bool,
}

/// Number of old datagrams kept for replay.
const OLD_MAX: usize = 4_096;
/// Time for which a delayed datagram waits for later ones.
const IDLE: Duration = Duration::from_millis(5);

struct HarmState {
    harm: DatagramHarm,
    random: RandomStream,
    late: Vec<(u64, Vec<u8>)>,
    old: VecDeque<Vec<u8>>,
}

impl HarmState {
    fn new(harm: DatagramHarm, seed: Seed, number: u64) -> Self {
        Self { harm, random: seed.stream("way", number), late: Vec::new(), old: VecDeque::new() }
    }

    /// Returns the datagrams that leave the path when `datagram` enters it.
    fn pass(&mut self, datagram: &[u8]) -> Vec<Vec<u8>> {
        let (harm, random) = (self.harm, &mut self.random);
        let mut out = Vec::new();
        if !random.chance_ppm(harm.loss_ppm) {
            for _ in 0..1 + u32::from(random.chance_ppm(harm.repeat_ppm)) {
                let mut copy = datagram.to_vec();
                if random.chance_ppm(harm.flip_ppm) {
                    let bit = random.next_u64() as usize % (8 * copy.len());
                    copy[bit / 8] ^= 1 << (bit % 8);
                }
                if random.chance_ppm(harm.late_ppm) {
                    self.late.push((1 + random.next_u64() % 20, copy));
                } else {
                    out.push(copy);
                }
            }
        }
        if harm.replay_ppm > 0 {
            if random.chance_ppm(harm.replay_ppm) && !self.old.is_empty() {
                out.push(self.old[random.next_u64() as usize % self.old.len()].clone());
            }
            if self.old.len() == OLD_MAX {
                self.old.pop_front();
            }
            self.old.push_back(datagram.to_vec());
        }
        self.late.iter_mut().for_each(|(left, _)| *left -= 1);
        out.extend(self.late.extract_if(.., |(left, _)| *left == 0).map(|(_, late)| late));
        out
    }

    fn idle(&mut self) -> Vec<Vec<u8>> {
        self.late.drain(..).map(|(_, late)| late).collect()
    }
}

/// The path to one server, which ends on drop.
pub struct HarmfulPath {
    pub port: u16,
    server: Arc<OnceLock<SocketAddr>>,
    is_over: Arc<AtomicBool>,
}

impl HarmfulPath {
    pub fn new(harm: DatagramHarm, seed: u64) -> Self {
        let front = socket();
        let port = front.local_addr().expect("it is bound").port();
        let way = Self { port, server: Arc::new(OnceLock::new()), is_over: Arc::new(AtomicBool::new(false)) };
        let (server, is_over) = (Arc::clone(&way.server), Arc::clone(&way.is_over));
        std::thread::spawn(move || to_server(&Arc::new(front), harm, Seed::new(seed), &server, &is_over));
        way
    }

    /// Sets the address of the server, which is known only after the server's start.
    pub fn lead_to(&self, server: SocketAddr) {
        self.server.set(server).expect("a way leads to one server");
    }
}

impl Drop for HarmfulPath {
    fn drop(&mut self) {
        self.is_over.store(true, Relaxed);
    }
}

fn socket() -> UdpSocket {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("loopback is there");
    socket.set_read_timeout(Some(IDLE)).expect("more than no time");
    // The buffer is large, so that only the path itself loses datagrams.
    rustix::net::sockopt::set_socket_recv_buffer_size(&socket, 4 << 20).expect("cut to what is allowed");
    socket
}

/// Returns the next datagram; `None` if no datagram arrives for a while.
fn next(socket: &UdpSocket, buffer: &mut [u8]) -> Option<(usize, SocketAddr)> {
    match socket.recv_from(buffer) {
        Ok(found) => Some(found),
        // The socket of an ended process refuses datagrams.
        Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::ConnectionRefused) => None,
        Err(e) => panic!("{e}"),
    }
}

fn to_server(
    front: &Arc<UdpSocket>,
    harm: DatagramHarm,
    seed: Seed,
    server: &OnceLock<SocketAddr>,
    is_over: &Arc<AtomicBool>,
) {
    let mut backs: Vec<(SocketAddr, Arc<UdpSocket>, HarmState)> = Vec::new();
    let mut buffer = vec![0; 1 << 16];
    while !is_over.load(Relaxed) {
        let Some((length, client)) = next(front, &mut buffer) else {
            for (_, back, passing) in &mut backs {
                passing.idle().iter().for_each(|out| drop(back.send(out)));
            }
            continue;
        };
        let Some(server) = server.get() else { continue };
        let at = backs.iter().position(|(from, ..)| *from == client).unwrap_or_else(|| {
            let back = Arc::new(socket());
            back.connect(server).expect("loopback is there");
            let number = backs.len() as u64;
            let passing = HarmState::new(harm, seed, 2 * number + 1);
            let ends = (Arc::clone(front), Arc::clone(&back), Arc::clone(is_over), *server);
            std::thread::spawn(move || {
                let (front, back, is_over, server) = ends;
                to_client(&front, &back, client, server, passing, &is_over);
            });
            backs.push((client, back, HarmState::new(harm, seed, 2 * number)));
            backs.len() - 1
        });
        let (_, back, passing) = &mut backs[at];
        passing.pass(&buffer[..length]).iter().for_each(|out| drop(back.send(out)));
    }
}

fn to_client(
    front: &UdpSocket,
    back: &UdpSocket,
    client: SocketAddr,
    server: SocketAddr,
    mut passing: HarmState,
    is_over: &AtomicBool,
) {
    let stranger = socket();
    let mut buffer = vec![0; 1 << 16];
    while !is_over.load(Relaxed) {
        let found = next(back, &mut buffer);
        let out = match found {
            Some((length, _)) => passing.pass(&buffer[..length]),
            None => passing.idle(),
        };
        if passing.harm.spoofs && found.is_some() {
            let mut garbage = buffer[..100].to_vec();
            garbage[16..].fill_with(|| passing.random.next_u64() as u8);
            for to in [client, server] {
                drop(stranger.send_to(&garbage, to));
            }
        }
        out.iter().for_each(|out| drop(front.send_to(out, client)));
    }
}
