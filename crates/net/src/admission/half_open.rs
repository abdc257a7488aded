//! The choice of the half-open connection to drop when there are too many: arithmetic, no sockets.
//!
//! Read [`HalfOpenTable`] first.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// A connection's number in a table: the order in which they came.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Number(u64);

/// Unit of accounting, within which one party may have many addresses: an IPv4 address, or an IPv6
/// network of 64 bits.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Network {
    /// An IPv4 address, also where it came over IPv6.
    V4([u8; 4]),
    /// The first 64 bits of an IPv6 address.
    V6([u8; 8]),
}

impl Network {
    /// The network of an address.
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
/// At the limit, a new connection drops the oldest one of the network with the most connections;
/// among equal networks, of the one with the oldest. So a party with `n` connections keeps them
/// until every other network has at most `n`.
#[derive(Debug)]
pub struct HalfOpenTable<T> {
    limit: usize,
    next: u64,
    connections: BTreeMap<Number, (Network, T)>,
    /// Connections of each network; no set is empty.
    of_network: BTreeMap<Network, BTreeSet<Number>>,
    /// One entry for each network of `of_network`: its number of connections, and its oldest. The
    /// last entry is the next to lose one.
    by_size: BTreeSet<(usize, Reverse<Number>, Network)>,
}

/// A network's entry among those by size.
fn size(numbers: &BTreeSet<Number>, network: Network) -> Option<(usize, Reverse<Number>, Network)> {
    numbers.first().map(|oldest| (numbers.len(), Reverse(*oldest), network))
}

impl<T> HalfOpenTable<T> {
    /// An empty one for `limit` connections, at least 1.
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

    /// True if there are none.
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
        // Among two or more, the youngest is the oldest of its network only if it is alone there,
        // and then other networks come first.
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

    /// Changes the numbers of a network, and its entry by size with them.
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

    /// Drops the oldest of the network that has most.
    pub fn drop_one(&mut self) -> Option<T> {
        let (_, Reverse(oldest), _) = *self.by_size.last()?;
        self.leave(oldest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// An address of one of a few networks, and the network by other means: its text.
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
        /// Against a plain list that is searched in the words of the rule.
        #[test]
        fn the_oldest_of_the_network_with_most_is_dropped(
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
    fn peer_with_few_connections_keeps_them_during_floods() {
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
