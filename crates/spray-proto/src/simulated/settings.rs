//! The settings of a `spray` workload in a scenario.

use super::{Scheme, Spray};
use crate::datagram::SOURCE_HEAD_BYTES;
use crate::ways::WAYS_MAX;
use crate::{Config, Parities, UnitSize};
use anabranch_sim::scenario::SystemWorkload;
use anabranch_sim::{Network, PlanError};
use anabranch_units::{BitRate, ByteCount, Duration};
use schemars::JsonSchema;
use serde::Deserialize;

/// A workload's settings.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Settings {
    /// Scheme of the hosts.
    scheme: Scheme,
    /// Size from which a flow is long.
    long: ByteCount,
    /// True if flows state their size.
    knows_sizes: bool,
    /// Packets of a unit, or `window`; by default the optimum of the equations.
    unit: Option<Unit>,
    /// Parities of a unit; by default the mean number of blocked packets.
    parities: Option<u8>,
    /// Rate of the narrowest link, for the equations; by default of the first host's link.
    rate: Option<BitRate>,
    /// Maximum wait for an overtaken packet; by default 4 ms, or 50 ms with agents.
    hold_max: Option<Duration>,
    /// Bytes that the layer adds to a coded packet.
    header_bytes: u32,
    /// Number of paths from an agent to each other host.
    ways: u16,
    /// True if packets of short flows have the first strict priority.
    short_first: bool,
}

/// Packets of a unit.
#[derive(Copy, Clone, Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
enum Unit {
    /// This number of packets.
    Fixed(u8),
    /// A rule.
    Named(UnitRule),
}

/// A unit's size by a rule.
#[derive(Copy, Clone, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum UnitRule {
    /// All packets of a window.
    Window,
}

impl Default for Settings {
    fn default() -> Self {
        let Config { long, knows_sizes, .. } = Config::default();
        Self {
            scheme: Scheme::Caps,
            long,
            knows_sizes,
            unit: None,
            parities: None,
            rate: None,
            hold_max: None,
            header_bytes: SOURCE_HEAD_BYTES as u32,
            ways: 64,
            short_first: false,
        }
    }
}

/// Resolves the workload against `network`.
///
/// Errors: a setting that is unknown or out of range, with its location below `field`.
pub fn plan(workload: &SystemWorkload, network: &Network, field: &str) -> Result<Spray, PlanError> {
    let settings: Settings = workload.settings(field)?;
    let first = network.topology().links_out(network.hosts()[0]).next();
    let link_rate = first.map(|link| network.topology().link(link).properties.capacity);
    let base = match settings.scheme {
        Scheme::Agent => Config::of_agent(),
        scheme => {
            Config { knows_sizes: settings.knows_sizes, codes: scheme == Scheme::Caps, ..Config::default() }
        }
    };
    let config = Config {
        long: settings.long,
        unit: match settings.unit {
            None => UnitSize::Best,
            Some(Unit::Fixed(packets)) => UnitSize::Fixed(packets),
            Some(Unit::Named(UnitRule::Window)) => UnitSize::Window,
        },
        parities: settings.parities.map_or(Parities::Blocking, Parities::Fixed),
        rate: settings.rate.or(link_rate).unwrap_or(base.rate),
        hold_max: settings.hold_max.unwrap_or(base.hold_max),
        ..base
    };
    let config = match settings.scheme {
        // All flows are put in order, without parities.
        Scheme::Presto => Config {
            long: ByteCount::new(u64::MAX),
            knows_sizes: false,
            codes: true,
            parities: Parities::Fixed(0),
            unit: UnitSize::Fixed(1),
            ..config
        },
        _ => config,
    };
    config.check().map_err(|error| PlanError {
        field: format!("{field}.{}", error.setting()),
        message: error.to_string(),
    })?;
    let Settings { scheme, header_bytes, ways, short_first, .. } = settings;
    if !(1..=WAYS_MAX).contains(&ways) {
        let message = format!("{ways} ways: must be 1 to {WAYS_MAX}");
        return Err(PlanError { field: format!("{field}.ways"), message });
    }
    Ok(Spray { scheme, config, header_bytes, ways, short_first: short_first || scheme == Scheme::Priority })
}
