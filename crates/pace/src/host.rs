//! This host's addresses, and the rate of its link.
//!
//! Leaves out: hosts with several links; only the link of the default route counts. Read
//! [`addresses`] and [`link_rate`].

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::path::Path;

use anabranch_linux::rtnetlink::Rtnetlink;
use anabranch_units::BitRate;

/// Addresses in this network namespace at which other hosts may reach this host, in order. Loopback
/// and link-local addresses are excluded.
///
/// Errors: the system's.
pub fn addresses() -> io::Result<Vec<IpAddr>> {
    let addresses = Rtnetlink::open()?.addresses()?;
    let found: BTreeSet<IpAddr> = addresses.iter().map(|address| address.prefix.address).collect();
    Ok(found.into_iter().filter(|ip| is_reachable(*ip)).collect())
}

fn is_reachable(ip: IpAddr) -> bool {
    let is_link_local = match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    !(ip.is_loopback() || ip.is_unspecified() || is_link_local)
}

/// Reason why the rate of the host's link is unknown.
#[derive(Debug)]
#[non_exhaustive]
pub enum LinkError {
    /// There is no default route.
    NoDefaultRoute,
    /// The device of the default route does not report its rate.
    Unknown {
        /// The device.
        device: String,
    },
}

impl std::fmt::Display for LinkError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NoDefaultRoute => write!(f, "link rate: there is no default route, so no device to ask"),
            Self::Unknown { device } => {
                write!(f, "link rate: {device} does not say how fast it is (/sys/class/net/{device}/speed)")
            }
        }
    }
}

impl std::error::Error for LinkError {}

/// Rate of the link of the default route, for TCP's data as limits count it. Computed from the rate
/// and the MTU that the device reports.
///
/// Errors: no default route; a device that reports no rate, as is common for virtual devices.
pub fn link_rate() -> Result<BitRate, LinkError> {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let device = default_device(&read("/proc/self/net/route"))
        .or_else(|| default_device_v6(&read("/proc/self/net/ipv6_route")))
        .ok_or(LinkError::NoDefaultRoute)?;
    let speed = std::fs::read_to_string(Path::new("/sys/class/net").join(&device).join("speed"));
    let mbps = speed.ok().and_then(|text| text.trim().parse::<u64>().ok()).filter(|mbps| *mbps > 0);
    let mtu = std::fs::read_to_string(Path::new("/sys/class/net").join(&device).join("mtu"));
    let mtu_bytes = mtu.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(MTU_BYTES);
    mbps.map(|mbps| for_data(BitRate::mbps(mbps), mtu_bytes)).ok_or(LinkError::Unknown { device })
}

/// MTU of Ethernet.
const MTU_BYTES: u64 = 1_500;
/// Header bytes of a packet: IPv4, and TCP with timestamps.
const HEADER_BYTES: u64 = 20 + 32;
/// Bytes around a packet on Ethernet: preamble, header, checksum, gap.
const FRAMING_BYTES: u64 = 8 + 14 + 4 + 12;

fn for_data(link: BitRate, mtu_bytes: u64) -> BitRate {
    let data_bytes = u128::from(mtu_bytes.saturating_sub(HEADER_BYTES));
    let bps = u128::from(link.as_bps()) * data_bytes / u128::from(mtu_bytes + FRAMING_BYTES);
    BitRate::bps(bps as u64)
}

/// Finds the device of the default route in lines of `/proc/net/route`: device, destination,
/// gateway, flags, two counts, metric and mask.
fn default_device(routes: &str) -> Option<String> {
    let defaults = routes.lines().skip(1).filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [device, destination, _, _, _, _, metric, mask, ..] = words[..] else { return None };
        (destination == "00000000" && mask == "00000000").then_some((metric.parse::<u64>().ok()?, device))
    });
    defaults.min().map(|(_, device)| device.to_owned())
}

/// Finds the device of the default route in lines of `/proc/net/ipv6_route`: destination and its
/// length, source and its length, gateway, metric, three counts and flags, device.
fn default_device_v6(routes: &str) -> Option<String> {
    let defaults = routes.lines().filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [destination, length, _, _, _, metric, _, _, _, device] = words[..] else { return None };
        let is_default = length == "00" && destination.bytes().all(|byte| byte == b'0') && device != "lo";
        is_default.then_some((u64::from_str_radix(metric, 16).ok()?, device))
    });
    defaults.min().map(|(_, device)| device.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_route_with_least_metric_selects_the_device() {
        let routes = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n\
            wlan0\t00000000\t0101A8C0\t0003\t0\t0\t600\t00000000\t0\t0\t0\n\
            eth0\t00000000\t0100000A\t0003\t0\t0\t100\t00000000\t0\t0\t0\n\
            eth1\t0000000A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n";
        assert_eq!(default_device(routes).as_deref(), Some("eth0"));
        assert_eq!(default_device("Iface\n"), None);
        let zero = "0".repeat(32);
        let routes = format!(
            "{zero} 00 {zero} 00 {zero} ffffffff 00000001 00000000 00200200 lo\n\
             {zero} 00 {zero} 00 fe800000000000000000000000000001 00000400 1 0 00000003 eth0\n"
        );
        assert_eq!(default_device_v6(&routes).as_deref(), Some("eth0"));
    }

    #[test]
    fn link_rate_excludes_headers_and_framing() {
        assert_eq!(for_data(BitRate::gbps(10), 1_500), BitRate::bps(9_414_824_447));
        assert_eq!(for_data(BitRate::gbps(10), 9_000), BitRate::bps(9_900_420_447));
        assert_eq!(for_data(BitRate::gbps(10), 10), BitRate::bps(0));
    }

    #[test]
    fn addresses_that_other_hosts_cannot_use_are_left_out() {
        for (ip, expected) in [
            ("127.0.0.1", false),
            ("::1", false),
            ("169.254.1.1", false),
            ("fe80::1", false),
            ("10.0.0.1", true),
            ("fd00::1", true),
        ] {
            assert_eq!(is_reachable(ip.parse().expect("an address")), expected, "{ip}");
        }
    }
}
