//! Current addresses of the peers, the kernel's rules for these addresses, and the sessions that
//! receive the peers' connections.
//!
//! A peer's session claims the address that the peer's name resolves to, and releases the address
//! when the name resolves to another. Read [`Directory`] first.

use crate::routing::Routing;
use anabranch_spray_proto::kernel::PeerEndpoint;
use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio_rustls::TlsStream;

/// Queue of one peer's incoming connections.
pub(crate) type CallSender = mpsc::Sender<TlsStream<TcpStream>>;

/// A peer with a known address.
struct Entry {
    link: usize,
    name: String,
    place: PeerEndpoint,
    calls: CallSender,
}

/// All peers with a known address.
pub(crate) struct Directory {
    routing: Arc<Routing>,
    entries: Mutex<BTreeMap<IpAddr, Entry>>,
}

impl Directory {
    pub(crate) fn new(routing: Arc<Routing>) -> Self {
        Self { routing, entries: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<IpAddr, Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Assigns an address to the peer of this link, and updates the kernel's rules. Blocks for
    /// netlink.
    ///
    /// Errors: another peer has the address; the kernel refuses a rule.
    pub(crate) fn claim(
        &self,
        link: usize,
        name: &str,
        place: PeerEndpoint,
        calls: CallSender,
    ) -> io::Result<()> {
        let mut entries = self.lock();
        if let Some(other) = entries.get(&place.address).filter(|entry| entry.link != link) {
            let line = format!("{} is the address of peer `{}`, too", place.address, other.name);
            return Err(io::Error::other(line));
        }
        entries.retain(|_, entry| entry.link != link);
        entries.insert(place.address, Entry { link, name: name.to_owned(), place, calls });
        self.follow(&entries)
    }

    /// Releases the address of this link's peer, and deletes the kernel's rules for it. Blocks for
    /// netlink.
    pub(crate) fn release(&self, link: usize) {
        let mut entries = self.lock();
        entries.retain(|_, entry| entry.link != link);
        if let Err(error) = self.follow(&entries) {
            tracing::debug!(%error, "rules of a peer that is gone stay until the next comparison");
        }
    }

    fn follow(&self, entries: &BTreeMap<IpAddr, Entry>) -> io::Result<()> {
        let places = entries.values().map(|entry| entry.place).collect();
        self.routing.set_peers(places).map_err(io::Error::other)
    }

    /// Returns the queue for connections of this peer, if `from` is the peer's own address.
    pub(crate) fn calls_of(&self, name: &str, from: IpAddr) -> Option<CallSender> {
        self.lock().get(&from).filter(|entry| entry.name == name).map(|entry| entry.calls.clone())
    }

    /// Addresses of the peers by link number.
    pub(crate) fn addresses(&self) -> BTreeMap<usize, IpAddr> {
        self.lock().iter().map(|(address, entry)| (entry.link, *address)).collect()
    }
}
