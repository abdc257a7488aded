//! Open datagram channels of a server, by client address and channel id, and the last datagrams for
//! channels that are not open yet.
//!
//! The client draws its channel's id at random. An id is valid at the client's address only:
//! another client that knows or guesses the id can neither take over the channel nor block its
//! owner. As soon as a client has keys, it sends one datagram to show its address for packets. That
//! datagram usually overtakes the greeting that names its channel, so the last few early datagrams
//! are kept. They prove nothing until their session has authenticated them. If the buffer
//! overflows, the client sends its datagram again.

use super::{Datagrams, ReceivedDatagram};
use anabranch_net::seal::{ChannelId, OVERHEAD_BYTES};
use std::collections::btree_map::Entry as Slot;
use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};

/// Maximum number of datagrams kept for channels that are not open yet. Each is at most as long as
/// the sealing overhead.
const EARLY_MAX: usize = 256;

/// Key of a channel: the client's address and the channel's id.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ChannelKey {
    at: IpAddr,
    id: ChannelId,
}

impl ChannelKey {
    /// The channel `id` of the client at `client`.
    pub fn new(client: SocketAddr, id: ChannelId) -> Self {
        Self { at: client.ip().to_canonical(), id }
    }

    /// Key of channel `id` of the same client.
    pub const fn with(self, id: ChannelId) -> Self {
        Self { id, ..self }
    }
}

/// Outcome of [`Channels::hand_on`].
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum HandOnResult {
    /// The datagram was passed to the channel's session.
    Handed,
    /// The datagram was dropped, because the session's queue is full.
    Crowded,
    /// The datagram's channel is not open.
    Stray,
}

/// All channels of a server.
#[derive(Debug, Default)]
pub struct Channels {
    open: BTreeMap<ChannelKey, Datagrams>,
    /// Datagrams of channels that are not open yet, the newest last.
    early: VecDeque<(ChannelKey, ReceivedDatagram)>,
}

impl Channels {
    /// Opens a channel and sends its datagrams to `datagrams`, including early datagrams. Returns
    /// false if the channel is already open.
    pub fn open(&mut self, place: ChannelKey, datagrams: &Datagrams) -> bool {
        let Slot::Vacant(slot) = self.open.entry(place) else { return false };
        slot.insert(datagrams.clone());
        let (its, others) = std::mem::take(&mut self.early).into_iter().partition(|(of, _)| *of == place);
        self.early = others;
        for (_, datagram) in its {
            // The session is not running yet, so its queue has room.
            let _ = datagrams.try_send(datagram);
        }
        true
    }

    /// Closes a channel.
    pub fn close(&mut self, place: ChannelKey) {
        self.open.remove(&place);
    }

    /// Passes a datagram to the session of its channel, if the channel is open.
    pub fn hand_on(&mut self, id: ChannelId, from: SocketAddr, bytes: &[u8]) -> HandOnResult {
        let place = ChannelKey::new(from, id);
        let Some(session) = self.open.get(&place) else {
            // A longer datagram is feedback, which refers to packets of open channels.
            if bytes.len() <= OVERHEAD_BYTES {
                if self.early.len() >= EARLY_MAX {
                    self.early.pop_front();
                }
                self.early.push_back((place, (from, bytes.to_vec())));
            }
            return HandOnResult::Stray;
        };
        match session.try_send((from, bytes.to_vec())) {
            Ok(()) => HandOnResult::Handed,
            Err(_) => HandOnResult::Crowded,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::mpsc;

    const SHOWN: [u8; OVERHEAD_BYTES] = [7; OVERHEAD_BYTES];

    fn at(last: u8, port: u16) -> SocketAddr {
        SocketAddr::from(([192, 0, 2, last], port))
    }

    #[test]
    fn early_datagrams_pass_once_the_channel_opens() {
        let mut channels = Channels::default();
        let (datagrams, mut out) = mpsc::channel(EARLY_MAX);
        let id = ChannelId(5);
        assert_eq!(channels.hand_on(id, at(1, 9), &SHOWN), HandOnResult::Stray);
        assert_eq!(channels.hand_on(ChannelId(6), at(1, 9), &SHOWN), HandOnResult::Stray);
        // Only a datagram that shows an address is kept.
        assert_eq!(channels.hand_on(id, at(1, 10), &[7; OVERHEAD_BYTES + 1]), HandOnResult::Stray);
        // The client's TLS stream has another port than its datagrams.
        assert!(channels.open(ChannelKey::new(at(1, 4_000), id), &datagrams));
        assert_eq!(out.try_recv().ok(), Some((at(1, 9), SHOWN.to_vec())));
        assert!(out.try_recv().is_err());
        assert_eq!(channels.hand_on(id, at(1, 9), &SHOWN), HandOnResult::Handed);
        assert_eq!(channels.early.len(), 1);
    }

    #[test]
    fn channel_belongs_to_the_address_of_its_client() {
        let mut channels = Channels::default();
        let (datagrams, mut out) = mpsc::channel(EARLY_MAX);
        let (others, mut others_out) = mpsc::channel(EARLY_MAX);
        let id = ChannelId(5);
        // Another client already uses the same id. The owner can open its channel nevertheless.
        assert!(channels.open(ChannelKey::new(at(2, 1), id), &others));
        assert!(channels.open(ChannelKey::new(at(1, 1), id), &datagrams));
        assert!(!channels.open(ChannelKey::new(at(1, 2), id), &others), "it is open");
        assert_eq!(channels.hand_on(id, at(1, 3), &SHOWN), HandOnResult::Handed);
        assert!(out.try_recv().is_ok() && others_out.try_recv().is_err());
        // An IPv4 address counts as the same address at an IPv6 socket.
        let mapped = SocketAddr::new(std::net::Ipv4Addr::new(192, 0, 2, 1).to_ipv6_mapped().into(), 3);
        assert_eq!(channels.hand_on(id, mapped, &SHOWN), HandOnResult::Handed);
        channels.close(ChannelKey::new(at(1, 1), id));
        assert_eq!(channels.hand_on(id, at(1, 3), &SHOWN), HandOnResult::Stray);
        assert_eq!(channels.hand_on(id, at(2, 3), &SHOWN), HandOnResult::Handed);
    }

    #[test]
    fn flood_of_unknown_datagrams_is_not_stored() {
        let mut channels = Channels::default();
        for id in 0..10 * EARLY_MAX as u64 {
            channels.hand_on(ChannelId(id), at(1, 9), &SHOWN);
            assert!(channels.early.len() <= EARLY_MAX);
        }
        assert_eq!(channels.early.len(), EARLY_MAX);
        let (datagrams, mut out) = mpsc::channel(EARLY_MAX);
        channels.open(ChannelKey::new(at(1, 1), ChannelId(0)), &datagrams);
        assert!(out.try_recv().is_err(), "pushed out by those that came later");
        channels.open(ChannelKey::new(at(1, 1), ChannelId(10 * EARLY_MAX as u64 - 1)), &datagrams);
        assert!(out.try_recv().is_ok());
    }
}
