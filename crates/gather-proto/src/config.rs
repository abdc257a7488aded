//! Settings of clients and servers.

use crate::layout::{BLOCK_BYTES_MAX, BLOCK_BYTES_MIN};
use crate::mode::{DecoderKind, Mode, RateControl};
use crate::msg::{Feedback, Numbers, Packet, SEAL_BYTES, WINDOW_MAX};
use crate::receiver::packets_max;
use anabranch_codes::{lt, mds};
use anabranch_units::{BitRate, ByteCount, Duration};
use std::fmt;

/// Minimum MTU of a path, in bytes: the length of the IPv4 packet that every host must accept (RFC
/// 791, section 3.1).
pub const MTU_MIN: u32 = 576;
/// Length of the headers of IPv4 and UDP, in bytes.
const IP_UDP_BYTES: u32 = 28;
const _: () = assert!(
    BLOCK_BYTES_MIN + Packet::<()>::HEADER_BYTES_MAX + SEAL_BYTES + IP_UDP_BYTES <= MTU_MIN,
    "the packets of the shortest blocks fit every path"
);
const _: () = assert!(Feedback::BYTES_MAX + SEAL_BYTES + IP_UDP_BYTES <= MTU_MIN, "feedback fits every path");

/// Settings of a client.
#[derive(Clone, Debug, PartialEq)]
pub struct ClientConfig {
    /// Protocol of the client's pulls.
    pub mode: Mode,
    /// Rate control of the client's servers.
    pub rate_control: RateControl,
    /// Decoder of the client's pulls. In [`Mode::Counted`] a coded symbol covers half of all
    /// blocks, which peeling cannot use if several blocks are missing.
    pub decoder: DecoderKind,
    /// Block length in bytes, without the datagram's headers ([`crate::msg`]).
    pub block_bytes: u32,
    /// Block length in bytes for a retry at a server from which no packet has arrived: short enough
    /// for any path with IPv6's minimum MTU. A further retry uses [`BLOCK_BYTES_MIN`].
    pub block_bytes_safe: u32,
    /// Maximum number of blocks per generation. If a server's path allows only shorter blocks, a
    /// generation has more blocks, up to 255, so that its byte length stays the same.
    pub blocks_max: u32,
    /// Number of open generations per pull. Together with the block length, this number bounds
    /// memory.
    pub window: u32,
    /// Maximum number of pulls at once, over all servers.
    pub pulls_max: usize,
    /// Rate of the last hop, if known. The client divides this rate among pulls.
    pub link: Option<BitRate>,
    /// Share of [`ClientConfig::link`] that is granted. The remaining share is left to control
    /// messages and other traffic.
    pub link_share: f64,
    /// Header overhead on the link per datagram, in bytes: UDP, IP and the link.
    pub overhead_bytes: u32,
    /// Minimum interval between two feedbacks of a pull, or a round trip if that is longer.
    pub feedback_every: Duration,
    /// Duration of silence after which the client stops using a server. `None` derives the duration
    /// from the server's round-trip time and packet interval, between 5 s and 60 s.
    pub give_up: Option<Duration>,
}

/// Maximum number of pulls of a server at once: one that sends, the next one, so that the server is
/// never idle, and one that waits for retransmissions.
pub(crate) const PULLS_PER_SERVER: usize = 3;
/// Maximum number of a server's pulls that still expect first transmissions.
pub(crate) const PULLS_AHEAD: usize = 2;
/// Maximum of [`ClientConfig::give_up`], in milliseconds: ten days.
const GIVE_UP_MS_MAX: u64 = 10 * 24 * 3_600_000;
/// Minimum window, in generations. In a window of a single generation, a loss at its end would halt
/// the pull for a round trip.
const WINDOW_MIN: u32 = 2;
/// Approximate bytes of a generation: so long that coded symbols for a few losses cost little, and
/// so short that it completes soon.
const GENERATION_BYTES: u32 = 256 << 10;
/// Minimum and maximum number of blocks per generation. No MDS code exists beyond the maximum, so a
/// generation would need more packets than blocks.
const BLOCKS_MIN: u32 = 32;
const BLOCKS_MAX: u32 = mds::BLOCKS_MAX as u32;

impl Default for ClientConfig {
    fn default() -> Self {
        Self {
            mode: Mode::Counted,
            rate_control: Mode::Counted.rate_control(),
            decoder: DecoderKind::Inactivation,
            block_bytes: 1_024,
            // IPv6's minimum MTU is 1,280 bytes. The headers of IPv6 and UDP, the packet's own
            // header and the bytes of authentication are subtracted.
            block_bytes_safe: 1_280 - 48 - Packet::<()>::HEADER_BYTES_MAX - SEAL_BYTES,
            blocks_max: Self::blocks_to_generation(1_024),
            window: 16,
            pulls_max: 256,
            link: None,
            link_share: 0.98,
            // Per packet Ethernet takes 38 bytes with preamble, gap and checksum, IPv4 20, and UDP
            // 8.
            overhead_bytes: 66,
            feedback_every: Duration::ZERO,
            give_up: None,
        }
    }
}

/// Settings of a server.
#[derive(Clone, Debug, PartialEq)]
pub struct ServerConfig {
    /// Maximum number of pulls of one client at once.
    pub pulls_max: usize,
    /// Maximum rate of one client, in bits of datagrams per second.
    pub rate_max: Option<BitRate>,
    /// Maximum block length, in bytes.
    pub block_bytes_max: u32,
    /// Minimum block length in bytes, unless the pull is shorter.
    pub block_bytes_min: u32,
    /// Maximum memory for one client: generations, each block with its bookkeeping, and records of
    /// sent packets. Each pull may hold one generation and its packets even beyond this limit.
    pub memory_max: ByteCount,
    /// Maximum bytes sent under a client's grant before the client has proved that packets arrive.
    /// The limit applies per path, or with TFRC per pull.
    pub unproven_max: ByteCount,
    /// Duration of the client's silence, over all its pulls, after which a pull ends: the timer of
    /// LTTP section III-A.
    pub give_up: Duration,
    /// Interval within which due packets leave together, if the clock is coarse; zero if the clock
    /// is exact.
    pub quantum: Duration,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            pulls_max: 256,
            rate_max: None,
            block_bytes_max: BLOCK_BYTES_MAX,
            block_bytes_min: BLOCK_BYTES_MIN,
            memory_max: ByteCount::mib(256),
            // The bytes of 300 Mbit/s in 100 ms.
            unproven_max: ByteCount::mib(4),
            give_up: Duration::from_secs(5),
            quantum: Duration::ZERO,
        }
    }
}

/// A setting out of range.
#[derive(Clone, Debug, PartialEq)]
pub struct ConfigError {
    /// Name of the setting.
    pub setting: &'static str,
    /// Value of the setting with its unit, and the allowed range.
    pub message: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.setting, self.message)
    }
}
impl std::error::Error for ConfigError {}

fn within(setting: &'static str, unit: &str, value: u64, least: u64, most: u64) -> Result<(), ConfigError> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    Err(ConfigError { setting, message: format!("{value}{unit}: must be {least} to {most}{unit}") })
}

impl ClientConfig {
    /// Checks that every setting is in range.
    ///
    /// Errors: the first setting out of range.
    pub fn check(&self) -> Result<(), ConfigError> {
        if self.mode == Mode::Counted && self.decoder != DecoderKind::Inactivation {
            let message = format!("{}: must be inactivation in mode counted", self.decoder.name());
            return Err(ConfigError { setting: "decoder", message });
        }
        if self.mode == Mode::Lttp && self.rate_control != RateControl::Tfrc {
            let message = format!("{}: must be tfrc in mode lttp", self.rate_control.name());
            return Err(ConfigError { setting: "rate_control", message });
        }
        within("symbol", " B", self.block_bytes.into(), 1, BLOCK_BYTES_MAX.into())?;
        // Packet ids must cover as many coded symbols as blocks.
        let blocks_max = (lt::BLOCKS_MAX as u64).min(u64::from(Numbers::of(self.rate_control).ids) / 2);
        within("generation", " blocks", self.blocks_max.into(), 1, blocks_max)?;
        within("window", " generations", self.window.into(), 1, WINDOW_MAX.into())?;
        within("pulls", " at once", self.pulls_max as u64, 1, 1 << 16)?;
        within("header_bytes", " B", self.overhead_bytes.into(), 0, 1_000)?;
        if let Some(give_up) = self.give_up {
            within("give_up", " ms", give_up.as_us() / 1_000, 1, GIVE_UP_MS_MAX)?;
        }
        if let Some(link) = self.link {
            within("link", " b/s", link.as_bps(), 1_000, 1 << 50)?;
        }
        if !(self.link_share > 0.0 && self.link_share <= 1.0) {
            let message = format!("{}: must be above 0 and at most 1", self.link_share);
            return Err(ConfigError { setting: "link_share", message });
        }
        Ok(())
    }

    /// Number of blocks of this length per generation, between `BLOCKS_MIN` and `BLOCKS_MAX`.
    pub fn blocks_to_generation(block_bytes: u32) -> u32 {
        (GENERATION_BYTES / block_bytes.max(1)).clamp(BLOCKS_MIN, BLOCKS_MAX)
    }

    /// Maximum blocks of this length per generation.
    pub(crate) fn blocks_of(&self, block_bytes: u32) -> u32 {
        let bytes = u64::from(self.block_bytes) * u64::from(self.blocks_max);
        let as_long = (bytes / u64::from(block_bytes.max(1))).min(BLOCKS_MAX.into()) as u32;
        as_long.max(self.blocks_max)
    }

    /// Maximum memory for one generation's packets, whatever the server sends.
    pub fn generation_memory(&self) -> ByteCount {
        ByteCount::new(u64::from(self.block_bytes) * packets_max(self.mode, self.decoder, self.blocks_max))
    }

    /// Maximum packets held for a pull.
    pub(crate) fn packets_max(&self) -> u64 {
        packets_max(self.mode, self.decoder, self.blocks_max) * u64::from(self.window)
    }

    /// Returns the same settings for `servers` servers, with as many pulls and generations as
    /// `memory` allows. Returns `None` if `memory` is too small for one pull.
    pub fn fitted(self, memory: ByteCount, servers: usize) -> Option<Self> {
        let pulls_max = servers * PULLS_PER_SERVER;
        // The limit covers open generations only; a complete generation waits for the disk.
        let generations = memory.as_u64() / self.generation_memory().as_u64();
        let window = generations / pulls_max.max(1) as u64;
        if window >= WINDOW_MIN.into() {
            let window = window.min(WINDOW_MAX.into()) as u32;
            return Some(Self { pulls_max, window, ..self });
        }
        // The memory allows only fewer pulls at once.
        let pulls_max = (generations / u64::from(WINDOW_MIN)) as usize;
        (pulls_max > 0).then_some(Self { pulls_max, window: WINDOW_MIN, ..self })
    }

    /// Maximum memory for packets of incomplete generations, whatever the servers send.
    ///
    /// Differs: the bound does not hold in [`Mode::Lttp`], where a generation is the whole request.
    /// Cost: the blocks of one generation in addition, while that generation is decoded.
    pub fn memory(&self) -> ByteCount {
        let window = self.generation_memory().as_u64() * u64::from(self.window);
        ByteCount::new(window * self.pulls_max as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Issue #19: the estimate of memory counted more packets than are held. One server's window
    /// was only 40 MB of 256 MiB, and a generation had only 22 of 32 blocks.
    #[test]
    fn memory_covers_the_window_of_a_long_path() {
        // Block lengths for Ethernet's standard and jumbo frames.
        let lengths = [1_434, 8_192];
        let servers = [1, 3, 8, 32, 1_000];
        for (block_bytes, servers) in
            lengths.into_iter().flat_map(|length| servers.map(|servers| (length, servers)))
        {
            let blocks_max = ClientConfig::blocks_to_generation(block_bytes);
            let memory = ByteCount::mib(256);
            let config = ClientConfig { block_bytes, blocks_max, ..ClientConfig::default() };
            let fitted = config.fitted(memory, servers).expect("enough for a pull");
            assert!(fitted.memory() <= memory && fitted.check().is_ok(), "{servers} servers");
            // Bytes in flight at 1 Gbit/s for a round trip of 250 ms.
            let in_flight = 125_000_000 / 4;
            let all = servers as u64 * u64::from(fitted.window) * fitted.generation_memory().as_u64();
            assert!(servers > 32 || all > in_flight * 5 / 2, "{all} B in {servers} pulls");
        }
    }
}
