//! Size of TCP's bursts in this network namespace. After a large burst, a raised limit takes effect
//! late.
//!
//! A paced socket sends a burst, and then waits for the burst's duration at its rate. A higher rate
//! does not shorten a wait that has begun. Since version 5.18, Linux sends bursts of up to 64 KiB
//! at any rate if the RTT is below 512 us; at 100 kbit/s such bursts take 5 s. With
//! `net.ipv4.tcp_tso_rtt_log` set to 0 a burst is the data of one millisecond, and at least two
//! segments. Measured: the limit of a flow at 100 kbit/s rises to 24 Mbit/s. The flow has then
//! moved 200 kB after 1.7 to 2.3 s (Cubic) or 1.9 to 9.3 s (BBR); with the setting at 0, after 0.3
//! to 0.5 s. With 0, unlimited flows below 500 Mbit/s also send smaller bursts, which takes
//! slightly more processor time.
//!
//! Source: Linux, `tcp_tso_autosize` and `tcp_update_skb_after_send`;
//! Documentation/networking/ip-sysctl.

use std::io;

const PATH: &str = "/proc/sys/net/ipv4/tcp_tso_rtt_log";

/// Reads `net.ipv4.tcp_tso_rtt_log`.
///
/// Errors: the system's; `NotFound` before Linux 5.18, which has no such bursts.
pub fn tso_rtt_log() -> io::Result<u8> {
    let text = std::fs::read_to_string(PATH)?;
    text.trim().parse().map_err(|_| io::Error::new(io::ErrorKind::InvalidData, format!("{PATH}: {text:?}")))
}

/// Sets `net.ipv4.tcp_tso_rtt_log` for the whole network namespace.
///
/// Errors: the system's.
pub fn set_tso_rtt_log(log: u8) -> io::Result<()> {
    std::fs::write(PATH, log.to_string())
        .map_err(|error| io::Error::new(error.kind(), format!("{PATH}: {error}")))
}
