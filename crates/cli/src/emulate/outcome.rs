//! Results of an emulated run: for people on stderr, for programs as JSON.
//!
//! Read [`Outcome`] first.

use anabranch_emu::{
    Change, CircuitFigures, Dilation, EmulationOptions, HostTime, LinkCounters, Report, unstretched,
};
use anabranch_graph::Topology;
use anabranch_units::{BitRate, ByteCount, SiteId};
use std::fmt::Write as _;
use std::process::ExitStatus;

/// A run and its figures.
pub struct Outcome<'a> {
    /// The network as it was at the start.
    pub topology: &'a Topology,
    /// Site of the command.
    pub site: SiteId,
    /// Options of the emulation.
    pub options: &'a EmulationOptions,
    /// Exit code of the run.
    pub code: u8,
    /// Time from the start of the command to its end, in seconds.
    pub seconds: f64,
    /// Programs of `--run`, and their exit status if they ended first.
    pub runs: Vec<(SiteId, &'a str, Option<ExitStatus>)>,
    /// Requested changes.
    pub changes: &'a [Change],
    /// Lateness, drops and trust.
    pub report: Report,
    /// Counters of each link.
    pub links: Vec<LinkCounters>,
    /// Days and rates of circuits. `None` without circuits.
    pub circuits: Option<CircuitFigures>,
}

impl Outcome<'_> {
    /// Returns one JSON object. Later versions may add fields, but remove none.
    pub fn json(&self) -> anyhow::Result<serde_json::Value> {
        let name = |s: SiteId| self.topology.site(s).name.as_str();
        let links = self.links.iter().map(|counters| {
            let link = self.topology.link(counters.link);
            let properties = &link.properties;
            let mut value = serde_json::to_value(counters)?;
            if let Some(object) = value.as_object_mut() {
                object.insert("from".into(), name(link.from).into());
                object.insert("to".into(), name(link.to).into());
                object.insert("rate_bps".into(), properties.capacity.as_bps().into());
                object.insert("delay_s".into(), properties.delay.as_secs_f64().into());
                object.insert("loss_ppm".into(), properties.loss_ppm.into());
                object.insert("loss_burst".into(), properties.loss_burst.into());
            }
            anyhow::Ok(value)
        });
        let runs = self.runs.iter().map(|(site, line, ended)| {
            serde_json::json!({ "site": name(*site), "command": line, "ended_early_with": ended.map(super::exit_code) })
        });
        Ok(serde_json::json!({
            "topology": self.topology.name(),
            "site": name(self.site),
            "mtu_bytes": self.options.mtu,
            "tcp_buffer_bytes_max": self.options.tcp_buffer_bytes_max.map(ByteCount::as_u64),
            "exit_code": self.code,
            "took_s": self.seconds,
            "dilation": self.options.dilation,
            "circuits": self.circuits,
            "trusted": self.report.trusted,
            "report": self.report,
            "runs": runs.collect::<Vec<_>>(),
            "changes": self.changes.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "links": links.collect::<anyhow::Result<Vec<_>>>()?,
        }))
    }

    /// Returns a few lines of text; if `verbose` is above 0, also the links.
    pub fn text(&self, verbose: u8) -> String {
        let r = &self.report;
        let mut out = String::new();
        let drops: Vec<_> = r
            .drops
            .iter()
            .filter(|d| *d.1 > 0)
            .map(|(reason, n)| format!("{n} {}", reason.replace('_', " ")))
            .collect();
        let _ = writeln!(
            out,
            "emulated {} for {:.1} s: {} packets, dropped {}; congestion control {}",
            self.topology.name(),
            r.took_s,
            r.packets,
            if drops.is_empty() { "none".to_owned() } else { drops.join(", ") },
            r.congestion_control,
        );
        let verdict = match (r.packets, r.trusted) {
            (_, false) => format!("NOT TRUSTED: {}", r.why.join("; ")),
            (0, true) => "nothing to judge by".to_owned(),
            (_, true) => "trusted".to_owned(),
        };
        let (p50, p99, p999, worst) =
            (r.lateness_us_p50, r.lateness_us_p99, r.lateness_us_p999, r.lateness_us_max);
        let _ = writeln!(
            out,
            "lateness p50 {p50:.0} us, p99 {p99:.0} us, p99.9 {p999:.0} us, worst {worst:.0} us: {verdict}"
        );
        if let Some(circuits) = &self.circuits {
            let [circuit, packet] =
                [circuits.circuit_bytes, circuits.packet_network_bytes].map(ByteCount::new);
            let _ = writeln!(out, "circuits carried {circuit}, the packet network {packet}");
        }
        let dilation = self.options.dilation;
        if dilation != Dilation::NONE {
            let own = unstretched(dilation, &r.congestion_control, self.options.quick_ack).join(", ");
            let _ = writeln!(
                out,
                "dilation {dilation}: times and rates are the network's; clocks not stretched: {own}"
            );
        }
        if let Some(time) = r.host_time {
            let _ = writeln!(out, "{}", host_processors(time));
        }
        if verbose > 0 {
            let _ = writeln!(out, "{}", self.table());
        }
        out
    }

    fn table(&self) -> comfy_table::Table {
        let mut rows = comfy_table::Table::new();
        rows.load_preset(comfy_table::presets::NOTHING);
        rows.set_header(["link", "rate", "sent", "mean load", "lost", "queue full", "while down"]);
        for c in &self.links {
            let link = self.topology.link(c.link);
            let sent = ByteCount::new(c.sent_bytes);
            let share =
                sent.as_u64() as f64 * 8.0 / self.report.took_s / link.properties.capacity.as_bps() as f64;
            rows.add_row([
                format!("{} - {}", self.topology.site(link.from).name, self.topology.site(link.to).name),
                BitRate::to_string(&link.properties.capacity),
                sent.to_string(),
                format!("{:.0} %", share * 100.0),
                c.dropped_loss.to_string(),
                c.dropped_queue_full.to_string(),
                c.dropped_link_down.to_string(),
            ]);
        }
        rows
    }
}

/// Describes the limit of hosts' processor time.
pub(super) fn host_processors(HostTime { cpus, throttled_share_max }: HostTime) -> String {
    let share = throttled_share_max * 100.0;
    format!(
        "processors of each host: {cpus}, divided by the dilation; none left in at most {share:.0} % of the time"
    )
}
