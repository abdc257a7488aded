//! Limit of a public listener's requests per second, shared among addresses.
//!
//! Leaves out: the answer to a request above the limit (RFC 6585, section 4: status 429), which the
//! router gives. Read [`RequestRate`].

use anabranch_net::admission::Network;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Requests per second that each address may send even above the limit for all addresses.
pub const ADDRESS_REQUESTS_PER_S: u32 = 10;

/// Count of requests in the current second. A second begins with its first request.
///
/// Addresses of one network count as one address ([`Network`]). Memory: one entry for each network
/// that has sent a request in the current second.
#[derive(Debug)]
pub struct RequestRate {
    requests_per_s_max: u64,
    second: Mutex<Second>,
}

#[derive(Debug, Default)]
struct Second {
    /// `None` before the first request.
    began_at: Option<Instant>,
    requests: u64,
    of_network: BTreeMap<Network, u32>,
}

impl RequestRate {
    /// Creates a limit of `requests_per_s_max` requests per second from all addresses together.
    pub const fn new(requests_per_s_max: u64) -> Self {
        let second = Second { began_at: None, requests: 0, of_network: BTreeMap::new() };
        Self { requests_per_s_max, second: Mutex::new(second) }
    }

    /// Counts a request. Returns false if the request is above the limit and its network has
    /// already sent [`ADDRESS_REQUESTS_PER_S`] requests in this second.
    pub fn admits(&self, now: Instant, from: IpAddr) -> bool {
        let mut second = self.second.lock().unwrap_or_else(PoisonError::into_inner);
        let has_ended = |began_at| now.saturating_duration_since(began_at) >= Duration::from_secs(1);
        if second.began_at.is_none_or(has_ended) {
            *second = Second { began_at: Some(now), ..Second::default() };
        }
        second.requests += 1;
        let own = second.of_network.entry(Network::of(from)).or_default();
        *own = own.saturating_add(1);
        let is_fair = *own <= ADDRESS_REQUESTS_PER_S;
        is_fair || second.requests <= self.requests_per_s_max
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// #48: one address could take all answers of each second.
    #[test]
    fn flooding_address_leaves_requests_to_other_addresses() {
        let (rate, now) = (RequestRate::new(100), Instant::now());
        let [flood, honest] = [[192, 0, 2, 1], [192, 0, 2, 2]].map(IpAddr::from);
        let admitted = |now, from| (0..1_000).filter(|_| rate.admits(now, from)).count();
        assert_eq!(admitted(now, flood), 100);
        assert_eq!(admitted(now, honest), ADDRESS_REQUESTS_PER_S as usize);
        assert_eq!(admitted(now + Duration::from_secs(1), honest), 100);
        let second = rate.second.lock().expect("no test panics with it");
        assert_eq!(second.of_network.len(), 1, "the last second is forgotten");
    }
}
