//! The engine of `demo`: one file from one site to several over an emulated network, by one scheme.
//!
//! Each scheme gets a new network, so that lateness is counted per scheme. Copies are compared with
//! the source's file here, in addition to the sites' own checks. Leaves out: tables, pictures and
//! progress bars (`cli`). Read [`DemoSettings`] first.

use crate::fleet::Fleet;
use crate::replicate::stage::{DaemonSettings, events};
use anabranch_emu::{Emulation, EmulationOptions, Report};
use anabranch_graph::Topology;
use anabranch_pieces::FileHash;
use anabranch_units::{BitRate, ByteCount, Duration as Span, SiteId};
use anyhow::{Context as _, bail};
use std::io::BufReader;
use std::path::Path;
use std::time::{Duration, Instant};

/// The result of one scheme, in the order of the table's columns.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Row {
    /// The scheme as the user named it.
    pub scheme: String,
    /// Scheme that `auto` chose; otherwise the requested scheme.
    pub ran: String,
    /// Rate of the slowest destination, from the start to the verification of its copy.
    pub rate_mbps: f64,
    /// Min-cut between source and destinations.
    pub bound_mbps: f64,
    /// Rate of the plan.
    pub planned_mbps: f64,
    /// Rate as a share of the min-cut.
    pub share_of_bound: f64,
    /// True if each copy has the file's hash.
    pub verified: bool,
    /// Time from the start to the last destination's verification.
    pub took_s: f64,
    /// Congestion controls that the hops used, by the kernel's names.
    pub congestion_control: String,
    /// Bytes of IP packets on the source's links.
    pub source_sent_bytes: u64,
    /// Bytes of IP packets on all links.
    pub links_sent_bytes: u64,
    /// 99th percentile of the lateness of the emulator's packets.
    pub lateness_us_p99: f64,
    /// True if the run can be trusted, so that `why` is empty.
    pub trusted: bool,
    /// Reasons not to trust the run.
    pub why: Vec<String>,
}

/// Rate of the slowest destination over time.
pub type RatePoints = Vec<(Span, BitRate)>;

/// One transfer on one network; each scheme runs it.
pub struct DemoSettings<'a> {
    /// The network.
    pub topology: &'a Topology,
    /// The site of the file, and of the controller.
    pub source: SiteId,
    /// The sites that get a copy.
    pub destinations: &'a [SiteId],
    /// The folder of all sites' files and logs.
    pub work: &'a Path,
    /// The folder of all sites' keys.
    pub keys: &'a Path,
    /// Path of the file.
    pub file: &'a Path,
    /// The file's hash.
    pub hash: FileHash,
    /// TCP connections for each flow and hop.
    pub stripes: u16,
    /// TCP congestion control on every hop; `None` is the machine's default.
    pub congestion_control: Option<&'a str>,
    /// Bytes of a packet between sites; `None` is `send`'s default.
    pub symbol: Option<ByteCount>,
}

/// An event during a scheme's run.
#[derive(Clone, Debug)]
pub enum SchemeEvent {
    /// Bytes that the slowest destination has verified.
    Verified(u64),
    /// Reason for which the transfer waits or was stopped.
    Held(String),
}

/// Time over which each rate of the picture is averaged.
const WINDOW: Duration = Duration::from_millis(1_900);

impl DemoSettings<'_> {
    /// Runs one scheme on a new network, and calls `hear` with each event.
    ///
    /// Errors: an error of the operating system; a transfer that breaks off, with the last line of
    /// its log.
    pub fn play(
        &self,
        scheme: &str,
        hear: &mut dyn FnMut(SchemeEvent),
    ) -> anyhow::Result<(Row, Report, RatePoints)> {
        let stage = DaemonSettings {
            topology: self.topology.clone(),
            folder: self.work.join(scheme),
            keys: self.keys.to_owned(),
            controller: self.source,
            fill: false,
            patience: None,
            joint: None,
        };
        stage.make_folders()?;
        std::fs::hard_link(self.file, stage.site_folder(self.source).join("file.bin"))?;
        let options = EmulationOptions::default();
        let emulation = Emulation::start(&self.topology.with_ways_back()?, options)?;
        let mut fleet = Fleet::in_folder(&stage.folder);
        stage.start_daemons(&emulation, &mut fleet)?;
        let sent = self.send(&stage, &emulation, scheme, hear);
        let counters = emulation.counters()?;
        let report = emulation.report()?;
        drop(fleet);
        drop(emulation);
        let (summary, points) =
            sent.with_context(|| format!("{scheme} (logs in {})", stage.folder.display()))?;
        let same = |d: &SiteId| {
            let path = stage.site_folder(*d).join("copy.bin");
            anabranch_disk::partial::hash_file(&path).is_ok_and(|(_, hash)| hash == self.hash)
        };
        let verified = summary["verified"] == true && self.destinations.iter().all(same);
        let number = |field: &str| summary[field].as_f64().unwrap_or(0.0);
        let planned = self.topology.links().len();
        let counters: Vec<_> = counters.iter().filter(|c| c.link.index() < planned).collect();
        let from_source = |c: &&&anabranch_emu::LinkCounters| self.topology.link(c.link).from == self.source;
        let row = Row {
            scheme: scheme.to_owned(),
            ran: summary["scheme"].as_str().unwrap_or("-").to_owned(),
            rate_mbps: number("rate_bps") / 1e6,
            bound_mbps: number("bound_bps") / 1e6,
            planned_mbps: number("planned_bps") / 1e6,
            share_of_bound: number("rate_bps") / number("bound_bps"),
            verified,
            took_s: number("took_s"),
            congestion_control: {
                let names = summary["congestion_controls"].as_array().into_iter().flatten();
                names.filter_map(|n| n.as_str()).collect::<Vec<_>>().join(" and ")
            },
            source_sent_bytes: counters.iter().filter(from_source).map(|c| c.sent_bytes).sum(),
            links_sent_bytes: counters.iter().map(|c| c.sent_bytes).sum(),
            lateness_us_p99: report.lateness_us_p99,
            trusted: report.trusted,
            why: report.why.clone(),
        };
        // The copies have been compared, and each is as large as the file, so they are deleted
        // before the next scheme.
        for d in self.destinations {
            let _ = std::fs::remove_file(stage.site_folder(*d).join("copy.bin"));
        }
        Ok((row, report, points))
    }

    /// Runs `replicate send` at the source and follows its events.
    fn send(
        &self,
        stage: &DaemonSettings,
        emulation: &Emulation,
        scheme: &str,
        hear: &mut dyn FnMut(SchemeEvent),
    ) -> anyhow::Result<(serde_json::Value, RatePoints)> {
        let names = ("file.bin", "copy.bin", "send.log");
        let mut command = stage.send(emulation, self.source, self.destinations, scheme, names)?;
        command.args(["--stripes", &self.stripes.to_string()]);
        if let Some(name) = self.congestion_control {
            command.args(["--congestion-control", name]);
        }
        if let Some(symbol) = self.symbol {
            command.args(["--symbol", &format!("{} B", symbol.as_u64())]);
        }
        let mut sender = emulation.spawn(self.source, command)?;
        let stdout = sender.stdout.take().context("its output is piped")?;
        let mut points = Vec::new();
        // The transfer's time begins when its plan is announced.
        let mut told = None;
        // Times, and verified bytes of the slowest destination. Reports arrive in bursts, so each
        // rate spans `WINDOW`.
        let mut had = std::collections::VecDeque::from([(Duration::ZERO, 0)]);
        let summary = events(BufReader::new(stdout), |event| match event["event"].as_str() {
            Some("planned") => {
                told.get_or_insert_with(Instant::now);
            }
            Some("progress") => {
                let verified = event["destinations"].as_array().into_iter().flatten();
                let least = verified.filter_map(|d| d["verified_bytes"].as_u64()).min().unwrap_or(0);
                let now = told.map_or(Duration::ZERO, |s: Instant| s.elapsed());
                hear(SchemeEvent::Verified(least));
                while had.len() > 1 && now.saturating_sub(had[0].0) > WINDOW {
                    had.pop_front();
                }
                let (then, bytes) = had[0];
                if now > then {
                    let more = ByteCount::new(least.saturating_sub(bytes));
                    let rate = BitRate::average(more, Span::from_std(now - then));
                    points.extend(rate.map(|r| (Span::from_std(now), r)));
                }
                had.push_back((now, least));
            }
            Some("waiting" | "stopped") => hear(SchemeEvent::Held(event["reason"].to_string())),
            _ => {}
        });
        let status = sender.wait()?;
        match summary {
            Some(summary) => Ok((summary, points)),
            None => bail!("send ended with {status}: {}", stage.last_words(self.source, "send.log")),
        }
    }
}
