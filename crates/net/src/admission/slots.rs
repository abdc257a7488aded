//! Connection slots of peers that have shown their identity.

use crate::keys::Role;
use crate::tls::PeerIdentity;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Slots of authenticated connections: a total limit, and a limit for each identity, whose
/// connections share a `T` (such as further limits).
pub struct ConnectionSlots<T = ()> {
    shared: Arc<Shared<T>>,
}

type TakenSlots<T> = BTreeMap<(Role, String), (usize, Arc<T>)>;

struct Shared<T> {
    max: usize,
    peer_max: usize,
    make: Box<dyn Fn() -> T + Send + Sync>,
    /// Number of connections of each identity; absent for 0.
    taken: Mutex<TakenSlots<T>>,
}

impl<T> Shared<T> {
    fn lock(&self) -> MutexGuard<'_, TakenSlots<T>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Clone for ConnectionSlots<T> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

/// Reason for the lack of a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NoFreeSlot {
    /// All slots are taken.
    All {
        /// Number of slots.
        limit: usize,
    },
    /// The peer holds as many slots as one identity may have.
    Peer {
        /// The identity.
        peer: PeerIdentity,
        /// The limit for one identity.
        limit: usize,
    },
}

impl std::fmt::Display for NoFreeSlot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::All { limit } => write!(f, "{limit} connections are open, which is the limit"),
            Self::Peer { peer, limit } => {
                write!(f, "{peer} has {limit} connections already, the most that one may have")
            }
        }
    }
}
impl std::error::Error for NoFreeSlot {}

impl<T> ConnectionSlots<T> {
    /// Creates `max` slots, at most `peer_max` for one identity. `make` creates an identity's `T`
    /// with its first connection; its last connection drops it.
    pub fn new(max: usize, peer_max: usize, make: impl Fn() -> T + Send + Sync + 'static) -> Self {
        Self { shared: Arc::new(Shared { max, peer_max, make: Box::new(make), taken: Mutex::default() }) }
    }

    /// Takes a slot for a connection of `peer`. Dropping the returned value frees the slot.
    ///
    /// Errors: see [`NoFreeSlot`].
    pub fn take(&self, peer: &PeerIdentity) -> Result<ConnectionSlot<T>, NoFreeSlot> {
        let shared = &self.shared;
        let mut taken = shared.lock();
        if taken.values().map(|(count, _)| count).sum::<usize>() >= shared.max {
            return Err(NoFreeSlot::All { limit: shared.max });
        }
        let key = (peer.role, peer.name.clone());
        let (count, value) = taken.entry(key.clone()).or_insert_with(|| (0, Arc::new((shared.make)())));
        if *count >= shared.peer_max {
            return Err(NoFreeSlot::Peer { peer: peer.clone(), limit: shared.peer_max });
        }
        *count += 1;
        Ok(ConnectionSlot { value: Arc::clone(value), key, shared: Arc::clone(shared) })
    }
}

/// Slot of one connection, with access to the state that its identity's connections share.
pub struct ConnectionSlot<T = ()> {
    shared: Arc<Shared<T>>,
    key: (Role, String),
    value: Arc<T>,
}

impl<T> ConnectionSlot<T> {
    /// State shared by the identity's connections.
    pub fn common(&self) -> &Arc<T> {
        &self.value
    }
}

impl<T> Drop for ConnectionSlot<T> {
    fn drop(&mut self) {
        let mut taken = self.shared.lock();
        if let Some((count, _)) = taken.get_mut(&self.key) {
            *count -= 1;
            if *count == 0 {
                taken.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::party::examples::HAUL;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    fn site(name: &str) -> PeerIdentity {
        PeerIdentity { system: HAUL, role: Role::Site, name: name.into() }
    }

    #[test]
    fn slots_are_limited_per_identity_and_in_total() {
        let places = ConnectionSlots::new(5, 2, || ());
        let mut held = vec![];
        for name in ["a", "b"] {
            held.push(places.take(&site(name)).expect("its first"));
            held.push(places.take(&site(name)).expect("its second"));
            let error = places.take(&site(name)).err().expect("no third");
            assert_eq!(error, NoFreeSlot::Peer { peer: site(name), limit: 2 });
        }
        held.push(places.take(&site("c")).expect("the fifth of all"));
        assert_eq!(places.take(&site("c")).err(), Some(NoFreeSlot::All { limit: 5 }));
        held.remove(0);
        assert!(places.take(&site("a")).is_ok(), "a place that is given back is free");
    }

    #[test]
    fn state_of_an_identity_ends_with_its_last_connection() {
        let places = ConnectionSlots::new(8, 8, || AtomicUsize::new(0));
        let first = places.take(&site("a")).expect("a place");
        let second = places.take(&site("a")).expect("a place");
        first.common().store(7, Relaxed);
        assert_eq!(second.common().load(Relaxed), 7);
        assert_eq!(places.take(&site("b")).expect("a place").common().load(Relaxed), 0);
        drop((first, second));
        assert_eq!(places.take(&site("a")).expect("a place").common().load(Relaxed), 0);
    }
}
