//! The settings of a `replicate` workload in a scenario, and whether they are valid for its
//! network.

use super::{BULK, FILL, Replicate};
use crate::msg::SYMBOL_BYTES_MAX;
use crate::plan::Scheme;
use crate::plan::schemes::{DrawnTransfer, JOINT};
use crate::plan::survey::concurrent;
use anabranch_graph::{SITES_MAX, Topology};
use anabranch_sim::scenario::SystemWorkload;
use anabranch_sim::system::SystemPlan as _;
use anabranch_sim::{Network, PlanError};
use anabranch_units::{ByteCount, Duration, Seed, SiteId};
use schemars::JsonSchema;
use serde::Deserialize;

/// Maximum time before a transfer begins.
const TIME_MAX: Duration = Duration::from_secs(100_000);

/// Settings of a workload. Either `from` and `to` name one transfer, or `transfers` and
/// `destinations` give the number of transfers that are drawn from the run's seed, as in `anabranch
/// experiment codedbulk`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Source of the single transfer.
    from: Option<String>,
    /// Destinations of the single transfer.
    to: Vec<String>,
    /// Number of drawn transfers, in place of `from` and `to`.
    transfers: Option<usize>,
    /// Number of destinations of a drawn transfer.
    destinations: usize,
    /// A scheme, `auto`, or `joint`: auto, with all transfers planned together.
    pub scheme: String,
    /// Whether uncoded flows of the lowest priority fill the capacity that the plans leave.
    pub fill: bool,
    /// Size of each file; endless if not set.
    pub size: Option<ByteCount>,
    /// Bytes of a packet between sites.
    pub symbol: ByteCount,
    /// Capacity of each virtual buffer in packets.
    pub buffer_packets: u16,
    /// Number of TCP connections of each flow.
    pub stripes: u16,
    /// Bytes that a connection accepts before any are acknowledged.
    pub send_buffer: ByteCount,
    /// Start of the first transfer.
    pub start: Duration,
    /// Interval between the starts of transfers.
    pub stagger: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            from: None,
            to: Vec::new(),
            transfers: None,
            destinations: 3,
            scheme: "auto".into(),
            fill: false,
            size: None,
            symbol: ByteCount::kib(64),
            buffer_packets: 16,
            stripes: 1,
            send_buffer: ByteCount::mib(4),
            start: Duration::ZERO,
            stagger: Duration::ZERO,
        }
    }
}

impl Settings {
    /// A setting that differs from its default and that real programs do not have, if any.
    pub fn only_simulated(&self) -> Option<&'static str> {
        (self.send_buffer != Self::default().send_buffer).then_some("send_buffer")
    }

    /// The transfers of a run with this seed.
    pub(super) fn draw(&self, topology: &Topology, seed: Seed) -> Vec<DrawnTransfer> {
        let drawn = concurrent(topology, seed, self.transfers.unwrap_or(1), self.destinations);
        drawn.into_iter().map(|(source, destinations)| DrawnTransfer { source, destinations }).collect()
    }

    fn check(&self) -> Result<(), (&'static str, String)> {
        let within = |name, value: u64, least: u64, most: u64| {
            let message = format!("{value}: must be {least} to {most}");
            if (least..=most).contains(&value) { Ok(()) } else { Err((name, message)) }
        };
        if self.scheme != JOINT && self.scheme != "auto" {
            self.scheme.parse::<Scheme>().map_err(|error| ("scheme", format!("{error}, auto or joint")))?;
        }
        within("symbol", self.symbol.as_u64(), 1, SYMBOL_BYTES_MAX.into())?;
        within("buffer_packets", self.buffer_packets.into(), 1, 4_096)?;
        within("stripes", self.stripes.into(), 1, 64)?;
        within("send_buffer", self.send_buffer.as_u64(), 1, 1 << 40)?;
        if let Some(size) = self.size {
            within("size", size.as_u64(), 1, 1 << 50)?;
        }
        for (name, time) in [("start", self.start), ("stagger", self.stagger)] {
            if time > TIME_MAX {
                return Err((name, format!("{time}: must be at most {TIME_MAX}")));
            }
        }
        // At most 4,096 sites, each the source of one transfer: no overflow.
        let transfers = self.transfers.unwrap_or(1).clamp(1, SITES_MAX) as u64;
        let left = TIME_MAX.as_ps() - self.start.as_ps();
        if u128::from(self.stagger.as_ps()) * u128::from(transfers - 1) > left.into() {
            let message = format!(
                "{}: the last of {transfers} transfers would begin more than {TIME_MAX} after the first moment",
                self.stagger
            );
            return Err(("stagger", message));
        }
        Ok(())
    }
}

/// Resolves a workload. Messages name the workload `field`.
///
/// Errors: an unknown or invalid setting, or a network in which sites cannot relay or reach each
/// other.
pub fn plan(workload: &SystemWorkload, network: &Network, field: &str) -> Result<Replicate, PlanError> {
    let wrong = |name: &str, message: String| PlanError { field: format!("{field}.{name}"), message };
    let settings: Settings = workload.settings(field)?;
    settings.check().map_err(|(name, message)| wrong(name, message))?;
    let topology = network.named_topology();
    if let Some(switch) = topology.sites().iter().find(|site| site.is_switch) {
        let message = format!(
            "replicate: `{}` is a switch, and every site relays: use internet2, b4 or a file without switches",
            switch.name
        );
        return Err(wrong("kind", message));
    }
    let sites = topology.sites().len();
    let listed = match (&settings.from, settings.to.as_slice(), settings.transfers) {
        (None, [], Some(transfers)) => {
            if !(1..=sites).contains(&transfers) {
                let message = format!("{transfers}: 1 to {sites}, as each site is the source of at most one");
                return Err(wrong("transfers", message));
            }
            if !(1..sites).contains(&settings.destinations) {
                let message = format!("{}: must be 1 to {}", settings.destinations, sites - 1);
                return Err(wrong("destinations", message));
            }
            None
        }
        (Some(from), [_, ..], None) => {
            let find = |name: &str, place: &str| {
                topology.find_site(name).map_err(|error| wrong(place, error.to_string()))
            };
            let source = find(from, "from")?;
            let destinations: Vec<SiteId> =
                settings.to.iter().map(|name| find(name, "to")).collect::<Result<_, _>>()?;
            Some(vec![DrawnTransfer { source, destinations }])
        }
        _ => {
            let message = "give either `from` and `to`, or `transfers` (and `destinations`) to be drawn";
            return Err(PlanError { field: field.to_owned(), message: message.into() });
        }
    };
    let hosts = network.hosts().len() as u16;
    let apart =
        (0..hosts).flat_map(|a| (0..hosts).map(move |b| (a, b))).find(|(a, b)| !network.is_reachable(*a, *b));
    if let Some((a, b)) = apart {
        let name = |host: u16| &topology.site(network.hosts()[usize::from(host)]).name;
        return Err(wrong(
            "kind",
            format!(
                "replicate: no way from {} to {}, not even for acknowledgements: set network.ways_back = true",
                name(a),
                name(b)
            ),
        ));
    }
    let priorities = if settings.fill { vec![BULK, FILL] } else { vec![BULK] };
    let planned = Replicate { settings, listed, priorities, field: field.to_owned() };
    if planned.listed.is_some() {
        // The listed transfers are the same for every seed, so their errors are reported before the
        // first run begins.
        planned.app(network, Seed::new(0))?;
    }
    Ok(planned)
}
