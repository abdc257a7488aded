//! How clients and servers are set up.

use crate::layout::{BLOCK_BYTES_MAX, BLOCK_BYTES_MIN};
use crate::mode::{DecoderKind, Mode, RateControl};
use crate::msg::{Numbers, Packet, SEAL_BYTES, WINDOW_MAX};
use crate::receiver::packets_max;
use anabranch_codes::{lt, mds};
use anabranch_units::{BitRate, ByteCount, Duration};
use std::fmt;

/// How a client is set up.
#[derive(Clone, Debug, PartialEq)]
pub struct ClientConfig {
    /// Of its pulls.
    pub mode: Mode,
    /// Of its pulls' servers.
    pub rate_control: RateControl,
    /// Of its pulls. In [`Mode::Counted`] sums have half of all blocks, which peeling cannot use where several are lacking.
    pub decoder: DecoderKind,
    /// Bytes of a block; a datagram has [`crate::msg`]'s headers besides.
    pub block_bytes: u32,
    /// The block's length with which a server is asked again of which no packet came: short enough for any path.
    pub block_bytes_safe: u32,
    /// The most blocks to a generation. Where a server's way takes only shorter ones there are more of them, up to 255, so that
    /// a generation has as many bytes.
    pub blocks_max: u32,
    /// Generations that a pull keeps open: with the block's length, what bounds memory.
    pub window: u32,
    /// Pulls at once, over all servers.
    pub pulls_max: usize,
    /// What the last hop carries, if that is known: it is divided among pulls.
    pub link: Option<BitRate>,
    /// The share of [`ClientConfig::link`] that is granted; the rest is for control messages and for what else there is.
    pub link_share: f64,
    /// Bytes on the link beside each datagram: the headers of UDP, IP and the link.
    pub overhead_bytes: u32,
    /// The least time between two feedbacks of a pull; a round trip where that is longer.
    pub feedback_every: Duration,
    /// A pull of which nothing has come for so long is taken from its server.
    pub give_up: Duration,
}

/// Pulls of a server at once: one that is sent, the next one, so that there is always one, and one that ends, which waits for what was
/// lost.
pub(crate) const PULLS_PER_SERVER: usize = 3;
/// Of them, those that do not end yet.
pub(crate) const PULLS_AHEAD: usize = 2;
/// The least window, in generations: with one, a loss at its end would halt the pull for a round trip.
const WINDOW_MIN: u32 = 2;
/// Bytes of a generation, about: enough blocks that a sum of some lost ones costs little, few enough to be soon whole.
const GENERATION_BYTES: u32 = 256 << 10;
/// The fewest and the most blocks to a generation: of more no code makes as many packets do as there are blocks.
const BLOCKS_MIN: u32 = 32;
const BLOCKS_MAX: u32 = mds::BLOCKS_MAX as u32;

impl Default for ClientConfig {
    fn default() -> Self {
        Self {
            mode: Mode::Counted,
            rate_control: Mode::Counted.rate_control(),
            decoder: DecoderKind::Inactivation,
            block_bytes: 1_024,
            // IPv6's least MTU of 1,280, less its and UDP's headers, our own and what authentication adds.
            block_bytes_safe: 1_280 - 48 - Packet::<()>::HEADER_BYTES_MAX - SEAL_BYTES,
            blocks_max: Self::blocks_to_generation(1_024),
            window: 16,
            pulls_max: 256,
            link: None,
            link_share: 0.98,
            // Ethernet with preamble, gap and checksum 38, IPv4 20, UDP 8.
            overhead_bytes: 66,
            feedback_every: Duration::ZERO,
            give_up: Duration::from_secs(5),
        }
    }
}

/// How a server is set up.
#[derive(Clone, Debug, PartialEq)]
pub struct ServerConfig {
    /// Pulls of one client at once.
    pub pulls_max: usize,
    /// What is sent to one client in a second at the most, in bits of datagrams.
    pub rate_max: Option<BitRate>,
    /// The longest block that is sent, in bytes.
    pub block_bytes_max: u32,
    /// The shortest block of a pull that is longer, in bytes.
    pub block_bytes_min: u32,
    /// Bytes that one client may have a server hold: generations, each block with what it takes beside its bytes, and packets
    /// that are remembered. Each pull may have one generation and its packets nevertheless.
    pub memory_max: ByteCount,
    /// Bytes that a client can have sent by its grant, of a path or with TFRC of a pull, before it has shown that it receives any.
    pub unproven_max: ByteCount,
    /// A pull is over once its client has said nothing for so long, of this pull or another: the timer of LTTP section III-A.
    pub give_up: Duration,
    /// Packets that are due within this time at least leave together, where a clock is coarse; zero where it is exact.
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
            // What 300 Mbit/s bring in 100 ms.
            unproven_max: ByteCount::mib(4),
            give_up: Duration::from_secs(5),
            quantum: Duration::ZERO,
        }
    }
}

/// A setting that cannot be.
#[derive(Clone, Debug, PartialEq)]
pub struct ConfigError {
    /// Which.
    pub setting: &'static str,
    /// What it is, with its unit, and what it must be.
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
    /// Whether it can be.
    ///
    /// Errors: the first setting out of its range.
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
        // As many sums as blocks have numbers.
        let blocks_max = (lt::BLOCKS_MAX as u64).min(u64::from(Numbers::of(self.rate_control).ids) / 2);
        within("generation", " blocks", self.blocks_max.into(), 1, blocks_max)?;
        within("window", " generations", self.window.into(), 1, WINDOW_MAX.into())?;
        within("pulls", " at once", self.pulls_max as u64, 1, 1 << 16)?;
        within("header_bytes", " B", self.overhead_bytes.into(), 0, 1_000)?;
        if let Some(link) = self.link {
            within("link", " b/s", link.as_bps(), 1_000, 1 << 50)?;
        }
        if !(self.link_share > 0.0 && self.link_share <= 1.0) {
            let message = format!("{}: must be above 0 and at most 1", self.link_share);
            return Err(ConfigError { setting: "link_share", message });
        }
        Ok(())
    }

    /// How many blocks of such a length make a generation that is neither long nor of few blocks.
    pub fn blocks_to_generation(block_bytes: u32) -> u32 {
        (GENERATION_BYTES / block_bytes.max(1)).clamp(BLOCKS_MIN, BLOCKS_MAX)
    }

    /// The most blocks of this length to a generation.
    pub(crate) fn blocks_of(&self, block_bytes: u32) -> u32 {
        let bytes = u64::from(self.block_bytes) * u64::from(self.blocks_max);
        let as_long = (bytes / u64::from(block_bytes.max(1))).min(BLOCKS_MAX.into()) as u32;
        as_long.max(self.blocks_max)
    }

    /// The most that a client keeps of one generation's packets, whatever its server sends.
    pub fn generation_memory(&self) -> ByteCount {
        ByteCount::new(u64::from(self.block_bytes) * packets_max(self.mode, self.decoder, self.blocks_max))
    }

    /// The most packets that a client keeps of a pull.
    pub(crate) fn packets_max(&self) -> u64 {
        packets_max(self.mode, self.decoder, self.blocks_max) * u64::from(self.window)
    }

    /// The same for so many servers, with as many pulls at once and generations to each as so much memory allows; none where
    /// it is too little for one pull.
    pub fn fitted(self, memory: ByteCount, servers: usize) -> Option<Self> {
        let pulls_max = servers * PULLS_PER_SERVER;
        // Of each generation that is open; what is whole waits for the disk.
        let generations = memory.as_u64() / self.generation_memory().as_u64();
        let window = generations / pulls_max.max(1) as u64;
        if window >= WINDOW_MIN.into() {
            let window = window.min(WINDOW_MAX.into()) as u32;
            return Some(Self { pulls_max, window, ..self });
        }
        // Fewer pulls at once then.
        let pulls_max = (generations / u64::from(WINDOW_MIN)) as usize;
        (pulls_max > 0).then_some(Self { pulls_max, window: WINDOW_MIN, ..self })
    }

    /// The most that a client keeps of packets that are not whole generations yet, whatever its servers send.
    ///
    /// Differs: not in [`Mode::Lttp`], where a generation is all that is asked for.
    /// Cost: beside this, for the one generation that is solved now, its blocks.
    pub fn memory(&self) -> ByteCount {
        let window = self.generation_memory().as_u64() * u64::from(self.window);
        ByteCount::new(window * self.pulls_max as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// #19: of 256 MiB one server's window had 40 MB, and of 32 blocks to a generation 22: more packets were counted than one keeps.
    #[test]
    fn memory_is_a_far_paths_window_and_no_more_than_was_allowed() {
        // Those of Ethernet, and of its longest frames.
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
            // 1 Gbit/s for 250 ms.
            let in_flight = 125_000_000 / 4;
            let all = servers as u64 * u64::from(fitted.window) * fitted.generation_memory().as_u64();
            assert!(servers > 32 || all > in_flight * 5 / 2, "{all} B in {servers} pulls");
        }
    }
}
