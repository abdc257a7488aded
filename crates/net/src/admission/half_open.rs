//! Choice of the half-open connection to drop when there are too many: a pure computation without
//! sockets.
//!
//! Read [`HalfOpenTable`] first.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// A connection's number in a table; numbers grow in the order of arrival.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Number(u64);

/// Unit for which connections are counted: an IPv4 address, or an IPv6 network of 64 bits, within
/// which one party may have many addresses.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Network {
    /// An IPv4 address, also if IPv4-mapped in IPv6.
    V4([u8; 4]),
    /// The first 64 bits of an IPv6 address.
    V6([u8; 8]),
}

impl Network {
    /// Returns the network of an address.
    pub fn of(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(address) => Self::V4(address.octets()),
            IpAddr::V6(address) => {
                let [a, b, c, d, e, f, g, h, ..] = address.octets();
                Self::V6([a, b, c, d, e, f, g, h])
            }
        }
    }
}

/// A bounded table of half-open connections, each with a `T`.
///
/// At the limit, a new connection causes a drop: the network with the most connections loses its
/// oldest one. Between networks with equally many, the network with the oldest connection loses it.
/// So a party with `n` connections keeps them until every other network has at most `n`.
#[derive(Debug)]
pub struct HalfOpenTable<T> {
    limit: usize,
    next: u64,
    connections: BTreeMap<Number, (Network, T)>,
    /// Connection numbers of each network; no set is empty.
    of_network: BTreeMap<Network, BTreeSet<Number>>,
    /// For each network of `of_network`, its number of connections and its oldest connection. The
    /// network of the last entry loses the next connection.
    by_size: BTreeSet<(usize, Reverse<Number>, Network)>,
}

/// The entry of `network` in `by_size`.
fn size(numbers: &BTreeSet<Number>, network: Network) -> Option<(usize, Reverse<Number>, Network)> {
    numbers.first().map(|oldest| (numbers.len(), Reverse(*oldest), network))
}

impl<T> HalfOpenTable<T> {
    /// Creates an empty table for `limit` connections, at least 1.
    pub fn new(limit: usize) -> Self {
        Self {
            limit: limit.max(1),
            next: 0,
            connections: BTreeMap::new(),
            of_network: BTreeMap::new(),
            by_size: BTreeSet::new(),
        }
    }

    /// Number of connections.
    pub fn len(&self) -> usize {
        self.connections.len()
    }

    /// Returns true if there are no connections.
    pub fn is_empty(&self) -> bool {
        self.connections.is_empty()
    }

    /// Adds a connection. Returns its number, and the connection dropped for it, which is never the
    /// new one.
    pub fn arrive(&mut self, from: IpAddr, value: T) -> (Number, Option<T>) {
        let number = Number(self.next);
        self.next += 1;
        let network = Network::of(from);
        self.connections.insert(number, (network, value));
        self.change(network, |numbers| numbers.insert(number));
        // The newest connection is never dropped. It is the oldest of its network only if it is the
        // network's only connection, and then another network is chosen first.
        let dropped = if self.len() > self.limit { self.drop_one() } else { None };
        (number, dropped)
    }

    /// Removes a connection that has left the half-open state. Returns `None` if it was dropped
    /// before.
    pub fn leave(&mut self, number: Number) -> Option<T> {
        let (network, value) = self.connections.remove(&number)?;
        self.change(network, |numbers| numbers.remove(&number));
        Some(value)
    }

    /// Changes the numbers of a network, and updates its entry in `by_size`.
    fn change(&mut self, network: Network, change: impl FnOnce(&mut BTreeSet<Number>) -> bool) {
        let numbers = self.of_network.entry(network).or_default();
        if let Some(before) = size(numbers, network) {
            self.by_size.remove(&before);
        }
        change(numbers);
        match size(numbers, network) {
            Some(now) => drop(self.by_size.insert(now)),
            None => drop(self.of_network.remove(&network)),
        }
    }

    /// Drops the oldest connection of the network with the most connections, and returns its value.
    pub fn drop_one(&mut self) -> Option<T> {
        let (_, Reverse(oldest), _) = *self.by_size.last()?;
        self.leave(oldest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// An address in one of a few networks, and an independent text form of the network.
    fn address(kind: u8, network: u8, host: u8) -> (IpAddr, String) {
        match kind {
            0 => (IpAddr::from([10, 0, 0, network]), format!("v4 {network}")),
            1 => {
                let mapped = std::net::Ipv4Addr::new(10, 0, 0, network).to_ipv6_mapped();
                (IpAddr::from(mapped), format!("v4 {network}"))
            }
            _ => {
                let address = [0x2001, 0xdb8, 0, u16::from(network), u16::from(host), 0, 0, u16::from(host)];
                (IpAddr::from(address), format!("v6 {network}"))
            }
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Arrive { kind: u8, network: u8, host: u8 },
        Leave { index: usize },
        DropOne,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0..3u8, 0..4u8, 0..3u8).prop_map(|(kind, network, host)| Step::Arrive { kind, network, host }),
            2 => (0..100usize).prop_map(|index| Step::Leave { index }),
            1 => Just(Step::DropOne),
        ]
    }

    proptest! {
        /// Compares the table with a plain list that is searched by the rule in its documentation.
        #[test]
        fn largest_network_loses_its_oldest_connection(
            limit in 1..8usize,
            steps in proptest::collection::vec(step(), 0..120),
        ) {
            let mut table = HalfOpenTable::new(limit);
            // Number, network, value; in order of arrival.
            let mut plain: Vec<(Number, String, usize)> = Vec::new();
            let expected = |plain: &[(Number, String, usize)]| {
                let count = |network: &str| plain.iter().filter(|(_, n, _)| n == network).count();
                let most = plain.iter().map(|(_, n, _)| count(n)).max()?;
                plain.iter().position(|(_, n, _)| count(n) == most)
            };
            for (value, step) in steps.into_iter().enumerate() {
                match step {
                    Step::Arrive { kind, network, host } => {
                        let (from, name) = address(kind, network, host);
                        let (number, dropped) = table.arrive(from, value);
                        plain.push((number, name, value));
                        let goes = if plain.len() > limit { expected(&plain) } else { None };
                        prop_assert_ne!(goes, Some(plain.len() - 1), "the newcomer stays");
                        prop_assert_eq!(dropped, goes.map(|at| plain.remove(at).2));
                    }
                    Step::Leave { index } => {
                        if let Some(at) = (!plain.is_empty()).then(|| index % plain.len()) {
                            let (number, _, value) = plain.remove(at);
                            prop_assert_eq!(table.leave(number), Some(value));
                            prop_assert_eq!(table.leave(number), None, "it is gone");
                        }
                    }
                    Step::DropOne => {
                        let goes = expected(&plain);
                        prop_assert_eq!(table.drop_one(), goes.map(|at| plain.remove(at).2));
                    }
                }
                prop_assert_eq!(table.len(), plain.len());
                prop_assert!(table.len() <= limit);
            }
        }
    }

    #[test]
    fn peer_with_few_connections_keeps_them_during_a_flood() {
        let mut table = HalfOpenTable::new(64);
        let (honest, _) = table.arrive([10, 0, 0, 1].into(), "honest");
        for _ in 0..10_000 {
            let (_, dropped) = table.arrive([10, 0, 0, 2].into(), "flood");
            assert_ne!(dropped, Some("honest"));
        }
        assert_eq!(table.len(), 64);
        assert_eq!(table.leave(honest), Some("honest"));
    }

    #[test]
    fn addresses_of_one_v6_network_count_as_one() {
        let mut table = HalfOpenTable::new(8);
        table.arrive("2001:db8:0:1::1".parse().expect("an address"), 0);
        for host in 1..1_000u16 {
            let (_, dropped) = table.arrive([0x2001, 0xdb8, 0, 2, host, 0, 0, host].into(), 1);
            assert_ne!(dropped, Some(0));
        }
    }
}
