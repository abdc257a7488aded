//! Settings of a `shuffle` workload in a scenario, and their validation against its network.

use super::{FlowSpec, Shuffle};
use crate::{Scheduler, coordinator};
use anabranch_sim::scenario::SystemWorkload;
use anabranch_sim::{Network, PlanError};
use anabranch_units::{BitRate, ByteCount, Duration, Instant};
use schemars::JsonSchema;
use serde::Deserialize;
use std::collections::BTreeMap;

/// Maximum start time of a coflow, and maximum delay of its flows after that start: the maximum
/// duration of a run.
const START_MAX: Duration = Duration::from_secs(100_000);
/// Maximum number of flows in a workload.
const FLOWS_MAX: usize = 100_000;
/// Name of the setting for TCP without coordinator and agents.
const NONE: &str = "none";

/// Settings of a `shuffle` workload.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Settings {
    /// Scheduler, as in `shuffle coordinator --allocator`, or `none`.
    allocator: String,
    /// Host of the coordinator; by default host 0.
    coordinator: Option<String>,
    /// Coflows, by name.
    coflows: BTreeMap<String, CoflowSettings>,
    /// Interval between two listings of flows.
    look_every: Duration,
    /// Size below which flows have no limit.
    mice_below: ByteCount,
    /// Strict priority of data.
    priority: u8,
    /// Strict priority of control messages.
    control_priority: u8,
}

/// A coflow.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct CoflowSettings {
    /// Start time.
    #[serde(default)]
    start: Duration,
    /// Flows of the coflow; at least one.
    flows: Vec<FlowSettings>,
}

/// A flow of a coflow.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct FlowSettings {
    /// Host of the sender.
    from: String,
    /// Host of the receiver.
    to: String,
    /// Total bytes of the flow.
    size: ByteCount,
    /// Delay of the flow's start after the coflow's start.
    #[serde(default)]
    start: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            allocator: Scheduler::default().to_string(),
            coordinator: None,
            coflows: BTreeMap::new(),
            look_every: Duration::from_ms(100),
            mice_below: coordinator::ClassSettings::default().mice_below,
            priority: 1,
            control_priority: 1,
        }
    }
}

/// Resolves a workload, called `field` in error messages, against its network.
///
/// Errors: a setting that is unknown or out of range; a host that is unknown or unreachable.
pub fn plan(workload: &SystemWorkload, network: &Network, field: &str) -> Result<Shuffle, PlanError> {
    let wrong = |name: &str, message: String| PlanError { field: format!("{field}.{name}"), message };
    let settings: Settings = workload.settings(field)?;
    let allocator = match settings.allocator.as_str() {
        NONE => None,
        name => Some(name.parse::<Scheduler>().map_err(|_| {
            let all = Scheduler::ALL.map(Scheduler::name).join(", ");
            wrong("allocator", format!("`{name}`: must be {NONE}, {all}"))
        })?),
    };
    let find = |name: &str, at: &str| network.find_host(name).map_err(|message| wrong(at, message));
    let coordinator = settings.coordinator.as_deref().map_or(Ok(0), |name| find(name, "coordinator"))?;
    for (name, priority) in [("priority", settings.priority), ("control_priority", settings.control_priority)]
    {
        if priority > 2 {
            return Err(wrong(name, format!("{priority}: must be 0 to 2")));
        }
    }
    if !(Duration::from_us(1)..=Duration::from_secs(10)).contains(&settings.look_every) {
        return Err(wrong("look_every", format!("{}: must be 1 us to 10 s", settings.look_every)));
    }
    let count: usize = settings.coflows.values().map(|coflow| coflow.flows.len()).sum();
    if !(1..=FLOWS_MAX).contains(&count) {
        return Err(wrong("coflows", format!("{count} flows: must be 1 to {FLOWS_MAX}")));
    }
    let mut coflows = Vec::new();
    let mut hosts = BTreeMap::new();
    for (name, coflow) in settings.coflows {
        let at = format!("coflows.{name}");
        coordinator::check_name(&name).map_err(|error| wrong("coflows", error.to_string()))?;
        if coflow.flows.is_empty() {
            return Err(wrong(&at, "has no flows: a coflow has at least one".to_owned()));
        }
        let check_start = |start: Duration, at: String| match start <= START_MAX {
            true => Ok(start),
            false => Err(wrong(&at, format!("{start}: must be at most {START_MAX}"))),
        };
        let coflow_start = check_start(coflow.start, format!("{at}.start"))?;
        let mut flows = Vec::new();
        for (number, flow) in coflow.flows.iter().enumerate() {
            let at = |setting: &str| format!("{at}.flows[{number}].{setting}");
            let (from, to) = (find(&flow.from, &at("from"))?, find(&flow.to, &at("to"))?);
            if from == to {
                return Err(wrong(&at("to"), format!("{}: a flow goes to another host", flow.to)));
            }
            if !network.is_reachable(from, to) || !network.is_reachable(to, from) {
                return Err(wrong(
                    &at("to"),
                    format!("{} and {}: no way from one to the other and back", flow.from, flow.to),
                ));
            }
            if flow.size == ByteCount::ZERO {
                return Err(wrong(&at("size"), "0 B: must be at least 1 B".to_owned()));
            }
            for (host, host_name) in [(from, &flow.from), (to, &flow.to)] {
                let is_heard =
                    network.is_reachable(host, coordinator) && network.is_reachable(coordinator, host);
                if allocator.is_some() && !is_heard {
                    return Err(wrong("coordinator", format!("no way between it and {host_name}, and back")));
                }
                hosts.insert(host, link_rate(network, host));
            }
            let start = Instant::ZERO + coflow_start + check_start(flow.start, at("start"))?;
            flows.push(FlowSpec { from, to, size: flow.size, start });
        }
        coflows.push((name, flows));
    }
    Ok(Shuffle {
        allocator,
        settings: coordinator::ClassSettings { mice_below: settings.mice_below },
        coordinator,
        look_every: settings.look_every,
        priorities: vec![settings.priority, settings.control_priority],
        coflows,
        hosts,
    })
}

/// Returns the lower rate of a host's links out and in, because a coordinator uses one rate for a
/// host.
fn link_rate(network: &Network, host: u16) -> BitRate {
    let site = network.hosts()[usize::from(host)];
    let (mut out_bps, mut into_bps) = (0, 0);
    for link in network.topology().links() {
        let capacity_bps = link.properties.capacity.as_bps();
        out_bps += if link.from == site { capacity_bps } else { 0 };
        into_bps += if link.to == site { capacity_bps } else { 0 };
    }
    BitRate::bps(out_bps.min(into_bps))
}
