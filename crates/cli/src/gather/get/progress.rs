//! Progress of a pull: bars on a terminal, occasional lines elsewhere, JSON lines for programs.
//!
//! All sizes are in bytes (kB, MB, GB), and all rates in bits per second (kbit/s, Mbit/s, Gbit/s).

use crate::formats::{rate, size};
use anabranch_gather::{GetEvent, Note, ObjectFailure, ServerReport};
use anabranch_units::ByteCount;
use anabranch_units::text::printable;
use indicatif::{MultiProgress, ProgressBar, ProgressState, ProgressStyle};
use serde::Serialize;
use std::time::{Duration, Instant};

/// Interval between two JSON lines.
const TELL_EVERY: Duration = Duration::from_secs(1);
/// Interval between two redraws of the bars.
const SHOW_EVERY: Duration = Duration::from_millis(200);
/// Interval between two lines to a file or a pipe.
const TELL_PLAINLY_EVERY: Duration = Duration::from_secs(5);
/// Maximum number of servers with a separate bar.
const BARS_MAX: usize = 16;

#[derive(Serialize)]
struct Line<'a> {
    event: &'static str,
    done_bytes: u64,
    total_bytes: Option<u64>,
    rate_bps: u64,
    servers: &'a [ServerReport],
}

/// State of the progress display.
pub struct Progress {
    json: bool,
    /// True if the output is no terminal, so that lines are printed instead of bars.
    is_plain: bool,
    quiet: bool,
    total: ProgressBar,
    bars: Vec<ProgressBar>,
    /// Time of the last line, and bytes received by that time.
    told_at: Instant,
    told_bytes: u64,
    all: MultiProgress,
}

impl Progress {
    /// Creates an empty display. On a terminal it shows bars, unless `quiet` is set.
    pub fn new(json: bool, quiet: bool, servers: usize) -> Self {
        let all = MultiProgress::new();
        if json || quiet {
            all.set_draw_target(indicatif::ProgressDrawTarget::hidden());
        }
        let style = |template: &str| {
            let style = ProgressStyle::with_template(template).expect("a template of ours");
            style.with_key("rate", |state: &ProgressState, out: &mut dyn std::fmt::Write| {
                // A failed write is ignored.
                let _ = write!(out, "{}", rate(state.per_sec()));
            })
        };
        let total = all.add(ProgressBar::no_length());
        total
            .set_style(style("{bar:30} {decimal_bytes} of {decimal_total_bytes}  {rate}  {eta} left  {msg}"));
        let bars = if servers <= BARS_MAX { servers } else { 0 };
        let bars = (0..bars).map(|_| {
            let bar = all.add(ProgressBar::no_length());
            bar.set_style(style("  {prefix:24} {decimal_bytes:>12}  {rate:>14}  {msg}"));
            bar
        });
        let bars = bars.collect();
        let is_plain = !std::io::IsTerminal::is_terminal(&std::io::stderr());
        Self { json, is_plain, quiet, total, bars, told_at: Instant::now(), told_bytes: 0, all }
    }

    /// Interval at which the display needs progress events.
    pub const fn every(json: bool) -> Duration {
        if json { TELL_EVERY } else { SHOW_EVERY }
    }

    /// Shows an event of the pull. `streams` is true if the object is written to standard output.
    pub fn hear(&mut self, event: GetEvent<'_>, streams: bool) {
        match event {
            GetEvent::Progress { done_bytes, total_bytes, servers } => {
                self.show(done_bytes, total_bytes, servers);
            }
            GetEvent::Note(Note::Verified { .. }) => {}
            GetEvent::Note(Note::Failed { object, failure: ObjectFailure::NotWritten(reason) })
                if streams =>
            {
                self.say(&format!("{object}: standard output: {reason}"));
            }
            GetEvent::Note(note) => self.say(&note.to_string()),
        }
    }

    /// Shows the current state.
    fn show(&mut self, done_bytes: u64, total_bytes: Option<u64>, servers: &[ServerReport]) {
        let now = Instant::now();
        let seconds = (now - self.told_at).as_secs_f64().max(1e-9);
        let per_second = done_bytes.saturating_sub(self.told_bytes) as f64 / seconds;
        if self.json {
            let rate_bps = (per_second * 8.0).round() as u64;
            let line = Line { event: "progress", done_bytes, total_bytes, rate_bps, servers };
            print_line(&line);
        } else if self.is_plain {
            if now - self.told_at < TELL_PLAINLY_EVERY {
                return;
            }
            if !self.quiet {
                let done = size(ByteCount::new(done_bytes));
                let of = total_bytes
                    .map(|total| format!(" of {}", size(ByteCount::new(total))))
                    .unwrap_or_default();
                let lost = servers.iter().filter(|row| row.lost.is_some()).count();
                let without = if lost > 0 {
                    format!(", {lost} of {} servers lost", servers.len())
                } else {
                    String::new()
                };
                errln!("anabranch: {done}{of}, {}{without}", rate(per_second));
            }
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

    /// Prints a line above the bars.
    fn say(&self, line: &str) {
        if !self.json {
            self.all.suspend(|| errln!("anabranch: {}", printable(line)));
        }
    }

    /// Removes the bars.
    pub fn end(&self) {
        self.bars.iter().for_each(ProgressBar::finish_and_clear);
        self.total.finish_and_clear();
    }
}

/// Prints a JSON line.
pub fn print_line(line: &impl Serialize) {
    outln!("{}", serde_json::to_string(line).expect("numbers and strings"));
}
