//! Limits the number of servers asked for the same piece, if a few servers fill the client's link.
//!
//! Packets of many servers that meet in a short queue are lost, however slowly each server sends.
//! With 32 servers behind a queue of four packets, 5 % of packets were lost and the link's rate was
//! underestimated by 10 %. If each server has fewer than two packets in flight, fewer servers fill
//! the link just as well, and more evenly. Once the link's rate is known, only half of the servers
//! get further requests, namely the first servers to end a pull; at a high loss rate it is a
//! quarter. The reduction repeats until each server has two packets in flight. The remaining
//! servers may deliver less than all servers did, or less than their grants. The link is then not
//! the bottleneck, and all servers are asked again from then on.
//!
//! Leaves out: the grant of each server (`hop`), the link's rate (`link`), and the length of pulls
//! (`balance`). Read [`ActiveServers`] first.

use super::{Client, ServerId};
use crate::mode::RateControl;
use anabranch_codes::Symbol;

/// Number of packets in flight per server below which the set shrinks.
const IN_FLIGHT: f64 = 2.0;
/// Minimum number of servers in the set, because a server may stop.
const LEAST: usize = 4;
/// Number of measurements that are judged together, because servers wait for processors. Half as
/// many are judged if less than [`MUCH`] arrives.
const MEASURES: u32 = 4;
/// Divisor of the number of servers at each reduction.
const PART: usize = 2;
/// Divisor that applies instead if the loss rate exceeds the path's own by [`LOSS_MORE`].
const PART_LOSSY: usize = 4;
/// Excess of the loss rate over the path's own above which [`PART_LOSSY`] applies.
const LOSS_MORE: f64 = 0.01;
/// Share of the full set's throughput that proves a full link, if the servers also use the share
/// [`USES`] of their grants.
const FILLS: f64 = 0.97;
/// Minimum share of the grants that servers use on a full link.
const USES: f64 = 0.9;
/// Share of the full set's throughput below which the set immediately counts as too small.
const MUCH: f64 = 0.85;
/// Maximum number of judgements without success before all servers are asked again. After a cut of
/// its rate, a link needs several judgements until it is found to be faster again.
const DOUBTS: u32 = 4;

/// Sums over measurements that are judged together.
#[derive(Copy, Clone, Debug, Default)]
struct MeasurementSums {
    measures: u32,
    bits: f64,
    lost_bits: f64,
    granted_bits: f64,
    seconds: f64,
}

/// The servers that are asked for further ranges, if not all servers are asked.
#[derive(Clone, Debug, Default)]
pub(super) struct ActiveServers {
    /// Maximum number of servers in the set; `None` if all servers are asked.
    most: Option<usize>,
    /// The servers in the set, in the order of their first request.
    kept: Vec<ServerId>,
    /// Whether the reduced set was too small, so that all servers are asked.
    is_off: bool,
    /// Throughput of the full set, in bits per second.
    all_bps: f64,
    came: MeasurementSums,
    doubts: u32,
    /// Total grant at the last measurement, in bits per second.
    granted_bps: f64,
    /// Number of packets lost up to the last measurement.
    lost: u64,
}

impl ActiveServers {
    /// Judges the sums of `busy` servers if `enough` servers would be sufficient. `path_loss` is
    /// the path's own loss rate. Returns true if the set of servers changed.
    fn judge(&mut self, came: MeasurementSums, busy: usize, enough: usize, path_loss: f64) -> bool {
        let sent_bits = came.bits + came.lost_bits;
        let of_all = came.bits / (self.all_bps * came.seconds).max(1.0);
        let overflows = came.lost_bits > (path_loss + LOSS_MORE) * sent_bits;
        let uses_grant = sent_bits > USES * came.granted_bits;
        if self.most.is_some() && !(of_all > MUCH && (overflows || (of_all > FILLS && uses_grant))) {
            self.doubts += 1;
            self.is_off = !uses_grant || of_all <= MUCH || self.doubts > DOUBTS;
            return self.is_off;
        }
        self.doubts = 0;
        if busy <= enough {
            return false;
        }
        if self.most.is_none() {
            self.all_bps = came.bits / came.seconds;
        }
        let most = (busy / if overflows { PART_LOSSY } else { PART }).max(enough);
        self.most = Some(most);
        self.kept.truncate(most);
        true
    }
}

impl<S: Symbol> Client<S> {
    /// Number of servers sufficient to fill the link; `None` while the link's rate is unknown.
    fn enough(&self) -> Option<usize> {
        if self.config.rate_control != RateControl::Bbr || self.overflow.is_unsure() {
            return None;
        }
        let packets = self.granted_bps()? / 8.0 * self.farthest().as_secs_f64() / self.datagram_bytes();
        Some(((packets / IN_FLIGHT) as usize).max(LEAST))
    }

    /// The servers among `holders` that may be asked for further ranges of the piece.
    pub(super) fn asked_of(&self, holders: Vec<ServerId>) -> Vec<ServerId> {
        let few = &self.few;
        let Some(most) = few.most.filter(|most| !few.is_off && holders.len() > *most) else { return holders };
        let is_kept =
            |server: &ServerId| few.kept.contains(server) && self.servers[server.0 as usize].is_connected;
        let kept: Vec<ServerId> = holders.iter().copied().filter(is_kept).collect();
        if kept.len() < most { holders } else { kept }
    }

    /// Adds a server to the set when the client requests a piece with several holders from it.
    pub(super) fn keep(&mut self, server: ServerId) {
        if self.few.most.is_some() && !self.few.kept.contains(&server) {
            self.few.kept.push(server);
        }
    }

    /// Records one measurement: `bits` received in `seconds` under a total grant of `granted_bps`.
    /// Returns true if the set of servers changed.
    pub(super) fn note_came(&mut self, granted_bps: f64, bits: f64, seconds: f64) -> bool {
        let lost = self.counts().lost;
        let newly_lost = lost.saturating_sub(std::mem::replace(&mut self.few.lost, lost));
        let lost_bits = newly_lost as f64 * self.datagram_bytes() * 8.0;
        let busy = self.busy();
        let is_held = self.config.link.is_some() || self.overflow.is_held();
        let (path_loss, enough) = (self.overflow.path_loss(), self.enough());
        let few = &mut self.few;
        let last_bps = std::mem::replace(&mut few.granted_bps, granted_bps);
        // Servers outside the set may still deliver earlier requests, and servers run out of
        // requests near the end.
        let are_all_kept = !few.is_off && few.most.is_none_or(|_| busy <= few.kept.len());
        let Some(enough) = enough.filter(|_| are_all_kept && !self.queue.is_empty()) else {
            few.came = MeasurementSums::default();
            return false;
        };
        // Probes, and the drain after each probe, are not evidence.
        if !is_held {
            return false;
        }
        let came = &mut few.came;
        came.measures += 1;
        came.bits += bits;
        came.lost_bits += lost_bits;
        came.granted_bits += granted_bps.min(last_bps) * seconds;
        came.seconds += seconds;
        let is_little = came.bits < MUCH * few.all_bps * came.seconds;
        if came.measures < if is_little { MEASURES / 2 } else { MEASURES } {
            return false;
        }
        let came = std::mem::take(came);
        few.judge(came, busy, enough, path_loss)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ClientConfig;
    use crate::client::Piece;
    use anabranch_endpoint::Bytes;
    use anabranch_units::{BitRate, Duration, Instant};

    const SECONDS: f64 = 0.05;

    /// A client behind a link of `mbps` Mbit/s with eight servers, `us` microseconds away. All
    /// servers hold one object and are asked for it.
    fn client(mbps: u64, us: u64) -> (Client<Bytes>, Vec<ServerId>) {
        let config = ClientConfig { link: Some(BitRate::mbps(mbps)), ..ClientConfig::default() };
        let mut client = Client::new(config).expect("its settings are in range");
        let holders: Vec<ServerId> = (0..8).map(|_| client.add_server()).collect();
        for server in &holders {
            client.handle_connected(Instant::ZERO, *server, Some(Duration::from_us(us)));
        }
        let ranges = Some(std::iter::once(0..64 << 20).collect());
        client.add(Piece { object: "object".into(), ranges, holders: holders.clone() });
        client.begin(Instant::ZERO);
        (client, holders)
    }

    /// Runs `measures` measurements in which `share` of the grant arrives. Returns whether the set
    /// of servers changed.
    fn measure(client: &mut Client<Bytes>, share: f64, measures: u32) -> bool {
        let granted_bps = client.granted_bps().expect("the link is known");
        (0..measures).any(|_| client.note_came(granted_bps, share * granted_bps * SECONDS, SECONDS))
    }

    /// Gives the first `kept` servers further requests; the other servers have ended their pulls.
    fn only(client: &mut Client<Bytes>, holders: &[ServerId], kept: usize) {
        holders[..kept].iter().for_each(|server| client.keep(*server));
        holders[kept..].iter().for_each(|server| client.servers[server.0 as usize].pulls = 0);
    }

    #[test]
    fn only_few_servers_are_asked_if_sufficient() {
        // Less than one packet per server is in flight.
        let (mut client, holders) = client(100, 500);
        assert_eq!(client.asked_of(holders.clone()), holders);
        assert!(!measure(&mut client, 1.0, MEASURES - 1), "that is too soon");
        assert!(measure(&mut client, 1.0, 1));
        assert_eq!(client.asked_of(holders.clone()), holders, "none has asked for more yet");
        assert!(!measure(&mut client, 1.0, 2 * MEASURES), "all still bring something");
        only(&mut client, &holders, 4);
        assert_eq!(client.asked_of(holders.clone()), holders[..4]);
        assert_eq!(
            client.asked_of(holders[2..6].to_vec()),
            holders[2..6],
            "of other holders as many may be asked"
        );
        assert!(!measure(&mut client, 1.0, 10 * MEASURES), "four are the least");
        // A kept server is lost, and another server may replace it.
        client.handle_lost(Instant::ZERO, holders[0], "it is gone");
        assert_eq!(client.asked_of(holders.clone()), holders);
    }

    #[test]
    fn all_servers_are_asked_if_few_leave_capacity() {
        for (share, measures) in [(0.5, MEASURES / 2), (0.87, MEASURES), (0.96, (DOUBTS + 1) * MEASURES)] {
            let (mut client, holders) = client(100, 500);
            assert!(measure(&mut client, 1.0, MEASURES));
            only(&mut client, &holders, 4);
            assert!(!measure(&mut client, share, measures - 1), "{share} is too soon to tell");
            assert!(measure(&mut client, share, 1), "{share}");
            assert_eq!(client.asked_of(holders.clone()), holders, "{share}");
            assert!(!measure(&mut client, 1.0, 10 * MEASURES), "once");
        }
    }

    /// At the end throughput falls, whatever the number of servers.
    #[test]
    fn server_set_is_kept_without_ranges_to_request() {
        let (mut client, _) = client(100, 500);
        client.queue.clear();
        assert!(!measure(&mut client, 1.0, 10 * MEASURES));
    }

    #[test]
    fn all_servers_are_asked_with_many_packets_in_flight() {
        let (mut client, holders) = client(100, 20_000);
        assert!(!measure(&mut client, 1.0, 10 * MEASURES));
        assert_eq!(client.asked_of(holders.clone()), holders);
    }

    #[test]
    fn heavy_loss_reduces_the_set_to_a_fourth() {
        let came = |lost_bits| MeasurementSums {
            measures: 4,
            bits: 1e6,
            lost_bits,
            granted_bits: 1e6,
            seconds: 0.1,
        };
        for (lost_bits, path_loss, most) in [(0.0, 0.0, 16), (15e3, 0.0, 8), (15e3, 0.01, 16)] {
            let mut few = ActiveServers { kept: (0..32).map(ServerId).collect(), ..ActiveServers::default() };
            assert!(few.judge(came(lost_bits), 32, 5, path_loss));
            assert_eq!((few.most, few.kept.len()), (Some(most), most), "{lost_bits} lost");
        }
    }

    /// If an overflow reduces the throughput, the servers do not count as slow.
    #[test]
    fn losses_show_that_the_link_is_full() {
        let mut few = ActiveServers::default();
        let came = |bits, lost_bits| MeasurementSums {
            measures: 4,
            bits,
            lost_bits,
            granted_bits: 1e6,
            seconds: 0.1,
        };
        assert!(few.judge(came(1e6, 0.0), 32, 5, 0.0));
        assert!(few.judge(came(0.9e6, 0.05e6), 16, 5, 0.0));
        assert_eq!((few.most, few.is_off), (Some(5), false));
    }
}
