//! Settings of a `gather` workload in a scenario, and their validation against its network.

use super::Gather;
use crate::config::PULLS_PER_SERVER;
use crate::msg::SEAL_BYTES;
use crate::{ClientConfig, DecoderKind, Mode, RateControl, ServerConfig};
use anabranch_sim::scenario::SystemWorkload;
use anabranch_sim::{Network, PlanError};
use anabranch_units::{BitRate, ByteCount, Duration};
use schemars::JsonSchema;
use serde::Deserialize;

/// Header length of UDP and IPv4 in bytes.
const UDP_IP_BYTES: u32 = 28;
/// Memory limit of a client for packets, as in real programs.
const MEMORY: ByteCount = ByteCount::mib(256);
/// Silence after which clients and servers give up: longer than any run.
const GIVE_UP: Duration = Duration::from_secs(100_000);

/// Settings of a workload.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Settings {
    /// Host of the client; host 0 by default.
    client: Option<String>,
    /// Number of servers: the hosts after the client.
    pub servers: usize,
    /// Whether the servers are drawn from all other hosts with the run's seed instead.
    pub random_servers: bool,
    /// Bytes from each server.
    pub block: ByteCount,
    /// Whether all servers hold the same block, and each delivers a part.
    pub same_block: bool,
    /// Number of measured rounds; each starts when the previous one is complete.
    pub rounds: u32,
    /// Number of warm-up rounds, which are not measured.
    pub warmup_rounds: u32,
    /// Protocol of the pulls.
    pub mode: Mode,
    /// Rate control of the servers; by default TFRC in LTTP's mode, BBR otherwise.
    pub rate_control: Option<RateControl>,
    /// Decoder; by default LTTP's Algorithm 2 in its mode, elimination otherwise.
    pub decoder: Option<DecoderKind>,
    /// Bytes of a coded block.
    pub symbol: ByteCount,
    /// Maximum blocks per generation; by default as in real clients.
    pub generation: Option<u32>,
    /// Generations that a pull keeps open; by default as many as real clients' memory allows.
    pub window: Option<u32>,
    /// Header bytes below the protocol.
    pub header_bytes: u32,
    /// Whether the client knows the rate of its last hop.
    pub knows_link: bool,
    /// Share of the last hop that is granted.
    pub link_share: f64,
    /// Strict priority of its packets.
    pub priority: u8,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            client: None,
            servers: 8,
            random_servers: false,
            block: ByteCount::kib(256),
            same_block: false,
            rounds: 20,
            warmup_rounds: 0,
            mode: Mode::Counted,
            rate_control: None,
            decoder: None,
            symbol: ByteCount::new(1_024),
            generation: None,
            window: None,
            header_bytes: UDP_IP_BYTES,
            knows_link: true,
            link_share: ClientConfig::default().link_share,
            priority: 1,
        }
    }
}

impl Settings {
    /// Bytes that authentication adds to a datagram; none in the paper.
    pub(super) fn seal_bytes(&self) -> u32 {
        match self.mode {
            Mode::Lttp => 0,
            Mode::Counted => SEAL_BYTES,
        }
    }

    /// Name of a setting that real programs do not support, for [`Gather::only_simulated`].
    pub(super) fn only_simulated(&self) -> Option<&'static str> {
        let usual = Self::default();
        let set = [
            (self.mode != usual.mode, "mode"),
            (self.rate_control.is_some(), "rate_control"),
            (self.decoder.is_some(), "decoder"),
            (self.symbol != usual.symbol, "symbol"),
            (self.generation != usual.generation, "generation"),
            (self.window != usual.window, "window"),
            (self.header_bytes != usual.header_bytes, "header_bytes"),
            (self.link_share.to_bits() != usual.link_share.to_bits(), "link_share"),
            (self.priority != usual.priority, "priority"),
        ];
        set.into_iter().find_map(|(is_set, name)| is_set.then_some(name))
    }

    /// Bytes fetched in a round.
    pub(super) fn round_bytes(&self, servers: usize) -> u64 {
        self.block.as_u64() * if self.same_block { 1 } else { servers as u64 }
    }

    fn client_config(&self, link: BitRate) -> ClientConfig {
        let decoder = match self.mode {
            Mode::Lttp => DecoderKind::Improved,
            Mode::Counted => DecoderKind::Inactivation,
        };
        let block_bytes = self.symbol.as_u64().try_into().unwrap_or(u32::MAX);
        let config = ClientConfig {
            mode: self.mode,
            rate_control: self.rate_control.unwrap_or(self.mode.rate_control()),
            decoder: self.decoder.unwrap_or(decoder),
            block_bytes,
            blocks_max: self.generation.unwrap_or_else(|| ClientConfig::blocks_to_generation(block_bytes)),
            window: self.window.unwrap_or(1),
            // For a single object, a server begins its next pull while its previous pull ends.
            pulls_max: self.servers * if self.same_block { PULLS_PER_SERVER } else { 1 },
            block_bytes_safe: ClientConfig::default().block_bytes_safe,
            link: (self.knows_link && self.mode == Mode::Counted).then_some(link),
            link_share: self.link_share,
            overhead_bytes: self.header_bytes + self.seal_bytes(),
            feedback_every: Duration::ZERO,
            give_up: Some(GIVE_UP),
        };
        match (self.window, self.mode) {
            (None, Mode::Counted) => config.clone().fitted(MEMORY, self.servers).unwrap_or(config),
            _ => config,
        }
    }
}

/// Validates a workload. `field` is the workload's name in error messages.
///
/// Errors: a setting that is unknown or out of range, or more servers than hosts.
pub fn plan(workload: &SystemWorkload, network: &Network, field: &str) -> Result<Gather, PlanError> {
    let wrong = |name: &str, message: String| PlanError { field: format!("{field}.{name}"), message };
    let within = |name: &'static str, value: u64, least: u64, most: u64| {
        let message = format!("{value}: must be {least} to {most}");
        if (least..=most).contains(&value) { Ok(()) } else { Err(wrong(name, message)) }
    };
    let settings: Settings = workload.settings(field)?;
    let hosts = network.hosts().len();
    let client = settings.client.as_deref().map_or(Ok(0), |name| network.find_host(name));
    let client = client.map_err(|message| wrong("client", message))?;
    if !(1..hosts).contains(&settings.servers) {
        let servers = settings.servers;
        return Err(wrong(
            "servers",
            format!("{servers}: the network has {hosts} hosts, one of them the client"),
        ));
    }
    within("rounds", settings.rounds.into(), 1, 1_000_000)?;
    within("warmup_rounds", settings.warmup_rounds.into(), 0, 1_000_000)?;
    within("block", settings.block.as_u64(), 1, 1 << 40)?;
    within("symbol", settings.symbol.as_u64(), 1, 60_000)?;
    within("header_bytes", settings.header_bytes.into(), 0, 1_000)?;
    within("priority", settings.priority.into(), 0, 2)?;
    let site = network.hosts()[usize::from(client)];
    let topology = network.topology();
    let rates = topology.links().iter().filter(|link| link.to == site).map(|link| link.properties.capacity);
    let link = rates.max().ok_or_else(|| wrong("client", "no link leads to it".to_owned()))?;
    let config = settings.client_config(link);
    config.check().map_err(|error| wrong(error.setting, error.message))?;
    let server_config = ServerConfig {
        give_up: GIVE_UP,
        // The simulator represents blocks by their lengths, which take no memory.
        memory_max: ByteCount::new(1 << 50),
        block_bytes_min: 1,
        ..ServerConfig::default()
    };
    let priorities = vec![settings.priority];
    Ok(Gather { settings, client, link, config, server_config, priorities })
}
