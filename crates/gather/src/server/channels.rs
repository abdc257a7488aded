//! The channels of datagrams that are open at a server, by their clients' addresses; and, for a moment, what came for a channel that
//! is not open yet.
//!
//! A client draws its channel's id. It counts at the client's address only: another client that knows the id, or guesses it, can
//! neither take it nor keep it from its owner. A client shows where it takes packets as soon as it has keys, and that datagram
//! mostly overtakes the greeting that names its channel: so the last few such datagrams are kept. They prove nothing before their
//! session has opened them. Where others push one out, the client shows it again.

use super::{Arriving, Datagrams};
use anabranch_net::seal::{ChannelId, OVERHEAD_BYTES};
use std::collections::btree_map::Entry as Slot;
use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};

/// Datagrams that are kept of channels which are not open yet. Each has no more than sealing adds.
const EARLY_MAX: usize = 256;

/// A channel, and the address at which its client is.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    at: IpAddr,
    id: ChannelId,
}

impl Place {
    /// The channel of this id of the client at an address.
    pub fn new(client: SocketAddr, id: ChannelId) -> Self {
        Self { at: client.ip().to_canonical(), id }
    }

    /// Another channel of the same client.
    pub const fn with(self, id: ChannelId) -> Self {
        Self { id, ..self }
    }
}

/// What became of a datagram.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Taken {
    /// Its session has it.
    Handed,
    /// Its session has no room for it.
    Crowded,
    /// Its channel is not open.
    Stray,
}

/// All channels.
#[derive(Debug, Default)]
pub struct Channels {
    open: BTreeMap<Place, Datagrams>,
    /// The newest last.
    early: VecDeque<(Place, Arriving)>,
}

impl Channels {
    /// Opens a channel, whose datagrams go to `datagrams`, also one that has come already. False where it is open.
    pub fn open(&mut self, place: Place, datagrams: &Datagrams) -> bool {
        let Slot::Vacant(slot) = self.open.entry(place) else { return false };
        slot.insert(datagrams.clone());
        let (its, others) = std::mem::take(&mut self.early).into_iter().partition(|(of, _)| *of == place);
        self.early = others;
        for (_, datagram) in its {
            // The session takes none before it is made: there is room.
            let _ = datagrams.try_send(datagram);
        }
        true
    }

    /// Closes a channel.
    pub fn close(&mut self, place: Place) {
        self.open.remove(&place);
    }

    /// Hands a datagram to the session of its channel.
    pub fn hand_on(&mut self, id: ChannelId, from: SocketAddr, bytes: &[u8]) -> Taken {
        let place = Place::new(from, id);
        let Some(session) = self.open.get(&place) else {
            // Feedback is of packets, which come of open channels.
            if bytes.len() <= OVERHEAD_BYTES {
                if self.early.len() >= EARLY_MAX {
                    self.early.pop_front();
                }
                self.early.push_back((place, (from, bytes.to_vec())));
            }
            return Taken::Stray;
        };
        match session.try_send((from, bytes.to_vec())) {
            Ok(()) => Taken::Handed,
            Err(_) => Taken::Crowded,
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
    fn what_overtook_its_greeting_is_handed_on_once_the_channel_is_open() {
        let mut channels = Channels::default();
        let (datagrams, mut out) = mpsc::channel(EARLY_MAX);
        let id = ChannelId(5);
        assert_eq!(channels.hand_on(id, at(1, 9), &SHOWN), Taken::Stray);
        assert_eq!(channels.hand_on(ChannelId(6), at(1, 9), &SHOWN), Taken::Stray);
        // Only what shows an address is kept.
        assert_eq!(channels.hand_on(id, at(1, 10), &[7; OVERHEAD_BYTES + 1]), Taken::Stray);
        // Its stream comes from another port.
        assert!(channels.open(Place::new(at(1, 4_000), id), &datagrams));
        assert_eq!(out.try_recv().ok(), Some((at(1, 9), SHOWN.to_vec())));
        assert!(out.try_recv().is_err());
        assert_eq!(channels.hand_on(id, at(1, 9), &SHOWN), Taken::Handed);
        assert_eq!(channels.early.len(), 1);
    }

    #[test]
    fn a_channel_belongs_to_the_address_of_its_client() {
        let mut channels = Channels::default();
        let (datagrams, mut out) = mpsc::channel(EARLY_MAX);
        let (others, mut others_out) = mpsc::channel(EARLY_MAX);
        let id = ChannelId(5);
        // Somebody else was there first, with the same id: that keeps nobody out.
        assert!(channels.open(Place::new(at(2, 1), id), &others));
        assert!(channels.open(Place::new(at(1, 1), id), &datagrams));
        assert!(!channels.open(Place::new(at(1, 2), id), &others), "it is open");
        assert_eq!(channels.hand_on(id, at(1, 3), &SHOWN), Taken::Handed);
        assert!(out.try_recv().is_ok() && others_out.try_recv().is_err());
        // An address of IPv4 is the same at a socket of either kind.
        let mapped = SocketAddr::new(std::net::Ipv4Addr::new(192, 0, 2, 1).to_ipv6_mapped().into(), 3);
        assert_eq!(channels.hand_on(id, mapped, &SHOWN), Taken::Handed);
        channels.close(Place::new(at(1, 1), id));
        assert_eq!(channels.hand_on(id, at(1, 3), &SHOWN), Taken::Stray);
        assert_eq!(channels.hand_on(id, at(2, 3), &SHOWN), Taken::Handed);
    }

    #[test]
    fn a_flood_of_datagrams_that_are_nobodys_is_not_kept() {
        let mut channels = Channels::default();
        for id in 0..10 * EARLY_MAX as u64 {
            channels.hand_on(ChannelId(id), at(1, 9), &SHOWN);
            assert!(channels.early.len() <= EARLY_MAX);
        }
        assert_eq!(channels.early.len(), EARLY_MAX);
        let (datagrams, mut out) = mpsc::channel(EARLY_MAX);
        channels.open(Place::new(at(1, 1), ChannelId(0)), &datagrams);
        assert!(out.try_recv().is_err(), "pushed out by those that came later");
        channels.open(Place::new(at(1, 1), ChannelId(10 * EARLY_MAX as u64 - 1)), &datagrams);
        assert!(out.try_recv().is_ok());
    }
}
