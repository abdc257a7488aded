//! Interactive traffic as in CodedBulk, section 4.1: between every pair of sites, with random
//! arrivals, and with priority over all other traffic.
//!
//! Every ordered pair of sites offers the same rate. At this rate, the *mean over the links* of
//! their load is the requested load: `rate = load * capacity of all links / hops of all pairs`,
//! over the paths of least delay, which are the emulator's routes. So busy links carry more than
//! the mean, and other links carry less. At each site, flows of eight UDP packets arrive by a
//! Poisson process. Each flow is for a site drawn at random, and its packets are sent back to back.
//!
//! Leaves out: answers; TCP. Read [`InteractiveTraffic`] first.

use anabranch_graph::{Adjacency, Topology, shortest_path};
use anabranch_units::{BitRate, Seed};
use anyhow::Context as _;
use std::io::Read as _;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Port on which every site receives the traffic.
pub const PORT: u16 = 7173;
/// Number of packets of one flow: small enough for every queue.
const FLOW_PACKETS: u64 = 8;
/// Bytes of an IP packet, headers included.
const PACKET_BYTES: u64 = 1_000;
/// Bytes of the IPv4 and UDP headers.
const HEADER_BYTES: u64 = 28;
/// Code point of expedited forwarding (RFC 3246).
const DSCP: u8 = 46;

/// Interactive traffic of a network: the rate of each pair of sites and of each link.
#[derive(Clone, Debug, PartialEq)]
pub struct InteractiveTraffic {
    /// Rate from each site to each other site.
    pub pair: BitRate,
    /// Rate on each link, by link id.
    pub on_link: Vec<BitRate>,
}

impl InteractiveTraffic {
    /// Computes the traffic whose mean load over all links is `load`, as a share of their capacity.
    ///
    /// Errors: a site that is unreachable from another site.
    pub fn new(topology: &Topology, load: f64) -> anyhow::Result<Self> {
        let adjacency = Adjacency::new(topology);
        let open = vec![1; topology.links().len()];
        let delays: Vec<u64> = topology.links().iter().map(|l| l.properties.delay.as_ps().max(1)).collect();
        let mut pairs = vec![0u64; topology.links().len()];
        for from in topology.site_ids() {
            for to in topology.site_ids().filter(|to| *to != from) {
                let path = shortest_path(&adjacency, &open, &delays, from, to)
                    .with_context(|| format!("no way from site {from} to site {to}"))?;
                path.into_iter().for_each(|l| pairs[l.index()] += 1);
            }
        }
        let capacity: u64 = topology.links().iter().map(|l| l.properties.capacity.as_bps()).sum();
        let pair = load * capacity as f64 / pairs.iter().sum::<u64>() as f64;
        let on_link = pairs.iter().map(|n| BitRate::bps((pair * *n as f64) as u64)).collect();
        Ok(Self { pair: BitRate::bps(pair as u64), on_link })
    }
}

/// One site's part of the interactive traffic, as options of a command.
#[derive(Clone, Debug, clap::Args)]
pub struct Part {
    /// Addresses of the other sites.
    #[arg(long, value_delimiter = ',', required = true)]
    to: Vec<Ipv4Addr>,
    /// Rate to each of the other sites.
    #[arg(long)]
    rate: BitRate,
    #[arg(long)]
    seed: u64,
    /// Number of this site, which selects the random stream.
    #[arg(long)]
    site: u64,
}

/// The totals of one site.
#[derive(Clone, Copy, Debug, Default, serde::Serialize, serde::Deserialize)]
pub struct Totals {
    /// Sent bytes, in IP packets.
    pub sent_bytes: u64,
    /// Received bytes, in IP packets.
    pub received_bytes: u64,
    /// Duration of sending.
    pub took_s: f64,
    /// 99th percentile of the lateness with which the program sent, for lack of a processor.
    pub late_us_p99: u64,
}

/// Sends and receives until standard input ends.
///
/// Errors: an error of the operating system.
pub fn run(part: &Part) -> anyhow::Result<Totals> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, PORT))?;
    rustix::net::sockopt::set_ip_tos(&socket, DSCP << 2)?;
    socket.set_read_timeout(Some(Duration::from_millis(200)))?;
    let (ended, received) = (AtomicBool::new(false), AtomicU64::new(0));
    let began = Instant::now();
    let (sent_bytes, late_us_p99) = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut buffer = [0; 2_048];
            while !ended.load(Relaxed) {
                if let Ok((length, _)) = socket.recv_from(&mut buffer) {
                    received.fetch_add(length as u64 + HEADER_BYTES, Relaxed);
                }
            }
        });
        scope.spawn(|| {
            let _ = std::io::stdin().read_to_end(&mut Vec::new());
            ended.store(true, Relaxed);
        });
        send(part, &socket, &ended)
    });
    Ok(Totals {
        sent_bytes,
        received_bytes: received.load(Relaxed),
        took_s: began.elapsed().as_secs_f64(),
        late_us_p99,
    })
}

fn send(part: &Part, socket: &UdpSocket, ended: &AtomicBool) -> (u64, u64) {
    let mut random = Seed::new(part.seed).stream("interactive", part.site);
    let packet = [0; (PACKET_BYTES - HEADER_BYTES) as usize];
    let bits_per_s = part.rate.as_bps() as f64 * part.to.len() as f64;
    let gap_s = (FLOW_PACKETS * PACKET_BYTES * 8) as f64 / bits_per_s;
    let (began, mut due_s, mut sent_bytes) = (Instant::now(), 0.0, 0);
    let mut late_us: Vec<u64> = Vec::new();
    while !ended.load(Relaxed) {
        // An exponentially distributed gap; the draw is below 1.
        due_s -= gap_s * (1.0 - random.unit_f64()).ln();
        let due = began + Duration::from_secs_f64(due_s);
        // Sleeps are short, so that the end of the run is noticed soon.
        while !ended.load(Relaxed)
            && let wait = due.saturating_duration_since(Instant::now())
            && !wait.is_zero()
        {
            std::thread::sleep(wait.min(Duration::from_millis(100)));
        }
        late_us.push(due.elapsed().as_micros() as u64);
        let to = SocketAddr::from((part.to[random.below(part.to.len() as u64) as usize], PORT));
        for _ in 0..FLOW_PACKETS {
            // A full device queue drops the packet, as any full queue does; the sender does not
            // retry.
            if socket.send_to(&packet, to).is_ok() {
                sent_bytes += PACKET_BYTES;
            }
        }
    }
    late_us.sort_unstable();
    let p99 = late_us.get((late_us.len() * 99 / 100).min(late_us.len().saturating_sub(1))).copied();
    (sent_bytes, p99.unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::InteractiveTraffic;
    use anabranch_graph::file::{Defaults, load};
    use anabranch_units::BitRate;

    #[test]
    fn mean_link_load_equals_the_requested_one() {
        for name in ["internet2", "b4"] {
            let defaults = Defaults::new(BitRate::mbps(10));
            let topology = load(name, &defaults, |_| Err(std::io::ErrorKind::NotFound.into())).expect(name);
            let traffic = InteractiveTraffic::new(&topology, 0.1).expect("connected");
            let total: u64 = traffic.on_link.iter().map(|r| r.as_bps()).sum();
            let mean = total as f64 / traffic.on_link.len() as f64;
            assert!((mean - 1e6).abs() < 10.0, "{name}: {mean}");
        }
    }
}
