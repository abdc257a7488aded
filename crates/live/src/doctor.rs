//! Checks of a machine for `live`: ports, file descriptors, clock, encoder.
//!
//! Read [`doctor`].

use anabranch_units::Finding;
use rustix::process::{Resource, getrlimit};
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

/// Default TCP ports: controller, source, nodes and DNS.
const TCP_PORTS: [u16; 4] = [7200, 7201, 7202, 7253];
/// Default UDP port of DNS.
const UDP_PORT: u16 = 7253;
/// File descriptors that a process needs in addition to its viewers' connections.
const OTHER_DESCRIPTORS: u64 = 256;
/// Number of viewers of an edge below which the check of descriptors warns.
const VIEWERS_WANTED: u64 = 10_000;
/// 2025-01-01 in seconds since 1970. An earlier clock must be wrong.
const CLOCK_FROM_S: u64 = 1_735_689_600;
/// Files that exist while a time service runs: systemd-timesyncd, chrony, ntpd, NTPsec.
const TIME_SERVICES: [&str; 5] = [
    "/run/systemd/timesync/synchronized",
    "/run/chrony/chronyd.pid",
    "/run/chronyd.pid",
    "/run/ntpd.pid",
    "/run/ntpsec/ntpd.pid",
];

/// Runs all checks. Findings named `live from …` are ways to provide a channel.
pub fn doctor() -> Vec<Finding> {
    vec![encoder(), pull(), patterns(), ports(), viewers(getrlimit(Resource::Nofile).maximum), clock()]
}

fn encoder() -> Finding {
    let asked = Command::new("ffmpeg").arg("-version").stdin(Stdio::null()).stderr(Stdio::null()).output();
    let line = asked.ok().filter(|output| output.status.success());
    let line =
        line.map(|output| String::from_utf8_lossy(&output.stdout).lines().next().unwrap_or("").to_owned());
    let version = line.as_deref().and_then(|line| line.strip_prefix("ffmpeg version "));
    let version = version.and_then(|rest| rest.split_whitespace().next());
    let detail =
        version.map_or("no ffmpeg here (optional)".to_owned(), |version| format!("ffmpeg {version}"));
    Finding::new(
        "live from ffmpeg",
        version.is_some(),
        detail,
        "install ffmpeg 5.1 or later to publish from here",
    )
}

fn pull() -> Finding {
    Finding::new(
        "live from an origin",
        true,
        "`live source --pull` takes any HLS origin, over HTTP or HTTPS",
        "",
    )
}

fn patterns() -> Finding {
    Finding::new("live from test patterns", true, "`live publish` needs no encoder", "")
}

fn ports() -> Finding {
    let is_taken = |port: &u16| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_err();
    let mut taken: Vec<String> =
        TCP_PORTS.iter().filter(|port| is_taken(port)).map(|port| format!("TCP {port}")).collect();
    if UdpSocket::bind((Ipv4Addr::LOCALHOST, UDP_PORT)).is_err() {
        taken.push(format!("UDP {UDP_PORT}"));
    }
    let ok = taken.is_empty();
    let detail =
        if ok { "the default ports are free".to_owned() } else { format!("in use: {}", taken.join(", ")) };
    Finding::new(
        "live ports",
        ok,
        detail,
        "no fix is needed if these are daemons of live; else give --listen another port",
    )
}

/// Checks how many viewers fit into a process's limit of file descriptors; `None` for no limit.
fn viewers(descriptors: Option<u64>) -> Finding {
    let room = descriptors.map(|limit| limit.saturating_sub(OTHER_DESCRIPTORS));
    let ok = room.is_none_or(|room| room >= VIEWERS_WANTED);
    let detail = match (descriptors, room) {
        (Some(limit), Some(room)) => {
            format!("{limit} descriptors: room for {room} viewers' connections at one node")
        }
        _ => "no limit of descriptors".to_owned(),
    };
    Finding::new(
        "live viewers",
        ok,
        detail,
        "raise the hard limit (LimitNOFILE of the unit, ulimit -Hn) to the viewers and 256",
    )
}

/// Checks the clock, on which media dates, players' latency and numbers after a restart depend.
fn clock() -> Finding {
    let now_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let service = TIME_SERVICES.iter().find(|mark| Path::new(mark).exists());
    let is_set = now_s >= CLOCK_FROM_S;
    let detail = match (is_set, service) {
        (false, _) => "the clock is before 2025".to_owned(),
        (true, Some(mark)) => format!("set, and kept ({mark})"),
        (true, None) => "set, with no sign of a time service (timesyncd, chrony, ntpd)".to_owned(),
    };
    let fix = "run a time service: dates of media and numbers after a restart follow the clock";
    Finding::new("live clock", is_set && service.is_some(), detail, fix)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptor_limit_bounds_the_number_of_viewers() {
        let found = viewers(Some(1_024));
        assert!(!found.ok && found.detail.contains("room for 768 viewers"), "{found:?}");
        let least = VIEWERS_WANTED + OTHER_DESCRIPTORS;
        assert!(viewers(Some(least)).ok && !viewers(Some(least - 1)).ok);
        assert!(viewers(None).ok && viewers(None).fix.is_none());
    }

    #[test]
    fn port_in_use_is_reported() {
        let held = TcpListener::bind((Ipv4Addr::LOCALHOST, TCP_PORTS[3]));
        // Another program on this machine may already hold the port, with the same result.
        let found = ports();
        assert!(!found.ok && found.detail.contains("TCP 7253"), "{found:?}");
        drop(held);
    }

    #[test]
    fn each_finding_has_a_unique_name() {
        let mut names: Vec<_> = doctor().into_iter().map(|finding| finding.name).collect();
        assert!(names.iter().all(|name| name.starts_with("live ")));
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), 6);
    }
}
