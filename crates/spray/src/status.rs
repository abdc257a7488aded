//! Status of an agent over its Unix socket: one JSON object for each connection.
//!
//! Read [`Status`] and [`ask`] first.

pub use anabranch_spray_proto::ways::AvoidReason;

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};
use tokio::time::timeout;

/// Time limit of an answer.
const ANSWER_TIME: Duration = Duration::from_secs(5);
/// Maximum bytes of an answer, which has some hundred bytes for each path of each peer.
const ANSWER_BYTES_MAX: u64 = 64 << 20;

/// Status of an agent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Name of the host.
    pub name: String,
    /// Name of the TUN device.
    pub device: String,
    /// Address on which the agent listens.
    pub listen: String,
    /// Number of UDP source ports, each a possible path.
    pub ways: u16,
    /// Number of peers whose TCP is currently spread over every path.
    pub up: usize,
    /// Status of each peer.
    pub peers: Vec<PeerStatus>,
}

/// Status of one peer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PeerStatus {
    /// Name of the peer.
    pub name: String,
    /// Address of the peer; `None` while its name does not resolve.
    pub address: Option<String>,
    /// True while TCP to the peer is spread over every path.
    pub is_up: bool,
    /// Seconds since `is_up` last changed.
    pub since_s: f64,
    /// Reason why TCP is not spread; `None` while it is spread.
    pub why: Option<String>,
    /// Longest packet of TCP to this peer, IP header included, in bytes.
    pub mtu_bytes: Option<u64>,
    /// Failed attempts and ends of `is_up`, by cause.
    #[serde(default)]
    pub failures: BTreeMap<String, u64>,
    /// Counters and measurements.
    #[serde(flatten)]
    pub figures: LinkFigures,
}

/// Counters and measurements of a peer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LinkFigures {
    /// Flows with state, which expires some seconds after their last packet.
    pub flows: u64,
    /// Current probability that a short flow's packet is blocked.
    pub blocked_share: f64,
    /// Mean number of source packets in a unit.
    pub unit_packets_mean: f64,
    /// Mean number of parities of a unit.
    pub parities_mean: f64,
    /// Packets of short flows sent in units.
    pub source_packets: u64,
    /// Parities sent for these units.
    pub parity_packets: u64,
    /// Packets with data, and parities, sent to the peer.
    pub sprayable_packets: u64,
    /// Sprayable packets sent over the fastest path. The remaining sprayable packets belong to long
    /// flows that yielded to active short flows.
    pub sprayed_packets: u64,
    /// Packets of short flows sent again because they were overdue.
    pub repeated_packets: u64,
    /// Bytes of packets and flow states currently held.
    #[serde(default)]
    pub held_bytes: u64,
    /// Flows that lost their packets or their state because the peer's memory was full.
    #[serde(default)]
    pub shed_flows: u64,
    /// Packets recovered from parities.
    pub recovered_packets: u64,
    /// Packets and parities that arrived but were not needed.
    pub surplus_packets: u64,
    /// Missing packets for which the receiver stopped waiting.
    pub given_up_packets: u64,
    /// Packets that overtook earlier packets.
    pub early_packets: u64,
    /// Smoothed round trip over all paths, in seconds.
    pub rtt_s: Option<f64>,
    /// Fastest recent round trip of any path, in seconds.
    pub rtt_fastest_s: Option<f64>,
    /// Longest recent round trip of a short flow's unblocked packets, in seconds.
    pub rtt_free_max_s: Option<f64>,
    /// Longest recent round trip of a short flow's blocked packets, in seconds.
    pub rtt_blocked_max_s: Option<f64>,
    /// Path changes of long flows because their path delivered nothing.
    pub moved_long_flows: u64,
    /// Datagrams sent.
    pub sent_datagrams: u64,
    /// Datagrams that the kernel refused.
    pub unsent_datagrams: u64,
    /// Datagrams longer than the path's MTU.
    pub too_long_datagrams: u64,
    /// Datagrams received with the current keys.
    pub came_datagrams: u64,
    /// Received datagrams that are duplicates, or older than the replay window.
    pub replayed_datagrams: u64,
    /// Received datagrams that the peer did not seal.
    pub forged_datagrams: u64,
    /// Packets of TCP between the device and the peer.
    #[serde(flatten)]
    pub packets: PacketFigures,
    /// Figures of each path.
    pub ways: Vec<PathFigures>,
}

/// Packets of TCP between the device and a peer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PacketFigures {
    /// Payload bytes taken for the peer.
    #[serde(default)]
    pub sent_bytes: u64,
    /// Payload bytes received from the peer.
    #[serde(default)]
    pub received_bytes: u64,
    /// Received packets refused because of addresses that the peer may not use.
    pub refused_in_packets: u64,
    /// Packets refused because they were too long for a datagram.
    pub refused_out_packets: u64,
}

/// Figures of one path.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PathFigures {
    /// Number of the path, from 0.
    pub number: u16,
    /// Datagrams sent over the path and acknowledged.
    pub came_datagrams: u64,
    /// Acknowledged datagrams that arrived with an ECN mark.
    pub marked_datagrams: u64,
    /// Datagrams whose acknowledgement was overdue.
    pub late_datagrams: u64,
    /// Smoothed round trip, in seconds.
    pub rtt_s: Option<f64>,
    /// Reason why the path is currently avoided, if it is.
    pub left: Option<AvoidReason>,
    /// Long flows assigned to the path.
    pub long_flows: u32,
}

impl LinkFigures {
    /// Share of parities among packets of short flows and parities.
    pub fn redundancy_share(&self) -> f64 {
        let all = self.source_packets + self.parity_packets;
        if all > 0 { self.parity_packets as f64 / all as f64 } else { 0.0 }
    }
}

/// Asks the agent with this status socket.
///
/// Errors: no agent answers, with a one-line reason; a malformed answer.
pub async fn ask(socket: &Path) -> io::Result<Status> {
    let named = |error: io::Error| {
        io::Error::new(error.kind(), format!("{}: {error}: does the agent run?", socket.display()))
    };
    let answer = async {
        let stream = UnixStream::connect(socket).await?;
        let mut text = Vec::new();
        stream.take(ANSWER_BYTES_MAX).read_to_end(&mut text).await?;
        Ok(text)
    };
    let text = timeout(ANSWER_TIME, answer).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
    serde_json::from_slice(&text.map_err(named)?).map_err(|error| named(io::Error::other(error)))
}

/// Answers connections one after the other.
pub(crate) async fn answer(listener: UnixListener, status: impl AsyncFn() -> Status) {
    loop {
        let Ok((mut stream, _)) = listener.accept().await else {
            // Accepting may fail for lack of descriptors, which may be freed during the pause.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let text = serde_json::to_vec(&status().await).expect("a status is JSON");
        // A slow reader gets a truncated answer.
        let _ = timeout(ANSWER_TIME, stream.write_all(&text)).await;
    }
}
