//! Checks of single and combined settings, in addition to the checks of their types.

use super::read::InvalidSetting;
use super::{Incast, Scenario, Udp, Workload};
use crate::topologies::unknown_topology;
use anabranch_fabric::switch::PolicyKind;
use anabranch_transport::{Config, ConfigError, Control};
use anabranch_units::{BitRate, ByteCount, Dilation, Duration, LOSS_BURST_MAX, loss_ppm_max};

/// Maximum duration of a run. Even an hour of a busy network takes longer to simulate than is
/// practical.
pub(crate) const DURATION_MAX: Duration = Duration::from_secs(100_000);
/// Minimum rate of a UDP source.
pub(crate) const UDP_RATE_MIN: BitRate = BitRate::bps(1_000);

/// Checks that `value` is within the maximum duration of a run.
pub(super) fn time(field: &str, value: Duration) -> Result<(), InvalidSetting> {
    if value <= DURATION_MAX {
        return Ok(());
    }
    Err(InvalidSetting::new(field, format!("{value}: must be at most {DURATION_MAX}")))
}

impl Scenario {
    pub(super) fn check(&self) -> Result<(), InvalidSetting> {
        self.transport.check().map_err(|error| InvalidSetting::new("transport", error.to_string()))?;
        if self.workload.is_empty() {
            return Err(InvalidSetting::new("workload", "missing: say what the hosts do in a [[workload]]"));
        }
        match self.duration {
            Some(duration) if duration > DURATION_MAX || duration == Duration::ZERO => {
                let message = format!("{duration}: must be above 0 and at most {DURATION_MAX}");
                return Err(InvalidSetting::new("duration", message));
            }
            Some(duration) if self.warmup >= duration => {
                let message = format!("{}: must be shorter than duration, {duration}", self.warmup);
                return Err(InvalidSetting::new("warmup", message));
            }
            None if !self.workload.iter().all(Workload::has_end) => {
                return Err(InvalidSetting::new(
                    "duration",
                    "missing: a workload here has no end of its own",
                ));
            }
            _ => {}
        }
        self.network_check()?;
        if let Some(circuit) = &self.circuit {
            circuit.check()?;
        }
        self.check_marks_of_circuits()?;
        for (index, workload) in self.workload.iter().enumerate() {
            workload.check(&format!("workload[{index}]"))?;
            if let Some(control) = workload.control() {
                let transport = Config { control, ..self.transport.clone() };
                let wrong = |error: ConfigError| {
                    InvalidSetting::new(format!("workload[{index}].control"), error.to_string())
                };
                transport.check().map_err(wrong)?;
            }
        }
        if let Some(probe) = &self.probe {
            if probe.interval < Duration::from_ns(1) {
                return Err(InvalidSetting::new(
                    "probe.interval",
                    format!("{}: must be at least 1 ns", probe.interval),
                ));
            }
            time("probe.interval", probe.interval)?;
        }
        if let Some(dilation) = self.dilation.filter(|dilation| Dilation::try_from(*dilation).is_err()) {
            let message = format!("{dilation}: must be a whole number from 1 to {}", Dilation::MAX);
            return Err(InvalidSetting::new("dilation", message));
        }
        time("warmup", self.warmup)?;
        time("network.jitter", self.network.jitter)?;
        for (index, change) in self.change.iter().enumerate() {
            time(&format!("change[{index}].at"), change.at)?;
            let loss = [change.loss_ppm.is_some(), change.loss_burst.is_some()];
            let other = [change.up.is_some(), change.rate.is_some(), change.delay.is_some()];
            if !loss.into_iter().chain(other).any(|is| is) {
                let message = "changes nothing: say up, rate, delay, loss_ppm or loss_burst";
                return Err(InvalidSetting::new(format!("change[{index}]"), message));
            }
        }
        Ok(())
    }

    /// Refuses a congestion control that needs circuit marks if no switch sets them.
    fn check_marks_of_circuits(&self) -> Result<(), InvalidSetting> {
        let has_marks = self.circuit.as_ref().is_some_and(|circuit| circuit.mark_ahead.is_some());
        let own = self.workload.iter().filter_map(Workload::control);
        let mut controls = own.chain([self.transport.control]);
        if has_marks || !controls.any(Control::needs_circuit_marks) {
            return Ok(());
        }
        Err(InvalidSetting::new(
            "circuit.mark_ahead",
            "missing: a congestion control here goes by marks of circuits, so set it",
        ))
    }

    fn network_check(&self) -> Result<(), InvalidSetting> {
        let n = &self.network;
        // This check is first, because the numbers of a misspelt topology are not an error.
        if let Some(message) = unknown_topology(&n.topology) {
            return Err(InvalidSetting::new("network.topology", message));
        }
        let given =
            [("hosts", n.hosts), ("pairs", n.pairs), ("tors", n.tors), ("spines", n.spines), ("k", n.k)];
        let needed: &[&str] = match n.topology.as_str() {
            "star" => &["hosts"],
            "dumbbell" => &["pairs"],
            "leaf-spine" => &["tors", "spines", "hosts"],
            "fat-tree" => &["k"],
            _ => &[],
        };
        for (name, value) in given {
            let field = format!("network.{name}");
            match (needed.contains(&name), value) {
                (true, None) => {
                    let message = format!("missing: a {} needs it", n.topology);
                    return Err(InvalidSetting::new(field, message));
                }
                (false, Some(value)) => {
                    let message = format!("{value}: a {} has no such number", n.topology);
                    return Err(InvalidSetting::new(field, message));
                }
                _ => {}
            }
        }
        if loss_ppm_max(n.loss_burst).is_none() {
            let message = format!("{}: must be 1 to {LOSS_BURST_MAX} packets", n.loss_burst);
            return Err(InvalidSetting::new("network.loss_burst", message));
        }
        if n.spread.core(0, 1).is_some() && n.topology != "fat-tree" {
            let words: Vec<_> = PolicyKind::ALL.iter().map(|kind| kind.word()).collect();
            let message =
                format!("by destination: a {} has no cores; choose {}", n.topology, words.join(" or "));
            return Err(InvalidSetting::new("network.spread", message));
        }
        if let Some(alpha) = n.shared_factor
            && !(alpha > 0.0 && alpha <= 1_000.0 && n.shared_buffer.is_some())
        {
            let message = format!("{alpha}: must be above 0 and at most 1000, beside a shared_buffer");
            return Err(InvalidSetting::new("network.shared_factor", message));
        }
        Ok(())
    }
}

impl Workload {
    /// Congestion control of the workload's streams, if different from the transport's.
    pub const fn control(&self) -> Option<Control> {
        match self {
            Self::Long(long) => long.control,
            Self::Racks(racks) => racks.control,
            _ => None,
        }
    }
    /// Size below which the workload's flows are sent twice, if configured.
    pub const fn twice_below(&self) -> Option<ByteCount> {
        match self {
            Self::Long(long) => long.twice_below,
            Self::Poisson(poisson) => poisson.twice_below,
            Self::Trace(trace) => trace.twice_below,
            _ => None,
        }
    }
    /// Returns true if the workload ends by itself.
    pub(crate) const fn has_end(&self) -> bool {
        match self {
            // The system's plan decides this.
            Self::System(_) => true,
            Self::Long(long) => long.size.is_some(),
            Self::Incast(_) | Self::Trace(_) => true,
            Self::Poisson(poisson) => poisson.flows.is_some(),
            Self::Udp(udp) => udp.stop.is_some(),
            Self::Racks(_) => false,
        }
    }

    /// Strict priority of the workload's packets; `None` for a system, whose plan sets priorities.
    pub const fn priority(&self) -> Option<u8> {
        Some(match self {
            Self::System(_) => return None,
            Self::Long(w) => w.priority,
            Self::Incast(w) => w.priority,
            Self::Poisson(w) => w.priority,
            Self::Udp(w) => w.priority,
            Self::Trace(w) => w.priority,
            Self::Racks(w) => w.priority,
        })
    }

    /// Kind of the workload, as named in files.
    pub fn kind(&self) -> &str {
        match self {
            Self::System(system) => &system.kind,
            Self::Long(_) => "long",
            Self::Incast(_) => "incast",
            Self::Poisson(_) => "poisson",
            Self::Udp(_) => "udp",
            Self::Trace(_) => "trace",
            Self::Racks(_) => "racks",
        }
    }

    fn check(&self, field: &str) -> Result<(), InvalidSetting> {
        let within = |name: &str, value: u64, least: u64, most: u64| {
            if (least..=most).contains(&value) {
                return Ok(());
            }
            Err(InvalidSetting::new(format!("{field}.{name}"), format!("{value}: must be {least} to {most}")))
        };
        if let Some(priority) = self.priority() {
            within("priority", priority.into(), 0, 2)?;
        }
        let time = |name: &str, value: Duration| time(&format!("{field}.{name}"), value);
        match self {
            Self::Long(long) => {
                within("streams", long.streams.into(), 1, 10_000)?;
                time("start", long.start)?;
                time("jitter", long.jitter)?;
                long.size.map_or(Ok(()), |size| within("size", size.as_u64(), 1, 1 << 50))
            }
            Self::Incast(incast) => {
                within("rounds", incast.rounds.into(), 1, 1_000_000)?;
                within("warmup_rounds", incast.warmup_rounds.into(), 0, 1_000_000)?;
                time("jitter", incast.jitter)?;
                within("servers", incast.servers as u64, 1, 65_000)?;
                within("request", incast.request.as_u64(), 1, 1 << 20)?;
                incast
                    .block_bytes()
                    .map_err(|message| InvalidSetting::new(format!("{field}.block"), message))?;
                Ok(())
            }
            Self::Poisson(poisson) => {
                if !(poisson.load > 0.0 && poisson.load < 1.0) {
                    let message = format!("{}: must be above 0 and below 1", poisson.load);
                    return Err(InvalidSetting::new(format!("{field}.load"), message));
                }
                poisson.flows.map_or(Ok(()), |flows| within("flows", flows, 1, 100_000_000))
            }
            Self::Udp(udp) => {
                within("packet", udp.packet.as_u64(), 1, 65_535)?;
                time("start", udp.start)?;
                for (name, value) in [("stop", udp.stop), ("on", udp.on), ("off", udp.off)] {
                    time(name, value.unwrap_or(Duration::ZERO))?;
                }
                within("batch", udp.batch.into(), 1, 10_000)?;
                if let Some(rate) = udp.rate {
                    within("rate", rate.as_bps(), UDP_RATE_MIN.as_bps(), 1_000_000_000_000_000)?;
                }
                udp.check(field)
            }
            Self::Racks(racks) => within("rate", racks.rate.as_bps(), 1_000, 1_000_000_000_000_000),
            Self::Trace(_) | Self::System(_) => Ok(()),
        }
    }

    /// Maximum wire size of the workload's own packets; zero for TCP's and systems' packets.
    pub(crate) const fn packet(&self) -> ByteCount {
        match self {
            Self::Udp(udp) => udp.packet,
            _ => ByteCount::ZERO,
        }
    }
}

impl Udp {
    fn check(&self, field: &str) -> Result<(), InvalidSetting> {
        if self.on.is_some() != self.off.is_some() {
            return Err(InvalidSetting::new(format!("{field}.on"), "on and off go together"));
        }
        if self.random && self.on.is_some() {
            return Err(InvalidSetting::new(format!("{field}.random"), "either random, or on and off"));
        }
        if self.batch > 1 && !self.random {
            return Err(InvalidSetting::new(format!("{field}.batch"), "only with random = true"));
        }
        match (self.rate, self.load) {
            (None, Some(load)) if !(load > 0.0 && load < 1.0) => {
                let message = format!("{load}: must be above 0 and below 1");
                return Err(InvalidSetting::new(format!("{field}.load"), message));
            }
            (Some(_), None) | (None, Some(_)) => {}
            _ => return Err(InvalidSetting::new(format!("{field}.rate"), "give either rate or load")),
        }
        if self.stop.is_some_and(|stop| stop <= self.start) {
            return Err(InvalidSetting::new(format!("{field}.stop"), "must be later than start"));
        }
        Ok(())
    }
}

impl Incast {
    /// Returns the bytes from each server in a round.
    ///
    /// Errors: not exactly one of `block` and `total`, or 0 bytes per server.
    pub fn block_bytes(&self) -> Result<u64, String> {
        let bytes = match (self.block, self.total) {
            (Some(block), None) => block.as_u64(),
            (None, Some(total)) => total.as_u64() / self.servers.max(1) as u64,
            _ => return Err("give either block or total".into()),
        };
        if (1..=1 << 40).contains(&bytes) {
            Ok(bytes)
        } else {
            Err(format!("{bytes} bytes: must be 1 to 2^40"))
        }
    }
}
