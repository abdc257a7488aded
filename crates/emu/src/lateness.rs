//! Lateness of packets relative to the fabric's intended times, and whether a run's figures can be
//! trusted.
//!
//! Read [`Report`] first.

use std::collections::BTreeMap;

use crate::Isolation;

/// Scheduling of the forwarder's thread.
#[derive(Copy, Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Scheduling {
    /// Real-time priority above all ordinary threads (SCHED_RR).
    RealTime,
    /// A larger share of the processor than ordinary threads have (nice -20).
    Nice,
    /// Ordinary scheduling.
    Ordinary,
}

/// Lateness and losses of a run, and whether its figures can be trusted.
///
/// Lateness is the time at which a packet was written to its site's device, minus its arrival time
/// in the fabric. The delay between a site and the emulator before a packet enters the fabric is
/// not measured; the same scheduling causes both.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Report {
    /// Packets written to sites.
    pub packets: u64,
    /// Median lateness in microseconds.
    pub lateness_us_p50: f64,
    /// Lateness in microseconds that 90 % of the packets do not exceed.
    pub lateness_us_p90: f64,
    /// Lateness in microseconds that 99 % of the packets do not exceed.
    pub lateness_us_p99: f64,
    /// Lateness in microseconds that 99.9 % of the packets do not exceed.
    pub lateness_us_p999: f64,
    /// Maximum lateness in microseconds.
    pub lateness_us_max: f64,
    /// Packets that the emulated network dropped, by reason. These drops belong to the emulated
    /// network's behaviour.
    pub drops: BTreeMap<&'static str, u64>,
    /// Packets that a site's kernel dropped because the emulator did not read them in time. These
    /// drops are errors of the emulation.
    pub device_drops: u64,
    /// Packets that a site's kernel refused to accept from the emulator.
    pub refused: u64,
    /// Time since the start.
    pub took_s: f64,
    /// Processor time of the forwarder.
    #[serde(flatten)]
    pub forwarder: ForwarderTime,
    /// Way in which the namespaces were created.
    pub isolation: Isolation,
    /// The congestion control of TCP in the sites, unless a program asks for another. In the run of
    /// a scenario: the congestion control of flows whose workload names none.
    pub congestion_control: String,
    /// Limit of the sites' processor time. `None` means that programs run at the machine's full
    /// speed.
    #[serde(flatten)]
    pub host_time: Option<HostTime>,
    /// Maximum of `lateness_us_p99` at which figures are trusted.
    pub lateness_us_p99_bound: f64,
    /// True if figures measured in this run can be trusted.
    pub trusted: bool,
    /// Reasons for distrust; empty if there are none.
    pub why: Vec<String>,
}

/// Processor time of the forwarder.
#[derive(Copy, Clone, Debug, PartialEq, serde::Serialize)]
pub struct ForwarderTime {
    /// Used processor time.
    #[serde(rename = "forwarder_cpu_s")]
    pub cpu_s: f64,
    /// Share of one processor that the forwarder used in its busiest second.
    #[serde(rename = "forwarder_cpu_share_max")]
    pub cpu_share_max: f64,
    /// Time for which the forwarder was runnable but had no processor.
    #[serde(rename = "forwarder_wait_s")]
    pub wait_s: f64,
    /// Scheduling of the forwarder's thread.
    pub scheduling: Scheduling,
}

/// Limit of the sites' processor time, and its effect.
#[derive(Copy, Clone, Debug, PartialEq, serde::Serialize)]
pub struct HostTime {
    /// Number of processors of each site, whose time is divided by the dilation.
    #[serde(rename = "host_cpus")]
    pub cpus: u32,
    /// Largest share, over all sites, of the periods in which a site's programs had no processor
    /// time left.
    #[serde(rename = "host_throttled_share_max")]
    pub throttled_share_max: f64,
}

/// Share of one processor above which the forwarder's speed itself shapes the traffic.
const CPU_SHARE_BOUND: f64 = 0.9;

impl Report {
    /// Sets `trusted` and `why` from the other fields.
    pub(crate) fn judge(mut self) -> Self {
        let (p99, bound) = (self.lateness_us_p99, self.lateness_us_p99_bound);
        let share = self.forwarder.cpu_share_max * 100.0;
        let findings = [
            (
                p99 > bound,
                format!(
                    "1 % of the packets were more than {p99:.0} us late (bound {bound:.0} us): lower the link rates or free a processor"
                ),
            ),
            (
                self.device_drops > 0,
                format!(
                    "{} packets were lost before the emulator read them: lower the link rates",
                    self.device_drops
                ),
            ),
            (self.refused > 0, format!("{} packets were refused by a site's kernel", self.refused)),
            (
                share > CPU_SHARE_BOUND * 100.0,
                format!(
                    "the emulator used {share:.0} % of a processor in its busiest second: lower the link rates"
                ),
            ),
        ];
        self.why = findings.into_iter().filter_map(|(found, text)| found.then_some(text)).collect();
        self.trusted = self.why.is_empty();
        self
    }
}
