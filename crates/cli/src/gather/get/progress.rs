//! What a user sees while objects come: bars on a terminal, lines for programs.

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use serde::Serialize;
use std::time::{Duration, Instant};

/// How often programs are told.
const TELL_EVERY: Duration = Duration::from_secs(1);
/// Servers that have a bar of their own.
const BARS_MAX: usize = 16;

/// What one server has brought.
#[derive(Clone, Debug, Serialize)]
pub struct ServerRow {
    /// `HOST:PORT`.
    pub server: String,
    /// Its name, as its certificate says; none if it was never reached.
    pub name: Option<String>,
    /// Bytes of datagrams that came from it.
    pub received_bytes: u64,
    /// Its pulls that are under way.
    pub pulls: usize,
    /// The share of packets that begin a loss event, in the worst of its pulls.
    pub loss_event_share: f64,
    /// Why it is out of use, if it is.
    pub lost: Option<String>,
}

#[derive(Serialize)]
struct Line<'a> {
    event: &'static str,
    done_bytes: u64,
    total_bytes: Option<u64>,
    rate_mbps: f64,
    servers: &'a [ServerRow],
}

/// What is shown.
pub struct Progress {
    json: bool,
    total: ProgressBar,
    bars: Vec<ProgressBar>,
    told_at: Instant,
    told_bytes: u64,
    all: MultiProgress,
}

impl Progress {
    /// Nothing shown yet; on a terminal bars appear, unless `quiet`.
    pub fn new(json: bool, quiet: bool, servers: usize) -> Self {
        let all = MultiProgress::new();
        if json || quiet {
            all.set_draw_target(indicatif::ProgressDrawTarget::hidden());
        }
        let style = |template: &str| ProgressStyle::with_template(template).expect("a template of ours");
        let total = all.add(ProgressBar::no_length());
        total.set_style(style(
            "{bar:30} {binary_bytes} of {binary_total_bytes}  {binary_bytes_per_sec}  {eta} left  {msg}",
        ));
        let bars = if servers <= BARS_MAX { servers } else { 0 };
        let bars = (0..bars).map(|_| {
            let bar = all.add(ProgressBar::no_length());
            bar.set_style(style("  {prefix:24} {binary_bytes:>12}  {binary_bytes_per_sec:>14}  {msg}"));
            bar
        });
        let bars = bars.collect();
        Self { json, total, bars, told_at: Instant::now(), told_bytes: 0, all }
    }

    /// When it wants to be shown again.
    pub fn next_at(&self) -> Instant {
        self.told_at + TELL_EVERY / if self.json { 1 } else { 5 }
    }

    /// Shows how things stand.
    pub fn show(&mut self, done_bytes: u64, total_bytes: Option<u64>, servers: &[ServerRow]) {
        let now = Instant::now();
        if self.json {
            let seconds = (now - self.told_at).as_secs_f64().max(1e-9);
            let rate_mbps = done_bytes.saturating_sub(self.told_bytes) as f64 * 8.0 / 1e6 / seconds;
            let line = Line { event: "progress", done_bytes, total_bytes, rate_mbps, servers };
            print_line(&line);
        } else {
            if let Some(total) = total_bytes {
                self.total.set_length(total);
            }
            self.total.set_position(done_bytes);
            for (bar, row) in self.bars.iter().zip(servers) {
                bar.set_prefix(row.server.clone());
                bar.set_position(row.received_bytes);
                bar.set_message(match &row.lost {
                    Some(reason) => reason.clone(),
                    None if row.loss_event_share > 0.0 => {
                        format!("loss events {:.2} %", row.loss_event_share * 100.0)
                    }
                    None => String::new(),
                });
            }
        }
        (self.told_at, self.told_bytes) = (now, done_bytes);
    }

    /// Says a line beside the bars.
    pub fn say(&self, line: &str) {
        if !self.json {
            self.all.suspend(|| eprintln!("anabranch: {line}"));
        }
    }

    /// Takes the bars away.
    pub fn end(&self) {
        self.bars.iter().for_each(ProgressBar::finish_and_clear);
        self.total.finish_and_clear();
    }
}

/// A line for programs.
pub fn print_line(line: &impl Serialize) {
    println!("{}", serde_json::to_string(line).expect("numbers and strings"));
}
