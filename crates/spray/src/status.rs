//! How an agent fares, as it tells over its Unix socket: one JSON object to whoever connects.
//!
//! Read [`Status`] and [`ask`] first.

pub use anabranch_spray_proto::ways::WhyLeft;

use serde::{Deserialize, Serialize};
use std::io;
use std::path::Path;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};
use tokio::time::timeout;

/// How long an answer may take.
const ANSWER_TIME: Duration = Duration::from_secs(5);
/// The most bytes of an answer: of some hundreds for each way of each peer.
const ANSWER_BYTES_MAX: u64 = 64 << 20;

/// How an agent fares.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Its host's name.
    pub name: String,
    /// Its TUN device.
    pub device: String,
    /// Where it listens.
    pub listen: String,
    /// From how many ports packets leave.
    pub ways: u16,
    /// Its peers.
    pub peers: Vec<PeerStatus>,
}

/// How it fares with a peer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PeerStatus {
    /// The peer's name.
    pub name: String,
    /// Its address.
    pub address: String,
    /// Whether TCP to it goes over every path now.
    pub is_up: bool,
    /// For how long it has been so, or not.
    pub since_s: f64,
    /// If it is not: why.
    pub why: Option<String>,
    /// The longest packet of TCP that goes there, IP header included.
    pub mtu_bytes: Option<u64>,
    /// What the packets did.
    #[serde(flatten)]
    pub figures: LinkFigures,
}

/// What was sent to a peer and what came from there, since the agent began.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LinkFigures {
    /// Flows that are remembered: those of the last seconds.
    pub flows: u64,
    /// How likely a packet of a short flow is blocked, now.
    pub blocked_share: f64,
    /// Packets of a unit, in the mean.
    pub unit_packets_mean: f64,
    /// Parities of a unit, in the mean.
    pub parities_mean: f64,
    /// Packets of short flows, and parities beside them.
    pub source_packets: u64,
    /// See above.
    pub parity_packets: u64,
    /// Packets with data, and parities.
    pub sprayable_packets: u64,
    /// Those of them that left by the quickest way. The others are a long flow's, while short ones were under way.
    pub sprayed_packets: u64,
    /// Packets of short flows that left again, as they should have come by then.
    pub repeated_packets: u64,
    /// Bytes of packets and of flows' states that are held, now.
    #[serde(default)]
    pub held_bytes: u64,
    /// Flows that gave up their packets, or were forgotten, because the peer's memory was full.
    #[serde(default)]
    pub shed_flows: u64,
    /// Packets that came back from parities.
    pub recovered_packets: u64,
    /// Packets and parities that came and were of no use.
    pub surplus_packets: u64,
    /// Packets that were no longer waited for.
    pub given_up_packets: u64,
    /// Packets that came before others that had left first.
    pub early_packets: u64,
    /// The round trip over all ways, smoothed, and the fastest on any.
    pub rtt_s: Option<f64>,
    /// See above.
    pub rtt_fastest_s: Option<f64>,
    /// The longest round trip of a short flow's packets that were not blocked, and of those that were, lately.
    pub rtt_free_max_s: Option<f64>,
    /// See above.
    pub rtt_blocked_max_s: Option<f64>,
    /// How often a long flow has changed its way because nothing came by it.
    pub moved_long_flows: u64,
    /// Datagrams that left.
    pub sent_datagrams: u64,
    /// Those that the kernel did not take.
    pub unsent_datagrams: u64,
    /// Those that were too long for the way.
    pub too_long_datagrams: u64,
    /// Datagrams that came with the keys of now.
    pub came_datagrams: u64,
    /// Those that had come before, or were very old.
    pub replayed_datagrams: u64,
    /// Those that the peer had not sealed.
    pub forged_datagrams: u64,
    /// Packets that came and may not come from there.
    pub refused_in_packets: u64,
    /// Packets that TCP sent and that did not fit.
    pub refused_out_packets: u64,
    /// Each way.
    pub ways: Vec<WayFigures>,
}

/// How a way fares.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WayFigures {
    /// Its number, from 0.
    pub number: u16,
    /// Datagrams that came by it.
    pub came_datagrams: u64,
    /// Those of them that were marked.
    pub marked_datagrams: u64,
    /// Datagrams that had not come when they should have.
    pub late_datagrams: u64,
    /// Its round trip, smoothed.
    pub rtt_s: Option<f64>,
    /// Why it is not taken now, if it is not.
    pub left: Option<WhyLeft>,
    /// Long flows that keep to it.
    pub long_flows: u32,
}

impl LinkFigures {
    /// Parities among all packets of short flows and parities.
    pub fn redundancy_share(&self) -> f64 {
        let all = self.source_packets + self.parity_packets;
        if all > 0 { self.parity_packets as f64 / all as f64 } else { 0.0 }
    }
}

/// Asks the agent whose socket this is.
///
/// Errors: nobody answers there, in a line; an answer that is none.
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

/// Answers all that connect, one after the other.
pub(crate) async fn answer(listener: UnixListener, status: impl AsyncFn() -> Status) {
    loop {
        let Ok((mut stream, _)) = listener.accept().await else {
            // Out of descriptors, say: others may be let go of meanwhile.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let text = serde_json::to_vec(&status().await).expect("a status is JSON");
        // Who does not read it has had its time.
        let _ = timeout(ANSWER_TIME, stream.write_all(&text)).await;
    }
}
