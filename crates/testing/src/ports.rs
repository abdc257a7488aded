//! Ports for programs that are told where to listen before they start.

use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::sync::Mutex;

/// Lowest port returned, and number of ports. All are below Linux's ephemeral range, so no outgoing
/// connection and no listener at port 0 takes one.
const FIRST: u16 = 20_000;
const COUNT: u32 = 12_000;

/// Reservations of this process: abstract Unix sockets, which the kernel frees with the process.
static RESERVED: Mutex<Vec<UnixListener>> = Mutex::new(Vec::new());

/// Returns a port that no socket of this machine's loopback uses, and that no other call returns,
/// in this or in a concurrent test program.
///
/// Panics: if no port is free.
pub fn free_port() -> u16 {
    let mut reserved = RESERVED.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let first = std::process::id() * 37 + reserved.len() as u32;
    for number in first..first + COUNT {
        let port = FIRST + (number % COUNT) as u16;
        let name = SocketAddr::from_abstract_name(format!("anabranch-test-port-{port}"));
        let Ok(reservation) = UnixListener::bind_addr(&name.expect("a short name")) else { continue };
        let at = (Ipv4Addr::LOCALHOST, port);
        if TcpListener::bind(at).is_ok() && UdpSocket::bind(at).is_ok() {
            reserved.push(reservation);
            return port;
        }
    }
    panic!("no port from {FIRST} on is free");
}

#[cfg(test)]
mod tests {
    use super::free_port;

    #[test]
    fn ports_are_different_and_can_be_bound() {
        let mut ports: Vec<u16> = (0..100).map(|_| free_port()).collect();
        let listeners = ports.iter().map(|port| std::net::TcpListener::bind(("127.0.0.1", *port)));
        assert!(listeners.collect::<Result<Vec<_>, _>>().is_ok());
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), 100);
    }
}
